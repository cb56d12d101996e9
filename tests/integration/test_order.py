"""Order at the target is order in the log, over random workloads, channels and kills.

`mutants/order_rounds` plays the rounds at a real PostgreSQL, `mutants.order` judges them; and of each rule on
which order rests, a mutant without it is found. A round's seed is in what is found; `order_rounds.py` replays it, and
`make order ROUNDS=200` plays many more, with the mutants behind them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.check_order import FOUND_BY, HARNESS, MUTANT_ROUNDS, PARALLEL_LEAST, WAITED_LEAST, kind_for, shares
from mutants.order_workload import SHARDS_BY
from mutants.rewriting import Mutant
from mutants.rounds import run_rounds
from tranlog.pipeline.rules.channels import Parallelization, ShardBy

DRAWN = (
    *[f"started {how.value}" for how in Parallelization],
    *[f"planned by {by.value}" for by in (*SHARDS_BY, ShardBy.WRITES)],
    *("planned with lines of a shard.list", "planned with critical shards"),
    *("re-planned while it ran", "ended and started anew", "tasks killed or stopped", "drivers killed or stopped"),
)

pytestmark = pytest.mark.integration


@pytest.mark.timeout(600)
def test_the_order_of_the_log_is_the_targets(tmp_path: Path, postgres, postgres_database) -> None:
    found = run_rounds(HARNESS, None, tmp_path, postgres.dsn(postgres_database), rounds=10)
    assert found.caught_in is None, found
    assert found.tally["planned by writes"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_order_of_the_log_is_the_targets_in_many_more(tmp_path: Path, postgres, postgres_database) -> None:
    """ "finds nothing in 200 seeded runs", in which everything that can be drawn is."""
    found = run_rounds(HARNESS, None, tmp_path, postgres.dsn(postgres_database), rounds=200, first=1_000)
    assert found.caught_in is None, found
    assert min(found.tally.get(name, 0) for name in DRAWN) > 0, found.tally
    by_writes = shares(found.tally)
    assert by_writes["in parallel"] >= PARALLEL_LEAST and by_writes["waited"] >= WAITED_LEAST, by_writes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", FOUND_BY, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant, tmp_path: Path, postgres, postgres_database) -> None:
    """ "and finds each mutant (no wait at a serial section, shard order broken, position ahead of rows)"."""
    where = postgres.dsn(postgres_database), kind_for(mutant)
    found = run_rounds(HARNESS, mutant, tmp_path, *where, rounds=MUTANT_ROUNDS)
    assert found.caught_in is not None, f"{mutant.what}: not seen in {MUTANT_ROUNDS} rounds"
    assert found.what.startswith(FOUND_BY[mutant]), found
