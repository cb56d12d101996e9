"""Status as in the article, and the same numbers as OpenMetrics."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from fix_metrics import Samples, samples_of
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, items, run_threads, take, tasks_for, write_log
from tranlog.change import Op, RowChange
from tranlog.clock import SystemClock
from tranlog.ids import Seqno
from tranlog.log.files.holds import Hold
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.filters.filters import Delay, MaskBy, MaskColumns
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import Parallelization, PlanOptions, ShardBy, ShardPlan
from tranlog.pipeline.rules.states import OperationState, PendingError, State, Wait
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import ChannelState, LogState, PipelineState, Status
from tranlog.pipeline.status.view import (
    VIEW_NAMES,
    PipelineStatus,
    duration_text,
    json_form,
    pipeline_status,
    print_form,
    rows_of,
    view,
)
from tranlog.service.process.metrics import pipeline_families
from tranlog.source.packer import TransactionPacker

# The seed's own output of `trepctl -host logos2 status -name stores`, as it stands there.
ARTICLE = """
NAME                VALUE
----                -----
doChecksum        : false
logDir            : {opt}/rhodges4/thl-logs/percona
logFileRetention  : 7d
logFileSize       : 100000000
maximumStoredSeqNo: 0
minimumStoredSeqNo: 0
name              : thl
storeClass        : com.continuent.tungsten.replicator.thl.THL
NAME                VALUE
----                -----
criticalPartition : -1
discardCount      : 0
eventCount        : 1
headSeqno         : 0
maxSize           : 10
name              : parallel-queue
queues            : 10
serializationCount: 0
serialized        : false
stopRequested     : false
store.0           : THLParallelReadTask task_id=0 thread_name=store-thl-0 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.1           : THLParallelReadTask task_id=1 thread_name=store-thl-1 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.2           : THLParallelReadTask task_id=2 thread_name=store-thl-2 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.3           : THLParallelReadTask task_id=3 thread_name=store-thl-3 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.4           : THLParallelReadTask task_id=4 thread_name=store-thl-4 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.5           : THLParallelReadTask task_id=5 thread_name=store-thl-5 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.6           : THLParallelReadTask task_id=6 thread_name=store-thl-6 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.7           : THLParallelReadTask task_id=7 thread_name=store-thl-7 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.8           : THLParallelReadTask task_id=8 thread_name=store-thl-8 hi_seqno=0 lo_seqno=0 read=1 discarded=1 events=0
store.9           : THLParallelReadTask task_id=9 thread_name=store-thl-9 hi_seqno=0 lo_seqno=0 read=1 discarded=0 events=0
storeClass        : com.continuent.tungsten.replicator.thl.THLParallelQueue
syncEnabled       : true
syncInterval      : 2000
""".replace("{opt}", f"{os.sep}opt")  # noqa: E501

# What is another value here, and why. Everything else must be the article's, letter by letter.
NOOP = "a log here begins with its writer's no-op, so the article's one transaction is the second"
BY_DESIGN = {
    "thl.logDir": ("{log}", "another machine"),
    "thl.doChecksum": ("true", "records carry checksums unless one asks for none"),
    "thl.maximumStoredSeqNo": ("1", NOOP),
    "thl.storeClass": ("tranlog.log.writing.log.Log", "our class"),
    "parallel-queue.eventCount": ("2", NOOP),
    "parallel-queue.headSeqno": ("1", NOOP),
    "parallel-queue.serializationCount": ("1", "the no-op belongs to no shard and is a serial section"),
    "parallel-queue.storeClass": ("tranlog.pipeline.applying.channel.Channel", "our class"),
}
# What later releases of the article's replicator print as well (conformance/tungsten.md A2, A4), in the same set-up.
LATER = {
    "thl.activeSeqno": "-1",
    "thl.flushIntervalMillis": "0",
    "thl.fsyncOnFlush": "true",
    "thl.logFileRetainMillis": "604800000",
    "parallel-queue.estimatedOfflineInterval": "0.000",
    "parallel-queue.intervalGuard": "IntervalGuard channels=10 low_channel=0 low_seqno=1 low_time=1700000000001 "
    "hi_channel=9 hi_seqno=1 hi_time=1700000000001",
    "parallel-queue.maxOfflineInterval": "none",
}
TASK = re.compile(r"(\w+) task_id=(\d+) thread_name=(\S+) hi_seqno=(\d+) lo_seqno=(\d+) read=(\d+) (.*)events=(\d+)")


def tables(lines: list[str]) -> dict[str, str]:
    """Read the printed form: `store name.field` and its value."""
    found: dict[str, str] = {}
    table: dict[str, str] = {}
    for line in [*lines, "NAME"]:
        if line.startswith("NAME"):
            found |= {f"{table.get('name')}.{key}": value for key, value in table.items()}
            table = {}
        elif not line.startswith("----") and ": " in line:
            key, _, value = line.partition(": ")
            table[key.rstrip()] = value
    return found


@pytest.fixture
def article(tmp_path: Path) -> ApplyOptions:
    """The article's set-up: ten channels on disk, one transaction, which belongs to the last of them."""
    table = items("orders")
    target = SqliteTarget(tmp_path / "target.db", [table])
    workload = Workload(seed=0)
    with Log.open(str(tmp_path / "log"), source_id="logos1") as log:
        packer = TransactionPacker(source_id="logos1", rule=BY_SCHEMA)
        workload.append(log, packer, [RowChange(table, Op.INSERT, None, (1, 0, "x"))])
        log.commit()
        last = log.last_seqno
    plan = ShardPlan(channels=10, mapping=(("orders", 9),))
    bounds = GroupBounds(transactions=10)
    token = take(target.options, plan, pipeline="percona")
    run_threads(tasks_for(target.options, tmp_path / "log", plan, token, until=last, pipeline="percona", bounds=bounds))
    return ApplyOptions(
        pipeline="percona",
        log_dir=str(tmp_path / "log"),
        target=target.options,
        channels=10,
        plan=PlanOptions(channels={"orders": 9}),
        group=bounds,
        idle_every=2000,
    )


