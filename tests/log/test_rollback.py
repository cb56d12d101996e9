"""log/rules/rollback.py and Log.rollback: what a mark abandons, who sees it, and when it is refused.

design/index.md, "Abandoned records"; design/replication.md, "Rollback"; conformance/vlsn-index.md, I26 to I31,
RollbackTrackerTest, MergeTest with rollbacks in the recovery scan.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    read_all,
    run_threads,
    segment_names,
    segment_path,
)
from tranlog.errors import AbandonedError, CorruptRecordError, DiskFullError, HoldError, RollbackError
from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.log.files.holds import MAY_HAVE_ALL, await_rollback, lock_hold, read_holds, shut_out
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.gate import Gate
from tranlog.log.records.format import (
    MARK_BYTES,
    BadChecksum,
    Impossible,
    Partial,
    RollbackMark,
    encode_mark,
    parse_record,
)
from tranlog.log.rules.index import SegmentRow
from tranlog.log.rules.rollback import (
    Needed,
    contradiction,
    killer,
    marks_behind,
    overtaken,
    refusal,
    still_there,
)
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogReader, drop_hold, hold
from tranlog.lsn import lsn, lsn_offset, lsn_segment
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

WRITTEN_AT = 1_700_000_000_000


def mark(start: int, end: int, *, epoch: int = 2, seqno: int = 4, last: int = 9) -> RollbackMark:
    """Mark number `epoch` - 1, whose dead interval is `start` to `end`; its matchpoint stands right before."""
    return RollbackMark(
        epoch - 1, Epoch(epoch), Epoch(1), Seqno(seqno), Lsn(start - 1), Lsn(start), Lsn(end), Seqno(last), WRITTEN_AT
    )


def gtids(log: Log | LogReader) -> list[tuple[int, int]]:
    with log.cursor() as cursor:
        return [(one.header.epoch, one.header.seqno) for one in read_all(cursor)]


def row(epoch: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(epoch, seqno) for seqno in range(first, last + 1)]


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def abandoned_by(*marks: RollbackMark) -> list[int]:
    return [place for place in range(200) if killer(marks, Lsn(place)) is not None]


# --- decisions ----------------------------------------------------------------------------------------------


def test_nested_intervals_are_one_and_disjoint_ones_are_two() -> None:
    """RollbackTrackerTest, testGoodNestedLogs and testGoodLogs."""
    inner, outer, behind = mark(30, 40), mark(20, 50, epoch=3), mark(60, 70, epoch=4)
    assert contradiction([inner, outer, behind]) is None
    assert abandoned_by(inner, outer, behind) == [*range(20, 50), *range(60, 70)]
    assert abandoned_by(mark(20, 30), mark(20, 50, epoch=3)) == [*range(20, 50)]


def test_four_levels_of_nesting() -> None:
    marks = [mark(50 - level * 10, 100 + level * 10, epoch=2 + level) for level in range(4)]
    assert contradiction(marks) is None
    assert abandoned_by(*marks) == [*range(20, 130)]


def test_crossing_intervals_are_refused() -> None:
    """RollbackTrackerTest, testBadIntersection; I31."""
    crossing = mark(30, 60, epoch=3)
    wrong = contradiction([mark(20, 40), crossing])
    assert wrong is not None and wrong[0] is crossing and "crosses" in wrong[1]


def test_a_matchpoint_that_was_abandoned_is_refused() -> None:
    later = RollbackMark(2, Epoch(3), Epoch(1), Seqno(4), Lsn(30), Lsn(40), Lsn(60), Seqno(9), 0)
    wrong = contradiction([mark(20, 40), later])
    assert wrong is not None and "matchpoint" in wrong[1]


def test_numbers_of_marks_rise_by_one_and_epochs_do_not_fall() -> None:
    first = mark(20, 40, epoch=3)
    for number, epoch, why in ((1, 3, "mark 1"), (2, 3, "mark 2"), (4, 3, "mark 4"), (3, 3, ""), (3, 2, "epoch 2")):
        wrong = contradiction([first, replace(mark(50, 60), number=number, epoch=Epoch(epoch))])
        assert (wrong is None) if not why else (wrong is not None and why in wrong[1])


def test_a_record_is_abandoned_by_the_first_mark_that_took_it() -> None:
    inner, outer = mark(30, 40), mark(20, 50, epoch=3)
    assert [killer([inner, outer], Lsn(place)) for place in (19, 20, 30, 39, 40, 49, 50)] == [
        None, outer, inner, inner, outer, outer, None
    ]  # fmt: skip


def test_marks_go_with_what_they_abandoned() -> None:
    """A mark in the first segment that is left has nothing to pass over any more."""
    marks = [mark(lsn(1, 50), lsn(2, 42)), mark(lsn(3, 50), lsn(5, 42), epoch=3)]
    assert still_there(marks, 1) == tuple(marks)
    assert still_there(marks, 2) == tuple(marks[1:])
    assert still_there(marks, 4) == tuple(marks[1:])
    assert still_there(marks, 5) == ()


def test_what_a_reader_returned_is_overtaken_by_marks_that_it_did_not_know() -> None:
    marks = [mark(20, 40, seqno=4), mark(60, 70, seqno=8, epoch=3)]
    assert overtaken(marks, Seqno(4), Lsn(0)) is None
    assert overtaken(marks, Seqno(5), Lsn(0)) is marks[0]
    assert overtaken(marks, Seqno(8), Lsn(40)) is None
    assert overtaken(marks, Seqno(9), Lsn(40)) is marks[1]
    assert marks_behind(marks, Lsn(40)) == marks and marks_behind(marks, Lsn(41)) == marks[1:]


@pytest.mark.parametrize(
    ("asked", "changed", "why"),
    [
        (gtid(1, 5), {}, None),
        (gtid(1, 2), {}, "begins at seqno 3"),
        (gtid(1, 10), {}, "ends at seqno 9"),
        (gtid(2, 5), {}, "seqno 5 has epoch 1"),
        (gtid(1, 5), {"holds": [Needed("pipe", Seqno(6))]}, "the hold 'pipe' is at seqno 6"),
        (gtid(1, 5), {"holds": [Needed("pipe", Seqno(5))]}, None),
        (gtid(1, 5), {"holds": [Needed("pipe", Seqno(5), Seqno(5))]}, None),
        (gtid(1, 5), {"holds": [Needed("pipe", Seqno(5), Seqno(6))]}, "'pipe' has applied up to seqno 6"),
        (gtid(1, 5), {"holds": [Needed("pipe", Seqno(5), MAY_HAVE_ALL)]}, "may have applied up to seqno 8"),
        (gtid(1, 8), {"holds": [Needed("pipe", Seqno(5), MAY_HAVE_ALL)]}, None),
        (gtid(1, 8), {"holds": [Needed("pipe", Seqno(5), Seqno(5), True)]}, "'pipe' runs; stop it"),
        (gtid(1, 5), {"holds": [Needed("pipe", None)]}, "is damaged"),
        (gtid(1, 5), {"holds": [Needed("node.b", Seqno(9)), Needed("restore.c", None)]}, None),
        (gtid(1, 5), {"last": Seqno(11)}, "seqno 10 to 11 are appended and not committed"),
        (gtid(1, 5), {"unfinished": "seqno 10 is open"}, "seqno 10 is open"),
        (gtid(1, 5), {"visible": Seqno(2), "last": Seqno(2)}, "no transaction"),
    ],
)
def test_when_a_rollback_is_refused(asked: Gtid, changed: dict[str, object], why: str | None) -> None:
    given: dict[str, object] = {
        "first": Seqno(3), "visible": Seqno(9), "durable": Seqno(8), "last": Seqno(9), "unfinished": None,
        "found": Epoch(1), "holds": [],
    }  # fmt: skip
    found = refusal(asked, **(given | changed))  # type: ignore[arg-type]
    assert found is None if why is None else found is not None and why in found


def test_followers_go_back_with_the_log() -> None:
    """Their holds refuse nothing, and are lowered."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 9)
        for name, seqno in (("node.b", 9), ("node.c", 3), ("restore.d", 6)):
            hold(PATH, name, Seqno(seqno), holder="b1", follower=True, disk=disk, clock=ManualClock())
        assert log.rollback(gtid(1, 4)) is not None
        held = {one.name: (one.restart_seqno, one.holder) for one in read_holds(PATH, disk=disk)}
        assert held == {"node.b": (5, "b1"), "node.c": (3, "b1"), "restore.d": (5, "b1")}


