"""A Tungsten directory as a stream of transactions of ours, whole and in order, while a replicator may be writing it.

Owns reading what `arrange` judges and `translate` translates. Memory is one transaction's headers and one fragment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from tranlog.change import TableName
from tranlog.errors import PayloadError
from tranlog.log.records.format import TABLE_ITEMS_MAX
from tranlog.tungsten.files.segments import TungstenSegment, filtered_header
from tranlog.tungsten.reading.reader import TungstenCursor, TungstenReader
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.rules.arrange import Piece, Whole, arrange
from tranlog.tungsten.rules.translate import NativeFragment, Outer, missing_fragment, outer_of, to_native


class WholeReader:
    """Reads whole transactions forward. Threads: one.

    `wanted`: the lowest seqno to return; the cursor may stand before it. `left_out` holds what did not follow and was
    passed over since it was last emptied; of a strict cursor that is an error instead.
    """

    def __init__(self, cursor: TungstenCursor, *, wanted: int | None = None) -> None:
        self._cursor = cursor
        self._from = wanted
        self._follows: int | None = None  # the lowest seqno that may come, by what was read
        self._ready: deque[Whole] = deque()
        self._segments: dict[int, TungstenSegment] = {}
        self.left_out: list[Piece] = []

    def next(self) -> Whole | None:
        """Return the next transaction, None where the log ends for now. Raises what the cursor raises, PayloadError."""
        while not self._ready:
            run = self._cursor.next_run()
            if run is None:
                return None
            self._segments = {segment.number: segment for _, segment in run}
            pieces = [
                Piece(record=record, segment=segment.number, end=range_end(segment, record)) for record, segment in run
            ]
            found, left_out = arrange(pieces, self._follows)
            for whole in found:
                self._follows = whole.end_seqno + 1
                if self._from is None or whole.end_seqno >= self._from:
                    self._ready.append(whole)
            self.left_out += [p for p in left_out if self._from is None or p.record.seqno >= self._from]
        return self._ready.popleft()

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        self._cursor.close()

    def lost(self) -> str | None:
        """Return why what `next` returned last is no longer there; see `TungstenCursor.lost`."""
        return self._cursor.lost()

    def payload(self, piece: Piece) -> bytes:
        """Return the payload of a fragment of what `next` returned last."""
        return self._segments[piece.segment].payload(piece.record)

    def fragments(self, whole: Whole, *, keep: bool) -> Iterator[NativeFragment]:
        """Translate what `next` returned last, fragment by fragment. Raises PayloadError with the seqno."""
        return translated(whole, self.payload, keep=keep)


def translated(whole: Whole, payload_of: Callable[[Piece], bytes], *, keep: bool) -> Iterator[NativeFragment]:
    """Translate a transaction, fragment by fragment. Raises PayloadError with the seqno."""
    for fragno, piece in whole.fragments():
        if piece is None:
            first, _ = outer_of(whole.pieces[0].record)
            yield missing_fragment(msgspec.structs.replace(first, fragno=fragno, last_frag=False))
            continue
        try:
            yield to_native(piece.record, payload_of(piece), keep=keep)
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=whole.seqno) from exc


def fillers(first: int, last: int, like: Outer) -> Iterator[NativeFragment]:
    """Yield what stands for the seqnos `first` to `last`, both included; `like` is the transaction before them."""
    for seqno in range(first, last + 1):
        yield missing_fragment(msgspec.structs.replace(like, seqno=seqno, fragno=0, last_frag=True))


def range_end(segment: TungstenSegment, record: EventRecord) -> tuple[int, int] | None:
    """Return the (seqno, fragno) up to which a filtered range reaches, None for any other event."""
    header = filtered_header(segment, record)
    return None if header is None else header.end


def stand_before(reader: TungstenReader, seqno: int | None, *, strict: bool, all_there: bool = False) -> WholeReader:
    """Return what reads from `seqno` on, None: from the start; a filtered range that reaches there is read too.

    `all_there`: also what stands before it in its segment, at least one transaction if the log has one.
    """
    cursor = reader.cursor(strict=strict)
    if seqno is not None:
        cursor.seek_segment(reader.place_before(seqno))
    return WholeReader(cursor, wanted=None if all_there else seqno)


def with_tables(fragments: Iterable[NativeFragment]) -> Iterator[tuple[NativeFragment, tuple[TableName, ...] | None]]:
    """Add the tables that each fragment's header names: its own, and in the last one the whole transaction's."""
    whole: dict[TableName, None] = {}
    for fragment in fragments:
        whole.update(dict.fromkeys(fragment.tables))
        tables = fragment.tables
        if fragment.outer.last_frag:
            tables = tuple(whole)
            whole = {}
        size = sum([7 + len(schema.encode()) + len(table.encode()) for schema, table in tables])
        yield fragment, tables if size <= TABLE_ITEMS_MAX else None
