"""The row changes of one open SQLite transaction, cut back as statements fail and savepoints roll back. Pure.

Owns what a writer's connection remembers until COMMIT. The hard idea: the preupdate hook reports every row, also
those that a failing statement or a ROLLBACK TO takes back, so the buffer is a stack of marks over a list. A
statement that failed has either kept all its changes (conflict resolution FAIL) or none; `net_change` names one
row in which the two differ, and the database is asked which it was. One statement may change a million rows before
anything can be handed on, so what has grown large is moved to a spill file, which the caller opens, and comes back
by parts.

Source: design/sources.md, "SQLite, the embedded default".
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from typing import IO, Final, NamedTuple, TypeAlias

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


SPILL_ENTRIES: Final = 20_000
"""From so many entries in memory on they are moved to the spill file."""
SPILL_BYTES: Final = 8 << 20
"""The same for bytes of images."""
_NET_ROWS: Final = 20_000
"""Rows whose net change is followed at a time, about."""


class _Part(NamedTuple):
    """Entries in the spill file: the number of the first, that behind the last, and where their bytes lie."""

    first: int
    behind: int
    offset: int
    size: int


class TransactionBuffer:
    """The changes of the open transaction, with SQLite's stack of savepoints. Not for threads.

    `entries` are the newest, in memory; older ones may be in a spill file, opened by `open_spill`. Both are numbered
    from the transaction's first. Whatever reads or writes that file may raise OSError.
    """

    __slots__ = ("_end", "_file", "_open_spill", "_parts", "_savepoints", "_tables", "entries", "spilled")

    def __init__(self, open_spill: Callable[[], IO[bytes]] | None = None) -> None:
        self.entries: list[Entry] = []
        self.spilled = 0
        """How many entries are in the spill file: the number of the first in memory."""
        self._open_spill = open_spill
        self._file: IO[bytes] | None = None
        self._parts: list[_Part] = []
        self._end = 0
        self._tables: list[TableMap] = []
        self._savepoints: list[tuple[str, int]] = []

    def __len__(self) -> int:
        """The number of entries; what a mark is."""
        return self.spilled + len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries in order, a part of the spill file at a time."""
        return self._from(0)

    def since(self, mark: int) -> Collection[Entry]:
        """Return the entries behind a mark, as they are until the buffer changes."""
        return _Since(self, mark)

    def spill(self) -> None:
        """Move the entries in memory to the spill file."""
        if self._open_spill is None or not self.entries:
            return
        numbers = {id(table): number for number, table in enumerate(self._tables)}
        packed: list[Statement | tuple[object, ...]] = []
        for entry in self.entries:
            if isinstance(entry, Statement):
                packed.append(entry)
                continue
            number = numbers.get(id(entry.table))
            if number is None:
                number = numbers[id(entry.table)] = len(self._tables)
                self._tables.append(entry.table)
            packed.append((number, int(entry.op), *entry[2:]))
        raw = pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL)
        if self._file is None:
            self._file = self._open_spill()
        self._file.seek(self._end)
        self._file.write(raw)
        self._parts.append(_Part(self.spilled, self.spilled + len(packed), self._end, len(raw)))
        self._end += len(raw)
        self.spilled += len(packed)
        self.entries.clear()

    def _load(self, part: _Part) -> list[Entry]:
        assert self._file is not None
        self._file.seek(part.offset)
        tables = self._tables
        return [
            entry if isinstance(entry, Statement) else BufferedRow(tables[entry[0]], Op(entry[1]), *entry[2:])
            for entry in pickle.loads(self._file.read(part.size))  # what we wrote, into a file without a name
        ]

    def _from(self, mark: int) -> Iterator[Entry]:
        for part in self._parts:
            if part.behind > mark:
                yield from self._load(part)[max(0, mark - part.first) :]
        yield from self.entries[max(0, mark - self.spilled) :]

    def _forget_spilled(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._parts.clear()
        self._tables.clear()
        self._end = self.spilled = 0

    @property
    def savepoints(self) -> int:
        """How many savepoints are open."""
        return len(self._savepoints)

    def cut(self, mark: int) -> None:
        """Forget what came after a mark."""
        while self._parts and self.spilled > mark:
            part = self._parts.pop()
            self.entries = self._load(part) if part.first < mark else []
            self.spilled, self._end = part.first, part.offset
        del self.entries[mark - self.spilled :]

    def savepoint(self, name: str) -> None:
        """Open a savepoint; an equal name hides the older one."""
        self._savepoints.append((name, len(self)))

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
        self._forget_spilled()

    def clear(self) -> None:
        """Forget all: the transaction ended."""
        self.entries.clear()
        self._forget_spilled()
        self._savepoints.clear()


class _Since(Collection[Entry]):
    """The entries of a buffer from a mark on."""

    def __init__(self, buffer: TransactionBuffer, mark: int) -> None:
        self._buffer = buffer
        self._mark = mark

    def __len__(self) -> int:
        return len(self._buffer) - self._mark

    def __iter__(self) -> Iterator[Entry]:
        return self._buffer._from(self._mark)

    def __contains__(self, entry: object) -> bool:
        return any(entry == one for one in self)


def net_change(entries: Collection[Entry]) -> NetChange | None:
    """Return one row that the changes left different, None when they cancel each other out.

    Shape: memory is bounded; of many rows a part is followed at a time, and the first nearly always tells.
    """
    parts = len(entries) // _NET_ROWS + 1
    for number in range(parts):
        found = _net_change_of(entries, number, parts)
        if found is not None:
            return found
    return None


def _net_change_of(entries: Collection[Entry], number: int, parts: int) -> NetChange | None:
    rows: dict[tuple[str, Place], list[bytes | None]] = {}

    def note(table: str, place: Place, before: bytes | None, after: bytes | None) -> None:
        key = (table, place)
        if parts > 1 and hash(key) % parts != number:
            return
        images = rows.get(key)
        if images is None:
            rows[key] = [before, after]
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
