"""The configuration of a group, and which changes of it are allowed.

Owns members, their votes and roles, the two majorities, and the rule of one voter at a time. The hard idea: a witness
votes and holds no copy, so the majority that elects and the majority of durable copies are two numbers.

Source: tokumx-replication (replica sets), docs/protocol.md, "Configuration" and "Numbers".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NewType

import msgspec
from msgspec import UNSET, UnsetType

from tranlog.errors import ConfigError
from tranlog.ids import HISTORY_BYTES

NodeId = NewType("NodeId", str)
"""Made once by a node for itself; a wiped node makes another."""
NO_NODE = NodeId("")

VOTERS_MAX = 7
NODES_MAX = 50
PRIORITY_MAX = 1000
DELAY_MS_MAX = 366 * 86_400_000
NAME_BYTES_MAX = 1 << 10
"""A group's id and a member's id, name and address are no longer, each."""
CONFIG_BYTES_MAX = 120 << 10
"""With tags and rules: with a vote beside it a configuration has to fit a slot of a node's file."""
FORCED_VERSIONS = 100_000
"""What a forced configuration adds to the version, so that no other one reaches it."""
FORCED_EPOCHS = 1_000
"""What it adds to the epoch: those who are gone may have given out GTIDs in epochs of which this node never heard."""
MAJORITY = "majority"
LAG_LIMIT_BYTES = 64 << 20
"""By default a primary's writers wait while the nearest voter with data lacks more of its log."""


