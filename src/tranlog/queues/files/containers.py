"""The containers of a store as files: created, taken into use, read, freed, removed.

Owns their names and the order of writing, renaming and syncing. `rules.containers` and the journal decide which
containers, and when. The hard idea: the name says what a container is, and is changed last. So after a crash each
container is either free, and its bytes do not count, or in use with a complete header.

Source: docs/format.md, "A store's directory".
"""

from __future__ import annotations

from contextlib import closing

from mypy_extensions import mypyc_attr

from tranlog.disk import Disk, DiskFile
from tranlog.errors import StoreDamagedError
from tranlog.ids import Lsn
from tranlog.log.files.directory import join
from tranlog.lsn import lsn_offset, lsn_segment
from tranlog.queues.rules.records import (
    CONTAINER_PREFIX,
    FREE_PREFIX,
    HEAD,
    HEADER_BYTES,
    ContainerHeader,
    QueueRecord,
    container_name,
    encode_header,
    free_name,
    number_of,
    parse,
    parse_header,
)

_ZEROS = bytes(1 << 20)


@mypyc_attr(allow_interpreted_subclasses=True)
class ContainerFiles:
    """The files of one store. Raises OSError as the disk does. The store's lock guards it."""

    def __init__(self, path: str, disk: Disk, *, container_bytes: int, store_id: bytes) -> None:
        self.path = path
        self.container_bytes = container_bytes
        self.store_id = store_id
        self.in_use: list[int] = []
        """Numbers, rising."""
        self.free: list[int] = []
        self._disk = disk
        self._open: dict[int, DiskFile] = {}

    def list(self) -> None:
        """List the containers."""
        names = self._disk.list_dir(self.path)
        self.in_use = sorted(filter(None, (number_of(name, CONTAINER_PREFIX) for name in names)))
        self.free = sorted(filter(None, (number_of(name, FREE_PREFIX) for name in names)))

    def file(self, number: int) -> DiskFile:
        """Return a container in use, open for writing."""
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = self._disk.open(join(self.path, container_name(number)), write=True)
        return found

    def read_header(self, number: int) -> ContainerHeader:
        """Return the header of a container in use. Raises StoreDamagedError."""
        file = self._disk.open(join(self.path, container_name(number)))
        try:
            header = parse_header(file.pread(HEADER_BYTES, 0))
            size = file.size()
        finally:
            file.close()
        why = header if isinstance(header, str) else ""
        if not isinstance(header, str):
            if header.number != number:
                why = f"its header says that it is number {header.number}"
            elif header.container_bytes != size:
                why = f"it has {size} bytes, and its header says {header.container_bytes}"
            else:
                return header
        raise StoreDamagedError(path=self.path, file=container_name(number), offset=0, why=why)

    def read_free_header(self, number: int) -> ContainerHeader | None:
        """Return the header that a free container has of its last use; None for one that was never used."""
        with closing(self._disk.open(join(self.path, free_name(number)))) as file:
            header = parse_header(file.pread(HEADER_BYTES, 0))
        return None if isinstance(header, str) else header

    def read(self, number: int) -> bytes:
        """Return all bytes of a container in use."""
        file = self._disk.open(join(self.path, container_name(number)))
        try:
            return file.pread(self.container_bytes, 0)
        finally:
            file.close()

    def read_record(self, place: Lsn) -> QueueRecord:
        """Return the record at a place where there is one. Raises StoreDamagedError."""
        number, offset = lsn_segment(place), lsn_offset(place)
        file = self.file(number)
        length = int.from_bytes(file.pread(HEAD.size, offset)[:4], "big")
        raw = file.pread(min(length, self.container_bytes - offset), offset)
        # `parse` takes places in the container: what stands before is not read.
        found = parse(memoryview(raw), 0, number, 0, start=offset)
        if isinstance(found, QueueRecord):
            return found
        raise StoreDamagedError(path=self.path, file=container_name(number), offset=offset, why=found.why)

    def check_free(self) -> None:
        """Remove free containers that a crash left incomplete."""
        for number in list(self.free):
            file = self._disk.open(join(self.path, free_name(number)))
            try:
                whole = file.size() == self.container_bytes
            finally:
                file.close()
            if not whole:
                self.remove(number)

    def make_free(self) -> None:
        """Add a free container, filled with zeros, durably; if the disk is full, leave nothing of it."""
        number = max((*self.in_use, *self.free), default=0) + 1
        path = join(self.path, free_name(number))
        file = self._disk.open(path, write=True, create=True)
        try:
            for at in range(0, self.container_bytes, len(_ZEROS)):
                file.pwrite(memoryview(_ZEROS)[: self.container_bytes - at], at)
            file.sync()
        except OSError:
            self._disk.unlink(path)
            raise
        finally:
            file.close()
        self._disk.sync_dir(self.path)
        self.free.append(number)

    def take(self, number: int, *, epoch: int, base: Lsn, now_ms: int) -> None:
        """Take the lowest free container into use as `number`, durably."""
        free = min(self.free)
        header = ContainerHeader(self.container_bytes, self.store_id, number, epoch, base, now_ms)
        old, new = join(self.path, free_name(free)), join(self.path, container_name(number))
        file = self._disk.open(old, write=True)
        try:
            file.pwrite(encode_header(header), 0)
            file.sync()
        finally:
            file.close()
        self._disk.rename(old, new)
        self.free.remove(free)
        self.in_use.append(number)
        self._disk.sync_dir(self.path)

    def give_back(self, number: int) -> None:
        """Free the lowest container in use, durably. It keeps its number; one that was never used gets another."""
        file = self._open.pop(number, None)
        if file is not None:
            file.close()
        if number in self.free:
            other = max(*self.in_use, *self.free) + 1
            self._disk.rename(join(self.path, free_name(number)), join(self.path, free_name(other)))
            self._disk.sync_dir(self.path)
            self.free[self.free.index(number)] = other
        self._disk.rename(join(self.path, container_name(number)), join(self.path, free_name(number)))
        self._disk.sync_dir(self.path)
        self.in_use.remove(number)
        self.free.append(number)

    def remove(self, number: int) -> None:
        """Remove a free one."""
        self._disk.unlink(join(self.path, free_name(number)))
        self.free.remove(number)

    def close(self) -> None:
        """Close whatever is open."""
        for file in self._open.values():
            file.close()
        self._open.clear()
