"""The nodes of a simulated group, and what happens to them: the real core, log and recovery of each, in one thread.

Owns what a node's shell does around its core, and what the checkers are shown of it. What clients do, and runs, is
`cluster`'s.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from sim.checkers import Checkers
from sim.network import Agenda, SimClock, SimNetwork
from sim.node import GROUP, PART_BYTES, SMALL, SimNode
from tranlog.errors import ConfigError, NotPrimaryError
from tranlog.ids import Gtid
from tranlog.log.options import LogOptions
from tranlog.log.writing.allocation import Allocation
from tranlog.replication.acting.following import LogChange, ToTheLog
from tranlog.replication.rules import concern
from tranlog.replication.rules.config import MAJORITY, ConfigId, GroupConfig, Member, NodeId, check
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import (
    BeginReign,
    Committed,
    Effect,
    EndReign,
    Fatal,
    KeepAlive,
    Persist,
    Restore,
    RollBack,
    Send,
    Tell,
)
from tranlog.replication.rules.packets import (
    NO_GTID,
    PRIMARY,
    REPLICA,
    WITNESS,
    Ack,
    Packet,
    PreVote,
    Vote,
    Voted,
    decode,
    encode,
)
from tranlog.testing.disk import PowerCut

TICK_MS = 50
TRACE_STEPS = 30


class HeldPlace(msgspec.Struct, eq=False):
    """A place in a primary's log that is not filled yet."""

    node: NodeId
    starts: int
    allocation: Allocation | None = None


class Counts(msgspec.Struct):
    """What a run did."""

    steps: int = 0
    elections: int = 0
    commits: int = 0
    acknowledged: int = 0
    rollbacks: int = 0
    restores: int = 0
    crashes: int = 0


