"""A file that our SQLite library has open is kept from another one in the same process.

Proves: src/tranlog/source/sqlite/libraries.py; docs/operations.md, "SQLite as source".
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tranlog.errors import SourceSetupError
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, connect


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SqliteConnection]:
    db = connect(tmp_path / "s.db")
    db.execute("CREATE TABLE t(a)")
    yield db
    db.close()


def test_pythons_own_library_is_refused_the_file(db: SqliteConnection, tmp_path: Path) -> None:
    os.symlink(db.path, tmp_path / "link.db")
    for name in (db.path, Path(db.path), os.fsencode(db.path), str(tmp_path / "link.db"), os.path.relpath(db.path)):
        with pytest.raises(SourceSetupError, match="Two SQLite libraries in one process"):
            sqlite3.connect(name)
    for uri in (f"file:{db.path}?mode=ro", f"file://{db.path}"):
        with pytest.raises(SourceSetupError):
            sqlite3.connect(uri, uri=True)
    db.execute("INSERT INTO t VALUES(1)")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t(a)")
    other.close()
    sqlite3.connect(":memory:").close()


def test_it_may_have_the_file_when_ours_is_closed(db: SqliteConnection) -> None:
    db.close()
    theirs = sqlite3.connect(db.path)
    assert theirs.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(SourceSetupError, match="open in this process already"):
        connect(db.path)
    with pytest.raises(SourceSetupError, match="open in this process already"):
        SqliteSource(SqliteSourceOptions(path=db.path, source_id="s")).start(None)
    theirs.close()
    connect(db.path).close()


def test_a_file_that_a_program_reads_itself_is_refused(db: SqliteConnection) -> None:
    db.close()
    with open(db.path, "rb"), pytest.raises(SourceSetupError, match="open in this process already"):
        connect(db.path)
    connect(db.path).close()


def test_more_connections_of_our_library_are_not(db: SqliteConnection) -> None:
    raw = apsw.Connection(db.path)
    second = connect(db.path)
    raw.execute("SELECT * FROM t").fetchall()
    raw.close()
    connect(db.path).close()
    second.execute("INSERT INTO t VALUES(1)")
    second.close()


@pytest.mark.parametrize("ours", [True, False])
def test_a_connection_that_another_thread_is_using_is_no_obstacle(tmp_path: Path, ours: bool) -> None:
    """It cannot be asked for its files: a capture that began beside a writer's call did not start."""
    path = str(tmp_path / "s.db")
    connect(path).close()
    in_call, go_on = threading.Event(), threading.Event()

    def wait(*nothing: object) -> int:
        in_call.set()
        go_on.wait(20)
        return 1

    def use() -> None:
        db = connect(path) if ours else apsw.Connection(path)
        db.create_scalar_function("wait", wait)
        db.execute("SELECT wait()").fetchall()
        db.close()

    thread = threading.Thread(target=use)
    thread.start()
    assert in_call.wait(20)
    try:
        connect(path).close()
        connect(tmp_path / "other.db").close()
        if ours:
            with pytest.raises(SourceSetupError, match="Two SQLite libraries in one process"):
                sqlite3.connect(path)
    finally:
        go_on.set()
        thread.join()


def test_another_process_may_use_what_it_likes(db: SqliteConnection) -> None:
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM t').fetchone()[0])"
    told = subprocess.run([sys.executable, "-c", code, db.path], capture_output=True, text=True, check=True)
    assert told.stdout == "0\n"
