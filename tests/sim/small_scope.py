"""A small group in every order of events: the rules of elections, acks, commits, syncup and configuration,
exhaustively.

`python -m sim.small_scope` (`make small`) prints states, depth and violations of each scope, and whether
that is the whole of it. Time is left out: whatever may happen happens, in every order, with any message late or lost.
A state is a tuple, and visited once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations

import msgspec

from sim.model_log import ModelLog
from tranlog.ids import Gtid
from tranlog.replication.rules.acks import AckTable, commit_point, durable_at, may_ack, note_ack
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, Member, NodeId, change_refused
from tranlog.replication.rules.election import Voter, is_elected, vote_refused
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, REPLICA, WITNESS, Ack, Vote
from tranlog.replication.rules.syncup import Limits, Verdict, answer, first_question, judge, next_question

Epochs = tuple[int, ...]
"""A log: the epoch of each of its transactions."""
NAMES = (NodeId("a"), NodeId("b"), NodeId("c"))
LIMITS = Limits(limit_s=1 << 40, allow_ddl=True)


class Scope(msgspec.Struct, frozen=True):
    """How far one goes, and of whom the group is.

    `length`: up to where a primary writes; the no-ops of epochs come on top. `later`: a configuration that may follow.
    """

    name: str
    members: tuple[Member, ...]
    epochs: int = 2
    length: int = 1
    crashes: int = 0
    later: tuple[Member, ...] | None = None


class Node(msgspec.Struct, frozen=True, array_like=True):
    """One node. `granted`, `stood` and `acked` are forgotten by a crash, as is what was not synced.

    `stood`: the log with which it asks for votes. `acked`: what it counts as primary. `sent`: an ack on the way to the
    primary of an epoch. `config`: which of the scope's configurations, and the epoch that is stamped on it.
    """

    primary: bool = False
    epoch: int = 0
    voted: int = 0
    voted_for: int = -1
    log: Epochs = ()
    synced: int = 0
    granted: tuple[int, ...] = ()
    stood: Epochs | None = None
    acked: tuple[tuple[int, int], ...] = ()
    sent: tuple[int, int] | None = None
    committed: int = 0
    config: int = 0
    config_epoch: int = 0


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """The group, and what an observer knows: primaries by epoch, what was committed, and in which epochs that was."""

    nodes: tuple[Node, ...]
    reigns: tuple[tuple[int, int], ...] = ()
    truth: Epochs = ()
    truth_in: Epochs = ()
    crashes: int = 0


@cache
def log_of(epochs: Epochs) -> ModelLog:
    """Return the log; nobody changes it."""
    log = ModelLog()
    for at, epoch in enumerate(epochs):
        if log.last.epoch < epoch:
            log.begin_reign(epoch, at)
        else:
            log.append("t", at)
    log.sync()
    return log


def last_of(epochs: Epochs) -> Gtid:
    """Return the log's last GTID."""
    return log_of(epochs).last


@cache
def pulled(mine: Epochs, source: Epochs, committed: int) -> tuple[Verdict, int]:
    """Return the verdict of a search, and how many transactions are equal."""
    log, other = log_of(mine), log_of(source)
    where = first_question(log, 0)
    while (further := next_question(log, here := answer(other, where, 0))) is not None:
        where = further
    found = judge(log, here, log.gtid(committed - 1) or NO_GTID, LIMITS)
    return found.verdict, found.matchpoint.seqno + 1


class ScopeViolation(Exception):
    """An invariant does not hold."""


