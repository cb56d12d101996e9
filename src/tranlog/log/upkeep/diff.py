"""Where two logs first disagree, and what each alone has.

Owns the comparison of two logs, transaction by transaction, and the search for the first difference. The hard idea:
a GTID is never assigned twice, so where two logs hold the same one they hold the same history up to it; the first
difference is then found by halving, with a look at some twenty transactions of a log of any size. That presumes what
it cannot prove, that neither log was changed by a hand; `full` presumes nothing and reads everything.

Source: Raft, "Log Matching".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from tranlog.change import TableName
from tranlog.errors import LogClosedError, PayloadError
from tranlog.header import Record, TransactionHeader
from tranlog.ids import NO_SEQNO, Gtid, Seqno
from tranlog.log.reading.readable import ForeignTransaction, ReadableCursor, ReadableLog, ReadableTransaction
from tranlog.payload import decode

Progress = Callable[[int, int], None]
"""Called with the transactions compared so far and those in all."""

SHOWN = 20
"""Transactions listed of those that one log alone has."""
_PROGRESS_EVERY = 10_000


class Disagreement(enum.StrEnum):
    """How two transactions of one seqno differ: the first of these that applies."""

    EPOCH = "epoch"
    CHECKSUM = "checksum"
    """Their checksums differ, and so does what they hold."""
    CONTENT = "content"
    """Their checksums are equal, or there are none, and what they hold differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One transaction, as it is listed."""

    gtid: Gtid
    event_id: str
    tstamp: int
    shard_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first seqno at which two logs hold different transactions, and what stands there in each."""

    seqno: Seqno
    kind: Disagreement
    one: Listed
    other: Listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What one log alone has: how many transactions, and the first of them."""

    count: int
    listed: tuple[Listed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two logs; NO_SEQNO for both ends of an empty one."""

    path: str
    first_seqno: Seqno
    last_seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiff:
    """How two logs compare.

    `common_first` to `common_last` are the seqnos that both hold, NO_SEQNO for none. `compared` transactions were
    looked at, and their contents too if `full`; else it is presumed that equal GTIDs mean equal history. `differing`
    is how many of the common seqnos differ, None where that was not counted. What stands at the front of one log and
    was purged from the other is in neither `only_one` nor `only_other`.
    """

    one: Side
    other: Side
    full: bool
    common_first: Seqno
    common_last: Seqno
    compared: int
    first: FirstDifference | None
    differing: int | None
    only_one: Alone
    only_other: Alone

    @property
    def agree(self) -> bool:
        """Whether the logs hold something in common and no difference in it was found."""
        return self.first is None and self.common_first != NO_SEQNO


def diff(
    one: ReadableLog, other: ReadableLog, *, full: bool = False, shown: int = SHOWN, progress: Progress | None = None
) -> LogDiff:
    """Compare two logs, of either codec, as far as both are visible now.

    Memory: a fragment of each, and `shown` headers. Raises CorruptRecordError, PurgedError, SegmentGoneError, and
    PayloadError at what a Java replicator's payload does not tell, where the other log is native.
    """
    sides = [_side(log) for log in (one, other)]
    low = max(sides[0].first_seqno, sides[1].first_seqno)
    high = min(sides[0].last_seqno, sides[1].last_seqno)
    common = low <= high and NO_SEQNO not in (sides[0].first_seqno, sides[1].first_seqno)
    with one.cursor() as left, other.cursor() as right:
        found = _Found(left, right, shown)
        if common and full:
            found.compare_all(low, high, progress)
        elif common:
            found.search(low, high)
        first = found.first
        begins = Seqno(first.seqno if first is not None and not full else max(high + 1, low))
        return LogDiff(
            one=sides[0],
            other=sides[1],
            full=full,
            common_first=low if common else NO_SEQNO,
            common_last=high if common else NO_SEQNO,
            compared=found.compared,
            first=first,
            differing=found.differing if full else None if first is not None else 0,
            only_one=_alone(left, found.listed_one, found.differing if full else 0, begins, sides[0], shown),
            only_other=_alone(right, found.listed_other, found.differing if full else 0, begins, sides[1], shown),
        )