def found(options: ApplyOptions, process: OperationState | None = None, host: str = "") -> Status:
    kept = LogOptions(retention_s=7 * 86_400)
    return gather(options.log_dir, options, clock=SystemClock(), log_options=kept, process=process, host=host)


def facts(options: ApplyOptions) -> tuple[LogState, PipelineState]:
    status = found(options)
    assert status.log is not None and status.pipeline is not None
    return status.log, status.pipeline


def status_of(options: ApplyOptions, process: OperationState | None = None) -> PipelineStatus:
    return pipeline_status(found(options, process))


def test_the_articles_status_field_by_field(article: ApplyOptions) -> None:
    lines = list(print_form("stores", view("stores", status_of(article))))
    assert lines[0] == "Processing status command (stores)..." and lines[-1] == "Finished status command (stores)..."
    theirs, ours = tables(ARTICLE.strip().splitlines()), tables(lines[1:-1])
    assert ours.keys() == theirs.keys() | LATER.keys()
    assert {key: ours[key] for key in LATER} == LATER
    differing = set()
    for key, value in theirs.items():
        if "store." in key:
            continue
        if ours[key] != value:
            assert key in BY_DESIGN, f"{key}: {ours[key]!r}, and the article has {value!r}"
            differing.add(key)
            assert ours[key] == BY_DESIGN[key][0].format(log=article.log_dir)
    assert differing == BY_DESIGN.keys(), "what is the same now needs no reason"
    # By design: our names of class and thread, one transaction more (the no-op, which is channel 0's), and accepted.
    for channel in range(10):
        mine, them = (
            TASK.fullmatch(ours[f"parallel-queue.store.{channel}"]),
            TASK.fullmatch(theirs[f"parallel-queue.store.{channel}"]),
        )
        assert mine is not None and them is not None
        assert (mine[1], mine[3]) == ("Channel", f"channel-{channel}")
        assert (mine[2], mine[5], mine[8]) == (them[2], them[5], them[8])
        assert (int(mine[4]), int(mine[6])) == (int(them[4]) + 1, int(them[6]) + 1)
        accepted = int(channel in (0, 9))
        assert mine[7] == f"accepted={accepted} discarded={2 - accepted} "
        assert int(them[7].removeprefix("discarded=")) == 1 - (channel == 9)


def test_the_form_of_the_print_is_the_articles(article: ApplyOptions) -> None:
    """Header, rule, the width of the names and their order: letter by letter, without the values.

    The longest name gives the width of all tables; of those in the article it is minimumStoredSeqNo.
    """
    lines = list(print_form("stores", view("stores", status_of(article))))[1:-1]
    later = {key.partition(".")[2] for key in LATER}
    wide, narrow = len("estimatedOfflineInterval"), len("minimumStoredSeqNo")

    def shape(printed: list[str]) -> list[str]:
        return [re.sub(r": .*", ": ", line) for line in printed]

    def narrowed(line: str) -> str:
        assert line.startswith(("NAME", "----")) or line[wide : wide + 2] == ": ", line
        return line[:narrow] + line[wide:]

    kept = [narrowed(line) for line in lines if line[:wide].rstrip() not in later]
    assert shape(kept) == shape(ARTICLE.strip().splitlines())


