"""Following a captured SQLite database: order, position, freeing, shards, refusals."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tranlog.change import Fragment, RowChange
from tranlog.errors import (
    ConfigError,
    ForeignWriterError,
    PositionLostError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
)
from tranlog.payload import decode
from tranlog.shard import UNKNOWN_SHARD, ShardRuleKind
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, SqliteTables, connect, install
from tranlog.source.sqlite.raw import ChangesDamagedError
from tranlog.types import CharsetBytes

HISTORY = bytes(range(16))


class Place:
    """A database with its writer, and sources that are closed at the end."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "source.db")
        self.db: SqliteConnection = connect(self.path, fragment_bytes=2000)
        self.sources: list[SqliteSource] = []

    def source(self, **options: object) -> SqliteSource:
        source = SqliteSource(SqliteSourceOptions(path=self.path, source_id="shop", **options))  # type: ignore[arg-type]
        self.sources.append(source)
        return source

    def started(self, event_id: str | None = None, **options: object) -> SqliteSource:
        source = self.source(**options)
        source.claim(history=HISTORY, holder="here")
        source.start(event_id)
        return source

    def close(self) -> None:
        self.db.close()
        for source in self.sources:
            source.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    place.db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    place.db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY, a)")
    with place.db:  # nobody cares about the tables' own transactions
        place.db.execute("DELETE FROM _tranlog_outbox")
    yield place
    place.close()


def values(fragments: list[Fragment]) -> list[object]:
    """Return the values of column `a` that were inserted."""
    changes = [change for fragment in fragments for change in decode(fragment.payload).changes]
    return [change.after[1] for change in changes if isinstance(change, RowChange) and change.after is not None]


# --- reading and freeing ---------------------------------------------------------------------------------


def test_transactions_come_whole_in_order_and_once(place: Place) -> None:
    source = place.started()
    assert list(source.read(0)) == []
    for number in range(5):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    fragments = list(source.read(0))
    assert values(fragments) == [0, 1, 2, 3, 4]
    assert list(source.read(0)) == []
    place.db.execute("INSERT INTO t(a) VALUES(5)")
    assert values(list(source.read(0))) == [5]
    first = fragments[0]
    assert (first.source_id, first.shard_id, first.tables, first.last) == ("shop", "main.t", (("main", "t"),), True)
    assert decode(first.payload).metadata == (("dbms_type", "sqlite"),)
    uuid, outbox_id, token = first.event_id.split(":")
    assert uuid == place.db.uuid
    stored = place.db.execute("SELECT id, printf('%016x', token) FROM _tranlog_outbox LIMIT 1").fetchone()
    assert stored == (int(outbox_id), token)


def test_more_than_a_page_of_transactions(place: Place) -> None:
    with place.db:
        place.db.executemany("INSERT INTO t(a) VALUES(?)", (("x" * 500,) for _ in range(2000)))
    for number in range(300):
        place.db.execute("INSERT INTO u(a) VALUES(?)", (number,))
    fragments = list(place.started().read(0))
    large = [fragment for fragment in fragments if fragment.tables == (("main", "t"),)]
    assert len(large) > 300
    assert [fragment.last for fragment in large] == [False] * (len(large) - 1) + [True]
    assert {fragment.shard_id for fragment in large[:-1]} == {UNKNOWN_SHARD} and large[-1].shard_id == "main.t"
    assert values(fragments[len(large) :]) == list(range(300))


def test_a_read_left_in_the_middle_starts_the_transaction_again(place: Place) -> None:
    place.db.execute("INSERT INTO t(a) VALUES('small')")
    with place.db:
        place.db.executemany("INSERT INTO t(a) VALUES(?)", (("x" * 500,) for _ in range(50)))
    source = place.started()
    reading = source.read(0)
    taken = [next(reading) for _ in range(4)]
    reading.close()  # type: ignore[attr-defined]
    again = list(source.read(0))
    assert [fragment.event_id for fragment in again[:3]] == [fragment.event_id for fragment in taken[1:]]
    assert len(values(again)) == 50


def test_a_restart_goes_on_behind_its_event_id(place: Place) -> None:
    source = place.started()
    for number in range(4):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    fragments = list(source.read(0))
    source.release(fragments[1].event_id)
    source.close()
    source.close()
    assert values(list(place.started(fragments[1].event_id).read(0))) == [2, 3]
    assert values(list(place.started(fragments[2].event_id).read(0))) == [3]  # synced, not released
    source = place.started(fragments[3].event_id)
    assert list(source.read(0)) == []
    source.release(fragments[3].event_id)
    source.close()
    assert values(list(place.started(fragments[3].event_id).read(0))) == []
    place.db.execute("INSERT INTO t(a) VALUES(4)")
    assert values(list(place.started(fragments[3].event_id).read(0))) == [4]


