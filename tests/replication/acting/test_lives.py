"""What befalls the nodes of a group in their lives: they end together, fall silent, move, join without a vote.

Each test is one of JE's, see docs/conformance.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fix_live_group import LONG_S, LiveGroup, differences, events, eventually, live_group, words
from fix_tube import Tube
from tranlog.clock import SystemClock
from tranlog.log.files.holds import read_holds
from tranlog.replication.acting.client import Answer, Satisfied
from tranlog.replication.acting.orders import NodeStatus
from tranlog.replication.rules.config import MAJORITY
from tranlog.replication.rules.packets import PRIMARY, STATE_NAMES
from tranlog.testing.servers import free_port


def commit(group: LiveGroup, name: str) -> Answer:
    with group.client() as client:
        return client.commit(words(name), w=MAJORITY, wtimeout=LONG_S, event_id=name)


@pytest.mark.long
def test_all_nodes_end_together_under_commits(tmp_path: Path) -> None:
    """What a majority acknowledged is in every log, once they have begun again."""
    acknowledged: list[str] = []
    with live_group(tmp_path) as group:
        group.await_whole()

        def write() -> None:
            with group.client(find_s=0.5) as client:
                try:
                    for number in range(100_000):
                        if isinstance(client.commit(words("t"), w=MAJORITY, event_id=str(number)), Satisfied):
                            acknowledged.append(str(number))
                except Exception:
                    return

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: len(acknowledged) > 20)
        ends = [group.nodes.pop(name).stop(hand_over_s=1.0) for name in group.options]

        async def end() -> None:
            await asyncio.gather(*ends)

        group.run(end())
        writer.join()
        for name in group.options:
            group.start(name)
        assert isinstance(commit(group, "later"), Satisfied)
        group.await_whole()
    for name in group.options:
        found = events(tmp_path / name)
        assert set(acknowledged) <= set(found) and len(found) == len(set(found)) and found[-1] == "later"


@pytest.mark.long
def test_a_line_that_is_silent_is_ended_and_made_again(tmp_path: Path) -> None:
    group = LiveGroup(tmp_path, "ab")
    tubes = {name: Tube(one.listen) for name, one in group.options.items()}
    try:
        for tube in tubes.values():
            group.run(tube.open())
        for name, other in ("ab", "ba"):
            group.options[name] = replace(group.options[name], via={other: tubes[other].address})
        group.form()
        assert isinstance(commit(group, "one"), Satisfied)
        for tube in tubes.values():
            tube.silent = True
        ended: set[str] = set()  # who said that of its connection to the other

        def both_said() -> bool:
            for name, node in group.nodes.items():
                if any(link.why == "it was silent for too long" for link in node.links.links.values()):
                    ended.add(name)
            return ended == {"a", "b"}

        eventually(both_said)
        eventually(lambda: group.primaries() == [])
        for tube in tubes.values():
            tube.silent = False
        assert isinstance(commit(group, "two"), Satisfied)
        group.await_whole()
    finally:
        try:
            for tube in tubes.values():
                group.run(tube.close())
        finally:
            group.close()
    assert events(tmp_path / "a") == events(tmp_path / "b") == ["one", "two"]


def status(group: LiveGroup, name: str) -> NodeStatus:
    """Return what a node says of itself and the others."""
    return group.run(group.nodes[name].orders.status())


@pytest.mark.long
def test_a_node_moves_to_another_address(tmp_path: Path) -> None:
    """Its log, its name and its vote stay; whoever follows finds it there, also after a start."""
    with live_group(tmp_path) as group:
        moves = next(name for name in group.options if name != group.await_primary())
        id_before = group.nodes[moves].node
        group.stop(moves)
        group.options[moves] = replace(group.options[moves], listen=f"127.0.0.1:{free_port()}")
        group.start(moves)
        stays = group.await_primary()
        told = f"and yet it runs; if it moved: tranlog group add {moves} HOST:PORT"
        eventually(lambda: any(one.trouble.endswith(told) for one in status(group, stays).members))
        eventually(lambda: status(group, moves).next_step.startswith(group.options[moves].admitting))
        silent = group.nodes[moves].links.links[group.nodes[stays].node]
        eventually(lambda: f"{group.options[moves].admitting}`, if it moved" in silent.why)
        group.order(stays, "add", name=moves, address=group.options[moves].listen)
        eventually(lambda: status(group, moves).next_step == "")
        assert isinstance(commit(group, "one"), Satisfied)
        group.await_whole()
        for node in group.nodes.values():
            members = {one.name: one for one in node.orders.config().members}
            assert len(members) == 3 and members[moves].address == group.options[moves].listen
            assert members[moves].node == id_before and members[moves].votes == 1
        keeps = next(name for name in group.options if name not in (moves, group.await_primary()))
        group.stop(keeps)
        with group.client() as client:
            answer = client.commit(words("two"), w=2, wtimeout=LONG_S, event_id="two")
        assert isinstance(answer, Satisfied) and moves in answer.written_to
        group.start(keeps)
        group.await_whole()


class AheadClock(SystemClock):
    """The machine's clock, set so many hours later."""

    def __init__(self, hours: int) -> None:
        self._hours = hours

    def now_ms(self) -> int:
        return super().now_ms() + self._hours * 3_600_000


