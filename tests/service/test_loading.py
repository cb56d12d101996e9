"""`[source] load`, `tranlog load`, and what `status` and `capture` say of rows that were there before.

Proves: a new log begins with the rows that are there, and `capture` names what no load covers.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadOrder, LoadRequest, ask
from tranlog.capture.verify_requests import VerifyRequest, write_verify_request
from tranlog.disk import OS_DISK
from tranlog.errors import MemberLogError
from tranlog.ids import Seqno
from tranlog.loads import LoadProgress
from tranlog.log.files.commit_point import become_member
from tranlog.log.files.holds import hold
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.service.commands.cli import main
from tranlog.service.frame.exits import Told
from tranlog.service.process.client import writer_of
from tranlog.service.process.operating import Capturing, capture_endpoint
from tranlog.service.show.loads import load_text
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, install

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
def test_a_new_log_begins_with_the_rows_that_are_there(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "no load covers" not in caplog.text, "also while nothing was captured after it"


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
    assert "for pipeline tranlog: waits for capture, which takes one load after another" in capsys.readouterr().out
    run("status")
    assert "waits for capture" in capsys.readouterr().out
    assert run("load", "--tables", "main.items") == 2
    assert run("capture", "--once") == 0
    assert run("load") == 0
    assert "no load is under way" in capsys.readouterr().out


@pytest.mark.long
def test_a_load_is_told_what_to_do_and_shown_with_what_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = "none"'))
    assert run("capture", "--once") == 0
    assert run("load", "--pause") == 2
    assert "none is under way" in capsys.readouterr().err
    assert run("load", "--tables", "main.items", "--pause", "--rows-per-second", "4") == 0
    assert "paused, waits for capture" in capsys.readouterr().out
    assert run("capture", "--once") == 0
    run("status")
    assert "paused, 0 of 1 tables, 0 rows of about 10, at main.items, at most 4 rows/s" in capsys.readouterr().out
    assert run("load", "--resume", "--pause") == 2
    assert run("load", "--load", "1") == 2
    assert run("load", "--give-up", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out.splitlines()[-1])["loads"]
    assert found["order"] == {"paused": True, "given_up": True, "rows_per_second": 4}
    assert run("capture", "--once") == 0
    assert run("load") == 0
    assert "no load is under way" in capsys.readouterr().out


@pytest.mark.long
def test_a_load_that_would_stop_the_pipeline_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By rows at the target, under the name that the filters give the table; another pipeline's target is not known."""
    rename = '[[filter]]\nkind = "rename"\ntable = "main.items"\nto = "main.goods"\n'
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = "none"') + rename)
    assert run("capture", "--once") == 0
    with apsw.Connection("target.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n); INSERT INTO items VALUES(1, 1)")
        db.execute("CREATE TABLE goods(id INTEGER PRIMARY KEY, n); INSERT INTO goods VALUES(1, 1)")
    for words in (("main.items",), ("all",), ("main.bare,main.items", "--pipeline", "tranlog")):
        assert run("load", "--tables", *words) == 2
        said = capsys.readouterr().err
        assert "--tables = 'main.items': the pipeline would stop at it: its load begins, and it has rows" in said
    for words in (("--replace",), ("--pipeline", "tranlog", "--pause")):
        assert run("load", *words) == 2
        assert "name its tables by --tables" in capsys.readouterr().err
    assert run("load") == 0
    assert "no load is under way" in capsys.readouterr().out
    assert run("load", "--tables", "main.items", "--pipeline", "another") == 2
    assert "no pipeline of this name has read this log; tranlog can be named" in capsys.readouterr().err
    hold(str(folder / "log"), "another", Seqno(0), applied=Seqno(0))
    assert run("load", "--tables", "main.items", "--pipeline", "another") == 0
    assert run("capture", "--once") == 0
    assert run("load", "--tables", "main.items", "--replace") == 0
    assert run("capture", "--once") == 0
    with apsw.Connection("target.db") as db:
        db.execute("DELETE FROM goods")
    assert run("load", "--tables", "main.items") == 0


