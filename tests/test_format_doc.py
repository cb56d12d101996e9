"""docs/format.md says what the code writes: every table against its constant, and an example written anew.

Proves: "docs/format.md rows carry the constant's name, and a test compares offsets and
sizes". The example is explained by a reader of its own, which knows only what the page says. When the example has
to change, `.venv/bin/python tests/test_format_doc.py` writes it into the page.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from tranlog import ids, payload
from tranlog import table_map as table_map_module
from tranlog.change import NOOP, Column, Op, RowChange, Statement, TableMap
from tranlog.ids import HISTORY_BYTES, Seqno, segment_name
from tranlog.log.files import (
    cleared,
    commit_point,
    directory,
    holds,
    index_table,
    positions,
    purge_notes,
    source_notes,
)
from tranlog.log.records import format as log_format
from tranlog.log.records import spill
from tranlog.log.rules import bucket, index
from tranlog.log.writing.log import Log
from tranlog.payload import PACKED_VERSION, Payload, encode, encode_table_map
from tranlog.pipeline.applying import in_flight
from tranlog.queues.rules import records as queue_records
from tranlog.replication.acting import restore, rollback
from tranlog.row_bytes import FIRST_UNKNOWN_TAG, encode_row
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source import packer
from tranlog.source.packer import TransactionPacker
from tranlog.types import (
    F32,
    UNCHANGED,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Tag,
    Time,
    Value,
    ZeroDate,
    value_text,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "format.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
WRITTEN_AT = 1_700_000_000_000


# --- reading the page ------------------------------------------------------------------------------------


def rows_under(text: str, title: str) -> list[list[str]]:
    """Return the rows of the first table whose heading, or its own first row, contains `title`."""
    heading = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line
        if line.startswith("|") and not lines[number - 1].startswith("|"):
            if title in heading or title in line or title in lines[number - 2]:
                table = []
                for row in lines[number:]:
                    if not row.startswith("|"):
                        break
                    table.append([cell.strip() for cell in row.strip("|").split("|")])
                return table[2:]
    raise AssertionError(f"docs/format.md has no table {title!r}")


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


@pytest.mark.parametrize(
    "name", ["HEADER_FIELDS", "EVENT_FIELDS", "ROTATE_FIELDS", "SYNC_FIELDS", "MARK_FIELDS", "EXTENSION_ITEM_FIELDS"]
    + ["TABLE_ITEM_FIELDS", "POSITIONS_FIELDS", "TABLE_HEADER_FIELDS", "FRAME_FIELDS", "BUCKET_FIELDS", "RANGE_FIELDS"]
    + ["REFERENCE_FIELDS", "SPILL_HEADER_FIELDS", "CHUNK_FIELDS", "SPILL_TABLE_FIELDS", "TABLE_REFERENCE_FIELDS"]
    + ["CONTAINER_FIELDS", "RECORD_FIELDS", "PLACE_FIELDS"],
)  # fmt: skip
def test_offsets_and_sizes_are_the_constants(page: str, name: str) -> None:
    wanted: list[tuple[str, str, str]] = []
    offset: int | None = 0
    homes = (log_format, positions, bucket, index, index_table, spill, queue_records)
    for field, size in next(getattr(home, name) for home in homes if hasattr(home, name)):
        wanted.append(("…" if offset is None else str(offset), str(size) if size else "n", field))
        offset = None if size == 0 or offset is None else offset + size
    shown = [(row[0], row[1].removesuffix(" + 1"), row[2]) for row in rows_under(page, f"`{name}`")]
    assert shown == wanted


def test_the_structs_pack_what_the_fields_say() -> None:
    def size(name: str, home: Any = log_format) -> int:
        return sum(size for _, size in getattr(home, name))

    assert log_format.HEADER.size == size("HEADER_FIELDS")
    assert log_format.SYNC_BYTES == size("SYNC_FIELDS") == log_format.SYNC.size + log_format.TRAILER.size
    assert log_format.FIRST_SYNC_BYTES == log_format.SYNC_BYTES + HISTORY_BYTES
    assert log_format.MARK_BYTES == size("MARK_FIELDS") == log_format.MARK.size + log_format.CRC.size
    assert size("EVENT_FIELDS") + 3 == log_format.EVENT_MIN  # three empty texts
    assert size("ROTATE_FIELDS") + 1 == log_format.ROTATE_MIN
    assert log_format.EXTENSION_ITEM.size == size("EXTENSION_ITEM_FIELDS")
    assert 2 * log_format.NAME_LENGTH.size == size("TABLE_ITEM_FIELDS")
    assert size("POSITIONS_FIELDS", positions) == positions.POSITIONS_BYTES
    assert size("BUCKET_FIELDS", bucket) == bucket._BUCKET.size + 4
    assert size("RANGE_FIELDS", index) == index._RANGE.size + 4
    assert size("TABLE_HEADER_FIELDS", index_table) == index_table._HEADER.size
    assert size("REFERENCE_FIELDS", spill) == spill.REFERENCE.size
    assert size("SPILL_HEADER_FIELDS", spill) == spill.SPILL_HEADER_BYTES
    assert size("CHUNK_FIELDS", spill) == spill.CHUNK_OVERHEAD
    assert size("SPILL_TABLE_FIELDS", spill) == spill.SPILL_TABLE.size + 4
    assert size("TABLE_REFERENCE_FIELDS", spill) == spill.TABLE_REFERENCE.size
    assert size("FRAME_FIELDS", index_table) == index_table._FRAME.size + index_table._COUNTS.size


def test_the_lengths_are_as_the_page_computes_them(page: str) -> None:
    assert "record_length = 18 + header_length + data_length" in page
    assert "header_length = 27 + the three texts with their 00" in page
    head, trailer = log_format.encode_event(
        seqno=0,
        fragno=0,
        last_frag=True,
        epoch=1,
        source_id="source",
        event_id="e",
        shard_id="",
        tstamp=0,
        tables=(("s", "t"),),
        payload=b"payload",
        checksum=True,
    )
    record_length, header_length = struct.unpack_from(">IxI", head)
    assert header_length == 27 + 7 + 2 + 1 + (3 + 2 + 1 + 2 + 1)
    assert record_length == 18 + header_length + 7 == len(head) + 7 + len(trailer)


def test_the_directory_is_the_constants(page: str) -> None:
    files = (positions, holds, commit_point, directory, cleared, index_table, purge_notes, source_notes)
    homes = (ids, log_format, spill, *files, in_flight, rollback, restore)
    for name, _, constant in rows_under(page, "## The directory"):
        value = next(getattr(home, constant.strip("`")) for home in homes if hasattr(home, constant.strip("`")))
        assert name.strip("`").startswith(value)
    assert segment_name(1) in page


def test_a_store_is_written_as_the_page_says(page: str) -> None:
    for name, _, constant in rows_under(page, "### A store's directory"):
        home = queue_records if hasattr(queue_records, constant.strip("`")) else directory
        assert name.strip("`").startswith(getattr(home, constant.strip("`")))
    shown = {int(row[0], 16): (row[1], row[2]) for row in rows_under(page, "### Bodies")}
    assert shown == {
        number: (name, ", ".join(f"{field} {size or 'n'}" for field, size in fields))
        for number, (name, fields) in queue_records.BODIES.items()
    }
    sizes = {name: sum(size for _, size in getattr(queue_records, f"{name}_FIELDS")) for name in ("RECORD", "PLACE")}
    assert sizes == {"RECORD": queue_records.OVERHEAD, "PLACE": queue_records.MOVE_PLACE.size}
    header = queue_records.ContainerHeader(8192, bytes(range(16)), 7, 3, queue_records.first_lsn(6), 99)
    raw = queue_records.encode_header(header)
    offset = 0
    for (name, size), value in zip(
        queue_records.CONTAINER_FIELDS,
        (b"TLQUEUE1", 1, 0, *header, crc32(raw[:56])),
        strict=True,
    ):
        field = raw[offset : offset + size]
        assert (field if isinstance(value, bytes) else int.from_bytes(field, "big")) == value, name
        offset += size
    assert len(raw) == 4096 and not any(raw[offset:])


def test_the_limits_are_the_constants(page: str) -> None:
    limits = {name.strip("`"): int(value.replace(",", "")) for name, value, _ in rows_under(page, "### Limits")}
    for name, value in limits.items():
        assert value in [getattr(home, name, None) for home in (ids, log_format, positions, holds, spill)], name
    bounds = {name for home in (log_format, holds) for name in vars(home) if re.fullmatch("[A-Z_]+_MAX", name)}
    assert bounds <= set(limits)


def test_a_transactions_packer_and_the_log_agree_on_how_many_tables_are_too_many() -> None:
    assert packer.TABLE_LIST_BYTES == log_format.TABLE_ITEMS_MAX


def test_the_magic_numbers_are_the_constants(page: str) -> None:
    value = {row[2]: row[3] for row in rows_under(page, "`HEADER_FIELDS`")}
    assert bytes.fromhex(value["magic_number"] + value["major_version"] + value["minor_version"]) == struct.pack(
        ">IHH", log_format.MAGIC_NUMBER, log_format.MAJOR_VERSION, log_format.MINOR_VERSION
    )
    types = {"EVENT_FIELDS": log_format.EVENT_TYPE, "ROTATE_FIELDS": log_format.ROTATE_TYPE}
    types["CHUNK_FIELDS"] = log_format.CHUNK_TYPE
    assert f"### Referring record: record_type {log_format.REFERENCE_TYPE:02x}" in page
    for name, told in {"SPILL_HEADER_FIELDS": spill.SPILL_MAGIC, "SPILL_TABLE_FIELDS": spill.TABLE_MAGIC}.items():
        value_of = {row[2]: row[3] for row in rows_under(page, f"`{name}`")}
        assert (value_of["magic"], value_of["version"]) == (f"`{told.decode()}`", f"{spill.SPILL_VERSION:04x}")
    for name, number in {**types, "SYNC_FIELDS": log_format.SYNC_TYPE}.items():
        assert {row[2]: row[3] for row in rows_under(page, f"`{name}`")}["record_type"] == f"{number:02x}"
    assert f"00 none, {log_format.CRC_32:02x} CRC-32" in page
    items = {row[2]: row[3] for row in rows_under(page, "`EXTENSION_ITEM_FIELDS`")}["type"]
    shown = [int(item) for item in re.findall(r"\d+(?=:)", items)]
    known = [log_format.TABLE_ITEM, log_format.WRITE_SET_ITEM, log_format.TABLES_OMITTED_ITEM, log_format.PADDING_ITEM]
    assert shown == known
    magic = {row[2]: row[3] for row in rows_under(page, "`POSITIONS_FIELDS`")}["magic"]
    assert magic.strip("`").encode() == positions.POSITIONS_MAGIC


def test_positions_are_written_as_the_page_says(page: str) -> None:
    """Each field at its offset, by the page's own offsets."""
    given = {"epoch": 7, "first_seqno": 11, "visible_seqno": 44, "durable_seqno": -1, "committed_seqno": 33}
    raw = positions.encode_positions(
        positions.Positions(
            boot_id="b" * 36,
            identity=5,
            visible_lsn=(3 << 32) + 99,  # type: ignore[arg-type]
            history=b"h" * 16,
            **given,  # type: ignore[arg-type]
        )
    )
    at = {row[2]: (int(row[0]), int(row[1])) for row in rows_under(page, "`POSITIONS_FIELDS`")}
    part = {name: raw[offset : offset + size] for name, (offset, size) in at.items()}
    assert {name: int.from_bytes(part[name], "big", signed=True) for name in given} == given
    assert part["magic"] == b"THLPOSN2"
    assert part["boot_id"] == b"b" * 36
    assert int.from_bytes(part["identity"], "big") == 5
    assert part["history"] == b"h" * 16
    assert struct.unpack(">II", part["visible_lsn"]) == (3, 99)
    assert int.from_bytes(part["crc"], "big") == crc32(raw[:-4])


