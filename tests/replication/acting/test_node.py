"""replication/acting/node.py: a group on real sockets elects, replicates, commits, and survives each of its nodes.

docs/replication.md; docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from fix_live_group import LONG_S, LiveGroup, differences, events, eventually, live_group, words
from tranlog.disk import OsDisk, OsFile
from tranlog.errors import (
    CommitRefusedError,
    ConfigError,
    GroupOrderError,
    LogClosedError,
    LogLockedError,
    MemberLogError,
    NoPrimaryError,
    TranlogError,
)
from tranlog.ids import Gtid
from tranlog.log.writing.log import Log
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting import core_thread
from tranlog.replication.acting.client import Answer, FailedOver, NotPrimary, RolledBack, Satisfied, TimedOut
from tranlog.replication.acting.node import GroupNode, found_group
from tranlog.replication.rules.config import MAJORITY, ConfigId, NodeId
from tranlog.replication.rules.effects import Committed
from tranlog.replication.rules.packets import NO_GTID, Heartbeat, Join, Pulse, Records, encode
from tranlog.service.commands.cli import main
from tranlog.service.commands.grouping import group_app
from tranlog.testing.servers import free_port

PAGE = Path(__file__).parents[3] / "docs" / "replication.md"


def test_a_group_of_one_elects_itself_and_commits(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group, group.client() as client:
        answer = client.commit(words("one"), w=MAJORITY, wtimeout=60.0, event_id="e1")
        assert isinstance(answer, Satisfied) and answer.written_to == ("a",) and answer.primary == "a"
        assert client.ask(answer.gtid, w=1) == Satisfied(gtid=answer.gtid, written_to=("a",), primary="a")
        assert client.wait(at_least=answer.gtid)
    assert events(tmp_path / "a") == ["e1"]


@pytest.mark.long
def test_a_primary_whose_disk_fails_ends_and_another_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks it meanwhile is answered, and it waits for no other to take over."""
    write, failed = OsFile.pwrite, list[bool]()

    def pwrite(file: OsFile, raw: bytes | memoryview, offset: int) -> None:
        if file._path.startswith(f"{tmp_path / 'a'}/") and (failed or b"gone" in bytes(raw)):
            failed.append(True)
            raise OSError(errno.EIO, "Input/output error")
        write(file, raw, offset)

    with live_group(tmp_path) as group, group.client() as client:
        assert group.await_primary() == "a"
        monkeypatch.setattr(OsFile, "pwrite", pwrite)
        node = group.nodes["a"]
        with ThreadPoolExecutor(1) as beside:
            unsure = beside.submit(client.commit, words("gone"), w=1, event_id="gone")
            with pytest.raises(TranlogError):
                group.run(node.ended())
            with pytest.raises(TranlogError):
                group.run(node.orders.status())
            with contextlib.suppress(TranlogError):
                group.stop("a", hand_over_s=3600.0)
            assert isinstance(unsure.result(), FailedOver)
        answer = client.commit(words("room"), w=MAJORITY, wtimeout=60.0, event_id="there")
        assert isinstance(answer, Satisfied) and answer.written_to == ("b", "c")


