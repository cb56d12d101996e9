"""PostgreSQL as a source: a logical replication slot, followed transaction by transaction.

Owns the source's life (start, read, lost connections, stop) and the way from a transaction's messages to fragments.
Messages, rows, connections and the catalogue have modules of their own. The hard idea: the slot is told to forget only
what the log holds, by the LSN after a commit; so it never stands past the log, and a slot that does has lost something.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from tranlog.change import Fragment
from tranlog.clock import Clock, SystemClock
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    PositionLostError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.source.postgres.catalog import PostgresCatalog
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions
from tranlog.source.postgres.fragments import PostgresFragmentMaker
from tranlog.source.postgres.messages import LogicalMessage, MessageFormatError
from tranlog.source.postgres.position import SlotState, WalPosition, lsn_text, parse_lsn, why_lost
from tranlog.source.postgres.relations import Relations
from tranlog.source.postgres.rows import PostgresTableLayout
from tranlog.source.postgres.slot_making import make_slot, new_logs_start
from tranlog.source.postgres.snapshot import PostgresSnapshot, SnapshotTaking
from tranlog.source.postgres.stream import SlotStream
from tranlog.source.postgres.tables import PostgresTables
from tranlog.source.postgres.transactions import Assembled, TransactionAssembler, WholeTransaction
from tranlog.source.reconnecting import PAUSE_SLICE_S, Reconnecting
from tranlog.source.source import Snapshot, SnapshotWait
from tranlog.source.waiting import WaitingEvents

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSourceStatus:
    """Where a source stands: `position` is what was handed out, `released` what the log has durable."""

    source_id: str
    where: str
    connected: bool
    position: str
    released: str | None
    reconnects: int
    open_streamed: int
    """Large transactions that the server sends while they are open."""


class PostgresSource:
    """Follows one logical replication slot of a PostgreSQL database.

    Shape: each committed transaction once, in the order of the commits, with the LSN after its commit record as event
    id. Large transactions come as several fragments, and only after their commit is here; `read` ends only between
    transactions. When an iteration is given up, or fails, inside a transaction, that transaction is handed out again
    whole, from its first fragment: by the next `read`, or after the next `start`.
    `release` lets the server forget: it is told within `feedback_s`.
    Threads: one, except `stop`.
    """

    def __init__(self, options: PostgresSourceOptions, *, clock: Clock | None = None) -> None:
        options.check()
        self.options = options
        self.source_id = options.source_id
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._catalog = PostgresCatalog(options, PostgresControl(options))
        self._snapshots = SnapshotTaking(options, self._catalog, self._clock)
        self._relations = Relations(options, self._catalog)
        self._known: dict[int, PostgresTableLayout] = {}  # the tables as they were before the pending transaction
        self._maker = PostgresFragmentMaker(options, self._relations)
        self._stopping = False  # plain, since a signal handler may set it
        self._stream: SlotStream | None = None
        self._assembler: TransactionAssembler | None = None
        self._pending: Assembled | None = None
        self._failure: SourceError | None = None
        self._position: WalPosition | None = None
        self._told: WalPosition | None = None  # the last position that became a fragment's event id
        self._proven = False  # whether the server is known to have the transaction at the position
        self._watch = _SlotWatch(options, self._catalog, self._relations, self._clock)
        self._retry = Reconnecting(self._clock, reconnect_s=self.options.reconnect_s)
        self._released: str | None = None

    # The life of the source.

    def check(self) -> None:
        """Look whether the server is there and set up to be captured, and change nothing.

        Raises SourceSetupError, SourceUnavailableError.
        """
        try:
            self._catalog.check_server()
            self._catalog.slot()
            if self._catalog.has_publication() and self.options.identity != "set":
                self._catalog.check_tables()
        finally:
            self._catalog.close()

    def start(self, event_id: str | None) -> None:
        """Check the server's set-up and get ready to read what was committed after `event_id`.

        None makes publication and slot where they are missing and starts where the slot stands; the first `read` then
        yields an empty transaction at once, so that the log knows that place before anything happens. Raises
        SourceSetupError, SourceUnavailableError, PositionLostError; then nothing was read.
        """
        self._disconnect()
        self._stopping = False
        self._failure = None
        self._retry = Reconnecting(self._clock, reconnect_s=self.options.reconnect_s)
        self._position = None if event_id is None else read_event_id(event_id)
        self._told = self._position
        try:
            self._connect()
        except SourceError as exc:
            self._failure = exc
            self._disconnect()
            raise

    def _connect(self) -> None:
        """Check the set-up and the position, and open the stream there."""
        options, catalog = self.options, self._catalog
        catalog.check_server()
        self._prepare()
        stream = SlotStream(options)
        try:
            history = stream.history()
            slot = catalog.slot()
            if self._position is None:
                if slot is None:
                    slot = make_slot(options, catalog, self._clock, lambda: self._stopping)
                lsn = new_logs_start(options, slot)
                self._position = WalPosition(
                    lsn=lsn, system=history.system, timeline=history.timeline, slot=options.slot_name
                )
            elif self._position.slot != options.slot_name:
                raise self._lost(
                    f"the log follows the slot {self._position.slot}, and the options name {options.slot_name}"
                )
            elif (why := why_lost(self._position, history, slot)) is not None:
                raise self._lost(why)
            assert slot is not None
            # Until nobody reads it, a reader that was lost may still move it by what we told it. It is most likely ours
            # after a lost connection, until the server finds out.
            patience_s = options.connect_timeout_s if self._retry.lost_at is None else options.reconnect_s
            slot = _wait_for_slot(options, catalog, self._clock, patience_s, lambda: self._stopping) or slot
            stream.begin()
        except BaseException:
            stream.close()
            raise
        self._stream = stream
        if self._stopping:  # `stop` sets this first, then looks for the stream
            stream.interrupt()
        self._proven = slot.confirmed_lsn == self._position.lsn
        self._position = msgspec.structs.replace(self._position, timeline=history.timeline)
        self._relations.forget(self._position)
        self._assembler = TransactionAssembler(
            new_store=lambda: WaitingEvents(options.memory_bytes, options.spool_directory),
            memory_bytes=options.memory_bytes,
            transaction_bytes_max=options.transaction_bytes_max,
            names_beyond=options.on_gap == "gap",
        )
        self._watch.connected()
        self._retry.connected()

    def _prepare(self) -> None:
        """Have the publication, and what records DDL."""
        if self._catalog.has_publication():
            self._catalog.check_tables()
        elif self._position is None:
            self._catalog.make_publication()
        else:
            raise self._lost(
                f"the server has no publication {self.options.publication_name!r}, and what was written without it "
                "cannot be decoded"
            )
        if self.options.ddl_capture == "event_trigger":
            self._catalog.make_trigger()

    def _lost(self, why: str) -> PositionLostError:
        return PositionLostError(event_id=str(self._position), why=why)

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._snapshots.drop()
        self._catalog.close()
        if self._assembler is not None:
            self._assembler.close()
            self._assembler = None
        if isinstance(self._pending, WholeTransaction):
            self._pending.messages.close()
        self._pending = None

    def release(self, event_id: str) -> None:
        """Let the server forget everything up to and including `event_id`: the log has it durable."""
        self._released = event_id
        if self._stream is not None:
            self._stream.confirm(read_event_id(event_id).lsn)

    def take_notes(self, notes: bytes) -> None:
        """Take what `notes` returned; see `NotingSource`."""
        self._relations.take_notes(notes)

    def notes(self) -> bytes | None:
        """Return what tables were like when they were last in the log; see `NotingSource`."""
        if self._released is None or self._pending is not None:
            return None
        return self._relations.notes(read_event_id(self._released))

    def stop(self) -> None:
        """Make a waiting `read` end soon, and later ones at once, until the next `start`.

        From any thread, and from a signal handler.
        """
        self._stopping = True
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def close(self) -> None:
        """Free connections and temporary files; closing twice is harmless."""
        self._disconnect()

    def status(self) -> PostgresSourceStatus:
        """Return where this source stands."""
        return PostgresSourceStatus(
            source_id=self.source_id,
            where=self.options.where,
            connected=self._stream is not None,
            position=str(self._position or ""),
            released=self._released,
            reconnects=self._retry.reconnects,
            open_streamed=0 if self._assembler is None else self._assembler.open_streamed,
        )

    # Reading.

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        """Yield the fragments that are there, waiting up to `timeout_s` for the first; end when none is left for now.

        Shape: whole transactions in commit order. Ends between transactions, also after `read_bytes`.
        A lost connection is mended from the last whole transaction, without a repeat, for up to `reconnect_s`.
        Raises: SourceUnavailableError after that; PositionLostError, SourceSetupError when the server came back
        another; UnsupportedEventError for what cannot be carried: again at each `read`, until the next `start`.
        """
        if self._failure is not None:
            raise self._failure
        assert self._position is not None, "start comes first"
        deadline = self._clock.monotonic() + timeout_s
        handed = 0
        try:
            renamed = self._relations.renamed
            if renamed(self._position.lsn):  # what was handed out before is released
                self._disconnect()
                self._relations.forget(self._position)
            if self._told is None:
                yield self._position_fragment()
            while handed < self.options.read_bytes and not (self._stopping or renamed(self._position.lsn)):
                group = self._next_group(0.0 if handed else deadline - self._clock.monotonic())
                if group is None:
                    break
                if not self._snapshots.lets_pass(_end_of(group)):
                    self._snapshots.wait(deadline - self._clock.monotonic())
                    break
                handed += len(group.content) if isinstance(group, LogicalMessage) else group.size
                begun = False
                try:
                    for fragment in self._maker.fragments(group, self._position, now_ms=self._clock.now_ms()):
                        handed += len(fragment.payload) + 1
                        if fragment.last:
                            self._done(group)
                            self._told = self._position
                        begun = True
                        yield fragment
                except MessageFormatError as exc:
                    raise self._damaged(exc) from exc
                except SourceUnavailableError as exc:  # a question to the catalogue found nobody
                    if begun:
                        raise
                    self._lose(exc)
                    continue
                if self._pending is group:
                    self._done(group)
            # A read that yields nothing says that nothing is left: one that went far without a change must yield.
            if self._told != self._position and (handed >= self.options.read_bytes or renamed(self._position.lsn)):
                yield self._position_fragment()
            self._watch.look(self._stream, self._position.lsn, idle=not handed)
        except SourceError as exc:
            self._failure = None if isinstance(exc, SourceUnavailableError) else exc
            raise
        except (DiskFullError, DiskFailedError):
            # Messages of a waiting transaction are lost: the next read fetches it anew.
            self._disconnect()
            raise

    def end(self) -> str:
        """Return the LSN up to which the server's WAL is durable by now. Raises SourceUnavailableError."""
        return self._catalog.durable_lsn()

    def has_given(self, end: str) -> bool:
        """Whether `read` has given everything up to an LSN; where that is not known, the server is asked."""
        assert self._position is not None
        lsn = parse_lsn(end)
        return self._position.lsn >= lsn or (self._stream is not None and self._stream.has_sent(lsn))

    # Loads.

    def begins_earlier(self) -> bool:
        """Return False: a slot has no rows of before it was made."""
        return False

    def reader(self) -> PostgresTables:
        """Return what reads the tables as they are now."""
        return PostgresTables(self.options)

    def snapshot(self) -> PostgresSnapshot | SnapshotWait:
        """Have a snapshot taken over another connection; see `LoadableSource.snapshot`."""
        found = self._snapshots.take()
        if isinstance(found, PostgresSnapshot) and self._position is not None and found.lsn < self._position.lsn:
            found.close()  # taken while what it waited for came to its end, and the stream is past it
            return SnapshotWait()
        return found

    def drop_snapshot(self) -> None:
        """Forget a snapshot that is being taken."""
        self._snapshots.drop()

    def has_reached(self, snapshot: Snapshot) -> bool:
        """Whether `read` has given all that the snapshot has; where not, the server is asked how far it is."""
        assert isinstance(snapshot, PostgresSnapshot)
        return self.has_given(lsn_text(snapshot.lsn))

    def _done(self, group: Assembled) -> None:
        self._pending = None
        assert self._position is not None
        if isinstance(group, WholeTransaction):
            group.messages.close()
        xid = 0 if isinstance(group, LogicalMessage) else group.xid
        self._position = msgspec.structs.replace(self._position, lsn=_end_of(group), xid=xid)

    def _position_fragment(self) -> Fragment:
        """Return an empty transaction that carries the position on."""
        self._told = self._position
        return self._maker.empty(str(self._position), tstamp=self._clock.now_ms())

    def _next_group(self, wait_s: float) -> Assembled | None:
        """Return what was committed next; None when there is none within `wait_s`. It stays pending until done."""
        if self._pending is not None:
            self._relations.restore(self._known)
            return self._pending
        deadline = self._clock.monotonic() + wait_s
        while True:
            assembler = self._assembler
            while assembler is not None:
                try:
                    group = assembler.take()
                    if group is None:
                        break
                    if not self._is_again(group):
                        self._retry.came()
                        self._pending = group
                        self._known = self._relations.layouts
                        return group
                except MessageFormatError as exc:
                    raise self._damaged(exc) from exc
                except UnsupportedEventError as exc:
                    raise UnsupportedEventError(what=exc.what, event_id=str(self._position), remedy=exc.remedy) from exc
            if self._stopping:
                return None
            left = max(0.0, deadline - self._clock.monotonic())
            if self._stream is None:
                if not self._reconnect(left):
                    return None
                continue
            inside = assembler is not None and assembler.inside
            try:
                messages = self._stream.take(max(left, PAUSE_SLICE_S) if inside else left)
            except MessageFormatError as exc:
                raise self._damaged(exc) from exc
            except SourceUnavailableError as exc:
                self._lose(exc)
                continue
            if not messages and not inside:
                return None
            assert assembler is not None
            assembler.put(messages)

    def _is_again(self, group: Assembled) -> bool:
        """Whether the log has it: the slot stands before the log's end where the log is ahead of what it confirmed.

        What it defines counts all the same. Raises PositionLostError where the server has another history.
        """
        position = self._position
        assert position is not None
        lsn = _end_of(group)
        if lsn <= position.lsn:
            xid = 0 if isinstance(group, LogicalMessage) else group.xid
            if lsn == position.lsn and xid and position.xid not in (0, xid):
                raise self._lost(
                    f"the transaction that the server has there is {xid}, and the log's is {position.xid}: "
                    "it was restored from a backup and has gone on"
                )
            if isinstance(group, WholeTransaction):
                self._maker.note_definitions(group)
                group.messages.close()
            self._proven = self._proven or lsn == position.lsn
            return True
        if not self._proven:
            raise self._lost(
                f"the server has no transaction that ends there; the next one ends at {lsn_text(lsn)}: it was restored "
                "from a backup and has gone on, or its publication was another one"
            )
        return False

    def _lose(self, error: SourceUnavailableError) -> None:
        """Drop the connection, and with it transactions whose end had not come."""
        logger.warning("The connection to the source was lost. where=%s why=%s", self.options.where, error.why)
        self._disconnect()
        self._retry.lost(error)

    def _reconnect(self, wait_s: float) -> bool:
        """Try to connect until it works or `wait_s` is over. Raises what `start` raises, the server's absence late."""
        connected = self._retry.again(self._connect_anew, wait_s, lambda: self._stopping)
        if connected:
            logger.warning("The source is connected again. where=%s position=%s", self.options.where, self._position)
        return connected

    def _connect_anew(self) -> None:
        try:
            self._connect()
        except SourceUnavailableError:
            self._disconnect()
            raise

    def _damaged(self, error: MessageFormatError) -> UnsupportedEventError:
        return UnsupportedEventError(
            what=f"what the server sent after it is damaged or of a form that is not known: {error.why}",
            event_id=str(self._position),
            remedy="Start capture again; if it stops here again, say which version of PostgreSQL it was",
        )


