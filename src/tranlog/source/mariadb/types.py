"""Which of our types a MariaDB column has, told by the binlog or by information_schema.

Owns the one description that both lead to, so that a table looks the same whether it was met in the stream or listed
from the catalog. Pure. The hard idea: the binlog does not tell a UUID or an INET6 from a BINARY(16), nor the decimals
of times in MariaDB 5.3's format; there the catalog's word is taken, if the column stored there can be of that type.

Source: MariaDB's manual, "Information schema COLUMNS table".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tranlog.change import Column, ForeignKey, TableMap, TableName
from tranlog.charsets import BINARY, bytes_per_character, text_decoder
from tranlog.errors import UnsupportedTypeError
from tranlog.servers.mariadb_values import catalog_labels
from tranlog.source.mariadb.events import BinlogColumn, BinlogTable, EventFormatError, FieldType
from tranlog.types import CharsetBytes, LogicalType


class Family(enum.Enum):
    """Columns of one family are converted alike."""

    INTEGER = "integer"
    YEAR = "year"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    BYTES = "bytes"
    GEOMETRY = "geometry"
    ENUM = "enum"
    SET = "set"
    UUID = "uuid"
    INET = "inet"


_LOGICAL: Final = {
    Family.INTEGER: LogicalType.INTEGER,
    Family.YEAR: LogicalType.INTEGER,
    Family.FLOAT: LogicalType.F32,
    Family.DOUBLE: LogicalType.F64,
    Family.DECIMAL: LogicalType.DECIMAL,
    Family.BIT: LogicalType.BIT,
    Family.DATE: LogicalType.DATE,
    Family.TIME: LogicalType.TIME,
    Family.DATETIME: LogicalType.DATETIME,
    Family.TIMESTAMP: LogicalType.INSTANT,
    Family.TEXT: LogicalType.TEXT,
    Family.BYTES: LogicalType.BYTES,
    Family.GEOMETRY: LogicalType.BYTES,
    Family.ENUM: LogicalType.ENUM,
    Family.SET: LogicalType.SET,
    Family.UUID: LogicalType.UUID,
    Family.INET: LogicalType.OTHER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbType:
    """A column's type as we see it.

    `name` is MariaDB's word without arguments; `length` in the type's own unit, 0 where there is none; `precision`
    of a DECIMAL; `decimals` of a DECIMAL or of a time; `fixed` of a BINARY, whose zeros at the end count.
    """

    family: Family
    name: str
    unsigned: bool = False
    charset: str | None = None
    length: int = 0
    precision: int = 0
    decimals: int = 0
    labels: tuple[str, ...] = ()
    fixed: bool = False

    @property
    def source_type(self) -> str:
        """MariaDB's spelling, with arguments and without display widths: `decimal(10,2) unsigned`."""
        text = self.name
        match self.family:
            case Family.DECIMAL:
                text += f"({self.precision},{self.decimals})"
            case Family.TIME | Family.DATETIME | Family.TIMESTAMP if self.decimals:
                text += f"({self.decimals})"
            case Family.ENUM | Family.SET:
                text += "(" + ",".join("'" + label.replace("'", "''") + "'" for label in self.labels) + ")"
            case Family.BIT:
                text += f"({self.length})"
            case Family.TEXT | Family.BYTES if self.name in ("char", "varchar", "binary", "varbinary"):
                text += f"({self.length})"
        return text + " unsigned" if self.unsigned else text

    def column(self, name: str, *, nullable: bool) -> Column:
        """Return the column of a table map."""
        return Column(
            name=name,
            source_type=self.source_type,
            logical=_LOGICAL[self.family],
            unsigned=self.unsigned,
            nullable=nullable,
            charset=self.charset,
            length=self.length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """What the catalog says of a table now: it may have been altered since a row of it was written.

    `types` by column, as information_schema spells them; keys by the names of their columns; `transactional` says
    whether a ROLLBACK undoes its changes; `changed_at` is the second of its last definition, None where nobody knows.
    `generated` are the columns that follow from others.
    """

    types: Mapping[str, str]
    generated: frozenset[str] = frozenset()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[KnownForeignKey, ...] = ()
    transactional: bool = True
    sequence: bool = False
    changed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownForeignKey:
    """A foreign key of the catalog."""

    columns: tuple[str, ...]
    ref_schema: str
    ref_table: str
    ref_columns: tuple[str, ...]


def table_map(
    schema: str,
    table: str,
    columns: Sequence[Column],
    *,
    primary_key: Sequence[int],
    known: KnownTable | None,
    sequence: bool = False,
) -> TableMap:
    """Return a table map, with such of the catalog's keys as the columns allow."""
    place = {column.name: at for at, column in enumerate(columns)}
    unique_keys: list[tuple[int, ...]] = []
    foreign_keys: list[ForeignKey] = []
    if known is not None:
        for names in known.unique_keys:
            if all(name in place for name in names):
                unique_keys.append(tuple(place[name] for name in names))
        for key in known.foreign_keys:
            if all(name in place for name in key.columns):
                foreign_keys.append(
                    ForeignKey(
                        columns=tuple(place[name] for name in key.columns),
                        ref_schema=key.ref_schema,
                        ref_table=key.ref_table,
                        ref_columns=key.ref_columns,
                    )
                )
    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(columns),
        primary_key=tuple(primary_key),
        unique_keys=tuple(unique_keys),
        foreign_keys=tuple(foreign_keys),
        sequence=sequence,
    )


