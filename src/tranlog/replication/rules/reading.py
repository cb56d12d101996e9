"""The choice of the node to read, and the consistency for which a reader waits there.

Each reader is judged by itself, so one with a lax consistency does not wait for one with a strict one.

Source: vlsn-index (consistency).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.replication.rules.config import NO_NODE, NodeId
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, READABLE


class Preference(Enum):
    """The preferred role for reads."""

    PRIMARY = "primary"
    PRIMARY_PREFERRED = "primaryPreferred"
    REPLICA = "replica"
    REPLICA_PREFERRED = "replicaPreferred"
    NEAREST = "nearest"

    @property
    def alone(self) -> Preference:
        """The preferred role alone, without its substitutes."""
        return {Preference.PRIMARY_PREFERRED: Preference.PRIMARY, Preference.REPLICA_PREFERRED: Preference.REPLICA}.get(
            self, self
        )


class Readable(msgspec.Struct, frozen=True):
    """A node that might be read. `ping_ms`: how far away it is."""

    node: NodeId
    state: int
    ping_ms: int = 0
    hidden: bool = False
    tags: dict[str, str] = {}


def choose_node(
    nodes: Sequence[Readable], preference: Preference, tag_sets: Sequence[dict[str, str]] = ({},)
) -> NodeId:
    """Return the node to read; NO_NODE if none fits.

    The nearest node with the first tag set that any node has. The primary must match a tag set only with `nearest`.
    """
    readable = [one for one in nodes if one.state in READABLE and not one.hidden]
    primary = [one for one in readable if one.state == PRIMARY]
    replicas = _fitting([one for one in readable if one.state != PRIMARY], tag_sets)
    match preference:
        case Preference.PRIMARY:
            found = primary
        case Preference.PRIMARY_PREFERRED:
            found = primary or replicas
        case Preference.REPLICA:
            found = replicas
        case Preference.REPLICA_PREFERRED:
            found = replicas or primary
        case Preference.NEAREST:
            found = _fitting(readable, tag_sets)
    return min(found, key=lambda one: (one.ping_ms, one.node)).node if found else NO_NODE


def _fitting(nodes: Sequence[Readable], tag_sets: Sequence[dict[str, str]]) -> list[Readable]:
    for tags in tag_sets:
        found = [one for one in nodes if tags.items() <= one.tags.items()]
        if found:
            return found
    return []


class Position(msgspec.Struct, frozen=True):
    """The position of a node's log for its readers.

    `shown`: up to where readers see it. `fresh_at`, by the node's clock in ms: they see everything committed then.
    `epoch` and `confirmed`: this node is primary of that epoch, and a majority answered its beat of that number.
    """

    shown: Gtid
    fresh_at: int
    is_primary: bool = False
    epoch: int = 0
    confirmed: int = 0


class AtLeast(msgspec.Struct, frozen=True):
    """Wait until the log holds what its reader wrote itself."""

    gtid: Gtid


class Within(msgspec.Struct, frozen=True):
    """Wait until the log is at most so far behind."""

    lag_ms: int


class Latest(msgspec.Struct, frozen=True):
    """Read at the primary, once a majority has answered a beat that it sent after `asked`.

    `committed`: what it had committed when it was asked.
    """

    asked: int
    committed: Gtid = NO_GTID


Consistency = None | AtLeast | Within | Latest


def parse_consistency(text: str) -> Consistency:
    """Parse a consistency: none, `at least GTID(1, 15)`, `within 500 ms`, latest. Raises ConfigError."""
    wish, _, rest = text.strip().partition(" ")
    if wish == "none" and not rest:
        return None
    if wish == "latest" and not rest:
        return Latest(0)
    lag, _, unit = rest.partition(" ")
    if wish == "within" and lag.isdecimal() and unit == "ms":
        return Within(int(lag))
    try:
        if wish == "at" and rest.startswith("least "):
            return AtLeast(Gtid.parse(rest.removeprefix("least ")))
    except ValueError as exc:
        raise ConfigError(option="consistency", value=text, why=str(exc)) from exc
    raise ConfigError(
        option="consistency", value=text, why="it reads none, at least GTID(1, 15), within 500 ms, or latest"
    )


def parse_preference(text: str) -> Preference:
    """Parse a preference, in upper or lower case. Raises ConfigError."""
    for one in Preference:
        if one.value.lower() == text.lower():
            return one
    names = ", ".join(one.value for one in Preference)
    raise ConfigError(option="readPreference", value=text, why=f"it is one of {names}")


def may_read(wish: Consistency, position: Position, now: int) -> bool:
    """Whether a reader may go on now, by the node's clock, ms."""
    match wish:
        case None:
            return True
        case AtLeast(gtid=gtid):
            return position.shown >= gtid
        case Within(lag_ms=lag):
            return now - position.fresh_at <= lag
        case Latest(asked=asked, committed=committed):
            leads = position.is_primary and position.shown.epoch == position.epoch
            return leads and position.confirmed > asked and position.shown >= committed
