"""Gaps from real servers: what becomes one, what ends capture as before, and which rows stand in it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fix_mariadb_source import Follower, Transaction, options_for, run
from fix_pipeline import run_threads, take, tasks_for
from fix_postgres_source import PostgresFollower
from fix_postgres_source import options_for as postgres_options
from fix_postgres_source import run as postgres_run
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, read_requests
from tranlog.capture.loading import Loading
from tranlog.change import Fragment
from tranlog.errors import TargetTableError, TranlogError, UnsupportedEventError
from tranlog.gaps import GAP, TableGap, gap_of
from tranlog.ids import Gtid
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.filters.filters import Filter, Rename
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.loading import read_stored, waiting
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbAddress, PostgresAddress, PostgresServer

pytestmark = pytest.mark.integration
STATEMENTS = "SET binlog_format = STATEMENT"
ROWS = "SET binlog_format = ROW"


@pytest.fixture
def follow(mariadb: MariaDbAddress, mariadb_database: str) -> Iterator[Callable[..., Follower]]:
    """Begin to follow the test's database, in which t, u and v are tables."""
    with contextlib.ExitStack() as opened:

        def begin(**options: object) -> Follower:
            for table in "tuv":
                run(mariadb, mariadb_database, f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, b BLOB)")
            follower = Follower(options_for(mariadb, databases=(mariadb_database,), **options)).start()
            opened.callback(follower.close)
            return follower

        yield begin


def gap(transaction: Transaction) -> TableGap:
    found = gap_of(tuple(transaction.metadata.items()))
    assert found is not None
    assert transaction.shard == UNKNOWN_SHARD and transaction.last.tables is None
    return found


def all_of(follower: Follower) -> list[Transaction]:
    """Return what has come since, gaps without a row among it."""
    before = len(follower.transactions)
    follower.catch_up()
    return [one for one in follower.transactions[before:] if not one.is_noop or GAP in one.metadata]


