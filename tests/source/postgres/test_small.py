"""source/postgres/small: transactions of rows alone, by their short way, are what they are by the long one."""

from __future__ import annotations

import struct

import pytest

from fix_pgoutput import Tables, messages
from tranlog.change import Fragment
from tranlog.row_touches import RowTouches
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.source.postgres.messages import RowMessage, parse_message
from tranlog.source.postgres.rows import NoBeforeImageError, encode_change, encode_run
from tranlog.source.postgres.small import SMALL_BYTES, SmallTransaction, pack_small, small_at

BEGIN = b"B" + struct.pack(">QqI", 9, 0, 7)
COMMIT = b"C" + struct.pack(">BQQq", 0, 9, 1 << 63, 1_500_000)
ROW = b"I\0\0\0\1N\0\0"
RULE = ShardRule(kind=ShardRuleKind.SCHEMA)


def packer() -> TransactionPacker:
    return TransactionPacker(source_id="pg", rule=RULE, touches=RowTouches(distinct_nulls=False))


def test_what_is_small() -> None:
    found = small_at([COMMIT, BEGIN, ROW, b"U", b"D", COMMIT, ROW], 1)
    assert isinstance(found, SmallTransaction)
    assert (found.rows, found.xid, found.end_lsn, found.size) == ([ROW, b"U", b"D"], 7, 1 << 63, len(ROW) + 2)
    assert found.timestamp == 946_684_801_500_000
    empty = small_at([BEGIN, COMMIT], 0)
    assert empty is not None and empty.rows == []


@pytest.mark.parametrize(
    "raws",
    [
        [ROW, BEGIN, COMMIT],
        [BEGIN],
        [BEGIN, ROW],
        [BEGIN + b"x", ROW, COMMIT],
        [BEGIN, ROW, COMMIT + b"x"],
        [BEGIN, ROW, b"", COMMIT],
        [BEGIN, ROW, BEGIN, COMMIT],
        *([BEGIN, ROW, raw, COMMIT] for raw in (b"R", b"Y", b"T", b"M", b"O", b"S", b"E", b"?")),
        [BEGIN, ROW, b"I" * SMALL_BYTES, COMMIT],
    ],
)
def test_everything_else_is_left_to_the_long_way(raws: list[bytes]) -> None:
    assert small_at(raws, 0) is None


def layouts(*, by_key: bool = True) -> tuple[Tables, list[list[bytes]]]:
    """Return the tables of the recording, and the rows of each of its transactions in one piece."""
    tables = Tables(by_key=by_key)
    transactions: list[list[bytes]] = []
    for raw in messages("plain"):
        if raw[:1] in (b"R", b"Y"):
            tables.note(raw, streamed=False)
        elif raw[:1] == b"B":
            transactions.append([])
        elif raw[:1] in (b"I", b"U", b"D"):
            transactions[-1].append(raw)
    return tables, [rows for rows in transactions if rows]


def row_by_row(tables: Tables, rows: list[bytes]) -> Fragment:
    into = packer()
    for raw in rows:
        message = parse_message(raw)
        assert isinstance(message, RowMessage)
        layout = tables.layouts[message.relation]
        cut = into.add_encoded(layout.table, *encode_change(layout, raw, message.at), event_id="5", tstamp=6)
        assert cut is None
    return into.finish(event_id="5", tstamp=6, metadata=(("xid", "7"),))


def test_its_fragment_is_the_one_of_its_rows() -> None:
    """Of what a server sent; one packer serves all, as in a source, also after one that was given up."""
    tables, transactions = layouts()
    into = packer()
    assert len(transactions) > 3
    for rows in transactions:
        found = pack_small(into, rows, tables.layouts, event_id="5", tstamp=6, metadata=(("xid", "7"),))
        assert found == row_by_row(tables, rows)
        layout, op, images, _ = encode_run(rows, 0, tables.layouts, streamed=False)
        into.add_rows(layout.table, op, images)
        into.begin(RULE)


def test_one_without_its_before_image_is_left_to_the_long_way() -> None:
    tables, transactions = layouts(by_key=False)
    refused = []
    for rows in transactions:
        into = packer()
        found = pack_small(into, rows, tables.layouts, event_id="5", tstamp=6, metadata=())
        if found is None:
            refused.append(rows)
            with pytest.raises(NoBeforeImageError):
                row_by_row(tables, rows)
    assert 0 < len(refused) < len(transactions)
