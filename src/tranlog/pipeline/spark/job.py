"""A pipeline's tasks as Spark jobs, one for each channel, each in a thread of its own.

Owns how tasks are submitted, with a cursor of their own or with a share of a window, and how jobs are watched and
cancelled. Leaves what a task does to `channel` and `window`, and when to submit again to `apply`. The hard idea: Spark
returns the result of a job after all its tasks have ended, and other channels may run for weeks. So each channel is a
job of its own; its end is known at once, and it is submitted again alone.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tranlog.pipeline.applying.channel import run_tasks
from tranlog.pipeline.applying.task import ChannelTask, TaskResult
from tranlog.pipeline.spark.window import Window, share_runner, split_windows

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")

Submit: TypeAlias = "Callable[[SparkContext], list[TaskResult]]"


@dataclass(slots=True)
class Job:
    """One channel's job in a thread of its own: it runs until the pipeline's end, and nobody waits in the meantime.

    At its end `result` has what the task gave back, or `failure` what Spark raised; then it is `over`, and `ended` set.
    """

    context: SparkContext
    submit: Submit
    group: str
    ended: threading.Event
    result: TaskResult | None = None
    failure: Exception | None = None
    over: bool = False
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"spark-job-{self.group}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.context.setJobGroup(self.group, f"tranlog apply {self.group}", interruptOnCancel=False)
            (self.result,) = self.submit(self.context)
        except Exception as exc:  # Spark's, Py4J's, or the task's as text: told to the driver's thread
            self.failure = exc
        finally:
            self.over = True
            self.ended.set()

    def why(self) -> str:
        """Return what a failed job says, in one line: of a Python traceback inside it, the last."""
        if self.failure is None:
            return "no result"
        lines = [line.strip() for line in str(self.failure).splitlines() if line.strip()]
        raised = [line for line in lines if _RAISED.match(line)]
        return (raised or lines or [type(self.failure).__name__])[0][:300]


class Jobs:
    """The jobs of the channels that are at work. Threads: one, beside those of the jobs."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._group = group
        self._numbers = 0
        self._jobs: dict[int, Job] = {}
        self._ended = threading.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, channel: int, submit: Submit) -> None:
        """Submit a channel's job; it has none."""
        assert channel not in self._jobs, "a channel has one job at a time"
        self._numbers += 1
        self._jobs[channel] = Job(self._context, submit, f"{self._group}-{channel}-{self._numbers}", self._ended)

    def take_ended(self, wait_s: float) -> list[tuple[int, Job]]:
        """Return the jobs that have ended, by channel, waiting a little for the first; each is returned once."""
        if self._ended.wait(wait_s):
            self._ended.clear()
        found = [(channel, job) for channel, job in self._jobs.items() if job.over]
        for channel, _ in found:
            del self._jobs[channel]
        return found

    def wait(self, wait_s: float) -> None:
        """Wait until all have ended, or the time is over."""
        deadline = time.monotonic() + wait_s
        for job in self._jobs.values():
            job.thread.join(max(0.0, deadline - time.monotonic()))

    def cancel(self, wait_s: float) -> None:
        """Cancel what still runs, and wait for it a little; also where Spark does not answer."""

        def work() -> None:
            for job in running:
                try:
                    self._context.cancelJobGroup(job.group)
                except Exception:  # the context is gone, and the job with it
                    logger.debug("could not cancel", exc_info=True)

        running = [job for job in self._jobs.values() if not job.over]
        if running:
            asking = threading.Thread(target=work, name="spark-cancel", daemon=True)
            asking.start()
            self.wait(wait_s)
        self._jobs.clear()


def long_running(tasks: Sequence[ChannelTask]) -> Submit:
    """Return the job of channels, each with a cursor of its own."""

    def submit(context: SparkContext) -> list[TaskResult]:
        return context.parallelize(tasks, len(tasks)).mapPartitions(run_tasks).collect()

    return submit


def windowed(window: Window) -> Callable[[int], Submit]:
    """Return the jobs that apply each channel's share of a window, by channel.

    It is read and split once for them all, and anew for a channel that is submitted again: what it got may have been
    the reader's failure.
    """
    making = threading.Lock()
    split: list[Any] = []
    had: set[int] = set()

    def job_of(channel: int) -> Submit:
        def submit(context: SparkContext) -> list[TaskResult]:
            with making:
                if not split or channel in had:
                    shares = context.parallelize([window], 1).mapPartitions(split_windows)
                    parted = shares.partitionBy(len(window.tasks), int)
                    split[:] = [parted.mapPartitionsWithIndex(share_runner(window))]
                    had.clear()
                had.add(channel)
                (rdd,) = split
            return context.runJob(rdd, list, [channel])

        return submit

    return job_of
