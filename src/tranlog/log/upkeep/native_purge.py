"""`thl purge` of a native log: whole segments from the front, a rollback at the end.

Owns which of the two a range means. The hard idea: the ancestor cuts records off the end, and their seqnos are handed
out again with another content. Here the end is abandoned by a mark and a new epoch begins, so a target that has
applied what went finds out instead of going on.

Source: docs/conformance.md, B7-2; docs/format.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tranlog.errors import PurgeRangeError
from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import RollbackMark
from tranlog.log.writing.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeFront:
    """Whole segments with nothing at or above `below`."""

    below: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeEnd:
    """Everything after `keep`."""

    keep: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRefused:
    """Nothing may be removed."""

    why: str


PurgePlan: TypeAlias = PurgeFront | PurgeEnd | PurgeRefused


def plan_purge(low: int | None, high: int | None, *, first: int, last: int) -> PurgePlan:
    """Decide what a range of a log that holds `first` to `last` (-1: nothing) means. Ends included. Pure."""
    if last < 0:
        return PurgeRefused(why="it is empty")
    from_front = low is None or low <= first
    to_end = high is None or high >= last
    if from_front and to_end:
        return PurgeRefused(why="that is the whole log; `tranlog reset` removes it and prevents reuse of its GTIDs")
    if (low is not None and low > last) or (high is not None and high < first):
        return PurgeRefused(why=f"it holds seqno {first} to {last}")
    if from_front:
        assert high is not None
        return PurgeFront(below=Seqno(high + 1))
    if to_end:
        assert low is not None
        return PurgeEnd(keep=Seqno(low - 1))
    where = f"low seqno={low} high seqno={high}"
    return PurgeRefused(why=f"Deletion range invalid; must include one or both log end points: {where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOutcome:
    """What was done."""

    removed: tuple[str, ...] = ()
    mark: RollbackMark | None = None

    def shown(self) -> dict[str, object]:
        """Return it for programs."""
        mark = self.mark
        abandoned = None if mark is None else {"after": str(mark.matchpoint), "last_seqno": mark.last_seqno}
        return {"removed": self.removed, "abandoned": abandoned}

    def lines(self) -> list[str]:
        """Return it for people."""
        return [f"removed {name}" for name in self.removed] + list(self._mark_lines())

    def _mark_lines(self) -> Iterator[str]:
        if self.mark is not None:
            yield f"abandoned everything after {self.mark.matchpoint}, up to seqno {self.mark.last_seqno}"


def purge(path: str, *, low: int | None, high: int | None) -> PurgeOutcome:
    """Carry it out. Raises PurgeRangeError, LogLockedError, HoldError, RollbackError and what opening raises."""
    with LogReader.open(path) as reader:
        held = reader.range()
        plan = plan_purge(low, high, first=held.first_seqno, last=held.last_seqno)
        if isinstance(plan, PurgeRefused):
            raise PurgeRangeError(path=path, why=plan.why)
        kept = reader.header(plan.keep) if isinstance(plan, PurgeEnd) else None
        newest = reader.header(held.last_seqno)
    assert newest is not None
    if isinstance(plan, PurgeFront):
        with Log.open_for_upkeep(path) as log:
            return PurgeOutcome(removed=tuple(log.purge(below=plan.below)))
    assert kept is not None
    with Log.open(path, source_id=newest.source_id) as log:
        return PurgeOutcome(mark=log.rollback(Gtid(kept.epoch, kept.seqno)))
