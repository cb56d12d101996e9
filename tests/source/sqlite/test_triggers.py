"""Foreign programs captured by triggers: values, transactions, what is found, and connections of ours beside them.

A plain apsw connection is a foreign program here, where Python's sqlite3 in another process is not needed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from fix_sqlite import Replica, content
from tranlog.change import Fragment, Op, RowChange, Statement
from tranlog.errors import ForeignWriterError, PositionLostError, SourceSetupError
from tranlog.findings import Severity
from tranlog.payload import decode
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install, strip_copy
from tranlog.source.sqlite.kind import KIND
from tranlog.source.sqlite.raw import ChangesDamagedError
from tranlog.table_map import decode_table_map, encode_table_map
from tranlog.testing.clock import ManualClock
from tranlog.types import CharsetBytes

T = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, r REAL, n NUMERIC, x TEXT, b BLOB)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def open_source(path: Path) -> Iterator[Callable[..., SqliteSource]]:
    opened = []

    def open_source(event_id: str | None = None, **fields: object) -> SqliteSource:
        options = {"foreign_writes": "capture_by_trigger", "source_id": "s", **fields}
        source = SqliteSource(SqliteSourceOptions(path=str(path), **options))  # type: ignore[arg-type]
        opened.append(source)
        source.claim(history=b"h" * 16, holder="log")
        source.start(event_id)
        return source

    yield open_source
    for source in opened:
        source.close()


@pytest.fixture
def foreign(path: Path) -> Iterator[apsw.Connection]:
    db = apsw.Connection(str(path))
    yield db
    db.close(True)


def counted(most: int) -> str:
    return f"WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})"


def changes(fragments: list[Fragment]) -> list[list[RowChange | Statement]]:
    """Return the changes by transaction."""
    found: list[list[RowChange | Statement]] = [[]]
    for fragment in fragments:
        found[-1] += decode(fragment.payload).changes
        if fragment.last:
            found.append([])
    assert found.pop() == []
    return found


def rows(fragments: list[Fragment]) -> list[list[tuple[Op, object, object]]]:
    return [
        [(one.op, one.before, one.after) for one in transaction if isinstance(one, RowChange)]
        for transaction in changes(fragments)
    ]


def test_every_storage_class_comes_as_it_is_stored(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    source = open_source()
    foreign.execute("INSERT INTO t VALUES(1, 1.0, 1, 1.0, 1, x'00ff')")
    foreign.execute("INSERT INTO t VALUES(2, NULL, 9e999, 12345678901234567, 'a' || char(0) || 'é', zeroblob(3))")
    foreign.execute("UPDATE t SET a = 0.1 + 0.2, r = -0.0, x = CAST(x'ff41' AS TEXT) WHERE id = 1")
    foreign.execute("DELETE FROM t WHERE id = 2")
    first, second = (1, 1.0, 1.0, 1, "1", b"\x00\xff"), (2, None, float("inf"), 12345678901234567, "a\0é", bytes(3))
    third = (1, 0.1 + 0.2, 0.0, 1, CharsetBytes("utf8", b"\xffA"), b"\x00\xff")
    (found,) = rows([*source.read(0)])
    assert found == [
        (Op.INSERT, None, first),
        (Op.INSERT, None, second),
        (Op.UPDATE, first, third),
        (Op.DELETE, second, None),
    ]
    assert [type(value) for value in found[0][2]] == [int, float, float, int, str, bytes]  # type: ignore[attr-defined]


def test_a_replica_follows_a_foreign_program(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """Keys of all kinds, generated columns, odd names, cascades, triggers of the user's, upserts, rollbacks."""
    tables = (
        'CREATE TABLE "o d""d"(k TEXT PRIMARY KEY, "v v" INTEGER, d AS (k || 1), e TEXT AS (k || 2) STORED)',
        "CREATE TABLE w(a, b, c, PRIMARY KEY(b, a)) WITHOUT ROWID",
        "CREATE TABLE p(id INTEGER PRIMARY KEY, n)",
        "CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE ON UPDATE SET NULL)",
        "CREATE TABLE keyless(a, b)",
        "CREATE TRIGGER u AFTER INSERT ON p BEGIN UPDATE p SET n = n || '!' WHERE id = NEW.id; "
        "INSERT INTO keyless VALUES(NEW.id, 'by trigger'); END",
    )
    for sql in tables:
        foreign.execute(sql)
    source = open_source()
    replica = Replica()
    for sql in tables:
        replica.db.execute(sql)
    foreign.execute("PRAGMA foreign_keys = ON")
    for sql in (
        'INSERT INTO "o d""d"(k, "v v") VALUES(\'a\', 1), (\'b\', 2)',
        'INSERT INTO "o d""d"(k) VALUES(\'a\') ON CONFLICT DO UPDATE SET "v v" = 7',
        'INSERT OR IGNORE INTO "o d""d"(k) VALUES(\'b\')',
        "INSERT INTO w VALUES(1, 2, 3), (2, 1, 4)",
        "UPDATE w SET b = b + 10",
        "INSERT INTO p VALUES(1, 'x'), (2, 'y'), (3, 'z')",
        "INSERT INTO c VALUES(1, 1), (2, 2), (3, 2), (4, 3)",
        "DELETE FROM p WHERE id = 2",
        "UPDATE p SET id = 9 WHERE id = 3",
        "INSERT INTO keyless VALUES(1, 1), (1, 1)",
        "DELETE FROM keyless WHERE rowid = (SELECT max(rowid) FROM keyless)",
        "BEGIN",
        "DELETE FROM w",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT s",
        "DELETE FROM c",
        "ROLLBACK TO s",
        "UPDATE c SET p = 1 WHERE id = 4",
        "COMMIT",
        "DELETE FROM w",
        "VACUUM",
        "UPDATE p SET n = NULL",
    ):
        foreign.execute(sql)
    with pytest.raises(apsw.ConstraintError):
        foreign.execute("INSERT INTO w VALUES(5, 5, 5), (5, 5, 6)")
    for transaction in changes([*source.read(0)]):
        replica.apply(transaction)
    assert content(replica.db) == content(foreign) and content(foreign)["c"]


