"""SQLite's preupdate hook: what each row of every writer pays for. Pure, and compiled.

Owns the common case, a row that the hook gives as it is stored; all else is the recorder's. The hard idea: some rows
are encoded by one call, so rows wait in `pending`, and whoever reads or marks the buffer's entries packs them first.
They are few, so that Python's memory for one serves for the next, and none wait for others once rows are large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

ROWS_OF_ENTRY: Final = 15
"""Changes in one entry at most: MessagePack says the length of an array with up to so many members in one byte."""
ONE: Final = b"\x91"
"""What an entry of one change begins with."""
_INSERT: Final = 18
_UPDATE: Final = 23
_encode: Final[Callable[[list[Any]], bytes]] = msgspec.msgpack.Encoder().encode


class RowHook:
    """Takes the rows of one connection. Not for threads."""

    def __init__(self, entries: list[bytes], other: Callable[[Any], None], make_room: Callable[[], None]) -> None:
        self.entries = entries
        self.pending: list[Any] = []
        """Rows that are in no entry yet; none are, outside a statement."""
        self.numbers: dict[str, int] = {}
        """The tables of whose rows the hook tells all, -1 for one whose rows are passed over; others go to `other`."""
        self.others = False
        """Whether there may be tables in other schemas, whose names say nothing."""
        self.touched: set[int] = set()
        """The numbers of all tables that the buffer's changes name, and may be of some that were taken back."""
        self.last = -1
        """A number that `touched` has."""
        self.bytes = 0
        """How many bytes of changes the buffer holds, about."""
        self.spill_at = 0
        """From so many on `make_room` is called."""
        self.entry_bytes = 0
        """Below this many bytes an entry holds several changes."""
        self.poison: BaseException | None = None
        """Why the open transaction must not commit."""
        self._other = other
        self._make_room = make_room
        self._most = 1

    def on_row(self, update: Any) -> None:
        """Note a row change that SQLite is about to carry out. What this raised SQLite would ignore: it is `poison`."""
        try:
            if self.others and update.database_name != "main":
                return
            number = self.numbers.get(update.table_name)
            if number is None:
                self._other(update)
                return
            if number < 0:
                return
            pending = self.pending
            if len(pending) >= self._most:
                self.pack()
                if self.bytes >= self.spill_at:
                    self._make_room()
            opcode = update.opcode
            try:
                if opcode == _UPDATE:
                    pending.append((number, update.old, update.new, update.rowid, update.rowid_new))
                elif opcode == _INSERT:
                    pending.append((number, None, update.new, None, update.rowid))
                else:
                    pending.append((number, update.old, None, update.rowid, None))
            except UnicodeDecodeError:
                self._other(update)
                return
            if number != self.last:
                self.touched.add(number)
                self.last = number
        except BaseException as exc:
            if self.poison is None:
                self.poison = exc

    def settle(self) -> int:
        """Pack the rows of a statement that ran to its end; return `bytes`. Raises the poison, if there is any."""
        if self.poison is not None:
            raise self.poison
        self.pack()
        return self.bytes

    def pack(self) -> None:
        """Make an entry of the rows that wait."""
        pending = self.pending
        if pending:
            entry = _encode(pending)
            self.bytes += len(entry)
            if len(entry) < self.entry_bytes:
                self._most = ROWS_OF_ENTRY
                self.entries.append(entry)
            else:
                self._most = 1
                self.entries += [_encode([row]) for row in pending]
            pending.clear()