class _SlotWatch:
    """Moves the slot of a quiet database on, warns where it keeps much, and looks for schemas that were renamed."""

    def __init__(
        self, options: PostgresSourceOptions, catalog: PostgresCatalog, relations: Relations, clock: Clock
    ) -> None:
        self._options = options
        self._catalog = catalog
        self._relations = relations
        self._clock = clock
        self._looked_at = 0.0
        self._warn_at = options.retained_warn_bytes

    def connected(self) -> None:
        """Begin to count anew."""
        self._looked_at = self._clock.monotonic()

    def look(self, stream: SlotStream | None, lsn: int, *, idle: bool) -> None:
        """Look, if it is time; `lsn` is where the log stands, `idle`: nothing has come."""
        now = self._clock.monotonic()
        if stream is None or now - self._looked_at < self._options.heartbeat_s:
            return
        self._looked_at = now
        try:
            self._relations.look_at_schemas(lsn if idle else self._catalog.insert_lsn())
            if idle and stream.wal_end - lsn >= self._options.heartbeat_bytes:
                self._catalog.heartbeat()
            kept = self._catalog.retained_bytes()
        except SourceUnavailableError:  # the stream finds that too, and mends it
            return
        if kept is not None and kept >= self._warn_at:
            self._warn_at = kept * 2
            logger.warning(
                "The slot keeps much WAL at the source: it frees none that the log does not have. slot=%s bytes=%d",
                *(self._options.slot_name, kept),
            )


