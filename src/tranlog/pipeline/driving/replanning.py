"""Another plan for a running pipeline: the order for it, and whether the running Spark has enough slots.

Owns the exchange between the sender of the order (`operation`, or a program) and the driver, which changes the plan
(`apply`). `progress.plan_start` decides the change: drain to one seqno, then divide again. The hard idea: the driver
answers after the new plan has been written at the target, not before. So the answer has the seqno after which the new
plan is valid, whatever is killed from then on.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tranlog.errors import ConfigError, EngineError
from tranlog.ids import Seqno
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.spark.cluster import MasterKind, count_slots, master_kind, too_few_slots

if TYPE_CHECKING:
    from tranlog.pipeline.spark.session import SparkContext


@dataclass(frozen=True, slots=True, eq=False)
class PlanOrder:
    """A wish for another plan, and the place of its answer.

    `answer`: the seqno at which all channels stood when it changed, None where the run ended before. Its exception is
    why it cannot be: ConfigError, EngineError; then the old plan goes on. Of several that come before the channels
    had met, the newest plan counts, and each is answered with its seqno.
    """

    plan: ShardPlan
    answer: Future[Seqno | None] = field(default_factory=Future)

    def settle(self, seqno: Seqno | None) -> None:
        """Answer it, unless it has been; whoever is first counts."""
        if not self.answer.done():
            self.answer.set_result(seqno)


PlanOrders: TypeAlias = queue.SimpleQueue[PlanOrder]


class Replanning:
    """The plan that a run is to have, by its options or by an order since. Threads: one; `orders` are put from any.

    `due`: whether the tasks are to end and make room for another plan. `note` is told of a plan that is refused.
    """

    def __init__(self, wanted: ShardPlan, orders: PlanOrders | None, *, note: Callable[[str], None]) -> None:
        self.wanted = wanted
        self.due = False
        self._orders: PlanOrders = queue.SimpleQueue() if orders is None else orders
        self._unanswered: list[PlanOrder] = []
        self._note = note

    def look(self, context: SparkContext | None) -> bool:
        """Take up what was ordered; return `due`. The newest of several plans counts."""
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return self.due
            try:
                check_running(order.plan, context)
            except (ConfigError, EngineError) as exc:
                self._note(f"the plan stays as it is: {exc}")
                order.answer.set_exception(exc)
                continue
            self._unanswered.append(order)
            self.wanted = order.plan
            self.due = True

    def answer(self, seqno: Seqno) -> None:
        """Tell who wanted this plan where all channels stood when it changed."""
        orders, self._unanswered = self._unanswered, []
        for order in orders:
            order.settle(seqno)


def check_running(plan: ShardPlan, context: SparkContext | None) -> None:
    """Raise ConfigError for a plan that cannot work, EngineError where the Spark that runs has too few slots for it."""
    plan.check()
    if context is None:
        return  # it is started when it is known how many are needed
    master, slots = context.master or "", count_slots(context)
    if plan.channels <= slots:
        return
    refused = too_few_slots(master, slots=slots, channels=plan.channels)
    again = "`tranlog offline`, `tranlog reload` and `tranlog online`"
    if master_kind(master) is MasterKind.LOCAL:
        remedy = (
            f"Nothing has changed. Run {again}: Spark then starts with {plan.channels} slots. "
            f"Where master is set, set it to local[{plan.channels}] or more and start the process anew"
        )
    else:
        remedy = f"Nothing has changed. {refused.remedy}; then run {again}"
    raise EngineError(why=refused.why, remedy=remedy)
