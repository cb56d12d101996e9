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
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, assert_never

from tranlog.clock import SystemClock
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConfigError,
    EngineError,
    LogMissingError,
    PipelineHeldError,
    TargetAheadError,
    TargetPositionError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.applying.channel import ChannelTask, TaskEnd
from tranlog.pipeline.applying.holding import Holding, target_words
from tranlog.pipeline.applying.key_shards import key_notes
from tranlog.pipeline.applying.log_mark import log_mark
from tranlog.pipeline.applying.tables_ahead import check_tables
from tranlog.pipeline.driving.limit_search import LimitSearch
from tranlog.pipeline.driving.replanning import PlanOrder, PlanOrders, check_running
from tranlog.pipeline.driving.tending import CANCEL_WAIT_S, TRY_S, Tending
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import Parallelization, ShardPlan
from tranlog.pipeline.rules.limits import Watched
from tranlog.pipeline.rules.progress import (
    Ahead,
    Counters,
    Drain,
    Held,
    Lag,
    LastError,
    Lost,
    Purged,
    Run,
    applied_nothing,
    lag,
    plan_start,
    restart_seqno,
    totals,
    with_error,
)
from tranlog.pipeline.rules.troubles import DRIVER, Trouble, Troubles
from tranlog.pipeline.spark.cluster import MasterKind, master_kind, too_few_slots
from tranlog.pipeline.spark.engine import LostSessionError, SlotWatch, start_engine, wait_for_slots
from tranlog.pipeline.spark.job import Jobs, Submit, long_running, windowed
from tranlog.pipeline.spark.session import (
    check_pyspark,
    check_slots,
    find_java,
    lives,
    stop_context,
)
from tranlog.pipeline.spark.window import Window
from tranlog.target.options import open_target
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target
from tranlog.tungsten.reading.translated import open_readable
from tranlog.types import Datetime, datetime_text

if TYPE_CHECKING:
    from tranlog.pipeline.spark.session import SparkContext

logger = logging.getLogger(__name__)

