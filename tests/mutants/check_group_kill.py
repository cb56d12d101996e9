"""Does `make group-kill` see a rule of replication that is taken out of the nodes' processes? `python -m
mutants.check_group_kill`, from the folder of the tests, prints mutant, rounds needed, what found it.

Each is played by the harms that its rule is for, judged after each round; it fails if `WITHIN` rounds find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mutants.catalogue import MUTANTS

WITHIN = 20
PROGRAM = Path(__file__).parents[1] / "kill" / "group_kill.py"
HARMS = {
    "no-ack-gate": ("step_down,forced_step_down,freeze", "forsworn"),
    "vote-kept-in-memory": ("kill_replica,kill_primary,kill_all", "forsworn"),
    "one-ack-too-few": ("cut_off_primary,kill_primary", "failed"),
    "mark-before-saving": ("cut_off_primary,stop_primary_long", "unaccounted"),
    "commit-by-number": ("cut_off_primary,stop_primary_long", "failed"),
}
"""By mutant: the harms that show it, and what of the one object does. `failed`: committed history differs, a node is
FATAL.
"""
WITH_WITNESS = frozenset(("vote-kept-in-memory",))
"""Played with two nodes and a witness: no log reminds that one of an epoch."""


def play(name: str, folder: Path, *, rounds: int = WITHIN, seed: int = 1) -> dict:
    """Run the rounds as a mutant, until something is wrong; return the one object, and `said` beside it."""
    harms, _ = HARMS[name]
    command = [sys.executable, str(PROGRAM), str(folder), f"--rounds={rounds}", f"--seed={seed}", "--first"]
    command += ["--only", harms, "--path", str(Path(__file__).parent), *(["--witness"] if name in WITH_WITNESS else [])]
    env = {**os.environ, "TRANLOG_MUTANT": name, "TRANLOG_MUTANT_PAUSE": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "said": done.stderr}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the mutants; return 0 where each is found by what should find it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    blind = 0
    for name, (_, shown) in HARMS.items():
        if given.only in name:
            assert name in MUTANTS
            with tempfile.TemporaryDirectory(prefix="tranlog-mutant-") as folder:
                result = play(name, Path(folder), seed=given.seed)
            blind += not result.get(shown)
            told = {"mutant": name, "rounds": result["rounds"], shown: result.get(shown)}
            print(json.dumps({**told, "harms": result["harms"]}), flush=True)
    return int(blind > 0)


if __name__ == "__main__":
    sys.exit(main())
