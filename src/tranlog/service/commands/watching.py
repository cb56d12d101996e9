"""The readings of `tranlog top`: printed, or shown on a terminal.

Owns when the pipeline is asked, and what keys do; what readings look like is `screen`'s, where they appear
`terminal`'s. The hard idea: a pipeline that hangs must not hang whoever looks at it, so it is asked in a thread of its
own, and keys are answered meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import sys
import threading
import time
from typing import Final

import msgspec

from tranlog.errors import ControlError
from tranlog.service.commands.orders import Ask
from tranlog.service.frame.command import print_json
from tranlog.service.frame.exits import Told
from tranlog.service.show.overview import Overview, report
from tranlog.service.show.screen import Shown, plain, screen, stepped
from tranlog.service.show.terminal import Key, Notice, Terminal, open_terminal

_ASK_S: Final = 10.0
"""How long a reading may take."""
_TICK_S: Final = 1.0
"""How often a screen is looked at without any news: it says for how long the pipeline has been away."""
_APART_S: Final = 0.15
"""Readings that are nearer to each other tell nothing of rates."""


def read(asks: Ask) -> Overview:
    """Ask for an overview. Raises ControlError where nobody answers, Told for an error of the pipeline's."""
    answer = asks("/overview", timeout_s=_ASK_S)
    try:
        return msgspec.convert(answer, Overview)
    except msgspec.ValidationError as exc:
        remedy = "Use the release that the pipeline runs with"
        raise ControlError(where="the pipeline", why=f"it answers in another form: {exc}", remedy=remedy) from exc


def print_readings(asks: Ask, *, count: int | None, interval_s: float, as_json: bool) -> None:
    """Print readings, each with what happened in its interval. Raises why the last one failed."""
    before = read(asks)
    failure: ControlError | Told | None = None
    printed, answered_at = 0, time.monotonic()
    while printed != count:
        time.sleep(interval_s)
        shown = Shown(now=before)
        try:
            now = read(asks)
        except (ControlError, Told) as exc:
            failure = exc
            if printed + 1 == count:
                break
            if as_json:
                print_json({"away": str(exc)})
            else:
                shown = dataclasses.replace(shown, away=str(exc), away_s=time.monotonic() - answered_at)
        else:
            shown, before, failure, answered_at = Shown(now=now, before=before), now, None, time.monotonic()
            if as_json:
                print_json(report(shown.before, now))
        if not as_json:
            print("\n".join([*([""] if printed else []), *plain(shown)]))
        sys.stdout.flush()
        printed += 1
    if failure is not None:
        raise failure


class _Readings:
    """Takes a reading every interval, in a thread of its own; a byte in `ready` says that there is one."""

    def __init__(self, asks: Ask, interval_s: float) -> None:
        self._asks = asks
        self._interval_s: float | None = interval_s
        self._found: queue.SimpleQueue[Overview | Exception] = queue.SimpleQueue()
        self._poke = threading.Event()
        self._ended = threading.Event()
        self.ready, self._tell = os.pipe()
        os.set_blocking(self.ready, False)
        self._thread = threading.Thread(target=self._run, name="readings", daemon=True)

    def __enter__(self) -> _Readings:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        # Not joined: it may be waiting for a pipeline that hangs, and the pipe is its own until the process ends.
        self._ended.set()
        self._poke.set()

    def every(self, interval_s: float | None) -> None:
        """Read so often from now on, the next one at once; None: not at all."""
        self._interval_s = interval_s
        self._poke.set()

    def take(self) -> list[Overview | Exception]:
        """Return what has come: overviews, and why there was none."""
        try:
            os.read(self.ready, 1024)
        except BlockingIOError:
            pass
        found = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def _run(self) -> None:
        while not self._ended.is_set():
            self._poke.wait(self._interval_s)
            self._poke.clear()
            if self._ended.is_set() or self._interval_s is None:
                continue
            try:
                self._found.put(read(self._asks))
            except Exception as exc:  # shown, or raised, where the screen is
                self._found.put(exc)
            os.write(self._tell, b".")


def watch(asks: Ask, *, count: int | None, interval_s: float) -> None:
    """Show readings on the terminal until a key, a signal, or the number of screens ends it. Raises as `read`."""
    terminal = open_terminal(os.environ)
    first = read(asks)  # where nobody answers, there is nothing to take a terminal for
    with _Readings(asks, interval_s) as readings, terminal:
        _watch(terminal, readings, Shown(now=first, interval_s=interval_s), count)


def _watch(terminal: Terminal, readings: _Readings, shown: Shown, count: int | None) -> None:
    answered_at, taken = time.monotonic(), 0
    while True:
        if shown.away is not None:
            shown = dataclasses.replace(shown, away_s=time.monotonic() - answered_at)
        terminal.draw(screen(shown, terminal.size))
        if taken == count:
            return
        for event in terminal.wait(readings.ready, _TICK_S):
            match event:
                case Notice.END | Key(letter="q" | "Q"):
                    return
                case Notice.READY:
                    for found in readings.take():
                        taken += 1
                        if isinstance(found, Overview):
                            shown, answered_at = _with(shown, found), time.monotonic()
                        elif isinstance(found, ControlError | Told):
                            shown = dataclasses.replace(shown, away=str(found))
                        else:
                            raise found
                case Key(letter=letter):
                    shown = _pressed(shown, letter, readings)
                case Notice.REDRAW:
                    pass


def _with(shown: Shown, found: Overview) -> Shown:
    near = found.process == shown.now.process and found.monotonic_s - shown.now.monotonic_s < _APART_S
    return dataclasses.replace(shown, now=found, before=shown.before if near else shown.now, away=None)


def _pressed(shown: Shown, letter: str, readings: _Readings) -> Shown:
    """Do what a key asks for; others do nothing."""
    match letter:
        case "p" | "P" | " ":
            readings.every(shown.interval_s if shown.paused else None)
            return dataclasses.replace(shown, paused=not shown.paused)
        case "s" | "S":
            return dataclasses.replace(shown, order=shown.order.following())
        case "+" | "=" | "-":
            interval_s = stepped(shown.interval_s, longer=letter != "-")
            if not shown.paused:
                readings.every(interval_s)
            return dataclasses.replace(shown, interval_s=interval_s)
        case _:
            return shown
