"""A target that takes every change and keeps none, and its position for ever.

For a pipeline that is to be tried before there is a database: whether a log can be read and decoded to its end, what
filters leave of it, how fast all that is without a database behind it. Owns the passing over of changes; leaves
positions, and with them tokens, meetings and exactly once, to a SQLite file, as at any other target. The hard idea: to
the pipeline it is a target like the others, so what is measured or tried with it is the pipeline itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tranlog.change import RowChange, TableMap, TableName
from tranlog.errors import TargetTableError
from tranlog.ids import Seqno
from tranlog.row_blocks import RowBlock, decoded
from tranlog.target.position import SqlPositions
from tranlog.target.session import Session, open_session
from tranlog.target.sqlite import SqliteSession
from tranlog.target.sqlite_dialect import SQLITE
from tranlog.target.target import Advance, Applied, ApplyUnit, RefusedError, Target, TargetKeys
from tranlog.types import Value

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions


class NullRows:
    """Rows that are read and not kept; see Rows for its methods."""

    def write(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        changes = statements = 0
        for unit in units:
            for change in unit.changes():
                if isinstance(change, RowChange):
                    changes += 1
                else:
                    statements += 1
        return Applied(transactions=len(units), changes=changes, statements=0, ddl_ignored=statements)

    def discard(self) -> None:
        pass

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        pass

    def check_table(self, table: TableMap) -> None:
        pass

    def keys(self, table: TableName) -> TargetKeys | None:
        return TargetKeys(name=table)

    def references(self) -> list[tuple[TableName, TableName]]:
        return []

    def losing(self, table: TableName) -> list[TableName]:
        return []

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        return []

    def begin_load(self, table: TableMap, seqno: Seqno, *, replace: bool, beside: Sequence[TableName] = ()) -> None:
        pass

    def create_table(self, table: TableMap) -> str:
        return ""

    def hold_snapshot(self) -> None:
        pass

    def read(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        return decoded(self.blocks(table), table)

    def blocks(self, table: TableMap) -> Iterator[RowBlock]:
        raise TargetTableError(table=table.name, why="a null target keeps no rows, so there is nothing to compare")


class _Positions(SqlPositions):
    def guarded(self, advance: Advance, write: Callable[[], Applied]) -> Applied:
        applied = write()  # which writes nothing, so the file is not locked meanwhile
        self.publish(advance)
        return applied


def open_null(options: TargetOptions) -> Target:
    """Open a target that keeps its positions alone. Raises what `open_target` does."""

    def parts() -> tuple[Session, SqlPositions, NullRows]:
        session = open_session(options, SqliteSession)
        # A loss of power may take the last positions back: then some transactions are passed over once more.
        session.run("PRAGMA synchronous = NORMAL")
        positions = _Positions(session, SQLITE, where=options.path, lock_timeout_s=options.lock_timeout_s)
        return session, positions, NullRows()

    return Target("null", options.path, parts)
