"""Make the files of messages anew: `PYTHONPATH=src python tests/golden/postgres/record.py`, from a private server."""

from __future__ import annotations

from pathlib import Path

from tranlog.testing.servers import PostgresServer

HERE = Path(__file__).parent

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');
CREATE DOMAIN positive AS numeric(10,2) CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE types (
    id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f4 float4, f8 float8, n numeric, nd numeric(12,3), t text,
    v varchar(20), c char(5), by bytea, d date, ti time, ts timestamp, tz timestamptz(3), iv interval, bi bit(3),
    vb varbit, js json, jb jsonb, u uuid, ip inet, ar int[], ra int4range, m mood, p positive, co pair, x xml);
CREATE TABLE by_key (id int, part text, note text, PRIMARY KEY (id, part));
CREATE TABLE parent (id int PRIMARY KEY, at date NOT NULL) ;
CREATE TABLE wide (id int PRIMARY KEY, big text, small int);
ALTER TABLE types REPLICA IDENTITY FULL;
ALTER TABLE wide REPLICA IDENTITY FULL;
ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
"""

VALUES = """
INSERT INTO types VALUES (1, true, -32768, 2147483647, 'NaN', '-Infinity', 'NaN', 0.000, E'a\\n"\\'é😀', 'v', 'c',
    '\\x00ff', 'infinity', '24:00:00', '0044-03-15 12:00:00 BC', '2024-02-29 23:59:59.999+02',
    '1 year -2 days 00:00:01.5', '101', '1',
    '{"b": 1,  "a": 1}', '{"b": 1, "a": 1}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '127.0.0.1/8', '{1,NULL,3}',
    '[1,5)', 'so so', 1.50, '(1,"a b")', '<a/>');
INSERT INTO types (id) VALUES (-9223372036854775808);
UPDATE types SET t = NULL, f4 = 3.4028235e38, n = '123456789012345678901234567890.123456789' WHERE id = 1;
DELETE FROM types WHERE id < 0;
"""

PLAIN = (
    VALUES,
    "BEGIN; INSERT INTO by_key VALUES (1, 'a', 'x'), (2, 'b', NULL); UPDATE by_key SET note = 'y' WHERE id = 1; "
    "UPDATE by_key SET id = 3 WHERE id = 2; DELETE FROM by_key; COMMIT",
    "INSERT INTO wide VALUES (1, repeat('x', 4000), 1); UPDATE wide SET small = 2; "
    "ALTER TABLE by_key REPLICA IDENTITY NOTHING; INSERT INTO by_key VALUES (9, 'z', NULL)",
    "ALTER TABLE wide DROP COLUMN small; ALTER TABLE wide ADD COLUMN more mood; "
    "INSERT INTO wide VALUES (2, 'b', 'sad')",
    "TRUNCATE parent, by_key RESTART IDENTITY CASCADE",
    "SELECT pg_logical_emit_message(true, 'mine', 'hello'), pg_logical_emit_message(false, 'free', '\\x00ff'::bytea)",
)
STREAMED = (
    "BEGIN; INSERT INTO wide SELECT g, repeat('x', 800) FROM generate_series(10, 90) g; SAVEPOINT one; "
    "INSERT INTO wide SELECT g, repeat('y', 800) FROM generate_series(110, 190) g; ROLLBACK TO one; "
    "INSERT INTO by_key SELECT g, 'k' FROM generate_series(10, 90) g; "
    "SELECT pg_logical_emit_message(true, 'inside', 'streamed'); TRUNCATE parent; COMMIT",
    "BEGIN; INSERT INTO wide SELECT -g, repeat('x', 800) FROM generate_series(10, 120) g; ROLLBACK",
    "INSERT INTO parent VALUES (1, '2024-01-01')",
)
PREPARED = (
    "BEGIN; INSERT INTO parent VALUES (2, '2024-01-01'); PREPARE TRANSACTION 'one'",
    "COMMIT PREPARED 'one'",
    "BEGIN; INSERT INTO parent VALUES (3, '2024-01-01'); PREPARE TRANSACTION 'two'",
    "ROLLBACK PREPARED 'two'",
    "BEGIN; INSERT INTO wide SELECT -g, repeat('x', 800) FROM generate_series(10, 120) g; PREPARE TRANSACTION 'three'",
    "COMMIT PREPARED 'three'",
)


def main() -> None:
    """Write the three files."""
    options: dict[str, str | int | bool | None] = {
        "wal_level": "logical",
        "logical_decoding_work_mem": "64kB",
        "max_prepared_transactions": 4,
    }
    with PostgresServer(options=options) as server:
        server.execute(SETUP)
        for name, version, statements, more in (
            ("plain", 1, PLAIN, ""),
            ("streamed", 2, STREAMED, ", 'streaming', 'on'"),
            ("prepared", 3, PREPARED, ", 'streaming', 'on', 'two_phase', 'on'"),
        ):
            two_phase = "true" if version == 3 else "false"
            server.execute(f"SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, {two_phase})")
            messages: list[bytes] = []
            with server.connect() as session:
                for statement in statements:
                    session.execute(statement)  # type: ignore[call-overload]
                    if not statement.startswith("BEGIN") or "PREPARE" in statement or "COMMIT" in statement:
                        found = server.execute(
                            "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', "
                            f"'{version}', 'publication_names', 'p', 'messages', 'true'{more})"
                        )
                        messages += [bytes(data) for (data,) in found]
            (HERE / f"{name}.messages").write_bytes(
                b"".join(len(message).to_bytes(4, "big") + message for message in messages)
            )
            server.execute("SELECT pg_drop_replication_slot('s')")


if __name__ == "__main__":
    main()
