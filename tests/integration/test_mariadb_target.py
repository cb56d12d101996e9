"""MariaDB as a target: its sessions, its settings, its names and limits, statements that commit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pymysql
import pytest

from fix_target import (
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    PIPELINE,
    TEXT,
    Bench,
    StoppedTask,
    column,
    content,
    delete,
    insert,
    session_of,
    table,
    unit_of,
    update,
)
from fix_target import claim_again as claim
from tranlog.change import Change, Options, RowChange, Statement
from tranlog.errors import (
    ConflictError,
    DdlStopError,
    ReplacedError,
    TargetTableError,
    TargetUnavailableError,
    TransientTargetError,
)
from tranlog.ids import Seqno
from tranlog.target.mariadb import SEND_BYTES
from tranlog.target.mariadb_dialect import NAME_CHARS, fit_name
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer, free_port
from tranlog.types import F32, Datetime, EnumLabel, Instant, LogicalType, SetLabels, Time, Value

pytestmark = pytest.mark.integration

OF_MARIADB: Options = (("dbms_type", "mariadb"),)


@pytest.fixture
def options(mariadb_target: MariaDbServer, mariadb_target_database: str) -> TargetOptions:
    return TargetOptions(kind="mariadb", dsn=mariadb_target.dsn(mariadb_target_database), lock_timeout_s=0.3)


def sql(bench: Bench, text: str) -> None:
    bench.session.run_script(text)


# --- locks and sessions ---------------------------------------------------------------------------------------------


def test_a_session_of_a_reused_number_is_not_ended(bench: Bench, mariadb_target: MariaDbServer) -> None:
    """A restarted server counts its connections anew: only together with a name of its own does a number name one."""
    bench.target.rows.create_table(ITEMS)
    other = open_target(bench.options)
    other.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    (stored,) = [row.session for row in bench.target.positions.read_channels(PIPELINE)]
    number, _, name = stored.partition(" ")
    sql(bench, f"UPDATE tranlog_channel SET session = '{number} {'0' * 32}'")
    own = bench.options.dsn.rpartition("/")[2]
    with contextlib.closing(mariadb_target.connect(own, autocommit=False)) as holder:
        holder.query("UPDATE tranlog_channel SET stats = ' '")
        with pytest.raises(TargetUnavailableError, match=r"stayed locked for 0\.3 s by session .*sleep.*end that"):
            claim(bench)
        assert not bench.session.end(f"{number} {'0' * 32}")
        assert not bench.session.end(f"{holder.thread_id()} {name}")
        assert not bench.session.end(stored)  # it is that session, but keeps nobody waiting
        holder.rollback()
    claim(bench)
    other.close()


@pytest.mark.parametrize("sees", [False, True], ids=["sees little", "sees all"])
def test_a_session_that_may_not_be_ended_is_named(
    mariadb_target: MariaDbServer, bench: Bench, stop_task: Callable[..., StoppedTask], sees: bool
) -> None:
    bench.target.rows.create_table(ITEMS)
    user = "r_" + bench.options.dsn.rpartition("/")[2]
    mariadb_target.execute(f"CREATE USER {user}")
    mariadb_target.execute(f"GRANT ALL ON {bench.options.dsn.rpartition('/')[2]}.* TO {user}")
    if sees:
        mariadb_target.execute(f"GRANT PROCESS ON *.* TO {user}")
    task = stop_task(bench)
    limited = open_target(replace(bench.options, dsn=bench.options.dsn.replace("//root@", f"//{user}@")))
    who = r"session \d+ of user root from .*" if sees else r"session \d+"
    with pytest.raises(TargetUnavailableError, match=f"{who} keeps a row .* may not be ended by this user"):
        limited.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    limited.close()
    assert task.go_on() == "applied"
    mariadb_target.execute(f"DROP USER {user}")


def test_a_stopped_task_is_ended_by_a_user_who_sees_no_locks(
    mariadb_target: MariaDbServer, options: TargetOptions, stop_task: Callable[..., StoppedTask]
) -> None:
    """Nobody needs more than rights on the databases: our own sessions are known by their locks' names."""
    own = options.dsn.rpartition("/")[2]
    user = f"p_{own}"
    mariadb_target.execute(f"CREATE USER {user}")
    for database in (own, "shop"):
        mariadb_target.execute(f"GRANT ALL ON {database}.* TO {user}")
    bench = Bench(replace(options, dsn=options.dsn.replace("//root@", f"//{user}@")))
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    claim(bench)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert task.go_on().startswith("TransientTargetError")
    with pytest.raises(TargetUnavailableError, match="denied"):
        bench.target.rows.create_table(table("t", ID, schema="elsewhere"))
    bench.close()
    mariadb_target.execute(f"DROP USER {user}")


