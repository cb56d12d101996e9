"""MariaDB's statements and rows at a MariaDB target, beside a native replica of the same source: equal in all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from fix_target import ITEMS, Bench, content, insert
from replicas import OWN_DATABASE, Replicas
from tranlog.errors import ConflictError, DdlStopError, TargetTableError, UnsupportedEventError
from tranlog.pipeline.filters.filters import PresentRows
from tranlog.source.mariadb import MariadbSourceOptions, MariadbTables
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer

pytestmark = pytest.mark.integration

Run = Callable[..., list[int]]


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with Replicas(server_options={"max_allowed_packet": 64 << 20}) as running:
        yield running


@pytest.fixture
def database(replicas: Replicas) -> Iterator[str]:
    """An empty database of all three servers."""
    name = f"d_{uuid.uuid4().hex[:8]}"
    replicas.run(f"CREATE DATABASE {name}")
    yield name
    replicas.run(f"DROP DATABASE {name}")


@pytest.fixture
def run(replicas: Replicas, database: str) -> Run:
    """Run statements at the source and bring both copies there; return the errors that the source gave."""

    def go(*statements: str | bytes, others: Sequence[str] = ()) -> list[int]:
        errors = replicas.run(*statements, database=database)
        replicas.meet()
        assert replicas.differences(database, *others) == []
        return [code for code, _ in errors]

    return go


UNICODE = "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci"


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            [
                "CREATE TABLE t (x INT)",
                "INSERT INTO t VALUES (1), (2), (3)",
                "SET auto_increment_increment = 10, auto_increment_offset = 1",
                "ALTER TABLE t ADD id INT AUTO_INCREMENT PRIMARY KEY FIRST",
            ],
            id="auto_increment_increment",
        ),
        pytest.param(
            [
                "CREATE TABLE t (id INT PRIMARY KEY)",
                "INSERT INTO t VALUES (1)",
                "SET timestamp = 1000000000.123456",
                "ALTER TABLE t ADD a DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), ADD b DATE DEFAULT (CURRENT_DATE)",
            ],
            id="timestamp",
        ),
        pytest.param(
            [
                "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP)",
                "INSERT INTO t VALUES (1, '2020-01-01 12:00:00')",
                "SET time_zone = '+05:00'",
                "ALTER TABLE t MODIFY ts DATETIME",
                "CREATE TABLE p (ts TIMESTAMP NOT NULL) PARTITION BY RANGE (UNIX_TIMESTAMP(ts)) (PARTITION a VALUES "
                "LESS THAN (UNIX_TIMESTAMP('2020-01-01 00:00:00')), PARTITION b VALUES LESS THAN MAXVALUE)",
            ],
            id="time_zone",
        ),
        pytest.param(
            ["SET explicit_defaults_for_timestamp = 0", "CREATE TABLE t (id INT, a TIMESTAMP, b TIMESTAMP)"],
            id="explicit_defaults_for_timestamp",
        ),
        pytest.param(
            [
                UNICODE,
                "CREATE VIEW v AS SELECT 'a' = 'A' x",
                "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 'a' = 'A'",
                "CREATE VIEW w AS SELECT f() x",
            ],
            id="collation_connection",
        ),
        pytest.param(
            [
                b"SET NAMES latin1 COLLATE latin1_german1_ci",
                b"CREATE TABLE t (id INT PRIMARY KEY, `\xe4` VARCHAR(5) DEFAULT '\xfc' COMMENT '\xdf')",
                b"CREATE VIEW v AS SELECT '\xe4' COLLATE latin1_german1_ci AS x",
                b"SET NAMES binary",
                b"CREATE TABLE b (id INT PRIMARY KEY COMMENT '\xc3\xa4')",
                b"CREATE VIEW w AS SELECT '\xe4' AS x",
            ],
            id="character_set_client",
        ),
        pytest.param(
            ["SET collation_connection = utf16_unicode_ci", "CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT 'x' a"],
            id="UTF-16",
        ),
        pytest.param(
            [
                "CREATE TABLE t (a VARBINARY(9))",
                "SET collation_connection = utf32_general_ci, character_set_client = binary",
                "ALTER TABLE t MODIFY a ENUM('aa') CHARACTER SET utf32",
            ],
            id="binary in UTF-32",
        ),
        pytest.param(
            [
                "CREATE TABLE p (id INT PRIMARY KEY)",
                "CREATE TABLE c (id INT PRIMARY KEY, p INT)",
                "INSERT INTO c VALUES (1, 1)",
                "SET foreign_key_checks = 0",
                "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id)",
                "DROP TABLE p",
                "CREATE TABLE p (id INT PRIMARY KEY)",
            ],
            id="foreign_key_checks",
        ),
        pytest.param(
            [
                "CREATE TABLE t (id INT PRIMARY KEY)",
                "INSERT INTO t VALUES (1)",
                "SET check_constraint_checks = 0",
                "ALTER TABLE t ADD CONSTRAINT c CHECK (id > 5)",
            ],
            id="check_constraint_checks",
        ),
        pytest.param(
            ["CREATE TABLE t (id INT)", "SET sql_if_exists = 1", "ALTER TABLE none ADD x INT", "RENAME TABLE no TO m"],
            id="sql_if_exists",
        ),
        pytest.param(
            ["SET lc_time_names = 'de_DE'", "CREATE TABLE t (d DATE, m TEXT AS (DATE_FORMAT(d, '%M', 'de_DE')))"],
            id="lc_time_names",
        ),
        pytest.param(
            ["SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "CREATE TABLE \"t\" (a VARCHAR(9) DEFAULT '\\')"],
            id="sql_mode",
        ),
    ],
)
def test_a_statement_runs_with_the_session_that_it_had(run: Run, statements: list[str | bytes]) -> None:
    """docs/format.md, "Options of a statement": all that the source's event carries is set for it."""
    assert run(*statements) == []


