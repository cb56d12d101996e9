"""The tables that a target needs, by the log: `tables create`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tranlog import payload
from tranlog.change import Change, Column, Fragment, Op, RowChange, Statement, TableMap
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.payload import Payload, encode
from tranlog.pipeline.upkeep.tables import tables_behind, tables_in_log
from tranlog.target.options import create_statements
from tranlog.types import LogicalType


def table_of(name: str, *columns: str) -> TableMap:
    return TableMap(
        schema="shop",
        table=name,
        columns=tuple(Column(name=one, source_type="int", logical=LogicalType.INTEGER) for one in columns),
        primary_key=(0,),
    )


OLD, NEW, OTHER = table_of("item", "id"), table_of("item", "id", "size"), table_of("line", "id")
ALTER = Statement(schema="shop", sql="alter table item add size int", ddl=True)


def insert(table: TableMap) -> RowChange:
    return RowChange(table, Op.INSERT, None, (1,) * len(table.columns))


def write(path: Path, *transactions: tuple[str, tuple[Change, ...]]) -> None:
    with Log.open(path, source_id="s") as log:
        for number, (shard, changes) in enumerate(transactions):
            tables = {(c.table.schema, c.table.table): None for c in changes if isinstance(c, RowChange)}
            log.append(
                Fragment(
                    source_id="s",
                    event_id=f"e:{number}",
                    shard_id=shard,
                    tstamp=0,
                    tables=tuple(tables),
                    payload=encode(Payload(changes=changes)),
                )
            )
        log.commit()


def test_the_newest_map_of_each_table_counts(tmp_path: Path) -> None:
    write(
        tmp_path / "log",
        ("shop.item", (insert(OLD),)),
        ("shop.item", (insert(OLD),)),
        ("#UNKNOWN", (ALTER,)),
        ("shop.item", (insert(NEW),)),
        ("#UNKNOWN", (insert(NEW), insert(OTHER))),
    )
    with LogReader.open(tmp_path / "log") as reader:
        assert tables_in_log(reader, report=lambda at, last: None) == [NEW, OTHER]


def test_ddl_between_the_rows_of_one_transaction(tmp_path: Path) -> None:
    write(
        tmp_path / "log",
        ("#UNKNOWN", (insert(OLD), ALTER, insert(NEW))),
        ("shop.item", (insert(NEW),)),
    )
    with LogReader.open(tmp_path / "log") as reader:
        assert tables_in_log(reader, report=lambda at, last: None) == [NEW]


def test_payloads_of_known_tables_are_not_decoded(tmp_path: Path, monkeypatch) -> None:
    """A long log is passed over by its headers: 1 of 500 transactions is read."""
    write(tmp_path / "log", *[("shop.item", (insert(OLD),))] * 500)
    decoded: list[bytes] = []
    real = payload.decode

    def counting(raw: bytes) -> Payload:
        decoded.append(raw)
        return real(raw)

    monkeypatch.setattr("tranlog.log.reading.cursor.decode", counting)
    with LogReader.open(tmp_path / "log") as reader:
        assert tables_in_log(reader, report=lambda at, last: None) == [OLD]
    assert len(decoded) <= 2, "the no-op of the writer's start, and the first transaction of the table"


def test_statements_without_asking_the_target() -> None:
    for kind in ("sqlite", "postgres"):
        text = "\n".join(create_statements(kind, NEW))
        assert "CREATE TABLE" in text and '"size"' in text


def test_a_sequence_is_made_where_there_are_any() -> None:
    sequence = msgspec.structs.replace(OLD, table="numbers", sequence=True, primary_key=())
    for kind in ("sqlite", "postgres", "null"):
        assert tables_behind((), [NEW, sequence], kind) == [NEW]
    assert tables_behind((), [NEW, sequence], "mariadb") == [NEW, sequence]
    assert create_statements("mariadb", sequence)[1:] == ["CREATE SEQUENCE IF NOT EXISTS `shop`.`numbers`"]
