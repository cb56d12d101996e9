"""The raw form of many rows: what capture makes of them, and what no writer stored.

Proves: docs/format.md, "The outbox of a SQLite source".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fix_sqlite_pair import Pair
from tranlog.change import Op, Statement
from tranlog.source.sqlite.raw import ChangesDamagedError, read_piece


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def piece_of(pair: Pair, change: list[object]) -> bytes:
    """Return a piece with the maps of the pair's last transaction and one change."""
    ((stored,),) = pair.fast.raw.execute("SELECT changes FROM _tranlog_outbox ORDER BY id DESC LIMIT 1").fetchall()
    assert isinstance(stored, bytes)
    tables, _ = msgspec.msgpack.decode(stored)
    return msgspec.msgpack.encode([tables, [[tables[0][0], *change[1:]]]])


def test_rows_that_no_writer_stored_are_damage(pair: Pair) -> None:
    pair.run("CREATE TABLE t(a, id INTEGER PRIMARY KEY, b)")
    pair.many("INSERT INTO t(b, a) VALUES(?, ?)", [("b", n) for n in range(20)])
    assert pair.check() == 20
    rows = [["b", 1], ["b", 2]]
    good: list[object] = [0, None, rows, [2, 0], 5]
    found = [change for change in read_piece(piece_of(pair, good)).changes if not isinstance(change, Statement)]
    assert [(table.name, op) for table, op, _ in found] == [("main.t", Op.INSERT)] * 2
    most = (1 << 63) - 1
    for wrong in (
        [0, None, rows, [2, 0], None],
        [0, None, rows, [2, 0, 1], 5],
        [0, None, rows, [2, 2], 5],
        [0, None, rows, [2, -1], 5],
        [0, None, rows, [2, 9], 5],
        [0, None, rows, [2, "0"], 5],
        [0, None, rows, [2, True], 5],
        [0, None, rows, [], 5],
        [0, None, rows, 7, 5],
        [0, None, rows, {"a": 1}, 5],
        [0, None, None, [2, 0], 5],
        [0, None, [["b"]], [2, 0], 5],
        [0, None, [["b", 1, 2]], [2, 0], 5],
        [0, None, ["ba"], [2, 0], 5],
        [0, None, [7], [2, 0], 5],
        [0, None, [["b", [1]]], [2, 0], 5],
        [0, None, [["b", {"a": 1}]], [2, 0], 5],
        [0, None, rows, [2, 0], most],
        [0, None, rows, [2, 0], "5"],
        [0, None, rows, [2, 0], 5.0],
        [0, None, rows, [2, 0], True],
    ):
        with pytest.raises(ChangesDamagedError):
            list(read_piece(piece_of(pair, list(wrong))).changes)


def test_one_row_after_the_other_is_what_capture_reads(pair: Pair) -> None:
    pair.run("CREATE TABLE t(a, b)")
    pair.many("INSERT INTO t VALUES(?, ?)", [(n, "b") for n in range(50)])
    assert pair.check() == 50
    assert pair.fast.payloads()[-1] == pair.slow.payloads()[-1]
    assert len(list(itertools.chain(pair.fast.payloads()))) == 2
