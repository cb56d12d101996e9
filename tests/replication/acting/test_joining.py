"""replication/acting/joining.py: one Join of a connection at a time. docs/protocol.md, "Handshake"."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from fix_live_group import LONG_S, LiveGroup, live_group, words
from tranlog.errors import ConfigError, GroupOrderError, HandshakeError
from tranlog.log.writing.log import Log
from tranlog.replication.acting import joining
from tranlog.replication.acting.client import reach
from tranlog.replication.acting.links import Greeting, greet
from tranlog.replication.rules.config import ConfigId, NodeId
from tranlog.replication.rules.packets import NO_GTID, Join
from tranlog.replication.rules.versions import SPOKEN
from tranlog.source.packer import pack
from tranlog.testing.servers import free_port


def test_a_second_join_ends_the_connection_and_begins_no_search(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the log is looked through for the first one; another connection of the same client is let in then."""
    searches: list[str] = []
    join = Join(
        node=NodeId("x"),
        node_name="x",
        purpose="read",
        versions=SPOKEN,
        config=ConfigId(),
        last=NO_GTID,
        heartbeat_ms=1000,
        from_event="x",
        force=True,
    )

    async def play(group: LiveGroup) -> None:
        find, go_on = joining.find_for_reader, asyncio.Event()

        async def slowly(event_id: str, *rest: object) -> object:
            searches.append(event_id)
            await go_on.wait()
            return await find(event_id, *rest)  # type: ignore[arg-type]

        with mock.patch.object(joining, "find_for_reader", slowly):
            greeting = Greeting()
            wire, _ = await greet(group.options["a"].listen, greeting, None)
            wire.send(join)
            while not searches:
                await asyncio.sleep(0.01)
            wire.send(*[join] * 100)
            with pytest.raises(HandshakeError):
                await greeting.welcome
            go_on.set()
        reader = await reach(
            group.options["a"].listen, name="x", own=NodeId("x"), purpose="read", tls=None, from_event="x"
        )
        assert reader.is_open
        await reader.close()

    with live_group(tmp_path, "a") as group, caplog.at_level(logging.WARNING, logger="tranlog"):
        with group.client() as client:
            client.commit(words("x"), w=1, wtimeout=60.0, event_id="x")
        group.run(play(group))
    assert searches == ["x"]
    assert caplog.text.count("a second Join before the first one was answered") == 1


@pytest.mark.long
def test_a_node_with_another_log_is_in_no_group_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, and says what to do; its file is as before, so that it is admitted once its log is the group's."""
    monkeypatch.setattr("tranlog.replication.acting.orders._GONE_S", 0.1)
    with live_group(tmp_path, "a") as group:
        with Log.open(str(tmp_path / "b"), source_id="x") as other:
            other.transact(pack(words("of another log"), source_id="x", event_id="x", tstamp=1))
        listen = f"127.0.0.1:{free_port()}"
        group.options["b"] = replace(group.options["a"], dir=str(tmp_path / "b"), node="b", listen=listen)
        node = group.start("b")
        order = group.nodes["a"].orders.give("add", {"name": "b", "address": listen})
        adding = asyncio.run_coroutine_threadsafe(order, group.loop)
        with pytest.raises(ConfigError, match="it holds a log that is not the group's: run the node on an empty one"):
            group.run(node.ended())
        stored = node.state_file.load()
        assert stored is not None and not stored.group
        group.stop("b")
        with pytest.raises(GroupOrderError, match="b is in the group without a vote"):
            adding.result(LONG_S)
        for one in (tmp_path / "b").iterdir():
            if one.is_file():
                one.unlink()
        group.start("b")
        group.order("a", "add", name="b", address=listen)
        group.await_whole()
