"""A copy of a captured database becomes a target, and not by accident.

Proves: docs/operations.md, "SQLite as source", the paragraph on a copy as the target's first state.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tranlog.errors import SourceSetupError, TargetUnavailableError
from tranlog.source.sqlite import SqliteConnection, connect, strip_copy
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
