"""log/rules/index.py, log/files/index_table.py, what opening makes of them: against plain dicts, in any order.

Two machines: the index and its table by themselves, where places are registered late and out of order; and the index of
a real log, with its recovery. Both on a disk that forgets what was not synced.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment
from log.traces import entry_of, range_of
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Lsn, Seqno
from tranlog.log.files.index_table import INDEX_NAME, IndexTable, read_index
from tranlog.log.rules.index import IndexView, SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, Entry, IndexOptions
from tranlog.log.writing.log import Log, LogOptions, drop_hold, hold
from tranlog.lsn import lsn, lsn_segment
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

TABLE = f"{PATH}/{INDEX_NAME}"
SHARES = st.floats(0, 1)


class IndexAgainstDict(RuleBasedStateMachine):
    """`entries` is what the log holds; those in `pending` are not registered yet."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.disk.make_dir(PATH)
        self.disk.sync_dir("/")
        self.entries: dict[int, Entry] = {}
        self.pending: list[Entry] = []
        self.views: list[IndexView] = []  # taken, not stored yet
        self.next_seqno, self.segment, self.offset = 1, 1, 16
        self.durable = 0  # what a crash leaves of the log at least
        self.matchpoints: list[tuple[Lsn, Entry]] = []  # where each truncation stands, and what to
        self.held: int | None = None
        self.index: SeqnoIndex
        self.table: IndexTable

    @initialize(stride=st.integers(1, 7), mappings=st.integers(1, 5), distance=st.sampled_from([30, 200, 10_000]))
    def begin(self, stride: int, mappings: int, distance: int) -> None:
        self.options = IndexOptions(stride=stride, max_mappings=mappings, max_distance=distance)
        self.index = SeqnoIndex(after=Seqno(0), options=self.options)
        self.table = IndexTable(TABLE, self.disk)

    # --- the log grows, and is registered when it pleases ------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 80), min_size=1, max_size=8), kind=st.sampled_from(["LN", "COMMIT", "MATCH"]))
    def append(self, sizes: list[int], kind: str) -> None:
        for size in sizes:
            if size > 76:
                self.segment, self.offset = self.segment + 1, 16
            one = entry_of([self.next_seqno, self.segment, self.offset, kind])
            self.entries[self.next_seqno] = one
            self.pending.append(one)
            self.next_seqno += 1
            self.offset += size

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        """Some of them, in any order."""
        order = data.draw(st.permutations(range(len(self.pending))))
        count = data.draw(st.integers(1, len(order)))
        for at in order[:count]:
            assert self.index.register(self.pending[at])
            assert not self.index.register(self.pending[at]), "twice changes nothing"
        self.pending = [one for at, one in enumerate(self.pending) if at not in order[:count]]

    # --- flushes -----------------------------------------------------------------------------------------

    @rule(now=st.booleans())
    def flush(self, now: bool) -> None:
        """Take a view, as a commit does; store it at once or later, with what was registered meanwhile left out."""
        self.durable = max(self.durable, self.index.prefix)
        view = self.index.view(self.built_from())
        if view is not None:
            self.views.append(view)
        if now:
            self.store()

    @precondition(lambda self: self.views)
    @rule()
    def store(self) -> None:
        """The youngest one; those before it are overtaken."""
        if self.views:
            plan = self.views[-1].plan()
            self.table.store(plan, self.views[-1].image)
            self.index.flushed(plan)
            self.views.clear()

    def built_from(self) -> BuiltFrom:
        last = self.entries.get(self.index.prefix)
        return BuiltFrom(epoch=Epoch(1), end=Lsn(0) if last is None else Lsn(last.lsn + 1))

    # --- both ends ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.index.prefix_range.first != NO_SEQNO)
    @rule(share=SHARES)
    def truncate_end(self, share: float) -> None:
        facts = self.index.prefix_range
        low = max(facts.first, facts.last_txn_end, self.held or 0)
        last = low + int((self.index.prefix - low) * share)
        if not low <= last <= self.index.prefix or last == self.index.range.last:
            return
        one = self.entries[last]
        self.matchpoints.append((Lsn(self.segment << 32 | self.offset), one))
        self.index.truncate_end(one)
        self.entries = {seqno: entry for seqno, entry in self.entries.items() if seqno <= last}
        self.pending = [entry for entry in self.pending if entry.seqno <= last]
        self.next_seqno, self.segment, self.offset = last + 1, self.segment + 1, 16
        self.durable = min(self.durable, last)
        self.views.clear()
        self.flush(True)

    @rule(share=SHARES)
    def protect(self, share: float) -> None:
        """From here on nothing may go, at either end of what is kept."""
        self.held = int(self.next_seqno * share) if self.entries and share < 0.8 else None

    @rule(share=SHARES)
    def purge(self, share: float) -> None:
        """Whole segments, as far as they are registered, synced, and not protected."""
        facts = self.index.prefix_range
        numbers = sorted({lsn_segment(self.entries[seqno].lsn) for seqno in self.entries if seqno <= facts.last})
        if len(numbers) < 2:
            return
        front = numbers[1 + int((len(numbers) - 2) * share)]
        upto = max(seqno for seqno, one in self.entries.items() if lsn_segment(one.lsn) < front)
        if self.held is not None and upto >= self.held:
            return
        self.index.synced(Seqno(upto))
        self.index.truncate_front(Seqno(upto), lsn(front, 16))
        self.entries = {seqno: one for seqno, one in self.entries.items() if seqno > upto}
        self.flush(True)

    # --- and the process ends ----------------------------------------------------------------------------

    @rule(seed=st.integers(0, 1 << 20), share=SHARES, harm=st.sampled_from(["none", "none", "none", "lost", "flipped"]))
    def crash(self, seed: int, share: float, harm: str) -> None:
        """The table is what the power left of it; the log is what was durable, and some of the rest."""
        rng = random.Random(seed)
        self.disk = self.disk.after_crash(rng)
        if harm != "none" and self.disk.exists(TABLE) and self.disk.content(TABLE):
            raw = bytearray(self.disk.content(TABLE))
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            self.disk.set_content(TABLE, b"" if harm == "lost" else bytes(raw))
        kept = self.durable + int((self.next_seqno - 1 - self.durable) * share)
        self.entries = {seqno: one for seqno, one in self.entries.items() if seqno <= kept}
        self.next_seqno = kept + 1
        last = self.entries.get(kept)
        if last is not None and lsn_segment(last.lsn) == self.segment:
            self.offset = last.lsn % (1 << 32) + 1
        self.durable = kept
        self.pending, self.views = [], []
        self.reopen()

    @rule()
    def close_and_reopen(self) -> None:
        for one in self.pending:
            self.index.register(one)
        self.pending = []
        self.flush(True)
        self.table.close()
        self.reopen()

    def reopen(self) -> None:
        self.table = IndexTable(TABLE, self.disk)
        stored = read_index(TABLE, self.disk)
        first = min(self.entries, default=self.next_seqno)
        if stored is None:
            self.index = SeqnoIndex(after=Seqno(first - 1), options=self.options)
        else:
            self.index, built_from = stored
            self.index.mappings.options = self.options
            for place, matchpoint in self.matchpoints:
                if place >= built_from.end and matchpoint.seqno < self.index.prefix_range.last:
                    self.index.truncate_end(matchpoint)
            facts = self.index.prefix_range
            if facts.first != NO_SEQNO and facts.first < first:
                if facts.last < first:
                    self.index = SeqnoIndex(after=Seqno(first - 1), options=self.options)
                else:
                    self.index.synced(Seqno(first - 1))
                    front = lsn(lsn_segment(self.entries[first].lsn), 16)
                    self.index.truncate_front(Seqno(first - 1), front)
        begin = self.index.prefix + 1
        assert begin <= self.next_seqno, "the stored index knows what the log has lost"
        for _ in range(2):  # recovering again changes nothing
            self.index.recover(one for seqno, one in sorted(self.entries.items()) if seqno >= begin)
        self.flush(True)

    # --- what holds --------------------------------------------------------------------------------------

    @invariant()
    def every_lookup_is_right(self) -> None:
        """I6 to I8, I13 to I15."""
        if not hasattr(self, "index"):
            return
        index, right = self.index, range_of(self.entries)
        covered = index.range
        if not self.pending:
            assert (covered.first, covered.last, covered.last_txn_end) == (right.first, right.last, right.last_txn_end)
        for seqno, one in self.entries.items():
            if seqno not in covered:
                assert index.exact(Seqno(seqno)) is None and index.lte(Seqno(seqno)) is None
                continue
            assert index.exact(Seqno(seqno)) in (None, one.lsn)
            below, above = index.lte(Seqno(seqno)), index.gte(Seqno(seqno))
            assert below is not None and below.seqno <= seqno and below.lsn <= one.lsn
            assert above is not None and above.seqno >= seqno and above.lsn == self.entries[above.seqno].lsn
        if covered.last != NO_SEQNO:
            assert index.exact(covered.last) == self.entries[covered.last].lsn
            assert index.lte(Seqno(covered.last + 1)) is None


