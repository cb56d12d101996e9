"""Row images of pgoutput: from a message's tuples to the bytes of a row change.

Owns the walk over a tuple, and which before image a change has. Pure. The hard idea: with the replica identity FULL the
old row comes whole, and fills what the new one leaves out because it did not change (TOAST); with a key there is no old
row, only the key's columns, and everything else of the before image is UNCHANGED.

Source: PostgreSQL's manual, "Logical Replication Message Formats", TupleData; "ALTER TABLE", REPLICA IDENTITY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tranlog.change import Op, TableMap
from tranlog.payload import encode_value
from tranlog.source.postgres.messages import MessageFormatError, RowMessage
from tranlog.types import UNCHANGED

_NULL: Final = encode_value(None)
_UNCHANGED: Final = encode_value(UNCHANGED)
_NULL_FIELD: Final = ord("n")
_UNCHANGED_FIELD: Final = ord("u")
_TEXT_FIELD: Final = ord("t")
_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")


class NoBeforeImageError(Exception):
    """A change came without the row as it was, and the source is to have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """A table as the rows after its definition have it. `keys`: which columns belong to the replica identity.

    `by_key`: changes without a before image are taken, by their key.
    """

    table: TableMap
    encoders: tuple[Callable[[bytes], bytes], ...]
    keys: tuple[bool, ...]
    by_key: bool


def encode_change(layout: TableLayout, raw: bytes, row: RowMessage) -> tuple[Op, bytes]:
    """Return what a row message does, and its images as `payload.encode_row` writes them, before and after.

    Raises MessageFormatError; NoBeforeImageError.
    """
    try:
        return _encode_change(layout, raw, row.kind, row.at)
    except (IndexError, ValueError, OverflowError, KeyError) as exc:
        raise MessageFormatError(f"a row of {layout.table.name}: {exc}") from exc


def _encode_change(layout: TableLayout, raw: bytes, kind: str, at: int) -> tuple[Op, bytes]:
    letter = raw[at]
    if kind == "I":
        if letter != _NEW:
            raise MessageFormatError("an insert without a new row")
        return Op.INSERT, b"".join(_fields(layout, raw, at + 1, last=True)[0])
    before: list[bytes] | None = None
    if letter in (_KEY, _OLD):
        before, at = _fields(layout, raw, at + 1, last=kind == "D")
        if letter == _KEY:
            before = _of_key(layout, before)
    if kind == "D":
        if before is None:
            raise MessageFormatError("a delete without the row that it takes away")
        return Op.DELETE, b"".join(before)
    if raw[at] != _NEW:
        raise MessageFormatError("an update without a new row")
    after, _ = _fields(layout, raw, at + 1, last=True)
    if before is None:
        before = _of_key(layout, after)
    elif letter == _OLD and _UNCHANGED in after:
        after = [old if new is _UNCHANGED else new for old, new in zip(before, after, strict=True)]
    return Op.UPDATE, b"".join(before) + b"".join(after)


def _of_key(layout: TableLayout, fields: Sequence[bytes]) -> list[bytes]:
    """Return the before image that has the key alone."""
    if not layout.by_key:
        raise NoBeforeImageError
    return [field if key else _UNCHANGED for field, key in zip(fields, layout.keys, strict=True)]


def _fields(layout: TableLayout, raw: bytes, at: int, *, last: bool) -> tuple[list[bytes], int]:
    """Return a tuple's values, each encoded, and where it ends; `last`: nothing may follow."""
    encoders = layout.encoders
    if int.from_bytes(raw[at : at + 2]) != len(encoders):
        raise MessageFormatError(f"a row that does not have the {len(encoders)} columns of {layout.table.name}")
    at += 2
    size = len(raw)
    fields = []
    for encode in encoders:
        kind = raw[at]
        if kind == _TEXT_FIELD:
            start = at + 5
            at = start + int.from_bytes(raw[at + 1 : start])
            if at > size:
                raise MessageFormatError(f"a value that ends {at - size} bytes behind its message")
            fields.append(encode(raw[start:at]))
        elif kind == _NULL_FIELD:
            fields.append(_NULL)
            at += 1
        elif kind == _UNCHANGED_FIELD:
            fields.append(_UNCHANGED)
            at += 1
        else:
            raise MessageFormatError(f"a field of the unknown kind {chr(kind)!r}")
    if last and at != size:
        raise MessageFormatError(f"{size - at} bytes behind a row")
    return fields, at
