"""log/rules/repair.py, log/upkeep/repairing.py: what a repair writes again, cuts off, keeps and says was lost.

"Repair is a separate explicit command."
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from fix_effort import Effort
from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    record_starts,
    segment_names,
    segment_path,
)
from tranlog.errors import (
    CorruptRecordError,
    DiskFullError,
    LogCodecError,
    LogLockedError,
    LogMissingError,
    LogVersionError,
    RepairRefusedError,
)
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.records.format import FIRST_SYNC_BYTES
from tranlog.log.rules.damage import LogFindings, SegmentFindings
from tranlog.log.rules.repair import CutOff, Keep, NothingToRepair, Remove, RepairPlan, Rewrite, Span, plan
from tranlog.log.upkeep.repairing import RepairOutcome, repair
from tranlog.log.upkeep.verify import examine, verify
from tranlog.log.writing.log import drop_hold, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

Content = list[tuple[int, str, bytes]]


def log_of(count: int = 40, *, segment_bytes: int = 1_000, opens: int = 2) -> SimDisk:
    """A log of several epochs and segments, with one fragmented transaction, closed."""
    disk = SimDisk()
    for turn in range(opens):
        with open_log(disk, segment_bytes=segment_bytes) as log:
            append_large(log, f"large{turn}", [b"one", b"two", b"three"])
            fill(log, count // opens, start=1000 * turn)
    return disk


def content_of(disk: SimDisk) -> Content:
    with open_reader(disk) as reader:
        return contents(reader)


def mend(disk: SimDisk, *, keep: Keep = Keep.FRONT, dry_run: bool = False) -> RepairOutcome:
    return repair(PATH, keep=keep, dry_run=dry_run, disk=disk, clock=ManualClock())


def planned(outcome: RepairOutcome) -> RepairPlan:
    assert isinstance(outcome.decision, RepairPlan)
    return outcome.decision


def event_start(disk: SimDisk, number: int, which: int = 2) -> int:
    """Return where an event of a segment begins; `which` of its records, counted from the first long one."""
    starts = record_starts(disk, number)
    return [one for one, following in pairwise(starts) if following - one > 60][which]


def snapshot(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH) if name not in ("cut", "holds")}


def lost_seqnos(told: RepairPlan) -> set[int]:
    found = {seqno for span in told.lost.gtids for seqno in range(span.first, span.last + 1)}
    return found | {seqno for first, last in told.lost.unreadable for seqno in range(first, last + 1)}


def check_repaired(disk: SimDisk, before: Content, last: int, outcome: RepairOutcome, *, what: object = "") -> None:
    """What is left is what was there, what is gone was named, and the log opens and verifies clean."""
    told = planned(outcome)
    assert outcome.after is not None and outcome.after.sound, (what, outcome.after)
    after = content_of(disk)
    assert [one for one in before if told.first_seqno <= one[0] <= told.last_seqno] == after, what
    if told.keep is Keep.FRONT:
        lost = set(range(told.last_seqno + 1, last + 1))
        assert lost_seqnos(told) == lost or (told.lost.unread_bytes > 40 and lost_seqnos(told) < lost), what
    epochs = {span.epoch for span in told.lost.gtids}
    with open_log(disk) as log:
        assert all(log.epoch > epoch for epoch in epochs), "a GTID is handed out twice"
        assert log.last_seqno == told.last_seqno + 1
        fill(log, 3)
    assert verify(PATH, disk=disk).sound, what
    cut = {name for name in disk.list_dir(f"{PATH}/cut") if name.startswith("thl.data.")}
    assert cut >= {path.rpartition("/")[2] for path in outcome.kept_in}


def test_a_sound_log_is_left_alone() -> None:
    disk = log_of()
    before = snapshot(disk)
    outcome = mend(disk)
    assert isinstance(outcome.decision, NothingToRepair)
    assert outcome.after is None
    after = snapshot(disk)
    assert {name: raw for name, raw in after.items() if name != "disklog.lck"} == {
        name: raw for name, raw in before.items() if name != "disklog.lck"
    }


@pytest.mark.parametrize("where", ["oldest", "middle", "newest"])
def test_a_bad_record_ends_the_log_there(where: str) -> None:
    """Truncate at the damage: everything behind it is kept in cut/, and named."""
    disk = log_of()
    before = content_of(disk)
    numbers = len(segment_names(disk))
    number = {"oldest": 1, "middle": numbers // 2, "newest": numbers}[where]
    if where == "newest":
        with open_log(disk) as log:  # so that there is something behind
            fill(log, 5, start=5000)
        before = content_of(disk)
    last = verify(PATH, disk=disk).last_seqno
    raws = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
    at = event_start(disk, number, 1)
    flip(disk, segment_path(number), at + 40)
    damaged = disk.content(segment_path(number))
    outcome = mend(disk)
    told = planned(outcome)
    assert told.steps[0] == CutOff(segment=number, offset=at, size=len(damaged) - at)
    assert told.steps[1:] == tuple(
        Remove(segment=one, size=len(raws[f"thl.data.{one:010d}"])) for one in range(len(raws), number, -1)
    )
    assert told.lost.bytes == sum(step.size for step in told.steps)
    assert len(told.lost.unreadable) == 1 and told.lost.unreadable[0] == (told.last_seqno + 1,) * 2
    assert told.lost.seqnos == last - told.last_seqno
    assert disk.content(f"{PATH}/cut/thl.data.{number:010d}-{at:010d}") == damaged[at:]
    for one in range(number + 1, len(raws) + 1):
        name = f"thl.data.{one:010d}"
        assert disk.content(f"{PATH}/cut/{name}-0000000000") == raws[name]
        assert not disk.exists(segment_path(one))
    check_repaired(disk, before, last, outcome)


def test_a_newest_segment_without_a_transaction_says_what_is_lost_before_it() -> None:
    """Of a copy nothing beside the segments says how far the log went; "lost = nothing" was said."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000_000) as log:
        fill(log, 99)
        log.add_segment()
    forget_positions(disk)
    before = content_of(disk)
    at = event_start(disk, 1, 30)
    disk.set_content(segment_path(1), disk.content(segment_path(1))[: at + 40])
    told = planned(mend(disk, dry_run=True))
    assert told.lost.unreadable == ((told.last_seqno + 1, before[-1][0]),) and not told.lost.gtids
    outcome = mend(disk)
    assert planned(outcome) == told
    check_repaired(disk, before, before[-1][0], outcome)


