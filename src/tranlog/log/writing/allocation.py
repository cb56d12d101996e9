"""A transaction that has its place in the log before its bytes are there.

Owns how a reserved place is filled: with the transaction, or, when that fails, with an empty one of the same length,
so that no hole stays in the stream. Who may see what is `prefix`'s decision, the places are assigned by `allocating`.
The hard idea: the length is known before the seqno is, since every number in a record has a fixed width.

Source: tokumx-replication (a GTID is taken when a commit begins, and may finish late).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from tranlog.change import NOOP, Fragment
from tranlog.errors import LogError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.records.format import EXTENSION_ITEM, encode_event
from tranlog.log.records.running_hash import RECORD_PIECES, fold_pieces
from tranlog.log.records.spill import Reference, encode_reference
from tranlog.log.rules.prefix import Extent
from tranlog.payload import Payload, encode
from tranlog.shard import UNKNOWN_SHARD
from tranlog.slices import Outflow, slices

if TYPE_CHECKING:
    from tranlog.log.writing.allocating import Allocating

NO_GTID = Gtid(Epoch(0), Seqno(0))
"""Of records whose size alone matters, or that are in no log yet."""


def record_of(
    fragment: Fragment, gtid: Gtid, fragno: int, *, checksum: bool, padding: int = 0, spilled: bool = False
) -> tuple[bytes, bytes, bytes]:
    """Return the bytes of a fragment's record, in pieces; `spilled`: it is what refers to a spilled transaction.

    Raises RecordLimitError.
    """
    head, trailer = encode_event(
        seqno=gtid.seqno,
        fragno=fragno,
        last_frag=fragment.last,
        epoch=gtid.epoch,
        source_id=fragment.source_id,
        event_id=fragment.event_id,
        shard_id=fragment.shard_id,
        tstamp=fragment.tstamp,
        tables=fragment.tables,
        write_set=fragment.write_set,
        payload=fragment.payload,
        checksum=checksum,
        padding=padding,
        spilled=spilled,
    )
    return head, fragment.payload, trailer


def records_of(
    fragments: Sequence[Fragment], gtid: Gtid, *, checksum: bool, padding: int = 0, spilled: bool = False
) -> Iterator[bytes]:
    """Return the bytes of a transaction, in pieces; `padding` goes into its first record.

    `spilled`: the one fragment is what refers to the transaction. Lazy: no record is there before it is asked for.
    """
    for fragno, fragment in enumerate(fragments):
        yield from record_of(fragment, gtid, fragno, checksum=checksum, padding=padding, spilled=spilled)
        padding = 0


def referring(last: Fragment, reference: Reference) -> Fragment:
    """Return what stands in the log for a spilled transaction whose last fragment is `last`."""
    return msgspec.structs.replace(last, payload=encode_reference(reference))


def empty_transaction(ids: tuple[str, str], tstamp: int, filling: int = 0) -> Fragment:
    """Return a no-op; `ids` are those of the transaction before it, since a source resumes after the last event id."""
    return Fragment(
        source_id=ids[0],
        event_id=ids[1],
        shard_id=UNKNOWN_SHARD,
        tstamp=tstamp,
        tables=(),
        payload=encode(Payload(metadata=((NOOP, "true" + " " * filling),))),
    )


def size_of(fragments: Sequence[Fragment]) -> int:
    """Return how many bytes a transaction's records take, without padding. Raises RecordLimitError."""
    return sum(len(piece) for piece in records_of(fragments, NO_GTID, checksum=False))


def padding_for(size: int, ids: tuple[str, str], tstamp: int) -> int:
    """Return by how much a transaction must grow so that an empty one would fit its place; mostly 0."""
    missing = size_of([empty_transaction(ids, tstamp)]) - size
    return max(missing, EXTENSION_ITEM.size) if missing > 0 else 0


def empty_records(size: int, ids: tuple[str, str], tstamp: int, gtid: Gtid, *, checksum: bool) -> list[bytes]:
    """Return the bytes of an empty transaction that takes exactly `size` bytes, not less than the shortest."""
    shortest = size_of([empty_transaction(ids, tstamp)])
    filling = padding = 0
    if size > shortest:
        # Lengths inside the payload may themselves grow by a byte or two: less filling, and the rest as padding.
        filling = max(size - shortest - 32, 0)
        padding = size - size_of([empty_transaction(ids, tstamp, filling)])
        if 0 < padding < EXTENSION_ITEM.size:
            filling += padding
            padding = size - size_of([empty_transaction(ids, tstamp, filling)])
    empty = [empty_transaction(ids, tstamp, filling)]
    pieces = list(records_of(empty, gtid, checksum=checksum, padding=padding))
    assert sum(len(piece) for piece in pieces) == size
    return pieces


