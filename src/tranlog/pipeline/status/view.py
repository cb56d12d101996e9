"""What `status -name …` shows of a pipeline: the pipeline itself, stores, tasks, shards, stages, channels, watches.

Owns the ancestor's form of a status: the names of its views and of their fields, the values for what is unknown, its
units, and how it prints them. The values come from `status`; each field names its place there.

The names of the fields are the ancestor's, since its users look for them here; docs/control.md lists its fields that
are not here, each with the reason. What differs in meaning: there are no read tasks that put transactions into queues
in memory. A channel reads for itself, so `events`, what it holds and has not committed, is 0 at each position.

Source: on-disk-parallel-queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from tranlog.ids import NO_SEQNO
from tranlog.listing import printable
from tranlog.log.options import LogOptions
from tranlog.pipeline.filters.filters import describe
from tranlog.pipeline.rules.channels import SERIAL, Parallelization, ShardBy
from tranlog.pipeline.rules.progress import Counters
from tranlog.pipeline.rules.states import OperationState, Wait
from tranlog.pipeline.status.status import PipelineState, Status, at, class_name

ViewName: TypeAlias = Literal["pipeline", "stores", "tasks", "shards", "stages", "channels", "watches"]
VIEW_NAMES: Final = get_args(ViewName)
QUEUE_CLASS: Final = "tranlog.pipeline.applying.channel.Channel"
WINDOW_CLASS: Final = "tranlog.pipeline.spark.window.Window"
_STORE_CLASSES: Final = {Parallelization.MEMORY: WINDOW_CLASS}
STAGE: Final = "thl-to-target"
NONE: Final = "NONE"
"""What stands for a text that nobody tells, as at the ancestor's; a number is -1 then."""
_UNKNOWN: Final[Mapping[object, object]] = {"str": NONE, "int": -1, "float": -1.0}
"""The same, by the type of a field; None for others."""
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
_DIGITS: Final = re.compile(r"(\d+)")
ViewT = TypeVar("ViewT")


def _of(path: str, turn: Callable[[Any], object] | None = None) -> Any:
    """Return a field that shows what stands at a path of the model, turned into its form."""
    return field(metadata={"path": path, "turn": turn})


def _show(kind: type[ViewT], model: object, **given: object) -> ViewT:
    """Return a view of a part of the model; the fields without a path are given, or have a default."""
    for one in fields(kind):  # type: ignore[arg-type]
        if one.metadata:
            value, turn = at(model, one.metadata["path"]), one.metadata["turn"]
            if value is None:
                value = _UNKNOWN.get(one.type)
            elif turn is not None:
                value = turn(value)
            given[one.name] = value
    return kind(**given)


def _told(text: str) -> str:
    return text or NONE


def _ms(ms: int) -> float:
    return ms / 1000


def _us(us: int) -> float:
    return us / 1e6


def _rate(per_s: float) -> float:
    return round(per_s, 3)


def duration_text(seconds: float | None) -> str:
    """Return a time as the configuration takes it, in its largest whole unit: 7d, 36h, 45s; `keep all` for none."""
    if not seconds:
        return "keep all"
    for size, unit in _UNITS:
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _retain_ms(options: LogOptions) -> int:
    return round((options.retention_s or 0) * 1000)


def _block_size(done: Counters) -> float:
    return round(done.transactions / done.groups, 3) if done.groups else 0.0


