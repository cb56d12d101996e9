"""What a schema may be, and what of it is captured: names that SQLite gives a meaning, many columns, many tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_sqlite import Replica, changes_of, content
from tranlog.change import RowChange, Statement
from tranlog.errors import SourceSetupError, UnsupportedTypeError
from tranlog.source.sqlite import SqliteConnection, SqliteTables, connect, install
from tranlog.source.sqlite.schema import read_schema


class Place:
    """A captured database, and what its outbox has got."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.raw = apsw.Connection(self.path)
        self.db: SqliteConnection = connect(self.path)

    def rows(self) -> list[tuple[str, tuple[Any, ...] | None]]:
        """Return the table of each row change in the outbox, and its after image."""
        found = []
        for (raw,) in self.raw.execute("SELECT changes FROM _tranlog_outbox ORDER BY id"):
            assert isinstance(raw, bytes)
            for change in changes_of(raw):
                if isinstance(change, RowChange):
                    found.append((change.table.table, change.after))
        return found

    def statements(self) -> list[str]:
        """Return the statements in the outbox."""
        raws: list[Any] = self.raw.execute("SELECT changes FROM _tranlog_outbox ORDER BY id").fetchall()
        return [str(change.sql) for (raw,) in raws for change in changes_of(raw) if isinstance(change, Statement)]

    def followed(self) -> bool:
        """Whether a replica that has followed the outbox is equal."""
        replica = Replica()
        replica.follow(self.raw)
        return content(replica.db) == content(self.raw)

    def close(self) -> None:
        self.db.close()
        self.raw.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "source.db")
    yield place
    place.close()


# --- names that SQLite gives a meaning -------------------------------------------------------------------

_INDEX = "CREATE VIRTUAL TABLE docs USING fts5(body, content='docs_content', content_rowid='id')"


def test_an_ordinary_table_called_like_the_shadow_of_an_index_is_captured(place: Place) -> None:
    """SQLite calls `docs_content` a shadow table as soon as there is an FTS5 table `docs`, whoever has made it."""
    db = place.db
    db.execute("CREATE TABLE docs_content(id INTEGER PRIMARY KEY, body)")
    db.execute("INSERT INTO docs_content VALUES(1, 'before')")
    db.execute(_INDEX)
    db.execute("INSERT INTO docs_content VALUES(2, 'behind')")
    db.execute("INSERT INTO docs(rowid, body) VALUES(2, 'behind')")
    assert db.execute("SELECT rowid FROM docs WHERE docs MATCH 'behind'").fetchall() == [(2,)]
    other = connect(place.path)
    other.execute("UPDATE docs_content SET body = 'by another' WHERE id = 1")
    other.close()
    assert place.rows() == [
        ("docs_content", (1, "before")),
        ("docs_content", (2, "behind")),
        ("docs_content", (1, "by another")),
    ]
    assert [table.table for table in SqliteTables(place.path).tables()] == ["docs_content"]


def test_a_table_made_behind_the_index_is_captured_and_a_real_shadow_is_not(place: Place) -> None:
    db = place.db
    db.execute(_INDEX)
    db.execute("CREATE TABLE docs_content(id INTEGER PRIMARY KEY, body)")
    db.execute("CREATE VIRTUAL TABLE own USING fts5(body)")
    db.execute("INSERT INTO own VALUES('kept in own_content')")
    db.execute("INSERT INTO docs_content VALUES(1, 'one')")
    assert place.rows() == [("docs_content", (1, "one"))]
    assert [name for name, plan in read_schema(place.raw).plans.items()] == ["docs_content"]


def test_an_index_that_was_there_before_capture(tmp_path: Path) -> None:
    """Then no guard tells: the virtual table's own module does, in an empty database."""
    path = str(tmp_path / "old.db")
    old = apsw.Connection(path)
    old.execute("CREATE TABLE docs_content(id INTEGER PRIMARY KEY, body)")
    old.execute(_INDEX)
    old.execute("CREATE VIRTUAL TABLE own USING fts5(body)")
    install(path)
    assert list(read_schema(old).plans) == ["docs_content"]
    assert read_schema(old).unguarded == frozenset()
    old.close()