def test_the_row_of_segments_with_marks() -> None:
    """A segment in which nothing lives is in the row, and no seqno leads there."""
    row = SegmentRow(first_offset=16)
    for number, prev_seqno in ((1, -1), (2, 9), (3, 19)):
        row.add(number, Seqno(prev_seqno))
    row.add(4, Seqno(29), Seqno(14))
    row.add(5, Seqno(24))
    places = {seqno: row.start_of(Seqno(seqno)) for seqno in (9, 10, 14, 15, 24, 25, 99)}
    assert [(seqno, place and lsn_segment(place.lsn)) for seqno, place in places.items()] == [
        (9, 1), (10, 2), (14, 2), (15, 4), (24, 4), (25, 5), (99, 5)
    ]  # fmt: skip
    assert [row.cut_of(number) for number in range(1, 6)] == [None, 14, 14, None, None]
    assert row.lasts() == [(1, 9), (2, 14), (3, 14), (4, 24), (5, None)]
    assert [row.lives(number) for number in range(1, 7)] == [True, True, False, True, True, False]
    row.add(6, Seqno(30), Seqno(14))  # to the same matchpoint again
    assert [row.cut_of(number) for number in range(1, 7)] == [None, 14, 14, 14, 14, None]
    row.add(7, Seqno(20), Seqno(-1))  # and to before everything
    assert [row.lives(number) for number in range(1, 8)] == [False] * 6 + [True]
    assert row.first_seqno() == 0 and [number for number, last in row.lasts() if last == -1] == [1, 2, 3, 4, 5, 6]