def test_a_sync_record_before_a_mark_says_nothing_of_what_is_lost() -> None:
    """It says how far the log went before the rollback."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000_000) as log:
        fill(log, 10)
        matchpoint = log.append(make_fragment("e10", b"10"))
        fill(log, 10, start=11)
        log.rollback(matchpoint)
    forget_positions(disk)
    newest = examine(PATH, disk=disk)[1].segments[-1]
    assert newest.mark is not None and newest.synced <= newest.last == matchpoint.seqno + 1 < newest.mark.last_seqno


def test_the_back_of_a_log_is_kept_like_one_that_was_purged() -> None:
    disk = log_of()
    before = content_of(disk)
    flip(disk, segment_path(2), event_start(disk, 2, 1) + 40)
    flip(disk, segment_path(4), event_start(disk, 4, 1) + 40)
    outcome = mend(disk, keep=Keep.BACK)
    told = planned(outcome)
    assert [step.segment for step in told.steps] == [1, 2, 3, 4]
    assert segment_names(disk)[0] == "thl.data.0000000005"
    assert told.first_seqno == verify(PATH, disk=disk).first_seqno > 0
    assert lost_seqnos(told) == set(range(told.first_seqno))
    assert len(told.lost.unreadable) == 2
    check_repaired(disk, before, before[-1][0], outcome)


def test_a_front_of_which_nothing_can_be_read_is_no_loss_of_nothing() -> None:
    disk = log_of()
    lost = len(disk.content(segment_path(1)))
    disk.set_content(segment_path(1), bytes(lost))
    told = planned(mend(disk, keep=Keep.BACK)).lost
    assert (told.seqnos, told.unread_bytes, told.bytes) == (0, lost, lost)


def test_the_back_is_refused_while_somebody_needs_the_front() -> None:
    disk = log_of()
    flip(disk, segment_path(2), event_start(disk, 2, 1) + 40)
    hold(PATH, "orders", Seqno(3), disk=disk, clock=ManualClock())
    before = snapshot(disk)
    with pytest.raises(RepairRefusedError, match="orders still needs seqno 3"):
        mend(disk, keep=Keep.BACK)
    assert {**snapshot(disk), "disklog.lck": b""} == {**before, "disklog.lck": b""}
    drop_hold(PATH, "orders", disk=disk)
    after = mend(disk, keep=Keep.BACK).after
    assert after is not None and after.sound


def test_there_may_be_nothing_behind_the_damage_or_before_it() -> None:
    disk = log_of()
    newest = len(segment_names(disk))
    with open_log(disk) as log:
        fill(log, 5)
    flip(disk, segment_path(newest), event_start(disk, newest, 1) + 40)
    with pytest.raises(RepairRefusedError, match="--keep front"):
        mend(disk, keep=Keep.BACK)
    disk = log_of()
    disk.set_content(segment_path(1), b"\xff" * 200)
    with pytest.raises(RepairRefusedError, match="--keep back"):
        mend(disk)
    after = mend(disk, keep=Keep.BACK).after
    assert after is not None and after.sound


def test_a_double_damage_up_to_the_newest_segment_leaves_no_back() -> None:
    """A bad record, and behind it a newest segment of which a crash left half a header: nothing says where to begin."""
    disk = log_of()
    newest = len(segment_names(disk))
    flip(disk, segment_path(newest - 1), event_start(disk, newest - 1, 1) + 40)
    disk.set_content(segment_path(newest), disk.content(segment_path(newest))[:8])
    before = snapshot(disk)
    with pytest.raises(RepairRefusedError, match=r"of which nothing can be read.*--keep front"):
        mend(disk, keep=Keep.BACK)
    assert {**snapshot(disk), "disklog.lck": b""} == {**before, "disklog.lck": b""}
    after = mend(disk).after
    assert after is not None and after.sound


@pytest.mark.parametrize(
    ("damage", "step"),
    [
        (lambda disk: flip(disk, segment_path(1), 1), (1, 0, 16)),
        (lambda disk: flip(disk, segment_path(3), 15), (3, 0, 16)),
        (lambda disk: disk.set_content(segment_path(3), bytes(16) + disk.content(segment_path(3))[16:]), (3, 0, 16)),
        (lambda disk: flip(disk, segment_path(3), 16), (3, 16, FIRST_SYNC_BYTES)),
        (lambda disk: flip(disk, segment_path(3), 20), (3, 16, FIRST_SYNC_BYTES)),
        (lambda disk: flip(disk, segment_path(3), 30), (3, 16, FIRST_SYNC_BYTES)),
    ],
    ids=["magic", "prev_seqno", "torn header", "sync's length", "sync's type", "sync"],
)
def test_what_the_neighbours_prove_is_written_again(damage: Callable[[SimDisk], None], step: tuple[int, ...]) -> None:
    """A torn header, or a bad sync record: no transaction is lost."""
    disk = log_of()
    before = content_of(disk)
    damage(disk)
    bad = disk.content(segment_path(step[0]))[step[1] : step[1] + step[2]]
    outcome = mend(disk)
    told = planned(outcome)
    (only,) = told.steps
    assert isinstance(only, Rewrite) and (only.segment, only.offset, only.size) == step
    assert told.lost.seqnos == told.lost.bytes == 0
    assert [disk.content(path) for path in outcome.kept_in] == [bad]
    check_repaired(disk, before, before[-1][0], outcome)


@pytest.mark.parametrize("cut", [0, 1, 7, 29, 30], ids=["flipped", "1", "7", "29", "all of it"])
def test_a_rotate_record_is_written_again(cut: int) -> None:
    disk = log_of()
    before = content_of(disk)
    raw = disk.content(segment_path(2))
    if cut:
        disk.set_content(segment_path(2), raw[:-cut])
    else:
        flip(disk, segment_path(2), len(raw) - 20)
    assert not verify(PATH, disk=disk).sound
    outcome = mend(disk)
    assert planned(outcome).lost.seqnos == 0
    assert disk.content(segment_path(2)) == raw
    check_repaired(disk, before, before[-1][0], outcome)


def test_bytes_behind_a_rotate_record_are_taken_off() -> None:
    disk = log_of()
    before = content_of(disk)
    raw = disk.content(segment_path(2))
    disk.set_content(segment_path(2), raw + b"\x00\x00more")
    outcome = mend(disk)
    assert disk.content(segment_path(2)) == raw
    assert [disk.content(path) for path in outcome.kept_in] == [b"\x00\x00more"]
    check_repaired(disk, before, before[-1][0], outcome)


def test_a_missing_segment_leaves_the_front_or_the_back() -> None:
    for keep, first, last in ((Keep.FRONT, 1, 2), (Keep.BACK, 4, 6)):
        disk = log_of()
        before = content_of(disk)
        end = before[-1][0]
        disk.unlink(segment_path(3))
        outcome = mend(disk, keep=keep)
        told = planned(outcome)
        names = segment_names(disk)
        assert names[0] == f"thl.data.{first:010d}"
        assert keep is Keep.BACK or names[-1] == f"thl.data.{last:010d}"
        assert told.lost.unreadable != ()
        check_repaired(disk, before, end, outcome)


def test_a_hole_between_two_segments() -> None:
    """A whole segment was lost and the later ones renamed: every name is there, seqnos are missing."""
    disk = log_of()
    before = content_of(disk)
    count = len(segment_names(disk))
    for number in range(3, count):
        disk.set_content(segment_path(number), disk.content(segment_path(number + 1)))
    disk.unlink(segment_path(count))
    report = verify(PATH, disk=disk)
    assert any(one.kind == "hole" and one.segment == "thl.data.0000000003" for one in report.problems)
    outcome = mend(disk)
    assert planned(outcome).last_seqno == verify(PATH, disk=disk).last_seqno - 0
    check_repaired(disk, before, before[-1][0], outcome)


def test_a_segment_that_stands_twice() -> None:
    disk = log_of()
    before = content_of(disk)
    with open_reader(disk) as reader:
        last = reader.range().last_seqno
    disk.set_content(segment_path(4), disk.content(segment_path(3)))
    report = verify(PATH, disk=disk)
    assert ("duplicate", "thl.data.0000000004") in [(one.kind, one.segment) for one in report.problems]
    outcome = mend(disk)
    assert not disk.exists(segment_path(4))
    check_repaired(disk, before, last, outcome)


def test_a_log_that_is_shorter_than_what_was_visible() -> None:
    """The disk took back what it had said was durable: nothing to cut, but something to say."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    disk.kill()
    raw = disk.content(segment_path(1))
    disk.set_content(segment_path(1), raw[: record_starts(disk, 1)[-1]])
    assert [one.kind for one in verify(PATH, disk=disk).problems] == ["bad end of log"]
    outcome = mend(disk)
    told = planned(outcome)
    assert told.steps == () and told.lost.unreadable == ((5, 5),)
    assert outcome.after is not None and outcome.after.sound


