"""What `status -name …` shows of a pipeline: the pipeline itself, stores, tasks, shards, stages, channels, watches.

Owns the fields and how each follows from the rows in the target and the range of the log. Reads nothing: `viewing`
gathers, `service` prints. The hard idea: all numbers stand in the target beside the positions that they belong to, so
the same view is shown from the running process, from another one, and of a pipeline that is not running.

The names of the fields are the ancestor's, since its users look for them here; docs/control.md lists those of its that
are not here, each with its reason. What differs in meaning: there are no read tasks that put transactions into queues
in memory, a channel reads for itself, so `events`, what it holds and has not committed, is 0 at each position.

Source: on-disk-parallel-queues; conformance/tungsten.md A2, A4, A9.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from tranlog.ids import NO_EPOCH, NO_SEQNO
from tranlog.pipeline.filters.filters import Filter, describe
from tranlog.pipeline.rules.channels import SERIAL, Parallelization, ShardBy, ShardPlan
from tranlog.pipeline.rules.progress import ChannelStats, Counters, InFlight, Waiting, last_error, restart_seqno, totals
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.target.target import ChannelRow, PipelineRow

QUEUE_CLASS: Final = "tranlog.pipeline.applying.channel.Channel"
WINDOW_CLASS: Final = "tranlog.pipeline.spark.window.Window"
STAGE: Final = "thl-to-target"
NONE: Final = "NONE"
"""What stands for a text that nobody tells, as at the ancestor's; a number is -1 then."""
_TOLD_MOST_MS: Final = 3_000
"""A channel that has said so lately how far it is inside a large transaction is at it: it does so once a second."""
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What a view needs of the log: its writer's options, and what it holds; seqnos -1 where there is none.

    `retention_s`: how long closed segments stay; None: for ever. `holds`: from which seqno on somebody needs it, by
    name; None where his file is damaged, which holds everything.
    """

    directory: str
    checksum: bool
    segment_bytes: int
    retention_s: float | None
    flush_interval_s: float
    sync_on_flush: bool
    first_seqno: int
    last_seqno: int
    committed_seqno: int
    epoch: int
    segments: int
    bytes: int
    holds: Mapping[str, int | None]
    store_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """What a view needs of the pipeline: its rows, and the options that no row tells. `now_ms`: when it was read.

    `running`: a driver moves its row, None where nobody watched and its process was not asked; `starting`: it is on its
    way online, and channels that stand have not begun. `before`: the rows as they were `watched_s` seconds earlier,
    where it was watched, by which rates are told. `in_flight`: in which large transaction each channel is.
    `source_event_id`: where the source stands by now, empty where it does not tell.
    """

    pipeline: str
    row: PipelineRow | None
    channels: tuple[ChannelRow, ...]
    assignment: Mapping[str, int]
    running: bool | None
    group_transactions: int
    group_s: float
    idle_every: int
    max_offline_interval_s: float | None
    filters: tuple[Filter, ...]
    target: str
    target_class: str
    version: str
    now_ms: int
    parallelization: Parallelization = Parallelization.DISK
    starting: bool = False
    before: tuple[ChannelRow, ...] = ()
    watched_s: float = 0.0
    in_flight: Mapping[int, InFlight] = field(default_factory=dict)
    service: str = ""
    source: str = ""
    source_event_id: str = ""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """Why a pipeline is OFFLINE:ERROR, or the last run ended; seqno -1 where it is about no transaction."""

    type: str
    message: str
    seqno: int
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedWatch:
    """A wait for a seqno, or a limit, as the running process tells it; `seqno` None where it is no seqno."""

    action: str
    predicate: str
    seqno: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What only the process that runs a pipeline can tell. `began_ms`, `since_ms`: of the process, of its state."""

    host: str
    state: str
    began_ms: int
    since_ms: int
    limit: str
    error: ErrorFacts | None
    watches: tuple[AppliedWatch, ...]
    troubles: tuple[Trouble, ...] = ()
    slots: int = 0


# --- the views -------------------------------------------------------------------------------------------


