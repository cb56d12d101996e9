"""replication/acting/node.py: whom a node lets in, by the name in a certificate, and to what.

docs/replication.md, "TLS and permissions".
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from fix_live_group import Contexts, LiveGroup, eventually, live_group, words
from tranlog.clock import SYSTEM_CLOCK
from tranlog.errors import GroupOrderError, HandshakeError, NoNodeError, NoPrimaryError
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.connection import Connection, reach
from tranlog.replication.acting.links import Greeting, enter, greet
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.rules.config import MAJORITY, ConfigId, GroupConfig, Member, NodeId
from tranlog.replication.rules.packets import (
    NO_GTID,
    PRIMARY,
    PROTOCOL_VERSION,
    GroupOrder,
    Heartbeat,
    Join,
    OrderAnswer,
    Part,
    Pulse,
)
from tranlog.replication.rules.permissions import Clients, permission_refused
from tranlog.service.commands.cli import main
from tranlog.service.config.config import load
from tranlog.service.process.node_part import node_contexts, node_options
from tranlog.service.thl.thl import main as thl
from tranlog.service.upkeep.certificates import make_authority, make_client, make_node
from tranlog.testing.servers import free_port
from tranlog.tls import group_side

PAGE = Path(__file__).parents[3] / "docs" / "replication.md"
CLIENTS: Clients = {"shop": ("write",), "reports": ("read",)}


class Certified:
    """A group of two nodes with TLS, and both sides of TLS for anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        now = SYSTEM_CLOCK.now_ms()
        for authority in ("ours", "theirs"):
            make_authority(str(folder / authority), days=30, now_ms=now)
            for name in ("a", "b", "c"):
                make_node(str(folder / authority), name, (), days=30, now_ms=now)
            for name in ("shop", "reports", "stranger"):
                make_client(str(folder / authority), name, days=30, now_ms=now)
        (folder / "as").mkdir()
        for end in ("pem", "key"):
            shutil.copy(folder / "ours" / f"group.{end}", folder / "as")
        make_client(str(folder / "as"), "b", days=30, now_ms=now)

    def sides(self, name: str, authority: str = "ours") -> Contexts:
        """Return the server's and the client's side for a certificate that an authority has signed."""
        pem, key = (self.folder / authority / f"{name}.{end}" for end in ("pem", "key"))
        files = str(self.folder / authority / "group.pem"), str(pem), str(key) if key.exists() else None
        return group_side(*files, server=True), group_side(*files)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def group(certified: Certified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGroup]:
    with live_group(tmp_path_factory.mktemp("group"), "ab", certified.sides, clients=CLIENTS) as found:
        yield found


@pytest.mark.long
def test_the_status_says_until_when_a_certificate_is_good(group: LiveGroup, certified: Certified) -> None:
    """Before it expires, and the node is lost to the others."""
    seen = {one.name: one.certified_until for one in group.run(group.nodes["a"].orders.status()).members}
    until = x509.load_pem_x509_certificate((certified.folder / "ours" / "b.pem").read_bytes()).not_valid_after_utc
    assert seen == {"a": None, "b": until.timestamp() * 1000}


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "A connection was" in one.getMessage()]


