"""Where everything stands: source, log, pipeline, and what it waits for.

Owns gathering it and the two ways to show it. The hard idea: a status must tell most when something is wrong, so a
part that cannot be read is shown with its error, beside the parts that can, and the exit code is the worst of them.
Nothing is changed and no lock is taken, not even for a moment: a writer that starts meanwhile must get it.

Source: design/conventions.md 6.7; design/asks.md 6 and 7; design/sources.md, "`status` that says what it waits for".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tranlog.capture.capture import PartRead
from tranlog.clock import Clock
from tranlog.disk import OsDisk
from tranlog.errors import SourceError, TargetError, TranlogError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.directory import LOCK_NAME, read_holder
from tranlog.log.files.positions import read_holds
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.applying.in_flight import read_in_flight
from tranlog.pipeline.applying.key_shards import key_notes
from tranlog.pipeline.driving.operation import OperationState
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import Counters, InFlight, LastError, lag, last_error, restart_seqno
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.rules.troubles import Trouble, trouble_text
from tranlog.service.config.config import Config
from tranlog.service.frame.exits import Told
from tranlog.service.process.client import RunningPipeline, runtime_dir
from tranlog.service.process.control import CAPTURE_NAME, call, socket_paths
from tranlog.service.process.requests import GetState
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.options import is_there, open_target
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target
from tranlog.tungsten.reading.text import time_text
from tranlog.tungsten.reading.translated import open_readable

_ASK_S: Final = 2.0
"""How long the pipeline's process may take to answer."""