def test_writers_go_on_while_capture_reads(place: Place) -> None:
    for number in range(10):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    source = place.started()
    reading = source.read(0)
    found = []
    for fragment in reading:
        found.append(fragment)
        if len(found) < 5:
            place.db.execute("INSERT INTO t(a) VALUES('while')")
        source.release(fragment.event_id)
    found += source.read(0)
    assert values(found) == [*range(10), *["while"] * 4]


def test_stop_ends_a_waiting_read(place: Place) -> None:
    source = place.started()
    ended = threading.Event()

    def wait() -> None:
        list(source.read(60))
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    source.stop()
    thread.join(10)
    assert ended.is_set()


def test_a_transaction_keeps_the_tables_of_its_moment(place: Place) -> None:
    """Capture was down while the schema changed, twice by another writer; decision 0008."""
    db, other = place.db, connect(place.path)
    db.execute("INSERT INTO t(a) VALUES('first')")
    other.execute("ALTER TABLE t ADD COLUMN b REAL DEFAULT 7")
    db.execute("UPDATE t SET a = 'second'")
    with db:
        db.execute("INSERT INTO t(a, b) VALUES('third', 1)")
        db.execute("ALTER TABLE t RENAME COLUMN a TO c")
        db.execute("INSERT INTO t(c) VALUES('fourth')")
        db.execute("SAVEPOINT s")
        db.execute("ALTER TABLE t DROP COLUMN b")
        db.execute("DELETE FROM t WHERE c = 'third'")
        db.execute("ROLLBACK TO s")
        db.execute("DELETE FROM t WHERE c = 'fourth'")
    other.execute("DROP TABLE t")
    other.close()
    found = [
        (change.table.columns[1].name, change.before and change.before[1:], change.after and change.after[1:])
        for fragment in place.started().read(0)
        for change in decode(fragment.payload).changes
        if isinstance(change, RowChange)
    ]
    assert [repr(change) for change in found[:4]] == [
        "('a', None, ('first',))",
        "('a', ('first', 7.0), ('second', 7.0))",
        "('a', None, ('third', 1.0))",
        "('c', None, ('fourth', 7.0))",
    ]
    assert found[4] == ("c", ("fourth", 7.0), None)


def test_no_id_comes_twice(place: Place) -> None:
    """Also when all before it was freed, and the writer is new: the last row captured stays."""
    seen, event_id = 0, None
    for number in range(30):
        db = connect(place.path)
        db.execute("BEGIN")
        db.execute("INSERT INTO t(a) VALUES(?)", (number,))
        db.execute("ROLLBACK")
        db.execute("INSERT INTO t(a) VALUES(?)", (number,))
        ids = [at for (at,) in db.execute("SELECT id FROM _tranlog_outbox ORDER BY id")]
        assert ids == [seen, seen + 1][-len(ids) :] and len(ids) == min(number + 1, 2)
        seen = ids[-1]
        db.close()
        source = place.started(event_id)
        ((event_id, value),) = [(fragment.event_id, values([fragment])) for fragment in source.read(0)]
        assert value == [number]
        source.release(event_id)
        source.close()


@pytest.mark.parametrize("damage", ["x''", "x'9290'", "changes || x'00'", "substr(changes, 1, 40)", "'text'"])
def test_damaged_changes_are_named(place: Place, damage: str) -> None:
    for number in range(3):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    last = "(SELECT max(id) FROM _tranlog_outbox)"
    raw = apsw.Connection(place.path)
    raw.execute(f"UPDATE _tranlog_outbox SET changes = {damage} WHERE id = {last}")
    raw.close()
    found: list[Fragment] = []
    with pytest.raises(ChangesDamagedError, match=r"are damaged.*Restore the database from a copy") as caught:
        found.extend(place.started().read(0))
    assert values(found) == [0, 1]
    assert (caught.value.path, caught.value.outbox_id) == (
        place.path,
        place.db.execute(f"SELECT {last}").fetchall()[0][0],
    )


# --- positions -------------------------------------------------------------------------------------------


