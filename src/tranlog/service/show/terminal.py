"""A terminal that shows screens: taken over, drawn on, and given back as it was.

Owns the terminal's modes, its capabilities, keys and signals while a screen is shown. What is shown is decided in
`screen`. The hard idea: it must be given back however this ends, and a signal's handler may do next to nothing; so
handlers do nothing at all, the numbers of signals come through a pipe like keys, and leaving is one place, the end of
a `with`.

Source: terminfo(5); termios(3).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

from tranlog.errors import ConfigError
from tranlog.service.show.screen import Line, Size, Tone

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS: Final = (*_ENDING, signal.SIGWINCH, signal.SIGTSTP)
_PADDING: Final = re.compile(rb"\$<[0-9.]+[*/]*>")
"""Delays that terminals of paper and glass needed."""
_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""What arrow keys and their kin send: nothing that is asked for here."""
_COLOURS: Final = {Tone.GOOD: 2, Tone.WARNING: 3, Tone.BAD: 1}
_ATTRIBUTES: Final = {Tone.BOLD: "bold", Tone.DIM: "dim", Tone.TITLE: "rev", Tone.BAD: "bold", Tone.WARNING: "bold"}
_FALLBACK: Final = Size(columns=80, rows=24)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abilities:
    """What the terminal understands, as bytes to send; empty where it does not know the like."""

    enter: bytes
    leave: bytes
    place: Callable[[int], bytes]
    clear_line: bytes
    clear: bytes
    reset: bytes
    tones: Mapping[Tone, bytes]


def open_terminal(environ: Mapping[str, str]) -> Terminal:
    """Return the terminal that stdout is. Raises ConfigError where it is none, or one that cannot place text."""
    try:
        fd = sys.stdout.fileno()
        is_terminal = os.isatty(fd)
    except (OSError, ValueError):
        is_terminal = False
    if not is_terminal:
        raise ConfigError(option="output", value=None, why=f"is no terminal; {_REMEDY}")
    return Terminal(fd, _abilities(fd, environ))


def _abilities(fd: int, environ: Mapping[str, str]) -> _Abilities:
    import curses  # which some builds of Python lack; nothing else here needs it

    name = environ.get("TERM", "")

    def string(capability: str) -> bytes:
        return _PADDING.sub(b"", curses.tigetstr(capability) or b"")

    try:
        curses.setupterm(name or "dumb", fd)
        place = curses.tigetstr("cup")
    except curses.error as exc:
        raise ConfigError(option="TERM", value=name, why=f"is not known here ({exc}); {_REMEDY}") from exc
    if not place or not curses.tigetstr("clear"):
        why = f"names no terminal that can place text; set it to what yours is, or {_REMEDY}"
        raise ConfigError(option="TERM", value=name, why=why)
    coloured = not environ.get("NO_COLOR") and curses.tigetnum("colors") >= 8
    tones = {}
    for tone in Tone:
        sent = string(_ATTRIBUTES[tone]) if tone in _ATTRIBUTES else b""
        if coloured and tone in _COLOURS:
            sent += _PADDING.sub(b"", curses.tparm(curses.tigetstr("setaf") or b"", _COLOURS[tone]))
        tones[tone] = sent
    moves = place
    return _Abilities(
        # Beside the screen of its own: no cursor, and no line that goes on in the next one.
        enter=string("smcup") + string("civis") + string("rmam"),
        leave=b"".join(string(one) for one in ("sgr0", "smam", "cnorm", "rmcup" if string("rmcup") else "clear")),
        place=lambda row: _PADDING.sub(b"", curses.tparm(moves, row, 0)),
        clear_line=string("el"),
        clear=string("clear"),
        reset=string("sgr0"),
        tones=tones,
    )


class Terminal:
    """A terminal while a `with` block lasts. Threads: the main one only, as Python's signals demand."""

    def __init__(self, fd: int, abilities: _Abilities) -> None:
        """For `open_terminal` only."""
        self._fd = fd
        self._able = abilities
        self._keys: int | None = None
        self._modes: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake_before = -1
        self._pipe: tuple[int, int] | None = None
        self._drawn: list[Line] = []
        self._drawn_size: Size | None = None
        self._encoding = getattr(sys.stdout, "encoding", None) or "ascii"

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
            modes = [*self._modes[:3], self._modes[3] & ~(termios.ICANON | termios.ECHO), *self._modes[4:]]
            modes[6] = list(modes[6])
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._keys, termios.TCSADRAIN, modes)
        self._drawn_size = None
        self._send(self._able.enter)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone needs nothing back
            self._send(self._able.leave)
        if self._keys is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)
            self._modes = None

    @property
    def size(self) -> Size:
        """How large it is now; of one that does not tell, what all had once."""
        try:
            found = os.get_terminal_size(self._fd)
        except OSError:
            return _FALLBACK
        return Size(columns=found.columns or _FALLBACK.columns, rows=found.lines or _FALLBACK.rows)

    def draw(self, lines: Sequence[Line], size: Size) -> None:
        """Show lines that were made for this size; those that stand there already are not sent again."""
        able = self._able
        sent = bytearray()
        if size != self._drawn_size:
            sent += able.clear
            self._drawn = []
        for row, line in enumerate(lines):
            if row < len(self._drawn) and self._drawn[row] == line:
                continue
            sent += able.place(row)
            for span in line:
                tone = able.tones[span.tone]
                text = span.text.encode(self._encoding, "replace")
                sent += tone + text + able.reset if tone else text
            if sum(len(span.text) for span in line) < size.columns:
                sent += able.clear_line
        self._drawn, self._drawn_size = list(lines), size
        self._send(bytes(sent))

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

    def _send(self, sent: bytes) -> None:
        view = memoryview(sent)
        while view:
            view = view[os.write(self._fd, view) :]


def _nothing(number: int, frame: FrameType | None) -> None:
    """Leave a signal to the pipe that its number comes through."""
