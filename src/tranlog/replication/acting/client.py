"""The client of a group: commits transactions at the primary, and asks about them.

Owns finding the primary through any node, and the kinds of answers. The hard idea: nothing is repeated here. A commit
is sent once, to a node that says it is primary. If the connection ends before the answer, the outcome is unknown, and
the program asks for it with `find`.

Source: tokumx-replication, "Write Concern"; docs/protocol.md, "Write concern".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol, Self, TypeVar

import msgspec

from tranlog.change import Change, Fragment
from tranlog.clock import check_seconds
from tranlog.closing import Closing
from tranlog.errors import CommitRefusedError, ConfigError, HandshakeError, NoPrimaryError, NotPrimaryError
from tranlog.ids import Gtid
from tranlog.replication.acting.connection import Connection, reach
from tranlog.replication.acting.core_thread import REFUSED
from tranlog.replication.acting.links import pauses
from tranlog.replication.rules import concern
from tranlog.replication.rules.config import NO_NODE, NODES_MAX, NodeId
from tranlog.replication.rules.finding import FOUND, MORE, NOT_THERE
from tranlog.replication.rules.packets import (
    CONTROL_BYTES_MAX,
    NO_GTID,
    RAW_BYTES_MAX,
    AskConcern,
    Begin,
    Commit,
    CommitAnswer,
    Find,
    FindAnswer,
    NotKnown,
    Packet,
    Part,
    WaitConsistent,
)

SCHEME = "thl://"
FIND_S = 10.0
"""So long is a primary looked for."""
MARGIN_S = 5.0
"""So much later than the node should have said that the time is up, an answer is not waited for any more."""
NEXT_S = 0.5
"""Where a node says nothing for so long, the next one is asked for the primary, too."""
PART_BYTES_MAX = RAW_BYTES_MAX + CONTROL_BYTES_MAX - 1_024
"""A fragment of so many bytes is a packet; what is larger no node takes."""
CHANGE_BYTES_MAX = 4_000_000
"""A change of so many bytes fits whatever stands in front of it."""
WHOLE_BYTES_MAX = 48 << 20
"""A transaction with more bytes is sent as those of `begin`: a node takes no more than 64 MiB into its memory."""
TIME_MAX_S = 1e12
TEXT_BYTES_MAX = 65_535
"""So long is an event id in a record at most."""
NOTHING_WRITTEN = "Nothing was written"
NOTHING_KNOWN = "What became of the transaction in question is not known"
"""What the errors of commits, and those of questions, say of the transaction."""
END_S = 1.0
"""So long what still waits for an answer has to notice that its client ends."""
_ENDED = "this client of it was closed"
_FORKED = "this process was forked, and the client is its parent's"
_NUMBER = 1
"""Of the one transaction of a connection of its own."""
_WALKED = (FOUND, NOT_THERE, MORE)


class Packing(Protocol):
    """Makes the fragments of one transaction."""

    def add(self, changes: Iterable[Change]) -> Iterator[Fragment]:
        """Take changes, and yield the full fragments. Raises ValueError for a value that its column cannot hold."""

    def finish(self) -> Fragment:
        """Return the last fragment, which has the properties of the whole transaction."""


Pack = Callable[[str], Packing]
"""Begins to pack a transaction with an event id. Raises ValueError for an empty one."""
ResultT = TypeVar("ResultT")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a transaction, as far as it is known. The class says which.

    `gtid`: None if unknown. `written_to`: the names of the nodes that have it durable. `primary`: the name of the
    primary, empty if unknown.
    """

    gtid: Gtid | None
    written_to: tuple[str, ...] = ()
    waited_s: float = 0.0
    primary: str = ""


class Satisfied(Answer, frozen=True):
    """It is in the log, and the write concern is met."""

    gtid: Gtid


class TimedOut(Answer, frozen=True):
    """It is in the primary's log, and the write concern was not met in time. It stays, and may be met later.

    The answer to `ask`, too, about a GTID to which the primary's log has not come.
    """

    gtid: Gtid


class NotPrimary(Answer, frozen=True):
    """Nothing was written: the node was not primary."""


