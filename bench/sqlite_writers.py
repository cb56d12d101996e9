"""What a SQLite writer pays for being captured: through our connection, against Python's own sqlite3.

The same statements on two databases side by side, both WAL with synchronous=FULL, so each commit waits for the disk on
both sides; the figure is the time of a transaction by the clock. Four kinds of transactions: one row; five
statements (one order with two lines, one update, one read); a thousand rows by `executemany`; an UPDATE of a thousand
rows. For the same four the CPU time is told beside it, without a must: it says what a faster disk would leave.

The same statements are also run by Python's sqlite3 on a database whose foreign writers are captured by triggers.

What SQLite and the disk take for one more row in each transaction is told by a writer that keeps as many bytes by hand:
it sees no rows, and nobody who keeps changes in the transaction itself can be faster.

They are also held against the two other ways to capture SQLite, each keeping what it captured in a table of the same
transaction: triggers that copy each row as JSON, and SQLite's own session extension, which is C and tells net changes
by primary key only. They say what ways that see each row cost in bulk.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import apsw
from frame import Bench, Must, Question, at_most, run

from tranlog.source.sqlite import connect, install

QUESTION = Question(
    name="sqlite_writers",
    text="How much longer does a SQLite transaction take through our connection, which captures it? By the clock; "
    "CPU time beside it.",
    peer="the same statements through Python's sqlite3, WAL, synchronous=FULL; with as many bytes kept by hand in the "
    "same transaction; and captured by triggers, or SQLite's session extension",
)
MUST = at_most(1.25)
MUST_OF_UPDATE = at_most(2.5)
MUST_OF_TRIGGERS = at_most(1.6)

SEED = 20261121
ROUNDS = 49
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


OUTBOX = "CREATE TABLE outbox (id INTEGER PRIMARY KEY, changes)"


class Keeper:
    """A writer that keeps bytes in a table of each transaction, before it commits."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(OUTBOX)
        self._open = False

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Run a statement; one outside a transaction gets one."""
        if sql.startswith("BEGIN"):
            self._begin()
        elif sql == "COMMIT":
            self._commit()
        elif not self._open and sql.startswith("INSERT"):
            self._begin()
            self._db.execute(sql, parameters)
            self._commit()
        else:
            return self._db.execute(sql, parameters)
        return None

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        """Run a statement once for each of the parameters."""
        return self._db.executemany(sql, parameters)

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._open = True

    def _commit(self) -> None:
        self._db.execute("INSERT INTO outbox (changes) VALUES (?)", (self.kept(),))
        self._db.execute("COMMIT")
        self._open = False

    def kept(self) -> bytes:
        """Return what to keep of the open transaction."""
        raise NotImplementedError


class ByHand(Keeper):
    """Keeps so many bytes, and has seen no row."""

    size = 0

    def kept(self) -> bytes:
        return bytes(self.size)


class Sessions(Keeper):
    """Keeps what SQLite's session extension has seen."""

    _session: apsw.Session

    def _begin(self) -> None:
        super()._begin()
        self._session = apsw.Session(self._db, "main")
        for table in ("customer", "orders", "line"):
            self._session.attach(table)

    def kept(self) -> bytes:
        changes: bytes = self._session.changeset()
        self._session.close()
        return changes


