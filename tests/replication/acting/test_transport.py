"""replication/acting/transport.py: packets over a connection, whatever the pieces, and what a peer can cost.

docs/protocol.md, "Frames".
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine
from typing import Any

import pytest

from fix_group import gtid
from tranlog.errors import ConfigError
from tranlog.replication.acting import transport
from tranlog.replication.acting.entrance import Entrance
from tranlog.replication.acting.transport import UNREAD_MAX, UNSENT_MAX, Wire, dial, one_line
from tranlog.replication.rules.packets import CHECKED_SINCE, FIRST_BYTES_MAX, Ack, Lead, Packet, Part, Records, encode

ACK = Ack(durable=gtid(3, 17), epoch=3)
LARGE = Part(number=1, raw=b"x" * 1_000_000)
MANY = 40


class Kept:
    """Keeps what comes; says that it was dealt with at once, unless it is `busy`."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.wires: list[Wire] = []
        self.packets: list[Packet] = []
        self.sizes: list[int] = []
        self.ended = asyncio.Event()

    def met(self, wire: Wire) -> None:
        self.wires.append(wire)

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        self.packets.append(packet)
        self.sizes.append(size)
        if not self.busy:
            wire.done(size)

    def lost(self, wire: Wire) -> None:
        self.ended.set()

    async def count(self, packets: int) -> list[Packet]:
        """Return the packets when there are so many."""
        while len(self.packets) < packets:
            await asyncio.sleep(0.005)
        return self.packets


class Line:
    """A server with a taker, and a bare connection to it."""

    def __init__(self, taker: Kept) -> None:
        self.taker = taker

    async def __aenter__(self) -> Line:
        self._entrance = Entrance("127.0.0.1:0", self.taker, None)
        await self._entrance.open()
        self.address = f"127.0.0.1:{self._entrance.port}"
        self.reader, self.writer = await asyncio.open_connection(*self.address.split(":"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        self._entrance.close()
        for wire in self.taker.wires:
            wire.cut()
        await self._entrance.end()


def play(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_packets_come_whole_whatever_the_pieces(step: int) -> None:
    async def work() -> None:
        async with Line(Kept()) as line:
            sent = [ACK, Lead(epoch=7), LARGE if step > 10 else Part(number=1, raw=b"short"), ACK]
            raw = b"".join(map(encode, sent))
            for at in range(0, len(raw), step):
                line.writer.write(raw[at : at + step])
                await line.writer.drain()
            assert await line.taker.count(len(sent)) == sent
            assert sum(line.taker.sizes) == len(raw)

    play(work())


def test_both_ends_speak() -> None:
    async def work() -> None:
        here, there = Kept(), Kept()
        async with Line(there) as line:
            wire = await dial(line.address, here, None)
            assert wire.send(ACK)
            assert await there.count(1) == [ACK]
            assert there.wires[-1].send(ACK) and there.wires[-1].send(LARGE)
            assert await here.count(2) == [ACK, LARGE]
            wire.version = there.wires[-1].version = CHECKED_SINCE
            assert wire.send(LARGE, ACK) and there.wires[-1].send(ACK)
            assert await there.count(3) == [ACK, LARGE, ACK] and await here.count(3) == [ACK, LARGE, ACK]
            assert there.sizes[1:] == [len(encode(LARGE, checked=True)), len(encode(ACK, checked=True))]
            wire.end("enough", warn=False)
            await there.ended.wait()
            assert not wire.send(ACK), "it has ended"

    play(work())


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "there is no such kind"),
        (struct.pack(">IBBH", FIRST_BYTES_MAX + 1, 19, 0, 0), "at most 65536 are allowed"),
        (encode(ACK) + struct.pack(">IBBH", 1 << 31, 19, 0, 0), "at most 1048576 are allowed"),
        (encode(ACK) + struct.pack(">IBBH", 1 << 31, 11, 0, 0), "at most 5242880 are allowed"),
        (struct.pack(">IBBH", 4, 14, 2, 0) + b"\x90" * 4, "bytes that must be zero are not"),
        (encode(ACK, checked=True) + encode(ACK), "it has no checksum, and those before it had one"),
        (encode(ACK, checked=True)[:-1] + b"\x7f", "its checksum is wrong"),
        (struct.pack(">IBBH", 4, 14, 0, 0) + b"\xc1" * 4, "a packet (Ack) cannot be read"),
    ],
)
def test_what_is_no_packet_ends_the_connection_with_one_line(
    raw: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with Line(Kept()) as line:
            line.writer.write(raw + b"more of it" * 100)
            assert await line.reader.read() == b"", "the server ends it"
            await line.taker.ended.wait()

    with caplog.at_level(logging.INFO, logger="tranlog"):
        play(work())
    (line,) = [record.getMessage() for record in caplog.records]
    assert why in line and "peer=127.0.0.1:" in line


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(transport, "FIRST_WITHIN_S", 0.05)

    async def work() -> None:
        async with Line(Kept()) as line:
            line.writer.write(encode(ACK)[:-1])
            assert await line.reader.read() == b""
            await line.taker.ended.wait()

    play(work())
    assert "no packet came within" in caplog.text


@pytest.mark.long
def test_a_sender_waits_for_a_taker_that_does_not_keep_up() -> None:
    """What is unread is bounded; when it was dealt with, the rest comes."""

    async def work() -> None:
        async with Line(Kept(busy=True)) as line:
            raw = encode(LARGE)
            line.writer.write(encode(ACK))

            async def write() -> None:
                for _ in range(MANY):
                    line.writer.write(raw)
                    await line.writer.drain()

            writing = asyncio.ensure_future(write())
            while sum(line.taker.sizes) <= UNREAD_MAX:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.2)
            assert sum(line.taker.sizes) <= UNREAD_MAX + len(raw) + len(encode(ACK))
            line.taker.busy = False
            wire = line.taker.wires[0]
            for size in list(line.taker.sizes):
                wire.done(size)
            assert len(await line.taker.count(MANY + 1)) == MANY + 1
            await writing

    play(work())


