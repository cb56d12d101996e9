"""Checks of a log, a pipeline and its target before a start.

Owns the list, and the checks that a start does not make: room on the disk, rights, the clock. What a start refuses is
checked by the code that refuses it. The hard idea: nothing heavy is imported and nothing is written, so the checks take
a second and can run beside a running pipeline.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Final

from tranlog.change import TableMap
from tranlog.clock import Clock
from tranlog.codecs.opening import open_readable
from tranlog.disk import OS_DISK, may_write
from tranlog.errors import LogMissingError, TargetTableError, TranlogError
from tranlog.findings import CheckResult, Severity, compare_clocks, fine, refused, tried, warning, wrong
from tranlog.ids import NO_SEQNO, Seqno, segment_name
from tranlog.log.files.directory import join, list_segments
from tranlog.log.files.index_table import INDEX_NAME, read_index
from tranlog.log.files.scan import checkpoint_of, survey
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.damage import Problem
from tranlog.log.rules.recovery import plan
from tranlog.pipeline.applying.tables_ahead import check_tables, wanting
from tranlog.pipeline.applying.write_owners import planned_tables
from tranlog.pipeline.driving.lease import Lease, open_log
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.by_writes import WritesPlan
from tranlog.pipeline.rules.channels import ShardBy
from tranlog.pipeline.rules.loading import read_stored, waiting
from tranlog.pipeline.rules.progress import restart_seqno
from tranlog.pipeline.spark.session import check_java, check_pyspark
from tranlog.pipeline.status.gathering import writer_of
from tranlog.pipeline.upkeep.tables import tables_behind
from tranlog.row_touches import TouchedTable
from tranlog.source.kinds import source_kind as kind_of
from tranlog.target.options import create_statements, is_there, open_target, runs_ddl_of
from tranlog.target.target import Target
from tranlog.write_set import ANYTHING

_SERIAL_HINT: Final = "docs/parallel-apply.md, Many channels inside one schema, says what a write set cannot tell"
_KEY_HINT: Final = (
    "Give it one at the source and at the target: ALTER TABLE ... ADD PRIMARY KEY (...); a SQLite, which cannot add "
    "one, a new table with it, the rows copied into that, the old one dropped, the new one renamed"
)
_TWICE_HINT: Final = "Drop these foreign keys at the target, or their ON DELETE and ON UPDATE"
ROOM_LEAST: Final = 1 << 30
"""With fewer bytes free a disk is worth a word."""
END_MOST: Final = 64 << 20
"""So many bytes of a segment are read where no stored index says from where on."""


def examine_spark() -> Iterator[CheckResult]:
    """Yield whether Spark could be started here, without starting it."""
    yield tried("Java", check_java)
    yield tried("PySpark", check_pyspark)
    yield room("scratch", tempfile.gettempdir(), needed=0)


def examine_log(directory: str, *, segment_bytes: int | None) -> Iterator[CheckResult]:
    """Yield what is found of a log's directory, and of the disk that it is on. A log that is not there yet is fine.

    `segment_bytes`: how long a segment gets; None where the log is only read.
    """
    folder = os.path.abspath(directory)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if segment_bytes is None:
        yield tried("directory", lambda: _log(directory))
        if not may_write(folder):
            text = f"this user may not write into {folder}: retention will not wait for the pipeline"
            yield warning("hold", text, "Keep the log longer than the pipeline may be down, or run as the log's owner")
        return
    if not may_write(folder):
        text = f"this user may not write into {folder}, and capture does"
        yield wrong("directory", text, f"Run as its owner, or: chmod u+w {folder}")
    else:
        yield tried("directory", lambda: _log(directory))
    yield room("room", folder, needed=segment_bytes)


def _log(directory: str) -> str:
    try:
        with open_readable(directory) as reader:
            held = reader.range()
            if isinstance(reader, LogReader):
                _check_end(reader.path)
            return f"seqno {held.first_seqno} to {held.last_seqno}, committed {held.committed_seqno}"
    except LogMissingError:
        return "there is no log yet; the first capture makes it"


def _check_end(directory: str) -> None:
    """Look at a log's end as its next writer does; where one is alive, it has. Raises LogError for what it refuses.

    From the stored index on: without one the newest segment is read, and only where that is small.
    """
    stored = read_index(join(directory, INDEX_NAME), OS_DISK)
    newest = join(directory, segment_name(list_segments(directory, OS_DISK)[-1]))
    if stored is None and os.path.getsize(newest) > END_MOST:
        return
    if writer_of(directory) is None:
        decided = plan(survey(directory, OS_DISK, checkpoint=None if stored is None else checkpoint_of(*stored)))
        if isinstance(decided, Problem) and writer_of(directory) is None:  # it may have begun meanwhile
            raise decided.error()


def room(subject: str, folder: str, *, needed: int) -> CheckResult:
    """Return how much room a disk has. Fewer bytes than `needed` are wrong."""
    free = shutil.disk_usage(folder).free
    text = f"{free >> 20} MiB are free for {folder}"
    remedy = f"Make room on that disk: df -h {folder}"
    if free < needed:
        return wrong(subject, f"{text}, and one segment of the log takes {needed >> 20} MiB", remedy)
    if free < ROOM_LEAST:
        return warning(subject, text, remedy)
    return fine(subject, text)


def examine_target(
    options: ApplyOptions, clock: Clock, tables: Sequence[TableMap] | None, *, source_kind: str
) -> Iterator[CheckResult]:
    """Yield what is found of a pipeline and its target; `tables`: those of the source, None where it tells none.

    Nothing is yielded after a target that does not answer.
    """
    filters = tried("filters", lambda: f"{len(options.filters)} filters" if Chain(options.filters) else "")
    yield filters
    if not is_there(options.target):
        made = _not_made(options.target.path)
        yield made
        if made.severity is Severity.FINE and filters.severity is Severity.FINE:
            yield from _made_anew(options, clock)
        return
    try:
        target = open_target(options.target)
    except TranlogError as exc:
        yield refused("connection", exc)
        return
    with closing(target):
        yield fine("connection", f"{target.kind} {target.where}")
        yield tried("clock", lambda: compare_clocks(clock, target.positions.now_ms))
        yield tried("rights", lambda: _rights(target))
        position, ahead, goes_on = _next_start(options, target, clock)
        yield position
        for name, what in waiting(read_stored(target.positions.read_loads(options.pipeline))).items():
            text, _, remedy = f"{name} {what}".rpartition(": ")
            yield warning("loads", text, remedy)
        for table, to, remedy in target.rows.slow_references():
            text = f"{'.'.join(table)} refers to {'.'.join(to)} without an index: what is deleted there reads all of it"
            yield warning("foreign keys", f"{text}, and a load that replaces rows deletes them all", remedy)
        if tables is not None and filters.severity is Severity.FINE:
            yield from _tables(options, target, tables, source_kind, ahead, goes_on)
            if options.plan.by is ShardBy.WRITES and not options.shard_plan().in_a_row:
                yield from _serial(options, target, tables)
        else:
            yield from [refused("tables", one) for one in ahead]


def _not_made(path: str) -> CheckResult:
    folder = os.path.dirname(os.path.abspath(path))
    if may_write(folder):
        return fine("connection", f"{path} is made by the first start")
    text = f"there is no {path}, and this user may not make it in {folder}"
    return wrong("connection", text, f"mkdir -p {folder}, or chmod u+w {folder}")


def _made_anew(options: ApplyOptions, clock: Clock) -> Iterator[CheckResult]:
    """Yield what the first start would meet at its new file; looked at in another one, so that it is not made."""
    with TemporaryDirectory() as folder:
        there = replace(options.target, path=os.path.join(folder, "target.db"))
        with closing(open_target(there)) as target:
            target.where = options.target.path
            position, ahead, _ = _next_start(options, target, clock)
    yield position
    yield from [refused("tables", one) for one in ahead]


def _rights(target: Target) -> str:
    target.positions.check_rights()
    return "positions can be kept here"


def _next_start(
    options: ApplyOptions, target: Target, clock: Clock
) -> tuple[CheckResult, Sequence[TargetTableError], bool]:
    """Return where the next start goes on, which tables of its next transactions it would refuse, and if it goes on."""
    ahead: list[TargetTableError] = []
    goes_on = False

    def position() -> str:
        nonlocal goes_on
        try:
            with open_log(options) as reader:
                if reader.range().first_seqno == NO_SEQNO:
                    raise LogMissingError(path=options.log_dir, why="it holds no transaction yet")
                restart = _restart(options, target, reader, clock)
                left_out = [*options.leave_out.ranges, *target.positions.read_left_out(options.pipeline)]
                name, until = options.pipeline, None
                ahead.extend(
                    wanting(target, reader, options.filters, restart, pipeline=name, until=until, left_out=left_out)
                )
                goes_on = True
                return f"the next start goes on after seqno {restart}"
        except LogMissingError:
            return "there is nothing to apply yet"

    return tried("position", position), ahead, goes_on


def _restart(options: ApplyOptions, target: Target, reader: ReadableLog, clock: Clock) -> Seqno:
    """Decide as a start does, but that a driver which is alive is none in the way. Raises TranlogError."""
    lease = Lease(options, target, reader, holder="", clock=clock, note=lambda _: None)
    with closing(lease):
        restart = restart_seqno(lease.decide(options.shard_plan(), alive=False).rows)
    check_tables(target, reader, options.filters, restart)
    return restart


def _tables(
    options: ApplyOptions,
    target: Target,
    tables: Sequence[TableMap],
    source_kind: str,
    ahead: Sequence[TargetTableError],
    goes_on: bool,
) -> Iterator[CheckResult]:
    """Yield what mends each table that a change would find wanting; `ahead`: before any DDL that the log holds.

    `goes_on`: there is a log, whose next transactions are all that a start looks at.
    """
    found, due = bool(ahead), {one.table: one for one in ahead}
    wanted = tables_behind(options.filters, tables, options.target.kind)
    for table in wanted:
        try:
            target.rows.check_table(table)
        except TargetTableError as exc:
            found = True
            told = due.pop(table.name, None)
            if told is not None and told.remedy != TargetTableError.remedy:
                yield refused("tables", told)
            elif told is None and options.target.ddl == "stop" and source_kind in runs_ddl_of(options.target.kind):
                text = f"{exc.table}: {exc.why}; where the log still holds its DDL, that mends it"
                yield warning("tables", text, "Else: tranlog tables create --from source")
            elif exc.column and options.target.ddl == "follow" and goes_on:
                text = f"{exc.table}: {exc.why}; a statement or a row that is still to come may bring it"
                yield warning("tables", text, f"Wait until all is applied. Else: {exc.remedy}")
            elif exc.remedy == TargetTableError.remedy:
                statements = "; ".join(create_statements(options.target.kind, table))
                yield wrong("tables", f"{exc.table}: {exc.why}", statements)
            else:
                yield refused("tables", exc)
        else:
            losing = target.rows.losing((table.schema, table.table)) if kind_of(source_kind).cascades_come else ()
            if losing:
                names = ", ".join(map(".".join, losing))
                text = f"rows of {names} go with those of {table.name}, and their changes come from the source, too"
                remedy = f'{_TWICE_HINT}; or triggers = "off"' if target.kind == "postgres" else _TWICE_HINT
                yield warning("foreign keys", f"{text}: a delete stops the pipeline", remedy)
    yield from [refused("tables", one) for one in due.values()]
    if not found:
        yield fine("tables", f"{len(wanted)} tables take what the source's hold")


def _serial(options: ApplyOptions, target: Target, tables: Sequence[TableMap]) -> Iterator[CheckResult]:
    """Yield each table whose transactions would run alone by write sets, and why: what the next plan would say."""
    chain = Chain(options.filters)
    known = {(table.schema, table.table): TouchedTable(table) for table in tables}
    planned = planned_tables(sorted(known), target.rows.keys, chain, options.plan.independent_triggers)
    stored = target.positions.read_plans(options.pipeline)
    missed = WritesPlan.parse(stored[max(stored)]).missed if stored else ()
    found = False
    for one in planned:
        why, remedy = one.why, _SERIAL_HINT
        if one.table in missed:
            why = "a dependency was missed, which the source does not tell"
        elif not why and known[one.table].main is None and chain.home(one.table):
            why, remedy = "without a key", _KEY_HINT
        elif not why and not one.told_by(known[one.table].ids):
            why = "a key of the target that the source does not have"
            remedy = "Make that unique or foreign key at the source, or drop it at the target"
        elif why.startswith("trigger "):
            remedy = "If it reads and writes nothing of other tables: name it in [shards] independent_triggers"
        if why:
            found = True
            only = "" if one.serial_on == ANYTHING else ", but only where a row goes or its key changes"
            yield warning("by writes", f"{'.'.join(one.table)} runs alone: {why}{only}", remedy)
    if not found:
        yield fine("by writes", f"no table of {len(planned)} runs alone")
