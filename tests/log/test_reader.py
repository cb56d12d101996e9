"""log/reading/reader.py: what a reader in another process may see, by the positions file or by scanning."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    read_all,
    record_starts,
    segment_names,
    segment_path,
)
from tranlog.errors import (
    CorruptRecordError,
    LogClosedError,
    LogCodecError,
    LogMissingError,
    LogUnreadableError,
    PurgedError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.records.format import encode_header
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.testing.disk import SimDisk


def everything(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH) if name not in ("holds", "cut")}


def test_no_log_is_named(tmp_path: Path) -> None:
    """D: testLogReadonlyNonExistent; the issue's bad input."""
    with pytest.raises(LogMissingError, match="does not exist"):
        LogReader.open(tmp_path / "nowhere")
    with pytest.raises(LogMissingError, match="no segment"):
        LogReader.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LogMissingError, match="not a directory"):
        LogReader.open(tmp_path / "file")


def test_an_unreadable_log_is_named() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 1)
    disk.denied.add(PATH)
    with pytest.raises(LogUnreadableError, match="Permission denied"):
        open_reader(disk)
    disk.denied = {segment_path(1)}
    with pytest.raises(LogUnreadableError, match="Permission denied"):
        open_reader(disk)
    disk.denied.clear()
    disk.broken.add(segment_path(1))
    with pytest.raises(LogUnreadableError, match=r"Input/output error\. Check the path and its disk"):
        open_reader(disk)


def test_a_log_of_the_ancestors_codec_is_named() -> None:
    """log-format.md, first paragraph. The bytes are those of the format's own description, B1."""
    disk = SimDisk()
    disk.make_dir(PATH)
    record = (60).to_bytes(4, "big") + b"\x01" + (0).to_bytes(8, "big") + bytes(47)
    disk.open(segment_path(1), write=True, create=True).pwrite(encode_header(-1) + record, 0)
    before = everything(disk)
    for _ in range(2):
        with pytest.raises(LogCodecError, match="Tungsten"):
            open_reader(disk)
        with pytest.raises(LogCodecError, match="thl convert"):
            open_log(disk)
    assert disk.content(segment_path(1)) == before["thl.data.0000000001"]


