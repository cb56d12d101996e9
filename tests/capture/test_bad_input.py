"""What `tranlog capture` says to a bad log, a bad source and a bad disk: one line, the exit code, and nothing changed.

Issues 3 and 4, "Bad input". After each case, with the surroundings mended, capture goes on and nothing is missing or
twice. A full disk is in test_full_disk.py and tests/service/test_cli.py; MariaDB's cases are in tests/integration.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_effort import few_of
from tranlog.change import RowChange
from tranlog.disk import OsFile
from tranlog.log.records.format import encode_header
from tranlog.log.writing.log import Log, LogReader
from tranlog.service.commands import cli
from tranlog.source.sqlite import connect

pytestmark = pytest.mark.long

CONFIGURATION = """
[log]
dir = "log"
segment_bytes = 1000

[source]
kind = "sqlite"
load = "none"
path = "source.db"
source_id = "shop"
"""


class Place:
    """A folder with a source, a log that holds its first transactions, and more that wait."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.log = path / "log"
        self._capsys = capsys
        self.rows = 0
        (path / "tranlog.toml").write_text(CONFIGURATION)
        self.write(*["CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)"])
        self.insert(12)
        assert self.capture()[0] == 0
        self.insert(3)

    def write(self, *statements: str) -> None:
        db = connect(self.path / "source.db")
        for statement in statements:
            db.execute(statement)
        db.close()

    def insert(self, count: int) -> None:
        self.write(*(f"INSERT INTO item VALUES({self.rows + n}, '{'x' * 200}')" for n in range(count)))
        self.rows += count

    def capture(self, *more: str) -> tuple[int, str, str]:
        code = cli.main(["capture", "--once", *more])
        told = self._capsys.readouterr()
        return int(code), told.out, told.err

    def state(self) -> dict[str, object]:
        """Every byte of the log that means something, and what waits at the source."""
        db = connect(self.path / "source.db")
        outbox = db.execute("SELECT id, changes FROM _tranlog_outbox ORDER BY id").fetchall()
        db.close()
        if not self.log.is_dir():
            return {"outbox": outbox}
        return {"outbox": outbox, **{one.name: one.read_bytes() for one in self.log.glob("thl.data.*")}}

    def logged(self) -> list[object]:
        with LogReader.open(self.log) as reader, reader.cursor() as cursor:
            return [
                change.after[0]
                for transaction in iter(cursor.next, None)
                for change in transaction.changes()
                if isinstance(change, RowChange) and change.after is not None
            ]

    def check_whole(self) -> None:
        """Capture goes on, and has everything once."""
        code, _, err = self.capture()
        assert code == 0, err
        assert self.logged() == list(range(self.rows))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, capsys)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


def newest(log: Path) -> Path:
    return max(log.glob("thl.data.*"))


def damage_a_record(log: Path) -> None:
    flip(newest(log), 100)


def damage_a_header(log: Path) -> None:
    flip(newest(log), 2)


def remove_one_in_the_middle(log: Path) -> None:
    (log / "thl.data.0000000002").unlink()


def put_a_file_there(log: Path) -> None:
    shutil.rmtree(log)
    log.write_text("not a directory")


def put_a_tungsten_log_there(log: Path) -> None:
    shutil.rmtree(log)
    log.mkdir()
    (log / "thl.data.0000000001").write_bytes(
        encode_header(-1) + struct.pack(">IBQHBQ", 300, 1, 0, 0, 1, 0) + bytes(300)
    )


@pytest.mark.parametrize(
    ("spoil", "code", "told"),
    few_of(
        [
            (damage_a_record, 3, ("damaged log: thl.data.", ", offset ", "nothing was changed", "`thl verify`")),
            (put_a_file_there, 4, ("no log at ", "it is not a directory", "Check the directory")),
            (damage_a_header, 3, ("damaged log: thl.data.", ", offset 0", "bad header", "`thl verify`")),
            (remove_one_in_the_middle, 3, ("damaged log: thl.data.0000000002", "the segment is missing")),
            (
                put_a_tungsten_log_there,
                4,
                ("written by the Tungsten replicator", "Nothing was changed", "another directory"),
            ),
        ],
        2,
    ),
)
def test_a_log_that_is_not_fit(spoil: Callable[[Path], None], code: int, told: tuple[str, ...], place: Place) -> None:
    """A damaged log, one that is none, one of another writer: refused twice the same way, not a byte changed."""
    shutil.copytree(place.log, place.path / "sound")
    spoil(place.log)
    before = place.state()
    for _ in range(2):
        found, out, err = place.capture()
        assert (found, out) == (code, ""), err
        line = err.strip().splitlines()[-1]
        assert line.startswith("tranlog: ") and all(part in line for part in told), line
        assert "Traceback" not in err
        assert place.state() == before
    if place.log.is_dir():
        shutil.rmtree(place.log)
    else:
        place.log.unlink()
    (place.path / "sound").rename(place.log)
    found, _, err = place.capture()  # a copy of the log, which another directory has claimed the source for
    assert found == 3 and "--take-source" in err
    assert place.capture("--take-source")[0] == 0
    place.check_whole()