def test_a_wrong_stored_index_is_dropped() -> None:
    from tranlog.log.files.index_table import INDEX_NAME, IndexTable
    from tranlog.log.rules.index import SeqnoIndex
    from tranlog.log.rules.index_values import BuiltFrom, Entry

    disk = log_of(segment_bytes=100_000)
    index = SeqnoIndex()
    for seqno in range(3):
        index.register(Entry(Seqno(seqno), (1 << 32) + 17 + 50 * seqno))  # type: ignore[arg-type]
    table = IndexTable(f"{PATH}/{INDEX_NAME}", disk)
    built_from = BuiltFrom(epoch=Epoch(1), end=(1 << 32) + 200)  # type: ignore[arg-type]
    image = index.image(built_from)
    flush = index.flush_plan(built_from)
    assert flush is not None
    table.store(flush, lambda: image)
    table.close()
    report = verify(PATH, disk=disk)
    assert [one.kind for one in report.problems] == ["bad stored index"]
    assert "leads to 1:17 for seqno 0" in report.problems[0].why
    outcome = mend(disk)
    assert planned(outcome).steps == () and not disk.exists(f"{PATH}/{INDEX_NAME}")
    assert outcome.after is not None and outcome.after.sound


def test_a_dry_run_and_one_that_is_declined_change_nothing() -> None:
    disk = log_of()
    flip(disk, segment_path(2), event_start(disk, 2) + 40)
    before = snapshot(disk)
    calls = disk.calls
    outcome = mend(disk, dry_run=True)
    assert disk.calls == calls, "not even the lock"
    assert outcome.after is None and outcome.kept_in == ()

    def decline(told: RepairPlan, report: object) -> None:
        assert told == outcome.decision
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(PATH, disk=disk, clock=ManualClock(), agree=decline)
    assert not disk.exists(f"{PATH}/cut")
    assert {**snapshot(disk), "disklog.lck": b""} == {**before, "disklog.lck": b""}
    after = mend(disk).after
    assert after is not None and after.sound, "the lock was given back"


