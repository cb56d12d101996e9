"""One node's decisions: packets and time in, effects out.

Owns the order in which the rules are applied. A shell calls `step` with each packet, `tick` now and then, `logged` and
`durable` when its log has grown, and carries out what `ready` returns, in order. The hard idea: nothing is sent before
what it depends on is durable. A vote is sent after its `Persist`, an ack names what the log says is durable, and
everything else may be lost at any moment.

Source: docs/protocol.md, "Numbers", "The order of things", "Syncup", "Write concern".
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tranlog.ids import Gtid
from tranlog.log.records.spill import RawChunk
from tranlog.replication.rules import acks as ack_rules
from tranlog.replication.rules import concern, syncup
from tranlog.replication.rules.answering import Answering
from tranlog.replication.rules.config import (
    NO_NODE,
    ConfigId,
    GroupConfig,
    NodeId,
    change_refused,
    check,
    election_majority,
)
from tranlog.replication.rules.effects import (
    Committed,
    DropChunks,
    DropParts,
    Fatal,
    KeepFrom,
    Put,
    PutChunk,
    Restore,
    RollBack,
)
from tranlog.replication.rules.election import PATIENCE_LEAST, PATIENCE_MOST
from tranlog.replication.rules.feed import CHUNKS_SHARE, CREDIT, LEFT_BEHIND_MS, Candidate, choose_source
from tranlog.replication.rules.freshness import NEVER
from tranlog.replication.rules.packets import (
    FATAL,
    NO_GTID,
    PRIMARY,
    READABLE,
    RECOVERING,
    REPLICA,
    RESTORING,
    ROLLBACK,
    WITNESS,
    Ack,
    AckRelay,
    ChunksGone,
    Follow,
    Heartbeat,
    Here,
    Lead,
    Packet,
    PreVote,
    Records,
    SpillChunk,
    Vote,
    Voted,
    Where,
)
from tranlog.replication.rules.reading import Consistency, Latest
from tranlog.replication.rules.syncup import Limits, Verdict, holds

HOPS_MAX = 16
"""So often an ack is passed on."""
MARK_BITS = 20
"""Of an ack's mark the low bits count the log's own; those above the node's start: a restored log counts anew."""


