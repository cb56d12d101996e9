"""Retention as a whole, in any order that Hypothesis finds: appends, holds, a clock that goes back and forth, adding,
trimming, limits of every kind, reopening, kills.

conformance/tokumx.md, invariants 31, 32, 34: whole oldest segments only, never the last one, no hole
in the row, bounds inclusive, trimming idempotent and monotone, a hold passed by a hard limit alone.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_log import PATH, make_fragment, open_reader, segment_names
from tranlog.errors import PurgedError, SegmentEmptyError
from tranlog.ids import Seqno, segment_number
from tranlog.log.rules.retention import LargerThan, Limit, OlderThan, PurgePlan, UpToSeqno, UpToTime
from tranlog.log.writing.log import Log, LogOptions, drop_hold, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

START = 1_700_000_000_000
NAMES = ("a", "b", "c")


class Retention(RuleBasedStateMachine):
    """`holds` is what was held; `first` what the log still has; `owner[n]` the segment in which seqno n was written."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock(START)
        self.holds: dict[str, int] = {}
        self.first = 0
        self.owner: dict[int, int] = {}
        self.passed: dict[int, tuple[str, ...]] = {}  # what went although it was needed, and who needed it
        self.log: Log

    @initialize(
        retention_s=st.sampled_from([None, 0.0, 1_800.0, 7_200.0, 200_000.0]),
        retention_bytes=st.sampled_from([None, 1, 3_000]),
        hard=st.booleans(),
    )
    def begin(self, retention_s: float | None, retention_bytes: int | None, hard: bool) -> None:
        self.options = LogOptions(
            segment_bytes=1_000,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            hard_retention_bytes=9_000 if hard else None,
            hard_retention_s=400_000.0 if hard else None,
        )
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        self.look(hard=hard)

    @property
    def is_hard(self) -> bool:
        return self.options.hard_retention_s is not None

    def look(self, *, hard: bool) -> None:
        """What went since the last look went by the rules."""
        first = self.log.first_seqno
        for name, restart in self.holds.items():
            if first > max(restart, self.first):
                assert hard, f"{name} still needed seqno {restart}, and the log begins at {first}"
        assert first >= self.first
        if self.first in self.owner and first > self.first:
            assert self.owner[first] > self.owner[first - 1], "a segment goes whole or not at all"
        if hard:
            for seqno in range(self.first, first):
                self.passed[seqno] = tuple(sorted(n for n, restart in self.holds.items() if restart <= seqno))
        for one in self.log.segments():
            for seqno in range(one.first_seqno, one.last_seqno + 1):
                assert self.owner.setdefault(seqno, one.number) == one.number
        self.first = first

    # --- what happens --------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), size=st.integers(0, 500), sync=st.booleans())
    def append(self, count: int, size: int, sync: bool) -> None:
        for _ in range(count):
            number = self.log.last_seqno + 1
            self.log.append(make_fragment(f"e{number}", bytes(size)))
            self.owner[number] = self.log.segments()[-1].number
        self.log.commit(sync=sync)
        self.look(hard=self.is_hard)

    @rule(seconds=st.sampled_from([1.0, 600.0, 4_000.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(back_s=st.sampled_from([1, 3_600, 86_400, 86_400 * 400, 86_400 * 365 * 60]))
    def the_clock_goes_back(self, back_s: int) -> None:
        self.clock.set_ms(max(self.clock.now_ms() - back_s * 1000, 0))

    @rule(name=st.sampled_from(NAMES), share=st.floats(0, 1))
    def hold_back(self, name: str, share: float) -> None:
        seqno = max(self.first, int(self.log.visible_seqno * share))
        hold(PATH, name, Seqno(seqno), disk=self.disk, clock=self.clock)
        self.holds[name] = seqno

    @rule(name=st.sampled_from(NAMES))
    def let_go(self, name: str) -> None:
        drop_hold(PATH, name, disk=self.disk)
        self.holds.pop(name, None)

    @rule()
    def add(self) -> None:
        newest = self.log.segments()[-1]
        if newest.last_seqno < newest.first_seqno:
            with pytest.raises(SegmentEmptyError):
                self.log.add_segment()
            assert self.log.segments()[-1] == newest
            return
        self.log.add_segment()
        assert self.log.segments()[-1].number == newest.number + 1
        self.look(hard=self.is_hard)

    @rule()
    def expire(self) -> None:
        self.log.expire()
        self.look(hard=self.is_hard)

    @rule(share=st.floats(0, 1.1), hard=st.booleans())
    def trim_to_seqno(self, share: float, hard: bool) -> None:
        seqno = int((self.log.visible_seqno + 1) * share)
        plan = self.trim(UpToSeqno(seqno=Seqno(seqno), hard=hard), hard)
        assert plan.up_to is None or plan.up_to <= seqno, "inclusive, and not beyond"
        front = self.log.segments()[0]
        complete = front.last_seqno <= seqno and front.last_seqno < self.log.durable_seqno
        assert not complete or plan.kept_for, "what lies wholly at or below the bound is gone, unless somebody needs it"

    @rule(which=st.floats(0, 1), hard=st.booleans(), before=st.integers(0, 1))
    def trim_to_time(self, which: float, hard: bool, before: int) -> None:
        """The time at which a segment was created closes those before it; a millisecond earlier does not."""
        stats = self.log.segments()
        one = stats[int((len(stats) - 1) * which)]
        if one.written_at is None:
            return
        stamps = [other.written_at for other in stats if other.written_at is not None]
        plan = self.trim(UpToTime(at_ms=one.written_at - before, hard=hard), hard)
        if stamps == sorted(set(stamps)) and stamps[-1] <= self.clock.now_ms():  # nobody's clock was wrong
            limit = one.number - before
            assert all(number < limit or (number == one.number - 1 and not before) for number in plan.gone)
            if not plan.kept_for and one.first_seqno - 1 < self.log.durable_seqno:
                assert self.log.segments()[0].number >= limit

    @rule(size=st.integers(1, 8_000), hard=st.booleans())
    def trim_to_size(self, size: int, hard: bool) -> None:
        plan = self.trim(LargerThan(bytes=size, hard=hard), hard)
        stats = self.log.segments()
        fits = sum(one.bytes for one in stats) <= size
        assert fits or plan.kept_for or stats[0].last_seqno >= self.log.durable_seqno

    @rule(ms=st.sampled_from([0, 1_000, 4_000_000]), hard=st.booleans())
    def trim_by_age(self, ms: int, hard: bool) -> None:
        self.trim(OlderThan(ms=ms, hard=hard), hard)

    def trim(self, limit: Limit, hard: bool) -> PurgePlan:
        foreseen = self.log.trim(limit, dry_run=True)
        assert self.log.first_seqno == self.first, "a dry run changes nothing"
        plan = self.log.trim(limit)
        assert plan == foreseen
        assert hard or not plan.passed
        self.look(hard=hard)
        again = self.log.trim(limit, dry_run=True)
        # Only who waits is in the way of the second; of what is left nothing more goes: idempotent.
        assert not again.gone
        return plan

    @rule(kill=st.booleans(), upkeep=st.booleans())
    def reopen(self, kill: bool, upkeep: bool) -> None:
        last = self.log.visible_seqno
        if kill:
            self.disk.kill()
        else:
            self.log.close()
        if upkeep:
            with Log.open_for_upkeep(PATH, disk=self.disk, clock=self.clock) as log:
                assert log.first_seqno == self.first and log.visible_seqno >= last
        self.log = Log.open(PATH, source_id="db1", options=self.options, disk=self.disk, clock=self.clock)
        assert self.log.first_seqno == self.first
        assert not self.log.recovered.purged_by_hand
        self.look(hard=False)

    @precondition(lambda self: self.passed)
    @rule(which=st.floats(0, 1))
    def a_victim_comes_back(self, which: float) -> None:
        gone = sorted(self.passed)
        seqno = gone[int((len(gone) - 1) * which)]
        with self.log.cursor() as cursor, pytest.raises(PurgedError) as raised:
            cursor.seek(Seqno(seqno))
        assert raised.value.limit is not None and raised.value.first == self.first
        assert raised.value.up_to is not None and raised.value.up_to >= seqno
        if self.passed[seqno]:
            assert set(self.passed[seqno]) <= set(raised.value.passed), "it names whom it did not wait for"

    # --- what always holds ---------------------------------------------------------------------------

    @invariant()
    def the_row_has_no_hole_and_keeps_its_end(self) -> None:
        if not hasattr(self, "log"):
            return
        numbers = [number for name in segment_names(self.disk) if (number := segment_number(name)) is not None]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a hole"
        assert numbers[-1] == self.log.segments()[-1].number, "the newest is there"
        with self.log.cursor() as cursor:
            cursor.seek(self.log.durable_seqno)
            header = cursor.next_header()
            assert header is not None and header.seqno == self.log.durable_seqno, "the last durable one is there"

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        with open_reader(self.disk) as reader:
            assert reader.range().first_seqno == self.first
        self.log.close()


TestRetention = Retention.TestCase
TestRetention.settings = settings(stateful_step_count=25)
