"""Writing a Tungsten directory: opening, order, durability, purge. conformance/tungsten.md B4, B7; part D."""

from __future__ import annotations

import errno
import pickle
import random
from itertools import pairwise

import pytest

from fix_tungsten import (
    LOG,
    golden_segments,
    make_event,
    on_disk,
    open_log,
    read_places,
    segments_on,
    written,
)
from tranlog.disk import OsDisk
from tranlog.errors import (
    AppendOrderError,
    CorruptRecordError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogError,
    LogLockedError,
    LogMissingError,
    LogUnreadableError,
    NativeLogError,
    PurgeRangeError,
)
from tranlog.ids import segment_name
from tranlog.testing.disk import PowerCut, SimDisk
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.records.codec import FILE_HEADER, encode_file_header, parse_file_header
from tranlog.tungsten.records.event import Event
from tranlog.tungsten.rules.recovery import EventPlace
from tranlog.tungsten.upkeep.verify import verify
from tranlog.tungsten.writing.directory import BUFFER_BYTES, TungstenLog, purge


def tear_off(case: str) -> SimDisk:
    return on_disk(golden_segments(case))


def path_of(number: int) -> str:
    return f"{LOG}/{segment_name(number)}"


# --- opening ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "recover-truncated-body",
        "recover-truncated-1short",
        "recover-zero-tail",
        "recover-garbage-length",
        "recover-partial-transaction",
        "recover-torn-header",
        "recover-zero-length-tail",
        "warn-minor-version",
    ],
)
def test_what_an_opening_leaves(case: str) -> None:
    """B4 5; D, testFileTruncationAndRepair, testSimpleFragmentCleanup: the ancestor's own bytes, nothing is lost."""
    disk = tear_off(case)
    before = segments_on(disk)
    with open_log(disk) as log:
        report = log.report
    assert segments_on(disk) == golden_segments(case, "recovered")
    for cut in report.cuts:
        if not cut.whole:
            assert (
                disk.content(f"{LOG}/cut/{segment_name(cut.number)}.{cut.offset}") == before[cut.number][cut.offset :]
            )
    with open_log(disk) as log:
        assert log.report.cuts == ()


@pytest.mark.parametrize(
    ("case", "place"),
    [
        ("fail-bad-crc", "0000000001, offset 2716, at or after seqno 8"),
        ("fail-bad-body-last-file", "0000000001, offset 1216"),
        ("fail-bad-magic", "0000000001, offset 0.*magic"),
        ("fail-major-version", "0000000001, offset 0.*major version 2"),
        ("fail-zero-length-middle", "0000000004, offset 0"),
        ("fail-unknown-record-type", "0000000001, offset 1216.*record type 7"),
        ("fail-bad-body-first-file", "0000000001, offset 1400"),
    ],
)
def test_what_an_opening_refuses(case: str, place: str) -> None:
    """B4 3, 4; the last two by intent, where the ancestor writes on behind the damage. Nothing is changed."""
    disk = tear_off(case)
    before = segments_on(disk)
    with pytest.raises(CorruptRecordError, match=place):
        open_log(disk)
    assert segments_on(disk) == before
    assert disk.list_dir(LOG)[0] == "disklog.lck"
    with pytest.raises(CorruptRecordError):  # the lock was given back
        open_log(disk)


def test_going_on_in_every_golden_log() -> None:
    """Golden appended/: tested byte for byte by the checker; here, that the order goes on."""
    for case, next_seqno in (("simple-100", 100), ("rotated-60", 60), ("filtered", 15), ("odd-order", 21)):
        disk = tear_off(case)
        with open_log(disk) as log:
            assert log.next_place == EventPlace(next_seqno)
            log.append(make_event(next_seqno))
        assert read_places(disk, strict=False)[-1] == (next_seqno, 0)


def test_a_new_log_and_one_that_starts_above_0() -> None:
    """D, testLogWritableNonExistent, testLogNonZeroStart, testLogDirectoryCreation."""
    disk = SimDisk()
    with open_log(disk) as log:
        assert log.report.created and log.next_place is None and log.last_seqno == -1
    assert segments_on(disk) == {1: encode_file_header(-1)}
    with open_log(disk) as log:
        log.append(make_event(500))
    with open_log(disk) as log:
        assert log.last_seqno == 500 and log.next_place == EventPlace(501)
    reader = TungstenReader.open(LOG, disk=disk)
    assert (reader.first_seqno, reader.last_seqno) == (500, 500)
    with pytest.raises(LogMissingError, match="/no/parent does not exist"):
        TungstenLog.open("/no/parent/log", disk=SimDisk())