def test_dropping_the_front_of_a_row_leaves_the_rest_as_it_was() -> None:
    row = SegmentRow(first_offset=16)
    for number, prev_seqno in ((1, -1), (2, 9), (3, 19)):
        row.add(number, Seqno(prev_seqno))
    row.add(4, Seqno(29), Seqno(14))
    row.drop_front(3)
    assert (row.first_number(), row.first_seqno(), len(row)) == (3, 15, 2)
    assert row.start_of(Seqno(14)) is None and row.cut_of(3) == 14
    assert row.lasts() == [(3, 14), (4, None)]


def test_a_gate_goes_back_and_stirs() -> None:
    gate = Gate()
    gate.open_to(Seqno(20))
    gate.go_back(Seqno(6))
    assert gate.wait(Seqno(7), 0) == 6
    woken: list[Seqno] = []
    thread = threading.Thread(target=lambda: woken.append(gate.wait(Seqno(30), 60)))
    thread.start()
    while not len(gate):
        pass
    gate.stir()
    thread.join(30)
    assert woken == [6] and not len(gate)


# --- the record ---------------------------------------------------------------------------------------------


def test_a_mark_is_read_as_it_was_written() -> None:
    one = mark(20, 40)
    raw = encode_mark(one)
    assert len(raw) == MARK_BYTES
    assert parse_record(raw, 0, 40) == one
    assert isinstance(parse_record(raw[:-1], 0, 40), Partial)


def test_every_flipped_bit_of_a_mark_is_found() -> None:
    raw = encode_mark(mark(20, 40))
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not isinstance(parse_record(bytes(flipped), 0, 40), RollbackMark), bit


def test_a_mark_in_another_place_or_that_contradicts_itself_is_impossible() -> None:
    assert isinstance(parse_record(encode_mark(mark(20, 40)), 0, 41), Impossible)
    assert isinstance(parse_record(encode_mark(mark(40, 40)), 0, 40), Impossible)
    assert isinstance(parse_record(encode_mark(mark(20, 40, last=4)), 0, 40), Impossible)
    assert isinstance(parse_record(encode_mark(replace(mark(20, 40), epoch=Epoch(0))), 0, 40), Impossible)
    assert isinstance(parse_record(encode_mark(mark(20, 40))[:-4] + bytes(4), 0, 40), BadChecksum)


# --- rolling back -------------------------------------------------------------------------------------------


def filled(disk: SimDisk, count: int = 20) -> Log:
    """A log of epoch 1: a no-op, and seqnos 1 to `count` over several segments."""
    log = open_log(disk, segment_bytes=1_500)
    fill(log, count)
    assert len(segment_names(disk)) > 2
    return log


def test_everything_after_the_matchpoint_is_gone_and_a_new_epoch_goes_on() -> None:
    disk = SimDisk()
    log = filled(disk)
    found = log.rollback(gtid(1, 6))
    assert found is not None and found.matchpoint == gtid(1, 6) and found.last_seqno == 20
    assert (log.last_seqno, log.visible_seqno, log.durable_seqno, log.epoch) == (7, 7, 7, 2)
    assert log.last_event_id() == "e5"
    assert gtids(log) == [*row(1, 0, 6), (2, 7)]
    fill(log, 20, start=50)
    assert gtids(log) == [*row(1, 0, 6), *row(2, 7, 27)]
    assert [one[1] for one in contents(log)][:8] == [*(f"e{n}" for n in range(6)), "e50", "e51"]
    log.close()
    log = open_log(disk, segment_bytes=1_500)
    assert log.epoch == 3
    assert gtids(log) == [*row(1, 0, 6), *row(2, 7, 27), (3, 28)]
    log.close()


def test_nothing_is_taken_out_of_a_segment() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
    log.rollback(gtid(1, 6))
    fill(log, 20)
    for name, content in before.items():
        assert disk.content(f"{PATH}/{name}").startswith(content)
    log.close()


def test_to_the_last_one_nothing_is_written() -> None:
    disk = SimDisk()
    log = filled(disk)
    calls = disk.calls
    assert log.rollback(gtid(1, 20)) is None
    assert (disk.calls, log.epoch) == (calls, 1)
    log.close()


