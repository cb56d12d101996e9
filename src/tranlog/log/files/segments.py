"""The row of segments of a log in its directory: which there are, where a seqno lies, opening one.

Owns what a reader knows of the directory. What stands in one segment is `segment`'s, where a seqno lies the index's.
The hard idea: a directory changes under its readers, so a file that is missing is looked for again before anybody is
told whether it was purged or is gone.

Source: docs/format.md.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tranlog.disk import Disk, DiskFile
from tranlog.errors import (
    CorruptRecordError,
    ForeignHistoryError,
    LogCodecError,
    LogError,
    LogMissingError,
    LogReplacedError,
    LogUnreadableError,
    LogVersionError,
    PurgedError,
    SegmentGoneError,
)
from tranlog.forking import freed
from tranlog.ids import NO_SEQNO, Epoch, Lsn, Seqno, segment_name
from tranlog.log.files.directory import join, list_segments, open_file, reading
from tranlog.log.files.index_reader import IndexReader
from tranlog.log.files.purge_notes import purged_error
from tranlog.log.files.recent import RecentFile, RecentPieces
from tranlog.log.files.segment import SegmentReader, doubt_of_last, glance_at, only_zeros, written_size
from tranlog.log.records.format import (
    FIRST_SYNC_BYTES,
    HEADER,
    RECORD_START,
    SYNC_BYTES,
    BadChecksum,
    Impossible,
    Partial,
    RecordHeader,
    RollbackMark,
    SegmentHeader,
    SyncRecord,
    history_of,
    is_tungsten,
    looks_like_mark,
    newer_version,
    parse_header,
)
from tranlog.log.rules.bucket import Bucket
from tranlog.log.rules.index import IndexView, SegmentRow, SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, Entry, FlushPlan, Gap, Place
from tranlog.log.rules.recovery import Survey, missing
from tranlog.lsn import lsn, lsn_offset, lsn_segment, lsn_text

logger = logging.getLogger(__name__)

OPEN_FILES = 8
"""How many segments stay open between reads, for a log opened once: a seek need not open what another one had open."""

_READ_TRIES = 5


def history_borne(file: DiskFile, directory: str, number: int) -> bytes | None:
    """Return the identity of the history that a segment bears; None where it has no whole first record.

    Raises LogCodecError for a segment in the Tungsten replicator's codec, LogVersionError for a later release's,
    ForeignHistoryError for an earlier one's, and OSError.
    """
    head = file.pread(HEADER.size + 64, 0)
    version = newer_version(head)
    if version is not None:
        raise LogVersionError(path=directory, segment=segment_name(number), version=version)
    if is_tungsten(head):
        raise LogCodecError(path=directory, segment=segment_name(number))
    found = history_of(head, number)
    if found == b"":
        raise ForeignHistoryError(path=directory, file=segment_name(number), found="", history="")
    return found


def one_history(directory: str, borne: Mapping[int, bytes | None], known: bytes | None = None) -> bytes | None:
    """Return the one identity that segments bear, by number; None where none of them does.

    Raises ForeignHistoryError for the first that differs from the `known` one or, without that, from most.
    """
    found = {number: history for number, history in borne.items() if history is not None}
    if known is None and found:
        known = Counter(found.values()).most_common(1)[0][0]
    for number, history in found.items():
        if known is not None and history != known:
            raise ForeignHistoryError(
                path=directory, file=segment_name(number), found=history.hex(), history=known.hex()
            )
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStat:
    """One segment as people see it; `last_seqno` lies below first_seqno while it holds no living transaction."""

    number: int
    name: str
    first_seqno: Seqno
    last_seqno: Seqno
    bytes: int
    written_at: int | None
    """When it was begun, ms since 1970: its first sync record's stamp."""


