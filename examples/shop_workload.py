"""The shop: four stores in one SQLite database, and writers that do what real programs do to it.

Run by `shop_demo.py`, one process per store. Everything that a capture can get wrong is in it: rows that a savepoint
takes back, statements that fail in the middle of a transaction, transactions that are rolled back, transfers that touch
two stores, cascades, a table without a key.
"""

from __future__ import annotations

import random
import sys
import time

import apsw

import tranlog

STORES = ("north", "east", "south", "west")

SCHEMA = "".join(
    f"""
    CREATE TABLE {store}_orders (
        id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total REAL NOT NULL CHECK (total >= 0), note BLOB);
    CREATE TABLE {store}_items (
        order_id INTEGER NOT NULL REFERENCES {store}_orders(id) ON DELETE CASCADE,
        line INTEGER NOT NULL, article TEXT NOT NULL, pieces INTEGER NOT NULL,
        PRIMARY KEY (order_id, line)) WITHOUT ROWID;
    CREATE TABLE {store}_visits (seen_at TEXT, customer TEXT);
    """
    for store in STORES
)
CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Tony", "Frances", "Jürgen", "雪", "O'Neill")
ARTICLES = ("tea", "bread", "lamp", "chair", "rope", "ink")


def make_shop(path: str) -> None:
    """Create the stores' tables through a captured connection."""
    shop = tranlog.connect(path)
    for statement in SCHEMA.split(";"):
        if statement.strip():
            shop.execute(statement)
    shop.close()


class Writer:
    """One store's program: it knows its own store, and sends goods to the others now and then."""

    def __init__(self, path: str, store: str, seed: int) -> None:
        self.shop = tranlog.connect(path)
        self.shop.execute("PRAGMA foreign_keys = ON")
        self.store = store
        self.rng = random.Random(f"{store}/{seed}")
        self.next_id = 1
        self.orders: list[int] = []

    def new_order(self) -> int:
        """Insert an order with its items: one transaction over two tables of one store."""
        order, self.next_id = self.next_id, self.next_id + 1
        note = self.rng.randbytes(self.rng.randrange(40)) if self.rng.random() < 0.3 else None
        self.shop.execute(
            f"INSERT INTO {self.store}_orders VALUES (?, ?, ?, ?)",
            (order, self.rng.choice(CUSTOMERS), round(self.rng.uniform(1, 500), 2), note),
        )
        for line in range(self.rng.randrange(1, 4)):
            self.shop.execute(
                f"INSERT INTO {self.store}_items VALUES (?, ?, ?, ?)",
                (order, line, self.rng.choice(ARTICLES), self.rng.randrange(1, 20)),
            )
        return order

    def change_order(self) -> None:
        """Update one order and one of its items."""
        order = self.rng.choice(self.orders)
        self.shop.execute(f"UPDATE {self.store}_orders SET total = round(total * 1.1, 2) WHERE id = ?", (order,))
        self.shop.execute(
            f"UPDATE {self.store}_items SET pieces = pieces + 1 WHERE order_id = ? AND line = 0", (order,)
        )

    def drop_order(self) -> None:
        """Delete an order; its items go by cascade."""
        order = self.orders.pop(self.rng.randrange(len(self.orders)))
        self.shop.execute(f"DELETE FROM {self.store}_orders WHERE id = ?", (order,))

    def visit(self) -> None:
        """Insert into the table without a key, sometimes the very row that is there already."""
        row = (f"2026-01-{self.rng.randrange(1, 29):02d}", self.rng.choice(CUSTOMERS))
        self.shop.execute(f"INSERT INTO {self.store}_visits VALUES (?, ?)", row)
        if self.rng.random() < 0.2:
            self.shop.execute(
                f"DELETE FROM {self.store}_visits WHERE rowid = (SELECT min(rowid) FROM {self.store}_visits)"
            )

    def transfer(self) -> None:
        """Move an order's value to another store: one transaction over two shards."""
        other = self.rng.choice([store for store in STORES if store != self.store])
        order = self.rng.choice(self.orders)
        (total,) = next(self.shop.execute(f"SELECT total FROM {self.store}_orders WHERE id = ?", (order,)))
        self.shop.execute(f"UPDATE {self.store}_orders SET total = 0 WHERE id = ?", (order,))
        # Ids below 0 belong to transfers; the sender's name and order make them unique.
        far_id = -(STORES.index(self.store) + 4 * self.next_id)
        self.next_id += 1
        self.shop.execute(
            f"INSERT INTO {other}_orders VALUES (?, ?, ?, NULL)", (far_id, f"transfer from {self.store}", total)
        )

    def one_transaction(self) -> None:
        """Do one transaction of the mix, with the mishaps of real programs."""
        chance = self.rng.random()
        added: list[int] = []
        self.shop.execute("BEGIN IMMEDIATE")
        try:
            if chance < 0.03 and self.orders:
                self.transfer()
            elif chance < 0.30 and self.orders:
                self.change_order()
            elif chance < 0.38 and len(self.orders) > 20:
                self.drop_order()
            elif chance < 0.50:
                self.visit()
            else:
                added.append(self.new_order())
            if chance > 0.9:  # second thoughts: what follows the savepoint is taken back
                self.shop.execute("SAVEPOINT second_thoughts")
                self.new_order()
                self.shop.execute("ROLLBACK TO second_thoughts")
                self.shop.execute("RELEASE second_thoughts")
            if 0.8 < chance < 0.9:  # a statement that fails after its first row, and a program that goes on
                try:
                    self.shop.execute(
                        f"INSERT INTO {self.store}_orders VALUES (?, 'first', 1, NULL), (?, 'fails', -1, NULL)",
                        (self.next_id, self.next_id + 1),
                    )
                except apsw.ConstraintError:
                    pass
            if 0.75 < chance < 0.78:
                raise apsw.AbortError("the customer left")
        except apsw.AbortError:
            self.shop.execute("ROLLBACK")
            return
        self.shop.execute("COMMIT")
        self.orders += added


def run_writer(path: str, store: str, transactions: int, pause_s: float) -> None:
    """Write so many transactions for one store, a moment apart."""
    writer = Writer(path, store, seed=1)
    for _ in range(transactions):
        writer.one_transaction()
        time.sleep(pause_s)
    writer.shop.close()


if __name__ == "__main__":
    run_writer(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
