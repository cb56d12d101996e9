"""MariaDB as a target: its names, types and statements.

Owns what a value is as a literal of MariaDB's, which columns take it, and the set-based statements. The hard idea:
MariaDB is helpful. In strict mode too it cuts spaces from text that is too long, drops digits after the point of a
second, takes '2' for the second label of an ENUM and stores -0.0 as 0.0. So whatever it would change without an error
is looked for here, and refused by name. Pure.

Source: MariaDB's manual, "Data Types", "SQL_MODE".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from math import copysign, isinf
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from tranlog.affinity import Affinity, affinity
from tranlog.change import Column, Op, TableMap
from tranlog.charsets import text_decoder
from tranlog.servers.mariadb_values import enum_values, set_value
from tranlog.target.binding import (
    NATURAL,
    STRICT,
    BoundColumn,
    Form,
    Image,
    Row,
    TargetColumn,
    UnfitError,
    may_round,
    refuse_charset_bytes,
    refuse_column,
    refused_value,
    source_digits,
)
from tranlog.target.dialect import Dialect, table_parts
from tranlog.target.mariadb_statements import skip_statement
from tranlog.text_forms import TEXT_OF, bits_text, fraction_digits, round_f32, text_reader, with_digits
from tranlog.types import (
    ENUM_ERROR,
    F32,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
    civil_from_date,
    date_from_civil,
    time_text,
    value_text,
)

NAME_CHARS: Final = 64
"""MariaDB refuses longer names."""
_FILE_CHARS: Final = 240
"""A table's and a database's name become a file's, of 255 bytes with its suffix; a letter beyond ASCII takes five."""
COLLATION: Final = "utf8mb4_nopad_bin"
"""The one that takes no two different texts for equal; all others ignore case, or spaces at the end."""
KEY_BYTES: Final = 3072
"""What an InnoDB index holds of a row."""
ROWS_HERE: Final = "\0"
"""In a form's SQL: where the rows go, divided by commas. A form without it is one statement for each row."""

CATEGORY_OF: Final[dict[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "integer"),
    "decimal": "decimal",
    "float": "float4",
    "double": "float8",
    "bit": "bit",
    "date": "date",
    "datetime": "datetime",
    "timestamp": "timestamp",
    "time": "time",
    "char": "char",
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    "binary": "binary",
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    **dict.fromkeys(
        (
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
            "geometrycollection",
        ),
        "geometry",
    ),
    "enum": "enum",
    "set": "set",
    "uuid": "uuid",
}
"""By information_schema.COLUMNS.DATA_TYPE. Whatever is not here is "other"."""

_NUMERIC: Final = "numeric"
_Write: TypeAlias = Callable[[Any], str]


# --- names and types ------------------------------------------------------------------------------------------------


def fit_name(name: str) -> str:
    """Return a name that MariaDB takes: 64 characters at most, of Unicode's first plane, no space at the end.

    One that it does not take is mended and ends in 8 digits of a hash of all of it.
    """
    if _fits(name):
        return name
    tail = "_" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    kept = "".join([c if 0 < ord(c) <= 0xFFFF else "_" for c in name])[: NAME_CHARS - len(tail)]
    while not _fits(kept + tail):
        kept = kept[:-1]
    return kept + tail


def _fits(name: str) -> bool:
    return (
        0 < len(name) <= NAME_CHARS
        and not name.endswith((" ", "\t", "\n", "\r", "\v", "\f"))
        and all(0 < ord(c) <= 0xFFFF for c in name)
        and sum([1 if c.isascii() and (c.isalnum() or c == "_") else 5 for c in name]) <= _FILE_CHARS
    )


def quote(name: str) -> str:
    """Quote a name, made to fit."""
    return "`" + fit_name(name).replace("`", "``") + "`"


def table_name(table: TableMap) -> str:
    """Return the quoted database and name; without a schema, a table of the database that the target's URL names."""
    return f"{quote(table.schema)}.{quote(table.table)}" if table.schema else quote(table.table)


_INTEGER_WORDS: Final = {
    **{word: word for word in ("tinyint", "smallint", "mediumint", "int", "bigint", "year")},
    "integer": "int",
}
_GEOMETRY: Final = re.compile(r"(multi)?(point|linestring|polygon)|geometry(collection)?")
_LABELS: Final = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_MADE_DIGITS: Final = {"time": 0, "datetime": 0, "timestamp": 0}
"""How MariaDB spells a time without digits after the second."""
_VARCHAR_MOST: Final = 255
"""Declared lengths up to here become VARCHAR. InnoDB may keep longer ones than so many bytes apart from the row."""
_VARYING: Final = re.compile(r"var(char)?(?:binary)?\((\d+)\)")
_ROW_BYTES: Final = 65_535
"""What a row has, without what is kept in TEXT and BLOB columns."""
_PAGE_BYTES: Final = 8_000
"""What of a row has to fit a page: less than half of it."""
_POINTER_BYTES: Final = 21
"""What stays in the page of a value that is kept apart."""
_OTHER_BYTES: Final = 30
"""The most that a number or a time takes."""


