"""The reading of a statement's first words.

Proves: design/sources.md, "execution trace: SAVEPOINT, RELEASE, ROLLBACK TO".
"""

from __future__ import annotations

import apsw
import pytest

from tranlog.source.sqlite.statement import StatementKind as Kind
from tranlog.source.sqlite.statement import classify, is_blank


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
