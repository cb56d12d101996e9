"""Tables on stdout: whole in a pipe, within the width of a terminal."""

from __future__ import annotations

import os
import pty
import termios

import pytest

from tranlog.service.frame.tables import table_lines

HEADS = ("name", ">bytes")
ROWS = [("a", 5), ("[b]", 12_345), ("c" * 90, None)]


def test_a_pipe_gets_every_cell_whole() -> None:
    widths = [("name", "bytes"), ("a", "5"), ("[b]", "12345"), ("c" * 90, "-")]
    assert list(table_lines(HEADS, ROWS, indent=2)) == [f"  {name:<90}  {count:>5}" for name, count in widths]


def test_a_name_is_on_one_line_and_moves_no_cursor() -> None:
    """A queue may be called so."""
    lines = list(table_lines(HEADS, [("a\nb\x1b[2J", 5), ("ü", 6)]))
    assert [line.split() for line in lines] == [["name", "bytes"], [r"a\nb\x1b[2J", "5"], ["ü", "6"]]


def test_a_terminal_is_not_left_on_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    with os.fdopen(main, "rb", 0), os.fdopen(side, "w") as terminal:
        termios.tcsetwinsize(side, (20, 60))
        monkeypatch.setattr("sys.stdout", terminal)
        lines = list(table_lines(HEADS, ROWS, indent=4))
    assert max(map(len, lines)) <= 60 and "".join(lines).count("c") == 90


@pytest.mark.parametrize("columns", [20, 41])
def test_where_numbers_have_no_room_a_row_is_a_paragraph(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number on two lines is two numbers."""
    heads, rows = (
        (">channel", ">transactions", ">changes", "time"),
        [(0, 1_234_567, 89, "2026-11-29 08:49:02"), (1, 2, 3, None)],
    )
    main, side = pty.openpty()
    with os.fdopen(main, "rb", 0), os.fdopen(side, "w") as terminal:
        termios.tcsetwinsize(side, (20, columns))
        monkeypatch.setattr("sys.stdout", terminal)
        lines = list(table_lines(heads, rows))
    assert max(map(len, lines)) <= columns
    told = " ".join(" ".join(lines).split())
    assert "channel 0, transactions 1234567, changes 89, time 2026-11-29 08:49:02" in told
    assert "channel 1, transactions 2, changes 3, time -" in told
