"""The Spark of a pipeline's run: started with a slot for each channel, watched, and stopped.

Owns the use of Spark by a run besides its jobs. `session` starts Spark, `cluster` has a cluster's settings.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tranlog.errors import ConfigError, EngineError
from tranlog.pipeline.spark.cluster import MasterKind, count_slots, master_kind, too_few_slots
from tranlog.pipeline.spark.session import check_slots, default_master, kept_master, lives, run_context, stop_context

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tranlog.pipeline.options import ApplyOptions

logger = logging.getLogger(__name__)

_DAEMON: Final = "tranlog.pipeline.spark.daemon"
_TICK_S: Final = 0.05
_lock: Final = threading.Lock()
_running: Final[dict[Engine, int]] = {}
"""The runs in this process, with the channels of each."""


class LostSessionError(Exception):
    """Spark's session on a cluster has nothing left to run tasks on, and another one may have."""


class Engine:
    """One run's Spark: `given` to it, or the program's own, and left running; or started by it. Threads: one.

    `keep`: what is started is left running too, and the next run goes on with it, or with another in its place, where
    it needs more slots.
    """

    def __init__(self, options: ApplyOptions, given: SparkContext | SparkSession | None, *, keep: bool) -> None:
        self._options = options
        self._given = given is not None
        self._keep = keep
        self._short = False
        self._none_since: float | None = None
        either: Any = given
        self.context: SparkContext | None = getattr(either, "sparkContext", either)
        """None: not started yet."""
        self.slots = 0
        """How many tasks it can run at a time, as last counted."""

    def start(self, *, wanted: int, channels: int, going_on: Callable[[], bool]) -> SparkContext:
        """Start it where it does not run, and wait until it has a slot for each channel, while `going_on`.

        `wanted`: how many of the channels the plan has that is wanted; the others may first have to drain. Raises
        ConfigError, EngineError where it does not get the slots.
        """
        if self.context is None:
            self.context = self._build(wanted, channels)
        context = self.context
        master = context.master or ""
        self._take_slots(context, channels)
        _check_drain(master, wanted, channels)
        deadline = time.monotonic() + self._options.engine.slots_wait_s
        while (slots := count_slots(context)) < channels and going_on():
            if time.monotonic() > deadline or not lives(context):
                raise too_few_slots(master, slots=slots, channels=channels)
            time.sleep(_TICK_S)
        return context

    def _take_slots(self, context: SparkContext, channels: int) -> None:
        """Raise EngineError where other pipelines in this process leave too few: this one would wait for their end.

        Of two runs of one pipeline the later one is refused, or ends the earlier one; that is not for Spark to say.
        """
        with _lock:
            others = [one for one in _running if one.context is context and not one._is_of(self._options)]
            taken = sum(_running[one] for one in others)
            if taken and (slots := count_slots(context)) < taken + channels:
                why = f"other pipelines of this process have {taken} of Spark's {slots} slots, this needs {channels}"
                remedy = "Give both a Spark with slots for all channels (`spark=`), or run each in a process of its own"
                raise EngineError(why=why, remedy=remedy)
            _running[self] = channels

    def _is_of(self, options: ApplyOptions) -> bool:
        """Whether this is a run of the same pipeline."""
        return (self._options.pipeline, self._options.target) == (options.pipeline, options.target)

    def _build(self, wanted: int, channels: int) -> SparkContext:
        options = self._options
        master = options.master or default_master(channels)
        _check_drain(master, wanted, channels)
        if self._keep:
            master = kept_master(options.master, channels)
        settings = {"spark.python.daemon.module": _DAEMON}
        if master_kind(master) is MasterKind.STANDALONE:
            settings["spark.cores.max"] = str(channels)  # unset, it would take all that there are
        context, own = run_context(master, f"tranlog apply {options.pipeline}", settings, options.engine)
        self._given = not own
        return context

    def lives(self) -> bool:
        """Whether it can still run a job. Raises LostSessionError where another session may do."""
        assert self.context is not None
        alive = lives(self.context)
        if not alive and not self._given and master_kind(self.context.master or "") is not MasterKind.LOCAL:
            raise LostSessionError  # a cluster's master may have been gone
        return alive

    def look(self, *, channels: int) -> str:
        """Count the slots; return a note where they have become too few, or are enough again, else empty.

        A cluster may lose executors that nobody replaces. Raises LostSessionError where there has been no slot for as
        long as a start may wait for them.
        """
        assert self.context is not None
        self.slots = slots = count_slots(self.context)
        if master_kind(self.context.master or "") is MasterKind.LOCAL:
            return ""
        now = time.monotonic()
        self._none_since = None if slots else self._none_since or now
        if self._none_since is not None and now - self._none_since >= self._options.engine.slots_wait_s:
            raise LostSessionError
        if (slots < channels) is self._short or not lives(self.context):
            return ""
        self._short = slots < channels
        told = "executors were lost, and some channels wait for others" if self._short else "all channels can run"
        note = f"{slots} slots for {channels} channels: {told}"
        logger.warning("%s", note)
        return note

    def leave(self, *, channels: int) -> None:
        """Stop a cluster's session that has no slots any more. Raises EngineError where the run may have no other."""
        if self._given:
            master = "" if self.context is None else self.context.master or ""
            raise too_few_slots(master, slots=0, channels=channels)
        stop_context()
        self.context, self.slots = None, 0
        self._short, self._none_since = False, None

    def close(self) -> None:
        """Stop what this run has started, unless that is to be kept."""
        with _lock:
            _running.pop(self, None)
            shared = any(one.context is self.context for one in _running)  # the last one stops it
        if not self._given and not self._keep and not shared and self.context is not None:
            try:
                self.context.stop()
            except Exception:  # its JVM is gone; there is nothing left to stop
                logger.debug("could not stop Spark", exc_info=True)


def _check_drain(master: str, wanted: int, channels: int) -> None:
    """Raise ConfigError where a local master has too few slots for the channels, those of the plan before included."""
    try:
        check_slots(master, channels)
    except ConfigError as exc:
        if channels == wanted:
            raise
        why = f"the pipeline had {channels} channels, which first have to come to one seqno: {exc.why}; once is enough"
        raise ConfigError(option=exc.option, value=exc.value, why=why) from exc
