"""PostgreSQL as a target: its names, types and statements.

Owns what a value is as PostgreSQL's text, which columns take it, and the set-based statements. The hard idea: rows go
to the server as arrays, one per column, each in the text form of an array literal: a batch of any size is one
statement with as many parameters as columns, and the server's own input functions read every value. Pure.

Source: PostgreSQL's manual, "Array Value Input".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from tranlog.affinity import Affinity, affinity
from tranlog.change import Column, Op, TableMap
from tranlog.target.binding import (
    NATURAL,
    BoundColumn,
    CopyForm,
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
from tranlog.target.copy_lines import OF_FLOATS, OF_INTEGERS, OF_TEXTS, copy_lines
from tranlog.target.dialect import Dialect, table_parts
from tranlog.text_forms import TEXT_OF, bits_text, fraction_digits, text_reader, with_digits
from tranlog.text_rows import AS_BOOL, AS_DATETIME, AS_DECIMAL, AS_INSTANT, AS_INTEGER, AS_REAL, AS_TEXT
from tranlog.types import (
    F32,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
    date_text,
    datetime_text,
    float_text,
    time_text,
)

NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names off, and then two of them may be one."""
_SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "xmax", "cmin", "cmax", "ctid"})
"""Each table has these already."""

CATEGORY_OF: Final[dict[str, str]] = {
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "numeric": "numeric",
    "float4": "float4",
    "float8": "float8",
    "bool": "bool",
    "text": "text",
    "varchar": "text",
    "bpchar": "char",
    "bytea": "bytea",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "time": "time",
    "interval": "interval",
    "bit": "bit",
    "varbit": "bit",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
}
"""By pg_type.typname, of a domain's base type. Whatever is not here is "other", an array "array"."""

BYTES_MOST: Final = (1 << 29) - (1 << 20)
"""Bytes of one binary value: they travel as hexadecimal text, and neither a text nor a message may pass 1 GiB."""

_Write: TypeAlias = Callable[[Any], str]


# --- names and types ------------------------------------------------------------------------------------------------


def fit_name(name: str) -> str:
    """Return a name of at most 63 bytes: a longer one is cut and ends in 8 digits of a hash of all of it."""
    return name if len(name.encode()) <= NAME_BYTES else _cut(name)


def _cut(name: str) -> str:
    raw = name.encode()
    tail = "_" + hashlib.blake2b(raw, digest_size=4).hexdigest()
    return raw[: NAME_BYTES - len(tail)].decode(errors="ignore") + tail


def quote(name: str) -> str:
    """Quote a name, made to fit."""
    return '"' + fit_name(name).replace('"', '""') + '"'


def quote_column(name: str) -> str:
    """Return a column's quoted name; one of PostgreSQL's own columns ends in a hash, too."""
    return quote(_cut(name) if name in _SYSTEM_COLUMNS else name)


def table_name(table: TableMap) -> str:
    """Return the quoted schema and name; without a schema, what the search path finds."""
    return f"{quote(table.schema)}.{quote(table.table)}" if table.schema else quote(table.table)


_INTEGER_TYPES: Final = {
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "integer"),
    "mediumint": ("integer", "integer"),
    "int": ("integer", "bigint"),
    "integer": ("integer", "bigint"),
    "year": ("smallint", "smallint"),
}
"""By the first word of the source's type: the type here, signed and unsigned. Others: bigint and numeric(20)."""


def _column_type(column: Column) -> str:
    word = column.source_type.lower().partition("(")[0].strip().partition(" ")[0]
    match column.logical:
        case LogicalType.ANY:
            return _type_by_affinity(column.source_type.upper())
        case LogicalType.BOOL:
            return "boolean"
        case LogicalType.INTEGER:
            return _INTEGER_TYPES.get(word, ("bigint", "numeric(20)"))[column.unsigned]
        case LogicalType.F32:
            return "real"
        case LogicalType.F64:
            return "double precision"
        case LogicalType.DECIMAL:
            return "numeric" + _declared_digits(column.source_type)
        case LogicalType.BYTES:
            return "bytea"
        case LogicalType.DATE:
            return "date"
        case LogicalType.TIME:
            return "interval"  # a MariaDB TIME passes 24 hours, and zero
        case LogicalType.DATETIME:
            return "timestamp"
        case LogicalType.INSTANT:
            return "timestamptz"
        case LogicalType.BIT:
            return f"bit({column.length})" if column.length else "bit varying"
        case LogicalType.JSON:
            return "json"  # not jsonb: the source's own text
        case LogicalType.UUID:
            return "uuid"
        case LogicalType.TEXT | LogicalType.ENUM | LogicalType.SET | LogicalType.OTHER:
            return "text"


