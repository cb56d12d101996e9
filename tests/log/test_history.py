"""The identity of a log's history: made once, borne by every segment and spill segment, and held against each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_log import HISTORY, PATH, fill, make_fragment, open_log, open_reader
from tranlog.disk import OsDisk
from tranlog.errors import ForeignHistoryError, LogReplacedError
from tranlog.ids import NO_SEQNO, Seqno, segment_name
from tranlog.log.files.index_table import INDEX_NAME, read_index
from tranlog.log.files.positions import POSITIONS_NAME, read_positions
from tranlog.log.records.format import HEADER, SyncRecord, encode_header, encode_sync, history_of, parse_record
from tranlog.log.records.spill import parse_spill_header, spill_name
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.lsn import lsn
from tranlog.testing.disk import SimDisk

SMALL = LogOptions(segment_bytes=2_000, spill_above=3_000)


def write_log(path: Path, count: int = 40, *, mark: bytes = b"", history: bytes | None = None) -> bytes:
    """Write a log of several segments and one that was spilled; return its history."""
    with Log.open(path, source_id="db1", options=SMALL, history=history) as log:
        for number in range(count):
            log.append(make_fragment(f"e{number}", mark + bytes(200)))
            log.commit()
        log.transact([make_fragment("large", mark + bytes(2_000), last=last) for last in (False, False, True)])
        return log.history


def read_all_of(path: Path) -> int:
    with LogReader.open(path) as reader, reader.cursor() as cursor:
        return sum(len(b"".join(one.payloads())) for one in cursor.scan(wait=False))


def opened(path: Path) -> None:
    Log.open(path, source_id="db1", options=SMALL).close()


def test_each_segment_and_spill_segment_bears_it_and_no_header_record_does(tmp_path: Path) -> None:
    """format.md, "The identity of the history"."""
    path = tmp_path / "log"
    history = write_log(path)
    assert len(history) == 16
    segments = sorted(path.glob("thl.data.*"))
    assert len(segments) > 3
    for segment in segments:
        raw = segment.read_bytes()
        number = int(segment.name[-10:])
        first = parse_record(raw, HEADER.size, lsn(number, HEADER.size))
        assert isinstance(first, SyncRecord) and first.history == history == history_of(raw, number)
        at = HEADER.size + first.record_length
        while not isinstance(record := parse_record(raw, at, lsn(number, at)), type(parse_record(b"", 0, 0))):
            assert not isinstance(record, SyncRecord) or record.history == b""
            at += record.record_length  # type: ignore[union-attr]
    (spill,) = path.glob("thl.spill.*[0-9]")
    begun = parse_spill_header(spill.read_bytes())
    assert begun is not None and begun[1] == history
    stored = read_index(str(path / INDEX_NAME), OsDisk())
    published = read_positions(str(path), OsDisk())
    assert stored is not None and published is not None
    assert stored[1].history == published.history == history


def test_it_is_made_once_and_a_copy_has_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    history = write_log(one)
    assert write_log(other) != history, "another log is another history"
    for _ in range(3):
        with Log.open(one, source_id="db1") as log:
            assert log.history == history
            with LogReader.open(one) as reader:
                assert reader.history == history
    shutil.copytree(one, tmp_path / "copy")
    with Log.open(tmp_path / "copy", source_id="db1") as log:
        assert log.history == history


def test_what_takes_over_every_transaction_is_given_it(tmp_path: Path) -> None:
    history = bytes(range(16))
    assert write_log(tmp_path / "log", history=history) == history
    with Log.open(tmp_path / "log", source_id="db1", history=b"x" * 16) as log:
        assert log.history == history, "a log with records has its own"


def test_a_log_that_was_cut_off_before_its_first_record_gets_one() -> None:
    disk = SimDisk()
    open_log(disk).close()
    raw = disk.content(f"{PATH}/{segment_name(1)}")
    for end in range(HEADER.size, HEADER.size + 58):
        disk.set_content(f"{PATH}/{segment_name(1)}", raw[:end])
        disk.unlink(f"{PATH}/{POSITIONS_NAME}")
        with open_log(disk) as log:
            assert log.history == HISTORY
            fill(log, 1)
        assert history_of(disk.content(f"{PATH}/{segment_name(1)}"), 1) == HISTORY


# --- what is of another log ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [read_all_of, opened, verify, repair], ids=lambda one: one.__name__)
@pytest.mark.parametrize("number", [2, 3])
def test_a_segment_of_another_log_is_refused_by_name(
    tmp_path: Path, what: Callable[[Path], object], number: int
) -> None:
    """Equal numbers, equal seqnos and equal lengths: nothing else tells it."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    history, other = write_log(ours), write_log(theirs, mark=b"theirs")
    name = segment_name(number)
    shutil.copy(theirs / name, ours / name)
    before = {one.name: one.read_bytes() for one in ours.glob("thl.*")}
    with pytest.raises(ForeignHistoryError) as caught:
        what(ours)
    assert (caught.value.file, caught.value.found, caught.value.history) == (name, other.hex(), history.hex())
    assert all(text in str(caught.value) for text in (name, other.hex(), history.hex(), "Restore"))
    assert {one.name: one.read_bytes() for one in ours.glob("thl.*")} == before, "nothing was changed"


