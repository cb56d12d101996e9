"""`make kill`, smaller; and its own decisions: which harms a seed does, and what the judge calls lost and doubled."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import kill_harms
import kill_judge
import kill_rounds
from demo_steps import Process
from kill_live import LiveVerifications

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "kill" / "kill_rounds.py"

pytestmark = pytest.mark.e2e


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that the servers' own users may pass; those of pytest are closed to them."""
    with tempfile.TemporaryDirectory(prefix="tranlog-kill-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(
    ("services", "target"),
    [
        ("mariadb,sqlite", "postgres"),
        pytest.param("mariadb,sqlite,postgres", "mariadb", marks=pytest.mark.slow),
        pytest.param("postgres", "mariadb", marks=pytest.mark.slow),
        pytest.param("foreign", "postgres", marks=pytest.mark.slow),
    ],
)
def test_kills_lose_and_double_nothing(public: Path, rounds: int, services: str, target: str) -> None:
    """A few rounds at each push, fifty when soaking; the harms and the waits come from the seed."""
    command = [sys.executable, str(PROGRAM), str(public / "kill"), f"--rounds={rounds}", "--seed=2"]
    command += ["--target", target, "--services", services]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300 + 120 * rounds)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["missed"], result["lost"], result["doubled"], result["equal"]) == (0, 0, 0, True)
    kinds = kill_rounds.Options(services=services.split(",")).kinds
    planned = kill_harms.plan(kinds, services.split(","), rounds, 2)
    assert result["rounds"] == rounds and sum(result["kills"].values()) == sum(map(len, planned))
    assert 0 < result["acknowledged"] <= result["captured"] == result["applied"]
    assert all(one["acknowledged"] > 0 for one in result["services"].values())


def test_each_kind_comes_at_least_four_times_in_fifty_rounds() -> None:
    """Each kind comes to each service that can suffer it."""
    kinds = kill_harms.KINDS
    for seed in range(50):
        planned = kill_harms.plan(list(kinds), kill_rounds.SERVICES, 50, seed)
        harms = [harm for of_round in planned for harm in of_round]
        counted = Counter(harm.kind for harm in harms)
        assert len(planned) == 50 and all(of_round for of_round in planned)
        assert set(counted) == set(kinds) and min(counted.values()) >= 4, f"seed {seed}: {counted}"
        assert {(harm.kind, harm.service) for harm in harms} == {
            (name, service) for name, kind in kinds.items() for service in kind.services
        }


def test_a_seed_repeats_its_harms() -> None:
    def plan(seed: int) -> object:
        return kill_harms.plan(list(kill_harms.KINDS), kill_rounds.SERVICES, 20, seed)

    assert plan(4) == plan(4)
    assert plan(4) != plan(5)


def test_the_judge_counts_what_is_lost_and_what_is_doubled() -> None:
    """Equal tables hide a double: only the counts show it, also of a table without a key."""
    logged = Counter(
        {("s.ledger", "INSERT", "|0"): 1, ("s.ledger", "INSERT", "|7"): 1, ("s.visits", "INSERT", "|1"): 3}
    )

    def weigh(
        counted: Counter[tuple[str, str, str]],
        *,
        acknowledged: list[int],
        of_log: Counter = logged,
        streams: int = 1,
        refused: int = 0,
    ):  # type: ignore[no-untyped-def, type-arg]
        there = {int(key[1:]) for relation, _, key in counted if relation == "s.ledger"}
        return kill_judge.weigh(
            acknowledged=acknowledged,
            ledgers=["s.ledger"],
            logged=of_log,
            streamed=Counter({("s.ledger", "|0"): 1, ("s.ledger", "|7"): streams}),
            counted=counted,
            there=there,
            refused=refused,
            equal=True,
        )

    good = weigh(logged, acknowledged=[7])
    assert good.good and not weigh(logged, acknowledged=[7], refused=1).good
    assert (good.acknowledged, good.captured, good.applied, good.changes) == (1, 1, 1, 5)
    twice = weigh(logged + Counter({("s.visits", "INSERT", "|1"): 1}), acknowledged=[7])
    assert (twice.doubled, twice.lost, twice.good) == (1, 0, False)
    once_less = weigh(logged - Counter({("s.ledger", "INSERT", "|7"): 1}), acknowledged=[7])
    assert (once_less.doubled, once_less.lost, once_less.missed) == (0, 2, 0)  # the transaction and its change
    not_captured = weigh(logged, acknowledged=[7, 8])
    assert (not_captured.missed, not_captured.lost) == (1, 1)
    assert weigh(logged, acknowledged=[7], streams=2).doubled == 1
    replaced = logged + Counter({("s.ledger", "DELETE", "|7"): 1, ("s.ledger", "INSERT", "|7"): 1})
    again = weigh(replaced, acknowledged=[7], of_log=replaced)
    assert again.good and again.applied == 1


@pytest.mark.parametrize(("code", "counted"), [(1, {"equal": 1, "not judged": 1, "differs": 1}), (4, {})])
def test_a_live_verification_is_counted_by_its_verdicts(tmp_path: Path, code: int, counted: dict[str, int]) -> None:
    """One that found a server away has none; one that found a difference fails the run."""
    told = json.dumps({"equal": False, "tables": [{"verdict": one} for one in ("equal", "not judged", "differs")]})
    program = f"import sys; print('verify: waits', file=sys.stderr); print({told!r}); sys.exit({code})"
    live = LiveVerifications(process=Process("verify", [sys.executable, "-c", program], tmp_path))
    while not live.is_over():
        time.sleep(0.01)
    assert dict(live.verdicts) == counted
    nothing = dict.fromkeys(("acknowledged", "captured", "applied", "changes", "missed", "lost", "doubled"), 0)
    good = kill_judge.Verdict(**nothing, refused=0, equal=True, by_writes=None)
    assert good.good and not dataclasses.replace(good, differing_live=1).good
