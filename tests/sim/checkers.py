"""What must hold in a group after every step, whatever failed: the invariants of its logs, votes, acks and answers.

Sees everything at once, which no node can. Each violation says what it found; a simulation ends with the first.

Source: docs/conformance.md, "Replication: the invariants of TokuMX".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sim.node import Picture, Row, SimNode, read_rows
from tranlog.ids import Gtid
from tranlog.replication.rules.config import GroupConfig, NodeId
from tranlog.replication.rules.packets import FATAL, NO_GTID, PRIMARY, READABLE, Ack, PreVote, Vote, Voted
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import Saved


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
        self.digests: dict[Gtid, int] = {}
        self.hashes: dict[Gtid, int] = {}
        self.acknowledged: dict[int, Gtid] = {}
        self.gone: set[Gtid] = set()
        self._committed: dict[NodeId, Gtid] = {}
        self._undone: dict[NodeId, set[Gtid]] = {}
        self._epochs: dict[NodeId, int] = {}

    def started(self, node: NodeId, epoch: int, stored: Stored) -> None:
        """A node begins: what it knew in memory is gone, and may come back."""
        self._committed.pop(node, None)
        if epoch < self.durable_vote.get(node, 0):
            raise Violation(f"23: {node} begins in epoch {epoch} and voted in {self.durable_vote[node]}")
        if stored.epoch < self.durable_vote.get(node, 0):
            raise Violation(f"16: {node} voted in {self.durable_vote[node]} and remembers {stored.epoch}")
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

    def elected(self, node: NodeId, epoch: int, log: Picture, *, acks: int) -> None:
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

    def appended(self, one: SimNode) -> None:
        """Inv 2, 3, 5, 6, 7, 34: rising GTIDs, dense; a no-op first in each epoch; equal bytes by GTID on all nodes,
        and the same running hash.
        """
        picture, log = one.picture, one.open_log
        if not picture.rows:
            picture.first = log.first
        for row in read_rows(log, picture.first + len(picture.rows)):
            self._came(one, row)
            picture.rows.append(row)
        picture.durable = max(picture.durable, log.durable)
        for place in one.places:
            if picture.last.seqno >= place.allocation.gtid.seqno:
                raise Violation(f"8: {one.node} shows {picture.last}, and {place.allocation.gtid} is not complete")
        if picture.last != log.last or (picture.rows and log.gtid(picture.first) != picture.rows[0].gtid):
            raise Violation(f"7: the log of {one.node} is said to end at {log.last}, and {picture.last} is read")
        if picture.rows and self.hashes.setdefault(log.last, log.h(log.last.seqno)) != log.h(log.last.seqno):
            raise Violation(f"6: {one.node} has another running hash up to {log.last} than elsewhere, or than before")

    def _came(self, one: SimNode, row: Row) -> None:
        picture, gtid, node = one.picture, row.gtid, one.node
        before = picture.rows[-1].gtid if picture.rows else None
        if gtid.seqno != picture.first + len(picture.rows) or (before is not None and gtid.epoch < before.epoch):
            raise Violation(f"2: {node} holds {gtid} behind {before}")
        if (before.epoch != gtid.epoch if before is not None else not gtid.seqno) and not row.noop:
            raise Violation(f"5: the first of epoch {gtid.epoch} at {node} is no no-op")
        if self.digests.setdefault(gtid, row.digest) != row.digest:
            raise Violation(f"3: {gtid} of {node} has other bytes than elsewhere")
        self._undone.get(node, set()).discard(gtid)  # another node had it, too, while nothing later was committed

    def reopened(self, one: SimNode, *, other: bool) -> None:
        """What was durable is there again, and nothing that never was; a rollback is done, or was not begun.

        `other`: the log is another one by now, restored or lost.
        """
        known, log = one.picture, one.open_log
        one.picture = Picture()
        self.appended(one)
        last = one.picture.last
        one.picture.durable = log.durable
        if other:
            return
        back, one.going_back = one.going_back, None
        if back is not None and (last == back or (back == NO_GTID and last < known.durable)):
            self.rolled_back(one, last, [row.gtid for row in known.rows])
            known.cut(last)
        if last < known.durable:
            raise Violation(f"17: {one.node} had {known.durable} durable, and its log ends at {last}")
        for seqno in range(max(known.first, one.picture.first), min(known.last, last).seqno + 1):
            if one.picture.gtid(seqno) != known.gtid(seqno):
                raise Violation(f"2: {one.node} had {known.gtid(seqno)} and has {one.picture.gtid(seqno)}")

    def purged(self, one: SimNode, segments: Sequence[tuple[int, int, int]], *, needed: int | None) -> None:
        """Inv 31, 32, 34, I37: segments follow one another without a hole; what is not committed stays, and what
        followers need (`needed`, where that counts)."""
        picture, first = one.picture, one.open_log.first
        numbers = [number for number, _, _ in segments]
        living = [(begin, end) for _, begin, end in segments if begin <= end]
        holes = [after for before, after in pairwise(living) if after[0] != before[1] + 1]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or holes:
            raise Violation(f"31: the segments of {one.node} are {segments}")
        if first < picture.first or first > max(picture.last.seqno, self._committed.get(one.node, NO_GTID).seqno + 1):
            raise Violation(f"32: {one.node} begins at {first} after a purge, and ended at {picture.last}")
        if needed is not None and first > max(needed, picture.first):
            raise Violation(f"I37: {one.node} purged up to {first}, and {needed} is needed")
        picture.purged(first)

    def left_empty(self, one: SimNode, gtid: Gtid) -> None:
        """Inv 9, 22: a place whose reign ended holds a no-op, or was rolled back since."""
        at = gtid.seqno - one.picture.first
        if 0 <= at < len(one.picture.rows):
            row = one.picture.rows[at]
            if row.gtid == gtid and not row.noop:
                raise Violation(f"22: {one.node} refused {gtid}, and it is in the log")

    def as_seen(self, one: SimNode) -> None:
        """Inv 13, 33, I45: at the end every record and every chunk is there to be read, and as it was."""
        picture = one.picture
        if list(read_rows(one.open_log, picture.first)) != picture.rows:
            raise Violation(f"33: the log of {one.node} reads otherwise than it was written")

    def acked(self, node: NodeId, ack: Ack, durable: Gtid, voted_epoch: int) -> None:
        """Inv 15, 17: an ack names what is durable, and goes to no epoch older than the last vote."""
        if ack.durable > durable:
            raise Violation(f"17: {node} acks {ack.durable}, and {durable} is durable")
        if ack.epoch < voted_epoch:
            raise Violation(f"15: {node} acks to epoch {ack.epoch} and has voted in {voted_epoch}")

    def committed(self, node: NodeId, gtid: Gtid, log: Picture, epoch: int) -> None:
        """Inv 14, 19: commit points rise, and all nodes commit one history."""
        if gtid <= self._committed.get(node, NO_GTID):
            raise Violation(f"commit point of {node} goes from {self._committed[node]} to {gtid}")
        if log.gtid(gtid.seqno) != gtid:
            raise Violation(f"{node} commits {gtid}, which its log does not hold")
        since = self._committed.get(node, NO_GTID).seqno + 1
        self._committed[node] = gtid
        for seqno in range(max(since, log.first), gtid.seqno + 1):
            held = log.rows[seqno - log.first].gtid
            if held in self.gone:
                raise Violation(f"21: {held} was told to be rolled back, and {node} commits it")
            self.truth_in.setdefault(seqno, epoch)  # whoever commits first is its primary
            if self.truth.setdefault(seqno, held) != held:
                raise Violation(f"14: {node} commits {held}, and {self.truth[seqno]} was committed elsewhere")

    def reached(
        self,
        node: NodeId,
        gtid: Gtid,
        config: GroupConfig,
        logs: Mapping[NodeId, Picture],
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

    def read(self, node: NodeId, seen: Gtid, committed: Gtid, *, allowed: bool) -> None:
        """I43: who may read the latest sees what was acknowledged before it was asked for."""
        if allowed and committed < seen:
            raise Violation(f"I43: {node} serves the latest up to {committed}, and {seen} was acknowledged before")

    def written(self, gtid: Gtid, having: Mapping[NodeId, Picture]) -> None:
        """Inv 20: who is named in an answer has it durable, or had: a deposed primary may not know better."""
        for node, log in having.items():
            lacks = log.durable < gtid or log.gtid(gtid.seqno) not in (gtid, None)
            if lacks and gtid not in self._undone.get(node, ()):
                raise Violation(f"20: {node} is said to have {gtid}, and its log is durable up to {log.durable}")

    def rolled_back(self, one: SimNode, matchpoint: Gtid, before: Sequence[Gtid]) -> None:
        """Inv 26, 27: nothing acknowledged goes; what goes was saved, newest first, under one rid."""
        gone = [gtid for gtid in before if gtid > matchpoint]
        self._undone.setdefault(one.node, set()).update(gone)
        for gtid in gone:
            if self.truth.get(gtid.seqno) == gtid:
                raise Violation(f"26: {one.node} rolls back {gtid}, which was committed")
        rows: list[Saved] = one.saved()
        rids = list(dict.fromkeys([row.rid for row in rows]))
        if rids != list(range(len(rids))) or (gone and not rids):
            raise Violation(f"27: the rollbacks of {one.node} have the numbers {rids}")
        rows = [row for row in rows if row.rid == len(rids) - 1]
        if not set(gone) <= {row.gtid for row in rows} or [row.seq for row in rows] != list(range(len(rows))):
            raise Violation(f"27: {one.node} rolled back {gone} and saved {rows}")
        if [row.gtid for row in rows] != sorted([row.gtid for row in rows], reverse=True):
            raise Violation(f"27: {one.node} saved {rows} in another order")

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
