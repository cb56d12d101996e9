"""What is kept of a table between a statement that the target did not carry out whole, and the rows that come later.

Owns its text, a row of `tranlog_load` beside those of loads, and what `status` says of it. Pure. The hard idea: it is
stored in the target transaction that moves the position past the statement, so it is there exactly when that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tranlog.change import TableName
from tranlog.errors import PayloadError

_KEY: Final = "ddl "
"""Before the name, which is JSON: the rows of loads begin with the bracket."""
WHOLE: Final = ""
"""In the place of a column: the table."""


class TableNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`filled_by_null`: columns that are not here yet, and are NULL in all rows that are here. `filled_by`: other such
    columns, and the literal that they are in these rows, as `table_edits.AddedColumn` has it.

    `dropped`, `retyped`: columns, or the table, that stay here as they were; with the seqno of the statement.
    `here`: rows came into the table, so that it is not to be made anew where it is missing.
    """

    filled_by_null: tuple[str, ...] = ()
    filled_by: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    retyped: dict[str, int] = msgspec.field(default_factory=dict)
    here: bool = False

    def renamed(self, column: str, to: str) -> TableNote:
        """Return the note when a column has another name."""

        def name(one: str) -> str:
            return to if one and one.lower() == column.lower() else one

        return TableNote(
            filled_by_null=tuple([name(one) for one in self.filled_by_null]),
            filled_by={name(one): literal for one, literal in self.filled_by.items()},
            dropped={name(one): seqno for one, seqno in self.dropped.items()},
            retyped={name(one): seqno for one, seqno in self.retyped.items()},
            here=self.here,
        )

    def with_filled(self, column: str, by_null: bool, literal: str = "") -> TableNote:
        """Return the note when a column was added: in all rows that are here it is NULL, a literal, or not known."""
        nulls = tuple([one for one in self.filled_by_null if one.lower() != column.lower()])
        literals = {one: text for one, text in self.filled_by.items() if one.lower() != column.lower()}
        return msgspec.structs.replace(
            self,
            filled_by_null=(*nulls, column) if by_null else nulls,
            filled_by={**literals, column: literal} if literal else literals,
        )

    @property
    def filled(self) -> dict[str, str]:
        """The columns that are not here yet, in lower case, and their literal in the rows that are; empty for NULL."""
        literals = {column.lower(): literal for column, literal in self.filled_by.items()}
        return {**{column.lower(): "" for column in self.filled_by_null}, **literals}

    def with_dropped(self, column: str, seqno: int) -> TableNote:
        """Return the note when a column, or the table, was dropped at the source and stays here."""
        return msgspec.structs.replace(self, dropped={**self.dropped, column: seqno})

    def with_retyped(self, column: str, seqno: int) -> TableNote:
        """Return the note when a column may hold less at the source than here."""
        return msgspec.structs.replace(self, retyped={**self.retyped, column: seqno})


def stored(table: TableName, note: TableNote) -> tuple[str, str]:
    """Return the row of a note, (name, text)."""
    return _KEY + msgspec.json.encode(table).decode(), msgspec.json.encode(note).decode()


def notes_of(rows: Mapping[str, str]) -> dict[TableName, TableNote]:
    """Return the notes among the rows of `tranlog_load`. Raises PayloadError for what `stored` did not write."""
    try:
        return {
            msgspec.json.decode(name[len(_KEY) :], type=tuple[str, str]): msgspec.json.decode(text, type=TableNote)
            for name, text in rows.items()
            if is_note(name)
        }
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"a row of tranlog_load cannot be read: {exc}") from exc


def is_note(name: str) -> bool:
    """Whether a row of `tranlog_load` is a note."""
    return name.startswith(_KEY)


def held_here(notes: Mapping[TableName, TableNote]) -> Sequence[str]:
    """Return what is held back at a target, a line for each, in words."""
    lines = []
    for table, note in sorted(notes.items()):
        name = ".".join(table)
        for column, seqno in note.dropped.items():
            what = f"{name}: column {column}" if column else name
            lines.append(f"{what} was dropped at the source at seqno {seqno}, and stays here")
        for column, seqno in note.retyped.items():
            lines.append(f"{name}: column {column} has a narrower type at the source since seqno {seqno}, and not here")
    return lines
