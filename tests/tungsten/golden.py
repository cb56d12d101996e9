"""Hold the Tungsten codec against directories that the real replicator wrote and dumped.

    make golden DIR=path

Owns the comparison: every case below DIR, that is every folder with a `log/` in it, against what lies beside that.
Prints the cases checked and each difference; ends with 1 where one is not meant. Which ones are meant is `intended`'s.
The hard idea: a case says itself what is to be compared, by the files that it has; nothing is skipped by name.

Source: README of the golden directories, "Layout of a case".
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final

from tranlog.disk import OsDisk
from tranlog.errors import LogError, PayloadError, PurgeRangeError
from tranlog.listing import PLAIN, Style, header_json, header_line, json_array
from tranlog.service.thl import listing
from tranlog.tungsten.reading import text
from tranlog.tungsten.reading.dump import Json, dump_event
from tranlog.tungsten.reading.reader import Seek, StoredEvent, TungstenReader
from tranlog.tungsten.records.codec import (
    CRC_32,
    CRC_NONE,
    FILE_HEADER,
    checksum_problem,
    encode_event,
    encode_file_header,
    encode_rotate,
    parse_file_header,
    scan,
    segment_number,
)
from tranlog.tungsten.records.event import Event, JavaObject, RowChanges
from tranlog.tungsten.records.payload import decode, encode
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    PartialEvent,
    Short,
    TungstenRotate,
    UnknownRecord,
)
from tranlog.tungsten.writing.directory import TungstenLog, purge
from tungsten.intended import KINDS, OUR_ERROR, Difference, Facts, kind_of

PURGE_QUESTION: Final = "Are you sure you wish to delete these events [y/N]?"
LOG_WORD: Final = "<LOGDIR>"
_TIME_OF_FILE: Final = re.compile(r", \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)$")
_SHOWN_LINES: Final = 6


@dataclass(slots=True)
class CaseReport:
    """What the check of one case found."""

    case: str
    checks: int = 0
    differences: list[Difference] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)


# --- the form of dump.jsonl ---------------------------------------------------------------------------------


def dump_segment(name: str, raw: bytes, *, checked: bool) -> Iterator[Json]:
    """Yield a segment in the form of `dump.jsonl`; an error's text is `error` alone, since the wording is ours."""
    header = parse_file_header(raw)
    if not isinstance(header, FileHeader):
        if isinstance(header, PartialEvent):
            yield {"file": name, "size": len(raw), "error": "error"}
        return
    yield {"file": name, "size": len(raw), "baseSeqno": header.base_seqno}
    at = FILE_HEADER.size
    for outcome in scan(raw, checked=checked):
        if isinstance(outcome, Short | BadLength):
            yield {"offset": at, "truncated": True}
            return
        yield _dump_record(raw, outcome)
        at = outcome.offset + outcome.length


def _dump_record(raw: bytes, record: EventRecord | TungstenRotate | UnknownRecord | Damaged) -> Json:
    kind = raw[record.offset + 4]
    line: dict[str, Json] = {
        "offset": record.offset,
        "length": record.length,
        "type": kind,
        "crcType": record.crc_type,
        "crc": record.crc,
        "crcOk": checksum_problem(raw, record.offset, record.length) is None,
    }
    match record:
        case Damaged():
            line["error"] = "error"
        case TungstenRotate(next_segment=number):
            line["rotateIndex"] = number
        case EventRecord():
            line |= {
                "seqno": record.seqno,
                "fragno": record.fragno,
                "lastFrag": record.last_frag,
                "epoch": record.epoch,
                "sourceId": record.source_id,
                "eventId": record.event_id,
                "shardId": record.shard_id,
                "sourceTstamp": record.tstamp,
            }
            try:
                event = decode(payload_of(raw, record))
            except PayloadError:
                line["error"] = "error"
            else:
                line["event"] = None if isinstance(event, JavaObject) else dump_event(event)
        case UnknownRecord():
            pass
    return line


def payload_of(raw: bytes, record: EventRecord) -> bytes:
    """Return an event's payload out of its whole segment."""
    return raw[record.payload_offset : record.payload_offset + record.payload_length]


# --- our texts -------------------------------------------------------------------------------------------


