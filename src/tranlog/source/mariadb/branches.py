"""XA transactions between their PREPARE and their COMMIT or ROLLBACK.

Owns the events of the branches that are prepared and have captured changes, and from which place on the binlog is
needed for them. The hard idea: the binlog has a branch's rows at its PREPARE, which may be days before the COMMIT that
makes them true. So they wait here, beside the log, and what would be lost in a crash is read again: an event id holds
the place in front of the oldest of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tranlog.source.mariadb.events import Xid
from tranlog.source.mariadb.groups import EventGroup, tables_of
from tranlog.source.mariadb.position import DomainGtid, is_newer_file
from tranlog.source.waiting import WaitingEvents


class _Branch(msgspec.Struct):
    group: EventGroup
    warned_age: bool = False
    warned_purge: bool = False

    def __str__(self) -> str:
        return f"{self.group.gtid.xid} on {tables_of(self.group.events) or 'no table'}"


class PreparedBranches:
    """The branches that are prepared, oldest first. Threads: one."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._held: dict[Xid, _Branch] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, group: EventGroup) -> None:
        """Keep a prepared branch. Raises DiskFullError, DiskFailedError.

        All of them together take `memory_bytes` of memory at most; the largest go to the disk first.
        """
        xid = group.gtid.xid
        assert xid is not None
        self.end(xid)  # prepared once more: a crash of the server undid the one before
        self._held[xid] = _Branch(group)
        stores = [
            branch.group.events for branch in self._held.values() if isinstance(branch.group.events, WaitingEvents)
        ]
        left = sum(store.memory for store in stores)
        for store in sorted(stores, key=lambda store: -store.memory):
            if left <= self._limit:
                break
            left -= store.memory
            store.spill()

    def of(self, xid: Xid | None) -> EventGroup | None:
        """Return the events of a branch; None for one that is not held, since none of its changes is captured."""
        branch = self._held.get(xid) if xid is not None else None
        return None if branch is None else branch.group

    def end(self, xid: Xid) -> None:
        """Forget a branch that was committed or rolled back."""
        branch = self._held.pop(xid, None)
        if branch is not None:
            branch.group.events.close()

    def clear(self) -> None:
        """Forget all."""
        for xid in list(self._held):
            self.end(xid)

    def oldest(self, *, but: Xid | None = None) -> tuple[DomainGtid, ...] | None:
        """Return the place behind which all are to be read again, one of them left out; None where there is none."""
        return next((branch.group.behind for xid, branch in self._held.items() if xid != but), None)

    def names(self) -> tuple[str, ...]:
        """Return xid and tables of each."""
        return tuple(map(str, self._held.values()))

    def warnings(self, now_s: int, age_s: float, oldest_file: str) -> Iterator[str]:
        """Yield what is to be said of branches, once of each: older than `age_s`, and purged in the binlog."""
        for branch in self._held.values():
            age = now_s - branch.group.timestamp
            if age > age_s and not branch.warned_age:
                branch.warned_age = True
                yield (
                    f"An XA transaction is prepared for {age} s: the binlog since then is needed until it ends. "
                    f"xid={branch}"
                )
            if is_newer_file(oldest_file, branch.group.position.file) and not branch.warned_purge:
                branch.warned_purge = True
                yield (
                    "The binlog in front of a prepared XA transaction is purged: a restart of capture cannot go on "
                    f"before it ends. xid={branch}"
                )
