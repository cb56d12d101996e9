"""A clock that only moves when told: time as a test wants it.

Owns nothing but two numbers. The hard idea: sleeping moves the clock instead of taking time, so that what waits
and polls runs through at once and the same way each time.
"""

from __future__ import annotations

import threading


class ManualClock:
    """A `tranlog.clock.Clock` that stands still between `advance`, `sleep` and `set_ms`. Threads: any."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = float(now_ms)
        self._monotonic = 0.0
        self.slept: list[float] = []
        """Every pause that was asked for, in seconds."""

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds."""
        return int(self._now_ms)

    def monotonic(self) -> float:
        """Return the seconds that `advance` and `sleep` have passed."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Move on by so many seconds, at once."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        assert seconds >= 0, "monotonic time does not go back"
        with self._lock:
            self._monotonic += seconds
            self._now_ms += seconds * 1000

    def set_ms(self, now_ms: int) -> None:
        """Set the wall clock, back too; the monotonic one stays."""
        with self._lock:
            self._now_ms = float(now_ms)
