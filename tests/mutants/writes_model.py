"""A model of the channels' meeting by write sets, over the code that they decide by: `pipeline/rules/by_writes`.

A log is what each transaction does to a few keys: a letter of `USES` for each, or `STEP` (of a load: serial), or
`UNSEEN` (a header without a write set: serial, and a plan point). Seqnos begin with 1, the channels at 0. Steps: the
log grows; the target's tables change; a task reads the others' positions, or commits what it has taken up to some
seqno (group bounds and clocks are chance); a task is replaced, and its successor reads position and plan, while the
replaced one goes on where tokens are not compared.

Looked at in every state that can be reached: a transaction is applied once; in the log's order with each that it
conflicts with, which is said here once more, from the keys alone; where all positions have passed it, it is in the
target; nobody passes what waits for something in his own group; and as long as something visible is not applied, a
task has a step that it must take.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from tranlog.ids import Seqno
from tranlog.pipeline.rules.by_writes import (
    Assignment,
    PlannedTable,
    WritesBounds,
    WritesPlan,
    WritesWalk,
    in_force,
    resume,
)
from tranlog.pipeline.rules.channels import SERIAL, Await, Publish, Skip, Take, Verdict
from tranlog.write_item import Touches
from tranlog.write_set import Operations, Use, WriteKind, WriteSet, WrittenTable

USES = "-KUR"
"""What a transaction does to a key: nothing, or a use of it."""
STEP = "step"
UNSEEN = "unseen"
UNREAD = -2

Log = tuple[str, ...]
Memory = tuple[int, int]
"""The number of the plan that a task goes by, and from which position on it has walked by it."""
Known = tuple[int, ...]
"""The channels' positions as a task last read them, UNREAD where it never did."""
Task = tuple[int, Memory, Known]
Stale = tuple[int, int, Memory]
"""A replaced task: channel, position, memory. It knows all that can be known."""
State = tuple[int, int, int, tuple[int, ...], tuple[int, ...], tuple[Task, ...], tuple[Stale, ...], int]
"""Visible transactions, which tables the target has, bits of the applied transactions, positions, stored plans, tasks,
replaced tasks, how often one was replaced."""
Reach = tuple[dict[int, Memory], tuple[int, ...], Verdict | None, bool]
"""By each seqno passed what the task goes by then; what it takes; what ends it, None: the log does; whether it owes."""


class Broken(Exception):
    """What a check found."""


class WrongOrder(Broken):
    """A transaction is applied too early or too late."""

    def __init__(self, seqno: int, said: str) -> None:
        super().__init__(said)
        self.seqno = seqno


class Believed(Exception):
    """A channel ends, since a transaction cannot be applied."""


def conflicting(one: str, other: str) -> bool:
    """Whether two transactions must keep their order at the target."""
    if {STEP, UNSEEN} & {one, other}:
        return True
    return any(("K" in pair and "-" not in pair) or pair == ("U", "U") for pair in zip(one, other, strict=True))


def write_set(done: str) -> WriteSet | None:
    """Return what the header of a transaction tells. Key i is the only one of table i."""
    if done == UNSEEN:
        return None
    if done == STEP:
        return WriteSet(changes=1, kind=WriteKind.STEP)
    uses = {"K": Use.KEY, "U": Use.ROW, "R": Use.REFERENCE}
    touches = tuple((uses[letter], key) for key, letter in enumerate(done) if letter != "-")
    tables = tuple(
        WrittenTable(
            table=("s", str(key)),
            keys=frozenset({1}),
            operations=Operations.INSERT if use is Use.KEY else Operations.UPDATE,
        )
        for use, key in touches
    )
    return WriteSet(changes=len(touches), tables=tables, touches=by_use(*touches))


def by_use(*touches: tuple[Use, int]) -> Touches:
    """Return uses of hashes as a write set has them."""
    keys, rows, references = (tuple(value for one, value in touches if one is use) for use in Use)
    return keys, rows, references