class Doing(enum.StrEnum):
    """What a channel does."""

    UNKNOWN = NONE
    """Nobody watched, and the pipeline's process was not asked."""
    STOPPED = "stopped"
    """Nothing: the pipeline is offline, or still starting."""
    APPLYING = "applying"
    SERIAL = "serial"
    """Channel 0, inside a serial section."""
    READING = "reading"
    """It passes other channels' transactions."""
    WAITING = "waiting"
    """For other channels."""
    IDLE = "idle"
    """It has applied all that there is."""
    STANDING = "standing"
    """Something is left for it and nothing moved: a target transaction that takes long, or no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """The whole in one table, which `trepctl status` prints without a name. Times in seconds.

    `appliedLast…` and `latestEpochNumber` are those of the slowest channel: everything up to there is in the target.
    `appliedLatency`: from the source's commit to the target's, of the newest transaction that is applied;
    `relativeLatency`: how long ago the slowest channel's position was committed at the source. `state`,
    `offlineRequests`, `pendingError…`, `timeInStateSeconds` and `uptimeSeconds` are known to the running process alone:
    NONE and -1 where it was not asked.
    """

    name: str
    serviceName: str
    state: str
    host: str
    appliedLastEventId: str
    appliedLastSeqno: int
    appliedLatency: float
    channels: int
    currentEventId: str
    latestEpochNumber: int
    maximumStoredSeqNo: int
    minimumStoredSeqNo: int
    offlineRequests: str
    pendingError: str
    pendingErrorCode: str
    pendingErrorEventId: str
    pendingErrorSeqno: int
    pipelineSource: str
    relativeLatency: float
    sourceId: str
    timeInStateSeconds: float
    uptimeSeconds: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThlStore:
    """The log as a store; the options are those of its writer. Intervals in ms, as there; 0 keeps all.

    `activeSeqno`: the first that somebody still needs, by the holds on the log; -1: nobody has one.
    """

    name: str = "thl"
    activeSeqno: int
    doChecksum: bool
    flushIntervalMillis: int
    fsyncOnFlush: bool
    logDir: str
    logFileRetainMillis: int
    logFileRetention: str
    logFileSize: int
    maximumStoredSeqNo: int
    minimumStoredSeqNo: int
    storeClass: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One channel as the parallel queue shows it, in `store.N`.

    `lo_seqno` is the first that it read by the plan that holds, -1 before that, `hi_seqno` its position; of those it
    `read`, it `accepted` its own and `discarded` the others'. Another plan begins at 0; the queue keeps the sums.
    """

    task_id: int
    thread_name: str
    hi_seqno: int
    lo_seqno: int
    read: int
    accepted: int
    discarded: int
    events: int

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
    criticalPartition: int
    discardCount: int
    estimatedOfflineInterval: float
    eventCount: int
    headSeqno: int
    intervalGuard: IntervalGuard
    maxOfflineInterval: float | None
    maxSize: int
    queues: int
    serializationCount: int
    serialized: bool
    stopRequested: bool
    syncEnabled: bool
    syncInterval: int
    stores: tuple[ReadTask, ...]
    storeClass: str = QUEUE_CLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One channel as a task of the one stage. Times in seconds, since the pipeline's first start.

    `commitTime`, `waitTime`, for other channels, and `idleTime`, for the log, are ours: the ancestor has them in
    applyTime and otherTime; so are `waitsFor`, empty for nobody, and the rates, of transactions and of their changes
    per second, -1 where nobody watched. What a channel has processed it has committed: `currentLast…` is the position.
    Ours are `inFlight…` too: the large transaction that it is in, how many of its changes went to the target so far,
    how many bytes of it are read, and of how many; -1 for none.
    """

    stage: str
    taskId: int
    cancelled: bool
    eventCount: int
    averageBlockSize: float
    lastCommittedBlockSize: int
    commits: int
    lastCommittedBlockTime: float
    appliedLatency: float
    extractTime: float
    filterTime: float
    applyTime: float
    commitTime: float
    waitTime: float
    idleTime: float
    otherTime: float
    rate: float
    changeRate: float
    state: Doing
    waitsFor: str
    appliedLastSeqno: int
    appliedLastEventId: str
    currentLastSeqno: int
    currentLastEventId: str
    inFlightSeqno: int
    inFlightChanges: int
    inFlightReadBytes: int
    inFlightSizeBytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """What the pipeline has applied of one shard, as far as its channel still tells it apart.

    The shard is the plan's: a schema or a table, where shards are by these. By key it is the one that capture recorded,
    for transactions of tables that have a key: there may be as many keys as rows.
    """

    shardId: str
    stage: str
    channel: int
    eventCount: int
    appliedLatency: float
    appliedLastSeqno: int
    appliedLastEventId: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterView:
    """One filter of the stage, in `filter.N`, counted from 0 in the order in which they run; no secret of it."""

    name: str
    class_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """The one stage that there is: from the log to the target. What is processed is committed."""

    name: str
    taskCount: int
    blockCommitRowCount: int
    blockCommitInterval: str
    blockCommitPolicy: str
    applier_name: str
    applier_class: str
    extractor_name: str
    extractor_class: str
    filters: tuple[FilterView, ...]
    committedMinSeqno: int
    processedMinSeqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelView:
    """Which channel a shard's transactions go to; `#UNKNOWN` and the serial shards have channel 0, alone."""

    shard_id: str
    channel: int
    serial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """Something that somebody waits for, or that ends the run. `matched` by task, as the ancestor prints it."""

    stage: str
    committed: bool
    action: str
    predicate: str
    cancelled: bool
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
    stages: tuple[StageView, ...]
    channels: tuple[ChannelView, ...]
    watches: tuple[WatchView, ...]


