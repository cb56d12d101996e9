"""Issue 7, item 6: status as in the article, and the same numbers as OpenMetrics."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, items, run_threads, take, tasks_for
from tranlog.change import Op, RowChange
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.log.log import Log, LogOptions
from tranlog.pipeline.apply import ApplyOptions
from tranlog.pipeline.channel import GroupBounds
from tranlog.pipeline.channels import ShardBy, ShardPlan
from tranlog.pipeline.operation import OperationState, Wait
from tranlog.pipeline.states import State
from tranlog.pipeline.view import LogFacts, PipelineFacts
from tranlog.service.exposure import Exposure
from tranlog.service.metrics import MetricsServer, metrics_text
from tranlog.service.views import (
    VIEW_NAMES,
    duration_text,
    json_form,
    log_facts,
    pipeline_facts,
    print_form,
    rows_of,
    view,
    watches_of,
)
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
    "thl.storeClass": ("tranlog.log.log.Log", "our class"),
    "parallel-queue.eventCount": ("2", NOOP),
    "parallel-queue.headSeqno": ("1", NOOP),
    "parallel-queue.serializationCount": ("1", "the no-op belongs to no shard and is a serial section"),
    "parallel-queue.storeClass": ("tranlog.pipeline.channel.Channel", "our class"),
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
        shard_map={"orders": 9},
        group=bounds,
        idle_every=2000,
    )


def facts(options: ApplyOptions) -> tuple[LogFacts, PipelineFacts]:
    log = log_facts(options.log_dir, LogOptions(retention_s=7 * 86_400))
    return log, pipeline_facts(options, clock=SystemClock(), watch_s=0.0)


def test_the_articles_status_field_by_field(article: ApplyOptions) -> None:
    log, pipeline = facts(article)
    lines = list(print_form("stores", view("stores", log=log, pipeline=pipeline)))
    assert lines[0] == "Processing status command (stores)..." and lines[-1] == "Finished status command (stores)..."
    theirs, ours = tables(ARTICLE.strip().splitlines()), tables(lines[1:-1])
    assert ours.keys() == theirs.keys()
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
    """Header, rule, the width of the names and their order: letter by letter, without the values."""
    log, pipeline = facts(article)
    lines = list(print_form("stores", view("stores", log=log, pipeline=pipeline)))[1:-1]

    def shape(printed: list[str]) -> list[str]:
        return [re.sub(r": .*", ": ", line) for line in printed]

    assert shape(lines) == shape(ARTICLE.strip().splitlines())


FIELDS = {  # conformance/tungsten.md A9; `applier.name` and its kin as there
    "tasks": "stage taskId cancelled eventCount averageBlockSize lastCommittedBlockSize currentBlockSize commits "
    "lastCommittedBlockTime appliedLatency extractTime filterTime applyTime otherTime state appliedLastSeqno "
    "appliedLastEventId currentLastSeqno currentLastEventId currentLastFragno",
    "shards": "shardId stage eventCount appliedLatency appliedLastSeqno appliedLastEventId",
    "stages": "name taskCount blockCommitRowCount blockCommitInterval blockCommitPolicy applier.name applier.class "
    "extractor.name extractor.class committedMinSeqno processedMinSeqno",
    "channels": "shard_id channel",
    "watches": "stage committed action predicate cancelled done matched",
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_view_has_the_ancestors_fields(article: ApplyOptions, name: Any) -> None:
    log, pipeline = facts(article)
    shown = view(name, log=log, pipeline=pipeline, watches=watches_of(state_of(waiting_for=1)))
    assert shown
    assert len(json_form(shown)) == len(shown)
    for one in shown:
        rows = rows_of(one)
        assert set(FIELDS[name].split()) <= rows.keys()
        assert list(rows) == sorted(rows)


def state_of(*, waiting_for: int) -> OperationState:
    return OperationState(
        pipeline="percona",
        state=State.ONLINE,
        since_ms=0,
        applied_seqno=1,
        committed_seqno=1,
        limit="seqno 7",
        left_out="",
        pending=None,
        waits=(Wait(number=0, applied=waiting_for, state=None, since_ms=0),),
    )


def test_what_each_view_says(article: ApplyOptions) -> None:
    log, pipeline = facts(article)
    shards = {one.shardId: one for one in view("shards", log=log, pipeline=pipeline)}
    assert {name: (one.eventCount, one.channel, one.appliedLastSeqno) for name, one in shards.items()} == {
        "#UNKNOWN": (1, 0, 0),
        "orders": (1, 9, 1),
    }
    assert shards["orders"].appliedLatency > 0 and shards["orders"].appliedLastEventId == "event 1"
    channels = [(one.shard_id, one.channel, one.serial) for one in view("channels", log=log, pipeline=pipeline)]
    assert channels == [("#UNKNOWN", 0, True), ("orders", 9, False)]
    tasks = view("tasks", log=log, pipeline=pipeline)
    assert [one.eventCount for one in tasks] == [1, *[0] * 8, 1]
    assert tasks[9].applyTime >= 0 and tasks[9].commits == 1 == tasks[9].lastCommittedBlockSize
    (stage,) = view("stages", log=log, pipeline=pipeline)
    assert (stage.taskCount, stage.committedMinSeqno) == (10, 1)
    waits, limit = view("watches", log=log, pipeline=pipeline, watches=watches_of(state_of(waiting_for=1)))
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
    _, pipeline = facts(options)
    assert {one.shardId: one.eventCount for one in view("shards", log=None, pipeline=pipeline)} == shards
    assert {one.shard_id for one in view("channels", log=None, pipeline=pipeline)} == channels


def test_a_pipeline_that_never_ran_has_views_too(tmp_path: Path, article: ApplyOptions) -> None:
    from dataclasses import replace

    log, pipeline = facts(replace(article, pipeline="another"))
    for name in VIEW_NAMES:
        assert list(print_form(name, view(name, log=log, pipeline=pipeline)))
    assert view("channels", log=log, pipeline=pipeline) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "keep all"), (0, "keep all"), (604_800, "7d"), (129_600, "36h"), (90, "90s"), (120, "2m"), (0.5, "0.5s")],
)
def test_a_duration(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


# --- OpenMetrics -----------------------------------------------------------------------------------------

SAMPLE = re.compile(
    r'([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?\d+(?:\.\d+)?(?:e-?\d+)?)'
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
SUFFIX = {"counter": "_total", "gauge": "", "stateset": ""}


def read_openmetrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read an exposition by the rules of OpenMetrics 1.0, and refuse what breaks one."""
    assert text.endswith("# EOF\n")
    families: dict[str, str] = {}
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    current, stage = "", 0
    for line in text.removesuffix("# EOF\n").splitlines():
        assert line, "no empty lines"
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            order = ("TYPE", "UNIT", "HELP").index(what)
            if what == "TYPE":
                assert name not in families, f"{name} is told twice"
                assert rest in SUFFIX
                families[name], current = rest, name
            else:
                assert name == current and order > stage, "metadata of a family stand together, before its samples"
                assert what != "UNIT" or name.endswith(f"_{rest}")
            stage = order
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        stage = 9
        assert match[1] == current + SUFFIX[families[current]], "samples stand below their family"
        labels = tuple(LABEL.findall(match[2]))
        assert len({key for key, _ in labels}) == len(labels)
        if families[current] == "counter":
            assert float(match[3]) >= 0
        if families[current] == "stateset":
            assert current in dict(labels) and match[3] in ("0", "1")
        family = samples.setdefault(current, {})
        assert labels not in family, "a sample is told twice"
        family[labels] = float(match[3])
    return samples


