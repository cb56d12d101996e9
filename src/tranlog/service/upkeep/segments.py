"""`tranlog log`: a log's segments as an operator sees them, and as an operator adds and removes them.

Owns the four commands, what they show and its text. Who adds and removes segments is `upkeep`'s. The hard idea: adding
and removing is the writer's business. Where none runs, these two take its lock, repair what a crash left as it would,
and begin no epoch: a log that was trimmed by hand holds the transactions that it held before.

Source: tokumx-replication, "Oplog Management": oplogPartitionInfo, addPartition, trimToGTID, trimToTS,
printReplicationInfo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import typer

from tranlog.clock import Clock, SystemClock
from tranlog.codecs.opening import Codec, codec_of
from tranlog.codecs.segments import ListedSegment, Report, on_disk_bytes, segment_rows, tungsten_rows
from tranlog.codecs.shown import open_log
from tranlog.errors import CorruptRecordError, LogMissingError
from tranlog.ids import NO_SEQNO, Gtid, Seqno, segment_name
from tranlog.listing import time_text
from tranlog.log.files.segments import SegmentStat
from tranlog.log.files.spilled import SpillStat
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.lookup import OtherEpoch, find_gtid, parse_time
from tranlog.log.reading.reader import LogReader
from tranlog.service.config.config import find_log
from tranlog.service.frame.command import AsJson, Yes, answer, confirm, flag, new_app, option, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress
from tranlog.service.frame.tables import table_lines
from tranlog.service.process.api import Trim, Trimmed
from tranlog.service.process.client import capture_state
from tranlog.service.process.log_index import IndexExtent, WriterIndex, index_lines, stored_extent
from tranlog.service.process.upkeep import upkeep_of

_REPORT_EVERY: Final = 4096

log_app = new_app(
    help="The segments of the log: look at them, add one, trim the oldest.\n\n\b\nExample:\n  tranlog log segments"
)

Directory = Annotated[str | None, option("--dir", "PATH", "The log directory itself, without a configuration.")]


def log_of(ctx: typer.Context, directory: str | None) -> str:
    """Return the log directory that a command is about: the one named, else the configuration's.

    Raises LogMissingError where it is not there, ConfigError.
    """
    conf, service = ctx.obj
    path = find_log(conf=conf, service=service, directory=directory)
    if not os.path.isdir(path):
        raise LogMissingError(path=path, why="the directory does not exist")
    return path


# --- what there is ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """How large a log is, and what time it covers: sizes in bytes, times in ms since 1970, None without an event.

    Event times are those of the source; the no-ops with which a writer begins have none.
    """

    path: str
    history: bytes
    segments: int
    uncompressed: int
    on_disk: int
    spill_uncompressed: int
    spill_on_disk: int
    first_event: int | None
    last_event: int | None
    now: int
    index: IndexExtent | None
    """As it is stored."""

    @property
    def span_s(self) -> float | None:
        """Seconds from the first event to the last; None without one. Below 0 after a source's clock went back."""
        if self.first_event is None or self.last_event is None:
            return None
        return (self.last_event - self.first_event) / 1000


def log_extent(reader: LogReader, *, clock: Clock, report: Report) -> LogExtent:
    """Measure a log. Raises CorruptRecordError, LogUnreadableError, PurgedError, SegmentGoneError, PayloadError."""
    stats = reader.index()
    spill = reader.spill_segments()
    with reader.cursor() as cursor:
        first = _first_event(reader, cursor, report)
        last = _last_event(reader, cursor, stats, report) if first is not None else None
    return LogExtent(
        path=os.path.abspath(reader.path),
        history=reader.history,
        segments=len(stats),
        uncompressed=sum(one.bytes for one in stats),
        on_disk=sum(on_disk_bytes(reader.path, one.name) for one in stats),
        spill_uncompressed=sum(one.raw_bytes for one in spill),
        spill_on_disk=sum(on_disk_bytes(reader.path, one.name) for one in spill),
        first_event=first,
        last_event=last,
        now=clock.now_ms(),
        index=stored_extent(reader.path),
    )


