"""Groups in one thread, from seeds: nothing that a majority acknowledged is lost, whatever fails; then all is whole
again.

Proves conformance/tokumx.md, part B: 2 to 5, 7 to 9, 13 to 23, 25 to 27, 29 to 36; conformance/vlsn-index.md I37, I38,
I40, I43 to I46.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_effort import Effort
from sim.group import Counts
from sim.swarm import Swarm, kept_seeds, main, simulate

KEPT = Path(__file__).parent / "seeds.txt"


@pytest.mark.timeout(900)
def test_fixed_seeds(effort: Effort) -> None:
    """`make sim SEEDS=n SEED=s` plays others."""
    result = simulate([*kept_seeds(KEPT), *range(1, effort(1, 200, 2000) + 1)])
    assert result["violations"] == 0, f"replay: make sim SEEDS=1 SEED={result['seed']}\n{result}"
    assert all(int(str(result[name])) > 0 for name in ("elections", "commits", "acknowledged", "crashes"))


def test_one_seed_takes_the_same_steps() -> None:
    one, other = Swarm(7), Swarm(7)
    assert one.play() == other.play()
    assert one.cluster.trace == other.cluster.trace


@pytest.mark.long
def test_wrong_clocks_change_nothing() -> None:
    """Inv 25: hours of difference to the true time change no election, no order and no commit."""
    one, other = Swarm(3), Swarm(3, skew=-7_200_000)
    assert one.play() == other.play()
    assert one.cluster.checkers.truth == other.cluster.checkers.truth


def test_a_failing_seed_is_kept_and_played_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, played = tmp_path / "seeds.txt", list[int]()

    def play(seed: int) -> tuple[Counts, str, list[str]]:
        played.append(seed)
        return Counts(steps=1), "14: lost" if seed == 6 else "", ["the last step"]

    monkeypatch.setattr("sim.swarm.play", play)
    kept.write_text("# seeds\n9  # why\n")
    arguments = ["--seeds", "5", "--seed", "4", "--kept", str(kept)]
    assert main(arguments) == 1
    assert played == [9, 4, 5, 6]
    told = json.loads(capsys.readouterr().out)
    assert (told["seed"], told["violation"], told["trace"], told["steps"]) == (6, "14: lost", ["the last step"], 4)
    assert kept_seeds(kept) == [9, 6]
    played.clear()
    assert main(arguments) == 1
    assert played == [9, 6] and kept_seeds(kept) == [9, 6]
