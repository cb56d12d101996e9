"""log/files/index_table.py and what opening makes of it: a missing, old or damaged table costs time, no answer."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fix_log import HISTORY, PATH, fill, make_fragment, open_log, segment_path
from tranlog.ids import Epoch, Seqno
from tranlog.log.files.index_table import INDEX_NAME, IndexTable, decode_table, encode_frame
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, FlushPlan
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions
from tranlog.lsn import lsn
from tranlog.testing.disk import SimDisk

TABLE = f"{PATH}/{INDEX_NAME}"


def mapped(index: SeqnoIndex) -> list[tuple[int, int, list[int]]]:
    return [(bucket.segment, bucket.first, list(bucket.offsets)) for bucket in index.mappings.buckets]


def a_log(disk: SimDisk, transactions: int = 60) -> None:
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, transactions, size=200)


def reads_everything(disk: SimDisk) -> None:
    """Every seqno is found by a cursor that jumps, in any order."""
    with LogReader.open(PATH, disk=disk) as reader, reader.cursor() as cursor:
        found = reader.range()
        seqnos = list(range(found.first_seqno, found.last_seqno + 1))
        for seqno in random.Random(1).sample(seqnos, len(seqnos)):
            cursor.seek(Seqno(seqno))
            header = cursor.next_header()
            assert header is not None and header.seqno == seqno


# --- the file ----------------------------------------------------------------------------------------------------


def test_what_is_stored_is_what_is_read() -> None:
    disk = SimDisk()
    disk.make_dir("/d")
    table = IndexTable("/d/index.table", disk)
    held: dict[int, bytes] = {}
    rng = random.Random(5)
    for number in range(300):
        deletes = tuple(rng.sample(sorted(held), min(len(held), rng.randrange(3))))
        puts = {rng.randrange(-1, 40): rng.randbytes(rng.randrange(1, 900)) for _ in range(rng.randrange(1, 4))}
        for key in deletes:
            del held[key]
        held |= puts
        table.store(FlushPlan(puts=puts, deletes=deletes), lambda: held)  # noqa: B023
        if number % 20 == 0:
            assert decode_table(disk.content("/d/index.table")) == held
    assert decode_table(disk.content("/d/index.table")) == held
    assert len(disk.content("/d/index.table")) < 700_000, "outdated frames go"


def test_a_frame_counts_wholly_or_not_at_all() -> None:
    """I24: cut anywhere, flipped anywhere, what is read is an image that once was stored."""
    whole = b"TLIX\x00\x01\x00\x00"
    held: dict[int, bytes] = {}
    images: list[dict[int, bytes]] = [{}]
    for number in range(5):
        puts = {-1: bytes([number]) * 9, number: b"bucket" * number}
        deletes = (number - 3,) if number > 3 else ()
        whole += encode_frame(puts, deletes)
        held = {key: raw for key, raw in held.items() if key not in deletes} | puts
        images.append(held)
    assert decode_table(whole) == held
    for at in range(len(whole)):
        assert decode_table(whole[:at]) in images
        harmed = whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
        assert decode_table(harmed) in images


# --- opening ------------------------------------------------------------------------------------------------------


def test_the_stored_index_is_what_a_scan_would_build(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    a_log(disk)
    with open_log(disk, segment_bytes=2_000) as log:
        stored = log.seqno_index
        assert stored.range.last == log.visible_seqno and stored.range.first == 0
        assert stored.range.last_sync == log.durable_seqno
        in_memory = mapped(stored)
        assert len({segment for segment, _, _ in in_memory}) > 5
    disk.unlink(TABLE)
    with open_log(disk, segment_bytes=2_000) as log:
        rough = log.seqno_index
        assert (rough.range.first, rough.range.last) == (0, log.visible_seqno)
        assert {segment for segment, _, _ in mapped(rough)} >= {segment for segment, _, _ in in_memory}
    reads_everything(disk)


@pytest.mark.parametrize("harm", ["missing", "empty", "zeros", "old", "flipped", "cut", "foreign"])
def test_a_table_that_is_not_right_costs_a_rebuild(harm: str) -> None:
    """A missing, stale or damaged stored index costs a rebuild, never a wrong answer."""
    disk, other = SimDisk(), SimDisk()
    with open_log(other, segment_bytes=2_000) as log:
        fill(log, 70, size=150)
    a_log(disk, 30)
    old = disk.content(TABLE)
    a_log(disk, 40)
    raw = disk.content(TABLE)
    match harm:
        case "missing":
            disk.unlink(TABLE)
        case "empty":
            disk.set_content(TABLE, b"")
        case "zeros":
            disk.set_content(TABLE, bytes(len(raw)))
        case "old":
            disk.set_content(TABLE, old)
        case "flipped":
            disk.set_content(TABLE, raw[:70] + bytes([raw[70] ^ 4]) + raw[71:])
        case "cut":
            disk.set_content(TABLE, raw[: len(raw) // 2])
        case _:
            disk.set_content(TABLE, other.content(TABLE))
    with open_log(disk, segment_bytes=2_000) as log:
        index = log.seqno_index
        assert (index.range.first, index.range.last) == (0, log.visible_seqno)
        fill(log, 20, size=200)
    reads_everything(disk)
    with open_log(disk, segment_bytes=2_000) as log:
        assert log.seqno_index.range.last == log.visible_seqno


def test_a_log_that_lost_its_end_does_not_believe_the_table() -> None:
    """The table may have outlived records that it names: a scan decides."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000_000)
    fill(log, 40, size=200)
    log.close()
    raw = disk.content(segment_path(1))
    disk.set_content(segment_path(1), raw[: len(raw) // 2])
    disk.unlink("/log/positions")  # which would say how far the log went
    with open_log(disk, segment_bytes=1_000_000) as log:
        assert log.seqno_index.range.last == log.visible_seqno < 40
        fill(log, 5)
    reads_everything(disk)


def test_another_history_with_equal_numbers_is_noticed() -> None:
    """The epoch that the table was built from is held against the record (I3)."""
    disk, twin = SimDisk(), SimDisk()
    for one in (disk, twin):
        with open_log(one) as log:
            fill(log, 9, size=100)
    with open_log(twin) as log:
        log.append(make_fragment("x"))
    with open_log(disk) as log:
        pass
    table = twin.content(TABLE)
    disk.set_content(TABLE, table)
    with open_log(disk) as log:
        assert log.seqno_index.range.last == log.visible_seqno
    reads_everything(disk)


def test_segments_purged_by_hand_leave_the_index() -> None:
    """log-format.md: the index is cut to match."""
    disk = SimDisk()
    a_log(disk)
    for number in (1, 2, 3):
        disk.unlink(segment_path(number))
    with open_log(disk, segment_bytes=2_000) as log:
        assert log.seqno_index.range.first == log.first_seqno > 0
        assert min(bucket.segment for bucket in log.seqno_index.mappings.buckets) == 4
    reads_everything(disk)


def test_an_append_writes_no_index() -> None:
    """Never by an append: only rotation, close, purge and whoever asks for it."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000_000)
    assert not disk.exists(TABLE)
    fill(log, 50)
    assert not disk.exists(TABLE)
    log.flush_index()
    assert disk.exists(TABLE)
    before = disk.content(TABLE)
    fill(log, 5)
    assert disk.content(TABLE) == before
    log.close()
    assert disk.content(TABLE) != before


def test_a_rotation_stores_the_index() -> None:
    """S12: the ancestor meant to flush at a file's end and never did. No close, no purge, nobody who asks for it."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=2_000)
    while log.status().segments < 4:
        fill(log, 1, size=300, start=log.last_seqno)
    stored, _ = SeqnoIndex.restore(decode_table(disk.content(TABLE)))
    assert stored.range.last >= log.segments()[-1].first_seqno - 1
    assert {bucket.segment for bucket in stored.mappings.buckets} >= {1, 2, 3}
    log.close()


def test_the_index_holds_while_segments_go() -> None:
    """VLSNCleanerTest: small segments, half of the log purged again and again; index and segments always agree."""
    disk = SimDisk()
    gone = rounds = 0
    with open_log(disk, segment_bytes=1_000) as log:
        while gone < 12:
            rounds += 1
            fill(log, 15, size=150, start=15 * rounds)
            gone += len(log.purge(below=Seqno((log.first_seqno + log.last_seqno) // 2)))
            log.flush_index()
            found = verify(PATH, disk=disk)
            assert found.sound, found.problems
            assert (found.first_seqno, found.last_seqno) == (log.first_seqno, log.last_seqno)
            index = log.seqno_index
            assert (index.range.first, index.range.last) == (log.first_seqno, log.last_seqno)
        reads_everything(disk)
    assert rounds > 3


def test_a_disk_that_refuses_the_table_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    with Log.open(path, source_id="s", options=LogOptions(segment_bytes=2_000)) as log:
        (path / (INDEX_NAME + ".new")).mkdir()
        for _ in range(30):
            log.append(make_fragment("x" * 20, bytes(200)))
            log.commit()
        assert log.status().closed_because is None
    assert "index could not be stored" in caplog.text
    shutil.rmtree(path / (INDEX_NAME + ".new"))
    with LogReader.open(path) as reader:
        assert reader.range().last_seqno == 30


def test_a_flush_names_the_end_that_it_was_built_from() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        log.flush_index()
        end = len(disk.content(segment_path(1)))
        _, built_from = SeqnoIndex.restore(decode_table(disk.content(TABLE)))
        assert built_from == BuiltFrom(epoch=Epoch(log.epoch), end=lsn(1, end), history=HISTORY)