def test_a_statement_is_a_gap_of_its_table_and_the_others_rows_stand_in_it(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    follower = follow()
    run(
        mariadb,
        mariadb_database,
        "BEGIN",
        "INSERT INTO t VALUES (1, 1, '')",
        "INSERT INTO u VALUES (1, 1, '')",
        "COMMIT",
        STATEMENTS,
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "INSERT INTO v VALUES (1, 1, '')",
        ROWS,
        "UPDATE u SET n = 2",
    )
    _, first, second, after = all_of(follower)
    assert gap(first).tables == ((mariadb_database, "t"),)
    assert "'UPDATE t SET n = n + 1 WHERE id = 1' stands in the place of rows" in gap(first).reason
    assert gap(second).tables == ((mariadb_database, "v"),)
    assert first.is_noop and not first.rows
    assert [one.after for one in after.rows] == [(1, 2, b"")]
    # One transaction of both forms: rows of the gap's table, before the statement and after it, are left out.
    with contextlib.closing(mariadb.connect(mariadb_database)) as connection, connection.cursor() as cursor:
        for statement in (
            "SET binlog_format = MIXED",
            "BEGIN",
            "INSERT INTO u VALUES (3, 7, UUID())",  # unsafe as a statement, so rows
            "INSERT INTO t VALUES (3, 7, UUID())",
            "UPDATE t SET n = 8 WHERE id = 3",
            "COMMIT",
        ):
            cursor.execute(statement)
    found = all_of(follower)
    assert gap(found[-1]).tables == ((mariadb_database, "t"),)
    assert [(one.table.table, one.after[0]) for one in found[-1].rows if one.after] == [("u", 3)]
    assert not found[-1].is_noop


def test_from_a_postgres_a_transaction_beyond_the_limit_is_a_gap_of_its_tables(
    postgres_source: PostgresServer, postgres_source_database: str, follow_postgres: Callable[..., PostgresFollower]
) -> None:
    """In one piece or streamed while open; what a savepoint took back is of no table, and a TRUNCATE is carried."""
    server, database = postgres_source, postgres_source_database
    for table in "tuvw":
        postgres_run(server, database, f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, b TEXT)")
    options = postgres_options(server, database, identity="set", transaction_bytes_max=50_000)
    follower = follow_postgres(options)
    filled = "SELECT g, 0, repeat('x', 4000) FROM generate_series(1, 40) g"
    postgres_run(
        server,
        database,
        f"INSERT INTO u VALUES (1, 1, ''); TRUNCATE w; INSERT INTO t {filled} LIMIT 13",
        "INSERT INTO u VALUES (2, 1, '')",
        f"BEGIN; INSERT INTO v {filled}; SAVEPOINT one; INSERT INTO w {filled}; ROLLBACK TO one; COMMIT",
        "DELETE FROM v WHERE id = 3",
    )
    first, second, third, fourth = read_gaps(follower, 4)
    assert set(gap(first).tables) == {("public", "u"), ("public", "t")}
    assert "transaction_bytes_max allows 50000" in gap(first).reason
    assert not first.rows and first.texts == ['TRUNCATE TABLE "public"."w"'] and not first.is_noop
    assert [one.after for one in second.rows] == [(2, 1, "")]
    assert gap(third).tables == (("public", "v"),)
    assert third.is_noop
    assert [one.before[0] for one in fourth.rows if one.before] == [3]


def test_from_a_postgres_a_change_without_the_row_as_it_was_is_a_gap_of_its_table(
    postgres_source: PostgresServer, postgres_source_database: str, follow_postgres: Callable[..., PostgresFollower]
) -> None:
    """Its changes in that transaction after it are left out, the others' stay; also of a table that is just made."""
    server, database = postgres_source, postgres_source_database
    for table in "tu":
        postgres_run(server, database, f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)")
    follower = follow_postgres(postgres_options(server, database, identity="set"))
    postgres_run(
        server,
        database,
        "INSERT INTO t VALUES (1, 1); INSERT INTO u VALUES (1, 1)",
        "INSERT INTO u VALUES (2, 2); ALTER TABLE t REPLICA IDENTITY DEFAULT; UPDATE t SET n = 2; "
        "ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET n = 3; INSERT INTO u VALUES (3, 3)",
        "UPDATE t SET n = 4",
        "CREATE TABLE late (id INT PRIMARY KEY, n INT); INSERT INTO late VALUES (1, 1); UPDATE late SET n = 2",
    )
    _, second, third, late = read_gaps(follower, 4)
    assert gap(second).tables == (("public", "t"),)
    assert gap(second).reason.startswith("a change of public.t in transaction ")
    assert [(one.table.table, one.after) for one in second.rows] == [("u", (2, 2)), ("u", (3, 3))]
    assert [(one.before, one.after) for one in third.rows] == [((1, 3), (1, 4))]
    assert gap(late).tables == (("public", "late"),)


def test_from_a_postgres_a_row_that_enters_a_filter_without_its_value_is_a_gap_of_its_table(
    postgres_source: PostgresServer, postgres_source_database: str, follow_postgres: Callable[..., PostgresFollower]
) -> None:
    """The server makes the UPDATE an INSERT, and has not the long value that did not change."""
    server, database = postgres_source, postgres_source_database
    postgres_run(
        server,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE PUBLICATION mine FOR TABLE t WHERE (id > 10)",
    )
    follower = follow_postgres(postgres_options(server, database, identity="key", publication="mine"))
    postgres_run(
        server,
        database,
        "INSERT INTO t VALUES (1, 'short'), (2, repeat('x', 9000))",
        "UPDATE t SET id = 11 WHERE id = 1",
        "UPDATE t SET id = 12 WHERE id = 2",
    )
    first, second = read_gaps(follower, 2)
    assert [row.after for row in first.rows] == [(11, "short")]
    assert gap(second).tables == (("public", "t"),)


def read_gaps(follower: PostgresFollower, count: int) -> list[Transaction]:
    """Return so many transactions as they come, gaps without a row among them."""
    before, deadline = len(follower.transactions), time.monotonic() + 60
    while True:
        found = [one for one in follower.transactions[before:] if not one.is_noop or GAP in one.metadata]
        if len(found) >= count:
            assert len(found) == count
            return found
        assert time.monotonic() < deadline, found
        follower.read(0.5)


def test_a_transaction_beyond_the_limit_is_a_gap_of_its_tables(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    follower = follow(transaction_bytes_max=100_000)
    run(
        mariadb,
        mariadb_database,
        "BEGIN",
        "INSERT INTO u VALUES (1, 1, '')",
        "INSERT INTO t SELECT seq, 0, REPEAT('x', 4000) FROM seq_1_to_100",
        "COMMIT",
        "INSERT INTO u VALUES (2, 1, '')",
        "XA START 'x'",
        "INSERT INTO v SELECT seq, 0, REPEAT('x', 4000) FROM seq_1_to_100",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
    )
    first, second, third = all_of(follower)
    assert set(gap(first).tables) == {(mariadb_database, "u"), (mariadb_database, "t")}
    assert "transaction_bytes_max allows 100000" in gap(first).reason
    assert first.is_noop
    assert [one.after for one in second.rows] == [(2, 1, b"")]
    assert gap(third).tables == ((mariadb_database, "v"),)


@pytest.mark.parametrize(
    "before",
    [
        "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW SET NEW.n = 9",
        "DROP TABLE t; CREATE VIEW t AS SELECT * FROM u",
        "DROP TABLE t; CREATE TABLE t (id INT PRIMARY KEY, n INT, b BLOB) ENGINE = MyISAM",
    ],
    ids=["trigger", "view", "engine"],
)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_table_that_changes_others_with_it_ends_capture(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower], before: str, gone: bool
) -> None:
    """Also where it is not there any more when capture comes to the statement."""
    follower = follow()
    run(mariadb, mariadb_database, *before.split("; "), STATEMENTS, "INSERT INTO t (id, n) VALUES (5, 6)", ROWS)
    if gone:
        after = {
            "CREATE TR": ["DROP TRIGGER r"],
            "DROP TABL": ["RENAME TABLE t TO old", "CREATE TABLE t (id INT PRIMARY KEY, n INT, b BLOB)"],
        }
        run(mariadb, mariadb_database, *after[before[:9]])
    with pytest.raises(UnsupportedEventError, match="stands in the place of the rows that it changed"):
        follower.catch_up()


def test_a_statement_of_several_tables_and_the_option_stop_end_capture(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    follower = follow()
    follower.read(1.0)  # which tells where it stands
    at = follower.transactions[-1].event_id
    run(mariadb, mariadb_database, STATEMENTS, "INSERT INTO t SELECT * FROM u", "DELETE FROM v")
    with pytest.raises(UnsupportedEventError, match="INSERT INTO t SELECT"):
        follower.catch_up()
    follower.close()
    run(mariadb, mariadb_database, STATEMENTS, "DELETE FROM v")
    stopped = Follower(options_for(mariadb, databases=(mariadb_database,), on_gap="stop")).start(at)
    with contextlib.closing(stopped.source), pytest.raises(UnsupportedEventError, match="stands in the place"):
        stopped.catch_up()


def test_statements_before_a_harmless_change_of_others_are_gaps(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Capture that is behind: what was done to other tables since is no reason to end."""
    follower = follow()
    run(
        mariadb,
        mariadb_database,
        STATEMENTS,
        *[f"INSERT INTO t VALUES ({key}, 0, '')" for key in range(5)],
        "FLUSH BINARY LOGS",
        "ALTER TABLE u ADD COLUMN more INT",
        "DELETE FROM v",
    )
    found = [one for one in all_of(follower) if GAP in one.metadata]
    assert [gap(one).tables for one in found] == [((mariadb_database, "t"),)] * 5 + [((mariadb_database, "v"),)]


class Shop:
    """Tables of a server with a foreign key, the log that they are captured into, and a PostgreSQL with that key."""

    def __init__(
        self, options: SourceOptions, schema: str, execute: Callable[..., None], folder: Path, dsn: str
    ) -> None:
        self.options, self.schema, self.execute, self.log = options, schema, execute, str(folder / "log")
        self.target = TargetOptions(kind="postgres", dsn=dsn)
        execute(
            "CREATE TABLE parent (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE child (id INT PRIMARY KEY, of INT NOT NULL, FOREIGN KEY (of) REFERENCES parent (id))",
            "CREATE TABLE other (id INT PRIMARY KEY, n INT)",
            "INSERT INTO parent VALUES (1, 0), (2, 0)",
            "INSERT INTO child VALUES (1, 1)",
            "INSERT INTO other VALUES (1, 0)",
        )
        with closing(source_kind(options.kind).tables(options)) as reader:
            self.tables = {table.table: table for table in reader.tables()}
        with closing(open_target(self.target)) as target:
            target.positions.ensure_tables()
            for table in self.tables.values():
                target.rows.create_table(table)
            assert isinstance(target.rows, SqlRows)
            where = f'"{schema}"'
            target.rows.session.run(f"ALTER TABLE {where}.child ADD FOREIGN KEY (of) REFERENCES {where}.parent (id)")

    def capture(self, load: tuple[str, ...] | None = ()) -> None:
        """Capture what is there, and a load that follows from it."""
        kind = source_kind(self.options.kind)
        with closing(kind.open(self.options)) as source, Log.open(self.log, source_id="shop") as log:
            if log.last_event_id() is None and not read_requests(self.log):
                ask(self.log, LoadRequest(load="1", asked_at=0))
            Capture(source, log, load=load).catch_up(wait_s=1.0)

    def metadata(self) -> list[dict[str, str]]:
        """Return the metadata of each transaction, by seqno."""
        with LogReader.open(self.log) as reader, reader.cursor() as cursor:
            return [dict(decode(list(one.payloads())[-1]).metadata) for one in iter(cursor.next, None)]

    def apply(
        self, channels: int, until: int | None = None, *, filters: tuple[Filter, ...] = ()
    ) -> TranlogError | None:
        """Apply with so many channels; return the error of the first that has one."""
        plan = ShardPlan(channels=channels, by=ShardBy.TABLE)
        token = take(self.target, plan)
        with LogReader.open(self.log) as reader:
            until = reader.range().last_seqno if until is None else until
        tasks = tasks_for(self.target, Path(self.log), plan, token, until=until, filters=filters)
        return next((one.error for one in run_threads(tasks) if one.error is not None), None)

    def rows(self) -> dict[str, set[tuple[object, ...]]]:
        with closing(open_target(self.target)) as target:
            return {name: set(target.rows.read(table)) for name, table in self.tables.items()}

    def source_rows(self) -> dict[str, set[tuple[object, ...]]]:
        with closing(source_kind(self.options.kind).tables(self.options)) as reader:
            return {table.table: set(reader.rows(table)) for table in reader.tables()}

    def waiting(self) -> dict[str, str]:
        with closing(open_target(self.target)) as target:
            return waiting(read_stored(target.positions.read_loads("p")))


@pytest.fixture
def shop(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    tmp_path: Path,
) -> Shop:
    options = options_for(mariadb, source_id="shop", databases=(mariadb_database,))
    execute = partial(run, mariadb, mariadb_database)
    return Shop(options, mariadb_database, execute, tmp_path, postgres.dsn(postgres_database))


@pytest.fixture
def postgres_shop(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    tmp_path: Path,
) -> Shop:
    """The same at a PostgreSQL, whose tables get REPLICA IDENTITY FULL by capture's start."""
    options = postgres_options(postgres_source, postgres_source_database, source_id="shop", identity="set")
    execute = partial(postgres_run, postgres_source, postgres_source_database)
    execute("CREATE PUBLICATION tranlog_shop FOR ALL TABLES")
    return Shop(options, "public", execute, tmp_path, postgres.dsn(postgres_database))


POSTGRES_CHANGES = (
    "INSERT INTO other VALUES (2, 0)",
    "INSERT INTO other VALUES (3, 0); ALTER TABLE parent REPLICA IDENTITY DEFAULT; UPDATE parent SET n = n + 1; "
    "ALTER TABLE parent REPLICA IDENTITY FULL; UPDATE parent SET n = n + 1",
    "INSERT INTO parent VALUES (3, 7)",
    "INSERT INTO child VALUES (2, 3)",
    "UPDATE other SET n = 5",
)
CHANGES = (
    "INSERT INTO other VALUES (2, 0)",
    STATEMENTS,
    "UPDATE parent SET n = n + 1",
    ROWS,
    "INSERT INTO parent VALUES (3, 7)",
    "INSERT INTO child VALUES (2, 3)",
    "UPDATE other SET n = 5",
)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_load_follows_by_itself_with_what_foreign_keys_join(shop: Shop, channels: int) -> None:
    check_load_follows(shop, CHANGES, channels)


def test_a_load_follows_from_a_postgres(postgres_shop: Shop) -> None:
    """A change without the row as it was; the row of another table in its transaction is applied."""
    check_load_follows(postgres_shop, POSTGRES_CHANGES, 3)


def check_load_follows(shop: Shop, changes: tuple[str, ...], channels: int) -> None:
    shop.capture()
    assert shop.apply(channels) is None
    before = shop.rows()
    assert before == shop.source_rows()
    shop.execute(*changes)
    shop.capture()
    told = shop.metadata()
    (at,) = [seqno for seqno, one in enumerate(told) if GAP in one]
    begun = next(seqno for seqno, one in enumerate(told) if seqno > at and "load_step" in one)
    assert shop.apply(channels, begun - 1) is None
    assert list(shop.waiting()) == [f"{shop.schema}.child", f"{shop.schema}.parent"]
    assert shop.rows() == {**before, "other": shop.source_rows()["other"]}
    assert shop.apply(channels) is None
    assert shop.waiting() == {}
    assert shop.rows() == shop.source_rows()


def test_without_such_a_load_the_command_is_named_and_does_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.capture(None)
    assert shop.apply(1) is None
    shop.execute(*CHANGES)
    shop.capture(None)
    assert f"tranlog load --replace --tables {shop.schema}.parent " in caplog.text
    assert shop.apply(1) is None
    (text,) = {text.rpartition(": ")[2] for text in shop.waiting().values()}
    names = f"{shop.schema}.child,{shop.schema}.parent"
    assert text == f"tranlog load --replace --tables {names}"
    ask(shop.log, LoadRequest(load="2", tables=tuple(names.split(",")), replace=True, asked_at=0))
    shop.capture(None)
    assert shop.apply(1) is None
    assert shop.waiting() == {}
    assert shop.rows() == shop.source_rows()


def test_with_filters_that_rename_tables_a_join_is_refused_by_name(shop: Shop) -> None:
    shop.capture()
    shop.execute(*CHANGES)
    shop.capture()
    error = shop.apply(2, filters=(Rename(table="no.such", to="another"),))
    assert isinstance(error, TargetTableError)
    assert f"foreign keys join {shop.schema}.child to it here, and filters rename tables" in str(error)
    assert error.seqno == [GAP in one for one in shop.metadata()].index(True)


@pytest.mark.parametrize("place", ["before", "asked", "appended", "durable"])
def test_capture_killed_over_a_gap_goes_on(shop: Shop, place: str) -> None:
    """By kill -9: before all of it, before it is in the log, before it is durable there, before its load begins."""
    shop.capture()
    shop.execute(*CHANGES)
    child = os.fork()
    if not child:
        try:
            dies_at(place)
            shop.capture()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    shop.capture()
    assert len([one for one in shop.metadata() if GAP in one]) == 1
    assert not read_requests(shop.log)
    assert shop.apply(2) is None
    assert shop.waiting() == {}
    assert shop.rows() == shop.source_rows()


def dies_at(place: str) -> None:
    """Have this process killed at a place of its next gap."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    note, append, turn = Loading.note_gap, Log.append, Loading.goes_on

    def notes(self: Loading, fragment: Fragment) -> None:
        at_gap = gap_of(decode(fragment.payload).metadata) is not None
        if at_gap and place == "before":
            die()
        note(self, fragment)
        if at_gap and place == "asked":
            die()

    def appends(self: Log, fragment: Fragment) -> Gtid:
        found = append(self, fragment)
        if place == "appended" and fragment.last and gap_of(decode(fragment.payload).metadata) is not None:
            die()
        return found

    def goes_on(self: Loading) -> bool:
        if place == "durable":
            die()
        return turn(self)

    Loading.note_gap, Log.append, Loading.goes_on = notes, appends, goes_on  # type: ignore[method-assign, assignment]
