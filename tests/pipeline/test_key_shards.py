"""What is said of shards by key before they cost or stop anything; docs/operations.md, "Parallel queues"."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fix_pipeline import BY_SCHEMA, Workload, items
from tranlog.change import Change, Op, RowChange, TableMap
from tranlog.log.log import Log
from tranlog.log.reader import LogReader
from tranlog.pipeline.channels import ShardBy, ShardPlan
from tranlog.pipeline.key_shards import key_notes
from tranlog.source.packer import TransactionPacker

NORTH = items("north")
PLAN = ShardPlan(channels=3, by=ShardBy.KEY, keys=(("north.items", "n"),))


def notes(
    folder: Path, plan: ShardPlan, transactions: list[list[tuple[int, int]]], table: TableMap = NORTH
) -> list[str]:
    """Notes for a log whose transactions insert rows of (id, n)."""
    workload, packer = Workload(seed=1), TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(folder / "log"), source_id="test") as log:
        for rows in transactions:
            changes: list[Change] = [RowChange(table, Op.INSERT, None, (key, n, "")) for key, n in rows]
            workload.append(log, packer, changes)
        log.commit()
    with LogReader.open(str(folder / "log")) as reader:
        return key_notes(plan, reader)


def test_a_key_that_may_leave_its_shard(tmp_path: Path) -> None:
    (said,) = notes(tmp_path, PLAN, [[(1, 5)], [(2, 5)]])
    assert "north.items is divided by n, and its key (id) does not hold that" in said
    assert "apply may stop at a conflict" in said


def test_transactions_that_span_keys(tmp_path: Path) -> None:
    table = msgspec.structs.replace(NORTH, primary_key=(0, 1))
    (said,) = notes(tmp_path, PLAN, [[(key, 1), (key, 2)] if key % 2 else [(key, 1)] for key in range(60)], table)
    assert said.startswith("shards by key: 30 of the last 60 transactions span keys")


def test_nothing_is_said_where_nothing_is_to_be_feared(tmp_path: Path) -> None:
    table = msgspec.structs.replace(NORTH, primary_key=(0, 1))
    assert notes(tmp_path, PLAN, [[(key, key)] for key in range(60)], table) == []
    assert notes(tmp_path, ShardPlan(channels=3), [[(1, 1)]]) == []