# --- how they follow -------------------------------------------------------------------------------------


def class_name(one: object) -> str:
    """Return the name of an object's class, with its module."""
    return f"{type(one).__module__}.{type(one).__qualname__}"


def pipeline_status(log: LogFacts | None, facts: PipelineFacts, process: ProcessFacts | None = None) -> PipelineStatus:
    """Show everything; without `log` where it cannot be read, without `process` where it was not asked."""
    return PipelineStatus(
        pipeline=pipeline_view(log, facts, process),
        log=None if log is None else thl_store(log),
        queue=parallel_queue_store(facts),
        tasks=tuple(task_views(facts, committed_seqno=None if log is None else log.committed_seqno)),
        shards=tuple(shard_views(facts)),
        stages=tuple(stage_views(facts)),
        channels=tuple(channel_views(facts)),
        watches=tuple(watch_views(() if process is None else process.watches, facts)),
    )


def pipeline_view(log: LogFacts | None, facts: PipelineFacts, process: ProcessFacts | None) -> PipelineView:
    """Show the whole in one table."""
    slowest = min(facts.channels, key=lambda row: row.applied_seqno, default=None)
    applied = slowest is not None and _has_applied(slowest)
    newest = max(shard_views(facts), key=lambda one: one.appliedLastSeqno, default=None)
    holder = "" if facts.row is None else facts.row.holder
    if process is not None:
        error = process.error
    else:
        ended = None if facts.running else last_error(facts.channels)
        error = None if ended is None else ErrorFacts(ended.type, ended.message, ended.seqno, "")
    now_ms = facts.now_ms
    return PipelineView(
        name=facts.pipeline,
        serviceName=facts.service or NONE,
        state=NONE if process is None else process.state,
        host=(holder.partition(" ")[0] if process is None else process.host) or NONE,
        appliedLastEventId=slowest.event_id if slowest is not None and applied else NONE,
        appliedLastSeqno=NO_SEQNO if slowest is None else slowest.applied_seqno,
        appliedLatency=-1.0 if newest is None else newest.appliedLatency,
        channels=len(facts.channels),
        currentEventId=facts.source_event_id or NONE,
        latestEpochNumber=slowest.epoch if slowest is not None and applied else -1,
        maximumStoredSeqNo=NO_SEQNO if log is None else log.last_seqno,
        minimumStoredSeqNo=NO_SEQNO if log is None else log.first_seqno,
        offlineRequests=(process.limit if process is not None else "") or NONE,
        pendingError=NONE if error is None else error.message,
        pendingErrorCode=NONE if error is None else error.type,
        pendingErrorEventId=(error.event_id if error is not None else "") or NONE,
        pendingErrorSeqno=NO_SEQNO if error is None else error.seqno,
        pipelineSource=facts.source or (NONE if log is None else f"thl {log.directory}"),
        relativeLatency=max(0, now_ms - slowest.tstamp) / 1000 if slowest is not None and applied else -1.0,
        sourceId=(slowest.source_id if slowest is not None else "") or NONE,
        timeInStateSeconds=-1.0 if process is None else max(0, now_ms - process.since_ms) / 1000,
        uptimeSeconds=-1.0 if process is None else max(0, now_ms - process.began_ms) / 1000,
        version=facts.version,
    )


