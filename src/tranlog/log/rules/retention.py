"""Which segments may go, and when a segment is old enough to be closed: by age, by size, or by hand.

Owns the decisions; `purging` removes the files, `log` rotates. The hard ideas: a hold keeps the record at its own
position too, since a restart looks it up to see that this is still the same log; only a hard limit passes a hold. And
stamps are a clock's, which may go back or have been wrong: a stamp from the future proves nothing, and neither does one
that lies before an earlier segment's, so a wrong clock keeps segments longer; but one that was slow from the oldest
segment's beginning on makes them look as old as it said.

Source: thl-internals, logFileRetention; tokumx-replication, "Oplog Management".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from tranlog.ids import Seqno

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """A segment as retention sees it. `begun_at`: its first sync record's stamp, ms since 1970; None: it has none.

    `last_seqno` is the last one that lives in it; of a segment without any, the last one before it.
    """

    number: int
    last_seqno: Seqno
    begun_at: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What `name` still needs: everything from `restart_seqno` on; None (a damaged hold): everything there is."""

    name: str
    restart_seqno: Seqno | None

    def needs(self, last_seqno: Seqno) -> bool:
        """Whether it needs something of a segment that ends with `last_seqno`."""
        return self.restart_seqno is None or self.restart_seqno <= last_seqno


# --- limits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderThan:
    """Segments that ended so many ms ago, or longer. `hard`: holds do not count."""

    ms: int
    hard: bool = False

    def __str__(self) -> str:
        return f"{'hard_' if self.hard else ''}retention_s = {self.ms / 1000:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerThan:
    """The oldest segments, until all together are no larger than so many bytes."""

    bytes: int
    hard: bool = False

    def __str__(self) -> str:
        return f"{'hard_' if self.hard else ''}retention_bytes = {self.bytes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpToSeqno:
    """By hand: segments in which nothing lives beyond this seqno; it goes too. `told` is what was asked for."""

    seqno: Seqno
    told: str = ""
    hard: bool = False

    def __str__(self) -> str:
        return f"a trim to {self.told or f'seqno {self.seqno}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpToTime:
    """By hand: segments that ended at this moment or before, ms since 1970."""

    at_ms: int
    told: str = ""
    hard: bool = False

    def __str__(self) -> str:
        return f"a trim to {self.told or f'{self.at_ms} ms since 1970'}"


Limit: TypeAlias = OlderThan | LargerThan | UpToSeqno | UpToTime
"""A reason to give segments up, each with inclusive bounds."""


def check_limit(limit: object) -> None:
    """Raise TypeError for what is no limit: before a step of the writer, which nothing unexpected may break off."""
    match limit:
        case OlderThan(ms=int()) | LargerThan(bytes=int()) | UpToSeqno(seqno=int()) | UpToTime(at_ms=int()):
            return
    raise TypeError(f"a limit is OlderThan, LargerThan, UpToSeqno or UpToTime, of an int, and not {limit!r}")


