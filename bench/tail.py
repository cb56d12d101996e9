"""How long from an append to the reader in another process that waits for it.

The writer appends a transaction now and then and makes it visible, without a sync, since a sync is the disk's time; the
reader stands behind the last one and waits. Both read the machine's one monotonic clock; the reader says when each
transaction was in its hands, and the difference is the delay.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from frame import Bench, Question, at_most, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log

QUESTION = Question(
    name="tail",
    text="How long from `commit(sync=False)` of a transaction of 1 KB, 500 a second, until a cursor in another process "
    "returns it?",
    peer="none: an absolute figure, meant for a quiet machine",
)
COUNT = 1_000
WARM_UP = 100
RATE = 500
PAYLOAD = bytes(range(256)) * 4

READER = """
import gc, json, sys, time
from tranlog.log.reading.reader import LogReader
path, count = sys.argv[1], int(sys.argv[2])
with LogReader.open(path) as log, log.cursor() as cursor:
    cursor.seek(log.range().last_seqno + 1)
    print("ready", flush=True)
    gc.disable()
    arrived = []
    for _ in range(count):
        cursor.next(60.0)
        arrived.append(time.perf_counter_ns())
print(json.dumps(arrived))
"""


def delays() -> list[float]:
    """Return milliseconds from each append to its arrival, lowest first."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        path = Path(here, "log")
        log = Log.open(path, source_id="bench")
        count = WARM_UP + COUNT
        with subprocess.Popen(
            [sys.executable, "-c", READER, str(path), str(count)], stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            sent = []
            began = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
                sent.append(time.perf_counter_ns())
                log.append(
                    Fragment(
                        source_id="bench",
                        event_id=f"0-1-{number}",
                        shard_id="shop",
                        tstamp=1_800_000_000_000,
                        tables=(("shop", "orders"),),
                        payload=PAYLOAD,
                    )
                )
                log.commit(sync=False)
            arrived = json.loads(reader.stdout.read())
        log.close()
    return sorted([(at - sent[number]) / 1e6 for number, at in enumerate(arrived)][WARM_UP:])


def measure(bench: Bench) -> None:
    """One reader, in a process of its own for each round."""
    rounds = [delays() for _ in range(bench.rounds())]
    middle = [taken[len(taken) // 2] for taken in rounds]
    bench.add("append to another process, p50", ours=middle, unit="ms", must=at_most(0.25, stretch=0.1))
    late = [taken[len(taken) * 99 // 100] for taken in rounds]
    bench.add("append to another process, p99", ours=late, unit="ms", must=at_most(1, stretch=0.3))


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
