"""replication/acting/client.py: what a program gives a group's client, and what it hears.

docs/replication.md, "Committing from Python".
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fix_fork import in_child
from fix_live_group import LONG_S, events, eventually, live_group, words
from tranlog.errors import CommitRefusedError, LogUnreadableError, NoPrimaryError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.acting import client as client_module
from tranlog.replication.acting import connection as connection_module
from tranlog.replication.acting import serving
from tranlog.replication.acting.client import (
    PART_BYTES_MAX,
    WHOLE_BYTES_MAX,
    AsyncGroup,
    FailedOver,
    RemoteGroup,
    Satisfied,
    TimedOut,
)
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.acting.transport import UNSENT_MAX
from tranlog.service.group_client import connect_async, connect_group


@pytest.mark.long
def test_many_tasks_commit_more_than_waits_to_be_sent(tmp_path: Path) -> None:
    """None of them is cut off for what the others have not sent yet."""
    size = 100_000
    many = 3 * UNSENT_MAX // size
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                commits = [client.commit(words("x" * size), w=1, event_id=f"e{at}") for at in range(many)]
                answers = await asyncio.gather(*commits)
                assert {type(one) for one in answers} == {Satisfied}

        group.run(play())
    assert len(events(tmp_path / "a")) == many


@pytest.mark.long
def test_more_tasks_commit_than_a_node_lets_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection_module.ASKED_MAX < serving.UNANSWERED_MAX
    monkeypatch.setattr(serving, "UNANSWERED_MAX", 20)
    monkeypatch.setattr(connection_module, "ASKED_MAX", 10)
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                answers = await asyncio.gather(*(client.commit(words("x"), w=1) for _ in range(200)))
                assert {type(one) for one in answers} == {Satisfied}

        group.run(play())


@pytest.mark.long
def test_what_was_not_sent_in_time_was_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node reads nothing: what still waits here when its time is over is refused, what was sent is in doubt."""
    monkeypatch.setattr(client_module, "MARGIN_S", 0.2)
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                await client.commit(words("x"), w=1, event_id="first")
                (wire,) = [one for one in group.nodes["a"].entrance.wires if one.purpose == "commit"]
                wire._transport.pause_reading()
                large = words("x" * 1_000_000)
                sent = [asyncio.ensure_future(client.commit(large, w=1, event_id=f"e{at}")) for at in range(20)]
                await asyncio.sleep(0.2)
                with pytest.raises(
                    CommitRefusedError, match=r"before the primary had room for it\. Nothing was written"
                ):
                    await client.commit(words("late"), w=1, wtimeout=0.1, event_id="late")
                sent[-1].cancel()
                wire._transport.resume_reading()
                answers = await asyncio.gather(*sent, return_exceptions=True)
                assert {type(one) for one in answers} == {Satisfied, asyncio.CancelledError}

        group.run(play())
    assert events(tmp_path / "a") == ["first", *[f"e{at}" for at in range(19)]]


@pytest.mark.long
def test_who_is_cancelled_in_the_midst_leaves_no_beginning(tmp_path: Path) -> None:
    """A transaction of many parts; its connection takes no more of others, and ends when these have their answers."""
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                await client.commit(words("x"), w=1, event_id="first")
                (wire,) = [one for one in group.nodes["a"].entrance.wires if one.purpose == "commit"]
                wire._transport.pause_reading()
                before = client._connection
                small = asyncio.ensure_future(client.commit(words("small"), w=1, event_id="small"))
                await asyncio.sleep(0)
                parts = [one for _ in range(20) for one in words("x" * 1_000_000)]
                cut_off = asyncio.ensure_future(client.commit(parts, w=1, event_id="cut off"))
                await asyncio.sleep(0.2)
                cut_off.cancel()
                await asyncio.wait([cut_off])
                assert isinstance(await client.commit(words("other"), w=1, event_id="other"), Satisfied)
                assert client._connection is not before
                wire._transport.resume_reading()
                assert isinstance(await small, Satisfied)
                await wire.gone.wait()

        group.run(play())
    assert sorted(events(tmp_path / "a")) == ["first", "other", "small"]


@pytest.mark.long
def test_what_no_node_takes_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    """Before a byte of it is sent; the largest change that fits is taken."""
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                other = asyncio.ensure_future(client.commit(words("other"), w=1, event_id="other"))
                too_large = words("x" * (PART_BYTES_MAX + 1))
                with pytest.raises(CommitRefusedError, match=f"and a packet takes {PART_BYTES_MAX}"):
                    await client.commit(too_large, w=1)
                async with await client.begin(event_id="large") as large:
                    await large.add(words("x"))
                    with pytest.raises(CommitRefusedError, match=f"and a packet takes {PART_BYTES_MAX}"):
                        await large.add(too_large)
                with pytest.raises(CommitRefusedError, match="its event id has more than 65535 bytes"):
                    await client.commit(words("x"), event_id="x" * 65_536)
                assert isinstance(await client.commit(words("x" * (PART_BYTES_MAX - 500)), event_id="y"), Satisfied)
                assert isinstance(await other, Satisfied)

        group.run(play())
    assert events(tmp_path / "a") == ["other", "y"]


