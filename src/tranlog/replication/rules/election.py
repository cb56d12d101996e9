"""The rules of an election: which candidate gets a vote, and which node stands.

Owns these rules, each a function or a line of its own; `core` applies them in turn. A vote is refused with a reason,
which is sent to the candidate and shown to people.

Source: docs/protocol.md, "Elections"; tokumx-replication (Safety).
"""

from __future__ import annotations

from typing import Final

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules.config import NO_NODE, GroupConfig, Member, NodeId, election_majority
from tranlog.replication.rules.packets import FATAL, PRIMARY, REMOVED, RESTORING, PreVote, Vote

PATIENCE_LEAST, PATIENCE_MOST = 4, 8
"""A node stands after so many heartbeats without a primary, drawn anew each time."""


class Voter(msgspec.Struct, frozen=True):
    """The facts on which a voter's answer depends. `last` is None for a witness, which has no log."""

    node: NodeId
    config: GroupConfig
    state: int
    epoch: int
    voted_epoch: int
    voted_for: NodeId
    last: Gtid | None
    hears_primary: bool
    owing: bool


LOST_ITS_LOG: Final = (
    "my log lost what was durable, and I do not vote before it holds what a primary has committed; where no primary "
    "can come, in a group of one or where a majority lost its logs' ends: tranlog group reconfigure --force"
)


def vote_refused(voter: Voter, candidate: NodeId, request: PreVote | Vote) -> str:
    """Return why the candidate does not get this vote; empty if it gets it."""
    own = voter.config.member(voter.node)
    if own is None or not own.votes or voter.state in (FATAL, REMOVED):
        return "I do not vote"
    if voter.owing or voter.state == RESTORING:
        return LOST_ITS_LOG
    if request.config < voter.config.id:
        return "the candidate's configuration is older than mine"
    member = voter.config.member(candidate)
    if request.config == voter.config.id and (member is None or not member.electable):
        return "the candidate may not be primary by the configuration"
    if voter.state == PRIMARY:
        return "I am primary"
    if voter.hears_primary and not (isinstance(request, Vote) and request.transfer):
        return "I hear a primary"
    if request.epoch < voter.epoch:
        return f"the candidate's epoch is {request.epoch}, and {voter.epoch} has begun"
    if request.epoch <= voter.voted_epoch and not (
        request.epoch == voter.voted_epoch and candidate == voter.voted_for and isinstance(request, Vote)
    ):
        return f"I have voted in epoch {voter.voted_epoch}"
    if voter.last is not None and request.last < voter.last:
        return f"the candidate's log ends at {request.last}, mine at {voter.last}"
    return ""


class Campaign(msgspec.Struct):
    """A node that stands: for a pre-vote, then for the vote of `epoch`."""

    epoch: int
    pre: bool
    since: int
    granted: set[NodeId]


def is_elected(config: GroupConfig, granted: set[NodeId]) -> bool:
    """Whether these votes are a majority of the voters."""
    return len(granted & set(config.voters)) >= election_majority(config)


def heir(config: GroupConfig, alive: dict[NodeId, Gtid], least: Gtid, *, without: NodeId) -> NodeId:
    """Return the node of highest priority among those alive that can be primary and have `least`; NO_NODE: none."""
    able = [one for one in config.members if one.electable and one.node != without]
    able = [one for one in able if one.node in alive and alive[one.node] >= least]
    return max(able, key=lambda one: (one.priority, one.node)).node if able else NO_NODE


def higher(config: GroupConfig, alive: dict[NodeId, Gtid], own: Member, last: Gtid) -> bool:
    """Whether this node waits for one of higher priority that is alive and caught up."""
    return any(
        [
            one.electable and one.priority > own.priority and one.node in alive and alive[one.node] >= last
            for one in config.members
        ]
    )
