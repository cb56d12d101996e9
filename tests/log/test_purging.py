"""log/writing/purging.py, log/files/purge_notes.py in `Log`: closing by age, trimming, hard limits, upkeep."""

from __future__ import annotations

import errno
import pickle

import pytest

from fix_log import PATH, contents, fill, make_fragment, open_log, open_reader, read_all, segment_names
from tranlog.errors import (
    AppendOrderError,
    LogLockedError,
    LogMissingError,
    PurgedError,
    SegmentEmptyError,
)
from tranlog.ids import Seqno, segment_name
from tranlog.log.files.purge_notes import (
    NOTES_KEPT,
    PURGED_NAME,
    PurgeNote,
    add_note,
    decode_notes,
    encode_notes,
    read_notes,
)
from tranlog.log.rules.retention import DAY_MS, HOUR_MS, LargerThan, PurgePlan, UpToSeqno, UpToTime
from tranlog.log.writing.log import Log, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

START = 1_700_000_000_000


def upkeep(disk: SimDisk, clock: ManualClock | None = None) -> Log:
    return Log.open_for_upkeep(PATH, disk=disk, clock=ManualClock() if clock is None else clock)


# --- closing a segment for its age ---


@pytest.mark.parametrize(("retention_s", "span_ms"), [(None, DAY_MS), (86_400.0 * 7, DAY_MS), (72_000.0, HOUR_MS)])
def test_a_segment_is_closed_after_an_hour_or_a_day(retention_s: float | None, span_ms: int) -> None:
    """tokumx A8.2: below a day of retention a segment is added hourly, otherwise daily; an empty one is left."""
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, retention_s=retention_s) as log:
        for part in (0.4, 0.4, 0.3, 0.4, 2.5):
            fill(log, 1)
            clock.advance(part * span_ms / 1000)
        assert len(log.segments()) == 2, "the append after 1.1 spans began the second; nothing since"
        fill(log, 1)
        stats = log.segments()
        assert [one.written_at for one in stats] == [
            START,
            START + round(span_ms * 1.1),
            START + round(span_ms * 4.0),
        ]
    clock.advance(span_ms / 1000)
    with open_log(disk, clock=clock, retention_s=retention_s) as log:
        fill(log, 1)
        assert len(log.segments()) == 4, "after an opening the age counts on"


def test_a_clock_that_goes_back_closes_nothing_and_loses_nothing() -> None:
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, retention_s=7_200.0) as log:
        fill(log, 3)
        clock.set_ms(START - 1_800_000)
        fill(log, 3, start=3)
        assert len(log.segments()) == 1
        clock.set_ms(0)
        fill(log, 3, start=6)
        fill(log, 3, start=9)
        assert len(log.segments()) == 2, "the stamp of the first lies years ahead: one with a right stamp is begun"
        clock.set_ms(START + 86_400_000)
        fill(log, 3, start=12)
        fill(log, 3, start=15)
        assert [one[1] for one in contents(log)] == [f"e{number}" for number in range(6 if log.first_seqno else 0, 18)]


def test_an_idle_log_expires_when_asked() -> None:
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, retention_s=7_200.0) as log:
        assert log.expire() == []
        fill(log, 3)
        clock.advance(3_600)
        assert log.expire() == [] and len(log.segments()) == 2
        clock.advance(3_600)
        assert log.expire() == [] and len(log.segments()) == 2, "an empty segment is not closed"
        fill(log, 1, start=3)
        clock.advance(7_200)
        assert log.expire() == [segment_name(1)]
        assert segment_names(disk) == [segment_name(2), segment_name(3)]
        log.append(make_fragment("open", last=False))
        log.abandon_open()
        clock.advance(7_200)
        assert log.expire() == [], "the last transaction stays, and with it its segment"


# --- adding, trimming ---


