"""Keeping each channel running: submit its job, pause it if the target fails, submit it again.

Owns the loop between a run's first job and its last. Leaves taking the pipeline, plans and reports to `apply`, pauses
to `troubles`, threads to `job`. The hard idea: a failure of one channel does not end another. A channel that cannot use
the target waits while the others continue, and one whose worker died is run again alone. Only a final error ends all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tranlog.clock import Clock
from tranlog.errors import (
    EngineError,
    LogError,
    ReplacedError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.driving.persistence import Persistence
from tranlog.pipeline.driving.report import Report
from tranlog.pipeline.rules.progress import Resubmissions
from tranlog.pipeline.rules.troubles import DRIVER
from tranlog.pipeline.spark.cluster import explain_failure
from tranlog.pipeline.spark.engine import Engine
from tranlog.pipeline.spark.job import Job, Jobs, Submit
from tranlog.pipeline.spark.session import restore_scratch
from tranlog.target.target import ChannelRow

logger = logging.getLogger(__name__)

CANCEL_WAIT_S: Final = 10.0
_STOP_WAIT_S: Final = 60.0
"""How long tasks that were told to stop may take for the target transaction they are in, before they are cancelled."""
_REPLACED_WAIT_S: Final = 5.0
_UNASKED_PAUSE_S: Final = 1.0
"""Before a channel that was told to stop by another's task goes on: until it is known why."""
_TICK_S: Final = 0.05


class Driver(Protocol):
    """What is asked of the driver; `apply` has it."""

    @property
    def ending(self) -> bool: ...
    @property
    def aborting(self) -> bool: ...
    @property
    def seen(self) -> Sequence[ChannelRow]: ...
    def read_rows(self) -> Sequence[ChannelRow]: ...
    def request_stop(self, upto: Seqno | None) -> None: ...
    def beat_if_due(self) -> bool: ...