class ConfigId(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The order of configurations: the epoch of the primary that installed one, then its version."""

    epoch: int = 0
    version: int = 0


class Member(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A node of the group. `delay_ms`: its records are held back for so long after they were logged."""

    node: NodeId
    name: str
    address: str = ""
    votes: int = 1
    priority: int = 1
    witness: bool = False
    hidden: bool = False
    delay_ms: int = 0
    tags: dict[str, str] = {}

    @property
    def electable(self) -> bool:
        """Whether it may ever be primary."""
        return self.votes == 1 and self.priority > 0 and not self.witness

    @property
    def voter_with_data(self) -> bool:
        """Whether its durable copy counts for the majority."""
        return self.votes == 1 and not self.witness


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group's members and settings. Times: ms, but those that end in `_s`, seconds.

    `rules` are tag rules by name: each tag with the number of distinct values that must have a copy.
    """

    group: str
    id: ConfigId = ConfigId()
    members: tuple[Member, ...] = ()
    chaining: bool = True
    heartbeat_ms: int = 250
    w: int | str = 1
    wtimeout_ms: int = 0
    rules: dict[str, dict[str, int]] = {}
    keep_alive_s: int = 600
    rollback_limit_s: int = 1800
    rollback_ddl: str = "refuse"

    def member(self, node: NodeId) -> Member | None:
        """Return the member with that id; None if there is none."""
        for member in self.members:
            if member.node == node:
                return member
        return None

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """The nodes that vote, witnesses too."""
        return tuple([member.node for member in self.members if member.votes])

    @property
    def copies(self) -> tuple[NodeId, ...]:
        """The voters that hold data."""
        return tuple([member.node for member in self.members if member.voter_with_data])


class MemberChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a member is to be: what is left out stays. `node` and `witness` cannot change, and may be said."""

    name: str
    node: str | UnsetType = UNSET
    witness: bool | UnsetType = UNSET
    address: str | UnsetType = UNSET
    votes: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    hidden: bool | UnsetType = UNSET
    delay_ms: int | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group's configuration is to be: what is left out stays, and so do members that are not named.

    It has the form in which a configuration is shown. With `id` it is for that very one.
    """

    group: str | UnsetType = UNSET
    id: ConfigId | UnsetType = UNSET
    members: tuple[MemberChange, ...] = ()
    chaining: bool | UnsetType = UNSET
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=50, le=10_000)] | UnsetType = UNSET
    """No node beats more often; and a change, which goes from node to node with the beats, is waited for a minute."""
    w: int | str | UnsetType = UNSET
    wtimeout_ms: Annotated[int, msgspec.Meta(ge=0)] | UnsetType = UNSET
    rules: dict[str, dict[str, int]] | UnsetType = UNSET
    keep_alive_s: Annotated[int, msgspec.Meta(ge=1)] | UnsetType = UNSET
    rollback_limit_s: Annotated[int, msgspec.Meta(ge=0)] | UnsetType = UNSET
    rollback_ddl: str | UnsetType = UNSET
    warnings: list[str] = []
    """As it was shown; it says nothing."""


def election_majority(config: GroupConfig) -> int:
    """Return how many votes elect."""
    return len(config.voters) // 2 + 1


def copies_needed(config: GroupConfig) -> int:
    """Return how many durable copies at voters with data are a majority.

    Half of the voters with data plus one is not enough: of three and two witnesses, one of them and both witnesses
    elect a primary that lacks the write.
    """
    return min(len(config.voters) // 2 + 1, len(config.copies))


def check(config: GroupConfig) -> None:
    """Refuse a configuration that cannot work. Raises ConfigError."""
    _check_size(config)
    for field in ("node", "name", "address"):
        values = [value for member in config.members if (value := getattr(member, field)) or field != "address"]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise _refused(field, twice[0], f"two nodes of the group have this {field}")
    for member in config.members:
        _check_member(member)
    if not any([member.electable for member in config.members]):
        raise _refused("members", None, "no node can be primary; give one with data a vote and a priority above 0")
    if len(config.voters) > VOTERS_MAX:
        raise _refused("members", len(config.voters), f"at most {VOTERS_MAX} nodes vote; give others votes = 0")
    if len(config.members) > NODES_MAX:
        raise _refused("members", len(config.members), f"a group has at most {NODES_MAX} nodes")
    if config.heartbeat_ms <= 0:
        raise _refused("heartbeat_ms", config.heartbeat_ms, "must be above 0")
    if config.rollback_ddl not in ("refuse", "abandon"):
        raise _refused("rollback_ddl", config.rollback_ddl, "is refuse or abandon")
    for name, clauses in config.rules.items():
        if name == MAJORITY:
            raise _refused("rules", name, "this word means more than half of the voters; give the rule another name")
        if not clauses:
            raise _refused(f"rules.{name}", clauses, "it names no tag, and any commit would meet it")
        for tag, count in clauses.items():
            kinds = {member.tags[tag] for member in config.members if tag in member.tags}
            if not 1 <= count <= len(kinds):
                raise _refused(f"rules.{name}.{tag}", count, f"the nodes have {len(kinds)} values of this tag")
    check_w(config, config.w)


def _check_size(config: GroupConfig) -> None:
    texts = [("group", config.group)]
    texts += [(field, getattr(one, field)) for one in config.members for field in ("node", "name", "address")]
    for field, text in texts:
        if len(text.encode()) > NAME_BYTES_MAX:
            raise _refused(field, f"{text[:20]}...", f"is longer than {NAME_BYTES_MAX} bytes")
    size = len(msgspec.msgpack.encode(config))
    if size > CONFIG_BYTES_MAX:
        why = f"the configuration has {size} bytes and may have {CONFIG_BYTES_MAX}; have fewer tags or shorter ones"
        raise _refused("tags", None, why)


def check_w(config: GroupConfig, w: int | str) -> None:
    """Refuse a write concern that the group can never meet. Raises ConfigError."""
    if isinstance(w, str):
        if w != MAJORITY and w not in config.rules:
            raise _refused("w", w, "is a number, majority, or the name of a tag rule")
        return
    holding = sum([not member.witness for member in config.members])
    if not 0 <= w <= holding:
        raise _refused("w", w, f"{holding} nodes hold data")


def check_name(name: str) -> None:
    """Refuse a node's name that a line of a log or of a status would not show. Raises ConfigError."""
    if not name or not name.isprintable():
        raise _refused("node", name, "a node's name is text that can be printed, in one line")


def _check_member(member: Member) -> None:
    check_name(member.name)
    name = f"members.{member.name}"
    if member.votes not in (0, 1):
        raise _refused(f"{name}.votes", member.votes, "is 0 or 1")
    if not 0 <= member.priority <= PRIORITY_MAX:
        raise _refused(f"{name}.priority", member.priority, f"is 0 to {PRIORITY_MAX}")
    if not 0 <= member.delay_ms <= DELAY_MS_MAX:
        raise _refused(f"{name}.delay_ms", member.delay_ms, f"is 0 to {DELAY_MS_MAX} (366 days)")
    if member.witness and (member.tags or member.delay_ms or member.hidden or not member.votes):
        raise _refused(name, None, "a witness votes and holds nothing; it has no tags and no delay, and is not hidden")
    if member.priority and not member.witness and (member.delay_ms or member.hidden or not member.votes):
        raise _refused(
            f"{name}.priority", member.priority, "must be 0 for a node that is delayed, hidden or has no vote"
        )


def _refused(option: str, value: object, why: str) -> ConfigError:
    return ConfigError(option=option, value=value, why=why)


def warnings(config: GroupConfig) -> list[str]:
    """Return warnings of what is allowed and not advisable."""
    count = len(config.voters)
    if count % 2:
        return []
    return [f"{count} nodes vote: one less survives as many failures. Add a witness, or set votes = 0 for one"]


def voters_changed(old: GroupConfig, new: GroupConfig) -> int:
    """Return how many voters come, go or change their kind."""
    before, after = (
        {member.node: member.witness for member in config.members if member.votes} for config in (old, new)
    )
    return sum([before.get(node) != after.get(node) for node in before.keys() | after.keys()])


def change_refused(
    old: GroupConfig, new: GroupConfig, *, installed: Iterable[NodeId], committed: bool, copied: bool
) -> str | None:
    """Return why a primary must not install `new` now; None if it may.

    `installed`: the nodes that have `old` durable. `committed`: whether `old` has committed a record of this epoch.
    `copied`: whether what is committed has its majority of copies under `new` as well.
    """
    if new.group != old.group:
        return "it is of another group"
    if voters_changed(old, new) > 1:
        return (
            "more than one voter would come, go or change its kind; go in steps, a replaced node with votes = 0 first"
        )
    if len(set(installed) & set(old.voters)) < election_majority(old):
        return "the present configuration is not yet at a majority; try again"
    if not committed:
        return "no transaction of this primary's epoch is committed yet; try again"
    if not copied:
        return "what is committed is not yet at a majority of the new configuration; try again"
    return None


def is_taken(old: GroupConfig, new: GroupConfig, *, own: NodeId, sender: NodeId) -> bool:
    """Whether a node installs a configuration of its group that another one has sent to it.

    It is a later one, can work, and comes from a member. A node that no configuration names, since it is new or was
    removed, takes one that names both from whoever admits it.
    """
    named = old if old.member(own) is not None else new
    if new.id <= old.id or named.member(own) is None or named.member(sender) is None:
        return False
    try:
        check(new)
    except ConfigError:
        return False
    return True


def admits(config: GroupConfig, *, own: NodeId, sender: NodeId) -> bool:
    """Whether a node that is in no group yet becomes a member by a configuration that another one has sent to it."""
    try:
        known = len(bytes.fromhex(config.group)) == HISTORY_BYTES
    except ValueError:
        return False
    return known and is_taken(GroupConfig(group=config.group), config, own=own, sender=sender)


def amended(old: GroupConfig, change: ConfigChange, *, epoch: int) -> GroupConfig:
    """Return the configuration that follows `old` by a change. Raises ConfigError.

    Members neither come nor go by it: a new one has to be asked who it is.
    """
    if change.group not in (UNSET, old.group):
        raise _refused("group", change.group, f"this group is {old.group}")
    if change.id not in (UNSET, old.id):
        why = f"the group has {msgspec.to_builtins(old.id)} by now; change what `tranlog group config` shows now"
        raise _refused("id", msgspec.to_builtins(change.id), why)
    members = {member.name: member for member in old.members}
    for one in change.members:
        known = members.get(one.name)
        if known is None:
            raise _refused("members", one.name, "no node of the group has this name; `tranlog group add` admits one")
        for field in ("node", "witness"):
            if getattr(one, field) not in (UNSET, getattr(known, field)):
                why = f"{one.name} has {getattr(known, field)}, and keeps it; remove the node and add it anew"
                raise _refused(f"members.{one.name}.{field}", getattr(one, field), why)
        members[one.name] = msgspec.structs.replace(known, **set_fields(one))
    settings = set_fields(change, without=("id", "members", "warnings"))
    return successor(msgspec.structs.replace(old, **settings), list(members.values()), epoch=epoch)


def set_fields(change: msgspec.Struct, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a change sets, by name."""
    fields = msgspec.structs.asdict(change)
    return {name: value for name, value in fields.items() if value is not UNSET and name not in without}


def successor(old: GroupConfig, members: Sequence[Member], *, epoch: int, forced: bool = False) -> GroupConfig:
    """Return the configuration that follows `old` with other members. Raises ConfigError."""
    epoch = max(epoch, old.id.epoch) + (FORCED_EPOCHS if forced else 0)
    version = old.id.version + (FORCED_VERSIONS if forced else 1)
    new = msgspec.structs.replace(old, id=ConfigId(epoch, version), members=tuple(members))
    check(new)
    return new
