"""XA transactions between their PREPARE and their COMMIT or ROLLBACK.

Owns the events of the branches that are prepared and have captured changes, and from which place on the binlog is
needed for them. The hard idea: the binlog has a branch's rows at its PREPARE, which may be days before the COMMIT that
makes them true. So they wait here, beside the log, and what would be lost in a crash is read again: an event id holds
the place before the oldest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tranlog.source.mariadb.events import Xid
from tranlog.source.mariadb.groups import EventGroup, tables_of
from tranlog.source.mariadb.position import BinlogPosition, DomainGtid, is_newer_file
from tranlog.source.waiting import WaitingEvents


class _Branch(msgspec.Struct):
    group: EventGroup
    warned_age: bool = False
    warned_purge: bool = False

    def __str__(self) -> str:
        beyond = ", ".join(map(".".join, self.group.beyond))
        return f"{self.group.gtid.xid} on {beyond or tables_of(self.group.events) or 'no table'}"


class PreparedBranches:
    """The branches that are prepared, oldest first. Threads: one."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._held: dict[Xid, _Branch] = {}
        self._unmet: set[Xid] = set()

    def __len__(self) -> int:
        return len(self._held)

    def expect(self, xids: Iterable[Xid]) -> None:
        """Forget all, and know that these are prepared: the binlog must bring each."""
        self.clear()
        self._unmet = set(xids)

    @property
    def unmet(self) -> list[str]:
        """The expected ones that have not come, in order."""
        return sorted(map(str, self._unmet))

    def take(self, group: EventGroup) -> None:
        """Hold what a transaction prepares, forget what it ends; forget the events of any other transaction."""
        if group.again and group.gtid.xid is not None:
            self._unmet.discard(group.gtid.xid)
        if group.xa == "prepare" and group.changes:
            self.hold(group)
            return
        group.events.close()
        if group.xa is not None and group.gtid.xid is not None:
            self.end(group.gtid.xid)

    def changes_of(self, group: EventGroup) -> EventGroup | None:
        """Return the group with the changes that a transaction makes true; None where it makes none of ours true."""
        if group.void or group.xa in ("prepare", "rollback"):
            return None
        return self.of(group.gtid.xid) if group.xa == "commit" else group

    def position_after(self, group: EventGroup) -> BinlogPosition:
        """Return the position after a transaction, with the place of the oldest branch that is then prepared."""
        prepared = self.oldest(but=group.gtid.xid)
        if group.xa == "prepare" and group.changes and prepared is None:
            prepared = group.gtids_before
        return group.position if prepared is None else msgspec.structs.replace(group.position, prepared=prepared)

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
        """Return the place after which all are to be read again, one of them left out; None where there is none."""
        return next((branch.group.gtids_before for xid, branch in self._held.items() if xid != but), None)

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
                    "The binlog before a prepared XA transaction is purged: a restart of capture cannot go on "
                    f"before it ends. xid={branch}"
                )