def test_a_first_segment_without_its_header() -> None:
    for raw in (b"", encode_file_header(-1)[:9]):
        disk = on_disk({1: raw})
        with open_log(disk) as log:
            log.append(make_event(0))
        assert read_places(disk) == [(0, 0)]


def test_a_segment_that_a_crash_left_behind_a_torn_one() -> None:
    """Unsynced writes reach the disk in any order: the next segment's header may, the end of this one not."""
    events = [make_event(seqno) for seqno in range(3)]
    whole = segments_on(written(*events))[1]
    disk = on_disk({1: whole[:-5], 2: encode_file_header(3)})
    with open_log(disk) as log:
        assert log.next_place == EventPlace(2)
        log.append(make_event(2))
    assert sorted(segments_on(disk)) == [1]
    assert read_places(disk) == [(0, 0), (1, 0), (2, 0)]


def test_a_log_with_no_more_than_a_part_of_a_transaction() -> None:
    """D, testSimpleFragmentCleanup: it is dropped, and the log is as empty as a new one."""
    disk = SimDisk()
    log = open_log(disk)
    for fragno in range(3):
        log.append(make_event(0, fragno, last=False))
    log.commit()
    disk.kill()
    assert read_places(disk) == []
    with open_log(disk) as log:
        assert log.last_seqno == -1 and log.next_place is None
        assert [cut.number for cut in log.report.cuts] == [1]
        log.append(make_event(0))
    assert read_places(disk) == [(0, 0)]


@pytest.mark.parametrize("openings", [1, 3])
def test_parts_of_transactions_are_dropped_at_each_opening(openings: int) -> None:
    """D, testComplexFragmentCleanup, testEmptyFileCleanup: also where nothing else stands in the newest segment."""
    disk = SimDisk()
    wanted: list[tuple[int, int]] = []
    for opening in range(openings):
        log = open_log(disk, segment_bytes=400)
        start = 0 if log.next_place is None else log.next_place.seqno
        assert start == 3 * opening
        for seqno in range(start, start + 3):
            for fragno in range(4):
                log.append(make_event(seqno, fragno, last=fragno == 3))
                wanted.append((seqno, fragno))
            log.commit()
        newest = max(segments_on(disk))
        log.append(make_event(start + 3, 0, last=False))
        log.append(make_event(start + 3, 1, last=False))
        log.commit()
        assert max(segments_on(disk)) == newest + 1, "the part stands alone behind a rotation"
        disk.kill()
        assert read_places(disk) == wanted
        with open_log(disk, segment_bytes=400) as again:
            assert again.last_seqno == start + 2 and again.next_place == EventPlace(start + 3)
            assert again.report.cuts != ()
        assert read_places(disk) == wanted


def test_a_header_that_claims_seqnos_of_another_segment() -> None:
    segments = golden_segments("rotated-60")
    segments[7] = encode_file_header(20) + segments[7][FILE_HEADER.size :]
    with pytest.raises(
        CorruptRecordError, match=r"0000000007.*begins at seqno 20, but the segments before it reach 53"
    ):
        open_log(on_disk(segments))


# --- order -----------------------------------------------------------------------------------------------


def test_b7_22_what_the_ancestor_lets_through_is_refused() -> None:
    """B7-22, and D, testSeqnoOrdering, testFragnoOrdering; after a refusal the log goes on."""
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_event(0))
        for event, why in (
            (make_event(0), "seqno 0 again"),
            (make_event(5), "seqno 5 where 1 is to come"),
            (make_event(1, 3), "begins with fragment 3"),
        ):
            with pytest.raises(AppendOrderError, match=why):
                log.append(event)
        log.append(make_event(1, 0, last=False))
        for event, why in (
            (make_event(1, 2), "fragment 1 of the open transaction 1 is to come"),
            (make_event(1, 0), "fragment 1 of the open"),
            (make_event(2), "fragment 1 of the open"),
        ):
            with pytest.raises(AppendOrderError, match=why):
                log.append(event)
        log.append(make_event(1, 1))
        log.append(make_event(2, end=(7, 0)))
        with pytest.raises(AppendOrderError, match="seqno 5 again: the log holds all below 8"):
            log.append(make_event(5))
        log.append(make_event(8))
    with open_log(disk) as log, pytest.raises(AppendOrderError, match="seqno 8 again"):
        log.append(make_event(8))
    assert read_places(disk) == [(0, 0), (1, 0), (1, 1), (2, 0), (8, 0)]


