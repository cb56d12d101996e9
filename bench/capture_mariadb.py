"""How much of MariaDB's binary log a CPU second of ours carries, against python-mysql-replication on the same binlog.

Two workloads on one private server: bulk (transactions of 1000 inserted rows) and small (transactions of one to three
rows: inserts, updates, deletes). For each, two things of ours:

- capture: what `tranlog capture` does, from the socket to the synced log, encoding and checksums included.
- decode: from the socket to rows as Python values, by way of their bytes in the log.

The peer iterates the row events and their rows, as its README shows it; it verifies no checksums, we do. CPU seconds
are this process's, all threads; the server's are its own.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from frame import Bench, Question, at_least, cpu_of, run
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from tranlog.capture.capture import Capture
from tranlog.log.writing.log import Log
from tranlog.row_bytes import decode_row
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.events import (
    ROWS_EVENTS,
    EventType,
    parse_rows_shape,
    parse_table_map,
    table_number,
)
from tranlog.source.mariadb.groups import EventGroup, GroupAssembler
from tranlog.source.mariadb.position import BinlogPosition
from tranlog.source.mariadb.rows import RowsEncoder, rows_encoder
from tranlog.source.mariadb.stream import BinlogStream
from tranlog.source.mariadb.types import types_in_binlog
from tranlog.testing.servers import MariaDbServer

QUESTION = Question(
    name="capture_mariadb",
    text=(
        "How many transactions of MariaDB's binlog does one CPU second of ours carry: into the durable log (capture), "
        "and to rows as Python values only (decode)?"
    ),
    peer="python-mysql-replication iterating the rows of the same binlog, by CPU seconds of the same process",
)
MUST = at_least(4, stretch=8)

SEED = 20261121
BULK_TRANSACTIONS = 200
BULK_ROWS = 1000
SMALL_TRANSACTIONS = 20_000
_WAIT_S = 10.0

# Nothing here waits for a disk: what is measured is reading the binlog.
SERVER_OPTIONS = {"sync_binlog": 0, "innodb_flush_log_at_trx_commit": 0}
TABLE = """
CREATE TABLE orders (
    id BIGINT PRIMARY KEY, customer INT NOT NULL, status VARCHAR(20) NOT NULL, amount DECIMAL(10, 2) NOT NULL,
    placed DATETIME(6) NOT NULL, note VARCHAR(200)
) CHARACTER SET utf8mb4"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one binlog holds."""

    name: str
    transactions: int
    rows: int


def order(chance: random.Random, key: int) -> str:
    """Return the values of one row, about 100 bytes of it."""
    note = "NULL" if chance.random() < 0.2 else f"'{'Leave it at the door, please. ' * chance.randint(1, 3)}{key}'"
    placed = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02} 12:{chance.randint(0, 59):02}:07.250000"
    status = chance.choice(("open", "paid", "sent", "delivered"))
    return f"({key}, {chance.randint(1, 50_000)}, '{status}', {chance.randint(1, 10**7) / 100}, '{placed}', {note})"


def write_bulk(server: MariaDbServer) -> Workload:
    """Fill the binlog with transactions of many inserted rows."""
    chance = random.Random(SEED)
    with contextlib.closing(server.connect("shop")) as connection, connection.cursor() as cursor:
        for number in range(BULK_TRANSACTIONS):
            first = number * BULK_ROWS
            rows = ", ".join(order(chance, first + at) for at in range(BULK_ROWS))
            cursor.execute(f"INSERT INTO orders VALUES {rows}")
    return Workload(name="bulk", transactions=BULK_TRANSACTIONS, rows=BULK_TRANSACTIONS * BULK_ROWS)


def write_small(server: MariaDbServer) -> Workload:
    """Fill the binlog with transactions of one to three row changes."""
    chance = random.Random(SEED)
    rows = 0
    with contextlib.closing(server.connect("shop", autocommit=False)) as connection, connection.cursor() as cursor:
        key = 10**6
        for _ in range(SMALL_TRANSACTIONS):
            key += 1
            cursor.execute(f"INSERT INTO orders VALUES {order(chance, key)}")
            rows += 1
            if chance.random() < 0.6:
                rows += cursor.execute(f"UPDATE orders SET status = 'back', amount = amount + 1 WHERE id = {key}")
            if chance.random() < 0.3:
                rows += cursor.execute(f"DELETE FROM orders WHERE id = {key}")
            connection.commit()
    return Workload(name="small", transactions=SMALL_TRANSACTIONS, rows=rows)


# --- the three readers -----------------------------------------------------------------------------------


