"""The input and the result of a channel's task: plain values, which Spark sends pickled to where the task runs."""

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
    """The input of a task; Spark sends it pickled to where the task runs.

    `options` are the run's, with absolute paths; a task retries by itself for its part of `retry_s`, and after that the
    driver pauses the channel. `until`: the last seqno to apply, inclusive; None: no limit. `watch`: a limit to look for
    in the headers after `watch_after`, up to which the driver has looked.
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
    """The result of a task. Spark passes exceptions as text, so `error` is returned here, as an object.

    `failing_s`: how long the target has failed, if that is the error.
    """

    channel: int
    end: TaskEnd
    applied_seqno: Seqno = NO_SEQNO
    error: TranlogError | None = None
    failing_s: float = 0.0
