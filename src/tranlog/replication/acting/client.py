"""A program's side of a group: transactions committed at whoever is primary, and questions about them.

Owns finding the primary through any node, and what an answer is. The hard idea: nothing is repeated here. A commit is
sent once, to a node that says it is primary; if its connection ends before the answer, the answer is that nobody
knows, which the program finds out with `ask`.

Source: tokumx-replication, "Write Concern"; docs/protocol.md, "Write concern".
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

from tranlog.change import Change, Fragment
from tranlog.closing import Closing
from tranlog.errors import CommitRefusedError, ConfigError, HandshakeError, NoPrimaryError
from tranlog.ids import Gtid
from tranlog.replication.acting.core_thread import REFUSED
from tranlog.replication.acting.links import Greeting, enter, greet
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules import concern
from tranlog.replication.rules.config import NO_NODE, ConfigId, NodeId
from tranlog.replication.rules.packets import (
    NO_GTID,
    PROTOCOL_VERSION,
    AskConcern,
    Begin,
    Commit,
    CommitAnswer,
    Join,
    Packet,
    Part,
    Primary,
    WaitConsistent,
    Who,
)

SCHEME = "thl://"
FIND_S = 10.0
"""So long is a primary looked for."""
_PAUSE_S = 0.05

Pack = Callable[[Iterable[Change], str], Sequence[Fragment]]
"""Makes the fragments of a transaction of its changes and its event id."""
ResultT = TypeVar("ResultT")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a transaction, as far as is known. Which it is, is its class.

    `gtid`: None where none is known. `written_to`: the names of the nodes that have it durable. `primary`: the name of
    the primary, empty where that is not known.
    """

    gtid: Gtid | None
    written_to: tuple[str, ...] = ()
    waited_s: float = 0.0
    primary: str = ""


class Satisfied(Answer, frozen=True):
    """It is in the log, and the write concern is met."""

    gtid: Gtid


class TimedOut(Answer, frozen=True):
    """It is in the primary's log, and the write concern was not met in time. It is not undone, and may be met yet."""

    gtid: Gtid


class NotPrimary(Answer, frozen=True):
    """Nothing was written: the node was not primary."""


class FailedOver(Answer, frozen=True):
    """Nobody knows: the reign or the connection ended before the answer came. It may be there or not; `ask` says."""


class RolledBack(Answer, frozen=True):
    """It is not in the group's log; it is in the rollback data of whoever took it."""

    gtid: Gtid


_KINDS: Mapping[str, type[Answer]] = {
    concern.SATISFIED: Satisfied,
    concern.TIMED_OUT: TimedOut,
    concern.NOT_PRIMARY: NotPrimary,
    concern.FAILED_OVER: FailedOver,
    concern.ROLLED_BACK: RolledBack,
}


def _answer(told: CommitAnswer) -> Answer:
    """Return an answer as a program has it. Raises CommitRefusedError."""
    if told.kind == REFUSED:
        raise CommitRefusedError(why=told.text)
    gtid = None if told.gtid == NO_GTID else told.gtid
    kind = FailedOver if told.kind == concern.NOT_PRIMARY and gtid is not None else _KINDS[told.kind]
    return kind(gtid=gtid, written_to=told.written_to, waited_s=told.waited_ms / 1000, primary=told.primary)


