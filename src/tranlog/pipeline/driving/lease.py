"""A run's lease of its pipeline: taken at the target, kept alive, and released.

Owns the token and the positions' rows as the driver reads and writes them, and the hold on the log that belongs to
them. `progress` decides how a run starts. Nothing is retried here: a call that fails with TransientTargetError or
TargetUnavailableError may be repeated.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from tranlog.clock import Clock
from tranlog.codecs.opening import open_readable
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConfigError,
    LogMissingError,
    PipelineHeldError,
    TargetAheadError,
    TargetPositionError,
    TranlogError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.holding import Holding, keeps_no_rows, target_words
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.limits import SeqnoRanges
from tranlog.pipeline.rules.progress import (
    Ahead,
    Drain,
    HeldElsewhere,
    LastError,
    LostPosition,
    PurgedAway,
    Run,
    applied_nothing,
    lost_to,
    plan_start,
    restart_seqno,
    with_error,
)
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target
from tranlog.types import Datetime, datetime_text

logger = logging.getLogger(__name__)

ALIVE_WATCH_S: Final = 2.5
"""How long alive_at must stand still before a driver counts as gone."""
ALIVE_LOOK_S: Final = 1.3
"""How long to look before Spark is started: a driver that is well moves it within this time."""
_TICK_S: Final = 0.05


def holder_name(now_ms: int) -> str:
    """Return the name in `tranlog_pipeline` of a driver that this process starts now."""
    since = datetime_text(Datetime(now_ms // 1000 * 1_000_000))
    return f"{socket.gethostname()} pid {os.getpid()} since {since} UTC"


def open_log(options: ApplyOptions) -> ReadableLog:
    """Open the log that a pipeline is to apply. Raises as `open_readable`; ConfigError where its rule cannot run."""
    reader = open_readable(options.log_dir, checksum=options.checksum)
    if options.plan.by is ShardBy.WRITES and not isinstance(reader, LogReader):
        reader.close()
        why = f'the log at {options.log_dir} is a Java replicator\'s, which has no write sets; by = "schema" runs there'
        raise ConfigError(option="shard by", value=options.plan.by.value, why=why)
    return reader


class Lease:
    """The lease of a run. `held`: from `take` to `release`. Threads: one. `note`: called if retention will not wait."""

    def __init__(
        self,
        options: ApplyOptions,
        target: Target,
        reader: ReadableLog,
        *,
        holder: str,
        clock: Clock,
        note: Callable[[str], None],
    ) -> None:
        self._options = options
        self._target = target
        self._reader = reader
        self._holder = holder
        self._clock = clock
        self._holding = Holding(reader, options.pipeline, disk=OsDisk(), clock=clock, note=note)
        self._words = target_words(options.target, target)
        self._tried = False
        self._channels = 0
        """How many the pipeline has at the target, as `take` has written them."""
        self.token = 0
        """The pipeline's as last seen; while it is held, this run's."""
        self.held = False

    def find(self) -> PipelineRow | None:
        """Read the pipeline's row before this run; None: it never ran."""
        row = self._target.positions.read_pipeline(self._options.pipeline)
        self.token = 0 if row is None else row.token
        return row

    def moves(self, row: PipelineRow | None, until: float, stop: threading.Event) -> bool:
        """Whether another driver changes the row since `row`: look once, and then until the given time."""
        if row is None or row.holder == NOBODY or self._options.take_over:
            return False
        while True:
            now = self._target.positions.read_pipeline(self._options.pipeline)
            if now is not None and now.moved_since(row):
                return now.holder != NOBODY
            if self._clock.monotonic() >= until or stop.wait(_TICK_S):
                return False

    def decide(self, wanted: ShardPlan, *, alive: bool) -> Run | Drain:
        """Read what the target holds, and decide. Raises the error of a refusal."""
        target, name = self._target, self._options.pipeline
        found = self._reader.range()
        if found.first_seqno == NO_SEQNO:
            raise LogMissingError(path=self._options.log_dir, why="it holds no transaction yet")
        start = self._options.start_seqno
        known = self._holding.known(self._words)  # first, since a driver that begins writes it after the rows
        pipeline, rows = self._read_pipeline()
        plan = plan_start(
            pipeline=pipeline,
            rows=rows,
            wanted=wanted,
            start=None if start is None else Seqno(start),
            first=found.first_seqno,
            header_at=self._reader.header,
            alive=alive,
            take_over=self._options.take_over,
            shards=len(target.positions.read_assignment(name)),
            known=known,
            others=None if rows or keeps_no_rows(self._words) else self._others(),
        )
        match plan:
            case Run() | Drain():
                return plan
            case HeldElsewhere(holder=holder):
                raise PipelineHeldError(pipeline=name, holder=holder)
            case Ahead(channel=channel, gtid=gtid, why=why):
                raise TargetAheadError(pipeline=name, channel=channel, gtid=gtid, why=why)
            case PurgedAway(seqno=seqno):
                raise lost_to(self._reader.purged(Seqno(seqno)))
            case LostPosition(why=why, upto=upto, remedy=remedy):
                raise TargetPositionError(where=target.where, pipeline=name, why=why, upto=upto, remedy=remedy)
            case _:
                assert_never(plan)

    def _others(self) -> dict[str, Sequence[ChannelRow]]:
        """Read the rows of the target's pipelines that this one is not said to run beside."""
        read, known = self._target.positions, {self._options.pipeline, *self._options.beside}
        return {name: read.read_channels(name) for name in read.pipelines() if name not in known}

    def _read_pipeline(self) -> tuple[PipelineRow | None, Sequence[ChannelRow]]:
        """Read the pipeline's row and its channels' as one driver has written them."""
        read, name = self._target.positions, self._options.pipeline
        row = read.read_pipeline(name)
        while True:
            rows, before = read.read_channels(name), row
            row = read.read_pipeline(name)
            if (None if row is None else row.token) == (None if before is None else before.token):
                return row, rows

    def take(self, wanted: ShardPlan) -> Run | Drain:
        """Become the pipeline's driver, in two steps: first exclude all earlier tasks, then plan on fixed positions.

        Positions that were read while an earlier task could still move them must never be written back.
        """
        target, name = self._target, self._options.pipeline
        while True:
            row = target.positions.read_pipeline(name)
            if row is not None:
                # After a lost connection it may be our own first step that we see.
                known = row.token == self.token or row.holder == (self._holder if self._tried else NOBODY)
                if not known and not self._options.take_over:
                    raise PipelineHeldError(pipeline=name, holder=row.holder)  # somebody else was faster
                self._tried = True
                self.token = self._write(row, row.token, self._holder)
            plan = self.decide(wanted, alive=False)
            if row is not None or not plan.expected_token:
                break
            # Another driver began the pipeline meanwhile, and its tasks are not excluded yet.
        self.token = target.positions.take(
            pipeline=name,
            expected_token=plan.expected_token,
            holder=self._holder,
            channels=plan.plan.channels,
            shard_rule=plan.plan.text(),
            rows=with_error(plan.rows, None),
            keep_assignment=not isinstance(plan, Run) or plan.keep_assignment,
        )
        self.held = True
        self._channels = len(plan.rows)
        self._holding.begin(self._needed_after(plan.rows), self._words)
        return plan

    def leave_out(self, ranges: SeqnoRanges) -> None:
        """Record the transactions to leave out, before any task of this run can reach them."""
        self._target.positions.leave_out(pipeline=self._options.pipeline, token=self.token, ranges=ranges.ranges)

    def rows(self) -> Sequence[ChannelRow]:
        """Read the rows of all channels. Raises TargetPositionError if one is missing."""
        target, name = self._target, self._options.pipeline
        rows = target.positions.read_channels(name)
        gone = sorted(set(range(self._channels)) - {row.channel for row in rows})
        if self.held and gone:
            channels = ", ".join(map(str, gone))
            why = f"the rows of its channels {channels} were removed from tranlog_channel while it ran"
            raise TargetPositionError(where=target.where, pipeline=name, why=why)
        return rows

    def keep_alive(self) -> None:
        """Show that the driver is alive. Raises ReplacedError if another driver has replaced it."""
        self._target.positions.keep_alive(pipeline=self._options.pipeline, token=self.token)

    def request_stop(self, upto: Seqno | None) -> None:
        """Tell the tasks to stop at a seqno, or to run without a limit."""
        self._target.positions.request_stop(pipeline=self._options.pipeline, token=self.token, stop_at_seqno=upto)

    def hold(self, rows: Sequence[ChannelRow]) -> None:
        """Record in the hold how far the target is; if no task is left, also whether anything was applied."""
        begun = self.held or not applied_nothing(rows, first=self._reader.range().first_seqno)
        applied = None if self.held else max((row.applied_seqno for row in rows), default=NO_SEQNO)
        self._holding.renew(self._needed_after(rows), self._words, begun=begun, applied=applied)

    def _needed_after(self, rows: Sequence[ChannelRow]) -> Seqno:
        """Return after which seqno the log is needed: a restart by write sets reads the headers since the plan."""
        restart, begin = restart_seqno(rows), self._target.positions.plans_begin(self._options.pipeline)
        return restart if begin is None else min(restart, begin)

    def release(self, error: TranlogError | None = None) -> Sequence[ChannelRow]:
        """Release the pipeline, which also ends its tasks that may still run; return the rows, none if it was not held.

        `error`: why the run ends; stored with channel 0's position until the next run. Raises none of our errors.
        """
        rows: Sequence[ChannelRow] = ()
        if not self.held:
            return rows
        target, name = self._target, self._options.pipeline
        try:
            target.reconnect()
            row = target.positions.read_pipeline(name)
            if row is not None and row.token == self.token:
                token, rows = self._write(row, self.token, NOBODY), self.rows()
                if error is not None:
                    told = with_error(rows, LastError.of(error, at_ms=self._clock.now_ms()))
                    self._write(row, token, NOBODY, told)
                self.held = False
                self.hold(rows)
        except TranlogError as exc:
            logger.warning("could not give the pipeline back pipeline=%s why=%s", name, exc)
        self.held = False
        return rows

    def _write(self, row: PipelineRow, token: int, holder: str, rows: Sequence[ChannelRow] | None = None) -> int:
        """Write another holder into the pipeline's row, whose plan stays; return its new token."""
        return self._target.positions.take(
            pipeline=self._options.pipeline,
            expected_token=token,
            holder=holder,
            channels=row.channels,
            shard_rule=row.shard_rule,
            rows=rows,
            keep_assignment=True,
        )

    def close(self) -> None:
        """Release the hold; closing twice is harmless."""
        self._holding.close()
