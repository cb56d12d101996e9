"""replication/acting/joining.py: one Join of a connection at a time. docs/protocol.md, "Handshake"."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from unittest import mock

import pytest

from fix_live_group import LiveGroup, live_group, words
from tranlog.errors import HandshakeError
from tranlog.replication.acting import joining
from tranlog.replication.acting.client import reach
from tranlog.replication.acting.links import Greeting, greet
from tranlog.replication.rules.config import ConfigId, NodeId
from tranlog.replication.rules.packets import NO_GTID, Join
from tranlog.replication.rules.versions import SPOKEN


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
