"""Writing spill segments: the chunks of transactions that are still open, and dropping segments that nothing needs.

Owns the spill segments of a log opened for writing, and who refers into which of them. Bytes and the decision what
may go are `spill`'s; when a transaction spills, and the record that refers to it, are `open_transaction`'s and the
log's. The hard idea: a reference is only written once its chunks are durable. So whoever finds a reference finds its
chunks, and a crash needs no repair here: chunks that nothing refers to are space, and go with their segment.

Source: tokumx-replication, "Large Transactions"; docs/decisions/0012.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tranlog.change import Fragment
from tranlog.clock import Clock
from tranlog.disk import Disk, DiskFile
from tranlog.errors import (
    CorruptRecordError,
    DiskFullError,
    LogClosedError,
    LogError,
    PurgeFailedError,
    RecordLimitError,
    SpillFailedError,
)
from tranlog.forking import freed
from tranlog.ids import NO_HISTORY, Epoch, Gtid, Lsn, Seqno
from tranlog.log.files.directory import DISK_FULL, join
from tranlog.log.files.spilled import SpillStat, bears, list_spill, read_table, stat_of, who_refers
from tranlog.log.options import LogOptions
from tranlog.log.records.format import RECORD_BYTES_MAX
from tranlog.log.records.spill import (
    CHUNK_OVERHEAD,
    OID,
    SPILL_HEADER_BYTES,
    SPILL_TABLE_NAME,
    Kept,
    RawChunk,
    Reference,
    SpillSegment,
    SpillTable,
    encode_chunk,
    encode_spill_header,
    encode_table,
    highest,
    may_go,
    pack_chunk,
    spill_name,
)
from tranlog.log.writing.allocation import NO_GTID, record_of
from tranlog.lsn import lsn_offset
from tranlog.slices import Outflow, slices

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Segment:
    """A spill segment that this opening writes or has written to."""

    number: int
    file: DiskFile
    end: int
    kept: int = SPILL_HEADER_BYTES
    """After it lies nothing that a committed transaction needs, unless it is one of the users."""
    users: int = 0
    """Open transactions that have chunks in it."""
    retired: bool = False
    """It is not the active one any more."""
    failed: str | None = None
    """Why what is in it may never have reached the disk."""
    syncing: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is synced, so that of two syncs the later one knows of the earlier one's failure."""


