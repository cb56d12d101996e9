"""An exhaustive model of the meeting rules over the code that the tasks run: `channels.Walk`.

design/pipeline.md: "A small exhaustive model of these rules (all logs of 5 transactions on 2 channels and of 4 on 3,
growing visibility, two replaced tasks that go on as stale ones) found no wrong order, loss, double or deadlock, and
found one at once when channel 0 did not wait, when the others did not, without the guarded update, and with the
position committed apart from the rows."

What is modelled. A log is the owners of its transactions: a channel, or serial. A task is what it believes its
position to be and what it last read of the others; walking by header touches nothing that another task sees, so
only three things are steps: reading the meeting, committing (everything of its own up to some seqno, at any moment:
group bounds and clocks are chance here), and being replaced (its successor claims the channel and reads the position;
the replaced one goes on). The log grows by one transaction at any moment.

What is checked, in every state that can be reached: a transaction is applied once; after all earlier ones, and
before all later ones, that share its channel or that are serial on either side; a position never claims what is not
in the target; and as long as something visible is not applied, some task has a step that it must take (idle
publishing by the clock does not count: no wait hangs on a timer).
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterator

import pytest

from fix_effort import few_of
from tranlog.ids import Seqno
from tranlog.pipeline.rules.channels import SERIAL, Await, Publish, Skip, Take, Verdict, Walk

# --- the rules under test, and what happens when one of them is missing ---


class Channel0DoesNotWait(Walk):
    def at(self, seqno: Seqno, owner: int, tstamp: int = 0) -> Verdict:
        if self.channel == 0 and owner == SERIAL:
            return Take()
        return super().at(seqno, owner, tstamp)


class OthersDoNotWait(Walk):
    def at(self, seqno: Seqno, owner: int, tstamp: int = 0) -> Verdict:
        if self.channel != 0 and owner == SERIAL:
            return Skip()
        return super().at(seqno, owner, tstamp)


class OthersDoNotPublish(Walk):
    """They wait at a serial transaction without having published what lies before it."""

    def at(self, seqno: Seqno, owner: int, tstamp: int = 0) -> Verdict:
        verdict = super().at(seqno, owner, tstamp)
        if self.channel != 0 and isinstance(verdict, Publish):
            return Await(channels=(0,), seqno=seqno)
        return verdict


class NoLookBack(Walk):
    """A task that starts inside a serial run takes the next transaction for the first of one."""

    def __init__(self, *, channel: int, channels: int, position: Seqno, run: bool) -> None:
        super().__init__(channel=channel, channels=channels, position=position, run=False)


class AlwaysInsideARun(Walk):
    """A task that starts takes the next serial transaction for one inside a run."""

    def __init__(self, *, channel: int, channels: int, position: Seqno, run: bool) -> None:
        super().__init__(channel=channel, channels=channels, position=position, run=True)


Log = tuple[int, ...]
"""The owner of each transaction."""
Known = tuple[int, ...]
"""The channels' positions as a task last read them, UNREAD where it never did."""
Task = tuple[int, Known, int]
"""Its position as it believes it, what it knows, and, half done, where its position is to go (else NOT_HALF)."""
Stale = tuple[int, int, int]
"""A replaced task: channel, position, half. It knows all that can be known, the boldest it could be."""
State = tuple[int, int, tuple[int, ...], tuple[Task, ...], tuple[Stale, ...], int]
"""Visible transactions, bits of the applied ones, positions in the target, tasks, replaced tasks, replacements."""
UNREAD = -2
NOT_HALF = -2


class Guard(enum.Enum):
    """What the first statement of a target transaction compares."""

    BOTH = "position and token"
    POSITION = "position"
    """A replaced task can still commit, as long as nothing else did: that must be harmless."""
    NOTHING = "nothing"


class Broken(Exception):
    """What a check found."""