def test_nested_and_repeated_rollbacks() -> None:
    """MergeTest, testMultiRBMerge: 30, then 31..37, then 33, then rewritten."""
    disk = SimDisk()
    log = filled(disk)
    log.rollback(gtid(1, 12))  # 13 is the no-op of epoch 2
    fill(log, 6)
    log.rollback(gtid(2, 15))
    fill(log, 6)
    assert gtids(log) == [*row(1, 0, 12), *row(2, 13, 15), *row(3, 16, 22)]
    log.rollback(gtid(1, 12))
    assert gtids(log) == [*row(1, 0, 12), (4, 13)]
    log.rollback(gtid(1, 12))
    fill(log, 3)
    log.rollback(gtid(1, 0))
    fill(log, 12)
    expected = [(1, 0), *row(6, 1, 13)]
    assert gtids(log) == expected
    with open_reader(disk) as reader:
        assert gtids(reader) == expected
    log.close()
    log = open_log(disk, segment_bytes=1_500)
    assert gtids(log) == [*expected, (7, 14)]
    log.close()
    found = verify(PATH, disk=disk)
    assert found.sound, found.problems
    assert (found.first_seqno, found.last_seqno, found.transactions) == (0, 14, 15)
    assert found.abandoned == found.fragments - 15


def test_large_transactions_on_both_sides() -> None:
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_500)
    append_large(log, "kept", [b"a" * 400, b"b" * 400, b"c" * 400])
    append_large(log, "gone", [b"d" * 400, b"e" * 400])
    log.commit()
    log.rollback(gtid(1, 1))
    append_large(log, "new", [b"f" * 900, b"g" * 900])
    log.commit()
    assert contents(log) == [(1, "kept", b"a" * 400 + b"b" * 400 + b"c" * 400), (3, "new", b"f" * 900 + b"g" * 900)]
    log.close()


@pytest.mark.parametrize("asked", [gtid(1, 21), gtid(2, 5), gtid(1, -1)])
def test_a_refused_rollback_changes_nothing(asked: Gtid) -> None:
    disk = SimDisk()
    log = filled(disk)
    calls = disk.calls
    with pytest.raises(RollbackError) as caught:
        log.rollback(asked)
    assert caught.value.matchpoint == asked and "Nothing was changed" in str(caught.value)
    assert (disk.calls, log.visible_seqno, log.epoch) == (calls, 20, 1)
    log.close()


def test_not_below_what_a_pipeline_may_have_applied() -> None:
    """While it runs not at all; after it, below what it has said, or all there is where it has said nothing."""
    disk = SimDisk()
    log = filled(disk)
    hold(PATH, "pipe", Seqno(3), applied=MAY_HAVE_ALL, disk=disk, clock=ManualClock())
    lock = lock_hold(PATH, "pipe", disk=disk)
    assert lock is not None and lock_hold(PATH, "pipe", disk=disk) is None
    with pytest.raises(RollbackError, match="the pipeline 'pipe' runs; stop it first"):
        log.rollback(gtid(1, 12))
    lock.release()
    with pytest.raises(RollbackError, match="ended without saying how far it was, and may have applied up to seqno 20"):
        log.rollback(gtid(1, 12))
    hold(PATH, "pipe", Seqno(3), applied=Seqno(12), disk=disk, clock=ManualClock())
    with pytest.raises(RollbackError, match="the pipeline 'pipe' has applied up to seqno 12"):
        log.rollback(gtid(1, 11))
    assert log.rollback(gtid(1, 12)) is not None
    log.close()


def test_a_pipeline_that_begins_meanwhile_waits() -> None:
    """Either the rollback sees its hold, or it sees the rollback."""
    disk, clock = SimDisk(), ManualClock()
    log = filled(disk)
    await_rollback(PATH, disk=disk, clock=clock)
    with shut_out(PATH, disk=disk):
        with pytest.raises(HoldError, match="a rollback of the log is under way"):
            await_rollback(PATH, disk=disk, clock=clock)
        with pytest.raises(HoldError, match="another rollback"):
            log.rollback(gtid(1, 12))
    await_rollback(PATH, disk=disk, clock=clock)
    assert log.rollback(gtid(1, 12)) is not None
    log.close()


Read = Callable[[Cursor], Callable[[], int | None]]


def by_transaction(cursor: Cursor) -> Callable[[], int | None]:
    def read() -> int | None:
        found = cursor.next_header()
        return None if found is None else found.seqno

    return read


def by_raw_record(cursor: Cursor) -> Callable[[], int | None]:
    records = cursor.raw()
    return lambda: next((one[0] for one in records), None)


def by_pass(cursor: Cursor) -> Callable[[], int | None]:
    """One by one, in what was read already; `next_header` where it has to look."""

    def read() -> int | None:
        begun = cursor.next_seqno
        passed = cursor.pass_over({b"shop"}, Seqno(begun))
        return passed if passed >= begun else by_transaction(cursor)()

    return read


