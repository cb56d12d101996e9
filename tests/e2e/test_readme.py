"""README.md's program runs as it is printed, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def program() -> str:
    """Return the one Python program of README.md."""
    (found,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return found


def test_the_program_is_short() -> None:
    lines = [line for line in program().splitlines() if line.strip()]
    assert len(lines) <= 25


@pytest.mark.spark
def test_the_program_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program()], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "[('lamp', 2), ('rope', 12)]" in lines[-1]
    assert any("GTID(1, 2) main.stock 3" in line for line in lines), lines
    assert list(tmp_path.iterdir()) == [], "nothing is left in the working directory"
