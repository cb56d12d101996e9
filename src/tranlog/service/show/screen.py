"""What `tranlog top` shows, as lines for a screen of some size. Decides, does not act.

Owns the layout: which columns a narrow terminal loses, how many rows a short one shows, what stands out. Leaves the
terminal itself to `terminal`. The hard idea: a line that is too long wraps, and then everything below it is in the
wrong place; so lines are cut here, by the cells that they take and not by their letters, and text that came from
outside cannot move the cursor, since nothing but printable letters gets through.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from rich.cells import cell_len, set_cell_size

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.rules.troubles import trouble_text
from tranlog.pipeline.status.status import Doing
from tranlog.service.show.overview import TIMES, ChannelNow, ChannelPace, Overview, Pace, ShardNow, pace

BAR_CELLS: Final = 10
LETTERS: Final = {name: name[0] for name in TIMES}
"""How the bar shows on what time went: one letter each."""
LEGEND: Final = "time: " + ", ".join(TIMES)
INTERVALS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""What + and - step through."""
_SHARD_ROWS: Final = 5
"""What channels leave to shards where there is not room for all."""
_ERROR_LINES: Final = 4
_ARROW: Final = "  ->  "


class Tone(enum.Enum):
    """How a piece of text stands out, on a terminal that can."""

    PLAIN = "plain"
    BOLD = "bold"
    DIM = "dim"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    TITLE = "title"


@dataclass(frozen=True, slots=True, kw_only=True)
class StyledText:
    """A piece of a line. Shape: printable letters only."""

    text: str
    tone: Tone = Tone.PLAIN


Line: TypeAlias = tuple[StyledText, ...]


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
class Size:
    """Of a screen, in cells."""

    columns: int
    rows: int


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
    Doing.APPLYING: Tone.GOOD,
    Doing.SERIAL: Tone.GOOD,
    Doing.WAITING: Tone.WARNING,
    Doing.STANDING: Tone.BAD,
    Doing.IDLE: Tone.DIM,
    Doing.STOPPED: Tone.DIM,
    Doing.READING: Tone.PLAIN,
}


# --- whole screens ---------------------------------------------------------------------------------------


def screen(shown: Shown, size: Size) -> list[Line]:
    """Return the lines of a terminal: never more than its rows, none wider than its columns."""
    columns, rows = max(1, size.columns), max(1, size.rows)
    footer = [_cut(_footer(shown), columns)] if rows > 1 else []
    head = [_cut(line, columns) for line in _head(shown, columns)]
    room = rows - len(footer)
    if shown.away is not None:
        body = head[:room]
    else:
        body = [*head, *_tables(shown, columns, room - len(head))][:room]
    blank: Line = ()
    return [*body, *[blank] * (room - len(body)), *footer]


def plain(shown: Shown) -> list[str]:
    """Return the same as text for any output: nothing cut, no keys."""
    lines = [*_head(shown, None)]
    if shown.away is None:
        paced = _paced(shown)
        lines += [(), *_channels(shown, paced, None)]
        if shown.now.shards:
            lines += [(), *_shards(shown.now.shards, None)]
        lines.append((StyledText(text=LEGEND),))
    return ["".join(span.text for span in line).rstrip() for line in lines]


def _paced(shown: Shown) -> Pace:
    return pace(shown.before, shown.now)


def _tables(shown: Shown, columns: int, room: int) -> Iterator[Line]:
    """Yield the two tables: the shards get what the channels leave, and a few rows in any case."""
    channels = [_cut(line, columns) for line in _channels(shown, _paced(shown), columns)]
    shards = [_cut(line, columns) for line in _shards(shown.now.shards, columns)] if shown.now.shards else []
    wanted = min(len(shards), _SHARD_ROWS + 1) + 1 if shards else 0
    most = room - 1 - wanted
    if most < 4:  # a short screen has channels only
        most, shards = room - 1, []
    yield ()
    if len(channels) > most > 1:
        left = len(channels) - most + 1
        channels = [*channels[: most - 1], _cut((StyledText(text=f"and {left} more", tone=Tone.DIM),), columns)]
    yield from channels
    if shards:
        yield ()
        yield from shards[: room - 2 - len(channels)]


# --- the head --------------------------------------------------------------------------------------------


