"""SQLite as a source: reads the outbox that the writers' connections fill.

Owns following `_tranlog_outbox` in id order, freeing it, and the checks at start. Leaves writing it to
`writer`, whose `connect` is the only door for writers. The hard idea: an event id is the database's uuid and
an outbox id. The database knows up to which id the log has everything (`captured`, moved with the rows' deletion),
and ids rise by random steps; so an id that is neither `captured` nor in the outbox comes from another history: a
database restored from a copy, even if it was written since.

Payloads are made here, at capture, from the raw form that writers store. Which shard a transaction belongs to is
decided here too, from facts that the writer stores in the same transaction: the tables touched, whether a statement is
among them, and the shard that the foreign keys *of that moment* make of them (rule `table`). A writer thus needs no
configuration, and a graph that changed since cannot make a wrong verdict.

Source: design/sources.md, "SQLite, the embedded default"; design/data-model.md, "Shards".
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import apsw

from tranlog.change import Fragment, Statement, TableMap, TableName
from tranlog.clock import Clock, SystemClock
from tranlog.errors import (
    ConfigError,
    ForeignWriterError,
    PositionLostError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
)
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.source.sqlite.opening import Patience, open_database
from tranlog.source.sqlite.raw import SCHEMA, ChangesDamagedError, read_piece
from tranlog.source.sqlite.schema import (
    OUTBOX_TABLE,
    SOURCE_TABLE,
    SqliteSchema,
    TablePlan,
    install_in,
    read_installed,
    read_schema,
    schema_version,
    typed_row,
)
from tranlog.types import Value

logger = logging.getLogger(__name__)

_PAGE = 256
_RELEASE_WAIT_S = 0.05
_READ = (
    "SELECT id, last, COALESCE(CAST(tstamp AS INTEGER), 0), COALESCE(CAST(changes AS BLOB), x'') "
    f"FROM main.{OUTBOX_TABLE} WHERE id > ? ORDER BY id LIMIT {_PAGE}"
)
_DBMS_METADATA = (("dbms_type", "sqlite"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSourceOptions:
    """How a SQLite database is captured."""

    path: str
    """The database file."""
    source_id: str
    """Names this source in every record."""
    shard_rule: ShardRuleKind = ShardRuleKind.TABLE
    """`table`: a shard per table, joined by foreign keys. `schema`: everything is one shard, since SQLite has one."""
    shard_map: Mapping[str, str] = field(default_factory=dict)
    """For the rule `map`: table (`main.t`) to shard; `*` is the default."""
    foreign_writes: str = "refuse"
    """What becomes of writers that bypass `connect`: `refuse` is the only way so far."""
    poll_s: float = 0.005
    """Seconds between two looks while nothing is written; one look costs some microseconds."""
    busy_timeout_s: float = 10.0
    """How long to wait for a writer's lock at start, in seconds."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        if not self.path or self.path == ":memory:":
            raise ConfigError(option="path", value=self.path, why="name a database file")
        if not self.source_id or "\0" in self.source_id:
            raise ConfigError(option="source_id", value=self.source_id, why="it must be a text without NUL")
        if self.foreign_writes != "refuse":
            raise ConfigError(option="foreign_writes", value=self.foreign_writes, why='only "refuse" is built')
        if not 0 < self.poll_s <= 10:
            raise ConfigError(option="poll_s", value=self.poll_s, why="seconds above 0, up to 10")
        if self.busy_timeout_s < 0:
            raise ConfigError(option="busy_timeout_s", value=self.busy_timeout_s, why="seconds, not below 0")
        if bool(self.shard_map) != (self.shard_rule is ShardRuleKind.MAP):
            raise ConfigError(option="shard_map", value=None, why='the rule "map" needs it, and no other rule has it')


