"""text_rows and row_blocks: rows that a server sends as text (design/loads.md, "Speed")."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

import pytest

from tranlog.change import Column, TableMap
from tranlog.errors import PayloadError
from tranlog.row_blocks import decoded, encoded
from tranlog.row_bytes import decode_row, encode_row, encode_value
from tranlog.source.mariadb.tables import _encoder, _form, _reading
from tranlog.source.mariadb.types import Family, MariadbType
from tranlog.text_rows import AS_BYTES, AS_INTEGER, AS_TEXT, encode_cells, encode_packets
from tranlog.types import CharsetBytes, Date, Datetime, Instant, LogicalType, Value, ZeroDate
from tranlog.value_ends import key_in

INTEGER = MariadbType(family=Family.INTEGER, name="bigint")
DECIMAL = MariadbType(family=Family.DECIMAL, name="decimal")
TEXT = MariadbType(family=Family.TEXT, name="text", charset="utf8mb4")
WORDS: list[tuple[MariadbType, bytes, Value]] = [
    (INTEGER, b"0", 0),
    (INTEGER, b"-1", -1),
    (INTEGER, b"00042", 42),
    (INTEGER, b"999999999999999999", 10**18 - 1),
    (INTEGER, b"-9223372036854775808", -(1 << 63)),
    (INTEGER, b"18446744073709551615", (1 << 64) - 1),
    (DECIMAL, b"9.90", Decimal("9.90")),
    (DECIMAL, b"-0.00", Decimal("-0.00")),
    (DECIMAL, b"0000009.99", Decimal("9.99")),
    (DECIMAL, b"00", Decimal(0)),
    (DECIMAL, b"0.00000012", Decimal("0.00000012")),
    (TEXT, b"", ""),
    (TEXT, b"a\\\t\0b", "a\\\t\0b"),
    (TEXT, "é\U0001f600".encode(), "é\U0001f600"),
    (TEXT, b"\xff", CharsetBytes("utf8mb4", b"\xff")),
    (MariadbType(family=Family.TEXT, name="text", charset="latin1"), b"a\x80", "a€"),
    (MariadbType(family=Family.TEXT, name="text", charset="ucs2"), b"\0a", "a"),
    (MariadbType(family=Family.TEXT, name="text", charset="sjis"), b"a\\", CharsetBytes("sjis", b"a\\")),
    (MariadbType(family=Family.BYTES, name="blob"), b"\xff" * 300, b"\xff" * 300),
    (MariadbType(family=Family.DOUBLE, name="double"), b"1e300", 1e300),
    (MariadbType(family=Family.DATE, name="date"), b"1970-01-03", Date(2)),
    (MariadbType(family=Family.DATETIME, name="datetime", decimals=0), b"1970-01-01 00:00:01", Datetime(1_000_000)),
    (MariadbType(family=Family.DATETIME, name="datetime", decimals=3), b"2024-02-29 23:59:59.250", None),
    (
        MariadbType(family=Family.DATETIME, name="datetime", decimals=0),
        b"2024-02-30 00:00:00",
        ZeroDate("2024-02-30 00:00:00"),
    ),
    (
        MariadbType(family=Family.TIMESTAMP, name="timestamp", decimals=6),
        b"1970-01-01 00:00:01.000002",
        Instant(1000002),
    ),
    (
        MariadbType(family=Family.TIMESTAMP, name="timestamp", decimals=0),
        b"0000-00-00 00:00:00",
        ZeroDate("0000-00-00 00:00:00"),
    ),
    (MariadbType(family=Family.UUID, name="uuid"), b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None),
]


def cells(*rows: tuple[bytes | None, ...]) -> Callable[[int, int], bytes | None]:
    """What libpq gives."""
    return lambda row, column: rows[row][column]


@pytest.mark.parametrize(("kind", "raw", "value"), WORDS)
def test_a_text_is_written_as_its_value_is(kind: MariadbType, raw: bytes, value: Value) -> None:
    """Whichever way it goes, by the form or by the encoder."""
    reader = _reading(kind)[1]
    encoder = _encoder(reader)
    assert value is None or reader(raw) == value
    (row,) = encode_cells(cells((raw,)), 1, bytes([_form(kind)]), [encoder])
    assert row == encode_value(reader(raw)) == encoder(raw)
    assert encode_cells(cells((None,)), 1, bytes([_form(kind)]), [encoder]) == [encode_row((None,))]
    assert decode_row(row, 1) == (reader(raw),)


def cell(raw: bytes | None) -> bytes:
    """A length-encoded string, or NULL."""
    if raw is None:
        return b"\xfb"
    size = len(raw)
    if size < 0xFB:
        return bytes([size]) + raw
    width, mark = (2, 0xFC) if size < 1 << 16 else (3, 0xFD)
    return bytes([mark]) + size.to_bytes(width, "little") + raw


def packet(number: int, body: bytes) -> bytes:
    """A packet of the server's."""
    return len(body).to_bytes(3, "little") + bytes([number & 0xFF]) + body


