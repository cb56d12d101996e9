"""What a DDL statement does to tables and their columns, as a list of edits that any kind of database can carry out.

Owns reading ALTER, RENAME and DROP TABLE of MariaDB's and of SQLite's, TRUNCATE of MariaDB's and PostgreSQL's, and how
types compare in size. Whether an edit is carried out is decided at a target. Pure. The hard idea: a statement is read
whole, or it is not understood (None).

Source: MariaDB's manual, "ALTER TABLE", "RENAME TABLE", "DROP TABLE", "TRUNCATE TABLE"; SQLite's documentation, "ALTER
TABLE"; PostgreSQL's manual, "TRUNCATE".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tranlog.change import TableName
from tranlog.sql_tokens import SqlToken, TokenReader, UnreadError


@dataclass(frozen=True, slots=True)
class RenamedTable:
    """A table has another name."""

    table: TableName
    to: TableName


@dataclass(frozen=True, slots=True)
class RenamedColumn:
    """A column has another name."""

    table: TableName
    column: str
    to: str


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table is gone, with its rows."""

    table: TableName


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """There is one column more. `null`: it is NULL in every row that was there. `literal`: it is this one in them.

    A literal is a whole number, or a string of ASCII without a backslash or a space at its end, as every kind of
    database writes and reads it; it says what an integer or a text of any size is, and nothing of other types. Empty:
    the statement has no such DEFAULT.
    """

    table: TableName
    column: str
    null: bool
    literal: str = ""


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """A column is gone, with its values."""

    table: TableName
    column: str


@dataclass(frozen=True, slots=True)
class RetypedColumn:
    """A column has this type, which may be the one that it had; it may be NULL, or may not be any more."""

    table: TableName
    column: str
    source_type: str


Edit: TypeAlias = RenamedTable | RenamedColumn | DroppedTable | AddedColumn | DroppedColumn | RetypedColumn

_ORDER: Final = (DroppedTable, DroppedColumn, RenamedColumn, RetypedColumn, AddedColumn, RenamedTable)
"""The clauses of an ALTER TABLE name the columns that were there before it, and so do edits in this order."""

_KEYS: Final = ("INDEX", "KEY", "FOREIGN", "CONSTRAINT", "CHECK", "UNIQUE", "FULLTEXT", "SPATIAL")
_OF_CHARACTERS: Final = ("CHARACTER", "CHARSET", "COLLATE")
_OPTIONS: Final = (
    *("ENGINE", "COMMENT", "AUTO_INCREMENT", "ALGORITHM", "LOCK", "FORCE", "ROW_FORMAT", "DEFAULT"),
    *_OF_CHARACTERS,
)
"""Clauses that change neither rows nor columns; DEFAULT stands before those of columns that are added later."""
_ANY_CHARACTER: Final = "utf8mb4"
"""MariaDB's character set that has all others' characters, and the beginning of its collations' names."""
_FILLED: Final = frozenset(
    {"NOT", "DEFAULT", "AS", "GENERATED", "VIRTUAL", "STORED", "AUTO_INCREMENT", "SERIAL", "PRIMARY", "ON", "WITHOUT"}
)
"""Words of a column's definition by which it may not be NULL in the rows that are there."""
_BESIDE_A_LITERAL: Final = frozenset({"NOT", "NULL", "COMMENT", "AFTER", "FIRST"})
"""Words that may come after one, or stand before DEFAULT, and leave it the value of the rows that are there."""
_INTEGER: Final = re.compile(r"-?\d{1,18}")
_STRING: Final = re.compile(r"'(?:[ -&(-\[\]-~]|'')*(?<! )'")
_OF_A_TYPE: Final = frozenset({"UNSIGNED", "SIGNED", "VARYING", "PRECISION", "NULL", "NOT", "AUTO_INCREMENT", "FIRST"})
_WITH_ONE_MORE: Final = frozenset({"DEFAULT", "COMMENT", "AFTER"})
_INTEGERS: Final = {
    **{"TINYINT": (2, 2), "SMALLINT": (2, 4), "MEDIUMINT": (4, 4)},
    **{"INT": (4, 8), "INTEGER": (4, 8), "BIGINT": (8, 9)},
}
UNBOUNDED: Final = 1 << 16
"""So many characters, as a size, and more are as many as come."""
_TEXTS: Final = {"TINYTEXT": 63, "TEXT": UNBOUNDED, "MEDIUMTEXT": 1 << 24, "LONGTEXT": 1 << 32}
_VARYING: Final = frozenset({"VARCHAR", "CHAR", "CHARACTER"})
_DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC", "DEC", "FIXED"})
_FLOATS: Final = {"FLOAT": 4, "REAL": 4, "DOUBLE": 8}


