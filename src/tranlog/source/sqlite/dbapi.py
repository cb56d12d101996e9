"""The connection of `connect` as a module of Python's DB-API 2 (PEP 249), for SQLAlchemy, pandas, Django and others.

Owns the surface that these expect of Python's `sqlite3`: implicit BEGIN, exceptions, values of the usual types. What is
written through it is captured exactly, each transaction apart. A connection serves the thread that opened it.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from types import TracebackType
from typing import Any, Final, TypeAlias

import apsw

from tranlog.source.sqlite.cursor import SqliteCursor
from tranlog.source.sqlite.statement import fold, leading_word
from tranlog.source.sqlite.writer import SqliteConnection
from tranlog.source.sqlite.writer import connect as connect_captured

apilevel: Final = "2.0"
threadsafety: Final = 1
paramstyle: Final = "qmark"
sqlite_version: Final = apsw.sqlite_lib_version()
sqlite_version_info: Final = tuple(int(part) for part in sqlite_version.split("."))

Binary = memoryview
Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
STRING: Final = str
BINARY: Final = bytes
NUMBER: Final = float
DATETIME: Final = datetime.datetime
ROWID: Final = int

_CHANGES_ROWS: Final = frozenset(("insert", "update", "delete", "replace"))


class Warning(Exception):
    """PEP 249's; never raised."""


class Error(Exception):
    """Whatever SQLite raises, by PEP 249's classes. Errors of tranlog stay what they are."""


class InterfaceError(Error):
    """A wrong use of the module."""


class DatabaseError(Error):
    """What the database says."""


class DataError(DatabaseError):
    """A value that is too large."""


class OperationalError(DatabaseError):
    """A lock, the disk, an SQL text that does not fit the schema."""


class IntegrityError(DatabaseError):
    """A constraint."""


class InternalError(DatabaseError):
    """An error inside SQLite."""


class ProgrammingError(DatabaseError):
    """Bindings that do not fit, a connection that is closed."""


class NotSupportedError(DatabaseError):
    """What SQLite does not do."""


_OF_APSW: Final[tuple[tuple[type[apsw.Error], type[Error]], ...]] = (
    (apsw.ConstraintError, IntegrityError),
    (apsw.MismatchError, IntegrityError),
    (apsw.TooBigError, DataError),
    (apsw.BindingsError, ProgrammingError),
    (apsw.MisuseError, ProgrammingError),
    (apsw.RangeError, ProgrammingError),
    (apsw.InternalError, InternalError),
    (apsw.CorruptError, DatabaseError),
    (apsw.NotADBError, DatabaseError),
)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (apsw.ConnectionClosedError, apsw.CursorClosedError) as exc:
        raise ProgrammingError("Cannot operate on a closed database.") from exc
    except apsw.Error as exc:
        found = next((kind for of, kind in _OF_APSW if isinstance(exc, of)), OperationalError)
        raise found(str(exc)) from exc


def connect(
    database: str | os.PathLike[str], timeout: float = 10.0, isolation_level: str | None = "", **_: object
) -> DbApiConnection:
    """Open a database for writing under capture; see `tranlog.source.sqlite.connect`.

    `isolation_level` as in `sqlite3`: what an implicit BEGIN says after it, None for no implicit BEGIN. Other arguments
    of `sqlite3.connect` have no meaning here. Units: `timeout` in seconds, below 0 for none. Raises Error,
    SourceSetupError.
    """
    with _translated():
        captured = connect_captured(database, busy_timeout_s=0.0 if timeout < 0 else timeout)
        return DbApiConnection(captured, isolation_level)


class DbApiRow(tuple[Any, ...]):
    """A row whose values have names, too, as `sqlite3.Row` has it: set as a `row_factory`."""

    _names: tuple[str, ...]

    def __new__(cls, cursor: DbApiCursor, row: tuple[Any, ...]) -> DbApiRow:
        made = super().__new__(cls, row)
        made._names = tuple(column[0] for column in cursor.description or ())
        return made

    def keys(self) -> list[str]:
        """Return the columns' names."""
        return list(self._names)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for name, value in zip(self._names, self, strict=True):
            if name.lower() == key.lower():
                return value
        raise IndexError(f"the row has no column {key!r}; it has {', '.join(self._names)}")


Row = DbApiRow
RowFactory: TypeAlias = "Callable[[DbApiCursor, tuple[Any, ...]], Any]"


