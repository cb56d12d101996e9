"""How long an operator waits for `thl` on a log of a million transactions: as processes, with Python's start in it.

Absolute figures, since there is no peer that reads this log; a bare Python that imports nothing stands beside them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from frame import Bench, Question, at_most, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log

QUESTION = Question(
    name="thl",
    text="How long does `thl` take to answer on a log of a million transactions, from the start of its process?",
    peer="none, these are absolute: a second is what an operator should wait at most",
)
MUST = at_most(1.0)
TRANSACTIONS = 1_000_000
AT_ONCE = 1_000
ROUNDS = 5
ASKED = {
    "list -seqno": ("list", "-seqno", "654321"),
    "list -headers -last 10": ("list", "-headers", "-last", "10"),
    "info": ("info",),
    "tail": ("tail",),
}
PROGRAM = "import sys; from tranlog.service.thl.thl import main; sys.exit(main())"


def write_log(path: Path) -> None:
    """Write a million small transactions."""
    with Log.open(path, source_id="bench") as log:
        for number in range(1, TRANSACTIONS):
            log.append(
                Fragment(
                    source_id="bench",
                    event_id=f"0-1-{number}",
                    shard_id=f"shop{number % 8}",
                    tstamp=1_800_000_000_000 + number,
                    tables=(("shop", "orders"),),
                    payload=b"",
                )
            )
            if number % AT_ONCE == 0:
                log.commit()


def measure(bench: Bench) -> None:
    """Ask each question a few times, by turns."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        path = Path(here, "log")
        write_log(path)
        sides = {name: [sys.executable, "-c", PROGRAM, "-dir", str(path), *words] for name, words in ASKED.items()}
        sides["a bare Python"] = [sys.executable, "-c", "pass"]
        figures = bench.by_turns({name: partial(seconds, words) for name, words in sides.items()}, rounds=ROUNDS)
    for name, times in figures.items():
        bench.add(name, ours=times, unit="s", must=MUST if name in ASKED else None)


def seconds(command: list[str]) -> float:
    """Return how long a command takes by the clock."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
