"""Tables copied from one database into another as of one moment, without a log, and compared with what was read.

Owns the order of a copy, and what it keeps at the target while it runs. The hard idea: it is applied as a load is, by a
pipeline of one channel, whose position moves with the rows. So a copy that another one replaced writes nothing more.
The target records the tables that a copy has begun; after a kill the next copy empties these, and only these. At its
end the record is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from tranlog.change import Op, RowChange, TableMap, TableName
from tranlog.clock import Clock
from tranlog.errors import ConfigError, ConflictError, TargetTableError
from tranlog.ids import Epoch, Seqno
from tranlog.loads import parents_first
from tranlog.pipeline.filters.comparison import Row
from tranlog.pipeline.upkeep.verify import Report, TableVerdict, select_tables, verify_tables
from tranlog.source.source import TableReader
from tranlog.target.options import has_sequences, is_own
from tranlog.target.target import Advance, ApplyUnit, ChannelRow, LoadUnit, Target

PIPELINE: Final = "tranlog_copy"
"""Whose a copy's position is at the target."""
_ROWS: Final = 10_000
_BYTES: Final = 16 << 20
"""A target transaction has so many rows at most, or ends after so many bytes of texts."""
_DECODER: Final = msgspec.json.Decoder(TableName)
"""Of the names that the target records: either part may have dots."""


