"""Loads from a server under writers: a strict replay of the log, and tables that cannot be read at a position.

Proves: after each chunk every before image equals what stands there, for
chunks read under six writers, without a lock.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import apsw
import psycopg
import pytest

from fix_mariadb_source import options_for as mariadb_options
from fix_pipeline import run_threads, take, tasks_for
from fix_postgres_source import LOGICAL, run
from fix_postgres_source import options_for as postgres_options
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, give_order, read_requests
from tranlog.capture.loading import _FAILURES_MAX
from tranlog.change import Fragment, Statement, TableName
from tranlog.errors import SourceSetupError, SourceUnavailableError, TargetTableError
from tranlog.ids import Seqno
from tranlog.loads import LoadChunk, LoadEnd, mark_of
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules import loading
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.row_blocks import decoded
from tranlog.source.mariadb import MariadbSource, MariadbSourceOptions
from tranlog.source.mariadb.position import gtid_text
from tranlog.source.mariadb.snapshot import MariadbSnapshot
from tranlog.source.postgres import PostgresSource
from tranlog.source.postgres.snapshot import PostgresAtOnce
from tranlog.source.source import LoadableSource, SnapshotWait, Source
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbAddress, PostgresAddress, PostgresServer
from tranlog.types import canonical

WRITERS = 6
ROWS_A_CHUNK = 40


class Place(Protocol):
    """A source's database in a test: a source over it, its tables, and writers.

    `tables`: by name the definition of the columns and the values of a key `{k}`, which the column n follows.
    """

    @property
    def tables(self) -> Mapping[str, tuple[str, str]]: ...
    @property
    def at_once(self) -> frozenset[str]:
        """Those that come in one chunk: no order of their keys is known here."""

    def fill(self, rows: int) -> None:
        """Make the tables, with so many rows each."""

    def source(self) -> Source:
        """Return a source of it."""

    def write(self, number: int, stop: threading.Event, keys: int) -> None:
        """Commit changes of rows with keys below `keys` until told to stop."""

    def schema(self) -> str:
        """Return the tables' schema."""

    def change_key(self) -> None:
        """Give the table `whole` the key (id, k)."""

    def drop(self) -> None:
        """Drop the table `whole`."""


def _changes(tables: Mapping[str, tuple[str, str]], choose: random.Random, keys: int) -> tuple[str, str, str]:
    """Return a table, its row's values before n, and the condition that finds it."""
    table = choose.choice(list(tables))
    key = tables[table][1].format(k=choose.randrange(keys))
    column = {"pair": "b", "keyless": "a"}.get(table, "id")
    return table, key, f"{column} = {key.rpartition(', ')[2] if table == 'pair' else key}"


class MariadbPlace:
    tables: ClassVar = {
        "whole": ("id BIGINT PRIMARY KEY, n INT", "{k}"),
        "pair": ("a INT UNSIGNED, b SMALLINT, n INT, PRIMARY KEY (a, b)", "{k} DIV 7, {k}"),
        "raw": ("id VARBINARY(20) PRIMARY KEY, n INT", "CONCAT('Ab', CHAR({k} MOD 256), {k})"),
        "words": ("id VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT", "CONCAT('é', {k})"),
        "keyless": ("a INT, n INT", "{k}"),
    }
    at_once: ClassVar = frozenset({"words", "keyless"})

    def __init__(self, server: MariaDbAddress, database: str) -> None:
        self.server, self.database = server, database

    def fill(self, rows: int) -> None:
        for table, (columns, key) in self.tables.items():
            self.server.execute(f"CREATE TABLE {table} ({columns})", database=self.database)
            values = key.format(k="seq")
            self.server.execute(f"INSERT INTO {table} SELECT {values}, 0 FROM seq_1_to_{rows}", database=self.database)

    def source(self) -> MariadbSource:
        return MariadbSource(mariadb_options(self.server, source_id="s", databases=(self.database,)))

    def schema(self) -> str:
        return self.database

    def change_key(self) -> None:
        alter = "ALTER TABLE whole ADD COLUMN k INT NOT NULL DEFAULT 0, DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)"
        self.server.execute(alter, database=self.database)

    def drop(self) -> None:
        self.server.execute("DROP TABLE whole", database=self.database)

    def write(self, number: int, stop: threading.Event, keys: int) -> None:
        import pymysql

        choose = random.Random(number)
        connection = self.server.connect(database=self.database)
        try:
            with connection.cursor() as cursor:
                while not stop.is_set():
                    table, key, where = _changes(self.tables, choose, keys)
                    moved = choose.randrange(keys)
                    sql = choose.choice(
                        (
                            f"INSERT IGNORE INTO {table} VALUES ({key}, 1)",
                            f"UPDATE {table} SET n = n + 1 WHERE {where}",
                            f"DELETE FROM {table} WHERE {where}",
                            f"UPDATE IGNORE whole SET id = {choose.randrange(keys)} WHERE id = {moved}",
                        )
                    )
                    try:
                        cursor.execute(sql)
                    except pymysql.err.OperationalError as exc:
                        if exc.args[0] not in (1205, 1213):  # a deadlock among the writers
                            raise
        finally:
            connection.close()


