"""Mutated bytes of our own files: records, payloads, segments, positions, holds, marks.

Whatever the bytes, the outcome is a value or one of our errors, in bounded time and memory (`fix_mutation`). The
samples are what our writers wrote: a captured SQLite database, and a log with fragments, rotations and sync records.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from typing import get_args
from zlib import crc32

import apsw
import pytest

from fix_log import (
    PATH,
    append_large,
    fill,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    read_all,
    record_starts,
    segment_path,
)
from fix_mutation import Fuzz, mutated
from tranlog.capture.capture import Capture
from tranlog.change import RowChange, Statement
from tranlog.errors import LogError, LogUnreadableError, PayloadError, RecordLimitError
from tranlog.ids import Gtid, Seqno, segment_name, segment_number
from tranlog.log.files.cleared import MARK_NAME, read_mark
from tranlog.log.files.holds import hold, read_holds
from tranlog.log.files.positions import POSITIONS_BYTES, Positions, decode_positions
from tranlog.log.records.format import (
    END,
    EVENT_TYPE,
    HEADER,
    SEQNO_MAX,
    Impossible,
    Outcome,
    Partial,
    RecordHeader,
    SegmentHeader,
    encode_event,
    encode_header,
    is_tungsten,
    parse_event,
    parse_header,
    parse_record,
    skip_events,
)
from tranlog.log.upkeep.clearing import clear_log
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.payload import PayloadBuilder, decode, decode_table_map, encode_table_map
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.source.sqlite.raw import ChangesDamagedError, read_piece
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk
from tranlog.types import value_text

STATEMENTS = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, UNIQUE (name))",
    "CREATE TABLE child (a TEXT, b BLOB, c REAL, d, parent INTEGER REFERENCES parent (id), PRIMARY KEY (a, d))",
    "CREATE TABLE keyless (x, y)",
    "INSERT INTO parent VALUES (1, 'one'), (-9223372036854775808, 'é日本😀'), (300, '')",
    "INSERT INTO child VALUES ('k', x'00ff80', -0.5, NULL, 1), ('l', zeroblob(300), 9e999, 'text', NULL)",
    "INSERT INTO keyless VALUES (NULL, 127), (128, 8192), (x'', 1.5)",
    "UPDATE child SET b = NULL, c = 3 WHERE a = 'k'",
    "DELETE FROM keyless WHERE y > 128",
)


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What capture wrote of a real database."""
    path = tmp_path_factory.mktemp("payloads")
    shop = connect(path / "shop.db")
    for statement in STATEMENTS:
        shop.execute(statement)
    with shop:
        for number in range(40):
            shop.execute("INSERT INTO keyless VALUES (?, ?)", (number * 1000, "text" * number))
    with Log.open(str(path / "log"), source_id="shop") as log:
        Capture(SqliteSource(SqliteSourceOptions(path=str(path / "shop.db"), source_id="shop")), log).catch_up()
        with log.cursor() as cursor:
            return [payload for one in read_all(cursor) for payload in one.payloads()]


def _written() -> SimDisk:
    """Return a disk with a log of three segments, large transactions and sync records in it."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1200)
    fill(log, 5)
    append_large(log, "large", [b"part" * 30, b"more" * 50, b"end"])
    log.append(make_fragment("many", b"", tables=None))
    log.append(make_fragment("none", b"x" * 300, tables=()))
    log.append(make_fragment("two", b"y", tables=(("shop", "orders"), ("", "é" * 30))))
    log.commit()
    log.close()
    log = open_log(disk, segment_bytes=1200)
    fill(log, 4, size=150)
    log.close()
    return disk


@pytest.fixture(scope="module")
def segments() -> list[bytes]:
    """The log of `_written`, segment by segment."""
    disk = _written()
    numbers = sorted(filter(None, map(segment_number, disk.list_dir(PATH))))
    assert len(numbers) >= 3
    return [disk.content(segment_path(number)) for number in numbers]


@pytest.fixture(scope="module")
def records(segments: list[bytes], payloads: list[bytes]) -> list[bytes]:
    """Every record of those segments, and records of the captured payloads."""
    disk = _written()
    found = []
    for number, raw in enumerate(segments, 1):
        starts = [*record_starts(disk, number), len(raw)]
        found += [raw[one:other] for one, other in itertools.pairwise(starts)]
    for number, payload in enumerate(payloads):
        head, trailer = encode_event(
            seqno=number,
            fragno=0,
            last_frag=True,
            epoch=3,
            source_id="shop",
            event_id=f"{number}",
            shard_id="shop.é",
            tstamp=1_700_000_000_000,
            tables=(("main", "parent"), ("main", "child")),
            payload=payload,
            checksum=number % 2 == 0,
        )
        found.append(head + payload + trailer)
    assert {raw[4] for raw in found if raw} >= {1, 2, 3}
    return [raw for raw in found if raw]


def mend_record(raw: bytes) -> bytes:
    """Make a record's length and its checksum right again."""
    if len(raw) < 10:
        return raw
    raw = len(raw).to_bytes(4, "big") + raw[4:-5] + b"\x01"
    return raw + crc32(raw).to_bytes(4, "big")