def captured(place: Place, *numbers: int) -> list[str]:
    """Write and capture transactions; return their event ids."""
    for number in numbers:
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    source = place.source()
    source.start(None)
    ids = [fragment.event_id for fragment in source.read(0)]
    source.close()
    source = place.started(ids[-1])
    source.release(ids[-1])
    source.close()
    return ids


@pytest.mark.parametrize(
    "event_id", ["mysql-bin.000001:4", "", "7", ":7", "uuid:x", "uuid:9", f"other-uuid:9:{0:016x}"]
)
def test_a_position_of_something_else_is_lost(place: Place, event_id: str) -> None:
    captured(place, 1)
    with pytest.raises(PositionLostError):
        place.started(event_id)


def test_a_log_older_than_what_was_freed_is_refused(place: Place) -> None:
    ids = captured(place, 1, 2, 3)
    connect(place.path).execute("INSERT INTO t(a) VALUES(4)")  # a new writer looks at once
    with pytest.raises(PositionLostError, match="already freed"):
        place.started(ids[0])
    with pytest.raises(PositionLostError, match="this log holds nothing of it"):
        place.started(None)
    assert values(list(place.started(ids[2]).read(0))) == [4]


@pytest.mark.parametrize("writes_since", [0, 1, 30])
def test_a_database_restored_from_a_copy_is_refused(place: Place, tmp_path: Path, writes_since: int) -> None:
    """Also when it was written since, past the id that the log has: ids rise by random steps."""
    captured(place, 1)
    for number in range(3):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (number,))
    place.db.close()
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(place.path + suffix):
            shutil.copy(place.path + suffix, tmp_path / f"copy{suffix}")
    place.db = connect(place.path)
    ids = captured(place, 4, 5)
    place.db.close()
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(place.path + suffix):
            os.unlink(place.path + suffix)
        if (tmp_path / f"copy{suffix}").exists():
            shutil.copy(tmp_path / f"copy{suffix}", place.path + suffix)
    place.db = connect(place.path)
    for number in range(writes_since):
        place.db.execute("INSERT INTO t(a) VALUES(?)", (100 + number,))
    with pytest.raises(PositionLostError, match="older copy"):
        place.started(ids[-1])


def test_a_database_that_was_never_prepared(tmp_path: Path) -> None:
    path = str(tmp_path / "plain.db")
    plain = sqlite3.connect(path)
    plain.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    plain.close()
    with pytest.raises(PositionLostError, match="never captured"):
        SqliteSource(SqliteSourceOptions(path=path, source_id="s")).start("uuid:7")
    source = SqliteSource(SqliteSourceOptions(path=path, source_id="s"))
    source.start(None)  # capture may come before the first writer
    with pytest.raises(apsw.SQLError, match="no such function"):
        apsw.Connection(path).execute("INSERT INTO t VALUES(1)")
    assert list(source.read(0)) == []
    source.close()


# --- shards ----------------------------------------------------------------------------------------------


def shards(fragments: list[Fragment]) -> list[str]:
    return [fragment.shard_id for fragment in fragments if fragment.last]


def write_for_shards(db: SqliteConnection) -> None:
    db.execute("INSERT INTO t(a) VALUES(1)")
    db.execute("INSERT INTO u(a) VALUES(1)")
    with db:
        db.execute("INSERT INTO t(a) VALUES(2)")
        db.execute("INSERT INTO u(a) VALUES(2)")
    db.execute("CREATE INDEX i ON t(a)")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["main.t", "main.u", UNKNOWN_SHARD, UNKNOWN_SHARD]),
        ({"shard_rule": ShardRuleKind.SCHEMA}, ["main", "main", "main", UNKNOWN_SHARD]),
        (
            {"shard_rule": ShardRuleKind.MAP, "shard_map": {"main.t": "one", "*": "rest"}},
            ["one", "rest", UNKNOWN_SHARD, UNKNOWN_SHARD],
        ),
        (
            {"shard_rule": ShardRuleKind.MAP, "shard_map": {"main.t": "one", "main.u": "one"}},
            ["one", "one", "one", UNKNOWN_SHARD],
        ),
        (
            {"shard_rule": ShardRuleKind.MAP, "shard_map": {"main.t": "one"}},
            ["one", UNKNOWN_SHARD, UNKNOWN_SHARD, UNKNOWN_SHARD],
        ),
    ],
)
def test_the_rule_decides_at_capture(place: Place, options: dict[str, Any], expected: list[str]) -> None:
    write_for_shards(place.db)
    assert shards(list(place.started(**options).read(0))) == expected