def table_edits(text: str, *, schema: str, folds: bool = False) -> tuple[Edit, ...] | None:
    """Return what a statement that ran in `schema` does, in order; None where it does, or may do, anything else.

    Keys, indexes, constraints and a table's options are no edits. Names are as the statement spells them; `folds` as in
    TokenReader.
    """
    try:
        return tuple(_Statement(text, schema, folds=folds).edits())
    except UnreadError:
        return None


def truncated_tables(text: str, *, schema: str, folds: bool = False) -> tuple[TableName, ...] | None:
    """Return the tables that a TRUNCATE which ran in `schema` empties; None where it is none, or may do more.

    With CASCADE it names all of them, as a PostgreSQL source records it. `folds` as in TokenReader.
    """
    try:
        return _Statement(text, schema, folds=folds).truncated()
    except UnreadError:
        return None


def column_size(declared: str) -> tuple[str, int, int]:
    """Return the family of a column's type and its size in two numbers; no family where it is not known.

    Shape: what a type holds is in every type of its family of which neither number is less. Integers: bytes with a sign
    in 2, 4 or 8, 9 for more; texts: characters, UNBOUNDED or more for those of no length; decimals: digits before and
    after the point, UNBOUNDED for those of none (PostgreSQL's); floats: bytes. `declared` is of any kind of database.
    """
    name, _, rest = declared.upper().partition("(")
    words = [*name.split(), ""]
    numbers = [int(one) for one in rest.partition(")")[0].split(",") if one.strip().isdigit()]
    match words[0]:
        case word if word in _INTEGERS:
            return "integer", _INTEGERS[word]["UNSIGNED" in declared.upper()], 0
        case word if word in _TEXTS:
            return "text", _TEXTS[word], 0
        case word if word in _VARYING and (numbers or "VARYING" in words):
            return "text", numbers[0] if numbers else 1 << 32, 0
        case word if word in _DECIMALS:
            precision, scale = (*numbers, 0)[:2] if numbers else (2 * UNBOUNDED, UNBOUNDED)
            return "decimal", precision - scale, scale
        case word if word in _FLOATS and not numbers:
            return "float", _FLOATS[word], 0
    return "", 0, 0


def is_of_labels(source_type: str) -> bool:
    """Whether a column's type is MariaDB's ENUM or SET."""
    return source_type.upper().startswith(("ENUM(", "SET("))


def literal_of(text: str, source_type: str) -> str:
    """Return a value as an `AddedColumn` has its literal, from what a database shows of it; empty where none is."""
    family, *_ = column_size(source_type)
    literal = text if family == "integer" else "'" + text.replace("'", "''") + "'"
    form = {"integer": _INTEGER, "text": _STRING}.get(family)
    return literal if form is not None and form.fullmatch(literal) else ""


