"""Rows in tables of a database of any kind, and a target that has both its rows and its positions there.

Owns what is written in a target transaction after the guarded update: the changes in batches; and what happens when
something does not fit. Leaves SQL to the dialect, the connection to the session, our own tables to `position`. The hard
idea: batches are fast and say little. When one is refused, everything is rolled back and sent again change by change,
in the log's own order; then either it fits, since only the batch had been in the way (rows of a unique key that pass
each other), or the error names the very transaction, table and key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import msgspec

from tranlog.change import Change, Column, Op, RowChange, Statement, TableMap, TableName
from tranlog.ddl import touched
from tranlog.errors import ConflictError, DdlStopError, TargetTableError, TargetUnavailableError, TransientTargetError
from tranlog.ids import Seqno
from tranlog.row_blocks import RowBlock, decoded
from tranlog.table_edits import Edit, RenamedTable
from tranlog.table_notes import WHOLE, TableNote, notes_of, stored
from tranlog.target.batches import Batch, Placed, batch_inserts, batch_up, net_effect
from tranlog.target.binding import Binding, BoundColumn, MismatchError, TargetColumn, TargetTable, UnfitError, key_text
from tranlog.target.dialect import Dialect
from tranlog.target.edits import Behind, TablesHere, UnfollowedError, behind, emptying, named
from tranlog.target.once import Once
from tranlog.target.position import OUR_TABLES, SqlPositions
from tranlog.target.recorded import by_hand, rows_are_here, rule, shortened, source_of, stopped, text_of
from tranlog.target.related import Related, related
from tranlog.target.session import (
    Cell,
    LockTimeoutError,
    MisfitError,
    MissingTableError,
    Session,
    TakenNameError,
    open_session,
)
from tranlog.target.target import Advance, Applied, ApplyUnit, BehindError, RefusedError, Target, TargetKeys
from tranlog.types import UNCHANGED, Value

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

logger = logging.getLogger(__name__)

SETTLE_ROWS: Final = 10_000
"""After so many rows the session is asked what came of them, so that little waits in memory."""
SETTLE_BYTES: Final = 16 << 20
"""The same for bytes of values of unbounded size."""
RUN_ROWS: Final = 10_000
"""So many updates in a row may pass each other's unique keys."""


def open_database(
    options: TargetOptions, dialect: Dialect, connect: Callable[[TargetOptions], Session], *, where: str
) -> Target:
    """Open a target whose positions and rows are tables of one database. Raises what `connect` raises."""
    homes: dict[str, TableName] = {}
    warned: set[str] = set()

    def parts() -> tuple[Session, SqlPositions, SqlRows]:
        session = open_session(options, connect)
        positions = SqlPositions(session, dialect, where=where, lock_timeout_s=options.lock_timeout_s)
        return session, positions, SqlRows(session, positions, options, dialect, where, homes, warned)

    return Target(dialect.kind, where, parts)


