"""The schema as a writer knows it, and what its open transaction changes of it.

Owns when the schema is read again, and what a DDL statement leaves: a statement in the log, and guards on what it made.
"""

from __future__ import annotations

from contextlib import suppress

import apsw

from tranlog.clock import Clock
from tranlog.errors import ForeignWriterError, SourceSetupError
from tranlog.source.sqlite.foreign_ddl import follow_foreign
from tranlog.source.sqlite.lost_changes import SourceUncertainError
from tranlog.source.sqlite.raw import OUTBOX_TABLE, SCHEMA, raw_row
from tranlog.source.sqlite.recorder import RowRecorder
from tranlog.source.sqlite.schema import (
    SOURCE_TABLE,
    SqliteSchema,
    TableStates,
    guard_tables,
    note_tables,
    read_schema,
    schema_version,
    table_states,
    uncover_named,
)
from tranlog.source.sqlite.statement import fold
from tranlog.source.sqlite.triggers import TABLES_TABLE


class WriterSchema:
    """The schema of one connection's main database. Not for threads."""

    def __init__(self, db: apsw.Connection, recorder: RowRecorder, schema: SqliteSchema, clock: Clock) -> None:
        self._db = db
        self._recorder = recorder
        self._clock = clock
        self.now = schema
        """The schema under which the next statement runs, once it is `checked`."""
        self.checked = False
        """Whether the write lock is held and the schema known."""
        self.changed = False
        """Whether the open transaction has changed it."""
        self._before = TableStates({}, {})  # that
        self._stale = False
        self._seen = -1  # SQLite's count of the file's changes when `now` was certainly its schema
        self._followed_at = 0  # the outbox's last id, once the open transaction has followed foreign programs

    def check(self, *, locked: bool) -> int:
        """Take the write lock unless it is `locked`, then look whether the schema is the one that is known.

        What a foreign program did to the tables goes into the outbox before what the transaction does, where triggers
        capture it. Return how many rows that has written.
        """
        db, written = self._db, 0
        # The write lock first: from then on nobody else changes the schema under this transaction.
        if not locked and db.txn_state(SCHEMA) != apsw.SQLITE_TXN_WRITE:
            db.blob_open(SCHEMA, SOURCE_TABLE, "uuid", 1, True).close()  # unlike a statement it counts no changes
        # The count tells what anybody has committed, at a fiftieth of a statement's time.
        if self._stale or (db.data_version(SCHEMA) != self._seen and schema_version(db) != self.now.version):
            schema = read_schema(db, self.now)
            if schema.by_trigger:
                written = self._follow()
                schema = read_schema(db, self.now)
            self._use(schema)
            self._stale = False
        self.checked = True
        return written

    def _follow(self) -> int:
        """Write what foreign programs did into the outbox; return how many rows that has written."""
        db = self._db
        newest = f"SELECT coalesce(max(id), 0) FROM main.{OUTBOX_TABLE}"
        ((last,),) = db.execute(newest).fetchall()
        assert isinstance(last, int)
        if last < self._followed_at:
            self.changed = False  # both were undone, since nothing of ours comes before it
        if self.changed:
            return 0  # what differs from the notes is ours
        before, rowid = db.total_changes(), db.last_insert_rowid()
        with suppress(ForeignWriterError):  # capture says so
            follow_foreign(db, db.filename, self._clock.now_ms())
        db.set_last_insert_rowid(rowid)
        ((self._followed_at,),) = db.execute(newest).fetchall()  # type: ignore[assignment]
        return db.total_changes() - before

    def _use(self, schema: SqliteSchema) -> None:
        self.now = schema
        self._recorder.use(schema)

    def committed(self) -> None:
        """Note that the transaction was committed, before `reset`."""
        if self.checked:
            self._seen = self._db.data_version(SCHEMA)

    def reset(self) -> None:
        """Note that the transaction has ended. Runs no SQL."""
        if self.changed or self._followed_at:
            self._stale = True
        self.checked = self.changed = False
        self._followed_at = 0

    def may_be_back(self) -> None:
        """Look at the schema again: a change of it may have been undone.

        Its number does not tell: a rollback puts it back, and the next change, of whomever, takes the same again.
        """
        self.may_differ()
        if self.changed or self._followed_at:
            self._stale = True

    def may_differ(self) -> None:
        """Look at the schema's number again: a statement that is no DDL may have changed it."""
        self.checked = False
        self._seen = -1

    def versions(self) -> tuple[int, int]:
        """Return the numbers of the main schema and of the temporary one, which every change raises."""
        return schema_version(self._db), schema_version(self._db, "temp")

    def before_ddl(self, sql: str, *, creates: bool) -> tuple[int, int]:
        """Note what tables there are, before a statement changes them; return `versions`.

        A table that is altered has no triggers until `after_ddl`; if it fails, the numbers tell that they are gone.
        """
        if not self.changed:
            self._before = table_states(self._db)
        versions = self.versions()
        if self.now.by_trigger and not creates:
            uncover_named(self._db, self.now, sql)
        return versions

    def note_changed(self) -> None:
        """Note in one row which tables the transaction has made and removed, before it commits."""
        note_tables(self._db, self._before)

    def after_ddl(self, sql: str, versions: tuple[int, int], *, creates: bool) -> None:
        """Record a statement that changed the schema, and guard what it made. `versions` are those before it.

        Raises SourceSetupError for what capture cannot allow.
        """
        db, known, recorder, hook = self._db, self.now, self._recorder, self._recorder.hook
        (main, temporary), (main_before, temporary_before) = self.versions(), versions
        if temporary != temporary_before:
            hook.others = True  # a temporary object
        if main == main_before:
            return  # or IF NOT EXISTS, or another database's
        # Whatever ends what follows: the schema has changed, and the log must say so.
        hook.poison = uncertain = SourceUncertainError(table="the schema")
        created = creates and known.version == main_before
        schema = read_schema(db, known, created=created)
        for name in (SOURCE_TABLE, OUTBOX_TABLE, *((TABLES_TABLE,) if known.by_trigger else ())):
            if name not in schema.texts:
                raise SourceSetupError(
                    why=f"a statement would remove {name}", remedy="Leave the tables of capture alone"
                )
        for name, plan in schema.plans.items():
            if not plan.captured and known.plans.get(name) is not plan:
                raise SourceSetupError(
                    why=f"table {plan.map.name} would be WITHOUT ROWID and have a virtual generated column: SQLite "
                    "does not tell its changes",
                    remedy="Make the column STORED, or the table an ordinary one",
                )
        made = schema.plans.keys() - known.plans.keys() if creates else set()
        ours = made | (known.plans.keys() - known.unguarded)
        if schema.by_trigger and not known.unguarded:
            ours |= schema.plans.keys()  # a new name of a table, whose triggers must name its columns anew
        adopted = [t for t in schema.unguarded if t in ours]
        if adopted:
            schema = guard_tables(db, schema, adopted)
        text = sql.strip().rstrip(";").rstrip()
        for name in made:  # the stored text: without IF NOT EXISTS, and for AS SELECT the columns that came out
            text = next(str(sql) for kind, _, sql in schema.texts[fold(name)] if kind == "table")
        self.changed = True
        self._use(schema)
        recorder.add_statement(text, self._clock.now_ms())
        for name in made:  # rows of CREATE TABLE ... AS SELECT, which the hook does not report
            for row in schema.plans[name].read(db):
                recorder.add_row(name, raw_row(row))
        if hook.poison is uncertain:
            hook.poison = None
