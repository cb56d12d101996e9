"""The four ends of a log and damage, as opening for writing finds them: log-format.md, "Ends of a log"."""

from __future__ import annotations

import contextlib
import random

import pytest

from fix_log import (
    PATH,
    after_kill,
    after_restart,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    read_all,
    segment_names,
    segment_path,
)
from tranlog.errors import (
    CorruptRecordError,
)
from tranlog.ids import Gtid, Seqno
from tranlog.log.options import zeros_ahead
from tranlog.log.records.format import FIRST_SYNC_BYTES, SYNC_BYTES, SYNC_START
from tranlog.log.rules.damage import Damage
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.lsn import lsn
from tranlog.testing.disk import PowerCut, SimDisk


def crashed(*, synced: int = 3, unsynced: int = 3) -> tuple[SimDisk, list[int]]:
    """Return a log that was killed, and where each of its event records begins. Seqno 0 is the no-op."""
    disk = SimDisk()
    log = open_log(disk)
    for number in range(synced):
        log.append(make_fragment(f"e{number}"))
    log.commit()
    for number in range(synced, synced + unsynced):
        log.append(make_fragment(f"e{number}"))
        log.commit(sync=False)
    with log.cursor() as cursor:
        starts = [one.header.lsn & 0xFFFFFFFF for one in read_all(cursor)]
    return after_restart(disk), starts


def without_positions(disk: SimDisk) -> SimDisk:
    """Return the disk of a log of which nothing but its segments says how far it went."""
    forget_positions(disk)
    return after_kill(disk)


def test_torn_tail_is_cut_kept_and_named() -> None:
    disk, starts = crashed()
    path = segment_path(1)
    raw = disk.content(path)
    for cut in range(starts[-1] + 4, len(raw)):  # the first bytes of a length are zeros: a clean end
        disk.set_content(path, raw[:cut])
        with open_log(without_positions(disk)) as log:
            report = log.recovered
            assert (report.cut, report.cut_bytes) == (lsn(1, starts[-1]), cut - starts[-1])
            assert report.kept_in is not None
            assert disk.content(report.kept_in) == raw[starts[-1] : cut]
            assert f"thl.data.0000000001-{starts[-1]:010d}" in report.kept_in
            assert "the file ends inside the record" in str(report.why)
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "e3", "e4"]


def test_every_flipped_bit_in_the_unproven_tail_is_a_torn_tail() -> None:
    disk, starts = crashed()
    path = segment_path(1)
    raw = disk.content(path)
    for at in range(starts[-2], len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 8
        disk.set_content(path, bytes(changed))
        bad = starts[-2] if at < starts[-1] else starts[-1]
        with open_log(without_positions(disk)) as log:
            assert log.recovered.cut == lsn(1, bad)
            assert log.last_seqno == (5 if bad == starts[-2] else 6)


def test_every_flipped_bit_below_a_sync_record_is_corruption() -> None:
    """Refused, naming file, offset and seqno; no byte changed."""
    disk, starts = crashed()
    path = segment_path(1)
    raw = disk.content(path)
    proven = starts[4] - SYNC_BYTES
    for at in range(16, proven):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 8
        disk.set_content(path, bytes(changed))
        before = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
        with pytest.raises(CorruptRecordError) as caught:
            open_log(without_positions(disk))
        error = caught.value
        begins = [16, starts[0] - FIRST_SYNC_BYTES, starts[1] - SYNC_BYTES, *starts, *[starts[1] - SYNC_BYTES]]
        assert error.segment == "thl.data.0000000001"
        assert error.offset == max(start for start in begins if start <= at)
        assert {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)} == before
        assert not disk.exists(f"{PATH}/cut")
    disk.set_content(path, raw)
    open_log(without_positions(disk)).close()