class DbApiConnection:
    """A connection, as PEP 249 and `sqlite3` have it. Threads: the one that opened it."""

    __slots__ = ("__weakref__", "_isolation_level", "captured", "row_factory")

    def __init__(self, captured: SqliteConnection, isolation_level: str | None) -> None:
        self.captured = captured
        """The connection underneath."""
        self.row_factory: RowFactory | None = None
        """What makes the rows of cursors that are made from now on; None: they are tuples."""
        self._isolation_level = isolation_level

    @property
    def isolation_level(self) -> str | None:
        """What an implicit BEGIN says; None for none. To set None commits."""
        return self._isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level is None:
            self.commit()
        self._isolation_level = level

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        with _translated():
            return self.captured.in_transaction

    def cursor(self, factory: type[DbApiCursor] | None = None) -> DbApiCursor:
        """Return a new cursor, of the class `factory` if it is given."""
        with _translated():
            return (DbApiCursor if factory is None else factory)(self)

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> DbApiCursor:
        """Run one statement in a new cursor and return it."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> DbApiCursor:
        """Run one statement once for each of the parameters, in a new cursor, and return it."""
        return self.cursor().executemany(sql, seq_of_parameters)

    def executescript(self, script: str) -> DbApiCursor:
        """Commit, then run statements one after the other in a new cursor, and return it."""
        return self.cursor().executescript(script)

    def commit(self) -> None:
        """Commit the open transaction, if there is one."""
        with _translated():
            self.captured.commit()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        with _translated():
            self.captured.rollback()

    def close(self) -> None:
        """Close; an open transaction is rolled back."""
        self.captured.close()

    def __enter__(self) -> DbApiConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            return self.rollback()
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Register an SQL function, or remove it with None."""
        with _translated():
            self.captured.create_scalar_function(name, func, narg, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Callable[[], Any] | None) -> None:
        """Register an aggregate by a class with `step` and `finalize`, or remove it with None."""

        def begin() -> Any:
            assert aggregate_class is not None
            return aggregate_class(), lambda one, *values: one.step(*values), lambda one: one.finalize()

        with _translated():
            self.captured.create_aggregate_function(name, None if aggregate_class is None else begin, n_arg)

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None) -> None:
        """Register a collation, or remove it with None."""
        with _translated():
            self.captured.create_collation(name, callback)


class DbApiCursor:
    """Runs statements and holds their rows, as PEP 249 has it. Threads: as its connection."""

    arraysize = 1

    def __init__(self, connection: DbApiConnection) -> None:
        self.connection = connection
        self.row_factory = connection.row_factory
        self._cursor: SqliteCursor = connection.captured.cursor()
        self._closed = False

    @property
    def description(self) -> tuple[tuple[Any, ...], ...] | None:
        """Seven values for each column that the last statement returns, of which the name is told."""
        found = self._cursor.description
        return None if found is None else tuple((column[0], *[None] * 6) for column in found)

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 where it changes none."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The rowid of the last row inserted."""
        return self._cursor.lastrowid

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> DbApiCursor:
        """Run one statement; INSERT, UPDATE, DELETE and REPLACE begin a transaction where none is open."""
        with _translated():
            adapted = _adapted(parameters)
            with self._begun(sql):
                self._cursor.execute(sql, adapted or None)
        return self

    def executemany(self, sql: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> DbApiCursor:
        """Run one statement once for each of the parameters."""
        with _translated():
            adapted = [_adapted(parameters) for parameters in seq_of_parameters]
            with self._begun(sql):
                self._cursor.executemany(sql, adapted)
        return self

    def executescript(self, script: str) -> DbApiCursor:
        """Commit, then run statements one after the other."""
        self._check_open()
        with _translated():
            self.connection.captured.commit()
            self.connection.captured.executescript(script)
        return self

    def _check_open(self) -> None:
        if self._closed:
            raise ProgrammingError("Cannot operate on a closed cursor.")

    @contextmanager
    def _begun(self, sql: str) -> Iterator[None]:
        """Begin a transaction for a statement that changes rows; not for one that is no SQL, as in `sqlite3`."""
        self._check_open()
        level, captured = self.connection.isolation_level, self.connection.captured
        if level is None or captured.in_transaction or fold(leading_word(sql)) not in _CHANGES_ROWS:
            yield
            return
        captured.execute(f"BEGIN {level}")
        before = captured.total_changes()
        try:
            yield
        except apsw.SQLError:
            if captured.total_changes() == before:
                captured.rollback()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._check_open()
        with _translated():
            row = next(self._cursor)
        return row if self.row_factory is None else self.row_factory(self, row)

    def fetchone(self) -> Any:
        """Return the next row, None where there is none."""
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return up to `size` rows, `arraysize` without it."""
        self._check_open()
        with _translated():
            rows = self._cursor.fetchmany(self.arraysize if size is None else size)
        return self._made(rows)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        self._check_open()
        with _translated():
            rows = self._cursor.fetchall()
        return self._made(rows)

    def _made(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        return rows if self.row_factory is None else [self.row_factory(self, row) for row in rows]

    def close(self) -> None:
        """Drop the rows that are left; of any other use a closed cursor raises ProgrammingError."""
        with _translated():
            self._cursor.close()
        self._closed = True

    def setinputsizes(self, sizes: object) -> None:
        """Do nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows."""


_AS_THEY_ARE: Final = frozenset((int, str, float, bytes, bool, type(None), bytearray, memoryview))


def _adapted(parameters: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
    """Return parameters with values that SQLite takes: times in ISO 8601, as from `sqlite3`, and decimals as text.

    Raises ProgrammingError for what are none.
    """
    if isinstance(parameters, Mapping):
        return _Named({name: _adapt(value) for name, value in parameters.items()})
    try:
        values = list(parameters)
    except TypeError:
        raise ProgrammingError(f"parameters are a sequence or a mapping, not {parameters!r}") from None
    return tuple([value if type(value) in _AS_THEY_ARE else _adapt(value) for value in values])


class _Named(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise ProgrammingError(f"You did not supply a value for binding parameter :{name}.")


def _adapt(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if not isinstance(value, int | float | str | apsw.zeroblob):
        try:
            memoryview(value)
        except TypeError:
            raise ProgrammingError(f"a parameter of the type {type(value).__name__!r} is not supported") from None
    return value