def test_what_is_not_printed_in_the_article_is_of_the_log_and_the_channels(article: ApplyOptions) -> None:
    """conformance/tungsten.md A2 and A4: each field follows from what it is about."""
    from dataclasses import replace

    whole = found(article)
    log, pipeline = facts(article)
    first, *rest = pipeline.channels

    def moved(ms: int) -> tuple[ChannelState, ...]:
        return (replace(first, row=replace(first.row, applied_seqno=Seqno(0), tstamp=first.row.tstamp + ms)), *rest)

    apart = replace(
        pipeline,
        channels=moved(-2_500),
        options=replace(article, max_offline_interval_s=5.0, parallelization=Parallelization.MEMORY),
    )
    held = replace(
        log,
        holds=(
            Hold(name="percona", restart_seqno=Seqno(1), written_at=0),
            Hold(name="damaged", restart_seqno=None, written_at=0),
        ),
        options=LogOptions(flush_interval_s=0.5, sync_on_flush=False),
    )
    status = pipeline_status(replace(whole, log=held, pipeline=apart))
    assert status.log is not None
    assert (status.log.activeSeqno, status.log.logFileRetainMillis, status.log.logFileRetention) == (0, 0, "keep all")
    assert (status.log.flushIntervalMillis, status.log.fsyncOnFlush) == (500, False)
    queue = status.queue
    assert (queue.estimatedOfflineInterval, queue.maxOfflineInterval, queue.headSeqno) == (2.5, 5.0, 1)
    guard = queue.intervalGuard
    assert (guard.low_channel, guard.low_seqno, guard.hi_channel, guard.hi_seqno) == (0, 0, 9, 1)
    assert queue.storeClass == "tranlog.pipeline.spark.window.Window"
    back = pipeline_status(replace(whole, pipeline=replace(apart, channels=moved(9_000))))
    assert back.queue.estimatedOfflineInterval == 0.0, "the ancestor's never blocks either"
    nothing = pipeline_status(replace(whole, pipeline=replace(pipeline, channels=())))
    assert str(nothing.queue.intervalGuard) == "IntervalGuard channels=0"


def test_filters_stand_in_their_stage_by_number(article: ApplyOptions) -> None:
    """conformance/tungsten.md A9, stages: filter.N, name and class; no secret of it."""
    from dataclasses import replace

    mask = MaskColumns(table="orders.*", columns=("note",), by=MaskBy.HASH, salt="a secret")
    (stage,) = view("stages", status_of(replace(article, filters=(mask, Delay(delay_s=60)))))
    rows = rows_of(stage)
    assert {name: value for name, value in rows.items() if name.startswith("filter.")} == {
        "filter.0.class": "tranlog.pipeline.filters.filters.MaskColumns",
        "filter.0.name": "mask note of orders.* by hash",
        "filter.1.class": "tranlog.pipeline.filters.filters.Delay",
        "filter.1.name": "delay 60 s",
    }
    assert "secret" not in "".join(rows.values())


def test_the_whole_in_one_table(article: ApplyOptions) -> None:
    """conformance/tungsten.md A9, status: with the running process's word, and without."""
    from dataclasses import replace

    status = replace(
        found(article, state_of(waiting_for=1), host="here"),
        service="shop",
        source="sqlite shop.db",
        source_event_id="event 7",
        now_ms=NOW,
    )
    (one,) = view("pipeline", pipeline_status(status))
    assert (one.name, one.serviceName, one.state, one.host) == ("percona", "shop", "ONLINE", "here")
    assert (one.appliedLastSeqno, one.appliedLastEventId, one.latestEpochNumber) == (1, "event 1", 1)
    assert (one.minimumStoredSeqNo, one.maximumStoredSeqNo, one.channels) == (0, 1, 10)
    assert one.relativeLatency == (NOW - 1_700_000_000_001) / 1000
    assert one.appliedLatency == {one.shardId: one.appliedLatency for one in status_of(article).shards}["orders"]
    assert (one.timeInStateSeconds, one.uptimeSeconds) == (4.0, 5.0)
    assert (one.offlineRequests, one.pendingError) == ("until seqno 7", "NONE")
    assert (one.pipelineSource, one.currentEventId, one.sourceId) == ("sqlite shop.db", "event 7", "logos1")
    failed = replace(
        state_of(waiting_for=1),
        state=State.OFFLINE_ERROR,
        pending=PendingError(type="ConflictError", message="one\nor two", seqno=1, event_id="event 1"),
    )
    (one,) = view("pipeline", pipeline_status(replace(status, process=failed)))
    assert (one.pendingErrorCode, one.pendingErrorSeqno, one.pendingErrorEventId) == ("ConflictError", 1, "event 1")
    assert rows_of(one)["pendingError"] == "one\\nor two", "one line each"
    alone = found(article)
    assert alone.pipeline is not None
    (one,) = view("pipeline", pipeline_status(replace(alone, log=None, pipeline=replace(alone.pipeline, channels=()))))
    assert (one.state, one.appliedLastSeqno, one.appliedLastEventId, one.maximumStoredSeqNo) == ("NONE", -1, "NONE", -1)
    assert (one.uptimeSeconds, one.timeInStateSeconds, one.latestEpochNumber, one.appliedLatency) == (-1, -1, -1, -1)
    assert one.host == "test", "its driver's, by its row"


