"""Which channel applies a transaction, and when channels must meet.

Owns the division of shards among channels (`ShardPlan`) and the rules by which a channel walks through the log
(`Walk`). Leaves to `channel` what a verdict asks for: reading, applying, publishing, polling. The hard idea: every
channel decides by itself, from the same headers and the positions in the target, so nobody has to be told anything.
A serial transaction is channel 0's; before the first of a run channel 0 waits for all others, and nobody passes a
serial transaction that channel 0 has not applied.

Source: on-disk-parallel-queues.
"""

from __future__ import annotations

import enum
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tranlog.change import Change, RowChange, TableName
from tranlog.errors import ConfigError
from tranlog.header import TransactionHeader
from tranlog.ids import Seqno
from tranlog.shard import UNKNOWN_SHARD
from tranlog.types import UNCHANGED, Value, canonical

SERIAL: Final = -1
"""The owner of a transaction that must run alone. Channel 0 applies it."""

MAX_CHANNELS: Final = 1024
"""A channel is a process and a connection; more than this is a slip of the keyboard."""


class Parallelization(enum.StrEnum):
    """How transactions come from the log to the channels."""

    DISK = "disk"
    """Each channel reads the log by a cursor of its own: channels may be any distance apart."""
    MEMORY = "memory"
    """One reader reads a bounded window, Spark splits it to the channels; all end it before the next begins."""
    NONE = "none"
    """One channel applies everything in the log's order."""


class AssignmentRule(enum.StrEnum):
    """How a shard that the user's map does not name gets its channel."""

    RECORDED = "recorded"
    """The one stored in `tranlog_shard`; a shard seen for the first time gets the channel with the fewest."""
    HASH = "hash"
    """CRC-32 of the shard's UTF-8 name, modulo the number of channels."""


class ShardBy(enum.StrEnum):
    """What makes a shard, for the pipeline. All but KEY ask the headers alone."""

    RECORDED = "recorded"
    """The shard that capture stored in the header. The cheapest: other channels' records are passed unparsed."""
    SCHEMA = "schema"
    TABLE = "table"
    """The schema, or the table, that the header names as touched. Foreign keys join no tables here, as they do at
    capture: the header does not know them."""
    WRITES = "writes"
    """No shard: a transaction goes to any channel, and waits for those before it that touched the same keys."""
    KEY = "key"
    """The value of a column of each table. Every channel decodes every transaction of the tables that have one."""


class CommitOrder(enum.StrEnum):
    """In which order the target gets transactions that touch nothing in common, by `writes`."""

    ANY = "any"
    SOURCE = "source"
    """The order of the log: channels read, decode and filter side by side, and apply one after the other."""


IN_A_ROW: Final = 64
"""How many consecutive seqnos go to one channel where the source's order is kept; another number is another plan."""

COMMIT_COST: Final = 100
"""As how many row changes a commit counts by write sets, unless said otherwise; measured at a local server: 127."""

