"""Where a pipeline stands, and what a start means: from the rows in the target and the range of the log.

Owns the decision that `tranlog apply` takes before anything runs (`plan_start`), the check of a position against the
log, and what lag means. Reads nothing and raises nothing: refusals are values, and `apply` turns them into errors.
The hard idea: a position is a claim about history. It is believed only while the log holds the very transaction
that it names, by epoch and event id, so that a cleared or re-created log is never silently skipped into.

Source: design/pipeline.md, "At start", "Tokens"; conformance/tungsten.md B7 items 8 and 20.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import msgspec

from tranlog.errors import ConfigError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.pipeline.channels import ShardPlan
from tranlog.target.target import ChannelRow, PipelineRow


class Named(Protocol):
    """What a header tells of a transaction, as far as positions go."""

    @property
    def epoch(self) -> Epoch: ...
    @property
    def source_id(self) -> str: ...
    @property
    def event_id(self) -> str: ...
    @property
    def tstamp(self) -> int: ...


HeaderAt: TypeAlias = Callable[[Seqno], Named | None]
"""The header of the last fragment of a transaction; None where the log has none of that seqno."""


# --- is this position in this log? ---


@dataclass(frozen=True, slots=True, kw_only=True)
class InLog:
    """The log holds the transaction that the position names, or nothing was applied yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The log does not hold it: exit code 3."""

    channel: int
    gtid: Gtid
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """The transactions behind the position are gone from the log."""

    channel: int
    seqno: Seqno
    first: Seqno


PositionVerdict: TypeAlias = InLog | Ahead | Purged


def check_position(row: ChannelRow, *, first: Seqno, header_at: HeaderAt) -> PositionVerdict:
    """Say whether the log can go on behind a channel's position; `first` is the first seqno that the log holds.

    A row that has applied nothing has epoch 0 and no event id: only the transactions behind it must be there. A
    position right in front of the log's first transaction cannot be compared; it holds if the log goes on in the
    same or a later epoch, which is how a log begins that was told to start behind a target's position.
    """
    seqno = row.applied_seqno
    if seqno < first - 1:
        return Purged(channel=row.channel, seqno=Seqno(seqno + 1), first=first)
    if row.epoch == NO_EPOCH and not row.event_id:
        return InLog()
    gtid = Gtid(row.epoch, seqno)
    if seqno < first:
        header = header_at(first)
        if header is None or header.epoch >= row.epoch:
            return InLog()
        why = f"this log begins right behind it in an earlier epoch, {header.epoch}"
        return Ahead(channel=row.channel, gtid=gtid, why=why)
    header = header_at(seqno)
    if header is None:
        return Ahead(channel=row.channel, gtid=gtid, why="this log does not reach that far")
    if header.epoch != row.epoch:
        why = f"in this log seqno {seqno} belongs to epoch {header.epoch}"
        return Ahead(channel=row.channel, gtid=gtid, why=why)
    if header.event_id != row.event_id:
        why = f"in this log seqno {seqno} has event id {header.event_id!r}, not {row.event_id!r}"
        return Ahead(channel=row.channel, gtid=gtid, why=why)
    return InLog()


# --- what does this start mean? ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Take the pipeline with these positions and run this plan."""

    plan: ShardPlan
    rows: tuple[ChannelRow, ...]
    expected_token: int
    keep_assignment: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Take the pipeline, run the old plan up to `upto`, inclusive, and plan again: all channels stand there then."""

    plan: ShardPlan
    rows: tuple[ChannelRow, ...]
    expected_token: int
    upto: Seqno
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Another driver is alive."""

    holder: str


StartPlan: TypeAlias = Run | Drain | Held | Ahead | Purged


