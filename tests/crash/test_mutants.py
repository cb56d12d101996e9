"""The two mutants of capture and log are caught by cutting the power at calls of the log's disk.

Each within the number of rounds that stands here; over the same rounds the product as it is shows nothing. A kill of
the process alone shows the freed outbox, too; a log that acknowledges before its sync it cannot show, since the
system still has what was written: there the loss of power is the only proof.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.catalogue import ACKNOWLEDGED_BEFORE_SYNC, OUTBOX_FREED_BEFORE_SYNC
from mutants.outbox_rounds import crash
from mutants.rewriting import Mutant
from mutants.rounds import environment, found, run_rounds
from tranlog.errors import PositionLostError

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("harness", "mutant", "within", "what"),
    [
        pytest.param(
            "log_rounds",
            ACKNOWLEDGED_BEFORE_SYNC,
            100,
            "AssertionError|CorruptRecordError",
            id=ACKNOWLEDGED_BEFORE_SYNC.name,
        ),
        pytest.param(
            "outbox_rounds",
            OUTBOX_FREED_BEFORE_SYNC,
            40,
            "AssertionError|PositionLostError",
            id=OUTBOX_FREED_BEFORE_SYNC.name,
        ),
    ],
)
def test_a_mutant_is_caught(harness: str, mutant: Mutant, within: int, what: str, tmp_path: Path) -> None:
    played = run_rounds(harness, mutant, tmp_path, rounds=within)
    assert played.caught_in is not None, f"{mutant.what}: not seen in {within} rounds"
    assert any(f": {name}: " in played.what for name in what.split("|")), played


@pytest.mark.parametrize(("harness", "rounds"), [("log_rounds", 100), ("outbox_rounds", 40)])
def test_the_product_shows_nothing_in_the_same_rounds(harness: str, rounds: int, tmp_path: Path) -> None:
    played = run_rounds(harness, None, tmp_path, rounds=rounds)
    assert played.caught_in is None, played


def test_a_kill_of_the_process_shows_the_freed_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that is ended when it has freed its second batch; the capture that comes after it is the product."""
    for name, text in environment(OUTBOX_FREED_BEFORE_SYNC).items():
        monkeypatch.setenv(name, text)
    with pytest.raises((AssertionError, PositionLostError)) as caught:
        crash.test_a_process_that_ends_between_two_steps("release-after", 3, tmp_path)
    assert "returncode" not in found(caught.value), "it did not end where it was to"
