"""The reading of a statement's first words."""

from __future__ import annotations

import apsw
import pytest

from tranlog.source.sqlite.statement import PlainInsert, classify, is_blank, plain_insert
from tranlog.source.sqlite.statement import SqliteStatementKind as Kind


@pytest.mark.parametrize(
    ("sql", "kind", "savepoint"),
    [
        ("begin", Kind.BEGIN, ""),
        ("/* a */ -- b\n BEGIN IMMEDIATE;", Kind.BEGIN, ""),
        ("COMMIT", Kind.COMMIT, ""),
        ("end transaction", Kind.COMMIT, ""),
        ("ROLLBACK", Kind.ROLLBACK, ""),
        ("rollback transaction;", Kind.ROLLBACK, ""),
        ("ROLLBACK TO a", Kind.ROLLBACK_TO, "a"),
        ('rollback transaction to savepoint "A""b"', Kind.ROLLBACK_TO, 'a"b'),
        ("ROLLBACK TRANSACTION t TO SAVEPOINT [x Y]", Kind.ROLLBACK_TO, "x y"),
        ("ROLLBACK/**/TO/**/savepoint", Kind.ROLLBACK_TO, "savepoint"),
        ("SAVEPOINT 'q''R'", Kind.SAVEPOINT, "q'r"),
        ("savepoint Größe", Kind.SAVEPOINT, "größe"),
        ("SAVEPOINT ÄB", Kind.SAVEPOINT, "Äb"),
        ("release `X`", Kind.RELEASE, "x"),
        ("RELEASE SAVEPOINT savepoint", Kind.RELEASE, "savepoint"),
        ("RELEASE savepoint", Kind.RELEASE, "savepoint"),
        ("CREATE TABLE t(a)", Kind.CREATE, ""),
        ("alter table t rename to u", Kind.DDL, ""),
        ("DROP VIEW v", Kind.DDL, ""),
        ("PRAGMA x", Kind.PRAGMA, ""),
        ("attach 'a' as b", Kind.ATTACH, ""),
        ("VACUUM", Kind.VACUUM, ""),
        ("EXPLAIN COMMIT", Kind.OTHER, ""),
        ("INSERT INTO savepoint VALUES(1)", Kind.OTHER, ""),
        ("WITH a AS (SELECT 1) DELETE FROM t", Kind.OTHER, ""),
        ("(SELECT 1)", Kind.OTHER, ""),
        ("", Kind.EMPTY, ""),
        (" ;-- nothing", Kind.EMPTY, ""),
    ],
)
def test_the_first_words_tell(sql: str, kind: Kind, savepoint: str) -> None:
    assert (classify(sql).kind, classify(sql).savepoint) == (kind, savepoint)
    long = sql + " " * 5000
    assert classify(long) == classify(sql)


@pytest.mark.parametrize("name", ["a", '"A b"', "[x]", "`y`", "'z'", "savepoint", "é", "a$1", "Ä"])
def test_names_are_read_as_sqlite_reads_them(name: str) -> None:
    """A name that we fold to the same text releases the same savepoint, and SQLite agrees."""
    db = apsw.Connection(":memory:")
    db.execute(f"SAVEPOINT {name}")
    folded = classify(f"SAVEPOINT {name}").savepoint
    db.execute('RELEASE "' + folded.replace('"', '""') + '"')
    assert not db.in_transaction


def test_blank_is_what_holds_no_statement() -> None:
    assert is_blank("  -- a\n /* b */ ; ")
    assert is_blank("/* never closed")
    assert not is_blank("/* a */ x")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t VALUES(?)", PlainInsert(False, "t", None, 1)),
        ("insert  into\n main . t ( a,b ) values ( ? , ? ) ;\n", PlainInsert(True, "t", ("a", "b"), 2)),
        ('INSERT INTO "a ""b"([x y],`z`)VALUES(?,?)', PlainInsert(False, 'a "b', ("x y", "z"), 2)),
        ("INSERT INTO 'main'.'t' VALUES(?)", PlainInsert(True, "t", None, 1)),
        ('INSERT INTO"t"VALUES(?)', PlainInsert(False, "t", None, 1)),
        ("INSERT INTO größe(ä) VALUES(?)", PlainInsert(False, "größe", ("ä",), 1)),
        ("INSERT INTO temp.t VALUES(?)", None),
        ("INSERT INTO main.t.u VALUES(?)", None),
        ("INSERT INTO t VALUES()", None),
        ("INSERT INTO t VALUES(?,)", None),
        ("INSERT INTO t VALUES(? ?)", None),
        ("INSERT INTO t VALUES(??)", None),
        ("INSERT INTO t VALUES(?1)", None),
        ("INSERT INTO t VALUES(:a)", None),
        ("INSERT INTO t VALUES(?), (?)", None),
        ("INSERT INTO t VALUES(?) RETURNING a", None),
        ("INSERT INTO t VALUES(?); DELETE FROM t", None),
        ("INSERT INTO t AS u VALUES(?)", None),
        ("INSERT INTO t() VALUES(?)", None),
        ("INSERT INTO t(a,) VALUES(?)", None),
        ("INSERT OR FAIL INTO t VALUES(?)", None),
        ("INSERT /* so */ INTO t VALUES(?)", None),
        ("INSERT INTOt VALUES(?)", None),
        ("EXPLAIN INSERT INTO t VALUES(?)", None),
        ("INSERT INTO t DEFAULT VALUES", None),
        ("INSERT INTO t(a) SELECT ?", None),
        ("", None),
    ],
)
def test_the_form_is_read_to_its_end(sql: str, expected: PlainInsert | None) -> None:
    assert plain_insert(sql) == expected
