"""The judge of `make kill`: what was acknowledged, what the log has and what the target counted, held together.

Rows are written by their absolute values, so equal tables do not show a change that was applied twice. Audit triggers
at the target count every change by table, operation and key; those counts must be the log's, for tables without a key
too. Every transaction of the load inserts one row into a ledger under an id of its own: transactions are counted by it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from demo_steps import tranlog
from kill_service import Service
from kill_target import Counts
from mariadb_demo import logged_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the load. Units: transactions, but for `changes`, which are row changes at the target.

    `missed`: acknowledged and not in the log. `lost`: acknowledged and not at the target, and changes that the log
    has more often than the target counted. `doubled`: changes that the target counted more often than the log has
    them, and transactions that the log has more than once. `refused`: failed at the source for capture's sake. `equal`:
    source and target, compared value by value.
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

    @property
    def good(self) -> bool:
        """Whether nothing is lost, doubled or refused."""
        return self.equal and not (self.missed or self.lost or self.doubled or self.refused)


def judge(service: Service) -> Verdict:
    """Look at everything of one service, while nothing is under way. Raises StepFailedError if that cannot be."""
    target = service.around.target
    there: set[int] = set()
    for ledger in service.load.ledgers:
        there.update(number for (number,) in target.ask(f"SELECT id FROM {ledger}"))
    compared = json.loads(tranlog("--conf", str(service.conf), "verify", "--json", codes=(0, 1)))
    return weigh(
        acknowledged=service.load.acknowledged(),
        ledgers=service.load.ledgers,
        logged=logged_changes(service.log),
        counted=target.counted([f"{schema}.{table}" for schema, table, _ in service.load.tables]),
        there=there,
        refused=service.load.refused(),
        equal=bool(compared["equal"]),
    )


def weigh(
    *,
    acknowledged: list[int],
    ledgers: Iterable[str],
    logged: Counts,
    counted: Counts,
    there: set[int],
    refused: int,
    equal: bool,
) -> Verdict:
    """Hold the counts against each other. Pure."""
    captured, applied = _ledger_inserts(logged, ledgers), _ledger_inserts(counted, ledgers)
    return Verdict(
        acknowledged=len(acknowledged),
        captured=captured.total(),
        applied=applied.total(),
        changes=counted.total(),
        missed=sum(number not in captured for number in acknowledged),
        lost=sum(number not in there for number in acknowledged) + (logged - counted).total(),
        doubled=(counted - logged).total() + sum(count - 1 for count in captured.values()),
        refused=refused,
        equal=equal,
    )


def _ledger_inserts(counts: Counts, ledgers: Iterable[str]) -> Counter[int]:
    """Return how often each transaction of the load is in the counts; ids from 1 on are the load's."""
    wanted = frozenset(ledgers)
    found: Counter[int] = Counter()
    for (relation, op, key), count in counts.items():
        if op == "INSERT" and relation in wanted and (number := int(key.removeprefix("|"))) > 0:
            found[number] += count
    return found
