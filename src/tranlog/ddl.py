"""What a DDL statement of MariaDB's is about: which tables, views, routines, databases, and whose rows it takes away.

Owns reading the head of such a statement, as far as the names in it go. Nothing after them is read: what a view
selects, or a routine does, concerns nobody here. Pure. The hard idea: what is not understood is said to be so (None),
and never taken for something harmless.

Source: MariaDB's manual, "Data Definition".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tranlog.change import TableName
from tranlog.sql_tokens import TokenReader, UnreadError

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


_ADDS: Final = frozenset({"ADD", "ENGINE", "COMMENT", "AUTO_INCREMENT", "OWNER"})
_NO_COLUMN: Final = frozenset({"INDEX", "KEY", "FOREIGN", "PRIMARY", "CONSTRAINT", "CHECK"})


def keeps_rows(text: str) -> bool:
    """Whether a DDL statement leaves every name, column and value that was there as it is; False also for several.

    CREATE does, whatever it makes, and DROP of tables, whose rows are another question (`touched`), is let pass; of an
    ALTER TABLE what adds, and what drops no column.
    """
    try:
        return _Head(text).keeps_rows()
    except UnreadError:
        return False


def touched(text: str, *, schema: str, folds: bool = False) -> Touched | None:
    """Return what a DDL statement that ran in `schema` changes; None where that cannot be told from its text.

    `folds` as in TokenReader.
    """
    try:
        return _Head(text, schema, folds=folds).read()
    except UnreadError:
        return None


class _Head(TokenReader):
    """Reads a statement as far as the names in it go."""

    def read(self) -> Touched:
        if self.take("SET") and self.take("STATEMENT"):
            self.seek("FOR")
        match self.take("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
            case "TRUNCATE":
                self.take("TABLE")
                return _emptied(self.qualified_names())
            case "RENAME":
                return self._rename()
            case "":
                raise UnreadError
            case verb:
                return self._object(verb)

    def keeps_rows(self) -> bool:
        verb = self.take("CREATE", "DROP", "ALTER")
        while verb == "ALTER" and self.word not in _OBJECTS:
            self.skip()
        if verb != "ALTER" or not self.take("TABLE"):
            return bool(verb) and self._ends()
        self.if_exists()
        self.take("ONLY")
        self.qualified()
        self.pass_wait()
        while True:
            if not (self.take(*_ADDS) or (self.take("DROP") and self.take(*_NO_COLUMN))):
                return False
            depth = 0
            while depth or self.now not in (("sign", ","), ("sign", ";")):
                if self.now.kind == "end":
                    return True
                depth += self.now == ("sign", "(")
                depth -= self.now == ("sign", ")")
                self.skip()
            if not self.sign(","):
                return self._ends()

    def _ends(self) -> bool:
        """Whether nothing follows the statement at hand. One with a body holds others."""
        while self.now.kind != "end" and not self.sign(";"):
            if self.take("BEGIN"):
                return True
            self.skip()
        return self.now.kind == "end"

    def _rename(self) -> Touched:
        if self.take(*_SERVERS_OWN):
            return Touched(names=())
        self.need("TABLE", "TABLES")
        self.if_exists()
        names = []
        while True:
            names.append(self.qualified())
            self.pass_wait()
            self.need("TO")
            names.append(self.qualified())
            if not self.sign(","):
                return Touched(names=tuple(names))

    def _object(self, verb: str) -> Touched:
        replaces = temporary = False
        while (kind := self.word) not in _OBJECTS:
            if not kind and not self._modifier():
                raise UnreadError
            if kind in _SERVERS_OWN:
                return Touched(names=())
            replaces = replaces or kind == "REPLACE"
            temporary = temporary or kind == "TEMPORARY"
            self.skip()
        self.skip()
        self.take("BODY")
        if temporary:
            return Touched(names=())  # a session's own
        if kind in _WHOLE_DATABASE:
            return self._database(verb, replaces)
        conditional, sequence = self.if_exists(), kind == "SEQUENCE"
        if kind == "INDEX":
            self.identifier()
            self.seek("ON")
            return Touched(names=(self.qualified(),))
        if verb == "DROP" and kind in _LISTED:
            names = self.qualified_names()
            return _emptied(names) if kind in ("TABLE", "TABLES") else Touched(names=tuple(names), sequence=sequence)
        name = self.qualified()
        if kind != "TABLE":
            return Touched(names=(name,), sequence=sequence)
        if verb == "ALTER":
            return self._alter(name)
        return Touched(names=(name,)) if conditional else _emptied([name])

    def _modifier(self) -> bool:
        """Whether what stands here, and is no word, may stand between the verb and the kind of object: a definer."""
        return self.now.kind in ("name", "text") or (self.now.kind == "sign" and self.now.text in "=@().%")

    def _database(self, verb: str, replaces: bool) -> Touched:
        self.if_exists()
        unnamed = verb == "ALTER" and self.word in ("", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT")
        unnamed = unnamed and self.now.kind != "name"
        names = [(self.schema if unnamed else self.identifier(), "")]
        return _emptied(names) if verb == "DROP" or replaces else Touched(names=tuple(names))

    def _alter(self, name: TableName) -> Touched:
        """Read what an ALTER TABLE does, as far as it names other tables or loses rows."""
        names, lost = [name], False
        depth = 0
        while self.now.kind != "end":
            depth += self.now == ("sign", "(")
            depth -= self.now == ("sign", ")")
            word = "" if depth else self.word
            self.skip()
            if word == "RENAME" and self.word not in ("COLUMN", "INDEX", "KEY"):
                self.take("TO", "AS")
                self.sign("=")
                names.append(self.qualified())
            elif word in _PARTITION_LOSES and (what := self.take("PARTITION", "TABLE")):
                if word == "CONVERT" or word == "EXCHANGE":
                    names.append(self._moved(what))
                lost = True
        return Touched(names=tuple(names), emptied=tuple(names) if lost else ())

    def _moved(self, what: str) -> TableName:
        """Return the table that changes places with a partition, becomes one, or is made of one."""
        if what == "PARTITION":
            self.identifier()
            self.need("WITH", "TO")
            self.need("TABLE")
        return self.qualified()


def _emptied(names: Sequence[TableName]) -> Touched:
    return Touched(names=tuple(names), emptied=tuple(names))
