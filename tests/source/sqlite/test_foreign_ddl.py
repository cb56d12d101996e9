"""What plain programs do to the tables while triggers capture them: followed, or one clear error.

docs/sources-sqlite.md, "Tables that such a program changes". The program is Python's sqlite3 in another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from fix_sqlite import Replica, content
from tranlog.change import Fragment, RowChange, Statement
from tranlog.errors import ForeignWriterError
from tranlog.payload import decode
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install
from tranlog.source.sqlite.foreign_ddl import column_parts

BEFORE = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, n INT)",
    "CREATE TABLE child(id INTEGER PRIMARY KEY, t INT REFERENCES t(id), UNIQUE(t))",
    "CREATE TABLE keyless(a, b)",
    "CREATE TABLE word(a ANY) STRICT",
)
ROWS = (
    "INSERT INTO t VALUES(1, 'one', 1), (2, 'two', 2), (3, 'three', 3)",
    "INSERT INTO child VALUES(1, 1), (2, 3)",
    "INSERT INTO keyless VALUES(1, 1), (1, 1), (2, 2)",
    "INSERT INTO word VALUES('1')",
)
PROGRAM = """
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
for line in sys.stdin:
    try:
        answer = db.execute(json.loads(line)).fetchall()
    except sqlite3.Error as exc:
        answer = str(exc)
    print(json.dumps(answer), flush=True)
"""


class Program:
    """A program without our connection."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tried(self, sql: str) -> object:
        """Return the rows, or the text of the error."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(sql), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def run(self, *statements: str) -> None:
        for sql in statements:
            assert not isinstance(answer := self.tried(sql), str), f"{sql}: {answer}"

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def program(path: Path) -> Iterator[Program]:
    program = Program(path)
    yield program
    program.close()


class Capture:
    """Capture by triggers and a strict replica of what it gives, which has the tables as they were at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        options = SqliteSourceOptions(path=str(path), source_id="s", foreign_writes="capture_by_trigger")
        self.source = SqliteSource(options)
        self.last: str | None = None
        self.replica = Replica()
        self.statements: list[str] = []
        self.rows = 0
        self.start()

    def start(self) -> None:
        self.source.claim(history=b"h" * 16, holder="log")
        self.source.start(self.last)

    def read(self) -> list[Fragment]:
        fragments = [*self.source.read(0)]
        changes: list[RowChange | Statement] = []
        for fragment in fragments:
            changes += decode(fragment.payload).changes
            if fragment.last:
                self.last = fragment.event_id
                self.replica.apply(changes)
                self.statements += [str(one.sql) for one in changes if isinstance(one, Statement)]
                self.rows += sum(isinstance(one, RowChange) for one in changes)
                changes = []
        assert changes == []
        return fragments

    def check(self) -> None:
        with closing(apsw.Connection(str(self.path))) as db:
            assert content(self.replica.db) == content(db)


@pytest.fixture
def capture(path: Path, program: Program) -> Iterator[Capture]:
    """Begun on tables with rows, which the replica has too."""
    program.run(*BEFORE)
    capture = Capture(path)
    for sql in BEFORE:
        capture.replica.db.execute(sql)
    program.run(*ROWS)
    capture.read()
    yield capture
    capture.source.close()


