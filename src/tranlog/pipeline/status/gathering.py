"""Gathering a status: a pipeline's rows at the target, and what the log holds.

Owns the reading; `status` derives the rest. The hard idea: the same rows are read whether the pipeline runs or not,
here or elsewhere, so the status can be read wherever the target can be reached; nothing is changed and no lock is
taken. A status matters most when something is wrong, so a part that cannot be read is replaced by its error.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from tranlog.clock import Clock
from tranlog.codecs.opening import open_readable
from tranlog.disk import OS_DISK, OsDisk
from tranlog.errors import TargetUnavailableError, TranlogError, TransientTargetError
from tranlog.log.files.commit_point import is_member
from tranlog.log.files.directory import LOCK_NAME, read_holder
from tranlog.log.files.holds import read_holds
from tranlog.log.options import LogOptions
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.in_flight import read_in_flight
from tranlog.pipeline.applying.key_shards import key_notes
from tranlog.pipeline.driving.report import how_far
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.by_writes import WritesPlan
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.loading import read_stored, waiting
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.status.status import LogState, PipelineState, Status, channel_states, class_name
from tranlog.table_notes import held_here, notes_of
from tranlog.target.options import TargetOptions, is_there, open_target
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target

_VERSION: Final = importlib.metadata.version("tranlog")
_LOG_CLASS: Final = "tranlog.log.writing.log.Log"
_Seen: TypeAlias = tuple[PipelineState, Sequence[ChannelRow], Sequence[ChannelRow], float]
_FoundT = TypeVar("_FoundT")
_KEPT_S: Final = 10.0
"""A connection that was read through is kept so long for the next reading."""


class KeptTarget:
    """A target that is looked at again and again, through one connection; a server pays dearly for each new one.

    Who comes while another one reads opens a connection of its own. Threads: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: Target | None = None
        self._timer: threading.Timer | None = None

    def read(self, options: TargetOptions, work: Callable[[Target], _FoundT]) -> _FoundT:
        """Return what `work` finds; once more by a new connection where the kept one was lost meanwhile.

        Raises as `open_target`, and what `work` raises.
        """
        kept = self._take()
        for target in (kept, None):
            if target is None:
                target = open_target(options)
            try:
                found = work(target)
            except (TransientTargetError, TargetUnavailableError):
                target.close()
                if target is not kept:
                    raise
            except BaseException:
                target.close()
                raise
            else:
                self._keep(target)
                return found
        raise AssertionError

    def _take(self) -> Target | None:
        with self._lock:
            target, self._target = self._target, None
            return target

    def _keep(self, target: Target) -> None:
        with self._lock:
            before, self._target = self._target, target
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(_KEPT_S, self.close)
            self._timer.daemon = True
            self._timer.start()
        if before is not None:
            before.close()

    def close(self) -> None:
        """Close the connection that is kept; the next reading opens another."""
        target = self._take()
        if target is not None:
            target.close()
        if self._timer is not None:
            self._timer.cancel()


def gather(
    log_dir: str,
    options: ApplyOptions | None,
    *,
    clock: Clock,
    watch_s: float = 0.0,
    since: Status | None = None,
    log_options: LogOptions | None = None,
    process: OperationState | None = None,
    host: str = "",
    service: str = "",
    source: str = "",
    source_event_id: str = "",
    whole: bool = False,
    kept: KeptTarget | None = None,
) -> Status:
    """Read where a log and its pipeline stand; what cannot be read is in the problems, by part: `target`, `log`.

    The target's rows are read twice where they are to be watched, which tells rates; and, where no `process` tells,
    whether a driver moves its row, for which `watch_s` must be above a second. `since`: an earlier reading, which tells
    rates in place of watching. `options` None: of the log alone. `host` and the other texts are what the process knows;
    `whole` reads what only the whole of a status shows. `kept`: through which the target is read; None: through a
    connection for this reading.
    """
    problems: dict[str, TranlogError] = {}
    rows: Sequence[ChannelRow] = ()
    before, watched_s = rows, 0.0
    reader = log = pipeline = None
    with ExitStack() as opened:
        if options is not None:
            try:
                running = None if process is None else not process.state.resting
                pipeline, rows, before, watched_s = _read_target(options, clock, watch_s, running, kept)
            except TranlogError as exc:
                problems["target"] = exc
        monotonic_s = clock.monotonic()
        if since is not None and since.pipeline is not None:
            before, watched_s = since.pipeline.rows, max(monotonic_s - since.monotonic_s, 1e-6)
        try:
            reader = opened.enter_context(open_readable(log_dir))
            log = log_state(reader, log_options or LogOptions(), whole=whole)
            if pipeline is not None:
                behind = how_far(reader, rows, now_ms=clock.now_ms())
                next_shard = None if behind.following is None else behind.following.shard_id
                pipeline = replace(pipeline, lag=behind.lag, next_shard=next_shard)
        except TranlogError as exc:
            problems["log"] = exc
        now_ms = clock.now_ms()
        if pipeline is not None:
            row = pipeline.row
            if whole and reader is not None and row is not None:
                plan = ShardPlan.parse(row.shard_rule, channels=row.channels)
                pipeline = replace(pipeline, notes=(*pipeline.notes, *key_notes(plan, reader)))
            moving = () if pipeline.running is False else rows
            channels = channel_states(
                rows,
                now_ms=now_ms,
                running=pipeline.running,
                starting=process is not None and process.state is State.GOING_ONLINE,
                committed_seqno=None if log is None else log.committed_seqno,
                before=before,
                watched_s=watched_s,
                in_flight=read_in_flight(log_dir, pipeline.options.pipeline, moving, disk=OsDisk()),
            )
            pipeline = replace(pipeline, channels=channels)
            host = host or pipeline.holder.partition(" ")[0]
    return Status(
        now_ms=now_ms,
        monotonic_s=monotonic_s,
        version=_VERSION,
        service=service,
        source=source,
        source_event_id=source_event_id,
        host=host,
        log=log,
        pipeline=pipeline,
        process=process,
        problems=problems,
    )


