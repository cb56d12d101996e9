"""`tranlog doctor` at real servers: each check where it is right, where it is wrong, and after what it says was done.

Proves: what is wrong, and the statement or command that mends it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fix_mariadb_source import Follower
from fix_mariadb_source import options_for as mariadb_options
from fix_pipeline import run_threads, take, tasks_for
from fix_postgres_source import LOGICAL, PostgresFollower
from fix_postgres_source import options_for as postgres_options
from tranlog.change import Column, Op, RowChange, Statement, TableMap
from tranlog.clock import SystemClock
from tranlog.errors import TargetTableError, TargetUnavailableError
from tranlog.findings import CheckResult, Severity, compare_clocks
from tranlog.log.writing.log import Log
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.upkeep.checks import examine_target
from tranlog.service.commands.cli import main
from tranlog.source.kinds import CapturedUpTo, SourceOptions, source_kind
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.packer import pack
from tranlog.source.postgres import PostgresSourceOptions
from tranlog.source.postgres.connection import PostgresControl
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import BehindError, Target
from tranlog.testing.servers import Address, MariaDbServer, PostgresServer, free_port
from tranlog.types import LogicalType

pytestmark = pytest.mark.integration


class Shifted(SystemClock):
    """A machine's clock that is an hour late."""

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


def look(options: SourceOptions, subject: str, captured: CapturedUpTo | None = None) -> CheckResult:
    """Return the worst that was found of a subject."""
    found = list(source_kind(options.kind).examine(options, SystemClock(), captured))
    order = list(Severity)
    return max((one for one in found if one.subject == subject), key=lambda one: order.index(one.severity))


def of_user(dsn: str, user: str) -> str:
    """Return a URL of a user without a password."""
    scheme, _, rest = dsn.partition("://")
    return f"{scheme}://{user}@{rest.partition('@')[2]}"