class Model:
    """One log, explored from the fresh start to the end of every interleaving."""

    def __init__(
        self,
        log: Log,
        channels: int,
        *,
        walk: type[Walk] = Walk,
        guard: Guard = Guard.BOTH,
        apart: bool = False,
        replacements: int = 2,
        grow: bool = True,
    ) -> None:
        self.log = log
        self.times = [0] * len(log)
        self.channels = channels
        self.walk = walk
        self.guard = guard
        self.apart = apart
        self.replacements = replacements
        self.grow = grow
        self.states = 0
        self.serial = [seqno for seqno, owner in enumerate(log) if owner == SERIAL]
        self.own = [
            [owner == channel or (channel == 0 and owner == SERIAL) for owner in log] for channel in range(channels)
        ]
        # Bits of the transactions that must be in the target before, and that must not be there yet, when one goes in.
        self.before = [0] * len(log)
        self.after = [0] * len(log)
        for one, other in itertools.combinations(range(len(log)), 2):
            if log[one] == log[other] or SERIAL in (log[one], log[other]):
                self.before[other] |= 1 << one
                self.after[one] |= 1 << other
        # Bits of what a channel must have in the target when its position is so; -1, no position, is the last entry.
        self.claimed = [
            [sum(1 << seqno for seqno in range(upto) if own[seqno]) for upto in (*range(1, len(log) + 1), 0)]
            for own in self.own
        ]
        self.reach = functools.cache(self._reach)
        self.rounded = functools.cache(self._rounded)

    def _reach(self, channel: int, position: int, known: Known, visible: int) -> tuple[int, Verdict | None, bool]:
        """How far a task may walk without a step, the verdict that ends it (None: the end of the log), what it owes."""
        log, times = self.log, self.times
        walk = self._walk(channel, position, known)
        for seqno in range(position + 1, visible):
            owner = log[seqno]
            verdict = walk.at(Seqno(seqno), owner, times[seqno])
            if isinstance(verdict, Publish) and walk.published == walk.passed:
                raise Broken(f"channel {channel} is to publish {walk.passed} again at {seqno}")
            if not isinstance(verdict, Skip | Take):
                return walk.passed, verdict, walk.owes
            assert isinstance(verdict, Take) == self.own[channel][seqno], "a task takes what it owns"
            walk.move_on(Seqno(seqno), owner)
        return walk.passed, None, walk.owes

    def apply(self, channel: int, done: int, start: int, end: int) -> int:
        """Put a channel's transactions in [start, end] into the target, in order, checking each."""
        for seqno in range(start, end + 1):
            if not self.own[channel][seqno]:
                continue
            bit = 1 << seqno
            if done & bit:
                raise Broken(f"double: {seqno} by channel {channel}")
            if self.before[seqno] & ~done or self.after[seqno] & done:
                raise Broken(f"wrong order: {seqno} by channel {channel}, there already: {done:b}")
            done |= bit
        return done

    def start(self) -> State:
        nothing = (UNREAD,) * self.channels
        tasks = tuple((-1, nothing, NOT_HALF) for _ in range(self.channels))
        return (1 if self.grow and self.log else len(self.log), 0, (-1,) * self.channels, tasks, (), 0)

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

    def steps(self, state: State) -> list[State]:
        """Return the states that one step leads to. Raises Broken for a loss, or a wait that nobody ends."""
        visible, done, applied, live, stale, replaced = state
        found: list[State] = []
        must = False
        if visible < len(self.log):
            found.append((visible + 1, done, applied, live, stale, replaced))
        for channel, (position, known, half) in enumerate(live):

            def put(task: Task, done: int, applied: tuple[int, ...], channel: int = channel) -> State:
                tasks = live[:channel] + (task,) + live[channel + 1 :]
                return (visible, done, applied, tasks, stale, replaced)

            for upto, now, positions, half_now in self.commits(channel, position, known, half, done, applied, visible):
                if upto is None:  # a replaced task was quicker: end, and start again from the position
                    found.append(put((applied[channel], (UNREAD,) * self.channels, NOT_HALF), done, applied))
                    must = True
                else:
                    found.append(put((upto, self.rounded(channel, upto, known), half_now), now, positions))
            if replaced < self.replacements:
                successor = (applied[channel], (UNREAD,) * self.channels, NOT_HALF)
                tasks = live[:channel] + (successor,) + live[channel + 1 :]
                # With the token compared, the replaced task's next update hits no row: it is as good as gone.
                goes_on = self.guard is not Guard.BOTH
                replaced_ones = tuple(sorted((*stale, (channel, position, half)))) if goes_on else ()
                found.append((visible, done, applied, tasks, replaced_ones, replaced + 1))
            if half != NOT_HALF:
                must = True
                continue
            _, verdict, owes = self.reach(channel, position, known, visible)
            if isinstance(verdict, Await):
                read = tuple(applied[at] if at in verdict.channels else old for at, old in enumerate(known))
                fresh = self.rounded(channel, position, read)
                if fresh != known:
                    found.append(put((position, fresh, half), done, applied))
                    must = True
            # Committing is always allowed; the rules demand it for a Publish, and at the end of what is visible.
            elif isinstance(verdict, Publish) or owes:
                must = True
        for number, (channel, position, half) in enumerate(stale):
            rest = stale[:number] + stale[number + 1 :]
            for upto, now, positions, half_now in self.commits(
                channel, position, applied, half, done, applied, visible
            ):
                left = rest if upto is None else tuple(sorted((*rest, (channel, upto, half_now))))
                found.append((visible, now, positions, live, left, replaced))
        for channel, position in enumerate(applied):
            if self.claimed[channel][position] & ~done:
                raise Broken(f"loss: channel {channel} stands at {position}, and only {done:b} is applied")
        if not must and done != (1 << visible) - 1:
            raise Broken(f"deadlock: visible {visible}, applied {done:b}, positions {applied}, tasks {live}")
        return found

    def _walk(self, channel: int, position: int, known: Known) -> Walk:
        """A task's walk as it begins at a position."""
        run = position >= 0 and self.log[position] == SERIAL
        walk = self.walk(channel=channel, channels=self.channels, position=Seqno(position), run=run)
        walk.learn({other: Seqno(at) for other, at in enumerate(known) if other != channel and at >= -1})
        return walk

    def _rounded(self, channel: int, position: int, known: Known) -> Known:
        """Return what a task knows, rounded down to what some serial transaction ahead of it can ask for."""
        ahead = 0 if channel else 1
        asked = [seqno - ahead for seqno in self.serial if seqno > position]
        return tuple([max([one for one in asked if one <= at], default=UNREAD) for at in known])

    def commits(
        self,
        channel: int,
        position: int,
        known: Known,
        half: int,
        done: int,
        applied: tuple[int, ...],
        visible: int,
    ) -> Iterator[tuple[int | None, int, tuple[int, ...], int]]:
        """Yield (new position, applied, positions, half) of each commit that a task may do; None: it was refused."""
        if half != NOT_HALF:  # only where rows and position are two transactions
            yield half, done, applied[:channel] + (half,) + applied[channel + 1 :], NOT_HALF
            return
        end = self.reach(channel, position, known, visible)[0]
        for upto in range(position + 1, end + 1):
            # The guarded update: WHERE applied_seqno = :old
            if self.guard is not Guard.NOTHING and applied[channel] != position:
                yield None, done, applied, NOT_HALF
                return
            now = self.apply(channel, done, position + 1, upto)
            if self.apart:
                yield position, now, applied, upto
            else:
                yield upto, now, applied[:channel] + (upto,) + applied[channel + 1 :], NOT_HALF