def _read_target(
    options: ApplyOptions, clock: Clock, watch_s: float, running: bool | None, kept: KeptTarget | None
) -> _Seen:
    """Return the pipeline without its channels, their rows, those that were read before, and how long before."""
    state = PipelineState(options=options, running=bool(running))
    if not is_there(options.target):
        return state, (), (), 0.0

    def read(target: Target) -> _Seen:
        return _read_rows(target, state, clock, watch_s, running)

    if kept is not None and not options.target.in_file:  # a file may be another one the next time
        return kept.read(options.target, read)
    target = open_target(options.target)
    try:
        return read(target)
    finally:
        target.close()


def _read_rows(target: Target, state: PipelineState, clock: Clock, watch_s: float, running: bool | None) -> _Seen:
    name = state.options.pipeline
    row, rows, began = target.positions.read_pipeline(name), target.positions.read_channels(name), clock.monotonic()
    before: Sequence[ChannelRow] = ()
    watched_s = 0.0
    if running is None and (row is None or row.holder == NOBODY):
        running = False
    if row is not None and watch_s > 0 and running is not False:
        clock.sleep(watch_s)
        again = target.positions.read_pipeline(name)
        before, rows = rows, target.positions.read_channels(name)
        watched_s = max(clock.monotonic() - began, 1e-6)
        if running is None:
            running = again is not None and again.moved_since(row)
        row = again or row
    loads = target.positions.read_loads(name)
    waits = waiting(read_stored(loads))
    state = replace(
        state,
        row=row,
        running=running,
        target=target.where,
        target_class=class_name(target),
        assignment=target.positions.read_assignment(name),
        writes=_newest_plan(target, row),
        notes=(*held_here(notes_of(loads)), *[f"{table} {what}" for table, what in waits.items()]),
        waiting_tables=tuple(waits),
        verdicts=tuple(target.positions.read_verdicts(name)),
    )
    return state, rows, before, watched_s


def _newest_plan(target: Target, row: PipelineRow | None) -> WritesPlan | None:
    if row is None or ShardPlan.parse(row.shard_rule, channels=row.channels).by is not ShardBy.WRITES:
        return None
    stored = target.positions.read_plans(row.pipeline)
    return WritesPlan.parse(stored[max(stored)]) if stored else None


def log_state(reader: ReadableLog, options: LogOptions, *, whole: bool = False) -> LogState:
    """Return what an open log holds; `options`: how it is written. Raises HoldError where its holds cannot be read."""
    held, segments = reader.range(), reader.index()
    state = LogState(
        directory=reader.path,
        store_class=_LOG_CLASS if isinstance(reader, LogReader) else class_name(reader),
        options=options,
        first_seqno=held.first_seqno,
        last_seqno=held.last_seqno,
        committed_seqno=held.committed_seqno,
        epoch=held.epoch,
        segments=len(segments),
        size_bytes=sum(segment.bytes for segment in segments),
        holds=tuple(read_holds(reader.path)) if reader.keeps_holds else (),
    )
    if not whole:
        return state
    first, last = reader.header(held.first_seqno), reader.header(held.last_seqno)
    return replace(
        state,
        writer=writer_of(reader.path),
        of_node=is_member(reader.path, OS_DISK),
        history=None if reader.history is None else reader.history.hex(),
        first_epoch=0 if first is None else first.epoch,
        last_event_id="" if last is None else last.event_id,
        last_tstamp=None if last is None else last.tstamp,
    )


def writer_of(path: str) -> str | None:
    """Return who holds the log at `path` for writing, None for nobody. Takes no lock.

    The kernel names no holder of an open-file-description lock, so the name is what the writer left in the file.
    """
    disk = OsDisk()
    try:
        return read_holder(path, disk) if disk.is_locked(os.path.join(path, LOCK_NAME)) else None
    except OSError:
        return None
