"""A log of many gigabytes: what must not grow with it does not.

No time is asserted: the figures are printed by `scale_log.py`, and stand in docs/performance.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fix_effort import Effort

PROGRAM = Path(__file__).with_name("scale_log.py")
SOAKING_GB = 20.0
"""And twenty million transactions."""
SHORT_GB = 1.0
CURSOR_MB = 64
"""What a cursor may add to a process that has imported the log and opened it."""
INDEX_BYTES_PER_MILLION = 1_000_000


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_what_does_not_grow_with_the_log(effort: Effort, tmp_path: Path) -> None:
    gigabytes = effort(SHORT_GB, SHORT_GB, SOAKING_GB)
    command = [sys.executable, str(PROGRAM), "--json", "--gigabytes", str(gigabytes), "--folder", str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["GB"] for row in rows] == [gigabytes * part for part in (0.01, 0.1, 0.5, 1.0)]
    print(*done.stdout.splitlines(), sep="\n")
    small, large = rows[0], rows[-1]
    assert large["million tx"] > 0.9 * gigabytes
    for step in ("seek", "scan", "verify"):
        assert large[f"{step} MB"] < small["open MB"] + CURSOR_MB, step
    assert large["index KB"] * 1e3 < INDEX_BYTES_PER_MILLION * max(large["million tx"], 1)
