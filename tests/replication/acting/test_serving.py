"""What clients wait for at a node, and what is kept of it: docs/replication.md, "Reading a node's log"."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, eventually, live_group, words
from tranlog.errors import CommitRefusedError, LogUnreadableError, NoNodeError, NoPrimaryError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.acting import client as client_module
from tranlog.replication.acting import serving
from tranlog.replication.acting.client import Answer, EventNotFound, Satisfied
from tranlog.replication.acting.connection import reach
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.rules import packets
from tranlog.replication.rules.config import MAJORITY, NodeId
from tranlog.replication.rules.packets import (
    AskConcern,
    Begin,
    CommitAnswer,
    DiskCall,
    Find,
    Packet,
    Part,
    WaitConsistent,
    Who,
)

NEVER = Gtid(Epoch(1), Seqno(1 << 40))
FAR = Gtid(Epoch(1000), Seqno(1))


def waiters(group: LiveGroup, name: str) -> int:
    """Return for how many questions a node keeps something."""
    thread = group.nodes[name].thread
    assert thread is not None
    return thread.call(lambda core: thread.waiters()).result(LONG_S)


@pytest.mark.long
def test_each_wish_is_met_or_times_out_without_a_trace(tmp_path: Path) -> None:
    with live_group(tmp_path) as group, group.client() as client:
        primary = group.await_primary()
        answer = client.commit(words("x"), w=MAJORITY, wtimeout=LONG_S, event_id="x")
        assert isinstance(answer, Satisfied)
        assert client.wait(at_least=answer.gtid, timeout=LONG_S)
        assert client.wait(latest=True, timeout=LONG_S)
        assert client.wait(within_ms=5000, timeout=LONG_S)
        for prefer in ("primary", "replica"):
            with open_remote(group.url, prefer=prefer, consistency="within 5000 ms", timeout=LONG_S) as log:
                assert (log.node == primary) is (prefer == "primary")
        before = {name: waiters(group, name) for name in "abc"}
        assert set(before.values()) == {0}
        others = [name for name in "abc" if name != primary]
        for prefer in ("replica", "primary"):
            with pytest.raises(NoNodeError, match=r"`at least.*was not so within 0\.2 s"):
                open_remote(group.url, prefer=prefer, consistency=f"at least {FAR}", timeout=0.2)
        assert not client.wait(at_least=FAR, timeout=0.2)
        assert {name: waiters(group, name) for name in "abc"} == before
        for name in others:
            group.stop(name)
        with pytest.raises(NoNodeError, match=r"`within.*was not so within 0\.2 s"):
            open_remote(group.url, prefer="nearest", consistency="within 0 ms", timeout=0.2)
        with group.client(find_s=0.1) as cut_off:
            try:
                assert not cut_off.wait(latest=True, timeout=0.2), "nobody confirms it"
            except NoPrimaryError:
                pass  # it has noticed by itself that nobody does
        eventually(lambda: waiters(group, primary) == 0)


@pytest.mark.long
def test_who_leaves_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    """Without a time-out, too: of a reader, of a commit and of a question, whose answers would never come."""
    with live_group(tmp_path, "ab") as group:
        primary = group.await_primary()
        listen, thread = group.options[primary].listen, group.nodes[primary].thread
        assert thread is not None
        group.stop(next(name for name in "ab" if name != primary))

        async def play() -> None:
            connection = await reach(listen, name="x", own=NodeId("x"), purpose="commit", tls=None)
            assert connection.wire is not None
            for number, kind in enumerate(("at_least", "latest", "within"), 1):
                connection.wire.send(WaitConsistent(number=number, kind=kind, gtid=FAR, lag_ms=0))
            connection.wire.send(AskConcern(number=4, gtid=FAR, w=MAJORITY))
            refused = await connection.ask(5, WaitConsistent(number=5, kind="soon"))
            assert isinstance(refused, CommitAnswer) and refused.text.endswith("at_least, within, latest")
            while await asyncio.wrap_future(thread.call(lambda core: thread.waiters())) < 3:
                await asyncio.sleep(0.01)  # the primary may step down meanwhile, and then answers some
                if connection.wire.gone.is_set() or group.primaries() == []:
                    break
            await connection.close()

        group.run(play())
        eventually(lambda: waiters(group, primary) == 0)


def test_one_thing_is_waited_for(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group, group.client() as client:
        for wishes in ({}, {"latest": True, "within_ms": 5}, {"at_least": FAR, "latest": True}):
            with pytest.raises(ValueError, match="one of at_least, within_ms and latest"):
                client.wait(**wishes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packets", "why"),
    [
        ([AskConcern(number=at, gtid=NEVER, w="majority") for at in range(20)], "10 of its questions are not answered"),
        ([Find(number=at, event_id="z") for at in range(20)], "10 of its questions are not answered"),
        ([Begin(number=at) for at in range(20)], "more than 2560 bytes of transactions that are not complete"),
        ([Begin(number=1), *[Part(number=1, raw=b"")] * 20], "more than 2560 bytes of transactions"),
        ([Begin(number=1), Begin(number=1)], "a transaction that was begun already"),
    ],
    ids=["questions", "finds", "begun", "parts", "twice"],
)
def test_what_a_client_leaves_open_is_bounded(
    packets: list[Packet], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs its own connection; the next one commits."""
    monkeypatch.setattr(serving, "UNANSWERED_MAX", 10)
    monkeypatch.setattr(serving, "OPEN_BYTES_MAX", 2_560)

    async def hoard(group: LiveGroup) -> None:
        address = group.options["a"].listen
        connection = await reach(address, name="x", own=NodeId("x"), purpose="commit", tls=None)
        assert connection.wire is not None
        assert await connection.ask(-1, *packets, Who(number=1 << 20)) is None, "it was ended"
        await connection.wire.gone.wait()

    with live_group(tmp_path, "a") as group, caplog.at_level(logging.WARNING, logger="tranlog"):
        group.run(hoard(group))
        eventually(lambda: why in caplog.text)
        with group.client() as client:
            for _ in range(20):  # what was answered counts no more
                assert isinstance(client.commit(words("x"), w=1, wtimeout=60.0), Satisfied)
                assert isinstance(client.find("never"), EventNotFound)


