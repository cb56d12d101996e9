"""What a channel's task is told, and what it hands back: plain values, which travel pickled to where Spark runs it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tranlog.errors import TranlogError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.applying.log_mark import LogMark
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.limits import Watched

if TYPE_CHECKING:
    from tranlog.pipeline.options import ApplyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTask:
    """All that a task needs to know; it travels pickled to wherever Spark runs it.

    `options` are the run's, with paths that hold in any folder; of `retry_s` a task takes what it may try by itself,
    then it is the driver who lets the channel pause. `until`: the last seqno to apply, inclusive; None: run on.
    `watch`: a limit to be told from the headers after `watch_after`, up to which the driver has looked.
    """

    options: ApplyOptions
    driver_token: int
    channel: int
    plan: ShardPlan
    until: Seqno | None = None
    watch: Watched | None = None
    watch_after: Seqno = NO_SEQNO
    log_mark: LogMark | None = None
    """On a cluster what the driver's log begins with: a folder of the same name elsewhere may hold another log."""


class TaskEnd(enum.StrEnum):
    """Why a task ended."""

    LIMIT = "limit"
    STOPPED = "stopped"
    REPLACED = "replaced"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task hands back. Spark carries exceptions as text, so `error` travels here, as the object it is.

    `failing_s`: how long the target had not let it go on, where that is the error.
    """

    channel: int
    end: TaskEnd
    applied_seqno: Seqno = NO_SEQNO
    error: TranlogError | None = None
    failing_s: float = 0.0
