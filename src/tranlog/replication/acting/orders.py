"""An operator's orders to a group: its status, its members, its primary.

Owns each order: its parameters and its steps. Any node takes an order, and passes on what only a primary can do. The
hard idea: a configuration changes by one voter at a time, and a node gets a vote only once it holds what is committed.
So `add` is two changes with a wait between them; the operator can watch it, and repeat it if it is interrupted.

Source: docs/protocol.md, "Configuration"; docs/replication.md.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tranlog.addresses import check_reachable
from tranlog.clock import SECONDS_MAX
from tranlog.errors import ConfigError, GroupOrderError, HandshakeError, TranlogError
from tranlog.ids import Gtid
from tranlog.replication.acting.commit_queue import CommitQueue
from tranlog.replication.acting.links import VOTE, Greeting, greet, refuse
from tranlog.replication.acting.restoring import RestoreStatus, Restoring
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import (
    NO_NODE,
    ConfigChange,
    ConfigId,
    GroupConfig,
    Member,
    NodeId,
    amended,
    set_fields,
    successor,
    warnings,
)
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.election import is_elected
from tranlog.replication.rules.packets import (
    DOWN,
    FATAL,
    NO_GTID,
    PRIMARY,
    STARTUP,
    STATE_NAMES,
    WITNESS,
    GroupOrder,
    OrderAnswer,
)

if TYPE_CHECKING:
    from tranlog.replication.acting.node import GroupNode, NodeOptions

logger = logging.getLogger(__name__)

_AT_NODE = frozenset(("restore", "freeze", "sync-from"))
"""Orders that the node carries out that they name."""
LOOK_S = 0.05
_PRIMARY_S = 10.0
"""So long a node that shall restore its log from the primary waits to hear of one."""
_CONNECTED_S = 5.0
"""So long a connection to the node that shall carry an order out is waited for."""
PATIENCE_S = 600.0
"""A new node may take so long to hold what the group has, """
_GONE_S = 10.0
"""and may be without a connection for so long."""
CHANGE_S = 60.0
"""So long what a change of the configuration needs is waited for."""
Body = dict[str, Any]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]


class _Order(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an order says, to whoever serves it and from node to node."""


class AddNode(_Order, frozen=True):
    """A node that runs at `address`, and how it is to be a member; `replace`: instead of the one of its name.

    `hidden`, `delay_ms` and `tags` of a member, or of the one that is replaced, stay where they are left out.
    """

    name: str
    address: str
    votes: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1
    witness: bool = False
    hidden: bool | msgspec.UnsetType = msgspec.UNSET
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    tags: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    replace: bool = False


class RemoveNode(_Order, frozen=True):
    """A node of the group."""

    name: str


class StepDown(_Order, frozen=True):
    """Within how long another node must have everything; `force`: step down even if none has."""

    within_s: _Seconds = 10.0
    force: bool = False


class Reconfigure(_Order, frozen=True):
    """`change`, which the primary makes; with `force` this node alone, and `without`, who is a member no more."""

    force: bool = False
    without: tuple[str, ...] = ()
    change: ConfigChange | None = None


class RestoreNode(_Order, frozen=True):
    """A node of the group, and from which one it gets its log; none: from the primary."""

    name: str
    source: str = ""


class Freeze(_Order, frozen=True):
    """A node of the group, and for how long it does not stand; 0 ends it."""

    name: str
    seconds: _Seconds = 60.0


