"""Is what programs were told of a group one order of commits and reads, that of its log? In one pass, without search.

Pure. A log gives each commit its place, its GTID, so nothing has to be searched for: what happened in time must agree
with those places. What returned before another began comes before it.

docs/replication.md, "Committing from Python", "Reading a node's log".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from tranlog.ids import Gtid
from tranlog.replication.rules.packets import NO_GTID


class Fate(Enum):
    """What the answer to a commit promises."""

    STANDS = "acknowledged by a majority: it is in every later log"
    MAY_GO = "acknowledged by fewer: it stands where was said, or is rolled back"
    UNKNOWN = "nobody knows: it stands once, or not at all"
    REFUSED = "nothing was written"


@dataclass(frozen=True)
class CommitOp:
    """A commit of `event`. Times are of one clock; `returned` is `inf` where no answer came."""

    event: str
    content: int
    fate: Fate
    began: float
    returned: float = inf
    gtid: Gtid | None = None


@dataclass(frozen=True)
class ReadOp:
    """A read of the latest, which showed everything up to `seen`."""

    began: float
    returned: float
    seen: Gtid


@dataclass(frozen=True)
class Entry:
    """A transaction of the log; `event` is empty for one of the group's own, which nobody committed."""

    gtid: Gtid
    event: str = ""
    content: int = 0


Op = CommitOp | ReadOp


def violations(ops: Sequence[Op], log: Sequence[Entry]) -> dict[str, list[str]]:
    """Return what is wrong, by kind; empty where all of it is one order.

    lost: it has to stand, and does not. doubled: it stands twice. written: it stands, and was refused or never sent.
    moved: it stands at another GTID than was said, or the log does not rise there. changed: with another content.
    disordered: it stands before what had returned before it began. stale: a read does not show what a majority had
    acknowledged, or a read had shown, before it began. unheld: a read showed what is not in the log.
    """
    found: dict[str, list[str]] = {}
    for kind, what in (*_places(ops, log), *_times(ops, log)):
        found.setdefault(kind, []).append(what)
    return found


def _places(ops: Sequence[Op], log: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with what stands where."""
    commits = {one.event: one for one in ops if isinstance(one, CommitOp)}
    counts = Counter([entry.event for entry in log if entry.event])
    yield from [("doubled", event) for event, count in counts.items() if count > 1]
    yield from [("lost", one.event) for one in commits.values() if one.fate is Fate.STANDS and not counts[one.event]]
    before = NO_GTID
    for entry in log:
        if entry.gtid <= before:
            yield "moved", f"{entry.gtid} after {before}"
        before = entry.gtid
        if not entry.event:
            continue
        one = commits.get(entry.event)
        if one is None or one.fate is Fate.REFUSED:
            yield "written", entry.event
        elif one.gtid not in (None, entry.gtid):
            yield "moved", f"{entry.event} is at {entry.gtid}, and {one.gtid} was said"
        elif one.content != entry.content:
            yield "changed", entry.event
    held = {entry.gtid for entry in log} | {NO_GTID}
    yield from [("unheld", str(one.seen)) for one in ops if isinstance(one, ReadOp) and one.seen not in held]


def _times(ops: Sequence[Op], log: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Yield what does not stand where its time was. Each operation is looked at when it begins."""
    places = {entry.event: entry.gtid for entry in log if entry.event}
    ends = sorted(ops, key=lambda one: one.returned)
    appended = shown = certain = NO_GTID  # the greatest that had returned: commits, reads, commits that stand for sure
    at = 0
    for one in sorted(ops, key=lambda one: one.began):
        while at < len(ends) and ends[at].returned < one.began:
            ended = ends[at]
            at += 1
            if isinstance(ended, ReadOp):
                shown = max(shown, ended.seen)
            elif ended.event in places:
                appended = max(appended, places[ended.event])
                if ended.fate is Fate.STANDS:
                    certain = max(certain, places[ended.event])
        if isinstance(one, ReadOp):
            if one.seen < max(certain, shown):
                yield "stale", f"a read shows up to {one.seen}, and {max(certain, shown)} was there before"
        elif one.event in places and places[one.event] <= max(appended, shown):
            yield "disordered", f"{one.event} is at {places[one.event]}, behind {max(appended, shown)} in time"


def one_order_exists(ops: Sequence[Op], log: Sequence[Entry]) -> bool:
    """Whether some order of the operations, played one after the other, gives their answers and this log.

    Tries all of them: for histories of a few operations, to hold `violations` against. Does not look at GTIDs but to
    compare them for equality, and trusts a log that rises.
    """
    asked = [one for one in ops if not (isinstance(one, CommitOp) and one.fate is Fate.REFUSED)]
    standing = {entry.event for entry in log}
    needed = [
        one for one in asked if isinstance(one, ReadOp) or one.fate is Fate.STANDS or one.event in standing
    ]  # what may be left out, and is not in the log, was left out
    return _playable(frozenset(range(len(needed))), needed, 0, log)


def _playable(left: frozenset[int], ops: Sequence[Op], at: int, log: Sequence[Entry]) -> bool:
    if not left:
        return all(not entry.event for entry in log[at:])
    for number in left:
        if not any(_before(ops[other], ops[number]) for other in left - {number}):
            if any(_playable(left - {number}, ops, after, log) for after in _play(ops[number], at, log)):
                return True
    return False


def _before(one: Op, other: Op) -> bool:
    """Whether one has to come first. What fewer than a majority have is not shown to readers, until more have it."""
    hidden = isinstance(one, CommitOp) and one.fate is not Fate.STANDS and isinstance(other, ReadOp)
    return one.returned < other.began and not hidden


def _play(one: Op, at: int, log: Sequence[Entry]) -> Iterable[int]:
    """Yield how much of the log there may be when an operation has taken place where `at` entries were before."""
    for after in range(at, len(log) + 1):
        if isinstance(one, ReadOp):
            if one.seen == (log[after - 1].gtid if after else NO_GTID):
                yield after
        elif after < len(log) and log[after].event == one.event:
            if one.gtid in (None, log[after].gtid) and one.content == log[after].content:
                yield after + 1
        if after < len(log) and log[after].event:
            return
