"""Messages of WAL data off libpq: the loop that every byte of a stream goes through.

Compiled, see `tranlog.compiled`. What messages mean is `messages`'s, when they are taken `stream`'s.

Source: PostgreSQL's manual, "Streaming Replication Protocol", XLogData; libpq's PQgetCopyData.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

_DATA: Final = 0x77
_DATA_AT: Final = 25
"""Where the plugin's message begins in a message of WAL data."""


def take_data(
    get: Callable[[int], tuple[int, memoryview]], into: list[bytes], *, messages_max: int, bytes_max: int
) -> tuple[int, int, bytes]:
    """Move messages of WAL data, what the plugin said alone, to `into`, until so many are there.

    `get` is psycopg's `PGconn.get_copy_data`. Return their bytes; libpq's last length, which is 0 where it has no more
    now and below 0 where the stream has ended; and the message of another kind at which it stopped, else nothing.
    """
    size: i64 = 0
    limit: i64 = bytes_max
    left: i64 = messages_max
    while left and size < limit:
        length, data = get(1)
        if length <= 0:
            return size, length, b""
        raw = bytes(data)
        if raw[0] != _DATA:
            return size, length, raw
        message = raw[_DATA_AT:]
        into.append(message)
        size += len(message)
        left -= 1
    return size, 1, b""
