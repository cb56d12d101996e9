"""scripts/count_lines.py: what counts as a line of code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "scripts" / "count_lines.py"
SOURCE = '''"""A docstring
of two lines."""

# A comment.
TEXT = """counts,
with both lines"""


def f(a: int,
      b: int) -> int:
    """Docstring."""

    return a + b  # counts


VALUE = 1
"""What VALUE means."""
'''


def test_blank_lines_comments_and_docstrings_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "one.py").write_text(SOURCE)
    (tmp_path / "room" / "two.py").write_text("A = 1\n" * 1_234)
    done = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["  1,234 room", "      6 .", f"  1,240 {tmp_path}"]