def _head(shown: Shown, columns: int | None) -> list[Line]:
    now, paced = shown.now, _paced(shown)
    name = now.service if now.service in ("", now.pipeline) else f"{now.service}/"
    name = now.pipeline if name in ("", now.pipeline) else name + now.pipeline
    first = [StyledText(text=f"tranlog top  {_safe(name)}  ", tone=Tone.BOLD)]
    if shown.away is None:
        first.append(StyledText(text=now.state.value, tone=_state_tone(now.state)))
        first.append(StyledText(text=f" for {duration(now.now_ms - now.since_ms)}"))
        if now.limit:
            first.append(StyledText(text=f", until {_safe(now.limit)}"))
    else:
        first.append(StyledText(text=f"AWAY for {duration(round(shown.away_s * 1000))}", tone=Tone.BAD))
    if shown.paused:
        first.append(StyledText(text="  paused", tone=Tone.WARNING))
    clock = datetime.fromtimestamp(now.now_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    lines = [_with_right(tuple(first), clock, columns)]
    if shown.away is not None:
        lines += _wrapped(shown.away, columns, Tone.BAD)
        lines.append((StyledText(text="Waiting for it to come back."),))
        return lines
    lines.append((StyledText(text=_route(now, columns)),))
    lag = "for how long is not known" if now.lag_ms is None else duration(now.lag_ms)
    lines.append(
        (
            StyledText(text=f"log {_seqno(now.first_seqno)} to {_seqno(now.last_seqno)}"),
            StyledText(text=f", committed {_seqno(now.committed_seqno)}"),
            StyledText(text=f"  applied {_seqno(now.applied_seqno)}", tone=Tone.BOLD),
            StyledText(text=f"  behind {max(0, now.committed_seqno - now.applied_seqno)}, {lag}"),
        )
    )
    lines.append(
        (
            StyledText(text=f"in {_rate(paced.logged_per_s)} tx/s  out {_rate(paced.transactions_per_s)} tx/s, "),
            StyledText(
                text=f"{_rate(paced.changes_per_s)} rows/s  {now.sections} serial sections  {now.shards_known} shards"
            ),
            *([StyledText(text=f"  {now.retries} reconnects", tone=Tone.WARNING)] if now.retries else []),
        )
    )
    if now.pending is not None:
        at = f" at seqno {now.pending.seqno}, event id {now.pending.event_id!r}" if now.pending.seqno >= 0 else ""
        lines += _wrapped(f"{now.pending.type}{at}: {now.pending.message}", columns, Tone.BAD)
    if now.state in (State.ONLINE, State.DEGRADED) and now.slots < len(now.channels):
        lines += _wrapped(f"{now.slots} slots for {len(now.channels)} channels", columns, Tone.WARNING)
    for problem in (*map(trouble_text, now.troubles), *now.problems):
        lines += _wrapped(problem, columns, Tone.WARNING)
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


def _state_tone(state: State) -> Tone:
    match state:
        case State.ONLINE:
            return Tone.GOOD
        case State.OFFLINE_ERROR:
            return Tone.BAD
        case _:
            return Tone.WARNING


def _with_right(line: Line, right: str, columns: int | None) -> Line:
    """Put a text at a line's end, or, where it does not fit, nothing."""
    used = sum(cell_len(span.text) for span in line)
    gap = 2 if columns is None else columns - used - len(right)
    return line if gap < 2 else (*line, StyledText(text=" " * gap + right, tone=Tone.DIM))


def _wrapped(text: str, columns: int | None, tone: Tone) -> list[Line]:
    """Return an error in a few lines: it must be read, not guessed."""
    text = _safe(text)
    if columns is None:
        return [(StyledText(text=text, tone=tone),)]
    lines: list[str] = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > columns:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [(StyledText(text=line, tone=tone),) for line in lines[:_ERROR_LINES]]


def _footer(shown: Shown) -> Line:
    pause = "go on" if shown.paused else "pause"
    return (
        StyledText(
            text=f"q quit  p {pause}  s sort: {shown.order}  +/- every {shown.interval_s:g} s  {LEGEND}", tone=Tone.DIM
        ),
    )


# --- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column; a narrow screen loses the one with the highest `spare` first, and keeps those with 0."""

    title: str
    spare: int
    left: bool = False


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[StyledText]], width: int | None) -> Iterator[Line]:
    widths = [max([len(column.title), *(cell_len(row[at].text) for row in rows)]) for at, column in enumerate(columns)]
    kept = list(range(len(columns)))
    while width is not None and sum(widths[at] + 2 for at in kept) - 2 > width:
        spare = max(kept, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        kept.remove(spare)
    titles = [StyledText(text=column.title, tone=Tone.TITLE) for column in columns]
    for row in (titles, *rows):
        line: list[StyledText] = []
        for at in kept:
            gap = " " * (widths[at] - cell_len(row[at].text))
            text = row[at].text + gap if columns[at].left else gap + row[at].text
            line.append(StyledText(text=text, tone=row[at].tone))
            line.append(StyledText(text="  "))
        yield tuple(line[:-1])


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


def _channels(shown: Shown, paced: Pace, width: int | None) -> Iterator[Line]:
    by_channel = {one.channel: one for one in paced.channels}
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
                StyledText(text=str(one.channel)),
                StyledText(text=what, tone=_DOING_TONES[moves.doing]),
                StyledText(text=_seqno(one.applied_seqno)),
                StyledText(text=str(one.behind)),
                StyledText(text=duration(one.latency_ms)),
                StyledText(text=_rate(moves.transactions_per_s)),
                StyledText(text=_rate(moves.changes_per_s)),
                StyledText(text=bar(one, moves)),
            )
        )
    if rows:
        yield from _table(_CHANNEL_COLUMNS, rows, width)
    else:
        yield (StyledText(text="This pipeline has no channels yet.", tone=Tone.DIM),)


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


def _shards(shards: Sequence[ShardNow], width: int | None) -> Iterator[Line]:
    rows = [
        (
            StyledText(text=_clipped(_safe(one.shard), _SHARD_CELLS)),
            StyledText(text=str(one.channel)),
            StyledText(text=duration(one.latency_ms)),
            StyledText(text=_seqno(one.applied_seqno)),
            StyledText(text=str(one.transactions)),
        )
        for one in shards
    ]
    yield from _table(_SHARD_COLUMNS, rows, width)


# --- pieces ----------------------------------------------------------------------------------------------


def _safe(text: str) -> str:
    """Return what came from outside as letters that only take their place: no line breaks, no escapes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _clipped(text: str, cells: int) -> str:
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 2) + ".."


def _clipped_front(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    while text and cell_len(text) + 2 > cells:
        text = text[1:]
    return f"..{text}"


def _cut(line: Line, columns: int) -> Line:
    """Return as much of a line as its cells have room for."""
    kept: list[StyledText] = []
    left = columns
    for span in line:
        cells = cell_len(span.text)
        if cells > left:
            kept.append(StyledText(text=set_cell_size(span.text, left), tone=span.tone))
            break
        kept.append(span)
        left -= cells
    return tuple(kept)


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