_BY_AFFINITY: Final = {
    Affinity.INTEGER: "bigint",
    Affinity.TEXT: "longtext",
    Affinity.BLOB: "longblob",
    Affinity.REAL: "double",
    Affinity.NUMERIC: _NUMERIC,
}


def _by_affinity(declared: str) -> str:
    """Return what a column of SQLite's becomes: a type of ours, or "numeric"."""
    return _BY_AFFINITY[affinity(declared)] if declared.strip() else "longtext"


def _column_type(column: Column, key_bytes: int) -> str:
    """Return a column's type; `key_bytes` is how much of it a key may hold, 0 for a column of no key."""
    word = column.source_type.lower().partition("(")[0].strip().partition(" ")[0]
    match column.logical:
        case LogicalType.ANY:
            made = _by_affinity(column.source_type)
            if made == "longblob":
                return _bytes_type(0, key_bytes)
            # A number of either kind is text: no type of MariaDB's holds 64 bits and a float.
            return _text_type(0, key_bytes) if made in ("longtext", _NUMERIC) else made
        case LogicalType.BOOL:
            return "tinyint(1)"
        case LogicalType.INTEGER:
            made = _INTEGER_WORDS.get(word, "bigint")
            return made + " unsigned" if column.unsigned and made != "year" else made
        case LogicalType.F32:
            return "float"
        case LogicalType.F64:
            return "double"
        case LogicalType.DECIMAL:
            return _decimal_type(column) or _text_type(0, key_bytes)
        case LogicalType.BYTES:
            return word if _GEOMETRY.fullmatch(word) else _bytes_type(column.length, key_bytes)
        case LogicalType.DATE:
            return "date"
        case LogicalType.TIME:
            return f"time({_time_digits(column)})"
        case LogicalType.DATETIME:
            return f"datetime({_time_digits(column)})"
        case LogicalType.INSTANT:
            # TIMESTAMP ends in 2038, and begins in 1970: it serves MariaDB's own only.
            kind = "timestamp" if column.source_type.lower().partition("(")[0] == "timestamp" else "datetime"
            return f"{kind}({_time_digits(column)})"
        case LogicalType.BIT:
            return f"bit({column.length})" if 0 < column.length <= 64 else _text_type(0, key_bytes)
        case LogicalType.ENUM | LogicalType.SET:
            labels = _declared_labels(column)
            return f"{word}({', '.join(map(literal, labels))})" if labels else _text_type(0, key_bytes)
        case LogicalType.JSON:
            return "json" if not key_bytes else _text_type(0, key_bytes)
        case LogicalType.UUID:
            return "uuid"
        case LogicalType.TEXT:
            return _text_type(column.length, key_bytes)
        case LogicalType.OTHER:
            return _text_type(0, key_bytes)


def _text_type(length: int, key_bytes: int) -> str:
    most = key_bytes // 4
    if most:
        return f"varchar({min(length, most) if length else most})"
    return f"varchar({length})" if 0 < length <= _VARCHAR_MOST else "longtext"


def _bytes_type(length: int, key_bytes: int) -> str:
    if key_bytes:
        return f"varbinary({min(length, key_bytes) if length else key_bytes})"
    return f"varbinary({length})" if 0 < length <= _VARCHAR_MOST else "longblob"


def _decimal_type(column: Column) -> str:
    _, bracket, rest = column.source_type.partition("(")
    numbers = [part.strip() for part in rest.partition(")")[0].split(",")] if bracket else []
    if not numbers or not all(number.isdigit() for number in numbers):
        return ""
    precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if precision > 65 or scale > 38:
        return ""
    # PostgreSQL's may have more digits after the point than in all.
    return f"decimal({max(precision, scale)},{scale})" + (" unsigned" if column.unsigned else "")


def _time_digits(column: Column) -> int:
    digits = source_digits(column)
    return _MADE_DIGITS.get(column.source_type.lower(), 6) if digits is None else min(digits, 6)


def _declared_labels(column: Column) -> tuple[str, ...]:
    word, bracket, rest = column.source_type.partition("(")
    if word.lower() not in ("enum", "set") or not bracket:
        return ()
    return tuple([label.replace("''", "'") for label in _LABELS.findall(rest)])


