"""On a pipeline that runs: the ancestor's fields, where the time goes, who waits, and the metrics.

The channels are threads, all else is real: log, target, endpoint, commands.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fix_metrics import read_openmetrics, read_text, samples_of
from fix_operated import Operated, operation_of, without_java
from fix_pipeline import BY_SCHEMA, SqliteTarget, items
from fix_server import Idle, at_port, connect
from tranlog import Pipeline, RunningPipeline
from tranlog.change import Change, Op, RowChange
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError, ControlError, PipelineHeldError
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.driving.operation import OnError
from tranlog.pipeline.rules.progress import Counters
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.status.status import Doing
from tranlog.pipeline.status.view import VIEW_NAMES, PipelineStatus, print_form
from tranlog.pipeline.status.view import view as tables_of
from tranlog.service.commands import cli
from tranlog.service.commands.status import service_status, status_json, waits_for
from tranlog.service.config.config import load
from tranlog.service.process.api import GoOffline, GoOnline, get
from tranlog.service.process.operating import RATE_S, OperatingOptions, Operator, operated
from tranlog.service.show.screen import Shown, plain
from tranlog.source.packer import TransactionPacker
from tranlog.testing.clock import ManualClock

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "control.md"
OLD = 1_700_000_000_000
CONFIG = """\
[service]
name = "shop"
[log]
dir = "log"
retention_s = "7d"
[target]
kind = "sqlite"
path = "target.db"
[pipeline]
name = "p"
channels = 3
master = "local[16]"
sync_interval_s = 0.05
start_seqno = 1
max_offline_interval_s = 1e9
[shards.channels]
north = 0
east = 1
south = 2
[[filter]]
kind = "mask"
table = "east.*"
columns = ["note"]
by = "keep-last"
[[filter]]
kind = "delay"
delay_s = 3600
"""
TABLES = {name: items(name) for name in ("north", "east", "south")}
Tell = Callable[..., str]


class Shop:
    """A log, a target, and a pipeline of three channels that runs; what is committed at `OLD` is due, now is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.began_ms = SystemClock().now_ms()
        (folder / "shop.toml").write_text(CONFIG)
        self.config = load(str(folder / "shop.toml"), environ={})
        self.target = SqliteTarget(folder / "target.db", tuple(TABLES.values()))
        self.log = Log.open(str(folder / "log"), source_id="shop")
        self.packer = TransactionPacker(source_id="shop", rule=BY_SCHEMA)
        self.written = 0
        self._opened = ExitStack()
        self._opened.callback(self.log.close)
        given = self.config.apply_options()
        self.operation = operation_of(given, on_error=OnError.OFFLINE)
        self.run = Operated(self.operation, online=False)
        self._opened.callback(self.run.join)
        self._opened.callback(self.operation.end)
        self.run.come_to(State.OFFLINE_NORMAL)
        told = OperatingOptions(service="shop", source="sqlite shop.db")
        self.operator: Operator = self._opened.enter_context(
            operated(self.operation, self.config.log, told, runtime_dir=None)
        )

    def write(self, *schemas: str, tstamp: int = OLD) -> int:
        """Commit one transaction of a row in each of these schemas; return its seqno."""
        self.written += 1
        changes: list[Change] = [
            RowChange(TABLES[one], Op.INSERT, None, (self.written, 0, f"note {self.written}")) for one in schemas
        ]
        self.packer.begin(BY_SCHEMA)
        for change in changes:
            assert self.packer.add(change, event_id=f"event {self.written}", tstamp=tstamp) is None
        self.log.append(self.packer.finish(event_id=f"event {self.written}", tstamp=tstamp))
        self.log.commit()
        return int(self.log.last_seqno)

    def until(self, holds: Callable[[PipelineStatus], bool]) -> PipelineStatus:
        """Look until it holds."""
        deadline = time.monotonic() + 60
        while not holds(status := self.operator.status()):
            assert time.monotonic() < deadline, status
        return status

    def work(self) -> int:
        """Have transactions of every shard applied, serial ones among them, and the channels idle; the last seqno.

        What a channel did is told with its next position, so something comes behind the pause.
        """
        self.operator.online(GoOnline())
        for number in range(30):
            self.write("north")
            self.write("east")
            last = self.write("south", "east") if number % 5 == 4 else self.write("south")
        self.run.come_to(State.ONLINE, applied=last)
        time.sleep(0.2)  # nothing to read: idle
        last = max(self.write(name) for name in TABLES)
        self.run.come_to(State.ONLINE, applied=last)
        return last

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    without_java(monkeypatch)
    monkeypatch.chdir(tmp_path)
    opened = Shop(tmp_path)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Run a command here, and return what it printed."""

    def tell(line: str, *, code: int = 0) -> str:
        found = cli.main(line.split())
        said = capsys.readouterr()
        assert found == code, (line, said)
        return said.err if code >= 2 else said.out

    return tell


def cells(title: str) -> list[list[str]]:
    """Return the rows of the table below a heading of docs/control.md."""
    part = PAGE.read_text().partition(f"{title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- every field of the ancestor is printed, or listed with its reason -----------------------------------

# conformance/tungsten.md A2 and A4 (with the memory store of A5), and the views of A9, as they stand there.
ANCESTOR = {
    "stores": "minimumStoredSeqNo maximumStoredSeqNo activeSeqno doChecksum logDir logFileSize logFileRetainMillis "
    "timeoutMillis fsyncOnFlush flushIntervalMillis logConnectionTimeout readOnly name storeClass "
    "headSeqno maxSize eventCount discardCount queues syncInterval maxOfflineInterval maxDelayInterval "
    "estimatedOfflineInterval serialized serializationCount stopRequested criticalPartition intervalGuard store.0 "
    "storeSize syncEnabled partitionerClass store.queueSize.N",
    "pipeline": "appliedLastSeqno appliedLastEventId minimumStoredSeqNo maximumStoredSeqNo latestEpochNumber "
    "appliedLatency relativeLatency currentEventId offlineRequests pipelineSource channels timezone seqnoType version "
    "extensions serviceType state role host masterConnectUri pendingError pendingErrorCode pendingErrorEventId "
    "pendingErrorSeqno pendingExceptionMessage uptimeSeconds timeInStateSeconds",
    "tasks": "stage taskId cancelled eventCount averageBlockSize lastCommittedBlockSize currentBlockSize commits "
    "lastCommittedBlockTime appliedLatency extractTime filterTime applyTime otherTime state appliedLastSeqno "
    "appliedLastEventId currentLastSeqno currentLastEventId currentLastFragno",
    "shards": "shardId stage eventCount appliedLatency appliedLastSeqno appliedLastEventId",
    "stages": "name taskCount blockCommitRowCount blockCommitInterval blockCommitPolicy applier.name applier.class "
    "extractor.name extractor.class filter.0.name filter.0.class filter.1.name filter.1.class committedMinSeqno "
    "processedMinSeqno",
    "watches": "stage committed action predicate cancelled done matched",
    "channels": "shard_id channel",
}
STORE_N = "task_id thread_name hi_seqno lo_seqno read accepted discarded events"


def printed(text: str) -> dict[str, str]:
    """Return the fields of all tables of a view."""
    found = [line.partition(": ")[::2] for line in text.splitlines() if ": " in line]
    return {name.rstrip(): value for name, value in found}


def test_every_field_of_the_ancestor_is_printed_or_listed(shop: Shop, told: Tell) -> None:
    """Of the real status of a pipeline that runs, with somebody who waits at its endpoint."""
    last = shop.work()
    waiter = threading.Thread(target=told, args=(f"-service shop wait --applied {last + 1}",))
    waiter.start()
    absent = [(names(view)[0], field, why) for view, fields, why in cells(ABSENT) for field in names(fields)]
    assert all(why for _, _, why in absent)
    shop.until(lambda status: bool(status.watches))
    found = {view: printed(view_of(shop, view)) for view in VIEW_NAMES}
    for view, fields in ANCESTOR.items():
        listed = {field for where, field, _ in absent if where == view}
        wanted = set(fields.split())
        assert listed <= wanted, f"{view}: {listed - wanted} are no fields of the ancestor's"
        assert wanted - found[view].keys() == listed, f"{view}: printed or listed, and not both"
    assert {name for where, name, _ in absent if where not in ANCESTOR} == set()
    assert set(re.findall(r"(\w+)=", found["stores"]["store.0"])) == set(STORE_N.split())
    assert found["stages"]["filter.0.name"] == "mask note of east.* by keep-last"
    assert found["stages"]["filter.1.class"] == "tranlog.pipeline.filters.filters.Delay"
    assert found["stores"]["activeSeqno"] == str(last), "what the pipeline itself holds, as of its last report"
    assert found["stores"]["maxOfflineInterval"] == "1000000000.000"
    assert found["pipeline"]["state"] == "ONLINE" and found["pipeline"]["appliedLastSeqno"] == str(last)
    shop.write("north")
    waiter.join(60)
    assert not waiter.is_alive()


ABSENT = "### Fields of the ancestor that are not here"


def view_of(shop: Shop, view: str) -> str:
    """Print a view as `tranlog status -name VIEW` does, from the running process's answer."""
    name = next(one for one in VIEW_NAMES if one == view)
    running = RunningPipeline.find(service="shop")
    shop.until(lambda status: status.log is not None and status.log.activeSeqno == status.pipeline.maximumStoredSeqNo)
    return "\n".join(print_form(view, tables_of(name, running.status())))


