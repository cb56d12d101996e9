"""Repair of a replicator's directory; conformance/tungsten.md B4, B7 (3 to 5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_tungsten import GOLDEN, LOG, golden_segments, make_event, on_disk, open_log, read_places, segments_on, written
from tranlog.errors import LogLockedError, LogMissingError, RepairRefusedError
from tranlog.ids import Epoch, Seqno, segment_name
from tranlog.log.rules.repair import Keep, NothingToRepair, RepairPlan, Span
from tranlog.service.thl import thl
from tranlog.testing.disk import PowerCut, SimDisk
from tranlog.tungsten.upkeep.repairing import repair
from tranlog.tungsten.upkeep.verify import verify
from tranlog.tungsten.writing.directory import TungstenLog


def kept_bytes(disk: SimDisk) -> int:
    names = [name for name in disk.list_dir(f"{LOG}/cut") if name.startswith("thl.data.")]
    return sum(len(disk.content(f"{LOG}/cut/{name}")) for name in names)


def size_of(disk: SimDisk) -> int:
    return sum(map(len, segments_on(disk).values()))


@pytest.mark.parametrize(
    ("case", "keep", "held", "lost"),
    [
        ("fail-bad-crc", Keep.FRONT, (0, 8), 0),
        ("fail-bad-body-last-file", Keep.FRONT, (0, 3), 6),
        ("fail-bad-body-first-file", Keep.FRONT, (0, 3), 56),
        ("fail-bad-body-first-file", Keep.BACK, (9, 59), 9),
        ("fail-unknown-record-type", Keep.FRONT, (0, 3), 0),
        ("fail-zero-length-middle", Keep.FRONT, (0, 26), 33),
        ("fail-zero-length-middle", Keep.BACK, (36, 59), 36),
    ],
)
def test_the_damaged_golden_directories(case: str, keep: Keep, held: tuple[int, int], lost: int) -> None:
    disk = on_disk(golden_segments(case))
    before = segments_on(disk)
    dry = repair(LOG, keep=keep, dry_run=True, disk=disk)
    assert segments_on(disk) == before, "a dry run changes nothing"
    outcome = repair(LOG, keep=keep, disk=disk)
    assert outcome.decision == dry.decision
    assert isinstance(outcome.decision, RepairPlan) and outcome.after is not None and outcome.after.sound
    assert (outcome.after.first_seqno, outcome.after.last_seqno) == held
    assert (outcome.decision.first_seqno, outcome.decision.last_seqno) == held
    assert outcome.decision.lost.seqnos == lost
    assert size_of(disk) + kept_bytes(disk) == sum(map(len, before.values())), "what went is kept"
    assert [seqno for seqno, _ in read_places(disk)] == list(range(held[0], held[1] + 1))
    assert isinstance(repair(LOG, keep=keep, disk=disk).decision, NothingToRepair)
    with open_log(disk) as log:
        log.append(make_event(held[1] + 1))


@pytest.mark.parametrize("case", ["fail-bad-magic", "fail-major-version"])
@pytest.mark.parametrize("keep", Keep)
def test_what_cannot_be_repaired_is_refused_and_left(case: str, keep: Keep) -> None:
    disk = on_disk(golden_segments(case))
    before = segments_on(disk)
    with pytest.raises(RepairRefusedError):
        repair(LOG, keep=keep, disk=disk)
    assert segments_on(disk) == before


def rotated(count: int = 14) -> SimDisk:
    """A log of three events a segment, one of two fragments, and a filtered range."""
    events = []
    seqno = 0
    for number in range(count):
        if number == 4:
            events += [make_event(seqno, 0, last=False), make_event(seqno, 1)]
        elif number == 7:
            events.append(make_event(seqno, end=(seqno + 2, 0)))
            seqno += 2
        else:
            events.append(make_event(seqno))
        seqno += 1
    return written(*events, segment_bytes=400)


def without(number: int) -> Callable[[SimDisk], None]:
    def spoil(disk: SimDisk) -> None:
        disk.unlink(f"{LOG}/{segment_name(number)}")

    return spoil


def torn(number: int) -> Callable[[SimDisk], None]:
    def spoil(disk: SimDisk) -> None:
        path = f"{LOG}/{segment_name(number)}"
        disk.set_content(path, disk.content(path)[:-30])

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [without(2), without(7), torn(1), torn(3)],
    ids=["a missing segment", "the newest is missing", "a torn first one", "a torn middle one"],
)
@pytest.mark.parametrize("keep", Keep)
def test_segments_that_are_missing_or_torn(spoil: Callable[[SimDisk], None], keep: Keep) -> None:
    """B7-3, B7-4."""
    disk = rotated()
    whole = read_places(disk)
    assert len(segments_on(disk)) == 7
    spoil(disk)
    if keep is Keep.BACK and 7 not in segments_on(disk):
        with pytest.raises(RepairRefusedError, match="--keep front"):
            repair(LOG, keep=keep, disk=disk)
        return
    outcome = repair(LOG, keep=keep, disk=disk)
    assert outcome.after is not None and outcome.after.sound and outcome.after.tail is None
    left = read_places(disk)
    assert left and left == (whole[: len(left)] if keep is Keep.FRONT else whole[-len(left) :])


def test_a_wrong_bit_anywhere() -> None:
    """What is left is the beginning, or the end, of what was, and every byte is in the log or in cut/."""
    whole = read_places(rotated())
    sizes = {number: len(raw) for number, raw in segments_on(rotated()).items()}
    for seed in range(60):
        rng = random.Random(seed)
        number = rng.choice(list(sizes))
        at, bit = rng.randrange(16, sizes[number]), 1 << rng.randrange(8)
        for keep in Keep:
            disk = rotated()
            path = f"{LOG}/{segment_name(number)}"
            raw = bytearray(disk.content(path))
            raw[at] ^= bit
            disk.set_content(path, bytes(raw))
            told = f"seed {seed}: segment {number}, offset {at}, bit {bit}, keep {keep}"
            try:
                outcome = repair(LOG, keep=keep, disk=disk)
            except RepairRefusedError:
                assert segments_on(disk)[number] == bytes(raw), told
                continue
            if isinstance(outcome.decision, NothingToRepair):
                assert outcome.before.tail is not None, f"{told}: damage is found, or taken for a torn end"
                continue
            assert outcome.after is not None and outcome.after.sound, told
            left = read_places(disk)
            assert left == (whole[: len(left)] if keep is Keep.FRONT else whole[-len(left) :]), told
            assert size_of(disk) + kept_bytes(disk) == sum(sizes.values()), told


@pytest.mark.parametrize("keep", Keep)
def test_a_repair_cut_off_at_any_call_is_finished_by_another_one(keep: Keep) -> None:
    def damaged() -> SimDisk:
        disk = rotated()
        path = f"{LOG}/{segment_name(3)}"
        raw = bytearray(disk.content(path))
        raw[200] ^= 1
        disk.set_content(path, bytes(raw))
        for number in segments_on(disk):
            file = disk.open(f"{LOG}/{segment_name(number)}", write=True)
            file.sync()
            file.close()
        disk.sync_dir(LOG)
        disk.sync_dir("/")
        return disk

    whole = damaged()
    start = whole.calls
    repair(LOG, keep=keep, disk=whole)
    for cut in range(start + 1, whole.calls + 1):
        disk = damaged()
        disk.cut_at = disk.calls + cut - start
        with pytest.raises(PowerCut):
            repair(LOG, keep=keep, disk=disk)
        after = disk.after_crash(random.Random(cut))
        repair(LOG, keep=keep, disk=after)
        assert verify(LOG, disk=after).sound
        assert segments_on(after) == segments_on(whole), f"cut at call {cut}"


def test_what_is_lost_is_named_with_its_epoch() -> None:
    disk = rotated()
    path = f"{LOG}/{segment_name(1)}"
    raw = bytearray(disk.content(path))
    raw[-1] ^= 1  # of the record that leads on: no transaction is damaged
    disk.set_content(path, bytes(raw))
    decision = repair(LOG, dry_run=True, disk=disk).decision
    assert isinstance(decision, RepairPlan)
    assert decision.lost.unreadable == ()
    (span,) = decision.lost.gtids
    assert span == Span(epoch=Epoch(0), first=Seqno(decision.last_seqno + 1), last=Seqno(15))


def test_who_writes_is_not_disturbed(tmp_path: Path) -> None:
    with TungstenLog.open(str(tmp_path / "thl")) as log:
        log.append(make_event(0))
        log.commit()
        with pytest.raises(LogLockedError):
            repair(str(tmp_path / "thl"))
    with pytest.raises(LogMissingError):
        repair(str(tmp_path))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`thl repair` of a directory that `thl verify` finds damaged."""
    path = tmp_path / "thl"
    path.mkdir()
    for file in (GOLDEN / "fail-bad-body-first-file" / "log").iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    assert thl.main(["-dir", str(path), "repair", "--dry-run"]) == 1
    assert "LOST GTID(0, 5) to GTID(0, 59)" in capsys.readouterr().out
    assert thl.main(["-dir", str(path), "repair", "-y"]) == 0
    told = capsys.readouterr()
    assert "LOST seqno 4, unreadable" in told.out and told.out.endswith("sound = yes\n")
    assert "checksum failure" in told.err
    assert thl.main(["-dir", str(path), "verify"]) == 0


