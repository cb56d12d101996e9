"""Opening a log directory of either codec: which one it is in, and what readers of transactions get.

Owns the seam's one door. `log.reading.readable` says what it opens.
"""

from __future__ import annotations

import enum
import os
from contextlib import closing
from typing import Final

from tranlog.disk import OS_DISK, Disk
from tranlog.errors import LogMissingError, MixedCodecsError
from tranlog.log.files.directory import directory_of, join, list_names, open_file, reading
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import is_tungsten
from tranlog.tungsten.reading.translated import TranslatedReader
from tranlog.tungsten.records.codec import is_native, segment_number

_PROBE_BYTES: Final = 256


class Codec(enum.StrEnum):
    """Whose format a log is in."""

    NATIVE = "native"
    TUNGSTEN = "tungsten"


def codec_of(path: str, disk: Disk = OS_DISK) -> Codec:
    """Return the codec of a log directory; one with headers only counts as native.

    What is damaged in one segment does not decide: a segment that is in neither codec is passed over.
    Raises LogMissingError where there is no segment, LogUnreadableError, MixedCodecsError.
    """
    names = [name for name in list_names(path, disk) if segment_number(name) is not None]
    if not names:
        raise LogMissingError(path=path, why="it holds no segment (thl.data.*)")
    found: dict[Codec, str] = {}
    for name in names:
        try:
            file = open_file(join(path, name), disk)
        except FileNotFoundError:  # purged meanwhile
            continue
        with closing(file), reading(join(path, name)):
            raw = file.pread(_PROBE_BYTES, 0)
        if is_native(raw):
            found.setdefault(Codec.NATIVE, name)
        elif is_tungsten(raw):
            found.setdefault(Codec.TUNGSTEN, name)
    if len(found) > 1:
        raise MixedCodecsError(path=path, native=found[Codec.NATIVE], tungsten=found[Codec.TUNGSTEN])
    return next(iter(found), Codec.NATIVE)


def open_readable(path: str | os.PathLike[str], *, disk: Disk = OS_DISK, checksum: bool = True) -> ReadableLog:
    """Open a log directory of either codec for reading. Raises what either raises, MixedCodecsError."""
    directory = directory_of(path)
    if codec_of(directory, disk) is Codec.TUNGSTEN:
        return TranslatedReader(directory, disk=disk, checksum=checksum)
    return LogReader.open(directory, disk=disk, checksum=checksum)
