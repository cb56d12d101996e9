"""A directory of the Tungsten replicator's log, opened for writing or purged.

Owns every disk call that changes something. What a state of the directory means, and what a purge removes, are
`recovery`'s decisions. The hard idea: the directory stays one that a Java replicator opens and goes on with. Nothing
but `disklog.lck`, segments and, after a repair, `cut/` with what was cut off is in it: the ancestor knows no index,
no positions and no holds.

Source: thl-internals, "Log Organization".
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from dataclasses import dataclass
from typing import Final

from tranlog.closing import Closing
from tranlog.disk import OS_DISK, Disk, DiskFile, DiskLock
from tranlog.errors import (
    AppendOrderError,
    CorruptRecordError,
    DiskFullError,
    LogClosedError,
    LogError,
    LogLockedError,
    LogMissingError,
    PurgeRangeError,
)
from tranlog.ids import segment_name
from tranlog.log.files.directory import CUT_DIR, DISK_FULL, LOCK_NAME, join, make_directory, storage_error
from tranlog.tungsten.files.segments import (
    WINDOW_BYTES,
    TungstenSegment,
    damage_error,
    list_entries,
    notes_of,
    place_of,
    scan_all,
)
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.records.codec import (
    FILE_HEADER,
    NO_BASE,
    encode_event,
    encode_file_header,
    encode_rotate,
    next_number,
    segment_number,
)
from tranlog.tungsten.records.event import Event
from tranlog.tungsten.records.payload import encode
from tranlog.tungsten.records.record import BadLength, Damaged, EventRecord, FileHeader, Short, TungstenRotate
from tranlog.tungsten.rules.recovery import (
    Cut,
    DirectoryEntry,
    EventPlace,
    NewDirectory,
    PurgeSegments,
    PurgeTail,
    Refuse,
    RefusePurge,
    TungstenContinue,
    order_problem,
    place_behind,
    plan_open,
    plan_purge,
    reading_problem,
)

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 100_000_000
"""When a segment is full; what the ancestor's installer sets."""
BUFFER_BYTES: Final = 1 << 20
"""What a writer holds before it commits without being asked to (the ancestor does after an interval)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningReport:
    """What opening a directory for writing found and did."""

    created: bool
    cuts: tuple[Cut, ...] = ()
    kept_in: tuple[str, ...] = ()
    """The files that hold what was cut off."""
    notes: tuple[str, ...] = ()


class TungstenLog(Closing):
    """A log directory opened for writing, in the form that a Java replicator reads and goes on with.

    What is appended is durable when `commit` returns (B7-1: the ancestor never syncs). Events come in order, without
    a gap; `next_place` tells which is to come, None in an empty log, which takes any seqno.
    Threads: one.
    """

    def __init__(
        self, path: str, disk: Disk, lock: DiskLock, *, segment_bytes: int, checksum: bool, gaps: bool
    ) -> None:
        self.path = path
        self._order_problem = reading_problem if gaps else order_problem
        self._disk = disk
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._checksum = checksum
        self._file: DiskFile | None = None
        self._number = 0
        self._end = 0
        self._buffer = bytearray()
        self.next_place: EventPlace | None = None
        """Which seqno and fragment is to come; None in a log that never held any."""
        self._synced_end = 0
        # The end of the last whole transaction, the place after it, and its seqno: of all, and of what is durable.
        self._whole: tuple[int, EventPlace | None, int] = (0, None, -1)
        self._durable: tuple[int, EventPlace | None, int] = self._whole
        self._closed: str | None = None
        self.last_seqno = -1
        """The last complete transaction's seqno; -1 in an empty log."""
        self.report = OpeningReport(created=False)

    @classmethod
    def open(
        cls,
        path: str,
        *,
        disk: Disk = OS_DISK,
        segment_bytes: int = SEGMENT_BYTES,
        checksum: bool = True,
        gaps: bool = False,
    ) -> TungstenLog:
        """Open a directory for writing, repair its end, create it if it is missing (its parent must exist).

        `gaps`: a transaction may skip seqnos, as the replicator's do where it was told to go on higher.
        Every record of every segment is read: the ancestor looks at the last segment only, and writes on after
        damage that it meets when somebody reads.
        Raises LogLockedError, LogMissingError, LogUnreadableError, NativeLogError, CorruptRecordError (nothing was
        changed then), DiskFullError, DiskFailedError.
        """
        lock = take_lock(path, disk)
        log = cls(path, disk, lock, segment_bytes=segment_bytes, checksum=checksum, gaps=gaps)
        try:
            log._recover()
        except OSError as exc:
            log._release()
            raise storage_error(exc, path) from exc
        except BaseException:
            log._release()
            raise
        return log

    def _recover(self) -> None:
        entries = list_entries(self.path, self._disk)
        plan = plan_open(entries, scan_all(self.path, entries, self._disk, checked=True))
        match plan:
            case Refuse():
                raise damage_error(plan)
            case NewDirectory():
                with contextlib.suppress(PermissionError):  # who may not list the parent did not create the directory
                    self._disk.sync_dir(posixpath.dirname(self.path) or ".")
                self._create(1, NO_BASE)
                self.report = OpeningReport(created=True)
            case TungstenContinue():
                self._continue(plan, entries)
        self._begin()

    def _continue(self, plan: TungstenContinue, entries: list[DirectoryEntry]) -> None:
        if plan.last is not None:
            self.next_place = EventPlace(plan.next_seqno)
            self.last_seqno = plan.last.seqno
        kept = [name for name in [self._keep(cut) for cut in plan.cuts] if name is not None]
        for cut in plan.cuts:
            self._carry_out(cut)
        gone = [cut.number for cut in plan.cuts if cut.whole]
        left = [entry.number for entry in entries if entry.number not in gone]
        if left:
            self._secure(left[-1], 0 if plan.last is None else plan.last.offset)
        if plan.create is not None:
            self._create(plan.create, self._base(entries))
        else:
            self._number = plan.tail
            self._file = self._disk.open(join(self.path, segment_name(plan.tail)), write=True)
            self._end = self._file.size()
        self.report = OpeningReport(
            created=False, cuts=plan.cuts, kept_in=tuple(kept), notes=(*notes_of(entries), *plan.notes)
        )

    def _base(self, entries: list[DirectoryEntry]) -> int:
        if self.next_place is not None:
            return self.next_place.seqno
        bases = [entry.header.base_seqno for entry in entries if isinstance(entry.header, FileHeader)]
        return max(bases, default=NO_BASE)

    def _keep(self, cut: Cut) -> str | None:
        """Copy what is to be cut, durable before the cut is."""
        if cut.size <= FILE_HEADER.size and cut.whole:
            return None
        folder = join(self.path, CUT_DIR)
        self._disk.make_dir(folder)
        name = f"{segment_name(cut.number)}.{cut.offset}"
        with (
            contextlib.closing(self._disk.open(join(self.path, segment_name(cut.number)))) as source,
            contextlib.closing(self._disk.open(join(folder, name), write=True, create=True)) as target,
        ):
            target.truncate(0)
            at = 0
            while chunk := source.pread(WINDOW_BYTES, cut.offset + at):
                target.pwrite(chunk, at)
                at += len(chunk)
            target.sync()
        self._disk.sync_dir(folder)
        self._disk.sync_dir(self.path)
        return f"{CUT_DIR}/{name}"

    def _carry_out(self, cut: Cut) -> None:
        path = join(self.path, segment_name(cut.number))
        logger.warning(
            "cut segment=%s offset=%d bytes=%d why=%s", segment_name(cut.number), cut.offset, cut.size, cut.why
        )
        if cut.whole:
            self._disk.unlink(path)
            self._disk.sync_dir(self.path)
            return
        _truncate(path, cut.offset, self._disk)

    def _secure(self, number: int, last_offset: int) -> None:
        """Make durable what an earlier writer wrote and no sync may have covered, and the row of segments.

        What stood in one buffer is written again: after a failed sync the system may take it for written, and lose it.
        """
        with contextlib.closing(self._disk.open(join(self.path, segment_name(number)), write=True)) as file:
            at, size = max(min(last_offset, file.size()) - BUFFER_BYTES, 0), file.size()
            while at < size:
                chunk = file.pread(min(WINDOW_BYTES, size - at), at)
                file.pwrite(chunk, at)
                at += len(chunk)
            file.sync()
        self._disk.sync_dir(self.path)

    def _create(self, number: int, base_seqno: int) -> None:
        file = self._disk.open(join(self.path, segment_name(number)), write=True, create=True)
        try:
            file.truncate(0)
            file.pwrite(encode_file_header(base_seqno), 0)
            file.sync()
            self._disk.sync_dir(self.path)
        except BaseException:
            file.close()
            raise
        self._file = file
        self._number = number
        self._end = FILE_HEADER.size

    def _begin(self) -> None:
        """Take the segment's end for durable: it was synced, and no transaction is open."""
        self._synced_end = self._end
        self._whole = self._durable = (self._end, self.next_place, self.last_seqno)

    def append(self, event: Event, *, shard_id: str | None = None, tstamp: int | None = None) -> None:
        """Append one fragment; readers see its transaction when it is complete and committed.

        `shard_id` and `tstamp` go into the record's own header; by default they are the event's.
        Raises AppendOrderError, RecordLimitError, LogClosedError, DiskFullError, DiskFailedError.
        """
        header = event.header
        self.append_payload(
            encode(event),
            seqno=header.seqno,
            fragno=header.fragno,
            last_frag=header.last_frag,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            shard_id=event.shard_id if shard_id is None else shard_id,
            tstamp=header.tstamp if tstamp is None else tstamp,
            seqno_end=header.seqno_end if header.filtered else None,
            fragno_end=header.fragno_end if header.filtered else None,
        )

    def append_payload(
        self,
        payload: bytes,
        *,
        seqno: int,
        fragno: int,
        last_frag: bool,
        epoch: int,
        source_id: str,
        event_id: str,
        shard_id: str,
        tstamp: int,
        seqno_end: int | None = None,
        fragno_end: int | None = None,
    ) -> None:
        """Append one fragment whose payload is bytes already, of either serializer; raises what `append` raises."""
        if self._closed is not None:
            raise LogClosedError(self._closed)
        why = self._order_problem(self.next_place, seqno, fragno)
        if why is not None:
            raise AppendOrderError(path=self.path, why=why)
        record = encode_event(
            seqno=seqno,
            fragno=fragno,
            last_frag=last_frag,
            epoch=epoch,
            source_id=source_id,
            event_id=event_id,
            shard_id=shard_id,
            tstamp=tstamp,
            payload=payload,
            checksum=self._checksum,
        )
        if fragno == 0 and self._end + len(self._buffer) > self._segment_bytes:
            self._rotate(seqno)
        self._buffer += record
        self.next_place = place_behind(seqno, fragno, last_frag, seqno_end, fragno_end)
        if last_frag:
            self.last_seqno = seqno
            self._whole = (self._end + len(self._buffer), self.next_place, seqno)
        if len(self._buffer) >= BUFFER_BYTES:
            self.commit()

    def commit(self) -> None:
        """Make everything that was appended durable. Raises LogClosedError, DiskFullError, DiskFailedError.

        DiskFullError: everything after the last whole transaction that is durable was taken back, and the log goes
        on there; `next_place` tells.
        """
        if self._closed is not None:
            raise LogClosedError(self._closed)
        self._write()
        assert self._file is not None
        if self._end == self._synced_end:
            return
        try:
            self._file.sync()
        except OSError as exc:
            raise self._failed(exc) from exc
        self._synced_end = self._end
        self._durable = self._whole

    def _rotate(self, seqno: int) -> None:
        number = next_number(self._number)
        self._buffer += encode_rotate(number, checksum=self._checksum)
        self.commit()
        assert self._file is not None
        self._file.close()
        try:
            self._create(number, seqno)
        except OSError as exc:
            raise self._failed(exc) from exc
        self._begin()

    def _write(self) -> None:
        if not self._buffer:
            return
        assert self._file is not None
        try:
            self._file.pwrite(bytes(self._buffer), self._end)
        except OSError as exc:
            if exc.errno not in DISK_FULL:
                raise self._failed(exc) from exc
            self._take_back()
            raise DiskFullError(path=self.path) from exc
        self._end += len(self._buffer)
        self._buffer.clear()

    def _take_back(self) -> None:
        assert self._file is not None
        end, place, last_seqno = self._durable
        try:
            self._file.truncate(end)
        except OSError as exc:
            raise self._failed(exc) from exc
        self._buffer.clear()
        self._end, self.next_place, self.last_seqno = end, place, last_seqno
        self._begin()

    def _failed(self, exc: OSError) -> LogError:
        error = storage_error(exc, self.path)
        self._closed = f"writing failed: {exc.strerror or exc}"
        self._release()
        return error

    def _release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        self._lock.release()

    def close(self) -> None:
        """Commit and close; an open transaction stays for the next opening to cut. Closing twice is harmless."""
        if self._closed is not None:
            return
        try:
            self.commit()
        finally:
            self._closed = "it was closed"
            self._release()


