"""How fast the message store is: publishing, taking, many threads, transactions, and recovery.

Messages of 1 KB; by the clock, since a sync is waiting. The bare disk takes as many bytes by one write and one
fdatasync into a file that has its length (`bench/bare_disk.py`). The queue by hand is a table of SQLite's, WAL,
synchronous=FULL: a publish is an INSERT, a take with its acknowledgement a DELETE that returns the rows, a batch one
transaction. What was published is taken off again beside the clock.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bare_disk import BareDisk
from frame import Bench, Question, at_least, run

from tranlog.checksum import crc32
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.records import CONTAINER_PREFIX, HEADER_BYTES
from tranlog.queues.store import MessageStore

QUESTION = Question(
    name="queue_store",
    text="How many messages of 1 KB go durably in and out of the message store in a second; how fast does it open?",
    peer="the bare disk; a queue by hand on SQLite, WAL, synchronous=FULL; one thread; single calls with one sync; "
    "the containers, read with a CRC",
)
CONTENT = bytes(range(256)) * 4
ROUNDS = 41
CALLS = {1: 200, 100: 20}
"""By batch, in each round."""
PUBLISH = {1: at_least(0.9, stretch=1.3), 100: at_least(1.2, stretch=2)}
TAKE = {1: at_least(0.9, stretch=1.3), 100: at_least(1.1, stretch=2)}
THREADS, OF_EACH_THREAD = 32, 32
CONTAINER_BYTES = 16 << 20
"""As docs/operations.md advises for a store with many messages."""
RECOVERED = 1_000_000
QUEUES = [f"q{number}" for number in range(10)]


class SqliteQueue:
    """A queue by hand."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode=wal")
        self._database.execute("pragma synchronous=full")
        self._database.execute("create table queue(id integer primary key autoincrement, content blob not null)")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("begin immediate")
        yield self._database
        self._database.execute("commit")

    def publish(self, calls: int, batch: int) -> None:
        """Put so many batches on it."""
        rows = [(CONTENT,)] * batch
        for _ in range(calls):
            with self._transaction() as database:
                database.executemany("insert into queue(content) values (?)", rows)

    def take(self, calls: int, batch: int) -> None:
        """Take so many batches off it."""
        for _ in range(calls):
            with self._transaction() as database:
                rows = database.execute(
                    "delete from queue where id in (select id from queue order by id limit ?) returning id, content",
                    (batch,),
                ).fetchall()
                assert len(rows) == batch

    def clear(self) -> None:
        """Take everything off it."""
        self._database.execute("delete from queue")

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def publish(store: MessageStore, calls: int, batch: int) -> None:
    """Put so many batches on the queue `a`, each durable."""
    for _ in range(calls):
        if batch == 1:
            store.publish(CONTENT, queues=["a"])
        else:
            store.publish_many([CONTENT] * batch, queues=["a"])


def take(store: MessageStore, calls: int, batch: int) -> None:
    """Take so many batches off the queue `a`, each acknowledged durably."""
    for _ in range(calls):
        deliveries = store.get_many("a", batch)
        assert [len(one.content) for one in deliveries] == [len(CONTENT)] * batch
        store.ack(*deliveries, wait=True)


def seconds(work: Callable[[], object]) -> float:
    """Return how long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(bench: Bench) -> None:
    """All in one directory, so on one disk. The parts for `--only` are named as their functions."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as folder:
        here = Path(folder)
        options = QueueStoreOptions(container_bytes=CONTAINER_BYTES)
        with MessageStore.open(here / "store", options=options) as store:
            store.declare("a")
            if bench.wants("single"):
                single(bench, here, store)
            if bench.wants("threads"):
                threads(bench, store)
            if bench.wants("transactions"):
                transactions(bench, store)
        if bench.wants("recovery"):
            recovery(bench, here)


def single(bench: Bench, here: Path, store: MessageStore) -> None:
    """One thread: publish, and take with its acknowledgement, against the bare disk and the queue by hand."""
    bare, by_hand = BareDisk(here / "bare"), SqliteQueue(here / "queue.db")

    def put(calls: int, batch: int) -> float:
        taken = seconds(lambda: publish(store, calls, batch))
        store.purge("a")
        return calls * batch / taken

    def put_by_hand(calls: int, batch: int) -> float:
        taken = seconds(lambda: by_hand.publish(calls, batch))
        by_hand.clear()
        return calls * batch / taken

    def got(calls: int, batch: int) -> float:
        publish(store, 1, calls * batch)
        return calls * batch / seconds(lambda: take(store, calls, batch))

    def got_by_hand(calls: int, batch: int) -> float:
        by_hand.publish(1, calls * batch)
        return calls * batch / seconds(lambda: by_hand.take(calls, batch))

    def written(calls: int) -> float:
        return calls / seconds(lambda: bare.write(calls, len(CONTENT)))

    for batch, calls in CALLS.items():
        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: put(calls, batch),  # noqa: B023
            "by hand": lambda: put_by_hand(calls, batch),  # noqa: B023
        }
        if batch == 1:
            sides["bare"] = lambda: written(calls)  # noqa: B023
        found = bench.by_turns(sides, rounds=ROUNDS)
        if batch == 1:
            bench.add(
                "publish, batch 1, against the bare disk",
                ours=found["ours"],
                anchor=found["bare"],
                unit="messages/s",
                must=at_least(0.7, stretch=0.9),
            )
            bench.add(
                "the bare disk against SQLite, batch 1", ours=found["bare"], anchor=found["by hand"], unit="messages/s"
            )
        bench.add(
            f"publish, batch {batch}, against SQLite",
            ours=found["ours"],
            anchor=found["by hand"],
            unit="messages/s",
            must=PUBLISH[batch],
        )
    for batch, calls in CALLS.items():
        bench.compare(
            f"take and acknowledge, batch {batch}, against SQLite",
            ours=lambda: got(calls, batch),  # noqa: B023
            peer=lambda: got_by_hand(calls, batch),  # noqa: B023
            unit="messages/s",
            must=TAKE[batch],
            rounds=ROUNDS,
        )
    bare.close()
    by_hand.close()