_BY_AFFINITY: Final = {
    Affinity.INTEGER: "bigint",
    Affinity.TEXT: "text",
    Affinity.BLOB: "bytea",
    Affinity.REAL: "double precision",
    Affinity.NUMERIC: "numeric",
}


def _type_by_affinity(declared: str) -> str:
    """Return a type for a column of SQLite's."""
    kind = affinity(declared)
    # DATE, DATETIME and TIMESTAMP are NUMERIC to SQLite, and what people store there is text.
    is_text = kind is Affinity.NUMERIC and ("DATE" in declared or "TIME" in declared)
    return "text" if is_text or not declared.strip() else _BY_AFFINITY[kind]


def _declared_digits(source_type: str) -> str:
    _, bracket, rest = source_type.partition("(")
    numbers = [part.strip() for part in rest.partition(")")[0].split(",")] if bracket else []
    return f"({', '.join(numbers)})" if numbers and all(n.isdigit() for n in numbers) else ""


def create_table(table: TableMap) -> tuple[str, ...]:
    """Return the statements that make a schema and a table, without its foreign keys."""

    made = f"CREATE TABLE IF NOT EXISTS {table_name(table)} ({table_parts(table, quote_column, _definer(table))})"
    return (f"CREATE SCHEMA IF NOT EXISTS {quote(table.schema)}", made) if table.schema else (made,)


def _definer(table: TableMap) -> Callable[[int, Column], str]:
    """Return what defines each column of a table."""
    return lambda index, column: column_type(table, index) + ("" if column.nullable else " NOT NULL")


def column_type(table: TableMap, index: int) -> str:
    """Return the type that a column gets: json, which cannot be compared, is text in a key."""
    made = _column_type(table.columns[index])
    return "text" if made == "json" and any(index in key for key in (table.primary_key, *table.unique_keys)) else made


def add_column(table: TableMap, index: int) -> str:
    """Return the statement that adds a column."""
    column = table.columns[index]
    return f"ALTER TABLE {table_name(table)} ADD COLUMN {quote_column(column.name)} {_definer(table)(index, column)}"


def retype(table: str, column: TargetColumn, made: str) -> str:
    """Return the statement that gives a column another type."""
    return f"ALTER TABLE {table} ALTER COLUMN {quote_column(column.name)} TYPE {made}"


def rename_table(table: TableMap, to: TableMap) -> str:
    """Return the statements that rename a table, to a schema that is there."""
    renamed = f"ALTER TABLE {table_name(table)} RENAME TO {quote(to.table)}"
    if table.schema == to.schema:
        return renamed
    moved = f"ALTER TABLE {table_name(table)} SET SCHEMA {quote(to.schema)}"
    return f"{moved}; ALTER TABLE {quote(to.schema)}.{quote(table.table)} RENAME TO {quote(to.table)}"


def take_null(table: str, column: TargetColumn) -> str:
    """Return the statement that makes a column take NULL."""
    return f"ALTER TABLE {table} ALTER COLUMN {quote_column(column.name)} DROP NOT NULL"


# --- values in ------------------------------------------------------------------------------------------------------


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise UnfitError(
            "the text holds a NUL character, which PostgreSQL cannot store; mend it, or leave its column out by filter"
        )
    return text


def _zero_date(value: ZeroDate) -> NoReturn:
    raise UnfitError(
        f"{value.text!r} is a date that PostgreSQL does not have; make the column text (ALTER COLUMN … TYPE text), "
        "which keeps it, or mend the row at the source"
    )


def _plain_number(value: float) -> str:
    """Return a float as a numeric that tells itself from an integer by its point."""
    if value != value or value in (float("inf"), float("-inf")):
        return float_text(value)
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else text + ".0"