def test_a_log_whose_place_is_missing(place: Place) -> None:
    """A typing error in the path does not make a tree of directories, nor a new log."""
    text = CONFIGURATION.replace('dir = "log"', 'dir = "lgo/shop"')
    (place.path / "tranlog.toml").write_text(text)
    before = place.state()
    code, out, err = place.capture()
    assert (code, out) == (4, "")
    assert "no log at " in err and f"the directory {place.path}/lgo does not exist" in err
    assert place.state() == before and not (place.path / "lgo").exists()
    (place.path / "tranlog.toml").write_text(CONFIGURATION)
    place.check_whole()


def test_a_log_that_another_writer_holds(place: Place) -> None:
    with Log.open(place.log, source_id="shop"):
        before = place.state()
        code, out, err = place.capture()
        assert (code, out) == (4, "")
        assert f"held by another writer (pid {os.getpid()}). Stop it first" in err
        assert place.state() == before
    place.check_whole()


def test_a_log_that_is_older_than_what_the_source_freed(place: Place) -> None:
    """A copy of the log put back in its place: what it lacks is gone at the source, so nothing may follow it."""
    shutil.copytree(place.log, place.path / "older")
    assert place.capture()[0] == 0
    place.insert(2)
    place.log.rename(place.path / "right")
    (place.path / "older").rename(place.log)
    waiting = place.state()["outbox"]
    code, out, err = place.capture()
    assert (code, out) == (3, "") and "claimed by another log" in err
    code, out, err = place.capture("--take-source")
    assert (code, out) == (3, "")
    assert "already freed its changes" in err and "this log is older than the one that captured them" in err
    assert "`tranlog reset --forget-position`" in err
    assert place.state()["outbox"] == waiting and place.logged() == list(range(12))
    shutil.rmtree(place.log)
    (place.path / "right").rename(place.log)
    place.check_whole()


def test_a_source_that_was_restored_from_an_older_copy(place: Place) -> None:
    """The log is ahead of it, and has what the source knows nothing of: refused, what waits at the source stays."""
    assert place.capture()[0] == 0
    for name in ("source.db-wal", "source.db-shm"):
        assert not (place.path / name).exists(), "nobody has it open"
    shutil.copy(place.path / "source.db", place.path / "older.db")
    place.insert(2)
    assert place.capture()[0] == 0
    held = place.logged()
    (place.path / "older.db").rename(place.path / "source.db")
    place.write("INSERT INTO item VALUES(100, 'written since')")
    waiting = place.state()["outbox"]
    code, out, err = place.capture()
    assert (code, out) == (3, "")
    assert "it was put back to an older copy" in err and "Nothing was captured" in err
    assert place.logged() == held and place.state()["outbox"] == waiting


def test_a_source_that_is_gone(place: Place) -> None:
    held = place.logged()
    (place.path / "source.db").rename(place.path / "elsewhere.db")
    for name in ("wal", "shm"):
        (place.path / f"source.db-{name}").unlink(missing_ok=True)
    code, out, err = place.capture()
    assert (code, out) == (4, "")
    assert "there is no database at" in err and "check the path" in err
    assert place.logged() == held and not (place.path / "source.db").exists()
    (place.path / "elsewhere.db").rename(place.path / "source.db")
    place.check_whole()


def test_a_table_without_a_key_is_named_once(place: Place) -> None:
    place.write("CREATE TABLE line(a, b)", "INSERT INTO line VALUES(1, 2)", "INSERT INTO line VALUES(1, 2)")
    code, _, err = place.capture()
    assert code == 0
    assert err.count("table without primary key") == 1 and "main.line" in err


@pytest.mark.parametrize("method", ["pwrite", "sync"])
@pytest.mark.parametrize("at", few_of([2, 1, 3, 4]))
def test_a_disk_that_fails(method: str, at: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO from the operating system at a write or a sync: code 4, the file and what to do; then all is there once."""
    real, left = getattr(OsFile, method), at

    def failing(self: OsFile, *given: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.EIO, "Input/output error")
        real(self, *given)

    monkeypatch.setattr(OsFile, method, failing)
    code, out, err = place.capture()
    monkeypatch.undo()
    os.chdir(place.path)
    if left > 0 or (code == 0 and method == "sync"):
        # Only the mark of a clean close failed, or there are not so many: everything is durable.
        assert code == 0 and place.logged() == list(range(place.rows))
    else:
        assert (code, out) == (4, ""), err
        line = err.strip().splitlines()[-1]
        assert line.startswith(f"tranlog: writing {place.log}") and "Input/output error" in line
        assert "The log is closed for writing; check the disk, open it again" in line
    assert "Traceback" not in err
    place.check_whole()
