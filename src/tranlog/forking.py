"""What a forked child does with what its parent had open.

Owns who is told of a fork, and what becomes of a lock. The hard idea: a child has the memory of its parent and one of
its threads. What the others would have freed stays locked for ever, and what is open is the parent's.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol, overload


class Forking(Protocol):
    """Something that is open here, and in a child is not the child's."""

    def forked(self) -> None:
        """Called in a child that was just forked, in its one thread."""


_OPEN: weakref.WeakSet[Forking] = weakref.WeakSet()


def tell_of_forks(one: Forking) -> None:
    """Have `one` told in each child from now on, as long as there is another reference to it.

    Only of forks that Python makes: one of a library's own is found out by whoever asks for the process.
    """
    _OPEN.add(one)


@overload
def freed(lock: threading.Lock) -> threading.Lock: ...
@overload
def freed(lock: threading.RLock) -> threading.RLock: ...
def freed(lock: threading.Lock | threading.RLock) -> threading.Lock | threading.RLock:
    """Return a lock for a child that was just forked: this one, or a new one where a thread of the parent holds it.

    What the thread that forked holds itself is kept, if that can be told: of an RLock it can.
    """
    if lock.acquire(blocking=False):
        lock.release()
        return lock
    return threading.RLock() if isinstance(lock, type(threading.RLock())) else threading.Lock()


def _forked() -> None:
    for one in list(_OPEN):
        one.forked()


os.register_at_fork(after_in_child=_forked)