class _ForeignKeys:
    """What those at the target say of its tables, as far as it was asked. Threads: one at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        """Ask again from now on."""
        self._acting: dict[TableName, bool] = {}
        self._all: list[tuple[TableName, TableName]] | None = None

    def act_on(self, table: TableMap) -> bool:
        """Whether one deletes or changes rows of others where rows of a table go."""
        name = (table.schema, table.table)
        if name not in self._acting:
            self._acting[name] = bool(self._session.losing(table))
        return self._acting[name]

    def related(self, target: TargetTable) -> Related | None:
        """Return how a table stands to others, where that alone sees an order of its rows."""
        if not target.order_unseen:
            return None
        if self._all is None:
            self._all = self._session.references()
        return related(target.name, self._all)


@dataclass(eq=False)
class SqlRows:
    """The tables of a database, over one session; see Rows for its methods. Threads: one at a time."""

    session: Session
    positions: SqlPositions
    options: TargetOptions
    dialect: Dialect
    where: str
    homes: dict[str, TableName]
    """By a name here: the source's table that has it. This and what was warned of outlive the connection."""
    warned: set[str]
    bindings: dict[TableMap, Binding] = field(default_factory=dict)
    pipeline: str = ""
    """Whose rows are written; empty until some are."""
    followed: set[Behind] = field(default_factory=set)
    """What was run for the target transaction at hand, so that nothing is run for it twice."""
    beginning: set[TableName] = field(default_factory=set)
    """The tables whose load begins with the target transaction at hand, and makes them."""

    def __post_init__(self) -> None:
        self.once = Once(self.session, self.dialect)
        self.foreign_keys = _ForeignKeys(self.session)

    def write(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        self.pipeline = advance.pipeline
        if self.beginning and self.options.ddl == "follow":
            self.store_notes(dict.fromkeys(self.beginning, TableNote()), self.notes())
        writing = _Writing(self, units, advance)
        if refused is None:
            writing.send_in_batches()
        else:
            logger.info("a batch was refused, sending change by change target=%s why=%s", self.where, refused)
            writing.send_one_by_one()
        self.followed.clear()
        self.beginning.clear()
        return writing.done()

    def discard(self) -> None:
        # The operator will mend a table, or one that this transaction made is gone with it.
        self.bindings.clear()
        self.foreign_keys.forget()

    def forget_tables(self) -> None:
        """Forget what every table is, after a statement that may have changed any."""
        self.discard()
        self.homes.clear()

    def warn(self, about: str, message: str, *values: object) -> None:
        """Log a warning, once for each `about`."""
        if about not in self.warned:
            self.warned.add(about)
            logger.warning(message, *values)

    # --- notes ---

    def notes(self) -> dict[TableName, TableNote]:
        """Return what is kept of tables: of the pipeline whose rows are written here; before that, of each."""
        pipelines = [self.pipeline] if self.pipeline else self.positions.pipelines()
        return {name: note for one in pipelines for name, note in notes_of(self.positions.read_loads(one)).items()}

    def store_notes(self, notes: Mapping[TableName, TableNote], stood: Mapping[TableName, TableNote]) -> None:
        """Store those that are not as they stood, in the open target transaction."""
        changed = [stored(name, note) for name, note in notes.items() if note != stood.get(name, TableNote())]
        self.positions.store_loads(self.pipeline, tuple(changed))

    # --- tables ---

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        sql = self.dialect.without_transactions
        found = self.session.fetch(sql) if sql else []
        engines = {
            self._one_name(TableMap(schema=schema, table=name, columns=())): engine for schema, name, engine in found
        }
        tables = [TableMap(schema=schema, table=name, columns=()) for schema, name in (named() if engines else ())]
        wrong = {table: engines[self._one_name(table)] for table in tables if self._one_name(table) in engines}
        if wrong:
            raise _without_transactions(self.dialect, wrong, None)

    def check_table(self, table: TableMap) -> None:
        self.claim_name(table, None)
        try:
            lacks = self._behind(table) if self.options.ddl == "follow" else Behind()
        except LockTimeoutError as exc:
            raise TransientTargetError(why=f"{table.name} stayed locked: {exc}") from exc
        if lacks != Behind():
            if lacks.needed:
                self._check_right_to_follow(table)
            return
        name, columns = self.dialect.table_name(table), [one.name for one in self._columns(table, None)[1]]
        names = ", ".join(columns)
        changes = [f"INSERT INTO {name} ({names}) SELECT {names} FROM {name}", f"DELETE FROM {name}"]
        changes += [f"UPDATE {name} SET {one} = {one}" for one in columns[:1]]
        for sql in changes:
            try:
                self.session.fetch(f"EXPLAIN {sql}")
            except TargetUnavailableError as exc:
                grant = f"Run at the target: GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO <user>"
                raise TargetTableError(table=table.name, why=exc.why, remedy=grant) from exc
            except (RefusedError, LockTimeoutError):
                pass  # a column that is written in another way; a table that is being altered now

    def _check_right_to_follow(self, table: TableMap) -> None:
        is_here = self.table_here((table.schema, table.table)) is not None
        if mends := self.session.lacks_alter(table) if is_here else self.session.lacks_create(table.schema):
            what = "it lacks columns, and this user may not alter it" if is_here else "this user may not make it"
            raise TargetTableError(table=table.name, why=what, remedy=f"Run at the target: {mends}")

    def bind(self, table: TableMap, seqno: Seqno | None) -> Binding:
        binding = self.bindings.get(table)
        if binding is None:
            self.claim_name(table, seqno)
            if self.options.ddl == "follow":
                self._follow(table, seqno)
                self._check_held(table, seqno)
            target, columns = self._columns(table, seqno)
            name = self.dialect.table_name(table)
            keys = self.foreign_keys
            how, acts = keys.related(target), partial(keys.act_on, table)
            binding = self.bindings[table] = Binding(table, target, name, columns, self.dialect.forms, how, acts)
        return binding

    def _follow(self, table: TableMap, seqno: Seqno | None) -> None:
        """Have a table made, or altered, for a change of it. Raises BehindError, once for each difference."""
        lacks = self._behind(table)
        if lacks == Behind() or lacks in self.followed:
            return
        note = self.notes().get((table.schema, table.table), TableNote())
        if note.here and WHOLE not in note.dropped and self.table_here((table.schema, table.table)) is None:
            raise _gone(table, seqno)

        def follow() -> None:
            self.followed.add(lacks)
            ran = list(lacks.needed)
            try:
                self._make(table, lacks.needed)
            except TargetTableError:
                if self._behind(table).needed:
                    raise
                return  # another channel was faster
            for statement in lacks.wished:
                try:
                    self._make(table, (statement,))
                    ran.append(statement)
                except (TargetTableError, TargetUnavailableError) as exc:
                    said = "a column does not follow the source's target=%s table=%s failed=%s why=%s"
                    self.warn(statement, said, self.where, table.name, statement, exc.why)
            if ran:
                said = "a table follows the source's target=%s table=%s ran=%s"
                logger.warning(said, self.where, table.name, "; ".join(ran))

        raise BehindError(follow)

    def _check_held(self, table: TableMap, seqno: Seqno | None) -> None:
        """Refuse rows of a new table where the one that the source dropped stands with its rows; note their coming."""
        name = (table.schema, table.table)
        notes = self.notes()
        note = notes.get(name, TableNote())
        if WHOLE not in note.dropped:
            if not note.here:
                self.store_notes({name: msgspec.structs.replace(note, here=True)}, notes)
            return
        if self.has_rows(table):
            here = self.dialect.table_name(table)
            why = f"the source dropped it at seqno {note.dropped[WHOLE]}, it stayed here, and rows of a new one come"
            remedy = f"DROP TABLE {here} here, or rename it, and start again"
            raise TargetTableError(table=table.name, why=why, seqno=seqno, remedy=remedy)
        self.store_notes({name: TableNote(here=True)}, notes)

    def _behind(self, table: TableMap) -> Behind:
        """Return what makes a table, or what it lacks; nothing where that is not it."""
        try:
            here = _table(self.session, table)
        except MissingTableError:
            return Behind(needed=self.dialect.create_table(table))

        def added() -> Mapping[str, str] | None:
            if not self.has_rows(table):
                return None
            told = {name.lower(): literal for name, literal in table.older}
            return {**self.notes().get((table.schema, table.table), TableNote()).filled, **told}

        return behind(self.dialect, table, here, added)

    def claim_name(self, table: TableMap, seqno: Seqno | None) -> None:
        """Refuse a table whose name here is one of ours, or another table's already: two would become one."""
        name = (table.schema, table.table)
        if table.table.lower() in OUR_TABLES:
            raise TargetTableError(
                table=table.name,
                why="tranlog keeps its own positions in a table of this name",
                seqno=seqno,
                remedy="Rename it at the source, or leave it out of capture",
            )
        holder = self.homes.setdefault(self._one_name(table), name)
        if holder != name:
            raise TargetTableError(
                table=table.name,
                why=f"at this target its name would be the one of {'.'.join(holder)}, and their rows would mix",
                seqno=seqno,
                remedy="Rename one of them at the source; if it is the same table renamed, start again",
            )

    def table_here(self, name: TableName) -> TargetTable | None:
        """Read what is here in the place of a source's table; None: no such table."""
        try:
            return self.session.table(named(*name))
        except MissingTableError:
            return None

    def has_rows(self, table: TableMap) -> bool:
        """Whether a table that is here has rows."""
        return bool(self.session.fetch(f"SELECT 1 FROM {self.dialect.table_name(table)} LIMIT 1"))

    def as_spelled_here(self, name: TableName) -> TableName:
        """Return a table's name with the case that it has at this server, for a source that does not tell it apart."""
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1 AND LOWER(table_name) = $2"
        found = self.session.fetch(self.dialect.sql(sql), (name[0], name[1].lower()))
        return (name[0], found[0][0]) if len(found) == 1 else name

    def _one_name(self, table: TableMap) -> str:
        name = self.dialect.one_name(table)
        return name.lower() if self.session.folds_names else name

    def _columns(self, table: TableMap, seqno: Seqno | None) -> tuple[TargetTable, list[BoundColumn]]:
        """Join a table's columns with the target's; generated ones stay out. Raises TargetTableError."""
        try:
            target = _table(self.session, table, seqno)
        except MissingTableError as exc:
            error = TargetTableError(table=table.name, why=str(exc), seqno=seqno)
            if table.sequence:
                error.remedy = (
                    f"CREATE SEQUENCE {self.dialect.table_name(table)} here, which this sets, and start again"
                )
            raise error from exc
        if target.period & {column.name for column in table.columns}:
            raise TargetTableError(
                table=table.name,
                why="it is system-versioned here: old versions of rows, which the log holds as rows of their own, "
                "would become present ones, and its periods would be of this server's clock",
                seqno=seqno,
                remedy=f"ALTER TABLE {self.dialect.table_name(table)} DROP SYSTEM VERSIONING here, add the columns of "
                "the period as plain TIMESTAMP(6) columns, the one of its end to the primary key, and start again; "
                'or let present rows alone come here, by [[filter]] kind = "present"',
            )
        if target.unlogged:
            why = "it, or a partition of it, is unlogged here: a crash of the server empties it, and the position stays"
            remedy = f"ALTER TABLE {self.dialect.table_name(table)} SET LOGGED here, or that partition; start again"
            raise TargetTableError(table=table.name, why=why, seqno=seqno, remedy=remedy)
        if target.engine:
            raise _without_transactions(self.dialect, {table: target.engine}, seqno)
        columns = []
        for index, (source, name, column) in enumerate(self._pairs(table, target, seqno)):
            if column.generated:
                continue
            try:
                self.dialect.accepts(source, column)
            except MismatchError as exc:
                remedy = f"Make the column {self.dialect.column_type(table, index)} here, and start again"
                raise TargetTableError(table=table.name, why=str(exc), seqno=seqno, remedy=remedy) from exc
            columns.append(BoundColumn(index=index, name=name, source=source, target=column))
        return target, columns

    def _pairs(
        self, table: TableMap, target: TargetTable, seqno: Seqno | None
    ) -> Iterator[tuple[Column, str, TargetColumn]]:
        """Yield each column of a table, its quoted name here, and the target's. Raises TargetTableError."""
        one_column = self.dialect.one_column
        names = {one_column(name): column for name, column in target.columns.items()}
        taken: dict[str, str] = {}
        for index, source in enumerate(table.columns):
            name = one_column(source.name)
            if taken.setdefault(name, source.name) != source.name:
                why = f"columns {taken[name]} and {source.name} would be one column here"
                raise TargetTableError(
                    table=table.name, why=why, seqno=seqno, remedy="Rename one of them, or drop it, by a filter"
                )
            if name not in names:
                remedy = (
                    f"{self.dialect.add_column(table, index)} here, and start again; what it holds in rows that are "
                    f"here already comes by `tranlog load --replace --tables {table.name}`"
                )
                why = f"column {source.name} is missing"
                raise TargetTableError(table=table.name, why=why, seqno=seqno, column=source.name, remedy=remedy)
            yield source, self.dialect.quote(source.name), names[name]

    def keys(self, table: TableName) -> TargetKeys | None:
        return self.session.keys(TableMap(schema=table[0], table=table[1], columns=()))

    def references(self) -> list[tuple[TableName, TableName]]:
        return self.session.references()

    def losing(self, table: TableName) -> list[TableName]:
        return self.session.losing(named(*table))

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        return self.session.slow_references()

    def begin_load(self, table: TableMap, seqno: Seqno, *, replace: bool, beside: Sequence[TableName] = ()) -> None:
        self.claim_name(table, seqno)
        name = self.dialect.table_name(table)
        try:
            self.session.table(table)
        except MissingTableError:
            self.beginning.add((table.schema, table.table))
            return
        again = f"tranlog load --replace --tables {table.name}"
        if not self.has_rows(table):
            return
        if not replace:
            raise TargetTableError(
                table=table.name,
                why="its load begins, and it has rows already, which would be there twice",
                seqno=seqno,
                remedy=f"Empty it here and start again; or leave the transaction out, and replace the rows: {again}",
            )
        remedy = (
            "Load the tables that refer to it in the same load, by --tables, and pass over this one: `tranlog position "
            f"set {seqno}` and start again, or, where the process has stayed, `tranlog online --skip-seqno {seqno}`"
        )
        if losing := self._losing_beyond(table, beside):
            why = (
                "its rows cannot be deleted for the load that begins: foreign keys would delete or change rows of "
                f"{', '.join(map('.'.join, losing))} with them, which this load does not bring again"
            )
            raise TargetTableError(table=table.name, why=why, seqno=seqno, remedy=remedy)
        try:
            self.session.run(f"DELETE FROM {name}")
        except MisfitError as exc:
            why = f"its rows cannot be deleted for the load that begins: {exc}"
            remedy += ". A foreign key to its own table, or of a circle: drop it here, start again, and make it later"
            raise TargetTableError(table=table.name, why=why, seqno=seqno, remedy=remedy) from exc

    def _losing_beyond(self, table: TableMap, beside: Sequence[TableName]) -> list[TableName]:
        """Return the tables that would lose rows with a table's, and are neither it nor `beside`."""
        losing = self.session.losing(table)
        loaded = {(table.schema, table.table), *beside} if losing else ()
        here = {keys.name for one in loaded if (keys := self.keys(one)) is not None}
        return [one for one in losing if one not in here]

    def create_table(self, table: TableMap) -> str:
        self.claim_name(table, None)
        try:
            _table(self.session, table)
            return ""
        except MissingTableError:
            pass
        statements = self.dialect.create_table(table)
        self._make(table, statements)
        return ";\n".join(statements)

    def _make(self, table: TableMap, statements: Sequence[str]) -> None:
        try:
            for statement in statements:
                self.session.run(statement)
        except (MisfitError, MissingTableError) as exc:
            raise TargetTableError(table=table.name, why=f"it cannot be made: {exc}") from exc
        except LockTimeoutError as exc:
            raise TransientTargetError(why=str(exc)) from exc

    def hold_snapshot(self) -> None:
        try:
            self.session.hold_snapshot()
        except (RefusedError, LockTimeoutError) as exc:
            raise TransientTargetError(why=f"no snapshot: {exc}") from exc

    def read(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        return decoded(self.blocks(table), table)

    def blocks(self, table: TableMap) -> Iterator[RowBlock]:
        try:
            target = self.session.table(table)
        except MissingTableError as exc:
            raise TargetTableError(table=table.name, why=str(exc)) from exc
        pairs = list(self._pairs(table, target, None))
        names = [self.dialect.selected(source, column, name) for source, name, column in pairs]
        cells = [
            Cell(read=self.dialect.reader(source, column), form=self.dialect.text_form(source, column))
            for source, _, column in pairs
        ]
        sql = f"SELECT {', '.join(names)} FROM {self.dialect.table_name(table)}"
        return self._blocks(table, sql, cells)

    def _blocks(self, table: TableMap, sql: str, cells: Sequence[Cell]) -> Iterator[RowBlock]:
        try:
            yield from self.session.blocks(sql, cells)
            if not self.session.is_as_it_was(table):
                why = "it was emptied or rewritten after the snapshot, which does not show its rows any more"
                raise TransientTargetError(why=f"{table.name}: {why}")
        except (MissingTableError, LockTimeoutError) as exc:
            raise TransientTargetError(why=f"{table.name} was altered or locked while it was read: {exc}") from exc
        except MisfitError as exc:  # a value whose text, which is longer than it, passes the database's limit
            raise TargetTableError(table=table.name, why=f"its rows cannot be read back: {exc}") from exc


@dataclass(eq=False)
class _Writing:
    """What one target transaction writes."""

    rows: SqlRows
    units: Sequence[ApplyUnit]
    advance: Advance
    changes: int = 0
    statements: int = 0
    ignored: int = 0
    rows_sent: bool = False
    run_once: int = 0

    def done(self) -> Applied:
        """Return what was written, when all of it has been."""
        if self.run_once:
            self.rows.once.forget(self.advance)
        return Applied(
            transactions=len(self.units),
            changes=self.changes,
            statements=self.statements,
            ddl_ignored=self.ignored,
        )

    def _batches(self) -> Iterator[Batch | tuple[Seqno, Statement]]:
        unit = self.units[0] if len(self.units) == 1 else None
        if unit is not None and unit.load is not None:
            rest = yield from self._inserts(unit)
            stream: Iterator[Placed] = ((unit.seqno, change) for change in self._counted(rest))
        else:
            stream = self._stream()
        yield from batch_up(
            net_effect(stream, self.rows.foreign_keys.act_on) if self.rows.options.net_effect else stream,
            self.rows.bind,
        )

    def _inserts(self, unit: ApplyUnit) -> Generator[Batch, None, Iterator[Change]]:
        """Yield what a load brings, which is inserts, and count it; return the rest."""
        batches = batch_inserts(unit.changes(), self.rows.bind, unit.seqno)
        while True:
            try:
                batch = next(batches)
            except StopIteration as end:
                rest: Iterator[Change] = end.value
                return rest
            self.changes += len(batch.rows)
            yield batch

    def _stream(self) -> Iterator[Placed]:
        for unit in self.units:
            seqno = unit.seqno
            for change in self._counted(unit.changes()):
                yield seqno, change

    def _counted(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield changes, those of sequences only where there are any, and count the rows."""
        has_sequences = self.rows.dialect.has_sequences
        for change in changes:
            if isinstance(change, RowChange):
                if change.table.sequence and not has_sequences:
                    name = change.table.name
                    self.rows.warn(name, "a sequence is no table, and is passed over here sequence=%s", name)
                    continue
                self.changes += 1
            yield change

    # --- in batches ---

    def send_in_batches(self) -> None:
        """Send runs of like changes as one statement each."""
        session = self.rows.session
        rows = size = 0
        for item in self._batches():
            if isinstance(item, Batch):
                self.rows_sent = True
                self.statements += session.send(item.form, item.rows)
                rows += len(item.rows)
                size += item.bytes
                if rows >= SETTLE_ROWS or size >= SETTLE_BYTES:
                    session.settle()
                    rows = size = 0
            else:
                seqno, statement = item
                session.settle()
                self._run_statement(next(unit for unit in self.units if unit.seqno == seqno), statement)
        session.settle()

    # --- one by one ---

    def send_one_by_one(self) -> None:
        """Send each change by itself and look what came of it, so that an error names it."""
        for unit in self.units:
            for kind, run in groupby(self._counted(unit.changes()), _kind_of_run):
                while part := list(islice(run, RUN_ROWS)):
                    if kind is None:
                        for change in part:
                            self._send_one(unit, change)
                    else:
                        self._send_updates(unit.seqno, [c for c in part if isinstance(c, RowChange)])
            self._check_deferred(unit.seqno)

    def _send_one(self, unit: ApplyUnit, change: RowChange | Statement) -> None:
        if isinstance(change, Statement):
            self._run_statement(unit, change)
            return
        try:
            self._send(unit.seqno, change)
        except (MisfitError, UnfitError) as exc:
            raise self._conflict(unit.seqno, change, exc) from exc

    def _send(self, seqno: Seqno, change: RowChange) -> None:
        form, row = self.rows.bind(change.table, seqno).place(change)
        self.rows_sent = True
        try:
            statements = self.rows.session.send(form, [row])
            self.rows.session.settle()
        except MissingTableError as exc:
            raise TargetTableError(table=change.table.name, why=str(exc), seqno=seqno) from exc
        self.statements += statements

    def _send_updates(self, seqno: Seqno, run: Sequence[RowChange]) -> None:
        """Send updates of one table that follow each other. Where a unique key of one is still held by a later one
        (two keys swapped by a source that checks at commit), delete all of these rows and insert them as they became;
        not where foreign keys would delete or change rows of others with them.
        """
        self.rows.session.savepoint()
        statements = self.statements
        for change in run:
            try:
                self._send(seqno, change)
            except (MisfitError, UnfitError) as exc:
                conflict = self._conflict(seqno, change, exc)
                if len(run) < 2 or not isinstance(exc, MisfitError) or not exc.duplicate:
                    raise conflict from exc
                self.rows.session.rollback_to_savepoint()
                self.statements = statements
                if losing := self.rows.losing((change.table.schema, change.table.table)):
                    conflict.why += (
                        f". Rows that pass each other's unique keys are deleted and inserted, and here foreign keys of "
                        f"{', '.join(map('.'.join, losing))} would act on that. Have that unique key checked at COMMIT "
                        "(DEFERRABLE INITIALLY DEFERRED) where this database can, else drop it here"
                    )
                    raise conflict from exc
                try:
                    self._reinsert(seqno, run)
                except (MisfitError, UnfitError):
                    raise conflict from exc
                return

    def _reinsert(self, seqno: Seqno, run: Iterable[RowChange]) -> None:
        for change in run:
            self._send(seqno, RowChange(change.table, Op.DELETE, change.before, None))
        for change in run:
            if change.after is None or UNCHANGED in change.after:
                raise UnfitError("the source did not send the whole row")
            self._send(seqno, RowChange(change.table, Op.INSERT, None, change.after))

    def _check_deferred(self, seqno: Seqno) -> None:
        """Ask constraints that wait for the commit now, while it is known whose changes they judge."""
        check = self.rows.dialect.check_deferred
        if not check:
            return
        self.rows.session.savepoint()
        try:
            self.rows.session.run(check)
        except MisfitError as exc:
            table = exc.table or "(not named by the target)"
            raise ConflictError(seqno=seqno, table=table, key="(see the reason)", why=str(exc)) from exc
        self.rows.session.rollback_to_savepoint()  # which also makes deferred constraints wait again

    def _conflict(self, seqno: Seqno, change: RowChange, exc: MisfitError | UnfitError) -> ConflictError:
        why = str(exc)
        affected = exc.affected if isinstance(exc, MisfitError) else None
        if affected is not None:
            why = _why(change, affected)
        return ConflictError(seqno=seqno, table=change.table.name, key=key_text(change), why=why)

    # --- statements ---

    def _run_statement(self, unit: ApplyUnit, statement: Statement) -> None:
        rows, dialect = self.rows, self.rows.dialect
        ruling = rule(
            unit,
            statement,
            ddl=rows.options.ddl,
            kind=dialect.kind,
            runs_ddl_of=dialect.runs_ddl_of,
            has_sequences=dialect.has_sequences,
        )
        for name in ruling.emptied:
            if self._has_rows(unit.seqno, name):
                raise rows_are_here(unit, statement, name, rows.options.ddl)
        sql = text_of(statement)
        text = shortened(sql)
        if why := ruling.passed_over or dialect.ddl_to_skip(sql):
            self.ignored += 1
            message = "a statement is passed over, further ones silently why=%s seqno=%d statement=%r"
            rows.warn(why, message, why, unit.seqno, text)
        elif ruling.truncated:
            self._empty(unit, ruling.truncated, text)
        elif ruling.edits:
            self._carry_out(unit, statement, ruling.edits, text)
        else:
            self._run(unit, statement, text)

    def _carry_out(self, unit: ApplyUnit, statement: Statement, edits: Sequence[Edit], text: str) -> None:
        """Carry out what a statement of another kind does. Each edit has its number, whatever it comes to."""
        rows, dialect = self.rows, self.rows.dialect
        here = TablesHere(
            dialect=dialect,
            loss=rows.options.ddl_loss,
            table=rows.table_here,
            has_rows=lambda name: self._has_rows(unit.seqno, name),
        )
        stood = rows.notes()
        notes = dict(stood)
        for said in edits:
            edit = said
            if source_of(unit) == "sqlite":
                edit = replace(said, table=rows.as_spelled_here(said.table))
            for name in (edit.table, edit.to) if isinstance(edit, RenamedTable) else (edit.table,):
                rows.claim_name(named(*name), unit.seqno)
            note, number = notes.pop(edit.table, TableNote()), self.run_once
            has_run = dialect.statements_commit and rows.once.has_run(self.advance, unit, number, text)
            try:
                found = here.after(edit, note) if has_run else None
                found = found or here.follow(edit, note, unit.seqno)
            except UnfollowedError as exc:
                raise stopped(unit.seqno, text, str(exc)) from exc
            notes[edit.to if isinstance(edit, RenamedTable) else edit.table] = found.note
            if found.held:
                logger.warning("held target=%s seqno=%d held=%s statement=%r", rows.where, unit.seqno, found.held, text)
            if found.sql:
                mine = msgspec.structs.replace(statement, schema="", sql=found.sql, options=())
                self._run(unit, mine, text)
                ran = "a table follows the source's target=%s seqno=%d ran=%s"
                logger.warning(ran, rows.where, unit.seqno, found.sql)
            if dialect.statements_commit:
                self.run_once = number + 1
        rows.store_notes({name: notes.get(name, TableNote()) for name in {**stood, **notes}}, stood)

    def _empty(self, unit: ApplyUnit, tables: Sequence[TableName], text: str) -> None:
        """Delete the rows of tables that a statement of another kind empties: like rows, in the target transaction."""
        rows, notes, here = self.rows, self.rows.notes(), dict[TableName, None]()
        references = rows.references()  # most targets have none, and a MariaDB is slow to tell all of a table's keys
        for name in tables:
            rows.claim_name(named(*name), unit.seqno)
            table = rows.table_here(name)
            if table is None or WHOLE in notes.get(name, TableNote()).dropped:
                continue  # its next row makes it; or it is the one that the source dropped before
            if table.engine:
                raise _without_transactions(rows.dialect, {named(*name): table.engine}, unit.seqno)
            keys = rows.keys(name) if references else None
            here[name if keys is None else keys.name] = None
        if not here:
            return
        otherwise = f"or do {by_hand(unit.seqno)}"
        losing = {other for one in here if references for other in rows.losing(one)} - here.keys()
        if lost := [".".join(one) for one in sorted(losing) if rows.has_rows(named(*one))]:
            why = f"foreign keys here would delete or change rows of {', '.join(lost)} with it, which it does not empty"
            remedy = f"Empty {', '.join(lost)} here, or drop these foreign keys, and start again; {otherwise}"
            raise DdlStopError(seqno=unit.seqno, text=text, why=why, remedy=remedy)
        self.rows_sent = True
        for sql in emptying(rows.dialect, here, references):
            try:
                rows.session.run(sql)
            except (MisfitError, MissingTableError) as exc:
                why = f"{', '.join(map('.'.join, here))} cannot be emptied here: {exc}"
                remedy = f"Take away here what refuses it, and start again; {otherwise}"
                raise DdlStopError(seqno=unit.seqno, text=text, why=why, remedy=remedy) from exc
            self.statements += 1

    def _run(self, unit: ApplyUnit, statement: Statement, text: str) -> None:
        """Run a statement here; `text` is the source's, for messages. Raises DdlStopError where it fails."""
        rows, dialect = self.rows, self.rows.dialect
        try:
            if dialect.statements_commit:
                self._run_apart(unit, statement, text)
            else:
                rows.session.run_script(text_of(statement))
        except (MisfitError, MissingTableError) as exc:
            raise stopped(unit.seqno, text, str(exc)) from exc
        self.statements += 1
        rows.forget_tables()

    def _has_rows(self, seqno: Seqno, name: TableName) -> bool:
        """Whether a table has rows here. Of a whole schema that is not looked at: it is taken to have some."""
        if not name[1]:
            return True
        there = named(*name)
        self.rows.claim_name(there, seqno)  # rows of ours, or of another table, are no rows of this one
        if self.rows.table_here(name) is None:
            return False
        return self.rows.has_rows(there)

    def _run_apart(self, unit: ApplyUnit, statement: Statement, text: str) -> None:
        """Run a statement that commits, once, outside the target transaction; then begin that anew, guard first."""
        rows, session = self.rows, self.rows.session
        if self.rows_sent or len(self.units) > 1:
            kind = rows.dialect.kind
            why = f"what stands before it in its transaction would be committed by it, as {kind} has it"
            raise stopped(unit.seqno, text, why)
        session.rollback()  # nothing but the guard has been done
        number, self.run_once = self.run_once, self.run_once + 1
        to_innodb = rows.options.engine == "innodb"
        if to_innodb:
            # What another engine let pass at the source, a row format that InnoDB does not know, is let pass here.
            session.run("SET SESSION innodb_strict_mode = 0")
        rows.once.run(self.advance, unit, number, statement, text)
        if to_innodb:
            found = touched(text_of(statement), schema=statement.schema)
            for schema, table in found.names if found is not None else ():
                self._make_transactional(named(schema, table))
        session.begin()
        rows.positions.guard(self.advance)

    def _make_transactional(self, table: TableMap) -> None:
        """Give a table that a statement has made an engine with transactions, before any row comes."""
        try:
            engine = self.rows.session.table(table).engine
        except MissingTableError:
            return
        if engine:
            logger.warning("a table is made InnoDB here table=%s engine=%s", table.name, engine)
            alter = f"ALTER TABLE {self.rows.dialect.table_name(table)} ENGINE = InnoDB"
            self.rows.session.run(f"SET STATEMENT sql_mode = '' FOR {alter}")  # so that equal labels pass


def _table(session: Session, table: TableMap, seqno: Seqno | None = None) -> TargetTable:
    """Return what is in a table's place, as `Session.table`. Raises TargetTableError where that is no table."""
    try:
        return session.table(table)
    except TakenNameError as exc:
        remedy = "Drop what has it here, or give it another name, and start again"
        raise TargetTableError(table=table.name, why=str(exc), seqno=seqno, remedy=remedy) from exc


def _without_transactions(dialect: Dialect, engines: Mapping[TableMap, str], seqno: Seqno | None) -> TargetTableError:
    """Return the refusal of tables whose rows would double, by their engines."""
    altered = [f"ALTER TABLE {dialect.table_name(table)} ENGINE = InnoDB" for table in engines]
    return TargetTableError(
        table=", ".join([table.name for table in engines]),
        why=f"its engine is {' or '.join(sorted(set(engines.values())))}, which has no transactions, so that rows "
        "would be there twice when a target transaction is tried again",
        seqno=seqno,
        remedy=f'{"; ".join(altered)} here, and start again; with engine = "innodb" DDL makes no others',
    )


def _gone(table: TableMap, seqno: Seqno | None) -> TargetTableError:
    """Return the refusal to make a table anew, which would lack the rows that it had."""
    why = "it had rows of the source, and there is no such table here any more"
    remedy = "Restore it with its rows, and start again; or, if it may be without them: `tranlog tables create`"
    return TargetTableError(table=table.name, why=why, seqno=seqno, remedy=remedy)


def _kind_of_run(change: RowChange | Statement) -> tuple[str, str] | None:
    """Return the table of an update, None for any other change."""
    if isinstance(change, RowChange) and change.op == Op.UPDATE:
        return change.table.schema, change.table.table
    return None


def _why(change: RowChange, affected: int) -> str:
    """Say in words what a wrong count of rows means."""
    if change.op == Op.INSERT:
        return "the row was not inserted: a trigger at the target took it away"
    if affected == 0 and change.table.primary_key:
        return (
            "no row at the target has this key (or a trigger there held the change back, or a foreign key's ON DELETE "
            "or ON UPDATE took the row, which `tranlog doctor` tells)"
        )
    if affected == 0:
        return "no row at the target equals the row as it was before"
    return f"{affected} rows at the target were hit where one was to be"
