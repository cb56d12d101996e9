"""log/upkeep/diff.py: where two logs first disagree, and what each alone has."""

from __future__ import annotations

import pytest

from fix_log import PATH, append_large, fill, flip, make_fragment, open_log, record_starts, segment_path
from tranlog.errors import CorruptRecordError
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import encode_event
from tranlog.log.upkeep.diff import Disagreement, LogDiff, diff
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def log_of(count: int = 60) -> SimDisk:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        append_large(log, "large", [b"one", b"two"])
        fill(log, count)
    return disk


def copy_of(disk: SimDisk) -> SimDisk:
    """Return a disk that holds a copy of the log, at the same path."""
    made = SimDisk()
    made.make_dir(PATH)
    for name in disk.list_dir(PATH):
        made.open(f"{PATH}/{name}", write=True, create=True)
        made.set_content(f"{PATH}/{name}", disk.content(f"{PATH}/{name}"))
    made.unlink(f"{PATH}/positions")
    return made


def compare(one: SimDisk, other: SimDisk, **given: object) -> LogDiff:
    with (
        LogReader.open(PATH, disk=one, clock=ManualClock()) as left,
        LogReader.open(PATH, disk=other, clock=ManualClock()) as right,
    ):
        return diff(left, right, **given)  # type: ignore[arg-type]


def extend(disk: SimDisk, count: int, *, start: int) -> None:
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, count, start=start)


@pytest.mark.parametrize("full", [False, True])
def test_a_copy_agrees(full: bool) -> None:
    disk = log_of()
    found = compare(disk, copy_of(disk), full=full)
    assert found.agree and found.first is None and found.differing == 0
    assert (found.common_first, found.common_last) == (0, 61)
    assert found.compared == (62 if full else 2)
    assert (found.only_one.count, found.only_other.count) == (0, 0)


@pytest.mark.parametrize("full", [False, True])
def test_one_that_goes_on_agrees_and_says_what_it_alone_has(full: bool) -> None:
    disk = log_of()
    longer = copy_of(disk)
    extend(longer, 50, start=500)
    found = compare(disk, longer, full=full, shown=5)
    assert found.agree
    assert found.only_one.count == 0 and found.only_one.listed == ()
    assert found.only_other.count == 51
    assert [one.gtid for one in found.only_other.listed] == [Gtid(Epoch(2), Seqno(62 + n)) for n in range(5)]
    assert [one.event_id for one in found.only_other.listed][1:] == ["e500", "e501", "e502", "e503"]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 30, 59])
def test_two_histories_are_told_apart_by_epoch(full: bool, cut: int) -> None:
    """Equal numbers, another epoch: the first difference is the no-op of the second writer."""
    one = log_of(cut)
    other = copy_of(one)
    extend(one, 20, start=500)
    extend(other, 1, start=0)
    extend(other, 30, start=700)
    found = compare(one, other, full=full, shown=4)
    at = cut + 2
    assert not found.agree
    assert found.first is not None
    # both writers began epoch 2 with a no-op and went on differently
    assert found.first.seqno == at + 1
    assert found.first.kind is Disagreement.CHECKSUM
    assert (found.first.one.event_id, found.first.other.event_id) == ("e500", "e0")
    assert found.only_one.count == 20
    assert found.only_other.count == 1 + 31
    assert [one.event_id for one in found.only_one.listed] == ["e500", "e501", "e502", "e503"]
    assert found.differing == (20 if full else None)
    if not full:
        assert found.compared <= 12


def test_the_epoch_is_named_where_it_differs() -> None:
    one = log_of(10)
    other = copy_of(one)
    with open_log(other):
        pass
    with open_log(other):
        pass
    extend(one, 5, start=100)
    found = compare(one, other)
    assert found.first is not None
    assert found.first.kind is Disagreement.EPOCH
    assert (found.first.one.gtid, found.first.other.gtid) == (
        Gtid(Epoch(2), Seqno(13)),
        Gtid(Epoch(3), Seqno(13)),
    )


def rewrite(disk: SimDisk, number: int, which: int, payload: bytes, *, checksum: bool = True) -> int:
    """Replace a record of a log by one that differs in its payload, as a hand may; return its seqno."""
    from tranlog.log.files.segment import SegmentReader
    from tranlog.log.records.format import RecordHeader

    path = segment_path(number)
    at = [one for one in record_starts(disk, number)][which]
    header = SegmentReader(disk.open(path), number).read(at, verify=True)
    assert isinstance(header, RecordHeader) and header.data_length == len(payload)
    head, tail = encode_event(
        seqno=header.seqno,
        fragno=header.fragno,
        last_frag=header.last_frag,
        epoch=header.epoch,
        source_id=header.source_id,
        event_id=header.event_id,
        shard_id=header.shard_id,
        tstamp=header.tstamp,
        tables=header.tables,
        payload=payload,
        checksum=checksum,
    )
    raw = bytearray(disk.content(path))
    fresh = head + payload + tail
    assert len(fresh) == header.record_length
    raw[at : at + len(fresh)] = fresh
    disk.set_content(path, bytes(raw))
    return header.seqno


