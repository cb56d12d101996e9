"""A message store against plain dicts: any order of calls, with crashes and reopening in between.

After each step what waits, in its order, and what is in doubt is what the oracle says.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fix_queues import QueueLedger, QueueLife, check_opened, check_run, opened
from tranlog.testing.disk import SimDisk


class QueueMachine(RuleBasedStateMachine):
    """One store, which is killed or loses its power now and then."""

    @initialize(seed=st.integers(0, 1_000))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk()
        self.ledger = QueueLedger(seed)
        self.life = QueueLife(self.disk, self.ledger, seed)
        self.stack = ExitStack()
        self._open()
        self.life.declare()

    def _open(self) -> None:
        self.life.disk = self.disk
        self.life.held.clear()
        self.life.store = self.stack.enter_context(opened(self.disk, self.ledger.seed))
        check_opened(self.life.store, self.ledger)

    @rule(rng=st.randoms(use_true_random=False), times=st.integers(1, 4))
    def publish(self, rng: random.Random, times: int) -> None:
        self.life.rng = rng
        for _ in range(times):
            self.life.publish()

    @rule(rng=st.randoms(use_true_random=False), times=st.integers(1, 4))
    def take(self, rng: random.Random, times: int) -> None:
        self.life.rng = rng
        for _ in range(times):
            self.life.take()

    @rule(
        rng=st.randoms(use_true_random=False),
        step=st.sampled_from(
            (
                "answer",
                "transact",
                "prepare",
                "decide",
                "purge",
                "declare",
                "move_some",
                "publish_once",
                "bind",
                "publish_by_key",
            )
        ),
    )
    def step(self, rng: random.Random, step: str) -> None:
        self.life.rng = rng
        getattr(self.life, step)()

    @rule(rng=st.randoms(use_true_random=False))
    @precondition(lambda self: len(self.ledger.ids) > 1)
    def delete(self, rng: random.Random) -> None:
        self.life.rng = rng
        self.life.delete()

    @rule()
    def reopen(self) -> None:
        self.life.store.close()
        self.ledger.durable()
        self.stack.close()
        self._open()
        assert self.life.store.recovered.clean

    @rule(seed=st.integers(0, 1_000), kill=st.booleans())
    def crash(self, seed: int, kill: bool) -> None:
        self.stack.close()
        if kill:
            self.disk.kill()
        else:
            self.disk = self.disk.after_crash(random.Random(seed))
        self._open()
        if not self.ledger.ids:
            self.life.declare()

    @invariant()
    def is_as_the_oracle_says(self) -> None:
        if hasattr(self, "life"):
            check_run(self.life)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()


TestQueueMachine = QueueMachine.TestCase
