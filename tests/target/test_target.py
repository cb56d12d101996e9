"""A target is its positions and its rows, whatever they are kept in: here files, and one rename. ARCHITECTURE.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_folder import Folder, folder_options, open_target
from fix_pipeline import Workload, counters, positions, read_back, run_threads, take, tasks_for, write_log
from fix_target import ITEMS, Bench, claim_again, content, insert, unit_of
from tranlog.errors import ReplacedError, TransientTargetError
from tranlog.pipeline.applying.channel import TaskEnd
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.target.options import TargetOptions


@pytest.fixture
def options(tmp_path: Path) -> TargetOptions:
    return folder_options(tmp_path / "target")


def test_channels_apply_a_log_to_files(tmp_path: Path, options: TargetOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the pipeline asks for SQL: channels meet, assign shards, and are started again with another plan."""
    monkeypatch.setattr("tranlog.target.options.open_target", open_target)
    workload = Workload(seed=5)
    last = write_log(tmp_path / "log", workload, 200)
    target = open_target(options)
    target.positions.ensure_tables()
    for table in workload.tables:
        target.rows.create_table(table)
    for channels, until in ((3, last // 2), (3, last)):
        plan = ShardPlan(channels=channels)
        tasks = tasks_for(options, tmp_path / "log", plan, take(options, plan), until=until)
        assert [(result.end, result.error) for result in run_threads(tasks)] == [(TaskEnd.LIMIT, None)] * channels
        assert positions(options) == dict.fromkeys(range(channels), until)
    assert read_back(options, workload.tables) == workload.rows
    assert counters(options).changes == workload.changes
    target.close()


def test_rows_and_position_are_there_by_one_rename(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a target transaction before it leaves both as they were, and after it both are new."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])

    def fail(before: bool) -> Callable[[object, object], None]:
        def rename(old: object, new: object) -> None:
            monkeypatch.undo()
            if not before:
                os.rename(old, new)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        return rename

    for before, seqno, rows in ((True, 0, 1), (False, 1, 2)):
        monkeypatch.setattr(os, "rename", fail(before))
        with pytest.raises(KeyboardInterrupt):
            bench.apply([insert(ITEMS, (2, "b", 2))])
        assert bench.stored_seqno() == seqno
        assert sum(bench.rows(ITEMS).values()) == rows
    with pytest.raises(ReplacedError):
        bench.apply([insert(ITEMS, (3, "c", 3))])  # it believes in the position before
    claim_again(bench)
    bench.apply([insert(ITEMS, (3, "c", 3))])
    assert bench.rows(ITEMS) == content([(1, "a", 1), (2, "b", 2), (3, "c", 3)])


def test_a_new_connection_has_new_parts(bench: Bench) -> None:
    """What was claimed over the old one is that one's; where it was lost, both parts say so until then."""
    bench.target.rows.create_table(ITEMS)
    (before,) = bench.target.positions.read_channels("shop")
    old = bench.target.connection, bench.target.positions, bench.target.rows
    bench.target.connection.close()
    for lost in (bench.stored_seqno, lambda: bench.apply([insert(ITEMS, (1, "a", 1))])):
        with pytest.raises(TransientTargetError):
            lost()
    bench.target.reconnect()
    assert not {id(part) for part in old} & {
        id(part) for part in (bench.target.connection, bench.target.positions, bench.target.rows)
    }
    claim_again(bench)
    (after,) = bench.target.positions.read_channels("shop")
    assert isinstance(bench.target.connection, Folder)
    assert after.session == bench.target.connection.identity != before.session
    assert bench.target.apply([unit_of(0, [insert(ITEMS, (1, "a", 1))])], bench.advance(1)).changes == 1
