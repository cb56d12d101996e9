"""`status -name …`: gathering what a view needs, and printing it as the ancestor does.

Owns reading log and target for a view, and the two forms of print. What the fields are is `pipeline/view`'s. The hard
idea: it reads the same rows whether the pipeline runs or not, here or elsewhere; only what somebody waits for is known
to the running process alone, and is asked of it.

Source: on-disk-parallel-queues, the printed status; conformance/tungsten.md A9; issue 7, item 6.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from tranlog.clock import Clock
from tranlog.log.log import LogOptions
from tranlog.log.readable import ReadableLog
from tranlog.pipeline.apply import ApplyOptions
from tranlog.pipeline.operation import OperationState
from tranlog.pipeline.progress import Counters
from tranlog.pipeline.view import (
    AppliedWatch,
    LogFacts,
    PipelineFacts,
    channel_views,
    parallel_queue_store,
    shard_views,
    stage_views,
    task_views,
    thl_store,
    watch_views,
)
from tranlog.service.position import is_there
from tranlog.target.options import open_target
from tranlog.tungsten.translated import open_readable

ViewName: TypeAlias = Literal["stores", "tasks", "shards", "stages", "channels", "watches"]
VIEW_NAMES: Final = get_args(ViewName)
NOBODY: Final = ""
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
_DIGITS: Final = re.compile(r"(\d+)")


def log_facts(log_dir: str, options: LogOptions) -> LogFacts:
    """Read the log's range. Raises LogMissingError and the other errors of opening it."""
    with open_readable(log_dir) as reader:
        return facts_of(reader, options)


def facts_of(reader: ReadableLog, options: LogOptions) -> LogFacts:
    """Return the range of an open log, beside its options."""
    found = reader.range()
    return LogFacts(
        directory=reader.path,
        checksum=options.checksum,
        segment_bytes=options.segment_bytes,
        retention=duration_text(options.retention_s),
        first_seqno=found.first_seqno,
        last_seqno=found.last_seqno,
        committed_seqno=found.committed_seqno,
    )


def duration_text(seconds: float | None) -> str:
    """Return a time as the configuration takes it, in its largest whole unit: 7d, 36h, 45s; `keep all` for none."""
    if not seconds:
        return "keep all"
    for size, unit in _UNITS:
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def pipeline_facts(options: ApplyOptions, *, clock: Clock, watch_s: float) -> PipelineFacts:
    """Read the pipeline's rows, twice where it is to be watched for a moment, which tells whether it lives, and rates.

    Raises TargetUnavailableError.
    """
    name = options.pipeline
    facts = PipelineFacts(
        row=None,
        channels=(),
        assignment={},
        running=False,
        group_transactions=options.group.transactions,
        group_s=options.group.seconds,
        idle_every=options.idle_every,
        target=options.target.kind,
        target_class="tranlog.target.target.Target",
        now_ms=clock.now_ms(),
        rates={},
        parallelization=options.parallelization,
    )
    if not is_there(options.target):
        return facts
    target = open_target(options.target)
    try:
        row, before, began = target.read_pipeline(name), target.read_channels(name), clock.monotonic()
        channels, running, rates = before, False, {}
        if row is not None and row.holder != NOBODY and watch_s > 0:
            clock.sleep(watch_s)
            again = target.read_pipeline(name)
            channels = target.read_channels(name)
            running = again is not None and (again.alive_at, again.token) != (row.alive_at, row.token)
            seconds = max(clock.monotonic() - began, 1e-6)
            done = {one.channel: Counters.parse(one.stats).transactions for one in before}
            rates = {
                one.channel: (Counters.parse(one.stats).transactions - done[one.channel]) / seconds
                for one in channels
                if running and one.channel in done
            }
            row = again or row
        return dataclasses.replace(
            facts,
            row=row,
            channels=tuple(channels),
            assignment=target.read_assignment(name),
            running=running,
            target=target.describe(),
            target_class=f"{type(target).__module__}.{type(target).__qualname__}",
            now_ms=clock.now_ms(),
            rates=rates,
        )
    finally:
        target.close()


def watches_of(state: OperationState) -> list[AppliedWatch]:
    """Return what a running process waits for: its limit, and who waits at its endpoint."""
    watches = [
        AppliedWatch(
            action="wait",
            predicate=" and ".join(
                told
                for told in (
                    "" if one.applied is None else f"applied seqno >= {one.applied}",
                    "" if one.state is None else f"state is {one.state}",
                )
                if told
            ),
            seqno=one.applied,
        )
        for one in state.waits
    ]
    if state.limit:
        number = re.fullmatch(r"seqno (\d+)", state.limit)
        watches.append(
            AppliedWatch(
                action="offline",
                predicate=f"until {state.limit}",
                seqno=None if number is None else int(number[1]),
            )
        )
    return watches


def view(
    name: ViewName, *, log: LogFacts | None, pipeline: PipelineFacts, watches: Sequence[AppliedWatch] = ()
) -> list[Any]:
    """Return a view's dataclasses, one per table of the print; `stores` without the log where that is None."""
    match name:
        case "stores":
            return [*([] if log is None else [thl_store(log)]), parallel_queue_store(pipeline)]
        case "tasks":
            return list(task_views(pipeline))
        case "shards":
            return list(shard_views(pipeline))
        case "stages":
            return list(stage_views(pipeline))
        case "channels":
            return list(channel_views(pipeline))
        case "watches":
            return list(watch_views(watches, pipeline))


# --- print -----------------------------------------------------------------------------------------------


def rows_of(one: object) -> dict[str, str]:
    """Return a view's dataclass as names and texts, `store.N` for each channel, sorted with numbers as numbers."""
    found: dict[str, str] = {}
    assert dataclasses.is_dataclass(one) and not isinstance(one, type)
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if field.name == "stores":
            found |= {f"store.{task.task_id}": str(task) for task in value}
            continue
        name = re.sub(r"^(applier|extractor)_", r"\1.", field.name)
        found[name] = _text(value)
    return dict(sorted(found.items(), key=lambda item: _in_order(item[0])))


def _in_order(name: str) -> list[tuple[int, int, str]]:
    return [(1, 0, part) if not part.isdigit() else (0, int(part), "") for part in _DIGITS.split(name) if part]


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.3f}"
        case _:
            return str(value)


def print_form(name: str, shown: Sequence[object]) -> Iterator[str]:
    """Yield the ancestor's form: a table of sorted `key : value` lines for each."""
    yield f"Processing status command ({name})..."
    for one in shown:
        rows = rows_of(one)
        width = max(map(len, rows))
        yield f"{'NAME':<{width + 2}}VALUE"
        yield f"{'----':<{width + 2}}-----"
        for key, value in rows.items():
            yield f"{key:<{width}}: {value}"
    yield f"Finished status command ({name})..."


def json_form(shown: Sequence[object]) -> list[Mapping[str, object]]:
    """Return the views as plain values."""
    found: list[Mapping[str, object]] = []
    for one in shown:
        assert dataclasses.is_dataclass(one) and not isinstance(one, type)
        found.append(dataclasses.asdict(one))
    return found