def test_a_database_has_the_character_set_that_it_got(run: Run, replicas: Replicas) -> None:
    """Also where the target's own default is another."""
    replicas.target.execute("SET GLOBAL collation_server = 'latin2_general_ci'")
    replicas.target.execute("SET GLOBAL auto_increment_increment = 7")
    name = f"c_{uuid.uuid4().hex[:8]}"
    made = [f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (a VARCHAR(10))"]
    try:
        replicas.open()
        assert run(*made, others=[name]) == []
        assert run(f"DROP DATABASE {name}", "SET collation_server = 'koi8r_bin'", *made, others=[name]) == []
    finally:
        replicas.target.execute("SET GLOBAL collation_server = DEFAULT, GLOBAL auto_increment_increment = DEFAULT")
        replicas.run(f"DROP DATABASE {name}")


def test_a_session_is_our_own_again_behind_a_statement(run: Run) -> None:
    """Rows that follow a statement under odd settings are applied as ever."""
    run(
        "CREATE TABLE t (id INT PRIMARY KEY, a DATETIME(6) DEFAULT NOW(6), b VARCHAR(9))",
        "SET time_zone = '+05:00', timestamp = 1000000000, foreign_key_checks = 0, sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "SET NAMES latin1",
        "CREATE VIEW v AS SELECT NOW() x",
        "SET foreign_key_checks = 1",
        b"INSERT INTO t (id, b) VALUES (1, '\xe4\\')",
    )


def test_a_database_that_is_gone_by_now_is_not_needed(run: Run, replicas: Replicas, database: str) -> None:
    """A statement whose session stood in a database that the target does not have."""
    assert run("CREATE DATABASE gone") == []
    replicas.target.execute("DROP DATABASE gone")
    assert run("USE gone", f"CREATE TABLE {database}.t (id INT)") == []
    replicas.target.execute("CREATE DATABASE gone")
    assert run("USE gone", "DROP DATABASE gone") == []


@pytest.mark.parametrize(
    ("statements", "errors"),
    [
        (["CREATE TABLE a (id INT)", "DROP TABLE a, nothing"], [1051]),
        (["CREATE VIEW v AS SELECT 1", "CREATE TABLE t (id INT)", "DROP VIEW v, t, nothing"], [4092]),
        (["CREATE TABLE b (id INT)", "CREATE OR REPLACE TABLE b (id INT, KEY (missing))"], [1072]),
        (["CREATE TABLE r (id INT)", "RENAME TABLE r TO r2, no TO no2"], [1146]),
    ],
    ids=["drop table", "drop view", "replace table", "rename"],
)  # fmt: skip
def test_what_failed_half_at_the_source_fails_half(run: Run, statements: list[str], errors: list[int]) -> None:
    """A statement's error code is expected, as a replica expects it."""
    assert run(*statements) == errors


def test_variables_beside_a_statement(replicas: Replicas) -> None:
    """statements = "record": what INTVAR, RAND and USER_VAR events give a statement is set for it."""
    try:
        replicas.open(source={"statements": "record"})
        replicas.run(
            "CREATE DATABASE beside",
            "USE beside",
            "SET SESSION binlog_format = 'STATEMENT'",
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a VARCHAR(40) CHARACTER SET latin1, b DOUBLE)",
            "SET @`a$1` = _latin1 x'e4', @b = 1.5e0, @c = -3, @d = 12.50, @e = NULL, @f = 18446744073709551615",
            "INSERT INTO t (a, b) VALUES (CONCAT(@`a$1`, @b, @c, @d, IFNULL(@e, 'null'), @f), RAND())",
            "SET insert_id = 77",
            "INSERT INTO t (a, b) VALUES (LAST_INSERT_ID(), NULL)",
        )
        replicas.meet()
        assert replicas.differences("beside") == []
        assert len(replicas.target.execute("SELECT * FROM beside.t")) == 2
    finally:
        replicas.open()
        replicas.run("DROP DATABASE beside")
        replicas.meet()


