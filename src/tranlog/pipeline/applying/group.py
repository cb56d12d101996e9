"""What a channel has taken and not committed yet: a plain list, its bounds, and how its changes are read.

Owns when a group is full, and the counting of large transactions while they pass. What may be taken is `channel`'s.
The hard idea: nothing of it is in the target, so it may be dropped at any time and read again from the position.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tranlog.change import Change, Options, Statement
from tranlog.clock import Clock
from tranlog.errors import PayloadError
from tranlog.header import TransactionHeader
from tranlog.log.reading.readable import ReadableTransaction
from tranlog.option_kinds import ABOVE_0, check_bounds
from tranlog.payload import decode
from tranlog.pipeline.applying.in_flight import Telling
from tranlog.pipeline.filters.filter_chain import Chain, ChangePlace
from tranlog.pipeline.rules.loading import Loads, counting
from tranlog.target.target import ApplyUnit, LoadUnit, VerdictRow


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBounds:
    """How many source transactions may share a target transaction: up to the first of these that is reached.

    Fewer, whenever the log has no more to give: a group never waits for company. A transaction of several fragments
    goes alone and is streamed; so memory is bounded by `bytes` and one fragment, decoded.
    """

    transactions: int = 1_000
    """Source transactions that may share a target transaction."""
    changes: int = 5_000
    """Their changes."""
    bytes: int = 1 << 20
    """Their payload's bytes."""
    seconds: float = 0.25
    """How long a target transaction may take in more of them."""

    def check(self) -> None:
        """Raise ConfigError for a bound that no group can keep."""
        bounds = ("transactions changes bytes seconds", ABOVE_0, math.inf, "must be above 0")
        check_bounds(self, [bounds], prefix="group_")


class Taken:
    """One transaction that is the channel's; a stream is counted while it passes.

    `shard`: under which the status counts it. `opens`: whether it opens a serial section. `load`: what it does as a
    step of a load; `loading`: the tables of which only some changes count yet. `verdicts`: what it stores as the first
    step of a verification. `why`: by write sets, why it ran alone.
    """

    __slots__ = ("bytes", "changes", "header", "load", "loading", "opens", "serial", "shard", "unit", "verdicts", "why")

    unit: ApplyUnit

    def __init__(self, header: TransactionHeader, *, shard: str, serial: bool, opens: bool, why: str = "") -> None:
        self.header = header
        self.shard = shard
        self.changes = 0
        self.bytes = header.data_length
        self.serial = serial
        self.opens = opens
        self.why = why
        self.load: LoadUnit | None = None
        self.loading: Loads = {}
        self.verdicts: tuple[VerdictRow, ...] = ()

    def counting(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Return of its changes those that count yet. Raises TargetTableError."""
        return tuple(counting(self.loading, changes, self.header.seqno)) if self.loading else changes


class Group:
    """The transactions of the next target transaction. `full`: commit it before another is taken. Threads: one."""

    def __init__(self, bounds: GroupBounds, telling: Telling, clock: Clock) -> None:
        self._bounds = bounds
        self._telling = telling
        self._clock = clock
        self._changes = 0
        self._bytes = 0
        self._since = 0.0
        self.taken: list[Taken] = []
        self.full = False

    def put(self, taken: Taken, metadata: Options, changes: tuple[Change, ...]) -> bool:
        """Add a transaction of one fragment, and return whether that was possible.

        A step of a load or a verification, or one with a statement, has nothing before it or after it.
        """
        alone = (
            taken.load is not None
            or bool(taken.verdicts)
            or (taken.serial and any(isinstance(one, Statement) for one in changes))
        )
        if alone and self.taken:
            return False
        self._add(taken, metadata, changes.__iter__)
        bounds = self._bounds
        taken.changes = len(changes)
        self._changes += len(changes)
        self._bytes += taken.bytes
        self.full = (
            alone
            or len(self.taken) >= bounds.transactions
            or self._changes >= bounds.changes
            or self._bytes >= bounds.bytes
        )
        return True

    def put_stream(
        self, taken: Taken, metadata: Options, transaction: ReadableTransaction, chain: Chain | None, token: int
    ) -> bool:
        """Add a large transaction, by itself, which is read while it is applied; the group is empty.

        `token` is the channel's. Returns True.
        """
        self._telling.begin(taken.header.seqno, token, transaction.size_bytes)
        self._add(taken, metadata, lambda: _counting(transaction, taken, chain, self._telling))
        self.full = True
        return True

    def _add(self, taken: Taken, metadata: Options, changes: Callable[[], Iterator[Change]]) -> None:
        if not self.taken:
            self._since = self._clock.monotonic()
        header = taken.header
        taken.unit = ApplyUnit(
            seqno=header.seqno,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            tstamp=header.tstamp,
            metadata=metadata,
            changes=changes,
            load=taken.load,
            verdicts=taken.verdicts,
        )
        self.taken.append(taken)

    def late(self, now_s: float) -> bool:
        """Whether it has been open for as long as a group may be; `now_s` is the monotonic clock's."""
        return bool(self.taken) and now_s - self._since >= self._bounds.seconds

    def drop(self) -> None:
        """Begin another: this one is committed, or is to be read again."""
        self.taken = []
        self._changes = self._bytes = 0
        self.full = False

    def close(self) -> None:
        """Tell nothing any more of a large transaction; closing twice is harmless."""
        self._telling.close()


def _counting(
    transaction: ReadableTransaction, taken: Taken, chain: Chain | None, telling: Telling
) -> Iterator[Change]:
    """Yield a large transaction's changes, what filters leave of them, counting; each new iteration counts anew."""
    taken.changes = taken.bytes = 0
    if chain is None and not taken.loading:
        for changes in _decoding(transaction, taken, telling):
            taken.changes += len(changes)
            yield from changes
        return
    found: Iterator[Change] = (change for changes in _decoding(transaction, taken, telling) for change in changes)
    if taken.loading:
        found = counting(taken.loading, found, taken.header.seqno)
    if chain is not None:
        found = chain.stream(found, ChangePlace(taken.header.seqno, taken.header.event_id))
    for change in found:
        taken.changes += 1
        yield change


def _decoding(transaction: ReadableTransaction, taken: Taken, telling: Telling) -> Iterator[tuple[Change, ...]]:
    read_bytes = 0
    for record in transaction.records():
        telling.at(taken.changes, read_bytes)  # of the records before this one
        read_bytes += record.header.record_length
        taken.bytes += record.header.data_length
        try:
            yield decode(record.payload).changes
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=record.header.seqno) from exc
    telling.at(taken.changes, None, now=True)


def last_metadata(transaction: ReadableTransaction) -> Options:
    """Return the metadata of a transaction of several fragments, which its last one has; asked for serial ones.

    No other has statements or is a step of a load.
    """
    (raw,) = deque(transaction.payloads(), maxlen=1)
    return decode(raw).metadata
