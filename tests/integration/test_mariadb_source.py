"""MariaDB as a source, against a real server."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pymysql
import pytest

from fix_mariadb_source import (
    ClockAhead,
    Follower,
    Replica,
    followers,
    of,
    options_for,
    run,
    selected,
)
from tranlog.change import Fragment, Op, RowChange, Statement
from tranlog.errors import (
    ConfigError,
    DiskFailedError,
    PositionLostError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.payload import decode
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import Control
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.source.source import Source, TableReader
from tranlog.testing.servers import MariaDbAddress, MariaDbServer
from tranlog.types import Value

pytestmark = pytest.mark.integration


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    """Start following a server: `follow(options)`, from now or after an event id."""
    yield from followers()


@pytest.fixture(scope="module")
def second_mariadb() -> Iterator[MariaDbServer]:
    """A server of this module's own, for tests that reset its binlog; never stopped."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def fresh_binlog(second_mariadb: MariaDbServer) -> Iterator[MariaDbServer]:
    """That server with an empty binlog and a database `s`, which is dropped after the test."""
    second_mariadb.execute("RESET MASTER")
    second_mariadb.execute("CREATE DATABASE s")
    yield second_mariadb
    second_mariadb.execute("DROP DATABASE s")


def test_the_seams_are_filled(mariadb: MariaDbAddress) -> None:
    """source/source.py: a MariaDB is a Source, its tables a TableReader."""
    source: Source = MariadbSource(options_for(mariadb))
    reader: TableReader = MariadbTables(options_for(mariadb))
    source.close()
    reader.close()
    source.close()
    reader.close()


# --- transactions ----------------------------------------------------------------------------------------


def test_random_transactions_keep_a_replica_equal(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Every committed transaction, whole and in order; savepoints, failed statements, rollbacks leave no trace."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    names = ("keyed", "keyless", "pairs")
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(20), n INT UNIQUE)",
        "CREATE TABLE keyless (a INT, b TEXT)",
        "CREATE TABLE pairs (a INT, b INT, c DECIMAL(8,2), PRIMARY KEY (a, b))",
        "CREATE TABLE noted (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(20))",
        "CREATE TRIGGER note AFTER UPDATE ON keyed FOR EACH ROW INSERT INTO noted (what) VALUES (NEW.v)",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    replica = Replica()
    committed = 0

    def statement() -> str:
        table = rng.choice(names)
        number, other = rng.randint(1, 40), rng.randint(1, 40)
        text = "NULL" if rng.random() < 0.2 else f"'{rng.choice('abc') * rng.randint(0, 6)}'"
        match table, rng.randrange(4):
            case "keyed", 0 | 1:
                return f"INSERT INTO keyed VALUES ({number}, {text}, {other})"
            case "keyed", 2:
                return f"UPDATE keyed SET id = {other}, v = {text} WHERE id = {number}"
            case "keyed", _:
                return f"DELETE FROM keyed WHERE n % 9 = {number % 9}"
            case "keyless", 0 | 1:
                return f"INSERT INTO keyless VALUES ({number}, {text}), ({number}, {text})"
            case "keyless", 2:
                return f"UPDATE keyless SET b = {text} WHERE a > {number}"
            case "keyless", _:
                return f"DELETE FROM keyless WHERE a = {number} LIMIT 1"
            case _, 0 | 1:
                return f"REPLACE INTO pairs VALUES ({number % 5}, {other % 5}, {number}.25)"
            case _, 2:
                return f"UPDATE pairs SET a = a + 1 WHERE b = {other % 5} ORDER BY a DESC"
            case _:
                return f"DELETE FROM pairs WHERE a = {number % 5}"

    with contextlib.closing(mariadb.connect(mariadb_database, autocommit=False)) as connection:
        cursor = connection.cursor()
        for _ in range(150):
            savepoints = 0
            for _ in range(rng.randint(1, 8)):
                roll = rng.random()
                if roll < 0.12:
                    savepoints += 1
                    cursor.execute(f"SAVEPOINT s{savepoints}")
                elif roll < 0.2 and savepoints:
                    savepoints = rng.randint(1, savepoints)
                    cursor.execute(f"ROLLBACK TO s{savepoints}")
                else:
                    with contextlib.suppress(pymysql.err.MySQLError):
                        cursor.execute(statement())
            if rng.random() < 0.15:
                connection.rollback()
            else:
                connection.commit()
                committed += 1
    for transaction in follower.catch_up():
        replica.apply(transaction)
    assert 50 < len(follower.transactions) <= committed + 1
    replica.assert_equals(selected(mariadb, mariadb_database))
    # A log without an event id starts where the option says; here at the place that the first read named.
    again = follow(options_for(mariadb, databases=(mariadb_database,)), follower.transactions[0].event_id)
    first = [(t.event_id, t.changes) for t in follower.transactions if not t.is_noop]
    assert [(t.event_id, t.changes) for t in again.transactions if not t.is_noop] == first


