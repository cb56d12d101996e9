"""log/verify.py: the whole log is checked, every fault is named, and damage does not end the check."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fix_log import (
    PATH,
    append_large,
    fill,
    flip,
    forget_positions,
    make_fragment,
    open_log,
    record_starts,
    segment_names,
    segment_path,
)
from tranlog.errors import LogCodecError, LogMissingError, LogUnreadableError
from tranlog.log.format import encode_header
from tranlog.log.verify import VerifyReport, verify
from tranlog.testing.disk import SimDisk


def log_of(count: int = 40, *, segment_bytes: int = 1_000) -> SimDisk:
    disk = SimDisk()
    with open_log(disk, segment_bytes=segment_bytes) as log:
        append_large(log, "large", [b"one", b"two", b"three"])
        fill(log, count)
    return disk


def check(disk: SimDisk, *, checksum: bool = True) -> VerifyReport:
    return verify(PATH, disk=disk, checksum=checksum)


def places(report: VerifyReport) -> list[tuple[str, int, int | None]]:
    return [(one.segment, one.offset, one.seqno) for one in report.problems]


def test_a_sound_log_is_counted() -> None:
    disk = log_of(40)
    before = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
    steps: list[tuple[int, int]] = []
    report = verify(PATH, disk=disk, progress=lambda done, total: steps.append((done, total)))
    assert report.sound and report.tail is None and report.problems == ()
    assert (report.first_seqno, report.last_seqno) == (0, 41)
    assert (report.transactions, report.fragments) == (42, 44)
    assert report.segments == len(before)
    assert report.bytes == sum(map(len, before.values()))
    assert report.records == sum(len(record_starts(disk, number + 1)) for number in range(len(before)))
    assert (report.unchecked, report.checksums_used) == (0, True)
    assert len(steps) == len(before)
    assert steps[-1] == (report.bytes, report.bytes)
    assert {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)} == before


def test_a_log_that_is_written_to_is_sound() -> None:
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log:
        fill(log, 3)
        log.append(make_fragment("open", last=False))
        report = check(disk)
        assert report.sound
        assert report.last_seqno == 3
        assert "open transaction" in str(report.tail)


def test_every_flipped_bit_is_one_problem_and_the_rest_is_checked() -> None:
    disk = log_of(20, segment_bytes=100_000)
    path = segment_path(1)
    raw = disk.content(path)
    starts = record_starts(disk, 1)
    for at in range(16, len(raw), 7):
        flip(disk, path, at, 1 << at % 8)
        report = check(disk)
        disk.set_content(path, raw)
        start = max(start for start in starts if start <= at)
        if start == starts[-1]:
            assert report.sound and "torn tail" in str(report.tail), "the mark of the close proves itself to nobody"
            continue
        assert not report.sound
        assert (report.problems[0].segment, report.problems[0].offset) == ("thl.data.0000000001", start), at
        if at - start not in range(0, 9):  # its length can be believed
            assert report.last_seqno == (20 if start == starts[-2] else 21), f"byte {at}"
            assert report.fragments in (23, 24)


def test_damage_in_several_places_is_named_one_by_one() -> None:
    disk = log_of(60)
    bad = []
    for number in (1, 3, 4):
        starts = record_starts(disk, number)
        start = next(one for one, following in pairwise(starts[2:]) if following - one > 60)
        flip(disk, segment_path(number), start + 30)
        bad.append((f"thl.data.{number:010d}", start))
    report = check(disk)
    assert [(one.segment, one.offset) for one in report.problems] == bad
    assert all(one.why == "its checksum does not match its bytes" for one in report.problems)
    assert report.last_seqno == 61
    assert report.fragments == 64 - 3


def test_damage_is_found_by_checksums_only_where_they_are_used() -> None:
    disk = log_of()
    flip(disk, segment_path(2), record_starts(disk, 2)[2] + 70)
    report = check(disk, checksum=False)
    assert report.sound
    assert not report.checksums_used
    assert not check(disk).sound


def test_it_says_how_much_carries_no_checksum() -> None:
    """log-format.md: without them only sync and rotate records prove anything, and `verify` says so."""
    disk = log_of(10)
    with open_log(disk, checksum=False) as log:
        fill(log, 5)
    assert check(disk).unchecked == 6
    assert check(disk).sound


@pytest.mark.parametrize(
    ("damage", "segment", "why"),
    [
        (lambda disk: disk.unlink(segment_path(3)), 3, "the segment is missing, later ones are there"),
        (lambda disk: flip(disk, segment_path(3), 1), 3, "magic number"),
        (lambda disk: flip(disk, segment_path(3), 15), 3, "prev_seqno"),
        (lambda disk: disk.set_content(segment_path(3), b""), 3, "cut short or zeros"),
        (lambda disk: disk.set_content(segment_path(3), disk.content(segment_path(3))[:-30]), 3, "without a rotate"),
        (lambda disk: disk.set_content(segment_path(3), disk.content(segment_path(3))[:-35]), 3, "inside the record"),
    ],
    ids=["missing", "magic", "prev_seqno", "empty", "no rotate", "short"],
)
def test_damage_to_the_row_is_named_and_the_rest_is_checked(damage: object, segment: int, why: str) -> None:
    """B7-4: a missing middle file was not noticed by anything."""
    disk = log_of(60)
    damage(disk)  # type: ignore[operator]
    report = check(disk)
    assert not report.sound
    assert report.problems[0].segment == f"thl.data.{segment:010d}"
    assert any(why in one.why for one in report.problems)
    assert report.last_seqno == 61


def test_a_torn_tail_is_no_problem_and_is_named() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    log.append(make_fragment("torn"))
    log.commit(sync=False)
    forget_positions(disk)
    disk.set_content(segment_path(1), disk.content(segment_path(1))[:-3])
    report = check(disk)
    assert report.sound
    assert report.last_seqno == 3
    assert str(report.tail).startswith("torn tail at thl.data.0000000001, offset ")


def test_what_was_visible_in_this_boot_is_no_torn_tail() -> None:
    """B7-3: the positions file knows that there was more."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    log.append(make_fragment("torn"))
    log.commit(sync=False)
    raw = disk.content(segment_path(1))
    disk.set_content(segment_path(1), raw[:-3])
    assert places(check(disk))[0][:1] == ("thl.data.0000000001",)
    disk.set_content(segment_path(1), raw[: record_starts(disk, 1)[-1]])
    report = check(disk)
    assert [one.why for one in report.problems] == ["the records end here, but seqno 4 was visible"]


def test_a_rotation_that_was_cut_short_is_no_problem() -> None:
    disk = log_of(20)
    forget_positions(disk)
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 5)
    number = len(segment_names(disk))
    assert len(record_starts(disk, number)) > 2
    disk.open(segment_path(number + 1), write=True, create=True)
    report = check(disk)
    assert [one.why for one in report.problems] == ["the segment ends without a rotate record"]
    disk.unlink(segment_path(number + 1))
    assert check(disk).sound


def test_no_log_is_an_error() -> None:
    disk = SimDisk()
    with pytest.raises(LogMissingError):
        check(disk)
    disk.make_dir(PATH)
    with pytest.raises(LogMissingError, match="no segment"):
        check(disk)
    record = (60).to_bytes(4, "big") + b"\x01" + (0).to_bytes(8, "big") + bytes(47)
    disk.open(segment_path(1), write=True, create=True).pwrite(encode_header(-1) + record, 0)
    with pytest.raises(LogCodecError):
        check(disk)
    disk.broken.add(segment_path(1))
    with pytest.raises(LogUnreadableError, match="Input/output"):
        check(disk)