@pytest.mark.parametrize("what", [read_all_of, opened, verify, repair], ids=lambda one: one.__name__)
def test_a_spill_segment_of_another_log_is_refused_by_name(tmp_path: Path, what: Callable[[Path], object]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    history, other = write_log(ours), write_log(theirs, mark=b"theirs")
    shutil.copy(theirs / spill_name(1), ours / spill_name(1))
    with pytest.raises(ForeignHistoryError) as caught:
        what(ours)
    assert (caught.value.file, caught.value.found, caught.value.history) == (spill_name(1), other.hex(), history.hex())


@pytest.mark.parametrize("what", [read_all_of, opened, verify], ids=lambda one: one.__name__)
def test_a_log_without_one_is_refused(tmp_path: Path, what: Callable[[Path], object]) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / segment_name(1)).write_bytes(encode_header(NO_SEQNO) + encode_sync(lsn(1, 16), lsn(1, 16), 1))
    with pytest.raises(ForeignHistoryError, match="earlier release"):
        what(path)


def test_an_index_of_another_log_does_not_serve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    history = write_log(ours)
    write_log(theirs, mark=b"1234567")
    shutil.copy(theirs / INDEX_NAME, ours / INDEX_NAME)
    with LogReader.open(ours) as reader, reader.cursor() as cursor:
        cursor.seek(Seqno(33))
        found = cursor.next()
        assert found is not None and found.header.event_id == "e32"
    assert "of the history" in caplog.text
    opened(ours)
    stored = read_index(str(ours / INDEX_NAME), OsDisk())
    assert stored is not None and stored[1].history == history


def test_positions_of_another_log_do_not_count(tmp_path: Path) -> None:
    """Moved within a file system it is the same inode, on the same start of the machine."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_log(ours, 40)
    write_log(theirs, 20)
    os.rename(theirs / POSITIONS_NAME, ours / POSITIONS_NAME)
    with LogReader.open(ours) as reader:
        assert reader.range().scanned and reader.range().last_seqno == 41


def test_a_reader_does_not_go_on_in_a_log_that_took_the_place_of_its_own() -> None:
    """The directory was removed and made anew beneath it: with equal seqnos, and more of them."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, 20)
    reader = open_reader(disk)
    cursor = reader.cursor()
    assert [one.header.seqno for one in cursor.scan(wait=False)] == list(range(21))
    for name in disk.list_dir(PATH):
        if not disk.exists(f"{PATH}/{name}/."):
            disk.unlink(f"{PATH}/{name}")
    with Log.open(PATH, source_id="db2", options=LogOptions(segment_bytes=2_000), disk=disk) as log:
        fill(log, 60)
        with pytest.raises(LogReplacedError, match="was reset or restored while it was read"):
            list(cursor.scan(until=Seqno(60)))
    assert cursor.next_seqno == 21, "nothing of the other log was returned"
    reader.close()


# --- the directory is what it was at opening ---------------------------------------------------------------------


def test_a_relative_path_stays_the_same_directory_after_a_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment, the positions, the index and the spill are opened later by path."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        write_log(tmp_path / place / "log", 10, mark=place.encode())
    monkeypatch.chdir(tmp_path / "here")
    log = Log.open("log", source_id="db1", options=SMALL)
    reader = LogReader.open("log")
    cursor = reader.cursor()
    monkeypatch.chdir(tmp_path / "there")
    for number in range(60):
        log.append(make_fragment(f"more {number}", b"here" + bytes(200)))
        log.commit()
    log.transact([make_fragment("large", b"here" + bytes(2_000), last=last) for last in (False, False, True)])
    found = [b"".join(one.payloads()) for one in cursor.scan(wait=False) if not one.is_noop()]
    assert len(found) == 72 and all(raw.startswith(b"here") for raw in found)
    assert Path(log.path) == tmp_path / "here" / "log" == Path(reader.path)
    log.close()
    reader.close()
    assert verify(tmp_path / "here" / "log").sound
    with LogReader.open(tmp_path / "there" / "log") as other:
        assert other.range().last_seqno == 11, "nothing was written to the other one"
