"""Which table a statement of MariaDB's that changes rows names, where it can change no other.

Owns reading such a statement. Pure. The hard idea: a form is known or it is not. What reads other tables, calls what
may change some, or is of a form that is not known, has no certain table; only the server's own functions may be called.

Source: MariaDB's manual, "INSERT", "REPLACE", "UPDATE", "DELETE".
"""

from __future__ import annotations

import re
from typing import Final

from tranlog.change import TableName
from tranlog.sql_tokens import TokenReader, UnreadError

_BEFORE_PARENTHESES: Final = frozenset(
    {
        *("VALUES", "VALUE", "IN", "AND", "OR", "NOT", "XOR", "BETWEEN", "LIKE", "WHERE", "SET", "THEN", "WHEN"),
        *("ELSE", "CASE", "BY", "DIV", "MOD", "INTERVAL", "BINARY", "AS", "KEY", "UPDATE", "PARTITION", "RETURNING"),
    }
)
"""Words after which a parenthesis encloses values or a condition."""
_HARMLESS: Final = frozenset(
    {
        *("ABS", "CEIL", "CEILING", "CHAR", "CHAR_LENGTH", "COALESCE", "CONCAT", "CONCAT_WS", "CONVERT", "CRC32"),
        *("CURRENT_TIMESTAMP", "DATE", "DATE_FORMAT", "DEFAULT", "FLOOR"),
        *("FROM_UNIXTIME", "GREATEST", "HEX", "IF", "IFNULL", "LAST_INSERT_ID", "LEAST", "LEFT", "LENGTH", "LOCALTIME"),
        *("LOWER", "LPAD", "LTRIM", "MD5", "NAME_CONST", "NULLIF", "POW", "RAND", "REPEAT", "RIGHT", "ROUND"),
        *("RPAD", "RTRIM", "SHA1", "SHA2", "TRUNCATE", "UNHEX"),
        *("UNIX_TIMESTAMP", "UPPER", "USER", "UUID", "UUID_SHORT", "UTC_TIMESTAMP"),
    }
)
"""Functions of the server's own, which no stored one can replace where no database stands before the name."""
_IF_ADJACENT: Final = frozenset({"CAST", "CURDATE", "CURTIME", "DATE_ADD", "DATE_SUB", "NOW", "SUBSTRING", "TRIM"})
"""The same, where the parenthesis stands at the name; after white space it may be a stored one."""
_APART: Final = re.compile(rf"\b(?:{'|'.join(sorted(_IF_ADJACENT))})\b(?!\()", re.IGNORECASE)
_REACHES_OUT: Final = frozenset({"SELECT", "TABLE", "WITH", "JOIN", "USING", "NEXT", "NEXTVAL", "LASTVAL", "PREVIOUS"})
"""Words with which a statement reads other tables, or moves a sequence."""


def changed_table(text: str, *, schema: str) -> TableName | None:
    """Return the one table that a statement which ran in `schema` names and changes; None where that is not certain.

    What the server adds by triggers, and whether it is a view, only the catalog knows.
    """
    # Where a string with a backslash ends, and what of an executable comment is run, depends on session and server.
    if "\\" in text or "/*!" in text or "/*M!" in text or _APART.search(text):
        return None
    try:
        return _Reader(text, schema).read()
    except UnreadError:
        return None


class _Reader(TokenReader):
    def read(self) -> TableName:
        match self.take("INSERT", "REPLACE", "UPDATE", "DELETE"):
            case "UPDATE":
                self._words("LOW_PRIORITY", "IGNORE")
                table = self._table()
                self.need("SET")
            case "DELETE":
                self._words("LOW_PRIORITY", "QUICK", "IGNORE")
                self.need("FROM")
                table = self._table()
                if self.now.kind != "end" and not self.take("WHERE", "ORDER", "LIMIT", "RETURNING"):
                    raise UnreadError
            case "INSERT" | "REPLACE":
                self._words("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "INTO")
                table = self.qualified()
                if not (self.now == ("sign", "(") or self.word in ("VALUES", "VALUE", "SET")):
                    raise UnreadError
            case _:
                raise UnreadError
        self._rest()
        return table

    def _words(self, *words: str) -> None:
        while self.take(*words):
            pass

    def _table(self) -> TableName:
        """Read a table, and another name for it."""
        table = self.qualified()
        if self.take("AS") or (self.now.kind == "name" or self.word not in _AFTER_TABLE):
            self.identifier()
        return table

    def _rest(self) -> None:
        """Read to the end. Raises UnreadError for what may change more than the table."""
        called = ""  # the name at hand, if a parenthesis after it makes it a call
        after_dot = False
        while self.now.kind != "end":
            token = self.skip()
            word = token.text.upper() if token.kind == "word" else ""
            if (
                word in _REACHES_OUT
                or (token.kind == "sign" and token.text in ";'\"`")
                or (called and token.text == "(")
            ):
                raise UnreadError
            known = not after_dot and word in _ENCLOSE
            called = "" if token.kind in ("sign", "text") or known else token.text
            after_dot = token == ("sign", ".")


_ENCLOSE: Final = _BEFORE_PARENTHESES | _HARMLESS | _IF_ADJACENT
_AFTER_TABLE: Final = frozenset({"", "SET", "WHERE", "ORDER", "LIMIT", "RETURNING"})
