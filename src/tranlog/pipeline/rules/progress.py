"""The progress of a pipeline, and how it starts: from the rows in the target and the range of the log.

Owns the decision that `tranlog apply` takes before anything runs (`plan_start`), the check of a position against the
log, and the definition of lag. Reads nothing and raises nothing: refusals are values, and `apply` makes errors of them.
The hard idea: a position is a claim about history. It is accepted only while the log holds exactly the transaction that
it names, by epoch and event id; so a cleared or re-created log is never skipped silently. A missing position is a claim
too: that nothing was applied. It is accepted only if nothing else contradicts it.

Source: docs/conformance.md, B7 items 8 and 20.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import msgspec

from tranlog.errors import ConfigError, PurgedError, TranlogError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.rules.rollback import FOLLOWERS
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.raising import BEGIN_ANEW
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
class PurgedAway:
    """The transactions after the position are gone from the log."""

    channel: int
    seqno: Seqno
    first: Seqno


def lost_to(error: PurgedError) -> PurgedError:
    """Return the error for what a pipeline needs of the log and is purged, with what to do about the pipeline."""
    error.remedy = BEGIN_ANEW
    return error


PositionVerdict: TypeAlias = InLog | Ahead | PurgedAway


def check_position(row: ChannelRow, *, first: Seqno, header_at: HeaderAt) -> PositionVerdict:
    """Say whether the log can go on after a channel's position; `first` is the first seqno that the log holds.

    A row that has applied nothing has epoch 0 and no event id: only the transactions after it must be there. A
    position right before the log's first transaction cannot be compared; it holds if the log goes on in the
    same or a later epoch, which is how a log begins that was told to start after a target's position.
    """
    seqno = row.applied_seqno
    if seqno < first - 1:
        return PurgedAway(channel=row.channel, seqno=Seqno(seqno + 1), first=first)
    if row.epoch == NO_EPOCH and not row.event_id:
        return InLog()
    gtid = Gtid(row.epoch, seqno)
    if seqno < first:
        header = header_at(first)
        if header is None or header.epoch >= row.epoch:
            return InLog()
        why = f"this log begins right after it in an earlier epoch, {header.epoch}"
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
class HeldElsewhere:
    """Another driver is alive."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the log's hold tells of a pipeline, beside its target.

    `upto`: everything up to there was applied; None: the hold is damaged. `begun`: tasks were started, so there may be
    more. `target`: where, if that is not this target; empty: here, or it does not tell.
    """

    upto: Seqno | None
    begun: bool
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPosition:
    """The target's record of positions is gone or not whole. `upto`: what is known to have been applied here."""

    why: str
    upto: Seqno | None
    remedy: str


StartPlan: TypeAlias = Run | Drain | HeldElsewhere | Ahead | PurgedAway | LostPosition

_RESTORE: Final = (
    "Restore tranlog's own tables at the target, and only as of the very moment that its rows are as of; or "
)
_COMPARE: Final = "find out up to where its rows are, and run `tranlog position set "


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
    shards: int = 0,
    known: Known | None = None,
    others: Mapping[str, Sequence[ChannelRow]] | None = None,
) -> StartPlan:
    """Decide what a start does.

    `pipeline` and `rows` are what the target holds, `shards` for how many it has a channel recorded; `known` what the
    log tells of the pipeline (None: nothing). `others` are the rows of pipelines at this target that it is not said to
    run beside. `start` is the seqno that the user wants applied first where the target has no position (None: the first
    that the log holds), `alive` whether another driver was seen to be. Raises ConfigError for a stored rule of no
    release.
    """
    if alive and not take_over and pipeline is not None:
        return HeldElsewhere(holder=pipeline.holder)
    begin = Seqno((first if start is None else start) - 1)
    stored = {row.channel: row for row in rows}
    for row in stored.values():
        verdict = check_position(row, first=first, header_at=header_at)
        if not isinstance(verdict, InLog):
            return verdict
    lost = _find_lost(pipeline, stored, shards=shards, known=known, first=first)
    if lost is not None:
        return lost
    if pipeline is None or not stored:  # it never ran, or is to begin anew
        if begin < first - 1:
            return PurgedAway(channel=0, seqno=Seqno(begin + 1), first=first)
        twice = _applied_by_another(others or {}, begin, header_at)
        if twice is not None:
            return twice
        fresh = tuple(ChannelRow(channel=channel, applied_seqno=begin) for channel in range(wanted.channels))
        token = 0 if pipeline is None else pipeline.token
        return Run(plan=wanted, rows=fresh, expected_token=token, keep_assignment=False)
    token = pipeline.token
    old = ShardPlan.parse(pipeline.shard_rule, channels=pipeline.channels)
    standing = tuple(stored[channel] for channel in range(old.channels))
    notes: tuple[str, ...] = ()
    recorded = shards >= pipeline.shards
    if not recorded:
        notes = ("tranlog_shard is not whole; all channels stand at one seqno, so shards are divided anew",)
    if old.channels == wanted.channels and old.text() == wanted.text():
        return Run(plan=wanted, rows=standing, expected_token=token, keep_assignment=recorded, notes=notes)
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