def _types(table: TableMap) -> list[str]:
    """Return each column's type. Where a row would not fit, texts and bytes of no key get types that are kept apart."""
    room = _key_bytes(table)
    made = [_column_type(column, room.get(at, 0)) for at, column in enumerate(table.columns)]
    if _fits_a_row(made):
        return made
    apart = {"varchar": "longtext", "varbinary": "longblob"}
    return [one if at in room else apart.get(one.partition("(")[0], one) for at, one in enumerate(made)]


def _fits_a_row(made: Sequence[str]) -> bool:
    """Whether a row of these types is none that InnoDB refuses, at the most that each may take."""
    sizes = [int(found[2]) * (4 if found[1] else 1) if (found := _VARYING.match(one)) else _OTHER_BYTES for one in made]
    in_page = [one + 1 if one <= _VARCHAR_MOST else _POINTER_BYTES for one in sizes]
    return sum(sizes) + 2 * len(sizes) <= _ROW_BYTES and sum(in_page) <= _PAGE_BYTES


def _key_bytes(table: TableMap) -> dict[int, int]:
    """Return how many bytes of each key column's value the smallest of its keys has room for."""
    room: dict[int, int] = {}
    for key in (table.primary_key, *table.unique_keys):
        wide = [i for i in key if _column_type(table.columns[i], KEY_BYTES).startswith("var")]
        for i in wide:
            share = (KEY_BYTES - 32 * (len(key) - len(wide))) // len(wide)
            room[i] = min(room.get(i, KEY_BYTES), share)
    return room


TABLE_OPTIONS: Final = f" ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = {COLLATION}"


def create_table(table: TableMap) -> tuple[str, ...]:
    """Return the statements that make a database and a table, without its foreign keys."""
    database = f"CREATE DATABASE IF NOT EXISTS {quote(table.schema)} CHARACTER SET utf8mb4 COLLATE {COLLATION}"
    before = (database,) if table.schema else ()
    if table.sequence:
        return (*before, f"CREATE SEQUENCE IF NOT EXISTS {table_name(table)}")
    parts = table_parts(table, quote, _definer(table))
    return *before, f"CREATE TABLE IF NOT EXISTS {table_name(table)} ({parts}){TABLE_OPTIONS}"


def _definer(table: TableMap) -> Callable[[int, Column], str]:
    """Return what defines each column of a table."""
    types = _types(table)

    def defined(index: int, column: Column) -> str:
        made = types[index]
        if column.nullable:
            return made + " NULL"
        # A TIMESTAMP without a default may take one that changes it by itself.
        return made + (" NOT NULL DEFAULT 0" if made.startswith("timestamp") else " NOT NULL")

    return defined


def add_column(table: TableMap, index: int) -> str:
    """Return the statement that adds a column."""
    column = table.columns[index]
    return f"ALTER TABLE {table_name(table)} ADD COLUMN {quote(column.name)} {_definer(table)(index, column)}"


def column_type(table: TableMap, index: int) -> str:
    """Return the type that a column gets."""
    return _types(table)[index]


def rename_table(table: TableMap, to: TableMap) -> str:
    """Return the statement that renames a table, to a database that is there."""
    return f"RENAME TABLE {table_name(table)} TO {table_name(to)}"


def take_null(table: str, column: TargetColumn) -> str:
    """Return the statement that makes a column take NULL; of it type, collation and CHECK are said, nothing else."""
    return _modify(table, column, column.declared, null=True)


def retype(table: str, column: TargetColumn, made: str) -> str:
    """Return the statement that gives a column another type; of it collation, NULL and CHECK are said, nothing else."""
    return _modify(table, column, made, null=column.nullable)


def _modify(table: str, column: TargetColumn, made: str, *, null: bool) -> str:
    collation = f" COLLATE {column.collation}" if column.collation else ""
    taken = "NULL" if null else "NOT NULL"
    check = f" CHECK ({column.check})" if column.check else ""
    return f"ALTER TABLE {table} MODIFY COLUMN {quote(column.name)} {made}{collation} {taken}{check}"


# --- values in ------------------------------------------------------------------------------------------------------


