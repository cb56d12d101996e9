"""The tiers of `make test`: which tests each has, how much of a test it runs, what it prints of the time it took."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from fix_conformance import is_of_tier
from fix_effort import Effort, explores, few_of

TESTS = Path(__file__).parent
MARKERS = ("integration", "spark", "e2e", "long", "slow")


def test_every_test_is_in_one_tier() -> None:
    """By the Makefile's own expressions; `make plain` runs some of `make unit` once more, by the same one."""
    expressions = dict.fromkeys(re.findall(r'-m "([^"]+)"', (TESTS.parent / "Makefile").read_text()))
    for some in chain.from_iterable(combinations(MARKERS, count) for count in range(len(MARKERS) + 1)):
        heavy = not {"spark", "e2e"}.isdisjoint(some)
        server = not heavy and "integration" in some
        light = not heavy and not server
        tiers = [light and "long" not in some, light and "long" in some, server, heavy]
        expected = [False] * 4 if "slow" in some else tiers
        assert [is_of_tier(frozenset(some), one) for one in expressions] == expected, some
        assert is_of_tier(frozenset(some), "")


def test_what_explores_runs_in_short_and_at_length(effort: Effort, request: pytest.FixtureRequest) -> None:
    """This one does: without `--few` it is marked, and `make test` runs it again."""
    few = request.config.option.few
    assert explores(request.node) and (request.node.get_closest_marker("long") is None) == few
    assert effort("few", "more", "most") == ("few" if few else "most" if request.config.option.soak else "more")


@pytest.mark.parametrize(("soak", "few", "size"), [(False, True, 1), (False, False, 2), (True, False, 3)])
def test_the_options_choose_the_size(soak: bool, few: bool, size: int) -> None:
    config: Any = SimpleNamespace(getoption={"--soak": soak, "--few": few}.__getitem__)
    assert Effort(config)(1, 2, 3) == size


def test_hypothesis_explores() -> None:
    @given(st.none())
    def drawn(_: None) -> None: ...

    def plain() -> None: ...

    machine = type("Machine", (RuleBasedStateMachine,), {}).TestCase("runTest")  # type: ignore[attr-defined]
    items: list[Any] = [SimpleNamespace(obj=one, fixturenames=()) for one in (drawn, machine.runTest, plain)]
    assert [explores(item) for item in items] == [True, True, False]


def test_cases_after_the_first_are_left_to_make_test() -> None:
    first, *others = few_of(range(3))
    assert first == 0
    assert [(one.values, [mark.name for mark in one.marks]) for one in others] == [((1,), ["long"]), ((2,), ["long"])]
    assert few_of([(1, 2), (3, 4)])[1].values == (3, 4)


@pytest.mark.long
def test_the_slowest_and_the_seconds_of_each_folder_are_printed(tmp_path: Path) -> None:
    """Under xdist, where the processes that ran the tests are not the one that prints."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text("def test_a(tmp_path): pass\ndef test_b(): assert False\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "fix_durations", "--durations=10", "-vv"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "slowest 10 durations" in done.stdout and "one/test_one.py::test_a" in done.stdout
    folders = re.findall(r"^ +\d+\.\d ([a-z]+)$", done.stdout.split("seconds by folder")[1], re.MULTILINE)
    assert sorted(folders[:2]) == ["one", "two"] and folders[2:] == ["all"]
