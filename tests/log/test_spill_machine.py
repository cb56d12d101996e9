"""Spill against a plain dict: open transactions, commits, aborts, segments of both kinds, purges, rollbacks, crashes.

conformance/tokumx.md, invariant 33: "No retained `ref` entry ever loses a refs document (for any interleaving of spill,
add, commit, abort, trim)".
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment, open_reader, read_all
from tranlog.ids import Gtid, Seqno
from tranlog.log.records.spill import spill_number
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, hold, read_holds
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


class SpillAgainstDict(RuleBasedStateMachine):
    """`held[seqno]` is (epoch, event id, content) of a transaction; b"" for a no-op. `durable`: up to here it stays."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.held: dict[int, tuple[int, str, bytes]] = {}
        self.durable = -1
        self.open_ones: dict[str, tuple[OpenTransaction, list[bytes]]] = {}
        self.made = 0
        self.log: Log

    @initialize(
        segment_bytes=st.sampled_from([1_000, 2_500]),
        chunk=st.sampled_from([1, 400]),
        spill_segment=st.sampled_from([1_000, 3_000]),
        above=st.sampled_from([1_200, 100_000]),
        compress=st.booleans(),
    )
    def begin(self, segment_bytes: int, chunk: int, spill_segment: int, above: int, compress: bool) -> None:
        self.options = LogOptions(
            segment_bytes=segment_bytes,
            buffer_bytes=300,
            spill_above=above,
            spill_buffer_bytes=chunk,
            spill_chunk_bytes=chunk,
            spill_segment_bytes=spill_segment,
            spill_compress=compress,
        )
        self.open()

    def open(self) -> None:
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        self.open_ones = {}
        last = self.log.last_seqno
        assert last - 1 >= self.durable, "lost what was durable"
        self.held = {seqno: entry for seqno, entry in self.held.items() if seqno < last}
        self.noop()
        assert all(one.referred_by is not None for one in self.log.spill_segments()), "spill without a transaction"

    def noop(self) -> None:
        self.durable = self.log.last_seqno
        self.held[self.durable] = (self.log.epoch, "", b"")

    def content(self, size: int) -> bytes:
        self.made += 1
        return (f"<{self.made}>".encode() * (size // 3 + 1))[:size]

    def needed(self) -> int:
        """Return the position of the hold; one that was just written does not always survive a loss of power."""
        return max([one.restart_seqno or 0 for one in read_holds(PATH, disk=self.disk)], default=-1)

    # --- rules ---------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.open_ones) < 4)
    @rule()
    def begin_one(self) -> None:
        self.made += 1
        self.open_ones[f"t{self.made}"] = (self.log.begin(), [])

    @precondition(lambda self: self.open_ones)
    @rule(which=st.randoms(use_true_random=False), size=st.integers(1, 900), count=st.integers(1, 4))
    def add(self, which: random.Random, size: int, count: int) -> None:
        event_id = which.choice(sorted(self.open_ones))
        transaction, parts = self.open_ones[event_id]
        for _ in range(count):
            parts.append(self.content(size))
            transaction.add(make_fragment(event_id, parts[-1]))

    @precondition(lambda self: any(parts for _, parts in self.open_ones.values()))
    @rule(which=st.randoms(use_true_random=False), sync=st.booleans())
    def commit(self, which: random.Random, sync: bool) -> None:
        event_id = which.choice(sorted(name for name, (_, parts) in self.open_ones.items() if parts))
        transaction, parts = self.open_ones.pop(event_id)
        gtid = transaction.commit(sync=sync)
        self.take(gtid, event_id, b"".join(parts), sync)

    def take(self, gtid: Gtid, event_id: str, content: bytes, sync: bool) -> None:
        assert gtid.seqno == max(self.held) + 1
        assert gtid.epoch == self.log.epoch
        self.held[gtid.seqno] = (gtid.epoch, event_id, content)
        self.durable = gtid.seqno if sync else self.log.durable_seqno

    @precondition(lambda self: self.open_ones)
    @rule(which=st.randoms(use_true_random=False))
    def abort(self, which: random.Random) -> None:
        transaction, _ = self.open_ones.pop(which.choice(sorted(self.open_ones)))
        transaction.abort()

    @rule(size=st.integers(1, 500), count=st.integers(1, 5), sync=st.booleans())
    def append(self, size: int, count: int, sync: bool) -> None:
        parts = [self.content(size) for _ in range(count)]
        event_id = f"a{self.made}"
        for part in parts[:-1]:
            self.log.append(make_fragment(event_id, part, last=False))
        gtid = self.log.append(make_fragment(event_id, parts[-1]))
        self.log.commit(sync=sync)
        self.take(gtid, event_id, b"".join(parts), sync)

    @rule()
    def add_segment(self) -> None:
        self.log.roll_spill()

    @rule(share=st.floats(0, 1), holding=st.booleans())
    def purge(self, share: float, holding: bool) -> None:
        below = Seqno(round(share * max(self.log.visible_seqno, 0)))
        if holding and below >= self.log.first_seqno:
            hold(PATH, "pipe", below, disk=self.disk, clock=self.clock)
        needed = self.needed()
        before = self.log.first_seqno
        self.log.purge(below=below)
        assert needed < before or self.log.first_seqno <= needed
        self.held = {seqno: entry for seqno, entry in self.held.items() if seqno >= self.log.first_seqno}

    @rule(back=st.integers(1, 6))
    def rollback(self, back: int) -> None:
        to = self.log.visible_seqno - back
        if to < max(self.log.first_seqno, self.needed(), 0):
            return
        self.log.commit()
        if self.log.rollback(Gtid(self.held[to][0], Seqno(to))) is not None:  # type: ignore[arg-type]
            self.held = {seqno: entry for seqno, entry in self.held.items() if seqno <= to}
            self.noop()

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.durable = self.log.visible_seqno
        self.open()

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.open()

    @rule(seed=st.integers(0, 1_000))
    def cut_the_power(self, seed: int) -> None:
        self.disk = self.disk.after_crash(random.Random(seed))
        self.open()

    @rule()
    def lose_the_table(self) -> None:
        if self.disk.exists(f"{PATH}/spill.table"):
            self.disk.unlink(f"{PATH}/spill.table")

    # --- what always holds ---------------------------------------------------------------------------

    @invariant()
    def every_transaction_is_whole(self) -> None:
        first = self.log.first_seqno
        with self.log.cursor() as cursor:
            found = {one.header.seqno: one for one in read_all(cursor)}
            assert sorted(found) == list(range(first, self.log.visible_seqno + 1))
            for seqno, transaction in found.items():
                epoch, event_id, content = self.held[seqno]
                assert transaction.header.epoch == epoch
                assert transaction.is_noop() is (content == b"")
                if content:
                    assert (transaction.header.event_id, b"".join(transaction.payloads())) == (event_id, content)

    @invariant()
    def what_is_counted_is_there(self) -> None:
        listed = {one.number for one in self.log.spill_segments()}
        assert listed == {spill_number(name) for name in self.disk.list_dir(PATH)} - {None}

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.close()
        report = verify(PATH, disk=self.disk)
        assert report.sound, report.problems
        with open_reader(self.disk) as reader:
            for _, record in reader.abandoned():
                assert record.payload
            spill = reader.spill_segments()
        with Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock) as log:
            kept = [one.number for one in log.spill_segments()]
            assert kept == [one.number for one in spill if one.referred_by is not None]


TestSpillAgainstDict = SpillAgainstDict.TestCase
