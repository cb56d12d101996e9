"""Parallelization "memory": a window is read once and split, and each share is applied as from a log.

Spark only carries the items; here lists do.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from fix_effort import Effort, few_of
from fix_pipeline import (
    SqliteTarget,
    Workload,
    check_equal,
    counters,
    positions,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from tranlog.errors import ConfigError, ReplacedError, TranlogError
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.rules.channels import AssignmentRule, ShardBy, ShardPlan
from tranlog.pipeline.rules.progress import restart_seqno
from tranlog.pipeline.spark.window import HEADER_BYTES, Item, Window, apply_share, split_windows
from tranlog.target.options import open_target

Shares = dict[int, list[tuple[int, Item | TranlogError]]]


def window_of(target: SqliteTarget, log_dir: Path, plan: ShardPlan, token: int, last: int, size: int) -> Window | None:
    """The next window, as the driver makes it."""
    opened = open_target(target.options)
    restart = restart_seqno(opened.positions.read_channels("p"))
    opened.close()
    if restart >= last:
        return None
    tasks = tasks_for(target.options, log_dir, plan, token, until=last, bounds=GroupBounds(transactions=4))
    return Window(tasks=tuple(tasks), log_first=Seqno(0), first=Seqno(restart + 1), upto=Seqno(last), bytes=size)


def shares_of(window: Window) -> Shares:
    shares: Shares = defaultdict(list)
    for channel, item in split_windows([window]):
        shares[channel].append((channel, item))
    return shares


def apply_all(window: Window, channels: list[int]) -> list[TaskResult]:
    """Apply the shares of these channels at once; of an early end of the others nobody here knows."""
    shares, results = shares_of(window), []
    threads = [
        threading.Thread(target=lambda at=channel: results.append(apply_share(window, at, shares[at])))
        for channel in channels
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    few_of(
        [
            ShardPlan(channels=3),
            ShardPlan(channels=2, by=ShardBy.KEY, keys=(("north.items", "id"),)),
            ShardPlan(channels=1),
            ShardPlan(channels=3, rule=AssignmentRule.HASH, serial=frozenset({"north"})),
            ShardPlan(channels=3, by=ShardBy.TABLE),
        ],
        2,
    ),
    ids=["recorded", "key", "one", "hash", "table"],
)
@pytest.mark.parametrize("size", few_of([5_000, 1 << 20]))
def test_windows_apply_what_the_log_holds(tmp_path: Path, plan: ShardPlan, size: int, effort: Effort) -> None:
    workload = Workload(seed=size + plan.channels, large=0.02)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, effort(120, 250, 250), segment_bytes=20_000)
    token = take(target.options, plan)
    windows = 0
    while (window := window_of(target, tmp_path / "log", plan, token, last, size)) is not None:
        windows += 1
        results = apply_all(window, list(range(plan.channels)))
        assert {(one.end, one.error) for one in results} == {(TaskEnd.LIMIT, None)}
        assert len(set(positions(target.options).values())) == 1, "all end a window at one seqno"
    assert windows > 10 if size < 1 << 20 else windows == 1
    check_equal(target, workload)
    done = counters(target.options)
    assert (done.transactions, done.changes) == (last + 1, workload.changes)
    assert done.skipped == (last + 1) * (plan.channels - 1)


@pytest.mark.long
def test_a_share_again_and_from_any_position(tmp_path: Path) -> None:
    """A task that Spark runs again, and channels that a kill left apart, take of a window what they lack."""
    plan = ShardPlan(channels=3, mapping=(("east", 1), ("north", 2)))
    workload = Workload(seed=5, shards=("north", "east"), serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 200)
    token, choose = take(target.options, plan), random.Random(5)
    rounds = 0
    while (window := window_of(target, tmp_path / "log", plan, token, last, 20_000)) is not None:
        rounds += 1
        some = [channel for channel in range(3) if choose.random() < 0.6]
        for result in apply_all(window, some) + apply_all(window, some[:1]):
            assert (result.end, result.error) == (TaskEnd.LIMIT, None)
    assert rounds > 10
    check_equal(target, workload)


def test_a_window_ends_at_the_same_place_when_it_is_split_again(tmp_path: Path) -> None:
    """Else one channel, whose part was made again, could wait for another that has ended; also while the log grows."""
    plan = ShardPlan(channels=2)
    workload = Workload(seed=6)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 100)
    window = window_of(target, tmp_path / "log", plan, take(target.options, plan), last, 10_000)
    assert window is not None
    one = shares_of(window)
    write_log(tmp_path / "log", workload, 50)
    assert shares_of(window) == one
    ends = {share[-1][1][0].seqno for share in one.values()}  # type: ignore[index]
    assert len(ends) == 1 and ends < {*range(last)}


def test_a_window_holds_no_more_than_it_may(tmp_path: Path) -> None:
    """Its payloads and headers stay within `bytes`; a large transaction is read by its channel from the log."""
    plan = ShardPlan(channels=2)
    workload = Workload(seed=7, large=0.1)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 200)
    window = window_of(target, tmp_path / "log", plan, take(target.options, plan), last, 30_000)
    assert window is not None
    items = [item for share in shares_of(window).values() for _, item in share]
    payloads = [payload for _, payload in items if payload is not None]  # type: ignore[misc]
    most = max(map(len, payloads)) + HEADER_BYTES
    assert most < 10_000
    assert 15_000 < sum(len(payload) + HEADER_BYTES for payload in payloads) <= 30_000 + most
    with LogReader.open(tmp_path / "log") as reader:
        large = [one for one in iter(reader.cursor().next, None) if one.fragments > 1]
    carried = {header.seqno: payload for header, payload in items}  # type: ignore[misc]
    assert any(one.header.seqno in carried for one in large)
    assert all(carried.get(one.header.seqno) is None for one in large)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 3_000])
def test_a_small_window_goes_on(tmp_path: Path, size: int) -> None:
    """One transaction at least, however small the window is."""
    plan = ShardPlan(channels=2)
    workload = Workload(seed=8, serial=0.5)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 15)
    token = take(target.options, plan)
    while (window := window_of(target, tmp_path / "log", plan, token, last, size)) is not None:
        assert {one.end for one in apply_all(window, [0, 1])} == {TaskEnd.LIMIT}
    check_equal(target, workload)


@pytest.mark.parametrize("how", ["disk", "memory"])
def test_a_stored_channel_that_there_is_not_stops_all(tmp_path: Path, how: str) -> None:
    """Somebody wrote into tranlog_shard: nobody has that shard's transactions, and nobody may pass over them."""
    plan = ShardPlan(channels=2)
    workload = Workload(seed=9, serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 30)
    token = take(target.options, plan)
    with closing(sqlite3.connect(tmp_path / "target.db")) as session, session:
        session.execute("INSERT INTO tranlog_shard (pipeline, shard, channel) VALUES ('p', 'north', 7)")
    window = window_of(target, tmp_path / "log", plan, token, last, 1 << 20)
    assert window is not None
    if how == "disk":
        results = run_threads(window.tasks)
    else:
        results = apply_all(window, [0])
        assert isinstance(results[0].error, ConfigError), "what stands in front of it is applied first"
    wrong = [one.error for one in results if isinstance(one.error, ConfigError)]
    assert wrong, results
    assert "channel of shard 'north' = 7" in str(wrong[0]) and "put back what it was" in str(wrong[0])


def test_a_window_of_a_replaced_driver_is_nobodys(tmp_path: Path) -> None:
    """A plan of more channels has come meanwhile, and its assignment: that is not the window's fault."""
    plan = ShardPlan(channels=1 + 1)
    workload = Workload(seed=10, serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 30)
    window = window_of(target, tmp_path / "log", plan, take(target.options, plan), last, 1 << 20)
    assert window is not None
    take(target.options, ShardPlan(channels=8))
    with closing(sqlite3.connect(tmp_path / "target.db")) as session, session:
        session.executemany(
            "INSERT INTO tranlog_shard (pipeline, shard, channel) VALUES ('p', ?, 7)",
            [(one,) for one in workload.shards],
        )
    (result,) = apply_all(window, [0])
    assert result.end is TaskEnd.REPLACED and isinstance(result.error, ReplacedError)