def _applied_by_another(
    others: Mapping[str, Sequence[ChannelRow]], begin: Seqno, header_at: HeaderAt
) -> LostPosition | None:
    """Say which pipeline has applied transactions of this log after `begin` at the target; None: none.

    What filters it had nobody knows, so whether the two share a table is for the user to say.
    """
    for name, rows in sorted(others.items()):
        upto = [row.applied_seqno for row in rows if row.applied_seqno > begin and _names(row, header_at)]
        if upto:
            why = f"it has none there, and pipeline {name!r} has applied this log there, up to seqno {max(upto)}"
            remedy = (
                f'Go on under that name: [pipeline] name = "{name}", or --pipeline {name}. Where both are to fill this '
                f'target, with filters that keep their rows apart: [pipeline] beside = ["{name}"]'
            )
            return LostPosition(why=why, upto=None, remedy=remedy)
    return None


def _names(row: ChannelRow, header_at: HeaderAt) -> bool:
    """Whether a position names the very transaction that the log holds there."""
    header = header_at(row.applied_seqno)
    if header is None or row.epoch == NO_EPOCH:
        return False
    found = header.epoch, header.source_id, header.event_id, header.tstamp
    return found == (row.epoch, row.source_id, row.event_id, row.tstamp)


def _find_lost(
    pipeline: PipelineRow | None, stored: dict[int, ChannelRow], *, shards: int, known: Known | None, first: Seqno
) -> LostPosition | None:
    """Say what of the target's record is not there, though it must have been; None: it is whole, or never was."""
    here = None if known is None or known.target else known.upto
    if pipeline is None and not stored:
        return None if known is None else _all_lost(known, first)
    if pipeline is None:
        why = f"tranlog_channel has its {_channels(stored)}, and tranlog_pipeline, which tells by what plan, has no row"
        remedy = (
            f"{_RESTORE}give the configuration the channels and shards that it last ran with, look where channel 0 "
            "stands (`tranlog position get`), and put it there: `tranlog position set SEQNO --channel 0`"
        )
        return LostPosition(why=why, upto=here, remedy=remedy)
    if not pipeline.channels and not stored:  # `tranlog position reset`
        return None
    missing = set(range(pipeline.channels)) - stored.keys()
    if missing:
        by = ShardPlan.parse(pipeline.shard_rule, channels=pipeline.channels).by
        one = "" if not stored or by is ShardBy.WRITES else f" --channel {min(missing)}"
        why = f"tranlog_channel has no row of its {_channels(missing)}, of {pipeline.channels}"
        remedy = f"{_RESTORE}{_COMPARE}SEQNO{one}`"
        if not stored:
            remedy += "; or, to begin anew at a target without these rows, `tranlog position reset`"
        return LostPosition(why=why, upto=here, remedy=remedy)
    if len(stored) > pipeline.channels:
        why = f"tranlog_channel has rows of its {_channels(stored)}, and tranlog_pipeline says {pipeline.channels}"
        return LostPosition(why=why, upto=here, remedy=f"{_RESTORE}{_COMPARE}SEQNO`")
    positions = {row.applied_seqno for row in stored.values()}
    if shards < pipeline.shards and len(positions) > 1:
        why = (
            f"tranlog_shard has the channels of {shards} shards, of {pipeline.shards}, and the channels stand apart, "
            f"from seqno {min(positions)} to {max(positions)}: divided anew, shards would come twice or not at all"
        )
        return LostPosition(
            why=why, upto=here, remedy=f"{_RESTORE}{_COMPARE}SEQNO`, after which shards are divided anew"
        )
    return None


