"""Clearing a log so that it can never hand out a GTID twice.

Owns the order in which a log's files go, and what is written into the mark that stays, which is `log.cleared`'s. The
hard idea: a clearing can be cut off at any call, so the mark comes first, and then the segments go from the front.

Source: docs/format.md; thl-internals, "Clearing Log Files".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import DiskFailedError, LogError, LogLockedError, LogMissingError, LogUnreadableError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Gtid, segment_name, segment_number
from tranlog.log.files.cleared import MARK_NAME, Mark, behind_all, read_mark
from tranlog.log.files.commit_point import is_member, write_missing
from tranlog.log.files.directory import LOCK_NAME, join, list_segments, read_holder, replace_file
from tranlog.log.files.holds import HOLDS_DIR
from tranlog.log.files.positions import POSITIONS_NAME
from tranlog.log.files.scan import survey
from tranlog.log.files.segments import history_borne
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.spill import SPILL_TABLE_NAME, spill_number
from tranlog.log.rules.recovery import judge

CAVEATS: Final = (
    "Clear a log only while its source is idle. What was committed there and is not in the log yet may otherwise be "
    "captured twice, or be missed.",
    "A reader that has not read it yet loses what is cleared: a target that lags cannot catch up from the new log, and "
    "a copy of the log that is promoted later lacks what others still need, including restored backups.",
)
"""The warnings of the document, in two sentences for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """What a clearing removes: the files, in the order in which they go, and the mark that stays."""

    mark: Mark
    files: tuple[str, ...]
    bytes: int


def removal_order(names: Iterable[str]) -> list[str]:
    """Return what of a log directory's files goes, in order. Pure.

    Segments from the front, so that a log whose clearing was interrupted is one that was purged, not one that ends
    earlier; then what was derived from them. The lock file, the mark and cut/ stay.
    """
    listed = sorted(names)
    segments = [name for name in listed if segment_number(name) is not None]
    segments += [name for name in listed if spill_number(name) is not None or name == SPILL_TABLE_NAME]
    return segments + [name for name in listed if name == POSITIONS_NAME or name.startswith("index.")]


def has_records(path: str, *, disk: Disk = OS_DISK) -> bool:
    """Whether there is a segment in the directory `path`."""
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
    disk: Disk = OS_DISK,
    clock: Clock = SYSTEM_CLOCK,
) -> Clearing:
    """Remove all records of the log at `path`, leaving the mark; with `dry_run` only say what would go.

    `after` names the last GTID assigned where the log is too damaged to tell; a later one that it still tells counts.
    Without `keep_position` the source starts where its options say, not where the log ended.

    Raises LogLockedError while a writer holds it, LogMissingError, CorruptRecordError (then give `after`).
    """
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
            if is_member(path, disk):
                write_missing(path, mark.gtid.seqno, disk)
            replace_file(join(path, MARK_NAME), msgspec.json.encode(mark), disk)
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
    last = None
    try:
        if after is None:
            for problem in judge(survey(path, disk)):  # what can be read may end before a hole
                raise problem.error()
        with LogReader.open(path, disk=disk, clock=clock) as reader:
            last = reader.header(reader.range().last_seqno)
    except LogError:
        if after is None:
            raise
    if after is not None:
        found.append(after)
    if last is not None:
        if after is None or behind_all([after, last.gtid]) == last.gtid:
            event_id = last.event_id
        found.append(last.gtid)
    last_gtid = behind_all(found) or Gtid(NO_EPOCH, NO_SEQNO)
    return Mark(
        epoch=last_gtid.epoch,
        seqno=last_gtid.seqno,
        event_id=event_id,
        cleared_at=clock.now_ms(),
        history=_history(path, disk),
    )


def _history(path: str, disk: Disk) -> str:
    """Return the identity that the first segment which tells one bears, in hex."""
    for number in list_segments(path, disk):
        with closing(disk.open(join(path, segment_name(number)))) as file:
            found = history_borne(file, path, number)
        if found is not None:
            return found.hex()
    return ""


def _drop_holds(path: str, disk: Disk) -> None:
    """A hold names a seqno that is no more; whoever still needs one writes it again."""
    directory = os.path.join(path, HOLDS_DIR)
    if disk.exists(directory):
        for name in disk.list_dir(directory):
            disk.unlink(os.path.join(directory, name))


def _sizes(path: str, names: Iterable[str], disk: Disk) -> int:
    total = 0
    for name in names:
        with closing(disk.open(os.path.join(path, name))) as file:
            total += file.size()
    return total
