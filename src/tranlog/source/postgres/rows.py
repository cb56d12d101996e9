"""Row images of pgoutput: from a message's tuples to the bytes of a row change.

Owns the walk over a tuple, and which before image a change has. Pure. The hard idea: with the replica identity FULL the
old row comes whole, and fills what the new one leaves out because it did not change (TOAST); with a key there is no old
row, only the key's columns, and everything else of the before image is UNCHANGED. The walk is Python text with the
columns written out one after the other, compiled for each table, since a loop over columns costs what the values cost.

Source: PostgreSQL's manual, "Logical Replication Message Formats", TupleData; "ALTER TABLE", REPLICA IDENTITY.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tranlog.change import Op, TableMap
from tranlog.payload import encode_value
from tranlog.source.postgres.messages import MessageFormatError
from tranlog.types import UNCHANGED

_NULL: Final = encode_value(None)
_UNCHANGED: Final = encode_value(UNCHANGED)
_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")
_INSERT: Final = ord("I")
_DELETE: Final = ord("D")

ValueEncoder: TypeAlias = Callable[[bytes], bytes]
_Fields: TypeAlias = tuple[bytes, ...]


class NoBeforeImageError(Exception):
    """A change came without the row as it was, and the source is to have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTableLayout:
    """A table as the rows after its definition have it. `keys`: which columns belong to the replica identity.

    `by_key`: changes without a before image are taken, by their key.
    """

    table: TableMap
    encoders: tuple[ValueEncoder, ...]
    keys: tuple[bool, ...]
    by_key: bool
    walk: Callable[[bytes, int], tuple[_Fields, int]] = field(init=False)
    """Takes a message and where a tuple begins in it; returns its values, each encoded, and where it ends."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "walk", _walker(len(self.encoders))(*self.encoders))


def encode_change(layout: PostgresTableLayout, raw: bytes, at: int) -> tuple[Op, bytes]:
    """Return what a row message does, and its images as `payload.encode_row` writes them, before and after.

    `at` is where its first tuple's letter stands. Raises MessageFormatError; NoBeforeImageError.
    """
    try:
        return _encode_change(layout, raw, at)
    except (IndexError, ValueError, OverflowError, KeyError, struct.error) as exc:
        raise MessageFormatError(f"a row of {layout.table.name}: {exc}") from exc


def _encode_change(layout: PostgresTableLayout, raw: bytes, at: int) -> tuple[Op, bytes]:
    kind, letter = raw[0], raw[at]
    before: Sequence[bytes] | None = None
    if letter != _NEW and kind != _INSERT:
        if letter not in (_KEY, _OLD):
            raise MessageFormatError(f"a row of the unknown kind {chr(letter)!r}")
        before, at = layout.walk(raw, at + 1)
        if letter == _KEY:
            before = _of_key(layout, before)
        if kind == _DELETE:
            _end(raw, at)
            return Op.DELETE, b"".join(before)
    if raw[at] != _NEW or kind == _DELETE:
        raise MessageFormatError("a change without the row that it makes, or takes away")
    after: Sequence[bytes]
    after, at = layout.walk(raw, at + 1)
    _end(raw, at)
    if kind == _INSERT:
        return Op.INSERT, b"".join(after)
    if before is None:
        before = _of_key(layout, after)
    elif letter == _OLD and _UNCHANGED in after:
        after = [old if new is _UNCHANGED else new for old, new in zip(before, after, strict=True)]
    return Op.UPDATE, b"".join(before) + b"".join(after)


def _end(raw: bytes, at: int) -> None:
    if at != len(raw):
        raise MessageFormatError(f"a row that ends {at - len(raw)} bytes behind its message")


def _of_key(layout: PostgresTableLayout, fields: Sequence[bytes]) -> list[bytes]:
    """Return the before image that has the key alone."""
    if not layout.by_key:
        raise NoBeforeImageError
    return [field if key else _UNCHANGED for field, key in zip(fields, layout.keys, strict=True)]


_COLUMN: Final = """
        kind = raw[at]
        if kind == 116:
            end = at + 5 + size_of(raw, at + 1)[0]
            f{n} = e{n}(raw[at + 5:end])
            at = end
        else:
            f{n} = absent[kind]
            at += 1"""
_WALK: Final = """
def make({encoders}):
    def walk(raw, at):
        if raw[at:at + 2] != head:
            raise ValueError("it does not have the {count} columns of the table")
        at += 2{columns}
        return ({fields}), at
    return walk
"""


@lru_cache(maxsize=1024)
def _walker(count: int) -> Callable[..., Callable[[bytes, int], tuple[_Fields, int]]]:
    """Return what makes the walk over a tuple of so many columns out of their encoders.

    A value that is cut off passes it, and shows by the end that it returns.
    """
    numbers = range(count)
    text = _WALK.format(
        encoders=", ".join(f"e{n}" for n in numbers),
        count=count,
        columns="".join(_COLUMN.format(n=n) for n in numbers),
        fields="".join(f"f{n}, " for n in numbers),
    )
    names: dict[str, Any] = {
        "head": count.to_bytes(2, "big"),
        "size_of": struct.Struct(">I").unpack_from,
        "absent": {ord("n"): _NULL, ord("u"): _UNCHANGED},
    }
    exec(compile(text, f"<walk over {count} columns>", "exec"), names)
    made: Callable[..., Callable[[bytes, int], tuple[_Fields, int]]] = names["make"]
    return made
