"""What a transaction of 1 GB in flight does to those who commit small ones meanwhile.

A large one is in flight in two ways. *Open* (`Log.begin`): it spills, and has no place in the log until it commits, so
the small ones beside it are durable; its bytes and their syncs go to one disk. *In its place* (`Log.allocate`,
`write`): behind an unfinished transaction nothing becomes durable, by design, and a sync would have to carry the
gigabyte; so the small ones are made visible, without a sync. What is compared is what a commit costs its caller while
disk and interpreter are busy with the large one, and while they are not. The pause between two commits is not in it,
nor how late the system ends that pause. Before an idle phase everything that was written goes to the disk, so that it
is idle, and none comes after a large one. Where others want the processors too, their time slices show: the one who
writes is put aside holding the file or the interpreter.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frame import Bench, Question, at_most, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions

QUESTION = Question(
    name="inflight",
    text="What is the p99 of small commits while a transaction of 1 GB is being written beside them?",
    peer="the same commits while nothing else is written; meant for a quiet machine",
)
LARGE_BYTES = 1_000_000_000
FRAGMENT_BYTES = 1 << 20
SMALL = bytes(1_000)
IDLE_COMMITS = {False: 4_000, True: 3_000}
"""Of those that do not sync, and of those that do: as many as there are beside a large one, or more."""
PAUSE_S = 0.0005
ROUNDS = 5


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


def p99_of(log: Log, until: threading.Event | None, *, sync: bool) -> float:
    """Commit small transactions, so many or until told; return the p99 in milliseconds."""
    taken: list[float] = []
    while (len(taken) < IDLE_COMMITS[sync]) if until is None else (not until.is_set() or len(taken) < 100):
        began = time.perf_counter()
        log.append(fragment(f"small {len(taken)}", SMALL))
        log.commit(sync=sync)
        taken.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    return sorted(taken)[len(taken) * 99 // 100]


def open_and_spilling(log: Log, pieces: list[Fragment]) -> None:
    """Write a large transaction through the interface of those that are open while they grow, durable at the end."""
    with log.begin() as large:
        for piece in pieces:
            large.add(piece)


def in_its_place(log: Log, pieces: list[Fragment]) -> None:
    """Write it into a place that was given out before, and make it visible."""
    log.allocate(pieces).complete(sync=False)


def round_of(bench: Bench, write: Callable[[Log, list[Fragment]], None], *, sync: bool) -> tuple[float, float]:
    """Return p99 while the large one is written, and with nothing beside."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        options = LogOptions(segment_bytes=1_500_000_000, spill_above=1_100_000_000)
        with Log.open(Path(here, "log"), source_id="bench", options=options) as log:
            os.sync()
            idle = p99_of(log, None, sync=sync)
            count = LARGE_BYTES // FRAGMENT_BYTES
            content = bytes(range(256)) * (FRAGMENT_BYTES // 256)
            pieces = [fragment("large", content, last=number == count - 1) for number in range(count)]
            with ThreadPoolExecutor(1) as pool:
                written = threading.Event()
                began = time.perf_counter()
                large = pool.submit(write, log, pieces)
                large.add_done_callback(lambda _: written.set())
                busy = p99_of(log, written, sync=sync)
                large.result()
            took = time.perf_counter() - began
            bench.say(f"1 GB {write.__name__}: {took:.1f} s; p99 {busy:.2f} ms, idle {idle:.2f} ms")
    return busy, idle


def measure(bench: Bench) -> None:
    """A log of its own for each round."""
    for name, write, sync in (
        ("durable commits beside 1 GB, open and spilling, p99", open_and_spilling, True),
        ("visible commits beside 1 GB, in its place, p99", in_its_place, False),
    ):
        rounds = [round_of(bench, write, sync=sync) for _ in range(bench.rounds(ROUNDS))]
        bench.add(
            name,
            ours=[busy for busy, _ in rounds],
            anchor=[idle for _, idle in rounds],
            unit="ms",
            must=at_most(3),
        )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
