"""Who waits for a sync that another thread leads, and in what order they are woken.

Owns the row of those who wait; what is synced, and by whom, is `log_end`'s. The hard idea: those whom one sync has
served wake one another, each the next. Woken all at once they would wait again, for the interpreter and for the log's
lock, which takes twice the processor's time for a commit.

Source: docs/performance.md, "Many threads".
"""

from __future__ import annotations

import threading
from itertools import pairwise

from tranlog.ids import Seqno


class Waiter:
    """A thread that waits for a sync to cover `target`. Threads: its own, once, and whoever wakes it.

    `served`: a sync has, and that is published.
    """

    __slots__ = ("_next", "_woken", "served", "target")

    def __init__(self, target: Seqno) -> None:
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


class Turns:
    """Those who wait, as they came. The log's lock guards it."""

    def __init__(self) -> None:
        self._row: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._row)

    def enter(self, target: Seqno) -> Waiter:
        """Return a new one, to wait without the lock."""
        waiter = Waiter(target)
        self._row.append(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Forget one that waited in vain; who was to be woken by it is woken."""
        self._row = [one for one in self._row if one is not waiter]
        waiter.pass_on()

    def wake(self, durable: Seqno, *, everybody: bool = False) -> None:
        """Wake those whom a sync up to `durable` has served, and the next one, to lead a sync; or all."""
        row = sorted(self._row, key=lambda one: one.target)
        served = [one for one in row if one.target <= durable]
        for one in served:
            one.served = True
        woken = row if everybody else row[: len(served) + 1]
        self._row = row[len(woken) :]
        for one, after in pairwise(woken):
            one._next = after
        if woken:
            woken[0]._woken.release()