class SegmentFiles:
    """The files of a log's segments, and what each one's first records say. Threads: any."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self.directory = directory
        self.disk = disk
        self._read: dict[int, int] = {}  # the identities of those that were read

    def path(self, number: int) -> str:
        """Return the path of a segment."""
        return join(self.directory, segment_name(number))

    def numbers(self) -> list[int]:
        """Return the numbers of the segments that are there.

        Raises CorruptRecordError as `refresh` does; FileNotFoundError where a listing has to be made again.
        """
        numbers = list_segments(self.directory, self.disk)
        if not numbers:
            raise LogMissingError(path=self.directory, why="it holds no segment (thl.data.*)")
        for before, after in pairwise(numbers):
            if after == before + 1:
                continue
            if not self._is_missing(before):
                raise FileNotFoundError(errno.ENOENT, "not in the listing", self.path(before + 1))
            epoch, last = self._epoch_of(before, whole=True)
            if epoch is None or epoch != self._epoch_of(after, whole=False)[0]:
                raise missing(before + 1, last).error()
        return numbers

    def _is_missing(self, before: int) -> bool:
        """Whether a segment is missing for good: a listing may pass over what is made or purged meanwhile."""
        return not self.disk.exists(self.path(before + 1)) and self.disk.exists(self.path(before))

    def _epoch_of(self, number: int, *, whole: bool) -> tuple[Epoch | None, Seqno]:
        """Return epoch and seqno of a segment's first event or, with `whole`, of its last; None without one."""
        epoch, last, at = None, NO_SEQNO, HEADER.size
        with contextlib.closing(SegmentReader(self.open(number), number)) as reader:
            while isinstance(outcome := reader.read(at, verify=False), RecordHeader | SyncRecord | RollbackMark):
                if isinstance(outcome, RecordHeader):
                    epoch, last = outcome.epoch, outcome.seqno
                    if not whole:
                        break
                at += outcome.record_length
        return epoch, last

    def mark_of(self, number: int, *, newest: bool) -> RollbackMark | None:
        """Return the rollback mark that a segment begins with. A segment's header and its mark come in one write.

        In the newest one half a mark is what a crash may leave, and was never there.
        """
        with contextlib.closing(SegmentReader(self.open(number), number)) as reader:
            offset = HEADER.size
            outcome = reader.read(offset, verify=True)
            while isinstance(outcome, SyncRecord):
                offset += outcome.record_length
                outcome = reader.read(offset, verify=True)
            if not newest and isinstance(outcome, BadChecksum | Impossible):
                # Without the mark what was abandoned would come back.
                size = FIRST_SYNC_BYTES if offset == HEADER.size else SYNC_BYTES
                behind = reader.read(offset + size, verify=True)
                if isinstance(behind, RollbackMark):
                    return behind
                if looks_like_mark(reader.file.pread(RECORD_START.size, offset)):
                    raise reader.corrupt(offset, None, outcome.why)
            return outcome if isinstance(outcome, RollbackMark) else None

    def header_of(self, number: int, *, newest: bool) -> tuple[SegmentHeader | None, bytes | None]:
        """Return a segment's header, None in a rotation under way, and the history that it bears, if it does yet."""
        with contextlib.closing(self.open(number)) as file:
            for _ in range(_READ_TRIES):  # a rotation may write the header between two of our looks
                header = parse_header(file.pread(HEADER.size, 0))
                if not (isinstance(header, Partial) and newest):
                    break
                if file.size() <= HEADER.size or only_zeros(file, 0, file.size()):
                    return None, None  # a rotation under way, or cut short
            history = history_borne(file, self.directory, number)
            if isinstance(header, SegmentHeader):
                return header, history
            why = "bad header: cut short or zeros" if isinstance(header, Partial) else header.why
            raise CorruptRecordError(segment=segment_name(number), offset=0, seqno=None, why=why)

    def open(self, number: int) -> DiskFile:
        """Open a segment. Raises FileNotFoundError, LogUnreadableError."""
        return open_file(self.path(number), self.disk)

    def history_at(self, number: int, file: DiskFile, known: bytes | None) -> bytes | None:
        """Return the identity of the history with what a segment bears of it. Raises as `history_borne`."""
        return one_history(self.directory, {number: history_borne(file, self.directory, number)}, known)

    def history_read(self, number: int, file: DiskFile, known: bytes | None) -> bytes | None:
        """As `history_at`, of a segment that is read. Raises LogReplacedError where it was read from another file.

        A writer goes on in a segment's file, or removes it; a copy of the whole log, or one made anew, brings others.
        """
        identity = file.identity()
        if self._read.get(number, identity) != identity:
            raise LogReplacedError(path=self.directory, why=f"{segment_name(number)} is another file now")
        found = self.history_at(number, file, known)
        self._read[number] = identity
        return found

    def check_all_same(self, history: bytes | None) -> None:
        """Look whether the segments that were read, of this history, are still there.

        Raises LogReplacedError where others are, ForeignHistoryError where they hold another log, LogUnreadableError.
        """
        for number in list(self._read):
            try:
                with contextlib.closing(self.open(number)) as file:
                    self.history_read(number, file, history)
            except FileNotFoundError:
                self._read.pop(number, None)  # purged

    def begun_and_size(self, number: int) -> tuple[int | None, int]:
        """Return when a segment was begun (ms since 1970; None: no sync record says), and its size. Raises OSError."""
        with contextlib.closing(self.open(number)) as file:
            glance = glance_at(file, number)
            return glance.written_at, glance.size


