"""What is said of shards by key before they cost or stop anything; docs/operations.md, "Parallel queues"."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fix_operated import operation_of, running, without_java
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, items
from tranlog.change import Change, Op, RowChange, TableMap
from tranlog.clock import SystemClock
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.key_shards import key_notes
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.states import State
from tranlog.service.commands.status import service_status, status_lines
from tranlog.service.config.config import load
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


@pytest.mark.long
def test_both_are_said_at_the_start_and_by_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start said it to whoever asked for --verbose, and to others when the run had ended."""
    without_java(monkeypatch)
    monkeypatch.chdir(tmp_path)
    said = notes(tmp_path, PLAN, [[(2 * key, 1), (2 * key + 1, key % 2)] for key in range(60)])
    assert [line.split(",")[0] for line in said] == [
        "shards by key: north.items is divided by n",
        "shards by key: 30 of the last 60 transactions span keys",
    ]
    (tmp_path / "tranlog.toml").write_text(
        '[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "target.db"\n[pipeline]\nname = "p"\nchannels = 3\n'
        'master = "local[16]"\n[shards]\nby = "key"\n[shards.keys]\n"north.items" = "n"\n'
    )
    config = load("tranlog.toml", environ={})
    target = SqliteTarget(tmp_path / "target.db", [NORTH])
    given = config.apply_options()
    with running(operation_of(given)) as run:
        run.come_to(State.ONLINE, applied=60)
        status = service_status(config, clock=SystemClock(), watch_s=0.0)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in warned if line.startswith("shards by key")] == [f"{line} pipeline=p" for line in said]
    assert not status.problems and status.pipeline is not None and list(status.pipeline.notes) == said
    assert {f"          {line}" for line in said} <= set(status_lines(status))
    assert sum(target.audit().values()) == 120


def test_nothing_is_said_where_nothing_is_to_be_feared(tmp_path: Path) -> None:
    table = msgspec.structs.replace(NORTH, primary_key=(0, 1))
    assert notes(tmp_path, PLAN, [[(key, key)] for key in range(60)], table) == []
    assert notes(tmp_path, ShardPlan(channels=3), [[(1, 1)]]) == []
