"""What every target offers to the pipeline: positions and rows, both in one target transaction.

Owns the seam between `pipeline` and the targets, and what tranlog keeps there of its own. The hard idea: the target is
where channels meet. A position moves only by the guarded update, in the target transaction of the rows, so that a task
which was replaced can write nothing, whatever it still believes. How a target stores the two is its own matter:
tables of a database, or files of which a snapshot names both.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from tranlog.change import Change, Options, TableMap, TableName
from tranlog.errors import ConflictError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Seqno
from tranlog.row_blocks import RowBlock
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

    Epoch 0 and an empty event id: nothing applied yet, `applied_seqno` is one below where it starts. `session` names
    the connection that claimed it, as the target does. `stats` is JSON text; `tstamp` the source's commit time of the
    position, `updated_at` the target's clock, both ms.
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
    plan: Callable[[], str] | None = None
    """Asked after the rows are written, for the plan that begins at `new_seqno`; it is stored with the position."""


class TextEquality(enum.IntEnum):
    """Which texts of a column a target takes for one."""

    FOLDED = 1
    """At most those that differ in the case of ASCII letters and in spaces at the end."""
    ASCII = 2
    """No more of those of printable ASCII characters; of others, which ones is not known."""
    UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetKeys:
    """What a table at a target holds its rows to.

    `name`: its schema and name here. `unique`: the columns of each unique key, the primary one too. `references`:
    columns, the table that they refer to, its columns. `triggers`: those that run. `actions`: what foreign keys of
    others do when a row goes or its key changes; empty for nothing. `why`: what it holds them to beside that, empty for
    nothing. `texts`: the columns that hold texts.
    """

    name: TableName
    texts: Mapping[str, TextEquality] = field(default_factory=dict)
    unique: tuple[tuple[str, ...], ...] = ()
    references: tuple[tuple[tuple[str, ...], TableName, tuple[str, ...]], ...] = ()
    triggers: tuple[str, ...] = ()
    actions: str = ""
    why: str = ""

    @property
    def key_columns(self) -> set[str]:
        """The columns of all its keys."""
        return set(itertools.chain(*self.unique, *[own for own, _, _ in self.references]))


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


class LoadUnit(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction of a load does beside its rows: `states` are stored, (table, state) of each table that moves.

    `begun` are tables whose load begins: with `replace` their rows are deleted, else there must be none. `waiting` are
    others that wait for a load, by their names here.
    """

    states: Options
    begun: tuple[TableMap, ...] = ()
    waiting: tuple[TableName, ...] = ()
    replace: bool = False


OPEN: Final = "open"
EQUAL: Final = "equal"
DIFFERS: Final = "differs"
NOT_JUDGED: Final = "not judged"


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of `tranlog_verify` of a table, `schema.table` as the source has it: what its last verification found.

    `seqno` is the position of the snapshots, `token` the channel's that judges. `verdict`: OPEN while it is not known.
    `detail` is JSON. `verified_through`: the last position at which the table was EQUAL, inclusive.
    """

    table: str
    verify: str
    seqno: Seqno
    token: int
    verdict: str = OPEN
    detail: str = "{}"
    verified_through: Seqno = NO_SEQNO


class ApplyUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One whole source transaction to apply. `changes()` gives its changes anew at each call, in order, streaming."""

    seqno: Seqno
    epoch: Epoch
    source_id: str
    event_id: str
    tstamp: int
    metadata: Options
    changes: Callable[[], Iterator[Change]]
    load: LoadUnit | None = None
    verdicts: tuple[VerdictRow, ...] = ()
    """Of a verification that begins here: what is known of its tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one target transaction did: source transactions, row changes, writes sent to the target.

    `ddl_ignored`: recorded statements that were passed over. `commit_us`: what the COMMIT took.
    """

    transactions: int
    changes: int
    statements: int
    ddl_ignored: int = 0
    commit_us: int = 0


class RefusedError(Exception):
    """The target refused changes that were sent together: sent one by one they may fit, or it is known which do not."""


class BehindError(Exception):
    """A table has to be made or altered here before the changes can go in. `follow` does it, in no target transaction.

    It is raised once for each difference: what `follow` did not mend is refused by the next attempt.
    """

    def __init__(self, follow: Callable[[], None]) -> None:
        super().__init__()
        self.follow = follow


class TargetConnection(Protocol):
    """By what a target is reached; its positions and its rows share it."""

    def close(self) -> None:
        """Close; what is under way is rolled back. Closing twice is harmless."""


