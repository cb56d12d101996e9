"""Who is let in at a node, for what, and how the node itself becomes a member.

Owns the answer to a Join. The hard idea: some answers take a while, since a log is looked through or another process is
asked; so a connection has one Join under way, and a second one ends it.

Source: docs/protocol.md, "Handshake"; docs/replication.md, "TLS and permissions".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tranlog.errors import ConfigError, GroupFileError, LogError, TranlogError
from tranlog.ids import Gtid
from tranlog.log.files.commit_point import GROUP_DIR
from tranlog.replication.acting.core_thread import CoreThread
from tranlog.replication.acting.finding import find_for_reader
from tranlog.replication.acting.links import VOTE, Link, differ
from tranlog.replication.acting.restore import RESTORE
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import GroupConfig, Member, NodeId, admits
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.packets import (
    CLIENTS_MAX,
    NO_GTID,
    READABLE,
    STATE_NAMES,
    Join,
    JoinRefused,
    Packet,
    Welcome,
)
from tranlog.replication.rules.permissions import NEEDED, permission_refused
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import event_missing, handshake_refused, heartbeat_refused
from tranlog.replication.rules.versions import versions_differ

if TYPE_CHECKING:
    from tranlog.replication.acting.node import GroupNode

logger = logging.getLogger(__name__)


class Joins:
    """The Joins at one node, and its own way into a group. Threads: the event loop's alone."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self._becoming = False
        self._pending: set[Wire] = set()

    def admitted(self, by: NodeId, config: GroupConfig) -> None:
        """Become a member of the group whose configuration names this node."""
        node = self._node
        if self._becoming or node.standing.config.members or not admits(config, own=node.node, sender=by):
            return
        self._becoming = True
        node.spawn(self._become(Stored(group=config.group, node=node.node, config=config)))

    async def _become(self, stored: Stored) -> None:
        node = self._node
        try:
            await node.begin(stored)
        except GroupFileError:
            mend = f"run the node on an empty one, or on a copy of a member's without its {GROUP_DIR}/"
            why = f"it holds a log that is not the group's: {mend}, and give the order to add it again"
            node.failed(ConfigError(option="log.dir", value=node.options.dir, why=why))
        except TranlogError as exc:
            node.failed(exc)
        else:
            logger.info("This node was admitted. group=%s id=%s", node.options.group, stored.group)

    def hold_again(self) -> None:
        """End the connections whose id is now that of a member with another certificate."""
        config = self._node.standing.config
        for wire in list(self._node.entrance.wires):
            member = config.member(wire.peer) if wire.purpose == VOTE else None
            if member is not None and (why := wire.certified_otherwise(member.name)):
                wire.end_now(why)

    def let_in(self, wire: Wire, packet: Packet) -> None:
        """Answer the first packet of whoever connected."""
        node = self._node
        if not isinstance(packet, Join):
            other = f"{type(packet).__name__} instead of Join"
            wire.end(packet.text if isinstance(packet, JoinRefused) else other)
            return
        if wire in self._pending:
            wire.end("a second Join before the first one was answered")
            return
        why = self.refused(packet, wire)
        link = node.links.links.get(packet.node) if packet.purpose == VOTE else None
        if not why and packet.purpose == "read" and node.thread is not None:
            self._later(wire, self._let_read(wire, packet, node.thread))
        elif not why and link is not None and link.wire is not None and differ(link.wire.process, packet.process):
            self._later(wire, self._let_again(wire, packet, link))
        else:
            self._answer(wire, packet, why)

    def _later(self, wire: Wire, answer: Coroutine[Any, Any, None]) -> None:
        async def alone() -> None:
            try:
                await answer
            finally:
                self._pending.discard(wire)

        self._pending.add(wire)
        self._node.spawn(alone())

    async def _let_read(self, wire: Wire, join: Join, thread: CoreThread) -> None:
        """Let a reader in whose last transaction this node's log goes on from, by its GTID or its event id."""

        def refused(core: Core) -> str:
            why = handshake_refused(
                core.log,
                source=join.node_name,
                last=join.last,
                may_roll_back=False,
                force=join.force,
                heartbeat_ms=join.heartbeat_ms,
            )
            return why or ""

        why, after = await asyncio.wrap_future(thread.call(refused)), NO_GTID
        if not why and join.from_event:
            try:
                found, part = await find_for_reader(join.from_event, thread, self._node.readers.executor)
            except LogError as exc:
                found, why = None, str(exc)
            else:
                why = event_missing(join.node_name, join.from_event, part.first, part.upto) if found is None else ""
            after = found or NO_GTID
        self._answer(wire, join, why, after)

    async def _let_again(self, wire: Wire, join: Join, link: Link) -> None:
        """Let a node in that another process was connected as: it has started again, unless that one still answers."""
        there = await link.process_there()
        self._answer(wire, join, runs_already(link.member) if differ(there, join.process) else "")

    def _answer(self, wire: Wire, join: Join, why: str, after: Gtid = NO_GTID) -> None:
        node = self._node
        if why:
            wire.send(JoinRefused(text=why))
            wire.end(why)
            return
        version = node.options.versions.agreed(join.versions)
        assert version is not None
        wire.peer, wire.purpose, wire.version, wire.process = join.node, join.purpose, version, join.process
        if join.purpose == RESTORE:
            node.orders.restoring.serve(wire)
        wire.send(Welcome(first=NO_GTID, last=node.standing.last, version=version, after=after))

    def refused(self, join: Join, wire: Wire) -> str:
        """Return why a Join is refused; empty where it is not."""
        node = self._node
        own, config = node.standing.config.group, node.standing.config
        own_versions = node.options.versions
        if own_versions.agreed(join.versions) is None:
            return versions_differ(f"node {node.options.node}", own_versions, join.node_name, join.versions)
        if join.purpose not in (VOTE, RESTORE, *NEEDED):
            return f"there is no purpose {join.purpose!r}"
        if join.heartbeat_ms <= 0:
            return heartbeat_refused(join.node_name)
        if join.purpose in NEEDED:
            return self._client_refused(join, wire)
        if why := wire.certified_otherwise(join.node_name):
            return why
        if own and join.group and join.group != own:
            return f"you are of the group {join.group}, and this node is of {own}"
        known = config.member(join.node)
        if known is not None and known.name != join.node_name:
            return copied(known, join.node_name)
        named = [one for one in config.members if one.name == join.node_name and one.node != join.node]
        if join.node == node.node or named:
            why = f"there is another node {join.node_name} in the group, with another id; names are unique"
            return f"{why}; if it was wiped: tranlog group add {join.node_name} HOST:PORT --replace"
        if join.purpose == RESTORE and config.member(join.node) is None:
            return "only a node of the group gets this log"
        if join.purpose == RESTORE and node.standing.state not in READABLE:
            return f"this node is {STATE_NAMES[node.standing.state]}, and no source"
        return ""

    def _client_refused(self, join: Join, wire: Wire) -> str:
        if sum([one.purpose in NEEDED for one in self._node.entrance.wires]) >= CLIENTS_MAX:
            return f"there are {CLIENTS_MAX} clients already"
        if wire.certified is None:
            return ""
        return permission_refused(self._node.options.clients, wire.certified[0], join.purpose)


def copied(whose: Member, name: str) -> str:
    """Return what is wrong with a node whose directory has the identity of another one."""
    mend = f"remove the folder {GROUP_DIR}/ in it, start {name}, and `tranlog group add {name} HOST:PORT`"
    return f"the log directory of {name} is a copy of {whose.name}'s, with the identity of that node: {mend}"


def runs_already(member: Member) -> str:
    """Return what is wrong with a second process of a node."""
    name = member.name
    why = f"node {name} runs already, at {member.address}; this one's log directory is a copy of its, with its identity"
    return f"{why}: stop one of the two; a node of its own is made of a copy without the folder {GROUP_DIR}/"
