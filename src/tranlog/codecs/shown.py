"""A log directory of either codec, as `thl` shows it: native, or the Java replicator's own.

Owns the seam: for each codec the same few answers (its ends, its segments, lines of a
listing, what a lookup finds). The texts are `listing`'s and `tungsten.text`'s. The hard idea: to whoever lists a log
it is one kind of thing; what differs is said where it differs, and nowhere else.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from tranlog.clock import SYSTEM_CLOCK
from tranlog.codecs.opening import Codec, codec_of
from tranlog.disk import OsDisk
from tranlog.errors import LogClosedError, LogReplacedError, PayloadError
from tranlog.header import Record, TransactionHeader
from tranlog.ids import Gtid, Seqno
from tranlog.listing import Style, header_json, header_line, time_text
from tranlog.log.reading import text as native_text
from tranlog.log.reading.cursor import Cursor, StoredTransaction
from tranlog.log.reading.lookup import SCANNED_EVERY, OtherEpoch, Scanned, find_event, find_gtid, find_time
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import RollbackMark
from tranlog.payload import Payload, decode
from tranlog.tungsten.reading import text as tungsten_text
from tranlog.tungsten.reading.dump import dump_event
from tranlog.tungsten.reading.reader import Seek, StoredEvent, TungstenReader
from tranlog.tungsten.records.event import JavaObject
from tranlog.write_set import write_set_text

FOLLOW_LONGEST_S: Final = 0.2
"""How long to wait before the wish to stop is looked at."""
FOLLOW_EVERY_S: Final = 0.05
"""How often a directory of the Java replicator's is looked at by who follows it."""

Sought: TypeAlias = Gtid | int | str
"""What is looked up: a GTID, a time in ms, or an event id."""


def _nobody(seqno: int) -> None:
    """Take no notice."""


class ShownForm(enum.Enum):
    """What a listing prints of each fragment."""

    TEXT = "text"
    SQL = "sql"
    HEADERS = "headers"
    JSON = "json"
    HEADERS_JSON = "headers, json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotThere:
    """A lookup found nothing; `why` is the sentence for people."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLine:
    """A segment: the seqnos it holds, both included (-1 for both: none), its bytes, when it was last written (ms)."""

    name: str
    first_seqno: int
    last_seqno: int
    bytes: int
    modified_ms: int


class ShownLog(Protocol):
    """What `thl` asks of a log, whatever its codec. Threads: one."""

    path: str

    @property
    def history(self) -> bytes | None:
        """The identity of its history; None where there is none."""
        return None

    def ends(self) -> tuple[int, int]:
        """Return the first and the last seqno that readers may see; -1 for both in an empty log."""

    def count(self, passed: Scanned) -> int:
        """Return how many transactions it holds, as `ends` says; `passed` is told now and then how far it is.

        Raises CorruptRecordError where that is not known without reading what is damaged.
        """

    def notes(self) -> tuple[str, ...]:
        """Return what is odd about the directory and no error."""
        return ()

    def segments(self) -> list[SegmentLine]:
        """Describe the segments, oldest first."""

    def check_whole(self) -> None:
        """Raise CorruptRecordError where a segment is missing between others."""

    def held_from(self, seqno: int) -> int:
        """Return the lowest seqno from `seqno` on that is there; a filtered range holds all of its own."""
        return seqno

    def look_up(self, sought: Sought, scanned: Scanned) -> Seqno | NotThere:
        """Return the seqno of what is sought."""

    def lines(self, low: int, high: int, form: ShownForm, style: Style, passed: Scanned = _nobody) -> Iterator[str]:
        """Yield what `form` shows of each fragment from `low` to `high`, both included.

        `passed` is told now and then how far it is.
        """

    def follow(
        self, seqno: int, form: ShownForm, style: Style, stop: threading.Event, hold: str | None
    ) -> Iterator[str]:
        """Yield the same from `seqno` on until `stop`, waiting for what comes, with a hold of that name, if any."""

    def close(self) -> None:
        """Let go of the files."""


def open_log(path: str, *, checksum: bool = True) -> ShownLog:
    """Open a directory of either codec for reading.

    Raises MixedCodecsError, and what `LogReader.open` and `TungstenReader.open` raise.
    """
    if codec_of(path) is Codec.TUNGSTEN:
        return TungstenShown(TungstenReader.open(path, checked=checksum))
    return NativeShown(LogReader.open(path, checksum=checksum))


class NativeShown(ShownLog):
    """A native log."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self.path = reader.path

    @property
    def history(self) -> bytes | None:
        """See ShownLog."""
        return self.reader.history

    def ends(self) -> tuple[int, int]:
        """See ShownLog."""
        held = self.reader.range()
        return held.first_seqno, held.last_seqno

    def count(self, passed: Scanned) -> int:
        """See ShownLog: there is one for each seqno."""
        first, last = self.ends()
        return last - first + 1 if last >= first >= 0 else 0

    def segments(self) -> list[SegmentLine]:
        """See ShownLog."""
        out = []
        for one in self.reader.index():
            empty = one.last_seqno < one.first_seqno
            out.append(
                SegmentLine(
                    name=one.name,
                    first_seqno=-1 if empty else one.first_seqno,
                    last_seqno=-1 if empty else one.last_seqno,
                    bytes=one.bytes,
                    modified_ms=self.reader.modified_ms(one.name),
                )
            )
        return out

    def check_whole(self) -> None:
        """See ShownLog."""
        self.reader.check_whole()

    def look_up(self, sought: Sought, scanned: Scanned) -> Seqno | NotThere:
        """See ShownLog."""
        match sought:
            case Gtid():
                found = find_gtid(self.reader, sought)
                if isinstance(found, OtherEpoch):
                    return NotThere(why=f"{sought}: seqno {sought.seqno} is {found.found.gtid} in this log")
            case int():
                found = find_time(self.reader, sought, scanned=scanned)
            case str():
                found = find_event(self.reader, sought, scanned=scanned)
        return _not_there(sought) if found is None else found.seqno

    def lines(self, low: int, high: int, form: ShownForm, style: Style, passed: Scanned = _nobody) -> Iterator[str]:
        """See ShownLog."""
        with self.reader.cursor() as cursor:
            cursor.seek(Seqno(low))
            for seqno in range(low, high + 1):
                transaction = cursor.next()
                if transaction is None:
                    raise LogClosedError(f"it was cut back to before seqno {seqno} while it was read")
                if seqno % SCANNED_EVERY == 0:
                    passed(seqno)
                yield from _transaction_lines(transaction, cursor, form, style)

    def follow(
        self, seqno: int, form: ShownForm, style: Style, stop: threading.Event, hold: str | None
    ) -> Iterator[str]:
        """See ShownLog."""
        with self.reader.cursor(hold=hold) as cursor:
            cursor.seek(Seqno(seqno))
            while not stop.is_set():
                transaction = cursor.next(timeout_s=FOLLOW_LONGEST_S)
                if transaction is not None:
                    yield from _transaction_lines(transaction, cursor, form, style)

    def abandoned(self, low: int, high: int | None, form: ShownForm, style: Style) -> Iterator[str]:
        """Yield what rollbacks abandoned, in the forms of any other listing; a line with the mark before each run."""
        shown: RollbackMark | None = None
        for mark, record in self.reader.abandoned():
            seqno = record.header.seqno
            if seqno < low or (high is not None and seqno > high):
                continue
            if mark is not shown:
                shown = mark
                yield (
                    native_text.mark_json(mark)
                    if form is ShownForm.HEADERS_JSON or form is ShownForm.JSON
                    else native_text.mark_line(mark)
                )
            yield from _record_lines(record.header, partial(_decode, record), form, style)

    def close(self) -> None:
        """See ShownLog."""
        self.reader.close()