@pytest.mark.parametrize("purpose", ["read", "administer"])
@pytest.mark.parametrize(
    "packet", [AskConcern(number=1, gtid=NEVER, w=1), Find(number=1, event_id="x")], ids=["concern", "find"]
)
def test_questions_about_commits_are_for_who_may_commit(
    packet: Packet, purpose: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/replication.md, "TLS and permissions": they need `write`."""

    async def ask(group: LiveGroup) -> None:
        address = group.options["a"].listen
        connection = await reach(address, name="x", own=NodeId("x"), purpose=purpose, tls=None)
        assert await connection.ask(1, packet) is None, "it was ended"

    with live_group(tmp_path, "a") as group, caplog.at_level(logging.WARNING, logger="tranlog"):
        group.run(ask(group))
        assert f"{type(packet).__name__} from a client that came to {purpose}" in caplog.text


@pytest.mark.long
def test_news_of_a_primary_cuts_a_pause_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/protocol.md, "Who is primary". Without news the client would wait longer than the test may take."""
    waited = threading.Event()

    def endless() -> Iterator[float]:
        for pause in itertools.repeat(1000 * LONG_S):
            waited.set()
            yield pause

    with live_group(tmp_path) as group:
        primary = group.await_primary()
        group.await_whole()
        group.stop(primary)
        kept, gone = [name for name in "abc" if name != primary]
        group.stop(gone)
        eventually(lambda: not group.nodes[kept].standing.primary)
        monkeypatch.setattr(client_module, "pauses", endless)
        answers: list[Answer] = []
        with group.client(find_s=1000 * LONG_S) as client:
            committing = threading.Thread(
                target=lambda: answers.append(client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="x"))
            )
            committing.start()
            assert waited.wait(LONG_S), "there is no primary to find"
            group.start(gone)
            committing.join(LONG_S)
        assert len(answers) == 1


@pytest.mark.long
def test_what_a_node_does_not_know_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/protocol.md, "Frames": the client hears it at once, and the connection goes on."""
    with live_group(tmp_path, "a") as group, group.client() as client:
        answer = client.commit(words("x"), w=1, wtimeout=LONG_S, event_id="x")
        kinds: dict[type[Packet], int] = {
            **packets._KIND_OF,
            Find: 98,
            DiskCall: 99,
        }  # as if a later release had made these two
        monkeypatch.setattr(packets, "_KIND_OF", kinds)
        with pytest.raises(CommitRefusedError, match=r"does not know packets of kind 98.*\. What became of the tr"):
            client.find("x", timeout=LONG_S)
        with pytest.raises(LogUnreadableError, match="does not know packets of kind 99"):
            open_remote(group.url, find_s=LONG_S)
        monkeypatch.undo()
        assert client.find("x", timeout=LONG_S) == client_module.EventFound(answer.gtid)  # type: ignore[arg-type]
