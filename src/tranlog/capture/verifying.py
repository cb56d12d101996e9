"""Verifications at a position, on the source's side: a snapshot, its place in the log, and the sums of its tables.

Owns when the snapshot is taken and what of it comes into the log. The hard idea: as a load's chunk, the first
transaction stands exactly where the snapshot was taken. The rows are read by a thread while the stream goes on; what it
found is appended between two reads of the source. Capture that ends before all sums are in the log begins again with
another snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Set
from typing import Final, Protocol

import msgspec

from tranlog.capture.verify_requests import (
    VerifyProgress,
    VerifyRequest,
    read_verify_progress,
    read_verify_requests,
    write_verify_progress,
)
from tranlog.change import TableMap
from tranlog.clock import Clock
from tranlog.errors import SourceError, TranlogError
from tranlog.log.writing.log import Log
from tranlog.row_blocks import RowBlock
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.source.reconnecting import busy
from tranlog.source.source import LoadableSource, Snapshot, SnapshotWait, Source
from tranlog.verification import VerifyBegin, VerifyMark, VerifyStep, VerifySum

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
"""After a snapshot that could not be taken."""
_TELL_EVERY_S: Final = 0.5
_JOIN_S: Final = 10.0
"""How long the thread is waited for that is to stop; it looks between blocks of rows."""
_RULE: Final = ShardRule(kind=ShardRuleKind.SCHEMA)


class Summing(Protocol):
    """What computes a table's sum: it knows filters, which capture does not."""

    def __call__(self, filters: str, table: TableMap, rows: Iterable[RowBlock], buckets: Set[int]) -> VerifySum:
        """Return what these rows of a table are after filters. Raises what reading them raises, ConfigError."""


class Verifying:
    """The verifications of one capture. Threads: the capture's, beside one of its own."""

    def __init__(self, source: Source, log: Log, clock: Clock, summing: Summing | None) -> None:
        self._source = source if isinstance(source, LoadableSource) and summing is not None else None
        self._source_id = source.source_id
        self._log = log
        self._clock = clock
        self._summing = summing
        self._request: VerifyRequest | None = None
        self._snapshot: Snapshot | None = None
        self._asked = False  # whether the source is taking a snapshot
        self._reading: _Reading | None = None
        self._told = VerifyProgress()
        self._not_before = 0.0
        self._tell_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether a snapshot is open, up to which the stream is to be read soon, or is being taken."""
        return self._snapshot is not None or self._asked

    @property
    def is_near(self) -> bool:
        """Whether a turn is due soon: a snapshot is waited for, or sums are."""
        return self.waits or self._reading is not None

    def turn(self) -> None:
        """Go on between two reads of the source. Raises LogError, DiskFailedError."""
        if self._source is None or self._clock.monotonic() < self._not_before:
            return
        wanted = [
            request
            for request in read_verify_requests(self._log.path, self._log.disk)
            if not ((told := read_verify_progress(self._log.path, request.verify, self._log.disk)) and told.done)
        ]
        if self._request is not None and self._request.verify not in {request.verify for request in wanted}:
            self.drop()  # whoever asked waits no more
        if self._reading is not None:
            self._append_sums(self._reading)
        elif self._snapshot is None and wanted:
            self._request = wanted[0]
            self._take(self._source)

    def goes_on(self) -> bool:
        """Take a turn; return whether a verification is under way after it.

        Raises SourceUnavailableError where it waits for somebody's open transaction.
        """
        self.turn()
        if self._request is not None and self._told.waits_for:
            why = f"a verification waits for transactions that are open: {self._told.waits_for}"
            raise busy(self._source_id, why)
        return self._request is not None

    def is_due(self, event_id: str | None) -> bool:
        """Whether the snapshot's place is before what comes next; as `Loading.is_due`."""
        snapshot = self._snapshot
        if snapshot is None or self._source is None:
            return False
        return self._source.has_reached(snapshot) if event_id is None else not snapshot.covers(event_id)

    def append(self) -> None:
        """Append the transaction that stands for the snapshot, and begin to read its tables. Raises LogError."""
        snapshot, request = self._snapshot, self._request
        assert snapshot is not None and request is not None and self._summing is not None
        try:
            found = {name: _table_of(snapshot, name) for name in request.tables}
        except SourceError as exc:
            self._failed(exc)
            return
        self._snapshot = None
        tables = [table for table in found.values() if table is not None]
        why = "it is not captured, or its engine has no snapshots"
        missing = tuple([(name, why) for name, table in found.items() if table is None])
        self._reading = _Reading(request, snapshot, tables, self._summing)
        self._step(VerifyBegin(tables=tuple(tables), filters=request.filters_hash, buckets=request.buckets))
        self._tell(VerifyProgress(seqno=self._log.last_seqno, missing=missing))
        self._reading.start()

    def drop(self) -> None:
        """Close the snapshot, if one is open or being taken, and end the thread: it is all to be done again."""
        snapshot, self._snapshot = self._snapshot, None
        reading, self._reading = self._reading, None
        if snapshot is not None:
            snapshot.close()
        if self._asked and self._source is not None:
            self._source.drop_snapshot()
        if reading is not None:
            reading.stop()
        self._asked = False
        self._request = None
        self._told = VerifyProgress()

    def _take(self, source: LoadableSource) -> None:
        try:
            found = source.snapshot()
        except SourceError as exc:
            self._failed(exc)
            return
        self._asked = isinstance(found, SnapshotWait)
        if not isinstance(found, SnapshotWait):
            self._snapshot = found
        why = found.why if isinstance(found, SnapshotWait) else ""
        if why != self._told.waits_for:
            self._tell(VerifyProgress(waits_for=why))

    def _append_sums(self, reading: _Reading) -> None:
        while reading.found:
            self._step(reading.found.popleft())
            reading.left -= 1
        if reading.left <= 0:
            self._tell(msgspec.structs.replace(self._told, table="", rows=0, done=True))
            self.drop()
        elif self._told.rows != reading.rows and self._clock.monotonic() >= self._tell_at:
            self._tell_at = self._clock.monotonic() + _TELL_EVERY_S
            self._tell(msgspec.structs.replace(self._told, table=reading.table, rows=reading.rows))

    def _step(self, step: VerifyStep) -> None:
        log, request = self._log, self._request
        assert request is not None
        mark = VerifyMark(verify=request.verify, pipeline=request.pipeline, step=step)
        fragment = TransactionPacker(source_id=self._source_id, rule=_RULE).finish(
            event_id=log.last_event_id() or "", tstamp=self._clock.now_ms(), metadata=mark.metadata()
        )
        log.append(msgspec.structs.replace(fragment, shard_id=UNKNOWN_SHARD, tables=()))
        log.commit()

    def _tell(self, progress: VerifyProgress) -> None:
        assert self._request is not None
        self._told = progress
        write_verify_progress(self._log.path, self._request.verify, progress, self._log.disk)

    def _failed(self, exc: SourceError) -> None:
        logger.warning("a snapshot for a verification could not be taken, and is tried again why=%s", exc)
        self.drop()
        self._not_before = self._clock.monotonic() + _PAUSE_S


