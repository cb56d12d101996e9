"""Every order of events in a small group: `make small` goes further.

Proves conformance/tokumx.md, part B, 4, 14, 16, 19, 26, in the manner of its part C2.
"""

from __future__ import annotations

import msgspec
import pytest

from fix_effort import Effort
from sim.small_scope import SCOPES, Explorer, GroupState, Scope
from tranlog.replication.rules import election

THREE = SCOPES[0].members


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
@pytest.mark.timeout(600)
def test_nothing_is_violated(scope: Scope, effort: Effort) -> None:
    states, _, violation, way = Explorer(scope).explore(effort(2_000, 20_000, 1_000_000))
    assert not violation, way
    assert states >= 2_000


def test_a_group_of_one_is_walked_to_its_end() -> None:
    states, depth, violation, way = Explorer(Scope("one", THREE[:1], epochs=3, length=3, crashes=2)).explore()
    assert not violation, way
    assert (states, depth) == (3885, 18)


@pytest.mark.long
def test_a_voter_that_does_not_look_at_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.small_scope.vote_refused", blind_to_logs)
    _, depth, violation, _ = Explorer(Scope("blind", THREE)).explore(400_000)
    assert "was committed before" in violation and depth >= 8


def blind_to_logs(voter: election.Voter, candidate: str, request: object) -> str:
    why = election.vote_refused(voter, candidate, request)  # type: ignore[arg-type]
    return "" if "log ends" in why else why


class Forgetful(Explorer):
    """Nodes whose vote a crash takes."""

    def _crashed(self, state: GroupState, i: int) -> GroupState:
        after = super()._crashed(state, i)
        nodes = list(after.nodes)
        nodes[i] = msgspec.structs.replace(nodes[i], voted=0, voted_for=-1, epoch=0)
        return msgspec.structs.replace(after, nodes=tuple(nodes))


@pytest.mark.long
def test_a_vote_that_a_crash_takes_is_found() -> None:
    _, depth, violation, _ = Forgetful(Scope("forgetful", THREE, epochs=1, crashes=1)).explore(400_000)
    assert "a second primary of epoch 1" in violation and depth >= 5
