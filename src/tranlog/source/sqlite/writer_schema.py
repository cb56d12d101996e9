"""The schema as a writer knows it, and what its open transaction changes of it.

Owns when the schema is read again, and what a DDL statement leaves: a statement in the log, and guards on what it made.
"""

from __future__ import annotations

import apsw

from tranlog.clock import Clock
from tranlog.errors import SourceSetupError
from tranlog.source.sqlite.raw import OUTBOX_TABLE, SCHEMA, raw_row
from tranlog.source.sqlite.recorder import RowRecorder, SourceUncertainError
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
        self._changed = False  # by the open transaction
        self._before = TableStates({}, {})  # that
        self._stale = False

    def check(self) -> None:
        """Take the write lock, then look whether the schema is the one that is known."""
        db = self._db
        # The write lock first: from then on nobody else changes the schema under this transaction.
        if db.txn_state(SCHEMA) != apsw.SQLITE_TXN_WRITE:
            db.blob_open(SCHEMA, SOURCE_TABLE, "uuid", 1, True).close()  # unlike a statement it counts no changes
        if self._stale or schema_version(db) != self.now.version:
            self._use(read_schema(db, self.now))
            self._stale = False
        self.checked = True

    def _use(self, schema: SqliteSchema) -> None:
        self.now = schema
        self._recorder.use(schema)

    def reset(self) -> None:
        """Note that the transaction has ended. Runs no SQL."""
        self.may_be_back()
        self.checked = self._changed = False

    def may_be_back(self) -> None:
        """Look at the schema again: a change of it may have been undone.

        Its number does not tell: a rollback puts it back, and the next change, of whomever, takes the same again.
        """
        if self._changed:
            self.checked = False
            self._stale = True

    def versions(self) -> tuple[int, int]:
        """Return the numbers of the main schema and of the temporary one, which every change raises."""
        return schema_version(self._db), schema_version(self._db, "temp")

    def before_ddl(self, sql: str, *, creates: bool) -> tuple[int, int]:
        """Note what tables there are, before a statement changes them; return `versions`.

        A table that is altered has no triggers until `after_ddl`; if it fails, the numbers tell that they are gone.
        """
        if not self._changed:
            self._before = table_states(self._db)
        versions = self.versions()
        if self.now.by_trigger and not creates:
            uncover_named(self._db, self.now, sql)
        return versions

    def before_commit(self) -> int:
        """Note which tables the transaction has made and removed; return how many rows that has written."""
        if self._changed:
            note_tables(self._db, self._before)
        return int(self._changed)

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
        self._changed = True
        self._use(schema)
        recorder.add_statement(text, self._clock.now_ms())
        for name in made:  # rows of CREATE TABLE ... AS SELECT, which the hook does not report
            for row in schema.plans[name].read(db):
                recorder.add_row(name, raw_row(row))
        if hook.poison is uncertain:
            hook.poison = None
