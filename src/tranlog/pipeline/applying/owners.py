"""Which shard is whose: the assignment as the target has it, read once and extended by shards seen for the first time.

Owns the table in memory. The plan's rule is in `channels`; the target makes sure that all channels get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable

from tranlog.errors import ConfigError
from tranlog.pipeline.rules.channels import KEY_SHARD, SERIAL, ShardPlan
from tranlog.target.target import Target


class Owners:
    """The owners of shards, as `ShardPlan.owner` defines them. Threads: one.

    `known`: those that were asked for, but of keys, which may be as many as rows. `foreign`: of these the shards that
    other channels than `channel` own, as headers have them; empty where that is None. `check` is called where a channel
    is stored that the plan does not have; it raises ReplacedError where that is a later plan's.
    """

    def __init__(
        self,
        plan: ShardPlan,
        target: Target,
        *,
        pipeline: str,
        driver_token: int,
        check: Callable[[], object],
        channel: int | None = None,
    ) -> None:
        self._plan = plan
        self._target = target
        self._pipeline = pipeline
        self._driver_token = driver_token
        self._check = check
        self._channel = channel
        self._stored = target.positions.read_assignment(pipeline)
        self.known: dict[str, int] = {}
        self.foreign: set[bytes] = set()

    def of_stored(self) -> None:
        """Ask for the owner of each shard that the target has one stored for. Raises ConfigError as `of` does."""
        for shard in self._stored:
            self.of(shard)

    def of(self, shard: str) -> int:
        """Return the owner of a shard's transactions; a shard seen for the first time gets its channel here.

        Raises ConfigError for a stored channel that the plan does not have, ReplacedError where another is the driver.
        """
        owner = self.known.get(shard)
        if owner is not None:
            return owner
        owner = self._planned(shard)
        if owner is None:
            self._stored[shard] = self._target.positions.assign(
                pipeline=self._pipeline,
                shard=shard,
                channels=self._plan.channels,
                driver_token=self._driver_token,
            )
            owner = self._planned(shard)
            assert owner is not None
        if not shard.startswith(KEY_SHARD):
            self.known[shard] = owner
            if self._channel is not None and owner not in (SERIAL, self._channel):
                self.foreign.add(shard.encode())
        return owner

    def _planned(self, shard: str) -> int | None:
        try:
            return self._plan.channel_of(shard, self._stored)
        except ConfigError:
            self._check()
            raise