def mend_fields(raw: bytes) -> bytes:
    """Make an event record's length of its payload right too, so that the payload is what is judged."""
    if len(raw) < 48 or raw[4] != EVENT_TYPE:
        return mend_record(raw)
    at = 9 + int.from_bytes(raw[5:9], "big")
    if at + 9 > len(raw):
        return mend_record(raw)
    return mend_record(raw[:at] + (len(raw) - at - 9).to_bytes(4, "big") + raw[at + 4 :])


def read_payload(raw: bytes) -> None:
    try:
        payload = decode(raw)
    except PayloadError:
        return
    for change in payload.changes:
        if isinstance(change, RowChange):
            for row in (change.before, change.after):
                if row is not None:
                    assert len(row) == len(change.table.columns)
                    for value in row:
                        value_text(value)


def read_record(raw: bytes) -> None:
    """Parse what stands at the start, as every reader does; what it says must hold together."""
    outcome: Outcome = parse_record(raw, 0, 16)
    assert isinstance(outcome, get_args(Outcome))
    assert outcome is not END or not raw[:4].strip(b"\0")
    assert skip_events(raw, 0, SEQNO_MAX) >= 0
    is_tungsten(raw)
    quick = parse_event(raw, 0, 16)
    if not isinstance(outcome, RecordHeader):
        return
    assert outcome == quick
    end = outcome.record_length - 5
    payload = raw[end - outcome.data_length : end]
    assert outcome.record_length <= len(raw) and len(payload) == outcome.data_length
    assert parse_event(raw[: end - outcome.data_length], 0, 16, raw[end : end + 5]) == outcome
    read_payload(payload)
    try:
        head, trailer = encode_event(
            seqno=outcome.seqno,
            fragno=outcome.fragno,
            last_frag=outcome.last_frag,
            epoch=outcome.epoch,
            source_id=outcome.source_id,
            event_id=outcome.event_id,
            shard_id=outcome.shard_id,
            tstamp=outcome.tstamp,
            tables=outcome.tables,
            payload=payload,
            checksum=outcome.crc_method == 1,
        )
    except RecordLimitError:
        return
    again = parse_record(head + payload + trailer, 0, 16)
    assert isinstance(again, RecordHeader)
    same = [(one.gtid, one.event_id, one.shard_id, one.tables, one.tstamp, one.fragno) for one in (outcome, again)]
    assert same[0] == same[1]


def test_records(fuzz: Fuzz, records: list[bytes]) -> None:
    fuzz.samples(records, read_record, mend=mend_record)


def test_records_with_another_payload(fuzz: Fuzz, records: list[bytes]) -> None:
    fuzz.samples(records, read_record, mend=mend_fields, share=0.3)


