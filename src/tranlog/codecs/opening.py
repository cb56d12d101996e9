"""Opening a log directory of either codec: which one it is in, and what readers of transactions get.

Owns the seam's one door. `log.reading.readable` says what it opens.
"""

from __future__ import annotations

import enum
import os
from typing import Final

from tranlog.disk import Disk, OsDisk
from tranlog.errors import LogMissingError, LogUnreadableError, MixedCodecsError
from tranlog.log.files.directory import directory_of
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import is_tungsten
from tranlog.tungsten.files.segments import join, names_in
from tranlog.tungsten.reading.translated import TranslatedReader
from tranlog.tungsten.records.codec import is_native, segment_number

_PROBE_BYTES: Final = 256


class Codec(enum.StrEnum):
    """Whose format a log is in."""

    NATIVE = "native"
    TUNGSTEN = "tungsten"


def codec_of(path: str, disk: Disk | None = None) -> Codec:
    """Return the codec of a log directory; one with headers only counts as native.

    What is damaged in one segment does not decide: a segment that is in neither codec is passed over.
    Raises LogMissingError where there is no segment, LogUnreadableError, MixedCodecsError.
    """
    on = OsDisk() if disk is None else disk
    names = [name for name in names_in(path, on) if segment_number(name) is not None]
    if not names:
        raise LogMissingError(path=path, why="it holds no segment (thl.data.*)")
    found: dict[Codec, str] = {}
    for name in names:
        try:
            file = on.open(join(path, name))
        except FileNotFoundError:  # purged meanwhile
            continue
        except OSError as exc:
            raise LogUnreadableError(path=join(path, name), why=exc.strerror or str(exc)) from exc
        try:
            raw = file.pread(_PROBE_BYTES, 0)
        except OSError as exc:
            raise LogUnreadableError(path=join(path, name), why=exc.strerror or str(exc)) from exc
        finally:
            file.close()
        if is_native(raw):
            found.setdefault(Codec.NATIVE, name)
        elif is_tungsten(raw):
            found.setdefault(Codec.TUNGSTEN, name)
    if len(found) > 1:
        raise MixedCodecsError(path=path, native=found[Codec.NATIVE], tungsten=found[Codec.TUNGSTEN])
    return next(iter(found), Codec.NATIVE)


def open_readable(path: str | os.PathLike[str], *, disk: Disk | None = None, checksum: bool = True) -> ReadableLog:
    """Open a log directory of either codec for reading. Raises what either raises, MixedCodecsError."""
    directory = directory_of(path)
    on = OsDisk() if disk is None else disk
    if codec_of(directory, on) is Codec.TUNGSTEN:
        return TranslatedReader(directory, disk=on, checksum=checksum)
    return LogReader.open(directory, disk=on, checksum=checksum)
