"""The driver of a pipeline: take it at the target, run a Spark job for each channel, watch, report.

Owns one run of `tranlog apply`. `progress` decides how it starts, `channel` applies; Spark only starts the tasks and
reports their end. The hard idea: no state is kept only in the driver. Positions, plan, tokens and the request to stop
are rows in the target. So a driver may die at any moment, and the next one continues from there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tranlog.clock import SystemClock
from tranlog.errors import TranlogError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.applying.key_shards import key_notes
from tranlog.pipeline.applying.log_mark import log_mark
from tranlog.pipeline.applying.tables_ahead import check_tables, wanting
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd
from tranlog.pipeline.driving.lease import ALIVE_LOOK_S, ALIVE_WATCH_S, Lease, holder_name, open_log
from tranlog.pipeline.driving.limit_search import LimitSearch
from tranlog.pipeline.driving.persistence import TRY_S, Persistence
from tranlog.pipeline.driving.replanning import PlanOrders, Replanning
from tranlog.pipeline.driving.report import ApplyStatus, Report, no_report
from tranlog.pipeline.driving.tending import CANCEL_WAIT_S, Tending
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import Parallelization, ShardPlan
from tranlog.pipeline.rules.limits import Watched
from tranlog.pipeline.rules.progress import Drain, Run, restart_seqno
from tranlog.pipeline.spark.cluster import EngineOptions, MasterKind, master_kind
from tranlog.pipeline.spark.engine import Engine, LostSessionError
from tranlog.pipeline.spark.job import Jobs, Submit, long_running, windowed
from tranlog.pipeline.spark.session import check_pyspark, check_slots, find_java
from tranlog.pipeline.spark.window import Window
from tranlog.target.options import open_target
from tranlog.target.target import ChannelRow, Target

if TYPE_CHECKING:
    from tranlog.pipeline.spark.session import SparkContext, SparkSession

ALIVE_INTERVAL_S = 1.0
"""How often a driver moves alive_at."""
_TICK_S = 0.05
_START_TICK_S = 0.2
"""How often a driver looks whether all channels have been claimed."""
_ABORT_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """How a run ended, other than by an exception: `end` is LIMIT or STOPPED."""

    end: TaskEnd
    status: ApplyStatus
    resubmissions: int
    seconds: float


def run_apply(
    options: ApplyOptions,
    *,
    stop: threading.Event | None = None,
    report: Callable[[ApplyStatus], None] = no_report,
    spark: SparkContext | SparkSession | None = None,
    abort: threading.Event | None = None,
    keep_spark: bool = False,
    plans: PlanOrders | None = None,
) -> ApplyResult:
    """Run a pipeline until its limit, until `stop` is set, or until an error ends it.

    Ends: with `stop`, after the current target transactions; with `abort` set before it, at once: they are rolled back.
    `report` is called about once a second, in this thread. `spark`: run there instead of starting one; it is left
    running, as is one of the program's own with the run's master. `keep_spark`: leave the started one running; the next
    run uses it, or starts another one if it needs more slots. `plans`: an order put there while the pipeline runs
    changes its plan: the channels stop, drain to one seqno by the old plan, and continue by the new one; then the order
    is answered. A plan that cannot work is refused, in the answer and in a note, and the old one continues. If the run
    ends first, the order is not answered.

    Raises ConfigError, EngineError, PipelineHeldError, ReplacedError, TargetAheadError and TargetPositionError (exit
    code 3), PurgedError, and the errors that end a task: ConflictError, TargetTableError, DdlStopError, FilterError,
    TargetUnavailableError, CorruptRecordError and other LogErrors.
    """
    options.check()
    Chain(options.filters)  # whose functions can be imported
    find_java()
    check_pyspark()
    with (
        closing(open_log(options)) as reader,
        closing(Engine(options, spark, keep=keep_spark)) as engine,
        closing(open_target(options.target)) as target,
        closing(
            _Driver(
                options,
                reader,
                target,
                engine,
                stop=stop or threading.Event(),
                abort=abort or threading.Event(),
                report=report,
                plans=plans,
            )
        ) as driver,
    ):
        return driver.run()


class _Driver:
    """One run. Threads: one, beside those of the jobs."""

    def __init__(
        self,
        options: ApplyOptions,
        reader: ReadableLog,
        target: Target,
        engine: Engine,
        *,
        stop: threading.Event,
        abort: threading.Event,
        report: Callable[[ApplyStatus], None],
        plans: PlanOrders | None,
    ) -> None:
        self._options = options
        # No secret travels that a task does not need.
        self._task_options = replace(
            options,
            log_dir=os.path.abspath(options.log_dir),
            target=options.target.absolute(),
            retry_s=min(options.retry_s, TRY_S),
            engine=EngineOptions(),
        )
        self._reader = reader
        self._target = target
        self._engine = engine
        self._stop = stop
        self._abort = abort
        self._clock = clock = SystemClock()
        self._persistence = Persistence(options, target, clock=clock, stop=stop, tell=self._tell_if_held)
        self.persist = self._persistence.persist
        holder = holder_name(clock.now_ms())
        self._report = Report(report, reader, pipeline=options.pipeline, holder=holder, clock=clock)
        self._lease = Lease(options, target, reader, holder=holder, clock=clock, note=self._report.note)
        self._replanning = Replanning(options.shard_plan(), plans, note=self._report.note)
        self._limit = LimitSearch(
            reader,
            options.limit,
            restart=self._restart,
            keep_alive=lambda: self.persist(self._lease.keep_alive),
            every_s=ALIVE_INTERVAL_S,
            stop=stop,
        )
        self._tendings: list[Tending] = []
        self._next_beat = 0.0
        self.seen: Sequence[ChannelRow] = ()
        """The channels' rows as last read."""
        self._taken_tokens: dict[int, int] = {}
        """The channels' tokens before any task of the plan had claimed one."""
        self._claimed = False
        """Whether all channels of the plan have been; in memory, also while there is nothing to apply."""

    def run(self) -> ApplyResult:
        """Take the pipeline, run it, give it back."""
        began = self._clock.monotonic()
        lease, replanning = self._lease, self._replanning
        until = self._until()
        # Refuse before Spark is started, where a first look is enough; starting it is part of a longer one.
        looked_at = self._clock.monotonic()
        row = self.persist(lease.find)
        alive = self.persist(lambda: lease.moves(row, looked_at + ALIVE_LOOK_S, self._stop))
        first = lease.decide(replanning.wanted, alive=alive)
        restart = restart_seqno(first.rows)
        self.persist(lambda: self._check_tables(restart, until))
        self._start_spark(first)
        alive = self.persist(lambda: lease.moves(row, looked_at + ALIVE_WATCH_S, self._stop))
        lease.decide(replanning.wanted, alive=alive)
        self.persist(self._target.positions.ensure_tables)
        end = TaskEnd.STOPPED
        try:
            while not self._stop.is_set():
                replanning.due = False
                plan = self._take()
                try:
                    if isinstance(plan, Run):
                        self._report.phase = "starting"
                        replanning.answer(restart_seqno(plan.rows))
                        end = self._run(plan.plan, until)
                    else:
                        # A user's limit before the drain's wins; then the new plan waits for the next start.
                        self._report.phase = "draining"
                        end = self._run(plan.plan, plan.upto if until is None else min(until, plan.upto))
                except LostSessionError:
                    self._engine.leave(channels=plan.plan.channels)
                    self._report.note("the cluster has had no slot for too long: Spark was started again")
                    self._start_spark(plan)
                    continue
                if replanning.due and end is TaskEnd.STOPPED:
                    continue
                if isinstance(plan, Run) or end is TaskEnd.STOPPED or self._restart() < plan.upto:
                    break
                end = TaskEnd.STOPPED  # by a stop before the next plan runs: the limit was the drain's
            status = self.persist(self._beat)
        except TranlogError as exc:
            self.seen, self._report.phase = lease.release(exc) or self.seen, "stopping"
            with suppress(TranlogError):  # the log may be what has failed
                self._tell()  # the last look may be a second old
            raise
        finally:
            lease.release()
        return ApplyResult(
            end=end,
            status=status,
            resubmissions=sum(one.resubmissions for one in self._tendings),
            seconds=self._clock.monotonic() - began,
        )

    def close(self) -> None:
        """Let go of the hold on the log."""
        self._lease.close()

    # --- before the jobs ---

    def _check_tables(self, restart: Seqno, until: Seqno | None) -> None:
        """Refuse tables of the next transactions that cannot take their rows. Raises TargetTableError."""
        target, reader, options = self._target, self._reader, self._options
        check_tables(target, reader, options.filters, restart)
        left_out = [*options.leave_out.ranges, *target.positions.read_left_out(options.pipeline)]
        name, filters = options.pipeline, options.filters
        for error in wanting(target, reader, filters, restart, pipeline=name, until=until, left_out=left_out):
            raise error

    def _until(self) -> Seqno | None:
        until = self._options.until_seqno
        if until is None or isinstance(until, int):
            return None if until is None else Seqno(until)
        return self._reader.range().committed_seqno

    def _start_spark(self, plan: Run | Drain) -> None:
        """Start Spark with a slot for each channel, those of an earlier plan among them, which may have to drain."""
        wanted = self._replanning.wanted.channels
        self._engine.start(wanted=wanted, channels=max(wanted, plan.plan.channels), going_on=self._going_on)

    def _going_on(self) -> bool:
        """Show that we live, while Spark is waited for; return whether to go on waiting."""
        if self._lease.held and self._clock.monotonic() >= self._next_beat:
            self._next_beat = self._clock.monotonic() + ALIVE_INTERVAL_S
            self.persist(self._lease.keep_alive)
        return not self._stop.is_set()

    def _take(self) -> Run | Drain:
        """Take the pipeline, and record what is not to be applied."""
        plan = self.persist(lambda: self._lease.take(self._replanning.wanted))
        for note in plan.notes:
            self._report.note(note)
        for note in key_notes(plan.plan, self._reader):
            self._report.note(note, level=logging.WARNING)
        left_out = self._options.leave_out
        if left_out:
            self.persist(lambda: self._lease.leave_out(left_out))
            self._report.note(f"leaves out seqno {left_out.text()}, as asked for")
        assert self._engine.context is not None
        check_slots(self._engine.context.master or "", plan.plan.channels)
        return plan

    # --- the jobs ---

    def _run(self, plan: ShardPlan, until: Seqno | None) -> TaskEnd:
        """Run one plan to its end, submitting channels again while that helps. Raises what cannot be cured."""
        context = self._engine.context
        assert context is not None
        local = master_kind(context.master or "") is MasterKind.LOCAL
        self.seen = self.persist(self._lease.rows)
        self._taken_tokens = {row.channel: row.token for row in self.seen}
        self._claimed = False
        tending = Tending(
            self,
            self._engine,
            self._persistence,
            self._report,
            self._clock,
            channels=plan.channels,
            resubmit=self._options.resubmit,
        )
        self._tendings.append(tending)
        number = 0
        while True:
            number += 1
            if self._options.parallelization is Parallelization.MEMORY:
                window = self._window([self._task(plan, n, until, local=local) for n in range(plan.channels)], until)
                if window is None:
                    return TaskEnd.STOPPED if self._stop.is_set() or self._replanning.due else TaskEnd.LIMIT
                submit = windowed(window)
            else:
                window = None

                def submit(channel: int) -> Submit:
                    upto, watch, watch_after = self._limit.look_ahead(until)
                    task = self._task(plan, channel, upto, local=local, watch=watch, watch_after=watch_after)
                    return long_running([task])

            jobs = Jobs(context, f"{self._options.pipeline}-{self._lease.token}-{number}")
            try:
                end = tending.tend(jobs, submit)
            finally:
                jobs.cancel(_ABORT_WAIT_S if self.aborting else CANCEL_WAIT_S)
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
        return ChannelTask(
            options=self._task_options,
            driver_token=self._lease.token,
            channel=channel,
            plan=plan,
            until=upto,
            watch=watch,
            watch_after=watch_after,
            log_mark=None if local else log_mark(self._reader),  # what it marks may have been purged meanwhile
        )

    def _window(self, tasks: Sequence[ChannelTask], until: Seqno | None) -> Window | None:
        """Return what to apply next, waiting for it; None: nothing is left, or the run is to end.

        It ends no later than where a limit that a seqno does not tell was looked for: its tasks need not watch for one.
        """
        while not self.ending:
            restart = self._restart()
            found = self._reader.range()
            upto, watch, looked = self._limit.look_ahead(until)
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
            self._claimed = self._persistence.began = True  # none of them has anything to do
            self.persist(self.beat_if_due)
            self._stop.wait(_TICK_S)
        return None

    # --- at the target ---

    def _restart(self) -> Seqno:
        return restart_seqno(self.persist(self._lease.rows))

    # --- what tending asks ---

    @property
    def ending(self) -> bool:
        """Whether the run is to end, or to go on by another plan."""
        return self._stop.is_set() or self._replanning.look(self._engine.context)

    @property
    def aborting(self) -> bool:
        """Whether it is to end at once."""
        return self._abort.is_set()

    def read_rows(self) -> Sequence[ChannelRow]:
        """Read the channels' rows, again where the target failed. Raises ReplacedError where another is the driver."""
        self.persist(self._lease.keep_alive)
        self.seen = self.persist(self._lease.rows)
        return self.seen

    def request_stop(self, upto: Seqno | None) -> None:
        """Tell the tasks to stop at a seqno, or to run without a limit."""
        if upto is not None and self.ending:
            self._report.phase = "stopping"
        self._lease.request_stop(upto)

    def beat_if_due(self) -> bool:
        """Beat, about once a second, more often until all channels are claimed; return whether it was time."""
        now = self._clock.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + (ALIVE_INTERVAL_S if self._claimed else min(_START_TICK_S, ALIVE_INTERVAL_S))
        self._beat()
        return True

    def _beat(self) -> ApplyStatus:
        """Show that we live, renew the hold, report."""
        lease, report = self._lease, self._report
        if lease.held:
            lease.keep_alive()
            note = self._engine.look(channels=self._replanning.wanted.channels)
            if note:
                report.notes.append(note)
        rows = self.seen = lease.rows()
        self._persistence.troubles.look(rows, self._reader.range().committed_seqno)
        if lease.held and all(row.token > self._taken_tokens.get(row.channel, row.token) for row in rows):
            self._claimed = self._persistence.began = True
        if self._claimed and report.phase == "starting":
            report.phase = "running"
        lease.hold(rows)
        return self._tell()

    def _tell_if_held(self) -> None:
        if self._lease.held:
            self._tell()

    def _tell(self) -> ApplyStatus:
        return self._report.tell(self.seen, troubles=self._persistence.troubles.told(), slots=self._engine.slots)