class Tending:
    """The channels of one plan. Threads: one."""

    def __init__(
        self,
        driver: Driver,
        engine: Engine,
        persistence: Persistence,
        report: Report,
        clock: Clock,
        *,
        channels: int,
        resubmit: int,
    ) -> None:
        self._driver = driver
        self._engine = engine
        self._report = report
        self._persistence = persistence
        self._troubles = persistence.troubles
        self._clock = clock
        self._failures = [Resubmissions(allowed=resubmit) for _ in range(channels)]
        self._away = False
        """Whether the driver itself could not use the target when it last tried."""

    @property
    def resubmissions(self) -> int:
        """How often a channel's job failed and was submitted again."""
        return sum(one.total for one in self._failures)

    def tend(self, jobs: Jobs, submit: Callable[[int], Submit]) -> TaskEnd:
        """Run the channels until each has ended, or all are told to end. LIMIT: each came to its limit.

        Raises what cannot be cured, when the others have ended too, LostSessionError, ReplacedError.
        """
        driver, troubles = self._driver, self._troubles
        ends: set[TaskEnd] = set()
        failed: list[TranlogError] = []
        starting = dict.fromkeys(range(len(self._failures)), 0.0)  # when to submit each
        cancel_at: float | None = None
        while jobs or starting or troubles.pausing():
            now = self._clock.monotonic()
            ending = driver.ending or bool(failed)
            if ending:  # nobody sleeps on
                for channel in {*starting, *troubles.pausing()}:
                    troubles.over(channel)
                    ends.add(TaskEnd.STOPPED)
                starting.clear()
            for channel in [*troubles.due(now), *(one for one, at in starting.items() if at <= now)]:
                starting.pop(channel, None)
                troubles.trying(channel, driver.seen)
                jobs.start(channel, submit(channel))
            if ending and cancel_at is None:
                cancel_at = now + _STOP_WAIT_S
                self._call(lambda: driver.request_stop(NO_SEQNO), jobs)
            self._call(driver.beat_if_due, jobs)
            if cancel_at is not None:
                if self._away:
                    cancel_at = min(cancel_at, now + CANCEL_WAIT_S)
                if driver.aborting or now >= cancel_at:
                    # The jobs are cancelled; what tasks had begun is rolled back when the pipeline is released.
                    if not driver.aborting:
                        logger.warning("tasks did not stop in time and are cancelled")
                    ends.add(TaskEnd.STOPPED)
                    break
            for channel, job in jobs.take_ended(_TICK_S):
                try:
                    again_in_s = self._ended(channel, job, ends, ending=ending)
                except ReplacedError:
                    raise
                except TranlogError as exc:
                    failed.append(exc)
                else:
                    if again_in_s is not None:
                        starting[channel] = self._clock.monotonic() + again_in_s
        if failed:
            raise _most_telling(failed)
        return TaskEnd.STOPPED if TaskEnd.STOPPED in ends else TaskEnd.LIMIT

    def _call(self, call: Callable[[], object], jobs: Jobs) -> None:
        """Have the driver use the target. Where that fails it is told, and the channels find it out for themselves."""
        try:
            if call() and self._away:
                self._away = False
                self._troubles.over(DRIVER)
                self._troubles.hurry()  # it was away for everybody, and answers again
        except (TransientTargetError, TargetUnavailableError) as exc:
            if not self._away:
                logger.warning("target failed why=%s", exc)
            self._away = True
            self._persistence.reconnect()
            self._persistence.cannot(exc)
        except ReplacedError:
            jobs.wait(_REPLACED_WAIT_S)  # each task finds that out for itself
            raise

    def _ended(self, channel: int, job: Job, ends: set[TaskEnd], *, ending: bool) -> float | None:
        """Note how a channel's job ended; return in how many seconds it is to be submitted again, None: not by us.

        Raises what ends the run.
        """
        result = job.result
        if result is None:
            if ending:
                ends.add(TaskEnd.STOPPED)
                return None
            explained = explain_failure(str(job.failure))
            if explained is not None:
                raise explained
            return self._again(channel, job.why())
        error = result.error
        if isinstance(error, TransientTargetError | TargetUnavailableError):
            if ending:
                ends.add(TaskEnd.STOPPED)
                return None
            if self._pause(channel, error.why, max(result.applied_seqno, self._position(channel)), result.failing_s):
                return None
        if result.end is TaskEnd.FAILED:
            assert error is not None
            raise error
        self._troubles.over(channel)
        if result.end is TaskEnd.LIMIT or ending:
            ends.add(TaskEnd.LIMIT if result.end is TaskEnd.LIMIT else TaskEnd.STOPPED)
            return None
        if result.end is TaskEnd.REPLACED:
            return self._again(channel, "another attempt of a task had taken its channel")
        return _UNASKED_PAUSE_S + self._again(channel, "a task of the job before it had asked all others to stop")

    def _position(self, channel: int) -> Seqno:
        return max((row.applied_seqno for row in self._driver.seen if row.channel == channel), default=NO_SEQNO)

    def _pause(self, channel: int, reason: str, applied: Seqno, failing_s: float) -> bool:
        """Let a channel pause that cannot use the target; False: it has tried for as long as it may."""
        logger.warning("a channel cannot use the target channel=%d why=%s", channel, reason)
        return self._troubles.failed(
            channel,
            reason,
            applied=applied,
            failing_s=failing_s,
            now_s=self._clock.monotonic(),
            now_ms=self._clock.now_ms(),
            limit_s=self._persistence.patience(),
        )

    def _again(self, channel: int, why: str) -> float:
        """Count a failure of a channel's job; return in how many seconds to submit it again: at once.

        Raises EngineError where that is of no use, LostSessionError, ReplacedError where it was another driver.
        """
        driver = self._driver
        positions = [row.applied_seqno for row in driver.read_rows()]
        if not self._engine.lives() or not self._failures[channel].again(positions):
            remedy = "Nothing is lost: mend it and start again, it goes on from the positions in the target"
            raise EngineError(why=f"the job failed and got no further: {why}", remedy=remedy)
        restore_scratch()
        # A task that could not go on asks the others to stop, and when its job fails then, its reason is lost. It will
        # come again; but nobody may take that wish for the user's, and end as if all were well.
        if not driver.ending:
            self._persistence.persist(lambda: driver.request_stop(None))
        logger.warning("a channel's job failed and is submitted again channel=%d why=%s", channel, why)
        self._report.note(f"submitted again: {why}")
        return 0.0


def _most_telling(errors: Sequence[TranlogError]) -> TranlogError:
    """Return the error to show of several channels': one about data first, one that many may share last."""
    return min(errors, key=lambda error: (isinstance(error, TargetUnavailableError), not isinstance(error, LogError)))
