"""Where everything stands: source, log, pipeline, and what it waits for.

Owns what is read of the source, and the two ways to show it all; log and pipeline are `gathering`'s. The hard idea: a
status must tell most when something is wrong, so a part that cannot be read is shown with its error, beside the parts
that can, and the exit code is the worst of them. Nothing is changed and no lock is taken, not even for a moment: a
writer that starts meanwhile must get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tranlog.capture.capture import PartRead
from tranlog.capture.load_requests import LoadRequest, read_requests
from tranlog.clock import Clock
from tranlog.errors import DiskFailedError, SourceError, TargetError, TranlogError
from tranlog.ids import NO_SEQNO
from tranlog.listing import time_text
from tranlog.pipeline.rules.progress import LastError
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.rules.troubles import trouble_text
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import ChannelState, LogState, PipelineState, Status, WaitsFor, picked
from tranlog.service.config.config import Config
from tranlog.service.frame.tables import table_lines
from tranlog.service.process.client import RunningPipeline, capture_state
from tranlog.service.process.last_error import last_error
from tranlog.service.process.sockets import CAPTURE_NAME
from tranlog.service.show.loads import load_text
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.target.target import EQUAL, NOBODY, OPEN, VerdictRow

_ASK_S: Final = 2.0
"""How long the pipeline's process may take to answer."""
_CHANNEL_HEADS: Final = (
    *(">channel", ">applied", ">behind", ">transactions", ">changes", ">serial", ">waits", ">tx/s"),
    "commit time (UTC)",
)


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The source: up to where it is captured, where it is itself, and what it keeps for us.

    `waiting` counts transactions in SQLite's outbox, or rows, by `waiting_unit`; None where the source does not tell.
    `in_flight`: the large
    transaction that capture is reading; None for none, and where no capture answers. `error`: why the last capture
    ended, None for no error, and while one runs.
    """

    kind: str
    where: str
    source_id: str
    captured_event_id: str = ""
    captured_tstamp: int | None = None
    now_at: str = ""
    waiting: int | None = None
    retained_bytes: int | None = None
    note: str = ""
    in_flight: PartRead | None = None
    error: LastError | None = None
    waiting_unit: str = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus(Status):
    """A status, with the source's part of it. `file`: of the configuration."""

    file: str
    source_state: SourceState | None = None
    loads: tuple[LoadRequest, ...] = ()


# --- gathering -------------------------------------------------------------------------------------------


def service_status(config: Config, *, clock: Clock, watch_s: float) -> ServiceStatus:
    """Read all parts; what cannot be read comes back as problems.

    `watch_s`: how long to watch a pipeline, which tells whether its driver is alive, and rates.
    """
    options = process = source = None
    if config.target is not None:
        options = config.apply_options()
        process = _asked(config)
    found = gather(
        config.log_dir,
        options,
        clock=clock,
        watch_s=watch_s,
        log_options=config.log,
        process=process,
        service=config.service,
        whole=True,
    )
    problems = dict(found.problems)
    if "target" in problems and not isinstance(problems["target"], TargetError):
        raise problems["target"]
    if config.source is not None:
        try:
            source = _source_state(config.source, found.log)
        except SourceError as exc:
            problems["source"] = exc
    loads: tuple[LoadRequest, ...] = ()
    try:
        loads = tuple(read_requests(config.log_dir))
    except DiskFailedError as exc:
        problems.setdefault("log", exc)
    pipeline = found.pipeline
    if pipeline is not None and pipeline.row is None:  # what else is there of it is no pipeline's
        pipeline = PipelineState(options=pipeline.options, target=pipeline.target, running=False)
        found = replace(found, process=process if process is not None and process.state.resting else None)
    if pipeline is not None:
        pipeline = replace(pipeline, kept_error=last_error(config.log_dir, pipeline.options.pipeline))
    given = {name: getattr(found, name) for name in Status.__slots__} | {
        "pipeline": pipeline,
        "problems": {part: problems[part] for part in ("log", "source", "target") if part in problems},
    }
    return ServiceStatus(**given, file=config.file, source_state=source, loads=loads)


