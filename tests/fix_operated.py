"""A pipeline without Spark: the real driver, the real channels, and threads in the place of Spark's tasks."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fix_pipeline import AnyTarget
from tranlog.pipeline.driving import apply
from tranlog.pipeline.driving.apply import ApplyResult
from tranlog.pipeline.driving.operation import OnError, Operation
from tranlog.pipeline.driving.replanning import PlanOrders
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.spark import engine

WAIT_S = 60.0


class _Parts:
    """What the driver asks of an RDD: partitions, each made by a function; they are worked at all at once."""

    def __init__(self, parts: Sequence[Callable[[], Iterable[Any]]]) -> None:
        self._parts = parts

    def mapPartitions(self, function: Callable[[Iterable[Any]], Iterator[Any]]) -> _Parts:
        return self.mapPartitionsWithIndex(lambda number, part: function(part))

    def mapPartitionsWithIndex(self, function: Callable[[int, Iterable[Any]], Iterator[Any]]) -> _Parts:
        return _Parts([partial(_through, function, number, part) for number, part in enumerate(self._parts)])

    def partitionBy(self, number: int, which: Callable[[Any], int]) -> _Parts:
        """Split what comes, pickled on the way as by a shuffle."""
        shares: list[list[Any]] = [[] for _ in range(number)]
        for part in self._parts:
            for key, value in part():
                shares[which(key)].append(pickle.loads(pickle.dumps((key, value))))
        return _Parts([share.copy for share in shares])

    def run(self, function: Callable[[Iterable[Any]], Iterable[Any]], numbers: Sequence[int]) -> list[Any]:
        return [one for number in numbers for one in function(self._parts[number]())]

    def collect(self) -> list[Any]:
        with ThreadPoolExecutor(len(self._parts)) as pool:
            return [one for found in pool.map(lambda part: list(part()), self._parts) for one in found]


def _through(
    function: Callable[[int, Iterable[Any]], Iterator[Any]], number: int, part: Callable[[], Iterable[Any]]
) -> Iterable[Any]:
    return function(number, part())


class ThreadContext:
    """What the driver asks of a SparkContext, with a thread for each slot. Its jobs cannot be cancelled."""

    master = "local[16]"
    defaultParallelism = 16

    @property
    def _jsc(self) -> Any:
        """What Spark says of its slots: one for each thread that may be."""
        spark = SimpleNamespace(
            maxNumConcurrentTasks=lambda profile: self.defaultParallelism,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            isStopped=lambda: False,
        )
        return SimpleNamespace(sc=lambda: spark)

    def setJobGroup(self, *arguments: object, **more: object) -> None:
        """Groups serve cancelling."""

    def cancelJobGroup(self, group: str) -> None:
        """Its tasks go on until their position is taken from them, as those of a stale executor would."""

    def runJob(
        self, parts: _Parts, function: Callable[[Iterable[Any]], Iterable[Any]], numbers: Sequence[int]
    ) -> list[Any]:
        return parts.run(function, numbers)

    def parallelize(self, tasks: Sequence[Any], number: int) -> _Parts:
        assert len(tasks) == number
        return _Parts([[task].copy for task in tasks])


def run_in_threads(
    options: ApplyOptions,
    *,
    stop: threading.Event,
    report: Callable[[ApplyStatus], None],
    abort: threading.Event,
    keep_spark: bool,
    plans: PlanOrders,
) -> ApplyResult:
    """Stand for `run_apply` in an `Operation`."""
    return apply.run_apply(
        options,
        stop=stop,
        report=report,
        spark=ThreadContext(),  # type: ignore[arg-type]
        abort=abort,
        plans=plans,
    )


class Operated:
    """An operation in a thread of its own, and how it ended."""

    def __init__(self, operation: Operation, *, online: bool = True) -> None:
        self.operation = operation
        self.result: ApplyResult | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(online,), daemon=True)
        self._thread.start()

    def _run(self, online: bool) -> None:
        try:
            self.result = self.operation.run(online=online)
        except BaseException as exc:
            self.error = exc

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def come_to(self, state: State, applied: int | None = None) -> None:
        assert self.operation.wait(state=state, applied=applied, timeout_s=WAIT_S), self.operation.state()


def operation_of(options: ApplyOptions, *, on_error: OnError = OnError.END) -> Operation:
    return Operation(options, on_error=on_error, run_pipeline=run_in_threads, stop_engine=lambda: None)


@contextmanager
def running(operation: Operation, *, online: bool = True) -> Iterator[Operated]:
    operated = Operated(operation, online=online)
    try:
        yield operated
    finally:
        operation.end()
        operated.join()


def options_of(tmp_path: Path, target: AnyTarget) -> ApplyOptions:
    """Options for the log in `tmp_path`, which follow it with three channels."""
    return ApplyOptions(
        pipeline="p",
        log_dir=str(tmp_path / "log"),
        target=target.options,
        channels=3,
        sync_interval_s=0.05,
        master="local[16]",
    )


def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the driver go on without Java, report often, and look often at what it waits for."""
    monkeypatch.setattr(apply, "find_java", lambda: "")
    monkeypatch.setattr(engine, "lives", lambda context: True)
    monkeypatch.setattr(apply, "ALIVE_INTERVAL_S", 0.05)
    monkeypatch.setattr(apply, "_TICK_S", 0.01)
    monkeypatch.setattr("tranlog.pipeline.driving.operation._TICK_S", 0.02)
