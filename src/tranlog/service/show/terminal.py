"""A terminal that shows screens: taken over, drawn on, and given back as it was.

Owns the terminal's modes, keys and signals while a screen is shown; what is sent to it is rich's. What is shown is
decided in `screen`. The hard idea: it must be given back however this ends, and a signal's handler may do next to
nothing; so handlers do nothing at all, the numbers of signals come through a pipe like keys, and leaving is one place,
the end of a `with`.

Source: termios(3).
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from tranlog.errors import ConfigError

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS: Final = (*_ENDING, signal.SIGWINCH, signal.SIGTSTP)
_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""What arrow keys and their kin send: nothing that is asked for here."""
_REMEDY: Final = "use --once, --count N or --json, which print to anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A letter was typed."""

    letter: str


class Notice(enum.Enum):
    """What happens beside keys."""

    END = "end"
    """Ctrl-C, SIGTERM, or the terminal is gone."""
    REDRAW = "redraw"
    """Another size, or back from the background."""
    READY = "ready"
    """Something can be read from the file that was watched too."""


Event: TypeAlias = Key | Notice


def open_terminal(environ: Mapping[str, str]) -> Terminal:
    """Return the terminal that stdout is. Raises ConfigError where it is none, or one that cannot place text."""
    if not sys.stdout.isatty():
        raise ConfigError(option="output", value=None, why=f"is no terminal; {_REMEDY}")
    name = environ.get("TERM", "")
    if name in ("", "dumb", "unknown"):
        why = f"names no terminal that can place text; set it to what yours is, or {_REMEDY}"
        raise ConfigError(option="TERM", value=name, why=why)
    return Terminal(Console(file=sys.stdout, markup=False, emoji=False, highlight=False))


class Terminal:
    """A terminal while a `with` block lasts. Threads: the main one only, as Python's signals demand."""

    def __init__(self, console: Console) -> None:
        """For `open_terminal` only."""
        self._console = console
        self._live: Live | None = None
        self._keys: int | None = None
        self._modes: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake_before = -1
        self._pipe: tuple[int, int] | None = None

    def __enter__(self) -> Terminal:
        sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(sys.stdin.fileno()):
                self._keys = sys.stdin.fileno()
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._pipe = read, write
        try:
            for one in _SIGNALS:
                self._handlers[one] = signal.signal(one, _nothing)
            self._wake_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._give_back()
        finally:
            signal.set_wakeup_fd(self._wake_before)
            for one, handler in self._handlers.items():
                signal.signal(one, handler)
            self._handlers.clear()
            if self._pipe is not None:
                for end in self._pipe:
                    os.close(end)
                self._pipe = None

    def _take(self) -> None:
        if self._keys is not None:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def _give_back(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # a terminal that is gone needs nothing back
                self._live.stop()
            self._live = None
        if self._keys is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)
            self._modes = None

    @property
    def size(self) -> ConsoleDimensions:
        """How large it is now, whatever the environment's COLUMNS say; of one that does not tell, what all had once."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._console.file.fileno())
            if all(found):
                self._console.size = ConsoleDimensions(*found)
        return self._console.size

    def draw(self, lines: Sequence[Text]) -> None:
        """Show lines that were made for its size."""
        assert self._live is not None
        for line in lines:
            line.no_wrap = True  # it may have another size by now
        self._live.update(Group(*lines), refresh=True)

    def wait(self, watched: int, timeout_s: float) -> Iterator[Event]:
        """Yield what happens until `timeout_s` from now, or sooner; READY when `watched` can be read."""
        assert self._pipe is not None
        files = [self._pipe[0], watched, *([] if self._keys is None else [self._keys])]
        ready, _, _ = select.select(files, [], [], timeout_s)
        if self._pipe[0] in ready:
            yield from self._signalled()
        if self._keys in ready:
            yield from self._typed()
        if watched in ready:
            yield Notice.READY

    def _signalled(self) -> Iterator[Event]:
        assert self._pipe is not None
        for number in set(os.read(self._pipe[0], 1024)):
            if number in _ENDING:
                yield Notice.END
            elif number == signal.SIGTSTP:
                self._rest()
                yield Notice.REDRAW
            else:
                yield Notice.REDRAW

    def _rest(self) -> None:
        """Go to the background, as Ctrl-Z asks, with the terminal as it was; come back with a screen."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _nothing)
        self._take()

    def _typed(self) -> Iterator[Event]:
        assert self._keys is not None
        try:
            typed = os.read(self._keys, 1024)
        except OSError:
            typed = b""
        if not typed:
            yield Notice.END
        for letter in _ESCAPES.sub(b"", typed).decode("ascii", "replace"):
            yield Key(letter=letter)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Leave a signal to the pipe that its number comes through."""
