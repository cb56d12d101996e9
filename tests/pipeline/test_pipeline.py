"""`Pipeline(source, filters, target, channels)` as an object, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tranlog import Pipeline
from tranlog.errors import ConfigError
from tranlog.pipeline.filters.filters import Delay, EachTransaction, MaskColumns
from tranlog.target.options import TargetOptions


def test_it_is_apply_with_its_options() -> None:
    delay = Delay(delay_s=1)
    one = Pipeline("log", [delay], "target.db", 2, name="orders", sync_interval_s=0.5)
    assert (one.options.log_dir, one.options.filters, one.options.channels) == ("log", (delay,), 2)
    assert (one.options.pipeline, one.options.sync_interval_s) == ("orders", 0.5)
    assert one.options.target == TargetOptions(kind="sqlite", path="target.db")
    assert Pipeline("log", target=Path("target.db")).options.target == TargetOptions(kind="sqlite", path="target.db")
    url = "postgresql://here/db"
    assert Pipeline(Path("log"), target=url).options.target == TargetOptions(kind="postgres", dsn=url)
    url = "mariadb://till:secret@here:3306/tranlog"
    assert Pipeline(Path("log"), target=url).options.target == TargetOptions(kind="mariadb", dsn=url)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({}, "target"),
        ({"target": "x.db", "chanels": 4}, "chanels"),
        ({"target": "x.db", "channels": 0}, "channels"),
        ({"target": "x.db", "filters": [Delay(delay_s=-1)]}, "filter 1.delay_s"),
        ({"target": "x.db", "filters": ["shop.*"]}, "filter 1"),
        ({"target": "x.db", "filters": [MaskColumns(table="a.b", columns=("c",), by="null")]}, "filter 1.by"),  # type: ignore[arg-type]
        ({"target": "x.db", "filters": [Delay(delay_s="5")]}, "filter 1.delay_s"),  # type: ignore[arg-type]
        ({"target": TargetOptions(kind="sqlite")}, "target.path"),
        ({"target": "oracle://till:secret@here/db"}, "target"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pipeline("log", **given)
    assert caught.value.option == option


def test_a_run_looks_for_functions_before_it_starts_spark(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"filter 1\.function.*ModuleNotFoundError"):
        Pipeline(tmp_path / "log", [EachTransaction(function="tranlog.no:f")], "x.db").run("now")
