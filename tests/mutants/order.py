"""Was the log applied in its order? The target's own record of what was done to it, held against the log.

Owns the check alone, and is pure; whoever runs channels collects both sides. The hard idea: with several sessions at
work, the order of rows in an audit table is not enough, since a transaction may write before the one that it must
follow has committed. So the target notes with each row what its session could see (`pg_current_snapshot()`), and one
transaction is before another only if its rows come first and, in another target transaction, were visible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

AUDIT_TABLE: Final = (
    "CREATE TABLE public.trail (place bigserial PRIMARY KEY, number bigint NOT NULL, "
    "xact bigint NOT NULL, snapshot text NOT NULL)"
)
AUDIT_INSERT: Final = (
    "INSERT INTO public.trail (number, xact, snapshot) "
    "VALUES (NEW.number, pg_current_xact_id()::text::bigint, pg_current_snapshot()::text);"
)
"""For a trigger of PostgreSQL's, after the insert of each row with a column `number`, the transaction's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One transaction of the log: `shards` are those it touches, several make it serial; `rows` is how many it has."""

    number: int
    shards: tuple[str, ...]
    rows: int
    listed: bool = False
    """Whether its one shard is among those that the user has made serial."""
    section: int = 0
    """Which stretch of the log it is in: a pipeline that has come to another plan had applied all before that."""

    @property
    def serial(self) -> bool:
        """Whether it runs alone."""
        return self.listed or len(self.shards) != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One row as the target noted it: its place, its target transaction, and what that saw."""

    place: int
    number: int
    xact: int
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """All that the target noted of one transaction of the log."""

    first: int
    last: int
    xact: int
    xmax: int
    running: frozenset[int]

    def saw(self, other: _Stay) -> bool:
        """Whether the other's rows were there for this one."""
        if other.xact == self.xact:
            return True
        return other.xact < self.xmax and other.xact not in self.running


def keeps_order(earlier: Logged, later: Logged) -> bool:
    """Whether two transactions must keep their order at the target, going by their shards."""
    apart = earlier.section != later.section
    return apart or earlier.serial or later.serial or earlier.shards == later.shards


def find_fault(
    log: Sequence[Logged], trail: Iterable[Trace], keeps: Callable[[Logged, Logged], bool] = keeps_order
) -> str | None:
    """Return the first thing that is wrong, None where nothing is. `log` is in the log's order.

    `keeps` says of two transactions, the earlier one first, whether they must keep their order.
    It begins with `lost`, `doubled`, `out of nowhere`, `torn` (one transaction in two at the target), or `wrong order`.
    """
    traces: dict[int, list[Trace]] = defaultdict(list)
    for trace in trail:
        traces[trace.number].append(trace)
    known = {one.number for one in log}
    if strange := sorted(traces.keys() - known):
        return f"out of nowhere: {strange}"
    for one in log:
        count = len(traces[one.number])
        if count != one.rows:
            return f"{'lost' if count < one.rows else 'doubled'}: {one.number} has {count} rows of {one.rows}"
    stays: dict[int, _Stay] = {}
    for one in log:
        if one.rows:
            rows = traces[one.number]
            if len({row.xact for row in rows}) > 1:
                return f"torn: {one.number}"
            stays[one.number] = _stay(rows)
    for at, later in enumerate(log):
        for earlier in log[:at]:
            if not (earlier.rows and later.rows and keeps(earlier, later)):
                continue
            before, after = stays[earlier.number], stays[later.number]
            if before.last > after.first or not after.saw(before):
                return f"wrong order: {later.number} in {later.shards} is not after {earlier.number}"
    return None


def _stay(rows: Sequence[Trace]) -> _Stay:
    """Put together the rows of one transaction; what the first of them saw counts."""
    first = min(rows, key=lambda row: row.place)
    _, xmax, running = first.snapshot.split(":")
    return _Stay(
        first=first.place,
        last=max(row.place for row in rows),
        xact=first.xact,
        xmax=int(xmax),
        running=frozenset(int(one) for one in running.split(",") if one),
    )
