"""`tranlog node` and `tranlog group`: a node of a group, and the group through any of its nodes.

Owns the commands' words and their output. What a node does is `replication`'s, what a running one is asked
`process/node_part.py`'s.

Source: tokumx-replication.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tranlog.clock import SECONDS_MAX
from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.replication.acting.node import GroupNode, found_group
from tranlog.replication.acting.orders import (
    AddNode,
    Freeze,
    MemberStatus,
    NodeStatus,
    Reconfigure,
    RemoveNode,
    RestoreNode,
    StepDown,
    SyncFrom,
)
from tranlog.replication.rules.config import PRIORITY_MAX, ConfigChange
from tranlog.replication.rules.packets import NO_GTID
from tranlog.service.commands.orders import Ask, config_of, reaching_node
from tranlog.service.config.config import Config
from tranlog.service.frame.command import AsJson, answer, new_app, print_json, say, stop_signals
from tranlog.service.frame.exits import ExitCode
from tranlog.service.process.client import GRACE_S
from tranlog.service.process.last_error import keeping_error
from tranlog.service.process.node_part import HAND_OVER_S, NodePart, node_contexts, node_options
from tranlog.service.process.operating import OperatingOptions, node_endpoint
from tranlog.service.process.sockets import NODE_NAME

logger = logging.getLogger(__name__)

node_app = new_app(help="One node of a group.\n\n\b\nExample:\n  tranlog --conf a.toml node run")
group_app = new_app(help="A group of nodes that replicate a log.\n\n\b\nExample:\n  tranlog --conf a.toml group status")

_ADD_S = 660.0
_RESTORE_S = 86_400.0
Name = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


@node_app.command("run")
def run(ctx: typer.Context) -> None:
    """Be a node of a group, until SIGTERM or Ctrl-C.

    What [group] says: its name, where it listens. A node that is in no group yet waits to be admitted. A stopped
    primary hands over first.

    \b
    Example:
      tranlog --conf a.toml node run
    """
    config = config_of(ctx)
    with keeping_error(config.log_dir, NODE_NAME):
        asyncio.run(_run(config))


async def _run(config: Config) -> None:
    server_tls, client_tls = node_contexts(config)
    operating = OperatingOptions.of_node(config)
    operating.check()
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    with stop_signals(stop):
        node = GroupNode(node_options(config), server_tls=server_tls, client_tls=client_tls)
        await node.start()
        try:
            endpoint = node_endpoint(NodePart(node, loop), config.log_dir, operating)
            await asyncio.to_thread(endpoint.__enter__)
            try:
                logger.info(
                    "The node runs. group=%s node=%s at=%s", config.group.name, config.group.node, config.group.listen
                )
                ends = [asyncio.ensure_future(one) for one in (stopped.wait(), node.ended())]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                failed = ends[1].done()
                for one in ends:
                    one.cancel()
                if failed:
                    await ends[1]
            finally:
                await asyncio.to_thread(endpoint.__exit__, None, None, None)
        finally:
            await node.stop(hand_over_s=HAND_OVER_S)


@node_app.command("status")
@reaching_node
def node_status(asks: Ask, as_json: AsJson = False) -> int:
    """Show where a running node stands. Exit code 1 where it is neither primary, replica nor witness.

    \b
    Example:
      tranlog --conf a.toml node status
    """
    found = _status(asks)
    answer(_in_all_forms(msgspec.to_builtins(msgspec.structs.replace(found, members=[]))), _node_lines(found), as_json)
    return ExitCode.DONE if found.state in ("PRIMARY", "REPLICA", "WITNESS") else ExitCode.CHECK_FAILED


def _node_lines(found: NodeStatus) -> Iterator[str]:
    yield (
        f"node {found.name} of group {found.group} is {found.state}, epoch {found.epoch}, log up to {found.last}, "
        f"durable {found.durable}, committed {found.committed}"
    )
    if found.fatal:
        yield f"  {found.fatal}"
    if found.next_step:
        yield f"  Next: {found.next_step}"
    if found.restore is not None:
        yield f"  its log comes: {found.restore}"
    yield from _who_waits(found)


def _in_all_forms(told: Any) -> Any:
    """Return what is told, each GTID beside its numbers as `thl list` has it; one before everything has no bytes."""
    if isinstance(told, list):
        return [_in_all_forms(one) for one in told]
    if not isinstance(told, dict):
        return told
    if told.keys() != {"epoch", "seqno"}:
        return {name: _in_all_forms(one) for name, one in told.items()}
    gtid = Gtid(told["epoch"], told["seqno"])
    return {**told, "gtid": str(gtid), "gtidBase64": None if gtid == NO_GTID else gtid.to_base64()}


def _status(asks: Ask) -> NodeStatus:
    return msgspec.convert(asks("/group/status"), NodeStatus)


@group_app.command("init")
def init(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Make a group of this one node, of an empty log directory or an existing log, whose GTIDs stay.

    Nothing may run on the log. Then run the node, and add others.

    \b
    Example:
      tranlog --conf a.toml group init
      tranlog --conf a.toml node run
    """
    options = node_options(config_of(ctx))
    stored = found_group(options)
    shown = {"group": options.group, "id": stored.group, "name": options.node, "node": stored.node}
    line = f"group {options.group} ({stored.group}) has one node, {options.node} at {options.reached_at}"
    answer(shown, line, as_json)


