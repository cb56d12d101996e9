"""One connection to a target database, as positions and appliers use it, and the bad news that it brings.

Owns the seam between what is written once and the drivers. The hard idea: bad news is sorted here, by what is to
be done about it. What does not fit (`MisfitError`) is a matter of the transaction that was sent, a lock that does
not come (`LockTimeoutError`) of whoever holds it, a lost connection (TransientTargetError) of trying again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from tranlog.change import TableMap, TableName
from tranlog.errors import TargetUnavailableError, TransientTargetError
from tranlog.row_blocks import RowBlock, encoded
from tranlog.target.binding import Form, Row, TargetTable
from tranlog.target.target import RefusedError, TargetKeys
from tranlog.types import Value

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions


_NO_DATABASE: Final = re.compile(r"""Unknown database '(\w+)'|database "(\w+)" does not exist""")
"""What MariaDB and PostgreSQL say; a name that would have to be quoted is left to the reader."""


class MisfitError(RefusedError):
    """The target refused a change, or it did not hit as many rows as it should. Becomes a ConflictError.

    `duplicate`: a unique key was in the way. `affected` is how many rows a change did hit, None where it failed.
    `table` is the table that the target named by itself, empty where it named none.
    """

    def __init__(self, why: str, *, duplicate: bool = False, affected: int | None = None, table: str = ""):
        super().__init__(why)
        self.duplicate = duplicate
        self.affected = affected
        self.table = table


class MissingTableError(RefusedError):
    """A table or a column that a statement names is not there."""


class TakenNameError(MissingTableError):
    """In the table's place is something else, a view for one."""


class LockTimeoutError(Exception):
    """A lock did not come in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What makes a value of what the session reads from a column; of its text, where that is what it reads, the form
    too, see `text_rows.put_text`.
    """

    read: Callable[[Any], Value]
    form: int


def made(rows: Iterable[tuple[Any, ...]], cells: Sequence[Cell]) -> Iterator[RowBlock]:
    """Return the rows that a driver gives, in blocks."""
    readers = [cell.read for cell in cells]
    return encoded(
        tuple([None if value is None else read(value) for read, value in zip(readers, row, strict=True)])
        for row in rows
    )


class Session(Protocol):
    """One connection. Every method may also raise TransientTargetError and TargetUnavailableError.

    Threads: one at a time.
    """

    identity: str
    """Names this session at the target; never the name of another one, also after both have ended."""
    folds_names: bool
    """Whether names of tables that differ in case alone are one name here."""

    def begin(self, *, lock_timeout_s: float | None = None) -> None:
        """Start a write transaction; each lock in it is waited for so long, None: as long as the kind does.

        Raises LockTimeoutError, here or where a lock is taken.
        """

    def commit(self) -> None:
        """Commit. Raises MisfitError where a deferred constraint objects."""

    def rollback(self) -> None:
        """Roll back whatever is open; never raises, since the connection may be what failed."""

    def savepoint(self) -> None:
        """Mark this point of the transaction; a later mark replaces it for `rollback_to_savepoint`."""

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the last mark, also after an error; the transaction goes on."""

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed. Raises what `settle` raises."""

    def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises what `settle` raises."""

    def send(self, form: Form, rows: Sequence[Row]) -> int:
        """Send rows of one form, at most as many as it takes, and return in how many statements.

        What came of them is `settle`'s to tell.

        Raises UnfitError for a value that cannot be sent, and what `settle` raises, for these or earlier rows.
        """

    def settle(self) -> None:
        """Wait for all that was sent. Raises MisfitError unless every row sent hit exactly one, MissingTableError."""

    def run_script(self, text: str) -> None:
        """Run a source's own statement as it is. Raises MisfitError with what the target said."""

    def table(self, table: TableMap) -> TargetTable:
        """Read what the target has in a table's place. Raises MissingTableError where that is no table."""

    def keys(self, table: TableMap) -> TargetKeys | None:
        """Read what a table here holds its rows to, of which only the name is given; None: there is no such table."""

    def references(self) -> list[tuple[TableName, TableName]]:
        """Return the foreign keys that are checked in this session, (referring table, referred table)."""

    def losing(self, table: TableMap) -> list[TableName]:
        """Return the tables whose rows foreign keys delete or change here with rows of this one that are deleted."""

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        """Return the foreign keys without an index; see `TargetRows.slow_references`."""

    def lacks_create(self, schema: str | None = None) -> str:
        """Return the GRANTs without which no table of ours, or none in a schema, can be made here; empty where one can.

        A schema that is not there has to be made too.
        """

    def lacks_alter(self, table: TableMap) -> str:
        """Return what has to be run here before this user may alter a table that is here; empty for nothing."""

    def blocks(self, sql: str, cells: Sequence[Cell]) -> Iterator[RowBlock]:
        """Yield a query's rows of these cells as of one moment, without holding them all.

        Nothing else runs on this session until the iteration ends or is closed.
        """

    def hold_snapshot(self) -> None:
        """Have all that is read from now on be of this moment, until the session is closed."""

    def is_as_it_was(self, table: TableMap) -> bool:
        """Whether the rows of a table that was read are still those of the held snapshot; True without one."""

    def end(self, identity: str) -> bool:
        """End the session that was named so, if it is still that one and is what others wait for; return whether."""

    def stopped_inside(self) -> list[str]:
        """Return the identities of sessions like this one that hold our rows and stopped inside a transaction."""

    def lock_holders(self, *, ours: bool) -> tuple[str, bool]:
        """Say who holds locks now, for a message, on our tables alone where `ours`; and whether it is at work, so that
        waiting helps."""

    def close(self) -> None:
        """Close; closing twice is harmless."""


def open_session(options: TargetOptions, connect: Callable[[TargetOptions], Session]) -> Session:
    """Open a session by `connect`. Raises TransientTargetError, TargetUnavailableError, ConfigError."""
    try:
        return connect(options)
    except LockTimeoutError as exc:
        raise TransientTargetError(why=str(exc)) from exc


def unavailable(where: str, why: str) -> TargetUnavailableError:
    """Return the error with its reason in one line; where the database is missing, with the statement that makes it."""
    said = " ".join(why.split()).rstrip(".")
    if found := _NO_DATABASE.search(said):
        said += f"; run there: CREATE DATABASE {found[1] or found[2]}"
    return TargetUnavailableError(where=where, why=said)