def test_adding_behind_an_empty_segment_fails() -> None:
    """tokumx-replication: "Running rs.addPartition() when the last partition is empty will fail"."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        assert log.add_segment() == segment_name(2)
        with pytest.raises(SegmentEmptyError, match=r"0000000002 is the newest one and holds no transaction"):
            log.add_segment()
        fill(log, 1, start=3)
        log.append(make_fragment("e4"))  # not committed: it is complete, and the segment's end makes it durable
        assert log.add_segment() == segment_name(3)
        assert log.durable_seqno == log.last_seqno == 5
        assert [one[1] for one in contents(log)] == [f"e{number}" for number in range(5)]


def test_what_a_trim_says() -> None:
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, segment_bytes=1_000) as log:
        for number in range(30):
            fill(log, 1, start=number)
            clock.advance(1)
        stats = log.segments()
        limit = UpToSeqno(seqno=stats[1].last_seqno, told="GTID(1, 11)")
        plan = log.trim(limit, dry_run=True)
        assert plan == PurgePlan(gone=(1, 2), up_to=stats[1].last_seqno, limit=limit)
        assert log.first_seqno == 0
        assert log.trim(limit) == plan and log.trim(limit) == PurgePlan(), "idempotent"
        at = stats[4].written_at
        assert at is not None
        assert log.trim(UpToTime(at_ms=at - 1)).gone == (3,)
        assert log.trim(UpToTime(at_ms=at)).gone == (4,)
        assert log.first_seqno == stats[4].first_seqno


def test_a_log_for_upkeep_begins_no_epoch_and_mends_what_a_crash_left() -> None:
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000)
    fill(log, 20)
    log.append(make_fragment("torn", bytes(700), last=False))
    log.commit(sync=False)
    before = contents(log)
    disk.kill()
    with upkeep(disk) as log:
        assert log.recovered.cut is None or not log.recovered.clean
        with pytest.raises(AppendOrderError, match="opened for upkeep"):
            log.append(make_fragment())
        log.add_segment()
        log.trim(UpToSeqno(seqno=Seqno(5)))
        assert log.epoch == 1
    with open_log(disk) as log:
        assert log.recovered.clean and not log.recovered.purged_by_hand
        assert log.epoch == 2 and log.last_event_id() == "e19"
        assert contents(log) == [one for one in before if one[0] >= log.first_seqno]
    with open_log(disk), pytest.raises(LogLockedError):
        upkeep(disk)
    with pytest.raises(LogMissingError, match="does not exist"):
        Log.open_for_upkeep("/none", disk=disk, clock=ManualClock())
    assert not disk.exists("/none")


# --- hard limits, and what their victim hears ---


def test_a_hard_limit_passes_a_hold_and_the_victim_is_told() -> None:
    """Purge never passes a hold "unless a hard limit says so, and then the victim hears it"."""
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, segment_bytes=1_000, retention_bytes=2_500, hard_retention_bytes=6_000) as log:
        hold(PATH, "dead", Seqno(0), disk=disk, clock=clock)
        fill(log, 15)
        assert log.first_seqno == 0, "below the hard limit the hold is waited for"
        for number in range(15, 60):
            fill(log, 1, start=number)
        sizes = sum(one.bytes for one in log.segments())
        assert 2_500 < sizes <= 6_000 + 2_000, "the segment that is being written may pass it"
        assert log.first_seqno > 0
        with log.cursor() as cursor, pytest.raises(PurgedError) as raised:
            cursor.seek(Seqno(0))
    error = raised.value
    assert (error.seqno, error.first, error.limit) == (0, log.segments()[0].first_seqno, "hard_retention_bytes = 6000")
    assert error.passed == ("dead",) and error.at_ms == START and error.up_to is not None
    assert str(error) == (
        f"seqno 0 is purged: the log starts at {error.first}. hard_retention_bytes = 6000 removed everything up to "
        f"seqno {error.up_to} at 2023-11-14 22:13:20 UTC, although dead still needed it. Start from there, or from a "
        "new snapshot"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with open_reader(disk) as reader:
        assert str(reader.purged(Seqno(0))) == str(error), "in any process, after any restart"


def test_a_cursor_that_is_overtaken_hears_it_too() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log, open_reader(disk) as reader:
        fill(log, 30)
        with reader.cursor() as cursor:
            cursor.next()
            log.trim(UpToSeqno(seqno=Seqno(20), told="GTID(1, 20)"))
            with pytest.raises(PurgedError, match=r"a trim to GTID\(1, 20\) removed everything up to seqno"):
                read_all(cursor)


def test_each_purge_is_told_from_the_others() -> None:
    """Who needs seqno 3 hears of the purge that took it, not of a later one."""
    disk, clock = SimDisk(), ManualClock(START)
    with open_log(disk, clock=clock, segment_bytes=1_000) as log:
        fill(log, 40)
        stats = log.segments()
        log.trim(UpToSeqno(seqno=stats[0].last_seqno, told="the first"))
        clock.advance(60)
        log.trim(LargerThan(bytes=3_000))
        first, later = log._end.segments.purged(Seqno(0)), log._end.segments.purged(stats[1].first_seqno)
        assert (first.limit, first.up_to, first.at_ms) == ("a trim to the first", stats[0].last_seqno, START)
        assert (later.limit, later.at_ms) == ("retention_bytes = 3000", START + 60_000)
    disk.unlink(f"{PATH}/{PURGED_NAME}")
    with open_reader(disk) as reader:
        error = reader.purged(Seqno(0))
        assert (error.limit, error.passed) == (None, ())
        assert (
            str(error)
            == f"seqno 0 is purged: the log starts at {error.first}. Start from there, or from a new snapshot"
        )


def test_notes_read_back_and_damage_costs_no_more_than_a_line() -> None:
    notes = [
        PurgeNote(up_to=9, limit="retention_s = 60", at=START),
        PurgeNote(up_to=19, limit='hard "limit"\n', at=START + 1, passed=("a b", "c")),
        PurgeNote(up_to=29, limit="x", at=0),
    ]
    raw = encode_notes(notes)
    assert decode_notes(raw) == notes and decode_notes(b"") == []
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            found = decode_notes(bytes(damaged))
            assert len(found) >= 1 and all(note in notes for note in found)
    for cut in range(len(raw)):
        assert all(note in notes for note in decode_notes(raw[:cut]))


def test_notes_stay_few() -> None:
    """A run of purges by one rule is one note; one that passed a hold is never merged away."""
    notes: list[PurgeNote] = []
    for number in range(10):
        notes = add_note(notes, PurgeNote(up_to=number, limit="age", at=number))
    assert notes == [PurgeNote(up_to=9, limit="age", at=9)]
    notes = add_note(notes, PurgeNote(up_to=10, limit="age", at=10, passed=("p",)))
    notes = add_note(notes, PurgeNote(up_to=11, limit="age", at=11))
    assert [note.up_to for note in notes] == [9, 10, 11]
    for number in range(12, 100):
        notes = add_note(notes, PurgeNote(up_to=number, limit=str(number), at=number))
    assert len(notes) == NOTES_KEPT and notes[-1].up_to == 99


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_purge_makes_room_although_its_note_cannot_be_written(number: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 30)
        if number == errno.ENOSPC:
            disk.room = 0
        elif number == errno.EACCES:
            disk.denied.add(f"{PATH}/{PURGED_NAME}.new")
        else:
            disk.fail_at[disk.calls + 1] = number
        hold(PATH, "late", Seqno(0), disk=disk, clock=ManualClock()) if number == errno.EACCES else None
        plan = log.trim(UpToSeqno(seqno=Seqno(20), hard=True))
        assert len(plan.gone) > 1 and segment_names(disk)[0] == segment_name(plan.gone[-1] + 1)
        assert "The reason for a purge could not be recorded" in caplog.text
        if number == errno.EACCES:
            assert "Purged what was still needed" in caplog.text and "passed=late" in caplog.text
        assert read_notes(PATH, disk) == []
        disk.room = None
        disk.denied.clear()
        fill(log, 3, start=30)
    with open_log(disk) as log:
        assert contents(log)[-1][1] == "e32"
