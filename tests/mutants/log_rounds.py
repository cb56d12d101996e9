"""Rounds of the log under loss of power: each a life, cut at a call that its seed decides, and what is found after it.

The harness is that of tests/crash/test_log_crash.py: the real log on a disk that forgets what was not synced.
`python log_rounds.py FOLDER FIRST ROUNDS` prints one JSON object; the folder is not used.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache
from pathlib import Path

from mutants.rounds import found, play_rounds

_SPEC = importlib.util.spec_from_file_location(
    "test_log_crash", Path(__file__).parents[1] / "crash" / "test_log_crash.py"
)
assert _SPEC is not None and _SPEC.loader is not None
crash = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(crash)

LIVES = 5
"""So many different lives."""


@cache
def calls_of(life: int) -> int:
    """How many calls a life has at which it can be cut."""
    return int(crash.calls_of(life, crash.STEPS).calls)


def play(seed: int) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    rng = random.Random(seed)
    life = rng.randrange(LIVES)
    cut = rng.randrange(1, calls_of(life) + 1)
    try:
        crash.run_once(life, cut, seed, crash.STEPS)
    except Exception as exc:  # an assertion of the harness, or an error of the log's own
        return f"life {life}, cut at call {cut}: {found(exc)}"
    return None


if __name__ == "__main__":
    play_rounds(play, first=int(sys.argv[2]), rounds=int(sys.argv[3]))
