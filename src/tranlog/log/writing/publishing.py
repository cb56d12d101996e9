"""How far a log is visible, durable and committed, and who hears of it.

Owns these positions, the gates at which the readers of this process wait, and the positions file for those of others.
When a position moves is the writer's to say. The hard idea: a reader acts on what it was told, so every publication
passes one method, which holds the positions against each other first.

Source: docs/format.md; ARCHITECTURE.md, "The ladder of positions".
"""

from __future__ import annotations

from collections.abc import Sequence

from tranlog.disk import Disk
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.files.positions import NO_LSN, Places, PositionsFile
from tranlog.log.files.segments import Segments
from tranlog.log.reading.gate import Gate
from tranlog.log.rules.index_values import BuiltFrom
from tranlog.log.rules.pending import Pending
from tranlog.log.rules.prefix import Extent
from tranlog.lsn import lsn

_LOOK_EVERY = 64
"""So many syncs at most are assumed to leave the directory's entries alone because it says so."""


class Publishing:
    """The positions of a log that is written. The log's lock guards it; the positions may be read without.

    `visible_lsn` is where the transaction `visible` begins, 0 while there is none; it ends at offset `visible_end` of
    the newest segment, or in an earlier one. `visible_ids` are its source id and event id.
    """

    def __init__(self, path: str, disk: Disk, segments: Segments, pending: Pending) -> None:
        self.visible = NO_SEQNO
        self.durable = NO_SEQNO
        self.committed = NO_SEQNO
        self.visible_lsn = NO_LSN
        self.visible_end = 0
        self.visible_ids = pending.ids
        self.visible_epoch = NO_EPOCH
        """Of the transaction `visible`."""
        self.mark = 0
        """The number of the last rollback mark, 0 for none."""
        self.seen = Gate()
        """Opens as transactions become visible."""
        self.proven = Gate()
        """Opens as they are committed."""
        self.told: Seqno | None = None
        """Up to where a group has committed, as far as this member knows; None for a log without a group."""
        self.given = False
        """Epochs come with the transactions: there may be a later one of which nothing is durable."""
        self._path = path
        self._disk = disk
        self._segments = segments
        self._pending = pending
        self._epochs: list[tuple[Seqno, Epoch]] = [(NO_SEQNO, NO_EPOCH)]  # from that of `durable` on
        self._file: PositionsFile | None = None
        self._entries: object = None  # the directory's stamp when its files were looked at last
        self._looks = 0

    def open(self, seqno: Seqno, ids: tuple[str, str], epoch: Epoch, start: Lsn, end: int, mark: int) -> None:
        """Stand at the end of a log that was recovered, whose last rollback mark has this number. Raises OSError."""
        if self.told is not None:
            self.told = max(self.told, Seqno(self._segments.first_seqno() - 1))  # nothing else was ever purged
        self.go_back(seqno, ids, epoch, start, mark)
        self.visible_end = end
        self._file = PositionsFile(self._path, self._disk)

    def show(self, number: int, extents: Sequence[Extent]) -> None:
        """Move the visible end over these extents of the newest segment, in order."""
        for extent in extents:
            self._segments.register(number, extent.first, extent.starts)
        newest = extents[-1]
        self.visible = newest.last
        self.visible_lsn = lsn(number, newest.starts[-1])
        self.visible_end = newest.end
        self.visible_ids = newest.ids
        self._epochs += [(one.first, one.epoch) for one in extents if one.epoch != self.visible_epoch]
        self.visible_epoch = newest.epoch

    def synced(self, seqno: Seqno) -> None:
        """Take everything up to `seqno` for durable."""
        self.durable = max(self.durable, seqno)
        self.committed = self._committed(self.durable)

    def commit_to(self, seqno: Seqno) -> None:
        """Take everything up to `seqno`, which is visible, for committed by the group once it is durable here."""
        assert self.told is not None
        self.told = max(self.told, seqno)
        self.committed = self._committed(self.durable)

    def _committed(self, durable: Seqno) -> Seqno:
        """Return up to where all is committed that is durable: without a group there is no other copy."""
        return durable if self.told is None else max(self.committed, min(self.told, durable))

    def settle_epoch(self, newest: Extent | None) -> None:
        """Where epochs are given, have the last transaction's be that of the next: a later one was taken back.

        `newest`: the last extent that is not visible.
        """
        if self.given and not self._pending.starts:
            self._pending.epoch = self.visible_epoch if newest is None else newest.epoch

    def durable_epoch(self) -> Epoch:
        """Return the epoch of the transaction `durable`."""
        while len(self._epochs) > 1 and self._epochs[1][0] <= self.durable:
            del self._epochs[0]
        return self._epochs[0][1]

    def go_back(self, seqno: Seqno, ids: tuple[str, str], epoch: Epoch, start: Lsn, mark: int) -> None:
        """Make `seqno` the last transaction, durable: what lay after it was abandoned, by that mark."""
        self.visible = self.durable = seqno
        self.committed = self._committed(seqno)
        self.seen.go_back(seqno)
        self.proven.go_back(seqno)
        self.visible_ids = ids
        self.visible_lsn = start
        self.visible_epoch = epoch
        self._epochs = [(seqno, epoch)]
        self.mark = mark

    def publish(self, *, elsewhere: bool = True) -> None:
        """Tell readers here and elsewhere.

        Not `elsewhere`: those of other processes wait for the next publication, and so do those who wait for committed
        ones; what they will be told is prepared, for a sync that has covered all that is visible. Raises OSError.
        """
        visible, durable, committed = self.visible, self.durable, self.committed
        last = self._pending.last
        assert committed <= visible <= last and committed <= durable <= last
        self.seen.open_to(visible)
        file = self._file
        assert file is not None
        if elsewhere:
            self._segments.synced(durable)
            places = self._places(durable, committed)
            assert places[2] - 1 <= committed
            file.write(places)
            self.proven.open_to(committed)
        elif not self.given:
            file.prepare(self._places(visible, self._committed(visible)))

    def _places(self, durable: Seqno, committed: Seqno) -> Places:
        history = self._segments.history
        assert history is not None
        epoch = self.durable_epoch() if self.given else self._pending.epoch
        first = self._segments.first_seqno()
        return epoch, self.mark, first, self.visible, durable, committed, self.visible_lsn, history

    def restore(self) -> None:
        """See that the file is still where readers of other processes look for it. Raises OSError."""
        assert self._file is not None
        self._file.restore()

    def look_due(self) -> bool:
        """Whether the files are to be looked at with this sync: the directory may have changed since the last look."""
        entries = self._disk.entries_stamp(self._path)
        self._looks += 1
        due = entries is None or entries != self._entries or self._looks % _LOOK_EVERY == 0
        self._entries = entries
        return due

    def built_from(self, number: int) -> BuiltFrom | None:
        """Return the end that the index describes, if all before it is durable; `number` is the newest segment's."""
        if self.durable != self.visible or self.visible_lsn == NO_LSN:
            return None
        assert self._segments.history is not None
        end = lsn(number, self.visible_end)
        return BuiltFrom(epoch=self.visible_epoch, end=end, history=self._segments.history)

    def gate(self, *, committed_only: bool) -> Gate:
        """Return the gate at which to wait for a transaction to be visible or, on demand, committed."""
        return self.proven if committed_only else self.seen

    def stir(self) -> None:
        """Wake every reader, whatever it waits for: it may be another transaction now."""
        self.seen.stir()
        self.proven.stir()

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self.seen.forked()
        self.proven.forked()

    def close(self) -> None:
        """Wake every reader: nothing will come any more."""
        self.seen.close()
        self.proven.close()

    def let_go(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