NULL = ("ALTER TABLE t ADD COLUMN z",)
REBUILT = (
    "CREATE TABLE new_t(id INTEGER PRIMARY KEY, n REAL NOT NULL)",
    "INSERT INTO new_t SELECT id, n FROM t",
    "DROP TABLE t",
    "ALTER TABLE new_t RENAME TO t",
)
FOLLOWED: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    # What the program does; the beginnings of the statements that the log has.
    "a column": (NULL, ["ALTER TABLE"]),
    "a column that rows were given": (
        (*NULL, "UPDATE t SET z = id || a WHERE id < 3", "INSERT INTO t VALUES(9, 'nine', 9, x'09')"),
        ["ALTER TABLE"],
    ),
    "a column and a row that went": ((*NULL, "UPDATE t SET z = 1", "DELETE FROM t WHERE id = 1"), ["ALTER TABLE"]),
    "a key that moved": ((*NULL, "UPDATE t SET id = id + 10, z = id"), ["ALTER TABLE"]),
    "a default": (
        ("ALTER TABLE t ADD COLUMN z INT NOT NULL DEFAULT 5", "UPDATE t SET z = 6 WHERE id = 2"),
        ["ALTER TABLE"],
    ),
    "a default of another storage class": (
        ("ALTER TABLE t ADD z DEFAULT 5", "UPDATE t SET z = 5.0 WHERE id = 2", "UPDATE t SET z = '5' WHERE id = 3"),
        ["ALTER TABLE"],
    ),
    "a default of an affinity": (
        ("ALTER TABLE t ADD z REAL DEFAULT 5", "ALTER TABLE t ADD y TEXT DEFAULT 7", "UPDATE t SET y = 8 WHERE id = 1"),
        ["ALTER TABLE"] * 2,
    ),
    "a default of a STRICT table": (("ALTER TABLE word ADD z ANY DEFAULT '5'",), ["ALTER TABLE"]),
    "a collation": (
        ("ALTER TABLE t ADD z TEXT COLLATE NOCASE DEFAULT 'a'", "UPDATE t SET z = 'A' WHERE id = 3"),
        ["ALTER TABLE"],
    ),
    "two columns, and rows without a key": (
        (
            "ALTER TABLE keyless ADD c",
            "UPDATE keyless SET c = rowid",
            "ALTER TABLE keyless ADD d DEFAULT 'it''s, (so)'",
        ),
        ["ALTER TABLE"] * 2,
    ),
    "a column before constraints": (
        ("ALTER TABLE child ADD z INT DEFAULT 1", "UPDATE child SET z = 2 WHERE id = 2"),
        ["ALTER TABLE"],
    ),
    "a generated column": (("ALTER TABLE t ADD g AS (n + 1)", "UPDATE t SET n = 7 WHERE id = 1"), ["ALTER TABLE"]),
    "a column that only an empty table takes": (
        ("DELETE FROM keyless", "ALTER TABLE keyless ADD c NOT NULL", "INSERT INTO keyless VALUES(7, 8, 9)"),
        ["DROP TABLE", "CREATE TABLE"],
    ),
    "such a column without rows": (("DELETE FROM keyless", "ALTER TABLE keyless ADD c NOT NULL"), ["ALTER TABLE"]),
    "a renamed column": (("ALTER TABLE t RENAME COLUMN a TO b", "UPDATE t SET b = 'new'"), ["ALTER TABLE"]),
    "columns that change their names in turn": (
        ("ALTER TABLE t RENAME n TO m", "ALTER TABLE t RENAME a TO n", "UPDATE t SET n = m"),
        ["ALTER TABLE"] * 2,
    ),
    "a renamed column and a new one": (
        ('ALTER TABLE t RENAME a TO "b c"', "ALTER TABLE t ADD a DEFAULT 3", "UPDATE t SET a = 4 WHERE id = 1"),
        ["ALTER TABLE"] * 2,
    ),
    "a column that foreign keys name": (
        ("ALTER TABLE t RENAME id TO key", "INSERT INTO t(a) VALUES(4)"),
        ["ALTER TABLE"],
    ),
    "a renamed table": (("ALTER TABLE t RENAME TO t2", "INSERT INTO t2(a) VALUES(4)"), ["ALTER TABLE"]),
    "tables that change their names in turn": (
        ("ALTER TABLE keyless RENAME TO k2", "ALTER TABLE t RENAME TO keyless", "UPDATE keyless SET a = 1"),
        ["ALTER TABLE"] * 2,
    ),
    "a dropped table": (("DROP TABLE keyless",), ["DROP TABLE"]),
    "a table made again": (
        (
            "DROP TABLE keyless",
            "CREATE TABLE keyless(k PRIMARY KEY, v) WITHOUT ROWID",
            "INSERT INTO keyless VALUES(1, 2)",
        ),
        ["DROP TABLE", "CREATE TABLE"],
    ),
    "a table made again as it was": (
        ("DROP TABLE keyless", "CREATE TABLE keyless(a, b)", "INSERT INTO keyless VALUES(1, 2)"),
        ["DROP TABLE", "CREATE TABLE"],
    ),
    "a table put aside": (
        ("ALTER TABLE t RENAME TO old", "CREATE TABLE t(id INTEGER PRIMARY KEY)", "INSERT INTO t SELECT id FROM old"),
        ["ALTER TABLE", "CREATE TABLE"],
    ),
    "a table that is rebuilt": (REBUILT, ["DROP TABLE", "CREATE TABLE"]),
    "a new table": (("CREATE TABLE fresh(a, b)", "INSERT INTO fresh VALUES(1, 2), (1, 2)"), ["CREATE TABLE"]),
    "a unique index": (("CREATE UNIQUE INDEX u ON t(a)", "INSERT INTO t(a) VALUES('x')"), []),
    "all at once": (
        (
            *NULL,
            "ALTER TABLE child RENAME TO c",
            "ALTER TABLE c RENAME t TO of",
            "DROP TABLE keyless",
            "UPDATE t SET z = 1",
        ),
        ["DROP TABLE", *["ALTER TABLE"] * 3],
    ),
}


