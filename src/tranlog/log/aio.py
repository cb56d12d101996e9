"""The log for asyncio: commits and cursors that do not block the event loop.

Owns the thread that watches another process's log for all tasks, and how a task waits at a gate, which tells it when to
go on. Commits run in threads. Reading itself stays in the loop; what is new comes from memory. Source: vlsn-index
(waiting).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable
from types import TracebackType

from tranlog.change import Fragment
from tranlog.clock import check_seconds
from tranlog.errors import LogClosedError, LogError
from tranlog.ids import NO_SEQNO, Gtid, Seqno
from tranlog.log.reading.cursor import LOOK_AGAIN_S, Cursor, StoredTransaction
from tranlog.log.reading.gate import Gate
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.log.writing.open_transaction import OpenTransaction

_LOOK_AT_CLOSING_S = 0.1
"""How long a reader that is closed may take to notice."""


async def _wait(gate: Gate, seqno: Seqno, timeout_s: float) -> Seqno:
    """As `Gate.wait`, for a task of the running event loop. Raises TypeError, ValueError for what is no time."""
    check_seconds("timeout_s", timeout_s)
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed over its waiters
            loop.call_soon_threadsafe(event.set)

    ticket = gate.enter(seqno, wake) if timeout_s > 0 else None
    if ticket is not None:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            gate.leave(ticket)
    return gate.passed(seqno)


class AsyncLog:
    """A log opened for writing, seen from an event loop. Tasks: any number."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def transact(self, fragments: Iterable[Fragment], *, sync: bool = True) -> Gtid:
        """Append a whole transaction and commit it, as `Log.transact`; other tasks go on meanwhile.

        A task that is cancelled while it waits does not take its transaction back.
        """
        return await asyncio.to_thread(self.log.transact, fragments, sync=sync)

    async def begin(self) -> AsyncTransaction:
        """Open a transaction that takes fragments one by one, as `Log.begin`; other tasks go on meanwhile."""
        return AsyncTransaction(self.log.begin())

    async def wait(self, seqno: Seqno, timeout_s: float, *, committed_only: bool = False) -> Seqno:
        """Return how far the log reaches, once that is `seqno` or the time is over. Raises LogClosedError."""
        return await _wait(self.log.gate(committed_only=committed_only), seqno, timeout_s)

    def cursor(self, *, committed_only: bool = False) -> AsyncCursor:
        """Return a cursor at the log's first transaction."""
        return AsyncCursor(self.log.cursor(committed_only=committed_only), self, committed_only)


class AsyncReader:
    """A log that another process writes, seen from an event loop. Tasks: any number; one thread watches for all."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self._seen = Gate()
        self._proven = Gate()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name=f"tranlog reader of {reader.path}", daemon=True)
        self._thread.start()

    async def wait(self, seqno: Seqno, timeout_s: float, *, committed_only: bool = False) -> Seqno:
        """Return how far the log reaches, once that is `seqno` or the time is over. Raises as `LogReader.range`."""
        try:
            return await _wait(self._proven if committed_only else self._seen, seqno, timeout_s)
        except LogClosedError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def cursor(self, *, committed_only: bool = False) -> AsyncCursor:
        """Return a cursor at the log's first transaction."""
        return AsyncCursor(self.reader.cursor(committed_only=committed_only), self, committed_only)

    def _watch(self) -> None:
        try:
            found = self.reader.range()
            while not self._closing:
                self._open_to(self._seen, found.last_seqno)
                self._open_to(self._proven, found.committed_seqno)
                found = self.reader.changed(found, _LOOK_AT_CLOSING_S)
        except LogError as exc:
            self._failure = exc
        finally:
            self._seen.close()
            self._proven.close()

    def _open_to(self, gate: Gate, seqno: Seqno) -> None:
        if gate.wait(NO_SEQNO, 0) > seqno:  # rolled back
            gate.go_back(seqno)
            gate.stir()
        gate.open_to(seqno)

    async def close(self) -> None:
        """Let go of the log; who still waits hears that it was closed. Closing twice is harmless."""
        self._closing = True
        await asyncio.to_thread(self._thread.join)
        self.reader.close()

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncTransaction:
    """An open transaction whose spilling and commit do not block the loop. Tasks: one at a time.

    As a context manager it commits at the end of the block, durable, or aborts when the block raises.
    """

    def __init__(self, transaction: OpenTransaction) -> None:
        self._transaction = transaction

    async def add(self, fragment: Fragment) -> None:
        """Take a fragment, as `OpenTransaction.add`."""
        await asyncio.to_thread(self._transaction.add, fragment)

    async def commit(self, *, sync: bool = True) -> Gtid:
        """Put it into the log, as `OpenTransaction.commit`; a task that is cancelled does not take it back."""
        return await asyncio.to_thread(self._transaction.commit, sync=sync)

    def abort(self) -> None:
        """Give it up; what is over stays as it is."""
        self._transaction.abort()

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._transaction.__exit__, kind, exc, trace)


class AsyncCursor:
    """A cursor that waits without blocking the loop. Tasks: one at a time."""

    def __init__(self, cursor: Cursor, log: AsyncLog | AsyncReader, committed_only: bool) -> None:
        self._cursor = cursor
        self._log = log
        self._committed_only = committed_only

    def seek(self, seqno: Seqno) -> None:
        """Stand before `seqno`, also when it is not written yet. Raises PurgedError."""
        self._cursor.seek(seqno)

    async def next(self, timeout_s: float = LOOK_AGAIN_S) -> StoredTransaction | None:
        """Return the next transaction, or None if none came within `timeout_s`. Raises as `Cursor.next`."""
        check_seconds("timeout_s", timeout_s)
        found = self._cursor.next()
        if found is None and timeout_s > 0:
            await self._log.wait(self._cursor.next_seqno, timeout_s, committed_only=self._committed_only)
            found = self._cursor.next()
        return found

    async def __aiter__(self) -> AsyncIterator[StoredTransaction]:
        """Yield transactions for ever, waiting for new ones."""
        while True:
            found = await self.next()
            if found is not None:
                yield found

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        self._cursor.close()

    async def __aenter__(self) -> AsyncCursor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
