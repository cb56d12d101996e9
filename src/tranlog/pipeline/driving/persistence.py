"""A driver's calls to the target, with retries, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tranlog.clock import Clock
from tranlog.errors import TargetUnavailableError, TransientTargetError
from tranlog.ids import NO_SEQNO
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.retry import Backoff, Failure, retry
from tranlog.pipeline.rules.troubles import DRIVER, Troubles
from tranlog.target.target import Target

TRY_S: Final = 3.0
"""How long a task, or the driver, tries to use a target before that is a trouble."""
_PAUSE_FIRST_S = 0.05
_PAUSE_MOST_S = 1.0
_Result = TypeVar("_Result")


class Persistence:
    """One run's calls. Threads: one.

    `began`: all channels of a plan have been claimed in this run; until then a start that gets nowhere is given up.
    """

    def __init__(
        self,
        options: ApplyOptions,
        target: Target,
        *,
        clock: Clock,
        stop: threading.Event,
        tell: Callable[[], object],
    ) -> None:
        """`tell` is called when a trouble begins or goes on."""
        self.began = False
        self.troubles = Troubles()
        self._options = options
        self._target = target
        self._clock = clock
        self._stop = stop
        self._tell = tell
        self._unreachable = ""
        """Why the last attempt to connect failed; empty where it did not."""

    def patience(self) -> float | None:
        """Return how long a trouble with the target may last; None: for ever."""
        return self._options.retry_s if self._options.bounded or not self.began else self._options.give_up_s

    def reconnect(self) -> None:
        """Open another connection to the target, where that is possible."""
        self._unreachable = ""
        try:
            self._target.reconnect()
        except (TransientTargetError, TargetUnavailableError) as exc:
            self._unreachable = exc.why  # the next call fails, and says only that there is no connection

    def persist(self, call: Callable[[], _Result]) -> _Result:
        """Call the target, and again where it failed, as long as the channels would, until a stop at most."""
        try:
            result = retry(
                call,
                Backoff(_PAUSE_FIRST_S, _PAUSE_MOST_S, self._clock.monotonic()),
                clock=self._clock,
                again=self._again,
                wait=self._stop.wait if self.began else self._clock.sleep,
                reconnect=self.reconnect,
            )
        except TransientTargetError as exc:
            raise TargetUnavailableError(where=self._target.where, why=self._unreachable or exc.why) from exc
        self.troubles.over(DRIVER)
        return result

    def _again(self, exc: Failure, failing_s: float, pause_s: float) -> bool:
        patience = self.patience()
        over = self._stop.is_set() if patience is None else failing_s > patience
        if over or (not self.began and isinstance(exc, TargetUnavailableError)):
            return False
        if failing_s > TRY_S:
            self.cannot(exc)
        return True

    def cannot(self, exc: Failure) -> None:
        """Tell that the driver cannot use the target."""
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        why = self._unreachable or exc.why
        self.troubles.failed(DRIVER, why, applied=NO_SEQNO, failing_s=0.0, now_s=now_s, now_ms=now_ms)
        self.troubles.trying(DRIVER, ())
        self._tell()
