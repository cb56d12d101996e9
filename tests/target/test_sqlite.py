"""SQLite as a target: the file, the write lock and who holds it, statements, storage classes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import msgspec
import pytest

from fix_target import ANY, ID, ITEMS, PIPELINE, Bench, StoppedTask, column, content, delete, insert, table, update
from tranlog.affinity import affinity
from tranlog.change import Statement, TableMap
from tranlog.errors import ConflictError, DdlStopError, TargetTableError, TargetUnavailableError, TransientTargetError
from tranlog.ids import Seqno
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.sqlite_dialect import skip_triggers
from tranlog.types import CharsetBytes, Value

SQLITE = (("dbms_type", "sqlite"),)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "target.db")


@pytest.fixture
def options(path: str) -> TargetOptions:
    return TargetOptions(kind="sqlite", path=path, lock_timeout_s=0.3)


def plain(name: str, *columns: tuple[str, str], key: tuple[int, ...] = (0,)) -> TableMap:
    """A table of a SQLite source."""
    return table(name, *[column(n, ANY, t) for n, t in columns], key=key, schema="main")


def ddl(sql: str) -> Statement:
    return Statement(schema="main", sql=sql, ddl=True)


# --- the write lock -------------------------------------------------------------------------------------------------


def test_a_stopped_task_is_ended_by_its_successor(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    claimed = bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    assert task.process.wait(5) == -9
    assert claimed.applied_seqno == -1
    bench.token = claimed.token
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert bench.rows(ITEMS) == content([(1, "a", 1)])


def test_a_driver_ends_a_stopped_task_too(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    token = bench.target.positions.take(
        pipeline=PIPELINE,
        expected_token=bench.driver_token,
        holder="next",
        channels=1,
        shard_rule="all",
        rows=None,
        keep_assignment=True,
    )
    assert task.process.wait(5) == -9
    assert bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=token).applied_seqno == -1
    assert not bench.rows(ITEMS)


def test_a_process_of_a_reused_number_is_not_ended(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    """The number alone is not enough: start time and boot must be those of the session that claimed."""
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    (row,) = bench.target.positions.read_channels(PIPELINE)
    pid, start, boot = row.session.split(" ")
    assert int(pid) == task.pid
    for other in (f"{pid} {int(start) - 1} {boot}", f"{pid} {start} another-boot", f"1 {start} {boot}", "", "x"):
        assert not bench.session.end(other)
    assert task.state() == "T"
    assert bench.session.end(row.session)


HOLDS_THE_LOCK = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("inside", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_process_that_is_not_ours_is_named_and_left(bench: Bench, path: str) -> None:
    """By its program: what else stands in its command line may be a password."""
    words = [sys.executable, "-c", HOLDS_THE_LOCK, path, "postgresql://u:secret@h/d"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None and stranger.stdout.readline() == b"inside\n"
            while Path(f"/proc/{stranger.pid}/stat").read_text().split(") ")[1][0] != "T":
                pass
            why = rf"locked for 0\.3 s by process {stranger.pid}, which is stopped \([^ /]*python[^ /]*\); end that"
            with pytest.raises(TargetUnavailableError, match=why):
                bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
            assert stranger.poll() is None
        finally:
            stranger.kill()
    bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)


@pytest.mark.long
def test_a_process_at_work_is_waited_for(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    """A long target transaction of another channel is no reason to kill or to give up: try again."""
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench, stops=False)
    for attempt in (
        lambda: bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token),
        lambda: bench.target.positions.keep_alive(pipeline=PIPELINE, token=bench.driver_token),
        lambda: bench.target.positions.publish(bench.advance(1)),
        lambda: bench.apply([insert(ITEMS, (1, "a", 1))]),
    ):
        with pytest.raises(TransientTargetError, match=f"process {task.pid} "):
            attempt()
    assert bench.target.positions.meet(PIPELINE).applied == {0: -1}  # reading waits for nobody
    assert task.go_on() == "applied"
    bench.target.reconnect()
    assert (
        bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token).applied_seqno == 0
    )


def test_our_own_process_is_never_ended(bench: Bench, path: str) -> None:
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientTargetError, match="another connection to the file"):
        bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    other.close()


# --- the file -------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_a_target(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "target.db"
    with pytest.raises(TargetUnavailableError, match=r"nowhere/target\.db .*cannot be opened"):
        open_target(TargetOptions(kind="sqlite", path=str(missing)))
    text = tmp_path / "text.db"
    text.write_text("this is no database, but long enough to look for a header in it" * 30)
    with pytest.raises(TargetUnavailableError, match="not a database"):
        open_target(TargetOptions(kind="sqlite", path=str(text)))
    wide = tmp_path / "wide.db"
    with closing(sqlite3.connect(wide)) as made:
        made.execute("PRAGMA encoding = 'UTF-16le'")
        made.execute("CREATE TABLE t (x)")
    with pytest.raises(TargetUnavailableError, match="encoding is UTF-16le"):
        open_target(TargetOptions(kind="sqlite", path=str(wide)))


def test_a_full_disk_leaves_the_target_as_it_was(bench: Bench) -> None:
    """Issue: "a full disk (the transaction is refused ...)", here the target's."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    ((pages,),) = bench.session.fetch("PRAGMA page_count")
    bench.session.fetch(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(TargetUnavailableError, match="no room on its disk"):
        bench.apply([insert(ITEMS, (i, "x" * 3000, i)) for i in range(2, 50)])
    assert bench.rows(ITEMS) == content([(1, "a", 1)])
    assert bench.stored_seqno() == 0
    bench.session.fetch("PRAGMA max_page_count = 1000000")
    bench.apply([insert(ITEMS, (2, "x" * 3000, 2))])
    assert bench.stored_seqno() == 1


def test_it_is_durable_and_leaves_foreign_keys_to_the_source(bench: Bench) -> None:
    def setting(name: str) -> Value:
        found: Value = bench.session.fetch(f"PRAGMA {name}")[0][0]
        return found

    assert (setting("journal_mode"), setting("synchronous"), setting("foreign_keys")) == ("wal", 2, 0)


def test_rows_are_read_as_of_one_moment(bench: Bench, path: str) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (i, "a", 1)) for i in range(500)])
    reading = bench.target.rows.read(ITEMS)
    next(reading)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute('DELETE FROM "shop.items"')
    assert len(list(reading)) == 499
    partly = bench.target.rows.read(ITEMS)
    assert list(partly) == []