class SimGroup:
    """Nodes on a network, from one seed. The clock of everything is `agenda.now`, ms."""

    def __init__(
        self,
        seed: int,
        *,
        config: GroupConfig | None = None,
        skew: int = 0,
        options: LogOptions = SMALL,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.checkers = Checkers()
        self.counts = Counts()
        self.trace: deque[tuple[object, ...]] = deque(maxlen=TRACE_STEPS)
        self.network = SimNetwork(self.rng, self.agenda, self._deliver)
        self.nodes: dict[NodeId, SimNode] = {}
        self.answers: dict[int, concern.Outcome] = {}
        self.asked: dict[int, tuple[NodeId, Gtid, int | str | None]] = {}
        self.crash_rate = 0.0
        self.may_be_fatal = False
        self.log_options = options
        self.part_bytes = part_bytes
        self.sync_ms: Callable[[], int] | None = None
        self.slow_sync_ms = 20
        self.over_the_wire = self.rng.random() < 0.1
        self._skew = skew
        self._requests: dict[tuple[NodeId, NodeId, int], Vote | PreVote] = {}
        config = config or draw_config(self.rng)
        for member in config.members:
            self.add(member.node, config)

    # --- nodes ---

    def add(self, node: NodeId, config: GroupConfig | None) -> None:
        """Start a new node with an empty log."""
        clock = SimClock(self.agenda, pace=self.rng.uniform(0.95, 1.05), wrong_by_ms=self._skew)
        one = self.nodes[node] = SimNode(node, config, clock, self.log_options, self.part_bytes)
        one.disk.sync_ms = self.sync_ms
        self.checkers.persisted(one.stored)
        self.start(node)
        self.agenda.after(self.rng.randrange(TICK_MS), lambda: self._tick(node))

    def start(self, node: NodeId) -> None:
        """Start a node that is down and not gone: its log is recovered, its vote read."""
        one = self.nodes.get(node)
        if one is None or one.core is not None:
            return
        other = one.lost or one.restored
        with self._power(node):
            epoch = one.open().mind.epoch
            one.restored = False
            self.checkers.started(node, epoch, one.stored)
            self.checkers.reopened(one, other=other)
            self._note("start", node, one.picture.last, one.stored.epoch)
            self._carry_out(node)

    @contextmanager
    def _power(self, node: NodeId) -> Iterator[None]:
        """Take a node down where its power goes meanwhile; it starts again by itself."""
        try:
            yield
        except PowerCut:
            self.crash(node)
            self.agenda.after(self.rng.choice((0, 300, 3000)), lambda: self.start(node))

    def crash(self, node: NodeId, *, lose: int = 0) -> None:
        """Take a node's power away; `lose` transactions more than a disk may lose."""
        one = self.nodes[node]
        if one.core is None and not one.disk.dead:
            return
        one.power_cut(self.rng)
        if lose:
            one.lose(lose)
        for number, (asked, _, _) in self.asked.items():
            if asked == node:
                self.answers.setdefault(number, CUT_OFF)  # the client sees its connection end
        self.counts.crashes += 1
        self._note("crash", node, one.picture.last, lose)

    def pause(self, node: NodeId, ms: int) -> None:
        """Stop a node's program for a while; what arrives meanwhile waits."""
        one = self.nodes[node]
        if one.core is not None and one.paused is None:
            one.paused = []
            starts = one.starts
            self._note("pause", node, ms)
            self.agenda.after(ms, lambda: self._resume(node, starts))

    def _resume(self, node: NodeId, starts: int) -> None:
        one = self.nodes.get(node)
        if one is None or one.starts != starts:
            return
        waiting, one.paused = one.paused or [], None
        while waiting:
            waiting.pop(0)()
            if one.is_paused():  # its disk is slow
                one.wait(waiting)
                return

    def up(self) -> dict[NodeId, Core]:
        """Return the cores of nodes that run."""
        return {node: one.core for node, one in self.nodes.items() if one.core is not None and one.paused is None}

    def primaries(self) -> list[NodeId]:
        """Return who takes itself for the primary."""
        return [node for node, core in self.up().items() if core.mind.state == PRIMARY]

    # --- events ---

    def _note(self, *what: object) -> None:
        self.trace.append((self.agenda.now, *what))

    def _tick(self, node: NodeId) -> None:
        if node not in self.nodes:
            return
        one = self.nodes[node]
        if one.core is not None and one.paused is None:
            one.core.tick(one.clock.now(), one.clock.wall(), self.rng.randrange(1 << 16))
            self._carry_out(node)
        self.agenda.after(TICK_MS, lambda: self._tick(node))

    def _deliver(self, sender: NodeId, to: NodeId, packet: Packet) -> None:
        one = self.nodes.get(to)
        if one is None or one.core is None:
            sending = self.nodes.get(sender)
            if sending is not None and sending.core is not None and sending.paused is None:
                sending.core.refused(to, sending.clock.now())
            return
        if one.paused is not None:
            one.paused.append(lambda: self._deliver(sender, to, packet))
            return
        self.counts.steps += 1
        self._note(sender, "to", to, packet)
        if isinstance(packet, Vote):
            self._requests[to, sender, packet.epoch] = packet
        if self.over_the_wire:
            packet = decode(encode(packet))
        one.core.step(sender, packet, one.clock.now())
        one.core.confirm(one.wishes, one.clock.now())
        self._carry_out(to)

    def _sync(self, node: NodeId, starts: int) -> None:
        one = self.nodes.get(node)
        if one is None or one.starts != starts:
            return
        if one.paused is not None:
            one.paused.append(lambda: self._sync(node, starts))
            return
        if one.core is not None:
            with self._power(node):
                one.open_log.sync()
                one.picture.durable = one.open_log.durable
                one.core.durable()
                self._carry_out(node)

    def _logged(self, one: SimNode, core: Core) -> None:
        """Look at what came to a log, tell its core, and have it synced soon."""
        self.checkers.appended(one)
        core.logged()
        starts = one.starts
        self.agenda.after(self.rng.randint(0, self.slow_sync_ms), lambda: self._sync(one.node, starts))

    def _carry_out(self, node: NodeId) -> None:
        """Do what a core wants, in order; the power may go at any call of the disk, and a sync takes its time."""
        one = self.nodes[node]
        core = one.core
        if self.crash_rate and self.rng.random() < self.crash_rate:
            one.disk.cut_at = one.disk.calls + self.rng.randint(1, 12)
        with self._power(node):
            while core is not None:
                one.todo += core.ready()
                if not one.todo:
                    break
                self._do(node, one, core, one.todo.pop(0))
                if one.core is not core:
                    return
                one.picture.durable = one.open_log.durable  # a segment that ends is synced, whatever came of the effect
                if self._waits(one):
                    return
        if core is not None and one.core is core:
            self.checkers.stepped(
                node, core.mind.epoch, core.mind.state, writes=core.accepts_writes, reads=core.serves_reads
            )

    def _waits(self, one: SimNode) -> bool:
        """Whether the disk took so long that what is left to do has to wait."""
        waited, one.disk.waited_ms = one.disk.waited_ms, 0
        if not waited or not one.todo:
            return False
        starts = one.starts
        one.paused = [lambda: self._carry_out(one.node)]
        self.agenda.after(waited, lambda: self._resume(one.node, starts))
        return True

    def _do(self, node: NodeId, one: SimNode, core: Core, effect: Effect) -> None:
        match effect:
            case Send(to=to, packet=packet):
                self._look(node, one, core, to, packet)
                self.network.send(node, to, packet)
            case Persist(stored=stored):
                if core.mind.state == PRIMARY and stored.config is not None and one.stored.config is not None:
                    old = one.stored.config
                    having = {n for n, x in self.nodes.items() if (x.stored.config or EMPTY).id >= old.id}
                    self.checkers.installed(old, stored.config, having | self.lost())
                one.store(stored)
                self.checkers.persisted(stored)
            case Committed(gtid=gtid):
                self.checkers.committed(node, gtid, one.picture, core.mind.epoch)
                if core.mind.state == PRIMARY and core.mind.epoch == core.mind.primary_epoch:
                    pictures = {name: other.picture for name, other in self.nodes.items()}
                    self.checkers.reached(node, gtid, core.config, pictures, self.lost(), core.mind.epoch)
                one.open_log.carry_out(effect)
                self.counts.commits += 1
            case Tell(number=number, outcome=outcome):
                self._told(number, outcome)
            case RollBack(matchpoint=matchpoint, last=last):
                one.going_back, before = matchpoint, [row.gtid for row in one.picture.rows]
                if one.cut_in_rollback:
                    one.disk.cut_at, one.cut_in_rollback = one.disk.calls + one.cut_in_rollback, 0
                one.open_log.carry_out(effect)
                one.going_back = None
                self.checkers.rolled_back(one, matchpoint, before)
                one.picture.cut(matchpoint)
                self.counts.rollbacks += 1
                self._note("rolled back", node, matchpoint, "from", last)
                core.rolled_back()
            case Restore(source=source):
                self._restore(node, one, core, source)
            case Fatal(text=text):
                self._note("fatal", node, text)
                if not self.may_be_fatal:
                    self.checkers.fatal(node, text)
            case BeginReign(epoch=epoch):
                self.checkers.elected(node, epoch, one.picture, acks=len(core.mind.acks))
                self.counts.elections += 1
                self._note("elected", node, epoch)
                self._to_log(one, core, effect)
            case KeepAlive():
                self._fill_all(one, core)
                self._to_log(one, core, effect)
            case EndReign():
                self._note("steps down", node, core.mind.epoch)
                one.places.clear()
                self._to_log(one, core, effect)
            case _ if isinstance(effect, ToTheLog):
                self._to_log(one, core, effect)
            case _:
                raise AssertionError(effect)

    def _to_log(self, one: SimNode, core: Core, effect: ToTheLog) -> None:
        match one.open_log.carry_out(effect):
            case LogChange.LOGGED:
                self._logged(one, core)
            case LogChange.UNUSABLE:
                core.unusable()
            case _ if isinstance(effect, EndReign):
                self._logged(one, core)  # places that nobody filled are empty now, and all is durable

    def _look(self, node: NodeId, one: SimNode, core: Core, to: NodeId, packet: Packet) -> None:
        if isinstance(packet, Voted):
            last = None if core.mind.state == WITNESS else one.picture.last
            request = self._requests.get((node, to, packet.epoch))
            self.checkers.voted(
                node, to, packet, request=request, last=last, state=core.mind.state, owing=core.stored.owing
            )
        elif isinstance(packet, Vote):
            self.checkers.voted(
                node,
                node,
                Voted(epoch=packet.epoch, pre=False, why="", known=packet.epoch),
                request=None,
                last=None,
                state=REPLICA,
                owing=core.stored.owing,
            )
        elif isinstance(packet, Ack):
            self.checkers.acked(node, packet, one.open_log.durable, one.stored.epoch)

    def _restore(self, node: NodeId, one: SimNode, core: Core, source: NodeId) -> None:
        other = self.nodes.get(source)
        if other is None or other.core is None or (node, source) in self.network.cuts:
            core.rolled_back()
            return
        one.restored = True
        one.restore(other)
        self.counts.restores += 1
        self._note("restored", node, "from", source, other.picture.last)
        self.start(node)

    def lost(self) -> set[NodeId]:
        """Return the nodes whose disks lost what was synced, or are gone, and who have not made up for it."""
        lost = {node for node, one in self.nodes.items() if one.lost or one.stored.owing}
        members = {member.node for one in self.nodes.values() for member in (one.stored.config or EMPTY).members}
        return lost | (members - self.nodes.keys())

    def _complete(self, one: SimNode, core: Core, place: HeldPlace) -> str:
        allocation, place.allocation = place.allocation, None
        if place in one.places:
            one.places.remove(place)
        if allocation is None:
            return "complete"
        try:
            allocation.complete(sync=False)
        except NotPrimaryError:
            self.checkers.left_empty(one, allocation.gtid)
            return "not primary"
        self._logged(one, core)
        return "complete"

    def _fill_all(self, one: SimNode, core: Core) -> None:
        """Complete what has its place: whoever appends may have to wait for it, and nobody else is there to do it."""
        while one.places:
            self._complete(one, core, one.places[0])

    def _told(self, number: int, outcome: concern.Outcome) -> None:
        self.answers[number] = outcome
        node, gtid, w = self.asked[number]
        satisfied = outcome.kind == concern.SATISFIED
        members = {member.name: member.node for member in (self.nodes[node].stored.config or EMPTY).members}
        told = {members[name] for name in outcome.written_to} - self.lost()
        self.checkers.written(gtid, {name: self.nodes[name].picture for name in told})
        if satisfied:
            self.counts.acknowledged += 1
        self.checkers.answered(
            gtid, majority=satisfied and w == MAJORITY, rolled_back=outcome.kind == concern.ROLLED_BACK
        )


CUT_OFF = concern.Outcome("cut off", NO_GTID)
EMPTY = GroupConfig(group=GROUP)


def draw_config(rng: random.Random) -> GroupConfig:
    """Return a group of one to seven nodes that can work."""
    while True:
        count = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 7))
        members = [draw_member(rng, NodeId("abcdefg"[at])) for at in range(count)]
        config = GroupConfig(
            group=GROUP,
            id=ConfigId(0, 1),
            members=tuple(members),
            chaining=rng.random() < 0.8,
            keep_alive_s=rng.choice((5, 600)),
            rollback_limit_s=1_000_000,  # clocks jump for hours
        )
        try:
            check(config)
        except ConfigError:
            continue
        return config


def draw_member(rng: random.Random, node: NodeId) -> Member:
    """Return a member: most are plain ones."""
    tags = {"site": rng.choice("xyz")}
    match rng.randrange(12):
        case 0 | 1:
            return Member(node=node, name=node, witness=True, priority=0)
        case 2:
            return Member(node=node, name=node, priority=0, hidden=True, tags=tags)
        case 3:
            return Member(node=node, name=node, priority=0, delay_ms=1500, tags=tags)
        case 4:
            return Member(node=node, name=node, priority=0, votes=0, tags=tags)
        case _:
            return Member(node=node, name=node, priority=rng.choice((1, 1, 1, 2, 5)), tags=tags)
