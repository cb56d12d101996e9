"""`[source] load`, `tranlog load`, and what `status` and `capture` say of rows that were there before.

Proves: issue 30, items 1 and 4: a new log begins with the rows that are there, and `capture` names what no load covers.
"""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from tranlog.log.reading.reader import LogReader
from tranlog.service.commands.cli import main

CONFIG = """
[log]
dir = "log"
[source]
kind = "sqlite"
path = "source.db"
{load}
[target]
kind = "sqlite"
path = "target.db"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with apsw.Connection("source.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
        db.executemany("INSERT INTO items VALUES(?, 0)", [(number,) for number in range(10)])
        db.execute("CREATE TABLE bare(id INTEGER PRIMARY KEY)")
    return tmp_path


def run(*words: str) -> int:
    return main(list(words))


@pytest.mark.long
def test_a_new_log_begins_with_the_rows_that_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tranlog.toml").write_text(CONFIG.format(load=""))
    assert run("capture", "--once") == 0
    assert run("load", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"loads": []}
    with LogReader.open("log") as log, log.cursor() as cursor:
        changes = 0
        while cursor.next_header() is not None:
            changes += len(list(cursor.current().changes()))
    assert changes == 10
    assert run("capture", "--once") == 0  # the second time it is no new log
    assert run("load") == 0
    assert "no load is under way" in capsys.readouterr().out


def test_rows_that_no_load_covers_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = ["main.bare"]'))
    assert run("capture", "--once") == 0
    assert "tables have rows that no load covers" in caplog.text
    assert "tranlog load --tables main.items" in caplog.text


@pytest.mark.long
def test_a_load_waits_for_capture_and_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = "none"'))
    assert run("capture", "--once") == 0
    assert run("load", "--tables", "main.items", "--pipeline", "tranlog") == 0
    assert "for pipeline tranlog: waits for capture" in capsys.readouterr().out
    run("status")
    assert "waits for capture" in capsys.readouterr().out
    assert run("load", "--tables", "main.items") == 2
    assert run("capture", "--once") == 0
    assert run("load") == 0
    assert "no load is under way" in capsys.readouterr().out