_INTEGERS: Final = {
    FieldType.TINY: "tinyint",
    FieldType.SHORT: "smallint",
    FieldType.INT24: "mediumint",
    FieldType.LONG: "int",
    FieldType.LONGLONG: "bigint",
}
_TIMES: Final = {
    FieldType.TIME2: (Family.TIME, "time"),
    FieldType.DATETIME2: (Family.DATETIME, "datetime"),
    FieldType.TIMESTAMP2: (Family.TIMESTAMP, "timestamp"),
}
_OLD_TIMES: Final = {
    FieldType.TIME: (Family.TIME, "time"),
    FieldType.DATETIME: (Family.DATETIME, "datetime"),
    FieldType.TIMESTAMP: (Family.TIMESTAMP, "timestamp"),
}
_BLOB_SIZES: Final = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_GEOMETRIES: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
_BY_CATALOG: Final = {
    "uuid": (16, MariadbType(family=Family.UUID, name="uuid")),
    "inet6": (16, MariadbType(family=Family.INET, name="inet6")),
    "inet4": (4, MariadbType(family=Family.INET, name="inet4")),
}
"""Types that the binlog shows as BINARY of so many bytes."""
_ALIKE: Final = re.compile(r"uuid|inet[46]|binary\((?:4|16)\)")
_NAME: Final = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TABLE: Final = rf"({_NAME})(?:\s*\.\s*({_NAME}))?"
_CREATE: Final = rf"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?{_TABLE}\s*"
_CREATED: Final = re.compile(rf"{_CREATE}\(", re.IGNORECASE)
_CREATED_LIKE: Final = re.compile(rf"{_CREATE}\(?\s*LIKE\s+{_TABLE}", re.IGNORECASE)
_ALTERED: Final = re.compile(rf"\s*ALTER\s+(?:ONLINE\s+|IGNORE\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?{_TABLE}", re.IGNORECASE)
_RENAMED: Final = re.compile(r"\s*RENAME\s+TABLES?\b", re.IGNORECASE)
_ONE_RENAMED: Final = re.compile(rf"{_TABLE}\s+(?:NOWAIT\s+|WAIT\s+\d+\s+)?TO\s+{_TABLE}", re.IGNORECASE)
_RENAMED_TO: Final = re.compile(rf"\bRENAME\s+(?:TO|AS)\s+{_TABLE}", re.IGNORECASE)
_DECLARED: Final = re.compile(rf"({_NAME})\s+(UUID|INET[46]|BINARY\s*\(\s*(?:4|16)\s*\))(?!\w)", re.IGNORECASE)
_UNSAID: Final = re.compile(r"'(?:[^'\\]|''|\\.)*'|/\*.*?\*/|--\s[^\n]*|\#[^\n]*", re.DOTALL)


