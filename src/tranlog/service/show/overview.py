"""A running pipeline at one moment, in one answer, and what two of them together tell. Decides, does not act.

Owns the form of what `tranlog top` asks for. Gathering is `operating`'s, showing `screen`'s, and what a channel is said
to be doing `status`'s. The hard idea: whoever looks again and again knows its own interval, so two answers are compared
where they are shown, by the clock of the process that gave them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.progress import Counters, InFlight, totals
from tranlog.pipeline.rules.states import PendingError, State
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.pipeline.status.status import ChannelState, Doing, Moved, Status, pace_of, picked, total_of

if TYPE_CHECKING:
    from tranlog.pipeline.options import ApplyOptions

SHARDS_MOST: Final = 100
"""How many shards an overview names: the slowest."""
TIMES: Final = ("read", "filter", "apply", "commit", "wait", "idle", "other")
"""On what a channel spends its time; the counter of each ends by `_us`."""


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
    `loads`: how far each load of the log is, in a line. `notes`: what an operator should know of tables, as in
    `tranlog status`: that one waits for a load since a gap, or what DDL of the source was not done. `writes`: what
    channels did by write sets, in a line; empty where they divide by shards.
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
    loads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    writes: str = ""


def overview_of(status: Status, options: ApplyOptions, *, process: str, loads: tuple[str, ...] = ()) -> Overview:
    """Put the answer of a pipeline's process together; without log or target where they cannot be read."""
    state, log, pipeline = status.process, status.log, status.pipeline
    assert state is not None
    committed = state.committed_seqno if log is None else log.committed_seqno
    channels = () if pipeline is None else pipeline.channels
    shards = [] if pipeline is None else sorted(pipeline.shards, key=lambda one: -one.count.latency_ms)
    lag_ms = None
    if pipeline is not None and pipeline.lag is not None:
        lag_ms = pipeline.lag.ms if channels else 0
    total = totals(one.row for one in channels)
    return Overview(
        **picked(state, "pipeline state since_ms limit pending slots troubles"),
        **picked(status, "service now_ms monotonic_s source"),
        process=process,
        loads=loads,
        notes=() if pipeline is None else pipeline.notes,
        writes="" if pipeline is None or pipeline.writes is None else _writes_text(total, channels),
        target=_target_text(options.target.kind, None if pipeline is None else pipeline.target),
        log_dir=options.log_dir,
        first_seqno=NO_SEQNO if log is None else log.first_seqno,
        last_seqno=NO_SEQNO if log is None else log.last_seqno,
        committed_seqno=committed,
        applied_seqno=pipeline.restart_seqno if pipeline is not None and channels else state.applied_seqno,
        lag_ms=lag_ms,
        sections=total.sections,
        retries=total.retries,
        shards_known=len(shards),
        channels=tuple(_channel_now(one, committed) for one in channels),
        shards=tuple(
            ShardNow(**picked(one, "shard channel count.applied_seqno count.latency_ms count.transactions"))
            for one in shards[:SHARDS_MOST]
        ),
        problems=tuple(f"{part}: {exc}" for part, exc in status.problems.items()),
    )


def _writes_text(total: Counters, channels: Sequence[ChannelState]) -> str:
    """Tell shares of all transactions, how long was waited, and what most often made one run alone."""
    whole = max(1, total.transactions)
    alone = Counter[str]()
    for one in channels:
        alone.update(one.stats.reasons)
    told = (
        f"by write sets: {total.depended / whole:.1%} depended on another channel, {total.held / whole:.1%} waited, "
        f"{total.wait_ms / 1000:.1f} s; {total.serial / whole:.1%} ran alone"
    )
    if alone:
        ((why, count),) = alone.most_common(1)
        told += f", {count} of them: {why}"
    return told if not total.missed else f"{told}; {total.missed} missed dependencies"


def _channel_now(one: ChannelState, committed: int) -> ChannelNow:
    return ChannelNow(
        **picked(one, "row.channel row.applied_seqno row.event_id stats.latency_ms counters.transactions"),
        **picked(one, "counters.changes stats.section waits in_flight"),
        behind=max(0, committed - one.row.applied_seqno),
        waits_for=() if one.waiting is None else one.waiting.channels,
        us={name: getattr(one.counters, f"{name}_us") for name in TIMES},
    )


def _target_text(kind: str, name: str | None) -> str:
    """Name a target; a file says its kind too, as a URL does by itself."""
    if name is None:
        return kind
    return name if "://" in name else f"{kind} {name}"


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
        doing, transactions_per_s, changes_per_s = pace_of(
            None if was is None else _moved(was),
            _moved(one),
            seconds,
            told_ms=None if one.in_flight is None else now.now_ms - one.in_flight.written_at,
            waiting=bool(one.waits_for),
            section=one.section,
            behind=one.behind,
            starting=now.state is State.GOING_ONLINE,
        )
        paces.append(
            ChannelPace(
                channel=one.channel,
                doing=Doing.STOPPED if resting else doing,
                transactions_per_s=transactions_per_s,
                changes_per_s=changes_per_s,
                shares={} if was is None or transactions_per_s is None else _shares(was, one),
            )
        )
    logged = None
    if before is not None and seconds > 0 and before.last_seqno <= now.last_seqno and before.last_seqno != NO_SEQNO:
        logged = (now.last_seqno - before.last_seqno) / seconds
    return Pace(
        logged_per_s=logged,
        transactions_per_s=total_of(one.transactions_per_s for one in paces),
        changes_per_s=total_of(one.changes_per_s for one in paces),
        channels=tuple(paces),
    )


def _moved(one: ChannelNow) -> Moved:
    return Moved(**picked(one, "applied_seqno transactions changes"))


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