def plan_start(
    *,
    pipeline: PipelineRow | None,
    rows: Sequence[ChannelRow],
    wanted: ShardPlan,
    start: Seqno | None,
    first: Seqno,
    header_at: HeaderAt,
    alive: bool,
    take_over: bool,
) -> StartPlan:
    """Decide what a start does.

    `pipeline` and `rows` are what the target holds, `start` the seqno that the user wants applied first where the
    target has no position (None: the first that the log holds), `alive` whether another driver was seen to be.
    Raises ConfigError for a stored rule of no release.
    """
    if alive and not take_over and pipeline is not None:
        return Held(holder=pipeline.holder)
    begin = Seqno((first if start is None else start) - 1)
    stored = {row.channel: row for row in rows}
    for row in stored.values():
        verdict = check_position(row, first=first, header_at=header_at)
        if not isinstance(verdict, InLog):
            return verdict
    token = 0 if pipeline is None else pipeline.token
    if pipeline is not None:
        old = ShardPlan.parse(pipeline.shard_rule, channels=pipeline.channels)
    else:  # no row, and channels that have one: somebody deleted it; what they did was most likely this plan
        old = replace(wanted, channels=max(stored, default=wanted.channels - 1) + 1)
    if begin < first - 1 and not stored.keys() >= set(range(old.channels)):
        return Purged(channel=0, seqno=Seqno(begin + 1), first=first)
    if not stored:
        fresh = tuple(ChannelRow(channel=channel, applied_seqno=begin) for channel in range(wanted.channels))
        return Run(plan=wanted, rows=fresh, expected_token=token, keep_assignment=False)
    standing, notes = _complete(stored, old.channels, begin)
    if old.channels == wanted.channels and old.text() == wanted.text():
        return Run(plan=wanted, rows=standing, expected_token=token, keep_assignment=True, notes=notes)
    change = f"{old.channels} channels, {old.text()} -> {wanted.channels} channels, {wanted.text()}"
    positions = {row.applied_seqno for row in standing}
    if len(positions) > 1:
        upto = max(positions)
        notes = (*notes, f"the plan changes ({change}): the old one first runs up to seqno {upto}")
        return Drain(plan=old, rows=standing, expected_token=token, upto=upto, notes=notes)
    return Run(
        plan=wanted,
        rows=_divide(standing, wanted.channels),
        expected_token=token,
        keep_assignment=False,
        notes=(*notes, f"the plan changed at seqno {max(positions)} ({change})"),
    )


def _complete(
    stored: dict[int, ChannelRow], channels: int, begin: Seqno
) -> tuple[tuple[ChannelRow, ...], tuple[str, ...]]:
    """Return a row per channel; one without starts where the pipeline was told to start, not where others stand."""
    rows, notes = [], []
    for channel in range(channels):
        row = stored.get(channel)
        if row is None:
            row = ChannelRow(channel=channel, applied_seqno=begin)
            notes.append(f"channel {channel} has no position: it starts at seqno {begin + 1}")
        rows.append(row)
    return tuple(rows), tuple(notes)


def _divide(standing: Sequence[ChannelRow], channels: int) -> tuple[ChannelRow, ...]:
    """Return the rows of a new plan, all at the one seqno where the old channels stand; channel 0 keeps the counts."""
    here = max(standing, key=lambda row: row.epoch)
    total = sum((Counters.parse(row.stats) for row in standing), Counters())
    return tuple(
        replace(here, channel=channel, token=0, session="", stats=(total if channel == 0 else Counters()).text())
        for channel in range(channels)
    )


# --- what was done so far ---


@dataclass(slots=True, kw_only=True)
class Counters:
    """A channel's counters since the pipeline's first start, kept in `tranlog_channel.stats` beside the position.

    `transactions` counts the applied ones, no-ops among them, and those that filters left nothing of, which `filtered`
    counts; `sections` the serial sections; `groups` the target transactions with rows; `waits` meetings that were
    waited for; `retries` reconnects; `bytes` payload bytes; `skipped` other channels' transactions; `omitted` own ones
    that the operator had left out. Where the time went, in microseconds: reading and waiting for a group to fill
    (`read`), in filters, at the target before its COMMIT (`apply`) and in it, publishing and meeting (`other`), without
    anything to read (`idle`), waiting for other channels (`wait`). What a target transaction took is only known behind
    it, and stored with the next position.
    """

    transactions: int = 0
    changes: int = 0
    serial: int = 0
    sections: int = 0
    groups: int = 0
    bytes: int = 0
    skipped: int = 0
    waits: int = 0
    wait_ms: int = 0
    retries: int = 0
    omitted: int = 0
    filtered: int = 0
    read_us: int = 0
    filter_us: int = 0
    apply_us: int = 0
    commit_us: int = 0
    other_us: int = 0
    idle_us: int = 0
    wait_us: int = 0

    def text(self) -> str:
        """Return the JSON text that the target stores."""
        return json.dumps({name: value for name in self.__slots__ if (value := getattr(self, name))})

    @classmethod
    def parse(cls, text: str) -> Counters:
        """Read what `text` wrote; what is not a counter of ours is passed over."""
        try:
            fields = json.loads(text or "{}")
        except ValueError:
            return cls()
        if not isinstance(fields, dict):
            return cls()
        return cls(**{name: fields[name] for name in cls.__slots__ if isinstance(fields.get(name), int)})

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