def test_what_a_look_finds_is_one_transaction(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    source = open_source()
    for number in (1, 2):
        foreign.execute("INSERT INTO t(id) VALUES(?)", (number,))
    foreign.execute("BEGIN")
    foreign.execute("INSERT INTO t(id) VALUES(3)")
    assert [len(one) for one in rows([*source.read(0)])] == [2]
    foreign.execute("COMMIT")
    assert [len(one) for one in rows([*source.read(0)])] == [1]


def test_a_snapshot_stands_between_two_transactions(
    foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """Of several before it and several after it, read in one look."""
    foreign.execute(T)
    source = open_source()
    for number in (1, 2):
        foreign.execute("INSERT INTO t(id) VALUES(?)", (number,))
    with closing(source.snapshot()) as snapshot:
        for number in (3, 4):
            foreign.execute("INSERT INTO t(id) VALUES(?)", (number,))
        fragments = [*source.read(0)]
        assert [[after[0] for _, _, after in one] for one in rows(fragments)] == [[1, 2], [3, 4]]  # type: ignore[index]
        assert [snapshot.covers(one.event_id) for one in fragments] == [True, False]
        (table,) = snapshot.tables()
        assert [row[0] for row in snapshot.rows(table)] == [1, 2]


def test_a_large_transaction_comes_in_fragments(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """And is begun again whole by a capture that left in its midst, though more was committed since."""
    foreign.execute(T)
    source = open_source()
    foreign.execute(f"{counted(9)} INSERT INTO t(b) SELECT zeroblob(400000) FROM n")
    reading = source.read(0)
    assert not next(reading).last
    reading.close()  # type: ignore[attr-defined]
    foreign.execute("INSERT INTO t(a) VALUES('later')")
    fragments = [*source.read(0)]
    assert len(fragments) > 3 and max(len(one.payload) for one in fragments) < 2_000_000
    assert [len(one) for one in rows(fragments)] == [9, 1]
    last = fragments[-1].event_id
    source.close()
    foreign.execute("DELETE FROM t")
    assert [len(one) for one in rows([*open_source(last).read(0)])] == [10]


def test_ours_and_foreign_writers_keep_their_order(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """Ours are captured by the hook, each transaction apart, also where a trigger of the user's lets triggers run."""
    ours = connect(path)
    ours.execute(T)
    ours.execute("CREATE TABLE audit(id INTEGER PRIMARY KEY, t)")
    ours.execute("CREATE TRIGGER u AFTER INSERT ON t BEGIN INSERT INTO audit(t) VALUES(NEW.id); END")
    source = open_source()
    ours.execute("INSERT INTO t(id) VALUES(1)")
    ours.execute("INSERT INTO t(id) VALUES(2)")
    foreign.execute("INSERT INTO t(id) VALUES(3)")
    foreign.execute("INSERT INTO t(id) VALUES(4)")
    ours.execute("INSERT INTO t(id) VALUES(5)")
    ours.close()
    found = [
        [(one.table.table, one.after[0]) for one in transaction if isinstance(one, RowChange) and one.after]
        for transaction in changes([*source.read(0)])
    ]
    assert found[-4:] == [
        [("t", 1), ("audit", 1)],
        [("t", 2), ("audit", 2)],
        [("t", 3), ("audit", 3), ("t", 4), ("audit", 4)],
        [("t", 5), ("audit", 5)],
    ]


def test_ddl_of_ours_renews_the_triggers(path: Path, open_source: Callable[..., SqliteSource]) -> None:
    """Columns added, renamed and dropped, tables renamed; a failed ALTER leaves a table captured."""
    ours = connect(path)
    ours.execute(T)
    source = open_source()
    replica = Replica()
    replica.db.execute(T)
    [*source.read(0)]
    with pytest.raises(apsw.SQLError):
        ours.execute("ALTER TABLE t DROP COLUMN nowhere")
    foreign = apsw.Connection(str(path))
    for sql in (
        "ALTER TABLE t ADD COLUMN z DEFAULT 5",
        "ALTER TABLE t RENAME COLUMN a TO aa",
        "ALTER TABLE t DROP COLUMN x",
        "ALTER TABLE t RENAME TO t2",
        "CREATE TABLE IF NOT EXISTS s(id PRIMARY KEY, t REFERENCES t2)",
        "DROP TABLE s",
    ):
        name = "t2" if "t2" in [row[0] for row in foreign.execute("SELECT name FROM sqlite_schema")] else "t"
        foreign.execute(f"INSERT INTO {name} DEFAULT VALUES")
        foreign.execute(f"UPDATE {name} SET r = coalesce(r, 0) + 1")
        ours.execute(sql)
    foreign.execute("INSERT INTO t2(z) VALUES('end')")
    for transaction in changes([*source.read(0)]):
        replica.apply(transaction)
    assert content(replica.db) == content(foreign) and len(content(foreign)["t2"]) == 7
    foreign.close(True)
    ours.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DROP TRIGGER _tranlog_capture_1_update", "dropped or changed the triggers"),
        (
            "CREATE TRIGGER mine AFTER INSERT ON t BEGIN UPDATE t SET a = 1 WHERE id = NEW.id; END",
            "one of its own after",
        ),
    ],
)
def test_what_a_foreign_program_does_to_a_trigger_is_one_error(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource], sql: str, said: str
) -> None:
    """What was written before waits in the outbox, and comes once `install` has adopted the rest."""
    foreign.execute(T)
    source = open_source()
    foreign.execute("INSERT INTO t(id) VALUES(1)")
    foreign.execute(sql)
    with pytest.raises(ForeignWriterError, match=said):
        [*source.read(0)]
    install(path)
    assert [len(one) for one in rows([*source.read(0)])] == [1]
    foreign.execute("INSERT INTO t(id) VALUES(2)")
    replica = Replica()
    replica.db.execute(T)
    replica.db.execute("INSERT INTO t(id) VALUES(1)")
    for transaction in changes([*source.read(0)]):
        replica.apply(transaction)
    assert content(replica.db) == content(foreign)


def test_the_option_changes_what_covers_the_tables(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """What was written under the other is captured still."""
    foreign.execute(T)
    source = open_source()
    foreign.execute("INSERT INTO t(id) VALUES(1)")
    source.close()
    source = open_source(foreign_writes="refuse")
    with pytest.raises(apsw.SQLError, match="no such function"):
        foreign.execute("INSERT INTO t(id) VALUES(2)")
    assert [len(one) for one in rows([*source.read(0)])] == [1]
    source.close()
    source = open_source()
    foreign.execute("SELECT id FROM t").fetchall()  # reads the schema again, whose guards it would take for there
    foreign.execute("INSERT INTO t(id) VALUES(3)")
    assert [one[-1] for one in rows([*source.read(0)])] == [(Op.INSERT, None, (3, None, None, None, None, None))]


def test_capture_frees_what_triggers_wrote(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    open_source().close()
    clock = ManualClock()
    options = SqliteSourceOptions(path=str(path), source_id="s", foreign_writes="capture_by_trigger")
    source = SqliteSource(options, clock=clock)
    source.claim(history=b"h" * 16, holder="log")
    source.start(None)
    foreign.execute(
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) INSERT INTO t(id) SELECT i FROM n"
    )
    source.release([*source.read(0)][-1].event_id)
    [*source.read(0)]
    assert foreign.execute("SELECT count(*) FROM _tranlog_outbox").get == 999
    clock.advance(2)
    [*source.read(0)]
    assert foreign.execute("SELECT count(*) FROM _tranlog_outbox").get == 1
    source.close()


def test_rows_of_an_unknown_number_are_damaged(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    source = open_source()
    foreign.execute("INSERT INTO t(id) VALUES(1)")
    foreign.execute("UPDATE _tranlog_outbox SET changes = 4000")
    with pytest.raises(ChangesDamagedError, match=r"id 1 .* 4000 names no table"):
        [*source.read(0)]


def test_triggers_that_told_a_key_as_not_null_are_made_anew(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """An earlier release took each INTEGER key of a table WITHOUT ROWID for an integer without NULL."""
    foreign.execute("CREATE TABLE t(k INTEGER PRIMARY KEY, v) WITHOUT ROWID")
    open_source().close()
    ((encoded,),) = foreign.execute("SELECT map FROM _tranlog_tables").fetchall()
    assert isinstance(encoded, bytes)
    table = decode_table_map(encoded)
    key = msgspec.structs.replace(table.columns[0], nullable=False)
    before = encode_table_map(msgspec.structs.replace(table, columns=(key, *table.columns[1:])))
    assert before != encoded
    foreign.execute("UPDATE _tranlog_tables SET map = ?", (before,))
    foreign.execute("INSERT INTO t VALUES(1, 'a')")
    source = open_source()
    foreign.execute("INSERT INTO t VALUES('x', 'b')")
    assert [one[2] for found in rows([*source.read(0)]) for one in found] == [(1, "a"), ("x", "b")]
    assert [*foreign.execute("SELECT map FROM _tranlog_tables ORDER BY number")] == [(before,), (encoded,)]


def test_what_waits_is_told_in_rows_and_with_the_bytes_of_their_values(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    """50 rows of 20,000 bytes were 50 transactions, 50 bytes."""
    with connect(path) as ours:
        ours.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, b)")
    ours.close()
    options = open_source().options
    captured = KIND.event_id(options)
    before = KIND.standing(options, captured)
    assert (before.waiting, before.waiting_unit) == (0, "transactions")
    foreign.execute(f"{counted(50)} INSERT INTO t SELECT i, zeroblob(20_000) FROM n")
    found = KIND.standing(options, captured)
    assert before.retained_bytes is not None and found.retained_bytes is not None
    assert (found.waiting, found.waiting_unit) == (50, "rows")
    assert 1_000_000 < found.retained_bytes - before.retained_bytes < 1_001_000
    told = {one.subject: one.text for one in KIND.examine(options, ManualClock(), None)}["retention"]
    assert told.endswith(f" rows wait in the outbox, {found.retained_bytes} bytes")


def test_a_table_that_is_too_wide_is_found_before_anything_is_made(path: Path, foreign: apsw.Connection) -> None:
    """Capture ended on it after its log was made, and `doctor` said that nothing is wrong."""
    foreign.execute(f"CREATE TABLE wide(id INTEGER PRIMARY KEY, {', '.join(f'c{at}' for at in range(450))})")
    options = SqliteSourceOptions(path=str(path), source_id="s", foreign_writes="capture_by_trigger")
    told = "table main.wide has 451 columns, and triggers capture 450 at most"
    with pytest.raises(SourceSetupError, match=told):
        KIND.open(options)
    found = {one.subject: one for one in KIND.examine(options, ManualClock(), None)}
    assert found["tables"].severity is Severity.WRONG and told in found["tables"].text
    assert found["connection"].severity is Severity.FINE
    KIND.open(SqliteSourceOptions(path=str(path), source_id="s"))
    foreign.execute("ALTER TABLE wide DROP COLUMN c0")
    KIND.open(options)
    assert [*foreign.execute("SELECT name FROM sqlite_schema")] == [("wide",)], "nothing was made"


def test_what_capture_made_is_listed_and_taken_away(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    foreign.execute("CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END")
    source = open_source()
    foreign.execute("INSERT INTO t(id) VALUES(1)")
    (fragment,) = source.read(0)
    source.release(fragment.event_id)
    listed = KIND.installed(source.options)
    assert [one.kind for one in listed] == ["table"] * 2 + ["trigger"] * 3
    assert listed[0].state == "for the log log" and listed[1].state == "1 rows, up to id 1"
    assert listed[2].state == "captures what foreign programs write to t"
    with pytest.raises(SourceSetupError, match="Stop capture"):
        KIND.uninstall(source.options)
    source.close()
    foreign.close(True)
    assert KIND.uninstall(source.options) == listed and KIND.installed(source.options) == []
    assert not Path(f"{path}-tranlog").exists()
    db = apsw.Connection(str(path))
    assert [row[0] for row in db.execute("SELECT name FROM sqlite_schema ORDER BY name")] == ["mine", "t"]
    db.execute("INSERT INTO t(id) VALUES(2)")
    db.close(True)
    with pytest.raises(PositionLostError):
        open_source(fragment.event_id)


def test_a_copy_is_stripped_of_the_triggers(
    path: Path, foreign: apsw.Connection, open_source: Callable[..., SqliteSource]
) -> None:
    foreign.execute(T)
    open_source().close()
    copy = path.with_name("copy.db")
    foreign.execute("VACUUM INTO ?", (str(copy),))
    assert strip_copy(copy) == []
    with apsw.Connection(str(copy)) as db:
        assert [row[0] for row in db.execute("SELECT name FROM sqlite_schema")] == ["t"]


def test_python_s_own_library_is_captured(path: Path, open_source: Callable[..., SqliteSource]) -> None:
    """Another SQLite library, in another process, in WAL without a sync."""
    with connect(path) as ours:
        ours.execute(T)
    ours.close()
    source = open_source()
    [*source.read(0)]
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA synchronous = NORMAL'); "
        "db.executemany('INSERT INTO t(id, a) VALUES(?, ?)', [(1, 1.5), (2, b'b')]); db.commit(); "
        "db.execute('DELETE FROM t WHERE id = 1'); db.commit()"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)
    (found,) = rows([*source.read(0)])
    assert [one[0] for one in found] == [Op.INSERT, Op.INSERT, Op.DELETE]