# --- temporary tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["ANALYZE", "SELECT 1", "CREATE INDEX i ON u(y)"])
def test_a_temporary_table_of_the_same_name_is_told_apart(place: Place, before: str) -> None:
    """ANALYZE changes the schema by itself, and the next statement is not taken for what did it."""
    db = place.db
    db.execute("CREATE TABLE u(x, y)")
    db.execute("INSERT INTO u VALUES(1, 1)")
    db.execute("BEGIN")
    db.execute(before)
    db.execute("CREATE TEMP TABLE u(x, y)")
    db.execute("INSERT INTO temp.u VALUES('temporary', 2)")
    db.executemany("INSERT INTO u VALUES(?, 3)", [("temporary",)] * 20)
    db.execute("INSERT INTO main.u VALUES(3, 3)")
    db.execute("COMMIT")
    assert place.rows() == [("u", (1, 1)), ("u", (3, 3))]
    assert place.statements() == ["CREATE TABLE u(x, y)", *([before] if "INDEX" in before else [])]


# --- text that is stored in UTF-16 -----------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be", "UTF-8"])
def test_text_of_any_encoding_is_read_back(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "utf.db"
    raw = apsw.Connection(str(path))
    raw.execute(f"PRAGMA encoding = '{encoding}'")
    raw.execute("CREATE TABLE first(a)")
    raw.close()
    place = Place(path)
    db = place.db
    text = "Grüße 雪 😀"
    db.execute("CREATE TABLE g(id INTEGER PRIMARY KEY, a TEXT, v AS (a || '!') VIRTUAL)")
    db.execute("INSERT INTO g(id, a) VALUES(1, ?)", (text,))
    db.execute("UPDATE g SET a = a || a WHERE id = 1")
    db.execute("CREATE TABLE copy AS SELECT a, x'0041' AS b FROM g")
    with db, pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO g(id, a) VALUES(2, ?), (1, 'x')", (text,))
    assert place.rows() == [("g", (1, text)), ("g", (1, text + text)), ("copy", (text + text, b"\0A"))]
    place.close()


@pytest.mark.parametrize(
    ("columns", "nullable"),
    [
        ("(k INTEGER PRIMARY KEY)", False),
        ("(k INTEGER PRIMARY KEY) WITHOUT ROWID", True),
        ("(k INTEGER PRIMARY KEY DESC)", True),
        ("(k INTEGER NOT NULL PRIMARY KEY DESC)", True),
        ("(k INT PRIMARY KEY) WITHOUT ROWID", False),
        ("(k INTEGER, l INTEGER, PRIMARY KEY(k, l)) WITHOUT ROWID", False),
    ],
)
def test_only_the_rowid_is_told_as_an_integer_key_without_null(tmp_path: Path, columns: str, nullable: bool) -> None:
    """The others take texts and reals, with DESC also NULL; a target that takes one for its rowid refuses them."""
    with apsw.Connection(str(tmp_path / "s.db")) as db:
        db.execute(f"CREATE TABLE t{columns}")
        (table,) = read_schema(db).maps()
        if nullable:
            db.execute("INSERT INTO t VALUES('text'), (1.5)")
    assert {table.columns[at].nullable for at in table.primary_key} == {nullable}


def test_text_that_is_no_utf_16_is_refused(tmp_path: Path) -> None:
    """No target could hold it, and SQLite gives it as something else."""
    path = tmp_path / "utf.db"
    raw = apsw.Connection(str(path))
    raw.execute("PRAGMA encoding = 'UTF-16le'")
    raw.execute("CREATE TABLE first(a)")
    raw.close()
    db = connect(path)
    db.execute("CREATE TABLE g(id INTEGER PRIMARY KEY, a TEXT, v AS (1) VIRTUAL)")
    with pytest.raises(UnsupportedTypeError, match="UTF-16-LE"):
        db.execute("INSERT INTO g(id, a) VALUES(1, CAST(x'00d8' AS TEXT))")
    assert db.execute("SELECT count(*) FROM g").fetchone() == (0,)
    db.close()


# --- many columns, many tables ---------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1001, 1999])
def test_a_failed_statement_on_a_wide_table_is_cut_back(place: Place, columns: int) -> None:
    """More columns than SQLite gives the storage classes of in one SELECT."""
    db = place.db
    names = [f"c{n}" for n in range(columns - 1)]
    db.execute(f"CREATE TABLE wide(id INTEGER PRIMARY KEY, {', '.join(names)})")
    filled = f"INSERT INTO wide({', '.join(['id', *names])}) VALUES"
    row = f"{', '.join(str(n) for n in range(columns - 1))}"
    db.execute("BEGIN")
    db.execute(f"{filled} (1, {row})")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO wide(id) VALUES(2), (3), (1)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR FAIL INTO wide(id) VALUES(4), (1)")
    db.execute("COMMIT")
    db.execute("CREATE TABLE copy AS SELECT * FROM wide")
    assert [(name, (after or ())[0]) for name, after in place.rows()] == [
        ("wide", 1),
        ("wide", 4),
        ("copy", 1),
        ("copy", 4),
    ]
    assert place.rows()[2][1] == (1, *range(columns - 1))


@pytest.mark.long
def test_a_create_table_costs_what_it_and_its_guards_do(place: Place, tmp_path: Path) -> None:
    """Of 400: reading all tables anew after each took two hundred times as long as SQLite needs for them."""
    plain = apsw.Connection(str(tmp_path / "plain.db"))

    def cost(db: SqliteConnection | apsw.Connection) -> float:
        begun = time.process_time()
        db.execute("BEGIN")
        for number in range(400):
            db.execute(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY, a TEXT, b REAL)")
            for operation in ("INSERT", "UPDATE", "DELETE") if db is plain else ():
                made = f"CREATE TRIGGER t{number}_{operation} AFTER {operation} ON t{number} BEGIN SELECT 1; END"
                plain.execute(made)
        db.execute("COMMIT")
        return time.process_time() - begun

    theirs, ours = cost(plain), cost(place.db)
    plain.close()
    assert ours < 8 * theirs, (ours, theirs)
    place.db.execute("INSERT INTO t399 VALUES(1, 'a', 1.0)")
    with pytest.raises(apsw.SQLError, match="no such function"):
        place.raw.execute("INSERT INTO t230 VALUES(1, 'a', 1.0)")
    assert len(place.statements()) == 400 and place.rows() == [("t399", (1, "a", 1.0))]


def test_what_is_taken_over_of_a_schema_is_what_reading_it_says(place: Place) -> None:
    """After each kind of change, of tables that others refer to as well."""
    db = place.db
    for sql in (
        "CREATE TABLE p(a INTEGER PRIMARY KEY, b UNIQUE)",
        "CREATE TABLE c(x REFERENCES p, y REFERENCES later)",
        "CREATE TABLE later(k TEXT PRIMARY KEY) WITHOUT ROWID",
        "CREATE INDEX i ON c(x)",
        "CREATE UNIQUE INDEX j ON c(x, y)",
        "ALTER TABLE p RENAME TO q",
        "ALTER TABLE q RENAME COLUMN a TO aa",
        "ALTER TABLE c ADD COLUMN z REFERENCES c",
        "CREATE VIEW v AS SELECT * FROM c",
        "CREATE TRIGGER made AFTER INSERT ON c BEGIN SELECT 1; END",
        "DROP INDEX j",
        "CREATE TABLE c_content(a)",
        "CREATE VIRTUAL TABLE words USING fts5(w)",
        "DROP TRIGGER made",
        "CREATE TEMP TABLE p(a)",
        "DROP TABLE later",
        "CREATE TABLE LATER(k, m PRIMARY KEY)",
        "DROP TABLE words",
        "ANALYZE",
    ):
        db.execute(sql)
        db.execute("INSERT INTO c(x) VALUES(NULL)") if "c(" in sql else None
        fresh = read_schema(place.raw)
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM q WHERE 0" if "c" in fresh.plans and "q" in fresh.plans else "DELETE FROM p WHERE 0")
        assert db.schema.now.plans == fresh.plans, sql
        assert (db.schema.now.rule, db.schema.now.virtual, db.schema.now.unguarded) == (
            fresh.rule,
            fresh.virtual,
            fresh.unguarded,
        ), sql
        assert (db.schema.now.triggers, db.schema.now.texts) == (fresh.triggers, fresh.texts), sql
        db.execute("COMMIT")
    assert place.followed()


def test_the_schema_is_asked_for_only_where_something_may_have_changed_it(place: Place) -> None:
    """SQLite's count of the file's changes tells: nobody has committed since this connection did."""
    db = place.db
    asked: list[str] = []
    db.execute("CREATE TABLE t(x)")
    db.execute("INSERT INTO t VALUES(0)")
    trace = apsw.SQLITE_TRACE_STMT
    db._db.trace_v2(trace, lambda event: asked.append(event["sql"]) if "schema_version" in event["sql"] else None)

    def asks(*statements: str) -> int:
        before = len(asked)
        for sql in statements:
            db.execute(sql)
        return len(asked) - before

    assert asks(*["INSERT INTO t VALUES(1)"] * 3, "BEGIN", "INSERT INTO t VALUES(2)", "DELETE FROM t", "COMMIT") == 0
    assert asks("INSERT INTO t VALUES(3)") == 0
    place.raw.execute("SELECT * FROM t").fetchall()
    assert asks("INSERT INTO t VALUES(4)") == 0
    place.raw.execute("UPDATE _tranlog_source SET holder = 'x'")
    assert asks("SELECT * FROM t", "INSERT INTO t VALUES(5)") == 1
    assert asks("BEGIN", "INSERT INTO t VALUES(6)", "ROLLBACK", "INSERT INTO t VALUES(7)") == 0
    assert asks("ANALYZE", "INSERT INTO t VALUES(8)", "INSERT INTO t VALUES(9)") >= 1
    place.raw.execute("CREATE INDEX theirs ON t(x)")
    db.execute("INSERT INTO t VALUES(10)")
    assert "theirs" in str(db.schema.now.texts)


@pytest.mark.parametrize("end", ["ROLLBACK TO s", "RELEASE s"])
@pytest.mark.parametrize("then", ["INSERT INTO t VALUES(2)", "SELECT 1"])
def test_what_sqlite_makes_and_takes_back_is_seen(place: Place, end: str, then: str) -> None:
    """ANALYZE makes tables by itself, and a rollback to a savepoint takes them back; neither is a CREATE."""
    db = place.db
    db.execute("CREATE TABLE t(x)")
    db.execute("INSERT INTO t VALUES(1)")
    for sql in ("BEGIN", "SAVEPOINT s", "ANALYZE", "INSERT INTO t VALUES(2)", end, then, "COMMIT"):
        db.execute(sql)
    db.execute("INSERT INTO t VALUES(3)")
    assert db.schema.now.texts == read_schema(place.raw).texts
    assert place.followed()


@pytest.mark.parametrize("sql", ["ANALYZE t", "REINDEX t", "analyze"])
def test_upkeep_runs_and_is_not_captured(place: Place, sql: str) -> None:
    place.db.execute("CREATE TABLE t(x)")
    place.db.execute("CREATE INDEX i ON t(x)")
    place.db.execute("INSERT INTO t VALUES(1)")
    statements = place.statements()
    place.db.execute(sql).fetchall()
    place.db.execute("INSERT INTO t VALUES(2)")
    assert place.statements() == statements and place.rows() == [("t", (1,)), ("t", (2,))]


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE w ADD COLUMN g AS (b * 2)",
        "CREATE TABLE x(a PRIMARY KEY, g AS (a * 2) VIRTUAL) WITHOUT ROWID",
    ],
)
def test_a_table_whose_changes_sqlite_does_not_tell_is_not_made(place: Place, sql: str) -> None:
    """A virtual column in a table WITHOUT ROWID: capture would stop at it."""
    db = place.db
    db.execute("CREATE TABLE w(a PRIMARY KEY, b) WITHOUT ROWID")
    with pytest.raises(SourceSetupError, match="WITHOUT ROWID and have a virtual generated column"):
        db.execute(sql)
    db.execute("BEGIN")
    with pytest.raises(SourceSetupError, match="WITHOUT ROWID"):
        db.execute(sql)
    assert not db.in_transaction
    db.execute("INSERT INTO w VALUES(1, 2)")
    db.execute("ALTER TABLE w ADD COLUMN c DEFAULT 3")
    assert place.rows() == [("w", (1, 2))] and place.followed()


def test_the_legacy_way_of_renaming_is_refused(place: Place) -> None:
    """The target renames by the new way, and would refer to another table."""
    db = place.db
    db.execute("CREATE TABLE p(a PRIMARY KEY)")
    db.execute("CREATE TABLE c(b REFERENCES p)")
    with pytest.raises(SourceSetupError, match="legacy_alter_table"):
        db.execute("PRAGMA legacy_alter_table = ON")
    db.execute("ALTER TABLE p RENAME TO q")
    replica = Replica()
    replica.follow(place.raw)
    asked = "SELECT sql FROM sqlite_schema WHERE name = 'c'"
    assert replica.db.execute(asked).fetchall() == place.raw.execute(asked).fetchall()
