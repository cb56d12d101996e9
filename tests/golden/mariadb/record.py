"""Record the streams in this folder anew, from a private MariaDB: `python tests/golden/mariadb/record.py`.

Each file holds what the server sent on a replication connection, packet by packet, up to its end-of-stream packet.
The tests of the decoder know the statements below and what must come of them.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pymysql

from tranlog.testing.servers import MariaDbServer

HERE = Path(__file__).parent

TYPES = [
    "CREATE DATABASE g",
    "CREATE TABLE g.numbers (id INT PRIMARY KEY, a TINYINT, b TINYINT UNSIGNED, c SMALLINT, d SMALLINT UNSIGNED, "
    "e MEDIUMINT, f MEDIUMINT UNSIGNED, g INT UNSIGNED, h BIGINT, i BIGINT UNSIGNED, j FLOAT, k DOUBLE, "
    "l DECIMAL(10,2), m DECIMAL(65,30), n DECIMAL(9,9), o BIT(1), p BIT(13), q BIT(64), r YEAR)",
    "INSERT INTO g.numbers VALUES (1, -128, 0, -32768, 0, -8388608, 0, 0, -9223372036854775808, 0, -1.5, -0e0, "
    "-99999999.99, -12345678901234567890123456789012345.012345678901234567890123456789, -0.000000001, b'0', b'0', "
    "b'0', 0)",
    "INSERT INTO g.numbers VALUES (2, 127, 255, 32767, 65535, 8388607, 16777215, 4294967295, 9223372036854775807, "
    "18446744073709551615, 3.4028234e38, 1.7976931348623157e308, 99999999.99, 0, 0.999999999, b'1', b'1111111111111', "
    "0xFFFFFFFFFFFFFFFF, 2155)",
    "INSERT INTO g.numbers (id, h) VALUES (3, -1)",
    "CREATE TABLE g.times (id INT PRIMARY KEY, a DATE, b TIME, c TIME(1), d TIME(4), e TIME(6), f DATETIME, "
    "g DATETIME(3), h DATETIME(6), i TIMESTAMP NULL, j TIMESTAMP(6) NULL)",
    "INSERT INTO g.times VALUES (1, '2024-02-29', '-00:00:01', '-838:59:59.9', '12:34:56.7891', '-00:00:00.000001', "
    "'9999-12-31 23:59:59', '0000-00-00', '1000-01-01 00:00:00.000001', '1970-01-01 00:00:01', "
    "'2038-01-19 03:14:07.999999')",
    "INSERT INTO g.times VALUES (2, '2024-00-15', '838:59:59', '00:00:00', '-00:00:00.0001', '00:00:00', "
    "'2024-05-00 01:02:03', '2024-01-02 03:04:05.678', '0000-00-00', 0, 0)",
    "SET GLOBAL mysql56_temporal_format = OFF",
    "CREATE TABLE g.oldtimes (id INT PRIMARY KEY, b TIME, c TIME(1), e TIME(6), f DATETIME, g DATETIME(3), "
    "h DATETIME(6), i TIMESTAMP NULL, j TIMESTAMP(2) NULL, k TIMESTAMP(6) NULL)",
    "SET GLOBAL mysql56_temporal_format = ON",
    "INSERT INTO g.oldtimes VALUES (1, '-12:34:56', '-838:59:59.9', '00:00:00.000001', '2024-01-02 03:04:05', "
    "'2024-01-02 03:04:05.678', '0000-00-00', '1970-01-01 00:00:01', '2001-02-03 04:05:06.07', "
    "'2038-01-19 03:14:07.999999')",
    "CREATE TABLE g.texts (id INT PRIMARY KEY, a CHAR(10), b VARCHAR(300), c TEXT, d CHAR(5) CHARACTER SET latin1, "
    "e VARCHAR(9) CHARACTER SET ucs2, f VARCHAR(60) COMPRESSED, g TEXT COMPRESSED, h VARCHAR(9) CHARACTER SET swe7, "
    "i ENUM('x','y''z','é') CHARACTER SET latin1, j SET('p','q','ü') CHARACTER SET utf8mb3, k BINARY(8), l BLOB, "
    "m VARBINARY(20))",
    "INSERT INTO g.texts VALUES (1, 'ab  ', REPEAT('é', 200), '日本😀', 'é€', 'é日', REPEAT('c', 40), "
    "REPEAT('g', 2000), _swe7 X'5B', 'é', 'p,ü', X'0102000000000000', X'00FF00', X'0000')",
    "INSERT INTO g.texts VALUES (2, '', '', '', '', '', '', '', '', 'x', '', '', '', '')",
    "CREATE TABLE g.special (id INT PRIMARY KEY, a UUID, b INET6, c INET4, d GEOMETRY, e POINT, f JSON, "
    "g INT AS (id + 1) VIRTUAL, h INT INVISIBLE DEFAULT 7)",
    "INSERT INTO g.special (id, a, b, c, d, e, f) VALUES (1, '123e4567-e89b-12d3-a456-426614174000', '::ffff:1.2.3.4', "
    "'1.2.3.0', POINT(1, 2), POINT(3, 4), '{\"a\": 1}')",
]
TRANSACTIONS = [
    "CREATE DATABASE g",
    "CREATE TABLE g.t (id INT PRIMARY KEY, v VARCHAR(20))",
    "INSERT INTO g.t VALUES (1, 'a'), (2, NULL)",
    "UPDATE g.t SET v = 'b' WHERE id = 1",
    "DELETE FROM g.t WHERE id = 2",
    "BEGIN",
    "INSERT INTO g.t VALUES (3, 'kept')",
    "SAVEPOINT here",
    "CREATE TEMPORARY TABLE g.tmp (a INT)",
    "INSERT INTO g.t VALUES (4, 'undone')",
    "ROLLBACK TO here",
    "COMMIT",
    "BEGIN",
    "INSERT INTO g.t VALUES (5, 'undone')",
    "DROP TEMPORARY TABLE g.tmp",
    "CREATE TEMPORARY TABLE g.tmp (a INT)",
    "ROLLBACK",
    "CREATE TABLE g.m (a INT) ENGINE = MyISAM",
    "INSERT INTO g.m VALUES (1)",
    "FLUSH BINARY LOGS",
    "SET gtid_domain_id = 7",
    "INSERT INTO g.m VALUES (2)",
    "SET GLOBAL binlog_checksum = NONE",
    "INSERT INTO g.m VALUES (3)",
    "SET GLOBAL binlog_checksum = CRC32",
    "SET gtid_domain_id = 0",
    "SET binlog_alter_two_phase = ON",
    "ALTER TABLE g.t ADD COLUMN n INT, ALGORITHM = COPY",
    "DROP TEMPORARY TABLE g.tmp",
    "SET binlog_format = STATEMENT",
    "INSERT INTO g.t VALUES (9, 'x', 1)",
    "SET binlog_format = ROW, binlog_row_image = MINIMAL",
    "UPDATE g.t SET n = 3",
    "SET binlog_row_image = FULL",
    "XA START 'q'",
    "INSERT INTO g.t VALUES (10, 'x', 1)",
    "XA END 'q'",
    "XA PREPARE 'q'",
    "XA COMMIT 'q'",
]


def record(name: str, statements: list[str]) -> None:
    """Run the statements on a fresh server and store what it then sends."""
    with MariaDbServer(options={"binlog_annotate_row_events": 1}) as server:
        with contextlib.closing(server.connect()) as connection:
            for statement in ["SET timestamp = 1700000000, sql_mode = '', time_zone = '+00:00'", *statements]:
                connection.cursor().execute(statement)
        with contextlib.closing(server.connect()) as connection:
            connection.cursor().execute(
                "SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4, "
                "@slave_connect_state = ''"
            )
            dump = struct.pack("<IHI", 4, 1 | 2, 99)  # end at the end; annotations
            connection._execute_command(0x12, dump)  # type: ignore[attr-defined]
            parts = []
            with contextlib.suppress(pymysql.err.MySQLError, TimeoutError):
                connection._sock.settimeout(1)  # type: ignore[attr-defined]
                while chunk := connection._sock.recv(65536):  # type: ignore[attr-defined]
                    parts.append(chunk)
    (HERE / f"{name}.stream").write_bytes(b"".join(parts))


if __name__ == "__main__":
    record("types", TYPES)
    record("transactions", TRANSACTIONS)
