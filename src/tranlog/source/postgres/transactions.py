"""From the messages of a stream to whole transactions.

Owns where a transaction begins and ends, the parts of streamed ones that come in between, and what a rollback of a
savepoint takes back. Rows are decoded later. Pure: where messages wait is the caller's `MessageSpool`. The hard idea:
nothing is handed on before the commit is there. The server sends a large transaction in parts while it is open, several
at a time, and takes parts of it back by the number of their subtransaction. Of one beyond its limit
only the tables of its rows are kept: one message for each, cut to its head.

Source: PostgreSQL's manual, "Streaming of Large Transactions for Logical Decoding".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from tranlog.errors import UnsupportedEventError
from tranlog.source.postgres.messages import (
    BeginMessage,
    CommitMessage,
    LogicalMessage,
    MessageFormatError,
    StreamAbort,
    StreamStart,
    StreamStop,
    TwoPhaseMessage,
    parse_message,
    xid_of,
)
from tranlog.source.postgres.small import SmallTransaction, small_at


class MessageSpool(Protocol):
    """Where the messages of one transaction wait for its commit."""

    def append(self, event: bytes) -> None:
        """Add a message after the others."""

    def extend(self, events: Sequence[bytes]) -> None:
        """Add messages after the others."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the messages in the order in which they came; each iteration starts at the first."""

    @property
    def memory(self) -> int:
        """Bytes of the messages that are in memory."""

    def spill(self) -> None:
        """Move what is in memory elsewhere."""

    def close(self) -> None:
        """Forget the messages."""


class WholeTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One committed transaction of the source, still in its own bytes.

    `end_lsn` is the first byte after its commit record, `timestamp` microseconds UTC, `size` the bytes of its messages.
    `streamed`: each message is preceded by its xid. `taken_back`: xids of its subtransactions that were rolled back.
    `announces`: it holds a table's definition. `beyond`: it was beyond its limit, and of its rows one is there for each
    table and subtransaction, cut behind the table's number.
    """

    xid: int
    end_lsn: int
    timestamp: int
    size: int
    messages: MessageSpool
    streamed: bool = False
    taken_back: frozenset[int] = frozenset()
    announces: bool = False
    beyond: bool = False

    def __iter__(self) -> Iterator[bytes]:
        """Return the messages that count: also the tables and types of what was taken back, which stay announced."""
        if not self.taken_back:
            yield from self.messages
            return
        for raw in self.messages:
            if raw[:1] in _ANNOUNCING or xid_of(raw) not in self.taken_back:
                yield raw


Assembled: TypeAlias = WholeTransaction | SmallTransaction | LogicalMessage
"""What comes of a stream's messages: a transaction, or a message that belongs to none."""


class _Open:
    """A transaction whose commit has not come."""

    __slots__ = ("announces", "heads", "messages", "size", "stored", "taken_back")

    def __init__(self, messages: MessageSpool) -> None:
        self.messages = messages
        self.size = 0
        self.stored = 0
        self.heads: set[bytes] | None = None
        """Of one beyond its limit: the heads of rows that are kept, for the definitions that count now."""
        self.announces = False
        self.taken_back: set[int] = set()


_ANNOUNCING: Final = (b"R", b"Y")
_ROWS: Final = frozenset({b"I", b"U", b"D"})
_KEPT: Final = _ROWS | {b"R", b"Y", b"T", b"M", b"O"}


