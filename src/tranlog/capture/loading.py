"""Loads, carried out: chunks of tables into the log, each exactly where its rows were read.

Owns when a chunk is due and what it becomes. What a load has done is in the log (`loads`), which are wanted in
`load_requests`. The hard idea: a snapshot says which transactions of the stream it covers. Capture goes on with the
stream until all of them are in the log, appends the rows, and goes on; so nothing needs a lock, and a kill costs the
chunk at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from typing import Final

import msgspec

from tranlog.capture.load_requests import LoadRequest, read_order, read_requests, remove_request, write_request
from tranlog.change import Fragment, Op, TableMap
from tranlog.clock import Clock
from tranlog.errors import PayloadError, SourceError, SourceUnavailableError
from tranlog.gaps import gap_of, load_again
from tranlog.ids import Seqno
from tranlog.loads import (
    Key,
    KeyRange,
    LoadBegin,
    LoadChunk,
    LoadEnd,
    LoadMark,
    LoadProgress,
    LoadStep,
    is_key,
    joined,
    key_text,
    mark_of,
    parents_first,
    parse_key,
)
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.row_bytes import decode_row
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.source.reconnecting import busy
from tranlog.source.source import LoadableSource, Snapshot, SnapshotWait, Source
from tranlog.write_item import encode_write_set
from tranlog.write_set import WriteKind

logger = logging.getLogger(__name__)

_ROWS_FIRST: Final = 1_000
_GROWTH: Final = 10
"""So many times as many rows a chunk has at most as the one before, whose rows may have been small by chance."""
_ROWS_LEAST: Final = 100
_ROWS_MOST: Final = 100_000
_CHUNK_BYTES: Final = 16 << 20
"""A chunk has so many rows as were of this size in the one before."""
_FAILURES_MAX: Final = 3
"""So often in a row a table's chunk may fail before the table is given up."""
_PAUSE_S: Final = 1.0
"""After a chunk that failed."""
_RULE: Final = ShardRule(kind=ShardRuleKind.SCHEMA)


