"""Stories of a group: each file of `scenarios` prints what it says it prints.

`.venv/bin/python tests/sim/test_scenario.py --rewrite` writes what they print.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sim.scenario import Story, rewritten_text

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    assert rewritten_text(path.read_text()) == path.read_text()


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="no such command: dance a"):
        Story().do("dance a")


if __name__ == "__main__" and sys.argv[1:] == ["--rewrite"]:
    for one in STORIES:
        one.write_text(rewritten_text(one.read_text()))
