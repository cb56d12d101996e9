"""Why a captured transaction cannot commit: its changes cannot be kept whole."""

from __future__ import annotations

from dataclasses import dataclass

from tranlog.errors import SourceError


@dataclass(eq=False, kw_only=True)
class SourceUncertainError(SourceError):
    """Nobody can tell what a statement left of its changes: the transaction was rolled back."""

    table: str

    def __str__(self) -> str:
        return f"cannot tell what a statement has left in {self.table}: the transaction was rolled back"


@dataclass(eq=False, kw_only=True)
class RowTooLargeError(SourceError):
    """A row whose change SQLite cannot store in the outbox beside it: the transaction cannot commit.

    `size` is that of the piece that was refused, in bytes; `limit` what SQLite stores in one row.
    """

    tables: tuple[str, ...]
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"a change of {', '.join(self.tables) or 'a table'} takes {self.size} bytes with both of its images, and "
            f"SQLite stores {self.limit} in one row: the transaction was not committed. Store smaller values"
        )
