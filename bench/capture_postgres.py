"""How much of a PostgreSQL's slot a CPU second of ours carries, against psycopg2's replication cursor on the same WAL.

Two workloads on one private server: bulk (transactions of 1000 inserted rows) and small (transactions of one to three
rows: inserts, updates, deletes; replica identity FULL). Ours is what `tranlog capture` does, from the socket to the
synced log. The peer reads the same slot's messages by psycopg2, waiting by `select` as psycopg2's manual shows it,
makes each row a dict of Python values by a plain decoder written for it, old rows too, and holds a transaction's
changes together until its commit: less would be no capture, since nothing may be handed on before. It writes nothing
and knows four types besides text; so the ratio compares our whole way to the disk with a part of it. CPU seconds are
this process's, all threads; the server's are its own.

What bounds it: libpq hands out message by message, through a call and a copy each. Reading the same slot by psycopg's
`get_copy_data` in large blocks and looking at nothing makes 1.3 to 1.9 million messages per CPU second here. A row of
bulk is one message, and a small transaction some four: so no reader on libpq is above about 5 times the peer in bulk
and 3 times in small. To append a record per transaction to a log, with its checksums and without a source, already
takes more than a fifth of the CPU time that the peer takes for a small one.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg2
import psycopg2.extras
from frame import Bench, Question, at_least, cpu_of, run

from tranlog.capture.capture import Capture
from tranlog.log.writing.log import Log
from tranlog.source.postgres import PostgresSource, PostgresSourceOptions
from tranlog.testing.servers import OptionValue, PostgresServer

QUESTION = Question(
    name="capture_postgres",
    text="How many transactions of a PostgreSQL's slot does one CPU second of ours carry into the durable log?",
    peer="psycopg2's replication cursor with a plain decoder to Python values, by CPU seconds of the same process",
)
MUST = at_least(5)

SEED = 20261123
BULK_TRANSACTIONS = 100
BULK_ROWS = 1000
SMALL_TRANSACTIONS = 10_000
SERVER_OPTIONS: dict[str, OptionValue] = {
    "wal_level": "logical",
    "fsync": False,
    "max_replication_slots": 100,
    "max_wal_senders": 20,
}
TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int NOT NULL, status varchar(20) NOT NULL, amount numeric(10, 2) NOT NULL,
    placed timestamp NOT NULL, note varchar(200));
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE PUBLICATION bench FOR ALL TABLES"""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What lies behind one slot."""

    name: str
    slot: str
    transactions: int
    rows: int


def order(chance: random.Random, key: int) -> str:
    """Return the values of one row, about 100 bytes of it."""
    note = "NULL" if chance.random() < 0.2 else f"'{'Leave it at the door, please. ' * chance.randint(1, 3)}{key}'"
    placed = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02} 12:{chance.randint(0, 59):02}:07.250000"
    status = chance.choice(("open", "paid", "sent", "delivered"))
    return f"({key}, {chance.randint(1, 50_000)}, '{status}', {chance.randint(1, 10**7) / 100}, '{placed}', {note})"


def write_bulk(server: PostgresServer, slot: str) -> Workload:
    """Write transactions of many inserted rows."""
    chance = random.Random(SEED)
    with server.connect() as connection:
        for number in range(BULK_TRANSACTIONS):
            rows = ", ".join(order(chance, number * BULK_ROWS + at) for at in range(BULK_ROWS))
            connection.execute(f"INSERT INTO orders VALUES {rows}")  # type: ignore[call-overload]
    return Workload(name="bulk", slot=slot, transactions=BULK_TRANSACTIONS, rows=BULK_TRANSACTIONS * BULK_ROWS)


def write_small(server: PostgresServer, slot: str) -> Workload:
    """Write transactions of one to three row changes."""
    chance = random.Random(SEED)
    rows = 0
    with server.connect() as connection:
        for key in range(10**6, 10**6 + SMALL_TRANSACTIONS):
            statements = [f"INSERT INTO orders VALUES {order(chance, key)}"]
            if chance.random() < 0.6:
                statements.append(f"UPDATE orders SET status = 'back', amount = amount + 1 WHERE id = {key}")
            if chance.random() < 0.3:
                statements.append(f"DELETE FROM orders WHERE id = {key}")
            rows += len(statements)
            connection.execute("; ".join(statements))  # type: ignore[call-overload]
    return Workload(name="small", slot=slot, transactions=SMALL_TRANSACTIONS, rows=rows)


# --- the two readers -------------------------------------------------------------------------------------


def fresh_slot(server: PostgresServer, workload: Workload) -> str:
    """Return a slot that stands in front of the workload."""
    name = f"read_{next(_numbers)}"
    server.execute(f"SELECT pg_copy_logical_replication_slot('{workload.slot}', '{name}')")
    return name


def capture(server: PostgresServer, workload: Workload, slot: str) -> None:
    """Carry the whole workload into a new log, and see that all of it is durable there."""
    options = PostgresSourceOptions(dsn=server.dsn(), source_id="bench", slot=slot, publication="bench")
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here, Log.open(here, source_id="bench") as log:
        source = PostgresSource(options)
        try:
            work = Capture(source, log)
            done = 0
            while done < 1 + workload.transactions:  # one says where it starts
                before = done
                done = work.catch_up(wait_s=1.0).transactions
                assert done > before, f"capture stopped at {before}"
        finally:
            source.close()


def peer(server: PostgresServer, workload: Workload, slot: str) -> None:
    """Read the slot by psycopg2, and decode each row to a dict of Python values."""
    connection = psycopg2.connect(server.dsn(), connection_factory=psycopg2.extras.LogicalReplicationConnection)
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.start_replication(
            slot_name=slot, decode=False, options={"proto_version": "1", "publication_names": "bench"}
        )
        tables: dict[int, list[tuple[str, Callable[[str], Any]]]] = {}
        commits = rows = 0
        changes: list[tuple[bytes, int, list[dict[str, Any]]]] = []
        while commits < workload.transactions:
            message = cursor.read_message()
            if message is None:
                select.select([cursor], [], [])
                continue
            kind, raw = message.payload[:1], message.payload
            if kind == b"R":
                relation, columns = relation_of(raw)
                tables[relation] = columns
            elif kind in (b"I", b"U", b"D"):
                (relation,) = struct.unpack_from(">I", raw, 1)
                at = 5
                images = []
                while at < len(raw):
                    row, at = row_of(raw, at + 1, tables[relation])
                    images.append(row)
                changes.append((kind, relation, images))
            elif kind == b"C":
                commits += 1
                rows += len(changes)
                changes = []
    assert rows == workload.rows, (rows, workload)


_READS: dict[int, Callable[[str], Any]] = {20: int, 23: int, 1700: Decimal, 1114: datetime.fromisoformat}


def relation_of(raw: bytes) -> tuple[int, list[tuple[str, Callable[[str], Any]]]]:
    """Read a table's definition: its number, and each column's name and what reads its text."""
    (relation,) = struct.unpack_from(">I", raw, 1)
    at = raw.index(0, raw.index(0, 5) + 1) + 2
    (count,) = struct.unpack_from(">H", raw, at)
    at += 2
    columns = []
    for _ in range(count):
        end = raw.index(0, at + 1)
        (kind,) = struct.unpack_from(">I", raw, end + 1)
        columns.append((raw[at + 1 : end].decode(), _READS.get(kind, str)))
        at = end + 9
    return relation, columns


def row_of(raw: bytes, at: int, columns: list[tuple[str, Callable[[str], Any]]]) -> tuple[dict[str, Any], int]:
    """Read a row, and where it ends."""
    row = {}
    at += 2
    for name, read in columns:
        if raw[at : at + 1] == b"t":
            (size,) = struct.unpack_from(">I", raw, at + 1)
            row[name] = read(raw[at + 5 : at + 5 + size].decode())
            at += 5 + size
        else:
            row[name] = None
            at += 1
    return row, at


def measure(bench: Bench) -> None:
    """One private server; each workload lies behind a slot of its own, of which each round reads a copy."""
    with PostgresServer(options=SERVER_OPTIONS) as server:
        server.execute(TABLE)
        for name, write in (("bulk", write_bulk), ("small", write_small)):
            server.execute(f"SELECT pg_create_logical_replication_slot('base_{name}', 'pgoutput')")
            workload = write(server, f"base_{name}")
            bench.say(f"{workload.name}: {workload.transactions} transactions, {workload.rows} rows")
            compare(bench, server, workload)


def compare(bench: Bench, server: PostgresServer, workload: Workload) -> None:
    """Read one workload in both ways by turns."""

    def rate(read: Callable[[PostgresServer, Workload, str], None]) -> Callable[[], float]:
        def once() -> float:
            slot = fresh_slot(server, workload)
            return workload.transactions / cpu_of(lambda: read(server, workload, slot))

        return once

    figures = bench.by_turns({"peer": rate(peer), "capture": rate(capture)})
    bench.add(f"capture, {workload.name}", ours=figures["capture"], anchor=figures["peer"], unit="tx/CPU-s", must=MUST)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
