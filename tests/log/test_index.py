"""log/rules/index.py: range, buckets and their stored form, held against a plain dict and the ancestor's traces."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise, permutations
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

from fix_effort import few_of
from fix_log import run_threads
from log.traces import entry_of, range_of, replay, traces
from tranlog.errors import IndexCutError, IndexDamagedError
from tranlog.ids import NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.rules.bucket import Bucket
from tranlog.log.rules.index import RANGE_KEY, SegmentRow, SeqnoIndex
from tranlog.log.rules.index_values import EMPTY_RANGE, BuiltFrom, Entry, IndexOptions, IndexRange, Place
from tranlog.lsn import lsn, lsn_offset, lsn_segment

TRACES = Path(__file__).parent.parent / "golden" / "index" / "vlsn-traces.jsonl"
BUILT_FROM = BuiltFrom(epoch=Epoch(3), end=lsn(1, 16))
Found = TypeVar("Found")
SMALL = IndexOptions(stride=3, max_mappings=4, max_distance=200)


def entry(seqno: int, segment: int = 1, offset: int | None = None, kind: str = "COMMIT") -> Entry:
    return entry_of([seqno, segment, 16 + 10 * seqno if offset is None else offset, kind])


def index_of(*entries: Entry, after: int = 0, options: IndexOptions = SMALL) -> SeqnoIndex:
    index = SeqnoIndex(after=Seqno(after), options=options)
    for one in entries:
        assert index.register(one)
    return index


def stored_of(index: SeqnoIndex, stored: dict[int, bytes] | None = None) -> dict[int, bytes]:
    """Flush into what was stored before, as the table does."""
    stored = {} if stored is None else stored
    plan = index.flush_plan(BUILT_FROM)
    if plan is not None:
        for key in plan.deletes:
            stored.pop(key, None)
        stored.update(plan.puts)
        index.flushed(plan)
    return stored


def reopened(stored: dict[int, bytes], options: IndexOptions = SMALL) -> SeqnoIndex:
    return SeqnoIndex.restore(stored, options=options)[0]


def hold_against(index: SeqnoIndex, entries: dict[int, Entry]) -> None:
    """I7, I13, I14, I15: the range, and every lookup of every seqno, against a plain dict."""
    assert index.range == range_of(entries)
    if not entries:
        return
    for seqno, one in entries.items():
        assert index.exact(Seqno(seqno)) in (None, one.lsn)
        below, above = index.lte(Seqno(seqno)), index.gte(Seqno(seqno))
        assert below is not None and below.seqno <= seqno and below.lsn <= one.lsn
        assert below.seqno not in entries or below.lsn <= entries[below.seqno].lsn
        assert above is not None and above.seqno >= seqno and above.lsn == entries[above.seqno].lsn
    last = index.range.last
    assert index.exact(last) == entries[last].lsn
    for outside in (index.range.first - 1, last + 1):
        assert index.lte(Seqno(outside)) is index.gte(Seqno(outside)) is index.exact(Seqno(outside)) is None


# --- against the ancestor ----------------------------------------------------------------------------------


def test_the_ancestors_traces_agree() -> None:
    """The 150 traces of the real index: ranges after every operation, lookups by order (conformance, C5)."""
    replayed = 0
    for trace in traces(TRACES):
        replay(trace)
        replayed += 1
    assert replayed == 150


@pytest.mark.parametrize("harm", ["range", "lookup", "kind"])
def test_a_trace_that_differs_is_named(harm: str) -> None:
    """The replay can fail: a number changed in a trace is found."""
    from log.traces import TraceMismatchError

    trace: dict[str, Any] = next(traces(TRACES))
    if harm == "range":
        trace["range_after"][5][1] += 1
    elif harm == "lookup":
        trace["lookups"][0][1][1] -= 5
    else:
        trace["ops"][3][1][3] = "ROLLBACK"
    with pytest.raises(TraceMismatchError):
        replay(trace)


# --- the range ---------------------------------------------------------------------------------------------


def test_an_empty_index_has_no_range() -> None:
    index = SeqnoIndex()
    assert index.range == EMPTY_RANGE
    assert index.lte(Seqno(0)) is index.gte(Seqno(0)) is index.exact(Seqno(0)) is None
    assert index.flush_plan(BUILT_FROM) is None


def test_every_kind_moves_its_own_landmark() -> None:
    index = index_of(entry(1, kind="LN"), entry(2, kind="MATCH"), entry(3, kind="ABORT"), entry(4, kind="LN"))
    assert index.range == IndexRange(Seqno(1), Seqno(4), Seqno(3), Seqno(3))


def test_the_first_entry_ever_may_come_late() -> None:
    """S4: 2, 1, 3 leaves no hole below the first bucket."""
    index = index_of(entry(2))
    assert index.range.last == 2 and index.prefix == 0
    assert index.register(entry(1)) and index.register(entry(3))
    hold_against(index, {n: entry(n) for n in (1, 2, 3)})


def test_a_commit_that_registers_late_survives_a_flush_that_overtook_it() -> None:
    """S5: LN 1..9 and 11, flush, COMMIT 10, close, reopen."""
    index = index_of(*(entry(n, kind="LN") for n in range(1, 10)), entry(11, kind="LN"))
    stored = stored_of(index)
    assert reopened(stored).range.last == 9, "what is stored is the unbroken prefix"
    index.register(entry(10))
    stored_of(index, stored)
    assert reopened(stored).range == index.range == IndexRange(Seqno(1), Seqno(11), Seqno(10), Seqno(10))


def test_nothing_is_registered_twice_nor_below_what_was_purged() -> None:
    """I10."""
    index = index_of(*(entry(n, segment=1 + n // 10) for n in range(1, 30)))
    index.truncate_front(Seqno(9), lsn(2, 16))
    before = index.range
    for seqno in (5, 9, 15):
        assert not index.register(entry(seqno, segment=9, offset=1))
    assert index.range == before and index.exact(Seqno(15)) != lsn(9, 1)


def test_a_reader_sees_one_of_the_ranges_that_existed() -> None:
    """I9: the range is one object; an old one never changes."""
    index = index_of(entry(1))
    seen = [index.range]
    for seqno in range(2, 50):
        index.register(entry(seqno))
        seen.append(index.range)
    assert [one.last for one in seen] == list(range(1, 50))
    assert all(one.last == one.last_sync == one.last_txn_end for one in seen)


# --- registering in any order (C1: testOutOfOrderPuts, testGetNonNullWithHoles) ---------------------------------


def test_runs_and_single_entries_answer_the_same() -> None:
    rng = random.Random(7)
    offsets = [16]
    for _ in range(400):
        offsets.append(offsets[-1] + rng.choice((5, 9, 30, 400)))
    one = SeqnoIndex(after=Seqno(9), options=SMALL)
    runs = SeqnoIndex(after=Seqno(9), options=SMALL)
    entries: dict[int, Entry] = {}
    at = 0
    while at < len(offsets):
        size = rng.randrange(1, 40)
        part = offsets[at : at + size]
        runs.register_run(4, Seqno(10 + at), part)
        for seqno, offset in enumerate(part, 10 + at):
            entries[seqno] = Entry(Seqno(seqno), lsn(4, offset), sync_point=False)
            one.register(entries[seqno])
        at += size
    hold_against(one, entries)
    hold_against(runs, entries)
    for seqno in entries:
        below, same = runs.lte(Seqno(seqno)), one.lte(Seqno(seqno))
        assert below is not None and same is not None
        # I16: no more than a stride to scan, nor more bytes than the distance allows.
        assert seqno - below.seqno < SMALL.stride or entries[seqno].lsn - below.lsn <= SMALL.max_distance + 400
        assert entries[seqno].lsn - below.lsn <= SMALL.max_distance + 400


def test_a_bucket_stays_in_its_segment_and_below_its_limits() -> None:
    """I17: groups ordered and disjoint, each of one segment; full and far begin a new one."""
    index = index_of(*(entry(n, segment=1 + n // 25, offset=16 + 7 * (n % 25)) for n in range(1, 100)))
    buckets = index.mappings.buckets
    for before, after in pairwise(buckets):
        assert before.last < after.first and before.segment <= after.segment
    assert all(len(bucket.offsets) <= SMALL.max_mappings for bucket in buckets)


def test_only_the_last_bucket_of_a_segment_changes() -> None:
    """I18, I19: what a reader keeps stays true while more is registered."""
    index = index_of(*(entry(n) for n in range(1, 60)))
    first = index.mappings.buckets[0]
    before = (first.first, first.last, first.last_offset, bytes(first.offsets))
    for seqno in range(60, 200):
        index.register(entry(seqno))
    assert index.mappings.buckets[0] is first
    assert (first.first, first.last, first.last_offset, bytes(first.offsets)) == before


def test_what_readers_learn_in_any_order_helps_and_never_misleads() -> None:
    rng = random.Random(3)
    true = {seqno: lsn(1, 16 + 50 * seqno) for seqno in range(1, 500)}
    index = SeqnoIndex(options=SMALL)
    for seqno in rng.sample(sorted(true), 300):
        index.mappings.learn(Place(Seqno(seqno), true[seqno]))
        for asked in rng.sample(sorted(true), 5):
            below = index.mappings.below(Seqno(asked))
            assert below is None or (below.seqno <= asked and below.lsn == true[below.seqno])
    assert index.range == EMPTY_RANGE
    assert sum(index.mappings.below(Seqno(n)) == Place(Seqno(n), true[n]) for n in true) > 100


# --- buckets (C1: VLSNBucketTest) ---------------------------------------------------------------------------------


def test_a_bucket_takes_what_fits_and_answers_from_both_sides() -> None:
    """testBasic: stride 3, two mappings, 50 bytes: another segment, too far and too many are for the next bucket."""
    options = IndexOptions(stride=3, max_mappings=2, max_distance=50)
    bucket = Bucket(7, Seqno(1), 100, options.stride)
    assert not bucket.accepts(Seqno(2), lsn(8, 110), options), "another segment"
    assert not bucket.accepts(Seqno(2), lsn(7, 151), options), "51 bytes behind the last mapping"
    for seqno in range(2, 7):
        position = lsn(7, 100 + 10 * (seqno - 1))
        assert bucket.accepts(Seqno(seqno), position, options)
        bucket.put(Seqno(seqno), lsn_offset(position))
        assert len(bucket.offsets) == (1 if seqno < 4 else 2)
    assert not bucket.accepts(Seqno(7), lsn(7, 160), options), "the third mapping"
    mapped = {1: 100, 4: 130, 6: 150}
    for seqno in range(1, 7):
        below = max(one for one in mapped if one <= seqno)
        above = min(one for one in mapped if one >= seqno)
        assert bucket.lte(Seqno(seqno)) == Place(Seqno(below), lsn(7, mapped[below]))
        assert bucket.gte(Seqno(seqno)) == Place(Seqno(above), lsn(7, mapped[above]))
        assert bucket.exact(Seqno(seqno)) == (lsn(7, mapped[seqno]) if seqno in mapped else None)
    assert bucket.lte(Seqno(99)) == Place(Seqno(6), lsn(7, 150))
    assert bucket.gte(Seqno(-5)) == Place(Seqno(1), lsn(7, 100))


def test_a_bucket_with_empty_slots_always_has_an_answer() -> None:
    """testGetNonNullWithHoles: stride 2, mapped are 1, 3 and 8; the slots of 5 and 7 stay empty."""
    bucket = Bucket(1, Seqno(1), 10, 2)
    for seqno in (3, 8, 9):
        bucket.put(Seqno(seqno), 10 * seqno)
    mapped = (1, 3, 9)
    for seqno in range(1, 10):
        below, above = max(one for one in mapped if one <= seqno), min(one for one in mapped if one >= seqno)
        assert bucket.lte(Seqno(seqno)) == Place(Seqno(below), lsn(1, 10 * below))
        assert bucket.gte(Seqno(seqno)) == Place(Seqno(above), lsn(1, 10 * above))
    bucket.put(Seqno(5), 50)
    assert bucket.exact(Seqno(5)) == lsn(1, 50), "one that comes late fills its own slot"
    bucket.cut(Seqno(8))
    assert (bucket.last, bucket.last_offset) == (5, 50), "the slot of 7 is empty"
    assert bucket.lte(Seqno(8)) == bucket.gte(Seqno(5)) == Place(Seqno(5), lsn(1, 50))


@pytest.mark.parametrize("told", [False, True])
def test_a_cut_ends_at_what_is_known_for_certain(told: bool) -> None:
    """testTruncateAfterFileOffset: of 10, 15, 20 and 28, above 25 all goes: up to 20, or 25 where that is told."""
    options = IndexOptions(stride=5, max_mappings=1000, max_distance=100_000)
    places = [Place(Seqno(n), lsn(1, 10 + n)) for n in (10, 15, 20, 28)]
    index = SeqnoIndex.rough(Seqno(9), places, Seqno(28), options=options)
    if told:
        index.truncate_end(Entry(Seqno(25), lsn(1, 33)))
        assert index.range.last == 25 and index.exact(Seqno(25)) == lsn(1, 33)
        assert index.gte(Seqno(21)) == Place(Seqno(25), lsn(1, 33))
    else:
        (bucket,) = index.mappings.buckets
        bucket.cut(Seqno(25))
        assert (bucket.last, bucket.last_offset, len(bucket.offsets)) == (20, 30, 3)
    (bucket,) = index.mappings.buckets
    for seqno in range(20, 25):
        assert bucket.lte(Seqno(seqno)) == Place(Seqno(20), lsn(1, 30))


def test_any_order_of_registration_answers_the_same() -> None:
    """testOutOfOrderPuts of the bucket: all 720 orders of six entries lead to one set of answers."""
    in_order = index_of(*(entry(n) for n in range(1, 7)), options=IndexOptions(stride=3, max_mappings=2))
    seqnos = [Seqno(n) for n in range(8)]

    def answers(index: SeqnoIndex) -> list[object]:
        return [index.range, *((index.lte(n), index.gte(n), index.exact(n)) for n in seqnos), index.image(BUILT_FROM)]

    for order in permutations(range(1, 7)):
        index = index_of(*(entry(n) for n in order), options=IndexOptions(stride=3, max_mappings=2))
        assert answers(index) == answers(in_order), order


@pytest.mark.parametrize("flush_after", range(10))
def test_late_entries_over_several_segments(flush_after: int) -> None:
    """testOutOfOrderPuts of the index: nine entries in five segments, registered 1, 2, 5, 3, 6, 4, 8, 9, 7."""
    segments = {1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 8: 5, 9: 5}
    kinds = {4: "COMMIT", 7: "MATCH"}
    entries = {n: entry(n, segments[n], kind=kinds.get(n, "LN")) for n in segments}
    index, stored = SeqnoIndex(after=Seqno(0), options=IndexOptions(stride=2, max_mappings=3)), dict[int, bytes]()
    for registered, seqno in enumerate((1, 2, 5, 3, 6, 4, 8, 9, 7), 1):
        assert index.register(entries[seqno])
        if registered == flush_after:
            stored_of(index, stored)
    assert index.range == IndexRange(Seqno(1), Seqno(9), Seqno(7), Seqno(4))
    hold_against(index, entries)
    assert len({index.lte(Seqno(n)) for n in entries}) >= 4 and len({index.gte(Seqno(n)) for n in entries}) >= 4
    hold_against(reopened(stored_of(index, stored)), entries)


@pytest.mark.parametrize("flushed", [False, True])
def test_what_is_mapped_is_every_strideth_and_the_last(flushed: bool) -> None:
    """testNonFlushedGets, testFlushedGets: 25 seqnos; exact, at or below, at or above; both ways; stored or not."""
    options = IndexOptions(stride=4, max_mappings=3, max_distance=10_000)
    entries = {n: entry(n) for n in range(1, 26)}
    index = index_of(*entries.values(), options=options)
    if flushed:
        index = reopened(stored_of(index), options)
    # Buckets of three mappings, four apart: 1..12, 13..24, 25; each one's last is mapped too.
    mapped = [1, 5, 9, 12, 13, 17, 21, 24, 25]
    assert [n for n in entries if index.exact(Seqno(n)) is not None] == mapped
    for seqno in range(1, 26):
        below, above = max(n for n in mapped if n <= seqno), min(n for n in mapped if n >= seqno)
        assert index.lte(Seqno(seqno)) == Place(Seqno(below), entries[below].lsn)
        assert index.gte(Seqno(seqno)) == Place(Seqno(above), entries[above].lsn)


@pytest.mark.parametrize("hole", [2, 40])
@pytest.mark.parametrize("purged", [0, 5, 130])
def test_buckets_that_do_not_meet_lead_everywhere(hole: int, purged: int) -> None:
    """testNonContiguousBucketSmallHoles, LargeHoles, GhostBucket: from every start, in both directions."""
    true = {n: lsn(1 + n // 100, 16 + 10 * (n % 100)) for n in range(1, 401)}
    known = [n for n in true if (n // hole) % 2]
    index = SeqnoIndex.rough(Seqno(0), [Place(Seqno(n), true[n]) for n in known], Seqno(400), options=SMALL)
    index.mappings.forget_above(Place(Seqno(400), true[400]))
    if purged:
        index.synced(Seqno(400))
        index.truncate_front(Seqno(purged), lsn(lsn_segment(true[purged + 1]), 16))
    asked = range(purged + 1, 401)
    for seqno in map(Seqno, asked):
        below, above = index.lte(seqno), index.gte(seqno)
        if purged or seqno >= known[0]:
            assert below is not None and below.seqno <= seqno and below.lsn <= true[seqno]
            assert lsn_segment(below.lsn) >= lsn_segment(true[purged + 1]), "what was purged is not led to"
        assert above is not None and above.seqno >= seqno and above.lsn == true[above.seqno]
        assert index.exact(seqno) in (None, true[seqno])


def test_lookups_hold_while_others_register_flush_and_cut() -> None:
    """testSR20726GTESearch; I22: an answer given in the middle of a flush, or of a cut elsewhere, is a true one."""
    true = [lsn(1 + n // 50, 16 + 7 * (n % 50)) for n in range(3_000)]
    index = SeqnoIndex(options=SMALL, after=Seqno(-1))
    done = threading.Event()

    def change() -> None:
        stored: dict[int, bytes] = {}
        front = 0
        try:
            for seqno, position in enumerate(true):
                index.register(Entry(Seqno(seqno), position))
                if seqno % 7 == 0:
                    stored_of(index, stored)
                if seqno % 500 == 499:
                    front += 250
                    index.truncate_front(Seqno(front - 1), lsn(1 + front // 50, 16))
        finally:
            done.set()

    def look() -> None:
        rng = random.Random(1)
        while not done.is_set():
            covered = index.range
            if covered == EMPTY_RANGE:
                continue
            seqno = Seqno(rng.randint(covered.first, covered.last))
            below = index.lte(seqno)
            # None only where the front passed it meanwhile; nothing is cut at the end here.
            assert below is not None or seqno < index.range.first
            assert below is None or (below.seqno <= seqno and below.lsn <= true[seqno])
            above = index.gte(seqno)
            assert above is not None or seqno < index.range.first
            assert above is None or (above.seqno >= seqno and above.lsn == true[above.seqno])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        run_threads(look, change, look)
    finally:
        sys.setswitchinterval(before)


def between_any_two_lines(look: Callable[[], Found], change: Callable[[], None], at: int) -> tuple[bool, Found]:
    """Run `look`, and `change` in the middle of it: before its line number `at` in the index; say whether it came."""
    count, came = 0, False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count, came
        if not frame.f_code.co_filename.endswith("log/rules/index.py"):
            return None
        if event == "line":
            if count == at and not came:
                came = True
                sys.settrace(None)
                change()
                sys.settrace(trace)
            count += 1
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        found = look()
    finally:
        sys.settrace(outer)
    return came, found


@pytest.mark.parametrize("how", ["register", "flush", "front", "end"])
@pytest.mark.parametrize("size", [1, 4, 13, 20])
def test_a_change_between_any_two_lines_of_a_lookup(how: str, size: int) -> None:
    """I22, testSR20726GTESearch, without luck: one change before each single line that each lookup goes through."""
    true = {n: entry(n, segment=1 + (n - 1) // 10) for n in range(1, size + 3)}
    kept = {"front": range(min(11, size), size + 3), "end": range(1, max(size - 2, 1) + 1)}.get(how, range(1, size + 3))

    def change(index: SeqnoIndex) -> None:
        match how:
            case "register":
                index.register(true[size + 1])
                index.register(true[size + 2])
            case "flush":
                stored_of(index)
            case "front" if size > 10:
                index.truncate_front(Seqno(10), lsn(2, 16))
            case "end":
                index.truncate_end(true[kept[-1]])

    def hold(found: Place | Lsn | None, name: str, seqno: Seqno) -> None:
        match found:
            case None:
                assert name == "exact" or seqno not in kept
            case Place() if name == "lte":
                assert found.seqno <= seqno and found.lsn <= true[found.seqno].lsn
            case Place():
                assert found.seqno >= seqno and found.lsn == true[found.seqno].lsn
            case _:
                assert found == true[seqno].lsn

    for seqno in map(Seqno, {1, 2, 3, 10, 11, 12, size - 2, size - 1, size} & set(range(1, size + 1))):
        for name in ("lte", "gte", "exact"):
            for at in count():
                index = index_of(*(true[n] for n in range(1, size + 1)))
                look: Callable[[Seqno], Place | Lsn | None] = getattr(index, name)
                came, found = between_any_two_lines(partial(look, seqno), partial(change, index), at)
                if not came:
                    break
                try:
                    hold(found, name, seqno)
                except AssertionError as exc:
                    raise AssertionError(f"{name}({seqno}), {how} before line {at}: {found}") from exc


def test_a_lookup_does_not_walk_over_the_buckets() -> None:
    """S14: the ancestor's cost grew with the buckets that were not flushed. Here the steps are counted, not timed."""

    def steps(buckets: int) -> int:
        index = SeqnoIndex(after=Seqno(-1), options=IndexOptions(stride=1, max_mappings=2))
        index.register_run(1, Seqno(0), [16 + 10 * n for n in range(2 * buckets)])
        assert len(index.mappings) == buckets
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += 1
            return trace

        outer = sys.gettrace()
        gc.disable()  # a collection may call Python functions, which would be counted
        sys.settrace(trace)
        try:
            index.lte(Seqno(buckets))
            index.gte(Seqno(buckets))
            index.exact(Seqno(buckets))
        finally:
            sys.settrace(outer)
            gc.enable()
        return count

    assert steps(2_000) == steps(2) > 5


