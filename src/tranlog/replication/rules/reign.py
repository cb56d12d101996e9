"""Elections and reigns: when a node stands, how it votes, when a primary hands over.

Source: docs/protocol.md, "Elections".
"""

from __future__ import annotations

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules.beats import Beating, Handing
from tranlog.replication.rules.config import NO_NODE, ConfigId, NodeId
from tranlog.replication.rules.effects import BeginReign, KeepAlive
from tranlog.replication.rules.election import (
    PATIENCE_LEAST,
    PATIENCE_MOST,
    Campaign,
    Voter,
    heir,
    higher,
    is_elected,
    vote_refused,
)
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, WITNESS, Lead, PreVote, Vote, Voted


class Reigning(Beating):
    """A node that votes, stands and reigns."""

    @property
    def accepts_writes(self) -> bool:
        """Whether a transaction may be appended: the node is primary, its no-op is written, it is not stepping down."""
        mind = self.mind
        return mind.state == PRIMARY and mind.handing is None and self.log.last.epoch == mind.epoch

    def willing(self) -> dict[NodeId, Gtid]:
        """Return the nodes that are alive and would be primary, with the end of their logs."""
        return {node: peer.last for node, peer in self.mind.peers.items() if peer.stands and self._alive(peer)}

    def freeze(self, until: int) -> None:
        """Do not stand for election before that moment; a moment in the past ends the freeze."""
        self.mind.frozen_until = until

    def hand_over(self, to: NodeId, within_ms: int, *, force: bool = False) -> bool:
        """Step down in favour of a node, NO_NODE for the best; False if this node is not primary or already does.

        Commits stop until a replica has everything. If none has it in time, they continue, unless forced.
        """
        if self.mind.state != PRIMARY or self.mind.handing is not None:
            return False
        self.mind.handing = Handing(to, self.mind.now + within_ms, force)
        self._hand_on()
        return True

    # --- standing ---

    def _stand_if_due(self, chance: int) -> None:
        mind, heartbeat = self.mind, self.config.heartbeat_ms
        if mind.now >= mind.stand_at:
            least, most = (1, 2) if mind.is_gone else (PATIENCE_LEAST, PATIENCE_MOST)
            mind.stand_at = mind.now + least * heartbeat + chance % ((most - least) * heartbeat + 1)
            if self._may_stand() and not self._hears_primary():
                self._stand()

    def _stand(self) -> None:
        """Ask for a pre-vote; once, a node of higher priority is waited for."""
        own, mind = self.config.member(self.node), self.mind
        assert own is not None
        if not mind.waited and higher(self.config, self.willing(), own, self.log.last):
            mind.waited = True
            return
        mind.waited = False
        mind.campaign = Campaign(mind.epoch + 1, True, mind.now, {self.node})
        self._ask_votes(PreVote(epoch=mind.epoch + 1, last=self.log.last, config=self.config.id, priority=own.priority))

    def _request_votes(self, *, transfer: bool = False) -> None:
        """Ask for the vote of a new epoch. The own one is durable before the first request leaves."""
        own, mind = self.config.member(self.node), self.mind
        assert own is not None
        mind.epoch += 1
        mind.campaign = Campaign(mind.epoch, False, mind.now, {self.node})
        self._persist(epoch=mind.epoch, candidate=self.node)
        request = Vote(
            epoch=mind.epoch, last=self.log.last, config=self.config.id, priority=own.priority, transfer=transfer
        )
        self._ask_votes(request)

    def _ask_votes(self, request: PreVote | Vote) -> None:
        for node in self.config.voters:
            if node != self.node:
                self._send(node, request)
        self._count_votes()

    def _count_votes(self) -> None:
        campaign = self.mind.campaign
        if campaign is None or not is_elected(self.config, campaign.granted) or not self._may_stand():
            return  # it may have been frozen, or taken out of service, since it asked
        if campaign.pre:
            self._request_votes()
        else:
            self._win()

    def _win(self) -> None:
        """Begin a reign: the configuration gets its epoch, and the log the no-op of it."""
        mind = self.mind
        mind.campaign, mind.acks, mind.waiting, mind.waited = None, {}, [], False
        mind.is_gone = False
        mind.state, mind.reigning_since, mind.logged_at, mind.beat_at = PRIMARY, mind.now, mind.now, mind.now
        mind.primary, mind.primary_epoch, mind.primary_heard = self.node, mind.epoch, mind.now
        mind.takeover_at = mind.now + PATIENCE_MOST * self.config.heartbeat_ms
        for peer in mind.peers.values():
            peer.echo = -1
        self.intake.stop()
        mind.config_before = self.config.id
        config = msgspec.structs.replace(self.config, id=ConfigId(mind.epoch, self.config.id.version))
        self._persist(config=config)
        self._out.append(BeginReign(mind.epoch))
        self._beat_all()

    # --- voting ---

    def _on_request(self, candidate: NodeId, request: PreVote | Vote) -> None:
        mind, stored = self.mind, self.stored
        voter = Voter(
            node=self.node,
            config=self.config,
            state=mind.state,
            epoch=mind.epoch,
            voted_epoch=stored.epoch,
            voted_for=stored.candidate,
            last=None if mind.state == WITNESS else self.log.last,
            hears_primary=self._hears_primary(),
            owing=stored.owing,
        )
        why = vote_refused(voter, candidate, request)
        pre = isinstance(request, PreVote)
        if not why and not pre:
            mind.campaign, mind.epoch, mind.is_gone = None, request.epoch, False
            mind.stand_at = mind.now + PATIENCE_MOST * self.config.heartbeat_ms
            self._persist(epoch=request.epoch, candidate=candidate)
        self._send(candidate, Voted(epoch=request.epoch, pre=pre, why=why, known=mind.epoch))

    def _on_voted(self, voter: NodeId, voted: Voted) -> None:
        self._see_epoch(voted.known)
        campaign = self.mind.campaign
        if campaign is not None and not voted.why and (voted.epoch, voted.pre) == (campaign.epoch, campaign.pre):
            campaign.granted.add(voter)
            self._count_votes()

    def _on_lead(self, sender: NodeId, lead: Lead) -> None:
        if lead.epoch == self.mind.epoch == self.mind.primary_epoch and self._may_stand():
            self._request_votes(transfer=True)

    # --- reigning ---

    def _reign(self) -> None:
        """Do what a primary does as time passes."""
        mind, config = self.mind, self.config
        if mind.now - mind.logged_at >= config.keep_alive_s * 1000:
            mind.logged_at = mind.now
            self._out.append(KeepAlive())
        own = config.member(self.node)
        if own is not None and mind.handing is None and mind.now >= mind.takeover_at:
            mind.takeover_at = mind.now + PATIENCE_MOST * config.heartbeat_ms
            to = heir(config, self.willing(), self._recent(), without=self.node)
            better = config.member(to)
            if better is not None and better.priority > own.priority:
                self.hand_over(to, PATIENCE_LEAST * config.heartbeat_ms)
        self._hand_on()

    def _recent(self) -> Gtid:
        """Return what a node must have to be called caught up: what is committed."""
        return self.mind.committed

    def _hand_on(self) -> None:
        """Step down if whoever is to follow has everything, or time is up."""
        mind, handing = self.mind, self.mind.handing
        if handing is None:
            return
        willing = self.willing().keys()
        having = {node: ack.durable for node, ack in mind.acks.items() if node in willing}
        if handing.to != NO_NODE:
            having = {handing.to: having.get(handing.to, NO_GTID)}
        to = heir(self.config, having, self.log.last, without=self.node)
        if to == NO_NODE and mind.now < handing.deadline:
            return
        if to == NO_NODE and not handing.force:
            mind.handing = None
            return
        epoch = mind.epoch
        self._step_down()
        mind.frozen_until = max(mind.frozen_until, mind.now + 2 * PATIENCE_MOST * self.config.heartbeat_ms)
        to = to or heir(self.config, having, NO_GTID, without=self.node)
        if to != NO_NODE:
            self._send(to, Lead(epoch=epoch))