def _all_lost(known: Known, first: Seqno) -> LostPosition | None:
    """Say what it means that the target has nothing of a pipeline of which the log knows something."""
    if known.target:
        upto = "" if known.upto is None or known.upto < 0 else f", which has everything up to seqno {known.upto}"
        why = f"it has no position of it, and the log's hold of this name is for another target, {known.target}{upto}"
        remedy = (
            "Give a further target a pipeline of another name ([pipeline] name, or --pipeline NAME). Where this target "
            "has taken the other's place: with its rows, find out up to where they are, and run "
            "`tranlog position set SEQNO`; without them, `tranlog position reset`"
        )
        return LostPosition(why=why, upto=None, remedy=remedy)
    if known.upto is not None and known.upto < first and not known.begun:
        return None  # nothing that the log still has was applied
    remedy = (
        f"{_RESTORE}{_COMPARE}SEQNO`; or, where this target is new and holds none of these rows, "
        "`tranlog position reset`"
    )
    if known.upto is None:
        why = "it has no position of it; it had one, since the log's hold of it is there, damaged"
        return LostPosition(why=why, upto=None, remedy=remedy)
    if known.upto < 0:
        return LostPosition(
            why="it has no position of it, and by the log's hold it had begun here", upto=None, remedy=remedy
        )
    return LostPosition(why="it has no position of it any more", upto=known.upto, remedy=remedy)


def _channels(numbers: Iterable[int]) -> str:
    """Return `channel 3`, or `channels 0, 2, 3`."""
    told = sorted(numbers)
    return f"channel{'s' if len(told) > 1 else ''} {', '.join(map(str, told))}"