def test_a_limit_of_the_user_s_is_waited_for(mariadb_target: MariaDbServer, options: TargetOptions) -> None:
    """docs/operations.md, "A target that a channel cannot use": no row and none of our tables is at fault."""
    user = "limited_" + options.dsn.rpartition("/")[2]
    mariadb_target.execute(f"CREATE USER {user} WITH MAX_UPDATES_PER_HOUR 20")
    mariadb_target.execute(f"GRANT ALL ON *.* TO {user}")
    bench = Bench(replace(options, dsn=options.dsn.replace("//root@", f"//{user}@")))
    bench.target.rows.create_table(ITEMS)

    def apply_many() -> None:
        for number in range(20):
            bench.apply([insert(ITEMS, (number, "a", 1))])

    try:
        with pytest.raises(TargetUnavailableError, match="exceeded the 'max_updates_per_hour' resource"):
            apply_many()
    finally:
        bench.close()
        mariadb_target.execute(f"DROP USER {user}")


GALERA = Path("/usr/lib/galera/libgalera_smm.so")


@pytest.mark.skipif(not GALERA.exists(), reason="the package galera-4 is not installed")
def test_a_node_of_a_galera_cluster_that_refuses_is_waited_for(start_mariadb: Callable[..., MariaDbServer]) -> None:
    """A donor, or a node that lost its cluster, refuses every statement; a write set may be too large for a COMMIT."""
    ports = [f"{option}=tcp://127.0.0.1:{free_port()}" for option in ("gmcast.listen_addr", "ist.recv_addr")]
    wsrep = {"on": "ON", "provider": GALERA, "cluster_address": "gcomm://", "node_address": "127.0.0.1"}
    options = {f"wsrep_{name}": value for name, value in wsrep.items()}
    server = start_mariadb(options=options | {"wsrep_provider_options": ";".join(ports), "innodb_autoinc_lock_mode": 2})
    server.execute("CREATE DATABASE own")
    bench = Bench(TargetOptions(kind="mariadb", dsn=server.dsn("own")))
    bench.target.rows.create_table(ITEMS)
    server.execute("SET GLOBAL wsrep_reject_queries = ALL")
    with pytest.raises(TargetUnavailableError, match="WSREP has not yet prepared node"):
        bench.apply([insert(ITEMS, (1, "a", 1))])
    server.execute("SET GLOBAL wsrep_reject_queries = NONE")
    server.execute("SET GLOBAL wsrep_max_ws_size = 2000")
    bench.target.reconnect()
    claim(bench)
    with pytest.raises(ConflictError, match=r"seqno 0, .*the COMMIT is refused: Maximum writeset size exceeded"):
        bench.apply([insert(ITEMS, (number, "a" * 20, 1)) for number in range(200)])
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert bench.rows(ITEMS) == content([(1, "a", 1)])
    bench.close()


def test_a_table_that_is_being_altered_is_read_whole(bench: Bench, mariadb_target: MariaDbServer) -> None:
    """The server leaves it out of the catalogue meanwhile, or its keys alone; a plan by writes is made of these."""
    bench.target.rows.create_table(ITEMS)
    altered = threading.Event()

    def alter() -> None:
        with contextlib.closing(mariadb_target.connect("shop")) as session:
            while not altered.is_set():
                session.query("ALTER TABLE items FORCE, ALGORITHM = COPY")
                time.sleep(0.01)

    patient = open_target(replace(bench.options, lock_timeout_s=20.0))
    thread = threading.Thread(target=alter)
    thread.start()
    try:
        for _ in range(30):
            assert list(session_of(patient).table(ITEMS).columns) == ["id", "name", "n"]
            keys = session_of(patient).keys(ITEMS)
            assert keys is not None and keys.unique == (("id",),)
    finally:
        altered.set()
        thread.join()
        patient.close()


# --- settings -------------------------------------------------------------------------------------------------------

HOSTILE = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,TRADITIONAL'",
    "time_zone": "'+05:45'",
    "innodb_lock_wait_timeout": "1",
    "lock_wait_timeout": "1",
    "tx_isolation": "'SERIALIZABLE'",
    "tx_read_only": "1",
    "character_set_server": "latin1",
    "collation_connection": "latin1_swedish_ci",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "max_statement_time": "0.2",
    "idle_readonly_transaction_timeout": "1",
    "idle_write_transaction_timeout": "1",
    "autocommit": "0",
}