class TransactionAssembler:
    """Takes the messages of a stream, one by one or many at once, and returns a transaction with its commit.

    Shape: transactions in the order of their commits. `memory_bytes` bounds what all open ones hold in memory. After an
    exception nothing more may be fed. Raises: UnsupportedEventError, MessageFormatError, and what the stores raise.
    """

    def __init__(
        self,
        *,
        new_store: Callable[[], MessageSpool],
        memory_bytes: int,
        transaction_bytes_max: int,
        names_beyond: bool = False,
    ) -> None:
        """`names_beyond`: of a transaction beyond its limit the tables are kept and no rows; else it is refused."""
        self._names_beyond = names_beyond
        self._new_store = new_store
        self._memory_bytes = memory_bytes
        self._limit = transaction_bytes_max
        self._streamed: dict[int, _Open] = {}
        self._current: _Open | None = None
        self._xid = 0
        self._in_stream = False
        self._held = 0
        self._waiting: list[bytes] = []
        self._at = 0

    @property
    def inside(self) -> bool:
        """Whether a transaction that comes in one piece has begun and not ended."""
        return self._current is not None and not self._in_stream

    @property
    def open_streamed(self) -> int:
        """Streamed transactions that have begun and not ended."""
        return len(self._streamed)

    def close(self) -> None:
        """Forget what has begun."""
        for one in self._streamed.values():
            one.messages.close()
        if self._current is not None:
            self._current.messages.close()
        self._streamed.clear()
        self._current = None

    def feed(self, raw: bytes) -> WholeTransaction | LogicalMessage | None:
        """Take the next message; return the transaction that it completes, or a message that belongs to none."""
        if raw[:1] in _KEPT:
            return self._keep(raw)
        message = parse_message(raw, streamed=self._in_stream)
        match message:
            case BeginMessage(xid=xid):
                self._begin(xid)
            case CommitMessage(kind="C"):
                if self._current is None or self._in_stream:
                    raise MessageFormatError("a transaction ends that did not begin")
                one, self._current = self._current, None
                return self._whole(one, message, xid=self._xid, streamed=False)
            case StreamStart(xid=xid, first=first):
                self._start_part(xid, first=first)
            case StreamStop():
                if not self._in_stream:
                    raise MessageFormatError("a part of a transaction ends that did not begin")
                self._in_stream = False
                self._current = None
            case StreamAbort(xid=xid, subxid=subxid):
                self._take_back(xid, subxid)
            case CommitMessage(kind="c", xid=xid):
                found = self._streamed.pop(xid, None)
                if found is None or self._current is not None:
                    raise MessageFormatError(f"the streamed transaction {xid} ends, which did not begin")
                return self._whole(found, message, xid=xid, streamed=True)
            case TwoPhaseMessage():
                raise MessageFormatError("a step of a two-phase commit, which was not asked for")
            case _:
                raise AssertionError(message)
        return None

    def put(self, messages: list[bytes]) -> None:
        """Have these messages taken next; all that were put before have been."""
        self._waiting, self._at = messages, 0

    def take(self) -> Assembled | None:
        """Return what the messages that were put complete next: what `feed` returns, or a small transaction.

        None when all of them are taken. Raises as `feed`.
        """
        waiting = self._waiting
        count = len(waiting)
        while self._at < count:
            if self._current is None:
                small = small_at(waiting, self._at)
                if small is not None and small.size <= self._limit:
                    self._at += len(small.rows) + 2
                    return small
            self._at += 1
            whole = self.feed(waiting[self._at - 1])
            if whole is not None:
                return whole
            if self._current is not None:
                self._take_rows(self._current)
        return None

    def _take_rows(self, one: _Open) -> None:
        """Take the rows that come next and that only their transaction's commit is wanted for."""
        room = min(self._limit - one.stored if one.heads is None else 0, self._memory_bytes - self._held)
        waiting = self._waiting
        count = len(waiting)
        size = 0
        end = self._at
        while end < count and waiting[end][:1] in _ROWS and size + len(waiting[end]) <= room:
            size += len(waiting[end])
            end += 1
        one.messages.extend(waiting[self._at : end])
        self._at = end
        one.size += size
        one.stored += size
        self._held += size

    def _begin(self, xid: int) -> None:
        if self._current is not None:
            raise MessageFormatError(f"transaction {xid} begins inside another one")
        self._current = _Open(self._new_store())
        self._xid = xid

    def _start_part(self, xid: int, *, first: bool) -> None:
        if self._current is not None:
            raise MessageFormatError(f"a part of transaction {xid} begins inside another one")
        if first == (xid in self._streamed):
            raise MessageFormatError(f"the parts of transaction {xid} do not follow each other")
        if first:
            self._streamed[xid] = _Open(self._new_store())
        self._current = self._streamed[xid]
        self._xid = xid
        self._in_stream = True

    def _take_back(self, xid: int, subxid: int) -> None:
        if self._current is not None:
            raise MessageFormatError(f"a rollback of transaction {xid} inside another one")
        if xid != subxid:
            found = self._streamed.get(xid)
            if found is not None:
                found.taken_back.add(subxid)
            return
        found = self._streamed.pop(xid, None)
        if found is not None:
            self._held -= found.messages.memory
            found.messages.close()

    def _keep(self, raw: bytes) -> LogicalMessage | None:
        one = self._current
        if one is None or (raw[0] == _MESSAGE and not self._in_stream):
            message = parse_message(raw)
            if isinstance(message, LogicalMessage) and not message.transactional:
                return message
            if one is None:
                raise MessageFormatError(f"a message {raw[:1]!r} outside of a transaction")
        if raw[0] == _RELATION:
            one.announces = True
        one.size += len(raw)
        self._put(one, raw)
        if one.stored > self._limit:
            self._drop_rows(one)
        if self._held > self._memory_bytes:
            self._spill()
        return None

    def _put(self, one: _Open, raw: bytes) -> None:
        """Let a message wait; of a transaction beyond its limit, a row only as its table's head."""
        if one.heads is not None:
            if raw[:1] in _ROWS:
                raw = raw[: 9 if self._in_stream else 5]
                if raw[1:] in one.heads:
                    return
                one.heads.add(raw[1:])
            elif raw[0] == _RELATION:
                one.heads.clear()
        one.messages.append(raw)
        one.stored += len(raw)
        self._held += len(raw)

    def _drop_rows(self, one: _Open) -> None:
        """Keep of the rows which tables they are of. Raises UnsupportedEventError where that is not enough."""
        if self._names_beyond and one.heads is None:
            whole, one.messages = one.messages, self._new_store()
            one.heads, one.stored = set(), 0
            self._held -= whole.memory
            for raw in whole:
                self._put(one, raw)
            whole.close()
        if one.heads is None or one.stored > self._limit:
            raise UnsupportedEventError(
                what=f"transaction {self._xid} has {one.size} bytes so far, and the option transaction_bytes_max "
                f"allows {self._limit}",
                event_id="",
                remedy="Raise the option if the disks have room for it, then start capture again",
            )

    def _spill(self) -> None:
        """Move the transaction that holds most out of memory."""
        everyone = {id(one): one for one in (*self._streamed.values(), self._current) if one is not None}.values()
        max(everyone, key=lambda one: one.messages.memory).messages.spill()
        self._held = sum(one.messages.memory for one in everyone)

    def _whole(self, one: _Open, end: CommitMessage, *, xid: int, streamed: bool) -> WholeTransaction:
        self._held -= one.messages.memory
        return WholeTransaction(
            xid=xid,
            end_lsn=end.end_lsn,
            timestamp=end.timestamp,
            size=one.size,
            messages=one.messages,
            streamed=streamed,
            taken_back=frozenset(one.taken_back),
            announces=one.announces,
            beyond=one.heads is not None,
        )


_MESSAGE: Final = ord("M")
_RELATION: Final = ord("R")