def _compare_json(theirs: Json, ours: Json, place: str) -> Iterator[tuple[str, Json, Json]]:
    """Yield (place, theirs, ours) for each value that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            at = f"{place}.{name}"
            if name not in ours or name not in theirs:
                yield at, theirs.get(name), ours.get(name)
            elif name != "error":  # that there is one, not its words
                yield from _compare_json(theirs[name], ours[name], at)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from _compare_json(one, other, f"{place}[{number}]")
    elif type(theirs) is not type(ours) or theirs != ours:
        yield place, theirs, ours


def _error_line(exc: LogError, path: str) -> str:
    return OUR_ERROR + str(exc).replace(path, LOG_WORD)


QUESTION: Final = f"{listing.PURGE_QUESTION} [y/N]?"


def _each_event(reader: TungstenReader) -> Iterator[StoredEvent]:
    with reader.cursor(strict=False) as cursor:
        while (stored := cursor.next()) is not None:
            yield stored


def _listing(style: Style | None, lines: Callable[..., Iterator[str]]) -> Callable[[TungstenReader], Iterator[str]]:
    def show(reader: TungstenReader) -> Iterator[str]:
        for stored in _each_event(reader):
            for line in lines(stored.record, stored.event(), style or PLAIN):
                # The ancestor's listings were captured as text: a CR in a value is a line's end there.
                yield from line.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    return show


def _headers(reader: TungstenReader) -> Iterator[str]:
    for stored in _each_event(reader):
        yield header_line(stored.record)


def _headers_json(reader: TungstenReader) -> Iterator[str]:
    array = json_array(header_json(stored.record) for stored in _each_event(reader))
    yield from "\n".join(array).split("\n")


def _index(reader: TungstenReader) -> Iterator[str]:
    yield from [listing.index_line(one.name, one.first_seqno, one.last_seqno) for one in reader.index()]
    yield ""
    reader.check_whole()


def _info(reader: TungstenReader) -> Iterator[str]:
    files = [listing.SegmentShown(file=entry.name, bytes=entry.size, modified_ms=0) for entry in reader.segments()]
    first, last = reader.first_seqno, reader.last_seqno
    events = last - first + 1 if last >= first >= 0 else 0  # of seqnos, as the ancestor's are
    shown = listing.overview(reader.path, files, first=first, last=last, events=events, history=None)
    yield from listing.overview_lines(shown)
    reader.check_whole()


FORMS: Final[dict[str, Callable[[TungstenReader], Iterator[str]]]] = {
    "list.txt": _listing(None, text.event_lines),
    "list-specs-hex.txt": _listing(Style(specs=True, hex=True), text.event_lines),
    "list-sql.txt": _listing(None, text.sql_lines),
    "headers.txt": _headers,
    "headers.json": _headers_json,
    "index.txt": _index,
    "info.txt": _info,
}
"""The texts that may lie beside a log, by the name of their file."""


def shown(path: str, form: str, *, checked: bool) -> list[str]:
    """Return the lines of one text; an error ends them as a line that begins with OUR_ERROR."""
    lines: list[str] = []
    try:
        for line in FORMS[form](TungstenReader.open(path, checked=checked)):
            lines.append(_TIME_OF_FILE.sub(", <TIME>)", line.replace(path, LOG_WORD)))
    except LogError as exc:
        lines.append(_error_line(exc, path))
    return lines


def _their_lines(raw: bytes) -> list[str]:
    lines = raw.decode("utf-8", "surrogateescape").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return [_TIME_OF_FILE.sub(", <TIME>)", line) for line in lines]


def compare_lines(case: str, what: str, theirs: Sequence[str], ours: Sequence[str]) -> Iterator[Difference]:
    """Yield the stretches of lines that differ; line by line where both have as many."""
    for tag, a, b, c, d in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        end = b == len(theirs) and d == len(ours)
        before = theirs[a - 1] if a else ""
        if b - a == d - c:
            for step in range(b - a):
                yield Difference(
                    case=case,
                    what=what,
                    place=f"line {a + step + 1}",
                    theirs=(theirs[a + step],),
                    ours=(ours[c + step],),
                    before=before,
                    to_the_end=end,
                )
        else:
            yield Difference(
                case=case,
                what=what,
                place=f"line {a + 1}",
                theirs=tuple(theirs[a:b]),
                ours=tuple(ours[c:d]),
                before=before,
                to_the_end=end,
            )


# --- one case --------------------------------------------------------------------------------------------


class _Case:
    """The checks of one case; each adds to the report what it finds."""

    def __init__(self, path: str, scratch: str) -> None:
        self.path = path
        self.log = os.path.join(path, "log")
        self.scratch = scratch
        self.report = CaseReport(case=os.path.basename(path))
        self.segments = _read_segments(self.log)
        self.made: dict[str, Json] = json.loads(self._read("case.json") or b"{}")

    def _has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.path, name))

    def _read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _add(self, what: str, place: str, theirs: Sequence[str], ours: Sequence[str]) -> None:
        self.report.differences.append(
            Difference(case=self.report.case, what=what, place=place, theirs=tuple(theirs), ours=tuple(ours))
        )

    def run(self) -> CaseReport:
        self.report.facts = self._facts()
        for prefix, checked in (("", True), ("nochk-", False)):
            self._dump(f"{prefix}dump.jsonl", self.log, checked)
            for form in FORMS:
                self._text(f"{prefix}{form}", form, self.log, checked)
        for step in (
            self._exit_code,
            self._warnings,
            self._single_seqnos,
            self._records_again,
            self._log_again,
            self._opened,
            self._purged,
        ):
            try:
                step()
            except LogError as exc:
                self._add(step.__name__.strip("_"), "the check ends", (), (_error_line(exc, self.log),))
        return self.report

    def _facts(self) -> Facts:
        java = rows = unknown = False
        for raw in self.segments.values():
            if not isinstance(parse_file_header(raw), FileHeader):
                continue
            for record in scan(raw, checked=True):
                if not isinstance(record, Short | BadLength):
                    unknown = unknown or record.crc_type not in (CRC_NONE, CRC_32)
                if isinstance(record, EventRecord):
                    try:
                        event = decode(payload_of(raw, record))
                    except PayloadError:
                        continue
                    java = java or isinstance(event, JavaObject)
                    rows = rows or (
                        isinstance(event, Event) and any(isinstance(change, RowChanges) for change in event.changes)
                    )
        newest = self.segments[max(self.segments)] if self.segments else b""
        return Facts(
            unfinished_newest=bool(self.segments) and isinstance(parse_file_header(newest), PartialEvent),
            java_objects=java,
            row_changes=rows,
            hole=_has_hole(self.segments),
            unknown_checksum=unknown,
        )

    def _dump(self, what: str, log: str, checked: bool) -> None:
        raw = self._read(what)
        if raw is None:
            return
        self.report.checks += 1
        theirs = [json.loads(line) for line in raw.splitlines() if line.startswith(b"{")]
        ours = [
            line
            for name, held in sorted(_read_segments(log).items())
            for line in dump_segment(name, held, checked=checked)
        ]
        if len(theirs) != len(ours):
            self._add(what, "number of lines", (str(len(theirs)),), (str(len(ours)),))
            return
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True), 1):
            for place, a, b in _compare_json(one, other, ""):
                shown_ours = () if b is None else (json.dumps(b),)
                self._add(what, f"line {number} {place}", (json.dumps(a),), shown_ours)

    def _text(self, what: str, form: str, log: str, checked: bool) -> None:
        raw = self._read(what)
        if raw is None:
            return
        self.report.checks += 1
        ours = shown(log, form, checked=checked)
        # Blobs in a listing are arbitrary bytes; what is no UTF-8 was replaced in both.
        theirs = [line.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for line in _their_lines(raw)]
        self.report.differences += compare_lines(self.report.case, what, theirs, ours)

    def _exit_code(self) -> None:
        raw = self._read("list.log")
        if raw is None:
            return
        self.report.checks += 1
        theirs = raw.split(b"\n", 1)[0].decode()
        ours = (
            "exit=1"
            if any(line.startswith(OUR_ERROR) for line in shown(self.log, "list.txt", checked=True))
            else "exit=0"
        )
        if theirs != ours:
            self._add("list.log", "exit code", (theirs,), (ours,))

    def _warnings(self) -> None:
        """A warning of the ancestor's opening for reading is a note of ours."""
        raw = self._read("list.log")
        if raw is None:
            return
        self.report.checks += 1
        theirs = any(line.startswith(b"WARN") for line in raw.split(b"\n"))
        try:
            notes = TungstenReader.open(self.log).notes
        except LogError:
            return
        if theirs != bool(notes):
            self._add("list.log", "warnings", (str(theirs),), notes)

    def _single_seqnos(self) -> None:
        for name in sorted(os.listdir(self.path)):
            found = re.fullmatch(r"list-seqno-(\d+)\.txt", name)
            if found is None:
                continue
            self.report.checks += 1
            raw = self._read(name)
            assert raw is not None
            ours: list[str] = []
            with TungstenReader.open(self.log).cursor(strict=False) as cursor:
                if cursor.seek(int(found[1])) is Seek.FOUND:
                    stored = cursor.next()
                    assert stored is not None
                    ours = list(text.event_lines(stored.record, stored.event()))
                else:
                    ours = [f"{OUR_ERROR}Unable to find sequence number"]
            theirs = _their_lines(raw)
            if theirs != ours:
                self._add(name, "text", theirs, ours)

    def _records_again(self) -> None:
        """Decode and encode every sound record: the same bytes."""
        self.report.checks += 1
        for name, raw in self.segments.items():
            header = parse_file_header(raw)
            if not isinstance(header, FileHeader):
                continue
            if header.minor == 1 and encode_file_header(header.base_seqno) != raw[:16]:
                self._add("re-encoding", name, (raw[:16].hex(),), (encode_file_header(header.base_seqno).hex(),))
            for record in scan(raw, checked=True):
                again = _again(raw, record)
                if again is None:
                    continue
                assert not isinstance(record, Short | BadLength)
                before = raw[record.offset : record.offset + record.length]
                if again != before:
                    self._add("re-encoding", f"{name} offset {record.offset}", (before.hex(),), (again.hex(),))

    def _log_again(self) -> None:
        """Write a sound log again, event by event, into a new directory: the same files."""
        made = self.made.get("options")
        if not isinstance(made, dict) or "writer_case" not in self.made:
            return
        self.report.checks += 1
        target = os.path.join(self.scratch, "again")
        reader = TungstenReader.open(self.log)
        checksum = all(
            record.crc_type == 1
            for raw in self.segments.values()
            for record in scan(raw, checked=True)
            if isinstance(record, EventRecord)
        )
        with TungstenLog.open(target, segment_bytes=int(made.get("fileSize", 10**9)), checksum=checksum) as log:
            for stored in _each_event(reader):
                _append_again(log, stored)
                log.commit()
        self._same_files("re-writing", self.segments, _read_segments(target))
        shutil.rmtree(target)

    def _same_files(self, what: str, theirs: dict[str, bytes], ours: dict[str, bytes]) -> None:
        for name in sorted(theirs.keys() | ours.keys()):
            one, other = theirs.get(name), ours.get(name)
            if one == other:
                continue
            at = next((n for n, (a, b) in enumerate(zip(one or b"", other or b"", strict=False)) if a != b), None)
            place = name if at is None else f"{name} byte {at}"
            self._add(
                what,
                place,
                () if one is None else (f"{len(one)} bytes",),
                () if other is None else (f"{len(other)} bytes",),
            )

    def _opened(self) -> None:
        """Open a copy for writing, look at it, and append what the ancestor appended."""
        for what in ("recovered", "appended"):
            if not self._has(what):
                continue
            self.report.checks += 1
            theirs = _read_segments(os.path.join(self.path, what))
            told = (self._read(f"{what}.txt") or b"").decode().split("\n")
            copy = self._copy("opened")
            before = _read_segments(copy)
            try:
                with TungstenLog.open(copy) as log:
                    if what == "appended":
                        for stored in _each_event(TungstenReader.open(os.path.join(self.path, what))):
                            place = log.next_place
                            if place is None or stored.record.seqno >= place.seqno:
                                _append_again(log, stored)
            except LogError as exc:
                self._opening_refused(what, told, exc, copy, before)
            else:
                if told[0] != "exit=0":
                    self._add(what, "exit code", (told[0],), ("exit=0",))
                self._same_files(what, theirs, _read_segments(copy))
                for name in sorted(os.listdir(os.path.join(copy, "cut"))) if os.path.isdir(f"{copy}/cut") else ():
                    self._add(what, f"cut/{name}", (), ("kept",))
                if what == "recovered":
                    self._recovered_told(told, copy)
            shutil.rmtree(copy)

    def _opening_refused(
        self, what: str, told: Sequence[str], exc: LogError, copy: str, before: dict[str, bytes]
    ) -> None:
        if _read_segments(copy) != before:
            self._add(what, "a refused opening", ("changes nothing",), ("changed the directory",))
        if told[0] == "exit=0":
            there = [told[0]]
            listing = shown(self.log, "list.txt", checked=True)
            if listing and _same_place(listing[-1], str(exc)):
                there.append("reading fails there too")
            self._add(what, "opening for writing", there, (_error_line(exc, copy),))

    def _recovered_told(self, told: Sequence[str], copy: str) -> None:
        self.report.checks += 1
        reader = TungstenReader.open(copy)
        theirs = [line for line in told if line.startswith(("min=", "LogIndexEntry"))]
        ours = [f"min={reader.first_seqno} max={reader.last_seqno} files={len(reader.segments())}"]
        ours += [line for line in _index(reader) if line]
        self.report.differences += compare_lines(self.report.case, "recovered.txt", theirs, ours)

    def _purged(self) -> None:
        args = self.made.get("args")
        if not self._has("after") or not isinstance(args, list):
            return
        low = high = None
        for name, value in pairwise(args):
            if name in ("-low", "-seqno"):
                low = int(value)
            if name in ("-high", "-seqno"):
                high = int(value)
        self.report.checks += 2
        copy = self._copy("purged")
        told = (self._read("purge.txt") or b"").decode().split("\n")
        refused: str | None = None
        try:
            purge(copy, low=low, high=high)
        except PurgeRangeError as exc:
            refused = exc.why
        their_refusal = next(
            (line.removeprefix("Fatal error: ") for line in told if line.startswith("Fatal error: ")), None
        )
        if refused != their_refusal:
            self._add("purge.txt", "refusal", (str(their_refusal),), (str(refused),))
        for line in (listing.PURGE_WARNING, listing.purge_line(low, high)):
            if line.rstrip() not in told:
                self._add("purge.txt", "text", tuple(told[:5]), (line,))
        if "-y" not in args and QUESTION not in told:
            self._add("purge.txt", "question", tuple(told[:5]), (QUESTION,))
        theirs, ours = _read_segments(os.path.join(self.path, "after")), _read_segments(copy)
        last = max(ours, default="")
        for name in sorted(theirs.keys() - ours.keys()):
            if low is not None and high is None and name > last:
                self._add("after", name, ("a segment above the end that the purge made",), ())
                theirs = {other: raw for other, raw in theirs.items() if other != name}
        self._same_files("after", theirs, ours)
        if ours:  # what is left is a log that opens for writing, without a cut
            with TungstenLog.open(copy) as log:
                if log.report.cuts:
                    self._add(
                        "after", "opening what is left", ("nothing to cut",), tuple(cut.why for cut in log.report.cuts)
                    )
        shutil.rmtree(copy)
        self._after_texts()

    def _after_texts(self) -> None:
        after = os.path.join(self.path, "after")
        self.report.facts = Facts(hole=_has_hole(_read_segments(after)))
        self._dump("after-dump.jsonl", after, True)
        for form in FORMS:
            self._text(f"after-{form}", form, after, True)

    def _copy(self, name: str) -> str:
        target = os.path.join(self.scratch, name)
        os.mkdir(target)
        for entry in os.listdir(self.log):
            shutil.copyfile(
                os.path.join(self.log, entry), os.path.join(target, entry)
            )  # not the mode: it may be read-only
        return target


