"""Tables on stdout, by rich: as wide as the terminal, in a pipe as wide as their cells.

Owns how a table is laid out; heads and cells are its caller's. rich is imported with the first table.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_PIPE_WIDTH: Final = 10_000


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a table: the heads, then a line for each row; more where a terminal is too narrow.

    A head that begins with `>` is of a column of numbers, which end below each other; None is shown as `-`.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head.removeprefix(">"), justify="right" if head[0] == ">" else "left", overflow="fold")
    for row in rows:
        table.add_row(*["-" if cell is None else str(cell) for cell in row])
    width = os.get_terminal_size(sys.stdout.fileno()).columns - indent if sys.stdout.isatty() else _PIPE_WIDTH
    written = io.StringIO()
    Console(file=written, width=max(width, 1), color_system=None, markup=False, emoji=False, highlight=False).print(
        table
    )
    for line in written.getvalue().splitlines():
        yield " " * indent + line.rstrip()
