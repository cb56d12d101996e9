"""The steps of a log's writer: one at a time, under one lock, each carried out whole or the log is closed for writing.

Owns the lock, what an exception in the middle of a step means, and waiting. What a step does is the writer's. The hard
idea: after an exception that nobody expected, nobody knows what was done; so nothing more is written, and the next
opening finds what a crash would have left.

Source: docs/decisions/0017.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from tranlog.errors import LogClosedError, LogError
from tranlog.forking import freed
from tranlog.group_commit import LOOK_AGAIN_S, Committing, GroupCommit
from tranlog.log.files.ownership import Ownership
from tranlog.log.rules.pending import Pending

logger = logging.getLogger(__name__)

_GIVE_WAY_S = 0.001
"""So long a large transaction waits for those who commit, between two of its slices."""
_GIVE_WAY_LOOKS = 5
"""So often it looks in that time whether they are through."""


class Steps:
    """Operations of the writer, each in `with steps.lock, steps`; what leaves one in its midst closes the log.

    One of our own exceptions has been resolved by whoever raised it. After any other, of which Ctrl-C, a handler of a
    signal and a lack of memory are some, nobody knows what was done; nor where not even the end of the step was
    reached, which the next one to come finds out. A wait, and a sync, are no part of the step around them.

    An exception may come between any two lines. CPython raises none that comes from elsewhere between a lock's `with`
    and its block, nor between the block's end and the release.
    """

    def __init__(self, path: str, ownership: Ownership, pending: Pending, log: Committing) -> None:
        self.lock = threading.RLock()  # a signal's handler may come back to the log in the middle of a step
        self.changed = threading.Condition(self.lock)
        """Told when a sync ended, a transaction ended, the log closed."""
        self.under_way = False
        self.draining = False
        """The disk is full, and writers outside the lock are waited for."""
        self.commits = GroupCommit(log, self.lock, self)
        self._path = path
        self._ownership = ownership
        self._pending = pending
        self._log = log

    def __enter__(self) -> None:
        if self.under_way or self.commits.leader or self._pending.room < 0:
            self._began()
        self.under_way = True

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self.under_way:
            if issubclass(kind, LogError):
                self.wake_all()
            else:
                self.interrupted(kind.__name__)
        self.under_way = False

    def _began(self) -> None:
        if self.under_way or self._pending.room < 0:
            self.interrupted("an exception, or a call from a signal's handler,")
        if self.commits.over():
            self.changed.notify_all()

    def interrupted(self, what: str) -> None:
        """Close the log for writing; what is half done stays as a crash would leave it."""
        if self._ownership.lost is None:
            self.stop(LogClosedError(f"{what} interrupted a step of its writer"))
        self.commits.leader = 0
        self.draining = False
        self.wake_all()

    def stop(self, error: LogError) -> None:
        """Close the log for writing."""
        self._ownership.lose(error)
        self.wake_all()
        logger.error("The log is closed for writing. path=%s why=%s", self._path, error)

    def wake_all(self) -> None:
        """Wake everybody who waits for anything, to look again."""
        self.changed.notify_all()
        self.commits.wake(everybody=True)

    def wait(self) -> None:
        """Wait for whatever changes next, out of the step: everything is in order meanwhile, and has to be."""
        self.under_way = False
        told = self.changed.wait(LOOK_AGAIN_S)
        self.under_way = True
        if not told:
            self._log.look_again()

    def give_way(self) -> bool:
        """Let those who commit go first, for a moment; return whether they are through.

        For whoever writes much beside them, between one slice and the next, without the log's lock: who holds that may
        want the interpreter, the processor, or the segment's file.
        """
        # The lock is watched, not taken: without `with`, an exception between its lines would leave it held for ever.
        for _ in range(_GIVE_WAY_LOOKS):
            if not self.under_way:
                return True
            time.sleep(_GIVE_WAY_S / _GIVE_WAY_LOOKS)
        return not self.under_way

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        lock = self.lock
        self.lock = freed(lock)
        self.commits.forked(self.lock)
        if self.lock is not lock:
            self.changed = threading.Condition(self.lock)