def test_a_read_only_directory_works() -> None:
    """Opening for reading changes no byte, and needs no lock."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000)
    fill(log, 20)
    before = everything(disk)
    disk.read_only = True
    calls = disk.calls
    for forget in (False, True):
        with open_reader(disk) as reader:
            assert len(contents(reader)) == 20
            assert len(reader.index()) == len(segment_names(disk))
            assert reader.header(Seqno(3)) is not None
        assert (everything(disk), disk.calls) == (before, calls)
        if not forget:
            disk.read_only = False
            forget_positions(disk)
            before.pop("positions")
            calls = disk.calls
            disk.read_only = True


def test_a_reader_can_neither_append_nor_commit_nor_remove() -> None:
    """D: testReadonlyNoWrite: it has no such method, whoever holds the lock; and the writer goes on beside it."""
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        fill(log, 3)
        before = everything(disk)
        changing = {name for name in vars(Log) if not name.startswith("_")} - {name for name in dir(reader)}
        assert {"append", "commit", "rollback", "purge", "allocate", "transact", "flush_index"} <= changing
        assert len(contents(reader)) == 3
        reader.close()
        assert everything(disk) == before
        fill(log, 1)


def test_the_range_follows_the_writer() -> None:
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        found = reader.range()
        assert (found.first_seqno, found.last_seqno, found.durable_seqno, found.committed_seqno) == (0, 0, 0, 0)
        assert (found.epoch, found.scanned) == (1, False)
        log.append(make_fragment())
        log.commit(sync=False)
        found = reader.range()
        assert (found.last_seqno, found.durable_seqno, found.committed_seqno) == (1, 0, 0)
        log.commit()
        assert reader.range().committed_seqno == 1


def damage_positions(disk: SimDisk, how: str) -> SimDisk:
    match how:
        case "missing":
            forget_positions(disk)
        case "damaged":
            flip(disk, f"{PATH}/positions", 60)
        case "empty":
            disk.set_content(f"{PATH}/positions", b"")
        case "another boot":
            disk._boot += 1
        case "a copy":
            disk.copy_files(PATH, "/copied")
            copied = SimDisk()
            copied._numbers = 1_000
            copied._root.entries["log"] = disk._folder("/copied")
            return copied
        case _:
            raise AssertionError(how)
    return disk


@pytest.mark.parametrize("how", ["missing", "damaged", "empty", "another boot", "a copy"])
def test_without_trustworthy_positions_a_reader_scans(how: str) -> None:
    """log-format.md: visible = last complete transaction, committed = what a sync record proves."""
    disk = SimDisk()
    log = open_log(disk, buffer_bytes=1)
    fill(log, 3)
    log.append(make_fragment("e3"))
    log.append(make_fragment("e4"))
    log.append(make_fragment("open", last=False))
    disk = damage_positions(disk, how)
    with open_reader(disk) as reader:
        found = reader.range()
        assert (found.first_seqno, found.last_seqno) == (0, 5)
        assert (found.durable_seqno, found.committed_seqno) == (3, 3)
        assert (found.epoch, found.scanned) == (1, True)
        assert [one[1] for one in contents(reader)] == ["e0", "e1", "e2", "e3", "e4"]
        with reader.cursor(committed_only=True) as cursor:
            assert len(read_all(cursor)) == 4


def test_a_scanning_reader_follows_the_writer_too() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        forget_positions(disk)
        with open_reader(disk) as reader, reader.cursor() as cursor:
            assert reader.range().scanned
            assert len(read_all(cursor)) == 1
            for number in range(60):
                log.append(make_fragment(f"e{number}", make_payload(number, 100)))
                log.commit(sync=False)
                (found,) = read_all(cursor)
                assert b"".join(found.payloads()) == make_payload(number, 100)
            fill(log, 1, start=60)
            assert not reader.range().scanned, "the writer's sync restored the positions file, and it is found"
            assert len(read_all(cursor)) == 1


def test_a_torn_tail_is_an_end_for_a_scanning_reader() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    log.append(make_fragment("torn"))
    log.commit(sync=False)
    forget_positions(disk)
    raw = disk.content(segment_path(1))
    disk.set_content(segment_path(1), raw[:-5])
    with open_reader(disk) as reader:
        assert reader.range().last_seqno == 3
        disk.set_content(segment_path(1), raw)
        assert reader.range().last_seqno == 4, "it was only half there"


def test_damage_is_no_end_for_a_scanning_reader() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 5)
    forget_positions(disk)
    start = record_starts(disk, 1)[3]
    flip(disk, segment_path(1), start + 60)
    with pytest.raises(CorruptRecordError) as caught:
        open_reader(disk)
    assert (caught.value.segment, caught.value.offset) == ("thl.data.0000000001", start)
    with open_reader(disk, checksum=False) as reader:
        assert len(contents(reader)) == 5


def test_damage_that_shows_while_scanning_on() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 2)
        forget_positions(disk)
        with open_reader(disk) as reader:
            assert reader.range().last_seqno == 2
            log.append(make_fragment())
            log.commit(sync=False)
            size = len(disk.content(segment_path(1)))
            with log._steps.lock:
                log._end.sync_now()
            log.append(make_fragment())
            log.commit(sync=False)
            flip(disk, segment_path(1), size - 10)
            with pytest.raises(CorruptRecordError):
                reader.range()


@pytest.mark.parametrize("seed", range(5))
def test_a_log_copied_while_it_is_written_is_a_log(seed: int) -> None:
    """B, "log copied while open": files are copied one by one while the writer goes on."""
    rng = random.Random(seed)
    disk = SimDisk()
    with open_log(disk, segment_bytes=3_000, buffer_bytes=rng.choice((1, 500, 10_000))) as log:
        names: list[str] = []
        copied: dict[str, bytes] = {}
        for number in range(200):
            log.append(make_fragment(f"e{number}", make_payload(number, 100)))
            if number % 3 == 0:
                log.commit(sync=number % 2 == 0)
            if number == 100:
                names = sorted(name for name in disk.list_dir(PATH) if name != "disklog.lck")
                rng.shuffle(names)
                names.sort(key=lambda name: name.startswith("thl"), reverse=bool(seed % 2))
            if number > 100 and names:
                name = names.pop()
                copied[name] = disk.content(f"{PATH}/{name}")
        assert not names
    copy = SimDisk()
    copy._numbers = 500
    copy.make_dir(PATH)
    for name, raw in copied.items():
        copy.open(f"{PATH}/{name}", write=True, create=True).pwrite(raw, 0)
    with open_reader(copy) as reader:
        assert reader.range().scanned
        found = contents(reader)
    assert found == [(n + 1, f"e{n}", make_payload(n, 100)) for n in range(len(found))]
    assert len(found) > 90
    with open_log(copy) as log:
        assert contents(log) == found
        fill(log, 1)


def test_a_copy_on_the_same_machine_is_told_from_the_log(tmp_path: Path) -> None:
    """The same boot id and the same bytes, but another file: its positions are not believed."""
    with Log.open(tmp_path / "log", source_id="db1") as log:
        fill(log, 5)
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        fill(log, 5, start=5)
        with LogReader.open(tmp_path / "copy") as reader:
            assert reader.range().scanned
            assert len(contents(reader)) == 5
        shutil.copy(tmp_path / "log" / "positions", tmp_path / "copy" / "positions")
        with LogReader.open(tmp_path / "copy") as reader:
            assert len(contents(reader)) == 5


def test_the_index_lists_segments() -> None:
    """B7-6: the ancestor's `thl info` counted max - min."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log, open_reader(disk) as reader:
        fill(log, 30)
        entries = reader.index()
        assert [one.name for one in entries] == segment_names(disk)
        assert sum(one.last_seqno - one.first_seqno + 1 for one in entries) == 31
        assert [one.bytes for one in entries] == [len(disk.content(segment_path(one.number))) for one in entries]
        assert all(one.written_at == 1_700_000_000_000 for one in entries)


