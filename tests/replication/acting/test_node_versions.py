"""replication/acting/node.py: a group whose nodes speak different versions, as while it is upgraded node by node.

docs/protocol.md, "Handshake".
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fix_live_group import LiveGroup, differences, events, eventually, live_group, words
from tranlog.errors import GroupOrderError, HandshakeError
from tranlog.replication.acting.client import RemoteGroup, Satisfied
from tranlog.replication.acting.connection import reach
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import PROTOCOL_LOWEST, PROTOCOL_VERSION
from tranlog.replication.rules.versions import Versions

THIS, NEXT = PROTOCOL_LOWEST, PROTOCOL_VERSION
OLD, BOTH = Versions(THIS, THIS), Versions(THIS, NEXT)
LATER = PROTOCOL_VERSION + 1


def spoken(group: LiveGroup, name: str) -> dict[str, int]:
    """Return what a node speaks with each one, itself too."""
    return {one.name: one.protocol for one in group.run(group.nodes[name].orders.status()).members}


def commit(client: RemoteGroup, event: str) -> None:
    """Have all three nodes hold a transaction."""
    answer = client.commit(words(event), w=3, wtimeout=60.0, event_id=event)
    while not isinstance(answer, Satisfied):  # the primary may just have been stopped
        answer = client.commit(words(event), w=3, wtimeout=60.0, event_id=event)


@pytest.mark.long
def test_a_group_is_upgraded_node_by_node_while_it_commits(tmp_path: Path) -> None:
    """Nodes of version n and n + 1 are one group; whoever speaks both speaks the higher one."""
    with live_group(tmp_path, versions=OLD) as group, group.client() as client:
        commit(client, "none")
        assert spoken(group, "a") == {"a": THIS, "b": THIS, "c": THIS}
        for name, after in (("c", "one"), ("b", "two"), ("a", "three")):
            group.stop(name, hand_over_s=10.0)
            group.options[name] = replace(group.options[name], versions=BOTH)
            group.start(name)
            commit(client, after)
            upgraded = {one for one, options in group.options.items() if options.versions == BOTH}
            for one in group.options:
                want = {other: NEXT if {one, other} <= upgraded else THIS for other in group.options}
                eventually(lambda one=one, want=want: spoken(group, one) == want)  # type: ignore[misc]
        group.await_whole()
        found = [list(dict.fromkeys(events(tmp_path / name))) for name in "abc"]
        assert found == [["none", "one", "two", "three"]] * 3
    assert differences(tmp_path / "a", tmp_path / "b") == differences(tmp_path / "a", tmp_path / "c") == ""


@pytest.mark.long
def test_a_node_of_an_unknown_version_is_refused_by_name_at_both_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So is a client that speaks no version of the node's."""
    later = LiveGroup(tmp_path, "d", versions=Versions(LATER, LATER + 1))
    try:
        with live_group(tmp_path, "a") as group:
            later.start("d")
            there = later.options["d"].listen
            later_ones, ours = f"protocol versions {LATER} to {LATER + 1}", f"protocol versions {THIS} to {NEXT}"
            why = f"it speaks {later_ones}, and this end {ours}"
            with caplog.at_level(logging.WARNING, logger="tranlog"):
                with pytest.raises(GroupOrderError, match=why):
                    group.order("a", "add", name="d", address=there)
                heard = f"it speaks {ours}, and this end {later_ones}"
                eventually(lambda: heard in caplog.text)
            lines = [one.getMessage() for one in caplog.records if "A connection was" in one.getMessage()]
            assert len(lines) == 1 and lines[0].endswith("update the older one")
            with pytest.raises(HandshakeError, match=why):
                group.run(reach(there, name="x", own=NodeId("x"), purpose="read", tls=None))
    finally:
        later.close()