# --- tables of a SQLite source --------------------------------------------------------------------------------------


def test_the_source_s_declarations_are_kept(bench: Bench) -> None:
    """The same declared types store the same bits: affinity, and INTEGER PRIMARY KEY as the row's number."""
    odd = plain(
        "odd",
        ("id", "INTEGER"),
        ("price", "DECIMAL(10, 2)"),
        ("x", ""),
        ("g", "INT GENERATED ALWAYS"),
        ("w", 'we"ird)'),
    )
    made = bench.target.rows.create_table(odd)
    assert '"price" DECIMAL(10, 2)' in made
    rows: list[tuple[Value, ...]] = [(1, 1.5, "1", 5, "x"), (2, 2, 1.0, None, b"1"), (3, "n/a", b"", 1, None)]
    bench.apply([insert(odd, row) for row in rows])
    assert bench.rows(odd) == content(rows)
    assert bench.session.fetch("SELECT rowid, id FROM odd WHERE id = 2") == [(2, 2)]


def test_text_that_is_not_utf_8_keeps_its_bytes(bench: Bench) -> None:
    """SQLite stores any bytes as text; they arrive as such, and are found again in keys and images."""
    raw = CharsetBytes("utf8", b"\xff\0a")
    keyed, keyless = plain("k", ("k", "TEXT"), ("v", ""), ("n", "INT")), plain("l", ("v", "TEXT"), ("n", "INT"), key=())
    for each in (keyed, keyless):
        bench.target.rows.create_table(each)
    bench.apply([insert(keyed, ("a", "b", 1)), insert(keyed, (raw, b"\xff\0a", 2)), insert(keyed, ("c", raw, 3))])
    bench.apply([insert(keyless, (raw, None)), insert(keyless, (b"\xff\0a", None)), insert(keyless, ("x", 1))])
    assert bench.session.fetch("SELECT typeof(k), typeof(v) FROM k WHERE n > 1") == [
        ("text", "blob"),
        ("text", "text"),
    ]
    assert bench.rows(keyed) == content([("a", "b", 1), (raw, b"\xff\0a", 2), ("c", raw, 3)])
    bench.apply(
        [
            update(keyed, (raw, b"\xff\0a", 2), (raw, raw, 9)),
            delete(keyless, (raw, None)),
            update(keyless, ("x", 1), (raw, 1)),
        ]
    )
    bench.apply([delete(keyed, (raw, raw, 9))])
    assert bench.rows(keyed) == content([("a", "b", 1), ("c", raw, 3)])
    assert bench.rows(keyless) == content([(b"\xff\0a", None), (raw, 1)])