class Segments:
    """The segments of a log as its readers use them: which there are, where a seqno lies, opening one.

    Threads: any. The lock guards the row, changes of the index, and which files are open and idle; files are opened
    outside it.
    """

    def __init__(self, directory: str, disk: Disk) -> None:
        self.directory = directory
        self.disk = disk
        self.files = SegmentFiles(directory, disk)
        self._lock = threading.Lock()
        self._row = SegmentRow(first_offset=HEADER.size)
        self.index = SeqnoIndex()
        self.history: bytes | None = None
        """The identity of the log's history; None while no segment has its first record."""
        self.marks: tuple[RollbackMark, ...] = ()
        """The rollback marks of this log that were ever heard of here; for readers: replaced, never changed."""
        self.mark_limit: int | None = None
        """A mark with a higher number is not to be applied yet: its writer has not published it. None: apply all."""
        self.end_early = False
        """Whether files end for this reader before what the writer's index covers: at a node, at the commit point."""
        self.recent: RecentPieces | None = None
        """What the writer of this process wrote last; None without a writer here."""
        self._idle: OrderedDict[int, DiskFile] | None = OrderedDict()  # open and unused, oldest first; None: closed
        self._stored: IndexReader | None = None  # for readers: what the writer has stored
        self._stored_lock = threading.Lock()  # guards it; taken before the other one
        self._stored_last = NO_SEQNO  # where what was taken from there ends
        self._left_out = False  # something there is of a segment that is not known yet
        self._take_again = False  # one has become known since

    def refresh(self) -> None:
        """Read the directory again: add new segments, drop those that were purged.

        A hole in the row is met by whoever reads up to it. Raises LogMissingError, LogUnreadableError, LogCodecError,
        and CorruptRecordError for a bad header, or for a hole after which another epoch begins: a rollback mark may be
        missing, and what that abandoned would be read as living.
        """
        for attempt in range(_READ_TRIES):
            try:
                self._refresh()
                return
            except FileNotFoundError as exc:  # purged between listing and opening
                if attempt == _READ_TRIES - 1:
                    raise SegmentGoneError(path=str(exc.filename)) from exc
            except OSError as exc:
                raise LogUnreadableError(path=self.directory, why=exc.strerror or str(exc)) from exc

    def _refresh(self) -> None:
        numbers = self.files.numbers()
        with self._lock:
            newest = self._row.newest_number()
            first = self._row.first_number()
            after = NO_SEQNO if newest is None else self._row.prev_seqno(newest)
        fresh: list[tuple[int, Seqno, RollbackMark | None]] = []
        borne: dict[int, bytes | None] = {}
        for number in numbers:
            if newest is not None and number <= newest and numbers[0] <= newest:
                continue
            header, borne[number] = self.files.header_of(number, newest=number == numbers[-1])
            if header is None:
                break
            if after is not None and header.prev_seqno < after:
                why = f"bad header: prev_seqno {header.prev_seqno} is below the previous segment's {after}"
                raise CorruptRecordError(segment=segment_name(number), offset=0, seqno=after, why=why)
            mark = self.files.mark_of(number, newest=number == numbers[-1])
            if mark is not None and self.mark_limit is not None and mark.number > self.mark_limit:
                break
            fresh.append((number, header.prev_seqno, mark))
            after = header.prev_seqno if mark is None else mark.matchpoint_seqno
        self.history = one_history(self.directory, borne, self.history)
        with self._lock:
            if first is not None and first < numbers[0]:
                self._drop_front(numbers[0])
            for number, prev_seqno, mark in fresh:
                known = self._row.newest_number()
                if known is None or number > known:
                    self._add(number, prev_seqno, mark)

    def _add(self, number: int, prev_seqno: Seqno, mark: RollbackMark | None) -> None:
        """Add a segment to the row; with a mark, forget what it abandons."""
        self._take_again = self._left_out
        self._row.add(number, prev_seqno, None if mark is None else mark.matchpoint_seqno)
        if mark is not None:
            self._stored_last = min(self._stored_last, mark.matchpoint_seqno)
            if self.index.range.first == NO_SEQNO:  # a reader's
                self.index.mappings.forget_above(Place(mark.matchpoint_seqno, mark.matchpoint_lsn))
            self.marks = (*self.marks, mark)

    def open(self, number: int, seqno: Seqno) -> DiskFile:
        """Open a segment for reading because `seqno` is wanted; whoever is done closes it, or hands it to `keep_open`.

        Raises PurgedError if it was purged meanwhile, SegmentGoneError if it is missing otherwise, LogReplacedError if
        another file than before stands there now, and ForeignHistoryError if it is another log's.
        """
        with self._lock:
            idle = None if self._idle is None else self._idle.pop(number, None)
        if idle is not None:
            if idle.linked():
                return idle
            idle.close()
        try:
            file = self.files.open(number)
            try:
                # A writer sees itself whether its files are there.
                look = self.files.history_read if self.recent is None else self.files.history_at
                self.history = look(number, file, self.history)
            except BaseException as bad:
                file.close()
                if isinstance(bad, OSError):
                    raise LogUnreadableError(path=self.files.path(number), why=bad.strerror or str(bad)) from bad
                raise
            return file if self.recent is None else RecentFile(file, number, self.recent)
        except FileNotFoundError as exc:
            try:
                self.refresh()
            except (LogMissingError, CorruptRecordError):
                raise SegmentGoneError(path=self.files.path(number)) from exc
            with self._lock:
                first_number, newest, known = self._row.first_number(), self._row.newest_number(), number in self._row
            if first_number is not None and number < first_number:
                raise self.purged(seqno) from exc
            if newest is not None and number < newest and not known:
                raise missing(number, seqno).error() from exc
            raise SegmentGoneError(path=self.files.path(number)) from exc

    @contextlib.contextmanager
    def opened(self, number: int, seqno: Seqno) -> Iterator[DiskFile]:
        """Open a segment as `open` does, and take it back. Raises LogUnreadableError for what fails meanwhile, too."""
        file = self.open(number, seqno)
        try:
            with reading(self.files.path(number)):
                yield file
        finally:
            self.keep_open(number, file)

    def keep_open(self, number: int, file: DiskFile) -> None:
        """Take back what `open` gave: it stays open for whoever wants it next, while there are not too many."""
        with self._lock:
            idle = self._idle
            if idle is not None and number not in idle and number in self._row:
                idle[number] = file
                if len(idle) <= OPEN_FILES:
                    return
                file = idle.popitem(last=False)[1]
        file.close()

    def close(self) -> None:
        """Let go of the files that are open and idle, and keep none from now on."""
        with self._lock:
            idle, self._idle = self._idle, None
        for file in () if idle is None else idle.values():
            file.close()
        with self._stored_lock:
            if self._stored is not None:
                self._stored.close()
                self._stored = None

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self._lock = freed(self._lock)
        self._stored_lock = freed(self._stored_lock)

    def follow_index(self, stored: IndexReader) -> None:
        """Take places from an index that another process stores, wherever they are asked for: for readers."""
        self._stored = stored

    def adopt(self, number: int, prev_seqno: Seqno) -> None:
        """Add a segment that its own writer created or scanned."""
        with self._lock:
            self._row.add(number, prev_seqno)

    def roll_back(self, number: int, prev_seqno: Seqno, mark: RollbackMark) -> None:
        """Add the segment that its own writer began with a rollback mark, and forget what that abandons."""
        with self._lock:
            self.index.truncate_end(Entry(mark.matchpoint_seqno, mark.matchpoint_lsn))
            self._add(number, prev_seqno, mark)

    def cut_of(self, number: int) -> Seqno | None:
        """Return the last seqno that lives in a segment whose end was abandoned; None for any other."""
        with self._lock:
            return self._row.cut_of(number)

    def lasts(self) -> list[tuple[int, Seqno | None]]:
        """Return (number, last living seqno) of each segment; None for the newest."""
        with self._lock:
            return self._row.lasts()

    def knows(self, number: int) -> bool:
        """Whether the segment is in the row as it is known."""
        with self._lock:
            return number in self._row

    def prev_seqno(self, number: int) -> Seqno | None:
        """Return the last seqno before a segment."""
        with self._lock:
            return self._row.prev_seqno(number)

    def first_seqno(self) -> Seqno:
        """Return the first seqno that the log holds or will hold."""
        with self._lock:
            first = self._row.first_seqno()
        return NO_SEQNO if first is None else first

    def row(self) -> list[tuple[int, Seqno]]:
        """Return (number, prev_seqno) of each segment."""
        with self._lock:
            return list(self._row)

    def locate(self, seqno: Seqno) -> Place | None:
        """Return a place at or before `seqno` to read from; None for one that is purged."""
        with self._lock:
            start = self._row.start_of(seqno)
            known = self.index.mappings.below(seqno)
        place = known if start is not None and known is not None and known.lsn > start.lsn else start
        if self._stored is None or place is None or place.seqno == seqno:
            return place
        # Further away than a dense index leads: the stored one may have been made dense since it was taken.
        if seqno <= self._stored_last and seqno - place.seqno < self.index.mappings.options.stride:
            return place
        return self.locate(seqno) if self._take_stored() else place

    def start_of(self, seqno: Seqno) -> Place | None:
        """Return the start of the segment that holds a seqno, whatever the index says; None for one that is purged."""
        with self._lock:
            return self._row.start_of(seqno)

    def misled(self, place: Place) -> None:
        """Register that the index named a place where the transaction does not stand, though it is in the log."""
        with self._lock:
            if self.index.range.first == NO_SEQNO:  # a reader's
                self.index.mappings.drop(place)
        told = "The index is wrong about a transaction, and the log was walked. path=%s seqno=%d place=%s"
        logger.warning(told, self.directory, place.seqno, lsn_text(place.lsn))

    def _take_stored(self) -> bool:
        """Look whether the stored index is new, and take what fits the row; whether there was anything to take."""
        with self._stored_lock:
            if self._stored is None:
                return False
            if self._take_again:
                self._take_again = False
                self._stored.read_again()
            found = self._stored.read()
            if found is None:
                return False
            index, built_from = found
            why = self._doubt(index, built_from)
            if why is not None:
                logger.warning("The stored index is ignored. path=%s why=%s", self.directory, why)
                return False
            buckets = index.mappings.buckets
            with self._lock:
                unknown = bool(buckets) and not self._known(buckets[-1])
            if unknown:
                with contextlib.suppress(LogError):
                    self.refresh()
            with self._lock:
                living = self._living(buckets)
                self.index.mappings.adopt(living)
                self._left_out = not self._known(buckets[-1])
                self._stored_last = living[-1].last if living else NO_SEQNO
            return bool(living)

    def _known(self, bucket: Bucket) -> bool:
        return bucket.segment in self._row

    def _living(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Return what of a stored index's buckets lives in the row as it is known; the lock is held."""
        row, lasts = self._row, dict(self._row.lasts())
        living = []
        for bucket in buckets:
            after = row.prev_seqno(bucket.segment)
            if after is None or bucket.first <= after:
                continue
            last = lasts[bucket.segment]
            if last is not None and last < bucket.last:
                if last < bucket.first:
                    continue
                bucket = bucket.copy()
                bucket.cut(last)
            living.append(bucket)
        return living

    def _doubt(self, index: SeqnoIndex, built_from: BuiltFrom) -> str | None:
        """Return why a stored index is not of this log; None where its last transaction stands where it says."""
        last = index.prefix_range.last
        place = index.exact(last)
        if built_from.history != self.history:
            return f"it is of the history {built_from.history.hex()}"
        if place is None:
            return "it covers nothing"
        try:
            with contextlib.closing(self.files.open(lsn_segment(place))) as file:
                if self.end_early and lsn_offset(place) >= file.size():
                    return None
                return doubt_of_last(file, place, last, built_from.epoch)
        except (OSError, LogUnreadableError) as exc:
            return f"seqno {last} cannot be read at {lsn_text(place)}: {exc}"

    def learn_run(self, number: int, first: Seqno, offsets: Sequence[int]) -> None:
        """Register where the transactions of a segment begin, `first` and those that follow it."""
        with self._lock:
            cut = self._row.cut_of(number)
            for at in range(0, len(offsets), self.index.mappings.options.stride):
                if cut is not None and first + at > cut:
                    break
                self.index.mappings.learn(Place(Seqno(first + at), lsn(number, offsets[at])))

    def note(self, seqno: Seqno, position: Lsn) -> None:
        """Register where a transaction begins: for readers, whose index is what they came by. A writer's knows more."""
        if self.recent is not None:
            return
        with self._lock:
            cut = self._row.cut_of(lsn_segment(position))
            if cut is None or seqno <= cut:
                self.index.mappings.learn(Place(seqno, position))

    def drop_front(self, number: int) -> None:
        """Forget the segments below `number`, before their files go."""
        with self._lock:
            self._drop_front(number)

    def _drop_front(self, number: int) -> None:
        self._row.drop_front(number)
        idle = {} if self._idle is None else self._idle
        for gone in [one for one in idle if one < number]:
            idle.pop(gone).close()
        first = self._row.first_seqno()
        start = None if first is None else self._row.start_of(first)
        if first is not None and start is not None:
            self.index.truncate_front(Seqno(first - 1), start.lsn)

    def register(self, number: int, first: Seqno, offsets: Sequence[int]) -> None:
        """Take the places of transactions that became visible, `first` and those that follow it."""
        with self._lock:
            self.index.register_run(number, first, offsets)

    def fill(self, gap: Gap, offsets: Sequence[int]) -> bool:
        """Take what was walked of a gap in the index; False where that is not there any more."""
        with self._lock:
            return self.index.mappings.fill(gap, offsets)

    def view_index(self, built_from: BuiltFrom) -> IndexView | None:
        """Return what is to be stored of the index; None when the stored one covers everything."""
        with self._lock:
            return self.index.view(built_from)

    def index_stored(self, plan: FlushPlan) -> None:
        """Register that a plan was stored."""
        with self._lock:
            self.index.flushed(plan)

    def synced(self, seqno: Seqno) -> None:
        """Register that everything up to `seqno` is durable."""
        with self._lock:
            self.index.synced(seqno)

    def adopt_index(self, index: SeqnoIndex) -> None:
        """Take the index that opening the log for writing has recovered."""
        with self._lock:
            self.index = index

    def adopt_survey(self, found: Survey) -> None:
        """Take over the row that a survey found: every segment with a whole header."""
        with self._lock:
            for glance in found.glances:
                if glance.prev_seqno is not None:
                    self._add(glance.number, glance.prev_seqno, glance.mark)

    def stats(self, last_seqno: Seqno) -> list[SegmentStat]:
        """Describe each segment; `last_seqno` is where the newest one ends. Raises LogUnreadableError."""
        with self._lock:
            row, lasts = list(self._row), self._row.lasts()
        stats = []
        for at, (number, prev_seqno) in enumerate(row):
            last = lasts[at][1]
            try:
                file = self.files.open(number)
            except FileNotFoundError:
                continue  # purged meanwhile
            with contextlib.closing(file), reading(self.files.path(number)):
                glance = glance_at(file, number)
                size = glance.size if last is not None else written_size(file, glance.size)
            stats.append(
                SegmentStat(
                    number=number,
                    name=segment_name(number),
                    first_seqno=Seqno(prev_seqno + 1),
                    last_seqno=last_seqno if last is None else last,
                    bytes=size,
                    written_at=glance.written_at,
                )
            )
        return stats

    def purged(self, seqno: Seqno) -> PurgedError:
        """Return the error for a seqno before the first one held, with what is known of why it went."""
        return purged_error(self.directory, self.disk, seqno=seqno, first=self.first_seqno())
