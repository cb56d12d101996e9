"""docs/format.md, "Write sets": what each source tells of the same changes, by the keys of its own catalog."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fix_mariadb_source import Follower
from fix_mariadb_source import options_for as mariadb_options
from fix_mariadb_source import run as run_mariadb
from fix_postgres_source import PostgresFollower
from fix_postgres_source import options_for as postgres_options
from fix_postgres_source import run as run_postgres
from tranlog.change import Fragment
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.testing.servers import MariaDbAddress, PostgresServer
from tranlog.write_set import Use, WriteKind, WriteSet, parse_write_set

TABLES = (
    "CREATE TABLE parent (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(20), code INTEGER UNIQUE)",
    "CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY, of_parent INTEGER, "
    "FOREIGN KEY (of_parent) REFERENCES parent (id))",
    "CREATE TABLE bare (a INTEGER)",
)
CHANGES = (
    ("INSERT INTO parent (id, note, code) VALUES (1, 'a', 10), (2, 'b', NULL)", "KKK"),
    ("INSERT INTO child (id, of_parent) VALUES (7, 1)", "KR"),
    ("UPDATE parent SET note = 'c' WHERE id = 1", "U"),
    ("UPDATE child SET of_parent = 2 WHERE id = 7", "URR"),
    ("UPDATE parent SET id = 3 WHERE id = 1", "KK"),
    ("UPDATE parent SET code = 11 WHERE id = 3", "KKU"),
    ("UPDATE parent SET code = 20 WHERE id = 2", "KU"),
    ("DELETE FROM child WHERE id = 7", "KR"),
    ("DELETE FROM parent WHERE id = 3", "KK"),
    ("INSERT INTO bare (a) VALUES (1)", ""),
)
LETTERS = {Use.KEY: "K", Use.ROW: "U", Use.REFERENCE: "R"}


def read(fragment: Fragment) -> WriteSet:
    assert fragment.tables is not None
    found = parse_write_set(fragment.write_set, fragment.tables)
    assert found is not None
    return found


def check(fragments: Sequence[Fragment], **others: str) -> None:
    """Hold against CHANGES what a source made of them; `others`: what else it tells, by the letters."""
    found = [read(fragment) for fragment in fragments]
    told = ["".join(LETTERS[use] * len(hashes) for use, hashes in zip(Use, one.touches, strict=True)) for one in found]
    assert told == [others.get(uses, uses) for _, uses in CHANGES]
    by_change = dict(zip((sql for sql, _ in CHANGES), found, strict=True))
    keys = {value for hashes in by_change[CHANGES[0][0]].touches for value in hashes}
    (refers,) = by_change[CHANGES[1][0]].touches[Use.REFERENCE - 1]
    assert refers in keys, "a row of child refers to a key of parent by the hash that the key has"
    assert {value for hashes in by_change[CHANGES[2][0]].touches for value in hashes} < keys
    old_and_new = set(by_change[CHANGES[3][0]].touches[Use.REFERENCE - 1])
    assert old_and_new < keys and refers in old_and_new
    assert [len(table.keys) for one in found for table in one.tables] == [0, 0, 2, 2, 2, 2, 2, 2, 2, 0]
    assert {one.kind for one in found} == {WriteKind.ROWS} and [one.changes for one in found] == [2, *[1] * 9]


@pytest.mark.integration
def test_mariadb_tells(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    run_mariadb(mariadb, mariadb_database, *TABLES)
    with contextlib.closing(Follower(mariadb_options(mariadb, databases=(mariadb_database,)))) as follower:
        follower.start()
        run_mariadb(mariadb, mariadb_database, "SET autocommit = 1", *[sql for sql, _ in CHANGES])
        check([one.last for one in follower.catch_up()])
        run_mariadb(mariadb, mariadb_database, "ALTER TABLE bare ADD b INTEGER")
        (ddl,) = follower.catch_up()
        assert read(ddl.last).kind is WriteKind.STATEMENT


@pytest.mark.integration
def test_postgres_tells(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    follow_postgres: Callable[..., PostgresFollower],
) -> None:
    run_postgres(postgres_source, postgres_source_database, *TABLES)
    follower = follow_postgres(postgres_options(postgres_source, postgres_source_database, identity="set"))
    run_postgres(postgres_source, postgres_source_database, *[sql for sql, _ in CHANGES])
    # PostgreSQL can let a unique key hold NULL once.
    check([one.last for one in follower.wait_for(len(CHANGES))], KKK="KKKK", KU="KKU")


@pytest.mark.integration
def test_postgres_without_old_rows_tells_what_it_knows(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    follow_postgres: Callable[..., PostgresFollower],
) -> None:
    """With the replica identity of the key a reference or another key of the old row is not sent, so it is not told."""
    run_postgres(postgres_source, postgres_source_database, *TABLES[:2])
    follower = follow_postgres(postgres_options(postgres_source, postgres_source_database, identity="key"))
    run_postgres(postgres_source, postgres_source_database, *[sql for sql, _ in CHANGES[:-1]])
    found = [read(one.last) for one in follower.wait_for(len(CHANGES) - 1)]
    assert [len(table.keys) for one in found for table in one.tables] == [0, 0, 1, 1, 1, 1, 1, 1, 1]


def test_sqlite_tells(tmp_path: Path) -> None:
    path = str(tmp_path / "source.db")
    source = SqliteSource(SqliteSourceOptions(path=path, source_id="here"))
    with contextlib.closing(connect(path)) as db, contextlib.closing(source):
        for sql in TABLES:
            db.execute(sql)
        source.claim(history=bytes(16), holder="here")
        source.start(None)
        for sql, _ in CHANGES:
            db.execute(sql)
        fragments = list(source.read(0))
    assert [read(fragment).kind for fragment in fragments[: -len(CHANGES)]] == [WriteKind.STATEMENT] * len(TABLES)
    check(fragments[-len(CHANGES) :])
