"""What became of a transaction whose answer was lost: docs/protocol.md, "Looking for a transaction"."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, events, eventually, live_group, words
from tranlog.disk import OsDisk, OsFile
from tranlog.errors import CommitRefusedError, NoPrimaryError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.acting.client import EventFound, EventNotFound, FailedOver, NotPrimary, Satisfied, TimedOut
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules import finding
from tranlog.replication.rules.config import MAJORITY
from tranlog.replication.rules.packets import NO_GTID, CommitAnswer, Packet
from tranlog.service.group_client import connect_group


class SlowRoad:
    """A client's connection on the way to a node, as it may come to stand: what goes there waits until it is let go,
    and the client's end of it has ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._writers: list[asyncio.StreamWriter] = []
        self.arrived = 0

    async def listen(self) -> str:
        """Return where it is reached."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        """Let nothing through to the node from now on."""
        self._open.clear()

    def let_go(self) -> None:
        """Let all through that was held."""
        self._open.set()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_node = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, to_node]

        async def back() -> None:
            while raw := await there.read(1 << 16):
                writer.write(raw)
            writer.close()

        answering = asyncio.ensure_future(back())
        try:
            while raw := await reader.read(1 << 16):
                self.arrived += len(raw)
                await self._open.wait()
                to_node.write(raw)
                await to_node.drain()
        except OSError:
            pass  # the node has ended it
        await answering

    async def end(self) -> None:
        """End all of it."""
        self._server.close()
        for one in self._writers:
            one.close()
        await asyncio.gather(*(one.wait_closed() for one in self._writers), return_exceptions=True)


@pytest.mark.long
def test_what_was_committed_is_found_and_what_was_not_is_not_there(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client() as client:
        answers = {}
        for at in range(12):
            answer = client.commit(words(f"{at}"), w=MAJORITY, wtimeout=LONG_S, event_id=f"e{at}")
            assert isinstance(answer, Satisfied)
            answers[at] = answer.gtid
        assert client.find("e3") == EventFound(answers[3])
        assert client.find("e3", after=answers[2]) == EventFound(answers[3])
        assert client.find("e3", after=answers[3]) == EventNotFound(first=answers[4], certain=True)
        former = group.await_primary()
        group.stop(former)
        group.await_primary()
        assert client.find("e3", after=answers[2], timeout=LONG_S) == EventFound(answers[3]), (
            "another node tells the same"
        )
        told = client.find("never", after=answers[9], timeout=LONG_S)
        assert told == EventNotFound(first=answers[10], certain=True)
        alone = next(iter(group.nodes))
        group.stop(next(name for name in group.nodes if name != alone))
        with group.client(find_s=0.1) as other:
            with pytest.raises(
                NoPrimaryError, match="What became of the transaction in question is not known"
            ) as caught:
                other.find("e3", timeout=0.2)
            assert "Nothing was written" not in str(caught.value)


@pytest.mark.long
def test_a_long_log_is_walked_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_group(tmp_path, "a") as group, group.client() as client:
        answers = [client.commit(words(f"{at}"), w=1, wtimeout=LONG_S, event_id=f"e{at}").gtid for at in range(12)]
        assert answers[0] is not None
        monkeypatch.setattr(finding.part_to_walk, "__defaults__", (5,))
        assert client.find("e11", after=answers[0]) == EventFound(answers[11])  # type: ignore[arg-type]
        assert client.find("never", after=answers[0]) == EventNotFound(first=answers[1], certain=True)
        assert client.find("e1") == EventNotFound(first=answers[7], certain=False), "without `after` it is one step"


@pytest.mark.long
def test_not_there_stays_true_though_the_commit_is_still_on_its_way(tmp_path: Path) -> None:
    """The client's connection ends while the commit lies somewhere in the network, and comes out after the answer."""
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            road = SlowRoad(int(group.options["a"].listen.rpartition(":")[2]))
            async with group.async_client() as client:
                first = await client.commit(words("first"), w=1, event_id="first")
                assert isinstance(first, Satisfied)
                assert client._connection is not None
                await client._connection.close()
                addresses, client._addresses = client._addresses, [await road.listen()]
                await client.ask(first.gtid, w=1)  # connects
                road.hold()
                before = road.arrived
                lost = asyncio.ensure_future(client.commit(words("lost"), w=1, event_id="lost"))
                while road.arrived == before:
                    await asyncio.sleep(0.01)
                assert client._connection is not None and client._connection.wire is not None
                client._connection.wire.cut()
                answer = await lost
                assert isinstance(answer, FailedOver) and (answer.event_id, answer.gtid) == ("lost", None)
                assert answer.after is not None and answer.after >= first.gtid
                assert str(answer).endswith(f"Next: find('lost', after={answer.after})")
                client._addresses = addresses
                told = await client.find(answer.event_id, after=answer.after, timeout=LONG_S)
                assert isinstance(told, EventNotFound) and told.certain
                road.let_go()
                again = await client.commit(words("again"), w=1, event_id="again")
                assert isinstance(again, Satisfied)
                await asyncio.sleep(0.2)  # what was on its way has come by now, on a machine that is not busy
            await road.end()

        group.run(play())
        assert events(tmp_path / "a") == ["first", "again"]