def test_one_that_was_changed_in_the_middle_is_found_by_full_only() -> None:
    """The search presumes a common prefix, and says so; `full` presumes nothing."""
    disk = log_of()
    changed = copy_of(disk)
    seqno = rewrite(changed, 4, 3, b"y" * 100)
    assert compare(disk, changed).agree, "what the search presumes was not so"
    found = compare(disk, changed, full=True)
    assert found.first is not None
    assert (found.first.seqno, found.first.kind, found.differing) == (seqno, Disagreement.CHECKSUM, 1)
    assert [one.gtid.seqno for one in found.only_one.listed] == [seqno]
    assert found.only_one.count == found.only_other.count == 1


def test_content_is_compared_where_there_are_no_checksums() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, checksum=False) as log:
        fill(log, 20)
    changed = copy_of(disk)
    newest = len([name for name in disk.list_dir(PATH) if name.startswith("thl.data.")])
    assert newest > 2
    seqno = rewrite(changed, 1, 4, b"z" * 100, checksum=False)
    assert compare(disk, copy_of(disk), full=True).agree
    found = compare(disk, changed, full=True)
    assert found.first is not None
    assert (found.first.seqno, found.first.kind) == (seqno, Disagreement.CONTENT)


def test_padding_is_no_difference() -> None:
    """A place that was reserved larger than it was filled (log/writing/allocation.py) changes the checksum alone."""
    one, other = SimDisk(), SimDisk()
    for disk, padded in ((one, False), (other, True)):
        with open_log(disk) as log:
            fill(log, 1)
            log.append(make_fragment("padded", b"same"))
            log.commit()
        if padded:
            at = record_starts(disk, 1)[-2]
            head, tail = encode_event(
                seqno=2,
                fragno=0,
                last_frag=True,
                epoch=1,
                source_id="db1",
                event_id="padded",
                shard_id="shop",
                tstamp=1_700_000_000_000,
                tables=(("shop", "orders"),),
                payload=b"same",
                checksum=True,
                padding=9,
            )
            disk.set_content(segment_path(1), disk.content(segment_path(1))[:at] + head + b"same" + tail)
            disk.unlink(f"{PATH}/positions")
    for full in (False, True):
        assert compare(one, other, full=full).agree


@pytest.mark.parametrize("full", [False, True])
def test_tables_that_one_header_leaves_out_are_no_difference(full: bool) -> None:
    """A conversion lists what the header of a load's rows does not; two lists that differ do differ."""
    disks = {}
    for tables in (None, (("shop", "orders"),), (("shop", "items"),)):
        disks[tables] = disk = SimDisk()
        with open_log(disk, segment_bytes=1_000) as log:
            log.append(make_fragment("e", tables=tables))
            log.commit()
    bare, orders, items = disks.values()
    assert compare(bare, orders, full=full).agree and compare(items, bare, full=full).agree
    told = compare(orders, items, full=full).first
    assert told is not None and (told.seqno, told.kind) == (1, Disagreement.CHECKSUM)


def test_logs_without_a_common_seqno_cannot_agree() -> None:
    disk = log_of()
    back = copy_of(disk)
    for number in range(1, 4):
        back.unlink(segment_path(number))
    purged = compare(disk, back)
    assert purged.agree and purged.common_first == purged.other.first_seqno > 0
    assert purged.only_one.count == 0, "what was purged there is nobody's own"
    front = copy_of(disk)
    for number in range(4, 40):
        if front.exists(segment_path(number)):
            front.unlink(segment_path(number))
    apart = compare(front, back)
    assert not apart.agree and apart.first is None
    assert (apart.common_first, apart.common_last) == (NO_SEQNO, NO_SEQNO)


def test_damage_is_an_error_and_no_difference() -> None:
    disk = log_of()
    bad = copy_of(disk)
    flip(bad, segment_path(3), record_starts(bad, 3)[3] + 80)
    with pytest.raises(CorruptRecordError):
        compare(disk, bad, full=True)


def test_a_large_log_is_searched_and_not_read() -> None:
    """A few looks for any size; nothing between them is decoded."""
    one = SimDisk()
    with open_log(one, segment_bytes=20_000) as log:
        fill(log, 3_000, size=20)
    other = copy_of(one)
    extend(one, 1_000, start=10_000)
    extend(other, 1_000, start=20_000)
    found = compare(one, other)
    assert found.first is not None and found.first.seqno == 3_002
    assert found.compared < 20
    assert found.only_one.count == found.only_other.count == 1_000
    assert len(found.only_one.listed) == 20