@pytest.mark.long
def test_what_is_too_large_for_a_nodes_memory_goes_by_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WHOLE_BYTES_MAX + PART_BYTES_MAX < serving.OPEN_BYTES_MAX
    monkeypatch.setattr(serving, "OPEN_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(client_module, "WHOLE_BYTES_MAX", 2 << 20)
    with live_group(tmp_path, "a") as group, group.client() as client:
        parts = [one for _ in range(12) for one in words("x" * 1_000_000)]
        answer = client.commit(parts, w=1, wtimeout=60.0, event_id="large")
        assert isinstance(answer, Satisfied)
        assert client.find("large") == client_module.EventFound(answer.gtid)
    assert events(tmp_path / "a") == ["large"]


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda client: client.commit(words("x"), w=True), TypeError, "w is a number of nodes"),
        (lambda client: client.commit(words("x"), w=2.0), TypeError, "w is a number of nodes"),
        (lambda client: client.commit(words("x"), w=""), ValueError, "None for the group's default, not empty"),
        (lambda client: client.commit(words("x"), w=-1), ValueError, "w is 0 to 50 nodes, not -1"),
        (lambda client: client.commit(words("x"), w=1 << 70), ValueError, "w is 0 to 50 nodes"),
        (lambda client: client.commit(words("x"), wtimeout=-0.01), ValueError, "wtimeout is 0 to"),
        (lambda client: client.commit(words("x"), wtimeout=float("nan")), ValueError, "wtimeout is 0 to"),
        (lambda client: client.commit(words("x"), wtimeout=float("inf")), ValueError, "wtimeout is 0 to"),
        (lambda client: client.commit(words("x"), wtimeout="1"), TypeError, "wtimeout is a number of seconds"),
        (lambda client: client.commit(words("x"), event_id=7), TypeError, "event_id is of the type str, not 7"),
        (lambda client: client.begin(event_id=7), TypeError, "event_id is of the type str, not 7"),
        (lambda client: client.ask((1, 2)), TypeError, "gtid is of the type Gtid"),
        (lambda client: client.ask(Gtid(Epoch(1), Seqno(1)), w=True), TypeError, "w is a number of nodes"),
        (lambda client: client.find(7), TypeError, "event_id is of the type str"),
        (lambda client: client.find("x", after=7), TypeError, "after is of the type Gtid"),
        (lambda client: client.find("x", timeout=-1), ValueError, "timeout is 0 to"),
        (lambda client: client.wait(at_least=7), TypeError, "at_least is of the type Gtid"),
        (lambda client: client.wait(within_ms=-1), ValueError, "within_ms is a number of milliseconds"),
        (lambda client: client.wait(within_ms=0.5), TypeError, "within_ms is of the type int"),
        (lambda client: client.wait(latest=True, timeout=-1), ValueError, "timeout is 0 to"),
        (lambda client: client.commit([None]), TypeError, "a change is a RowChange or a Statement, not None"),  # type: ignore[list-item]
    ],
)
def test_what_no_node_could_read_is_refused_here(
    call: Callable[[AsyncGroup], Coroutine[None, None, object]], error: type[Exception], why: str
) -> None:
    """It would end the connection of all tasks. Nobody listens there: nothing is sent."""

    async def play() -> None:
        async with connect_async("thl://127.0.0.1:1", find_s=0.0) as client:
            with pytest.raises(error, match=why):
                await call(client)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [(5, {}, "url is of the type str"), ("thl://a:1", {"tls": "group.pem"}, "tls is of the type SSLContext")],
)
def test_what_is_no_address_and_no_side_of_tls_is_refused(url: Any, options: dict[str, Any], why: str) -> None:
    for open_one in (connect_async, connect_group):
        with pytest.raises(TypeError, match=why):
            open_one(url, **options)


@pytest.mark.long
def test_the_shortest_time_is_no_endless_one(tmp_path: Path) -> None:
    with live_group(tmp_path, "ab") as group, group.client() as client:
        answer = client.commit(words("x"), w=2, wtimeout=60.0, event_id="x")
        assert isinstance(answer, Satisfied)
        never = Gtid(answer.gtid.epoch, Seqno(answer.gtid.seqno + 1_000))
        assert isinstance(client.ask(never, w=2, wtimeout=0.0001), TimedOut)