class FailedOver(Answer, frozen=True):
    """The outcome is unknown: the reign or the connection ended before the answer. `find` tells whether it was written.

    For a commit, `event_id` and `after` are the arguments of `find`; str() of it is that call.
    """

    event_id: str = ""
    after: Gtid | None = None

    def __str__(self) -> str:
        known = f"it has {self.gtid} if it is there" if self.gtid is not None else "whether it is there is not known"
        return (
            f"FailedOver: {known}. Next: find({self.event_id!r}, after={self.after})" if self.event_id else repr(self)
        )


class RolledBack(Answer, frozen=True):
    """It is not in the group's log; it is in the rollback data of the node that took it."""

    gtid: Gtid


class Purged(Answer, frozen=True):
    """The primary has purged that seqno, and cannot tell whether this or another transaction stood there."""

    gtid: Gtid


class EventFound(msgspec.Struct, frozen=True):
    """The transaction is in the primary's log, with this GTID; `ask` tells whether it is committed."""

    gtid: Gtid


class EventNotFound(msgspec.Struct, frozen=True):
    """No transaction that was looked at has the event id; the first one looked at was `first`, None for none at all.

    `certain`: the whole range was searched, so the transaction is not in the log and will not be written. Otherwise the
    transactions before `first` were purged, or, without `after`, lie further back than one search goes.
    """

    first: Gtid | None
    certain: bool


FindResult = EventFound | EventNotFound
_KINDS: Mapping[str, type[Answer]] = {
    concern.SATISFIED: Satisfied,
    concern.TIMED_OUT: TimedOut,
    concern.NOT_PRIMARY: NotPrimary,
    concern.FAILED_OVER: FailedOver,
    concern.ROLLED_BACK: RolledBack,
    concern.PURGED: Purged,
}


def _answer(told: CommitAnswer, *, commit: bool) -> Answer:
    """Return an answer as a program has it; `commit`: to a commit. Raises CommitRefusedError."""
    if told.kind == REFUSED:
        known = NOTHING_WRITTEN if commit and told.gtid == NO_GTID else NOTHING_KNOWN
        raise CommitRefusedError(why=told.text, known=known)
    gtid = None if told.gtid == NO_GTID else told.gtid
    kind = FailedOver if told.kind == concern.NOT_PRIMARY and gtid is not None else _KINDS[told.kind]
    return kind(gtid=gtid, written_to=told.written_to, waited_s=told.waited_ms / 1000, primary=told.primary)


def not_known(told: NotKnown) -> str:
    """Return the message for a packet that a node does not know."""
    return f"the node does not know packets of kind {told.kind}: update it"


class _Wish(msgspec.Struct, frozen=True):
    """A write concern as a packet has it. `within_s`: None for no limit that the client knows."""

    w: int | str
    wtimeout_ms: int
    within_s: float | None


def _wish(w: int | str | None, wtimeout: float | None) -> _Wish:
    """Return the write concern that a program gives. Raises TypeError, ValueError for what no node understands."""
    if w is not None and (isinstance(w, bool) or not isinstance(w, int | str)):
        raise TypeError(f'w is a number of nodes, "majority" or the name of a tag rule, not {w!r}')
    if isinstance(w, int) and not 0 <= w <= NODES_MAX:
        raise ValueError(f"w is 0 to {NODES_MAX} nodes, not {w}")
    if w == "":
        raise ValueError('w is "majority", the name of a tag rule, or None for the group\'s default, not empty')
    ms = 0 if wtimeout is None else packet_ms("wtimeout", wtimeout)
    return _Wish("" if w is None else w, ms, wtimeout or None)


def packet_ms(name: str, seconds: float) -> int:
    """Return seconds as the ms of a packet, where only 0 is 0. Raises TypeError, ValueError for what is no time."""
    check_seconds(name, seconds, most=TIME_MAX_S)
    return max(round(seconds * 1000), 1) if seconds else 0