def literal(text: str) -> str:
    """Return a text as a literal: in our sessions a backslash escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def bytes_literal(value: bytes) -> str:
    """Return bytes as a literal; the bytes themselves, which are no UTF-8, come out again by `surrogateescape`."""
    escaped = value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return "_binary'" + escaped.decode("utf-8", "surrogateescape") + "'"


def _float(value: float) -> str:
    if value != value or isinf(value):
        raise UnfitError(f"{value_text(value)} is no number that MariaDB has; make the column text, or mend the row")
    if value == 0.0 and copysign(1.0, value) < 0:
        raise UnfitError("MariaDB stores -0.0 as 0.0; make the column text, or mend the row at the source")
    text = repr(value)
    return text if "e" in text else text + "e0"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise UnfitError(f"{value} is no number that MariaDB has; make the column text, or mend the row at the source")
    return format(value, "f")


def _number(value: float) -> str:
    """Return a float as text that tells itself from an integer's; an infinity as SQLite would read it."""
    return ("1e999" if value > 0 else "-1e999") if isinf(value) else repr(value)


def _no_infinity(value: InfiniteDate) -> NoReturn:
    raise UnfitError(f"{value_text(value)!r} is a date that MariaDB does not have; make the column text")


def _date(value: Date) -> str:
    year, month, day = civil_from_date(value)
    if not 0 <= year <= 9999:
        raise UnfitError(f"{value_text(value)} is beyond the years 0 to 9999 that MariaDB has; make the column text")
    return f"{year:04d}-{month:02d}-{day:02d}"


_DAY_MICROS: Final = 86_400_000_000


def _datetime(value: Datetime | Instant) -> str:
    days, micros = divmod(value.micros, _DAY_MICROS)
    return f"{_date(Date(days))} {time_text(Time(micros))}"


_DATES: Final[dict[type, _Write]] = {InfiniteDate: _no_infinity, ZeroDate: lambda value: str(value.text)}
_ANY_TEXT: Final[dict[type, _Write]] = {**TEXT_OF, CharsetBytes: refuse_charset_bytes}
_ENUM: Final[dict[type, _Write]] = {EnumLabel: lambda value: str(value.label), str: str}
_SET: Final[dict[type, _Write]] = {SetLabels: lambda value: ",".join(value.labels), str: str}

WRITES: Final[dict[str, dict[type, _Write]]] = {
    "integer": {int: str, bool: lambda value: "1" if value else "0"},
    "decimal": {int: str, bool: lambda value: "1" if value else "0", Decimal: _decimal},
    "float4": {F32: lambda value: _float(value.value)},
    "float8": {float: _float, F32: lambda value: _float(value.value)},
    "bit": {Bit: bits_text},
    "text": _ANY_TEXT,
    "char": _ANY_TEXT,
    "binary": {bytes: bytes_literal},
    "bytes": {bytes: bytes_literal},
    "geometry": {bytes: bytes_literal},
    "date": {Date: _date, **_DATES},
    "datetime": {Datetime: _datetime, Instant: _datetime, **_DATES},
    "timestamp": {Instant: _datetime, **_DATES},
    "time": {Time: time_text},
    "enum": _ENUM,
    "set": _SET,
    "uuid": {UUID: str},
    "other": {Other: lambda value: str(value.text), str: str},
}
"""For each category of column, the types of values that it takes and their text."""

_ANY_WRITES: Final[dict[str, dict[type, _Write]]] = {
    "integer": {int: str},
    "float8": {float: _float},
    "text": {str: str},
    "char": {str: str},
    "bytes": {bytes: bytes_literal},
    _NUMERIC: {int: str, float: _number, str: str},
}
"""The same for a source whose values have no declared type: what reads back as the same."""


def _any_kind(column: Column, target: TargetColumn) -> str:
    """Return the key of `_ANY_WRITES` for a column: text is for numbers too where SQLite would make them of it."""
    is_number = target.category == "text" and _by_affinity(column.source_type) == _NUMERIC
    return _NUMERIC if is_number else target.category


def accepts(column: Column, target: TargetColumn) -> None:
    """Refuse a column that takes none of the source's values, or not exactly. Raises MismatchError."""
    if column.logical == LogicalType.ANY:
        fits = _any_kind(column, target) in _ANY_WRITES
    else:
        fits = NATURAL[column.logical] in WRITES[target.category]
    if not fits:
        refuse_column(column, target)


_BARE: Final = frozenset({"integer", "float4", "float8", "binary", "bytes", "geometry"})
_LENGTH_COUNTS: Final = frozenset({"text", "char"})


