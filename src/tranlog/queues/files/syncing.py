"""Syncs of a store's containers, one at a time.

The system reports lost bytes once per open file. If two threads sync it, one of them gets the error, and the other one
must not trust its own sync.
"""

from __future__ import annotations

import threading

from tranlog.disk import DiskFile


class OneSync:
    """Syncs files; after a failed sync, every sync fails. Threads: any. `count` is the number of syncs."""

    __slots__ = ("_failure", "_lock", "count")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self.count = 0

    def sync(self, file: DiskFile) -> None:
        """Return when the file's bytes are durable. Raises OSError."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                file.sync()
            except OSError as exc:
                self._failure = exc
                raise
            self.count += 1
