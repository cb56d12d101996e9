"""What does a pipeline lose that is looked at twenty times a second?

A log gets 100 transactions a second, each durable by itself; `tranlog apply`, a process of its own on Spark, applies
them to PostgreSQL on four channels, as `bench/latency.py` has it. By turns, in one run: nobody asks that process, and
clients, processes of their own, ask it for its /status twenty times a second. The p99 of each is from before `append`
to the arrival of the notification that the target sends after its commit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from frame import Bench, Question, at_most, run
from latency import PATIENCE_S, Beside, from_append
from server import ask_for

from tranlog.pipeline.rules.states import State
from tranlog.service.process.api import WaitFor
from tranlog.service.process.client import GRACE_S, RunningPipeline
from tranlog.testing.servers import PostgresServer

QUESTION = Question(
    name="looked_at",
    text="p99 from append to applied at 100 transactions a second, while the process is asked for its status 20 times "
    "a second",
    peer="the same process, which nobody asks",
)
SECONDS = 20
TRY_SECONDS = 5
LONG_S = 3600


@contextmanager
def asked(path: Path) -> Iterator[None]:
    """Ask the process at this socket while the block runs, once its channels run."""
    online = WaitFor(state=State.ONLINE, timeout_s=PATIENCE_S)
    RunningPipeline(addresses=(str(path),)).ask("/wait", online, timeout_s=PATIENCE_S + GRACE_S)
    clients = ask_for(str(path), "/status", LONG_S)
    try:
        yield
        for one in clients:
            if one.poll() is not None:
                raise SystemExit(f"a client ended with exit code {one.returncode}")
    finally:
        for one in clients:
            one.kill()
            one.wait()


def measure(bench: Bench) -> None:
    """Compare the p99 of each turn."""
    seconds = bench.size(SECONDS, trying=TRY_SECONDS)
    turns = iter(range(1000))
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, PostgresServer() as postgres:

        def p99(beside: Beside) -> float:
            turn = next(turns)
            folder = Path(name) / str(turn)
            folder.mkdir()
            found = from_append(postgres, folder, turn, seconds, beside)
            return found[int(0.99 * len(found))]

        bench.compare(
            "p99 of append to applied",
            ours=lambda: p99(asked),
            peer=lambda: p99(nullcontext),
            unit="ms",
            rounds=3,
            warm_up=False,
            must=at_most(1.1),
        )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