def test_a_sync_of_a_log_that_a_rollback_closed_ends_nothing(tmp_path: Path) -> None:
    """It may find the log closed before the other one is open. Its own, closed by anything else, ends the node."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        assert group.await_primary() == "a"
        node = group.nodes["a"]
        thread = node.thread
        assert thread is not None
        with Log.open(str(tmp_path / "other"), source_id="s") as other:
            thread.post(partial(thread._synced, cast(MemberLog, other), LogClosedError()))
        assert isinstance(client.commit(words("on"), w=1, wtimeout=60.0), Satisfied)
        thread.post(partial(thread._synced, thread.log.log, LogClosedError()))
        with pytest.raises(LogClosedError):
            group.run(node.ended())
        with contextlib.suppress(LogClosedError):
            group.stop("a")


@pytest.mark.long
def test_a_primary_whose_disk_is_full_hands_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no room for is refused, and committed where there is some."""
    write = OsFile.pwrite

    def pwrite(file: OsFile, raw: bytes | memoryview, offset: int) -> None:
        if file._path.startswith(f"{tmp_path / 'a'}/thl") and offset + len(raw) > file.size():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, raw, offset)

    with live_group(tmp_path) as group:

        def commit(text: str, w: int | str) -> Answer:
            with group.client() as client:
                return client.commit(words(text), w=w, event_id="e")

        assert group.await_primary() == "a"
        monkeypatch.setattr(OsFile, "pwrite", pwrite)
        why = ""
        while not why:
            try:
                commit("x" * 100_000, 1)
            except CommitRefusedError as exc:
                why = str(exc)
        assert "disk full" in why
        eventually(lambda: group.primaries() not in (["a"], []))
        while isinstance(answer := commit("room", MAJORITY), NotPrimary):
            pass
        assert isinstance(answer, Satisfied) and {"b", "c"} <= set(answer.written_to)
        monkeypatch.undo()


@pytest.mark.long
def test_three_nodes_hold_what_a_majority_acknowledged(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client() as client:
        acknowledged = []
        for at in range(40):
            answer = client.commit(words(f"number {at}"), w=MAJORITY, wtimeout=60.0, event_id=f"e{at}")
            assert isinstance(answer, Satisfied) and len(answer.written_to) >= 2
            acknowledged.append(answer.gtid)
        assert acknowledged == sorted(acknowledged)
        assert isinstance(client.commit(words("at all"), w=3, wtimeout=60.0, event_id="all"), Satisfied)
        group.await_whole()
        for name in "abc":
            assert events(tmp_path / name) == [*(f"e{at}" for at in range(40)), "all"]
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "b", tmp_path / "c") == ""


@pytest.mark.long
def test_another_node_takes_over_and_the_old_one_follows_it(tmp_path: Path) -> None:
    """The client finds the new primary by itself, and repeats nothing."""
    with live_group(tmp_path) as group, group.client() as client:
        assert isinstance(client.commit(words("before"), w=MAJORITY, wtimeout=60.0, event_id="before"), Satisfied)
        former = group.await_primary()
        group.stop(former)
        later = group.await_primary()
        assert later != former
        answer = client.commit(words("after"), w=MAJORITY, wtimeout=60.0, event_id="after")
        while not isinstance(answer, Satisfied):  # the first may find the old connection's end
            answer = client.commit(words("after"), w=MAJORITY, wtimeout=60.0, event_id="after")
        group.start(former)
        group.await_whole()
    for name in "abc":
        found = events(tmp_path / name)
        assert found[0] == "before" and set(found[1:]) == {"after"}
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "b", tmp_path / "c") == ""


@pytest.mark.long
def test_what_only_a_deposed_primary_has_is_rolled_back_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """w = 1 while nobody follows: the write is acknowledged by one node, and is in that one's rollback data; the
    page's program commits it again."""
    with live_group(tmp_path) as group:
        former = group.await_primary()
        others = [name for name in "abc" if name != former]
        group.await_whole()
        for name in others:
            group.stop(name)
        with group.client() as client:
            answer = client.commit(words("alone"), w=1, wtimeout=60.0, event_id="alone")
            assert isinstance(answer, Satisfied) and answer.written_to == (former,)
        group.stop(former)
        for name in others:
            group.start(name)
        group.await_primary()
        group.start(former)
        group.await_whole()
        assert events(tmp_path / former) == []
        assert list((tmp_path / former / "rollback").iterdir()) != []
        with group.client() as client:
            told = client.ask(answer.gtid, w=MAJORITY, wtimeout=60.0)
            assert isinstance(told, RolledBack)
        assert main(["rollback", "export", "0", "--dir", str(tmp_path / former)]) == 0
        monkeypatch.chdir(tmp_path)
        (tmp_path / "again.jsonl").write_text(capsys.readouterr().out)
        exec(re.sub(r"thl://[^\"]*", group.url, programs()[2]).replace("wtimeout=2.0", "wtimeout=60.0"), {})
        assert capsys.readouterr().out.startswith("Satisfied(")
        group.await_whole()
        assert events(tmp_path / former) == ["alone"]


