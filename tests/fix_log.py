"""What the tests of the log share: fragments by the dozen, a log on a disk in memory, and its bytes by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tranlog.change import Fragment, TableName
from tranlog.ids import Gtid
from tranlog.log.files.segment import SegmentReader
from tranlog.log.reading.cursor import Cursor, StoredTransaction
from tranlog.log.records.format import RecordHeader, RotateRecord, SyncRecord
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

PATH = "/log"
HISTORY = b"0123456789abcdef"


def make_fragment(
    event_id: str = "e",
    payload: bytes = b"payload",
    *,
    last: bool = True,
    shard_id: str = "shop",
    source_id: str = "db1",
    tstamp: int = 1_700_000_000_000,
    tables: tuple[TableName, ...] | None = (("shop", "orders"),),
) -> Fragment:
    return Fragment(
        source_id=source_id,
        event_id=event_id,
        shard_id=shard_id,
        tstamp=tstamp,
        tables=tables,
        payload=payload,
        last=last,
    )


@contextmanager
def sync_held(log: Log, disk: SimDisk) -> Iterator[None]:
    """Run the block while the sync of a commit of another thread is under way; return once that is over."""
    running, go_on = threading.Event(), threading.Event()

    def hold_the_first(path: str) -> None:
        if not running.is_set():
            running.set()
            assert go_on.wait(60)

    disk.before_sync = hold_the_first
    leader = threading.Thread(target=log.commit)
    leader.start()
    assert running.wait(60)
    try:
        yield
    finally:
        go_on.set()
        leader.join(60)
    assert not leader.is_alive()


def open_log(disk: SimDisk, *, clock: ManualClock | None = None, **given: Any) -> Log:
    """Open the log on a disk in memory; `given` are LogOptions' fields. Files are as long as what stands in them."""
    given = {"ahead_bytes": 0} | given
    start_after: Gtid | None = given.pop("start_after", None)
    return Log.open(
        PATH,
        source_id="db1",
        options=LogOptions(**given),
        disk=disk,
        clock=ManualClock() if clock is None else clock,
        start_after=start_after,
        history=HISTORY,
    )


def open_reader(disk: SimDisk, *, clock: ManualClock | None = None, checksum: bool = True) -> LogReader:
    return LogReader.open(PATH, disk=disk, clock=ManualClock() if clock is None else clock, checksum=checksum)


def fill(log: Log, count: int, *, size: int = 100, start: int = 0) -> None:
    """Append and commit so many transactions, each with its own payload."""
    for number in range(start, start + count):
        log.append(make_fragment(f"e{number}", make_payload(number, size)))
    log.commit()


def make_payload(number: int, size: int) -> bytes:
    return (f"{number}:".encode() * (size // 2 + 1))[:size]


def append_large(log: Log, event_id: str, parts: Iterable[bytes]) -> None:
    """Append one transaction of several fragments."""
    parts = list(parts)
    for part in parts[:-1]:
        log.append(make_fragment(event_id, part, last=False, shard_id="#UNKNOWN"))
    log.append(make_fragment(event_id, parts[-1]))


def read_all(cursor: Cursor) -> list[StoredTransaction]:
    """Return every transaction that is there now."""
    found = []
    while (transaction := cursor.next()) is not None:
        found.append(transaction)
    return found


def contents(log: Log | LogReader) -> list[tuple[int, str, bytes]]:
    """Return (seqno, event id, joined payloads) of every transaction but the no-ops, each payload checked."""
    with log.cursor() as cursor:
        return [
            (one.header.seqno, one.header.event_id, b"".join(one.payloads()))
            for one in read_all(cursor)
            if not one.is_noop()
        ]


def segment_path(number: int) -> str:
    return f"{PATH}/thl.data.{number:010d}"


def record_starts(disk: SimDisk, number: int) -> list[int]:
    """Return where each record of a segment begins, its header record left out."""
    reader = SegmentReader(disk.open(segment_path(number)), number)
    starts, at = [], 16
    while isinstance(outcome := reader.read(at, verify=True), RecordHeader | SyncRecord | RotateRecord):
        starts.append(at)
        at += outcome.record_length
    return starts


def segment_names(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_dir(PATH) if name.startswith("thl.data.")]


def forget_positions(disk: SimDisk) -> None:
    """Remove the positions file, so that a reader has to scan."""
    if disk.exists(f"{PATH}/positions"):
        disk.unlink(f"{PATH}/positions")


def after_kill(disk: SimDisk) -> SimDisk:
    """Return the disk as a process finds it after kill -9 of the writer: all that was written is there."""
    disk.kill()
    return disk


def after_restart(disk: SimDisk) -> SimDisk:
    """Return the disk as it is after a start of the machine: from now on only what was synced has to be there."""
    disk.restart()
    return disk


def flip(disk: SimDisk, path: str, offset: int, mask: int = 0x01) -> None:
    """Change bits of one byte behind everybody's back."""
    raw = bytearray(disk.content(path))
    raw[offset] ^= mask
    disk.set_content(path, bytes(raw))


@contextmanager
def kept_open(*logs: Log | LogReader) -> Iterator[None]:
    try:
        yield
    finally:
        for log in logs:
            log.close()


def index_threads() -> list[threading.Thread]:
    """Return the threads that store an index, or fill its gaps, now."""
    return [one for one in threading.enumerate() if one.name.startswith("tranlog index of ")]


def await_index() -> None:
    """Wait until the index is stored, and its gaps are filled, as far as a thread is at it."""
    for thread in index_threads():
        thread.join(60)
        assert not thread.is_alive()


def run_threads(*bodies: Callable[[], None]) -> None:
    """Run them all, and fail with what any of them raised."""
    raised: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as exc:
            raised.append(exc)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if raised:
        raise raised[0]
