"""Rounds of `sim.swarm`, a seed each: harness of the mutants of replication."""

from __future__ import annotations

import sys

from mutants.rounds import found, play_rounds
from sim.swarm import play as play_seed


def play(seed: int) -> str | None:
    """Play one seed; return its violation, None where there was none."""
    try:
        return play_seed(seed)[1] or None
    except Exception as exc:  # an assertion of the model
        return found(exc)


if __name__ == "__main__":
    play_rounds(play, first=int(sys.argv[2]), rounds=int(sys.argv[3]))