class SqliteSource:
    """Follows a captured SQLite database. Implements `source.source.Source`.

    Threads: one, except `stop`.
    """

    def __init__(self, options: SqliteSourceOptions, *, clock: Clock | None = None) -> None:
        options.check()
        self.options = options
        self.source_id = options.source_id
        self._clock = clock if clock is not None else SystemClock()
        self._stopped = threading.Event()
        self._reader: apsw.Connection | None = None
        self._writer: apsw.Connection | None = None
        self._uuid = ""
        self._next_after = 0
        self._release_up_to = 0
        self._released = 0
        self._file: tuple[int, int] = (0, 0)
        self._data_version = -1
        self._schema: SqliteSchema | None = None
        self._warned: set[str] = set()
        self._groups: dict[TableName, str] = {}  # as of the piece that is read: the rule `table` goes by them
        self._rule = ShardRule(kind=options.shard_rule, groups=self._groups, mapping=options.shard_map)
        # A row of the outbox is a fragment; writers have cut them.
        self._packer = TransactionPacker(source_id=options.source_id, rule=self._rule, fragment_bytes=sys.maxsize)

    def check(self) -> None:
        """Look whether there is a database, and change nothing. Raises SourceSetupError."""
        path = self.options.path
        if not os.path.exists(path):
            raise SourceSetupError(
                why=f"there is no database at {path}",
                remedy="Create it by writing through tranlog.source.sqlite.connect, or check the path",
            )
        try:
            with contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as db:
                db.set_busy_timeout(round(self.options.busy_timeout_s * 1000))
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except apsw.Error as exc:
            why = f"{path} is no SQLite database that can be read: {exc}"
            raise SourceSetupError(why=why, remedy="Check path and permissions") from exc

    def start(self, event_id: str | None) -> None:
        """Check that the database is what the log follows, and get ready to read on. See `Source.start`."""
        path = self.options.path
        self.close()
        self.check()
        self._reader, _ = self._open()
        reader = self._reader
        try:
            # Capture's own writes need not survive a loss of power: a restart skips what the log has.
            self._writer, patience = self._open()
            self._writer.execute("PRAGMA main.synchronous=NORMAL")
            patience.timeout_s = _RELEASE_WAIT_S
            installed = read_installed(reader, path)
            if installed is None:
                if event_id is not None:
                    raise PositionLostError(event_id=event_id, why=f"{path} was never captured, or is another database")
                reader.execute("BEGIN IMMEDIATE")
                install_in(reader)
                reader.execute("COMMIT")
                installed = read_installed(reader, path)
                assert installed is not None
            self._uuid = installed.uuid
            self._released = self._release_up_to = installed.captured
            self._next_after = self._position(reader, event_id, installed.uuid, installed.captured)
            status = os.stat(path)
            self._file = (status.st_dev, status.st_ino)
            self._data_version = -1
            self._schema = None
            self._look_at_schema()
        except apsw.Error as exc:
            self.close()
            raise SourceUnavailableError(where=path, why=str(exc)) from exc
        except BaseException:
            self.close()
            raise
        self._stopped.clear()

    def _open(self) -> tuple[apsw.Connection, Patience]:
        options = self.options
        try:
            return open_database(options.path, busy_timeout_s=options.busy_timeout_s, clock=self._clock, create=False)
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc

    def _position(self, db: apsw.Connection, event_id: str | None, uuid: str, captured: int) -> int:
        """Return the outbox id to read after."""
        if event_id is None:
            if captured:
                logger.info(
                    "another log has captured this source before, path=%s up_to=%d", self.options.path, captured
                )
            return captured
        name, _, number = event_id.rpartition(":")
        if not number.isdecimal() or not name:
            raise PositionLostError(event_id=event_id, why="it is no event id of a SQLite source")
        at = int(number)
        if name != uuid:
            raise PositionLostError(
                event_id=event_id, why=f"{self.options.path} is another database, with the uuid {uuid}"
            )
        if at < captured:
            raise PositionLostError(
                event_id=event_id,
                why=f"the source has already freed its changes up to {uuid}:{captured}: this log is older, or a copy",
            )
        if at > captured:
            rows = db.execute(f"SELECT last FROM main.{OUTBOX_TABLE} WHERE id = ?", (at,)).fetchall()
            if rows != [(1,)]:
                raise PositionLostError(
                    event_id=event_id,
                    why=f"{self.options.path} does not know this transaction: it was restored from an older copy",
                )
        return at

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        """Yield the fragments that are there; see `Source.read`."""
        end = self._clock.monotonic() + timeout_s
        while True:
            found = False
            version = self._look()
            if version != self._data_version:
                for fragment in self._fragments():
                    found = True
                    yield fragment
                self._data_version = version
            if found or self._stopped.is_set():
                return
            self._free()
            left = end - self._clock.monotonic()
            if left <= 0:
                self._check_file()
                return
            self._clock.sleep(min(left, self.options.poll_s))

    def _look(self) -> int:
        """Return the number that rises whenever somebody else wrote; look at the schema when it did."""
        reader = self._connected()
        try:
            for (version,) in reader.execute("PRAGMA main.data_version"):
                assert isinstance(version, int)
                if version != self._data_version:
                    self._check_file()
                    self._look_at_schema()
                return version
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc
        raise AssertionError("PRAGMA data_version returned nothing")

    def _fragments(self) -> Iterator[Fragment]:
        reader = self._connected()
        complete = True
        complete_after = self._next_after
        while True:
            found = 0
            try:
                for number, last, tstamp, changes in reader.execute(_READ, (self._next_after,)):
                    found += 1
                    fragment = self._fragment(number, tstamp, changes, first=complete, last=bool(last))
                    del changes
                    self._next_after = number
                    complete = bool(last)
                    if complete:
                        complete_after = number
                    yield fragment
            except GeneratorExit:
                self._next_after = complete_after  # left in the middle: that transaction comes again, whole
                raise
            except apsw.Error as exc:
                raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc
            if not found:
                break
        if not complete:
            raise SourceError(
                f"the outbox of {self.options.path} ends inside a transaction, at id {self._next_after}: something "
                "other than capture deleted from it. Restore the database from a copy"
            )

    def _fragment(self, number: int, tstamp: int, changes: bytes, *, first: bool, last: bool) -> Fragment:
        """Return the fragment that a row of the outbox becomes; `first` and `last` of its transaction."""
        packer = self._packer
        if first:
            packer.begin(self._rule)
        event_id = f"{self._uuid}:{number}"
        try:
            piece = read_piece(changes)
            for table in piece.tables:
                self._groups[table.map.schema, table.map.table] = table.shard
            for change in piece.changes:
                if isinstance(change, Statement):
                    packer.add(change, event_id=event_id, tstamp=tstamp)
                else:
                    packer.add_encoded(*change, event_id=event_id, tstamp=tstamp)
        except ChangesDamagedError as exc:
            raise ChangesDamagedError(path=self.options.path, outbox_id=number, why=exc.why) from exc
        if last:
            return packer.finish(event_id=event_id, tstamp=tstamp, metadata=_DBMS_METADATA)
        return packer.take(event_id=event_id, tstamp=tstamp)

    def _look_at_schema(self) -> None:
        """Read the schema where it changed: refuse unguarded tables, warn of what is captured less than fully."""
        reader = self._connected()
        if self._schema is not None and schema_version(reader) == self._schema.version:
            return
        reader.execute("BEGIN")
        try:
            schema = read_schema(reader)
        finally:
            reader.execute("COMMIT")
        for name in sorted(schema.unguarded):
            raise ForeignWriterError(
                table=f"{SCHEMA}.{name}",
                why=f"a foreign program made it, and may have written it, in {self.options.path}. Copy its rows to the "
                "target, then adopt it by tranlog.source.sqlite.install(path)",
            )
        for plan in schema.plans.values():
            if plan.by_select and plan.place_key is not None:
                raise SourceSetupError(
                    why=f"table {plan.map.name} is WITHOUT ROWID and has a virtual generated column: SQLite does not "
                    "tell its changes",
                    remedy="Make the column STORED, or the table an ordinary one",
                )
            if not plan.map.primary_key and plan.map.table not in self._warned:
                self._warned.add(plan.map.table)
                logger.warning(
                    "table without primary key: its rows are matched by all their values table=%s", plan.map.name
                )
        for name in schema.virtual:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning("virtual table is not captured, nor what it stores table=%s.%s", SCHEMA, name)
        self._schema = schema
        if self.options.shard_rule is ShardRuleKind.MAP:
            self._rule = ShardRule(kind=ShardRuleKind.MAP, mapping=self._joined_map(schema))

    def _joined_map(self, schema: SqliteSchema) -> dict[str, str]:
        """Return the user's map without the tables that foreign keys join and the map parts: those become serial."""
        rule = ShardRule(kind=ShardRuleKind.MAP, mapping=self.options.shard_map)
        shards: dict[str, set[str]] = {}
        for (schema_name, table), group in schema.rule.groups.items():
            shards.setdefault(group, set()).add(rule.shard_of(schema_name, table))
        mapping = dict(self.options.shard_map)
        for (schema_name, table), group in schema.rule.groups.items():
            if len(shards[group]) > 1:
                mapping[f"{schema_name}.{table}"] = UNKNOWN_SHARD
                if f"map {table}" not in self._warned:
                    self._warned.add(f"map {table}")
                    logger.warning(
                        "shard map parts tables that foreign keys join, their transactions are serial table=%s.%s",
                        schema_name,
                        table,
                    )
        return mapping

    def _check_file(self) -> None:
        try:
            status = os.stat(self.options.path)
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._file:
            raise SourceUnavailableError(where=self.options.path, why="the file was removed or replaced while open")

    def release(self, event_id: str) -> None:
        """Delete from the outbox up to and including `event_id`; while a writer holds the lock, later."""
        number = int(event_id.rpartition(":")[2])
        self._release_up_to = max(self._release_up_to, number)
        self._free()

    def _free(self) -> None:
        up_to = self._release_up_to
        if up_to == self._released:
            return
        writer = self._writer
        assert writer is not None
        try:
            writer.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return  # writers go first; the rows stay until the next time, and nothing depends on it
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc
        try:
            writer.execute(f"DELETE FROM main.{OUTBOX_TABLE} WHERE id <= ?", (up_to,))
            writer.execute(f"UPDATE main.{SOURCE_TABLE} SET captured = ?", (up_to,))
            writer.execute("COMMIT")
        except apsw.Error as exc:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            if isinstance(exc, apsw.FullError | apsw.BusyError):
                return
            raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc
        self._released = up_to

    def stop(self) -> None:
        """Make a waiting `read` end soon."""
        self._stopped.set()

    def close(self) -> None:
        """Free what the log has, then the connections."""
        if self._writer is not None and self._release_up_to > self._released:
            try:
                self._free()
            except SourceUnavailableError as exc:
                logger.info("the outbox was not freed at the end path=%s why=%s", self.options.path, exc.why)
        for db in (self._reader, self._writer):
            if db is not None:
                db.close(True)
        self._reader = self._writer = None

    def _connected(self) -> apsw.Connection:
        assert self._reader is not None, "start() was not called"
        return self._reader


