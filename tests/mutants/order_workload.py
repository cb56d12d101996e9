"""What the rounds of `order_rounds` apply, by which plans, and what each plan asks of the order at the target.

Owns the random logs and plans, and the harness's own word on which transactions are one shard under a plan: it goes by
what was written, and not by the product's functions, which are what is tested.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mutants.order import Logged
from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.rules.channels import AssignmentRule, Parallelization, PlanOptions, ShardBy, ShardPlan
from tranlog.pipeline.rules.shard_list import parse_shard_list
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
SCHEMAS = ("a", "b", "c", "d", "e")
LISTED = "e"
"""A schema that is serial where a test says so."""
KEYED, PLAIN = "events", "notes"
"""The two tables of each schema: one has a column `key`, the other nothing but the number."""
KEYS = (1, 2, 3, 4)
MOST_CHANNELS = 5

_NUMBER = Column(name="number", source_type="bigint", logical=LogicalType.INTEGER, nullable=False)
_KEY = Column(name="key", source_type="bigint", logical=LogicalType.INTEGER, nullable=False)
TABLES = {
    (schema, name): TableMap(schema=schema, table=name, columns=columns, primary_key=())
    for schema in SCHEMAS
    for name, columns in ((KEYED, (_NUMBER, _KEY)), (PLAIN, (_NUMBER,)))
}
"""Without primary keys, so that the target refuses no double."""

Row: TypeAlias = tuple[str, str, int]
"""Schema, table, key; a table without one takes no notice of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One transaction as it was written: its number, which its rows hold, its seqno, and where its rows go."""

    number: int
    seqno: Seqno
    rows: tuple[Row, ...]


def write(log: Log, rng: random.Random) -> Iterator[Written]:
    """Append transactions: most in one place, some over several schemas, now and then many of those in a row."""
    packer = TransactionPacker(source_id=log.history.hex(), rule=BY_SCHEMA)  # no two rounds have one log
    across = rng.choice((0.0, 0.05, 0.2))
    beside = rng.choice((0.0, 0.05, 0.2))
    run = 0
    for number in itertools.count(1):
        run = run - 1 if run else rng.choice((1, 1, 4)) if rng.random() < across else 0
        schema, table, key = rng.choice(SCHEMAS), rng.choice((KEYED, KEYED, PLAIN)), rng.choice(KEYS)
        places = [(schema, table, key)]
        if run:
            places.append((rng.choice([one for one in SCHEMAS if one != schema]), table, rng.choice(KEYS)))
        elif rng.random() < beside:
            places.append((schema, rng.choice((KEYED, PLAIN)), rng.choice(KEYS)))
        rows = tuple(place for place in places for _ in range(rng.choice((1, 1, 3))))
        packer.begin(BY_SCHEMA)
        for schema, table, key in rows:
            row = (number, key) if table == KEYED else (number,)
            change = RowChange(TABLES[schema, table], Op.INSERT, None, row)
            assert packer.add(change, event_id="", tstamp=1) is None
        log.append(packer.finish(event_id=f"event {number}", tstamp=number))
        yield Written(number=number, seqno=log.last_seqno, rows=rows)


SHARDS_BY = tuple(by for by in ShardBy if by is not ShardBy.WRITES)
"""What makes a shard; by write sets there is none: `order_by_writes`."""


def draw_parallelization(rng: random.Random) -> Parallelization:
    """Draw how transactions come to the channels; one channel for all has little to get wrong."""
    return rng.choice((*(Parallelization.DISK, Parallelization.MEMORY) * 3, Parallelization.NONE))


def draw_plan(rng: random.Random) -> dict[str, object]:
    """Draw what of ApplyOptions makes the plan: channels, what a shard is, and whose it is, by a list or without."""
    channels = rng.randint(1, MOST_CHANNELS) if rng.random() < 0.3 else rng.randint(2, 4)
    by = rng.choice(SHARDS_BY)
    if by in (ShardBy.RECORDED, ShardBy.SCHEMA):
        names: Sequence[str] = SCHEMAS
    else:  # by key, a table that has one is no shard
        names = [f"{schema}.{table}" for schema, table in TABLES if by is ShardBy.TABLE or table == PLAIN]
    if rng.random() < 0.5:
        found = parse_shard_list(_shard_list(rng, names, channels), file="shard.list")
    else:
        critical = (rng.choice(names),) if rng.random() < 0.3 else ()
        found = PlanOptions(serial=critical, assignment=rng.choice(tuple(AssignmentRule)))
    return {
        "channels": channels,
        "plan": replace(
            found, by=by, keys={f"{schema}.{KEYED}": "key" for schema in SCHEMAS} if by is ShardBy.KEY else {}
        ),
    }


def _shard_list(rng: random.Random, names: Sequence[str], channels: int) -> str:
    """Write a `shard.list`: some shards have a line, few are critical, the others go by a method or to one channel."""
    some = rng.sample(names, rng.randint(0, len(names) // 2))
    lines = [f"{name}={rng.randrange(channels)}" for name in some]
    if rng.random() < 0.4:
        lines.append(f"(critical)={','.join(rng.sample(names, rng.randint(1, 2)))}")
    lines.append(f"(*)={rng.randrange(channels) if rng.random() < 0.2 else -1}")
    lines.append(f"(hash-method)={rng.choice(('round-robin', 'round-robin', 'string-hash'))}")
    return "# drawn\n" + "\n".join(lines) + "\n"


def logged(one: Written, plan: ShardPlan, section: int = 0) -> Logged:
    """Return what a plan asks of a transaction's order; one channel alone keeps that of all."""
    if plan.channels == 1:
        shards = {"everything"}
    elif plan.by is ShardBy.KEY:
        shards = {f"key {key}" if table == KEYED else f"{schema}.{table}" for schema, table, key in one.rows}
    elif plan.by is ShardBy.TABLE:
        shards = {f"{schema}.{table}" for schema, table, _ in one.rows}
    else:
        shards = {schema for schema, _, _ in one.rows}
    return Logged(
        number=one.number,
        shards=tuple(sorted(shards)),
        rows=len(one.rows),
        listed=not shards.isdisjoint(plan.serial),
        section=section,
    )


def logged_by(written: Sequence[Written], plans: Sequence[tuple[Seqno, ShardPlan]]) -> list[Logged]:
    """Return what was asked of each transaction by the plan under which it was applied.

    `plans`: from behind which seqno on each of them held, in that order.
    """
    found = []
    for one in written:
        section = max(number for number, (behind, _) in enumerate(plans) if behind < one.seqno)
        found.append(logged(one, plans[section][1], section))
    return found
