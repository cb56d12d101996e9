"""A running pipeline at one moment, in one answer, and what two of them together tell. Decides, does not act.

Owns the form of what `tranlog top` asks for, and what a channel is said to be doing. Gathering is `operating`'s,
showing `screen`'s. The hard idea: a channel writes nothing down but what stands beside its position, so what it does
now is told from two readings: what moved, whom it said that it waits for, and whether anything is left for it.

Source: issue 7, item 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.progress import ChannelStats, Counters, InFlight, restart_seqno, totals
from tranlog.pipeline.rules.states import OperationState, PendingError, State
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.pipeline.status.view import (
    Doing,
    LogFacts,
    Moved,
    PipelineFacts,
    doing_of,
    shard_views,
    wait_text,
    waits_of,
)

SHARDS_MOST: Final = 100
"""How many shards an overview names: the slowest."""
TIMES: Final[Mapping[str, str]] = {
    "read": "read_us",
    "filter": "filter_us",
    "apply": "apply_us",
    "commit": "commit_us",
    "wait": "wait_us",
    "idle": "idle_us",
    "other": "other_us",
}
"""On what a channel spends its time, and the counter of each."""


class ChannelNow(msgspec.Struct, frozen=True, kw_only=True):
    """One channel. `latency_ms`: from the source's commit to the target's, of the last one applied; `us`: its times.

    `waits_for`: the channels that it waits for, `waits` the same in words; `section`: inside a serial section.
    `in_flight`: the large transaction that it is in.
    """

    channel: int
    applied_seqno: int
    event_id: str
    behind: int
    latency_ms: int
    transactions: int
    changes: int
    section: bool
    waits: str
    waits_for: tuple[int, ...]
    us: dict[str, int]
    in_flight: InFlight | None = None


class ShardNow(msgspec.Struct, frozen=True, kw_only=True):
    """One shard: what its channel applied of it last, and how late that was then."""

    shard: str
    channel: int
    applied_seqno: int
    latency_ms: int
    transactions: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A running pipeline at one moment.

    `process` names the process that answers, and `monotonic_s` is its clock, by which two readings are apart. Seqnos
    are -1 where there is none. `applied_seqno`: the least of the channels'; `lag_ms`: how long ago the first one after
    it was committed, None where that cannot be read. `problems`: what could not be read, each with its reason.
    """

    service: str
    pipeline: str
    process: str
    state: State
    since_ms: int
    now_ms: int
    monotonic_s: float
    source: str
    target: str
    log_dir: str
    first_seqno: int
    last_seqno: int
    committed_seqno: int
    applied_seqno: int
    lag_ms: int | None
    limit: str
    pending: PendingError | None
    sections: int
    retries: int
    shards_known: int
    channels: tuple[ChannelNow, ...]
    shards: tuple[ShardNow, ...]
    problems: tuple[str, ...] = ()
    slots: int = 0
    troubles: tuple[Trouble, ...] = ()


def overview_of(
    state: OperationState,
    *,
    service: str,
    source: str,
    target: str,
    process: str,
    log_dir: str,
    log: LogFacts | None,
    pipeline: PipelineFacts | None,
    lag_ms: int | None,
    now_ms: int,
    monotonic_s: float,
    problems: tuple[str, ...] = (),
) -> Overview:
    """Put an overview together; without `log` or `pipeline` where they cannot be read."""
    rows = () if pipeline is None else pipeline.channels
    committed = state.committed_seqno if log is None else log.committed_seqno
    waits = {} if state.state.resting else waits_of(rows)
    total = totals(rows)
    counters = {row.channel: Counters.parse(row.stats) for row in rows}
    channels = []
    for row in rows:
        done, stats = counters[row.channel], ChannelStats.parse(row.stats)
        waiting = waits.get(row.channel)
        channels.append(
            ChannelNow(
                channel=row.channel,
                applied_seqno=row.applied_seqno,
                event_id=row.event_id,
                behind=max(0, committed - row.applied_seqno),
                latency_ms=stats.latency_ms,
                transactions=done.transactions,
                changes=done.changes,
                section=stats.section,
                waits="" if waiting is None else wait_text(waiting, row.channel),
                waits_for=() if waiting is None else waiting.channels,
                us={name: getattr(done, field) for name, field in TIMES.items()},
                in_flight=None if pipeline is None else pipeline.in_flight.get(row.channel),
            )
        )
    shards = [] if pipeline is None else shard_views(pipeline)
    shards.sort(key=lambda one: -one.appliedLatency)
    return Overview(
        service=service,
        pipeline=state.pipeline,
        process=process,
        state=state.state,
        since_ms=state.since_ms,
        now_ms=now_ms,
        monotonic_s=monotonic_s,
        source=source,
        target=target,
        log_dir=log_dir,
        first_seqno=NO_SEQNO if log is None else log.first_seqno,
        last_seqno=NO_SEQNO if log is None else log.last_seqno,
        committed_seqno=committed,
        applied_seqno=restart_seqno(rows) if rows else state.applied_seqno,
        lag_ms=lag_ms,
        limit=state.limit,
        pending=state.pending,
        sections=total.sections,
        retries=total.retries,
        shards_known=len(shards),
        channels=tuple(channels),
        shards=tuple(
            ShardNow(
                shard=one.shardId,
                channel=one.channel,
                applied_seqno=one.appliedLastSeqno,
                latency_ms=round(one.appliedLatency * 1000),
                transactions=one.eventCount,
            )
            for one in shards[:SHARDS_MOST]
        ),
        problems=problems,
        slots=state.slots,
        troubles=state.troubles,
    )