@pytest.mark.parametrize("how", [by_transaction, by_raw_record, by_pass])
@pytest.mark.parametrize("committed_only", [False, True])
def test_a_reader_elsewhere_does_not_return_what_it_has_read_after_the_rollback_has_returned(
    how: Read, committed_only: bool
) -> None:
    """All of it lies in one window, below a limit that was good."""
    disk, clock = SimDisk(), ManualClock()
    log = open_log(disk, clock=clock)
    fill(log, 20)
    with open_reader(disk, clock=clock) as reader, reader.cursor(committed_only=committed_only) as cursor:
        read = how(cursor)
        assert [read() for _ in range(9)] == list(range(9))
        log.rollback(gtid(1, 12))
        found = [read() for _ in range(5)]
        assert found == [9, 10, 11, 12, 13] and cursor.next_header() is None
        log.rollback(gtid(1, 7))
        with pytest.raises(AbandonedError):
            read()
    log.close()


def test_what_is_unfinished_or_held_is_not_abandoned() -> None:
    disk = SimDisk()
    log = filled(disk)
    hold(PATH, "pipe", Seqno(9), disk=disk, clock=ManualClock())
    with pytest.raises(RollbackError, match="the hold 'pipe' is at seqno 9"):
        log.rollback(gtid(1, 8))
    drop_hold(PATH, "pipe", disk=disk)
    log.append(make_fragment("open", last=False))
    with pytest.raises(RollbackError, match="seqno 21 is open"):
        log.rollback(gtid(1, 8))
    log.append(make_fragment("open"))
    with pytest.raises(RollbackError, match="not committed"):
        log.rollback(gtid(1, 8))
    log.commit()
    allocation = log.allocate([make_fragment("a")])
    with pytest.raises(RollbackError, match="seqno 22 is allocated and not complete"):
        log.rollback(gtid(1, 8))
    allocation.complete()
    assert gtids(log) == row(1, 0, 22)
    log.rollback(gtid(1, 8))
    assert gtids(log) == [*row(1, 0, 8), (2, 9)]
    log.close()


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk = SimDisk()
    log = filled(disk)
    for room in range(0, 120, 7):  # the rotate record, the new segment's first records
        disk.room = room
        with pytest.raises(DiskFullError):
            log.rollback(gtid(1, 8))
        disk.room = None
        assert (log.visible_seqno, log.epoch) == (20, 1)
        assert gtids(log) == row(1, 0, 20)
    fill(log, 1, start=90)
    log.rollback(gtid(1, 8))
    assert gtids(log) == [*row(1, 0, 8), (2, 9)]
    log.close()
    assert verify(PATH, disk=disk).sound


def test_a_disk_that_fills_behind_the_mark_keeps_the_rollback() -> None:
    """The mark says all that matters; the no-op of the new epoch is missing."""
    disk = SimDisk()
    log = filled(disk)
    rotate = len(disk.content(segment_path(1))) and 31 + 8  # a rotate record; then header, sync record and mark
    for room in range(rotate + 116, rotate + 180, 5):
        disk.room = room
        try:
            log.rollback(gtid(1, 8))
            break
        except DiskFullError:
            disk.room = None
    else:
        raise AssertionError("there was never room for the mark alone")
    disk.room = None
    assert (log.visible_seqno, log.epoch) == (8, 2)
    fill(log, 3)
    assert gtids(log) == [*row(1, 0, 8), *row(2, 9, 11)]
    log.close()
    log = open_log(disk, segment_bytes=1_500)
    assert gtids(log) == [*row(1, 0, 8), *row(2, 9, 11), (3, 12)]
    log.close()


# --- cursors ------------------------------------------------------------------------------------------------


def at(log: Log | LogReader, seqno: int) -> Cursor:
    """A cursor that has returned everything up to `seqno`."""
    cursor = log.cursor()
    for expected in range(seqno + 1):
        transaction = cursor.next()
        assert transaction is not None and transaction.header.seqno == expected
    return cursor


Opened = Callable[[SimDisk, Log], Log | LogReader]
OWN: Opened = lambda disk, log: log  # noqa: E731
OTHER: Opened = lambda disk, log: open_reader(disk)  # noqa: E731


@pytest.mark.parametrize("opened", [OWN, OTHER], ids=["own", "other process"])
@pytest.mark.parametrize("returned", [0, 3, 6])
def test_a_cursor_before_the_matchpoint_goes_on_over_it(opened: Opened, returned: int) -> None:
    disk = SimDisk()
    log = filled(disk)
    view = opened(disk, log)
    cursor = at(view, returned)
    log.rollback(gtid(1, 6))
    fill(log, 20)
    if isinstance(view, LogReader):
        view.range()  # until its process looks, it reads what was visible when that looked last
    found = [(one.header.epoch, one.header.seqno) for one in read_all(cursor)]
    assert found == [*row(1, returned + 1, 6), *row(2, 7, 27)]
    log.close()