class SqliteTables:
    """Reads a SQLite database's tables as they are now. Implements `source.source.TableReader`.

    All reading happens in one read transaction, opened by the first call.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.exists(path):
            raise SourceSetupError(why=f"there is no database at {path}", remedy="Check the path")
        self._db: apsw.Connection | None = None
        try:
            self._db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            self._db.set_busy_timeout(10_000)
            self._db.execute("BEGIN")
            schema = read_schema(self._db)
        except apsw.Error as exc:
            self.close()
            raise SourceUnavailableError(where=path, why=str(exc)) from exc
        self._plans: dict[str, TablePlan] = schema.plans
        self._maps = schema.maps()

    def tables(self) -> list[TableMap]:
        """Return the user's tables; see `TableReader.tables`."""
        return self._maps

    def rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows as capture carries them: without generated columns."""
        assert self._db is not None, "closed"
        plan = self._plans[table.table]
        cursor = self._db.execute(plan.select_all)
        seen = 0
        while True:
            try:
                for row in cursor:
                    seen += 1
                    yield row
                return
            except UnicodeDecodeError:
                break
        # Text that is not UTF-8: the same scan, from here on by bytes.
        for typed in self._db.execute(f"{plan.select_typed} LIMIT -1 OFFSET {seen}"):
            yield typed_row(typed)

    def close(self) -> None:
        """Free the connection."""
        if self._db is not None:
            self._db.close(True)
            self._db = None
