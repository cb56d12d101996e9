"""One node of a group: its sockets, its thread, its place in the group. One process has one.

Owns who may connect, and the dispatch of packets: those of other nodes and of clients go to the core, an operator's
orders to `orders`. The hard idea: the event loop never waits for a sync. Work that does goes to the node's own thread.
The loop moves packets and knows the node's state; a hostile or silent peer loses only its own connection.

Source: docs/protocol.md; docs/replication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import random
import secrets
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tranlog.addresses import check_reachable, split_address
from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk, DiskLock
from tranlog.errors import ConfigError, GroupFileError, TranlogError
from tranlog.ids import segment_name
from tranlog.log.files.commit_point import GROUP_DIR, become_member, is_member, write_whose
from tranlog.log.files.directory import list_segments, make_directory, sign_lock, storing, take_lock
from tranlog.log.files.segments import history_borne
from tranlog.log.options import LogOptions
from tranlog.replication.acting.core_thread import Came, CoreThread, NodeStanding
from tranlog.replication.acting.entrance import Entrance
from tranlog.replication.acting.following import NodeLog
from tranlog.replication.acting.joining import Joins, copied, runs_already
from tranlog.replication.acting.links import VOTE, Links, differ
from tranlog.replication.acting.orders import Orders
from tranlog.replication.acting.restore import RESTORE, finish_install
from tranlog.replication.acting.served_log import ServedLog
from tranlog.replication.acting.serving import ServedClients
from tranlog.replication.acting.state import StateFile
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import LAG_LIMIT_BYTES, NO_NODE, ConfigId, GroupConfig, Member, NodeId, check_name
from tranlog.replication.rules.effects import Restore
from tranlog.replication.rules.flow_control import FlowControl
from tranlog.replication.rules.packets import (
    NO_GTID,
    PRIMARY,
    STARTUP,
    Ack,
    AckRelay,
    ChunksGone,
    DiskCall,
    Follow,
    GroupOrder,
    Heartbeat,
    Hello,
    Here,
    Join,
    Lead,
    OrderAnswer,
    Packet,
    PreVote,
    Primary,
    Records,
    SpillChunk,
    Vote,
    Voted,
    Where,
    Who,
)
from tranlog.replication.rules.permissions import Clients
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.versions import SPOKEN, Versions

logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
SILENT_BEATS = 10
"""A connection between nodes ends when nothing was heard for so many heartbeats."""
CLOCKS_APART_S = 60
"""Clocks that differ by more than this are told of."""
RECORD_BYTES_MAX = 2 << 20
"""A member spills what is larger, so that every packet of records fits its frame."""
_OF_NODES = (
    *(Where, Here, Follow, Records, SpillChunk, ChunksGone, Ack, AckRelay, PreVote, Vote, Voted, Heartbeat, Lead),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """One node. `dir`: of its log; `group`: the group's name; `node`: its own, by which the group knows it.

    `listen` is HOST:PORT; `address` is where others reach it, by default `listen`. `via` maps a node's name to the
    address at which this one reaches it. `restore`: auto, or manual if an operator must order it. `clients`: the
    permissions of clients, by the name in their certificate. `versions`: of the protocol.
    `lag_limit_bytes`: how much the nearest voter may lack before a primary's writers wait; 0: no limit.
    """

    dir: str
    group: str
    node: str
    listen: str
    address: str = ""
    via: Mapping[str, str] = field(default_factory=dict)
    restore: str = "auto"
    clients: Clients = field(default_factory=dict)
    versions: Versions = SPOKEN
    lag_limit_bytes: int = LAG_LIMIT_BYTES
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def reached_at(self) -> str:
        """The address at which others reach it."""
        return self.address or self.listen

    @property
    def admitting(self) -> str:
        """The command that admits it."""
        return f"tranlog group add {self.node} {self.reached_at}"

    def moved_from(self, config: GroupConfig, node: NodeId) -> str:
        """Return where a configuration has this node; empty where that is the address at which it is reached."""
        own = config.member(node)
        return "" if own is None or own.address == self.reached_at else own.address


def group_dir(path: str) -> str:
    """Return the folder of a group in a log's directory."""
    return posixpath.join(path, GROUP_DIR)


