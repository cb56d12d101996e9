"""The same pipeline applied to SQLite, PostgreSQL and MariaDB gives equal content."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import BY_SCHEMA, Workload, positions
from fix_target import ID, Model, content, table
from fix_values import ANY_CASES, CASES, fitting
from tranlog.change import Change, Column, TableMap
from tranlog.log.writing.log import Log
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.options import ApplyOptions
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer, PostgresAddress
from tranlog.types import Value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

SHARDS = ("north", "east", "south")
TRANSACTIONS = 150
LONG = 1000
VALUES: dict[str, list[Value]] = {
    name: [
        value for value in fitting("mariadb", name, values) if not isinstance(value, str | bytes) or len(value) < LONG
    ]
    for name, (_, values) in (CASES | ANY_CASES).items()
}
"""Of each kind of column what all three hold as it is; what one of them refuses stands in docs/types.md."""


def tables() -> list[TableMap]:
    """In each shard a table of typed columns with a key and one without, and one of SQLite's columns."""
    typed = [Column(**{**as_fields(CASES[name][0]), "name": f"c {name}"}) for name in CASES if VALUES[name]]
    untyped = [Column(**{**as_fields(ANY_CASES[name][0]), "name": f"any {name}"}) for name in ANY_CASES]
    made = []
    for shard in SHARDS:
        made.append(table("typed", ID, *typed, schema=shard))
        made.append(table("keyless", ID, *typed[::3], schema=shard, key=()))
        made.append(table("any", ID, *untyped, schema=shard))
    return made


def as_fields(column: Column) -> dict[str, Any]:
    return {name: getattr(column, name) for name in column.__struct_fields__}


def draw(rng: random.Random, column: Column) -> Value:
    if column.name == "id":
        return rng.randrange(40)
    return None if rng.random() < 0.2 else rng.choice(VALUES[column.name.partition(" ")[2]])


@pytest.mark.parametrize("net_effect", [False, True], ids=["plain", "net effect"])
def test_the_same_pipeline_gives_equal_content(
    spark: SparkSession,
    tmp_path: Path,
    postgres: PostgresAddress,
    postgres_database: str,
    mariadb_target: MariaDbServer,
    mariadb_target_database: str,
    net_effect: bool,
) -> None:
    """A random log of every type of value, in shards and across them, on three channels, into all three kinds."""
    seed = 901 + net_effect
    print(f"replay: seed {seed}")
    made = tables()
    everything = Model(seed, tables=made, value=draw)
    workload = Workload(seed=seed, shards=())
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=20_000)
        for _ in range(TRANSACTIONS):
            shard = everything.random.choice([*SHARDS, ""])
            everything.tables = [each for each in made if shard in ("", each.schema)]
            changes: list[Change] = everything.transaction(6)
            workload.append(log, packer, changes)
        log.commit()
        last = log.last_seqno
    assert sum(map(len, everything.content.values())) > 60
    targets = [
        TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"), net_effect=net_effect),
        TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database), net_effect=net_effect),
        TargetOptions(kind="mariadb", dsn=mariadb_target.dsn(mariadb_target_database), net_effect=net_effect),
    ]
    for options in targets:
        with contextlib.closing(open_target(options)) as target:
            for each in made:
                target.rows.create_table(each)
            given = ApplyOptions(
                pipeline=options.kind, log_dir=str(tmp_path / "log"), target=options, channels=3, until_seqno="now"
            )
            run_apply(given, spark=spark.sparkContext)
            assert set(positions(options, options.kind).values()) == {last}
            for each in made:
                expected = content(everything.content[each.name])
                found = content(target.rows.read(each))
                assert found == expected, f"seed {seed}, {options.kind}, {each.name}: {found - expected}"
