"""What a DDL statement of MariaDB's is about: which tables, views, routines, databases, and whose rows it takes away.

Owns reading the head of such a statement, as far as the names in it go. Nothing behind them is read: what a view
selects, or a routine does, concerns nobody here. Pure. The hard idea: what is not understood is said to be so (None),
and never taken for something harmless.

Source: MariaDB's manual, "Data Definition", "Identifier Names", "Comment Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tranlog.change import TableName

_TOKEN: Final = re.compile(
    r"(?P<gap>\s+|--(?:\s[^\n]*)?(?:\n|$)|\#[^\n]*(?:\n|$)|/\*M?!\d*|\*/|/\*.*?\*/)"
    r"|(?P<name>`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")"
    r"|(?P<text>'(?:[^'\\]|''|\\.)*')"
    r"|(?P<word>[\w$]+)"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_WHOLE_DATABASE: Final = ("DATABASE", "SCHEMA")
_LISTED: Final = ("TABLE", "TABLES", "VIEW", "SEQUENCE")
"""Kinds of which one DROP may name several."""
_OBJECTS: Final = frozenset(
    {*_WHOLE_DATABASE, *_LISTED, "INDEX", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE"}
)
_SERVERS_OWN: Final = frozenset({"USER", "ROLE", "SERVER"})
_PARTITION_LOSES: Final = frozenset({"TRUNCATE", "DROP", "EXCHANGE", "CONVERT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What a statement changes: (database, name), or (database, "") for the database itself; nothing: the server's own.

    `emptied` are those whose rows are gone, or were none, when it has run, without a row event. Unnamed databases are
    the session's.
    """

    names: tuple[TableName, ...]
    emptied: tuple[TableName, ...] = ()
    sequence: bool = False
    """Whether it names them as sequences."""

    @property
    def databases(self) -> tuple[str, ...]:
        """The databases, each once, in order."""
        return tuple(dict.fromkeys([schema for schema, _ in self.names]))


class _Unread(Exception):
    """The statement is of no form that is known here."""


def touched(text: str, *, schema: str) -> Touched | None:
    """Return what a DDL statement that ran in `schema` changes; None where that cannot be told from its text."""
    try:
        return _Head(text, schema).read()
    except _Unread:
        return None


