"""How long a log of 1 GB takes to open for writing, closed cleanly or killed, and to find a seqno in.

The log is made once, in ten segments of 100 MB; it is in the system's cache. Opening is timed as `Log.open` does it:
with the new epoch's no-op and the sync behind it, which on a slow or shared disk is most of it; what the process itself
computes is a row of its own. A kill is a child that ends without closing. A seek is a cursor's, to random seqnos,
against walking the headers of one segment.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from frame import Bench, Question, at_least, at_most, run

from tranlog.change import Fragment
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log, LogReader

QUESTION = Question(
    name="open",
    text="How long does it take to open a log of 1 GB, and to find a transaction in it?",
    peer="none for opening, it is absolute, warm cache; for a seek: walking the headers of one segment",
)
SEGMENTS = 10
BYTES = 1_000_000_000
PAYLOAD = bytes(range(256)) * 32


def fragment(number: int) -> Fragment:
    """Return a transaction of 8 KB."""
    return Fragment(
        source_id="bench",
        event_id=f"0-1-{number}",
        shard_id="shop",
        tstamp=1_800_000_000_000,
        tables=(("shop", "orders"),),
        payload=PAYLOAD,
    )


def kill_a_writer(path: Path) -> None:
    """Commit from a child that then ends as kill -9 ends one."""
    child = os.fork()
    if child == 0:
        log = Log.open(path, source_id="bench")
        for number in range(100):
            log.append(fragment(number))
        log.commit()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def measure(bench: Bench) -> None:
    """Make the log, then open it again and again."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        path = Path(here, "log")
        with Log.open(path, source_id="bench") as log:
            number = 0
            while len(log.segments()) < SEGMENTS or number * len(PAYLOAD) < BYTES:
                for _ in range(2_000):
                    log.append(fragment(number))
                    number += 1
                log.commit(sync=False)
        last = log.last_seqno

        def opening() -> tuple[float, float]:
            computed, began = time.process_time(), time.perf_counter()
            log = Log.open(path, source_id="bench")
            took, computed = time.perf_counter() - began, time.process_time() - computed
            log.close()
            return took * 1000, computed * 1000

        def after_a_kill() -> tuple[float, float]:
            kill_a_writer(path)
            return opening()

        rounds = bench.rounds(5)
        for name, work, must in (
            ("open 1 GB, closed cleanly", opening, at_most(2, stretch=1)),
            ("open 1 GB, after a kill", after_a_kill, at_most(10, stretch=5)),
        ):
            work()
            figures = [work() for _ in range(rounds)]
            bench.add(name, ours=[took for took, _ in figures], unit="ms", must=must)
            bench.add(f"{name}: CPU", ours=[computed for _, computed in figures], unit="ms")
        reader = LogReader.open(path)
        rng = random.Random(1)
        cursor = reader.cursor()

        def seeks() -> float:
            wanted = [Seqno(rng.randrange(last)) for _ in range(500)]
            began = time.perf_counter()
            for seqno in wanted:
                cursor.seek(seqno)
                header = cursor.next_header()
                assert header is not None and header.seqno == seqno
            return len(wanted) / (time.perf_counter() - began)

        def walks() -> float:
            with reader.cursor() as walking:
                walking.seek(Seqno(0))
                began = time.perf_counter()
                for _ in range(last // SEGMENTS):
                    walking.next_header()
                return 1 / (time.perf_counter() - began)

        bench.compare(
            "random seek in 1 GB against a scan of one segment",
            ours=seeks,
            peer=walks,
            unit="1/s",
            must=at_least(500, stretch=5000),
        )
        cursor.close()
        reader.close()


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