# --- the views -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """The whole in one table, which `trepctl status` prints without a name. Times in seconds.

    `appliedLast…` and `latestEpochNumber` are those of the slowest channel: everything up to there is in the target.
    `appliedLatency`: from the source's commit to the target's, of the newest transaction that is applied;
    `relativeLatency`: how long ago the slowest channel's position was committed at the source. `state`,
    `offlineRequests`, `pendingError…`, `timeInStateSeconds` and `uptimeSeconds` are known to the running process alone:
    NONE and -1 where it was not asked.
    """

    name: str = _of("pipeline.options.pipeline")
    serviceName: str = _of("service", _told)
    state: str = _of("process.state.value")
    host: str = _of("host", _told)
    appliedLastEventId: str = _of("pipeline.reached.row.event_id")
    appliedLastSeqno: int = _of("pipeline.restart_seqno")
    appliedLatency: float = _of("pipeline.newest_latency_ms", _ms)
    channels: int = _of("pipeline.channels", len)
    currentEventId: str = _of("source_event_id", _told)
    latestEpochNumber: int = _of("pipeline.reached.row.epoch")
    maximumStoredSeqNo: int = _of("log.last_seqno")
    minimumStoredSeqNo: int = _of("log.first_seqno")
    offlineRequests: str = _of("process.limit", lambda limit: _told(_until(limit)))
    pendingError: str = _of("error.message")
    pendingErrorCode: str = _of("error.type")
    pendingErrorEventId: str = _of("error.event_id", _told)
    pendingErrorSeqno: int = _of("error.seqno")
    pipelineSource: str = _of("", lambda status: status.source or _log_source(status))
    relativeLatency: float = _of("relative_latency_ms", _ms)
    sourceId: str = _of("pipeline.slowest.row.source_id", _told)
    timeInStateSeconds: float = _of("in_state_ms", _ms)
    uptimeSeconds: float = _of("uptime_ms", _ms)
    version: str = _of("version")


def _until(limit: str) -> str:
    return f"until {limit}" if limit else ""


def _log_source(status: Status) -> str:
    return NONE if status.log is None else f"thl {status.log.directory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThlStore:
    """The log as a store; the options are those of its writer. Intervals in ms, as there; 0 keeps all.

    `activeSeqno`: the first that somebody still needs, by the holds on the log; -1: nobody has one.
    """

    name: str = "thl"
    activeSeqno: int = _of("active_seqno")
    doChecksum: bool = _of("options.checksum")
    flushIntervalMillis: int = _of("options.flush_interval_s", lambda seconds: round(seconds * 1000))
    fsyncOnFlush: bool = _of("options.sync_on_flush")
    logDir: str = _of("directory")
    logFileRetainMillis: int = _of("options", _retain_ms)
    logFileRetention: str = _of("options", lambda options: duration_text(options.retention_s))
    logFileSize: int = _of("options.segment_bytes")
    maximumStoredSeqNo: int = _of("last_seqno")
    minimumStoredSeqNo: int = _of("first_seqno")
    storeClass: str = _of("store_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One channel as the parallel queue shows it, in `store.N`.

    `lo_seqno` is the first that it read by the plan that holds, -1 before that, `hi_seqno` its position; of those it
    `read`, it `accepted` its own and `discarded` the others'. Another plan begins at 0; the queue keeps the sums.
    """

    task_id: int = _of("row.channel")
    thread_name: str = _of("row.channel", "channel-{}".format)
    hi_seqno: int = _of("row.applied_seqno")
    lo_seqno: int = _of("stats.since")
    read: int = _of("counters", lambda done: done.transactions + done.omitted + done.skipped)
    accepted: int = _of("counters", lambda done: done.transactions + done.omitted)
    discarded: int = _of("counters.skipped")
    events: int = 0

    def __str__(self) -> str:
        told = " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))
        return f"{QUEUE_CLASS.rpartition('.')[2]} {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalGuard:
    """Between which channels `estimatedOfflineInterval` lies: the one furthest behind in the log, and furthest ahead.

    `channels`: how many have applied something, and so have a time: the source's commit of their position, in ms since
    1970. The others' numbers are -1 where there is none.
    """

    channels: int
    low_channel: int = -1
    low_seqno: int = NO_SEQNO
    low_time: int = -1
    hi_channel: int = -1
    hi_seqno: int = NO_SEQNO
    hi_time: int = -1

    def __str__(self) -> str:
        told = [f"{one.name}={getattr(self, one.name)}" for one in fields(self)]
        return " ".join(["IntervalGuard", *(told if self.channels else told[:1])])


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelQueueStore:
    """The channels together, as the ancestor's parallel queue. Intervals in seconds of the source's commit times.

    `discardCount` counts what the operator had left out; nothing else is ever thrown away. `maxSize` is how many
    transactions a channel may hold, `syncInterval` how many may pass before an idle one publishes its position.
    `maxOfflineInterval`: how far the fastest channel may be ahead of the slowest, None for any distance;
    `estimatedOfflineInterval`: how far it is.
    """

    name: str = "parallel-queue"
    criticalPartition: int = _of("serialized", lambda serialized: 0 if serialized else -1)
    discardCount: int = _of("total.omitted")
    estimatedOfflineInterval: float = _of("offline_interval_ms", _ms)
    eventCount: int = _of("total.transactions")
    headSeqno: int = _of("head_seqno")
    intervalGuard: IntervalGuard
    maxOfflineInterval: float | None = _of("options.max_offline_interval_s")
    maxSize: int = _of("options.group.transactions")
    queues: int = _of("channels", len)
    serializationCount: int = _of("total.sections")
    serialized: bool = _of("serialized")
    stopRequested: bool = _of("", lambda pipeline: _stopping(pipeline))
    syncEnabled: bool = True
    syncInterval: int = _of("options.idle_every")
    stores: tuple[ReadTask, ...] = _of("channels", lambda channels: tuple(_show(ReadTask, one) for one in channels))
    storeClass: str = _of("options.parallelization", lambda how: _STORE_CLASSES.get(how, QUEUE_CLASS))


