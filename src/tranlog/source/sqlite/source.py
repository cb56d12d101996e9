"""SQLite as a source: reads the outbox that the writers' connections fill.

Owns following `_tranlog_outbox` in id order, the claim on the database, and the checks at start. Leaves writing the
outbox to `writer`, whose `connect` is the only door for writers, and freeing it to them too, for as long as they commit
(`claim`, `freeing`). The hard idea: an event id is the database's uuid, an outbox id and that row's random token, and
the last row that was read stays in the outbox. Every look finds it there in the read transaction in which it reads new
rows. Where it does not, the database is another one than the log knows: put back to an older state, followed by another
capture, or written by somebody who should not.

Payloads are made here, at capture, from the raw form that writers store. Which shard a transaction belongs to is
decided here too, from facts that the writer stores in the same transaction: the tables touched, whether a statement is
among them, and the shard that the foreign keys *of that moment* make of them (rule `table`). A writer thus needs no
configuration, and a graph that changed since cannot make a wrong verdict.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import apsw

from tranlog.change import Fragment, Statement, TableName
from tranlog.clock import Clock, SystemClock
from tranlog.disk import may_write
from tranlog.errors import (
    ConfigError,
    PositionLostError,
    SourceClaimedError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
)
from tranlog.option_kinds import check_kinds
from tranlog.row_touches import RowTouches
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.source.source import Snapshot
from tranlog.source.sqlite.claim import OutboxPlace, SourceClaim, place_of, read_progress
from tranlog.source.sqlite.freeing import OutboxFreeing
from tranlog.source.sqlite.opening import Patience, db_transaction, looking, open_database
from tranlog.source.sqlite.pages import OutboxPages, OutboxRow
from tranlog.source.sqlite.raw import OUTBOX_TABLE, ChangesDamagedError, read_piece
from tranlog.source.sqlite.schema import SOURCE_TABLE, Installed, cover_by, install_in, read_installed
from tranlog.source.sqlite.source_schema import SourceSchema
from tranlog.source.sqlite.tables import SqliteSnapshot, SqliteTables
from tranlog.source.sqlite.triggers import TriggerRow

logger = logging.getLogger(__name__)

_LOOK = f"SELECT history, holder, (SELECT token FROM main.{OUTBOX_TABLE} WHERE id = ?) FROM main.{SOURCE_TABLE}"
_DBMS_METADATA = (("dbms_type", "sqlite"),)


ForeignWrites: TypeAlias = Literal["refuse", "capture_by_trigger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSourceOptions:
    """How a SQLite database is captured."""

    kind: ClassVar[str] = "sqlite"
    path: str = field(metadata={"path": True, "example": "source.db"})
    """The database file; writers open it by `tranlog.source.sqlite.connect`, which makes it if it is missing."""
    source_id: str = field(metadata={"default": "the service's name"})
    """Names this source in every record; keep it."""
    shard_rule: ShardRuleKind = ShardRuleKind.TABLE
    """`table`: a shard per table, joined by foreign keys. `schema`: everything is one shard, since SQLite has one."""
    shard_map: Mapping[str, str] = field(default_factory=dict)
    """For the rule `map`: table (`main.t`) to shard; `*` is the default."""
    foreign_writes: ForeignWrites = "refuse"
    """What becomes of writers that bypass `connect`: `refuse` makes them fail, `capture_by_trigger` captures them."""
    poll_s: float = 0.005
    """Seconds between two looks while nothing is written; one look costs some microseconds."""
    busy_timeout_s: float = 10.0
    """How long to wait for a writer's lock at start, in seconds."""

    @property
    def where(self) -> str:
        """The database file."""
        return self.path

    @property
    def by_trigger(self) -> bool:
        """Whether triggers capture what foreign programs write."""
        return self.foreign_writes == "capture_by_trigger"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_kinds(self)
        if not self.path or self.path == ":memory:":
            raise ConfigError(option="path", value=self.path, why="name a database file")
        if not self.source_id or "\0" in self.source_id:
            raise ConfigError(option="source_id", value=self.source_id, why="it must be a text without NUL")
        if not 0 < self.poll_s <= 10:
            raise ConfigError(option="poll_s", value=self.poll_s, why="seconds above 0, up to 10")
        if not 0 <= self.busy_timeout_s <= 86_400:
            why = "seconds, not below 0, at most a day"
            raise ConfigError(option="busy_timeout_s", value=self.busy_timeout_s, why=why)
        if bool(self.shard_map) != (self.shard_rule is ShardRuleKind.MAP):
            raise ConfigError(option="shard_map", value=None, why='the rule "map" needs it, and no other rule has it')


