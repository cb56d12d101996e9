"""A copy of a captured database becomes a target, and not by accident; who only looks leaves no file beside it.

Proves: docs/operations.md, "SQLite as source", the paragraph on a copy as the target's first state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tranlog.clock import SystemClock
from tranlog.errors import SourceSetupError, TargetUnavailableError
from tranlog.source.kinds import source_kind
from tranlog.source.sqlite import SqliteConnection, connect, strip_copy
from tranlog.source.sqlite.source import SqliteSourceOptions
from tranlog.target.options import TargetOptions, open_target


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """A copy of a database with two tables, one of which a trigger fills."""
    shop: SqliteConnection = connect(tmp_path / "shop.db")
    shop.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, a)")
    shop.execute("CREATE TABLE trail(a)")
    shop.execute("CREATE TRIGGER on_item AFTER INSERT ON item BEGIN INSERT INTO trail VALUES(new.a); END")
    shop.execute("INSERT INTO item VALUES(1, 'one')")
    path = str(tmp_path / "copy.db")
    shop.execute(f"VACUUM INTO '{path}'")
    shop.close()
    return path


def test_a_copy_with_guards_and_triggers_is_no_target(copy: str) -> None:
    with pytest.raises(TargetUnavailableError, match=r"a copy of one: .*strip_copy"):
        open_target(TargetOptions(kind="sqlite", path=copy))


def test_a_stripped_copy_is_one_and_nothing_runs_twice(copy: str) -> None:
    assert strip_copy(copy) == ["on_item"]
    open_target(TargetOptions(kind="sqlite", path=copy)).close()
    db = apsw.Connection(copy)
    db.execute("INSERT INTO item VALUES(2, 'two')")
    assert db.execute("SELECT a FROM item").fetchall() == [("one",), ("two",)]
    assert db.execute("SELECT a FROM trail").fetchall() == [("one",)]
    left = db.execute("SELECT name FROM sqlite_schema WHERE name GLOB '_tranlog_*' AND tbl_name NOT GLOB '_tranlog_*'")
    assert left.fetchall() == []
    db.close()
    assert strip_copy(copy) == []


def test_a_database_in_use_is_not_stripped(tmp_path: Path, copy: str) -> None:
    path = str(tmp_path / "shop.db")
    shop = connect(path)
    with pytest.raises(SourceSetupError, match="open elsewhere"):
        strip_copy(path)
    shop.execute("INSERT INTO item VALUES(3, 'three')")
    shop.close()


KIND = source_kind("sqlite")


@pytest.mark.parametrize(
    "look",
    [
        lambda options: KIND.open(options).close(),
        lambda options: KIND.tables(options).close(),
        lambda options: list(KIND.examine(options, SystemClock(), None)),
        KIND.event_id,
        lambda options: KIND.standing(options, ""),
        KIND.installed,
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_who_looks_leaves_no_file(tmp_path: Path, look: Callable[[SqliteSourceOptions], Any], prepared: bool) -> None:
    """A WAL's files are taken away by who closes the database last, and may write."""
    path = tmp_path / "shop.db"
    if prepared:
        connect(path).close()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS item(id INTEGER PRIMARY KEY)").fetchall()
    look(SqliteSourceOptions(source_id="shop", path=str(path)))
    assert list(tmp_path.iterdir()) == [path]
