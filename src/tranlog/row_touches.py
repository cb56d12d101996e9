"""Which values of which keys the rows of a transaction touch: how a write set comes about.

Owns what counts as touched, and how a value becomes a hash. The hard idea: what is equal in the database must be equal
here, or a dependency is missed; what is equal here only makes others wait. So whole numbers are hashed by value,
binary content and UUIDs as they are, texts without the case of ASCII letters and without spaces at the end, and a value
whose equality depends on what is not known here adds nothing. Whether a target takes more texts for one than that, the
plan knows. Of an update that leaves its table's main key as it is, that key tells: another key of the same
row is touched only where it changes. Compiled, see `tranlog.compiled`.

Source: docs/format.md, "Write sets".
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

from librt.strings import read_f64_be
from mypy_extensions import i64

from tranlog.affinity import Affinity, affinity
from tranlog.change import Column, Op, TableMap, TableName
from tranlog.checksum import crc32
from tranlog.row_bytes import encode_int
from tranlog.types import LogicalType
from tranlog.value_ends import pass_value
from tranlog.varint import read_sized, read_varint
from tranlog.write_item import encode_write_set
from tranlog.write_set import TOUCHES_MAX, WriteKind, ascii_id, key_id, reference_id, text_id

_INSERT: Final = 1
_UPDATE: Final = 2
_DELETE: Final = 4
_REKEY: Final = 8
_KEY: Final = 1
_ROW: Final = 2
_ROWS: Final = int(WriteKind.ROWS)
_STATEMENT: Final = int(WriteKind.STATEMENT)
_MANY: Final = int(WriteKind.MANY)
_LEAST_REAL: Final = -(2.0**63)
_ABOVE_REALS: Final = 2.0**64
"""A whole number between these has 64 bits, so a column of SQLite's may hold it as an integer, too."""
_TABLES_KEPT: Final = 4_096
_CONTEXT: Final = Context(prec=100)  # a caller's own would make another hash of it
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
# Compiled, a name of another module and a member of an enumeration are looked up in a dict at each use.
_AN_UPDATE: Final = Op.UPDATE
_AN_INSERT: Final = Op.INSERT
_MOST: Final = TOUCHES_MAX
_Hash: TypeAlias = Any
"""An int. Typed as one it would be made again, compiled, at each step from the checksum to the dict."""
_crc: Final[Any] = crc32


def holds_texts(column: Column) -> bool:
    """Whether a column's values are texts; in a SQLite database its affinity says so."""
    if column.logical is LogicalType.ANY:
        return affinity(column.source_type) is Affinity.TEXT
    return column.logical is LogicalType.TEXT


class TouchedKey:
    """A unique key, or a reference: columns by place, what its hashes begin with, and its id.

    `texts`: of each column whether it holds texts; `ascii`: the id that says that these are of ASCII alone.
    """

    __slots__ = ("ascii", "columns", "first", "id", "seed", "span", "texts")

    def __init__(self, columns: list[int], seed: int, number: int, of: Sequence[Column]) -> None:
        self.columns = columns
        self.first: i64 = columns[0]
        self.texts: list[bool] = [holds_texts(of[at]) for at in columns]
        named = [of[at].name for at in columns if holds_texts(of[at])]
        # How many columns, where they stand beside each other in the order in which they are hashed; else 0.
        beside = not named and columns == list(range(columns[0], columns[0] + len(columns)))
        self.span: i64 = len(columns) if beside else 0
        self.seed: _Hash = seed
        self.id = text_id(number, named) if named else number
        self.ascii = ascii_id(self.id) if named else number

    def ids(self) -> list[int]:
        """Return under which ids it is told."""
        return [self.id, self.ascii]


class TouchedTable:
    """The keys of a table map. `main` tells its rows apart, None where nothing does.

    `width` counts its columns, `reach` those up to the last one of a key.
    """

    __slots__ = ("ids", "main", "name", "reach", "references", "unique", "width")

    def __init__(self, table: TableMap) -> None:
        self.name: TableName = (table.schema, table.table)
        self.width = len(table.columns)
        self.unique: list[TouchedKey] = []
        self.references: list[TouchedKey] = []
        self.main: TouchedKey | None = None
        names = [column.name for column in table.columns]
        keys = [table.primary_key, *table.unique_keys] if table.primary_key else list(table.unique_keys)
        for places in filter(None, keys):
            ordered = sorted(places, key=lambda at: names[at].lower())
            number = key_id(self.name, [names[at] for at in ordered])
            key = TouchedKey(ordered, number, number, table.columns)
            nullable = places is not table.primary_key and any([table.columns[at].nullable for at in places])
            if self.main is None and not nullable:
                self.main = key
            else:
                self.unique.append(key)
        for foreign in table.foreign_keys:
            if not 0 < len(foreign.columns) == len(foreign.ref_columns):
                continue  # SQLite lets a table refer to one that is not there
            pairs = sorted(zip(foreign.ref_columns, foreign.columns, strict=True), key=lambda pair: pair[0].lower())
            to = (foreign.ref_schema, foreign.ref_table)
            own = [names[at] for at in foreign.columns]
            seed = key_id(to, [name for name, _ in pairs])
            number = reference_id(self.name, own, to, foreign.ref_columns)
            self.references.append(TouchedKey([at for _, at in pairs], seed, number, table.columns))
        every = [*self.unique, *self.references, *([] if self.main is None else [self.main])]
        self.ids: frozenset[int] = frozenset([number for key in every for number in key.ids()])
        self.reach = 1 + max([at for key in every for at in key.columns], default=-1)


