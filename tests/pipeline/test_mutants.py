"""Five of the seven mutants are caught by rounds of channels at work (`mutants/channel_rounds`).

Each within the number of rounds that stands here; over all of these rounds the product as it is shows nothing. Each
round is decided by its seed, so a mutant is caught in the same round every time until the product itself changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.catalogue import (
    CHANNEL_0_DOES_NOT_WAIT,
    NO_GUARD,
    NO_TOKEN,
    OTHERS_DO_NOT_WAIT,
    POSITION_AFTER_COMMIT,
)
from mutants.rewriting import Mutant
from mutants.rounds import run_rounds

pytestmark = pytest.mark.long

HARNESS = "channel_rounds"
ROUNDS = 60


@pytest.mark.parametrize(
    ("mutant", "within", "what"),
    [
        pytest.param(POSITION_AFTER_COMMIT, 10, "doubled", id=POSITION_AFTER_COMMIT.name),
        pytest.param(NO_GUARD, 10, "doubled|lost", id=NO_GUARD.name),
        pytest.param(CHANNEL_0_DOES_NOT_WAIT, ROUNDS, "wrong order", id=CHANNEL_0_DOES_NOT_WAIT.name),
        pytest.param(OTHERS_DO_NOT_WAIT, 20, "wrong order", id=OTHERS_DO_NOT_WAIT.name),
    ],
)
def test_a_mutant_is_caught(mutant: Mutant, within: int, what: str, tmp_path: Path) -> None:
    found = run_rounds(HARNESS, mutant, tmp_path, rounds=within)
    assert found.caught_in is not None, f"{mutant.what}: not seen in {within} rounds"
    assert found.what.startswith(tuple(what.split("|"))), found


def test_the_product_shows_nothing_in_the_same_rounds(tmp_path: Path) -> None:
    found = run_rounds(HARNESS, None, tmp_path, rounds=ROUNDS)
    assert found.caught_in is None, found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 60_000, 10_000))
def test_the_product_shows_nothing_in_many_more(first: int, tmp_path: Path) -> None:
    found = run_rounds(HARNESS, None, tmp_path, rounds=2_000, first=first)
    assert found.caught_in is None, found


@pytest.mark.parametrize("limits", [("takes-alone",), ()], ids=["while-nobody-else-moves", "while-others-move"])
def test_no_token_is_caught_when_the_plan_changes(limits: tuple[str, ...], tmp_path: Path) -> None:
    """A stale task of the plan before stands where a channel of the new one stands, and applies what is not its own.

    The other way to harm, a position that moves between its reading and its writing back in a take-over, is shut out
    in the first case: there nothing but another number of channels makes the difference, as the next test shows.
    """
    found = run_rounds(HARNESS, NO_TOKEN, tmp_path, *limits, rounds=ROUNDS)
    assert found.caught_in is not None, f"{NO_TOKEN.what}: not seen in {ROUNDS} rounds"
    assert found.what.startswith(("doubled", "lost")), found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_under_one_plan_the_old_position_is_enough(tmp_path: Path) -> None:
    """ "The comparison with the old position alone keeps exactly-once"."""
    found = run_rounds(HARNESS, NO_TOKEN, tmp_path, "same-channels", "takes-alone", rounds=500)
    assert found.caught_in is None, found