def plain_writer(path: Path) -> sqlite3.Connection:
    """Open a database that nobody captures."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def add_triggers(db: sqlite3.Connection) -> None:
    """Have each change of a row copied into a table, as JSON."""
    db.execute(OUTBOX)
    images = {"INSERT": ("NEW",), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD",)}
    for table, (operation, sides) in itertools.product(("customer", "orders", "line"), images.items()):
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(f"{side}.{column}" for side in sides for column in columns)
        db.execute(
            f"CREATE TRIGGER {table}_{operation} AFTER {operation} ON {table} BEGIN "
            f"INSERT INTO outbox (changes) VALUES (json_array('{table}', '{operation}', {values})); END"
        )


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

    def update(self) -> None:
        """A thousand rows by one UPDATE, each of which the hook has to see."""
        self.writer.execute("BEGIN IMMEDIATE")
        self.writer.execute("UPDATE customer SET orders = orders + 1, spent = spent + 1.5")
        self.writer.execute("COMMIT")

    @property
    def order(self) -> int:
        """How many orders were written."""
        return self._order


def measure(bench: Bench) -> None:
    """All sides by turns, a block of transactions at a time."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        writers: dict[str, Writer] = {
            "ours": connect(Path(here, "ours.db")),
            "plain": plain_writer(Path(here, "plain.db")),
            "triggers": (triggers := plain_writer(Path(here, "triggers.db"))),
            "sessions": Sessions(Path(here, "sessions.db")),
            "by hand": (by_hand := ByHand(Path(here, "hand.db"))),
        }
        shops = {name: Shop(writer) for name, writer in writers.items()}
        add_triggers(triggers)
        foreign = Path(here, "foreign.db")
        shop = shops["foreign"] = Shop(before := plain_writer(foreign))
        before.close()
        install(foreign, by_trigger=True)
        writers["foreign"] = shop.writer = plain_writer(foreign)
        for kind, many in (("small", 60), ("middle", 45), ("bulk", 3), ("update", 3)):
            must = MUST_OF_UPDATE if kind == "update" else MUST
            by_hand.size = captured(writers["ours"], shops["ours"], kind)
            for name, shop in shops.items():
                if name != "ours":
                    getattr(shop, kind)()
            compare(bench, kind, {name: getattr(shop, kind) for name, shop in shops.items()}, many=many, must=must)
            # What capture would have freed by now; all sides write on with the same amount of rows.
            for writer in writers.values():
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        count = "SELECT count(*) FROM orders"
        rows = {name: writer.execute(count).fetchall()[0][0] for name, writer in writers.items()}
        assert rows == {name: shop.order for name, shop in shops.items()}, rows
        assert writers["triggers"].execute("SELECT count(*) FROM outbox").fetchall()[0][0] > rows["triggers"]
        assert writers["sessions"].execute("SELECT min(length(changes)) FROM outbox").fetchall()[0][0] > 0


def captured(writer: Writer, shop: Shop, kind: str) -> int:
    """Return how many bytes of one transaction's changes are kept by capture."""
    size = "SELECT total(length(changes)) FROM _tranlog_outbox"
    before = writer.execute(size).fetchall()[0][0]
    getattr(shop, kind)()
    return int(writer.execute(size).fetchall()[0][0] - before)


def compare(bench: Bench, kind: str, sides: dict[str, Callable[[], None]], *, many: int, must: Must) -> None:
    """Measure one kind of transactions by the clock and by CPU time."""
    cpu: dict[str, list[float]] = {name: [] for name in sides}

    def block(name: str) -> float:
        transaction = sides[name]
        clock, used = time.perf_counter(), time.process_time()
        for _ in range(many):
            transaction()
        cpu[name].append((time.process_time() - used) / many * 1e6)
        return (time.perf_counter() - clock) / many * 1e6

    figures = bench.by_turns({name: partial(block, name) for name in sides}, rounds=ROUNDS)
    bench.add(kind, ours=figures["ours"], anchor=figures["plain"], unit="us/tx", must=must)
    bench.add(f"{kind}, against by hand", ours=figures["ours"], anchor=figures["by hand"], unit="us/tx")
    bench.add(f"by hand against plain, {kind}", ours=figures["by hand"], anchor=figures["plain"], unit="us/tx")
    bench.add(f"{kind}, CPU", ours=cpu["ours"][1:], anchor=cpu["plain"][1:], unit="us/tx")
    must_of_triggers = None if kind == "update" else MUST_OF_TRIGGERS
    name = f"capture_by_trigger, {kind}"
    bench.add(name, ours=figures["foreign"], anchor=figures["plain"], unit="us/tx", must=must_of_triggers)
    bench.add(f"{name}, CPU", ours=cpu["foreign"][1:], anchor=cpu["plain"][1:], unit="us/tx")
    for name in ("triggers", "sessions"):
        bench.add(f"{kind}, against {name}", ours=figures["ours"], anchor=figures[name], unit="us/tx")
        bench.add(f"{name} against plain, {kind}", ours=figures[name], anchor=figures["plain"], unit="us/tx")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