class CopiedTable(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one table. `made`: it was not there before, or not since a copy that was not finished."""

    table: str
    rows: int
    made: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """What a copy did. `verdicts`: what was found when both sides were compared; of the same tables."""

    tables: tuple[CopiedTable, ...]
    verdicts: tuple[TableVerdict, ...]

    @property
    def equal(self) -> bool:
        """Whether all tables are equal."""
        return all(one.equal for one in self.verdicts)


def copy_tables(
    reader: TableReader,
    target: Target,
    *,
    origin: str,
    wanted: Sequence[str],
    holder: str,
    clock: Clock,
    report: Report,
) -> CopyResult:
    """Copy the tables of a reader, all or the `wanted`, into a target that makes tables, and compare them.

    `origin` names the source, the same each time; `holder` whoever copies, for messages. What an unfinished copy of
    that source left in the target is deleted first. Before anything is changed, ConfigError is raised where pipelines
    have the target, and TargetTableError for a table there that has rows, or does not take what the source's holds.

    Raises SourceError, TargetError too; ReplacedError where another copy into this target began.
    """
    tables = parents_first(_tables(reader, target, wanted))
    states = target.positions.read_loads(PIPELINE)
    begun = {_DECODER.decode(name) for name, state in states.items() if state == origin}
    _check_target(target, tables, begun, PIPELINE)
    copy = _Copy(target=target, origin=origin, clock=clock)
    copy.begin(tables, begun, holder)
    made = {table.name for table in tables if target.rows.create_table(table)}
    copied = [
        CopiedTable(table=table.name, rows=copy.fill(table, reader, report), made=table.name in made)
        for table in tables
    ]
    verdicts = verify_tables(reader, target.rows, tables=tables, differences=3, report=report)
    result = CopyResult(tables=tuple(copied), verdicts=tuple(verdicts))
    if result.equal:
        target.positions.forget(pipeline=PIPELINE, token=copy.driver_token)
    else:
        copy.check()  # rows that another copy has taken away are no difference
    return result


def check_copy(reader: TableReader, target: Target, *, wanted: Sequence[str]) -> None:
    """Refuse what `copy_tables` refuses before it changes anything, for a new pipeline that is to load the tables."""
    _check_target(target, _tables(reader, target, wanted), frozenset(), "")


def make_tables(reader: TableReader, target: Target, *, wanted: Sequence[str]) -> None:
    """Make what is missing of the tables that `copy_tables` would copy, for a new pipeline that is to load them.

    It would make each with its first row, and none that is empty. Raises TargetTableError.
    """
    for table in parents_first(_tables(reader, target, wanted)):
        target.rows.create_table(table)


def _check_target(target: Target, tables: Sequence[TableMap], begun: Set[TableName], pipeline: str) -> None:
    """Refuse a target that another pipeline fills, and tables that have rows or do not fit; those `begun` may have."""
    pipelines = [one for one in target.positions.pipelines() if one != pipeline]
    if pipelines:
        names = ", ".join(pipelines)
        why = f"it is filled by {names}; name another, or end them for good and drop the tables tranlog_... there"
        raise ConfigError(option="the target", value=target.where, why=why)
    for table in tables:
        target.rows.check_table(table)
        if (table.schema, table.table) not in begun:
            _check_empty(target, table)


def _tables(reader: TableReader, target: Target, wanted: Sequence[str]) -> list[TableMap]:
    """Return the tables to copy: without sequences where there are none, and without those of a pipeline's position."""
    found = [
        table
        for table in select_tables(reader.tables(), wanted, option="--tables")
        if not is_own(table) and (not table.sequence or has_sequences(target.kind))  # type: ignore[arg-type]
    ]
    if not found:
        raise ConfigError(option="the source", value=None, why="it has no table that this user may read")
    return found


def _check_empty(target: Target, table: TableMap) -> None:
    try:
        target.rows.begin_load(table, Seqno(0), replace=False)
    except TargetTableError as exc:
        why, remedy = "it has rows already", "Empty it or drop it there, or name the other tables by --tables"
        raise TargetTableError(table=table.name, why=why, remedy=remedy) from exc


@dataclass(slots=True, kw_only=True)
class _Copy:
    """The copy at the target: its tokens, and how many target transactions it has had."""

    target: Target
    origin: str
    clock: Clock
    driver_token: int = 0
    _token: int = 0
    _seqno: Seqno = field(default=Seqno(-1))

    def begin(self, tables: Sequence[TableMap], begun: Set[TableName], holder: str) -> None:
        """Shut out another copy, note which tables this one makes, and delete the rows of those `begun` before."""
        positions = self.target.positions
        positions.ensure_tables()
        row = positions.read_pipeline(PIPELINE)
        self.driver_token = positions.take(
            pipeline=PIPELINE,
            expected_token=0 if row is None else row.token,
            holder=holder,
            channels=1,
            shard_rule="",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        self._token = positions.claim(pipeline=PIPELINE, channel=0, driver_token=self.driver_token).token
        names = [(table.schema, table.table) for table in tables]
        gone = [  # begun by a copy of more tables than are wanted now
            TableMap(schema=schema, table=table, columns=()) for schema, table in sorted(begun - set(names))
        ]
        begun_now = [table for name, table in zip(names, tables, strict=True) if name in begun]
        keys = [(".".join(one), ".".join(other)) for one, other in self.target.rows.references()]
        emptied = parents_first([*gone, *begun_now], keys)[::-1]
        states = tuple([(msgspec.json.encode(name).decode(), self.origin) for name in sorted(names)])
        self._apply((), LoadUnit(states=states, begun=tuple(emptied), replace=True))

    def fill(self, table: TableMap, reader: TableReader, report: Report) -> int:
        """Insert the rows of a table; return how many."""
        rows, done = iter(reader.rows(table)), 0
        while part := list(_part(rows)):
            self._apply([RowChange(table, Op.INSERT, None, row) for row in part], LoadUnit(states=()))
            done += len(part)
            report(f"{table.name} into the target", done)
        return done

    def check(self) -> None:
        """Raise ReplacedError where another copy into this target has begun, TargetPositionError where it has ended."""
        self._apply((), LoadUnit(states=()))

    def _apply(self, changes: Sequence[RowChange], load: LoadUnit) -> None:
        """Apply one transaction. Raises TargetTableError for a row that does not fit."""
        old, self._seqno = self._seqno, Seqno(self._seqno + 1)
        told = {"source_id": self.origin, "event_id": "", "tstamp": self.clock.now_ms(), "epoch": Epoch(1)}
        unit = ApplyUnit(seqno=self._seqno, metadata=(), changes=lambda: iter(changes), load=load, **told)  # type: ignore[arg-type]
        place = {"pipeline": PIPELINE, "channel": 0, "token": self._token, "stats": "{}"}
        advance = Advance(old_seqno=old, new_seqno=self._seqno, **place, **told)  # type: ignore[arg-type]
        try:
            self.target.apply([unit], advance)
        except ConflictError as exc:
            remedy = (
                "Mend the row at the source, or what refuses it at the target (make a foreign key of a circle, or of a "
                "table to itself, after the copy), or leave its table out by --tables, and copy again"
            )
            raise TargetTableError(table=exc.table, why=f"the row {exc.key}: {exc.why}", remedy=remedy) from exc


def _part(rows: Iterator[Row]) -> Iterator[Row]:
    """Take the rows of one target transaction off an iteration."""
    size = 0
    for row in islice(rows, _ROWS):
        yield row
        size += sum([len(value) for value in row if isinstance(value, str | bytes)])
        if size >= _BYTES:
            return
