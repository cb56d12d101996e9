"""The stored index: a small table in one file, to which every flush appends its change.

Owns the file `index.table`, its frames and when it is rewritten; what the keys and values mean is `index`'s. The
hard idea: the table is never needed. A frame counts only when all of it is there and its checksum holds, and nothing
after a frame that does not; so whatever a crash leaves is an older index, which the log continues, or none, which
costs a look at every segment. Nothing is ever synced for it.

Source: docs/decisions/0010-index-table.md.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from tranlog.checksum import crc32
from tranlog.disk import Disk, DiskFile
from tranlog.errors import IndexDamagedError
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom, FlushPlan

logger = logging.getLogger(__name__)

INDEX_NAME = "index.table"

TABLE_HEADER_FIELDS: Final = (("magic", 4), ("version", 2), ("reserved", 2))
FRAME_FIELDS: Final = (("length", 4), ("crc", 4), ("deleted", 4), ("stored", 4), ("keys", 0), ("values", 0))

_HEADER = struct.Struct(">4sHH")
"""Magic, version, zero."""
_MAGIC = b"TLIX"
_VERSION = 1
_FRAME = struct.Struct(">II")
"""Length of the body, CRC-32 of the body."""
_COUNTS = struct.Struct(">II")
"""Body: number of deleted keys, number of stored ones; then the keys (i64), then key, length and value of each."""
_KEY = struct.Struct(">q")
_VALUE = struct.Struct(">qI")

_SPARE_BYTES = 256 * 1024
"""Bytes that later frames may take, beside as many again as the table held, before it is rewritten."""


def encode_frame(puts: Mapping[int, bytes], deletes: tuple[int, ...]) -> bytes:
    """Return the frame that changes the table: `deletes` first, then `puts`."""
    parts = [_COUNTS.pack(len(deletes), len(puts))]
    parts += [_KEY.pack(key) for key in deletes]
    for key, raw in puts.items():
        parts += (_VALUE.pack(key, len(raw)), raw)
    body = b"".join(parts)
    return _FRAME.pack(len(body), crc32(body)) + body


def _apply(table: dict[int, bytes], body: bytes) -> None:
    """Change the table by a frame's body. Raises struct.error or IndexError for one that contradicts itself."""
    deletes, puts = _COUNTS.unpack_from(body)
    at = _COUNTS.size
    for _ in range(deletes):
        table.pop(_KEY.unpack_from(body, at)[0], None)
        at += _KEY.size
    for _ in range(puts):
        key, length = _VALUE.unpack_from(body, at)
        at += _VALUE.size
        if at + length > len(body):
            raise struct.error("a value passes its frame")
        table[key] = body[at : at + length]
        at += length


def apply_frames(table: dict[int, bytes], raw: bytes, *, begun: bool = False) -> int:
    """Change the table by the good frames in `raw`; return where they end, and 0 for nothing that is ours.

    `raw` is the file from its first byte or, where that was read before (`begun`), from after a good frame.
    """
    at = 0
    if not begun:
        if len(raw) < _HEADER.size or _HEADER.unpack_from(raw)[:2] != (_MAGIC, _VERSION):
            return 0
        at = _HEADER.size
    while at + _FRAME.size <= len(raw):
        length, crc = _FRAME.unpack_from(raw, at)
        body = raw[at + _FRAME.size : at + _FRAME.size + length]
        if len(body) < length or not length or crc32(body) != crc:
            break
        try:
            _apply(table, body)
        except struct.error:
            break
        at += _FRAME.size + length
    return at


def decode_table(raw: bytes) -> dict[int, bytes]:
    """Return what the good frames of a file hold; nothing for a file that is none of ours."""
    table: dict[int, bytes] = {}
    apply_frames(table, raw)
    return table


def good_bytes(raw: bytes) -> int:
    """Return where the good frames of a file end; what stands after counts for nothing."""
    return apply_frames({}, raw)


def read_index(path: str, disk: Disk) -> tuple[SeqnoIndex, BuiltFrom] | None:
    """Return the stored index at `path`; None if there is none, or none that holds together."""
    try:
        with closing(disk.open(path)) as file:
            table = decode_table(file.pread(file.size(), 0))
        return SeqnoIndex.restore(table) if table else None
    except FileNotFoundError:
        return None
    except (OSError, IndexDamagedError) as exc:
        logger.warning("The stored index is ignored. path=%s why=%s", path, exc)
        return None


class IndexTable:
    """The table, as its one writer sees it. The first `store` rewrites it, whatever was there.

    Threads: one at a time.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._file: DiskFile | None = None
        self._whole = 0  # its size when it was rewritten
        self._end = 0

    def store(self, plan: FlushPlan, image: Callable[[], Mapping[int, bytes]]) -> None:
        """Store a plan, all of it or nothing; `image` is asked for everything when the table is rewritten.

        Raises OSError; what is stored is then what it was, or nothing.
        """
        frame = encode_frame(plan.puts, plan.deletes)
        try:
            if self._end == 0 or self._end + len(frame) > 2 * self._whole + _SPARE_BYTES:
                self._write_anew(encode_frame(image(), ()))
                return
            if self._file is None:
                self._file = self._disk.open(self._path, write=True)
            self._file.pwrite(frame, self._end)
        except OSError:
            self._end = 0  # whatever stands there now: the next one begins again
            self.close()
            raise
        self._end += len(frame)

    def _write_anew(self, frame: bytes) -> None:
        self.close()
        fresh = self._path + ".new"
        raw = _HEADER.pack(_MAGIC, _VERSION, 0) + frame
        with closing(self._disk.open(fresh, write=True, create=True)) as file:
            file.truncate(0)
            file.pwrite(raw, 0)
        self._disk.rename(fresh, self._path)
        self._whole = self._end = len(raw)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._file is not None:
            self._file.close()
            self._file = None
