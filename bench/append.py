"""How fast transactions become durable in the log, against SQLite as a log: WAL, synchronous=FULL, the same bytes.

One writer commits every 1, 10 and 100 transactions, handed over ready and all at once where they are several
(`append_many` here, `executemany` there); then eight threads commit each of theirs, one by one: the log lets
one sync serve all that wait, SQLite lets one writer in after the other. Each of the eight has its own connection to
SQLite, as threads have, and waits for its turn. By the clock, since a sync is waiting.

The rows named "bare disk" (`bench/bare_disk.py`) have SQLite against as many bytes by one write and one sync. They ask
for nothing; they say what a must means on this disk. `bench/durable.py` holds us against that disk itself.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bare_disk import BareDisk
from frame import Bench, Question, at_least, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log

QUESTION = Question(
    name="append",
    text="How many transactions of 1 KB become durable in a second: one writer committing every 1, 10 and 100, and "
    "8 threads committing each one by itself?",
    peer="SQLite (WAL, synchronous=FULL) inserting the same bytes, one COMMIT for each of ours",
)
MUSTS = {1: at_least(0.8), 100: at_least(1.8)}
"""By batch; the design asks for nothing between, nor for threads against SQLite."""

PAYLOAD = bytes(range(256)) * 4
RECORD_OVERHEAD = 100
"""About what a record adds to its payload."""
THREADS = 8
TRANSACTIONS = {1: 300, 10: 2_000, 100: 10_000}
OF_EACH_THREAD = 60
ROUNDS = 7


def fragment(number: int) -> Fragment:
    """Return a transaction of one fragment."""
    return Fragment(
        source_id="bench",
        event_id=f"0-1-{number};binlog.000001:{number * 1100}",
        shard_id="shop",
        tstamp=1_800_000_000_000,
        tables=(("shop", "orders"),),
        payload=PAYLOAD,
    )


class Ours:
    """A log."""

    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory, source_id="bench")
        self._ready = [fragment(number) for number in range(max(TRANSACTIONS.values()))]

    def write(self, transactions: int, batch: int) -> None:
        """Append, and commit after every `batch`."""
        log, ready = self.log, self._ready
        for at in range(0, transactions, batch):
            if batch == 1:
                log.append(ready[at])
            else:
                log.append_many(ready[at : at + batch])
            log.commit()

    def write_from_threads(self) -> None:
        """Commit each transaction by itself, from eight threads."""

        def work(first: int) -> None:
            for number in range(first, first + OF_EACH_THREAD):
                self.log.append(fragment(number))
                self.log.commit()

        run_all([lambda at=at: work(at * OF_EACH_THREAD) for at in range(THREADS)])  # type: ignore[misc]


INSERT = "INSERT INTO log(event_id, shard_id, tstamp, payload) VALUES (?, ?, ?, ?)"


def row(number: int) -> tuple[str, str, int, bytes]:
    """Return the same as a row."""
    return (f"0-1-{number};binlog.000001:{number * 1100}", "shop", 1_800_000_000_000, PAYLOAD)


class Theirs:
    """A table of SQLite's, with a connection for each thread."""

    def __init__(self, path: Path) -> None:
        self._connections = [self._connect(path) for _ in range(THREADS)]
        self._ready = [row(number) for number in range(max(TRANSACTIONS.values()))]
        self._connections[0].execute(
            "CREATE TABLE log(seqno INTEGER PRIMARY KEY, event_id TEXT, shard_id TEXT, tstamp INTEGER, payload BLOB)"
        )

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def write(self, transactions: int, batch: int) -> None:
        """Insert, and commit after every `batch`."""
        connection, ready = self._connections[0], self._ready
        for at in range(0, transactions, batch):
            connection.execute("BEGIN IMMEDIATE")
            if batch == 1:
                connection.execute(INSERT, ready[at])
            else:
                connection.executemany(INSERT, ready[at : at + batch])
            connection.execute("COMMIT")

    def write_from_threads(self) -> None:
        """Commit each row by itself, from eight threads."""

        def work(connection: sqlite3.Connection) -> None:
            for number in range(OF_EACH_THREAD):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(INSERT, row(number))
                connection.execute("COMMIT")

        run_all([lambda one=one: work(one) for one in self._connections])  # type: ignore[misc]

    def count(self) -> int:
        """How many rows are there."""
        ((count,),) = self._connections[0].execute("SELECT count(*) FROM log")
        return int(count)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


def run_all(works: list[Callable[[], None]]) -> None:
    """Run each in a thread of its own, to the end of all; raise what one of them raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def measure(bench: Bench) -> None:
    """Both in one directory, so on one disk."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        ours, theirs, bare = Ours(Path(here, "log")), Theirs(Path(here, "log.db")), BareDisk(Path(here, "bare"))
        for batch, transactions in TRANSACTIONS.items():
            bench.compare(
                f"batch {batch}",
                ours=rate(transactions, lambda: ours.write(transactions, batch)),  # noqa: B023
                peer=rate(transactions, lambda: theirs.write(transactions, batch)),  # noqa: B023
                unit="tx/s",
                must=MUSTS.get(batch),
                rounds=ROUNDS,
            )
            bench.compare(
                f"bare disk, batch {batch}",
                ours=rate(
                    transactions,
                    lambda: bare.write(transactions // batch, batch * (len(PAYLOAD) + RECORD_OVERHEAD)),  # noqa: B023
                ),
                peer=rate(transactions, lambda: theirs.write(transactions, batch)),  # noqa: B023
                unit="tx/s",
                rounds=ROUNDS,
            )
        bench.compare(
            f"{THREADS} threads",
            ours=rate(THREADS * OF_EACH_THREAD, ours.write_from_threads),
            peer=rate(THREADS * OF_EACH_THREAD, theirs.write_from_threads),
            unit="tx/s",
            rounds=ROUNDS,
        )
        assert ours.log.durable_seqno == ours.log.last_seqno
        ours.log.close()
        theirs.close()
        bare.close()


def rate(transactions: int, work: Callable[[], None]) -> Callable[[], float]:
    """Return what measures how many transactions a second `work` carries."""

    def measured() -> float:
        began = time.perf_counter()
        work()
        return transactions / (time.perf_counter() - began)

    return measured


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
