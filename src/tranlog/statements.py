"""What kind of statement a text of MySQL or MariaDB is, as far as capture must know.

Owns the one distinction that matters: a statement that changes rows by itself cannot be carried to another database,
and in a server that logs rows it means that somebody's session does not. Everything else is recorded as it is. Pure.
Statements are never parsed; the first word decides, beside the server's own mark for DDL.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

from tranlog.sql_tokens import sql_tokens


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


FOLDED_NAMES: Final = "lower_case_table_names"
"""An option of a recorded statement, "1": its server keeps names of tables in lower case, however the text has them."""
TEMPORARY: Final = "temporary"
"""An option of a recorded TRUNCATE, "1": it emptied a temporary table, which only its session sees."""

_DDL_WORDS: Final = frozenset({"CREATE", "ALTER", "DROP", "RENAME"})
_ADMINISTRATION_WORDS: Final = frozenset(
    {
        *("GRANT", "REVOKE", "SET", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "FLUSH", "RESET", "PURGE", "CACHE"),
        *("INSTALL", "UNINSTALL", "CHANGE", "START", "STOP", "BACKUP", "KILL", "SIGNAL", "HELP", "SHUTDOWN"),
    }
)


def _words(text: str) -> Iterator[str]:
    """Yield the words in capitals, from the first of the statement on; none for a text that begins otherwise."""
    tokens = sql_tokens(text, ansi_quotes=False)
    first = next((token for token in tokens if token != ("sign", "(")), None)
    if first is not None and first.kind == "word":
        yield first.text.upper()
        yield from (token.text.upper() for token in tokens if token.kind == "word")


def statement_kind(text: str, *, marked_ddl: bool) -> StatementKind:
    """Return what kind of statement `text` is; `marked_ddl` is the server's word in the GTID event.

    A CREATE TABLE ... SELECT counts as ROWS: a server that logs rows writes it as a plain CREATE TABLE, and
    the rows after it.
    """
    words = _words(text)
    word = next(words, "")
    if word == "TRUNCATE":
        return StatementKind.EMPTIES
    if word in _DDL_WORDS or marked_ddl:
        what = next((word for word in words if word not in ("OR", "REPLACE", "TEMPORARY")), "")
        return StatementKind.ROWS if (word, what) == ("CREATE", "TABLE") and "SELECT" in words else StatementKind.DDL
    if word in _ADMINISTRATION_WORDS and (word, next(words, "")) != ("SET", "STATEMENT"):
        return StatementKind.ADMINISTRATION
    return StatementKind.ROWS