def _check(column: BoundColumn) -> Callable[[str], None] | None:
    """Return what raises UnfitError for a text that the column would change without an error; None: it changes none."""
    target = column.target
    declared = target.declared
    if target.category in ("enum", "set"):
        labels = frozenset(target.labels)
        several = target.category == "set"

        def check_label(text: str) -> None:
            for label in (text.split(",") if text else []) if several else [text]:
                if label not in labels:
                    raise UnfitError(f"{label!r} is no label of {declared} here")

        return check_label
    digits = target.digits if may_round(column.source, target) else None
    if digits is not None and target.category in ("float4", "float8"):
        single = target.category == "float4"
        most = 10 ** (int(declared.partition("(")[2].partition(",")[0]) - digits)

        def check_rounding(text: str) -> None:
            value = float(text)
            kept = round(value, digits)
            if abs(value) >= most or not (round_f32(kept) == round_f32(value) if single else kept == value):
                raise UnfitError(f"is {declared} here and would round {text}")

        return check_rounding
    if digits is not None:

        def check_digits(text: str) -> None:
            if len(fraction_digits(text)) > digits:
                raise UnfitError(f"is {declared} here and would round {text}")

        return check_digits
    if target.type_name == "year":

        def check_century(text: str) -> None:
            if 0 < int(text) < 100:
                raise UnfitError(f"is {declared} here, which takes {text} for a year of this century or the last")

        return check_century
    length = target.length
    if target.category in _LENGTH_COUNTS and length is not None:
        in_characters = target.type_name in ("char", "varchar")

        def check_length(text: str) -> None:
            if len(text) * 4 > length:
                cut = text[length:] if in_characters else text.encode()[length:].decode(errors="replace")
                if cut.isspace():
                    raise UnfitError(f"is {declared} here and would cut spaces off")
            if target.category == "char" and text.endswith(" "):
                raise UnfitError(f"is {declared} here, which loses spaces at the end; declare it varchar")

        return check_length
    return None


def _writer(column: BoundColumn, *, compared: bool = False) -> Callable[[Value], str]:
    """Return what makes a literal of a value. `compared`: for a condition, not to be stored. Raises UnfitError."""
    name, source, target = column.source.name, column.source, column.target
    category = target.category
    writes = _ANY_WRITES[_any_kind(source, target)] if source.logical == LogicalType.ANY else WRITES[category]
    # A decimal to be stored goes as text: between the rows of one statement its digits stay its own.
    bare = category in _BARE or (compared and category == "decimal")
    check = _check(column)
    fixed = target.length if category == "binary" else None
    charset = _charset(target)
    last = target.length * 1_000_000 + 999_999 if category == "timestamp" and target.length is not None else None
    fills_null = category == "timestamp" and not (target.nullable or compared)

    def write(value: Value) -> str:
        if value is None:
            if fills_null:
                raise UnfitError(
                    f"column {name} is {target.declared} NOT NULL here, which makes the time of now of NULL"
                )
            return "NULL"
        if isinstance(value, CharsetBytes) and value.charset == charset:
            return f"_{charset} x'{value.raw.hex()}'"
        if category == "enum" and _is_error(value, target):
            return "0"
        if category == "set" and isinstance(value, SetLabels) and set(value.labels) <= set(target.labels):
            return str(_set_bits(value.labels, target.labels))
        to_text = writes.get(type(value))
        if to_text is None:
            raise refused_value(column, value)
        try:
            text = to_text(value)
            if check is not None:
                check(text)
            if last is not None and isinstance(value, Instant) and value.micros > last:
                raise UnfitError(f"{text} is beyond what a TIMESTAMP of this server has; make the column datetime")
            if fixed is not None and isinstance(value, bytes) and len(value) != fixed:
                raise UnfitError(f"is {target.declared} here, which fills {len(value)} bytes up with zeros")
        except UnfitError as exc:
            joint = " " if str(exc).startswith("is ") else ": "
            raise UnfitError(f"column {name}{joint}{exc}") from None
        if bare:
            return text
        return f"b'{text}'" if category == "bit" else literal(text)

    if check is None and category == "integer":
        return lambda value: str(value) if type(value) is int else write(value)
    return write


def _set_bits(labels: tuple[str, ...], all_labels: tuple[str, ...]) -> int:
    """Return a SET's number. Of labels that are equal the first counts, as it does where the server reads a text."""
    bits, at = 0, -1
    for label in labels:
        at = all_labels.index(label, at + 1 if label in all_labels[at + 1 :] else 0)
        bits |= 1 << at
    return bits


def _charset(target: TargetColumn) -> str:
    return target.collation.partition("_")[0] if target.category in _LENGTH_COUNTS else ""


def _has_codes(column: Column, target: TargetColumn) -> bool:
    """Whether text is compared and read by its bytes: a charset of both sides may have several codes for it."""
    return column.charset == _charset(target) and column.charset not in ("utf8mb4", "utf8mb3")