def test_ddl_is_judged_by_the_databases_that_it_names(replicas: Replicas, database: str) -> None:
    """`databases` limits statements as it limits rows: DDL elsewhere touches nothing here, and stops nothing."""
    replicas.meet()
    replicas.target.execute("CREATE DATABASE crm")
    replicas.target.execute("CREATE TABLE crm.own (id INT PRIMARY KEY)")
    try:
        replicas.open(source={"databases": (database,)})
        replicas.run(
            "CREATE DATABASE crm",
            "USE crm",
            "CREATE TABLE own (id INT)",
            "CREATE TABLE c (id INT)",
            "RENAME TABLE c TO d",
            "CREATE TABLE mysql.x (id INT)",
            "TRUNCATE own",
            f"CREATE TABLE {database}.t (id INT)",
            f"ALTER TABLE {database}.t ADD KEY (id)",
            "DROP TABLE own, d",
            "DROP TABLE mysql.x",
            "DROP DATABASE crm",
            "CREATE USER somebody",
            "DROP USER somebody",
        )
        replicas.meet()
        assert replicas.differences(database) == []
        assert replicas.target.execute("SHOW TABLES FROM crm") == [("own",)]
        replicas.run("CREATE DATABASE crm", f"RENAME TABLE {database}.t TO crm.t")
        with pytest.raises(UnsupportedEventError, match=r"RENAME TABLE .* several databases, of which crm is not capt"):
            replicas.meet()
    finally:
        replicas.run(f"RENAME TABLE crm.t TO {database}.t", "DROP DATABASE crm", f"DROP TABLE {database}.t")
        replicas.target.execute(f"DROP TABLE {database}.t")
        replicas.target.execute("DROP DATABASE crm")
        replicas.open(skip=True)


def test_what_takes_rows_away_is_not_passed_over(replicas: Replicas, database: str) -> None:
    """ddl = "ignore": known by what it does, not by its first word; where the rows are gone here too, it goes on."""
    replicas.run(
        "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO u VALUES (1)",
        database=database,
    )
    replicas.meet()
    try:
        for statement in (
            "ALTER TABLE t TRUNCATE PARTITION p",
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u",
            "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)",
            "DROP TABLE t",
        ):
            replicas.open(ddl="ignore")
            assert replicas.run(statement, database=database) == []
            with pytest.raises(DdlStopError, match=r"it takes rows away, which are still here.*start again"):
                replicas.meet_target()
            for table in ("t", "u"):
                replicas.target.execute(f"DELETE FROM {database}.{table}")
            replicas.open(ddl="ignore")
            replicas.run("FLUSH TABLES", "ANALYZE TABLE u", "OPTIMIZE TABLE u", database=database)
            replicas.meet_target()
            replicas.target.execute(f"INSERT INTO {database}.t VALUES (1)")
    finally:
        replicas.open(skip=True)


