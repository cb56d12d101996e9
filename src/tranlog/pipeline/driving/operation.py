"""A pipeline under an operator: online, offline, online again, in one process.

Owns the pipeline between its runs, and carries out what `states` decides; `apply` is one run. The process's server
receives the operator's requests. The hard idea: runs happen in one thread, the main one, and requests come in from any.
A request only changes the state and sets an event. The run then ends by itself at the end of a target transaction, or
is aborted if the request is to end at once.
"""

from __future__ import annotations

import enum
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from tranlog.codecs.opening import open_readable
from tranlog.errors import EngineError, StateError, TranlogError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.driving.apply import ApplyResult, run_apply
from tranlog.pipeline.driving.replanning import PlanOrder, PlanOrders
from tranlog.pipeline.driving.report import ApplyStatus, no_report
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.limits import Limit, SeqnoRanges, limit_text
from tranlog.pipeline.rules.states import Happening, OperationState, PendingError, Refused, State, Wait, step
from tranlog.pipeline.spark.session import kill_jvm, stop_context

logger = logging.getLogger(__name__)

_TICK_S = 0.2
END_WAIT_S = 3.0
"""How long a process that is told to end waits for the target transactions under way; then they are rolled back."""
_ENGINE_WAIT_S = 4.0
"""How long after that Spark may take, before it is ended without a word."""
WAITERS_MAX = 64
"""How many may wait for something at a time; each is a thread of the server's."""


class OnError(enum.StrEnum):
    """What a process does when its pipeline cannot go on."""

    END = "end"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOrder:
    """An operator's options for one run, besides those of the process."""

    limit: Limit | None = None
    leave_out: SeqnoRanges = field(default_factory=SeqnoRanges)


class ReplanEnd(enum.StrEnum):
    """The result of a request for another plan."""

    UNCHANGED = "unchanged"
    """The plan is this one already."""
    CHANGED = "changed"
    """All channels stood at one seqno, and go on by the new one."""
    AT_ONLINE = "at the next online"
    """Nothing runs, or the run ended before."""
    DRAINING = "draining"
    """The channels were not at one seqno in time; it goes on to become the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The answer to that request. `seqno`: the position of all channels when the plan changed; -1 if it has not."""

    end: ReplanEnd
    before: ShardPlan
    after: ShardPlan
    seqno: int = NO_SEQNO


class RunPipeline(Protocol):
    """`run_apply`, or a substitute for it."""

    def __call__(
        self,
        options: ApplyOptions,
        *,
        stop: threading.Event,
        report: Callable[[ApplyStatus], None],
        abort: threading.Event,
        keep_spark: bool,
        plans: PlanOrders,
    ) -> ApplyResult: ...