class Model:
    """One log, explored from the start to the end of every interleaving."""

    def __init__(
        self,
        log: Log,
        channels: int,
        *,
        every: int = 100,
        planned: bool = True,
        changing: bool = False,
        tokens: bool = True,
        replacements: int = 1,
        judged: int = 1_000,
        touched: int = 8,
    ) -> None:
        """`every`: seqnos of plan points; `planned`: one was at 0; `changing`: the target's tables change once.

        `judged`: transactions after which channels that wait for each other end a stretch. `touched`: how often a
        value is that the next plan knows.
        """
        self.log = log
        self.channels = channels
        self.changing = changing
        self.tokens = tokens
        self.replacements = replacements
        self.by_clock = False
        """Whether a wait may end by a publication that only the clock asks for."""
        self.states = 0
        self.writes = [None, *map(write_set, log)]
        keys = max([len(done) for done in log if done not in (STEP, UNSEEN)], default=1)
        plain = tuple(PlannedTable(table=("s", str(key)), keys=(1,)) for key in range(keys))
        bounds = WritesBounds(every=every, lead=1, serial_in=2, judged=judged, touched=touched)
        first = WritesPlan(from_seqno=Seqno(0), channels=channels, tables=plain, bounds=bounds)
        self.tables = (first, replace(first, tables=(replace(plain[0], why="a trigger"), *plain[1:])))
        self.plans: list[WritesPlan | None] = [None, first]
        self.first = (1,) if planned else ()
        real = [seqno for seqno, done in enumerate(log, 1) if set(done) != {"-"}]
        self.everything = sum(1 << seqno for seqno in real)
        self.conflicts = {
            pair for pair in itertools.combinations(real, 2) if conflicting(*[log[seqno - 1] for seqno in pair])
        }
        self.before, self.after = [0] * (len(log) + 1), [0] * (len(log) + 1)
        for one, other in self.conflicts:
            self.before[other] |= 1 << one
            self.after[one] |= 1 << other
        self.reach = functools.cache(self._reach)
        self.remembered = functools.cache(self._remembered)
        self.is_point = functools.cache(self._is_point)

    # --- what a task decides ---

    def _remembered(self, position: int, stored: tuple[int, ...], today: int) -> Memory:
        """Return what a task goes by that starts at a position; `today`: which tables the target has."""
        plan = self.stored_plan(position, stored)
        return self.number(plan), position

    def stored_plan(self, position: int, stored: tuple[int, ...]) -> WritesPlan | None:
        """Return the stored plan for what comes after a position."""
        return in_force([plan for number in stored if (plan := self.plans[number]) is not None], Seqno(position))

    def number(self, plan: WritesPlan | None) -> int:
        """Return a plan's number, which stands for it in a state."""
        if plan not in self.plans:
            self.plans.append(plan)
        return self.plans.index(plan)

    def stand(self, position: int, memory: Memory) -> tuple[Assignment, bool]:
        """Return a task's assignment after a position, and whether the transaction there is serial."""
        number, since = memory
        assignment, run = resume(self.plans[number], Seqno(since), self.writes.__getitem__)
        for seqno in range(since + 1, position + 1):
            run = assignment.assign(Seqno(seqno), self.writes[seqno]).owner == SERIAL
        return assignment, run

    def _reach(
        self, channel: int, position: int, memory: Memory, known: Known, visible: int, stored: tuple[int, ...]
    ) -> Reach:
        """How far a task may walk without a step."""
        assignment, run = self.stand(position, memory)
        walk = WritesWalk(channel=channel, channels=self.channels, position=Seqno(position), run=run)
        walk.learn({other: Seqno(at) for other, at in enumerate(known) if other != channel and at != UNREAD})
        passed: dict[int, Memory] = {}
        taken: list[int] = []
        for number in range(position + 1, visible + 1):
            seqno = Seqno(number)
            assigned = assignment.assign(seqno, self.writes[seqno])
            verdict = walk.step(seqno, assigned)
            if isinstance(verdict, Publish) and walk.published == walk.passed:
                raise Broken(f"channel {channel} is to publish {walk.passed} again at {seqno}")
            if isinstance(verdict, Take):
                taken.append(seqno)
            elif not isinstance(verdict, Skip):
                return passed, tuple(taken), verdict, walk.owes
            elif self.tokens and not self.by_clock and any((one, seqno) in self.conflicts for one in taken):
                raise Broken(f"held back: channel {channel} passes {seqno}, and has {taken} in its group")
            ending = walk.pass_by(seqno, assigned)
            if ending is None and assigned.point:
                plan = self.stored_plan(seqno, stored)
                if plan is None or plan.from_seqno != seqno:
                    raise Broken(f"no plan: channel {channel} has passed the plan point {seqno}")
                memory = self.number(plan), seqno
                assignment = Assignment(plan)
            passed[seqno] = memory
            if ending is not None:
                return passed, tuple(taken), ending, walk.owes
        return passed, tuple(taken), None, walk.owes

    # --- what becomes of it ---

    def start(self) -> State:
        unread = (UNREAD,) * self.channels
        memory = self.remembered(0, self.first, 0)
        return (1, 0, 0, (0,) * self.channels, self.first, ((0, memory, unread),) * self.channels, (), 0)

    def explore(self) -> None:
        """Visit every state; raises Broken with the first thing that is wrong."""
        first = self.start()
        seen = {first}
        todo = [first]
        while todo:
            for state in self.steps(todo.pop()):
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        self.states = len(seen)

    def apply(self, channel: int, done: int, taken: tuple[int, ...], upto: int) -> int:
        """Put what a channel has taken, up to a seqno, into the target, in order, checking each."""
        for seqno in taken:
            if seqno <= upto:
                if done >> seqno & 1:
                    raise Broken(f"double: {seqno} by channel {channel}")
                if self.before[seqno] & ~done or self.after[seqno] & done:
                    raise WrongOrder(seqno, f"wrong order: {seqno} by channel {channel}, there already: {done:b}")
                done |= 1 << seqno
        return done

    def commits(
        self, channel: int, position: int, memory: Memory, known: Known, state: State
    ) -> Iterator[tuple[int, Memory, int, tuple[int, ...], tuple[int, ...]] | None]:
        """Yield of each commit that a task may do: position, memory, applied ones, positions, plans.

        None: the guarded update refused it.
        """
        visible, today, done, applied, stored, *_ = state
        passed, taken, verdict, _ = self.reach(channel, position, memory, known, visible, stored)
        for upto, after in passed.items():
            if applied[channel] != position:  # WHERE applied_seqno = :old
                yield None
                return
            plans = stored
            if channel == 0 and isinstance(verdict, Publish) and verdict.seqno == upto and self.is_point(upto, memory):
                plan = self.stand(upto, memory)[0].next_plan(Seqno(upto), self.tables[today])
                plans = (*stored, self.number(plan))
                after = plans[-1], upto
            now = self.apply(channel, done, taken, upto)
            yield upto, after, now, (*applied[:channel], upto, *applied[channel + 1 :]), plans

    def asked(
        self, channel: int, position: int, memory: Memory, known: Known, state: State
    ) -> tuple[Verdict | None, bool]:
        """Return what a task has to do where it can walk no further, and whether it owes."""
        return self.reach(channel, position, memory, known, state[0], state[4])[2:]

    def _is_point(self, seqno: int, memory: Memory) -> bool:
        """Whether a transaction is a plan point for whoever goes by this."""
        return self.stand(seqno - 1, memory)[0].assign(Seqno(seqno), self.writes[seqno]).point

    def steps(self, state: State) -> list[State]:
        """Return the states that one step leads to. Raises Broken for a loss, or a wait that nobody ends."""
        visible, today, done, applied, stored, live, stale, replaced = state
        found: list[State] = []
        must = False
        if visible < len(self.log):
            found.append((visible + 1, today, done, applied, stored, live, stale, replaced))
        if self.changing and not today:
            found.append((visible, 1, done, applied, stored, live, stale, replaced))
        unread = (UNREAD,) * self.channels
        for channel, (position, memory, known) in enumerate(live):
            others_before, others_after = live[:channel], live[channel + 1 :]
            again = (applied[channel], self.remembered(applied[channel], stored, today), unread)
            for commit in self.commits(channel, position, memory, known, state):
                must = must or self.by_clock
                if commit is None:  # a replaced task was quicker: start again from the position
                    found.append(
                        (visible, today, done, applied, stored, (*others_before, again, *others_after), stale, replaced)
                    )
                    must = True
                else:
                    upto, after, now, positions, plans = commit
                    tasks = (*others_before, (upto, after, known), *others_after)
                    found.append((visible, today, now, positions, plans, tasks, stale, replaced))
            if replaced < self.replacements:
                tasks = (*others_before, again, *others_after)
                gone_on = () if self.tokens else tuple(sorted((*stale, (channel, position, memory))))
                found.append((visible, today, done, applied, stored, tasks, gone_on, replaced + 1))
            verdict, owes = self.asked(channel, position, memory, known, state)
            if isinstance(verdict, Await):
                read = tuple(applied[at] if at in verdict.channels else old for at, old in enumerate(known))
                if read != known:
                    tasks = (*others_before, (position, memory, read), *others_after)
                    found.append((visible, today, done, applied, stored, tasks, stale, replaced))
                    must = True
            elif isinstance(verdict, Publish) or owes:
                must = True
        for place, (channel, position, memory) in enumerate(stale):
            rest = stale[:place] + stale[place + 1 :]
            for commit in self.commits(channel, position, memory, applied, state):
                if commit is None:
                    found.append((visible, today, done, applied, stored, live, rest, replaced))
                else:
                    upto, after, now, positions, plans = commit
                    left = tuple(sorted((*rest, (channel, upto, after))))
                    found.append((visible, today, now, positions, plans, live, left, replaced))
        there = self.everything & ((2 << visible) - 1)
        if self.everything & ((2 << min(applied)) - 1) & ~done:
            raise Broken(f"loss: positions {applied}, and only {done:b} is applied")
        if not must and there & ~done:
            raise Broken(f"deadlock: visible {visible}, applied {done:b}, positions {applied}, tasks {live}")
        return found


