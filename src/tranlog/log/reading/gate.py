"""Where readers wait for a transaction that is not there yet: threads and asyncio tasks, any number, for any seqno.

Owns who waits for what and who is woken; what is visible or durable is the log's to say, and a task waits in `log.aio`.
The hard idea: only those are woken whose seqno has come, so a thousand readers far ahead cost a commit nothing.

Source: vlsn-index (waitForLsn); docs/conformance.md, I33, I34, S9.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

from tranlog.errors import LogClosedError
from tranlog.forking import freed
from tranlog.ids import NO_SEQNO, Seqno

Ticket = tuple[int, int, Callable[[], None]]
"""Who waits: the seqno, a number that tells apart those who wait for the same one, and what wakes it."""


class Gate:
    """Opens up to a seqno, which rises but for a rollback. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = NO_SEQNO
        self._closed = False
        self._waiting: list[Ticket] = []
        self._numbers = count()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def open_to(self, seqno: Seqno) -> None:
        """Let everybody pass who waits for `seqno` or an older one."""
        if seqno <= self._open:
            return
        woken = []
        with self._lock:
            self._open = max(self._open, seqno)
            while self._waiting and self._waiting[0][0] <= seqno:
                woken.append(heapq.heappop(self._waiting)[2])
        for wake in woken:
            wake()

    def go_back(self, seqno: Seqno) -> None:
        """Be open no further than `seqno` again: what lay after it was abandoned."""
        with self._lock:
            self._open = min(self._open, seqno)

    def stir(self) -> None:
        """Wake everybody, whatever they wait for: it may be another transaction now."""
        with self._lock:
            woken = [wake for _, _, wake in self._waiting]
            self._waiting.clear()
        for wake in woken:
            wake()

    def close(self) -> None:
        """Wake everybody: nothing will come any more."""
        with self._lock:
            self._closed = True
        self.stir()

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self._lock = freed(self._lock)

    def wait(self, seqno: Seqno, timeout_s: float) -> Seqno:
        """Return how far it is open, at once when that reaches `seqno`, else after `timeout_s` at the latest.

        Sooner after a rollback.

        Raises LogClosedError if it was closed before `seqno` came.
        """
        if self._open < seqno and timeout_s > 0:
            event = threading.Event()
            ticket = self.enter(seqno, event.set)
            if ticket is not None and not event.wait(min(timeout_s, threading.TIMEOUT_MAX)):
                self.leave(ticket)
        return self.passed(seqno)

    def enter(self, seqno: Seqno, wake: Callable[[], None]) -> Ticket | None:
        """Have `wake` called once, by any thread, when `seqno` may have come; None where there is no need to wait."""
        with self._lock:
            if self._closed or self._open >= seqno:
                return None
            ticket = (int(seqno), next(self._numbers), wake)
            heapq.heappush(self._waiting, ticket)
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no more; harmless where it was woken."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                heapq.heapify(self._waiting)

    def passed(self, seqno: Seqno) -> Seqno:
        """Return how far it is open. Raises LogClosedError if it was closed before `seqno` came."""
        with self._lock:
            if self._open < seqno and self._closed:
                raise LogClosedError()
            return self._open