def test_what_is_lost_is_written_down_before_it_is() -> None:
    disk = log_of()
    flip(disk, segment_path(2), event_start(disk, 2) + 40)
    outcome = mend(disk)
    assert outcome.report == f"{PATH}/cut/repair-0001.json"
    told = json.loads(disk.content(outcome.report))
    assert told["problems"][0]["segment"] == "thl.data.0000000002"
    spans = [
        Span(epoch=Epoch(one["epoch"]), first=one["first"], last=one["last"]) for one in told["plan"]["lost"]["gtids"]
    ]
    assert tuple(spans) == planned(outcome).lost.gtids


@pytest.mark.long
def test_a_writer_keeps_repair_away_and_the_other_way_round() -> None:
    disk = log_of()
    with open_log(disk), pytest.raises(LogLockedError):
        mend(disk)
    flip(disk, segment_path(2), event_start(disk, 2) + 40)

    def look(told: RepairPlan, report: object) -> None:
        with pytest.raises(LogLockedError):
            open_log(disk)

    repair(PATH, disk=disk, clock=ManualClock(), agree=look)


def test_a_full_disk_leaves_a_log_to_repair_again() -> None:
    disk = log_of()
    before = content_of(disk)
    flip(disk, segment_path(2), event_start(disk, 2) + 40)
    disk.room = 3_000
    with pytest.raises(DiskFullError):
        mend(disk)
    disk.room = None
    assert [name for name in disk.list_dir(f"{PATH}/cut") if "-" in name]
    with pytest.raises(CorruptRecordError):
        open_log(disk)
    outcome = mend(disk)
    check_repaired(disk, before, planned(outcome).last_seqno + planned(outcome).lost.seqnos, outcome)