class RowTouches:
    """Collects what one transaction touches. `distinct_nulls`: a unique key holds any number of NULLs. Threads: one.

    The first transaction at a table after another key became its main one tells no key of it: updates before it and
    after it tell by different ones. `goes_on`: so does the first at each table, since there were others before.
    """

    def __init__(self, distinct_nulls: bool = True, *, goes_on: bool = False) -> None:
        self._distinct_nulls = distinct_nulls
        self._goes_on = goes_on
        self._known: dict[TableMap, TouchedTable] = {}
        self._mains: dict[TableName, int] = {}
        self._turned: set[TableName] = set()
        self._kind = _ROWS
        self._changes = 0
        self._tables: dict[TableName, tuple[int, frozenset[int]]] = {}
        self._values: dict[_Hash, int] = {}
        self._references: dict[_Hash, None] = {}
        self._lost: set[int] = set()

    def begin(self) -> None:
        """Start a transaction, dropping what was collected."""
        self._kind = _ROWS
        self._changes = 0
        self._tables.clear()
        self._values.clear()
        self._references.clear()

    def statement(self) -> None:
        """Note a statement: nothing can be told of what it touches."""
        self._kind = _STATEMENT

    def rows(self, table: TableMap, op: Op, images: Sequence[bytes]) -> None:
        """Note row changes, given as `row_bytes.encode_row` bytes: of an update the row before, then the row after."""
        self._changes += len(images)
        if self._kind != _ROWS:
            return
        known = self._known.get(table)
        if known is None:
            known = self._learn(table)
        if self._lost:
            self._lost.clear()
        done = _UPDATE if op is _AN_UPDATE else _INSERT if op is _AN_INSERT else _DELETE
        main = known.main
        if main is not None:
            if done == _UPDATE:
                for image in images:
                    done |= self._update(known, main, image)
            else:
                for image in images:
                    self._whole(known, main, image, 0)
            if len(self._values) + len(self._references) > _MOST:
                self._kind = _MANY
                return
        ids = known.ids
        if self._turned and known.name in self._turned:
            ids = frozenset()
        elif main is None or self._lost:
            ids = frozenset() if main is None or main.id in self._lost else ids - self._lost
        earlier = self._tables.get(known.name)
        if earlier is not None:
            done |= earlier[0]
            if ids is not earlier[1]:
                ids &= earlier[1]
            elif done == earlier[0]:
                return
        self._tables[known.name] = (done, ids)

    def _learn(self, table: TableMap) -> TouchedTable:
        """Return what is to be known of a table map, and note whether its main key is another than before."""
        if len(self._known) >= _TABLES_KEPT:
            self._known.clear()
        made = TouchedTable(table)
        name, main = made.name, -1 if made.main is None else made.main.id
        if self._mains.get(name, -1 if self._goes_on else main) != main:
            self._turned.add(name)
            for other in [one for one in self._known if (one.schema, one.table) == name]:
                del self._known[other]  # it may come back, and is then another one again
        self._mains[name] = main
        self._known[table] = made
        return made

    def _whole(self, known: TouchedTable, main: TouchedKey, image: bytes, start: i64) -> None:
        """Note a row that comes or goes, whose values begin at `start`."""
        values = self._values
        value = self._hash(main, image, start, False)
        if value is not None:
            values[value] = _KEY
        for key in known.unique:
            value = self._hash(key, image, start, self._distinct_nulls)
            if value is not None:
                values[value] = _KEY
        for key in known.references:
            value = self._hash(key, image, start, True)
            if value is not None:
                self._references[value] = None

    def _update(self, known: TouchedTable, main: TouchedKey, image: bytes) -> int:
        """Note an updated row; return what bits of `Operations` it adds."""
        reach: i64 = _end(image, 0, known.reach)
        middle: i64 = _end(image, reach, known.width - known.reach)
        done = 0
        if image.startswith(image[:reach], middle):  # no key changes
            value = self._hash(main, image, 0, False)
            if value is not None and value not in self._values:
                self._values[value] = _ROW
            return done
        before, after = _places(image, 0, known.reach), _places(image, middle, known.reach)
        if _same(main, image, before, after):
            value = self._hash(main, image, 0, False)
            if value is not None and value not in self._values:
                self._values[value] = _ROW
        else:
            done = _REKEY
            for start in (0, middle):
                value = self._hash(main, image, start, False)
                if value is not None:
                    self._values[value] = _KEY
        for key in known.unique:
            if not _same(key, image, before, after):
                done = _REKEY
                for start in (0, middle):
                    value = self._hash(key, image, start, self._distinct_nulls)
                    if value is not None:
                        self._values[value] = _KEY
        for key in known.references:
            if not _same(key, image, before, after):
                for start in (0, middle):
                    value = self._hash(key, image, start, True)
                    if value is not None:
                        self._references[value] = None
        return done

    def _hash(self, key: TouchedKey, image: bytes, start: i64, null_is_none: bool) -> _Hash:
        """Return the hash of a key's values; None: NULL, where that is none, or a value that was not sent."""
        span: i64 = key.span
        if span:
            begin: i64 = _end(image, start, key.first)
            end: i64 = begin
            while span:
                kind: i64 = image[end]
                if kind != 4 and kind != 10 and kind != 22:
                    break
                end = _end(image, end, 1)
                span -= 1
            if not span:
                return _crc(image[begin:end], key.seed)
        found = key.seed
        texts = key.texts
        for place, column in enumerate(key.columns):
            at: i64 = _end(image, start, column)
            tag: i64 = image[at]
            if texts[place] and tag > 1:
                if tag != 9:  # another tells nothing of what the target makes of it
                    self._lost.update(key.ids())
                    return None
                text = read_sized(image, at + 1)[0]
                if text.translate(None, _PRINTABLE):
                    self._lost.add(key.ascii)
                found = _crc(text.rstrip(b" ").lower() + b"\0", found)
            elif tag == 4 or tag == 10 or tag == 22:  # equal where their bytes are
                found = _crc(image[at : _end(image, at, 1)], found)
            elif tag == 0:
                if null_is_none:
                    return None
                if self._distinct_nulls:  # in the main key, which then tells no rows apart
                    self._lost.update(key.ids())
                    return None
                found = _crc(b"\0", found)
            elif tag == 1:
                self._lost.update(key.ids())
                return None
            else:
                found = _crc(_hashed(image, at), found)
        return found

    def take(self, tables: Sequence[TableName]) -> bytes:
        """Return the write set's bytes, given the header's tables."""
        self._turned.difference_update(tables)
        if self._kind != _ROWS:
            return encode_write_set(self._kind, self._changes, (), ())
        came_or_gone: list[_Hash] = []
        kept: list[_Hash] = []
        for value, use in self._values.items():
            if use == _KEY:
                came_or_gone.append(value)
            else:
                kept.append(value)
        return encode_write_set(
            _ROWS,
            self._changes,
            [self._tables[name] for name in tables],
            (came_or_gone, kept, list(self._references)),
        )


