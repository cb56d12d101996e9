"""A client's connection to one node: questions, and their answers by number.

Source: docs/protocol.md, "Write concern".
"""

from __future__ import annotations

import asyncio
import ssl

from tranlog.ids import Gtid
from tranlog.replication.acting.links import Greeting, enter, greet
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import NO_NODE, ConfigId, NodeId
from tranlog.replication.rules.packets import NO_GTID, Join, Packet, Primary, Who
from tranlog.replication.rules.versions import SPOKEN


class Connection(Greeting):
    """A connection to one node, for questions that are answered by their numbers. From `reach`.

    `news` is set when the node says, unasked, who is primary now.
    """

    def __init__(self, news: asyncio.Event | None = None) -> None:
        super().__init__()
        self._news = news
        self.wire: Wire | None = None
        self.node = NO_NODE
        self.address = ""
        self.epoch = 0
        """The reign of the primary that it was found as."""
        self._waiting: dict[int, asyncio.Future[Packet | None]] = {}
        self._retired = False

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)
        waiting = self._waiting.pop(getattr(packet, "number", -1), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(packet)
        elif isinstance(packet, Primary) and self._news is not None:
            self._news.set()

    def lost(self, wire: Wire) -> None:
        super().lost(wire)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_open(self) -> bool:
        return self.wire is not None and not self.wire.gone.is_set()

    def expect(self, number: int) -> asyncio.Future[Packet | None]:
        """Wait for the answer with that number and return it; None if the connection ends before."""
        assert self.wire is not None
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self.wire.gone.is_set():
            waiting.set_result(None)
        return waiting

    async def ask(self, number: int, *packets: Packet) -> Packet | None:
        """Send packets, and return the answer with that number; None if the connection ends before it."""
        assert self.wire is not None
        waiting = self.expect(number)
        if not self.wire.send(*packets):
            self.wire.cut()
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close the connection once no task waits for an answer any more."""
        self._retired = True
        if self.wire is not None and not self._waiting:
            self.wire.cut()

    async def close(self) -> None:
        """End it."""
        if self.wire is not None:
            self.wire.cut()
            await self.wire.gone.wait()

    async def who(self) -> Primary | None:
        """Ask which node is primary; None if the connection ends before the answer."""
        told = await self.ask(0, Who(number=0))
        if not isinstance(told, Primary):
            return None
        self.epoch = told.epoch
        return told


async def reach(
    address: str,
    *,
    name: str,
    own: NodeId,
    purpose: str,
    tls: ssl.SSLContext | None,
    last: Gtid | None = None,
    from_event: str = "",
    news: asyncio.Event | None = None,
) -> Connection:
    """Connect to the node at an address as a client. Raises OSError, HandshakeError, ConfigError.

    `last`: the last transaction that a reader has, which the node checks against its log; None: no check.
    `from_event`: the event id of that transaction instead; the welcome names its GTID. `news`: as in `Connection`.
    """
    connection = Connection(news)
    wire, hello = await greet(address, connection, tls)
    connection.wire, connection.node, connection.address = wire, hello.node, address
    join = Join(
        node=own,
        node_name=name,
        purpose=purpose,
        versions=SPOKEN,
        config=ConfigId(),
        last=NO_GTID if last is None else last,
        heartbeat_ms=1000,
        from_event=from_event,
        force=last is None,
    )
    await enter(wire, connection, join)
    return connection