def _stopping(pipeline: PipelineState) -> bool:
    return pipeline.row is not None and pipeline.row.stop_at_seqno is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One channel as a task of the one stage. Times in seconds, since the pipeline's first start.

    `commitTime`, `waitTime`, for other channels, and `idleTime`, for the log, are ours: the ancestor has them in
    applyTime and otherTime; so are `waitsFor`, empty for nobody, and the rates, of transactions and of their changes
    per second, -1 where nobody watched. What a channel has processed it has committed: `currentLast…` is the position.
    Ours are `inFlight…` too: the large transaction that it is in, how many of its changes went to the target so far,
    how many bytes of it are read, and of how many; -1 for none. `state` is a `Doing`, NONE where nobody watched and the
    pipeline's process was not asked.
    """

    stage: str = STAGE
    taskId: int = _of("row.channel")
    cancelled: bool
    eventCount: int = _of("counters.transactions")
    averageBlockSize: float = _of("counters", _block_size)
    lastCommittedBlockSize: int = _of("stats.block")
    commits: int = _of("counters.groups")
    lastCommittedBlockTime: float = _of("stats.block_us", _us)
    appliedLatency: float = _of("stats.latency_ms", _ms)
    extractTime: float = _of("counters.read_us", _us)
    filterTime: float = _of("counters.filter_us", _us)
    applyTime: float = _of("counters.apply_us", _us)
    commitTime: float = _of("counters.commit_us", _us)
    waitTime: float = _of("counters.wait_us", _us)
    idleTime: float = _of("counters.idle_us", _us)
    otherTime: float = _of("counters.other_us", _us)
    rate: float = _of("transactions_per_s", _rate)
    changeRate: float = _of("changes_per_s", _rate)
    state: str = _of("doing")
    waitsFor: str = _of("waits")
    appliedLastSeqno: int = _of("row.applied_seqno")
    appliedLastEventId: str = _of("row.event_id")
    currentLastSeqno: int = _of("row.applied_seqno")
    currentLastEventId: str = _of("row.event_id")
    inFlightSeqno: int = _of("in_flight.seqno")
    inFlightChanges: int = _of("in_flight.changes")
    inFlightReadBytes: int = _of("in_flight.read_bytes")
    inFlightSizeBytes: int = _of("in_flight.size_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """What the pipeline has applied of one shard, as far as its channel still tells it apart.

    The shard is the plan's: a schema or a table, where shards are by these. By key it is the one that capture recorded,
    for transactions of tables that have a key: there may be as many keys as rows.
    """

    shardId: str = _of("shard")
    stage: str = STAGE
    channel: int = _of("channel")
    eventCount: int = _of("count.transactions")
    appliedLatency: float = _of("count.latency_ms", _ms)
    appliedLastSeqno: int = _of("count.applied_seqno")
    appliedLastEventId: str = _of("count.event_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterView:
    """One filter of the stage, in `filter.N`, counted from 0 in the order in which they run; no secret of it."""

    name: str = _of("", describe)
    class_name: str = _of("", class_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """The one stage that there is: from the log to the target. What is processed is committed."""

    name: str = STAGE
    taskCount: int = _of("channels", len)
    blockCommitRowCount: int = _of("options.group.transactions")
    blockCommitInterval: str = _of("options.group.seconds", "{:g}s".format)
    blockCommitPolicy: str = "strict"
    applier_name: str = _of("", lambda pipeline: pipeline.target or pipeline.options.target.kind)
    applier_class: str = _of("target_class")
    extractor_name: str = "thl"
    extractor_class: str = "tranlog.log.reading.cursor.Cursor"
    filters: tuple[FilterView, ...] = _of("options.filters", lambda some: tuple(_show(FilterView, one) for one in some))
    committedMinSeqno: int = _of("restart_seqno")
    processedMinSeqno: int = _of("restart_seqno")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelView:
    """Which channel a shard's transactions go to; `#UNKNOWN` and the serial shards have channel 0, alone."""

    shard_id: str
    channel: int
    serial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesView:
    """What one channel did by write sets.

    Of its transactions `dependedCount` depended on one of another channel, for which `waitedCount` waited; in the
    source's order that counts groups that waited for their turn. `waitSeconds`: for serial ones too.
    `missedDependencies`: conflicts that were gone when the others had come.
    """

    channel: int = _of("row.channel")
    eventCount: int = _of("counters.transactions")
    rowChanges: int = _of("counters.changes")
    dependedCount: int = _of("counters.depended")
    waitedCount: int = _of("counters.held")
    waitSeconds: float = _of("counters.wait_ms", _ms)
    serialCount: int = _of("counters.serial")
    missedDependencies: int = _of("counters.missed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialView:
    """Why transactions run alone by write sets, the table first where it is one's, and how many did."""

    why: str
    eventCount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """Something that somebody waits for, or that ends the run. `matched` by task, as the ancestor prints it."""

    stage: str = STAGE
    committed: bool = True
    action: str
    predicate: str
    cancelled: bool = False
    done: bool
    matched: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """All views of one pipeline, of one moment. `log` is None where the log was not read, or not how it is written."""

    pipeline: PipelineView
    log: ThlStore | None
    queue: ParallelQueueStore
    tasks: tuple[TaskView, ...]
    shards: tuple[ShardView, ...]
    writes: tuple[WritesView, ...]
    serial: tuple[SerialView, ...]
    stages: tuple[StageView, ...]
    channels: tuple[ChannelView, ...]
    watches: tuple[WatchView, ...]


# --- how they follow -------------------------------------------------------------------------------------


def pipeline_status(status: Status) -> PipelineStatus:
    """Show everything of a status that has a pipeline."""
    pipeline = status.pipeline
    assert pipeline is not None
    stopping = _stopping(pipeline)
    return PipelineStatus(
        pipeline=_show(PipelineView, status),
        log=None if status.log is None else _show(ThlStore, status.log),
        queue=_show(ParallelQueueStore, pipeline, intervalGuard=_interval_guard(pipeline)),
        tasks=tuple(_show(TaskView, one, cancelled=stopping) for one in pipeline.channels),
        shards=tuple(_show(ShardView, one) for one in pipeline.shards),
        writes=tuple(_show(WritesView, one) for one in pipeline.channels) if _runs_by_writes(pipeline) else (),
        serial=tuple(_serial_views(pipeline)),
        stages=(_show(StageView, pipeline),),
        channels=tuple(_channel_views(pipeline)),
        watches=tuple(_watch_views(status.process, pipeline)),
    )


def _interval_guard(pipeline: PipelineState) -> IntervalGuard:
    """Find the channels furthest behind and ahead in the log, of those that have applied something."""
    ends = pipeline.ends
    if ends is None:
        return IntervalGuard(channels=0)
    low, high = ends
    return IntervalGuard(
        channels=sum(one.has_applied for one in pipeline.channels),
        low_channel=low.channel,
        low_seqno=low.applied_seqno,
        low_time=low.tstamp,
        hi_channel=high.channel,
        hi_seqno=high.applied_seqno,
        hi_time=high.tstamp,
    )


def _channel_views(pipeline: PipelineState) -> Iterator[ChannelView]:
    """Show whose each shard is: the recorded ones, the mapped ones, the serial ones."""
    plan = pipeline.plan
    if plan is None:
        return
    names = {*pipeline.assignment, *plan.serial, *(shard for shard, _ in plan.mapping)}
    if plan.by not in (ShardBy.KEY, ShardBy.WRITES):  # then those that are counted are not the plan's
        names |= {one.shard for one in pipeline.shards}
    for shard in sorted(names):
        owner = plan.owner(shard, pipeline.assignment)
        if owner is not None:
            yield ChannelView(shard_id=shard, channel=max(owner, 0), serial=owner == SERIAL)


def _runs_by_writes(pipeline: PipelineState) -> bool:
    plan = pipeline.plan
    return plan is not None and plan.by is ShardBy.WRITES


def _serial_views(pipeline: PipelineState) -> Iterator[SerialView]:
    if not _runs_by_writes(pipeline):
        return
    plan = pipeline.writes
    counted: dict[str, int] = {}
    for one in pipeline.channels:
        for why, count in one.stats.reasons.items():
            counted[why] = counted.get(why, 0) + count
    reasons = set(counted)
    if plan is not None:
        reasons.update(f"{table}: {why}" for table, why in plan.serial_tables().items())
    if plan is not None and plan.why_alone:
        reasons.add(plan.why_alone)
    for why in sorted(reasons):
        yield SerialView(why=why, eventCount=counted.get(why, 0))


def _watch_views(process: OperationState | None, pipeline: PipelineState) -> Iterator[WatchView]:
    """Show what a running process waits for: who waits at its endpoint, and its limit."""

    def watch(action: str, predicate: str, seqno: int | None) -> WatchView:
        matched = [seqno is not None and row.applied_seqno >= seqno for row in pipeline.rows]
        told = ",".join(f"[{number}:{str(hit).lower()}]" for number, hit in enumerate(matched))
        done = bool(matched) and all(matched)
        return WatchView(action=action, predicate=predicate, done=done, matched=f"[{told}]")

    if process is None:
        return
    for one in process.waits:
        yield watch("wait", _predicate(one), one.applied)
    if process.limit:
        number = re.fullmatch(r"seqno (\d+)", process.limit)
        yield watch("offline", _until(process.limit), None if number is None else int(number[1]))


def _predicate(wait: Wait) -> str:
    applied = [] if wait.applied is None else [f"applied seqno >= {wait.applied}"]
    return " and ".join(applied + ([] if wait.state is None else [f"state is {wait.state}"]))


def needed_for(name: ViewName | None, status: Status) -> Status:
    """Return a status that a view, None: all, can be shown from; raises why there is none.

    Without the log `pipeline` and `stores` say nothing true, and `tasks` tells less.
    """
    if status.log is None and name in (None, "pipeline", "stores"):
        raise status.problems["log"]
    if status.pipeline is None:
        raise status.problems["target"]
    return status


def view(name: ViewName, status: PipelineStatus) -> list[Any]:
    """Return a view's dataclasses, one per table of the print; `stores` without the log where that was not read."""
    match name:
        case "pipeline":
            return [status.pipeline]
        case "stores":
            return [*([] if status.log is None else [status.log]), status.queue]
        case "shards":
            return [*status.shards, *status.writes, *status.serial]
        case _:
            return list(getattr(status, name))


# --- print -----------------------------------------------------------------------------------------------


def rows_of(one: object) -> dict[str, str]:
    """Return a view's dataclass as names and texts, sorted with numbers as numbers.

    Shape: `store.N` for each channel of the queue, `filter.N.name` and `filter.N.class` for each filter of a stage.
    """
    found: dict[str, str] = {}
    assert is_dataclass(one) and not isinstance(one, type)
    for each in fields(one):
        value = getattr(one, each.name)
        if each.name == "stores":
            found |= {f"store.{task.task_id}": str(task) for task in value}
        elif each.name == "filters":
            for number, filter_ in enumerate(value):
                found |= {f"filter.{number}.name": filter_.name, f"filter.{number}.class": filter_.class_name}
        else:
            found[re.sub(r"^(applier|extractor)_", r"\1.", each.name)] = _text(value)
    return dict(sorted(found.items(), key=lambda item: _in_order(item[0])))


def _in_order(name: str) -> list[tuple[int, int, str]]:
    return [(1, 0, part) if not part.isdigit() else (0, int(part), "") for part in _DIGITS.split(name) if part]


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.3f}"
        case _:
            return printable(str(value))


def print_form(name: str, shown: Sequence[object]) -> Iterator[str]:
    """Yield the ancestor's form: a table of sorted `key : value` lines for each, all of one width."""
    yield f"Processing status command ({name})..."
    tables = [rows_of(one) for one in shown]
    width = max((len(key) for rows in tables for key in rows), default=0)
    for rows in tables:
        yield f"{'NAME':<{width + 2}}VALUE"
        yield f"{'----':<{width + 2}}-----"
        for key, value in rows.items():
            yield f"{key:<{width}}: {value}"
    yield f"Finished status command ({name})..."


def json_form(shown: Sequence[Any]) -> list[Mapping[str, object]]:
    """Return the views as plain values."""
    return [asdict(one) for one in shown]