class Spilling:
    """The spill of one log. Threads: any; its own lock guards it, taken after the log's where both are."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        clock: Clock,
        options: LogOptions,
        *,
        may_write: Callable[[], bool],
        give_way: Callable[[], bool],
        syncs: Callable[[], int],
    ) -> None:
        """`may_write` says whether the log is still this opening's to write.

        `give_way` lets those who commit go first; False where they are not through in time. `syncs` returns how many
        syncs the log has had.
        """
        self.give_way = give_way
        self.syncs = syncs
        self._path = path
        self._may_write = may_write
        self._disk = disk
        self._clock = clock
        self._options = options
        self._lock = threading.Lock()
        self._history = NO_HISTORY
        self._known: dict[int, list[Gtid]] = {}  # spill segments that exist, and who refers into them
        self._unsure = False  # what refers to spill could not be found out: nothing goes
        self._next_number = 1
        self._active: _Segment | None = None
        self._open: dict[bytes, SpilledTransaction] = {}  # those that have chunks
        self._begun_in: dict[bytes, int] = {}  # the segment in which each of them began to spill
        self._begun = 0
        self._closed = False
        self._stored: SpillTable | None = None

    def take_over(self, history: bytes) -> None:
        """Have this identity in the segments to come; there is none yet."""
        assert self._active is None or history == self._history, "the identity comes before the first chunk"
        self._history = history

    def take_stock(self, log_segments: Sequence[int], end: int, history: bytes) -> None:
        """Find out which spill segments there are and who refers into them; `end` is that of the newest log segment.

        The log has been recovered, and `history` is its identity. Raises ForeignHistoryError, OSError.
        """
        self._history = history
        numbers = list_spill(self._path, self._disk)
        for number in numbers:
            with contextlib.closing(self._disk.open(join(self._path, spill_name(number)))) as file:
                bears(file, self._path, number, history)
        table = read_table(self._path, self._disk)
        covers = 0
        found: dict[int, tuple[Gtid, ...]] = {}
        if table is not None:
            self._next_number = table.next_number
            if table.covers <= log_segments[-1]:
                covers, found = table.covers, dict(table.referred_by)
        self._next_number = max(self._next_number, max(numbers, default=0) + 1)
        if not numbers:
            return
        try:
            behind = [number for number in log_segments if number >= covers]
            fresh = who_refers(self._path, self._disk, behind, numbers, ends=end)
        except (CorruptRecordError, FileNotFoundError) as exc:
            logger.warning(
                "The references to spill could not be determined: none is removed. path=%s why=%s", self._path, exc
            )
            self._unsure = True
            fresh = {}
        for number, gtids in fresh.items():
            found[number] = (*found.get(number, ()), *gtids)
        self._known = {number: sorted(set(found.get(number, ()))) for number in numbers}

    # --- writing -------------------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> SpilledTransaction:
        """Return a new transaction's spill, without a chunk."""
        with self._lock:
            self._begun += 1
            return SpilledTransaction(self, OID.pack(epoch, self._begun), self._options)

    def opened(self, oid: bytes) -> SpilledTransaction | None:
        """Return an open transaction that has spilled; None where there is none with this oid."""
        with self._lock:
            return self._open.get(oid)

    def open_ones(self) -> list[Reference]:
        """Return what a reference to each open transaction would say of its chunks so far."""
        with self._lock:
            return [one.so_far() for one in self._open.values()]

    def open_places(self, have: Mapping[bytes, int]) -> list[tuple[Reference, int, array[int]]]:
        """Return the same of those that have more chunks than `have` says, by oid: that number, where the others stand.

        They are known from when they were written, and need no walk.
        """
        with self._lock:
            ones = [(one, have.get(one.oid, 0)) for one in self._open.values()]
            return [(one.so_far(), first, one.places[first:]) for one, first in ones if first < one.chunks]

    def receive(self, chunk: RawChunk) -> bool:
        """Write a chunk of another log's transaction after those before it, once; False where one of these is missing.

        Raises DiskFullError, SpillFailedError, LogClosedError.
        """
        spilled = self.opened(chunk.oid) or SpilledTransaction(self, chunk.oid, self._options)
        if chunk.seq == spilled.chunks:
            spilled.put((chunk.codec, chunk.raw_length, (chunk.raw,)))
        return chunk.seq < spilled.chunks

    def write_chunk(self, spilled: SpilledTransaction, what: Kept) -> None:
        """For `SpilledTransaction` only: write its next chunk after whatever was spilled last."""
        with self._lock:
            if self._closed:
                raise LogClosedError()
            spilled.check()
            active = self._active
            if (
                active is None
                or active.retired
                or active.failed is not None
                or active.end >= self._options.spill_segment_bytes
            ):
                active = self._roll()
            chunk = encode_chunk(spilled.oid, spilled.chunks, spilled.last, self._clock.now_ms(), what)
            end, patient = active.end, True
            try:
                for part in slices(chunk):
                    # Once is enough for a chunk: who commits may be waiting for the lock that is held here.
                    patient = patient and self.give_way()
                    active.file.pwrite(part, end)
                    end += len(part)
            except OSError as exc:
                # The next chunk takes this place: what was written of this one was never anything.
                if exc.errno not in DISK_FULL:
                    active.failed = exc.strerror or str(exc)
                raise self._failure(exc, active.number, "write") from exc
            place = Lsn(active.number << 32 | active.end)
            # An exception between any two of these leaves space that nobody uses, and nothing in use without its pin.
            if not spilled.chunks:
                self._begun_in[spilled.oid] = active.number
                self._open[spilled.oid] = spilled
            if not spilled.files or spilled.files[-1] is not active:
                active.users += 1
            size, active.end = end - active.end, end
            spilled.took(place, size, active)

    def roll(self) -> int:
        """Begin another spill segment; return its number. Raises DiskFullError, SpillFailedError, LogClosedError."""
        with self._lock:
            if self._closed:
                raise LogClosedError()
            return self._roll().number

    def _roll(self) -> _Segment:
        number = self._next_number
        path = join(self._path, spill_name(number))
        try:
            file = self._disk.open(path, write=True, create=True)
            try:
                file.truncate(0)
                file.pwrite(encode_spill_header(self._clock.now_ms(), self._history), 0)
                file.sync()
                self._disk.sync_dir(self._path)
            except OSError:
                file.close()
                with contextlib.suppress(OSError):
                    self._disk.unlink(path)
                raise
        except OSError as exc:
            raise self._failure(exc, number, "starting a spill segment") from exc
        self._next_number = number + 1
        self._known[number] = []
        if self._active is not None:
            self._active.retired = True
            self._close_unused(self._active)
        self._active = _Segment(number, file, SPILL_HEADER_BYTES)
        logger.debug("Began a spill segment. path=%s", path)
        try:
            self._drop(Seqno(0))  # what was aborted, so that it needs no purge
        except PurgeFailedError as exc:
            logger.warning("Spill that nothing refers to could not be removed. path=%s why=%s", self._path, exc)
        return self._active

    def _failure(self, exc: OSError, number: int, what: str) -> LogError:
        path = join(self._path, spill_name(number))
        if exc.errno in DISK_FULL:
            return DiskFullError(path=path)
        return SpillFailedError(path=path, why=f"{what} failed: {exc.strerror or exc}")

    def sync(self, segments: Iterable[_Segment]) -> None:
        """For `SpilledTransaction` only: return when everything in these segments is durable."""
        for segment in segments:
            with segment.syncing:
                if segment.failed is None:
                    try:
                        segment.file.sync()
                    except OSError as exc:
                        segment.failed = exc.strerror or str(exc)
                        raise self._failure(exc, segment.number, "sync") from exc
                if segment.failed is not None:
                    path = join(self._path, spill_name(segment.number))
                    raise SpillFailedError(path=path, why=f"an earlier call failed: {segment.failed}")

    # --- who refers to what ----------------------------------------------------------------------------

    def referred(self, reference: Reference, gtid: Gtid) -> None:
        """Count a transaction that is about to be written as one that refers to its chunks."""
        with self._lock:
            for number in reference.segments:
                if number in self._known:
                    self._known[number].append(gtid)

    def referring(self, number: int) -> list[Gtid]:
        """Return the transactions that refer into a spill segment; one may have been abandoned since."""
        with self._lock:
            return list(self._known.get(number, ()))

    def forget_above(self, gtid: Gtid) -> None:
        """Count no transaction of this epoch above `gtid`: the disk was full, and they were taken back."""
        with self._lock:
            for number, gtids in self._known.items():
                self._known[number] = [one for one in gtids if one.epoch != gtid.epoch or one.seqno <= gtid.seqno]

    def let_go(self, spilled: SpilledTransaction, *, aborted: bool) -> None:
        """For `SpilledTransaction` only: it is committed or aborted."""
        with self._lock:
            self._open.pop(spilled.oid, None)
            self._begun_in.pop(spilled.oid, None)
            for segment in spilled.files:
                if not aborted:
                    segment.kept = segment.end
                segment.users -= 1
                self._close_unused(segment)
            if aborted and spilled.files and not self._closed:
                self._give_back()
            spilled.files = []

    def _give_back(self) -> None:
        """Free the space of what was given up: it may be what the disk lacks. One that refuses this stops nothing."""
        active = self._active
        if not self._may_write():
            return
        try:
            if active is not None and not active.users and active.failed is None:
                if self._known[active.number]:
                    active.end = active.kept
                    active.file.truncate(active.kept)
                elif not self._unsure:
                    self._active = None
                    active.file.close()
            self._drop(Seqno(0))
        except (OSError, PurgeFailedError) as exc:
            logger.warning("Abandoned spill still takes up space. path=%s why=%s", self._path, exc)

    def _close_unused(self, segment: _Segment) -> None:
        if segment.users == 0 and (segment.retired or self._closed):
            segment.file.close()

    def drop_below(self, first_seqno: Seqno) -> list[str]:
        """Remove every spill segment that no transaction from `first_seqno` on refers into; return their names.

        What of the log lies before has been removed, durably. Raises PurgeFailedError: what is left goes next time.
        """
        with self._lock:
            return self._drop(first_seqno)

    def _drop(self, first_seqno: Seqno) -> list[str]:
        if self._unsure:
            return []
        gone = may_go(
            [SpillSegment(number=number, referred_by=highest(self._known[number])) for number in sorted(self._known)],
            first_seqno=first_seqno,
            pinned=self._begun_in.values(),
            active=None if self._active is None else self._active.number,
        )
        names = []
        path = self._path
        try:
            for number in gone:
                path = join(self._path, spill_name(number))
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(path)
                del self._known[number]
                names.append(spill_name(number))
            if names:
                self._disk.sync_dir(self._path)
        except OSError as exc:
            raise PurgeFailedError(path=path, why=exc.strerror or str(exc)) from exc
        if names:
            logger.info("Removed spill. segments=%s first_seqno=%d", ",".join(names), first_seqno)
        return names

    def store_table(self, covers: int) -> None:
        """Store who refers into what, of the log's segments below `covers`.

        The transactions of later segments are in it too, which does no harm. It is a cache, so a disk that refuses it
        stops nothing.
        """
        with self._lock:
            if self._unsure or (self._next_number == 1 and not self._known):
                return
            told = {number: tuple(gtids) for number, gtids in self._known.items()}
            table = SpillTable(covers=covers, next_number=self._next_number, referred_by=told)
            if table == self._stored:
                return
            raw = encode_table(table)
            try:
                path = join(self._path, SPILL_TABLE_NAME)
                with contextlib.closing(self._disk.open(path, write=True, create=True)) as file:
                    file.pwrite(raw, 0)
                    file.truncate(len(raw))
            except OSError as exc:
                logger.warning("The table of spill could not be stored. path=%s why=%s", self._path, exc)
            else:
                self._stored = table

    def stats(self) -> list[SpillStat]:
        """Describe each spill segment, oldest first. Raises LogUnreadableError."""
        with self._lock:
            known = {number: highest(gtids) for number, gtids in sorted(self._known.items())}
        stats = [stat_of(self._path, self._disk, number, referred_by) for number, referred_by in known.items()]
        return [one for one in stats if one is not None]

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self._lock = freed(self._lock)

    def close(self) -> None:
        """Let go of the files; transactions that are open have failed."""
        with self._lock:
            self._closed = True
            if self._active is not None:
                self._active.retired = True
                self._close_unused(self._active)
                self._active = None