def test_foreign_keys_join_tables_under_the_graph_of_that_moment(place: Place) -> None:
    db = place.db
    db.execute("INSERT INTO u(a) VALUES(1)")
    db.execute("CREATE TABLE joins(id INTEGER PRIMARY KEY, t REFERENCES T(id), u REFERENCES u)")
    db.execute("INSERT INTO u(a) VALUES(2)")
    with db:
        db.execute("INSERT INTO joins(t) VALUES(1)")
        db.execute("INSERT INTO u(a) VALUES(3)")
    db.execute("DROP TABLE joins")
    db.execute("INSERT INTO u(a) VALUES(4)")
    # by now nothing is joined, and still:
    assert shards(list(place.started().read(0))) == [
        "main.u",
        UNKNOWN_SHARD,
        "main.joins",
        "main.joins",
        UNKNOWN_SHARD,
        "main.u",
    ]


def test_a_map_that_parts_joined_tables_makes_them_serial(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.db.execute("CREATE TABLE child(id INTEGER PRIMARY KEY, t REFERENCES t)")
    place.db.execute("INSERT INTO t(a) VALUES(1)")
    place.db.execute("INSERT INTO u(a) VALUES(1)")
    place.db.execute("INSERT INTO child(t) VALUES(1)")
    mapping = {"main.t": "one", "main.child": "two", "main.u": "two"}
    source = place.started(shard_rule=ShardRuleKind.MAP, shard_map=mapping)
    assert shards(list(source.read(0))) == [UNKNOWN_SHARD, UNKNOWN_SHARD, "two", UNKNOWN_SHARD]
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records if "parts" in record.message] == [
        "main.child",
        "main.t",
    ]


# --- warnings and refusals -------------------------------------------------------------------------------


def test_one_warning_for_each_table_without_a_key(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.db.execute("CREATE TABLE keyless(a)")
    place.db.execute("CREATE VIRTUAL TABLE words USING fts5(w)")
    caplog.set_level(logging.WARNING)
    source = place.started()
    place.db.execute("CREATE TABLE keyless_too(a)")
    place.db.execute("INSERT INTO keyless VALUES(1)")
    list(source.read(0))
    list(source.read(0))
    assert [record.getMessage() for record in caplog.records] == [
        "table without primary key: its rows are matched by all their values table=main.keyless",
        "virtual table is not captured, nor what it stores table=main.words",
        "table without primary key: its rows are matched by all their values table=main.keyless_too",
    ]


def test_a_table_that_a_foreign_program_made_is_refused(place: Place) -> None:
    source = place.started()
    foreign = apsw.Connection(place.path)
    foreign.execute("CREATE TABLE theirs(a)")
    foreign.execute("INSERT INTO theirs VALUES(1)")
    foreign.close()
    with pytest.raises(ForeignWriterError, match=r"main\.theirs"):  # while capture runs
        list(source.read(0))
    with pytest.raises(ForeignWriterError, match=r"main\.theirs"):  # and at its start
        place.started()
    install(place.path)
    assert list(place.started().read(0)) == []


def test_a_table_whose_guard_was_taken_off_is_refused(place: Place) -> None:
    foreign = apsw.Connection(place.path)
    ((name,),) = foreign.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'u' AND name LIKE '%update'"
    ).fetchall()
    foreign.execute(f"DROP TRIGGER {name}")
    foreign.close()
    with pytest.raises(ForeignWriterError, match=r"main\.u"):
        place.started()


def test_a_table_that_cannot_be_read_back_is_refused(place: Place) -> None:
    other = apsw.Connection(place.path)  # our own connection does not make such a table
    other.execute("CREATE TABLE w(a PRIMARY KEY, g AS (a || 'x') VIRTUAL) WITHOUT ROWID")
    other.close()
    install(place.path)
    with pytest.raises(SourceSetupError, match=r"main\.w is WITHOUT ROWID"):
        place.started()


def test_a_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    def start(path: Path) -> None:
        SqliteSource(SqliteSourceOptions(path=str(path), source_id="s")).start(None)

    with pytest.raises(SourceSetupError, match="no database at"):
        start(tmp_path / "missing.db")
    text = tmp_path / "text.txt"
    text.write_text("this is no database\n" * 100)
    with pytest.raises(SourceSetupError, match="no SQLite database"):
        start(text)