class Explorer:
    """Walks through all that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._members = [scope.members, *([scope.later] if scope.later is not None else [])]
        self._cached: dict[tuple[int, int], GroupConfig] = {}
        kinds = [[m.witness for one in self._members for m in one if m.node == n.node] for n in scope.members]
        orders = permutations(range(len(kinds)))
        self._orders = [order for order in orders if [kinds[at] for at in order] == kinds]

    def config(self, node: Node) -> GroupConfig:
        """Return the configuration that a node has."""
        key = (node.config, node.config_epoch)
        if key not in self._cached:
            number = ConfigId(node.config_epoch, node.config + 1)
            self._cached[key] = GroupConfig(group="g", id=number, members=self._members[node.config])
        return self._cached[key]

    def explore(self, most: int | None = None) -> tuple[int, int, str, list[str]]:
        """Return states, depth, the violation (empty: none), and how it came to it. `most`: states to visit."""
        start = GroupState(tuple([Node() for _ in self.scope.members]))
        before: dict[bytes, tuple[bytes, str]] = {self._standard(start)[1]: (b"", "")}
        edge, depth = [start], 0
        while edge:
            further: list[GroupState] = []
            for state in edge:
                key = _key(state)
                try:
                    for what, moved in self.moves(state):
                        after, seen = self._standard(moved)
                        if seen not in before:
                            before[seen] = (key, sys.intern(what))
                            further.append(after)
                except ScopeViolation as exc:
                    return len(before), depth, str(exc), _way(before, key)
                if most is not None and len(before) >= most:
                    return len(before), depth, "", []
            edge, depth = further, depth + 1
        return len(before), depth - 1, "", []

    def _standard(self, state: GroupState) -> tuple[GroupState, bytes]:
        """Return one of all states that differ in nothing that matters, with its key.

        Nodes of one kind are alike; an ack to an epoch without a primary, and a sync where nothing crashes, change
        nothing.
        """
        reigning = {node.epoch for node in state.nodes if node.primary}
        nodes = []
        for node in state.nodes:
            gone = node.sent is not None and node.sent[1] not in reigning
            if gone or (not self.scope.crashes and node.synced != len(node.log)):
                synced = node.synced if self.scope.crashes else len(node.log)
                node = msgspec.structs.replace(node, sent=None if gone else node.sent, synced=synced)
            nodes.append(node)
        found = []
        for order in self._orders:
            to = {old: new for new, old in enumerate(order)} | {-1: -1}
            told = tuple([_renamed(nodes[old], to) for old in order])
            reigns = tuple([(epoch, to[node]) for epoch, node in state.reigns])
            renamed = msgspec.structs.replace(state, nodes=told, reigns=reigns)
            found.append((_key(renamed), renamed))
        key, least = min(found, key=lambda one: one[0])
        return least, key

    def moves(self, state: GroupState) -> Iterator[tuple[str, GroupState]]:
        """Yield what can happen next. Raises ScopeViolation."""
        for i, node in enumerate(state.nodes):
            witness = self._is_witness(node, i)
            if state.crashes < self.scope.crashes:
                yield f"crash {i}", self._crashed(state, i)
            yield from self._elections(state, i, witness)
            if not witness:
                yield from self._logs(state, i)
            if node.primary:
                yield f"step down {i}", _with(state, i, primary=False, acked=())
                yield from self._reign(state, i)
            for j, other in enumerate(state.nodes):
                if (other.config_epoch, other.config) > (node.config_epoch, node.config):
                    change = {"config": other.config, "config_epoch": other.config_epoch}
                    yield f"{i} takes the configuration of {j}", _with(state, i, **change)

    def _is_witness(self, node: Node, i: int) -> bool:
        member = self.config(node).member(NAMES[i])
        return member is not None and member.witness

    def _crashed(self, state: GroupState, i: int) -> GroupState:
        node = state.nodes[i]
        log = node.log[: node.synced]
        epoch = max(node.voted, last_of(log).epoch)
        kept = {
            "voted": node.voted,
            "voted_for": node.voted_for,
            "config": node.config,
            "config_epoch": node.config_epoch,
        }
        crashed = Node(log=log, synced=node.synced, epoch=epoch, **kept)  # type: ignore[arg-type]
        nodes = (*state.nodes[:i], crashed, *state.nodes[i + 1 :])
        return msgspec.structs.replace(state, nodes=nodes, crashes=state.crashes + 1)

    def _elections(self, state: GroupState, i: int, witness: bool) -> Iterator[tuple[str, GroupState]]:
        node = state.nodes[i]
        config = self.config(node)
        own = config.member(NAMES[i])
        if own is not None and own.electable and not node.primary and node.epoch < self.scope.epochs:
            epoch = node.epoch + 1
            vote = {"epoch": epoch, "voted": epoch, "voted_for": i}
            yield f"{i} stands in {epoch}", _with(state, i, granted=(i,), stood=node.log, **vote)
        for c, candidate in enumerate(state.nodes):
            if c != i and candidate.stood is not None and i not in candidate.granted:
                voter = Voter(
                    node=NAMES[i],
                    config=config,
                    state=PRIMARY if node.primary else WITNESS if witness else REPLICA,
                    epoch=node.epoch,
                    voted_epoch=node.voted,
                    voted_for=NAMES[node.voted_for] if node.voted_for >= 0 else NO_NODE,
                    last=None if witness else last_of(node.log),
                    hears_primary=False,
                    owing=False,
                )
                asked = Vote(
                    epoch=candidate.epoch, last=last_of(candidate.stood), config=self.config(candidate).id, priority=1
                )
                if not vote_refused(voter, NAMES[c], asked):
                    epoch = candidate.epoch
                    later = _later(node, epoch)
                    after = _with(state, i, **{**later, "voted": epoch, "voted_for": c, "epoch": epoch})
                    yield f"{i} votes for {c}", _with(after, c, granted=tuple(sorted((*candidate.granted, i))))
        if node.stood is not None and is_elected(config, {NAMES[one] for one in node.granted}):
            yield f"{i} wins {node.epoch}", self._won(state, i)

    def _won(self, state: GroupState, i: int) -> GroupState:
        node = state.nodes[i]
        if any(epoch == node.epoch for epoch, _ in state.reigns):
            raise ScopeViolation(f"{i} is a second primary of epoch {node.epoch}")
        earlier = sum([epoch < node.epoch for epoch in state.truth_in])
        if node.log[:earlier] != state.truth[:earlier]:
            raise ScopeViolation(
                f"{i} is primary of epoch {node.epoch} with {node.log}, and {state.truth} was committed before"
            )
        new = {"primary": True, "granted": (), "stood": None, "acked": (), "log": (*node.log, node.epoch)}
        after = _with(state, i, **new, config_epoch=node.epoch)
        return msgspec.structs.replace(after, reigns=(*state.reigns, (node.epoch, i)))

    def _logs(self, state: GroupState, i: int) -> Iterator[tuple[str, GroupState]]:
        node = state.nodes[i]
        if node.synced < len(node.log) and self.scope.crashes:
            yield f"{i} syncs", _with(state, i, synced=len(node.log))
        if node.primary:
            if len(node.log) < self.scope.length:
                yield f"{i} writes", _with(state, i, log=(*node.log, node.epoch))
            return
        for j, source in enumerate(state.nodes):
            if j == i or source.epoch < node.epoch or self._is_witness(source, j):
                continue
            verdict, common = pulled(node.log, source.log, node.committed)
            change = _later(node, source.epoch) if source.epoch > node.epoch else {}
            if verdict is Verdict.STREAM and len(source.log) > common:
                change = {**change, "log": source.log[: common + 1]}
                if node.stood is not None:
                    change |= {"stood": None, "granted": ()}  # who stands and then takes more stands anew
                yield f"{i} takes one of {j}", _with(state, i, **change)
            elif verdict is Verdict.ROLL_BACK:
                if common < len(state.truth) and node.log[common : common + 1] == state.truth[common : common + 1]:
                    raise ScopeViolation(
                        f"{i} rolls back {node.log} to {common}, and {state.truth} was committed before"
                    )
                change = {
                    **change,
                    "log": node.log[:common],
                    "synced": min(node.synced, common),
                    "stood": None,
                    "granted": (),
                }
                yield f"{i} rolls back", _with(state, i, **change)
            elif verdict is Verdict.FATAL:
                raise ScopeViolation(f"{i} with {node.log} finds {source.log} of {j} fatal")
        for source in state.nodes:
            if source.primary and node.synced and may_ack(source.epoch, node.epoch):
                sent = (node.synced, source.epoch)
                if sent != node.sent:
                    yield f"{i} acks", _with(state, i, sent=sent)

    def _reign(self, state: GroupState, i: int) -> Iterator[tuple[str, GroupState]]:
        node = state.nodes[i]
        log, acks = log_of(node.log), self._acks(node)
        for j, other in enumerate(state.nodes):
            if other.sent is None or j == i:
                continue
            # What it holds now below that: an ack names a GTID, and a log that went back acks anew.
            told = log_of(other.log).gtid(other.sent[0] - 1)
            table = dict(acks)
            if told is not None and note_ack(
                table,
                NAMES[j],
                Ack(durable=told, epoch=other.sent[1]),
                epoch=node.epoch,
                held=log.gtid(told.seqno) == told,
            ):
                acked = tuple(sorted((NAMES.index(one), ack.durable.seqno + 1) for one, ack in table.items()))
                yield f"{i} counts the ack of {j}", _with(state, i, acked=acked)
        config = self.config(node)
        durable = durable_at(acks, NAMES[i], log.gtid(node.synced - 1) or NO_GTID)
        reached = commit_point(config, durable, node.epoch).seqno + 1
        if reached > node.committed:
            both = min(reached, len(state.truth))
            if node.log[:both] != state.truth[:both]:
                raise ScopeViolation(f"{i} commits {node.log[:reached]}, and {state.truth} was committed before")
            truth = max(state.truth, node.log[:reached], key=len)
            truth_in = state.truth_in + (node.epoch,) * (len(truth) - len(state.truth))
            after = msgspec.structs.replace(_with(state, i, committed=reached), truth=truth, truth_in=truth_in)
            yield f"{i} commits {reached}", after
        if node.config + 1 < len(self._members):
            new = GroupConfig(
                group="g", id=ConfigId(node.epoch, node.config + 2), members=self._members[node.config + 1]
            )
            refused = change_refused(
                config,
                new,
                installed=[NAMES[j] for j, other in enumerate(state.nodes) if self.config(other).id == config.id],
                committed=node.committed > 0
                and node.log[node.committed - 1] == node.epoch
                and commit_point(config, durable, node.epoch).seqno + 1 >= node.committed,
                copied=commit_point(new, durable, node.epoch).seqno + 1 >= node.committed,
            )
            if refused is None:
                yield f"{i} installs a configuration", _with(state, i, config=node.config + 1)

    def _acks(self, node: Node) -> AckTable:
        log = log_of(node.log)
        return {NAMES[j]: Ack(durable=log.gtid(count - 1) or NO_GTID, epoch=node.epoch) for j, count in node.acked}


_key = msgspec.msgpack.Encoder().encode


def _way(before: dict[bytes, tuple[bytes, str]], key: bytes) -> list[str]:
    """Return what happened, from the start."""
    way: list[str] = []
    while key:
        key, what = before[key]
        way.append(what)
    return way[-2::-1]


def _renamed(node: Node, to: dict[int, int]) -> Node:
    if node.voted_for < 0 and not node.granted and not node.acked:
        return node
    return msgspec.structs.replace(
        node,
        voted_for=to[node.voted_for],
        granted=tuple(sorted([to[one] for one in node.granted])),
        acked=tuple(sorted([(to[one], count) for one, count in node.acked])),
    )


def _with(state: GroupState, i: int, **changes: object) -> GroupState:
    node = msgspec.structs.replace(state.nodes[i], **changes)
    return msgspec.structs.replace(state, nodes=(*state.nodes[:i], node, *state.nodes[i + 1 :]))


def _later(node: Node, epoch: int) -> dict[str, object]:
    """Return what changes with a later epoch: who reigns or stands does so no more."""
    return {"epoch": epoch, "primary": False, "acked": (), "granted": (), "stood": None}


def _plain(*names: NodeId, witness: tuple[NodeId, ...] = ()) -> tuple[Member, ...]:
    return tuple([Member(node=n, name=n, witness=n in witness, priority=int(n not in witness)) for n in names])


SCOPES = (
    Scope("three nodes", _plain(*NAMES)),
    Scope("three nodes, a crash", _plain(*NAMES), crashes=1),
    Scope("two nodes and a witness, a crash", _plain(*NAMES, witness=NAMES[2:]), crashes=1),
    Scope("one of three leaves", _plain(*NAMES), later=_plain(*NAMES[:2])),
    Scope("one of three becomes a witness", _plain(*NAMES), later=_plain(*NAMES, witness=NAMES[2:])),
    Scope("three nodes that write", _plain(*NAMES), length=2),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore each scope; return 0 where none shows a violation."""
    parser = argparse.ArgumentParser(prog="make small", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="scopes whose name holds this")
    parser.add_argument("--most", type=int, default=1_000_000, help="states to visit in each scope (1000000)")
    given = parser.parse_args(arguments)
    violations = 0
    for scope in SCOPES:
        if given.only in scope.name:
            began = time.monotonic()
            states, depth, violation, way = Explorer(scope).explore(given.most)
            violations += bool(violation)
            whole = not violation and states < given.most
            told = {
                "scope": scope.name,
                "states": states,
                "whole": whole,
                "depth": depth,
                "violations": int(bool(violation)),
            }
            found = {"violation": violation, "way": way} if violation else {}
            print(json.dumps({**told, **found, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
