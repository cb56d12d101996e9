"""The stored index as readers use it: read when a place is first asked for, and again when it was renewed.

Owns what is read of the file and when; which of it belongs to the log as the reader knows it is `segment`'s to say,
how it lies in the file `index_table`'s. The hard idea: the file is a hint by another process, which goes on writing it.
So nothing in it is an answer: where a transaction is sought at a place that it names, the record there has to say so.
"""

from __future__ import annotations

import logging

from tranlog.disk import Disk, DiskFile
from tranlog.errors import IndexDamagedError
from tranlog.log.files.index_table import apply_frames
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom

logger = logging.getLogger(__name__)


class IndexReader:
    """Reads the stored index again and again. Threads: one at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._file: DiskFile | None = None
        self._table: dict[int, bytes] = {}
        self._end = 0  # after the last good frame that was read
        self._size = -1  # of the file, when it was looked at last
        self._told = False

    def read(self) -> tuple[SeqnoIndex, BuiltFrom] | None:
        """Return what is stored if that is new since the last call; None for nothing new, or nothing that is whole."""
        try:
            return self._read()
        except FileNotFoundError:
            return None
        except (OSError, IndexDamagedError) as exc:
            if not self._told:
                self._told = True
                logger.warning("The stored index is ignored; seeking takes longer. path=%s why=%s", self._path, exc)
            return None

    def _read(self) -> tuple[SeqnoIndex, BuiltFrom] | None:
        if self._file is not None and not self._file.linked():
            self.close()
        if self._file is None:
            self._file = self._disk.open(self._path)
        size = self._file.size()
        if size == self._size:
            return None
        self._size = size
        end = apply_frames(self._table, self._file.pread(max(size - self._end, 0), self._end), begun=self._end > 0)
        if not end:
            if not self._end:
                raise IndexDamagedError(why="it begins with no whole frame")
            return None
        self._end += end
        found = SeqnoIndex.restore(self._table)
        self._told = False
        return found

    def read_again(self) -> None:
        """Make the next `read` return what is stored, new or not."""
        self.close()

    def close(self) -> None:
        """Let go of the file, and of what was read; closing twice is harmless."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._table = {}
        self._end, self._size = 0, -1
