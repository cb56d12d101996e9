"""The effects that the core orders: each is complete before the next begins.

A shell carries them out: a `Persist` is durable before a `Send` after it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from tranlog.ids import Gtid, Lsn, Seqno
from tranlog.log.records.spill import RawChunk
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import Packet
from tranlog.replication.rules.stored import Stored


class Rest(msgspec.Struct, frozen=True):
    """The place of the rest of a transaction that is sent in parts, in a form that its log reads again."""

    record: Lsn
    offset: int


class Outgoing(msgspec.Struct, frozen=True):
    """Whole records up to `last`. `chunks`: yields, from a number on, the chunks of `oid` to which the one record
    refers. `rest`: these bytes are a part of that one transaction, and not the last part."""

    raw: bytes
    last: Gtid
    oid: bytes = b""
    chunks: Callable[[int], Iterator[RawChunk]] | None = None
    rest: Rest | None = None


class ReplicatedLog(Protocol):
    """A node's log as the rules see it. The node's own changes to it are among the effects."""

    @property
    def first(self) -> Seqno:
        """The first seqno held; that of the next transaction if the log is empty."""

    @property
    def last(self) -> Gtid:
        """The end of the unbroken prefix; `NO_GTID` for a log without a transaction."""

    @property
    def durable(self) -> Gtid:
        """The last transaction that would survive a loss of power."""

    @property
    def mark(self) -> int:
        """How often the log was rolled back."""

    def gtid(self, seqno: int) -> Gtid | None:
        """Return the GTID at a seqno; None if the log holds none."""

    def h(self, seqno: int) -> int:
        """Return the running hash at a seqno that is held, which equal histories share; 0 if unknown."""

    def last_of_epoch(self, epoch: int) -> Gtid:
        """Return the last GTID of that or an earlier epoch; `NO_GTID` where none is held."""

    def written_at(self, seqno: int) -> int:
        """Return when a transaction was logged here, wall clock, ms since 1970."""

    def has_ddl(self, after: int) -> bool:
        """Whether a transaction after that seqno holds DDL."""

    def outgoing(self, after: int, up_to: int, limit: int, rest: Rest | None = None) -> Outgoing:
        """Return the whole records of at least one transaction after a seqno, of others up to `up_to` and about `limit`
        bytes; a record that refers to chunks comes alone, and a part of a large transaction.

        `rest`: the first transaction went out up to there.
        """

    def open_spills(self) -> Mapping[bytes, int]:
        """Return how many chunks each transaction has that is still open, by its oid."""

    def open_chunks(self, have: Mapping[bytes, int]) -> Iterable[RawChunk]:
        """Yield the chunks of open transactions, each transaction's in order, after so many of each."""


class Effect(msgspec.Struct, frozen=True):
    """Something to do."""


class Persist(Effect, frozen=True):
    """Make this durable, in both slots."""

    stored: Stored


class Send(Effect, frozen=True):
    """Send a packet; it may be lost."""

    to: NodeId
    packet: Packet


class BeginReign(Effect, frozen=True):
    """Append the no-op of this epoch; nothing else is appended before it."""

    epoch: int


class EndReign(Effect, frozen=True):
    """The node is not primary any more: open transactions, allocations and waiting commits end."""


class KeepAlive(Effect, frozen=True):
    """Append a no-op: the primary was idle for long."""


class Put(Effect, frozen=True):
    """Append records as they came.

    `part`: the number of this part of the one transaction, which may end anywhere; `whole`: nothing follows it.
    """

    raw: bytes
    part: int = 0
    whole: bool = True


class DropParts(Effect, frozen=True):
    """Forget the parts of a transaction whose other parts will not come."""


class PutChunk(Effect, frozen=True):
    """Keep a chunk of a large transaction. It has `size` bytes, those in `chunk` from `offset` on."""

    chunk: RawChunk
    offset: int
    size: int


class DropChunks(Effect, frozen=True):
    """Forget the chunks of a transaction that was given up."""

    oid: bytes


class RollBack(Effect, frozen=True):
    """Save what comes after the matchpoint, then abandon it; `steps` in this order. Then call `rolled_back`."""

    matchpoint: Gtid
    last: Gtid
    steps: tuple[str, ...]


class Restore(Effect, frozen=True):
    """Replace this log by a copy of that node's, after saving what comes after `after`, which only this log may have;
    all of it if it does not hold `after`. `ordered`: by an operator. The node then starts again."""

    source: NodeId
    after: Gtid
    ordered: bool = False


class KeepFrom(Effect, frozen=True):
    """Hold the log from this seqno on against purging, under this name; None: release the hold. `held`: only where
    there is such a hold, which moves."""

    name: str
    seqno: int | None
    held: bool = False


class Committed(Effect, frozen=True):
    """The log is committed up to here."""

    gtid: Gtid


class Tell(Effect, frozen=True):
    """Answer a question."""

    number: int
    outcome: Outcome


class Fatal(Effect, frozen=True):
    """This node stops following, with this text."""

    text: str
