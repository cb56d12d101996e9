"""README.md's program runs as it is printed, and prints what it says."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fix_live_group import events
from tranlog.testing.servers import free_port

ROOT = Path(__file__).parents[2]


def programs() -> list[str]:
    """Return the Python programs of README.md: with a log of its own, and at a group."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def program() -> str:
    """Return the first one."""
    return programs()[0]


def test_the_program_is_short() -> None:
    lines = [line for line in program().splitlines() if line.strip()]
    assert len(lines) <= 25


def results(section: str, row: str) -> list[float]:
    """Return ours and the anchor of one row of bench/RESULTS.md."""
    text = (ROOT / "bench" / "RESULTS.md").read_text()
    part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (cells,) = [line.split("|")[2:4] for line in part.splitlines() if re.match(rf"\| {re.escape(row)} +\|", line)]
    return [float(cell.split()[0].replace(",", "")) for cell in cells]


@pytest.mark.parametrize(
    ("words", "section", "row"),
    [
        ("NUMBER transactions of 1 KB a second durable one by one, where SQLite makes NUMBER", "append", "batch 1"),
        ("the disk alone NUMBER", "append", "bare disk, batch 1"),
        ("NUMBER a second in hundreds, where SQLite makes NUMBER", "append", "batch 100"),
        (
            "Without a sync, NUMBER appends of 1.25 KB take a second of CPU",
            "write",
            "write 1.25 KB, commit 100, no fsync",
        ),
        ("NUMBER transactions of 2.5 rows a second", "apply_peers", "subscription"),
    ],
)
def test_figures_are_those_that_were_measured(words: str, section: str, row: str) -> None:
    """What is durable stands beside what is not, with SQLite's; and each says of what second it is."""
    found = re.search(words.replace("NUMBER", r"([\d,]+)"), (ROOT / "README.md").read_text().replace("\n", " "))
    assert found is not None, f"README.md does not say: {words}"
    for said, measured in zip(found.groups(), results(section, row), strict=False):
        assert float(said.replace(",", "")) == pytest.approx(measured, rel=0.02), f"{said}, and measured is {measured}"


@pytest.mark.e2e
def test_the_program_at_a_group_commits_to_three(tmp_path: Path) -> None:
    port = next(one for one in iter(free_port, None) if all(map(is_free, (one + 1, one + 2))))
    command = [sys.executable, "-m", "tranlog", "group", "trial", "here", "--port", str(port)]
    (_, text) = programs()
    for at in range(3):
        text = text.replace(f":{2112 + at}", f":{port + at}")
    for commits in (1, 2):  # what was committed is there the next time
        with (tmp_path / "words").open("wb") as words:
            trial = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=words, text=True)
        try:
            assert trial.stdout is not None
            line = trial.stdout.readline()
            assert line.startswith(f"a group of three is at thl://127.0.0.1:{port},"), (tmp_path / "words").read_text()
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=100)
            assert done.stdout.startswith("Satisfied(gtid="), done.stdout
        finally:
            trial.send_signal(signal.SIGINT)
            trial.communicate(timeout=100)
            assert trial.returncode == 0
        for name in "abc":
            assert len(events(tmp_path / "here" / f"log-{name}")) == commits


def is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


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
