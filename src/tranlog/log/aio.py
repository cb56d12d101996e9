"""The log for asyncio: commits and cursors that do not block the event loop.

Owns nothing: commits run in a thread, waiting is the gate's. Reading itself stays in the loop; what is new comes from
memory. Source: vlsn-index (waiting); design/index.md, "Waiting".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from tranlog.change import Fragment
from tranlog.ids import Gtid, Seqno
from tranlog.log.cursor import Cursor, StoredTransaction
from tranlog.log.gate import Gate
from tranlog.log.log import Log

_LOOK_AGAIN_S = 3600.0


class AsyncLog:
    """A log opened for writing, seen from an event loop. Tasks: any number."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def transact(self, fragments: Sequence[Fragment], *, sync: bool = True) -> Gtid:
        """Append a whole transaction and commit it, as `Log.transact`; other tasks go on meanwhile.

        A task that is cancelled while it waits does not take its transaction back.
        """
        return await asyncio.to_thread(self.log.transact, fragments, sync=sync)

    async def wait(self, seqno: Seqno, timeout_s: float, *, committed_only: bool = False) -> Seqno:
        """Return how far the log reaches, once that is `seqno` or the time is over. Raises LogClosedError."""
        return await self.log.gate(committed_only=committed_only).wait_async(seqno, timeout_s)

    def cursor(self, *, committed_only: bool = False) -> AsyncCursor:
        """Return a cursor at the log's first transaction."""
        return AsyncCursor(self.log.cursor(committed_only=committed_only), self.log.gate(committed_only=committed_only))


class AsyncCursor:
    """A cursor that waits without blocking the loop. Tasks: one at a time."""

    def __init__(self, cursor: Cursor, gate: Gate) -> None:
        self._cursor = cursor
        self._gate = gate

    def seek(self, seqno: Seqno) -> None:
        """Stand before `seqno`, also when it is not written yet. Raises PurgedError."""
        self._cursor.seek(seqno)

    async def next(self, timeout_s: float = _LOOK_AGAIN_S) -> StoredTransaction | None:
        """Return the next transaction, or None if none came within `timeout_s`. Raises as `Cursor.next`."""
        found = self._cursor.next()
        if found is None and timeout_s > 0:
            await self._gate.wait_async(self._cursor.next_seqno, timeout_s)
            found = self._cursor.next()
        return found

    async def __aiter__(self) -> AsyncIterator[StoredTransaction]:
        """Yield transactions for ever, waiting for new ones."""
        while True:
            found = await self.next()
            if found is not None:
                yield found

    def close(self) -> None:
        """Let go of the files; closing twice is harmless."""
        self._cursor.close()

    async def __aenter__(self) -> AsyncCursor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