class Lying(Model):
    """A log whose headers do not tell all: the target refuses what comes in the wrong order.

    Then either all is right in the end, or a channel ends because something later is there already.
    """

    def __init__(self, log: Log, told: Log, channels: int, *, every: int = 100) -> None:
        super().__init__(log, channels, every=every)
        self.by_clock = True
        self.believed = 0
        self.missed = 0
        for one, other in self.conflicts:  # a row that goes before a reference to it comes is not missed by then
            if not conflicting(log[one - 1].replace("R", "-"), log[other - 1]):
                self.before[other] &= ~(1 << one)
        for seqno, (true, lie) in enumerate(zip(self.writes[1:], map(write_set, told), strict=True), 1):
            if true is not None and lie is not None:
                self.writes[seqno] = replace(true, touches=lie.touches)

    def commits(
        self, channel: int, position: int, memory: Memory, known: Known, state: State
    ) -> Iterator[tuple[int, Memory, int, tuple[int, ...], tuple[int, ...]] | None]:
        with contextlib.suppress(WrongOrder):  # what stands before it is committed
            yield from super().commits(channel, position, memory, known, state)

    def asked(
        self, channel: int, position: int, memory: Memory, known: Known, state: State
    ) -> tuple[Verdict | None, bool]:
        visible, _, done, _, stored, *_ = state
        _, taken, verdict, owes = self.reach(channel, position, memory, known, visible, stored)
        if not taken:
            return verdict, owes
        first = Seqno(taken[0])
        try:
            self.apply(channel, done, taken[:1], first)
        except WrongOrder:
            assignment, run = self.stand(first - 1, memory)
            walk = WritesWalk(channel=channel, channels=self.channels, position=Seqno(position), run=run)
            walk.learn({other: Seqno(at) for other, at in enumerate(known) if other != channel and at != UNREAD})
            wait = walk.doubt(first, assignment.assign(first, self.writes[first]))
            if wait is None:
                if not self.after[first] & done:
                    raise Broken(f"in vain: channel {channel} ends at {first}, and only {done:b} is applied") from None
                raise Believed from None
            self.missed += not self.after[first] & done
            return wait, owes
        return verdict, owes

    def steps(self, state: State) -> list[State]:
        try:
            return super().steps(state)
        except Believed:
            self.believed += 1
            return []


