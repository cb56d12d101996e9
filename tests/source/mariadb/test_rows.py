"""source/mariadb/rows, mariadb/values and mariadb/types: rows that a real server sent, and rows that none would."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from uuid import UUID

import pytest

from tranlog.errors import SourceError, UnsupportedTypeError
from tranlog.row_bytes import decode_row, encode_decimal, encode_row
from tranlog.servers.mariadb_values import catalog_labels, set_value
from tranlog.source.mariadb.events import (
    HEADER_BYTES,
    BinlogColumn,
    BinlogTable,
    EventFormatError,
    EventType,
    FieldType,
    parse_rows_shape,
    parse_table_map,
)
from tranlog.source.mariadb.rows import encoder_of_present, rows_encoder
from tranlog.source.mariadb.types import (
    CatalogColumn,
    Family,
    KnownForeignKey,
    KnownTable,
    MariadbType,
    alike_after,
    carried_columns,
    table_map,
    type_in_catalog,
    types_in_binlog,
)
from tranlog.source.mariadb.values import (
    Memo,
    date_value,
    decimal_bytes,
    decimal_text,
    inet4_text,
    inet6_text,
    uncompressed,
)
from tranlog.source.mariadb.wire import EventSplitter
from tranlog.types import (
    F32,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    Instant,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
    canonical,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "mariadb"
COLLATIONS = {45: "utf8mb4", 46: "utf8mb4", 8: "latin1", 63: "binary", 35: "ucs2", 33: "utf8mb3", 10: "swe7"}
OLD = "/* mariadb-5.3 */"
KNOWN = {
    "special": KnownTable(types={"a": "uuid", "b": "inet6", "c": "inet4"}),
    "oldtimes": KnownTable(
        types={
            "b": f"time {OLD}",
            "c": f"time(1) {OLD}",
            "e": f"time(6) {OLD}",
            "f": f"datetime {OLD}",
            "g": f"datetime(3) {OLD}",
            "h": f"datetime(6) {OLD}",
            "i": f"timestamp {OLD}",
            "j": f"timestamp(2) {OLD}",
            "k": f"timestamp(6) {OLD}",
        }
    ),
}
Row = tuple[Value, ...]


def golden() -> dict[str, tuple[BinlogTable, list[bytes]]]:
    """Return each table of the golden stream with its rows events."""
    found: dict[str, tuple[BinlogTable, list[bytes]]] = {}
    table = None
    for event in EventSplitter().feed((GOLDEN / "types.stream").read_bytes()):
        if event[4] == EventType.TABLE_MAP:
            table = parse_table_map(event)
            found.setdefault(table.table, (table, []))
        elif event[4] == EventType.WRITE_ROWS_V1:
            assert table is not None
            found[table.table][1].append(event)
    return found


def golden_rows(name: str) -> list[Row]:
    table, events = golden()[name]
    types = types_in_binlog(table, collations=COLLATIONS, known=KNOWN.get(name))
    return [row for event in events for row in values(table, types, event, parse_rows_shape(event).images_at)]


def values(table: BinlogTable, types: Sequence[MariadbType], event: bytes, at: int) -> list[Row]:
    """Return the values of an event's rows, which are encoded as `encode_row` encodes those."""
    encoded = rows_encoder(table, types)(event, at)
    rows = [decode_row(raw, len(types)) for raw in encoded]
    assert encoded == list(map(encode_row, rows)), table.table
    return rows


def assert_same(found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        for at, (value, other) in enumerate(zip(row, wanted, strict=True)):
            assert canonical(value) == canonical(other), f"column {at}"


def test_numbers() -> None:
    assert_same(
        golden_rows("numbers"),
        [
            (
                *(1, -128, 0, -32768, 0, -8388608, 0, 0, -(1 << 63), 0, F32(-1.5), 0.0),
                Decimal("-99999999.99"),
                Decimal("-12345678901234567890123456789012345.012345678901234567890123456789"),
                Decimal("-0.000000001"),
                *(Bit(1, 0), Bit(13, 0), Bit(64, 0), 0),
            ),
            (
                *(2, 127, 255, 32767, 65535, 8388607, 16777215, 4294967295, (1 << 63) - 1, (1 << 64) - 1),
                F32(struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]),
                1.7976931348623157e308,
                Decimal("99999999.99"),
                Decimal("0." + "0" * 30),
                Decimal("0.999999999"),
                *(Bit(1, 1), Bit(13, 8191), Bit(64, (1 << 64) - 1), 2155),
            ),
            (3, *[None] * 7, -1, *[None] * 10),
        ],
    )