def test_keys_that_hold_null(bench: Bench) -> None:
    """SQLite allows NULL in a primary key, as often as one likes: such rows are found by their whole image."""
    loose = plain("loose", ("k", "TEXT"), ("v", "INTEGER"))
    bench.target.rows.create_table(loose)
    bench.apply([insert(loose, row) for row in ((None, 1), (None, 1), (None, 2), ("a", 1))])
    bench.apply([update(loose, (None, 1), (None, 3)), delete(loose, (None, 2)), update(loose, ("a", 1), (None, 1))])
    assert bench.rows(loose) == content([(None, 3), (None, 1), (None, 1)])
    with pytest.raises(ConflictError, match=r"key \(k=NULL\)"):
        bench.apply([delete(loose, (None, 9))])


@pytest.mark.parametrize("kind", ["INTEGER", "integer"])
def test_an_integer_key_that_may_be_null_is_not_the_rowid(bench: Bench, kind: str) -> None:
    """A SQLite source's INTEGER PRIMARY KEY DESC, which holds NULL: the rowid would make a number of it."""
    keyed = plain("keyed", ("id", kind), ("n", "TEXT"))
    bench.target.rows.create_table(keyed)
    bench.apply([insert(keyed, (None, "a")), insert(keyed, (None, "b")), insert(keyed, (3, "c"))])
    bench.apply([update(keyed, (None, "a"), (None, "d")), delete(keyed, (None, "b"))])
    assert bench.rows(keyed) == content([(None, "d"), (3, "c")])
    with pytest.raises(ConflictError):
        bench.apply([insert(keyed, (3, "again"))])
    whole = msgspec.structs.replace(keyed, table="whole", columns=(ID, keyed.columns[1]))
    assert '"id" INTEGER NOT NULL' in bench.target.rows.create_table(whole)


def test_keys_under_a_collation(bench: Bench) -> None:
    bench.session.run_script("CREATE TABLE named (name TEXT PRIMARY KEY COLLATE NOCASE, n INT) WITHOUT ROWID")
    bench.session.run_script("CREATE TABLE notes (note TEXT COLLATE NOCASE)")
    named, notes = plain("named", ("name", "TEXT"), ("n", "INT")), plain("notes", ("note", "TEXT"), key=())
    bench.apply([insert(named, ("a", 1)), insert(notes, ("x",)), insert(notes, ("X",))])
    bench.apply([update(named, ("a", 1), ("A", 1)), delete(notes, ("X",))])
    assert bench.rows(named) == content([("A", 1)])
    assert bench.rows(notes) == content([("x",)])


def test_columns_that_are_called_rowid(bench: Bench) -> None:
    hidden = plain("hidden", ("rowid", "INT"), ("_rowid_", "INT"), ("oid", "INT"), key=())
    partly = plain("partly", ("RowId", "INT"), key=())
    for each in (hidden, partly):
        bench.target.rows.create_table(each)
    bench.apply([insert(hidden, (1, 2, 3)), insert(partly, (7,)), insert(partly, (7,))])
    bench.apply([update(hidden, (1, 2, 3), (4, 5, 6)), delete(partly, (7,))])
    assert bench.rows(hidden) == content([(4, 5, 6)])
    assert bench.rows(partly) == content([(7,)])


