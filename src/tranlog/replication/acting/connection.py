"""A client's connection to one node: questions, their answers by number, and whether the node is still there.

Owns how long a silent node is waited for, and that a client's own haste never ends its connection. The hard idea: a
node that reads nothing for a while, because its disk or a follower is slow, is alive; one that is frozen or gone looks
the same at this connection. So before a silent one is cut, the node is tried by another connection.

Source: docs/protocol.md, "Who is primary", "Write concern".
"""

from __future__ import annotations

import asyncio
import ssl

from tranlog.errors import ConfigError, HandshakeError
from tranlog.ids import Gtid
from tranlog.replication.acting.links import Greeting, differ, enter, greet
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import NO_NODE, ConfigId, NodeId
from tranlog.replication.rules.packets import NO_GTID, Join, Packet, Primary, Who
from tranlog.replication.rules.versions import SPOKEN

LOOK_S = 1.0
"""So often a node that is waited for is asked for a sign of life."""
QUIET_S = 3.0
"""One that was not heard for so long is tried by another connection, """
TRY_S = 2.0
"""which it has to answer within this."""
ASKED_MAX = 8_192
"""So many questions and commits wait for a node at once, the others here: it ends a connection with many more."""
_AT_ONCE = 3
"""So many packets are sent without a look at what waits to be sent: those of nearly every transaction."""
_ALIVE = (1 << 63) - 1
"""The number of the questions that want nothing but a sign of life."""


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
        self.group = ""
        """The id of its node's group, empty where that is in none or was not asked."""
        self._tls: ssl.SSLContext | None = None
        self._watches = False
        self._watching: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Packet | None]] = {}
        self._retired = False
        self._room = asyncio.Semaphore(ASKED_MAX)
        self._sending = asyncio.Lock()

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)
        number = getattr(packet, "number", -1)
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(packet)
        elif isinstance(packet, Primary) and number != _ALIVE and self._news is not None:
            self._news.set()

    def lost(self, wire: Wire) -> None:
        super().lost(wire)
        if self._watching is not None:
            self._watching.cancel()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_open(self) -> bool:
        """Whether something may be asked over it."""
        return self.wire is not None and not self.wire.gone.is_set() and not self._retired

    def expect(self, number: int) -> asyncio.Future[Packet | None]:
        """Wait for the answer with that number and return it; None if the connection ends before."""
        assert self.wire is not None
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self.wire.gone.is_set():
            waiting.set_result(None)
        elif self._watches and (self._watching is None or self._watching.done()):
            self._watching = asyncio.ensure_future(self._watch(self.wire))
        return waiting

    async def ask(self, number: int, *packets: Packet, within_s: float | None = None) -> Packet | None:
        """Send packets, and return the answer with that number; None if the connection ends before it.

        None, too, where for so many seconds nothing could be sent or, after that, no answer came; nothing new is asked
        over the connection then. Raises TimeoutError where this is so before anything was sent.
        """
        wire = self.wire
        assert wire is not None
        waiting, begun, sent = self.expect(number), False, False
        try:
            async with asyncio.timeout(within_s) as limit, self._room:
                async with self._sending:  # one transaction's packets together: a node keeps those of one at a time
                    at_once = len(packets) <= _AT_ONCE
                    for lot in [packets] if at_once else [(packet,) for packet in packets]:
                        await wire.drained()
                        begun = True
                        wire.send(*lot)  # False where the connection has ended, as `waiting` says
                        _begin_again(limit, within_s)
                    sent = True
                if within_s is not None:
                    await wire.drained()
                    _begin_again(limit, within_s)
                return await waiting
        except TimeoutError:
            if not begun:
                raise
            if waiting.done() and not waiting.cancelled():
                return waiting.result()  # in the last moment
            self._retired = True
            return None
        finally:
            self._waiting.pop(number, None)
            if begun and not sent:
                self._retired = True  # the node has the beginning of a transaction
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
        self.epoch, self.group = told.epoch, told.config.group
        return told

    def watch(self, tls: ssl.SSLContext | None) -> None:
        """From now on, cut it where something is waited for and the node is silent. `tls`: as for `reach`."""
        self._watches, self._tls = True, tls

    async def _watch(self, wire: Wire) -> None:
        """Ask for a sign of life while anything is waited for."""
        loop = asyncio.get_running_loop()
        since, asked = loop.time(), 0.0
        while not wire.gone.is_set():
            await asyncio.sleep(LOOK_S)
            if not self._waiting:
                return
            since = max(since, wire.heard)
            if loop.time() - since >= QUIET_S:
                if not await self._answers_elsewhere() and wire.heard <= since:
                    wire.why = f"it was silent for {loop.time() - since:.1f} s"
                    wire.cut()
                    return
                since = loop.time()
            if wire.heard >= asked:
                asked = loop.time()
                wire.send(Who(number=_ALIVE))

    async def _answers_elsewhere(self) -> bool:
        """Whether the same process answers at its address, over another connection."""
        try:
            async with asyncio.timeout(TRY_S):
                wire, hello = await greet(self.address, Greeting(), self._tls)
        except (OSError, HandshakeError, ConfigError):
            return False
        wire.cut()
        return hello.node == self.node and not differ((await self.hello).process, hello.process)


def _begin_again(limit: asyncio.Timeout, within_s: float | None) -> None:
    if within_s is not None:
        limit.reschedule(asyncio.get_running_loop().time() + within_s)


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
