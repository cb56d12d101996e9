"""The containers of a store, read by a process that does not own it while the owner continues to write.

Owns the distinction between an owner's changes and damage. The hard idea: a container's number is used once. So bytes
that were read are those of a container in use if its name still exists afterwards. If it does not, nothing in it is
needed any more, and the walk starts again at the lowest container in use.

Source: docs/format.md, "A store's directory".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tranlog.disk import Disk, DiskFile
from tranlog.errors import CatalogueError, LogUnreadableError, StoreDamagedError, StoreMissingError
from tranlog.ids import Lsn
from tranlog.log.files.directory import directory_of, join, reading
from tranlog.lsn import lsn_segment
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.catalogue_place import open_database, read_connect
from tranlog.queues.files.containers import ContainerFiles
from tranlog.queues.files.recovering import check_catalogue, read_headers, scan_log
from tranlog.queues.rules.records import STORE_ID_BYTES, ContainerHeader, QueueRecord, container_name
from tranlog.queues.rules.recovery import LogScan
from tranlog.queues.rules.state import QueueState

LOOKS_MOST = 100
"""So often a walk begins again before the reader gives up."""

FoundT = TypeVar("FoundT")


class ContainersBeside(ContainerFiles):
    """The containers of a store, opened for reading alone.

    Reading raises FileNotFoundError for a container that is not in use any more, or was given back meanwhile.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        """Raises StoreMissingError, LogUnreadableError."""
        super().__init__(directory_of(path), disk, container_bytes=0, store_id=bytes(STORE_ID_BYTES))
        self.disk = disk
        self.look()

    def look(self) -> None:
        """List the containers. Raises StoreMissingError, LogUnreadableError."""
        try:
            with reading(self.path):
                self.list()
        except LogUnreadableError as exc:
            if isinstance(exc.__cause__, FileNotFoundError | NotADirectoryError):
                raise StoreMissingError(path=self.path, why="there is no such directory") from exc
            raise
        if not self.in_use:
            raise StoreMissingError(path=self.path, why="it holds no container (queue.*)")

    def file(self, number: int) -> DiskFile:
        """Return a container in use, open for reading."""
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = self._disk.open(join(self.path, container_name(number)))
        return found

    def read_header(self, number: int) -> ContainerHeader:
        """Return the header of a container in use. Raises StoreDamagedError."""
        with self._in_use(number):
            return super().read_header(number)

    def read(self, number: int) -> bytes:
        """Return all bytes of a container in use. One that the newest leads to counts as in use from then on."""
        with self._in_use(number):
            raw = super().read(number)
        if number == self.in_use[-1] and self._is_there(number + 1):
            self.in_use.append(number + 1)
        return raw

    def read_record(self, place: Lsn) -> QueueRecord:
        """Return the record at a place where there is one. Raises StoreDamagedError."""
        with self._in_use(lsn_segment(place)):
            return super().read_record(place)

    @contextmanager
    def _in_use(self, number: int) -> Iterator[None]:
        """Have what is read meanwhile count only if the container is in use at the end, too."""
        try:
            yield
        except StoreDamagedError:
            if self._is_there(number):
                raise
        if not self._is_there(number):
            raise FileNotFoundError(container_name(number))

    def _is_there(self, number: int) -> bool:
        return self._disk.exists(join(self.path, container_name(number)))


def of_one_moment(files: ContainersBeside, read: Callable[[ContainersBeside], FoundT]) -> FoundT:
    """Return what `read` finds in the containers; call it again if the owner freed one meanwhile.

    Damage is reported when it is found at the same place twice: the owner may have been writing during a read. Raises
    StoreDamagedError, StoreMissingError, LogUnreadableError.
    """
    refused = ""
    for _ in range(LOOKS_MOST):
        files.look()
        try:
            with reading(files.path):
                return read(files)
        except LogUnreadableError as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
        except StoreDamagedError as exc:
            if str(exc) == refused:
                raise
            refused = str(exc)
    why = f"its owner took containers into use again each of {LOOKS_MOST} times that they were read"
    raise LogUnreadableError(path=files.path, why=why, remedy="Ask the owner, or again while less goes through it")


def scan_beside(files: ContainersBeside) -> tuple[list[ContainerHeader], LogScan]:
    """Read the headers and the records of all containers in use. Raises as `of_one_moment`."""
    return of_one_moment(files, lambda files: (read_headers(files), scan_log(files, QueueState())))


def read_store(files: ContainersBeside) -> tuple[LogScan, Catalogue]:
    """Read the containers, then the catalogue, which is closed again, and compare them.

    Raises as `of_one_moment`, CatalogueError.
    """
    refused, connect = "", read_connect(files.path, files.disk)
    while True:
        _, scan = scan_beside(files)
        catalogue = Catalogue(open_database(files.path, connect, reading=True), reading=True)
        try:
            catalogue.load(None, 0)
            check_catalogue(scan, files, catalogue)
        except CatalogueError as exc:
            if str(exc) == refused:
                raise
            refused = str(exc)  # of another moment, perhaps: a store was put back, or opened, in between
            continue
        finally:
            catalogue.close()
        return scan, catalogue