def _is_error(value: Value, target: TargetColumn) -> bool:
    """Whether a value is MariaDB's error value of an ENUM."""
    return value == Other(ENUM_ERROR, "0") or (value == EnumLabel("") and "" not in target.labels)


def _alike(column: BoundColumn) -> bool:
    """Whether a column is declared as the source's is, so that it holds whatever that one does."""
    source, target = column.source, column.target
    if source.nullable and not target.nullable:
        return False
    if target.category in ("enum", "set"):
        return source.source_type.startswith(target.type_name) and _declared_labels(source) == target.labels
    declared = _WIDTHS.sub(r"\1", target.declared.removesuffix(" zerofill"))
    return source.source_type == declared and (source.charset or "") == _charset(target)


def _relaxed(columns: Sequence[BoundColumn]) -> tuple[str, ...]:
    """Return what the session need not mind when these columns are set: rows go in as the source holds them.

    Zeros in dates, an ENUM's error value, what a generated column makes of the others: all were stored there.
    """
    return (STRICT,) if all(map(_alike, columns)) else ()


_WIDTHS: Final = re.compile(r"^((?:tiny|small|medium|big)?int|year|float|double)\([\d,]+\)")


# --- values out -----------------------------------------------------------------------------------------------------

_FROM_SERVER: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d)(\.\d+)?)?")
_SQLITE_NUMBER: Final = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_INTEGER: Final = re.compile(r"-?\d+")


def selected(column: Column, target: TargetColumn, name: str) -> str:
    """Return what to select of a column: a FLOAT as it is, not with the six digits that the server shows."""
    if target.category == "float4":
        return f"CAST({name} AS DOUBLE)"
    if _has_codes(column, target):
        return f"CAST({name} AS BINARY)"
    if target.category in ("enum", "set") and column.logical in (LogicalType.ENUM, LogicalType.SET):
        return f"CAST({name} AS UNSIGNED)"
    return name


def reader(column: Column, target: TargetColumn) -> Callable[[Any], Value]:
    """Return what makes a value again out of what the session reads: integers, bytes, and the server's text."""
    logical, category = column.logical, target.category
    if logical == LogicalType.ANY:
        if _any_kind(column, target) == _NUMERIC:
            return _read_number
        return float if category == "float8" else lambda stored: stored
    if _has_codes(column, target):
        return text_decoder(column.charset or "")
    match category:
        case "enum" if logical == LogicalType.ENUM:
            labels = enum_values(target.labels)
            return lambda stored: labels[stored]
        case "set" if logical == LogicalType.SET:
            return partial(set_value, target.labels)
        case "integer":
            return bool if logical == LogicalType.BOOL else lambda stored: stored
        case "bit":
            width = column.length or 0
            return lambda stored: Bit(width, int.from_bytes(stored, "big"))
        case "binary" | "bytes" | "geometry":
            return lambda stored: stored
        case "float4" | "float8":
            return (lambda stored: round_f32(float(stored))) if logical == LogicalType.F32 else float
        case "date" | "datetime" | "timestamp":
            return _moment_reader(column)
        case "decimal" if logical == LogicalType.DECIMAL:
            digits = source_digits(column)
            if digits is not None and digits != target.digits:
                return lambda stored: with_digits(Decimal(stored), digits)
            return Decimal
    return text_reader(column)


def _read_number(stored: str) -> Value:
    if _INTEGER.fullmatch(stored):
        return int(stored)
    return float(stored) if _SQLITE_NUMBER.fullmatch(stored) else stored


