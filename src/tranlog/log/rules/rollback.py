"""Rollback marks: what was abandoned, by which mark, and whether a log may be rolled back at all.

Owns these decisions, on values alone. Writing a mark is `log`'s, finding marks `segment`'s and `scan`'s, passing over
what is dead the row of segments'. The hard idea: nothing is ever taken out of a segment. A mark is the first record
but sync records of a segment of its own, so that a glance at every segment's first bytes finds all of them, and a
dead interval always reaches from after a matchpoint to the start of a segment: two of them are nested or disjoint,
and inside one segment the living part is a front of it.

Source: docs/conformance.md, I27 to I31.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.log.records.format import RollbackMark
from tranlog.lsn import lsn_text

FOLLOWERS: Final = ("node.", "restore.")
"""What the names of holds begin with that nodes keep which copy the log: they go back with it, and refuse nothing."""


class Needed(NamedTuple):
    """A hold, as a rollback has to honour it: see `positions.Hold`. `running`: its pipeline runs."""

    name: str
    restart_seqno: Seqno | None
    applied_seqno: Seqno | None = None
    running: bool = False


def killer(marks: Iterable[RollbackMark], place: Lsn) -> RollbackMark | None:
    """Return the mark that abandoned the record at `place`: the first one that did; None for a living record."""
    for mark in marks:
        if mark.dead_start <= place < mark.dead_end:
            return mark
    return None


def still_there(marks: Iterable[RollbackMark], first_segment: int) -> tuple[RollbackMark, ...]:
    """Return the marks of which a log that begins with `first_segment` still holds abandoned records."""
    return tuple(mark for mark in marks if mark.dead_end >> 32 > first_segment)


def contradiction(marks: Sequence[RollbackMark]) -> tuple[RollbackMark, str] | None:
    """Return the first mark, of those of a log in order, that cannot be true beside the earlier ones, and why."""
    for before, mark in pairwise(marks):
        if mark.number != before.number + 1:
            return mark, f"rollback mark {mark.number} after rollback mark {before.number}"
        if mark.epoch < before.epoch:
            return mark, f"a rollback mark of epoch {mark.epoch} after one of epoch {before.epoch}"
    for at, mark in enumerate(marks):
        for before in marks[:at]:
            if before.dead_start < mark.dead_start < before.dead_end:
                return mark, f"a rollback mark whose dead interval crosses the one of the mark at {_at(before)}"
        dead = killer(marks[:at], mark.matchpoint_lsn)
        if dead is not None:
            return mark, f"a rollback mark whose matchpoint the mark at {_at(dead)} abandoned"
    return None


def _at(mark: RollbackMark) -> str:
    return lsn_text(mark.dead_end)


def marks_behind(marks: Iterable[RollbackMark], end: Lsn) -> list[RollbackMark]:
    """Return the marks that whoever knows a log only up to `end` has not heard of."""
    return [mark for mark in marks if mark.dead_end >= end]


def overtaken(marks: Iterable[RollbackMark], seqno: Seqno, seen: Lsn) -> RollbackMark | None:
    """Return the mark that makes untrue what a reader returned up to `seqno`, having heard of marks up to `seen`.

    Shape: of several the one that went back furthest. None: what it returned stands; it goes on after that.
    """
    found = [mark for mark in marks if mark.dead_end > seen and mark.matchpoint_seqno < seqno]
    return min(found, key=lambda mark: mark.matchpoint_seqno, default=None)


def refusal(
    matchpoint: Gtid,
    *,
    first: Seqno,
    visible: Seqno,
    durable: Seqno,
    last: Seqno,
    unfinished: str | None,
    found: Epoch | None,
    holds: Iterable[Needed],
) -> str | None:
    """Return why a log that holds `first` to `visible` must not be rolled back to `matchpoint`; None if it may be.

    `last` is the last transaction that has a place, `unfinished` says what is under way, `found` is the epoch of the
    transaction with the matchpoint's seqno. What is not `durable` no pipeline has applied.
    """
    seqno = matchpoint.seqno
    if unfinished is not None:
        return unfinished
    if last > visible:
        return f"seqno {visible + 1} to {last} are appended and not committed"
    if visible < first:
        return "the log holds no transaction"
    if seqno < first:
        return f"the log begins at seqno {first}"
    if seqno > visible:
        return f"the log ends at seqno {visible}"
    if found != matchpoint.epoch:
        return f"seqno {seqno} has epoch {found} here"
    for name, needed, applied, running in holds:
        if name.startswith(FOLLOWERS):
            continue
        if running:
            return f"the pipeline {name!r} runs; stop it first"
        if needed is None:
            return f"the hold {name!r} is damaged, so it is unknown how far it has come"
        if applied is not None and min(applied, durable) > seqno:
            if applied <= durable:
                return f"the pipeline {name!r} has applied up to seqno {applied}"
            return (
                f"the pipeline {name!r} ended without saying how far it was, and may have applied up to seqno "
                f"{durable}; run it once more and stop it"
            )
        if needed > seqno:
            return f"the hold {name!r} is at seqno {needed}, which would be abandoned"
    return None