def test_nothing_depends_on_how_the_server_is_set(
    mariadb_target: MariaDbServer, options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]
) -> None:
    with contextlib.closing(mariadb_target.connect()) as session, session.cursor() as cursor:
        before = {}
        for name, value in HOSTILE.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            before[name] = cursor.fetchall()[0][0]
            cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            bench = open_bench(options)
            tab = table(
                "t",
                ID,
                column("f", LogicalType.F64, "double"),
                column("b", LogicalType.BYTES, "blob"),
                column("d", LogicalType.DATETIME, "datetime(6)"),
                column("i", LogicalType.INSTANT, "timestamp(6)"),
                column("t", LogicalType.TIME, "time(6)"),
                column("s", TEXT, "text"),
            )
            bench.target.rows.create_table(tab)
            rows = [
                (i, 0.1 + i, b"\\\xff'\0", Datetime(-1), Instant(86_399_999_999), Time(-1 - i), "\\'\"é🦆")
                for i in range(3)
            ]

            def slowly() -> Iterator[Change]:
                """Rows that take longer to read than a session may idle by the server's own settings."""
                time.sleep(1.5)
                yield from [insert(tab, row) for row in rows]

            bench.target.apply([unit_of(bench.applied + 1, slowly)], bench.advance(1))
            assert bench.rows(tab) == content(rows)
            shown = bench.session.fetch("SELECT @@tx_isolation, @@time_zone, @@idle_transaction_timeout")
            assert shown == [("READ-COMMITTED", "+00:00", 60)]
        finally:
            for name, value in before.items():
                cursor.execute(f"SET GLOBAL {name} = %s", (value,))


def test_a_wrong_address(mariadb_target: MariaDbServer, options: TargetOptions) -> None:
    mariadb_target.execute("CREATE USER IF NOT EXISTS locked IDENTIFIED BY 'other'")
    port = mariadb_target.port
    for dsn, why in (
        (mariadb_target.dsn("nowhere"), "Unknown database 'nowhere'"),
        ("mariadb://u:secret@127.0.0.1:1/x", "127.0.0.1"),
        (f"mariadb://locked:secret@127.0.0.1:{port}/x", "Access denied"),
    ):
        with pytest.raises(TargetUnavailableError, match=why) as caught:
            open_target(replace(options, dsn=dsn))
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    mariadb_target.execute("DROP USER locked")


def test_a_row_beyond_the_server_s_packets(
    start_mariadb: Callable[..., MariaDbServer], open_bench: Callable[[TargetOptions], Bench]
) -> None:
    """Issue, "Bad input": what the target cannot take is refused with its size, what is within arrives."""
    server = start_mariadb(options={"log_bin": None, "max_allowed_packet": 1 << 20})
    server.execute("CREATE DATABASE own")
    bench = open_bench(TargetOptions(kind="mariadb", dsn=server.dsn("own")))
    wide = table("wide", ID, column("b", LogicalType.BYTES, "longblob"))
    bench.target.rows.create_table(wide)
    fits = [(i, bytes([i, 39]) * 300_000) for i in range(4)]
    assert bench.apply([insert(wide, row) for row in fits]).statements == 4
    assert bench.rows(wide) == content(fits)
    with pytest.raises(ConflictError, match=r"key \(id=9\).*packet of 2000\d\d\d bytes.*max_allowed_packet is 1048576"):
        bench.apply([insert(wide, (8, b"")), insert(wide, (9, b"'" * 1_000_000))])
    bench.apply([delete(wide, row) for row in fits])
    assert not bench.rows(wide)


OTHERS = table("others", ID, column("n", INTEGER, "int(11)"))


def make_by_turns(bench: Bench) -> None:
    """Two tables with a second unique key each, which sees in which order their rows come."""
    for one in (ITEMS, OTHERS):
        bench.target.rows.create_table(one)
        bench.session.run(f"ALTER TABLE {one.schema}.{one.table} ADD UNIQUE (n, id)")


def by_turns(count: int) -> list[Change]:
    """Rows of two tables, of which no two that follow each other can be one statement."""
    return [change for n in range(count) for change in (insert(ITEMS, (n, "it's; a", n)), insert(OTHERS, (n, n)))]


