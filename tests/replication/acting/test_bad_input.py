"""What an operator or a program does wrong with a group: one clear line each, and what to do. docs/replication.md."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fix_live_group import LONG_S, LiveGroup, eventually, live_group, words
from tranlog.disk import OsDisk
from tranlog.errors import ConfigError, GroupOrderError, HandshakeError, LogLockedError, MemberLogError, TranlogError
from tranlog.log.writing.log import Log
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.connection import reach
from tranlog.replication.acting.node import GroupNode, NodeOptions, found_group
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import Begin, Commit, CommitAnswer, Part
from tranlog.source.packer import pack


class RefusingDisk(OsDisk):
    """A disk that takes no byte."""

    def __init__(self, number: int) -> None:
        self._number = number

    def make_dir(self, path: str) -> None:
        raise OSError(self._number, os.strerror(self._number))


def options(folder: Path, name: str = "z", **fields: str) -> NodeOptions:
    return NodeOptions(**{"dir": str(folder), "group": "shop", "node": name, "listen": "127.0.0.1:0", **fields})  # type: ignore[arg-type]


def start(group: LiveGroup, wanted: NodeOptions, disk: OsDisk | None = None) -> None:
    node = GroupNode(wanted) if disk is None else GroupNode(wanted, disk=disk)
    group.run(node.start())
    group.run(node.stop())


def port_taken(group: LiveGroup, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        start(group, options(folder, listen=f"127.0.0.1:{taken.getsockname()[1]}"))


def beyond_loopback(group: LiveGroup, folder: Path) -> None:
    start(group, options(folder, listen="nowhere.invalid:2112"))


def no_host_name(group: LiveGroup, folder: Path) -> None:
    start(group, options(folder, listen="a..b:2112"))


def add_nowhere(group: LiveGroup, folder: Path) -> None:
    group.order("b", "add", name="z", address="nowhere.invalid:2112")


def add_no_address(group: LiveGroup, folder: Path) -> None:
    group.order("b", "add", name="z", address="2112")


def second_of_one_name(group: LiveGroup, folder: Path) -> None:
    other = LiveGroup(folder.parent, "b")
    try:
        other.start("b")
        group.order("a", "add", name="b", address=other.options["b"].listen)
    finally:
        other.close()


def directory_in_use(group: LiveGroup, folder: Path) -> None:
    start(group, group.options["b"])


def founded_twice(group: LiveGroup, folder: Path) -> None:
    found_group(options(folder, address="127.0.0.1:1"))
    found_group(options(folder, address="127.0.0.1:1"))


def log_of_another_group(group: LiveGroup, folder: Path) -> None:
    """Its segments were exchanged under its identity."""
    found_group(options(folder, address="127.0.0.1:1"))
    for path in folder.glob("thl.*"):
        path.unlink()
    for path in Path(group.options["a"].dir).glob("thl.*"):
        shutil.copy(path, folder)
    start(group, options(folder))


def copied_identity(group: LiveGroup, folder: Path) -> None:
    shutil.copytree(group.options["b"].dir, folder)
    start(group, options(folder))


def copied_identity_under_its_name(group: LiveGroup, folder: Path) -> None:
    """A copy that runs beside its original under the same name, with another address."""
    shutil.copytree(group.options["b"].dir, folder)
    copy = GroupNode(options(folder, "b"))
    group.run(copy.start())
    try:
        link = next(iter(copy.links.links.values()))
        eventually(lambda: "copy" in link.why)
        raise HandshakeError(where="a", why=link.why)
    finally:
        group.run(copy.stop())


def copied_identity_at_another(group: LiveGroup, folder: Path) -> None:
    """One that does not look at itself is refused by the others."""
    join = msgspec.structs.replace(group.nodes["b"].join(), node_name="z")
    node = group.nodes["a"]
    raise HandshakeError(where="a", why=node.joins.refused(join, next(iter(node.entrance.wires))))


def read_only_directory(group: LiveGroup, folder: Path) -> None:
    start(group, options(folder), RefusingDisk(errno.EROFS))


def full_disk(group: LiveGroup, folder: Path) -> None:
    start(group, options(folder), RefusingDisk(errno.ENOSPC))


def written_beside_the_node(group: LiveGroup, folder: Path) -> None:
    Log.open(group.options["b"].dir, source_id="x")


def last_electable(group: LiveGroup, folder: Path) -> None:
    one = LiveGroup(folder.parent, "z")
    try:
        one.form()
        one.order("z", "remove", name="z")
    finally:
        one.close()


def unknown_name(group: LiveGroup, folder: Path) -> None:
    group.order("a", "remove", name="nobody")


def replaced_while_it_runs(group: LiveGroup, folder: Path) -> None:
    other = LiveGroup(folder.parent, "b")
    try:
        other.start("b")
        group.order("a", "add", name="b", address=other.options["b"].listen, replace=True)
    finally:
        other.close()


CASES: dict[Callable[[LiveGroup, Path], None], tuple[type[TranlogError], str]] = {
    port_taken: (ConfigError, r"group.listen = '127.0.0.1:\d+': cannot be listened at: .*in use.*Correct it and start"),
    beyond_loopback: (
        ConfigError,
        r"group.listen = 'nowhere.invalid:2112': others reach this address: set tls_cert.*Correct it",
    ),
    no_host_name: (ConfigError, r"'a..b:2112': its host is no name that a host can have. Correct it and start"),
    add_nowhere: (GroupOrderError, r"no node answers at nowhere.invalid:2112: .*Start it there first"),
    add_no_address: (ConfigError, r"address = .2112.: must be HOST:PORT"),
    second_of_one_name: (GroupOrderError, r"the group's b has the id .*tranlog group add b .* --replace"),
    directory_in_use: (LogLockedError, r"/b.*(process|another|locked)"),
    founded_twice: (ConfigError, r"log.dir = .*: it is of the group [0-9a-f]{32} already"),
    log_of_another_group: (TranlogError, r"the log beside it has the history [0-9a-f]{32}, and the group [0-9a-f]{32}"),
    copied_identity: (ConfigError, r"is a copy of b's, with the identity of that node: remove the folder group/"),
    copied_identity_at_another: (
        HandshakeError,
        r"is a copy of b's, with the identity of that node: remove the folder",
    ),
    copied_identity_under_its_name: (
        HandshakeError,
        r"node b runs already, at 127.0.0.1:\d+; this one's log directory is a copy of its, .*: stop one of the two",
    ),
    read_only_directory: (TranlogError, r"Read-only file system. Check owner and permissions"),
    full_disk: (TranlogError, r"^disk full at .*/z: "),
    written_beside_the_node: (MemberLogError, r"belongs to node b of group shop: only the node may write it"),
    last_electable: (ConfigError, r"no node can be primary; give one with data a vote and a priority above 0"),
    unknown_name: (ConfigError, r"no node of the group has this name"),
    replaced_while_it_runs: (GroupOrderError, r"the b that shall be replaced runs and is connected; stop it first"),
}


@pytest.mark.long
def test_each_is_one_clear_line(tmp_path: Path) -> None:
    """The group goes on as it was, whatever was tried, and whoever is asked."""
    (tmp_path / "g").mkdir()
    with live_group(tmp_path / "g", "ab") as group, group.client() as client:
        eventually(lambda: all(link.wire for link in group.nodes["a"].links.links.values()))
        for do, (kind, line) in CASES.items():
            (tmp_path / do.__name__).mkdir()
            with pytest.raises(kind, match=line) as caught:
                do(group, tmp_path / do.__name__ / "z")
            line = str(caught.value)
            assert "\n" not in line and line.count("the group did not do it") <= 1, do.__name__
        assert isinstance(client.commit(words("on"), w=2, wtimeout=LONG_S, event_id="on"), Satisfied)


@pytest.mark.long
def test_a_replica_takes_no_write_and_names_the_primary(tmp_path: Path) -> None:
    with live_group(tmp_path, "ab") as group:
        primary = group.await_primary()
        replica = next(name for name in "ab" if name != primary)
        eventually(lambda: group.nodes[replica].standing.primary == group.nodes[primary].node)

        async def write() -> CommitAnswer:
            listen = group.options[replica].listen
            connection = await reach(listen, name="x", own=NodeId("x"), purpose="commit", tls=None)
            (fragment,) = pack(words("x"), source_id="x", event_id="x", tstamp=0)
            part, commit = Part(number=1, raw=fragment.payload), Commit(number=1, event_id="x", w=1)
            told = await connection.ask(1, Begin(number=1), part, commit)
            await connection.close()
            assert isinstance(told, CommitAnswer)
            return told

        told = group.run(write())
        assert (told.kind, told.primary) == ("not primary", primary)


@pytest.mark.long
def test_a_wiped_node_takes_its_former_place(tmp_path: Path) -> None:
    """Under its old name it is refused, until it is given the place of the one that it was."""
    with live_group(tmp_path) as group, group.client() as client:
        assert isinstance(client.commit(words("x"), w=3, wtimeout=LONG_S, event_id="x"), Satisfied)
        primary = group.await_primary()
        wiped = next(name for name in "abc" if name != primary)
        former = group.nodes[wiped].node
        group.stop(wiped)
        shutil.rmtree(tmp_path / wiped)
        group.start(wiped)
        link = group.nodes[primary].links.links[former]
        eventually(lambda: f"tranlog group add {wiped}" in link.why and "--replace" in link.why)
        listen = group.options[wiped].listen
        with pytest.raises(GroupOrderError, match=f"tranlog group add {wiped} {listen} --replace"):
            group.order(primary, "add", name=wiped, address=listen)
        needed = {"rules": {"all": {"site": 3}}, "w": 3}
        sites = [{"name": name, "tags": {"site": name}} for name in "abc"]
        group.order(primary, "reconfigure", change={**needed, "members": sites})
        told = group.order(primary, "add", name=wiped, address=listen, replace=True)
        assert told["added"] == wiped and told["node"] == group.nodes[wiped].node != former
        members = group.nodes[primary].standing.config.members
        assert [one.name for one in members].count(wiped) == 1 and former not in [one.node for one in members]
        assert {one.name: one.tags for one in members} == {name: {"site": name} for name in "abc"}
        group.await_whole()
        assert isinstance(client.commit(words("y"), w=3, wtimeout=LONG_S, event_id="y"), Satisfied)
