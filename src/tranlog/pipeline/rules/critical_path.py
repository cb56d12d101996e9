"""How parallel a log can be applied at best by write sets, and which key values limit that.

Owns the measure (`PathFinder`), computed from headers alone. A transaction begins when all that it depends on has
ended, and takes as long as it has row changes, at least one; one that must run alone begins when all before it have
ended, and nothing begins before its end. The longest chain of such transactions is the critical path: no number of
channels is faster. How near the rule comes is computed with the rule itself, on so many channels; a commit, a wait
and a read cost nothing there but what they count in the rule, and the target has the source's keys.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tranlog.change import TableName
from tranlog.ids import Seqno
from tranlog.pipeline.rules.by_writes import NOBODY, Assignment, PlannedTable, Writes, WritesPlan, alone_for
from tranlog.pipeline.rules.channels import SERIAL
from tranlog.write_set import WriteSet

_NOTHING: Final = -1
"""As a value: the transaction depends on no other, or runs alone, or comes after one that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotValue:
    """A value of a key, by its hash. `waited`: transactions of the critical path that waited for it; `seqno`: one."""

    value: int
    waited: int
    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """What was found. Units: row changes, but for `transactions`, `on_path` and the counts of `serial`.

    `serial`: why transactions run alone, and how many do. `at_once`: by the number of channels, how many times as fast
    as one they are.
    """

    transactions: int
    changes: int
    length: int
    on_path: int
    serial: dict[str, int]
    at_once: dict[int, float]
    hot: tuple[HotValue, ...]

    @property
    def best(self) -> float:
        """How many times as fast as one channel any number of them can be."""
        return self.changes / self.length if self.length else 1.0


class PathFinder:
    """Takes the transactions of a log one after the other. `tables`: all that they touch. Threads: one."""

    def __init__(self, tables: Collection[TableName], channels: Sequence[int]) -> None:
        self._runs = [_Run(tables, count) for count in channels]
        # Of each transaction its seqno, which one before it ended last of those that it waits for, and for which value.
        self._seqnos, self._before, self._for = array("q"), array("q"), array("q")
        self._changes = 0
        self._serial: Counter[str] = Counter()
        self._floor = self._end = 0
        self._floor_at = self._end_at = _NOTHING
        # By hash what of the use ended last: when, and which transaction that was. A KEY hides all others before it.
        self._keys: dict[int, tuple[int, int]] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._references: dict[int, tuple[int, int]] = {}

    def add(self, seqno: Seqno, writes: Writes) -> None:
        """Take the next transaction."""
        why = alone_for(writes)
        changes = writes.changes if isinstance(writes, WriteSet) else 0
        if not changes and not why:
            return
        takes = max(1, changes)
        at = len(self._seqnos)
        self._changes += takes
        if why:
            self._serial[why] += 1
            begin, before, value = self._end, self._end_at, _NOTHING
        else:
            assert isinstance(writes, WriteSet)
            begin, before, value = self._begin(writes)
        end = begin + takes
        self._seqnos.append(seqno)
        self._before.append(before)
        self._for.append(value)
        if end >= self._end:
            self._end, self._end_at = end, at
        if why:
            self._floor, self._floor_at = end, at
            for table in (self._keys, self._rows, self._references):
                table.clear()
        else:
            assert isinstance(writes, WriteSet)
            self._note(writes, (end, at))
        for run in self._runs:
            run.add(seqno, writes, takes)

    def _begin(self, writes: WriteSet) -> tuple[int, int, int]:
        """Return when a transaction may begin, after which one, and for the sake of which value."""
        begin, before, value = self._floor, self._floor_at, _NOTHING
        tables = (self._keys, self._rows, self._references)
        for hashes, after in zip(writes.touches, (tables, tables[:2], tables[:1]), strict=True):
            for one in hashes:
                for table in after:
                    ended = table.get(one)
                    if ended is not None and ended[0] > begin:
                        begin, before, value = ended[0], ended[1], one
        return begin, before, value

    def _note(self, writes: WriteSet, ended: tuple[int, int]) -> None:
        keys, rows, references = writes.touches
        for one in keys:
            self._keys[one] = ended
            self._rows.pop(one, None)
            self._references.pop(one, None)
        for table, hashes in ((self._rows, rows), (self._references, references)):
            for one in hashes:
                table[one] = max(ended, table.get(one, ended))

    def found(self, hottest: int = 10) -> CriticalPath:
        """Return what was found, with so many values of keys at most."""
        waited: Counter[int] = Counter()
        seen: dict[int, int] = {}
        at, on_path = self._end_at, 0
        while at != _NOTHING:
            on_path += 1
            if (value := self._for[at]) != _NOTHING:
                waited[value] += 1
                seen.setdefault(value, at)
            at = self._before[at]
        return CriticalPath(
            transactions=len(self._seqnos),
            changes=self._changes,
            length=self._end,
            on_path=on_path,
            serial=dict(self._serial.most_common()),
            at_once={run.channels: round(self._changes / max(run.free, default=1), 2) for run in self._runs}
            if self._changes
            else {},
            hot=tuple(
                [
                    HotValue(value=value, waited=count, seqno=Seqno(self._seqnos[seen[value]]))
                    for value, count in waited.most_common(hottest)
                ]
            ),
        )


class _Run:
    """The same transactions on so many channels, by the rule itself. `free`: when each channel has ended its last."""

    def __init__(self, tables: Collection[TableName], channels: int) -> None:
        self.channels = channels
        self.free = [0] * channels
        self._today = WritesPlan(
            from_seqno=Seqno(0),
            channels=channels,
            tables=tuple([PlannedTable(table=table) for table in sorted(tables)]),
        )
        self._assignment = Assignment(self._today)
        self._ends: dict[Seqno, int] = {}

    def add(self, seqno: Seqno, writes: Writes, takes: int) -> None:
        assigned = self._assignment.assign(seqno, writes)
        if assigned.owner == NOBODY:
            return
        if assigned.owner == SERIAL:
            self.free = [max(self.free) + takes] * self.channels
            if assigned.point:
                self._assignment = Assignment(self._assignment.next_plan(seqno, self._today))
                self._ends.clear()
            return
        begin = max([self.free[assigned.owner], *[self._ends[one] for _, one in assigned.waits]])
        self._ends[seqno] = self.free[assigned.owner] = begin + takes
