"""From the events of a whole transaction to fragments: rows, statements, and what is refused.

Owns what of a transaction is captured. How a table's rows are decoded is said by `captured`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from tranlog.change import NOOP, Fragment, Op, Options, Statement
from tranlog.charsets import statement_text
from tranlog.ddl import touched
from tranlog.errors import UnsupportedEventError
from tranlog.gaps import TableGap, beyond_limit
from tranlog.row_touches import RowTouches
from tranlog.source.mariadb.alike import AlikeColumns
from tranlog.source.mariadb.captured import CapturedTables, TableLayout
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.events import (
    AFTER_FLAGS,
    HEADER,
    ROWS_EVENTS,
    EventFormatError,
    EventType,
    annotation,
    parse_beside,
    parse_query,
    parse_rows_shape,
    query_of_load,
    rows_unchecked,
    table_map_name,
    table_number,
)
from tranlog.source.mariadb.groups import EventGroup
from tranlog.source.mariadb.position import BinlogPosition
from tranlog.source.mariadb.transaction import SourceTransaction
from tranlog.source.packer import TransactionPacker
from tranlog.sql_tokens import qualifiers
from tranlog.statements import FOLDED_NAMES, TEMPORARY, StatementKind, statement_kind

logger = logging.getLogger(__name__)

_ANNOTATIONS_MAX: Final = 100


class FragmentMaker:
    """Makes fragments of transactions, one after the other. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, captured: CapturedTables, alike: AlikeColumns) -> None:
        self._options = options
        self._captured = captured
        self._alike = alike
        self._packer = TransactionPacker(
            source_id=options.source_id,
            rule=options.shard_rule,
            fragment_bytes=options.fragment_bytes,
            touches=RowTouches(goes_on=True),
        )

    def empty(self, position: BinlogPosition, tstamp: int) -> Fragment:
        """Return an empty transaction that carries a position on."""
        self._packer.begin(self._captured.shard_rule(ddl=True))
        return self._packer.finish(
            event_id=str(position), tstamp=tstamp, metadata=((NOOP, "position"), ("dbms_type", "mariadb"))
        )

    def fragments(self, transaction: SourceTransaction) -> Iterator[Fragment]:
        """Yield a transaction's fragments; none when nothing in it is captured.

        Raises UnsupportedEventError, UnsupportedTypeError; SourceUnavailableError, SourceSetupError.
        """
        group, held = transaction.group, transaction.held
        packer = self._packer
        packer.begin(self._captured.shard_rule(ddl=group.gtid.standalone))
        event_id = str(transaction.after)
        tstamp = group.timestamp * 1000
        layouts: dict[int, TableLayout | None] = {}
        annotations: list[tuple[str, str]] = []
        beside: list[tuple[str, str]] = []
        statements = 0
        taken_back = bool(held.taken_back)
        gap = self._gap(transaction)
        missing = frozenset() if gap is None else frozenset(gap.tables)
        for number, event in enumerate(held.events):
            kind = event[4]
            if kind == _TABLE_MAP:
                is_missing = bool(missing) and table_map_name(event) in missing
                layouts[table_number(event)] = None if is_missing else self._captured.layout(event, transaction)
            elif kind in _ROWS:
                try:
                    layout = layouts[table_number(event)]
                except KeyError as exc:
                    raise transaction.broken("rows of a table without a table map") from exc
                if layout is None:
                    continue
                if taken_back and held.is_taken_back(number):
                    self._check_undone(layout, transaction)
                    continue
                yield from self._rows(event, layout, transaction, event_id, tstamp)
            elif kind == _QUERY:
                statement, kind_of = self._statement(event, transaction, tuple(beside))
                beside.clear()
                # What defines a table commits by itself: a rollback after it takes nothing back.
                undone = taken_back and kind_of is not StatementKind.DDL and held.is_taken_back(number)
                if undone or (kind_of is StatementKind.ROWS and self._options.statements == "stop"):
                    if self._is_elsewhere(statement) or gap is not None:
                        continue
                    raise _refused(statement, transaction, undone=undone)
                statements += 1
                if kind_of in (StatementKind.DDL, StatementKind.EMPTIES) and not self._concerns(statement, transaction):
                    continue
                self._alike.note_statement(statement.schema, _text(statement))
                cut = packer.add(statement, event_id=event_id, tstamp=tstamp)
                if cut is not None:
                    yield cut
            elif kind == _LOAD:
                statement, _ = self._statement(query_of_load(event), transaction, ())
                if not self._is_elsewhere(statement):
                    raise transaction.refused(f"a LOAD DATA in statement format, {_short(statement)},", _LOAD_TO_ROWS)
            elif kind == _ANNOTATE_ROWS:
                if len(annotations) < _ANNOTATIONS_MAX:
                    annotations.append(("annotate", annotation(event)))
            else:  # INTVAR, RAND, USER_VAR: what a statement that changes rows needs beside its text
                try:
                    beside += parse_beside(event, self._captured.charsets, self._captured.collations)
                except EventFormatError as exc:
                    raise transaction.broken(exc.why) from exc
        if beside:
            raise transaction.broken("the settings of a statement without the statement")
        if statements:
            self._captured.forget()
        if gap is not None:
            told = (*_metadata(group), *annotations)
            yield packer.finish_gap(gap, event_id=event_id, tstamp=tstamp, metadata=told)
        elif packer.emitted or len(packer):
            yield packer.finish(event_id=event_id, tstamp=tstamp, metadata=(*_metadata(group), *annotations))

    def _gap(self, transaction: SourceTransaction) -> TableGap | None:
        """Return what of a transaction is no rows of its tables, and cannot be; None where there is nothing such.

        None also where a statement is refused by the option. Raises UnsupportedEventError for one that may change more
        than one table; SourceUnavailableError, SourceSetupError.
        """
        held, options = transaction.held, self._options
        if not (held.beyond or held.statements) or options.on_gap == "stop" or options.statements == "record":
            return None
        tables = dict.fromkeys(held.beyond)
        reason = beyond_limit(held.size, options.transaction_bytes_max)
        for number, event in enumerate(held.events):
            if event[4] != _QUERY:
                continue
            statement, kind = self._statement(event, transaction, ())
            if kind is not StatementKind.ROWS or self._is_elsewhere(statement, say=False):
                continue
            table = None if held.taken_back else self._captured.lone.changed_by(statement, transaction.group)
            if table is None:
                raise _refused(statement, transaction, undone=held.is_taken_back(number))
            reason = reason if tables else f"the statement {_short(statement)} stands in the place of rows"
            tables[table] = None
        return TableGap(tables=tuple(tables), reason=reason) if tables else None

    def _rows(
        self, event: bytes, layout: TableLayout, transaction: SourceTransaction, event_id: str, tstamp: int
    ) -> Iterator[Fragment]:
        operation = _OPERATIONS[event[4]]
        full = layout.full_twice if operation is Op.UPDATE else layout.full
        if event[4] < _FIRST_OF_VERSION_2 and event.startswith(full, AFTER_FLAGS):
            images_at, part = AFTER_FLAGS + len(full), layout
        else:
            shape = parse_rows_shape(event)
            if shape.columns != layout.columns:
                raise transaction.broken(
                    f"rows of {shape.columns} columns for {layout.table.name}, which has {layout.columns}"
                )
            found = None if shape.present is None else layout.part(shape.present)
            if found is None:
                raise transaction.refused(
                    f"rows of {layout.table.name} without all their columns: a session has set binlog_row_image, or a "
                    "column was generated when they were written and is not any more; that",
                    "SET GLOBAL binlog_row_image = 'FULL', and find the program that changes it for its session. ",
                )
            images_at, part = shape.images_at, found
        try:
            images = part.encode(event, images_at)
        except EventFormatError as exc:
            raise transaction.broken(exc.why) from exc
        table = part.table
        if operation is Op.UPDATE:
            if len(images) % 2:
                raise transaction.broken(f"an update of {table.name} with an odd number of images")
            images = [before + after for before, after in zip(images[::2], images[1::2], strict=True)]
        return self._packer.add_encoded_rows(
            table, operation, images, event_id=event_id, tstamp=tstamp, unchecked=rows_unchecked(event)
        )

    def _default_collations(self, numbers: str) -> str:
        """Return `charset=collation,...`, as SET takes it, of pairs of the server's numbers of collations."""
        charsets, collations = self._captured.charsets, self._captured.collations
        pairs = [tuple(map(int, pair.split("="))) for pair in numbers.split(",") if pair]
        return ",".join([f"{charsets.get(a, a)}={collations.get(b, b)}" for a, b in pairs])

    def _statement(
        self, event: bytes, transaction: SourceTransaction, beside: Options
    ) -> tuple[Statement, StatementKind]:
        """Return a statement, and what kind it is."""
        try:
            query = parse_query(event)
        except EventFormatError as exc:
            raise transaction.broken(exc.why) from exc
        charset = self._captured.charsets.get(query.collation_client or -1, "utf8mb4")
        text = statement_text(charset, query.text)
        options: list[tuple[str, str]] = []
        for name, value in query.settings:
            if name == "collation_client":
                options.append(("character_set_client", charset))
            elif name == "character_set_collations":
                options.append((name, self._default_collations(value)))
            elif name.startswith("collation_"):
                options.append((name, self._captured.collations.get(int(value), value)))
            else:
                options.append((name, value))
        if query.unread:
            options.append(("status_variables", query.unread.hex()))
        if self._captured.folds_names:
            options.append((FOLDED_NAMES, "1"))
        readable = text if isinstance(text, str) else text.decode("latin-1")
        kind = statement_kind(readable, marked_ddl=transaction.group.gtid.ddl)
        if kind is StatementKind.EMPTIES and HEADER.unpack_from(event)[-1] & _OF_ITS_SESSION:
            options.append((TEMPORARY, "1"))
        statement = Statement(
            schema=query.schema,
            sql=text,
            ddl=kind is StatementKind.DDL,
            timestamp=HEADER.unpack_from(event)[0] * 1000,
            error_code=query.error_code,
            options=(*options, *beside),
        )
        return statement, kind

    def _concerns(self, statement: Statement, transaction: SourceTransaction) -> bool:
        """Whether DDL changes what is captured, by the names in it; users and the like are passed on.

        Raises UnsupportedEventError for one that reaches from captured databases into others.
        """
        found = touched(_text(statement), schema=statement.schema, folds=self._captured.folds_names)
        if found is None:  # no form that we know: as a replica judges it
            return not statement.schema or self._options.captures(statement.schema)
        others = [schema for schema in found.databases if not self._options.captures(schema)]
        if not others or len(others) == len(found.databases):
            return not others
        raise transaction.refused(
            f"the statement {_short(statement)} changes several databases, of which {', '.join(others)} is not "
            "captured; it",
            "Do at the targets what it does there, or add that database to the option databases. ",
        )

    def _is_elsewhere(self, statement: Statement, *, say: bool = True) -> bool:
        """Whether a statement that changes rows by itself does so in databases that are not captured, by its text.

        As a replica with replicate_do_db it is judged by the database that it ran in; and by the ones that it names.
        """
        captures = self._options.captures
        named = qualifiers(_text(statement))
        if (captures(statement.schema) if statement.schema else not named) or any(map(captures, named)):
            return False
        if say:
            logger.warning(
                "A statement in the place of its rows was passed over: it names no captured database. schema=%s "
                "statement=%s",
                statement.schema,
                _short(statement),
            )
        return True

    def _check_undone(self, layout: TableLayout, transaction: SourceTransaction) -> None:
        """Let rows that were rolled back be left out only where a rollback takes them back.

        The server writes rows of tables without transactions in transactions of their own. Where it did not, whether
        they stayed could not be told.
        """
        if layout.transactional is False:
            raise transaction.refused(f"a rollback over rows of {layout.table.name}, whose engine has no transactions,")


