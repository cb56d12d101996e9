"""replication/acting/orders.py: an order of whatever form has an answer, and harms nobody. docs/replication.md."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from fix_live_group import LiveGroup, eventually, live_group, words
from tranlog.errors import CommitRefusedError, ConfigError, GroupOrderError
from tranlog.log.writing.log import Log
from tranlog.replication.acting.client import Satisfied, reach
from tranlog.replication.acting.node import NodeOptions
from tranlog.replication.acting.orders import NodeStatus, Orders
from tranlog.replication.rules.config import CONFIG_BYTES_MAX, NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.packets import REMOVED, GroupOrder, OrderAnswer
from tranlog.testing.servers import free_port

FORMS: list[tuple[str, dict[str, Any], str]] = [
    ("freeze", {"name": "a", "seconds": None}, "$.seconds"),
    ("freeze", {"name": "a", "seconds": -1}, "$.seconds"),
    ("freeze", {"name": "a", "seconds": 1e300}, "$.seconds"),
    ("freeze", {}, "name"),
    ("step-down", {"within_s": "soon"}, "$.within_s"),
    ("step-down", {"force": 1}, "$.force"),
    ("reconfigure", {"without": 5}, "$.without"),
    ("reconfigure", {"without": [5]}, "$.without"),
    ("reconfigure", {}, "without a change"),
    ("reconfigure", {"change": {"wtimeout": 5}}, "unknown field `wtimeout`"),
    ("reconfigure", {"change": {"members": [{"votes": 0}]}}, "name"),
    ("reconfigure", {"change": {"members": [{"name": "b"}]}}, "`tranlog group add` admits one"),
    ("reconfigure", {"change": {"members": [{"name": "a", "witness": True}]}}, "remove the node and add it anew"),
    ("reconfigure", {"change": {"members": [{"name": "a", "priority": 0}]}}, "no node can be primary"),
    ("reconfigure", {"change": {"members": [{"name": "a", "address": "0.0.0.0:1"}]}}, "others cannot connect to it"),
    ("reconfigure", {"change": {"rules": {"both": {"site": 2}}}}, "the nodes have 0 values of this tag"),
    ("reconfigure", {"change": {"w": 2}}, "1 nodes hold data"),
    ("reconfigure", {"change": {"heartbeat_ms": 49}}, "$.change.heartbeat_ms"),
    ("reconfigure", {"change": {"heartbeat_ms": 10_001}}, "$.change.heartbeat_ms"),
    ("reconfigure", {"change": {"id": [1, 99]}}, "change what `tranlog group config` shows now"),
    ("reconfigure", {"change": {"group": "00"}}, "this group is"),
    ("remove", {"name": ["a"]}, "$.name"),
    ("restore", {"name": "a", "source": 7}, "$.source"),
    ("sync-from", {"source": "a"}, "name"),
    ("add", {"name": "b"}, "address"),
    ("add", {"name": "b", "address": "h:1", "tags": {"x": 1}}, "$.tags"),
    ("add", {"name": "b", "address": "h:1", "unknown": 1}, "unknown"),
    ("add", {"name": "b", "address": "0.0.0.0:2112"}, "others cannot connect to it"),
    ("dance", {}, "there is no such order"),
]


def given(group: LiveGroup, *orders: tuple[str, Any]) -> list[OrderAnswer | None]:
    """Give orders to the node a as a client does, and return the answers; None where the connection ended."""

    async def play() -> list[OrderAnswer | None]:
        found = []
        for number, (name, body) in enumerate(orders, 1):
            listen = group.options["a"].listen
            client = await reach(listen, name="x", own=NodeId("x"), purpose="administer", tls=None)
            raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
            answer = await client.ask(number, GroupOrder(number=number, name=name, raw=raw))
            assert answer is None or isinstance(answer, OrderAnswer)
            found.append(answer)
            await client.close()
        return found

    return group.run(play())


def test_an_order_of_another_form_is_answered(tmp_path: Path) -> None:
    """By what is wrong with it, to a client over the nodes' port and to whoever gives it at the node itself."""
    with live_group(tmp_path, "a") as group:
        answers = given(group, *((name, body) for name, body, _ in FORMS))
        for (name, body, why), answer in zip(FORMS, answers, strict=True):
            assert answer is not None and not answer.done, name
            assert why in msgspec.json.decode(answer.raw)["error"], (name, body)
            with pytest.raises(ConfigError) as caught:
                group.order("a", name, **body)
            assert why in caught.value.why
        assert given(group, ("freeze", b"{"), ("freeze", b"[1]"), ("freeze", b'{"name": "\xff"}')) == [None] * 3
        with group.client() as client:
            assert isinstance(client.commit(words("x"), w=1, wtimeout=60.0), Satisfied)


