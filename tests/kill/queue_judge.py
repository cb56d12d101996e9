"""The judge of `make queue-kill`: what a message store was asked for and has confirmed, against what is found in it.

It takes the lines of the pipe one by one. What a process asked for and was not told counts as done or not done, as the
next process finds it, and as a whole. What it was told is done. Two messages have an order where the one was on its
queue before the other was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, int]
"""A queue and the number of a message."""
NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Place:
    """A message on a queue. `begin`, `end`: the lines between which it came there.

    `held`: handed out and not answered. `returned`: it came back since the process was started. `taker`: what was asked
    for that takes it off.
    """

    begin: int
    end: int = NEVER
    held: bool = False
    returned: bool = False
    taker: Work | None = None


@dataclass(slots=True, eq=False)
class Work:
    """What was asked for at once. `done`: it was confirmed. `happened` is known once somebody has looked."""

    puts: list[Key]
    takes: list[Key]
    done: bool = False
    happened: bool | None = None


@dataclass(slots=True, eq=False)
class Branch(Work):
    """Prepared work; then `done` speaks of Prepare, `outcome` of what was asked for, `decided` of its confirmation.

    `places`: what it takes, to be put back.
    """

    outcome: bool | None = None
    decided: bool = False
    places: dict[Key, Place] = field(default_factory=dict)


@dataclass(slots=True)
class QueueVerdict:
    """What became of the messages. The last five count what is wrong.

    `published`, `confirmed`: messages. `taken`: places on queues that a message was confirmed to have left.

    `lost`: confirmed, and gone from a queue that nobody took it off. `doubled`: on a queue twice, or again although
    what took it off was confirmed. `split`: work that was done in part. `in_doubt_wrong`: branches that are in doubt
    and should not be, that should be and are not, or that were decided otherwise than asked.
    """

    published: int = 0
    confirmed: int = 0
    taken: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    split: int = 0
    in_doubt_wrong: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.reordered or self.split or self.in_doubt_wrong)


class QueueJudge:
    """Takes what a process tells and what the next one finds; `verdict` is what it says so far."""

    def __init__(self) -> None:
        self.verdict = QueueVerdict()
        self.once: dict[str, tuple[int, Work]] = {}
        """By producer: its last number, and what it asked for then."""
        self.notes: list[str] = []
        """What is wrong, in words."""
        self._line = 0
        self._places: dict[Key, Place] = {}
        self._works: dict[int, Work] = {}
        self._branches: dict[str, Branch] = {}
        self._found: dict[str, list[int]] = {}  # of a look that is not over
        self._before: dict[str, list[int]] = {}  # the last one
        self._taking: dict[tuple[str, str], int] = {}  # by thread and queue: the latest begin of what it took

    @property
    def empty(self) -> bool:
        """Whether nothing was there at the last look."""
        return not self._before and not self._branches

    def take(self, line: Sequence[Any]) -> None:
        """Take one line of the pipe."""
        self._line += 1
        match line:
            case ["asks", int(number), puts, takes]:
                self._works[number] = self._ask(Work(_keys(puts), _keys(takes)))
            case ["once", int(number), str(producer), int(at), puts]:
                self._works[number] = self._ask_once(producer, at, _keys(puts))
            case ["placed", int(number)]:
                self._end(self._works[number].puts)
            case ["done", int(number)]:
                self._done(self._works[number])
            case ["took", str(thread), str(queue), int(message)]:
                self._took(thread, (queue, message))
            case ["returns", takes]:
                for key in _keys(takes):
                    self._return(self._place(key))
            case ["prepares", str(xid), puts, takes]:
                branch = self._branches[xid] = Branch(_keys(puts), _keys(takes))
                branch.places = {key: self._place(key) for key in branch.takes}
                self.verdict.published += len({number for _, number in branch.puts})
                for place in branch.places.values():
                    place.taker = branch
            case ["prepared", str(xid)]:
                self._branches[xid].done = True
            case ["decides", str(xid), bool(commits)]:
                self._decide(self._branches[xid], commits)
            case ["decided", str(xid)]:
                self._decided(self._branches[xid])
            case ["looks"]:
                self._found = {}
            case ["found", str(queue), numbers]:
                self._found.setdefault(queue, []).extend(numbers)
            case ["looked", doubt]:
                self._settle(self._found, set(doubt))
            case _:
                raise ValueError(f"no line of a judge's: {line}")

    def _wrong(self, figure: str, what: object) -> None:
        setattr(self.verdict, figure, getattr(self.verdict, figure) + 1)
        self.notes.append(f"{figure}: {what}")

    # --- what is asked for and confirmed -------------------------------------------------------------

    def _ask(self, work: Work) -> Work:
        self.verdict.published += len({number for _, number in work.puts})
        self._put(work.puts)
        for key in work.takes:
            self._place(key).taker = work
        return work

    def _place(self, key: Key) -> Place:
        """Return a place that was handed out; where it is gone that was counted."""
        return self._places.setdefault(key, Place(0))

    def _ask_once(self, producer: str, at: int, puts: list[Key]) -> Work:
        number, before = self.once.get(producer, (0, None))
        if before is not None and number == at and (before.done or before.happened):
            return Work([], [])  # it is there, and stays as it is
        work = self._ask(Work(puts, []))
        self.once[producer] = at, work
        return work

    def _put(self, puts: Iterable[Key]) -> None:
        for key in puts:
            self._places[key] = Place(self._line)

    def _end(self, puts: Iterable[Key]) -> None:
        for key in puts:
            if key in self._places:  # else it was taken since
                self._places[key].end = min(self._places[key].end, self._line)

    def _done(self, work: Work) -> None:
        work.done = True
        self._end(work.puts)
        self.verdict.confirmed += len({number for _, number in work.puts})
        self._gone(work.takes)

    def _gone(self, takes: Sequence[Key]) -> None:
        self.verdict.taken += len(takes)
        for key in takes:
            self._places.pop(key, None)

    def _return(self, place: Place) -> None:
        place.held, place.returned, place.taker = False, True, None

    def _decide(self, branch: Branch, commits: bool) -> None:
        branch.outcome = commits
        if commits:
            self._put(branch.puts)
            return
        for key, place in branch.places.items():
            self._return(place)
            self._places[key] = place

    def _decided(self, branch: Branch) -> None:
        branch.decided = True
        if branch.outcome:
            self._end(branch.puts)
            self.verdict.confirmed += len({number for _, number in branch.puts})
            self._gone(branch.takes)

    def _took(self, thread: str, key: Key) -> None:
        place = self._places.get(key)
        if place is None or place.held or place.taker is not None:
            self._wrong("doubled", f"{thread} took {key}; {place or 'nobody asked for it'}")
            self._places[key] = Place(0, held=True, returned=True)
            return
        place.held = True
        place.end = min(place.end, self._line)  # only what is on its queue for good is handed out
        latest = self._taking.get((thread, key[0]), 0)
        if place.end < latest and not place.returned:
            self._wrong("reordered", f"{thread} took {key} after what came later; {place}")
        self._taking[thread, key[0]] = max(latest, place.begin)

    # --- what is found -------------------------------------------------------------------------------

    def _settle(self, found: dict[str, list[int]], doubt: set[str]) -> None:
        """Hold everything against what a process found when it had opened the store."""
        count = Counter((queue, number) for queue, numbers in found.items() for number in numbers)
        there = frozenset(count)
        for key, times in count.items():
            if times > 1 or key not in self._places:
                self._wrong("doubled", f"{key} is there {times} times; {self._places.get(key, 'nobody asked for it')}")
        unsure = {key for work in (*self._works.values(), *self._branches.values()) for key in work.puts}
        for xid in doubt & self._branches.keys():
            for place in self._branches[xid].places.values():
                place.taker = place.taker or self._branches[xid]  # its rollback was asked for, and came to nothing
        for key, place in self._places.items():
            if place.taker is None and key not in unsure and key not in there:
                self._wrong("lost", f"{key}, which nobody took; {place}")
        for work in self._works.values():
            self._weigh(work, there)
        for xid, branch in list(self._branches.items()):
            self._weigh_branch(branch, there, xid in doubt)
            if xid not in doubt:
                del self._branches[xid]
        for xid in doubt - self._branches.keys():
            self._wrong("in_doubt_wrong", f"{xid} was never prepared, or is over")
        for queue, numbers in found.items():
            self._hold_order(queue, numbers)
        self._begin(there)
        self._before = found

    def _weigh(self, work: Work, there: frozenset[Key]) -> None:
        """Judge work by its traces: all of them, or none."""
        put = [key in there for key in work.puts if self._belongs(key, None)]
        traces = put + [key not in there for key in work.takes]
        work.happened = work.done or any(traces) or len(put) < len(work.puts)
        if any(traces) and not all(traces):
            self._wrong("split", f"{work}: {traces}")
        for _ in range(put.count(False) if work.done else 0):
            self._wrong("lost", f"{work}: {put}")

    def _belongs(self, key: Key, taker: Work | None) -> bool:
        """Whether nobody has asked for a place to be taken; or only this one."""
        place = self._places.get(key)
        return place is not None and (place.taker is None or place.taker is taker)

    def _weigh_branch(self, branch: Branch, there: frozenset[Key], listed: bool) -> None:
        outcome = branch.outcome
        if listed:
            if branch.decided:
                self._wrong("in_doubt_wrong", f"{branch} was decided, and is in doubt")
            if any(key in there for key in (*branch.puts, *branch.takes)):
                self._wrong("split", f"{branch} is in doubt, and some of it is seen")
            branch.done, branch.outcome = True, None
            return
        if branch.done and outcome is None:
            self._wrong("in_doubt_wrong", f"{branch} is not in doubt any more, and nobody decided it")
        put = [key for key in branch.puts if not outcome or self._belongs(key, None)]
        taken = [key for key in branch.takes if outcome or self._belongs(key, branch)]
        traces = [key in there for key in put] + [key not in there for key in taken]
        if any(traces) and not all(traces):
            self._wrong("split", f"{branch}: {traces}")
        elif traces and any(traces) != bool(outcome):
            self._wrong("in_doubt_wrong", f"{branch}: {traces}")

    def _hold_order(self, queue: str, numbers: Sequence[int]) -> None:
        """Count what stands behind something that came later, and what changed places since the last look."""
        latest = 0
        for number in numbers:
            place = self._places.get((queue, number))
            if place is not None:
                if place.end < latest:
                    self._wrong("reordered", f"{queue!r}: {number} stands behind what came later; {place}")
                latest = max(latest, place.begin)
        now, before = frozenset(numbers), self._before.get(queue, ())
        known = frozenset(before)
        pairs = zip((one for one in before if one in now), (one for one in numbers if one in known), strict=False)
        for one, other in pairs:
            if one != other:
                self._wrong("reordered", f"{queue!r}: {other} stands where {one} was")

    def _begin(self, there: frozenset[Key]) -> None:
        """Go on with what is there, all of it on its queue."""
        places, self._places = self._places, {}
        for key in there:
            found = places.get(key) or Place(0)
            self._places[key] = Place(found.begin, min(found.end, self._line))
        self._works.clear()
        self._taking.clear()


def _keys(pairs: Iterable[Sequence[Any]]) -> list[Key]:
    return [(str(queue), int(number)) for queue, number in pairs]
