"""Tables that cannot take rows once are refused at the start, all in one message; docs/operations.md, "Start"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fix_pipeline import BY_SCHEMA, Workload, items
from tranlog.change import Change, Op, RowChange, Statement
from tranlog.errors import TargetTableError
from tranlog.log.writing.log import Log
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.filters.filters import Exclude, Rename
from tranlog.pipeline.options import ApplyOptions
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions
from tranlog.testing.servers import MariaDbServer

pytestmark = pytest.mark.integration


def rows(*names: str, schema: str) -> list[Change]:
    return [RowChange(items(schema, name), Op.INSERT, None, (1, 1, "")) for name in names]


def written(folder: Path, transactions: Sequence[list[Change]]) -> str:
    workload, packer = Workload(seed=1), TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(folder), source_id="test") as log:
        for changes in transactions:
            workload.append(log, packer, changes)
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