KEY_SHARD: Final = "#KEY "
"""How the name of a shard begins that is a key's value; its channel is its hash, and is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """How a pipeline divides shards among its channels. Two plans with equal `text()` own alike.

    `serial` names shards that run alone, as `#UNKNOWN` does; `mapping` sends a shard to a channel, sorted by shard;
    `default` is the channel of every shard that is in neither, in the place of `rule`. `keys` (by `key`) names the
    column of each table, `schema.table`, sorted; a table without one is a shard of its own. `triggers` (by `writes`)
    are those at the target that read and write nothing that another transaction may touch, sorted; `filters` is a hash
    of the pipeline's. `in_a_row` (by `writes`): so many consecutive seqnos go to one channel, and the target gets all
    transactions in the source's order; 0: whose write sets have nothing in common come in any. `commit_cost` (by
    `writes`): as how many row changes a commit counts where it is asked whether the channels gain over one; 0: they do.
    """

    channels: int
    rule: AssignmentRule = AssignmentRule.RECORDED
    serial: frozenset[str] = frozenset()
    mapping: tuple[tuple[str, int], ...] = ()
    default: int | None = None
    by: ShardBy = ShardBy.RECORDED
    keys: tuple[tuple[str, str], ...] = ()
    triggers: tuple[str, ...] = ()
    filters: str = ""
    in_a_row: int = 0
    commit_cost: int = COMMIT_COST

    def check(self) -> None:
        """Raise ConfigError for a plan that cannot work."""
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ConfigError(option="channels", value=self.channels, why=f"must be 1 to {MAX_CHANNELS}")
        if self.default is not None and not 0 <= self.default < self.channels:
            why = f"channels are numbered 0 to {self.channels - 1}"
            raise ConfigError(option="shard default", value=self.default, why=why)
        if (self.by is ShardBy.KEY) != bool(self.keys):
            why = 'shards by "key" need a column for at least one table, and no others may name any'
            raise ConfigError(option="shard keys", value=dict(self.keys), why=why)
        if self.by is ShardBy.WRITES and (self.mapping or self.default is not None):
            why = 'by = "writes" gives no shard a channel; take out `channels` and `default`, or name another rule'
            raise ConfigError(option="shard by", value=self.by.value, why=why)
        if self.by is not ShardBy.WRITES and self.triggers:
            raise ConfigError(option="shards.independent_triggers", value=self.triggers, why='needs by = "writes"')
        if self.by is not ShardBy.WRITES and self.in_a_row:
            raise ConfigError(option="shards.commit_order", value=CommitOrder.SOURCE.value, why='needs by = "writes"')
        if self.commit_cost != COMMIT_COST and (self.by is not ShardBy.WRITES or self.commit_cost < 0):
            why = 'needs by = "writes"' if self.by is not ShardBy.WRITES else "must be 0 or more"
            raise ConfigError(option="shards.commit_cost", value=self.commit_cost, why=why)
        for shard, channel in self.mapping:
            if not 0 <= channel < self.channels:
                why = f"channels are numbered 0 to {self.channels - 1}"
                raise ConfigError(option="shard map", value={shard: channel}, why=why)
            if shard in self.serial or shard == UNKNOWN_SHARD:
                why = "a serial shard runs on channel 0, alone; take it out of the map or out of the serial list"
                raise ConfigError(option="shard map", value={shard: channel}, why=why)

    def text(self) -> str:
        """Return the rule as `tranlog_pipeline.shard_rule` stores it, without the number of channels."""
        fields: dict[str, object] = {"rule": self.rule.value}
        if self.serial:
            fields["serial"] = sorted(self.serial)
        if self.mapping:
            fields["map"] = dict(sorted(self.mapping))
        if self.default is not None:
            fields["default"] = self.default
        if self.by is not ShardBy.RECORDED:
            fields["by"] = self.by.value
        if self.keys:
            fields["keys"] = dict(sorted(self.keys))
        if self.triggers:
            fields["triggers"] = list(self.triggers)
        if self.filters:
            fields["filters"] = self.filters
        if self.in_a_row:
            fields["in_a_row"] = self.in_a_row
        if self.commit_cost != COMMIT_COST:
            fields["commit_cost"] = self.commit_cost
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str, *, channels: int) -> ShardPlan:
        """Read what `text` wrote. Raises ConfigError for what no release of ours wrote."""
        try:
            fields = json.loads(text)
            return cls(
                channels=channels,
                rule=AssignmentRule(fields["rule"]),
                serial=frozenset(fields.get("serial", ())),
                mapping=tuple(sorted((str(k), int(v)) for k, v in fields.get("map", {}).items())),
                default=None if fields.get("default") is None else int(fields["default"]),
                by=ShardBy(fields.get("by", ShardBy.RECORDED)),
                keys=tuple(sorted((str(k), str(v)) for k, v in fields.get("keys", {}).items())),
                triggers=tuple(map(str, fields.get("triggers", ()))),
                filters=str(fields.get("filters", "")),
                in_a_row=int(fields.get("in_a_row", 0)),
                commit_cost=int(fields.get("commit_cost", COMMIT_COST)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            why = "the target's tranlog_pipeline row does not hold a rule of this release; take the pipeline over anew"
            raise ConfigError(option="shard_rule", value=text, why=why) from exc

    def owner(self, shard_id: str, assignment: Mapping[str, int]) -> int | None:
        """Return the channel that applies a shard's transactions, or SERIAL; None: the shard has no channel yet.

        A pure function of the header's shard and of what is stored: every channel gets the same answer.
        """
        if self.by is ShardBy.WRITES:
            return SERIAL if shard_id in self.serial else None
        if not shard_id or shard_id == UNKNOWN_SHARD or shard_id in self.serial:
            return SERIAL
        if self.channels == 1:
            return 0
        for shard, channel in self.mapping:
            if shard == shard_id:
                return channel
        if self.default is not None:
            return self.default
        if self.rule is AssignmentRule.HASH or shard_id.startswith(KEY_SHARD):
            return zlib.crc32(shard_id.encode()) % self.channels
        return assignment.get(shard_id)

    def channel_of(self, shard_id: str, assignment: Mapping[str, int]) -> int | None:
        """Return what `owner` does, for whoever applies. Raises ConfigError for a channel beyond the plan's."""
        owner = self.owner(shard_id, assignment)
        if owner is not None and owner >= self.channels:
            why = f"stored in tranlog_shard, but there are {self.channels} channels; put back what it was"
            raise ConfigError(option=f"channel of shard {shard_id!r}", value=owner, why=why)
        return owner

    def shard(self, header: TransactionHeader, changes: Callable[[], Iterable[Change]]) -> str:
        """Return the shard of a transaction, from the header of its last fragment.

        Where that does not tell, `changes` gives its changes, which are then decoded; but of one fragment only: a
        larger transaction that would have to be is serial. A header says `#UNKNOWN` of a transaction of several shards
        and of one with a statement, so another rule than the recorded one decodes those that may turn out to lie in one
        shard.
        """
        if self.by in (ShardBy.RECORDED, ShardBy.WRITES):
            return header.shard_id
        found = self._shard_by_tables(header.shard_id, header.tables)
        if found is not None:
            return found
        if header.fragno or header.spilled:
            return UNKNOWN_SHARD
        return self._shard_by_changes(changes())

    def _shard_by_tables(self, recorded: str, tables: tuple[TableName, ...] | None) -> str | None:
        """Return the shard of a transaction from the recorded one and its tables; None: its changes may tell."""
        if not tables or not recorded:
            return UNKNOWN_SHARD
        if self.by is ShardBy.SCHEMA:
            found = {schema for schema, _ in tables}
        else:
            found = {f"{schema}.{table}" for schema, table in tables}
            if self.by is ShardBy.KEY:
                keyed = {table for table, _ in self.keys}
                if found & keyed:
                    return None if found <= keyed else UNKNOWN_SHARD
        if len(found) > 1:
            return UNKNOWN_SHARD
        if recorded == UNKNOWN_SHARD:
            return None
        return next(iter(found)) or UNKNOWN_SHARD

    def _shard_by_changes(self, changes: Iterable[Change]) -> str:
        """Return the shard of a transaction from its changes.

        By key: the one value of the key columns that its rows had and have; several, NULL, or a statement: `#UNKNOWN`.
        """
        found: set[str | None] = set()
        columns = dict(self.keys)
        for change in changes:
            if not isinstance(change, RowChange):
                return UNKNOWN_SHARD
            table = change.table
            column = columns.get(table.name)
            if self.by is ShardBy.SCHEMA:
                found.add(table.schema)
            elif column is None:
                found.add(table.name)
            else:
                place = next((at for at, one in enumerate(table.columns) if one.name == column), None)
                for row in (change.before, change.after):
                    if row is not None:
                        found.add(None if place is None else _key_shard(row[place]))
        only = found.pop() if len(found) == 1 else None
        return only or UNKNOWN_SHARD


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a shard is, and whose: the keys of the table [shards] that concern the channels, each with its default."""

    channels: dict[str, int] = field(default_factory=dict)
    """Channels of shards, over the assignment rule."""
    assignment: AssignmentRule = AssignmentRule.RECORDED
    """Which channel a new shard gets: `recorded`, the one with the fewest; or by its hash."""
    serial: tuple[str, ...] = ()
    """Shards that run alone."""
    default: int | None = field(default=None, metadata={"example": 0, "default": "by the assignment"})
    """The channel of every shard that is in neither, in the place of the assignment rule."""
    by: ShardBy = ShardBy.RECORDED
    """What makes a shard for the pipeline: `recorded` (what capture stored), `schema`, `table` or `key`. `writes`: no
    shard; transactions run at once unless they touch the same keys, by what capture noted of each."""
    keys: dict[str, str] = field(default_factory=dict, metadata={"needs": 'by = "key"'})
    """The column of each table, `schema.table`, whose value is the shard, where `by` is KEY."""
    independent_triggers: tuple[str, ...] = field(default=(), metadata={"needs": 'by = "writes"', "example": ["audit"]})
    """Triggers at the target that read and write nothing that another transaction may touch, by their names. Any other
    makes the transactions of its table run alone."""
    commit_order: CommitOrder = CommitOrder.ANY
    """By `writes`, in which order the target gets transactions that touch nothing in common: `any`, which is faster, or
    `source`."""
    commit_cost: int = COMMIT_COST
    """By `writes`, as how many row changes a commit at the target counts. Where channels wait for each other so often
    that by this one channel is as fast as all, one applies everything for a while; 0: never."""

    def plan(self, channels: int, filters: str = "") -> ShardPlan:
        """Return the plan for so many channels; `filters` is a hash of the pipeline's."""
        return ShardPlan(
            channels=channels,
            rule=self.assignment,
            serial=frozenset(name for name in self.serial if name),
            mapping=tuple(sorted(self.channels.items())),
            default=self.default,
            by=self.by,
            keys=tuple(sorted(self.keys.items())),
            triggers=tuple(sorted(self.independent_triggers)),
            filters=filters if self.by is ShardBy.WRITES else "",
            in_a_row=IN_A_ROW if self.commit_order is CommitOrder.SOURCE else 0,
            commit_cost=self.commit_cost,
        )


