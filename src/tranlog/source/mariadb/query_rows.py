"""The rows of a query at a MariaDB, off the connection in large pieces, straight into the payload's form.

Owns what is read ahead of PyMySQL. The hard idea: PyMySQL reads the answer's beginning, and again whatever is no plain
row: the end, an error, a row of several packets. The rows between, which are nearly all, never pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

import pymysql
import pymysql.cursors

from tranlog.row_blocks import RowBlock
from tranlog.servers.mariadb import close_query
from tranlog.text_rows import ValueEncoder, encode_packets

_CHUNK_BYTES: Final = 256 << 10


class _Ahead:
    """Stands in the place of the file from which PyMySQL reads a connection, with what was read of it before."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.raw = b""
        self.at = 0

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer where the connection has ended."""
        end = self.at + size
        found = self.raw[self.at : end]
        self.at += len(found)
        return found if len(found) == size else found + self._file.read(size - len(found))

    def read_more(self) -> bool:
        """Read on; False: the connection has ended. What was taken is forgotten."""
        left = self.raw[self.at :]
        size = 4 + int.from_bytes(left[:3], "little") if len(left) >= 4 else 0
        missing = size - len(left)
        more = self._file.read(missing) if missing > _CHUNK_BYTES else self._file.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]
        self.raw, self.at = left + more, 0
        return bool(more)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def query_rows(
    connection: pymysql.Connection[Any], sql: str, forms: bytes, encoders: Sequence[ValueEncoder]
) -> Iterator[RowBlock]:
    """Run a query, and yield its rows; `forms` and `encoders` are its columns', see `text_rows.put_text`.

    The connection converts nothing, and its cursors do not buffer. Raises what PyMySQL raises.
    """
    # PyMySQL has no public way to its packets; the version is pinned.
    session: Any = connection
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        if not isinstance(session._rfile, _Ahead):
            session._rfile = _Ahead(session._rfile)
        ahead: _Ahead = session._rfile
        while True:
            block: RowBlock = []
            ahead.at, session._next_seq_id, stopped = encode_packets(
                ahead.raw, ahead.at, session._next_seq_id, forms, encoders, block
            )
            if block:
                yield block
            if not stopped and ahead.read_more():
                continue
            row = cursor.fetchone()
            if row is None:
                return
            yield [b"".join([b"\0" if raw is None else encode(raw) for raw, encode in zip(row, encoders, strict=True)])]
    finally:
        close_query(connection, cursor)
