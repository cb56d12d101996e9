"""service/process/node_part.py: a node that is asked over HTTP, as every process of ours. docs/control.md."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_live_group import live_group
from fix_server import at_port
from fix_tungsten import golden_segments
from tranlog.ids import Gtid, segment_name
from tranlog.service.commands.cli import main
from tranlog.service.config.exposure import Exposure
from tranlog.service.process.client import RunningPipeline
from tranlog.service.process.node_part import NodePart
from tranlog.testing.servers import free_port

SECRET = "0123456789abcdef"
CONFIG = """\
[service]
name = "shop"
[log]
dir = "log"
[group]
node = "{node}"
listen = "127.0.0.1:2112"
"""


@pytest.mark.long
def test_a_node_is_asked_and_told_over_http(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_group(tmp_path, "ab") as group, at_port(NodePart(group.nodes["b"], group.loop)) as address:
        running = RunningPipeline.at(address)
        found: dict[str, Any] = running.ask("/group/status")
        assert (found["primary"], found["state"], found["name"]) == ("a", "REPLICA", "b")
        assert running.ask("/readyz")["reasons"] == []
        assert [one["name"] for one in running.ask("/group/config")["members"]] == ["a", "b"]

        def told(*words: str) -> tuple[int, str, str]:
            code = main([*words, "--host", address])
            out = capsys.readouterr()
            return code, out.out, out.err

        assert told("group", "who") == (0, "a\n", "")
        assert told("group", "status")[1].startswith("group shop, seen by b: primary a, epoch ")
        last = json.loads(told("node", "status", "--json")[1])["last"]
        gtid = Gtid(last["epoch"], last["seqno"])
        assert (last["gtid"], last["gtidBase64"]) == (str(gtid), gtid.to_base64())
        (other,) = [one for one in json.loads(told("group", "status", "--json")[1])["members"] if one["name"] == "a"]
        assert Gtid.parse(other["last"]["gtidBase64"]) == Gtid.parse(other["last"]["gtid"]) >= gtid
        code, out, _ = told("node", "status")
        assert code == 0 and out.startswith("node b of group shop is REPLICA, epoch ")
        code, _, err = told("group", "remove", "c")
        assert code == 2 and "no node of the group has this name" in err
        code, _, err = told("group", "reconfigure", "--without", "a")
        assert code == 2 and "a changed configuration, or --force" in err
        file = tmp_path / "group.json"
        file.write_text(told("group", "config", "--json")[1])
        config = json.loads(file.read_text())
        config["members"][1]["tags"] = {"site": "north"}
        file.write_text(json.dumps({**config, "w": "majority"}))
        epoch, version = config["id"]
        answer = f"the group has configuration {epoch}.{version + 1}\n"
        assert told("group", "reconfigure", str(file))[:2] == (0, answer)
        code, out, _ = told("group", "config", "--json")
        assert (json.loads(out)["w"], json.loads(out)["members"][1]["tags"]) == ("majority", {"site": "north"})
        changes: list[tuple[dict[str, Any], bool]] = [
            ({"priority": 0, "hidden": True, "delay_ms": 50}, True),
            ({"priority": 1}, False),
        ]
        for change, shown in changes:
            change = {"name": "b", "hidden": False, "delay_ms": 0, **change}
            file.write_text(json.dumps({"members": [change]}))
            assert told("group", "reconfigure", str(file))[0] == 0
            (line,) = [one for one in told("group", "status")[1].splitlines() if one.startswith("  b ")]
            assert ("priority 0, hidden, delayed by 50 ms, " in line) is shown
        file.write_text(json.dumps({**config, "w": "majority"}))
        code, _, err = told("group", "reconfigure", str(file))
        assert code == 2 and "change what `tranlog group config` shows now" in err
        for raw, why in (("{", "truncated"), ('{"ws": 1}', "unknown field `ws`"), ('{"w": 1.5}', "$.w")):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
            code, _, err = told("group", "reconfigure", "-")
            assert code == 2 and why in err, raw
        code, _, err = told("group", "reconfigure", str(tmp_path / "none"))
        assert code == 2 and "No such file" in err
        assert told("group", "step-down", "--within", "inf")[0] == 2
        assert running.ask("/group/freeze", {"name": "b"}) == {"frozen": "b", "seconds": 60.0}
        assert told("group", "freeze", "b", "0")[:2] == (0, "node b may stand again\n")
        code, out, err = told("group", "step-down", "--json")
        assert (code, out) == (0, '{"stepped_down":"a"}\n'), err
        assert group.await_primary() == "b"


@pytest.mark.long
def test_a_node_in_no_group_says_how_it_gets_into_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_group(tmp_path, "a") as group:
        listen = f"127.0.0.1:{free_port()}"
        group.options["b"] = replace(group.options["a"], dir=str(tmp_path / "b"), node="b", listen=listen)
        part = NodePart(group.start("b"), group.loop)
        with at_port(part) as address:
            assert main(["node", "status", "--host", address]) == 1
            out = capsys.readouterr().out
            assert out.startswith("node b of group shop is STARTUP") and f"Next: tranlog group add b {listen}\n" in out
            assert main(["group", "who", "--host", address]) == 1
            assert list(part.families()) == []


@pytest.mark.long
def test_a_nodes_metrics_are_those_of_its_status(tmp_path: Path) -> None:
    with live_group(tmp_path, "a") as group:
        part = NodePart(group.nodes["a"], group.loop)
        families = {family.name: family for family in part.families()}
        assert families["tranlog_node_committed_seqno"].samples[0].value == 0.0
        assert families["tranlog_group_member_acked_seqno"].samples[0].labels["member"] == "a"
        assert part.ready() == ""


@pytest.mark.parametrize("command", ["group init", "node run"])
def test_a_replicators_log_becomes_no_members(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    for number, raw in golden_segments("filtered").items():
        (tmp_path / "log" / segment_name(number)).write_bytes(raw)
    (tmp_path / "tranlog.toml").write_text(CONFIG.format(node="a"))
    assert main(command.split()) == 4
    assert "by the Tungsten replicator, in its own format" in capsys.readouterr().err
    assert not (tmp_path / "log" / "group").exists(), "nothing was changed"


def test_a_group_is_founded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for lines in ('listen = "0.0.0.0:2112"', 'listen = "127.0.0.1"', 'address = "::"', 'address = "a:0"'):
        told = CONFIG.format(node="a").replace('listen = "127.0.0.1:2112"', lines)
        (tmp_path / "tranlog.toml").write_text(told)
        assert main(["group", "init"]) == 2
        assert lines.split()[-1].strip('"') in capsys.readouterr().err
        assert not (tmp_path / "log").exists()
    (tmp_path / "tranlog.toml").write_text(CONFIG.format(node="a\\nb"))
    assert main(["group", "init"]) == 2
    assert "in one line" in capsys.readouterr().err and not (tmp_path / "log").exists()
    (tmp_path / "tranlog.toml").write_text(CONFIG.format(node="a"))
    assert main(["group", "init"]) == 0
    assert capsys.readouterr().out.endswith("has one node, a at 127.0.0.1:2112\n")
    assert main(["group", "init"]) == 2
    assert "it is of the group" in capsys.readouterr().err
    assert main(["status"]) == 0
    assert "waits for its node: nobody writes the log (`tranlog node run`)" in capsys.readouterr().out
    assert main(["log", "add"]) == 4
    assert "belongs to node a of group shop: only the node may write it" in capsys.readouterr().err
    assert main(["group", "who"]) == 4
    assert "nobody listens there. Start the node with `tranlog node run`, or" in capsys.readouterr().err


@pytest.mark.long
def test_a_configured_port_is_asked_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a pipeline's; the option is for one that the configuration does not name."""
    monkeypatch.chdir(tmp_path)
    for name in ("secret", "elsewhere"):
        Path(name).write_text(SECRET)
        Path(name).chmod(0o600)
    exposure = Exposure(secret=SECRET)
    with live_group(tmp_path, "a") as group:
        with at_port(NodePart(group.nodes["a"], group.loop), exposure=exposure) as address:
            lines = CONFIG.format(node="a") + f'control = "{address}"\n'
            Path("tranlog.toml").write_text(lines + '[pipeline]\nsecret_file = "secret"\n')
            assert (main(["group", "who"]), capsys.readouterr().out) == (0, "a\n")
            Path("tranlog.toml").write_text(lines)
            assert main(["group", "who"]) != 0
            assert main(["group", "who", "--secret-file", "elsewhere"]) == 0