def test_a_file_that_is_replaced_while_open_is_noticed(place: Place) -> None:
    source = place.started()
    os.rename(place.path, place.path + ".away")
    with pytest.raises(SourceUnavailableError, match="removed or replaced"):
        list(source.read(0))
    os.rename(place.path + ".away", place.path)


def test_an_outbox_that_ends_inside_a_transaction_is_damage(place: Place) -> None:
    with place.db:
        place.db.executemany("INSERT INTO t(a) VALUES(?)", (("x" * 500,) for _ in range(50)))
    foreign = apsw.Connection(place.path)
    foreign.execute("DELETE FROM _tranlog_outbox WHERE last")
    foreign.close()
    with pytest.raises(SourceError, match="ends inside a transaction"):
        list(place.started().read(0))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_cannot_be_written_is_refused(what: str) -> None:
    """As on a file system that is mounted read-only; root may write everywhere else, and is somebody else here."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "source.db")
        sqlite3.connect(path).close()
        path.touch()
        place, mode = (path, 0o444) if what == "file" else (path.parent, 0o555)
        path.parent.chmod(0o777)
        path.chmod(0o666)
        place.chmod(mode)
        me = os.geteuid()
        try:
            if not me:
                os.seteuid(65_534)
            with pytest.raises(SourceSetupError, match=rf"{re.escape(str(place))} cannot be written\. Capture writes"):
                SqliteSource(SqliteSourceOptions(path=str(path), source_id="shop")).start(None)
            assert os.listdir(name) == ["source.db"]
        finally:
            os.seteuid(me)
            path.parent.chmod(0o700)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"path": ""}, "path"),
        ({"path": ":memory:"}, "path"),
        ({"source_id": ""}, "source_id"),
        ({"foreign_writes": "allow"}, "foreign_writes"),
        ({"poll_s": 0}, "poll_s"),
        ({"busy_timeout_s": -1}, "busy_timeout_s"),
        ({"shard_map": {"*": "x"}}, "shard_map"),
        ({"shard_rule": ShardRuleKind.MAP}, "shard_map"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SqliteSource(SqliteSourceOptions(**{"path": "x.db", "source_id": "s", **options}))  # type: ignore[arg-type]
    assert caught.value.option == option


# --- tables as they are now ------------------------------------------------------------------------------


def test_tables_and_their_rows(place: Place) -> None:
    db = place.db
    db.executescript("""
        CREATE TABLE parent(a INTEGER, b VARCHAR(20) NOT NULL, PRIMARY KEY(b, a));
        CREATE TABLE child(id INTEGER PRIMARY KEY, a INT, b TEXT, g AS (a + 1) VIRTUAL, c REAL UNIQUE,
                           p REFERENCES parent, FOREIGN KEY(a, b) REFERENCES Parent(a, b));
        CREATE UNIQUE INDEX part ON child(b) WHERE a > 1;
        CREATE UNIQUE INDEX of_expression ON child(a + 1);
        CREATE UNIQUE INDEX whole ON child(b, a);
        CREATE VIEW v AS SELECT 1;
        INSERT INTO child(id, a, b, c) VALUES(1, 2, 'x', 3), (2, NULL, CAST(x'ff' AS TEXT), NULL), (3, 1.5, x'00', 1);
    """)
    tables = SqliteTables(place.path)
    assert [table.name for table in tables.tables()] == ["main.child", "main.parent", "main.t", "main.u"]
    child, parent, *_ = tables.tables()
    assert [(c.name, c.source_type, c.nullable) for c in child.columns] == [
        ("id", "INTEGER", False),
        ("a", "INT", True),
        ("b", "TEXT", True),
        ("c", "REAL", True),
        ("p", "", True),
    ]
    assert (child.primary_key, set(child.unique_keys)) == ((0,), {(3,), (2, 1)})
    assert [(k.columns, k.ref_table, k.ref_columns) for k in child.foreign_keys] == [
        ((4,), "parent", ("b", "a")),
        ((1, 2), "Parent", ("a", "b")),
    ]
    assert (parent.primary_key, [c.nullable for c in parent.columns]) == ((1, 0), [True, False])
    assert list(tables.rows(child)) == [
        (1, 2, "x", 3.0, None),
        (2, None, CharsetBytes("utf8", b"\xff"), None, None),
        (3, 1.5, b"\x00", 1.0, None),
    ]
    tables.close()
    tables.close()
    with pytest.raises(SourceSetupError, match="no database"):
        SqliteTables(place.path + ".missing")