def test_every_hole_is_named_and_mended_at_once() -> None:
    segments = golden_segments("rotated-60")
    del segments[2], segments[5]
    disk = on_disk(segments)
    report = verify(LOG, disk=disk)
    assert [one.segment for one in report.problems] == [segment_name(2), segment_name(5)]
    outcome = repair(LOG, keep=Keep.BACK, disk=disk)
    assert isinstance(outcome.decision, RepairPlan) and outcome.decision.first_seqno == 45
    assert outcome.after is not None and outcome.after.sound
    assert [seqno for seqno, _ in read_places(disk)] == list(range(45, 60))


@pytest.mark.parametrize(
    ("purged", "damage", "unreadable", "unread"),
    [
        ((), slice(0, 1), (), 3152),  # no header, so that nothing tells with which seqno the log began
        ((), slice(16, 20), (), 3152),
        ((), slice(60, 61), (), 346),
        ((1,), slice(60, 61), ((9, 9),), 0),  # the second segment's header tells
        ((1,), slice(16, 20), ((9, 17),), 0),
        ((1,), slice(0, 1), (), 3160),
    ],
)
def test_what_the_front_held_is_told_or_said_to_be_unknown(
    purged: tuple[int, ...], damage: slice, unreadable: tuple[tuple[int, int], ...], unread: int
) -> None:
    segments = {number: raw for number, raw in golden_segments("rotated-60").items() if number not in purged}
    first = bytearray(segments[min(segments)])
    first[damage] = bytes(byte ^ 0xFF for byte in first[damage])
    disk = on_disk(segments | {min(segments): bytes(first)})
    plan = repair(LOG, keep=Keep.BACK, dry_run=True, disk=disk).decision
    assert isinstance(plan, RepairPlan)
    assert (plan.lost.unreadable, plan.lost.unread_bytes) == (unreadable, unread)
