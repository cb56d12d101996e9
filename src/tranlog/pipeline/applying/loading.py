"""How far each table is loaded, as a channel knows it: read from the target, and moved by the steps that it takes.

`rules.loading` owns the meaning of a step. The hard idea: every step is serial, so nothing changes between two steps. A
channel that did not take the step reads the target again after the serial section, and has the state from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tranlog.change import Options, TableName
from tranlog.errors import TargetTableError
from tranlog.gaps import GAP, TableGap, gap_of
from tranlog.ids import Seqno
from tranlog.loads import LOAD, LoadEnd, joined, mark_of
from tranlog.pipeline.applying.group import Taken
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import Filter, TableFilter, renamed, renames_tables
from tranlog.pipeline.rules.loading import (
    LoadBegun,
    Loads,
    NotForUs,
    after_gap,
    loading,
    read_stored,
    step,
    stored,
    waits,
)
from tranlog.target.target import LoadUnit, Target
from tranlog.verification import VERIFY


class LoadingTables:
    """The loads as one channel knows them. Threads: one."""

    def __init__(self, pipeline: str, filters: Sequence[Filter]) -> None:
        self._pipeline = pipeline
        self._filters = filters
        self._loads: Loads | None = None
        self._open: Loads = {}

    @property
    def open(self) -> Loads:
        """The tables that are not completely loaded, as of the last transaction taken."""
        return self._open

    def forget(self) -> None:
        """Read the target again before the next transaction."""
        self._loads = None

    def _know(self, loads: Loads) -> None:
        self._loads = loads
        self._open = loading(loads)

    def take(self, taken: Taken, metadata: Options, chain: Chain | None, target: Target) -> bool:
        """Add to a transaction what loads require; False: it is a step of a load that is not for this pipeline.

        A step applies to what is taken after it, a gap also to its own transaction. Raises PayloadError, FilterError,
        TargetTableError, and as `target` does.
        """
        if self._loads is None:
            self._know(read_stored(target.positions.read_loads(self._pipeline)))
        gap = gap_of(metadata) if taken.serial and metadata else None
        if gap is not None:
            assert self._loads is not None
            seqno = taken.header.seqno
            after = after_gap(self._loads, gap, self._joined(gap, target, seqno), seqno)
            taken.load = LoadUnit(states=stored(self._loads, after))
            self._know(after)
        mark = mark_of(metadata) if taken.serial and metadata else None
        if mark is None:
            taken.loading = self._open
            return True
        assert self._loads is not None
        after, verdict = step(self._loads, mark, self._pipeline)
        if isinstance(verdict, NotForUs):
            return False
        if isinstance(mark.step, LoadEnd):
            after = self._without_left_out(after)
        begun = verdict.tables if isinstance(verdict, LoadBegun) else ()
        if chain is not None:
            begun = tuple([found.table for found in map(chain.table, begun) if found is not None])
        taken.load = LoadUnit(
            states=stored(self._loads, after),
            begun=begun[::-1],  # first what refers to others
            replace=isinstance(verdict, LoadBegun) and verdict.replace,
            waiting=self._waiting(after) if begun else (),
        )
        self._know(after)
        return True

    def _without_left_out(self, loads: Loads) -> Loads:
        """Return how far tables are loaded after a load's end: one that filters leave out waits for no other."""
        before = self._loads or {}
        left_out = {name: before[name] for name in loads.keys() & before.keys() if self._name_here(name) is None}
        return {**loads, **left_out}

    def _waiting(self, loads: Loads) -> tuple[TableName, ...]:
        """Return the tables that wait for a load, by their names after the filters."""
        found = [self._name_here(name) for name, state in loads.items() if waits(state)]
        return tuple([name for name in found if name is not None])

    def _name_here(self, name: TableName) -> TableName | None:
        """Return a table's name after the filters; None where they leave it out."""
        return renamed([one for one in self._filters if isinstance(one, TableFilter)], name)

    def _joined(self, gap: TableGap, target: Target, seqno: Seqno) -> set[TableName]:
        """Return a gap's tables that come here and those that foreign keys here join to them, by the source's names.

        Raises TargetTableError where such a one has a name at the source that nobody knows.
        """
        here: dict[TableName, TableName] = {}
        for table in gap.tables:
            name = self._name_here(table)
            if name is not None:
                keys = target.rows.keys(name)
                here[name if keys is None else keys.name] = table
        others = joined(here, target.rows.references() if here else ()) - here.keys()
        if others and renames_tables(self._filters):
            names = ", ".join(sorted(map(".".join, others)))
            raise TargetTableError(
                table=", ".join(map(".".join, here.values())),
                why=f"changes of it are missing in the log, foreign keys join {names} to it here, and filters rename "
                "tables, so that nobody knows which tables those are at the source",
                seqno=seqno,
                remedy="Drop these foreign keys here and start again",
            )
        return {*here.values(), *others}


def is_step(taken: Taken, metadata: Options) -> bool:
    """Whether a transaction is a gap, or a step of a load or a verification: alone in its target transaction."""
    return taken.serial and any(name in (GAP, LOAD, VERIFY) for name, _ in metadata)