# --- two of them -----------------------------------------------------------------------------------------


class ChannelPace(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel does, and how fast. `shares`: of the time that it told of, in parts of 1; empty: of none."""

    channel: int
    doing: Doing
    transactions_per_s: float | None
    changes_per_s: float | None
    shares: dict[str, float]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What two readings tell together; rates are None without an earlier one. `logged`: what came into the log."""

    logged_per_s: float | None
    transactions_per_s: float | None
    changes_per_s: float | None
    channels: tuple[ChannelPace, ...]


def pace(before: Overview | None, now: Overview) -> Pace:
    """Compare two readings; an earlier one of another process, or from before a reset, tells nothing."""
    if before is not None and before.process != now.process:
        before = None
    seconds = 0.0 if before is None else now.monotonic_s - before.monotonic_s
    earlier = {} if before is None or seconds <= 0 else {one.channel: one for one in before.channels}
    resting = now.state.resting
    paces = []
    for one in now.channels:
        was = earlier.get(one.channel)
        if was is not None and (one.transactions < was.transactions or one.applied_seqno < was.applied_seqno):
            was = None
        paces.append(
            ChannelPace(
                channel=one.channel,
                doing=Doing.STOPPED if resting else _doing(was, one, now),
                transactions_per_s=None if was is None else (one.transactions - was.transactions) / seconds,
                changes_per_s=None if was is None else max(0, one.changes - was.changes) / seconds,
                shares={} if was is None else _shares(was, one),
            )
        )
    known = [one for one in paces if one.transactions_per_s is not None]
    logged = None
    if before is not None and seconds > 0 and before.last_seqno <= now.last_seqno and before.last_seqno != NO_SEQNO:
        logged = (now.last_seqno - before.last_seqno) / seconds
    return Pace(
        logged_per_s=logged,
        transactions_per_s=sum(one.transactions_per_s or 0.0 for one in known) if known else None,
        changes_per_s=sum(one.changes_per_s or 0.0 for one in known) if known else None,
        channels=tuple(paces),
    )


def _doing(was: ChannelNow | None, one: ChannelNow, now: Overview) -> Doing:
    told_ms = None if one.in_flight is None else now.now_ms - one.in_flight.written_at
    return doing_of(
        None if was is None else Moved(applied_seqno=was.applied_seqno, transactions=was.transactions),
        Moved(applied_seqno=one.applied_seqno, transactions=one.transactions, told_ms=told_ms),
        waiting=bool(one.waits_for),
        section=one.section,
        behind=one.behind,
        starting=now.state is State.GOING_ONLINE,
    )


def _shares(was: ChannelNow, now: ChannelNow) -> dict[str, float]:
    spent = {name: max(0, now.us.get(name, 0) - was.us.get(name, 0)) for name in TIMES}
    total = sum(spent.values())
    return {name: us / total for name, us in spent.items() if us} if total else {}


def report(before: Overview | None, now: Overview) -> dict[str, object]:
    """Return a reading with its pace as one plain value, channel by channel."""
    paced = pace(before, now)
    shown: dict[str, object] = msgspec.to_builtins(now)
    by_channel = {one.channel: msgspec.to_builtins(one) for one in paced.channels}
    shown["logged_per_s"] = paced.logged_per_s
    shown["transactions_per_s"] = paced.transactions_per_s
    shown["changes_per_s"] = paced.changes_per_s
    shown["channels"] = [{**msgspec.to_builtins(one), **by_channel[one.channel]} for one in now.channels]
    return shown