def _wait_for_slot(
    options: PostgresSourceOptions,
    catalog: PostgresCatalog,
    clock: Clock,
    patience_s: float,
    stopping: Callable[[], bool],
) -> SlotState | None:
    """Wait for the reader that a lost connection or a killed capture left; return the slot without one.

    Raises SourceSetupError; SourceUnavailableError where `stopping` came first.
    """
    end = clock.monotonic() + patience_s
    while (slot := catalog.slot()) is not None and slot.active_pid is not None:
        if stopping():
            raise SourceUnavailableError(where=options.where, why="the slot is in use, and capture is to stop")
        if clock.monotonic() >= end:
            who = catalog.reader_of_slot(slot.active_pid)
            raise SourceSetupError(
                why=f"the slot {options.slot_name} at {options.where} is in use by process {who}",
                remedy="Stop that program, or set the option slot to a name that is this log's own",
            )
        clock.sleep(PAUSE_SLICE_S)
    return slot


def _end_of(group: Assembled) -> int:
    return group.lsn if isinstance(group, LogicalMessage) else group.end_lsn


def read_event_id(event_id: str) -> WalPosition:
    """Return the position of an event id. Raises PositionLostError for one of another source."""
    try:
        return WalPosition.parse(event_id)
    except ValueError as exc:
        raise PositionLostError(
            event_id=event_id, why=f"it is no position of a PostgreSQL's slot ({exc}): this log is of another source"
        ) from exc
