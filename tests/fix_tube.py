"""A way to a node over loopback that can fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import cast

from tranlog.testing.servers import free_port


class Tube:
    """A way to a node that can fall silent, and is not closed then. Threads: the event loop's alone."""

    def __init__(self, to: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.silent = False
        self.ends: set[End] = set()
        self._to, self._port = to.rsplit(":", 1)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        host, port = self.address.rsplit(":", 1)
        self._server = await asyncio.get_running_loop().create_server(lambda: End(self, self._reach), host, int(port))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in self.ends:
            end.transport.abort()

    async def _reach(self, near: End) -> None:
        try:
            _, far = await asyncio.get_running_loop().create_connection(lambda: End(self), self._to, int(self._port))
        except OSError:
            near.transport.abort()
            return
        near.other, far.other = far, near
        far.transport.write(bytes(near.early))


class End(asyncio.Protocol):
    """One end of a connection through a tube: what it reads goes to the other one."""

    def __init__(self, tube: Tube, reach: Callable[[End], Coroutine[None, None, None]] | None = None) -> None:
        self.other: End | None = None
        self.early = bytearray()
        self._tube = tube
        self._reach = reach

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._tube.ends.add(self)
        if self._reach is not None:
            self._reaching = asyncio.ensure_future(self._reach(self))

    def data_received(self, data: bytes) -> None:
        if self._tube.silent:
            return
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tube.ends.discard(self)
        if self.other is not None and not self._tube.silent:  # else nobody hears of that, either
            self.other.transport.abort()
