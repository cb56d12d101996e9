"""One connection between two nodes, or a client and a node: packets over TCP, or TLS, with limits on both ends.

Owns the cutting of bytes into frames, and the limits of a peer: its first frame must be small and come soon, frames
have a bounded size, and so have unread and unsent bytes. The taker owns the meaning of packets. The hard idea: any
error of a peer ends its own connection only, with one line in the log.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Protocol, cast

from tranlog.addresses import split_address
from tranlog.errors import HandshakeError, PacketError
from tranlog.replication.rules.config import NO_NODE, NodeId
from tranlog.replication.rules.packets import (
    CHECKED,
    CHECKED_SINCE,
    FIRST_WITHIN_S,
    FRAME,
    RAW_BYTES,
    Packet,
    decode,
    encode_parts,
    frame_size,
)
from tranlog.tls import CLIENT_UNIT, explained, why_ended

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 64 << 10
_KEPT_BYTES = 2 * RAW_BYTES
_LARGE_BYTES = 64 << 10
UNREAD_MAX = 4 << 20
"""Reading pauses while so many bytes of packets wait for the taker."""
UNSENT_MAX = 16 << 20
"""While so many bytes wait for the other end, nothing more is sent to it."""
_CLOSED = "it was closed"
_LINE_MAX = 1_000
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000),
)
"""How the system finds that the other end has vanished. The last one, in ms, is long: it also ends a connection whose
other end reads nothing, and a node reads nothing from a client while its disk or a follower is slow.
"""
_TLS_HANDSHAKE = 22
"""The first byte of whoever begins with TLS."""


class Taker(Protocol):
    """The receiver of a connection's packets. Each method is called in the event loop, and returns at once."""

    def met(self, wire: Wire) -> None:
        """A connection is there."""

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        """A packet came; call `Wire.done` with its `size` after handling it."""

    def lost(self, wire: Wire) -> None:
        """The connection has ended."""


