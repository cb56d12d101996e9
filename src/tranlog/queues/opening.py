"""Opening a message store: the lock, the catalogue, the containers, and recovery.

Owns the order in which the parts of a store are opened, and closing them. Nothing is changed before the lock is taken,
and no existing file before it has been judged.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, "Recovery".
"""

from __future__ import annotations

import contextlib
import gc
import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import apsw

from tranlog.clock import Clock
from tranlog.disk import Disk
from tranlog.errors import CatalogueError, ConfigError, LogMissingError, StoreDamagedError, StoreMissingError
from tranlog.forking import tell_of_forks
from tranlog.log.files.directory import join, list_names, make_directory, sign_lock, storage_error, take_lock
from tranlog.log.files.ownership import OwnedDisk, Ownership
from tranlog.queues.core import StoreCore
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.catalogue_place import connect_of, keep_connect, open_database, read_connect
from tranlog.queues.files.containers import ContainerFiles
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.files.recovering import (
    StoreOpening,
    StoreRecovery,
    check_catalogue,
    create_containers,
    read_headers,
    scan_log,
)
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.records import (
    CATALOGUE_NAME,
    CONTAINER_PREFIX,
    FREE_PREFIX,
    STORE_ID_BYTES,
    STORE_LOCK_NAME,
    container_name,
    number_of,
)
from tranlog.queues.rules.recovery import next_epoch
from tranlog.queues.rules.state import QueueState
from tranlog.queues.transaction import in_doubt, outcome_bytes
from tranlog.queues.transient import TransientMessages

Connect: TypeAlias = Callable[[str], apsw.Connection]
"""Opens a catalogue by its path."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class OpenedStore:
    """The parts of an open store."""

    ownership: Ownership
    clock: Clock
    files: ContainerFiles
    catalogue: Catalogue
    core: StoreCore
    recovered: StoreRecovery

    def __post_init__(self) -> None:
        tell_of_forks(self)

    def let_go(self) -> None:
        """Close the files and release the lock; of a forked child the catalogue's session is its parent's."""
        if not self.ownership.foreign():
            self.catalogue.close()
        self.files.close()
        self.ownership.release()

    def forked(self) -> None:
        """In a child that was just forked: keep nothing that is the parent's, nor a lock that nobody here will free."""
        self.ownership.foreign()
        self.core.journal.forked()
        self.ownership.release()  # the parent keeps its own; were it killed, this one would keep the store locked


def open_store(path: str, options: QueueStoreOptions, disk: Disk, clock: Clock, connect: Connect | None) -> OpenedStore:
    """Take the lock, repair what a crash left, begin an epoch; see `MessageStore.open`."""
    try:
        _check_room(path, options, disk)
        make_directory(path, disk)
        lock_file = take_lock(path, disk, STORE_LOCK_NAME)
        ownership = Ownership(path, lock_file, lost=lambda: None, lock_name=STORE_LOCK_NAME)
        owned = OwnedDisk(disk, ownership)
        files = ContainerFiles(path, owned, container_bytes=options.container_bytes, store_id=bytes(STORE_ID_BYTES))
        catalogue = None
        try:
            files.list()
            catalogue = _open_catalogue(files, owned, clock, connect, options)
            with _without_collections():
                opened = _recover(files, catalogue, owned, ownership, clock, options)
            if options.connect is not None:
                keep_connect(path, owned, connect_of(options.connect, options.catalog) or "")
            sign_lock(path, owned, STORE_LOCK_NAME)
        except BaseException:
            if catalogue is not None:
                catalogue.close()
            files.close()
            ownership.release()
            raise
    except LogMissingError as exc:
        raise StoreMissingError(path=exc.path, why=exc.why) from exc
    except OSError as exc:
        raise storage_error(exc, path) from exc
    return opened


def _check_room(path: str, options: QueueStoreOptions, disk: Disk) -> None:
    """Refuse a store whose containers the disk has no room for, before anything of it is made. Raises ConfigError."""
    there = disk.exists(path)
    where = path if there else posixpath.dirname(path) or "."
    names = list_names(path, disk) if there else []
    if any(number_of(name, CONTAINER_PREFIX) for name in names) or not disk.exists(where):
        return
    wanted = options.initial_containers - sum(number_of(name, FREE_PREFIX) is not None for name in names)
    needed, free = wanted * options.container_bytes, disk.free_bytes(where)
    if free is not None and needed > free:
        size = options.container_bytes
        why = f"so many containers of {size} bytes take {needed} bytes at {path}, and {free} are free there"
        raise ConfigError(option="initial_containers", value=options.initial_containers, why=why)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Make no garbage collection meanwhile: recovery makes an object for each message, and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open_catalogue(
    files: ContainerFiles, disk: Disk, clock: Clock, connect: Connect | None, options: QueueStoreOptions
) -> Catalogue:
    path = join(files.path, CATALOGUE_NAME)
    named = connect_of(options.connect, options.catalog) or read_connect(files.path, disk)
    if named is None and files.in_use and not disk.exists(path):
        raise CatalogueError(path=path, why="it is missing, and there are containers with messages")
    if named is not None and disk.exists(path):
        raise CatalogueError(path=path, why="it is there, and `connect` names another; a store has one catalogue")
    new_id = None if files.in_use else os.urandom(STORE_ID_BYTES)
    database = open_database(files.path, named, connect or apsw.Connection, create=not files.in_use)
    catalogue = Catalogue(database)
    try:
        catalogue.load(new_id, clock.now_ms(), options.initial_containers)
        if named is not None and not files.in_use and catalogue.epoch == 0:
            keep_connect(files.path, disk, named)
    except BaseException:
        catalogue.close()
        raise
    return catalogue


def _recover(
    files: ContainerFiles,
    catalogue: Catalogue,
    disk: Disk,
    ownership: Ownership,
    clock: Clock,
    options: QueueStoreOptions,
) -> OpenedStore:
    created = catalogue.epoch == 0
    initial = catalogue.initial_containers or options.initial_containers
    if created:
        disk.sync_dir(posixpath.dirname(files.path) or ".")  # its own entry, too
    if not files.in_use:
        if not created:
            why = f"it is missing, and the catalogue was opened in epoch {catalogue.epoch}"
            raise StoreDamagedError(path=files.path, file=container_name(1), offset=0, why=why)
        files.store_id = catalogue.store_id
        create_containers(files, initial, now_ms=clock.now_ms())
    headers = read_headers(files)
    state = QueueState()
    scan = scan_log(files, state)
    check_catalogue(scan, files, catalogue)
    journal = QueueJournal(
        files,
        clock,
        ownership,
        state,
        initial_containers=initial,
        write_buffers=options.write_buffers,
    )
    opening = StoreOpening(disk, clock, files, catalogue, scan, next_epoch(scan, headers, catalogue.epoch))
    recovered = opening.run(journal, created=created)
    transient = TransientMessages(files.path, options.transient_bytes)
    core = StoreCore(journal, state, catalogue, clock, options.content_bytes, transient)
    journal.reserved = sum(outcome_bytes(len(one.operations)) for one in in_doubt(core).values())
    return OpenedStore(
        ownership=ownership, clock=clock, files=files, catalogue=catalogue, core=core, recovered=recovered
    )
