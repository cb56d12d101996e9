"""Row images of pgoutput: from a message's tuples to the bytes of a row change.

Owns the walk over a tuple, and which before image a change has. Pure; compiled, see `tranlog.compiled`. The hard idea:
with the replica identity FULL the old row comes whole, and fills what the new one leaves out because it did not change
(TOAST); with a key there is no old row, only the key's columns, and everything else of the before image is UNCHANGED.
How the text of a value is written is `text_rows`'s.

Source: PostgreSQL's manual, "Logical Replication Message Formats", TupleData; "ALTER TABLE", REPLICA IDENTITY.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64

from tranlog.change import Op, TableMap
from tranlog.row_bytes import encode_value
from tranlog.source.postgres.messages import MessageFormatError
from tranlog.source.postgres.values import text_forms
from tranlog.text_rows import ValueEncoder, put_text
from tranlog.types import UNCHANGED

_UNCHANGED: Final = encode_value(UNCHANGED)
_INSERT_OP: Final = Op.INSERT
_UPDATE_OP: Final = Op.UPDATE
_DELETE_OP: Final = Op.DELETE
_INSERT: Final = 0x49
_DELETE: Final = 0x44
_NEW: Final = 0x4E
_KEY: Final = 0x4B
_OLD: Final = 0x4F
_TEXT: Final = 0x74
_NULL: Final = 0x6E
_LEFT_OUT: Final = 0x75


class NoBeforeImageError(Exception):
    """A change of `table` came without the row as it was, and the source is to have it."""

    def __init__(self, table: TableMap) -> None:
        super().__init__(table.name)
        self.table = table


class PostgresTableLayout:
    """A table as the rows after its definition have it. `keys`: which columns belong to the replica identity.

    `by_key`: changes without a before image are taken, by their key. `column_number` is that of its last column in the
    server's catalogue, `named` those of the columns that have had a name.
    """

    def __init__(
        self,
        *,
        table: TableMap,
        encoders: tuple[ValueEncoder, ...],
        keys: tuple[bool, ...],
        by_key: bool,
        column_number: int = 0,
        named: dict[str, int] | None = None,
    ) -> None:
        self.table: Final = table
        self.encoders: Final = encoders
        self.keys: Final = keys
        self.by_key: Final = by_key
        self.column_number: Final = column_number
        self.named: Final[dict[str, int]] = {} if named is None else named
        self.forms: Final = text_forms(table)


def encode_change(layout: PostgresTableLayout, raw: bytes, at: int) -> tuple[Op, bytes]:
    """Return what a row message does, and its images as `row_bytes.encode_row` writes them, before and after.

    `at` is where its first tuple's letter stands. Raises MessageFormatError; NoBeforeImageError.
    """
    try:
        return _encode_change(layout, raw, at)
    except (IndexError, ValueError, OverflowError, KeyError, struct.error) as exc:
        raise MessageFormatError(f"a row of {layout.table.name}: {exc}") from exc


def encode_run(
    messages: list[bytes], start: int, layouts: dict[int, PostgresTableLayout], *, streamed: bool
) -> tuple[PostgresTableLayout, Op, list[bytes], int]:
    """Encode the row message at `start` and those after it that do the same to the same table.

    Return the table, what they do, the images of each as `encode_change`, and the index after the last one. `streamed`:
    each message has its transaction's xid behind its letter. Raises as `encode_change`.
    """
    head: i64 = 5 if streamed else 1
    first = messages[start]
    kind, relation = first[0], first[head : head + 4]
    number = int.from_bytes(relation, "big")
    layout = layouts.get(number)
    if layout is None:
        raise MessageFormatError(f"a row of table {number}, which was not defined")
    at: i64 = start
    count: i64 = len(messages)
    images: list[bytes] = []
    op = _INSERT_OP
    while at < count:
        raw = messages[at]
        if raw[0] != kind or raw[head : head + 4] != relation:
            break
        op, image = encode_change(layout, raw, head + 4)
        images.append(image)
        at += 1
    return layout, op, images, at


def _encode_change(layout: PostgresTableLayout, raw: bytes, start: i64) -> tuple[Op, bytes]:
    kind: i64 = raw[0]
    letter: i64 = raw[start]
    out = BytesWriter()
    at = start
    if letter != _NEW and kind != _INSERT:
        if letter == _KEY:
            return _encode_fields(layout, raw, start)
        if letter != _OLD:
            raise MessageFormatError(f"a row of the unknown kind {chr(letter)!r}")
        at = _put_row(layout, raw, at + 1, out)
        if kind == _DELETE:
            _end(raw, at)
            return _DELETE_OP, out.getvalue()
    elif kind != _INSERT and kind != _DELETE:
        return _encode_fields(layout, raw, start)
    if raw[at] != _NEW or kind == _DELETE:
        raise MessageFormatError("a change without the row that it makes, or takes away")
    at = _put_row(layout, raw, at + 1, out)
    if at < 0:
        # A row that leaves values out: written again, with what the old row has in their place.
        return _encode_fields(layout, raw, start)
    _end(raw, at)
    return (_INSERT_OP if kind == _INSERT else _UPDATE_OP), out.getvalue()


def _encode_fields(layout: PostgresTableLayout, raw: bytes, start: i64) -> tuple[Op, bytes]:
    """Return the same of a change whose images are not those that came, field by field."""
    kind: i64 = raw[0]
    letter: i64 = raw[start]
    before: list[bytes] | None = None
    at = start
    if letter != _NEW:
        before, at = _fields(layout, raw, at + 1)
        if letter == _KEY:
            before = _of_key(layout, before)
        if kind == _DELETE:
            _end(raw, at)
            return _DELETE_OP, b"".join(before)
    if raw[at] != _NEW:
        raise MessageFormatError("a change without the row that it makes, or takes away")
    after, at = _fields(layout, raw, at + 1)
    _end(raw, at)
    if kind == _INSERT:
        if _UNCHANGED in after:  # an UPDATE by which the row came under the publication's row filter
            raise NoBeforeImageError(layout.table)
        return _INSERT_OP, b"".join(after)
    if before is None:
        before = _of_key(layout, after)
    elif letter == _OLD:
        after = [old if new == _UNCHANGED else new for old, new in zip(before, after, strict=True)]
    return _UPDATE_OP, b"".join(before) + b"".join(after)


def _end(raw: bytes, at: i64) -> None:
    if at != len(raw):
        raise MessageFormatError(f"a row that ends {at - len(raw)} bytes behind its message")


def _of_key(layout: PostgresTableLayout, fields: list[bytes]) -> list[bytes]:
    """Return the before image that has the key alone."""
    if not layout.by_key:
        raise NoBeforeImageError(layout.table)
    return [field if key else _UNCHANGED for field, key in zip(fields, layout.keys, strict=True)]


def _check_count(layout: PostgresTableLayout, raw: bytes, at: i64) -> i64:
    """Return the number of columns that a tuple at `at` has, which is the table's."""
    count: i64 = len(layout.forms)
    number: i64 = raw[at]
    low: i64 = raw[at + 1]
    if number * 256 + low != count:
        raise ValueError(f"it does not have the {count} columns of the table")
    return count