def renamed(log: Log, order: tuple[int, ...]) -> Log:
    return tuple([done if done in (STEP, UNSEEN) else "".join([done[key] for key in order]) for done in log])


def transactions(keys: int, more: tuple[str, ...] = (STEP, UNSEEN)) -> list[str]:
    """Return all that a transaction may do to so many keys, and the serial ones."""
    return [*map("".join, itertools.product(USES, repeat=keys)), *more]


def logs(length: int, keys: int, more: tuple[str, ...] = (STEP,)) -> Iterator[Log]:
    """Yield all logs of a length; of those that differ only in the names of keys, one."""
    orders = list(itertools.permutations(range(keys)))
    for log in itertools.product(transactions(keys, more), repeat=length):
        if all(log <= renamed(log, order) for order in orders):
            yield log


def draw(chance: random.Random, length: int, keys: int) -> Log:
    """Return a log that chance draws; what touches much conflicts with everything, so most of it touches one key."""
    log = []
    letters = chance.choice(("KUR", "KRR", "KUU"))
    for _ in range(length):
        if chance.random() < 0.1:
            log.append(chance.choice((STEP, UNSEEN)))
        elif chance.random() < 0.7:
            log.append("".join(chance.sample([chance.choice(letters), *"-" * (keys - 1)], keys)))
        else:
            log.append("".join(chance.choices("-" + letters, k=keys)))
    return tuple(log)