def test_rows_go_in_without_the_checks_that_their_session_had_off(run: Run) -> None:
    """docs/format.md, "Options": the flags of a rows event; off for these rows and on again for others."""
    errors = run(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "CREATE TABLE k (id INT PRIMARY KEY, n INT CHECK (n > 0))",
        "BEGIN",
        "INSERT INTO p VALUES (1), (2), (3)",
        "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)",
        "SET foreign_key_checks = 0",
        "INSERT INTO c VALUES (4, 44)",
        "DELETE FROM p WHERE id = 2",
        "SET foreign_key_checks = 1, check_constraint_checks = 0",
        "INSERT INTO k VALUES (1, -1)",
        "UPDATE k SET n = -2",
        "DELETE FROM p WHERE id = 3",
        "COMMIT",
        "INSERT INTO k VALUES (2, 2)",
    )
    assert errors == []


def test_a_column_that_moves_by_itself_has_the_source_s_value(run: Run, replicas: Replicas, database: str) -> None:
    """ON UPDATE CURRENT_TIMESTAMP: two updates in one second leave it as it was at the source; with and without key."""
    columns = (
        "n INT, s VARCHAR(9), a TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, "
        "b DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"
    )
    run(
        f"CREATE TABLE t (id INT PRIMARY KEY, {columns})",
        f"CREATE TABLE k ({columns})",
        "SET timestamp = 1000000000.25",
        "INSERT INTO t (id, n) VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)",
        "INSERT INTO k (n) VALUES (1), (2)",
        "UPDATE t SET n = n + 1",
        "UPDATE k SET n = n + 1",
        "UPDATE t SET s = 'x' WHERE id = 1",
    )
    assert replicas.target.execute(f"SELECT DISTINCT b FROM {database}.t") == replicas.source.execute(
        f"SELECT DISTINCT b FROM {database}.t"
    )


