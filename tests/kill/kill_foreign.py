"""The load of `make kill` on a SQLite that programs write without a connection of ours: capture is by triggers.

Two processes, as `kill_load` has them: one writes through the sqlite3 shell, one through SQLAlchemy's ORM on Python's
own module. Run as a program, this file is one of them.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from kill_load import IDS_PER_WRITER, PAUSE_S, READ_TO_WRITE_S, SQLITE_WRITERS, STOCK, SqliteLoad, make_stores

MARKETS = ("fish", "silk", "salt", "wine")
"""The stores of this database."""
BUSY_MS = 30_000
DONE = "done"


class ForeignLoad(SqliteLoad):
    """Two processes that write one database file, two stores each; what merges in the log is still counted by id."""

    stores = MARKETS
    program = Path(__file__).resolve()

    def make_tables(self) -> None:
        """Create the stores' tables, as a program would that knows nothing of us."""
        shop = sqlite3.connect(self.path, isolation_level=None)
        make_stores(shop, self.stores)
        shop.close()

    def refused(self) -> int:
        """Return 0: a transaction of theirs that reads first may meet capture's freeing; it is repeated."""
        return 0


class _Base(DeclarativeBase):
    pass


class _Ledger(_Base):
    __abstract__ = True
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


class _Stock(_Base):
    __abstract__ = True
    id: Mapped[int] = mapped_column(primary_key=True)
    pieces: Mapped[int]


LEDGERS: dict[str, Any] = {
    store: type(f"{store}_ledger", (_Ledger,), {"__tablename__": f"{store}_ledger"}) for store in MARKETS
}
STOCKS: dict[str, Any] = {
    store: type(f"{store}_stock", (_Stock,), {"__tablename__": f"{store}_stock"}) for store in MARKETS
}


class Writer:
    """What one of the processes does, until SIGTERM or until it is killed."""

    def __init__(self, path: str, number: int, seed: int, folder: str) -> None:
        self.path = path
        self.homes = MARKETS[number::SQLITE_WRITERS]
        low = number * IDS_PER_WRITER
        known = [low]
        with self._waiting() as shop:
            for store in self.homes:
                of_ours = f"SELECT max(id) FROM {store}_ledger WHERE id BETWEEN ? AND ?"
                known += [row[0] for row in shop.execute(of_ours, (low, low + IDS_PER_WRITER - 1)) if row[0]]
        self.next_id = max(known) + 1
        self.rng = random.Random(f"{seed}/foreign/{number}/{self.next_id}")
        self.acknowledged = os.open(f"{folder}/acknowledged-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.turns = os.open(f"{folder}/turns", os.O_RDWR | os.O_CREAT, 0o644)
        self.ending = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    @contextmanager
    def _waiting(self) -> Iterator[sqlite3.Connection]:
        shop = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1000)
        try:
            yield shop
        finally:
            shop.close()

    def run(self) -> None:
        """Write one transaction after another."""
        while not self.ending:
            if self.write_one():
                os.write(self.acknowledged, b"%d\n" % self.next_id)
            self.next_id += 1
            fcntl.flock(self.turns, fcntl.LOCK_UN)
            time.sleep(PAUSE_S)

    def write_one(self) -> bool:
        """Do one transaction; False when it was rolled back or refused."""
        raise NotImplementedError


class ByShell(Writer):
    """Through the sqlite3 shell: statements go in at its input, and what was committed is said at its output."""

    def run(self) -> None:
        command = ["sqlite3", self.path]
        self.shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._tell(f".timeout {BUSY_MS}")
        super().run()
        self.shell.communicate()

    def _tell(self, *lines: str) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write("\n".join(lines) + "\n")
        self.shell.stdin.flush()

    def write_one(self) -> bool:
        rng = self.rng
        home, number = rng.choice(self.homes), self.next_id
        statements = ["BEGIN IMMEDIATE;", f"INSERT INTO {home}_ledger VALUES ({number}, {rng.randrange(1000)});"]
        if rng.random() < 0.5:
            statements.append(f"UPDATE {home}_stock SET pieces = pieces + 1 WHERE id = {rng.randrange(STOCK)};")
        if rng.random() < 0.2:
            statements.append(f"INSERT INTO {home}_visits VALUES ({rng.randrange(3)});")
        if rng.random() < 0.18:
            statements.append(f"DELETE FROM {home}_visits WHERE rowid = (SELECT min(rowid) FROM {home}_visits);")
        if rng.random() < 0.05:  # second thoughts: what follows the savepoint is taken back
            statements += ["SAVEPOINT s;", f"UPDATE {home}_stock SET pieces = 0;", "ROLLBACK TO s;", "RELEASE s;"]
        if rng.random() < 0.03:
            other = rng.choice([store for store in MARKETS if store != home])
            statements.append(f"UPDATE {other}_stock SET pieces = pieces - 1 WHERE id = {rng.randrange(STOCK)};")
        ends = "ROLLBACK" if rng.random() < 0.03 else "COMMIT"
        fcntl.flock(self.turns, fcntl.LOCK_SH)
        # What a statement that failed leaves is asked for, in the shell's own next transaction.
        asked = f"SELECT '{DONE} ' || count(*) FROM {home}_ledger WHERE id = {number};"
        self._tell(*statements, f"{ends};", asked)
        assert self.shell.stdout is not None
        said = self.shell.stdout.readline()
        if not said.startswith(DONE):
            raise SystemExit(f"the sqlite3 shell said {said!r}")
        return said.split()[1] == "1"


class ByOrm(Writer):
    """Through SQLAlchemy's ORM: BEGIN, SELECT, UPDATE, COMMIT, as programs have it."""

    def __init__(self, path: str, number: int, seed: int, folder: str) -> None:
        super().__init__(path, number, seed, folder)
        self.engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_MS / 1000})

        @event.listens_for(self.engine, "connect")
        def connected(connection: Any, _: object) -> None:
            connection.isolation_level = None

        @event.listens_for(self.engine, "begin")
        def begun(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

    def write_one(self) -> bool:
        rng = self.rng
        home = rng.choice(self.homes)
        fcntl.flock(self.turns, fcntl.LOCK_EX)
        try:
            with Session(self.engine) as session, session.begin():
                stock = session.get_one(STOCKS[home], rng.randrange(STOCK))
                time.sleep(rng.random() * READ_TO_WRITE_S)
                if rng.random() < 0.5:
                    stock.pieces += 1
                session.add(LEDGERS[home](id=self.next_id, amount=rng.randrange(1000)))
                if rng.random() < 0.2:
                    session.execute(text(f"INSERT INTO {home}_visits VALUES (:day)"), {"day": rng.randrange(3)})
                if rng.random() < 0.03:
                    session.flush()
                    session.rollback()
                    return False
        except OperationalError as exc:
            if getattr(exc.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                return False
            raise
        return True


if __name__ == "__main__":
    (ByShell, ByOrm)[int(sys.argv[2])](sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]).run()
