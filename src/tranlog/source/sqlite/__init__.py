"""SQLite as a source: `connect` for those who write, `SqliteSource` for capture.

A writer's connection (`writer`, its calls `cursor`) records rows (`recorder`) or takes many as they are bound (`bulk`),
keeps what a statement or savepoint may still take back (`buffer`, `statement`) and puts the transaction into the outbox
(`outbox`); capture reads that (`source`). What tables look like, and the guards on them, is `schema`'s.
"""

from tranlog.source.sqlite.cursor import SqliteCursor
from tranlog.source.sqlite.opening import install, strip_copy, uninstall
from tranlog.source.sqlite.source import SqliteSource, SqliteSourceOptions
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.source.sqlite.writer import SqliteConnection, connect

__all__ = [
    "SqliteConnection",
    "SqliteCursor",
    "SqliteSource",
    "SqliteSourceOptions",
    "SqliteTables",
    "connect",
    "install",
    "strip_copy",
    "uninstall",
]
