"""A repair that is cut off at any call of the disk is finished by the next one, and loses nothing that was not told.

A crash at every call with torn and reordered unsynced writes.
"""

from __future__ import annotations

import contextlib
import json
import random

import pytest

from fix_effort import Effort
from fix_log import PATH, append_large, contents, fill, open_log, open_reader, segment_path
from tranlog.errors import LogError
from tranlog.log.records.spill import spill_name
from tranlog.log.rules.repair import Keep, RepairPlan
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

Content = list[tuple[int, str, bytes]]


def damaged_log(kind: str) -> tuple[SimDisk, Content]:
    """Return a log of six segments and three epochs with one damage of its kind, and what it held before."""
    disk = SimDisk()
    for turn in range(3):
        with open_log(disk, segment_bytes=1_000, spill_above=1_000, spill_chunk_bytes=300) as log:
            append_large(log, f"large{turn}", [b"one", b"two"] if kind != "spill" else [b"one" * 150, b"two" * 150])
            fill(log, 8, start=100 * turn)
    with open_reader(disk) as reader:
        before = contents(reader)
    raw = bytearray(disk.content(segment_path(3)))
    match kind:
        case "record":
            raw[len(raw) // 2] ^= 8
        case "header":
            raw[13] ^= 8
        case "rotate":
            del raw[-9:]
        case "sync":
            raw[30] ^= 8
        case "spill":
            spilled = bytearray(disk.content(f"{PATH}/{spill_name(2)}"))
            spilled[200] ^= 8
            disk.set_content(f"{PATH}/{spill_name(2)}", bytes(spilled))
    disk.set_content(segment_path(3), bytes(raw))
    if kind == "missing":
        disk.unlink(segment_path(3))
        disk.sync_dir(PATH)
    return disk, before


def mend(disk: SimDisk, keep: Keep) -> None:
    repair(PATH, keep=keep, disk=disk, clock=ManualClock())


def told_lost(disk: SimDisk) -> set[int]:
    """Return what the reports in cut/ say was lost; a report that was cut off itself lost nothing."""
    found: set[int] = set()
    if not disk.exists(f"{PATH}/cut"):
        return found
    for name in disk.list_dir(f"{PATH}/cut"):
        if name.startswith("repair-"):
            with contextlib.suppress(ValueError):
                lost = json.loads(disk.content(f"{PATH}/cut/{name}"))["plan"]["lost"]
                for span in lost["gtids"]:
                    found |= set(range(span["first"], span["last"] + 1))
                for first, last in lost["unreadable"]:
                    found |= set(range(first, last + 1))
    return found


def kept_bytes(disk: SimDisk) -> bytes:
    folder = f"{PATH}/cut"
    return b"".join(disk.content(f"{folder}/{name}") for name in disk.list_dir(folder) if name.startswith("thl"))


def run_once(kind: str, keep: Keep, cut: int, fate: int) -> bool:
    """Cut a repair at its call `cut`, sometimes the one after it too, then finish it; whether it was cut at all."""
    disk, before = damaged_log(kind)
    epoch = 3
    disk.cut_at = disk.calls + cut
    finished = False
    try:
        mend(disk, keep)
        finished = True
    except PowerCut:
        pass
    rng = random.Random(cut * 7919 + fate)
    for _ in range(1 + rng.randrange(2)):
        disk = disk.after_crash(rng)
        if rng.random() < 0.5:
            disk.cut_at = disk.calls + rng.randrange(1, 30)
            with contextlib.suppress(PowerCut):
                mend(disk, keep)
    disk = disk.after_crash(rng)
    if rng.random() < 0.3:  # somebody may try to write before the repair is finished
        with contextlib.suppress(LogError):
            log = open_log(disk)
            epoch = log.epoch
            log.close()
    outcome = repair(PATH, keep=keep, disk=disk, clock=ManualClock())
    report = verify(PATH, disk=disk)
    assert report.sound, report.problems
    if isinstance(outcome.decision, RepairPlan):
        assert outcome.after is not None and outcome.after.sound
    with open_reader(disk) as reader:
        after = [one for one in contents(reader) if one[1]]
    there = {one[0] for one in after}
    assert set(after) <= set(before)
    missing = {one[0] for one in before} - there
    damaged = kind in ("record", "missing", "spill")
    assert missing <= told_lost(disk), "lost what no report names"
    if not damaged:
        assert not missing
    elif kind == "spill" and keep is Keep.FRONT:
        kept = kept_bytes(disk)
        assert missing
        for seqno, event_id, payload in before:
            parts = [payload[:450], payload[450:]] if event_id.startswith("large") else [payload]
            assert seqno not in missing or event_id == "large1" or all(part in kept for part in parts)
    elif kind == "record":
        kept = kept_bytes(disk)
        for seqno, _, payload in before:
            if seqno in missing and not payload.startswith(b"one"):
                assert payload in kept or seqno == min(missing) or keep is Keep.BACK
    with open_log(disk) as log:
        assert log.epoch > epoch - (0 if keep is Keep.FRONT else 3), "an epoch is given out twice"
        assert log.epoch > 3
    assert verify(PATH, disk=disk).sound
    return not finished


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "keep"),
    [
        ("record", Keep.FRONT),
        ("record", Keep.BACK),
        ("missing", Keep.FRONT),
        ("missing", Keep.BACK),
        ("header", Keep.FRONT),
        ("rotate", Keep.FRONT),
        ("sync", Keep.FRONT),
        ("spill", Keep.FRONT),
        ("spill", Keep.BACK),
    ],
)
def test_a_repair_that_is_cut_off_anywhere_is_finished_by_the_next(kind: str, keep: Keep, effort: Effort) -> None:
    disk, _ = damaged_log(kind)
    before = disk.calls
    mend(disk, keep)
    calls = disk.calls - before
    assert calls > 8
    for cut in range(1, calls + 1, effort(8, 1, 1)):
        for fate in range(effort(1, 1, 12)):
            try:
                assert run_once(kind, keep, cut, fate)
            except BaseException:
                print(f"replay: run_once({kind!r}, {keep!r}, {cut}, {fate})")
                raise