def test_what_cannot_be_repaired_is_refused() -> None:
    disk = SimDisk()
    with pytest.raises(LogMissingError):
        mend(disk)
    assert not disk.exists(PATH)
    record = (60).to_bytes(4, "big") + b"\x01" + (0).to_bytes(8, "big") + bytes(47)
    disk = log_of(5, segment_bytes=100_000)
    disk.set_content(segment_path(1), disk.content(segment_path(1))[:16] + record)
    with pytest.raises(LogCodecError):
        mend(disk)
    disk = log_of()
    flip(disk, segment_path(2), event_start(disk, 2) + 40)
    disk.fail_at = {disk.calls + 6: errno.EIO}
    with pytest.raises(Exception, match=r"failed|Input"):
        mend(disk)
    outcome = mend(disk)
    assert outcome.after is not None and outcome.after.sound


def test_an_open_transaction_and_a_torn_tail_are_no_damage() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    log.append(make_fragment("open", last=False))
    log.commit()
    disk.kill()
    forget_positions(disk)
    assert isinstance(mend(disk).decision, NothingToRepair)


def test_any_flipped_bit_is_repaired_to_what_was_there(effort: Effort) -> None:
    """Verify and repair agree about every damage; nothing is lost that is not named, and nothing named that is not."""
    disk = log_of(16)
    before = content_of(disk)
    last = verify(PATH, disk=disk).last_seqno
    pristine = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
    seed = random.randrange(1 << 32)
    print(f"replay: seed={seed}")
    rng = random.Random(seed)
    for _ in range(effort(20, 100, 2_000)):
        damaged = SimDisk()
        damaged.make_dir(PATH)
        for name, raw in pristine.items():
            damaged.open(f"{PATH}/{name}", write=True, create=True)
            damaged.set_content(f"{PATH}/{name}", raw)
        done = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            number = rng.randrange(len(pristine)) + 1
            changed = bytearray(damaged.content(segment_path(number)))
            at = rng.randrange(len(changed))
            size = rng.choice((0, 0, 0, 5, 40, 300))
            if size:
                changed[at : at + size] = rng.randbytes(len(changed[at : at + size]))
            else:
                changed[at] ^= 1 << rng.randrange(8)
            damaged.set_content(segment_path(number), bytes(changed))
            done.append((number, at, size))
        try:
            report = verify(PATH, disk=damaged)
        except LogVersionError:
            assert any(at < 6 and size for _, at, size in done), done
            continue  # rubbish over the version reads as a later release's, which nobody repairs
        keep = rng.choice((Keep.FRONT, Keep.FRONT, Keep.BACK))
        try:
            outcome = mend(damaged, keep=keep)
        except RepairRefusedError:
            assert not report.sound
            continue
        if isinstance(outcome.decision, NothingToRepair):
            assert report.sound, done
            continue
        assert not report.sound, done
        told = planned(outcome)
        if keep is Keep.BACK and told.first_seqno > 0 and not any(one[0] == 1 and one[1] < 16 for one in done):
            assert lost_seqnos(told) == set(range(told.first_seqno)), done
        check_repaired(
            damaged, before, last if report.tail is None else told.last_seqno + told.lost.seqnos, outcome, what=done
        )