class Wire(asyncio.BufferedProtocol):
    """A connection. `peer`, its `process`, `purpose` and the `version` that both speak are known after the handshake.

    `purpose` is empty before, and `version` 0. `garbled`: it ended because the other end did not speak TLS.
    """

    _late: asyncio.TimerHandle

    def __init__(self, taker: Taker) -> None:
        self.peer: NodeId = NO_NODE
        self.process = 0
        self.purpose = ""
        self.version = 0
        self.why = _CLOSED
        self.gone = asyncio.Event()
        self.heard = 0.0
        self.garbled = False
        self._taker = taker
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._first = True
        self._checked = False
        self._unread = 0
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def spoke(self) -> bool:
        """Whether a whole packet has come."""
        return not self._first

    @property
    def host(self) -> str:
        """The host of the other end."""
        return self.where.rpartition(":")[0]

    @property
    def where(self) -> str:
        """The address of the other end."""
        found = self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "unknown"

    @property
    def certified(self) -> tuple[str, str] | None:
        """The name and the unit in the other end's certificate. None over plain TCP, which is for loopback only."""
        if self._transport.get_extra_info("sslcontext") is None:
            return None
        found = self._transport.get_extra_info("peercert") or {}
        subject = {key: value for part in found.get("subject", ()) for key, value in part}
        return subject.get("commonName", ""), subject.get("organizationalUnitName", "")

    @property
    def certified_until(self) -> int | None:
        """When the other end's certificate expires, in ms since 1970. None over plain TCP."""
        found = (self._transport.get_extra_info("peercert") or {}).get("notAfter")
        return None if found is None else round(ssl.cert_time_to_seconds(found) * 1000)

    def certified_otherwise(self, name: str) -> str:
        """Return why the other end is not the node of that name, by its certificate; empty where it is."""
        if self.certified is None:
            return ""
        found, unit = self.certified
        if unit == CLIENT_UNIT:
            return f"its certificate is that of the client {found}, and it says that it is the node {name}"
        return "" if found == name else f"its certificate is that of {found or 'nobody'}, not of {name}"

    def send(self, *packets: Packet) -> bool:
        """Send packets at once; False if the connection has ended, or its other end has not read for too long."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size() > UNSENT_MAX:
            return False
        checked = self.version >= CHECKED_SINCE
        parts: list[bytes] = []
        for packet in packets:
            head, raw = encode_parts(packet, checked=checked)
            parts.append(head)
            if len(raw) < _LARGE_BYTES:
                parts.append(raw)
            else:  # not copied, where the socket takes it
                self._transport.write(b"".join(parts))
                self._transport.write(raw)
                parts.clear()
        if parts:
            self._transport.write(b"".join(parts))
        return True

    async def drained(self) -> None:
        """Wait until little of what was sent waits here, or the connection has ended."""
        await self._writable.wait()

    def hold(self, size: int) -> None:
        """Count so many more bytes that wait for the taker, until `done`."""
        self._unread += size

    def done(self, size: int) -> None:
        """Note that a packet of that size was handled."""
        self._unread -= size
        if self._paused and self._unread <= UNREAD_MAX // 2:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def end(self, why: str, *, warn: bool = True) -> None:
        """End the connection after everything is sent; `warn`: it is the other end's fault."""
        if not self._transport.is_closing():
            self.why = why
            if warn:
                logger.warning("A connection was ended. peer=%s why=%s", self.where, one_line(why))
            self._transport.close()
            self._late.cancel()
            self._late = asyncio.get_running_loop().call_later(FIRST_WITHIN_S, self.cut)

    def end_now(self, why: str) -> None:
        """End the connection without sending the rest."""
        self.end(why)
        self.cut()

    def cut(self) -> None:
        """As `end_now`, without a line in the log."""
        self._transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the first frame must come soon."""
        self._transport = cast(asyncio.Transport, transport)
        # What is written waits for no ack of what was written before: asyncio sees to that at the connecting end alone.
        for level, option, value in (*KEEP_ALIVE, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
            transport.get_extra_info("socket").setsockopt(level, option, value)
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
                size = frame_size(view[at : at + FRAME.size], first=self._first)
                if size > self._filled - at:
                    wanted = max(wanted, size)
                    break
                if self._checked and not view[at + 5] & CHECKED:
                    raise PacketError(kind="frame", why="it has no checksum, and those before it had one")
                self._checked = view[at + 5] == CHECKED
                packet = decode(view[at : at + size], first=self._first)
                at += size
                if self._first:
                    self._first = False
                    self._late.cancel()
                self._unread += size
                self._taker.take(self, packet, size)
        except PacketError as exc:
            tls = self._first and view[0] == _TLS_HANDSHAKE
            self.end_now("it speaks TLS, and this end has no certificate" if tls else str(exc))
            return
        if at or len(self._buffer) < wanted:
            self._keep(at, wanted)
        if self._unread > UNREAD_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Note that many bytes wait for the other end."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that few bytes wait for the other end again."""
        self._writable.set()

    def _keep(self, begin: int, wanted: int) -> None:
        """Have what came from `begin` on stand first in a buffer of `wanted` bytes, or a larger one.

        A buffer that records came in is kept: more of them follow.
        """
        rest = bytes(memoryview(self._buffer)[begin : self._filled])
        if len(self._buffer) < wanted or len(self._buffer) > max(wanted, _KEPT_BYTES):
            self._buffer = bytearray(wanted)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection has ended."""
        self._writable.set()
        self._late.cancel()
        if exc is not None and self.why == _CLOSED:
            self.why = why_ended(exc)
            self.garbled = isinstance(exc, ssl.SSLError)
        self.gone.set()
        self._taker.lost(self)


def one_line(text: str) -> str:
    """Return text from the other end in a form that is safe in one line of a log."""
    return "".join([one if one.isprintable() else "?" for one in text[:_LINE_MAX]])


async def dial(address: str, taker: Taker, tls: ssl.SSLContext | None) -> Wire:
    """Connect to HOST:PORT. Raises OSError, HandshakeError, ConfigError for what is no address."""
    host, port = split_address("address", address)
    try:
        with explained():
            async with asyncio.timeout(FIRST_WITHIN_S):
                loop = asyncio.get_running_loop()
                _, wire = await loop.create_connection(lambda: Wire(taker), host, port, ssl=tls)
    except ssl.SSLError as exc:
        raise HandshakeError(where=address, why=why_ended(exc)) from exc
    except TimeoutError as exc:
        raise HandshakeError(where=address, why=f"there was no connection within {FIRST_WITHIN_S} s") from exc
    return wire
