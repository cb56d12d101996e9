"""What write sets cost at capture: one binlog carried into a log with them and without, by turns.

The workloads of `capture_mariadb`, and one like TPC-C's: orders of about nine row changes to five tables, with
composite keys and foreign keys. CPU seconds are this process's, all threads; the server's are its own.
"""

from __future__ import annotations

import contextlib
import random
import sys
from functools import partial
from unittest import mock

from capture_mariadb import SERVER_OPTIONS, TABLE, Workload, capture, write_bulk, write_small
from frame import Bench, Question, at_least, cpu_of, run

from tranlog.source.mariadb import fragments
from tranlog.testing.servers import MariaDbServer

QUESTION = Question(
    name="write_sets",
    text="How many transactions of MariaDB's binlog does a CPU second of capture carry with write sets in the headers?",
    peer="the same capture without them",
)
MUST = at_least(0.92)

SEED = 20261123
ORDERS = 4_000
WAREHOUSES = 8
TABLES = (
    "CREATE TABLE stock (w INT, i INT, quantity INT, ytd DECIMAL(8, 2), orders INT, dist CHAR(24), data VARCHAR(50), "
    "PRIMARY KEY (w, i))",
    "CREATE TABLE customer (w INT, c INT, name VARCHAR(16), balance DECIMAL(12, 2), since DATETIME, "
    "PRIMARY KEY (w, c))",
    "CREATE TABLE district (w INT PRIMARY KEY, next_o INT, ytd DECIMAL(12, 2))",
    "CREATE TABLE oorder (w INT, o INT, c INT, entered DATETIME, PRIMARY KEY (w, o), "
    "FOREIGN KEY (w, c) REFERENCES customer (w, c))",
    "CREATE TABLE order_line (w INT, o INT, number INT, i INT, quantity INT, amount DECIMAL(6, 2), dist CHAR(24), "
    "PRIMARY KEY (w, o, number), FOREIGN KEY (w, o) REFERENCES oorder (w, o), "
    "FOREIGN KEY (w, i) REFERENCES stock (w, i))",
)


def write_orders(server: MariaDbServer) -> Workload:
    """Fill the binlog with new orders: two of each one's changes are not for an item."""
    chance = random.Random(SEED)
    rows = 0
    with contextlib.closing(server.connect("shop", autocommit=False)) as connection, connection.cursor() as cursor:
        for number in range(1, ORDERS + 1):
            w, c = chance.randint(1, WAREHOUSES), chance.randint(1, 100)
            items = chance.sample(range(1, 201), chance.randint(2, 5))
            cursor.execute(f"UPDATE district SET next_o = next_o + 1, ytd = ytd + 1 WHERE w = {w}")
            cursor.execute(f"INSERT INTO oorder VALUES ({w}, {number}, {c}, '2026-01-02 03:04:05')")
            for line, i in enumerate(items):
                cursor.execute(f"UPDATE stock SET quantity = quantity - 1, ytd = ytd + 1 WHERE w = {w} AND i = {i}")
                cursor.execute(f"INSERT INTO order_line VALUES ({w}, {number}, {line}, {i}, 1, 1.5, '{'d' * 24}')")
            connection.commit()
            rows += 2 + 2 * len(items)
    return Workload(name="orders", transactions=ORDERS, rows=rows)


def measure(bench: Bench) -> None:
    """One private server; for each workload its binlog starts anew."""
    with MariaDbServer(options=SERVER_OPTIONS) as server:
        server.execute("CREATE DATABASE shop")
        for table in (TABLE, *TABLES):
            server.execute(table, database="shop")
        for w in range(1, WAREHOUSES + 1):
            for sql in (
                f"INSERT INTO stock SELECT {w}, seq, 1000, 0, 0, REPEAT('d', 24), REPEAT('x', 40) FROM seq_1_to_200",
                f"INSERT INTO customer SELECT {w}, seq, 'somebody', 0, NOW() FROM seq_1_to_100",
                f"INSERT INTO district VALUES ({w}, 1, 0)",
            ):
                server.execute(sql, database="shop")
        for write in (write_orders, write_small, write_bulk):
            server.execute("RESET MASTER")
            workload = write(server)
            bench.say(f"{workload.name}: {workload.transactions} transactions, {workload.rows} rows")

            def rate(*, told: bool, workload: Workload = workload) -> float:
                with contextlib.ExitStack() as stack:
                    if not told:
                        stack.enter_context(mock.patch.object(fragments, "RowTouches", return_value=None))
                    return workload.transactions / cpu_of(lambda: capture(server, workload))

            bench.compare(
                workload.name,
                ours=partial(rate, told=True),
                peer=partial(rate, told=False),
                unit="tx/CPU-s",
                must=MUST,
            )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