def _has_applied(row: ChannelRow) -> bool:
    return row.epoch != NO_EPOCH or row.event_id != ""


def thl_store(log: LogFacts) -> ThlStore:
    """Show the log."""
    held = [log.first_seqno if seqno is None else seqno for seqno in log.holds.values()]
    return ThlStore(
        activeSeqno=min(held, default=NO_SEQNO),
        doChecksum=log.checksum,
        flushIntervalMillis=round(log.flush_interval_s * 1000),
        fsyncOnFlush=log.sync_on_flush,
        logDir=log.directory,
        logFileRetainMillis=round((log.retention_s or 0) * 1000),
        logFileRetention=duration_text(log.retention_s),
        logFileSize=log.segment_bytes,
        maximumStoredSeqNo=log.last_seqno,
        minimumStoredSeqNo=log.first_seqno,
        storeClass=log.store_class,
    )


def duration_text(seconds: float | None) -> str:
    """Return a time as the configuration takes it, in its largest whole unit: 7d, 36h, 45s; `keep all` for none."""
    if not seconds:
        return "keep all"
    for size, unit in _UNITS:
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def interval_guard(channels: Sequence[ChannelRow]) -> IntervalGuard:
    """Find the channels furthest behind and ahead in the log, of those that have applied something."""
    rows = sorted((row for row in channels if _has_applied(row)), key=lambda row: row.applied_seqno)
    if not rows:
        return IntervalGuard(channels=0)
    low, high = rows[0], rows[-1]
    return IntervalGuard(
        channels=len(rows),
        low_channel=low.channel,
        low_seqno=low.applied_seqno,
        low_time=low.tstamp,
        hi_channel=high.channel,
        hi_seqno=high.applied_seqno,
        hi_time=high.tstamp,
    )


def parallel_queue_store(facts: PipelineFacts) -> ParallelQueueStore:
    """Show the channels together."""
    counters = [Counters.parse(row.stats) for row in facts.channels]
    stats = [ChannelStats.parse(row.stats) for row in facts.channels]
    total = totals(facts.channels)
    serialized = bool(stats) and stats[0].section
    guard = interval_guard(facts.channels)
    return ParallelQueueStore(
        criticalPartition=0 if serialized else -1,
        discardCount=total.omitted,
        estimatedOfflineInterval=max(0, guard.hi_time - guard.low_time) / 1000,
        eventCount=total.transactions,
        headSeqno=max((row.applied_seqno for row in facts.channels), default=NO_SEQNO),
        intervalGuard=guard,
        maxOfflineInterval=facts.max_offline_interval_s,
        maxSize=facts.group_transactions,
        queues=len(facts.channels),
        serializationCount=total.sections,
        serialized=serialized,
        stopRequested=facts.row is not None and facts.row.stop_at_seqno is not None,
        storeClass=WINDOW_CLASS if facts.parallelization is Parallelization.MEMORY else QUEUE_CLASS,
        syncEnabled=True,
        syncInterval=facts.idle_every,
        stores=tuple(
            ReadTask(
                task_id=row.channel,
                thread_name=f"channel-{row.channel}",
                hi_seqno=row.applied_seqno,
                lo_seqno=one.since,
                read=done.transactions + done.omitted + done.skipped,
                accepted=done.transactions + done.omitted,
                discarded=done.skipped,
                events=0,
            )
            for row, done, one in zip(facts.channels, counters, stats, strict=True)
        ),
    )