def lock_node(options: NodeOptions, disk: Disk = OS_DISK) -> DiskLock:
    """Make the directory of a member, and lock it for one process. Raises LogLockedError, LogError."""
    path = options.dir
    with storing(path):
        make_directory(path, disk)
        if not is_member(path, disk):
            take_lock(path, disk).release()  # whoever writes the log now goes on as before
            for number in list_segments(path, disk)[:1]:  # a log that none of ours can be made of stays as it is
                with contextlib.closing(disk.open(posixpath.join(path, segment_name(number)))) as file:
                    history_borne(file, path, number)
        become_member(path, disk)
        lock = take_lock(group_dir(path), disk, LOCK_NAME)
        sign_lock(group_dir(path), disk, LOCK_NAME)
        write_whose(path, f"node {options.node} of group {options.group}", disk)
        return lock


def open_log(options: NodeOptions, group: str, *, disk: Disk = OS_DISK, clock: Clock = SYSTEM_CLOCK) -> NodeLog:
    """Open a member's log. Raises as `MemberLog.follow`; GroupFileError if the log is of another group."""
    history = bytes.fromhex(group)
    log = _follow(options, history, disk, clock)
    if log.log.history != history:
        log.close()
        why = f"the log beside it has the history {log.log.history.hex()}, and the group {group}"
        raise GroupFileError(path=group_dir(options.dir), why=why)
    return log


