"""How far work is. docs/control.md, "What a process logs"."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from fix_screen import OnScreen, source
from tranlog.service.frame.progress import Progress, progress_text

SLOW = """
import os, time
from tranlog.service.frame.command import confirm
from tranlog.service.frame.progress import Progress


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


with Progress("looks at [it]") as progress:
    until("1")
    for number in range(1, 4):
        time.sleep(0.5)
        progress.update("verify: rows", number, 3, "rows")
    until("2")
    confirm("Go on?")
    print("a result", flush=True)
    progress.update("verify: rows", 3, 3, "rows")
    until("3")
print("the end")
"""


class TickingClock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        self.at += 1
        return self.at

    def now_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("verify", 12, 100, "rows", 2.0), "verify: 12 of 100 rows, 6 rows/s, 0:00:15 left"),
        (("verify", 12_000, None, "rows", 2.0), "verify: 12,000 rows, 6,000 rows/s"),
        (("checked", 5 * 10**6, 10**7, "bytes", 10.0), "checked: 5.0 MB of 10.0 MB, 500.0 kB/s, 0:00:10 left"),
        (("checked", 0, 5, "rows", 10.0), "checked: 0 of 5 rows"),
        (("checked", 7, 5, "rows", 7.0), "checked: 7 of 5 rows, 1 rows/s, 0:00:00 left"),
        (("checked", 1, 5, "rows", 0.0), "checked: 1 of 5 rows"),
    ],
)
def test_rate_and_time_left(arguments: tuple[str, int, int | None, str, float], shown: str) -> None:
    assert progress_text(*arguments) == shown


def test_elsewhere_than_on_a_terminal_the_pauses_grow() -> None:
    """Plain text, nothing within two seconds, and no line every few seconds of an hour."""
    out = io.StringIO()
    with Progress(clock=TickingClock(), stream=out) as progress:
        for number in range(3600):
            progress.update("verify", number, 3600, "rows")
    lines = out.getvalue().splitlines()
    assert lines[0] == "verify: 1 of 3,600 rows, 1 rows/s, 0:59:59 left"
    assert len(lines) == 11 and "\x1b" not in out.getvalue()


@pytest.mark.parametrize("how", ["quiet", "endless"])
def test_where_nobody_looks_nothing_is_said(how: str) -> None:
    out = io.StringIO()
    with Progress("x", clock=TickingClock(), stream=out, **{how: True}) as progress:
        for number in range(100):
            progress.update(f"for ever {number}")
    assert out.getvalue() == ""


@pytest.mark.long
@pytest.mark.parametrize("columns", [100, 40])
def test_on_a_terminal_it_is_a_line_that_goes_away(tmp_path: Path, columns: int) -> None:
    """Work that says nothing is shown too; a question stands alone; what is in brackets is no markup."""
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    terminal = OnScreen(
        [sys.executable, "-c", SLOW],
        cwd=tmp_path,
        environ=environ | {"TERM": "xterm-256color", "PYTHONPATH": source()},
        columns=columns,
        rows=12,
    )
    try:
        terminal.until(lambda at: "looks at [it]" in at.text)
        (tmp_path / "1").touch()
        terminal.until(lambda at: "verify: rows: 3 of" in at.text.replace("\n", " "))
        (tmp_path / "2").touch()
        terminal.until(lambda at: "Go on? [y/N]" in at.text)
        assert "verify: rows" not in terminal.text
        terminal.press("y\n")
        terminal.until(lambda at: "a result" in at.text and "verify: rows" in at.text)
        (tmp_path / "3").touch()
        assert terminal.until_ended() == 0
        assert "the end" in terminal.text and "verify: rows" not in terminal.text
        assert terminal.sent.rfind(b"\x1b[?25h") > terminal.sent.rfind(b"\x1b[?25l")
    finally:
        terminal.close()


def test_an_end_within_two_seconds_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Screen()
    with Progress("x", clock=TickingClock(), stream=out) as progress:
        progress.update("x", 1, 2)
        assert Progress.current is progress
    assert out.getvalue() == "" and Progress.current is None
