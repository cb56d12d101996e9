"""Heartbeats: what a node knows of the others, and tells them: epochs, configurations, commit points.

Owns a node's state as one value, and the first third of its decisions; `reign` adds elections, `core` following. The
hard idea: a beat shows the state of its sender at one moment, and any beat may be lost, late or repeated. So a beat is
valid until a later one comes, and for a few heartbeats at most.

Source: docs/protocol.md, "Elections" 5, "Configuration", "States".
"""

from __future__ import annotations

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules import concern
from tranlog.replication.rules.acks import AckTable
from tranlog.replication.rules.concern import OpenQuestion, Outcome
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, NodeId, election_majority, is_taken
from tranlog.replication.rules.effects import Committed, Effect, EndReign, KeepFrom, Persist, ReplicatedLog, Send, Tell
from tranlog.replication.rules.election import PATIENCE_LEAST, PATIENCE_MOST, Campaign
from tranlog.replication.rules.feed import Feeder, Intake
from tranlog.replication.rules.freshness import NEVER, Freshness
from tranlog.replication.rules.packets import (
    DOWN,
    FATAL,
    NO_GTID,
    PRIMARY,
    RECOVERING,
    REMOVED,
    REPLICA,
    RESTORING,
    ROLLBACK,
    STARTUP,
    UNKNOWN,
    WITNESS,
    Heartbeat,
    Packet,
    Pulse,
)
from tranlog.replication.rules.reading import Position
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import holds


class Peer(msgspec.Struct):
    """The state of another node, from its beats. `told`: when the last one came; `heard` is before everything once a
    connection to it was refused."""

    heard: int = NEVER
    told: int = NEVER
    state: int = STARTUP
    epoch: int = 0
    last: Gtid = NO_GTID
    config: ConfigId = ConfigId()
    pulse: Pulse = Pulse()
    echo: int = -1
    asked: Pulse | None = None
    stands: bool = False


class Handing(msgspec.Struct):
    """A primary that steps down: its successor (NO_NODE: the best node), and until when it tries."""

    to: NodeId
    deadline: int
    force: bool


class Mind(msgspec.Struct):
    """The state of a node that is not stored. Times: ms of its own clock.

    `is_gone`: the last known primary has ended, and this node has not voted since. `config_before`: the id that the
    configuration had before the present reign gave it its epoch, None once there is another configuration.
    """

    epoch: int
    pulse: Pulse
    now: int
    wall: int
    state: int = REPLICA
    config_before: ConfigId | None = None
    primary: NodeId = NO_NODE
    primary_epoch: int = 0
    primary_heard: int = NEVER
    committed: Gtid = NO_GTID
    heard_commit: Gtid = NO_GTID
    batch_commit: Gtid = NO_GTID
    beat_at: int = NEVER
    stand_at: int = 0
    waited: bool = False
    is_gone: bool = False
    campaign: Campaign | None = None
    frozen_until: int = NEVER
    maintenance: int = 0
    reigning_since: int = 0
    takeover_at: int = NEVER
    logged_at: int = 0
    handing: Handing | None = None
    owed: Gtid | None = None
    wish: NodeId = NO_NODE
    fatal: str = ""
    parted: Gtid = NO_GTID
    acks: AckTable = {}
    waiting: list[OpenQuestion] = []
    peers: dict[NodeId, Peer] = {}