def capture(server: MariaDbServer, workload: Workload) -> None:
    """Carry the whole binlog into a new log, and see that all of it is durable there."""
    options = MariadbSourceOptions(port=server.port, source_id="bench", start="earliest")
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here, Log.open(here, source_id="bench") as log:
        source = MariadbSource(options)
        try:
            began = log.durable_seqno
            goal = began + 1 + workload.transactions  # one says where it starts
            capture = Capture(source, log)
            while log.durable_seqno < goal:
                before = log.durable_seqno
                capture.catch_up(wait_s=_WAIT_S if before == began else 0.2)
                assert log.durable_seqno > before, f"capture stopped at {before}, {goal} is the end"
        finally:
            source.close()


def our_groups(server: MariaDbServer) -> Generator[EventGroup, None, None]:
    """Yield the transactions of the binlog from its start, as capture takes them off the socket."""
    options = MariadbSourceOptions(port=server.port, source_id="bench")
    start = BinlogPosition()
    stream = BinlogStream(options, start)
    try:
        assembler = GroupAssembler(start, new_store=_Events, transaction_bytes_max=options.transaction_bytes_max)
        while events := stream.take(_WAIT_S):
            for event in events:
                group = assembler.feed(event)
                if group is not None:
                    yield group
    finally:
        stream.close()


class _Events(deque[bytes]):
    """The events of one transaction, in memory."""

    def close(self) -> None:
        self.clear()


def decode(server: MariaDbServer, workload: Workload) -> None:
    """Read the binlog to rows as Python values: encoded as capture does, and decoded as a reader of the log does."""
    encoders: dict[bytes, tuple[RowsEncoder, int]] = {}
    table_map, rows_events = int(EventType.TABLE_MAP), frozenset(map(int, ROWS_EVENTS))
    changes = 0
    groups = our_groups(server)
    for number, group in enumerate(groups, start=1):
        layouts: dict[int, tuple[RowsEncoder, int]] = {}
        for event in group.events:
            kind = event[4]
            if kind == table_map:
                key = event[25:]
                if key not in encoders:
                    table = parse_table_map(event)
                    types = types_in_binlog(table, collations=COLLATIONS, known=None)
                    encoders[key] = rows_encoder(table, types), len(types)
                layouts[table_number(event)] = encoders[key]
            elif kind in rows_events:
                encode, columns = layouts[table_number(event)]
                images = [decode_row(raw, columns) for raw in encode(event, parse_rows_shape(event).images_at)]
                changes += len(images) // 2 if ROWS_EVENTS[EventType(kind)][0] == "update" else len(images)
        if number == workload.transactions:
            break
    groups.close()
    assert changes == workload.rows, (changes, workload)


COLLATIONS: dict[int, str] = {}


def peer(server: MariaDbServer, workload: Workload) -> None:
    """Read the binlog as python-mysql-replication's README does."""
    stream = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": server.user, "passwd": server.password},
        server_id=4711,
        only_events=[DeleteRowsEvent, WriteRowsEvent, UpdateRowsEvent],
        log_file=BINLOG,
        log_pos=4,
        resume_stream=True,
    )
    rows = 0
    try:
        for event in stream:
            for _ in event.rows:
                rows += 1
    finally:
        stream.close()
    assert rows == workload.rows, (rows, workload)


BINLOG = "binlog.000001"


def measure(bench: Bench) -> None:
    """One private server; for each workload its binlog starts anew."""
    with MariaDbServer(options=SERVER_OPTIONS) as server:
        server.execute("CREATE DATABASE shop")
        server.execute(TABLE, database="shop")
        COLLATIONS.update(server.execute("SELECT id, character_set_name FROM information_schema.collations"))
        for write in (write_bulk, write_small):
            server.execute("RESET MASTER")
            workload = write(server)
            bench.say(f"{workload.name}: {workload.transactions} transactions, {workload.rows} rows")
            compare(bench, server, workload)


def compare(bench: Bench, server: MariaDbServer, workload: Workload) -> None:
    """Read one binlog in the three ways by turns."""

    def rate(read: Callable[[MariaDbServer, Workload], None]) -> Callable[[], float]:
        return lambda: workload.transactions / cpu_of(lambda: read(server, workload))

    figures = bench.by_turns({"peer": rate(peer), "capture": rate(capture), "decode": rate(decode)})
    for way in ("capture", "decode"):
        name = f"{way}, {workload.name}"
        bench.add(name, ours=figures[way], anchor=figures["peer"], unit="tx/CPU-s", must=MUST)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
