"""What the rounds of `order_rounds` apply by write sets: one schema with keys, and what must keep its order there.

The words on who conflicts with whom are the harness's own: they go by the rows, and not by what is in the headers.
Every transaction begins with its number in a ledger, whose trigger notes the order. In the middle stand statements
that make and drop an index, and some that give the target a unique key that the source does not have.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mutants.keyed_rows import KEYED_TABLES, SCHEMA, Drawing, Row, number_column
from mutants.order import Logged, keeps_order
from mutants.order_workload import BY_SCHEMA
from tranlog.change import Change, Op, RowChange, Statement, TableMap
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.rules.by_writes import WritesBounds
from tranlog.pipeline.rules.channels import CommitOrder, Parallelization, PlanOptions, ShardBy, ShardPlan
from tranlog.row_touches import RowTouches
from tranlog.source.packer import TransactionPacker

LEDGER = TableMap(schema=SCHEMA, table="ledger", columns=(number_column("number"),), primary_key=(0,))
"""At the target it has no key, so that it refuses no double."""
TRIGGERS = ("note",)
SLOW = ("parent", "child", "ledger")
"""Tables, one of which is slow in each round."""
MOST_CHANNELS = 6

_INDEX = "DROP INDEX IF EXISTS shop.beside", "CREATE INDEX beside ON shop.child (n)"
_UNIQUE = "DROP INDEX IF EXISTS shop.only_here", "CREATE UNIQUE INDEX only_here ON shop.child (b, a)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """One transaction as it was written: its number, its seqno, and which values of keys it touched.

    `came`: a row with it came or went; `kept`: one was updated and kept it; `referred`: one that refers to it came or
    went. `statement`: it is one, and runs alone.
    """

    number: int
    seqno: Seqno
    came: frozenset[object] = frozenset()
    kept: frozenset[object] = frozenset()
    referred: frozenset[object] = frozenset()
    statement: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRows(Logged):
    """What is asked of its order, where its plan is by write sets."""

    written: WrittenRows


def write_rows(log: Log, rng: random.Random) -> Iterator[WrittenRows]:
    """Append transactions: most of a few rows, some statements."""
    packer = TransactionPacker(source_id=log.history.hex(), rule=BY_SCHEMA, touches=RowTouches())
    drawing = Drawing(rng, range(rng.choice((8, 20))))
    statements = rng.choice((0.0, 0.01, 0.03))
    drawn = drawing.transactions()
    for number in itertools.count(1):
        changes: list[Change] = [RowChange(LEDGER, Op.INSERT, None, (number,))]
        rows: list[RowChange] = []
        if statement := rng.random() < statements:
            both = _UNIQUE if rng.random() < 0.2 else _INDEX
            texts = (f"INSERT INTO shop.ledger VALUES ({number})", both[0], *both[1:][: rng.randint(0, 1)])
            changes = [Statement(schema=SCHEMA, sql=text, ddl=False) for text in texts]
        else:
            rows = next(drawn)
        packer.begin(BY_SCHEMA)
        for change in (*changes, *rows):
            assert packer.add(change, event_id="", tstamp=1) is None
        metadata = (("dbms_type", "postgres"),) if statement else ()
        log.append(packer.finish(event_id=f"event {number}", tstamp=number, metadata=metadata))
        yield _written(number, log.last_seqno, rows, statement)


def _written(number: int, seqno: Seqno, rows: Sequence[RowChange], statement: bool) -> WrittenRows:
    came: set[object] = set()
    kept: set[object] = set()
    referred: set[object] = set()
    for change in rows:
        table, images = change.table, [row for row in (change.before, change.after) if row is not None]
        for at, columns in enumerate((table.primary_key, *table.unique_keys)):
            values = {(table.table, at, _values(row, columns)) for row in images if None not in _values(row, columns)}
            if len(images) == 2 and len(values) == 1 and _values(images[0], columns) == _values(images[1], columns):
                kept |= values if at == 0 else set()
            else:
                came |= values
        for foreign in table.foreign_keys:
            values = {(foreign.ref_table, 0, _values(row, foreign.columns)) for row in images}
            if len(images) == 1 or len(values) == 2:
                referred |= values
    return WrittenRows(
        number=number,
        seqno=seqno,
        came=frozenset(came),
        kept=frozenset(kept),
        referred=frozenset(referred),
        statement=statement,
    )


def _values(row: Row, columns: Sequence[int]) -> tuple[object, ...]:
    return tuple([value.lower() if isinstance(value, str) else value for value in [row[at] for at in columns]])


def draw_rows_plan(rng: random.Random) -> dict[str, object]:
    """Draw what of ApplyOptions makes the plan; one in five times by schema, which is one shard, and one
    in five of the others in the source's order.
    """
    channels = rng.randint(2, MOST_CHANNELS)
    if rng.random() < 0.2:
        return {"channels": channels, "plan": PlanOptions(by=ShardBy.SCHEMA)}
    order = CommitOrder.SOURCE if rng.random() < 0.2 else CommitOrder.ANY
    plan = PlanOptions(by=ShardBy.WRITES, independent_triggers=TRIGGERS, commit_order=order)
    return {"channels": channels, "plan": plan}


def draw_bounds(rng: random.Random) -> WritesBounds:
    """Draw when plans begin, how even the channels are, and when channel 0 runs alone."""
    return WritesBounds(
        every=rng.choice((25, 60, 16_384)),
        lead=rng.choice((0, 5, 2_000)),
        serial_in=rng.choice((5, 200)),
        judged=rng.choice((40, 1_000, 100_000)),
        touched=rng.choice((2, 8)),
        homes=rng.choice((0, 0, 256)),  # 0: they wait for each other as often as they can
    )


def rows_parallelization(rng: random.Random) -> Parallelization:
    """Return the only one that runs by write sets."""
    return Parallelization.DISK


def rows_logged_by(written: Sequence[WrittenRows], plans: Sequence[tuple[Seqno, ShardPlan]]) -> list[Logged]:
    """Return what was asked of each transaction by the plan under which it was applied; `plans` as in `logged_by`."""
    found: list[Logged] = []
    for one in written:
        section = max(number for number, (behind, _) in enumerate(plans) if behind < one.seqno)
        plan = plans[section][1]
        by_writes = plan.by is ShardBy.WRITES and not plan.in_a_row
        shards = (str(one.number),) if by_writes else (SCHEMA,)
        found.append(
            LoggedRows(number=one.number, shards=shards, rows=1, listed=one.statement, section=section, written=one)
        )
    return found


def rows_keep_order(earlier: Logged, later: Logged) -> bool:
    """Whether two transactions must keep their order at the target."""
    assert isinstance(earlier, LoggedRows) and isinstance(later, LoggedRows)
    if keeps_order(earlier, later):
        return True
    one, other = earlier.written, later.written
    return bool(
        one.came & (other.came | other.kept | other.referred)
        or other.came & (one.kept | one.referred)
        or one.kept & other.kept
    )


TARGET_TABLES = (*KEYED_TABLES, TableMap(schema=SCHEMA, table="ledger", columns=LEDGER.columns, primary_key=()))
"""As they are made at the target."""
