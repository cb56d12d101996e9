"""Checking a store: a flipped bit, a hole, a contradiction; told by container, offset and object."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fix_effort import Effort
from tranlog.disk import OsDisk, OsFile
from tranlog.errors import CatalogueError, StoreDamagedError
from tranlog.lsn import lsn_text
from tranlog.queues.by_hand import verify_store
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.encoding import encode
from tranlog.queues.rules.records import (
    BODIES,
    CATALOGUE_NAME,
    ENQUEUE,
    HEADER_BYTES,
    NEXT,
    OVERHEAD,
    QueueRecord,
    container_name,
    parse,
)
from tranlog.queues.store import MessageStore

SIZE = 12_288


class BytesFile:
    """A file of a `ReadInMemory`: what of `DiskFile` a reader uses."""

    def __init__(self, raw: bytearray) -> None:
        self._raw = raw

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self._raw[offset : offset + size])

    def size(self) -> int:
        return len(self._raw)

    def close(self) -> None:
        pass


class ReadInMemory(OsDisk):
    """A disk of which one directory's containers are read from memory, where a test changes them."""

    def __init__(self, path: Path) -> None:
        self.files = {str(one): bytearray(one.read_bytes()) for one in sorted(path.glob("queue.*"))}
        self._names = sorted(one.name for one in path.iterdir())

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        raw = self.files.get(path)
        return super().open(path) if raw is None else BytesFile(raw)  # type: ignore[return-value]

    def list_dir(self, path: str) -> list[str]:
        return self._names

    def exists(self, path: str) -> bool:
        return path in self.files or super().exists(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of which the first container is full, by records of most kinds; closed cleanly."""
    made = tmp_path / "s"
    with MessageStore.open(made, options=QueueStoreOptions(container_bytes=SIZE, ack_sync_s=None)) as store:
        store.declare("a")
        store.declare("b")
        store.publish(b"x" * 2_600, queues=["a", "b"], header=b"h")
        store.publish_once("p", 1, b"y" * 2_600, queues=["a"])
        session = store.session()
        session.tpc_begin(b"xid")
        session.publish(b"z" * 1_700, queues=["a"])
        session.tpc_prepare()
        while store._journal.buffer.number == 1:
            delivery = store.get("b")
            assert delivery is not None
            store.requeue(delivery)
            store.sync()
    return made


def records_of(raw: bytearray) -> list[QueueRecord]:
    """Return the records of a first container, to its Next."""
    found: list[QueueRecord] = []
    offset = HEADER_BYTES
    while not found or found[-1].record_type != NEXT:
        record = parse(memoryview(bytes(raw)), offset, 1, 0)
        assert isinstance(record, QueueRecord)
        found.append(record)
        offset += record.length
    return found


@pytest.mark.timeout(600)
def test_each_flipped_bit_of_a_container_is_found_and_named(path: Path, effort: Effort) -> None:
    """By container and offset: of its header 0, of a record where that begins."""
    disk = ReadInMemory(path)
    assert verify_store(str(path), disk=disk).messages == 3
    name = container_name(1)
    raw = disk.files[str(path / name)]
    starts = [0, *(one.lsn & 0xFFFFFFFF for one in records_of(raw))]
    end = starts[-1] + records_of(raw)[-1].length
    assert len(starts) > 15 and SIZE - end < 64
    at = 0
    for bit in range(0, 8 * end, effort(997, 1, 1)):
        while at + 1 < len(starts) and starts[at + 1] <= bit // 8:
            at += 1
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamagedError) as refused:
            verify_store(str(path), disk=disk)
        raw[bit // 8] ^= 1 << bit % 8
        found = refused.value
        assert (found.file, found.offset) == (name, starts[at]), f"bit {bit}: {found}"
    assert verify_store(str(path), disk=disk).messages == 3


def test_what_a_damaged_record_belongs_to_is_named(path: Path) -> None:
    """Its message or transaction, where it is not the start of one itself."""
    disk = ReadInMemory(path)
    raw = disk.files[str(path / container_name(1))]
    found = set()
    for record in records_of(raw):
        if record.undo_prev:
            at = (record.lsn & 0xFFFFFFFF) + OVERHEAD - 4
            raw[at] ^= 1
            name = BODIES[record.record_type][0]
            with pytest.raises(StoreDamagedError, match=f"which reads {name} of {lsn_text(record.undo_prev)},"):
                verify_store(str(path), disk=disk)
            raw[at] ^= 1
            found.add(name)
    assert found >= {"Enqueue", "Prepare", "Attempt"}


def test_a_hole_is_found_wherever_it_is(path: Path) -> None:
    """Zeros in the place of a record, or of all behind it; a container that is gone."""
    disk = ReadInMemory(path)
    raw = disk.files[str(path / container_name(1))]
    whole = bytes(raw)
    for record in records_of(raw):
        begin = record.lsn & 0xFFFFFFFF
        for end in (begin + record.length, SIZE):
            raw[begin:end] = bytes(end - begin)
            with pytest.raises(StoreDamagedError, match=f"{container_name(1)}, offset {begin}: zeros"):
                verify_store(str(path), disk=disk)
            raw[:] = whole
    (path / container_name(1)).unlink()
    (path / container_name(2)).rename(path / container_name(4))
    with pytest.raises(StoreDamagedError, match="4"):
        verify_store(str(path))


def test_records_that_contradict_each_other_are_named_by_their_object(path: Path) -> None:
    """A checksum that is right does not make a record so: here an Enqueue stands twice."""
    disk = ReadInMemory(path)
    raw = disk.files[str(path / container_name(1))]
    first, second = [one for one in records_of(raw) if one.record_type == ENQUEUE][:2]
    begin = second.lsn & 0xFFFFFFFF
    again = encode(ENQUEUE, second.flags, second.epoch, second.lsn, second.undo_prev, bytes(first.body))
    raw[begin : begin + second.length] = again
    message = lsn_text(first.undo_prev)
    with pytest.raises(StoreDamagedError, match=f"offset {begin}: message {message} is put on queue 3 twice"):
        verify_store(str(path), disk=disk)


def test_a_catalogue_that_contradicts_the_log_is_found(path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copy(path / CATALOGUE_NAME, old)
    with MessageStore.open(path) as store:
        store.declare("c")
        store.publish(b"x", queues=["c"])
    shutil.copy(old, path / CATALOGUE_NAME)
    with pytest.raises(CatalogueError, match="the catalogue is an older copy"):
        verify_store(str(path))