def _has_hole(segments: Mapping[str, bytes]) -> bool:
    """Whether a segment is missing from the row, or ends without leading to the next; the newest leads nowhere."""
    row = sorted((number, raw) for name, raw in segments.items() if (number := segment_number(name)) is not None)
    gaps = any(following != number + 1 for (number, _), (following, _) in pairwise(row))
    return gaps or not all(
        isinstance(end, TungstenRotate) for _, raw in row[:-1] for end in list(scan(raw, checked=True))[-1:]
    )


def _same_place(one: str, other: str) -> bool:
    def place(line: str) -> str:
        found = re.search(r"(thl\.data\.\d+), offset (\d+)", line)
        return "" if found is None else found[0]

    return place(one) != "" and place(one) == place(other)


def _again(
    raw: bytes, record: EventRecord | TungstenRotate | UnknownRecord | Damaged | Short | BadLength
) -> bytes | None:
    """Return a record encoded again from what it decodes to, None for what is no sound record of a known type."""
    match record:
        case EventRecord():
            return encode_event(
                seqno=record.seqno,
                fragno=record.fragno,
                last_frag=record.last_frag,
                epoch=record.epoch,
                source_id=record.source_id,
                event_id=record.event_id,
                shard_id=record.shard_id,
                tstamp=record.tstamp,
                payload=encode(decode(payload_of(raw, record))),
                checksum=record.crc_type == 1,
            )
        case TungstenRotate(next_segment=number, crc_type=crc_type):
            return encode_rotate(number, checksum=crc_type == 1)
    return None