def test_the_command_prints_what_the_endpoint_tells(shop: Shop, told: Tell) -> None:
    """`status -name VIEW` reads for itself, `--host` asks the process: the same fields, and where it rests, numbers."""
    shop.work()
    shop.operation.offline()
    shop.run.come_to(State.OFFLINE_NORMAL)
    with at_port(shop.operator) as address:
        for view in VIEW_NAMES:
            here = printed(told(f"-service shop status --no-watch -name {view}"))
            there = printed(told(f"status -name {view} --host {address}"))
            moving = {"relativeLatency", "timeInStateSeconds", "uptimeSeconds"}
            assert here.keys() == there.keys()
            assert {name for name in here if here[name] != there[name]} <= moving, view
        assert "which, by -name" in told(f"status --host {address}", code=2)
    assert "say which" in told("status --host nowhere:1", code=2)
    assert "nobody listens there" in told("status -name tasks --host 127.0.0.1:1", code=4)


# --- where the time goes, latency, rates, who waits ------------------------------------------------------

TIMES = ("extractTime", "filterTime", "applyTime", "commitTime", "waitTime", "idleTime", "otherTime")


def test_latency_and_where_the_time_goes(shop: Shop) -> None:
    """Every time is there, and they are disjoint: together no more than has passed."""
    shop.work()
    status = shop.operator.status()
    passed = time.monotonic() - shop.began
    for task in status.tasks:
        spent = {name: getattr(task, name) for name in TIMES}
        assert sum(spent.values()) <= passed + 0.01, task
        assert all(spent[name] > 0 for name in TIMES if name not in ("filterTime", "waitTime", "otherTime")), spent
    assert status.tasks[1].filterTime > 0, "east is masked"
    assert sum(task.waitTime for task in status.tasks) > 0, "there were serial sections"
    assert sum(task.otherTime for task in status.tasks) > 0
    oldest, newest = (shop.began_ms - OLD) / 1000, (SystemClock().now_ms() - OLD) / 1000
    latencies = [task.appliedLatency for task in status.tasks if task.eventCount]
    latencies += [shard.appliedLatency for shard in status.shards] + [status.pipeline.appliedLatency]
    assert len(latencies) == 3 + 4 + 1 and all(oldest <= one <= newest for one in latencies), latencies
    assert {shard.shardId for shard in status.shards} == {"#UNKNOWN", "north", "east", "south"}
    assert oldest <= status.pipeline.relativeLatency <= newest
    assert status.queue.eventCount == sum(shard.eventCount for shard in status.shards) == 93
    assert 0 <= status.pipeline.timeInStateSeconds <= status.pipeline.uptimeSeconds <= passed + 1


