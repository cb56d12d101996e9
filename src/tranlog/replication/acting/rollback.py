"""The data of rollbacks: the removed operations, newest first, as lines of JSON in `rollback/NUMBER`.

Owns that folder of a log's directory, and the emptying of a log that has nothing in common with the group's. The rules
order the steps, so the data is durable before the mark abandons anything. The hard idea: a file gets its name when it
is complete, and its first line says for which rollback it is. So a file that a crash interrupted is made again under
the same number, and a complete file is not written twice.

Source: tokumx-replication, "Rollback"; docs/format.md, "rollback/".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby
from typing import Final

import msgspec

from tranlog.change import Payload
from tranlog.clock import Clock
from tranlog.disk import OS_DISK, Disk, DiskFile
from tranlog.errors import DiskFailedError
from tranlog.ids import Gtid, Seqno, segment_number
from tranlog.log.files.commit_point import COMMIT_NAME
from tranlog.log.files.directory import join, storage_error, storing, take_lock
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.files.positions import POSITIONS_NAME
from tranlog.log.reading.text import ChangeJson, change_json
from tranlog.log.records.spill import SPILL_TABLE_NAME, spill_number
from tranlog.log.writing.member import MemberLog
from tranlog.payload import encode
from tranlog.replication.rules.syncup import Going, Saved, rollback_id, saved_rows

ROLLBACK_DIR: Final = "rollback"
_NEW: Final = ".new"
_WRITE_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 4096
NOOP: Final = ChangeJson(op="NOOP", schema="")
"""The operation of a transaction without one."""
_DECODE = msgspec.json.Decoder(Saved).decode


class SavedHead(msgspec.Struct, frozen=True):
    """The first line of a file: the rollback for which it is."""

    rid: int
    matchpoint: Gtid
    last: Gtid


def save(log: MemberLog, matchpoint: Gtid, last: Gtid, clock: Clock) -> int:
    """Save what comes after `matchpoint` up to `last`, the end of the log; return the rollback's number.

    Durable when this returns. A transaction is held in memory at a time. Raises DiskFullError, DiskFailedError and
    LogUnreadableError (nothing was abandoned), and what reading the log raises.
    """
    disk, folder = log.disk, join(log.path, ROLLBACK_DIR)
    with storing(folder):
        disk.make_dir(folder)
        disk.sync_dir(log.path)
        heads = {head.rid: (head.matchpoint, head.last) for head in _heads(folder, disk)}
        rid = rollback_id(heads, matchpoint, last)
        if rid not in heads:
            lines = _lines(log, SavedHead(rid, matchpoint, last), clock.now_ms())
            with closing(disk.open(join(folder, f"{rid}{_NEW}"), write=True, create=True)) as file:
                file.truncate(0)
                at = 0
                for piece in lines:
                    file.pwrite(piece, at)
                    at += len(piece)
                file.sync()
            disk.rename(join(folder, f"{rid}{_NEW}"), join(folder, str(rid)))
            disk.sync_dir(folder)
    return rid


def _lines(log: MemberLog, head: SavedHead, time: int) -> Iterator[bytes]:
    """Yield the file's bytes, in pieces."""
    piece = msgspec.json.encode(head) + b"\n"
    for row in saved_rows(_newest_first(log, head), head.rid, time):
        piece += msgspec.json.encode(row) + b"\n"
        if len(piece) >= _WRITE_BYTES:
            yield piece
            piece = b""
    yield piece


def _newest_first(log: MemberLog, head: SavedHead) -> Iterator[Going]:
    """Yield the transactions that go, with their operations in order."""
    with log.cursor() as cursor:
        for seqno in range(head.last.seqno, head.matchpoint.seqno, -1):
            cursor.seek(Seqno(seqno))
            transaction = cursor.next()
            if transaction is not None:
                changes = list(transaction.changes())
                ops: list[tuple[object, bytes]] = [
                    (change_json(one), encode(Payload(changes=(one,)))) for one in changes
                ]
                header = transaction.header
                yield header.gtid, header.event_id, ops or [(NOOP, b"")]


def _heads(folder: str, disk: Disk) -> Iterator[SavedHead]:
    for name in disk.list_dir(folder):
        if name.isdecimal():
            with closing(disk.open(join(folder, name))) as file:
                line = file.pread(_HEAD_BYTES, 0).partition(b"\n")[0]
            try:
                yield msgspec.json.decode(line, type=SavedHead)
            except msgspec.DecodeError as exc:
                why = f"its first line does not say which rollback it is for ({exc}); move it away"
                raise DiskFailedError(path=join(folder, name), why=why) from exc