def _divide(standing: Sequence[ChannelRow], channels: int) -> tuple[ChannelRow, ...]:
    """Return the rows of a new plan, all at the one seqno where the old channels stand.

    Each counts from there on, since what a channel of another plan has read was not its own; channel 0 keeps the sums.
    """
    here = max(standing, key=lambda row: row.epoch)
    sums = ChannelStats(earlier=totals(standing).given()).text(Counters())
    return tuple(
        replace(here, channel=channel, token=0, session="", stats="{}" if channel else sums)
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
    anything to read (`idle`), waiting for other channels (`wait`). What a target transaction took is only known after
    it, and stored with the next position. By write sets: `depended` on a transaction of another channel, were `held` by
    it, and conflicts that were gone when the others had come (`missed` dependencies).
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
    depended: int = 0
    held: int = 0
    missed: int = 0

    def given(self) -> dict[str, int]:
        """Return those that are not 0, by name."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}

    def text(self) -> str:
        """Return the JSON text that the target stores."""
        return json.dumps(self.given())

    @classmethod
    def parse(cls, text: str) -> Counters:
        """Read what `text` wrote; what is not a counter of ours is passed over."""
        try:
            fields = json.loads(text or "{}")
        except ValueError:
            return cls()
        return cls.of(fields) if isinstance(fields, dict) else cls()

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Counters:
        """Return those of these names; others are passed over."""
        return cls(**{name: found for name in cls.__slots__ if isinstance(found := fields.get(name), int)})

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


_ERROR_MOST: Final = 2_000
"""Characters of an error's message that are kept: its beginning, and its end, which says what to do."""
REASONS_TOLD_MAX: Final = 32
"""How many reasons for serial transactions a channel tells apart."""
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


class LastError(msgspec.Struct, frozen=True):
    """Why the run before ended; its message says what to do. Seqno -1 where it is about no transaction."""

    type: str
    message: str
    at_ms: int
    seqno: int = NO_SEQNO

    @classmethod
    def of(cls, error: TranlogError, *, at_ms: int) -> LastError:
        """Return an error as it is kept."""
        seqno = getattr(error, "seqno", None)
        text = str(error)
        if len(text) > _ERROR_MOST:
            text = f"{text[: _ERROR_MOST // 2]} … {text[-_ERROR_MOST // 2 :]}"
        return cls(type(error).__name__, text, at_ms, seqno if isinstance(seqno, int) else NO_SEQNO)


class ChannelStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What stands beside the counters in `tranlog_channel.stats`: what cannot be added up.

    `since`: the first seqno that is counted. `block`: how many source transactions the last target transaction had,
    `block_us` how long it took. `latency_ms`: from the source's commit to the target's, of the last one applied.
    `section`: the channel was inside a serial section when it published. `waiting`: for what, if it waited then.
    `shards`, the most recently applied last. `reasons`: why transactions ran alone, and how many. `missed_at`: tables
    of which a write set has not told everything. `earlier`, of channel 0: the sums of the plans before. `error`, of
    channel 0: why the run ended.
    """

    since: int = NO_SEQNO
    block: int = 0
    block_us: int = 0
    latency_ms: int = 0
    section: bool = False
    waiting: Waiting | None = None
    shards: dict[str, ShardCount] = {}
    reasons: dict[str, int] = {}
    missed_at: tuple[tuple[str, str], ...] = ()
    earlier: dict[str, int] = {}
    error: LastError | None = None

    def count(self, shard: str, transactions: int, *, seqno: Seqno, event_id: str, latency_ms: int) -> None:
        """Note transactions of a shard that go with the next position."""
        before = self.shards.pop(shard, None)
        done = transactions if before is None else before.transactions + transactions
        self.shards[shard] = ShardCount(done, seqno, latency_ms, event_id)
        if len(self.shards) > SHARDS_TOLD_MAX:
            del self.shards[next(iter(self.shards))]

    def count_reason(self, why: str) -> None:
        """Note why a transaction ran alone."""
        if why in self.reasons or len(self.reasons) < REASONS_TOLD_MAX:
            self.reasons[why] = self.reasons.get(why, 0) + 1

    def text(self, counters: Counters) -> str:
        """Return the JSON text that the target stores, counters and all."""
        return msgspec.json.encode({**counters.given(), **msgspec.to_builtins(self)}).decode()

    @classmethod
    def parse(cls, text: str) -> ChannelStats:
        """Read what `text` wrote; nothing, where it is not ours."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.DecodeError:
            return cls()


def totals(rows: Iterable[ChannelRow]) -> Counters:
    """Add up what all channels counted, those of earlier plans too."""
    total = Counters()
    for row in rows:
        total += Counters.parse(row.stats) + Counters.of(ChannelStats.parse(row.stats).earlier)
    return total


def with_error(rows: Iterable[ChannelRow], error: LastError | None) -> tuple[ChannelRow, ...]:
    """Return the rows with why the run ended; None: forget why the run before did."""
    return tuple(
        replace(
            row,
            stats=msgspec.structs.replace(ChannelStats.parse(row.stats), error=error).text(Counters.parse(row.stats)),
        )
        if row.channel == 0
        else row
        for row in rows
    )


def last_error(rows: Iterable[ChannelRow]) -> LastError | None:
    """Return why the last run ended; None where it was no error, or another run has begun."""
    return next((ChannelStats.parse(row.stats).error for row in rows if row.channel == 0), None)


def applied_nothing(rows: Iterable[ChannelRow], *, first: Seqno) -> bool:
    """Whether these positions came from the log's beginning to where they are without a row for the target.

    Seen by what is counted beside them, without a gap; a position that an operator has set is no such one. `first` is
    the first seqno that the log holds.
    """
    for row in rows:
        if row.epoch == NO_EPOCH and not row.event_id:
            if row.applied_seqno >= first:
                return False
            continue
        counted, since = Counters.parse(row.stats), ChannelStats.parse(row.stats).since
        passed = counted.transactions + counted.omitted + counted.skipped
        if counted.groups or not 0 <= since <= first or passed != row.applied_seqno - since + 1:
            return False
    return True


# --- where it stands ---


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """How far a channel is inside a large transaction, one that spilled or has several fragments; none is committed.

    `changes` went to the target so far, of so many nobody knows; of `size_bytes`, which its records have in the log,
    `read_bytes` are read. `began_at`, `written_at`: when the attempt began, and when this was said, ms since 1970.
    """

    seqno: int
    changes: int = 0
    read_bytes: int = 0
    size_bytes: int
    began_at: int
    written_at: int

    @property
    def text(self) -> str:
        """Say it for people."""
        part = f"{self.read_bytes / 1e6:.1f} of {self.size_bytes / 1e6:.1f} MB"
        return f"seqno {self.seqno}, {self.changes} changes so far, {part}"


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
    if name.startswith(FOLLOWERS):
        why = f"{' and '.join(FOLLOWERS)} begin the names of nodes that copy a log"
        raise ConfigError(option="pipeline", value=name, why=why)