def test_rates_while_it_applies(shop: Shop) -> None:
    shop.work()
    enough = threading.Event()

    def feed() -> None:
        while not enough.is_set():
            for name in TABLES:
                shop.write(name)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        status = shop.until(lambda status: all(task.rate > 0 for task in status.tasks))
    finally:
        enough.set()
        feeder.join()
    assert all(task.changeRate > 0 for task in status.tasks)
    assert {task.state for task in status.tasks} <= {Doing.APPLYING, Doing.SERIAL, Doing.WAITING}


def test_who_waits_for_whom(shop: Shop) -> None:
    """East's transaction is not due; a serial one stands behind it: channel 0 waits for 1, channel 2 for channel 0."""
    shop.work()
    late = shop.write("east", tstamp=SystemClock().now_ms())
    serial = shop.write("north", "south")
    shop.write("south")
    status = shop.until(lambda status: bool(status.tasks[0].waitsFor and status.tasks[2].waitsFor))
    assert status.tasks[0].waitsFor == f"channel 1 to apply seqno {late}"
    assert status.tasks[2].waitsFor == f"channel 0 to apply serial seqno {serial}"
    assert [status.tasks[channel].state for channel in (0, 2)] == [Doing.WAITING, Doing.WAITING]
    waits = samples_of(shop.operator.families())["tranlog_waits_for_seqno"]
    shown = {(dict(at)["channel"], dict(at)["waits_for"], dict(at)["serial"]): seqno for at, seqno in waits.items()}
    assert shown == {("0", "1", "true"): late, ("2", "0", "true"): serial}
    typed = Pipeline("log", target="target.db", channels=3, name="p", master="local[16]").status()
    assert typed.tasks[2].appliedLastSeqno == serial - 1 and typed.log is None
    assert typed.tasks[0].waitsFor == status.tasks[0].waitsFor, "told by the rows alone"