class Core(Answering):
    """The decisions of one node. Not for several threads."""

    @property
    def serves_reads(self) -> bool:
        """Whether readers are served."""
        return self.mind.state in READABLE

    # --- events ---

    def step(self, sender: NodeId, packet: Packet, now: int) -> None:
        """Take a packet."""
        self._wake(now)
        if isinstance(packet, Heartbeat):
            self._on_beat(sender, packet)
        elif isinstance(packet, PreVote | Vote):
            self._on_request(sender, packet)
        elif self.config.member(sender) is not None:
            self._dispatch(sender, packet)
        self._settle()

    def tick(self, now: int, wall: int, chance: int) -> None:
        """Let time pass. `chance`: a random number, anew each time."""
        self.mind.wall = wall
        self._wake(now)
        mind, config = self.mind, self.config
        if not config.members:
            return
        if now - mind.beat_at >= config.heartbeat_ms:
            mind.beat_at = mind.now
            self._beat_all()
            self._ack()
            self._end_searches()
        if mind.state == PRIMARY:
            self._reign()
        else:
            self._stand_if_due(chance)
            self._follow()
        for waiting in [one for one in mind.waiting if one.deadline is not None and now >= one.deadline]:
            mind.waiting.remove(waiting)
            self._tell(waiting, concern.TIMED_OUT, self._having(waiting))
        self._settle()

    def confirm(self, wishes: Iterable[Consistency], now: int) -> None:
        """Have a majority confirm soon, for those who read the latest, that this node is primary.

        It beats at once where no beat was sent since they asked. While one waits for its answers no other is sent: the
        next serves all who ask meanwhile.
        """
        asked = max([wish.asked for wish in wishes if isinstance(wish, Latest)], default=-1)
        if asked >= self.mind.pulse.beat:
            self._wake(now)
            if self.mind.state == PRIMARY and self.confirmed() == self.mind.pulse.beat:
                self._beat_all()

    def logged(self) -> None:
        """The log has more to send."""
        mind = self.mind
        mind.logged_at = mind.now
        self._take_commit(mind.batch_commit)
        self._take_commit(mind.heard_commit)
        self._settle()

    def durable(self) -> None:
        """More of the log is durable."""
        self._ack()
        self._settle()

    def unusable(self) -> None:
        """Received records could not be appended: harmed on the way, or their chunks were lost. They are asked for
        again."""
        if self.intake.source != NO_NODE:
            self._search(self.intake.source)

    def refused(self, node: NodeId, now: int) -> None:
        """Connecting to a node was refused: its program is gone. Without the primary a node stands at once, and soon
        again: others may not know yet, or have stood at the same moment."""
        self._wake(now)
        mind = self.mind
        if node == mind.primary and mind.state != PRIMARY:
            mind.primary, mind.primary_heard, mind.stand_at, mind.is_gone = NO_NODE, NEVER, now, True
        if node in mind.peers:
            mind.peers[node].heard = NEVER

    def rolled_back(self) -> None:
        """The rollback or the restore that this core ordered is done."""
        self.mind.state = REPLICA
        self._set_state(REPLICA)
        self.feeder.streams.clear()
        self.intake.stop()
        self._follow()

    # --- what people and clients ask ---

    def maintain(self, on: bool) -> None:
        """Enter maintenance, or leave it as often as it was entered: the node votes, but neither fetches nor serves."""
        self.mind.maintenance = max(0, self.mind.maintenance + (1 if on else -1))
        if self.mind.state in (REPLICA, RECOVERING):
            self._set_state(REPLICA)
            self.intake.stop()

    def sync_from(self, node: NodeId) -> None:
        """Follow this node rather than the primary, as long as it can be followed."""
        self.mind.wish = node
        self.intake.stop()

    def restore(self, source: NodeId, after: Gtid | None = None) -> str | None:
        """Replace this node's log by another node's, whatever it holds; return why that is not possible.

        Only this node may have the transactions after `after`; None: as far as the node knows that now.
        """
        mind, other = self.mind, self.config.member(source)
        if mind.state in (PRIMARY, WITNESS):
            return "it is primary; `tranlog group step-down` first" if mind.state == PRIMARY else "it keeps no log"
        if other is None or other.witness or source == self.node:
            return "name another node of the group, with a log"
        if after is None:
            after = mind.parted if mind.fatal else mind.committed
        if not mind.fatal:
            self._owe(self.log.last)
        mind.state, mind.fatal, mind.campaign = RESTORING, "", None
        self.intake.stop()
        self._out.append(Restore(source, after, ordered=True))
        return None

    def gives_up(self) -> None:
        """Note that this node's log is about to be replaced."""
        self._owe(NO_GTID)

    def _owe(self, had: Gtid) -> None:
        """Give no vote and no ack until the log holds again what it held, up to `had`. An empty one held nothing."""
        if not self.stored.owing and self.log.last != NO_GTID:
            self._persist(owing=True, had=had)

    def keep_all(self, node: NodeId) -> None:
        """Purge nothing while a node copies this log; ends a few heartbeats after the last call."""
        self.feeder.searching[node] = self.mind.now
        self._out.append(KeepFrom(f"restore.{node}", self.log.first))

    def reconfigure(self, new: GroupConfig, *, forced: bool = False) -> str | None:
        """Install a configuration that `successor` made; return why not, None if it was. Raises ConfigError.

        `forced`: on any node, even if transactions are lost by it.
        """
        check(new)
        mind = self.mind
        if not forced:
            if mind.state != PRIMARY:
                return "this node is not primary"
            durable = ack_rules.durable_at(mind.acks, self.node, self.log.durable)
            refused = change_refused(
                self.config,
                new,
                installed=self._installed_at(self.config.id),
                committed=mind.committed.epoch == mind.epoch
                and ack_rules.commit_point(self.config, durable, mind.epoch) >= mind.committed,
                copied=ack_rules.commit_point(new, durable, mind.epoch) >= mind.committed,
            )
            if refused is not None:
                return refused
        else:
            mind.fatal = ""
            if self.stored.owing:
                self._persist(owing=False)
        self._install(new)
        self._settle()
        return None

    def _is_installed(self) -> bool:
        """Whether as many voters have the present configuration as elect a primary by it.

        Before that, those who have the one before may elect another primary, whose log need not hold what has its
        majority by this one: of two nodes with data and a witness one goes, and the other would commit by itself.
        """
        having = self._installed_at(
            self.config.id, self.mind.config_before
        )  # a reign that begins changes no more than the id
        return len(having.intersection(self.config.voters)) >= election_majority(self.config)

    def _installed_at(self, *ids: ConfigId | None) -> set[NodeId]:
        """Return this node, and those that have a configuration of one of these ids durable."""
        return {self.node, *(node for node, peer in self.mind.peers.items() if peer.config in ids)}

    # --- following ---

    def _follow(self) -> None:
        """See to it that this node follows whom it should, and that its stream has not come to a stop."""
        mind, intake = self.mind, self.intake
        if mind.state != REPLICA:
            return
        alive = [
            Candidate(node, peer.state, peer.epoch, peer.last) for node, peer in mind.peers.items() if self._alive(peer)
        ]
        primary = mind.primary if self._hears_primary() else NO_NODE
        source = choose_source(self.config, self.node, self.log.last, mind.epoch, alive, primary, mind.wish)
        by_node = {one.node: one for one in alive}
        present = by_node.get(intake.source)
        if present is None or present.state not in READABLE or present.epoch < mind.epoch:
            intake.stop()
        elif present.last >= max([one.last for one in alive]):
            intake.behind_since = None
        elif intake.behind_since is None:
            intake.behind_since = mind.now
        elif mind.now - intake.behind_since >= LEFT_BEHIND_MS:
            intake.stop()
            mind.wish, intake.behind_since = NO_NODE, None
            return
        if source == NO_NODE and intake.source == NO_NODE:
            return
        if intake.source == NO_NODE:
            self._search(source)
        elif mind.now - intake.since > PATIENCE_LEAST * self.config.heartbeat_ms:
            if not intake.streaming or by_node[intake.source].last > self.log.last:
                self._search(source or intake.source)

    def _search(self, source: NodeId) -> None:
        """Begin the search for the matchpoint."""
        intake = self.intake
        intake.stop()
        intake.source, intake.since, intake.asked = source, self.mind.now, self.log.last
        self._send(source, syncup.first_question(self.log, intake.number))

    def _on_where(self, sender: NodeId, where: Where) -> None:
        if self.mind.state in READABLE:
            self.feeder.searching[sender] = self.mind.now
            self._out.append(KeepFrom(f"restore.{sender}", self.log.first))
            self._send(sender, syncup.answer(self.log, where, self.mind.epoch))

    def _end_searches(self) -> None:
        """Let go what is held for followers that asked and never followed."""
        limit = self.mind.now - 2 * PATIENCE_MOST * self.config.heartbeat_ms
        for node in [node for node, since in self.feeder.searching.items() if since < limit]:
            del self.feeder.searching[node]
            self._out.append(KeepFrom(f"restore.{node}", None))

    def _on_here(self, sender: NodeId, here: Here) -> None:
        mind, intake = self.mind, self.intake
        expected = (intake.source, intake.number, intake.asked)
        if intake.streaming or expected != (sender, here.number, here.asked) or mind.state != REPLICA:
            return
        self._see_epoch(here.epoch)
        if here.epoch < mind.epoch:
            intake.stop()
            return
        intake.since = mind.now
        question = syncup.next_question(self.log, here)
        if question is not None:
            intake.asked = question.gtid
            self._send(sender, question)
            return
        limits = Limits(self.config.rollback_limit_s, self.config.rollback_ddl == "abandon")
        finding = syncup.judge(self.log, here, mind.committed, limits)
        match finding.verdict:
            case Verdict.STREAM:
                own = self.config.member(self.node)
                intake.streaming = True
                delay = 0 if own is None else own.delay_ms
                self._send(
                    sender, Follow(number=intake.number, after=finding.matchpoint, credit=CREDIT, delay_ms=delay)
                )
                self._ack()
            case Verdict.ROLL_BACK:
                mind.state, mind.campaign = ROLLBACK, None
                self._out.append(RollBack(finding.matchpoint, self.log.last, syncup.ROLLBACK_STEPS))
            case Verdict.RESTORE:
                mind.state, mind.campaign = RESTORING, None
                self._owe(self.log.last)
                self._out.append(Restore(sender, mind.committed))
            case Verdict.FATAL:
                mind.fatal, mind.state, mind.campaign = finding.why, FATAL, None
                mind.parted = here.found if self.log.h(here.found.seqno) == here.h else NO_GTID
                self._out.append(Fatal(finding.why))
            case Verdict.WAIT:
                pass  # asked again in a while

    def _on_records(self, sender: NodeId, records: Records) -> None:
        mind, intake = self.mind, self.intake
        if not intake.streaming or (intake.source, intake.number) != (sender, records.number) or mind.state != REPLICA:
            return
        self._see_epoch(records.epoch)
        if records.epoch < mind.epoch:
            intake.stop()
            return
        self._hear(sender)
        if (records.after, records.part) == (self.log.last, intake.part):
            intake.since = mind.now
            intake.received += len(records.raw)
            mind.heard_commit = max(mind.heard_commit, records.committed)
            mind.batch_commit = records.committed
            whole = records.last > records.after
            self._out.append(Put(records.raw, records.part, whole))
            intake.part = 0 if whole else intake.part + 1
            if intake.received >= CREDIT // 4:
                self._ack()  # the source goes on while a sync takes its time
        elif (records.after, records.part) > (self.log.last, intake.part):
            self._search(sender)  # something was lost on the way

    def _hear(self, source: NodeId) -> None:
        """What a source streams is as good a sign of life as its heartbeats, which wait behind it."""
        mind = self.mind
        if source in mind.peers:
            mind.peers[source].heard = mind.now
        if source == mind.primary and mind.primary_epoch == mind.epoch:
            mind.primary_heard = mind.now

    def _on_chunk(self, sender: NodeId, chunk: SpillChunk) -> None:
        intake = self.intake
        if intake.streaming and (intake.source, intake.number) == (sender, chunk.number):
            self._hear(sender)
            intake.since = self.mind.now
            intake.received += len(chunk.raw)
            raw = RawChunk(chunk.oid, chunk.seq, chunk.codec, chunk.raw_length, chunk.raw)
            self._out.append(PutChunk(raw, chunk.offset, chunk.size))
            if intake.received >= CREDIT // CHUNKS_SHARE // 2:
                self._ack()  # no sync follows a chunk, and the source waits for credit

    def _on_gone(self, sender: NodeId, gone: ChunksGone) -> None:
        if self.intake.streaming and (self.intake.source, self.intake.number) == (sender, gone.number):
            self._out.append(DropChunks(gone.oid))

    # --- acks ---

    def _ack(self) -> None:
        """Tell the source what is durable here, unless a later epoch than the primary's has begun for this node."""
        mind, intake = self.mind, self.intake
        if not intake.streaming or self.stored.owing or mind.state not in (REPLICA, RECOVERING):
            return
        if ack_rules.may_ack(mind.primary_epoch, mind.epoch):
            log, credit = self.log, intake.received
            mark = mind.pulse.start << MARK_BITS | log.mark % (1 << MARK_BITS)
            intake.received = 0
            self._send(intake.source, Ack(durable=log.durable, epoch=mind.primary_epoch, mark=mark, credit=credit))

    def _on_ack(self, sender: NodeId, ack: Ack) -> None:
        self._out += self.feeder.acked(sender, ack.durable, ack.credit)
        self._on_progress(sender, AckRelay(node=sender, ack=ack))

    def _on_progress(self, sender: NodeId, progress: AckRelay) -> None:
        mind, ack, source = self.mind, progress.ack, self.intake.source
        if mind.state == PRIMARY:
            held = holds(self.log, ack.durable)
            ack_rules.note_ack(mind.acks, progress.node, ack, epoch=mind.epoch, held=held)
        elif source not in (NO_NODE, sender, progress.node) and progress.hops < HOPS_MAX:
            self._send(source, msgspec.structs.replace(progress, hops=progress.hops + 1))

    def _settle(self) -> None:
        """Draw what follows from whatever has just changed."""
        mind, log = self.mind, self.log
        if self.intake.dropped:
            self.intake.dropped = False
            self._out.append(DropParts())
        if self.stored.owing and mind.state != RESTORING:
            self._make_up()
        if mind.state == PRIMARY:
            durable = ack_rules.durable_at(mind.acks, self.node, log.durable)
            point = ack_rules.commit_point(self.config, durable, mind.epoch)
            if point > mind.committed and self._is_installed():
                mind.committed = point
                self._out.append(Committed(point))
            self._answer()
            self._hand_on()
        if mind.state in READABLE:
            self._out += self.feeder.pump(log, mind.committed, mind.epoch, mind.wall)

    def _make_up(self) -> None:
        """Vote and ack again, once the log holds what it lost.

        A log that ends no earlier than it did holds whatever was committed of what it held. Where it ended is known
        when it was given up for a restore; else the primary names a commit point.
        """
        log, had, owed = self.log, self.stored.had, self.mind.owed
        if (had != NO_GTID and log.durable >= had) or (owed is not None and log.durable >= owed and holds(log, owed)):
            self.mind.owed = None
            self._persist(owing=False, had=NO_GTID)

    def _dispatch(self, sender: NodeId, packet: Packet) -> None:
        match packet:
            case Voted():
                self._on_voted(sender, packet)
            case Records():
                self._on_records(sender, packet)
            case Ack():
                self._on_ack(sender, packet)
            case AckRelay():
                self._on_progress(sender, packet)
            case Where():
                self._on_where(sender, packet)
            case Here():
                self._on_here(sender, packet)
            case Follow():
                self.feeder.searching.pop(sender, None)
                self._out += self.feeder.begin(sender, packet, self.log) if self.mind.state in READABLE else []
            case SpillChunk():
                self._on_chunk(sender, packet)
            case ChunksGone():
                self._on_gone(sender, packet)
            case Lead():
                self._on_lead(sender, packet)
            case _:
                pass  # a shell's: handshakes, clients, files