@pytest.mark.parametrize("opened", [OWN, OTHER], ids=["own", "other process"])
@pytest.mark.parametrize("returned", [7, 13, 20])
@pytest.mark.parametrize("more", [0, 40])
def test_a_cursor_behind_the_matchpoint_is_told(opened: Opened, returned: int, more: int) -> None:
    """What it returned is no longer true: the error names the mark, and after a seek it goes on."""
    disk = SimDisk()
    log = filled(disk)
    cursor = at(opened(disk, log), returned)
    placed = log.rollback(gtid(1, 6))
    assert placed is not None
    fill(log, more)
    with pytest.raises(AbandonedError) as caught:
        read_all(cursor)
    error = caught.value
    assert error.seqno >= returned and error.matchpoint == gtid(1, 6) and error.number == 1
    assert error.mark == f"{lsn_segment(placed.dead_end)}:{lsn_offset(placed.dead_end)}"
    with pytest.raises(AbandonedError):  # as often as it is asked
        cursor.next()
    cursor.seek(Seqno(7))
    assert [(one.header.epoch, one.header.seqno) for one in read_all(cursor)] == row(2, 7, 7 + more)
    log.close()


def test_of_several_rollbacks_the_furthest_is_told() -> None:
    """Between the error and the seek that answers it, and before anything is returned then, there may be more."""
    disk = SimDisk()
    log = filled(disk)
    cursor = at(log, 20)
    for back in ((1, 12), (1, 6), (2, 7)):
        fill(log, 3)
        if back[0] == 2:
            log.rollback(log_gtid(log, 7))
        else:
            log.rollback(gtid(*back))
    with pytest.raises(AbandonedError) as caught:
        cursor.next()
    assert caught.value.matchpoint == gtid(1, 6)
    fill(log, 5)
    log.rollback(gtid(1, 4))
    with pytest.raises(AbandonedError) as caught:
        cursor.seek(Seqno(7))
    assert caught.value.seqno == 6 and caught.value.matchpoint == gtid(1, 4)
    cursor.seek(Seqno(5))
    log.rollback(gtid(1, 2))
    with pytest.raises(AbandonedError) as caught:
        cursor.next()
    assert caught.value.seqno == 4 and caught.value.matchpoint == gtid(1, 2)
    cursor.seek(Seqno(3))
    assert [one.header.seqno for one in read_all(cursor)] == [3]
    log.close()


def log_gtid(log: Log, seqno: int) -> Gtid:
    with log.cursor() as cursor:
        cursor.seek(Seqno(seqno))
        header = cursor.next_header()
        assert header is not None
        return header.gtid


def test_cursors_in_threads_follow_through_many_rollbacks() -> None:
    """Whatever comes between whichever steps: what a follower holds, cut back where it is told to, is the truth."""
    disk = SimDisk()
    log = filled(disk)
    reader = LogReader.open(PATH, disk=disk)
    done = threading.Event()
    held: list[list[Gtid]] = [[], [], []]

    def follow(view: Log | LogReader, mine: list[Gtid]) -> None:
        cursor = view.cursor()
        error: AbandonedError | None = None
        while True:
            try:
                if error is not None:
                    del mine[error.matchpoint.seqno + 1 :]
                    place, error = Seqno(error.matchpoint.seqno + 1), None
                    cursor.seek(place)
                one = cursor.next(timeout_s=0.01)
            except AbandonedError as exc:
                error = exc
                continue
            if one is not None:
                assert one.header.seqno == len(mine)
                mine.append(one.header.gtid)
            elif done.is_set():
                return

    def write() -> None:
        rng = random.Random(7)
        try:
            for number in range(150):
                fill(log, rng.randrange(1, 6), start=number * 10)
                if rng.random() < 0.5:
                    log.rollback(log_gtid(log, rng.randrange(max(log.last_seqno - 12, 0), log.last_seqno + 1)))
            fill(log, 40, start=5_000)
        finally:
            done.set()

    views: list[Log | LogReader] = [log, log, reader]
    run_threads(write, *(partial(follow, view, mine) for view, mine in zip(views, held, strict=True)))
    truth = [gtid(*one) for one in gtids(log)]
    assert held == [truth] * 3
    reader.close()
    log.close()


def test_a_waiting_cursor_hears_of_it_at_once() -> None:
    disk = SimDisk()
    log = filled(disk)
    cursor = at(log, 20)
    raised: list[AbandonedError] = []

    def wait() -> None:
        try:
            cursor.next(timeout_s=60)
        except AbandonedError as exc:
            raised.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    gate = log.gate()
    while thread.is_alive() and not len(gate):
        pass
    log.rollback(gtid(1, 6))
    thread.join(30)
    assert raised and raised[0].seqno == 20
    log.close()


def test_a_place_that_was_sought_is_nothing_that_was_returned() -> None:
    disk = SimDisk()
    log = filled(disk)
    cursor = log.cursor()
    cursor.seek(Seqno(15))
    log.rollback(gtid(1, 6))
    assert cursor.next() is None
    fill(log, 20)
    found = cursor.next()
    assert found is not None and found.header.gtid == gtid(2, 15)
    log.close()


