"""A copy that is cut off at every target transaction, and one that another replaced; SQLite at both ends.

Killed, a copy begins again, and what it had made is emptied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tranlog.clock import SystemClock
from tranlog.errors import ReplacedError, TargetPositionError, TargetTableError
from tranlog.pipeline.upkeep import copying
from tranlog.pipeline.upkeep.copying import CopyResult, copy_tables
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, Applied, ApplyUnit, Target


class KilledError(Exception):
    """In the place of kill -9."""


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(copying, "_ROWS", 2)
    source = str(tmp_path / "source.db")
    with closing(apsw.Connection(source)) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE notes(text)")
        db.execute("INSERT INTO items VALUES(1, 'a'), (2, NULL), (3, 'c'); INSERT INTO notes VALUES(x'00'), (1.5)")
    return source, str(tmp_path / "target.db")


def copy(ends: tuple[str, str], wanted: Sequence[str] = (), *, origin: str = "here") -> CopyResult:
    with closing(SqliteTables(ends[0], wanted)) as reader:
        target = open_target(TargetOptions(kind="sqlite", path=ends[1], ddl="follow"))
        with closing(target):
            return copy_tables(
                reader,
                target,
                origin=origin,
                wanted=wanted,
                holder="test",
                clock=SystemClock(),
                report=lambda what, done: None,
            )


def tables_of(path: str) -> dict[str, list[Any]]:
    with closing(apsw.Connection(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        return {str(name): db.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names}


def test_nothing_but_the_tables_is_left(ends: tuple[str, str]) -> None:
    result = copy(ends)
    assert result.equal and [(one.table, one.rows, one.made) for one in result.tables] == [
        ("main.items", 3, True),
        ("main.notes", 2, True),
    ]
    assert tables_of(ends[1]) == tables_of(ends[0])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_copy_that_was_cut_off_begins_again(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    """In each target transaction, and after it: the beginning, two parts of one table, one of the other."""
    apply, calls = Target.apply, 0

    def killed(self: Target, units: Sequence[ApplyUnit], advance: Advance) -> Applied:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            raise KilledError
        applied = apply(self, units, advance)
        if calls == at:
            raise KilledError
        return applied

    monkeypatch.setattr(Target, "apply", killed)
    with pytest.raises(KilledError):
        copy(ends)
    assert copy(ends).equal and calls == at + 4
    assert tables_of(ends[1]) == tables_of(ends[0])


def test_a_copy_of_a_copy_under_way_leaves_out_what_it_keeps(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copying, "verify_tables", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copy(ends)
    monkeypatch.undo()
    assert "tranlog_pipeline" in tables_of(ends[1])
    assert copy((ends[1], str(tmp_path / "third.db"))).equal
    assert tables_of(str(tmp_path / "third.db")) == tables_of(ends[0])


def test_rows_of_others_are_left_alone(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was not begun by an unfinished copy of the same source."""
    with closing(apsw.Connection(ends[1])) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO items VALUES(9, 'mine')")
    with pytest.raises(TargetTableError, match=r"main\.items: it has rows already"):
        copy(ends)
    assert list(tables_of(ends[1])) == ["items"], "nothing was made"
    monkeypatch.setattr(copying, "verify_tables", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copy(ends, ["main.notes"])
    monkeypatch.undo()
    with pytest.raises(TargetTableError, match=r"main\.notes: it has rows already"):
        copy(ends, ["main.notes"], origin="elsewhere")
    assert copy(ends, ["main.notes"]).equal
    assert tables_of(ends[1])["items"] == [(9, "mine")]


def test_a_copy_of_fewer_tables_empties_the_others_too(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "verify_tables", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copy(ends)
    monkeypatch.undo()
    assert copy(ends, ["main.notes"]).equal
    found = tables_of(ends[1])
    assert found["items"] == [] and len(found["notes"]) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_copy_that_was_replaced_writes_nothing_more(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Whether the other one has ended, and taken its position away, or is under way."""
    apply, calls = Target.apply, 0

    def overtaken(self: Target, units: Sequence[ApplyUnit], advance: Advance) -> Applied:
        nonlocal calls
        calls += 1
        if calls == 3:
            if ended:
                assert copy(ends).equal
            else:
                with pytest.raises(KilledError):
                    copy(ends)
        elif calls == 5 and not ended:
            raise KilledError
        return apply(self, units, advance)

    monkeypatch.setattr(Target, "apply", overtaken)
    with pytest.raises(TargetPositionError if ended else ReplacedError):
        copy(ends)
    found = tables_of(ends[1])
    assert found == tables_of(ends[0]) if ended else found["items"] == [], "as the other one had left it"


def test_a_copy_that_was_replaced_while_it_compares_has_no_verdict(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has emptied the tables, and has not filled them yet."""
    verify = copying.verify_tables

    def overtaken(reader: Any, target: Any, **more: Any) -> Any:
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            patch.setattr(copying._Copy, "fill", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                copy(ends)
        return verify(reader, target, **more)

    monkeypatch.setattr(copying, "verify_tables", overtaken)
    with pytest.raises(ReplacedError):
        copy(ends)


def test_what_the_target_refuses_is_to_be_mended_on_either_side(ends: tuple[str, str]) -> None:
    """As a foreign key of a circle, which no order of tables serves."""
    with closing(apsw.Connection(ends[1])) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT CHECK (name <> 'c'))")
    with pytest.raises(
        TargetTableError, match=r"\(id=3\): .*at the target \(make a foreign key of a circle.* after the copy"
    ):
        copy(ends)
