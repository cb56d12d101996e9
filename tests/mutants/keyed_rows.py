"""Random transactions over tables with keys, that one after the other meet no conflict.

Owns two tables, with primary, composite, unique, nullable and foreign keys, such tables at random (`drawn_tables`), and
`Drawing`, whose rows swap and move keys. It draws them on a SQLite database that enforces the same keys, so whoever
applies them in order meets none.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

import apsw

from tranlog.change import Column, ForeignKey, Op, RowChange, TableMap
from tranlog.types import LogicalType, Value

SCHEMA = "shop"
NUMBERS = range(8)
CODES = (None, "a", "A", "b", "c", "d")

Row = tuple[Value, ...]


def number_column(name: str, *, nullable: bool = False) -> Column:
    """Return a column of whole numbers."""
    return Column(name=name, source_type="bigint", logical=LogicalType.INTEGER, nullable=nullable)


PARENT = TableMap(
    schema=SCHEMA,
    table="parent",
    columns=(
        number_column("id"),
        Column(name="code", source_type="varchar(20)", logical=LogicalType.TEXT, length=20),
        number_column("n"),
    ),
    primary_key=(0,),
    unique_keys=((1,),),
)
CHILD = TableMap(
    schema=SCHEMA,
    table="child",
    columns=(
        number_column("a"),
        number_column("b"),
        number_column("parent", nullable=True),
        number_column("u", nullable=True),
        number_column("n"),
    ),
    primary_key=(0, 1),
    unique_keys=((3,),),
    foreign_keys=(ForeignKey(columns=(2,), ref_schema=SCHEMA, ref_table="parent", ref_columns=("id",)),),
)
KEYED_TABLES = (PARENT, CHILD)
REFERENCE: Final = {
    "postgres": "ALTER TABLE shop.child ADD FOREIGN KEY (parent) REFERENCES shop.parent (id)",
    "mariadb": "ALTER TABLE `shop`.`child` ADD FOREIGN KEY (parent) REFERENCES `shop`.`parent` (id)",
}
"""By kind of target what makes the foreign key there; SQLite has none."""
_MODEL = """
CREATE TABLE parent (id INTEGER PRIMARY KEY, code TEXT COLLATE NOCASE UNIQUE, n INTEGER);
CREATE TABLE child (a INTEGER, b INTEGER, parent INTEGER REFERENCES parent (id), u INTEGER UNIQUE, n INTEGER,
                    PRIMARY KEY (a, b)) WITHOUT ROWID;