def _hex(value: bytes) -> str:
    if len(value) > BYTES_MOST:
        raise UnfitError(
            f"{len(value)} bytes; PostgreSQL takes values of up to 1 GiB, and two characters for each byte: "
            f"{BYTES_MOST} bytes at most"
        )
    return "\\x" + value.hex()


_INFINITE: Final[dict[type, _Write]] = {InfiniteDate: TEXT_OF[InfiniteDate], ZeroDate: _zero_date}
_ANY_TEXT: Final[dict[type, _Write]] = {
    **TEXT_OF,
    str: _refuse_nul,
    EnumLabel: lambda value: _refuse_nul(value.label),
    SetLabels: lambda value: _refuse_nul(",".join(value.labels)),
    Json: lambda value: _refuse_nul(value.text),
    Other: lambda value: _refuse_nul(value.text),
    CharsetBytes: refuse_charset_bytes,
}

WRITES: Final[dict[str, dict[type, _Write]]] = {
    "integer": {int: str, bool: lambda value: "1" if value else "0"},
    "numeric": {int: str, bool: lambda value: "1" if value else "0", Decimal: str, float: _plain_number},
    "float4": {F32: lambda value: float_text(value.value)},
    "float8": {float: float_text, F32: lambda value: float_text(value.value)},
    "bool": {bool: lambda value: "t" if value else "f", int: str},
    "text": _ANY_TEXT,
    "char": _ANY_TEXT,
    "bytea": {bytes: _hex},
    "date": {Date: date_text, **_INFINITE},
    "timestamp": {Datetime: datetime_text, **_INFINITE},
    "timestamptz": {Instant: datetime_text, **_INFINITE},
    "time": {Time: time_text},
    "interval": {Time: time_text, Other: _ANY_TEXT[Other]},  # of PostgreSQL's own, with months and days
    "bit": {Bit: bits_text},
    "json": {kind: _ANY_TEXT[kind] for kind in (Json, str, CharsetBytes)},
    "jsonb": {kind: _ANY_TEXT[kind] for kind in (Json, str, CharsetBytes)},
    "uuid": {UUID: str},
    "array": {kind: _ANY_TEXT[kind] for kind in (Other, str)},
    "other": {kind: _ANY_TEXT[kind] for kind in (Other, str, EnumLabel, SetLabels)},
}
"""For each category of column, the types of values that it takes and their text."""

_ANY_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "numeric": (int, float),
    "float8": (float,),
    "text": (str,),
    "char": (str,),
    "bytea": (bytes,),
}
"""What a column may hold of a source whose values have no declared type: that which reads back as the same."""


def accepts(column: Column, target: TargetColumn) -> None:
    """Refuse a column that takes none of the source's values, or not exactly. Raises MismatchError."""
    if column.logical == LogicalType.ANY:
        fits = target.category in _ANY_TYPES
    else:
        fits = NATURAL[column.logical] in WRITES[target.category]
        if column.logical == LogicalType.F64 and target.category == "numeric":
            fits = False
    if not fits:
        refuse_column(column, target)


def _writer(column: BoundColumn) -> Callable[[Value], str | None]:
    """Return what makes the text of one value, NULL apart. It raises UnfitError, naming the column."""
    name, target = column.source.name, column.target
    writes = WRITES[target.category]
    if column.source.logical == LogicalType.ANY:
        writes = {kind: writes[kind] for kind in _ANY_TYPES[target.category]}
    digits = target.digits if may_round(column.source, target) else None
    check_length = _check_length(target)

    def write(value: Value) -> str | None:
        if value is None:
            return None
        to_text = writes.get(type(value))
        if to_text is None:
            raise refused_value(column, value)
        try:
            text = to_text(value)
            if check_length is not None:
                check_length(text)
        except UnfitError as exc:
            raise UnfitError(f"column {name}: {exc}") from None
        if digits is not None and len(fraction_digits(text)) > digits:
            raise UnfitError(f"column {name} is {target.declared} here and would round {text}")
        return text

    return write


