"""What tests of replication share: a group of plain members, and cores over model logs, without a network."""

from __future__ import annotations

from collections.abc import Sequence

from sim.model_log import ModelLog
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.rules.beats import Peer
from tranlog.replication.rules.config import ConfigId, GroupConfig, Member, NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import BeginReign, Effect, Persist, Put, Send
from tranlog.replication.rules.packets import NO_GTID, Heartbeat, Packet, Pulse, Vote, Voted
from tranlog.replication.rules.stored import Stored

A, B, C, D, E = (NodeId(one) for one in "abcde")
HEARTBEAT = 250
LONG = 8 * HEARTBEAT + 1
"""Longer than any patience."""


def gtid(epoch: int, seqno: int) -> Gtid:
    """Return a GTID."""
    return Gtid(Epoch(epoch), Seqno(seqno))


def plain(node: NodeId, **fields: object) -> Member:
    """Return a member named as its node."""
    return Member(**{"node": node, "name": node, **fields})  # type: ignore[arg-type]


def witness(node: NodeId) -> Member:
    """Return a member that only votes."""
    return plain(node, witness=True, priority=0)


def group(*members: Member | NodeId, **fields: object) -> GroupConfig:
    """Return a configuration of members, plain ones where only a node is named."""
    told = tuple([one if isinstance(one, Member) else plain(one) for one in members])
    return GroupConfig(**{"group": "g", "id": ConfigId(0, 1), "members": told, **fields})  # type: ignore[arg-type]


def log_of(*epochs: int, begin: int = 0, text: str = "t") -> ModelLog:
    """Return a log with one transaction for each epoch named, synced."""
    log = ModelLog()
    for at, epoch in enumerate(epochs):
        if log.last.epoch < epoch:
            log.begin_reign(epoch, 1000 * at)
        else:
            log.append(f"{text}{at}", 1000 * at)
    log.sync()
    if begin:
        log.purge(begin - 1)
    return log


class Alone:
    """One core over a model log: what it wants is carried out at once, what it sends is kept."""

    def __init__(self, node: NodeId, config: GroupConfig, log: ModelLog | None = None, **stored: object) -> None:
        self.log = log or ModelLog()
        self.now = 0
        self.done: list[Effect] = []
        self.disk = Stored(**{"group": "g", "node": node, "config": config, **stored})  # type: ignore[arg-type]
        self.core = Core(self.disk, self.log, start=1, now=0, wall=0)
        self.synced = True

    def carry_out(self) -> list[Effect]:
        """Do what is wanted; return it."""
        new: list[Effect] = []
        while effects := self.core.ready():
            for effect in effects:
                new.append(effect)
                if isinstance(effect, Persist):
                    self.disk = effect.stored
                elif isinstance(effect, BeginReign):
                    self.log.begin_reign(effect.epoch, self.now)
                    self._logged()
                elif isinstance(effect, Put):
                    self.log.put(effect.raw, self.now)
                    self._logged()
        self.done += new
        return new

    def _logged(self) -> None:
        self.core.logged()
        if self.synced:
            self.log.sync()
            self.core.durable()

    def write(self, text: str = "x") -> Gtid:
        """Append a transaction at a primary."""
        assert self.core.accepts_writes
        written = self.log.append(text, self.now)
        self._logged()
        self.carry_out()
        return written

    def get(self, sender: NodeId, packet: Packet) -> list[tuple[NodeId, Packet]]:
        """Take a packet; return what was sent for it."""
        self.core.step(sender, packet, self.now)
        return sent(self.carry_out())

    def wait(self, ms: int = LONG, chance: int = 0) -> list[tuple[NodeId, Packet]]:
        """Let time pass at once; return what was sent."""
        self.now += ms
        self.core.tick(self.now, self.now, chance)
        return sent(self.carry_out())

    def elect(self, *voters: NodeId) -> None:
        """Let this node win, by the votes of others, which have told it in a beat that they have its configuration."""
        for voter in voters:
            self.core.mind.peers.setdefault(voter, Peer()).config = self.core.config.id
        for _ in range(3):
            self.wait()
        for pre in (True, False):
            campaign = self.core.mind.campaign
            if campaign is not None:
                for voter in voters:
                    self.get(voter, Voted(epoch=campaign.epoch, pre=pre, why="", known=0))
        assert self.core.accepts_writes

    def beat(self, sender: NodeId, **fields: object) -> list[tuple[NodeId, Packet]]:
        """Hear a beat; what is not named is that of a replica as this node knows it."""
        return self.get(sender, beat_of(self.core, sender, **fields))


def beat_of(core: Core, sender: NodeId, **fields: object) -> Heartbeat:
    """Return a beat of another node, with what is not named as this node has it."""
    peer = core.mind.peers.get(sender)
    number = 1 if peer is None else peer.pulse.beat + 1
    told: dict[str, object] = {
        "epoch": core.mind.epoch,
        "state": 2,
        "last": core.log.last,
        "durable": core.log.last,
        "committed": NO_GTID,
        "config": core.config.id,
        "pulse": Pulse(1, number),
        "echo": core.mind.pulse,
        "stands": True,
    }
    return Heartbeat(**{**told, **fields})  # type: ignore[arg-type]


def sent(effects: Sequence[Effect]) -> list[tuple[NodeId, Packet]]:
    """Return the packets among effects."""
    return [(one.to, one.packet) for one in effects if isinstance(one, Send)]


def of(kind: type[Packet], packets: Sequence[tuple[NodeId, Packet]]) -> list[Packet]:
    """Return the packets of a kind."""
    return [packet for _, packet in packets if isinstance(packet, kind)]


def vote_for(node: Alone, candidate: NodeId, epoch: int, **fields: object) -> str:
    """Ask a node for its vote; return why it is refused."""
    told: dict[str, object] = {"last": node.log.last, "config": node.core.config.id, "priority": 1}
    answers = of(Voted, node.get(candidate, Vote(epoch=epoch, **{**told, **fields})))  # type: ignore[arg-type]
    assert len(answers) == 1 and isinstance(answers[0], Voted)
    return answers[0].why
