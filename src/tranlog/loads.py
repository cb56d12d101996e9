"""Loads: what a load of tables leaves in the log, and the order of the keys that its chunks go by.

Owns the metadata of a load's transactions and the comparison of keys. The hard idea: a chunk stands in the log exactly
where its rows were read, so a change of a row is either older than the chunk that has the row, and is in it, or newer,
and comes after it. A load is a transaction that names the tables, its chunks in the order of the key, and one that ends
it; each of them is serial.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tranlog.change import NOOP, Options, TableMap, TableName
from tranlog.errors import PayloadError
from tranlog.types import Value

ANY_PIPELINE: Final = "*"
"""As the pipeline of a load: every one."""
LOAD: Final = "load"
"""Metadata name; its value is the load's id."""
FOR: Final = "for"
"""Metadata name; its value is the pipeline that the load is for, or `*`."""
_STEP: Final = "load_step"

NameT = TypeVar("NameT", TableName, str)
Key: TypeAlias = tuple[int | bytes | UUID, ...]
"""The values of a row's primary key, in the key's order."""


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a chunk, as `key_text` writes them: `after`, exclusive, up to `upto`, inclusive.

    None: from the first key, up to the last one that there can be.
    """

    after: str | None = None
    upto: str | None = None


class LoadBegin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The first transaction of a load. `replace`: the rows that the target has of these tables are deleted."""

    tables: tuple[TableMap, ...]
    replace: bool


class LoadChunk(msgspec.Struct, frozen=True, kw_only=True, tag="chunk"):
    """A chunk: `rows` of a table, as inserts. `key` are the names of the key's columns, () where they are no order.

    The last chunk of a table has no `upto`.
    """

    table: TableName
    key: tuple[str, ...]
    keys: KeyRange
    rows: int


class LoadEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The last transaction of a load. `given_up`: table, `schema.table`, and why it is not loaded to its end."""

    given_up: tuple[tuple[str, str], ...] = ()


LoadStep: TypeAlias = LoadBegin | LoadChunk | LoadEnd
_DECODER: Final = msgspec.json.Decoder(LoadStep)


class LoadMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which step of which load a transaction is, and for which pipeline."""

    load: str
    pipeline: str
    step: LoadStep

    def metadata(self) -> Options:
        """Return the transaction's metadata."""
        found = ((LOAD, self.load), (FOR, self.pipeline), (_STEP, msgspec.json.encode(self.step).decode()))
        return found if isinstance(self.step, LoadChunk) else ((NOOP, LOAD), *found)


def mark_of(metadata: Options) -> LoadMark | None:
    """Return what `LoadMark.metadata` wrote; None for a transaction of no load. Raises PayloadError."""
    named = dict(reversed(metadata))
    if _STEP not in named or LOAD not in named:
        return None
    try:
        return LoadMark(load=named[LOAD], pipeline=named.get(FOR, ANY_PIPELINE), step=_DECODER.decode(named[_STEP]))
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"the metadata of the load {named[LOAD]} cannot be read: {exc}") from exc


def is_key(values: tuple[Value, ...]) -> bool:
    """Whether these are values whose order is the same at the source and here: integers, bytes, UUIDs."""
    return bool(values) and all(type(value) in (int, bytes, UUID) for value in values)


def key_text(key: Key) -> str:
    """Return a key as text, for metadata and for the target."""
    return msgspec.json.encode(
        [value if isinstance(value, int) else [type(value).__name__, _raw(value).hex()] for value in key]
    ).decode()


def parse_key(text: str) -> Key:
    """Read what `key_text` wrote. Raises PayloadError."""
    try:
        return tuple([part if isinstance(part, int) else _value(*part) for part in msgspec.json.decode(text)])
    except (msgspec.DecodeError, ValueError, TypeError) as exc:
        raise PayloadError(why=f"a key of a load reads {text!r}") from exc


def _raw(value: bytes | UUID) -> bytes:
    return value.bytes if isinstance(value, UUID) else value


def _value(kind: str, digits: str) -> bytes | UUID:
    raw = bytes.fromhex(digits)
    return UUID(bytes=raw) if kind == "UUID" else raw


def parents_first(tables: list[TableMap], references: Collection[tuple[str, str]] = ()) -> list[TableMap]:
    """Return tables so that one stands after those that its foreign keys name, by name otherwise.

    Tables whose foreign keys lead in a circle follow in the order of their names. `references`: foreign keys beside
    those of the tables' own, (referring, referred) `schema.table`.
    """
    beside = {(one, other) for one, other in references if one != other}
    left = {(table.schema, table.table): table for table in sorted(tables, key=lambda one: (one.schema, one.table))}
    ordered: list[TableMap] = []
    while left:
        free = [
            name
            for name, table in left.items()
            if not any((key.ref_schema, key.ref_table) in left.keys() - {name} for key in table.foreign_keys)
            and not any((table.name, other.name) in beside for other in left.values())
        ]
        for name in free or [next(iter(left))]:
            ordered.append(left.pop(name))
    return ordered


def joined(tables: Iterable[NameT], references: Iterable[tuple[NameT, NameT]]) -> set[NameT]:
    """Return tables, and all that foreign keys join to them either way, through others too.

    `references`: (referring table, referred table).
    """
    beside: dict[NameT, list[NameT]] = {}
    for one, other in references:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    found, left = set[NameT](), list(tables)
    while left:
        table = left.pop()
        if table not in found:
            found.add(table)
            left += beside.get(table, ())
    return found


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a load is, by its transactions: `left` are the tables to come, the first of them after the key `after`.

    `begun`: whether its first transaction is in the log; `ended`: whether its last one is. `rows` counts those read.
    """

    begun: bool = False
    left: tuple[TableName, ...] = ()
    after: str | None = None
    key: tuple[str, ...] = ()
    rows: int = 0
    tables: int = 0
    ended: bool = False
    given_up: tuple[tuple[str, str], ...] = ()

    def follow(self, step: LoadStep) -> LoadProgress:
        """Return how far it is after a step."""
        match step:
            case LoadBegin(tables=tables):
                names = tuple([(table.schema, table.table) for table in tables])
                return LoadProgress(begun=True, left=names, tables=len(names), given_up=self.given_up)
            case LoadChunk(table=table, key=key, keys=keys, rows=rows):
                # Tables before it were given up.
                left = self.left[self.left.index(table) :] if table in self.left else self.left
                done = keys.upto is None
                return msgspec.structs.replace(
                    self, left=left[done:], after=keys.upto, key=() if done else key, rows=self.rows + rows
                )
            case LoadEnd():
                return msgspec.structs.replace(self, ended=True, left=())

    def give_up(self, why: str) -> LoadProgress:
        """Return how far it is without the table that is next."""
        (schema, table), *left = self.left
        gone = (*self.given_up, (f"{schema}.{table}", why))
        return msgspec.structs.replace(self, left=tuple(left), after=None, key=(), given_up=gone)
