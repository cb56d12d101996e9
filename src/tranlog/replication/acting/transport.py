"""One connection between two nodes, or a client and a node: packets over TCP, or TLS, with limits on both ends.

Owns the cutting of bytes into frames, and what a peer can cost: a first frame that is small and comes soon, frames of
bounded size, and a bound on what is unread and unsent. What packets mean is the taker's. The hard idea: whatever is
wrong with a peer ends its own connection, with one line.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Protocol, cast

from tranlog.addresses import split_address
from tranlog.errors import PacketError
from tranlog.replication.rules.config import NO_NODE, NodeId
from tranlog.replication.rules.packets import FIRST_WITHIN_S, FRAME, Packet, decode, encode, frame_size

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 64 << 10
UNREAD_MAX = 4 << 20
"""Reading pauses while so many bytes of packets wait for the taker."""
UNSENT_MAX = 16 << 20
"""While so many bytes wait for the other end, nothing more is sent to it."""


class Taker(Protocol):
    """Who takes the packets of connections. Each method is called in the event loop, and returns at once."""

    def met(self, wire: Wire) -> None:
        """A connection is there."""

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        """A packet came; `Wire.done` is called with its `size` when it was dealt with."""

    def lost(self, wire: Wire) -> None:
        """The connection has ended."""


class Wire(asyncio.BufferedProtocol):
    """A connection. `peer` and `purpose` are known after the handshake, `purpose` is empty before."""

    def __init__(self, taker: Taker) -> None:
        self.peer: NodeId = NO_NODE
        self.purpose = ""
        self.why = "it was closed"
        self.gone = asyncio.Event()
        self.heard = 0.0
        self._taker = taker
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._first = True
        self._unread = 0
        self._paused = False

    @property
    def where(self) -> str:
        """The address of the other end."""
        found = self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "unknown"

    def certified_otherwise(self, name: str) -> str:
        """Return why the other end, which says that it is `name`, is not, by its certificate; empty where it is.

        Over plain TCP, which is loopback alone, nobody has one.
        """
        if self._transport.get_extra_info("sslcontext") is None:
            return ""
        found = self._transport.get_extra_info("peercert") or {}
        names = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return "" if names == [name] else f"its certificate is that of {', '.join(names) or 'nobody'}, not of {name}"

    def send(self, packet: Packet) -> bool:
        """Send a packet; False where the connection has ended, or its other end has not read for too long."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size() > UNSENT_MAX:
            return False
        self._transport.write(encode(packet))
        return True

    def hold(self, size: int) -> None:
        """Take note of so many bytes more that wait for the taker, until `done`."""
        self._unread += size

    def done(self, size: int) -> None:
        """Take note that a packet of that size was dealt with."""
        self._unread -= size
        if self._paused and self._unread <= UNREAD_MAX // 2:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def end(self, why: str, *, warn: bool = True) -> None:
        """End the connection when what was sent is out; `warn`: it is the other end's fault."""
        if not self._transport.is_closing():
            self.why = why
            if warn:
                logger.warning("A connection was ended. peer=%s why=%s", self.peer or self.where, why)
            self._transport.close()

    def end_now(self, why: str) -> None:
        """End the connection, whatever is still to be sent."""
        self.end(why)
        self.cut()

    def cut(self) -> None:
        """As `end_now`, without a word."""
        self._transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the first frame has to come soon."""
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self.heard = loop.time()
        self._late = loop.call_later(FIRST_WITHIN_S, self.end_now, f"no packet came within {FIRST_WITHIN_S} s")
        self._taker.met(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the whole frames that are there."""
        self._filled += nbytes
        self.heard = asyncio.get_running_loop().time()
        at, wanted, view = 0, _BUFFER_BYTES, memoryview(self._buffer)
        try:
            while self._filled - at >= FRAME.size and not self._transport.is_closing():
                size = frame_size(bytes(view[at : at + FRAME.size]), first=self._first)
                if size > self._filled - at:
                    wanted = max(wanted, size)
                    break
                packet = decode(bytes(view[at : at + size]), first=self._first)
                at += size
                if self._first:
                    self._first = False
                    self._late.cancel()
                self._unread += size
                self._taker.take(self, packet, size)
        except PacketError as exc:
            self.end_now(str(exc))
            return
        rest = bytes(view[at : self._filled])
        if len(self._buffer) != wanted:
            self._buffer = bytearray(wanted)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        if self._unread > UNREAD_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is over."""
        self._late.cancel()
        if exc is not None:
            self.why = str(exc)
        self.gone.set()
        self._taker.lost(self)


async def dial(address: str, taker: Taker, tls: ssl.SSLContext | None) -> Wire:
    """Connect to HOST:PORT. Raises OSError, ConfigError for what is no address."""
    host, port = split_address("address", address)
    _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(taker), host, port, ssl=tls)
    _send_at_once(wire)
    return wire


async def listen(address: str, taker: Taker, tls: ssl.SSLContext | None) -> asyncio.Server:
    """Listen at HOST:PORT. Raises OSError, ConfigError for what is no address."""
    host, port = split_address("listen", address)

    def accept() -> Wire:
        return Wire(taker)

    return await asyncio.get_running_loop().create_server(accept, host, port, ssl=tls)


def _send_at_once(wire: Wire) -> None:
    found = wire._transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
