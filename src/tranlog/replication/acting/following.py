"""A node's log: what the rules read of it, and the changes that they order.

Owns carrying out effects on the real log: received bytes are put, synced, and then durable, which the core acks. No
socket and no event loop: everything is done before a call returns. The hard idea: the rules ask for GTIDs all the
time, and epochs are few. So the seqnos at which epochs begin give the GTIDs of the whole log.

How a node uses it, in one thread at a time: `NodeLog.follow` opens it; `Core(..., log=node_log,
committed=node_log.committed())`; each effect of `core.ready()` that `carries_out` knows goes to `carry_out`, the others
(`Persist`, `Send`, `Tell`, `Restore`, `Fatal`) are the node's own. Where `carry_out` returns LOGGED, `core.logged()`
follows, and soon `sync()` and `core.durable()`, one sync for whatever came meanwhile; UNUSABLE: `core.unusable()`;
ROLLED_BACK: `core.rolled_back()`. What clients commit at a primary goes to `log` itself, and then `core.logged()`.

Source: docs/protocol.md, "The order of things"; docs/format.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from tranlog.change import Statement
from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import AppendOrderError, RawRecordError
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.files.commit_point import read_commit_point
from tranlog.log.files.holds import drop_hold, hold, read_holds
from tranlog.log.options import LogOptions
from tranlog.log.reading.cursor import Cursor
from tranlog.log.records.spill import OID, RawChunk
from tranlog.log.rules.raw_records import whole_records
from tranlog.log.rules.rollback import FOLLOWERS
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting.rollback import empty_log, save
from tranlog.replication.rules.effects import (
    BeginReign,
    Committed,
    DropChunks,
    DropParts,
    Effect,
    EndReign,
    KeepAlive,
    KeepFrom,
    Outgoing,
    Put,
    PutChunk,
    Rest,
    RollBack,
)
from tranlog.replication.rules.packets import NO_GTID, RAW_BYTES
from tranlog.replication.rules.syncup import MARK, SAVE

_KEPT_S: Final = 1.0
"""So often, at most, a hold is written that rises."""
_TIMES_MOST: Final = 4096


class LogChange(Enum):
    """The result of an effect, for the core."""

    NOTHING = "nothing"
    LOGGED = "logged"
    """There is more in the log, visible and not synced yet."""
    UNUSABLE = "unusable"
    """What was received could not be put."""
    ROLLED_BACK = "rolled back"


ToTheLog = BeginReign | EndReign | KeepAlive | Put | DropParts | PutChunk | DropChunks | Committed | KeepFrom | RollBack
"""The effects that are a `NodeLog`'s to carry out."""


def carries_out(effect: Effect) -> bool:
    """Whether a `NodeLog` carries out this effect."""
    return isinstance(effect, ToTheLog)


def open_member(path: str, given: Mapping[str, Any], *, start_after: Gtid | None = None, h: int = 0) -> MemberLog:
    """Open a member's log; `given`: parameters of `MemberLog.follow`, `h`: the running hash up to `start_after`."""
    log = MemberLog.follow(path, **given, start_after=start_after)
    log.take_over(given["history"], h)
    return log


