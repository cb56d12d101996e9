"""The demos, smaller: the whole picture in processes of its own, with a kill -9 of each of ours.

They hold tables against tables and an audit trigger's counts against the log's, and end with 0 only if all is equal.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1000)]


def run(program: str, *arguments: str, timeout_s: float = 980) -> str:
    """Run a demo to its end and return what it printed."""
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_shop(tmp_path: Path) -> None:
    told = run("shop_demo.py", str(tmp_path / "demo"))
    assert "source and target are equal" in told
    assert "kill -9 of the pipeline" in told
    assert "masked, not compared: customer" in told
    assert re.fullmatch(r"none of \d+ customers' names is in the copy", told.splitlines()[-1])
    looked_at(told)


def looked_at(told: str) -> None:
    """What the running pipeline told through its endpoint: while it worked, and when the heartbeat was applied."""
    (changed,) = re.findall(r"^   \| plan changed at seqno (\d+)$", told, re.MULTILINE)
    assert int(changed) > 0
    plans = re.findall(r'^   \|   (before: 4|after:  3) channels, .*rule "recorded"', told, re.MULTILINE)
    assert len(plans) == 2
    stores = told.partition("tranlog status -name stores:")[2]
    assert re.search(r"^   \| queues +: 3$", stores, re.MULTILINE) and len(re.findall(r"\| store\.\d", stores)) == 3
    assert "tranlog top" in told and "status -name stores" in told
    screens = told.split("   | tranlog top")[1:]
    assert len(screens) == 2
    for screen, channels in zip(screens, (4, 3), strict=True):
        assert "ONLINE for" in screen and "SLOWEST SHARDS" in screen
        assert len(re.findall(r"^   \|  [0-3]  \w", screen, re.MULTILINE)) == channels
    (last,) = re.findall(r"a heartbeat behind all of it, seqno (\d+)", told)
    assert f"applied {last}  behind 0" in screens[1]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that the servers' own users may pass; those of pytest are closed to them."""
    with tempfile.TemporaryDirectory(prefix="tranlog-demo-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_mariadb_to_postgresql(public: Path) -> None:
    told = run("mariadb_demo.py", str(public / "demo"), "--events=400", "--cross=60", "--table-size=100")
    looked_at(told)
    assert "source and target are equal" in told
    assert "no transaction was applied twice" in told


def test_mariadb_with_one_schema(public: Path) -> None:
    """One schema is one shard; by write sets its transactions run at once all the same."""
    arguments = ("--schemas=1", "--events=400", "--cross=60", "--table-size=100")
    told = run("mariadb_demo.py", str(public / "demo"), *arguments)
    assert "depended on another channel" in told
    assert "source and target are equal" in told
    assert "no transaction was applied twice" in told


@pytest.mark.slow
def test_postgresql_that_was_filled_before_to_mariadb(public: Path) -> None:
    """Loaded while it is written; the summary compares every row, those of a table without a key too."""
    told = run("postgres_demo.py", str(public / "demo"), "--schemas=2")
    assert [f"kill -9 of {whom}" in told for whom in ("the capture", "PostgreSQL", "the pipeline")] == [True] * 3
    assert "source and target are equal" in told