def test_nothing_is_asked_of_capture_in_the_log_of_a_node(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No capture runs there, so the load waited for ever, and its request stayed."""
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = "none"'))
    assert run("capture", "--once") == 0
    become_member(str(folder / "log"), OS_DISK)
    assert run("load", "--tables", "main.items") == 4
    assert "belongs to a node of a group: only the node may write it" in capsys.readouterr().err
    request = VerifyRequest(verify="1", pipeline="shop", tables=(), filters="", filters_hash="")
    with pytest.raises(MemberLogError):
        write_verify_request("log", request)
    assert not [*folder.glob("log/loads/*"), *folder.glob("log/verify/*")]


@pytest.mark.long
def test_what_is_no_load_is_refused_before_anything_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new load that was given up at once, and one of a table that is not there, stopped the pipeline."""
    (folder / "tranlog.toml").write_text(CONFIG.format(load='load = "none"'))
    assert run("capture", "--once") == 0
    for words in (("--give-up",), ("--load", "7"), ("--load", "7", "--give-up")):
        assert run("load", "--tables", "main.items", *words) == 2
        assert "--tables: asks for a new load" in capsys.readouterr().err
    assert run("load", "--tables", "main.items", "--pause", "--resume") == 2
    assert run("load", "--tables", "main.items,main.nope") == 2
    assert (
        "--tables = 'main.nope': the source has no such table; it has main.bare, main.items" in capsys.readouterr().err
    )
    assert run("load", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"loads": []}
    (folder / "source.db").rename("elsewhere.db")
    assert run("load", "--tables", "main.items") == 0, "capture will find it"
    (folder / "elsewhere.db").rename("source.db")


def test_what_is_said_of_a_load() -> None:
    """How far, how fast, how long still; for whom it waits."""
    progress = LoadProgress(begun=True, tables=3, rows=1000, left=(("s", "b"), ("s", "c")))
    request = LoadRequest(
        load="7", asked_at=0, progress=progress, rows_there=5000, rows_per_s=99.6, seconds_left=40.2, waits_for="pid 3"
    )
    told = "load 7: 1 of 3 tables, 1000 rows of about 5000, at s.b, 100 rows/s, about 40 s left, waits for pid 3"
    assert load_text(request) == told
    paused = msgspec.structs.replace(request, order=LoadOrder(paused=True), waits_for="", pipeline="p")
    assert load_text(paused) == "load 7 for pipeline p: paused, 1 of 3 tables, 1000 rows of about 5000, at s.b"


def test_a_running_capture_is_told_over_its_endpoint(folder: Path) -> None:
    """docs/control.md, "Operations"."""
    install("source.db")
    with closing(SqliteSource(SqliteSourceOptions(path="source.db", source_id="s"))) as source:
        with Log.open("log", source_id="s") as log:
            work = Capture(source, log)
            with capture_endpoint(Capturing(log, work), runtime_dir=None):
                running = writer_of("log")
                assert running.ask("/loads") == {"loads": []}
                ask("log", LoadRequest(load="1", asked_at=0))
                with pytest.raises(Told, match="names one of the loads under way: 1"):
                    running.ask("/loads", {"load": "2", "paused": True})
                (told,) = running.ask("/loads", {"paused": True, "rows_per_second": 7})["loads"]
                assert told["order"] == {"paused": True, "given_up": False, "rows_per_second": 7}
                work.catch_up()
                (told,) = running.ask("/loads")["loads"]
                assert (told["progress"]["begun"], told["progress"]["rows"], told["rows_there"]) == (True, 0, 10)
                running.ask("/loads", {"paused": False, "rows_per_second": 0})
                work.catch_up()
                assert running.ask("/loads") == {"loads": []}