FIELDS = {  # conformance/tungsten.md A9; `applier.name` and its kin as there
    "tasks": "stage taskId cancelled eventCount averageBlockSize lastCommittedBlockSize commits "
    "lastCommittedBlockTime appliedLatency extractTime filterTime applyTime otherTime state appliedLastSeqno "
    "appliedLastEventId currentLastSeqno currentLastEventId",
    "shards": "shardId stage eventCount appliedLatency appliedLastSeqno appliedLastEventId",
    "stages": "name taskCount blockCommitRowCount blockCommitInterval blockCommitPolicy applier.name applier.class "
    "extractor.name extractor.class committedMinSeqno processedMinSeqno",
    "channels": "shard_id channel",
    "watches": "stage committed action predicate cancelled done matched",
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_view_has_the_ancestors_fields(article: ApplyOptions, name: Any) -> None:
    shown = view(name, status_of(article, state_of(waiting_for=1)))
    assert shown
    assert len(json_form(shown)) == len(shown)
    for one in shown:
        rows = rows_of(one)
        assert set(FIELDS[name].split()) <= rows.keys()
        assert list(rows) == sorted(rows)


NOW = 1_700_000_100_000


def state_of(*, waiting_for: int) -> OperationState:
    return OperationState(
        pipeline="percona",
        state=State.ONLINE,
        began_ms=NOW - 5_000,
        since_ms=NOW - 4_000,
        applied_seqno=1,
        committed_seqno=1,
        limit="seqno 7",
        left_out="",
        pending=None,
        waits=(Wait(number=0, applied=waiting_for, state=None, since_ms=0),),
    )


def test_what_each_view_says(article: ApplyOptions) -> None:
    status = status_of(article, state_of(waiting_for=1))
    shards = {one.shardId: one for one in view("shards", status)}
    assert {name: (one.eventCount, one.channel, one.appliedLastSeqno) for name, one in shards.items()} == {
        "#UNKNOWN": (1, 0, 0),
        "orders": (1, 9, 1),
    }
    assert shards["orders"].appliedLatency > 0 and shards["orders"].appliedLastEventId == "event 1"
    channels = [(one.shard_id, one.channel, one.serial) for one in view("channels", status)]
    assert channels == [("#UNKNOWN", 0, True), ("orders", 9, False)]
    tasks = view("tasks", status)
    assert [one.eventCount for one in tasks] == [1, *[0] * 8, 1]
    assert tasks[9].applyTime >= 0 and tasks[9].commits == 1 == tasks[9].lastCommittedBlockSize
    (stage,) = view("stages", status)
    assert (stage.taskCount, stage.committedMinSeqno) == (10, 1)
    waits, limit = view("watches", status)
    assert waits.done and not limit.done
    assert waits.matched == "[" + ",".join(f"[{n}:true]" for n in range(10)) + "]"


@pytest.mark.parametrize(
    ("by", "shards", "channels"),
    [
        (ShardBy.RECORDED, {"#UNKNOWN": 1, "orders": 2, "parts": 1}, {"#UNKNOWN", "orders", "parts"}),
        (ShardBy.SCHEMA, {"#UNKNOWN": 1, "orders": 2, "parts": 1}, {"#UNKNOWN", "orders", "parts"}),
        (
            ShardBy.TABLE,
            {"#UNKNOWN": 1, "orders.items": 1, "orders.lines": 1, "parts.items": 1},
            {"#UNKNOWN", "orders.items", "orders.lines", "parts.items"},
        ),
        (
            ShardBy.KEY,
            {"#UNKNOWN": 1, "orders": 1, "orders.lines": 1, "parts.items": 1},
            {"orders.lines", "parts.items"},
        ),
    ],
)
def test_shards_are_the_plans(tmp_path: Path, by: ShardBy, shards: dict[str, int], channels: set[str]) -> None:
    """By key the transactions of a table with one count under the shard that capture recorded: keys may be many."""
    tables = [items("orders"), items("orders", "lines"), items("parts")]
    target = SqliteTarget(tmp_path / "target.db", tables)
    workload = Workload(seed=0)
    with Log.open(str(tmp_path / "log"), source_id="logos1") as log:
        packer = TransactionPacker(source_id="logos1", rule=BY_SCHEMA)
        for table in tables:
            workload.append(log, packer, [RowChange(table, Op.INSERT, None, (1, 0, "x"))])
        log.commit()
        last = log.last_seqno
    keys = (("orders.items", "id"),) if by is ShardBy.KEY else ()
    plan = ShardPlan(channels=3, by=by, keys=keys)
    token = take(target.options, plan, pipeline="percona")
    run_threads(tasks_for(target.options, tmp_path / "log", plan, token, until=last, pipeline="percona"))
    options = ApplyOptions(pipeline="percona", log_dir=str(tmp_path / "log"), target=target.options)
    status = status_of(options)
    assert {one.shardId: one.eventCount for one in view("shards", status)} == shards
    assert {one.shard_id for one in view("channels", status)} == channels


def test_by_write_sets_a_status_tells_who_waited_and_what_ran_alone(tmp_path: Path) -> None:
    workload = Workload(seed=5, shards=("north",), serial=0.0, write_sets=True)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 40)
    plan = ShardPlan(channels=2, by=ShardBy.WRITES)
    token = take(target.options, plan, pipeline="percona")
    run_threads(tasks_for(target.options, tmp_path / "log", plan, token, until=last, pipeline="percona"))
    status = status_of(ApplyOptions(pipeline="percona", log_dir=str(tmp_path / "log"), target=target.options))
    assert [(one.channel, one.serialCount, one.missedDependencies) for one in status.writes] == [
        (0, last + 1, 0),
        (1, 0, 0),
    ]
    trigger = "north.items: trigger north.items DELETE, north.items INSERT, north.items UPDATE"
    assert {one.why: one.eventCount for one in status.serial} == {"there is no plan yet": 1, trigger: last}
    assert view("shards", status) == [*status.shards, *status.writes, *status.serial]
    assert view("channels", status) == []