def purge(server: MariaDbServer) -> None:
    """Have the server forget all files of its binlog but a new one. It keeps one while a follower's thread reads it."""
    server.execute("FLUSH BINARY LOGS")
    newest = server.execute("SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + 100
    while len(server.execute("SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        time.sleep(0.1)


def statements(remedy: str) -> list[str]:
    """Return the statements of a remedy: `Run at the source: A; B; and ...`."""
    parts = [part.strip() for part in remedy.partition(": ")[2].replace(", or ", ";; or ").split(";")]
    return [part for part in parts if part[:1].isupper()]


def mended(server: Address, options: SourceOptions, subject: str, database: str = "") -> None:
    """Do what the finding says; then all is well."""
    found = look(options, subject)
    assert found.severity is not Severity.FINE and found.remedy
    for statement in statements(found.remedy):
        server.execute(statement, database=database)
    assert look(options, subject).severity is Severity.FINE


# --- a MariaDB as source -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as found:
        found.execute("CREATE DATABASE shop")
        yield found


@pytest.fixture
def options(server: MariaDbServer) -> MariadbSourceOptions:
    return mariadb_options(server, databases=("shop",))


def test_a_mariadb_that_is_set_up_has_nothing_wrong(options: MariadbSourceOptions) -> None:
    found = list(source_kind("mariadb").examine(options, SystemClock(), None))
    assert {one.severity for one in found} == {Severity.FINE}
    assert [one.subject for one in found] == [
        *("connection", "settings", "clock", "rights", "foreign keys", "retention")
    ]


def test_a_mariadb_that_is_away(options: MariadbSourceOptions) -> None:
    (found,) = source_kind("mariadb").examine(replace(options, port=free_port()), SystemClock(), None)
    assert (found.subject, found.severity) == ("connection", Severity.WRONG)


def test_the_form_of_the_binlog(server: MariaDbServer, options: MariadbSourceOptions) -> None:
    server.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    server.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
    mended(server, options, "settings")


def test_the_rights_of_a_replica(server: MariaDbServer, options: MariadbSourceOptions) -> None:
    server.execute("CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
    reader = replace(options, user="reader", password="x")
    assert "REPLICATION SLAVE, BINLOG MONITOR or REPLICATION CLIENT, SELECT on `shop`.*" in look(reader, "rights").text
    mended(server, reader, "rights")


def test_foreign_keys_that_change_rows(server: MariaDbServer, options: MariadbSourceOptions) -> None:
    server.execute("CREATE TABLE shop.a (id INT PRIMARY KEY)")
    server.execute(
        "CREATE TABLE shop.b (id INT PRIMARY KEY, CONSTRAINT f FOREIGN KEY (id) REFERENCES a (id) ON DELETE CASCADE)"
    )
    found = look(options, "foreign keys")
    assert found.severity is Severity.WRONG and "f of shop.b to a" in found.text and "DROP FOREIGN KEY" in found.remedy
    assert look(replace(options, cascades="allow"), "foreign keys").severity is Severity.FINE
    server.execute("DROP TABLE shop.b")
    assert look(options, "foreign keys").severity is Severity.FINE


def test_a_binlog_that_is_purged(server: MariaDbServer, options: MariadbSourceOptions) -> None:
    server.execute("CREATE TABLE shop.c (id INT PRIMARY KEY)")
    with closing(Follower(options).start()) as follower:
        server.execute("INSERT INTO shop.c VALUES (1)")
        follower.catch_up()
        event_id = follower.transactions[-1].event_id
    captured = CapturedUpTo(event_id, SystemClock().now_ms())
    assert look(options, "position", captured).severity is Severity.FINE
    purge(server)
    assert look(options, "position", captured).severity is Severity.FINE, "nothing after it is purged"
    server.execute("INSERT INTO shop.c VALUES (2)")
    purge(server)
    found = look(options, "position", captured)
    assert found.severity is Severity.WRONG and "has purged its binlog" in found.text


def test_how_long_the_binlog_is_kept(server: MariaDbServer, options: MariadbSourceOptions) -> None:
    """Held against how far behind the log is."""
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 60")
    mended(server, options, "retention")
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 100000")
    long_ago = CapturedUpTo("0-1-1", SystemClock().now_ms() - 90_000_000)
    assert look(options, "retention").severity is Severity.FINE
    assert look(options, "retention", long_ago).severity is Severity.WARNING
    server.execute("SET GLOBAL binlog_expire_logs_seconds = 0")
    assert look(options, "retention", long_ago).severity is Severity.FINE


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_the_clock(kind: str, server: MariaDbServer, postgres_source: PostgresServer) -> None:
    options: SourceOptions = mariadb_options(server)
    if kind == "postgres":
        options = postgres_options(postgres_source, "postgres")
    for clock, verdict in ((SystemClock(), Severity.FINE), (Shifted(), Severity.WARNING)):
        found = [one for one in source_kind(kind).examine(options, clock, None) if one.subject == "clock"]
        assert [one.severity for one in found] == [verdict]


def test_a_mariadb_without_a_binlog(start_mariadb: Callable[..., MariaDbServer]) -> None:
    server = start_mariadb(options={"log_bin": None})
    found = look(mariadb_options(server), "settings")
    assert found.severity is Severity.WRONG and "--log-bin" in found.remedy


# --- a PostgreSQL as source --------------------------------------------------------------------------------


@pytest.fixture
def postgres_options_here(postgres_source: PostgresServer, postgres_source_database: str) -> PostgresSourceOptions:
    return postgres_options(postgres_source, postgres_source_database, connect_timeout_s=2.0)


def test_a_postgresql_that_is_set_up_has_nothing_wrong(
    postgres_source: PostgresServer, postgres_source_database: str, postgres_options_here: PostgresSourceOptions
) -> None:
    """Looking leaves nothing there."""
    postgres_source.execute(
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL", database=postgres_source_database
    )
    found = list(source_kind("postgres").examine(postgres_options_here, SystemClock(), None))
    assert {one.severity for one in found} == {Severity.FINE}
    assert [one.subject for one in found] == [
        *("connection", "settings", "clock", "tables", "rights", "position", "retention")
    ]
    assert source_kind("postgres").installed(postgres_options_here) == []


def test_a_postgresql_that_is_away(postgres_options_here: PostgresSourceOptions) -> None:
    away = replace(postgres_options_here, dsn=f"postgresql://nobody@127.0.0.1:{free_port()}/shop")
    (found,) = source_kind("postgres").examine(away, SystemClock(), None)
    assert (found.subject, found.severity) == ("connection", Severity.WRONG)


def test_the_wal_level_and_the_role(start_postgres: Callable[..., PostgresServer]) -> None:
    """Both are named at once. Slots are looked at once the rest is well."""
    server = start_postgres(options={**LOGICAL, "wal_level": "replica", "max_replication_slots": 1})
    server.execute("CREATE ROLE reader LOGIN")
    whole = postgres_options(server, "postgres")
    options = replace(whole, dsn=of_user(whole.dsn, "reader"))
    found = [one for one in source_kind("postgres").examine(options, SystemClock(), None) if one.subject == "settings"]
    assert ["wal_level = 'logical'" in found[0].remedy, "REPLICATION" in found[1].remedy] == [True, True]
    server.execute("ALTER ROLE reader REPLICATION")
    server.options = {**server.options, "wal_level": "logical"}
    server.restart()
    assert look(options, "settings").severity is Severity.FINE
    only_one = look(whole, "position")
    assert only_one.severity is Severity.WARNING and "max_replication_slots" in only_one.remedy
    server.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    found_slot = look(whole, "position")
    assert found_slot.severity is Severity.WRONG and "max_replication_slots" in found_slot.remedy


def test_a_slot_that_is_invalidated(start_postgres: Callable[..., PostgresServer]) -> None:
    """Also where a new log is to begin: no start takes it, until it was dropped as it says."""
    server = start_postgres(options={**LOGICAL, "max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"})
    options, kind = postgres_options(server, "postgres"), source_kind("postgres")
    follower = PostgresFollower(options)
    follower.source.start(None)
    follower.read(0)
    follower.source.close()
    for _ in range(3):
        server.execute("SELECT pg_switch_wal()")
        server.execute("CREATE TABLE t AS SELECT 1; DROP TABLE t")
        server.execute("CHECKPOINT")
    assert kind.standing(options, follower.event_id).note.startswith("The slot's WAL is lost")
    (slot,) = [one for one in kind.installed(options) if one.kind == "slot"]
    assert slot.state == "nobody follows it, invalidated"
    drop = f"SELECT pg_drop_replication_slot('{options.slot_name}')"
    for captured in (CapturedUpTo(follower.event_id, 0), None):
        found = look(options, "position", captured)
        assert found.severity is Severity.WRONG and drop in found.text + found.remedy
    server.execute(drop)
    assert look(options, "position").severity is Severity.FINE
    begun = PostgresFollower(options)
    begun.source.start(None)
    begun.source.close()


def test_identities_of_tables(
    postgres_source: PostgresServer, postgres_source_database: str, postgres_options_here: PostgresSourceOptions
) -> None:
    """Before there is a publication, and with one."""
    postgres_source.execute("CREATE TABLE t (id int PRIMARY KEY)", database=postgres_source_database)
    mended(postgres_source, postgres_options_here, "tables", postgres_source_database)
    name = postgres_options_here.publication_name
    postgres_source.execute(f'CREATE PUBLICATION "{name}" FOR ALL TABLES', database=postgres_source_database)
    postgres_source.execute("CREATE TABLE u (id int)", database=postgres_source_database)
    mended(postgres_source, postgres_options_here, "tables", postgres_source_database)


def test_a_deferrable_key_is_no_identity(
    postgres_source: PostgresServer, postgres_source_database: str, postgres_options_here: PostgresSourceOptions
) -> None:
    """The server would refuse the application's UPDATE and DELETE as soon as the table is published."""
    postgres_source.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", database=postgres_source_database)
    mended(postgres_source, replace(postgres_options_here, identity="key"), "tables", postgres_source_database)


def test_a_session_that_is_lost_in_the_middle_leaves_no_publication(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    postgres_options_here: PostgresSourceOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another session would run the next statement without the transaction that was to be rolled back."""
    postgres_source.execute(
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL", database=postgres_source_database
    )
    run_one = PostgresControl._run

    def run_and_lose(control: PostgresControl, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        found = run_one(control, sql, parameters)
        if sql == "BEGIN":
            assert control._connection is not None
            pid = control._connection.info.backend_pid
            postgres_source.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
        return found

    monkeypatch.setattr(PostgresControl, "_run", run_and_lose)
    assert look(postgres_options_here, "tables").severity is Severity.WRONG
    monkeypatch.undo()
    assert postgres_source.execute("SELECT FROM pg_publication", database=postgres_source_database) == []
    assert look(postgres_options_here, "tables").severity is Severity.FINE


def test_who_may_read_the_tables(
    postgres_source: PostgresServer, postgres_source_database: str, postgres_options_here: PostgresSourceOptions
) -> None:
    role = postgres_source_database + "_role"
    postgres_source.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        name = postgres_options_here.publication_name
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            f'CREATE PUBLICATION "{name}" FOR ALL TABLES',
        ):
            postgres_source.execute(statement, database=postgres_source_database)
        dsn = of_user(postgres_source.dsn(postgres_source_database), role)
        mended(postgres_source, replace(postgres_options_here, dsn=dsn), "rights", postgres_source_database)
    finally:
        postgres_source.execute(f"DROP OWNED BY {role}", database=postgres_source_database)
        postgres_source.execute(f"DROP ROLE {role}")


def test_a_slot_that_is_gone_and_one_that_keeps_much(
    postgres_source: PostgresServer, postgres_source_database: str, postgres_options_here: PostgresSourceOptions
) -> None:
    options, execute = postgres_options_here, postgres_source.execute
    for statement in ("CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY FULL"):
        execute(statement, database=postgres_source_database)
    follower = PostgresFollower(options)
    with closing(follower.source):
        follower.source.start(None)
        follower.read(0)
    captured = CapturedUpTo(follower.event_id, SystemClock().now_ms())
    execute("INSERT INTO t VALUES (1)", database=postgres_source_database)
    assert look(options, "position", captured).severity is Severity.FINE
    assert look(options, "retention").severity is Severity.FINE
    found = look(replace(options, retained_warn_bytes=0), "retention")
    assert found.severity is Severity.WARNING and "tranlog capture" in found.remedy
    other = replace(options, slot="another")
    assert "the options name another" in look(other, "position", captured).text
    execute(f"SELECT pg_drop_replication_slot('{options.slot_name}')")
    found = look(options, "position", captured)
    assert found.severity is Severity.WRONG and "the server has no slot" in found.text


# --- targets -----------------------------------------------------------------------------------------------


def item_table(server: MariaDbServer) -> TableMap:
    server.execute("CREATE TABLE IF NOT EXISTS shop.item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL)")
    with closing(source_kind("mariadb").tables(mariadb_options(server, databases=("shop",)))) as reader:
        return next(table for table in reader.tables() if table.table == "item")


def grants(remedy: str, user: str) -> list[str]:
    return [one.replace("<user>", user) for one in statements(remedy)]


def follow(target: Target, table: TableMap) -> None:
    """Have a table made or altered, as its first row does."""
    assert isinstance(target.rows, SqlRows)
    with pytest.raises(BehindError) as behind:
        target.rows.bind(table, None)
    behind.value.follow()
    target.rows.bind(table, None)


def test_rights_at_a_postgresql_target(server: MariaDbServer, postgres_database: str, postgres: Address) -> None:
    """Of a user without any: to make our tables, and to write into the tables that are there."""
    role, table = postgres_database + "_role", item_table(server)
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    try:
        postgres.execute('CREATE SCHEMA "shop"', database=postgres_database)
        postgres.execute(f"GRANT USAGE ON SCHEMA shop TO {role}", database=postgres_database)
        postgres.execute("CREATE TABLE shop.item (id int PRIMARY KEY, name text NOT NULL)", database=postgres_database)
        dsn = of_user(postgres.dsn(postgres_database), role)
        with closing(open_target(TargetOptions(kind="postgres", dsn=dsn))) as target:
            checks: list[Callable[[], None]] = [
                target.positions.check_rights,
                lambda: target.rows.check_table(table),
            ]
            for check in checks:
                with pytest.raises(TargetTableError) as refused:
                    check()
                for grant in grants(refused.value.remedy, role):
                    postgres.execute(grant, database=postgres_database)
                check()
            target.positions.ensure_tables()
            target.positions.check_rights()
            assert compare_clocks(SystemClock(), target.positions.now_ms).severity is Severity.FINE
            assert compare_clocks(Shifted(), target.positions.now_ms).severity is Severity.WARNING
            postgres.execute("ALTER TABLE shop.item DROP COLUMN name", database=postgres_database)
            target.rows.discard()
            with pytest.raises(TargetTableError, match="column name is missing"):
                target.rows.check_table(table)
        with closing(open_target(TargetOptions(kind="postgres", dsn=dsn, ddl="follow"))) as target:
            other = msgspec.structs.replace(table, schema="other")
            for one, told in ((table, "may not alter it"), (other, "may not make it")):
                with pytest.raises(TargetTableError, match=told) as refused:
                    target.rows.check_table(one)
                for change in grants(refused.value.remedy, role):
                    postgres.execute(change, database=postgres_database)
                target.rows.check_table(one)
                follow(target, one)
    finally:
        postgres.execute(f"DROP OWNED BY {role}", database=postgres_database)
        postgres.execute(f"DROP ROLE {role}")


def test_foreign_keys_without_an_index_at_a_postgresql_target(
    tmp_path: Path, postgres_database: str, postgres: Address
) -> None:
    """One of two columns, whose index begins with them in another order, and one whose index is partial."""
    for statement in (
        "CREATE TABLE parent (a int, b int, c int UNIQUE, PRIMARY KEY (a, b))",
        'CREATE TABLE child (id int PRIMARY KEY, a int, b int, "C" int REFERENCES parent (c), '
        "FOREIGN KEY (a, b) REFERENCES parent)",
        'CREATE INDEX part ON child ("C") WHERE "C" > 0',
    ):
        postgres.execute(statement, database=postgres_database)
    target = TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database))
    options = ApplyOptions(pipeline="shop", log_dir=str(tmp_path / "log"), target=target)

    def found() -> list[CheckResult]:
        checks = examine_target(options, SystemClock(), None, source_kind="mariadb")
        return [one for one in checks if one.subject == "foreign keys"]

    slow = found()
    assert [one.remedy for one in slow] == ['CREATE INDEX ON child ("C")', "CREATE INDEX ON child (a, b)"]
    assert "public.child refers to public.parent without an index" in slow[0].text
    postgres.execute("CREATE INDEX ON child (b, a, id)", database=postgres_database)
    assert [one.remedy for one in found()] == [slow[0].remedy]
    postgres.execute(slow[0].remedy, database=postgres_database)
    assert found() == []


def test_foreign_keys_that_delete_rows_which_the_source_deletes_too(
    tmp_path: Path, postgres_database: str, postgres: Address
) -> None:
    """The finding says what happens, and its remedies mend it."""
    numbers = [Column(name=name, source_type="integer", logical=LogicalType.INTEGER) for name in ("id", "of")]
    parent = TableMap(schema="public", table="parent", columns=(numbers[0],), primary_key=(0,))
    child = TableMap(schema="public", table="child", columns=tuple(numbers), primary_key=(0,))
    for statement in (
        "CREATE TABLE parent (id int PRIMARY KEY)",
        'CREATE TABLE child (id int PRIMARY KEY, "of" int CONSTRAINT up REFERENCES parent ON DELETE CASCADE)',
        'CREATE INDEX ON child ("of")',
    ):
        postgres.execute(statement, database=postgres_database)
    target = TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database))
    options = ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target)
    made = [RowChange(parent, Op.INSERT, None, (1,)), RowChange(child, Op.INSERT, None, (7, 1))]
    gone = [RowChange(parent, Op.DELETE, (1,), None), RowChange(child, Op.DELETE, (7, 1), None)]
    with Log.open(options.log_dir, source_id="test") as log:
        for at, changes in enumerate((made, gone)):
            for fragment in pack(changes, source_id="test", event_id=f"{at}", tstamp=at):
                log.append(fragment)
        log.commit()
        last = log.last_seqno
    with closing(open_target(target)) as opened:
        opened.positions.ensure_tables()

    def found(source_kind: str, options: ApplyOptions = options) -> list[str]:
        checks = examine_target(options, SystemClock(), (parent, child), source_kind=source_kind)
        return [one.text for one in checks if one.subject == "foreign keys"]

    def ran(until: int) -> str:
        plan = ShardPlan(channels=1)
        (one,) = run_threads(tasks_for(target, tmp_path / "log", plan, take(target, plan), until=until))
        return str(one.error or "")

    (told,) = found("postgres")
    assert "rows of public.child go with those of public.parent" in told and found("mariadb") == []
    assert found("postgres", replace(options, target=replace(target, triggers="off"))) == []
    error = ran(last)
    assert "no row at the target has this key" in error and "ON DELETE or ON UPDATE took the row" in error
    postgres.execute("ALTER TABLE child DROP CONSTRAINT up", database=postgres_database)
    assert (found("postgres"), ran(last)) == ([], "")


def test_rights_at_a_mariadb_target(
    server: MariaDbServer, mariadb_target: MariaDbServer, mariadb_target_database: str
) -> None:
    user, table = "u" + mariadb_target_database[-10:], item_table(server)
    execute = mariadb_target.execute
    execute(f"CREATE USER {user}@'127.0.0.1'")
    try:
        execute("CREATE DATABASE shop")
        execute("CREATE TABLE shop.item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL)")
        execute(f"GRANT SELECT ON *.* TO {user}@'127.0.0.1'")
        dsn = of_user(mariadb_target.dsn(mariadb_target_database), user)
        options = TargetOptions(kind="mariadb", dsn=dsn)

        def positions() -> None:
            with closing(open_target(options)) as target:
                target.positions.check_rights()

        def rows() -> None:
            with closing(open_target(options)) as target:
                target.rows.check_table(table)

        for check in (positions, rows):
            with pytest.raises(TargetTableError) as refused:
                check()
            for grant in grants(refused.value.remedy, f"{user}@'127.0.0.1'"):
                execute(grant)
            check()
        with closing(open_target(options)) as target:
            target.positions.ensure_tables()
            target.positions.check_rights()
            assert compare_clocks(SystemClock(), target.positions.now_ms).severity is Severity.FINE
            assert compare_clocks(Shifted(), target.positions.now_ms).severity is Severity.WARNING
        execute("ALTER TABLE shop.item DROP COLUMN name")
        following = replace(options, ddl="follow")
        for one, told in (
            (table, "may not alter it"),
            (msgspec.structs.replace(table, table="more"), "may not make it"),
        ):
            with closing(open_target(following)) as target, pytest.raises(TargetTableError, match=told) as refused:
                target.rows.check_table(one)
            for change in grants(refused.value.remedy, f"{user}@'127.0.0.1'"):
                execute(change)
            with closing(open_target(following)) as target:
                target.rows.check_table(one)
                follow(target, one)
        execute("SET GLOBAL read_only = 1")
        with pytest.raises(TargetUnavailableError, match="read-only"):
            positions()
    finally:
        execute("SET GLOBAL read_only = 0")
        execute(f"DROP USER {user}@'127.0.0.1'")
        execute("DROP DATABASE shop")


def test_a_column_that_a_statement_may_still_bring(tmp_path: Path, postgres_database: str, postgres: Address) -> None:
    """A start goes on to the statement; to add the column first would stop there. What a start refuses is wrong."""
    number = Column(name="id", source_type="bigint", logical=LogicalType.INTEGER)
    text = Column(name="note", source_type="text", logical=LogicalType.TEXT)
    table = TableMap(schema="public", table="item", columns=(number, text), primary_key=(0,))
    for statement in ("CREATE TABLE item (id bigint PRIMARY KEY)", "INSERT INTO item VALUES (1)"):
        postgres.execute(statement, database=postgres_database)
    target = TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database), ddl="follow")
    options = ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target)
    row = RowChange(table, Op.INSERT, None, (2, "x"))
    altered = Statement(schema="public", sql="ALTER TABLE item ADD COLUMN note TEXT", ddl=True)

    def found() -> Severity:
        checks = examine_target(options, SystemClock(), [table], source_kind="sqlite")
        (one,) = [one for one in checks if one.subject == "tables"]
        assert "column note is missing" in one.text and "ADD COLUMN" in one.remedy
        return one.severity

    assert found() is Severity.WRONG
    for change, severity in ((altered, Severity.WARNING), (row, Severity.WRONG)):
        options = replace(options, log_dir=str(tmp_path / severity.name))
        with Log.open(options.log_dir, source_id="test") as log:
            for fragment in pack([change], source_id="test", event_id="1", tstamp=1):
                log.append(fragment)
            log.commit()
        assert found() is severity


# --- the command -------------------------------------------------------------------------------------------


def test_the_command(
    server: MariaDbServer,
    postgres: Address,
    postgres_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table that the target lacks is wrong, with the statements that make it; a table without a key a warning."""
    item_table(server)
    server.execute("CREATE OR REPLACE TABLE shop.bare (n INT)")
    file = tmp_path / "tranlog.toml"
    file.write_text(f"""
[source]
kind = "mariadb"
port = {server.port}
databases = ["shop"]
cascades = "allow"
[log]
dir = "log"
[target]
kind = "postgres"
dsn = "{postgres.dsn(postgres_database)}"
""")
    assert main(["--conf", str(file), "doctor", "--json"]) == 0  # they are made by their first row
    capsys.readouterr()
    file.write_text(file.read_text() + 'ddl = "stop"\n')
    assert main(["--conf", str(file), "doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    wrong = [one for one in found["findings"] if one["severity"] == "wrong"]
    assert found["wrong"] == len(wrong) and {one["subject"] for one in wrong} == {"tables"}
    assert next(one["text"] for one in found["findings"] if one["subject"] == "keys").startswith("shop.bare: ")
    for one in wrong:
        postgres.execute(one["remedy"], database=postgres_database)
    assert main(["--conf", str(file), "doctor"]) == 0
    out = capsys.readouterr().out
    assert "0 wrong, 1 warnings" in out and "fine    source  rights: " in out
    assert main(["--conf", str(file), "capture", "--once"]) == 0
    assert main(["--conf", str(file), "doctor", "--json"]) == 0
    subjects = [one["subject"] for one in json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]]
    assert "position" in subjects and subjects.index("position") < subjects.index("directory")
