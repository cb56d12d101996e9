"""Opening a log for writing: the directory, the lock, and carrying out what recovery decided.

Owns the steps and their order on the disk. What is wrong and what to do is `recovery`'s decision, everything from
the new epoch on is `log`'s. The hard idea: opening can itself be cut off at any call, so each step leaves a
directory that the next opening understands: what is cut is copied and synced before it is cut, and a cut is synced
before anything stands after it.

Source: docs/format.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
from dataclasses import dataclass, replace

from tranlog.disk import Disk, DiskFile
from tranlog.errors import ConfigError, IndexCutError, RecordLimitError
from tranlog.ids import HISTORY_BYTES, NO_EPOCH, NO_SEQNO, Epoch, Gtid, Lsn, Seqno, segment_name
from tranlog.log.files.cleared import Mark, behind_all, read_mark
from tranlog.log.files.directory import join, keep_bytes, sign_lock
from tranlog.log.files.index_table import INDEX_NAME, read_index
from tranlog.log.files.positions import Positions, read_positions
from tranlog.log.files.scan import checkpoint_of, scan_segment, survey
from tranlog.log.files.segment import WINDOW_BYTES, doubt_of_last
from tranlog.log.files.segments import Segments
from tranlog.log.records.format import HEADER, SEQNO_MAX, RecordHeader, encode_header
from tranlog.log.rules.damage import Problem
from tranlog.log.rules.index import SegmentRow, SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, Entry, Place
from tranlog.log.rules.recovery import Continue, NewLog, SegmentGlance, Survey, plan
from tranlog.log.rules.rollback import marks_behind
from tranlog.log.writing.allocation import empty_transaction, size_of
from tranlog.log.writing.journal import create_segment
from tranlog.lsn import lsn, lsn_segment, lsn_text

logger = logging.getLogger(__name__)

StoredIndex = tuple[SeqnoIndex, BuiltFrom]
"""A stored index, and the end of the log that it describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What opening the log for writing found and did."""

    created: bool
    """There was no log before."""
    clean: bool
    """The last writer closed it, or there was none."""
    cut: Lsn | None = None
    """Everything from here on was cut off."""
    cut_bytes: int = 0
    kept_in: str | None = None
    """The file that holds what was cut off."""
    why: str | None = None
    purged_by_hand: bool = False
    """Segments are missing at the front that the last writer still had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSegment:
    """The newest segment, open for writing and ending at `end`, and the epoch to begin there.

    Up to `durable_end` a sync is known to have covered it; the next sync covers the rest. `last_header` and
    `last_first_lsn` are the last complete transaction's, None in a log that holds none.
    """

    file: DiskFile
    number: int
    end: int
    durable_end: int
    last_seqno: Seqno
    last_header: RecordHeader | None
    last_first_lsn: Lsn | None
    epoch: Epoch
    report: RecoveryReport
    index: SeqnoIndex
    """Covers every complete transaction."""
    mark: int = 0
    """The number of the last rollback mark."""
    committed: Seqno = NO_SEQNO
    """Up to where the positions file says that it is committed, where it can be trusted."""
    event_id: str = ""
    """Up to where the source was captured, of a log without records."""


def check_source_id(source_id: str) -> None:
    """Raise ConfigError for one that no record can hold, before anything is created for it."""
    if not isinstance(source_id, str):
        raise ConfigError(option="source_id", value=source_id, why="it is a text")
    try:
        size_of([empty_transaction((source_id, ""), 0)])
    except RecordLimitError as exc:
        given = source_id if len(source_id) <= 80 else source_id[:80] + "…"
        raise ConfigError(option="source_id", value=given, why=exc.why) from exc