# --- cutting (C1: testRemoveFromTail, testTailTruncate, testHeadTruncate...) --------------------------------------


@pytest.mark.parametrize("flushed", [0, 7, 10, 11, 19])
def test_a_cut_anywhere_keeps_the_new_last_exactly_mapped(flushed: int) -> None:
    """I11, I20; testRemoveFromTail: cut at every point, flushed before or not."""
    for cut in range(9, 20):
        entries = {n: entry(n, segment=1 + n // 7) for n in range(10, 20)}
        index = SeqnoIndex(after=Seqno(9), options=SMALL)
        stored: dict[int, bytes] = {}
        for seqno, one in entries.items():
            index.register(one)
            if seqno == flushed:
                stored_of(index, stored)
        index.truncate_end(entries.get(cut))
        left = {} if cut == 9 else {n: one for n, one in entries.items() if n <= cut}
        hold_against(index, left)
        stored_of(index, stored)
        if left:
            hold_against(reopened(stored), left)
        fresh = {n: entry(n, segment=8) for n in range(min(cut, 19) + 1, 25)}
        for one in fresh.values():
            assert index.register(one)
        hold_against(index, left | fresh)


def test_two_cuts_in_a_row_stay_well_formed() -> None:
    """S6: stride 5, entries 10, 20, 26; cut to 16 with its place, then a scan that begins at 16."""
    options = IndexOptions(stride=5, max_mappings=1000, max_distance=100_000)
    entries = {n: entry(n, kind="LN") for n in range(10, 27)}
    index = SeqnoIndex(after=Seqno(9), options=options)
    for one in entries.values():
        index.register(one)
    index.truncate_end(entries[16])
    again = reopened(stored_of(index), options)
    again.recover([entries[16], entries[17], entries[18]])
    hold_against(again, {n: one for n, one in entries.items() if n <= 18})


def test_the_last_sync_point_after_a_cut_is_the_greatest_that_is_left() -> None:
    """I11: not the new last, whatever it is."""
    index = index_of(entry(1), entry(2, kind="LN"), entry(3, kind="MATCH"), entry(4, kind="LN"), entry(5, kind="MATCH"))
    index.truncate_end(entry(4, kind="LN"))
    assert index.range == IndexRange(Seqno(1), Seqno(4), Seqno(3), Seqno(1))
    index.truncate_end(entry(2, kind="LN"))
    assert index.range == IndexRange(Seqno(1), Seqno(2), Seqno(1), Seqno(1))


def test_a_cut_below_a_transaction_end_needs_one_to_end_at() -> None:
    index = index_of(*(entry(n, kind="COMMIT" if n % 3 == 0 else "LN") for n in range(1, 10)))
    before = index.range
    with pytest.raises(IndexCutError, match="the last transaction ends at 9"):
        index.truncate_end(entry(8, kind="LN"))
    with pytest.raises(IndexCutError):
        index.truncate_end(entry(0))
    assert index.range == before
    index.truncate_end(entry(6))
    assert index.range == IndexRange(Seqno(1), Seqno(6), Seqno(6), Seqno(6))
    index.truncate_end(entry(6))  # idempotent
    index.truncate_end(entry(9))  # above the last: nothing to cut
    assert index.range.last == 6


@pytest.mark.parametrize("flush_at", [0, 10, 20, 39])
def test_the_front_goes_by_whole_segments(flush_at: int) -> None:
    """I12, I21: testHeadTruncateSeveralFiles; the result does not depend on what was flushed."""
    entries = {n: entry(n, segment=1 + n // 8, kind="COMMIT" if n % 4 == 0 else "LN") for n in range(1, 41)}
    for gone in range(1, 5):
        index = SeqnoIndex(after=Seqno(0), options=SMALL)
        stored: dict[int, bytes] = {}
        for seqno, one in entries.items():
            index.register(one)
            if seqno == flush_at:
                stored_of(index, stored)
        upto = 8 * gone - 1
        index.truncate_front(Seqno(upto), lsn(gone + 1, 16))
        left = {n: one for n, one in entries.items() if n > upto}
        hold_against(index, left)
        hold_against(reopened(stored_of(index, stored)), left)
        index.truncate_front(Seqno(upto), lsn(gone + 1, 16))  # idempotent
        index.truncate_front(Seqno(0), lsn(1, 16))
        hold_against(index, left)


def test_a_purge_keeps_the_transaction_end_that_is_the_new_first() -> None:
    """S7: 1..8, commits 4 and 5, purge up to 4."""
    index = index_of(*(entry(n, 1 + (n > 4), kind="COMMIT" if n in (4, 5) else "LN") for n in range(1, 9)))
    index.truncate_front(Seqno(4), lsn(2, 16))
    assert index.range == IndexRange(Seqno(5), Seqno(8), Seqno(5), Seqno(5))


def test_a_purge_above_what_a_sync_proved_is_refused() -> None:
    index = index_of(*(entry(n, 1 + n // 4, kind="COMMIT" if n == 5 else "LN") for n in range(1, 12)))
    before = index.range
    with pytest.raises(IndexCutError):
        index.truncate_front(Seqno(7), lsn(3, 16))
    assert index.range == before
    index.synced(Seqno(7))
    index.truncate_front(Seqno(7), lsn(3, 16))
    assert index.range == IndexRange(Seqno(8), Seqno(11), NO_SEQNO, NO_SEQNO)


def test_the_gap_below_the_first_mapping_leads_to_the_first_segment() -> None:
    """S8: an approximate lookup between a purged start and the first bucket answers with the segment's start."""
    places = [Place(Seqno(1), lsn(1, 42)), Place(Seqno(50), lsn(3, 42))]
    index = SeqnoIndex.rough(Seqno(0), places, Seqno(60), options=SMALL)
    index.synced(Seqno(60))
    index.truncate_front(Seqno(20), lsn(2, 16))
    assert index.lte(Seqno(30)) == Place(Seqno(21), lsn(2, 16))
    assert index.lte(Seqno(21)) == Place(Seqno(21), lsn(2, 16))
    assert index.exact(Seqno(30)) is None
    assert index.gte(Seqno(30)) == Place(Seqno(50), lsn(3, 42))


@pytest.mark.parametrize("flush_at", range(0, 41, 2))
def test_a_cut_at_every_place_after_a_flush_at_every_place(flush_at: int) -> None:
    """testTailTruncate, testDatabasePruning: 40 entries; the last cut is the first entry, and leaves nothing."""
    entries = {n: entry(n, segment=1 + n // 9) for n in range(1, 41)}
    for last in range(41):
        index, stored = SeqnoIndex(after=Seqno(0), options=SMALL), dict[int, bytes]()
        for seqno, one in entries.items():
            index.register(one)
            if seqno == flush_at:
                stored_of(index, stored)
        index.truncate_end(entries.get(last))
        left = {n: one for n, one in entries.items() if n <= last}
        for held in (index, reopened(stored_of(index, stored))):
            assert held.range == range_of(left)
            for seqno in (1, last // 2, last) if left else ():
                below, above = held.lte(Seqno(seqno)), held.gte(Seqno(seqno))
                assert (below is None) == (above is None) == (seqno < 1)
                assert below is None or below.lsn <= entries[seqno].lsn
                assert above is None or above.lsn == entries[above.seqno].lsn
            assert held.exact(Seqno(last)) == (entries[last].lsn if left else None)


@pytest.mark.parametrize("flush_at", [15, 16, 20])
@pytest.mark.parametrize("last", [16, 17, 18])
def test_a_cut_into_what_came_early_keeps_both_ends(flush_at: int, last: int) -> None:
    """testTruncateTailOutOfOrder: 17 to 19 are not registered yet, 20 is; the cut is before, in and behind the gap."""
    entries = {n: entry(n) for n in range(1, 21)}
    index, stored = SeqnoIndex(after=Seqno(0), options=SMALL), dict[int, bytes]()
    for seqno in [*range(1, 17), 20]:
        index.register(entries[seqno])
        if seqno == flush_at:
            stored_of(index, stored)
    index.truncate_end(entries[last])
    hold_against(index, {n: one for n, one in entries.items() if n <= 16})
    hold_against(reopened(stored_of(index, stored)), {n: one for n, one in entries.items() if n <= 16})
    for seqno in range(17, last + 1):
        assert index.register(entries[seqno]), "what the cut leaves may still come"
    hold_against(index, {n: one for n, one in entries.items() if n <= last})


@pytest.mark.parametrize("flush_at", range(0, 41, 5))
def test_one_segment_for_each_entry_and_a_cut_before_every_one(flush_at: int) -> None:
    """testHeadTruncateManyFiles: 40 segments, purged up to every one of them."""
    entries = {n: entry(n, segment=n, offset=16) for n in range(1, 41)}
    for upto in range(1, 40):
        index, stored = SeqnoIndex(after=Seqno(0), options=SMALL), dict[int, bytes]()
        for seqno, one in entries.items():
            index.register(one)
            if seqno == flush_at:
                stored_of(index, stored)
        index.truncate_front(Seqno(upto), lsn(upto + 1, 16))
        left = {n: one for n, one in entries.items() if n > upto}
        for held in (index, reopened(stored_of(index, stored))):
            assert held.range == range_of(left)
            assert all(held.exact(Seqno(n)) == (one.lsn if n > upto else None) for n, one in entries.items())


def test_a_segment_whose_first_entry_comes_late_is_led_to() -> None:
    """testHeadTruncateoutOfOrderMappings: nothing is purged over a gap; once it is filled, the new first is mapped."""
    entries = {n: entry(n, segment=1 + (n - 1) // 4) for n in range(1, 13)}
    index = SeqnoIndex(after=Seqno(0), options=SMALL)
    for seqno in (1, 2, 3, 4, 6, 7, 8, 10, 11, 12):
        index.register(entries[seqno])
    assert index.range.first == 1 and index.range.last == 12
    before = index.range
    with pytest.raises(IndexCutError):
        index.truncate_front(Seqno(8), lsn(3, 16))
    assert index.range == before
    for seqno in (9, 5):
        assert index.register(entries[seqno])
    index.truncate_front(Seqno(4), lsn(2, 16))
    hold_against(index, {n: one for n, one in entries.items() if n > 4})
    assert index.lte(Seqno(5)) == Place(Seqno(5), entries[5].lsn)


def test_a_bucket_that_is_held_is_not_cut_under_its_holder() -> None:
    """I22: who got it before the cut is answered from what was true then, not from half of a change."""
    index = index_of(*(entry(n) for n in range(1, 9)))
    held = index.mappings.buckets[-1]
    before = (held.first, held.last, held.last_offset, bytes(held.offsets))
    index.truncate_end(entry(held.first))
    assert (held.first, held.last, held.last_offset, bytes(held.offsets)) == before
    assert index.mappings.buckets[-1].last == held.first


# --- storing and recovering (C1: MergeTest) --------------------------------------------------------------------


@pytest.mark.parametrize("flushed", range(1, 41, 3))
def test_what_the_scan_saw_wins(flushed: int) -> None:
    """testMerge: index 1..40, recovery saw 21..50 in another segment, flushed at any point."""
    index = SeqnoIndex(after=Seqno(0), options=SMALL)
    stored: dict[int, bytes] = {}
    for seqno in range(1, 41):
        index.register(entry(seqno))
        if seqno == flushed:
            stored_of(index, stored)
    begin = min(21, flushed + 1)
    seen = {n: entry(n, segment=2) for n in range(begin, 51)}
    again = reopened(stored)
    again.recover(seen.values())
    whole = {n: entry(n) for n in range(1, begin)} | seen
    hold_against(again, whole)
    stored_of(again, stored)
    once_more = reopened(stored)
    once_more.recover(list(seen.values())[-5:])  # I26: recovering again changes nothing
    hold_against(once_more, whole)


def test_a_scan_that_begins_behind_a_hole_is_refused() -> None:
    """I27."""
    again = reopened(stored_of(index_of(*(entry(n) for n in range(1, 10)))))
    with pytest.raises(IndexDamagedError, match="ends at seqno 9, and the log goes on at 11"):
        again.recover([entry(11)])


def test_a_scan_of_the_whole_log_replaces_everything() -> None:
    again = reopened(stored_of(index_of(*(entry(n) for n in range(1, 10)))))
    again.recover([entry(n, segment=5) for n in range(1, 5)])
    hold_against(again, {n: entry(n, segment=5) for n in range(1, 5)})


def test_a_flush_stores_what_changed_and_no_more() -> None:
    index = index_of(*(entry(n, segment=1 + n // 50) for n in range(1, 200)))
    stored = stored_of(index)
    assert index.flush_plan(BUILT_FROM) is None
    index.register(entry(200, segment=4))
    plan = index.flush_plan(BUILT_FROM)
    assert plan is not None and len(plan.puts) == 2 and not plan.deletes
    stored.update(plan.puts)
    index.flushed(plan)
    assert stored == index.image(BUILT_FROM)


def test_a_registration_during_a_flush_is_not_lost() -> None:
    """I22: `flushed` only marks what the plan really held."""
    index = index_of(*(entry(n) for n in range(1, 5)))
    plan = index.flush_plan(BUILT_FROM)
    assert plan is not None
    index.register(entry(5))
    index.flushed(plan)
    stored = dict(plan.puts)
    stored_of(index, stored)
    assert reopened(stored).range.last == 5


def test_every_flipped_bit_of_a_stored_index_is_found() -> None:
    """A damaged stored index is refused as a whole."""
    stored = stored_of(index_of(*(entry(n) for n in range(1, 30))))
    for key, raw in stored.items():
        for at in range(len(raw)):
            harmed = raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]
            with pytest.raises(IndexDamagedError):
                reopened(stored | {key: harmed})
        for size in (0, 3, len(raw) - 1):
            with pytest.raises(IndexDamagedError):
                reopened(stored | {key: raw[:size]})


def test_a_stored_index_that_contradicts_itself_is_found() -> None:
    """I24: range and buckets of different flushes."""
    index = index_of(*(entry(n) for n in range(1, 20)))
    stored = stored_of(index)
    with pytest.raises(IndexDamagedError, match="it holds no range"):
        reopened({key: raw for key, raw in stored.items() if key != RANGE_KEY})
    last = max(stored)
    with pytest.raises(IndexDamagedError, match="no bucket ends at"):
        reopened({key: raw for key, raw in stored.items() if key != last})
    with pytest.raises(IndexDamagedError, match="overlap"):
        reopened(stored | {2: stored[1]})


# --- at random, against a dict -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", few_of(range(40), 8))
def test_any_history_holds_against_a_dict(seed: int) -> None:
    """Append in any order of registration, flush, cut both ends, crash, reopen; after each step everything holds."""
    rng = random.Random(seed)
    options = IndexOptions(
        stride=rng.choice((1, 2, 3, 7)), max_mappings=rng.choice((1, 2, 5)), max_distance=rng.choice((30, 200, 10_000))
    )
    index, stored = SeqnoIndex(after=Seqno(0), options=options), dict[int, bytes]()
    entries: dict[int, Entry] = {}
    flushed_upto, next_seqno, segment, offset = 0, 1, 1, 16
    for _ in range(120):
        match rng.choice(("put",) * 6 + ("flush", "crash", "cut", "purge")):
            case "put":
                batch = []
                for _ in range(rng.randrange(1, 9)):
                    if rng.random() < 0.08:
                        segment, offset = segment + 1, 16
                    kind = rng.choice(("LN", "COMMIT", "MATCH"))
                    batch.append(entry_of([next_seqno, segment, offset, kind]))
                    next_seqno += 1
                    offset += rng.randrange(1, 60)
                for one in rng.sample(batch, len(batch)):
                    assert index.register(one)
                entries |= {one.seqno: one for one in batch}
            case "flush":
                stored_of(index, stored)
                flushed_upto = next_seqno - 1
            case "crash" if stored and entries:
                begin = max(min(entries), flushed_upto + 1 - rng.randrange(4))
                index = reopened(stored, options)
                index.recover(one for seqno, one in sorted(entries.items()) if seqno >= begin)
                stored_of(index, stored)
                flushed_upto = next_seqno - 1
            case "cut" if entries:
                ends = [one.seqno for one in entries.values() if one.txn_end]
                low = max(min(entries), max(ends, default=0))
                last = rng.randrange(low, next_seqno)
                index.truncate_end(entries[last])
                entries = {seqno: one for seqno, one in entries.items() if seqno <= last}
                next_seqno = last + 1
                stored_of(index, stored)
                flushed_upto = last
            case "purge" if entries:
                numbers = sorted({lsn_segment(one.lsn) for one in entries.values()})
                if len(numbers) > 1:
                    front = rng.choice(numbers[1:])
                    upto = max(seqno for seqno, one in entries.items() if lsn_segment(one.lsn) < front)
                    index.synced(Seqno(upto))
                    index.truncate_front(Seqno(upto), lsn(front, 0))
                    entries = {seqno: one for seqno, one in entries.items() if seqno > upto}
                    stored_of(index, stored)
                    flushed_upto = next_seqno - 1
        right = range_of(entries)
        assert index.range.first == right.first and index.range.last == right.last, f"seed {seed}"
        hold_against_but_sync(index, entries)


def hold_against_but_sync(index: SeqnoIndex, entries: dict[int, Entry]) -> None:
    """As `hold_against`; a purge marks what it removes as synced, so the sync point alone is not compared."""
    assert index.range.last_txn_end == range_of(entries).last_txn_end
    for seqno, one in entries.items():
        below, above = index.lte(Seqno(seqno)), index.gte(Seqno(seqno))
        assert below is not None and below.seqno <= seqno and below.lsn <= one.lsn
        assert above is not None and above.seqno >= seqno and above.lsn >= one.lsn
        assert index.exact(Seqno(seqno)) in (None, one.lsn)


# --- size ------------------------------------------------------------------------------------------------------------


def test_a_million_transactions_take_less_than_a_megabyte() -> None:
    """Done means: a million-transaction index under 1 MB in memory and on disk."""
    index = SeqnoIndex(after=Seqno(-1))
    seqno, segment = 0, 1
    while seqno < 1_000_000:
        count = min(80_000, 1_000_000 - seqno)
        index.register_run(segment, Seqno(seqno), range(42, 42 + 1_200 * count, 1_200))
        seqno, segment = seqno + count, segment + 1
    in_memory = sum(sys.getsizeof(one) + sys.getsizeof(one.offsets) + 4 * 32 for one in index.mappings.buckets)
    on_disk = sum(len(raw) + 20 for raw in index.image(BUILT_FROM).values())
    assert in_memory < 1_000_000 and on_disk < 1_000_000
    assert index.range.last == 999_999
    below = index.lte(Seqno(777_777))
    assert below is not None and 777_777 - below.seqno < 64


# --- the row of segments ---------------------------------------------------------------------------------------------


def row_of(*prevs: int, first: int = 1) -> SegmentRow:
    row = SegmentRow(first_offset=16)
    for at, prev_seqno in enumerate(prevs):
        row.add(first + at, Seqno(prev_seqno))
    return row


def test_the_row_knows_where_each_segment_begins() -> None:
    row = row_of(-1, 99, 199, first=7)
    assert list(row) == [(7, -1), (8, 99), (9, 199)]
    assert (row.first_number(), row.newest_number(), row.first_seqno()) == (7, 9, 0)
    assert row.start_of(Seqno(99)) == Place(Seqno(0), lsn(7, 16))
    assert row.start_of(Seqno(100)) == Place(Seqno(100), lsn(8, 16))
    assert row.start_of(Seqno(5_000)) == Place(Seqno(200), lsn(9, 16))
    assert 8 in row and 6 not in row and 10 not in row and row.prev_seqno(10) is None
    row.drop_front(8)
    assert row.start_of(Seqno(99)) is None and row.first_seqno() == 100


def test_of_two_segments_that_begin_alike_the_later_one_holds_the_seqno() -> None:
    row = row_of(-1, 99, 99)
    assert row.start_of(Seqno(100)) == Place(Seqno(100), lsn(3, 16))
    assert row.start_of(Seqno(99)) == Place(Seqno(0), lsn(1, 16))


def test_an_empty_row() -> None:
    row = row_of()
    assert row.first_number() is row.newest_number() is row.first_seqno() is row.start_of(Seqno(0)) is None
    assert len(row) == 0 and Lsn(0) not in row