def test_a_key_that_was_renamed_is_no_text(bench: Bench, path: str) -> None:
    """SQLite takes "id" for the text 'id' where there is no such column: then a key of that text would hit all rows."""
    named = plain("named", ("id", "TEXT"), ("n", "INT"))
    bench.target.rows.create_table(named)
    bench.apply([insert(named, ("id", 1)), insert(named, ("x", 1))])
    bench.apply([update(named, ("x", 1), ("x", 2)), delete(named, ("id", 1))])
    with closing(sqlite3.connect(path)) as other:
        other.execute("ALTER TABLE named RENAME COLUMN id TO key")
    for change in (delete(named, ("id", 1)), update(named, ("id", 1), ("id", 5))):
        with pytest.raises(TargetTableError, match="column id is missing"):
            bench.apply([change])
    assert bench.session.fetch("SELECT key, n FROM named") == [("x", 2)]


@pytest.mark.parametrize("columns", [499, 501, 1999])
def test_rows_of_many_columns_without_a_key_are_found(bench: Bench, columns: int) -> None:
    """Two conditions for each column: joined in a row they are deeper than SQLite allows an expression to be."""
    wide = plain("wide", *[(f"c{n}", "INT") for n in range(columns)], key=())
    keyed = plain("keyed", *[(f"c{n}", "INT") for n in range(columns)], key=tuple(range(columns)))
    for each in (wide, keyed):
        bench.target.rows.create_table(each)
    one, two, three = (tuple(range(first, first + columns)) for first in (1, 2, 3))
    for each in (wide, keyed):
        bench.apply([insert(each, one), insert(each, two), update(each, one, three), delete(each, two)])
        assert bench.rows(each) == content([three])


def test_a_table_called_like_a_shadow_is_a_table(bench: Bench) -> None:
    docs = plain("docs_content", ("id", "INTEGER"), ("body", ""))
    bench.session.run_script("CREATE TABLE docs_content(id INTEGER PRIMARY KEY, body)")
    bench.session.run_script("CREATE VIRTUAL TABLE docs USING fts5(body, content='docs_content', content_rowid='id')")
    bench.apply([insert(docs, (1, "x"))])
    assert bench.rows(docs) == content([(1, "x")])


def test_a_view_is_no_table(bench: Bench) -> None:
    bench.session.run_script("CREATE VIEW v AS SELECT 1 AS a")
    with pytest.raises(TargetTableError, match="is a view's, not a table's"):
        bench.apply([insert(plain("v", ("a", "INT")), (1,))])


# --- statements -----------------------------------------------------------------------------------------------------


def test_statements_of_a_sqlite_source_run_at_their_place(bench: Bench) -> None:
    """DDL and position move together: all of it is there, or nothing."""
    first = plain("t", ("id", "INTEGER"), ("a", "TEXT"))
    wider = plain("t", ("id", "INTEGER"), ("a", "TEXT"), ("b", "TEXT"))
    create = ddl("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    bench.apply(
        [create, insert(first, (1, "x"))],
        [ddl("ALTER TABLE t ADD COLUMN b TEXT; UPDATE t SET b = 'set by the statement'"), insert(wider, (2, "y", "z"))],
        metadata=SQLITE,
    )
    assert bench.rows(wider) == content([(1, "x", "set by the statement"), (2, "y", "z")])
    with pytest.raises(ConflictError, match=r"seqno 2.*\(id=1\)"):
        bench.apply(
            [ddl("DROP TABLE t"), create, ddl("CREATE TABLE u (x)"), *[insert(first, (1, "x"))] * 2], metadata=SQLITE
        )
    assert bench.rows(wider) == content([(1, "x", "set by the statement"), (2, "y", "z")])
    with pytest.raises(TargetTableError):
        bench.target.rows.read(plain("u", ("x", "")))


def test_a_statement_that_fails_stops_by_name(bench: Bench) -> None:
    with pytest.raises(DdlStopError, match=r"seqno 0, statement 'CREATE TABLE t \(x\)': table t already exists"):
        bench.apply([ddl("CREATE TABLE t (x)"), ddl("CREATE TABLE  t\n(x)")], metadata=SQLITE)
    assert bench.stored_seqno() == -1


