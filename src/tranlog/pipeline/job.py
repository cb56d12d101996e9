"""A pipeline's tasks as one Spark job, in a thread of its own.

Owns how tasks are submitted, with a cursor of their own or with a share of a window, and how a job is watched and
cancelled. Leaves what a task does to `channel` and `window`, and when to submit again to `apply`.

Source: design/pipeline.md, "Apply: one Spark job, one long-running task per channel".
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tranlog.pipeline.channel import ChannelTask, TaskResult, run_tasks
from tranlog.pipeline.window import Window, share_runner, split_windows

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


@dataclass(slots=True)
class Job:
    """A Spark job in a thread of its own: its tasks run until the pipeline's end, and nobody waits in the meantime.

    At its end `results` has what the tasks gave back, or `failure` what Spark raised.
    """

    context: SparkContext
    submit: Callable[[SparkContext], list[TaskResult]]
    group: str
    results: list[TaskResult] | None = None
    failure: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"spark-job-{self.group}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.context.setJobGroup(self.group, f"tranlog apply {self.group}", interruptOnCancel=False)
            self.results = self.submit(self.context)
        except Exception as exc:  # Spark's, Py4J's, or the task's as text: told to the driver's thread
            self.failure = exc

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.thread.is_alive()

    def why(self) -> str:
        """Return what a failed job says, in one line: of a Python traceback inside it, the last."""
        if self.failure is None:
            return "no result"
        lines = [line.strip() for line in str(self.failure).splitlines() if line.strip()]
        raised = [line for line in lines if _RAISED.match(line)]
        return (raised or lines or [type(self.failure).__name__])[0][:300]

    def cancel(self, wait_s: float) -> None:
        """Cancel what still runs, and wait for it a little."""
        if self.running:
            try:
                self.context.cancelJobGroup(self.group)
            except Exception:  # the context is gone, and the job with it
                logger.debug("could not cancel", exc_info=True)
            self.thread.join(wait_s)


def long_running(tasks: Sequence[ChannelTask]) -> Callable[[SparkContext], list[TaskResult]]:
    """Return the job of one task per channel, each with a cursor of its own."""

    def submit(context: SparkContext) -> list[TaskResult]:
        return context.parallelize(tasks, len(tasks)).mapPartitions(run_tasks).collect()

    return submit


def windowed(window: Window) -> Callable[[SparkContext], list[TaskResult]]:
    """Return the job that reads a window once, splits it, and applies each channel's share."""

    def submit(context: SparkContext) -> list[TaskResult]:
        shares = context.parallelize([window], 1).mapPartitions(split_windows)
        parted = shares.partitionBy(len(window.tasks), int)
        return parted.mapPartitionsWithIndex(share_runner(window)).collect()

    return submit
