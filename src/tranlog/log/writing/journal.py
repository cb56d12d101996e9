"""The journal under the log: the newest segment's file, the bytes in front of it, and what a sync of it covers.

Owns the file that is written, the order in which a segment ends and the next one begins, zeros ahead, and the sync
records. It knows bytes, lengths and LSNs; which transactions they are, and who may see them, is the log's. The hard
idea: a sync record names the end that an earlier sync covered, and stands before the next bytes; so whoever
finds it knows that everything before that end was on the disk when it was written.

Methods raise OSError as the disk does. What that means for the transactions is decided by the log.

Source: docs/format.md; docs/performance.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tranlog.clock import Clock
from tranlog.disk import Disk, DiskFile
from tranlog.ids import Seqno, segment_name
from tranlog.log.files.directory import DISK_FULL, join
from tranlog.log.options import LogOptions, zeros_ahead
from tranlog.log.records.format import HEADER, encode_rotate, encode_sync
from tranlog.log.records.running_hash import unsigned
from tranlog.log.rules.pending import Buffer
from tranlog.lsn import lsn

logger = logging.getLogger(__name__)

HASHED_BYTES: Final = 4 * 1024 * 1024
"""After so many bytes without a sync record the next flush has one follow: whoever wants a running hash walks no
further."""


def create_segment(path: str, disk: Disk, number: int, head: bytes) -> DiskFile:
    """Create a segment that begins with `head`, or write the torn header of one again, durable; return it open.

    `head` is the header and what stands after it, in one write: who sees the one sees the others. Raises OSError.
    """
    file = disk.open(join(path, segment_name(number)), write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite(head, 0)
        file.sync()
        disk.sync_dir(path)
    except BaseException:
        file.close()
        raise
    return file


class Journal:
    """The newest segment of a log, and the buffer in front of it. The log's lock guards it.

    `durable_end` is the offset up to which a sync is known to have covered the segment.
    """

    def __init__(
        self,
        directory: str,
        disk: Disk,
        clock: Clock,
        options: LogOptions,
        buffer: Buffer,
        hashed: Callable[[], tuple[Seqno, int]],
    ) -> None:
        """`hashed` returns a seqno and the running hash up to it, for the sync records."""
        self.buffer = buffer
        self.file: DiskFile
        """The newest segment's; there is one from `open` on."""
        self.number = 0
        self.begun_at: int | None = None
        """The stamp of the segment's first sync record; None while it has none."""
        self.durable_end = 0
        self.syncs = 0
        """How many there were since the log was opened."""
        self.history = b""
        """The identity that a segment's first sync record names, 16 bytes."""
        self.checksums = options.checksum
        """Whether the records that come next have checksums; a sync record before them says it."""
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._options = options
        self._reached = 0  # up to here zeros were written after it
        self._ahead = options.ahead_bytes  # how many at a time; 0 in a segment for which the disk was full
        self._hashed = hashed
        self._hashed_at = 0  # where the last sync record stands
        self._sync_end = 0  # what the sync that is under way covers; a cut lowers it

    def open(self, file: DiskFile, number: int, end: int, *, durable_end: int, history: bytes) -> None:
        """Take the newest segment, which ends at `end`."""
        self.file = file
        self.number = number
        self.history = history
        self.buffer.start = self._hashed_at = end
        self.durable_end = durable_end

    @property
    def path(self) -> str:
        """The newest segment's path."""
        return join(self._directory, segment_name(self.number))

    @property
    def end(self) -> int:
        """The offset after everything, written or in the buffer."""
        return self.buffer.start + len(self.buffer)

    # --- bytes ---------------------------------------------------------------------------------------

    def write(self, *, zeros: bool = False) -> tuple[int, bytes]:
        """Write the buffer; return the offset and the bytes. With `zeros` some after it, for the syncs to come."""
        buffer = self.buffer
        start, end = buffer.start, buffer.start + len(buffer)
        if not (zeros and self._write_ahead(end)):
            self.file.pwrite(buffer.joined(), start)
            if zeros and end <= self._reached:  # the disk begins while this goes on
                self.file.write_out(len(buffer), start, wait=False)
        raw = buffer.joined()
        buffer.written()
        if end - self._hashed_at >= HASHED_BYTES:
            buffer.sync_due = True
        return start, raw

    def _write_ahead(self, end: int) -> bool:
        """Write with zeros after, if it is time for some; False when nothing is written."""
        buffer = self.buffer
        count = zeros_ahead(self._ahead, size=end - self.durable_end, end=end, reached=self._reached)
        if not count:
            return False
        self._reached = end + count
        try:
            self.file.pwrite(buffer.joined(count), buffer.start)
        except OSError as exc:
            if exc.errno not in DISK_FULL:
                raise
            self._ahead = 0
            self.file.truncate(buffer.start)  # there may be room for what has to be there
            self._reached = 0
            return False
        return True

    def cut(self, end: int) -> None:
        """Shorten the segment; synced, so that what is cut cannot come back after new records."""
        self.buffer.drop()
        if end <= HEADER.size:
            self.begun_at = None
        self.file.truncate(end)
        self.file.sync()
        self.buffer.start = end
        self._reached = 0
        self.durable_end = min(self.durable_end, end)
        self._sync_end = min(self._sync_end, end)
        self.buffer.sync_due = True

    def take_back(self, start: int) -> None:
        """Take back everything from `start` on, in the buffer if it is all there; no whole transaction is in it."""
        if start < self.buffer.start:
            self.cut(start)
        else:
            self.buffer.cut(start - self.buffer.start)
            self.buffer.sync_due = True

    def trim(self) -> None:
        """Give the segment its true length: no zeros after its last record."""
        if self._reached > self.buffer.start:
            self.file.truncate(self.buffer.start)
            self._reached = 0

    # --- syncs ---------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Sync under the log's lock: everything written is durable then."""
        self.file.sync()
        self.begin_sync(self.buffer.start)
        self.synced()

    def begin_sync(self, end: int) -> None:
        """Take note that a sync begins; what is written up to `end` is whole."""
        self._sync_end = end

    def synced(self) -> None:
        """Take note that the sync that was begun last has ended: the next record is one that says so."""
        self.syncs += 1
        self.durable_end = self._sync_end
        self.buffer.sync_due = True

    def prove(self) -> None:
        """Put a sync record before the next record, if a sync has ended since the last one."""
        if self.buffer.sync_due:
            stamp = self._clock.now_ms()
            if self.begun_at is None:
                self.begun_at = stamp
            self._hashed_at = self.end
            self.buffer.put(self.sync_record(self.end, self.durable_end, stamp))
            self.buffer.sync_due = False

    def announce(self, *, checksums: bool) -> None:
        """Have a sync record say, where it was otherwise, whether the records that come next have checksums."""
        if checksums is not self.checksums:
            self.checksums = checksums
            self.buffer.sync_due = True

    def sync_record(self, at: int, durable_end: int, stamp: int, number: int = 0) -> bytes:
        """Return the sync record to be put at offset `at` of a segment, the newest one by default.

        A segment's first one names the history.
        """
        history = self.history if at == HEADER.size else b""
        place, durable = lsn(number or self.number, at), lsn(self.number, durable_end)
        seqno, h = self._hashed()
        return encode_sync(place, durable, stamp, history, seqno=seqno, h=unsigned(h), checksums=self.checksums)

    # --- the end of a segment ------------------------------------------------------------------------

    def name_next(self) -> None:
        """Put the record that names the next segment, the last one of this."""
        record = encode_rotate(segment_name(self.number + 1))
        self.file.pwrite(record, self.buffer.start)
        self.buffer.start += len(record)

    def begin_next(self, head: bytes, begun_at: int | None) -> OSError | None:
        """Begin the next segment with `head`, durable; return the error of a disk that was full, and nothing is left.

        The newest one may only lose its last record once there is certainly no next one.
        """
        number = self.number + 1
        try:
            file = create_segment(self._directory, self._disk, number, head)
        except OSError as exc:
            if exc.errno not in DISK_FULL:
                raise
            path = join(self._directory, segment_name(number))
            if self._disk.exists(path):
                self._disk.unlink(path)
                self._disk.sync_dir(self._directory)
            return exc
        self.file.close()
        logger.debug("Rotated. from=%s to=%s", segment_name(self.number), segment_name(number))
        self.file = file
        self.number = number
        self.begun_at = begun_at
        self.buffer.room = 0
        self.buffer.start = self.durable_end = self._sync_end = self._hashed_at = len(head)
        self._ahead = self._options.ahead_bytes
        return None

    def end_cleanly(self) -> None:
        """Write into the segment that all of it is durable, and give it its true length; or leave it as it was."""
        end = self.buffer.start
        try:
            proof = self.sync_record(end, end, self._clock.now_ms())
            self.file.pwrite(proof, end)
            self.buffer.start = end + len(proof)
            self.trim()
            self.file.sync()
        except OSError:
            with contextlib.suppress(OSError):
                self.file.truncate(end)
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self.number:
            self.file.close()