def test_a_new_log_begins_with_a_first_fragment() -> None:
    with open_log(SimDisk()) as log, pytest.raises(AppendOrderError, match="begins with fragment 1"):
        log.append(make_event(0, 1))


def test_a_filtered_range_at_the_end_survives_reopening() -> None:
    """B4 7: the ancestor's maximum is the range's start; the place behind it is ours to know."""
    disk = written(make_event(0), make_event(1, end=(9, 0)))
    with open_log(disk) as log:
        assert (log.last_seqno, log.next_place) == (1, EventPlace(10))


def test_filtered_fragments_inside_a_transaction() -> None:
    """Golden filtered: seqno 8 has fragment 0, and fragments 1 to 2 filtered."""
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_event(0, 0, last=False))
        log.append(make_event(0, 1, end=(0, 2)))
        log.append(make_event(1))
    assert read_places(disk) == [(0, 0), (0, 1), (1, 0)]


# --- rotation --------------------------------------------------------------------------------------------


def test_rotation_never_splits_a_transaction() -> None:
    """D, testFragmentsAndRotation; the header's base is the seqno that was to be written."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=400) as log:
        for seqno in range(6):
            for fragno in range(5):
                log.append(make_event(seqno, fragno, last=fragno == 4))
            log.commit()
    segments = segments_on(disk)
    bases = [parse_file_header(raw).base_seqno for raw in segments.values()]  # type: ignore[union-attr]
    assert bases == [-1, 1, 2, 3, 4, 5]
    assert all(len(raw) > 900 for raw in segments.values())
    assert len(read_places(disk)) == 30


def test_the_golden_rotation() -> None:
    """rotated-60: limit 3000 bytes, the same files from the same events."""
    theirs = golden_segments("rotated-60")
    disk = SimDisk()
    with open_log(disk, segment_bytes=3000) as log, TungstenReader.open(LOG, disk=on_disk(theirs)).cursor() as cursor:
        for stored in iter(cursor.next, None):
            event = stored.event()
            assert isinstance(event, Event)
            log.append(event, shard_id=stored.record.shard_id, tstamp=stored.record.tstamp)
    assert segments_on(disk) == theirs


# --- durability ------------------------------------------------------------------------------------------


def test_b7_1_every_commit_is_synced() -> None:
    """B7-1: the ancestor's fsyncOnFlush never reaches the disk."""
    disk = SimDisk()
    with open_log(disk) as log:
        before = disk.counts["sync"]
        for seqno in range(20):
            log.append(make_event(seqno))
            log.commit()
        assert disk.counts["sync"] == before + 20
        after = disk.after_crash(random.Random(1))
        assert read_places(after) == [(seqno, 0) for seqno in range(20)]


def _life(disk: SimDisk, acknowledged: list[int]) -> None:
    """Open, append transactions of one to three fragments, rotate, close, open again; note what was committed."""
    for _ in range(2):
        with open_log(disk, segment_bytes=600) as log:
            start = 0 if log.next_place is None else log.next_place.seqno
            for seqno in range(start, start + 5):
                parts = seqno % 3 + 1
                for fragno in range(parts):
                    log.append(make_event(seqno, fragno, last=fragno == parts - 1))
                log.commit()
                acknowledged.append(seqno)


def refusal(disk: SimDisk) -> int | None:
    """Return the last sound seqno before the damage for which an opening is refused, None where it is not."""
    try:
        open_log(disk).close()
    except CorruptRecordError as exc:
        return -1 if exc.seqno is None else exc.seqno
    return None


@pytest.mark.long
def test_a_power_cut_at_every_call_loses_nothing_acknowledged() -> None:
    """B7-1. What was not acknowledged may be there, cut off, or, torn with a checksum in it, refused: nothing tells it
    from damage in this format, and B4 4 says refused."""
    whole = SimDisk()
    _life(whole, [])
    refused = 0
    for cut in range(1, whole.calls + 1):
        for fate in range(3):
            disk = SimDisk()
            disk.cut_at = cut
            acknowledged: list[int] = []
            with pytest.raises(PowerCut):
                _life(disk, acknowledged)
            after = disk.after_crash(random.Random(cut * 10 + fate))
            last = acknowledged[-1] if acknowledged else -1
            place = refusal(after)
            if place is not None:
                refused += 1
                assert place >= last, f"cut={cut} fate={fate}"
                continue
            with open_log(after) as log:
                assert log.last_seqno >= last, f"cut={cut} fate={fate}"
                log.append(make_event(0 if log.next_place is None else log.next_place.seqno))
            seqnos = sorted({seqno for seqno, _ in read_places(after)})
            assert seqnos == list(range(len(seqnos))) and set(acknowledged) <= set(seqnos)
    assert refused < whole.calls