class SpilledTransaction:
    """What one open transaction has spilled. Threads: one at a time."""

    def __init__(self, spilling: Spilling, oid: bytes, options: LogOptions) -> None:
        """For `Spilling.begin` only."""
        self._spilling = spilling
        self._options = options
        self.oid = oid
        self.places = array("Q")  # of its chunks, eight bytes each
        self.files: list[_Segment] = []
        self._fragments = 0
        self._spilled_bytes = 0
        self._raw_bytes = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._outflow = Outflow(0, 0)  # to its newest segment
        self._over = False

    @property
    def chunks(self) -> int:
        """How many have been written."""
        return len(self.places)

    @property
    def last(self) -> Lsn:
        """Where the last one stands; 0 before the first."""
        return Lsn(self.places[-1] if self.places else 0)

    def add(self, fragment: Fragment) -> None:
        """Take a fragment, and write a chunk if there is enough for one.

        Raises RecordLimitError, DiskFullError, SpillFailedError, LogClosedError: the transaction is then aborted.
        """
        try:
            self._add(fragment)
        except BaseException:
            self.abort()
            raise

    def _add(self, fragment: Fragment) -> None:
        self.check()
        head, payload, trailer = record_of(fragment, NO_GTID, 0, checksum=False)
        size = len(head) + len(payload) + len(trailer)
        if size + CHUNK_OVERHEAD > RECORD_BYTES_MAX:
            raise RecordLimitError(event_id=fragment.event_id, why=f"a fragment of {len(fragment.payload)} bytes")
        if self._pending_bytes + size + CHUNK_OVERHEAD > RECORD_BYTES_MAX:
            self._write()
        self._pending += (head, payload, trailer)
        self._pending_bytes += size
        self._fragments += 1
        if self._pending_bytes >= self._options.spill_chunk_bytes:
            self._write()

    def _write(self) -> None:
        raw = list(slices(self._pending))
        self._pending = []
        self._pending_bytes = 0
        self.put(pack_chunk(raw, compress=self._options.spill_compress))

    def put(self, what: Kept) -> None:
        """Write a chunk. Raises as `add`, and the transaction stays as it was."""
        self._spilling.write_chunk(self, what)
        self._raw_bytes += what[1]
        while (out := self._outflow.due(self._spilling.syncs())) is not None:
            self._spilling.give_way()
            self.files[-1].file.write_out(*out)

    def took(self, place: Lsn, size: int, segment: _Segment) -> None:
        """For `Spilling` only: the chunk stands at `place`."""
        self.places.append(place)
        self._spilled_bytes += size
        if not self.files or self.files[-1] is not segment:
            self.files.append(segment)
            self._outflow = Outflow(lsn_offset(place), self._spilling.syncs())
        self._outflow.wrote(lsn_offset(place) + size)

    def finish(self) -> Reference:
        """Write what is left; return, once everything is durable, what the referring record says.

        Raises DiskFullError, SpillFailedError, LogClosedError: the transaction is then aborted.
        """
        assert self._fragments, "a transaction without a fragment has nothing to refer to"
        try:
            self.check()
            if self._pending:
                self._write()
            self._spilling.sync(self.files)
        except BaseException:
            self.abort()
            raise
        return self.so_far()

    def refer(self, reference: Reference) -> Reference | None:
        """Return what a referring record of another log says here, once everything is durable.

        None where these are not the chunks that it refers to. Raises as `finish`.
        """
        if (self.chunks, self._raw_bytes) != (reference.chunks, reference.raw_bytes):
            return None
        self._fragments = reference.fragments
        return self.finish()

    def so_far(self) -> Reference:
        """Return what a reference to its chunks says."""
        return Reference(
            oid=self.oid,
            chunks=self.chunks,
            fragments=self._fragments,
            first=Lsn(self.places[0]),
            last=self.last,
            raw_bytes=self._raw_bytes,
            spilled_bytes=self._spilled_bytes,
        )

    def check(self) -> None:
        """Raise LogClosedError once it is committed or aborted, by whomever."""
        if self._over:
            raise LogClosedError("its transaction was given up meanwhile")

    def end(self, reference: Reference, gtid: Gtid) -> None:
        """Take note that the referring record has its place in the log: the chunks are that transaction's now."""
        assert not self._over
        self._over = True
        self._spilling.referred(reference, gtid)
        self._spilling.let_go(self, aborted=False)

    def abort(self) -> None:
        """Give up what was spilled: it goes with its segments. Aborting what is over is harmless."""
        if not self._over:
            self._over = True
            self._pending = []
            self._spilling.let_go(self, aborted=True)