def test_dates_and_times() -> None:
    assert_same(
        golden_rows("times"),
        [
            (
                1,
                Date(19782),
                Time(-1_000_000),
                Time(-3_020_399_900_000),
                Time(45_296_789_100),
                Time(-1),
                Datetime(253_402_300_799_000_000),
                ZeroDate("0000-00-00 00:00:00.000"),
                Datetime(-30_610_224_000_000_000 + 1),
                Instant(1_000_000),
                Instant(2_147_483_647_999_999),
            ),
            (
                2,
                ZeroDate("2024-00-15"),
                Time(3_020_399_000_000),
                Time(0),
                Time(-100),
                Time(0),
                ZeroDate("2024-05-00 01:02:03"),
                Datetime(1_704_164_645_678_000),
                ZeroDate("0000-00-00 00:00:00.000000"),
                ZeroDate("0000-00-00 00:00:00"),
                ZeroDate("0000-00-00 00:00:00.000000"),
            ),
        ],
    )


def test_times_in_the_format_of_mariadb_5_3() -> None:
    assert_same(
        golden_rows("oldtimes"),
        [
            (
                1,
                Time(-45_296_000_000),
                Time(-3_020_399_900_000),
                Time(1),
                Datetime(1_704_164_645_000_000),
                Datetime(1_704_164_645_678_000),
                ZeroDate("0000-00-00 00:00:00.000000"),
                Instant(1_000_000),
                Instant(981_173_106_070_000),
                Instant(2_147_483_647_999_999),
            )
        ],
    )
    table, _ = golden()["oldtimes"]
    for known in (
        None,
        KnownTable(types={}),
        KnownTable(types={"b": f"datetime {OLD}"}),
        KnownTable(types={"b": "time"}),
    ):
        with pytest.raises(UnsupportedTypeError) as caught:
            types_in_binlog(table, collations=COLLATIONS, known=known)
        assert (caught.value.table, caught.value.column) == ("g.oldtimes", "b")


def test_text_and_bytes() -> None:
    assert_same(
        golden_rows("texts"),
        [
            (
                *(1, "ab", "é" * 200, "日本😀", "é€", "é日", "c" * 40, "g" * 2000, CharsetBytes("swe7", b"[")),
                *(EnumLabel("é"), SetLabels(("p", "ü"))),
                *(b"\x01\x02" + bytes(6), b"\x00\xff\x00", b"\x00\x00"),
            ),
            (
                *(2, "", "", "", "", "", "", "", CharsetBytes("swe7", b""), EnumLabel("x"), SetLabels(())),
                *(bytes(8), b"", b""),
            ),
        ],
    )


def test_what_the_catalog_adds() -> None:
    """A UUID and the addresses are BINARY in the binlog; without the catalog they stay the bytes that they are."""
    (row,) = golden_rows("special")
    point = bytes.fromhex("000000000101000000000000000000f03f0000000000000040")
    assert row[:5] == (
        1,
        UUID("123e4567-e89b-12d3-a456-426614174000"),
        Other("inet6", "::ffff:1.2.3.4"),
        Other("inet4", "1.2.3.0"),
        point,
    )
    assert row[6:] == ('{"a": 1}', 2, 7)
    table, events = golden()["special"]
    unlike = KnownTable(types={"a": "inet4", "b": "int(11)", "c": "uuid"})  # altered since: cannot be these bytes
    for known in (None, unlike):
        types = types_in_binlog(table, collations=COLLATIONS, known=known)
        assert [kind.source_type for kind in types[1:4]] == ["binary(16)", "binary(16)", "binary(4)"]
        (plain,) = values(table, types, events[0], parse_rows_shape(events[0]).images_at)
        assert plain[1] == UUID("123e4567-e89b-12d3-a456-426614174000").bytes
        assert plain[3] == b"\x01\x02\x03\x00"