@pytest.mark.long
def test_a_commit_for_one_reign_is_taken_by_no_other(tmp_path: Path) -> None:
    """Also where the same node is primary again: what a client was told is not there does not come after it."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        answer = client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="x")
        assert isinstance(answer, Satisfied)
        connection = client._group._connection
        assert connection is not None and connection.epoch == answer.gtid.epoch
        connection.epoch += 1
        assert isinstance(client.commit(words("late"), w=1, event_id="late"), NotPrimary)
        assert isinstance(client.commit(words("y"), w=1, wtimeout=LONG_S, event_id="y"), Satisfied)
    assert events(tmp_path / "a") == ["x", "y"]


@pytest.mark.long
def test_an_answer_that_was_lost_is_settled(tmp_path: Path) -> None:
    """The commit is done, and its answer lost: find says where it is."""

    def lose(group: LiveGroup) -> FailedOver:
        with group.client() as client:
            connection = client._run(client._group._primary())
            heard = connection.heard

            def cut(wire: object, packet: Packet, size: int) -> None:
                if isinstance(packet, CommitAnswer):
                    assert connection.wire is not None
                    connection.wire.cut()
                else:
                    heard(wire, packet, size)  # type: ignore[arg-type]

            connection.heard = cut  # type: ignore[method-assign, assignment]
            answer = client.commit(words("done"), w=1, wtimeout=LONG_S, event_id="done")
            assert isinstance(answer, FailedOver) and answer.after not in (None, NO_GTID)
            found = client.find(answer.event_id, after=answer.after, timeout=LONG_S)
            assert isinstance(found, EventFound) and isinstance(found.gtid, Gtid)
            assert isinstance(client.ask(found.gtid, w=MAJORITY, wtimeout=LONG_S), Satisfied)
            return answer

    with live_group(tmp_path, "a") as group:
        lose(group)
        eventually(lambda: len(group.nodes["a"].entrance.wires) == 0)
    assert events(tmp_path / "a") == ["done"]


@pytest.mark.long
def test_the_no_op_of_a_reign_is_no_commit_though_it_repeats_the_event_id_before_it(tmp_path: Path) -> None:
    """A program that gives an event id again would take its second commit for written, though it never was."""
    with live_group(tmp_path, "a") as group:
        with group.client() as client:
            first = client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="again")
            assert isinstance(first, Satisfied)
        group.stop("a")
        group.start("a")
        group.await_primary()
        with group.client() as client:
            told = client.find("again", after=first.gtid, timeout=LONG_S)
            assert isinstance(told, EventNotFound) and told.certain
            assert client.find("again", timeout=LONG_S) == EventFound(first.gtid)


class HeldFile(OsFile):
    """A file whose sync waits while its disk is held."""

    __slots__ = ("disk",)
    disk: HeldDisk

    def sync(self) -> None:
        assert self.disk.free.wait(LONG_S)
        super().sync()


class HeldDisk(OsDisk):
    """A disk that stands still at times."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        opened = super().open(path, write=write, create=create)
        file = HeldFile(os.dup(opened._fd), path)
        file.disk = self
        return file