def test_a_repair_never_brings_back_what_was_abandoned(effort: Effort) -> None:
    """Twins that a rollback mark tells apart: no cut may take the mark and leave what it abandoned."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 14)
        log.rollback(Gtid(Epoch(1), Seqno(9)))
        fill(log, 9, start=200)
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 6, start=300)
        log.rollback(Gtid(log.epoch, Seqno(log.last_seqno - 3)))
        fill(log, 9, start=400)
    before = content_of(disk)
    pristine = {name: disk.content(f"{PATH}/{name}") for name in segment_names(disk)}
    assert verify(PATH, disk=disk).sound
    seed = random.randrange(1 << 32)
    print(f"replay: seed={seed}")
    rng = random.Random(seed)
    refused = repaired = 0
    cases = effort(30, 120, 2_000)
    for _ in range(cases):
        damaged = SimDisk()
        damaged.make_dir(PATH)
        for name, raw in pristine.items():
            damaged.open(f"{PATH}/{name}", write=True, create=True)
            damaged.set_content(f"{PATH}/{name}", raw)
        number = rng.randrange(len(pristine)) + 1
        at = rng.randrange(len(damaged.content(segment_path(number))))
        if rng.random() < 0.2:
            damaged.unlink(segment_path(number))
        else:
            flip(damaged, segment_path(number), at, 1 << rng.randrange(8))
        keep = rng.choice((Keep.FRONT, Keep.FRONT, Keep.BACK))
        try:
            outcome = mend(damaged, keep=keep)
        except RepairRefusedError:
            refused += 1
            continue
        if isinstance(outcome.decision, NothingToRepair):
            continue
        repaired += 1
        told = planned(outcome)
        what = (number, at, keep)
        assert outcome.after is not None and outcome.after.sound, (what, outcome.after)
        assert content_of(damaged) == [one for one in before if told.first_seqno <= one[0] <= told.last_seqno], what
        if keep is Keep.FRONT:
            lost = set(range(told.last_seqno + 1, before[-1][0] + 1))
            assert lost_seqnos(told) >= lost or told.lost.unread_bytes, what
        with open_log(damaged) as log:
            assert log.last_seqno == told.last_seqno + 1
            fill(log, 2)
        assert verify(PATH, disk=damaged).sound, what
    assert repaired > cases // 3
    print(f"repaired={repaired} refused={refused}")


def test_the_plan_of_an_empty_log_is_nothing() -> None:
    one = SegmentFindings(
        number=1,
        size=0,
        prev_seqno=None,
        torn_header=True,
        first_seqno=None,
        runs=(),
        bad=(),
        last=NO_SEQNO,
        good_end=16,
        end=16,
        open_fragments=0,
        next_name=None,
    )
    findings = LogFindings(segments=(one,), visible=NO_SEQNO, epoch=Epoch(0))
    assert plan(findings, keep=Keep.FRONT, now_ms=0) == NothingToRepair()
