"""Parallelization in memory: one reader reads a window of the log, Spark splits it, each channel applies its share.

Owns what a window is, its splitting, and the channel's view of its share, which looks like a log. `channel` applies the
share, `apply` decides when there is another window. It is meant for remote logs: each transaction is read once, not
once per channel. The cost is the article's: channels are never further apart than a window.

The hard idea: a share has a channel's own transactions and, of the others, only the headers at which channels meet. So
before each serial run every channel has the header of the transaction before it, and at the window's end that of the
last one. And the end depends on the log alone: if Spark splits a part of a window again, it ends at the same place;
otherwise one channel could wait for another that has ended.

Source: on-disk-parallel-queues, "the initial implementation uses in-memory queues".
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tranlog.change import Change
from tranlog.errors import (
    ConfigError,
    CorruptRecordError,
    PayloadError,
    PurgedError,
    ReplacedError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.header import Passes, Record, TransactionHeader
from tranlog.ids import NO_EPOCH, NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableCursor, ReadableLog, ReadableTransaction
from tranlog.log.reading.reader import LogRange
from tranlog.payload import Payload, decode
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.log_mark import open_log
from tranlog.pipeline.applying.owners import Owners
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.filters.filters import renames_tables
from tranlog.pipeline.rules.channels import SERIAL
from tranlog.target.options import open_target

HEADER_BYTES: Final = 1024
"""What a transaction counts for besides its payload: its header in a worker's memory, generously."""

Item: TypeAlias = tuple[TransactionHeader, bytes | None]
"""A transaction's verdict header, and the payload of a channel's own; None: another's, or too large to be carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one job applies: transactions from `first` on, up to `upto`, inclusive, or until they are `bytes` long.

    `tasks` are the channels', `log_first` is the first seqno that the log holds. It travels pickled.
    """

    tasks: tuple[ChannelTask, ...]
    log_first: Seqno
    first: Seqno
    upto: Seqno
    bytes: int


def _open_log(window: Window) -> ReadableLog:
    task = window.tasks[0]
    return open_log(task.options.log_dir, checksum=task.options.checksum, mark=task.log_mark)


def split_windows(windows: Iterable[Window]) -> Iterator[tuple[int, Item | TranlogError]]:
    """Read each window and yield (channel, item), in the log's order; an error at its very beginning for everyone.

    Nothing is written to the log or about rows; a shard that is seen for the first time gets its channel here, as a
    channel that meets one would do it.
    """
    for window in windows:
        try:
            reader = _open_log(window)
        except TranlogError as exc:  # what Spark would carry as a text, and try again
            for channel in range(len(window.tasks)):
                yield channel, exc
            continue
        with reader:
            try:
                yield from _split(window, reader)
            except (TransientTargetError, TargetUnavailableError) as exc:
                # For each channel: those that have something of this window lose it, and get it again.
                for channel in range(len(window.tasks)):
                    yield channel, exc


def _split(window: Window, reader: ReadableLog) -> Iterator[tuple[int, Item | TranlogError]]:
    channels = range(len(window.tasks))
    task = window.tasks[0]
    # Whether every header must be seen by all: for its commit time, or for names that a filter might make one.
    everything = task.options.max_offline_interval_s is not None or renames_tables(task.options.filters)
    sent = [NO_SEQNO] * len(channels)
    previous: TransactionHeader | None = reader.header(Seqno(window.first - 1))
    if previous is not None:  # where most positions stand
        for channel in channels:
            yield channel, (previous, None)
            sent[channel] = previous.seqno
    before = previous
    run = False
    room = window.bytes
    with contextlib.closing(open_target(task.options.target)) as target, reader.cursor(committed_only=True) as cursor:

        def check() -> None:
            row = target.positions.read_pipeline(task.options.pipeline)
            if row is None or row.token != task.driver_token:  # the row is a later plan's
                holder = "another task" if row is None else row.holder
                raise ReplacedError(pipeline=task.options.pipeline, holder=holder)

        def changes() -> Iterable[Change]:
            return cursor.current().payload().changes

        owners = Owners(task.plan, target, pipeline=task.options.pipeline, driver_token=task.driver_token, check=check)
        cursor.seek(window.first)
        while room > 0 and (previous is None or previous.seqno < window.upto):
            try:
                header = cursor.next_header()
                assert header is not None, "the driver saw it committed"
                transaction = cursor.current()
                owner = owners.of(task.plan.shard(header, changes))
                small = header.fragno == 0 and not header.spilled
                payload = next(transaction.payloads()) if small else None
            except (CorruptRecordError, PayloadError, PurgedError, ConfigError, ReplacedError) as exc:
                if previous is before:
                    for channel in channels:
                        yield channel, exc
                    return
                break  # what lies before it is applied first; the next window begins with the error
            mine = 0 if owner == SERIAL else owner
            if owner == SERIAL and not run and previous is not None:
                for channel in channels:
                    if sent[channel] < previous.seqno:
                        yield channel, (previous, None)
            for channel in channels:
                if channel == mine:
                    yield channel, (header, payload)
                elif owner == SERIAL or everything:
                    yield channel, (header, None)
                else:
                    continue
                sent[channel] = header.seqno
            room -= HEADER_BYTES + (len(payload) if payload is not None else 0)
            run = owner == SERIAL
            previous = header
        for channel in channels:
            if previous is not None and sent[channel] < previous.seqno:
                yield channel, (previous, None)