@pytest.mark.long
@pytest.mark.parametrize("over", ["the same connection", "a new one"])
def test_not_there_stays_true_though_the_commit_waits_at_the_primary(tmp_path: Path, over: str) -> None:
    """A voter lags, so writers wait. What a client has asked about is not written when that has caught up."""
    group = LiveGroup(tmp_path, "ab")
    for name, options in group.options.items():
        group.options[name] = replace(options, lag_limit_bytes=1)
        group.disks[name] = HeldDisk()
    try:
        group.form()
        group.add("w", witness=True)
        primary = group.await_primary()
        replica = group.disks["b" if primary == "a" else "a"]
        assert isinstance(replica, HeldDisk)
        thread = group.nodes[primary].thread
        assert thread is not None

        async def play() -> None:
            async with group.async_client() as client, group.async_client() as other:
                first = await client.commit(words("first"), w=2, wtimeout=LONG_S, event_id="first")
                assert isinstance(first, Satisfied)
                replica.free.clear()
                until = group.loop.time() + LONG_S
                while not thread.commits:
                    assert group.loop.time() < until, "nobody ever waited"
                    pending = [asyncio.ensure_future(other.commit(words("x"), w=0, event_id="x")) for _ in range(2)]
                    await asyncio.sleep(0.05)
                lost = asyncio.ensure_future(client.commit(words("lost"), w=1, event_id="lost"))
                while not any(one.sent[1] == "lost" for _, one in thread.commits._waiting):
                    await asyncio.sleep(0.01)
                if over == "a new one":
                    assert client._connection is not None and client._connection.wire is not None
                    client._connection.wire.cut()
                    assert isinstance(await lost, FailedOver)
                told = await client.find("lost", after=first.gtid, timeout=LONG_S)
                assert isinstance(told, EventNotFound) and told.certain
                replica.free.set()
                if over == "the same connection":
                    with pytest.raises(CommitRefusedError, match="nothing was written"):
                        await lost
                await asyncio.gather(*pending)
                await other.commit(words("last"), w=2, wtimeout=LONG_S, event_id="last")
                assert await client.find("lost", after=first.gtid, timeout=LONG_S) == told

        group.run(play())
    finally:
        for disk in group.disks.values():
            assert isinstance(disk, HeldDisk)
            disk.free.set()
        group.close()
    assert "lost" not in events(tmp_path / primary) and "last" in events(tmp_path / primary)


@pytest.mark.long
def test_a_question_about_what_no_log_has_misleads_no_search(tmp_path: Path) -> None:
    """docs/protocol.md, "Looking for a transaction": `after` is what some log had when the commit was sent."""
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                first = await client.commit(words("x"), w=1, event_id="x")
                assert isinstance(first, Satisfied)
                assert isinstance(await client.ask(Gtid(Epoch(7), Seqno(1_000)), w=1, wtimeout=0.1), TimedOut)
                connection = client._connection
                assert connection is not None and connection.wire is not None
                heard = connection.heard

                def cut(wire: Wire, packet: Packet, size: int) -> None:
                    if isinstance(packet, CommitAnswer):
                        wire.cut()
                    else:
                        heard(wire, packet, size)

                connection.heard = cut  # type: ignore[method-assign]
                lost = await client.commit(words("y"), w=1, event_id="y")
                assert isinstance(lost, FailedOver) and lost.after == first.gtid
                assert isinstance(await client.find("y", after=lost.after, timeout=LONG_S), EventFound)

        group.run(play())


@pytest.mark.long
def test_another_group_is_not_asked(tmp_path: Path) -> None:
    """Whose address is in the list by mistake: it has none of what was sent before, whatever its name."""
    with live_group(tmp_path, "a") as group, live_group(tmp_path, "z") as other:
        with connect_group(f"{group.url},{other.options['z'].listen}", find_s=0.5) as client:
            first = client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="x")
            of = group if first.primary == "a" else other
            of.stop(first.primary)

            def found_none() -> bool:
                try:
                    return isinstance(client.commit(words("y"), w=1, wtimeout=LONG_S), Satisfied)
                except NoPrimaryError as exc:
                    return "it is of the group" in str(exc)

            eventually(found_none)
            with pytest.raises(NoPrimaryError, match="What became of the transaction in question is not known"):
                client.find("x", timeout=0.5)
