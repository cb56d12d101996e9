"""A target that takes every change and keeps none, and its position for ever.

For a pipeline that is to be tried before there is a database: whether a log can be read and decoded to its end, what
filters leave of it, how fast all that is without a database behind it. Owns the passing over of changes; leaves our
tables, and with them tokens, meetings and exactly once, to a SQLite file, as at any other target. The hard idea: to
the pipeline it is a target like the others, so what is measured or tried with it is the pipeline itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tranlog.change import RowChange, TableMap
from tranlog.errors import TargetTableError
from tranlog.target.database import DatabaseTarget
from tranlog.target.sqlite import SqliteSession
from tranlog.target.sqlite_dialect import SQLITE
from tranlog.target.target import Advance, Applied, Unit
from tranlog.types import Value

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

_NULL: Final = dataclasses.replace(SQLITE, kind="null")


class NullTarget(DatabaseTarget):
    """One connection to the file of positions. Threads: one at a time. See Target for its methods."""

    def __init__(self, options: TargetOptions) -> None:
        super().__init__(options, _NULL, SqliteSession, where=options.path)

    def _open(self) -> None:
        super()._open()
        # A loss of power may take the last positions back: then some transactions are passed over once more.
        self._session.run("PRAGMA synchronous = NORMAL")

    def apply(self, units: Sequence[Unit], advance: Advance) -> Applied:
        """Read every change of whole source transactions, keep none, and move the position."""
        changes = statements = 0
        for unit in units:
            for change in unit.changes():
                if isinstance(change, RowChange):
                    changes += 1
                else:
                    statements += 1
        self.publish(advance)
        return Applied(transactions=len(units), changes=changes, statements=0, ddl_ignored=statements)

    def create_table(self, table: TableMap) -> str:
        """Make nothing: no row would come into it."""
        return ""

    def rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Raise TargetTableError: there are none to read back."""
        raise TargetTableError(table=table.name, why="a null target keeps no rows, so there is nothing to compare")
