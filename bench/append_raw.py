"""What a copy of a log costs that takes records as bytes: verifying and appending them, and finding an epoch's end.

Records of 1 KB come in batches as a feeder sends them, 256 KiB, each committed by a sync. Held against as many bytes
that are copied into a file with the same syncs, by the clock; and by CPU time, which another's load hardly moves,
against the way through fragments: each encoded anew and appended. The halving is over the log's headers, its segments
being in memory.

What an append takes for the running hash is no code of its own that could be left out; so the hash is computed over the
same records once more, from their bytes, and what that takes is subtracted for the rows "without it".
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from frame import Bench, Question, at_least, at_most, cpu_of, run, seconds_of

from tranlog.change import Fragment
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.records.running_hash import fold_span
from tranlog.log.rules.numbering import Numbering
from tranlog.log.rules.raw_records import walk_raw
from tranlog.log.writing.allocation import record_of
from tranlog.log.writing.log import Log, LogOptions

QUESTION = Question(
    name="append_raw",
    text="How fast does a log take records of 1 KB as bytes, and how long does it look for the end of an epoch?",
    peer="as many bytes copied into a file, with as many syncs",
)
PAYLOAD = bytes(range(256)) * 4
BATCH_BYTES = 256 << 10
RECORDS = 20_000
EPOCHS = 16
BEFORE_ALL = Gtid(Epoch(0), Seqno(-1))


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


def batches(count: int) -> Iterator[bytes]:
    """Yield records from seqno 0 on, of so many epochs, as a feeder sends them."""
    held: list[bytes] = []
    for number in range(count):
        gtid = Gtid(Epoch(1 + number * EPOCHS // count), Seqno(number))
        held.append(b"".join(record_of(fragment(number), gtid, 0, checksum=True)))
        if len(held[-1]) * len(held) >= BATCH_BYTES:
            yield b"".join(held)
            held = []
    yield b"".join(held)


@contextmanager
def empty_log() -> Iterator[Log]:
    """Open a log of its own that takes over records."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        with closing(Log.open(Path(here, "log"), source_id="", options=LogOptions(), numbering=Numbering.GIVEN)) as log:
            yield log


Measured = Callable[[Callable[[], object]], float]
"""`seconds_of` or `cpu_of`: opening and closing are not measured."""


def put_raw(ready: list[bytes], measured: Measured) -> float:
    """Put the batches into a new log; return what that took."""

    def put() -> None:
        for raw in ready:
            log.append_raw(raw)
            log.commit()

    with empty_log() as log:
        return measured(put)


def copy(ready: list[bytes]) -> float:
    """Copy the batches into a file; return the seconds."""

    def write() -> None:
        for raw in ready:
            file.write(raw)
            os.fdatasync(file.fileno())

    with tempfile.TemporaryFile(buffering=0) as file:
        return seconds_of(write)


def put_fragments(ready: list[Fragment]) -> float:
    """Append the same as fragments to a log that numbers them itself, a sync for as many; return the CPU seconds."""
    each = BATCH_BYTES // (len(PAYLOAD) + 150)

    def put() -> None:
        for at in range(0, len(ready), each):
            log.append_many(ready[at : at + each])
            log.commit()

    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        with closing(Log.open(Path(here, "log"), source_id="")) as log:
            return cpu_of(put)


def walk(ready: list[bytes]) -> None:
    """Verify the batches and put them nowhere."""
    last = BEFORE_ALL
    for raw in ready:
        runs = walk_raw(raw, last)
        assert isinstance(runs, list)
        last = runs[-1].header.gtid


def fold(ready: list[bytes]) -> None:
    """Compute the running hash over as many records, which are in the processor's cache, as those just written are."""
    raw = ready[0]
    for _ in ready:
        fold_span(raw, 0, len(raw), 0)


def measure(bench: Bench) -> None:
    """Each row in one run."""
    ready, fragments = list(batches(RECORDS)), [fragment(number) for number in range(RECORDS)]
    bench.compare(
        "append_raw",
        ours=lambda: RECORDS / put_raw(ready, seconds_of),
        peer=lambda: RECORDS / copy(ready),
        unit="records/s",
        must=at_least(0.4),
    )
    figures = bench.by_turns(
        {
            "walk": lambda: cpu_of(lambda: walk(ready)) * 1e6 / RECORDS,
            "raw": lambda: put_raw(ready, cpu_of) * 1e6 / RECORDS,
            "fragments": lambda: put_fragments(fragments) * 1e6 / RECORDS,
            "hash": lambda: cpu_of(lambda: fold(ready)) * 1e6 / RECORDS,
        }
    )
    bench.add("CPU: the walk alone, against append_raw", ours=figures["walk"], anchor=figures["raw"], unit="us/record")
    bench.add("CPU: append_raw, against fragments", ours=figures["raw"], anchor=figures["fragments"], unit="us/record")
    for what in ("fragments", "raw"):
        name = "append" if what == "fragments" else "append_raw"
        bench.add(
            f"CPU: {name}, with the running hash against without it",
            ours=[1 / taken for taken in figures[what]],
            anchor=[1 / (taken - hashed) for taken, hashed in zip(figures[what], figures["hash"], strict=True)],
            unit="records/us",
            must=at_least(0.97),
        )
    with empty_log() as log:
        for raw in batches(bench.size(900_000, trying=60_000)):
            log.append_raw(raw)
        log.commit()
        taken = []
        for epoch in range(1, EPOCHS + 1):
            began = time.perf_counter()
            found = log.last_of_epoch(epoch)
            taken.append((time.perf_counter() - began) * 1e3)
            assert found is not None and found.epoch == epoch
        bench.add("the last transaction of an epoch, by halving", ours=taken, unit="ms", must=at_most(5))


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