class StoppedClock:
    """A clock that stands at the example's time."""

    def now_ms(self) -> int:
        return WRITTEN_AT

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def test_a_hold_is_written_as_the_page_says(page: str, tmp_path: Path) -> None:
    holds.hold(
        str(tmp_path),
        "one",
        Seqno(4711),
        applied=Seqno(4800),
        holder="postgresql://shop@db1/copy",
        clock=StoppedClock(),
    )
    raw = (tmp_path / "holds" / "one").read_bytes()
    (shown,) = re.findall(r"^    (restart_seqno=.*)$", page, re.MULTILINE)
    assert raw == shown.ljust(holds.HOLD_BYTES - 1).encode() + b"\n"
    line, _, crc = shown.partition(" crc=")
    assert crc == f"{crc32(line.encode()):08x}"


def test_what_is_cut_off_is_kept_as_the_page_says(page: str, tmp_path: Path) -> None:
    size = len(example(tmp_path))
    with open(tmp_path / "log" / segment_name(1), "ab") as file:
        file.write(b"a torn tail")
    Log.open(tmp_path / "log", source_id="db1", clock=StoppedClock()).close()
    (shown,) = re.findall(r"`(thl\.data\.[0-9]+-[0-9]+)` holds what stood from offset 1234 on", page)
    kept = tmp_path / "log" / "cut" / shown.replace("0000000007", "0000000001").replace("0000001234", f"{size:010d}")
    assert kept.read_bytes() == b"a torn tail"