def check_type(name: str, value: object, kind: type) -> None:
    """Refuse what no node could read, before it ends a connection that others use, too. Raises TypeError."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is of the type {kind.__name__}, not {value!r}")


def _check_size(fragment: Fragment) -> None:
    """Refuse what no node takes. Raises CommitRefusedError."""
    size = len(fragment.payload)
    if size > PART_BYTES_MAX:
        why = f"a change makes {size} bytes with those next to it, and a packet takes {PART_BYTES_MAX}"
        raise CommitRefusedError(why=f"{why}; one of up to {CHANGE_BYTES_MAX} always fits")


def _checked_event_id(event_id: str | None) -> str:
    """Return the event id of a transaction, a new one for None. Raises TypeError, CommitRefusedError."""
    if event_id is None:
        return secrets.token_hex(16)
    check_type("event_id", event_id, str)
    if len(event_id.encode()) > TEXT_BYTES_MAX:
        raise CommitRefusedError(why=f"its event id has more than {TEXT_BYTES_MAX} bytes")
    return event_id


def _commit(number: int, last: Fragment, epoch: int, wish: _Wish, *, shard: str = "") -> Commit:
    """Return what commits a transaction whose last fragment this is. `shard`: where its Begin did not say it."""
    return Commit(
        number=number,
        event_id=last.event_id,
        w=wish.w,
        wtimeout_ms=wish.wtimeout_ms,
        source_id=last.source_id,
        tstamp=last.tstamp,
        tables=last.tables,
        epoch=epoch,
        shard=shard,
    )


def addresses_of(url: str) -> list[str]:
    """Return the addresses in `thl://HOST:PORT,HOST:PORT`. Raises ConfigError for another text, TypeError for none."""
    check_type("url", url, str)
    addresses = [one for one in url.removeprefix(SCHEME).rstrip("/").split(",") if one]
    if not url.startswith(SCHEME) or not addresses:
        raise ConfigError(option="url", value=url, why="reads thl://HOST:PORT,HOST:PORT")
    return addresses


class AsyncGroup:
    """A group, for programs of asyncio. Any number of tasks of one event loop may commit at once, and share the
    group's syncs; in another loop its methods raise RuntimeError.
    """

    def __init__(
        self,
        url: str,
        pack: Pack,
        *,
        name: str = "",
        tls: ssl.SSLContext | None = None,
        via: Mapping[str, str] | None = None,
        find_s: float = FIND_S,
    ) -> None:
        """`url`: `thl://HOST:PORT,HOST:PORT`, some of the group's nodes. `via` says for a node's name at which address
        to reach it. Raises ConfigError for another url. Connects when it is asked something.
        """
        self.url = url
        self._pack = pack
        self._name = name or "client"
        self._tls = tls
        self._via = via or {}
        packet_ms("find_s", find_s)
        self._find_s = find_s
        if tls is not None:
            check_type("tls", tls, ssl.SSLContext)
        self._addresses = addresses_of(url)
        self._numbers = itertools.count(1)
        self._id = NodeId(secrets.token_hex(8))
        self._connection: Connection | None = None
        self._seen = NO_GTID
        self._group = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finding = asyncio.Lock()
        self._news = asyncio.Event()
        self._open: set[Connection] = set()  # those of large transactions
        self._ended = False

    async def commit(
        self,
        changes: Iterable[Change],
        *,
        w: int | str | None = None,
        wtimeout: float | None = None,
        event_id: str | None = None,
    ) -> Answer:
        """Commit a transaction at the primary; return its outcome. After FailedOver, call `find`.

        `w`: 0, a number of durable copies, "majority", or the name of a tag rule. `wtimeout`: seconds, 0 for no limit.
        None for either means the group's default. Raises NoPrimaryError, CommitRefusedError, ValueError, TypeError;
        nothing was written then.
        """
        wish, event_id = _wish(w, wtimeout), _checked_event_id(event_id)
        packing = self._pack(event_id)
        fragments = [*packing.add(changes), packing.finish()]
        for fragment in fragments:
            _check_size(fragment)
        if sum([len(fragment.payload) for fragment in fragments]) > WHOLE_BYTES_MAX:
            return await self._commit_large(fragments, packing, event_id, wish)
        connection = await self._primary()
        last, number, seen = fragments[-1], next(self._numbers), self._seen
        begin = Begin(number=number, shard=last.shard_id)
        parts = [Part(number=number, raw=one.payload) for one in fragments]
        commit = _commit(number, last, connection.epoch, wish)
        try:
            told = await connection.ask(number, begin, *parts, commit, within_s=_with_margin(wish.within_s))
        except TimeoutError:
            raise CommitRefusedError(why="wtimeout was over before the primary had room for it") from None
        answer = self.answered(connection, told, commit=True)
        if isinstance(answer, FailedOver):
            return msgspec.structs.replace(answer, event_id=last.event_id, after=seen)
        return answer

    async def begin(self, *, event_id: str | None = None) -> AsyncRemoteTransaction:
        """Begin a transaction to which changes are added one by one; the primary spills a large one to its disk.

        Raises NoPrimaryError, ValueError.
        """
        event_id = _checked_event_id(event_id)
        return await self._begin(self._pack(event_id), event_id)

    async def _begin(self, packing: Packing, event_id: str) -> AsyncRemoteTransaction:
        found = await self._primary()
        try:
            connection = await self._connect(found.address)
        except (OSError, HandshakeError) as exc:
            raise NoPrimaryError(group=self.url, why=f"{found.address}: {exc}") from exc
        if self._ended:
            await connection.close()
            raise NoPrimaryError(group=self.url, why=_ENDED)
        self._open.add(connection)
        return AsyncRemoteTransaction(self, connection, packing, event_id, found.epoch)

    async def _commit_large(
        self, fragments: Sequence[Fragment], packing: Packing, event_id: str, wish: _Wish
    ) -> Answer:
        """As `commit`, by a connection of its own, and through the primary's disk."""
        async with await self._begin(packing, event_id) as transaction:
            try:
                for fragment in fragments:
                    await transaction.send(fragment)
            except NotPrimaryError:
                return NotPrimary(gtid=None)
            return await transaction.end(fragments[-1], wish)

    async def ask(self, gtid: Gtid, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """Ask the primary whether `w` is met for a transaction; as `commit`."""
        wish, number = _wish(w, wtimeout), next(self._numbers)
        check_type("gtid", gtid, Gtid)
        asked = AskConcern(number=number, gtid=gtid, w=wish.w, wtimeout_ms=wish.wtimeout_ms)
        connection = await self._primary(wish.within_s, question=True)
        return self.answered(connection, await _asked(connection, number, asked, wish.within_s))

    async def find(
        self, event_id: str, *, after: Gtid | None = None, timeout: float = 10.0
    ) -> EventFound | EventNotFound:
        """Look for a transaction by its event id in the primary's log, once a majority has confirmed that primary.

        `after`: the last GTID that was known before the transaction was sent; everything after it is searched. None:
        the newest 50,000 transactions. Returns the first of several with the event id. If it is not found, another
        process of this program may still be sending it. Raises NoPrimaryError if no primary answers within `timeout`
        seconds, CommitRefusedError if its log cannot be read.
        """
        packet_ms("timeout", timeout)
        check_type("event_id", event_id, str)
        if after is not None:
            check_type("after", after, Gtid)
        loop = asyncio.get_running_loop()
        until, first, certain, waits = loop.time() + timeout, None, True, pauses()
        while True:
            connection = await self._primary(max(until - loop.time(), 0.0), question=True, patient=True)
            number = next(self._numbers)
            left = max(until - loop.time(), 0.001)
            wanted = Find(number=number, event_id=event_id, after=after, timeout_ms=packet_ms("timeout", left))
            told = await _asked(connection, number, wanted, left)
            if isinstance(told, FindAnswer) and told.kind in _WALKED:
                first, certain = first or (None if told.first == NO_GTID else told.first), certain and told.complete
                if told.kind != MORE:
                    return EventFound(told.gtid) if told.kind == FOUND else EventNotFound(first, certain)
                after = told.upto
                continue
            if isinstance(told, FindAnswer) and told.kind == REFUSED:
                raise CommitRefusedError(why=told.text, known=NOTHING_KNOWN)
            if isinstance(told, NotKnown):
                raise CommitRefusedError(why=not_known(told), known=NOTHING_KNOWN)
            if self._connection is connection:
                self._forget()
            if loop.time() >= until:
                why = f"none that a majority confirmed said within {timeout:g} s whether it has {event_id!r}"
                raise NoPrimaryError(group=self.url, why=why, known=NOTHING_KNOWN)
            await asyncio.sleep(min(next(waits), until - loop.time()))

    async def wait(
        self, *, at_least: Gtid | None = None, within_ms: int | None = None, latest: bool = False, timeout: float = 10.0
    ) -> bool:
        """Wait for one condition at the primary; return False if it is not met in time.

        `at_least`: everything up to this GTID is committed. `within_ms`: so is everything that the group had committed
        so long ago. `latest`: so is everything that was committed before this call, as a majority has confirmed.
        Raises NoPrimaryError; ValueError unless exactly one condition is given.
        """
        if [at_least is not None, within_ms is not None, latest].count(True) != 1:
            raise ValueError("wait takes one of at_least, within_ms and latest")
        for name, value, wanted in (("at_least", at_least, Gtid), ("within_ms", within_ms, int)):
            if value is not None:
                check_type(name, value, wanted)
        if not 0 <= (within_ms or 0) < 1 << 63:
            raise ValueError(f"within_ms is a number of milliseconds, not {within_ms}")
        number, kind = next(self._numbers), "latest" if latest else "within" if at_least is None else "at_least"
        question = WaitConsistent(
            number=number,
            kind=kind,
            gtid=at_least or NO_GTID,
            lag_ms=within_ms or 0,
            timeout_ms=max(packet_ms("timeout", timeout), 1),
        )
        connection = await self._primary(timeout, question=True)
        return isinstance(self.answered(connection, await _asked(connection, number, question, timeout)), Satisfied)

    async def primary(self) -> str:
        """Return the name of the primary. Raises NoPrimaryError."""
        connection = await self._primary()
        return (await connection.hello).node_name

    def answered(self, connection: Connection, told: Packet | None, *, commit: bool = False) -> Answer:
        """Return an answer in the form for programs; note the GTID and the primary in it. Raises CommitRefusedError.

        `commit`: it tells the GTID of a commit. The answer to a question may repeat one that no log has.
        """
        if isinstance(told, NotKnown):
            raise CommitRefusedError(why=not_known(told), known=NOTHING_WRITTEN if commit else NOTHING_KNOWN)
        if not isinstance(told, CommitAnswer):
            return FailedOver(gtid=None)
        if told.kind in (concern.NOT_PRIMARY, concern.FAILED_OVER) and self._connection is connection:
            self._forget()
        if commit or told.kind == concern.SATISFIED:
            self._seen = max(self._seen, told.gtid)
        return _answer(told, commit=commit)

    @property
    def seen(self) -> Gtid:
        """The greatest GTID that a primary's log had, as far as its answers tell; `NO_GTID` before the first."""
        return self._seen

    def _forget(self) -> None:
        """Look for the primary anew; who waits for an answer of the former one goes on waiting."""
        if self._connection is not None:
            self._connection.retire()
        self._connection = None

    async def _primary(
        self, within_s: float | None = None, *, question: bool = False, patient: bool = False
    ) -> Connection:
        """Return a connection to the primary. Raises NoPrimaryError, with `question`.

        It is looked for no longer than `within_s`, about; `patient`: so long, even if that is more than `find_s`.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError(f"this client of {self.url} serves another event loop: connect again in this one")
            self._loop = loop
        if self._connection is not None and self._connection.is_open:
            return self._connection  # at once: who waits for a lock goes on in a later round of the loop, alone
        limit = self._find_s if within_s is None else within_s if patient else min(within_s, self._find_s)
        until, troubles = loop.time() + limit, list[str]()
        try:
            async with asyncio.timeout_at(until + MARGIN_S), self._finding:
                if not self._ended and (self._connection is None or not self._connection.is_open):
                    self._connection = await self._search(until, troubles)
                if self._connection is not None:
                    return self._connection
        except TimeoutError:
            troubles.append(f"there was no answer within {limit:g} s")
        if self._ended:
            troubles[:] = [_ENDED]
        known = NOTHING_KNOWN if question else NOTHING_WRITTEN
        raise NoPrimaryError(group=self.url, why="; ".join(troubles), known=known)

    async def _search(self, until: float, troubles: list[str]) -> Connection | None:
        """Look for the primary until a moment of the loop's clock, or once; None where there is none.

        `troubles` is made to say why the last look found none.
        """
        loop, waits = asyncio.get_running_loop(), pauses()
        while True:
            self._news.clear()
            troubles.clear()
            asked: list[Connection] = []
            try:
                found = await self._look(troubles, asked)
                if found is not None and self._ended:
                    found.retire()
                elif found is not None:
                    self._seen = max(self._seen, (await found.welcome).last)
                    self._group = found.group
                    return found
                if loop.time() >= until or self._ended:
                    return None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(next(waits), until - loop.time())):
                        await self._news.wait()
            finally:
                for one in asked:
                    one.retire()

    async def _look(self, troubles: list[str], asked: list[Connection]) -> Connection | None:
        """Ask one node after the other for the primary, and the next one, too, while one gives no answer."""
        left, looking = list(self._addresses), set[asyncio.Task[Connection | None]]()
        try:
            while left or looking:
                if left:
                    looking.add(asyncio.ensure_future(self._through(left.pop(0), troubles, asked)))
                done, looking = await asyncio.wait(
                    looking, timeout=NEXT_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                found = [connection for one in done if (connection := one.result()) is not None]
                if found:
                    asked[:] = [one for one in asked if one is not found[0]]
                    return found[0]
            return None
        finally:
            for one in looking:
                one.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _through(self, address: str, troubles: list[str], asked: list[Connection]) -> Connection | None:
        """Return a connection to the primary that the node at an address names; None, and why, where it names none.

        Every connection goes to `asked`: other nodes say when there is a primary.
        """
        try:
            connection = await self._connect(address)
            asked.append(connection)
            told = await connection.who()
            if self._group and connection.group not in ("", self._group):  # which knows nothing of what was sent before
                troubles.append(f"{address}: it is of the group {connection.group}, not of {self._group} as before")
                return None
            if told is None or told.node == connection.node:
                if told is not None:
                    return connection
                troubles.append(f"{address}: it ended the connection")
                return None
            for member in told.config.members:
                known = self._via.get(member.name, member.address)
                if known not in self._addresses:
                    self._addresses.append(known)
                if member.node == told.node:
                    primary = await self._connect(known)
                    asked.append(primary)
                    said = await primary.who()
                    if said is not None and said.node == primary.node == member.node:
                        return primary
            troubles.append(
                f"{address}: it knows no primary" if told.node == NO_NODE else f"{address}: it names another"
            )
        except (OSError, HandshakeError) as exc:
            troubles.append(f"{address}: {exc}")
        return None

    async def _connect(self, address: str) -> Connection:
        tls = self._tls
        connection = await reach(address, name=self._name, own=self._id, purpose="commit", tls=tls, news=self._news)
        connection.watch(tls)
        return connection

    async def close(self) -> None:
        """End the connections, for ever: what waits hears that it ends, and nothing more is sent. Twice is harmless."""
        self._ended = True
        self._news.set()
        for connection in list(self._open):
            await connection.close()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def over(self, connection: Connection) -> None:
        """A transaction that had this connection is over."""
        self._open.discard(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncRemoteTransaction:
    """A transaction that is open at the primary; from `AsyncGroup.begin`. It has a connection of its own.

    Nothing of it is visible before `commit`. Leaving an `async with` block without a commit aborts it, and so does the
    end of its connection. Memory, here and at the primary: a few MiB. One task at a time.
    """

    def __init__(self, group: AsyncGroup, connection: Connection, packing: Packing, event_id: str, epoch: int) -> None:
        """For `AsyncGroup.begin` only."""
        self.packing = packing
        self._group = group
        self._connection = connection
        self._event_id = event_id
        self._epoch = epoch
        self._begun = False
        self._over = False
        self._told = connection.expect(_NUMBER)

    async def add(self, changes: Iterable[Change]) -> None:
        """Add changes, in order: all of them, or it is aborted, and nothing is written; also if the task is cancelled.

        Raises ValueError, TypeError, and as `changes`; NotPrimaryError if the reign is over, NoPrimaryError if the
        connection ended; CommitRefusedError, too, once it is over, which says nothing of what became of it.
        """
        self.check()
        async with self._whole():
            for fragment in self.packing.add(changes):
                await self.send(fragment)

    @contextlib.asynccontextmanager
    async def _whole(self) -> AsyncIterator[None]:
        """Abort it where the block is broken off: nobody could say which changes are in it."""
        try:
            yield
        except BaseException:
            await self.abort()
            raise

    def check(self) -> None:
        """Raise CommitRefusedError where it is over."""
        if self._over:
            raise CommitRefusedError(why=f"transaction {self._event_id!r} is over already", known=NOTHING_KNOWN)

    async def send(self, fragment: Fragment) -> None:
        """For `add`: send a fragment. Raises as that."""
        wire = self._connection.wire
        assert wire is not None
        try:
            _check_size(fragment)
        except CommitRefusedError:
            await self.abort()
            raise
        await wire.drained()
        if self._told.done():
            told = self._told.result()
            await self.abort()
            if told is None:
                raise self._lost()
            if isinstance(self._group.answered(self._connection, told), NotPrimary):
                raise NotPrimaryError(path=self._connection.address, known=NOTHING_WRITTEN)
        if not self._begun:
            self._begun = True
            wire.send(
                Begin(number=_NUMBER, event_id=self._event_id, source_id=fragment.source_id, tstamp=fragment.tstamp)
            )
        wire.send(Part(number=_NUMBER, raw=fragment.payload))

    async def commit(self, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """Commit it; as `AsyncGroup.commit`. Raises as `add`, too."""
        self.check()
        wish = _wish(w, wtimeout)
        async with self._whole():
            last = self.packing.finish()
            await self.send(last)
            return await self.end(last, wish)

    async def end(self, last: Fragment, wish: _Wish) -> Answer:
        """For `commit`: commit what was sent up to the last fragment."""
        commit, seen = _commit(_NUMBER, last, self._epoch, wish, shard=last.shard_id), self._group.seen
        wire = self._connection.wire
        try:
            if wire is None or not wire.send(commit):
                raise self._lost()
            answer = self._group.answered(self._connection, await self._told, commit=True)
        finally:
            await self.abort()
        if isinstance(answer, FailedOver):
            return msgspec.structs.replace(answer, event_id=self._event_id, after=seen)
        return answer

    def _lost(self) -> NoPrimaryError:
        why = f"the connection to {self._connection.address} ended before the commit"
        return NoPrimaryError(group=self._group.url, why=why)

    async def abort(self) -> None:
        """Abort it; does nothing if it has ended."""
        self._over = True
        self._group.over(self._connection)
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.abort()


def _with_margin(within_s: float | None) -> float | None:
    return None if within_s is None else within_s + MARGIN_S


async def _asked(connection: Connection, number: int, question: Packet, within_s: float | None) -> Packet | None:
    """Return what a node answers that has so many seconds for it, and None where it does not; None: without a limit."""
    try:
        return await connection.ask(number, question, within_s=_with_margin(within_s))
    except TimeoutError:
        return None


class LoopEndedError(ConnectionAbortedError):
    """The loop has ended, ends, or is a parent process's: what was to run there was not begun, or is not waited for."""


class LoopThread:
    """An event loop in a thread of its own, for programs that wait. Threads: any."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="group", daemon=True)
        self._lock = threading.Lock()
        self._ending = False
        self._process = os.getpid()
        self._thread.start()

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one in which the loop runs."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run work in the loop and return its result. Raises LoopEndedError, and as the work."""
        if self.foreign:
            work.close()
            raise LoopEndedError
        with self._lock:  # so that whatever is handed over stands before the end of the loop
            if self._ending:
                work.close()
                raise LoopEndedError
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except CancelledError:
            raise LoopEndedError from None

    def close(self) -> None:
        """End the thread. Closing twice is harmless."""
        self.end()

    def end(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run the last work, wait shortly for what it has ended, and end the thread. Ending twice is harmless, and so
        is ending in a forked process, where nothing is touched.
        """
        if self.foreign:
            return
        with self._lock:
            first, self._ending = not self._ending, True
        if first:
            try:
                asyncio.run_coroutine_threadsafe(_let_end(last), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if first:
            self._loop.close()


async def _let_end(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    """Run the last work, and cancel what runs in the loop even then.

    Connections that were cut are closed by the loop's next round.
    """
    if last is not None:
        await last()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=END_S)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


class RemoteGroup(Closing):
    """A group, for other programs; as `AsyncGroup`. Threads: any number may commit at once."""

    def __init__(self, url: str, pack: Pack, **options: Any) -> None:
        """As `AsyncGroup`."""
        self._group = AsyncGroup(url, pack, **options)
        self._loop = LoopThread()

    def _run(self, work: Coroutine[Any, Any, ResultT], known: str = NOTHING_WRITTEN) -> ResultT:
        """Run work; where the client is closed meanwhile, raise NoPrimaryError with what is known then."""
        try:
            return self._loop.run(work)
        except LoopEndedError:
            why = _FORKED if self._loop.foreign else _ENDED
            raise NoPrimaryError(group=self._group.url, why=why, known=known) from None

    def commit(
        self,
        changes: Iterable[Change],
        *,
        w: int | str | None = None,
        wtimeout: float | None = None,
        event_id: str | None = None,
    ) -> Answer:
        """As `AsyncGroup.commit`."""
        return self._run(self._group.commit(changes, w=w, wtimeout=wtimeout, event_id=event_id))

    def begin(self, *, event_id: str | None = None) -> RemoteTransaction:
        """As `AsyncGroup.begin`."""
        return RemoteTransaction(self._run(self._group.begin(event_id=event_id)), self._run)

    def ask(self, gtid: Gtid, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """As `AsyncGroup.ask`."""
        return self._run(self._group.ask(gtid, w=w, wtimeout=wtimeout), NOTHING_KNOWN)

    def find(self, event_id: str, *, after: Gtid | None = None, timeout: float = 10.0) -> FindResult:
        """As `AsyncGroup.find`."""
        return self._run(self._group.find(event_id, after=after, timeout=timeout), NOTHING_KNOWN)

    def wait(
        self, *, at_least: Gtid | None = None, within_ms: int | None = None, latest: bool = False, timeout: float = 10.0
    ) -> bool:
        """As `AsyncGroup.wait`."""
        waiting = self._group.wait(at_least=at_least, within_ms=within_ms, latest=latest, timeout=timeout)
        return self._run(waiting, NOTHING_KNOWN)

    def primary(self) -> str:
        """As `AsyncGroup.primary`."""
        return self._run(self._group.primary())

    def close(self) -> None:
        """End the connection; calls of other threads that still wait end as if it were lost. Twice is harmless."""
        self._loop.end(self._group.close)


class RemoteTransaction(Closing):
    """An open transaction, for other programs; as `AsyncRemoteTransaction`. Threads: one at a time."""

    def __init__(self, transaction: AsyncRemoteTransaction, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """For `RemoteGroup.begin` only."""
        self._transaction = transaction
        self._run = run

    def add(self, changes: Iterable[Change]) -> None:
        """As `AsyncRemoteTransaction.add`."""
        self._transaction.check()
        try:
            for fragment in self._transaction.packing.add(changes):
                self._run(self._transaction.send(fragment))
        except BaseException:
            self.close()
            raise

    def commit(self, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """As `AsyncRemoteTransaction.commit`."""
        answer: Answer = self._run(self._transaction.commit(w=w, wtimeout=wtimeout))
        return answer

    def close(self) -> None:
        """Abort it; does nothing if it has ended."""
        with contextlib.suppress(NoPrimaryError):  # the group's client was closed before
            self._run(self._transaction.abort())