def test_source_types() -> None:
    """MariaDB's spelling with arguments, without display widths."""
    spelled = {}
    for name, (table, _) in golden().items():
        types = types_in_binlog(table, collations=COLLATIONS, known=KNOWN.get(name))
        spelled[name] = [kind.source_type for kind in types]
        for kind, column in zip(types, table.columns, strict=True):
            made = kind.column(column.name, nullable=column.nullable)
            assert (made.logical is LogicalType.OTHER) == (kind.family is Family.INET)
    assert spelled["numbers"] == [
        *("int", "tinyint", "tinyint unsigned", "smallint", "smallint unsigned", "mediumint", "mediumint unsigned"),
        *("int unsigned", "bigint", "bigint unsigned", "float", "double", "decimal(10,2)", "decimal(65,30)"),
        *("decimal(9,9)", "bit(1)", "bit(13)", "bit(64)", "year"),
    ]
    assert spelled["times"] == [
        *("int", "date", "time", "time(1)", "time(4)", "time(6)", "datetime", "datetime(3)", "datetime(6)"),
        *("timestamp", "timestamp(6)"),
    ]
    assert spelled["texts"] == [
        *("int", "char(10)", "varchar(300)", "text", "char(5)", "varchar(9)", "varchar(60)", "text", "varchar(9)"),
        *("enum('x','y''z','é')", "set('p','q','ü')", "binary(8)", "blob", "varbinary(20)"),
    ]
    assert spelled["special"] == [
        *("int", "uuid", "inet6", "inet4", "geometry", "point", "longtext", "int", "int"),
    ]


# --- rows that were made ---------------------------------------------------------------------------------


def column(name: str, kind: FieldType, **more: object) -> BinlogColumn:
    settings: dict[str, object] = {
        "length": 0,
        "decimals": 0,
        "nullable": True,
        "unsigned": False,
        "collation": None,
        "labels": (),
        "geometry": None,
        **more,
    }
    return BinlogColumn(name=name, kind=kind, **settings)  # type: ignore[arg-type]


def table_of(*columns: BinlogColumn) -> BinlogTable:
    return BinlogTable(schema="s", table="t", columns=columns, primary_key=(), complete=True)


def decoded(table: BinlogTable, images: bytes) -> list[Row]:
    types = types_in_binlog(table, collations=COLLATIONS, known=None)
    return values(table, types, bytes(HEADER_BYTES) + images, HEADER_BYTES)


def test_null_bits_of_many_columns() -> None:
    """The bits of NULL columns over several bytes; the spare ones are set, and mean nothing."""
    table = table_of(*(column(f"c{at}", FieldType.TINY) for at in range(19)))
    nulls = 0b101 | 1 << 8 | 1 << 18
    one = (nulls | 0b11111 << 19).to_bytes(3, "little") + bytes(range(15))
    two = (0b11111 << 19).to_bytes(3, "little") + bytes(range(19))
    first, second, third = decoded(table, one + two + one)
    assert first == third
    assert [at for at, value in enumerate(first) if value is None] == [0, 2, 8, 18]
    assert [value for value in first if value is not None] == list(range(15))
    assert second == tuple(range(19))


def test_text_that_does_not_decode_beside_text_that_does() -> None:
    """One bad value takes the slow path for its row, and nothing else changes."""
    text = column("a", FieldType.VARCHAR, length=40, collation=45)
    three = column("b", FieldType.VARCHAR, length=30, collation=33)
    table = table_of(column("id", FieldType.LONG), text, three, column("z", FieldType.SHORT))
    good = b"\xf0" + struct.pack("<i", 1) + b"\x02\xc3\xa9" + b"\x01x" + struct.pack("<h", -5)
    bad = b"\xf0" + struct.pack("<i", 2) + b"\x02\xc3\xc3" + b"\x01\xff" + struct.pack("<h", 6)
    assert decoded(table, good + bad + good) == [
        (1, "é", "x", -5),
        (2, CharsetBytes("utf8mb4", b"\xc3\xc3"), CharsetBytes("utf8mb3", b"\xff"), 6),
        (1, "é", "x", -5),
    ]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 1000, 65535])
def test_lengths_of_text(length: int) -> None:
    """One byte of length up to 255 bytes, two beyond; one to four for BLOBs."""
    content = b"x" * length
    if length < 256:
        assert decoded(
            table_of(column("a", FieldType.VARCHAR, length=255, collation=63)), b"\xfe" + bytes([length]) + content
        )
    wide = table_of(column("a", FieldType.VARCHAR, length=65535, collation=63))
    assert decoded(wide, b"\xfe" + length.to_bytes(2, "little") + content) == [(content,)]
    for size in range(1, 5):
        if length < 1 << 8 * size:
            blob = table_of(column("a", FieldType.BLOB, length=size, collation=63))
            assert decoded(blob, b"\xfe" + length.to_bytes(size, "little") + content) == [(content,)]


