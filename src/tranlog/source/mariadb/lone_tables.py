"""Which table a statement in the place of its rows has changed, and no other with it.

Owns the proof. The hard idea: the statement's text names the table (`dml`), and the catalog knows what may change
others with it, a view or a trigger; but the catalog knows the present, and the statement is of the past. So the binlog
after it is looked through for whatever could have made the catalog another one since.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from tranlog.change import Statement, TableName
from tranlog.ddl import touched
from tranlog.dml import changed_table
from tranlog.errors import PositionLostError, SourceSetupError
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.groups import EventGroup
from tranlog.source.mariadb.position import is_newer_file
from tranlog.source.mariadb.server_binlog import ServerBinlog
from tranlog.statements import StatementKind, statement_kind

logger = logging.getLogger(__name__)

_RAN_IN: Final = re.compile(r"use `((?:[^`]|``)+)`; ", re.IGNORECASE)
"""What SHOW BINLOG EVENTS writes before a statement."""
_HIDES: Final = re.compile(r"\b(?:TRIGGER|VIEW)\b", re.IGNORECASE)


class LoneTables:
    """The tables that have neither triggers nor another name, as of a part of the binlog. Threads: one."""

    def __init__(self, catalog: Catalog, binlog: ServerBinlog) -> None:
        self._catalog = catalog
        self._binlog = binlog
        self._tables: frozenset[TableName] = frozenset()
        self._until = ("", 0)

    def forget(self) -> None:
        """Look anew: there was DDL, or another server."""
        self._until = ("", 0)

    def changed_by(self, statement: Statement, group: EventGroup) -> TableName | None:
        """Return the table that a statement of a transaction has changed alone; None where that is not certain.

        Raises SourceUnavailableError.
        """
        text = statement.sql if isinstance(statement.sql, str) else statement.sql.decode("latin-1")
        named = changed_table(text, schema=statement.schema)
        # What an XA transaction did, it did before its PREPARE, which may be far from here.
        if named is None or group.xa is not None or group.again:
            return None
        at = (group.position.file, group.position.offset)
        if not (is_newer_file(self._until[0], at[0]) or (self._until[0] == at[0] and at[1] <= self._until[1])):
            try:
                self._learn(at)
            except (PositionLostError, SourceSetupError) as exc:
                logger.warning("which tables a statement changed cannot be proven where=%s:%d why=%s", *at, exc)
        return named if named in self._tables else None

    def _learn(self, at: tuple[str, int]) -> None:
        """Learn which tables are such ones at a place of the binlog and from there to its end."""
        self._tables, self._until = frozenset(), at
        tables = self._catalog.tables_without_triggers()
        for place, info in self._binlog.statements_after(at):
            self._until = place
            ran_in = _RAN_IN.match(info)
            schema = "" if ran_in is None else ran_in[1].replace("``", "`")
            text = info if ran_in is None else info[ran_in.end() :]
            if statement_kind(text, marked_ddl=False) not in (StatementKind.DDL, StatementKind.EMPTIES):
                continue
            found = None if _HIDES.search(text) else touched(text, schema=schema)
            if found is None:
                return
            names = {(one.lower(), name.lower()) for one, name in found.names}
            tables = {one for one in tables if not {(one[0].lower(), one[1].lower()), (one[0].lower(), "")} & names}
        self._tables = frozenset(tables)
