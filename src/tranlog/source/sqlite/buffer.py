"""The changes of one open SQLite transaction, cut back as statements fail and savepoints roll back. Pure.

Owns what a writer's connection remembers until COMMIT, entries of some changes in their raw form. The hard idea: the
preupdate hook reports every row, also those that a failing statement or a ROLLBACK TO takes back, so the buffer is a
stack of marks over a list. A statement that failed has either kept all its changes (conflict resolution FAIL) or none;
`net_change` names one row in which the two differ, and the database is asked which it was. One statement may change a
million rows before anything can be handed on, so what has grown large is moved to a spill file, which the caller opens,
and comes back by parts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import IO, Any, Final, NamedTuple

from tranlog.source.sqlite.hook import ROWS_OF_ENTRY
from tranlog.source.sqlite.raw import Place, RawRow, decode_entry

ImageOf = Callable[[int, RawRow], bytes]
"""Returns the bytes by which rows of one table are compared."""


class NetChange(NamedTuple):
    """A row that a run of changes left different: absent is None. `table` is the number of its table."""

    table: int
    place: Place
    before: bytes | None
    after: bytes | None


SPILL_BYTES: Final = 8 << 20
"""From so many bytes of changes in memory on they are moved to the spill file."""
_NET_ENTRIES: Final = 20_000 // ROWS_OF_ENTRY
"""Entries whose rows' net change is followed at a time, about."""


class _Part(NamedTuple):
    """Entries in the spill file: the number of the first, that after the last, where they lie, how long each is."""

    first: int
    end: int
    offset: int
    sizes: array[int]