def test_rows_of_tables_by_turns_are_sent_together(bench: Bench) -> None:
    """A round trip for each was most of the time. Many packets are more than SEND_BYTES holds."""
    make_by_turns(bench)
    sent: list[int] = []
    run = bench.session._cursor.execute  # type: ignore[attr-defined]

    def counted(statement: bytes) -> int:
        sent.append(len(statement))
        return int(run(statement))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench.session._cursor, "execute", counted)  # type: ignore[attr-defined]
        assert bench.apply(by_turns(3_000)).statements == 6_000
    assert len(sent) < 30 and max(sent) <= SEND_BYTES
    assert (len(bench.rows(ITEMS)), len(bench.rows(OTHERS))) == (3_000, 3_000)


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_conflict_among_rows_that_are_sent_together_is_named_and_leaves_nothing(bench: Bench, at: int) -> None:
    make_by_turns(bench)
    for wrong in (update(OTHERS, (99, 1), (99, 2)), delete(ITEMS, (99, "a", 1)), insert(ITEMS, (at // 2, "x", 1))):
        changes = [*by_turns(10)[:at], wrong, *by_turns(10)[at:]]
        if isinstance(wrong, RowChange) and wrong.before is None and at == 0:
            continue  # the one after it is at fault
        with pytest.raises(ConflictError, match=rf"key \(id={99 if wrong.before else at // 2}\)"):
            bench.apply(changes)
        assert not bench.rows(ITEMS) and not bench.rows(OTHERS)
    bench.apply(by_turns(1))
    assert (len(bench.rows(ITEMS)), len(bench.rows(OTHERS))) == (1, 1), "nothing of what was sent before comes late"


# --- tables ---------------------------------------------------------------------------------------------------------


def test_what_tables_are_made_of(bench: Bench) -> None:
    orders = table(
        "orders",
        column("id", INTEGER, "bigint(20) unsigned", unsigned=True, nullable=False),
        column("note", TEXT, "char(10)", length=10),
        column("body", TEXT, "longtext"),
        column("price", LogicalType.DECIMAL, "decimal(10,2)"),
        column("exact", LogicalType.DECIMAL, "numeric"),
        column("flags", LogicalType.BIT, "bit(3)", length=3),
        column("took", LogicalType.TIME, "time"),
        column("mood", LogicalType.ENUM, "enum('a','it''s','\\')"),
        column("at", LogicalType.INSTANT, "timestamp(3)", nullable=False),
        column("there", LogicalType.INSTANT, "timestamp with time zone"),
        column("code", LogicalType.ANY, "DECIMAL(9,2)"),
        column("key", TEXT, "text", nullable=False),
        unique_keys=((1, 3), (11,)),
    )
    made = bench.target.rows.create_table(orders)
    assert made.splitlines()[0].startswith("CREATE DATABASE IF NOT EXISTS `shop` CHARACTER SET utf8mb4")
    types = bench.session.fetch(
        "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COALESCE(COLLATION_NAME, '') FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = 'shop' ORDER BY ORDINAL_POSITION"
    )
    assert types == [
        ("id", "bigint(20) unsigned", "NO", ""),
        ("note", "varchar(10)", "YES", "utf8mb4_nopad_bin"),
        ("body", "longtext", "YES", "utf8mb4_nopad_bin"),
        ("price", "decimal(10,2)", "YES", ""),
        ("exact", "longtext", "YES", "utf8mb4_nopad_bin"),
        ("flags", "bit(3)", "YES", ""),
        ("took", "time", "YES", ""),
        ("mood", "enum('a','it''s','\\\\')", "YES", "utf8mb4_nopad_bin"),
        ("at", "timestamp(3)", "NO", ""),
        ("there", "datetime(6)", "YES", ""),
        ("code", "longtext", "YES", "utf8mb4_nopad_bin"),
        ("key", "varchar(768)", "NO", "utf8mb4_nopad_bin"),
    ]
    extra = bench.session.fetch("SELECT DISTINCT EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop'")
    assert extra == [("",)]  # no column changes by itself


def test_columns_that_users_made_otherwise(bench: Bench) -> None:
    """What another type would change without an error is refused; what it keeps reads back as it was sent."""
    tab = table(
        "t",
        ID,
        column("yes", INTEGER, "tinyint(1)"),
        column("mood", LogicalType.ENUM, "enum('good','so so')"),
        column("tags", LogicalType.SET, "set('a','b')"),
        column("price", LogicalType.DECIMAL, "decimal(10,5)"),
        column("code", TEXT, "char(5)", length=5),
        column("name", TEXT, "varchar(9)", length=9),
        column("at", LogicalType.DATETIME, "datetime(6)"),
        column("raw", LogicalType.BYTES, "varbinary(4)", length=4),
    )
    sql(
        bench,
        """CREATE DATABASE shop; CREATE TABLE shop.t (
        id int PRIMARY KEY AUTO_INCREMENT, yes tinyint unsigned, mood enum('good', 'so so') CHARACTER SET latin1,
        tags set('b', 'a'), price decimal(12, 4), code char(5),
        name varchar(3) CHARACTER SET latin1 COLLATE latin1_swedish_ci, at datetime, raw binary(4))""",
    )
    one = (0, 1, EnumLabel("so so"), SetLabels(("b",)), Decimal("1.50000"), "ab", "é", Datetime(5_000_000), b"a\0b\0")
    two = (2, 0, None, SetLabels(()), Decimal("0.00000"), "", "é ", None, None)
    bench.apply([insert(tab, one), insert(tab, two)])
    assert bench.rows(tab) == content([one, two])
    keyless = table("t", *tab.columns, key=())
    upper = (*two[:6], "É ", *two[7:])
    with pytest.raises(ConflictError, match="no row at the target equals"):
        bench.apply([delete(keyless, upper)])
    bench.apply([update(keyless, two, (3, *two[1:])), delete(keyless, one)])
    assert bench.rows(tab) == content([(3, *two[1:])])
    nothing = (None,) * 8
    for place, value, why in (
        (1, -1, "Out of range"),
        (2, EnumLabel("2"), "column mood: '2' is no label"),
        (3, SetLabels(("a", "1")), "column tags: '1' is no label"),
        (4, Decimal("1.50001"), r"column price is decimal\(12,4\) here and would round"),
        (5, "a ", "column code is char.* loses spaces at the end"),
        (6, "abc ", "column name is varchar.* would cut spaces off"),
        (6, "abcd", "Data too long"),
        (6, "日", "Incorrect string value"),
        (7, Datetime(1), "column at is datetime here and would round 1970-01-01 00:00:00.000001"),
        (8, b"a", r"column raw is binary\(4\) here, which fills 1 bytes up"),
    ):
        wrong: list[Value] = [7, *nothing]
        wrong[place] = value
        with pytest.raises(ConflictError, match=why) as caught:
            bench.apply([insert(tab, tuple(wrong))])
        assert caught.value.key == "(id=7)"


@pytest.mark.parametrize(
    ("logical", "source", "declared", "value", "why"),
    [
        (LogicalType.F32, "float", "float(7,2)", F32(1e5), r"c is float\(7,2\) here and would round 100000.0"),
        (LogicalType.F64, "double", "double(7,2)", -1e10, r"c is double\(7,2\) here and would round -1"),
        (
            INTEGER,
            "smallint",
            "year",
            99,
            r"c is year\(4\) here, which takes 99 for a year of this century or the last",
        ),
        (LogicalType.INSTANT, "timestamp", "timestamp not null default 0", None, "which makes the time of now of NULL"),
    ],
)
def test_what_would_become_another_value_without_an_error_is_refused(
    logical: LogicalType, source: str, declared: str, value: Value, why: str, bench: Bench
) -> None:
    sql(bench, f"CREATE DATABASE shop; CREATE TABLE shop.t (id int PRIMARY KEY, c {declared})")
    tab = table("t", ID, column("c", logical, source))
    with pytest.raises(ConflictError, match=why):
        bench.apply([insert(tab, (1, value))])


@pytest.mark.parametrize(("source", "columns"), [("varchar(50)", 60), ("varchar(255)", 70), ("varbinary(255)", 40)])
def test_a_table_of_many_short_columns_is_made(source: str, columns: int, bench: Bench) -> None:
    """InnoDB refuses one by what its rows may take at most: half a page, and 65,535 bytes with what is kept apart."""
    logical = LogicalType.BYTES if "bin" in source else TEXT
    length = int(source.partition("(")[2].rstrip(")"))
    short = [column(f"c{number}", logical, source, length=length) for number in range(columns)]
    wide = table("wide", ID, *short, unique_keys=((1,),))
    bench.target.rows.create_table(wide)
    row = (1, *[b"b" * length if logical is LogicalType.BYTES else "é" * length] * columns)
    bench.apply([insert(wide, row)])
    assert bench.rows(wide) == content([row])


def test_a_number_of_more_digits_after_the_point_than_in_all_has_a_column(bench: Bench) -> None:
    """PostgreSQL 15 has such types."""
    tab = table("t", ID, column("c", LogicalType.DECIMAL, "numeric(2,5)"))
    bench.target.rows.create_table(tab)
    bench.apply([insert(tab, (1, Decimal("0.00099")))])
    assert bench.rows(tab) == content([(1, Decimal("0.00099"))])


def test_an_instant_that_only_later_servers_have_is_refused(bench: Bench) -> None:
    """From MariaDB 11.5 on a TIMESTAMP ends in 2106; without strict mode an earlier one makes zeros of such a value."""
    tab = table("t", ID, column("at", LogicalType.INSTANT, "timestamp"))
    bench.target.rows.create_table(tab)
    ends = (1 << 31) - 1
    bench.apply([insert(tab, (1, Instant(ends * 1_000_000)))])
    ((version,),) = bench.session.fetch("SELECT VERSION()")
    later = insert(tab, (2, Instant((ends + 1) * 1_000_000)))
    if tuple(map(int, version.split(".")[:2])) >= (11, 5):
        bench.apply([later])
        return
    with pytest.raises(ConflictError, match=r"2038-01-19 03:14:08.* is beyond what a TIMESTAMP of this server has"):
        bench.apply([later])


def test_a_set_of_64_labels_is_updated_among_others(bench: Bench) -> None:
    """A column of numbers below and beyond 63 bits is a decimal to the server, and a SET made of one loses labels."""
    labels = tuple([f"m{number}" for number in range(64)])
    tab = table("t", ID, column("c", LogicalType.SET, f"set({', '.join(map(repr, labels))})"))
    bench.target.rows.create_table(tab)
    rows = [(number, SetLabels(())) for number in range(9)]
    after = [(number, SetLabels(labels[number % 2 :])) for number in range(8)] + [(8, SetLabels(("m0",)))]
    bench.apply(
        [insert(tab, row) for row in rows], [update(tab, old, new) for old, new in zip(rows, after, strict=True)]
    )
    assert bench.rows(tab) == content(after)


def test_a_name_that_is_no_table_s(bench: Bench) -> None:
    sql(bench, "CREATE DATABASE shop; CREATE VIEW shop.items AS SELECT 1 AS id, 'a' AS name, 1 AS n")
    with pytest.raises(TargetTableError, match=r"this name is not a table's.*Drop what has it here"):
        bench.apply([insert(ITEMS, (1, "a", 1))])
    with pytest.raises(TargetTableError, match="Drop what has it here"):
        bench.target.rows.create_table(ITEMS)


@pytest.mark.parametrize(
    "name", ["short", "x" * 64, "x" * 65, "é" * 48, "é" * 49, "日" * 64, "🦆", "a\0b", "space ", " ", "", "`", "a/b.c"]
)
def test_names_are_made_to_fit(bench: Bench, name: str) -> None:
    """MariaDB has 64 characters of Unicode's first plane for a name, and a file's name of 255 bytes to keep it."""
    fitted = fit_name(name)
    assert 0 < len(fitted) <= NAME_CHARS
    assert fit_name(name + "x" * 70) != fit_name(name + "x" * 71)
    named = table(name, column(name, INTEGER, "int", nullable=False), schema="d" + name)
    bench.target.rows.create_table(named)
    bench.apply([insert(named, (1,))], [update(named, (1,), (2,))])
    assert bench.rows(named) == content([(2,)])


def test_two_names_that_the_server_would_take_for_one(bench: Bench) -> None:
    with pytest.raises(TargetTableError, match="Duplicate column name"):
        bench.target.rows.create_table(table("t", ID, column("ID", INTEGER, "int")))


# --- statements that commit -----------------------------------------------------------------------------------------


def ddl(text: str, **more: object) -> Statement:
    return Statement(schema="shop", sql=text, ddl=True, **more)  # type: ignore[arg-type]


def noted(bench: Bench) -> list[tuple[int, int]]:
    return [(seqno, done) for seqno, done in bench.session.fetch("SELECT seqno, done FROM tranlog_statement")]


def test_ddl_of_a_mariadb_is_run_once(bench: Bench) -> None:
    """data-model.md, "DDL": "same kind of database, applied alone", under the sql_mode that it had at the source."""
    create = ddl("CREATE DATABASE shop -- of its own")
    bench.apply([create], metadata=OF_MARIADB)
    made = ddl('CREATE TABLE "items" (id int PRIMARY KEY, name text, n int)', options=(("sql_mode", "ANSI_QUOTES"),))
    bench.apply([made, insert(ITEMS, (1, "a", 1))], metadata=OF_MARIADB)
    bench.apply([ddl("ALTER TABLE items ADD COLUMN more int DEFAULT 7")], metadata=OF_MARIADB)
    bench.apply([insert(ITEMS, (2, "b", 2))])
    assert bench.rows(ITEMS) == content([(1, "a", 1), (2, "b", 2)])
    assert bench.session.fetch("SELECT DISTINCT more FROM shop.items") == [(7,)]
    assert bench.session.fetch("SELECT @@sql_mode LIKE '%ANSI%', DATABASE()") == [
        (0, bench.options.dsn.rpartition("/")[2])
    ]
    assert (bench.stored_seqno(), noted(bench)) == (3, [])


def test_ddl_that_the_server_refuses_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(DdlStopError, match=r"seqno 0, statement 'CREATE TABLE t .*there is no database shop here"):
        bench.apply([ddl("CREATE TABLE t (a int)")], metadata=OF_MARIADB)
    bench.target.rows.create_table(ITEMS)
    with pytest.raises(DdlStopError, match=r"'ALTER TABLE items DROP x'.*Can't DROP COLUMN"):
        bench.apply([ddl("ALTER TABLE items DROP x")], metadata=OF_MARIADB)
    assert (bench.stored_seqno(), noted(bench)) == (-1, [])
    bench.apply([insert(ITEMS, (1, "a", 1))])


def test_triggers_and_events_of_the_source_are_not_made(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    for text in (
        "CREATE DEFINER=`root`@`localhost` TRIGGER t AFTER INSERT ON items FOR EACH ROW INSERT INTO moves VALUES (1)",
        "/* it's */ CREATE OR REPLACE EVENT e ON SCHEDULE EVERY 1 SECOND DO DELETE FROM items",
        "DROP TRIGGER IF EXISTS t",
    ):
        assert bench.apply([ddl(text)], metadata=OF_MARIADB).ddl_ignored == 1
    shown = "SELECT count(*) FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = 'shop'"
    assert bench.session.fetch(shown) == [(0,)]


def test_rows_in_front_of_ddl_are_not_committed_by_it(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    for before in ([[insert(ITEMS, (1, "a", 1))]], []):
        inside: list[Change] = [] if before else [insert(ITEMS, (1, "a", 1))]
        with pytest.raises(DdlStopError, match="would be committed by it"):
            bench.apply(*before, [*inside, ddl("ALTER TABLE items ADD x int")], metadata=OF_MARIADB)
        assert not bench.rows(ITEMS)
        assert (bench.stored_seqno(), noted(bench)) == (-1, [])


def test_ddl_that_ran_before_the_position_moved_is_not_run_again(bench: Bench) -> None:
    """Exactly once: killed between the two, the next task sees that it is done. A swap would undo itself."""
    bench.target.rows.create_table(ITEMS)
    bench.target.rows.create_table(MOVES)
    bench.apply([insert(ITEMS, (1, "item", 1)), insert(MOVES, (1, "move", 1))])
    swap = ddl("RENAME TABLE items TO third, moves TO items, third TO moves")
    bench.target.rows.create_table(table("named", ID))
    conflict: RowChange = delete(table("named", ID), (1,))
    with pytest.raises(ConflictError):
        bench.apply([swap, conflict], metadata=OF_MARIADB)  # the rows behind it do not fit: only the DDL is done
    assert (bench.stored_seqno(), noted(bench)) == (0, [(1, 1)])
    bench.target.reconnect()
    claim(bench)
    bench.apply([swap], metadata=OF_MARIADB)
    assert bench.session.fetch("SELECT name FROM shop.items") == [("move",)]
    assert (bench.stored_seqno(), noted(bench)) == (1, [])


@pytest.mark.parametrize("ran", [True, False])
def test_a_dropped_table_of_statements_leaves_each_uncertain(bench: Bench, ran: bool) -> None:
    """What was noted there is not known, and a table made anew would say that nothing was."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    bench.target.rows.create_table(table("named", ID))
    added = ddl("ALTER TABLE items ADD extra int")
    if ran:
        with pytest.raises(ConflictError):  # the rows behind it do not fit: only the DDL is done
            bench.apply([added, delete(table("named", ID), (1,))], metadata=OF_MARIADB)
    bench.session.run("DROP TABLE tranlog_statement")
    bench.target.reconnect()
    bench.target.positions.ensure_tables()  # as each start does
    claim(bench)
    for _ in range(2):
        with pytest.raises(
            DdlStopError, match=r"seqno 1, .*tranlog_statement, .* is gone .*one has run, or it has not"
        ):
            bench.apply([added], metadata=OF_MARIADB)
    assert bench.stored_seqno() == 0
    columns = bench.session.fetch("SHOW COLUMNS FROM shop.items LIKE 'extra'")
    assert len(columns) == ran, "and it was not run meanwhile"
    bench.target.positions.ensure_tables(again=True)  # as `tranlog position set` does
    if not ran:
        bench.apply([added], metadata=OF_MARIADB)
        assert (bench.stored_seqno(), noted(bench)) == (1, [])


SLOW = "CREATE TABLE slow AS SELECT SLEEP(600) AS a FROM items"


def test_a_server_that_ends_inside_ddl_leaves_it_uncertain(
    start_mariadb: Callable[..., MariaDbServer], open_bench: Callable[[TargetOptions], Bench]
) -> None:
    """It ran or it did not: nobody guesses. The operator looks, and the channel goes on from there."""
    server = start_mariadb(options={"log_bin": None})
    server.execute("CREATE DATABASE own")
    bench = open_bench(TargetOptions(kind="mariadb", dsn=server.dsn("own")))
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])

    def crash() -> None:
        while not server.execute("SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'"):
            pass
        server.kill()

    thread = threading.Thread(target=crash)
    thread.start()
    with pytest.raises(TransientTargetError):
        bench.apply([ddl(SLOW)], metadata=OF_MARIADB)
    thread.join()
    server.start()
    bench.target.reconnect()
    claim(bench)
    for _ in range(2):
        with pytest.raises(DdlStopError, match=r"seqno 1, statement 'CREATE TABLE slow.*it has run, or it has not"):
            bench.apply([ddl(SLOW)], metadata=OF_MARIADB)
    assert noted(bench) == [(1, 0)]
    bench.session.run("DELETE FROM tranlog_statement")
    bench.apply([ddl(SLOW.replace("600", "0"))], metadata=OF_MARIADB)
    assert (bench.stored_seqno(), noted(bench)) == (1, [])


def test_a_task_that_is_killed_inside_ddl_does_not_stop_it(mariadb_target: MariaDbServer, bench: Bench) -> None:
    """The server has the whole block: the next task waits for it, then takes it as done, and runs nothing twice."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    waits = ddl("CREATE TABLE made AS SELECT GET_LOCK('go on', 60) AS got FROM items")
    with contextlib.closing(mariadb_target.connect()) as gate:
        gate.query("SELECT GET_LOCK('go on', 0)")
        pid = os.fork()
        if pid == 0:  # a task in a process of its own, with its own connection
            try:
                signal.alarm(60)
                mine = Bench.__new__(Bench)
                mine.options, mine.driver_token, mine.target = (
                    bench.options,
                    bench.driver_token,
                    open_target(bench.options),
                )
                claim(mine)
                mine.apply([waits], metadata=OF_MARIADB)
            finally:
                os._exit(1)
        busy = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
        while not mariadb_target.execute(busy):
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        claim(bench)
        with pytest.raises(TransientTargetError, match="is still run by session"):
            bench.apply([waits], metadata=OF_MARIADB)
        gate.query("SELECT RELEASE_LOCK('go on')")
    while noted(bench) != [(1, 1)]:
        time.sleep(0.01)
    bench.apply([waits], metadata=OF_MARIADB)
    assert bench.session.fetch("SELECT got FROM shop.made") == [(1,)]
    assert (bench.stored_seqno(), noted(bench)) == (1, [])


def test_a_replaced_task_runs_no_ddl(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    stale = replace(bench.advance(1), token=bench.token - 1)
    with pytest.raises(ReplacedError):
        bench.target.apply([unit_of(0, [ddl("DROP TABLE items")], OF_MARIADB)], stale)
    # Also one that was replaced after its guard had passed: the server looks again before it runs anything.
    changes: list[Change] = [ddl("DROP TABLE items")]

    def meanwhile() -> object:
        bench.session.run(
            "UPDATE tranlog_channel SET token = token + 1"
        )  # rolled back with the guard, unless committed
        bench.session.commit()
        bench.session.begin()
        return iter(changes)

    with pytest.raises(ReplacedError):
        bench.target.apply([unit_of(0, meanwhile, OF_MARIADB)], bench.advance(1))  # type: ignore[arg-type]
    assert bench.target.rows.create_table(ITEMS) == ""
    assert noted(bench) == []
    bench.session.run("UPDATE tranlog_channel SET applied_seqno = -1")
    claim(bench)
    bench.apply([insert(ITEMS, (1, "a", 1))])


def test_the_row_of_another_transaction_says_nothing(bench: Bench) -> None:
    """A log that was cleared counts its seqnos anew."""
    bench.target.rows.create_table(ITEMS)
    bench.session.run(
        "INSERT INTO tranlog_statement VALUES ($1, 0, 0, 1, 0, 'of an earlier log', '1 x', 1, 0)", (PIPELINE,)
    )
    bench.apply([ddl("ALTER TABLE items ADD x int")], metadata=OF_MARIADB)
    assert bench.session.fetch("SELECT x FROM shop.items") == []
    assert bench.stored_seqno() == Seqno(0)
    assert noted(bench) == []


def test_the_driver_s_errors_are_sorted(bench: Bench, mariadb_target: MariaDbServer) -> None:
    """A lock that does not come, at a row of the user's: named, and tried again."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    bench.session.run("SET SESSION innodb_lock_wait_timeout = 1")
    with contextlib.closing(mariadb_target.connect("shop", autocommit=False)) as holder:
        holder.query("SELECT * FROM items FOR UPDATE")
        assert isinstance(holder, pymysql.Connection)
        with pytest.raises(TransientTargetError, match=r"lock did not come in time.*held by session \d+ of user root"):
            bench.apply([update(ITEMS, (1, "a", 1), (1, "b", 1))])
    bench.apply([update(ITEMS, (1, "a", 1), (1, "b", 1))])
    assert bench.rows(ITEMS) == content([(1, "b", 1)])
