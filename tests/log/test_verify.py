"""log/upkeep/verify.py: the whole log is checked, every fault is named, and damage does not end the check."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fix_effort import Effort
from fix_log import (
    PATH,
    append_large,
    fill,
    flip,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    record_starts,
    segment_names,
    segment_path,
)
from tranlog.errors import LogCodecError, LogMissingError, LogUnreadableError, SegmentGoneError
from tranlog.log.records.format import encode_header
from tranlog.log.upkeep.verify import VerifyReport, verify
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


@pytest.mark.parametrize("late", [False, True])
def test_what_is_purged_meanwhile_is_not_looked_at(late: bool) -> None:
    """Whether a segment goes before the walk comes to it, or a spill segment after what refers to it was read."""
    disk = SimDisk()
    with open_log(
        disk, segment_bytes=1000, spill_buffer_bytes=500, spill_chunk_bytes=400, spill_segment_bytes=2000
    ) as log:
        for number in range(6):
            fill(log, 6)
            with log.begin() as transaction:
                for part in range(5):
                    transaction.add(make_fragment(f"large {number}", make_payload(part, 300), last=part == 4))
        purged: list[str] = []

        def purge(done: int, total: int) -> None:
            if not purged and (done == total or not late):
                purged.extend(log.purge(below=log.last_seqno))

        report = verify(PATH, disk=disk, progress=purge)
        assert report.sound and len(purged) > 2 and report.spilled == (6 if late else 1)


def test_what_is_removed_in_the_middle_is_an_error() -> None:
    disk = log_of()
    with pytest.raises(SegmentGoneError, match="0000000003"):
        verify(PATH, disk=disk, progress=lambda done, total: disk.unlink(f"{PATH}/thl.data.0000000003"))


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
    assert [one.why for one in report.problems] == ["the records end here, but the log went up to seqno 4"]


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


# --- any single flipped bit ---


def small_log() -> SimDisk:
    """Two segments: no-op, plain and fragmented transactions, no tables and many, ids of no letters; closed."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        append_large(log, "", [b"", b"two"])
        log.append(make_fragment("e", b"x" * 9, tables=(("s", "t"), ("s", "u"))))
        log.append(make_fragment("f", b"", tables=None, shard_id=""))
        log.commit()
        while len(segment_names(disk)) < 2:
            fill(log, 1, size=40)
        append_large(log, "g", [b"1", b"2"])
    return disk


def found_by(report: VerifyReport) -> str | None:
    """Return how a change shows: as a problem or, in the last batch that nothing proves, as a torn tail; None: not."""
    if report.problems:
        return "problem"
    return "tail" if report.tail is not None else None


@pytest.mark.parametrize("number", [1, 2])
def test_every_bit_of_a_segment_in_turn(number: int, effort: Effort) -> None:
    """Each flip is found and named by file and offset. No byte of a segment with checksums is without effect.

    Every byte of the newest one in `make test`, of the closed one in `make soak`.

    What is not a problem but a torn tail is the mark of the clean close: no sync record proves the last sync record.
    """
    disk = small_log()
    forget_positions(disk)
    path = segment_path(number)
    raw = disk.content(path)
    starts = [0, *record_starts(disk, number)]
    newest = number == 2
    assert check(disk).sound and check(disk).tail is None
    step = effort(13, 1 if newest else 11, 1)
    for at in range(0, len(raw), step):
        start = max(one for one in starts if one <= at)
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            disk.set_content(path, bytes(changed))
            report = check(disk)
            if newest and start == starts[-1]:
                assert found_by(report) == "tail" and f"offset {start}" in str(report.tail), (at, bit)
                continue
            assert report.problems, f"byte {at} bit {bit} changes nothing"
            named = [(one.segment, one.offset) for one in report.problems]
            assert (f"thl.data.{number:010d}", start) in named, (at, bit, named)