class Connection(Greeting):
    """A connection to one node, for questions that are answered by their numbers. From `reach`."""

    def __init__(self) -> None:
        super().__init__()
        self.wire: Wire | None = None
        self.node = NO_NODE
        self._waiting: dict[int, asyncio.Future[Packet | None]] = {}

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)
        waiting = self._waiting.pop(getattr(packet, "number", -1), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(packet)

    def lost(self, wire: Wire) -> None:
        super().lost(wire)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_open(self) -> bool:
        return self.wire is not None and not self.wire.gone.is_set()

    async def ask(self, number: int, *packets: Packet) -> Packet | None:
        """Send packets, and return the answer of that number; None where the connection ended before it came."""
        assert self.wire is not None
        waiting: asyncio.Future[Packet | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        if not all([self.wire.send(packet) for packet in packets]):
            self.wire.cut()
        if self.wire.gone.is_set():
            return None
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End it."""
        if self.wire is not None:
            self.wire.cut()
            await self.wire.gone.wait()

    async def who(self) -> Primary | None:
        """Ask who is primary; None where the connection ended before the answer."""
        told = await self.ask(0, Who(number=0))
        return told if isinstance(told, Primary) else None


async def reach(
    address: str, *, name: str, own: NodeId, purpose: str, tls: ssl.SSLContext | None, last: Gtid | None = None
) -> Connection:
    """Connect to the node at an address as a client. Raises OSError, HandshakeError, ConfigError.

    `last`: the last transaction that a reader has, which the node's log must go on from; None: nothing is held against
    its log.
    """
    connection = Connection()
    wire, hello = await greet(address, connection, tls)
    connection.wire, connection.node = wire, hello.node
    join = Join(
        node=own,
        node_name=name,
        purpose=purpose,
        versions=(PROTOCOL_VERSION,),
        config=ConfigId(),
        last=NO_GTID if last is None else last,
        heartbeat_ms=1000,
        force=last is None,
    )
    await enter(wire, connection, join)
    return connection


def addresses_of(url: str) -> list[str]:
    """Return the addresses in `thl://HOST:PORT,HOST:PORT`. Raises ConfigError for another text."""
    addresses = [one for one in url.removeprefix(SCHEME).rstrip("/").split(",") if one]
    if not url.startswith(SCHEME) or not addresses:
        raise ConfigError(option="url", value=url, why="reads thl://HOST:PORT,HOST:PORT")
    return addresses


class AsyncGroup:
    """A group, for programs of asyncio. Any number of tasks may commit at once, and share the group's syncs."""

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
        self._find_s = find_s
        self._addresses = addresses_of(url)
        self._numbers = itertools.count(1)
        self._id = NodeId(secrets.token_hex(8))
        self._connection: Connection | None = None
        self._finding = asyncio.Lock()

    async def commit(
        self,
        changes: Iterable[Change],
        *,
        w: int | str | None = None,
        wtimeout: float | None = None,
        event_id: str | None = None,
    ) -> Answer:
        """Commit a transaction at the primary; return what became of it.

        `w`: 0, a number of durable copies, "majority", or the name of a tag rule; `wtimeout`, seconds, 0 for ever; None
        for either: as the group has it. Raises NoPrimaryError, CommitRefusedError, ValueError: nothing was written.
        """
        fragments = self._pack(changes, secrets.token_hex(16) if event_id is None else event_id)
        last, number = fragments[-1], next(self._numbers)
        begin = Begin(number=number, shard=last.shard_id)
        parts = [Part(number=number, raw=one.payload) for one in fragments]
        commit = Commit(
            number=number,
            event_id=last.event_id,
            w="" if w is None else w,
            wtimeout_ms=_ms(wtimeout),
            source_id=last.source_id,
            tstamp=last.tstamp,
            tables=last.tables,
        )
        return await self._concerned(number, begin, *parts, commit)

    async def ask(self, gtid: Gtid, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """Ask the primary whether `w` is met for a transaction; as `commit`."""
        number = next(self._numbers)
        asked = AskConcern(number=number, gtid=gtid, w="" if w is None else w, wtimeout_ms=_ms(wtimeout))
        return await self._concerned(number, asked)

    async def wait(self, *, at_least: Gtid, timeout: float = 10.0) -> bool:
        """Wait until everything up to `at_least` is committed at the primary; False where it is not in time.

        Raises NoPrimaryError.
        """
        number = next(self._numbers)
        kind = "at_least"
        wanted = WaitConsistent(number=number, kind=kind, gtid=at_least, timeout_ms=max(_ms(timeout), 1))
        return isinstance(await self._concerned(number, wanted), Satisfied)

    async def primary(self) -> str:
        """Return the name of the primary. Raises NoPrimaryError."""
        connection = await self._primary()
        return (await connection.hello).node_name

    async def _concerned(self, number: int, *packets: Packet) -> Answer:
        connection = await self._primary()
        told = await connection.ask(number, *packets)
        if not isinstance(told, CommitAnswer):
            return FailedOver(gtid=None)
        if told.kind in (concern.NOT_PRIMARY, concern.FAILED_OVER) and self._connection is connection:
            self._forget()
        return _answer(told)

    def _forget(self) -> None:
        """Look for the primary anew; who waits for an answer of the former one goes on waiting."""
        self._connection = None

    async def _primary(self) -> Connection:
        """Return a connection to the primary. Raises NoPrimaryError."""
        async with self._finding:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            loop = asyncio.get_running_loop()
            until = loop.time() + self._find_s
            while True:
                troubles: list[str] = []
                for address in list(self._addresses):
                    found = await self._through(address, troubles)
                    if found is not None:
                        self._connection = found
                        return found
                if loop.time() >= until:
                    raise NoPrimaryError(group=self.url, why="; ".join(troubles))
                await asyncio.sleep(_PAUSE_S)

    async def _through(self, address: str, troubles: list[str]) -> Connection | None:
        """Return a connection to the primary that the node at an address names; None, and why, where it names none."""
        try:
            connection = await self._connect(address)
            told = await connection.who()
            if told is None or told.node == connection.node:
                if told is not None:
                    return connection
                troubles.append(f"{address}: it ended the connection")
                return None
            assert connection.wire is not None
            connection.wire.cut()
            for member in told.config.members:
                known = self._via.get(member.name, member.address)
                if known not in self._addresses:
                    self._addresses.append(known)
                if member.node == told.node:
                    primary = await self._connect(known)
                    said = await primary.who()
                    if said is not None and said.node == primary.node == member.node:
                        return primary
                    if primary.wire is not None:
                        primary.wire.cut()
            troubles.append(
                f"{address}: it knows no primary" if told.node == NO_NODE else f"{address}: it names another"
            )
        except (OSError, HandshakeError) as exc:
            troubles.append(f"{address}: {exc}")
        return None

    async def _connect(self, address: str) -> Connection:
        return await reach(address, name=self._name, own=self._id, purpose="commit", tls=self._tls)

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1000)


class LoopThread:
    """An event loop in a thread of its own, for programs that wait. Threads: any."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="group", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return what comes of work in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the last work, and end the thread; a second time is harmless."""
        if not self._loop.is_closed():
            self.run(last())
            self.close()

    def close(self) -> None:
        """End the thread; a second time is harmless."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(_let_end())
            self._loop.close()


async def _let_end() -> None:
    """Cancel what still runs in the loop; connections that were cut are closed by the loop's next round."""
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
        self._run = self._loop.run

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

    def ask(self, gtid: Gtid, *, w: int | str | None = None, wtimeout: float | None = None) -> Answer:
        """As `AsyncGroup.ask`."""
        return self._run(self._group.ask(gtid, w=w, wtimeout=wtimeout))

    def wait(self, *, at_least: Gtid, timeout: float = 10.0) -> bool:
        """As `AsyncGroup.wait`."""
        return self._run(self._group.wait(at_least=at_least, timeout=timeout))

    def primary(self) -> str:
        """As `AsyncGroup.primary`."""
        return self._run(self._group.primary())

    def close(self) -> None:
        """End the connection. A second time is harmless."""
        self._loop.end(self._group.close)
