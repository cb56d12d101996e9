"""Groups in one thread, from seeds: nothing that a majority acknowledged is lost, whatever fails; then all is whole
again.

Proves conformance/tokumx.md, part B: 2 to 6, 14 to 23, 25 to 27, 29, 30, 34 to 36; conformance/vlsn-index.md I37, I40,
I44, I45.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_effort import Effort
from tranlog.testing.swarm import Swarm, kept_seeds, simulate

KEPT = Path(__file__).parent / "seeds.txt"


def test_seeds_that_failed_once() -> None:
    assert simulate(kept_seeds(KEPT)[:3])["violations"] == 0


@pytest.mark.timeout(900)
def test_fixed_seeds(effort: Effort) -> None:
    """`make sim SEEDS=n SEED=s` plays others."""
    result = simulate([*kept_seeds(KEPT)[3:], *range(1, effort(20, 200, 2000) + 1)])
    assert result["violations"] == 0, f"replay: make sim SEEDS=1 SEED={result['seed']}\n{result}"
    assert all(int(str(result[name])) > 0 for name in ("elections", "commits", "acknowledged", "crashes"))


def test_one_seed_takes_the_same_steps() -> None:
    one, other = Swarm(7), Swarm(7)
    assert one.play() == other.play()
    assert one.cluster.trace == other.cluster.trace


def test_wrong_clocks_change_nothing() -> None:
    """Inv 25: hours of difference to the true time change no election, no order and no commit."""
    one, other = Swarm(3), Swarm(3, skew=-7_200_000)
    assert one.play() == other.play()
    assert one.cluster.checkers.truth == other.cluster.checkers.truth
