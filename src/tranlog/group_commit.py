"""Group commit: one thread's sync serves everybody who waits for it, and who waits longest leads the next one.

Owns who syncs, who waits, and in what order they are woken. What is written and synced, and what a place is, is the
log's that commits: places are numbers that rise. The hard idea: those whom one sync has served wake one another, each
the next, and no sync begins until the last of them is awake. Woken all at once, or beside a sync, they would wait
again, for the interpreter and for the log's lock, which takes three times the processor's time for a commit.

Source: docs/performance.md, "Many threads".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from threading import get_ident
from typing import Protocol

from tranlog.forking import freed

LOOK_AGAIN_S = 0.2
"""Whoever waits for another thread looks so often whether that one is still at it."""
FEW = 4
"""So many wake one another beside the next sync: they are awake before it gets in their way."""


class Waiter:
    """A thread that waits for a sync to cover `target`. Threads: its own, once, and whoever wakes it.

    `served`: a sync has, and that is published.
    """

    __slots__ = ("_next", "_woken", "served", "target")

    def __init__(self, target: int) -> None:
        self.target = target
        self.served = False
        self._next: Waiter | None = None
        self._woken = threading.Lock()  # held until it is to look again
        self._woken.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Return, once it is woken, True; False after so many seconds."""
        told = self._woken.acquire(timeout=timeout_s)
        if told:
            self.pass_on()
        return told

    def pass_on(self) -> None:
        """Wake the next one."""
        if self._next is not None:
            self._next._woken.release()


class Sync:
    """A sync: `run` does it, and everything up to `place` is durable then."""

    __slots__ = ("place", "run")

    def __init__(self, run: Callable[[], None], place: int) -> None:
        self.run = run
        self.place = place


Turn = Sync | Waiter | int
"""What a commit does next: lead a sync, wait for another one's, or return the place up to which all is durable."""


class Committing(Protocol):
    """What a group commit needs of its log. Its lock is held, in a step of the writer's."""

    @property
    def durable(self) -> int:
        """The place up to which a sync is known to have covered everything."""

    def reach(self, target: int) -> int:
        """Return what has to be durable for `target`: less where that is gone. Raises whatever has closed the log."""

    def may_sync(self, target: int) -> bool:
        """Whether a sync that begins now serves `target`; False after a wait for what is in its way."""

    def begin_sync(self) -> Sync:
        """Write for everybody who has finished so far; return the sync that makes it durable."""

    def synced(self, place: int) -> None:
        """Take everything up to `place` for durable, tell everybody, and wake those who wait."""

    def sync_failed(self, failure: OSError) -> Exception:
        """Return the error to raise for a sync that failed."""

    def look_again(self) -> None:
        """Nothing has changed for a while: see that nobody waits for what nobody is at any more."""


class GroupCommit:
    """The commits of one log. Its lock guards it, and is let go while a sync runs.

    `leader` is the thread that syncs, 0 for none. `len` is how many wait for it. A call from a signal's handler may
    come back over its own thread's sync: it does not wait for that one, and begins another.
    """

    def __init__(
        self, log: Committing, lock: AbstractContextManager[object], step: AbstractContextManager[None]
    ) -> None:
        """`lock` and `step`, in this order, are what the methods of `log` are called in."""
        self.lock = lock
        self.leader = 0
        self._log = log
        self._step = step
        self._row: list[Waiter] = []
        self._at_sync = threading.RLock()  # held by whoever syncs; twice by a handler over its own sync
        self._waking: Waiter | None = None  # the last of many that wake one another: it or the next one leads
        self._sync: Sync | None = None  # the one that was begun last

    def __len__(self) -> int:
        return len(self._row)

    def take_turn(self, target: int) -> Turn:
        """Return what `wait` is to do for `target`. The lock is held."""
        log = self._log
        while True:
            place = log.reach(target)
            if log.durable >= place:
                return place
            if self._busy():
                return self.enter(place)
            if log.may_sync(target):
                self._sync = log.begin_sync()
                self.leader = get_ident()
                return self._sync

    def wait(self, turn: Turn, target: int) -> int:
        """Return once `target` is durable, or what is left of it, and what that is: sync, or wait for whoever syncs.

        The lock is not held. Raises whatever has closed the log meanwhile.
        """
        while not isinstance(turn, int):
            failure: OSError | None = None
            told = False
            if isinstance(turn, Waiter):
                told = turn.wait(LOOK_AGAIN_S)
                if turn is self._waking:
                    self._all_awake(turn)
                if told and turn.served:
                    return turn.target
            else:
                try:
                    with self._at_sync:
                        turn.run()
                except OSError as exc:
                    failure = exc
                except BaseException:
                    with self.lock, self._step:
                        self.wake(everybody=True)  # what it did nobody knows: the next one syncs
                    raise
            with self.lock, self._step:
                if isinstance(turn, Sync):
                    if failure is not None:
                        raise self._log.sync_failed(failure) from failure
                    if self._sync is turn:  # else a call from a signal's handler began another one over it
                        self._log.synced(turn.place)
                        if target <= min(turn.place, self._log.durable):
                            return target
                elif not told:
                    self._leave(turn)
                    self._waking = None
                    self._log.look_again()
                turn = self.take_turn(target)
        return turn

    def _all_awake(self, last: Waiter) -> None:
        """Let a sync begin again: `last`, which is awake, leads it, or if it is served whoever waits."""
        self._waking = None
        if last.served and self._row:
            with self.lock, self._step:
                if not self._busy():
                    self.wake()

    def _busy(self) -> bool:
        """Whether a sync runs, or begins when the last of many is awake."""
        return self.leader != 0 or self._waking is not None

    def over(self) -> bool:
        """Whether this thread led a sync: as it is here, that is over or was broken off, and it leads no more."""
        mine = self.leader == get_ident()
        if mine:
            self.leader = 0
        return mine

    def drop_broken_off(self) -> None:
        """Wait no more for a sync that nobody is at."""
        if self.leader and self._at_sync.acquire(blocking=False):
            self._at_sync.release()
            self.leader = 0

    def forked(self, lock: AbstractContextManager[object]) -> None:
        """In a child that was just forked: have no lock that nobody here will free. `lock` is the log's."""
        self.lock = lock
        self._at_sync = freed(self._at_sync)

    def enter(self, target: int) -> Waiter:
        """Return a new one that waits, without the lock."""
        waiter = Waiter(target)
        self._row.append(waiter)
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        """Forget one that waited in vain; who was to be woken by it is woken."""
        self._row = [one for one in self._row if one is not waiter]
        waiter.pass_on()

    def wake(self, durable: int = -1, *, everybody: bool = False) -> None:
        """Wake those whom a sync up to `durable` has served, and the next one, to lead a sync; or all."""
        if not self._row:
            return
        row = sorted(self._row, key=lambda one: one.target)
        served = [one for one in row if one.target <= durable]
        for one in served:
            one.served = True
        woken = row if everybody else row[: len(served) + 1]
        self._row = row[len(woken) :]
        for one, after in pairwise(woken):
            one._next = after
        if len(woken) > FEW:
            self._waking = woken[-1]
        if woken:
            woken[0]._woken.release()
