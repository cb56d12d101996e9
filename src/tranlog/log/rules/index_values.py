"""The values of an index: places, the range, what a stored one was built from.

Owns no behaviour. They stand apart from what works with them, which is compiled, and from whose classes the compiler
would drop what makes a value of them.

Source: vlsn-index ("Maintaining the VLSN range", "Persistent storage").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.ids import NO_HISTORY, NO_SEQNO, Epoch, Lsn, Seqno


class Place(msgspec.Struct, frozen=True):
    """The record of `seqno` stands at `lsn` or, for a purged log's very first seqno, at or after it."""

    seqno: Seqno
    lsn: Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """How dense the index is."""

    stride: int = 64
    """A mapping for every stride-th seqno, or for more of them where transactions are large."""
    spacing: int = 32 << 10
    """Bytes between two mappings to aim at, by a smaller stride: what lies between is read by each seek."""
    max_mappings: int = 1_000
    """Mappings of one bucket."""
    max_distance: int = 4 << 20
    """Bytes after its last mapping that a bucket still takes a seqno from; fewer where another with a smaller stride
    would suit better."""


class Gap(msgspec.Struct, frozen=True):
    """Seqnos of which nothing is known: those after `place`, which is exact, up to `upto`, itself included."""

    place: Place
    upto: Seqno


class IndexRange(msgspec.Struct, frozen=True):
    """What part of the stream a log holds; replaced as a whole, so that nobody reads half of a change.

    Ends: all inclusive; NO_SEQNO for none. `last_sync` is the last transaction that a sync has made durable and that
    a syncup may meet at, `last_txn_end` the last complete transaction.
    """

    first: Seqno = NO_SEQNO
    last: Seqno = NO_SEQNO
    last_sync: Seqno = NO_SEQNO
    last_txn_end: Seqno = NO_SEQNO

    def __contains__(self, seqno: object) -> bool:
        return isinstance(seqno, int) and self.first <= seqno <= self.last and self.first != NO_SEQNO


EMPTY_RANGE: Final = IndexRange()


class Entry(msgspec.Struct, frozen=True):
    """A transaction, as it is registered: where it begins, and what it is good for."""

    seqno: Seqno
    lsn: Lsn
    sync_point: bool = True
    txn_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFrom:
    """The end of the log that a stored index describes: checked against the log before the index is trusted."""

    epoch: Epoch
    """The epoch of the transaction that `IndexRange.last` names."""
    end: Lsn
    """After that transaction's last byte: a scan that continues the index starts here."""
    history: bytes = NO_HISTORY
    """The identity of the log's history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What to store, all of it or nothing: an image of the prefix, as a change of the one before."""

    puts: Mapping[int, bytes]
    deletes: tuple[int, ...]
