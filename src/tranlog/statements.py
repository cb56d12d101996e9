"""What kind of statement a text of MySQL or MariaDB is, as far as capture must know.

Owns the one distinction that matters: a statement that changes rows by itself cannot be carried to another database,
and in a server that logs rows it means that somebody's session does not. Everything else is recorded as it is. Pure.
Statements are never parsed; the first word decides, beside the server's own mark for DDL.
"""

from __future__ import annotations

import enum
import re
from typing import Final


class StatementKind(enum.Enum):
    """What a statement does, judged by its first word."""

    DDL = "ddl"
    """Changes tables or other objects."""
    EMPTIES = "empties"
    """TRUNCATE: removes a table's rows without a row event. No DDL to whoever passes over DDL."""
    ADMINISTRATION = "administration"
    """Changes neither rows nor tables: rights, statistics, caches."""
    ROWS = "rows"
    """Changes rows, and the binlog holds the statement in their place."""


_DDL_WORDS: Final = frozenset({"CREATE", "ALTER", "DROP", "RENAME"})
_ADMINISTRATION_WORDS: Final = frozenset(
    {
        *("GRANT", "REVOKE", "SET", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "FLUSH", "RESET", "PURGE", "CACHE"),
        *("INSTALL", "UNINSTALL", "CHANGE", "START", "STOP", "BACKUP", "KILL", "SIGNAL", "HELP", "SHUTDOWN"),
    }
)
# Atomic: where no word follows, a run of comments could be divided in exponentially many ways.
_FIRST_WORD: Final = re.compile(
    r"(?>\s|\(|/\*(?!M?!).*?\*/|/\*M?!\d*|--[^\n]*(?:\n|$)|\#[^\n]*(?:\n|$))*+([A-Za-z_]+)", re.DOTALL
)
_QUOTED: Final = re.compile(
    r"'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/|--[^\n]*|\#[^\n]*", re.DOTALL
)
_CREATE_TABLE: Final = re.compile(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?TABLE\b", re.IGNORECASE)
_SELECT: Final = re.compile(r"\bSELECT\b", re.IGNORECASE)
_SET_STATEMENT: Final = re.compile(r"\s*SET\s+STATEMENT\b", re.IGNORECASE)

_QUALIFIER: Final = re.compile(
    r"(?:`((?:[^`]|``)+)`|\"((?:[^\"]|\"\")+)\"|((?!\d+\b)[\w$]++))(?>\s|/\*.*?\*/)*+\.", re.DOTALL
)


def databases_named(text: str) -> frozenset[str]:
    """Return the names in front of a dot: every database that a text names, and whatever else looks like one.

    Strings and comments are searched as well: where they end depends on the session.
    """
    return frozenset(
        (match[1] or "").replace("``", "`") or (match[2] or "").replace('""', '"') or match[3]
        for match in _QUALIFIER.finditer(text)
    )


def first_word(text: str) -> str:
    """Return a statement's first word in capitals, behind comments; empty when there is none."""
    match = _FIRST_WORD.match(text)
    return match[1].upper() if match is not None else ""


def statement_kind(text: str, *, marked_ddl: bool) -> StatementKind:
    """Return what kind of statement `text` is; `marked_ddl` is the server's word in the GTID event.

    A CREATE TABLE ... SELECT counts as ROWS: a server that logs rows writes it as a plain CREATE TABLE with the rows
    behind it.
    """
    word = first_word(text)
    if word == "TRUNCATE":
        return StatementKind.EMPTIES
    if word in _DDL_WORDS or marked_ddl:
        bare = _QUOTED.sub(" ", text)
        if _CREATE_TABLE.match(bare) and _SELECT.search(bare):
            return StatementKind.ROWS
        return StatementKind.DDL
    if word in _ADMINISTRATION_WORDS and not _SET_STATEMENT.match(_QUOTED.sub(" ", text)):
        return StatementKind.ADMINISTRATION
    return StatementKind.ROWS
