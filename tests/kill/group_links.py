"""The links between the nodes of `make group-kill`: a proxy for each node that reaches another, and its weather.

Owns what happens to bytes on their way: held, delayed, slowed, harmed. A node listens where it always does; the others
reach it through a port of the proxy's. What both ways of a pair have in common is the pair's weather, one for each
direction. The hard idea: what a node has sent is looked at before anything happens to it, so `WireJudge` sees each
sender's own words, whatever reaches the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tranlog.replication.acting.client import LoopThread
from tranlog.replication.rules.packets import FRAME, KINDS, Ack, Heartbeat, Vote, Voted, decode, frame_size
from tranlog.testing.servers import free_port

Way = tuple[str, str]
"""From one node to another."""
LOOK_S = 0.02
TLS_HANDSHAKE = 22
"""The first byte of each end that speaks TLS; a frame of ours never begins with it."""
_READ_BYTES = 64 << 10


@dataclass(slots=True)
class Weather:
    """What happens to bytes on one way. `flips`: the part of the reads in which a byte is harmed."""

    cut: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    flips: float = 0.0


class Proxies:
    """A proxy for each way to a node. Threads: any."""

    def __init__(self, ports: Mapping[str, int], seed: int) -> None:
        """`ports`: where each node listens."""
        self.judge = WireJudge()
        self.ways: list[Way] = list(itertools.permutations(ports, 2))
        self.ports = {way: free_port() for way in self.ways}
        self.weather = {way: Weather() for way in self.ways}
        self.flipped = 0
        self._nodes = dict(ports)
        self._rng = random.Random(seed)
        self._loop = LoopThread()
        self._servers: dict[Way, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def at(self, name: str) -> dict[str, str]:
        """Return where a node reaches each of the others."""
        return {other: f"127.0.0.1:{port}" for (one, other), port in self.ports.items() if one == name}

    def open(self, name: str) -> None:
        """Let others connect to a node: its process is there."""
        self._loop.run(self._open(name))

    def shut(self, name: str) -> None:
        """Refuse connections to a node, as the system does when its process has gone."""
        self._loop.run(self._shut(name))

    def clear(self) -> None:
        """Let all bytes pass."""
        for way in self.ways:
            self.weather[way] = Weather()

    def close(self) -> None:
        """End all connections; a second time is harmless."""
        self._loop.end(self._close)

    async def _open(self, name: str) -> None:
        for way in self.ways:
            if way[1] == name and way not in self._servers:
                self._servers[way] = await self._listen(way)

    async def _listen(self, way: Way) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._join(way, reader, writer)
            finally:
                self._connections.discard(task)

        return await asyncio.start_server(accept, "127.0.0.1", self.ports[way])

    async def _shut(self, name: str) -> None:
        for way in [one for one in self._servers if one[1] == name]:
            self._servers.pop(way).close()

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry the bytes of a connection both ways, until both have ended."""
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._nodes[way[1]])
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(self._carry(way, reader, back), self._carry((way[1], way[0]), there, writer))
        finally:
            for one in (writer, back):
                one.transport.abort()

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = Sent(*way)
        with contextlib.suppress(OSError):
            while raw := await reader.read(_READ_BYTES):
                self.judge.take(sent, raw)
                await asyncio.sleep(self.weather[way].delay_s)
                await self._held(way)
                weather = self.weather[way]
                if weather.bytes_per_s:
                    await asyncio.sleep(len(raw) / weather.bytes_per_s)
                if weather.flips and self._rng.random() < weather.flips:
                    raw, self.flipped = flipped(raw, self._rng), self.flipped + 1
                writer.write(raw)
                await writer.drain()
        await self._held(way)
        writer.close()  # whoever sent has ended; the other end hears of it when the way is free

    async def _held(self, way: Way) -> None:
        while self.weather[way].cut:
            await asyncio.sleep(LOOK_S)


def flipped(raw: bytes, rng: random.Random) -> bytes:
    """Return bytes of which one is another."""
    harmed = bytearray(raw)
    harmed[rng.randrange(len(raw))] ^= rng.randrange(1, 256)
    return bytes(harmed)


@dataclass(slots=True)
class Sent:
    """What a node has sent to another over one connection, as far as it was looked at.

    `start`: of its process, by its heartbeats; `epoch`: of the last of those. `votes`: epochs that it voted in before
    its `start` is known. `sealed`: it is TLS, of which nobody between can tell anything; None before the first byte.
    """

    node: str
    to: str
    sealed: bool | None = None
    rest: bytearray = field(default_factory=bytearray)
    start: int | None = None
    epoch: int = 0
    votes: list[int] = field(default_factory=list)


class WireJudge:
    """Holds what nodes say against the rules of elections that bind each node alone.

    It acks to no epoch older than the last one that it has named on the same connection; it votes once an epoch; and
    when it was started anew it is in no older epoch than it has voted in before.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._voted: dict[str, dict[int, int]] = {}  # by node and start: the latest epoch
        self._candidates: dict[tuple[str, int], str] = {}  # by node and epoch

    def take(self, sent: Sent, raw: bytes) -> None:
        """Take bytes in the order in which they were sent."""
        if sent.sealed is None:
            sent.sealed = raw[0] == TLS_HANDSHAKE
        if sent.sealed:
            return
        sent.rest += raw
        while len(sent.rest) >= FRAME.size:
            size = frame_size(bytes(sent.rest[: FRAME.size]))
            if len(sent.rest) < size:
                return
            if KINDS[sent.rest[4]] in (Ack, Heartbeat, Vote, Voted):
                self._judge(sent, decode(bytes(sent.rest[:size])))
            del sent.rest[:size]

    def _judge(self, sent: Sent, packet: object) -> None:
        match packet:
            case Heartbeat(pulse=pulse, epoch=epoch):
                sent.start, sent.epoch = pulse.start, epoch
                self._note(sent)
                for start, voted in self._voted[sent.node].items():
                    if start < pulse.start and voted > epoch:
                        self.wrong.append(f"{sent.node} has voted in epoch {voted}, and is in {epoch} now")
            case Vote(epoch=epoch):
                self._vote(sent, epoch, sent.node)
            case Voted(epoch=epoch, pre=False, why=""):
                self._vote(sent, epoch, sent.to)
            case Ack(epoch=epoch) if epoch < sent.epoch:
                self.wrong.append(f"{sent.node} acks to epoch {epoch}, and has said that it is in {sent.epoch}")

    def _vote(self, sent: Sent, epoch: int, candidate: str) -> None:
        before = self._candidates.setdefault((sent.node, epoch), candidate)
        if before != candidate:
            self.wrong.append(f"{sent.node} votes in epoch {epoch} for {candidate}, and has voted for {before}")
        sent.votes.append(epoch)
        self._note(sent)

    def _note(self, sent: Sent) -> None:
        voted = self._voted.setdefault(sent.node, {})
        if sent.start is not None:
            voted[sent.start] = max([voted.get(sent.start, 0), *sent.votes])
            sent.votes.clear()