def logs(length: int, channels: int) -> list[Log]:
    """Return all logs of a length. Channels but 0 are alike: each log stands for those that rename them."""
    found = []
    for log in itertools.product(range(SERIAL, channels), repeat=length):
        others = list(dict.fromkeys(owner for owner in log if owner > 0))
        if others == sorted(others) and others == list(range(1, len(others) + 1)):
            found.append(log)
    return found


def explore_all(length: int, channels: int, **options) -> int:
    states = 0
    for log in logs(length, channels):
        model = Model(log, channels, **options)
        try:
            model.explore()
        except Broken as exc:
            raise Broken(f"log {log} on {channels} channels: {exc}") from exc
        states += model.states
    return states


class Timed(Model):
    """A log with commit times, and a bound on how far channels may be apart in them: max_offline_interval."""

    INTERVAL = 10

    def __init__(self, log: Log, times: tuple[int, ...], channels: int, *, walk: type[Walk] = Walk) -> None:
        super().__init__(log, channels, walk=walk, replacements=1)
        self.times = list(times)
        self.forward = times == tuple(sorted(times))
        self.now: tuple[int, ...] = ()

    def _walk(self, channel: int, position: int, known: Known) -> Walk:
        run = position >= 0 and self.log[position] == SERIAL
        walk = self.walk(
            channel=channel,
            channels=self.channels,
            position=Seqno(position),
            run=run,
            interval_ms=self.INTERVAL,
            tstamp=self.time_of(position),
        )
        others = {other: at for other, at in enumerate(known) if other != channel and at >= -1}
        walk.learn(
            {other: Seqno(at) for other, at in others.items()},
            {other: self.time_of(at) for other, at in others.items()},
        )
        return walk

    def time_of(self, position: int) -> int:
        return self.times[position] if position >= 0 else 0

    def _rounded(self, channel: int, position: int, known: Known) -> Known:
        return known  # an interval may ask for any position

    def steps(self, state: State) -> list[State]:
        self.now = state[2]
        return super().steps(state)

    def apply(self, channel: int, done: int, start: int, end: int) -> int:
        for seqno in range(start, end + 1):
            if self.forward and self.own[channel][seqno] and self.log[seqno] != SERIAL:
                for other, at in enumerate(self.now):
                    if other != channel and at < seqno - 1 and self.times[seqno] - self.time_of(at) > self.INTERVAL:
                        raise Broken(f"too far: {seqno} by channel {channel} while channel {other} stands at {at}")
        return super().apply(channel, done, start, end)