def take_lock(path: str, disk: Disk) -> DiskLock:
    """Lock a directory for its one writer, making it where it is missing.

    Raises LogMissingError without a parent, LogLockedError, LogUnreadableError, DiskFullError, DiskFailedError.
    """
    try:
        make_directory(path, disk)
        return disk.lock(join(path, LOCK_NAME))
    except NotADirectoryError as exc:
        raise LogMissingError(path=path, why="it is not a directory") from exc
    except BlockingIOError as exc:
        raise LogLockedError(path=path, holder="unknown: the replicator writes nothing into its lock file") from exc
    except OSError as exc:
        raise storage_error(exc, path) from exc


def _truncate(path: str, size: int, disk: Disk) -> None:
    with contextlib.closing(disk.open(path, write=True)) as file:
        file.truncate(size)
        file.sync()


# --- purge -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeReport:
    """What a purge removed: whole segments, and from where on in which segment."""

    removed: tuple[str, ...]
    cut: tuple[str, int] | None = None


def purge(path: str, *, low: int | None = None, high: int | None = None, disk: Disk = OS_DISK) -> PurgeReport:
    """Remove the transactions from `low` to `high`, both included; None: from the first, to the last.

    At the front whole segments go, as many as lie in the range. What is left has no hole (B7-2).
    Raises PurgeRangeError for a range in the middle or outside, LogLockedError, and what reading raises; nothing was
    removed then.
    """
    if not disk.exists(path):
        raise LogMissingError(path=path, why="the directory does not exist")
    lock = take_lock(path, disk)
    try:
        reader = TungstenReader.open(path, disk=disk)
        reader.check_whole()
        plan = plan_purge(reader.index(), low, high)
        match plan:
            case RefusePurge(why=why):
                raise PurgeRangeError(path=path, why=why)
            case PurgeSegments(numbers=numbers):
                if low is None and high is None:  # an unfinished newest segment goes too
                    numbers = tuple(number for number in map(segment_number, disk.list_dir(path)) if number is not None)
                return PurgeReport(removed=_remove(path, numbers, disk))
            case PurgeTail(numbers=numbers, cut=number, seqno=seqno):
                offset = _cut_offset(path, number, seqno, disk)
                removed = _remove(path, numbers, disk)
                _truncate(join(path, segment_name(number)), offset, disk)
                return PurgeReport(removed=removed, cut=(segment_name(number), offset))
    except OSError as exc:
        raise storage_error(exc, path) from exc
    finally:
        lock.release()


def _remove(path: str, numbers: tuple[int, ...], disk: Disk) -> tuple[str, ...]:
    for number in numbers:
        disk.unlink(join(path, segment_name(number)))
        disk.sync_dir(path)
    return tuple(map(segment_name, numbers))


def _cut_offset(path: str, number: int, seqno: int, disk: Disk) -> int:
    """Return where the first record of `seqno` or above stands. Raises PurgeRangeError inside a filtered range."""
    with contextlib.closing(TungstenSegment(path, number, disk, checked=True)) as reader:
        at = FILE_HEADER.size
        place: EventPlace | None = None
        while True:
            outcome = reader.record(at)
            if not isinstance(outcome, EventRecord):
                if isinstance(outcome, TungstenRotate | Short | BadLength):
                    break
                why = outcome.why if isinstance(outcome, Damaged) else f"record type {outcome.record_type}"
                raise CorruptRecordError(segment=segment_name(number), offset=at, seqno=None, why=why)
            if outcome.seqno >= seqno:
                break
            place = place_of(reader, outcome)
            at = outcome.end
        if place is not None and place.seqno > seqno:
            raise PurgeRangeError(path=path, why=f"seqno {seqno} lies inside a filtered range, which stays whole")
        return at
