"""Plays rounds of a harness until one finds something wrong, as a mutant or as the product is.

Owns both ends of it: `play_rounds`, which a harness calls in a process of its own, since a mutant must be there before
the product is imported; and `run_rounds`, by which a test starts that process and reads what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mutants.catalogue import MUTANTS
from mutants.rewriting import Mutant, switched_on
from tranlog import compiled

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What rounds have found. `caught_in` counts the rounds up to the one that did; None: nothing in any of them.

    `tally`: how often the rounds did what, where their harness counts it.
    """

    caught_in: int | None
    seed: int | None = None
    what: str = ""
    tally: dict[str, int] = field(default_factory=dict)


def play_rounds(
    play: Callable[[int], str | None], *, first: int, rounds: int, tally: Mapping[str, int] | None = None
) -> None:
    """Play rounds by their seeds, from `first` on, and print the outcome; `play` says what was wrong in one."""
    outcome = Outcome(caught_in=None)
    for number in range(rounds):
        wrong = play(first + number)
        if wrong is not None:
            outcome = Outcome(caught_in=number + 1, seed=first + number, what=wrong)
            break
    mutant = MUTANTS.get(os.environ.get("TRANLOG_MUTANT", ""))
    if mutant is not None and not switched_on(mutant):
        sys.exit(f"the mutant {mutant.name} was not switched on: these rounds prove nothing")
    told = {"caught_in": outcome.caught_in, "seed": outcome.seed, "what": outcome.what}
    print(json.dumps({**told, "tally": dict(sorted((tally or {}).items()))}))


def found(exc: Exception) -> str:
    """Say what an exception has found: its text, or the line of the harness that raised it."""
    said = str(exc) or traceback.extract_tb(exc.__traceback__)[-1].line
    return f"{type(exc).__name__}: {said}"


def run_rounds(harness: str, mutant: Mutant | None, folder: Path, *more: str, rounds: int, first: int = 1) -> Outcome:
    """Play rounds of a harness of this folder, in a process of its own, and return what they found."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"{harness}.py"), str(folder), str(first), str(rounds), *more],
        env=environment(mutant),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{harness}: exit code {done.returncode}\n{done.stderr}"
    return Outcome(**json.loads(done.stdout))


def environment(mutant: Mutant | None) -> dict[str, str]:
    """Return the environment in which a process becomes the mutant, and finds the tests' own modules.

    Without the mutant's pauses: where chance or the seed says who goes on, nothing needs to be widened.
    """
    path = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TRANLOG_MUTANT")}
    made = {**kept, "PYTHONPATH": os.pathsep.join(path)}
    if mutant is not None:
        made |= {"TRANLOG_MUTANT": mutant.name, "TRANLOG_MUTANT_PAUSE": "0"}
        if any(edit.module in compiled.MODULES for edit in mutant.edits):
            made[compiled.PLAIN_VARIABLE] = "1"  # compiled modules call each other without an import
    return made