@pytest.mark.long
def test_a_client_is_closed_while_threads_commit(tmp_path: Path) -> None:
    """Each call ends, by an answer that leaves doubt or an error of ours, however it meets the end."""
    ends: list[object] = []
    with live_group(tmp_path, "a") as group:
        for at in range(8):
            client = group.client()
            client.commit(words("x"), w=0)
            begun = threading.Barrier(7)

            def work(client: RemoteGroup = client, begun: threading.Barrier = begun) -> None:
                begun.wait()
                try:
                    while isinstance(answer := client.commit(words("x"), w=0), Satisfied):
                        pass
                    ends.append(answer)
                except BaseException as exc:
                    ends.append(exc)

            threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
            for thread in threads:
                thread.start()
            begun.wait()
            time.sleep(0.01 * at)
            client.close()
            client.close()
            for thread in threads:
                thread.join(LONG_S)
            assert len(ends) == 6 * (at + 1)
    assert {type(one) for one in ends} <= {FailedOver, NoPrimaryError}
    refused = [str(one) for one in ends if isinstance(one, NoPrimaryError)]
    assert all("this client of it was closed. Nothing was written" in one for one in refused)


@pytest.mark.long
def test_what_waits_hears_that_its_client_is_closed(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group, group.client() as client, ThreadPoolExecutor() as threads:
        first = client.commit(words("x"), w=1, event_id="x")
        assert isinstance(first, Satisfied)
        large, left = client.begin(event_id="large"), client.begin(event_id="left")
        for one in (large, left):
            one.add(words("x"))

        async def read_nothing() -> None:
            for one in group.nodes["a"].entrance.wires:
                one._transport.pause_reading()

        group.run(read_nothing())
        committing = threads.submit(client.commit, words("y"), w=1, event_id="y")
        ending = threads.submit(large.commit, w=1)
        finding = threads.submit(client.find, "x", timeout=LONG_S)
        waiting = threads.submit(client.wait, latest=True, timeout=LONG_S)
        eventually(lambda: len(client._group._connection._waiting) == 3)  # type: ignore[union-attr]
        client.close()
        assert isinstance(committing.result(LONG_S), FailedOver)
        assert isinstance(ending.result(LONG_S), FailedOver)
        with pytest.raises(NoPrimaryError, match=r"was closed\. What became of the transaction in question is not"):
            finding.result(LONG_S)
        assert not waiting.result(LONG_S)
        left.close()
        with pytest.raises(NoPrimaryError, match=r"was closed\. Nothing was written"):
            client.commit(words("z"))
        with pytest.raises(NoPrimaryError, match=r"was closed\. Nothing was written"):
            left.add(words("z" * (1 << 20)))
        with pytest.raises(NoPrimaryError, match=r"was closed\. What became of the transaction in question is not"):
            client.ask(first.gtid)


@pytest.mark.long
def test_an_asynchronous_client_is_closed_as_any_other(tmp_path: Path) -> None:
    """Its open transactions end with it, and nothing more is sent."""
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                await client.commit(words("x"), w=1, event_id="x")
                open_one = await client.begin(event_id="open")
                await open_one.add(words("y"))
            await client.close()
            for call in (client.commit(words("late"), w=1), client.begin(), client.find("x"), client.primary()):
                with pytest.raises(NoPrimaryError, match="this client of it was closed"):
                    await call
            with pytest.raises(NoPrimaryError, match="ended before the commit"):
                await open_one.commit(w=1)

        group.run(play())
    assert events(tmp_path / "a") == ["x"]


@pytest.mark.long
def test_a_client_serves_the_loop_in_which_it_was_used_first(tmp_path: Path) -> None:
    """In another one it would wait for ever: its connection is the former one's."""
    with live_group(tmp_path, "a") as group:
        client = group.async_client()
        with asyncio.Runner() as first:
            first.run(client.commit(words("x"), w=1, event_id="x"))
            with pytest.raises(RuntimeError, match="another event loop"), asyncio.Runner() as second:
                second.run(client.commit(words("y"), w=1))
            first.run(client.close())
    assert events(tmp_path / "a") == ["x"]


@pytest.mark.long
def test_a_forked_child_hears_that_the_client_is_its_parents(tmp_path: Path) -> None:
    """It would wait for ever: the thread that reads the answers is the parent's. So with a remote log."""
    with (
        live_group(tmp_path, "a") as group,
        group.client() as client,
        open_remote(group.url) as log,
        client.begin() as open_one,
    ):
        client.commit(words("x"), w=1, event_id="x")

        def child() -> None:
            with pytest.raises(NoPrimaryError, match=r"the client is its parent's\. Nothing was written"):
                client.commit(words("y"), w=1)
            with pytest.raises(LogUnreadableError, match="the connection to the node has ended"):
                log.range()
            for one in (open_one, client, log):
                one.close()

        in_child(child)
        client.commit(words("z"), w=1, event_id="z")
        assert log.range()
    assert events(tmp_path / "a") == ["x", "z"]


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_a_time_to_look_for_nodes_that_is_none_is_refused_by_its_name(seconds: float) -> None:
    with pytest.raises(ValueError, match="find_s is 0 to"):
        connect_async("thl://127.0.0.1:1", find_s=seconds)
    for name in ("prefer_s", "timeout", "find_s"):
        with pytest.raises(ValueError, match=f"{name} is 0 to"):
            open_remote("thl://127.0.0.1:1", **{name: seconds})  # type: ignore[arg-type]