def test_labels_by_their_numbers() -> None:
    labels = tuple(f"{at:03d}".encode() for at in range(300))
    many = table_of(column("a", FieldType.ENUM, length=2, labels=labels, collation=45))
    assert decoded(many, b"\xfe\x00\x00\xfe\x2c\x01") == [(EnumLabel(""),), (EnumLabel("299"),)]
    with pytest.raises(EventFormatError):
        decoded(many, b"\xfe\x2d\x01")
    wide = table_of(column("a", FieldType.SET, length=8, labels=labels[:64], collation=45))
    assert decoded(wide, b"\xfe" + b"\x01" + bytes(6) + b"\x80") == [(SetLabels(("000", "063")),)]
    three = table_of(column("a", FieldType.SET, length=3, labels=labels[:17], collation=45))
    assert decoded(three, b"\xfe\x00\x00\x01") == [(SetLabels(("016",)),)]
    with pytest.raises(EventFormatError):
        decoded(three, b"\xfe\x00\x00\x02")
    with pytest.raises(EventFormatError):
        decoded(table_of(column("a", FieldType.ENUM, length=3, labels=labels, collation=45)), b"\xfe\0\0\0")


def test_rows_that_end_too_early_or_too_late() -> None:
    table = table_of(column("id", FieldType.LONG), column("a", FieldType.VARCHAR, length=9, collation=45))
    row = b"\xfc\x01\x00\x00\x00\x03abc"
    assert len(decoded(table, row * 3)) == 3
    for cut in range(1, len(row)):
        with pytest.raises(EventFormatError, match=r"a row of s\.t"):
            decoded(table, row + row[:cut])
    with pytest.raises(EventFormatError):
        decoded(table, row + b"\xfc")


@pytest.mark.parametrize(("precision", "decimals"), [(10, 2), (6, 6), (18, 9), (5, 0), (65, 30), (12, 3), (7, 6)])
def test_decimals_are_encoded_as_decimal_writes_them(precision: int, decimals: int) -> None:
    """Also the smallest, for which Decimal takes an exponent from seven decimals on."""
    numbers = [0, 1, -1, 10**decimals, -(10**precision) + 1, 10**precision - 1, 5 * 10 ** (precision // 2)]
    size, convert = decimal_text(precision, decimals)
    for number in (number for number in numbers if abs(number) < 10**precision):
        expected = Decimal(number).scaleb(-decimals, Context(prec=precision))
        raw = stored_decimal(number, precision, decimals)
        assert len(raw) == size
        assert Decimal(convert(raw)).as_tuple() == expected.as_tuple()
        if decimals <= 6:
            assert encode_decimal(convert(raw)) == encode_row((expected,))


def stored_decimal(number: int, precision: int, decimals: int) -> bytes:
    """Return a DECIMAL as the server stores it: groups of nine digits in four bytes, from the point outwards."""
    text = f"{abs(number):0{precision}d}"
    whole, part = text[: precision - decimals], text[precision - decimals :]
    groups = [whole[: len(whole) % 9], *(whole[at : at + 9] for at in range(len(whole) % 9, len(whole), 9))]
    groups += [part[at : at + 9] for at in range(0, len(part), 9)]
    raw = bytearray(
        b"".join(int(group).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(group)], "big") for group in groups if group)
    )
    raw[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in raw) if number < 0 else bytes(raw)


