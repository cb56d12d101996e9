"""What a rollback keeps: the operations that go, newest first, as lines of JSON in `rollback/NUMBER`.

Owns that folder of a log's directory, and the emptying of a log that has nothing in common with the group's. That it is
durable before the mark abandons anything is the order of the steps, which the rules name. The hard idea: a file gets
its name when it is whole, and its first line says for which rollback it is; so one that a crash cut off is made again
under the same number, and one that is whole is not written twice.

Source: tokumx-replication, "Rollback"; docs/format.md, "rollback/".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import msgspec

from tranlog.clock import Clock
from tranlog.disk import Disk
from tranlog.errors import DiskFailedError
from tranlog.ids import Gtid, Seqno, segment_number
from tranlog.log.files.commit_point import COMMIT_NAME
from tranlog.log.files.directory import join, storage_error, take_lock
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.files.positions import POSITIONS_NAME
from tranlog.log.reading.text import ChangeJson, change_json
from tranlog.log.records.spill import SPILL_TABLE_NAME, spill_number
from tranlog.log.writing.member import MemberLog
from tranlog.replication.rules.syncup import Saved, rollback_id, saved_rows

ROLLBACK_DIR: Final = "rollback"
_NEW: Final = ".new"
_WRITE_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 4096
NOOP: Final = ChangeJson(op="NOOP", schema="")
"""The operation of a transaction without one."""


class SavedHead(msgspec.Struct, frozen=True):
    """The first line of a file: which rollback it is for."""

    rid: int
    matchpoint: Gtid
    last: Gtid


def save(log: MemberLog, matchpoint: Gtid, last: Gtid, clock: Clock) -> int:
    """Save what comes after `matchpoint` up to `last`, the end of the log; return the rollback's number.

    Durable when this returns. A transaction is held in memory at a time. Raises DiskFullError, DiskFailedError and
    LogUnreadableError (nothing was abandoned), and what reading the log raises.
    """
    disk, folder = log.disk, join(log.path, ROLLBACK_DIR)
    try:
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
    except OSError as exc:
        raise storage_error(exc, folder) from exc
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


def _newest_first(log: MemberLog, head: SavedHead) -> Iterator[tuple[Gtid, Sequence[object]]]:
    """Yield the transactions that go, with their operations in order."""
    with log.cursor() as cursor:
        for seqno in range(head.last.seqno, head.matchpoint.seqno, -1):
            cursor.seek(Seqno(seqno))
            transaction = cursor.next()
            if transaction is not None:
                ops = [change_json(change) for change in transaction.changes()]
                yield transaction.header.gtid, ops or [NOOP]


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


def read_saved(path: str, disk: Disk) -> Iterator[Saved]:
    """Yield what the log at `path` has saved in all its rollbacks, in their order. Raises OSError."""
    folder = join(path, ROLLBACK_DIR)
    names = [name for name in disk.list_dir(folder) if name.isdecimal()] if disk.exists(folder) else []
    for name in sorted(names, key=int):
        with closing(disk.open(join(folder, name))) as file:
            lines = file.pread(file.size(), 0).splitlines()[1:]
        for line in lines:
            yield msgspec.json.decode(line, type=Saved)


def empty_log(path: str, disk: Disk) -> None:
    """Remove every record of a log that is closed, and was saved: nothing of it is in the group's.

    From the back, so that a crash leaves a log that ends earlier, which is rolled back in its turn. Raises
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