def threads(bench: Bench, store: MessageStore) -> None:
    """Many threads that publish, each waiting for its own."""

    def work(many: int, each: int) -> tuple[float, float]:
        """Return messages a second, and how many each sync served."""
        ready = threading.Barrier(many + 1)

        def produce() -> None:
            ready.wait()
            publish(store, each, 1)

        running = [threading.Thread(target=produce) for _ in range(many)]
        for one in running:
            one.start()
        before = store.status().syncs or 0

        def go() -> None:
            ready.wait()
            for one in running:
                one.join()

        taken = seconds(go)
        syncs = (store.status().syncs or 0) - before
        store.purge("a")
        return many * each / taken, many * each / syncs

    served: list[float] = []

    def many() -> float:
        found, each = work(THREADS, OF_EACH_THREAD)
        served.append(each)
        return found

    bench.compare(
        f"{THREADS} threads, a durable publish each, against one",
        ours=many,
        peer=lambda: work(1, CALLS[1])[0],
        unit="messages/s",
        must=at_least(3, stretch=6),
        rounds=ROUNDS,
    )
    bench.add(f"{THREADS} threads, publishes a sync", ours=served, unit="", must=at_least(10, stretch=20))


def transactions(bench: Bench, store: MessageStore) -> None:
    """A hundred publishes and a hundred acknowledgements over ten queues, as a transaction and singly."""
    for name in QUEUES:
        store.declare(name)

    def rounds_of(work: Callable[[list[object]], None]) -> float:
        """Return operations a second; the messages were taken beside the clock."""
        taken = 0.0
        for _ in range(CALLS[100]):
            held: list[object] = []
            for number in range(100):
                store.publish(CONTENT, queues=[QUEUES[number % 10]], wait=False)
            store.sync()
            for number in range(100):
                held.append(store.get(QUEUES[number % 10]))
            taken += seconds(lambda: work(held))  # noqa: B023
            for name in QUEUES:
                store.purge(name)
        return CALLS[100] * 200 / taken

    def together(held: list[object]) -> None:
        with store.transaction() as transaction:
            for number, delivery in enumerate(held):
                transaction.publish(CONTENT, queues=[QUEUES[number % 10]])
                transaction.ack(delivery)  # type: ignore[arg-type]

    def singly(held: list[object]) -> None:
        for number, delivery in enumerate(held):
            store.publish(CONTENT, queues=[QUEUES[number % 10]], wait=False)
            store.ack(delivery)  # type: ignore[arg-type]
        store.sync()

    bench.compare(
        "a transaction of 100 publishes and 100 acknowledgements, against singly with one sync",
        ours=lambda: rounds_of(together),
        peer=lambda: rounds_of(singly),
        unit="operations/s",
        must=at_least(0.8, stretch=1),
        rounds=ROUNDS,
    )


def recovery(bench: Bench, here: Path) -> None:
    """Opening a store with many messages, every other one acknowledged, against reading its containers with a CRC."""
    path, count = here / "many", bench.size(RECOVERED, trying=RECOVERED // 10)
    options = QueueStoreOptions(container_bytes=CONTAINER_BYTES, content_bytes=0, ack_sync_s=None)
    with MessageStore.open(path, options=options) as store:
        store.declare("a")
        for _ in range(count // 1000):
            publish(store, 1, 1000)
            held = [store.get("a") for _ in range(1000)]
            store.ack(*(one for one in held[::2] if one is not None))

    def containers() -> list[Path]:
        return sorted(path.glob(f"{CONTAINER_PREFIX}*"))

    size = sum(one.stat().st_size for one in containers())

    def opened() -> None:
        store = MessageStore.open(path, options=options)
        assert store.recovered.messages == count // 2
        left.append(store)

    left: list[MessageStore] = []

    def ours() -> float:
        taken = seconds(opened)
        left.pop().close()
        return size / taken / 1e6

    def read() -> None:
        for one in containers():
            crc32(one.read_bytes())

    def walk() -> None:
        """Find each record, and hold its bytes against their own CRC."""
        for one in containers():
            raw, at = one.read_bytes(), HEADER_BYTES
            while length := int.from_bytes(raw[at : at + 4], "big"):
                end = at + length
                assert crc32(raw[at : end - 4]) == int.from_bytes(raw[end - 4 : end], "big")
                at = end

    figures = bench.by_turns(
        {"ours": ours, "read": lambda: size / seconds(read) / 1e6, "walk": lambda: size / seconds(walk) / 1e6}, rounds=7
    )
    name = f"recovery of {count:,} messages, half of them acknowledged, against"
    must = at_least(0.15, stretch=0.3)
    bench.add(f"{name} one CRC a container", ours=figures["ours"], anchor=figures["read"], unit="MB/s", must=must)
    bench.add(f"{name} the CRC of each record", ours=figures["ours"], anchor=figures["walk"], unit="MB/s")
    shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