def _append_again(log: TungstenLog, stored: StoredEvent) -> None:
    event, record = stored.event(), stored.record
    if isinstance(event, Event):
        log.append(event, shard_id=record.shard_id, tstamp=record.tstamp)
        return
    log.append_payload(
        event.raw,
        seqno=record.seqno,
        fragno=record.fragno,
        last_frag=record.last_frag,
        epoch=record.epoch,
        source_id=record.source_id,
        event_id=record.event_id,
        shard_id=record.shard_id,
        tstamp=record.tstamp,
    )


def _read_segments(path: str) -> dict[str, bytes]:
    disk = OsDisk()
    out = {}
    for name in disk.list_dir(path):
        if segment_number(name) is not None:
            file = disk.open(os.path.join(path, name))
            try:
                out[name] = file.pread(file.size(), 0)
            finally:
                file.close()
    return out


# --- all of them -----------------------------------------------------------------------------------------


def cases_below(path: str) -> list[str]:
    """Return the folders below `path` that are cases: those with a `log/` in them."""
    return sorted(entry.path for entry in os.scandir(path) if os.path.isdir(os.path.join(entry.path, "log")))


def check_case(path: str) -> tuple[CaseReport, list[Difference], Counter[str]]:
    """Check one case; return the report, the differences that are not meant, and how many of each kind that is."""
    with tempfile.TemporaryDirectory(prefix="tranlog-golden-") as scratch:
        case = _Case(path, scratch)
        facts_before = case._facts()
        report = case.run()
    open_ones: list[Difference] = []
    meant: Counter[str] = Counter()
    for found in report.differences:
        kind = kind_of(found, report.facts if found.what.startswith("after") else facts_before)
        if kind is None:
            open_ones.append(found)
        else:
            meant[kind.name] += 1
    return report, open_ones, meant