class _Found:
    """The comparison under way: two cursors, and what was found so far."""

    def __init__(self, left: ReadableCursor, right: ReadableCursor, shown: int) -> None:
        self._left = left
        self._right = right
        self._shown = shown
        self.compared = 0
        self.differing = 0
        self.first: FirstDifference | None = None
        self.listed_one: list[Listed] = []
        self.listed_other: list[Listed] = []

    def compare_all(self, low: Seqno, high: Seqno, progress: Progress | None) -> None:
        """Compare every transaction of both, its content included."""
        self._left.seek(low)
        self._right.seek(low)
        for seqno in range(low, high + 1):
            one, other = _next(self._left, seqno), _next(self._right, seqno)
            kind = _disagreement(one, other, content=True)
            self.compared += 1
            if kind is not None:
                self.differing += 1
                if self.first is None:
                    self.first = _difference(kind, one, other)
                if len(self.listed_one) < self._shown:
                    self.listed_one.append(_listed(one.header))
                    self.listed_other.append(_listed(other.header))
            if progress is not None and self.compared % _PROGRESS_EVERY == 0:
                progress(self.compared, high - low + 1)

    def search(self, low: Seqno, high: Seqno) -> None:
        """Find the first difference by halving; `low` and `high` are held by both."""
        if self._look(low) or not self._look(high):
            return
        same, different = low, high
        while different - same > 1:
            middle = Seqno((same + different) // 2)
            if self._look(middle):
                different = middle
            else:
                same = middle
        self._look(different)

    def _look(self, seqno: Seqno) -> bool:
        self._left.seek(seqno)
        self._right.seek(seqno)
        one, other = _next(self._left, seqno), _next(self._right, seqno)
        kind = _disagreement(one, other, content=False)
        self.compared += 1
        if kind is None:
            return False
        self.first = _difference(kind, one, other)
        return True


def _side(log: ReadableLog) -> Side:
    held = log.range()
    return Side(path=log.path, first_seqno=held.first_seqno, last_seqno=held.last_seqno)


def _next(cursor: ReadableCursor, seqno: int) -> ReadableTransaction:
    if cursor.next_header() is None:
        raise LogClosedError(f"it was cut back to before seqno {seqno} while it was read")
    return cursor.current()


def _alone(cursor: ReadableCursor, listed: list[Listed], before: int, begins: Seqno, side: Side, shown: int) -> Alone:
    """Return what stands in one log from `begins` on, after what was listed of the common seqnos."""
    first = max(begins, side.first_seqno, 0)
    more = max(side.last_seqno - first + 1, 0) if side.first_seqno != NO_SEQNO else 0
    shown_more = min(more, max(shown - len(listed), 0))
    if shown_more:
        cursor.seek(Seqno(first))
        listed = listed + [_listed(_next(cursor, first + at).header) for at in range(shown_more)]
    return Alone(count=before + more, listed=tuple(listed))


def _listed(header: TransactionHeader) -> Listed:
    return Listed(gtid=header.gtid, event_id=header.event_id, tstamp=header.tstamp, shard_id=header.shard_id)


def _difference(kind: Disagreement, one: ReadableTransaction, other: ReadableTransaction) -> FirstDifference:
    return FirstDifference(seqno=one.header.seqno, kind=kind, one=_listed(one.header), other=_listed(other.header))


def _disagreement(one: ReadableTransaction, other: ReadableTransaction, *, content: bool) -> Disagreement | None:
    """Return how two transactions of one seqno differ; None if they do not.

    Checksums that are equal are believed unless `content` is to be read. Checksums that differ are no proof by
    themselves: padding is a log's own, and no part of what it says.
    """
    if one.header.epoch != other.header.epoch:
        return Disagreement.EPOCH
    checked = one.checksum is not None and other.checksum is not None
    equal = checked and one.checksum == other.checksum
    if equal and not content:
        return None
    if _same(one, other):
        return None
    return Disagreement.CHECKSUM if checked and not equal else Disagreement.CONTENT


def _same(one: ReadableTransaction, other: ReadableTransaction) -> bool:
    """Whether two transactions say the same, fragment by fragment: replication carries the cut, too.

    What a conversion keeps of another codec for the way back is in a payload's bytes and not in what it says; tables
    that one header leaves out, and a conversion lists, are in the payloads of both. What a Java replicator's payload
    does not tell as changes (LOAD DATA) is compared as it stands, where both are its.
    """
    try:
        for left, right in zip_longest(_parts(one), _parts(other)):
            if left is None or right is None or left.identity != right.identity:
                return False
            if left.tables != right.tables and None not in (left.tables, right.tables):
                return False
            if left.payload != right.payload and not _say_the_same(left.payload, right.payload):
                return False
    except PayloadError:
        if not (isinstance(one, ForeignTransaction) and isinstance(other, ForeignTransaction)):
            raise
        return one.foreign() == other.foreign()
    return True


def _say_the_same(one: bytes, other: bytes) -> bool:
    try:
        return decode(one) == decode(other)
    except PayloadError:  # what cannot be read is compared by its bytes
        return False


class _Part(NamedTuple):
    """A fragment as it is compared; `tables` is None where its header does not list what its payload touches."""

    identity: tuple[object, ...]
    tables: tuple[TableName, ...] | None
    payload: bytes


def _parts(transaction: ReadableTransaction) -> Iterator[_Part]:
    record: Record
    for record in transaction.records():
        header = record.header
        identity = (
            header.fragno,
            header.last_frag,
            header.epoch,
            header.source_id,
            header.event_id,
            header.shard_id,
            header.tstamp,
        )
        yield _Part(identity, header.tables, record.payload)
