"""Each rule of the message store that a mutant takes away is held by a test: that test fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fix_conformance import ROOT
from mutants.queue_rules import QUEUES
from mutants.rewriting import Mutant
from mutants.rounds import environment

pytestmark = pytest.mark.long


@pytest.mark.parametrize("mutant", QUEUES, ids=[one.name for one in QUEUES])
def test_a_mutant_of_the_message_store_is_found(mutant: Mutant) -> None:
    """A mutant that does not fit the source ends its process with another exit code than that of a failed test."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--few", "-p", "no:cacheprovider", QUEUES[mutant]]
    made = {key: text for key, text in environment(mutant).items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=made, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, f"{mutant.what}: not found\n{done.stdout}{done.stderr}"
    assert f"FAILED {QUEUES[mutant].partition('[')[0]}" in done.stdout, done.stdout