def test_bits_of_a_large_segment_at_random(effort: Effort) -> None:
    """In `make soak` 10,000 of a segment of some hundred kilobytes, with a payload larger than a window."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 300, size=400)
        log.append(make_fragment("huge", bytes(range(256)) * 1_200))
        fill(log, 30, size=90)
    forget_positions(disk)
    path = segment_path(1)
    raw = disk.content(path)
    starts = record_starts(disk, 1)
    seed = random.randrange(1 << 32)
    print(f"replay: seed={seed}")
    rng = random.Random(seed)
    for _ in range(effort(5, 25, 10_000)):
        at, bit = rng.randrange(16, starts[-1]), rng.randrange(8)
        changed = bytearray(raw)
        changed[at] ^= 1 << bit
        disk.set_content(path, bytes(changed))
        report = check(disk)
        start = max(one for one in starts if one <= at)
        assert ("thl.data.0000000001", start) in [(one.segment, one.offset) for one in report.problems], (at, bit)


def test_a_record_whose_length_is_gone_does_not_hide_the_ones_behind() -> None:
    """Every damage is named, without stopping at the first: the walk finds the next record by its checksum."""
    disk = log_of(20, segment_bytes=100_000)
    path = segment_path(1)
    starts = record_starts(disk, 1)
    raw = bytearray(disk.content(path))
    for start in (starts[6], starts[9], starts[10], starts[14]):
        raw[start : start + 4] = b"\x7f\xff\xff\xff"
    disk.set_content(path, bytes(raw))
    report = check(disk)
    assert [one.offset for one in report.problems] == [starts[6], starts[9], starts[14]]
    assert report.last_seqno == 21


def test_kinds_of_damage_have_names() -> None:
    disk = log_of(60)
    count = len(segment_names(disk))
    disk.set_content(segment_path(5), disk.content(segment_path(4)))  # a duplicate, and behind it a hole
    disk.unlink(segment_path(count - 1))
    kinds = {(one.segment, one.kind.value) for one in check(disk).problems}
    assert ("thl.data.0000000005", "duplicate") in kinds
    assert ("thl.data.0000000006", "hole") in kinds
    assert (f"thl.data.{count - 1:010d}", "missing segment") in kinds


def test_the_stored_index_is_held_against_the_segments() -> None:
    disk = log_of(30)
    path = f"{PATH}/index.table"
    report = check(disk)
    assert report.index == "up to seqno 31" and report.sound
    raw = disk.content(path)
    disk.set_content(path, raw[:-1])
    assert "ignored" in check(disk).index and check(disk).sound, "a cut flush costs a rebuild, nothing else"
    for at in {*range(8), *range(8, len(raw), 7)} - {6, 7}:  # bytes 6 and 7 are zeros that nobody reads
        flip(disk, path, at, 1 << at % 8)
        found = check(disk)
        assert found.sound and "ignored" in found.index, at
        disk.set_content(path, raw)
    disk.unlink(path)
    assert check(disk).index.startswith("none")


def test_an_index_that_leads_elsewhere_is_a_problem() -> None:
    """It holds together and lies: what no checksum of its own can find."""
    disk, other = log_of(200, segment_bytes=4_000), SimDisk()
    with open_log(other, segment_bytes=4_000) as log:
        fill(log, 202, size=97)
    disk.set_content(f"{PATH}/index.table", other.content(f"{PATH}/index.table"))
    report = check(disk)
    assert {one.kind.value for one in report.problems} == {"bad stored index"}
    assert report.index == "wrong"
    assert report.problems[0].segment == "index.table"


def test_progress_goes_on_inside_a_large_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlog.log.upkeep.verify._PROGRESS_BYTES", 300_000)
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 300, size=4_000)
    steps: list[tuple[int, int]] = []
    report = verify(PATH, disk=disk, progress=lambda done, total: steps.append((done, total)))
    assert len(steps) >= 3
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (report.bytes, report.bytes)
