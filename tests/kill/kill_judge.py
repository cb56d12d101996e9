"""The judge of `make kill`: what was acknowledged, what the log has and what the target counted, held together.

Rows are written by their absolute values, so equal tables do not show a change that was applied twice. Audit triggers
at the target count every change by table, operation and key; those counts must be the log's, for tables without a key
too: of a table that is loading those of the changes that count, and of a load that replaces rows their deletion. Every
transaction of the load inserts one row into a ledger under an id of its own: transactions are counted by it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from demo_steps import tranlog
from kill_service import Service
from kill_target import Counts
from tranlog import LogReader, Op, RowChange, value_text
from tranlog.change import TableMap, TableName
from tranlog.gaps import gap_of
from tranlog.loads import LoadBegin, joined, mark_of
from tranlog.payload import decode
from tranlog.pipeline.rules import loading
from tranlog.target.target import DIFFERS, EQUAL
from tranlog.types import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of channels that meet by write sets: the shares of all transactions that did not run alone, and that waited.

    `serial`: why others ran alone, and how many.
    """

    channels: int
    commit_order: str
    parallel: float
    waited: float
    missed_dependencies: int
    retries: int
    serial: Mapping[str, int]

    PARALLEL_LEAST: ClassVar[float] = 0.5
    WAITED_LEAST: ClassVar[float] = 0.01

    @classmethod
    def of(cls, service: Service) -> Shares | None:
        """Return them as they are now; None where a service divides by shards."""
        if not service.by_writes:
            return None
        done, reasons = service.counted()
        whole = max(1, done.transactions)
        return cls(
            channels=service.channels,
            commit_order=service.commit_order,
            parallel=round(1 - done.serial / whole, 3),
            waited=round(done.held / whole, 3),
            missed_dependencies=done.missed,
            retries=done.retries,
            serial=reasons,
        )

    @property
    def enough(self) -> bool:
        """Whether that proves something."""
        return self.parallel >= self.PARALLEL_LEAST and self.waited >= self.WAITED_LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the load. Units: transactions, but for `changes`, which are row changes at the target.

    `missed`: acknowledged and not in the log. `lost`: acknowledged and not at the target, and changes that the log
    has more often than the target counted. `doubled`: changes that the target counted more often than the log has
    them, and transactions that the log has more than once. `refused`: failed at the source for capture's sake. `equal`:
    source and target, compared value by value. `gaps`: in the log. `verified_live`: tables that live verifications said
    to be equal, under the harms; `differing_live`: to differ. `by_writes`: where channels meet by write sets.
    """

    acknowledged: int
    captured: int
    applied: int
    changes: int
    missed: int
    lost: int
    doubled: int
    refused: int
    equal: bool
    gaps: int = 0
    verified_live: int = 0
    differing_live: int = 0
    by_writes: Shares | None = None

    @property
    def good(self) -> bool:
        """Whether nothing is lost, doubled or refused."""
        well = self.by_writes is None or not self.by_writes.missed_dependencies
        wrong = (self.missed, self.lost, self.doubled, self.refused, self.differing_live)
        return self.equal and well and not any(wrong)


def judge(service: Service) -> Verdict:
    """Look at everything of one service, while nothing is under way. Raises StepFailedError if that cannot be."""
    target = service.around.target
    there: set[int] = set()
    for ledger in service.load.ledgers:
        there.update(number for (number,) in target.ask(f"SELECT id FROM {ledger}"))
    by_writes = Shares.of(service)
    compared = json.loads(tranlog("--conf", str(service.conf), "verify", "--json", codes=(0, 1)))
    verdict = weigh(
        acknowledged=service.load.acknowledged(),
        ledgers=service.load.ledgers,
        **counts_of_log(service.log, service.name, service.references),
        counted=target.counted([f"{schema}.{table}" for schema, table, _ in service.load.tables]),
        there=there,
        refused=service.load.refused(),
        equal=bool(compared["equal"]),
    )
    told = service.live.verdicts
    return replace(verdict, by_writes=by_writes, verified_live=told[EQUAL], differing_live=told[DIFFERS])


def counts_of_log(
    directory: Path, pipeline: str, references: Sequence[tuple[TableName, TableName]] = ()
) -> dict[str, Any]:
    """Return what the target must have counted, how often the stream alone has each row's insertion, and gaps.

    Shape: `logged` by table, operation and key; `streamed` by table and key. `references`: the target's foreign keys.
    """
    gaps = 0
    logged: Counts = Counter()
    streamed: Counter[tuple[str, str]] = Counter()
    there: dict[TableName, Counter[str]] = {}
    loads: loading.Loads = {}

    def key_of(table: TableMap, row: tuple[Value, ...]) -> str:
        return "".join("|" + value_text(value) for value in table.key_of(row))

    reader = LogReader.open(str(directory))
    with reader.cursor(committed_only=True) as cursor:
        cursor.seek(reader.range().first_seqno)
        while (transaction := cursor.next()) is not None:
            payloads = [decode(raw) for raw in transaction.payloads()]
            changes = [change for payload in payloads for change in payload.changes]
            mark, gap = mark_of(payloads[-1].metadata), gap_of(payloads[-1].metadata)
            if gap is not None:
                gaps += 1
                loads = loading.after_gap(loads, gap, joined(gap.tables, references), transaction.header.seqno)
            if mark is None:
                for change in changes:
                    if isinstance(change, RowChange) and change.op is Op.INSERT and change.after is not None:
                        streamed[change.table.name, key_of(change.table, change.after)] += 1
                changes = list(loading.counting(loading.loading(loads), changes, transaction.header.seqno))
            else:
                loads, verdict = loading.step(loads, mark, pipeline)
                if isinstance(verdict, loading.NotForUs):
                    continue
                for table in mark.step.tables if isinstance(mark.step, LoadBegin) else ():
                    for key, count in there.pop((table.schema, table.table), Counter()).items():
                        logged[table.name, "DELETE", key] += count
            for change in changes:
                if not isinstance(change, RowChange):
                    continue
                image = change.after if change.op is Op.INSERT else change.before
                assert image is not None
                logged[change.table.name, change.op.name, key_of(change.table, image)] += 1
                rows = there.setdefault((change.table.schema, change.table.table), Counter())
                if change.before is not None:
                    rows[key_of(change.table, change.before)] -= 1
                if change.after is not None:
                    rows[key_of(change.table, change.after)] += 1
    reader.close()
    return {"logged": +logged, "streamed": streamed, "gaps": gaps}


def weigh(
    *,
    acknowledged: list[int],
    ledgers: Collection[str],
    logged: Counts,
    streamed: Counter[tuple[str, str]],
    counted: Counts,
    there: set[int],
    refused: int,
    equal: bool,
    gaps: int = 0,
) -> Verdict:
    """Hold the counts against each other. Pure."""
    captured: Counter[int] = Counter()
    for (relation, key), count in streamed.items():
        if relation in ledgers and (number := int(key.removeprefix("|"))) > 0:  # ids from 1 on are the load's
            captured[number] += count
    return Verdict(
        acknowledged=len(acknowledged),
        captured=captured.total(),
        applied=sum(number > 0 for number in there),
        changes=counted.total(),
        missed=sum(number not in captured for number in acknowledged),
        lost=sum(number not in there for number in acknowledged) + (logged - counted).total(),
        doubled=(counted - logged).total() + sum(count - 1 for count in captured.values()),
        refused=refused,
        equal=equal,
        gaps=gaps,
    )