ANY_MODE = "SET sql_mode = ''"
GENERATED_ALONE = "DELETE FROM t LIMIT 1"
"""From 11.8 on the image of such a row is empty: how many there were, nobody can tell."""


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            [
                "CREATE TABLE t (id INT PRIMARY KEY, f FLOAT(4,3), d DOUBLE(6,2), g FLOAT(7,4))",
                "INSERT INTO t VALUES (1, 9.999, 1234.56, 123.4567), (2, 0.001, 0.01, 0.0001)",
                "UPDATE t SET f = 1.234 WHERE id = 1",
                "CREATE TABLE k (f FLOAT(4,3), n INT)",
                "INSERT INTO k VALUES (9.999, 1), (9.998, 1)",
                "UPDATE k SET n = 2 WHERE n = 1 AND f > 9.9985",
            ],
            id="float(m,d)",
        ),
        pytest.param(
            [
                ANY_MODE,
                "CREATE TABLE t (id INT PRIMARY KEY, d DATE, t DATETIME, s TIMESTAMP NULL, u TIMESTAMP(3) NOT NULL)",
                "INSERT INTO t VALUES (1, 0, 0, 0, 0), (2, '2020-00-10', '2020-02-00 01:02:03', NULL, NOW())",
                "UPDATE t SET d = '2020-02-31', u = 0",
            ],
            id="zeros in dates",
        ),
        pytest.param(
            [
                ANY_MODE,
                "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(2) AS (CONCAT(a, a)) STORED, "
                "c INT AS (10 / a) STORED, d TINYINT AS (a * 100) VIRTUAL)",
                "INSERT INTO t (id, a) VALUES (1, 0), (2, 1234), (3, 5)",
                "UPDATE t SET a = 0 WHERE id = 3",
                "DELETE FROM t WHERE id = 2",
            ],
            id="generated columns that cut",
        ),
        pytest.param(
            [
                ANY_MODE,
                "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a','b'), f ENUM('x',''), s SET('p','q',''))",
                "INSERT INTO t VALUES (1, 'zz', 'zz', 'r'), (2, 'a', '', ''), (3, '', '', 4), (4, 0, 2, NULL)",
                "UPDATE t SET e = 'nn' WHERE id = 2",
                "CREATE TABLE k (f ENUM('x',''), n INT)",
                "INSERT INTO k VALUES (0, 1), (2, 1), ('x', 1)",
                "UPDATE k SET n = 2 WHERE f + 0 = 2",
                "DELETE FROM k WHERE f + 0 = 0",
                "CREATE TABLE u (e ENUM('a','b') PRIMARY KEY, n INT)",
                "INSERT INTO u VALUES (0, 1), ('a', 1)",
                "UPDATE u SET n = 3 WHERE e + 0 = 0",
            ],
            id="an enum's error value",
        ),
        pytest.param(
            [
                "CREATE TABLE t (a INT AS (1) STORED)",
                "INSERT INTO t VALUES (DEFAULT), (DEFAULT)",
                GENERATED_ALONE,
                "CREATE TABLE k (a INT, b INT AS (a + 1) STORED)",
                "INSERT INTO k (a) VALUES (1), (1)",
                "DELETE FROM k LIMIT 1",
                "UPDATE k SET a = 5",
            ],
            id="generated columns alone",
        ),
        pytest.param(
            [
                "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET sjis, b TEXT CHARACTER SET cp932, "
                "c CHAR(9) CHARACTER SET ujis, d VARCHAR(9) CHARACTER SET big5, e VARCHAR(9) CHARACTER SET swe7, "
                "f VARCHAR(9) CHARACTER SET dec8, g VARCHAR(9) CHARACTER SET cp1256, h VARCHAR(9) CHARACTER SET greek, "
                "i VARCHAR(9) CHARACTER SET gbk, j VARCHAR(9) CHARACTER SET ucs2)",
                "INSERT INTO t VALUES (1, _sjis x'433A5C746D70', _cp932 x'8790815F5C', _ujis x'A1C05C', "
                "_big5 x'A15A5C', _swe7 x'616263', _dec8 x'e4', _cp1256 x'8ac7', _greek x'c1a4', "
                "_gbk x'5c8140', _ucs2 x'D800')",
                "UPDATE t SET a = _sjis x'5c815f', b = _cp932 x'81e0'",
                "INSERT INTO t (id, a) VALUES (2, 'a'), (3, _sjis x'815f'), (4, _sjis x'5c')",
                "UPDATE t SET a = CONCAT(a, a)",
            ],
            id="charsets",
        ),
        pytest.param(
            [
                "CREATE TABLE t (a VARCHAR(9) CHARACTER SET sjis PRIMARY KEY, b CHAR(5) CHARACTER SET swe7, n INT)",
                "INSERT INTO t VALUES (_sjis x'5c5c', _swe7 x'616263', 1), (_sjis x'815f', _swe7 x'5b', 1)",
                "UPDATE t SET n = 2",
                "DELETE FROM t WHERE a = _sjis x'5c5c'",
                "CREATE TABLE k (a VARCHAR(9) CHARACTER SET sjis, b CHAR(5) CHARACTER SET swe7, n INT)",
                "INSERT INTO k VALUES (_sjis x'5c', _swe7 x'616263', 1), (_sjis x'815f', _swe7 x'61', 1)",
                "UPDATE k SET n = 2 WHERE a = _sjis x'815f'",
                "DELETE FROM k WHERE n = 1",
            ],
            id="charsets of keys",
        ),
    ],
)  # fmt: skip
def test_rows_go_in_as_the_source_has_them(run: Run, replicas: Replicas, database: str, statements: list[str]) -> None:
    """The same kind and columns: the same bytes, whatever a strict session says; verify reads them so."""
    empty = replicas.source.execute("SELECT @@version >= '11.8'") == [(1,)]
    assert run(*[one for one in statements if not (empty and one is GENERATED_ALONE)]) == []
    tables = MariadbTables(MariadbSourceOptions(port=replicas.source.port, databases=(database,)))
    target = open_target(TargetOptions(kind="mariadb", dsn=replicas.target.dsn(OWN_DATABASE)))
    try:
        for table in tables.tables():
            here = content(target.rows.read(table))
            assert here == content(tables.rows(table))
            assert here or table.table == "none"
    finally:
        tables.close()
        target.close()


