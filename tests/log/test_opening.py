"""log/writing/opening.py, log/reading/reader.py: what opening reads and syncs, of a log closed, killed, or cut off."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from fix_log import (
    PATH,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    segment_path,
)
from tranlog.errors import CorruptRecordError, DiskFailedError, LogUnreadableError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files import scan
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.files.segment import SegmentReader
from tranlog.log.records.format import SyncRecord
from tranlog.log.writing.log import Log
from tranlog.lsn import lsn_offset
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk, SimFile

TABLE = f"{PATH}/{INDEX_NAME}"


def syncs_of_opening(disk: SimDisk) -> tuple[int, int]:
    """Open for writing; return how many files and directories were synced for it."""
    before = disk.counts.copy()
    with open_log(disk):
        found = disk.counts - before
        return found["sync"], found["sync_dir"]


def last_of_a_walk(disk: SimDisk, number: int) -> SyncRecord:
    """Return the last sync record of a segment."""
    reader, at, last = SegmentReader(disk.open(segment_path(number)), number), 16, None
    while hasattr(outcome := reader.read(at, verify=True), "record_length"):
        last = outcome if isinstance(outcome, SyncRecord) else last
        at += outcome.record_length
    assert last is not None
    return last


# --- syncs ----------------------------------------------------------------------------------------------------


def test_opening_what_was_closed_cleanly_syncs_segment_and_directory_once() -> None:
    """performance.md, "Index": nothing was cut, so the sync of the no-op is the first that its segment needs."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 20)
    assert syncs_of_opening(disk) == (1, 1)


def test_opening_after_a_kill_syncs_segment_and_directory_once_where_nothing_is_cut() -> None:
    disk = SimDisk()
    log = open_log(disk, ahead_bytes=4096)
    fill(log, 20)
    disk.kill()
    assert syncs_of_opening(disk) == (1, 1)


def test_a_cut_is_synced_before_the_new_epoch() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 20)
    disk.kill()
    disk.set_content(segment_path(1), disk.content(segment_path(1))[:-3])
    forget_positions(disk)
    assert syncs_of_opening(disk)[0] == 3, "what was cut, the segment, the no-op"


def test_a_segment_without_a_transaction_may_have_a_name_that_is_not_durable() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 20)
    log.add_segment()
    disk.kill()
    assert syncs_of_opening(disk) == (1, 1)


def test_for_upkeep_what_is_there_is_synced() -> None:
    """No epoch begins, so nobody else would: `durable_seqno` speaks of it."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 20)
    log.append(make_fragment("late"))
    log.commit(sync=False)
    disk.kill()
    before = disk.counts["sync"]
    with Log.open_for_upkeep(PATH, disk=disk, clock=ManualClock()) as upkeep:
        assert disk.counts["sync"] == before + 1
        assert upkeep.durable_seqno == upkeep.last_seqno == 21
    assert contents(open_reader(disk.after_crash(random.Random(1))))[-1][1] == "late"


def test_the_first_sync_record_of_an_epoch_claims_what_was_proven() -> None:
    """recovery.py: what no sync record proves is proven by the sync that comes, and not before."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    proven = last_of_a_walk(disk, 1)
    fill(log, 1, start=5)
    unproven_from = log._pending.start
    disk.kill()
    with open_log(disk) as log:
        claimed = lsn_offset(last_of_a_walk(disk, 1).durable_lsn)
        assert lsn_offset(proven.durable_lsn) <= claimed < unproven_from
        fill(log, 1)
        assert lsn_offset(last_of_a_walk(disk, 1).durable_lsn) > unproven_from


@pytest.mark.parametrize("seed", range(40))
def test_an_opening_that_fails_or_is_cut_off_loses_nothing(seed: int) -> None:
    """At any call the power goes, or the disk fails and then the power goes; a failed sync has lost what it carried."""
    rng = random.Random(seed)
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 10)
    kept = contents(log)
    disk.kill()
    before = disk.calls
    open_log(disk)
    calls = disk.calls - before
    disk.kill()
    disk.chance = rng
    at = disk.calls + rng.randrange(1, calls + 1)
    if seed % 2:
        disk.cut_at = at
    else:
        disk.fail_at = {at: errno.EIO}
    with contextlib.suppress(PowerCut, DiskFailedError, LogUnreadableError):
        open_log(disk)
    disk = disk.after_crash(rng)
    with open_log(disk) as log:
        assert contents(log)[: len(kept)] == kept


