"""MariaDB's statements and rows at a MariaDB target, beside a native replica of the same source: equal in all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from tranlog.errors import DdlStopError, UnsupportedEventError
from tranlog.testing.replicas import Replicas

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
