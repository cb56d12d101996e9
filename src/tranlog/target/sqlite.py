"""A session at a SQLite database file, by apsw.

Owns the connection and its settings, the write lock and who holds it, the catalogue, and what SQLite's errors mean to
us. The hard idea: there is one write lock for the whole file, and the operating system holds it for a process. A
process that was stopped (SIGSTOP) in a target transaction keeps it for ever. It is killed only if all of this holds:
our table names it as the session that claimed the channel, by process id, start time and boot, so that no other process
of that number is meant; the kernel lists it as holder of this file's write lock; it is stopped; and the operating
system lets us. In any other case it is named, and the operator decides.

Foreign keys are off, since a source's cascades arrive as rows; triggers of the target's own run, unless the options
turn them off.

Source: SQLite, walformat 2.3 (the write lock is byte 120 of the -shm file); proc(5).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from tranlog.affinity import Affinity, affinity
from tranlog.change import TableMap, TableName
from tranlog.errors import TransientTargetError
from tranlog.row_blocks import RowBlock
from tranlog.target.binding import Form, Row, TargetColumn, TargetTable, UnfitError
from tranlog.target.session import (
    Cell,
    LockTimeoutError,
    MisfitError,
    MissingTableError,
    TakenNameError,
    made,
    unavailable,
)
from tranlog.target.sqlite_dialect import plain_name
from tranlog.target.target import TargetKeys, TextEquality

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

WAL_WRITE_LOCK: Final = 120
"""The byte of the -shm file that the writer locks."""
_BUSY_SLEEP_S: Final = (0.0005, 0.004)
"""How long to sleep before asking for the lock again, at random between: SQLite's own steps of up to 100 ms starve."""
_GENERATED: Final = (2, 3)  # PRAGMA table_xinfo, hidden: virtual and stored generated columns
_PLACES: Final = ("rowid", "_rowid_", "oid")
_SOURCE_TABLE: Final = "_tranlog_source"  # of a captured database, as docs/format.md has it