def _check_length(target: TargetColumn) -> Callable[[str], None] | None:
    """Return what raises UnfitError for a text that the column would cut or pad without an error; None: it does not."""
    length = target.length
    in_bytes = target.type_name in ("name", '"char"')
    pads = target.category == "char"
    if not (in_bytes or pads or (target.category == "text" and length is not None)):
        return None

    def check(text: str) -> None:
        if in_bytes and len(text.encode()) > (length or 0):
            raise UnfitError(f"it is {target.declared} here and would cut the text; make the column text")
        if length is not None and len(text) > length and text[length:].isspace():
            raise UnfitError(f"it is {target.declared} here and would cut spaces off; make the column text")
        if pads and text.endswith(" "):
            raise UnfitError(f"it is {target.declared} here, which loses spaces at the end; make the column text")

    return check


_NONE: Final = type(None)
_BARE_ARRAYS: Final[dict[str, frozenset[type]]] = {
    "integer": frozenset({int, _NONE}),
    "numeric": frozenset({int, _NONE}),
    "float8": frozenset({float, _NONE}),
}
"""Categories and types whose Python list, printed, is an array literal but for its brackets and None."""


def _array_writer(column: BoundColumn) -> Callable[[list[Value]], str]:
    """Return what makes an array literal of a column's values. It raises UnfitError, naming the column."""
    write = _writer(column)
    category = column.target.category
    bare = _BARE_ARRAYS.get(category)
    is_text = _is_plain_text(column)

    def write_array(values: list[Value]) -> str:
        if bare is not None and bare.issuperset(map(type, values)):
            return "{" + repr(values)[1:-1].replace("None", "NULL") + "}"
        if is_text and set(map(type, values)) == {str}:
            joined = "\0".join(values)  # type: ignore[arg-type]  # all of them are str
            if joined.count("\0") == len(values) - 1:
                escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
                return '{"' + escaped + '"}'
        parts = []
        for value in values:
            text = write(value)
            if text is None:
                parts.append("NULL")
            else:
                parts.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        return "{" + ",".join(parts) + "}"

    return write_array


def _is_plain_text(column: BoundColumn) -> bool:
    """Whether a column takes every text as it is."""
    is_text = column.target.category in ("text", "char")
    is_text = is_text and column.source.logical in (LogicalType.ANY, LogicalType.TEXT)
    return is_text and _check_length(column.target) is None


def _copied(column: BoundColumn) -> int:
    """Return what a column holds mostly; see `copy_lines`."""
    match column.target.category:
        case "integer" | "numeric":
            return OF_INTEGERS
        case "float8":
            return OF_FLOATS
    return OF_TEXTS if _is_plain_text(column) else 0


# --- values out -----------------------------------------------------------------------------------------------------


def reader(column: Column, target: TargetColumn) -> Callable[[str], Value]:
    """Return what makes a value again out of PostgreSQL's text."""
    logical, category = column.logical, target.category
    if category == "bytea":
        return lambda text: bytes.fromhex(text[2:])
    if logical == LogicalType.ANY:
        if category == "numeric":
            return _read_number
        return int if category == "integer" else float if category == "float8" else str
    if category == "char" and logical == LogicalType.TEXT:
        return lambda text: text.rstrip(" ")
    if logical == LogicalType.DECIMAL and category == "numeric":
        digits = source_digits(column)
        if digits is not None and digits != target.digits:
            return lambda text: with_digits(Decimal(text), digits)
    return text_reader(column)


_FORMS: Final = {
    ("integer", LogicalType.INTEGER): AS_INTEGER,
    ("text", LogicalType.TEXT): AS_TEXT,
    ("text", LogicalType.ANY): AS_TEXT,
    ("float8", LogicalType.F64): AS_REAL,
    ("timestamp", LogicalType.DATETIME): AS_DATETIME,
    ("timestamptz", LogicalType.INSTANT): AS_INSTANT,
    ("bool", LogicalType.BOOL): AS_BOOL,
}


def text_form(column: Column, target: TargetColumn) -> int:
    """Return the form of a column's texts where it is one of those that `reader` reads plainly."""
    if column.logical == LogicalType.DECIMAL and target.category == "numeric":
        digits = source_digits(column)
        return AS_DECIMAL if digits is None or digits == target.digits else 0
    return _FORMS.get((target.category, column.logical), 0)


def _read_number(text: str) -> Value:
    if "." in text or not text.lstrip("-").isdigit():
        return float(text)
    return int(text)


# --- statements -----------------------------------------------------------------------------------------------------


