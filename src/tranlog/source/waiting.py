"""Where the events of a transaction wait for its commit: in memory, or in a temporary file.

Owns the file and its errors. When an event is wanted no more is decided elsewhere.
"""

from __future__ import annotations

import errno
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Final

from tranlog.errors import DiskFailedError, DiskFullError

_EVENT_LENGTH: Final = struct.Struct("<I")


class WaitingEvents:
    """The events of one transaction: in memory up to a limit, beyond it in a temporary file without a name."""

    __slots__ = ("_directory", "_events", "_file", "_limit", "_size")

    def __init__(self, limit: int, directory: str | None) -> None:
        self._events: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._directory = directory
        self._file: IO[bytes] | None = None

    def append(self, event: bytes) -> None:
        """Add an event after the others. Raises DiskFullError, DiskFailedError."""
        self._events.append(event)
        self._size += len(event)
        if self._size > self._limit:
            self.spill()

    def extend(self, events: Sequence[bytes]) -> None:
        """Add events after the others. Raises DiskFullError, DiskFailedError."""
        self._events.extend(events)
        self._size += sum(map(len, events))
        if self._size > self._limit:
            self.spill()

    @property
    def memory(self) -> int:
        """Bytes of the events that are in memory."""
        return self._size

    def spill(self) -> None:
        """Move what is in memory to the file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, prefix="tranlog-")  # noqa: SIM115
            for event in self._events:
                self._file.write(_EVENT_LENGTH.pack(len(event)))
                self._file.write(event)
        except OSError as exc:
            self.close()
            raise self._failed(exc) from exc
        self._events.clear()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        """Return the events in the order in which they came."""
        file = self._file
        if file is not None:
            try:
                file.seek(0)
                while head := file.read(_EVENT_LENGTH.size):
                    yield file.read(_EVENT_LENGTH.unpack(head)[0])
            except OSError as exc:
                raise self._failed(exc) from exc
        yield from self._events

    def _failed(self, error: OSError) -> DiskFullError | DiskFailedError:
        path = self._directory or tempfile.gettempdir()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(path=path)
        return DiskFailedError(path=path, why=str(error))

    def close(self) -> None:
        """Forget the events."""
        self._events.clear()
        self._size = 0
        if self._file is not None:
            with suppress(OSError):  # what could not be written is not wanted any more
                self._file.close()
            self._file = None