class SyncFrom(_Order, frozen=True):
    """A node of the group, and whom it shall follow."""

    name: str
    source: str


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member as a node knows it. `heard_ms`: how long ago its last heartbeat came, None for never; `acked`: what it
    has durable, as a primary knows. `trouble`: why there is no connection to it; `protocol`: the version
    spoken over it, 0 where there is none. `certified_until`: when the certificate that it showed expires, ms since
    1970; None over plain TCP, without a connection, and of the node itself.
    """

    name: str
    node: str
    address: str
    votes: int
    priority: int
    witness: bool
    hidden: bool = False
    delay_ms: int = 0
    state: str
    heard_ms: int | None
    last: Gtid
    acked: Gtid | None
    trouble: str
    protocol: int = 0
    certified_until: int | None = None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node. `config`: (epoch, version) of its configuration; `fatal`: why it follows no node;
    `next_step`: the command that makes a member of it that follows, empty where it is one or time may tell.

    `writers_wait_for`: the voter that lags by more than this primary allows, empty if none does. `lag_bytes`: how much
    the nearest voter lacked at the last commit.
    """

    group: str
    id: str = ""
    name: str
    node: str
    state: str
    epoch: int = 0
    primary: str | None = None
    config: ConfigId = ConfigId()
    first_seqno: int = 0
    last: Gtid = NO_GTID
    durable: Gtid = NO_GTID
    committed: Gtid = NO_GTID
    fatal: str = ""
    members: list[MemberStatus] = []
    restore: RestoreStatus | None = None
    writers_wait_for: str = ""
    lag_bytes: int = 0
    next_step: str = ""