@pytest.mark.long
def test_changed_rows_end_in_values_or_in_an_error_of_ours() -> None:
    """conventions 6.5, for row images."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    sources = []
    for name, (table, events) in golden().items():
        types = types_in_binlog(table, collations=COLLATIONS, known=KNOWN.get(name))
        sources += [(table, types, event, parse_rows_shape(event).images_at) for event in events]
    taken = refused = 0
    for _ in range(6000):
        table, types, event, at = rng.choice(sources)
        changed = bytearray(event)
        if rng.random() < 0.2:
            del changed[rng.randrange(at, len(changed)) :]
        else:
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(at, len(changed))] = rng.randrange(256)
        try:
            taken += len(values(table, types, bytes(changed), at))
        except EventFormatError:
            refused += 1
    assert taken > 500 and refused > 500


@pytest.mark.long
def test_changed_table_maps_end_in_types_or_in_an_error_of_ours() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    maps, rows = [], []
    for event in EventSplitter().feed((GOLDEN / "types.stream").read_bytes()):
        if event[4] == EventType.TABLE_MAP:
            maps.append(event)
        elif event[4] == EventType.WRITE_ROWS_V1:
            rows.append(event)
    outcomes = {"decoded": 0, "refused": 0}
    for _ in range(1500):
        changed = bytearray(rng.choice(maps))
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(HEADER_BYTES + 8, len(changed))] = rng.randrange(256)
        try:
            table = parse_table_map(bytes(changed))
            known = KNOWN.get(table.table)
            types = types_in_binlog(table, collations=COLLATIONS, known=known)
            rows_encoder(table, types)
            event = rng.choice(rows)
            shape = parse_rows_shape(event)
            if shape.columns == len(table.columns):
                values(table, types, event, shape.images_at)
            outcomes["decoded"] += 1
        except SourceError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (9, 0), (10, 0), (18, 9), (19, 10), (38, 38), (65, 30), (7, 7)]
)
def test_decimals_there_and_back(precision: int, scale: int) -> None:
    """data-model.md: "exact text with scale kept". Against the server's packing, written out the other way round."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    size, convert = decimal_bytes(precision, scale)

    def pack(digits: str, negative: bool) -> bytes:
        whole, part = digits[: precision - scale], digits[precision - scale :]
        lead = len(whole) % 9
        groups = ([whole[:lead]] if lead else []) + [whole[at : at + 9] for at in range(lead, len(whole), 9)]
        groups += [part[at : at + 9] for at in range(0, len(part), 9)]
        raw = b"".join(int(group).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(group)], "big") for group in groups)
        if negative:
            raw = bytes(byte ^ 0xFF for byte in raw)
        return bytes([raw[0] ^ 0x80]) + raw[1:]

    for number in (0, 1, 10**precision - 1, 10 ** (precision // 2), *(rng.randrange(10**precision) for _ in range(20))):
        for negative in (False, True):
            if negative and not number:
                continue
            digits = f"{number:0{precision}d}"
            raw = pack(digits, negative)
            assert len(raw) == size
            value = convert(raw)
            expected = Decimal(
                f"{'-' if negative else ''}{digits[: precision - scale] or '0'}.{digits[precision - scale :]}"
            )
            assert canonical(value) == canonical(expected if scale else Decimal(int(expected)))


def test_dates_that_no_calendar_has() -> None:
    assert date_value(2024, 2, 29) == Date(19782)
    assert date_value(0, 1, 1) == Date(-719528)
    for year, month, day in [
        (2023, 2, 29),
        (1900, 2, 29),
        (2024, 2, 31),
        (2024, 13, 1),
        (2024, 0, 1),
        (2024, 1, 0),
        (0, 0, 0),
    ]:
        assert date_value(year, month, day) == ZeroDate(f"{year:04d}-{month:02d}-{day:02d}")
    assert isinstance(date_value(2000, 2, 29), Date)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("00000000000000000000000000000000", "::"),
        ("00000000000000000000000000000001", "::1"),
        ("00000000000000000000000001020304", "::1.2.3.4"),
        ("00000000000000000000ffff01020304", "::ffff:1.2.3.4"),
        ("20010db8000000000001000000000001", "2001:db8::1:0:0:1"),
        ("00010000000100010000000100000be3", "1::1:1:0:1:0:be3"),
        ("ffffffffffffffffffffffffffffffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("00010000000000000000000000000000", "1::"),
    ],
)
def test_addresses(raw: str, text: str) -> None:
    """As the server prints them, which shortens a single zero too."""
    assert inet6_text(bytes.fromhex(raw)) == text
    assert inet4_text(b"\x00\xff\x01\x80") == "0.255.1.128"


def test_values_of_compressed_columns() -> None:
    plain = b"content " * 100
    raw = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = raw.compress(plain) + raw.flush()
    assert uncompressed(b"\x8a" + len(plain).to_bytes(2, "big") + body) == plain
    assert uncompressed(b"\x82" + len(plain).to_bytes(2, "big") + zlib.compress(plain)) == plain
    assert uncompressed(b"") == b"" and uncompressed(b"\0abc") == b"abc"
    for broken in (
        b"\x8a\x00\x01" + body,
        b"\x12\x00\x01x",
        b"\x8a\x03\x20junk",
        b"\x88abc",
        b"\x8b\xff\xff\xff" + body,
    ):
        with pytest.raises(ValueError, match="compressed value"):
            uncompressed(broken)


def test_sets_and_memos() -> None:
    assert set_value(("a", "b", "c"), 0b101) == SetLabels(("a", "c"))
    with pytest.raises(IndexError):
        set_value(("a",), 2)
    calls: list[bytes] = []

    def convert(raw: bytes) -> Value:
        calls.append(raw)
        return raw

    memo = Memo(convert)
    for number in range(70_000):
        assert memo[number.to_bytes(4, "big")] == number.to_bytes(4, "big")
    assert memo[(69_999).to_bytes(4, "big")] and len(calls) == 70_000
    assert len(memo) < 65_537


# --- types -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (column("c", FieldType.NEWDECIMAL, length=66), EventFormatError),
        (column("c", FieldType.NEWDECIMAL, length=5, decimals=6), EventFormatError),
        (column("c", FieldType.BIT, length=65), EventFormatError),
        (column("c", FieldType.TIME2, decimals=7), EventFormatError),
        (column("c", FieldType.BLOB, length=5, collation=63), EventFormatError),
        (column("c", FieldType.VARCHAR, length=5), EventFormatError),
        (column("c", FieldType.GEOMETRY, length=4, geometry=99), UnsupportedTypeError),
        (column("c", FieldType.NULL), UnsupportedTypeError),
        (column("c", FieldType.DECIMAL), UnsupportedTypeError),
        (column("c", FieldType.ENUM, length=1, labels=(b"[",), collation=10), UnsupportedTypeError),
    ],
)
def test_columns_that_cannot_be_carried(broken: BinlogColumn, error: type[SourceError]) -> None:
    """Unknown types stop by table and column."""
    with pytest.raises(error, match="c"):
        types_in_binlog(table_of(broken), collations=COLLATIONS, known=None)


