"""The report of a pipeline: measured by its driver, about once a second.

Owns the report's form, its rates and its notes. `apply` decides when to report, `view` what a status shows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tranlog.clock import Clock
from tranlog.header import TransactionHeader
from tranlog.ids import Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.rules.progress import Counters, Lag, lag, restart_seqno, totals
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.target.target import ChannelRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """Where one channel stands; `tstamp` is the source's commit time of its position, ms."""

    channel: int
    applied_seqno: Seqno
    event_id: str
    tstamp: int
    counters: Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStatus:
    """Where a pipeline stands, about once a second. Rates are per second, since the report before.

    `phase`: starting, running (all channels of the wanted plan have been claimed), draining, stopping. `troubles`: who
    cannot use the target. `slots`: how many tasks Spark can run at a time.
    """

    pipeline: str
    holder: str
    phase: str
    channels: tuple[ChannelStatus, ...]
    restart_seqno: Seqno
    committed_seqno: Seqno
    lag: Lag
    transactions_per_s: float
    changes_per_s: float
    total: Counters
    notes: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    slots: int = 0

    @property
    def stuck(self) -> bool:
        """Whether some channel cannot go on."""
        return bool(self.troubles) or self.slots < len(self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class HowFar:
    """Where channels stand in a log. `following`: the first transaction that one of them has not applied, if any."""

    restart_seqno: Seqno
    committed_seqno: Seqno
    following: TransactionHeader | None
    lag: Lag


def how_far(reader: ReadableLog, rows: Sequence[ChannelRow], *, now_ms: int) -> HowFar:
    """Hold the channels' rows against the log. Raises what reading it raises."""
    restart, committed = restart_seqno(rows), reader.range().committed_seqno
    following = reader.header(Seqno(restart + 1)) if restart < committed else None
    next_tstamp = None if following is None else following.tstamp
    behind = lag(restart=restart, committed=committed, next_tstamp=next_tstamp, now_ms=now_ms)
    return HowFar(restart_seqno=restart, committed_seqno=committed, following=following, lag=behind)


def no_report(status: ApplyStatus) -> None:
    """Report to nobody."""


class Report:
    """One run's. `phase` is as in ApplyStatus. Threads: one."""

    def __init__(
        self,
        tell: Callable[[ApplyStatus], None],
        reader: ReadableLog,
        *,
        pipeline: str,
        holder: str,
        clock: Clock,
    ) -> None:
        self._tell = tell
        self._reader = reader
        self._pipeline = pipeline
        self._holder = holder
        self._clock = clock
        self._last: tuple[float, Counters] | None = None
        self.phase = "starting"
        self.notes: list[str] = []

    def note(self, note: str, *, level: int = logging.INFO) -> None:
        """Add a note to what is reported, and log it at this level, once."""
        if note not in self.notes:
            self.notes.append(note)
            logger.log(level, "%s pipeline=%s", note, self._pipeline)

    def tell(self, rows: Sequence[ChannelRow], *, troubles: tuple[Trouble, ...], slots: int) -> ApplyStatus:
        """Report where the channels stand by these rows; return what was reported."""
        behind = how_far(self._reader, rows, now_ms=self._clock.now_ms())
        channels = tuple(
            ChannelStatus(
                channel=row.channel,
                applied_seqno=row.applied_seqno,
                event_id=row.event_id,
                tstamp=row.tstamp,
                counters=Counters.parse(row.stats),
            )
            for row in rows
        )
        total = totals(rows)
        now = self._clock.monotonic()
        before, done = self._last or (now, total)
        seconds = max(now - before, 1e-9)
        self._last = (now, total)
        status = ApplyStatus(
            pipeline=self._pipeline,
            holder=self._holder,
            phase=self.phase,
            channels=channels,
            restart_seqno=behind.restart_seqno,
            committed_seqno=behind.committed_seqno,
            lag=behind.lag,
            transactions_per_s=max(0, total.transactions - done.transactions) / seconds,
            changes_per_s=max(0, total.changes - done.changes) / seconds,
            total=total,
            notes=tuple(self.notes),
            troubles=troubles,
            slots=slots,
        )
        self._tell(status)
        return status