def test_payloads(fuzz: Fuzz, payloads: list[bytes]) -> None:
    fuzz.samples(payloads, read_payload)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What writers stored in the outbox of a real database: rows of every kind, DDL between them, text that is none."""
    path = tmp_path_factory.mktemp("pieces") / "shop.db"
    shop = connect(path, fragment_bytes=400)
    with shop:
        for statement in STATEMENTS:
            shop.execute(statement)
    shop.execute("INSERT INTO keyless VALUES (CAST(x'ff00' AS TEXT), 1), (NULL, -0.0)")
    with shop:
        shop.execute("ALTER TABLE keyless ADD COLUMN z REAL DEFAULT 3")
        for number in range(40):
            shop.execute("INSERT INTO keyless VALUES (?, ?, 1)", (number * 1000, "text" * number))
        shop.execute("UPDATE keyless SET y = 2")
    with shop:
        shop.execute("CREATE TABLE many (a, id INTEGER PRIMARY KEY, b TEXT)")
        shop.executemany("INSERT INTO many (b, a) VALUES (?, ?)", [(f"text {n}", n / 2) for n in range(60)])
    shop.close()
    found = [raw for (raw,) in apsw.Connection(str(path)).execute("SELECT changes FROM _tranlog_outbox ORDER BY id")]
    assert len(found) > 10 and all(isinstance(raw, bytes) for raw in found)
    return [raw for raw in found if isinstance(raw, bytes)]


def test_pieces_of_the_outbox(fuzz: Fuzz, pieces: list[bytes]) -> None:
    """Whatever is read of a damaged piece makes a payload; else the error is ours."""

    def read(raw: bytes) -> None:
        builder = PayloadBuilder()
        try:
            piece = read_piece(raw)
            for change in piece.changes:
                if isinstance(change, Statement):
                    builder.add(change)
                else:
                    builder.add_encoded(*change)
        except ChangesDamagedError:
            return
        decode(builder.take())

    for raw in pieces:
        assert read_piece(raw).tables or len(raw) < 30
    fuzz.samples(pieces, read)


def test_table_maps(fuzz: Fuzz, payloads: list[bytes]) -> None:
    tables = {change.table for raw in payloads for change in decode(raw).changes if isinstance(change, RowChange)}
    assert len(tables) >= 3

    def read(raw: bytes) -> None:
        with contextlib.suppress(ValueError, IndexError):  # what `decode` turns into PayloadError
            table = decode_table_map(raw)
            assert decode_table_map(encode_table_map(table)) == table

    fuzz.samples([encode_table_map(table) for table in tables], read)


def test_segment_headers(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        outcome = parse_header(raw)
        assert isinstance(outcome, SegmentHeader | Partial | Impossible)
        if isinstance(outcome, SegmentHeader):
            assert encode_header(outcome.prev_seqno) == raw[: HEADER.size]

    fuzz.samples([encode_header(seqno) for seqno in (-1, 0, 7, (1 << 63) - 1)], read)


def test_segment_names(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        name = raw.decode(errors="surrogateescape")
        number = segment_number(name)
        assert number is None or segment_name(number) == name

    fuzz.samples([segment_name(number).encode() for number in (1, 4_000_000_000)], read)


# --- the small files ---


def test_positions(fuzz: Fuzz) -> None:
    disk = _written()
    raw = disk.content(f"{PATH}/positions")
    assert decode_positions(raw) is not None

    def mend(raw: bytes) -> bytes:
        body = raw[: POSITIONS_BYTES - 4]
        return body + crc32(body).to_bytes(4, "big")

    def read(raw: bytes) -> None:
        assert isinstance(decode_positions(raw), Positions | None)

    fuzz.samples([raw, mend(bytes(8) + raw[8:])], read, mend=mend)


def test_holds(fuzz: Fuzz) -> None:
    """A damaged hold holds everything: it is never read as one that lets more go than was written."""
    disk = SimDisk()
    disk.make_dir(PATH)
    for name, seqno in (("shop", 1234), ("other", 0)):
        hold(PATH, name, Seqno(seqno), holder=f"sqlite /a b/{name}", disk=disk, clock=ManualClock())
    whole = [disk.content(f"{PATH}/holds/{name}") for name in ("shop", "other")]

    def mend(raw: bytes) -> bytes:
        line, found, _ = raw.rpartition(b" crc=")
        return raw if not found else line + f" crc={crc32(line):08x}".encode()

    def read(raw: bytes) -> None:
        disk.set_content(f"{PATH}/holds/shop", raw)
        found = {one.name: one for one in read_holds(PATH, disk=disk)}
        assert set(found) == {"shop", "other"}

    def read_damaged(raw: bytes) -> None:
        disk.set_content(f"{PATH}/holds/shop", raw)
        (found,) = (one for one in read_holds(PATH, disk=disk) if one.name == "shop")
        assert found.restart_seqno is None or found.restart_seqno in (0, 1234)

    fuzz.samples(whole, read, mend=mend)
    fuzz.samples(whole, read_damaged, share=0.3)


def test_marks(fuzz: Fuzz) -> None:
    """The mark of a cleared log is read, or refused by name: never taken for a mark of zero."""
    disk = _written()
    clear_log(PATH, disk=disk)
    raw = disk.content(f"{PATH}/{MARK_NAME}")
    told = json.loads(raw)
    samples = [raw] + [json.dumps({**told, name: value}).encode() for name in told for value in (None, -1, 1e99, "é")]

    def read(raw: bytes) -> None:
        disk.set_content(f"{PATH}/{MARK_NAME}", raw)
        try:
            mark = read_mark(PATH, disk=disk)
        except LogUnreadableError:
            return
        assert mark is not None
        assert mark.seqno >= -1 and mark.epoch >= 0

    fuzz.samples(samples, read)


def test_gtids(fuzz: Fuzz) -> None:
    """As the command line gives them (`reset --after`)."""

    def read(raw: bytes) -> None:
        text = raw.decode(errors="replace")
        with contextlib.suppress(ValueError):
            gtid = Gtid.parse(text)
            assert Gtid.parse(str(gtid)) == gtid

    fuzz.samples([b"GTID(3, 120)", b"GTID(18446744073709551615, 9223372036854775807)"], read)


# --- whole logs ---


def mend_segment(raw: bytes) -> bytes:
    """Make the checksum of every record right whose length still leads to the next one."""
    out = bytearray(raw)
    at = HEADER.size
    while at + 10 <= len(out):
        length = int.from_bytes(out[at : at + 4], "big")
        if length < 10 or at + length > len(out):
            break
        out[at + length - 4 : at + length] = crc32(out[at : at + length - 4]).to_bytes(4, "big")
        at += length
    return bytes(out)


def _damage(rng: random.Random, segments: list[bytes], positions: bytes) -> bytes:
    """Return which file is damaged (a byte: 0 the positions file, else a segment's number) and its new content."""
    which = rng.randrange(len(segments) + 1)
    if which == 0:
        return bytes([0]) + mutated(rng, [positions])
    raw = segments[which - 1]
    # Most of the time one spot: a segment of random bytes is refused at its first.
    damaged = mutated(rng, [raw, raw, segments[rng.randrange(len(segments))]])
    return bytes([which]) + (mend_segment(damaged) if rng.random() < 0.5 else damaged)


def test_logs(fuzz: Fuzz, segments: list[bytes]) -> None:
    """A log with one damaged file, for a reader, for `thl verify` and for the next writer.

    What is read before the error is the beginning of what was written, in order; a writer that opens it may cut only
    what comes after that.
    """
    disk = _written()
    with open_reader(disk) as reader, reader.cursor() as cursor:
        whole = {one.header.seqno: b"".join(one.payloads()) for one in read_all(cursor)}
    positions = disk.content(f"{PATH}/positions")
    names = ["positions", *(segment_name(number) for number in range(1, len(segments) + 1))]
    files = [positions, *segments]

    def read_log(mended: bool) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(LogError), open_reader(disk) as reader, reader.cursor() as cursor:
            while (one := cursor.next()) is not None:
                payload = b"".join(one.payloads())
                assert mended or whole[one.header.seqno] == payload
                found.append(int(one.header.seqno))
        assert not found or found == list(range(found[0], found[-1] + 1))
        return found

    def read(raw: bytes) -> None:
        for name, content in zip(names, files, strict=True):
            disk.open(f"{PATH}/{name}", write=True, create=True).close()
            disk.set_content(f"{PATH}/{name}", content)
        which, damaged = raw[0], raw[1:]
        disk.set_content(f"{PATH}/{names[which]}", damaged)
        mended = which > 0 and mend_segment(damaged) == damaged
        read_log(mended)
        with contextlib.suppress(LogError):
            verify(PATH, disk=disk)
        forget_positions(disk)
        before = read_log(mended)
        copy = SimDisk()
        copy.make_dir(PATH)
        for name in names[1:]:
            copy.open(f"{PATH}/{name}", write=True, create=True).close()
            copy.set_content(f"{PATH}/{name}", disk.content(f"{PATH}/{name}"))
        try:
            log = open_log(copy)
        except LogError:
            return
        after = []
        with log, log.cursor() as cursor, contextlib.suppress(LogError):
            while (one := cursor.next()) is not None:
                after.append(int(one.header.seqno))
        assert after[: len(before)] == before, "a writer cut off what a reader had been shown"

    fuzz.cases(lambda rng: _damage(rng, segments, positions), read, share=0.1)
