"""Tables on stdout, by rich: as wide as the terminal, in a pipe as wide as their cells.

Owns how a table is laid out; heads and cells are its caller's. rich is imported with the first table.
"""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from tranlog.listing import printable

_PIPE_WIDTH: Final = 10_000
_LEAST_TEXT: Final = 12
"""A column of texts is not made narrower."""


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a table: the heads, then a line for each row; more where a terminal is too narrow.

    A head that begins with `>` is of a column of numbers, which end below each other; None is shown as `-`. Where not
    even the numbers have room beside each other, a row is a paragraph of heads and cells. No rows have no heads.
    What breaks a line, or moves a terminal's cursor, is escaped.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not cells:
        return
    width = max(os.get_terminal_size(sys.stdout.fileno()).columns - indent, 1) if sys.stdout.isatty() else _PIPE_WIDTH
    names = [head.removeprefix(">") for head in heads]
    needed = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(names)]
    least = [size if head[0] == ">" else min(size, _LEAST_TEXT) for size, head in zip(needed, heads, strict=True)]
    if sum(least) + 2 * (len(heads) - 1) <= width:
        lines = _laid_out(heads, cells, width)
    else:
        pairs = [", ".join(f"{name} {cell}" for name, cell in zip(names, row, strict=True)) for row in cells]
        lines = [line for one in pairs for line in textwrap.wrap(one, width, subsequent_indent="  "[: width - 1])]
    for line in lines:
        yield " " * indent + line.rstrip()


def _laid_out(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        number = head[0] == ">"
        justify: Literal["right", "left"] = "right" if number else "left"
        table.add_column(head.removeprefix(">"), justify=justify, overflow="fold", no_wrap=number)
    for row in cells:
        table.add_row(*row)
    written = io.StringIO()
    Console(file=written, width=width, color_system=None, markup=False, emoji=False, highlight=False).print(table)
    return written.getvalue().splitlines()