def test_dead_intervals_are_passed_over_unread() -> None:
    """Readers skip abandoned records. Those of a segment in which nothing lives are never opened."""
    disk = SimDisk()
    log = filled(disk, 60)
    placed = log.rollback(gtid(1, 6))
    assert placed is not None
    fill(log, 10)
    log.close()
    dead = range(lsn_segment(placed.dead_start) + 1, lsn_segment(placed.dead_end))
    assert len(dead) >= 3
    reader = open_reader(disk)
    for number in dead:
        disk.broken.add(segment_path(number))
    assert gtids(reader)[:8] == [*row(1, 0, 6), (2, 7)]
    reader.close()


def test_a_place_in_what_is_dead_is_not_learned_any_more() -> None:
    """A cursor that comes by an abandoned record, read before the mark came, must not lead others there."""
    disk = SimDisk()
    log = filled(disk)
    placed = log.rollback(gtid(1, 6))
    assert placed is not None
    fill(log, 20)
    dead = {one.header.seqno: one.header.lsn for _, one in open_reader(disk).abandoned()}
    for segments in (log._end.segments, open_reader(disk)._segments):
        for seqno, place in dead.items():
            segments.note(seqno, place)
        segments.learn_run(1, Seqno(0), [16 + 10 * at for at in range(200)])
        for seqno in dead:
            found = segments.locate(seqno)
            assert found is not None and found.lsn > placed.dead_end - 100
    log.close()


def test_a_reader_that_scans_sees_the_same() -> None:
    disk = SimDisk()
    log = filled(disk)
    log.rollback(gtid(1, 6))
    forget_positions(disk)
    with open_reader(disk) as reader:
        assert reader.range().scanned
        cursor = at(reader, 7)
        fill_without_positions(disk, log, 9)
        assert [one.header.gtid for one in read_all(cursor)] == [gtid(2, seqno) for seqno in range(8, 17)]
        log.rollback(gtid(2, 9))
        forget_positions(disk)
        assert reader.range().last_seqno == 10
        with pytest.raises(AbandonedError):
            cursor.next()
        assert gtids(reader) == [*row(1, 0, 6), *row(2, 7, 9), (3, 10)]
    log.close()


def fill_without_positions(disk: SimDisk, log: Log, count: int) -> None:
    fill(log, count)
    forget_positions(disk)


# --- opening, the stored index, purging ---------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 3, 30])
def test_a_stored_index_from_before_the_mark_is_cut(more: int, caplog: pytest.LogCaptureFixture) -> None:
    """I26, I28: the recovered index ends at what lives, whether or not the new history has passed the old end."""
    disk = SimDisk()
    log = filled(disk)
    log.flush_index()
    stored = disk.content(f"{PATH}/index.table")
    log.rollback(gtid(1, 6))
    fill(log, more)
    log.close()
    disk.set_content(f"{PATH}/index.table", stored)
    log = open_log(disk, segment_bytes=1_500)
    assert "does not fit" not in caplog.text
    expected = [*row(1, 0, 6), *row(2, 7, 7 + more), (3, 8 + more)]
    assert gtids(log) == expected
    for epoch, seqno in expected:
        with log.cursor() as cursor:
            cursor.seek(Seqno(seqno))
            found = cursor.next_header()
            assert found is not None and found.gtid == gtid(epoch, seqno)
    log.close()


@pytest.mark.parametrize("more", [0, 30])
def test_without_a_stored_index_it_is_built_over_the_marks(more: int) -> None:
    disk = SimDisk()
    log = filled(disk)
    log.rollback(gtid(1, 6))
    fill(log, more)
    log.close()
    disk.unlink(f"{PATH}/index.table")
    log = open_log(disk, segment_bytes=1_500)
    assert gtids(log) == [*row(1, 0, 6), *row(2, 7, 7 + more), (3, 8 + more)]
    log.close()


def test_segments_are_described_by_what_lives() -> None:
    disk = SimDisk()
    log = filled(disk)
    placed = log.rollback(gtid(1, 6))
    assert placed is not None
    living = [(one.first_seqno, one.last_seqno) for one in log.segments() if one.last_seqno >= one.first_seqno]
    assert living == [(0, 6), (7, 7)]
    with open_reader(disk) as reader:
        assert [(one.first_seqno, one.last_seqno) for one in reader.index()] == [
            (one.first_seqno, one.last_seqno) for one in log.segments()
        ]
    log.close()


