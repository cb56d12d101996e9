"""MariaDB as a source: its binary log, followed transaction by transaction.

Owns the source's life (start, read, stop), and what position the log was told last. Transactions come from `following`
and are made into fragments by `fragments`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from tranlog.change import Fragment
from tranlog.clock import Clock, SystemClock
from tranlog.errors import DiskFailedError, DiskFullError, PositionLostError, SourceError, SourceUnavailableError
from tranlog.shard import ShardRuleKind
from tranlog.source.mariadb.alike import AlikeColumns
from tranlog.source.mariadb.captured import CapturedTables
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.events import Xid
from tranlog.source.mariadb.following import BinlogFollower
from tranlog.source.mariadb.fragments import FragmentMaker
from tranlog.source.mariadb.groups import EventGroup
from tranlog.source.mariadb.lone_tables import LoneTables
from tranlog.source.mariadb.position import BinlogPosition, StartNow, parse_gtids, parse_start
from tranlog.source.mariadb.server_binlog import ServerBinlog
from tranlog.source.mariadb.snapshot import MariadbSnapshot
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.source.source import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbSourceStatus:
    """Where a source stands: `position` is what was handed out, `released` what the log has durable."""

    source_id: str
    where: str
    connected: bool
    position: str
    released: str | None
    reconnects: int
    keyless_tables: tuple[str, ...]
    prepared: tuple[str, ...]
    """XA transactions with captured changes that are prepared, neither committed nor rolled back: xid and tables."""


class MariadbSource:
    """Follows one MariaDB server's binary log.

    Shape: each transaction of the binlog once, in its order, with the position after it as event id. What changes
    nothing that is captured is passed over, and the position moves by an empty transaction now and then.
    Large transactions come as several fragments, and only after their commit is here; `read` ends only between
    transactions. When an iteration is given up, or fails, inside a transaction, that transaction is handed out
    again whole, from its first fragment: by the next `read`, or after the next `start`.
    The server keeps its binlog by its own rule (`binlog_expire_logs_seconds`), so `release` frees nothing there.
    Threads: one, except `stop`.
    """

    def __init__(self, options: MariadbSourceOptions, *, clock: Clock | None = None) -> None:
        options.check()
        self.options = options
        self.source_id = options.source_id
        self.accept_server = False
        """Set by a caller on an operator's word: the next connection takes the server for one of the log's history."""
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._control = Control(options, patient=lambda: not self._follower.stopping)
        self._binlog = ServerBinlog(options, self._control)
        catalog = Catalog(options, self._control)
        self._alike = AlikeColumns(options, catalog)
        self._captured = CapturedTables(options, catalog, self._alike, LoneTables(catalog, self._binlog))
        self._follower = BinlogFollower(options, self._clock, self._control, self._binlog, self._captured)
        self._maker = FragmentMaker(options, self._captured, self._alike)
        self._started = False
        self._failure: SourceError | None = None
        self._told: BinlogPosition | None = None  # the last position that became a fragment's event id
        self._told_at = 0.0
        self._passed_over = 0  # the timestamp, in ms, of the last transaction that was
        self._released: str | None = None

    # The life of the source.

    def check(self) -> None:
        """Look whether the server is there and set up to be captured, and change nothing.

        Raises SourceSetupError, SourceUnavailableError.
        """
        with closing(self._control):
            self._binlog.check_setup()

    def start(self, event_id: str | None) -> None:
        """Check the server's set-up and get ready to read what was committed after `event_id`.

        None starts where the option `start` says; the first `read` then yields an empty transaction at once, so that
        the log knows that place before anything happens. Raises SourceSetupError, SourceUnavailableError,
        PositionLostError; then nothing was read.
        """
        self._follower.close()
        self._follower.stopping = False
        self._failure = None
        self._captured.forget()
        try:
            self._start(event_id)
        except SourceError as exc:
            self._failure = exc
            self._follower.close()
            raise
        self._started = True

    def _start(self, event_id: str | None) -> None:
        prepared: list[Xid] = []
        if event_id is None:
            self._binlog.check_setup()
            position = self._binlog.first_position()
            if position.prepared is not None:
                prepared = self._binlog.prepared_xids()
            self._told = None
        else:
            position = read_event_id(event_id)
            # Rule `table` names shards after the foreign keys of now: what follows must not run beside what was
            # named before, so an empty, serial transaction stands between.
            self._told = None if self.options.shard_rule.kind is ShardRuleKind.TABLE else position
        self._told_at = self._clock.monotonic()
        self._follower.start(position, prepared, accepted=self.accept_server)
        if self.accept_server:
            self.accept_server = False
            self._told = None  # so that the log knows it before anything else
        self._alike.note_present(now=event_id is None and isinstance(parse_start(self.options.start), StartNow))

    def release(self, event_id: str) -> None:
        """Note that the log has everything up to and including `event_id` durable. The server needs no word of it."""
        self._released = event_id

    def stop(self) -> None:
        """Make a waiting `read` end soon, and later ones at once, until the next `start`.

        From any thread, and from a signal handler.
        """
        self._follower.stop()

    def close(self) -> None:
        """Free connections and temporary files; closing twice is harmless."""
        self._follower.close()
        self._follower.forget_branches()

    def status(self) -> MariadbSourceStatus:
        """Return where this source stands."""
        return MariadbSourceStatus(
            source_id=self.source_id,
            where=self.options.where,
            connected=self._follower.connected,
            position=str(self._follower.position),
            released=self._released,
            reconnects=self._follower.retry.reconnects,
            keyless_tables=tuple(self._captured.keyless),
            prepared=self._follower.prepared,
        )

    # Reading.

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        """Yield the fragments that are there, waiting up to `timeout_s` for the first; end when none is left for now.

        Shape: whole transactions in commit order. Ends between transactions, also after `read_bytes`.
        A lost connection is mended from the last whole transaction, without a repeat, for up to `reconnect_s`.
        Raises: SourceUnavailableError after that; PositionLostError, SourceSetupError when the server came back
        another; UnsupportedEventError, UnsupportedTypeError for what cannot be carried: again at each `read`, until
        the next `start`.
        """
        if self._failure is not None:
            raise self._failure
        assert self._started, "start comes first"
        deadline = self._clock.monotonic() + timeout_s
        handed = 0
        try:
            if self._told is None and self._follower.reads_again:
                self._follower.next_group(deadline - self._clock.monotonic())
            if self._told is None and not self._follower.reads_again:
                yield self._position_fragment()
            while handed < self.options.read_bytes and not self._follower.stopping:
                group = self._follower.next_group(0.0 if handed else deadline - self._clock.monotonic())
                if group is None:
                    break
                begun = done = False
                try:
                    for fragment in self._fragments(group):
                        handed += len(fragment.payload) + 1
                        if fragment.last:
                            self._follower.done(group)
                            self._tell()
                            done = True
                        begun = True
                        yield fragment
                except SourceUnavailableError as exc:  # a question to the catalog found nobody
                    if begun:
                        raise
                    self._follower.lose(exc)
                    continue
                if not done:
                    self._follower.done(group)
                    self._passed_over = group.timestamp * 1000
                    handed += group.size  # so that a read over what is not captured ends as well
                    if self._is_time_to_tell():
                        yield self._position_fragment()
            # A read that yields nothing says that nothing is left: one that went far without a change must yield.
            if self._is_time_to_tell() or (handed >= self.options.read_bytes and self._told != self._follower.position):
                yield self._position_fragment()
        except SourceUnavailableError:
            raise
        except SourceError as exc:
            self._failure = exc
            raise
        except (DiskFullError, DiskFailedError):
            # Events of a waiting transaction are lost: the next read fetches it anew.
            self._follower.close()
            raise

    def end(self) -> str:
        """Return the GTIDs at which the binlog ends by now. Raises SourceUnavailableError."""
        return str(self._control.rows("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])

    def has_given(self, end: str) -> bool:
        """Whether `read` has given, or passed over, everything up to these GTIDs."""
        return self._follower.position.covers(BinlogPosition(gtids=parse_gtids(end)))

    # For loads.

    def begins_earlier(self) -> bool:
        """Whether the option `start` says so."""
        return self.options.start != "now"

    def reader(self) -> MariadbTables:
        """Return what reads the tables as they are now."""
        return MariadbTables(self.options)

    def snapshot(self) -> MariadbSnapshot:
        """Return a snapshot of now; see `LoadableSource.snapshot`."""
        return MariadbSnapshot(self.options)

    def drop_snapshot(self) -> None:
        """Do nothing: one is taken at once."""

    def has_reached(self, snapshot: Snapshot) -> bool:
        """Whether `read` has given, or passed over, all that the snapshot has."""
        assert isinstance(snapshot, MariadbSnapshot)
        return self._follower.position.covers(snapshot.position)

    def _fragments(self, group: EventGroup) -> Iterator[Fragment]:
        transaction = self._follower.transaction(group)
        return iter(()) if transaction is None else self._maker.fragments(transaction)

    def _tell(self) -> None:
        """Note that the log is told the position."""
        self._told = self._follower.position
        self._told_at = self._clock.monotonic()

    def _is_time_to_tell(self) -> bool:
        self._follower.warn_of_branches()
        if self._told == self._follower.position:
            return False
        return self._clock.monotonic() - self._told_at >= self.options.position_interval_s

    def _position_fragment(self) -> Fragment:
        """Return an empty transaction that carries the position on."""
        self._tell()
        return self._maker.empty(self._follower.position, self._passed_over or self._clock.now_ms())


def read_event_id(event_id: str) -> BinlogPosition:
    """Return the position of an event id. Raises PositionLostError for one of another source."""
    try:
        return BinlogPosition.parse(event_id)
    except ValueError as exc:
        raise PositionLostError(
            event_id=event_id, why=f"it is no position in a MariaDB's binlog ({exc}): this log is of another source"
        ) from exc
