"""The Spark of a pipeline's run: started with a slot for each channel, and waited for until it has them.

Owns what a run asks of Spark at its start. Starting a quiet Spark is `session`'s, what a cluster is told `cluster`'s.

Source: design/pipeline.md, "Apply", "Facts about PySpark 4.3, tried".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tranlog.errors import ConfigError
from tranlog.pipeline.spark.cluster import MasterKind, count_slots, master_kind, too_few_slots
from tranlog.pipeline.spark.session import build_context, check_slots, default_master, kept_master, lives

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tranlog.pipeline.options import ApplyOptions

logger = logging.getLogger(__name__)

_DAEMON: Final = "tranlog.pipeline.spark.daemon"
_TICK_S: Final = 0.05


class LostSessionError(Exception):
    """Spark's session on a cluster has nothing left to run tasks on, and another one may have."""


class SlotWatch:
    """Watches how many tasks a cluster can run at a time: it may lose executors that nobody replaces."""

    def __init__(self, *, wait_s: float) -> None:
        self.slots = 0
        self._wait_s = wait_s
        self._short = False
        self._none_since: float | None = None

    def look(self, context: SparkContext, *, channels: int) -> str:
        """Count the slots; return a note where they have become too few, or are enough again, else empty.

        Raises LostSessionError where there has been none for as long as a start may wait for them.
        """
        self.slots = slots = count_slots(context)
        if master_kind(context.master or "") is MasterKind.LOCAL:
            return ""
        now = time.monotonic()
        self._none_since = None if slots else self._none_since or now
        if self._none_since is not None and now - self._none_since >= self._wait_s:
            raise LostSessionError
        if (slots < channels) is self._short or not lives(context):
            return ""
        self._short = slots < channels
        told = "executors were lost, and some channels wait for others" if self._short else "all channels can run"
        note = f"{slots} slots for {channels} channels: {told}"
        logger.warning("%s", note)
        return note


def start_engine(options: ApplyOptions, *, wanted: int, channels: int, keep_spark: bool) -> SparkContext:
    """Start Spark for so many channels, or go on with the one that an earlier run has left (`keep_spark`).

    `wanted`: how many of them the plan has that is wanted; the others may first have to drain. Raises ConfigError,
    EngineError.
    """
    master = options.master or default_master(channels)
    _check_drain(master, wanted, channels)
    if keep_spark:
        master = kept_master(options.master, channels)
    settings = {"spark.python.daemon.module": _DAEMON}
    if master_kind(master) is MasterKind.STANDALONE:
        settings["spark.cores.max"] = str(channels)  # unset, it would take all that there are
    return build_context(master, f"tranlog apply {options.pipeline}", settings, options.engine)


def wait_for_slots(
    context: SparkContext, options: ApplyOptions, *, wanted: int, channels: int, going_on: Callable[[], bool]
) -> None:
    """Wait until Spark has a slot for each channel, while `going_on`. Raises EngineError where it does not get them."""
    master = context.master or ""
    _check_drain(master, wanted, channels)
    deadline = time.monotonic() + options.engine.slots_wait_s
    while (slots := count_slots(context)) < channels and going_on():
        if time.monotonic() > deadline or not lives(context):
            raise too_few_slots(master, slots=slots, channels=channels)
        time.sleep(_TICK_S)


def _check_drain(master: str, wanted: int, channels: int) -> None:
    """Raise ConfigError where a local master has too few slots for the channels, those of the plan before included."""
    try:
        check_slots(master, channels)
    except ConfigError as exc:
        if channels == wanted:
            raise
        why = f"the pipeline had {channels} channels, which first have to come to one seqno: {exc.why}; once is enough"
        raise ConfigError(option=exc.option, value=exc.value, why=why) from exc