def catalog_column(data_type: str, column_type: str, **more: object) -> CatalogColumn:
    settings: dict[str, object] = {
        "nullable": True,
        "charset": None,
        "characters": None,
        "octets": None,
        "precision": None,
        "scale": None,
        "decimals": None,
        **more,
    }
    return CatalogColumn(name="c", data_type=data_type, column_type=column_type, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listed", "spelled"),
    [
        (catalog_column("int", "int(10) unsigned zerofill"), "int unsigned"),
        (catalog_column("int", "int(11)"), "int"),
        (catalog_column("decimal", "decimal(10,2) unsigned", precision=10, scale=2), "decimal(10,2) unsigned"),
        (catalog_column("double", "double unsigned"), "double unsigned"),
        (catalog_column("year", "year(4)"), "year"),
        (
            catalog_column("varchar", "varchar(5) /*M!100301 COMPRESSED*/", characters=5, charset="utf8mb4"),
            "varchar(5)",
        ),
        (catalog_column("datetime", "datetime(3) /* mariadb-5.3 */", decimals=3), "datetime(3)"),
        (catalog_column("enum", "enum(' unsigned)','b')", charset="latin1"), "enum(' unsigned)','b')"),
        (catalog_column("uuid", "uuid"), "uuid"),
        (catalog_column("multipolygon", "multipolygon"), "multipolygon"),
    ],
)
def test_types_of_the_catalog(listed: CatalogColumn, spelled: str) -> None:
    assert type_in_catalog("s.t", listed).source_type == spelled


def test_a_type_of_the_catalog_that_is_not_known() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"column c of table s\.t has type vector\(3\)"):
        type_in_catalog("s.t", catalog_column("vector", "vector(3)"))


def test_labels_as_the_catalog_spells_them() -> None:
    assert catalog_labels(r"enum('a','b''c','d\\e','f\ng','','h,i','(')") == (
        "a",
        "b'c",
        "d\\e",
        "f\ng",
        "",
        "h,i",
        "(",
    )


