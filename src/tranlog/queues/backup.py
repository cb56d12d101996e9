"""Backup of a store: log and catalogue as of one moment, and restoring a store from it.

Owns that both are copied together, and that a copy is complete or absent: it is made under another name and renamed.
A backup is a store's directory with its catalogue in SQLite, also where the store's own is in PostgreSQL.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, "Recovery".
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tranlog.disk import Disk, OsDisk
from tranlog.errors import CatalogueError, ConfigError, LogMissingError
from tranlog.log.files.directory import directory_of, join, make_directory, storage_error
from tranlog.queues.by_hand import StoreVerdict, verify_store
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.catalogue_place import connect_of, keep_connect, open_database
from tranlog.queues.rules.records import CONTAINER_PREFIX, FREE_PREFIX, number_of
from tranlog.queues.store import MessageStore

_PART_BYTES = 1 << 20


def back_up(store: MessageStore, to: str) -> StoreVerdict:
    """Copy an open store into a new directory, durably; return the result of a check of the copy.

    Other calls wait meanwhile. Raises ConfigError if the directory exists, DiskFullError, DiskFailedError.
    """
    disk, to = OsDisk(), directory_of(to)
    with store._journal.lock, store._journal:
        store._journal.check_open()
        store._journal.write()
        with _new_directory(to, disk) as made:
            _copy_log(store.path, made, disk)
            with closing(Catalogue(open_database(made, None))) as catalogue:
                catalogue.replace(store._catalogue.rows())
    return verify_store(to)


def restore_store(source: str, to: str, *, connect: str | None = None, catalog: str | None = None) -> StoreVerdict:
    """Make a store from a backup, in a new directory; return the result of a check of it.

    `connect`, `catalog`: as in `QueueStoreOptions`; an older catalogue of the same store there is replaced.
    Raises as `back_up`, and StoreDamagedError; CatalogueError, also if the catalogue there is another store's, or its
    store is open.
    """
    disk, source, to = OsDisk(), directory_of(source), directory_of(to)
    named = connect_of(connect, catalog)
    verify_store(source)
    with closing(Catalogue(open_database(source, None, reading=True), reading=True)) as kept:
        kept.load(None, 0)
        rows = kept.rows()
    with _new_directory(to, disk) as made:
        _copy_log(source, made, disk)
        with closing(open_database(made, named, create=True)) as database:
            catalogue = Catalogue(database)
            if database.has_tables():
                catalogue.load(None, 0)
                if catalogue.store_id != kept.store_id:
                    why = f"it is that of the store {catalogue.store_id.hex()}; name another database"
                    raise CatalogueError(path=database.where, why=why)
            if named is not None:
                keep_connect(made, disk, named)
            catalogue.replace(rows)
    return verify_store(to)


@contextmanager
def _new_directory(to: str, disk: Disk) -> Iterator[str]:
    """Make a directory beside `to`, which becomes it when it is filled, and is removed where that fails.

    Raises ConfigError where either is there, or it cannot be made.
    """
    made = f"{to}.new"
    for path in (to, made):
        if disk.exists(path):
            why = "it is there; name another directory" if path == to else "an earlier copy was broken off; remove it"
            raise ConfigError(option="directory", value=path, why=why)
    try:
        try:
            make_directory(made, disk)
        except (LogMissingError, OSError) as exc:
            why = exc.why if isinstance(exc, LogMissingError) else exc.strerror or str(exc)
            raise ConfigError(option="directory", value=to, why=f"it cannot be made: {why}") from exc
        yield made
        disk.sync_dir(made)
        disk.rename(made, to)
        disk.sync_dir(posixpath.dirname(to) or "/")
    except BaseException as exc:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(exc, OSError):
            raise storage_error(exc, made) from exc
        raise


def _copy_log(source: str, to: str, disk: Disk) -> None:
    """Copy the containers: those that are free hold nothing, but show that the ones before were given back."""
    for name in disk.list_dir(source):
        if number_of(name, CONTAINER_PREFIX) is None and number_of(name, FREE_PREFIX) is None:
            continue
        with closing(disk.open(join(source, name))) as old:
            with closing(disk.open(join(to, name), write=True, create=True)) as new:
                for at in range(0, old.size(), _PART_BYTES):
                    new.pwrite(old.pread(_PART_BYTES, at), at)
                new.sync()