class Beating:
    """A node among others."""

    def __init__(
        self,
        stored: Stored,
        log: ReplicatedLog,
        *,
        start: int,
        now: int,
        wall: int,
        committed: Gtid = NO_GTID,
        lost: bool = False,
    ) -> None:
        """Begin, as `stored` says. `start` is a number that no earlier start of this node had.

        `committed`: what the node knows to be committed of its own log. `lost`: the opening found less of the log than
        was synced.
        """
        self.stored = stored
        self.log = log
        epoch = max(stored.epoch, log.last.epoch, self.config.id.epoch)
        self.mind = Mind(epoch=epoch, pulse=Pulse(start, 0), now=now, wall=wall, committed=committed, logged_at=now)
        self.feeder = Feeder()
        self.intake = Intake()
        self._freshness = Freshness()
        self._out: list[Effect] = []
        own = self.config.member(stored.node)
        if lost and (own is None or not own.witness):
            self._persist(owing=True, had=NO_GTID)
        self._set_state(REPLICA)

    @property
    def node(self) -> NodeId:
        """This node."""
        return self.stored.node

    @property
    def config(self) -> GroupConfig:
        """The configuration of this node; one without members if it has none yet."""
        return self.stored.config or GroupConfig(group=self.stored.group)

    def ready(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        out, self._out = self._out, []
        return out

    def confirmed(self) -> int:
        """Return the last of this primary's beats that a majority has answered; -1 for none."""
        counted = [self.mind.pulse.beat]
        for node in self.config.voters:
            peer = self.mind.peers.get(node)
            if node != self.node:
                counted.append(peer.echo if peer is not None and peer.asked is None else -1)
        counted.sort(reverse=True)
        return counted[election_majority(self.config) - 1]

    @property
    def shown(self) -> Gtid:
        """Return up to where readers see this node's log: the part that is committed, and durable here too."""
        return min(self.mind.committed, self.log.durable)

    def position(self) -> Position:
        """Return the position of this node's log for its readers."""
        mind, confirmed = self.mind, self.confirmed()
        if mind.state == PRIMARY and mind.committed.epoch == mind.epoch:
            self._freshness.led(mind.committed, confirmed)
        fresh_at = self._freshness.at(self.shown)
        return Position(self.shown, fresh_at, mind.state == PRIMARY, mind.epoch, confirmed)

    # --- states ---

    def _set_state(self, state: int) -> None:
        """Enter a state, or what stands in its way."""
        own = self.config.member(self.node)
        if self.mind.fatal:
            state = FATAL
        elif own is None:
            state = REMOVED if self.config.members else STARTUP
        elif own.witness:
            state = WITNESS
        elif state == REPLICA and self.mind.maintenance:
            state = RECOVERING
        self.mind.state = state

    def _wake(self, now: int) -> None:
        """Note the time; a primary that heard no majority for long is none any more, before it answers anybody."""
        self.mind.now = max(now, self.mind.now)
        if self.mind.state == PRIMARY and not self._has_quorum():
            self._step_down()

    def _has_quorum(self) -> bool:
        limit = PATIENCE_MOST * self.config.heartbeat_ms
        since = max(self.mind.reigning_since, NEVER)
        heard = [self.mind.now]
        for node in self.config.voters:
            if node != self.node:
                peer = self.mind.peers.get(node)
                heard.append(max(since, peer.heard if peer is not None else NEVER))
        heard.sort(reverse=True)
        return self.mind.now - heard[election_majority(self.config) - 1] <= limit

    def _hears_primary(self) -> bool:
        heard = self.mind.now - self.mind.primary_heard < PATIENCE_LEAST * self.config.heartbeat_ms
        return self.mind.primary != NO_NODE and heard

    def _alive(self, peer: Peer) -> bool:
        return self.mind.now - peer.heard <= PATIENCE_LEAST * self.config.heartbeat_ms

    def seen_state(self, node: NodeId) -> int:
        """Return the state of another node: as it told it, DOWN where it has been silent since for long."""
        peer = self.mind.peers.get(node)
        if peer is None or peer.told == NEVER:
            return UNKNOWN
        silent = self.mind.now - peer.heard > PATIENCE_MOST * self.config.heartbeat_ms
        return DOWN if silent else peer.state

    def _may_stand(self) -> bool:
        """Whether this node would be primary: not a frozen one, nor one in maintenance or that lost its log."""
        own, mind = self.config.member(self.node), self.mind
        able = own is not None and own.electable and mind.state == REPLICA
        return able and not self.stored.owing and mind.now >= mind.frozen_until

    def _step_down(self) -> None:
        """Be primary no more. Acks are void, and whoever waits is answered."""
        mind = self.mind
        kind = concern.FAILED_OVER if mind.epoch > mind.primary_epoch else concern.NOT_PRIMARY
        mind.state, mind.primary, mind.primary_heard, mind.handing = REPLICA, NO_NODE, NEVER, None
        mind.stand_at = mind.now + PATIENCE_MOST * self.config.heartbeat_ms
        mind.acks = {}
        self._set_state(REPLICA)
        self._out.append(EndReign())
        waiting, mind.waiting = mind.waiting, []
        for one in waiting:
            self._tell(one, kind)

    def _tell(self, waiting: OpenQuestion, kind: str, written_to: tuple[str, ...] = ()) -> None:
        waited = self.mind.now - waiting.since
        outcome = Outcome(kind, waiting.gtid, written_to, waited, self.mind.primary)
        self._out.append(Tell(waiting.number, outcome))

    def _see_epoch(self, epoch: int) -> None:
        """Learn of a later epoch: whoever is primary, or stands, of an earlier one is so no more."""
        if epoch > self.mind.epoch:
            self.mind.epoch = epoch
            self.mind.campaign = None
            if self.mind.state == PRIMARY:
                self._step_down()

    def _send(self, to: NodeId, packet: Packet) -> None:
        self._out.append(Send(to, packet))

    def _persist(self, **changes: object) -> None:
        self.stored = msgspec.structs.replace(self.stored, **changes)
        self._out.append(Persist(self.stored))

    def _install(self, config: GroupConfig) -> None:
        was_primary, terms = self.mind.state == PRIMARY, self._terms()
        self.mind.config_before = None
        if (config.rollback_limit_s, config.rollback_ddl) != (self.config.rollback_limit_s, self.config.rollback_ddl):
            self.mind.fatal = ""  # what may be rolled back is judged again
        own = config.member(self.node)
        self._persist(config=config, owing=self.stored.owing and (own is None or not own.witness))
        if was_primary and (own is None or not own.electable):
            self._step_down()
        elif not was_primary:
            self._set_state(self.mind.state if self.mind.state in (ROLLBACK, RESTORING) else REPLICA)
        for node in self.mind.peers.keys() - {member.node for member in config.members}:
            self.mind.acks.pop(node, None)
        if self._terms() != terms:
            self.intake.stop()
        self._see_epoch(config.id.epoch)

    def _terms(self) -> tuple[object, ...]:
        """Return what of the configuration this node's stream goes by: its source was chosen and told when it began."""
        ends = [self.config.member(node) for node in (self.node, self.intake.source)]
        return self.config.chaining, *((one.delay_ms, one.hidden) for one in ends if one is not None)

    # --- beats ---

    def _beat_all(self) -> None:
        mind = self.mind
        mind.pulse = Pulse(mind.pulse.start, mind.pulse.beat + 1)
        self._freshness.sent(mind.pulse.beat, mind.now)
        for member in self.config.members:
            if member.node != self.node:
                self._beat(member.node)

    def _beat(self, to: NodeId) -> None:
        mind, log = self.mind, self.log
        peer = mind.peers.get(to) or Peer()
        owed, leads = None, mind.state == PRIMARY and mind.committed.epoch == mind.epoch
        if mind.state == PRIMARY and peer.asked is not None and mind.committed.epoch == mind.epoch:
            owed = mind.committed if self.confirmed() > peer.asked.beat else None
        self._send(
            to,
            Heartbeat(
                epoch=mind.epoch,
                state=mind.state,
                last=log.last,
                durable=log.durable,
                committed=mind.committed,
                config=self.config.id,
                pulse=mind.pulse,
                echo=peer.pulse,
                asks=self.stored.owing,
                stands=self._may_stand(),
                owed=owed,
                full=self.config if peer.config < self.config.id else None,
                confirmed_ms=mind.now - self._freshness.sent_at(self.confirmed()) if leads else -1,
            ),
        )

    def _on_beat(self, sender: NodeId, beat: Heartbeat) -> None:
        mind, full = self.mind, beat.full
        ours = full is not None and full.group == self.stored.group
        if full is not None and ours and is_taken(self.config, full, own=self.node, sender=sender):
            self._install(full)
        if self.config.member(sender) is None:
            if beat.config < self.config.id:
                mind.peers.setdefault(sender, Peer()).config = beat.config
                self._beat(sender)
                del mind.peers[sender]
            return
        self._see_epoch(beat.epoch)
        peer = mind.peers.setdefault(sender, Peer())
        if beat.pulse.start == peer.pulse.start and beat.pulse.beat < peer.pulse.beat:
            return  # overtaken by a later one
        peer.heard = peer.told = mind.now
        peer.state, peer.epoch, peer.last = beat.state, beat.epoch, beat.last
        peer.config, peer.pulse, peer.stands = beat.config, beat.pulse, beat.stands
        if beat.epoch == mind.epoch and beat.echo.start == mind.pulse.start and not beat.asks:
            peer.echo = max(peer.echo, beat.echo.beat)
        if not beat.asks:
            peer.asked = None
        else:
            mind.acks.pop(sender, None)
        if beat.asks and (peer.asked is None or peer.asked.start != beat.pulse.start):
            peer.asked = Pulse(beat.pulse.start, mind.pulse.beat)
        if beat.state == PRIMARY and beat.epoch >= mind.epoch:
            mind.primary, mind.primary_epoch, mind.primary_heard = sender, beat.epoch, mind.now
            mind.campaign, mind.waited, mind.is_gone = None, False, False
            if beat.owed is not None and beat.echo.start == mind.pulse.start and self.stored.owing:
                mind.owed = beat.owed
            if beat.confirmed_ms >= 0 and beat.echo.start == mind.pulse.start:
                self._freshness.told(beat.committed, beat.echo.beat, beat.confirmed_ms, own=self.shown)
            if self.node in self.config.voters:
                self._beat(sender)  # at once, since readers wait until a majority has answered
        elif sender == mind.primary:
            mind.primary, mind.primary_heard = NO_NODE, NEVER
        if holds(self.log, beat.durable):  # whomever it follows now: a former source would else keep its log for ever
            self._out.append(KeepFrom(f"node.{sender}", beat.durable.seqno + 1, held=True))
        self._hear_commit(beat.committed)

    def _hear_commit(self, committed: Gtid) -> None:
        """Take a commit point that this log holds; one that it does not hold yet waits."""
        self.mind.heard_commit = max(self.mind.heard_commit, committed)
        self._take_commit(committed)

    def _take_commit(self, committed: Gtid) -> None:
        if self.mind.state != PRIMARY and self.mind.committed < committed and holds(self.log, committed):
            self.mind.committed = committed
            self._out.append(Committed(committed))