class HoldState(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where somebody still needs the log."""

    name: str
    restart_seqno: int | None
    written_at: int


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """The log. Seqnos are -1 where there is none; `writer` is None while nobody writes.

    `history` is the identity of its history, in hex; None in the Java replicator's codec.
    """

    directory: str
    writer: str | None
    history: str | None = None
    first_seqno: int = NO_SEQNO
    last_seqno: int = NO_SEQNO
    committed_seqno: int = NO_SEQNO
    first_epoch: int = 0
    epoch: int = 0
    segments: int = 0
    bytes: int = 0
    holds: tuple[HoldState, ...] = ()


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The source: up to where it is captured, where it is itself, and what it keeps for us.

    `waiting` counts transactions in SQLite's outbox; None where the source does not tell. `in_flight`: the large
    transaction that capture is reading; None for none, and where no capture answers.
    """

    kind: str
    where: str
    source_id: str
    captured_event_id: str = ""
    captured_tstamp: int | None = None
    now_at: str = ""
    waiting: int | None = None
    retained_bytes: int | None = None
    in_flight: PartRead | None = None


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of the pipeline; `behind` counts the committed transactions after its position, None: not known.

    `in_flight`: the large transaction that it is in, None for none.
    """

    channel: int
    applied_seqno: int
    epoch: int
    event_id: str
    tstamp: int
    updated_at: int
    behind: int | None
    transactions_per_s: float | None
    counters: dict[str, int]
    in_flight: InFlight | None = None


class PipelineState(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline by the target's tables. Rates are None unless it was watched for a moment.

    `state`, `slots` and `troubles` are its process's, asked where it listens; None where nobody answered. `running`:
    None where nobody answered and it was not watched. `error`: why the last run ended, until the next begins. The
    lag is None where the log cannot be read.
    """

    pipeline: str
    target: str
    running: bool | None
    state: State | None = None
    slots: int | None = None
    troubles: tuple[Trouble, ...] | None = None
    error: LastError | None = None
    notes: tuple[str, ...] = ()
    holder: str = ""
    shard_rule: str = ""
    stop_at_seqno: int | None = None
    restart_seqno: int = NO_SEQNO
    lag_seqnos: int | None = None
    lag_ms: int | None = None
    transactions_per_s: float | None = None
    changes_per_s: float | None = None
    channels: tuple[ChannelState, ...] = ()
    shards: dict[str, int] = {}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A part that could not be read."""

    part: str
    type: str
    message: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as `status --json` prints it."""

    service: str
    file: str
    at: int
    source: SourceState | None
    log: LogState | None
    pipeline: PipelineState | None
    waits_for: tuple[str, ...]
    problems: tuple[Problem, ...]


# --- gathering -------------------------------------------------------------------------------------------


def writer_of(path: str) -> str | None:
    """Return who holds the log at `path` for writing, None for nobody. Takes no lock.

    The kernel names no holder of an open-file-description lock, so the name is what the writer left in the file.
    """
    disk = OsDisk()
    try:
        return read_holder(path, disk) if disk.is_locked(os.path.join(path, LOCK_NAME)) else None
    except OSError:
        return None


def gather(config: Config, *, clock: Clock, watch_s: float) -> tuple[Status, list[TranlogError]]:
    """Read all parts; what cannot be read comes back as problems, and as the errors themselves.

    `watch_s`: how long to watch a pipeline, which tells whether its driver is alive, and rates.
    """
    errors: list[TranlogError] = []
    problems: list[Problem] = []

    def failed(part: str, exc: TranlogError) -> None:
        errors.append(exc)
        problems.append(Problem(part=part, type=type(exc).__name__, message=str(exc)))

    log = reader = pipeline = source = None
    captured: tuple[str, int] | None = None
    try:
        try:
            reader = open_readable(config.log_dir)
            log, captured = _log_state(reader)
        except TranlogError as exc:
            failed("log", exc)
        if config.source is not None:
            try:
                source = _source_state(config.source, captured)
                if log is not None and log.writer is not None:
                    source = msgspec.structs.replace(source, in_flight=_part_read(config.log_dir))
            except SourceError as exc:
                failed("source", exc)
        if config.target is not None:
            try:
                pipeline = _pipeline_state(config, reader, log, clock, watch_s, _asked(config))
            except TargetError as exc:
                failed("target", exc)
        return (
            Status(
                service=config.service,
                file=config.file,
                at=clock.now_ms(),
                source=source,
                log=log,
                pipeline=pipeline,
                waits_for=tuple(_waits(source, log, pipeline, reader)),
                problems=tuple(problems),
            ),
            errors,
        )
    finally:
        if reader is not None:
            reader.close()


def _log_state(reader: ReadableLog) -> tuple[LogState, tuple[str, int] | None]:
    held = reader.range()
    segments = reader.index()
    first, last = reader.header(held.first_seqno), reader.header(held.last_seqno)
    state = LogState(
        directory=reader.path,
        writer=writer_of(reader.path),
        history=None if reader.history is None else reader.history.hex(),
        first_seqno=held.first_seqno,
        last_seqno=held.last_seqno,
        committed_seqno=held.committed_seqno,
        first_epoch=0 if first is None else first.epoch,
        epoch=held.epoch,
        segments=len(segments),
        bytes=sum(segment.bytes for segment in segments),
        holds=tuple(
            HoldState(name=one.name, restart_seqno=one.restart_seqno, written_at=one.written_at)
            for one in read_holds(reader.path)
        ),
    )
    return state, None if last is None else (last.event_id, last.tstamp)


def _source_state(options: SourceOptions, captured: tuple[str, int] | None) -> SourceState:
    event_id, tstamp = ("", None) if captured is None else captured
    found = source_kind(options.kind).standing(options, event_id)
    return SourceState(
        kind=options.kind,
        where=options.where,
        source_id=options.source_id,
        captured_event_id=event_id,
        captured_tstamp=tstamp,
        **found._asdict(),
    )


def source_text(options: SourceOptions | None) -> str:
    """Name a source in a few words; empty where none is configured."""
    return "" if options is None else f"{options.kind} {options.where}"


def _asked(config: Config) -> OperationState | None:
    """Ask the pipeline's process how it stands; None where none answers."""
    try:
        return RunningPipeline.of_config(config).state(timeout_s=_ASK_S)
    except TranlogError:  # most often because it does not run; what else stands in its way `tranlog state` tells
        return None


def _part_read(log_dir: str) -> PartRead | None:
    """Ask whoever captures what large transaction it is reading; None where nobody answers, or for none."""
    addresses = socket_paths(log_dir, CAPTURE_NAME, runtime_dir=runtime_dir())
    try:
        return msgspec.convert(call(addresses, GetState(), timeout_s=_ASK_S).get("in_flight"), PartRead | None)
    except (TranlogError, Told, msgspec.ValidationError):
        return None


def _pipeline_state(
    config: Config,
    reader: ReadableLog | None,
    log: LogState | None,
    clock: Clock,
    watch_s: float,
    asked: OperationState | None,
) -> PipelineState:
    name, options = config.pipeline.name, config.wanted_target()
    if not is_there(options):
        return PipelineState(pipeline=name, target=f"{options.path} (not made yet)", running=False)
    target = open_target(options)
    try:
        row, channels = target.read_pipeline(name), target.read_channels(name)
        if row is None:
            return PipelineState(pipeline=name, target=target.describe(), running=False)
        before, began = channels, clock.monotonic()
        running = None if row.holder != NOBODY else False
        if row.holder != NOBODY and watch_s > 0:
            clock.sleep(watch_s)
            again = target.read_pipeline(name)
            channels = target.read_channels(name)
            running = again is not None and again.moved_since(row)
            row = row if again is None else again
        seconds = clock.monotonic() - began
        if asked is not None:
            running = not asked.state.resting
        shown = _shown_pipeline(target, row, before, channels, seconds, running, reader, log, clock.now_ms())
        if asked is None:
            return shown
        return msgspec.structs.replace(shown, state=asked.state, slots=asked.slots, troubles=asked.troubles)
    finally:
        target.close()


def _shown_pipeline(
    target: Target,
    row: PipelineRow,
    before: Sequence[ChannelRow],
    channels: Sequence[ChannelRow],
    seconds: float,
    running: bool | None,
    reader: ReadableLog | None,
    log: LogState | None,
    now_ms: int,
) -> PipelineState:
    plan = ShardPlan.parse(row.shard_rule, channels=row.channels)
    restart = restart_seqno(channels)
    following = None if reader is None else reader.header(Seqno(restart + 1))
    next_tstamp = None if following is None else following.tstamp
    behind = None
    if log is not None:
        behind = lag(restart=restart, committed=Seqno(log.committed_seqno), next_tstamp=next_tstamp, now_ms=now_ms)
    earlier = {one.channel: Counters.parse(one.stats) for one in before}
    large: dict[int, InFlight] = {}
    if reader is not None and running is not False:
        large = read_in_flight(reader.path, row.pipeline, channels, disk=OsDisk())
    shown = []
    rates = []
    for one in channels:
        counters = Counters.parse(one.stats)
        rate = None
        if running and seconds > 0 and before is not channels and one.channel in earlier:
            rate = (counters.transactions - earlier[one.channel].transactions) / seconds
            rates.append((rate, (counters.changes - earlier[one.channel].changes) / seconds))
        shown.append(
            ChannelState(
                channel=one.channel,
                applied_seqno=one.applied_seqno,
                epoch=one.epoch,
                event_id=one.event_id,
                tstamp=one.tstamp,
                updated_at=one.updated_at,
                behind=None if log is None else max(0, log.committed_seqno - one.applied_seqno),
                transactions_per_s=rate,
                counters={name: getattr(counters, name) for name in Counters.__slots__},
                in_flight=large.get(one.channel),
            )
        )
    return PipelineState(
        pipeline=row.pipeline,
        target=target.describe(),
        running=running,
        error=None if running else last_error(channels),
        notes=() if reader is None else tuple(key_notes(plan, reader)),
        holder=row.holder,
        shard_rule=row.shard_rule,
        stop_at_seqno=row.stop_at_seqno,
        restart_seqno=restart,
        lag_seqnos=None if behind is None else behind.seqnos,
        lag_ms=None if behind is None else behind.ms,
        transactions_per_s=sum(rate for rate, _ in rates) if rates else None,
        changes_per_s=sum(rate for _, rate in rates) if rates else None,
        channels=tuple(shown),
        shards=target.read_assignment(row.pipeline),
    )


# --- what it waits for -----------------------------------------------------------------------------------


def _waits(
    source: SourceState | None, log: LogState | None, pipeline: PipelineState | None, reader: ReadableLog | None
) -> Iterator[str]:
    next_shard = None
    if pipeline is not None and reader is not None and pipeline.lag_seqnos:
        header = reader.header(Seqno(pipeline.restart_seqno + 1))
        next_shard = None if header is None else header.shard_id
    yield from waits_for(source, log, pipeline, next_shard)


def waits_for(
    source: SourceState | None, log: LogState | None, pipeline: PipelineState | None, next_shard: str | None
) -> Iterator[str]:
    """Say what keeps the whole from going on, first things first. Pure.

    `next_shard` is the shard of the first transaction that is not applied.
    """
    if log is None or log.writer is None:
        waiting = f"; {source.waiting} transactions wait in the source" if source and source.waiting else ""
        yield f"capture: nobody writes the log{waiting} (`tranlog capture`)"
    elif source is not None and source.waiting:
        yield f"capture, which has {source.waiting} transactions to go"
    if pipeline is None:
        return
    if pipeline.running is False:
        why = "it has never run here" if not pipeline.channels else "its driver is not alive"
        if pipeline.channels and pipeline.holder == NOBODY:
            why = "it was stopped"
        if pipeline.error is not None:
            why = f"it ended by an error at {time_text(pipeline.error.at_ms)} UTC"
        yield f"apply: pipeline {pipeline.pipeline} does not run, {why} (`tranlog apply`)"
    elif pipeline.troubles:
        for trouble in pipeline.troubles:
            yield trouble_text(trouble)
    elif pipeline.lag_seqnos:
        slowest = [one.channel for one in pipeline.channels if one.applied_seqno == pipeline.restart_seqno]
        if next_shard == UNKNOWN_SHARD:
            yield f"channel 0, which applies seqno {pipeline.restart_seqno + 1} alone: it is serial"
        else:
            which = "channel" if len(slowest) == 1 else "channels"
            yield f"{which} {', '.join(map(str, slowest))} at seqno {pipeline.restart_seqno + 1}"
    elif log is not None and log.writer is not None:
        yield "the source: everything that was committed there is at the target"


# --- for people ------------------------------------------------------------------------------------------


def status_lines(status: Status) -> Iterator[str]:
    """Yield the human form."""
    yield f"service   {status.service} ({status.file})"
    if status.source is not None:
        yield from _source_lines(status.source, status.at)
    if status.log is not None:
        yield from _log_lines(status.log, status.at)
    if status.pipeline is not None:
        yield from _pipeline_lines(status.pipeline, status.at)
    for problem in status.problems:
        yield f"{problem.part:<9} PROBLEM: {problem.message}"
    for number, what in enumerate(status.waits_for):
        yield f"{'waits for' if not number else '':<9} {what}"


def _source_lines(source: SourceState, now: int) -> Iterator[str]:
    yield f"source    {source.kind} {source.where}, source id {source.source_id}"
    if source.captured_event_id and source.captured_tstamp is not None:
        when = f"{time_text(source.captured_tstamp)} UTC, {_seconds(now - source.captured_tstamp)} ago"
        yield f"          captured up to {source.captured_event_id} ({when})"
    else:
        yield "          nothing captured yet"
    if source.now_at:
        yield f"          stands at {source.now_at}"
    if source.in_flight is not None:
        yield f"          capture is {part_text(source.in_flight)}, for {_seconds(now - source.in_flight.began_at)}"
    if source.waiting is not None:
        yield f"          outbox: {source.waiting} transactions, {_size(source.retained_bytes or 0)}"


def _log_lines(log: LogState, now: int) -> Iterator[str]:
    epochs = f"epoch {log.epoch}" if log.first_epoch == log.epoch else f"epochs {log.first_epoch} to {log.epoch}"
    writer = "nobody" if log.writer is None else log.writer
    yield f"log       {log.directory}, written by {writer}"
    yield f"          seqno {log.first_seqno} to {log.last_seqno}, committed {log.committed_seqno}, {epochs}"
    yield f"          {log.segments} segments, {_size(log.bytes)}"
    for one in log.holds:
        restart = one.restart_seqno
        upto = "everything (its file is damaged)" if restart is None else f"seqno {max(restart, 0)} on"
        yield f"          held by {one.name}: {upto}, {_seconds(now - one.written_at)} ago"


def _pipeline_lines(pipeline: PipelineState, now: int) -> Iterator[str]:
    yield f"target    {pipeline.target}"
    if pipeline.running is None:
        state = f"last run by {pipeline.holder}; whether it runs was not looked at"
    else:
        state = f"run by {pipeline.holder}" if pipeline.running else "not running"
    if pipeline.state is not None:
        state += f", {pipeline.state}"
    yield f"pipeline  {pipeline.pipeline}, {state}"
    error = pipeline.error
    if error is not None:
        yield f"          ended at {time_text(error.at_ms)} UTC by {error.type}: {error.message}"
    for note in pipeline.notes:
        yield f"          {note}"
    if pipeline.running and pipeline.slots is not None and pipeline.slots < len(pipeline.channels):
        yield f"          {pipeline.slots} slots for {len(pipeline.channels)} channels"
    if not pipeline.channels:
        return
    rate = "" if pipeline.transactions_per_s is None else f", {pipeline.transactions_per_s:.0f} transactions/s"
    lag_text = "not known"
    if pipeline.lag_seqnos is not None and pipeline.lag_ms is not None:
        lag_text = f"{pipeline.lag_seqnos} transactions, {pipeline.lag_ms / 1000:.1f} s"
    yield f"          applied up to {pipeline.restart_seqno}, lag {lag_text}{rate}"
    yield "          channel  applied   behind  transactions    changes  serial  waits      tx/s  commit time (UTC)"
    for one in pipeline.channels:
        rate = "-" if one.transactions_per_s is None else f"{one.transactions_per_s:.0f}"
        behind = "-" if one.behind is None else one.behind
        when = time_text(one.tstamp) if one.epoch else "-"
        counts = one.counters
        yield (
            f"          {one.channel:>7} {one.applied_seqno:>8} {behind:>8} {counts['transactions']:>13} "
            f"{counts['changes']:>10} {counts['serial']:>7} {counts['waits']:>6} {rate:>9}  {when}"
        )
    for one in pipeline.channels:
        if one.in_flight is not None:
            age = f"{_seconds(now - one.in_flight.began_at)}, told {_seconds(now - one.in_flight.written_at)} ago"
            yield f"          channel {one.channel} is in {one.in_flight.text}, for {age}"


def part_text(part: PartRead) -> str:
    """Say how far a capture is inside a large transaction."""
    return f"in a large transaction, {part.changes} changes so far, {_size(part.read_bytes)}"


def _seconds(ms: int) -> str:
    seconds = max(0, ms) / 1000
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _size(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size} bytes"
