"""Clearing a log so that it can never hand out a GTID twice, and where a log without records is to begin.

Owns the mark that a cleared log leaves behind, the order in which its files go, and the choice of a new log's first
position. The hard idea: a target remembers how far it is by seqno and epoch; a log that began again at 0 would make
it skip what it has never seen. So whatever knows a position, the mark or the target, has a say in where to begin.

Source: design/log-format.md, last paragraph; thl-internals, "Clearing Log Files".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from tranlog.clock import Clock, SystemClock
from tranlog.disk import Disk, OsDisk
from tranlog.errors import DiskFailedError, LogLockedError, LogMissingError, LogUnreadableError
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.format import segment_number
from tranlog.log.opening import read_holder
from tranlog.log.positions import HOLDS_DIR, POSITIONS_NAME
from tranlog.log.reader import LogReader
from tranlog.log.segment import LOCK_NAME
from tranlog.log.spill import SPILL_TABLE_NAME, spill_number
from tranlog.target.target import ChannelRow

MARK_NAME: Final = "cleared"
_NUMBER_MAX: Final = (1 << 63) - 1

CAVEATS: Final = (
    "Clear a log only while its source is idle. What was committed there and is not in the log yet may otherwise be "
    "captured twice, or be missed.",
    "Whoever has not read it yet loses what is cleared: a target that is behind cannot catch up from the new log, and "
    "a copy of the log that is promoted later lacks what others still need, backups that were restored among them.",
)
"""What the document warns of, in two sentences for the operator."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a cleared log leaves: the last GTID that it had handed out, and the source's position there."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=_NUMBER_MAX)]
    seqno: Annotated[int, msgspec.Meta(ge=NO_SEQNO, le=_NUMBER_MAX)]
    event_id: str
    cleared_at: int

    @property
    def gtid(self) -> Gtid:
        """The last GTID that was handed out."""
        return Gtid(Epoch(self.epoch), Seqno(self.seqno))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """What a clearing removes: the files, in the order in which they go, and the mark that stays."""

    mark: Mark
    files: tuple[str, ...]
    bytes: int


def begin_after(mark: Mark | None, rows: Iterable[ChannelRow]) -> Gtid | None:
    """Return the position behind which a log without records begins; None: at seqno 0, epoch 1. Pure.

    A channel that has applied nothing counts too: it stands in front of what it will apply first.
    """
    known = [(row.epoch, row.applied_seqno) for row in rows]
    if mark is not None:
        known.append((Epoch(mark.epoch), Seqno(mark.seqno)))
    epoch = max((epoch for epoch, _ in known), default=Epoch(0))
    seqno = max((seqno for _, seqno in known), default=NO_SEQNO)
    return None if (epoch, seqno) == (0, NO_SEQNO) else Gtid(epoch, seqno)


def removal_order(names: Iterable[str]) -> list[str]:
    """Return what of a log directory's files goes, in order. Pure.

    Segments from the front, so that a log whose clearing was interrupted is one that was purged, not one that ends
    earlier; then what was derived from them. The lock file, the mark and cut/ stay.
    """
    listed = sorted(names)
    segments = [name for name in listed if segment_number(name) is not None]
    segments += [name for name in listed if spill_number(name) is not None or name == SPILL_TABLE_NAME]
    return segments + [name for name in listed if name == POSITIONS_NAME or name.startswith("index.")]


def read_mark(path: str, *, disk: Disk | None = None) -> Mark | None:
    """Return the mark of the log at `path`; None where it was never cleared. Raises LogUnreadableError."""
    disk = OsDisk() if disk is None else disk
    name = os.path.join(path, MARK_NAME)
    try:
        file = disk.open(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise LogUnreadableError(path=name, why=exc.strerror or str(exc)) from exc
    try:
        return msgspec.json.decode(file.pread(file.size(), 0), type=Mark)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        why = f"the mark of the last clearing is damaged ({exc}); it says which GTIDs were handed out"
        raise LogUnreadableError(path=name, why=why) from exc
    finally:
        file.close()


def has_records(path: str, *, disk: Disk | None = None) -> bool:
    """Whether there is a segment in the directory `path`."""
    disk = OsDisk() if disk is None else disk
    try:
        return any(segment_number(name) is not None for name in disk.list_dir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc


def clear_log(
    path: str,
    *,
    after: Gtid | None = None,
    keep_position: bool = True,
    dry_run: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Clearing:
    """Remove all records of the log at `path`, leaving the mark; with `dry_run` only say what would go.

    `after` names the last GTID handed out where the log is too damaged to tell. Without `keep_position` the source
    starts where its options say, not where the log ended.

    Raises LogLockedError while a writer holds it, LogMissingError, CorruptRecordError (then give `after`).
    """
    disk = OsDisk() if disk is None else disk
    clock = SystemClock() if clock is None else clock
    if not has_records(path, disk=disk):
        raise LogMissingError(path=path, why="there is nothing to clear")
    try:
        lock = disk.lock(os.path.join(path, LOCK_NAME))
    except BlockingIOError as exc:
        raise LogLockedError(path=path, holder=read_holder(path, disk)) from exc
    except OSError as exc:
        raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc
    try:
        mark = _last_handed_out(path, after, disk, clock)
        if not keep_position:
            mark = msgspec.structs.replace(mark, event_id="")
        names = removal_order(disk.list_dir(path))
        clearing = Clearing(mark=mark, files=tuple(names), bytes=_sizes(path, names, disk))
        if not dry_run:
            _write_mark(path, mark, disk)
            for name in names:
                disk.unlink(os.path.join(path, name))
                disk.sync_dir(path)  # one by one: a loss of power must not take a later segment and leave an earlier
            _drop_holds(path, disk)
        return clearing
    except OSError as exc:
        raise DiskFailedError(path=path, why=f"it was not cleared: {exc.strerror or exc}") from exc
    finally:
        lock.release()


def _last_handed_out(path: str, after: Gtid | None, disk: Disk, clock: Clock) -> Mark:
    earlier = read_mark(path, disk=disk)
    found: list[Gtid] = [] if earlier is None else [earlier.gtid]
    event_id = "" if earlier is None else earlier.event_id
    if after is None:
        with LogReader.open(path, disk=disk, clock=clock) as reader:
            held = reader.range()
            last = reader.header(held.last_seqno)
            if last is not None:
                found.append(last.gtid)
                event_id = last.event_id
    else:
        found.append(after)
    return Mark(
        epoch=max((gtid.epoch for gtid in found), default=0),
        seqno=max((gtid.seqno for gtid in found), default=NO_SEQNO),
        event_id=event_id,
        cleared_at=clock.now_ms(),
    )


def _write_mark(path: str, mark: Mark, disk: Disk) -> None:
    name = os.path.join(path, MARK_NAME)
    fresh = f"{name}.new"
    file = disk.open(fresh, write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite(msgspec.json.encode(mark), 0)
        file.sync()
    finally:
        file.close()
    disk.rename(fresh, name)
    disk.sync_dir(path)


def _drop_holds(path: str, disk: Disk) -> None:
    """A hold names a seqno that is no more; whoever still needs one writes it again."""
    directory = os.path.join(path, HOLDS_DIR)
    if disk.exists(directory):
        for name in disk.list_dir(directory):
            disk.unlink(os.path.join(directory, name))


def _sizes(path: str, names: Iterable[str], disk: Disk) -> int:
    total = 0
    for name in names:
        file = disk.open(os.path.join(path, name))
        try:
            total += file.size()
        finally:
            file.close()
    return total