def _moment_reader(column: Column) -> Callable[[str], Value]:
    digits = source_digits(column) or 0
    made = Instant if column.logical == LogicalType.INSTANT else Datetime

    def read(stored: str) -> Value:
        found = _FROM_SERVER.fullmatch(stored)
        if found is None:
            return Other(column.source_type, stored)
        year, month, day = int(found[1]), int(found[2]), int(found[3])
        date = date_from_civil(year, month, day) if 1 <= month <= 12 else None
        if date is None or civil_from_date(date) != (year, month, day):
            fraction = (found[5] or ".")[1:].ljust(digits, "0")
            fraction = fraction[:digits] + fraction[digits:].rstrip("0")
            return ZeroDate(stored.partition(".")[0] + ("." + fraction if fraction else ""))
        if found[4] is None:
            return date
        hours, minutes, seconds = map(int, found[4].split(":"))
        micros = int((found[5] or ".")[1:].ljust(6, "0"))
        return made(date.days * _DAY_MICROS + (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + micros)

    return read


# --- statements -----------------------------------------------------------------------------------------------------

_JOINED: Final = frozenset({"integer", "bytes", "binary"})
_SET_LABELS: Final = 64
"""The most that a SET has."""


def _joins(column: BoundColumn) -> bool:
    """Whether a key's column finds its index when it is compared with a column of rows that come with the statement."""
    target = column.target
    return target.category in _JOINED or (target.category == "text" and target.collation == COLLATION)


class MariadbForms:
    """Multi-row statements; where a set will not do, one statement for each row, all in one packet."""

    def insert(self, table: str, columns: Sequence[BoundColumn]) -> Form:
        names = ", ".join([c.name for c in columns])
        sql = f"INSERT INTO {table} ({names}) VALUES {ROWS_HERE}"
        bind = _bind_rows([(c.index, _writer(c)) for c in columns])
        return Form(op=Op.INSERT, sql=sql, bind=bind, relaxed=_relaxed(columns))

    def update(
        self, table: str, changed: Sequence[BoundColumn], key: Sequence[BoundColumn], *, width: int, alone: bool
    ) -> Form:
        values = [(width + c.index, _writer(c)) for c in changed]
        found = [(c.index, _writer(c, compared=True)) for c in key]
        relaxed = _relaxed(changed)
        bind = _bind_each(f"UPDATE {table} SET", _pairs(changed, values, ", "), _pairs(key, found, " AND "))
        one = Form(op=Op.UPDATE, sql="", bind=bind, relaxed=relaxed)
        # Run row by row, so that rows may pass each other's keys as they did at the source; and where a column of rows
        # that come with the statement would be of one charset, whatever each value is in, or a decimal, of which a SET
        # takes 63 bits.
        apart = any([_has_codes(c.source, c.target) or len(c.target.labels) == _SET_LABELS for c in changed])
        if alone or apart or not all(map(_joins, key)):
            return one
        names = ", ".join([f"c{n}" for n in range(len(key) + len(changed))])
        on = " AND ".join([f"t.{c.name} = v.c{n}" for n, c in enumerate(key)])
        to = ", ".join([f"t.{c.name} = v.c{n}" for n, c in enumerate(changed, start=len(key))])
        rows = f"(WITH v({names}) AS (VALUES {ROWS_HERE}) SELECT * FROM v) AS v"
        # STRAIGHT_JOIN: the rows that came first, then each one's place in the table by its key.
        sql = f"UPDATE {rows} STRAIGHT_JOIN {table} AS t ON {on} SET {to}"
        bind = _bind_rows([*found, *values])
        return Form(op=Op.UPDATE, sql=sql, bind=bind, distinct=True, one=one, relaxed=relaxed)

    def delete(self, table: str, key: Sequence[BoundColumn]) -> Form:
        found = [(c.index, _writer(c, compared=True)) for c in key]
        if len(key) == 1:
            (_, write), (index, _) = found[0], found[0]
            sql = f"DELETE FROM {table} WHERE {key[0].name} IN ({ROWS_HERE})"
            return Form(op=Op.DELETE, sql=sql, bind=lambda rows: [write(row[index]) for row in rows], distinct=True)
        return Form(op=Op.DELETE, sql="", bind=_bind_each(f"DELETE FROM {table}", None, _pairs(key, found, " AND ")))

    def update_image(self, table: str, changed: Sequence[BoundColumn], image: Image, *, width: int) -> Form:
        values = [(width + c.index, _writer(c)) for c in changed]
        bind = _bind_each(f"UPDATE {table} SET", _pairs(changed, values, ", "), _image(image), " LIMIT 1")
        return Form(op=Op.UPDATE, sql="", bind=bind, limit=1, relaxed=_relaxed(changed))

    def delete_image(self, table: str, image: Image) -> Form:
        bind = _bind_each(f"DELETE FROM {table}", None, _image(image), " LIMIT 1")
        return Form(op=Op.DELETE, sql="", bind=bind, limit=1)


_Written: TypeAlias = Sequence[tuple[int, Callable[[Value], str]]]
"""For each column its place in a row, and what makes its literal."""


def _bind_rows(written: _Written) -> Callable[[Sequence[Row]], Sequence[str]]:
    def bind(rows: Sequence[Row]) -> list[str]:
        return ["(" + ", ".join([write(row[i]) for i, write in written]) + ")" for row in rows]

    return bind


def _pairs(columns: Sequence[BoundColumn], written: _Written, between: str) -> Callable[[Row], str]:
    """Return what writes `column = literal` for each of the columns."""
    pairs = [(c.name, i, write) for c, (i, write) in zip(columns, written, strict=True)]
    return lambda row: between.join([f"{name} = {write(row[i])}" for name, i, write in pairs])


def _bind_each(
    head: str, sets: Callable[[Row], str] | None, found: Callable[[Row], str], tail: str = ""
) -> Callable[[Sequence[Row]], Sequence[str]]:
    """Return what makes a statement of its own for each row."""

    def bind(rows: Sequence[Row]) -> list[str]:
        if sets is None:
            return [f"{head} WHERE {found(row)}{tail}" for row in rows]
        return [f"{head} {sets(row)} WHERE {found(row)}{tail}" for row in rows]

    return bind


def _image(image: Image) -> Callable[[Row], str]:
    """Return what makes the condition of being equal to a row's before image, to the last byte."""
    compared = [
        (_exactly(c), c.index, None if null else _image_writer(c))
        for c, null in zip(image.columns, image.nulls, strict=True)
    ]

    if not compared:
        return lambda row: "1"  # a table of generated columns alone: all its rows are equal

    def condition(row: Row) -> str:
        return " AND ".join(
            [f"{name} IS NULL" if write is None else f"{name} = {write(row[i])}" for name, i, write in compared]
        )

    return condition


def _image_writer(column: BoundColumn) -> Callable[[Value], str]:
    """Return what makes a literal that `_exactly` is compared with."""
    write, target = _writer(column, compared=True), column.target
    charset = _charset(target)

    def write_bytes(value: Value) -> str:
        if isinstance(value, CharsetBytes) and value.charset == charset:
            return f"x'{value.raw.hex()}'"
        return f"CAST(CONVERT({write(value)} USING {charset}) AS BINARY)"

    def write_number(value: Value) -> str:
        text = write(value)
        label = value.label if isinstance(value, EnumLabel) else value
        return text if isinstance(value, SetLabels) or text == "0" else str(target.labels.index(str(label)) + 1)

    if _has_codes(column.source, target):
        return write_bytes
    return write_number if target.category in ("enum", "set") else write


def _exactly(column: BoundColumn) -> str:
    """Return the expression whose equality is that of the value itself, whatever the column's collation."""
    if _has_codes(column.source, column.target):
        return f"CAST({column.name} AS BINARY)"
    match column.target.category:
        case "enum" | "set":
            return f"CAST({column.name} AS UNSIGNED)"
        case "text" | "char" | "other" if column.target.collation != COLLATION:
            return f"CONVERT({column.name} USING utf8mb4) COLLATE {COLLATION}"
        case "geometry":
            return f"CAST({column.name} AS BINARY)"
        case _:
            return column.name


_WITHOUT_TRANSACTIONS: Final = """
SELECT COALESCE(own.name, t.TABLE_SCHEMA), t.TABLE_NAME, t.ENGINE
  FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE
  JOIN (SELECT '' AS name UNION SELECT NULL) own ON own.name IS NULL OR t.TABLE_SCHEMA = DATABASE()
 WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND COALESCE(e.TRANSACTIONS, '') <> 'YES'
   AND t.ENGINE IS NOT NULL AND t.TABLE_SCHEMA NOT IN ('mysql', 'performance_schema', 'sys', 'information_schema')"""
_TEXT_TYPE: Final = f"longtext CHARACTER SET utf8mb4 COLLATE {COLLATION}"

MARIADB: Final = Dialect(
    kind="mariadb",
    mark="$",
    integer_type="bigint",
    text_type=_TEXT_TYPE,
    key_text_type=f"varchar(380) CHARACTER SET utf8mb4 COLLATE {COLLATION}",  # two of them fill a key
    table_suffix=TABLE_OPTIONS,
    now_ms="CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)",
    insert_or_keep="INSERT IGNORE INTO {into}",
    insert_or_set="INSERT INTO {into} ON DUPLICATE KEY UPDATE {set}",
    lock_rows=" FOR UPDATE",
    share_rows=" LOCK IN SHARE MODE",
    check_deferred="",
    runs_ddl_of=frozenset({"mariadb"}),
    ddl_to_skip=skip_statement,
    has_sequences=True,
    keys_at_end=False,
    unchecked="SET STATEMENT foreign_key_checks = 0 FOR ",
    statements_commit=True,
    without_transactions=_WITHOUT_TRANSACTIONS,
    quote=quote,
    table_name=table_name,
    one_name=table_name,
    one_column=lambda name: quote(name).lower(),
    create_table=create_table,
    add_column=add_column,
    column_type=column_type,
    rename_table=rename_table,
    take_null=take_null,
    retype=retype,
    accepts=accepts,
    forms=MariadbForms(),
    selected=selected,
    reader=reader,
)
"""MariaDB 10.7 and later, for its type UUID; tried on 10.11."""
