"""How far work is, told on stderr: a live line on a terminal, elsewhere a line now and then.

Owns when and how often it is told. The hard idea: nobody wants to hear of work that is over at once, nor the same every
few seconds in a log; so it begins after two seconds, and elsewhere than on a terminal each pause is as long as all that
went before.

rich is imported with the first thing that is shown.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, TextIO

from tranlog.clock import Clock, SystemClock

SHOWN_AFTER_S: Final = 2.0
_DRAWN_EVERY_S: Final = 0.1


class Progress:
    """Tells how far work is while its block runs. `what`: what is done before the first `update`.

    `endless`: work that goes on until it is told to end: it is shown at once on a terminal, and nowhere else.
    Threads: any.
    """

    current: ClassVar[Progress | None] = None
    """The one that may be on the screen."""

    def __init__(
        self,
        what: str = "",
        *,
        quiet: bool = False,
        endless: bool = False,
        clock: Clock | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = SystemClock() if clock is None else clock
        self._terminal = self._stream.isatty()
        self._quiet = quiet or (endless and not self._terminal)
        self._delay_s = 0.0 if endless else SHOWN_AFTER_S
        self._what = self._text = what
        self._total: int | None = None
        self._done = 0
        self._bar: Any = None
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Progress:
        self._began = self._since = self._clock.monotonic()
        self._due = self._began + self._delay_s
        if self._terminal and not self._quiet:
            Progress.current = self
            if self._what:
                self._timer = threading.Timer(self._delay_s, self._show)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._quiet = True
            self.hide()
        Progress.current = None

    def hide(self) -> None:
        """Take the line away until the next `update`."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
            self._due = self._began + self._delay_s

    def update(self, what: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        """Tell what is done, and how much of how many; rate and time left are found here."""
        now = self._clock.monotonic()
        with self._lock:
            if self._quiet or (self._terminal and now < self._due and self._bar is not None):
                return
            if what != self._what:
                self._what, self._since = what, now
            if not self._terminal and now < self._due:
                return
            self._text = what if done is None else progress_text(what, done, total, unit, now - self._since)
            self._done, self._total = done or 0, total
            if not self._terminal:
                self._due = now + max(SHOWN_AFTER_S, now - self._began)
                print(self._text, file=self._stream, flush=True)
            elif now >= self._due:
                self._due = now + _DRAWN_EVERY_S
                self._show()

    def _show(self) -> None:
        with self._lock:
            if self._quiet:
                return
            if self._bar is None:
                from rich.console import Console
                from rich.progress import BarColumn, SpinnerColumn, TextColumn
                from rich.progress import Progress as Bar

                self._bar = Bar(
                    SpinnerColumn(),
                    TextColumn("{task.description}", markup=False),
                    *([] if self._total is None else [BarColumn()]),
                    console=Console(file=self._stream, markup=False, emoji=False, highlight=False),
                    transient=True,
                    redirect_stdout=False,
                )
                self._bar.add_task(self._text, total=None)
                with suppress(OSError):
                    self._bar.start()
            self._bar.update(self._bar.task_ids[0], description=self._text, total=self._total, completed=self._done)


def progress_text(what: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """Return how far something is after so many seconds: `verify: 12 of 99 rows, 6 rows/s, 0:00:14 left`."""
    from rich.filesize import decimal

    def amount(number: float) -> str:
        return decimal(int(number)) if unit == "bytes" else f"{number:,.0f} {unit}".rstrip()

    of = amount(done) if total is None else f"{amount(done).removesuffix(unit).rstrip()} of {amount(total)}"
    if not done or seconds <= 0:
        return f"{what}: {of}"
    left = "" if total is None else f", {timedelta(seconds=round(max(0, total - done) * seconds / done))} left"
    return f"{what}: {of}, {amount(done / seconds)}/s{left}"
