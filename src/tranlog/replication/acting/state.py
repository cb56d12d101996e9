"""The file with a node's vote and configuration, on the disk.

Owns when its two slots are written and synced: one, then the other, before the caller goes on.

Source: docs/protocol.md, "Elections", "Configuration", "The file of a node".
"""

from __future__ import annotations

import posixpath

from tranlog.disk import Disk
from tranlog.errors import DiskFailedError
from tranlog.replication.rules.stored import SLOT_BYTES, Stored, read_slots, slot_bytes

FILE = "node"
NEW = ".new"
"""What the first one is called until it is whole."""


class StateFile:
    """`node` in a directory, which exists. One thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.path = posixpath.join(directory, FILE)
        self._directory = directory
        self._disk = disk
        self._number = 0

    @property
    def number(self) -> int:
        """The number of the last write, which rises; 0 before the first."""
        return self._number

    def load(self, group: str | None = None) -> Stored | None:
        """Return what was stored last, None if nothing was; repair a slot that is older or damaged.

        `group`: the group to which it must belong; None: any.

        Raises GroupFileError if neither slot is valid, or they belong to another group; DiskFailedError.
        """
        if not self._disk.exists(self.path):
            return None
        try:
            file = self._disk.open(self.path)
            raw = file.pread(2 * SLOT_BYTES, 0)
            file.close()
        except OSError as exc:
            raise DiskFailedError(path=self.path, why=str(exc)) from exc
        stored, self._number, equal = read_slots(raw, path=self.path, group=group)
        if not equal:
            self.store(stored)
        return stored

    def store(self, stored: Stored) -> None:
        """Store this durably in both slots. Raises DiskFailedError; it is unknown then what is stored."""
        self._number += 1
        raw = slot_bytes(stored, self._number)
        new = not self._disk.exists(self.path)
        try:
            file = self._disk.open(self.path + NEW if new else self.path, write=True, create=new)
            try:
                for at in (0, SLOT_BYTES):
                    file.pwrite(raw, at)
                    file.sync()
            finally:
                file.close()
            if new:
                self._disk.rename(self.path + NEW, self.path)
                self._disk.sync_dir(self._directory)
        except OSError as exc:
            raise DiskFailedError(path=self.path, why=str(exc)) from exc