def _transaction_lines(transaction: StoredTransaction, cursor: Cursor, form: ShownForm, style: Style) -> Iterator[str]:
    """Yield the lines of the transaction that the cursor returned last."""
    h = f"{cursor.h():016x}" if form is ShownForm.HEADERS_JSON else None
    headers_only = form is ShownForm.HEADERS or form is ShownForm.HEADERS_JSON
    if headers_only and transaction.fragments == 1:
        yield from _record_lines(transaction.header, None, form, style, h)
        return
    for record in transaction.records():
        yield from _record_lines(record.header, partial(_decode, record), form, style, h)


def _record_lines(
    header: TransactionHeader,
    payload: Callable[[], Payload] | None,
    form: ShownForm,
    style: Style,
    h: str | None = None,
) -> Iterator[str]:
    match form:
        case ShownForm.HEADERS:
            yield header_line(header, style.zone, write_set_text(header.write_set, header.tables or ()))
            return
        case ShownForm.HEADERS_JSON:
            comments = write_set_text(header.write_set, header.tables or ())
            yield header_json(header, style.zone, h, comments, header.gtid)
            return
    assert payload is not None
    match form:
        case ShownForm.TEXT:
            yield from native_text.fragment_lines(header, payload(), style)
        case ShownForm.SQL:
            yield from native_text.sql_lines(header, payload(), style)
        case ShownForm.JSON:
            yield native_text.fragment_json(header, payload(), style.zone)


def _decode(record: Record) -> Payload:
    try:
        return decode(record.payload)
    except PayloadError as exc:
        raise PayloadError(why=exc.why, seqno=record.header.seqno) from exc


def _not_there(sought: Sought) -> NotThere:
    match sought:
        case Gtid():
            return NotThere(why=str(sought))
        case int():
            return NotThere(why=f"a transaction of {time_text(sought)} or later")
        case str():
            return NotThere(why=f"event id {sought}")