class Orders:
    """The orders that a node takes. Threads: the event loop's alone."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self.restoring = Restoring(node)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[OrderAnswer]] = {}

    async def give(self, name: str, body: Body) -> Body:
        """Carry an order out, here or at the primary, and return its answer. Raises GroupOrderError, ConfigError."""
        self._check_member()
        known: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Body]]]] = {
            "add": (AddNode, self._add),
            "remove": (RemoveNode, self._remove),
            "step-down": (StepDown, self._step_down),
            "reconfigure": (Reconfigure, self._reconfigure),
            "restore": (RestoreNode, self._restore),
            "freeze": (Freeze, self._freeze),
            "sync-from": (SyncFrom, self._sync_from),
        }
        if name not in known:
            raise ConfigError(option="order", value=name, why="there is no such order")
        form, carry = known[name]
        try:
            asked = msgspec.convert(body, form)
        except msgspec.ValidationError as exc:
            raise ConfigError(option=name, value=None, why=f"it has another form: {exc}") from exc
        if isinstance(asked, Reconfigure) and asked.force:
            return await self._force(asked)
        if name == "remove" or (isinstance(asked, AddNode) and (asked.replace or not asked.priority)):
            await self._depose(str(body["name"]))
        to = self._named(str(body["name"])) if name in _AT_NODE else self._node.standing.primary
        here = to == self._node.node if name in _AT_NODE else self._node.standing.state == PRIMARY
        return await (carry(asked) if here else self._pass_on(name, body, to))

    def _check_member(self) -> None:
        options = self._node.options
        if self._node.thread is None and self._node.standing.config.members:
            raise GroupOrderError(why="this node's log is just being replaced; ask again in a moment")
        if self._node.thread is None:
            why = f"this node is in no group yet. `{options.admitting}` at a node of the group admits it"
            raise GroupOrderError(why=f"{why}; `tranlog group init` here, with no node running, makes a new group")

    async def answer(self, wire: Wire, order: GroupOrder) -> None:
        """Answer an order of another node or a client."""
        try:
            if wire.purpose == VOTE and not self._is_members(wire):
                why = "the order came from a node that is no member of the group; `tranlog group status` shows who is"
                raise GroupOrderError(why=why)
            if self._node.standing.state != PRIMARY and order.name not in _AT_NODE:
                raise GroupOrderError(
                    why=f"{self._node.options.node} is not the primary any more; give the order again"
                )
            told, done = await self.give(order.name, msgspec.json.decode(order.raw, type=Body)), True
        except ConfigError as exc:
            told, done = {"error": exc.why, "option": exc.option, "value": exc.value}, False
        except GroupOrderError as exc:
            told, done = {"error": exc.why}, False
        except TranlogError as exc:
            told, done = {"error": str(exc)}, False
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            wire.end(f"an order that is no JSON: {exc}")
            return
        except Exception as exc:  # whatever it is, whoever gave the order must hear of it
            logger.exception("An order failed by an error of this program. order=%r", order.name)
            name = self._node.options.node
            told, done = {"error": f"{type(exc).__name__}: {exc}; the log of node {name} has more"}, False
        wire.send(OrderAnswer(number=order.number, done=done, raw=msgspec.json.encode(told)))

    def _is_members(self, wire: Wire) -> bool:
        """Whether the node at the other end is a member now, by its id and its certificate."""
        member = self._node.standing.config.member(wire.peer)
        return member is not None and not wire.certified_otherwise(member.name)

    def settle(self, wire: Wire, answer: OrderAnswer) -> None:
        """The answer to an order that was passed on has come."""
        waiting = self._waiting.pop(answer.number, None) if self._is_members(wire) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _named(self, name: str, key: str = "name") -> NodeId:
        """Return the node that an order names. Raises ConfigError."""
        for one in self._node.standing.config.members:
            if one.name == name:
                return one.node
        raise ConfigError(option=key, value=name, why="no node of the group has this name")

    async def _wire_to(self, to: NodeId) -> Wire | None:
        """Return the connection to a member, which is waited for a while: the two may be about to connect again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECTED_S
        while (link := self._node.links.links.get(to)) is not None and loop.time() < until:
            if link.wire is not None:
                return link.wire
            await asyncio.sleep(LOOK_S)
        return None

    async def _pass_on(self, name: str, body: Body, to: NodeId) -> Body:
        """Have another node carry an order out."""
        number, wire = next(self._numbers), await self._wire_to(to)
        if wire is None or not wire.send(GroupOrder(number=number, name=name, raw=msgspec.json.encode(body))):
            whom = f"node {body['name']}" if name in _AT_NODE else "no primary is known, or it"
            raise GroupOrderError(why=f"{whom} cannot be reached from here")
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(wire.gone.wait())
        try:
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            self._waiting.pop(number, None)
        if not waiting.done():
            raise GroupOrderError(why=f"the connection to {wire.where} ended before its answer came")
        found: Body = msgspec.json.decode(waiting.result().raw)
        if not waiting.result().done:
            why = str(found.get("error"))
            if "option" in found:
                raise ConfigError(option=str(found["option"]), value=found.get("value"), why=why)
            raise GroupOrderError(why=why)
        return found

    async def _ask(self, ask: Callable[[Core], Any]) -> Any:
        assert self._node.thread is not None
        return await asyncio.wrap_future(self._node.thread.call(ask))

    async def status(self) -> NodeStatus:
        """Return the status of this node, and what it knows of the others. Raises GroupOrderError."""
        node = self._node
        if node.standing.state == STARTUP and node.thread is None:
            of = node.options
            return NodeStatus(
                group=of.group, name=of.node, node=node.node, state=STATE_NAMES[STARTUP], next_step=of.admitting
            )
        self._check_member()
        before = node.silent_before()
        links = {}
        for id, link in node.links.links.items():
            spoken, until = (0, None) if link.wire is None else (link.wire.version, link.wire.certified_until)
            links[id] = node.links.trouble(id, before), spoken, until
        assert node.thread is not None
        commits = node.thread.commits
        found: NodeStatus = await self._ask(lambda core: status_of(core, node.options, links, commits))
        return msgspec.structs.replace(found, restore=self.restoring.status)

    def config(self) -> GroupConfig:
        """Return the configuration that this node has. Raises GroupOrderError: in no group."""
        self._check_member()
        return self._node.standing.config

    # --- what a primary does ---

    async def _add(self, wanted: AddNode) -> Body:
        """Admit a node: without a vote until it holds what is committed, then with the one that is wanted.

        With `replace` it takes the place of the one of its name, which was wiped: it has its tags and what else is not
        said, and that one goes in the same change, so that rules and numbers that need the node stay met.
        """
        node = self._node
        check_reachable("address", wanted.address)
        address = node.links.address(Member(node=NO_NODE, name=wanted.name, address=wanted.address))
        try:
            wire, hello = await greet(address, Greeting(), node.tls)
        except (OSError, HandshakeError) as exc:
            raise GroupOrderError(why=f"no node answers at {address}: {exc}. Start it there first") from exc
        why = wire.certified_otherwise(wanted.name) or node.stranger(hello)
        if not why and hello.node_name != wanted.name:
            why = f"the node at {address} is called {hello.node_name}"
        if why:
            refuse(wire, why)
            raise GroupOrderError(why=why)
        wire.cut()
        config, known = node.standing.config, node.standing.config.member(hello.node)
        named = [one for one in config.members if one.name == wanted.name and one.node != hello.node]
        kept = [one for one in (known, *named) if one is not None and one.witness == wanted.witness]
        voter = kept[0] if kept else Member(node=NO_NODE, name=wanted.name)
        voter = msgspec.structs.replace(voter, node=hello.node, **set_fields(wanted, without=("replace",)))
        self._check_name(voter, wanted.replace)
        others = [one for one in config.members if one.node != hello.node and one not in named]
        successor(config, [*others, voter], epoch=config.id.epoch)  # what cannot be is refused first
        if named and voter.witness:  # it votes at once, and two voters do not change in one step
            await self._remove(RemoveNode(name=voter.name))
        if known is None:
            first = voter if voter.witness else msgspec.structs.replace(voter, votes=0, priority=0)
            await self._change(lambda members: [*(one for one in members if one.name != voter.name), first])
        if voter.voter_with_data and not voter.delay_ms and (known is None or not known.voter_with_data):
            await self._until_it_holds(voter)
        if node.standing.config.member(voter.node) != voter:
            await self._change(lambda members: [voter if one.node == voter.node else one for one in members])
        return {"added": wanted.name, "node": hello.node, "warnings": warnings(node.standing.config)}

    async def _until_it_holds(self, voter: Member) -> None:
        """Wait until a node that is to have a vote has durable what is committed now. Raises GroupOrderError."""
        node, loop, wanted = self._node, asyncio.get_running_loop(), self._node.standing.committed
        begun = there = loop.time()

        def look(core: Core) -> tuple[bool, int]:
            ack = core.mind.acks.get(voter.node)
            return ack is not None and ack.durable >= wanted, core.seen_state(voter.node)

        while not (found := await self._ask(look))[0]:
            if node.standing.state != PRIMARY:
                raise GroupOrderError(why=f"{node.options.node} is not the primary any more; give the order again")
            link, why = node.links.links.get(voter.node), ""
            if link is not None and link.wire is not None:
                there = loop.time()
            if found[1] == FATAL:
                why = "it is FATAL; `tranlog node status` there says why"
            elif loop.time() - there > _GONE_S:
                why = f"there is no connection to it{f': {link.why}' if link is not None else ''}"
            elif loop.time() - begun > PATIENCE_S:
                why = f"it does not hold {wanted} after {PATIENCE_S:g} s"
            if why:
                why = f"{voter.name} is in the group without a vote: {why}. Given again, the order goes on from there"
                raise GroupOrderError(why=why)
            await asyncio.sleep(LOOK_S)

    def _check_name(self, wanted: Member, replace: bool) -> None:
        """Raise GroupOrderError where another node has that name, or a member would lose its log; with `replace`,
        ConfigError where none has that name."""
        config, name = self._node.standing.config, wanted.name
        named = [one for one in config.members if one.name == name and one.node != wanted.node]
        if named and not replace:
            why = f"the group's {name} has the id {named[0].node}, and the node at {wanted.address} has {wanted.node}"
            next_step = f"`tranlog group add {name} {wanted.address} --replace` gives it that one's place for ever"
            raise GroupOrderError(why=f"{why}. If {name} was wiped, {next_step}")
        known = config.member(wanted.node)
        if known is not None and wanted.witness != known.witness:
            it, then = ("is a witness", "it") if known.witness else ("keeps a log", "it as a witness")
            raise GroupOrderError(why=f"{name} {it}; `tranlog group remove {name}` first, and add {then} then")
        if replace and not named and not any(one.node == wanted.node for one in config.members):
            raise ConfigError(option="--replace", value=name, why="no node of the group has this name")
        if replace and any((at := self._node.links.links.get(one.node)) and at.wire for one in named):
            raise GroupOrderError(why=f"the {name} that shall be replaced runs and is connected; stop it first")

    async def _remove(self, asked: RemoveNode) -> Body:
        name = asked.name
        found = [one for one in self._node.standing.config.members if one.name == name]
        if not found:
            raise ConfigError(option="name", value=name, why="no node of the group has this name")
        await self._change(lambda members: [one for one in members if one.name != name])
        return {"removed": name}

    async def _depose(self, name: str) -> None:
        """See to it that the primary is not the node of that name. Raises GroupOrderError; ConfigError where no other
        one could be primary."""
        at, loop = self._node.standing, asyncio.get_running_loop()
        former = at.config.member(self._node.node if at.state == PRIMARY else at.primary)
        if former is None or former.name != name:
            return
        successor(at.config, [one for one in at.config.members if one.name != name], epoch=at.epoch)
        await self.give("step-down", {})
        until = loop.time() + PATIENCE_S
        while self._node.standing.primary in (NO_NODE, former.node) and loop.time() < until:
            await asyncio.sleep(LOOK_S)

    async def _step_down(self, asked: StepDown) -> Body:
        within, force = asked.within_s, asked.force
        node, loop = self._node, asyncio.get_running_loop()
        others = [one for one in node.standing.config.members if one.node != node.node]
        if not others:
            raise GroupOrderError(why="there is no other node in the group")
        if not force and not any(one.electable for one in others):
            raise GroupOrderError(why="no other node may be primary, by its vote and its priority")
        await self._ask(lambda core: core.hand_over(NO_NODE, int(within * 1000), force=force))
        until = loop.time() + within + 1.0
        while node.standing.state == PRIMARY and loop.time() < until:
            await asyncio.sleep(LOOK_S)
        if node.standing.state == PRIMARY:
            why, willing = f"no other node had everything within {within:g} s", await self._ask(Core.willing)
            if not any(one.electable and one.node in willing for one in others):
                why = "no other node would be primary now: each is gone, frozen or no REPLICA, or has priority 0"
            raise GroupOrderError(why=f"{why}; {node.options.node} stays primary, and commits go on")
        return {"stepped_down": node.options.node}

    async def _reconfigure(self, asked: Reconfigure) -> Body:
        """Change what the group agrees on, and its members. Raises GroupOrderError, ConfigError."""
        node, change = self._node, asked.change
        if change is None:
            raise ConfigError(option="reconfigure", value=None, why="without a change there is nothing to do")
        old = node.standing.config
        wanted = amended(old, change, epoch=old.id.epoch)
        check_addresses(old, wanted)
        for one in wanted.members:
            known = old.member(one.node)
            assert known is not None
            if one.node == node.node and not one.electable:
                why = f"{one.name} is primary, and could not be; `tranlog group step-down` first"
                raise ConfigError(option=f"members.{one.name}", value=None, why=why)
            if one.voter_with_data and not one.delay_ms and not known.voter_with_data:
                await self._until_it_holds(one)
        await self._install(lambda core: amended(core.config, change, epoch=core.mind.epoch))
        now = node.standing.config
        return {"id": list(msgspec.structs.astuple(now.id)), "warnings": warnings(now)}

    async def _force(self, asked: Reconfigure) -> Body:
        """Install a configuration here without asking anybody: of a majority that is lost for ever, or lost its logs.

        What is committed and held by none of those that stay is lost. A node that was removed has no say: its own one,
        of a version that no later one reaches, would be the group's as soon as it is admitted again.
        Raises GroupOrderError, ConfigError.
        """
        without = list(asked.without)
        config, name = self._node.standing.config, self._node.options.node
        if config.member(self._node.node) is None:
            why = f"{name} is in the group no more, and has no say in it; `tranlog group add` at a member admits it"
            raise GroupOrderError(why=why)
        unknown = sorted(set(without) - {one.name for one in config.members})
        if unknown or name in without:
            raise ConfigError(option="--without", value=unknown or without, why="other nodes of the group can be named")

        def force(core: Core) -> str | None:
            wanted = amended(core.config, asked.change or ConfigChange(), epoch=core.mind.epoch)
            check_addresses(core.config, wanted)
            stay = [one for one in wanted.members if one.name not in without]
            return core.reconfigure(successor(wanted, stay, epoch=core.mind.epoch, forced=True), forced=True)

        why = await self._ask(force)
        assert why is None, "a forced one is refused by nobody"
        logger.warning("The configuration was forced here. without=%s", ",".join(without) or "nobody")
        return {"forced": name, "without": without}

    # --- what the node itself does ---

    async def _restore(self, asked: RestoreNode) -> Body:
        """Give this node the whole log of another one; return when it has it. Raises GroupOrderError, ConfigError."""
        node, loop = self._node, asyncio.get_running_loop()
        until = loop.time() + _PRIMARY_S
        while not asked.source and node.standing.primary == NO_NODE and loop.time() < until:
            await asyncio.sleep(LOOK_S)
        source = self._named(asked.source, "source") if asked.source else node.standing.primary
        why = await self._ask(lambda core: core.restore(source))
        if why:
            raise GroupOrderError(why=f"the log of {node.options.node} is not restored: {why}")
        trouble = await self.restoring.attempted()
        if trouble:
            raise GroupOrderError(why=f"{trouble}. {node.options.node} keeps trying")
        return {"restored": node.options.node}

    async def _freeze(self, asked: Freeze) -> Body:
        """Have this node not stand for so many seconds; 0 ends it. Raises GroupOrderError."""
        seconds, name = asked.seconds, self._node.options.node
        if self._node.standing.state == PRIMARY:
            raise GroupOrderError(why=f"{name} is primary; `tranlog group step-down` first")
        await self._ask(lambda core: core.freeze(core.mind.now + int(seconds * 1000)))
        return {"frozen": name, "seconds": seconds}

    async def _sync_from(self, asked: SyncFrom) -> Body:
        """Have this node follow another one, as long as that can be followed. Raises GroupOrderError, ConfigError."""
        at, name, source = self._node.standing, self._node.options.node, self._named(asked.source, "source")
        member = at.config.member(source)
        assert member is not None
        if at.state in (PRIMARY, WITNESS):
            raise GroupOrderError(why=f"{name} is {STATE_NAMES[at.state]}, and follows no node")
        if source == self._node.node or member.witness:
            why = "a witness has no log" if member.witness else "a node cannot follow itself"
            raise ConfigError(option="source", value=member.name, why=why)
        await self._ask(lambda core: core.sync_from(source))
        return {"node": name, "source": member.name}

    async def _change(self, members: Callable[[Sequence[Member]], Sequence[Member]]) -> None:
        """Install a configuration with other members. Raises as `_install`."""
        await self._install(lambda core: successor(core.config, members(core.config.members), epoch=core.mind.epoch))

    async def _install(self, following: Callable[[Core], GroupConfig]) -> None:
        """Install a configuration, as soon as that may be; return when a majority has it.

        Raises GroupOrderError, ConfigError.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CHANGE_S

        def change(core: Core) -> str | None:
            return core.reconfigure(following(core))

        while (why := await self._ask(change)) is not None:
            if self._node.standing.state != PRIMARY or not why.endswith(("try again", "new configuration")):
                raise GroupOrderError(why=f"the configuration cannot be changed now: {why}")
            if loop.time() >= until:
                why = f"the configuration could not be changed in {CHANGE_S:g} s: {why}"
                down = [one.name for one in (await self.status()).members if one.state == STATE_NAMES[DOWN]]
                if down:
                    without = " ".join(f"--without {name}" for name in down)
                    force = f"`tranlog group reconfigure --force {without}`"
                    why = f"{why}. DOWN: {', '.join(down)}; if lost for ever, {force}"
                raise GroupOrderError(why=why)
            await asyncio.sleep(LOOK_S)
        while not await self._ask(is_installed):
            if self._node.standing.state != PRIMARY or loop.time() >= until:
                raise GroupOrderError(
                    why="this node has a new configuration, and it is not known whether a majority has it"
                )
            await asyncio.sleep(LOOK_S)


def check_addresses(old: GroupConfig, wanted: GroupConfig) -> None:
    """Refuse a new address of a member to which nobody can connect. Raises ConfigError."""
    for one in wanted.members:
        known = old.member(one.node)
        if known is None or one.address != known.address:
            check_reachable(f"members.{one.name}.address", one.address)


def is_installed(core: Core) -> bool:
    """Whether a majority of the voters has this node's configuration."""
    having = {core.node, *(node for node, peer in core.mind.peers.items() if peer.config == core.config.id)}
    return is_elected(core.config, having)