@pytest.mark.parametrize("away", [False, True], ids=["while capture runs", "while it is away"])
@pytest.mark.parametrize("what", FOLLOWED)
def test_a_plain_program_is_followed(capture: Capture, program: Program, what: str, away: bool) -> None:
    """Every change finds its whole before image at the replica, and both hold the same at the end."""
    statements, said = FOLLOWED[what]
    if away:
        capture.source.close()
    program.run("UPDATE t SET n = n + 1", *statements)
    if away:
        capture.start()
    capture.read()
    capture.check()
    assert [" ".join(one.split()[:2]) for one in capture.statements] == said
    listed = program.tried("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_tr%' ESCAPE '\\'")
    assert isinstance(listed, list)
    for (name,) in listed:  # all go on to be captured
        program.run(f"DELETE FROM {name}")
    assert capture.read()
    capture.check()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_each_change_is_followed_as_it_comes(capture: Capture, program: Program, in_transaction: bool) -> None:
    for number in range(4):
        program.run(*["BEGIN"][: int(in_transaction)], f"ALTER TABLE t ADD COLUMN z{number} DEFAULT {number}")
        program.run(f"UPDATE t SET z{number} = -1 WHERE id = {number}", *["COMMIT"][: int(in_transaction)])
        capture.read()
        capture.check()
    assert len(capture.statements) == 4


def test_only_rows_that_have_a_value_are_written_again(capture: Capture, program: Program) -> None:
    before = capture.rows
    program.run("ALTER TABLE t ADD COLUMN z INT DEFAULT 5", "UPDATE t SET z = 7 WHERE id = 2")
    capture.read()
    assert capture.rows - before == 2, "what the old trigger wrote, and the new column's value"


def test_a_large_table_comes_in_fragments(capture: Capture, program: Program) -> None:
    program.run(
        "CREATE TABLE large(id INTEGER PRIMARY KEY, b)",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) "
        "INSERT INTO large(b) SELECT zeroblob(400000) FROM n",
    )
    fragments = capture.read()
    assert len(fragments) > 3 and max(len(one.payload) for one in fragments) < 2_000_000
    capture.check()


def test_our_connection_follows_first(path: Path, capture: Capture, program: Program) -> None:
    """What it writes into a new column stands after the statement, though capture has not looked yet."""
    with closing(connect(path)) as ours:
        ours.execute("INSERT INTO t VALUES(20, 'ours', 1)")
        program.run("ALTER TABLE t ADD COLUMN z DEFAULT 5", "UPDATE t SET z = 6 WHERE id = 1", "DROP TABLE keyless")
        counted = ours.total_changes()
        ours.execute("INSERT INTO t(id, a, z) VALUES(21, 'ours', 8)")
        assert (ours.changes(), ours.total_changes() - counted, ours.last_insert_rowid()) == (1, 1, 21)
        program.run("UPDATE t SET z = z + 1")
        capture.read()
        capture.check()


