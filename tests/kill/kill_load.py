"""The load of `make kill`: writers on each kind of source, and which of their transactions were acknowledged.

Owns the tables, the transactions, and the list of those whose COMMIT returned. Every transaction inserts one row into
a ledger under an id that no other has, so a transaction can be asked for at the target by its id. It may also change a
hot row, a table without a key, and a row of another shard, which makes it serial.

A server's writers are threads: what they write lives and dies with the server. SQLite's are processes of their own,
since there the application is the database: kill -9 of one of them is SQLite's crash. Such a process is this very file,
run as a program; it appends each id to a file as soon as COMMIT has returned. Half of its transactions have the form
that every ORM gives them: BEGIN, SELECT, UPDATE, COMMIT. SQLite refuses such a one when somebody has committed between
its read and its write, and the writers keep out of each other's way then (by a lock on a file); so each one that is
refused is capture's doing.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import apsw
import psycopg
import pymysql

from demo_steps import Process, StepFailedError
from tranlog.source import sqlite
from tranlog.testing.servers import MariaDbServer, PostgresServer

IDS_PER_WRITER = 10_000_000
STOCK = 20
SCHEMAS = ("north", "east", "south", "west")
"""MariaDB's: a schema is a shard, and has one writer."""
SEASONS = ("spring", "summer", "autumn", "winter")
"""PostgreSQL's."""
STORES = ("tea", "ink", "rope", "lamp")
"""SQLite's: a store is three tables that are one shard."""
SQLITE_WRITERS = 2
STOP_S = 120.0
PAUSE_S = 0.02
"""Between two transactions of one writer: two cores have a whole pipeline to run beside it."""

READ_TO_WRITE_S = 0.005
"""So long a transaction of the ORM's form thinks at most."""

Start = Callable[[str, list[str]], Process]
"""Starts a program of ours under a name, in the environment of the run."""


class Load(Protocol):
    """Writers on one source."""

    tables: tuple[tuple[str, str, str], ...]
    """Schema, table and identifying column of each table, as the target names them."""
    ledgers: tuple[str, ...]

    def make_tables(self) -> None:
        """Create the tables, none of them empty."""

    def start(self) -> None:
        """Let the writers write."""

    def mend(self) -> None:
        """Start writers again that were killed; raise StepFailedError for one that failed."""

    def stop(self) -> None:
        """Let the writers finish what they do, and wait until they have."""

    def abandon(self) -> None:
        """End the writers, whatever they do."""

    def acknowledged(self) -> list[int]:
        """Return the ids of the transactions whose COMMIT returned."""

    def refused(self) -> int:
        """Return how many transactions the source has refused because capture wrote beside them."""


# --- servers -----------------------------------------------------------------------------------------------