def alike_in_binlog(types: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a table that the binlog does not tell apart, with the types that the catalog gives them."""
    return {name: declared for name, declared in types.items() if _ALIKE.fullmatch(declared)}


def alike_after(
    schema: str, sql: str, before: Mapping[TableName, Mapping[str, str]]
) -> dict[TableName, dict[str, str]]:
    """Return what a statement, run in `schema`, says of such columns, by table; nothing of tables that it leaves alone.

    Read as far as that goes: what an ALTER TABLE names counts as changed, to what it declares.
    """
    bare = _UNSAID.sub(" ", sql)
    if (match := _CREATED_LIKE.match(bare)) is not None:
        return {
            _table_named(schema, match[1], match[2]): dict(before.get(_table_named(schema, match[3], match[4]), {}))
        }
    if (match := _CREATED.match(bare)) is not None:
        return {_table_named(schema, match[1], match[2]): _declared(bare, match.end())}
    if (match := _ALTERED.match(bare)) is not None:
        table = _table_named(schema, match[1], match[2])
        text = bare[match.end() :]
        columns = {
            name: declared
            for name, declared in before.get(table, {}).items()
            if not re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE)
        } | _declared(text, 0)
        renamed = _RENAMED_TO.search(text)
        return {table if renamed is None else _table_named(schema, renamed[1], renamed[2]): columns}
    if _RENAMED.match(bare) is not None:
        moved: dict[TableName, dict[str, str]] = {}
        for one in _ONE_RENAMED.finditer(bare):
            old = _table_named(schema, one[1], one[2])
            moved[_table_named(schema, one[3], one[4])] = dict(moved.get(old, before.get(old, {})))
        return moved
    return {}


def _declared(text: str, start: int) -> dict[str, str]:
    return {_unquoted(one[1]): re.sub(r"\s", "", one[2].lower()) for one in _DECLARED.finditer(text, start)}


def _table_named(schema: str, first: str, second: str | None) -> TableName:
    return (schema, _unquoted(first)) if second is None else (_unquoted(first), _unquoted(second))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


_OLD_TIME_DECLARED: Final = re.compile(r"(time|datetime|timestamp)(?:\((\d)\))?\s*/\* mariadb-5\.3 \*/")


def types_in_binlog(
    table: BinlogTable, *, collations: Mapping[int, str], known: KnownTable | None
) -> tuple[MariadbType, ...]:
    """Return the types of a TABLE_MAP event's columns.

    `collations` maps the server's numbers to charsets. Raises UnsupportedTypeError by column, EventFormatError.
    """
    return tuple(
        _type_in_binlog(table, column, collations, (known.types.get(column.name, "") if known is not None else ""))
        for column in table.columns
    )


def _type_in_binlog(
    table: BinlogTable, column: BinlogColumn, collations: Mapping[int, str], declared: str
) -> MariadbType:
    kind, of = column.kind, f"{table.schema}.{table.table}"
    match kind:
        case FieldType.TINY | FieldType.SHORT | FieldType.INT24 | FieldType.LONG | FieldType.LONGLONG:
            return MariadbType(family=Family.INTEGER, name=_INTEGERS[kind], unsigned=column.unsigned)
        case FieldType.YEAR:
            return MariadbType(family=Family.YEAR, name="year")
        case FieldType.FLOAT:
            return MariadbType(family=Family.FLOAT, name="float", unsigned=column.unsigned)
        case FieldType.DOUBLE:
            return MariadbType(family=Family.DOUBLE, name="double", unsigned=column.unsigned)
        case FieldType.NEWDECIMAL:
            if not (1 <= column.length <= 65 and column.decimals <= min(column.length, 38)):
                raise EventFormatError(why=f"{of}.{column.name}: decimal({column.length},{column.decimals})")
            return MariadbType(
                family=Family.DECIMAL,
                name="decimal",
                unsigned=column.unsigned,
                precision=column.length,
                decimals=column.decimals,
            )
        case FieldType.BIT:
            if not 1 <= column.length <= 64:
                raise EventFormatError(why=f"{of}.{column.name}: bit({column.length})")
            return MariadbType(family=Family.BIT, name="bit", length=column.length)
        case FieldType.DATE | FieldType.NEWDATE:
            return MariadbType(family=Family.DATE, name="date")
        case FieldType.TIME2 | FieldType.DATETIME2 | FieldType.TIMESTAMP2:
            if column.decimals > 6:
                raise EventFormatError(why=f"{of}.{column.name}: {column.decimals} decimals")
            family, name = _TIMES[kind]
            return MariadbType(family=family, name=name, decimals=column.decimals)
        case FieldType.TIME | FieldType.DATETIME | FieldType.TIMESTAMP:
            family, name = _OLD_TIMES[kind]
            match = _OLD_TIME_DECLARED.fullmatch(declared)
            if match is None or match[1] != name or int(match[2] or 0) > 6:
                raise UnsupportedTypeError(
                    table=of,
                    column=column.name,
                    type_name=f"{name} in MariaDB 5.3's format, with decimals that the binlog does not tell and the "
                    "catalog no longer knows",
                )
            return MariadbType(family=family, name=name, decimals=int(match[2] or 0))
        case FieldType.ENUM | FieldType.SET:
            charset = _charset(column, collations)
            family = Family.ENUM if kind == FieldType.ENUM else Family.SET
            return MariadbType(
                family=family, name=family.value, charset=charset, labels=_labels(table, column, charset)
            )
        case FieldType.GEOMETRY:
            if column.length not in _BLOB_SIZES:
                raise EventFormatError(why=f"{of}.{column.name}: a geometry with a length of {column.length} bytes")
            number = column.geometry or 0
            if number >= len(_GEOMETRIES):
                raise UnsupportedTypeError(table=of, column=column.name, type_name=f"geometry {number}")
            return MariadbType(family=Family.GEOMETRY, name=_GEOMETRIES[number])
        case FieldType.STRING | FieldType.VARCHAR | FieldType.VAR_STRING | FieldType.VARCHAR_COMPRESSED:
            charset = _charset(column, collations)
            fixed = kind == FieldType.STRING
            # What COMPRESSED adds is one byte in front.
            length = column.length - (kind == FieldType.VARCHAR_COMPRESSED)
            if length < 0:
                raise EventFormatError(why=f"{of}.{column.name}: a compressed text of no bytes")
            if charset == BINARY:
                special = _BY_CATALOG.get(declared)
                if special is not None and fixed and special[0] == length:
                    return special[1]
                return MariadbType(
                    family=Family.BYTES, name="binary" if fixed else "varbinary", length=length, fixed=fixed
                )
            return MariadbType(
                family=Family.TEXT,
                name="char" if fixed else "varchar",
                charset=charset,
                length=length // bytes_per_character(charset),
            )
        case (
            FieldType.BLOB
            | FieldType.TINY_BLOB
            | FieldType.MEDIUM_BLOB
            | FieldType.LONG_BLOB
            | FieldType.BLOB_COMPRESSED
        ):
            size = _BLOB_SIZES.get(column.length)
            if size is None:
                raise EventFormatError(why=f"{of}.{column.name}: a blob with a length of {column.length} bytes")
            charset = _charset(column, collations)
            if charset == BINARY:
                return MariadbType(family=Family.BYTES, name=f"{size}blob")
            return MariadbType(family=Family.TEXT, name=f"{size}text", charset=charset)
        case _:
            raise UnsupportedTypeError(table=of, column=column.name, type_name=kind.name.lower())


def _charset(column: BinlogColumn, collations: Mapping[int, str]) -> str:
    if column.collation is None:
        raise EventFormatError(why=f"column {column.name} has no charset")
    return collations.get(column.collation) or f"collation {column.collation}"


def _labels(table: BinlogTable, column: BinlogColumn, charset: str) -> tuple[str, ...]:
    decode = text_decoder("utf8mb4" if charset == BINARY else charset)
    labels = []
    for raw in column.labels:
        label = decode(raw)
        if isinstance(label, CharsetBytes):
            raise UnsupportedTypeError(
                table=f"{table.schema}.{table.table}",
                column=column.name,
                type_name=f"{column.kind.name.lower()} with the label 0x{raw.hex()}, which is no text in {charset}",
            )
        labels.append(label)
    return tuple(labels)


# --- the catalog -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A row of information_schema.COLUMNS."""

    name: str
    data_type: str
    column_type: str
    nullable: bool
    charset: str | None
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    decimals: int | None


def type_in_catalog(table: str, column: CatalogColumn) -> MariadbType:
    """Return the type of a column of the catalog, as `types_in_binlog` has it. Raises UnsupportedTypeError."""
    name = column.data_type
    unsigned = " unsigned" in column.column_type.rpartition(")")[2] or column.column_type.endswith(" unsigned")
    match name:
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint":
            return MariadbType(family=Family.INTEGER, name=name, unsigned=unsigned)
        case "year":
            return MariadbType(family=Family.YEAR, name=name)
        case "float":
            return MariadbType(family=Family.FLOAT, name=name, unsigned=unsigned)
        case "double":
            return MariadbType(family=Family.DOUBLE, name=name, unsigned=unsigned)
        case "decimal":
            return MariadbType(
                family=Family.DECIMAL,
                name=name,
                unsigned=unsigned,
                precision=column.precision or 0,
                decimals=column.scale or 0,
            )
        case "bit":
            return MariadbType(family=Family.BIT, name=name, length=column.precision or 0)
        case "date":
            return MariadbType(family=Family.DATE, name=name)
        case "time" | "datetime" | "timestamp":
            return MariadbType(family=Family[name.upper()], name=name, decimals=column.decimals or 0)
        case "enum" | "set":
            return MariadbType(
                family=Family[name.upper()],
                name=name,
                charset=column.charset or BINARY,
                labels=catalog_labels(column.column_type),
            )
        case "char" | "varchar":
            return MariadbType(family=Family.TEXT, name=name, charset=column.charset, length=column.characters or 0)
        case "binary" | "varbinary":
            return MariadbType(family=Family.BYTES, name=name, length=column.octets or 0, fixed=name == "binary")
        case "tinytext" | "text" | "mediumtext" | "longtext":
            return MariadbType(family=Family.TEXT, name=name, charset=column.charset)
        case "tinyblob" | "blob" | "mediumblob" | "longblob":
            return MariadbType(family=Family.BYTES, name=name)
        case _ if name in _GEOMETRIES:
            return MariadbType(family=Family.GEOMETRY, name=name)
        case _ if name in _BY_CATALOG:
            return replace(_BY_CATALOG[name][1])
        case _:
            raise UnsupportedTypeError(table=table, column=column.name, type_name=column.column_type)


_HASH_OF_KEY: Final = re.compile(r"DB_ROW_HASH_\d+")


def carried_columns(table: BinlogTable, known: KnownTable | None) -> tuple[int, ...]:
    """Return the places of the columns that are carried.

    Left out are the server's own hashes of long unique keys, which stand last, and generated columns: from 11.8 on an
    update's images have neither. A table of generated columns alone has all of them.
    """
    generated = frozenset() if known is None else known.generated
    shown = range(_shown_columns(table, known))
    return tuple([at for at in shown if table.columns[at].name not in generated]) or tuple(shown)


def _shown_columns(table: BinlogTable, known: KnownTable | None) -> int:
    shown = len(table.columns)
    while shown > 1:
        last = table.columns[shown - 1]
        if (
            last.kind is not FieldType.LONGLONG
            or not _HASH_OF_KEY.fullmatch(last.name)
            or (known is not None and last.name in known.types)
        ):
            break
        shown -= 1
    return shown


def named_by_catalog(
    table: BinlogTable, listed: Sequence[CatalogColumn], primary_key: Sequence[str], collations: Mapping[int, str]
) -> tuple[BinlogTable, tuple[MariadbType, ...]] | None:
    """Return a table whose event lacks names, with those of the catalog and its types; None where they do not fit.

    All that the event does tell must agree: the number of the columns, kinds, sizes, and which may be NULL.
    """
    columns: list[BinlogColumn] = []
    types: list[MariadbType] = []
    shown = len(listed)
    hidden = tuple(
        replace(column, name=f"DB_ROW_HASH_{number}", unsigned=True)
        for number, column in enumerate(table.columns[shown:], start=1)
    )
    if len(table.columns) < shown or any(column.kind is not FieldType.LONGLONG for column in hidden):
        return None
    for column, declared in zip(table.columns[:shown], listed, strict=True):
        kind = type_in_catalog(f"{table.schema}.{table.table}", declared)
        labelled = kind.family in (Family.ENUM, Family.SET)
        number = next((at for at, charset in collations.items() if charset == (kind.charset or BINARY)), None)
        column = replace(
            column,
            name=declared.name,
            unsigned=kind.unsigned,
            collation=number if column.collation is None else column.collation,
            geometry=_GEOMETRIES.index(kind.name) if kind.family is Family.GEOMETRY else None,
        )
        try:
            found = _type_in_binlog(table, column, collations, declared.column_type)
        except (EventFormatError, UnsupportedTypeError):
            return None
        if labelled:
            found = replace(found, labels=kind.labels)
        if found != kind or column.nullable != declared.nullable:
            return None
        if labelled and column.length != _label_bytes(kind):
            return None
        columns.append(column)
        types.append(kind)
    place = {column.name: at for at, column in enumerate(columns)}
    key = tuple(place[name] for name in primary_key)
    types += [MariadbType(family=Family.INTEGER, name="bigint", unsigned=True)] * len(hidden)
    return replace(table, columns=(*columns, *hidden), primary_key=key, complete=True), tuple(types)


def _label_bytes(kind: MariadbType) -> int:
    if kind.family is Family.ENUM:
        return 1 if len(kind.labels) < 256 else 2
    size = (len(kind.labels) + 7) // 8
    return size if size <= 4 else 8