def test_our_connection_that_rolls_back_leaves_it_to_others(path: Path, capture: Capture, program: Program) -> None:
    with closing(connect(path)) as ours:
        program.run("ALTER TABLE t ADD COLUMN z DEFAULT 5")
        ours.execute("BEGIN")
        ours.execute("SAVEPOINT s")
        ours.execute("UPDATE t SET z = 6")
        ours.execute("ALTER TABLE t ADD COLUMN y")
        ours.execute("ROLLBACK TO s")
        ours.execute("UPDATE t SET z = 7 WHERE id = 1")
        ours.execute("COMMIT")
        ours.execute("BEGIN")
        program.run("ROLLBACK" if program.tried("BEGIN") else "COMMIT")
        ours.execute("COMMIT")
        program.run("ALTER TABLE t ADD COLUMN x")
        ours.execute("BEGIN")
        ours.execute("UPDATE t SET x = 1")
        ours.execute("ROLLBACK")
        program.run("UPDATE t SET x = 2 WHERE id = 2")
        capture.read()
        capture.check()
    assert [one.split()[-1] for one in capture.statements] == ["5", "x"]


def test_a_snapshot_has_the_tables_as_the_log_has_them(capture: Capture, program: Program) -> None:
    program.run("ALTER TABLE t ADD COLUMN z DEFAULT 5")
    with closing(capture.source.snapshot()) as snapshot:
        fragments = capture.read()
        assert fragments and all(snapshot.covers(one.event_id) for one in fragments)
        capture.check()


def test_a_dropped_column_is_refused_to_the_program(capture: Capture, program: Program) -> None:
    """SQLite refuses it, since the triggers name the column; nothing has changed."""
    said = program.tried("ALTER TABLE t DROP COLUMN a")
    assert isinstance(said, str) and "error in trigger _tranlog_capture_" in said and "NEW.a" in said
    program.run("UPDATE t SET a = 'still there'")
    capture.read()
    capture.check()
    assert capture.statements == []


@pytest.mark.parametrize(
    ("statements", "table", "said"),
    [
        (["DROP TRIGGER _tranlog_capture_3_update"], "t", "dropped or changed the triggers"),
        (["CREATE TRIGGER mine AFTER INSERT ON t BEGIN DELETE FROM t WHERE id = 0; END"], "t", "one of its own after"),
        (
            ["ALTER TABLE t RENAME a TO x", "ALTER TABLE t RENAME n TO a", "ALTER TABLE t RENAME x TO n"],
            "t",
            "altered it in .* in a way that capture cannot tell",
        ),
        (
            [
                "PRAGMA writable_schema = ON",
                "UPDATE sqlite_schema SET sql = 'CREATE TABLE keyless(a, b CHECK (b))' WHERE name = 'keyless'",
                "PRAGMA schema_version = 4711",
            ],
            "keyless",
            "altered it in .* in a way that capture cannot tell",
        ),
    ],
)
def test_what_cannot_be_followed_is_one_error(
    path: Path,
    capture: Capture,
    program: Program,
    statements: Sequence[str],
    table: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It names the table and what to run, which names the others whose rows the log lacks; what it has is not lost."""
    program.run("INSERT INTO t VALUES(30, 'before', 1)", *statements, "CREATE TABLE u(id INTEGER PRIMARY KEY)")
    for _ in range(2):
        with pytest.raises(ForeignWriterError, match=rf"main\.{table} .*{said}") as caught:
            capture.read()
        assert f"install('{path}')" in str(caught.value) and f"--replace --tables main.{table}" in str(caught.value)
    install(path)
    assert f"tranlog load --replace --tables main.{table},main.u " in caplog.text
    assert len([*capture.source.read(0)]) == 1
    caplog.clear()
    install(path)
    assert not caplog.text


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("CREATE TABLE t(a, b)", ["a", " b"]),
        ("CREATE TABLE t (\n a INT, -- x, y)\n b TEXT\n)", ["\n a INT", " -- x, y)\n b TEXT\n"]),
        ('CREATE TABLE "t(,"(a DEFAULT (1, 2), [b,] /* ), */, PRIMARY KEY(a)) WITHOUT ROWID', None),
        (
            "CREATE TABLE t(a DEFAULT '),''(', `b``,` CHECK(b IN (1)))",
            ["a DEFAULT '),''('", " `b``,` CHECK(b IN (1))"],
        ),
    ],
)
def test_where_definitions_stand(sql: str, parts: list[str] | None) -> None:
    found = [sql[part] for part in column_parts(sql)]
    assert found == (parts or ["a DEFAULT (1, 2)", " [b,] /* ), */", " PRIMARY KEY(a)"])
