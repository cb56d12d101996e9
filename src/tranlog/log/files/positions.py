"""What the writer tells readers in other processes: `positions`.

Owns the small file's form, its reader and its writer. The hard idea: it is only worth something while the memory of the
machine is the one it was written in and the file is the one that the writer has open, so it carries the boot id
and its own file's identity; a copy, or a start of the machine, makes a reader scan instead. Compiled, see
`tranlog.compiled`.

Source: docs/format.md.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Final, NamedTuple

from tranlog.checksum import crc32
from tranlog.disk import Disk, DiskFile
from tranlog.ids import NO_EPOCH, NO_HISTORY, NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.rules.recovery import NOTHING_PUBLISHED, Published

NO_LSN: Final = Lsn(0)
POSITIONS_NAME: Final = "positions"
POSITIONS_MAGIC: Final = b"THLPOSN2"

POSITIONS: Final = struct.Struct(">8s36sQQQqqqqQ16s")
"""The positions block without its crc; docs/format.md lists the fields."""
POSITIONS_FIELDS: Final = (
    ("magic", 8),
    ("boot_id", 36),
    ("identity", 8),
    ("epoch", 8),
    ("mark", 8),
    ("first_seqno", 8),
    ("visible_seqno", 8),
    ("durable_seqno", 8),
    ("committed_seqno", 8),
    ("visible_lsn", 8),
    ("history", 16),
    ("crc", 4),
)
_CRC: Final = struct.Struct(">I")
POSITIONS_BYTES: Final = POSITIONS.size + _CRC.size

Places = tuple[Epoch, int, Seqno, Seqno, Seqno, Seqno, Lsn, bytes]
"""What a writer publishes: the fields of `Positions` after the first two."""
_IDENTITY: Final = 0xFFFF_FFFF_FFFF_FFFF


class Positions(NamedTuple):
    """What a writer published last; the fields are in the order of `POSITIONS`.

    `mark` is the number of the last rollback mark that readers honour, 0 for none. `first_seqno` is the first that the
    log holds or will hold. `visible_lsn` is where the transaction `visible_seqno` begins, 0 while there is none.
    `identity` is the positions file's own, `history` that of the log's history.
    """

    boot_id: str
    identity: int
    epoch: Epoch = NO_EPOCH
    mark: int = 0
    first_seqno: Seqno = NO_SEQNO
    visible_seqno: Seqno = NO_SEQNO
    durable_seqno: Seqno = NO_SEQNO
    committed_seqno: Seqno = NO_SEQNO
    visible_lsn: Lsn = NO_LSN
    history: bytes = NO_HISTORY


def encode_positions(positions: Positions) -> bytes:
    """Return the block that the positions file consists of."""
    return _encode(positions.boot_id.encode()[:36], positions.identity & _IDENTITY, positions[2:])


def _encode(boot_id: bytes, identity: int, places: Places) -> bytes:
    epoch, mark, first, visible, durable, committed, visible_lsn, history = places
    body = POSITIONS.pack(
        POSITIONS_MAGIC, boot_id, identity, epoch, mark, first, visible, durable, committed, visible_lsn, history
    )
    return body + _CRC.pack(crc32(body))


def decode_positions(raw: bytes) -> Positions | None:
    """Read a block; None if it is damaged, cut short or of another version."""
    if len(raw) < POSITIONS_BYTES:
        return None
    body = raw[: POSITIONS.size]
    if _CRC.unpack_from(raw, POSITIONS.size)[0] != crc32(body):
        return None
    magic, boot_id, *others = POSITIONS.unpack(body)
    if magic != POSITIONS_MAGIC:
        return None
    return Positions(boot_id.rstrip(b"\0").decode(errors="replace"), *others)


def read_positions(path: str, disk: Disk) -> Positions | None:
    """Read the positions file of the log at `path`; None if it is missing, unreadable or damaged."""
    return _read_positions(path, disk)[0]


def _read_positions(path: str, disk: Disk) -> tuple[Positions | None, int]:
    """Return what the positions file says, if it can be read, and its own identity."""
    try:
        with contextlib.closing(disk.open(f"{path.rstrip('/')}/{POSITIONS_NAME}")) as file:
            return decode_positions(file.pread(POSITIONS_BYTES, 0)), file.identity()
    except OSError:
        return None, 0


def read_published(path: str, disk: Disk) -> Published:
    """Return what the positions file of the log at `path` says of how far the log went.

    In the boot in which it was written that is what was visible, later what was synced.
    """
    positions, identity = _read_positions(path, disk)
    if positions is None or not positions.boot_id:  # a repair leaves one that speaks of nothing but epochs
        return NOTHING_PUBLISHED
    if positions.identity != identity & _IDENTITY:
        return Published(copied=True)
    same = positions.boot_id == disk.boot_id()
    seqno = positions.visible_seqno if same else positions.durable_seqno
    return Published(seqno=seqno, epoch=positions.epoch, mark=positions.mark)


class PositionsReader:
    """Reads the positions file again and again. Not for threads.

    Shape: `read` returns None whenever the file cannot be trusted: missing, damaged, a copy, of another boot, or of
    another `history` where that is known; the same object while nothing was published.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = f"{path.rstrip('/')}/{POSITIONS_NAME}"
        self._disk = disk
        self._boot_id = disk.boot_id()
        self._file: DiskFile | None = None
        self._identity = 0
        self._seen: Positions | None = None  # what was returned last
        self._last: tuple[bytes, Positions] | None = None  # the block that was believed last, and what it says
        self.history: bytes | None = None

    def read(self) -> Positions | None:
        """Return what the writer published last, if this file is the one that it publishes in.

        Where nothing was published since the last look, the file may be one that was removed, and is looked up again.
        """
        found = self._read()
        if found is not None and found is self._seen:
            self.look_again()
            found = self._read()
        self._seen = found
        return found

    def _read(self) -> Positions | None:
        try:
            if self._file is None:
                self._file = self._disk.open(self._path)
                self._identity = self._file.identity()
            raw = self._file.pread(POSITIONS_BYTES, 0)
        except OSError:
            return None
        if self._last is None or self._last[0] != raw:
            positions = decode_positions(raw)
            if positions is None or positions.boot_id != self._boot_id or positions.identity != self._identity:
                return None
            self._last = raw, positions
        positions = self._last[1]
        return positions if self.history in (None, positions.history) else None

    def look_again(self) -> None:
        """Reopen the file at the next read if it was removed or replaced."""
        if self._file is not None and not self._file.linked():
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = self._last = None


