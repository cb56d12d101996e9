"""Where a store's catalogue is: in its directory, or in the PostgreSQL that its file `catalogue.connect` names.

Owns that file. The connection string is stored without a password, which libpq finds in PGPASSWORD or a password file.
Later openings of the store need not name its catalogue.

Source: docs/format.md, "A store's directory".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import apsw

from tranlog.disk import Disk
from tranlog.errors import CatalogueError, ConfigError
from tranlog.log.files.directory import join, replace_file
from tranlog.queues.files.catalogue import CatalogueDatabase
from tranlog.queues.files.catalogue_sqlite import SqliteCatalogue
from tranlog.queues.rules.records import CATALOGUE_CONNECT_NAME, CATALOGUE_NAME


def read_connect(path: str, disk: Disk) -> str | None:
    """Return the connection string stored in a store's directory; None for a catalogue in SQLite. Raises OSError."""
    name = join(path, CATALOGUE_CONNECT_NAME)
    if not disk.exists(name):
        return None
    with closing(disk.open(name)) as file:
        raw = file.pread(file.size(), 0)
    try:
        return raw.decode().strip()
    except UnicodeDecodeError as exc:
        raise CatalogueError(path=name, why="it is no text") from exc


def keep_connect(path: str, disk: Disk, connect: str) -> None:
    """Store a connection string for the next opening, durably. Raises OSError."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    parts = {name: value for name, value in conninfo_to_dict(connect).items() if name != "password"}
    kept = make_conninfo("", **parts)
    if kept != read_connect(path, disk):
        replace_file(join(path, CATALOGUE_CONNECT_NAME), kept.encode(), disk)


def connect_of(connect: str | None, catalog: str | None) -> str | None:
    """Return the connection string with the database that `catalog` names. Raises ConfigError."""
    if connect is None:
        if catalog is not None:
            why = "it names a database of the server in `connect`; without that the catalogue is in SQLite"
            raise ConfigError(option="catalog", value=catalog, why=why)
        return None
    try:
        from psycopg.conninfo import make_conninfo

        from tranlog.servers.postgres import read_dsn
    except ImportError as exc:
        why = "the library psycopg is not installed: `pip install 'tranlog[postgres]'`"
        raise ConfigError(option="connect", value=None, why=why) from exc
    read_dsn(connect, option="connect")
    return connect if catalog is None else make_conninfo(connect, dbname=catalog)


def open_database(
    path: str,
    connect: str | None,
    opens: Callable[[str], apsw.Connection] = apsw.Connection,
    *,
    reading: bool = False,
    create: bool = False,
) -> CatalogueDatabase:
    """Open the database of a store's catalogue: by a connection string, else in the directory.

    Raises CatalogueError, ConfigError.
    """
    connect = connect_of(connect, None)
    if connect is None:
        return SqliteCatalogue(join(path, CATALOGUE_NAME), opens, reading=reading)
    from tranlog.queues.files.catalogue_postgres import PostgresCatalogue

    return PostgresCatalogue(connect, reading=reading, create=create)