def open_newest(
    path: str, disk: Disk, segments: Segments, *, start_after: Gtid | None, history: bytes | None
) -> OpenedSegment:
    """Survey the directory, repair what a crash left, and open the newest segment; `segments` learns the row.

    A log without records begins after `start_after` and its own mark, and has the identity `history`, or that of the
    log that was cleared, or a new one, random. The lock is held. Raises CorruptRecordError, LogUnreadableError,
    LogCodecError, ForeignHistoryError, and OSError.
    """
    sign_lock(path, disk)
    published = read_positions(path, disk)
    stored = read_index(join(path, INDEX_NAME), disk)
    found = survey(path, disk, checkpoint=None if stored is None else checkpoint_of(*stored))
    decided = plan(found)
    mark: Mark | None = None
    if isinstance(decided, NewLog) or (isinstance(decided, Continue) and decided.last_header is None):
        mark = read_mark(path, disk=disk)
    if mark is not None:
        start_after = behind_all([mark.gtid] if start_after is None else [mark.gtid, start_after])
        history = history or bytes.fromhex(mark.history)
    segments.history = found.history or history or os.urandom(HISTORY_BYTES)
    if published is not None and found.history not in (None, published.history):
        published = None
    epoch = NO_EPOCH if published is None else published.epoch
    match decided:
        case Problem():
            raise decided.error()
        case NewLog():
            last = NO_SEQNO
            if start_after is not None:
                last = start_after.seqno
                if not NO_SEQNO <= last < SEQNO_MAX:
                    why = f"a log begins after a seqno from {NO_SEQNO} to {SEQNO_MAX - 1}"
                    raise ConfigError(option="start_after", value=last, why=why)
                epoch = max(epoch, start_after.epoch)
            with contextlib.suppress(PermissionError):  # who may not list the parent did not create the directory
                disk.sync_dir(posixpath.dirname(path) or ".")
            file = create_segment(path, disk, decided.number, encode_header(last))
            segments.adopt(decided.number, last)
            return OpenedSegment(
                file=file,
                number=decided.number,
                end=HEADER.size,
                durable_end=HEADER.size,
                last_seqno=last,
                last_header=None,
                last_first_lsn=None,
                epoch=Epoch(epoch + 1),
                report=RecoveryReport(created=True, clean=True),
                index=SeqnoIndex(after=last),
                event_id="" if mark is None else mark.event_id,
            )
        case Continue():
            segments.adopt_survey(found)
            if decided.last_header is not None:
                epoch = max(epoch, decided.last_header.epoch)
            elif start_after is not None:
                epoch = max(epoch, start_after.epoch)
            if decided.mark is not None:
                epoch = max(epoch, decided.mark.epoch)
            opened = _continue(path, disk, segments, found, stored, decided, published, Epoch(epoch + 1))
            return opened if mark is None else replace(opened, event_id=mark.event_id)


def _continue(
    path: str,
    disk: Disk,
    segments: Segments,
    found: Survey,
    stored: StoredIndex | None,
    decided: Continue,
    published: Positions | None,
    epoch: Epoch,
) -> OpenedSegment:
    number, end = decided.segment, decided.end
    file = disk.open(join(path, segment_name(number)), write=True)
    try:
        kept_in = _cut(path, disk, file, decided)
        _write_again(file, decided.proven, end)
        file.truncate(end)
        durable_end = decided.proven
        if decided.torn is not None or decided.next_segment is not None:
            # What was cut must not come back after new records, and a segment ends before the next one begins. Else
            # the first sync of the new epoch is early enough: until then nothing is said to be durable beyond `proven`.
            file.sync()
            durable_end = end
        # A writer that was killed may have left a segment whose name is not durable yet, or one that is removed and not
        # so for certain: it would come back before what is purged now, or refer to spill that is dropped now.
        disk.sync_dir(path)
        if decided.next_segment is not None:
            following = create_segment(path, disk, decided.next_segment, encode_header(decided.last_seqno))
            file.close()
            file, number, end = following, decided.next_segment, HEADER.size
            durable_end = end
            if not segments.knows(number):
                segments.adopt(number, decided.last_seqno)
        return OpenedSegment(
            file=file,
            number=number,
            end=end,
            durable_end=durable_end,
            last_seqno=decided.last_seqno,
            last_header=decided.last_header,
            last_first_lsn=decided.last_first_lsn,
            epoch=epoch,
            report=_report(path, disk, segments, decided, published, kept_in),
            index=load_index(path, disk, found, stored, decided),
            mark=_last_mark(decided, published),
            committed=_committed(published, found, disk),
        )
    except BaseException:
        file.close()
        raise


