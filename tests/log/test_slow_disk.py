"""A disk that takes a second per sync: syncs are shared, writers wait, memory stays bounded, order is kept.

No second passes here: a gate holds each sync for as long as the test wants.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable

from fix_log import contents, make_fragment, open_log, segment_names
from tranlog.log.writing.log import Log
from tranlog.testing.disk import SimDisk

WRITERS = 24
EACH = 5


class SlowSyncs:
    """Holds each sync of a segment until `let`; counts those under way."""

    def __init__(self, disk: SimDisk) -> None:
        self.begun = 0
        self._go_on = threading.Semaphore(0)
        self.over = False
        disk.before_sync = self._wait

    def _wait(self, path: str) -> None:
        if "thl.data" in path and not self.over:
            self.begun += 1  # one at a time
            assert self._go_on.acquire(timeout=60)

    def let_one(self) -> None:
        self._go_on.release()

    def end(self) -> None:
        self.over = True
        self._go_on.release()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0)


def waiting(log: Log) -> int:
    return len(log._steps.changed._waiters) + len(log._steps.commits)  # type: ignore[attr-defined]


def test_writers_share_syncs_and_wait_for_theirs() -> None:
    """Each transaction costs its writer at most the running sync and its own; a sync serves all who came before it."""
    disk = SimDisk()
    log = open_log(disk)
    syncs = SlowSyncs(disk)
    before = disk.counts["sync"]
    acknowledged = [0] * WRITERS

    def write(number: int) -> None:
        for turn in range(EACH):
            seqno = log.append(make_fragment(f"{number}/{turn}")).seqno
            assert log.commit() >= seqno
            assert log.durable_seqno >= seqno, "acknowledged before it was durable"
            acknowledged[number] += 1

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    for thread in threads:
        thread.start()

    def let_a_sync_run(after: int) -> bool:
        """Let the sync end that follows `after` others; whether there was one."""
        until(lambda: syncs.begun > after or sum(acknowledged) == WRITERS * EACH)
        if syncs.begun == after:
            return False
        # One leads the sync; all others wait, with one transaction each.
        until(lambda: waiting(log) >= sum(count < EACH for count in acknowledged) - 1)
        told = sum(acknowledged)
        syncs.let_one()
        until(lambda: sum(acknowledged) > told)
        return True

    rounds = 0
    while let_a_sync_run(rounds):
        rounds += 1
    syncs.end()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert disk.counts["sync"] - before == rounds <= 2 * EACH + 1, "syncs were not shared"
    disk.before_sync = None
    for number in range(WRITERS):
        mine = [one[1] for one in contents(log) if one[1].startswith(f"{number}/")]
        assert mine == [f"{number}/{turn}" for turn in range(EACH)]
    log.close()


def test_who_appends_without_end_is_stopped_by_the_slow_sync() -> None:
    """Back-pressure: behind a running sync there is room for the rest of the segment, and for no more."""
    disk = SimDisk()
    segment_bytes, buffer_bytes = 200_000, 10_000
    log = open_log(disk, segment_bytes=segment_bytes, buffer_bytes=buffer_bytes)
    syncs = SlowSyncs(disk)
    log.append(make_fragment("first"))
    leader = threading.Thread(target=log.commit, daemon=True)
    leader.start()
    until(lambda: syncs.begun == 1)
    longest = 0
    appended = 0

    def append() -> None:
        nonlocal longest, appended
        while appended < 1_000:
            log.append(make_fragment(f"e{appended}", bytes(1_000)))
            longest = max(longest, len(log._pending))
            appended += 1

    writer = threading.Thread(target=append, daemon=True)
    writer.start()
    until(lambda: waiting(log) == 1)
    assert appended < segment_bytes / 1_000 + 1
    assert len(segment_names(disk)) == 1 and log.durable_seqno == 0
    assert longest < buffer_bytes + 1_200, "what is not written yet grew"
    syncs.end()
    leader.join(60)
    writer.join(60)
    assert log.commit() == 1_001
    assert longest < buffer_bytes + 1_200
    assert [one[1] for one in contents(log)] == ["first", *(f"e{n}" for n in range(1_000))]
    log.close()


def test_memory_does_not_grow_with_what_waits_for_a_sync() -> None:
    """What was appended and not yet synced is the file system's, not ours."""
    disk = SimDisk()
    log = open_log(disk, buffer_bytes=10_000)
    log.append(make_fragment("warm", bytes(10_000)))
    log.commit()
    file = log._end.journal.file
    written = 0

    class Nowhere:
        """A file that takes everything and keeps nothing, so that only the log's own memory counts."""

        def pwrite(self, raw: bytes, offset: int) -> None:
            nonlocal written
            written += len(raw)

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

    log._end.journal.file = Nowhere()  # type: ignore[assignment]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_500):
            log.append(make_fragment("e", bytes(4_000)))
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert written > 5_000_000
    assert grown < 500_000
    log._end.journal.file = file
