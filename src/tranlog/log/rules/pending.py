"""What is appended and not visible yet: the bytes that wait to be written, the transactions that wait to be seen.

Owns the buffer in front of the newest segment, and the numbers that each append moves; when it is written, and to whom
it is shown, is `log_end`'s. The hard idea: almost every append is a whole transaction of one fragment that follows
another one, with nothing else the matter. The log says by `room` for how many bytes that holds, and takes it back with
whatever comes up; so such an append asks no more than one number. Compiled, see `tranlog.compiled`.

Source: docs/performance.md, "Profiles".
"""

from __future__ import annotations

from mypy_extensions import i64

from tranlog.change import Fragment
from tranlog.ids import NO_EPOCH, NO_SEQNO, Seqno
from tranlog.log.records.format import EventWriter
from tranlog.log.records.running_hash import fold
from tranlog.log.rules.prefix import Extent


class Buffer:
    """Bytes after what was written of a segment. The log's lock guards it.

    `len` is their number. They belong at offset `start`; everything before it is written, or allocated to somebody
    who will.
    """

    def __init__(self) -> None:
        self.start = 0
        self.room = 0
        """Up to so many bytes in all are put here without a look at anything else; 0 while there is something.

        Below 0 while `Pending.add` is at it: whoever finds that afterwards knows that it was broken off in its midst.
        """
        self.sync_due = True
        """A sync record goes before the next record."""
        self._pieces: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, raw: bytes) -> None:
        """Put bytes after the others: part of a transaction, or no transaction."""
        self._pieces.append(raw)
        self._size += len(raw)

    def cut(self, size: int) -> None:
        """Drop the bytes after the first `size`; no whole transaction is among them."""
        kept = b"".join(self._pieces)[:size]
        self._pieces = [kept] if kept else []
        self._size = len(kept)

    def joined(self, zeros: int = 0) -> bytes:
        """Return the bytes, with zeros after them."""
        pieces = self._pieces
        if len(pieces) > 1:
            self._pieces = pieces = [b"".join(pieces)]
        if zeros:
            return pieces[0] + bytes(zeros)
        return pieces[0] if pieces else b""

    def written(self) -> None:
        """Forget the bytes: they are in the file. The room stays as it is."""
        self.start += self._size
        self._pieces = []
        self._size = 0

    def drop(self) -> None:
        """Forget the bytes: they will not be written."""
        self._pieces = []
        self._size = 0
        self.room = 0


class Pending(Buffer):
    """The buffer of a history log, and its transactions that are not sealed yet: written or not."""

    def __init__(self, *, source_id: str, checksum: bool, most: int) -> None:
        """`most`: bytes of the largest record to be taken by `add`."""
        super().__init__()
        self.epoch = NO_EPOCH
        self.last = NO_SEQNO
        """The last transaction that has a place, here or elsewhere."""
        self.appended = NO_SEQNO
        """The last one that came whole through here."""
        self.ids = (source_id, "")
        """Source id and event id of `last`."""
        self.starts: list[int] = []
        """Where the transactions begin that are whole and not sealed; `last` is the last of them, if there is one."""
        self.end = 0
        """The offset after the last of them."""
        self.added: i64 = 0
        """The running hash that they make of 0."""
        self.owners: set[int] = set()
        """The threads whose transactions are not sealed."""
        self._most = most
        self._checksum = checksum
        self._writer = EventWriter()

    def add(self, fragment: Fragment, me: int) -> bool:
        """Take a transaction of one fragment, if there is room for it; say whether. Raises RecordLimitError.

        Whatever an encoding raises, nothing was taken.
        """
        room = self.room
        taken = self._take(fragment)
        if taken:
            self.ids = (fragment.source_id, fragment.event_id)
            self.owners.add(me)
            self.room = room
        return taken

    def add_run(self, fragments: list[Fragment], at: int, me: int) -> int:
        """Take transactions of one fragment from `fragments[at]` on while there is room; return the first one left.

        Raises RecordLimitError for one that can be in no log; those before it are taken.
        """
        count = len(fragments)
        room = self.room
        while at < count and self._take(fragments[at]):
            fragment = fragments[at]
            self.ids = (fragment.source_id, fragment.event_id)
            self.owners.add(me)
            self.room = room
            at += 1
        return at

    def _take(self, fragment: Fragment) -> bool:
        """Take it, and leave `room` at -1 for the caller to put back when all is noted; or change nothing."""
        size = self._size
        room = self.room
        most = room - size - 1
        if most < 0 or self.sync_due or not fragment.last:
            return False
        if most > self._most:
            most = self._most
        seqno = self.last + 1
        pieces = self._pieces
        count = len(pieces)
        self.room = -1
        try:
            length = self._writer.write(pieces, fragment, seqno, self.epoch, self._checksum, most)
        except BaseException:
            del pieces[count:]
            self.room = room
            raise
        if length == 0:
            self.room = room
            return False
        start = self.start + size
        self.starts.append(start)
        self.end = start + length
        self._size = size + length
        self.added = fold(self.added, self._writer.tag, seqno, self.epoch)
        self.last = self.appended = Seqno(seqno)
        return True

    def complete(self, starts: list[int], ids: tuple[str, str], added: int) -> None:
        """Take what was put for the next transactions, whole: they begin at `starts`, and `ids` are the last one's.

        `added` is the running hash that all of those not sealed make of 0, with them.
        """
        self.added = added
        self.starts.extend(starts)
        self.end = self.start + self._size
        self.last = self.appended = Seqno(self.last + len(starts))
        self.ids = ids

    def seal(self) -> Extent:
        """Return the transactions that are whole, as one extent, and forget them; their bytes are written."""
        starts = self.starts
        first = Seqno(self.last - len(starts) + 1)
        extent = Extent(
            first, starts, end=self.end, ids=self.ids, epoch=self.epoch, owners=self.owners, added=self.added
        )
        self.added = 0
        self.starts = []
        self.owners = set()
        return extent

    def go_back(self, seqno: Seqno, ids: tuple[str, str]) -> None:
        """Have `seqno` for the last transaction, here and anywhere, and nothing after it."""
        self.last = self.appended = seqno
        self.ids = ids
        self.added = 0
        self.starts = []
        self.owners = set()
        self.room = 0

    def allocate(self, end: int, ids: tuple[str, str]) -> None:
        """Give the next transaction to somebody else, who writes it up to `end`; nothing is pending."""
        self.start = end
        self.last = Seqno(self.last + 1)
        self.ids = ids
        self.room = 0
