"""docs/filters.md runs, block by block; the TOML and the Python of each example are the same filters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tranlog.service.config.config import load
from tranlog.service.config.template import template

PAGE = Path(__file__).parents[1] / "docs" / "filters.md"
BLOCK = re.compile(r"^```(python run|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_blocks(tmp_path: Path, *, spark: bool) -> int:
    """Run all blocks but, without Spark, the last one; return how many examples were in both forms."""
    names: dict[str, Any] = {"__name__": "filters"}
    configured: object = None
    pairs = 0
    for number, (kind, text) in enumerate(BLOCK.findall(PAGE.read_text())):
        match kind:
            case "toml":
                file = tmp_path / f"{number}.toml"
                file.write_text(template(service="shop", source="sqlite", target="sqlite") + "\n" + text)
                configured = load(str(file), environ={}).pipeline.apply.filters
            case "python" | "python run" if kind == "python" or spark:
                exec(compile(text, f"block {number} of {PAGE.name}", "exec"), names)
                if configured is not None:
                    assert configured == names["filters"], text
                    configured, pairs = None, pairs + 1
    return pairs


def test_the_page_runs(tmp_path: Path) -> None:
    assert run_blocks(tmp_path, spark=False) >= 8


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_pages_pipeline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    import tranlog.pipeline.pipeline as module

    real = module.run_apply
    monkeypatch.setattr(
        module, "run_apply", lambda options, **more: real(options, **(more | {"spark": spark.sparkContext}))
    )
    monkeypatch.chdir(tmp_path)
    run_blocks(tmp_path, spark=True)
    assert capsys.readouterr().out.splitlines()[-1] == "limit [(1, 'user 1'), (2, 'user 2'), (3, 'user 3')]"
