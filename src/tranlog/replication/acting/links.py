"""The connections that a node makes to the others of its group, one each, over which it sends.

Owns when they are dialled, and the checks of the node that answers. Packets sent while there is no connection are lost,
which the rules expect. The hard idea: a node that cannot be reached is tried again after a pause that doubles. A packet
from it, over its own connection, ends the pause.

Source: docs/protocol.md, "Frames", "Handshake".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from tranlog.errors import ConfigError, HandshakeError
from tranlog.replication.acting.transport import Wire, dial, one_line
from tranlog.replication.rules.config import GroupConfig, Member, NodeId
from tranlog.replication.rules.packets import FIRST_WITHIN_S, Hello, Join, JoinRefused, Packet, Welcome
from tranlog.replication.rules.versions import SPOKEN, Versions, versions_differ
from tranlog.tls import why_ended

logger = logging.getLogger(__name__)

_PAUSE_S, _PAUSE_MOST_S = 0.05, 2.0
_LOOK_S = 1.0
VOTE = "vote"
"""The purpose of a connection between two nodes."""


def pauses() -> Iterator[float]:
    """Yield the pauses before one more try, in seconds: each twice the last one, up to a bound."""
    pause = _PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, _PAUSE_MOST_S)


def differ(process: int, other: int) -> bool:
    """Whether two processes are known to be different."""
    return 0 not in (process, other) and process != other


class LinkOwner(Protocol):
    """The node that has the links."""

    def join(self) -> Join:
        """Return the Join packet of this node."""

    def hello_refused(self, hello: Hello, member: Member) -> str:
        """Return why the node that answered is not that member; empty if it is."""

    def took(self, wire: Wire, packet: Packet, size: int) -> None:
        """A packet of the other node came."""

    def reached(self, member: Member, hello: Hello) -> None:
        """A member answered at its address, with this welcome."""

    def unreachable(self, node: NodeId) -> None:
        """No process listens at that node's address."""


_PERHAPS_TLS = "; it said nothing before, and may expect TLS, for which this end has no certificate"


class Greeting:
    """The client's side of a handshake: the `Taker` of a connection until the server has welcomed it, and after."""

    def __init__(self) -> None:
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    def met(self, wire: Wire) -> None:
        """The server speaks first."""

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        """Take the server's packets of the handshake, in order; later ones go to `heard`."""
        if self.welcome.done():
            self.heard(wire, packet, size)
            return
        wire.done(size)
        if isinstance(packet, Hello) and not self.hello.done():
            self.hello.set_result(packet)
        elif isinstance(packet, Welcome) and self.hello.done():
            self.welcome.set_result(packet)
        elif isinstance(packet, JoinRefused):
            self._fail(one_line(packet.text))
        else:
            wire.end(f"{type(packet).__name__} instead of a handshake")

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        """A packet came after the handshake."""
        wire.done(size)

    def lost(self, wire: Wire) -> None:
        """The connection ended."""
        self._fail(wire.why)

    def _fail(self, why: str) -> None:
        for one in (self.hello, self.welcome):
            if not one.done():
                one.set_exception(HandshakeError(where="", why=why))
                one.exception()  # whoever waits for it raises it; nobody may wait


async def greet(
    address: str, greeting: Greeting, tls: ssl.SSLContext | None, versions: Versions = SPOKEN
) -> tuple[Wire, Hello]:
    """Connect, and return the connection with the server's first word. Raises OSError, HandshakeError, ConfigError."""
    wire = await dial(address, greeting, tls)
    try:
        hello = await greeting.hello  # the wire ends without it
    except BaseException as exc:
        wire.cut()
        if isinstance(exc, HandshakeError):
            hint = _PERHAPS_TLS if tls is None and not wire.spoke else ""
            raise HandshakeError(where=address, why=f"{exc.why}{hint}") from None
        raise
    version = versions.agreed(hello.versions)
    if version is None:
        refuse(wire, versions_differ("it", versions, "this end", hello.versions))
        why = versions_differ("it", hello.versions, "this end", versions)
        raise HandshakeError(where=address, why=why)
    wire.version = version
    return wire, hello


def refuse(wire: Wire, why: str) -> None:
    """End a connection whose server is not the expected node, and tell it why."""
    wire.send(JoinRefused(text=f"the other end refused this one: {why}"))
    wire.end(why, warn=False)


async def enter(wire: Wire, greeting: Greeting, join: Join) -> Welcome:
    """Send the Join, and return the server's welcome. Raises HandshakeError."""
    wire.send(join)
    try:
        async with asyncio.timeout(FIRST_WITHIN_S):
            return await greeting.welcome
    except BaseException as exc:
        wire.cut()
        if isinstance(exc, HandshakeError | TimeoutError):
            why = exc.why if isinstance(exc, HandshakeError) else "it gave no welcome in time"
            raise HandshakeError(where=wire.where, why=why) from None
        raise


class _PeerGreeting(Greeting):
    def __init__(self, owner: LinkOwner) -> None:
        super().__init__()
        self._owner = owner

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        self._owner.took(wire, packet, size)


