"""Time, as an argument: the one place that reads the machine's clocks.

Owns the seam through which time reaches everything that acts; what decides gets plain numbers.
"""

from __future__ import annotations

import math
import time
from typing import Final, Protocol

from mypy_extensions import mypyc_attr


class Clock(Protocol):
    """Wall time for stamps, a monotonic time for waiting, and a way to wait."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970 UTC; it may jump, back too."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SECONDS_MAX: Final = 1e9
"""The longest time that a command takes, some thirty years; infinity is none that a socket or JSON takes."""


def check_seconds(name: str, seconds: object, *, most: float = math.inf) -> None:
    """Raise TypeError or ValueError, by the argument's name, for what is no time to wait, or one above `most`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= most:
        told = "0 seconds or more" if most == math.inf else f"0 to {most:.0f} seconds"
        raise ValueError(f"{name} is {told}, not {seconds}")


SYSTEM_CLOCK: Final = SystemClock()
"""The clock of whoever names no other."""