# --- the payload -----------------------------------------------------------------------------------------

EXAMPLES: dict[Tag, Value] = {
    Tag.NULL: None,
    Tag.UNCHANGED: UNCHANGED,
    Tag.FALSE: False,
    Tag.TRUE: True,
    Tag.I64: -3,
    Tag.U64: 2**63,
    Tag.F32: F32(1.5),
    Tag.F64: 1.5,
    Tag.DECIMAL: Decimal("1.50"),
    Tag.TEXT: "é",
    Tag.BYTES: b"\x00\xff",
    Tag.CHARSET_BYTES: CharsetBytes("latin1", b"\xe9"),
    Tag.DATE: Date(1),
    Tag.TIME: Time(-1),
    Tag.DATETIME: Datetime(64),
    Tag.INSTANT: Instant(0),
    Tag.ZERO_DATE: ZeroDate("0000-00-00"),
    Tag.INFINITE_DATE: InfiniteDate(True),
    Tag.BIT: Bit(3, 5),
    Tag.ENUM: EnumLabel("red"),
    Tag.SET: SetLabels(("a", "b")),
    Tag.JSON: Json("{}"),
    Tag.UUID: UUID("00112233-4455-6677-8899-aabbccddeeff"),
    Tag.OTHER: Other("inet", "::1"),
}