class GroupNode:
    """A node that runs. Threads: the event loop's, but for `standing`."""

    def __init__(
        self,
        options: NodeOptions,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
        seed: int | None = None,
    ) -> None:
        self.options = options
        self.standing = NodeStanding(STARTUP, 0, NO_NODE, GroupConfig(group=""), 0, NO_GTID, NO_GTID, NO_GTID)
        self.node = NO_NODE
        self.process = secrets.randbits(62) + 1
        self.thread: CoreThread | None = None
        self.links = Links(self, options.via, client_tls)
        self.tls = client_tls
        self.disk = disk
        self.clock = clock
        self._chance = random.Random(seed)
        self.entrance = Entrance(options.listen, self, server_tls)
        self.readers = ServedLog(options.dir, disk)
        self._clients = ServedClients(self.entrance.wires, self.spawn, self.readers.executor)
        self.joins = Joins(self)
        self.orders = Orders(self)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- its life ---

    async def start(self) -> None:
        """Lock the directory, read what the node was, listen. Raises LogError, GroupFileError, ConfigError."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        with contextlib.ExitStack() as opened:
            lock = await asyncio.to_thread(lock_node, self.options, self.disk)
            opened.callback(lock.release)
            await asyncio.to_thread(finish_install, self.options.dir, self.disk)
            self.state_file = StateFile(self.disk, group_dir(self.options.dir))
            stored = await asyncio.to_thread(self.state_file.load)
            if stored is None:
                stored = Stored(group="", node=new_node_id())
                await asyncio.to_thread(self.state_file.store, stored)
            self.node = stored.node
            opened.callback(self._stop_thread)
            if stored.group:
                await self.begin()
            try:
                await self.entrance.open()
            except OSError as exc:
                why = f"cannot be listened at: {exc.strerror or exc}"
                raise ConfigError(option="group.listen", value=self.options.listen, why=why) from exc
            self._opened = opened.pop_all()
        self.spawn(self._watch())

    async def ended(self) -> None:
        """Wait until the node fails, and raise the error that ended it."""
        await asyncio.shield(self._ended)

    async def stop(self, *, hand_over_s: float = 0.0) -> None:
        """Stop: hand over as primary if that is possible in time, answer waiting clients, close the log."""
        able = self.thread is not None and self.standing.state == PRIMARY and not self._ended.done()
        if hand_over_s and able and self.links.links:
            assert self.thread is not None
            ms = int(hand_over_s * 1000)
            with contextlib.suppress(TranlogError):
                await asyncio.wrap_future(self.thread.call(lambda core: core.hand_over(NO_NODE, ms)))
            until = self._loop.time() + hand_over_s
            while self.standing.state == PRIMARY and self._loop.time() < until:
                await asyncio.sleep(0.02)
        self.entrance.close()
        for task in list(self._tasks):
            task.cancel()
        await self.orders.restoring.settled()
        try:
            await asyncio.to_thread(self._opened.close)
        finally:
            await self.readers.close()
            await asyncio.sleep(0)  # the last answers
            await self.links.close()
            await self.entrance.end()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background; the end of the node cancels it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stop_thread(self) -> None:
        if self.thread is not None:
            self.thread.stop()

    async def begin(self, admitted: Stored | None = None) -> None:
        """Open the log, and start the core with what the node's file holds. `admitted`: what it is to hold from now
        on, where the log is the group's. Raises as `open_log`.
        """
        stored = admitted or await asyncio.to_thread(self.state_file.load)
        assert stored is not None and stored.group
        own = stored.config.member(stored.node) if stored.config is not None else None
        if own is not None and own.name != self.options.node:
            raise ConfigError(option="group.node", value=self.options.node, why=copied(own, self.options.node))
        log = await asyncio.to_thread(open_log, self.options, stored.group, disk=self.disk, clock=self.clock)
        await asyncio.to_thread(self.state_file.store, stored)  # so that its number is this start's
        self.thread = CoreThread(
            stored,
            self.state_file,
            log,
            self,
            start=self.state_file.number,
            clock=self.clock,
            chance=lambda: self._chance.randrange(1 << 16),
            loop=self._loop,
            flow=FlowControl(self.options.lag_limit_bytes),
        )
        self.thread.start()
        self._loop.call_soon(self.orders.restoring.resume)

    async def _watch(self) -> None:
        """End connections of nodes that are silent."""
        while True:
            await asyncio.sleep(self.standing.config.heartbeat_ms / 1000)
            before = self.silent_before()
            former = self.options.moved_from(self.standing.config, self.node)
            moved = f"; the group looks for this node at {former}: `{self.options.admitting}`, if it moved"
            self.links.end_silent(before, moved if former else "")
            for wire in list(self.entrance.wires):
                if wire.purpose == VOTE and wire.heard < before:
                    wire.end_now(f"nothing was heard for {SILENT_BEATS} heartbeats")

    def silent_before(self) -> float:
        """Return since when a node must have been heard, on the loop's clock."""
        return self._loop.time() - SILENT_BEATS * self.standing.config.heartbeat_ms / 1000

    # --- what the thread says ---

    def stands(self) -> None:
        """Its state, its epoch, its primary or its configuration is another one than before."""
        self.joins.hold_again()
        self.links.settle(self.standing.config, self.node)
        self.links.hurry(self.standing.primary)
        self._tell_primary()

    def _tell_primary(self) -> None:
        """Tell programs that commit who is primary now: whoever looks for it need not wait before it asks again."""
        news = self.primary(0)
        for wire in self.entrance.wires if news.node != NO_NODE else ():
            if wire.purpose == "commit":
                wire.send(news)

    def send(self, to: NodeId, packet: Packet) -> None:
        """Send a packet to a node, over the link to it, or over the node's own connection if there is no link."""
        if not self.links.send(to, packet) and to not in self.links.links:
            for wire in self.entrance.wires:
                if wire.purpose == VOTE and wire.peer == to:
                    wire.send(packet)
                    return

    def restore(self, wanted: Restore) -> None:
        """The node needs the whole log of another node, or an operator ordered it."""
        self.orders.restoring.want(wanted)

    def failed(self, exc: BaseException) -> None:
        """The thread has ended with an error."""

        def end() -> None:
            if not self._ended.done():
                self._ended.set_exception(exc)
                self._ended.exception()  # nobody may ask

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)

    # --- links to others ---

    def join(self) -> Join:
        """Return the Join packet with which this node connects."""
        at = self.standing
        return Join(
            node=self.node,
            node_name=self.options.node,
            purpose=VOTE,
            versions=self.options.versions,
            config=at.config.id,
            last=at.last,
            heartbeat_ms=at.config.heartbeat_ms,
            group=at.config.group,
            process=self.process,
        )

    def hello_refused(self, hello: Hello, member: Member) -> str:
        """Return why the node that answered is not that member."""
        return self.stranger(hello) or (
            ""
            if hello.node == member.node
            else f"the node there is {hello.node_name} with the id {hello.node}, and the group's {member.name} has "
            f"{member.node}; if it was wiped: tranlog group add {member.name} {member.address} --replace"
        )

    def stranger(self, hello: Hello) -> str:
        """Return why the node that answered is of another group; empty if it is of this group, or of none yet."""
        if hello.name != self.options.group or hello.group not in ("", self.standing.config.group):
            return f"the node there is of the group {hello.name} ({hello.group or 'none yet'}), not of this one"
        return ""

    def took(self, wire: Wire, packet: Packet, size: int) -> None:
        """A packet of another node came."""
        self.links.heard[wire.peer] = wire.heard
        if isinstance(packet, OrderAnswer):
            self.orders.settle(wire, packet)
        elif isinstance(packet, GroupOrder):
            self.spawn(self.orders.answer(wire, packet))
        elif not isinstance(packet, _OF_NODES):
            wire.end(f"{type(packet).__name__} from a node")
        elif self.thread is not None:
            self.thread.post(Came(wire.peer, packet, partial(wire.done, size)))
            return
        elif isinstance(packet, Heartbeat) and packet.full is not None:
            self.joins.admitted(wire.peer, packet.full)
        wire.done(size)

    def reached(self, member: Member, hello: Hello) -> None:
        """A member answered at its address; any other process that connected as this node is a copy of it."""
        for wire in list(self.entrance.wires):
            if wire.peer == member.node and wire.purpose == VOTE and differ(wire.process, hello.process):
                wire.end_now(runs_already(member))
        ahead_s = (hello.wall - self.clock.now_ms()) / 1000
        if hello.wall and abs(ahead_s) > CLOCKS_APART_S:
            logger.warning(
                "The clock of another node differs from this one's: set both by NTP. No order goes by it; retention by "
                "age, rollback_limit_s and the times that are shown do. node=%s ahead_s=%d",
                member.name,
                ahead_s,
            )

    def unreachable(self, node: NodeId) -> None:
        """No process listens at a node's address."""
        thread = self.thread
        if thread is not None:
            now = int(self.clock.monotonic() * 1000)
            thread.call(lambda core: core.refused(node, now))

    # --- whoever connects ---

    def met(self, wire: Wire) -> None:
        """Somebody connected."""
        at = self.standing
        wire.send(
            Hello(
                group=at.config.group,
                name=self.options.group,
                node=self.node,
                node_name=self.options.node,
                versions=self.options.versions,
                state=at.state,
                epoch=at.epoch,
                first=NO_GTID,
                last=at.last,
                process=self.process,
                wall=self.clock.now_ms(),
            )
        )

    def take(self, wire: Wire, packet: Packet, size: int) -> None:
        """Take a packet of whoever connected."""
        if not wire.purpose:
            self.joins.let_in(wire, packet)
            wire.done(size)
        elif wire.purpose == VOTE:
            self.links.hurry(wire.peer)
            self.took(wire, packet, size)
        elif wire.purpose == RESTORE:
            self.spawn(self.orders.restoring.served[wire].answer(packet, size))
        elif isinstance(packet, Who):
            wire.send(self.primary(packet.number))
            wire.done(size)
        elif isinstance(packet, GroupOrder) and wire.purpose == "administer":
            self.spawn(self.orders.answer(wire, packet))
            wire.done(size)
        elif isinstance(packet, DiskCall) and wire.purpose == "read":
            log = None if self.thread is None else self.thread.log.log
            self.readers.take(wire, packet, size, self.standing.state, log)
        else:
            self._clients.take(wire, packet, size, self.thread)

    def lost(self, wire: Wire) -> None:
        """Somebody's connection has ended."""
        self._clients.lost(wire)
        self.readers.lost(wire)
        self.orders.restoring.served.pop(wire, None)

    def primary(self, number: int) -> Primary:
        """Return the primary, as far as this node knows it."""
        at = self.standing
        node = self.node if at.state == PRIMARY else at.primary
        return Primary(number=number, node=node, epoch=at.epoch, config=at.config)


