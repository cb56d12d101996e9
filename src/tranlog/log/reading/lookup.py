"""Finding a transaction by its GTID, by a time, or by the source's event id.

Owns what each of the three promises; where a seqno lies is the index's. The hard idea: only seqnos are in order.
Times are those of the source's clock, which may go back, and event ids mean nothing to us; so both are found by
reading headers, segment by segment, and the promise names the order: the *first* in the log at or after a time, the
*newest* with an event id.

Source: tokumx-replication (GTID).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import RecordHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEpoch:
    """The log holds the seqno that was asked for, in another epoch: another history."""

    wanted: Gtid
    found: RecordHeader


Scanned: TypeAlias = Callable[[int], None]
"""Told which seqno a search has reached, every SCANNED_EVERY seqnos."""
SCANNED_EVERY: Final = 4096


def _nobody(seqno: int) -> None:
    """Nobody wants to know."""


def parse_time(text: str) -> int:
    """Read a time as `thl list` shows it, `2011-07-01 15:15:17.5`, in UTC unless it names an offset; ms since 1970.

    A plain number is ms already. Parts of a millisecond are rounded up: nothing before them is meant. Raises
    ValueError.
    """
    stripped = text.strip()
    if stripped.isdecimal() and len(stripped) > 8:
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"not a time: {text!r}; write 2011-07-01 15:15:17.5 (UTC), or ms since 1970") from exc
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-micros // 1000)


def find_gtid(log: LogReader, gtid: Gtid) -> RecordHeader | OtherEpoch | None:
    """Return the transaction with this GTID, OtherEpoch for one of the same seqno, None for a seqno not held.

    Shape: the header of its last fragment. Raises CorruptRecordError, PurgedError, SegmentGoneError.
    """
    header = log.header(gtid.seqno)
    if header is None:
        return None
    return header if header.epoch == gtid.epoch else OtherEpoch(wanted=gtid, found=header)


def find_time(log: LogReader, at_ms: int, *, scanned: Scanned = _nobody) -> RecordHeader | None:
    """Return the first transaction in the log whose commit time is `at_ms` or later; None if there is none.

    Every transaction before it has an earlier time. What stands after it may have one, too: after a source's clock
    was set back, a transaction is found where it stands and not where it would sort. No-ops carry the writer's time,
    not a source's, and do not count. Reads headers from the front. Raises CorruptRecordError, PurgedError,
    SegmentGoneError, PayloadError.
    """
    held = log.range()
    if held.last_seqno < 0:
        return None
    with log.cursor() as cursor:
        for segment in log.index():
            first, last = max(segment.first_seqno, held.first_seqno), min(segment.last_seqno, held.last_seqno)
            if last < first:
                continue
            cursor.seek(Seqno(first))
            for seqno in range(first, last + 1):
                if seqno % SCANNED_EVERY == 0:
                    scanned(seqno)
                header = cursor.next_header()
                if header is None:
                    return None
                if header.tstamp >= at_ms and not cursor.current().is_noop():
                    return header
    return None


def find_event(log: LogReader, event_id: str, *, scanned: Scanned = _nobody) -> RecordHeader | None:
    """Return the newest transaction with this event id, compared letter by letter; None if there is none.

    A no-op repeats the event id before it and does not count. Reads headers from the newest segment back; within a
    segment forward. Raises CorruptRecordError, PurgedError, SegmentGoneError, PayloadError.
    """
    held = log.range()
    if held.last_seqno < 0:
        return None
    with log.cursor() as cursor:
        for segment in reversed(log.index()):
            first, last = max(segment.first_seqno, held.first_seqno), min(segment.last_seqno, held.last_seqno)
            if last < first:
                continue
            found: RecordHeader | None = None
            cursor.seek(Seqno(first))
            for seqno in range(first, last + 1):
                if seqno % SCANNED_EVERY == 0:
                    scanned(seqno)
                header = cursor.next_header()
                if header is None:
                    break
                if header.event_id == event_id and not cursor.current().is_noop():
                    found = header
            if found is not None:
                return found
    return None