def test_verify_compares_bytes(run: Run, replicas: Replicas, database: str) -> None:
    """One text in other bytes, and the ENUM's error value beside an empty label, are differences."""
    run(
        ANY_MODE,
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET sjis, e ENUM('x',''))",
        "INSERT INTO t VALUES (1, _sjis x'5c', 0)",
    )
    tables = MariadbTables(MariadbSourceOptions(port=replicas.source.port, databases=(database,)))
    target = open_target(TargetOptions(kind="mariadb", dsn=replicas.target.dsn(OWN_DATABASE)))
    try:
        (table,) = tables.tables()
        there = content(tables.rows(table))
        for change in ("a = _sjis x'815f'", "a = _sjis x'5c', e = 2"):
            replicas.target.execute(f"UPDATE {database}.t SET {change}")
            assert content(target.rows.read(table)) != there
    finally:
        tables.close()
        target.close()


def test_rows_that_a_narrower_column_would_change_are_refused(replicas: Replicas, database: str) -> None:
    """Where the target's columns are others, its session is strict as ever."""
    replicas.run(
        ANY_MODE,
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(5), n INT)",
        "CREATE TABLE f (id INT PRIMARY KEY, f FLOAT(6,3))",
        database=database,
    )
    replicas.meet()
    replicas.target.execute(f"ALTER TABLE {database}.t MODIFY a VARCHAR(3) NOT NULL, MODIFY n TINYINT")
    replicas.target.execute(f"ALTER TABLE {database}.f MODIFY f FLOAT(6,1)")
    try:
        for statement, why in (
            ("INSERT INTO t VALUES (1, 'abcd', 1)", "too long"),
            ("INSERT INTO t VALUES (2, 'abc', 1000)", "Out of range"),
            ("INSERT INTO t VALUES (3, NULL, 1)", "cannot be null"),
            ("INSERT INTO f VALUES (1, 1.25)", "would round"),
        ):
            replicas.run(statement, database=database)
            with pytest.raises(ConflictError, match=why):
                replicas.meet()
            replicas.open(skip=True)
    finally:
        replicas.open(skip=True)


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY", "CSV"])
def test_tables_without_transactions(replicas: Replicas, database: str, engine: str) -> None:
    """Refused by name at their first row, or made InnoDB by option; never rows that a second try would double."""
    made = f"CREATE TABLE t (id INT NOT NULL) ENGINE = {engine}"
    replicas.run(made, "INSERT INTO t VALUES (1), (2)", database=database)
    with pytest.raises(TargetTableError, match=f"its engine is {engine}, which has no transactions.*ENGINE = InnoDB"):
        replicas.meet()
    assert replicas.target.execute(f"SELECT * FROM {database}.t") == []
    replicas.target.execute(f"ALTER TABLE {database}.t ENGINE = InnoDB")
    try:
        replicas.open(engine="innodb")
        replicas.run(
            *(f"CREATE TABLE u (id INT NOT NULL) ENGINE = {engine}", "INSERT INTO u VALUES (1)"),
            f"ALTER TABLE u ADD x INT NOT NULL DEFAULT 0, ENGINE = {engine}",
            "INSERT INTO u VALUES (2, 2)",
            database=database,
        )
        replicas.meet()
        for table in ("t", "u"):
            rows = f"SELECT * FROM {database}.{table}"
            assert replicas.target.execute(rows) == replicas.replica.execute(rows)
            assert "InnoDB" in replicas.target.execute(f"SHOW CREATE TABLE {database}.{table}")[0][1]
    finally:
        replicas.open(skip=True)


def test_what_the_source_let_pass_is_made_innodb(replicas: Replicas, database: str) -> None:
    """A row format that InnoDB does not know, and labels that are equal: a strict session's ALTER refused both."""
    replicas.meet()
    replicas.open(engine="innodb")
    try:
        replicas.run(
            *("SET sql_mode = ''", "CREATE TABLE f (id INT PRIMARY KEY, x CHAR(9)) ENGINE = MyISAM ROW_FORMAT = FIXED"),
            "CREATE TABLE e (id INT PRIMARY KEY, x ENUM('a', 'A', 'b')) ENGINE = MyISAM",
            *("INSERT INTO f VALUES (1, 'one')", "INSERT INTO e VALUES (1, 'b')"),
            "ALTER TABLE f CHECKSUM = 1, ROW_FORMAT = FIXED",
            *(
                "CREATE TABLE s (id INT PRIMARY KEY, x SET('', '', 'c') CHARSET ucs2)",
                "INSERT INTO s VALUES (1, 5), (2, 3)",
            ),
            database=database,
        )
        replicas.meet()
        for table in ("f", "e", "s"):
            rows = f"SELECT id, x, x + 0 FROM {database}.{table}"
            assert replicas.target.execute(rows) == replicas.replica.execute(rows)
            assert "InnoDB" in replicas.target.execute(f"SHOW CREATE TABLE {database}.{table}")[0][1]
    finally:
        replicas.open()


