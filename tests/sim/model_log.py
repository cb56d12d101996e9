"""A log in memory, as the rules of replication see one; for what asks the rules alone, millions of times.

A transaction is a line of text. The simulator runs on the real log.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b

import msgspec

from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.records.spill import RawChunk
from tranlog.replication.rules.effects import Outgoing, Rest
from tranlog.replication.rules.packets import NO_GTID
from tranlog.replication.rules.syncup import Saved, rollback_id, saved_rows

NOOP = "no-op"


class ModelEntry(msgspec.Struct, frozen=True, array_like=True):
    """A transaction; `parts` counts its chunks."""

    gtid: Gtid
    text: str
    parts: int = 0


def running_hash(before: int, entry: ModelEntry) -> int:
    """Return the hash up to a transaction, given that before it."""
    told = b"%d %d %d %s" % (before, entry.gtid.epoch, entry.gtid.seqno, entry.text.encode())
    return int.from_bytes(blake2b(told, digest_size=8).digest()) >> 1


def _after(chunks: list[RawChunk], first: int) -> Iterator[RawChunk]:
    return iter(chunks[first:])


class ModelLog:
    """A `ReplicatedLog` as a list."""

    def __init__(self) -> None:
        self.entries: list[ModelEntry] = []
        self.hashes: list[int] = []
        self.times: list[int] = []
        self.synced = 0
        self.begin = 0
        self.begin_hash = 0
        self.mark = 0
        self.held: dict[str, int] = {}
        self.spilled: dict[bytes, list[RawChunk]] = {}
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
        """Return the hash up to a seqno that is held, or up to the one before the first."""
        at = seqno - self.begin
        assert at >= -1, f"seqno {seqno} is purged: the log starts at {self.begin}"
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

    def outgoing(self, after: int, up_to: int, limit: int, rest: Rest | None = None) -> Outgoing:
        """Return whole records after a seqno."""
        taken: list[ModelEntry] = []
        size = 0
        for entry in self.entries[after + 1 - self.begin : up_to + 1 - self.begin]:
            if taken and (entry.parts or size + len(entry.text) + 30 > limit):
                break
            taken.append(entry)
            size += len(entry.text) + 30
            if entry.parts:
                chunks = self.spilled[entry.gtid.to_bytes()]
                raw = msgspec.msgpack.encode(taken)
                return Outgoing(raw, entry.gtid, chunks[0].oid, partial(_after, chunks))
        return Outgoing(msgspec.msgpack.encode(taken), taken[-1].gtid)

    def open_spills(self) -> Mapping[bytes, int]:
        """Return how many chunks each open transaction has."""
        ended = {entry.gtid.to_bytes() for entry in self.entries}
        return {oid: len(chunks) for oid, chunks in self.spilled.items() if oid not in ended}

    def open_chunks(self, have: Mapping[bytes, int]) -> Iterator[RawChunk]:
        """Yield the chunks of open transactions."""
        for oid in self.open_spills():
            yield from self.spilled[oid][have.get(oid, 0) :]

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
            oid = gtid.to_bytes()
            self.spilled[oid] = [RawChunk(oid, seq, 0, len(raw), raw) for seq, raw in enumerate(chunks)]
        self._add(ModelEntry(gtid, text, len(chunks)), wall)
        return gtid

    def put(self, raw: bytes, wall: int) -> None:
        """Append records as they came."""
        for entry in msgspec.msgpack.decode(raw, type=list[ModelEntry]):
            last = self.last
            if entry.gtid.seqno != last.seqno + 1 or entry.gtid.epoch < last.epoch:
                raise ValueError(f"{entry.gtid} does not follow {last}")
            if len(self.spilled.get(entry.gtid.to_bytes(), ())) < entry.parts:
                raise ValueError(f"{entry.gtid} refers to chunks that are not there")
            self._add(entry, wall)

    def put_chunk(self, chunk: RawChunk) -> None:
        """Keep a chunk that is the next one."""
        parts = self.spilled.setdefault(chunk.oid, [])
        if chunk.seq == len(parts):
            parts.append(chunk)

    def sync(self) -> None:
        """Make everything durable."""
        self.synced = len(self.entries)

    def save(self, matchpoint: Gtid, wall: int) -> None:
        """Save durably what comes after the matchpoint, newest first."""
        rid = rollback_id(self.saved, matchpoint, self.last)
        if rid in self.saved:
            self.saved_rows = [row for row in self.saved_rows if row.rid != rid]
        self.saved[rid] = (matchpoint, self.last)
        gone = [
            (entry.gtid, entry.text, [(entry.text, b"")]) for entry in self.entries[matchpoint.seqno + 1 - self.begin :]
        ]
        self.saved_rows += saved_rows(reversed(gone), rid, wall)

    def abandon_after(self, matchpoint: Gtid) -> None:
        """Abandon what comes after the matchpoint."""
        keep = matchpoint.seqno + 1 - self.begin
        for entry in self.entries[keep:]:
            self.spilled.pop(entry.gtid.to_bytes(), None)
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
                self.spilled.pop(entry.gtid.to_bytes(), None)
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

    def become(self, other: ModelLog) -> None:
        """Become a copy of what is durable of another one; restored."""
        kept = other.synced
        self.entries, self.hashes, self.times = other.entries[:kept], other.hashes[:kept], other.times[:kept]
        self.begin, self.begin_hash, self.synced = other.begin, other.begin_hash, kept
        self.spilled = {oid: list(parts) for oid, parts in other.spilled.items()}
        self.mark += 1