def test_damage_after_a_clean_close_is_corruption() -> None:
    """The clean close proves the last batch too. D: testOpenWithChecksumFailure, testOpenWithBadChecksumType."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
    raw = disk.content(segment_path(1))
    for at in (-SYNC_BYTES - 1, -SYNC_BYTES - 5, -SYNC_BYTES - 20):
        flip(disk, segment_path(1), len(raw) + at)
        with pytest.raises(CorruptRecordError, match="checksum"):
            open_log(disk)
        with open_reader(disk, checksum=False) as reader:
            assert len(read_all(reader.cursor())) == 4
        disk.set_content(segment_path(1), raw)
    open_log(disk).close()


def test_damage_to_the_mark_of_the_close_costs_nothing() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
    flip(disk, segment_path(1), len(disk.content(segment_path(1))) - 1)
    with open_log(disk) as log:
        assert not log.recovered.clean
        assert len(contents(log)) == 3


def test_zeros_in_the_middle_of_the_tail_are_torn_and_behind_it_clean() -> None:
    disk, starts = crashed()
    raw = disk.content(segment_path(1))
    disk.set_content(segment_path(1), raw + bytes(3_000))
    with open_log(without_positions(disk)) as log:
        assert (log.recovered.cut, log.last_seqno) == (None, 7), "zeros behind the end are nothing"
    disk.set_content(segment_path(1), raw[: starts[-2]] + bytes(starts[-1] - starts[-2]) + raw[starts[-1] :])
    with open_log(without_positions(disk)) as log:
        assert log.recovered.cut == lsn(1, starts[-2])
        assert "zeros where a record should be" in str(log.recovered.why)


def test_a_tail_whose_end_was_lost_is_not_taken_for_a_record_without_checksum() -> None:
    """Zeros in place of crc_method and crc read "method 00"; one epoch has one method."""
    for lost in range(5, 30):
        disk, _ = crashed()
        raw = disk.content(segment_path(1))
        disk.set_content(segment_path(1), raw[:-lost] + bytes(lost))
        with open_log(without_positions(disk)) as log:
            assert log.last_seqno == 6, lost
            assert log.recovered.cut is not None


def test_an_open_transaction_is_cut_at_open() -> None:
    """D: testSimpleFragmentCleanup, testComplexFragmentCleanup."""
    disk = SimDisk()
    log = open_log(disk, buffer_bytes=1)
    fill(log, 2)
    log.append(make_fragment("open", b"1", last=False))
    log.append(make_fragment("open", b"2", last=False))
    del log
    with open_reader(after_kill(disk)) as reader:
        assert [one[1] for one in contents(reader)] == ["e0", "e1"]
    with open_log(disk) as log:
        assert "open transaction: 2 fragments of seqno 3" in str(log.recovered.why)
        assert log.recovered.kept_in is not None
        assert log.last_seqno == 3
        fill(log, 1, start=2)
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]


def test_what_is_cut_twice_at_one_place_is_kept_twice() -> None:
    disk, starts = crashed()
    torn = disk.content(segment_path(1))[:-3]
    for number in range(1, 4):
        disk.set_content(segment_path(1), torn)
        with open_log(without_positions(disk)) as log:
            kept_in = str(log.recovered.kept_in)
        assert kept_in.endswith(f"-{starts[-1]:010d}" + ("" if number == 1 else f".{number}"))
    assert len(disk.list_dir(f"{PATH}/cut")) == 3


def many_segments() -> SimDisk:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 30)
    assert len(segment_names(disk)) > 4
    return disk


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda disk: disk.unlink(segment_path(3)), "the segment is missing"),
        (lambda disk: disk.set_content(segment_path(3), b""), "cut short or zeros"),
        (lambda disk: flip(disk, segment_path(3), 1), "magic number"),
        (lambda disk: flip(disk, segment_path(3), 15), "prev_seqno"),
        (lambda disk: disk.set_content(segment_path(3), disk.content(segment_path(3))[:-1]), "inside the record"),
        (lambda disk: flip(disk, segment_path(5), 1), "magic number"),
    ],
    ids=["missing", "empty", "magic", "prev_seqno", "rotate record", "newest's magic"],
)
def test_damage_to_the_row_of_segments_is_refused(damage: object, why: str) -> None:
    """B7-4: a missing middle file was not noticed. D: testZeroLengthMiddleFile."""
    disk = many_segments()
    damage(disk)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=why):
            open_log(disk)


def test_rotate_records_that_point_backwards_are_refused() -> None:
    """B7-12: they looped a reader for ever."""
    from tranlog.log.records.format import encode_rotate

    disk = many_segments()
    raw = disk.content(segment_path(2))
    disk.set_content(segment_path(2), raw[:-30] + encode_rotate("thl.data.0000000001"))
    with pytest.raises(CorruptRecordError, match=r"leads to thl\.data\.0000000001"):
        open_log(disk)
    with open_reader(disk) as reader, pytest.raises(CorruptRecordError, match="leads to"):
        read_all(reader.cursor())


def test_a_newest_segment_with_no_more_than_a_rotate_record_gives_no_seqno() -> None:
    """B7-5: a last file holding only header and rotate record gave a phantom seqno and a gap."""
    from tranlog.log.records.format import encode_rotate

    disk = many_segments()
    newest = segment_names(disk)[-1]
    number = int(newest[-10:])
    path = segment_path(number)
    header = disk.content(path)[:16]
    last = open_reader(disk).header(Seqno(int.from_bytes(header[8:], "big")))
    assert last is not None
    disk.set_content(path, header + encode_rotate(f"thl.data.{number + 1:010d}"))
    forget_positions(disk)
    with open_log(disk, segment_bytes=1_000) as log:
        assert log.last_seqno == last.seqno + 1
        seqnos = [one.header.seqno for one in read_all(log.cursor())]
        assert seqnos == list(range(last.seqno + 2))


def test_purged_by_hand_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = many_segments()
    disk.unlink(segment_path(1))
    disk.unlink(segment_path(2))
    with open_log(disk) as log:
        assert log.recovered.purged_by_hand
        assert "Segments were removed by hand" in caplog.text
        assert log.first_seqno > 0
        assert read_all(log.cursor())[0].header.seqno == log.first_seqno
    with open_log(disk) as log:
        assert not log.recovered.purged_by_hand


@pytest.mark.parametrize("again", [False, True], ids=["the same boot", "another boot"])
def test_a_log_that_ends_before_what_was_synced_is_refused(again: bool) -> None:
    """B7-3: a missing newest segment was passed over in silence. A copy is not held against what it was copied from."""
    disk = many_segments()
    disk.unlink(f"{PATH}/{segment_names(disk)[-1]}")
    if again:
        disk.restart()
    with pytest.raises(CorruptRecordError, match="the records end here, but the log went up to seqno 30"):
        open_log(disk)
    assert [one.kind for one in verify(PATH, disk=disk).problems] == [Damage.END]
    disk.copy_files(PATH, "/other")
    assert verify("/other", disk=disk).sound
    assert repair(PATH, disk=disk).after.sound  # type: ignore[union-attr]
    with open_log(disk) as log:
        assert log.epoch == 3, "no GTID is given out twice"


def test_what_was_rolled_back_or_cut_by_a_later_epoch_is_not_missed() -> None:
    """The positions file of an earlier epoch is what a crash behind a rollback leaves."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 10)
    old = disk.content(f"{PATH}/positions")
    log.rollback(Gtid(log.epoch, Seqno(5)))
    disk.set_content(f"{PATH}/positions", old)
    assert verify(PATH, disk=disk).sound
    with open_log(after_restart(disk)) as log:
        assert log.last_seqno == 7