def test_how_late_it_is_beside_a_log_that_cannot_be_read_is_not_known(shop: Shop) -> None:
    """`top` said "0 ms"."""
    shop.work()
    shop.operation.offline()
    shop.run.come_to(State.OFFLINE_NORMAL)
    assert shop.operator.overview().lag_ms == 0
    (shop.folder / "log").rename(shop.folder / "away")
    try:
        found = shop.operator.overview()
    finally:
        (shop.folder / "away").rename(shop.folder / "log")
    assert found.lag_ms is None and found.problems[0].startswith("log: ")
    assert plain(Shown(now=found))[2].endswith("  behind 0, for how long is not known")


# --- the public calls ------------------------------------------------------------------------------------


def test_a_program_gets_dataclasses(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/control.md, "Status": its example, as it stands there."""
    last = shop.work()
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), found)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"ONLINE applied {last} latency ") and len(out) == 1 + 3 + 4
    assert out[1].startswith("channel 0 is idle, 0.0 transactions/s, waits for nobody")
    status = found["status"]
    assert isinstance(status, PipelineStatus)
    assert (status.pipeline.serviceName, status.pipeline.pipelineSource) == ("shop", "sqlite shop.db")
    running: RunningPipeline = found["running"]
    assert running.state().state is State.ONLINE
    assert running.state().applied_seqno == last
    with at_port(shop.operator) as address:
        at = RunningPipeline.at(address)
        assert at.status().tasks[0].eventCount == status.tasks[0].eventCount
    with pytest.raises(ControlError):
        at.status()
    with pytest.raises(ConfigError):
        RunningPipeline.find(service="another")


def test_an_endpoint_of_another_form_is_named(shop: Shop) -> None:
    class Other(Idle):
        @get("/status")
        def status(self) -> dict[str, int]:
            return {"tasks": 7}

    with at_port(Other()) as address:
        with pytest.raises(ControlError, match="it answers in another form"):
            RunningPipeline.at(address).status()


def test_a_pipeline_that_does_not_run_has_a_status(tmp_path: Path) -> None:
    with Log.open(str(tmp_path / "log"), source_id="s"):
        pass
    pipeline = Pipeline(tmp_path / "log", target=str(tmp_path / "none.db"))
    status = pipeline.status(log_options=LogOptions(retention_s=60))
    assert status.log is not None and status.log.logFileRetention == "1m"
    assert (status.pipeline.state, status.pipeline.maximumStoredSeqNo, status.tasks) == ("NONE", 0, ())
    assert not (tmp_path / "none.db").exists(), "looking makes nothing"


# --- every number of a status is a metric ----------------------------------------------------------------

Samples = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]
SAME = {
    "stores": "activeSeqno=tranlog_log_active_seqno maximumStoredSeqNo=tranlog_log_last_seqno "
    "minimumStoredSeqNo=tranlog_log_first_seqno headSeqno=tranlog_head_seqno queues=tranlog_channels "
    "estimatedOfflineInterval=tranlog_offline_interval_seconds eventCount=tranlog_transactions "
    "discardCount=tranlog_omitted_transactions serializationCount=tranlog_serial_sections",
    "stores.intervalGuard": "low_seqno=tranlog_applied_seqno hi_seqno=tranlog_applied_seqno "
    "low_time=tranlog_applied_commit_timestamp_seconds hi_time=tranlog_applied_commit_timestamp_seconds "
    "channels=tranlog_channels",
    "stores.stores": "hi_seqno=tranlog_applied_seqno lo_seqno=tranlog_counted_from_seqno "
    "discarded=tranlog_discarded_transactions "
    "accepted=tranlog_transactions+tranlog_omitted_transactions "
    "read=tranlog_transactions+tranlog_omitted_transactions+tranlog_discarded_transactions",
    "tasks": "eventCount=tranlog_transactions lastCommittedBlockSize=tranlog_last_block_transactions "
    "commits=tranlog_target_transactions lastCommittedBlockTime=tranlog_last_block_seconds "
    "appliedLatency=tranlog_applied_latency_seconds appliedLastSeqno=tranlog_applied_seqno "
    "currentLastSeqno=tranlog_applied_seqno "
    "inFlightSeqno=tranlog_in_flight_seqno inFlightChanges=tranlog_in_flight_changes "
    "inFlightReadBytes=tranlog_in_flight_read_bytes inFlightSizeBytes=tranlog_in_flight_size_bytes "
    + " ".join(f"{name}=tranlog_time_seconds" for name in TIMES),
    "shards": "eventCount=tranlog_shard_transactions appliedLatency=tranlog_shard_applied_latency_seconds "
    "appliedLastSeqno=tranlog_shard_applied_seqno",
    "stages": "taskCount=tranlog_channels committedMinSeqno=tranlog_restart_seqno "
    "processedMinSeqno=tranlog_restart_seqno",
    "pipeline": "appliedLastSeqno=tranlog_restart_seqno appliedLatency=tranlog_newest_applied_latency_seconds "
    "relativeLatency=tranlog_relative_latency_seconds channels=tranlog_channels "
    "latestEpochNumber=tranlog_restart_epoch maximumStoredSeqNo=tranlog_log_last_seqno "
    "minimumStoredSeqNo=tranlog_log_first_seqno pendingErrorSeqno=tranlog_pending_error_seqno "
    "timeInStateSeconds=tranlog_in_state_seconds uptimeSeconds=tranlog_uptime_seconds",
    "status.log": "first_seqno=tranlog_log_first_seqno last_seqno=tranlog_log_last_seqno "
    "committed_seqno=tranlog_log_committed_seqno epoch=tranlog_log_epoch segments=tranlog_log_segments "
    "bytes=tranlog_log_size_bytes",
    "status.log.holds": "restart_seqno=tranlog_log_hold_seqno",
    "status.pipeline": "stop_at_seqno=tranlog_stop_at_seqno restart_seqno=tranlog_restart_seqno "
    "slots=tranlog_slots lag_seqnos=tranlog_lag_transactions lag_ms=tranlog_lag_seconds",
    "status.pipeline.channels": "applied_seqno=tranlog_applied_seqno epoch=tranlog_applied_epoch "
    "tstamp=tranlog_applied_commit_timestamp_seconds updated_at=tranlog_position_moved_timestamp_seconds "
    "behind=tranlog_log_committed_seqno-tranlog_applied_seqno",
    "status.pipeline.channels.counters": "transactions=tranlog_transactions changes=tranlog_changes "
    "serial=tranlog_serial_transactions sections=tranlog_serial_sections groups=tranlog_target_transactions "
    "depended=tranlog_depended_transactions held=tranlog_held_transactions missed=tranlog_missed_dependencies "
    "bytes=tranlog_payload_bytes skipped=tranlog_discarded_transactions "
    "waits=tranlog_meetings wait_ms=tranlog_meeting_seconds "
    "retries=tranlog_retries omitted=tranlog_omitted_transactions "
    "filtered=tranlog_filtered_transactions "
    + " ".join(
        f"{on}_us=tranlog_time_seconds" for on in ("read", "filter", "apply", "commit", "other", "idle", "wait")
    ),
}
UNITS = {"ms": 1e3, "us": 1e6, "time": 1e3, "tstamp": 1e3, "at": 1e3}
MOVING = ("timeInStateSeconds", "uptimeSeconds", "relativeLatency", "lag_ms")


def numbers(
    value: object, path: tuple[str, ...] = (), at: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, float, dict[str, str]]]:
    """Yield each number of a JSON value: the path to it, its name, the number, and the labels that it stands under."""
    here = dict(at or {})
    if isinstance(value, list):
        for one in value:
            yield from numbers(one, path, here)
        return
    if not isinstance(value, dict):
        assert isinstance(value, str), "a number in a list has no name"
        return
    for name, label in (("taskId", "channel"), ("task_id", "channel"), ("shardId", "shard"), ("channel", "channel")):
        if isinstance(value.get(name), int | str) and "shard_id" not in value:
            here[label] = str(value[name])
    if path[-1:] == ("holds",):
        here["hold"] = value["name"]
    for name, one in value.items():
        if isinstance(one, dict | list):
            yield from numbers(one, (*path, name), here)
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield ".".join(path), name, one, here


def measured(found: Samples, family: str, at: Mapping[str, str], name: str) -> float:
    """Return what the samples of a family with these labels come to: those of all channels are added up."""
    wanted = {key: value for key, value in at.items() if key != "channel" or "shard" not in at}
    if family == "tranlog_time_seconds":
        wanted["on"] = name.removesuffix("Time").removesuffix("_us").replace("read", "extract")
    picked = [
        value
        for labels, value in found[family].items()
        if all(dict(labels)[key] == said for key, said in wanted.items() if key in dict(labels))
    ]
    assert picked, f"{family} has no sample for {name} of {at}"
    return sum(picked)


def test_every_number_is_a_metric_or_listed(shop: Shop, told: Tell) -> None:
    """Of `status --json` and of every view, from a pipeline that has worked and rests, so that no number moves."""
    last = shop.work()
    shop.operation.offline()
    shop.run.come_to(State.OFFLINE_NORMAL)
    exempt = {name for named, _ in cells("## Metrics") for name in names(named)}
    used = set()
    told_numbers: list[tuple[str, str, float, dict[str, str]]] = []
    for view in VIEW_NAMES:
        host = f"--host {shop.folder / 'log' / 'control' / 'p'}"
        told_numbers += numbers(json.loads(told(f"status -name {view} --json {host}")), (view,))
    status = service_status(shop.config, clock=SystemClock(), watch_s=0.0)
    assert not status.problems
    told_numbers += numbers(json.loads(msgspec.json.encode(status_json(status))), ("status",))
    found = samples_of(shop.operator.families())
    assert len(told_numbers) > 200
    for path, name, value, at in told_numbers:
        if name in exempt or path.rpartition(".")[2] in exempt:
            used |= {name, path.rpartition(".")[2]} & exempt
            continue
        same = dict(one.split("=") for one in SAME.get(path, "").split())
        assert name in same, f"{path}.{name} is in no metric, and not listed in {PAGE.name}"
        if name.startswith("inFlight") and value == -1:
            assert same[name] not in found, "no channel is in a large transaction"
            continue
        at = {key: said for key, said in at.items() if not path.startswith("stores.interval")}
        if path == "stores.intervalGuard" and name != "channels":
            unit = UNITS.get(name.rpartition("_")[2], 1.0)
            assert value / unit in found[same[name]].values()
            continue
        families = re.split(r"([+-])", same[name])
        come_to = measured(found, families[0], at, name)
        for sign, family in zip(families[1::2], families[2::2], strict=True):
            come_to += (1 if sign == "+" else -1) * measured(found, family, at, name)
        unit = UNITS.get(name.rpartition("_")[2], 1.0)
        within = 120.0 if name in MOVING else 1e-6
        assert come_to == pytest.approx(value / unit, abs=within), (path, name, value, same[name], come_to)
    assert found["tranlog_restart_seqno"] != {} and last in found["tranlog_restart_seqno"].values()
    source = {"captured_tstamp", "waiting", "retained_bytes"}  # this configuration has none
    assert exempt - used == source, "a number that is there, or nowhere, is not to be listed"


def test_every_counter_is_told() -> None:
    told = dict(one.split("=") for one in SAME["status.pipeline.channels.counters"].split())
    assert told.keys() == set(Counters.__slots__)


def test_metrics_by_http_are_those(shop: Shop) -> None:
    """In the format that is asked for, and in the older one where none is."""
    shop.work()
    with at_port(shop.operator) as address:
        new = httpx.get(f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text"})
        old = httpx.get(f"http://{address}/metrics")
        assert httpx.get(f"http://{address}/metrics", headers={"Accept": "text/plain; version=x"}).is_success
    assert new.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert old.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = read_openmetrics(new.text)
    assert sum(found["tranlog_transactions"].values()) == 93
    assert len(found["tranlog_time_seconds"]) == 3 * len(TIMES)
    assert read_text(old.text).keys() == found.keys()


def test_ready_when_the_channels_run(shop: Shop) -> None:
    """Not before, and the answer says why; what waits is told by name."""
    with at_port(shop.operator) as address:
        before = httpx.get(f"http://{address}/readyz")
        assert (before.status_code, before.json()["reasons"]) == (503, ["pipeline p is OFFLINE:NORMAL"])
        assert httpx.get(f"http://{address}/livez").status_code == 200
        assert waits(shop) == {"offline"}
        shop.work()
        after = httpx.get(f"http://{address}/readyz")
        assert (after.status_code, after.json()["reasons"]) == (200, [])
    assert waits(shop) == {"source"}
    shop.write("east", tstamp=SystemClock().now_ms())
    shop.until(lambda status: status.tasks[0].currentLastSeqno >= 0)
    assert waits(shop) == {"channel"}


def waits(shop: Shop) -> set[str]:
    """Return what the pipeline waits for, by its metrics."""
    found = samples_of(shop.operator.families())["tranlog_waits_for"]
    return {dict(labels)["tranlog_waits_for"] for labels, holds in found.items() if holds}


def test_who_asks_while_it_is_looked_at_has_the_next_look(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten at a time cost two looks, and nobody is told what was seen before the question."""
    looks, gather = [], shop.operator._gather
    first, going = threading.Event(), threading.Event()

    def looking(**how: Any) -> Any:
        looks.append(shop.operation.state().state)
        first.set()
        assert going.wait(60)
        return gather(**how)

    monkeypatch.setattr(shop.operator, "_gather", looking)
    with ThreadPoolExecutor(11) as pool:
        early = pool.submit(shop.operator.status)
        assert first.wait(60)
        late = [pool.submit(shop.operator.status) for _ in range(10)]
        time.sleep(0.2)
        going.set()
        assert early.result(60).pipeline.state == "OFFLINE:NORMAL"
        assert {one.result(60).pipeline.state for one in late} == {"OFFLINE:NORMAL"}
    assert len(looks) == 2


def test_who_looks_again_soon_waits_for_no_rates(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty looks a second were answered in bursts of six, each after it had been watched for 0.3 s.

    What an earlier reading tells are rates since then: so many transactions in so many seconds.
    """
    shop.work()
    clock = ManualClock()
    monkeypatch.setattr(shop.operator, "_clock", clock)
    shop.operator.status()
    assert clock.slept == [RATE_S]
    shop.run.come_to(State.ONLINE, applied=shop.write("north"))
    clock.advance(0.5)
    assert rates(shop) == pytest.approx(1 / 0.5)
    clock.advance(0.1)
    assert rates(shop) == 0
    assert clock.slept == [RATE_S, 0, pytest.approx(RATE_S - 0.1)]
    clock.advance(1.5)
    assert rates(shop) == 0
    assert clock.slept[3:] == [RATE_S]


def rates(shop: Shop) -> float:
    """Return how many transactions a second its channels apply."""
    return sum(task.rate for task in shop.operator.status().tasks)


def test_a_second_process_is_told_of_the_first_and_not_of_its_port(shop: Shop) -> None:
    """Both have one configuration, and "Address already in use" said nothing of whose it is."""
    with at_port(Idle()) as address, pytest.raises(PipelineHeldError, match=r" pid \d+ since "):
        with operated(shop.operation, shop.config.log, OperatingOptions(control=address), runtime_dir=None):
            pass


@pytest.mark.parametrize("path", ["/wait", "/flush"])
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_wait_ends_when_whoever_asked_has_gone(shop: Shop, path: str, accept: str) -> None:
    """It held one of the waits that there may be, and a thread, up to a day: nobody else could wait then."""
    shop.write("north")
    body = b'{"timeout_s":86400}' if path == "/flush" else b'{"applied":999,"timeout_s":86400}'
    with connect(str(shop.folder / "log" / "control" / "p")) as peer:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)
        _until(lambda: len(shop.operation.state().waits) == 1)
    _until(lambda: shop.operation.state().waits == ())


@pytest.mark.parametrize("path", ["/status", "/metrics"])
def test_who_has_gone_does_not_wait_for_a_turn(shop: Shop, path: str) -> None:
    """Of a target that hangs the scrapes of every 15 seconds became as many threads, until none could be begun."""
    with shop.operator._in_turn():
        with connect(str(shop.folder / "log" / "control" / "p")) as peer:
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            _until(lambda: "server-work" in {one.name for one in threading.enumerate()})
        _until(lambda: "server-work" not in {one.name for one in threading.enumerate()})
    assert shop.operator.status().pipeline.state == "OFFLINE:NORMAL"


def test_no_lag_is_told_of_a_pipeline_without_positions(shop: Shop) -> None:
    """ "tranlog_lag_transactions 0" was told of it, as of one that has applied everything."""
    shop.write("north")
    found = samples_of(shop.operator.families())
    assert "tranlog_lag_transactions" not in found and "tranlog_lag_seconds" not in found
    shop.work()
    assert samples_of(shop.operator.families())["tranlog_lag_transactions"] == {(("pipeline", "p"),): 0}


def test_the_state_of_an_offline_pipeline_knows_how_far_the_log_is(shop: Shop) -> None:
    """It said "applied up to seqno 6 of 6" for as long as it was offline, whatever came into the log."""
    applied = shop.work()
    shop.operator.offline(GoOffline())
    shop.run.come_to(State.OFFLINE_NORMAL)
    last = shop.write("north")
    state = RunningPipeline.of_config(shop.config).state()
    assert (state.applied_seqno, state.committed_seqno) == (applied, last) and last > applied


def test_a_pipeline_that_was_never_online_waits_for_its_operator(shop: Shop) -> None:
    """Of `tranlog apply --offline`: "not running", and `tranlog apply` as what to do, was said of it."""
    status = service_status(shop.config, clock=SystemClock(), watch_s=0.0)
    assert list(waits_for(status))[-1] == "its operator: pipeline p is OFFLINE:NORMAL (`tranlog online`)"


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
