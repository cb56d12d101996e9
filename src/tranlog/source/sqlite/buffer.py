"""The row changes of one open SQLite transaction, cut back as statements fail and savepoints roll back. Pure.

Owns what a writer's connection remembers until COMMIT. The hard idea: the preupdate hook reports every row, also
those that a failing statement or a ROLLBACK TO takes back, so the buffer is a stack of marks over a list. A
statement that failed has either kept all its changes (conflict resolution FAIL) or none; `net_change` names one
row in which the two differ, and the database is asked which it was.

Source: design/sources.md, "SQLite, the embedded default".
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tranlog.change import Op, Statement, TableMap
from tranlog.types import Value

Place: TypeAlias = int | tuple[Value, ...]
"""Where a row stands: its rowid, or its key in a table WITHOUT ROWID."""


class BufferedRow(NamedTuple):
    """One row change: images in `payload.encode_row` bytes, and the row's place before and after."""

    table: TableMap
    op: Op
    before: bytes | None
    after: bytes | None
    old_place: Place
    new_place: Place


Entry: TypeAlias = BufferedRow | Statement


class NetChange(NamedTuple):
    """A row that a run of changes left different: absent is None."""

    table: str
    place: Place
    before: bytes | None
    after: bytes | None


class TransactionBuffer:
    """The changes of the open transaction, with SQLite's stack of savepoints. Not for threads."""

    __slots__ = ("_savepoints", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._savepoints: list[tuple[str, int]] = []

    def __len__(self) -> int:
        """The number of entries; what a mark is."""
        return len(self.entries)

    @property
    def savepoints(self) -> int:
        """How many savepoints are open."""
        return len(self._savepoints)

    def cut(self, mark: int) -> None:
        """Forget what came after a mark."""
        del self.entries[mark:]

    def savepoint(self, name: str) -> None:
        """Open a savepoint; an equal name hides the older one."""
        self._savepoints.append((name, len(self.entries)))

    def release(self, name: str) -> None:
        """Close the innermost savepoint of that name and all inside it; their changes stay."""
        at = self._find(name)
        assert at >= 0, "SQLite released a savepoint that was never seen"
        del self._savepoints[at:]

    def rollback_to(self, name: str) -> None:
        """Forget what came after the innermost savepoint of that name; it stays open, those inside it end."""
        at = self._find(name)
        assert at >= 0, "SQLite rolled back to a savepoint that was never seen"
        self.cut(self._savepoints[at][1])
        del self._savepoints[at + 1 :]

    def outermost(self, name: str) -> bool:
        """Whether releasing `name` would close every savepoint."""
        return self._find(name) == 0

    def _find(self, name: str) -> int:
        """Return the index of the innermost savepoint called `name`, -1 when there is none."""
        for at in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[at][0] == name:
                return at
        return -1

    def holds(self, name: str) -> bool:
        """Whether a savepoint of that name is open."""
        return self._find(name) >= 0

    def forget_changes(self) -> None:
        """Forget the changes, which were written elsewhere. Only while no savepoint is open."""
        assert not self._savepoints
        self.entries.clear()

    def clear(self) -> None:
        """Forget all: the transaction ended."""
        self.entries.clear()
        self._savepoints.clear()


def net_change(entries: list[Entry]) -> NetChange | None:
    """Return one row that the changes left different, None when they cancel each other out."""
    rows: dict[tuple[str, Place], list[bytes | None]] = {}

    def note(table: str, place: Place, before: bytes | None, after: bytes | None) -> None:
        images = rows.get((table, place))
        if images is None:
            rows[table, place] = [before, after]
        else:
            images[1] = after

    for entry in entries:
        if isinstance(entry, Statement):
            continue
        name = entry.table.table
        if entry.op is Op.UPDATE and entry.old_place == entry.new_place:
            note(name, entry.new_place, entry.before, entry.after)
            continue
        if entry.op is not Op.INSERT:
            note(name, entry.old_place, entry.before, None)
        if entry.op is not Op.DELETE:
            note(name, entry.new_place, None, entry.after)
    for (name, place), (before, after) in rows.items():
        if before != after:
            return NetChange(name, place, before, after)
    return None
