"""What `tranlog top` shows, as lines for a screen of some size. Decides, does not act.

Owns the layout: which columns a narrow terminal loses, how many rows a short one shows, what stands out. Leaves cells,
wrapping and tables to rich, the terminal itself to `terminal`. The hard idea: what came from outside cannot move the
cursor, since nothing but printable letters gets through.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.rules.troubles import trouble_text
from tranlog.pipeline.status.status import Doing
from tranlog.service.show.overview import TIMES, ChannelNow, ChannelPace, Overview, ShardNow, pace

BAR_CELLS: Final = 10
LETTERS: Final = {name: name[0] for name in TIMES}
"""How the bar shows on what time went: one letter each."""
LEGEND: Final = "time: " + ", ".join(TIMES)
INTERVALS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""What + and - step through."""
_SHARD_ROWS: Final = 5
"""What channels leave to shards where there is not room for all."""
_ERROR_LINES: Final = 4
_NOTES: Final = 3
"""How many notes on tables a terminal shows."""
_ARROW: Final = "  ->  "
GOOD: Final = "green"
WARNING: Final = "bold yellow"
BAD: Final = "bold red"
BOLD: Final = "bold"
DIM: Final = "dim"
_LAYOUT: Final = Console(width=10_000, color_system=None, markup=False, emoji=False, highlight=False)
"""Lays out without a terminal: nothing is written to it."""


class Order(enum.StrEnum):
    """By what the channels are sorted."""

    CHANNEL = "channel"
    BEHIND = "behind"
    LATENCY = "latency"
    RATE = "rate"

    def following(self) -> Order:
        """Return the next order, round and round."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What there is to show. `away`: why it has not answered for `away_s`; then `now` is what it last said."""

    now: Overview
    before: Overview | None = None
    order: Order = Order.CHANNEL
    interval_s: float = 1.0
    paused: bool = False
    away: str | None = None
    away_s: float = 0.0


_DOING_TONES: Final = {
    Doing.APPLYING: GOOD,
    Doing.SERIAL: GOOD,
    Doing.WAITING: WARNING,
    Doing.STANDING: BAD,
    Doing.IDLE: DIM,
    Doing.STOPPED: DIM,
    Doing.READING: "",
}


# --- whole screens ---------------------------------------------------------------------------------------


def screen(shown: Shown, size: ConsoleDimensions) -> list[Text]:
    """Return the lines of a terminal: never more than its rows, none wider than its columns."""
    columns, rows = max(1, size.width), max(1, size.height)
    footer = [_footer(shown)] if rows > 1 else []
    room = rows - len(footer)
    head = _head(shown, columns)
    body = head if shown.away is not None else [*head, *_tables(shown, columns, room - len(head))]
    lines = [*body[:room], *[Text()] * (room - len(body)), *footer]
    for line in lines:
        line.truncate(columns)
    return lines


def plain(shown: Shown) -> list[str]:
    """Return the same as text for any output: nothing cut, no keys."""
    lines = _head(shown, None)
    if shown.away is None:
        lines += [Text(), *_channels(shown, None)]
        if shown.now.shards:
            lines += [Text(), *_shards(shown.now.shards, None)]
        lines.append(Text(LEGEND))
    return [line.plain.rstrip() for line in lines]


def _tables(shown: Shown, columns: int, room: int) -> list[Text]:
    """Return the two tables: the shards get what the channels leave, and a few rows in any case."""
    channels = _channels(shown, columns)
    shards = _shards(shown.now.shards, columns) if shown.now.shards else []
    wanted = min(len(shards), _SHARD_ROWS + 1) + 1 if shards else 0
    most = room - 1 - wanted
    if most < 4:  # a short screen has channels only
        most, shards = room - 1, []
    if len(channels) > most > 1:
        left = len(channels) - most + 1
        channels = [*channels[: most - 1], Text(f"and {left} more", DIM)]
    return [Text(), *channels, *([Text(), *shards[: max(0, room - 2 - len(channels))]] if shards else [])]


# --- the head --------------------------------------------------------------------------------------------