def test_metrics_are_the_views_numbers(article: ApplyOptions) -> None:
    log, pipeline = facts(article)
    found = read_openmetrics(metrics_text(state_of(waiting_for=1), log=log, pipeline=pipeline))
    queue = view("stores", log=log, pipeline=pipeline)[1]
    by_channel = {dict(labels)["channel"]: value for labels, value in found["tranlog_discarded"].items()}
    assert by_channel == {str(task.task_id): task.discarded for task in queue.stores}
    assert sum(found["tranlog_transactions"].values()) == queue.eventCount
    assert list(found["tranlog_serial_sections"].values()) == [queue.serializationCount]
    assert list(found["tranlog_log_last_seqno"].values()) == [log.last_seqno]
    assert sum(found["tranlog_state"].values()) == 1
    times = {dict(labels)["on"] for labels in found["tranlog_time_seconds"]}
    assert times == {"extract", "filter", "apply", "commit", "wait", "idle", "other"}
    shards = {dict(labels)["shard"]: value for labels, value in found["tranlog_shard_transactions"].items()}
    assert shards == {"#UNKNOWN": 1.0, "orders": 1.0}


def test_odd_names_are_escaped(article: ApplyOptions) -> None:
    from dataclasses import replace

    log, pipeline = facts(article)
    state = replace(state_of(waiting_for=1), pipeline='a"b\\c\nd')
    (labels,) = read_openmetrics(metrics_text(state, log=log, pipeline=pipeline))["tranlog_channels"]
    assert dict(labels)["pipeline"] == 'a\\"b\\\\c\\nd'


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.headers["Content-Type"], exc.read().decode()


def test_metrics_over_http(article: ApplyOptions) -> None:
    log, pipeline = facts(article)
    text = metrics_text(state_of(waiting_for=1), log=log, pipeline=pipeline)
    with MetricsServer.open("127.0.0.1:0", Exposure(), lambda: text) as server:
        code, kind, body = get(server.port)
        assert (code, body) == (200, text)
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert get(server.port, "/other")[0] == 404
    secret = "a secret of enough bytes"
    with MetricsServer.open("127.0.0.1:0", Exposure(secret=secret), lambda: text) as server:
        assert get(server.port)[0] == 401
        assert get(server.port, Authorization=f"Bearer {secret}")[0] == 200
    with pytest.raises(ConfigError):
        MetricsServer.open("0.0.0.0:0", Exposure(), lambda: text)
