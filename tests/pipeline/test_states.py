"""The states; conformance/tungsten.md A9, "State machine"."""

from __future__ import annotations

import pytest

from tranlog.pipeline.rules.states import Happening, Refused, State, step

# Rows: state; columns: ready, asked online, running, stuck, asked offline, ended, failed. "-" is a refusal.
TABLE = """
START                      OFFLINE:NORMAL -                          -             -               -              -              -
OFFLINE:NORMAL             -              GOING-ONLINE:SYNCHRONIZING -             -               OFFLINE:NORMAL -              -
OFFLINE:ERROR              -              GOING-ONLINE:SYNCHRONIZING -             -               OFFLINE:NORMAL -              -
GOING-ONLINE:SYNCHRONIZING -              -                          ONLINE        ONLINE:DEGRADED GOING-OFFLINE  OFFLINE:NORMAL OFFLINE:ERROR
ONLINE                     -              -                          ONLINE        ONLINE:DEGRADED GOING-OFFLINE  OFFLINE:NORMAL OFFLINE:ERROR
ONLINE:DEGRADED            -              -                          ONLINE        ONLINE:DEGRADED GOING-OFFLINE  OFFLINE:NORMAL OFFLINE:ERROR
GOING-OFFLINE              -              -                          GOING-OFFLINE GOING-OFFLINE   GOING-OFFLINE  OFFLINE:NORMAL OFFLINE:ERROR
"""  # noqa: E501

ROWS = [line.split() for line in TABLE.strip().splitlines()]


def test_the_table_is_whole() -> None:
    assert [State(row[0]) for row in ROWS] == list(State)
    assert {len(row) for row in ROWS} == {len(Happening) + 1}


@pytest.mark.parametrize(
    ("state", "happening", "expected"),
    [(State(row[0]), happening, row[1:][number]) for row in ROWS for number, happening in enumerate(Happening)],
)
def test_each_step(state: State, happening: Happening, expected: str) -> None:
    found = step(state, happening)
    if expected == "-":
        assert isinstance(found, Refused)
        assert (found.state, found.happening) == (state, happening) and found.why and found.remedy
    else:
        assert found == State(expected)


def test_every_state_is_reached_and_left() -> None:
    """No state is a trap: from each, some happenings lead online, and some offline."""
    for state in State:
        seen, edge = {state}, [state]
        while edge:
            here = edge.pop()
            for happening in Happening:
                there = step(here, happening)
                if isinstance(there, State) and there not in seen:
                    seen.add(there)
                    edge.append(there)
        assert {State.ONLINE, State.OFFLINE_NORMAL, State.OFFLINE_ERROR} <= seen


@pytest.mark.parametrize("state", [State.ONLINE, State.DEGRADED, State.GOING_ONLINE, State.GOING_OFFLINE])
def test_a_refusal_says_what_to_do(state: State) -> None:
    found = step(state, Happening.ASKED_ONLINE)
    assert isinstance(found, Refused)
    assert "`tranlog " in found.remedy