class IntervalIsNotKept(Walk):
    def _slow(self, tstamp: int, interval: int) -> tuple[int, ...]:
        return ()


class IntervalCountsWhoIsAhead(Walk):
    """It waits for whoever is behind in time, though ahead in the log."""

    def _slow(self, tstamp: int, interval: int) -> tuple[int, ...]:
        return tuple([other for other in self._others if tstamp - self._times.get(other, 0) > interval])


class IdleChannelsKeepStill(Walk):
    """They publish when the clock says so, and not when others may wait for it."""

    def __init__(self, **given) -> None:
        super().__init__(**given)
        self.published_at = 1 << 60


def explore_times(length: int, channels: int, steps: tuple[int, ...], **options) -> int:
    """Explore all logs of a length with all commit times of these steps between each two."""
    states = 0
    for log in logs(length, channels):
        for found in itertools.product(steps, repeat=length - 1):
            times = tuple(itertools.accumulate(found, initial=100))
            model = Timed(log, times, channels, **options)
            try:
                model.explore()
            except Broken as exc:
                raise Broken(f"log {log} at {times} on {channels} channels: {exc}") from exc
            states += model.states
    return states


# --- the rules hold ---


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "channels", "steps"), few_of([(3, 2, (0, 8, 30)), (3, 2, (8, -50, 30)), (3, 3, (-50, 30))])
)
def test_an_interval_is_kept_and_stops_nobody(length: int, channels: int, steps: tuple[int, ...]) -> None:
    """conformance A4, maxOfflineInterval, whatever the clock does: no standstill, no wrong order, and never too far."""
    assert explore_times(length, channels, steps) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("length", "channels", "steps"),
    [(4, 2, (8, 30, -50)), (3, 3, (6, 30)), (4, 3, (8, 30)), (4, 3, (-50, 30)), (5, 2, (6, 30))],
)
def test_an_interval_is_kept_on_longer_logs(length: int, channels: int, steps: tuple[int, ...]) -> None:
    assert explore_times(length, channels, steps) > 0