class SqliteSession:
    """One connection to a SQLite database file; see Session for what its methods do."""

    folds_names = False

    def __init__(self, options: TargetOptions) -> None:
        self._where = options.path
        self._timeout_s = options.lock_timeout_s
        self._deadline = 0.0
        self.identity = _process_identity(os.getpid())
        try:
            self._connection = apsw.Connection(options.path)
        except apsw.Error as exc:
            raise unavailable(self._where, f"the file cannot be opened: {exc}") from exc
        try:
            self._set_up(options)
        except apsw.Error as exc:
            self.close()
            raise self._sorted(exc) from exc
        except BaseException:
            self.close()
            raise

    def _set_up(self, options: TargetOptions) -> None:
        connection = self._connection
        connection.set_busy_handler(self._wait)
        self._deadline = time.monotonic() + self._timeout_s
        # Two that open a new file at once: the change to WAL answers busy without asking the handler.
        while True:
            try:
                ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
                break
            except apsw.BusyError as exc:
                if not self._wait(0):
                    raise LockTimeoutError("the file stayed locked") from exc
        if mode != "wal":
            raise unavailable(self._where, f"the file cannot be switched to WAL (its journal mode is {mode})")
        ((encoding,),) = connection.execute("PRAGMA encoding").fetchall()
        if encoding != "UTF-8":
            raise unavailable(self._where, f"its encoding is {encoding}, and a target needs UTF-8: make a new file")
        if connection.execute("SELECT 1 FROM main.sqlite_schema WHERE name = ?", (_SOURCE_TABLE,)).fetchall():
            why = (
                "it is a captured database, or a copy of one: its guards let nobody else write, and its triggers would "
                "do again what arrives as rows. Make a target of a copy by tranlog.source.sqlite.strip_copy(path)"
            )
            raise unavailable(self._where, why)
        connection.execute(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = OFF"
        )
        self._triggers_off = options.triggers == "off"
        if self._triggers_off:
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)

    def _wait(self, _attempts: int) -> bool:
        """Wait a little for the lock, until the deadline. SQLite's busy handler."""
        if time.monotonic() >= self._deadline:
            return False
        time.sleep(random.uniform(*_BUSY_SLEEP_S))
        return True

    # --- transactions ---

    def begin(self, *, lock_timeout_s: float | None = None) -> None:
        self._execute("BEGIN IMMEDIATE", timeout_s=lock_timeout_s)

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def savepoint(self) -> None:
        self._execute("SAVEPOINT tranlog_savepoint")

    def rollback_to_savepoint(self) -> None:
        self._execute("ROLLBACK TO tranlog_savepoint")

    # --- statements ---

    def _execute(
        self, sql: str, parameters: Sequence[Any] = (), *, timeout_s: float | None = None
    ) -> list[tuple[Any, ...]]:
        self._deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        try:
            return self._connection.execute(sql, tuple(parameters)).fetchall()
        except apsw.Error as exc:
            raise self._sorted(exc) from exc

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        self._execute(sql, parameters)
        return self._connection.changes()

    def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._execute(sql, parameters)

    def send(self, form: Form, rows: Sequence[Row]) -> int:
        connection = self._connection
        changes = connection.changes
        bound = form.bind(rows)

        def fed() -> Iterator[Any]:
            # Each row is asked for when the one before it is done: only then is its count to be had.
            waiting = iter(bound)
            yield next(waiting)
            for row in waiting:
                if changes() != 1:
                    raise MisfitError(f"{changes()} rows hit instead of 1", affected=changes())
                yield row

        try:
            if len(bound) == 1:
                connection.execute(form.sql, bound[0])
            else:
                connection.executemany(form.sql, fed())
        except apsw.Error as exc:
            raise self._sorted(exc) from exc
        except (TypeError, OverflowError) as exc:
            other = form.for_row(rows[0]) if form.for_row is not None and len(rows) == 1 else None
            if other is not None:
                return self.send(other, rows)
            raise UnfitError(f"SQLite has no storage class for this value: {exc}") from exc
        if changes() != 1:
            raise MisfitError(f"{changes()} rows hit instead of 1", affected=changes())
        return 1

    def settle(self) -> None:
        """Nothing waits: `send` has done it."""

    def run_script(self, text: str) -> None:
        self._execute(text)

    def _sorted(self, exc: apsw.Error) -> Exception:
        """Return what an error of SQLite's is to us."""
        why = str(exc).removeprefix(f"{type(exc).__name__}: ")
        match exc:
            case apsw.BusyError() | apsw.LockedError():
                return LockTimeoutError(f"the database stayed locked ({why})")
            case apsw.ConstraintError():
                extended = getattr(exc, "extendedresult", 0)
                duplicate = extended in (
                    apsw.SQLITE_CONSTRAINT_UNIQUE,
                    apsw.SQLITE_CONSTRAINT_PRIMARYKEY,
                    apsw.SQLITE_CONSTRAINT_ROWID,
                )
                return MisfitError(why, duplicate=duplicate)
            case apsw.MismatchError() | apsw.TooBigError():
                return MisfitError(why)
            case apsw.SQLError() if why.startswith(("no such table", "no such column")) or " no column named " in why:
                return MissingTableError(why)
            case apsw.SQLError():
                return MisfitError(why)
            case apsw.FullError():
                return unavailable(self._where, f"no room on its disk ({why}); nothing of the transaction is kept")
            case apsw.InterruptError() | apsw.SchemaChangeError() | apsw.AbortError():
                return TransientTargetError(why=why)
            case _:
                return unavailable(self._where, why)

    # --- the catalogue ---

    def table(self, table: TableMap) -> TargetTable:
        name = plain_name(table)
        kinds = self.fetch("SELECT type, wr, strict FROM pragma_table_list(?1) WHERE schema = 'main'", (name,))
        if not kinds:
            raise MissingTableError("there is no such table")
        kind, without_rowid, strict = kinds[0]
        if kind not in ("table", "shadow"):  # SQLite says shadow by the name alone, also of an ordinary table
            raise TakenNameError(f"this name is a {kind}'s, not a table's")
        columns = {}
        for column, declared, hidden in self.fetch("SELECT name, type, hidden FROM pragma_table_xinfo(?1)", (name,)):
            columns[column] = TargetColumn(
                name=column,
                type_name=declared,
                declared=declared or "without a type",
                category=affinity("" if strict and declared.upper() == "ANY" else declared),
                generated=hidden in _GENERATED,
            )
        taken = {column.lower() for column in columns}
        places = [place for place in _PLACES if place not in taken]
        # Rows of a batch are run one after the other, so no column needs to be known as unique.
        return TargetTable(columns=columns, unique=frozenset(), place="" if without_rowid or not places else places[0])

    def keys(self, table: TableMap) -> TargetKeys | None:
        name = plain_name(table)
        kinds = self.fetch("SELECT type FROM pragma_table_list(?1) WHERE schema = 'main'", (name,))
        if not kinds or kinds[0][0] not in ("table", "shadow"):
            return None
        columns = self.fetch("SELECT name, type, pk FROM pragma_table_xinfo(?1) ORDER BY pk", (name,))
        unique = {tuple([column for column, _, place in columns if place])} - {()}
        texts = {one: TextEquality.FOLDED for one, declared, _ in columns if affinity(declared) is Affinity.TEXT}
        why = ""
        for index, partial in self.fetch('SELECT name, partial FROM pragma_index_list(?1) WHERE "unique"', (name,)):
            key = [one for (one,) in self.fetch("SELECT name FROM pragma_index_xinfo(?1) WHERE key", (index,))]
            if partial or None in key:
                why = "a partial or expression index"
            else:
                unique.add(tuple(key))
        inexact = {column for column, declared, _ in columns if affinity(declared) == "real"}
        if inexact & {column for key in unique for column in key}:
            why = "a key of inexact numbers"
        triggers = (
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE ORDER BY name"
        )
        return TargetKeys(
            name=(table.schema, table.table),
            texts=texts,  # none of its own collations takes more for one, and others our connection does not have
            unique=tuple(sorted(unique)),
            triggers=() if self._triggers_off else tuple([one for (one,) in self.fetch(triggers, (name,))]),
            why=why,
        )

    def references(self) -> list[tuple[TableName, TableName]]:
        return []  # none is checked

    def losing(self, table: TableMap) -> list[TableName]:
        return []  # for the same reason

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        return []  # for the same reason

    def lacks_create(self, schema: str | None = None) -> str:
        """Nothing: who may write the file may make tables."""
        return ""

    def lacks_alter(self, table: TableMap) -> str:
        """Nothing, likewise."""
        return ""

    def blocks(self, sql: str, cells: Sequence[Cell]) -> Iterator[RowBlock]:
        try:
            yield from made(self._connection.execute(sql), cells)
        except apsw.Error as exc:
            raise self._sorted(exc) from exc

    def hold_snapshot(self) -> None:
        self._execute("BEGIN")
        self._execute("SELECT 1 FROM main.sqlite_schema LIMIT 1")  # which takes it

    def is_as_it_was(self, table: TableMap) -> bool:
        return True

    # --- other sessions ---

    def end(self, identity: str) -> bool:
        pid_text = identity.partition(" ")[0]
        if not pid_text.isdigit() or int(pid_text) == os.getpid():
            return False
        pid = int(pid_text)
        if pid not in self._writers() or _process_state(pid) not in ("T", "t") or _process_identity(pid) != identity:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError as exc:
            raise unavailable(
                self._where, f"{_describe_process(pid)} keeps the write lock and may not be ended by this user"
            ) from exc
        deadline = time.monotonic() + self._timeout_s
        while pid in self._writers() and time.monotonic() < deadline:
            time.sleep(0.01)
        return True

    def stopped_inside(self) -> list[str]:
        """Nobody: whose a process is that holds the file's lock, only a stored identity tells."""
        return []

    def lock_holders(self, *, ours: bool) -> tuple[str, bool]:
        writers = [pid for pid in self._writers() if pid != os.getpid()]
        at_work = not any(_process_state(pid) in ("T", "t") for pid in writers)
        if not writers:
            return "another connection to the file", at_work
        return "; ".join([_describe_process(pid) for pid in writers]), at_work

    def _writers(self) -> list[int]:
        """Return the processes that hold the write lock, as the kernel lists them; none where it lists nothing."""
        try:
            # Never opened: closing another descriptor of the file would drop our own locks on it.
            shm = os.stat(self._where + "-shm")
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            fields = line.split()
            if len(fields) < 8 or "->" in fields or fields[3] != "WRITE":
                continue
            inode, first, last = fields[5].rpartition(":")[2], fields[6], fields[7]
            if (
                int(inode) == shm.st_ino
                and int(first) <= WAL_WRITE_LOCK
                and (last == "EOF" or int(last) >= WAL_WRITE_LOCK)
            ):
                found.append(int(fields[4]))
        return found

    def close(self) -> None:
        with suppress(apsw.Error):
            self._connection.close()


def _process_fields(pid: int) -> list[str]:
    """Return what the kernel says of a process after its name: state first; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _process_state(pid: int) -> str:
    fields = _process_fields(pid)
    return fields[0] if fields else ""


def _process_identity(pid: int) -> str:
    """Return a process's number, start time (clock ticks since boot) and boot: together they are never used again."""
    fields = _process_fields(pid)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{pid} {fields[19] if len(fields) > 19 else '?'} {boot}"


def _describe_process(pid: int) -> str:
    """Say which process that is, by its program alone: what else its command line has may be a password."""
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        program = ""
    name = os.path.basename(program.partition(" ")[0])
    stopped = ", which is stopped" if _process_state(pid) in ("T", "t") else ""
    return f"process {pid}{stopped}" + (f" ({name[:80]})" if name else "")