def _cast(column: BoundColumn) -> str:
    return column.target.type_name


def _scalars(columns: Sequence[BoundColumn]) -> list[str]:
    """Return an expression for each column's value, of one row in as many parameters."""
    return [f"${n}::{_cast(c)}" for n, c in enumerate(columns, start=1)]


def _unnest(columns: Sequence[BoundColumn]) -> tuple[str, list[str]]:
    """Return `unnest(…) AS v(c1, …)` over one array per column, and an expression for each column's value."""
    arrays, values = [], []
    for n, column in enumerate(columns, start=1):
        if column.target.category == "array":  # unnest would flatten an array of arrays
            arrays.append(f"${n}::text[]")
            values.append(f"v.c{n}::{_cast(column)}")
        else:
            arrays.append(f"${n}::{_cast(column)}[]")
            values.append(f"v.c{n}")
    names = ", ".join([f"c{n}" for n in range(1, len(columns) + 1)])
    return f"unnest({', '.join(arrays)}) AS v({names})", values


def _same(column: BoundColumn, n: int) -> str:
    """Return the condition that a column holds the very value of parameter n, not one that is merely equal."""
    name, value = column.name, f"${n}::{_cast(column)}"
    match column.target.category:
        case "float4" | "float8":
            return f"{name} = {value} AND {column.target.category}send({name}) = {column.target.category}send({value})"
        case "numeric" if column.target.digits is None:
            return f"{name} = {value} AND {name}::text = {value}::text"
        case "json" | "jsonb" | "array" | "other" | "interval":
            return f"{name}::text = {value}::text"
        case "text" | "char":  # the column's own collation may take several texts for one, and has the index
            return f'{name} = {value} AND {name} COLLATE "C" = {value}'
        case _:
            return f"{name} = {value}"


class PostgresForms:
    """Set-based statements over `unnest`; by the whole image one row at a time, found by its ctid."""

    def insert(self, table: str, columns: Sequence[BoundColumn]) -> Form:
        if not columns:  # a table may have none
            return Form(op=Op.INSERT, sql=f"INSERT INTO {table} DEFAULT VALUES", bind=_bind_values([]), limit=1)
        names = ", ".join([c.name for c in columns])
        picked = [(c.index, c) for c in columns]
        into = f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE"
        one = Form(
            op=Op.INSERT, sql=f"{into} VALUES ({', '.join(_scalars(columns))})", bind=_bind_values(picked), limit=1
        )
        rows, values = _unnest(columns)
        sql = f"{into} SELECT {', '.join(values)} FROM {rows}"
        copy = CopyForm(sql=f"COPY {table} ({names}) FROM STDIN", lines=_copy_lines(columns))
        return Form(op=Op.INSERT, sql=sql, bind=_bind_arrays(picked), one=one, copy=copy)

    def update(
        self, table: str, changed: Sequence[BoundColumn], key: Sequence[BoundColumn], *, width: int, alone: bool
    ) -> Form:
        picked = [(width + c.index, c) for c in changed] + [(c.index, c) for c in key]

        def update(values: Sequence[str]) -> str:
            assigned = ", ".join([f"{c.name} = {v}" for c, v in zip(changed, values, strict=False)])
            return f"UPDATE {table} AS t SET {assigned}"

        values = _scalars([*changed, *key])
        sql = f"{update(values)} WHERE {_join(key, values[len(changed) :])}"
        one = Form(op=Op.UPDATE, sql=sql, bind=_bind_values(picked), limit=1)
        if alone:
            return one
        rows, values = _unnest([*changed, *key])
        sql = f"{update(values)} FROM {rows} WHERE {_join(key, values[len(changed) :])}"
        return Form(op=Op.UPDATE, sql=sql, bind=_bind_arrays(picked), distinct=True, one=one)

    def delete(self, table: str, key: Sequence[BoundColumn]) -> Form:
        picked = [(c.index, c) for c in key]
        sql = f"DELETE FROM {table} AS t WHERE {_join(key, _scalars(key))}"
        one = Form(op=Op.DELETE, sql=sql, bind=_bind_values(picked), limit=1)
        rows, values = _unnest(key)
        sql = f"DELETE FROM {table} AS t USING {rows} WHERE {_join(key, values)}"
        return Form(op=Op.DELETE, sql=sql, bind=_bind_arrays(picked), distinct=True, one=one)

    def update_image(self, table: str, changed: Sequence[BoundColumn], image: Image, *, width: int) -> Form:
        assigned = ", ".join([f"{c.name} = ${n}::{_cast(c)}" for n, c in enumerate(changed, start=1)])
        same, compared = _image(image, len(changed) + 1)
        sql = f"UPDATE {table} SET {assigned} WHERE {_one_of(table, same, image.place)}"
        picked = [(width + c.index, c) for c in changed] + [(c.index, c) for c in compared]
        return Form(op=Op.UPDATE, sql=sql, bind=_bind_values(picked), limit=1)

    def delete_image(self, table: str, image: Image) -> Form:
        same, compared = _image(image, 1)
        sql = f"DELETE FROM {table} WHERE {_one_of(table, same, image.place)}"
        return Form(op=Op.DELETE, sql=sql, bind=_bind_values([(c.index, c) for c in compared]), limit=1)


