"""Capture on a disk that takes a second per sync: it keeps up by larger batches, in bounded memory, in order.

The clock is the test's: each sync moves it on by a second, each transaction of the source a little.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from tranlog.capture.capture import Capture, CaptureOptions
from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogReader
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SYNC_S = 1.0


class Busy:
    """A source that has a transaction whenever it is asked, so many in all; reading one takes `each_s`."""

    source_id = "busy"

    def __init__(self, clock: ManualClock, count: int, *, each_s: float, size: int = 100) -> None:
        self.clock = clock
        self.count = count
        self.each_s = each_s
        self.payload = b"\x12" * size
        self.at = 0
        self.released: list[int] = []

    def start(self, event_id: str | None) -> None:
        self.at = 0 if event_id is None else int(event_id)

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        while self.at < self.count:
            self.at += 1
            self.clock.advance(self.each_s)
            yield Fragment(
                source_id="busy",
                event_id=str(self.at),
                shard_id="s",
                tstamp=self.clock.now_ms(),
                tables=(),
                payload=self.payload,
            )

    def release(self, event_id: str) -> None:
        self.released.append(int(event_id))

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def slow(disk: SimDisk, clock: ManualClock) -> None:
    def take_a_second(path: str) -> None:
        if "thl.data" in path:
            clock.advance(SYNC_S)

    disk.before_sync = take_a_second


def test_it_keeps_up_with_a_source_that_never_rests() -> None:
    """Batches grow to what a sync takes: half the time at least goes to the source, not a twentieth."""
    clock, disk = ManualClock(), SimDisk()
    source = Busy(clock, 20_000, each_s=0.001)  # 1,000 transactions a second, 20 seconds of them
    with Log.open("/log", source_id="busy", disk=disk, clock=clock) as log:
        slow(disk, clock)
        began = clock.monotonic()
        status = Capture(source, log, clock=clock).catch_up()
        took = clock.monotonic() - began
    assert status.transactions == 20_000
    assert took < 2.2 * 20, "the disk's syncs took more time than the source's transactions"
    batches = [after - before for before, after in zip([0, *source.released], source.released, strict=False)]
    assert max(batches) <= 1_001, "a batch is no longer than a sync, or nothing would show for long"
    with LogReader.open("/log", disk=disk, clock=clock) as reader, reader.cursor() as cursor:
        found = [one.header.event_id for one in iter(cursor.next, None)]
    assert found[1:] == [str(number) for number in range(1, 20_001)]


def test_a_disk_that_is_fast_again_gets_short_batches_again() -> None:
    clock, disk = ManualClock(), SimDisk()
    source = Busy(clock, 5_000, each_s=0.001)
    with Log.open("/log", source_id="busy", disk=disk, clock=clock) as log:
        slow(disk, clock)
        capture = Capture(source, log, clock=clock)
        source.count = 2_000
        capture.catch_up()
        disk.before_sync = None
        source.count = 5_000
        source.released.clear()
        capture.catch_up()
    batches = [after - before for before, after in zip(source.released[1:], source.released[2:], strict=False)]
    assert max(batches) <= 51, "batch_s is 0.05"


def test_a_disk_that_stood_still_for_a_minute_delays_nothing_further() -> None:
    clock, disk = ManualClock(), SimDisk()
    source = Busy(clock, 10_000, each_s=0.001)
    with Log.open("/log", source_id="busy", disk=disk, clock=clock) as log:
        disk.before_sync = lambda path: clock.advance(60)
        Capture(source, log, clock=clock).catch_up()
    batches = [after - before for before, after in zip(source.released, source.released[1:], strict=False)]
    assert max(batches) <= 2_001


def test_a_batch_ends_by_its_bytes_however_slow_the_disk() -> None:
    """What waits for a sync is bounded: capture reads no further, and the source waits."""
    clock, disk = ManualClock(), SimDisk()
    source = Busy(clock, 400, each_s=0.0001, size=10_000)
    options = CaptureOptions(batch_bytes=100_000)
    with Log.open("/log", source_id="busy", disk=disk, clock=clock) as log:
        slow(disk, clock)
        Capture(source, log, options=options, clock=clock).catch_up()
    batches = [after - before for before, after in zip([0, *source.released], source.released, strict=False)]
    assert batches == [10] * 40


def test_memory_does_not_grow_with_what_is_captured() -> None:
    clock, disk = ManualClock(), SimDisk()
    peaks = []
    with Log.open("/log", source_id="busy", disk=disk, clock=clock) as log:
        slow(disk, clock)
        file = log._end.journal.file

        class Nowhere:
            """Takes everything and keeps nothing, so that only capture's and the log's own memory counts."""

            def pwrite(self, raw: bytes, offset: int) -> None:
                pass

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        log._end.journal.file = Nowhere()  # type: ignore[assignment]
        source = Busy(clock, 0, each_s=0.001, size=8_000)
        capture = Capture(source, log, clock=clock)
        for _ in range(3):
            source.count += 500
            tracemalloc.start()
            try:
                capture.catch_up()
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
            source.released.clear()
        log._end.journal.file = file
    assert max(peaks) < 2_000_000, peaks
