"""What must hold in a group after every step, whatever failed: the invariants of its logs, votes, acks and answers.

Sees everything at once, which no node can. Each violation says what it found; a simulation ends with the first.

Source: docs/conformance.md, "Replication: the invariants of TokuMX".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tranlog.ids import Gtid
from tranlog.replication.rules.config import GroupConfig, NodeId
from tranlog.replication.rules.packets import FATAL, NO_GTID, PRIMARY, READABLE, Ack, PreVote, Vote, Voted
from tranlog.replication.rules.stored import Stored
from tranlog.testing.model_log import NOOP, ModelLog, running_hash


class Violation(AssertionError):
    """An invariant does not hold."""


class Checkers:
    """The history of a group as one observer sees it."""

    def __init__(self) -> None:
        self.reigns: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.durable_vote: dict[NodeId, int] = {}
        self.truth: dict[int, Gtid] = {}
        self.truth_in: dict[int, int] = {}
        self.hashes: dict[Gtid, int] = {}
        self.acknowledged: dict[int, Gtid] = {}
        self.gone: set[Gtid] = set()
        self._committed: dict[NodeId, Gtid] = {}
        self._epochs: dict[NodeId, int] = {}

    def started(self, node: NodeId, epoch: int) -> None:
        """A node begins: what it knew in memory is gone, and may come back."""
        self._committed.pop(node, None)
        if epoch < self.durable_vote.get(node, 0):
            raise Violation(f"23: {node} begins in epoch {epoch} and voted in {self.durable_vote[node]}")
        self._epochs[node] = epoch

    def persisted(self, stored: Stored) -> None:
        """Inv 16, 23: a vote is given once an epoch, and epochs only rise."""
        if stored.epoch < self.durable_vote.get(stored.node, 0):
            raise Violation(f"23: the vote of {stored.node} goes back to epoch {stored.epoch}")
        self.durable_vote[stored.node] = stored.epoch

    def voted(
        self,
        node: NodeId,
        candidate: NodeId,
        voted: Voted,
        *,
        request: PreVote | Vote | None,
        last: Gtid | None,
        state: int,
        owing: bool,
    ) -> None:
        """Inv 4, 16: one vote an epoch, durable before it is told, for no older log, none while primary."""
        if voted.why or voted.pre:
            return
        before = self.votes.setdefault((node, voted.epoch), candidate)
        if before != candidate:
            raise Violation(f"16: {node} votes for {candidate} in epoch {voted.epoch} and has voted for {before}")
        if self.durable_vote.get(node, 0) < voted.epoch:
            raise Violation(f"16: {node} tells its vote of epoch {voted.epoch} before it is durable")
        if last is not None and request is not None and request.last < last:
            raise Violation(f"16: {node} votes for {candidate} whose log ends at {request.last}, its own at {last}")
        if owing:
            raise Violation(f"14: {node} votes for {candidate} while its log lacks what was durable")
        if state == PRIMARY:
            raise Violation(f"16: {node} votes for {candidate} while it is primary")

    def installed(self, old: GroupConfig, new: GroupConfig, having: set[NodeId]) -> None:
        """A new configuration overlaps with the one before, which a majority of its voters had durable first."""
        if new.id.version != old.id.version + 1:
            return  # a winner's stamp, or one that came from another node
        before, after = ({m.node: m.witness for m in one.members if m.votes} for one in (old, new))
        changed = sorted(node for node in before.keys() | after.keys() if before.get(node) != after.get(node))
        if len(changed) > 1:
            raise Violation(f"configuration {new.id} changes the voters {changed} at once")
        if len(having & before.keys()) <= len(before) // 2:
            raise Violation(f"configuration {new.id} follows {old.id}, which only {sorted(having)} have")

    def elected(self, node: NodeId, epoch: int, log: ModelLog, *, acks: int) -> None:
        """Inv 4, 14, 20: one primary an epoch, which has everything that a majority acknowledged, and no old acks."""
        if acks:
            raise Violation(f"20: {node} begins epoch {epoch} with {acks} acks of an earlier reign")
        before = self.reigns.setdefault(epoch, node)
        if before != node:
            raise Violation(f"4: {node} and {before} are primaries of epoch {epoch}")
        own_vote = self.votes.setdefault((node, epoch), node)
        if own_vote != node:
            raise Violation(f"16: {node} votes for itself in epoch {epoch} and has voted for {own_vote}")
        for seqno, gtid in self.truth.items():
            if self.truth_in[seqno] < epoch and seqno >= log.first and log.gtid(seqno) != gtid:
                word = "acknowledged by a majority" if seqno in self.acknowledged else "committed"
                raise Violation(f"14: {node}, primary of epoch {epoch}, lacks {gtid}, which was {word}")

    def appended(self, node: NodeId, log: ModelLog, since: int) -> None:
        """Inv 2, 3, 5, 6: rising GTIDs, dense; a no-op first in each epoch; one history by GTID; the hash follows."""
        for seqno in range(max(since, log.first), log.last.seqno + 1):
            at = seqno - log.first
            entry, h = log.entries[at], log.hashes[at]
            before = log.entries[at - 1].gtid if at else None
            if entry.gtid.seqno != seqno or (before is not None and entry.gtid.epoch < before.epoch):
                raise Violation(f"2: {node} holds {entry.gtid} at {seqno} behind {before}")
            if (before is None or before.epoch != entry.gtid.epoch) and seqno > log.first and entry.text != NOOP:
                raise Violation(f"5: the first of epoch {entry.gtid.epoch} at {node} is no no-op")
            if running_hash(log.h(seqno - 1), entry) != h:
                raise Violation(f"6: the hash at {entry.gtid} of {node} does not follow")
            if self.hashes.setdefault(entry.gtid, h) != h:
                raise Violation(f"3: {entry.gtid} of {node} has another history than elsewhere")
            if entry.gtid in self.gone:
                raise Violation(f"21: {entry.gtid} was told to be rolled back and is there again at {node}")

    def acked(self, node: NodeId, ack: Ack, log: ModelLog, voted_epoch: int) -> None:
        """Inv 15, 17: an ack names what is durable, and goes to no epoch older than the last vote."""
        if ack.durable > log.durable:
            raise Violation(f"17: {node} acks {ack.durable}, and {log.durable} is durable")
        if ack.epoch < voted_epoch:
            raise Violation(f"15: {node} acks to epoch {ack.epoch} and has voted in {voted_epoch}")

    def committed(self, node: NodeId, gtid: Gtid, log: ModelLog, epoch: int) -> None:
        """Inv 14, 19: commit points rise, and all nodes commit one history."""
        if gtid <= self._committed.get(node, NO_GTID):
            raise Violation(f"commit point of {node} goes from {self._committed[node]} to {gtid}")
        if log.gtid(gtid.seqno) != gtid:
            raise Violation(f"{node} commits {gtid}, which its log does not hold")
        since = self._committed.get(node, NO_GTID).seqno + 1
        self._committed[node] = gtid
        for seqno in range(max(since, log.first), gtid.seqno + 1):
            held = log.entries[seqno - log.first].gtid
            self.truth_in.setdefault(seqno, epoch)  # whoever commits first is its primary
            if self.truth.setdefault(seqno, held) != held:
                raise Violation(f"14: {node} commits {held}, and {self.truth[seqno]} was committed elsewhere")

    def reached(
        self,
        node: NodeId,
        gtid: Gtid,
        config: GroupConfig,
        logs: Mapping[NodeId, ModelLog],
        lost: set[NodeId],
        epoch: int,
    ) -> None:
        """Inv 18, 19: what a primary commits is of its own epoch, and at a majority of copies.

        `lost`: whose disks lost what they had acked; they count as if they had it.
        """
        if gtid.epoch != epoch:
            raise Violation(f"19: {node} commits {gtid}, of an older epoch than its own, {epoch}")
        voters = sum([member.votes for member in config.members])
        needed = min(voters // 2 + 1, sum([member.votes == 1 and not member.witness for member in config.members]))
        copies = [member.node for member in config.members if member.votes and not member.witness]
        having = [
            one
            for one in copies
            if one in lost or (logs[one].durable >= gtid and logs[one].gtid(gtid.seqno) in (gtid, None))
        ]
        if len(having) < needed:
            raise Violation(f"18: {node} commits {gtid}, durable at {having} only")

    def answered(self, gtid: Gtid, *, majority: bool, rolled_back: bool) -> None:
        """Inv 14, 21: what a majority acknowledged is remembered; what was rolled back never comes again."""
        if majority:
            if self.truth.get(gtid.seqno) != gtid:
                raise Violation(
                    f"14: {gtid} is acknowledged, and {self.truth.get(gtid.seqno)} was committed in its place"
                )
            self.acknowledged[gtid.seqno] = gtid
        if rolled_back:
            if self.truth.get(gtid.seqno) == gtid:
                raise Violation(f"21: {gtid} is told to be rolled back, and was committed")
            self.gone.add(gtid)

    def written(self, gtid: Gtid, having: Mapping[NodeId, ModelLog]) -> None:
        """Inv 20: who is named in an answer has it durable."""
        for node, log in having.items():
            if log.durable < gtid or log.gtid(gtid.seqno) not in (gtid, None):
                raise Violation(f"20: {node} is said to have {gtid}, and its log is durable up to {log.durable}")

    def rolled_back(self, node: NodeId, matchpoint: Gtid, before: list[Gtid], log: ModelLog) -> None:
        """Inv 26, 27: nothing acknowledged goes; what goes was saved, newest first, under one rid."""
        gone = [gtid for gtid in before if gtid > matchpoint]
        for gtid in gone:
            if self.truth.get(gtid.seqno) == gtid:
                raise Violation(f"26: {node} rolls back {gtid}, which was committed")
        rid = max(log.saved, default=-1)
        rows = [row for row in log.saved_rows if row.rid == rid]
        if gone and ([row.gtid for row in rows] != gone[::-1] or [row.seq for row in rows] != list(range(len(rows)))):
            raise Violation(f"27: {node} rolled back {gone} and saved {rows}")

    def stepped(self, node: NodeId, epoch: int, state: int, *, writes: bool, reads: bool) -> None:
        """Inv 22, 23, 30: epochs rise; only a primary writes, only primaries and replicas are read."""
        if epoch < self._epochs.get(node, 0):
            raise Violation(f"23: {node} goes from epoch {self._epochs[node]} to {epoch}")
        self._epochs[node] = epoch
        if writes and state != PRIMARY:
            raise Violation(f"22: {node} accepts writes in state {state}")
        if reads and state not in READABLE:
            raise Violation(f"30: {node} serves reads in state {state}")

    def fatal(self, node: NodeId, why: str) -> None:
        """No history differs without a harm that explains it."""
        raise Violation(f"{node} is in state {FATAL}: {why}")

    def converged(self, logs: Iterable[tuple[NodeId, ModelLog, Gtid]]) -> None:
        """I45: all logs hold the same where they overlap."""
        for node, log, committed in logs:
            if committed != log.last:
                raise Violation(f"35: {node} has {log.last} and {committed} is committed")
