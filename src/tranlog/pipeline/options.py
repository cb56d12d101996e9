"""The options of a run: what a pipeline applies, from where to where, and how, each with its default.

Source: docs/parallel-apply.md.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

from tranlog.errors import ConfigError
from tranlog.option_kinds import ABOVE_0, Bounds, check_bounds, check_kinds
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.filters.filters import Filter, check_filters, describe
from tranlog.pipeline.rules.channels import Parallelization, PlanOptions, ShardBy, ShardPlan
from tranlog.pipeline.rules.limits import Limit, SeqnoRanges
from tranlog.pipeline.rules.progress import check_pipeline_name
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.pipeline.spark.session import check_slots, default_master
from tranlog.target.options import TargetOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """What to apply, to where, and how; picklable.

    `until_seqno`: the last seqno to apply, inclusive; "now": what is committed when the run starts; None: follow.
    `start_seqno`: the first to apply where the target has no position; None: the first that the log holds.
    """

    pipeline: str
    log_dir: str
    target: TargetOptions
    channels: int = 4
    """How many tasks apply at once; each needs one of Spark's slots."""
    parallelization: Parallelization = Parallelization.DISK
    """`disk`: a cursor per channel. `memory`: windows that are read once, for logs far away. `none`: one channel."""
    window_bytes: int = 32 << 20
    """In memory: how much of the log is read at a time, and the most that a channel's worker holds of it."""
    master: str | None = field(default=None, metadata={"example": "local[4]", "default": "this machine"})
    """Spark's master; None: `local[max(cores, channels)]`, since a task that runs for weeks needs a slot for itself."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """What Spark is told beyond its master."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    """How shards are divided among the channels."""
    until_seqno: int | str | None = None
    start_seqno: int | None = field(default=None, metadata={"example": 0, "default": "the first in the log"})
    """The first to apply where the target has no position."""
    beside: tuple[str, ...] = field(default=(), metadata={"example": ["orders"]})
    """Other pipelines of this log that fill this target too, with filters that keep their rows apart. A start from the
    log's first transactions is refused where another pipeline has applied them."""
    limit: Limit | None = None
    """A limit beside `until_seqno`; the nearer one ends the run."""
    leave_out: SeqnoRanges = field(default_factory=SeqnoRanges)
    """Transactions that are never to be applied; recorded at the target with those of earlier runs."""
    take_over: bool = False
    max_offline_interval_s: float | None = field(default=None, metadata={"example": 5.0})
    """How far the fastest channel may be ahead of the slowest, in the source's commit times; None: as far as it can."""
    sync_interval_s: float = 1.0
    """How long a position may go unpublished while nothing of the channel's own comes by."""
    idle_every: int = 10_000
    """The same, in transactions."""
    group: GroupBounds = field(default_factory=GroupBounds)
    retry_s: float = 30.0
    """How long a start, until all channels are claimed, and a bounded run try to use a target that is away."""
    give_up_s: float | None = field(default=None, metadata={"example": 3600.0, "default": "for ever"})
    """How long one that runs goes on while a channel cannot use the target; None: for ever, with growing pauses."""
    resubmit: int = 5
    """How often a failing job is submitted again without any position having moved."""
    checksum: bool = True
    """Whether the checksums of the log's records are compared while it is applied."""
    filters: tuple[Filter, ...] = ()
    """What is left out, renamed, hidden or delayed on the way, in this order."""

    def shard_plan(self) -> ShardPlan:
        """Return how shards are divided among the channels."""
        if self.parallelization is Parallelization.NONE:
            return ShardPlan(channels=1)
        told = "; ".join([describe(one) for one in self.filters])
        return self.plan.plan(self.channels, f"{zlib.crc32(told.encode()):08x}" if told else "")

    def check(self) -> None:
        """Raise ConfigError for what cannot work."""
        check_kinds(self)
        for name in (self.pipeline, *self.beside):
            check_pipeline_name(name)
        check_filters(self.filters)  # before the plan, which names them
        self.shard_plan().check()
        if self.plan.by is ShardBy.WRITES and self.parallelization is Parallelization.MEMORY:
            why = 'parallelization = "memory" splits the log by shard; by = "schema" runs there, or "disk" by writes'
            raise ConfigError(option="shard by", value=self.plan.by.value, why=why)
        if self.shard_plan().in_a_row and self.max_offline_interval_s is not None:
            why = 'commit_order = "source" keeps the channels together; take one of the two out'
            raise ConfigError(option="max_offline_interval_s", value=self.max_offline_interval_s, why=why)
        self.group.check()
        check_slots(self.wanted_master(), self.shard_plan().channels)
        self.engine.check_for(self.wanted_master())
        if isinstance(self.until_seqno, str) and self.until_seqno != "now":
            raise ConfigError(option="until", value=self.until_seqno, why='a seqno or "now"')
        for option, value in (("until", self.until_seqno), ("start", self.start_seqno)):
            if isinstance(value, int) and value < 0:
                raise ConfigError(option=option, value=value, why="a seqno is 0 or more")
        check_bounds(self, _BOUNDS)

    def wanted_master(self) -> str:
        """Return the master to run on."""
        return self.master or default_master(self.shard_plan().channels)

    @property
    def bounded(self) -> bool:
        """Whether it is to end by itself."""
        return self.until_seqno is not None or self.limit is not None


_BOUNDS: Bounds = (
    ("sync_interval_s idle_every window_bytes", ABOVE_0, math.inf, "must be above 0"),
    ("max_offline_interval_s", ABOVE_0, math.inf, "must be above 0; leave it out for no bound"),
    ("retry_s resubmit give_up_s", 0, math.inf, "must be 0 or more"),
)