def status_of(
    core: Core, options: NodeOptions, links: Mapping[NodeId, tuple[str, int, int | None]], commits: CommitQueue
) -> NodeStatus:
    """Return the status of a node, and what it knows of the others.

    `links`: for each other node, why there is no connection, and the protocol version of the connection and when the
    other end's certificate expires, in ms since 1970.
    """
    mind, log, config = core.mind, core.log, core.config
    members = []
    for one in config.members:
        peer, ack, own = mind.peers.get(one.node), mind.acks.get(one.node), one.node == core.node
        trouble, protocol, certified_until = links.get(one.node, ("", 0, None))
        heard = None if peer is None or peer.told < 0 else mind.now - peer.told
        members.append(
            MemberStatus(
                name=one.name,
                node=one.node,
                address=one.address,
                votes=one.votes,
                priority=one.priority,
                witness=one.witness,
                hidden=one.hidden,
                delay_ms=one.delay_ms,
                state=STATE_NAMES[mind.state if own else core.seen_state(one.node)],
                heard_ms=0 if own else heard,
                last=log.last if own else NO_GTID if peer is None else peer.last,
                acked=log.durable if own else None if ack is None else ack.durable,
                trouble=trouble,
                protocol=max(options.versions) if own else protocol,
                certified_until=certified_until,
            )
        )
    is_there = mind.primary == core.node or core.seen_state(mind.primary) != DOWN
    primary, waits_for = config.member(mind.primary) if is_there else None, config.member(commits.waits_for)
    former = options.moved_from(config, core.node) if primary is None else ""
    moved = f"{options.admitting}  # if it moved: the group looks for it at {former}" if former else ""
    return NodeStatus(
        group=options.group,
        id=config.group,
        name=options.node,
        node=core.node,
        state=STATE_NAMES[mind.state],
        epoch=mind.epoch,
        primary=None if primary is None else primary.name,
        config=config.id,
        first_seqno=log.first,
        last=log.last,
        durable=log.durable,
        committed=mind.committed,
        fatal=mind.fatal,
        members=members,
        writers_wait_for=waits_for.name if waits_for is not None else "",
        lag_bytes=commits.flow.lag,
        next_step=f"tranlog group restore {options.node}" if mind.fatal else moved,
    )
