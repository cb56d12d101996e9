"""How far each table is loaded, as a channel knows it: read from the target, moved by what it takes of a load.

What a step means is `rules.loading`'s. The hard idea: every step is serial, so between two of them nothing changes; a
channel that did not take the step reads the target again after the serial section, and has what holds from there on.
"""

from __future__ import annotations

from tranlog.change import Options
from tranlog.loads import LOAD, mark_of
from tranlog.pipeline.applying.group import Taken
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.rules.loading import LoadBegun, Loads, NotForUs, loading, read_stored, step, stored
from tranlog.target.target import LoadUnit, TargetPositions


class LoadingTables:
    """One channel's knowledge. Threads: one."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._loads: Loads | None = None
        self._open: Loads = {}

    def forget(self) -> None:
        """Read the target again before the next transaction."""
        self._loads = None

    def _know(self, loads: Loads) -> None:
        self._loads = loads
        self._open = loading(loads)

    def take(self, taken: Taken, metadata: Options, chain: Chain | None, positions: TargetPositions) -> bool:
        """Give a transaction what loads mean for it; False: it is a step of a load that is not for this pipeline.

        A step counts from now on for what is taken after it. Raises PayloadError; FilterError, TargetTableError; what
        `positions` raise.
        """
        if self._loads is None:
            self._know(read_stored(positions.read_loads(self._pipeline)))
        mark = mark_of(metadata) if taken.serial and metadata else None
        if mark is None:
            taken.loading = self._open
            return True
        assert self._loads is not None
        after, verdict = step(self._loads, mark, self._pipeline)
        if isinstance(verdict, NotForUs):
            return False
        begun = verdict.tables if isinstance(verdict, LoadBegun) else ()
        if chain is not None:
            begun = tuple([found.table for found in map(chain.table, begun) if found is not None])
        taken.load = LoadUnit(
            states=stored(self._loads, after),
            begun=begun[::-1],  # first what refers to others
            replace=isinstance(verdict, LoadBegun) and verdict.replace,
        )
        self._know(after)
        return True


def is_step(taken: Taken, metadata: Options) -> bool:
    """Whether a transaction is a step of a load, which must be alone in its target transaction."""
    return taken.serial and any(name == LOAD for name, _ in metadata)