class TungstenShown(ShownLog):
    """A directory of the Java replicator's. What it let through out of order (B7-22) is shown as it stands."""

    def __init__(self, reader: TungstenReader) -> None:
        self.reader = reader
        self.path = reader.path

    def ends(self) -> tuple[int, int]:
        """See ShownLog."""
        return self.reader.first_seqno, max(self.reader.last_seqno, self.reader.next_seqno - 1)

    def count(self, passed: Scanned) -> int:
        """See ShownLog: its seqnos may leave gaps, and a filtered range is one transaction."""
        found = 0
        for stored in self._events():
            found += stored.record.last_frag
            if stored.record.seqno % SCANNED_EVERY == 0:
                passed(stored.record.seqno)
        return found

    def notes(self) -> tuple[str, ...]:
        """See ShownLog."""
        return self.reader.notes + self.reader.order_notes

    def segments(self) -> list[SegmentLine]:
        """See ShownLog."""
        disk = OsDisk()
        return [
            SegmentLine(
                name=one.name,
                first_seqno=one.first_seqno,
                last_seqno=one.last_seqno,
                bytes=one.bytes,
                modified_ms=disk.modified_ms(f"{self.path.rstrip('/')}/{one.name}"),
            )
            for one in self.reader.index()
        ]

    def check_whole(self) -> None:
        """See ShownLog."""
        self.reader.check_whole()

    def held_from(self, seqno: int) -> int:
        """See ShownLog."""
        with self.reader.cursor(strict=False) as cursor:
            stored = None if cursor.seek(seqno) is Seek.FOUND else cursor.next()
            return seqno if stored is None else stored.record.seqno

    def look_up(self, sought: Sought, scanned: Scanned) -> Seqno | NotThere:
        """See ShownLog."""
        if isinstance(sought, Gtid):
            with self.reader.cursor(strict=False) as cursor:
                stored = cursor.next() if cursor.seek(sought.seqno) is Seek.FOUND else None
            if stored is None:
                return _not_there(sought)
            if stored.record.epoch != sought.epoch:
                there = f"GTID({stored.record.epoch}, {stored.record.seqno})"
                return NotThere(why=f"{sought}: seqno {sought.seqno} is {there} in this log")
            return sought.seqno
        found: int | None = None
        for stored in self._events():
            record = stored.record
            if record.seqno % SCANNED_EVERY == 0:
                scanned(record.seqno)
            if isinstance(sought, int):
                if record.last_frag and record.tstamp >= sought:
                    return Seqno(record.seqno)
            elif record.event_id == sought:
                found = record.seqno
        return _not_there(sought) if found is None else Seqno(found)

    def _events(self) -> Iterator[StoredEvent]:
        with self.reader.cursor(strict=False) as cursor:
            while (stored := cursor.next()) is not None:
                yield stored

    def lines(self, low: int, high: int, form: ShownForm, style: Style, passed: Scanned = _nobody) -> Iterator[str]:
        """See ShownLog."""
        with self.reader.cursor(strict=False) as cursor:
            if low > self.reader.first_seqno:
                cursor.seek(low)
            while (stored := cursor.next()) is not None:
                if stored.record.seqno > high:
                    return
                if stored.record.seqno % SCANNED_EVERY == 0:
                    passed(stored.record.seqno)
                yield from _event_lines(stored, form, style)

    def follow(
        self, seqno: int, form: ShownForm, style: Style, stop: threading.Event, hold: str | None
    ) -> Iterator[str]:
        """See ShownLog."""
        with self.reader.cursor(strict=False) as cursor:
            if seqno > self.reader.first_seqno:
                cursor.seek(seqno)
            while not stop.is_set():
                stored = cursor.next()
                if stored is not None:
                    yield from _event_lines(stored, form, style)
                elif (why := cursor.lost()) is not None:
                    raise LogReplacedError(path=self.path, why=why)
                else:
                    SYSTEM_CLOCK.sleep(FOLLOW_EVERY_S)

    def close(self) -> None:
        """See ShownLog."""


def _event_lines(stored: StoredEvent, form: ShownForm, style: Style) -> Iterator[str]:
    match form:
        case ShownForm.HEADERS:
            yield header_line(stored.record, style.zone)
        case ShownForm.HEADERS_JSON:
            yield header_json(stored.record, style.zone)
        case ShownForm.TEXT:
            yield from tungsten_text.event_lines(stored.record, stored.event(), style)
        case ShownForm.SQL:
            yield from tungsten_text.sql_lines(stored.record, stored.event(), style)
        case ShownForm.JSON:
            yield _event_json(stored, style)


def _event_json(stored: StoredEvent, style: Style) -> str:
    """Return one fragment as one line: the names of `-headers -json`, and the event as the replicator has it."""
    record, event = stored.record, stored.event()
    shown: dict[str, object] = {
        "seqno": record.seqno,
        "epoch": record.epoch,
        "frag": record.fragno,
        "lastFrag": record.last_frag,
        "time": time_text(record.tstamp, style.zone),
        "tstamp": record.tstamp,
        "eventId": record.event_id,
        "sourceId": record.source_id,
        "shardId": record.shard_id,
    }
    if isinstance(event, JavaObject):
        shown["raw"] = stored.payload.hex()
        shown["note"] = event.sentence()
    else:
        shown["event"] = dump_event(event)
    return msgspec.json.encode(shown).decode()
