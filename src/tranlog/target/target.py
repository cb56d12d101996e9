"""What every target database offers to the pipeline: rows and position in one target transaction.

Owns the seam between `pipeline` and the databases, and the rows of our own tables there. The hard idea: the
target is where channels meet. A position moves only by the guarded update, the first statement of each target
transaction, so that a task which was replaced can write nothing, whatever it still believes.

Source: design/pipeline.md, "Channels meet at the target", "Applying"; on-disk-parallel-queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tranlog.change import Change, Options, TableMap, TableName
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Seqno
from tranlog.types import Value

NOBODY: Final = ""
"""The holder of a pipeline whose last driver ended in order: nobody needs to watch whether it is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """The row of `tranlog_pipeline`: who runs the pipeline, and by which plan.

    `stop_at_seqno` None: run on. A seqno: apply up to it, inclusive, and end; -1 ends every task after the target
    transaction that it is in. `alive_at` is ms since 1970 by the target's own clock; only its movement counts.
    """

    pipeline: str
    token: int
    holder: str
    channels: int
    shard_rule: str
    stop_at_seqno: Seqno | None
    alive_at: int
    shards: int = 0

    def moved_since(self, before: PipelineRow) -> bool:
        """Whether a driver was at work between the reading of `before` and of this."""
        return (self.alive_at, self.token) != (before.alive_at, before.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    """The row of `tranlog_channel`: everything that this channel owns up to `applied_seqno` is in the target.

    Epoch 0 and an empty event id: nothing applied yet, `applied_seqno` is one below where it starts. `stats` is
    JSON text; `tstamp` the source's commit time of the position, `updated_at` the target's clock, both ms.
    """

    channel: int
    epoch: Epoch = NO_EPOCH
    applied_seqno: Seqno = NO_SEQNO
    source_id: str = ""
    event_id: str = ""
    token: int = 0
    session: str = ""
    stats: str = "{}"
    tstamp: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One move of a channel's position: from `old_seqno` to the other fields, if `token` still is the channel's."""

    pipeline: str
    channel: int
    token: int
    old_seqno: Seqno
    new_seqno: Seqno
    epoch: Epoch
    source_id: str
    event_id: str
    tstamp: int
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a channel learns at the target between its target transactions.

    `applied` holds each channel's applied_seqno, `times` the source's commit time of each, ms; `stop_at_seqno` as in
    PipelineRow; `token` is the pipeline's.
    """

    applied: Mapping[int, Seqno]
    times: Mapping[int, int]
    stop_at_seqno: Seqno | None
    token: int


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One whole source transaction to apply. `changes()` gives its changes anew at each call, in order, streaming."""

    seqno: Seqno
    epoch: Epoch
    source_id: str
    event_id: str
    tstamp: int
    metadata: Options
    changes: Callable[[], Iterator[Change]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one target transaction did: source transactions, row changes, statements sent to the target.

    `ddl_ignored`: recorded statements that were passed over. `commit_us`: what the COMMIT took.
    """

    transactions: int
    changes: int
    statements: int
    ddl_ignored: int = 0
    commit_us: int = 0


class Target(Protocol):
    """One connection to a target database, in UTC. Threads: one at a time.

    Every method may raise TargetUnavailableError, and TransientTargetError where a retry after reading the position
    helps (deadlock, serialization failure, lost connection); after that one, call `reconnect` first, and claim again:
    the channel's row names the session that a successor may end. Every method on our own tables, `apply` too, may raise
    TargetPositionError, where they were changed or rows of theirs were removed: trying again does not help.
    """

    kind: str
    """`sqlite`, `postgres`, `mariadb`."""

    def describe(self) -> str:
        """Return where this target is, without a password, for messages."""

    def reconnect(self) -> None:
        """Drop the connection and open a new one; the open target transaction, if any, is rolled back."""

    def close(self) -> None:
        """Close; closing twice is harmless."""

    # --- our own tables ---

    def ensure_tables(self, *, again: bool = False) -> None:
        """Create tranlog_pipeline, tranlog_channel, tranlog_shard and tranlog_left_out where they are missing.

        The table in which statements that commit are noted, where the kind has one, is made anew beside positions
        only `again`, by an operator's wish: one that is missing there was dropped, with what it told.
        """

    def read_pipeline(self, pipeline: str) -> PipelineRow | None:
        """Return the pipeline's row, None where it never ran here (or our tables are missing)."""

    def read_channels(self, pipeline: str) -> list[ChannelRow]:
        """Return the pipeline's channels, by number."""

    def read_assignment(self, pipeline: str) -> dict[str, int]:
        """Return the channel of each shard that has one."""

    def take(
        self,
        *,
        pipeline: str,
        expected_token: int,
        holder: str,
        channels: int,
        shard_rule: str,
        rows: Sequence[ChannelRow] | None,
        keep_assignment: bool,
    ) -> int:
        """Become the pipeline's driver: raise its token and every channel's, in one target transaction; return it.

        `rows` are the positions that hold from now on, one per channel; rows of other channels are removed, and
        the shards' rows too unless `keep_assignment`. None: the positions stay as they are at that moment. That is
        the first step of every take-over, since positions that were read while tasks of the driver before could
        still move them must never be written back. Clears stop_at_seqno. Raises ReplacedError when the token is
        not `expected_token` any more (0: no row yet). A channel row that a stopped session keeps locked is waited
        for as in `claim`.
        """

    def keep_alive(self, *, pipeline: str, token: int) -> PipelineRow:
        """Move alive_at and return the row. Raises ReplacedError when the token is not the pipeline's any more."""

    def request_stop(self, *, pipeline: str, token: int, stop_at_seqno: Seqno | None) -> None:
        """Set stop_at_seqno. Raises ReplacedError when the token is not the pipeline's any more."""

    def claim(self, *, pipeline: str, channel: int, driver_token: int) -> ChannelRow:
        """Claim a channel for this task: raise its token, store this session, return the row, in one transaction.

        Only while the pipeline's token is `driver_token`, else ReplacedError. Where another session keeps the row
        locked beyond the lock timeout, that session is ended at the server; where that is not allowed,
        TargetUnavailableError says whose it is.
        """

    def leave_out(self, *, pipeline: str, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Record which transactions are never to be applied, in ranges of seqnos, both ends inclusive.

        They stay recorded, for whoever starts the pipeline next and for whoever asks later why rows are missing.
        Raises ReplacedError when the token is not the pipeline's any more.
        """

    def read_left_out(self, pipeline: str) -> list[tuple[int, int]]:
        """Return all ranges that were ever recorded by `leave_out`."""

    def publish(self, advance: Advance) -> None:
        """Move a channel's position without rows. Raises ReplacedError as `apply` does."""

    def meet(self, pipeline: str) -> Meeting:
        """Return all channels' positions and what the driver asks for, in one consistent read."""

    def assign(self, *, pipeline: str, shard: str, channels: int, driver_token: int) -> int:
        """Return the shard's channel, first storing the one with the fewest shards if it has none.

        In a target transaction of its own, safe against others that assign at the same time; ReplacedError
        when `driver_token` is not the pipeline's any more.
        """

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        """Refuse those of the named tables that are in no target transaction, all in one error, as `apply` does each.

        `named` is asked only where the target has such tables at all. Raises TargetTableError.
        """

    # --- rows ---

    def apply(self, units: Sequence[Unit], advance: Advance) -> Applied:
        """Apply whole source transactions and move the position, in one target transaction.

        The guarded update comes first; where it does not hit exactly one row: ReplacedError, nothing written.
        Raises ConflictError, TargetTableError, DdlStopError with the seqno at fault; then nothing of this call is
        in the target. (After a conflict in a group the caller applies the units singly.) A unit with a statement comes
        alone: at a kind whose statements commit, one that ran stays even if what stands behind it does not fit, and is
        not run again.
        """

    # --- tables, and reading back ---

    def create_table(self, table: TableMap) -> str:
        """Create the table, its schema too, where it is missing. Return the statement that was run, empty if none."""

    def rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Yield the table's rows in the table map's column order, in no order, streaming.

        Shape: values are what the source would have sent, converted back by each column's logical type and source
        type, so that equal content compares equal by `types.canonical`.

        Raises TargetTableError where the table or a column is missing.
        """