SHARDS_TOLD_MAX: Final = 64
"""How many shards a channel tells apart in its stats; the longest silent one makes room for a new one."""


class ShardCount(msgspec.Struct, frozen=True, array_like=True):
    """What a channel applied of one shard: how many, the last one, and how late that was when it was applied."""

    transactions: int
    applied_seqno: int
    latency_ms: int
    event_id: str


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """What a channel waits for: that each of `channels` has applied `seqno`; `serial`: a serial section asks for it."""

    seqno: int
    serial: bool
    channels: tuple[int, ...]


class ChannelStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What stands beside the counters in `tranlog_channel.stats`: what cannot be added up.

    `since`: the first seqno that is counted. `block`: how many source transactions the last target transaction had,
    `block_us` how long it took. `latency_ms`: from the source's commit to the target's, of the last one applied.
    `section`: the channel was inside a serial section when it published. `waiting`: for what, if it waited then.
    `shards`, the most recently applied last.
    """

    since: int = NO_SEQNO
    block: int = 0
    block_us: int = 0
    latency_ms: int = 0
    section: bool = False
    waiting: Waiting | None = None
    shards: dict[str, ShardCount] = {}

    def count(self, shard: str, transactions: int, *, seqno: Seqno, event_id: str, latency_ms: int) -> None:
        """Note transactions of a shard that go with the next position."""
        before = self.shards.pop(shard, None)
        done = transactions if before is None else before.transactions + transactions
        self.shards[shard] = ShardCount(done, seqno, latency_ms, event_id)
        if len(self.shards) > SHARDS_TOLD_MAX:
            del self.shards[next(iter(self.shards))]

    def text(self, counters: Counters) -> str:
        """Return the JSON text that the target stores, counters and all."""
        told = {name: value for name in Counters.__slots__ if (value := getattr(counters, name))}
        return msgspec.json.encode({**told, **msgspec.to_builtins(self)}).decode()

    @classmethod
    def parse(cls, text: str) -> ChannelStats:
        """Read what `text` wrote; nothing, where it is not ours."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.DecodeError:
            return cls()


# --- where it stands ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the target is behind the log. `ms`: how long ago the first transaction not applied was committed."""

    seqnos: int
    ms: int


def restart_seqno(rows: Iterable[ChannelRow]) -> Seqno:
    """Return the least of the applied seqnos: where reading resumes, and what retention waits for."""
    return min((row.applied_seqno for row in rows), default=NO_SEQNO)


def lag(*, restart: Seqno, committed: Seqno, next_tstamp: int | None, now_ms: int) -> Lag:
    """Measure the lag: by the first transaction that is not applied, not by the last that is.

    So silence at the source is no lag. `next_tstamp` is the commit time of transaction `restart` + 1, None where
    there is none.
    """
    if restart >= committed:
        return Lag(seqnos=0, ms=0)
    return Lag(seqnos=committed - restart, ms=0 if next_tstamp is None else max(0, now_ms - next_tstamp))


def nearest_limit(one: Seqno | None, other: Seqno | None) -> Seqno | None:
    """Return the lower of two limits; None is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


# --- may the job be submitted again? ---


@dataclass(slots=True)
class Resubmissions:
    """Bounds how often a failing job is submitted again without getting any further."""

    allowed: int
    total: int = 0
    _without_progress: int = 0
    _positions: tuple[Seqno, ...] = field(default=())

    def again(self, positions: Iterable[Seqno]) -> bool:
        """Whether to submit once more, given where the channels stand now."""
        now = tuple(positions)
        self._without_progress = 1 if now != self._positions else self._without_progress + 1
        self._positions = now
        if self._without_progress > self.allowed:
            return False
        self.total += 1
        return True


def check_pipeline_name(name: str) -> None:
    """Raise ConfigError for a name that cannot be a hold's file name or a table's key."""
    if not name or len(name.encode()) > 64 or not name.isprintable() or name[0] in ". " or "/" in name or "\\" in name:
        why = "a pipeline's name is 1 to 64 bytes, printable, without slashes and not starting with a dot"
        raise ConfigError(option="pipeline", value=name, why=why)