def _print_lines(label: str, lines: Sequence[str]) -> None:
    for line in lines[:_SHOWN_LINES]:
        print(f"    {label} {line[:300]}")
    if len(lines) > _SHOWN_LINES:
        print(f"    {label} ... {len(lines) - _SHOWN_LINES} more lines")
    if not lines:
        print(f"    {label} nothing")


def main(arguments: Sequence[str]) -> int:
    """Check every case below the directory that is named; return 0, or 1 where something differs."""
    logging.getLogger("tranlog").addHandler(logging.NullHandler())  # what an opening cuts is told by the comparison
    if len(arguments) != 1:
        print("usage: make golden DIR=path", file=sys.stderr)
        return 2
    try:
        paths = cases_below(arguments[0])
    except OSError as exc:
        print(f"golden: cannot read {arguments[0]}: {exc.strerror}. Name a directory of cases", file=sys.stderr)
        return 4
    if not paths:
        print(f"golden: no case in {arguments[0]}: a case is a folder with a log/ in it", file=sys.stderr)
        return 4
    others = sorted(entry.name for entry in os.scandir(arguments[0]) if entry.is_dir() and entry.path not in paths)
    if others:
        print(f"passed over, without a log/: {', '.join(others)}")
    checks = differences = 0
    meant: Counter[str] = Counter()
    for path in paths:
        try:
            report, open_ones, by_intent = check_case(path)
        except (OSError, ValueError) as exc:  # a case that lacks what it says it has
            print(f"{os.path.basename(path)}: cannot be checked: {exc}")
            differences += 1
            continue
        checks += report.checks
        differences += len(open_ones)
        meant += by_intent
        verdict = "ok" if not open_ones else f"{len(open_ones)} differences"
        print(f"{report.case}: {report.checks} checks, {verdict}")
        for found in open_ones:
            print(f"  {found.what}, {found.place}")
            _print_lines("theirs:", found.theirs)
            _print_lines("ours:  ", found.ours)
    print("by intent:")
    for kind in KINDS:
        if meant[kind.name]:
            print(f"  {meant[kind.name]:4} {kind.name}: {kind.reason}")
    print(f"golden: {len(paths)} cases, {checks} checks, {differences} differences, {meant.total()} by intent")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