def test_a_reopening_that_is_cut_off_proves_nothing_it_has_not_synced() -> None:
    """A killed writer left unsynced records. Its successor's first sync record claims them: only after a sync."""
    for cut in range(1, 14):
        for seed in range(12):
            disk = SimDisk()
            log = open_log(disk)
            fill(log, 2)
            for number in range(2, 6):
                log.append(make_fragment(f"e{number}", bytes(700)))
            log.commit(sync=False)
            disk.kill()
            disk.cut_at = disk.calls + cut
            with contextlib.suppress(PowerCut):
                open_log(disk)
            with open_log(disk.after_crash(random.Random(seed))) as log:
                assert [one[1] for one in contents(log)][:2] == ["e0", "e1"], f"cut {cut}, seed {seed}"


# --- zeros ahead -----------------------------------------------------------------------------------------


def test_zeros_are_written_ahead_of_all_but_large_commits() -> None:
    """performance.md, "Pre-zeroed segments"."""
    assert zeros_ahead(1000, size=50, end=300, reached=0) == 1000
    assert zeros_ahead(1000, size=1000, end=1300, reached=0) == 16_000, "room for 16 more like it"
    assert zeros_ahead(1000, size=250, end=300, reached=300) == 0, "the file is long enough"
    assert zeros_ahead(1000, size=1001, end=1301, reached=0) == 0, "it pays for its length itself"
    assert zeros_ahead(0, size=1, end=300, reached=0) == 0
    assert zeros_ahead(1000, size=1, end=(1 << 32) - 999, reached=0) == 0, "past what a segment can hold"


