"""Rounds of a capture from a SQLite outbox: each is cut at one more call that the log makes, and what comes after it.

The harness is that of tests/capture/test_capture_crash.py: the real capture loop and outbox, and the real log on a disk
that forgets what was not synced. `python outbox_rounds.py FOLDER FIRST ROUNDS` prints one JSON object.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from mutants.rounds import found, play_rounds

_SPEC = importlib.util.spec_from_file_location(
    "test_capture_crash", Path(__file__).parents[1] / "capture" / "test_capture_crash.py"
)
assert _SPEC is not None and _SPEC.loader is not None
crash = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(crash)

CALLS = 36
"""Each life makes so many calls at least; a round cuts it at one of them, and each next one at the fifth behind it."""


def play(folder: Path, seed: int) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    call = 1 + seed * 5 % CALLS
    try:
        crash.cut_at(folder / f"{seed}.db", call, seed)
    except Exception as exc:  # an assertion of the harness, or an error of the capture's own
        return f"cut at call {call}: {found(exc)}"
    return None


if __name__ == "__main__":
    place = Path(sys.argv[1])
    play_rounds(lambda seed: play(place, seed), first=int(sys.argv[2]), rounds=int(sys.argv[3]))
