"""The counters of a channel: transactions, changes, time spent, and which of that the target has.

Owns the counters between two positions. Counters are stored with a position, in the same target transaction; so an
entry is made before the transaction, and booked after it.

Source: docs/parallel-apply.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tranlog.change import TableName
from tranlog.clock import Clock
from tranlog.ids import Seqno
from tranlog.pipeline.applying.group import Taken
from tranlog.pipeline.rules.channels import Walk
from tranlog.pipeline.rules.progress import ChannelStats, Counters, Waiting
from tranlog.target.target import ChannelRow


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """The accounts as of a target transaction. `whole`: it includes everything read so far, and all that is pending.

    `changes`, `bytes`: as known before it; for a stream, more is known after it.
    """

    group: Sequence[Taken]
    whole: bool
    counters: Counters
    stats: ChannelStats
    changes: int
    bytes: int

    def text(self) -> str:
        """Return the text that is stored with the position."""
        return self.stats.text(self.counters)


class Accounts:
    """One channel's. Threads: one.

    `pending`: what is not in a group: no-ops, waits, what was known only afterwards. `waiting`: the wait that the next
    position reports.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stored = Counters()
        self._stats = ChannelStats()
        self._mark = clock.monotonic()
        """Up to where it is counted what the time went to."""
        self.pending = Counters()
        self.waiting: Waiting | None = None

    def read(self, row: ChannelRow) -> None:
        """Continue from the counters of a position; keep pending ones that reading the log again does not repeat."""
        self._stored = Counters.parse(row.stats)
        self._stats = ChannelStats.parse(row.stats)
        kept = self.pending
        self.pending = Counters(waits=kept.waits, wait_ms=kept.wait_ms, retries=kept.retries)
        self._mark = self._clock.monotonic()

    @property
    def owed(self) -> bool:
        """Whether there are counters to publish although no position has moved."""
        return bool(self.pending.changes) or self.waiting is not None

    def spent(self, on: str) -> None:
        """Add the time since the last call to this activity."""
        now = self._clock.monotonic()
        pending = self.pending
        setattr(pending, on, getattr(pending, on) + max(0, round((now - self._mark) * 1e6)))
        self._mark = now

    def passed(self, taken: Taken, *, filtered: int) -> None:
        """Count a transaction with nothing to apply."""
        self._count(self._stats, taken)
        self.pending += Counters(
            transactions=1, bytes=taken.bytes, serial=int(taken.serial), sections=int(taken.opens), filtered=filtered
        )

    def _count(self, stats: ChannelStats, taken: Taken) -> int:
        header = taken.header
        latency_ms = max(0, self._clock.now_ms() - header.tstamp)
        if taken.why:
            stats.count_reason(taken.why)
        stats.count(taken.shard, 1, seqno=header.seqno, event_id=header.event_id, latency_ms=latency_ms)
        return latency_ms

    def entry(
        self, group: Sequence[Taken], walk: Walk, upto: Seqno, missed: tuple[TableName, ...] = ()
    ) -> AccountEntry:
        """Return the entry to store with the position `upto`, together with this group.

        `missed`: tables at which a dependency of the group was missed.
        """
        whole = upto == walk.passed
        counters = self._stored + (self.pending if whole else Counters())
        changes = size = 0
        for taken in group:
            changes += taken.changes
            size += taken.bytes
            counters.serial += taken.serial
            counters.sections += taken.opens
        counters.changes += changes
        counters.bytes += size
        counters.transactions += len(group)
        counters.groups += bool(group)
        own = counters.transactions + counters.omitted - self._stored.transactions - self._stored.omitted
        counters.skipped += upto - walk.published - own
        stats = msgspec.structs.replace(self._stats, shards=dict(self._stats.shards), reasons=dict(self._stats.reasons))
        if missed:
            counters.missed += 1
            stats.missed_at = tuple(sorted({*stats.missed_at, *missed}))
        if stats.since < 0:
            stats.since = walk.published + 1
        stats.section = walk.run and walk.channel == 0
        stats.waiting, self.waiting = self.waiting, None
        if group:
            stats.block = len(group)
            for taken in group:
                stats.latency_ms = self._count(stats, taken)
        return AccountEntry(group, whole, counters, stats, changes, size)

    def book(self, entry: AccountEntry, *, apply_us: int = 0, commit_us: int = 0) -> None:
        """Note that an entry is in the target, and how long that took."""
        self._stored, self._stats = entry.counters, entry.stats
        if entry.group:
            self._stats.block_us = apply_us
            self._mark += apply_us / 1e6
        if entry.whole:
            self.pending = Counters()
        self.pending.commit_us += commit_us
        self.pending.apply_us += max(0, apply_us - commit_us)
        # What was only known when a stream had passed is stored with the next position.
        self.pending.changes += sum([taken.changes for taken in entry.group]) - entry.changes
        self.pending.bytes += sum([taken.bytes for taken in entry.group]) - entry.bytes
