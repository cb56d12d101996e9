"""A target database of any kind: positions and rows in one target transaction.

Owns the course of a target transaction: the guarded update first, then the changes in batches, then the commit; and
what happens when something does not fit. Leaves SQL to the dialect, the connection to the session, our three tables to
`position`. The hard idea: batches are fast and say little. When one is refused, everything is rolled back and sent
again change by change, in the log's own order; then either it fits, since only the batch had been in the way (rows of
a unique key that pass each other), or the error names the very transaction, table and key.

Source: design/pipeline.md, "Applying"; design/data-model.md, "A primary-key change", "DDL and other statements".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from tranlog.change import Op, RowChange, Statement, TableMap, TableName
from tranlog.ddl import touched
from tranlog.errors import ConflictError, DdlStopError, TargetTableError, TransientTargetError
from tranlog.ids import Seqno
from tranlog.statements import StatementKind, statement_kind
from tranlog.target.batches import Batch, Placed, batch_up, net_effect
from tranlog.target.binding import Binding, BoundColumn, MismatchError, TargetTable, UnfitError
from tranlog.target.dialect import Dialect
from tranlog.target.once import Once
from tranlog.target.position import OUR_TABLES, Positions
from tranlog.target.session import LockTimeoutError, MisfitError, MissingTableError, Session
from tranlog.target.target import Advance, Applied, ChannelRow, Meeting, PipelineRow, Unit
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


class DatabaseTarget:
    """One connection to a target database. Threads: one at a time. See Target for its methods."""

    def __init__(
        self, options: TargetOptions, dialect: Dialect, connect: Callable[[TargetOptions], Session], *, where: str
    ) -> None:
        self.kind = dialect.kind
        self._options = options
        self._dialect = dialect
        self._connect = connect
        self._where = where
        self._bindings: dict[TableMap, Binding] = {}
        self._homes: dict[str, TableName] = {}
        """By a name here: the source's table that has it."""
        self._warned: set[str] = set()
        self._open()

    def _open(self) -> None:
        try:
            self._session = self._connect(self._options)
        except LockTimeoutError as exc:
            raise TransientTargetError(why=str(exc)) from exc
        self._positions = Positions(
            self._session, self._dialect, where=self._where, lock_timeout_s=self._options.lock_timeout_s
        )
        self._once = Once(self._session, self._dialect)
        self._bindings.clear()

    def describe(self) -> str:
        """Return where this target is, without a password."""
        return self._where

    def reconnect(self) -> None:
        """Drop the connection and open a new one, which is a new session: claim again before the next transaction."""
        self._session.close()
        self._open()

    def close(self) -> None:
        """Close; closing twice is harmless."""
        self._session.close()

    # --- our three tables ---

    def ensure_tables(self, *, again: bool = False) -> None:
        """Create our tables where they are missing; what statements are noted in beside positions only `again`."""
        self._positions.ensure_tables(again=again)

    def read_pipeline(self, pipeline: str) -> PipelineRow | None:
        """Return the pipeline's row, None where there is none."""
        return self._positions.read_pipeline(pipeline)

    def read_channels(self, pipeline: str) -> list[ChannelRow]:
        """Return the pipeline's channels, by number."""
        return self._positions.read_channels(pipeline)

    def read_assignment(self, pipeline: str) -> dict[str, int]:
        """Return the channel of each shard that has one."""
        return self._positions.read_assignment(pipeline)

    def take(
        self,
        *,
        pipeline: str,
        expected_token: int,
        holder: str,
        channels: int,
        shard_rule: str,
        rows: Sequence[ChannelRow] | None,
        keep_assignment: bool,
    ) -> int:
        """Become the pipeline's driver; return its new token."""
        return self._positions.take(
            pipeline=pipeline,
            expected_token=expected_token,
            holder=holder,
            channels=channels,
            shard_rule=shard_rule,
            rows=rows,
            keep_assignment=keep_assignment,
        )

    def keep_alive(self, *, pipeline: str, token: int) -> PipelineRow:
        """Move alive_at and return the row."""
        return self._positions.keep_alive(pipeline=pipeline, token=token)

    def request_stop(self, *, pipeline: str, token: int, stop_at_seqno: Seqno | None) -> None:
        """Set stop_at_seqno."""
        self._positions.request_stop(pipeline=pipeline, token=token, stop_at_seqno=stop_at_seqno)

    def claim(self, *, pipeline: str, channel: int, driver_token: int) -> ChannelRow:
        """Claim a channel for this session."""
        return self._positions.claim(pipeline=pipeline, channel=channel, driver_token=driver_token)

    def leave_out(self, *, pipeline: str, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Record which transactions are never to be applied."""
        self._positions.leave_out(pipeline=pipeline, token=token, ranges=ranges)

    def read_left_out(self, pipeline: str) -> list[tuple[int, int]]:
        """Return what was ever recorded so."""
        return self._positions.read_left_out(pipeline)

    def publish(self, advance: Advance) -> None:
        """Move a channel's position without rows."""
        self._positions.publish(advance)

    def meet(self, pipeline: str) -> Meeting:
        """Return all channels' positions and what the driver asks for."""
        return self._positions.meet(pipeline)

    def assign(self, *, pipeline: str, shard: str, channels: int, driver_token: int) -> int:
        """Return the shard's channel, storing one first if it has none."""
        return self._positions.assign(pipeline=pipeline, shard=shard, channels=channels, driver_token=driver_token)

    # --- rows ---

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        """Refuse those of the named tables that are in no target transaction."""
        sql, name_of = self._dialect.without_transactions, self._dialect.one_name

        def folded(table: TableMap) -> str:
            return name_of(table).lower() if self._session.folds_names else name_of(table)

        found = self._session.fetch(sql) if sql else []
        engines = {folded(TableMap(schema=schema, table=name, columns=())): engine for schema, name, engine in found}
        tables = [TableMap(schema=schema, table=name, columns=()) for schema, name in (named() if engines else ())]
        wrong = {table: engines[folded(table)] for table in tables if folded(table) in engines}
        if wrong:
            raise self._without_transactions(wrong, None)

    def _without_transactions(self, engines: Mapping[TableMap, str], seqno: Seqno | None) -> TargetTableError:
        """Return the refusal of tables whose rows would double, by their engines."""
        altered = [f"ALTER TABLE {self._dialect.table_name(table)} ENGINE = InnoDB" for table in engines]
        return TargetTableError(
            table=", ".join([table.name for table in engines]),
            why=f"its engine is {' or '.join(sorted(set(engines.values())))}, which has no transactions, so that rows "
            "would be there twice when a target transaction is tried again",
            seqno=seqno,
            remedy=f'{"; ".join(altered)} here, and start again; with engine = "innodb" DDL makes no others',
        )

    def apply(self, units: Sequence[Unit], advance: Advance) -> Applied:
        """Apply whole source transactions and move the position, in one target transaction."""
        try:
            try:
                return _Attempt(self, units, advance).run(_Attempt.send_in_batches)
            except (MisfitError, MissingTableError, UnfitError) as exc:
                logger.info("a batch was refused, sending change by change target=%s why=%s", self._where, exc)
                self._bindings.clear()
                return _Attempt(self, units, advance).run(_Attempt.send_one_by_one)
        except BaseException:
            # The operator will mend a table, or one that this transaction made is gone with it.
            self._bindings.clear()
            raise

    def _bind(self, table: TableMap, seqno: Seqno | None) -> Binding:
        binding = self._bindings.get(table)
        if binding is None:
            self._claim_name(table, seqno)
            target, columns = self._columns(table, seqno)
            name = self._dialect.table_name(table)
            binding = self._bindings[table] = Binding(table, target, name, columns, self._dialect.forms)
        return binding

    def _claim_name(self, table: TableMap, seqno: Seqno | None) -> None:
        """Refuse a table whose name here is one of ours, or another table's already: two would become one."""
        name = (table.schema, table.table)
        if table.table.lower() in OUR_TABLES:
            raise TargetTableError(
                table=table.name,
                why="tranlog keeps its own positions in a table of this name",
                seqno=seqno,
                remedy="Rename it at the source, or leave it out of capture",
            )
        one_name = self._dialect.one_name(table)
        holder = self._homes.setdefault(one_name.lower() if self._session.folds_names else one_name, name)
        if holder != name:
            raise TargetTableError(
                table=table.name,
                why=f"at this target its name would be the one of {'.'.join(holder)}, and their rows would mix",
                seqno=seqno,
                remedy="Rename one of them at the source; if it is the same table renamed, start again",
            )

    def _columns(self, table: TableMap, seqno: Seqno | None) -> tuple[TargetTable, list[BoundColumn]]:
        """Join a table's columns with the target's; generated ones stay out. Raises TargetTableError."""
        try:
            target = self._session.table(table)
        except MissingTableError as exc:
            error = TargetTableError(table=table.name, why=str(exc), seqno=seqno)
            if table.sequence:
                error.remedy = (
                    f"CREATE SEQUENCE {self._dialect.table_name(table)} here, which this sets, and start again"
                )
            raise error from exc
        if target.period & {column.name for column in table.columns}:
            raise TargetTableError(
                table=table.name,
                why="it is system-versioned here: old versions of rows, which the log holds as rows of their own, "
                "would become present ones, and its periods would be of this server's clock",
                seqno=seqno,
                remedy=f"ALTER TABLE {self._dialect.table_name(table)} DROP SYSTEM VERSIONING here, add the columns of "
                "the period as plain TIMESTAMP(6) columns, the one of its end to the primary key, and start again; "
                'or let present rows alone come here, by [[filter]] kind = "present"',
            )
        if target.engine:
            raise self._without_transactions({table: target.engine}, seqno)
        quote = self._dialect.quote
        names = {quote(name): column for name, column in target.columns.items()}
        columns = []
        for index, source in enumerate(table.columns):
            name = quote(source.name)
            column = names.get(name)
            if column is None:
                raise TargetTableError(table=table.name, why=f"column {source.name} is missing", seqno=seqno)
            if column.generated:
                continue
            try:
                self._dialect.accepts(source, column)
            except MismatchError as exc:
                raise TargetTableError(table=table.name, why=str(exc), seqno=seqno) from exc
            columns.append(BoundColumn(index=index, name=name, source=source, target=column))
        return target, columns

    # --- tables, and reading back ---

    def create_table(self, table: TableMap) -> str:
        """Create the table, its schema too, where it is missing. Return what was run, empty if nothing was."""
        self._claim_name(table, None)
        try:
            self._session.table(table)
            return ""
        except MissingTableError:
            pass
        ran = []
        try:
            for statement in self._dialect.create_table(table):
                self._session.run(statement)
                ran.append(statement)
        except (MisfitError, MissingTableError) as exc:
            raise TargetTableError(table=table.name, why=f"it cannot be made: {exc}") from exc
        except LockTimeoutError as exc:
            raise TransientTargetError(why=str(exc)) from exc
        return ";\n".join(ran)

    def rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Yield the table's rows in the table map's column order, as of one moment, streaming.

        Until the iteration has ended or is closed, nothing else may be asked of this target.
        """
        try:
            target = self._session.table(table)
        except MissingTableError as exc:
            raise TargetTableError(table=table.name, why=str(exc)) from exc
        quote = self._dialect.quote
        known = {quote(name): column for name, column in target.columns.items()}
        names, readers = [], []
        for source in table.columns:
            column = known.get(quote(source.name))
            if column is None:
                raise TargetTableError(table=table.name, why=f"column {source.name} is missing")
            names.append(self._dialect.selected(source, column, quote(source.name)))
            readers.append(self._dialect.reader(source, column))
        sql = f"SELECT {', '.join(names)} FROM {self._dialect.table_name(table)}"
        return self._read(table, sql, readers)

    def _read(
        self, table: TableMap, sql: str, readers: Sequence[Callable[[Any], Value]]
    ) -> Iterator[tuple[Value, ...]]:
        try:
            for row in self._session.stream(sql):
                yield tuple([None if value is None else read(value) for read, value in zip(readers, row, strict=True)])
        except MisfitError as exc:  # a value whose text, which is longer than it, passes the database's limit
            raise TargetTableError(table=table.name, why=f"its rows cannot be read back: {exc}") from exc


class _Attempt:
    """One try at a target transaction."""

    def __init__(self, target: DatabaseTarget, units: Sequence[Unit], advance: Advance) -> None:
        self._target = target
        self._session = target._session
        self._units = units
        self._advance = advance
        self._changes = 0
        self._statements = 0
        self._ignored = 0
        self._rows_sent = False
        self._run_once = 0
        self._commit_us = 0

    def run(self, send: Callable[[_Attempt], None]) -> Applied:
        """Guard, send, commit; on any error roll back. Raises what Target.apply does, and what does not fit."""
        session = self._session
        try:
            session.begin()
            self._target._positions.guard(self._advance)
            send(self)
            if self._run_once:
                self._target._once.forget(self._advance)
            committing = time.perf_counter()
            session.commit()
            self._commit_us = round((time.perf_counter() - committing) * 1e6)
        except LockTimeoutError as exc:
            session.rollback()
            who, _ = session.lock_holders()
            raise TransientTargetError(why=f"{exc}; it is held by {who}") from exc
        except BaseException:
            session.rollback()
            raise
        return Applied(
            transactions=len(self._units),
            changes=self._changes,
            statements=self._statements,
            ddl_ignored=self._ignored,
            commit_us=self._commit_us,
        )

    def _stream(self) -> Iterator[Placed]:
        for unit in self._units:
            seqno = unit.seqno
            for change in self._counted(unit):
                yield seqno, change

    def _counted(self, unit: Unit) -> Iterator[RowChange | Statement]:
        """Yield a unit's changes, those of sequences only where there are any, and count the rows."""
        target = self._target
        for change in unit.changes():
            if isinstance(change, RowChange):
                if change.table.sequence and not target._dialect.has_sequences:
                    if change.table.name not in target._warned:
                        target._warned.add(change.table.name)
                        logger.warning("a sequence is no table, and is passed over here sequence=%s", change.table.name)
                    continue
                self._changes += 1
            yield change

    # --- in batches ---

    def send_in_batches(self) -> None:
        """Send runs of like changes as one statement each."""
        session = self._session
        stream = self._stream()
        if self._target._options.net_effect:
            stream = net_effect(stream)
        rows = size = 0
        for item in batch_up(stream, self._target._bind):
            if isinstance(item, Batch):
                self._rows_sent = True
                self._statements += session.send(item.form, item.rows)
                rows += len(item.rows)
                size += item.bytes
                if rows >= SETTLE_ROWS or size >= SETTLE_BYTES:
                    session.settle()
                    rows = size = 0
            else:
                seqno, statement = item
                session.settle()
                self._run_statement(seqno, statement)
        session.settle()

    # --- one by one ---

    def send_one_by_one(self) -> None:
        """Send each change by itself and look what came of it, so that an error names it."""
        for unit in self._units:
            for kind, run in groupby(self._counted(unit), _kind_of_run):
                while part := list(islice(run, RUN_ROWS)):
                    if kind is None:
                        for change in part:
                            self._send_one(unit.seqno, change)
                    else:
                        self._send_updates(unit.seqno, [c for c in part if isinstance(c, RowChange)])
            self._check_deferred(unit.seqno)

    def _send_one(self, seqno: Seqno, change: RowChange | Statement) -> None:
        if isinstance(change, Statement):
            self._run_statement(seqno, change)
            return
        try:
            self._send(seqno, change)
        except (MisfitError, UnfitError) as exc:
            raise self._conflict(seqno, change, exc) from exc

    def _send(self, seqno: Seqno, change: RowChange) -> None:
        form, row = self._target._bind(change.table, seqno).place(change)
        self._rows_sent = True
        try:
            statements = self._session.send(form, [row])
            self._session.settle()
        except MissingTableError as exc:
            raise TargetTableError(table=change.table.name, why=str(exc), seqno=seqno) from exc
        self._statements += statements

    def _send_updates(self, seqno: Seqno, run: Sequence[RowChange]) -> None:
        """Send updates of one table that follow each other. Where a unique key of one is still held by a later one
        (two keys swapped by a source that checks at commit), delete all of these rows and insert them as they became.
        """
        self._session.savepoint()
        statements = self._statements
        for change in run:
            try:
                self._send(seqno, change)
            except (MisfitError, UnfitError) as exc:
                conflict = self._conflict(seqno, change, exc)
                if len(run) < 2 or not isinstance(exc, MisfitError) or not exc.duplicate:
                    raise conflict from exc
                self._session.rollback_to_savepoint()
                self._statements = statements
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
        check = self._target._dialect.check_deferred
        if not check:
            return
        self._session.savepoint()
        try:
            self._session.run(check)
        except MisfitError as exc:
            table = exc.table or "(not named by the target)"
            raise ConflictError(seqno=seqno, table=table, key="(see the reason)", why=str(exc)) from exc
        self._session.rollback_to_savepoint()  # which also makes deferred constraints wait again

    def _conflict(self, seqno: Seqno, change: RowChange, exc: MisfitError | UnfitError) -> ConflictError:
        why = str(exc)
        affected = exc.affected if isinstance(exc, MisfitError) else None
        if affected is not None:
            why = _why(change, affected)
        key = self._target._bind(change.table, seqno).key_text(change)
        return ConflictError(seqno=seqno, table=change.table.name, key=key, why=why)

    # --- statements ---

    def _run_statement(self, seqno: Seqno, statement: Statement) -> None:
        target = self._target
        sql = _statement_text(statement)
        found = touched(sql, schema=statement.schema)
        upkeep = statement_kind(sql, marked_ddl=False) is StatementKind.ADMINISTRATION or (found and not found.names)
        if (statement.ddl or upkeep) and target._options.ddl == "ignore":
            for name in found.emptied if found is not None else ():
                self._check_emptied(seqno, sql, name)
            self._ignore(seqno, sql, 'ddl = "ignore"')
            return
        kind = next(
            (v for unit in self._units if unit.seqno == seqno for k, v in unit.metadata if k == "dbms_type"), ""
        )
        if kind not in target._dialect.runs_ddl_of:
            if upkeep or (found and found.sequence and not target._dialect.has_sequences):
                why = "users, rights and upkeep are each server's own" if upkeep else "a sequence is no table"
                self._ignore(seqno, sql, why)
                return
            source = f"from {kind}, " if kind else ""
            what = "" if statement.ddl else ", and it changes rows, so it is not passed over with the DDL"
            why = f"it is {source}and this target is {target.kind}{what}"
            raise DdlStopError(seqno=seqno, text=_shortened(sql), why=why)
        if skipped := target._dialect.ddl_to_skip(sql):
            self._ignore(seqno, sql, skipped)
            return
        try:
            if target._dialect.statements_commit:
                self._run_apart(seqno, statement, _shortened(sql))
            else:
                self._session.run_script(sql)
        except (MisfitError, MissingTableError) as exc:
            raise DdlStopError(seqno=seqno, text=_shortened(sql), why=str(exc)) from exc
        self._statements += 1
        target._bindings.clear()
        target._homes.clear()

    def _check_emptied(self, seqno: Seqno, sql: str, name: TableName) -> None:
        """Stop at a statement that takes a table's rows away, where they are still here and it would be passed over."""
        schema, table = name
        remedy = f"Take the rows of all tables of {schema} away here, then `tranlog online --skip-seqno {seqno}`"
        if table:
            there = TableMap(schema=schema, table=table, columns=())
            self._target._claim_name(there, seqno)  # rows of ours, or of another table, are no rows of this one
            try:
                self._session.table(there)
            except MissingTableError:
                return
            if not self._session.fetch(f"SELECT 1 FROM {self._target._dialect.table_name(there)} LIMIT 1"):
                return
            remedy = (
                f"Take those rows away from {schema}.{table} here and start again; where others stay, go on by "
                f"`tranlog online --skip-seqno {seqno}`"
            )
        why = 'it takes rows away, which are still here: ddl = "ignore" does not pass over that'
        raise DdlStopError(seqno=seqno, text=_shortened(sql), why=why, remedy=remedy)

    def _run_apart(self, seqno: Seqno, statement: Statement, text: str) -> None:
        """Run a statement that commits, once, outside the target transaction; then begin that anew, guard first."""
        if self._rows_sent or len(self._units) > 1:
            why = f"what stands before it in its transaction would be committed by it, as {self._target.kind} has it"
            raise DdlStopError(seqno=seqno, text=text, why=why)
        session, target = self._session, self._target
        session.rollback()  # nothing but the guard has been done
        (unit,) = self._units
        number, self._run_once = self._run_once, self._run_once + 1
        target._once.run(self._advance, unit, number, statement, text)
        if target._options.engine == "innodb":
            found = touched(_statement_text(statement), schema=statement.schema)
            for schema, table in found.names if found is not None else ():
                self._make_transactional(TableMap(schema=schema, table=table, columns=()))
        session.begin()
        target._positions.guard(self._advance)

    def _make_transactional(self, table: TableMap) -> None:
        """Give a table that a statement has made an engine with transactions, before any row comes."""
        try:
            engine = self._session.table(table).engine
        except MissingTableError:
            return
        if engine:
            logger.warning("a table is made InnoDB here table=%s engine=%s", table.name, engine)
            alter = f"ALTER TABLE {self._target._dialect.table_name(table)} ENGINE = InnoDB"
            # What the source let pass, a row format that InnoDB does not know or equal labels, is let pass here.
            self._session.run(f"SET STATEMENT innodb_strict_mode = 0, sql_mode = '' FOR {alter}")

    def _ignore(self, seqno: Seqno, sql: str, why: str) -> None:
        self._ignored += 1
        if why not in self._target._warned:
            self._target._warned.add(why)
            logger.warning(
                "a statement is passed over, further ones silently why=%s seqno=%d statement=%r",
                why,
                seqno,
                _shortened(sql),
            )


def _statement_text(statement: Statement) -> str:
    """Return a statement's text, as far as it is one."""
    return statement.sql if isinstance(statement.sql, str) else statement.sql.decode(errors="replace")


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
        return "no row at the target has this key (or a trigger there held the change back)"
    if affected == 0:
        return "no row at the target equals the row as it was before"
    return f"{affected} rows at the target were hit where one was to be"


def _shortened(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 200 else text[:199] + "…"