@group_app.command("status")
@reaching_node
def status(asks: Ask, as_json: AsJson = False) -> int:
    """Show the group as a node sees it. Exit code 1 where that knows no primary.

    \b
    Example:
      tranlog --conf b.toml group status
    """
    found = _status(asks)
    answer(_in_all_forms(msgspec.to_builtins(found)), _group_lines(found), as_json)
    return ExitCode.DONE if found.primary is not None else ExitCode.CHECK_FAILED


def _group_lines(found: NodeStatus) -> Iterator[str]:
    yield f"group {found.group}, seen by {found.name}: primary {found.primary or 'unknown'}, epoch {found.epoch}"
    if not found.members:
        yield f"  {found.name} is {found.state}. Next: {found.next_step}"
    for one in found.members:
        yield f"  {one.name:12} {', '.join(filter(None, _words(one, own=one.node == found.node)))}"
    yield from _who_waits(found)


def _words(one: MemberStatus, *, own: bool) -> list[str]:
    until = one.certified_until
    heard = "never heard" if one.heard_ms is None else f"heard {one.heard_ms} ms ago"
    return [
        one.state,
        f"at {one.address}",
        f"votes {one.votes}",
        f"priority {one.priority}",
        "hidden" if one.hidden else "",
        f"delayed by {one.delay_ms} ms" if one.delay_ms else "",
        "" if one.last == NO_GTID else f"log up to {one.last}",
        "" if own else heard,
        f"protocol {one.protocol}" if one.protocol else one.trouble,
        "" if until is None else f"certificate until {datetime.fromtimestamp(until / 1000, UTC):%Y-%m-%d %H:%M} UTC",
    ]


def _who_waits(found: NodeStatus) -> Iterator[str]:
    if found.writers_wait_for:
        yield f"  writers wait for {found.writers_wait_for}, which lacks {found.lag_bytes} bytes of the log"


@group_app.command("who")
@reaching_node
def who(asks: Ask, as_json: AsJson = False) -> int:
    """Print the primary's name. Exit code 1 where none is known.

    \b
    Example:
      tranlog --conf b.toml group who
    """
    found = _status(asks)
    answer({"primary": found.primary, "epoch": found.epoch}, found.primary or (), as_json)
    return ExitCode.DONE if found.primary is not None else ExitCode.CHECK_FAILED


@group_app.command("config")
@reaching_node
def config_command(asks: Ask, as_json: AsJson = False) -> None:
    """Show the group's configuration.

    \b
    Example:
      tranlog --conf a.toml group config --json
    """
    found: dict[str, Any] = asks("/group/config")
    if as_json:
        print_json(found)
        return
    for warning in found.pop("warnings"):
        say(f"group: {warning}")
    members = found.pop("members")
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    for one in members:
        print("  " + ", ".join(f"{name} {value}" for name, value in one.items()))


