"""A table's rows on their way to the log, or to a sum: encoded, some at a time.

Owns how many make a block, and the way back to values. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from tranlog.change import TableMap
from tranlog.row_bytes import decode_row, encode_row
from tranlog.types import Value

RowBlock: TypeAlias = list[bytes]
"""Rows, one at least, each as `row_bytes.encode_row` writes it."""
_ROWS: Final = 100
_BYTES: Final = 1 << 20


def encoded(rows: Iterable[tuple[Value, ...]]) -> Iterator[RowBlock]:
    """Yield rows in blocks of so many rows, or of so many bytes."""
    block: RowBlock = []
    size = 0
    for row in rows:
        raw = encode_row(row)
        block.append(raw)
        size += len(raw)
        if len(block) == _ROWS or size >= _BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def decoded(blocks: Iterable[RowBlock], table: TableMap) -> Iterator[tuple[Value, ...]]:
    """Yield the rows of blocks as values."""
    columns = len(table.columns)
    for block in blocks:
        for raw in block:
            yield decode_row(raw, columns)