def _join(key: Sequence[BoundColumn], values: Sequence[str]) -> str:
    return " AND ".join([f"t.{c.name} = {v}" for c, v in zip(key, values, strict=True)])


def _image(image: Image, first: int) -> tuple[str, list[BoundColumn]]:
    """Return the condition of being equal to an image, and the columns whose values are its parameters."""
    conditions: list[str] = []
    compared: list[BoundColumn] = []
    for column, null in zip(image.columns, image.nulls, strict=True):
        if null:
            conditions.append(f"{column.name} IS NULL")
        else:
            conditions.append(_same(column, first + len(compared)))
            compared.append(column)
    return " AND ".join(conditions) or "true", compared


def _one_of(table: str, same: str, place: str) -> str:
    if not place:
        return same
    # Said twice: in a partitioned table a ctid names a row of each partition.
    return f"{place} = (SELECT {place} FROM {table} WHERE {same} LIMIT 1) AND {same}"


def _bind_arrays(picked: Sequence[tuple[int, BoundColumn]]) -> Callable[[Sequence[Row]], Sequence[Any]]:
    arrays = [(index, _array_writer(column)) for index, column in picked]

    def bind(rows: Sequence[Row]) -> list[str]:
        return [write([row[index] for row in rows]) for index, write in arrays]

    return bind


def _copy_lines(columns: Sequence[BoundColumn]) -> Callable[[Sequence[Row]], bytes]:
    places, forms = [column.index for column in columns], bytes(map(_copied, columns))
    writers = [_writer(column) for column in columns]
    return lambda rows: copy_lines(rows, places, forms, writers)


def _bind_values(picked: Sequence[tuple[int, BoundColumn]]) -> Callable[[Sequence[Row]], Sequence[Any]]:
    writers = [(index, _writer(column)) for index, column in picked]

    def bind(rows: Sequence[Row]) -> list[str | None]:
        (row,) = rows
        return [write(row[index]) for index, write in writers]

    return bind


POSTGRES: Final = Dialect(
    kind="postgres",
    mark="$",
    integer_type="bigint",
    text_type="text",
    key_text_type="text",
    table_suffix=" WITH (fillfactor = 50)",  # room for the next version of a row beside it
    now_ms="(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    insert_or_keep="INSERT INTO {into} ON CONFLICT ({key}) DO NOTHING",
    insert_or_set="INSERT INTO {into} ON CONFLICT ({key}) DO UPDATE SET {set}",
    lock_rows=" FOR UPDATE",
    share_rows=" FOR SHARE",
    check_deferred="SET CONSTRAINTS ALL IMMEDIATE",
    runs_ddl_of=frozenset(),
    ddl_to_skip=lambda statement: "",
    has_sequences=False,
    keys_at_end=True,
    unchecked="",
    statements_commit=False,
    without_transactions="",
    quote=quote_column,
    table_name=table_name,
    one_name=table_name,
    one_column=quote_column,
    create_table=create_table,
    add_column=add_column,
    column_type=column_type,
    rename_table=rename_table,
    take_null=take_null,
    retype=retype,
    accepts=accepts,
    forms=PostgresForms(),
    selected=lambda column, target, name: name,
    reader=reader,
    text_form=text_form,
)
"""PostgreSQL 13 and later."""