# --- reads ----------------------------------------------------------------------------------------------------


class Reads:
    """How many bytes are read of segments, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        pread = SimFile.pread

        def counted(file: SimFile, size: int, offset: int) -> bytes:
            raw = pread(file, size, offset)
            self.bytes += len(raw) if "thl.data" in file._path else 0
            return raw

        monkeypatch.setattr(SimFile, "pread", counted)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """What is in the directory of a log of 8 MB in three segments, the last one of 2 MB; closed."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=3_000_000) as log:
        fill(log, 1_000, size=8_000)
    return {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH)}


@pytest.fixture
def grown(files: dict[str, bytes]) -> SimDisk:
    """A disk with that log."""
    disk = SimDisk()
    disk.make_dir(PATH)
    for name, content in files.items():
        disk.open(f"{PATH}/{name}", write=True, create=True).close()
        disk.set_content(f"{PATH}/{name}", content)
    return disk


@pytest.mark.parametrize("closed", [True, False])
def test_opening_reads_the_tail_only(grown: SimDisk, monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    if not closed:
        log = open_log(grown, segment_bytes=3_000_000)
        fill(log, 10, size=8_000, start=1_000)
        grown.kill()
    reads = Reads(monkeypatch)
    with open_log(grown, segment_bytes=3_000_000):
        assert reads.bytes < 600_000


def test_a_reader_that_has_to_scan_begins_at_the_stored_end(grown: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are those of a walk through all of the newest segment, and it hears of what comes behind."""
    forget_positions(grown)
    number = max(int(name[-10:]) for name in grown.list_dir(PATH) if name.startswith("thl.data."))
    whole, table = grown.content(segment_path(number)), grown.content(TABLE)
    reads = Reads(monkeypatch)
    with open_reader(grown) as reader:
        assert reads.bytes < 400_000
        found = reader.range()
        assert found.scanned and found.last_seqno == found.durable_seqno == 1_000
    grown.unlink(TABLE)
    with open_reader(grown) as reader:
        assert reader.range() == found
    with open_log(grown, segment_bytes=3_000_000) as log:
        fill(log, 30, size=8_000, start=2_000)
    longer = grown.content(segment_path(number))
    assert longer.startswith(whole)
    forget_positions(grown)
    grown.set_content(segment_path(number), whole)
    grown.set_content(TABLE, table)
    with open_reader(grown) as reader, reader.cursor() as cursor:
        assert reader.range() == found
        for end in (len(whole) + 30_000, len(whole) + 30_500, len(longer)):
            grown.set_content(segment_path(number), longer[:end])
            last = reader.range().last_seqno
            assert last > 1_000
            cursor.seek(last)
            assert cursor.next() is not None and cursor.next() is None
        assert last == 1_031 and reader.range().durable_seqno == 1_031
        cursor.seek(Seqno(1_010))
        transaction = cursor.next()
        assert transaction is not None
        assert b"".join(transaction.payloads()) == make_payload(2_008, 8_000)


def test_damage_in_front_of_the_stored_end_is_found_when_it_is_read(grown: SimDisk) -> None:
    """As for a writer: scan.checkpoint_of."""
    forget_positions(grown)
    number = max(int(name[-10:]) for name in grown.list_dir(PATH) if name.startswith("thl.data."))
    flip(grown, segment_path(number), 600_000)
    with open_reader(grown) as reader:
        assert reader.range().last_seqno >= 1_000
        with pytest.raises(CorruptRecordError, match=f"{number:010d}"):
            contents(reader)


def test_an_old_stored_index_whose_rollback_was_purged_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the seqno with which the log begins now, and stood elsewhere then: no mark is left to say so."""
    monkeypatch.setattr(scan, "WALK_WHOLE_BYTES", 0)
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 10)
    log.add_segment()
    fill(log, 5, start=10)
    log.flush_index()
    old = disk.content(TABLE)
    log.rollback(Gtid(log.epoch, Seqno(13)))
    log.add_segment()
    fill(log, 5, start=20)
    log.add_segment()
    fill(log, 5, start=30)
    log.purge(below=Seqno(15))
    assert log.first_seqno == 15
    log.close()
    disk.set_content(TABLE, old)
    with open_log(disk) as log:
        assert [event_id for _, event_id, _ in contents(log)] == [
            f"e{number}" for number in (*range(20, 25), *range(30, 35))
        ]
