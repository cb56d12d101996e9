"""Settings and attached databases on which capture rests, looked at after a PRAGMA or an ATTACH of the user's."""

from __future__ import annotations

import logging

import apsw

from tranlog.errors import SourceSetupError
from tranlog.source.sqlite.outbox import OutboxWriter
from tranlog.source.sqlite.raw import SCHEMA
from tranlog.source.sqlite.schema import SOURCE_TABLE, has_table
from tranlog.source.sqlite.statement import quote

logger = logging.getLogger(__name__)


def hold_settings(db: apsw.Connection, outbox: OutboxWriter, path: str) -> None:
    """Hold what durability and capture rest on, whatever a PRAGMA has changed."""
    wanted = (
        *(("main.journal_mode", "wal"), ("main.synchronous", 2), ("locking_mode", "normal")),
        ("legacy_alter_table", 0),
    )
    for name, value in wanted:
        ((now,),) = db.execute(f"PRAGMA {name}").fetchall()
        if name == "main.synchronous" and now in (1, 2, 3):
            if now == 1 and outbox.synced:
                logger.warning(
                    "synchronous=NORMAL: a loss of power may take the last commits of this connection path=%s",
                    path,
                )
            outbox.synced = now != 1  # else capture syncs the WAL first, so that no log gets ahead
        if now == value or (name == "main.synchronous" and now in (1, 3)):
            continue
        db.execute(f"PRAGMA {name} = {value}").fetchall()
        db.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchall()  # with the next use a lock is let go
        if name == "legacy_alter_table":
            why = "a RENAME would leave other tables' references as they are, and at the target change them"
        else:
            why = "the log would get ahead of the database, or capture be kept out"
        raise SourceSetupError(
            why=f"with PRAGMA {name} = {now} {why}",
            remedy=f"It was put back to {value}",
        )


def hold_attached(db: apsw.Connection) -> None:
    """Refuse to attach a captured database; in a transaction, which keeps it attached, each COMMIT does."""
    try:
        check_attached(db)
    except SourceSetupError:
        if not db.in_transaction:
            for name in _attached_captured(db):
                db.execute(f"DETACH {quote(name)}")
        raise


def check_attached(db: apsw.Connection) -> None:
    """Refuse a captured database beside the main one: what is written there through this connection is missed."""
    for name in _attached_captured(db):
        raise SourceSetupError(
            why=f"the attached database {name!r} is captured itself, and writes to it would be missed",
            remedy="Detach it, outside a transaction, and open it by a connection of its own",
        )


def _attached_captured(db: apsw.Connection) -> list[str]:
    names = [name for name in db.db_names() if name not in (SCHEMA, "temp")]
    return [name for name in names if has_table(db, name, SOURCE_TABLE)]
