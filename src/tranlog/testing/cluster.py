"""A group of nodes in one thread, from one seed: the real core of each, a log, a network, clocks, and faults.

`Cluster(seed)` draws a group and the faults of its run (a swarm: each run leaves some out), plays them, mends
everything and waits until the group is whole. The checkers look after every step; the same seed takes the same steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgspec

from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.replication.rules import concern
from tranlog.replication.rules.config import (
    MAJORITY,
    ConfigId,
    GroupConfig,
    Member,
    NodeId,
    check,
)
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import (
    BeginReign,
    Committed,
    DropChunks,
    Effect,
    EndReign,
    Fatal,
    KeepAlive,
    KeepFrom,
    Persist,
    Put,
    PutChunk,
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
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import MARK, SAVE
from tranlog.testing.checkers import Checkers
from tranlog.testing.model_log import NOOP, ModelLog
from tranlog.testing.network import Agenda, SimClock, SimNetwork

GROUP = "sim"
TICK_MS = 50
FAULTY_MS = 20_000
HEALED_MS = 120_000
"""Within so long after the last fault the group is whole."""
TRACE_STEPS = 30


class SimNode:
    """One node: what survives it, and its core while it runs."""

    def __init__(self, node: NodeId, config: GroupConfig | None, clock: SimClock, log: ModelLog) -> None:
        self.stored = Stored(group=GROUP, node=node, config=config)
        self.clock = clock
        self.log = log
        self.core: Core | None = None
        self.committed = NO_GTID
        self.starts = 0
        self.lost = False
        self.paused: list[Callable[[], None]] | None = None
        self.sync_due = False


class Counts(msgspec.Struct):
    """What a run did."""

    steps: int = 0
    elections: int = 0
    commits: int = 0
    acknowledged: int = 0
    rollbacks: int = 0
    restores: int = 0
    crashes: int = 0


class Cluster:
    """A group that is run from one seed. The clock of everything is `agenda.now`, ms."""

    def __init__(self, seed: int, *, config: GroupConfig | None = None, skew: int = 0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.checkers = Checkers()
        self.counts = Counts()
        self.trace: deque[tuple[object, ...]] = deque(maxlen=TRACE_STEPS)
        self.network = SimNetwork(self.rng, self.agenda, self._deliver)
        self.nodes: dict[NodeId, SimNode] = {}
        self.answers: dict[int, concern.Outcome] = {}
        self.asked: dict[int, tuple[NodeId, Gtid, int | str]] = {}
        self.crash_rate = 0.0
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
        self.nodes[node] = SimNode(node, config, clock, ModelLog())
        self.start(node)
        self.agenda.after(self.rng.randrange(TICK_MS), lambda: self._tick(node))

    def start(self, node: NodeId) -> None:
        """Start a node that is down."""
        one = self.nodes[node]
        if one.core is not None:
            return
        one.starts += 1
        one.paused = None
        lost, one.lost = one.lost, False
        committed = one.committed if one.log.gtid(one.committed.seqno) == one.committed else NO_GTID
        clock = one.clock
        one.core = Core(
            one.stored, one.log, start=one.starts, now=clock.now(), wall=clock.wall(), committed=committed, lost=lost
        )
        self.checkers.started(node, one.core.mind.epoch)
        self._note("start", node, one.log.last, one.stored.epoch)
        self._carry_out(node)

    def crash(self, node: NodeId, *, lose: int = 0) -> None:
        """Take a node's power away; `lose` transactions more than a disk may lose."""
        one = self.nodes[node]
        if one.core is None:
            return
        one.core = None
        one.paused = None
        one.log.crash(self.rng)
        if lose and one.log.entries:
            one.log.lose_synced(lose)
            one.lost = True
        for number, (asked, _, _) in self.asked.items():
            if asked == node:
                self.answers.setdefault(number, CUT_OFF)  # the client sees its connection end
        self.counts.crashes += 1
        self._note("crash", node, one.log.last, lose)

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
        if one is not None and one.starts == starts and one.paused is not None:
            waiting, one.paused = one.paused, None
            for action in waiting:
                action()

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
        self._carry_out(to)

    def _sync(self, node: NodeId, starts: int) -> None:
        one = self.nodes.get(node)
        if one is None or one.starts != starts:
            return
        if one.paused is not None:
            one.paused.append(lambda: self._sync(node, starts))
            return
        one.sync_due = False
        if one.core is not None:
            one.log.sync()
            one.core.durable()
            self._carry_out(node)

    def _logged(self, node: NodeId, since: int) -> None:
        """Look at what came to a log, tell its core, and have it synced soon."""
        one = self.nodes[node]
        assert one.core is not None
        self.checkers.appended(node, one.log, since)
        one.core.logged()
        starts = one.starts
        self.agenda.after(self.rng.randint(0, self.slow_sync_ms), lambda: self._sync(node, starts))

    def _carry_out(self, node: NodeId) -> None:
        """Do what a core wants, in order; the power may go between any two of it."""
        one = self.nodes[node]
        core = one.core
        while core is not None and (effects := core.ready()):
            for effect in effects:
                if self.crash_rate and self.rng.random() < self.crash_rate:
                    self.crash(node)
                if one.core is not core:
                    return
                self._do(node, one, core, effect)
        if core is not None and one.core is core:
            self.checkers.stepped(
                node, core.mind.epoch, core.mind.state, writes=core.accepts_writes, reads=core.serves_reads
            )

    def _do(self, node: NodeId, one: SimNode, core: Core, effect: Effect) -> None:
        log, wall = one.log, one.clock.wall()
        match effect:
            case Send(to=to, packet=packet):
                self._look(node, one, core, to, packet)
                self.network.send(node, to, packet)
            case Persist(stored=stored):
                if core.mind.state == PRIMARY and stored.config is not None and one.stored.config is not None:
                    old = one.stored.config
                    having = {n for n, x in self.nodes.items() if (x.stored.config or EMPTY).id >= old.id}
                    self.checkers.installed(old, stored.config, having | self.lost())
                one.stored = stored
                self.checkers.persisted(stored)
            case Put(raw=raw):
                since = log.last.seqno + 1
                try:
                    log.put(raw, wall)
                except ValueError:
                    core.unusable()
                self._logged(node, since)
            case PutChunk(chunk=chunk):
                log.put_chunk(chunk)
            case DropChunks(oid=oid):
                log.spilled.pop(oid, None)
            case BeginReign(epoch=epoch):
                self.checkers.elected(node, epoch, log, acks=len(core.mind.acks))
                self.counts.elections += 1
                self._note("elected", node, epoch)
                log.begin_reign(epoch, wall)
                self._logged(node, log.last.seqno)
            case KeepAlive():
                log.append(NOOP, wall)
                self._logged(node, log.last.seqno)
            case Committed(gtid=gtid):
                self.checkers.committed(node, gtid, log, core.mind.epoch)
                if core.mind.state == PRIMARY and core.mind.epoch == core.mind.primary_epoch:
                    logs = {name: other.log for name, other in self.nodes.items()}
                    self.checkers.reached(node, gtid, core.config, logs, self.lost(), core.mind.epoch)
                one.committed = gtid
                self.counts.commits += 1
            case Tell(number=number, outcome=outcome):
                self._told(number, outcome)
            case RollBack():
                self._roll_back(node, one, core, effect)
            case Restore(source=source):
                self._restore(node, one, core, source)
            case KeepFrom(name=name, seqno=seqno):
                log.keep(name, seqno)
            case Fatal(text=text):
                self.checkers.fatal(node, text)
            case EndReign():
                self._note("steps down", node, core.mind.epoch)
            case _:
                raise AssertionError(effect)

    def _look(self, node: NodeId, one: SimNode, core: Core, to: NodeId, packet: Packet) -> None:
        if isinstance(packet, Voted):
            last = None if core.mind.state == WITNESS else one.log.last
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
            self.checkers.acked(node, packet, one.log, one.stored.epoch)

    def _roll_back(self, node: NodeId, one: SimNode, core: Core, plan: RollBack) -> None:
        before = [entry.gtid for entry in one.log.entries]
        for step in plan.steps:
            if step == SAVE:
                one.log.save(plan.matchpoint, one.clock.wall())
            elif step == MARK:
                one.log.abandon_after(plan.matchpoint)
                self.checkers.rolled_back(node, plan.matchpoint, before, one.log)
            if self.crash_rate and self.rng.random() < 0.2:
                self.crash(node)
                return
        self.counts.rollbacks += 1
        self._note("rolled back", node, plan.matchpoint, "from", plan.last)
        core.rolled_back()

    def _restore(self, node: NodeId, one: SimNode, core: Core, source: NodeId) -> None:
        other = self.nodes.get(source)
        if other is not None and other.core is not None and (node, source) not in self.network.cuts:
            one.log.become(other.log)
            one.committed = NO_GTID
            core.mind.committed = NO_GTID
            self.checkers.started(node, core.mind.epoch)
            self.counts.restores += 1
            self._note("restored", node, "from", source, one.log.last)
        core.rolled_back()

    def lost(self) -> set[NodeId]:
        """Return the nodes whose disks lost what was synced, or are gone, and who have not made up for it."""
        lost = {node for node, one in self.nodes.items() if one.lost or one.stored.owing}
        members = {member.node for one in self.nodes.values() for member in (one.stored.config or EMPTY).members}
        return lost | (members - self.nodes.keys())

    # --- clients ---

    def write(
        self, node: NodeId, text: str, w: int | str, timeout_ms: int = 5000, *, chunks: tuple[bytes, ...] = ()
    ) -> int:
        """Commit a transaction at a primary; return the number of the question whether `w` is met."""
        one = self.nodes[node]
        assert one.core is not None and one.core.accepts_writes
        gtid = one.log.append(text, one.clock.wall(), chunks=chunks)
        self._logged(node, gtid.seqno)
        return self.ask(node, gtid, w, timeout_ms)

    def ask(self, node: NodeId, gtid: Gtid, w: int | str, timeout_ms: int = 5000) -> int:
        """Ask a node whether `w` is met for a GTID; return the number of the question."""
        one = self.nodes[node]
        assert one.core is not None
        number = len(self.asked)
        self.asked[number] = (node, gtid, w)
        try:
            one.core.ask(number, gtid, w, timeout_ms)
        except ConfigError:
            self.asked.pop(number)
            self.asked[number] = (node, gtid, 0)
            one.core.ask(number, gtid, 0, timeout_ms)
        self._carry_out(node)
        return number

    def _told(self, number: int, outcome: concern.Outcome) -> None:
        self.answers[number] = outcome
        node, gtid, w = self.asked[number]
        satisfied = outcome.kind == concern.SATISFIED
        members = {member.name: member.node for member in (self.nodes[node].stored.config or EMPTY).members}
        told = {members[name] for name in outcome.written_to} - self.lost()
        self.checkers.written(gtid, {name: self.nodes[name].log for name in told})
        if satisfied:
            self.counts.acknowledged += 1
        self.checkers.answered(
            gtid, majority=satisfied and w == MAJORITY, rolled_back=outcome.kind == concern.ROLLED_BACK
        )

    # --- runs ---

    def run(self, ms: int) -> None:
        """Let time pass."""
        until = self.agenda.now + ms
        while (action := self.agenda.next(until)) is not None:
            action()
        self.agenda.now = until

    def run_until(self, done: Callable[[], bool], ms: int) -> bool:
        """Let time pass until something is so, looked at a few times a second; return whether it came to be."""
        until = self.agenda.now + ms
        while not done():
            if self.agenda.now >= until:
                return False
            self.run(min(200, until - self.agenda.now))
        return True

    def is_whole(self) -> bool:
        """Whether there is one primary, and every log is its log and committed."""
        primaries = self.primaries()
        if len(primaries) != 1:
            return False
        primary = self.nodes[primaries[0]]
        config = primary.stored.config
        if config is None or primary.core is None or primary.core.mind.committed != primary.log.last:
            return False
        for member in config.members:
            one = self.nodes.get(member.node)
            if one is None or one.core is None or one.core.config.id != config.id or one.core.stored.owing:
                return False
            if not member.witness and (one.log.last, one.core.mind.committed) != (primary.log.last,) * 2:
                return False
        return True


CUT_OFF = concern.Outcome("cut off", NO_GTID)
EMPTY = GroupConfig(group=GROUP)


def shown(what: object) -> str:
    """Return a step's part as people read it: of a packet what differs from the default."""
    if not isinstance(what, Packet):
        return str(what)
    told = []
    for field in msgspec.structs.fields(what):
        value = getattr(what, field.name)
        if value != field.default and field.name != "full":
            told.append(f"{field.name}={value}")
    return f"{type(what).__name__}({', '.join(told)})"


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
