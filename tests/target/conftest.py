"""Both kinds of target for the tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fix_target import Bench, StoppedTask
from tranlog.target.options import TargetOptions

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.integration)]


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"), lock_timeout_s=5)
    server = request.getfixturevalue("postgres")
    return TargetOptions(
        kind="postgres", dsn=server.dsn(request.getfixturevalue("postgres_database")), lock_timeout_s=5
    )


@pytest.fixture
def open_bench() -> Iterator[Callable[[TargetOptions], Bench]]:
    """Open benches that are closed after the test."""
    opened: list[Bench] = []

    def open_one(options: TargetOptions) -> Bench:
        opened.append(Bench(options))
        return opened[-1]

    yield open_one
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]) -> Bench:
    """A target with a channel claimed."""
    return open_bench(options)


@pytest.fixture
def stop_task() -> Iterator[Callable[..., StoppedTask]]:
    """Start tasks that stop in the middle of a target transaction; they are gone after the test."""
    started: list[StoppedTask] = []

    def start(bench: Bench, **more: object) -> StoppedTask:
        started.append(StoppedTask(bench, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for task in started:
        task.close()