class PostgresPlace:
    tables: ClassVar = {
        "whole": ("id bigint PRIMARY KEY, n int", "{k}"),
        "pair": ("a int, b smallint, n int, PRIMARY KEY (a, b)", "{k} / 7, {k}"),
        "raw": ("id bytea PRIMARY KEY, n int", "decode(lpad(to_hex({k} % 256), 2, '0'), 'hex') || ({k})::text::bytea"),
        "ids": ("id uuid PRIMARY KEY, n int", "md5(({k})::text)::uuid"),
        "words": ("id varchar(40) PRIMARY KEY, n int", "'é' || {k}"),
        "parts": ("id int PRIMARY KEY, n int) PARTITION BY HASH (id", "{k}"),
        "keyless": ("a int, n int", "{k}"),
    }
    at_once: ClassVar = frozenset({"words", "keyless"})

    def __init__(self, server: PostgresAddress, database: str, **options: object) -> None:
        self.server, self.database, self.options = server, database, options

    def fill(self, rows: int) -> None:
        with self.server.connect(self.database) as session:
            for table, (columns, key) in self.tables.items():
                session.execute(f"CREATE TABLE {table} ({columns})")  # type: ignore[call-overload]
                for part in range(2 if table == "parts" else 0):
                    session.execute(
                        f"CREATE TABLE part_{part} PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER {part})"  # type: ignore[call-overload]
                    )
                session.execute(f"INSERT INTO {table} SELECT {key.format(k='g')}, 0 FROM generate_series(1, {rows}) g")  # type: ignore[call-overload]

    def source(self) -> PostgresSource:
        given = {"source_id": self.database, "identity": "set", "via_partition_root": True, **self.options}
        return PostgresSource(postgres_options(self.server, self.database, **given))

    def schema(self) -> str:
        return "public"

    def change_key(self) -> None:
        alter = "ADD COLUMN k int NOT NULL DEFAULT 0, DROP CONSTRAINT whole_pkey, ADD PRIMARY KEY (id, k)"
        run(self.server, self.database, f"ALTER TABLE whole {alter}")

    def drop(self) -> None:
        run(self.server, self.database, "DROP TABLE whole")

    def write(self, number: int, stop: threading.Event, keys: int) -> None:
        choose = random.Random(number)
        with self.server.connect(self.database) as session:
            while not stop.is_set():
                table, key, where = _changes(self.tables, choose, keys)
                sql = choose.choice(
                    (
                        f"INSERT INTO {table} VALUES ({key}, 1) ON CONFLICT DO NOTHING",
                        f"UPDATE {table} SET n = n + 1 WHERE {where}",
                        f"DELETE FROM {table} WHERE {where}",
                        f"UPDATE whole SET id = {choose.randrange(keys)} WHERE id = {choose.randrange(keys)}",
                    )
                )
                with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    session.execute(sql)  # type: ignore[call-overload]


class SqlitePlace:
    tables: ClassVar = {
        "whole": ("id INTEGER PRIMARY KEY, n", "{k}"),
        "words": ("id TEXT COLLATE NOCASE PRIMARY KEY, n", "'é' || {k}"),
        "keyless": ("a, n", "{k}"),
    }
    at_once: ClassVar = frozenset({"words", "keyless"})

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "source.db")

    def fill(self, rows: int) -> None:
        with apsw.Connection(self.path) as db:
            for table, (columns, key) in self.tables.items():
                db.execute(f"CREATE TABLE {table} ({columns})")
                for at in range(1, rows * (1 if table in self.at_once else 3) + 1):
                    db.execute(f"INSERT INTO {table} VALUES ({key.format(k=at)}, 0)")
        db.close()
        install(self.path)

    def source(self) -> SqliteSource:
        return SqliteSource(SqliteSourceOptions(path=self.path, source_id="s"))

    def schema(self) -> str:
        return "main"

    def change_key(self) -> None:
        with contextlib.closing(connect(self.path)) as db:
            db.execute("CREATE TABLE other (id, k, n, PRIMARY KEY (id, k))")
            db.execute("INSERT INTO other SELECT id, 0, n FROM whole")
            db.execute("DROP TABLE whole")
            db.execute("ALTER TABLE other RENAME TO whole")

    def drop(self) -> None:
        with contextlib.closing(connect(self.path)) as db:
            db.execute("DROP TABLE whole")

    def write(self, number: int, stop: threading.Event, keys: int) -> None:
        choose = random.Random(number)
        db = connect(self.path)
        try:
            while not stop.is_set():
                table, key, where = _changes(self.tables, choose, keys * 3)
                sql = choose.choice(
                    (
                        f"INSERT OR IGNORE INTO {table} VALUES ({key}, 1)",
                        f"UPDATE {table} SET n = n + 1 WHERE {where}",
                        f"DELETE FROM {table} WHERE {where}",
                        f"UPDATE OR IGNORE whole SET id = {choose.randrange(keys)} WHERE id = {choose.randrange(keys)}",
                    )
                )
                with contextlib.suppress(apsw.BusyError):
                    db.execute(sql)
        finally:
            db.close()


