"""How a source tries a server again that it has lost: with growing pauses, for as long as its options say.

The hard idea: a server that ends each connection before anything comes of it, by the same error say, is away as well.
So an outage ends when something comes, or when a connection has held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tranlog.clock import Clock
from tranlog.errors import SourceUnavailableError

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
PAUSE_SLICE_S: Final = 0.1
"""A pause looks so often whether the source is to stop."""


def busy(where: str, why: str) -> SourceUnavailableError:
    """Return the error of a source that answers, and cannot be read now for what others do there."""
    remedy = "Start again when what they do has ended"
    return SourceUnavailableError(where=where, why=why, says="cannot be read now", remedy=remedy)


class Reconnecting:
    """One source's tries. Threads: the source's own.

    `lost_at`: since when the server is away, by the monotonic clock; None while it is there. `reconnects` counts.
    """

    def __init__(self, clock: Clock, *, reconnect_s: float) -> None:
        """`reconnect_s`: how long a lost server is tried."""
        self.lost_at: float | None = None
        self.reconnects = 0
        self._clock = clock
        self._reconnect_s = reconnect_s
        self._pause_s = _FIRST_S
        self._outage_at: float | None = None
        self._connected_at = 0.0
        self._lost_again: SourceUnavailableError | None = None  # in the same outage, and not waited for yet

    def lost(self, error: SourceUnavailableError) -> None:
        """Note that the connection was lost now."""
        now = self._clock.monotonic()
        if self._outage_at is None or now - self._connected_at >= self._reconnect_s:
            self._outage_at, self._pause_s = now, _FIRST_S
        else:
            self._lost_again = error
        self.lost_at = self._outage_at

    def connected(self) -> None:
        """Note that the server is there."""
        self.lost_at = None
        self._connected_at = self._clock.monotonic()

    def came(self) -> None:
        """Note that a transaction came."""
        self._outage_at = None

    def again(self, connect: Callable[[], None], wait_s: float, stopping: Callable[[], bool]) -> bool:
        """Call `connect` until it works, `stopping` says so, or `wait_s` is over; return whether it worked.

        Raises SourceUnavailableError once the server has been away for too long, and what else `connect` raises.
        """
        deadline = self._clock.monotonic() + wait_s
        while not stopping():
            try:
                again, self._lost_again = self._lost_again, None
                if again is not None:
                    raise again
                connect()
            except SourceUnavailableError:
                now = self._clock.monotonic()
                if self.lost_at is None:
                    self.lost_at = now
                if now - self.lost_at >= self._reconnect_s:
                    raise
                self._pause(min(self._pause_s, max(0.0, deadline - now)), stopping)
                self._pause_s = min(self._pause_s * 2, _LONGEST_S)
                if self._clock.monotonic() >= deadline:
                    return False
            else:
                self.reconnects += 1
                return True
        return False

    def _pause(self, seconds: float, stopping: Callable[[], bool]) -> None:
        end = self._clock.monotonic() + seconds
        while not stopping() and (left := end - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, PAUSE_SLICE_S))
