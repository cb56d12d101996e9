"""replication/acting/client.py: what a program gives a group's client, and what it hears.

docs/replication.md, "Committing from Python".
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fix_live_group import events, live_group, words
from tranlog.errors import CommitRefusedError
from tranlog.replication.acting import client as client_module
from tranlog.replication.acting import connection as connection_module
from tranlog.replication.acting import serving
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.transport import UNSENT_MAX


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