class Loading:
    """The loads of one capture. Threads: the capture's."""

    def __init__(self, source: Source, log: Log, clock: Clock, load: tuple[str, ...] | None) -> None:
        """`load`: tables, () for all, None for none, that are loaded again by themselves when changes are missing."""
        self._covered = load
        self._after_gaps: dict[str, frozenset[str]] = {}  # the loads that were asked for so and have not begun
        self._source = source if isinstance(source, LoadableSource) else None
        self._source_id = source.source_id
        self._log = log
        self._clock = clock
        self._request: LoadRequest | None = None
        self._snapshot: Snapshot | None = None
        self._limit = _ROWS_FIRST
        self._chunk_ended = 0.0
        self._asked = False  # whether the source is taking a snapshot
        self._failures = 0
        self._not_before = 0.0
        self._is_new = True  # whether it is not known yet that the log has captured something, or loaded

    @property
    def waits(self) -> bool:
        """Whether a snapshot is open, up to which the stream is to be read soon, or is being taken."""
        return self._snapshot is not None or self._asked

    @property
    def is_open(self) -> bool:
        """Whether a snapshot is open."""
        return self._snapshot is not None

    def resume(self) -> None:
        """Take up the load that is wanted and not at its end, from what the log says. Raises LogError, SourceError.

        One that the log does not have yet begins here. Between its first step and its rows nothing of it counts.
        """
        self.drop()
        self._request = None
        requests = read_requests(self._log.path, self._log.disk)
        if self._is_new:
            self._is_new = False
            if self._log.last_event_id() is None and not self._has_load():
                self._name_uncovered(requests)
        if not requests:
            return
        if self._source is None:
            logger.warning("this kind of source cannot be loaded: the load waits load=%s", requests[0].load)
            return
        request = requests[0]
        self._after_gaps.pop(request.load, None)
        progress = request.progress
        with self._log.cursor() as cursor:
            cursor.seek(Seqno(max(request.since, self._log.first_seqno, 0)))
            while (header := cursor.next_header()) is not None:
                if header.shard_id != UNKNOWN_SHARD:
                    continue
                *_, raw = cursor.current().payloads()
                mark = mark_of(decode(raw).metadata)
                if mark is not None and mark.load == request.load:
                    progress = progress.follow(mark.step)
        self._request = msgspec.structs.replace(request, progress=progress)
        self._chunk_ended = self._clock.monotonic()
        if progress.ended:
            self._forget()
        elif not progress.begun:
            self._begin()

    def note_gap(self, fragment: Fragment) -> None:
        """Ask for a load of the tables of a gap, or say that somebody must; before the gap is in the log.

        `fragment`: the last of any transaction. Asked for before it is needed, a load may come twice, and never not.
        Raises DiskFailedError.
        """
        gap = gap_of(decode(fragment.payload).metadata) if fragment.shard_id == UNKNOWN_SHARD else None
        if gap is None:
            return
        names = tuple(map(".".join, gap.tables))
        covered = (
            self._source is not None and self._covered is not None and not set(names) - set(self._covered or names)
        )
        logger.warning(
            "changes of tables are not in the log, and targets pass over them until these are loaded again: %s "
            "tables=%s why=%s event_id=%s",
            "a load follows"
            if covered
            else f"{load_again(names)} (`tranlog status` adds what foreign keys join to them)",
            ",".join(names),
            gap.reason,
            fragment.event_id,
        )
        if not covered or any(asked.issuperset(names) for asked in self._after_gaps.values()):
            return
        now = self._clock.now_ms()
        ident = next(one for one in map(str, count(now)) if one not in self._after_gaps)
        self._after_gaps[ident] = frozenset(names)
        since = Seqno(self._log.durable_seqno + 1)
        request = LoadRequest(load=ident, tables=names, joined=True, replace=True, asked_at=now, since=since)
        write_request(self._log.path, request, self._log.disk)

    def turn(self) -> None:
        """Go on between two reads of the source: take up a load, or take a snapshot for the next chunk."""
        if self._source is None or self._clock.monotonic() < self._not_before:
            return
        if self._request is None:
            self.resume()
        if self._request is None:
            return
        order = read_order(self._log.path, self._request.load, self._log.disk)
        if order != self._request.order:
            self._request = msgspec.structs.replace(self._request, order=order)
            self._chunk_ended = self._clock.monotonic()
        if order.given_up or order.paused:
            self.drop()
        while order.given_up and self._request.progress.left:
            self._give_up("given up by its operator")
        if self._snapshot is not None or (order.paused and not order.given_up):
            return
        if not self._request.progress.left:
            self._step(LoadEnd(given_up=self._request.progress.given_up))
            return
        try:
            found = self._source.snapshot()
        except SourceError as exc:
            self._asked = False
            self._failed(exc)
            return
        self._asked = isinstance(found, SnapshotWait)
        if not isinstance(found, SnapshotWait):
            self._snapshot = found
        why = found.why if isinstance(found, SnapshotWait) else ""
        if why != self._request.waits_for:
            if why:
                logger.warning("a load waits for transactions that are open at the source for=%s", why)
            self._request = msgspec.structs.replace(self._request, waits_for=why)
            write_request(self._log.path, self._request, self._log.disk)

    def goes_on(self) -> bool:
        """Take a turn; return whether a load is under way after it, and not paused.

        Raises SourceUnavailableError where it waits for somebody's open transaction.
        """
        self.turn()
        if self._request is None or self._request.order.paused:
            return False
        if self._request.waits_for:
            why = f"the load {self._request.load} waits for transactions that are open: {self._request.waits_for}"
            raise busy(self._source_id, why)
        return True

    def is_due(self, event_id: str | None) -> bool:
        """Whether the chunk is to be appended before what comes next: the transaction of this event id.

        None: a read has ended, and nothing more is there for now.
        """
        snapshot = self._snapshot
        if snapshot is None or self._source is None:
            return False
        return self._source.has_reached(snapshot) if event_id is None else not snapshot.covers(event_id)

    def append(self) -> None:
        """Append the rows of the snapshot that is open, as the next chunk, durable. Raises LogError.

        A snapshot that serves all chunks stays open while there are more.
        """
        snapshot, request = self._snapshot, self._request
        assert snapshot is not None and request is not None
        kept = False
        try:
            table = snapshot.table(request.progress.left[0])
            if table is None:
                self._give_up("it is not there any more, or is not captured")
            elif request.progress.key and request.progress.key != _key_names(table):
                self._give_up("its primary key changed during the load")
            else:
                self._append(snapshot, table, request.progress)
                self._failures = 0
            kept = snapshot.serves_all and bool(self._request and self._request.progress.left)
            self._clock.sleep(max(0.0, self._not_before - self._clock.monotonic()) if kept else 0.0)
        except SourceError as exc:
            self._log.abandon_open()
            self._failed(exc)
        except BaseException:
            self._log.abandon_open()
            raise
        finally:
            if not kept:
                self.drop()

    def drop(self) -> None:
        """Close the snapshot, if one is open or being taken; the chunk is read anew."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()
        if self._asked and self._source is not None:
            self._source.drop_snapshot()
        self._asked = False

    def _has_load(self) -> bool:
        """Whether a load has begun in a log without any event."""
        with self._log.cursor() as cursor:
            while cursor.next_header() is not None:
                if any(mark_of(decode(raw).metadata) for raw in cursor.current().payloads()):
                    return True
        return False

    def _name_uncovered(self, requests: Iterable[LoadRequest]) -> None:
        """Name the tables with rows that a new log gets neither by these loads nor from the stream."""
        if self._source is None or any(not one.tables for one in requests) or self._source.begins_earlier():
            return
        covered = {name for request in requests for name in request.tables}
        with closing(self._source.reader()) as reader:
            found = [
                table.name
                for table in reader.tables()
                if table.name not in covered and next(iter(reader.rows(table, 1)), None) is not None
            ]
        if found:
            logger.warning(
                "tables have rows that no load covers: a change of one ends a pipeline that does not have it. Load "
                "them, with --replace where the target has the rows: tranlog load --tables %s",
                ",".join(found),
            )

    def _begin(self) -> None:
        request = self._request
        assert request is not None and self._source is not None
        with closing(self._source.reader()) as reader:
            beside = reader.beside()
            tables = [table for table in reader.tables() if table.name not in beside]
            names = set(request.tables) or {table.name for table in tables}
            if request.joined:
                keys = [
                    (table.name, f"{key.ref_schema}.{key.ref_table}") for table in tables for key in table.foreign_keys
                ]
                names = joined(names, keys)
            wanted = [table for table in tables if table.name in names]
            rows_there = sum(reader.estimate(table) for table in wanted)
        known = {table.name for table in tables}
        missing = {name: beside.get(name, "it is not captured") for name in request.tables if name not in known}
        given_up = tuple((beside if not request.tables else missing).items())
        for name, why in given_up:
            logger.warning("a table is not loaded table=%s why=%s", name, why)
        progress = msgspec.structs.replace(request.progress, given_up=given_up)
        self._request = msgspec.structs.replace(request, progress=progress, rows_there=rows_there)
        self._step(LoadBegin(tables=tuple(parents_first(wanted, request.references)), replace=request.replace))

    def _append(self, snapshot: Snapshot, table: TableMap, progress: LoadProgress) -> None:
        """Append a chunk of a table and its step."""
        assert self._request is not None
        most = self._request.order.rows_per_second
        limit = (min(self._limit, most) if most else self._limit) if snapshot.is_ordered(table) else None
        after: Key | None = None if progress.after is None else parse_key(progress.after)
        packer = TransactionPacker(source_id=self._source_id, rule=_RULE)
        event_id, tstamp = self._log.last_event_id() or "", self._clock.now_ms()
        rows = size = 0
        last = b""
        for block in snapshot.chunk(table, after, limit):
            rows, last = rows + len(block), block[-1]
            for cut in packer.add_encoded_rows(table, Op.INSERT, block, event_id=event_id, tstamp=tstamp):
                size += len(cut.payload)
                self._log.append(cut)
        ended = limit is None or rows < limit
        key = () if ended else table.key_of(decode_row(last, len(table.columns)))
        if not ended and not is_key(key):
            raise PayloadError(why=f"a key of {table.name} is no integer, bytes or UUID: {key!r}")
        step = LoadChunk(
            table=(table.schema, table.table),
            key=_key_names(table),
            keys=KeyRange(after=progress.after, upto=None if ended else key_text(key)),  # type: ignore[arg-type]
            rows=rows,
        )
        self._took(rows, most)
        size += self._step(step, packer, event_id=event_id, tstamp=tstamp)
        if limit is not None and rows:
            self._limit = max(_ROWS_LEAST, min(_ROWS_MOST, _GROWTH * limit, rows * _CHUNK_BYTES // max(size, 1)))

    def _took(self, rows: int, most: int) -> None:
        """Note how fast chunks come, and rest where no more than `most` rows a second are wanted, 0 for no limit."""
        request, now = self._request, self._clock.monotonic()
        assert request is not None
        rate = rows / max(now - self._chunk_ended, 1e-3)
        rate = rate if not request.rows_per_s else 0.7 * request.rows_per_s + 0.3 * rate
        left = request.rows_there - request.progress.rows - rows
        seconds_left = left / rate if left > 0 and rate else None
        self._request = msgspec.structs.replace(request, rows_per_s=rate, seconds_left=seconds_left)
        begun = max(self._chunk_ended, self._not_before)  # a rest before it was the chunk's before it
        self._not_before = max(now, begun + rows / most) if most else now
        self._chunk_ended = now

    def _step(
        self, step: LoadStep, packer: TransactionPacker | None = None, *, event_id: str = "", tstamp: int = 0
    ) -> int:
        """Append the transaction of a step, or what is left of it, durable; return its last fragment's size."""
        log, request = self._log, self._request
        assert request is not None
        if packer is None:
            packer = TransactionPacker(source_id=self._source_id, rule=_RULE)
            event_id, tstamp = log.last_event_id() or "", self._clock.now_ms()
        metadata = LoadMark(load=request.load, pipeline=request.pipeline, step=step).metadata()
        fragment = packer.finish(event_id=event_id, tstamp=tstamp, metadata=metadata)
        # Serial, whatever makes a shard: without a list of tables it lies in none.
        rows, tables = (step.rows, None) if isinstance(step, LoadChunk) else (0, ())
        told = encode_write_set(WriteKind.STEP, rows, (), ())
        log.append(msgspec.structs.replace(fragment, shard_id=UNKNOWN_SHARD, tables=tables, write_set=told))
        seqno = log.commit()
        self._request = msgspec.structs.replace(request, since=Seqno(seqno + 1), progress=request.progress.follow(step))
        if isinstance(step, LoadEnd):
            self._forget()
        else:
            write_request(log.path, self._request, log.disk)
        return len(fragment.payload)

    def _forget(self) -> None:
        assert self._request is not None
        progress = self._request.progress
        logger.info(
            "a load is at its end load=%s tables=%d rows=%d", self._request.load, progress.tables, progress.rows
        )
        remove_request(self._log.path, self._request.load, self._log.disk)
        self._request = None

    def _failed(self, exc: SourceError) -> None:
        logger.warning("a chunk of a load could not be read, and is tried again why=%s", exc)
        self._not_before = self._clock.monotonic() + _PAUSE_S
        if not isinstance(exc, SourceUnavailableError):
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                self._failures = 0
                self._give_up(str(exc))

    def _give_up(self, why: str) -> None:
        assert self._request is not None
        progress = self._request.progress
        schema, name = progress.left[0]
        logger.error(
            "a table is not loaded to its end; load it again: tranlog load --replace --tables %s.%s why=%s",
            schema,
            name,
            why,
        )
        self._request = msgspec.structs.replace(self._request, progress=progress.give_up(why))
        write_request(self._log.path, self._request, self._log.disk)


def _key_names(table: TableMap) -> tuple[str, ...]:
    return tuple([table.columns[at].name for at in table.primary_key])
