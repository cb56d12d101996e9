"""A group of nodes in this process: real sockets on loopback, real logs, the real disk."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tranlog.change import Statement
from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import GroupOrderError
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.diff import diff
from tranlog.replication.acting.client import AsyncGroup, RemoteGroup
from tranlog.replication.acting.node import GroupNode, NodeOptions, found_group
from tranlog.replication.rules.packets import PRIMARY
from tranlog.service.group_client import connect_async, connect_group
from tranlog.testing.servers import free_port

NOT_BEGUN = ("cannot be reached from here", "give the order again")
"""So end the reasons why a node did not begin with an order. On a crowded machine a primary may lose its majority."""
ResultT = TypeVar("ResultT")
Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]

LONG_S = 60.0
"""A crowded machine takes longer than any of this should; only a test that fails waits so long."""


def words(text: str) -> list[Statement]:
    """Return a transaction's content."""
    return [Statement(schema="shop", sql=text, ddl=False)]


def events(folder: Path) -> list[str]:
    """Return the event ids that a log holds, those of no-ops left out."""
    with LogReader.open(str(folder)) as reader, reader.cursor() as cursor:
        last = reader.range().last_seqno
        found = []
        for one in cursor.scan(until=last, wait=False):
            if not one.is_noop():
                found.append(one.header.event_id)
        return found


def differences(one: Path, other: Path) -> str:
    """Return where two logs differ in what both hold; empty where they do not."""
    with LogReader.open(str(one)) as first, LogReader.open(str(other)) as second:
        found = diff(first, second, full=True)
        return "" if found.first is None else str(found.first)


class LiveGroup:
    """Nodes by name, each in a folder of its name; the event loop runs in a thread of its own."""

    def __init__(self, folder: Path, names: str, tls: Callable[[str], Contexts] | None = None, **options: Any) -> None:
        """`tls` makes both sides of TLS for a node by its name; `options` are those of each node."""
        self.folder = folder
        self._tls: Callable[[str], Contexts] = tls or (lambda name: (None, None))
        self.loop = asyncio.new_event_loop()
        self.options = {
            name: NodeOptions(
                dir=str(folder / name), group="shop", node=name, listen=f"127.0.0.1:{free_port()}", **options
            )
            for name in names
        }
        self.nodes: dict[str, GroupNode] = {}
        self.disks: dict[str, Disk] = {}
        self.clocks: dict[str, Clock] = {}
        """Both by name, of nodes that have another one than the system's."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a client looks for the group."""
        return "thl://" + ",".join(one.listen for one in self.options.values())

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return what comes of work in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG_S)

    def start(self, name: str) -> GroupNode:
        """Start a node."""

        async def begin() -> GroupNode:
            server, client = self._tls(name)
            node = GroupNode(
                self.options[name],
                server_tls=server,
                client_tls=client,
                disk=self.disks.get(name, OS_DISK),
                clock=self.clocks.get(name, SYSTEM_CLOCK),
            )
            await node.start()
            return node

        self.nodes[name] = self.run(begin())
        return self.nodes[name]

    def stop(self, name: str, *, hand_over_s: float = 0.0) -> None:
        """Stop a node, at once where it need not hand over."""
        self.run(self.nodes.pop(name).stop(hand_over_s=hand_over_s))

    def order(self, node: str, order: str, /, **body: object) -> dict[str, Any]:
        """Give a node an order; again where it was not begun, because just then nobody was known to be primary."""
        until = time.monotonic() + LONG_S
        while True:
            try:
                return self.run(self.nodes[node].orders.give(order, body))
            except GroupOrderError as exc:
                if time.monotonic() >= until or not exc.why.endswith(NOT_BEGUN):
                    raise
                time.sleep(0.05)

    def form(self) -> None:
        """Found the group at the first node, and add the others."""
        first, *others = self.options
        found_group(self.options[first])
        for name in self.options:
            self.start(name)
        for name in others:
            while name not in {one.name for one in self.nodes[first].standing.config.members if one.votes}:
                with suppress(GroupOrderError):  # on a crowded machine the primary may lose its majority meanwhile
                    self.order(self.await_primary(), "add", name=name, address=self.options[name].listen)
        self.await_primary()

    def add(self, name: str, **body: object) -> None:
        """Start another node, and have it admitted."""
        listen = f"127.0.0.1:{free_port()}"
        self.options[name] = NodeOptions(dir=str(self.folder / name), group="shop", node=name, listen=listen)
        self.start(name)
        self.order(next(iter(self.options)), "add", name=name, address=listen, **body)

    def primaries(self) -> list[str]:
        """Return who takes itself for the primary."""
        return [name for name, node in self.nodes.items() if node.standing.state == PRIMARY]

    def await_primary(self) -> str:
        """Return the name of the one primary, which has committed in its epoch, when there is one."""

        def found() -> bool:
            primaries = self.primaries()
            if len(primaries) != 1:
                return False
            at = self.nodes[primaries[0]].standing
            return at.committed.epoch == at.epoch

        eventually(found)
        return self.primaries()[0]

    def await_whole(self) -> None:
        """Return when all logs end alike, and all of it is committed everywhere."""

        def whole() -> bool:
            ends = {(node.standing.last, node.standing.committed) for node in self.nodes.values()}
            return len(ends) == 1 and all(last == committed for last, committed in ends) and len(self.primaries()) == 1

        eventually(whole)

    def client(self, **options: Any) -> RemoteGroup:
        """Return a client of the group."""
        return connect_group(self.url, **{"find_s": LONG_S, **options})

    def async_client(self, **options: Any) -> AsyncGroup:
        """As `client`, for tasks."""
        return connect_async(self.url, **{"find_s": LONG_S, **options})

    def close(self) -> None:
        """Stop all nodes, and the event loop."""
        try:
            for name in list(self.nodes):
                self.stop(name)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


def eventually(found: Callable[[], bool]) -> None:
    """Return when something is so."""
    until = time.monotonic() + LONG_S
    while not found():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


@contextmanager
def live_group(
    folder: Path, names: str = "abc", tls: Callable[[str], Contexts] | None = None, **options: Any
) -> Iterator[LiveGroup]:
    """Run a group while the block runs; as `LiveGroup`."""
    group = LiveGroup(folder, names, tls, **options)
    try:
        group.form()
        yield group
    finally:
        group.close()