class _ServerWriter(threading.Thread):
    """One connection that writes, and comes again when the server was away."""

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError, pymysql.err.MySQLError, psycopg.Error)

    def __init__(self, load: ServerLoad, number: int, rng: random.Random, first_id: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.load = load
        self.home = load.schemas[number]
        self.rng = rng
        self.next_id = first_id
        self.acknowledged: list[int] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                with self.load.server.connect("", autocommit=False) as session, session.cursor() as cursor:
                    while not self.ending.is_set():
                        self._write_one(session, cursor)
                        time.sleep(PAUSE_S)
            except self.failures:
                time.sleep(0.2)  # the server is away, or chose us in a deadlock

    def _write_one(self, session: Any, cursor: Any) -> None:
        number, self.next_id = self.next_id, self.next_id + 1  # never again, since a failed COMMIT may have happened
        self.load.write(cursor, self.rng, self.home, number)
        session.commit()
        self.acknowledged.append(number)


def _tables(schemas: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    kinds = (("ledger", "id"), ("stock", "id"), ("visits", "day"))
    return tuple((schema, table, key) for schema in schemas for table, key in kinds)


class ServerLoad:
    """Four threads on one server, a schema each."""

    schemas: tuple[str, ...]
    tables: tuple[tuple[str, str, str], ...]
    ledgers: tuple[str, ...]
    make_schema: str
    delete_one: str
    """Deletes one row of a table without a key."""

    def __init__(self, server: MariaDbServer | PostgresServer, seed: int) -> None:
        self.server = server
        self.seed = seed
        self._writing: list[_ServerWriter] = []
        self._ended: list[_ServerWriter] = []
        self._next_ids = [1 + number * IDS_PER_WRITER for number in range(len(self.schemas))]

    def make_tables(self) -> None:
        """Create the schemas, each with a ledger, a hot table and one without a key."""
        for schema in self.schemas:
            self.server.execute(self.make_schema.format(schema))
            self.server.execute(f"CREATE TABLE {schema}.ledger (id BIGINT PRIMARY KEY, amount INT)")
            self.server.execute(f"CREATE TABLE {schema}.stock (id INT PRIMARY KEY, pieces INT)")
            self.server.execute(f"CREATE TABLE {schema}.visits (day INT)")
            self.server.execute(f"INSERT INTO {schema}.ledger VALUES (0, 0)")
            self.server.execute(f"INSERT INTO {schema}.stock VALUES " + ", ".join(f"({n}, 100)" for n in range(STOCK)))
            self.server.execute(f"INSERT INTO {schema}.visits VALUES (0), (0), (1)")

    def write(self, cursor: Any, rng: random.Random, home: str, number: int) -> None:
        """Do what one transaction does, before its COMMIT."""
        cursor.execute(f"INSERT INTO {home}.ledger VALUES (%s, %s)", (number, rng.randrange(1000)))
        if rng.random() < 0.5:
            cursor.execute(f"UPDATE {home}.stock SET pieces = pieces + 1 WHERE id = %s", (rng.randrange(STOCK),))
        if rng.random() < 0.2:
            cursor.execute(f"INSERT INTO {home}.visits VALUES (%s)", (rng.randrange(3),))
        if rng.random() < 0.18:
            cursor.execute(self.delete_one.format(f"{home}.visits"))
        if rng.random() < 0.03:
            other = rng.choice([schema for schema in self.schemas if schema != home])
            cursor.execute(f"UPDATE {other}.stock SET pieces = pieces - 1 WHERE id = %s", (rng.randrange(STOCK),))

    def start(self) -> None:
        """Start the threads, behind the ids of those before them."""
        for number, first_id in enumerate(self._next_ids):
            rng = random.Random(f"{self.seed}/{self.schemas[number]}/{number}/{first_id}")
            writer = _ServerWriter(self, number, rng, first_id)
            self._writing.append(writer)
            writer.start()

    def mend(self) -> None:
        """Nothing: the threads come again by themselves. Raise StepFailedError for one that a defect ended."""
        for writer in self._writing:
            if not writer.is_alive():
                raise StepFailedError(f"{writer.name} on {self.server.what} has ended by itself")

    def stop(self) -> None:
        """Let each finish its transaction."""
        for writer in self._writing:
            writer.ending.set()
        for writer in self._writing:
            writer.join(STOP_S)
            if writer.is_alive():
                raise StepFailedError(f"{writer.name} on {self.server.what} hangs")
        self._next_ids = [writer.next_id for writer in self._writing] or self._next_ids
        self._ended += self._writing
        self._writing = []

    def abandon(self) -> None:
        """Tell them to end; as daemon threads they keep nobody."""
        for writer in self._writing:
            writer.ending.set()

    def acknowledged(self) -> list[int]:
        """Return the ids whose COMMIT returned."""
        return [number for writer in (*self._ended, *self._writing) for number in list(writer.acknowledged)]

    def refused(self) -> int:
        """Return 0: what the server writes anyway is read, and nothing is written."""
        return 0


class MariaDbLoad(ServerLoad):
    """Writers on a MariaDB."""

    schemas, tables = SCHEMAS, _tables(SCHEMAS)
    ledgers = tuple(f"{schema}.ledger" for schema in SCHEMAS)
    make_schema = "CREATE DATABASE {}"
    delete_one = "DELETE FROM {} LIMIT 1"


class PostgresLoad(ServerLoad):
    """Writers on a PostgreSQL."""

    schemas, tables = SEASONS, _tables(SEASONS)
    ledgers = tuple(f"{schema}.ledger" for schema in SEASONS)
    make_schema = "CREATE SCHEMA {}"
    delete_one = "DELETE FROM {0} WHERE ctid = (SELECT ctid FROM {0} LIMIT 1)"


# --- SQLite ------------------------------------------------------------------------------------------------


def make_stores(shop: Any, stores: tuple[str, ...]) -> None:
    """Make each store's three tables with their first rows, by a connection of either module."""
    for store in stores:
        shop.execute(f"CREATE TABLE {store}_ledger (id INTEGER PRIMARY KEY, amount INTEGER)")
        shop.execute(f"CREATE TABLE {store}_stock (id INTEGER PRIMARY KEY, pieces INTEGER)")
        shop.execute(f"CREATE TABLE {store}_visits (day INTEGER)")
        shop.execute("BEGIN")
        shop.execute(f"INSERT INTO {store}_ledger VALUES (0, 0)")
        for number in range(STOCK):
            shop.execute(f"INSERT INTO {store}_stock VALUES (?, 100)", (number,))
        shop.execute(f"INSERT INTO {store}_visits VALUES (0), (0), (1)")
        shop.execute("COMMIT")


class SqliteLoad:
    """Two processes that write one database file, two stores each."""

    stores = STORES
    program = Path(__file__).resolve()
    """What each of the processes runs."""

    def __init__(self, folder: Path, seed: int, start: Start) -> None:
        kinds = (("ledger", "id"), ("stock", "id"), ("visits", "day"))
        self.tables = tuple(("main", f"{store}_{table}", key) for store in self.stores for table, key in kinds)
        self.ledgers = tuple(f"main.{store}_ledger" for store in self.stores)
        self.path = folder / "shop.db"
        self.seed = seed
        self.writers: dict[int, Process] = {}
        self._folder = folder
        self._start = start

    def make_tables(self) -> None:
        """Create the stores' tables through a captured connection."""
        shop = sqlite.connect(str(self.path))
        make_stores(shop, self.stores)
        shop.close()

    def start(self) -> None:
        """Start the processes that do not run."""
        for number in range(SQLITE_WRITERS):
            if number not in self.writers:
                arguments = [str(self.path), str(number), str(self.seed), str(self._folder)]
                command = [sys.executable, str(self.program), *arguments]
                self.writers[number] = self._start(f"writer-{number}", command)

    def mend(self) -> None:
        """Start again those that were killed."""
        for number, process in list(self.writers.items()):
            code = process.child.poll()
            if code is not None:
                if code != -signal.SIGKILL:
                    process.check()
                del self.writers[number]
        self.start()

    def stop(self) -> None:
        """Let each finish its transaction; one that has just started may not know SIGTERM yet."""
        for process in self.writers.values():
            process.child.terminate()
        for process in self.writers.values():
            try:
                code = process.child.wait(STOP_S)
            except subprocess.TimeoutExpired as exc:
                raise StepFailedError(f"{process.name} on SQLite hangs") from exc
            if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
                process.check()
        self.writers = {}

    def abandon(self) -> None:
        """End the processes."""
        for process in self.writers.values():
            process.abandon()

    def acknowledged(self) -> list[int]:
        """Return the ids whose COMMIT returned."""
        return self._told("acknowledged")

    def refused(self) -> int:
        """Return how many failed with SQLITE_BUSY_SNAPSHOT."""
        return len(self._told("refused"))

    def _told(self, what: str) -> list[int]:
        files = [self._folder / f"{what}-{number}" for number in range(SQLITE_WRITERS)]
        return [int(line) for file in files if file.exists() for line in file.read_text().split()]


class SqliteWriter:
    """What one of the processes does, until SIGTERM or until it is killed."""

    def __init__(self, path: str, number: int, seed: int, folder: str) -> None:
        self.shop = sqlite.connect(path)
        self.homes = STORES[number::SQLITE_WRITERS]
        low = number * IDS_PER_WRITER
        known = [low]
        for store in self.homes:
            of_ours = f"SELECT max(id) FROM {store}_ledger WHERE id BETWEEN ? AND ?"
            known += [row[0] for row in self.shop.execute(of_ours, (low, low + IDS_PER_WRITER - 1)) if row[0]]
        self.next_id = max(known) + 1
        self.rng = random.Random(f"{seed}/sqlite/{number}/{self.next_id}")
        self.acknowledged, self.refused = (
            os.open(f"{folder}/{what}-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            for what in ("acknowledged", "refused")
        )
        self.turns = os.open(f"{folder}/turns", os.O_RDWR | os.O_CREAT, 0o644)
        self.ending = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def run(self) -> None:
        """Write one transaction after another."""
        while not self.ending:
            try:
                if self._write_one():
                    # One write(2) of one short line: after a kill it is there whole or not at all.
                    os.write(self.acknowledged, b"%d\n" % self.next_id)
                self.next_id += 1
            except apsw.BusyError as exc:
                if getattr(exc, "extendedresult", 0) == apsw.SQLITE_BUSY_SNAPSHOT:
                    os.write(self.refused, b"%d\n" % self.next_id)
                if self.shop.in_transaction:
                    self.shop.execute("ROLLBACK")
            fcntl.flock(self.turns, fcntl.LOCK_UN)
            time.sleep(PAUSE_S)
        self.shop.close()

    def _write_one(self) -> bool:
        """Do one transaction; False when it was rolled back."""
        rng, shop = self.rng, self.shop
        home = rng.choice(self.homes)
        if rng.random() < 0.5:
            fcntl.flock(self.turns, fcntl.LOCK_EX)
            shop.execute("BEGIN")
            ((pieces,),) = shop.execute(f"SELECT pieces FROM {home}_stock WHERE id = 0").fetchall()
            time.sleep(rng.random() * READ_TO_WRITE_S)
            shop.execute(f"UPDATE {home}_stock SET pieces = ? WHERE id = 0", (pieces + 1,))
        else:
            fcntl.flock(self.turns, fcntl.LOCK_SH)
            shop.execute("BEGIN IMMEDIATE")
        shop.execute(f"INSERT INTO {home}_ledger VALUES (?, ?)", (self.next_id, rng.randrange(1000)))
        if rng.random() < 0.5:
            shop.execute(f"UPDATE {home}_stock SET pieces = pieces + 1 WHERE id = ?", (rng.randrange(STOCK),))
        if rng.random() < 0.2:
            shop.execute(f"INSERT INTO {home}_visits VALUES (?)", (rng.randrange(3),))
        if rng.random() < 0.18:
            shop.execute(f"DELETE FROM {home}_visits WHERE rowid = (SELECT min(rowid) FROM {home}_visits)")
        if rng.random() < 0.05:  # second thoughts: what follows the savepoint is taken back
            shop.execute("SAVEPOINT second_thoughts")
            shop.execute(f"UPDATE {home}_stock SET pieces = 0")
            shop.execute("ROLLBACK TO second_thoughts")
            shop.execute("RELEASE second_thoughts")
        if rng.random() < 0.03:
            other = rng.choice([store for store in STORES if store != home])
            shop.execute(f"UPDATE {other}_stock SET pieces = pieces - 1 WHERE id = ?", (rng.randrange(STOCK),))
        if rng.random() < 0.03:
            shop.execute("ROLLBACK")
            return False
        shop.execute("COMMIT")
        return True


if __name__ == "__main__":
    SqliteWriter(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]).run()