def _head(shown: Shown, columns: int | None) -> list[Text]:
    now, paced = shown.now, pace(shown.before, shown.now)
    name = now.service if now.service in ("", now.pipeline) else f"{now.service}/"
    name = now.pipeline if name in ("", now.pipeline) else name + now.pipeline
    first = Text.assemble((f"tranlog top  {_safe(name)}  ", BOLD))
    if shown.away is None:
        first.append(now.state.value, _state_tone(now.state))
        first.append(f" for {duration(now.now_ms - now.since_ms)}")
        if now.limit:
            first.append(f", until {_safe(now.limit)}")
    else:
        first.append(f"AWAY for {duration(round(shown.away_s * 1000))}", BAD)
    if shown.paused:
        first.append("  paused", WARNING)
    clock = datetime.fromtimestamp(now.now_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    gap = 2 if columns is None else columns - first.cell_len - len(clock)
    if gap >= 2:
        first.append(" " * gap + clock, DIM)
    if shown.away is not None:
        return [first, *_wrapped(shown.away, columns, BAD), Text("Waiting for it to come back.")]
    lag = "for how long is not known" if now.lag_ms is None else duration(now.lag_ms)
    lines = [
        first,
        Text(_route(now, columns)),
        Text.assemble(
            f"log {_seqno(now.first_seqno)} to {_seqno(now.last_seqno)}, committed {_seqno(now.committed_seqno)}",
            (f"  applied {_seqno(now.applied_seqno)}", BOLD),
            f"  behind {max(0, now.committed_seqno - now.applied_seqno)}, {lag}",
        ),
        Text.assemble(
            f"in {_rate(paced.logged_per_s)} tx/s  out {_rate(paced.transactions_per_s)} tx/s, ",
            f"{_rate(paced.changes_per_s)} rows/s  {now.sections} serial sections  {now.shards_known} shards",
            (f"  {now.retries} reconnects" if now.retries else "", WARNING),
        ),
    ]
    if now.pending is not None:
        at = f" at seqno {now.pending.seqno}, event id {now.pending.event_id!r}" if now.pending.seqno >= 0 else ""
        lines += _wrapped(f"{now.pending.type}{at}: {now.pending.message}", columns, BAD)
    if now.state in (State.ONLINE, State.DEGRADED) and now.slots < len(now.channels):
        lines += _wrapped(f"{now.slots} slots for {len(now.channels)} channels", columns, WARNING)
    if now.writes:
        lines += _wrapped(now.writes, columns, "")
    for load in now.loads:
        lines += _wrapped(load, columns, "")
    notes = now.notes if columns is None else now.notes[:_NOTES]
    for note in notes:
        lines += _wrapped(note, columns, WARNING)
    if len(notes) < len(now.notes):
        lines.append(Text(f"and {len(now.notes) - len(notes)} more tables: tranlog status", WARNING))
    for problem in (*map(trouble_text, now.troubles), *now.problems):
        lines += _wrapped(problem, columns, WARNING)
    return lines


def _route(now: Overview, columns: int | None) -> str:
    """Say from where to where; of names that are too long the ends, which tell more than the beginnings."""
    ends = [_safe(now.source) or "source unknown", _safe(now.target) or "target unknown"]
    if columns is not None:
        room = max(0, columns - len(_ARROW))
        most = [room // 2, room - room // 2]
        for at, other in ((0, 1), (1, 0)):
            most[at] = max(most[at], room - cell_len(ends[other]))
        ends = [_clipped_front(end, cells) for end, cells in zip(ends, most, strict=True)]
    return _ARROW.join(ends)


def _state_tone(state: State) -> str:
    match state:
        case State.ONLINE:
            return GOOD
        case State.OFFLINE_ERROR:
            return BAD
        case _:
            return WARNING


def _wrapped(text: str, columns: int | None, style: str) -> list[Text]:
    """Return an error in a few lines: it must be read, not guessed."""
    line = Text(_safe(text), style)
    return [line] if columns is None else list(line.wrap(_LAYOUT, columns))[:_ERROR_LINES]


def _footer(shown: Shown) -> Text:
    pause = "go on" if shown.paused else "pause"
    return Text(f"q quit  p {pause}  s sort: {shown.order}  +/- every {shown.interval_s:g} s  {LEGEND}", DIM)


# --- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column; a narrow screen loses the one with the highest `spare` first, and keeps those with 0."""

    title: str
    spare: int
    left: bool = False


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[Text | str]], width: int | None) -> list[Text]:
    texts = [[one if isinstance(one, Text) else Text(one) for one in row] for row in rows]
    widths = [max([len(column.title), *(row[at].cell_len for row in texts)]) for at, column in enumerate(columns)]
    kept = list(range(len(columns)))
    while width is not None and sum(widths[at] + 2 for at in kept) - 2 > width:
        spare = max(kept, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        kept.remove(spare)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="reverse")
    for at in kept:
        table.add_column(
            columns[at].title, justify="left" if columns[at].left else "right", no_wrap=True, width=widths[at]
        )
    for row in texts:
        table.add_row(*[row[at] for at in kept])
    lines = _LAYOUT.render_lines(table, pad=False)
    return [Text.assemble(*[(part.text, part.style or "") for part in line]) for line in lines]


