"""`tranlog doctor` without a server: SQLite at both ends, the log, the machine.

Proves: Servers are `tests/integration/test_doctor.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest

from fix_rights import without_rights
from tranlog.codecs.converting import convert
from tranlog.errors import CorruptRecordError
from tranlog.findings import Severity
from tranlog.ids import Seqno
from tranlog.log.files.holds import hold
from tranlog.log.writing.log import Log
from tranlog.pipeline.upkeep.checks import ROOM_LEAST, room
from tranlog.service.commands.cli import main
from tranlog.source.sqlite import connect
from tranlog.target.options import TargetOptions, open_target

CONFIG = """
[log]
dir = "log"
[source]
kind = "sqlite"
path = "source.db"
[target]
kind = "sqlite"
path = "target.db"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(CONFIG)
    with connect("source.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
        db.execute("INSERT INTO items VALUES(1, 0)")
    return tmp_path


Doctored = dict[tuple[str, str], dict[str, Any]]


def doctor(capsys: pytest.CaptureFixture[str], *, wrong: int = 0) -> Doctored:
    """Run it and return what it found by part and subject; of two of one subject the last."""
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if wrong else 0) and found["wrong"] == wrong, found
    return {(one["part"], one["subject"]): one for one in found["findings"]}


@pytest.mark.long
def test_nothing_is_wrong_before_the_first_start_and_after_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys)
    assert found["log", "directory"]["text"].startswith("there is no log yet")
    assert found["target", "connection"]["text"].endswith("is made by the first start")
    assert not (folder / "log").exists() and not (folder / "target.db").exists(), "it changes nothing"
    assert main(["capture", "--once"]) == 0
    open_target(TargetOptions(kind="sqlite", path="target.db")).close()
    found = doctor(capsys)
    assert found["target", "position"]["text"] == "the next start goes on after seqno -1"
    assert found["target", "tables"]["severity"] == "warning"  # the log holds its CREATE TABLE
    assert found["source", "keys"]["severity"] == "fine"


@pytest.mark.long
def test_what_a_start_refuses_of_a_source_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--once"]) == 0
    with apsw.Connection("source.db") as db:
        db.execute("CREATE TABLE foreign_one(n)")
    assert "a foreign program made it" in doctor(capsys, wrong=1)["source", "tables"]["text"]
    with apsw.Connection("source.db") as db:
        db.execute("DROP TABLE foreign_one")
    assert doctor(capsys)["source", "tables"]["severity"] == "fine"
    (folder / "source.db").unlink()
    with connect("source.db") as again:
        again.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
    assert "is another database" in doctor(capsys, wrong=1)["source", "tables"]["text"]
    for file in folder.glob("source.db*"):
        file.unlink()
    (folder / "source.db").write_bytes(b"no database at all" * 100)
    assert doctor(capsys, wrong=1)["source", "connection"]["severity"] == "wrong"
    (folder / "source.db").unlink()
    assert "there is no database" in doctor(capsys, wrong=1)["source", "connection"]["text"]


@pytest.mark.long
def test_what_a_start_refuses_of_a_target_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline whose positions are gone, or are of another log."""
    assert main(["capture", "--once"]) == 0
    target = open_target(TargetOptions(kind="sqlite", path="target.db"))
    target.positions.ensure_tables()
    target.close()
    with apsw.Connection("target.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
    assert doctor(capsys)["target", "tables"]["severity"] == "fine"
    assert main(["position", "set", "1", "-y"]) == 0
    assert doctor(capsys)["target", "position"]["text"] == "the next start goes on after seqno 1"
    with apsw.Connection("target.db") as db:
        db.execute("UPDATE tranlog_channel SET applied_seqno = 99")
    assert doctor(capsys, wrong=1)["target", "position"]["severity"] == "wrong"
    with apsw.Connection("target.db") as db:
        db.execute("ALTER TABLE tranlog_channel RENAME COLUMN token TO tocken")
    assert doctor(capsys, wrong=1)["target", "position"]["severity"] == "wrong"


@pytest.mark.long
def test_a_target_that_is_the_source_is_refused_before_anything_is_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By doctor, the check of the configuration, and what starts; under another name of the file too."""
    (folder / "same.db").symlink_to("source.db")
    (folder / "tranlog.toml").write_text(CONFIG.replace("target.db", "same.db"))
    said = "it is the source; name another database"
    assert said in doctor(capsys, wrong=1)["target", "connection"]["text"]
    before = (folder / "source.db").read_bytes()
    for line in ("config check", "capture --once", "apply --until now", "run"):
        assert main(line.split()) == 2
        assert said in capsys.readouterr().err
    assert not (folder / "log").exists() and (folder / "source.db").read_bytes() == before


