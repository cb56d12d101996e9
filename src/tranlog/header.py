"""What stands before the content of a fragment: who wrote which transaction, where, when.

Owns the header that every layer knows. A codec adds where the fragment stands in its log, and its checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tranlog.change import TableName
from tranlog.ids import Epoch, Gtid, Seqno


class TransactionHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of one fragment, readable without its payload; the last fragment's speaks for the whole transaction.

    `tables` is None where they were too many to list, () where none is touched. `tstamp` is ms since 1970.
    `record_length` counts the bytes of the whole fragment in its log, `data_length` those of its payload.
    """

    seqno: Seqno
    fragno: int
    last_frag: bool
    epoch: Epoch
    source_id: str
    event_id: str
    shard_id: str
    tstamp: int
    tables: tuple[TableName, ...] | None
    record_length: int
    data_length: int
    spilled: bool
    """The payload is a reference: it says where the transaction's fragments were spilled to."""
    write_set: bytes
    """What the transaction touched, see `write_set`; empty where that is not told."""

    @property
    def gtid(self) -> Gtid:
        """The transaction's identity."""
        return Gtid(self.epoch, self.seqno)


Passes: TypeAlias = Callable[[int, bytes, tuple[TableName, ...] | None, bytes], bool]
"""Whether to pass over a transaction: of its seqno, shard in UTF-8, tables and write set. Raises nothing."""


class Record(msgspec.Struct, frozen=True):
    """One fragment: its header and its payload's bytes."""

    header: TransactionHeader
    payload: bytes