SEQUENCES = [
    *("CREATE SEQUENCE s CACHE 10", "CREATE SEQUENCE n NOCACHE START 10 INCREMENT 5"),
    *("CREATE SEQUENCE c MAXVALUE 5 CYCLE CACHE 2", "CREATE SEQUENCE d INCREMENT -3 ENGINE = MyISAM"),
    "CREATE TABLE t (id BIGINT PRIMARY KEY DEFAULT NEXTVAL(n), v INT)",
    "INSERT INTO t (v) VALUES (1), (2), (3)",
    *("BEGIN", "INSERT INTO t (v) VALUES (4)", "SAVEPOINT a", "INSERT INTO t (v) VALUES (5)"),
    *("ROLLBACK TO a", "COMMIT", "BEGIN", "INSERT INTO t (v) VALUES (6)", "ROLLBACK"),
    *("SELECT NEXTVAL(s)" for _ in range(12)),
    *("SELECT NEXTVAL(c)" for _ in range(8)),
    *("SELECT NEXTVAL(d)", "SELECT SETVAL(d, -50, 0)", "SELECT SETVAL(c, 3, 1, 4)", "SELECT SETVAL(n, 1000)"),
    *("ALTER SEQUENCE n RESTART 7 CACHE 3", "SELECT NEXTVAL(n)", "ALTER SEQUENCE s MAXVALUE 2000"),
    *("RENAME TABLE n TO m", "SELECT NEXTVAL(m)", "CREATE OR REPLACE SEQUENCE c START 100", "SELECT NEXTVAL(c)"),
    *("CREATE TABLE l LIKE s", "SELECT NEXTVAL(l)", "INSERT INTO l VALUES (1, 1, 100, 1, 1, 10, 0, 0)"),
    *("CREATE SEQUENCE gone", "SELECT NEXTVAL(gone)", "DROP SEQUENCE gone", "CREATE TABLE gone (id INT)"),
    *("CREATE TABLE copy AS SELECT * FROM s", "INSERT INTO copy SELECT * FROM s"),
    *("CREATE SEQUENCE a", "ALTER TABLE a SEQUENCE = 0", "INSERT INTO a SELECT a.* FROM a, seq_1_to_3"),
    *("DELETE FROM a LIMIT 3", "ALTER TABLE a SEQUENCE = 1", "SELECT NEXTVAL(a)"),
    *("CREATE SEQUENCE b", "SELECT NEXTVAL(b)", "ALTER TABLE b SEQUENCE = 0", "INSERT INTO b SELECT * FROM b"),
    *("CREATE SEQUENCE dropped", "DROP SEQUENCE dropped, nothing"),
]


def test_sequences_stand_where_a_replica_has_them(run: Run, replicas: Replicas, database: str) -> None:
    """A target that takes the source's place gives no number that the source gave."""
    assert run(*SEQUENCES) == [4091]
    for name in ("s", "m", "c", "l", "a"):
        asked = f"SELECT NEXTVAL({name})"
        given = {replicas.source.execute(asked, database=database)[0][0] for _ in range(15)}
        replicas.meet()
        assert replicas.target.execute(asked, database=database)[0][0] not in given


def test_a_sequence_that_is_not_here_is_refused_by_name(replicas: Replicas, database: str) -> None:
    """What the message says is all that is to be done: the row that waits sets the sequence that is made here."""
    replicas.run("CREATE SEQUENCE s START 50", database=database)
    replicas.meet()
    try:
        replicas.target.execute(f"DROP SEQUENCE {database}.s")
        replicas.run("SELECT NEXTVAL(s)", database=database)
        with pytest.raises(TargetTableError, match=rf"no such sequence.*CREATE SEQUENCE `{database}`\.`s` here"):
            replicas.meet()
        replicas.target.execute(f"CREATE SEQUENCE {database}.s")
        replicas.open()
        replicas.meet()
        assert replicas.differences(database) == []
    finally:
        replicas.open(skip=True)