ALIVE_INTERVAL_S = 1.0
"""How often a driver moves alive_at."""
ALIVE_WATCH_S = 2.5
"""How long alive_at must stand still before a driver counts as gone."""
ALIVE_LOOK_S = 1.3
"""How long to look before Spark is started: a driver that is well moves it within this time."""
_TICK_S = 0.05
_START_TICK_S = 0.2
"""How often a driver looks whether all channels have been claimed."""
_ABORT_WAIT_S = 1.0
_Result = TypeVar("_Result")


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
    """Where a pipeline stands, about once a second. Rates are per second, since the report before.

    `phase`: starting, running (all channels of the wanted plan have been claimed), draining, stopping. `troubles`: who
    cannot use the target. `slots`: how many tasks Spark can run at a time.
    """

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
    troubles: tuple[Trouble, ...] = ()
    slots: int = 0

    @property
    def stuck(self) -> bool:
        """Whether some channel cannot go on."""
        return bool(self.troubles) or self.slots < len(self.channels)


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
        self._given_context = context is not None
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
        self._holding = Holding(reader, options.pipeline, disk=OsDisk(), clock=self._clock, note=self.note)
        self._channels = 0
        """How many the pipeline has at the target, as we have written them."""
        self._limit = LimitSearch(reader, options.limit)
        self._slots = SlotWatch(wait_s=options.engine.slots_wait_s)
        self._tendings: list[Tending] = []
        self._troubles = Troubles()
        self._seen: Sequence[ChannelRow] = ()
        """The channels' rows as last read."""
        self._taken_tokens: dict[int, int] = {}
        """The channels' tokens before any task of the plan had claimed one."""
        self._claimed = False
        """Whether all channels of the plan have been; in memory, also while there is nothing to apply."""
        self._began = False
        """Whether they ever were, in this run."""

    def run(self) -> ApplyResult:
        """Take the pipeline, run it, give it back."""
        began = time.monotonic()
        options = self._options
        until = self._until()
        self._target = open_target(options.target)
        # Refuse before Spark is started, where a first look is enough; starting it is part of a longer one.
        looked_at = time.monotonic()
        row = self.persist(lambda: self._open()[0].positions.read_pipeline(options.pipeline))
        self._token = 0 if row is None else row.token
        first = self._decide(alive=self.persist(lambda: self._moves(row, looked_at + ALIVE_LOOK_S)))
        self.persist(lambda: check_tables(self._open()[0], self._reader, options.filters, restart_seqno(first.rows)))
        context = self._start_spark(first)
        self._decide(alive=self.persist(lambda: self._moves(row, looked_at + ALIVE_WATCH_S)))
        self.persist(lambda: self._open()[0].positions.ensure_tables())
        end = TaskEnd.STOPPED
        try:
            while not self._stop.is_set():
                self._planning = False
                plan = self.persist(self._take)
                self._leave_out()
                check_slots(context.master or "", plan.plan.channels)
                try:
                    if isinstance(plan, Run):
                        self._phase = "starting"
                        self._answer(plan)
                        end = self._run(context, plan.plan, until)
                        if self._planning and end is TaskEnd.STOPPED:
                            continue
                        break
                    # A user's limit in front of the drain's wins; then the new plan waits for the next start.
                    self._phase = "draining"
                    end = self._run(context, plan.plan, plan.upto if until is None else min(until, plan.upto))
                except LostSessionError:
                    context = self._new_session(context, plan)
                    continue
                if self._planning and end is TaskEnd.STOPPED:
                    continue
                if end is TaskEnd.STOPPED or restart_seqno(self.persist(self._rows)) < plan.upto:
                    break
            status = self.persist(self._beat)
        except TranlogError as exc:
            self._release(exc)
            raise
        finally:
            self._release()
        return ApplyResult(
            end=end,
            status=status,
            resubmissions=sum(one.resubmissions for one in self._tendings),
            seconds=time.monotonic() - began,
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
        channels = max(self._wanted.channels, plan.plan.channels)
        if self._context is None:
            self._context = start_engine(
                self._options, wanted=self._wanted.channels, channels=channels, keep_spark=self._keep_spark
            )
        wait_for_slots(
            self._context, self._options, wanted=self._wanted.channels, channels=channels, going_on=self._going_on
        )
        return self._context

    def _going_on(self) -> bool:
        """Show that we live, while Spark is waited for; return whether to go on waiting."""
        if self._driving and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + ALIVE_INTERVAL_S
            self.persist(self.keep_alive)
        return not self._stop.is_set()

    def _new_session(self, context: SparkContext, plan: Run | Drain) -> SparkContext:
        """Leave a cluster session that has no slots any more for another. Raises EngineError where that has none."""
        if self._given_context:
            raise too_few_slots(context.master or "", slots=0, channels=plan.plan.channels)
        self.note("the cluster has had no slot for too long: Spark was started again")
        stop_context()
        self._context = None
        self._slots = SlotWatch(wait_s=self._options.engine.slots_wait_s)
        return self._start_spark(plan)

    def _moves(self, row: PipelineRow | None, until: float) -> bool:
        """Whether another driver moves what it was in `row`, looking once and then until the time has come."""
        target, name = self._open()
        if row is None or row.holder == NOBODY or self._options.take_over:
            return False
        while True:
            now = target.positions.read_pipeline(name)
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
        rows = target.positions.read_channels(name)
        there = {row.channel for row in rows}
        if self._driving and not there >= set(range(self._channels)):
            gone = ", ".join(str(channel) for channel in range(self._channels) if channel not in there)
            why = f"the rows of its channels {gone} were removed from tranlog_channel while it ran"
            raise TargetPositionError(where=target.where, pipeline=name, why=why)
        return rows

    def _decide(self, *, alive: bool) -> Run | Drain:
        """Read what the target holds, and decide. Raises what a refusal stands for."""
        target, name = self._open()
        found = self._reader.range()
        if found.first_seqno == NO_SEQNO:
            raise LogMissingError(path=self._options.log_dir, why="it holds no transaction yet")
        start = self._options.start_seqno
        plan = plan_start(
            pipeline=target.positions.read_pipeline(name),
            rows=target.positions.read_channels(name),
            wanted=self._wanted,
            start=None if start is None else Seqno(start),
            first=found.first_seqno,
            header_at=self._reader.header,
            alive=alive,
            take_over=self._options.take_over,
            shards=len(target.positions.read_assignment(name)),
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
                raise TargetPositionError(where=target.where, pipeline=name, why=why, upto=upto, remedy=remedy)
            case _:
                assert_never(plan)

    def _take(self) -> Run | Drain:
        """Become the pipeline's driver, in two steps: first shut out all earlier tasks, then plan on what stands still.

        Positions that were read while an earlier task could still move them must never be written back.
        """
        target, name = self._open()
        row = target.positions.read_pipeline(name)
        if row is not None:
            # After a lost connection it may be our own first step that we see.
            known = row.token == self._token or row.holder == (self._holder if self._tried else NOBODY)
            if not known and not self._options.take_over:
                raise PipelineHeldError(pipeline=name, holder=row.holder)  # somebody else was faster
            self._tried = True
            self._token = target.positions.take(
                pipeline=name,
                expected_token=row.token,
                holder=self._holder,
                channels=row.channels,
                shard_rule=row.shard_rule,
                rows=None,
                keep_assignment=True,
            )
        plan = self._decide(alive=False)
        self._token = target.positions.take(
            pipeline=name,
            expected_token=plan.expected_token,
            holder=self._holder,
            channels=plan.plan.channels,
            shard_rule=plan.plan.text(),
            rows=with_error(plan.rows, None),
            keep_assignment=not isinstance(plan, Run) or plan.keep_assignment,
        )
        self._driving = True
        self._channels = len(plan.rows)
        self._holding.begin(restart_seqno(plan.rows), self._words())
        for note in plan.notes:
            self.note(note)
        for note in key_notes(plan.plan, self._reader):
            self.note(note, level=logging.WARNING)
        return plan

    def _release(self, error: TranlogError | None = None) -> None:
        """Leave the pipeline to nobody: it also ends whatever task of ours might still run.

        `error`: why the run ends; kept beside channel 0's position until the next run's first.
        """
        if not self._driving:
            return
        target, name = self._open()
        try:
            target.reconnect()
            row = target.positions.read_pipeline(name)
            if row is not None and row.token == self._token:

                def leave(token: int, rows: Sequence[ChannelRow] | None) -> int:
                    return target.positions.take(
                        pipeline=name,
                        expected_token=token,
                        holder=NOBODY,
                        channels=row.channels,
                        shard_rule=row.shard_rule,
                        rows=rows,
                        keep_assignment=True,
                    )

                token, rows = leave(self._token, None), self._rows()
                if error is not None:
                    leave(token, with_error(rows, LastError.of(error, at_ms=self.now_ms())))
                self._driving = False
                self._hold(rows)
        except TranlogError as exc:
            logger.warning("could not give the pipeline back pipeline=%s why=%s", name, exc)
        self._driving = False

    def _leave_out(self) -> None:
        """Record what is not to be applied, before any task of ours can come to it."""
        target, name = self._open()
        wanted = self._options.leave_out
        if wanted:
            self.persist(lambda: target.positions.leave_out(pipeline=name, token=self._token, ranges=wanted.ranges))
            self.note(f"leaves out seqno {wanted.text()}, as asked for")

    def now_ms(self) -> int:
        """Return the wall clock's time."""
        return self._clock.now_ms()

    def note(self, note: str, *, level: int = logging.INFO) -> None:
        """Add a note to what is reported, and say it at this level, once."""
        if note not in self._notes:
            self._notes.append(note)
            logger.log(level, "%s pipeline=%s", note, self._options.pipeline)

    # --- the job ---

    def _run(self, context: SparkContext, plan: ShardPlan, until: Seqno | None) -> TaskEnd:
        """Run one plan to its end, submitting channels again while that helps. Raises what cannot be cured."""
        in_memory = self._options.parallelization is Parallelization.MEMORY
        local = master_kind(context.master or "") is MasterKind.LOCAL
        self._seen = self.persist(self._rows)
        self._taken_tokens = {row.channel: row.token for row in self._seen}
        self._claimed = False
        tending = Tending(self, self._troubles, channels=plan.channels, resubmit=self._options.resubmit)
        self._tendings.append(tending)
        number = 0
        while True:
            number += 1
            if in_memory:
                window = self._window([self._task(plan, n, until, local=local) for n in range(plan.channels)], until)
                if window is None:
                    return TaskEnd.STOPPED if self._stop.is_set() or self._planning else TaskEnd.LIMIT
                submit = windowed(window)
            else:
                window = None

                def submit(channel: int) -> Submit:
                    upto, watch, watch_after = self._look_ahead(until)
                    task = self._task(plan, channel, upto, local=local, watch=watch, watch_after=watch_after)
                    return long_running([task])

            jobs = Jobs(context, f"{self._options.pipeline}-{self._token}-{number}")
            try:
                end = tending.tend(jobs, submit)
            finally:
                jobs.cancel(_ABORT_WAIT_S if self._abort.is_set() else CANCEL_WAIT_S)
            if window is None or end is not TaskEnd.LIMIT:
                return end

    def _task(
        self,
        plan: ShardPlan,
        channel: int,
        upto: Seqno | None,
        *,
        local: bool,
        watch: Watched | None = None,
        watch_after: Seqno = NO_SEQNO,
    ) -> ChannelTask:
        options = self._options
        return ChannelTask(
            pipeline=options.pipeline,
            driver_token=self._token,
            channel=channel,
            plan=plan,
            log_dir=os.path.abspath(options.log_dir),
            log_mark=None if local else log_mark(self._reader),  # what it marks may have been purged meanwhile
            target=options.target.absolute(),
            until=upto,
            max_offline_interval_s=options.max_offline_interval_s,
            bounds=options.group,
            sync_interval_s=options.sync_interval_s,
            idle_every=options.idle_every,
            retry_s=min(options.retry_s, TRY_S),
            checksum=options.checksum,
            watch=watch,
            watch_after=watch_after,
            filters=options.filters,
        )

    def _look_ahead(self, until: Seqno | None) -> tuple[Seqno | None, Watched | None, Seqno]:
        """Return `LimitSearch.look_ahead`'s answer, from where the slowest channel stands."""
        return self._limit.look_ahead(
            until,
            lambda: restart_seqno(self.persist(self._rows)),
            stop=self._stop,
            keep_alive=lambda: self.persist(self.keep_alive),
            every_s=ALIVE_INTERVAL_S,
        )

    def _window(self, tasks: Sequence[ChannelTask], until: Seqno | None) -> Window | None:
        """Return what to apply next, waiting for it; None: nothing is left, or the run is to end.

        It ends no later than where a limit that a seqno does not tell was looked for: its tasks need not watch for one.
        """
        while not (self._stop.is_set() or self._planned()):
            restart = restart_seqno(self.persist(self._rows))
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
            self._claimed = self._began = True  # none of them has anything to do
            self.persist(self.beat_if_due)
            self._stop.wait(_TICK_S)
        return None

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
                self.note(f"the plan stays as it is: {exc}")
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

    def reconnect(self) -> None:
        try:
            self._open()[0].reconnect()
        except (TransientTargetError, TargetUnavailableError):
            pass  # the next call fails in the same way

    def patience(self) -> float | None:
        """Return how long a trouble with the target may last; None: for ever."""
        return self._options.retry_s if self._options.bounded or not self._began else self._options.give_up_s

    def persist(self, call: Callable[[], _Result]) -> _Result:
        """Call the target, and again where it failed, as long as the channels would, until a stop at most."""
        began, pause = time.monotonic(), _TICK_S
        while True:
            try:
                result = call()
            except (TransientTargetError, TargetUnavailableError) as exc:
                patience, now = self.patience(), time.monotonic()
                over = self._stop.is_set() if patience is None else now - began > patience
                if over or (not self._began and isinstance(exc, TargetUnavailableError)):
                    if isinstance(exc, TargetUnavailableError):
                        raise
                    raise TargetUnavailableError(where=self._open()[0].where, why=exc.why) from exc
                if now - began > TRY_S:
                    self.cannot(exc)
                self._stop.wait(pause) if self._began else time.sleep(pause)
                pause = min(pause * 2, ALIVE_INTERVAL_S)
                self.reconnect()
            else:
                self._troubles.over(DRIVER)
                return result

    def cannot(self, exc: TransientTargetError | TargetUnavailableError) -> None:
        """Tell that the driver cannot use the target."""
        self._troubles.failed(
            DRIVER, exc.why, applied=NO_SEQNO, failing_s=0.0, now_s=time.monotonic(), now_ms=self._clock.now_ms()
        )
        self._troubles.trying(DRIVER, ())
        if self._driving:
            self._report(self._measure(self._seen))

    def keep_alive(self) -> PipelineRow:
        target, name = self._open()
        return target.positions.keep_alive(pipeline=name, token=self._token)

    # --- what tending asks ---

    @property
    def ending(self) -> bool:
        """Whether the run is to end, or to go on by another plan."""
        return self._stop.is_set() or self._planned()

    @property
    def aborting(self) -> bool:
        """Whether it is to end at once."""
        return self._abort.is_set()

    @property
    def seen(self) -> Sequence[ChannelRow]:
        """The channels' rows as last read."""
        return self._seen

    def read_rows(self) -> Sequence[ChannelRow]:
        """Read them, again where the target failed, and see to it that nobody else is the driver."""
        self.persist(self.keep_alive)
        self._seen = self.persist(self._rows)
        return self._seen

    def request_stop(self, upto: Seqno | None) -> None:
        """Tell the tasks to go up to a seqno, or to run on."""
        target, name = self._open()
        if upto is not None and self.ending:
            self._phase = "stopping"
        target.positions.request_stop(pipeline=name, token=self._token, stop_at_seqno=upto)

    def lives(self) -> bool:
        """Whether Spark can still run a job. Raises LostSessionError where another session may do."""
        assert self._context is not None
        alive = lives(self._context)
        if not alive and not self._given_context and master_kind(self._context.master or "") is not MasterKind.LOCAL:
            raise LostSessionError  # a cluster's master may have been gone
        return alive

    def beat_if_due(self) -> bool:
        """Beat, about once a second, more often until all channels are claimed; return whether it was time."""
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + (ALIVE_INTERVAL_S if self._claimed else min(_START_TICK_S, ALIVE_INTERVAL_S))
        self._beat()
        return True

    # --- where it stands ---

    def _beat(self) -> ApplyStatus:
        """Show that we live, renew the hold, report."""
        if self._driving:
            self.keep_alive()
        if self._driving and self._context is not None:
            note = self._slots.look(self._context, channels=self._wanted.channels)
            if note:
                self._notes.append(note)
        rows = self._seen = self._rows()
        self._troubles.look(rows, self._reader.range().committed_seqno)
        if self._driving and all(row.token > self._taken_tokens.get(row.channel, row.token) for row in rows):
            self._claimed = self._began = True
        if self._claimed and self._phase == "starting":
            self._phase = "running"
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

    def _measure(self, rows: Sequence[ChannelRow]) -> ApplyStatus:
        restart = restart_seqno(rows)
        committed = self._reader.range().committed_seqno
        following = self._reader.header(Seqno(restart + 1)) if restart < committed else None
        next_tstamp = None if following is None else following.tstamp
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
        total = totals(rows)
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
            lag=lag(restart=restart, committed=committed, next_tstamp=next_tstamp, now_ms=self._clock.now_ms()),
            transactions_per_s=max(0, total.transactions - done.transactions) / seconds,
            changes_per_s=max(0, total.changes - done.changes) / seconds,
            total=total,
            notes=tuple(self._notes),
            troubles=self._troubles.told(),
            slots=self._slots.slots,
        )