@pytest.mark.long
def test_tables_of_a_load_that_the_target_lacks_are_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log holds no DDL of tables that were there before; at a file that is not there yet, and at one that is."""
    (folder / "tranlog.toml").write_text(
        CONFIG.replace('"source.db"', '"old.db"\nforeign_writes = "capture_by_trigger"')
    )
    with apsw.Connection("old.db") as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY); INSERT INTO t VALUES(1)")
    db.close()
    assert main(["capture", "--once"]) == 0
    for made in (False, True):
        if made:
            open_target(TargetOptions(kind="sqlite", path="target.db")).close()
        told = doctor(capsys, wrong=1)["target", "tables"]
        assert "main.t" in told["text"] and "tables create --from source" in told["remedy"]
        assert (folder / "target.db").exists() is made
    assert main(["tables", "create", "--from", "source"]) == 0
    capsys.readouterr()
    assert doctor(capsys)["target", "tables"]["severity"] == "fine"


@pytest.mark.long
def test_a_target_that_is_gone_is_wrong_where_the_log_knows_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "--once"]) == 0
    assert doctor(capsys)["target", "position"]["text"] == "the next start goes on after seqno -1"
    hold(str(folder / "log"), "tranlog", Seqno(1), holder=f"sqlite {folder / 'target.db'}", applied=Seqno(1))
    found = doctor(capsys, wrong=1)
    assert found["target", "connection"]["text"].endswith("is made by the first start")
    assert "target.db: it has no position of it any more" in found["target", "position"]["text"]
    assert not (folder / "target.db").exists()


@pytest.mark.long
def test_a_damaged_end_of_the_log_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As its next writer says; not while a writer has it, who has looked. With the stored index and without."""
    assert main(["capture", "--once"]) == 0
    with connect("source.db") as db:
        for number in range(2, 50):
            db.execute("INSERT INTO items VALUES(?, 0)", [number])
    assert main(["capture", "--once"]) == 0
    assert doctor(capsys)["log", "directory"]["severity"] == "fine"
    newest = max((folder / "log").glob("thl.data.*"))
    whole = newest.read_bytes()
    os.truncate(newest, len(whole) - 100)
    with pytest.raises(CorruptRecordError) as refused, Log.open("log", source_id="tranlog"):
        pass
    for without_index in (False, True):
        if without_index:
            (folder / "log" / "index.table").unlink()
        main(["doctor", "--json"])
        findings = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
        (told,) = [one for one in findings if (one["part"], one["subject"]) == ("log", "directory")]
        assert told["severity"] == "wrong" and refused.value.why in told["text"]
    newest.write_bytes(whole)
    with Log.open("log", source_id="tranlog"):
        assert doctor(capsys)["log", "directory"]["severity"] == "fine"


@pytest.mark.long
def test_a_copy_of_the_log_may_not_have_the_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(capsys)["source", "claim"]["text"] == "no log follows it yet"
    assert main(["capture", "--once"]) == 0
    assert doctor(capsys)["source", "claim"]["text"] == "it is for this log"
    shutil.move("log", "first")
    assert "is claimed by another log" in doctor(capsys, wrong=1)["source", "claim"]["text"]
    assert not (folder / "log").exists()
    shutil.copytree("first", "log")
    before = sorted(path.name for path in (folder / "log").iterdir())
    assert "is claimed by another log" in doctor(capsys, wrong=1)["source", "claim"]["text"]
    assert sorted(path.name for path in (folder / "log").iterdir()) == before, "it changes nothing"
    assert main(["capture", "--once"]) == 3
    assert main(["capture", "--once", "--take-source"]) == 0
    capsys.readouterr()
    assert doctor(capsys)["source", "claim"]["text"] == "it is for this log"


