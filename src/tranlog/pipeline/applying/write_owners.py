"""Whose each transaction is by what it writes: the plan as the target has it, and the assignment computed from it.

Owns reading the stored plan, reading the headers since it again, and making the next one at a plan point. The rule is
`by_writes`'s. The hard idea: only channel 0 ever looks at the target's tables, inside the target transaction that moves
its position to the plan point; so whoever finds that position finds the plan, and nobody asks the target again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from tranlog.change import TableName
from tranlog.errors import ConflictError, PurgedError, TargetPositionError
from tranlog.header import Passes, TransactionHeader
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableCursor
from tranlog.log.reading.reader import LogRange
from tranlog.pipeline.applying.claim import Claim
from tranlog.pipeline.applying.group import Taken
from tranlog.pipeline.applying.task import ChannelTask
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.rules.by_writes import (
    ORDINARY,
    Assigned,
    Assignment,
    PlannedTable,
    SourceOrder,
    Writes,
    WritesBounds,
    WritesPlan,
    WritesWalk,
    in_force,
    planned_table,
    resume,
)
from tranlog.pipeline.rules.channels import SERIAL, Walk
from tranlog.pipeline.rules.progress import ChannelStats, Counters, lost_to
from tranlog.pipeline.rules.write_order import Passing
from tranlog.target.target import ChannelRow, TargetKeys
from tranlog.write_set import WriteKind, WriteSet, parse_write_set

logger = logging.getLogger(__name__)

BOUNDS: Final = WritesBounds()
"""Of the plans that are made here."""
LOOK_AHEAD: Final = 1_000
"""A plan knows the tables of so many transactions after it, as far as they are there, of which each other costs a plan;
and what they write,"""
LOOK_AHEAD_TOUCHES: Final = 50_000
"""but no further than so many touches of values: these are assigned several times, and the other channels wait."""


class Headers(Protocol):
    """What is asked of the log here."""

    def range(self) -> LogRange: ...
    def cursor(self, *, committed_only: bool = False) -> ReadableCursor: ...
    def purged(self, seqno: Seqno) -> PurgedError: ...


def planned_tables(
    names: Iterable[TableName],
    keys: Callable[[TableName], TargetKeys | None],
    chain: Chain | None,
    independent: Collection[str],
) -> tuple[PlannedTable, ...]:
    """Return what a plan says of the source's tables: as `keys` has them at the target, under what the filters do.

    One that is not there is left out. `independent` as in `planned_table`.
    """
    homes: dict[TableName, TableName] = {}
    found: dict[TableName, TargetKeys] = {}
    tables: list[PlannedTable] = []
    for name in names:
        home = name if chain is None else chain.home(name)
        if home is None:
            tables.append(PlannedTable(table=name))  # nothing of it is applied
            continue
        there = keys(home)
        if there is not None:  # else it may be made at its first change
            homes[there.name[0].lower(), there.name[1].lower()] = name
            found[name] = there
    for name in found:
        hidden = "" if chain is None else chain.hides(name, found[name].key_columns)
        one = PlannedTable(table=name, why=hidden) if hidden else planned_table(name, found, homes, independent)
        tables.append(one)
    return tuple(tables)


class WriteOwners:
    """One channel's, from `begin` on. Threads: one.

    `singly`: up to there each transaction is applied by itself, after a failure.
    """

    def __init__(self, task: ChannelTask, claim: Claim) -> None:
        self._task = task
        self._claim = claim
        self._critical = task.plan.serial
        self._critical_raw = frozenset([shard.encode() for shard in self._critical])
        many = task.plan.in_a_row
        self._order = SourceOrder(channels=task.plan.channels, in_a_row=many) if many else None
        self.ordered = self._order is not None
        self._doubted: Seqno | None = None
        self._doubted_table = ""
        self.singly = NO_SEQNO

    def begin(self, reader: Headers, chain: Chain | None, row: ChannelRow) -> bool:
        """Begin after the channel's position; return whether the transaction there is serial.

        Raises TargetPositionError, PurgedError, ConfigError.
        """
        self._reader = reader
        self._chain = chain
        self._next: WritesPlan | None = None
        self._tables: dict[TableName, None] = {}
        self._ahead: list[Writes] = []
        self._point: Seqno | None = None
        self._passing: Passing | None = None
        self.after: tuple[int, Seqno] | None = None
        self._sees_all = chain is not None and bool(chain.renames)  # which is to see every table's name
        position = row.applied_seqno
        if self._order is not None:
            low = min(self._claim.meet().applied.values())
            with self._writes_after(low) as writes_of:
                self.after, run = self._order.resume(self._task.channel, position, low, writes_of)
            return run
        plan = self._stored(position)
        if plan is None or plan.from_seqno == position:
            self._go_on(Assignment(plan))
            return plan is not None
        with self._writes_after(plan.from_seqno) as writes_of:
            assignment, run = resume(plan, position, writes_of)
        self._go_on(assignment)
        return run

    @contextmanager
    def _writes_after(self, seqno: Seqno) -> Iterator[Callable[[Seqno], Writes]]:
        """Give what tells of the transactions after `seqno`, one after the other. Raises PurgedError."""
        begin, reader = Seqno(seqno + 1), self._reader
        if begin < reader.range().first_seqno:
            raise lost_to(reader.purged(begin))
        with reader.cursor(committed_only=True) as cursor:
            cursor.seek(begin)

            def writes_of(seqno: Seqno) -> Writes:
                header = cursor.next_header(0.0)
                assert header is not None and header.seqno == seqno, "the position is in the log"
                return self._writes(header)

            yield writes_of

    def _go_on(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._why_alone = "" if assignment.plan is None else assignment.plan.why_alone
        self._passing = None if self._sees_all else assignment.passing(self._task.channel, self._critical_raw)

    def _stored(self, position: Seqno) -> WritesPlan | None:
        """Return the plan in force after a position; None: the next transaction is a plan point."""
        meeting = self._claim.meet()
        plans = self._read_plans()
        plan = in_force(plans.values(), position)
        if plan is None and position + 1 not in plans:
            # Nobody has passed that plan point, or the plan that was made there is gone.
            others = [meeting.applied[0]] if self._task.channel else meeting.applied.values()
            if max(others) > position:
                raise self._lost(f"tranlog_plan has no plan for what comes after seqno {position}")
        return plan

    def _read_plans(self) -> dict[Seqno, WritesPlan]:
        stored = self._claim.target.positions.read_plans(self._task.options.pipeline)
        plans = {begin: WritesPlan.parse(text) for begin, text in stored.items()}
        for begin, plan in plans.items():
            if (plan.from_seqno, plan.channels) != (begin, self._task.plan.channels):
                self._claim.meet()  # it may be another driver's by now
                raise self._lost(f"the plan of tranlog_plan for seqno {begin} is another one's")
        return plans

    def _lost(self, why: str) -> TargetPositionError:
        return TargetPositionError(where=self._claim.target.where, pipeline=self._task.options.pipeline, why=why)

    def _writes(self, header: TransactionHeader) -> Writes:
        """Return what a header tells; damaged or of a later release is as none."""
        found: WriteSet | None = None
        if header.write_set:
            try:
                found = parse_write_set(header.write_set, header.tables or ())
            except ValueError as exc:
                logger.warning("a write set cannot be read seqno=%d why=%s", header.seqno, exc)
        if found is not None and found.kind is WriteKind.ROWS and header.shard_id in self._critical:
            return f"critical shard {header.shard_id}"
        return found

    def assign(self, header: TransactionHeader) -> Assigned:
        """Return who applies the next transaction of the log; each is asked for once."""
        seqno, known = header.seqno, None
        if self._order is not None:
            return self._order.assign(seqno, self._writes(header))
        if self._passing is not None:
            shard = header.shard_id.encode() if self._critical else b""
            known = self._passing.assign(seqno, shard, header.tables, header.write_set)
        if known is not None:
            return Assigned(owner=known[0], waits=known[1], why=self._why_alone, doubted=seqno == self._doubted)
        assigned = self._assignment.assign(seqno, self._writes(header))
        if self._passing is not None and header.tables and assigned.owner >= 0 and assigned.why in ORDINARY:
            self._passing.learn(header.tables, header.write_set, assigned.more)
        return replace(assigned, doubted=True) if seqno == self._doubted else assigned

    def passes(self, walk: Walk) -> Passes | None:
        """Return what lets the walk pass over what is not its channel's, in the place of `assign`; None: it may not."""
        if self._order is not None:
            assert isinstance(walk, WritesWalk)
            return None if walk.owes or self._sees_all else self._order.passing(walk, self._critical_raw)
        if self._passing is None:
            return None
        self._passing.published = walk.published
        return self._passing.passes

    # --- conflicts ---

    def doubts(self, exc: ConflictError, taken: Sequence[Taken], walk: Walk) -> bool:
        """Whether a conflict is not believed: its transaction is to be tried again, when `walk` lets it."""
        assert isinstance(walk, WritesWalk)
        serial = any(one.serial for one in taken if one.header.seqno == exc.seqno)
        seqno = Seqno(exc.seqno)
        if walk.doubt(seqno, Assigned(owner=SERIAL if serial else walk.channel)) is None:
            return False
        logger.info("a conflict is tried again when the other channels are there seqno=%d why=%s", seqno, exc)
        self._doubted = self.singly = seqno
        self._doubted_table = exc.table
        return True

    def missed(self, header: TransactionHeader) -> tuple[TableName, ...]:
        """Return of a transaction that was doubted the tables at fault; nothing of any other."""
        if header.seqno != self._doubted:
            return ()
        tables = header.tables or ()
        return tuple([one for one in tables if ".".join(one) == self._doubted_table]) or tables

    # --- on the way ---

    def pass_by(self, header: TransactionHeader, assigned: Assigned, walk: Walk, pending: Counters) -> bool:
        """Note that a transaction was skipped or taken; whether to commit with it: at a plan point, after a failure.

        At a plan point the next position of channel 0 brings the plan, which the others read.
        """
        assert isinstance(walk, WritesWalk)
        due = walk.pass_by(header.seqno, assigned)
        pending.depended += assigned.owner == walk.channel and bool(assigned.waits)
        if assigned.point and walk.channel == 0:
            self._point = header.seqno
            self._look_ahead(header.seqno)
        elif assigned.point:
            self._follow(header.seqno)
        return due is not None or (walk.owes and header.seqno <= self.singly)

    def _follow(self, seqno: Seqno) -> None:
        """Go on by the plan that channel 0 made at a plan point."""
        plan = self._read_plans().get(seqno)
        if plan is None:
            self._claim.meet()
            raise self._lost(f"tranlog_plan has no plan of seqno {seqno}")
        self._go_on(Assignment(plan))

    def plan_for(self, seqno: Seqno) -> Callable[[], str] | None:
        """Return what makes the plan that is stored with this position; None: none is."""
        return self._make if seqno == self._point else None

    def moved(self, seqno: Seqno) -> None:
        """Note that the position is in the target, with the plan if it brings one."""
        if seqno == self._doubted:
            logger.warning("missed dependency seqno=%d table=%s", seqno, self._doubted_table)
            self._doubted = None
        if seqno == self._point:
            assert self._next is not None
            self._go_on(Assignment(self._next))
            self._point = self._next = None
            self._ahead = []

    def _look_ahead(self, point: Seqno) -> None:
        """Note the tables that the plan is to know, in their order, and what the next transactions write."""
        names = self._assignment.next_tables()
        self._ahead = []
        touches = 0
        with self._reader.cursor(committed_only=True) as cursor:
            cursor.seek(Seqno(point + 1))
            for _ in range(LOOK_AHEAD):
                header = cursor.next_header(0.0)
                if header is None:
                    break
                names.update(header.tables or ())
                if touches < LOOK_AHEAD_TOUCHES:
                    writes = self._writes(header)
                    self._ahead.append(writes)
                    touches += sum(map(len, writes.touches)) if isinstance(writes, WriteSet) else 0
        self._tables = dict.fromkeys(sorted(names))

    def _make(self) -> str:
        """Return the text of the plan; asked inside the target transaction that moves the position to its point."""
        assert self._point is not None
        task, target = self._task, self._claim.target
        tables = planned_tables(self._tables, target.rows.keys, self._chain, task.plan.triggers)
        rows = target.positions.read_channels(task.options.pipeline)
        missed = {table for row in rows for table in ChannelStats.parse(row.stats).missed_at}
        today = WritesPlan(
            from_seqno=self._point,
            channels=task.plan.channels,
            tables=tables,
            filters=task.plan.filters,
            bounds=replace(BOUNDS, commit=task.plan.commit_cost),
        )
        self._next = self._assignment.next_plan(self._point, today, missed, self._ahead)
        return self._next.text()
