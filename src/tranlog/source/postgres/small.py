"""Small transactions of rows alone, the frequent kind: found among a stream's messages, and made a fragment at once.

Owns what counts as small, and its way past the stores and steps that other transactions take. Pure; compiled, see
`tranlog.compiled`. The hard idea: whatever is not plainly such a transaction is left to those steps, which know every
kind of message and every error, so nothing is judged here.

Source: PostgreSQL's manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tranlog.change import Fragment, Options
from tranlog.source.packer import TransactionPacker
from tranlog.source.postgres.messages import EPOCH_2000_MICROS
from tranlog.source.postgres.rows import NoBeforeImageError, PostgresTableLayout, encode_run

SMALL_BYTES: Final = 64 << 10
"""So many bytes of messages a small transaction has at most; its payload is one fragment."""
_BEGIN: Final = 0x42
_COMMIT: Final = 0x43
_INSERT: Final = 0x49
_UPDATE: Final = 0x55
_DELETE: Final = 0x44
_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26


class SmallTransaction:
    """A committed transaction of rows alone. `end_lsn`, `timestamp` and `size` as in WholeTransaction."""

    __slots__ = ("end_lsn", "rows", "size", "timestamp", "xid")

    def __init__(self, rows: list[bytes], begin: bytes, commit: bytes, size: int) -> None:
        self.rows = rows
        self.xid: int = int.from_bytes(begin[17:21], "big")
        self.end_lsn: int = int.from_bytes(commit[10:18], "big")
        self.timestamp: int = int.from_bytes(commit[18:26], "big", signed=True) + EPOCH_2000_MICROS
        self.size = size


def small_at(messages: list[bytes], start: int) -> SmallTransaction | None:
    """Return the transaction that begins at index `start` and ends among these messages; None where it is not small.

    The index after it is that of its rows' last and 2. `start`: outside of any transaction.
    """
    begin = messages[start]
    if len(begin) != _BEGIN_BYTES or begin[0] != _BEGIN:
        return None
    count: i64 = len(messages)
    at: i64 = start + 1
    size: i64 = 0
    while at < count:
        raw = messages[at]
        size += len(raw)
        if size > SMALL_BYTES or not raw:
            return None
        kind: i64 = raw[0]
        if kind == _COMMIT:
            if len(raw) != _COMMIT_BYTES:
                return None
            return SmallTransaction(messages[start + 1 : at], begin, raw, size - len(raw))
        if kind != _INSERT and kind != _UPDATE and kind != _DELETE:
            return None
        at += 1
    return None


def pack_small(
    packer: TransactionPacker,
    rows: list[bytes],
    layouts: dict[int, PostgresTableLayout],
    *,
    event_id: str,
    tstamp: int,
    metadata: Options,
) -> Fragment | None:
    """Return a small transaction as its fragment, after the packer's `begin`; None where it has to be a gap.

    Raises MessageFormatError.
    """
    at = 0
    count = len(rows)
    while at < count:
        try:
            layout, op, images, at = encode_run(rows, at, layouts, streamed=False)
        except NoBeforeImageError:
            return None
        packer.add_rows(layout.table, op, images)
    return packer.finish(event_id=event_id, tstamp=tstamp, metadata=metadata)