def test_statements_stand_at_their_place(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md: "DDL and other statements are recorded"; a peer dies on DROP PROCEDURE (asks.md 13)."""
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD COLUMN v VARCHAR(5)",
        "INSERT INTO t VALUES (2, 'x')",
        "CREATE PROCEDURE p() SELECT 'INSERT'",
        "DROP PROCEDURE p",
        "CREATE TABLE made AS SELECT id, v FROM t",
        "/* a comment */ RENAME TABLE made TO remade",
        "TRUNCATE TABLE remade",
        "ANALYZE TABLE t",
        "DROP TABLE remade",
        f"GRANT SELECT ON {mariadb_database}.* TO 'somebody'@'localhost' IDENTIFIED BY 'x'",
        "DROP USER 'somebody'@'localhost'",
        "CREATE SEQUENCE numbers",
        "SELECT NEXT VALUE FOR numbers",
        "ALTER SEQUENCE numbers RESTART 5",
        "DROP SEQUENCE numbers",
    )
    found = of(mariadb_database, follower.catch_up())
    texts = [(t.texts[0] if t.texts else "rows") for t in found]
    firsts = [str(text).split("(")[0].split("\n")[0].strip() for text in texts]
    assert firsts == [
        "CREATE TABLE t",
        "rows",
        "ALTER TABLE t ADD COLUMN v VARCHAR",
        "rows",
        "CREATE DEFINER=`root`@`127.0.0.1` PROCEDURE `p`",
        "DROP PROCEDURE p",
        "CREATE TABLE `made`",
        "/* a comment */ RENAME TABLE made TO remade",
        "TRUNCATE TABLE remade",
        "ANALYZE TABLE t",
        "DROP TABLE `remade` /* generated by server */",
        f"GRANT SELECT ON {mariadb_database}.* TO 'somebody'@'localhost' IDENTIFIED BY 'x'",
        "DROP USER 'somebody'@'localhost'",
        "CREATE SEQUENCE numbers",
        "rows",
        "ALTER SEQUENCE numbers RESTART 5",
        "DROP SEQUENCE `numbers` /* generated by server */",
    ]
    not_ddl = [statement.sql for t in found for statement in t.statements if not statement.ddl]
    assert not_ddl == ["TRUNCATE TABLE remade"], "what removes rows is not passed over with the DDL"
    assert all(t.shard == UNKNOWN_SHARD for t in found if t.statements)
    created = found[6]
    assert [type(change) for change in created.changes] == [Statement, RowChange, RowChange]
    options = dict(created.statements[0].options)
    assert options["character_set_client"] == "utf8mb4"
    assert "STRICT_TRANS_TABLES" in options["sql_mode"]
    assert found[1].rows[0].after == (1,)
    assert found[3].rows[0].after == (2, "x")
    assert found[1].metadata == {"dbms_type": "mariadb", "server_id": "1", "gtid_domain": "0"}
    assert found[1].last.tstamp % 1000 == 0
    assert abs(found[1].last.tstamp - time.time() * 1000) < 3_600_000


def test_a_statement_in_another_charset(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A statement's text is in its client's charset, and may not even decode in it."""
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    with contextlib.closing(mariadb.connect(mariadb_database, charset="latin1")) as connection:
        connection.cursor().execute("CREATE TABLE umlaut (a INT COMMENT 'ä')")
        connection.cursor().execute("SET NAMES utf8mb4")
        connection.cursor().execute(b"CREATE TABLE torn (a INT) /* \xff */")
    good, torn = of(mariadb_database, follower.catch_up())
    assert good.texts == ["CREATE TABLE umlaut (a INT COMMENT 'ä')"]
    assert dict(good.statements[0].options)["character_set_client"] == "latin1"
    assert torn.texts == [b"CREATE TABLE torn (a INT) /* \xff */"]


def test_alter_in_two_phases_is_one_statement(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """binlog_alter_two_phase: the start of an ALTER carries its text as well, and changes nothing yet."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    with contextlib.closing(mariadb.connect(mariadb_database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET binlog_alter_two_phase = ON")
        cursor.execute("ALTER TABLE t ADD COLUMN v INT DEFAULT 3, ALGORITHM = COPY")
        with pytest.raises(pymysql.err.MySQLError):
            cursor.execute("ALTER TABLE t ADD UNIQUE KEY one (v), ALGORITHM = COPY")
        cursor.execute("INSERT INTO t VALUES (3, 4)")
    altered, inserted = of(mariadb_database, follower.catch_up())
    assert altered.texts == ["ALTER TABLE t ADD COLUMN v INT DEFAULT 3, ALGORITHM = COPY"]
    assert inserted.rows[0].after == (3, 4)


def test_primary_key_change_and_keyless_table(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """data-model.md: a key change is one update with both keys; a keyless table works, and one warning names it."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE nokey (a INT)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    with caplog.at_level(logging.WARNING, logger="tranlog"):
        run(
            mariadb,
            mariadb_database,
            "BEGIN",
            "UPDATE t SET id = 3 WHERE id = 1",
            "UPDATE t SET id = 1 WHERE id = 2",
            "COMMIT",
            "INSERT INTO nokey VALUES (1)",
            "ALTER TABLE nokey ADD COLUMN b INT",
            "INSERT INTO nokey VALUES (2, 3)",
        )
        swap, one, _, two = follower.catch_up()
    assert [(c.op, c.before, c.after) for c in swap.rows] == [
        (Op.UPDATE, (1, 10), (3, 10)),
        (Op.UPDATE, (2, 20), (1, 20)),
    ]
    assert one.rows[0].table.primary_key == ()
    assert two.rows[0].after == (2, 3)
    warned = [record.getMessage() for record in caplog.records if "no primary key" in record.getMessage()]
    assert len(warned) == 1 and f"{mariadb_database}.nokey" in warned[0]
    assert follower.source.status().keyless_tables == (f"{mariadb_database}.nokey",)


def test_rollbacks_that_reach_the_binlog(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """ROLLBACK and ROLLBACK TO are written where temporary or non-transactional tables were touched in between."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE i (a INT)",
        "CREATE TABLE m (a INT) ENGINE = MyISAM",
        "CREATE TABLE memory (a INT) ENGINE = MEMORY",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "BEGIN",
        "INSERT INTO i VALUES (1)",
        "SAVEPOINT here",
        "INSERT INTO i VALUES (2)",
        "INSERT INTO m SELECT * FROM i",
        "ROLLBACK TO HERE",
        "INSERT INTO i VALUES (3)",
        "COMMIT",
        "BEGIN",
        "INSERT INTO i VALUES (4)",
        "CREATE TEMPORARY TABLE tmp (a INT)",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO i VALUES (5)",
        "SAVEPOINT a",
        "DROP TEMPORARY TABLE tmp",
        "INSERT INTO i VALUES (6)",
        "SAVEPOINT b",
        "INSERT INTO i VALUES (7)",
        "ROLLBACK TO b",
        "INSERT INTO i VALUES (8)",
        "ROLLBACK TO a",
        "COMMIT",
        "INSERT INTO memory VALUES (1)",
    )
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    replica.assert_equals(selected(mariadb, mariadb_database))
    assert sorted(row[0] for row in mariadb.execute("SELECT a FROM i", database=mariadb_database)) == [1, 3, 5]


def test_a_statement_over_both_kinds_of_engine(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Rows of tables without transactions stay when their statement or transaction fails: so they do in the log."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE i (a INT PRIMARY KEY)",
        "CREATE TABLE m (a INT) ENGINE = MyISAM",
        "CREATE TRIGGER copy AFTER INSERT ON i FOR EACH ROW INSERT INTO m VALUES (NEW.a)",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(mariadb, mariadb_database, "INSERT INTO i VALUES (1), (5)")
    for failing in ("INSERT INTO i VALUES (2), (1)", "UPDATE m, i SET m.a = m.a + 10, i.a = 5 WHERE m.a = i.a"):
        with pytest.raises(pymysql.err.IntegrityError):
            run(mariadb, mariadb_database, failing)
    run(mariadb, mariadb_database, "BEGIN", "INSERT INTO i VALUES (3)", "ROLLBACK")
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    assert len(mariadb.execute("SELECT a FROM m", database=mariadb_database)) == 4
    replica.assert_equals(selected(mariadb, mariadb_database))


def test_a_rollback_over_a_table_without_transactions_is_refused(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """No server was seen to write that; what a ROLLBACK would leave behind is unknown, so capture stops by name."""
    run(mariadb, mariadb_database, "CREATE TABLE i (a INT)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "BEGIN",
        "INSERT INTO i VALUES (1)",
        "CREATE TEMPORARY TABLE tmp (a INT)",
        "ROLLBACK",
        "ALTER TABLE i ENGINE = MyISAM",
    )
    with pytest.raises(UnsupportedEventError, match=r"a rollback over rows of .*\.i, whose engine has no transactions"):
        follower.catch_up()


def test_system_versioned_tables_with_their_history(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """The binlog holds old rows and the hidden period columns; so does the reader of tables."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE hidden (id INT PRIMARY KEY, v INT UNIQUE) WITH SYSTEM VERSIONING",
        "CREATE TABLE shown (id INT PRIMARY KEY, v INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    for table in ("hidden", "shown"):
        run(
            mariadb,
            mariadb_database,
            f"INSERT INTO {table} (id, v) VALUES (1, 1), (2, 2)",
            f"UPDATE {table} SET v = v + 10",
            f"DELETE FROM {table} WHERE id = 1",
        )
    replica = Replica()
    maps = {}
    for transaction in follower.catch_up():
        replica.apply(transaction)
        maps.update({change.table.table: change.table for change in transaction.rows})
    tables = selected(mariadb, mariadb_database)
    assert {name: table for name, (table, _) in tables.items()} == maps
    assert sum(tables["hidden"][1].values()) == 4
    replica.assert_equals(tables)


def test_a_large_transaction_comes_in_fragments_with_little_memory(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md, "Large transactions": fragments of about 1 MiB, no process holds one whole."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE big (id INT PRIMARY KEY, v VARBINARY(4000))",
        "CREATE TABLE small (id INT PRIMARY KEY)",
    )
    size = 40_000_000
    follower = follow(options_for(mariadb, databases=(mariadb_database,), queue_bytes=1 << 20, memory_bytes=1 << 20))
    rows = size // 4000
    run(mariadb, mariadb_database, f"INSERT INTO big SELECT seq, REPEAT('x', 4000) FROM seq_1_to_{rows}")
    run(mariadb, mariadb_database, "INSERT INTO small VALUES (1)")
    tracemalloc.start()
    try:
        count = fragments = 0
        while count < rows + 1:
            for fragment in follower.source.read(5):
                fragments += 1
                changes = decode(fragment.payload).changes
                count += len(changes)
                if not fragment.last:
                    assert fragment.shard_id == UNKNOWN_SHARD
                    assert 1 << 20 <= len(fragment.payload) < (1 << 20) + 10_000
                else:
                    assert fragment.shard_id == mariadb_database
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fragments == size // (1 << 20) + 2
    assert peak < 24 << 20, f"peak of {peak >> 20} MiB for a transaction of {size >> 20} MiB"


def test_rows_beyond_a_packet(start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]) -> None:
    """An event of more than 16 MiB spans several packets of the protocol."""
    server = start_mariadb(options={"max_allowed_packet": "64M", "innodb_log_file_size": "256M"})
    run(server, "", "CREATE DATABASE big", "CREATE TABLE big.t (id INT PRIMARY KEY, v LONGBLOB)")
    follower = follow(options_for(server))
    for length in ((1 << 24) - 100, (1 << 24) + 5, 33_000_000):
        run(server, "big", f"INSERT INTO t VALUES ({length}, REPEAT('ab', {length // 2}))")
        (transaction,) = follower.catch_up()
        assert transaction.rows[0].after == (length, b"ab" * (length // 2))
    # A server whose limit was lowered since cannot say which GTIDs an offset behind such an event stands for.
    follower.close()
    server.execute("SET GLOBAL max_allowed_packet = 16777216")
    run(server, "big", "INSERT INTO t VALUES (1, 'small')")
    again = follow(options_for(server), transaction.event_id)
    assert [one.rows[0].after for one in again.transactions if one.rows] == [(1, b"small")]


def test_a_transaction_above_the_limit_is_refused_with_its_size(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md: beyond `spill_above` a transaction "is refused with its size and event id"."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(4000))")
    options = options_for(mariadb, databases=(mariadb_database,), transaction_bytes_max=100_000, on_gap="stop")
    follower = follow(options)
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (0, '')")
    (transaction,) = follower.catch_up()
    run(mariadb, mariadb_database, "INSERT INTO t SELECT seq, REPEAT('x', 4000) FROM seq_1_to_100")
    with pytest.raises(UnsupportedEventError, match=r"has \d{6} bytes so far.*transaction_bytes_max") as caught:
        follower.catch_up()
    assert caught.value.event_id == transaction.event_id


def test_no_room_for_a_waiting_transaction(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A spool directory that is gone: an error of ours; with one that is there the same transaction comes whole."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(4000))")
    options = options_for(mariadb, databases=(mariadb_database,), memory_bytes=1000, spool_directory="/nowhere/at/all")
    follower = follow(options)
    position = follower.transactions[-1].event_id
    run(mariadb, mariadb_database, "INSERT INTO t SELECT seq, REPEAT('x', 4000) FROM seq_1_to_10")
    for _ in range(2):
        with pytest.raises(DiskFailedError, match="/nowhere/at/all"):
            follower.catch_up()
    again = follow(options_for(mariadb, databases=(mariadb_database,), memory_bytes=1000), position)
    assert len(again.transactions[0].rows) == 10


# --- positions, shards, metadata -------------------------------------------------------------------------


def test_two_domains(mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]) -> None:
    """sources.md: the event id is the position of all domains, "One GTID alone loses the other domains"."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    for number in range(6):
        domain = (0, 7, 3)[number % 3]
        run(mariadb, mariadb_database, f"SET gtid_domain_id = {domain}", f"INSERT INTO t VALUES ({number})")
    found = follower.catch_up()
    gtids, _, place = found[-1].event_id.partition(";")
    assert [gtid.split("-")[0] for gtid in gtids.split(",")] == ["0", "3", "7"]
    assert place.startswith("binlog.0")
    assert [t.metadata["gtid_domain"] for t in found] == ["0", "7", "3"] * 2
    for number in range(6):
        again = follow(options_for(mariadb, databases=(mariadb_database,)), found[number].event_id)
        assert [t.rows[0].after for t in again.transactions if t.rows] == [(n,) for n in range(number + 1, 6)]


def test_where_a_log_without_an_event_starts(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """ "start from GTID or file and position, or from now"; and from the earliest."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    places = []
    for number in range(4):
        if number == 2:
            server.execute("FLUSH BINARY LOGS")
        run(server, "s", f"INSERT INTO t VALUES ({number})")
        status = server.execute("SHOW MASTER STATUS")[0]
        places.append((server.execute("SELECT @@gtid_binlog_pos")[0][0], f"{status[0]}:{status[1]}"))

    def rows(start: str) -> list[Value]:
        follower = follow(options_for(server, start=start))
        assert follower.transactions[0].is_noop, "the first read names the place at once"
        return [t.rows[0].after[0] for t in follower.transactions if t.rows and t.rows[0].after]

    assert rows("earliest") == [0, 1, 2, 3]
    assert rows("now") == []
    for number, (gtid, place) in enumerate(places):
        assert rows(gtid) == list(range(number + 1, 4))
        assert rows(place) == list(range(number + 1, 4))
    with pytest.raises(PositionLostError, match="no event of it ends at offset 5"):
        follow(options_for(server, start="binlog.000001:5"))
    with pytest.raises(PositionLostError, match="has no file nosuch"):
        follow(options_for(server, start="nosuch.000001:4"))
    with pytest.raises(PositionLostError, match="ahead of the server"):
        follow(options_for(server, start="0-1-1000"))
    with pytest.raises(PositionLostError, match="no position in a MariaDB's binlog"):
        follow(options_for(server), "sqlite:17")
    with pytest.raises(ConfigError, match="start"):
        follow(options_for(server, start="yesterday"))


def test_a_server_that_has_written_nothing(
    start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]
) -> None:
    """There is no GTID yet, but there is an event id, from which a later start goes on."""
    server = start_mariadb()
    follower = follow(options_for(server))
    (first,) = follower.transactions
    assert first.event_id.startswith(";binlog.000001:4;")
    follower.close()
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)", "INSERT INTO s.t VALUES (1)")
    assert len(follow(options_for(server), first.event_id).transactions) == 3
    server.execute("RESET MASTER")
    with pytest.raises(PositionLostError):
        follow(options_for(server), follow(options_for(server)).transactions[0].event_id.replace(":4", ":5"))


def test_a_start_from_now_survives_a_restart_before_the_first_transaction(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Nothing is lost between two starts from "now": the first read gives the log an event id to go on from."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    (first,) = follower.transactions
    assert first.is_noop and first.shard == UNKNOWN_SHARD
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (1)")
    follower.close()
    again = follow(options_for(mariadb, databases=(mariadb_database,)), first.event_id)
    assert [t.rows[0].after for t in again.transactions if t.rows] == [(1,)]


def test_positions_move_over_what_is_not_captured(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Changes of other databases make no transactions, but the position passes them, so that no purge loses it."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    quiet = follow(options_for(mariadb, databases=("nothing",), position_interval_s=0.0))
    patient = follow(options_for(mariadb, databases=("nothing",), position_interval_s=3600.0))
    for number in range(3):
        run(mariadb, mariadb_database, f"INSERT INTO t VALUES ({number})")
    assert quiet.catch_up() == [] and patient.catch_up() == []
    assert len(patient.transactions) == 1
    assert quiet.transactions[-1].is_noop
    gtids = ",".join(
        sorted(mariadb.execute("SELECT @@gtid_binlog_pos")[0][0].split(","), key=lambda g: int(g.split("-")[0]))
    )
    assert quiet.transactions[-1].event_id.startswith(gtids + ";")
    assert patient.source.status().position == quiet.source.status().position


def test_the_shard_rule_table_joins_by_foreign_keys(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """data-model.md, "Shards": rule `table`, the graph read again after each DDL; schema is the default."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE b (id INT PRIMARY KEY)",
        "CREATE TABLE a (id INT PRIMARY KEY, b INT, FOREIGN KEY (b) REFERENCES b (id))",
        "CREATE TABLE c (id INT PRIMARY KEY)",
    )
    rule = ShardRule(kind=ShardRuleKind.TABLE)
    follower = follow(options_for(mariadb, databases=(mariadb_database,), shard_rule=rule))
    by_schema = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "INSERT INTO b VALUES (1)",
        "INSERT INTO a VALUES (1, 1)",
        "INSERT INTO c VALUES (1)",
        "BEGIN",
        "INSERT INTO b VALUES (2)",
        "INSERT INTO c VALUES (2)",
        "COMMIT",
        "ALTER TABLE c ADD FOREIGN KEY (id) REFERENCES b (id)",
        "DELETE FROM c WHERE id = 2",
    )
    joined = f"{mariadb_database}.a"
    assert [t.shard for t in follower.catch_up()] == [
        joined,
        joined,
        f"{mariadb_database}.c",
        UNKNOWN_SHARD,
        UNKNOWN_SHARD,
        joined,
    ]
    assert [t.shard for t in by_schema.catch_up()] == [mariadb_database] * 4 + [UNKNOWN_SHARD, mariadb_database]
    # A restart may name shards anew: an empty, serial transaction comes first.
    again = follow(
        options_for(mariadb, databases=(mariadb_database,), shard_rule=rule), follower.transactions[-1].event_id
    )
    again.read(0)
    assert again.transactions[0].is_noop and again.transactions[0].shard == UNKNOWN_SHARD


def test_group_commit_ids_become_metadata(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """sources.md: "GTID events carry the group-commit id: keep it as metadata"."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    wait, count = mariadb.execute("SELECT @@binlog_commit_wait_usec, @@binlog_commit_wait_count")[0]
    mariadb.execute("SET GLOBAL binlog_commit_wait_usec = 2000000, binlog_commit_wait_count = 4")
    try:
        threads = [
            threading.Thread(target=run, args=(mariadb, mariadb_database, f"INSERT INTO t VALUES ({number})"))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        mariadb.execute(f"SET GLOBAL binlog_commit_wait_usec = {wait}, binlog_commit_wait_count = {count}")
    found = follower.catch_up()
    assert len(found) == 4
    ids = [t.metadata.get("group_commit_id") for t in found]
    assert len({one for one in ids if one is not None}) < len([one for one in ids if one is not None])


def test_annotations_become_metadata(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """The option `annotate`: the statement behind the rows, where the server logs it."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,), annotate=True))
    plain = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (1) /* whence */")
    assert follower.catch_up()[0].metadata["annotate"] == "INSERT INTO t VALUES (1) /* whence */"
    assert "annotate" not in plain.catch_up()[0].metadata


# --- the life of the server ------------------------------------------------------------------------------


def test_rotation_and_checksums(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Transactions go on over files, with checksums and without, in a running stream and after a start."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    first = follower.transactions[-1].event_id
    statements = []
    for number in range(12):
        statements.append(f"INSERT INTO t VALUES ({number})")
        if number % 3 == 0:
            statements.append("FLUSH BINARY LOGS")
        if number in (4, 8):
            statements.append(f"SET GLOBAL binlog_checksum = {'NONE' if number == 4 else 'CRC32'}")
    try:
        run(mariadb, mariadb_database, *statements)
    finally:
        mariadb.execute("SET GLOBAL binlog_checksum = CRC32")
    found = [t for t in follower.catch_up() if t.rows]
    assert [t.rows[0].after for t in found] == [(number,) for number in range(12)]
    assert len({t.event_id.split(";")[1].split(":")[0] for t in found}) == 7
    again = follow(options_for(mariadb, databases=(mariadb_database,)), first)
    assert [t.event_id for t in again.transactions if t.rows] == [t.event_id for t in found]


def test_a_damaged_binlog(start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]) -> None:
    """sources.md: "Verify the checksums". What is whole before the damage comes; then capture stops there for good."""
    server = start_mariadb()
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY, v TEXT)")
    run(server, "s", "INSERT INTO t VALUES (1, 'first')", "INSERT INTO t VALUES (2, 'second')", "FLUSH BINARY LOGS")
    file = server.data_directory / "binlog.000001"
    raw = bytearray(file.read_bytes())
    raw[raw.rindex(b"second")] ^= 1
    file.write_bytes(bytes(raw))
    follower = Follower(options_for(server, start="earliest"))
    try:
        follower.start()
        for _ in range(2):
            with pytest.raises(
                UnsupportedEventError, match=r"damaged.*WRITE_ROWS_V1 event that ends at .* checksum"
            ) as caught:
                follower.catch_up()
            assert [change.after for t in follower.transactions for change in t.rows] == [(1, "first")]
            assert caught.value.event_id == follower.transactions[-1].event_id
    finally:
        follower.close()


def test_purged_binlogs(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """Issue, bad input: a source "whose wanted binlog is gone"."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server))
    run(server, "s", "INSERT INTO t VALUES (1)")
    (transaction,) = follower.catch_up()
    follower.close()
    run(server, "s", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
    last = server.execute("SHOW BINARY LOGS")[-1][0]
    server.execute(f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(PositionLostError, match="purged") as caught:
        follow(options_for(server), transaction.event_id)
    assert caught.value.event_id == transaction.event_id
    # The last of a purged file is still a place to go on from.
    at_rotation = server.execute("SELECT @@gtid_binlog_pos")[0][0].rsplit("-", 1)
    follow(options_for(server), f"{at_rotation[0]}-{int(at_rotation[1]) - 1}")


def test_a_source_behind_the_log(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """Issue, bad input: a source "whose position is behind the log's": it lost its tail, or is a restored backup."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server))
    for number in range(5):
        run(server, "s", f"INSERT INTO t VALUES ({number})")
    found = follower.catch_up()
    follower.close()
    server.execute("RESET MASTER")
    with pytest.raises(PositionLostError, match=r"the server's binlog has never held|ahead of the server"):
        follow(options_for(server), found[-1].event_id)
    run(server, "s", "INSERT INTO t VALUES (10)")
    with pytest.raises(PositionLostError, match="ahead of the server"):
        follow(options_for(server), found[-1].event_id)
    # The same GTIDs given out once more: only file and offset tell.
    for number in range(11, 25):
        run(server, "s", f"INSERT INTO t VALUES ({number}), ({number + 100})")
    with pytest.raises(PositionLostError, match="it is not the file that was captured"):
        follow(options_for(server), found[-1].event_id)


def test_a_reset_server_whose_numbers_have_passed_the_logs(
    fresh_binlog: MariaDbServer, follow: Callable[..., Follower]
) -> None:
    """The same GTIDs at the same offsets of the same files, and other rows: only the last transaction tells."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server))
    run(server, "s", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    first, last = follower.catch_up()
    follower.close()
    assert follow(options_for(server), first.event_id).transactions[-1].event_id == last.event_id
    server.execute("RESET MASTER")
    run(server, "", "DROP TABLE s.t", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    run(server, "s", *(f"INSERT INTO t VALUES ({number})" for number in range(11, 19)))
    with pytest.raises(PositionLostError, match=r"is another transaction|not the file that was captured") as caught:
        follow(options_for(server), last.event_id)
    assert "--accept-server" in str(caught.value)
    # A file that is newer than the newest was not purged.
    newer = last.event_id.replace("binlog.000001", "binlog.000007")
    with pytest.raises(PositionLostError, match=r"its newest file is binlog\.000001: the server's binlog was reset"):
        follow(options_for(server), newer)


def test_equal_gtids_at_equal_offsets(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """Reset, and the same statements with another value: neither GTID nor offset differs at any place."""
    server = fresh_binlog
    found = []
    for value in (1, 2):
        server.execute("DROP DATABASE s")
        server.execute("RESET MASTER")
        run(
            server,
            "",
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY)",
            f"INSERT INTO s.t VALUES ({value})",
        )
        found.append(follow(options_for(server, start="earliest")).transactions[-1].event_id)
    before, after = (event_id.rsplit(":", 1) for event_id in found)
    assert before[0] == after[0] and before[1] != after[1], found
    run(server, "s", "INSERT INTO t VALUES (3)")
    with pytest.raises(PositionLostError, match=r"what it holds as 0-1-3 was committed at 20.*is another transaction"):
        follow(options_for(server), found[0])
    assert [t.rows[0].after for t in follow(options_for(server), found[1]).transactions] == [(3,)]


@pytest.fixture
def primary_and_replica(start_mariadb: Callable[..., MariaDbServer]) -> tuple[MariaDbServer, MariaDbServer]:
    """A server with a database `s`, and a native replica of it that keeps a binlog of its own."""
    primary, replica = start_mariadb(), start_mariadb(options={"server_id": 2, "log_slave_updates": True})
    replica.execute("RESET MASTER")
    replicate(primary, replica)
    run(primary, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY, v TEXT)")
    caught_up(primary, replica)
    return primary, replica


def replicate(primary: MariaDbServer, replica: MariaDbServer) -> None:
    primary.execute("CREATE OR REPLACE USER repl@'%'")
    primary.execute("GRANT REPLICATION SLAVE ON *.* TO repl@'%'")
    replica.execute(
        f"CHANGE MASTER TO master_host = '{primary.host}', master_port = {primary.port}, master_user = 'repl', "
        "master_use_gtid = slave_pos"
    )
    replica.execute("START SLAVE")


def caught_up(primary: MariaDbServer, replica: MariaDbServer) -> None:
    position = primary.execute("SELECT @@gtid_binlog_pos")[0][0]
    assert replica.execute("SELECT MASTER_GTID_WAIT(%s, 30)", (position,)) == [(0,)], replica.execute(
        "SHOW SLAVE STATUS"
    )


def test_capture_moves_from_a_replica_to_its_primary_and_back(
    primary_and_replica: tuple[MariaDbServer, MariaDbServer], follow: Callable[..., Follower]
) -> None:
    """Files and offsets are another server's; the last transaction is the same, so it goes on by GTID."""
    primary, replica = primary_and_replica
    run(primary, "s", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = REPEAT('x', 20000)")
    caught_up(primary, replica)
    position = follow(options_for(replica, start="earliest")).transactions[-1].event_id
    seen: list[Value] = []
    for number, server in enumerate((primary, replica, primary), start=10):
        run(primary, "s", f"INSERT INTO t VALUES ({number}, 'c')")
        run(primary, "", f"CREATE TABLE s.t{number} (id INT PRIMARY KEY)")
        if number == 11:
            server.execute("FLUSH BINARY LOGS")
        caught_up(primary, replica)
        follower = follow(options_for(server), position)
        seen += [change.after[0] for t in follower.transactions for change in t.rows if change.after]
        assert follower.transactions[-1].texts == [f"CREATE TABLE s.t{number} (id INT PRIMARY KEY)"]
        position = follower.transactions[-1].event_id
        follower.close()
    assert seen == [10, 11, 12]


def test_another_server_with_other_transactions_is_refused_until_it_is_accepted(
    start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]
) -> None:
    """A restored dump has the same GTIDs for other things; and where the proof is purged, there is none."""
    one, two = start_mariadb(), start_mariadb()
    for server, value in ((one, 1), (two, 2)):
        run(
            server,
            "",
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY)",
            f"INSERT INTO s.t VALUES ({value})",
        )
    position = follow(options_for(one, start="earliest")).transactions[-1].event_id
    run(two, "s", "INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS")
    uids = [server.execute("SELECT LEFT(@@server_uid, 8)")[0][0] for server in (one, two)]
    with pytest.raises(PositionLostError, match="is another transaction") as caught:
        follow(options_for(two), position)
    assert all(uid in str(caught.value) for uid in uids), "both are named"
    assert "--accept-server" in str(caught.value)
    source = MariadbSource(options_for(two))
    source.accept_server = True
    source.start(position)
    fragments = list(source.read(5))
    source.close()
    assert decode(fragments[0].payload).is_noop(), "the log knows at once that the server was accepted"
    assert [change.after for change in decode(fragments[1].payload).changes if isinstance(change, RowChange)] == [(3,)]
    assert follow(options_for(two), fragments[0].event_id).transactions[-1].rows[0].after == (3,)
    deadline = time.monotonic() + 30
    while two.execute("SHOW BINARY LOGS")[0][0] == "binlog.000001":  # kept while a dump thread is on its way out
        assert time.monotonic() < deadline
        run(two, "s", "PURGE BINARY LOGS TO 'binlog.000002'")
    with pytest.raises(PositionLostError, match="which would prove that it is of the same history, is purged there"):
        follow(options_for(two), position)


def test_a_deleted_domain_is_no_loss(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """FLUSH BINARY LOGS DELETE_DOMAIN_ID of a domain that has ended; one that was never there is a loss."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)", "SET gtid_domain_id = 7", "INSERT INTO s.t VALUES (1)")
    run(server, "s", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
    follower = follow(options_for(server, start="earliest"))
    position = follower.transactions[-1].event_id
    assert "7-1-1" in position
    server.execute("PURGE BINARY LOGS TO 'binlog.000002'")
    server.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7)")
    run(server, "s", "INSERT INTO t VALUES (4)")
    assert [t.rows[0].after for t in follower.catch_up()] == [(4,)], "while it runs"
    follower.close()
    again = follow(options_for(server), position)
    assert [t.rows[0].after for t in again.transactions if t.rows] == [(4,)]
    with pytest.raises(PositionLostError, match="has never held"):
        follow(options_for(server), "7-1-1")


def test_a_reset_does_not_end_a_running_stream(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """The server keeps sending the file that it has removed, then the next one; the log's place is named."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server))
    run(server, "s", "INSERT INTO t VALUES (1)")
    (transaction,) = follower.catch_up()
    run(server, "s", "RESET MASTER", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
    with pytest.raises(PositionLostError, match=r"binlog\.000002 begins after GTID 0-1-1.*ends at 0-1-\d+") as caught:
        follower.read(10)
    assert caught.value.event_id == transaction.event_id


def test_the_binlog_is_reset_under_a_running_capture(
    start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]
) -> None:
    """A server that comes back another is refused, not followed."""
    server = start_mariadb()
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server))
    run(server, "s", "INSERT INTO t VALUES (1)")
    assert len(follower.catch_up()) == 1
    server.kill()
    server.start()
    server.execute("RESET MASTER")
    run(server, "s", "INSERT INTO t VALUES (2)")
    with pytest.raises(PositionLostError):
        follower.read(10)
    with pytest.raises(PositionLostError):
        follower.read(10)


def test_kill_9_of_the_server_loses_and_repeats_nothing(
    start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]
) -> None:
    """Kill -9 while it is written and read."""
    server = start_mariadb(options={"sync_binlog": 1, "innodb_flush_log_at_trx_commit": 1})
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY, v VARBINARY(200))")
    follower = follow(options_for(server))
    acknowledged: set[int] = set()
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            with contextlib.suppress(pymysql.err.MySQLError), contextlib.closing(server.connect("s")) as connection:
                while not done.is_set():
                    number += 1
                    connection.cursor().execute(f"INSERT INTO t VALUES ({number}, REPEAT('x', 200))")
                    acknowledged.add(number)
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            deadline = time.monotonic() + 0.7
            while time.monotonic() < deadline:
                follower.read(0.05)
            server.kill()
            follower.read(0.2)
            server.start()
    finally:
        done.set()
        writer.join()
    run(server, "s", "INSERT INTO t VALUES (0, 'the last one')")
    follower.catch_up()
    captured = [t.rows[0].after[0] for t in follower.transactions if t.rows and t.rows[0].after]
    assert len(captured) == len(set(captured)), "a transaction came twice"
    stored = {row[0] for row in server.execute("SELECT id FROM s.t")}
    assert set(captured) == stored
    assert acknowledged <= stored
    assert len(acknowledged) > 50
    assert follower.source.status().reconnects == 2


def test_a_server_that_stays_away(start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]) -> None:
    """SourceUnavailableError after `reconnect_s`; until then a read just ends; and a later read tries again."""
    server = start_mariadb()
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    follower = follow(options_for(server, reconnect_s=1.0))
    server.kill()
    assert follower.read(0.1) == []
    with pytest.raises(SourceUnavailableError, match=f"{server.host}:{server.port} does not answer"):
        follower.read(20)
    with pytest.raises(SourceUnavailableError):
        MariadbSource(options_for(server)).start(None)
    server.start()
    run(server, "s", "INSERT INTO t VALUES (1)")
    assert [t.rows[0].after for t in follower.read(5)] == [(1,)]


class Cutter:
    """A TCP proxy that cuts its connections after so many bytes from the server."""

    def __init__(self, server: MariaDbAddress) -> None:
        self._server = server
        self.limit: int | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection((self._server.host, self._server.port))
            threading.Thread(target=self._copy, args=(client, upstream, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(upstream, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while chunk := source.recv(16384):
                if counted and self.limit is not None and passed + len(chunk) > self.limit:
                    sink.sendall(chunk[: max(0, self.limit - passed)])
                    self.cuts += 1
                    break
                sink.sendall(chunk)
                passed += len(chunk)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()


def test_a_line_cut_inside_transactions(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A connection lost in the middle of a transaction, many times: each comes once, whole."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(3000))")
    proxy = Cutter(mariadb)
    try:
        options = options_for(
            mariadb, databases=(mariadb_database,), port=proxy.port, memory_bytes=20_000, fragment_bytes=30_000
        )
        follower = follow(options)
        sizes = [1, 40, 3, 60, 7, 25, 50]
        number = 0
        for size in sizes:
            rows = ", ".join(f"({number + at}, REPEAT('x', 3000))" for at in range(size))
            run(mariadb, mariadb_database, f"INSERT INTO t VALUES {rows}")
            number += size
        follower.source.close()
        # The first limit lets some transactions pass, and never the fourth; the second lets that pass, and not all.
        proxy.limit = 150_000
        follower.source.start(follower.transactions[0].event_id)
        for limit, cuts in ((150_000, 3), (200_000, 4)):
            proxy.limit = limit
            deadline = time.monotonic() + 30
            while proxy.cuts < cuts and time.monotonic() < deadline:
                follower.read(0.1)
        proxy.limit = None
        follower.catch_up()
    finally:
        proxy.close()
    assert proxy.cuts >= 4
    found = [t for t in follower.transactions if t.rows]
    assert [len(t.rows) for t in found] == sizes
    assert [c.after[0] for t in found for c in t.rows if c.after] == list(range(number))
    assert max(len(t.fragments) for t in found) > 4


def test_an_iteration_given_up_inside_a_transaction_comes_again_whole(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Capture may fail to append the third fragment: the next read starts that transaction anew."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(3000))")
    follower = follow(options_for(mariadb, databases=(mariadb_database,), fragment_bytes=10_000))
    run(mariadb, mariadb_database, "INSERT INTO t SELECT seq, REPEAT('x', 3000) FROM seq_1_to_50")
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (100, '')")
    for _ in range(2):
        iterator = cast(Generator[Fragment, None, None], follower.source.read(5))
        assert not next(iterator).last
        assert not next(iterator).last
        iterator.close()
    first, second = follower.catch_up()
    assert len(first.rows) == 50 and second.rows[0].after == (100, b"")
    # Given up behind the last fragment: that transaction is over.
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (101, ''), (102, '')")
    iterator = cast(Generator[Fragment, None, None], follower.source.read(5))
    assert next(iterator).last
    iterator.close()
    assert follower.catch_up() == []


def test_a_read_ends_after_so_many_bytes(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A busy source must not keep its reader from making things durable; nor one whose changes are not captured."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,), read_bytes=1))
    blind = follow(options_for(mariadb, databases=("nothing",), read_bytes=1))
    run(mariadb, mariadb_database, *(f"INSERT INTO t VALUES ({number})" for number in range(3)))
    assert [len(follower.read(20)) for _ in range(3)] == [1, 1, 1]
    for _ in range(3):
        assert blind.read(20) == []
    assert [t.event_id for t in blind.transactions[1:]] == [t.event_id for t in follower.transactions[1:]]
    assert all(t.is_noop for t in blind.transactions), "to yield nothing would say that nothing is left"


def test_stop_ends_a_waiting_read(mariadb: MariaDbAddress, follow: Callable[..., Follower]) -> None:
    """source.py: `stop` makes a waiting read end soon, from another thread."""
    follower = follow(options_for(mariadb, databases=("nothing",)))
    timer = threading.Timer(0.2, follower.source.stop)
    begun = time.monotonic()
    timer.start()
    assert list(follower.source.read(30)) == []
    assert time.monotonic() - begun < 10
    assert list(follower.source.read(30)) == []
    assert time.monotonic() - begun < 10
    timer.join()
    follower.source.start(follower.transactions[-1].event_id)
    assert follower.read(0.1) == []


def test_a_reader_that_is_slow_is_not_cut(fresh_binlog: MariaDbServer, follow: Callable[..., Follower]) -> None:
    """sources.md: "The server cuts a slow reader". With a full queue the server waits, and the line stays up."""
    server = fresh_binlog
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY, v VARBINARY(4000))")
    server.execute("SET GLOBAL net_write_timeout = 1")
    follower = follow(options_for(server, queue_bytes=100_000))
    run(
        server,
        "s",
        *[f"INSERT INTO t SELECT seq, REPEAT('x', 4000) FROM seq_{at}_to_{at + 999}" for at in range(1, 8000, 1000)],
    )
    time.sleep(3)
    follower.catch_up()
    server.execute("SET GLOBAL net_write_timeout = DEFAULT")
    assert sum(len(t.rows) for t in follower.transactions) == 8000
    assert follower.source.status().reconnects == 0


def test_an_idle_line_is_kept_alive(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Heartbeats pass as nothing; the stream goes on behind them."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT PRIMARY KEY)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,), heartbeat_s=0.05))
    assert follower.read(0.5) == []
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (1)")
    assert len(follower.catch_up()) == 1
    assert follower.source.status().reconnects == 0


# --- XA --------------------------------------------------------------------------------------------------


def prepare(server: MariaDbAddress, database: str, xid: str, *statements: str) -> None:
    run(server, database, f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")


@pytest.fixture
def xa_tables(fresh_binlog: MariaDbServer) -> Iterator[MariaDbServer]:
    """A server with `s.t`, captured, and `other.t`, not; branches that a test left prepared are rolled back."""
    server = fresh_binlog
    run(server, "", "CREATE DATABASE other", "CREATE TABLE other.t (id INT PRIMARY KEY)")
    run(server, "", "CREATE TABLE s.t (id INT PRIMARY KEY, v VARBINARY(3000))")
    yield server
    for row in server.execute("XA RECOVER FORMAT = 'SQL'"):
        server.execute(f"XA ROLLBACK {row[3]}")
    server.execute("DROP DATABASE other")


def test_xa_is_carried_at_its_commit_whenever_capture_is_killed(
    xa_tables: MariaDbServer, follow: Callable[..., Follower]
) -> None:
    """Killed at each step between PREPARE and COMMIT, it goes on with what the log lacks, each transaction once."""
    server = xa_tables
    options = options_for(server, databases=("s",), position_interval_s=0.0, memory_bytes=5000, read_bytes=1)
    follower = follow(options)
    prepare(server, "other", "'o'", "INSERT INTO t VALUES (1)")
    prepare(server, "s", "'a'", "INSERT INTO t SELECT seq, REPEAT('x', 3000) FROM seq_1_to_9")
    prepare(server, "s", "'b','q',7", "INSERT INTO t VALUES (10, '')", "UPDATE t SET v = 'y' WHERE id = 10")
    run(server, "s", "INSERT INTO t VALUES (20, '')", "FLUSH BINARY LOGS")
    prepare(server, "s", "'c'", "INSERT INTO t VALUES (30, '')", "INSERT INTO other.t VALUES (2)")
    run(server, "s", "XA COMMIT 'b','q',7", "XA ROLLBACK 'o'", "INSERT INTO t VALUES (40, '')", "XA ROLLBACK 'c'")
    prepare(server, "s", "'c'", "INSERT INTO t VALUES (31, '')")
    run(server, "s", "XA COMMIT 'a'", "INSERT INTO t VALUES (50, '')", "XA COMMIT 'c'", "DELETE FROM t WHERE id = 50")
    run(server, "s", "XA START 'd'", "INSERT INTO t VALUES (60, '')", "XA END 'd'", "XA COMMIT 'd' ONE PHASE")
    replica = Replica()
    rows = [[change.after and change.after[0] for change in t.rows] for t in follower.catch_up()]
    for transaction in follower.transactions:
        replica.apply(transaction)
    replica.assert_equals({"t": selected(server, "s")["t"]})
    assert rows == [[20], [10, 10], [40], list(range(1, 10)), [50], [31], [None], [60]]
    steps = [t.event_id for t in follower.transactions]
    assert len(steps) > 15 and ["xa=" in step for step in steps].index(True) >= 2
    assert "xa=" not in steps[-1] and follower.source.status().prepared == ()
    for step, event_id in enumerate(steps):
        again = follow(options, event_id)
        wanted = [(t.event_id, t.changes) for t in follower.transactions[step + 1 :] if not t.is_noop]
        assert [(t.event_id, t.changes) for t in again.transactions if not t.is_noop] == wanted, event_id
        again.close()


def test_a_prepared_branch_survives_servers_lines_and_files(
    start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    """A branch outlives a kill of its server; one that waits for long, and one whose binlog is purged, are named."""
    server = start_mariadb()
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)")
    clock = ClockAhead()
    follower = follow(options_for(server, xa_warn_s=0.0, position_interval_s=0.0), clock=clock)
    prepare(server, "s", "'a'", "INSERT INTO t VALUES (1)")
    follower.catch_up()
    held = follower.transactions[-1].event_id
    assert follower.source.status().prepared == ("X'61',X'',1 on s.t",)
    server.kill()
    server.start()
    run(server, "s", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    time.sleep(1.1)
    clock.ahead_s += 11  # a while later
    with caplog.at_level(logging.WARNING, logger="tranlog"):
        assert [t.rows[0].after for t in follower.catch_up()] == [(2,)]
        server.execute(f"PURGE BINARY LOGS TO '{server.execute('SHOW BINARY LOGS')[-1][0]}'")
        clock.ahead_s += 11  # a while later
        follower.read(0.1)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "An XA transaction is prepared for" in said and "xid=X'61',X'',1 on s.t" in said
    assert "The binlog before a prepared XA transaction is purged" in said
    with pytest.raises(PositionLostError, match=r"GTIDs 0-1-2 .*prepared there are now: X'61',X'',1") as caught:
        follow(options_for(server), follower.transactions[-1].event_id)
    assert is_in_refusals(caught.value)
    assert "xa=0-1-2" in held
    run(server, "s", "XA COMMIT 'a'")
    assert [t.rows[0].after for t in follower.catch_up()] == [(1,)], "the one that runs has it still"
    follow(options_for(server), follower.transactions[-1].event_id)


def is_in_refusals(error: Exception) -> bool:
    """Whether docs/refusals.md has an entry for it, which says why no gap takes its place."""
    page = (Path(__file__).parents[2] / "docs" / "refusals.md").read_text()
    return any(re.search(entry, str(error)) for entry in re.findall(r"^\| `([^`]*)` \|", page, re.MULTILINE))


def test_a_log_that_begins_while_a_branch_is_prepared(
    xa_tables: MariaDbServer, follow: Callable[..., Follower]
) -> None:
    """A copy of the tables made now lacks its rows: they come at the commit, or the log is refused by their xid."""
    server = xa_tables
    prepare(server, "s", "'a'", "INSERT INTO t VALUES (1, '')")
    run(server, "s", "INSERT INTO t VALUES (2, '')", "FLUSH BINARY LOGS")
    follower = follow(options_for(server, databases=("s",)))
    other = follow(options_for(server, databases=("other",)))
    follower.read(1)
    assert follower.source.status().prepared == ("X'61',X'',1 on s.t",)
    again = follow(options_for(server, databases=("s",)), follower.transactions[0].event_id)
    server.execute(f"PURGE BINARY LOGS TO '{server.execute('SHOW BINARY LOGS')[-1][0]}'")
    late = Follower(options_for(server, databases=("s",)))
    for _ in range(2):
        with pytest.raises(SourceSetupError, match=r"X'61',X'',1\. End them") as caught:
            late.start().read(1)
        assert is_in_refusals(caught.value)
        run(server, "s", "INSERT INTO t VALUES (3, '') ON DUPLICATE KEY UPDATE v = CONCAT(v, '.')")
    assert late.transactions == [], "and the log has no event id yet"
    late.close()
    run(server, "s", "XA COMMIT 'a'")
    for one in (follower, again):
        assert [t.rows[0].after for t in one.catch_up()] == [(3, b""), (3, b"."), (1, b"")]
    assert other.catch_up() == [] and other.source.status().prepared == ()


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("binlog_format", "MIXED", ["binlog_format is MIXED", "SET GLOBAL binlog_format = 'ROW'"]),
        ("binlog_format", "STATEMENT", ["SET GLOBAL binlog_format = 'ROW'", "already keep the old format"]),
        ("binlog_row_image", "MINIMAL", ["SET GLOBAL binlog_row_image = 'FULL'"]),
        ("binlog_row_image", "NOBLOB", ["SET GLOBAL binlog_row_image = 'FULL'"]),
        ("binlog_row_metadata", "NO_LOG", ["SET GLOBAL binlog_row_metadata = 'FULL'"]),
        ("binlog_row_metadata", "MINIMAL", ["SET GLOBAL binlog_row_metadata = 'FULL'"]),
    ],
)
def test_a_server_that_does_not_log_full_rows_is_refused(
    mariadb: MariaDbAddress, option: str, value: str, words: list[str]
) -> None:
    """ "refuses a server without ROW/FULL/FULL, naming the SET statements"."""
    before = mariadb.execute(f"SELECT @@global.{option}")[0][0]
    mariadb.execute(f"SET GLOBAL {option} = {value}")
    try:
        with pytest.raises(SourceSetupError) as caught:
            MariadbSource(options_for(mariadb)).start(None)
    finally:
        mariadb.execute(f"SET GLOBAL {option} = {before!r}")
    for word in words:
        assert word in str(caught.value)


def test_the_remedy_is_the_remedy(start_mariadb: Callable[..., MariaDbServer], follow: Callable[..., Follower]) -> None:
    """The statements of the refusal, run as they stand, make the server fit."""
    server = start_mariadb(options={"binlog_format": None, "binlog_row_metadata": None, "binlog_row_image": "MINIMAL"})
    with pytest.raises(SourceSetupError) as caught:
        follow(options_for(server))
    statements = caught.value.remedy.partition("Run at the source: ")[2].partition("; and put")[0]
    assert statements.count("SET GLOBAL") == 3
    for statement in statements.split("; "):
        server.execute(statement)
    follower = follow(options_for(server))
    run(server, "", "CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY)", "INSERT INTO s.t VALUES (1)")
    assert follower.catch_up()[-1].rows[0].after == (1,)


def test_a_server_without_a_binlog_is_refused(start_mariadb: Callable[..., MariaDbServer]) -> None:
    server = start_mariadb(options={"log_bin": None})
    with pytest.raises(SourceSetupError, match=r"keeps no binary log.*--log-bin"):
        MariadbSource(options_for(server)).start(None)


def test_missing_rights_are_named(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    """Missing privileges and a wrong password: what to grant, and to whom."""
    user = f"u{mariadb_database[-8:]}"
    mariadb.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    options = options_for(mariadb, user=user, password="secret", databases=(mariadb_database,))
    try:
        with pytest.raises(SourceSetupError, match="Check user and password"):
            MariadbSource(options_for(mariadb, user=user, password="wrong")).start(None)
        with pytest.raises(SourceSetupError, match=r"BINLOG MONITOR.*GRANT REPLICATION SLAVE, BINLOG MONITOR"):
            MariadbSource(options_for(mariadb, user=user, password="secret")).start(None)
        mariadb.execute(f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO '{user}'@'%'")
        mariadb.execute(f"GRANT SELECT ON {mariadb_database}.* TO '{user}'@'%'")
        follower = Follower(options).start()
        run(mariadb, mariadb_database, "CREATE TABLE t (id UUID PRIMARY KEY)", "INSERT INTO t VALUES (UUID())")
        assert follower.catch_up()[-1].rows[0].table.columns[0].source_type == "uuid"
        follower.close()
    finally:
        mariadb.execute(f"DROP USER '{user}'@'%'")


def test_two_readers_with_one_server_id(mariadb: MariaDbAddress, follow: Callable[..., Follower]) -> None:
    """The server ends the older one: it must not fight for the place, but say what is wrong."""
    one = follow(options_for(mariadb, server_id=4711))
    two = follow(options_for(mariadb, server_id=4711))
    with pytest.raises(SourceSetupError, match="server_id"):
        one.read(10)
    assert two.catch_up() == []


STATEMENT_FORMAT = "SET binlog_format = STATEMENT"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            [STATEMENT_FORMAT, "INSERT INTO t (id) VALUES (5)"],
            r"'INSERT INTO t \(id\) VALUES \(5\)'.*binlog_format = 'ROW'",
        ),
        (["SET binlog_format = MIXED", "UPDATE t SET id = id + 1"], r"'UPDATE t SET id = id \+ 1'"),
        ([STATEMENT_FORMAT, "CREATE TABLE k AS SELECT * FROM t"], "'CREATE TABLE k AS SELECT"),
        ([STATEMENT_FORMAT, "LOAD DATA LOCAL INFILE '{file}' INTO TABLE t (id)"], "LOAD DATA in statement format"),
        (
            ["SET binlog_row_image = MINIMAL", "UPDATE t SET v = 9"],
            r"rows of .*\.t without all their columns.*binlog_row_image",
        ),
    ],
    ids=["statement", "mixed", "create-select", "load-data", "row-image"],
)
def test_what_cannot_be_carried_stops_by_name(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    tmp_path_factory: pytest.TempPathFactory,
    statements: list[str],
    words: str,
) -> None:
    """sources.md: "Unknown events, XA, compressed events, LOAD DATA: stop by name, never skip"."""
    file = tmp_path_factory.mktemp("load") / "rows"
    file.write_text("21\n22\n")
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, w TEXT)",
        "INSERT INTO t VALUES (1, 1, '')",
    )
    options = options_for(mariadb, databases=(mariadb_database,), on_gap="stop")
    follower = follow(options)
    run(mariadb, mariadb_database, "INSERT INTO t VALUES (-1, -1, '')")
    local = mariadb.execute("SELECT @@local_infile")[0][0]
    mariadb.execute("SET GLOBAL local_infile = ON")
    try:
        with contextlib.closing(mariadb.connect(mariadb_database, local_infile=True)) as connection:
            for statement in statements:
                connection.cursor().execute(statement.format(file=file))
    finally:
        mariadb.execute(f"SET GLOBAL local_infile = {local}")
    with pytest.raises(UnsupportedEventError, match=words) as caught:
        follower.catch_up()
    # What was before it is handed out first, the error names the place behind it, and it is not passed by asking again.
    assert len(follower.transactions) == 2
    assert caught.value.event_id == follower.transactions[1].event_id
    with pytest.raises(UnsupportedEventError):
        list(follower.source.read(0))
    with pytest.raises(UnsupportedEventError):
        follow(options, caught.value.event_id)


def test_what_does_not_concern_captured_tables_is_passed_over(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any user of the server may do all this in a database of his own; capture goes on, and says what it passed."""
    file = tmp_path_factory.mktemp("load") / "rows"
    file.write_text("21\n22\n")
    other = f"{mariadb_database}_other"
    run(
        mariadb,
        "",
        f"CREATE DATABASE {other}",
        f"CREATE TABLE {other}.t (id INT PRIMARY KEY, v INT, w TEXT)",
        f"CREATE TABLE {other}.m (id INT) ENGINE = MyISAM",
        f"CREATE TABLE {mariadb_database}.t (id INT PRIMARY KEY)",
    )
    options = options_for(mariadb, databases=(mariadb_database,), transaction_bytes_max=100_000, on_gap="stop")
    follower = follow(options)
    local, metadata = mariadb.execute("SELECT @@local_infile, @@binlog_row_metadata")[0]
    mariadb.execute("SET GLOBAL local_infile = ON")
    try:
        with contextlib.closing(mariadb.connect(other, local_infile=True)) as connection, connection.cursor() as cursor:
            for statement in (
                "INSERT INTO t VALUES (1, 1, '')",
                "SET binlog_row_image = MINIMAL",
                "UPDATE t SET v = 9",
                "SET binlog_row_image = FULL",
                "INSERT INTO t SELECT seq, 1, REPEAT('x', 300) FROM seq_2_to_1000",
                STATEMENT_FORMAT,
                "INSERT INTO t (id) VALUES (-5)",
                f"UPDATE {other}.t SET v = RAND() WHERE id < 5",
                f"LOAD DATA LOCAL INFILE '{file}' REPLACE INTO TABLE t (id)",
                "BEGIN",
                "INSERT INTO t (id) VALUES (-6)",
                "SAVEPOINT a",
                "INSERT INTO t (id) VALUES (-7)",
                "INSERT INTO m VALUES (-7)",
                "ROLLBACK TO a",
                "COMMIT",
                "SET binlog_format = ROW",
                "SET GLOBAL binlog_row_metadata = MINIMAL",
                "INSERT INTO t VALUES (-1, 1, '')",
                f"SET GLOBAL binlog_row_metadata = {metadata}",
                f"INSERT INTO {mariadb_database}.t VALUES (1)",
            ):
                cursor.execute(statement)
        with caplog.at_level(logging.WARNING, logger="tranlog"):
            assert [t.rows[0].after for t in follower.catch_up()] == [(1,)]
    finally:
        mariadb.execute(f"SET GLOBAL local_infile = {local}, GLOBAL binlog_row_metadata = {metadata}")
        mariadb.execute(f"DROP DATABASE {other}")
    passed = [r.getMessage() for r in caplog.records if "names no captured database" in r.getMessage()]
    assert any("INSERT INTO t (id) VALUES (-5)" in text for text in passed) and any("LOAD DATA" in t for t in passed)
    # A statement there that names a captured database is no statement there.
    run(mariadb, "mysql", STATEMENT_FORMAT, f"INSERT INTO {mariadb_database}.t VALUES (2)")
    with pytest.raises(UnsupportedEventError, match=r"stands in the place of the rows"):
        follower.catch_up()


def test_a_failed_create_or_replace_select_drops_its_table(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """The server writes a DROP TABLE and a ROLLBACK behind it; what defines tables is not taken back."""
    run(mariadb, mariadb_database, "CREATE TABLE k (a INT PRIMARY KEY)", "INSERT INTO k VALUES (1)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    with pytest.raises(pymysql.err.IntegrityError):
        run(mariadb, mariadb_database, "CREATE OR REPLACE TABLE k (a INT PRIMARY KEY) SELECT 1 AS a UNION ALL SELECT 1")
    assert mariadb.execute("SHOW TABLES", database=mariadb_database) == []
    run(mariadb, mariadb_database, "CREATE TABLE k (a INT PRIMARY KEY)", "INSERT INTO k VALUES (5)")
    dropped, created, inserted = of(mariadb_database, follower.catch_up())
    assert str(dropped.texts[0]).startswith("DROP TABLE IF EXISTS") and dropped.statements[0].ddl
    assert str(created.texts[0]).startswith("CREATE TABLE k")
    assert inserted.rows[0].after == (5,)


def test_compressed_events_are_carried(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """log_bin_compress, for a session's transactions or all along: statements, rows, updates and deletes."""
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    mariadb.execute("SET GLOBAL log_bin_compress = ON")
    try:
        run(
            mariadb,
            mariadb_database,
            f"CREATE TABLE t (id INT PRIMARY KEY, w TEXT) COMMENT '{'c' * 500}'",
            "INSERT INTO t SELECT seq, REPEAT(seq, 3000) FROM seq_1_to_20",
            "UPDATE t SET w = CONCAT(w, REPEAT('y', 500))",
            "DELETE FROM t WHERE id > 15",
        )
        again = follow(options_for(mariadb, databases=(mariadb_database,)), follower.transactions[0].event_id)
    finally:
        mariadb.execute("SET GLOBAL log_bin_compress = OFF")
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    replica.assert_equals(selected(mariadb, mariadb_database))
    assert [t.changes for t in again.transactions if not t.is_noop] == [
        t.changes for t in follower.transactions if not t.is_noop
    ]
    assert any("cccc" in str(text) for t in follower.transactions for text in t.texts)


def test_statements_in_the_place_of_rows_can_be_recorded(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """The option statements = "record": nothing is lost from the log, what the text depends on among it."""
    run(mariadb, mariadb_database, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v DOUBLE)")
    follower = follow(options_for(mariadb, databases=(mariadb_database,), statements="record"))
    run(
        mariadb,
        mariadb_database,
        "SET binlog_format = STATEMENT, @a = 5",
        "INSERT INTO t (v) VALUES (@a)",
        "UPDATE t SET v = RAND() WHERE v = @a",
    )
    inserted, updated = follower.catch_up()
    assert inserted.texts == ["INSERT INTO t (v) VALUES (@a)"]
    assert not inserted.statements[0].ddl and inserted.shard == UNKNOWN_SHARD
    assert {name for name, _ in inserted.statements[0].options} >= {"insert_id", "@a"}
    assert {name for name, _ in updated.statements[0].options} >= {"rand_seed1", "rand_seed2", "@a"}


def test_foreign_keys_that_change_rows_by_themselves(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """MariaDB does not log what a cascade changes: refused at start and when such a key is added, or allowed."""
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT)",
    )
    options = options_for(mariadb, databases=(mariadb_database,))
    follower = follow(options)
    run(
        mariadb,
        mariadb_database,
        "ALTER TABLE child ADD CONSTRAINT cut FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (1, 1)",
        "DELETE FROM parent",
    )
    words = rf"cut of {mariadb_database}\.child to parent \(ON DELETE CASCADE\).*cascades = \"allow\""
    with pytest.raises(SourceSetupError, match=words):
        follower.catch_up()
    assert [t.texts[0][:17] for t in follower.transactions[1:]] == ["ALTER TABLE child"]
    with pytest.raises(SourceSetupError, match=words):
        follow(options)
    allowed = follow(
        options_for(mariadb, databases=(mariadb_database,), cascades="allow"), follower.transactions[-1].event_id
    )
    rows = [change for t in allowed.transactions for change in t.rows]
    assert [(c.op, c.table.table) for c in rows] == [
        (Op.INSERT, "parent"),
        (Op.INSERT, "child"),
        (Op.DELETE, "parent"),
    ], "if the server logs cascades now, the refusal can go"


@pytest.mark.parametrize("metadata", ["NO_LOG", "MINIMAL"])
def test_rows_without_metadata_have_the_catalogs_names(
    fresh_binlog: MariaDbServer, follow: Callable[..., Follower], metadata: str
) -> None:
    """binlog_row_metadata is global: for one transaction anybody may set it. An unchanged table tells the rest."""
    server = fresh_binlog
    run(
        server,
        "",
        "CREATE TABLE s.t (id INT UNSIGNED PRIMARY KEY, big BIGINT UNSIGNED, small TINYINT, d DECIMAL(8,2) UNSIGNED, "
        "f FLOAT, v VARCHAR(20) CHARACTER SET latin1, c CHAR(5), b BINARY(16), u UUID, i INET6, "
        "e ENUM('a','b') CHARACTER SET latin1, s SET('x','y','z'), x TEXT, y BLOB, ts TIMESTAMP(3) NULL, dt DATETIME, "
        "p POINT, bits BIT(11), yr YEAR, tm TIME(2), g BIGINT AS (id + 1) STORED, packed TEXT COMPRESSED)",
    )
    full = follow(options_for(server))
    values = (
        "18446744073709551615, -5, 1.25, 1.5, 'ä', 'cc', 'b', UUID(), '::1', 'b', 'x,z', 'text', 'blob', NOW(3), "
        "NOW(), POINT(1,2), b'101', 2020, '12:00:00.5', DEFAULT, 'packed'"
    )
    run(server, "s", f"INSERT INTO t VALUES (4000000000, {values})")
    try:
        server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        run(server, "s", "UPDATE t SET id = 4000000001")
        server.execute("SET GLOBAL binlog_row_metadata = FULL")
        inserted, updated = full.catch_up()
        assert updated.rows[0].table == inserted.rows[0].table
        assert updated.rows[0].before == inserted.rows[0].after
        # Changed since: the names of now may be those of other columns.
        position = inserted.event_id
        time.sleep(1.1)
        server.execute("ALTER TABLE s.t RENAME COLUMN c TO was_c, RENAME COLUMN v TO c")
        with pytest.raises(UnsupportedEventError, match=r"rows of s\.t without the names of their columns"):
            follow(options_for(server), position)
        server.execute("DROP TABLE s.t")
        with pytest.raises(UnsupportedEventError, match=r"rows of s\.t without the names of their columns"):
            follow(options_for(server), position)
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")


def test_the_hidden_columns_of_long_unique_keys_are_left_out(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A unique key over a BLOB is a hash in a column that no SELECT shows, and the binlog holds it."""
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (id INT PRIMARY KEY, x LONGTEXT, y BLOB, n INT, UNIQUE (x), UNIQUE (y, x))",
        "CREATE TABLE own (id INT PRIMARY KEY, x TEXT, DB_ROW_HASH_1 BIGINT, UNIQUE (x))",
        "INSERT INTO t VALUES (1, 'abc', 'b', 3), (2, NULL, 'c', NULL), (3, '', '', 1)",
        "INSERT INTO own VALUES (1, 'abc', 7), (2, NULL, NULL)",
    )
    metadata = mariadb.execute("SELECT @@binlog_row_metadata")[0][0]
    mariadb.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        run(mariadb, mariadb_database, "UPDATE t SET n = 5 WHERE id < 3", "DELETE FROM t WHERE id = 3")
    finally:
        mariadb.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    tables = selected(mariadb, mariadb_database)
    replica.assert_equals(tables)
    found = {change.table.table: change.table for t in follower.transactions for change in t.rows}
    assert {name: [c.name for c in table.columns] for name, table in found.items()} == {
        "t": ["id", "x", "y", "n"],
        "own": ["id", "x", "DB_ROW_HASH_1"],
    }
    assert all(found[name] == table for name, (table, _) in tables.items())


def test_generated_columns_are_left_out(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """Images of 11.8 lack them where a row is updated or deleted; a load and `verify` have none either."""
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        "CREATE TABLE t (v INT AS (a * 2) VIRTUAL, id INT PRIMARY KEY, s VARCHAR(9) AS (CONCAT(a, 'x')) STORED UNIQUE, "
        "a INT, x TEXT, UNIQUE (x))",
        "CREATE TABLE alone (a INT AS (1) STORED, b INT AS (2) VIRTUAL)",
        "INSERT INTO t (id, a, x) VALUES (1, 10, 'one'), (2, 20, 'two'), (3, NULL, NULL)",
        "INSERT INTO alone VALUES (DEFAULT, DEFAULT)",
        "UPDATE t SET a = a + 1 WHERE id < 3",
        "UPDATE t SET x = NULL WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    replica = Replica()
    for transaction in follower.catch_up():
        replica.apply(transaction)
    tables = selected(mariadb, mariadb_database)
    replica.assert_equals(tables)
    found = {change.table.table: change.table for t in follower.transactions for change in t.rows}
    assert {name: [c.name for c in table.columns] for name, table in found.items()} == {
        "t": ["id", "a", "x"],
        "alone": ["a", "b"],
    }
    assert found["t"].primary_key == (0,) and found["t"].unique_keys == ((2,),)
    assert all(found[name] == table for name, (table, _) in tables.items())


def test_locked_tables_delay_the_catalog_only_where_they_are_captured(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A CREATE TABLE ... SELECT locks its table to the catalog, which then leaves it out: asked again, not believed."""
    other = f"{mariadb_database}_other"
    run(mariadb, "", f"CREATE DATABASE {other}", f"CREATE TABLE {mariadb_database}.p (id INT PRIMARY KEY)")
    rule = ShardRule(kind=ShardRuleKind.TABLE)

    def busy(database: str, seconds: int) -> threading.Thread:
        thread = threading.Thread(
            target=run,
            args=(
                mariadb,
                database,
                f"CREATE TABLE k (id INT PRIMARY KEY, CONSTRAINT f FOREIGN KEY (id) REFERENCES "
                f"{mariadb_database}.p (id)) SELECT 1 AS id FROM (SELECT SLEEP({seconds})) x WHERE 0",
            ),
        )
        thread.start()
        time.sleep(0.5)
        return thread

    thread = busy(other, 6)
    begun = time.monotonic()
    options = options_for(mariadb, databases=(mariadb_database,), shard_rule=rule)
    follow(options)
    assert time.monotonic() - begun < 4 and thread.is_alive()
    thread.join()
    thread = busy(mariadb_database, 6)
    with caplog.at_level(logging.WARNING, logger="tranlog"):
        follower = follow(options)
    waits = mariadb.execute("SELECT @@version >= '11.8'") == [(1,)]  # the catalog itself, until the table is free
    again = "is locked: its definition is asked for again"
    assert waits or any(again in record.getMessage() for record in caplog.records)
    assert not thread.is_alive()
    thread.join()
    run(mariadb, mariadb_database, "INSERT INTO p VALUES (1)")
    assert {t.shard for t in follower.catch_up() if t.rows} == {f"{mariadb_database}.k"}, "f joins k and p"
    run(mariadb, "", f"DROP DATABASE {other}")
    if waits:
        return
    impatient = Control(options_for(mariadb))
    run(mariadb, mariadb_database, "DROP TABLE k")
    thread = busy(mariadb_database, 6)
    with pytest.raises(SourceUnavailableError, match="is locked"):
        Catalog(options, impatient).foreign_key_edges()
    impatient.close()
    thread.join()


def test_uuids_in_front_of_what_capture_has_not_seen_yet(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """A UUID looks like a BINARY(16): its type is that of the definition as of then, not the catalog's of today."""
    columns = "id INT PRIMARY KEY, u UUID, i INET6, b BINARY(16)"
    values = "(1, '123e4567-e89b-12d3-a456-426655440000', '::1', 'b')"
    old = ("renamed", "altered", "dropped", "turned")
    run(mariadb, mariadb_database, *(f"CREATE TABLE {name} ({columns})" for name in old))
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        mariadb,
        mariadb_database,
        *(f"CREATE TABLE new_{name} ({columns})" for name in old),
        *(f"INSERT INTO {kind}{name} VALUES {values}" for kind in ("", "new_") for name in old),
        *(f"ALTER TABLE {kind}altered DROP COLUMN u, DROP COLUMN i" for kind in ("", "new_")),
        *(f"RENAME TABLE {kind}renamed TO {kind}other" for kind in ("", "new_")),
        *(f"INSERT INTO {kind}other SELECT 2, u, i, b FROM {kind}other" for kind in ("", "new_")),
        *(f"DROP TABLE {kind}{name}" for kind in ("", "new_") for name in ("other", "dropped")),
        *(f"ALTER TABLE {kind}turned MODIFY u BINARY(16)" for kind in ("", "new_")),
        *(f"UPDATE {kind}turned SET u = 'x'" for kind in ("", "new_")),
    )
    found = [
        (change.table.table.removeprefix("new_"), [column.source_type for column in change.table.columns])
        for transaction in follower.catch_up()
        for change in transaction.rows
    ]
    uuids = ["int", "uuid", "inet6", "binary(16)"]
    turned = ["int", "binary(16)", "inet6", "binary(16)"]
    assert found == [
        *[(name, uuids) for name in old],
        *[(name, uuids) for name in old],
        ("other", uuids),
        ("other", uuids),
        ("turned", turned),
        ("turned", turned),
    ]


def test_a_sequence_is_captured_as_its_row(
    mariadb: MariaDbAddress, mariadb_database: str, follow: Callable[..., Follower]
) -> None:
    """An INSERT with all that it is, marked as a sequence's, also where it is gone by now."""
    columns = "SELECT * FROM s"
    run(
        *(mariadb, mariadb_database, "CREATE SEQUENCE s NOCACHE", "CREATE SEQUENCE gone", "CREATE SEQUENCE turned"),
        *("CREATE TABLE t (id INT PRIMARY KEY DEFAULT NEXTVAL(s))", f"CREATE TABLE copy AS {columns}"),
    )
    follower = follow(options_for(mariadb, databases=(mariadb_database,)))
    run(
        *(mariadb, mariadb_database, "INSERT INTO t VALUES (DEFAULT), (DEFAULT)", "SELECT SETVAL(s, 5000)"),
        *("SELECT NEXTVAL(gone)", "SELECT NEXTVAL(turned)", f"INSERT INTO copy {columns}"),
        *("DROP SEQUENCE gone", "DROP SEQUENCE turned", "CREATE TABLE turned (id INT)"),
    )
    found = [
        (change.table.table, change.table.sequence, change.after[:1])
        for transaction in follower.catch_up()
        for change in transaction.rows
        if change.op is Op.INSERT and change.after is not None
    ]
    assert found == [
        *(("s", True, (2,)), ("s", True, (3,)), ("t", False, (1,)), ("t", False, (2,)), ("s", True, (5001,))),
        *(("gone", True, (1001,)), ("turned", True, (1001,)), ("copy", False, (5001,))),
    ]
    assert sorted(selected(mariadb, mariadb_database)) == ["copy", "t", "turned"]


def test_uuids_that_changed_while_capture_was_away(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What nothing tells is refused by name until an option does; what is likely is named; what is certain is not."""
    columns = "id INT PRIMARY KEY, u UUID, b BINARY(16)"
    old = ("altered", "kept", "lost", "turned")
    run(mariadb, mariadb_database, *(f"CREATE TABLE {name} ({columns})" for name in old))
    options = options_for(mariadb, databases=(mariadb_database,))
    begin = follow(options).transactions[-1].event_id
    value = "'123e4567-e89b-12d3-a456-426655440000', 'b'"
    later = "SET timestamp = UNIX_TIMESTAMP() + 30"  # the definition that is kept is older than the row by its time
    run(
        *(mariadb, mariadb_database, later, f"INSERT INTO kept VALUES (1, {value})", "SET timestamp = DEFAULT"),
        *(f"INSERT INTO {name} VALUES (1, {value})" for name in ("altered", "turned", "lost")),
        *("ALTER TABLE altered ADD x INT", "ALTER TABLE turned MODIFY u BINARY(16)", "DROP TABLE lost"),
        *(f"CREATE TABLE lost ({columns})", f"INSERT INTO lost VALUES (2, {value})", "DROP TABLE lost"),
    )

    def found(*said: str) -> list[tuple[str, ...]]:
        caplog.clear()
        again = Follower(replace(options, column_types=said)).start(begin)
        try:
            with caplog.at_level(logging.WARNING, logger="tranlog"):
                rows = [change for transaction in again.catch_up() for change in transaction.rows]
        finally:
            again.close()
        return [(change.table.table, *(c.source_type for c in change.table.columns[1:3])) for change in rows]

    def likely() -> list[str]:
        said = [record.getMessage() for record in caplog.records]
        return sorted(text.partition(f"column={mariadb_database}.")[2].split(" transaction")[0] for text in said)

    lost = [f"{mariadb_database}.lost.{column}" for column in ("u=uuid", "b=binary(16)")]
    with pytest.raises(UnsupportedEventError, match=r"lost\.[ub], which may be a UUID.*column_types = \["):
        found(lost[0])
    assert found(*lost, f"{mariadb_database}.turned.u=uuid") == [
        (name, "uuid", "binary(16)") for name in ("kept", "altered", "turned", "lost", "lost")
    ]
    assert likely() == ["altered.b type=binary(16)", "altered.u type=uuid", "turned.b type=binary(16)"]
    with pytest.raises(ConfigError, match="column_types"):
        replace(options, column_types=("shop.old.u",)).check()