def test_a_pipeline_that_never_ran_has_views_too(tmp_path: Path, article: ApplyOptions) -> None:
    from dataclasses import replace

    status = status_of(replace(article, pipeline="another"))
    for name in VIEW_NAMES:
        assert list(print_form(name, view(name, status)))
    assert view("channels", status) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "keep all"), (0, "keep all"), (604_800, "7d"), (129_600, "36h"), (90, "90s"), (120, "2m"), (0.5, "0.5s")],
)
def test_a_duration(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


# --- OpenMetrics -----------------------------------------------------------------------------------------


def metrics_of(options: ApplyOptions) -> dict[str, Samples]:
    return samples_of(pipeline_families(found(options, state_of(waiting_for=1))))


def test_metrics_are_the_views_numbers(article: ApplyOptions) -> None:
    log, _ = facts(article)
    metrics = metrics_of(article)
    queue = status_of(article).queue
    by_channel = {dict(labels)["channel"]: value for labels, value in metrics["tranlog_discarded_transactions"].items()}
    assert by_channel == {str(task.task_id): task.discarded for task in queue.stores}
    assert sum(metrics["tranlog_transactions"].values()) == queue.eventCount
    assert sum(metrics["tranlog_serial_sections"].values()) == queue.serializationCount
    assert list(metrics["tranlog_log_last_seqno"].values()) == [log.last_seqno]
    assert sum(metrics["tranlog_state"].values()) == 1
    times = {dict(labels)["on"] for labels in metrics["tranlog_time_seconds"]}
    assert times == {"extract", "filter", "apply", "commit", "wait", "idle", "other"}
    shards = {dict(labels)["shard"]: value for labels, value in metrics["tranlog_shard_transactions"].items()}
    assert shards == {"#UNKNOWN": 1.0, "orders": 1.0}


def test_odd_names_are_escaped(article: ApplyOptions) -> None:
    from dataclasses import replace

    status = found(article, replace(state_of(waiting_for=1), pipeline='a"b\\c\nd'))
    (labels,) = samples_of(pipeline_families(status))["tranlog_channels"]
    assert dict(labels)["pipeline"] == 'a"b\\c\nd'