class TargetPositions(Protocol):
    """What tranlog keeps at a target for itself: who runs a pipeline, where its channels stand, which shard is whose.

    Every method may raise TargetPositionError, where what is kept was changed or parts of it were removed: trying
    again does not help.
    """

    def ensure_tables(self, *, again: bool = False) -> None:
        """Make ready to keep positions, where that is still to be done; at a database: create tranlog_pipeline,
        tranlog_channel, tranlog_shard, tranlog_left_out, tranlog_load, tranlog_verify and tranlog_plan.

        The table in which statements that commit are noted, where the kind has one, is made anew beside positions
        only `again`, by an operator's wish: one that is missing there was dropped, with what it told.
        """

    def check_rights(self) -> None:
        """Look whether positions can be kept here, and change nothing.

        Raises TargetTableError, whose remedy is the GRANT, where they cannot be made; TargetUnavailableError.
        """

    def now_ms(self) -> int:
        """Return the time by the target's own clock, ms since 1970."""

    def read_pipeline(self, pipeline: str) -> PipelineRow | None:
        """Return the pipeline's row, None where it never ran here (or nothing was ever kept here)."""

    def identity(self) -> str:
        """Return what names the server or database, the same by whatever address it is reached."""

    def pipelines(self) -> list[str]:
        """Return the names of all pipelines of which something is kept here."""

    def forget(self, *, pipeline: str, token: int) -> None:
        """Remove all that is kept of a pipeline, and where it was the only one what keeps it.

        Raises ReplacedError when the token is not the pipeline's any more.
        """

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
        those of shards and plans too unless `keep_assignment`. None: the positions stay as they are at that moment.
        That is the first step of every take-over, since positions that were read while tasks of the driver before could
        still move them must never be written back. Clears stop_at_seqno. Raises ReplacedError when the token is
        not `expected_token` any more (0: no row yet). A channel that a stopped task keeps locked is waited for as in
        `claim`.
        """

    def keep_alive(self, *, pipeline: str, token: int) -> PipelineRow:
        """Move alive_at and return the row. Raises ReplacedError when the token is not the pipeline's any more."""

    def request_stop(self, *, pipeline: str, token: int, stop_at_seqno: Seqno | None) -> None:
        """Set stop_at_seqno. Raises ReplacedError when the token is not the pipeline's any more."""

    def claim(self, *, pipeline: str, channel: int, driver_token: int) -> ChannelRow:
        """Claim a channel for this task: raise its token, store this connection, return the row, at once.

        Only while the pipeline's token is `driver_token`, else ReplacedError. Where another connection keeps the
        channel locked beyond the lock timeout, that one is ended; where that is not allowed, TargetUnavailableError
        says whose it is.
        """

    def leave_out(self, *, pipeline: str, token: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Record which transactions are never to be applied, in ranges of seqnos, both ends inclusive.

        They stay recorded, for whoever starts the pipeline next and for whoever asks later why rows are missing.
        Raises ReplacedError when the token is not the pipeline's any more.
        """

    def read_left_out(self, pipeline: str) -> list[tuple[int, int]]:
        """Return all ranges that were ever recorded by `leave_out`."""

    def read_loads(self, pipeline: str) -> dict[str, str]:
        """Return what `store_loads` stored, by table."""

    def store_loads(self, pipeline: str, states: Options) -> None:
        """Store how far tables are loaded, (table, state), in the open target transaction; `guarded` calls it."""

    def read_verdicts(self, pipeline: str) -> list[VerdictRow]:
        """Return what the last verification of each table found, by table."""

    def begin_verdicts(self, pipeline: str, rows: Sequence[VerdictRow]) -> None:
        """Store rows of a verification that begins, in the open target transaction; `guarded` calls it.

        What a table was `verified_through` before stays.
        """

    def judge(self, pipeline: str, row: VerdictRow) -> None:
        """Store a verdict in a target transaction of its own, if the row is still this verification's and OPEN.

        EQUAL moves `verified_through` to its seqno.
        """

    def read_plans(self, pipeline: str) -> dict[Seqno, str]:
        """Return the stored plans by the seqno from which they hold; `guarded` and `publish` store an Advance's.

        Those that no channel needs any more are removed then, by its position.
        """

    def plans_begin(self, pipeline: str) -> Seqno | None:
        """Return the first of those seqnos; None: there is no plan."""

    def publish(self, advance: Advance) -> None:
        """Move a channel's position without rows. Raises ReplacedError as `guarded` does."""

    def meet(self, pipeline: str) -> Meeting:
        """Return all channels' positions and what the driver asks for, in one consistent read."""

    def assign(self, *, pipeline: str, shard: str, channels: int, driver_token: int) -> int:
        """Return the shard's channel, first storing the one with the fewest shards if it has none.

        In a target transaction of its own, safe against others that assign at the same time; ReplacedError
        when `driver_token` is not the pipeline's any more.
        """

    def guarded(self, advance: Advance, write: Callable[[], Applied]) -> Applied:
        """Move a channel's position and do what `write` does, in one target transaction.

        `advance` is the guarded update: where it does not hit, ReplacedError, and nothing is written. `write` may be
        called before or after that. Any error, of `write` too, leaves nothing of this call in the target.
        """


class TargetRows(Protocol):
    """The tables of a target: changes go in, rows are read back."""

    def write(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        """Write whole source transactions in the target transaction that `advance` moves the position in.

        `refused` None: together, as is fastest. Otherwise it says why that was refused: change by change.

        Raises ConflictError, TargetTableError, DdlStopError with the seqno at fault; RefusedError only the first time.
        """

    def discard(self) -> None:
        """Forget what was written and learned in a target transaction that failed."""

    def check_tables(self, named: Callable[[], Iterable[TableName]]) -> None:
        """Refuse those of the named tables that are in no target transaction, all in one error, as `write` does each.

        `named` is asked only where the target has such tables at all. Raises TargetTableError.
        """

    def check_table(self, table: TableMap) -> None:
        """Refuse a table as a change of it would be refused: missing, too narrow, without rights; change nothing.

        Raises TargetTableError.
        """

    def keys(self, table: TableName) -> TargetKeys | None:
        """Return what a table here holds its rows to; None where there is no such table."""

    def references(self) -> list[tuple[TableName, TableName]]:
        """Return the foreign keys that are checked here, (referring table, referred table), by their names here."""

    def losing(self, table: TableName) -> list[TableName]:
        """Return the tables whose rows foreign keys delete or change here with rows of this one that are deleted.

        By their names here, this one among them where it refers to itself.
        """

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        """Return the foreign keys for which each deleted row makes the server read a whole table.

        (Referring table, referred table, the statement that makes the index that is missing), by their names here.
        """

    def begin_load(self, table: TableMap, seqno: Seqno, *, replace: bool, beside: Sequence[TableName] = ()) -> None:
        """Delete the table's rows in the open target transaction, or, where not `replace`, look that it has none.

        `beside`: the other tables that may lose rows by it, since they are loaded too. Raises TargetTableError where it
        has rows, or where they cannot be deleted, or not without those of others. One that is missing has none.
        """

    def create_table(self, table: TableMap) -> str:
        """Create the table, its schema too, where it is missing. Return what was run for it, empty if nothing was."""

    def hold_snapshot(self) -> None:
        """Have all that is read from now on be of this moment, until the target is closed; nothing can be written.

        `blocks` raises TransientTargetError for a table that was emptied or altered since, where its rows are not there
        any more.
        """

    def read(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Yield what `blocks` does, as values."""

    def blocks(self, table: TableMap) -> Iterator[RowBlock]:
        """Yield the table's rows in the table map's column order, in no order, as of one moment, streaming.

        Until the iteration has ended or is closed, nothing else may be asked of this target.

        Shape: values are what the source would have sent, converted back by each column's logical type and source
        type, so that equal content compares equal by `types.canonical`.

        Raises TargetTableError where the table or a column is missing.
        """


class Target:
    """One connection to a target, with its positions and its rows. Threads: one at a time.

    Every method of this and of the parts may raise TargetUnavailableError, and TransientTargetError where a retry after
    reading the position helps (deadlock, serialization failure, lost connection); after that one, call `reconnect`
    first, and claim again: the channel's row names the connection that a successor may end.
    """

    def __init__(
        self, kind: str, where: str, connect: Callable[[], tuple[TargetConnection, TargetPositions, TargetRows]]
    ) -> None:
        self.kind = kind
        self.where = where
        """Where this target is, without a password, for messages."""
        self._connect = connect
        self.connection, self.positions, self.rows = connect()

    def reconnect(self) -> None:
        """Drop the connection and open a new one; the open target transaction, if any, is rolled back.

        `positions` and `rows` are others from then on: ask the target for them at each call.
        """
        self.connection.close()
        self.connection, self.positions, self.rows = self._connect()

    def close(self) -> None:
        """Close; closing twice is harmless."""
        self.connection.close()

    def apply(self, units: Sequence[ApplyUnit], advance: Advance) -> Applied:
        """Apply whole source transactions and move the position, in one target transaction: exactly once.

        Raises ReplacedError, TargetPositionError, ConflictError, TargetTableError, DdlStopError; then nothing of this
        call is in the target. (After a conflict in a group the caller applies the units singly.) A unit with a
        statement comes alone: at a kind whose statements commit, one that ran stays even if what stands after it does
        not fit, and is not run again.
        """
        refused: RefusedError | None = None
        while True:
            try:
                return self._attempt(units, advance, refused)
            except BehindError as exc:
                exc.follow()
            except RefusedError as exc:
                if refused is not None:
                    # All that was sent one by one has fitted; of several units the caller finds which one it is.
                    table, key = "(not named by the target)", "(see the reason)"
                    why = f"the COMMIT is refused: {exc}"
                    raise ConflictError(seqno=units[-1].seqno, table=table, key=key, why=why) from exc
                refused = exc

    def _attempt(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        try:
            return self.positions.guarded(advance, lambda: self._write(units, advance, refused))
        except BaseException:
            self.rows.discard()
            raise

    def _write(self, units: Sequence[ApplyUnit], advance: Advance, refused: RefusedError | None) -> Applied:
        loads = [(unit.seqno, unit.load) for unit in units if unit.load is not None]
        for seqno, load in loads:
            beside = (*[(table.schema, table.table) for table in load.begun], *load.waiting)
            for table in load.begun:
                self.rows.begin_load(table, seqno, replace=load.replace, beside=beside)
        applied = self.rows.write(units, advance, refused)
        for _, load in loads:
            self.positions.store_loads(advance.pipeline, load.states)
        for unit in units:
            if unit.verdicts:
                self.positions.begin_verdicts(advance.pipeline, unit.verdicts)
        return applied