class IndexOfALogAgainstDict(RuleBasedStateMachine):
    """`places` is where each visible transaction stands, as a cursor found it when it became visible."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.places: dict[int, Lsn] = {}
        self.epochs: dict[int, int] = {}
        self.tables: list[bytes] = []
        self.number = 0
        self.log: Log

    @initialize(segment_bytes=st.sampled_from([1_000, 2_500, 20_000]))
    def begin(self, segment_bytes: int) -> None:
        self.options = LogOptions(segment_bytes=segment_bytes, index_flush_s=None)
        self.open()

    def open(self) -> None:
        self.log = Log.open(PATH, source_id="s", options=self.options, disk=self.disk, clock=self.clock)
        last = self.log.last_seqno  # the new epoch's no-op
        self.forget_from(last)
        self.look()
        self.dense = self.log.seqno_index.mappings.gap() is None

    @rule()
    def fill(self) -> None:
        """What a lost index left out is walked; it has no gap then, nor gets one by anything but a loss."""
        self.log._end.index_flush._fill.run()
        self.dense = True

    def forget_from(self, seqno: int) -> None:
        self.places = {known: place for known, place in self.places.items() if known < seqno}
        self.epochs = {known: epoch for known, epoch in self.epochs.items() if known < seqno}

    def look(self) -> None:
        """Walk over what became visible, from the last one known."""
        begin = max(self.places, default=self.log.first_seqno - 1) + 1
        with self.log.cursor() as cursor:
            cursor.seek(Seqno(max(begin, self.log.first_seqno)))
            while (found := cursor.next()) is not None:
                self.places[found.header.seqno] = found.start
                self.epochs[found.header.seqno] = found.header.epoch

    @rule(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=5), sync=st.booleans())
    def commit(self, sizes: list[int], sync: bool) -> None:
        for size in sizes:
            self.number += 1
            self.log.append(make_fragment(f"e{self.number}", bytes(size)))
        self.log.commit(sync=sync)
        self.look()

    @rule(data=st.data(), sizes=st.lists(st.integers(0, 500), min_size=2, max_size=5))
    def complete_in_any_order(self, data: st.DataObject, sizes: list[int]) -> None:
        """Places are given out in order, and come late."""
        small = [size for size in sizes if self.log._pending.start + 1_200 < self.options.segment_bytes]
        allocations = [self.log.allocate([make_fragment(f"a{size}", bytes(size))]) for size in small[:1]]
        if not allocations:
            return
        while len(allocations) < len(small) and self.log._pending.start < self.options.segment_bytes:
            allocations.append(self.log.allocate([make_fragment("a", bytes(small[len(allocations)]))]))
        for one in data.draw(st.permutations(allocations)):
            one.complete(sync=False)
        self.look()

    @rule(keep=st.booleans())
    def flush(self, keep: bool) -> None:
        self.log.flush_index()
        if keep and self.disk.exists(TABLE):
            self.tables.append(self.disk.content(TABLE))

    @rule(share=SHARES)
    def roll_back(self, share: float) -> None:
        first, last = self.log.first_seqno, self.log.visible_seqno
        seqno = first + int((last - first) * (1 - share * share))
        drop_hold(PATH, "pipe", disk=self.disk)
        if self.log.rollback(Gtid(Epoch(self.epochs[seqno]), Seqno(seqno))) is not None:
            self.forget_from(seqno + 1)
        self.look()

    @rule(share=SHARES)
    def protect(self, share: float) -> None:
        hold(PATH, "pipe", Seqno(int(self.log.visible_seqno * share)), disk=self.disk, clock=self.clock)

    @rule(share=SHARES)
    def purge(self, share: float) -> None:
        self.log.purge(below=Seqno(int(self.log.visible_seqno * share)))
        first = self.log.first_seqno
        self.places = {seqno: place for seqno, place in self.places.items() if seqno >= first}

    @rule(harm=st.sampled_from(["none", "none", "lost", "old", "flipped", "cut"]), seed=st.integers(0, 1 << 20))
    def reopen(self, harm: str, seed: int) -> None:
        self.log.close()
        self.harm(harm, random.Random(seed))
        dense = self.dense and harm == "none"
        self.open()
        assert self.dense or not dense

    @rule(harm=st.sampled_from(["none", "none", "lost", "old", "flipped", "cut"]), seed=st.integers(0, 1 << 20))
    def kill(self, harm: str, seed: int) -> None:
        self.disk.kill()
        self.harm(harm, random.Random(seed))
        self.open()

    @rule(seed=st.integers(0, 1 << 20))
    def cut_the_power(self, seed: int) -> None:
        self.disk = self.disk.after_crash(random.Random(seed))
        self.open()

    def harm(self, harm: str, rng: random.Random) -> None:
        if harm == "none" or not self.disk.exists(TABLE) or not self.disk.content(TABLE):
            return
        raw = bytearray(self.disk.content(TABLE))
        match harm:
            case "lost":
                self.disk.unlink(TABLE)
                return
            case "old" if self.tables:
                raw = bytearray(rng.choice(self.tables))
            case "flipped":
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            case _:
                del raw[rng.randrange(len(raw)) :]
        self.disk.set_content(TABLE, bytes(raw))

    @invariant()
    def the_index_leads_to_every_transaction(self) -> None:
        """Whatever became of the stored index: a right answer, or one from which a reader finds it."""
        if not hasattr(self, "log"):
            return
        segments = self.log._end.segments
        index, covered = segments.index, segments.index.range
        assert (covered.first, covered.last) == (self.log.first_seqno, self.log.visible_seqno)
        assert set(self.places) == set(range(covered.first, covered.last + 1))
        assert not self.dense or index.mappings.gap() is None
        for seqno, place in self.places.items():
            assert index.exact(Seqno(seqno)) in (None, place)
            for below in (index.lte(Seqno(seqno)), segments.locate(Seqno(seqno))):
                assert below is not None and below.seqno <= seqno and below.lsn <= place
                assert lsn_segment(below.lsn) == lsn_segment(place) or below.lsn <= place
            above = index.gte(Seqno(seqno))
            assert above is None or (above.seqno >= seqno and above.lsn == self.places[above.seqno])

    @precondition(lambda self: self.places)
    @rule(share=SHARES)
    def seek(self, share: float) -> None:
        """And readers do find it."""
        first, last = min(self.places), max(self.places)
        wanted = first + int((last - first) * share)
        with self.log.cursor() as cursor:
            cursor.seek(Seqno(wanted))
            found = cursor.next()
            assert found is not None and found.header.seqno == wanted and found.start == self.places[wanted]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


TestIndexAgainstDict = IndexAgainstDict.TestCase
TestIndexAgainstDict.settings = settings(stateful_step_count=40)
TestIndexOfALogAgainstDict = IndexOfALogAgainstDict.TestCase
TestIndexOfALogAgainstDict.settings = settings(stateful_step_count=30)