def _source_state(options: SourceOptions, log: LogState | None) -> SourceState:
    captured = "" if log is None else log.last_event_id
    found = source_kind(options.kind).standing(options, captured)
    capture = None if log is None or log.writer is None else capture_state(log.directory, timeout_s=_ASK_S)
    return SourceState(
        kind=options.kind,
        where=options.where,
        source_id=options.source_id,
        captured_event_id=captured,
        captured_tstamp=None if log is None else log.last_tstamp,
        in_flight=None if capture is None else capture.in_flight,
        error=None if log is None or log.writer is not None else last_error(log.directory, CAPTURE_NAME),
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


# --- what it waits for -----------------------------------------------------------------------------------


def waits_for(status: ServiceStatus) -> Iterator[str]:
    """Say what keeps the whole from going on, first things first. Pure."""
    source, log, pipeline = status.source_state, status.log, status.pipeline
    if log is not None and log.writer is None and log.of_node:
        yield "its node: nobody writes the log (`tranlog node run`)"
    elif log is None or log.writer is None:
        waiting = f"; {source.waiting} {source.waiting_unit} wait in the source" if source and source.waiting else ""
        yield f"capture: nobody writes the log{waiting} (`tranlog capture`)"
    elif source is not None and source.waiting:
        yield f"capture, which has {source.waiting} {source.waiting_unit} to go"
    if pipeline is None:
        yield from map(trouble_text, () if status.process is None else status.process.troubles)
        return
    following = pipeline.restart_seqno + 1
    match status.waits_for:
        case WaitsFor.OFFLINE if status.process is not None:
            yield f"its operator: pipeline {pipeline.options.pipeline} is {status.process.state} (`tranlog online`)"
        case WaitsFor.OFFLINE:
            yield f"apply: pipeline {pipeline.options.pipeline} does not run, {_why(pipeline)} (`tranlog apply`)"
        case WaitsFor.TROUBLE:
            assert status.process is not None
            yield from map(trouble_text, status.process.troubles)
        case WaitsFor.SERIAL:
            yield f"channel 0, which applies seqno {following} alone: it is serial"
        case WaitsFor.CHANNEL:
            slowest = [row.channel for row in pipeline.rows if row.applied_seqno == pipeline.restart_seqno]
            which = "channel" if len(slowest) == 1 else "channels"
            yield f"{which} {', '.join(map(str, slowest))} at seqno {following}"
        case WaitsFor.SOURCE if log is not None and log.writer is not None:
            but = ", ".join(pipeline.waiting_tables)
            beside = f", but not of tables that wait for a load: {but}" if but else ""
            yield f"the source: everything that was committed there is at the target{beside}"


def _why(pipeline: PipelineState) -> str:
    if pipeline.error is not None:
        return f"it ended by an error at {time_text(pipeline.error.at_ms)} UTC"
    if not pipeline.channels:
        return "it has never run here"
    return "it was stopped" if pipeline.holder == NOBODY else "its driver is not alive"


# --- for programs ----------------------------------------------------------------------------------------


def status_json(status: ServiceStatus) -> dict[str, Any]:
    """Return the form that `status --json` prints."""
    log, pipeline = status.log, status.pipeline
    shown = picked(status, "service file at=now_ms source=source_state log pipeline")
    if log is not None:
        shown["log"] = picked(log, "directory writer history first_seqno last_seqno committed_seqno first_epoch epoch")
        shown["log"] |= picked(log, "segments bytes=size_bytes")
        shown["log"]["holds"] = [picked(one, "name restart_seqno written_at") for one in log.holds]
    if pipeline is not None:
        shown["pipeline"] = {
            **picked(pipeline, "options.pipeline"),
            "target": target_text(pipeline),
            **picked(pipeline, "running"),
            **picked(status, "process.state process.slots process.troubles"),
            **picked(pipeline, "error notes holder"),
            "verified": [picked(one, "table verdict seqno verified_through") for one in pipeline.verdicts],
            "shard_rule": "" if pipeline.row is None else pipeline.row.shard_rule,
            **picked(pipeline, "row.stop_at_seqno restart_seqno lag_seqnos=lag.seqnos lag_ms=lag.ms"),
            **picked(pipeline, "transactions_per_s changes_per_s"),
            "channels": [
                picked(one, "row.channel row.applied_seqno row.epoch row.event_id row.tstamp row.updated_at behind")
                | picked(one, "transactions_per_s counters in_flight")
                for one in pipeline.channels
            ],
            "shards": pipeline.assignment,
        }
    elif status.process is not None:
        shown["pipeline"] = picked(status, "process.pipeline process.state process.slots process.troubles")
    shown["loads"] = msgspec.to_builtins(status.loads)
    shown["waits_for"] = list(waits_for(status))
    shown["problems"] = [
        {"part": part, "type": type(exc).__name__, "message": str(exc)} for part, exc in status.problems.items()
    ]
    return shown


# --- for people ------------------------------------------------------------------------------------------


def status_lines(status: ServiceStatus) -> Iterator[str]:
    """Yield the human form."""
    now = status.now_ms
    yield f"service   {status.service} ({status.file})"
    if status.source_state is not None:
        yield from _source_lines(status.source_state, now)
    if status.log is not None:
        yield from _log_lines(status.log, now)
    for load in status.loads:
        yield f"          {load_text(load)}"
    if status.pipeline is not None:
        yield from _pipeline_lines(status.pipeline, status.process, now)
    elif status.process is not None:
        yield f"pipeline  {status.process.pipeline}, {status.process.state}"
    for part, problem in status.problems.items():
        yield f"{part:<9} PROBLEM: {problem}"
    for number, what in enumerate(waits_for(status)):
        yield f"{'waits for' if not number else '':<9} {what}"


def target_text(pipeline: PipelineState) -> str:
    """Name the target, or say that it is not there yet."""
    if pipeline.target is None:
        return f"{pipeline.options.target.path} (not made yet)"
    return pipeline.target


def _source_lines(source: SourceState, now: int) -> Iterator[str]:
    yield f"source    {source.kind} {source.where}, source id {source.source_id}"
    if source.captured_event_id and source.captured_tstamp is not None:
        when = f"{time_text(source.captured_tstamp)} UTC, {_seconds(now - source.captured_tstamp)} ago"
        yield f"          captured up to {source.captured_event_id} ({when})"
    else:
        yield "          nothing captured yet"
    if source.now_at:
        yield f"          is at {source.now_at}"
    if source.in_flight is not None:
        yield f"          capture is {part_text(source.in_flight)}, for {_seconds(now - source.in_flight.began_at)}"
    if source.error is not None:
        yield f"          capture {_ended(source.error)}"
    if source.waiting is not None:
        yield f"          outbox: {source.waiting} {source.waiting_unit}, {_size(source.retained_bytes or 0)}"
    elif source.retained_bytes is not None:
        yield f"          slot: keeps {_size(source.retained_bytes)} of WAL"
    if source.note:
        yield f"          {source.note}"


def _log_lines(log: LogState, now: int) -> Iterator[str]:
    epochs = f"epoch {log.epoch}" if log.first_epoch == log.epoch else f"epochs {log.first_epoch} to {log.epoch}"
    writer = "nobody" if log.writer is None else log.writer
    yield f"log       {log.directory}, written by {writer}"
    yield f"          seqno {log.first_seqno} to {log.last_seqno}, committed {log.committed_seqno}, {epochs}"
    yield f"          {log.segments} segments, {_size(log.size_bytes)}"
    for one in log.holds:
        restart = one.restart_seqno
        upto = "everything (its file is damaged)" if restart is None else f"seqno {max(restart, 0)} on"
        yield f"          held by {one.name}: {upto}, {_seconds(now - one.written_at)} ago"


def _verified_lines(verdicts: Sequence[VerdictRow]) -> Iterator[str]:
    """Say up to where tables were equal: all in one line, and each whose last verdict is another in one of its own."""
    others = [one for one in verdicts if one.verdict != EQUAL]
    if equal := sorted([(one.verified_through, one.table) for one in verdicts if one.verdict == EQUAL]):
        (least, table), most = equal[0], equal[-1][0]
        beyond = f" ({table}) or later, up to {most}" if most > least else ""
        yield f"{len(equal)} tables verified through seqno {least}{beyond}"
    for one in others:
        said = "no verdict yet" if one.verdict == OPEN else one.verdict
        through = one.verified_through
        before = "never equal before" if through == NO_SEQNO else f"verified through seqno {through}"
        yield f"{one.table}: {said} at seqno {one.seqno}, {before}"


def _pipeline_lines(pipeline: PipelineState, process: OperationState | None, now: int) -> Iterator[str]:
    yield f"target    {target_text(pipeline)}"
    if pipeline.running is None:
        state = f"last run by {pipeline.holder}; not checked whether it runs"
    elif pipeline.running:
        state = "not claimed yet" if pipeline.holder == NOBODY else f"run by {pipeline.holder}"
    else:
        state = "not running" if process is None else "at rest"
    if process is not None:
        state += f", {process.state}"
    yield f"pipeline  {pipeline.options.pipeline}, {state}"
    error, lag, channels = pipeline.error, pipeline.lag, pipeline.channels
    if error is not None:
        yield f"          {_ended(error)}"
    for note in pipeline.notes:
        yield f"          {note}"
    for line in _verified_lines(pipeline.verdicts):
        yield f"          {line}"
    if process is not None and process.state in (State.ONLINE, State.DEGRADED) and process.slots < len(channels):
        yield f"          {process.slots} slots for {len(channels)} channels"
    if not channels:
        return
    rate = "" if pipeline.transactions_per_s is None else f", {pipeline.transactions_per_s:.0f} transactions/s"
    lag_text = "not known" if lag is None else f"{lag.seqnos} transactions, {lag.ms / 1000:.1f} s"
    yield f"          applied up to {pipeline.restart_seqno}, lag {lag_text}{rate}"
    yield from table_lines(_CHANNEL_HEADS, map(_channel_cells, channels), indent=10)
    for one in channels:
        if one.in_flight is not None:
            age = f"{_seconds(now - one.in_flight.began_at)}, told {_seconds(now - one.in_flight.written_at)} ago"
            yield f"          channel {one.row.channel} is in {one.in_flight.text}, for {age}"


def _channel_cells(one: ChannelState) -> tuple[object, ...]:
    row, counts = one.row, one.counters
    rate = None if one.transactions_per_s is None else f"{one.transactions_per_s:.0f}"
    work = counts.transactions, counts.changes, counts.serial, counts.waits
    return row.channel, row.applied_seqno, one.behind, *work, rate, time_text(row.tstamp) if row.epoch else None


def _ended(error: LastError) -> str:
    return f"ended at {time_text(error.at_ms)} UTC by {error.type}: {error.message}"


def part_text(part: PartRead) -> str:
    """Say how far a capture is inside a large transaction."""
    return f"in a large transaction, {part.changes} changes so far, {_size(part.read_bytes)}"


def _seconds(ms: int) -> str:
    seconds = max(0, ms) / 1000
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _size(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size} bytes"
