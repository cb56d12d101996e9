"""The load of `make kill` in one schema, for channels that meet by write sets: orders, as TPC-C has them, on a server.

Owns the tables with their foreign keys, which the target has too, and the transactions. Each takes an order: it updates
its district, inserts the order and its lines, and takes each line's pieces from the stock. Some deliver an order, which
deletes it, and some give a piece of the stock another number.
"""

from __future__ import annotations

import random
from typing import Any

from kill_load import ServerLoad
from tranlog.testing.servers import MariaDbServer, PostgresServer

SCHEMA = "bazaar"
DISTRICTS = 20
PIECES = 200
MOST_LINES = 5
_KEYS = {"ledger": "id", "district": "id", "stock": "id", "orders": "id", "line": "id"}
FOREIGN_KEYS = (("orders", "district", "district"), ("line", "order_id", "orders"), ("line", "stock", "stock"))
"""Table, column, and the table whose `id` it refers to."""


class OrdersLoad(ServerLoad):
    """Four threads on one server, all in one schema."""

    schemas = (SCHEMA,) * 4
    tables = tuple((SCHEMA, table, key) for table, key in _KEYS.items())
    ledgers = (f"{SCHEMA}.ledger",)

    def __init__(self, server: MariaDbServer | PostgresServer, seed: int) -> None:
        super().__init__(server, seed)
        self.make_schema = "CREATE SCHEMA {}" if isinstance(server, PostgresServer) else "CREATE DATABASE {}"

    def make_tables(self) -> None:
        """Create the schema; no table is empty."""
        run = self.server.execute
        run(self.make_schema.format(SCHEMA))
        run(f"CREATE TABLE {SCHEMA}.ledger (id BIGINT PRIMARY KEY, amount INT)")
        run(f"CREATE TABLE {SCHEMA}.district (id INT PRIMARY KEY, orders INT)")
        run(f"CREATE TABLE {SCHEMA}.stock (id INT PRIMARY KEY, pieces INT)")
        run(f"CREATE TABLE {SCHEMA}.orders (id BIGINT PRIMARY KEY, district INT)")
        run(f"CREATE TABLE {SCHEMA}.line (id BIGINT PRIMARY KEY, order_id BIGINT, stock INT, pieces INT)")
        for statement in foreign_keys():
            run(statement)
        run(f"INSERT INTO {SCHEMA}.ledger VALUES (0, 0)")
        for table, count in (("district", DISTRICTS), ("stock", PIECES)):
            run(f"INSERT INTO {SCHEMA}.{table} VALUES " + ", ".join(f"({number}, 100)" for number in range(count)))
        run(f"INSERT INTO {SCHEMA}.orders VALUES (0, 0)")
        run(f"INSERT INTO {SCHEMA}.line VALUES (0, 0, 0, 1)")

    def write(self, cursor: Any, rng: random.Random, home: str, number: int) -> None:
        """Do what one transaction does, before its COMMIT."""
        district = rng.randrange(DISTRICTS)
        cursor.execute(f"INSERT INTO {home}.ledger VALUES (%s, %s)", (number, district))
        cursor.execute(f"UPDATE {home}.district SET orders = orders + 1 WHERE id = %s", (district,))
        cursor.execute(f"INSERT INTO {home}.orders VALUES (%s, %s)", (number, district))
        cursor.execute(f"SELECT id FROM {home}.stock")
        stock = [one for (one,) in cursor.fetchall()]
        for line, one in enumerate(sorted(rng.sample(stock, rng.randint(1, MOST_LINES)))):
            if cursor.execute(f"UPDATE {home}.stock SET pieces = pieces - 1 WHERE id = %s", (one,)) == 0:
                continue  # it has another number by now
            line_id = number * (MOST_LINES + 1) + line
            cursor.execute(f"INSERT INTO {home}.line VALUES (%s, %s, %s, 1)", (line_id, number, one))
        if rng.random() < 0.1:
            cursor.execute(f"DELETE FROM {home}.line WHERE order_id = %s", (number - 3,))
            cursor.execute(f"DELETE FROM {home}.orders WHERE id = %s", (number - 3,))
        if rng.random() < 0.03:
            unused = f"NOT EXISTS (SELECT 1 FROM {home}.line WHERE line.stock = stock.id)"
            cursor.execute(f"UPDATE {home}.stock SET id = id + %s WHERE id = %s AND {unused}", (PIECES, max(stock)))


def foreign_keys() -> list[str]:
    """Return the statements that make the foreign keys, at the source and at the target.

    Each has an index, which PostgreSQL does not make itself: a load that begins anew deletes all parents, and without
    one each of them would be looked for in all their children.
    """
    made = []
    for table, column, to in FOREIGN_KEYS:
        made.append(f"CREATE INDEX {table}_{column} ON {SCHEMA}.{table} ({column})")
        made.append(f"ALTER TABLE {SCHEMA}.{table} ADD FOREIGN KEY ({column}) REFERENCES {SCHEMA}.{to} (id)")
    return made