def _table_of(snapshot: Snapshot, name: str) -> TableMap | None:
    """Return a captured table by `schema.table`, of which either may have dots. Raises SourceError."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        found = snapshot.table((".".join(parts[:at]), ".".join(parts[at:])))
        if found is not None and found.name == name:
            return found
    return None


class _Reading:
    """The thread that reads a snapshot's tables. `found` is what it has for the log, `left` how many are to come."""

    def __init__(self, request: VerifyRequest, snapshot: Snapshot, tables: list[TableMap], summing: Summing) -> None:
        self._request = request
        self._snapshot = snapshot
        self._tables = tables
        self._summing = summing
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)
        self.found: deque[VerifySum] = deque()
        self.left = len(tables)
        self.table, self.rows = "", 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the snapshot."""
        self._stopped.set()
        if self._thread.ident is None:
            self._snapshot.close()
        else:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with contextlib.closing(self._snapshot):
            for table in self._tables:
                name = (table.schema, table.table)
                try:
                    found = self._sum(table)
                except _StoppedError:
                    return
                except TranlogError as exc:
                    found = VerifySum(table=name, why=str(exc))
                except Exception as exc:  # the capture goes on without this table
                    logger.exception("a table's sum could not be computed table=%s", table.name)
                    found = VerifySum(table=name, why=f"{type(exc).__name__}: {exc}")
                self.found.append(found)

    def _sum(self, table: TableMap) -> VerifySum:
        name = (table.schema, table.table)
        self.table, self.rows = table.name, 0
        if self._snapshot.table(name) != table:
            return VerifySum(table=name, why="it was altered after the snapshot")
        buckets = frozenset(self._request.buckets.get(table.name, ()))
        return self._summing(self._request.filters, table, self._counted(self._snapshot.whole(table)), buckets)

    def _counted(self, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        for block in blocks:
            if self._stopped.is_set():
                raise _StoppedError
            self.rows += len(block)
            yield block


class _StoppedError(Exception):
    """The thread is to end."""
