"""replication/acting/connection.py: whether a node that is waited for is still there.

docs/protocol.md, "Who is primary".
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, eventually, live_group, words
from fix_tube import Tube
from tranlog.errors import NoPrimaryError
from tranlog.replication.acting import client as client_module
from tranlog.replication.acting import connection as connection_module
from tranlog.replication.acting.client import EventNotFound, FailedOver, RemoteGroup, Satisfied, TimedOut
from tranlog.replication.rules.config import MAJORITY
from tranlog.service.group_client import connect_group


def through_tubes(group: LiveGroup) -> tuple[RemoteGroup, dict[str, Tube]]:
    """Return a client whose ways to the nodes can fall silent; the nodes' own cannot."""
    tubes = {name: Tube(one.listen) for name, one in group.options.items()}
    for tube in tubes.values():
        group.run(tube.open())
    url = "thl://" + ",".join(tube.address for tube in tubes.values())
    return connect_group(url, via={name: tube.address for name, tube in tubes.items()}), tubes


@pytest.mark.long
def test_a_primary_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    """docs/replication.md, "Committing from Python": frozen, or gone without a word. Nothing waits for it for ever."""
    with live_group(tmp_path) as group:
        client, tubes = through_tubes(group)
        ends: dict[str, object] = {}

        def begin(name: str, *args: object, **options: object) -> threading.Thread:
            def call() -> None:
                try:
                    ends[name] = getattr(client, name)(*args, **options)
                except NoPrimaryError as exc:
                    ends[name] = exc

            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            return thread

        try:
            first = client.commit(words("first"), w=1, event_id="first")
            assert isinstance(first, Satisfied)
            large = client.begin(event_id="large")
            large.add(words("large"))
            silent = group.await_primary()
            tubes[silent].silent = True
            begun = time.monotonic()
            calls = [
                begin("commit", words("lost"), w=MAJORITY, event_id="lost"),
                begin("ask", first.gtid, w=MAJORITY),
                begin("find", "first", timeout=1.0),
                begin("wait", latest=True, timeout=1.0),
            ]
            large_ended = large.commit(w=1)
            for thread in calls:
                thread.join(LONG_S)
            assert time.monotonic() - begun < LONG_S / 2
            lost = ends["commit"]
            assert isinstance(lost, FailedOver) and (lost.event_id, lost.after) == ("lost", first.gtid)
            assert isinstance(large_ended, FailedOver) and large_ended.event_id == "large"
            assert isinstance(ends["ask"], FailedOver) and isinstance(ends["find"], NoPrimaryError)
            assert ends["wait"] is False or isinstance(ends["wait"], NoPrimaryError)
            group.stop(silent)
            group.await_primary()
            told = client.find("lost", after=lost.after, timeout=LONG_S)
            assert isinstance(told, EventNotFound) and told.certain
            assert isinstance(client.commit(words("y"), w=MAJORITY, event_id="y"), Satisfied)
        finally:
            client.close()
            for tube in tubes.values():
                group.run(tube.close())


@pytest.mark.long
def test_a_node_that_reads_nothing_for_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk or a follower may be slow: over another connection it answers."""
    monkeypatch.setattr(connection_module, "LOOK_S", 0.05)
    monkeypatch.setattr(connection_module, "QUIET_S", 0.1)
    monkeypatch.setattr(connection_module, "TRY_S", LONG_S)
    with live_group(tmp_path, "a") as group:

        async def play() -> None:
            async with group.async_client() as client:
                await client.commit(words("x"), w=1)
                (wire,) = [one for one in group.nodes["a"].entrance.wires if one.purpose == "commit"]
                wire._transport.pause_reading()
                committing = asyncio.ensure_future(client.commit(words("y"), w=1))
                done, _ = await asyncio.wait([committing], timeout=2.0)
                assert not done
                wire._transport.resume_reading()
                assert isinstance(await committing, Satisfied)

        group.run(play())


@pytest.mark.long
def test_times_hold_though_the_node_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose own thread stands, as at a disk that hangs, tells who is primary and nothing else."""
    monkeypatch.setattr(client_module, "MARGIN_S", 0.3)
    go_on = threading.Event()
    with live_group(tmp_path, "a") as group, group.client() as client:
        first = client.commit(words("x"), w=1, event_id="x")
        assert isinstance(first, Satisfied)
        thread = group.nodes["a"].thread
        assert thread is not None
        standing = threading.Event()

        def stand(core: object) -> None:
            standing.set()
            go_on.wait(LONG_S)

        stood = thread.call(stand)
        try:
            assert standing.wait(LONG_S)
            lost = client.commit(words("y"), w=1, wtimeout=0.1, event_id="y")
            assert isinstance(lost, FailedOver) and lost.event_id == "y"
            assert isinstance(client.ask(first.gtid, w=1, wtimeout=0.1), FailedOver)
            assert not client.wait(latest=True, timeout=0.1)
            with pytest.raises(NoPrimaryError):
                client.find("x", timeout=0.1)
        finally:
            go_on.set()
        stood.result(LONG_S)
        eventually(lambda: isinstance(client.commit(words("z"), w=1, wtimeout=LONG_S), Satisfied | TimedOut))
