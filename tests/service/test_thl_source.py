"""A replicator's directory as the source of `tranlog`'s commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fix_tungsten import GOLDEN
from tranlog.errors import ConfigError
from tranlog.service.commands import cli
from tranlog.service.config.config import load
from tranlog.service.frame.exits import ExitCode
from tranlog.tungsten.source import ThlSourceOptions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "simple-100" / "log", tmp_path / "thl")
    Path("tranlog.toml").write_text('[service]\nname = "shop"\n[log]\ndir = "log"\n')
    return tmp_path


def told(line: str, capsys: pytest.CaptureFixture[str], code: int = ExitCode.DONE) -> str:
    assert cli.main(line.split()) == code
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found.out if code == ExitCode.DONE else found.err


@pytest.mark.long
def test_capture_by_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(told("capture --source thl:thl --once --json", capsys))["transactions"] == 100
    assert json.loads(told("capture --source thl:thl --once --json", capsys))["transactions"] == 0
    shutil.rmtree(folder / "thl")
    shutil.copytree(GOLDEN / "rotated-60" / "log", folder / "thl")
    assert "was reset, restored" in told("capture --source thl:thl --once", capsys, ExitCode.DATA)
    assert "does not answer" in told("capture --source thl:none --once", capsys, ExitCode.SURROUNDINGS)
    assert "thl:DIR" in told("capture --source mariadb:x --once", capsys, ExitCode.USAGE)


def test_capture_and_status_by_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("tranlog.toml").open("a") as file:
        file.write('[source]\nkind = "thl"\npath = "thl"\n')
    config = load("tranlog.toml", environ={})
    assert config.source == ThlSourceOptions(path=str(folder / "thl"), source_id="shop")
    assert config.wanted_source().kind == "thl"
    assert json.loads(told("capture --once --json", capsys))["transactions"] == 100
    state = json.loads(told("status --json --no-watch", capsys))["source"]
    assert (state["kind"], state["now_at"]) == ("thl", "seqno 99")
    assert state["captured_event_id"].startswith("99:0:")
    with Path("tranlog.toml").open("a") as file:
        file.write('[target]\nkind = "sqlite"\npath = "target.db"\n')
    assert "no tables to read" in told("tables create --from source --dry-run", capsys, ExitCode.USAGE)


def test_a_map_of_shards_is_refused(folder: Path) -> None:
    with Path("tranlog.toml").open("a") as file:
        file.write('[source]\nkind = "thl"\npath = "thl"\n[shards]\nmap = {a = "b"}\n')
    with pytest.raises(ConfigError, match="keep the shards"):
        load("tranlog.toml", environ={})