def test_zeros_ahead_are_a_clean_end_and_gone_after_a_clean_close() -> None:
    """log-format.md, "clean end": truncated on rotate and on close; a reader and a recovery take them for the end."""
    disk = SimDisk()
    log = open_log(disk, ahead_bytes=5_000, segment_bytes=3_000)
    fill(log, 3)
    log.commit()
    raw = disk.content(segment_path(1))
    written = len(raw.rstrip(b"\0"))
    assert len(raw) >= 5_000 > written
    assert [one.bytes for one in log.segments()] == [written], "sizes count written bytes"
    with open_reader(disk) as reader:
        assert [one.bytes for one in reader.index()] == [written]
        assert reader.range().last_seqno == 3
    forget_positions(disk)  # as in a copy
    with open_reader(disk) as reader:
        found = reader.range()
        assert (found.scanned, found.last_seqno) == (True, 3)
        fill(log, 2, start=3)
        log.commit()
        assert len(disk.content(segment_path(1))) == len(raw), "the file is as long as it was"
        forget_positions(disk)
        assert reader.range().last_seqno == 5, "and has grown all the same"
    crashed = open_log(disk.after_crash(random.Random(1)), ahead_bytes=5_000)
    assert crashed.recovered.cut is None and crashed.last_seqno == 6
    crashed.close()
    fill(log, 30)  # past the end of the segment
    log.commit()
    assert len(disk.content(segment_path(1)).rstrip(b"\0")) >= len(disk.content(segment_path(1))) - 4, "true length"
    log.close()
    newest = disk.content(segment_path(len(log.segments())))
    assert newest[-SYNC_BYTES:].startswith(SYNC_START), "nothing stands behind the last sync record"


def test_a_commit_that_was_written_in_pieces_is_large() -> None:
    """performance.md, "Zeros ahead": what counts is what its sync covers, not what its last write holds."""
    disk = SimDisk()
    log = open_log(disk, ahead_bytes=20_000, buffer_bytes=1_000)
    for number in range(120):
        log.append(make_fragment(f"e{number}", b"p" * 100))
    log.commit()
    assert disk.content(segment_path(1))[-5:] != bytes(5), "no zeros"
    fill(log, 1, start=120)
    assert disk.content(segment_path(1))[-20_000:] == bytes(20_000)
    log.close()


def test_a_disk_without_room_for_zeros_takes_the_records() -> None:
    """ENOSPC while writing ahead: the file grows with its records."""
    disk = SimDisk()
    log = open_log(disk, ahead_bytes=100_000)
    disk.room = 2_000
    fill(log, 3)
    log.commit()
    assert log.durable_seqno == 3
    fill(log, 3, start=3)
    log.commit()
    assert log.durable_seqno == 6
    log.close()
    log = open_log(disk)
    assert log.recovered.clean
    log.close()
