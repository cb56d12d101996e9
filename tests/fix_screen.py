"""A command in a real pseudo-terminal, and what stands on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyte

WAIT_S = 90.0


class OnScreen:
    """A process on a terminal of its own. `sent` is all that it has written there."""

    def __init__(self, words: list[str], *, cwd: Path, environ: Mapping[str, str], columns: int, rows: int) -> None:
        self.master, self.slave = pty.openpty()
        self.sent = bytearray()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._size(columns, rows)
        self.modes = termios.tcgetattr(self.slave)
        slave = self.slave
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=dict(environ),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size; the kernel tells the process."""
        self._size(columns, rows)
        self.screen.resize(lines=rows, columns=columns)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, timeout_s: float = 0.05) -> bool:
        """Take what has come; whether anything has."""
        ready, _, _ = select.select([self.master], [], [], timeout_s)
        if not ready:
            return False
        part = os.read(self.master, 65536)
        self.sent += part
        self._stream.feed(part)
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, ready: Callable[[OnScreen], Any]) -> None:
        """Wait until the screen is as it should be."""
        deadline = time.monotonic() + WAIT_S
        while not ready(self):
            if not self.read():
                assert self.process.poll() is None, f"it ended: {self.sent[-2000:]!r}"
            assert time.monotonic() < deadline, self.text

    def until_ended(self) -> int:
        """Wait for its end, reading on, and return its exit code."""
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < deadline, self.text
        while self.read():
            pass
        return self.process.wait()

    def is_given_back(self) -> bool:
        """Whether the terminal is as it was: its modes, the cursor, the screen of before."""
        tail = self.sent[self.sent.rfind(b"\x1b[?1049l") - 100 :]
        return (
            termios.tcgetattr(self.slave) == self.modes
            and self.sent.count(b"\x1b[?1049h") == self.sent.count(b"\x1b[?1049l") > 0
            and tail.rfind(b"\x1b[?25h") > tail.rfind(b"\x1b[?25l")
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def on_screen(
    *arguments: str, cwd: Path, columns: int = 120, rows: int = 30, shell: str | None = None, **environ: str | None
) -> Iterator[OnScreen]:
    """Run `tranlog` with these arguments on a terminal; `environ` sets variables, or with None takes them away.

    `shell`: a script for bash in which "$@" is the command.
    """
    given: dict[str, str | None] = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": source(), **environ}
    given.setdefault("NO_COLOR", None)
    command = [sys.executable, "-m", "tranlog", *arguments]
    opened = OnScreen(
        command if shell is None else ["bash", "-c", shell, "--", *command],
        cwd=cwd,
        environ={name: value for name, value in given.items() if value is not None},
        columns=columns,
        rows=rows,
    )
    try:
        yield opened
    finally:
        opened.close()


def source() -> str:
    """Return where the package comes from that this process runs."""
    import tranlog

    return str(Path(tranlog.__file__).parents[1])