class SavedRollback(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback: what it abandoned came after `matchpoint`, up to `last`. `time`: when, ms since 1970.

    `back`: how many of the transactions are in the log again. Another node had them, too, and became primary before
    anything later was committed.
    """

    rid: int
    matchpoint: Gtid
    last: Gtid
    time: int
    transactions: int
    operations: int
    back: int


class SavedTransaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A transaction that was rolled back, whole: `ops` for people, `payloads` to commit it again, in order."""

    gtid: str
    event_id: str
    ops: list[object]
    payloads: list[bytes]


def saved_rollbacks(path: str, disk: Disk = OS_DISK) -> list[int]:
    """Return the numbers of the rollbacks that the log at `path` has saved, in order. Raises OSError."""
    folder = join(path, ROLLBACK_DIR)
    return sorted([int(name) for name in disk.list_dir(folder) if name.isdecimal()] if disk.exists(folder) else [])


def read_rollback(path: str, rid: int, is_back: Callable[[Gtid], bool], disk: Disk = OS_DISK) -> SavedRollback:
    """Return a summary of one rollback; `is_back`: whether the log holds a transaction. Raises as
    `read_operations`, and what `is_back` raises."""
    folder = join(path, ROLLBACK_DIR)
    (head,) = [one for one in _heads(folder, disk) if one.rid == rid]
    time, operations, gtids = 0, 0, set[Gtid]()
    for one in read_operations(path, rid, disk):
        time, operations = one.time, operations + 1
        gtids.add(one.gtid)
    return SavedRollback(
        rid=rid,
        matchpoint=head.matchpoint,
        last=head.last,
        time=time,
        transactions=len(gtids),
        operations=operations,
        back=sum(map(is_back, gtids)),
    )


def read_operations(path: str, rid: int, disk: Disk = OS_DISK) -> Iterator[Saved]:
    """Yield what one rollback saved, newest first. Raises OSError, DiskFailedError for what is not such a file."""
    name = join(join(path, ROLLBACK_DIR), str(rid))
    with closing(disk.open(name)) as file:
        for at, line in _file_lines(file):
            if at:
                yield _saved(line, name, at)


def read_transactions(path: str, rid: int, disk: Disk = OS_DISK) -> Iterator[SavedTransaction]:
    """Yield the transactions that one rollback saved, oldest first, without those that changed nothing.

    Raises as `read_operations`. A transaction is held in memory at a time.
    """
    name = join(join(path, ROLLBACK_DIR), str(rid))
    with closing(disk.open(name)) as file:
        places = [(at, len(line)) for at, line in _file_lines(file) if at]
        oldest_first = (_saved(file.pread(size, at), name, at) for at, size in reversed(places))
        for _, run in groupby(oldest_first, key=lambda one: one.gtid):
            found = [one for one in run if one.payload]
            if found:
                yield SavedTransaction(
                    gtid=found[0].gtid_string,
                    event_id=found[0].event_id,
                    ops=[one.op for one in found],
                    payloads=[one.payload for one in found],
                )


def discard(path: str, rid: int, disk: Disk = OS_DISK) -> None:
    """Delete what one rollback saved, durably. Raises OSError."""
    folder = join(path, ROLLBACK_DIR)
    disk.unlink(join(folder, str(rid)))
    disk.sync_dir(folder)


def _file_lines(file: DiskFile) -> Iterator[tuple[int, bytes]]:
    """Yield each line of a file, with its offset."""
    at, read, rest = 0, 0, b""
    while piece := file.pread(_WRITE_BYTES, read):
        read += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield at, line
            at += len(line) + 1


def _saved(line: bytes, name: str, at: int) -> Saved:
    try:
        return _DECODE(line)
    except msgspec.DecodeError as exc:
        raise DiskFailedError(path=name, why=f"the line at byte {at} is no operation ({exc}); move it away") from exc


def empty_log(path: str, disk: Disk) -> None:
    """Remove every record of a closed log, all of which was saved: nothing of it is in the group's log.

    Removes from the end, so that a crash leaves a log that ends earlier, which is rolled back again. Raises
    LogLockedError, DiskFullError, DiskFailedError, LogUnreadableError.
    """
    lock = take_lock(path, disk)
    try:
        names = disk.list_dir(path)
        segments = sorted([name for name in names if segment_number(name) is not None], reverse=True)
        spill = [name for name in names if spill_number(name) is not None]
        # The positions file and the index say how far the log went, and the opening would miss it.
        for name in (POSITIONS_NAME, INDEX_NAME, SPILL_TABLE_NAME, COMMIT_NAME, *segments, *spill):
            if disk.exists(join(path, name)):
                disk.unlink(join(path, name))
                disk.sync_dir(join(path, name).rpartition("/")[0])
    except OSError as exc:
        raise storage_error(exc, path) from exc
    finally:
        lock.release()
