"""That the simulation is not blind: each rule of replication that is taken out is found within so many seeds.

`make sim-mutants` prints mutant, seeds needed, and what found it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_effort import few_of
from mutants.check_replication import HARNESS, WITHIN
from mutants.replication_rules import REPLICATION
from mutants.rewriting import Mutant
from mutants.rounds import run_rounds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", few_of([*REPLICATION]), ids=lambda mutant: mutant.name)
def test_each_mutant_is_found(mutant: Mutant, tmp_path: Path) -> None:
    found = run_rounds(HARNESS, mutant, tmp_path, rounds=WITHIN)
    assert found.caught_in is not None, mutant.what
