"""Which segments may go: by age, or up to a seqno, and never what somebody still needs.

Owns the decision; `log` removes the files. The hard idea: a hold keeps the record at its own position too, since
a restart looks it up to see that this is still the same log.

Source: design/log-format.md, "holds/NAME", sync record's `written_at`; design/glossary.md, "low_water_seqno".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tranlog.ids import Seqno

KEPT_SEGMENTS = 2
"""The newest segments, which never go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """A segment as retention sees it. `ended_at` (ms since 1970) is when the next one was begun; None: unknown."""

    number: int
    last_seqno: Seqno
    ended_at: int | None


def purge_by_age(
    segments: Sequence[SegmentAge], *, now_ms: int, retention_ms: float, holds: Iterable[Seqno | None]
) -> list[int]:
    """Return the segments to remove, from the front, that ended longer than `retention_ms` ago.

    Stops at the first that has to stay, so that no hole comes about. A hold of None (damaged) keeps everything.
    """
    return _purge(segments, holds, lambda one: one.ended_at is not None and now_ms - one.ended_at > retention_ms)


def purge_below(segments: Sequence[SegmentAge], *, seqno: Seqno, holds: Iterable[Seqno | None]) -> list[int]:
    """Return the segments to remove, from the front, that hold nothing but transactions below `seqno`."""
    return _purge(segments, holds, lambda one: one.last_seqno < seqno)


def _purge(
    segments: Sequence[SegmentAge], holds: Iterable[Seqno | None], may_go: Callable[[SegmentAge], bool]
) -> list[int]:
    needed: list[Seqno] = []
    for hold in holds:
        if hold is None:
            return []
        needed.append(hold)
    low_water = min(needed, default=None)
    gone: list[int] = []
    for one in segments[: max(len(segments) - KEPT_SEGMENTS, 0)]:
        if not may_go(one) or (low_water is not None and one.last_seqno >= low_water):
            break
        gone.append(one.number)
    return gone