@pytest.mark.long
def test_nothing_is_kept_for_who_does_not_read() -> None:
    async def work() -> None:
        async with Line(Kept()) as line:
            line.writer.write(encode(ACK))
            await line.taker.count(1)
            records = Records(
                number=1, after=gtid(1, 1), last=gtid(1, 2), committed=gtid(1, 1), epoch=1, part=0, raw=bytes(1_000_000)
            )
            sent = 0
            while line.taker.wires[0].send(records):
                sent += 1
                assert sent < 200
            assert sent * 1_000_000 >= UNSENT_MAX

    play(work())


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:99999"])
def test_what_is_no_address_is_named(address: str) -> None:
    async def work() -> None:
        with pytest.raises(ConfigError, match="must be HOST:PORT"):
            await dial(address, Kept(), None)
        with pytest.raises(ConfigError, match="must be HOST:PORT"):
            Entrance(address, Kept(), None)

    play(work())


def test_what_somebody_says_is_one_line() -> None:
    assert one_line("a\nA connection was ended.\x1b[0m é") == "a?A connection was ended.?[0m é"
    assert len(one_line("x" * 100_000)) == 1_000


def test_the_system_looks_whether_the_other_end_is_there() -> None:
    """At both ends: whoever vanishes without a word keeps no place at a node for ever."""

    async def work() -> None:
        there = Kept()
        async with Line(there) as line:
            wire = await dial(line.address, Kept(), None)
            while len(there.wires) < 2:
                await asyncio.sleep(0.005)
            for one in (wire, there.wires[-1]):
                end = one._transport.get_extra_info("socket")
                for level, option, value in transport.KEEP_ALIVE:
                    assert end.getsockopt(level, option) == value
            wire.cut()

    play(work())
