"""What a seek pays for asking where a seqno lies: the lock of the segments' row, and a bucket that is looked up anew.

Eight threads of the writer's process seek at random in a log of 60 MB while it commits small transactions. By turns
they ask as `Segments.locate` does, which takes a lock that the writer takes as well at each commit, and in the same
lines without it. Then the look-ups alone, by one thread: the index's own, which need no lock since what they walk over
is replaced and not changed, against a reader's object that keeps the bucket it used last, as the ancestor's scanner.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from frame import Bench, Question, at_least, at_most, cpu_of, run

from tranlog.change import Fragment
from tranlog.ids import Seqno
from tranlog.log.files.segments import Segments
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import Place
from tranlog.log.writing.log import Log, LogOptions

QUESTION = Question(
    name="seek",
    text="What do the lock and the look-up cost a seek, of eight threads beside a writer that commits?",
    peer="the same without the lock; a reader's object that keeps its bucket",
)
RECORDS = 60_000
PAYLOAD = bytes(1_000)
READERS = 8
SEEKS = 1_000
LOOK_UPS = 50_000


def fragment(number: int) -> Fragment:
    """Return a transaction."""
    return Fragment(
        source_id="bench",
        event_id=f"e{number}",
        shard_id="shop",
        tstamp=1_800_000_000_000,
        tables=(("shop", "orders"),),
        payload=PAYLOAD,
    )


def locate_without_lock(segments: Segments, seqno: Seqno) -> Place | None:
    """What `Segments.locate` does for the writer's process, without its lock."""
    start = segments._row.start_of(seqno)
    known = segments.index.mappings.below(seqno)
    return known if start is not None and known is not None and known.lsn > start.lsn else start


def seek_all(log: Log, seed: int) -> float:
    """Seek at random; return the CPU seconds of this thread."""
    rng = random.Random(seed)
    with log.cursor() as cursor:
        began = time.thread_time()
        for _ in range(SEEKS):
            cursor.seek(Seqno(rng.randrange(RECORDS)))
            assert cursor.next_header() is not None
        return time.thread_time() - began


def seeks_beside_commits(log: Log) -> tuple[float, float]:
    """Return the seeks of all readers per CPU second of theirs, and per second, while the log commits."""
    done = threading.Event()

    def commit() -> None:
        while not done.is_set():
            log.append(fragment(0))
            log.commit(sync=False)
            time.sleep(0.0005)

    with ThreadPoolExecutor(READERS + 1) as pool:
        writer = pool.submit(commit)
        began = time.perf_counter()
        cpu = sum(pool.map(lambda seed: seek_all(log, seed), range(READERS)))
        took = time.perf_counter() - began
        done.set()
        writer.result()
    return READERS * SEEKS / cpu, READERS * SEEKS / took


class Keeping:
    """A reader's way through the index that keeps its bucket."""

    def __init__(self, index: SeqnoIndex) -> None:
        self._index = index
        self._row = index.mappings._row
        self._bucket = index.mappings.buckets[0]
        self._end = -1

    def lte(self, seqno: Seqno) -> Place | None:
        """As `SeqnoIndex.lte`."""
        index, bucket = self._index, self._bucket
        if seqno not in index.range:
            return None
        if not bucket.first <= seqno < self._end or self._row is not index.mappings._row:
            row = self._row = index.mappings._row
            at = row.owner(seqno)
            self._bucket = bucket = row.buckets[at]
            self._end = row.firsts[at + 1] if at + 1 < len(row.firsts) else index.prefix + 1
        return bucket.lte(seqno)


def measure(bench: Bench) -> None:
    """One log, by turns."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        options = LogOptions(segment_bytes=10_000_000)
        with Log.open(Path(here, "log"), source_id="bench", options=options) as log:
            for number in range(RECORDS):
                log.append(fragment(number))
            log.commit()
            ways = {"with": Segments.locate, "without": locate_without_lock}
            figures: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
            for number in range(bench.rounds()):
                for name in sorted(ways, reverse=number % 2 == 0):
                    Segments.locate = ways[name]  # type: ignore[method-assign, assignment]
                    figures[name].append(seeks_beside_commits(log))
            Segments.locate = ways["with"]  # type: ignore[method-assign, assignment]
            for at, unit in ((0, "seeks/CPU s"), (1, "seeks/s")):
                bench.add(
                    f"{READERS} readers beside commits, with the lock against without, {unit}",
                    ours=[one[at] for one in figures["with"]],
                    anchor=[one[at] for one in figures["without"]],
                    unit=unit,
                    must=at_least(0.95) if at == 0 else None,
                )
            asked = [Seqno(one) for one in random.Random(1).choices(range(RECORDS), k=LOOK_UPS)]
            segments, index = log._end.segments, log._end.segments.index

            def each(look: Callable[[Seqno], object], seqnos: list[Seqno]) -> Callable[[], float]:
                def work() -> None:
                    for seqno in seqnos:
                        look(seqno)

                return lambda: cpu_of(work) / len(seqnos) * 1e9

            bench.compare(
                "asking where, with the lock against without",
                ours=each(segments.locate, asked),
                peer=each(partial(locate_without_lock, segments), asked),
                unit="ns",
            )
            a_seek = [1e9 / rate for rate, _ in figures["with"]]
            locating = [each(segments.locate, asked)() for _ in a_seek]
            bench.add("asking where, of a seek", ours=locating, anchor=a_seek, unit="ns", must=at_most(0.1))
            for order, seqnos in (("at random", asked), ("in order", sorted(asked))):
                bench.compare(
                    f"look-up {order}, the index's own against one that keeps its bucket",
                    ours=each(index.lte, seqnos),
                    peer=each(Keeping(index).lte, seqnos),
                    unit="ns",
                )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