@group_app.command("add")
@reaching_node
def add(
    asks: Ask,
    name: Name,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where it listens.")],
    no_vote: Annotated[bool, typer.Option("--no-vote", help="It keeps a log, and has no vote.")] = False,
    witness: Annotated[bool, typer.Option("--witness", help="It votes, and keeps no log.")] = False,
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="0 is never primary.", min=0, max=PRIORITY_MAX)
    ] = 1,
    replace: Annotated[
        bool, typer.Option("--replace", help="It takes the place of the node of its name, which was wiped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Admit a node that runs and is in no group yet; wait until it holds what is committed, and votes.

    \b
    Example:
      tranlog --conf b.toml node run
      tranlog --conf a.toml group add b 127.0.0.1:2113
    """
    if no_vote and witness:
        raise ConfigError(option="--no-vote", value=True, why="a witness votes; give one of the two")
    votes = 0 if no_vote else 1
    wanted = AddNode(
        name=name,
        address=address,
        votes=votes,
        priority=priority if votes and not witness else 0,
        witness=witness,
        replace=replace,
    )
    found = asks("/group/add", wanted, timeout_s=_ADD_S)
    if as_json:
        print_json(found)
        return
    print(f"node {name} at {address} is in the group")
    for warning in found["warnings"]:
        say(f"group: {warning}")


@group_app.command("remove")
@reaching_node
def remove(
    asks: Ask,
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Have a node be a member no more. A primary steps down first.

    \b
    Example:
      tranlog --conf a.toml group remove c
    """
    found = asks("/group/remove", RemoveNode(name=name), timeout_s=_ADD_S)
    answer(found, f"node {name} is not in the group any more", as_json)


@group_app.command("restore")
@reaching_node
def restore(
    asks: Ask,
    name: Name,
    source: Annotated[
        str, typer.Option("--from", metavar="NODE", help="Whose log it gets; default: the primary's.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Give a node the whole log of another one, in the place of its own; wait until it has it.

    For a node that is FATAL, or for whom no other one has what it lacks. It runs meanwhile. What it alone may have is
    saved first: `tranlog rollback list` there. Until the new log is there whole it keeps the old one.

    \b
    Example:
      tranlog --conf a.toml group restore c
      tranlog --conf c.toml node status
    """
    found = asks("/group/restore", RestoreNode(name=name, source=source), timeout_s=_RESTORE_S)
    answer(found, f"node {name} has a new log, and follows", as_json)


@group_app.command("reconfigure")
@reaching_node
def reconfigure(
    asks: Ask,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `group config --json` printed, changed; - for standard input.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Whatever is lost by it.")] = False,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="NODE", help="Who is a member no more; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the group's configuration: tags and tag rules, priorities, votes, what is hidden or delayed, default w.

    What FILE leaves out stays as it is. `add` and `remove` change who is a member.

    With --force, where a majority is lost for ever, or lost the end of its logs, one node goes on. It asks nobody: what
    was committed, and is held by none of the nodes that stay, is lost. The nodes that are named must not run any more.
    FILE changes what those that stay could not do: tag rules, default w, who may be primary.

    \b
    Example:
      tranlog --conf a.toml group config --json > group.json
      tranlog --conf a.toml group reconfigure group.json
      tranlog --conf a.toml group reconfigure --force --without b --without c
    """
    change = _change_in(file) if file else None
    asked = Reconfigure(force=force, without=tuple(without or ()), change=change)
    found = asks("/group/reconfigure", asked, timeout_s=_ADD_S)
    if force:
        others = ", ".join(found["without"]) or "asking anybody"
        answer(found, f"node {found['forced']} goes on without {others}", as_json)
        return
    epoch, version = found["id"]
    answer(found, f"the group has configuration {epoch}.{version}", as_json)
    for warning in found["warnings"] if not as_json else ():
        say(f"group: {warning}")


def _change_in(file: str) -> ConfigChange:
    """Read a change. Raises ConfigError."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return msgspec.json.decode(raw, type=ConfigChange)
    except OSError as exc:
        raise ConfigError(option="FILE", value=file, why=exc.strerror or str(exc)) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(option="FILE", value=file, why=f"it is no changed configuration: {exc}") from exc


@group_app.command("freeze")
@reaching_node
def freeze(
    asks: Ask,
    name: Name,
    seconds: Annotated[float, typer.Argument(metavar="S", min=0, max=SECONDS_MAX, help="For so long; 0 ends it.")],
    as_json: AsJson = False,
) -> None:
    """Have a node not stand to be primary for a while. It votes.

    \b
    Example:
      tranlog --conf a.toml group freeze c 120
    """
    found = asks("/group/freeze", Freeze(name=name, seconds=seconds))
    answer(found, f"node {name} {f'does not stand for {seconds:g} s' if seconds else 'may stand again'}", as_json)


@group_app.command("sync-from")
@reaching_node
def sync_from(
    asks: Ask,
    name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Whom it shall follow.")],
    as_json: AsJson = False,
) -> None:
    """Have a node follow another one than the primary, as long as that one is ahead of it and alive.

    \b
    Example:
      tranlog --conf a.toml group sync-from c b
    """
    found = asks("/group/sync-from", SyncFrom(name=name, source=source))
    answer(found, f"node {name} follows {source} where it can", as_json)


@group_app.command("step-down")
@reaching_node
def step_down(
    asks: Ask,
    within: Annotated[
        float, typer.Option("--within", metavar="S", min=0, max=SECONDS_MAX, help="For so long commits stop.")
    ] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Although no other node has everything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have the primary hand over to another node, which first gets everything that it has.

    \b
    Example:
      tranlog --conf a.toml group step-down
    """
    wanted = StepDown(within_s=within, force=force)
    found = asks("/group/step-down", wanted, timeout_s=within + GRACE_S)
    answer(found, f"{found['stepped_down']} is primary no more", as_json)
