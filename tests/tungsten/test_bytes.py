"""Mutated bytes of real Tungsten files: a value or one of our errors, bounded.

The samples are what the real replicator wrote. A log with one damaged segment is read, opened for writing and purged:
what a reader shows is the beginning of what was written, and a writer cuts nothing that a reader had been shown.
"""

from __future__ import annotations

import contextlib
import random
from typing import get_args
from zlib import crc32

import pytest

from fix_mutation import Fuzz, mutated
from fix_tungsten import LOG, any_event, golden_cases, golden_segments, on_disk, open_log, read_places
from tranlog.errors import LogError, PayloadError, RecordLimitError
from tranlog.ids import segment_name
from tranlog.tungsten.reading import text
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.records.codec import (
    FILE_HEADER,
    encode_event,
    encode_file_header,
    is_native,
    parse_file_header,
    parse_record,
    pass_plain,
    read_utf,
    scan,
    segment_number,
    skip_events,
    write_utf,
)
from tranlog.tungsten.records.event import Event, JavaObject, RowChanges
from tranlog.tungsten.records.payload import decode, decode_header, encode
from tranlog.tungsten.records.record import EventRecord, FileHeader, ImpossibleEvent, Outcome, PartialEvent
from tranlog.tungsten.records.values import to_value
from tranlog.tungsten.writing.directory import purge


@pytest.fixture(scope="module")
def segments() -> list[bytes]:
    return [raw for case in golden_cases() for raw in golden_segments(case).values() if raw]


@pytest.fixture(scope="module")
def records(segments: list[bytes]) -> list[bytes]:
    found: set[bytes] = set()
    for raw in segments:
        for outcome in scan(raw, checked=False):
            if isinstance(outcome, EventRecord) and len(found) < 300:
                found.add(raw[outcome.offset : outcome.end])
    return sorted(found)


@pytest.fixture(scope="module")
def payloads(records: list[bytes]) -> list[bytes]:
    found = []
    for raw in records:
        outcome = parse_record(raw, 0, 0, checked=False)
        assert isinstance(outcome, EventRecord)
        found.append(raw[outcome.payload_offset : outcome.payload_offset + outcome.payload_length])
    return found + [encode(any_event(random.Random(seed))) for seed in range(60)]


def mend(raw: bytes) -> bytes:
    """Make a record's length and checksum right again."""
    if len(raw) < 14:
        return raw
    body = raw[4:-9]
    return len(raw).to_bytes(4, "big") + body + b"\1" + crc32(body).to_bytes(8, "big")


def read_payload(raw: bytes) -> None:
    try:
        event = decode(raw)
    except PayloadError:
        return
    with contextlib.suppress(PayloadError):
        decode_header(raw)
    if isinstance(event, JavaObject):
        return
    for change in event.changes:
        if isinstance(change, RowChanges):
            for table in change.tables:
                for specs, rows in ((table.key_specs, table.keys), (table.column_specs, table.rows)):
                    for row in rows:
                        for spec, cell in zip(specs, row, strict=False):
                            to_value(
                                cell,
                                sql_type=spec.sql_type,
                                signed=spec.signed,
                                length=spec.length,
                                description=spec.description or "",
                            )
    again = decode(encode(event))
    assert isinstance(again, Event)
    assert encode(again) == encode(event)


def read_record(raw: bytes) -> None:
    outcome = parse_record(raw, 0, 0, checked=True)
    assert isinstance(outcome, get_args(Outcome))
    parse_record(raw, 0, 0, checked=False)
    is_native(raw)
    for stop, before in (skip_events(raw, 0, 1 << 62, checked=True), pass_plain(raw, 0, 0)[:2]):
        assert 0 <= stop <= len(raw) and before < stop
    if not isinstance(outcome, EventRecord):
        return
    payload = raw[outcome.payload_offset : outcome.payload_offset + outcome.payload_length]
    assert len(payload) == outcome.payload_length
    read_payload(payload)
    with contextlib.suppress(PayloadError):
        event = decode(payload)
        for lines in (text.event_lines, text.sql_lines):
            for line in lines(outcome, event):
                line.encode()
    try:
        again = encode_event(
            seqno=outcome.seqno,
            fragno=outcome.fragno,
            last_frag=outcome.last_frag,
            epoch=outcome.epoch,
            source_id=outcome.source_id,
            event_id=outcome.event_id,
            shard_id=outcome.shard_id,
            tstamp=outcome.tstamp,
            payload=payload,
            checksum=outcome.crc_type == 1,
        )
    except RecordLimitError:
        return
    found = parse_record(again, 0, 0, checked=True)
    assert isinstance(found, EventRecord) and found.event_id == outcome.event_id and found.seqno == outcome.seqno


def test_records(fuzz: Fuzz, records: list[bytes]) -> None:
    fuzz.samples(records, read_record, mend=mend, share=0.4)


def test_payloads(fuzz: Fuzz, payloads: list[bytes]) -> None:
    fuzz.samples(payloads, read_payload, share=0.5)


def test_file_headers(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        found = parse_file_header(raw)
        assert isinstance(found, FileHeader | PartialEvent | ImpossibleEvent)
        if isinstance(found, FileHeader) and found.minor == 1:
            assert encode_file_header(found.base_seqno) == raw[: FILE_HEADER.size]

    fuzz.samples([encode_file_header(seqno) for seqno in (-1, 0, 54)], read, share=0.2)


def test_names(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        name = raw.decode(errors="surrogateescape")
        number = segment_number(name)
        assert number is None or segment_name(number) == name

    fuzz.samples([segment_name(number).encode() for number in (1, 4_000_000_000)], read, share=0.1)


def test_modified_utf8(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        try:
            found = read_utf(raw)
        except ValueError:
            return
        found.encode()
        assert read_utf(write_utf(found)) == found

    fuzz.samples([write_utf("a\0é日😀"), write_utf("logos"), "😀é".encode()], read, share=0.3)


def test_whole_logs(fuzz: Fuzz) -> None:
    """One segment of a log damaged: for a reader, for the next writer, for a purge."""
    cases = [golden_segments(case) for case in ("rotated-60", "filtered", "recover-partial-transaction")]

    def make(rng: random.Random) -> bytes:
        which = rng.randrange(len(cases))
        number = rng.choice(sorted(cases[which]))
        damaged = mutated(rng, [cases[which][number]])
        return bytes((which, number)) + damaged

    def shown(disk: object) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        with contextlib.suppress(LogError):
            with TungstenReader.open(LOG, disk=disk).cursor() as cursor:  # type: ignore[arg-type]
                while (stored := cursor.next()) is not None:
                    found.append((stored.record.seqno, stored.record.fragno))
        return found

    def read(raw: bytes) -> None:
        segments = {**cases[raw[0]], raw[1]: raw[2:]}
        whole = read_places(on_disk(cases[raw[0]]))
        before = shown(on_disk(segments))
        rest = iter(whole)  # cut out whole, a record leaves a gap, which the ancestor's reader takes too
        assert all(place in rest for place in before)
        disk = on_disk(segments)
        try:
            with open_log(disk) as log:
                next_place = log.next_place
        except LogError:
            pass
        else:
            after = shown(disk)
            assert after[: len(before)] == before, "a writer cut off what a reader had been shown"
            assert next_place is None or not after or next_place.seqno > after[-1][0]
        with contextlib.suppress(LogError):
            purge(LOG, low=3, disk=on_disk(segments))
        with contextlib.suppress(LogError):
            purge(LOG, high=20, disk=on_disk(segments))

    fuzz.cases(make, read, share=0.05)
