"""The status of a log and its pipeline at one moment: the one model for every display.

Owns what follows from the rows in the target, the range of the log, and the reports of the pipeline's process: which
channel waits for which, what each does, and how fast. Reads nothing: `gathering` does; `view` has the ancestor's form.
The hard idea: a channel stores nothing but its position and what is with it. So what it does now is derived from two
readings: what has moved, for whom it says that it waits, and whether anything is left for it.

Units: in the names; times are ms since 1970. None stands for what is not known.

Source: on-disk-parallel-queues.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tranlog.ids import NO_EPOCH, NO_SEQNO
from tranlog.log.options import LogOptions
from tranlog.pipeline.rules.by_writes import WritesPlan
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import (
    ChannelStats,
    Counters,
    InFlight,
    Lag,
    LastError,
    ShardCount,
    Waiting,
    last_error,
    restart_seqno,
    totals,
)
from tranlog.pipeline.rules.states import OperationState, PendingError
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.target import ChannelRow, PipelineRow, VerdictRow

if TYPE_CHECKING:
    from tranlog.errors import TranlogError
    from tranlog.log.files.holds import Hold
    from tranlog.pipeline.options import ApplyOptions

_TOLD_MOST_MS: Final = 3_000
"""A channel that has said so lately how far it is inside a large transaction is at it: it does so once a second."""


class WaitsFor(enum.StrEnum):
    """What keeps a pipeline from going on."""

    OFFLINE = "offline"
    """Its operator, or whoever starts it: it does not run."""
    TROUBLE = "trouble"
    """The target, which a channel cannot use."""
    SERIAL = "serial"
    """Channel 0, which applies the next transaction alone."""
    CHANNEL = "channel"
    """A channel, which applies the next transaction."""
    SOURCE = "source"
    """More to come: everything committed is applied."""


class Doing(enum.StrEnum):
    """What a channel does."""

    STOPPED = "stopped"
    """Nothing: the pipeline is offline, or still starting."""
    APPLYING = "applying"
    SERIAL = "serial"
    """Channel 0, inside a serial section."""
    READING = "reading"
    """It passes other channels' transactions."""
    WAITING = "waiting"
    """For other channels."""
    IDLE = "idle"
    """It has applied all that there is."""
    STANDING = "standing"
    """Something is left for it and nothing moved: a target transaction that takes long, or no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A log: what it holds, and how it is written. Seqnos are -1 where there is none.

    `writer`, None while nobody writes, `of_node`, whether it is that of a node of a group, `history`, in hex, None in
    the Java replicator's codec, `first_epoch` and what is known of the last transaction are read for a whole status
    only.
    """

    directory: str
    store_class: str = ""
    options: LogOptions = field(default_factory=LogOptions)
    first_seqno: int = NO_SEQNO
    last_seqno: int = NO_SEQNO
    committed_seqno: int = NO_SEQNO
    epoch: int = 0
    segments: int = 0
    size_bytes: int = 0
    holds: tuple[Hold, ...] = ()
    writer: str | None = None
    of_node: bool = False
    history: str | None = None
    first_epoch: int = 0
    last_event_id: str = ""
    last_tstamp: int | None = None

    @property
    def active_seqno(self) -> int:
        """The first seqno that somebody still needs, -1 for nobody. A damaged hold needs everything."""
        needed = [self.first_seqno if one.restart_seqno is None else one.restart_seqno for one in self.holds]
        return min(needed, default=NO_SEQNO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """A channel: its row, what its stats say, and what follows. `behind`: committed transactions after its position.

    `waiting`: for whom it still waits. Rates are None where it was not watched; `doing` is None where it is not known
    whether the pipeline runs. `in_flight`: the large transaction that it is in.
    """

    row: ChannelRow
    counters: Counters
    stats: ChannelStats
    behind: int | None = None
    waiting: Waiting | None = None
    doing: Doing | None = None
    transactions_per_s: float | None = None
    changes_per_s: float | None = None
    in_flight: InFlight | None = None

    @property
    def has_applied(self) -> bool:
        """Whether its position names a transaction."""
        return self.row.epoch != NO_EPOCH or self.row.event_id != ""

    @property
    def waits(self) -> str:
        """What it waits for, in words; empty for nothing."""
        return "" if self.waiting is None else wait_text(self.waiting, self.row.channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """What was applied of a shard, by the channel that has it."""

    shard: str
    channel: int
    count: ShardCount


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """A pipeline by the target's tables. `row` is None where it never ran; `target` where that is not made yet.

    `running`: None where nobody watched and its process was not asked. `lag` is None where the log cannot be read;
    `next_shard`: of the first transaction that is not applied, None for none. `writes`: the plan by write sets, the
    newest that is stored, None by another rule and in the source's order. `waiting_tables`: those that wait for a load.
    `verdicts`: what the last live verification of each table found. `kept_error`: why its last run ended, as its
    process keeps it beside the log.
    """

    options: ApplyOptions
    row: PipelineRow | None = None
    running: bool | None = None
    target: str | None = None
    target_class: str = "tranlog.target.target.Target"
    assignment: Mapping[str, int] = field(default_factory=dict)
    writes: WritesPlan | None = None
    channels: tuple[ChannelState, ...] = ()
    lag: Lag | None = None
    next_shard: str | None = None
    notes: tuple[str, ...] = ()
    waiting_tables: tuple[str, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    kept_error: LastError | None = None

    @property
    def plan(self) -> ShardPlan | None:
        """How shards are divided, as the target has it; None where it never ran. Raises ConfigError."""
        return None if self.row is None else ShardPlan.parse(self.row.shard_rule, channels=self.row.channels)

    @property
    def rows(self) -> list[ChannelRow]:
        """The channels' rows."""
        return [one.row for one in self.channels]

    @property
    def restart_seqno(self) -> int:
        """The least position: everything up to there is in the target."""
        return restart_seqno(self.rows)

    @property
    def head_seqno(self) -> int:
        """The greatest position."""
        return max((row.applied_seqno for row in self.rows), default=NO_SEQNO)

    @property
    def slowest(self) -> ChannelState | None:
        """The first channel that has the least position."""
        return min(self.channels, key=lambda one: one.row.applied_seqno, default=None)

    @property
    def reached(self) -> ChannelState | None:
        """The same, where its position names a transaction."""
        return self.slowest if self.slowest is not None and self.slowest.has_applied else None

    @property
    def serialized(self) -> bool:
        """Whether a serial section runs."""
        return bool(self.channels) and self.channels[0].stats.section

    @property
    def ends(self) -> tuple[ChannelRow, ChannelRow] | None:
        """The rows furthest behind and ahead in the log, of those that have applied something."""
        rows = sorted((one.row for one in self.channels if one.has_applied), key=lambda row: row.applied_seqno)
        return (rows[0], rows[-1]) if rows else None

    @property
    def offline_interval_ms(self) -> int:
        """How far these are apart, in the source's commit times."""
        return 0 if self.ends is None else max(0, self.ends[1].tstamp - self.ends[0].tstamp)

    @property
    def total(self) -> Counters:
        """What all channels counted, those of earlier plans too."""
        return totals(self.rows)

    @property
    def holder(self) -> str:
        """Who drives it, or did last."""
        return "" if self.row is None else self.row.holder

    @property
    def error(self) -> LastError | None:
        """Why the last run ended, by the target or by what its process keeps; None while one goes on."""
        found = () if self.running else (last_error(self.rows), self.kept_error)
        return max((one for one in found if one is not None), key=lambda one: one.at_ms, default=None)

    @property
    def shards(self) -> list[ShardState]:
        """What each shard got, by name; one that changed channels counts where it is now."""
        found: dict[str, ShardState] = {}
        for one in self.channels:
            for shard, count in one.stats.shards.items():
                if shard not in found or found[shard].count.applied_seqno < count.applied_seqno:
                    found[shard] = ShardState(shard=shard, channel=one.row.channel, count=count)
        return [found[shard] for shard in sorted(found)]

    @property
    def newest_latency_ms(self) -> int | None:
        """From the source's commit to the target's, of the newest transaction that is applied."""
        newest = max((one.count for one in self.shards), key=lambda count: count.applied_seqno, default=None)
        return None if newest is None else newest.latency_ms

    @property
    def transactions_per_s(self) -> float | None:
        """Of all channels."""
        return total_of(one.transactions_per_s for one in self.channels)

    @property
    def changes_per_s(self) -> float | None:
        """Of all channels."""
        return total_of(one.changes_per_s for one in self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All of one moment. `log` and `pipeline` are None where they cannot be read; `problems` has why, by part.

    `process`: what the pipeline's process tells, None where it was not asked. `service` and `source` are what the
    configuration calls them; `source_event_id`: where the source stands by now, empty where it does not tell.
    `monotonic_s`: when the target was read, by the clock by which two readings of one process are apart.
    """

    now_ms: int
    monotonic_s: float = 0.0
    version: str = ""
    service: str = ""
    source: str = ""
    source_event_id: str = ""
    host: str = ""
    log: LogState | None = None
    pipeline: PipelineState | None = None
    process: OperationState | None = None
    problems: Mapping[str, TranlogError] = field(default_factory=dict)

    @property
    def error(self) -> PendingError | None:
        """Why the pipeline is offline by an error, or its last run ended."""
        if self.process is not None:
            return self.process.pending
        ended = None if self.pipeline is None else self.pipeline.error
        return None if ended is None else PendingError(type=ended.type, message=ended.message, seqno=ended.seqno)

    @property
    def waits_for(self) -> WaitsFor:
        """What keeps the pipeline from going on."""
        process, pipeline = self.process, self.pipeline
        if (process is None or process.state.resting) if pipeline is None else pipeline.running is False:
            return WaitsFor.OFFLINE
        if pipeline is None or (process is not None and process.troubles):
            return WaitsFor.TROUBLE
        if pipeline.lag is not None and pipeline.lag.seqnos:
            return WaitsFor.SERIAL if pipeline.next_shard == UNKNOWN_SHARD else WaitsFor.CHANNEL
        return WaitsFor.SOURCE

    @property
    def relative_latency_ms(self) -> int | None:
        """How long ago the slowest channel's position was committed at the source."""
        reached = None if self.pipeline is None else self.pipeline.reached
        return None if reached is None else max(0, self.now_ms - reached.row.tstamp)

    @property
    def in_state_ms(self) -> int | None:
        """For how long the process is in its state."""
        return None if self.process is None else max(0, self.now_ms - self.process.since_ms)

    @property
    def uptime_ms(self) -> int | None:
        """For how long the process operates the pipeline."""
        return None if self.process is None else max(0, self.now_ms - self.process.began_ms)


def at(model: object, path: str) -> Any:
    """Return what stands at a path of attributes, None as soon as one of them is None."""
    for name in path.split(".") if path else ():
        if model is None:
            return None
        model = getattr(model, name)
    return model


def picked(model: object, paths: str) -> dict[str, Any]:
    """Return what stands at some paths, each by its last name, or as `name=path` says."""
    found = {}
    for path in paths.split():
        name, _, path = path.rpartition("=")
        found[name or path.rpartition(".")[2]] = at(model, path)
    return found


def class_name(one: object) -> str:
    """Return the name of an object's class, with its module."""
    return f"{type(one).__module__}.{type(one).__qualname__}"


def total_of(values: Iterable[float | None]) -> float | None:
    """Add up what is known; None where nothing is."""
    known = [one for one in values if one is not None]
    return sum(known) if known else None


# --- what the channels do --------------------------------------------------------------------------------


def channel_states(
    rows: Sequence[ChannelRow],
    *,
    now_ms: int,
    running: bool | None,
    starting: bool = False,
    committed_seqno: int | None = None,
    before: Sequence[ChannelRow] = (),
    watched_s: float = 0.0,
    in_flight: Mapping[int, InFlight] | None = None,
) -> tuple[ChannelState, ...]:
    """Return the channels of these rows; `before`: the rows as they were `watched_s` seconds earlier.

    `committed_seqno`: up to where there is something to apply, None: not known. `starting`: the pipeline is on its way
    online, and channels that do not move have not begun.
    """
    waits = waits_of(rows) if running else {}
    earlier = {row.channel: moved_of(row) for row in before} if running and watched_s > 0 else {}
    upto = max((row.applied_seqno for row in rows), default=NO_SEQNO) if committed_seqno is None else committed_seqno
    states = []
    for row in rows:
        stats, large = ChannelStats.parse(row.stats), (in_flight or {}).get(row.channel)
        doing, transactions_per_s, changes_per_s = pace_of(
            earlier.get(row.channel),
            moved_of(row),
            watched_s,
            told_ms=None if large is None else now_ms - large.written_at,
            waiting=row.channel in waits,
            section=stats.section,
            behind=max(0, upto - row.applied_seqno),
            starting=starting,
        )
        states.append(
            ChannelState(
                row=row,
                counters=Counters.parse(row.stats),
                stats=stats,
                behind=None if committed_seqno is None else max(0, committed_seqno - row.applied_seqno),
                waiting=waits.get(row.channel),
                doing=doing if running else None if running is None else Doing.STOPPED,
                transactions_per_s=transactions_per_s,
                changes_per_s=changes_per_s,
                in_flight=large,
            )
        )
    return tuple(states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What of a channel tells whether it moves: its position, and what it has applied."""

    applied_seqno: int
    transactions: int
    changes: int


def moved_of(row: ChannelRow) -> Moved:
    """Return what tells it of a row."""
    done = Counters.parse(row.stats)
    return Moved(applied_seqno=row.applied_seqno, transactions=done.transactions, changes=done.changes)


def pace_of(
    was: Moved | None,
    now: Moved,
    seconds: float,
    *,
    told_ms: int | None,
    waiting: bool,
    section: bool,
    behind: int,
    starting: bool,
) -> tuple[Doing, float | None, float | None]:
    """Say what a channel does, and its transactions and changes per second, from two readings that far apart.

    `was` None: there is one reading only, which tells no rates; so does one from before a reset. `told_ms`: how long
    ago it said how far it is inside a large transaction, None where it is in none. `behind`: how many committed
    transactions stand after its position.
    """
    if was is not None and (now.transactions < was.transactions or now.applied_seqno < was.applied_seqno):
        was = None
    if waiting:
        doing = Doing.WAITING
    elif (told_ms is not None and told_ms < _TOLD_MOST_MS) or (was is not None and now.transactions > was.transactions):
        doing = Doing.SERIAL if section else Doing.APPLYING
    elif was is not None and now.applied_seqno > was.applied_seqno:
        doing = Doing.READING if behind else Doing.IDLE
    elif starting:
        doing = Doing.STOPPED
    elif behind:
        doing = Doing.READING if was is None else Doing.STANDING
    else:
        doing = Doing.IDLE
    if was is None:
        return doing, None, None
    return doing, (now.transactions - was.transactions) / seconds, max(0, now.changes - was.changes) / seconds


def waits_of(channels: Sequence[ChannelRow]) -> dict[int, Waiting]:
    """Return who waits for whom, by the channel that waits: those that were waited for and are not there yet."""
    applied = {row.channel: row.applied_seqno for row in channels}
    found = {}
    for row in channels:
        told = ChannelStats.parse(row.stats).waiting
        if told is not None:
            left = tuple(one for one in told.channels if applied.get(one, NO_SEQNO) < told.seqno)
            if left:
                found[row.channel] = Waiting(told.seqno, told.serial, left)
    return found


def wait_text(waiting: Waiting, channel: int) -> str:
    """Say what a channel waits for: one of them for channel 0 to apply a serial section, channel 0 for the others."""
    which = f"channel {waiting.channels[0]}" if len(waiting.channels) == 1 else f"channels {_listed(waiting.channels)}"
    if not waiting.serial:
        return f"{which} to come near seqno {waiting.seqno}"
    return f"{which} to apply {'serial ' if channel else ''}seqno {waiting.seqno}"


def _listed(channels: Sequence[int]) -> str:
    """Name channels by number, neighbours as a range."""
    runs: list[list[int]] = []
    for one in sorted(channels):
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
