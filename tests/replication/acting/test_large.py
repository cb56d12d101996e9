"""Large transactions of a program: bounded memory, nothing visible before the commit. docs/protocol.md."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, differences, events, eventually, live_group, words
from tranlog.change import Change
from tranlog.errors import CommitRefusedError, NoPrimaryError, NotPrimaryError
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.member import MemberLog
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.replication.acting.client import EventFound, EventNotFound, FailedOver, Satisfied
from tranlog.replication.acting.large import LargeTransaction
from tranlog.replication.acting.serving import OPEN_BYTES_MAX
from tranlog.replication.rules.config import MAJORITY
from tranlog.replication.rules.packets import Commit

ROW = 500_000


def row(at: int) -> list[Change]:
    """Return a change of about half a MiB."""
    return [*words(f"{at % 10}" * ROW)]


def log_of(group: LiveGroup, name: str) -> MemberLog:
    thread = group.nodes[name].thread
    assert thread is not None
    return thread.log.log


@pytest.mark.long
def test_it_reaches_every_log_and_holds_up_nobody(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client() as client:
        primary = group.await_primary()
        with client.begin(event_id="large") as large:
            for at in range(24):
                large.add(row(at))
                if at % 8 == 0:
                    answer = client.commit(words("small"), w=MAJORITY, wtimeout=LONG_S, event_id=f"small {at}")
                    assert isinstance(answer, Satisfied)
            eventually(lambda: sum(log_of(group, primary).open_spills().values()) > 0)
            told = client.find("small 0")
            assert isinstance(told, EventFound), "what is open goes on while others are looked for"
            assert events(tmp_path / primary) == ["small 0", "small 8", "small 16"]
            answer = large.commit(w=3, wtimeout=LONG_S)
        assert isinstance(answer, Satisfied)
        assert client.find("large", after=None) == EventFound(answer.gtid)
        group.await_whole()
        with LogReader.open(str(tmp_path / primary)) as reader, reader.cursor() as cursor:
            cursor.seek(answer.gtid.seqno)
            found = cursor.next()
            assert found is not None and found.header.tables == () and found.header.spilled
            assert [*found.changes()] == [change for at in range(24) for change in row(at)]
    for name in "abc":
        assert events(tmp_path / name) == ["small 0", "small 8", "small 16", "large"]
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "b", tmp_path / "c") == ""


@pytest.mark.long
def test_a_small_one_is_as_any_other(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client, await client.begin(event_id="one") as transaction:
                await transaction.add(words("x"))
                await transaction.add(words("y"))
                answer = await transaction.commit(w=1, wtimeout=LONG_S)
                assert isinstance(answer, Satisfied)

        group.run(play())
        with LogReader.open(str(tmp_path / "a")) as reader, reader.cursor() as cursor:
            cursor.seek(reader.range().last_seqno)
            found = cursor.next()
            assert found is not None and [*found.changes()] == [*words("x"), *words("y")]


@pytest.mark.long
def test_both_ends_wait_for_the_disk(tmp_path: Path) -> None:
    """While the primary's disk takes nothing, a program cannot give more than sockets and a few MiB hold."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        node, stalled = group.nodes["a"], threading.Event()
        taken = 0

        def rows() -> Iterator[Change]:
            nonlocal taken
            for at in range(100):
                taken += ROW
                yield from row(at)

        with client.begin(event_id="large") as large:
            large.add(row(0))
            for _ in range(4):
                node.readers.executor.submit(stalled.wait)
            adding = threading.Thread(target=lambda: large.add(rows()))
            adding.start()
            wire = large._transaction._connection.wire
            assert wire is not None
            eventually(lambda: any(one._paused for one in node.entrance.wires) and not wire._writable.is_set())
            assert taken < OPEN_BYTES_MAX // 2 and adding.is_alive()
            stalled.set()
            adding.join()
            answer = large.commit(w=1, wtimeout=LONG_S)
        assert taken == 100 * ROW and isinstance(answer, Satisfied)