def _key_shard(value: Value) -> str | None:
    """Return the shard of a key's value; None for one that tells nothing: NULL, or a value that was not sent."""
    if value is None or value is UNCHANGED:
        return None
    tag, form = canonical(value)
    return f"{KEY_SHARD}{int(tag)} {form!r}"


# --- verdicts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """The transaction is another channel's: pass it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The transaction is this channel's: apply it with what was taken before, now or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """First commit what was taken and move the position to `seqno`, up to where the channel has passed; ask again."""

    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait until each of `channels` has applied `seqno`, or come near; read the meeting, `learn` it, ask again."""

    channels: tuple[int, ...]
    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The transaction lies after the limit: commit, publish, end."""


Verdict: TypeAlias = Skip | Take | Publish | Await | Finish

_SKIP: Final = Skip()
_TAKE: Final = Take()
_FINISH: Final = Finish()


class Walk:
    """One channel's way through the log: what it may do at the next transaction.

    `passed`: everything up to here was skipped or taken. `published`: the channel's position in the target. Both
    start at that position, and `run` says whether the transaction there is serial, which means that the channels
    have met before it. `limit`: the last seqno to apply, inclusive, None for no end. Not for threads.

    `interval_ms` (max_offline_interval), None for no bound: a channel takes a transaction only when it was committed no
    more than so much later than the position of each channel that is behind it in the log. Behind in the log, not in
    time: so nobody waits for one who waits for him, whatever the source's clock did. And so that nobody waits for a
    channel that merely had nothing to do, each publishes its position every half interval of commit time.
    """

    __slots__ = (
        "_applied",
        "_interval",
        "_others",
        "_times",
        "channel",
        "limit",
        "owes",
        "passed",
        "published",
        "published_at",
        "run",
    )

    def __init__(
        self,
        *,
        channel: int,
        channels: int,
        position: Seqno,
        run: bool,
        limit: Seqno | None = None,
        interval_ms: int | None = None,
        tstamp: int = 0,
    ) -> None:
        self.channel = channel
        self.passed = position
        self.published = position
        self.run = run
        self.limit = limit
        self.owes = False
        """Whether something was taken that the target's position does not tell yet."""
        self._others = tuple(other for other in range(channels) if other != channel)
        # Positions of the others as last read; they only grow, so an old reading errs towards waiting.
        self._applied: dict[int, Seqno] = {}
        self._interval = interval_ms if self._others else None
        self._times: dict[int, int] = {}
        self.published_at = tstamp
        """The commit time of the position in the target, ms; 0: nothing applied yet."""

    def at(self, seqno: Seqno, owner: int, tstamp: int = 0) -> Verdict:
        """Return what to do at the next transaction, `passed` + 1; `owner` as `ShardPlan.owner` has it.

        `tstamp` is its commit time, which only an interval asks for. Asking changes nothing. After Skip and Take call
        `move_on`, after Publish `published_up_to`, after a reading of the meeting `learn`.
        """
        if self.limit is not None and seqno > self.limit:
            return _FINISH
        if self._interval is not None:
            if self.published < self.passed and tstamp - self.published_at > self._interval // 2:
                return Publish(seqno=self.passed)
            if owner == self.channel:
                slow = self._slow(tstamp, self._interval)
                if slow:
                    return Publish(seqno=self.passed) if self.owes else Await(channels=slow, seqno=self.passed)
        if self.channel == 0:
            if owner == SERIAL:
                return _TAKE if self.run else self._meet_others(seqno)
            if self.run and self.owes and self._others:
                return Publish(seqno=self.passed)  # the others wait for the end of this run
            return _TAKE if owner == 0 else _SKIP
        if owner == SERIAL:
            return self._meet_channel_0(seqno)
        return _TAKE if owner == self.channel else _SKIP

    def _slow(self, tstamp: int, interval: int) -> tuple[int, ...]:
        """Return the channels behind this one whose positions were committed too long before `tstamp`."""
        applied, times = self._applied, self._times
        return tuple(
            other
            for other in self._others
            if applied.get(other, -2) < self.passed and tstamp - times.get(other, 0) > interval
        )

    def _meet_others(self, seqno: Seqno) -> Verdict:
        """Channel 0 before the first of a serial run."""
        applied = self._applied
        behind = tuple(other for other in self._others if applied.get(other, -2) < seqno - 1)
        if not behind:
            return _TAKE
        if self.owes:
            return Publish(seqno=self.passed)
        return Await(channels=behind, seqno=Seqno(seqno - 1))

    def _meet_channel_0(self, seqno: Seqno) -> Verdict:
        """Any other channel at a serial transaction. Inside a run channel 0 asks for no position between."""
        if self._applied.get(0, -2) >= seqno:
            return _SKIP
        if self.published < self.passed and (self.owes or not self.run):
            return Publish(seqno=self.passed)
        return Await(channels=(0,), seqno=seqno)

    def move_on(self, seqno: Seqno, owner: int) -> None:
        """Note that the transaction was skipped or taken, as `at` said."""
        self.passed = seqno
        if owner == SERIAL:
            self.run = True
            if self.channel == 0:
                self.owes = True
        else:
            self.run = False
            if owner == self.channel:
                self.owes = True

    def pass_others(self, seqno: Seqno) -> None:
        """Note that everything up to `seqno` was another channel's and not serial; only outside a serial run."""
        assert not self.run
        self.passed = seqno

    def published_up_to(self, seqno: Seqno, tstamp: int = 0) -> None:
        """Note that the target's position of this channel is `seqno` now, committed at `tstamp`."""
        self.published = seqno
        self.published_at = tstamp
        if seqno == self.passed:
            self.owes = False

    def learn(self, applied: Mapping[int, Seqno], times: Mapping[int, int] | None = None) -> None:
        """Note the other channels' positions as the target holds them, and their commit times."""
        self._applied.update(applied)
        if times is not None:
            self._times.update(times)

    @property
    def done(self) -> bool:
        """Whether the limit is reached: nothing is left to take."""
        return self.limit is not None and self.passed >= self.limit