PERIOD = (
    ", a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, "
    "PERIOD FOR SYSTEM_TIME (a, b)"
)


@pytest.mark.parametrize("period", ["", PERIOD], ids=["hidden", "shown"])
def test_versioned_tables_are_refused_by_name(replicas: Replicas, database: str, period: str) -> None:
    """Old versions never become present rows; with the period as plain columns both are carried, as rows."""
    made = f"CREATE TABLE t (id INT PRIMARY KEY, x INT{period}) WITH SYSTEM VERSIONING"
    replicas.run(made, "INSERT INTO t (id, x) VALUES (1, 1)", database=database)
    with pytest.raises(TargetTableError, match=r"it is system-versioned here.*DROP SYSTEM VERSIONING"):
        replicas.meet()
    try:
        name = f"{database}.t"
        start, end = ("a", "b") if period else ("row_start", "row_end")
        replicas.target.execute(f"DROP TABLE {name}")
        replicas.target.execute(
            f"CREATE TABLE {name} (id INT, x INT, {start} TIMESTAMP(6) NOT NULL DEFAULT 0, "
            f"{end} TIMESTAMP(6) NOT NULL DEFAULT 0, PRIMARY KEY (id, {end}))"
        )
        replicas.open()
        replicas.run(
            "UPDATE t SET x = 2", "INSERT INTO t (id, x) VALUES (2, 2)", "DELETE FROM t WHERE id = 1", database=database
        )
        replicas.meet()
        columns = f"SELECT id, x, {start}, {end} FROM {name}"
        there = replicas.replica.execute(f"{columns} FOR SYSTEM_TIME ALL ORDER BY id, {end}")
        assert replicas.target.execute(f"{columns} ORDER BY id, {end}") == there
        assert len(there) == 3
    finally:
        replicas.open(skip=True)


@pytest.mark.parametrize("period", ["", PERIOD], ids=["hidden", "shown"])
def test_present_rows_of_versioned_tables_alone(replicas: Replicas, database: str, period: str) -> None:
    """By option: the target's table is versioned, too, and keeps versions by its own clock."""
    start, end = ("a", "b") if period else ("row_start", "row_end")
    replicas.meet()
    replicas.open(filters=[PresentRows(tables=("*.*",), row_start=start, row_end=end)])
    try:
        replicas.run(
            f"CREATE TABLE t (id INT PRIMARY KEY, x INT UNIQUE{period}) WITH SYSTEM VERSIONING",
            *("INSERT INTO t (id, x) VALUES (1, 1), (2, 2), (3, 3)", "UPDATE t SET x = x + 10 WHERE id < 3"),
            *("DELETE FROM t WHERE id = 1", "INSERT INTO t (id, x) VALUES (1, 1)", "UPDATE t SET id = 9 WHERE id = 3"),
            database=database,
        )
        replicas.meet()
        present = f"SELECT id, x FROM {database}.t ORDER BY id"
        assert replicas.target.execute(present) == replicas.replica.execute(present)
        versions = f"SELECT COUNT(*) FROM {database}.t FOR SYSTEM_TIME ALL"
        assert replicas.target.execute(versions) == replicas.replica.execute(versions)
    finally:
        replicas.open(skip=True)


def test_names_that_a_target_folds_into_one_are_refused(start_mariadb: Callable[..., MariaDbServer]) -> None:
    """lower_case_table_names = 1: two tables of the source's would be one, and their rows would mix."""
    server = start_mariadb(options={"lower_case_table_names": 1, "log_bin": None})
    server.execute("CREATE DATABASE own")
    server.execute("CREATE DATABASE shop")
    bench = Bench(TargetOptions(kind="mariadb", dsn=server.dsn("own")))
    try:
        upper, lower = (msgspec.structs.replace(ITEMS, table=name) for name in ("Items", "items"))
        bench.target.rows.create_table(upper)
        bench.apply([insert(upper, (1, "a", 1))])
        with pytest.raises(TargetTableError, match=r"its name would be the one of shop\.Items"):
            bench.apply([insert(lower, (2, "b", 2))])
    finally:
        bench.close()