def test_a_killed_writer_leaves_a_log_that_opens() -> None:
    """Without a loss of power the system keeps what was written, in order."""
    whole = SimDisk()
    _life(whole, [])
    for cut in range(1, whole.calls + 1):
        disk = SimDisk()
        disk.cut_at = cut
        acknowledged: list[int] = []
        with pytest.raises(PowerCut):
            _life(disk, acknowledged)
        disk.kill()
        disk.dead, disk.cut_at = False, None
        with open_log(disk) as log:
            assert log.last_seqno >= (acknowledged[-1] if acknowledged else -1)


def test_a_full_disk_takes_back_what_was_not_committed() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_event(0))
    log.commit()
    disk.room = 100
    log.append(make_event(1, text="x" * 1000))
    with pytest.raises(DiskFullError, match="none of it is kept"):
        log.commit()
    assert (log.last_seqno, log.next_place) == (0, EventPlace(1))
    disk.room = None
    log.append(make_event(1))
    log.close()
    assert read_places(disk) == [(0, 0), (1, 0)]


def test_a_full_disk_in_a_large_transaction() -> None:
    """What is written without being asked to is synced, so that a reader sees nothing that may go again; a transaction
    of which a part was written is taken back whole."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=10**9)
    log.append(make_event(0, end=(4, 0)))
    log.append(make_event(5, text="x" * BUFFER_BYTES))
    assert read_places(disk) == [(0, 0), (5, 0)] == read_places(disk.after_crash(random.Random(1)))
    log.append(make_event(6, 0, last=False, text="x" * BUFFER_BYTES))
    disk.room = 1000
    with pytest.raises(DiskFullError):
        log.append(make_event(6, 1, last=False, text="x" * BUFFER_BYTES))
    assert (log.last_seqno, log.next_place) == (5, EventPlace(6))
    log.append(make_event(6))
    log.close()
    assert read_places(disk) == [(0, 0), (5, 0), (6, 0)]


def test_a_failed_sync_closes_the_log() -> None:
    """After a failed sync nothing is assumed durable; the next opening says what is there."""
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_event(0))
    log.commit()
    log.append(make_event(1))
    disk.fail_at = {disk.calls + 2: errno.EIO}
    with pytest.raises(DiskFailedError, match="closed for writing"):
        log.commit()
    with pytest.raises(LogClosedError):
        log.append(make_event(2))
    log.close()
    with open_log(disk) as again:
        assert again.last_seqno >= 0


@pytest.mark.parametrize("call", [1, 2], ids=["killed before the sync", "the sync failed"])
@pytest.mark.parametrize("rotated", [False, True])
def test_what_an_opening_found_is_durable(call: int, rotated: bool) -> None:
    """Nobody has synced it for certain, and whoever copies goes on behind it."""
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_event(0))
    log = open_log(disk, segment_bytes=10 if rotated else 10**6)
    if not rotated:
        log.append(make_event(1))
    disk.cut_at = disk.calls + 2 if call == 1 else None
    disk.fail_at = {} if call == 1 else {disk.calls + 2: errno.EIO}
    with pytest.raises((PowerCut, DiskFailedError)):
        log.append(make_event(1)) if rotated else log.commit()
    disk.kill()
    with open_log(disk) as log:
        last = log.last_seqno
        assert last == (0 if rotated else 1)
        whole = [(seqno, 0) for seqno in range(last + 1)]
        assert [whole] * 8 == [read_places(disk.after_crash(random.Random(fate))) for fate in range(8)]
        log.append(make_event(last + 1))
        log.commit()
        whole.append((last + 1, 0))
        assert [whole] * 8 == [read_places(disk.after_crash(random.Random(fate))) for fate in range(8)]


def test_a_directory_that_cannot_be_written() -> None:
    disk = tear_off("recover-zero-tail")
    disk.read_only = True
    with pytest.raises(LogUnreadableError, match="permissions"):
        open_log(disk)


# --- the lock --------------------------------------------------------------------------------------------


def test_one_writer(tmp_path: object) -> None:
    """A1, B1: disklog.lck, empty, locked so that Java's lock excludes it; D, testOneWriter, WriteLockTest."""
    path = f"{tmp_path}/log"
    disk = OsDisk()
    with TungstenLog.open(path) as log:
        log.append(make_event(0))
        with pytest.raises(LogLockedError, match="held by another writer"):
            TungstenLog.open(path)
        with pytest.raises(LogLockedError):
            purge(path, high=0)
    assert disk.open(f"{path}/disklog.lck").size() == 0
    with TungstenLog.open(path) as log:
        assert log.last_seqno == 0
        log.close()
        log.close()


