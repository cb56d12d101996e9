"""What a durable commit costs beyond what the disk asks for: against LMDB, against the bare disk, and by many threads.

`bench/append.py` has SQLite. Here: LMDB with its sync on, one transaction to each of ours; a 4 KB write and fdatasync
into a file that has its length, which is the least that this disk takes for one; a sequential write with one fsync per
thousand; and 64 threads, each committing by itself, against one thread. By the clock, since a sync is waiting. What is
several is handed over ready and at once: `append_many` here, `putmulti` there. The rows named "bare disk" ask for
nothing: LMDB against a write of as many bytes and one fdatasync, which nobody's log can beat.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import lmdb
from frame import Bench, Question, at_least, run

from tranlog.change import Fragment
from tranlog.log.log import Log

QUESTION = Question(
    name="durable",
    text="How many transactions of 1 KB become durable in a second, against what the disk alone can do?",
    peer="LMDB with sync; the bare disk: 4 KB write and fdatasync, 1.1 MB write and fsync; one thread of ours",
)
PAYLOAD = bytes(range(256)) * 4
RECORD_OVERHEAD = 100
"""About what a record adds to its payload."""
ROUNDS = 7
SINGLE, HUNDREDS, THOUSANDS, OF_EACH_THREAD, THREADS = 200, 20, 10, 8, 64


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


def measure(bench: Bench) -> None:
    """All in one directory, so on one disk."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        log = Log.open(Path(here, "log"), source_id="bench")
        environment = lmdb.open(str(Path(here, "lmdb")), map_size=1 << 30)
        raw = os.open(Path(here, "raw"), os.O_RDWR | os.O_CREAT)
        sequential = os.open(Path(here, "sequential"), os.O_RDWR | os.O_CREAT)
        os.pwrite(raw, bytes(4096 * 4096), 0)
        os.fsync(raw)
        count = 0
        ready = [fragment(number) for number in range(1000)]

        def ours(commits: int, batch: int) -> float:
            began = time.perf_counter()
            for commit in range(commits):
                if batch == 1:
                    log.append(ready[commit])
                else:
                    log.append_many(ready[:batch])
                log.commit()
            return commits * batch / (time.perf_counter() - began)

        def lmdb_commits(commits: int, batch: int) -> float:
            nonlocal count
            rows = [(number.to_bytes(8, "big"), PAYLOAD) for number in range(count, count + commits * batch)]
            count += len(rows)
            began = time.perf_counter()
            for at in range(0, len(rows), batch):
                with environment.begin(write=True) as transaction:
                    if batch == 1:
                        transaction.put(*rows[at], append=True)
                    else:
                        with transaction.cursor() as cursor:
                            cursor.putmulti(rows[at : at + batch], append=True)
            return commits * batch / (time.perf_counter() - began)

        def bare_commits(commits: int, batch: int) -> float:
            bulk = (PAYLOAD + bytes(RECORD_OVERHEAD)) * batch
            at = 0
            began = time.perf_counter()
            for _ in range(commits):
                at += os.pwrite(raw, bulk, at)
                os.fdatasync(raw)
            return commits * batch / (time.perf_counter() - began)

        def raw_commits() -> float:
            page = PAYLOAD * 4
            began = time.perf_counter()
            for at in range(SINGLE):
                os.pwrite(raw, page, at * 4096)
                os.fdatasync(raw)
            return SINGLE / (time.perf_counter() - began)

        end = 0

        def raw_bulk() -> float:
            nonlocal end
            bulk = (PAYLOAD + bytes(RECORD_OVERHEAD)) * 1000
            began = time.perf_counter()
            for _ in range(THOUSANDS):
                end += os.pwrite(sequential, bulk, end)
                os.fsync(sequential)
            return THOUSANDS * 1000 / (time.perf_counter() - began)

        def threads(many: int, each: int) -> float:
            def work() -> None:
                for number in range(each):
                    log.append(ready[number])
                    log.commit()

            running = [threading.Thread(target=work) for _ in range(many)]
            began = time.perf_counter()
            for one in running:
                one.start()
            for one in running:
                one.join()
            return many * each / (time.perf_counter() - began)

        bench.compare(
            "batch 1 against LMDB",
            ours=lambda: ours(SINGLE, 1),
            peer=lambda: lmdb_commits(SINGLE, 1),
            unit="tx/s",
            must=at_least(2, stretch=2.5),
            rounds=ROUNDS,
        )
        bench.compare(
            "batch 100 against LMDB",
            ours=lambda: ours(HUNDREDS, 100),
            peer=lambda: lmdb_commits(HUNDREDS, 100),
            unit="tx/s",
            must=at_least(2.5, stretch=3.5),
            rounds=ROUNDS,
        )
        for commits, batch in ((SINGLE, 1), (HUNDREDS, 100)):
            bench.compare(
                f"bare disk, batch {batch}, against LMDB",
                ours=lambda: bare_commits(commits, batch),  # noqa: B023
                peer=lambda: lmdb_commits(commits, batch),  # noqa: B023
                unit="tx/s",
                rounds=ROUNDS,
            )
        bench.compare(
            "batch 1 against 4 KB write + fdatasync",
            ours=lambda: ours(SINGLE, 1),
            peer=raw_commits,
            unit="tx/s",
            must=at_least(0.8, stretch=0.95),
            rounds=ROUNDS,
        )
        bench.compare(
            "batch 1,000 against sequential write + fsync",
            ours=lambda: ours(THOUSANDS, 1000),
            peer=raw_bulk,
            unit="tx/s",
            must=at_least(0.8, stretch=1.0),
            rounds=ROUNDS,
        )
        bench.compare(
            "64 threads against one",
            ours=lambda: threads(THREADS, OF_EACH_THREAD),
            peer=lambda: threads(1, SINGLE),
            unit="tx/s",
            must=at_least(8, stretch=15),
            rounds=ROUNDS,
        )
        log.close()
        environment.close()
        os.close(raw)
        os.close(sequential)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