@pytest.mark.parametrize(
    ("walk", "found", "steps"),
    [
        (IntervalIsNotKept, "too far", (30,)),
        (IntervalCountsWhoIsAhead, "deadlock", (-50, 30)),
        (IdleChannelsKeepStill, "deadlock", (0, 30)),
    ],
)
def test_without_a_rule_of_the_interval_the_model_finds_it(
    walk: type[Walk], found: str, steps: tuple[int, ...]
) -> None:
    with pytest.raises(Broken, match=found):
        explore_times(4, 2, steps, walk=walk)


@pytest.mark.parametrize(("length", "channels"), few_of([(1, 2), (2, 2), (3, 2), (4, 2), (3, 3), (5, 2), (4, 3)], 5))
def test_the_rules_hold(length: int, channels: int) -> None:
    """Two replacements; the replaced tasks' token is an old one, so that their updates hit no row."""
    assert explore_all(length, channels, replacements=2) > 0


@pytest.mark.long
@pytest.mark.parametrize(("length", "channels", "replacements"), few_of([(3, 2, 2), (5, 2, 1), (3, 3, 1)]))
def test_the_position_alone_keeps_exactly_once(length: int, channels: int, replacements: int) -> None:
    """ "The comparison with the old position alone keeps exactly-once": replaced tasks go on."""
    assert explore_all(length, channels, replacements=replacements, guard=Guard.POSITION) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("length", "channels", "replacements", "guard"),
    [(5, 2, 2, Guard.POSITION), (4, 3, 1, Guard.POSITION), (6, 2, 2, Guard.BOTH), (5, 3, 2, Guard.BOTH)],
)
def test_the_rules_hold_on_longer_logs(length: int, channels: int, replacements: int, guard: Guard) -> None:
    assert explore_all(length, channels, replacements=replacements, guard=guard) > 0


def test_every_log_is_among_them() -> None:
    """All owners in all orders; of logs that differ only in the names of channels 1 and up, one."""
    assert len(logs(5, 2)) == 3**5
    assert set(logs(2, 2)) == set(itertools.product((SERIAL, 0, 1), repeat=2))
    assert (2, 1) not in logs(2, 3) and (1, 2) in logs(2, 3)


def test_more_is_known_than_less_is_allowed() -> None:
    """The model lets a replaced task know everything: that is the boldest only if knowing more never forbids."""
    for log in logs(3, 3):
        model = Model(log, 3)
        for channel, position in itertools.product(range(3), range(-1, 3)):
            reach = {
                known: model.reach(channel, position, known, 3)[0]
                for known in itertools.product(range(UNREAD, 3), repeat=3)
            }
            for known, end in reach.items():
                for other in range(3):
                    more = known[:other] + (known[other] + 1,) + known[other + 1 :]
                    assert reach.get(more, 3) >= end, (log, channel, position, known)


# --- and each of them is needed: the model finds what goes wrong without it ---


@pytest.mark.parametrize(
    ("walk", "found"),
    [
        (Channel0DoesNotWait, "wrong order"),
        (OthersDoNotWait, "wrong order"),
        (AlwaysInsideARun, "wrong order"),
        (OthersDoNotPublish, "deadlock"),
        (NoLookBack, "deadlock"),
    ],
)
def test_without_a_rule_the_model_finds_what_breaks(walk: type[Walk], found: str) -> None:
    with pytest.raises(Broken, match=found):
        explore_all(4, 2, walk=walk, replacements=1)


def test_without_the_guarded_update_a_replaced_task_applies_again() -> None:
    with pytest.raises(Broken, match=r"double|wrong order|loss"):
        explore_all(2, 2, guard=Guard.NOTHING, replacements=1)


def test_a_position_apart_from_its_rows_applies_again() -> None:
    with pytest.raises(Broken, match="double"):
        explore_all(2, 2, apart=True, replacements=1)