def waits_of(channels: Sequence[ChannelRow]) -> dict[int, Waiting]:
    """Return who waits for whom, by the channel that waits: those that were waited for and are not there yet."""
    applied = {row.channel: row.applied_seqno for row in channels}
    found = {}
    for row in channels:
        told = ChannelStats.parse(row.stats).waiting
        if told is not None:
            left = tuple(one for one in told.channels if applied.get(one, NO_SEQNO) < told.seqno)
            if left:
                found[row.channel] = Waiting(told.seqno, told.serial, left)
    return found


def wait_text(waiting: Waiting, channel: int) -> str:
    """Say what a channel waits for: one of them for channel 0 to apply a serial section, channel 0 for the others."""
    which = f"channel {waiting.channels[0]}" if len(waiting.channels) == 1 else f"channels {_listed(waiting.channels)}"
    if not waiting.serial:
        return f"{which} to come near seqno {waiting.seqno}"
    return f"{which} to apply {'serial ' if channel else ''}seqno {waiting.seqno}"


def _listed(channels: Sequence[int]) -> str:
    """Name channels by number, neighbours as a range."""
    runs: list[list[int]] = []
    for one in sorted(channels):
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What of a channel tells whether it moves: its position, how many transactions it has applied, what it is in.

    `told_ms`: how long ago it said how far it is inside a large transaction; None where it is in none.
    """

    applied_seqno: int
    transactions: int
    told_ms: int | None = None


def doing_of(
    was: Moved | None, now: Moved, *, waiting: bool, section: bool, behind: int, starting: bool = False
) -> Doing:
    """Say what a channel does, from two readings; `was` None: there is one only.

    `behind`: how many committed transactions stand behind its position. `starting`: the pipeline is not online yet, and
    one that does not move has not begun.
    """
    if waiting:
        return Doing.WAITING
    moves = now.told_ms is not None and now.told_ms < _TOLD_MOST_MS
    if moves or (was is not None and now.transactions > was.transactions):
        return Doing.SERIAL if section else Doing.APPLYING
    if was is not None and now.applied_seqno > was.applied_seqno:
        return Doing.READING if behind else Doing.IDLE
    if starting:
        return Doing.STOPPED
    if not behind:
        return Doing.IDLE
    return Doing.READING if was is None else Doing.STANDING


def task_views(facts: PipelineFacts, *, committed_seqno: int | None = None) -> list[TaskView]:
    """Show each channel as a task; `committed_seqno`: up to where there is something to apply, None: not known."""
    waits = waits_of(facts.channels) if facts.running else {}
    stopping = facts.row is not None and facts.row.stop_at_seqno is not None
    earlier = {row.channel: row for row in facts.before} if facts.watched_s > 0 else {}
    head = max((row.applied_seqno for row in facts.channels), default=NO_SEQNO)
    upto = head if committed_seqno is None else committed_seqno
    shown = []
    for row in facts.channels:
        done, stats = Counters.parse(row.stats), ChannelStats.parse(row.stats)
        large = facts.in_flight.get(row.channel)
        was = None
        rate = change_rate = -1.0
        if facts.running and row.channel in earlier:
            before = Counters.parse(earlier[row.channel].stats)
            was = Moved(applied_seqno=earlier[row.channel].applied_seqno, transactions=before.transactions)
            rate = max(0, done.transactions - before.transactions) / facts.watched_s
            change_rate = max(0, done.changes - before.changes) / facts.watched_s
        doing = Doing.UNKNOWN if facts.running is None else Doing.STOPPED
        if facts.running:
            doing = doing_of(
                was,
                Moved(
                    applied_seqno=row.applied_seqno,
                    transactions=done.transactions,
                    told_ms=None if large is None else facts.now_ms - large.written_at,
                ),
                waiting=row.channel in waits,
                section=stats.section,
                behind=max(0, upto - row.applied_seqno),
                starting=facts.starting,
            )
        shown.append(
            TaskView(
                stage=STAGE,
                taskId=row.channel,
                cancelled=stopping,
                eventCount=done.transactions,
                averageBlockSize=round(done.transactions / done.groups, 3) if done.groups else 0.0,
                lastCommittedBlockSize=stats.block,
                commits=done.groups,
                lastCommittedBlockTime=_seconds(stats.block_us),
                appliedLatency=stats.latency_ms / 1000,
                extractTime=_seconds(done.read_us),
                filterTime=_seconds(done.filter_us),
                applyTime=_seconds(done.apply_us),
                commitTime=_seconds(done.commit_us),
                waitTime=_seconds(done.wait_us),
                idleTime=_seconds(done.idle_us),
                otherTime=_seconds(done.other_us),
                rate=round(rate, 3),
                changeRate=round(change_rate, 3),
                state=doing,
                waitsFor=wait_text(waits[row.channel], row.channel) if row.channel in waits else "",
                appliedLastSeqno=row.applied_seqno,
                appliedLastEventId=row.event_id,
                currentLastSeqno=row.applied_seqno,
                currentLastEventId=row.event_id,
                inFlightSeqno=NO_SEQNO if large is None else large.seqno,
                inFlightChanges=-1 if large is None else large.changes,
                inFlightReadBytes=-1 if large is None else large.read_bytes,
                inFlightSizeBytes=-1 if large is None else large.size_bytes,
            )
        )
    return shown


def shard_views(facts: PipelineFacts) -> list[ShardView]:
    """Show what each shard got, by name; one that changed channels counts where it is now."""
    shown: dict[str, ShardView] = {}
    for row in facts.channels:
        for shard, one in ChannelStats.parse(row.stats).shards.items():
            before = shown.get(shard)
            if before is None or before.appliedLastSeqno < one.applied_seqno:
                shown[shard] = ShardView(
                    shardId=shard,
                    stage=STAGE,
                    channel=row.channel,
                    eventCount=one.transactions,
                    appliedLatency=one.latency_ms / 1000,
                    appliedLastSeqno=one.applied_seqno,
                    appliedLastEventId=one.event_id,
                )
    return [shown[shard] for shard in sorted(shown)]


def stage_views(facts: PipelineFacts) -> list[StageView]:
    """Show the stage."""
    least = restart_seqno(facts.channels)
    return [
        StageView(
            name=STAGE,
            taskCount=len(facts.channels),
            blockCommitRowCount=facts.group_transactions,
            blockCommitInterval=f"{facts.group_s:g}s",
            blockCommitPolicy="strict",
            applier_name=facts.target,
            applier_class=facts.target_class,
            extractor_name="thl",
            extractor_class="tranlog.log.reading.cursor.Cursor",
            filters=tuple(FilterView(name=describe(one), class_name=class_name(one)) for one in facts.filters),
            committedMinSeqno=least,
            processedMinSeqno=least,
        )
    ]


def channel_views(facts: PipelineFacts) -> list[ChannelView]:
    """Show whose each shard is: the recorded ones, the mapped ones, the serial ones."""
    if facts.row is None:
        return []
    plan = ShardPlan.parse(facts.row.shard_rule, channels=facts.row.channels)
    names = {*facts.assignment, *plan.serial, *(shard for shard, _ in plan.mapping)}
    if plan.by is not ShardBy.KEY:  # then those that are counted are not the plan's
        for row in facts.channels:
            names |= ChannelStats.parse(row.stats).shards.keys()
    shown = []
    for shard in sorted(names):
        owner = plan.owner(shard, facts.assignment)
        if owner is not None:
            shown.append(ChannelView(shard_id=shard, channel=max(owner, 0), serial=owner == SERIAL))
    return shown


def watch_views(watches: Sequence[AppliedWatch], facts: PipelineFacts) -> list[WatchView]:
    """Show what is waited for."""
    shown = []
    for one in watches:
        matched = [one.seqno is not None and row.applied_seqno >= one.seqno for row in facts.channels]
        shown.append(
            WatchView(
                stage=STAGE,
                committed=True,
                action=one.action,
                predicate=one.predicate,
                cancelled=False,
                done=bool(matched) and all(matched),
                matched="[" + ",".join(f"[{n}:{str(hit).lower()}]" for n, hit in enumerate(matched)) + "]",
            )
        )
    return shown


def _seconds(us: int) -> float:
    return us / 1e6
