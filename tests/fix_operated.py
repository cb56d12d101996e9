"""A pipeline without Spark: the real driver, the real channels, and threads in the place of Spark's tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tranlog.pipeline import apply
from tranlog.pipeline.apply import ApplyOptions, ApplyResult, ApplyStatus


class _Tasks:
    def __init__(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks
        self._function: Callable[[Iterable[Any]], Iterator[Any]] | None = None

    def mapPartitions(self, function: Callable[[Iterable[Any]], Iterator[Any]]) -> _Tasks:
        self._function = function
        return self

    def collect(self) -> list[Any]:
        function = self._function
        assert function is not None
        with ThreadPoolExecutor(len(self._tasks)) as pool:
            return [one for found in pool.map(lambda task: list(function([task])), self._tasks) for one in found]


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

    def parallelize(self, tasks: Sequence[Any], number: int) -> _Tasks:
        assert len(tasks) == number
        return _Tasks(tasks)


def run_in_threads(
    options: ApplyOptions,
    *,
    stop: threading.Event,
    report: Callable[[ApplyStatus], None],
    abort: threading.Event,
    keep_spark: bool,
) -> ApplyResult:
    """Stand for `run_apply` in an `Operation`."""
    return apply.run_apply(options, stop=stop, report=report, spark=ThreadContext(), abort=abort)  # type: ignore[arg-type]