def new_node_id() -> NodeId:
    """Return the id of a new node."""
    return NodeId(secrets.token_hex(8))


def found_group(options: NodeOptions) -> Stored:
    """Make a group of this one node, from an empty directory or a log, whose GTIDs stay. Nothing runs there.

    Raises ConfigError if the node is in a group already, or others could not reach it; LogLockedError; as
    `MemberLog.follow`.
    """
    check_name(options.node)
    split_address("group.listen", options.listen)
    check_reachable("group.address", options.reached_at)
    lock = lock_node(options)
    try:
        state = StateFile(OS_DISK, group_dir(options.dir))
        known = state.load()
        if known is not None and known.group:
            raise ConfigError(option="log.dir", value=options.dir, why=f"it is of the group {known.group} already")
        # The history is the log's own, or that of a new one.
        with contextlib.closing(_follow(options, secrets.token_bytes(16), OS_DISK, SYSTEM_CLOCK)) as log:
            group = log.log.history.hex()
        node = new_node_id() if known is None else known.node
        member = Member(node=node, name=options.node, address=options.reached_at)
        config = GroupConfig(group=group, id=ConfigId(0, 1), members=(member,))
        stored = Stored(group=group, node=node, config=config)
        state.store(stored)
        return stored
    finally:
        lock.release()


def _follow(options: NodeOptions, history: bytes, disk: Disk, clock: Clock) -> NodeLog:
    """Open a member's log, or a new one of a history. Raises as `MemberLog.follow`."""
    log_options = replace(options.log, spill_above=min(options.log.spill_above, RECORD_BYTES_MAX))
    return NodeLog.follow(
        options.dir, source_id=options.node, history=history, options=log_options, disk=disk, clock=clock
    )
