"""What a durable commit is held against: as many bytes, by one write and one sync, into a file that has its length.

Nobody's log can do better on the same disk: no new length to note, no index, no reader to be told.
"""

from __future__ import annotations

import os
from pathlib import Path


class BareDisk:
    """A file that has its length."""

    LENGTH = 1 << 24

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self._file, bytes(self.LENGTH), 0)
        os.fsync(self._file)
        self._at = 0

    def write(self, commits: int, size: int) -> None:
        """Write so many bytes and sync them, once for each commit."""
        raw = os.urandom(size)
        for _ in range(commits):
            if self._at + size > self.LENGTH:
                self._at = 0
            self._at += os.pwrite(self._file, raw, self._at)
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
