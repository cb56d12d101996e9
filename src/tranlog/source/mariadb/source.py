"""MariaDB as a source: its binary log, followed transaction by transaction.

Owns the source's life (start, read, lost connections, stop) and the way from a transaction's events to fragments.
Events, rows, connections and the catalog have modules of their own. The hard idea: a transaction is held back until
its commit event is there, in memory or in a temporary file, so a lost connection never leaves half a transaction in
the log: the half is dropped here, and the server is asked again from the last whole one.

Source: design/sources.md, "MariaDB".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.change import NOOP, Fragment, Op, Options, Statement, TableMap
from tranlog.charsets import statement_text
from tranlog.clock import Clock, SystemClock
from tranlog.ddl import touched
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    PositionLostError,
    SourceError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.shard import ShardRule, ShardRuleKind, foreign_key_groups
from tranlog.source.mariadb.branches import PreparedBranches
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.events import (
    HEADER,
    HEADER_BYTES,
    ROWS_EVENTS,
    BinlogTable,
    EventFormatError,
    EventType,
    Xid,
    annotation,
    parse_beside,
    parse_query,
    parse_rows_shape,
    parse_table_map,
    query_of_load,
    rows_unchecked,
    table_map_name,
    table_number,
)
from tranlog.source.mariadb.groups import START_ANEW, EventGroup, GroupAssembler
from tranlog.source.mariadb.history import continue_from
from tranlog.source.mariadb.position import BinlogPosition, StartNow, parse_start
from tranlog.source.mariadb.rows import RowsEncoder, rows_encoder
from tranlog.source.mariadb.stream import BinlogStream
from tranlog.source.mariadb.types import (
    MariadbType,
    alike_in_binlog,
    named_by_catalog,
    shown_columns,
    table_map,
    types_in_binlog,
)
from tranlog.source.packer import TransactionPacker
from tranlog.source.waiting import WaitingEvents
from tranlog.statements import StatementKind, databases_named, statement_kind

logger = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 2.0
_PAUSE_SLICE_S: Final = 0.1
_BRANCHES_EVERY_S: Final = 10.0
_LAYOUTS_MAX: Final = 20_000
_ANNOTATIONS_MAX: Final = 100
_SEQUENCE_COLUMNS: Final = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A table as the running transaction's rows have it. `full` is what stands before full images of a rows event."""

    table: TableMap
    encode: RowsEncoder
    columns: int
    full: bytes
    full_twice: bytes
    transactional: bool | None


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
        self._control = Control(options, patient=lambda: not self._stopping)
        self._catalog = Catalog(options, self._control)
        self._packer = TransactionPacker(
            source_id=options.source_id, rule=options.shard_rule, fragment_bytes=options.fragment_bytes
        )
        self._started = False
        self._stopping = False  # plain, since a signal handler may set it
        self._stream: BinlogStream | None = None
        self._assembler: GroupAssembler | None = None
        self._events: deque[bytes] = deque()
        self._pending: EventGroup | None = None
        self._failure: SourceError | None = None
        self._position = BinlogPosition()
        self._told: BinlogPosition | None = None  # the last position that became a fragment's event id
        self._told_at = 0.0
        self._passed_over = 0  # the timestamp, in ms, of the last transaction that was
        self._lost_at: float | None = None
        self._retry_s = _RETRY_FIRST_S
        self._reconnects = 0
        self._released: str | None = None
        self._branches = PreparedBranches(options.memory_bytes)
        self._branches_at = 0.0
        self._unread: set[Xid] = set()  # prepared when the log began, and not yet met in the binlog
        self._reads_again = False  # whether the stream begins in front of the position, for the sake of branches
        self._layouts: dict[bytes, _Layout | None] = {}
        self._rule = options.shard_rule
        self._keys_known = False
        self._keyless: dict[str, None] = {}
        self._likely: set[str] = set()
        self._charsets: dict[int, str] = {}
        self._collations: dict[int, str] = {}

    # The life of the source.

    def check(self) -> None:
        """Look whether the server is there and set up to be captured, and change nothing.

        Raises SourceSetupError, SourceUnavailableError.
        """
        try:
            self._catalog.check_setup()
        finally:
            self._control.close()

    def start(self, event_id: str | None) -> None:
        """Check the server's set-up and get ready to read what was committed after `event_id`.

        None starts where the option `start` says; the first `read` then yields an empty transaction at once, so that
        the log knows that place before anything happens. Raises SourceSetupError, SourceUnavailableError,
        PositionLostError; then nothing was read.
        """
        self._disconnect()
        self._branches.clear()
        self._unread.clear()
        self._reads_again = True
        self._stopping = False
        self._failure = None
        self._lost_at = None
        self._forget_tables()
        try:
            self._start(event_id)
        except SourceError as exc:
            self._failure = exc
            self._disconnect()
            raise
        self._started = True

    def _start(self, event_id: str | None) -> None:
        if event_id is None:
            self._catalog.check_setup()
            self._position = self._catalog.first_position()
            if self._position.prepared is not None:
                self._unread = set(self._catalog.prepared_xids())
            self._told = None
        else:
            self._position = _read_event_id(event_id)
            # Rule `table` names shards after the foreign keys of now: what follows must not run beside what was
            # named before, so an empty, serial transaction stands between.
            self._told = None if self._rule.kind is ShardRuleKind.TABLE else self._position
        self._told_at = self._clock.monotonic()
        self._connect()
        self._catalog.note_present(now=event_id is None and isinstance(parse_start(self.options.start), StartNow))

    def _connect(self) -> None:
        """Check the set-up and the position, and open the stream there."""
        self._catalog.check_setup()
        self._position = continue_from(self._catalog, self.options, self._position, accepted=self.accept_server)
        opened_at = self._position.prepared if self._reads_again else None
        if opened_at is not None:
            self._branches.clear()
        self._know_keys()
        self._charsets, self._collations = self._catalog.collations()
        try:
            begins = self._position.gtids if opened_at is None else opened_at
            stream = BinlogStream(self.options, msgspec.structs.replace(self._position, gtids=begins))
        except PositionLostError as exc:
            if opened_at is None:
                raise
            raise self._catalog.lost_branches(self._position, exc.why) from exc
        self._stream = stream
        if self._stopping:  # `stop` sets this first, then looks for the stream
            stream.interrupt()
        self._assembler = GroupAssembler(
            self._position,
            new_store=lambda: WaitingEvents(self.options.memory_bytes, self.options.spool_directory),
            transaction_bytes_max=self.options.transaction_bytes_max,
            captures=self.options.captures,
            opened_at=opened_at,
        )
        self._reads_again = opened_at is not None
        if self._reads_again and not self._assembler.repeats:
            self._know_branches()
        if self.accept_server:
            self.accept_server = False
            self._told = None  # so that the log knows it before anything else
        self._lost_at = None
        self._retry_s = _RETRY_FIRST_S

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._control.close()
        self._events.clear()
        if self._assembler is not None:
            self._assembler.close()
            self._assembler = None
        self._drop_pending()

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._pending.events.close()
            self._pending = None

    def release(self, event_id: str) -> None:
        """Note that the log has everything up to and including `event_id` durable. The server needs no word of it."""
        self._released = event_id

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
        self._branches.clear()

    def status(self) -> MariadbSourceStatus:
        """Return where this source stands."""
        return MariadbSourceStatus(
            source_id=self.source_id,
            where=self.options.where,
            connected=self._stream is not None,
            position=str(self._position),
            released=self._released,
            reconnects=self._reconnects,
            keyless_tables=tuple(self._keyless),
            prepared=self._branches.names(),
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
            if self._told is None and self._reads_again:
                self._next_group(deadline - self._clock.monotonic())
            if self._told is None and not self._reads_again:
                yield self._position_fragment()
            while handed < self.options.read_bytes and not self._stopping:
                group = self._next_group(0.0 if handed else deadline - self._clock.monotonic())
                if group is None:
                    break
                begun = False
                try:
                    for fragment in self._fragments(group):
                        handed += len(fragment.payload) + 1
                        if fragment.last:
                            self._done(group, told=True)
                        begun = True
                        yield fragment
                except SourceUnavailableError as exc:  # a question to the catalog found nobody
                    if begun:
                        raise
                    self._lose(exc)
                    continue
                if self._pending is group:
                    self._done(group, told=False)
                    handed += group.size  # so that a read over what is not captured ends as well
                    if self._is_time_to_tell():
                        yield self._position_fragment()
            # A read that yields nothing says that nothing is left: one that went far without a change must yield.
            if self._is_time_to_tell() or (handed >= self.options.read_bytes and self._told != self._position):
                yield self._position_fragment()
        except SourceUnavailableError:
            raise
        except SourceError as exc:
            self._failure = exc
            raise
        except (DiskFullError, DiskFailedError):
            # Events of a waiting transaction are lost: the next read fetches it anew.
            self._disconnect()
            raise

    def _end_branch(self, group: EventGroup) -> None:
        """Hold what an XA transaction prepares, forget what it ends; forget the events of all others."""
        if group.xa == "prepare" and group.changes:
            self._branches.hold(group)
            return
        group.events.close()
        if group.xa is not None and group.gtid.xid is not None:
            self._branches.end(group.gtid.xid)

    def _know_branches(self) -> None:
        """Take note that all branches that are prepared at the position have been read."""
        self._reads_again = False
        if self._unread:
            raise SourceSetupError(
                why=f"{self.options.where} has prepared XA transactions that its binlog does not hold any more: "
                + "; ".join(sorted(map(str, self._unread))),
                remedy="End them by XA COMMIT or XA ROLLBACK, then start the log",
            )
        self._position = msgspec.structs.replace(self._position, prepared=self._branches.oldest())

    def _after(self, group: EventGroup) -> BinlogPosition:
        """Return the position behind a transaction, with the place of the oldest branch that is then prepared."""
        prepared = self._branches.oldest(but=group.gtid.xid)
        if group.xa == "prepare" and group.changes and prepared is None:
            prepared = group.behind
        return group.position if prepared is None else msgspec.structs.replace(group.position, prepared=prepared)

    def _done(self, group: EventGroup, *, told: bool) -> None:
        self._pending = None
        self._position = self._after(group)
        self._end_branch(group)
        if told:
            self._told = self._position
            self._told_at = self._clock.monotonic()
        else:
            self._passed_over = group.timestamp * 1000

    def _is_time_to_tell(self) -> bool:
        if self._branches:
            self._warn_of_branches()
        if self._told == self._position:
            return False
        return self._clock.monotonic() - self._told_at >= self.options.position_interval_s

    def _warn_of_branches(self) -> None:
        """Say once of each branch that it waits for long, and that the binlog in front of it is purged."""
        now = self._clock.monotonic()
        if now < self._branches_at:
            return
        self._branches_at = now + _BRANCHES_EVERY_S
        oldest = self._catalog.oldest_file()
        for text in self._branches.warnings(self._clock.now_ms() // 1000, self.options.xa_warn_s, oldest):
            logger.warning("%s", text)

    def _position_fragment(self) -> Fragment:
        """Return an empty transaction that carries the position on."""
        self._told = self._position
        self._told_at = self._clock.monotonic()
        self._packer.begin(self._rule)
        return self._packer.finish(
            event_id=str(self._position),
            tstamp=self._passed_over or self._clock.now_ms(),
            metadata=((NOOP, "position"), ("dbms_type", "mariadb")),
        )

    def _next_group(self, wait_s: float) -> EventGroup | None:
        """Return the next whole transaction; None when there is none within `wait_s`. It stays pending until done."""
        if self._pending is not None:
            return self._pending
        deadline = self._clock.monotonic() + wait_s
        while True:
            assembler = self._assembler
            while self._events:
                assert assembler is not None
                event = self._events.popleft()
                try:
                    group = assembler.feed(event)
                except EventFormatError as exc:
                    raise self._damaged(exc) from exc
                if group is not None and group.again:
                    self._end_branch(group)
                    if group.gtid.xid is not None:
                        self._unread.discard(group.gtid.xid)
                    if not assembler.repeats:
                        self._know_branches()
                elif group is not None:
                    self._pending = group
                    return group
            if self._stopping:
                return None
            left = max(0.0, deadline - self._clock.monotonic())
            if self._stream is None:
                if not self._reconnect(left):
                    return None
                continue
            try:
                # What has begun to come is waited for, however long a large event takes: the server sends it whole.
                events = self._stream.take(max(left, _PAUSE_SLICE_S) if self._is_inside() else left)
            except EventFormatError as exc:
                raise self._damaged(exc) from exc
            except PositionLostError as exc:  # the stream knows where it was opened, not how far the log has come
                raise PositionLostError(event_id=str(self._position), why=exc.why) from exc
            except SourceUnavailableError as exc:
                self._lose(exc)
                continue
            if not events and not self._is_inside():
                return None
            self._events.extend(events)

    def _is_inside(self) -> bool:
        """Whether a part of what belongs together has come, and its end has not."""
        if self._stream is None or self._assembler is None:
            return False
        return self._reads_again or self._assembler.inside or self._stream.inside

    def _lose(self, error: SourceUnavailableError) -> None:
        """Drop the connection, and with it a transaction whose end had not come."""
        logger.warning("The connection to the source was lost. where=%s why=%s", self.options.where, error.why)
        self._disconnect()
        self._lost_at = self._clock.monotonic()

    def _reconnect(self, wait_s: float) -> bool:
        """Try to connect until it works or `wait_s` is over. Raises what `start` raises, the server's absence late."""
        deadline = self._clock.monotonic() + wait_s
        while not self._stopping:
            try:
                self._forget_tables()  # the server may have come back with other tables
                self._connect()
            except SourceUnavailableError:
                now = self._clock.monotonic()
                if self._lost_at is None:
                    self._lost_at = now
                if now - self._lost_at >= self.options.reconnect_s:
                    raise
                self._control.close()
                self._pause(min(self._retry_s, max(0.0, deadline - now)))
                self._retry_s = min(self._retry_s * 2, _RETRY_LONGEST_S)
                if self._clock.monotonic() >= deadline:
                    return False
            else:
                self._reconnects += 1
                logger.warning(
                    "The source is connected again. where=%s position=%s", self.options.where, self._position
                )
                return True
        return False

    def _pause(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while not self._stopping and (left := end - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, _PAUSE_SLICE_S))

    def _damaged(self, error: EventFormatError) -> UnsupportedEventError:
        assembler = self._assembler
        position = assembler.position if assembler is not None else self._position
        return UnsupportedEventError(
            what=f"an event behind it in {position.file or 'the binlog'} is damaged or of a form that is not known: "
            f"{error.why}",
            event_id=str(position),
            remedy="Check the file with `mariadb-binlog --verify-binlog-checksum`; if it is whole, start capture again",
        )

    # From events to fragments.

    def _fragments(self, group: EventGroup) -> Iterator[Fragment]:
        """Yield a transaction's fragments; none when nothing in it is captured."""
        held = self._branches.of(group.gtid.xid) if group.xa == "commit" else group
        if group.void or held is None or group.xa in ("prepare", "rollback"):
            return
        if not (self._keys_known or group.gtid.standalone):
            self._know_keys()
        packer = self._packer
        packer.begin(self._rule)
        event_id = str(self._after(group))
        tstamp = group.timestamp * 1000
        layouts: dict[int, _Layout | None] = {}
        annotations: list[tuple[str, str]] = []
        beside: list[tuple[str, str]] = []
        statements = 0
        taken_back = bool(held.taken_back)
        for number, event in enumerate(held.events):
            kind = event[4]
            if kind == _TABLE_MAP:
                layouts[table_number(event)] = self._layout(event, group)
            elif kind in _ROWS:
                try:
                    layout = layouts[table_number(event)]
                except KeyError as exc:
                    raise self._broken(group, "rows of a table without a table map") from exc
                if layout is None:
                    continue
                if taken_back and held.is_taken_back(number):
                    self._check_undone(layout, group)
                    continue
                yield from self._rows(event, layout, group, event_id, tstamp)
            elif kind == _QUERY:
                statement, kind_of = self._statement(event, group, tuple(beside))
                beside.clear()
                # What defines a table commits by itself: a rollback behind it takes nothing back.
                undone = taken_back and kind_of is not StatementKind.DDL and held.is_taken_back(number)
                if undone or (kind_of is StatementKind.ROWS and self.options.statements == "stop"):
                    if self._is_elsewhere(statement):
                        continue
                    if undone:
                        raise self._refused(group, f"the statement {_short(statement)} in a part that was rolled back")
                    raise self._refused_statement(group, statement)
                statements += 1
                if kind_of in (StatementKind.DDL, StatementKind.EMPTIES) and not self._concerns(statement, group):
                    continue
                self._catalog.note_statement(statement.schema, _text(statement))
                cut = packer.add(statement, event_id=event_id, tstamp=tstamp)
                if cut is not None:
                    yield cut
            elif kind == _LOAD:
                statement, _ = self._statement(query_of_load(event), group, ())
                if not self._is_elsewhere(statement):
                    raise self._refused_load(group, statement)
            elif kind == _ANNOTATE_ROWS:
                if len(annotations) < _ANNOTATIONS_MAX:
                    annotations.append(("annotate", annotation(event)))
            else:  # INTVAR, RAND, USER_VAR: what a statement that changes rows needs beside its text
                try:
                    beside += parse_beside(event, self._charsets, self._collations)
                except EventFormatError as exc:
                    raise self._broken(group, exc.why) from exc
        if beside:
            raise self._broken(group, "the settings of a statement without the statement")
        if statements:
            self._forget_tables()
        if packer.emitted or len(packer):
            yield packer.finish(event_id=event_id, tstamp=tstamp, metadata=(*self._metadata(group), *annotations))

    def _metadata(self, group: EventGroup) -> Options:
        gtid = group.gtid.gtid
        metadata = (("dbms_type", "mariadb"), ("server_id", str(gtid.server_id)), ("gtid_domain", str(gtid.domain)))
        commit_id = group.gtid.group_commit_id
        return metadata if commit_id is None else (*metadata, ("group_commit_id", str(commit_id)))

    def _rows(self, event: bytes, layout: _Layout, group: EventGroup, event_id: str, tstamp: int) -> Iterator[Fragment]:
        operation = _OPERATIONS[event[4]]
        full = layout.full_twice if operation is Op.UPDATE else layout.full
        if event[4] < _FIRST_OF_VERSION_2 and event.startswith(full, _AFTER_TABLE_NUMBER):
            images_at = _AFTER_TABLE_NUMBER + len(full)
        else:
            shape = parse_rows_shape(event)
            if shape.columns != layout.columns:
                raise self._broken(
                    group, f"rows of {shape.columns} columns for {layout.table.name}, which has {layout.columns}"
                )
            if not shape.full:
                raise self._refused(
                    group,
                    f"rows of {layout.table.name} without all their columns: a session has set binlog_row_image",
                    "SET GLOBAL binlog_row_image = 'FULL', and find the program that changes it for its session. ",
                )
            images_at = shape.images_at
        try:
            images = layout.encode(event, images_at)
        except EventFormatError as exc:
            raise self._broken(group, exc.why) from exc
        table = layout.table
        if operation is Op.UPDATE:
            if len(images) % 2:
                raise self._broken(group, f"an update of {table.name} with an odd number of images")
            images = [before + after for before, after in zip(images[::2], images[1::2], strict=True)]
        return self._packer.add_encoded_rows(
            table, operation, images, event_id=event_id, tstamp=tstamp, unchecked=rows_unchecked(event)
        )

    def _layout(self, event: bytes, group: EventGroup) -> _Layout | None:
        key = event[_AFTER_TABLE_NUMBER - 2 :]
        try:
            return self._layouts[key]
        except KeyError:
            pass
        try:
            layout = self._make_layout(event, group)
        except EventFormatError as exc:
            raise self._broken(group, exc.why) from exc
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[key] = layout
        return layout

    def _make_layout(self, event: bytes, group: EventGroup) -> _Layout | None:
        schema, name = table_map_name(event)
        if not self.options.captures(schema):
            return None
        binlog_table = parse_table_map(event)
        known = self._catalog.table(schema, name)
        if binlog_table.complete:
            then, certain = self._catalog.as_of(schema, name, HEADER.unpack_from(event)[0])
            types = types_in_binlog(binlog_table, collations=self._charsets, known=then)
            told = {column.name: kind.source_type for column, kind in zip(binlog_table.columns, types, strict=True)}
            for column in alike_in_binlog(told).keys() - certain:
                self._check_alike(f"{schema}.{name}.{column}", told[column], then.types.get(column), group)
        else:
            binlog_table, types = self._named(binlog_table, event, group)
        shown = shown_columns(binlog_table, known)
        # By its columns, unless a table of today has the same.
        sequence = tuple(column.name for column in binlog_table.columns) == _SEQUENCE_COLUMNS and (
            known is None or known.sequence or tuple(known.types) != _SEQUENCE_COLUMNS
        )
        table = table_map(
            schema,
            name,
            [
                kind.column(column.name, nullable=column.nullable)
                for kind, column in zip(types[:shown], binlog_table.columns[:shown], strict=True)
            ],
            primary_key=binlog_table.primary_key,
            known=known,
            sequence=sequence,
        )
        if not (table.primary_key or sequence) and table.name not in self._keyless:
            self._keyless[table.name] = None
            logger.warning(
                "A table has no primary key: its rows are found by all their values, which is slow. table=%s",
                table.name,
            )
        count = len(types)
        bits = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        head = bytes([count]) if count < 251 else b"\xfc" + count.to_bytes(2, "little")
        return _Layout(
            table=table,
            encode=rows_encoder(binlog_table, types, shown=shown),
            columns=count,
            full=head + bits,
            full_twice=head + bits + bits,
            transactional=None if known is None else known.transactional,
        )

    def _check_alike(self, column: str, declared: str, now: str | None, group: EventGroup) -> None:
        """Refuse a column that may be a UUID or a BINARY where nothing tells which; name one that is likely."""
        if declared != now:
            raise self._refused(
                group,
                f"column {column}, which may be a UUID, an INET or a BINARY: the binlog does not tell, and the catalog "
                "does not have the table as it was then; that",
                f'Say what it was, as in column_types = ["{column}=uuid"], and start capture again. ',
            )
        if column not in self._likely:
            self._likely.add(column)
            logger.warning(
                "A column is taken for what it is now, since the binlog does not tell a UUID from a BINARY and its "
                "table may have changed; column_types says otherwise. column=%s type=%s transaction=%s",
                *(column, declared, group.gtid.gtid),
            )

    def _named(
        self, table: BinlogTable, event: bytes, group: EventGroup
    ) -> tuple[BinlogTable, tuple[MariadbType, ...]]:
        """Return a table whose event lacks the names of its columns with those that the catalog still has for it."""
        catalog = self._catalog
        found = named_by_catalog(
            table,
            catalog.columns(table.schema, table.table),
            catalog.primary_key(table.schema, table.table),
            self._charsets,
        )
        # Asked last: what was changed between the questions shows.
        if found is None or not catalog.unchanged_since(table.schema, table.table, HEADER.unpack_from(event)[0]):
            raise self._refused(
                group,
                f"rows of {table.schema}.{table.table} without the names of their columns: they were written while "
                "binlog_row_metadata was not FULL, and the catalog does not have the table as it was then; that",
                "SET GLOBAL binlog_row_metadata = 'FULL'. ",
            )
        return found

    def _statement(self, event: bytes, group: EventGroup, beside: Options) -> tuple[Statement, StatementKind]:
        """Return a statement, and what kind it is."""
        try:
            query = parse_query(event)
        except EventFormatError as exc:
            raise self._broken(group, exc.why) from exc
        charset = self._charsets.get(query.collation_client or -1, "utf8mb4")
        text = statement_text(charset, query.text)
        options: list[tuple[str, str]] = []
        for name, value in query.settings:
            if name == "collation_client":
                options.append(("character_set_client", charset))
            elif name.startswith("collation_"):
                options.append((name, self._collations.get(int(value), value)))
            else:
                options.append((name, value))
        if query.unread:
            options.append(("status_variables", query.unread.hex()))
        readable = text if isinstance(text, str) else text.decode("latin-1")
        kind = statement_kind(readable, marked_ddl=group.gtid.ddl)
        statement = Statement(
            schema=query.schema,
            sql=text,
            ddl=kind is StatementKind.DDL,
            timestamp=HEADER.unpack_from(event)[0] * 1000,
            error_code=query.error_code,
            options=(*options, *beside),
        )
        return statement, kind

    def _concerns(self, statement: Statement, group: EventGroup) -> bool:
        """Whether DDL changes what is captured, by the names in it; users and the like are passed on.

        Raises UnsupportedEventError for one that reaches from captured databases into others.
        """
        found = touched(_text(statement), schema=statement.schema)
        if found is None:  # no form that we know: as a replica judges it
            return not statement.schema or self.options.captures(statement.schema)
        others = [schema for schema in found.databases if not self.options.captures(schema)]
        if not others or len(others) == len(found.databases):
            return not others
        raise self._refused(
            group,
            f"the statement {_short(statement)} changes several databases, of which {', '.join(others)} is not "
            "captured; it",
            "Do at the targets what it does there, or add that database to the option databases. ",
        )

    def _is_elsewhere(self, statement: Statement) -> bool:
        """Whether a statement that changes rows by itself does so in databases that are not captured, by its text.

        As a replica with replicate_do_db it is judged by the database that it ran in; and by the ones that it names.
        """
        captures = self.options.captures
        named = databases_named(_text(statement))
        if (captures(statement.schema) if statement.schema else not named) or any(map(captures, named)):
            return False
        logger.warning(
            "A statement in the place of its rows was passed over: it names no captured database. schema=%s "
            "statement=%s",
            statement.schema,
            _short(statement),
        )
        return True

    def _check_undone(self, layout: _Layout, group: EventGroup) -> None:
        """Let rows that were rolled back be left out only where a rollback takes them back.

        The server writes rows of tables without transactions in transactions of their own. Where it did not, whether
        they stayed could not be told.
        """
        if layout.transactional is False:
            raise self._refused(
                group, f"a rollback over rows of {layout.table.name}, whose engine has no transactions,"
            )

    # What tables are like, and which belong together.

    def _forget_tables(self) -> None:
        self._layouts.clear()
        self._catalog.forget_tables()
        self._keys_known = False

    def _know_keys(self) -> None:
        """Read the foreign keys where the shard rule or the refusal of cascades needs them."""
        by_table = self.options.shard_rule.kind is ShardRuleKind.TABLE
        if by_table or self.options.cascades == "refuse":
            edges = self._catalog.foreign_key_edges()
            if by_table:
                self._rule = ShardRule(kind=ShardRuleKind.TABLE, groups=foreign_key_groups(edges))
        self._keys_known = True

    # Refusals.

    def _refused(self, group: EventGroup, what: str, remedy: str = "") -> UnsupportedEventError:
        return UnsupportedEventError(
            what=f"{what} cannot be captured (transaction {group.gtid.gtid}, {_place(group)})",
            event_id=str(self._position),
            remedy=remedy + START_ANEW,
        )

    def _refused_statement(self, group: EventGroup, statement: Statement) -> UnsupportedEventError:
        return self._refused(
            group,
            f"the statement {_short(statement)} stands in the place of the rows that it changed; it",
            "SET GLOBAL binlog_format = 'ROW', and end the sessions that are open, which keep the old format; look for "
            "programs that set it for their session, and for tables with a transaction-precise period. To have such "
            'statements in the log as text, which only a MariaDB can apply, set the option statements = "record". ',
        )

    def _refused_load(self, group: EventGroup, statement: Statement) -> UnsupportedEventError:
        return self._refused(
            group,
            f"a LOAD DATA in statement format, {_short(statement)},",
            "SET GLOBAL binlog_format = 'ROW', and end the sessions that are open: they keep the old format. ",
        )

    def _broken(self, group: EventGroup, why: str) -> UnsupportedEventError:
        return UnsupportedEventError(
            what=f"transaction {group.gtid.gtid} ({_place(group)}) is damaged or of a form that is not known: {why}",
            event_id=str(self._position),
            remedy="Check the file with `mariadb-binlog --verify-binlog-checksum`; if it is whole, start capture again",
        )


_ROWS: Final = frozenset(int(kind) for kind in ROWS_EVENTS)
_OPERATIONS: Final = {
    int(kind): {"write": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}[operation]
    for kind, (operation, _) in ROWS_EVENTS.items()
}
# Plain numbers: a member of an enum costs several times as much to look up and to compare.
_TABLE_MAP: Final = int(EventType.TABLE_MAP)
_QUERY: Final = int(EventType.QUERY)
_ANNOTATE_ROWS: Final = int(EventType.ANNOTATE_ROWS)
_LOAD: Final = int(EventType.EXECUTE_LOAD_QUERY)
_FIRST_OF_VERSION_2: Final = int(EventType.WRITE_ROWS)
_AFTER_TABLE_NUMBER: Final = HEADER_BYTES + 8


def _place(group: EventGroup) -> str:
    return f"{group.position.file}, up to offset {group.position.offset}"


def _text(statement: Statement) -> str:
    return statement.sql if isinstance(statement.sql, str) else statement.sql.decode("latin-1")


def _short(statement: Statement) -> str:
    text = _text(statement)
    return repr(text if len(text) <= 100 else text[:97] + "...")


def _read_event_id(event_id: str) -> BinlogPosition:
    try:
        return BinlogPosition.parse(event_id)
    except ValueError as exc:
        raise PositionLostError(
            event_id=event_id, why=f"it is no position in a MariaDB's binlog ({exc}): this log is of another source"
        ) from exc
