"""The lines of `tranlog top`, for any size."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import ConsoleDimensions as Size
from rich.text import Text

from tranlog.pipeline.rules.progress import InFlight
from tranlog.pipeline.rules.states import PendingError, State
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.pipeline.status.status import Doing
from tranlog.service.show.overview import ChannelNow, ChannelPace, Overview, ShardNow
from tranlog.service.show.screen import (
    BAD,
    GOOD,
    INTERVALS,
    WARNING,
    Order,
    Shown,
    bar,
    duration,
    plain,
    screen,
    stepped,
)

WIDE = Size(width=140, height=40)
NO_TIME = dict.fromkeys(("read", "filter", "apply", "commit", "wait", "idle", "other"), 0)


def channel(
    number: int, applied: int, *, behind: int = 0, latency: int = 5, done: int = 0, waits: str = ""
) -> ChannelNow:
    return ChannelNow(
        channel=number,
        applied_seqno=applied,
        event_id=f"e{applied}",
        behind=behind,
        latency_ms=latency,
        transactions=done,
        changes=3 * done,
        section=False,
        waits=waits,
        waits_for=(0,) if waits else (),
        us={**NO_TIME, "apply": 600 * done, "commit": 300 * done, "wait": 100 * done},
    )


def overview(*channels: ChannelNow, shards: tuple[ShardNow, ...] = (), at_s: float = 10.0, **more: object) -> Overview:
    made = Overview(
        service="shop",
        pipeline="shop",
        process="here pid 1",
        state=State.ONLINE,
        since_ms=0,
        now_ms=3 * 3600 * 1000,
        monotonic_s=at_s,
        source="sqlite shop.db",
        target="sqlite copy.db",
        log_dir="log",
        first_seqno=0,
        last_seqno=1200,
        committed_seqno=1200,
        applied_seqno=min((one.applied_seqno for one in channels), default=-1),
        lag_ms=400,
        limit="",
        pending=None,
        sections=12,
        retries=0,
        shards_known=len(shards),
        channels=channels,
        shards=shards,
        slots=len(channels),
    )
    return msgspec.structs.replace(made, **more)


FOUR = (
    channel(0, 1100, behind=100, done=50, latency=900),
    channel(1, 1150, behind=50, waits="channel 0 to apply serial seqno 1151", latency=7),
    channel(2, 1200, done=9),
    channel(3, 900, behind=300, latency=70_000),
)
SHARDS = tuple(
    ShardNow(shard=f"shard {n}", channel=n % 4, applied_seqno=1000 + n, latency_ms=500 - n, transactions=n)
    for n in range(8)
)
BEFORE = overview(*(channel(n, 900) for n in range(4)), at_s=5.0)
SHOWN = Shown(now=overview(*FOUR, shards=SHARDS), before=BEFORE)


def text(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def test_a_whole_screen() -> None:
    lines = text(screen(SHOWN, WIDE))
    assert len(lines) == WIDE.height
    assert lines[0].startswith("tranlog top  shop  ONLINE for 3 h") and lines[0].endswith("03:00:00 UTC")
    assert lines[1] == "sqlite shop.db  ->  sqlite copy.db"
    assert lines[2] == "log 0 to 1200, committed 1200  applied 900  behind 300, 400 ms"
    assert lines[3] == "in 0 tx/s  out 12 tx/s, 35 rows/s  12 serial sections  8 shards"
    table = [line.split() for line in lines[5:10]]
    assert table[0] == ["CH", "STATE", "APPLIED", "BEHIND", "LATENCY", "TX/S", "ROWS/S", "TIME"]
    assert table[1] == ["0", "applying", "1100", "100", "900", "ms", "10", "30", "aaaaaacccw"]
    assert "waits for channel 0 to apply serial seqno 1151" in lines[7]
    assert table[3][:2] == ["2", "applying"] and table[4][:2] == ["3", "standing"]
    assert lines[11].split()[:2] == ["SLOWEST", "SHARDS"]
    assert lines[12].split() == ["shard", "0", "0", "500", "ms", "1000", "0"]
    assert lines[-1].startswith("q quit  p pause  s sort: channel  +/- every 1 s  time: read, filter, apply")


def test_a_large_transaction_shows_how_far_it_is() -> None:
    large = InFlight(seqno=901, changes=7_000, read_bytes=2 * 10**6, size_bytes=9 * 10**6, began_at=0, written_at=0)
    one = msgspec.structs.replace(channel(3, 900, behind=300), in_flight=large)
    now = overview(one, now_ms=1_000)
    (line,) = [line for line in plain(Shown(now=now, before=now)) if line.startswith(" 3 ")]
    assert line.startswith(" 3  applying seqno 901, 7000 changes so far, 2.0 of 9.0 MB "), line


def test_columns_stand_below_each_other() -> None:
    lines = text(screen(SHOWN, WIDE))
    starts = [
        line.index(word) for line, word in zip(lines[6:10], ("applying", "waits", "applying", "standing"), strict=True)
    ]
    assert set(starts) == {lines[5].index("STATE")}
    ends = {line.index(word) + len(word) for line, word in zip(lines[5:8], ("APPLIED", "1100", "1150"), strict=True)}
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("columns", "lost"),
    [
        (110, []),
        (99, ["ROWS/S"]),
        (80, ["ROWS/S", "TIME", "LATENCY"]),
        (70, ["ROWS/S", "TIME", "LATENCY", "APPLIED"]),
        (52, ["ROWS/S", "TIME", "LATENCY", "APPLIED", "TX/S", "BEHIND"]),
    ],
)
def test_a_narrow_terminal_loses_columns(columns: int, lost: list[str]) -> None:
    """Those that say least go first; who waits for whom stays."""
    titles = text(screen(SHOWN, Size(width=columns, height=30)))[5].split()
    every = ["CH", "STATE", "APPLIED", "BEHIND", "LATENCY", "TX/S", "ROWS/S", "TIME"]
    assert titles == [one for one in every if one not in lost]


@pytest.mark.long
def test_no_line_is_ever_too_long_and_no_screen_too_high() -> None:
    """Any size, any text: what wraps puts all below it in the wrong place. Prints the seed that replays it."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    letters = "ab \x1b[2J\n\r\t日本語\u0301é\u202e\x00🙂"

    def word() -> str:
        return "".join(rng.choices(letters, k=rng.randrange(60)))

    for _ in range(100):
        channels = tuple(
            channel(n, rng.randrange(-1, 10**12), behind=rng.randrange(10**9), waits=rng.choice(["", "channels 1-900"]))
            for n in range(rng.randrange(40))
        )
        shards = tuple(
            ShardNow(shard=word(), channel=n, applied_seqno=n, latency_ms=rng.randrange(10**10), transactions=n)
            for n in range(rng.randrange(30))
        )
        pending = PendingError(type="ConflictError", message=word(), seqno=rng.randrange(-1, 5), event_id=word())
        now = overview(*channels, shards=shards, service=word(), target=word(), pending=rng.choice([None, pending]))
        shown = Shown(
            now=msgspec.structs.replace(now, problems=(word(),) * rng.randrange(3), limit=word()),
            before=rng.choice([None, BEFORE]),
            order=rng.choice(list(Order)),
            paused=rng.random() < 0.5,
            away=rng.choice([None, word()]),
        )
        size = Size(width=rng.randrange(1, 150), height=rng.randrange(1, 60))
        lines = text(screen(shown, size))
        assert len(lines) == size.height
        for line in [*lines, *plain(shown)]:
            assert line.isprintable(), repr(line)
        assert max(map(cell_len, lines)) <= size.width


def test_a_short_terminal_says_how_many_it_leaves_out() -> None:
    many = Shown(now=overview(*(channel(n, 5) for n in range(30)), shards=SHARDS))
    lines = text(screen(many, Size(width=100, height=24)))
    left = [line for line in lines if line.startswith("and ")]
    shown = sum(line.split()[:1] == [str(n)] for n, line in enumerate(lines[6:36])) if lines[6:] else 0
    assert left == [f"and {30 - shown} more"]
    assert any("SLOWEST SHARDS" in line for line in lines), "a few rows are the shards' in any case"
    short = text(screen(many, Size(width=100, height=12)))
    assert not any("SLOWEST" in line for line in short) and any(line.startswith("and ") for line in short)
    assert short[-1].startswith("q quit")


@pytest.mark.parametrize(
    ("order", "channels"),
    [
        (Order.CHANNEL, "0123"),
        (Order.BEHIND, "3012"),
        (Order.LATENCY, "3012"),
        (Order.RATE, "0213"),
    ],
)
def test_sorted_by(order: Order, channels: str) -> None:
    lines = text(screen(replace(SHOWN, order=order), WIDE))
    assert "".join(line.split()[0] for line in lines[6:10]) == channels
    assert f"sort: {order.value}" in lines[-1]
    assert order.following() is not order


def test_the_pending_error_can_be_read() -> None:
    message = "row (7) of shop.orders is there already. " + "What stands at the target is not ours. " * 5
    pending = PendingError(type="ConflictError", message=message, seqno=901, event_id="e901")
    now = overview(*FOUR, state=State.OFFLINE_ERROR, pending=pending)
    lines = screen(Shown(now=now), Size(width=80, height=40))
    told = [line for line in lines if line.style == BAD or (line and line.spans and line.spans[0].style == BAD)]
    joined = " ".join(text(told))
    assert joined.startswith("ConflictError at seqno 901, event id 'e901': row (7) of shop.orders is there already.")
    assert 2 <= len(told) <= 4
    assert " ".join(message.split()) in " ".join(plain(Shown(now=now)))
    assert all("stopped" in line for line in text(lines) if line.split()[:1] in (["0"], ["1"], ["2"], ["3"]))


def test_who_cannot_go_on_is_named_with_the_reason() -> None:
    """`status` and `top --json` said so, and the screen said ONLINE:DEGRADED alone."""
    troubles = (
        Trouble(channel=2, reason="no more connections", since_ms=1309533317000),
        Trouble(channel=-1, reason="no answer", since_ms=1309533317000),
    )
    lines = plain(Shown(now=overview(*FOUR, state=State.DEGRADED, slots=3, troubles=troubles)))
    at = "cannot use the target since 2011-07-01 15:15:17 UTC"
    assert lines[4:7] == ["3 slots for 4 channels", f"channel 2, which {at}: no more connections"] + [
        f"the driver, which {at}: no answer"
    ]
    narrow = text(screen(Shown(now=overview(*FOUR, troubles=troubles)), Size(width=50, height=30)))
    assert narrow[4:6] == [
        "channel 2, which cannot use the target since",
        "2011-07-01 15:15:17 UTC: no more connections",
    ]
    resting = plain(Shown(now=overview(*FOUR, state=State.OFFLINE_NORMAL, slots=0)))
    assert not any("slots" in line for line in resting), "nobody needs one"


def test_a_pipeline_that_went_away() -> None:
    """No numbers of before, which would look like those of now."""
    lines = text(screen(replace(SHOWN, away="nobody listens there", away_s=75.0), WIDE))
    assert lines[0].startswith("tranlog top  shop  AWAY for 75.0 s")
    assert lines[1:3] == ["nobody listens there", "Waiting for it to come back."]
    assert not any(lines[3:-1]) and lines[-1].startswith("q quit")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (60, "sqlite deep/deep/deep/shop.db  ->  postgresql://here/db"),
        (48, "..ep/deep/deep/shop.db  ->  postgresql://here/db"),
        (30, "..ep/shop.db  ->  ..://here/db"),
    ],
)
def test_of_long_names_the_end_is_shown(columns: int, shown: str) -> None:
    now = overview(*FOUR, source="sqlite deep/deep/deep/shop.db", target="postgresql://here/db")
    assert text(screen(Shown(now=now), Size(width=columns, height=30)))[1] == shown