class NodeLog:
    """A member's log, open. One thread at a time."""

    part_bytes = RAW_BYTES
    """A transaction of more bytes goes out in parts of so many."""

    def __init__(self, log: MemberLog, disk: Disk, clock: Clock, reopen: Mapping[str, Any]) -> None:
        """For `follow` only."""
        self.log = log
        self._disk = disk
        self._clock = clock
        self._reopen = reopen
        self._holds: dict[str, tuple[int, float]] = {}
        self._went_back = 0  # marks of logs that were emptied
        self._before: tuple[list[tuple[Seqno, int]], Seqno] = ([], NO_SEQNO)
        self._referring: Outgoing | None = None
        self._sent: tuple[int, Outgoing] | None = None  # after what, and what was sent last
        self._feeding: Cursor | None = None
        self._piece: bytearray | None = None  # of a record, of a transaction that comes in parts
        self._chunks: dict[bytes, bytearray] = {}  # parts of chunks, by oid
        self._read: deque[RawChunk] = deque(maxlen=4)  # chunks of transactions that are open
        self._learn_anew()
        for one in read_holds(log.path, disk=log.disk):
            if one.name.startswith(FOLLOWERS[1]):
                drop_hold(log.path, one.name, disk=log.disk)  # whoever searches begins again
            elif one.name.startswith(FOLLOWERS[0]) and one.restart_seqno is not None:
                self._holds[one.name] = one.restart_seqno, 0.0

    @classmethod
    def follow(
        cls,
        path: str,
        *,
        source_id: str,
        history: bytes,
        options: LogOptions | None = None,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> NodeLog:
        """Open the log of a member of the group whose identity is `history`. Raises as `MemberLog.follow`."""
        given = {"source_id": source_id, "history": history, "options": options, "disk": disk, "clock": clock}
        return cls(open_member(path, given), disk, clock, given)

    def close(self) -> None:
        """Close the log. Raises as `Log.close`."""
        self._stop_feeding()
        self.log.close()

    def committed(self) -> Gtid:
        """Return the commit point known at the opening; `NO_GTID` if none is known."""
        kept = read_commit_point(self.log.path, self.log.disk)
        return kept if kept is not None and self.gtid(kept.seqno) == kept else NO_GTID

    # --- what the rules ask ---

    @property
    def first(self) -> Seqno:
        """The first seqno held; that of the next transaction if the log is empty."""
        first = self.log.first_seqno
        return first if first >= 0 else Seqno(self.log.last_seqno + 1)

    @property
    def last(self) -> Gtid:
        """The end of the unbroken prefix."""
        if self.log.visible_seqno != self._last.seqno:
            self._learn()
        return self._last

    @property
    def durable(self) -> Gtid:
        """The last transaction that would survive a loss of power."""
        durable, last = self.log.durable_seqno, self.last
        return last if durable >= last.seqno else self.gtid(durable) or NO_GTID

    def shows(self, committed: Gtid) -> bool:
        """Whether readers of other processes can see what is committed up to there."""
        return self.log.gate(committed_only=True).wait(Seqno(committed.seqno), 0) >= committed.seqno

    @property
    def mark(self) -> int:
        """How often the log was rolled back."""
        return self._went_back + self.log.marks

    def gtid(self, seqno: int) -> Gtid | None:
        """Return the GTID at a seqno; None if the log holds none."""
        if not self.last.seqno >= seqno >= self.first:
            return None
        while self._starts[0] > seqno:
            self._learn_before()
        return Gtid(self._epochs[bisect_right(self._starts, seqno) - 1], Seqno(seqno))

    def last_of_epoch(self, epoch: int) -> Gtid:
        """Return the last GTID of that or an earlier epoch."""
        if self.last == NO_GTID or epoch >= self._last.epoch:
            return self._last
        while self._epochs[0] > epoch and self._starts[0] > self.first:
            self._learn_before()
        at = bisect_right(self._epochs, epoch)
        return self.gtid(self._starts[at] - 1) or NO_GTID

    def h(self, seqno: int) -> int:
        """Return the running hash up to a transaction."""
        return self.log.h(Seqno(seqno))

    def written_at(self, seqno: int) -> int:
        """Return when a transaction was logged here, wall clock, ms since 1970."""
        times = self._times
        if not times or seqno < times[0][0]:
            times, last = self._before
            if not times or not times[0][0] <= seqno <= last:
                self._before = times, last = self.log.logged_at(Seqno(seqno))
        return times[bisect_right(times, seqno, key=lambda one: one[0]) - 1][1]

    def has_ddl(self, after: int) -> bool:
        """Whether a transaction after that seqno holds DDL."""
        with self.log.cursor() as cursor:
            cursor.seek(Seqno(after + 1))
            while (transaction := cursor.next()) is not None:
                if any(isinstance(change, Statement) and change.ddl for change in transaction.changes()):
                    return True
        return False

    def outgoing(self, after: int, up_to: int, limit: int, rest: Rest | None = None) -> Outgoing:
        """Return whole records after a seqno, at least one transaction's, or a part of a large one's."""
        if rest is not None:
            return self._part(after + 1, rest)
        if self._referring is not None and self._referring.last.seqno == after + 1 <= up_to:
            return self._referring  # its chunks go out under credit, and are not looked for again each time
        if self._sent is not None and self._sent[0] == after and self._sent[1].last.seqno <= up_to:
            return self._sent[1]  # as to another follower
        parts: list[bytes] = []
        size, last = 0, after
        if self._feeding is None:
            self._feeding = self.log.cursor()
        self._feeding.seek(Seqno(after + 1))
        for stretch in self._feeding.stretches(until=Seqno(up_to), most=self.part_bytes):
            alone = stretch.spilled or stretch.large
            if parts and (alone is not None or (last != stretch.last and size >= limit)):
                break
            if stretch.large is not None:
                return self._part(stretch.last, Rest(stretch.large.start, 0))
            parts.append(stretch.raw)
            ends = stretch.last > last + 1  # it holds more than one transaction, so all of the last one
            size, last = size + len(stretch.raw), stretch.last
            if stretch.spilled is not None:
                spilled = stretch.spilled
                out = self._referring = Outgoing(stretch.raw, self._gtid_at(last), spilled.oid, spilled.chunks)
                return out
            if ends and size >= limit // 2:
                break
        out = Outgoing(parts[0] if len(parts) == 1 else b"".join(parts), self._gtid_at(last))
        self._sent = after, out
        return out

    def _stop_feeding(self) -> None:
        """Forget what was read for followers."""
        self._referring = self._sent = None
        if self._feeding is not None:
            self._feeding.close()
            self._feeding = None

    def _part(self, seqno: int, rest: Rest) -> Outgoing:
        part = self.log.part(Seqno(seqno), rest.record, rest.offset, self.part_bytes)
        behind = None if part.record is None else Rest(part.record, part.offset)
        return Outgoing(part.raw, self._gtid_at(seqno), rest=behind)

    def open_spills(self) -> Mapping[bytes, int]:
        """Return how many chunks each transaction has that is still open, by its oid."""
        return self.log.open_spills()

    def open_chunks(self, have: Mapping[bytes, int]) -> Iterator[RawChunk]:
        """Yield the chunks of open transactions, after so many of each.

        Those that were read last are kept: they go out in parts, and to each follower.
        """
        still = self.log.open_spills()
        if not still:
            self._read.clear()
            return
        wanted = dict(have)
        while (known := next((one for one in self._read if wanted.get(one.oid, 0) == one.seq), None)) is not None:
            wanted[known.oid] = known.seq + 1
            if known.oid in still:
                yield known
        for one in self.log.open_chunks(wanted):
            self._read.append(one)
            yield one

    def _gtid_at(self, seqno: int) -> Gtid:
        found = self.gtid(seqno)
        assert found is not None, "it was just read"
        return found

    # --- what they want done ---

    def carry_out(self, effect: ToTheLog) -> LogChange:
        """Carry out an effect; it is complete when this returns.

        Raises DiskFullError, DiskFailedError, LogClosedError, LogLockedError, HoldError: the node ends with that.
        """
        log = self.log
        match effect:
            case Put():
                return self._put(effect)
            case DropParts():
                self._drop_parts()
            case PutChunk():
                return self._put_chunk(effect)
            case DropChunks(oid=oid):
                self._chunks.pop(oid, None)
                log.drop_chunks(oid)
            case BeginReign(epoch=epoch):
                self._drop_parts()
                log.lead(Epoch(epoch))
                self._learn()
                return LogChange.LOGGED
            case EndReign():
                log.unlead()
                self._learn()
            case KeepAlive():
                log.keep_alive()
                log.commit(sync=False)
                return LogChange.LOGGED
            case Committed(gtid=gtid):
                log.commit_to(gtid)
            case KeepFrom(name=name, seqno=seqno, held=held):
                if not held or (name in self._holds and self._holds[name][0] != seqno):
                    self._keep(name, seqno)
            case RollBack():
                self._roll_back(effect)
                return LogChange.ROLLED_BACK
        return LogChange.NOTHING

    def waits(self, effect: Effect) -> bool:
        """Whether carrying out an effect may wait for a sync or a new segment."""
        match effect:
            case Put(raw=raw):
                return bool(self.log.open_spills()) or not self.log.fits(len(raw))
            case KeepFrom(held=True):
                return False
            case KeepFrom(name=name, seqno=seqno):
                return (name in self._holds) is (seqno is None)  # a new one, or the end of one
            case KeepAlive():
                return not self.log.fits(0)
        return True

    def sync(self) -> None:
        """Return when everything that is visible now is durable. Raises as `Log.commit`."""
        self.log.commit()

    def forget_others(self, nodes: set[str]) -> None:
        """Give up the holds of followers that are not among these: they left the group. Raises HoldError."""
        for one in read_holds(self.log.path, disk=self.log.disk):
            if one.name.startswith(FOLLOWERS) and one.name.partition(".")[2] not in nodes:
                self._holds.pop(one.name, None)
                drop_hold(self.log.path, one.name, disk=self.log.disk)

    def _put(self, put: Put) -> LogChange:
        """Put received records, visible; what was put before one that is bad stays.

        Of a transaction that comes in parts the records that are whole are put, and a piece of one is kept.
        """
        log, raw = self.log, put.raw
        if not put.part:
            self._drop_parts()
        if put.part or not put.whole:
            if put.part and self._piece is None:
                return LogChange.UNUSABLE
            piece = self._piece = self._piece or bytearray()
            piece += raw
            end = len(piece) if put.whole else whole_records(piece)
            raw = bytes(memoryview(piece)[:end])
            del piece[:end]
        try:
            log.append_raw(raw)
        except RawRecordError:
            self._piece = None
            log.abandon_open()
            return LogChange.UNUSABLE
        if put.whole:
            self._piece = None
        log.commit(sync=False)
        self._learn()
        return LogChange.LOGGED

    def _drop_parts(self) -> None:
        """Forget the parts of a transaction that was not whole."""
        if self._piece is not None:
            self._piece = None
            self.log.abandon_open()

    def _put_chunk(self, put: PutChunk) -> LogChange:
        """Put a chunk once it is whole: its parts are kept until then."""
        chunk, kept = put.chunk, self._chunks
        if put.size > len(chunk.raw):
            so_far = kept.get(chunk.oid, bytearray()) if put.offset else bytearray()
            if len(so_far) != put.offset:
                return LogChange.UNUSABLE
            kept[chunk.oid] = so_far
            so_far += chunk.raw
            if len(so_far) < put.size:
                return LogChange.NOTHING
            chunk = msgspec.structs.replace(chunk, raw=bytes(kept.pop(chunk.oid)))
        try:
            self.log.put_chunk(chunk)
        except AppendOrderError:
            return LogChange.UNUSABLE
        return LogChange.NOTHING

    def _keep(self, name: str, seqno: int | None) -> None:
        """Keep a hold; one that rises is written once a second, since an older one is safe."""
        log, now = self.log, self._clock.monotonic()
        if seqno is None:
            if self._holds.pop(name, None) is not None:
                drop_hold(log.path, name, disk=log.disk)
            return
        known = self._holds.get(name)
        if known is None or seqno < known[0] or now - known[1] >= _KEPT_S:
            hold(log.path, name, Seqno(seqno), follower=True, disk=log.disk, clock=self._clock)
            self._holds[name] = seqno, now

    def _roll_back(self, plan: RollBack) -> None:
        """Carry the steps of a rollback out in their order. A crash between two of them begins again."""
        for step in plan.steps:
            if step == SAVE:
                save(self.log, plan.matchpoint, plan.last, self._clock)
            elif step == MARK and plan.matchpoint != NO_GTID:
                self.log.abandon_after(plan.matchpoint)
                self._learn_anew()
            elif step == MARK:
                self._went_back = self.mark + 1
                self.log.close()
                empty_log(self.log.path, self._disk)
                self.log = open_member(self.log.path, self._reopen)
                self._learn_anew()

    # --- the epochs of the log ---

    def _learn_anew(self) -> None:
        """Know only where the log ends."""
        last = self.log.visible_gtid
        self._last = NO_GTID if last is None else last
        self._starts: list[int] = [] if last is None else [last.seqno]
        self._epochs: list[Epoch] = [] if last is None else [last.epoch]
        self._times: list[tuple[Seqno, int]] = []
        self._before = ([], NO_SEQNO)
        self._stop_feeding()

    def _learn_before(self) -> None:
        """Learn where the first known epoch begins, and which one is before it."""
        before = self.log.last_of_epoch(self._epochs[0] - 1)
        self._starts[0] = self.first if before is None else before.seqno + 1
        if before is not None:
            self._starts.insert(0, before.seqno)
            self._epochs.insert(0, before.epoch)

    def _learn(self) -> None:
        """Take in what became visible."""
        last, known = self.log.visible_gtid, self._last
        if last is None or last == known:
            return
        if last.seqno < known.seqno or known == NO_GTID:
            self._learn_anew()
        elif last.epoch != known.epoch:
            fresh: list[tuple[int, Epoch]] = []
            epoch: Epoch = last.epoch
            while epoch > known.epoch:
                before = self.log.last_of_epoch(epoch - 1)
                assert before is not None, "what was the last before is still there"
                fresh.insert(0, (before.seqno + 1, epoch))
                epoch = before.epoch
            self._starts += [start for start, _ in fresh]
            self._epochs += [one for _, one in fresh]
            self._forget_spills(last.epoch)
        self._last = last
        self._times.append((Seqno(known.seqno + 1), self._clock.now_ms()))
        if len(self._times) > _TIMES_MOST:
            del self._times[: _TIMES_MOST // 2]

    def _forget_spills(self, epoch: Epoch) -> None:
        """Drop the chunks of transactions of earlier reigns, which will never be committed."""
        for oid in [*self.log.open_spills(), *self._chunks]:
            if OID.unpack(oid)[0] < epoch:
                self._chunks.pop(oid, None)
                self.log.drop_chunks(oid)