@pytest.mark.parametrize(
    "error",
    [
        AppendOrderError(path=LOG, why="seqno 5 where 1 is to come"),
        PurgeRangeError(path=LOG, why="the range is empty"),
        NativeLogError(path=LOG, segment="thl.data.0000000001"),
    ],
)
def test_errors_survive_pickling(error: LogError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and LOG in str(again)


def test_a_closed_log_takes_nothing() -> None:
    log = open_log(SimDisk())
    log.close()
    with pytest.raises(LogClosedError):
        log.append(make_event(0))
    with pytest.raises(LogClosedError):
        log.commit()


# --- purge -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", range(60))
def test_b7_2_a_purge_to_the_end_leaves_no_hole(low: int) -> None:
    """B7-2: the ancestor keeps the last segment whenever `low` is not in it; D, testDeleteDown."""
    disk = tear_off("rotated-60")
    report = purge(LOG, low=low, disk=disk)
    if low == 0:
        assert segments_on(disk) == {}
        return
    assert [seqno for seqno, _ in read_places(disk)] == list(range(low))
    assert len(report.removed) + len(segments_on(disk)) == 7
    assert verify(LOG, disk=disk).sound
    with open_log(disk) as log:
        assert log.report.cuts == () and log.next_place == EventPlace(low)
        log.append(make_event(low))
    assert [seqno for seqno, _ in read_places(disk)] == list(range(low + 1))


@pytest.mark.parametrize("high", range(0, 60, 3))
def test_a_purge_from_the_front_takes_whole_segments(high: int) -> None:
    """D, testDeleteUp; golden purge-high-30."""
    disk = tear_off("rotated-60")
    purge(LOG, high=high, disk=disk)
    first = 54 if high >= 53 else (high + 1) // 9 * 9
    if high == 59:
        assert segments_on(disk) == {}
    else:
        assert [seqno for seqno, _ in read_places(disk)] == list(range(first, 60))


@pytest.mark.parametrize(
    ("low", "high", "why"),
    [
        (20, 40, "must include one or both log end points: low seqno=20 high seqno=40"),
        (40, 20, "the range is empty"),
        (60, None, "nothing of it is in the log, which holds 0 to 59"),
        (5, 5, "must include one or both"),
    ],
)
def test_ranges_that_are_refused(low: int | None, high: int | None, why: str) -> None:
    """Golden purge-middle; nothing was removed."""
    disk = tear_off("rotated-60")
    before = segments_on(disk)
    with pytest.raises(PurgeRangeError, match=why):
        purge(LOG, low=low, high=high, disk=disk)
    assert segments_on(disk) == before


def test_a_filtered_range_is_not_cut_through() -> None:
    disk = tear_off("filtered")
    with pytest.raises(PurgeRangeError, match="inside a filtered range"):
        purge(LOG, low=3, disk=disk)
    purge(LOG, low=6, disk=disk)
    with open_log(disk) as log:
        assert log.next_place == EventPlace(6)


def test_everything() -> None:
    """Golden purge-all: an unfinished newest segment goes too; what opens then is a new log."""
    disk = tear_off("recover-torn-header")
    purge(LOG, disk=disk)
    assert segments_on(disk) == {}
    with open_log(disk) as log:
        assert log.report.created


def test_no_log_to_purge() -> None:
    with pytest.raises(LogMissingError):
        purge(LOG, high=1, disk=SimDisk())


@pytest.mark.parametrize("low", [20, 27, 57])
def test_a_purge_cut_off_at_any_call_leaves_a_log(low: int) -> None:
    """The newest segment goes first: what is left after a loss of power is the beginning of what was."""
    whole = tear_off("rotated-60")
    start = whole.calls
    purge(LOG, low=low, disk=whole)
    for cut in range(start + 1, whole.calls + 1):
        disk = tear_off("rotated-60")
        for number in segments_on(disk):
            file = disk.open(path_of(number), write=True)
            file.sync()
            file.close()
        disk.sync_dir(LOG)
        disk.sync_dir("/")
        disk.cut_at = disk.calls + cut - start
        with pytest.raises(PowerCut):
            purge(LOG, low=low, disk=disk)
        after = disk.after_crash(random.Random(cut))
        with open_log(after) as log:
            assert log.next_place is not None and log.next_place.seqno >= low
        seqnos = [seqno for seqno, _ in read_places(after)]
        assert all(later == earlier + 1 for earlier, later in pairwise(seqnos)) and seqnos[0] == 0