_ROWS: Final = frozenset(int(kind) for kind in ROWS_EVENTS)
_OPERATIONS: Final = {
    int(kind): {"write": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}[operation]
    for kind, (operation, _) in ROWS_EVENTS.items()
}
# Plain numbers: a member of an enum costs several times as much to look up and to compare.
_TABLE_MAP: Final = int(EventType.TABLE_MAP)
_QUERY: Final = int(EventType.QUERY)
_ANNOTATE_ROWS: Final = int(EventType.ANNOTATE_ROWS)
_LOAD: Final = int(EventType.EXECUTE_LOAD_QUERY)
_OF_ITS_SESSION: Final = 0x04
"""A flag of an event's header: its statement concerns a temporary table."""
_FIRST_OF_VERSION_2: Final = int(EventType.WRITE_ROWS)


_LOAD_TO_ROWS: Final = (
    "SET GLOBAL binlog_format = 'ROW', and end the sessions that are open: they keep the old format. "
)
_TO_ROWS: Final = (
    "SET GLOBAL binlog_format = 'ROW', and end the sessions that are open, which keep the old format; look for "
    "programs that set it for their session, and for tables with a transaction-precise period. To have such "
    'statements in the log as text, which only a MariaDB can apply, set the option statements = "record". '
)


def _refused(statement: Statement, transaction: SourceTransaction, *, undone: bool) -> UnsupportedEventError:
    if undone:
        return transaction.refused(f"the statement {_short(statement)} in a part that was rolled back")
    what = f"the statement {_short(statement)} stands in the place of the rows that it changed; it"
    return transaction.refused(what, _TO_ROWS)


def _metadata(group: EventGroup) -> Options:
    gtid = group.gtid.gtid
    metadata = (("dbms_type", "mariadb"), ("server_id", str(gtid.server_id)), ("gtid_domain", str(gtid.domain)))
    commit_id = group.gtid.group_commit_id
    return metadata if commit_id is None else (*metadata, ("group_commit_id", str(commit_id)))


def _text(statement: Statement) -> str:
    return statement.sql if isinstance(statement.sql, str) else statement.sql.decode("latin-1")


def _short(statement: Statement) -> str:
    text = _text(statement)
    return repr(text if len(text) <= 100 else text[:97] + "...")
