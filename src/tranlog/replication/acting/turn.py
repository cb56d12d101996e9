"""Turns: which thread handles a node's events, and the calls into the event loop that follow.

Owns that one thread at a time decides, and that its output is delivered in the order of the decisions. The hard idea:
an event from a socket need not wait until another thread wakes. The event loop handles everything that its sockets
brought in one round, if no other thread has the turn. A thread that ends its turn sees to the events that are left.

Two threads take the turn. The event loop never waits for it, and leaves work that waits for a sync to the node's own
thread, which does wait. The thread that has the turn may wait for the log: for its lock, at the end of a segment for a
sync by another thread, or for a transaction whose place another thread fills. So no other thread waits for the turn or
for the loop: the threads that sync, spill, read or ask post events, and the loop handles them when it can. A turn does
not wait for room either: `events` and the output have no bound. Input from sockets is bounded by credit, which the
loop returns after its turn.

Source: docs/protocol.md, "The order of things".
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import TracebackType


class Outbox:
    """The calls to make in the event loop, in order, once a turn hands them out: their causes are complete then.

    Threads: `put`, `put_first` and `hand_out` in a turn, `deliver` in the loop's. Create it in the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._said: list[Callable[[], object]] = []
        self._calls: deque[Callable[[], object]] = deque()
        self._due = False

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread."""
        return get_ident() == self._thread

    def put(self, call: Callable[[], object]) -> None:
        """Add a call after all others."""
        self._said.append(call)

    def put_first(self, call: Callable[[], object]) -> None:
        """Add a call before all that are not handed out yet."""
        self._said.insert(0, call)

    def hand_out(self) -> None:
        """Let the loop deliver the calls; in the loop's own thread it does so after its turn."""
        self._calls.extend(self._said)
        self._said.clear()
        if self._calls and not self._due and not self.is_here:
            self._due = True
            self._loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Make the calls that were handed out."""
        self._due = False
        while self._calls:
            self._calls.popleft()()


class Turn:
    """The events of one node, and the turns at them: `with` takes a turn, and waits for the thread that has it.

    Threads: any may `post` and `wake`; `with` and `wait` in the node's own. `failure`: the error that ended the last
    turn; after it the loop takes none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, out: Outbox, work: Callable[[], bool]) -> None:
        """`work` looks at the events, as far as it waits for nobody; False: the node's thread has to go on."""
        self.events: deque[object] = deque()
        self.failure: BaseException | None = None
        self._loop = loop
        self._out = out
        self._work = work
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._round_due = False
        self._wanted = False  # by the node's own thread

    def post(self, event: object) -> None:
        """Post an event, to be handled in a turn; the loop takes one turn for all that its sockets have brought."""
        self.events.append(event)
        if not self._round_due:
            self._round_due = True
            (self._loop.call_soon if self._out.is_here else self._loop.call_soon_threadsafe)(self._round)

    def _round(self) -> None:
        """Look at what is there, unless the node's thread is at it, or about to be."""
        self._round_due = False
        done = self.failure is None
        while done and self.events and not self._wanted and self._lock.acquire(blocking=False):
            try:
                done = self._work()
            except BaseException as exc:
                self.failure, done = exc, False
            finally:
                self._lock.release()
        if not done:
            self.wake()
        self._out.deliver()

    def wake(self) -> None:
        """Wake the node's own thread to take a turn."""
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Wait until the node's own thread is woken, or so many seconds."""
        if self._wake.wait(seconds):
            self._wake.clear()

    def __enter__(self) -> None:
        self._wanted = True
        self._lock.acquire()
        self._wanted = False

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self.failure = exc
        self._lock.release()
        if self.events:
            self._wake.set()


class Syncing:
    """The thread that syncs. Threads: `start` and `stop` any, the others in a turn.

    A sync covers everything that came before it begins. It begins after a turn has handled the end of the last one.
    """

    def __init__(self, sync: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """`failed` is told what has ended it."""
        self._sync = sync
        self._failed = failed
        self._more = False
        self._under_way = False
        self._wanted = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="node sync")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ending = True
        self._wanted.set()
        self._thread.join()

    def grew(self) -> None:
        """The log has grown since the last sync."""
        self._more = True

    def begin(self) -> None:
        """Begin a sync, if the log has grown and no sync is running."""
        if self._more and not self._under_way:
            self._more, self._under_way = False, True
            self._wanted.set()

    def over(self) -> None:
        """The end of a sync was handled."""
        self._under_way = False

    def _run(self) -> None:
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._ending:
                    return
                self._sync()
        except BaseException as exc:
            self._failed(exc)