class _Head:
    """Reads a statement from the front."""

    def __init__(self, text: str, schema: str) -> None:
        self._schema = schema
        self._tokens: list[tuple[str, str]] = []
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup or ""
            if kind == "word":
                self._tokens.append((kind, found[0]))
            elif kind == "name":
                mark = found[0][0]
                self._tokens.append((kind, found[0][1:-1].replace(mark * 2, mark)))
            elif kind != "gap":
                self._tokens.append((kind, found[0]))
        self._at = 0

    def _word(self) -> str:
        """Return the word that stands here in capitals, empty for anything else."""
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return text.upper() if kind == "word" else ""

    def _sign(self, sign: str) -> bool:
        """Pass over a sign if it stands here."""
        there = self._at < len(self._tokens) and self._tokens[self._at] == ("sign", sign)
        self._at += there
        return there

    def _take(self, *words: str) -> str:
        """Pass over one of these words if it stands here."""
        word = self._word()
        if word not in words:
            return ""
        self._at += 1
        return word

    def _identifier(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] not in ("word", "name"):
            raise _Unread
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _name(self) -> TableName:
        first = self._identifier()
        return (first, self._identifier()) if self._sign(".") else (self._schema, first)

    def _names(self) -> list[TableName]:
        names = [self._name()]
        while self._sign(","):
            names.append(self._name())
        return names

    def _if_exists(self) -> bool:
        if not self._take("IF"):
            return False
        self._take("NOT")
        if not self._take("EXISTS"):
            raise _Unread
        return True

    def read(self) -> Touched:
        if self._take("SET") and self._take("STATEMENT"):
            while not self._take("FOR"):
                self._at += 1
                if self._at >= len(self._tokens):
                    raise _Unread
        match self._take("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
            case "TRUNCATE":
                self._take("TABLE")
                return _emptied([self._name()])
            case "RENAME":
                return self._rename()
            case "":
                raise _Unread
            case verb:
                return self._object(verb)

    def _rename(self) -> Touched:
        if self._take(*_SERVERS_OWN):
            return Touched(names=())
        if not self._take("TABLE", "TABLES"):
            raise _Unread
        self._if_exists()
        names = []
        while True:
            names.append(self._name())
            self._wait()
            if not self._take("TO"):
                raise _Unread
            names.append(self._name())
            if not self._sign(","):
                return Touched(names=tuple(names))

    def _wait(self) -> None:
        if self._take("WAIT"):
            self._at += 1
        else:
            self._take("NOWAIT")

    def _object(self, verb: str) -> Touched:
        replaces = temporary = False
        while (kind := self._word()) not in _OBJECTS:
            if not kind and not self._modifier():
                raise _Unread
            if kind in _SERVERS_OWN:
                return Touched(names=())
            replaces = replaces or kind == "REPLACE"
            temporary = temporary or kind == "TEMPORARY"
            self._at += 1
        self._at += 1
        self._take("BODY")
        if temporary:
            return Touched(names=())  # a session's own
        if kind in _WHOLE_DATABASE:
            return self._database(verb, replaces)
        conditional, sequence = self._if_exists(), kind == "SEQUENCE"
        if kind == "INDEX":
            self._identifier()
            while not self._take("ON"):
                self._at += 1
                if self._at >= len(self._tokens):
                    raise _Unread
            return Touched(names=(self._name(),))
        if verb == "DROP" and kind in _LISTED:
            names = self._names()
            return _emptied(names) if kind in ("TABLE", "TABLES") else Touched(names=tuple(names), sequence=sequence)
        name = self._name()
        if kind != "TABLE":
            return Touched(names=(name,), sequence=sequence)
        if verb == "ALTER":
            return self._alter(name)
        return Touched(names=(name,)) if conditional else _emptied([name])

    def _modifier(self) -> bool:
        """Whether what stands here, and is no word, may stand between the verb and the kind of object: a definer."""
        return self._at < len(self._tokens) and (
            self._tokens[self._at][0] in ("name", "text") or self._tokens[self._at][1] in "=@().%"
        )

    def _database(self, verb: str, replaces: bool) -> Touched:
        self._if_exists()
        unnamed = verb == "ALTER" and self._word() in ("", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT")
        unnamed = unnamed and not (self._at < len(self._tokens) and self._tokens[self._at][0] == "name")
        names = [(self._schema if unnamed else self._identifier(), "")]
        return _emptied(names) if verb == "DROP" or replaces else Touched(names=tuple(names))

    def _alter(self, name: TableName) -> Touched:
        """Read what an ALTER TABLE does, as far as it names other tables or loses rows."""
        names, lost = [name], False
        depth = 0
        while self._at < len(self._tokens):
            depth += self._tokens[self._at] == ("sign", "(")
            depth -= self._tokens[self._at] == ("sign", ")")
            word = "" if depth else self._word()
            self._at += 1
            if word == "RENAME" and self._word() not in ("COLUMN", "INDEX", "KEY"):
                self._take("TO", "AS")
                self._sign("=")
                names.append(self._name())
            elif word in _PARTITION_LOSES and self._take("PARTITION", "TABLE"):
                if word == "CONVERT" or word == "EXCHANGE":
                    names.append(self._moved(self._tokens[self._at - 1][1].upper()))
                lost = True
        return Touched(names=tuple(names), emptied=tuple(names) if lost else ())

    def _moved(self, what: str) -> TableName:
        """Return the table that changes places with a partition, becomes one, or is made of one."""
        if what == "PARTITION":
            self._identifier()
            if not self._take("WITH", "TO") or not self._take("TABLE"):
                raise _Unread
        return self._name()


def _emptied(names: Sequence[TableName]) -> Touched:
    return Touched(names=tuple(names), emptied=tuple(names))