@pytest.mark.long
def test_clients_may_do_what_the_configuration_says(
    group: LiveGroup, certified: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    with group.client(tls=certified.sides("shop")[1]) as client:
        answer = client.commit(words("x"), w=MAJORITY, wtimeout=60.0, event_id="x")
        assert isinstance(answer, Satisfied)
    with open_remote(group.url, tls=certified.sides("reports")[1]) as log:
        log.await_seqno(answer.gtid.seqno, 60.0)
        assert log.header(answer.gtid.seqno) is not None
    for name, authority, why in (
        ("reports", "ours", 'the client reports has no permission to write here: `clients` in [group] of each node '
         'has to say reports = ["read", "write"]'),
        ("stranger", "ours", "the client stranger has no permission to write here"),
        ("shop", "theirs", "another authority"),
    ):  # fmt: skip
        with group.client(tls=certified.sides(name, authority)[1], find_s=0.0) as client:
            with pytest.raises(NoPrimaryError) as caught:
                client.commit(words("never"))
            assert why in str(caught.value)
    with pytest.raises(NoNodeError, match="the client shop has no permission to read here"):
        open_remote(group.url, tls=certified.sides("shop")[1], find_s=0.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "authority", "says", "why"),
    [
        ("c", "ours", "b", "its certificate is that of c, not of b"),
        ("b", "as", "b", "its certificate is that of the client b, and it says that it is the node b"),
        ("shop", "ours", "shop", "its certificate is that of the client shop, and it says that it is the node shop"),
    ],
)
def test_who_says_to_be_a_node_shows_its_certificate(
    name: str,
    authority: str,
    says: str,
    why: str,
    group: LiveGroup,
    certified: Certified,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line at both ends, whether it wants to vote or to have the log."""

    async def join(purpose: str) -> None:
        at = group.nodes["a"].standing.config
        greeting = Greeting()
        wire, _ = await greet(group.options["a"].listen, greeting, certified.sides(name, authority)[1])
        known = {one.name: one.node for one in at.members}
        await enter(
            wire,
            greeting,
            Join(
                node=known.get(says, NodeId("somebody")),
                node_name=says,
                purpose=purpose,
                versions=(PROTOCOL_VERSION,),
                config=ConfigId(),
                last=NO_GTID,
                heartbeat_ms=250,
                group=at.group,
            ),
        )

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        for purpose in ("vote", "restore"):
            caplog.clear()
            with pytest.raises(HandshakeError, match=why):
                group.run(join(purpose))
            eventually(lambda: any(why in line for line in refusals(caplog)))
            assert len([line for line in refusals(caplog) if why in line]) == 1


@pytest.mark.long
def test_a_node_with_anothers_certificate_is_not_admitted(
    group: LiveGroup, certified: Certified, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It hears why, too: one line there, and the answer to whoever wanted to add it."""
    masked = LiveGroup(tmp_path, "c", lambda name: certified.sides("b"))
    try:
        masked.start("c")
        with caplog.at_level(logging.WARNING, logger="tranlog"):
            with pytest.raises(GroupOrderError, match="its certificate is that of b, not of c"):
                group.order("a", "add", name="c", address=masked.options["c"].listen)
            why = "the other end refused this one: its certificate is that of b, not of c"
            eventually(lambda: any(why in line for line in refusals(caplog)))
    finally:
        masked.close()


async def as_c(group: LiveGroup, certified: Certified, name: str, own: NodeId) -> Connection:
    """Connect to a node as c, which is no member and has that id, by its certificate."""
    c = Connection()
    c.wire, _ = await greet(group.options[name].listen, c, certified.sides("c")[1])
    join = Join(
        node=own,
        node_name="c",
        purpose="vote",
        versions=(PROTOCOL_VERSION,),
        config=ConfigId(),
        last=NO_GTID,
        heartbeat_ms=250,
        group=group.nodes["a"].standing.config.group,
    )
    await enter(c.wire, c, join)
    return c


@pytest.mark.long
def test_who_waits_under_the_id_of_a_later_member_is_put_out(
    group: LiveGroup, certified: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    later = Member(node=NodeId("later"), name="d", address="127.0.0.1:1", votes=0, priority=0)

    async def play() -> None:
        primary = group.await_primary()
        c = await as_c(group, certified, primary, later.node)
        assert c.wire is not None
        await group.nodes[primary].orders._change(lambda members: [*members, later])
        await asyncio.wait_for(c.wire.gone.wait(), 60.0)

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        group.run(play())
        group.order("a", "remove", name="d")
    assert "its certificate is that of c, not of d" in caplog.text


@pytest.mark.long
def test_a_node_that_is_no_member_commands_nobody(group: LiveGroup, certified: Certified) -> None:
    """Its certificate is good: it was removed, or never added. It gives orders, and sends a configuration."""
    at = group.nodes["a"].standing.config
    own, later = NodeId("never-added"), ConfigId(10**6, 1)
    mine = GroupConfig(group=at.group, id=later, members=(Member(node=own, name="c", address="127.0.0.1:1"),))

    async def play(name: str) -> OrderAnswer:
        c = await as_c(group, certified, name, own)
        assert c.wire is not None
        told = await c.ask(1, GroupOrder(number=1, name="remove", raw=b'{"name": "b"}'))
        assert isinstance(told, OrderAnswer)
        nothing = {"last": NO_GTID, "durable": NO_GTID, "committed": NO_GTID, "echo": Pulse()}
        c.wire.send(Heartbeat(epoch=1, state=PRIMARY, config=later, pulse=Pulse(1, 1), full=mine, **nothing))  # type: ignore[arg-type]
        assert await c.ask(2, GroupOrder(number=2, name="freeze", raw=b'{"name": "a"}')) is not None
        await c.close()
        return told

    for name in "ab":
        told = group.run(play(name))
        assert not told.done and b"no member of the group" in told.raw
    with group.client(tls=certified.sides("shop")[1]) as client:
        for at_end in range(3):
            assert isinstance(client.commit(words("y"), w=2, wtimeout=60.0, event_id=f"y{at_end}"), Satisfied)
    for node in group.nodes.values():
        assert [one.name for one in node.standing.config.members] == ["a", "b"]


@pytest.mark.long
def test_who_came_to_read_writes_nothing(
    group: LiveGroup, certified: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> str:
        tls = certified.sides("reports")[1]
        reader = await reach(group.options["a"].listen, name="x", own=NodeId("x"), purpose="read", tls=tls)
        assert reader.wire is not None and await reader.ask(1, Part(number=1, raw=b"x")) is None
        return reader.wire.why

    with caplog.at_level(logging.WARNING, logger="tranlog"):
        group.run(write())
    assert "Part from a client that came to read" in caplog.text


@pytest.mark.long
def test_the_section_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands, its configuration beyond loopback, its program; names of hosts and the port are this machine's."""
    section = PAGE.read_text().partition("\n## TLS and permissions\n")[2].partition("\n## ")[0]
    port = free_port()

    def here(text: str) -> str:
        return re.sub(r"[ab]\.example:2112", f"127.0.0.1:{port}", text).replace("0.0.0.0:2112", f"0.0.0.0:{port}")

    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    \$ (.*)$", section, re.MULTILINE)
    for command in commands[:-1]:
        assert main(command.removeprefix("tranlog ").split()) == 0, command
    (config_text,) = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "a.toml").write_text(here(config_text))
    assert main(["--conf", "a.toml", "group", "init"]) == 0
    config = load("a.toml", environ={})
    group = LiveGroup(tmp_path, "", lambda name: node_contexts(config))
    try:
        group.options["a"] = node_options(config)
        group.start("a")
        group.await_primary()
        capsys.readouterr()
        exec(here(program).replace("wtimeout=2.0", "wtimeout=60.0"), {})
        assert capsys.readouterr().out.startswith("Satisfied(")
        assert thl(here(commands[-1]).split()[1:]) == 0
        assert "events = 2\n" in capsys.readouterr().out
    finally:
        group.close()


def test_what_needs_which_permission() -> None:
    for purpose, needed in (("commit", "write"), ("read", "read"), ("administer", "operate")):
        assert permission_refused({"x": (needed,)}, "x", purpose) == ""  # type: ignore[dict-item]
        others = [one for one in ("read", "write", "operate") if one != needed]
        for clients in ({}, {"x": others}, {"y": (needed,)}):
            assert f"no permission to {needed}" in permission_refused(clients, "x", purpose)  # type: ignore[arg-type]
    assert "NAME = " in permission_refused({}, "", "read")
