"""Gathering what the views of a pipeline need: its rows at the target, and what the log holds.

Owns the reading; what a view shows is `view`'s. The hard idea: the same rows are read whether the pipeline runs or
not, here or elsewhere, so whoever reaches the target can look; nothing is changed and no lock is taken.

Source: issue 7, item 6.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Final

from tranlog.clock import Clock
from tranlog.disk import OsDisk
from tranlog.errors import LogError
from tranlog.log.files.positions import read_holds
from tranlog.log.options import LogOptions
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.in_flight import read_in_flight
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.status.view import LogFacts, PipelineFacts, class_name
from tranlog.target.options import is_there, open_target
from tranlog.target.target import NOBODY
from tranlog.tungsten.reading.translated import open_readable

_LOG_CLASS: Final = "tranlog.log.writing.log.Log"


def log_facts(log_dir: str, options: LogOptions) -> LogFacts:
    """Read what a log holds; `options`: how it is written. Raises LogMissingError and the other errors of opening it.

    Raises HoldError where its holds cannot be read.
    """
    with open_readable(log_dir) as reader:
        return facts_of(reader, options)


def log_facts_if_readable(log_dir: str, options: LogOptions) -> LogFacts | None:
    """Read what a log holds, for what can do without; None where it cannot be read."""
    try:
        return log_facts(log_dir, options)
    except LogError:
        return None


def facts_of(reader: ReadableLog, options: LogOptions) -> LogFacts:
    """Return what an open log holds, beside its options. Raises HoldError."""
    found, segments = reader.range(), reader.index()
    return LogFacts(
        directory=reader.path,
        checksum=options.checksum,
        segment_bytes=options.segment_bytes,
        retention_s=options.retention_s,
        flush_interval_s=options.flush_interval_s,
        sync_on_flush=options.sync_on_flush,
        first_seqno=found.first_seqno,
        last_seqno=found.last_seqno,
        committed_seqno=found.committed_seqno,
        epoch=found.epoch,
        segments=len(segments),
        bytes=sum(segment.bytes for segment in segments),
        store_class=_LOG_CLASS if isinstance(reader, LogReader) else class_name(reader),
        holds={one.name: one.restart_seqno for one in read_holds(reader.path)} if reader.keeps_holds else {},
    )


def pipeline_facts(
    options: ApplyOptions,
    *,
    clock: Clock,
    watch_s: float,
    running: bool | None = None,
    service: str = "",
    source: str = "",
    source_event_id: str = "",
) -> PipelineFacts:
    """Read a pipeline's rows, twice where it is to be watched for a moment, which tells rates.

    `running`: whether it runs, where that is known; None: it is told from its driver's moving, for which `watch_s` must
    be above a second; else it is not known, unless nobody holds it. The texts are `PipelineFacts`'.

    Raises TargetUnavailableError.
    """
    name = options.pipeline
    facts = PipelineFacts(
        pipeline=name,
        row=None,
        channels=(),
        assignment={},
        running=running,
        group_transactions=options.group.transactions,
        group_s=options.group.seconds,
        idle_every=options.idle_every,
        max_offline_interval_s=options.max_offline_interval_s,
        filters=options.filters,
        target=options.target.kind,
        target_class="tranlog.target.target.Target",
        version=importlib.metadata.version("tranlog"),
        now_ms=clock.now_ms(),
        parallelization=options.parallelization,
        service=service,
        source=source,
        source_event_id=source_event_id,
    )
    if not is_there(options.target):
        return replace(facts, running=bool(running))
    target = open_target(options.target)
    try:
        row, channels, began = (
            target.positions.read_pipeline(name),
            target.positions.read_channels(name),
            clock.monotonic(),
        )
        before, watched_s = [], 0.0
        alive = False if running is None and (row is None or row.holder == NOBODY) else running
        if row is not None and watch_s > 0 and (running or (running is None and row.holder != NOBODY)):
            clock.sleep(watch_s)
            again = target.positions.read_pipeline(name)
            before, channels = channels, target.positions.read_channels(name)
            watched_s = max(clock.monotonic() - began, 1e-6)
            if running is None:
                alive = again is not None and again.moved_since(row)
            row = again or row
        return replace(
            facts,
            row=row,
            channels=tuple(channels),
            before=tuple(before),
            watched_s=watched_s,
            assignment=target.positions.read_assignment(name),
            in_flight=read_in_flight(options.log_dir, name, () if alive is False else channels, disk=OsDisk()),
            running=alive,
            target=target.where,
            target_class=class_name(target),
            now_ms=clock.now_ms(),
        )
    finally:
        target.close()