@pytest.mark.long
def test_what_gives_a_sqlite_table_a_key_is_what_it_can_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no ALTER TABLE ... ADD PRIMARY KEY."""
    with connect("source.db") as db:
        db.execute("CREATE TABLE notes(n)")
    told = doctor(capsys)["source", "keys"]
    assert "main.notes" in told["text"] and told["severity"] == "warning"
    assert "make a table with it, copy main.notes into it" in told["remedy"] and "ALTER" not in told["remedy"]


@pytest.mark.long
def test_files_that_cannot_be_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as made:  # the run's own folders are closed to others
        folder, place = Path(made), Path(made) / "place"
        folder.chmod(0o777)
        monkeypatch.chdir(folder)
        (folder / "tranlog.toml").write_text(CONFIG.replace('"log"', '"place/log"').replace('"target', '"place/target'))
        with apsw.Connection("source.db") as db:
            db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
        db.close()
        place.mkdir(mode=0o777)
        (folder / "source.db").chmod(0o666)
        assert doctor(capsys)["source", "rights"]["severity"] == "fine"
        with without_rights(place):
            found = doctor(capsys, wrong=2)
            for one in (found["log", "directory"], found["target", "connection"]):
                assert one["severity"] == "wrong" and "chmod u+w" in one["remedy"]
        place.chmod(0o777)
        with without_rights(folder / "source.db"):
            assert "chmod u+w" in doctor(capsys, wrong=1)["source", "rights"]["remedy"]


@pytest.mark.long
def test_a_log_that_is_only_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a source nothing captures: apply reads a directory of another user's, or a disk that is read-only."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o777)
        monkeypatch.chdir(folder)
        (folder / "tranlog.toml").write_text(
            CONFIG.partition("[source]")[0] + "[target]" + CONFIG.rpartition("[target]")[2]
        )
        Log.open("log", source_id="here").close()
        found = doctor(capsys)
        assert found["log", "directory"]["severity"] == "fine"
        assert ("log", "hold") not in found and ("log", "room") not in found
        with without_rights(folder / "log"):
            found = doctor(capsys)
            assert found["log", "directory"]["text"].startswith("seqno 0 to 0")
            assert found["log", "hold"]["severity"] == "warning"
            assert "retention will not wait" in found["log", "hold"]["text"]


def test_room_on_the_disk(tmp_path: Path) -> None:
    assert room("room", str(tmp_path), needed=1 << 62).severity is Severity.WRONG
    found = room("room", str(tmp_path), needed=0)
    assert found.severity in (Severity.FINE, Severity.WARNING)
    free = int(found.text.partition(" ")[0]) << 20
    assert (found.severity is Severity.WARNING) is (free < ROOM_LEAST)


@pytest.mark.long
def test_tables_that_run_alone_by_write_sets_are_named_with_what_mends_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tranlog.toml").write_text(CONFIG + '[shards]\nby = "writes"\nindependent_triggers = ["audit"]\n')
    with connect("source.db") as db:
        db.execute("CREATE TABLE notes(n)")
        db.execute("CREATE TABLE codes(id INTEGER PRIMARY KEY, code)")
        db.execute("CREATE TABLE counts(id INTEGER PRIMARY KEY, n)")
    assert main(["capture", "--once"]) == 0
    with apsw.Connection("target.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n); CREATE TABLE notes(n)")
        db.execute("CREATE TABLE codes(id INTEGER PRIMARY KEY, code UNIQUE)")
        db.execute("CREATE TABLE counts(id INTEGER PRIMARY KEY, n)")
        db.execute("CREATE TRIGGER audit AFTER INSERT ON items BEGIN SELECT 1; END")
        db.execute("CREATE TRIGGER count_up AFTER INSERT ON counts BEGIN UPDATE items SET n = n + 1; END")
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    told = {one["text"]: one["remedy"] for one in findings if one["subject"] == "by writes"}
    assert list(told) == [
        "main.codes runs alone: a key of the target that the source does not have",
        "main.counts runs alone: trigger count_up",
        "main.notes runs alone: without a key",
    ]
    assert "independent_triggers" in told["main.counts runs alone: trigger count_up"]
    with apsw.Connection("target.db") as db:
        db.execute("DROP TRIGGER count_up; DROP TABLE notes; DROP TABLE codes")
    assert doctor(capsys, wrong=0)["target", "by writes"]["text"] == "no table of 2 runs alone"


@pytest.mark.long
def test_write_sets_that_a_replicators_directory_lacks_are_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As at a start, at a target that is not there yet and at one that is."""
    assert main(["capture", "--once"]) == 0
    convert("log", "java")
    (folder / "tranlog.toml").write_text(CONFIG.replace('"log"', '"java"') + '[shards]\nby = "writes"\n')
    for _ in range(2):
        capsys.readouterr()
        assert main(["doctor", "--json"]) == 1
        findings = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
        (told,) = [one for one in findings if one["subject"] == "position"]
        assert told["severity"] == "wrong" and "has no write sets" in told["text"]
        open_target(TargetOptions(kind="sqlite", path="target.db")).close()


@pytest.mark.long
def test_java(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """None, one that is too old, and one that does."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert "there is no bin/java" in doctor(capsys, wrong=1)["machine", "Java"]["text"]
    for said, wrong in (('openjdk version "1.8.0_392"', 1), ('openjdk version "21.0.2" 2024-01-16', 0), ("oops", 1)):
        java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        java.chmod(0o755)
        found = doctor(capsys, wrong=wrong)["machine", "Java"]
        assert found["severity"] == ("wrong" if wrong else "fine") and ("default-jre" in found["remedy"]) == bool(wrong)


@pytest.mark.long
def test_nothing_heavy_is_imported(folder: Path) -> None:
    script = """
import sys
from tranlog.service.commands.cli import main
main(["doctor", "--json"])
heavy = {"pyspark", "py4j", "pyarrow", "pandas", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=folder, timeout=100)