@pytest.mark.long
def test_a_primary_that_steps_down_loses_nothing(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:

        async def commits() -> list[str]:
            done = []
            async with group.async_client() as client:
                for at in range(100):
                    answer = await client.commit(words(f"{at}"), w=MAJORITY, wtimeout=60.0, event_id=f"e{at}")
                    if isinstance(answer, Satisfied):
                        done.append(f"e{at}")
                    await asyncio.sleep(0.005)
            return done

        former = group.await_primary()
        working = asyncio.run_coroutine_threadsafe(commits(), group.loop)
        through = next(name for name in "abc" if name != former)
        assert group.order(through, "step-down") == {"stepped_down": former}
        assert group.await_primary() != former
        done = working.result(120)
        assert done
        group.await_whole()
        for name in "abc":
            assert set(done) <= set(events(tmp_path / name))


@pytest.mark.long
def test_many_clients_share_a_round(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:

        async def commits(clients: int, each: int) -> None:
            async with group.async_client() as client:

                async def one(number: int) -> None:
                    for at in range(each):
                        told = await client.commit(words("x"), w=MAJORITY, wtimeout=60.0, event_id=f"{number}-{at}")
                        assert isinstance(told, Satisfied)

                await asyncio.gather(*[one(number) for number in range(clients)])

        thread = group.nodes[group.await_primary()].thread
        assert thread is not None
        before = thread.log.log.status().syncs
        group.run(commits(64, 20))
        syncs = thread.log.log.status().syncs - before
        assert syncs <= 64 * 20 // 4, "of 1280 commits not each has a sync of its own"


@pytest.mark.long
def test_a_transaction_that_spills_reaches_every_log(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client() as client:
        big = [one for at in range(9) for one in words(f"{at}" * 500_000)]
        answer = client.commit(big, w=3, wtimeout=60.0, event_id="big")
        assert isinstance(answer, Satisfied), answer
        assert isinstance(client.commit(words("small"), w=3, wtimeout=60.0, event_id="small"), Satisfied)
        group.await_whole()
        for name in "abc":
            assert events(tmp_path / name) == ["big", "small"]
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "a", tmp_path / "c") == ""


@pytest.mark.long
def test_a_witness_votes_and_holds_nothing(tmp_path: Path) -> None:
    """Of two nodes and a witness one may go, and what a majority acknowledged is there."""
    with live_group(tmp_path, "ab") as group, group.client() as client:
        group.add("w", witness=True)
        answer = client.commit(words("x"), w=MAJORITY, wtimeout=60.0, event_id="x")
        assert isinstance(answer, Satisfied) and sorted(answer.written_to) == ["a", "b"]
        with pytest.raises(CommitRefusedError, match=r"refused it: w = \d+: 2 nodes hold data\. Nothing was"):
            client.commit(words("x"), w=3)
        former = group.await_primary()
        group.stop(former)
        eventually(lambda: len(group.primaries()) == 1)
        assert {*group.primaries(), former} == {"a", "b"}
        answer = client.commit(words("y"), w=1, wtimeout=60.0, event_id="y")
        while not isinstance(answer, Satisfied):
            answer = client.commit(words("y"), w=1, wtimeout=60.0, event_id="y")
        assert isinstance(client.ask(answer.gtid, w=MAJORITY, wtimeout=0.1), TimedOut), "one copy is no majority of two"
        status = group.run(group.nodes["w"].orders.status())
        assert (status.state, status.last) == ("WITNESS", NO_GTID)
        group.start(former)
        assert isinstance(client.ask(answer.gtid, w=MAJORITY, wtimeout=60.0), Satisfied)
    assert events(tmp_path / "a") == events(tmp_path / "b") == ["x", "y"] and events(tmp_path / "w") == []


@pytest.mark.long
def test_one_node_goes_on_by_force_where_a_majority_is_lost(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client(find_s=0.5) as client:
        assert isinstance(client.commit(words("x"), w=3, wtimeout=60.0, event_id="x"), Satisfied)
        for name in sorted("ab", key=group.await_primary().__eq__):  # the primary last, or one of them elects the third
            group.stop(name)
        since = time.monotonic()
        while time.monotonic() - since < 3.0:  # whom a stop has handed over to is primary for two seconds yet
            if group.nodes["c"].standing.primary != "":
                since = time.monotonic()
            time.sleep(0.02)
        with pytest.raises(NoPrimaryError, match="Nothing was written"):
            client.commit(words("nobody takes it"), w=1)
        with pytest.raises(ConfigError, match="other nodes of the group can be named"):
            group.order("c", "reconfigure", force=True, without=["c"])
        assert group.order("c", "reconfigure", force=True, without=["a", "b"])["forced"] == "c"
        assert group.await_primary() == "c"
        assert isinstance(client.commit(words("y"), w=MAJORITY, wtimeout=60.0, event_id="y"), Satisfied)
    assert events(tmp_path / "c") == ["x", "y"]


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_programs_of_the_page_run_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_group(tmp_path) as group:
        for program in programs()[:2]:
            program, count = re.subn(r"thl://[^\"]*", group.url, program)
            assert count == 1
            exec(program.replace("wtimeout=2.0", "wtimeout=60.0"), {})
    shown = r"Satisfied\(gtid=.*\)\nSatisfied\(gtid=.*\)\nTrue\nEventNotFound\(first=None, certain=True\)\n"
    assert re.fullmatch(shown, capsys.readouterr().out)


def test_the_page_names_every_command() -> None:
    text = PAGE.read_text()
    commands = [command.name for command in group_app.registered_commands]
    assert [name for name in commands if f"group {name}" not in text] == []
    assert [kind.__name__ for kind in Answer.__subclasses__() if f"`{kind.__name__}`" not in text] == []


def garbled(node: NodeId, group: str) -> list[bytes]:
    """Return what a hostile peer sends: the first of each is what it says for a handshake."""
    gtid = Gtid(1, 1 << 40)  # type: ignore[arg-type]
    join = Join(
        node=node,
        node_name="x",
        purpose="vote",
        versions=(1,),
        config=ConfigId(),
        last=NO_GTID,
        heartbeat_ms=250,
        group=group,
    )
    beat = Heartbeat(
        epoch=1 << 50,
        state=1,
        last=gtid,
        durable=gtid,
        committed=gtid,
        config=ConfigId(1 << 40, 1),
        pulse=Pulse(1, 1),
        echo=Pulse(),
    )
    records = Records(number=1, after=NO_GTID, last=gtid, committed=gtid, epoch=1 << 50, part=0, raw=b"\xff" * 1000)
    return [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x00" * 100,
        b"\xff" * 100_000,
        struct.pack(">IBBH", 1 << 31, 19, 0, 0),
        encode(beat),
        encode(join)[:-3],
        encode(join) + b"\x80" * 4000,
        encode(join) + encode(beat),
        encode(join) + encode(records),
    ]


@pytest.mark.long
def test_a_hostile_peer_costs_its_own_connection(tmp_path: Path) -> None:
    """A node that nobody knows says that it is the primary of a far epoch, and worse; commits go on meanwhile."""
    with live_group(tmp_path) as group, group.client() as client:
        primary = group.await_primary()
        epoch = group.nodes[primary].standing.epoch
        peers = []
        for raw in garbled(NodeId("stranger"), group.nodes[primary].standing.config.group):
            for options in group.options.values():
                peer = socket.create_connection(("127.0.0.1", int(options.listen.rpartition(":")[2])))
                peers.append(peer)
                try:
                    peer.sendall(raw)
                except OSError:
                    pass  # it was ended already
            assert isinstance(client.commit(words("on"), w=3, wtimeout=60.0), Satisfied)
        assert group.await_primary() == primary and group.nodes[primary].standing.epoch == epoch
        for peer in peers:
            peer.close()
        assert isinstance(client.commit(words("on"), w=3, wtimeout=60.0), Satisfied)


@pytest.mark.long
def test_who_is_in_the_group_is_changed_through_any_node(tmp_path: Path) -> None:
    with live_group(tmp_path) as group:
        status = group.run(group.nodes["c"].orders.status())
        assert [(one.name, one.votes) for one in status.members] == [("a", 1), ("b", 1), ("c", 1)]
        assert status.primary == "a" and status.group == "shop"
        assert group.order("c", "remove", name="b") == {"removed": "b"}
        eventually(lambda: len(group.nodes["c"].standing.config.members) == 2)
        eventually(lambda: group.nodes["b"].standing.config.member(group.nodes["b"].node) is None)
        status = group.run(group.nodes["b"].orders.status())
        assert (status.state, status.name) == ("REMOVED", "b")
        with pytest.raises((ConfigError, GroupOrderError), match="no node of the group has this name"):
            group.order("c", "remove", name="b")
        assert group.order("c", "add", name="b", address=group.options["b"].listen)["added"] == "b"
        group.await_whole()
        assert group.order("b", "remove", name="a") == {"removed": "a"}, "a primary steps down first"
        assert group.await_primary() != "a"


@pytest.mark.long
def test_a_node_is_frozen_and_told_whom_to_follow(tmp_path: Path) -> None:
    """Through any node. The frozen one does not take over; the other one follows a replica as long as that is there."""
    with live_group(tmp_path) as group, group.client() as client:
        former = group.await_primary()
        frozen, other = (name for name in "abc" if name != former)
        for name in (frozen, other):
            with pytest.raises((ConfigError, GroupOrderError), match="cannot follow itself"):
                group.order(former, "sync-from", name=name, source=name)
        with pytest.raises(GroupOrderError, match="is PRIMARY, and follows no node"):
            group.order(other, "sync-from", name=former, source=other)
        with pytest.raises(GroupOrderError, match="is primary"):
            group.order(other, "freeze", name=former, seconds=1.0)
        assert group.order(former, "freeze", name=frozen, seconds=3600.0) == {"frozen": frozen, "seconds": 3600.0}
        assert group.order(frozen, "sync-from", name=other, source=frozen) == {"node": other, "source": frozen}
        thread, source = group.nodes[other].thread, group.nodes[frozen].node
        assert thread is not None and thread.core.mind.wish == source
        assert isinstance(client.commit(words("x"), w=3, wtimeout=60.0, event_id="x"), Satisfied)
        group.stop(former)
        eventually(lambda: group.primaries() == [other])


@pytest.mark.long
def test_a_stranger_is_not_admitted(tmp_path: Path) -> None:
    """A node of another group, one of another name, nobody at all; one whose directory is in use."""
    (tmp_path / "other").mkdir()
    with live_group(tmp_path, "ab") as group, live_group(tmp_path / "other", "c") as other:
        there = other.options["c"].listen
        for name, address, why in (
            ("c", there, "the node there is of the group shop"),
            ("d", f"127.0.0.1:{free_port()}", "no node answers at"),
            ("c", "nowhere", "must be HOST:PORT"),
            ("c", group.options["b"].listen, "is called b"),
        ):
            with pytest.raises((ConfigError, GroupOrderError), match=why):
                group.order("b", "add", name=name, address=address)
        with pytest.raises(LogLockedError):
            group.run(GroupNode(group.options["a"]).start())
        with pytest.raises(MemberLogError, match="belongs to node a of group shop: only the node may write it"):
            Log.open(group.options["a"].dir, source_id="x")
        with pytest.raises(LogLockedError):
            found_group(group.options["a"])
        group.stop("a")
        with pytest.raises(ConfigError, match=r"it is of the group [0-9a-f]{32} already"):
            found_group(group.options["a"])


class SlowFile(OsFile):
    """Each sync takes a while."""

    __slots__ = ()

    def sync(self) -> None:
        time.sleep(0.03)
        super().sync()


class SlowDisk(OsDisk):
    """A disk that is slower than the others."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        file = super().open(path, write=write, create=create)
        return SlowFile(os.dup(file._fd), path)


class FullFile(OsFile):
    """What is appended to it finds no room while its disk is full."""

    __slots__ = ("disk",)
    disk: FullDisk

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        if self.disk.full and "thl.data" in self._path:
            raise OSError(errno.ENOSPC, "full", self._path)
        super().pwrite(raw, offset)


class FullDisk(OsDisk):
    """A disk that is full at times."""

    full = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        opened = super().open(path, write=write, create=create)
        file = FullFile(os.dup(opened._fd), path)
        file.disk = self
        return file


@pytest.mark.long
def test_a_full_disk_refuses_a_whole_lot_and_nothing_else(tmp_path: Path) -> None:
    """Commits of a lot are appended together: those that are acknowledged are there, and the refused ones are not."""
    group, disk = LiveGroup(tmp_path, "a"), FullDisk()
    group.disks["a"] = disk
    done, refused = [], []
    try:
        group.form()

        async def commits() -> None:
            async with group.async_client() as client:

                async def one(event: str) -> None:
                    try:
                        answer = await client.commit(words("x" * 1000), w=MAJORITY, wtimeout=60.0, event_id=event)
                    except CommitRefusedError:
                        refused.append(event)
                    else:
                        assert isinstance(answer, Satisfied)
                        done.append(event)

                for lot in range(6):
                    disk.full = lot % 2 == 1
                    await asyncio.gather(*[one(f"{lot}-{at}") for at in range(300)])

        group.run(commits())
    finally:
        group.close()
    assert refused and sorted(events(tmp_path / "a")) == sorted(done)


@pytest.mark.long
def test_writers_wait_for_a_voter_that_lags(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They hand over as fast as they can; the follower's disk is slow. docs/protocol.md, "Flow control"."""
    group = LiveGroup(tmp_path, "ab")
    for name, options in group.options.items():
        group.options[name] = replace(options, lag_limit_bytes=20_000)
        group.disks[name] = SlowDisk()
    try:
        group.form()
        group.await_whole()

        async def commits() -> int:
            done = 0
            async with group.async_client() as client:
                until = group.loop.time() + LONG_S
                while not any("Writers wait for" in line for line in caplog.messages):
                    assert group.loop.time() < until, "nobody ever waited"
                    some = [client.commit(words("x" * 1000), w=0, event_id=f"e{done + at}") for at in range(100)]
                    assert all(isinstance(one, Satisfied) for one in await asyncio.gather(*some))
                    done += len(some)
            return done

        with caplog.at_level(logging.WARNING, logger="tranlog"):
            count = asyncio.run_coroutine_threadsafe(commits(), group.loop).result(2 * LONG_S)
        primary = group.await_primary()
        status = group.run(group.nodes[primary].orders.status())
        assert (status.writers_wait_for, status.name) == ("", primary), "all was written, so nobody waits"
        group.await_whole()
    finally:
        group.close()
    assert len(events(tmp_path / "a")) == len(events(tmp_path / "b")) == count


def test_time_passes_for_a_core_whose_effects_are_carried_out(tmp_path: Path) -> None:
    """After many events a turn ends for the sake of a tick. A follower that was late looked for another source there
    before it had put what it had just taken; the answer then fell short of its log, and it was FATAL for nothing."""
    with live_group(tmp_path, "a") as group:
        thread, held, over, undone = group.nodes["a"].thread, threading.Event(), threading.Event(), [0]
        assert thread is not None
        core, tick, effect = thread.core, thread.core.tick, Committed(thread.log.committed())

        def looks(now: int, wall: int, chance: int) -> None:
            undone[0] += len(thread._effects) + len(core._out)
            tick(now, wall, chance)

        with mock.patch.object(core, "tick", looks):
            thread.post(held.set)
            thread.call(lambda core: over.wait(60))
            assert held.wait(60)
            for _ in range(3 * core_thread._LOT):
                thread.post(lambda: core._out.append(effect))
            time.sleep(2 * core_thread.TICK_S)  # a tick is due when the first lot is looked at
            over.set()
            thread.call(lambda core: None).result(60)
        assert undone == [0]