# --- the plan --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What goes: whole segments from the front, and why. `up_to` is the last seqno that goes, None if nothing does.

    `limit` is the one that reaches furthest, `passed` names the holds that lose something by it. `kept_for` names the
    holds without which more would go.
    """

    gone: tuple[int, ...] = ()
    up_to: Seqno | None = None
    limit: Limit | None = None
    passed: tuple[str, ...] = ()
    kept_for: tuple[str, ...] = ()


def purge_plan(
    segments: Sequence[Retained], *, limits: Iterable[Limit], holds: Sequence[Held], durable: Seqno, now_ms: int
) -> PurgePlan:
    """Decide what of the row `segments`, first to newest, is given up by `limits`.

    Ends: stops at the first segment that has to stay, so that no hole comes about. The newest segment stays, and so
    does the one with the last durable transaction: it says which GTID, and which position of the source, comes next.
    """
    may_go = 0
    for one in segments[:-1]:
        if one.last_seqno >= durable:
            break
        may_go += 1
    held = next((at for at in range(may_go) if _needing(segments[at], holds)), may_go)
    reach, wanted = 0, 0
    by: Limit | None = None
    for limit in limits:
        reached = _reach(segments[:may_go], segments, limit, now_ms)
        wanted = max(wanted, reached)
        allowed = reached if limit.hard else min(reached, held)
        if allowed > reach:
            reach, by = allowed, limit
    kept_for = _needing(segments[reach], holds) if wanted > reach else ()
    if not reach:
        return PurgePlan(kept_for=kept_for)
    up_to = max(one.last_seqno for one in segments[:reach])
    return PurgePlan(
        gone=tuple(one.number for one in segments[:reach]),
        up_to=up_to,
        limit=by,
        passed=tuple(one.name for one in holds if one.needs(up_to)),
        kept_for=kept_for,
    )


def _needing(segment: Retained, holds: Sequence[Held]) -> tuple[str, ...]:
    return tuple(one.name for one in holds if one.needs(segment.last_seqno))


def _reach(candidates: Sequence[Retained], row: Sequence[Retained], limit: Limit, now_ms: int) -> int:
    """Return how many of `candidates`, which begin `row`, a limit gives up, holds aside."""
    match limit:
        case OlderThan(ms=ms):
            return _ended_by(candidates, row, now_ms - ms, now_ms)
        case UpToTime(at_ms=at_ms):
            return _ended_by(candidates, row, at_ms, now_ms)
        case UpToSeqno(seqno=seqno):
            return next((at for at, one in enumerate(candidates) if one.last_seqno > seqno), len(candidates))
        case LargerThan(bytes=most):
            total = sum(one.bytes for one in row)
            for at, one in enumerate(candidates):
                if total <= most:
                    return at
                total -= one.bytes
            return len(candidates)
    assert_never(limit)


def _ended_by(candidates: Sequence[Retained], row: Sequence[Retained], moment: int, now_ms: int) -> int:
    ends = ended_at(row, now_ms=now_ms)
    for at in range(len(candidates)):
        end = ends[at]
        if end is None or end > moment:
            return at
    return len(candidates)


def ended_at(row: Sequence[Retained], *, now_ms: int) -> list[int | None]:
    """Return when each segment ended, as far as the stamps of those after it prove it, ms since 1970.

    A segment ended when the next one was begun. A stamp later than now, or earlier than one before it, was given by a
    clock that was wrong then or is wrong now: the next stamp after it counts.
    """
    ends: list[int | None] = []
    latest = 0
    for at, one in enumerate(row):
        if one.begun_at is not None and one.begun_at <= now_ms:
            latest = max(latest, one.begun_at)
        ends.append(
            next(
                (
                    later.begun_at
                    for later in row[at + 1 :]
                    if later.begun_at is not None and latest <= later.begun_at <= now_ms
                ),
                None,
            )
        )
    return ends


# --- when a segment is closed for its age ----------------------------------------------------------------


def segment_span_ms(retention_s: float | None) -> int:
    """Return how long one segment is written to: an hour where retention is below a day, else a day.

    So that what is kept too long, since only whole segments go, is a small part of it. Without retention it is a day,
    which makes trimming by hand possible. Source: tokumx-replication, expireOplogDays/expireOplogHours.
    """
    return HOUR_MS if retention_s is not None and 0 < retention_s * 1000 < DAY_MS else DAY_MS


def rotation_due(*, begun_at: int | None, now_ms: int, retention_s: float | None) -> bool:
    """Whether a segment that was begun at `begun_at` and holds something is old enough to be closed.

    One whose stamp lies as far in the future as it may be old is closed too: the clock was wrong then, and the next
    one gets a stamp that is right.
    """
    return begun_at is not None and abs(now_ms - begun_at) >= segment_span_ms(retention_s)
