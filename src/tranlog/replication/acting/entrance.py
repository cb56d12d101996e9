"""The listening side of a node: which connections are accepted, and the limits of their number.

Owns the listening sockets and the incoming connections. The hard idea: a connection is counted from the moment it is
accepted, its TLS handshake included, and each address has a share of the connections that have not finished the
handshake. So connections that never finish it cannot keep others out.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from tranlog.addresses import is_loopback, split_address
from tranlog.errors import ConfigError
from tranlog.replication.acting.transport import Taker, Wire
from tranlog.replication.rules.packets import CONNECTIONS_MAX, FIRST_WITHIN_S, HANDSHAKES_MAX
from tranlog.tls import explained, why_ended

logger = logging.getLogger(__name__)

_OUT_OF_FILES_S = 1.0
_LAST_WORDS_S = 1.0


class Entrance:
    """The port of one node. `wires`: the open connections. Threads: the event loop's only."""

    def __init__(self, address: str, taker: Taker, tls: ssl.SSLContext | None) -> None:
        """`address`: HOST:PORT. Raises ConfigError for what is no address, and beyond loopback without TLS."""
        self._host, self._port = split_address("group.listen", address)
        if tls is None and not is_loopback(self._host):
            files = "tls_certificate, tls_key and tls_ca (`tranlog cert` makes these files)"
            why = f"others reach this address: set {files}, or use 127.0.0.1"
            raise ConfigError(option="group.listen", value=address, why=why)
        self.wires: set[Wire] = set()
        self._taker = taker
        self._tls = tls
        self._shaking: list[str] = []
        self._listeners: list[socket.socket] = []
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, at in dict.fromkeys((family, at) for family, _, _, _, at in found):
                listener = socket.create_server(at, family=family, backlog=128)
                listener.setblocking(False)
                self._listeners.append(listener)
        except OSError:
            self.close()
            raise
        for one in self._listeners:
            self._watch(one)

    @property
    def port(self) -> int:
        """The port that it listens at."""
        found: int = self._listeners[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            if listener.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listener)
                listener.close()

    async def end(self) -> None:
        """End every connection; cut off those whose other end does not read the last packets in time."""
        for wire in list(self.wires):
            wire.end("this node ends", warn=False)
        if self._serving:
            await asyncio.wait(self._serving, timeout=_LAST_WORDS_S)
        for wire in list(self.wires):
            wire.cut()
        late = list(self._serving)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _refused(self, host: str) -> str:
        """Return why nobody more is let in from an address; empty where one is."""
        if len(self.wires) + len(self._shaking) >= CONNECTIONS_MAX:
            return f"there are {CONNECTIONS_MAX} connections already"
        strangers = sum([not wire.purpose and wire.host == host for wire in self.wires])
        if strangers + self._shaking.count(host) >= HANDSHAKES_MAX:
            return f"{HANDSHAKES_MAX} handshakes of this address are under way already"
        return ""

    def _watch(self, listener: socket.socket) -> None:
        """Accept what comes, in steps that nothing cancels: a connection that is accepted has its owner at once."""
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted, (host, port, *_) = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as exc:
            logger.warning("No connection can be accepted for %g s. why=%s", _OUT_OF_FILES_S, exc)
            loop.remove_reader(listener)
            loop.call_later(_OUT_OF_FILES_S, self._watch, listener)
            return
        if why := self._refused(host):
            logger.warning("A connection was refused. peer=%s:%d why=%s", host, port, why)
            accepted.close()
            return
        accepted.setblocking(False)
        self._shaking.append(host)
        task = asyncio.ensure_future(self._serve(accepted, host, port))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, accepted: socket.socket, host: str, port: int) -> None:
        """Be with a connection from its beginning to its end."""
        try:
            with explained():
                _, wire = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: Wire(self._taker),
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else FIRST_WITHIN_S,
                )
        except OSError as exc:
            late = f"no TLS handshake came within {FIRST_WITHIN_S} s; it is silent, or does not speak TLS"
            why = late if isinstance(exc, ConnectionAbortedError) else why_ended(exc)
            if not isinstance(exc, ConnectionResetError):  # it looked whether somebody listens
                logger.warning("A connection was refused. peer=%s:%d why=%s", host, port, why)
            return
        finally:
            self._shaking.remove(host)
        self.wires.add(wire)
        await wire.gone.wait()
        self.wires.discard(wire)
        if wire.garbled:
            logger.warning("A connection was ended. peer=%s:%d why=%s", host, port, wire.why)
