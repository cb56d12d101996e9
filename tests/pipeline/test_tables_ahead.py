"""Tables that cannot take rows once are refused at the start, all in one message; docs/operations.md, "Start"."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fix_pipeline import BY_SCHEMA, Workload, items
from tranlog.change import Change, Op, RowChange, Statement, TableMap
from tranlog.errors import TargetTableError
from tranlog.ids import Seqno
from tranlog.loads import KeyRange, LoadBegin, LoadChunk, LoadEnd, LoadMark, LoadStep
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.tables_ahead import wanting
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.filters.filters import Exclude, Filter, PresentRows, Rename
from tranlog.pipeline.options import ApplyOptions
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.packer import TransactionPacker, pack
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer

pytestmark = pytest.mark.integration


def rows(*names: str, schema: str) -> list[Change]:
    return [RowChange(items(schema, name), Op.INSERT, None, (1, 1, "")) for name in names]


def written(folder: Path, transactions: Sequence[list[Change] | tuple[list[Change], LoadMark]]) -> str:
    """Write a log of these changes; with a mark they are a step of a load."""
    workload, packer = Workload(seed=1), TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(folder), source_id="test") as log:
        for one in transactions:
            if isinstance(one, tuple):
                (fragment,) = pack(one[0], source_id="test", event_id="e", tstamp=1, metadata=one[1].metadata())
                log.append(msgspec.structs.replace(fragment, shard_id=UNKNOWN_SHARD, tables=None))
            else:
                workload.append(log, packer, one)
        log.commit()
    return str(folder)


@pytest.mark.parametrize("engine", ["refuse", "innodb"])
def test_tables_that_a_pipeline_concerns(
    mariadb_target: MariaDbServer, mariadb_target_database: str, tmp_path: Path, engine: str
) -> None:
    """Those that its log names, behind its filters, under their names there; no others, and none behind a statement."""
    here = mariadb_target_database
    for name, of in (("a", "MyISAM"), ("b", "Aria"), ("new", "MEMORY"), ("left", "MyISAM"), ("own", "MyISAM")):
        mariadb_target.execute(f"CREATE TABLE {here}.{name} (id INT) ENGINE = {of}")
    mariadb_target.execute(f"CREATE TABLE {here}.good (id INT) ENGINE = InnoDB")
    mariadb_target.execute(f"CREATE TABLE {here}.later (id INT) ENGINE = MyISAM")
    alter = Statement(schema=here, sql="ALTER TABLE later ENGINE = InnoDB", ddl=True)
    log = written(
        tmp_path / "log",
        [rows("a", "good", schema=here), rows("b", schema=here), rows("old", "left", schema=here)]
        + [[alter], rows("later", schema=here)],
    )
    options = ApplyOptions(
        pipeline="shop",
        log_dir=log,
        target=TargetOptions(kind="mariadb", dsn=mariadb_target.dsn(here), engine=engine),  # type: ignore[arg-type]
        filters=(Exclude(tables=(f"{here}.left",)), Rename(table=f"{here}.old", to="new")),
    )
    with pytest.raises(TargetTableError) as refused:
        run_apply(options)
    names = ("a", "b", "new")
    assert str(refused.value).startswith(
        f"target table {', '.join(f'{here}.{name}' for name in names)}: its engine is Aria or MEMORY or MyISAM, which "
        "has no transactions"
    )
    assert all(f"ALTER TABLE `{here}`.`{name}` ENGINE = InnoDB" in str(refused.value) for name in names)
    only = replace(options, filters=(Exclude(tables=(f"{here}.a", f"{here}.old", f"{here}.left")),))
    with pytest.raises(TargetTableError, match=rf"target table {here}\.b: its engine is Aria, "):
        run_apply(only)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_the_next_tables_are_refused_before_spark_is_started(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As their first rows would be, with the seqno. What is left out, or comes after the end or a statement, is not."""
    if kind == "sqlite":
        target = TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"))
    elif kind == "postgres":
        server, database = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        target = TargetOptions(kind="postgres", dsn=server.dsn(database))
    else:
        server, database = (request.getfixturevalue(f"mariadb_target{one}") for one in ("", "_database"))
        target = TargetOptions(kind="mariadb", dsn=server.dsn(database))
    made = Statement(schema="shop", sql="CREATE TABLE later (id INT)", ddl=True)
    transactions = [rows("good", schema="shop"), rows("good", "bad", schema="shop")]
    transactions += [[made], rows("later", schema="shop")]
    with (
        closing(LogReader.open(written(tmp_path / "log", transactions))) as log,
        closing(open_target(target)) as opened,
    ):
        for name in ("good", "other"):
            opened.rows.create_table(items("shop", name))
        first = log.range().first_seqno

        def look(*filters: Filter, restart: int = first - 1, **more: Any) -> None:
            given = {"pipeline": "p", "until": None, "left_out": (), **more}
            for error in wanting(opened, log, filters, Seqno(restart), **given):
                raise error

        with pytest.raises(TargetTableError, match=r"shop\.bad \(seqno \d+\): there is no such table") as refused:
            look()
        seqno = refused.value.seqno
        assert seqno is not None
        for fine in (
            lambda: look(until=Seqno(seqno - 1)),
            lambda: look(left_out=[(seqno, seqno)]),
            lambda: look(restart=seqno),
            lambda: look(Exclude(tables=("shop.bad",))),
            lambda: look(Rename(table="shop.bad", to="other")),
            lambda: look(PresentRows(tables=("shop.bad",))),
        ):
            fine()
        opened.rows.create_table(items("shop", "bad"))
        look()


def test_the_rows_of_a_load_are_refused_before_spark_is_started(tmp_path: Path) -> None:
    """With what makes its tables; not those of an empty table, of another pipeline, or of a load that began before."""
    good, bad, empty = (items("shop", name) for name in ("good", "bad", "empty"))

    def mark(step: LoadStep) -> LoadMark:
        return LoadMark(load="1", pipeline="p", step=step)

    def chunk(table: TableMap, rows: int) -> LoadMark:
        return mark(LoadChunk(table=(table.schema, table.table), key=("id",), keys=KeyRange(), rows=rows))

    transactions: list[tuple[list[Change], LoadMark]] = [
        ([], mark(LoadBegin(tables=(bad, empty, good), replace=False))),
        ([], chunk(empty, 0)),
        (rows("good", schema="shop"), chunk(good, 1)),
        (rows("bad", schema="shop"), chunk(bad, 1)),
        ([], mark(LoadEnd())),
    ]
    with (
        closing(LogReader.open(written(tmp_path / "log", transactions))) as log,
        closing(open_target(TargetOptions(kind="sqlite", path=str(tmp_path / "target.db")))) as opened,
    ):
        opened.rows.create_table(good)
        first = log.range().first_seqno

        def look(*filters: Filter, restart: int = first - 1, pipeline: str = "p") -> None:
            for error in wanting(opened, log, filters, Seqno(restart), pipeline=pipeline, until=None, left_out=()):
                raise error

        with pytest.raises(TargetTableError, match=r"shop\.bad \(seqno \d+\): there is no such table") as refused:
            look()
        assert "tranlog tables create --from source" in refused.value.remedy
        assert refused.value.seqno is not None
        look(pipeline="another")
        look(restart=refused.value.seqno - 1)
        look(Exclude(tables=("shop.bad",)))
        opened.rows.create_table(bad)
        look()
