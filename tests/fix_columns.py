"""What batches must hold, said the slow way: row by row from what a cursor decodes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

from tranlog.change import Change, Column, Op, RowChange, Statement, TableMap
from tranlog.log.records.columns import ALL, Selection
from tranlog.log.writing.log import Log, LogReader
from tranlog.payload import decode
from tranlog.row_text import pairs_text, value_json
from tranlog.types import (
    F32,
    UNCHANGED,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
)


def row_text(table: TableMap, row: tuple[Value, ...]) -> str:
    return _object(table, row, range(len(row)))


def key_text(table: TableMap, row: tuple[Value, ...]) -> str | None:
    return _object(table, row, table.primary_key) if table.primary_key else None


def _object(table: TableMap, row: tuple[Value, ...], places: Iterable[int]) -> str:
    names = [json.dumps(table.columns[at].name, ensure_ascii=False) for at in places]
    return "{" + ",".join([f"{name}:{value_json(row[at])}" for name, at in zip(names, places, strict=True)]) + "}"


VALUES: tuple[Value, ...] = (
    *(None, UNCHANGED, False, True),
    *(0, 1, -1, 63, 64, -64, -65, 8191, 8192, 1 << 27, -(1 << 41), (1 << 55) - 1, 1 << 55, -(1 << 55), -(1 << 55) - 1),
    *((1 << 62) - 1, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1),
    *(F32(1.5), F32(float("nan")), 0.1, -0.0, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")),
    *(Decimal("1.50"), Decimal("-0"), Decimal("NaN"), Decimal("Infinity"), Decimal("1E+30"), Decimal("9" * 60)),
    *(
        "",
        "a",
        "é",
        "a😀",
        "x" * 126,
        "x" * 127,
        "x" * 128,
        "y" * 20_000,
        'quo"te',
        "back\\slash",
        "a\nb",
        "\0",
        "\x7f\x1f",
    ),
    *(b"", b"\0\xff", b"z" * 200, CharsetBytes("latin1", b"\xff")),
    *(
        Date(0),
        Date(-800_000),
        Time(-1),
        Time(3_020_399_999_999),
        Datetime(0),
        Datetime(-1),
        Instant(1_700_000_000_000_001),
    ),
    *(Instant(1_700_000_000_000_001), ZeroDate("0000-00-00"), InfiniteDate(True), InfiniteDate(False)),
    *(
        Bit(0, 0),
        Bit(9, 257),
        Bit(64, (1 << 64) - 1),
        EnumLabel(""),
        EnumLabel("b,c"),
        SetLabels(()),
        SetLabels(("a", "é")),
    ),
    *(Json('{"b": 1,  "a": null}'), Json('"\\u0000"'), UUID(int=7), Other("point", "(1,2)")),
)
"""Every tag, and every length of one that is written in another way."""


def table_of(width: int, *, schema: str = "types", table: str = "t", key: tuple[int, ...] = (0,)) -> TableMap:
    names = ["id", 'na"me', "größe", *(f"c{number}" for number in range(width))]
    columns = [Column(name=name, source_type="", logical=LogicalType.ANY) for name in names[:width]]
    return TableMap(schema=schema, table=table, columns=tuple(columns), primary_key=key)


def random_changes(seed: int, count: int) -> list[Change]:
    """Changes of a few tables, whose columns hold one kind of value or any."""
    choose = random.Random(seed)
    tables = [
        table_of(1),
        table_of(5, table="wide", key=(0, 2)),
        table_of(3, schema="other", key=()),
        table_of(4, table="wide", key=(3,)),  # the same name after an ALTER
    ]
    kinds: dict[tuple[int, int], list[Value]] = {}
    for which, table in enumerate(tables):
        for place in range(len(table.columns)):
            one = type(choose.choice(VALUES))
            alike: list[Value] = [value for value in VALUES if type(value) is one]
            kinds[which, place] = choose.choice((alike, [*alike, None], list(VALUES)))

    def row(which: int) -> tuple[Value, ...]:
        return tuple(choose.choice(kinds[which, place]) for place in range(len(tables[which].columns)))

    changes: list[Change] = []
    for _ in range(count):
        which = choose.randrange(len(tables))
        op = choose.choice((Op.INSERT, Op.UPDATE, Op.DELETE))
        before = None if op is Op.INSERT else row(which)
        after = None if op is Op.DELETE else row(which)
        changes.append(RowChange(tables[which], op, before, after))
        if choose.random() < 0.03:
            sql: str | bytes = choose.choice(("TRUNCATE t", b"caf\xe9"))
            changes.append(Statement(schema=choose.choice(("types", "other")), sql=sql, ddl=True))
    return changes


def change_rows(log: Log | LogReader, selection: Selection = ALL) -> Iterator[dict[str, Any]]:
    """Yield one row per change, decoded one by one."""
    kinds = {Op.INSERT: ("insert", "I"), Op.UPDATE: ("update", "U"), Op.DELETE: ("delete", "D")}
    with log.cursor() as cursor:
        for transaction in cursor.scan(wait=False):
            verdict, seen = transaction.header, False
            if selection.shards is not None and verdict.shard_id not in selection.shards:
                continue
            for record in transaction.records():
                header, payload = record.header, decode(record.payload)
                start: dict[str, Any] = {
                    "changeno": 0,
                    **{"gtid": str(header.gtid), "epoch": header.epoch, "seqno": header.seqno, "fragno": header.fragno},
                    **{"last_frag": header.last_frag, "source_id": header.source_id, "event_id": verdict.event_id},
                    **{
                        "shard_id": verdict.shard_id,
                        "commit_time": verdict.tstamp,
                        "h": f"{log.h(verdict.seqno):016x}",
                    },
                }
                nothing = dict.fromkeys(("kind", "schema", "table", "op", "key", "before", "after", "statement"))
                metadata = {"metadata": list(pairs_text(payload.metadata).items())}
                for changeno, change in enumerate(payload.changes):
                    seen = True
                    start["changeno"] = changeno
                    if isinstance(change, Statement):
                        sql = change.sql if isinstance(change.sql, str) else change.sql.decode(errors="replace")
                        told: dict[str, Any] = {"kind": "statement", "schema": change.schema, "statement": sql}
                        if selection.wants_statement(change.schema):
                            yield {**start, **nothing, **told, **metadata}
                        continue
                    table, before, after = change.table, change.before, change.after
                    if not selection.wants_row(table.schema, table.table):
                        continue
                    kind, op = kinds[change.op]
                    row = after if before is None else before
                    assert row is not None
                    told = {"kind": kind, "op": op, "schema": table.schema, "table": table.table}
                    told |= {"key": key_text(table, row)}
                    told |= {"before": None if before is None else row_text(table, before)}
                    told |= {"after": None if after is None else row_text(table, after)}
                    yield {**start, **nothing, **told, **metadata}
                if header.last_frag and not seen and selection.wants_noop():
                    yield {**start, **nothing, "kind": "noop", **metadata}


def transaction_rows(log: Log | LogReader) -> Iterator[dict[str, Any]]:
    """Yield one row per transaction, decoded one by one."""
    with log.cursor() as cursor:
        for transaction in cursor.scan(wait=False):
            header = transaction.header
            payloads = list(transaction.payloads())
            tables = header.tables
            yield {
                **{"gtid": str(header.gtid), "epoch": header.epoch, "seqno": header.seqno},
                **{"source_id": header.source_id, "event_id": header.event_id, "shard_id": header.shard_id},
                "commit_time": header.tstamp,
                "h": f"{log.h(header.seqno):016x}",
                "tables": None if tables is None else [f"{schema}.{table}" for schema, table in tables],
                **{"fragments": len(payloads), "bytes": sum(map(len, payloads))},
                "changes": sum(1 for _ in transaction.changes()),
                "metadata": list(pairs_text(transaction.payload().metadata).items()),
                "payload": payloads[0] if len(payloads) == 1 else None,
            }
