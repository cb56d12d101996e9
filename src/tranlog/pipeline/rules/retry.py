"""Retries at a target that fails: for how long, with which pauses, and the loop around one call.

Owns which errors are transient. Time and waiting are arguments. The caller decides to whom a failure is reported, and
when it has lasted too long.

Source: docs/operations.md, "A target that cannot be used".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tranlog.errors import TargetUnavailableError, TransientTargetError

if TYPE_CHECKING:
    from tranlog.clock import Clock

Failure: TypeAlias = TransientTargetError | TargetUnavailableError
"""What may pass of itself."""
_Result = TypeVar("_Result")


class Backoff:
    """Failures in a row: since when, and the pauses between the tries, which grow from `first_s` to `most_s`.

    Times are the monotonic clock's. `answered_s`: when the target last answered; from then on it counts as failing.
    """

    __slots__ = ("_first_s", "_most_s", "_pause_s", "answered_s", "since_s")

    def __init__(self, first_s: float, most_s: float, answered_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self.answered_s = answered_s
        self.since_s: float | None = None

    def failed(self) -> float:
        """Note a failure; return how long to pause before the next try."""
        if self.since_s is None:
            self.since_s = self.answered_s
        self._pause_s = min(self._pause_s * 2, self._most_s) or self._first_s
        return self._pause_s

    def lasted(self, now_s: float) -> float:
        """Return for how long it has been failing."""
        return 0.0 if self.since_s is None else now_s - self.since_s

    def hurry(self) -> None:
        """Let the pauses grow anew, though it still fails."""
        self._pause_s = self._first_s

    def over(self) -> None:
        """Note that it works: the next failure is the first of others."""
        self._pause_s, self.since_s = 0.0, None


def retry(
    call: Callable[[], _Result],
    backoff: Backoff,
    *,
    clock: Clock,
    again: Callable[[Failure, float, float], bool],
    wait: Callable[[float], object],
    reconnect: Callable[[], None],
) -> _Result:
    """Call until the target does not fail; return the result.

    `again` gets a failure, for how long the target has been failing, and the pause, and says whether to go on. `wait`
    waits for the pause. Raises the failure after which `again` does not go on, and whatever else the call raises.
    """
    while True:
        try:
            return call()
        except (TransientTargetError, TargetUnavailableError) as exc:
            pause_s = backoff.failed()
            if not again(exc, backoff.lasted(clock.monotonic()), pause_s):
                raise
            wait(pause_s)
            reconnect()
