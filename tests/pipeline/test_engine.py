"""pipeline/spark/engine.py: the Spark that runs of pipelines in one process share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tranlog.errors import EngineError
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.spark import engine
from tranlog.pipeline.spark.engine import Engine
from tranlog.target.options import TargetOptions


class Context:
    """As much of a context as an engine uses."""

    master = "local[4]"
    stopped = 0

    def stop(self) -> None:
        self.stopped += 1


def engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool, names: str = "pq"
) -> tuple[Context, list[Engine]]:
    context: Any = Context()
    monkeypatch.setattr(engine, "run_context", lambda *_: (context, own))
    monkeypatch.setattr(engine, "count_slots", lambda _: 4)
    target = TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"))
    options = ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target, master="local[4]")
    return context, [Engine(replace(options, pipeline=name), None, keep=False) for name in names]


def start(one: Engine, channels: int) -> None:
    one.start(wanted=channels, channels=channels, going_on=lambda: True)


def test_the_last_run_stops_what_runs_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, (first, second) = engines(tmp_path, monkeypatch, own=True)
    start(first, 2)
    start(second, 2)
    first.close()
    assert context.stopped == 0
    second.close()
    assert context.stopped == 1


def test_a_run_leaves_the_programs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, (first, _) = engines(tmp_path, monkeypatch, own=False)
    start(first, 4)
    first.close()
    assert context.stopped == 0


def test_channels_beyond_the_slots_that_other_runs_leave_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait for the end of the other run, which may go on for ever."""
    _, (first, second) = engines(tmp_path, monkeypatch, own=True)
    start(first, 3)
    start(first, 4)  # its own next plan
    with pytest.raises(EngineError, match="other pipelines of this process have 4 of Spark's 4 slots, this needs 2"):
        start(second, 2)
    first.close()
    start(second, 2)
    second.close()


def test_two_runs_of_one_pipeline_are_not_told_apart_by_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one is refused, or ends the earlier one: by what the target says (tests/spark/test_stale.py)."""
    _, (first, second) = engines(tmp_path, monkeypatch, own=True, names="pp")
    start(first, 4)
    start(second, 4)
    first.close()
    second.close()