def _look_at_file(path: str) -> None:
    """Raise SourceSetupError for a database that is not there, or that capture may not write, or not beside it."""
    if not os.path.exists(path):
        raise SourceSetupError(
            why=f"there is no database at {path}",
            remedy="Create it by writing through tranlog.source.sqlite.connect, or check the path",
        )
    for place in (path, os.path.dirname(os.path.abspath(path))):
        if not may_write(place):
            mounted = os.statvfs(place).f_flag & os.ST_RDONLY
            raise SourceSetupError(
                why=f"{place} cannot be written" + (": its file system is mounted read-only" if mounted else ""),
                remedy="Capture writes into the database and beside it: let it, as the user that runs it",
            )


def _packer(source_id: str, rule: ShardRule) -> TransactionPacker:
    """Return what packs the rows of the outbox: each is a fragment, since writers have cut them."""
    return TransactionPacker(
        source_id=source_id, rule=rule, fragment_bytes=sys.maxsize, touches=RowTouches(goes_on=True)
    )


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
        self._freeing: OutboxFreeing | None = None
        self._claim: SourceClaim | None = None
        self._take = False
        self._uuid = ""
        self._after = 0
        self._token: int | None = None  # of the row with that id; None where there is no such row yet
        self._file: tuple[int, int] = (0, 0)
        self._data_version = -1
        self._warned: set[str] = set()
        self._pages: OutboxPages | None = None
        self._groups: dict[TableName, str] = {}  # as of the piece that is read: the rule `table` goes by them
        rule = ShardRule(kind=options.shard_rule, groups=self._groups, mapping=options.shard_map)
        self._schema = SourceSchema(options.path, rule, self._warned, self._clock)
        self._packer = _packer(options.source_id, rule)

    def check(self) -> None:
        """Look whether there is a database that can be written, and change nothing. Raises SourceSetupError."""
        path = self.options.path
        _look_at_file(path)
        try:
            with contextlib.closing(looking(path)) as db:
                db.set_busy_timeout(round(self.options.busy_timeout_s * 1000))
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except apsw.Error as exc:
            why = f"{path} is no SQLite database that can be read: {exc}"
            raise SourceSetupError(why=why, remedy="Check path and permissions") from exc

    def claim(self, *, history: bytes, holder: str, take: bool = False) -> None:
        """Say whose the source is to be from the next start on; see `ClaimedSource.claim`."""
        self._claim = SourceClaim(history, holder)
        self._take = take

    def start(self, event_id: str | None) -> None:
        """Check that the database is what the log follows, and get ready to read on. See `Source.start`.

        Without a claim it only reads: nothing is freed. Raises SourceClaimedError, too.
        """
        path = self.options.path
        self.close()
        self.check()
        self._reader = reader = self._open()[0]
        try:
            if read_installed(reader, path) is None:
                if event_id is not None:
                    raise PositionLostError(event_id=event_id, why=f"{path} was never captured, or is another database")
                with db_transaction(reader, write=True):
                    install_in(reader, by_trigger=self.options.by_trigger)
            self._take_up(reader, event_id)
            self._pages = OutboxPages(reader, path, self._check_place, by_trigger=self.options.by_trigger)
            self._freeing = OutboxFreeing(
                *(path, self._uuid, self._claim, reader, self._open, self._clock, self._warned),
                alone=self.options.by_trigger,
            )
            status = os.stat(path)
            self._file = (status.st_dev, status.st_ino)
            self._data_version = -1
            self._schema.forget()
            self._schema.follows = self._claim is not None
            self._schema.look(reader)
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

    def _take_up(self, db: apsw.Connection, event_id: str | None) -> None:
        """Find the row to read after, and claim the source where that was not done yet, in one transaction."""
        path, ours = self.options.path, self._claim
        installed = read_installed(db, path)
        assert installed is not None
        write = ours is not None and (
            ours != (installed.history, installed.holder) or installed.by_trigger != self.options.by_trigger
        )
        with db_transaction(db, write=write):
            installed = read_installed(db, path)
            assert installed is not None
            theirs = _claim_of(installed)
            if ours is not None and theirs is not None and theirs.holder != ours.holder and not self._take:
                raise SourceClaimedError(where=path, claim=str(theirs), ours=str(ours))
            self._uuid = installed.uuid
            self._after, self._token = self._position(db, event_id, theirs)
            if write:
                db.execute(f"UPDATE main.{SOURCE_TABLE} SET history = ?, holder = ?", ours)
                cover_by(db, by_trigger=self.options.by_trigger)

    def _position(
        self, db: apsw.Connection, event_id: str | None, theirs: SourceClaim | None
    ) -> tuple[int, int | None]:
        """Return the outbox id to read after, and the token of that row."""
        path = self.options.path
        if event_id is None:
            return self._beginning(db, theirs)
        found = place_of(event_id)
        if found is None:
            raise PositionLostError(event_id=event_id, why="it is no event id of a SQLite source")
        name, place = found
        if name != self._uuid:
            why = f"{path} is another database, with the uuid {self._uuid}"
            raise PositionLostError(event_id=event_id, why=why)
        if db.execute(f"SELECT 1 FROM main.{OUTBOX_TABLE} WHERE id = ? AND token = ? AND last", place).fetchall():
            return place
        raise PositionLostError(event_id=event_id, why=self._where_it_went(db, place.id))

    def _beginning(self, db: apsw.Connection, theirs: SourceClaim | None) -> tuple[int, int | None]:
        """Return where a log without any event begins: with what no log has had before, as far as anybody knows.

        Ids begin at 1 and have no gap, so a smaller one that is missing was freed, and then the oldest transaction
        there is the last one captured, or an older one.
        """
        path = self.options.path
        ((first,),) = db.execute(f"SELECT coalesce(min(id), 1) FROM main.{OUTBOX_TABLE}").fetchall()
        assert isinstance(first, int)
        if self._claim is None:
            return first - 1, None
        if first == 1 and (theirs is None or theirs.history == self._claim.history):
            return 0, None
        if (theirs is None or theirs.history == self._claim.history) and not self._take:
            why = (
                f"{path} has freed what it committed before {self._uuid}:{first}, and this log holds nothing of it; "
                "`tranlog capture --take-source` begins with what is still there"
            )
            raise PositionLostError(event_id="", why=why)
        told = read_progress(db.filename)
        if told is not None and theirs is not None and (told.uuid, told.history) == (self._uuid, theirs.history):
            known = f"SELECT 1 FROM main.{OUTBOX_TABLE} WHERE id = ? AND token = ?"
            if db.execute(known, told.place).fetchall():
                logger.info("another log has captured this source before, path=%s up_to=%d", path, told.place.id)
                return told.place
        logger.warning(
            "another log has captured this source before, and nobody says up to where: this one begins with the oldest "
            "transaction that may be new, path=%s",
            path,
        )
        if first == 1:
            return 0, None
        oldest: list[Any] = db.execute(
            f"SELECT id, token FROM main.{OUTBOX_TABLE} WHERE last ORDER BY id LIMIT 1"
        ).fetchall()
        return oldest[0] if oldest else (first - 1, None)

    def _where_it_went(self, db: apsw.Connection, number: int) -> str:
        """Say why the outbox does not hold the last row that was captured, though that one is never freed."""
        path, at = self.options.path, f"{self._uuid}:{number}"
        ((first, last),) = db.execute(f"SELECT min(id), max(id) FROM main.{OUTBOX_TABLE}").fetchall()
        if first is None:
            return (
                f"the outbox of {path} is empty: something other than capture deleted from it, or the database was put "
                "back to a copy from before its first transaction"
            )
        assert isinstance(first, int) and isinstance(last, int)
        if last < number:
            return f"{path} ends at {self._uuid}:{last}: it was put back to an older copy"
        if first > number:
            return (
                f"{path} has already freed its changes up to {at}: this log is older than the one that captured them, "
                "a copy of it or rolled back; or something other than capture deleted them"
            )
        if db.execute(f"SELECT 1 FROM main.{OUTBOX_TABLE} WHERE id = ?", (number,)).fetchall():
            return f"{path} has another transaction as {at}: it was put back to an older copy, and written since"
        return f"something other than capture deleted {at} from the outbox of {path}"

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
            assert self._freeing is not None, "start() was not called"
            self._freeing.tell()
            self._freeing.free_overdue()
            if found or self._stopped.is_set():
                return
            left = end - self._clock.monotonic()
            if left <= 0:
                self._check_file()
                return
            self._clock.sleep(min(left, self.options.poll_s))

    def _look(self) -> int:
        """Return the number that rises whenever somebody else wrote; look at the schema when it did."""
        reader = self._connected()
        try:
            ((version,),) = reader.execute("PRAGMA main.data_version").fetchall()  # and no read transaction is left
            assert isinstance(version, int)
            if version != self._data_version:
                self._check_file()
                self._schema.look(reader)
            return version
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.options.path, why=str(exc)) from exc

    def _fragments(self) -> Iterator[Fragment]:
        pages, complete = self._pages, True
        assert pages is not None, "start() was not called"
        complete_at = self._after, self._token
        try:
            while rows := pages.read(self._after):
                while rows:
                    row = rows.popleft()
                    place = OutboxPlace(row.id, row.token)
                    self._pack(row, first=complete)
                    self._after, self._token = place
                    complete = row.last
                    if complete:
                        complete_at = place
                    elif rows and isinstance(row.changes, TriggerRow):
                        continue  # one change: a page of them makes a fragment
                    yield self._fragment(row)
        except GeneratorExit:
            self._after, self._token = complete_at  # left in the middle: that transaction comes again, whole
            raise
        if not complete:
            raise SourceError(
                f"the outbox of {self.options.path} ends inside a transaction, at id {self._after}: something "
                "other than capture deleted from it. Restore the database from a copy"
            )

    def _check_place(self, db: apsw.Connection) -> None:
        """Find the last row that was read where it must be, and the claim as ours, in the open transaction."""
        ((history, holder, token),) = db.execute(_LOOK, (self._after,)).fetchall() or ((None, None, None),)
        if self._claim is not None and history is not None and (history, holder) != self._claim:
            assert isinstance(history, bytes) and isinstance(holder, str)
            theirs = SourceClaim(history, holder)
            raise SourceClaimedError(where=self.options.path, claim=str(theirs), ours=str(self._claim))
        if self._token is not None and token != self._token:
            at = f"{self._uuid}:{OutboxPlace(self._after, self._token).text}"
            raise PositionLostError(event_id=at, why=self._where_it_went(db, self._after))
        if self._claim is not None and history is None:
            raise SourceError(
                f"{self.options.path} was put back to a copy from before this log followed it; what the log ends with "
                "is still there. Start capture again"
            )

    def _pack(self, row: OutboxRow, *, first: bool) -> None:
        """Add the changes of a row of the outbox, the `first` of its transaction or a later one."""
        packer, pages, changes, tstamp = self._packer, self._pages, row.changes, row.tstamp
        assert pages is not None
        if first:
            packer.begin(self._schema.rule)
        event_id = self._event_id(row)
        try:
            if isinstance(changes, TriggerRow):
                table, encoded = pages.tables.change(changes)
                self._groups[table.map.schema, table.map.table] = table.shard
                packer.add_encoded(*encoded, event_id=event_id, tstamp=tstamp)
                return
            piece = read_piece(changes)
            for table in piece.tables:
                self._groups[table.map.schema, table.map.table] = table.shard
            for change in piece.changes:
                if isinstance(change, Statement):
                    packer.add(change, event_id=event_id, tstamp=tstamp)
                else:
                    packer.add_encoded(*change, event_id=event_id, tstamp=tstamp)
        except ChangesDamagedError as exc:
            raise ChangesDamagedError(path=self.options.path, outbox_id=row.id, why=exc.why) from exc

    def _event_id(self, row: OutboxRow) -> str:
        return f"{self._uuid}:{OutboxPlace(row.id, row.token).text}"

    def _fragment(self, row: OutboxRow) -> Fragment:
        """Return what was packed, up to a row, as a fragment."""
        event_id = self._event_id(row)
        if row.last:
            return self._packer.finish(event_id=event_id, tstamp=row.tstamp, metadata=_DBMS_METADATA)
        return self._packer.take(event_id=event_id, tstamp=row.tstamp)

    def _check_file(self) -> None:
        try:
            status = os.stat(self.options.path)
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._file:
            raise SourceUnavailableError(where=self.options.path, why="the file was removed or replaced while open")

    def release(self, event_id: str) -> None:
        """Let writers free what lies below `event_id`; the row itself stays until a later one is durable."""
        found = place_of(event_id)
        assert found is not None and self._freeing is not None
        self._freeing.release(found[1])

    def stop(self) -> None:
        """Make a waiting `read` end soon."""
        self._stopped.set()

    def close(self) -> None:
        """Say what the log has, then close the connections."""
        if self._freeing is not None:
            self._freeing.close()
        if self._reader is not None:
            self._reader.close(True)
        self._reader = self._freeing = None

    def begins_earlier(self) -> bool:
        """Whether writers have left anything in the outbox."""
        with contextlib.closing(self.snapshot()) as snapshot:
            return bool(snapshot.outbox_id)

    def reader(self) -> SqliteTables:
        """Return what reads the tables as they are now."""
        return SqliteTables(self.options.path)

    def drop_snapshot(self) -> None:
        """Do nothing: one is taken at once."""

    def snapshot(self) -> SqliteSnapshot:
        """Return the tables of now, with the outbox's newest id. Raises SourceUnavailableError."""
        reader, pages = self._reader, self._pages
        if reader is None or pages is None:
            return SqliteSnapshot(self.options.path)
        while True:
            self._schema.look(reader)
            self._data_version = -1  # what that may have written is read
            snapshot = SqliteSnapshot(self.options.path)
            if snapshot.version == self._schema.version:
                break
            snapshot.close()  # a foreign program changed a table in between
        pages.keep_apart(snapshot.outbox_id)
        return snapshot

    def has_reached(self, snapshot: Snapshot) -> bool:
        """Whether `read` has given all that the snapshot has."""
        assert isinstance(snapshot, SqliteSnapshot)
        return self._after >= snapshot.outbox_id

    def _connected(self) -> apsw.Connection:
        assert self._reader is not None, "start() was not called"
        return self._reader


def _claim_of(installed: Installed) -> SourceClaim | None:
    if installed.history is None or installed.holder is None:
        return None
    return SourceClaim(installed.history, installed.holder)
