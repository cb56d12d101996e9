"""The words and names of an SQL text of MariaDB's: the one reader of them.

Owns where comments, strings and quoted names end. What a statement means is decided elsewhere. Pure.

Source: MariaDB's manual, "Identifier Names", "Comment Syntax", "String Literals".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

_TOKEN: Final = r"""
    (?P<gap>\s+|--(?:\s[^\n]*)?(?:\n|$)|\#[^\n]*(?:\n|$)|/\*M?!\d*|\*/|/\*.*?\*/)
    |(?P<name>`(?:[^`]|``)*`|%s)
    |(?P<text>'(?:[^'\\]|''|\\.)*')
    |(?P<word>[\w$]+)
    |(?P<sign>.)"""
_ANSI: Final = re.compile(_TOKEN % r'"(?:[^"]|"")*"', re.DOTALL | re.VERBOSE)
_ESCAPED: Final = re.compile(_TOKEN % r'"(?:[^"\\]|""|\\.)*"', re.DOTALL | re.VERBOSE)
_QUALIFIER: Final = re.compile(
    r"(?:`((?:[^`]|``)+)`|\"((?:[^\"]|\"\")+)\"|((?!\d+\b)[\w$]++))(?>\s|/\*.*?\*/)*+\.", re.DOTALL
)


class SqlToken(NamedTuple):
    """A part of a text. `name` is a quoted name without its quotes; `text` a string with them; `sign` one character."""

    kind: Literal["name", "text", "word", "sign", "end"]
    text: str


_END: Final = SqlToken("end", "")


def sql_tokens(text: str, *, ansi_quotes: bool) -> Iterator[SqlToken]:
    """Yield the tokens of a text, without white space and comments; what an executable comment holds is text.

    `ansi_quotes`: double quotes enclose a name, in which a backslash is a character; else they enclose a string.
    """
    for found in (_ANSI if ansi_quotes else _ESCAPED).finditer(text):
        match found.lastgroup:
            case "word" | "text" | "sign" as kind:
                yield SqlToken(kind, found[0])
            case "name":
                mark = found[0][0]
                yield SqlToken("name", found[0][1:-1].replace(mark * 2, mark))


def qualifiers(text: str) -> frozenset[str]:
    """Return the names that stand before a dot.

    Strings and comments are searched as well: where they end depends on the session.
    """
    return frozenset(
        (match[1] or "").replace("``", "`") or (match[2] or "").replace('""', '"') or match[3]
        for match in _QUALIFIER.finditer(text)
    )


class UnreadError(Exception):
    """A text is of no form that its reader knows."""


class TokenReader:
    """Reads a text from its front, token by token; `schema` is that of a table's name without one.

    `folds`: names of tables mean those in lower case, whatever their case is in the text.
    """

    def __init__(self, text: str, schema: str = "", *, folds: bool = False) -> None:
        self.schema = schema
        self.folds = folds
        self._left = sql_tokens(text, ansi_quotes=True)
        self.now = next(self._left, _END)
        """The next token."""

    @property
    def word(self) -> str:
        """The next token in capitals if it is a word; empty for anything else."""
        return self.now.text.upper() if self.now.kind == "word" else ""

    def skip(self) -> SqlToken:
        """Pass over the next token and return it. Raises UnreadError at the end."""
        passed = self.now
        if passed is _END:
            raise UnreadError
        self.now = next(self._left, _END)
        return passed

    def sign(self, sign: str) -> bool:
        """Pass over a sign if it comes next; return whether."""
        there = self.now == ("sign", sign)
        if there:
            self.skip()
        return there

    def take(self, *words: str) -> str:
        """Pass over one of these words if it comes next, and return it; empty where none does."""
        word = self.word
        if word not in words:
            return ""
        self.skip()
        return word

    def need(self, *words: str) -> None:
        """Pass over one of these words. Raises UnreadError where another token comes next."""
        if not self.take(*words):
            raise UnreadError

    def seek(self, word: str) -> None:
        """Pass over all up to a word, and over that. Raises UnreadError where it does not come."""
        while not self.take(word):
            self.skip()

    def identifier(self) -> str:
        """Return a name, quoted or not. Raises UnreadError."""
        if self.now.kind not in ("word", "name"):
            raise UnreadError
        return self.skip().text

    def qualified(self, first: str = "") -> tuple[str, str]:
        """Return a table's schema and name; `first` is what was read of them. Raises UnreadError."""
        first = first or self.identifier()
        schema, name = (first, self.identifier()) if self.sign(".") else (self.schema, first)
        return (schema.lower(), name.lower()) if self.folds else (schema, name)

    def qualified_names(self) -> list[tuple[str, str]]:
        """Return the schemas and names of tables with commas between them, at least one. Raises UnreadError."""
        names = [self.qualified()]
        while self.sign(","):
            names.append(self.qualified())
        return names

    def if_exists(self) -> bool:
        """Pass over IF EXISTS or IF NOT EXISTS if it comes next; return whether."""
        if not self.take("IF"):
            return False
        self.take("NOT")
        self.need("EXISTS")
        return True

    def pass_wait(self) -> None:
        """Pass over how long a statement waits for a lock, if it says so."""
        if self.take("WAIT"):
            self.skip()
        else:
            self.take("NOWAIT")
