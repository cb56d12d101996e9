"""What is looked at of a SQLite database before it is captured.

Owns the list, and what a start does not ask: who may write the files, how much waits in the outbox. What a start
refuses is asked by a source that starts without a claim, which only reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import apsw

from tranlog.disk import may_write
from tranlog.errors import SourceUnavailableError
from tranlog.findings import CheckResult, Severity, fine, tried, warning, wrong
from tranlog.source.kinds import CapturedUpTo
from tranlog.source.sqlite.opening import db_transaction, looking
from tranlog.source.sqlite.raw import OUTBOX_TABLE
from tranlog.source.sqlite.schema import read_installed, read_schema
from tranlog.source.sqlite.source import SqliteSource, SqliteSourceOptions
from tranlog.source.sqlite.triggers import check_width, held_bytes

OUTBOX_MOST: Final = 1 << 30
"""So many bytes may wait in the outbox before it is worth a word."""


def examine(options: SqliteSourceOptions, captured: CapturedUpTo | None) -> Iterator[CheckResult]:
    """Yield what is found; `captured` None: the log has no event."""
    source = SqliteSource(options)

    def connection() -> str:
        source.check()
        return f"{options.path} is a SQLite database"

    rights = _rights(options.path) if os.path.exists(options.path) else None
    found = tried("connection", connection) if rights is None or rights.severity is Severity.FINE else rights
    yield found
    if found.severity is Severity.WRONG:
        return
    if rights is not None:
        yield rights
    event_id = None if captured is None else captured.event_id
    yield tried("tables", lambda: _tables(source, event_id))
    yield tried("retention", lambda: _retention(options.path))


def _rights(path: str) -> CheckResult:
    """Look who may write: the outbox, and the files beside the database."""
    closed = [one for one in (path, os.path.dirname(os.path.abspath(path))) if not may_write(one)]
    if not closed:
        return fine("rights", "the outbox can be written")
    text = f"this user may not write {' and '.join(closed)}, where the outbox is made"
    return wrong("rights", text, f"Run as the owner, or: chmod u+w {' '.join(closed)}")


def check_columns(options: SqliteSourceOptions) -> None:
    """Raise SourceSetupError for a table that triggers, which are to capture it, cannot take in."""
    if not options.by_trigger:
        return
    try:
        with closing(looking(options.path)) as db, db_transaction(db, write=False):
            for table in read_schema(db).maps():
                check_width(table)
    except apsw.Error as exc:
        raise SourceUnavailableError(where=options.path, why=str(exc)) from exc


def _tables(source: SqliteSource, event_id: str | None) -> str:
    check_columns(source.options)
    with closing(source):
        with closing(looking(source.options.path)) as db:
            installed = read_installed(db, source.options.path)
        if installed is None and event_id is None:
            return "the first capture, or the first writer, prepares it"
        source.start(event_id)
    return "every table is captured, and the outbox holds what follows the log's end"


def _retention(path: str) -> CheckResult:
    with closing(looking(path)) as db:
        if not db.table_exists("main", OUTBOX_TABLE):
            return fine("retention", "nothing waits to be captured")
        ((rows,),) = db.execute(f"SELECT count(*) FROM main.{OUTBOX_TABLE}").fetchall()
        size = held_bytes(db)
    if size <= OUTBOX_MOST:
        return fine("retention", f"{rows} rows wait in the outbox, {size} bytes")
    text = f"{rows} rows wait in the outbox, {size} bytes: they fill the source's disk until a capture has them"
    return warning("retention", text, "Start `tranlog capture`")