class PositionsFile:
    """The writer's end of the positions file. The log's lock guards it."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Open or create it. Raises OSError."""
        self._path = f"{path.rstrip('/')}/{POSITIONS_NAME}"
        self._disk = disk
        self._boot_id = disk.boot_id().encode()[:36]
        self._file = disk.open(self._path, write=True, create=True)
        self._identity = self._file.identity() & _IDENTITY
        self._places: Places | None = None  # those that are encoded already
        self._block = b""
        if self._file.size() < POSITIONS_BYTES:  # take its room while a full disk can still be refused
            self._file.pwrite(bytes(POSITIONS_BYTES), 0)

    def prepare(self, places: Places) -> None:
        """Encode what is likely to be written next."""
        if places != self._places:
            self._block = _encode(self._boot_id, self._identity, places)
            self._places = places

    def write(self, places: Places) -> None:
        """Publish: one pwrite of the whole block. Raises OSError."""
        self.prepare(places)
        self._file.pwrite(self._block, 0)

    def restore(self) -> bool:
        """Create the file again if somebody removed it; whether that was so. Raises OSError."""
        if self._file.linked():
            return False
        self._file.close()
        self._file = self._disk.open(self._path, write=True, create=True)
        self._identity = self._file.identity() & _IDENTITY
        self._places = None
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