@pytest.mark.long
def test_clocks_that_are_hours_apart_change_nothing_and_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = LiveGroup(tmp_path, "abc")
    group.clocks.update(a=AheadClock(5), b=AheadClock(-5))
    try:
        with caplog.at_level(logging.WARNING, logger="tranlog"):
            group.form()
            for ahead in (r"node=a ahead_s=\d{5}", r"node=b ahead_s=-\d{5}"):
                eventually(lambda: re.search(f"set both by NTP.* {ahead}", caplog.text) is not None)  # noqa: B023
        for text in ("one", "two"):
            while not isinstance(commit(group, text), Satisfied):
                pass
            primary = group.await_primary()
            group.stop(primary)
            group.start(primary)
        group.await_whole()
    finally:
        group.close()
    assert set(events(tmp_path / "a")) == {"one", "two"}
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "b", tmp_path / "c") == ""


@pytest.mark.long
def test_a_node_without_a_vote_has_the_log_and_decides_nothing(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        assert isinstance(commit(group, "one"), Satisfied)
        group.add("s", votes=0, priority=0)
        assert isinstance(commit(group, "two"), Satisfied)
        group.await_whole()
        group.stop("a")
        eventually(lambda: group.nodes["s"].standing.primary == "")
        status = group.run(group.nodes["s"].orders.status())
        assert status.state == "REPLICA" and {one.name: one.votes for one in status.members} == {"a": 1, "s": 0}
        group.start("a")
        group.await_primary()
        group.stop("s")
        assert isinstance(commit(group, "three"), Satisfied)  # it is not waited for
        group.start("s")
        group.await_whole()
    assert events(tmp_path / "s") == ["one", "two", "three"] and differences(tmp_path / "a", tmp_path / "s") == ""


@pytest.mark.long
def test_a_log_is_restored_where_nobody_is_primary(tmp_path: Path) -> None:
    """From the only other node that runs, which has no majority without the one that asks, and gets it by that."""
    with live_group(tmp_path) as group:
        assert isinstance(commit(group, "one"), Satisfied)
        group.await_whole()
        first, second, third = group.options
        group.stop(third)
        group.stop(first)
        eventually(lambda: group.nodes[second].standing.state != PRIMARY)
        group.start(first)
        assert group.order(second, "restore", name=first, source=second) == {"restored": first}
        eventually(lambda: STATE_NAMES[group.nodes[first].standing.state] in ("REPLICA", "PRIMARY"))
        assert isinstance(commit(group, "two"), Satisfied)
        group.start(third)
        group.await_whole()
    for name in group.options:
        assert events(tmp_path / name) == ["one", "two"]


@pytest.mark.long
def test_a_former_primary_keeps_its_log_for_nobody_who_follows_another(tmp_path: Path) -> None:
    """Else it would purge nothing any more, as long as it is a replica."""
    with live_group(tmp_path) as group, group.client() as client:
        former = group.await_primary()
        client.commit(words("x"), w=3, wtimeout=LONG_S)
        group.order(former, "step-down")
        while not isinstance(answer := client.commit(words("y"), w=3, wtimeout=LONG_S), Satisfied):
            pass

        def held() -> set[int | None]:
            return {one.restart_seqno for one in read_holds(group.options[former].dir)}

        assert held()
        eventually(lambda: held() == {answer.gtid.seqno + 1})
