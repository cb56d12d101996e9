"""A large transaction that a client is sending to the primary.

Owns that it takes bounded memory, and that nothing of it is visible before its commit. The hard idea: its packets wait
in a queue until those before them are written, and reading from the connection pauses meanwhile. So the client cannot
be faster than the disk, and the event loop does not wait.

Source: tokumx-replication, "Large Transactions"; docs/protocol.md, "Large transactions".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from tranlog.change import Fragment
from tranlog.errors import LogClosedError, LogError, NotPrimaryError, PayloadError
from tranlog.ids import Gtid
from tranlog.log.writing.member import MemberLog
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.payload import decode
from tranlog.replication.acting.core_thread import REFUSED, Asker, CommitWanted, CoreThread
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.packets import NO_GTID, Begin, Commit, Part
from tranlog.shard import UNKNOWN_SHARD

ResultT = TypeVar("ResultT")


class LargeTransaction:
    """A large transaction of a client. Threads: the event loop's only; work on the log runs in those of `working`."""

    def __init__(
        self,
        begin: Begin,
        wire: Wire,
        thread: CoreThread,
        working: Executor,
        answer: Asker,
    ) -> None:
        self.event_id = begin.event_id
        self._begin = begin
        self._wire = wire
        self._thread = thread
        self._working = working
        self._answer = answer
        self._lost = False
        self._packets: asyncio.Queue[tuple[Part | Commit | None, int]] = asyncio.Queue()

    def take(self, packet: Part | Commit, size: int) -> None:
        """Take a packet."""
        self._packets.put_nowait((packet, size))

    def lost(self) -> None:
        """The connection has ended or is ending: abort what was not passed to the log yet."""
        self._lost = True
        self._packets.put_nowait((None, 0))

    async def run(self) -> None:
        """Write the packets into the log, up to the Commit or the end of the connection."""
        transaction = None
        try:
            transaction = await self._in_thread(self._thread.log.log.begin)
            commit = await self._fill(transaction)
        except (NotPrimaryError, LogClosedError):
            self._answer(Outcome(concern.NOT_PRIMARY, NO_GTID), "")
        except (PayloadError, LogError) as exc:
            self._answer(Outcome(REFUSED, NO_GTID), str(exc))
        else:
            if commit is not None and not self._lost:
                self._commit(transaction, commit)
                return
        if transaction is not None:
            await self._in_thread(transaction.abort)
        while not self._wire.gone.is_set():  # what the client had sent before it heard the answer
            _, size = await self._packets.get()
            self._wire.done(size)

    async def _fill(self, transaction: OpenTransaction) -> Commit | None:
        """Take the parts up to the Commit, and return that; None where the connection has ended."""
        newest: bytes | None = None  # the last one says which tables and which shard, and these come with the Commit
        while True:
            packet, size = await self._packets.get()
            try:
                if packet is None:
                    return None
                last = packet if isinstance(packet, Commit) else None
                if newest is not None:
                    await self._in_thread(partial(self._add, transaction, newest, last))
                elif last is not None:
                    raise PayloadError(why="a transaction without a part")
                if isinstance(packet, Commit):
                    return packet
                newest = packet.raw
            finally:
                self._wire.done(size)

    def _add(self, transaction: OpenTransaction, raw: bytes, last: Commit | None) -> None:
        """Add a part. Raises PayloadError, and as `OpenTransaction.add`."""
        decode(raw)
        begin = self._begin
        fragment = Fragment(
            source_id=begin.source_id,
            event_id=begin.event_id,
            shard_id=UNKNOWN_SHARD if last is None else last.shard or UNKNOWN_SHARD,
            tstamp=begin.tstamp,
            tables=() if last is None else last.tables,
            payload=raw,
            last=last is not None,
        )
        transaction.add(fragment)

    def _commit(self, transaction: OpenTransaction, packet: Commit) -> None:
        w, timeout = by_default(packet.w, packet.wtimeout_ms)

        def taken() -> None:
            self._working.submit(transaction.abort)  # where it was refused; what is committed stays

        def write(log: MemberLog) -> Gtid:
            return transaction.commit(sync=False)

        sent = self._wire.peer, self.event_id
        wanted = CommitWanted(
            write, w, timeout, self._answer, taken, packet.epoch, transaction.oid, large=True, sent=sent
        )
        self._thread.post(wanted)

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._working, work)


def by_default(w: int | str, wtimeout_ms: int) -> tuple[int | str | None, int | None]:
    """Return `w` and timeout for the core: None for the group's defaults."""
    return (None, wtimeout_ms or None) if w == "" else (w, wtimeout_ms)