def _last_mark(decided: Continue, published: Positions | None) -> int:
    """Return the number of the last rollback mark; where all were purged, as far as it is published."""
    if decided.mark is not None:
        return decided.mark.number
    return 0 if published is None else published.mark


def _committed(published: Positions | None, found: Survey, disk: Disk) -> Seqno:
    """Return what the positions file says of it, if it was written in this directory since the machine was started."""
    trusted = published is not None and published.boot_id == disk.boot_id() and not found.published.copied
    return published.committed_seqno if published is not None and trusted else NO_SEQNO


def load_index(path: str, disk: Disk, found: Survey, stored: StoredIndex | None, decided: Continue) -> SeqnoIndex:
    """Return the index of the log that a survey found: the stored one continued, or a rough one.

    The stored index is trusted if it fits the row of segments, and its last transaction stands where it says, in
    the epoch that it says. What came after it is scanned. Raises OSError.
    """
    row = _living_row(found)
    if stored is not None:
        index, built_from = stored
        why = None
        try:
            built_from = _abandon(index, built_from, found)
        except IndexCutError as exc:
            why = str(exc)
        if built_from.history != found.history:
            why = f"it is of the history {built_from.history.hex()}"
        if why is None:
            why = _contradiction(path, disk, index, built_from, row, decided)
        if why is None:
            why = _go_on(path, disk, index, built_from, row, found, decided)
        if why is None:
            return index
        logger.warning("The stored index does not fit the log and is built again. path=%s why=%s", path, why)
        if found.partial:
            found = survey(path, disk)
    places = [
        Place(one.first, lsn(one.glance.number, one.glance.first_offset))
        for one in row
        if one.glance.first_offset is not None and one.first <= decided.last_seqno
    ]
    scanned = {scan.number: scan for scan in found.scans}
    known = next((Seqno(one.first - 1) for one in row if one.glance.number in scanned), decided.last_seqno)
    after = Seqno(row[0].first - 1) if row else decided.last_seqno
    index = SeqnoIndex.rough(after, [place for place in places if place.seqno <= known], known)
    for one in row:
        scan = scanned.get(one.glance.number)
        if scan is not None:
            index.register_run(scan.number, Seqno(index.prefix + 1), scan.starts[: one.last + 1 - one.first])
    return index


@dataclass(frozen=True, slots=True)
class _Living:
    """The front of a segment that belongs to the stream: seqnos `first` to `last`, both inclusive."""

    glance: SegmentGlance
    first: Seqno
    last: Seqno


def _living_row(found: Survey) -> list[_Living]:
    """Return what lives of each segment, first to newest; segments in which nothing can live are left out.

    `last` of the newest one is beyond every seqno.
    """
    row = SegmentRow(first_offset=HEADER.size)
    glances = {glance.number: glance for glance in found.glances}
    for glance in found.glances:
        if glance.prev_seqno is not None:
            row.add(glance.number, glance.prev_seqno, None if glance.mark is None else glance.mark.matchpoint_seqno)
    living = []
    for number, last in row.lasts():
        prev_seqno = row.prev_seqno(number)
        assert prev_seqno is not None
        end = Seqno(SEQNO_MAX) if last is None else last
        if row.lives(number):
            living.append(_Living(glances[number], Seqno(prev_seqno + 1), end))
    return living


def _abandon(index: SeqnoIndex, built_from: BuiltFrom, found: Survey) -> BuiltFrom:
    """Take out of a stored index what the rollback marks after its end abandoned; return the end that it has then.

    Raises IndexCutError where the index does not hold a matchpoint.
    """
    for mark in marks_behind(found.marks, built_from.end):
        if mark.matchpoint_seqno < index.prefix_range.last:
            index.truncate_end(Entry(mark.matchpoint_seqno, mark.matchpoint_lsn))
            built_from = replace(built_from, epoch=mark.matchpoint_epoch, end=mark.dead_end)
        # else: it ends at or before the matchpoint, and what lies between the two is still to be scanned
    return built_from


