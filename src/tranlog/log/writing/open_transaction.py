"""A transaction of our own API that is still open: in memory while it is small, spilled once it is not.

Owns when it spills, and that it becomes part of the log whole or not at all. Chunks are `spilling`'s, the record in the
log is the log's. The hard idea: an open transaction has no place in the log. It takes one when it commits, and then
one small record, so that it holds up nobody however large it is and however long it stays open.

Source: tokumx-replication, "Large Transactions".
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import msgspec

from tranlog.change import Fragment
from tranlog.errors import LogClosedError, LogError
from tranlog.ids import Gtid
from tranlog.log.writing.spilling import SpilledTransaction


class SpillingLog(Protocol):
    """What an open transaction needs of its log."""

    def begin_spill(self) -> SpilledTransaction:
        """Begin to spill. Raises whatever has closed the log meanwhile."""

    def commit_whole(self, fragments: list[Fragment], sync: bool, reign: int) -> Gtid:
        """Append a whole transaction, of that reign, and commit it."""

    def commit_spilled(self, spilled: SpilledTransaction, last: Fragment, sync: bool, reign: int) -> Gtid:
        """Append the record of a spilled transaction whose last fragment is `last`, of that reign, and commit it."""


class OpenTransaction:
    """A transaction that takes fragments until it is committed or aborted; see `Log.begin`.

    As a context manager it commits at the end of the block, durable, or aborts when the block raises. Memory:
    `spill_buffer_bytes`, a chunk and the newest fragment. Threads: one at a time, any one; others commit meanwhile.
    """

    def __init__(
        self, log: SpillingLog, spill_buffer_bytes: int, reign: int, check_reign: Callable[[int], None]
    ) -> None:
        """For `Log.begin` only; `check_reign` raises NotPrimaryError where the log's `reign` is over."""
        self._log = log
        self._reign = reign
        self._check_reign = check_reign
        self._most = spill_buffer_bytes
        self._held: list[Fragment] = []  # in memory; the newest is always among them
        self._held_bytes = 0
        self._spilled: SpilledTransaction | None = None
        self._over = False

    @property
    def oid(self) -> bytes:
        """By what its chunks are known; empty while it does not spill."""
        return b"" if self._spilled is None else self._spilled.oid

    def add(self, fragment: Fragment) -> None:
        """Take a fragment. `last` is not looked at: the newest one at `commit` speaks for the whole.

        Raises RecordLimitError, DiskFullError, DiskFailedError, LogClosedError, LogLockedError: the transaction is
        then aborted.
        """
        self._check()
        self._held.append(fragment)
        self._held_bytes += len(fragment.payload)
        if self._held_bytes > self._most or self._spilled is not None:
            try:
                self._spill()
            except BaseException:
                self.abort()
                raise

    def _spill(self) -> None:
        """Hand over all but the newest fragment, which may be the last."""
        if len(self._held) < 2:
            return
        if self._spilled is None:
            self._spilled = self._log.begin_spill()
        for one in self._held[:-1]:
            self._spilled.add(_with_last(one, False))
        del self._held[:-1]

    def commit(self, *, sync: bool = True) -> Gtid:
        """Put it into the log, whole; with `sync`, return once it is durable. It has at least one fragment.

        Raises as `Log.commit`, and RecordLimitError; where it names a full disk or a limit, nothing of it is there.
        """
        self._check()
        try:
            row = [*(_with_last(one, False) for one in self._held[:-1])]
            row += [_with_last(one, True) for one in self._held[-1:]]
            if self._spilled is None:
                gtid = self._log.commit_whole(row, sync, self._reign)
            else:
                last = row[-1]
                self._spilled.add(last)
                gtid = self._log.commit_spilled(self._spilled, last, sync, self._reign)
        except BaseException:
            self.abort()
            raise
        self._over = True
        self._held = []
        return gtid

    def abort(self) -> None:
        """Give it up: nothing of it was ever in the log. What is over stays as it is."""
        if not self._over:
            self._over = True
            self._held = []
            if self._spilled is not None:
                self._spilled.abort()

    def _check(self) -> None:
        if self._over:
            raise LogClosedError("this transaction is committed or aborted")
        try:
            self._check_reign(self._reign)
        except LogError:
            self.abort()
            raise

    def __enter__(self) -> OpenTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._over:
            self.commit()


def _with_last(fragment: Fragment, last: bool) -> Fragment:
    return fragment if fragment.last is last else msgspec.structs.replace(fragment, last=last)