def test_the_values_are_every_tag(page: str) -> None:
    rows = rows_under(page, "### Values")
    assert [(int(row[0]), row[1]) for row in rows] == [(tag.value, tag.name) for tag in Tag]
    for row in rows:
        value = EXAMPLES[Tag(int(row[0]))]
        assert encode_row((value,)) == bytes.fromhex(row[4]), row[1]
        special = {Tag.UNCHANGED: "", Tag.U64: "2^63", Tag.BYTES: "00 ff", Tag.CHARSET_BYTES: "latin1 e9"}
        assert row[3] == special.get(Tag(int(row[0])), value_text(value))


def test_the_rule_for_unknown_tags_is_the_codes(page: str) -> None:
    assert f"From 0x{FIRST_UNKNOWN_TAG:x} on" in page
    assert f"Tags {max(Tag) + 1} to 0x{FIRST_UNKNOWN_TAG - 1:x} are free" in page


def test_operations_logical_types_and_flags_are_the_codes(page: str) -> None:
    operations = [(int(row[0]), row[1]) for row in rows_under(page, "| operation | name |")]
    assert operations == sorted([(op.value, op.name) for op in Op] + [(payload.OP_STATEMENT, "statement")])
    logical = [(int(row[0]), row[1]) for row in rows_under(page, "| logical type | name |")]
    assert logical == [(kind.value, kind.name) for kind in LogicalType]
    table_map = rows_under(page, "### Table map")
    (flags,) = [row[2] for row in table_map if row[0] == "each column: flags"]
    assert [int(flag) for flag in re.findall(r"(?<!\w)\d(?= [ua-z])", flags)][:3] == [
        table_map_module._COLUMN_UNSIGNED,
        table_map_module._COLUMN_NULLABLE,
        table_map_module._COLUMN_CHARSET,
    ]
    version = {row[0]: row[2] for row in rows_under(page, "### The packed form")}["version"]
    assert version.startswith(f"{PACKED_VERSION};")


