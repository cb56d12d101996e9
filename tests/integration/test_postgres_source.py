"""PostgreSQL as a source, against a real server: order, what is confirmed, what is refused, what survives."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from fix_mariadb_source import Replica
from fix_postgres_source import LOGICAL, PostgresFollower, options_for, run, selected, slot_lsn
from fix_server import make_certificate
from fix_target import Bench
from tranlog.capture.capture import Capture
from tranlog.change import Op, Statement
from tranlog.errors import (
    DdlStopError,
    PositionLostError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.log.writing.log import Log
from tranlog.row_blocks import decoded
from tranlog.service.commands import cli
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.postgres import PostgresSource, connection
from tranlog.source.postgres.catalog import TELLS_SCHEMAS
from tranlog.source.postgres.position import WalPosition, parse_lsn
from tranlog.source.postgres.stream import SlotStream
from tranlog.source.source import SnapshotWait
from tranlog.target.options import TargetKind, TargetOptions
from tranlog.testing.servers import PostgresAddress, PostgresServer
from tranlog.types import UNCHANGED

pytestmark = pytest.mark.integration

Follow = Callable[..., PostgresFollower]

FULL = "CREATE TABLE t (id int PRIMARY KEY, a text); ALTER TABLE t REPLICA IDENTITY FULL"


@pytest.fixture
def server(postgres_source: PostgresServer) -> PostgresServer:
    return postgres_source


@pytest.fixture
def database(postgres_source_database: str) -> str:
    return postgres_source_database


# --- what comes ----------------------------------------------------------------------------------------------------


def test_changes_come_in_the_order_of_their_commits(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """Not in that of their begins; statements and messages stand at their place."""
    run(server, database, FULL)
    follower = follow_postgres(options_for(server, database))
    with server.connect(database, autocommit=False) as first, server.connect(database) as second:
        first.execute("INSERT INTO t VALUES (1, 'began first')")
        second.execute("INSERT INTO t VALUES (2, 'committed first')")
        first.execute("SELECT pg_logical_emit_message(true, 'mine', 'with it')")
        first.commit()
    run(
        server,
        database,
        "BEGIN; UPDATE t SET a = NULL WHERE id = 1; TRUNCATE t RESTART IDENTITY; INSERT INTO t VALUES (3, 'c'); COMMIT",
        "ALTER TABLE t ADD b int DEFAULT 7; ALTER TABLE t DROP a; ALTER TABLE t RENAME id TO key; "
        "UPDATE t SET b = 8; ALTER TABLE t ALTER b TYPE text; DELETE FROM t",
    )
    one, two, three, four = follower.wait_for(4)
    assert [change.after for change in one.rows] == [(2, "committed first")]
    assert [change.after for change in two.rows] == [(1, "began first")] and two.metadata["message mine"] == "with it"
    assert two.metadata["dbms_type"] == "postgres" and one.shard == "public"
    truncate = three.changes[1]
    assert isinstance(truncate, Statement) and truncate.sql == 'TRUNCATE TABLE "public"."t" RESTART IDENTITY'
    assert three.rows[0].before == (1, "began first") and three.rows[0].after == (1, None)
    assert three.shard == UNKNOWN_SHARD
    assert [([c.name for c in row.table.columns], row.before, row.after) for row in four.rows] == [
        (["key", "b"], (3, 7), (3, 8)),
        (["key", "b"], (3, "8"), None),
    ]
    assert four.rows[0].table.primary_key == (0,)


def test_a_message_outside_of_transactions_has_its_place(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    options = options_for(server, database)
    follower = follow_postgres(options, releases=False)
    run(server, database, "SELECT pg_logical_emit_message(false, 'free', '\\x00ff'::bytea)", "INSERT INTO t VALUES (1)")
    follower.wait_for(1)
    said = follower.transactions[-2]
    assert said.is_noop and said.metadata["message free"] == "\\x00ff"
    follower.source.close()
    again = follow_postgres(options, said.event_id)
    assert [one.event_id for one in again.wait_for(1)] == [follower.event_id] and len(again.transactions) == 1


def test_large_transactions_are_streamed_in_bounded_memory(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """Several at a time, with rolled back savepoints; each comes whole, in the order of the commits."""
    run(server, database, FULL)
    follower = follow_postgres(options_for(server, database, memory_bytes=100_000, fragment_bytes=50_000))
    sessions = [server.connect(database, autocommit=False) for _ in range(3)]
    for part in range(4):
        for number, session in enumerate(sessions):
            base = number * 1_000_000 + part * 10_000
            session.execute(f"INSERT INTO t SELECT {base} + g, repeat('x', 300) FROM generate_series(1, 2000) g")
            session.execute("SAVEPOINT one")
            session.execute(f"INSERT INTO t SELECT {base} + g, 'no' FROM generate_series(5000, 7000) g")
            session.execute("ROLLBACK TO one")
        follower.read(0.2)
    assert follower.source.status().open_streamed == 3
    for number in (2, 0):
        sessions[number].commit()
    sessions[1].rollback()
    for session in sessions:
        session.close()
    tracemalloc.start()
    try:
        fragments: list[tuple[str, bool, int]] = []
        deadline = time.monotonic() + 60
        while sum(last for _, last, _ in fragments) < 2:
            assert time.monotonic() < deadline
            for fragment in follower.source.read(1.0):
                fragments.append((fragment.event_id, fragment.last, len(fragment.payload)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len({event_id for event_id, _, _ in fragments}) == 2
    assert sum(size for _, _, size in fragments) > 2 * 8000 * 300 > 2 * peak, peak
    while follower.source.status().open_streamed:
        assert time.monotonic() < deadline
        assert follower.read(0.2) == []


@pytest.mark.timeout(1800)  # in `make soak`
def test_replay_finds_every_before_image(
    server: PostgresServer, database: str, follow_postgres: Follow, request: pytest.FixtureRequest
) -> None:
    """Six writers with savepoints, wide values, keys that move: at each marked place the replay is what SELECT showed.

    For a mark the writers are held between two transactions.
    """
    run(
        server,
        database,
        "CREATE TABLE a (id int PRIMARY KEY, n numeric, big text)",
        "CREATE TABLE b (x int, y text, at timestamptz DEFAULT now())",
        "ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
    )
    options = options_for(server, database, identity="set")
    follower = follow_postgres(options)
    seed = random.randrange(1 << 32)
    marks = 200 if request.config.getoption("--soak") else 8
    ended = threading.Event()
    gates = [threading.Lock() for _ in range(6)]
    threads = [
        threading.Thread(target=write_at_random, args=(server, database, seed + number, gate, ended))
        for number, gate in enumerate(gates)
    ]
    for thread in threads:
        thread.start()
    shown = []
    for number in range(marks):
        target, deadline = len(follower.transactions) + 6, time.monotonic() + 60
        while len(follower.transactions) < target:
            assert time.monotonic() < deadline
            follower.read(0.3)
        with contextlib.ExitStack() as held:
            for gate in gates:
                held.enter_context(gate)
            run(server, database, f"SELECT pg_logical_emit_message(true, 'mark', '{number}')")
            shown.append(selected(options))
    ended.set()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 60
    while not any(one.metadata.get("message mark") == str(marks - 1) for one in follower.transactions):
        assert time.monotonic() < deadline
        follower.read(0.5)
    replica, reached = Replica(), 0
    for transaction in follower.transactions:
        replica.apply(transaction)
        if "message mark" in transaction.metadata:
            assert transaction.metadata["message mark"] == str(reached)
            replica.assert_equals(shown[reached])
            reached += 1
    assert reached == marks and len(follower.transactions) > 5 * marks, f"seed {seed}"


def write_at_random(
    server: PostgresServer, database: str, seed: int, gate: threading.Lock, ended: threading.Event
) -> None:
    rng = random.Random(seed)
    with server.connect(database, autocommit=False) as session:
        while not ended.is_set():
            time.sleep(0.005)  # so that whoever waits for the gate gets it
            with gate:
                try:
                    for _ in range(rng.randrange(1, 5)):
                        savepoint = rng.random() < 0.4
                        if savepoint:
                            session.execute("SAVEPOINT s")
                        session.execute(statement_at_random(rng))  # type: ignore[call-overload]
                        if savepoint and rng.random() < 0.5:
                            session.execute("ROLLBACK TO s")
                    if rng.random() < 0.15:
                        session.rollback()
                    else:
                        session.commit()
                except psycopg.Error:  # a key that is there already, a deadlock
                    session.rollback()


def statement_at_random(rng: random.Random) -> str:
    key = rng.randrange(60)
    match rng.randrange(7):
        case 0 | 1:
            big = f"repeat('{rng.choice('abc')}', {rng.choice((1, 10, 9000))})"
            return f"INSERT INTO a VALUES ({key}, {rng.random() * 100:.3f}, {big}) ON CONFLICT DO NOTHING"
        case 2:
            return f"UPDATE a SET n = n + 1 WHERE id BETWEEN {key} AND {key + 5}"
        case 3:
            return f"UPDATE a SET id = id + 1000 WHERE id = {key}"
        case 4:
            return f"DELETE FROM a WHERE id % 60 = {key}"
        case 5:
            return f"INSERT INTO b (x, y) SELECT {key}, 'y' FROM generate_series(1, {rng.choice((1, 3, 900))})"
        case _:
            return f"DELETE FROM b WHERE x = {key}"


def test_generated_and_identity_columns(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """PostgreSQL sends no generated columns: a target computes its own."""
    run(
        server,
        database,
        "CREATE TABLE g (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, "
        "b int GENERATED ALWAYS AS (a * 2) STORED)",
    )
    options = options_for(server, database, identity="set")
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO g (a) VALUES (5)")
    (one,) = follower.wait_for(1)
    assert one.rows[0].after == (1, 5) and [c.name for c in one.rows[0].table.columns] == ["id", "a"]
    assert one.rows[0].table == selected(options)["g"][0]


@pytest.mark.parametrize("via_root", [False, True])
def test_partitions(server: PostgresServer, database: str, follow_postgres: Follow, via_root: bool) -> None:
    """A row that an update moves to another partition is a DELETE and an INSERT, as the server does it."""
    run(
        server,
        database,
        "CREATE TABLE p (id int, d int, note text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 (note text, d int NOT NULL, id int NOT NULL); ALTER TABLE p ATTACH PARTITION p2 "
        "FOR VALUES FROM (10) TO (20)",
    )
    options = options_for(server, database, via_partition_root=via_root, identity="set")
    follower = follow_postgres(options)
    run(
        server,
        database,
        "INSERT INTO p VALUES (1, 1, 'a'), (2, 11, 'b')",
        "UPDATE p SET note = 'c'; UPDATE p SET d = 12 WHERE id = 1; DELETE FROM p WHERE id = 2",
    )
    _, two = found = follower.wait_for(2)
    assert {row.table.table for t in found for row in t.rows} == ({"p"} if via_root else {"p1", "p2"})
    assert [row.op for row in two.rows] == [Op.UPDATE, Op.UPDATE, Op.DELETE, Op.INSERT, Op.DELETE]
    for row in two.rows:
        assert None not in (row.before or ()) and None not in (row.after or ())
    replica = Replica()
    for transaction in found:
        replica.apply(transaction)
    replica.assert_equals(selected(options))


@pytest.mark.parametrize(("encoding", "said"), [("LATIN1", "à la"), ("SQL_ASCII", "� la")])
def test_text_of_another_encoding(
    start_postgres: Callable[..., PostgresServer], follow_postgres: Follow, encoding: str, said: str
) -> None:
    """Rows, names and recorded DDL come as UTF-8; DDL of no known encoding does not fail."""
    server = start_postgres(options=LOGICAL)
    server.execute(f"CREATE DATABASE other ENCODING {encoding} TEMPLATE template0 LOCALE 'C'")
    with server.connect("other") as session:
        session.execute("SET client_encoding = UTF8")
        session.execute('CREATE TABLE "é" (id int, a text); ALTER TABLE "é" REPLICA IDENTITY FULL')
        follower = follow_postgres(options_for(server, "other", ddl_capture="event_trigger"))
        session.execute("""INSERT INTO "é" VALUES (1, 'ü')""")
        session.execute("SET client_encoding = LATIN1")
        session.execute(b"CREATE TABLE v (a text DEFAULT '\xe0 la')")
    rows, ddl = follower.wait_for(2)
    assert [(row.table.table, row.after) for row in rows.rows] == [("é", (1, "ü"))]
    (statement,) = ddl.changes
    assert isinstance(statement, Statement) and f"'{said}'" in str(statement.sql)


@pytest.mark.parametrize("via_root", [False, True])
def test_a_partitioned_table_is_named_by_itself(
    server: PostgresServer, database: str, follow_postgres: Follow, via_root: bool
) -> None:
    """Also one without partitions yet. A foreign table as partition has no replica identity, an unlogged one no WAL."""
    run(
        server,
        database,
        "CREATE TABLE p (id int, note text) PARTITION BY RANGE (id); ALTER TABLE p REPLICA IDENTITY FULL",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); ALTER TABLE p1 REPLICA IDENTITY FULL",
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) SERVER s",
        "CREATE TABLE e (id int) PARTITION BY RANGE (id); ALTER TABLE e REPLICA IDENTITY FULL",
    )
    options = options_for(server, database, via_partition_root=via_root, tables=("public.p", "public.e"))
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO p VALUES (1, 'a')")
    (one,) = follower.wait_for(1)
    assert [(row.table.table, row.after) for row in one.rows] == [("p" if via_root else "p1", (1, "a"))]
    run(server, database, "CREATE UNLOGGED TABLE e1 PARTITION OF e FOR VALUES FROM (0) TO (10)")
    run(server, database, "ALTER TABLE e1 REPLICA IDENTITY FULL")
    with pytest.raises(SourceSetupError, match=r'ALTER TABLE "public"\."e1" SET LOGGED;'):
        follow_postgres(options, follower.event_id)


def test_a_new_partition_without_the_identity_is_refused(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """Through the root the server would send NULL in the place of what it does not have."""
    run(server, database, "CREATE TABLE p (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    run(server, database, "ALTER TABLE p REPLICA IDENTITY FULL")
    follower = follow_postgres(options_for(server, database, via_partition_root=True))
    run(server, database, "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)", "INSERT INTO p VALUES (1, 'x')")
    for _ in range(2):  # again at each read
        with pytest.raises(SourceSetupError, match=r'ALTER TABLE "public"\."p1" REPLICA IDENTITY FULL;'):
            follower.wait_for(1)


def test_with_the_key_there_is_no_before_image(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """Nor what did not change of a long value; both are UNCHANGED, never NULL."""
    run(
        server,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE u (a int NOT NULL, b int, c text); CREATE UNIQUE INDEX one ON u (a); "
        "ALTER TABLE u REPLICA IDENTITY USING INDEX one",
    )
    follower = follow_postgres(options_for(server, database, identity="key"))
    run(
        server,
        database,
        "INSERT INTO t VALUES (1, 'a', repeat('x', 9000))",
        "UPDATE t SET a = 'b'; UPDATE t SET id = 2; DELETE FROM t",
        "INSERT INTO u VALUES (1, 2, 'c'); UPDATE u SET b = 3",
    )
    _, two, three = follower.wait_for(3)
    assert [(row.before, row.after) for row in two.rows] == [
        ((1, UNCHANGED, UNCHANGED), (1, "b", UNCHANGED)),
        ((1, UNCHANGED, UNCHANGED), (2, "b", UNCHANGED)),
        ((2, UNCHANGED, UNCHANGED), None),
    ]
    assert three.rows[1].table.primary_key == (0,) and three.rows[1].before == (1, UNCHANGED, UNCHANGED)


def test_shards_follow_foreign_keys(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    run(
        server,
        database,
        "CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY REFERENCES c)",
        "CREATE TABLE e (id int)",
    )
    rule = ShardRule(kind=ShardRuleKind.TABLE)
    follower = follow_postgres(options_for(server, database, identity="set", shard_rule=rule))
    run(
        server,
        database,
        "INSERT INTO c VALUES (1); INSERT INTO d VALUES (1)",
        "INSERT INTO e VALUES (1)",
    )
    assert [one.shard for one in follower.wait_for(2)] == ["public.c", "public.e"]
    added = "ALTER TABLE e ADD f int REFERENCES c; INSERT INTO e VALUES (2, 1)"
    run(server, database, added, "INSERT INTO e VALUES (3, 1)")
    # The first that has a new column says so to all channels.
    assert [one.shard for one in follower.wait_for(2)] == ["#UNKNOWN", "public.c"]


@pytest.mark.parametrize("how", ["idle", "busy", "recorded"])
def test_a_schema_that_is_renamed_is_followed(
    server: PostgresServer, database: str, follow_postgres: Follow, how: str
) -> None:
    """PostgreSQL 15 does not tell: with recorded DDL at its place, else where it is seen next. 16 and later do."""
    with server.connect(database) as session:
        told = session.info.server_version >= TELLS_SCHEMAS
    run(server, database, "CREATE SCHEMA one; CREATE TABLE one.t (id int); ALTER TABLE one.t REPLICA IDENTITY FULL")
    recorded = how == "recorded"
    ddl_capture = "event_trigger" if recorded else "off"
    follower = follow_postgres(options_for(server, database, ddl_capture=ddl_capture, heartbeat_s=0.1))
    run(server, database, "INSERT INTO one.t VALUES (1)")
    if not recorded:
        follower.wait_for(1)
    run(server, database, "ALTER SCHEMA one RENAME TO two")
    deadline = time.monotonic() + 30
    while not (recorded or told or follower.source.status().reconnects):
        assert time.monotonic() < deadline
        if how == "busy":
            run(server, database, "INSERT INTO two.t VALUES (0)")
        follower.read(0.2)
    run(server, database, "INSERT INTO two.t VALUES (2)", "UPDATE two.t SET id = 3 WHERE id = 2")
    rows: list[tuple[str, object]] = []
    while ("two", (3,)) not in rows:
        assert time.monotonic() < deadline, rows
        follower.read(0.2)
        rows = [(row.table.schema, row.after) for one in follower.transactions for row in one.rows]
    assert [row for row in rows if row[1] != (0,)] == [("one", (1,)), ("two", (2,)), ("two", (3,))]


def test_prepared_transactions_come_with_their_commit(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    follower = follow_postgres(options_for(server, database))
    run(server, database, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'one'", "INSERT INTO t VALUES (2)")
    run(server, database, "BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION 'two'", "ROLLBACK PREPARED 'two'")
    run(server, database, "COMMIT PREPARED 'one'")
    assert [one.rows[0].after for one in follower.wait_for(2)] == [(2, None), (1, None)]


def test_ddl_is_recorded_by_an_event_trigger(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """Once for each text, at its place among the rows."""
    options = options_for(server, database, identity="set", ddl_capture="event_trigger")
    follower = follow_postgres(options)
    run(
        server,
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "BEGIN; INSERT INTO t VALUES (1); ALTER TABLE t ADD a int; INSERT INTO t VALUES (2, 3); COMMIT",
        "DROP TABLE t",
    )
    one, two, three = follower.wait_for(3)
    assert (
        one.texts == ["CREATE TABLE t (id int PRIMARY KEY)"]
        and one.statements[0].ddl
        and three.texts == ["DROP TABLE t"]
    )
    assert [type(change).__name__ for change in two.changes] == ["RowChange", "Statement", "RowChange"]
    assert two.shard == UNKNOWN_SHARD


# --- what is confirmed ----------------------------------------------------------------------------------------------


def test_the_slot_confirms_what_was_released_and_nothing_else(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    options = options_for(server, database)
    follower = follow_postgres(options, releases=False)
    begin = follower.lsn
    run(server, database, *[f"INSERT INTO t VALUES ({n})" for n in range(5)])
    found = follower.wait_for(5)
    time.sleep(0.5)
    assert slot_lsn(server, options.slot_name) == begin
    follower.source.release(found[2].event_id)
    wanted = WalPosition.parse(found[2].event_id).lsn
    deadline = time.monotonic() + 10
    while slot_lsn(server, options.slot_name) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run(server, "postgres", "CREATE TABLE IF NOT EXISTS elsewhere (a text)", "INSERT INTO elsewhere VALUES ('x')")
    time.sleep(0.5)
    assert slot_lsn(server, options.slot_name) == wanted  # not the position of a keepalive
    follower.source.close()
    again = follow_postgres(options, found[4].event_id)  # the log had more than it could release
    run(server, database, "INSERT INTO t VALUES (9)")
    assert [one.rows[0].after for one in again.wait_for(1)] == [(9, None)]


def test_a_quiet_database_on_a_busy_server_moves_its_slot(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    options = options_for(server, database, heartbeat_s=0.2, heartbeat_bytes=50_000)
    follower = follow_postgres(options)
    begin = follower.lsn
    run(server, "postgres", "CREATE TABLE IF NOT EXISTS busy (a text)")
    deadline = time.monotonic() + 20
    while slot_lsn(server, options.slot_name) < begin + 500_000:
        assert time.monotonic() < deadline
        run(server, "postgres", "INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 100)")
        follower.read(0.2)
    beats = [one for one in follower.transactions if one.metadata.get("noop") == "heartbeat"]
    assert len(beats) > 1 and all(one.is_noop for one in beats)
    idle = len(follower.transactions)
    for _ in range(5):
        follower.read(0.3)
    assert len(follower.transactions) <= idle + 1  # our own heartbeat is no reason for another one


def test_what_is_there_by_now_is_awaited_while_the_server_decodes_other_wal(
    server: PostgresServer, database: str, follow_postgres: Follow, tmp_path: Path
) -> None:
    run(server, database, FULL, "CREATE TABLE u (t text)", "CREATE PUBLICATION p FOR TABLE t")
    with closing(PostgresSource(options_for(server, database, publication="p"))) as source:
        with Log.open(str(tmp_path / "log"), source_id=source.source_id) as log:
            assert Capture(source, log).catch_up().transactions == 1  # the position at which the log begins
            run(server, database, "INSERT INTO u SELECT repeat('x', 100) FROM generate_series(1, 300000)")
            run(server, database, "INSERT INTO t VALUES (1)")
            assert Capture(source, log).catch_up().transactions == 1


def test_an_iteration_that_is_given_up_comes_again_whole(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """Also where a table was altered within: it is decoded again as it was at each place."""
    run(server, database, FULL)
    follower = follow_postgres(options_for(server, database, fragment_bytes=200))
    run(
        server,
        database,
        "BEGIN; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 5) g; ALTER TABLE t ADD b int; "
        "INSERT INTO t VALUES (9, 'last', 1); COMMIT",
    )
    iterator = follower.source.read(5.0)
    parts = [next(iterator) for _ in range(3)]
    assert not parts[-1].last
    iterator.close()  # type: ignore[attr-defined]
    (one,) = follower.wait_for(1)
    assert [len(row.after or ()) for row in one.rows] == [2] * 5 + [3] and one.fragments[:3] == parts


# --- servers that go away, and come back -----------------------------------------------------------------------------


def test_a_server_that_restarts_or_is_killed_is_followed_on(
    start_postgres: Callable[..., PostgresServer], follow_postgres: Follow
) -> None:
    """A shutdown does not wait for what the log has not confirmed; nothing is lost or doubled."""
    server = start_postgres(options={**LOGICAL, "fsync": True})
    run(server, "postgres", FULL)
    follower = follow_postgres(options_for(server, "postgres"))
    run(server, "postgres", "INSERT INTO t VALUES (1)", "CHECKPOINT")
    follower.wait_for(1)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 10
    with pytest.raises(SourceUnavailableError):
        follow_postgres(replace(follower.source.options, connect_timeout_s=2.0), follower.event_id)
    server.start()
    run(server, "postgres", "INSERT INTO t VALUES (2)")
    assert [one.rows[0].after for one in follower.wait_for(1)] == [(2, None)]
    for number in range(3, 6):
        run(server, "postgres", f"INSERT INTO t VALUES ({number})")
        server.kill()
        server.start()
        assert [one.rows[0].after for one in follower.wait_for(1)] == [(number, None)]
    assert follower.source.status().reconnects >= 4  # a server that is still starting may be lost again
    ours = follower.event_id
    follower.source.close()
    again = follow_postgres(follower.source.options, ours)
    run(server, "postgres", "INSERT INTO t VALUES (9)")
    assert [one.rows[0].after for one in again.wait_for(1)] == [(9, None)]


def test_what_the_server_cannot_decode_is_told_at_its_place(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """The output function of its type fails, with a code of the server's own faults."""
    run(
        server,
        database,
        "CREATE TYPE broken; CREATE FUNCTION taken(cstring) RETURNS broken LANGUAGE internal STRICT AS 'byteain'",
        "CREATE FUNCTION shown(broken) RETURNS cstring LANGUAGE internal STRICT AS 'array_out'",
        "CREATE TYPE broken (INPUT = taken, OUTPUT = shown); CREATE TABLE t (a broken)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    follower = follow_postgres(options_for(server, database, reconnect_s=1.0))
    run(server, database, r"INSERT INTO t VALUES ('\x0100000000000000010000000100000001000000')")
    with pytest.raises(SourceSetupError) as caught:
        follower.wait_for(1)
    said = r"cannot decode a transaction: 'cache lookup failed for type 1' \(XX000; .*associated LSN [0-9A-F/]+\)"
    assert re.search(said, caught.value.why)


def test_a_server_that_ends_every_connection_is_given_up(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """It is there each time, and the same error comes each time."""
    run(server, database, FULL)
    options = options_for(server, database, reconnect_s=2.0)
    follower = follow_postgres(options)
    over = threading.Event()

    def end() -> None:
        with server.connect(database) as session:
            while not over.is_set():
                session.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                    "WHERE slot_name = %s AND active_pid IS NOT NULL",
                    (options.slot_name,),
                )
                over.wait(0.02)

    ending = threading.Thread(target=end)
    ending.start()
    try:
        with pytest.raises(SourceUnavailableError, match="terminating connection"):
            follower.wait_for(1)
    finally:
        over.set()
        ending.join()
    run(server, database, "INSERT INTO t VALUES (1)")
    assert [one.rows[0].after for one in follower.wait_for(1)] == [(1, None)]


def test_a_reader_that_was_lost_may_still_move_the_slot(
    postgres_source: PostgresServer, postgres_source_database: str, follow_postgres: Follow
) -> None:
    """The server takes what the lost connection had told it when another one waits for the slot already."""
    server, database = postgres_source, postgres_source_database
    run(server, database, FULL)
    options = options_for(server, database)
    follower = follow_postgres(options, releases=False)
    run(server, database, "INSERT INTO t VALUES (1)")
    follower.wait_for(1)
    ours, lsn = follower.event_id, follower.lsn
    follower.source.close()
    lost = SlotStream(options)
    lost.begin()

    def end() -> None:
        time.sleep(1.0)
        lost.confirm(lsn)
        lost.close()

    ending = threading.Thread(target=end)
    ending.start()
    again = follow_postgres(options, ours)
    ending.join()
    run(server, database, "INSERT INTO t VALUES (2)")
    assert [one.rows[0].after for one in again.wait_for(1)] == [(2, None)]


def wait_until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    ((lsn,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
    deadline = time.monotonic() + 30
    while parse_lsn(standby.execute("SELECT pg_last_wal_replay_lsn()::text")[0][0]) < parse_lsn(lsn):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_promotion_that_keeps_the_history_is_followed(
    start_postgres: Callable[..., PostgresServer], follow_postgres: Follow
) -> None:
    """With a slot that stood at the standby; without one, and where the standby lacks the log's end, it is refused."""
    primary = start_postgres(options={**LOGICAL, "wal_keep_size": "64MB"})
    run(primary, "postgres", FULL)
    options = options_for(primary, "postgres")
    follower = follow_postgres(options)
    standby = primary.standby(options={**LOGICAL, "hot_standby_feedback": True, "wal_keep_size": "64MB"})
    try:
        ((copied,),) = primary.execute("SELECT pg_current_wal_lsn()")
        wait_until_restart(primary, follower, options.slot_name, copied)
        at_standby = replace(options, dsn=standby.dsn("postgres"))
        standby.start()
        with pytest.raises(SourceSetupError, match="is a replica"):
            follow_postgres(at_standby, follower.event_id)
        run(primary, "postgres", "CHECKPOINT")
        standby.stop()
        standby.put_slot(options.slot_name, primary.slot_state(options.slot_name))
        standby.start()
        run(primary, "postgres", "INSERT INTO t VALUES (2)")
        follower.wait_for(1)
        wait_until_replayed(primary, standby)
        run(primary, "postgres", "INSERT INTO t VALUES (3)")
        wait_until_replayed(primary, standby)
        ours = follower.event_id  # without 3, which the old primary alone has sent to nobody
        follower.source.close()
        primary.kill()
        standby.execute("SELECT pg_promote()")
        run(standby, "postgres", "INSERT INTO t VALUES (4)")
        again = follow_postgres(at_standby, ours)
        found = again.wait_for(2)
        assert [one.rows[0].after for one in found] == [(3, None), (4, None)]
        assert WalPosition.parse(ours).timeline == 1 and WalPosition.parse(found[1].event_id).timeline == 2
        again.source.close()
        ahead = WalPosition.parse(ours)
        beyond = str(WalPosition(lsn=ahead.lsn + (1 << 30), system=ahead.system, timeline=1, slot=ahead.slot))
        with pytest.raises(
            PositionLostError, match=r"left timeline 1 at .*, the log ends at .* of timeline 1, and the slot"
        ):
            follow_postgres(at_standby, beyond)
        standby.execute(f"SELECT pg_drop_replication_slot('{options.slot_name}')")
        with pytest.raises(PositionLostError, match="did not come along with a promotion"):
            follow_postgres(at_standby, ours)
        primary.start()
        with pytest.raises(PositionLostError, match="does not come from timeline 2"):
            follow_postgres(options, found[1].event_id)
    finally:
        standby.close()


def wait_until_restart(primary: PostgresServer, follower: PostgresFollower, slot: str, lsn: str) -> None:
    """Wait until the slot needs no WAL before `lsn`: a copy of the server that began there can serve it."""
    deadline = time.monotonic() + 60
    asked = f"SELECT restart_lsn > '{lsn}' FROM pg_replication_slots WHERE slot_name = '{slot}'"
    for number in itertools.count(100):
        if primary.execute(asked) == [(True,)]:
            return
        assert time.monotonic() < deadline
        # A checkpoint notes the transactions that run; the slot starts there once a later commit is confirmed.
        run(primary, "postgres", "CHECKPOINT", f"INSERT INTO t VALUES ({number})")
        follower.wait_for(1)
        follower.read(0.2)


def test_a_server_that_was_restored_is_refused(
    start_postgres: Callable[..., PostgresServer], follow_postgres: Follow
) -> None:
    """Its WAL ends before the log's; and it has gone on over the log's end with transactions of its own."""
    primary = start_postgres(options=LOGICAL)
    run(primary, "postgres", FULL)
    options = options_for(primary, "postgres")
    follower = follow_postgres(options)
    run(primary, "postgres", "INSERT INTO t VALUES (1)")
    follower.wait_for(1)
    follower.source.close()
    primary.stop()
    saved = primary.data_directory.with_name("saved")
    primary._run(["cp", "-a", primary.data_directory, saved])
    primary.start()
    again = follow_postgres(options, follower.event_id)
    run(primary, "postgres", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    again.wait_for(2)
    ours = again.event_id
    again.source.close()
    primary.stop()
    primary._run(["rm", "-r", primary.data_directory])
    primary._run(["mv", saved, primary.data_directory])
    primary.start()
    with pytest.raises(PositionLostError, match=r"the server's WAL ends at .* restored from a backup"):
        follow_postgres(options, ours)
    run(primary, "postgres", "INSERT INTO t SELECT g FROM generate_series(10, 3000) g", "INSERT INTO t VALUES (4)")
    once_more = follow_postgres(options, ours)
    with pytest.raises(PositionLostError, match="it was restored from a backup and has gone on"):
        once_more.wait_for(1)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_slot_that_was_dropped_or_made_anew_is_refused(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    options = options_for(server, database)
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO t VALUES (1)")
    follower.wait_for(1)
    follower.source.close()
    run(server, database, f"SELECT pg_drop_replication_slot('{options.slot_name}')")
    with pytest.raises(PositionLostError, match="it was dropped"):
        follow_postgres(options, follower.event_id)
    run(server, database, "INSERT INTO t VALUES (2)")
    run(server, database, f"SELECT pg_create_logical_replication_slot('{options.slot_name}', 'pgoutput')")
    with pytest.raises(PositionLostError, match="dropped and made anew"):
        follow_postgres(options, follower.event_id)
    run(server, database, f"SELECT pg_drop_replication_slot('{options.slot_name}')")
    run(server, database, f"SELECT pg_create_logical_replication_slot('{options.slot_name}', 'test_decoding')")
    with pytest.raises(SourceSetupError, match="is for the plugin test_decoding"):
        follow_postgres(options, follower.event_id)
    with pytest.raises(PositionLostError, match="this log is of another source"):
        follow_postgres(options, "0-1-42")
    run(server, database, f'DROP PUBLICATION "{options.publication_name}"')
    with pytest.raises(PositionLostError, match="has no publication"):
        follow_postgres(options, follower.event_id)


def test_tables_whose_identity_does_not_do(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """They are named with the statements to run; nothing is made at the server by the refusal."""
    run(
        server,
        database,
        "CREATE TABLE with_key (id int PRIMARY KEY)",
        'CREATE TABLE "without ""key""" (id int)',
        "CREATE TABLE n (id int PRIMARY KEY); ALTER TABLE n REPLICA IDENTITY NOTHING",
    )
    options = options_for(server, database)
    every = 'ALTER TABLE "public"."n" REPLICA IDENTITY FULL; ALTER TABLE "public"."with_key" REPLICA IDENTITY FULL; '
    without = 'ALTER TABLE "public"."without ""key""" REPLICA IDENTITY FULL;'
    with pytest.raises(SourceSetupError) as caught:
        follow_postgres(options)
    assert f"Run at the source: {every}{without}, or set identity" in str(caught.value)
    assert server.execute("SELECT count(*)::int FROM pg_publication", database=database) == [(0,)]
    by_key = replace(options, identity="key")
    with pytest.raises(SourceSetupError) as caught:
        follow_postgres(by_key)
    assert "with_key" not in str(caught.value) and without in str(caught.value) and '"n"' in str(caught.value)
    follower = follow_postgres(replace(options, identity="set"))
    run(server, database, "INSERT INTO n VALUES (1); UPDATE n SET id = 2", "CREATE TABLE late (id int PRIMARY KEY)")
    assert follower.wait_for(1)[0].rows[1].before == (1,)
    run(server, database, "INSERT INTO late VALUES (1)")
    follower.wait_for(1)
    run(server, database, "UPDATE late SET id = 2")  # by now it has been set
    assert follower.wait_for(1)[0].rows[0].before == (1,)


def test_with_the_key_a_deferrable_one_is_none(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """Published, the table would let the application neither UPDATE nor DELETE; it does once the statement has run."""
    run(server, database, "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, a text)")
    options = options_for(server, database, identity="key")
    full = 'ALTER TABLE "public"."late" REPLICA IDENTITY FULL;'
    with pytest.raises(SourceSetupError, match=re.escape(full)):
        follow_postgres(options)
    run(server, database, f'CREATE PUBLICATION "{options.publication_name}" FOR ALL TABLES')
    with pytest.raises(SourceSetupError, match=re.escape(full)):
        follow_postgres(options)
    run(server, database, full)
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO late VALUES (1, 'a'); UPDATE late SET id = 2; DELETE FROM late")
    assert [row.before for row in follower.wait_for(1)[0].rows] == [None, (1, "a"), (2, "a")]


def test_with_the_key_what_an_index_includes_is_no_part_of_it(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    """The catalogue and the stream tell the same key, whose rows are read in its order, NULL included."""
    run(
        server,
        database,
        "CREATE TABLE t (v int, id int, PRIMARY KEY (id) INCLUDE (v))",
        "CREATE TABLE u (v int, id int NOT NULL, w int NOT NULL); CREATE UNIQUE INDEX one ON u (w, id) INCLUDE (v)",
        "ALTER TABLE u REPLICA IDENTITY USING INDEX one",
        "INSERT INTO t VALUES (NULL, 1), (5, 2)",
    )
    options = options_for(server, database, identity="key")
    follower = follow_postgres(options)
    run(server, database, "UPDATE t SET id = 3 WHERE id = 2; INSERT INTO u VALUES (NULL, 1, 2)")
    told = {row.table.table: row.table.primary_key for row in follower.wait_for(1)[0].rows}
    found = {name: table for name, (table, _) in selected(options).items()}
    assert told == {"t": (1,), "u": (1, 2)} == {name: table.primary_key for name, table in found.items()}
    while isinstance(snapshot := follower.source.snapshot(), SnapshotWait):
        time.sleep(0.01)
    with contextlib.closing(snapshot):
        table = snapshot.table(("public", "t"))
        assert table is not None
        assert list(decoded(snapshot.chunk(table, (1,), 10), table)) == [(5, 3)]


def test_with_on_gap_stop_a_change_without_its_before_image_is_refused_by_name(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, FULL)
    follower = follow_postgres(options_for(server, database, on_gap="stop"))
    run(server, database, "INSERT INTO t VALUES (1, 'a')")
    follower.wait_for(1)
    run(
        server,
        database,
        "ALTER TABLE t REPLICA IDENTITY DEFAULT; UPDATE t SET a = 'b'; ALTER TABLE t REPLICA IDENTITY FULL",
    )
    for _ in range(2):  # again at each read
        with pytest.raises(
            UnsupportedEventError, match=r"a change of public\.t in transaction .*REPLICA IDENTITY FULL"
        ):
            follower.wait_for(1)


def test_tables_that_write_no_wal_are_refused(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    run(server, database, FULL, "CREATE UNLOGGED TABLE scratch (id int)")
    options = options_for(server, database)
    with pytest.raises(SourceSetupError, match=r'ALTER TABLE "public"\."scratch" SET LOGGED;'):
        follow_postgres(options)
    follow_postgres(replace(options, unlogged="ignore"))
    some = options_for(server, database, tables=("public.t", "public.absent"))
    with pytest.raises(SourceSetupError, match="does not exist"):
        follow_postgres(some)


def test_a_publication_that_is_given(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    run(
        server,
        database,
        FULL,
        "CREATE TABLE u (id int)",
        "CREATE PUBLICATION mine FOR TABLE t WITH (publish = 'insert')",
    )
    options = options_for(server, database, publication="mine")
    with pytest.raises(SourceSetupError, match=r"SET \(publish = 'insert, update, delete, truncate'\)"):
        follow_postgres(options)
    run(server, database, "ALTER PUBLICATION mine SET (publish = 'insert, update, delete, truncate')")
    with pytest.raises(SourceSetupError, match=r'ALTER PUBLICATION "mine" ADD TABLE "public"\."u"'):
        follow_postgres(replace(options, tables=("public.u",)))
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (1)")
    assert [row.table.table for one in follower.wait_for(1) for row in one.rows] == ["t"]


def test_a_slot_in_use_names_who_uses_it(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    run(server, database, FULL)
    options = options_for(server, database, connect_timeout_s=1.0)
    follower = follow_postgres(options)
    with pytest.raises(SourceSetupError, match=r"is in use by process \d+, user postgres, tranlog test-"):
        follow_postgres(options, follower.event_id)
    run(server, database, "INSERT INTO t VALUES (1)")
    follower.wait_for(1)  # and was not disturbed


def test_a_slot_waits_for_open_transactions_and_says_for_which(
    server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long they are: no limit of our sessions ends it; a stop does, and leaves no slot."""
    monkeypatch.setitem(connection._SESSION, "lock_timeout", "300ms")
    run(server, database, FULL)
    source = PostgresSource(options_for(server, database, load_wait_s=0.1))
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with contextlib.closing(source), server.connect(database, autocommit=False) as idle:
        idle.execute("INSERT INTO t VALUES (1, 'a')")
        who = f"process {idle.info.backend_pid}, user postgres"
        timer = threading.Timer(1.0, source.stop)
        timer.start()
        with pytest.raises(SourceUnavailableError, match=f"ended: {who}, .*, and capture is to stop"):
            source.start(None)
        timer.join()
        assert who in caplog.text
        assert server.execute(slots, database=database) == []
        timer = threading.Timer(1.0, idle.commit)
        timer.start()
        source.start(None)
        timer.join()
    assert server.execute(slots, database=database) == [(source.options.slot_name,)]


def test_users_and_their_rights(server: PostgresServer, database: str, follow_postgres: Follow) -> None:
    """A role that owns its tables and may replicate suffices; what it lacks is told."""
    role = f"role_{database}"
    run(server, database, f"CREATE ROLE {role} LOGIN PASSWORD 'secret'", FULL)
    try:
        options = options_for(server, database, tables=("public.t",))
        options = replace(options, dsn=options.dsn.replace("postgres@", f"{role}@"))
        with pytest.raises(SourceSetupError, match="ALTER ROLE <user> REPLICATION"):
            follow_postgres(options)
        run(server, database, f"ALTER ROLE {role} REPLICATION")
        with pytest.raises(SourceSetupError, match="permission denied for database"):
            follow_postgres(options)
        run(server, database, f"GRANT CREATE ON DATABASE {database} TO {role}; ALTER TABLE t OWNER TO {role}")
        follower = follow_postgres(options)
        run(server, database, "INSERT INTO t VALUES (1)")
        follower.wait_for(1)
        follower.source.close()
        absent = replace(options, dsn=options.dsn.replace(f"{role}@", f"no_{role}@"))
        with pytest.raises(SourceSetupError, match="does not exist"):
            PostgresSource(absent).check()
    finally:
        run(server, database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_servers_that_are_not_set_up(start_postgres: Callable[..., PostgresServer], follow_postgres: Follow) -> None:
    server = start_postgres(options={"max_replication_slots": 1})
    run(server, "postgres", FULL)
    with pytest.raises(SourceSetupError, match=r"wal_level = replica.*ALTER SYSTEM SET wal_level = 'logical'"):
        PostgresSource(options_for(server, "postgres")).check()
    server.options["wal_level"] = "logical"
    server.options["max_wal_senders"] = 1
    hba = server.data_directory / "pg_hba.conf"
    trusting = hba.read_text()
    server.restart()
    first = follow_postgres(options_for(server, "postgres"))
    with pytest.raises(SourceSetupError, match=r"max_wal_senders|max_replication_slots"):
        follow_postgres(options_for(server, "postgres"))
    first.source.close()
    with pytest.raises(SourceSetupError, match="max_replication_slots"):
        follow_postgres(options_for(server, "postgres"))
    run(server, "postgres", "CREATE ROLE capturing SUPERUSER LOGIN PASSWORD 'right'")
    hba.write_text("local all all trust\nhost all capturing all scram-sha-256\n" + trusting)
    run(server, "postgres", "SELECT pg_reload_conf()")
    dsn = f"postgresql://capturing@{server.host}:{server.port}/postgres"
    time.sleep(0.3)
    for password in ("", "wrong"):
        with pytest.raises(SourceSetupError) as caught:
            PostgresSource(replace(options_for(server, "postgres"), dsn=dsn, password=password)).check()
        assert "password" in str(caught.value) and (not password or password not in str(caught.value))
    PostgresSource(replace(options_for(server, "postgres"), dsn=dsn, password="right")).check()
    with pytest.raises(SourceSetupError, match="SSL"):
        PostgresSource(replace(options_for(server, "postgres"), dsn=dsn + "?sslmode=require", password="right")).check()


def test_the_table_reader_sees_what_capture_carries(
    server: PostgresServer, database: str, follow_postgres: Follow
) -> None:
    run(server, database, "CREATE TABLE t (id int PRIMARY KEY, a text UNIQUE NOT NULL, b int, c int)")
    run(server, database, "CREATE TABLE r (id int PRIMARY KEY REFERENCES t); CREATE TABLE left_out (id int)")
    run(server, database, "CREATE PUBLICATION chosen FOR TABLE t (id, a, b), r")
    options = options_for(server, database, publication="chosen", identity="key")
    follower = follow_postgres(options)
    run(server, database, "INSERT INTO t VALUES (1, 'x', NULL, 3); INSERT INTO r VALUES (1)")
    (one,) = follower.wait_for(1)
    tables = selected(options)
    assert {row.table.table: row.table for row in one.rows} == {name: table for name, (table, _) in tables.items()}
    assert [column.nullable for column in one.rows[0].table.columns] == [False, False, True]
    assert one.rows[0].table.unique_keys == ((1,),) and one.rows[1].table.foreign_keys[0].ref_table == "t"
    replica = Replica()
    replica.apply(one)
    replica.assert_equals(tables)


def test_the_table_reader_asks_for_the_publication_once(
    server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view takes the server as long for one table as for all, and longer for each column."""
    asked: list[str] = []
    rows = connection.PostgresControl.rows

    def listening(control: connection.PostgresControl, sql: str, parameters: Sequence[object] = ()) -> object:
        asked.append(sql)
        return rows(control, sql, parameters)

    monkeypatch.setattr(connection.PostgresControl, "rows", listening)
    run(server, database, "CREATE TABLE t (id int); CREATE TABLE u (id int)", "CREATE PUBLICATION p FOR ALL TABLES")
    assert len(selected(options_for(server, database, publication="p"))) == 2
    assert len([sql for sql in asked if "pg_publication_tables" in sql]) == 1


def test_what_was_made_is_listed_and_taken_away(
    server: PostgresServer,
    database: str,
    follow_postgres: Follow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not while it is followed, and neither another log's slot nor a publication that was given."""
    options = options_for(server, database, source_id=database, slot=f"a_{database}", ddl_capture="event_trigger")
    run(server, database, "CREATE PUBLICATION given")
    run(server, database, f"SELECT pg_create_logical_replication_slot('b_{database}', 'pgoutput')")
    follower = follow_postgres(options)
    conf = tmp_path / "tranlog.toml"
    conf.write_text(
        f'[service]\nname = "{database}"\n[source]\nkind = "postgres"\nload = "none"\ndsn = "{options.dsn}"\n'
        f'slot = "a_{database}"\n[log]\ndir = "log"\n'
    )

    def call(*arguments: str) -> tuple[int, str, str]:
        code = int(cli.main(["--conf", str(conf), "source", *arguments]))
        told = capsys.readouterr()
        return code, told.out, told.err

    code, out, err = call("uninstall", "-y")
    assert code == 4 and f"the slot a_{database} is followed by process" in err and out == ""
    follower.source.close()
    deadline = time.monotonic() + 10
    while server.execute("SELECT FROM pg_replication_slots WHERE active AND database = %s", (database,)):
        assert time.monotonic() < deadline
    code, out, _ = call("list")
    assert code == 0 and [re.split(r"  +", line)[:2] for line in out.splitlines()[1:]] == [
        ["slot", f"a_{database}"],
        ["slot", f"b_{database}"],
        ["publication", f"a_{database}"],
        ["event trigger", "tranlog_ddl"],
        ["event trigger", "tranlog_ddl_drop"],
    ]
    assert "nobody follows it, keeps" in out and out.splitlines()[2].endswith("  no")
    code, out, _ = call("uninstall", "-y", "--json")
    assert code == 0 and len(json.loads(out)["installed"]) == 4
    code, out, _ = call("list")
    assert code == 0 and [re.split(r"  +", line)[1] for line in out.splitlines()[1:]] == [f"b_{database}"]
    assert server.execute("SELECT pubname FROM pg_publication", database=database) == [("given",)]


def test_verify_says_that_conflicts_are_judged_by_key_alone(
    server: PostgresServer,
    database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')"
    run(server, database, table, f"CREATE PUBLICATION p_{database} FOR TABLE t")
    postgres.execute(table, database=postgres_database)
    conf = tmp_path / "tranlog.toml"
    for identity, told in (("key", True), ("full", False)):
        conf.write_text(
            f'[source]\nkind = "postgres"\nload = "none"\n'
            f'dsn = "{server.dsn(database)}"\npublication = "p_{database}"\n'
            f'identity = "{identity}"\n[log]\ndir = "log"\n'
            f'[target]\nkind = "postgres"\ndsn = "{postgres.dsn(postgres_database)}"\n'
        )
        assert int(cli.main(["--conf", str(conf), "verify"])) == 0
        shown = capsys.readouterr()
        assert "source and target are equal" in shown.out
        assert ("conflicts are judged by key alone" in shown.err) is told
        assert int(cli.main(["--conf", str(conf), "verify", "--json"])) == 0
        assert ("by key alone" in json.loads(capsys.readouterr().out)["note"]) is told


def test_tls_and_passwords(
    start_postgres: Callable[..., PostgresServer],
    follow_postgres: Follow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whom the certificate names is whom we talk to; no password shows, wherever it comes from."""
    secret = "Xq7-never-shown"
    server = start_postgres(options=LOGICAL)
    run(server, "postgres", FULL, f"CREATE ROLE capturing SUPERUSER LOGIN PASSWORD '{secret}'")
    pem, key = make_certificate(tmp_path, "server")  # for 127.0.0.1 and localhost
    for file, name in ((pem, "server.crt"), (key, "server.key")):
        placed = server.data_directory / name
        placed.write_bytes(Path(file).read_bytes())
        owner = server.data_directory.stat()
        os.chown(placed, owner.st_uid, owner.st_gid)
        placed.chmod(0o600)
    hba = server.data_directory / "pg_hba.conf"
    hba.write_text("hostssl all capturing all scram-sha-256\n" + "host all postgres all trust\n")
    server.options["ssl"] = True
    server.restart()
    host = f"hostaddr=127.0.0.1 port={server.port} user=capturing dbname=postgres"
    verified = f"{host} sslmode=verify-full sslrootcert={pem}"

    def source(dsn: str, **changes: object) -> PostgresSource:
        return PostgresSource(replace(options_for(server, "postgres"), dsn=dsn, **changes))  # type: ignore[arg-type]

    follower = follow_postgres(
        replace(options_for(server, "postgres"), dsn=f"{verified} host=localhost", password=secret)
    )
    run(server, "postgres", "INSERT INTO t VALUES (1, 'over TLS')")
    (one,) = follower.wait_for(1)
    assert one.rows[0].after == (1, "over TLS")
    used = server.execute("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)")
    assert used == [(True,)]

    (tmp_path / "passfile").write_text(f"*:*:*:capturing:{secret}\n")
    (tmp_path / "passfile").chmod(0o600)
    source(f"{verified} host=localhost passfile={tmp_path / 'passfile'}").check()
    service = "\n".join(["[shop]", *f"{verified} host=localhost password={secret}".split()])
    (tmp_path / "services").write_text(service + "\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    source("service=shop").check()
    with pytest.raises(SourceSetupError, match="definition of service"):
        source("service=absent").check()

    other, _ = make_certificate(tmp_path, "another")
    messages = []
    for dsn, password, told in (
        (f"{verified} host=other.example", secret, r"certificate.*does not match host name"),
        (f"{host} host=localhost sslmode=verify-full sslrootcert={other}", secret, "certificate verify failed"),
        (f"{host} host=localhost sslmode=disable", secret, "no encryption"),
        (f"{verified} host=localhost", secret + "-wrong", "password authentication failed"),
        (f"{verified} host=localhost password={secret}-wrong", "", "password authentication failed"),
    ):
        with pytest.raises(SourceSetupError, match=told) as caught:
            source(dsn, password=password).check()
        messages.append(str(caught.value) + repr(caught.value))
    run(server, "postgres", "ALTER ROLE capturing VALID UNTIL '2001-01-01'")
    with pytest.raises(SourceSetupError, match="password authentication failed") as caught:
        source(f"{verified} host=localhost", password=secret).check()
    messages += [str(caught.value), str(follower.source.status()), repr(follower.source.options), caplog.text]
    assert secret not in "".join(messages)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_truncate_and_recorded_ddl_at_a_target(
    server: PostgresServer,
    database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    follow_postgres: Follow,
    tmp_path: Path,
    kind: TargetKind,
) -> None:
    """A PostgreSQL is emptied with its source; all else stops by name, and says how to go on."""
    run(server, database, "CREATE SCHEMA shop", FULL.replace("TABLE t", "TABLE shop.t"))
    follower = follow_postgres(options_for(server, database, ddl_capture="event_trigger"))
    run(server, database, "INSERT INTO shop.t VALUES (1, 'x')", "TRUNCATE shop.t RESTART IDENTITY")
    run(server, database, "ALTER TABLE shop.t ADD COLUMN b int")
    inserted, emptied, altered = follower.wait_for(3)
    table = inserted.rows[0].table
    metadata = tuple(altered.metadata.items())
    dsn, path = ("", str(tmp_path / "shop.db")) if kind == "sqlite" else (postgres.dsn(postgres_database), "")
    with contextlib.closing(Bench(TargetOptions(kind=kind, dsn=dsn, path=path))) as bench:
        bench.target.rows.create_table(table)
        bench.apply(inserted.changes, metadata=metadata)
        if kind == "postgres":
            bench.apply(emptied.changes, metadata=metadata)
            assert not bench.rows(table)
            stops = [(altered, r"'ALTER TABLE shop\.t ADD COLUMN b int'.*may hold more than DDL.*Do at the target")]
        else:
            stops = [
                (emptied, r"'TRUNCATE TABLE .* RESTART IDENTITY'.*from postgres.*target is sqlite.*Do at the target"),
                (altered, r"'ALTER TABLE shop\.t ADD COLUMN b int'.*from postgres.*target is sqlite.*Do at the target"),
            ]
        before = bench.rows(table)
        for one, told in stops:
            with pytest.raises(DdlStopError, match=told):
                bench.apply(one.changes, metadata=metadata)
        assert bench.rows(table) == before
