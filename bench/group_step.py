"""What a node of a group takes to decide: one packet in, its effects out, as the simulator's groups send them.

The groups of fixed seeds run under faults; each call of `Core.step`, with the `ready` behind it, is timed by the
thread's CPU clock. The simulator is the tests'.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from unittest.mock import patch

from frame import Bench, Question, at_most, run

from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import Effect
from tranlog.replication.rules.packets import Packet

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from sim.swarm import play

QUESTION = Question(
    name="group_step",
    text="How long does a node of a group think about a packet?",
    peer="none, these are absolute",
)
SEEDS = 12


def steps_of(seeds: range) -> list[float]:
    """Return the microseconds of each step that the groups of these seeds take."""
    taken: list[float] = []
    began = 0.0
    step, ready = Core.step, Core.ready

    def timed_step(core: Core, sender: NodeId, packet: Packet, now: int) -> None:
        nonlocal began
        began = time.thread_time()
        step(core, sender, packet, now)

    def timed_ready(core: Core) -> list[Effect]:
        nonlocal began
        effects = ready(core)
        if began:
            taken.append((time.thread_time() - began) * 1e6)
            began = 0.0
        return effects

    with patch.object(Core, "step", timed_step), patch.object(Core, "ready", timed_ready):
        for seed in seeds:
            assert not play(seed)[1]
    return taken


def measure(bench: Bench) -> None:
    """Run the groups."""
    rounds = [steps_of(range(1, bench.size(SEEDS, trying=4) + 1)) for _ in range(bench.rounds(5))]
    bench.add("a step, median", ours=[statistics.median(one) for one in rounds], unit="us", must=at_most(50))
    bench.add("a step, p99", ours=[statistics.quantiles(one, n=100)[98] for one in rounds], unit="us")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