class Link:
    """The connection to one member."""

    def __init__(self, member: Member, address: str, owner: LinkOwner, tls: ssl.SSLContext | None) -> None:
        self.member = member
        self.address = address
        self.wire: Wire | None = None
        """To whoever answered at the address, whose `process` it tells."""
        self.why = "not connected yet"
        self.since = asyncio.get_running_loop().time()
        """Since when there is a connection, or none."""
        self._owner = owner
        self._tls = tls
        self._word = asyncio.Event()
        self._told = ""
        self._task = asyncio.ensure_future(self._keep())

    def hurry(self) -> None:
        """A packet came from the other node: try to connect now."""
        if self.wire is None:
            self._word.set()

    def close(self) -> asyncio.Task[None]:
        """Close the connection; the returned task is done then."""
        self._task.cancel()
        if self.wire is not None:
            self.wire.cut()
        return self._task

    async def _keep(self) -> None:
        waits = pauses()
        while True:
            try:
                await self._connect()
                waits = pauses()
                assert self.wire is not None
                await self.wire.gone.wait()
                self._trouble(self.wire.why)
                self.wire, self.since = None, asyncio.get_running_loop().time()
                continue
            except ConnectionRefusedError as exc:
                self._trouble(f"connecting to it was refused: {exc.strerror or exc}")
                self._owner.unreachable(self.member.node)
            except (OSError, HandshakeError, ConfigError) as exc:
                self._trouble(why_ended(exc))
            self._word.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(next(waits)):
                    await self._word.wait()

    async def _connect(self) -> None:
        greeting, join = _PeerGreeting(self._owner), self._owner.join()
        wire, hello = await greet(self.address, greeting, self._tls, Versions(*join.versions))
        why = wire.certified_otherwise(self.member.name) or self._owner.hello_refused(hello, self.member)
        if why:
            refuse(wire, why)
            raise HandshakeError(where=self.address, why=why)
        wire.peer, wire.purpose, wire.process = self.member.node, VOTE, hello.process
        await enter(wire, greeting, join)
        self.wire, self.why, self._told = wire, "", ""
        self.since = asyncio.get_running_loop().time()
        logger.info("Connected. node=%s at=%s", self.member.name, self.address)
        self._owner.reached(self.member, hello)

    async def process_there(self) -> int:
        """Return which process of the node answers at its address now; 0 if none answers soon."""
        try:
            async with asyncio.timeout(_LOOK_S):
                wire, hello = await greet(self.address, Greeting(), self._tls)
        except (OSError, HandshakeError, ConfigError):
            return 0
        wire.cut()
        return hello.process if hello.node == self.member.node else 0

    def _trouble(self, why: str) -> None:
        """Say once what is wrong."""
        self.why = why
        if why != self._told:
            self._told = why
            logger.warning("No connection. node=%s at=%s why=%s", self.member.name, self.address, why)


class Links:
    """The connections to all other members."""

    def __init__(self, owner: LinkOwner, via: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        """`via` says for a node's name at which address to reach it instead of the group's."""
        self.links: dict[NodeId, Link] = {}
        self.heard: dict[NodeId, float] = {}
        self._owner = owner
        self._via = via
        self._tls = tls

    def settle(self, config: GroupConfig, own: NodeId) -> None:
        """Keep a link to each member except this node."""
        wanted = {member.node: member for member in config.members if member.node != own}
        for node, link in list(self.links.items()):
            if node not in wanted or self.address(wanted[node]) != link.address:
                link.close()
                del self.links[node]
        for node, member in wanted.items():
            if node not in self.links:
                self.links[node] = Link(member, self.address(member), self._owner, self._tls)

    def address(self, member: Member) -> str:
        """Return the address at which this node reaches a member."""
        return self._via.get(member.name, member.address)

    def send(self, to: NodeId, packet: Packet) -> bool:
        """Send a packet; return False if it cannot be sent now."""
        link = self.links.get(to)
        return link is not None and link.wire is not None and link.wire.send(packet)

    def end_silent(self, before: float, perhaps: str) -> None:
        """End the connections to nodes that were not heard since a moment of the loop's clock, and say why perhaps."""
        for node, link in self.links.items():
            if link.wire is not None and max(link.since, self.heard.get(node, 0.0)) < before:
                link.wire.why = f"it was silent for too long{perhaps}"
                link.wire.cut()

    def trouble(self, node: NodeId, before: float) -> str:
        """Return why there is no connection to a member. It may have moved where it is heard since a moment, and had
        no connection before that.
        """
        link = self.links[node]
        if link.wire is None and link.since < before < self.heard.get(node, 0.0):
            return f"{link.why}, and yet it runs; if it moved: tranlog group add {link.member.name} HOST:PORT"
        return link.why

    def hurry(self, node: NodeId) -> None:
        """A packet came from that node: try to connect to it now."""
        if node in self.links:
            self.links[node].hurry()

    async def close(self) -> None:
        """End all of them."""
        ending = [link.close() for link in self.links.values()]
        if ending:
            await asyncio.wait(ending, timeout=1.0)
        await asyncio.sleep(0)  # what was cut is closed
