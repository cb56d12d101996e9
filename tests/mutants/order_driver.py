"""The driver of `order_rounds`, in a process of its own: the product's, with forked processes in the place of Spark's.

`run_apply` runs here as in `tranlog apply`: taking the pipeline, draining, re-planning, windows, a job again where one
has failed. What it would have Spark run goes by a pipe to whoever started this process, who forks, kills and stops the
tasks, and sends back what they return; so nothing is ever forked from a process with threads.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, TypeAlias

from tranlog.errors import TranlogError
from tranlog.ids import Seqno
from tranlog.pipeline.applying.channel import run_task
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.driving import apply
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.driving.replanning import PlanOrder, PlanOrders
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.spark.window import Window, apply_share, split_windows

SLOTS = 16


@dataclass(frozen=True, slots=True)
class Share:
    """A channel's share of a window. Its process reads the window itself, as one does that Spark has to try again."""

    window: Window
    channel: int


Work: TypeAlias = ChannelTask | Share


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the stage: run these, one process each, until each has given a result."""

    job: int
    work: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """To the driver: what a task of a job has returned."""

    job: int
    result: TaskResult


@dataclass(frozen=True, slots=True)
class Stop:
    """To the driver: end behind the target transactions that are under way."""


@dataclass(frozen=True, slots=True)
class Planned:
    """To the stage: the answer to a plan, sent to the driver as it is. `refused`: why it cannot be."""

    plan: ShardPlan
    seqno: Seqno | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class Ended:
    """To the stage: how the run ended."""

    end: TaskEnd | None
    error: TranlogError | None


def run_work(work: Work) -> TaskResult:
    """Do what a process of a task does."""
    if isinstance(work, ChannelTask):
        return run_task(work)
    return apply_share(
        work.window, work.channel, (one for one in split_windows([work.window]) if one[0] == work.channel)
    )


def drive(options: ApplyOptions, stage: Connection) -> None:
    """Run a pipeline as the command line's process does; the stage at the pipe's other end runs its tasks."""
    stop, plans = threading.Event(), PlanOrders()
    executors = _Executors(stage)
    threading.Thread(target=_listen, args=(stage, executors, stop, plans), daemon=True).start()
    patched = {
        "find_java": lambda: "",
        "ALIVE_INTERVAL_S": 0.05,
        "long_running": lambda tasks: _submit(tuple(tasks)),
        "windowed": lambda window: lambda channel: _submit((Share(window, channel),)),
    }
    assert patched.keys() <= vars(apply).keys()
    vars(apply).update(patched)
    try:
        result = run_apply(options, stop=stop, spark=executors, plans=plans)  # type: ignore[arg-type]
        ended = Ended(result.end, None)
    except TranlogError as exc:
        ended = Ended(None, exc)
    executors.send(ended)


def _submit(work: Sequence[Work]) -> Callable[[Any], list[TaskResult]]:
    def submit(executors: _Executors) -> list[TaskResult]:
        return executors.run(tuple(work))

    return submit


class _Executors:
    """What the driver asks of a SparkContext, with a process of the stage's for each slot."""

    master = f"local[{SLOTS}]"

    def __init__(self, stage: Connection) -> None:
        self._stage = stage
        self._sending = threading.Lock()
        self._jobs: dict[int, queue.SimpleQueue[TaskResult | None]] = {}
        self._numbers = itertools.count(1)
        self._gone = False
        spark = SimpleNamespace(
            maxNumConcurrentTasks=lambda profile: SLOTS,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            isStopped=lambda: False,
        )
        self._jsc = SimpleNamespace(sc=lambda: spark)

    def setJobGroup(self, *arguments: object, **more: object) -> None:
        """Groups serve cancelling."""

    def cancelJobGroup(self, group: str) -> None:
        """Its tasks go on until their position is taken from them, as those of a stale executor would."""

    def send(self, message: object) -> None:
        """Tell the stage, if it still listens: it has gone from a driver that it has replaced."""
        try:
            with self._sending:
                self._stage.send(message)
        except OSError:
            self.leave()

    def run(self, work: tuple[Work, ...]) -> list[TaskResult]:
        """Have a job done. Raises ConnectionError where nobody does it."""
        job, results = next(self._numbers), queue.SimpleQueue[TaskResult | None]()
        self._jobs[job] = results
        self.send(Wanted(job, work))
        found = []
        for _ in work:
            result = None if self._gone and results.empty() else results.get()
            if result is None:
                raise ConnectionError("nobody runs tasks any more")
            found.append(result)
        return found

    def done(self, message: Done) -> None:
        self._jobs[message.job].put(message.result)

    def leave(self) -> None:
        self._gone = True
        for results in list(self._jobs.values()):
            results.put(None)


def _listen(stage: Connection, executors: _Executors, stop: threading.Event, plans: PlanOrders) -> None:
    """Take what the stage sends, in a thread of its own."""
    while True:
        try:
            message = stage.recv()
        except (EOFError, OSError):
            executors.leave()
            return
        match message:
            case Done():
                executors.done(message)
            case Stop():
                stop.set()
            case ShardPlan():
                order = PlanOrder(message)
                order.answer.add_done_callback(_answering(executors, message))
                plans.put(order)


def _answering(executors: _Executors, plan: ShardPlan) -> Callable[[Future[Seqno | None]], None]:
    def answered(answer: Future[Seqno | None]) -> None:
        refused = answer.exception()
        seqno = None if refused is not None else answer.result()
        executors.send(Planned(plan, seqno, None if refused is None else str(refused)))

    return answered


def run_driver(options: ApplyOptions, stage: Connection) -> None:
    """What the process of a driver does, to its end."""
    drive(options, stage)
    os._exit(0)  # nothing of the parent's is to be closed
