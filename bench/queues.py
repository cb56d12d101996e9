"""The article's open question: a cursor per channel over one log, or a log of its own per channel on disk?

Three designs carry the same log to the same channels, by turns, as jobs of one Spark: `disk` (a cursor per channel),
`memory` (windows that one task reads and Spark splits), and the article's other one, `files`: one task splits the log
into a file per channel, synced now and then, while a task per channel reads its file. That third one stands here only;
it is not offered. All apply by `pipeline.channel.Channel`, with the same positions and guards, into SQLite: with rows,
or with positions alone, which shows what the way to the channels costs. Seconds are those of whole jobs.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from frame import Bench, Question, run

from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.header import Passes, TransactionHeader
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import restart_seqno
from tranlog.pipeline.spark.session import build_context
from tranlog.pipeline.spark.window import Item, Window, WindowReader, split_windows
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, Applied, ApplyUnit, ChannelRow, Target
from tranlog.types import LogicalType

if TYPE_CHECKING:
    from pyspark import SparkContext

QUESTION = Question(
    name="queues",
    text="How do a window in memory, and a file per channel, compare with a cursor per channel over the one log?",
    peer="the same log, channels and target with a cursor per channel (`disk`), in the same Spark",
)
TRANSACTIONS = 20_000
SHARDS = 20
CHANNELS = (1, 4, 10)
WINDOW_BYTES = 32 << 20
SYNC_EVERY = 1_000
"""A file per channel is synced after so many transactions of the log, as the log is by its writer."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the target is, so that its syncs are not what is measured; the log and the files per channel are on disk."""
SKEW = 0.6
"""The part of one shard where shards are skewed."""


COLUMNS = (
    Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
    Column(name="note", source_type="text", logical=LogicalType.TEXT),
)
TABLES = [TableMap(schema=f"s{shard:02}", table="items", columns=COLUMNS, primary_key=(0,)) for shard in range(SHARDS)]


def write_log(folder: Path, *, skewed: bool) -> Seqno:
    """Write a log of one insert per transaction; return its last seqno."""
    choose = random.Random(1)
    rule = ShardRule(kind=ShardRuleKind.SCHEMA)
    packer = TransactionPacker(source_id="bench", rule=rule)
    with Log.open(str(folder), source_id="bench") as log:
        for number in range(TRANSACTIONS):
            table = TABLES[0] if skewed and choose.random() < SKEW else choose.choice(TABLES)
            packer.begin(rule)
            change = RowChange(table, Op.INSERT, None, (number, "a note of some thirty letters" * 4))
            packer.add(change, event_id="", tstamp=number)
            log.append(packer.finish(event_id=f"event {number}", tstamp=number))
            if number % 1_000 == 0:
                log.commit()
        log.commit()
        return log.last_seqno


class PositionsOnly:
    """A target that takes in every change and keeps none; its positions are real."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def apply(self, units: Sequence[ApplyUnit], advance: Advance) -> Applied:
        changes = sum(1 for unit in units for _ in unit.changes())
        self._target.positions.publish(advance)
        return Applied(transactions=len(units), changes=changes, statements=0)


def opener(options: TargetOptions, *, rows: bool) -> Callable[[], Any]:
    """Return what opens the target in a task."""
    return (lambda: open_target(options)) if rows else (lambda: PositionsOnly(open_target(options)))


# --- a file per channel ---


class FileFeed:
    """A channel's own file as the channel reads it."""

    def __init__(self, window: Window, path: str) -> None:
        self._log = WindowReader(window, [])
        self._path = path
        self.range, self.header = self._log.range, self._log.header
        self.payload, self.purged, self.stored = self._log.payload, self._log.purged, self._log.stored

    def cursor(self, *, committed_only: bool = False) -> FileCursor:
        return FileCursor(self, self._path)

    def close(self) -> None:
        self._log.close()


class FileCursor:
    """Reads a file frame by frame, waiting where it is not written yet."""

    def __init__(self, feed: FileFeed, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.001)
        self._feed = feed
        self._file = open(path, "rb")  # noqa: SIM115
        self._begin = Seqno(0)
        self._rest = b""
        self._items: list[Item] = []
        self._item: Item | None = None

    def seek(self, seqno: Seqno) -> None:
        self._begin = seqno

    def next_header(self, timeout_s: float = 0.0) -> TransactionHeader | None:
        deadline = time.monotonic() + timeout_s
        while True:
            while self._items:
                self._item = self._items.pop()
                if self._item[0].seqno >= self._begin:
                    return self._item[0]
            read = self._file.read(1 << 20)
            if not read:
                if time.monotonic() >= deadline:
                    return None
                time.sleep(0.001)
                continue
            buffer, at = self._rest + read, 0
            while at + 4 <= len(buffer):
                end = at + 4 + int.from_bytes(buffer[at : at + 4], "little")
                if end > len(buffer):
                    break
                frame = memoryview(buffer)[at + 4 : end]
                self._items.append(msgspec.msgpack.decode(frame, type=tuple[TransactionHeader, bytes | None]))
                at = end
            self._rest = buffer[at:]
            self._items.reverse()

    def pass_over(self, shards: Container[bytes], upto: Seqno, passes: Passes | None = None) -> Seqno:
        return NO_SEQNO

    def passed(self) -> TransactionHeader:
        raise AssertionError("nothing is ever passed over")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FileCursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def current(self) -> Any:
        assert self._item is not None
        window_reader = WindowReader.__new__(WindowReader)
        window_reader._items, window_reader._log = [self._item], None
        cursor = window_reader.cursor()
        cursor.next_header()
        return cursor.current()


