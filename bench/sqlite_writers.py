"""What a SQLite writer pays for being captured: through our connection, against Python's own sqlite3.

The same statements on two databases side by side, both WAL with synchronous=FULL, so each commit waits for the disk on
both sides; the figure is the time of a transaction by the clock. Three kinds of transactions: one row; five
statements (one order with two lines, one update, one read); a thousand rows by `executemany`. For the same three the
CPU time is told beside it, without a must: it says what a faster disk would leave.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from frame import Bench, Question, at_most, run

from tranlog.source.sqlite import connect

QUESTION = Question(
    name="sqlite_writers",
    text="How much longer does a SQLite transaction take through our connection, which captures it? By the clock; "
    "CPU time beside it.",
    peer="the same statements through Python's sqlite3, WAL, synchronous=FULL",
)
MUST = at_most(1.25)

SEED = 20261121
ROUNDS = 7
ROWS_OF_BULK = 1000

TABLES = (
    "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL, orders INTEGER NOT NULL, spent REAL NOT NULL)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, placed TEXT NOT NULL, note TEXT)",
    "CREATE TABLE line (orders INTEGER NOT NULL, place INTEGER NOT NULL, article TEXT NOT NULL, pieces INTEGER, "
    "price REAL, PRIMARY KEY (orders, place))",
)
CUSTOMERS = 1000


class Writer(Protocol):
    """What both connections have in common."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Run a statement."""

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        """Run a statement once for each of the parameters."""


class Shop:
    """One database with its writer; both sides write the same, by the same seed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._chance = random.Random(SEED)
        self._order = 0
        for table in TABLES:
            writer.execute(table)
        writer.execute("BEGIN")
        customers = [(number, f"Customer {number}", 0, 0.0) for number in range(CUSTOMERS)]
        writer.executemany("INSERT INTO customer VALUES (?, ?, ?, ?)", customers)
        writer.execute("COMMIT")

    def small(self) -> None:
        """One row, outside any transaction of its own."""
        self._order += 1
        order = (self._order, self._chance.randrange(CUSTOMERS), "2026-11-21 12:30:07", "Leave it at the door, please.")
        self.writer.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", order)

    def middle(self) -> None:
        """Five statements between BEGIN and COMMIT."""
        self._order += 1
        number, customer = self._order, self._chance.randrange(CUSTOMERS)
        execute = self.writer.execute
        execute("BEGIN IMMEDIATE")
        execute("SELECT spent FROM customer WHERE id = ?", (customer,)).fetchall()
        execute("INSERT INTO orders VALUES (?, ?, ?, ?)", (number, customer, "2026-11-21 12:30:07", None))
        execute("INSERT INTO line VALUES (?, ?, ?, ?, ?)", (number, 1, "lamp", 2, 12.5))
        execute("INSERT INTO line VALUES (?, ?, ?, ?, ?)", (number, 2, "rope, 20 m", 1, 7.25))
        execute("UPDATE customer SET orders = orders + 1, spent = spent + ? WHERE id = ?", (32.25, customer))
        execute("COMMIT")

    def bulk(self) -> None:
        """A thousand rows by one `executemany`."""
        first = self._order + 1
        self._order += ROWS_OF_BULK
        orders = [
            (first + at, self._chance.randrange(CUSTOMERS), "2026-11-21 12:30:07", "Leave it at the door, please.")
            for at in range(ROWS_OF_BULK)
        ]
        self.writer.execute("BEGIN IMMEDIATE")
        self.writer.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
        self.writer.execute("COMMIT")

    @property
    def order(self) -> int:
        """How many orders were written."""
        return self._order


def measure(bench: Bench) -> None:
    """Both sides by turns, a block of transactions at a time."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        plain = sqlite3.connect(Path(here, "plain.db"), isolation_level=None)
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("PRAGMA synchronous = FULL")
        ours = connect(Path(here, "ours.db"))
        theirs, mine = Shop(plain), Shop(ours)
        for name, many in (("small", 400), ("middle", 300), ("bulk", 20)):
            compare(bench, name, mine=getattr(mine, name), theirs=getattr(theirs, name), many=many)
            # What capture would have freed by now; both sides write on with the same amount of rows.
            ours.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            plain.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        count = "SELECT count(*) FROM orders"
        rows = [writer.execute(count).fetchall()[0][0] for writer in (ours, plain)]
        assert rows == [mine.order, theirs.order], rows
        ours.close()
        plain.close()


def compare(bench: Bench, name: str, *, mine: Callable[[], None], theirs: Callable[[], None], many: int) -> None:
    """Measure one kind of transactions by the clock and by CPU time."""
    cpu: dict[Callable[[], None], list[float]] = {mine: [], theirs: []}

    def block(transaction: Callable[[], None]) -> float:
        clock, used = time.perf_counter(), time.process_time()
        for _ in range(many):
            transaction()
        cpu[transaction].append((time.process_time() - used) / many * 1e6)
        return (time.perf_counter() - clock) / many * 1e6

    figures = bench.by_turns({"ours": lambda: block(mine), "peer": lambda: block(theirs)}, rounds=ROUNDS)
    bench.add(name, ours=figures["ours"], anchor=figures["peer"], unit="us/tx", must=MUST)
    bench.add(f"{name}, CPU", ours=cpu[mine][1:], anchor=cpu[theirs][1:], unit="us/tx")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
