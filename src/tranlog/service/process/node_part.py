"""The node of a group, served by its process, and run by it.

Owns the operations, how a node comes of a configuration, and the way from a request's thread to the node's event loop.
What an order does is `replication/acting/orders.py`'s.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tranlog.errors import ConfigError, GroupOrderError
from tranlog.replication.acting.node import GroupNode, NodeOptions
from tranlog.replication.acting.orders import (
    AddNode,
    Freeze,
    NodeStatus,
    Reconfigure,
    RemoveNode,
    RestoreNode,
    StepDown,
    SyncFrom,
)
from tranlog.replication.rules.config import warnings
from tranlog.replication.rules.packets import STATE_NAMES
from tranlog.service.config.config import Config
from tranlog.service.process import api
from tranlog.tls import group_side

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HAND_OVER_S: Final = 5.0
"""A node that is stopped gives another one so long to take over."""
_WELL: Final = ("PRIMARY", "REPLICA", "WITNESS")

ResultT = TypeVar("ResultT")


class NodePart:
    """The part that is a node of a group. Threads: any but the node's own."""

    def __init__(self, node: GroupNode, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @api.get("/group/status")
    def status(self) -> NodeStatus:
        """Return where the node stands, and what it knows of the others. Raises GroupOrderError."""
        return self._run(self._node.orders.status())

    @api.get("/group/config")
    def config(self) -> dict[str, Any]:
        """Return the group's configuration by name, and what of it is allowed and not wise. Raises GroupOrderError."""
        found = self._node.orders.config()
        members = [msgspec.structs.asdict(one) for one in found.members]
        return {**msgspec.structs.asdict(found), "members": members, "warnings": warnings(found)}

    @api.post("/group/add")
    def add(self, asked: AddNode) -> dict[str, Any]:
        """Admit a node, and wait until it has its vote. Raises GroupOrderError, ConfigError."""
        return self._order("add", asked)

    @api.post("/group/remove")
    def remove(self, asked: RemoveNode) -> dict[str, Any]:
        """Have a node be a member no more; a primary steps down first. Raises GroupOrderError, ConfigError."""
        return self._order("remove", asked)

    @api.post("/group/step-down")
    def step_down(self, asked: StepDown) -> dict[str, Any]:
        """Have the primary hand over. Raises GroupOrderError where no other node has everything in time."""
        return self._order("step-down", asked)

    @api.post("/group/restore")
    def restore(self, asked: RestoreNode) -> dict[str, Any]:
        """Give a node the whole log of another one, and wait until it has it. Raises GroupOrderError, ConfigError."""
        return self._order("restore", asked)

    @api.post("/group/freeze")
    def freeze(self, asked: Freeze) -> dict[str, Any]:
        """Keep a node from standing for a while. Raises GroupOrderError, ConfigError."""
        return self._order("freeze", asked)

    @api.post("/group/sync-from")
    def sync_from(self, asked: SyncFrom) -> dict[str, Any]:
        """Have a node follow another one. Raises GroupOrderError, ConfigError."""
        return self._order("sync-from", asked)

    @api.post("/group/reconfigure")
    def reconfigure(self, asked: Reconfigure) -> dict[str, Any]:
        """Change the configuration, or force one upon this node alone, whatever is lost by it.

        Raises GroupOrderError, ConfigError.
        """
        if not asked.force and (asked.change is None or asked.without):
            why = "give a changed configuration, or --force; --without, for who is a member no more, goes with --force"
            raise ConfigError(option="reconfigure", value=None, why=why)
        return self._order("reconfigure", asked)

    def _order(self, name: str, asked: msgspec.Struct) -> dict[str, Any]:
        return self._run(self._node.orders.give(name, msgspec.to_builtins(asked)))

    def progress(self) -> dict[str, str]:
        """Return the node's state, and how far a restore of it is."""
        found = {"node": self._node.options.node, "state": STATE_NAMES[self._node.standing.state]}
        restore = self._node.orders.restoring.status
        return found if restore is None else {**found, "restore": str(restore)}

    def ready(self) -> str:
        """Say why the node serves nobody; empty where it does."""
        state, fatal = STATE_NAMES[self._node.standing.state], self._node.standing.fatal
        return "" if state in _WELL else f"node {self._node.options.node} is {state}{fatal and ': '}{fatal}"

    def families(self) -> Iterator[Metric]:
        """Return the node's metrics; none while it is in no group."""
        from tranlog.service.process.metrics import node_families

        try:
            status = self.status()
        except GroupOrderError:
            return
        if status.members:
            yield from node_families(status)


def node_options(config: Config) -> NodeOptions:
    """Return the node that a configuration describes."""
    group = config.group
    return NodeOptions(
        dir=config.log_dir,
        group=group.name,
        node=group.node,
        listen=group.listen,
        address=group.address,
        via=group.via,
        restore=group.restore,
        clients=group.clients,
        lag_limit_bytes=group.lag_limit_bytes,
        log=config.log,
    )


def node_contexts(config: Config) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Return the server's and the client's side of TLS, both None for plain. Raises ConfigError."""
    group = config.group
    files = (group.tls_ca, group.tls_certificate, group.tls_key)
    if not any(files):
        return None, None
    if None in files:
        raise ConfigError(
            option="group.tls_certificate", value=None, why="tls_certificate, tls_key and tls_ca go together"
        )
    authority, certificate, key = (str(one) for one in files)
    return group_side(authority, certificate, key, server=True), group_side(authority, certificate, key)
