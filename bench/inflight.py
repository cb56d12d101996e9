"""What a transaction of 1 GB in flight does to those who commit small ones meanwhile.

One thread writes a large transaction into its place (`Log.allocate`, `write`) and keeps it open until the round is
over; another commits small ones, each made visible, without a sync: behind an unfinished transaction nothing becomes
durable, by design, and a sync would have to carry the gigabyte. So what is compared is what a commit costs its caller
while the disk and the interpreter are busy with the large one, and while they are not. Where others want
the processors too, their time slices show: the one who writes is put aside holding the file or the interpreter.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from frame import Bench, Question, at_most, run

from tranlog.change import Fragment
from tranlog.log.log import Log, LogOptions

QUESTION = Question(
    name="inflight",
    text="What is the p99 of small commits while a transaction of 1 GB is being written beside them?",
    peer="the same commits while nothing else is written; meant for a quiet machine",
)
LARGE_BYTES = 1_000_000_000
FRAGMENT_BYTES = 1 << 20
SMALL = bytes(1_000)
IDLE_COMMITS = 2_000
PAUSE_S = 0.0005
ROUNDS = 3


def fragment(event_id: str, payload: bytes, *, last: bool = True) -> Fragment:
    """Return a fragment of a transaction."""
    return Fragment(
        source_id="bench",
        event_id=event_id,
        shard_id="shop",
        tstamp=1_800_000_000_000,
        tables=(("shop", "orders"),),
        payload=payload,
        last=last,
    )


def p99_of(log: Log, until: threading.Event | None) -> float:
    """Commit small transactions, so many or until told; return the p99 in milliseconds."""
    taken: list[float] = []
    while (len(taken) < IDLE_COMMITS) if until is None else (not until.is_set() or len(taken) < 100):
        began = time.perf_counter()
        log.append(fragment(f"small {len(taken)}", SMALL))
        log.commit(sync=False)
        taken.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    return sorted(taken)[len(taken) * 99 // 100]


def round_of(bench: Bench) -> tuple[float, float]:
    """Return p99 while the large one is written, and with nothing beside."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        options = LogOptions(segment_bytes=1_500_000_000, spill_above=1_100_000_000)
        with Log.open(Path(here, "log"), source_id="bench", options=options) as log:
            idle = p99_of(log, None)
            count = LARGE_BYTES // FRAGMENT_BYTES
            content = bytes(range(256)) * (FRAGMENT_BYTES // 256)
            pieces = [fragment("large", content, last=number == count - 1) for number in range(count)]
            large = log.allocate(pieces)
            written = threading.Event()

            def write() -> None:
                try:
                    large.write()
                finally:
                    written.set()

            thread = threading.Thread(target=write)
            began = time.perf_counter()
            thread.start()
            busy = p99_of(log, written)
            thread.join()
            bench.say(f"1 GB written in {time.perf_counter() - began:.1f} s; p99 {busy:.2f} ms, idle {idle:.2f} ms")
            large.complete(sync=False)
    return busy, idle


def measure(bench: Bench) -> None:
    """A log of its own for each round."""
    rounds = [round_of(bench) for _ in range(bench.rounds(ROUNDS))]
    bench.add(
        "small commits beside 1 GB, p99",
        ours=[busy for busy, _ in rounds],
        anchor=[idle for _, idle in rounds],
        unit="ms",
        must=at_most(3),
    )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