def envelope_of(page: str, message: str) -> dict[int, str]:
    return {int(row[1]): row[3] for row in rows_under(page, "### The envelope") if row[0] == message}


def test_the_envelope_has_the_pages_fields(page: str) -> None:
    """A reader that knows the page's numbers, and protobuf's wire types, finds every part."""
    text = Statement(schema="s", sql="drop table t", ddl=True, timestamp=-5, error_code=7, options=(("mode", "x"),))
    raw_text = Statement(schema="s", sql=b"\xff", ddl=False)
    table = TableMap(schema="s", table="t", columns=())
    changes = (text, raw_text, RowChange(table, Op.INSERT, None, ()))
    whole = Payload(metadata=(("a", "1"), ("a", "2")), options=(("b", "3"),), changes=changes)

    def parts(message: str, raw: bytes) -> Iterator[tuple[str, Any]]:
        names, walk = envelope_of(page, message), Walk(raw)
        kinds = {int(row[1]): row[2] for row in rows_under(page, "### The envelope") if row[0] == message}
        numbers = []
        while walk.at < len(raw):
            key = walk.varint()
            numbers.append(key >> 3)
            assert kinds[key >> 3] == {0: "varint", 2: "bytes"}[key & 7]
            yield names[key >> 3], walk.varint() if key & 7 == 0 else walk.sized()
        assert numbers == sorted(numbers)

    def option(raw: bytes) -> tuple[str, str]:
        part = dict(parts("EventOption", raw))
        return part["name"].decode(), part["value"].decode()

    event_parts = list(parts("ReplDBMSEvent", encode(whole)))
    assert [option(raw) for name, raw in event_parts if name == "metadata"] == [("a", "1"), ("a", "2")]
    assert [option(raw) for name, raw in event_parts if name == "options"] == [("b", "3")]
    assert [raw[0] for name, raw in event_parts if name == "packed"] == [PACKED_VERSION]
    statements = []
    for name, raw in event_parts:
        if name == "change":
            one = dict(parts("OneChange", raw))
            assert one["type"] == 2
            statements.append(list(parts("StatementData", one["statement"])))
    one, other = (dict(statement) for statement in statements)
    assert (one["defaultSchema"], one["query"], one["errorCode"]) == (b"s", b"drop table t", 7)
    assert one["timestamp"] == 2**64 - 5
    settings = [option(raw) for name, raw in statements[0] if name == "options"]
    assert settings == [("mode", "x"), (payload.DDL_OPTION, "true")]
    assert set(other) == {"defaultSchema", "errorCode", "queryAsBytes"}
    assert other["queryAsBytes"] == b"\xff"
    assert f"metadata name `{NOOP}`" in page


# --- the example -----------------------------------------------------------------------------------------

ORDERS = TableMap(
    schema="shop",
    table="orders",
    columns=(
        Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
        Column(name="item", source_type="varchar(20)", logical=LogicalType.TEXT, charset="utf8mb4", length=20),
    ),
    primary_key=(0,),
)


def example(directory: Path) -> bytes:
    """Write what the page shows: a log of one transaction."""
    into = TransactionPacker(source_id="db1", rule=ShardRule(kind=ShardRuleKind.SCHEMA))
    for change in (
        RowChange(ORDERS, Op.INSERT, None, (1, "tea")),
        RowChange(ORDERS, Op.UPDATE, (1, "tea"), (1, None)),
    ):
        into.add(change, event_id="0-1-42", tstamp=WRITTEN_AT)
    log = Log.open(directory / "log", source_id="db1", clock=StoppedClock(), history=bytes(range(16)))
    log.append(into.finish(event_id="0-1-42", tstamp=WRITTEN_AT))
    log.commit()
    log.close()
    return (directory / "log" / segment_name(1)).read_bytes()


