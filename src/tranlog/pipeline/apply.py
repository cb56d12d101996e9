"""The driver of a pipeline: take it at the target, run one Spark job with a task per channel, watch, report.

Owns the life of one `tranlog apply`. What a start means is decided in `progress`, what a channel does is in
`channel`; Spark only starts the tasks and tells when they are gone. The hard idea: nothing that matters passes
through the driver. Positions, plan, tokens and the wish to stop are rows in the target, so a driver may die at any
moment, and the next one takes the pipeline over from there.

Source: design/pipeline.md, "Apply", "Channels meet at the target".
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, assert_never

from tranlog.clock import SystemClock
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConfigError,
    EngineError,
    LogError,
    LogMissingError,
    PipelineHeldError,
    ReplacedError,
    TargetAheadError,
    TargetPositionError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.readable import ReadableLog
from tranlog.pipeline.channel import ChannelTask, GroupBounds, TaskEnd, content_of, log_mark
from tranlog.pipeline.channels import AssignmentRule, Parallelization, ShardBy, ShardPlan
from tranlog.pipeline.cluster import (
    EngineOptions,
    MasterKind,
    count_slots,
    explain_failure,
    master_kind,
    too_few_slots,
)
from tranlog.pipeline.filter_chain import Chain
from tranlog.pipeline.filters import Filter, check_filters
from tranlog.pipeline.holding import Holding, target_words
from tranlog.pipeline.job import Job, long_running, windowed
from tranlog.pipeline.limits import Limit, SeqnoRanges, UntilGtid, UntilSeqno, Watched, reached
from tranlog.pipeline.progress import (
    Ahead,
    Counters,
    Drain,
    Held,
    Lag,
    Lost,
    Purged,
    Resubmissions,
    Run,
    applied_nothing,
    check_pipeline_name,
    lag,
    nearest_limit,
    plan_start,
    restart_seqno,
)
from tranlog.pipeline.replanning import PlanOrder, PlanOrders, check_running
from tranlog.pipeline.session import (
    build_context,
    check_pyspark,
    check_slots,
    default_master,
    find_java,
    kept_master,
    lives,
    restore_scratch,
)
from tranlog.pipeline.window import Window
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target
from tranlog.tungsten.translated import open_readable
from tranlog.types import Datetime, datetime_text

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

ALIVE_INTERVAL_S = 1.0
"""How often a driver moves alive_at."""
ALIVE_WATCH_S = 2.5
"""How long alive_at must stand still before a driver counts as gone."""
ALIVE_LOOK_S = 1.3
"""How long to look before Spark is started: a driver that is well moves it within this time."""
_TICK_S = 0.05
_STOP_WAIT_S = 60.0
"""How long tasks that were told to stop may take for the target transaction they are in, before they are cancelled."""
_CANCEL_WAIT_S = 10.0
_REPLACED_WAIT_S = 5.0
_DAEMON = "tranlog.pipeline.daemon"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """What to apply, to where, and how; picklable.

    `until_seqno`: the last seqno to apply, inclusive; "now": what is committed when the run starts; None: follow.
    `start_seqno`: the first to apply where the target has no position; None: the first that the log holds.
    """

    pipeline: str
    log_dir: str
    target: TargetOptions
    channels: int = 4
    parallelization: Parallelization = Parallelization.DISK
    window_bytes: int = 32 << 20
    """In memory: how much of the log is read at a time, and the most that a channel's worker holds of it."""
    master: str | None = None
    """Spark's master; None: `local[max(cores, channels)]`, since a task that runs for weeks needs a slot for itself."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """What Spark is told beyond its master."""
    assignment: AssignmentRule = AssignmentRule.RECORDED
    serial_shards: tuple[str, ...] = ()
    shard_map: dict[str, int] = field(default_factory=dict)
    """Channels of shards, over the assignment rule."""
    shard_default: int | None = None
    """The channel of every shard that is in neither, in the place of the assignment rule."""
    shard_by: ShardBy = ShardBy.RECORDED
    shard_keys: dict[str, str] = field(default_factory=dict)
    """The column of each table, `schema.table`, whose value is the shard, where `shard_by` is KEY."""
    until_seqno: int | str | None = None
    start_seqno: int | None = None
    limit: Limit | None = None
    """A limit beside `until_seqno`; the nearer one ends the run."""
    leave_out: SeqnoRanges = field(default_factory=SeqnoRanges)
    """Transactions that are never to be applied; recorded at the target with those of earlier runs."""
    take_over: bool = False
    max_offline_interval_s: float | None = None
    """How far the fastest channel may be ahead of the slowest, in the source's commit times; None: as far as it can."""
    sync_interval_s: float = 1.0
    """How long a position may go unpublished while nothing of the channel's own comes by."""
    idle_every: int = 10_000
    """The same, in transactions."""
    group: GroupBounds = field(default_factory=GroupBounds)
    retry_s: float = 30.0
    """How long to try to reach a target that is away before giving up."""
    resubmit: int = 5
    """How often a failing job is submitted again without any position having moved."""
    checksum: bool = True
    filters: tuple[Filter, ...] = ()
    """What is left out, renamed, hidden or delayed on the way, in this order."""

    def plan(self) -> ShardPlan:
        """Return how shards are divided among the channels."""
        if self.parallelization is Parallelization.NONE:
            return ShardPlan(channels=1)
        return ShardPlan(
            channels=self.channels,
            rule=self.assignment,
            serial=frozenset(name for name in self.serial_shards if name),
            mapping=tuple(sorted(self.shard_map.items())),
            default=self.shard_default,
            by=self.shard_by,
            keys=tuple(sorted(self.shard_keys.items())),
        )

    def check(self) -> None:
        """Raise ConfigError for what cannot work."""
        check_pipeline_name(self.pipeline)
        self.plan().check()
        self.group.check()
        check_filters(self.filters)
        check_slots(self.wanted_master(), self.plan().channels)
        self.engine.check_for(self.wanted_master())
        if isinstance(self.until_seqno, str) and self.until_seqno != "now":
            raise ConfigError(option="until", value=self.until_seqno, why='a seqno or "now"')
        for option, value in (("until", self.until_seqno), ("start", self.start_seqno)):
            if isinstance(value, int) and value < 0:
                raise ConfigError(option=option, value=value, why="a seqno is 0 or more")
        for option, number in (
            ("sync_interval_s", self.sync_interval_s),
            ("idle_every", self.idle_every),
            ("window_bytes", self.window_bytes),
        ):
            if number <= 0:
                raise ConfigError(option=option, value=number, why="must be above 0")
        if self.max_offline_interval_s is not None and self.max_offline_interval_s <= 0:
            why = "must be above 0; leave it out for no bound"
            raise ConfigError(option="max_offline_interval_s", value=self.max_offline_interval_s, why=why)
        for option, number in (("retry_s", self.retry_s), ("resubmit", self.resubmit)):
            if number < 0:
                raise ConfigError(option=option, value=number, why="must be 0 or more")

    def wanted_master(self) -> str:
        """Return the master to run on."""
        return self.master or default_master(self.plan().channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """Where one channel stands; `tstamp` is the source's commit time of its position, ms."""

    channel: int
    applied_seqno: Seqno
    event_id: str
    tstamp: int
    counters: Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStatus:
    """Where a pipeline stands, about once a second. Rates are per second, since the report before."""

    pipeline: str
    holder: str
    phase: str
    channels: tuple[ChannelStatus, ...]
    restart_seqno: Seqno
    committed_seqno: Seqno
    lag: Lag
    transactions_per_s: float
    changes_per_s: float
    total: Counters
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """How a run ended, other than by an exception: `end` is LIMIT or STOPPED."""

    end: TaskEnd
    status: ApplyStatus
    resubmissions: int
    seconds: float


def _no_report(status: ApplyStatus) -> None:
    """Report to nobody."""


def run_apply(
    options: ApplyOptions,
    *,
    stop: threading.Event | None = None,
    report: Callable[[ApplyStatus], None] = _no_report,
    spark: SparkContext | None = None,
    abort: threading.Event | None = None,
    keep_spark: bool = False,
    plans: PlanOrders | None = None,
) -> ApplyResult:
    """Run a pipeline until its limit, until `stop` is set, or until it cannot go on.

    Ends: with `stop`, after the target transactions that are under way; with `abort` set before it, at once: they are
    rolled back. `report` is called about once a second, in this thread. `spark`: run there instead of starting one;
    it is left running. `keep_spark`: leave running what was started; the next run goes on with it, or with another in
    its place, where it needs more slots. `plans`: an order put there while the pipeline runs changes its plan: the
    channels end where they are, drain to one seqno by the old plan, and go on by the new one; then the order is
    answered. A plan that cannot work is refused, in the answer and in a note, and the old one goes on. An order that
    the run's end overtakes stays without an answer.

    Raises ConfigError, EngineError, PipelineHeldError, ReplacedError, TargetAheadError and TargetPositionError (exit
    code 3), PurgedError, and what a task could not cure: ConflictError, TargetTableError, DdlStopError, FilterError,
    TargetUnavailableError, CorruptRecordError and other LogErrors.
    """
    options.check()
    Chain(options.filters)  # whose functions can be imported
    find_java()
    check_pyspark()
    reader = open_readable(options.log_dir, checksum=options.checksum)
    try:
        driver = _Driver(
            options, reader, stop or threading.Event(), report, spark, abort, plans=plans, keep_spark=keep_spark
        )
        try:
            return driver.run()
        finally:
            driver.close()
    finally:
        reader.close()


class _Driver:
    """One run. Threads: one, beside that of the job."""

    def __init__(
        self,
        options: ApplyOptions,
        reader: ReadableLog,
        stop: threading.Event,
        report: Callable[[ApplyStatus], None],
        context: SparkContext | None,
        abort: threading.Event | None = None,
        *,
        plans: PlanOrders | None = None,
        keep_spark: bool = False,
    ) -> None:
        self._options = options
        self._plans: PlanOrders = queue.SimpleQueue() if plans is None else plans
        self._orders: list[PlanOrder] = []
        """Those that were taken up and are not answered yet."""
        self._wanted = options.plan()
        self._next_beat = 0.0
        self._planning = False
        """Whether the tasks end to make room for another plan."""
        self._reader = reader
        self._stop = stop
        self._abort = abort or threading.Event()
        self._clock = SystemClock()
        self._report = report
        self._context = context
        self._own_context = context is None and not keep_spark
        self._keep_spark = keep_spark
        since = datetime_text(Datetime(self._clock.now_ms() // 1000 * 1_000_000))
        self._holder = f"{socket.gethostname()} pid {os.getpid()} since {since} UTC"
        self._target: Target | None = None
        self._token = 0
        """The pipeline's as last seen, and as soon as we are its driver, ours."""
        self._tried = False
        self._driving = False
        self._phase = "starting"
        self._notes: list[str] = []
        self._last: tuple[float, Counters] | None = None
        self._holding = Holding(reader, options.pipeline, disk=OsDisk(), clock=self._clock, note=self._note)
        self._channels = 0
        """How many the pipeline has at the target, as we have written them."""
        self._limit_seqno: Seqno | None = None
        """Where a limit was found that a seqno does not tell beforehand."""
        self._looked = NO_SEQNO
        """Up to where it was looked for in vain."""
        self._short = False
        self._resubmissions = Resubmissions(allowed=options.resubmit)

    def run(self) -> ApplyResult:
        """Take the pipeline, run it, give it back."""
        began = time.monotonic()
        options = self._options
        until = self._until()
        self._target = open_target(options.target)
        # Refuse before Spark is started, where a first look is enough; starting it is part of a longer one.
        looked_at = time.monotonic()
        row = self._persist(lambda: self._open()[0].read_pipeline(options.pipeline))
        self._token = 0 if row is None else row.token
        first = self._decide(alive=self._persist(lambda: self._moves(row, looked_at + ALIVE_LOOK_S)))
        context = self._start_spark(first)
        self._decide(alive=self._persist(lambda: self._moves(row, looked_at + ALIVE_WATCH_S)))
        self._persist(self._target.ensure_tables)
        end = TaskEnd.STOPPED
        try:
            while not self._stop.is_set():
                self._planning = False
                plan = self._persist(self._take)
                self._leave_out()
                check_slots(context.master or "", plan.plan.channels)
                if isinstance(plan, Run):
                    self._phase = "running"
                    self._answer(plan)
                    end = self._run(context, plan.plan, until)
                    if self._planning and end is TaskEnd.STOPPED:
                        continue
                    break
                # A user's limit in front of the drain's wins; then the new plan waits for the next start.
                self._phase = "draining"
                end = self._run(context, plan.plan, plan.upto if until is None else min(until, plan.upto))
                if self._planning and end is TaskEnd.STOPPED:
                    continue
                if end is TaskEnd.STOPPED or restart_seqno(self._persist(self._rows)) < plan.upto:
                    break
            status = self._beat()
        finally:
            self._release()
        return ApplyResult(
            end=end, status=status, resubmissions=self._resubmissions.total, seconds=time.monotonic() - began
        )

    def close(self) -> None:
        """Let go of the hold, the target and, if it is ours, of Spark."""
        self._holding.close()
        if self._target is not None:
            self._target.close()
        if self._own_context and self._context is not None:
            try:
                self._context.stop()
            except Exception:  # its JVM is gone; there is nothing left to stop
                logger.debug("could not stop Spark", exc_info=True)

    # --- before the job ---

    def _until(self) -> Seqno | None:
        until = self._options.until_seqno
        if until is None or isinstance(until, int):
            return None if until is None else Seqno(until)
        return self._reader.range().committed_seqno

    def _start_spark(self, plan: Run | Drain) -> SparkContext:
        """Start Spark with a slot for each channel, those of an earlier plan among them, which may have to drain."""
        options = self._options
        channels = max(self._wanted.channels, plan.plan.channels)
        if self._context is None:
            master = options.master or default_master(channels)
            _check_drain(master, self._wanted.channels, channels)
            if self._keep_spark:
                master = kept_master(options.master, channels)
            settings = {"spark.python.daemon.module": _DAEMON}
            if master_kind(master) is MasterKind.STANDALONE:
                settings["spark.cores.max"] = str(channels)  # unset, it would take all that there are
            app = f"tranlog apply {options.pipeline}"
            self._context = build_context(master, app, settings, options.engine)
        master = self._context.master or ""
        _check_drain(master, self._wanted.channels, channels)
        deadline = time.monotonic() + options.engine.slots_wait_s
        while (slots := count_slots(self._context)) < channels and not self._stop.is_set():
            if time.monotonic() > deadline or not lives(self._context):
                raise too_few_slots(master, slots=slots, channels=channels)
            time.sleep(_TICK_S)
        return self._context

    def _moves(self, row: PipelineRow | None, until: float) -> bool:
        """Whether another driver moves what it was in `row`, looking once and then until the time has come."""
        target, name = self._open()
        if row is None or row.holder == NOBODY or self._options.take_over:
            return False
        while True:
            now = target.read_pipeline(name)
            if now is not None and now.moved_since(row):
                return now.holder != NOBODY
            if time.monotonic() >= until or self._stop.wait(_TICK_S):
                return False

    def _open(self) -> tuple[Target, str]:
        assert self._target is not None
        return self._target, self._options.pipeline

    def _rows(self) -> Sequence[ChannelRow]:
        """Read where all channels stand. Raises TargetPositionError where not all of them do."""
        target, name = self._open()
        rows = target.read_channels(name)
        there = {row.channel for row in rows}
        if self._driving and not there >= set(range(self._channels)):
            gone = ", ".join(str(channel) for channel in range(self._channels) if channel not in there)
            why = f"the rows of its channels {gone} were removed from tranlog_channel while it ran"
            raise TargetPositionError(where=target.describe(), pipeline=name, why=why)
        return rows

    def _decide(self, *, alive: bool) -> Run | Drain:
        """Read what the target holds, and decide. Raises what a refusal stands for."""
        target, name = self._open()
        found = self._reader.range()
        if found.first_seqno == NO_SEQNO:
            raise LogMissingError(path=self._options.log_dir, why="it holds no transaction yet")
        start = self._options.start_seqno
        plan = plan_start(
            pipeline=target.read_pipeline(name),
            rows=target.read_channels(name),
            wanted=self._wanted,
            start=None if start is None else Seqno(start),
            first=found.first_seqno,
            header_at=self._reader.header,
            alive=alive,
            take_over=self._options.take_over,
            shards=len(target.read_assignment(name)),
            known=self._holding.known(self._words()),
        )
        match plan:
            case Run() | Drain():
                return plan
            case Held(holder=holder):
                raise PipelineHeldError(pipeline=name, holder=holder)
            case Ahead(channel=channel, gtid=gtid, why=why):
                raise TargetAheadError(pipeline=name, channel=channel, gtid=gtid, why=why)
            case Purged(seqno=seqno):
                raise self._reader.purged(Seqno(seqno))
            case Lost(why=why, upto=upto, remedy=remedy):
                raise TargetPositionError(where=target.describe(), pipeline=name, why=why, upto=upto, remedy=remedy)
            case _:
                assert_never(plan)

    def _take(self) -> Run | Drain:
        """Become the pipeline's driver, in two steps: first shut out all earlier tasks, then plan on what stands still.

        Positions that were read while an earlier task could still move them must never be written back.
        """
        target, name = self._open()
        row = target.read_pipeline(name)
        if row is not None:
            # After a lost connection it may be our own first step that we see.
            known = row.token == self._token or row.holder == (self._holder if self._tried else NOBODY)
            if not known and not self._options.take_over:
                raise PipelineHeldError(pipeline=name, holder=row.holder)  # somebody else was faster
            self._tried = True
            self._token = target.take(
                pipeline=name,
                expected_token=row.token,
                holder=self._holder,
                channels=row.channels,
                shard_rule=row.shard_rule,
                rows=None,
                keep_assignment=True,
            )
        plan = self._decide(alive=False)
        self._token = target.take(
            pipeline=name,
            expected_token=plan.expected_token,
            holder=self._holder,
            channels=plan.plan.channels,
            shard_rule=plan.plan.text(),
            rows=plan.rows,
            keep_assignment=not isinstance(plan, Run) or plan.keep_assignment,
        )
        self._driving = True
        self._channels = len(plan.rows)
        self._holding.begin(restart_seqno(plan.rows), self._words())
        self._notes += plan.notes
        for note in plan.notes:
            logger.info("%s pipeline=%s", note, name)
        return plan

    def _release(self) -> None:
        """Leave the pipeline to nobody: it also ends whatever task of ours might still run."""
        if not self._driving:
            return
        target, name = self._open()
        try:
            target.reconnect()
            row = target.read_pipeline(name)
            if row is not None and row.token == self._token:
                target.take(
                    pipeline=name,
                    expected_token=self._token,
                    holder=NOBODY,
                    channels=row.channels,
                    shard_rule=row.shard_rule,
                    rows=None,
                    keep_assignment=True,
                )
                rows = self._rows()
                self._driving = False
                self._hold(rows)
        except TranlogError as exc:
            logger.warning("could not give the pipeline back pipeline=%s why=%s", name, exc)

    def _leave_out(self) -> None:
        """Record what is not to be applied, before any task of ours can come to it."""
        target, name = self._open()
        wanted = self._options.leave_out
        if wanted:
            self._persist(lambda: target.leave_out(pipeline=name, token=self._token, ranges=wanted.ranges))
            self._note(f"leaves out seqno {wanted.text()}, as asked for")

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)
            logger.info("%s pipeline=%s", note, self._options.pipeline)

    # --- the limit ---

    def _look_ahead(self, until: Seqno | None) -> tuple[Seqno | None, Watched | None, Seqno]:
        """Return the limit as a seqno where the log shows it, else what the tasks are to watch for, and from where on.

        What is committed by now is searched here, so that channels which stand apart all end at the first match behind
        the slowest; none has passed what comes later. Raises ConfigError for a GTID of another history.
        """
        if self._limit_seqno is not None:
            return nearest_limit(until, self._limit_seqno), None, NO_SEQNO
        match self._options.limit:
            case None:
                return until, None, NO_SEQNO
            case UntilSeqno(seqno=seqno):
                return nearest_limit(until, seqno), None, NO_SEQNO
            case UntilGtid(gtid=gtid):
                header = self._reader.header(gtid.seqno)
                if header is not None and header.epoch != gtid.epoch:
                    why = f"this log has GTID({header.epoch}, {gtid.seqno}) in its place"
                    raise ConfigError(option="--until-gtid", value=str(gtid), why=why)
                return nearest_limit(until, gtid.seqno), None, NO_SEQNO
            case watched:
                restart = restart_seqno(self._persist(self._rows))
                upto = self._reader.range().committed_seqno
                # The slowest may not have come to where it was looked for already, window by window.
                found = self._search(watched, Seqno(max(restart, self._looked) + 1), upto)
                if found is None:
                    self._looked = max(self._looked, upto)
                    return until, watched, upto
                self._limit_seqno = found  # a later look begins behind it
                return nearest_limit(until, found), None, NO_SEQNO

    def _search(self, watched: Watched, first: Seqno, last: Seqno) -> Seqno | None:
        if first > last:
            return None
        beat_at = time.monotonic() + ALIVE_INTERVAL_S
        with self._reader.cursor(committed_only=True) as cursor:
            cursor.seek(first)
            while not self._stop.is_set():
                header = cursor.next_header(0.0)
                if time.monotonic() >= beat_at:  # it may be long, and nobody is to take us for dead
                    self._persist(self._target_keep_alive)
                    beat_at = time.monotonic() + ALIVE_INTERVAL_S
                if header is None or header.seqno > last:
                    return None
                found = reached(watched, header, lambda: content_of(cursor.current()))
                if found is not None:
                    return found
        return None

    # --- the job ---

    def _run(self, context: SparkContext, plan: ShardPlan, until: Seqno | None) -> TaskEnd:
        """Run one plan to its end, submitting the job again while that helps. Raises what cannot be cured."""
        options = self._options
        here = options.target.absolute()
        local = master_kind(context.master or "") is MasterKind.LOCAL
        number = 0
        while True:
            number += 1
            mark = None if local else log_mark(self._reader)  # what it marks may have been purged since the last job
            in_memory = options.parallelization is Parallelization.MEMORY
            upto, watch, watch_after = (until, None, NO_SEQNO) if in_memory else self._look_ahead(until)
            tasks = [
                ChannelTask(
                    pipeline=options.pipeline,
                    driver_token=self._token,
                    channel=channel,
                    plan=plan,
                    log_dir=os.path.abspath(options.log_dir),
                    log_mark=mark,
                    target=here,
                    until=upto,
                    max_offline_interval_s=options.max_offline_interval_s,
                    bounds=options.group,
                    sync_interval_s=options.sync_interval_s,
                    idle_every=options.idle_every,
                    retry_s=options.retry_s,
                    checksum=options.checksum,
                    watch=watch,
                    watch_after=watch_after,
                    filters=options.filters,
                )
                for channel in range(plan.channels)
            ]
            if in_memory:
                window = self._window(tasks, until)
                if window is None:
                    return TaskEnd.STOPPED if self._stop.is_set() or self._planning else TaskEnd.LIMIT
                submit = windowed(window)
            else:
                window, submit = None, long_running(tasks)
            job = Job(context, submit, group=f"{options.pipeline}-{self._token}-{number}")
            try:
                self._watch(job)
            finally:
                job.cancel(_CANCEL_WAIT_S)
            if job.results is None:
                if self._stop.is_set() or self._planning:
                    return TaskEnd.STOPPED
                explained = explain_failure(str(job.failure))
                if explained is not None:
                    raise explained
                why = job.why()
            else:
                errors = [result.error for result in job.results if result.end is TaskEnd.FAILED]
                if errors:
                    raise _most_telling([error for error in errors if error is not None])
                ends = {result.end for result in job.results}
                if TaskEnd.REPLACED in ends:
                    why = "another attempt of a task had taken its channel"
                elif TaskEnd.STOPPED in ends and not (self._stop.is_set() or self._planning):
                    why = "a task of the job before it had asked all others to stop"
                elif window is not None and ends == {TaskEnd.LIMIT}:
                    continue
                else:
                    return TaskEnd.STOPPED if TaskEnd.STOPPED in ends else TaskEnd.LIMIT
            # Raises ReplacedError where it was another driver.
            self._persist(self._target_keep_alive)
            self._again(context, why)

    def _window(self, tasks: Sequence[ChannelTask], until: Seqno | None) -> Window | None:
        """Return what to apply next, waiting for it; None: nothing is left, or the run is to end.

        It ends no later than where a limit that a seqno does not tell was looked for: its tasks need not watch for one.
        """
        while not (self._stop.is_set() or self._planned()):
            restart = restart_seqno(self._persist(self._rows))
            found = self._reader.range()
            upto, watch, looked = self._look_ahead(until)
            if upto is not None and restart >= upto:
                return None
            last = min(found.committed_seqno, looked) if watch is not None else found.committed_seqno
            if upto is not None:
                last = min(last, upto)
            if last > restart:
                return Window(
                    tasks=tuple(tasks),
                    log_first=found.first_seqno,
                    first=Seqno(restart + 1),
                    upto=last,
                    bytes=self._options.window_bytes,
                )
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + ALIVE_INTERVAL_S
                self._persist(self._beat)
            self._stop.wait(_TICK_S)
        return None

    def _again(self, context: SparkContext, why: str) -> None:
        """Count a failure of the job. Raises EngineError where submitting again is of no use."""
        target, name = self._open()
        rows = self._persist(self._rows)
        if not lives(context) or not self._resubmissions.again(row.applied_seqno for row in rows):
            remedy = "Nothing is lost: mend it and start again, it goes on from the positions in the target"
            raise EngineError(why=f"the job failed and got no further: {why}", remedy=remedy)
        restore_scratch()
        # A task that could not go on asks the others to stop, and when its job fails then, its reason is lost. It will
        # come again; but nobody may take that wish for the user's, and end as if all were well.
        if not (self._stop.is_set() or self._planning):
            self._persist(lambda: target.request_stop(pipeline=name, token=self._token, stop_at_seqno=None))
        logger.warning("the job failed and is submitted again pipeline=%s why=%s", name, why)
        self._notes.append(f"submitted again: {why}")

    def _watch(self, job: Job) -> None:
        """Stay until the job has ended: keep alive_at moving, report, pass on the wish to stop."""
        target, name = self._open()
        cancel_at: float | None = None
        while job.running:
            now = time.monotonic()
            try:
                if cancel_at is None and (self._stop.is_set() or self._planned()):
                    cancel_at = now if self._abort.is_set() else now + _STOP_WAIT_S
                    self._phase = "stopping"
                    target.request_stop(pipeline=name, token=self._token, stop_at_seqno=NO_SEQNO)
                if now >= self._next_beat:
                    self._next_beat = now + ALIVE_INTERVAL_S
                    self._beat()
            except (TransientTargetError, TargetUnavailableError) as exc:
                # The tasks give up in time, if it stays away; this connection only reports.
                logger.warning("target failed retry_in_s=%.1f why=%s", ALIVE_INTERVAL_S, exc)
                self._next_beat = now + ALIVE_INTERVAL_S
                if cancel_at is not None and self._phase == "stopping":
                    cancel_at = min(cancel_at, now + _CANCEL_WAIT_S)
                self._reconnect()
            except ReplacedError:
                job.thread.join(_REPLACED_WAIT_S)  # each task finds that out for itself
                raise
            if cancel_at is not None and self._abort.is_set():
                return  # the job is cancelled; what its tasks had begun is rolled back when the pipeline is released
            if cancel_at is not None and now >= cancel_at:
                logger.warning("tasks did not stop in time and are cancelled pipeline=%s", name)
                return
            job.thread.join(_TICK_S)

    def _planned(self) -> bool:
        """Whether another plan is wanted from now on; the newest of several counts."""
        while True:
            try:
                order = self._plans.get_nowait()
            except queue.Empty:
                return self._planning
            try:
                check_running(order.plan, self._context)
            except (ConfigError, EngineError) as exc:
                self._note(f"the plan stays as it is: {exc}")
                order.answer.set_exception(exc)
                continue
            self._orders.append(order)
            self._wanted = order.plan
            self._planning = True

    def _answer(self, plan: Run) -> None:
        """Tell who wanted this plan where all channels stood when it changed."""
        orders, self._orders = self._orders, []
        for order in orders:
            order.settle(restart_seqno(plan.rows))

    def _reconnect(self) -> None:
        try:
            self._open()[0].reconnect()
        except (TransientTargetError, TargetUnavailableError):
            pass  # the next call fails in the same way

    def _persist(self, call: Callable[[], _Result]) -> _Result:
        """Call the target, and again where it asked for that, as long as the tasks would."""
        deadline = time.monotonic() + self._options.retry_s
        while True:
            try:
                return call()
            except TransientTargetError as exc:
                if time.monotonic() > deadline:
                    raise TargetUnavailableError(where=self._open()[0].describe(), why=exc.why) from exc
                time.sleep(_TICK_S)
                self._reconnect()

    def _target_keep_alive(self) -> PipelineRow:
        target, name = self._open()
        return target.keep_alive(pipeline=name, token=self._token)

    # --- where it stands ---

    def _beat(self) -> ApplyStatus:
        """Show that we live, renew the hold, report."""
        if self._driving:
            self._target_keep_alive()
        self._note_slots()
        rows = self._rows()
        self._hold(rows)
        status = self._measure(rows)
        self._report(status)
        return status

    def _hold(self, rows: Sequence[ChannelRow]) -> None:
        """Tell the log how far the target is; and, when no task is left, whether it is anywhere."""
        begun = self._driving or not applied_nothing(rows, first=self._reader.range().first_seqno)
        applied = None if self._driving else max((row.applied_seqno for row in rows), default=NO_SEQNO)
        self._holding.renew(restart_seqno(rows), self._words(), begun=begun, applied=applied)

    def _words(self) -> str:
        return target_words(self._options.target, self._open()[0])

    def _note_slots(self) -> None:
        """Say when a cluster has lost so many executors that some channel stands still, and when they are back."""
        context = self._context
        if context is None or not self._driving or master_kind(context.master or "") is MasterKind.LOCAL:
            return
        slots, channels = count_slots(context), self._wanted.channels
        if (slots < channels) is not self._short and lives(context):
            self._short = slots < channels
            text = f"{slots} slots for {channels} channels: "
            text += "executors were lost, and some channels wait for others" if self._short else "all channels can run"
            self._notes.append(text)
            logger.warning("%s pipeline=%s", text, self._options.pipeline)

    def _measure(self, rows: Sequence[ChannelRow]) -> ApplyStatus:
        restart = restart_seqno(rows)
        committed = self._reader.range().committed_seqno
        following = self._reader.header(Seqno(restart + 1)) if restart < committed else None
        channels = tuple(
            ChannelStatus(
                channel=row.channel,
                applied_seqno=row.applied_seqno,
                event_id=row.event_id,
                tstamp=row.tstamp,
                counters=Counters.parse(row.stats),
            )
            for row in rows
        )
        total = sum((channel.counters for channel in channels), Counters())
        now = time.monotonic()
        before, done = self._last or (now, total)
        seconds = max(now - before, 1e-9)
        self._last = (now, total)
        return ApplyStatus(
            pipeline=self._options.pipeline,
            holder=self._holder,
            phase=self._phase,
            channels=channels,
            restart_seqno=restart,
            committed_seqno=committed,
            lag=lag(
                restart=restart,
                committed=committed,
                next_tstamp=None if following is None else following.tstamp,
                now_ms=self._clock.now_ms(),
            ),
            transactions_per_s=max(0, total.transactions - done.transactions) / seconds,
            changes_per_s=max(0, total.changes - done.changes) / seconds,
            total=total,
            notes=tuple(self._notes),
        )


def _check_drain(master: str, wanted: int, channels: int) -> None:
    """Raise ConfigError where a local master has too few slots for the channels, those of the plan before included."""
    try:
        check_slots(master, channels)
    except ConfigError as exc:
        if channels == wanted:
            raise
        why = f"the pipeline had {channels} channels, which first have to come to one seqno: {exc.why}; once is enough"
        raise ConfigError(option=exc.option, value=exc.value, why=why) from exc


def _most_telling(errors: Sequence[TranlogError]) -> TranlogError:
    """Return the error to show of several channels': one about data first, one that many may share last."""
    return min(errors, key=lambda error: (isinstance(error, TargetUnavailableError), not isinstance(error, LogError)))