def apply_share(window: Window, channel: int, share: Iterable[tuple[int, Item | TranlogError]]) -> TaskResult:
    """Apply a channel's share of a window; as `run_task`. Memory is the share, at most `window.bytes` or so."""
    items: list[Item] = []
    for _, item in share:
        if isinstance(item, TranlogError):
            end = TaskEnd.REPLACED if isinstance(item, ReplacedError) else TaskEnd.FAILED
            return TaskResult(channel=channel, end=end, error=item)
        items.append(item)
    items.sort(key=lambda item: item[0].seqno)
    last = items[-1][0].seqno
    until = window.tasks[channel].until
    task = replace(window.tasks[channel], until=last if until is None else min(last, until))
    with contextlib.closing(
        Channel(task, lambda: open_target(task.options.target), lambda: WindowReader(window, items))
    ) as running:
        return running.run()


class WindowReader:
    """A share of a window as a channel reads it, in the place of the log. Threads: one.

    What the share does not hold, and a channel may yet ask for, comes from the log itself: a large transaction, and the
    header of a position that another window's end has left.
    """

    def __init__(self, window: Window, items: list[Item]) -> None:
        self._window = window
        self._items = items
        self._log: ReadableLog | None = None

    def log(self) -> ReadableLog:
        """Return the log, opened when it is first asked for."""
        if self._log is None:
            self._log = _open_log(self._window)
        return self._log

    def range(self) -> LogRange:
        """Return what the driver saw of the log."""
        upto = self._window.upto
        return LogRange(
            first_seqno=self._window.log_first,
            last_seqno=upto,
            durable_seqno=upto,
            committed_seqno=upto,
            epoch=NO_EPOCH,
            scanned=False,
        )

    def find(self, seqno: Seqno) -> int:
        """Return the place of the first item at or after a seqno."""
        return bisect_left(self._items, seqno, key=lambda item: item[0].seqno)

    def header(self, seqno: Seqno) -> TransactionHeader | None:
        """Return a transaction's header."""
        at = self.find(seqno)
        if at < len(self._items) and self._items[at][0].seqno == seqno:
            return self._items[at][0]
        return self.log().header(seqno)

    def cursor(self, *, committed_only: bool = False) -> ReadableCursor:
        """Return a cursor over the share."""
        return _WindowCursor(self, self._items)

    def payload(self, seqno: Seqno) -> Payload:
        """Return a transaction's content."""
        return self.log().payload(seqno)

    def stored(self, seqno: Seqno) -> ReadableTransaction:
        """Return a transaction as the log holds it."""
        cursor = self.log().cursor(committed_only=True)
        cursor.seek(seqno)
        assert cursor.next_header() is not None, f"the log shows no seqno {seqno}"
        return cursor.current()

    def purged(self, seqno: Seqno) -> PurgedError:
        """Return the error for a seqno that the log does not hold any more."""
        return self.log().purged(seqno)

    def close(self) -> None:
        """Let go of the log; closing twice is harmless."""
        if self._log is not None:
            self._log.close()


class _WindowCursor:
    """A place in a share. Its items end with the window, and so does the channel: it never waits here."""

    def __init__(self, reader: WindowReader, items: list[Item]) -> None:
        self._reader = reader
        self._items = items
        self._at = 0

    def seek(self, seqno: Seqno) -> None:
        self._at = self._reader.find(seqno)

    def next_header(self, timeout_s: float = 0.0) -> TransactionHeader | None:
        if self._at == len(self._items):
            return None
        self._at += 1
        return self._items[self._at - 1][0]

    def pass_over(self, shards: Container[bytes], upto: Seqno, passes: Passes | None = None) -> Seqno:
        return NO_SEQNO  # what others own is not here

    def close(self) -> None:
        pass

    def __enter__(self) -> _WindowCursor:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def passed(self) -> TransactionHeader:
        raise AssertionError("nothing is ever passed over")

    def current(self) -> ReadableTransaction:
        header, payload = self._items[self._at - 1]
        return self._reader.stored(header.seqno) if payload is None else _Carried(header, payload)


class _Carried:
    """A transaction of one fragment whose payload came with the window; its checksum was verified there."""

    __slots__ = ("_payload", "header")

    def __init__(self, header: TransactionHeader, payload: bytes) -> None:
        self.header = header
        self._payload = payload

    @property
    def fragments(self) -> int:
        return 1

    @property
    def size_bytes(self) -> int:
        return self.header.record_length

    @property
    def checksum(self) -> None:
        return None

    def payload(self) -> Payload:
        try:
            return decode(self._payload)
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=self.header.seqno) from exc

    def payloads(self) -> Iterator[bytes]:
        yield self._payload

    def changes(self) -> Iterator[Change]:
        yield from self.payload().changes

    def records(self) -> Iterator[Record]:
        yield Record(self.header, self._payload)


def share_runner(window: Window) -> Callable[[int, Iterable[tuple[int, Item | TranlogError]]], Iterator[TaskResult]]:
    """Return what Spark runs on each share: it gets the channel's number and the share."""

    def run(channel: int, share: Iterable[tuple[int, Item | TranlogError]]) -> Iterator[TaskResult]:
        yield apply_share(window, channel, share)

    return run
