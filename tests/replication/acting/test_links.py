"""replication/acting/links.py: whoever gives up a handshake leaves no connection behind.

docs/protocol.md, "Frames".
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tranlog.replication.acting import transport
from tranlog.replication.acting.entrance import Entrance
from tranlog.replication.acting.links import Greeting, enter, greet, pauses
from tranlog.replication.acting.transport import Wire, dial
from tranlog.replication.rules.config import ConfigId, NodeId
from tranlog.replication.rules.packets import NO_GTID, Join, Packet, Welcome

JOIN = Join(
    node=NodeId("n"), node_name="n", purpose="read", versions=(1,), config=ConfigId(), last=NO_GTID, heartbeat_ms=250
)


class Silent:
    """A server that says nothing."""

    def __init__(self) -> None:
        self.there, self.gone = asyncio.Event(), asyncio.Event()

    def met(self, wire: Wire) -> None:
        self.there.set()

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)

    def lost(self, wire: Wire) -> None:
        self.gone.set()


def test_pauses_double_up_to_a_bound() -> None:
    assert list(itertools.islice(pauses(), 8)) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_handshake_that_is_given_up_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WITHIN_S", 3600)  # the server does not end it

    async def given_up(*, entering: bool) -> None:
        silent = Silent()
        entrance = Entrance("127.0.0.1:0", silent, None)
        await entrance.open()
        address = f"127.0.0.1:{entrance.port}"
        greeting = Greeting()

        async def shake() -> None:
            if entering:
                await enter(await dial(address, greeting, None), greeting, JOIN)
            else:
                await greet(address, greeting, None)

        shaking = asyncio.ensure_future(shake())
        await asyncio.wait_for(silent.there.wait(), 60)
        while not shaking.done():
            shaking.cancel()  # again: one that comes while it connects may be swallowed
            await asyncio.wait([shaking], timeout=0.1)
        await asyncio.wait_for(silent.gone.wait(), 60)
        entrance.close()
        await entrance.end()

    asyncio.run(given_up(entering=False))
    asyncio.run(given_up(entering=True))


def test_a_handshake_that_is_given_up_as_its_welcome_comes_is_given_up() -> None:
    """A link that was closed would otherwise go on."""

    async def given_up() -> None:
        silent = Silent()
        entrance = Entrance("127.0.0.1:0", silent, None)
        await entrance.open()
        greeting = Greeting()
        wire = await dial(f"127.0.0.1:{entrance.port}", greeting, None)
        entering = asyncio.ensure_future(enter(wire, greeting, JOIN))
        await asyncio.sleep(0)
        greeting.welcome.set_result(Welcome(first=NO_GTID, last=NO_GTID, version=1))
        entering.cancel()
        await asyncio.wait([entering], timeout=60)
        assert entering.cancelled()
        await asyncio.wait_for(silent.gone.wait(), 60)
        entrance.close()
        await entrance.end()

    asyncio.run(given_up())