class Walk:
    """Walks over bytes by the page's words, noting what each stretch is."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.lines: list[str] = []

    def take(self, size: int, what: str, *, show: bool = True) -> bytes:
        chunk = self.raw[self.at : self.at + size]
        assert len(chunk) == size, f"{what} passes the end"
        if show:
            for start in range(0, size, 16):
                place = self.at + start
                said = what if start == 0 else ""
                self.lines.append(f"{place:4d}  {chunk[start : start + 16].hex(' '):47s}  {said}".rstrip())
        self.at += size
        return chunk

    def number(self, size: int, what: str) -> int:
        value = int.from_bytes(self.raw[self.at : self.at + size], "big")
        self.take(size, f"{what} {value}")
        return value

    def terminated(self, what: str) -> None:
        end = self.raw.index(0, self.at)
        text = self.raw[self.at : end].decode()
        self.take(end + 1 - self.at, f"{what} {text!r}")

    def text(self, what: str) -> None:
        start = self.at
        text = self.sized().decode()
        size, self.at = self.at - start, start
        self.take(size, f"{what} {text!r}")

    def varint(self, what: str = "") -> int:
        start, number, shift = self.at, 0, 0
        while True:
            byte = self.raw[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if what:
            size, self.at = self.at - start, start
            self.take(size, f"{what} {number}")
        return number

    def sized(self) -> bytes:
        size = self.varint()
        return self.take(size, "", show=False)

    def title(self, text: str) -> None:
        self.lines += ["", f"--- {text} ---"] if self.lines else [f"--- {text} ---"]

    # The parts, as the page has them.

    def crc_behind(self, start: int, place: bytes = b"") -> None:
        """Note crc_method and crc of the record that begins at `start`, and hold the crc against its bytes."""
        self.take(1, "crc_method: CRC-32")
        assert self.number(4, "crc") == crc32(self.raw[start : self.at - 4] + place)
        self.lines[-1] = self.lines[-1].rsplit(" ", 1)[0]

    def header_record(self) -> None:
        self.title("header record")
        self.take(4, "magic_number")
        self.number(2, "major_version")
        self.number(2, "minor_version")
        self.take(8, "prev_seqno -1")

    def sync_record(self) -> None:
        self.title("sync record")
        start = self.at
        history = bytes(self.raw[start : start + 4]) == (58).to_bytes(4, "big")
        self.number(4, "record_length")
        self.number(1, "record_type")
        segment_number, offset = struct.unpack_from(">II", self.raw, self.at)
        self.take(8, f"durable_lsn: segment {segment_number}, offset {offset}")
        assert offset == start
        self.number(8, "written_at")
        seqno, h = struct.unpack_from(">qQ", self.raw, self.at)
        self.take(8, f"seqno {seqno}")
        self.take(8, f"h {h}")
        if history:
            self.take(16, "history")
        self.crc_behind(start, struct.pack(">II", 1, start))

    def event_record(self, what: str) -> None:
        self.title(f"event record: {what}")
        start = self.at
        length = self.number(4, "record_length")
        self.number(1, "record_type")
        header_length = self.number(4, "header_length")
        header_end = self.at + header_length
        self.number(8, "seqno")
        self.number(2, "fragno")
        self.number(1, "last_frag")
        self.number(8, "epoch_number")
        self.terminated("source_id")
        self.terminated("event_id")
        self.terminated("shard_id")
        self.number(8, "tstamp")
        while self.at < header_end:
            self.number(1, "header extension: type")
            item_end = self.number(2, "length") + self.at
            schema = self.number(2, "schema_length")
            self.take(schema, "schema 'shop'")
            table = self.number(2, "table_length")
            self.take(table, "table 'orders'")
            assert self.at == item_end
        assert self.at == header_end
        payload_end = self.number(4, "data_length") + self.at
        while self.at < payload_end:
            key = self.varint()
            self.at -= 1 if key < 128 else 2
            if key >> 3 == 2:
                self.metadata()
            else:
                self.packed()
        self.crc_behind(start)
        assert self.at - start == length

    def metadata(self) -> None:
        self.varint("payload: key of field 2, metadata:")
        self.varint("length")
        self.varint("key of field 1, name:")
        self.text("name")
        self.varint("key of field 2, value:")
        self.text("value")

    def packed(self) -> None:
        self.varint("payload: key of field 100, packed:")
        end = self.varint("length") + self.at
        self.number(1, "version")
        assert self.varint("table maps:") == 1
        map_end = self.varint("table map: length") + self.at
        self.text("schema")
        self.text("table")
        columns = self.varint("columns:")
        for _ in range(columns):
            self.text("column")
            self.text("source type")
            self.number(1, "logical type")
            flags = self.number(1, "flags")
            if flags & 4:
                self.text("charset")
            self.varint("declared length")
        for _ in range(self.varint("primary key, columns:")):
            self.varint("column")
        self.varint("unique keys:")
        self.varint("foreign keys:")
        assert self.at == map_end
        for _ in range(self.varint("changes:")):
            op = Op(self.raw[self.at])
            self.take(1, f"{op.name}")
            self.varint("table map number")
            for image in {Op.INSERT: ["after"], Op.DELETE: ["before"], Op.UPDATE: ["before", "after"]}[op]:
                for column in range(columns):
                    self.value(f"{image}, column {column}:")
        assert self.at == end

    def value(self, what: str) -> None:
        start = self.at
        tag = Tag(self.raw[start])
        self.at += 1
        match tag:
            case Tag.NULL:
                said = "NULL"
            case Tag.I64:
                folded = self.varint()
                said = f"I64 {folded // 2 if folded % 2 == 0 else -(folded // 2) - 1}"
            case Tag.TEXT:
                said = f"TEXT {self.sized().decode()!r}"
            case _:
                raise AssertionError(f"the example has no {tag.name}")
        size, self.at = self.at - start, start
        self.take(size, f"{what} {said}")


def explained(raw: bytes) -> str:
    walk = Walk(raw)
    walk.header_record()
    walk.sync_record()
    walk.event_record("the no-op")
    walk.sync_record()
    walk.event_record("the transaction")
    walk.sync_record()
    assert walk.at == len(raw)
    return "\n".join(walk.lines)


EXAMPLE_BLOCK = re.compile(r"(?<=^```\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def test_the_example_is_what_is_written_today(page: str, tmp_path: Path) -> None:
    (shown,) = EXAMPLE_BLOCK.findall(page)
    assert shown == explained(example(tmp_path)) + "\n", (
        "run `.venv/bin/python tests/test_format_doc.py` and read the change"
    )


def test_the_log_reads_the_pages_own_bytes(page: str) -> None:
    """The page's hex, typed back in, is a segment that the parser takes record by record."""
    (shown,) = EXAMPLE_BLOCK.findall(page)
    raw = b"".join(bytes.fromhex(line[6:53]) for line in shown.splitlines() if re.match(r" *\d", line))
    assert isinstance(log_format.parse_header(raw), log_format.SegmentHeader)
    at = log_format.HEADER.size
    outcomes: list[log_format.Outcome] = []
    while True:
        outcome = log_format.parse_record(raw, at, 1 << 32 | at)
        outcomes.append(outcome)
        if not isinstance(outcome, log_format.RecordHeader | log_format.SyncRecord):
            break
        at += outcome.record_length
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "SyncRecord",
        "RecordHeader",
        "SyncRecord",
        "RecordHeader",
        "SyncRecord",
        "End",
    ]
    header = outcomes[3]
    assert isinstance(header, log_format.RecordHeader)
    assert (header.seqno, header.event_id, header.tables) == (1, "0-1-42", (("shop", "orders"),))
    end = (header.lsn & 0xFFFFFFFF) + header.record_length - log_format.TRAILER.size
    content = raw[end - header.data_length : end]
    assert payload.decode(content).changes == (
        RowChange(ORDERS, Op.INSERT, None, (1, "tea")),
        RowChange(ORDERS, Op.UPDATE, (1, "tea"), (1, None)),
    )
    assert encode_table_map(ORDERS) in content


# --- the glossary ----------------------------------------------------------------------------------------


def test_the_glossary_knows_every_published_position() -> None:
    text = GLOSSARY.read_text()
    names = {name for name in positions.Positions._fields if name.endswith("_seqno")}
    assert len(names) == 4
    assert {name for name in names if f"| {name}" not in text and f", {name} |" not in text} == set()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(EXAMPLE_BLOCK.sub(lambda _: explained(example(Path(scratch))) + "\n", PAGE.read_text()))