def test_images_without_what_is_generated() -> None:
    """A server of version 11.8 wrote these: an UPDATE's and a DELETE's images lack what follows from other columns."""
    names = ("id", "a", "b", "c", "d", "DB_ROW_HASH_1")
    kinds = [FieldType.LONG, FieldType.LONG, FieldType.YEAR, FieldType.LONG, FieldType.TINY, FieldType.LONGLONG]
    table = table_of(*(column(name, kind) for name, kind in zip(names, kinds, strict=True)))
    types = types_in_binlog(table, collations=COLLATIONS, known=None)
    known = KnownTable(types=dict.fromkeys(names[:5], ""), generated=frozenset("bcd"))
    carried = carried_columns(table, known)
    assert carried == (0, 1) and carried_columns(table, None) == (0, 1, 2, 3, 4)
    assert carried_columns(table, replace(known, generated=frozenset(names))) == (0, 1, 2, 3, 4), "generated alone"
    whole = b"\xc0" + bytes.fromhex("03000000 05000000 64 02000000 f4 0700000000000000")
    part = bytes.fromhex("fc 03000000 05000000 fc 03000000 00000000")
    expected = encode_row((3, 5))
    assert rows_encoder(table, types, carried=carried)(bytes(HEADER_BYTES) + whole, HEADER_BYTES) == [expected]
    encode = encoder_of_present(table, types, carried, 0b11)
    assert encode(bytes(HEADER_BYTES) + part, HEADER_BYTES) == [expected, encode_row((3, 0))]


def test_keys_only_over_columns_that_are_there() -> None:
    """The catalog knows the present, the stream the past: a key over a column that came later is left out."""
    kind = MariadbType(family=Family.INTEGER, name="int")
    known = KnownTable(
        types={},
        unique_keys=(("b",), ("a", "later")),
        foreign_keys=(
            KnownForeignKey(columns=("b", "a"), ref_schema="s", ref_table="p", ref_columns=("x", "y")),
            KnownForeignKey(columns=("later",), ref_schema="s", ref_table="p", ref_columns=("x",)),
        ),
    )
    found = table_map("s", "t", [kind.column(name, nullable=True) for name in "ab"], primary_key=[0], known=known)
    assert found.unique_keys == ((1,),)
    assert [key.columns for key in found.foreign_keys] == [(1, 0)]
    assert table_map("s", "t", found.columns, primary_key=[], known=None).unique_keys == ()


@pytest.mark.parametrize(
    ("sql", "after"),
    [
        (
            "CREATE OR REPLACE TABLE IF NOT EXISTS `t``1` (id INT, `u u` UUID NOT NULL, i inet6, b BINARY( 16 ), "
            "c BINARY(17), d VARBINARY(16) COMMENT 'x UUID')",
            {("s", "t`1"): {"u u": "uuid", "i": "inet6", "b": "binary(16)"}},
        ),
        ("CREATE TABLE o . t (id INET4 /* , x UUID */)", {("o", "t"): {"id": "inet4"}}),
        ("ALTER TABLE t ADD COLUMN n INT, DROP v", {("s", "t"): {"u": "uuid", "b": "binary(16)"}}),
        ("ALTER TABLE s.t MODIFY b UUID, ADD x INET6 FIRST", {("s", "t"): {"u": "uuid", "b": "uuid", "x": "inet6"}}),
        ("ALTER TABLE t CHANGE u w BINARY(16)", {("s", "t"): {"b": "binary(16)", "w": "binary(16)"}}),
        ("ALTER TABLE t DROP COLUMN u, RENAME TO o.t2", {("o", "t2"): {"b": "binary(16)"}}),
        ("RENAME TABLE t TO x.y, `a` TO b", {("x", "y"): {"u": "uuid", "b": "binary(16)"}, ("s", "b"): {}}),
        (
            "RENAME TABLE t TO x, a TO t, x TO a",
            {
                ("s", "x"): {"u": "uuid", "b": "binary(16)"},
                ("s", "t"): {},
                ("s", "a"): {"u": "uuid", "b": "binary(16)"},
            },
        ),
        ("DROP TABLE t", {}),
        ("CREATE TABLE t LIKE x", {("s", "t"): {}}),
        ("CREATE TABLE IF NOT EXISTS o.t (LIKE t)", {("o", "t"): {"u": "uuid", "b": "binary(16)"}}),
    ],
)
def test_what_a_statement_says_of_columns_that_look_alike(sql: str, after: dict[object, object]) -> None:
    """UUID, INET6 and BINARY(16) are one in the binlog; a definition as of then is told by statements."""
    before = {("s", "t"): {"u": "uuid", "b": "binary(16)"}}
    assert alike_after("s", sql, before) == after
