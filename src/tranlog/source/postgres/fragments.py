"""From a committed transaction's messages to fragments.

Owns what becomes of each message: rows, TRUNCATE as a statement at its place, what sessions gave to
pg_logical_emit_message as metadata, our own heartbeats and recorded DDL; and which tables' changes are left out, as a
gap.

Source: PostgreSQL's manual, "pg_logical_emit_message".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from tranlog.change import HEARTBEAT, NOOP, Fragment, Statement, TableMap, TableName
from tranlog.errors import UnsupportedEventError
from tranlog.gaps import TableGap, beyond_limit
from tranlog.row_touches import RowTouches
from tranlog.source.packer import TransactionPacker
from tranlog.source.postgres.catalog import quoted_table
from tranlog.source.postgres.connection import PostgresSourceOptions
from tranlog.source.postgres.messages import (
    LogicalMessage,
    MessageFormatError,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    parse_message,
)
from tranlog.source.postgres.position import WalPosition
from tranlog.source.postgres.relations import Definition, Relations
from tranlog.source.postgres.rows import NoBeforeImageError, encode_run
from tranlog.source.postgres.small import SMALL_BYTES, SmallTransaction, pack_small
from tranlog.source.postgres.transactions import Assembled, WholeTransaction
from tranlog.source.waiting import WaitingEvents

_BATCH_MESSAGES: Final = 512
_MESSAGE_KEPT_BYTES: Final = 64 << 10
_OURS: Final = "tranlog:"
_DDL: Final = "tranlog:ddl"
_BEAT: Final = "tranlog:heartbeat"
_RENAMES: Final = re.compile(r"\bSCHEMA\b.*\bRENAME\b", re.IGNORECASE | re.DOTALL)
_DBMS: Final = ("dbms_type", "postgres")
_ROWS: Final = frozenset(b"IUD")
_ANNOUNCING: Final = frozenset(b"RY")


class PostgresFragmentMaker:
    """Makes the fragments of one transaction at a time. Threads: one."""

    def __init__(self, options: PostgresSourceOptions, relations: Relations) -> None:
        self._options = options
        self._relations = relations
        self._packer = TransactionPacker(
            source_id=options.source_id,
            rule=options.shard_rule,
            fragment_bytes=options.fragment_bytes,
            touches=RowTouches(distinct_nulls=False, goes_on=True),
        )

    def empty(self, event_id: str, *, tstamp: int) -> Fragment:
        """Return an empty transaction that carries a position."""
        self._packer.begin(self._options.shard_rule)
        return self._packer.finish(event_id=event_id, tstamp=tstamp, metadata=((NOOP, "position"), _DBMS))

    def note_definitions(self, group: WholeTransaction) -> None:
        """Take the tables and types that a transaction defines, and nothing else of it."""
        for raw in group:
            if raw[0] in _ANNOUNCING:
                self._announce(raw, streamed=group.streamed)

    def fragments(self, group: Assembled, before: WalPosition, *, now_ms: int) -> Iterator[Fragment]:
        """Yield what was committed after `before` as fragments; none when nothing in it is captured.

        Raises: MessageFormatError, UnsupportedEventError, SourceSetupError, SourceUnavailableError.
        """
        if isinstance(group, SmallTransaction):
            small = self._small(group, before)
            if small is not None:
                yield small
                return
            rows = WaitingEvents(SMALL_BYTES, None)
            rows.extend(group.rows)
            group = WholeTransaction(
                xid=group.xid, end_lsn=group.end_lsn, timestamp=group.timestamp, size=group.size, messages=rows
            )
        if isinstance(group, LogicalMessage):
            if not group.prefix.startswith(_OURS):
                event_id = str(msgspec.structs.replace(before, lsn=group.lsn, xid=0))
                self._packer.begin(self._options.shard_rule)
                yield self._packer.finish(
                    event_id=event_id, tstamp=now_ms, metadata=((NOOP, "message"), _DBMS, _kept(group))
                )
            return
        packer = self._packer
        packer.begin(self._relations.rule(anew=group.announces))
        event_id = str(msgspec.structs.replace(before, lsn=group.end_lsn, xid=group.xid))
        tstamp = group.timestamp // 1000
        metadata: list[tuple[str, str]] = [_DBMS, ("xid", str(group.xid))]
        noop = ""
        missing: dict[TableName, str] = {}
        messages = iter(group)
        while batch := list(islice(messages, _BATCH_MESSAGES)):
            at = 0
            while at < len(batch):
                raw = batch[at]
                if raw[0] in _ROWS:
                    if (group.beyond or missing) and self._is_missing(raw, group, missing):
                        at += 1
                        continue
                    try:
                        layout, op, images, at = encode_run(batch, at, self._relations.layouts, streamed=group.streamed)
                    except NoBeforeImageError as exc:
                        table = exc.table
                        self._miss(table, _without_image(table, group), _set_identity(table), before, missing)
                        continue
                    yield from packer.add_encoded_rows(layout.table, op, images, event_id=event_id, tstamp=tstamp)
                    continue
                at += 1
                if raw[0] in _ANNOUNCING:
                    found = self._announce(raw, streamed=group.streamed)
                    if found is not None and found.moved:
                        self._miss(found.table, _moved(found, group), "Set", before, missing)
                    elif found is not None and found.table.older:
                        packer.note_older(found.table)
                    continue
                statement = None
                match parse_message(raw, streamed=group.streamed):
                    case TruncateMessage() as message:
                        statement = self._truncate(message, tstamp)
                    case LogicalMessage(prefix=prefix) if prefix == _BEAT:
                        noop = HEARTBEAT
                    case LogicalMessage(prefix=prefix, content=content) if prefix == _DDL:
                        sql = content.decode(errors="replace")
                        if _RENAMES.search(sql):
                            self._relations.look_at_schemas(group.end_lsn)
                        statement = Statement(schema="", sql=sql, ddl=True, timestamp=tstamp)
                    case LogicalMessage() as message:
                        noop = noop or "message"
                        metadata.append(_kept(message))
                    case OriginMessage(name=name):
                        metadata.append(("origin", name))
                    case other:
                        raise MessageFormatError(f"a message {other} inside a transaction")
                if statement is not None and (cut := packer.add(statement, event_id=event_id, tstamp=tstamp)):
                    yield cut
        if missing:
            gap = TableGap(tables=tuple(missing), reason=next(iter(missing.values())))
            yield packer.finish_gap(gap, event_id=event_id, tstamp=tstamp, metadata=tuple(metadata))
        elif packer.emitted or len(packer):
            yield packer.finish(event_id=event_id, tstamp=tstamp, metadata=tuple(metadata))
        elif noop:
            yield packer.finish(event_id=event_id, tstamp=tstamp, metadata=((NOOP, noop), *metadata))

    def _small(self, group: SmallTransaction, before: WalPosition) -> Fragment | None:
        """Return a small transaction as its one fragment; None where it has to be a gap."""
        self._packer.begin(self._relations.rule(anew=False))
        return pack_small(
            self._packer,
            group.rows,
            self._relations.layouts,
            event_id=str(msgspec.structs.replace(before, lsn=group.end_lsn, xid=group.xid)),
            tstamp=group.timestamp // 1000,
            metadata=(_DBMS, ("xid", str(group.xid))),
        )

    def _announce(self, raw: bytes, *, streamed: bool) -> Definition | None:
        message = parse_message(raw, streamed=streamed)
        if isinstance(message, RelationMessage):
            return self._relations.define(message)
        if isinstance(message, TypeMessage):
            self._relations.note_type(message)
        return None

    def _is_missing(self, raw: bytes, group: WholeTransaction, missing: dict[TableName, str]) -> bool:
        """Whether a row is of a table whose changes are left out; of a transaction beyond its limit all are."""
        head = 5 if group.streamed else 1
        number = int.from_bytes(raw[head : head + 4], "big")
        layout = self._relations.layouts.get(number)
        if layout is None:
            raise MessageFormatError(f"a row of table {number}, which was not defined")
        name = layout.table.schema, layout.table.table
        if group.beyond:
            missing[name] = beyond_limit(group.size, self._options.transaction_bytes_max)
        return name in missing

    def _miss(
        self, table: TableMap, what: str, remedy: str, before: WalPosition, missing: dict[TableName, str]
    ) -> None:
        """Leave out a table's changes from here on. Raises UnsupportedEventError by option."""
        if self._options.on_gap == "stop":
            raise UnsupportedEventError(
                what=what,
                event_id=str(before),
                remedy=f'{remedy} on_gap = "gap" until the log is past this transaction, or take a new copy of the '
                "target and start a new log",
            )
        missing[table.schema, table.table] = what

    def _truncate(self, message: TruncateMessage, tstamp: int) -> Statement:
        tables = [layout.table for oid in message.relations if (layout := self._relations.layouts.get(oid)) is not None]
        if len(tables) != len(message.relations) or not tables:
            raise MessageFormatError("a TRUNCATE of a table that was not defined")
        names = ", ".join(quoted_table(table.schema, table.table) for table in tables)
        more = (" RESTART IDENTITY" if message.restart_identity else "") + (" CASCADE" if message.cascade else "")
        return Statement(schema=tables[0].schema, sql=f"TRUNCATE TABLE {names}{more}", ddl=False, timestamp=tstamp)


def _without_image(table: TableMap, group: WholeTransaction) -> str:
    return (
        f"a change of {table.name} in transaction {group.xid} came without the row as it was: the table did not have "
        "the replica identity FULL then"
    )


def _set_identity(table: TableMap) -> str:
    quoted = quoted_table(table.schema, table.table)
    return f"Run at the source: ALTER TABLE {quoted} REPLICA IDENTITY FULL; then set"


def _moved(found: Definition, group: WholeTransaction) -> str:
    return f"{found.moved} was another one's before transaction {group.xid}, and what older rows hold by it is not sent"


def _kept(message: LogicalMessage) -> tuple[str, str]:
    """Return a message as metadata: its text, or its bytes in hexadecimal; of a very long one, its size."""
    content = message.content
    name = f"message {message.prefix}"
    if len(content) > _MESSAGE_KEPT_BYTES:
        return name, f"({len(content)} bytes)"
    try:
        return name, content.decode()
    except UnicodeDecodeError:
        return name, "\\x" + content.hex()