def split_to_files(window: Window, folder: str) -> None:
    """Read the log once and write each channel's transactions into its file."""
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(open(os.path.join(folder, f"{channel}"), "wb")) for channel in range(len(window.tasks))
        ]
        for number, (channel, item) in enumerate(split_windows([window])):
            frame = msgspec.msgpack.encode(item)
            files[channel].write(len(frame).to_bytes(4, "little") + frame)
            if number % SYNC_EVERY == 0:
                for file in files:
                    file.flush()
                    os.fdatasync(file.fileno())
        for file in files:
            file.flush()
            os.fdatasync(file.fileno())


# --- the three ---


def take(options: TargetOptions, channels: int) -> int:
    """Make the pipeline's rows, all channels at the beginning."""
    target = open_target(options)
    try:
        target.positions.ensure_tables()
        return target.positions.take(
            pipeline="bench",
            expected_token=0,
            holder="bench",
            channels=channels,
            shard_rule=ShardPlan(channels=channels).text(),
            rows=[ChannelRow(channel=channel, applied_seqno=NO_SEQNO) for channel in range(channels)],
            keep_assignment=False,
        )
    finally:
        target.close()


class Run:
    """One run of a design over a log, into a target of its own."""

    def __init__(
        self,
        context: SparkContext,
        log: Path,
        last: Seqno,
        folder: Path,
        target_folder: Path,
        channels: int,
        rows: bool,
    ) -> None:
        self.context = context
        self.folder = folder
        options = TargetOptions(kind="sqlite", path=str(target_folder / "target.db"), lock_timeout_s=120.0)
        if rows:
            target = open_target(options)
            for table in TABLES:
                target.rows.create_table(table)
            target.close()
        token = take(options, channels)
        self.open_target = opener(options, rows=rows)
        self.options = options
        self.tasks = tuple(
            ChannelTask(
                options=ApplyOptions(pipeline="bench", log_dir=str(log), target=options),
                driver_token=token,
                channel=channel,
                plan=ShardPlan(channels=channels),
                until=last,
            )
            for channel in range(channels)
        )
        self.last = last

    def window(self, first: Seqno, size: int) -> Window:
        return Window(tasks=self.tasks, log_first=Seqno(0), first=first, upto=self.last, bytes=size)

    def disk(self) -> list[TaskResult]:
        open_target = self.open_target

        def work(tasks: Iterable[ChannelTask]) -> Iterator[TaskResult]:
            for task in tasks:
                log_dir = task.options.log_dir
                with contextlib.closing(Channel(task, open_target, partial(LogReader.open, log_dir))) as channel:
                    yield channel.run()

        return self.context.parallelize(self.tasks, len(self.tasks)).mapPartitions(work).collect()

    def memory(self) -> list[TaskResult]:
        open_one = self.open_target
        results: list[TaskResult] = []
        while True:
            target = open_target(self.options)
            restart = restart_seqno(target.positions.read_channels("bench"))
            target.close()
            if restart >= self.last:
                return results
            window = self.window(Seqno(restart + 1), WINDOW_BYTES)

            def work(at: int, share: Any, window: Window = window) -> Iterator[TaskResult]:
                items = [item for _, item in share]
                task = replace(window.tasks[at], until=items[-1][0].seqno)
                with contextlib.closing(Channel(task, open_one, lambda: WindowReader(window, items))) as channel:
                    yield channel.run()

            shares = self.context.parallelize([window], 1).mapPartitions(split_windows)
            results = shares.partitionBy(len(self.tasks), int).mapPartitionsWithIndex(work).collect()

    def files(self) -> list[TaskResult]:
        open_target, folder = self.open_target, str(self.folder)
        window = self.window(Seqno(0), 1 << 60)

        def work(at: int, _: Any) -> Iterator[TaskResult]:
            if at == len(window.tasks):
                split_to_files(window, folder)
                return
            feed = FileFeed(window, os.path.join(folder, f"{at}"))
            with contextlib.closing(Channel(window.tasks[at], open_target, lambda: feed)) as channel:
                yield channel.run()

        number = len(self.tasks) + 1
        return self.context.parallelize(range(number), number).mapPartitionsWithIndex(work).collect()


def measure(bench: Bench) -> None:
    """All designs by turns, for each number of channels, each load and each target."""
    settings = {"spark.python.daemon.module": "tranlog.pipeline.spark.daemon"}
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name:
        here = Path(name)
        context = build_context(f"local[{max(CHANNELS) + 1}]", "tranlog bench", settings)
        try:
            for load in ("uniform", "skewed"):
                log = here / load
                last = write_log(log, skewed=load == "skewed")
                for rows in (False, True):
                    for channels in CHANNELS:
                        compare(bench, context, here, log, last, load, channels, rows)
        finally:
            context.stop()


def compare(
    bench: Bench, context: SparkContext, here: Path, log: Path, last: Seqno, load: str, channels: int, rows: bool
) -> None:
    """Add the rows of one setting."""

    def figure(design: str) -> Callable[[], float]:
        def measured() -> float:
            with tempfile.TemporaryDirectory(dir=here) as files, tempfile.TemporaryDirectory(dir=MEMORY) as target:
                one = Run(context, log, last, Path(files), Path(target), channels, rows)
                began = time.perf_counter()
                results = getattr(one, design)()
                seconds = time.perf_counter() - began
            assert {(result.end, result.error) for result in results} == {(TaskEnd.LIMIT, None)}, results
            return TRANSACTIONS / seconds

        return measured

    figures = bench.by_turns({design: figure(design) for design in ("disk", "memory", "files")}, rounds=3)
    where = f"{channels} channel{'s' if channels > 1 else ''}, {load}, {'SQLite' if rows else 'positions only'}"
    for design in ("memory", "files"):
        bench.add(f"{where}: {design}", ours=figures[design], anchor=figures["disk"], unit="transactions/s")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