def test_triggers_stay_behind(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """What a source's trigger wrote arrives as rows; the target's own triggers fire."""
    bench.session.run_script("CREATE TABLE audit (n)")
    bench.target.rows.create_table(ITEMS)
    bench.session.run_script(
        'CREATE TRIGGER own AFTER INSERT ON "shop.items" BEGIN INSERT INTO audit VALUES (new.n); END'
    )
    applied = bench.apply(
        [
            ddl('-- a comment\nCREATE TRIGGER t AFTER INSERT ON "shop.items" BEGIN INSERT INTO audit VALUES (0); END'),
            ddl("/* and */ drop  trigger own"),
            insert(ITEMS, (1, "a", 5)),
            insert(ITEMS, (2, "a", 6)),
        ],
        metadata=SQLITE,
    )
    assert (applied.ddl_ignored, applied.changes) == (2, 2)
    assert bench.session.fetch("SELECT n FROM audit ORDER BY n") == [(5,), (6,)]
    assert sum("passed over" in record.getMessage() for record in caplog.records) == 1


def test_triggers_can_be_off(options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]) -> None:
    bench = open_bench(replace(options, triggers="off"))
    bench.target.rows.create_table(ITEMS)
    bench.session.run_script("""CREATE TRIGGER no BEFORE INSERT ON "shop.items" BEGIN SELECT RAISE(ABORT, 'no'); END""")
    bench.apply([insert(ITEMS, (1, "a", 5))])
    assert bench.rows(ITEMS) == content([(1, "a", 5)])


def test_a_trigger_that_swallows_a_row_is_a_conflict(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.session.run_script(
        'CREATE TRIGGER no BEFORE INSERT ON "shop.items" WHEN new.id = 7 BEGIN SELECT RAISE(IGNORE); END'
    )
    with pytest.raises(ConflictError, match=r"\(id=7\): the row was not inserted: a trigger"):
        bench.apply([insert(ITEMS, (i, "a", 5)) for i in range(5, 10)])
    assert not bench.rows(ITEMS)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("BIGINT UNSIGNED", "integer"),
        ("CHARINT", "integer"),
        ("nvarchar(9)", "text"),
        ("", "none"),
        ("BLOB", "none"),
        ("DOUBLE PRECISION", "real"),
        ("DATE", "numeric"),
        ("BOOLEAN", "numeric"),
    ],
)
def test_affinity_is_sqlite_s_own(declared: str, expected: str) -> None:
    """Compared with what SQLite does: how it stores the text '1.0' tells the affinity."""
    assert affinity(declared) == expected
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE TABLE t (x {declared}); INSERT INTO t VALUES ('1.0'), (2)")
    stored = str(connection.execute("SELECT group_concat(typeof(x)) FROM t").fetchall()[0][0])
    seen = {
        "integer,integer": ("integer", "numeric"),
        "text,text": ("text",),
        "text,integer": ("none",),
        "real,real": ("real",),
    }
    assert expected in seen[stored]


@pytest.mark.parametrize(
    ("statement", "skipped"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END", True),
        (" /* a */ -- b\n create temp trigger t", True),
        ("DROP TRIGGER IF EXISTS t", True),
        ("CREATE /* a */ TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END", True),
        ("CREATE/**/TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END", True),
        ("create -- a\n temporary/* b */trigger t", True),
        ("DROP -- a trigger\n/* b */ TRIGGER t", True),
        ("CREATE -- a\n TABLE /* trigger */ t (x)", False),
        ("CREATE " + "/**/ " * 5000 + "TABLE t (x)", False),
        ("CREATE TABLE trigger_log (x)", False),
        ("CREATE TABLE t (x) -- create trigger", False),
        ("", False),
    ],
)
def test_which_statements_are_triggers(statement: str, skipped: bool) -> None:
    assert bool(skip_triggers(statement)) is skipped


def test_the_identity_of_a_session_is_this_process(bench: Bench) -> None:
    (row,) = bench.target.positions.read_channels(PIPELINE)
    assert row.session.startswith(f"{os.getpid()} ")
    bench.target.positions.request_stop(pipeline=PIPELINE, token=bench.driver_token, stop_at_seqno=Seqno(1))