def test_plain_has_everything_and_no_keys() -> None:
    lines = plain(SHOWN)
    assert not any("quit" in line for line in lines)
    assert any("waits for channel 0 to apply serial seqno 1151" in line for line in lines)
    assert sum(line.startswith("shard ") for line in lines) == len(SHARDS)


def test_what_stands_out() -> None:
    tones = {
        line.plain[span.start : span.end].strip(): str(span.style)
        for line in screen(SHOWN, WIDE)
        for span in line.spans
    }
    assert tones["ONLINE"] == GOOD and tones["standing"] == BAD
    assert tones["waits for channel 0 to apply serial seqno 1151"] == WARNING


def test_before_anything_was_applied() -> None:
    lines = text(screen(Shown(now=overview(applied_seqno=-1, last_seqno=-1, first_seqno=-1, committed_seqno=-1)), WIDE))
    assert "log - to -, committed -  applied -  behind 0" in lines[2]
    assert lines[5] == "This pipeline has no channels yet."


def moving(doing: Doing, **shares: float) -> ChannelPace:
    return ChannelPace(channel=0, doing=doing, transactions_per_s=None, changes_per_s=None, shares=shares)


@pytest.mark.parametrize(
    ("moves", "shown"),
    [
        (moving(Doing.APPLYING, apply=0.34, commit=0.33, wait=0.33), "aaaacccwww"),
        (moving(Doing.APPLYING, apply=0.96, commit=0.04), "aaaaaaaaaa"),
        (moving(Doing.IDLE), "iiiiiiiiii"),
        (moving(Doing.STANDING), "----------"),
    ],
)
def test_the_bar(moves: ChannelPace, shown: str) -> None:
    assert bar(FOUR[0], moves) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(-5, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (119_000, "119.0 s"), (120_000, "2 min"), (86_400_000 * 9, "9 d")],
)
def test_a_time(ms: int, shown: str) -> None:
    assert duration(ms) == shown