def _end(image: bytes, at: i64, count: i64) -> i64:
    """Return where the first values of a row end, `count` of them, which begin at `at`."""
    while count:
        tag: i64 = image[at]
        if tag == 4 or tag == 14:
            at += 1
            while image[at] >= 0x80:
                at += 1
            at += 1
        elif (tag == 9 or tag == 10 or tag == 8) and image[at + 1] < 0x80:
            at += 2 + image[at + 1]
        elif tag < 4:
            at += 1
        elif tag == 7:
            at += 9
        else:
            at = pass_value(image, at)
        count -= 1
    return at


def _places(image: bytes, at: i64, count: int) -> list[int]:
    """Return where each of the first values of a row begins, and where the last of them ends."""
    places: list[int] = []
    for _ in range(count):
        places.append(at)
        at = _end(image, at, 1)
    places.append(at)
    return places


def _same(key: TouchedKey, image: bytes, before: list[int], after: list[int]) -> bool:
    """Whether an update leaves a key as it is: the same bytes, or nothing sent."""
    for column in key.columns:
        new: i64 = after[column]
        if image[new] != 1 and image[before[column] : before[column + 1]] != image[new : after[column + 1]]:
            return False
    return True


def _hashed(image: bytes, at: int) -> bytes:
    """Return what of a value is hashed, where its bytes alone do not tell; nothing where its equality is not known."""
    tag = image[at]
    if tag == 2 or tag == 3:
        return encode_int(tag - 2)
    if tag == 5:
        number = read_varint(image, at + 1)[0]
        return encode_int(number)
    if tag == 7:
        real = read_f64_be(image, at + 1)
        return encode_int(int(real)) if _LEAST_REAL <= real < _ABOVE_REALS and real == int(real) else b""
    if tag == 8:
        exact = Decimal(read_sized(image, at + 1)[0].decode())
        if not exact.is_finite():
            return b""
        if -(1 << 63) <= exact < 1 << 64 and exact == exact.to_integral_value(context=_CONTEXT):
            return encode_int(int(exact))
        return str(exact.normalize(_CONTEXT)).encode()
    return b""