class AllocatedPlace:
    """Where an allocated transaction goes: what the log knows of it until its bytes are there.

    The log holds this, the program the `Allocation`: so the log sees when the program has dropped it, as an exception
    between any two lines makes it do, and leaves the place empty itself.
    """

    __slots__ = ("_holder", "before", "checksum", "extent", "gtid", "tstamp")

    def __init__(self, extent: Extent, gtid: Gtid, before: tuple[str, str], tstamp: int, *, checksum: bool) -> None:
        """`before`: source id and event id of the transaction before it."""
        self.extent = extent
        self.gtid = gtid
        self.before = before
        self.tstamp = tstamp
        self.checksum = checksum
        self._holder: weakref.ref[Allocation] | None = None

    @property
    def start(self) -> int:
        """The offset at which it begins."""
        return self.extent.starts[0]

    def hand_to(self, holder: Allocation) -> None:
        """Have `holder` be the one who fills it."""
        self._holder = weakref.ref(holder)

    def dropped(self) -> bool:
        """Whether nobody is left who could fill it."""
        return self._holder is not None and self._holder() is None

    def empty_pieces(self) -> list[bytes]:
        """Return the bytes of the empty transaction that fits this place."""
        size = self.extent.end - self.start
        pieces = empty_records(size, self.before, self.tstamp, self.gtid, checksum=self.checksum)
        self.extent.added = fold_pieces(0, pieces, self.gtid)
        return pieces


class Allocation:
    """A place in the log, reserved for one transaction: fill it with `write`, show it with `complete`.

    Until it is complete, no reader sees a younger transaction, and no younger one is durable. As a context manager it
    completes at the end of the block, durable, or abandons its place when the block raises. One that is dropped
    without either is abandoned by the log.

    Threads: one, any one; others commit meanwhile.
    """

    def __init__(
        self,
        log: Allocating,
        place: AllocatedPlace,
        fragments: Sequence[Fragment],
        *,
        padding: int,
        spilled: bool = False,
    ) -> None:
        """For `Log.allocate` only."""
        self.gtid = place.gtid
        """The transaction's identity."""
        self._log = log
        self._place = place
        self._extent = place.extent
        self._fragments = fragments
        self._padding = padding
        self._spilled = spilled
        self._written = False
        self._over = False
        place.hand_to(self)

    def write(self) -> None:
        """Write the transaction's bytes into their place; nothing is visible yet.

        Raises DiskFullError (its place, and what is not visible after it, is taken back), DiskFailedError,
        LogClosedError.
        """
        if not self._written:
            checksum, padding = self._place.checksum, self._padding
            spilled = self._spilled
            self._fill(records_of(self._fragments, self.gtid, checksum=checksum, padding=padding, spilled=spilled))
            self._written = True

    def complete(self, *, sync: bool = True) -> Gtid:
        """Let readers see it once every older one is complete; with `sync`, return when it is durable.

        Writes first what is not written. An exception in the middle of that abandons it, so that nobody waits for it;
        or it is complete, and may be durable. Raises as `write`, and LogLockedError.
        """
        assert not self._over, "this allocation is complete or abandoned"
        try:
            self.write()
            self._log.finish(self._extent, sync)
        except LogError:
            raise
        except BaseException:
            with contextlib.suppress(LogError):
                self.abandon()
            raise
        self._over = True
        return self.gtid

    def abandon(self) -> None:
        """Write an empty transaction in its place; its seqno exists, and holds nothing. Raises as `complete`."""
        if self._over or self._extent.done:
            return
        self._written = False
        self._fill(self._place.empty_pieces())
        extent = self._extent
        extent.ids = self._place.before
        self._log.finish(extent, False)
        self._over = True

    def _fill(self, pieces: Iterable[bytes]) -> None:
        failure: OSError | None = None
        try:
            file = self._log.begin_write(self._extent)
            at = self._place.start
            outflow = Outflow(at, self._log.syncs())
            for part in slices(self._folded(pieces)):
                self._log.give_way()
                file.pwrite(part, at)
                at += len(part)
                outflow.wrote(at)
                while (out := outflow.due(self._log.syncs())) is not None:
                    self._log.give_way()
                    file.write_out(*out)
        except OSError as exc:
            failure = exc
        except BaseException:
            with contextlib.suppress(LogError):
                self._log.end_write(self._extent, None)
            raise
        self._log.end_write(self._extent, failure)

    def _folded(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of records; after the last one it is known what they put into the running hash."""
        record: list[bytes] = []
        added = 0
        for piece in pieces:
            record.append(piece)
            if len(record) == RECORD_PIECES:
                added = fold_pieces(added, record, self.gtid)
                record = []
            yield piece
        self._extent.added = added

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if not self._over:
                self.complete()
        else:
            self.abandon()
