"""Rounds of the model of channels that meet by write sets, each all interleavings of a log that its seed draws.

`python writes_rounds.py FOLDER FIRST ROUNDS` prints one JSON object: the first round in which something was wrong, and
what. FOLDER is not used.
"""

from __future__ import annotations

import sys

from mutants.rounds import play_rounds
from mutants.writes_model import Broken, drawn, drawn_lie


def play(seed: int) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    try:
        drawn(seed, lengths=(3, 4), keys=2).explore()
        drawn_lie(seed).explore()
    except Broken as exc:
        return str(exc)
    return None


if __name__ == "__main__":
    play_rounds(play, first=int(sys.argv[2]), rounds=int(sys.argv[3]))