@pytest.fixture(params=["sqlite", "mariadb", "postgres", "postgres, one snapshot"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    if request.param == "mariadb":
        return MariadbPlace(request.getfixturevalue("mariadb"), request.getfixturevalue("mariadb_database"))
    return PostgresPlace(
        request.getfixturevalue("postgres_source"),
        request.getfixturevalue("postgres_source_database"),
        load_snapshot="export" if "one" in request.param else "chunk",
    )


class Replay:
    """The rows that a log leads to; each change must find its row as it says that it was."""

    def __init__(self) -> None:
        self.rows: dict[TableName, Counter[Any]] = {}
        self.chunks: Counter[TableName] = Counter()
        self.passed = 0
        self.strict = 0
        self.given_up: tuple[tuple[str, str], ...] = ()
        self._loads: loading.Loads = {}

    def read(self, log: Log) -> None:
        with log.cursor() as cursor:
            while (header := cursor.next_header()) is not None:
                raw = list(cursor.current().payloads())
                mark = mark_of(decode(raw[-1]).metadata)
                if mark is not None:
                    if isinstance(mark.step, LoadEnd):
                        self.given_up = mark.step.given_up
                    self._loads, verdict = loading.step(self._loads, mark, "p")
                    if isinstance(verdict, loading.NotForUs):
                        continue
                    if isinstance(mark.step, LoadChunk):
                        self.chunks[mark.step.table] += 1
                changes = [change for part in raw for change in decode(part).changes]
                left = changes
                if mark is None:
                    left = list(loading.counting(loading.loading(self._loads), changes, Seqno(header.seqno)))
                    self.strict += len(left)
                    self.passed += len(changes) - len(left)
                for change in left:
                    if isinstance(change, Statement):
                        continue
                    rows = self.rows.setdefault((change.table.schema, change.table.table), Counter())
                    if change.before is not None:
                        before = tuple(map(canonical, change.before))
                        assert rows[before], f"seqno {header.seqno}: no row is {change.before}"
                        rows[before] -= 1
                    if change.after is not None:
                        rows[tuple(map(canonical, change.after))] += 1


def strict_replay(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch, *, chunks: int) -> None:
    """Load under writers; each change of the log must find its row as it says that it was."""
    monkeypatch.setattr("tranlog.capture.loading._ROWS_FIRST", ROWS_A_CHUNK)
    monkeypatch.setattr("tranlog.capture.loading._ROWS_MOST", ROWS_A_CHUNK)
    monkeypatch.setattr("tranlog.capture.loading._ROWS_LEAST", ROWS_A_CHUNK)
    rows = chunks * ROWS_A_CHUNK * 2 // 3  # writers delete some
    place.fill(rows)
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            place.write(number, stop, rows + rows // 3)
        except BaseException as exc:
            failures.append(exc)
            raise

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    source = place.source()
    assert isinstance(source, LoadableSource)
    with Log.open(str(folder / "log"), source_id=source.source_id) as log:
        ask(log.path, LoadRequest(load="1", asked_at=0))
        try:
            capture = Capture(source, log)
            watcher = threading.Thread(target=_stop_at_its_end, args=(capture, log.path, writers), daemon=True)
            watcher.start()
            capture.run()
        finally:
            stop.set()
            for writer in writers:
                if writer.ident is not None:
                    writer.join()
        assert not failures
        Capture(source, log).catch_up(wait_s=1.0)
        source.close()
        replay = Replay()
        replay.read(log)
    with contextlib.closing(source.reader()) as reader:
        for found in reader.tables():
            there = Counter(tuple(map(canonical, row)) for row in reader.rows(found))
            assert +replay.rows[found.schema, found.table] == there, found.name
    seen = {table: replay.chunks[place.schema(), table] for table in place.tables}
    assert all(seen[table] == 1 for table in place.at_once), seen
    assert sum(seen.values()) >= chunks, seen
    assert replay.strict
    assert replay.passed


@pytest.mark.integration
def test_each_chunk_stands_where_it_was_read(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict_replay(place, tmp_path, monkeypatch, chunks=10)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)
def test_each_of_200_chunks_stands_where_it_was_read(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict_replay(place, tmp_path, monkeypatch, chunks=200)


def _stop_at_its_end(capture: Capture, log_dir: str, writers: list[threading.Thread]) -> None:
    while not capture.begun:
        time.sleep(0.01)
    for writer in writers:
        writer.start()
    while read_requests(log_dir):
        time.sleep(0.05)
    capture.stop()


@pytest.mark.integration
def test_a_table_that_was_read_whole_is_locked_no_more(place: Place) -> None:
    """Its rows are those of the snapshot, and who drops it waits for nobody; a MariaDB lets go with the snapshot."""
    place.fill(20)
    source = place.source()
    assert isinstance(source, LoadableSource)
    source.start(None)
    with contextlib.closing(source):
        while isinstance(snapshot := source.snapshot(), SnapshotWait):
            time.sleep(0.01)
        with contextlib.closing(snapshot):
            table = snapshot.table((place.schema(), "whole"))
            assert table is not None
            found = list(decoded(snapshot.whole(table), table))
            assert found == list(decoded(snapshot.whole(table), table))
            assert len(found) >= 20
            if not isinstance(place, MariadbPlace):
                place.drop()


@pytest.mark.integration
def test_a_table_without_snapshots_is_named_and_the_others_are_loaded(
    mariadb: MariaDbAddress, mariadb_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mariadb.execute("CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM", database=mariadb_database)
    mariadb.execute("CREATE TABLE good (id INT PRIMARY KEY)", database=mariadb_database)
    mariadb.execute("INSERT INTO plain VALUES (1)", database=mariadb_database)
    mariadb.execute("INSERT INTO good VALUES (1)", database=mariadb_database)
    options = mariadb_options(mariadb, databases=(mariadb_database,))
    source = MariadbSource(options)
    with Log.open(str(tmp_path / "log"), source_id=options.source_id) as log:
        ask(log.path, LoadRequest(load="1", asked_at=0))
        Capture(source, log).catch_up(wait_s=0.5)
        source.close()
        assert read_requests(log.path) == []
        replay = Replay()
        replay.read(log)
    assert replay.chunks == {(mariadb_database, "good"): 1}
    assert f"{mariadb_database}.plain" in caplog.text and "MyISAM" in caplog.text


def skip_what_counts_on(server: MariaDbAddress, file: str, offset: int) -> None:
    """Skip a test at a server that counts GTIDs over an event beyond the limit, as 11.8 does."""
    if server.execute(f"SELECT BINLOG_GTID_POS('{file}', {offset})") != [(None,)]:
        pytest.skip("this server counts GTIDs over an event beyond max_allowed_packet")


@pytest.mark.integration
def test_an_event_beyond_the_packet_s_limit_keeps_no_load_away(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    """The server cannot count the GTIDs up to a place after it; an updated row has two images in its event."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT)", database=mariadb_database)
    mariadb.execute("INSERT INTO t VALUES (1, REPEAT('x', 3000000))", database=mariadb_database)
    ((before,),) = mariadb.execute("SELECT @@global.max_allowed_packet")
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        ((file, offset, *_),) = mariadb.execute("SHOW MASTER STATUS")
        skip_what_counts_on(mariadb, file, offset)
        snapshot = MariadbSnapshot(mariadb_options(mariadb, databases=(mariadb_database,)))
        table = snapshot.table((mariadb_database, "t"))
        assert table is not None
        assert [len(block) for block in snapshot.chunk(table, None, 10)] == [1]
        snapshot.close()
        ((gtids,),) = mariadb.execute("SELECT @@global.gtid_binlog_pos")
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {before}")
        mariadb.execute("FLUSH BINARY LOGS")
    place = snapshot.position
    assert (gtid_text(place.gtids), place.file, place.offset) == (gtids, file, offset)


@pytest.mark.integration
def test_beyond_the_packet_s_limit_a_busy_server_begins_another_file(
    mariadb: MariaDbAddress, mariadb_database: str
) -> None:
    """The binlog's end is past the snapshot before it can be asked for; a user who may not is told what to grant."""
    user = f"u{random.randrange(10**9)}"
    mariadb.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
    mariadb.execute(f"GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO {user}@'%'")
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT)", database=mariadb_database)
    mariadb.execute("CREATE TABLE w (id INT AUTO_INCREMENT PRIMARY KEY)", database=mariadb_database)
    mariadb.execute("INSERT INTO t VALUES (1, REPEAT('x', 3000000))", database=mariadb_database)
    ((before,),) = mariadb.execute("SELECT @@global.max_allowed_packet")
    ((file, offset, *_),) = mariadb.execute("SHOW MASTER STATUS")
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    stopped = threading.Event()

    def take_snapshots(options: MariadbSourceOptions) -> None:
        for _ in range(100):
            MariadbSnapshot(options).close()

    def write() -> None:
        while not stopped.is_set():
            mariadb.execute("INSERT INTO w VALUES " + ", ".join(["()"] * 5), database=mariadb_database)

    writers = [threading.Thread(target=write) for _ in range(4)]
    options = mariadb_options(mariadb, databases=(mariadb_database,))
    try:
        skip_what_counts_on(mariadb, file, offset)
        for writer in writers:
            writer.start()
        with pytest.raises(SourceSetupError, match="may not begin another file") as refused:
            take_snapshots(replace(options, user=user, password="x"))
        assert f"GRANT RELOAD ON *.* TO {user!r}" in str(refused.value)
        # By chance nothing is written around a snapshot, and the server need not begin a file.
        take_snapshots(options)
        snapshot = MariadbSnapshot(options)
        counted = snapshot.table((mariadb_database, "w"))
        assert counted is not None
        rows = sum(map(len, snapshot.chunk(counted, None, 10**6)))
        snapshot.close()
    finally:
        stopped.set()
        for writer in writers:
            if writer.ident is not None:
                writer.join()
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {before}")
        mariadb.execute(f"DROP USER {user}@'%'")
    assert snapshot.position.file > file
    assert rows % 5 == 0


@pytest.mark.integration
def test_a_load_waits_for_open_transactions_and_the_stream_goes_on(
    postgres_source: PostgresServer, postgres_source_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle and a prepared transaction are named; a `--once` ends, a capture that runs goes on when they end."""
    server, database = postgres_source, postgres_source_database
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    options = postgres_options(server, database, source_id=database, identity="set", load_wait_s=0.1)
    source = PostgresSource(options)
    idle, gid = server.connect(database, autocommit=False), f"g {database}"
    try:
        with Log.open(str(tmp_path / "log"), source_id=database) as log:
            Capture(source, log).catch_up(wait_s=0.5)
            ask(log.path, LoadRequest(load="1", asked_at=0))
            idle.execute("INSERT INTO t VALUES (2)")
            run(server, database, f"BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION '{gid}'")
            for blocker in (f"process {idle.info.backend_pid}", f"prepared transaction '{gid}'"):
                told = ""
                while blocker not in told:
                    run(server, database, "INSERT INTO t SELECT max(id) + 10 FROM t")
                    before = log.last_seqno
                    try:
                        Capture(source, log).catch_up(wait_s=0.5)
                    except SourceUnavailableError as exc:
                        told = str(exc)
                assert "open for" in told
                (request,) = read_requests(log.path)
                assert blocker in request.waits_for
                assert log.last_seqno > before, "the stream did not go on"
                if "process" in blocker:
                    idle.commit()
            run(server, database, f"COMMIT PREPARED '{gid}'")
            while read_requests(log.path):
                with contextlib.suppress(SourceUnavailableError):
                    Capture(source, log).catch_up(wait_s=0.5)
            replay = Replay()
            replay.read(log)
            assert replay.chunks == {("public", "t"): 1}
            ((count,),) = server.execute("SELECT count(*) FROM t", database=database)
            assert sum(replay.rows["public", "t"].values()) == count
        ((slots,),) = server.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary")
        assert not slots
    finally:
        idle.close()
        source.close()


@pytest.mark.integration
@pytest.mark.parametrize("taken", ["max_replication_slots", "max_wal_senders"])
def test_a_load_waits_while_others_have_taken_all_slots_or_senders(
    start_postgres: Callable[..., PostgresServer],
    taken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often it is tried no table is given up; once one is free the load goes on."""
    monkeypatch.setattr("tranlog.capture.loading._PAUSE_S", 0.05)
    server = start_postgres(options={**LOGICAL, taken: 2})
    run(server, "postgres", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = PostgresSource(postgres_options(server, "postgres", source_id="s", identity="set"))
    with (
        contextlib.closing(source),
        Log.open(str(tmp_path / "log"), source_id="s") as log,
        contextlib.ExitStack() as stack,
    ):
        Capture(source, log).catch_up(wait_s=0.1)
        with server.connect("postgres") as other, psycopg.connect(server.dsn("postgres"), replication="database"):
            if taken == "max_replication_slots":
                other.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput', true)")
            ask(log.path, LoadRequest(load="1", asked_at=0))
            capture = Capture(source, log)
            running = threading.Thread(target=capture.run)
            running.start()
            stack.callback(running.join)
            stack.callback(capture.stop)
            deadline = time.monotonic() + 60
            while caplog.text.count("is tried again") < 2 * _FAILURES_MAX:
                assert time.monotonic() < deadline and running.is_alive()
                time.sleep(0.05)
            assert taken in caplog.text
        while read_requests(log.path):
            assert time.monotonic() < deadline and running.is_alive()
            time.sleep(0.05)
        stack.close()
        replay = Replay()
        replay.read(log)
    assert replay.chunks == {("public", "t"): 1} and not replay.given_up


@pytest.mark.integration
def test_what_others_do_to_a_mariadb_table_at_this_moment_passes(
    mariadb: MariaDbAddress, mariadb_database: str
) -> None:
    """A lock, a definition that has changed: a load tries the same again, and does not count it."""
    for table in ("locked", "altered"):
        mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", database=mariadb_database)
    with contextlib.closing(MariadbSnapshot(mariadb_options(mariadb, databases=(mariadb_database,)))) as snapshot:
        altered = snapshot.table((mariadb_database, "altered"))
        assert altered is not None
        mariadb.execute("ALTER TABLE altered ADD COLUMN n INT, ALGORITHM = COPY", database=mariadb_database)
        with pytest.raises(SourceUnavailableError, match=r"cannot be read now: .*\.altered: .*definition has changed"):
            list(snapshot.chunk(altered, None, 10))
        locked = snapshot.table((mariadb_database, "locked"))
        assert locked is not None
        with snapshot._connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 1")
        other = mariadb.connect(database=mariadb_database)
        with contextlib.closing(other), other.cursor() as cursor:
            cursor.execute("LOCK TABLES locked WRITE")
            with pytest.raises(SourceUnavailableError, match=r"\.locked: Lock wait timeout"):
                list(snapshot.chunk(locked, None, 10))


@pytest.mark.integration
def test_a_mariadb_that_is_lost_in_the_midst_of_rows_is_one_that_is_away(
    mariadb: MariaDbAddress, mariadb_database: str
) -> None:
    """A load reads the chunk again then, and capture goes on."""
    rows = "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT seq AS id, REPEAT('x', 1000) AS v FROM seq_1_to_30000"
    mariadb.execute(rows, database=mariadb_database)
    with contextlib.closing(MariadbSnapshot(mariadb_options(mariadb, databases=(mariadb_database,)))) as snapshot:
        table = snapshot.table((mariadb_database, "t"))
        assert table is not None
        found = snapshot.whole(table)
        next(found)
        mariadb.execute(f"KILL {snapshot._connection.thread_id()}")
        with pytest.raises(SourceUnavailableError, match="Lost connection"):
            list(found)


@pytest.mark.integration
@pytest.mark.parametrize("how", ["dropped", "killed"])
def test_a_snapshot_that_is_wanted_no_more_leaves_no_slot_behind_open_transactions(
    postgres_source: PostgresServer, postgres_source_database: str, how: str
) -> None:
    """A slot that waits holds one of the server's, and VACUUM back; a capture that is killed can cancel nothing."""
    server, database = postgres_source, postgres_source_database
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY)")
    source = PostgresSource(postgres_options(server, database, source_id=database, identity="set"))
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND temporary"
    with contextlib.closing(source), server.connect(database, autocommit=False) as idle:
        source.start(None)
        idle.execute("INSERT INTO t VALUES (1)")
        while not server.execute(slots, database=database):
            assert isinstance(source.snapshot(), SnapshotWait)
            time.sleep(0.01)
        if how == "killed":
            statement = source._snapshots._asked
            assert statement is not None
            statement._connection.close()
        source.drop_snapshot()
        deadline = time.monotonic() + 10.0
        while server.execute(slots, database=database):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.integration
def test_a_table_that_is_rewritten_after_its_snapshot_is_not_taken_for_empty(
    postgres_source: PostgresServer, postgres_source_database: str
) -> None:
    """PostgreSQL's manual, "Caveats" of concurrency control: an older snapshot sees no row of it."""
    server, database = postgres_source, postgres_source_database
    for table in ("cut", "changed", "made_anew", "kept"):
        run(server, database, f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    with contextlib.closing(PostgresSource(postgres_options(server, database, identity="set"))) as source:
        source.start(None)
        while isinstance(snapshot := source.snapshot(), SnapshotWait):
            time.sleep(0.01)
        run(server, database, "TRUNCATE cut", "ALTER TABLE changed ALTER id TYPE bigint")
        run(server, database, "DROP TABLE made_anew", "CREATE TABLE made_anew (id int PRIMARY KEY)")
        with contextlib.closing(snapshot):
            assert snapshot.table(("public", "made_anew")) is None
            for name in ("cut", "changed"):
                found = snapshot.table(("public", name))
                assert found is not None
                with pytest.raises(
                    SourceUnavailableError, match=rf"cannot be read now: public\.{name} was emptied, rewritten"
                ):
                    list(snapshot.chunk(found, None, 10))
            found = snapshot.table(("public", "kept"))
            assert found is not None
            assert list(decoded(snapshot.chunk(found, (1,), 10), found)) == [(2,)]


@pytest.mark.integration
def test_a_postgres_table_that_is_locked_is_named(
    postgres_source: PostgresServer, postgres_source_database: str
) -> None:
    """Nothing is wrong with the server, and nothing is to be started there."""
    server, database = postgres_source, postgres_source_database
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(PostgresAtOnce(postgres_options(server, database), ())) as copy:
        (table,) = copy.tables()
        copy._session.connection.execute("SET LOCAL lock_timeout = 1")
        with server.connect(database, autocommit=False) as other:
            other.execute("LOCK t")
            with pytest.raises(SourceUnavailableError, match=r"cannot be read now: public\.t stays locked there"):
                list(copy.rows(table))


@pytest.mark.integration
def test_a_name_that_leads_to_another_table_after_the_snapshot_is_not_read(
    postgres_source: PostgresServer, postgres_source_database: str
) -> None:
    """A table of that name, and of columns, is read by name: the rows would be those of what has taken its place."""
    server, database = postgres_source, postgres_source_database
    for table in ("t", "u", "swapped", "kept"):
        run(server, database, f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b int)")
        run(server, database, f"INSERT INTO {table} VALUES (1, 2, 3)")
    run(server, database, "CREATE SCHEMA one", "CREATE SCHEMA two")
    run(
        server,
        database,
        *[f"CREATE TABLE {one}.t (id int PRIMARY KEY); INSERT INTO {one}.t VALUES (1)" for one in ("one", "two")],
    )
    options = postgres_options(server, database, identity="set")
    with contextlib.closing(PostgresSource(options)) as source, contextlib.closing(PostgresAtOnce(options, ())) as copy:
        copied = {table.name: table for table in copy.tables()}
        source.start(None)
        while isinstance(snapshot := source.snapshot(), SnapshotWait):
            time.sleep(0.01)
        run(server, database, "ALTER TABLE t RENAME TO old; ALTER TABLE u RENAME TO t")
        run(server, database, "ALTER TABLE swapped RENAME a TO c; ALTER TABLE swapped RENAME b TO a")
        run(server, database, "ALTER TABLE swapped RENAME c TO b; ALTER TABLE kept ADD c int")
        run(server, database, "ALTER SCHEMA one RENAME TO three; ALTER SCHEMA two RENAME TO one")
        with contextlib.closing(snapshot):
            for schema, name in (("public", "t"), ("public", "swapped"), ("one", "t")):
                found = snapshot.table((schema, name))
                assert found is not None
                with pytest.raises(SourceUnavailableError, match="renamed"):
                    list(snapshot.chunk(found, None, 10))
                with pytest.raises(SourceUnavailableError, match="renamed"):
                    list(snapshot.whole(found))
                with pytest.raises(SourceUnavailableError, match="renamed"):
                    list(copy.rows(copied[f"{schema}.{name}"]))
            found = snapshot.table(("public", "kept"))
            assert found is not None
            assert list(decoded(snapshot.chunk(found, None, 10), found)) == [(1, 2, 3)]


@pytest.mark.integration
@pytest.mark.parametrize("what", ["dropped", "another key"])
@pytest.mark.parametrize("place", ["sqlite", "mariadb", "postgres"], indirect=True)
def test_a_table_that_changes_in_the_middle_is_given_up_and_the_others_are_loaded(
    place: Place, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it, with the command that loads it again; capture and the stream go on."""
    for name in ("FIRST", "MOST", "LEAST"):
        monkeypatch.setattr(f"tranlog.capture.loading._ROWS_{name}", ROWS_A_CHUNK)
    place.fill(3 * ROWS_A_CHUNK)
    source, schema = place.source(), place.schema()
    with Log.open(str(tmp_path / "log"), source_id=source.source_id) as log:
        ask(log.path, LoadRequest(load="1", tables=(f"{schema}.whole", f"{schema}.words"), asked_at=0))
        real = log.append

        def append(fragment: Fragment) -> object:
            mark = mark_of(decode(fragment.payload).metadata)
            if mark is not None and isinstance(mark.step, LoadChunk):
                give_order(log.path, "1", paused=True)
            return real(fragment)

        log.append = append  # type: ignore[method-assign,assignment]
        Capture(source, log).catch_up(wait_s=1.0)
        log.append = real  # type: ignore[method-assign]
        (request,) = read_requests(log.path)
        assert request.progress.rows == ROWS_A_CHUNK
        (place.drop if what == "dropped" else place.change_key)()
        give_order(log.path, "1", paused=False)
        Capture(source, log).catch_up(wait_s=1.0)
        source.close()
        assert read_requests(log.path) == []
        replay = Replay()
        replay.read(log)
    assert replay.chunks == {(schema, "whole"): 1, (schema, "words"): 1}
    assert [name for name, _ in replay.given_up] == [f"{schema}.whole"]
    assert f"load it again: tranlog load --replace --tables {schema}.whole" in caplog.text
    why = "it is not there any more" if what == "dropped" else "its primary key changed during the load"
    assert why in replay.given_up[0][1]


class Family:
    """Two tables at a SQLite source, where the child refers to its parent, and at a server that checks that."""

    def __init__(self, folder: Path, target: TargetOptions) -> None:
        self.path, self.log, self.options = str(folder / "source.db"), str(folder / "log"), target
        with apsw.Connection(self.path) as db:
            db.execute("CREATE TABLE above (id INTEGER PRIMARY KEY, n INTEGER)")
            db.execute("CREATE TABLE a_child (id INTEGER PRIMARY KEY, up INTEGER REFERENCES above (id))")
            db.executemany("INSERT INTO above VALUES (?, 0)", [(number,) for number in range(120)])
            db.executemany("INSERT INTO a_child VALUES (?, ?)", [(number, number % 120) for number in range(240)])
        db.close()
        install(self.path)
        with contextlib.closing(SqliteTables(self.path)) as reader:
            self.tables = reader.tables()
        with contextlib.closing(open_target(target)) as opened:
            opened.positions.ensure_tables()
            for table in self.tables:
                opened.rows.create_table(table)

    def write(self, choose: random.Random) -> None:
        with contextlib.closing(connect(self.path)) as db:
            key = choose.randrange(150)
            match choose.randrange(4):
                case 0:
                    db.execute("INSERT OR IGNORE INTO above VALUES (?, 1)", (key,))
                    db.execute("INSERT OR IGNORE INTO a_child VALUES (?, ?)", (key + 240, key))
                case 1:
                    db.execute("UPDATE above SET n = n + 1 WHERE id = ?", (key,))
                case 2:
                    with db:
                        db.execute("DELETE FROM a_child WHERE up = ?", (key,))
                        db.execute("DELETE FROM above WHERE id = ?", (key,))
                case _:
                    db.execute("UPDATE a_child SET up = (SELECT min(id) FROM above) WHERE id = ?", (key,))

    def capture(self) -> None:
        source = SqliteSource(SqliteSourceOptions(path=self.path, source_id="s"))
        with Log.open(self.log, source_id="s") as log:
            choose, real = random.Random(5), log.commit

            def commit() -> Seqno:
                self.write(choose)
                return real()

            log.commit = commit  # type: ignore[method-assign,assignment]
            capture = Capture(source, log)
            while not capture.begun or read_requests(log.path):
                capture.catch_up()
            log.commit = real  # type: ignore[method-assign]
            capture.catch_up()
        source.close()

    def apply(self) -> list[object]:
        plan = ShardPlan(channels=2)
        with Log.open_for_upkeep(self.log) as log:
            last = log.last_seqno
        results = run_threads(tasks_for(self.options, Path(self.log), plan, take(self.options, plan), until=last))
        return [result.error for result in results if result.end is not TaskEnd.LIMIT]

    def check(self) -> None:
        reader, target = SqliteTables(self.path), open_target(self.options)
        for table in self.tables:
            assert sorted(map(repr, reader.rows(table))) == sorted(map(repr, target.rows.read(table))), table.name
        reader.close()
        target.close()


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_foreign_keys_at_the_target_hold_during_a_load(
    request: pytest.FixtureRequest,
    kind: Literal["postgres", "mariadb"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is referred to is loaded first, and emptied last."""
    for name in ("FIRST", "MOST", "LEAST"):
        monkeypatch.setattr(f"tranlog.capture.loading._ROWS_{name}", ROWS_A_CHUNK)
    names = ("postgres", "postgres_database") if kind == "postgres" else ("mariadb_target", "mariadb_target_database")
    server, database = (request.getfixturevalue(name) for name in names)
    family = Family(tmp_path, TargetOptions(kind=kind, dsn=server.dsn(database)))
    with contextlib.closing(open_target(family.options)) as target:
        rows = target.rows
        assert isinstance(rows, SqlRows)
        child, above = (rows.dialect.table_name(table) for table in sorted(family.tables, key=lambda one: one.table))
        rows.session.run(f"ALTER TABLE {child} ADD CONSTRAINT up_is_there FOREIGN KEY (up) REFERENCES {above} (id)")
    Log.open(family.log, source_id="s").close()
    ask(family.log, LoadRequest(load="1", asked_at=0))
    family.capture()
    assert family.apply() == []
    family.check()
    ask(family.log, LoadRequest(load="2", asked_at=0, tables=("main.above", "main.a_child"), replace=True))
    family.capture()
    assert family.apply() == []
    family.check()
    ask(family.log, LoadRequest(load="3", asked_at=0, tables=("main.above",), replace=True))
    family.capture()
    told = [str(error) for error in family.apply() if isinstance(error, TargetTableError)]
    assert len(told) == 1 and "Load the tables that refer to it in the same load" in told[0]
    assert "or of a circle: drop it here, start again" in told[0]