def test_a_dead_interval_that_is_half_purged_stays_right() -> None:
    """Purging goes from the front, one segment at a time; a crash may stop it inside a dead interval."""
    disk = SimDisk()
    log = filled(disk, 40)
    placed = log.rollback(gtid(1, 12))
    assert placed is not None
    fill(log, 40)
    log.close()
    expected = [*row(2, 13, 53), (3, 54)]
    for number in range(1, lsn_segment(placed.dead_end) + 1):
        disk.unlink(segment_path(number))
        if number < lsn_segment(placed.dead_start):
            continue
        if number == lsn_segment(placed.dead_end):
            break
        log = open_log(disk, segment_bytes=1_500)
        assert log.first_seqno == 13
        assert gtids(log) == expected
        with open_reader(disk) as reader:
            assert reader.range().first_seqno == 13
            assert gtids(reader) == expected
        log.close()
        found = verify(PATH, disk=disk)
        assert found.sound, found.problems
        assert found.first_seqno == 13 and found.transactions == len(expected)
        expected.append((expected[-1][0] + 1, expected[-1][1] + 1))
    log = open_log(disk, segment_bytes=1_500)
    assert gtids(log) == [one for one in expected if one[1] >= log.first_seqno] and log.first_seqno > 13
    log.close()


def test_purging_counts_what_lives() -> None:
    disk = SimDisk()
    log = filled(disk, 40)
    placed = log.rollback(gtid(1, 12))
    assert placed is not None
    fill(log, 40)
    log.purge(below=Seqno(13))
    assert log.first_seqno == 13
    assert segment_names(disk)[0] == segment_path(lsn_segment(placed.dead_end)).rpartition("/")[2]
    assert gtids(log) == row(2, 13, 53)
    log.close()


# --- what was abandoned -------------------------------------------------------------------------------------


def test_what_was_abandoned_is_listed_with_the_mark_that_took_it() -> None:
    """I31, nested: each record by the first mark that covers it, and by that one only."""
    disk = SimDisk()
    log = filled(disk)
    first = log.rollback(gtid(1, 12))
    fill(log, 12)
    second = log.rollback(gtid(2, 15))
    fill(log, 3)
    third = log.rollback(gtid(1, 4))
    fill(log, 3)
    with open_reader(disk) as reader:
        found = [(mark, one.header.epoch, one.header.seqno) for mark, one in reader.abandoned()]
    assert found == [
        *((first, 1, seqno) for seqno in range(13, 21)),
        *((second, 2, seqno) for seqno in range(16, 26)),
        *((third, 1, seqno) for seqno in range(5, 13)),
        *((third, 2, seqno) for seqno in range(13, 16)),
        *((third, 3, seqno) for seqno in range(16, 20)),
    ]
    log.close()
    assert verify(PATH, disk=disk).abandoned == len(found)


def test_what_was_purged_of_it_is_listed_no_more() -> None:
    disk = SimDisk()
    log = filled(disk, 40)
    placed = log.rollback(gtid(1, 12))
    assert placed is not None
    fill(log, 40)
    log.close()
    for number in range(1, lsn_segment(placed.dead_end) - 1):
        disk.unlink(segment_path(number))
    with open_reader(disk) as reader:
        left = [one.header.seqno for _, one in reader.abandoned()]
    assert left and left == list(range(left[0], 41)) and left[0] > 13
    disk.unlink(segment_path(lsn_segment(placed.dead_end) - 1))
    with open_reader(disk) as reader:
        assert list(reader.abandoned()) == []


# --- damage -------------------------------------------------------------------------------------------------


def test_a_damaged_mark_is_damage() -> None:
    disk = SimDisk()
    log = filled(disk)
    placed = log.rollback(gtid(1, 6))
    assert placed is not None
    fill(log, 20)
    log.close()
    path = segment_path(lsn_segment(placed.dead_end))
    good = disk.content(path)
    start = lsn_offset(placed.dead_end)
    for byte in range(start, start + MARK_BYTES, 5):
        raw = bytearray(good)
        raw[byte] ^= 0x10
        disk.set_content(path, bytes(raw))
        with pytest.raises(CorruptRecordError) as caught:
            open_log(disk, segment_bytes=1_500)
        assert caught.value.segment == path.rpartition("/")[2]
        assert not verify(PATH, disk=disk).sound
    disk.set_content(path, good)
    assert verify(PATH, disk=disk).sound


def test_a_mark_that_crosses_another_is_damage() -> None:
    """I27: a contradiction is reported, never papered over."""
    disk = SimDisk()
    log = filled(disk)
    first = log.rollback(gtid(1, 12))
    fill(log, 3)
    second = log.rollback(gtid(2, 14))
    assert first is not None and second is not None
    log.close()
    path = segment_path(lsn_segment(second.dead_end))
    raw = bytearray(disk.content(path))
    start = lsn_offset(second.dead_end)
    bad = RollbackMark(
        second.number, second.epoch, Epoch(1), Seqno(14), Lsn(first.dead_start + 1), Lsn(first.dead_start + 2),
        second.dead_end, second.last_seqno, 0,
    )  # fmt: skip
    raw[start : start + MARK_BYTES] = encode_mark(bad)
    disk.set_content(path, bytes(raw))
    with pytest.raises(CorruptRecordError, match="crosses"):
        open_log(disk, segment_bytes=1_500)
    assert not verify(PATH, disk=disk).sound