def drawn(seed: int, *, lengths: tuple[int, ...] = (4, 5), keys: int = 3) -> Model:
    """Return the model of the log and the conditions that a seed draws."""
    chance = random.Random(seed)
    return Model(
        draw(chance, chance.choice(lengths), keys),
        chance.choice((2, 2, 3)),
        every=chance.choice((2, 3, 100)),
        planned=chance.random() < 0.8,
        changing=chance.random() < 0.5,
        tokens=chance.random() < 0.7,
        judged=chance.choice((1, 2, 1_000)),
        touched=1,
    )


def drawn_lie(seed: int, *, length: int = 3, keys: int = 2) -> Lying:
    """Return the model of a log that a seed draws, one of whose headers leaves out a key."""
    chance = random.Random(seed)
    log = draw(chance, length, keys)
    used = [(at, key) for at, done in enumerate(log) if done not in (STEP, UNSEEN) for key in range(keys)]
    used = [(at, key) for at, key in used if log[at][key] != "-"]
    shared = [(at, key) for at, key in used if any(other != at and its == key for other, its in used)]
    at, key = chance.choice(shared or used or [(0, 0)])
    lie = log[at] if log[at] in (STEP, UNSEEN) else log[at][:key] + "-" + log[at][key + 1 :]
    return Lying(log, (*log[:at], lie, *log[at + 1 :]), chance.choice((2, 3)), every=chance.choice((2, 100)))