def test_an_empty_range_before_the_first_record() -> None:
    """Between the first segment's creation and its no-op there is a log with nothing in it."""
    disk = SimDisk()
    disk.make_dir(PATH)
    disk.open(segment_path(1), write=True, create=True).pwrite(encode_header(-1), 0)
    with open_reader(disk) as reader:
        found = reader.range()
        assert (found.first_seqno, found.last_seqno, found.committed_seqno) == (NO_SEQNO, NO_SEQNO, NO_SEQNO)
        assert reader.header(Seqno(0)) is None
        assert reader.cursor().next() is None
        assert len(reader.index()) == 1


def test_a_closed_reader_says_so() -> None:
    disk = SimDisk()
    with open_log(disk):
        reader = open_reader(disk)
        reader.close()
        reader.close()
        with pytest.raises(LogClosedError):
            reader.range()


def test_fragments_behind_the_limit_are_never_shown() -> None:
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log, open_reader(disk) as reader, reader.cursor() as cursor:
        append_large(log, "whole", [b"1", b"2"])
        log.append(make_fragment("half", last=False))
        log.commit()
        assert [one.header.event_id for one in read_all(cursor)] == ["", "whole"]
        log.append(make_fragment("half"))
        assert cursor.next() is None
        log.commit(sync=False)
        assert [one.fragments for one in read_all(cursor)] == [2]


def test_readers_meet_rotation_and_purge_at_any_moment() -> None:
    """Opening, reading and closing while the writer rotates and purges as fast as it can."""
    disk = SimDisk()
    with Log.open(PATH, source_id="db1", disk=disk, options=LogOptions(segment_bytes=1_000)) as log:
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                fill(log, 5, start=number)
                number += 5
                log.purge(below=Seqno(max(log.visible_seqno - 60, 0)))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            overtaken = 0
            for _ in range(150):
                with LogReader.open(PATH, disk=disk) as reader, reader.cursor() as cursor:
                    found = reader.range()
                    try:
                        cursor.seek(Seqno(max(found.last_seqno - 5, found.first_seqno)))
                        shown = [one.header.seqno for one in read_all(cursor)]
                    except PurgedError:
                        overtaken += 1
                        continue
                    assert shown == list(range(shown[0], shown[-1] + 1))
                    assert shown[-1] >= found.last_seqno
                    reader.index()
            assert overtaken < 100
        finally:
            stop.set()
            writer.join()


def test_what_a_reader_does_not_show_is_named() -> None:
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        fill(log, 3)
        last = reader.range().last_seqno
        assert reader.h(last)
        for look in (reader.payload, reader.h):
            with pytest.raises(ValueError, match=f"shows no seqno {last + 1}: its last one is {last}"):
                look(Seqno(last + 1))
        with pytest.raises(ValueError, match="shows no seqno"):
            log.h(Seqno(last + 1))