@pytest.mark.long
def test_without_its_commit_nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block ends, the connection is lost before the commit, or in the midst of it."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        log = log_of(group, "a")

        def fill(at: int) -> None:
            for number in range(at):
                large.add(row(number))
            eventually(lambda: sum(log.open_spills().values()) > 0)

        with client.begin(event_id="left") as large:
            fill(24)
        with client.begin(event_id="lost") as large:
            fill(24)
            for wire in list(group.nodes["a"].entrance.wires):
                group.loop.call_soon_threadsafe(wire.cut)
            with pytest.raises(NoPrimaryError, match="ended before the commit"):
                large.add(change for at in range(100) for change in row(at))
        take_parts = LargeTransaction._fill

        async def lost(self: LargeTransaction, transaction: OpenTransaction) -> Commit | None:
            found = await take_parts(self, transaction)
            self._wire.cut()
            await self._wire.gone.wait()
            return found

        monkeypatch.setattr(LargeTransaction, "_fill", lost)
        with client.begin(event_id="doubt") as large:
            fill(24)
            answer = large.commit(w=1, wtimeout=LONG_S)
            assert isinstance(answer, FailedOver) and answer.event_id == "doubt"
        told = client.find(answer.event_id, after=answer.after, timeout=LONG_S)
        assert isinstance(told, EventNotFound) and told.certain
        eventually(lambda: not log.open_spills())
        assert isinstance(client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="x"), Satisfied)
    assert events(tmp_path / "a") == ["x"]


@pytest.mark.long
def test_a_reign_that_ends_ends_it(tmp_path: Path) -> None:
    with live_group(tmp_path, "ab") as group, group.client() as client:
        former = group.await_primary()
        log = log_of(group, former)
        with client.begin(event_id="large") as large:
            for at in range(24):
                large.add(row(at))
            eventually(lambda: sum(log.open_spills().values()) > 0)
            group.order(former, "step-down")
            with pytest.raises(NotPrimaryError, match="Nothing was written"):
                large.add(one for at in itertools.count() for one in row(at))
        eventually(lambda: not log.open_spills())
        group.await_primary()
        answer = client.commit(words("x"), w=2, wtimeout=LONG_S, event_id="x")
        while not isinstance(answer, Satisfied):
            answer = client.commit(words("x"), w=2, wtimeout=LONG_S, event_id="x")
        group.await_whole()
    assert set(events(tmp_path / "a")) == {"x"} and differences(tmp_path / "a", tmp_path / "b") == ""


@pytest.mark.long
def test_one_that_is_over_takes_nothing_more(tmp_path: Path) -> None:
    """Nor does it say that nothing was written: it may be in the log."""
    over = r"transaction '.+' is over already\. What became of the transaction in question is not known"
    with live_group(tmp_path, "a") as group:
        with group.client() as client, client.begin(event_id="committed") as one:
            assert isinstance(one.commit(w=1, wtimeout=LONG_S), Satisfied)
            for call in (lambda: one.add(row(0)), one.commit):
                with pytest.raises(CommitRefusedError, match=over):
                    call()

        async def play() -> None:
            async with group.async_client() as client, await client.begin(event_id="cancelled") as one:
                await one.add(words("x"))
                (wire,) = [one for one in group.nodes["a"].entrance.wires if one.purpose == "commit"][-1:]
                wire._transport.pause_reading()
                committing = asyncio.ensure_future(one.commit(w=1))
                await asyncio.sleep(0)
                committing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await committing
                for call in (one.add(row(0)), one.commit()):
                    with pytest.raises(CommitRefusedError, match=over):
                        await call

        group.run(play())
    assert events(tmp_path / "a")[0] == "committed"


@pytest.mark.long
def test_changes_are_added_whole_or_it_is_over(tmp_path: Path) -> None:
    """A program that goes on after a cancelled `add`, or one that failed in the midst, would commit a part of them."""
    over = r"transaction '.+' is over already"
    with live_group(tmp_path, "a") as group:
        with group.client() as client:
            bad: list[object] = [*words("x"), "no change"]
            with client.begin(event_id="failed") as one:
                with pytest.raises(TypeError, match="a change is a RowChange or a Statement"):
                    one.add(bad)  # type: ignore[arg-type]
                with pytest.raises(CommitRefusedError, match=over):
                    one.commit(w=1)

        async def play() -> None:
            stalled = threading.Event()
            async with group.async_client() as client, await client.begin(event_id="cancelled") as one:
                await one.add(words("x"))
                for _ in range(4):
                    group.nodes["a"].readers.executor.submit(stalled.wait)
                adding = asyncio.ensure_future(one.add(change for at in range(100) for change in row(at)))
                wire = one._connection.wire
                assert wire is not None
                while wire._writable.is_set():
                    await asyncio.sleep(0.01)
                adding.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await adding
                stalled.set()
                with pytest.raises(CommitRefusedError, match=over):
                    await one.commit(w=1)
                with pytest.raises(TypeError, match="a change is"):
                    await (await client.begin(event_id="failed")).add(bad)  # type: ignore[arg-type]

        group.run(play())
    assert events(tmp_path / "a") == []
