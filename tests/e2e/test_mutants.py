"""`make kill` itself, run with a mutant in the product's place, sees what it does.

The whole harness, started as a user would: `tests/kill/kill_rounds.py --path tests/mutants`, TRANLOG_MUTANT in the
environment, a judgement after each round, the end at the first thing that is wrong. The harness is not the mutant; the
commands that it starts are, and with them Spark's driver and workers. A mutant widens its own window by a pause.

Not here, and why: `no-token` harms only where all channels stand at one seqno when a stale task has a group in hand and
the successor has another number of channels; tests/pipeline/test_mutants.py brings that about. What
`acknowledged-before-sync` does, no kill of a process can show, since the system still has what was written:
tests/crash/test_mutants.py cuts the power.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutants.catalogue import (
    CHANNEL_0_DOES_NOT_WAIT,
    NO_GUARD,
    OTHERS_DO_NOT_WAIT,
    OUTBOX_FREED_BEFORE_SYNC,
    POSITION_AFTER_COMMIT,
)
from mutants.rewriting import Mutant

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place that the servers' users may pass, which pytest's own is not."""
    place = Path(tempfile.mkdtemp(prefix="tranlog-mutant-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mutant", "pause_s", "harms", "within", "seen"),
    [
        # The rows again: a change counted twice, or refused by a key.
        pytest.param(
            POSITION_AFTER_COMMIT,
            0.1,
            "worker,driver",
            6,
            ("doubled", "conflict at seqno"),
            id=POSITION_AFTER_COMMIT.name,
        ),
        pytest.param(NO_GUARD, 4.0, "stopped_worker", 8, ("doubled", "conflict at seqno"), id=NO_GUARD.name),
        # Gone from the outbox, and the log never got it.
        pytest.param(
            OUTBOX_FREED_BEFORE_SYNC,
            0.2,
            "capture",
            6,
            ("missed", "has already freed its changes"),
            id=OUTBOX_FREED_BEFORE_SYNC.name,
        ),
        # The last writer of a row is another than at the source.
        pytest.param(
            CHANNEL_0_DOES_NOT_WAIT, 1.0, "worker", 6, ("unequal", "conflict at seqno"), id=CHANNEL_0_DOES_NOT_WAIT.name
        ),
        pytest.param(
            OTHERS_DO_NOT_WAIT, 1.0, "worker", 6, ("unequal", "conflict at seqno"), id=OTHERS_DO_NOT_WAIT.name
        ),
    ],
)
def test_make_kill_catches_a_mutant(
    mutant: Mutant, pause_s: float, harms: str, within: int, seen: tuple[str, str], folder: Path
) -> None:
    result, said = kill_rounds(folder, mutant, pause_s, harms, within)
    figure, words = seen
    wrong = [name for name in ("missed", "lost", "doubled") if result[name]]
    if result["equal"] is False:
        wrong.append("unequal")
    assert figure in wrong or words in str(result.get("failed", "")), (result, said)
    assert result["rounds"] <= within


def kill_rounds(folder: Path, mutant: Mutant, pause_s: float, harms: str, rounds: int) -> tuple[dict, str]:
    """Run `make kill`'s program until something is wrong; return its one object, and what it said beside."""
    arguments = ["--rounds", str(rounds), "--services", "sqlite", "--only", harms, "--first"]
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "kill" / "kill_rounds.py"),
            str(folder / "kill"),
            *arguments,
            "--path",
            str(ROOT / "tests" / "mutants"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "examples"),
            "TRANLOG_MUTANT": mutant.name,
            "TRANLOG_MUTANT_PAUSE": str(pause_s),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"{mutant.what}: not seen in {rounds} rounds\n{done.stdout}\n{done.stderr}"
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr
