"""What an SQL text is, as far as capture must know: transaction control, DDL, or anything else. Pure.

Owns the reading of the first words of a statement. Whether a statement writes is SQLite's to say
(`sqlite3_stmt_readonly`); what it writes is the preupdate hook's. One form is read to its end, an INSERT of nothing
but placeholders, since what it writes are its bindings (`bulk`). Nothing else of SQL is parsed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from functools import lru_cache

import msgspec


class SqliteStatementKind(enum.Enum):
    """The statements that a capturing connection treats each in its own way."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    ROLLBACK_TO = "rollback to"
    CREATE = "create"
    DDL = "ddl"
    """ALTER or DROP; CREATE stands apart, since it may bring rows (CREATE TABLE ... AS SELECT)."""
    PRAGMA = "pragma"
    ATTACH = "attach"
    VACUUM = "vacuum"
    UPKEEP = "upkeep"
    """ANALYZE or REINDEX, which writes, and may make tables of SQLite's own."""
    OTHER = "other"
    EMPTY = "empty"


class PlainInsert(msgspec.Struct, frozen=True):
    """`INSERT INTO [main.]table [(columns)] VALUES (?, ?, ...)`, and nothing more: names as they are written.

    `columns` is None where the statement names none; `values` is how many placeholders it has.
    """

    qualified: bool
    table: str
    columns: tuple[str, ...] | None
    values: int


class StatementClass(msgspec.Struct, frozen=True):
    """The verdict on a text: its kind, and the savepoint that it names, folded as SQLite compares names."""

    kind: SqliteStatementKind
    savepoint: str = ""


_SPACE = re.compile(r"(?:[ \t\n\f\r;\ufeff]|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*", re.DOTALL)
_WORD = re.compile(
    r"""
    (?P<bare>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
    | "(?P<double>(?:[^"]|"")*)" | '(?P<single>(?:[^']|'')*)' | `(?P<tick>(?:[^`]|``)*)` | \[(?P<bracket>[^]]*)\]
    """,
    re.VERBOSE,
)
_SEMICOLON = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^]]*\]|--[^\n]*|/\*.*?(?:\*/|$)|(;)""", re.DOTALL
)
_INSERT_INTO = re.compile(r"\s*insert\s+into(?![\w$])\s*", re.IGNORECASE | re.ASCII)
_VALUES = re.compile(r"\s*values\s*\(([?,\s]*)\)\s*;?\s*", re.IGNORECASE | re.ASCII)
_MARK = re.compile(r"\s*([.,()])\s*", re.ASCII)
_UPPER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")

_BY_FIRST_WORD = {
    "begin": SqliteStatementKind.BEGIN,
    "commit": SqliteStatementKind.COMMIT,
    "end": SqliteStatementKind.COMMIT,
    "rollback": SqliteStatementKind.ROLLBACK,
    "savepoint": SqliteStatementKind.SAVEPOINT,
    "release": SqliteStatementKind.RELEASE,
    "create": SqliteStatementKind.CREATE,
    "alter": SqliteStatementKind.DDL,
    "drop": SqliteStatementKind.DDL,
    "pragma": SqliteStatementKind.PRAGMA,
    "attach": SqliteStatementKind.ATTACH,
    "vacuum": SqliteStatementKind.VACUUM,
    "analyze": SqliteStatementKind.UPKEEP,
    "reindex": SqliteStatementKind.UPKEEP,
}


@lru_cache(maxsize=4096)
def fold(name: str) -> str:
    """Return a name in the form under which SQLite holds two names equal: ASCII letters in lower case."""
    return name.translate(_UPPER)


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def is_blank(sql: str) -> bool:
    """Whether a text holds nothing but white space, comments and semicolons."""
    return _skip(sql, 0) == len(sql)


def semicolons(sql: str) -> Iterator[int]:
    """Yield the place after each semicolon that stands in no literal, name or comment."""
    return (match.end() for match in _SEMICOLON.finditer(sql) if match[1])


def _skip(sql: str, at: int) -> int:
    match = _SPACE.match(sql, at)
    assert match is not None
    return match.end()


def _words(sql: str, most: int) -> list[tuple[str, bool]]:
    """Return up to `most` leading words or quoted names of a text, each with whether it was quoted."""
    words: list[tuple[str, bool]] = []
    at = 0
    while len(words) < most:
        match = _WORD.match(sql, _skip(sql, at))
        if match is None:
            break
        at = match.end()
        words.append((_unquoted(match), match.lastgroup != "bare"))
    return words


def _unquoted(word: re.Match[str]) -> str:
    """Return what a match of `_WORD` names."""
    kind = word.lastgroup
    assert kind is not None
    text: str = word[kind]
    match kind:
        case "double":
            return text.replace('""', '"')
        case "single":
            return text.replace("''", "'")
        case "tick":
            return text.replace("``", "`")
        case _:
            return text


def leading_word(sql: str) -> str:
    """Return the first word of a text, empty where it begins with none."""
    words = _words(sql, 1)
    return words[0][0] if words else ""


def classify(sql: str) -> StatementClass:
    """Return what one statement is. The text is one that SQLite has parsed already, so only its first words count."""
    return _classify_kept(sql) if len(sql) <= _KEPT_LENGTH else _classify(sql)


def _classify(sql: str) -> StatementClass:
    words = _words(sql, 6)
    if not words or words[0][1]:
        return StatementClass(SqliteStatementKind.EMPTY if is_blank(sql) else SqliteStatementKind.OTHER)
    kind = _BY_FIRST_WORD.get(fold(words[0][0]), SqliteStatementKind.OTHER)
    rest = words[1:]
    if kind is SqliteStatementKind.SAVEPOINT or kind is SqliteStatementKind.RELEASE:
        return StatementClass(kind, _savepoint_name(rest))
    if kind is SqliteStatementKind.ROLLBACK:
        if _begins(rest, "transaction"):
            rest = rest[1:]
            if not _begins(rest, "to"):  # a transaction may have a name, which means nothing
                rest = rest[1:]
        if _begins(rest, "to"):
            return StatementClass(SqliteStatementKind.ROLLBACK_TO, _savepoint_name(rest[1:]))
    return StatementClass(kind)


_KEPT_LENGTH = 1000
_classify_kept = lru_cache(maxsize=2048)(_classify)


def _begins(words: list[tuple[str, bool]], keyword: str) -> bool:
    return bool(words) and not words[0][1] and fold(words[0][0]) == keyword


def _savepoint_name(words: list[tuple[str, bool]]) -> str:
    """Return the name after an optional SAVEPOINT; a savepoint may itself be called so."""
    if len(words) > 1 and _begins(words, "savepoint"):
        words = words[1:]
    return fold(words[0][0]) if words else ""


def plain_insert(sql: str) -> PlainInsert | None:
    """Return what an INSERT of bare placeholders says; None for any other text, be it an INSERT."""
    return _plain_insert_kept(sql) if len(sql) <= _KEPT_LENGTH else _plain_insert(sql)


def _plain_insert(sql: str) -> PlainInsert | None:
    begin = _INSERT_INTO.match(sql)
    if begin is None:
        return None
    names = _names(sql, begin.end(), ".")
    if names is None:
        return None
    (*schema, table), at = names
    if [fold(name) for name in schema] not in ([], ["main"]):
        return None
    columns = None
    mark = _MARK.match(sql, at)
    if mark is not None and mark[1] == "(":
        names = _names(sql, mark.end(), ",")
        if names is None:
            return None
        columns, at = tuple(names[0]), names[1]
        mark = _MARK.match(sql, at)
        if mark is None or mark[1] != ")":
            return None
        at = mark.end()
    values = _VALUES.fullmatch(sql, at)
    if values is None:
        return None
    marks = [part.strip() for part in values[1].split(",")]
    if any(part != "?" for part in marks):
        return None
    return PlainInsert(bool(schema), table, columns, len(marks))


_plain_insert_kept = lru_cache(maxsize=1024)(_plain_insert)


def _names(sql: str, at: int, between: str) -> tuple[list[str], int] | None:
    """Return names with a mark between each two, and where they end; None where a name lacks."""
    names: list[str] = []
    while True:
        word = _WORD.match(sql, at)
        if word is None:
            return None
        names.append(_unquoted(word))
        mark = _MARK.match(sql, word.end())
        if mark is None or mark[1] != between:
            return names, word.end()
        at = mark.end()