"""


LOOSE_CODES = ("a", "A", "\u00e1", "a ", "b", "B", "c", "\u00c7 ")
"""Four of them are one, without regard to case, accents and spaces at the end."""


def _text_column(name: str, *, nullable: bool = False) -> Column:
    return Column(name=name, source_type="varchar(20)", logical=LogicalType.TEXT, length=20, nullable=nullable)


def drawn_tables(chance: random.Random, prefix: str) -> tuple[TableMap, ...]:
    """Draw two to four tables, whose names begin with `prefix`; the last column of each is in no key.

    Primary keys have one or two columns, unique keys and references may hold NULL, and a reference is to the primary
    key of a table before it, of whole numbers: which texts a reference takes for one differs from server to server.
    """
    tables: list[TableMap] = []
    for number in range(chance.randint(2, 4)):
        draw = [number_column, number_column, _text_column]
        columns = [chance.choice(draw)(f"k{at}") for at in range(chance.randint(1, 2))]
        primary = tuple(range(len(columns)))
        foreign: list[ForeignKey] = []
        whole = [one for one in tables if all(one.columns[at].logical is LogicalType.INTEGER for at in one.primary_key)]
        for to in chance.sample(whole, chance.randint(0, len(whole))):
            own = tuple(range(len(columns), len(columns) + len(to.primary_key)))
            columns += [number_column(f"r{at}", nullable=True) for at in own]
            names = tuple(to.columns[at].name for at in to.primary_key)
            foreign.append(ForeignKey(columns=own, ref_schema=SCHEMA, ref_table=to.table, ref_columns=names))
        unique: list[tuple[int, ...]] = []
        for _ in range(chance.randint(0, 2)):
            columns.append(chance.choice(draw)(f"u{len(columns)}", nullable=True))
            other = chance.randrange(len(columns) - 1)
            unique.append((len(columns) - 1,) if chance.random() < 0.6 else (other, len(columns) - 1))
        tables.append(
            TableMap(
                schema=SCHEMA,
                table=f"{prefix}{number}",
                columns=(*columns, number_column("n")),
                primary_key=primary,
                unique_keys=tuple(unique),
                foreign_keys=tuple(foreign),
            )
        )
    return tuple(tables)


def references(table: TableMap) -> list[tuple[str, str, str]]:
    """Return of each reference of a table its columns, the other table, and the columns there, as SQL has them."""
    names = [column.name for column in table.columns]
    return [
        (", ".join(names[at] for at in one.columns), one.ref_table, ", ".join(one.ref_columns))
        for one in table.foreign_keys
    ]


def _model(table: TableMap) -> str:
    names = [column.name for column in table.columns]
    parts = [
        f"{one.name} {'TEXT COLLATE loose' if one.logical is LogicalType.TEXT else 'INTEGER'}"
        f"{'' if one.nullable else ' NOT NULL'}"
        for one in table.columns
    ]
    parts.append(f"PRIMARY KEY ({', '.join(names[at] for at in table.primary_key)})")
    parts += [f"UNIQUE ({', '.join(names[at] for at in key)})" for key in table.unique_keys]
    parts += [f"FOREIGN KEY ({own}) REFERENCES {to} ({there})" for own, to, there in references(table)]
    return f"CREATE TABLE {table.table} ({', '.join(parts)});"


def loose(text: str) -> str:
    """Return what is one for texts that may be equal at some target: no case, no accents, no spaces at the end."""
    plain = unicodedata.normalize("NFD", text.rstrip(" ")).lower()
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


def _compare(one: str, other: str) -> int:
    return (loose(one) > loose(other)) - (loose(one) < loose(other))


class Drawing:
    """Random transactions that fit the rows as they are. `numbers`: the values of the keys; `codes`: of texts."""

    def __init__(
        self,
        chance: random.Random,
        numbers: range = NUMBERS,
        tables: Sequence[TableMap] = KEYED_TABLES,
        codes: Sequence[str | None] = CODES,
    ) -> None:
        self.random = chance
        self.numbers = numbers
        self.tables = tables
        self.codes = codes
        self.model = apsw.Connection(":memory:")
        self.model.create_collation("loose", _compare)
        made = _MODEL if tables is KEYED_TABLES else "".join(map(_model, tables))
        self.model.execute(f"PRAGMA foreign_keys = ON; {made}")

    def rows(self, table: TableMap) -> list[Row]:
        """Return what the rows are by now."""
        return list(self.model.execute(f"SELECT * FROM {table.table}"))

    def _drawn_row(self, table: TableMap) -> Row:
        drawn: list[Value] = []
        for column in table.columns[:-1]:
            values: Sequence[Value] = self.codes if column.logical is LogicalType.TEXT else self.numbers
            drawn.append(self.random.choice((None, *values) if column.nullable and None not in values else values))
        return (*drawn, 0)

    def _change(self) -> RowChange | None:
        """Do one change to the model; None where its keys refuse it."""
        table = self.random.choice(self.tables)
        rows = self.rows(table)
        op = self.random.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.DELETE)) if rows else Op.INSERT
        before = None if op is Op.INSERT else self.random.choice(rows)
        after = None if op is Op.DELETE else self._drawn_row(table)
        if before is not None and after is not None:
            # Most updates keep most of a row; the last column counts them.
            kept = [old if self.random.random() < 0.8 else new for old, new in zip(before, after, strict=True)]
            after = (*kept[:-1], int(str(before[-1])) + 1)
        names = [column.name for column in table.columns]
        key = " AND ".join(f"{names[at]} = {before[at]!r}" for at in table.primary_key) if before is not None else ""
        try:
            if after is None:
                self.model.execute(f"DELETE FROM {table.table} WHERE {key}")
            elif before is None:
                self.model.execute(f"INSERT INTO {table.table} VALUES ({', '.join('?' * len(names))})", after)
            else:
                given = ", ".join(f"{name} = ?" for name in names)
                self.model.execute(f"UPDATE {table.table} SET {given} WHERE {key}", after)
        except apsw.ConstraintError:
            return None
        return RowChange(table, op, before, after)

    def transactions(self) -> Iterator[list[RowChange]]:
        """Yield one after the other, without end; some have no change."""
        while True:
            drawn = [self._change() for _ in range(self.random.choice((1, 1, 2, 3, 8)))]
            yield [change for change in drawn if change is not None]