def _contradiction(
    path: str, disk: Disk, index: SeqnoIndex, built_from: BuiltFrom, row: list[_Living], decided: Continue
) -> str | None:
    """Return why a stored index is not of this log as it is now; None when it is. The front is cut to match."""
    covered = index.prefix_range
    if covered.first == NO_SEQNO or not row:
        return "it covers nothing"
    first = row[0].first
    if covered.first > first or covered.last < first:
        return f"it begins at seqno {covered.first}, the log at {first}"
    if covered.last > decided.last_seqno:
        return f"it ends at seqno {covered.last}, the log at {decided.last_seqno}"
    index.synced(covered.last)
    if covered.first < first:
        if covered.last == first - 1:
            return "everything that it covers was purged"
        index.truncate_front(Seqno(first - 1), lsn(row[0].glance.number, HEADER.size))
    living = {one.glance.number: one for one in row}
    for bucket in index.mappings.buckets:
        one = living.get(bucket.segment)
        if one is None or bucket.first < one.first or bucket.last > min(one.last, decided.last_seqno):
            return f"its bucket at seqno {bucket.first} names segment {bucket.segment}"
    place = index.exact(covered.last)
    if place is None:  # the log was rolled back after it, and the mark that says so is purged
        return f"its last seqno, {covered.last}, stood in a segment that was purged; the log begins with another one"
    with contextlib.closing(disk.open(join(path, segment_name(lsn_segment(place))))) as file:
        return doubt_of_last(file, place, covered.last, built_from.epoch)


def _go_on(
    path: str,
    disk: Disk,
    index: SeqnoIndex,
    built_from: BuiltFrom,
    row: list[_Living],
    found: Survey,
    decided: Continue,
) -> str | None:
    """Register what stands after the stored index's end; return why that cannot be, or None."""
    scanned = {scan.number: scan for scan in found.scans}
    for one in row:
        number = one.glance.number
        if number < lsn_segment(built_from.end):
            continue
        if number not in scanned:
            try:
                scanned[number] = scan_segment(path, disk, one.glance, checksum=False)
            except FileNotFoundError as exc:
                return f"{exc.filename} is missing"
        scan = scanned[number]
        known = index.prefix - scan.prev_seqno
        if known < 0:
            return f"it ends at seqno {index.prefix}, and {segment_name(number)} begins after {scan.prev_seqno}"
        starts = scan.starts[known : one.last + 1 - one.first]
        index.register_run(number, Seqno(index.prefix + 1), starts)
    return None if index.prefix == decided.last_seqno else f"it ends at seqno {index.prefix} even when continued"


def _report(
    path: str,
    disk: Disk,
    segments: Segments,
    decided: Continue,
    published: Positions | None,
    kept_in: str | None,
) -> RecoveryReport:
    torn = decided.torn is not None
    first = segments.first_seqno()
    # After a start of the machine the positions file may be any old one, which knew earlier segments.
    by_hand = published is not None and published.boot_id == disk.boot_id() and published.first_seqno < first
    if by_hand:
        logger.warning("Segments were removed by hand. first_seqno=%d path=%s", first, path)
    return RecoveryReport(
        created=False,
        clean=decided.clean,
        cut=lsn(decided.segment, decided.end) if torn else None,
        cut_bytes=decided.size - decided.end if torn else 0,
        kept_in=kept_in,
        why=decided.torn,
        purged_by_hand=by_hand,
    )


def _cut(path: str, disk: Disk, file: DiskFile, decided: Continue) -> str | None:
    """Shorten the newest segment to its good end; return where what was cut is kept, if that is worth keeping."""
    if decided.size <= decided.end:
        return None
    kept_in = None
    if decided.torn is not None:
        kept_in = keep_bytes(path, disk, file, segment_name(decided.segment), decided.end, decided.size)
        logger.warning(
            "Cut the log back to its last complete transaction. at=%s bytes=%d kept_in=%s why=%s",
            lsn_text(lsn(decided.segment, decided.end)),
            decided.size - decided.end,
            kept_in,
            decided.torn,
        )
    file.truncate(decided.end)
    return kept_in


def _write_again(file: DiskFile, start: int, end: int) -> None:
    """Write what is there once more, so that the next sync carries it; the header too while nothing proves it.

    After a failed sync the system may hold these bytes in memory, take them for written, and lose them. The same
    goes for the file's length, which the caller sets once more.
    """
    for at in range(start, end, WINDOW_BYTES):
        file.pwrite(file.pread(min(WINDOW_BYTES, end - at), at), at)
