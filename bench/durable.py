"""What a durable commit costs beyond what the disk asks for: against the bare disk, LMDB, and by many threads.

`bench/append.py` has SQLite. Here: the bare disk, which takes the same bytes by one write and one fdatasync into a file
that has its length (`bench/bare_disk.py`); a file that grows, which pays for its length at each sync, as a log that
keeps everything does in large commits; LMDB with its sync on, one transaction to each of ours; a sequential write with
one fsync per thousand; and 64 threads, each committing by itself, against one thread. By the clock, since a sync is
waiting. What is several is handed over ready and at once: `append_many` here, `putmulti` there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
from bare_disk import BareDisk
from frame import Bench, Question, at_least, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log

QUESTION = Question(
    name="durable",
    text="How many transactions of 1 KB become durable in a second, against what the disk alone can do?",
    peer="the bare disk: the same bytes, one write and one fdatasync, into a file that has its length; LMDB with sync; "
    "1.1 MB write and fsync; one thread of ours",
)
MUSTS = {1: at_least(0.75, stretch=0.85), 100: at_least(0.5, stretch=0.65)}
"""Against the bare disk, by batch."""
PAYLOAD = bytes(range(256)) * 4
ROUNDS = 9
COMMITS = {1: 200, 100: 20}
THOUSANDS, OF_EACH_THREAD, THREADS = 10, 32, 64


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


def rate(transactions: int, work: Callable[[], object]) -> float:
    """Return how many transactions a second `work` carries."""
    began = time.perf_counter()
    work()
    return transactions / (time.perf_counter() - began)


def measure(bench: Bench) -> None:
    """All in one directory, so on one disk."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        log = Log.open(Path(here, "log"), source_id="bench")
        environment = lmdb.open(str(Path(here, "lmdb")), map_size=1 << 30)
        bare = BareDisk(Path(here, "bare"))
        growing = os.open(Path(here, "growing"), os.O_RDWR | os.O_CREAT)
        ready = [fragment(number) for number in range(1000)]
        count = end = 0

        def commit(commits: int, batch: int) -> None:
            for at in range(commits):
                if batch == 1:
                    log.append(ready[at])
                else:
                    log.append_many(ready[:batch])
                log.commit()

        def ours(commits: int, batch: int) -> float:
            return rate(commits * batch, lambda: commit(commits, batch))

        def written(batch: int) -> int:
            """Return how many bytes a commit of ours writes into the log."""
            before = sum(segment.bytes for segment in log.segments())
            commit(1, batch)
            return sum(segment.bytes for segment in log.segments()) - before

        def lmdb_commits(commits: int, batch: int) -> float:
            nonlocal count
            rows = [(number.to_bytes(8, "big"), PAYLOAD) for number in range(count, count + commits * batch)]
            count += len(rows)

            def put() -> None:
                for at in range(0, len(rows), batch):
                    with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                        cursor.putmulti(rows[at : at + batch], append=True)

            return rate(commits * batch, put)

        def grow(commits: int, size: int, sync: Callable[[int], None]) -> None:
            nonlocal end
            raw = os.urandom(size)
            for _ in range(commits):
                end += os.pwrite(growing, raw, end)
                sync(growing)

        def threads(many: int, each: int) -> tuple[float, float]:
            """Return transactions a second, and how many each sync served."""
            ready_to_go = threading.Barrier(many + 1)

            def work() -> None:
                ready_to_go.wait()
                commit(each, 1)

            running = [threading.Thread(target=work) for _ in range(many)]
            for one in running:
                one.start()
            syncs = log.status().syncs

            def go() -> None:
                ready_to_go.wait()
                for one in running:
                    one.join()

            return rate(many * each, go), many * each / (log.status().syncs - syncs)

        for batch, commits in COMMITS.items():
            commit(1, batch)
            size = written(batch)
            bench.compare(
                f"batch {batch} against the bare disk",
                ours=lambda: ours(commits, batch),  # noqa: B023
                peer=lambda: rate(commits * batch, lambda: bare.write(commits, size)),  # noqa: B023
                unit="tx/s",
                must=MUSTS[batch],
                rounds=ROUNDS,
            )
            bench.compare(
                f"a file that grows, batch {batch}, against the bare disk",
                ours=lambda: rate(commits * batch, lambda: grow(commits, size, os.fdatasync)),  # noqa: B023
                peer=lambda: rate(commits * batch, lambda: bare.write(commits, size)),  # noqa: B023
                unit="tx/s",
                rounds=ROUNDS,
            )
            bench.compare(
                f"batch {batch} against LMDB",
                ours=lambda: ours(commits, batch),  # noqa: B023
                peer=lambda: lmdb_commits(commits, batch),  # noqa: B023
                unit="tx/s",
                rounds=ROUNDS,
            )
        thousand = written(1000)
        bench.compare(
            "batch 1,000 against sequential write + fsync",
            ours=lambda: ours(THOUSANDS, 1000),
            peer=lambda: rate(THOUSANDS * 1000, lambda: grow(THOUSANDS, thousand, os.fsync)),
            unit="tx/s",
            must=at_least(0.8, stretch=1.0),
            rounds=ROUNDS,
        )
        served: list[float] = []

        def many() -> float:
            found, each = threads(THREADS, OF_EACH_THREAD)
            served.append(each)
            return found

        bench.compare(
            f"{THREADS} threads against one",
            ours=many,
            peer=lambda: threads(1, COMMITS[1])[0],
            unit="tx/s",
            must=at_least(3, stretch=6),
            rounds=ROUNDS,
        )
        bench.add(f"{THREADS} threads, commits a sync", ours=served, unit="", must=at_least(16))
        log.close()
        environment.close()
        bare.close()
        os.close(growing)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
