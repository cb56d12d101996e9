"""A task's claim of its channel's row at the target: the token with which it may move the position, and its meetings.

Owns the connection to the target, and the queries there besides applying. The target's guarded update makes it exactly
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tranlog.errors import (
    ReplacedError,
    TargetPositionError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.applying.task import ChannelTask
from tranlog.pipeline.rules.retry import Failure
from tranlog.target.target import ChannelRow, Meeting, Target

logger = logging.getLogger(__name__)


class Claim:
    """One task's. `token` is the channel's, 0 before the first `take`; `stop_at` is as last met. Threads: one."""

    def __init__(self, task: ChannelTask, open_target: Callable[[], Target]) -> None:
        self._task = task
        self._pipeline = task.options.pipeline
        self._open_target = open_target
        self._target: Target | None = None
        self.token = 0
        self.stop_at: Seqno | None = None

    @property
    def target(self) -> Target:
        """The target, opened by `take`."""
        assert self._target is not None
        return self._target

    def take(self) -> ChannelRow:
        """Claim the channel, again after a failure; return its row. Raises ReplacedError if another task has it."""
        task = self._task
        if self._target is None:
            self._target = self._open_target()
        elif self.token:
            row = next(
                (r for r in self._target.positions.read_channels(self._pipeline) if r.channel == task.channel), None
            )
            if row is None or row.token != self.token:
                raise self._replaced(gone=row is None)  # another attempt of this task has it: leave it there
        row = self._target.positions.claim(
            pipeline=self._pipeline, channel=task.channel, driver_token=task.driver_token
        )
        self.token = row.token
        return row

    def meet(self) -> Meeting:
        """Read the positions of the other channels and the driver's requests. Raises ReplacedError."""
        task = self._task
        meeting = self.target.positions.meet(self._pipeline)
        if meeting.token != task.driver_token or task.channel not in meeting.applied:
            raise self._replaced(gone=True)
        self.stop_at = meeting.stop_at_seqno
        return meeting

    def _replaced(self, *, gone: bool) -> ReplacedError | TargetPositionError:
        """Return why this task may not go on; `gone`: its channel had no row, which only a later plan may remove."""
        task = self._task
        row = self.target.positions.read_pipeline(self._pipeline)
        if row is not None and not (gone and row.token == task.driver_token):
            return ReplacedError(pipeline=self._pipeline, holder=row.holder)
        what = "tranlog_pipeline" if row is None else f"tranlog_channel, for its channel {task.channel}"
        why = f"its row was removed from {what}, while it ran"
        return TargetPositionError(where=self.target.where, pipeline=self._pipeline, why=why)

    def ask_all_to_stop(self) -> None:
        """Tell the other channels to end, since they may wait for this one; the result has the reason."""
        task = self._task
        try:
            if self._target is None:
                self._target = self._open_target()
            else:
                self._target.reconnect()
            self._target.positions.request_stop(
                pipeline=self._pipeline, token=task.driver_token, stop_at_seqno=NO_SEQNO
            )
        except TranlogError as exc:
            logger.warning("could not ask the other channels to stop channel=%d why=%s", task.channel, exc)

    def reconnect(self) -> None:
        """Open another connection, if that is possible."""
        try:
            if self._target is not None:
                self._target.reconnect()
        except (TransientTargetError, TargetUnavailableError):
            pass  # the claim that follows fails in the same way, and counts

    def unavailable(self, exc: Failure) -> TargetUnavailableError:
        """Return the error that says where the target is."""
        if isinstance(exc, TargetUnavailableError):
            return exc
        return TargetUnavailableError(where="?" if self._target is None else self._target.where, why=exc.why)

    def close(self) -> None:
        """Close the connection to the target; closing twice is harmless."""
        if self._target is not None:
            self._target.close()