class Operation:
    """One pipeline and its operator. Threads: `run` in one; everything else in any, `end` also in a signal's handler.

    `_changed` guards the state, the order, the pending error, the last report, the list of waits, and the wish for
    another plan; the options change under it too.
    """

    def __init__(
        self,
        options: ApplyOptions,
        *,
        on_error: OnError = OnError.END,
        report: Callable[[ApplyStatus], None] = no_report,
        run_pipeline: RunPipeline = run_apply,
        stop_engine: Callable[[], None] = stop_context,
    ) -> None:
        self._options = options
        self._on_error = on_error
        self._report = report
        self._run_pipeline = run_pipeline
        self._stop_engine = stop_engine
        self._changed = threading.Condition()
        self._state = State.START
        self._began_ms = self._since_ms = round(time.time() * 1000)
        self._order: OnlineOrder | None = None
        self._last_order = OnlineOrder()
        self._pending: PendingError | None = None
        self._status: ApplyStatus | None = None
        self._waits: dict[int, Wait] = {}
        self._next_wait = 0
        self._plans: PlanOrders = queue.SimpleQueue()
        self._replanning: tuple[PlanOrder, ApplyOptions] | None = None
        """The plan that the run is asked for, and the options with it."""
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._ended = threading.Event()
        self._over = threading.Event()

    # --- the thread that works ---

    def run(self, *, online: bool = True) -> ApplyResult | None:
        """Run until told to `end`, until the limit of the process's own options, or until an error that ends it.

        `online`: go online at once; else wait for an order. Returns the last run's result, None if none ended well.
        Raises the run's error, unless the options say that an error only takes the pipeline offline, or its operator
        was taking it offline, or had asked for it to go online and it has not been.
        """
        result: ApplyResult | None = None
        own = OnlineOrder()
        threading.Thread(target=self._hasten, name="hasten", daemon=True).start()
        try:
            self._happens(Happening.READY)
            if online:
                self._happens(Happening.ASKED_ONLINE)
                self._order = own
            while True:
                order = self._next_order()
                if order is None:
                    return result
                try:
                    result = self._run_once(order)
                except TranlogError as exc:
                    if self._ended.is_set() and isinstance(exc, EngineError):
                        return result  # Spark did not end in time, and was ended
                    asked = self._state is State.GOING_OFFLINE or (
                        self._state is State.GOING_ONLINE and order is not own
                    )
                    self._fail(exc)
                    if self._on_error is OnError.END and (self._ended.is_set() or not asked):
                        raise
                    logger.error("the pipeline is offline pipeline=%s why=%s", self._options.pipeline, exc)
                    continue
                asked = self._state is State.GOING_OFFLINE
                with self._changed:
                    self._happens(Happening.ENDED)
                    self._end_replanning()
                # At a limit that its operator has set, or told to rest, it stays for the next order.
                rest = order.limit is not None or asked or self._on_error is OnError.OFFLINE
                if self._ended.is_set() or not rest:
                    return result
        finally:
            self._stop_engine()
            self._over.set()
            with self._changed:
                self._ended.set()
                self._changed.notify_all()

    def _hasten(self) -> None:
        """See to it that the process ends soon when it is told to, whatever Spark does: who told it kills it else."""
        self._ended.wait()
        if not self._over.wait(END_WAIT_S):
            self._abort.set()
            if not self._over.wait(_ENGINE_WAIT_S):
                logger.warning("Spark does not end, and is killed pipeline=%s", self._options.pipeline)
                kill_jvm()

    def _next_order(self) -> OnlineOrder | None:
        while not self._ended.is_set():
            with self._changed:
                if self._order is not None:
                    order, self._order = self._order, None
                    return order
                self._changed.wait(_TICK_S)
        return None

    def _run_once(self, order: OnlineOrder) -> ApplyResult:
        options = replace(
            self._options,
            until_seqno=self._options.until_seqno if order.limit is None else None,
            limit=order.limit,
            leave_out=order.leave_out,
        )
        return self._run_pipeline(
            options, stop=self._stop, report=self._on_report, abort=self._abort, keep_spark=True, plans=self._plans
        )

    def _on_report(self, status: ApplyStatus) -> None:
        with self._changed:
            self._status = status
            if status.phase == "running":
                self._move(Happening.STUCK if status.stuck else Happening.RUNNING)
            self._changed.notify_all()
        self._report(status)

    def _fail(self, exc: TranlogError) -> None:
        seqno = getattr(exc, "seqno", None)
        seqno = seqno if isinstance(seqno, int) else NO_SEQNO
        pending = PendingError(
            type=type(exc).__name__, message=str(exc), seqno=seqno, event_id=self._event_id(Seqno(seqno))
        )
        with self._changed:
            self._pending = pending
            self._move(Happening.FAILED)
            self._end_replanning()
            self._changed.notify_all()

    def _event_id(self, seqno: Seqno) -> str:
        if seqno < 0:
            return ""
        try:
            with open_readable(self._options.log_dir, checksum=self._options.checksum) as reader:
                header = reader.header(seqno)
                return "" if header is None else header.event_id
        except TranlogError:  # the log may be what has failed
            return ""

    # --- states ---

    def _happens(self, happening: Happening) -> None:
        with self._changed:
            self._move(happening)
            self._changed.notify_all()

    def _move(self, happening: Happening) -> None:
        """Take a step; the caller holds `_changed`. Raises StateError for a wish that makes no sense now."""
        there = step(self._state, happening)
        if isinstance(there, Refused):
            raise StateError(
                pipeline=self._options.pipeline,
                state=there.state,
                asked=there.happening,
                why=there.why,
                remedy=there.remedy,
            )
        if there is not self._state:
            self._state = there
            self._since_ms = round(time.time() * 1000)
            applied = NO_SEQNO if self._status is None else self._status.restart_seqno
            logger.info(
                "The state changed. pipeline=%s state=%s applied_seqno=%d", self._options.pipeline, there, applied
            )

    # --- wishes, from any thread ---

    def end(self) -> None:
        """End the process's pipeline, after the target transactions that are under way, or without them: in seconds.

        Takes no lock.
        """
        self._ended.set()
        self._stop.set()

    @property
    def options(self) -> ApplyOptions:
        """The options with which the process was started, with the plan of later orders."""
        return self._options

    def online(self, order: OnlineOrder, *, before: Callable[[], None] | None = None) -> None:
        """Go online, with these orders. `before` is called first, while nothing runs: it may set a position.

        Raises StateError if the pipeline is not offline, and the errors of `before`; then nothing has changed.
        """
        with self._changed:
            if self._ended.is_set():
                raise StateError(
                    pipeline=self._options.pipeline,
                    state=self._state,
                    asked="asked to go online",
                    why="it is ending",
                    remedy="Start it anew with `tranlog apply`",
                )
            there = step(self._state, Happening.ASKED_ONLINE)
            if not isinstance(there, Refused) and before is not None:
                before()
                self._status = None  # nobody is to be told that what the report before says is applied
            self._move(Happening.ASKED_ONLINE)
            self._pending = None
            if self._status is not None:
                self._status = replace(self._status, troubles=())  # those of the run before
            self._stop.clear()
            self._abort.clear()
            if self._ended.is_set():  # a signal meanwhile
                self._stop.set()
            self._order = self._last_order = order
            self._changed.notify_all()

    def offline(self, *, immediate: bool = False) -> None:
        """Go offline after the target transactions under way, or, `immediate`, roll them back.

        The process stays. If the pipeline is offline because of an error, the error is cleared.
        """
        with self._changed:
            self._move(Happening.ASKED_OFFLINE)
            self._pending = None
            if not self._state.resting:
                if immediate:
                    self._abort.set()
                self._stop.set()
            self._changed.notify_all()

    def replan(self, change: Callable[[ApplyOptions], ApplyOptions], *, timeout_s: float) -> Replanned:
        """Have other options for the plan: a running pipeline drains and goes on by it, a resting one has it at its
        next online. `change` gives the options with it.

        Raises ConfigError for a plan that cannot work and EngineError where Spark has too few slots for it, and then
        nothing has changed; StateError where the wish before is not done yet.
        """
        with self._changed:
            before, wanted = self._options.shard_plan(), change(self._options)
            after = wanted.shard_plan()
            wanted.check()
            if self._replanning is not None and self._replanning[0].plan == after:
                order = self._replanning[0]  # asked for before, and on its way
            elif self._state.resting or self._ended.is_set():
                self._options = wanted
                return Replanned(
                    end=ReplanEnd.UNCHANGED if before == after else ReplanEnd.AT_ONLINE, before=before, after=after
                )
            elif before == after and self._replanning is None:
                self._options = wanted
                return Replanned(end=ReplanEnd.UNCHANGED, before=before, after=after)
            else:
                if self._replanning is not None:
                    raise StateError(
                        pipeline=self._options.pipeline,
                        state=self._state,
                        asked="asked for another plan",
                        why="the one that it was asked for before is on its way: the channels drain to one seqno",
                        remedy="Run `tranlog reload` again when it is done, or after `tranlog offline`",
                    )
                order = PlanOrder(after)
                self._replanning = order, wanted
                order.answer.add_done_callback(lambda answer: self._replanned(order, answer))
                self._plans.put(order)
        try:
            seqno = order.answer.result(timeout_s)
        except TimeoutError:
            return Replanned(end=ReplanEnd.DRAINING, before=before, after=after)
        if seqno is None:
            return Replanned(end=ReplanEnd.AT_ONLINE, before=before, after=after)
        return Replanned(end=ReplanEnd.CHANGED, before=before, after=after, seqno=seqno)

    def _replanned(self, order: PlanOrder, answer: Future[Seqno | None]) -> None:
        """Keep the options of a plan that was not refused, so that the next online has it too."""
        with self._changed:
            if self._replanning is None or self._replanning[0] is not order:
                return
            if answer.exception() is None:
                self._options = self._replanning[1]
            self._replanning = None

    def _end_replanning(self) -> None:
        """A run has ended: what it was asked for and did not come to is the plan at the next online."""
        if self._replanning is not None:
            self._replanning[0].settle(None)
        self._plans = queue.SimpleQueue()

    def wait(
        self,
        *,
        applied: int | None = None,
        state: State | None = None,
        timeout_s: float,
        gone: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until everything up to `applied` is in the target, and until `state`; whether it came in time.

        Ends early, with StateError, where it cannot come: the pipeline is offline by an error, or the process ends; and
        as if the time were up within a second after whoever wants to know is `gone`.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if len(self._waits) >= WAITERS_MAX:
                raise StateError(
                    pipeline=self._options.pipeline,
                    state=self._state,
                    asked="asked to wait",
                    why=f"{WAITERS_MAX} others wait already",
                    remedy="Run it again later",
                )
            number, self._next_wait = self._next_wait, self._next_wait + 1
            self._waits[number] = Wait(number=number, applied=applied, state=state, since_ms=round(time.time() * 1000))
            try:
                while not self._holds(applied, state):
                    if self._ended.is_set() or (
                        self._state is State.OFFLINE_ERROR and state is not State.OFFLINE_ERROR
                    ):
                        why = "the process ends" if self._pending is None else self._pending.message
                        raise StateError(
                            pipeline=self._options.pipeline,
                            state=self._state,
                            asked="asked to wait",
                            why=why,
                            remedy="Check `tranlog state`",
                        )
                    left = deadline - time.monotonic()
                    if left <= 0 or gone():
                        return False
                    self._changed.wait(min(left, 1.0))
                return True
            finally:
                del self._waits[number]

    def _holds(self, applied: int | None, state: State | None) -> bool:
        reached = NO_SEQNO if self._status is None else self._status.restart_seqno
        return (applied is None or reached >= applied) and (state is None or self._state is state)

    def state(self) -> OperationState:
        """Return where it stands."""
        with self._changed:
            status = self._status
            return OperationState(
                pipeline=self._options.pipeline,
                state=self._state,
                began_ms=self._began_ms,
                since_ms=self._since_ms,
                applied_seqno=NO_SEQNO if status is None else status.restart_seqno,
                committed_seqno=NO_SEQNO if status is None else status.committed_seqno,
                limit="" if self._state.resting else self._limit_text(),
                left_out=self._last_order.leave_out.text(),
                pending=self._pending,
                waits=tuple(self._waits.values()),
                troubles=() if status is None or self._state.resting else status.troubles,
                slots=0 if status is None or self._state.resting else status.slots,
                channels=self._options.shard_plan().channels if status is None else len(status.channels),
            )

    def _limit_text(self) -> str:
        if self._last_order.limit is not None:
            return limit_text(self._last_order.limit)
        until = self._options.until_seqno
        return "" if until is None else f"seqno {until}"