def test_an_order_that_fails_by_an_error_of_ours_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with live_group(tmp_path, "a") as group, caplog.at_level(logging.ERROR, logger="tranlog"):
        with mock.patch.object(Orders, "_freeze", side_effect=KeyError("of ours")):
            (answer,) = given(group, ("freeze", {"name": "a"}))
        assert answer is not None and not answer.done
        assert msgspec.json.decode(answer.raw)["error"] == "KeyError: 'of ours'; the log of node a has more"
    (line,) = [one for one in caplog.records if "An order failed" in one.getMessage()]
    assert line.exc_info is not None


@pytest.mark.long
def test_a_member_with_too_many_tags_is_refused_and_the_primary_goes_on(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        tags = {f"t{at}": "v" * 1000 for at in range(140)}
        with pytest.raises(ConfigError, match=f"may have {CONFIG_BYTES_MAX}"):
            group.add("b", tags=tags)
        assert [one.name for one in group.nodes["a"].standing.config.members] == ["a"]
        group.order("a", "add", name="b", address=group.options["b"].listen, tags={"site": "here"})
        with group.client() as client:
            assert isinstance(client.commit(words("x"), w=2, wtimeout=60.0), Satisfied)


@pytest.mark.long
def test_a_node_has_no_vote_before_it_holds_what_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the others are a majority without it; one that ends does not keep its order for long."""
    monkeypatch.setattr("tranlog.replication.acting.orders._GONE_S", 0.5)
    Log.open(str(tmp_path / "d"), source_id="another").close()
    with live_group(tmp_path, "abc") as group:
        group.options["d"] = NodeOptions(
            dir=str(tmp_path / "d"), group="shop", node="d", listen=f"127.0.0.1:{free_port()}"
        )
        node = group.start("d")

        def end() -> None:
            with pytest.raises(ConfigError, match="it holds a log that is not the group's"):
                group.run(node.ended())
            group.stop("d")

        with ThreadPoolExecutor() as pool:
            ending = pool.submit(end)
            with pytest.raises(GroupOrderError, match="d is in the group without a vote: there is no connection to it"):
                group.order("a", "add", name="d", address=group.options["d"].listen)
            ending.result()
        standing = group.nodes[group.await_primary()].standing
        assert {one.name: one.votes for one in standing.config.members} == {"a": 1, "b": 1, "c": 1, "d": 0}


@pytest.mark.long
def test_a_node_is_added_by_the_way_to_it(tmp_path: Path) -> None:
    """docs/configuration.md, "[group]", `via`: in place of the address that the group knows."""
    listen, known = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with live_group(tmp_path, "abc", via={"d": listen}) as group:
        group.options["d"] = NodeOptions(dir=str(tmp_path / "d"), group="shop", node="d", listen=listen, address=known)
        group.start("d")
        group.order("a", "add", name="d", address=known)
        (at,) = [one for one in group.nodes["a"].standing.config.members if one.name == "d"]
        assert (at.address, at.votes) == (known, 1)


@pytest.mark.long
def test_an_add_of_a_member_changes_its_vote(tmp_path: Path) -> None:
    """A primary steps down before it; one with a log is no witness by that."""
    with live_group(tmp_path, "abc") as group:
        former = group.await_primary()
        address = group.options[former].listen
        other = next(name for name in "abc" if name != former)
        with pytest.raises(GroupOrderError, match=f"{other} keeps a log; `tranlog group remove {other}` first"):
            group.order("a", "add", name=other, address=group.options[other].listen, priority=0, witness=True)
        group.order("a", "add", name=former, address=address, votes=0, priority=0)
        standing = group.nodes[group.await_primary()].standing
        assert [one.name for one in standing.config.members if not one.votes] == [former]
        group.order("a", "add", name=former, address=address, priority=3)
        (at,) = [one for one in group.nodes["a"].standing.config.members if one.name == former]
        assert (at.votes, at.priority) == (1, 3)


@pytest.mark.long
def test_a_configuration_is_changed_as_it_was_shown(tmp_path: Path) -> None:
    """tokumx-replication, "Replica Set Configuration": tags, write concern by rule, hidden and delayed members."""
    with live_group(tmp_path, "abc") as group:
        primary = group.await_primary()
        other, third = (name for name in "abc" if name != primary)

        def reconfigure(at: str = other, **change: Any) -> dict[str, Any]:
            return group.order(at, "reconfigure", change=change)

        sites = [{"name": primary, "tags": {"site": "x"}}, {"name": other, "tags": {"site": "y"}}]
        with group.client() as client:
            with pytest.raises(CommitRefusedError, match="name of a tag rule"):
                client.commit(words("x"), w="both", wtimeout=60.0)
            before = group.nodes[primary].standing.config
            reconfigure(members=sites, rules={"both": {"site": 2}}, w="both", wtimeout_ms=60_000, chaining=False)
            now = group.nodes[primary].standing.config
            assert now.id > before.id and (now.w, now.chaining, now.rules) == ("both", False, {"both": {"site": 2}})
            assert [(one.node, one.votes, one.address) for one in now.members] == [
                (one.node, one.votes, one.address) for one in before.members
            ]
            assert isinstance(client.commit(words("x"), w="both", wtimeout=60.0), Satisfied)
            assert isinstance(client.commit(words("x")), Satisfied), "by default, which is the rule"
            with pytest.raises(ConfigError, match="change what `tranlog group config` shows now"):
                reconfigure(id=[before.id.epoch, before.id.version], w=1)
            with pytest.raises(ConfigError, match="the nodes have 1 values of this tag"):
                reconfigure(members=[{"name": other, "tags": {}}])
            with pytest.raises(GroupOrderError, match="more than one voter would"):
                reconfigure(members=[{"name": name, "votes": 0, "priority": 0} for name in (other, third)])
            with pytest.raises(ConfigError, match=f"{primary} is primary, and could not be; `tranlog group step-down`"):
                reconfigure(members=[{"name": primary, "priority": 0}])
            reconfigure(members=[{"name": third, "votes": 0, "priority": 0, "hidden": True, "delay_ms": 50}])
            group.order(other, "add", name=third, address=group.options[third].listen, votes=0, priority=0)
            (at,) = [one for one in group.nodes[primary].standing.config.members if one.name == third]
            assert (at.votes, at.hidden, at.delay_ms) == (0, True, 50), "what add leaves out stays"
            reconfigure(members=[{"name": third, "votes": 1, "priority": 5, "hidden": False, "delay_ms": 0}])
            eventually(lambda: group.primaries() == [third])
            eventually(lambda: isinstance(client.commit(words("x"), w="both", wtimeout=60.0), Satisfied))


@pytest.mark.long
def test_a_node_that_was_removed_forces_nothing(tmp_path: Path) -> None:
    """Else it would throw others out once it is admitted again."""
    with live_group(tmp_path, "abc") as group:
        primary = group.await_primary()
        removed, other = (name for name in "abc" if name != primary)
        group.order(primary, "remove", name=removed)
        eventually(lambda: group.nodes[removed].standing.state == REMOVED)
        with pytest.raises(GroupOrderError, match=f"{removed} is in the group no more"):
            group.order(removed, "reconfigure", force=True, without=[primary])
        group.order(primary, "add", name=removed, address=group.options[removed].listen)
        group.await_whole()
        assert {one.name for one in group.nodes[other].standing.config.members} == set("abc")


@pytest.mark.long
def test_an_add_that_cannot_be_admits_nobody(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        listen = f"127.0.0.1:{free_port()}"
        group.options["b"] = NodeOptions(dir=str(tmp_path / "b"), group="shop", node="b", listen=listen)
        group.start("b")
        with pytest.raises(ConfigError, match="must be 0 for a node that is delayed, hidden or has no vote"):
            group.order("a", "add", name="b", address=listen, hidden=True)
        assert [one.name for one in group.nodes["a"].standing.config.members] == ["a"]


@pytest.mark.long
def test_a_forced_configuration_may_change_what_those_that_stay_cannot_meet(tmp_path: Path) -> None:
    """docs/replication.md, "When a majority is lost for ever": nobody else could change it then."""
    with live_group(tmp_path, "abc") as group:
        lost = [name for name in "abc" if name != group.await_primary()]
        sites = [{"name": name, "tags": {"site": name}} for name in "abc"]
        group.order("a", "reconfigure", change={"rules": {"both": {"site": 2}}, "w": 3, "members": sites})
        (stays,) = {"a", "b", "c"} - set(lost)
        for name in lost:
            group.stop(name)
        with pytest.raises(ConfigError, match=r"rules.both.site = 2: the nodes have 1 values of this tag"):
            group.order(stays, "reconfigure", force=True, without=lost)
        wrong = {"members": [{"name": stays, "address": "0.0.0.0:1"}]}
        with pytest.raises(ConfigError, match="others cannot connect to it"):
            group.order(stays, "reconfigure", force=True, without=lost, change=wrong)
        group.order(stays, "reconfigure", force=True, without=lost, change={"rules": {}, "w": 1})
        assert group.await_primary() == stays
        now = group.nodes[stays].standing.config
        assert ([one.name for one in now.members], now.rules, now.w) == ([stays], {}, 1)


@pytest.mark.long
def test_a_primary_that_does_not_step_down_says_why(tmp_path: Path) -> None:
    with live_group(tmp_path, "ab") as group:
        primary = group.await_primary()
        (other,) = set("ab") - {primary}
        group.order(primary, "freeze", name=other, seconds=60)
        thread = group.nodes[primary].thread
        assert thread is not None
        eventually(lambda: not thread.call(Core.willing).result())  # at its next heartbeat
        with pytest.raises(GroupOrderError, match="no other node would be primary now"):
            group.order(primary, "step-down", within_s=0.5)
        group.order(primary, "add", name=other, address=group.options[other].listen, priority=0)
        with pytest.raises(GroupOrderError, match="no other node may be primary, by its vote and its priority"):
            group.order(primary, "step-down")


@pytest.mark.long
def test_a_node_that_is_gone_is_down(tmp_path: Path) -> None:
    """Also to whoever knew it as the primary: without the others nobody is one."""
    with live_group(tmp_path, "abc") as group:
        primary = group.await_primary()
        last, other = (name for name in "abc" if name != primary)
        group.stop(other)
        group.stop(primary)

        def status() -> NodeStatus:
            return group.run(group.nodes[last].orders.status())

        eventually(lambda: {one.state for one in status().members if one.name != last} == {"DOWN"})
        assert status().primary is None
        assert all(one.heard_ms is not None for one in status().members), "they were heard before"


@pytest.mark.long
def test_a_change_that_cannot_be_says_who_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of two copies nothing of a new reign is committed, and without that there is no change."""
    monkeypatch.setattr("tranlog.replication.acting.orders.CHANGE_S", 3.0)
    with live_group(tmp_path, "ab") as group:
        group.add("w", witness=True, priority=0)
        with pytest.raises(GroupOrderError, match="w is a witness; `tranlog group remove w` first"):
            group.order("a", "add", name="w", address=group.options["w"].listen)
        former = group.await_primary()
        (other,) = set("ab") - {former}
        group.stop(former)
        eventually(lambda: group.primaries() == [other])
        with pytest.raises(GroupOrderError, match=f"DOWN: {former}; if lost for ever, .* --force --without {former}`"):
            group.order(other, "remove", name=former)
        group.order(other, "reconfigure", force=True, without=[former])
        group.await_primary()