FORMS = bytes([AS_INTEGER, AS_TEXT, AS_BYTES])
ENCODERS = [lambda raw: encode_value(int(raw)), lambda raw: encode_value(raw.decode()), encode_value]
ROWS: list[tuple[bytes | None, ...]] = [
    (b"%d" % number, None if number % 3 else b"x" * (number * 40), b"\0" * (number * 900 % 70_000))
    for number in range(300)
]
SENT = [packet(number + 250, b"".join(map(cell, row))) for number, row in enumerate(ROWS)]
WANTED = [encode_row((int(number or b""), None if text is None else text.decode(), raw)) for number, text, raw in ROWS]


def test_packets_are_rows_wherever_the_bytes_are_cut() -> None:
    """Nothing is taken of a row that is not whole yet; numbers begin again after 255."""
    raw = b"".join(SENT)
    for step in (1 << 10, 65_537, len(raw)):
        found: list[bytes] = []
        held, number = b"", 250
        for start in range(0, len(raw), step):
            held += raw[start : start + step]
            at, number, stopped = encode_packets(held, 0, number, FORMS, ENCODERS, found)
            assert not stopped
            held = held[at:]
        assert (found, held, number) == (WANTED, b"", (250 + len(ROWS)) & 0xFF)
    one = SENT[1]
    for cut in range(len(one)):
        assert encode_packets(one[:cut], 0, 251, FORMS, ENCODERS, []) == (0, 251, False)


@pytest.mark.parametrize(
    "other",
    [
        packet(1, b"\xfe\0\0\x22\0"),
        packet(1, b"\xff\x15\x04#HY000gone"),
        packet(7, b"".join(map(cell, ROWS[0]))),
        packet(1, b""),
        b"\xff\xff\xff\x01" + b"\x01a",
    ],
    ids=["end", "error", "out of order", "empty", "a part of a row"],
)
def test_what_is_no_plain_row_is_left(other: bytes) -> None:
    """With all behind it."""
    raw, found = packet(0, b"".join(map(cell, ROWS[0]))), list[bytes]()
    assert encode_packets(raw + other + b"more", 0, 0, FORMS, ENCODERS, found) == (len(raw), 1, True)
    assert found == WANTED[:1]


@pytest.mark.parametrize(
    "body",
    [b"\x011", b"\x011\x02a", cell(b"1") * 4, b"\x011\x01a\xfd\xff\xff\x7f", b"\x011\x01a\xfe" + b"\xff" * 7 + b"\x7f"],
)
def test_a_row_of_other_columns_is_refused(body: bytes) -> None:
    """Rather than read into the packet behind it."""
    with pytest.raises((ValueError, IndexError)):
        encode_packets(packet(0, body), 0, 0, FORMS, ENCODERS, [])


def test_blocks_come_back_as_values() -> None:
    """In their order, some at a time, and large ones by themselves."""
    columns = tuple([Column(name=name, source_type="", logical=LogicalType.ANY) for name in "ab"])
    table = TableMap(schema="s", table="t", columns=columns)
    rows: list[tuple[Value, ...]] = [(number, "x" * (number % 7)) for number in range(250)]
    blocks = list(encoded(rows))
    assert [len(block) for block in blocks] == [100, 100, 50]
    assert list(decoded(blocks, table)) == rows
    assert [len(block) for block in encoded([(1, b"x" * (1 << 20)), (2, b"")])] == [1, 1]
    assert list(encoded([])) == []


def test_a_row_of_other_bytes_is_none() -> None:
    """Too few, too many, and what no tag begins."""
    raw = encode_row((1, "a"))
    assert decode_row(raw, 2) == (1, "a")
    for damaged in (raw[:-1], raw + b"\0", b"\x3f" + raw[1:]):
        with pytest.raises(PayloadError):
            decode_row(damaged, 2)


def test_a_key_is_found_in_the_bytes_of_its_row() -> None:
    """In the key's order, not the row's."""
    row: tuple[Value, ...] = (7, "text", None, UUID(int=5), Decimal("1.0"))
    raw = encode_row(row)
    for key in ((0,), (1,), (3, 0), (4, 2, 1), (0, 1, 2, 3, 4)):
        assert key_in(raw, key) == encode_row([row[at] for at in key])
