"""Records that come as bytes, from another log of the same history: whether they follow, and how they are put.

Owns the one look at them: checksums, the row of seqnos and fragments, epochs that do not fall. The hard idea: almost
all are transactions of one fragment in the epoch before them, so they are taken in runs, and a run is put as one piece.

Source: thl-internals, "Reading from the THL"; docs/format.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.records.format import (
    RECORD_START,
    SEQNO_MAX,
    TRAILER,
    BadChecksum,
    Impossible,
    RecordHeader,
    parse_event,
    parse_record,
    take_events,
)
from tranlog.log.records.spill import Reference, parse_reference


@dataclass(frozen=True, slots=True)
class RawRun:
    """Records that stand side by side, from offset `start` to `end`, not including it.

    `places` are the offsets at which they begin: transactions of one fragment each, or a single record of any other
    kind. `header` is the last one's. `reference`: the record refers to a spilled transaction, by this.
    """

    start: int
    end: int
    places: list[int]
    header: RecordHeader
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class RawFault:
    """The first record that cannot be put: where it stands, which seqno belongs there, and what stands there."""

    offset: int
    seqno: Seqno
    why: str


def walk_raw(raw: bytes, last: Gtid, fragno: int = 0) -> list[RawRun] | RawFault:
    """Return the runs of whole records in `raw`, which come after `last`; the end may lie inside a transaction.

    `fragno` is the next fragment of the transaction after `last` if that is open, and then `last` has the epoch of that
    one; else 0. Every record's checksum is verified, and that its header does not contradict itself.
    """
    runs: list[RawRun] = []
    at, seqno, epoch = 0, last.seqno + 1, last.epoch
    while at < len(raw):
        places: list[int] = []
        if not fragno:
            behind, following = take_events(raw, at, seqno, SEQNO_MAX, places, verify=True, within=epoch)
            if places:
                header = parse_event(raw, places[-1], 0)
                assert header is not None, "take_events looked into it"
                runs.append(RawRun(at, behind, places, header))
                at, seqno = behind, following
                continue
        found = parse_record(raw, at, 0)
        if not isinstance(found, RecordHeader):
            told = found.why if isinstance(found, BadChecksum | Impossible) else "no whole record of a transaction"
            return RawFault(at, Seqno(seqno), told)
        reference = None
        if found.spilled:
            end = found.record_length + at - TRAILER.size
            reference = parse_reference(raw[end - found.data_length : end])
        wrong = _contradiction(found, seqno, fragno, epoch, reference)
        if wrong is not None:
            return RawFault(at, Seqno(seqno), wrong)
        runs.append(RawRun(at, at + found.record_length, [at], found, reference))
        at, epoch = at + found.record_length, found.epoch
        seqno, fragno = (seqno + 1, 0) if found.last_frag else (seqno, fragno + 1)
    return runs


def whole_records(raw: bytes | bytearray) -> int:
    """Return where the last whole record in `raw` ends, by the lengths alone; 0 where there is none."""
    view = memoryview(raw)
    end = 0
    while len(view) - end >= RECORD_START.size:
        length = RECORD_START.unpack_from(view, end)[0]
        if length < RECORD_START.size:
            return len(view)  # no record: whoever takes them says so
        if length > len(view) - end:
            break
        end += length
    return end


def _contradiction(
    header: RecordHeader, seqno: int, fragno: int, epoch: Epoch, reference: Reference | None
) -> str | None:
    """Return why a record does not follow; None if it does."""
    if (header.seqno, header.fragno) != (seqno, fragno):
        return f"seqno {header.seqno} fragment {header.fragno} in place of fragment {fragno}"
    if header.epoch < epoch or (fragno and header.epoch != epoch):
        return f"epoch {header.epoch} after epoch {epoch}"
    if header.spilled and reference is None:
        return "a reference whose numbers contradict each other"
    return None
