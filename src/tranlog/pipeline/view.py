"""What `status -name …` shows of a pipeline: stores, tasks, shards, stages, channels, watches.

Owns the fields and how each follows from the rows in the target and the range of the log. Reads nothing: `service`
gathers and prints. The hard idea: all numbers stand in the target beside the positions that they belong to, so the
same view is shown from the running process, from another one, and of a pipeline that is not running.

The names of the fields are the ancestor's, since its users look for them here. What differs in meaning: there are no
read tasks that put transactions into queues in memory, a channel reads for itself, so `events`, what it holds and has
not committed, is 0 at each position.

Source: on-disk-parallel-queues; conformance/tungsten.md A2, A4, A9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.channels import SERIAL, Parallelization, ShardBy, ShardPlan
from tranlog.pipeline.progress import ChannelStats, Counters, Waiting, restart_seqno
from tranlog.target.target import ChannelRow, PipelineRow

THL_CLASS: Final = "tranlog.log.log.Log"
QUEUE_CLASS: Final = "tranlog.pipeline.channel.Channel"
WINDOW_CLASS: Final = "tranlog.pipeline.window.Window"
STAGE: Final = "thl-to-target"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What a view needs of the log: its options, and the range that it holds; seqnos -1 where there is none.

    `retention`: how long closed segments stay, as the configuration may say it; empty: for ever.
    """

    directory: str
    checksum: bool
    segment_bytes: int
    retention: str
    first_seqno: int
    last_seqno: int
    committed_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """What a view needs of the pipeline: its rows, and the options that no row tells. `now_ms`: when it was read.

    `running`: a driver moves its row. `rates`: transactions per second by channel, where it was watched.
    """

    row: PipelineRow | None
    channels: tuple[ChannelRow, ...]
    assignment: Mapping[str, int]
    running: bool
    group_transactions: int
    group_s: float
    idle_every: int
    target: str
    target_class: str
    now_ms: int
    rates: Mapping[int, float]
    parallelization: Parallelization = Parallelization.DISK


@dataclass(frozen=True, slots=True, kw_only=True)
class ThlStore:
    """The log as a store."""

    name: str = "thl"
    doChecksum: bool
    logDir: str
    logFileRetention: str
    logFileSize: int
    maximumStoredSeqNo: int
    minimumStoredSeqNo: int
    storeClass: str = THL_CLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One channel as the parallel queue shows it, in `store.N`.

    `lo_seqno` is the first that it ever read, `hi_seqno` the last; of those it `read`, it `accepted` its own and
    `discarded` the others'.
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
class ParallelQueueStore:
    """The channels together, as the ancestor's parallel queue.

    `discardCount` counts what the operator had left out; nothing else is ever thrown away. `maxSize` is how many
    transactions a channel may hold, `syncInterval` how many may pass before an idle one publishes its position.
    """

    name: str = "parallel-queue"
    criticalPartition: int
    discardCount: int
    eventCount: int
    headSeqno: int
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

    `waitTime`, for other channels, and `idleTime`, for the log, are ours: the ancestor has both in otherTime; so is
    `waitsFor`, empty for nobody. A rate is -1 where nobody watched.
    """

    stage: str
    taskId: int
    cancelled: bool
    eventCount: int
    averageBlockSize: float
    lastCommittedBlockSize: int
    currentBlockSize: int
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
    state: str
    waitsFor: str
    appliedLastSeqno: int
    appliedLastEventId: str
    currentLastSeqno: int
    currentLastEventId: str
    currentLastFragno: int


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
class StageView:
    """The one stage that there is: from the log to the target."""

    name: str
    taskCount: int
    blockCommitRowCount: int
    blockCommitInterval: str
    blockCommitPolicy: str
    applier_name: str
    applier_class: str
    extractor_name: str
    extractor_class: str
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
class AppliedWatch:
    """A wait for a seqno, or a limit, as the running process tells it; `seqno` None where it is no seqno."""

    action: str
    predicate: str
    seqno: int | None


def thl_store(log: LogFacts) -> ThlStore:
    """Show the log."""
    return ThlStore(
        doChecksum=log.checksum,
        logDir=log.directory,
        logFileRetention=log.retention,
        logFileSize=log.segment_bytes,
        maximumStoredSeqNo=log.last_seqno,
        minimumStoredSeqNo=log.first_seqno,
    )


def parallel_queue_store(facts: PipelineFacts) -> ParallelQueueStore:
    """Show the channels together."""
    counters = [Counters.parse(row.stats) for row in facts.channels]
    stats = [ChannelStats.parse(row.stats) for row in facts.channels]
    serialized = bool(stats) and stats[0].section
    return ParallelQueueStore(
        criticalPartition=0 if serialized else -1,
        discardCount=sum(one.omitted for one in counters),
        eventCount=sum(one.transactions for one in counters),
        headSeqno=max((row.applied_seqno for row in facts.channels), default=NO_SEQNO),
        maxSize=facts.group_transactions,
        queues=len(facts.channels),
        serializationCount=sum(one.sections for one in counters),
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


def task_views(facts: PipelineFacts) -> list[TaskView]:
    """Show each channel as a task."""
    waits = waits_of(facts.channels) if facts.running else {}
    stopping = facts.row is not None and facts.row.stop_at_seqno is not None
    shown = []
    for row in facts.channels:
        done, stats = Counters.parse(row.stats), ChannelStats.parse(row.stats)
        shown.append(
            TaskView(
                stage=STAGE,
                taskId=row.channel,
                cancelled=stopping,
                eventCount=done.transactions,
                averageBlockSize=round(done.transactions / done.groups, 3) if done.groups else 0.0,
                lastCommittedBlockSize=stats.block,
                currentBlockSize=0,
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
                rate=round(facts.rates.get(row.channel, -1.0), 3),
                state="extract" if facts.running else "stopped",
                waitsFor=wait_text(waits[row.channel], row.channel) if row.channel in waits else "",
                appliedLastSeqno=row.applied_seqno,
                appliedLastEventId=row.event_id,
                currentLastSeqno=row.applied_seqno,
                currentLastEventId=row.event_id,
                currentLastFragno=0,
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
            extractor_class="tranlog.log.cursor.Cursor",
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
    return round(us / 1e6, 3)