def _fields(layout: PostgresTableLayout, raw: bytes, start: i64) -> tuple[list[bytes], i64]:
    """Return the values of a tuple, each encoded, and where it ends."""
    count = _check_count(layout, raw, start)
    at = start + 2
    found: list[bytes] = []
    column: i64 = 0
    while column < count:
        out = BytesWriter()
        at = _put_field(layout, column, raw, at, out)
        found.append(out.getvalue())
        column += 1
    return found, at


def _put_row(layout: PostgresTableLayout, raw: bytes, start: i64, out: BytesWriter) -> i64:
    """Write the values of a tuple; return where it ends, or -1 where it leaves one out."""
    count = _check_count(layout, raw, start)
    at = start + 2
    column: i64 = 0
    while column < count:
        if raw[at] == _LEFT_OUT:
            return -1
        at = _put_field(layout, column, raw, at, out)
        column += 1
    return at


def _put_field(layout: PostgresTableLayout, column: i64, raw: bytes, at: i64, out: BytesWriter) -> i64:
    """Write the value that stands at `at`; return where it ends."""
    kind: i64 = raw[at]
    if kind != _TEXT:
        if kind == _NULL:
            out.append(0)
        elif kind == _LEFT_OUT:
            out.append(1)
        else:
            raise ValueError(f"a value of the unknown kind {chr(kind)!r}")
        return at + 1
    size = i64(read_i32_be(raw, at + 1))
    begin = at + 5
    end = begin + size
    if size < 0 or end > len(raw):
        raise ValueError(f"a value of {size} bytes passes the end")
    put_text(layout.forms[column], layout.encoders[column], raw, begin, end, out)
    return end