def test_intervals_step_up_and_down_and_end() -> None:
    assert (stepped(1.0, longer=True), stepped(1.0, longer=False), stepped(3.0, longer=True)) == (2.0, 0.5, 5.0)
    assert stepped(INTERVALS[-1], longer=True) == INTERVALS[-1] and stepped(0.2, longer=False) == 0.2


def test_loads_are_told_below_the_head() -> None:
    """docs/operations.md, "Loading rows that are there already"."""
    now = overview(loads=("load 7: 1 of 3 tables, 1000 rows of about 5000, about 40 s left",))
    lines = plain(Shown(now=now))
    assert lines[4] == now.loads[0]
    assert now.loads[0] in "\n".join(line.plain for line in screen(Shown(now=now), Size(100, 30)))


def test_tables_that_wait_for_a_load_are_told_below_the_loads() -> None:
    """docs/operations.md, "A gap of some tables": all in plain text, a terminal shows the first."""
    text = "waits for a load since the gap of seqno 8 (why), and its changes are passed over: tranlog load --replace"
    now = overview(loads=("load 7: waits for capture",), notes=tuple(f"s.t{n} {text}" for n in range(5)))
    lines = plain(Shown(now=now))
    assert lines[4:10] == [*now.loads, *now.notes]
    shown = [line.plain for line in screen(Shown(now=now), Size(140, 30))]
    assert shown[4:9] == [*now.loads, *now.notes[:3], "and 2 more tables: tranlog status"]


def test_what_channels_did_by_write_sets_is_told_below_the_head() -> None:
    now = overview(*FOUR, writes="by write sets: 30.0% depended on another channel, 4.0% waited, 1.2 s; 0.1% ran alone")
    lines = plain(Shown(now=now))
    assert lines[4] == now.writes
    assert "by write sets" not in "\n".join(plain(SHOWN))
