"""A log in memory, as replication sees one: epochs, a sync, the loss of what was not synced, a purge, a rollback.

Stands where the real log will: `GroupLog` is the seam. A transaction is a line of text.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Protocol

import msgspec

from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.rules.effects import ReplicatedLog
from tranlog.replication.rules.packets import NO_GTID
from tranlog.replication.rules.syncup import Saved, rollback_id, saved_rows

NOOP = "no-op"


class GroupLog(ReplicatedLog, Protocol):
    """What a member of a group does to its log; the simulator needs no more of one."""

    def begin_reign(self, epoch: int, wall: int) -> None:
        """Append the no-op of an epoch."""

    def append(self, text: str, wall: int, *, chunks: tuple[bytes, ...] = ()) -> Gtid:
        """Append a transaction in the last epoch; `chunks`: what of it spilled, which comes to stand beside it."""

    def put(self, raw: bytes, wall: int) -> None:
        """Append records as they came. Raises ValueError for those that do not follow what is there."""

    def put_chunk(self, oid: bytes, seq: int, raw: bytes) -> None:
        """Keep a chunk."""

    def sync(self) -> None:
        """Make everything durable."""

    def save(self, matchpoint: Gtid, wall: int) -> None:
        """Save durably what comes after the matchpoint."""

    def abandon_after(self, matchpoint: Gtid) -> None:
        """Abandon what comes after the matchpoint, durably."""

    def keep(self, name: str, seqno: int | None) -> None:
        """Keep what begins at a seqno from being purged, under a name; None: no longer."""

    def purge(self, up_to: int, *, hard: bool = False) -> None:
        """Purge up to a seqno, inclusive, as far as the holds allow, and never the last transaction."""

    def crash(self, rng: random.Random) -> None:
        """Lose the power: some of what was not synced is gone."""


class ModelEntry(msgspec.Struct, frozen=True, array_like=True):
    """A transaction; `parts` counts its chunks."""

    gtid: Gtid
    text: str
    parts: int = 0


def running_hash(before: int, entry: ModelEntry) -> int:
    """Return the hash up to a transaction, given that before it."""
    told = b"%d %d %d %s" % (before, entry.gtid.epoch, entry.gtid.seqno, entry.text.encode())
    return int.from_bytes(blake2b(told, digest_size=8).digest()) >> 1


class ModelLog:
    """A `GroupLog` as a list."""

    def __init__(self) -> None:
        self.entries: list[ModelEntry] = []
        self.hashes: list[int] = []
        self.times: list[int] = []
        self.synced = 0
        self.begin = 0
        self.begin_hash = 0
        self.mark = 0
        self.held: dict[str, int] = {}
        self.spilled: dict[bytes, dict[int, bytes]] = {}
        self.saved: dict[int, tuple[Gtid, Gtid]] = {}
        self.saved_rows: list[Saved] = []

    # --- what the rules see ---

    @property
    def first(self) -> Seqno:
        """The first seqno held."""
        return Seqno(self.begin)

    @property
    def last(self) -> Gtid:
        """The last transaction."""
        return self.entries[-1].gtid if self.entries else NO_GTID

    @property
    def durable(self) -> Gtid:
        """The last synced one."""
        return self.entries[self.synced - 1].gtid if self.synced else NO_GTID

    def gtid(self, seqno: int) -> Gtid | None:
        """Return the GTID at a seqno, None where none is held."""
        at = seqno - self.begin
        return self.entries[at].gtid if 0 <= at < len(self.entries) else None

    def h(self, seqno: int) -> int:
        """Return the hash up to a seqno."""
        at = seqno - self.begin
        return self.hashes[at] if at >= 0 else self.begin_hash

    def last_of_epoch(self, epoch: int) -> Gtid:
        """Return the last GTID of that or an earlier epoch."""
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].gtid.epoch <= epoch:
                low = middle + 1
            else:
                high = middle
        return self.entries[low - 1].gtid if low else NO_GTID

    def written_at(self, seqno: int) -> int:
        """Return when a transaction was logged here."""
        return self.times[seqno - self.begin]

    def has_ddl(self, after: int) -> bool:
        """Whether a text behind that seqno begins with DDL."""
        return any([entry.text.startswith("DDL") for entry in self.entries[after + 1 - self.begin :]])

    def raw(self, after: int, up_to: int, limit: int) -> tuple[bytes, Gtid]:
        """Return whole records after a seqno."""
        taken: list[ModelEntry] = []
        size = 0
        for entry in self.entries[after + 1 - self.begin : up_to + 1 - self.begin]:
            if taken and size + len(entry.text) + 30 > limit:
                break
            taken.append(entry)
            size += len(entry.text) + 30
        return msgspec.msgpack.encode(taken), taken[-1].gtid

    def chunks(self, after: int, up_to: int) -> list[tuple[bytes, int, bytes]]:
        """Return the chunks of what lies there."""
        if not self.spilled:
            return []
        oids = {_oid(e.gtid) for e in self.entries[after + 1 - self.begin : up_to + 1 - self.begin] if e.parts}
        return [(oid, seq, raw) for oid in sorted(oids) for seq, raw in sorted(self.spilled.get(oid, {}).items())]

    # --- what is done to it ---

    def _add(self, entry: ModelEntry, wall: int) -> None:
        self.hashes.append(running_hash(self.hashes[-1] if self.hashes else self.begin_hash, entry))
        self.entries.append(entry)
        self.times.append(wall)

    def begin_reign(self, epoch: int, wall: int) -> None:
        """Append the no-op of an epoch."""
        assert epoch > self.last.epoch, f"epoch {epoch} behind {self.last}"
        self._add(ModelEntry(Gtid(Epoch(epoch), Seqno(self.last.seqno + 1)), NOOP), wall)

    def append(self, text: str, wall: int, *, chunks: tuple[bytes, ...] = ()) -> Gtid:
        """Append a transaction in the last epoch."""
        gtid = Gtid(self.last.epoch, Seqno(self.last.seqno + 1))
        if chunks:
            self.spilled[_oid(gtid)] = dict(enumerate(chunks))
        self._add(ModelEntry(gtid, text, len(chunks)), wall)
        return gtid

    def put(self, raw: bytes, wall: int) -> None:
        """Append records as they came."""
        for entry in msgspec.msgpack.decode(raw, type=list[ModelEntry]):
            last = self.last
            if entry.gtid.seqno != last.seqno + 1 or entry.gtid.epoch < last.epoch:
                raise ValueError(f"{entry.gtid} does not follow {last}")
            if len(self.spilled.get(_oid(entry.gtid), {})) < entry.parts:
                raise ValueError(f"{entry.gtid} refers to chunks that are not there")
            self._add(entry, wall)

    def put_chunk(self, oid: bytes, seq: int, raw: bytes) -> None:
        """Keep a chunk."""
        self.spilled.setdefault(oid, {})[seq] = raw

    def sync(self) -> None:
        """Make everything durable."""
        self.synced = len(self.entries)

    def save(self, matchpoint: Gtid, wall: int) -> None:
        """Save durably what comes after the matchpoint, newest first."""
        rid = rollback_id(self.saved, matchpoint, self.last)
        if rid in self.saved:
            self.saved_rows = [row for row in self.saved_rows if row.rid != rid]
        self.saved[rid] = (matchpoint, self.last)
        gone = [(entry.gtid, (entry.text,)) for entry in self.entries[matchpoint.seqno + 1 - self.begin :]]
        self.saved_rows += saved_rows(reversed(gone), rid, wall)

    def abandon_after(self, matchpoint: Gtid) -> None:
        """Abandon what comes after the matchpoint."""
        keep = matchpoint.seqno + 1 - self.begin
        for entry in self.entries[keep:]:
            self.spilled.pop(_oid(entry.gtid), None)
        del self.entries[keep:], self.hashes[keep:], self.times[keep:]
        self.synced = len(self.entries)
        self.mark += 1

    def keep(self, name: str, seqno: int | None) -> None:
        """Keep what begins at a seqno."""
        if seqno is None:
            self.held.pop(name, None)
        else:
            self.held[name] = seqno

    def purge(self, up_to: int, *, hard: bool = False) -> None:
        """Purge, minding the holds."""
        bound = up_to if hard else min([up_to, *(seqno - 1 for seqno in self.held.values())])
        count = min(bound + 1 - self.begin, self.synced - 1)
        if count > 0:
            for entry in self.entries[:count]:
                self.spilled.pop(_oid(entry.gtid), None)
            self.begin_hash = self.hashes[count - 1]
            del self.entries[:count], self.hashes[:count], self.times[:count]
            self.begin += count
            self.synced -= count

    def crash(self, rng: random.Random) -> None:
        """Lose some of what was not synced; holds of followers are kept by nobody."""
        kept = rng.randint(self.synced, len(self.entries))
        del self.entries[kept:], self.hashes[kept:], self.times[kept:]
        self.synced = kept
        self.held.clear()

    def lose_synced(self, count: int) -> None:
        """Lose transactions that were synced, as a disk does that lies."""
        kept = max(0, len(self.entries) - count)
        del self.entries[kept:], self.hashes[kept:], self.times[kept:]
        self.synced = kept

    def become(self, other: ModelLog) -> None:
        """Become a copy of what is durable of another one; restored."""
        kept = other.synced
        self.entries, self.hashes, self.times = other.entries[:kept], other.hashes[:kept], other.times[:kept]
        self.begin, self.begin_hash, self.synced = other.begin, other.begin_hash, kept
        self.spilled = {oid: dict(parts) for oid, parts in other.spilled.items()}
        self.mark += 1


def _oid(gtid: Gtid) -> bytes:
    return gtid.to_bytes()