def _first_event(reader: LogReader, cursor: Cursor, report: Report) -> int | None:
    held = reader.range()
    for seqno in range(max(held.first_seqno, 0), held.last_seqno + 1):
        header = cursor.next_header()
        if header is None:
            return None
        if not cursor.current().is_noop():
            return header.tstamp
        if not seqno % _REPORT_EVERY:
            report(f"info: looking for the first event, seqno {seqno} of {held.last_seqno}")
    return None


def _last_event(reader: LogReader, cursor: Cursor, stats: Sequence[SegmentStat], report: Report) -> int | None:
    """Return the time of the last transaction that is no no-op: mostly the very last one, else found segment-wise."""
    held = reader.range()
    cursor.seek(held.last_seqno)
    header = cursor.next_header()
    if header is not None and not cursor.current().is_noop():
        return header.tstamp
    for one in reversed(stats):
        found: int | None = None
        start = max(one.first_seqno, held.first_seqno)
        cursor.seek(start)
        for seqno in range(start, min(one.last_seqno, held.last_seqno) + 1):
            header = cursor.next_header()
            if header is not None and not cursor.current().is_noop():
                found = header.tstamp
            if not seqno % _REPORT_EVERY:
                report(f"info: looking for the last event, seqno {seqno} of {held.last_seqno}")
        if found is not None:
            return found
    return None


# --- its text --------------------------------------------------------------------------------------------


def segment_lines(rows: Sequence[ListedSegment]) -> Iterator[str]:
    """Yield the lines of `tranlog log segments`."""
    heads = "segment", "first", "last", "created", ">bytes", ">on disk"
    cells = [
        (row.name, row.first_gtid, row.last_gtid, None if row.created_at is None else time_text(row.created_at))
        + (row.bytes, row.on_disk)
        for row in rows
    ]
    return table_lines(heads, cells)


def segment_json(row: ListedSegment) -> dict[str, object]:
    """Return one segment for a program."""
    return {
        "number": row.number,
        "name": row.name,
        "first_gtid": None if row.first_gtid is None else str(row.first_gtid),
        "last_gtid": None if row.last_gtid is None else str(row.last_gtid),
        "first_gtid_base64": None if row.first_gtid is None else row.first_gtid.to_base64(),
        "last_gtid_base64": None if row.last_gtid is None else row.last_gtid.to_base64(),
        "created_at": row.created_at,
        "created": None if row.created_at is None else time_text(row.created_at),
        "bytes": row.bytes,
        "on_disk": row.on_disk,
    }


def spill_lines(rows: Sequence[tuple[SpillStat, int]]) -> Iterator[str]:
    """Yield the lines of the spill segments and what is set aside for each, after those of the log's own."""
    heads = "spill segment", "referred to up to", "created", ">chunks", ">in them", ">bytes", ">on disk"
    cells = [
        (row.name, row.referred_by, time_text(row.created_at), row.chunks, row.raw_bytes, row.bytes, on_disk)
        for row, on_disk in rows
    ]
    return table_lines(heads, cells)


def spill_json(row: SpillStat, on_disk: int) -> dict[str, object]:
    """Return one spill segment for a program."""
    return {
        "number": row.number,
        "name": row.name,
        "referred_by": None if row.referred_by is None else str(row.referred_by),
        "created_at": row.created_at,
        "created": time_text(row.created_at),
        "chunks": row.chunks,
        "raw_bytes": row.raw_bytes,
        "bytes": row.bytes,
        "on_disk": on_disk,
    }


def extent_lines(extent: LogExtent, writer: WriterIndex | None) -> Iterator[str]:
    """Yield the lines of `tranlog log info`, in the order of printReplicationInfo, and after them ours."""
    yield f"log directory: {extent.path}"
    yield f"log user data size: {_megabytes(extent.uncompressed)}"
    yield f"log on-disk size: {_megabytes(extent.on_disk)}"
    yield f"spill user data size: {_megabytes(extent.spill_uncompressed)}"
    yield f"spill on-disk size: {_megabytes(extent.spill_on_disk)}"
    span = extent.span_s
    yield f"log length start to end: {'no event' if span is None else f'{span:.3f}secs ({span / 3600:.2f}hrs)'}"
    for which, at in (("first", extent.first_event), ("last", extent.last_event)):
        yield f"log {which} event time: {'none' if at is None else f'{time_text(at)} UTC'}"
    yield f"now: {time_text(extent.now)} UTC"
    yield from index_lines(extent.index, writer)
    yield f"total user data size: {_megabytes(extent.uncompressed + extent.spill_uncompressed)}"
    yield f"total on-disk size: {_megabytes(extent.on_disk + extent.spill_on_disk)}"
    yield f"log history: {extent.history.hex()}"