_CHANNEL_COLUMNS: Final = (
    _Column(title="CH", spare=0),
    _Column(title="STATE", spare=0, left=True),
    _Column(title="APPLIED", spare=3),
    _Column(title="BEHIND", spare=1),
    _Column(title="LATENCY", spare=4),
    _Column(title="TX/S", spare=2),
    _Column(title="ROWS/S", spare=6),
    _Column(title="TIME", spare=5, left=True),
)


def _channels(shown: Shown, width: int | None) -> list[Text]:
    if not shown.now.channels:
        return [] if shown.now.problems else [Text("This pipeline has no channels yet.", DIM)]
    by_channel = {one.channel: one for one in pace(shown.before, shown.now).channels}
    ranks: dict[Order, Callable[[ChannelNow], float]] = {
        Order.CHANNEL: lambda one: one.channel,
        Order.BEHIND: lambda one: -one.behind,
        Order.LATENCY: lambda one: -one.latency_ms,
        Order.RATE: lambda one: -(by_channel[one.channel].transactions_per_s or 0.0),
    }
    rank = ranks[shown.order]
    rows = []
    for one in sorted(shown.now.channels, key=lambda one: (rank(one), one.channel)):
        moves = by_channel[one.channel]
        what = f"waits for {one.waits}" if moves.doing is Doing.WAITING else moves.doing.value
        if one.in_flight is not None and moves.doing is not Doing.WAITING:
            what = f"{what} {one.in_flight.text}"
        rows.append(
            (
                str(one.channel),
                Text(what, _DOING_TONES[moves.doing]),
                _seqno(one.applied_seqno),
                str(one.behind),
                duration(one.latency_ms),
                _rate(moves.transactions_per_s),
                _rate(moves.changes_per_s),
                bar(one, moves),
            )
        )
    return _table(_CHANNEL_COLUMNS, rows, width)


def bar(now: ChannelNow, moves: ChannelPace) -> str:
    """Return where a channel's time went: ten letters, by largest remainders; dashes where it told nothing."""
    shares = moves.shares
    if not shares:
        return (LETTERS["idle"] if moves.doing is Doing.IDLE else "-") * BAR_CELLS
    cells = {name: int(share * BAR_CELLS) for name, share in shares.items()}
    rest = BAR_CELLS - sum(cells.values())
    for name in sorted(shares, key=lambda name: int(shares[name] * BAR_CELLS) - shares[name] * BAR_CELLS)[:rest]:
        cells[name] += 1
    return "".join(LETTERS[name] * cells.get(name, 0) for name in TIMES)


_SHARD_COLUMNS: Final = (
    _Column(title="SLOWEST SHARDS", spare=0, left=True),
    _Column(title="CH", spare=2),
    _Column(title="LATENCY", spare=1),
    _Column(title="APPLIED", spare=3),
    _Column(title="TRANSACTIONS", spare=4),
)
_SHARD_CELLS: Final = 40


def _shards(shards: Sequence[ShardNow], width: int | None) -> list[Text]:
    rows = []
    for one in shards:
        name = Text(_safe(one.shard))
        name.truncate(_SHARD_CELLS, overflow="ellipsis")
        rows.append(
            (name, str(one.channel), duration(one.latency_ms), _seqno(one.applied_seqno), str(one.transactions))
        )
    return _table(_SHARD_COLUMNS, rows, width)


# --- pieces ----------------------------------------------------------------------------------------------


def _safe(text: str) -> str:
    """Return what came from outside as letters that only take their place: no line breaks, no escapes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _clipped_front(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    while text and cell_len(text) + 2 > cells:
        text = text[1:]
    return f"..{text}"


def _seqno(seqno: int) -> str:
    return "-" if seqno == NO_SEQNO else str(seqno)


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return "-"
    return f"{per_s:.1f}" if 0 < per_s < 10 else f"{per_s:.0f}"


def duration(ms: int) -> str:
    """Return a time as a person reads it: 12 ms, 3.4 s, 12 min, 5 h, 9 d."""
    ms = max(0, ms)
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def stepped(interval_s: float, *, longer: bool) -> float:
    """Return the next interval up or down."""
    if longer:
        return next((one for one in INTERVALS if one > interval_s), INTERVALS[-1])
    return next((one for one in reversed(INTERVALS) if one < interval_s), INTERVALS[0])
