"""From the ancestor's records to a row of transactions without a gap: decides, does not act.

Owns which fragments make a transaction, what is left out, and what stands where the ancestor has nothing. The hard
idea: a native log has every seqno and every fragment, the ancestor's has not (filtered ranges, a raised base seqno),
so each hole is filled with something that says so and is dropped on the way back.

Source: docs/conformance.md, B7-22.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tranlog.tungsten.records.record import EventRecord

WIDE_GAP: Final = 1_000_000
"""More seqnos in a row than this are not filled: so many are a damaged number rather than history."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """An event record, its segment, and the end of the filtered range that it stands for, if it does."""

    record: EventRecord
    segment: int
    end: tuple[int, int] | None = None

    @property
    def next_fragno(self) -> int:
        """The fragment that belongs after this one in its transaction."""
        return 1 + (self.record.fragno if self.end is None else max(self.end[1], self.record.fragno))


class Whole(msgspec.Struct, frozen=True):
    """The fragments of one transaction, in order, the last one with its mark."""

    pieces: tuple[Piece, ...]

    @property
    def seqno(self) -> int:
        """The transaction's seqno."""
        return self.pieces[0].record.seqno

    @property
    def end_seqno(self) -> int:
        """The last seqno that it stands for: its own, or a filtered range's end."""
        end = self.pieces[-1].end
        return self.seqno if end is None else max(end[0], self.seqno)

    def fragments(self) -> Iterator[tuple[int, Piece | None]]:
        """Yield every fragment by its number; None for one that a filtered range before it stands for."""
        fragno = 0
        for piece in self.pieces:
            while fragno < piece.record.fragno:
                yield fragno, None
                fragno += 1
            yield fragno, piece
            fragno += 1


def arrange(run: Sequence[Piece], wanted: int | None) -> tuple[list[Whole], list[Piece]]:
    """Return the transactions in a run of records, and the records that do not follow: these are left out.

    `wanted`: the lowest seqno that may come; None: any. A run ends with a last fragment; more than one transaction is
    in it only where the ancestor let an open one stay (B7-22).
    """
    found: list[Whole] = []
    left_out: list[Piece] = []
    open_pieces: list[Piece] = []
    for piece in run:
        record = piece.record
        if not (
            open_pieces and record.seqno == open_pieces[0].record.seqno and record.fragno == open_pieces[-1].next_fragno
        ):
            left_out += open_pieces
            open_pieces = []
            if record.fragno != 0 or (wanted is not None and record.seqno < wanted):
                left_out.append(piece)
                continue
        open_pieces.append(piece)
        if record.last_frag:
            found.append(Whole(tuple(open_pieces)))
            wanted = found[-1].end_seqno + 1
            open_pieces = []
    return found, left_out + open_pieces