class TransactionBuffer:
    """The changes of the open transaction, with SQLite's stack of savepoints. Not for threads.

    `entries` are the newest, in memory, each an array of up to 15 changes (see `hook`); it stays the same list. Older
    ones may be in a spill file, opened by `open_spill`. Both are numbered from the transaction's first. A mark lies
    between two of them: what waits in the hook is packed first. Whatever reads or writes that file may raise OSError.
    """

    __slots__ = ("_end", "_open_spill", "_parts", "entries", "file", "savepoints", "spilled")

    def __init__(self, open_spill: Callable[[], IO[bytes]] | None = None) -> None:
        self.entries: list[bytes] = []
        self.spilled = 0
        """How many entries are in the spill file: the number of the first in memory."""
        self._open_spill = open_spill
        self.file: IO[bytes] | None = None
        """The spill file, once there is one."""
        self._parts: list[_Part] = []
        self._end = 0
        self.savepoints: list[tuple[str, int]] = []
        """Those that are open, the outermost first: name and mark."""

    def __len__(self) -> int:
        """The number of entries; what a mark is."""
        return self.spilled + len(self.entries)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all entries in order, a part of the spill file at a time."""
        return self.entries_from(0)

    def since(self, mark: int) -> Collection[bytes]:
        """Return the entries after a mark, as they are until the buffer changes."""
        return _Since(self, mark)

    def spill(self) -> None:
        """Move the entries in memory to the spill file."""
        if self._open_spill is None or not self.entries:
            return
        sizes = array("Q", map(len, self.entries))
        if self.file is None:
            self.file = self._open_spill()
        self.file.seek(self._end)
        self.file.writelines(self.entries)
        self._parts.append(_Part(self.spilled, self.spilled + len(sizes), self._end, sizes))
        self._end += sum(sizes)
        self.spilled += len(sizes)
        self.entries.clear()

    def _load(self, part: _Part) -> list[bytes]:
        assert self.file is not None
        self.file.seek(part.offset)
        read = self.file.read
        return [read(size) for size in part.sizes]

    def entries_from(self, mark: int) -> Iterator[bytes]:
        """Yield the entries after a mark, a part of the spill file at a time."""
        for part in self._parts:
            if part.end > mark:
                yield from self._load(part)[max(0, mark - part.first) :]
        yield from self.entries[max(0, mark - self.spilled) :]

    def _forget_spilled(self) -> None:
        self._parts.clear()
        self._end = self.spilled = 0
        if self.file is not None:
            self.file.close()
            self.file = None

    def cut(self, mark: int) -> None:
        """Forget what came after a mark."""
        while self._parts and self.spilled > mark:
            part = self._parts.pop()
            self.entries[:] = self._load(part) if part.first < mark else []
            self.spilled, self._end = part.first, part.offset
        del self.entries[mark - self.spilled :]

    def savepoint(self, name: str) -> None:
        """Open a savepoint; an equal name hides the older one."""
        self.savepoints.append((name, len(self)))

    def release(self, name: str) -> None:
        """Close the innermost savepoint of that name and all inside it; their changes stay."""
        at = self._find(name)
        assert at >= 0, "SQLite released a savepoint that was never seen"
        del self.savepoints[at:]

    def rollback_to(self, name: str) -> None:
        """Forget what came after the innermost savepoint of that name; it stays open, those inside it end."""
        at = self._find(name)
        assert at >= 0, "SQLite rolled back to a savepoint that was never seen"
        self.cut(self.savepoints[at][1])
        del self.savepoints[at + 1 :]

    def outermost(self, name: str) -> bool:
        """Whether releasing `name` would close every savepoint."""
        return self._find(name) == 0

    def _find(self, name: str) -> int:
        """Return the index of the innermost savepoint called `name`, -1 when there is none."""
        for at in range(len(self.savepoints) - 1, -1, -1):
            if self.savepoints[at][0] == name:
                return at
        return -1

    def holds(self, name: str) -> bool:
        """Whether a savepoint of that name is open."""
        return self._find(name) >= 0

    def forget_changes(self) -> None:
        """Forget the changes, which were written elsewhere. Only while no savepoint is open."""
        assert not self.savepoints
        self.entries.clear()
        self._forget_spilled()

    def clear(self) -> None:
        """Forget all: the transaction ended."""
        self.entries.clear()
        if self.file is not None:
            self._forget_spilled()
        self.savepoints.clear()


class _Since(Collection[bytes]):
    """The entries of a buffer from a mark on."""

    def __init__(self, buffer: TransactionBuffer, mark: int) -> None:
        self._buffer = buffer
        self._mark = mark

    def __len__(self) -> int:
        return len(self._buffer) - self._mark

    def __iter__(self) -> Iterator[bytes]:
        return self._buffer.entries_from(self._mark)

    def __contains__(self, entry: object) -> bool:
        return any(entry == one for one in self)


def net_change(entries: Collection[bytes], image_of: ImageOf) -> NetChange | None:
    """Return one row that the changes left different, None when they cancel each other out.

    Shape: memory is bounded; of many rows a part is followed at a time, and the first nearly always tells.
    """
    parts = len(entries) // _NET_ENTRIES + 1
    for number in range(parts):
        found = _net_change_of(entries, image_of, number, parts)
        if found is not None:
            return found
    return None


def _net_change_of(entries: Collection[bytes], image_of: ImageOf, number: int, parts: int) -> NetChange | None:
    rows: dict[tuple[int, Place], list[bytes | None]] = {}

    def note(table: int, place: Any, before: list[Any] | None, after: list[Any] | None) -> None:
        key = (table, tuple(place) if type(place) is list else place)
        if parts > 1 and hash(key) % parts != number:
            return
        image = None if after is None else image_of(table, after)
        images = rows.get(key)
        if images is None:
            rows[key] = [None if before is None else image_of(table, before), image]
        else:
            images[1] = image

    for change in chain.from_iterable(map(decode_entry, entries)):
        table, before, after = change.table, change.before, change.after
        if isinstance(table, str):
            continue
        if before is not None and after is not None and change.old_place == change.new_place:
            note(table, change.new_place, before, after)
            continue
        if before is not None:
            note(table, change.old_place, before, None)
        if after is not None:
            note(table, change.new_place, None, after)
    for (table, place), (old, new) in rows.items():
        if old != new:
            return NetChange(table, place, old, new)
    return None