class _Statement(TokenReader):
    """Reads one statement to its end."""

    def edits(self) -> Iterator[Edit]:
        match self.take("RENAME", "DROP", "ALTER"):
            case "RENAME":
                self.need("TABLE", "TABLES")
                self.if_exists()
                yield self._renamed()
                while self.sign(","):
                    yield self._renamed()
            case "DROP":
                self.need("TABLE", "TABLES")
                self.if_exists()
                yield from map(DroppedTable, self.qualified_names())
                self.pass_wait()
                self.take("RESTRICT", "CASCADE")
            case "ALTER":
                yield from sorted(self._altered(), key=lambda edit: _ORDER.index(type(edit)))
            case _:
                raise UnreadError
        self._end()

    def truncated(self) -> tuple[TableName, ...]:
        self.need("TRUNCATE")
        self.take("TABLE")
        names = self.qualified_names()
        self.pass_wait()
        if self.take("RESTART", "CONTINUE"):
            self.need("IDENTITY")
        self.take("RESTRICT", "CASCADE")
        self._end()
        return tuple(names)

    def _end(self) -> None:
        self.sign(";")
        if self.now.kind != "end":
            raise UnreadError

    def _altered(self) -> Iterator[Edit]:
        self.take("ONLINE")
        self.need("TABLE")
        self.if_exists()
        table = self.qualified()
        self.pass_wait()
        yield from self._clause(table)
        while self.sign(","):
            yield from self._clause(table)

    def _renamed(self) -> RenamedTable:
        table = self.qualified()
        self.pass_wait()
        self.need("TO")
        return RenamedTable(table, self.qualified())

    def _clause(self, table: TableName) -> Iterator[Edit]:
        match self.take("ADD", "DROP", "RENAME", "MODIFY", "CHANGE", "ALTER", "CONVERT", *_OPTIONS):
            case "ADD" | "DROP" | "ALTER" if self.take(*_KEYS):
                self._rest()
            case "ADD":
                self._column()
                listed = self.sign("(")
                yield self._added(table)
                while listed and self.sign(","):
                    yield self._added(table)
                if listed and not self.sign(")"):
                    raise UnreadError
            case "DROP":
                self._column()
                yield DroppedColumn(table, self.identifier())
                self.take("RESTRICT", "CASCADE")
            case "RENAME" if self.take("INDEX", "KEY"):
                self._rest()
            case "RENAME":
                yield self._new_name(table)
            case "MODIFY" | "CHANGE" as verb:
                self._column()
                name = new = self.identifier()
                if verb == "CHANGE":
                    new = self.identifier()
                if new != name:
                    yield RenamedColumn(table, name, new)
                yield RetypedColumn(table, new, self._type())
            case "ALTER":  # a default is for rows to come, which have their values with them
                self._column()
                self.identifier()
                self.need("SET", "DROP")
                self.need("DEFAULT")
                self._rest()
            case "CONVERT":
                self.need("TO")
                if self.word == "COLLATE" or not self._characters():
                    raise UnreadError
                self._characters()
            case "":
                raise UnreadError
            case _:
                self._rest()

    def _column(self) -> None:
        """Pass over the word COLUMN. Raises UnreadError where the clause is about no column."""
        if not self.take("COLUMN") and self.word in ("PRIMARY", "PARTITION", "PERIOD", "SYSTEM"):
            raise UnreadError
        self.if_exists()

    def _added(self, table: TableName) -> AddedColumn:
        name, rest = self.identifier(), self._rest()
        words = [one.text.upper() for one in rest if one.kind == "word"]
        # A TIMESTAMP of MariaDB's that does not say NULL may be NOT NULL.
        null = _FILLED.isdisjoint(words) and (words[:1] != ["TIMESTAMP"] or "NULL" in words)
        return AddedColumn(table, name, null, _default(rest))

    def _type(self) -> str:
        """Read a column's definition, and return its type. Raises UnreadError where it says more than is known."""
        said = self.skip().text
        if said.upper() == "REAL":
            said = "DOUBLE"  # what MariaDB makes of it
        if said.upper() in _DECIMALS and self.now != ("sign", "("):
            said += "(10)"
        if self.sign("("):
            said += "("
            while not self.sign(")"):
                said += self.skip().text
            said += ")"
        while self.now.kind == "word":
            if self._characters():
                continue
            word = self.take(*_OF_A_TYPE, *_WITH_ONE_MORE)
            if not word:
                raise UnreadError
            if word == "UNSIGNED":
                said += " unsigned"
            elif word in _WITH_ONE_MORE:
                self.sign("-")
                if self.skip().kind == "sign":
                    raise UnreadError
        return said

    def _characters(self) -> bool:
        """Read a character set or a collation if one comes next; return whether.

        Raises UnreadError unless it has any character, so that none is lost by it.
        """
        word = self.take(*_OF_CHARACTERS)
        if word == "CHARACTER":
            self.need("SET")
        if word:
            name = self.skip().text.lower()
            if not (name.startswith(f"{_ANY_CHARACTER}_") if word == "COLLATE" else name == _ANY_CHARACTER):
                raise UnreadError
        return bool(word)

    def _new_name(self, table: TableName) -> Edit:
        """Read what stands after RENAME. SQLite's may leave out the word COLUMN, MariaDB's the word TO."""
        column = bool(self.take("COLUMN"))
        if not column and (self.take("TO", "AS") or self.sign("=")):
            return RenamedTable(table, self.qualified())
        if column:
            self.if_exists()
        name = self.identifier()
        if self.take("TO"):
            return RenamedColumn(table, name, self.identifier())
        if column:
            raise UnreadError
        return RenamedTable(table, self.qualified(name))

    def _rest(self) -> list[SqlToken]:
        """Pass over the rest of a clause, and return its tokens that stand in no parentheses."""
        depth, passed = 0, []
        while self.now.kind != "end":
            if not depth and self.now in (("sign", ","), ("sign", ";"), ("sign", ")")):
                break
            depth -= self.now == ("sign", ")")
            token = self.skip()
            if not depth:
                passed.append(token)
            depth += token == ("sign", "(")
        return passed


def _default(definition: Sequence[SqlToken]) -> str:
    """Return the literal that a column's definition has as its DEFAULT and that is certain; empty for none."""
    words = [one.text.upper() if one.kind == "word" else "" for one in definition]
    if words.count("DEFAULT") != 1 or not _FILLED.isdisjoint({*words} - {"DEFAULT", "NOT"}):
        return ""
    at = words.index("DEFAULT") + 1
    end = at + 1 + (definition[at : at + 1] == [("sign", "-")])
    literal = "".join([one.text for one in definition[at:end]])
    ends = end >= len(definition) or words[end] in _BESIDE_A_LITERAL
    return literal if ends and (_INTEGER.fullmatch(literal) or _STRING.fullmatch(literal)) else ""