def extent_json(extent: LogExtent, writer: WriterIndex | None) -> dict[str, object]:
    """Return the same for a program: sizes in bytes, times in ms since 1970 and as text."""
    span = extent.span_s
    return {
        "path": extent.path,
        "history": extent.history.hex(),
        "segments": extent.segments,
        "log_bytes": {"uncompressed": extent.uncompressed, "on_disk": extent.on_disk},
        "spill_bytes": {"uncompressed": extent.spill_uncompressed, "on_disk": extent.spill_on_disk},
        "total_bytes": {
            "uncompressed": extent.uncompressed + extent.spill_uncompressed,
            "on_disk": extent.on_disk + extent.spill_on_disk,
        },
        "first_event": extent.first_event,
        "last_event": extent.last_event,
        "t_first": None if extent.first_event is None else time_text(extent.first_event),
        "t_last": None if extent.last_event is None else time_text(extent.last_event),
        "time_diff_s": span,
        "time_diff_hours": None if span is None else round(span / 3600, 2),
        "now": extent.now,
        "index": {"stored": extent.index, "writer": None if writer is None else writer.index},
        "reads": None if writer is None else writer.reads,
    }


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.2f}MB"


# --- the commands ----------------------------------------------------------------------------------------


@log_app.command("segments")
def segments(ctx: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """List the segments: number, first and last GTID, when each was created, its size.

    After them the spill segments, which hold large transactions: each with the highest GTID that refers to it. Created
    is the writer's clock in the segment's first record, which survives a copy; in a directory of the Tungsten
    Replicator it is the file's time. Works while the log is written.

    \b
    Example:
      tranlog log segments
      tranlog log segments --dir /backup/log --json
    """
    path = log_of(ctx, directory)
    spill: list[tuple[SpillStat, int]] = []
    hole: CorruptRecordError | None = None
    with Progress() as progress:
        if codec_of(path) is Codec.TUNGSTEN:
            rows = tungsten_rows(path, report=progress.update)
        else:
            with LogReader.open(path) as reader:
                rows = segment_rows(reader, report=progress.update)
                spill = [(one, on_disk_bytes(reader.path, one.name)) for one in reader.spill_segments()]
        try:
            with closing(open_log(path)) as log:
                log.check_whole()
        except CorruptRecordError as exc:
            hole = exc
    shown = {"segments": [segment_json(row) for row in rows], "spill": [spill_json(*row) for row in spill]}
    answer(shown, (*segment_lines(rows), *spill_lines(spill)), as_json)
    if hole is not None:
        raise hole


@log_app.command("info")
def extent(ctx: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """Print how large the log is, from when to when its events are, and what its index covers.

    User data is what was written, on-disk what the file system has allocated for it; the two differ on a file system
    that compresses. Times are the source's. The stored index is as old as its last flush; a running capture is asked
    for its own, and for where its readers got what they read. Works while the log is written.

    \b
    Example:
      tranlog log info
      tranlog log info --json
    """
    path = log_of(ctx, directory)
    with LogReader.open(path) as reader, Progress() as progress:
        found = log_extent(reader, clock=SystemClock(), report=progress.update)
    writer = capture_state(path)
    answer(extent_json(found, writer), extent_lines(found, writer), as_json)


@log_app.command("add")
def add(ctx: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """Close the newest segment and start the next one.

    The closed segment can be trimmed once there is a transaction after it. Fails if the newest holds no transaction
    yet. A running capture does it itself; it also adds segments on its own, every hour if retention_s is below a day,
    else every day.

    \b
    Example:
      tranlog log add
    """
    with upkeep_of(log_of(ctx, directory)) as upkeep:
        done = upkeep.add()
    answer({"added": done.added, "closed": done.closed}, f"added {done.added}; closed {done.closed}", as_json)


@log_app.command("trim")
def trim(
    ctx: typer.Context,
    to_gtid: Annotated[str | None, option("--to-gtid", "GTID", "Up to this transaction, inclusive.")] = None,
    to_time: Annotated[
        str | None, option("--to-time", "TIME", "Segments that were closed by this time, in UTC.")
    ] = None,
    past_holds: Annotated[
        bool, flag("--past-holds", "Even if a pipeline or a follower still needs it; it will report so.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be removed.")] = False,
    yes: Yes = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> int:
    """Remove the oldest segments, whole ones.

    With --to-gtid those that hold nothing after that transaction; with --to-time those that were closed by that time,
    which is when the next one was created (see `tranlog log segments`). Never the newest segment, nor the one with the
    last transaction. A running capture does it itself; it also trims on its own, as retention_s and retention_bytes
    say.

    A GTID is written GTID(1, 15), or as the base64 of its 16 bytes; a time 2011-07-01 15:15:17.5, or as ms since 1970.
    Exit code 1 if a hold keeps some of what was to be removed.

    \b
    Example:
      tranlog log trim --to-gtid 'GTID(1, 15)' --dry-run
      tranlog log trim --to-time '2014-02-03 21:04:47.494' -y
    """
    path = log_of(ctx, directory)
    asked = _asked(to_gtid=to_gtid, to_time=to_time, hard=past_holds)
    if to_gtid is not None:
        with LogReader.open(path) as reader:
            found = find_gtid(reader, Gtid.parse(to_gtid))
            if isinstance(found, OtherEpoch):
                say(f"{found.wanted} is not of this log: seqno {found.wanted.seqno} is {found.found.gtid} here")
                return ExitCode.CHECK_FAILED
    with upkeep_of(path) as upkeep:
        plan = upkeep.trim(msgspec.structs.replace(asked, dry_run=True))
        _tell(plan)
        if plan.gone and not dry_run:
            if not yes:
                confirm(f"Remove {len(plan.gone)} segments, {plan.bytes} bytes, up to seqno {plan.up_to}, of {path}?")
            with Progress(f"trim: removing {len(plan.gone)} segments"):
                plan = upkeep.trim(asked)
    _show(plan, dry_run=dry_run, as_json=as_json)
    return ExitCode.CHECK_FAILED if plan.kept_for else ExitCode.DONE


def _asked(*, to_gtid: str | None, to_time: str | None, hard: bool) -> Trim:
    try:
        match to_gtid, to_time:
            case str(), None:
                gtid = Gtid.parse(to_gtid)
                return Trim(to_seqno=gtid.seqno, told=str(gtid), hard=hard)
            case None, str():
                at_ms = parse_time(to_time)
                return Trim(to_time_ms=at_ms, told=f"{time_text(at_ms)} UTC", hard=hard)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--to-time" if to_gtid is None else "--to-gtid") from exc
    raise typer.BadParameter("give one of --to-gtid and --to-time", param_hint="--to-gtid")


def _tell(plan: Trimmed) -> None:
    for name in plan.kept_for:
        say(f"trim: more could be removed, but {name} still needs it; --past-holds removes it all the same")
    for name in plan.passed:
        say(f"trim: {name} still needs some of what is removed; it will report so when it returns")


def _show(plan: Trimmed, *, dry_run: bool, as_json: bool) -> None:
    names = [segment_name(number) for number in plan.gone]
    begins = plan.first_seqno if not dry_run or plan.up_to is None else Seqno(plan.up_to + 1)
    told = {
        "removed": [] if dry_run else names,
        "segments": names,
        "bytes": plan.bytes,
        "up_to_seqno": plan.up_to,
        "first_seqno": begins,
        "passed": plan.passed,
        "kept_for": plan.kept_for,
        "dry_run": dry_run,
    }
    line = "nothing to remove"
    if names:
        verb = "would remove" if dry_run else "removed"
        begin = "empty" if begins == NO_SEQNO else f"at seqno {begins}"
        line = f"{verb} {names[0]} to {names[-1]}, {len(names)} segments, {plan.bytes} bytes; the log begins {begin}"
    answer(told, line, as_json)
