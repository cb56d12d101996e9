"""What `thl` prints of a Tungsten log: conformance/tungsten.md A9. The golden texts are `test_golden`'s."""

from __future__ import annotations

import random
import struct
from datetime import timedelta, timezone
from zoneinfo import ZoneInfo

import msgspec
import pytest

from fix_tungsten import any_event, make_event
from tranlog.change import Op
from tranlog.service.thl.listing import SegmentShown, index_line, overview, overview_lines
from tranlog.tungsten.reading import text
from tranlog.tungsten.reading.text import Style, cell_text, double_text, python_charset, statement_text, time_text
from tranlog.tungsten.records import values
from tranlog.tungsten.records.event import (
    ColumnSpec,
    Event,
    FileDelete,
    FileFragment,
    FileQuery,
    JavaObject,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import BinaryText, Moment, Unscaled


def record_of(event: Event | JavaObject, seqno: int = 3) -> EventRecord:
    return EventRecord(
        offset=16,
        length=100,
        seqno=seqno,
        fragno=0,
        last_frag=True,
        epoch=2,
        source_id="logos",
        event_id="e1",
        shard_id="db",
        tstamp=1_309_560_000_000,
        crc_type=1,
        crc=0,
        payload_offset=60,
    )


def lines(*changes: object, style: Style = text.PLAIN) -> list[str]:
    event = msgspec.structs.replace(make_event(3), changes=changes)
    return list(text.event_lines(record_of(event), event, style))[7:]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (1234567.0, "1234567.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.001, "0.001"),
        (0.0012, "0.0012"),
        (0.00099, "9.9E-4"),
        (1e100, "1.0E100"),
        (-1.5e-10, "-1.5E-10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_as_java_prints_them(number: float, shown: str) -> None:
    """java.lang.Double.toString: decimal from 10^-3 up to 10^7, else with an exponent."""
    assert double_text(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.1, "0.1"), (-1.5e-10, "-1.5E-10"), (3.4028234663852886e38, "3.4028235E38"), (16777216.0, "1.6777216E7")],
)
def test_floats_have_their_own_digits(number: float, shown: str) -> None:
    single = struct.unpack(">f", struct.pack(">f", number))[0]
    assert double_text(single, single=True) == shown


def test_doubles_read_back() -> None:
    rng = random.Random(4)
    for _ in range(500):
        number = struct.unpack(">d", rng.randbytes(8))[0]
        if number == number:
            assert float(double_text(number)) == number
        single = struct.unpack(">f", rng.randbytes(4))[0]
        if single == single and abs(single) != float("inf"):
            again = float(double_text(single, single=True))
            assert struct.pack(">f", again) == struct.pack(">f", single)


def test_times() -> None:
    """Timestamp.toString: no trailing zeros, one digit at least; the zone is the option -timezone's."""
    assert time_text(1_309_560_000_000) == "2011-07-01 22:40:00.0"
    assert time_text(1_309_560_010_370) == "2011-07-01 22:40:10.37"
    assert time_text(-1500, nanos=700) == "1969-12-31 23:59:58.5000007"
    assert time_text(1_309_560_000_000, timezone(timedelta(hours=-2))) == "2011-07-01 20:40:00.0"
    assert time_text(1_309_560_000_000, ZoneInfo("Europe/Helsinki")) == "2011-07-02 01:40:00.0"
    assert time_text(1 << 62, ZoneInfo("Europe/Helsinki")).endswith(".904")


def test_moments() -> None:
    """Golden rows-crc, and that a zone moves instants only: a DATE, TIME or DATETIME is a wall clock's."""
    east = Style(zone=timezone(timedelta(hours=5)))
    day, noon = 1_309_478_400_000, 45_296_000
    for moment, shown in (
        (Moment(values.DATE, day), "2011-07-01"),
        (Moment(values.DATE, day + noon, None, "GMT"), "2011-07-01 12:34:56"),
        (Moment(values.DATE, day + noon + 123, 456_000, "GMT"), "2011-07-01 12:34:56.123456000"),
        (Moment(values.TIME, noon), "12:34:56"),
        (Moment(values.TIME, noon, 0), "1970-01-01 12:34:56.0"),
        (Moment(values.DATE, None, 0), "0"),
    ):
        assert cell_text(moment) == shown
        assert cell_text(moment, east) == shown
    assert cell_text(Moment(values.TIMESTAMP, day), east) == "2011-07-01 05:00:00.0"


def test_bytes_and_charsets() -> None:
    """-hex, -charset; an address of a Java object is never shown."""
    assert cell_text(b"caf\xe9") == "caf�"
    assert cell_text(b"caf\xe9", Style(charset="ISO8859_1")) == "café"
    assert cell_text(b"caf\xe9", Style(hex=True)) == "0x636166e9"
    assert cell_text(b"") == ""
    assert cell_text(BinaryText(b"\xe9\0")) == "0xe900"
    assert cell_text(BinaryText(b"\xe9"), Style(charset="latin1")) == "é"
    assert cell_text(b"x", Style(charset="klingon")) == "0x78 (the charset klingon is not known)"


@pytest.mark.parametrize(
    "name", ["ISO8859_1", "UTF-8", "UTF8", "Cp1252", "windows-1252", "EUC_JP", "SJIS", "MS932", "Big5", "KOI8_R", "GBK"]
)
def test_javas_names_of_charsets(name: str) -> None:
    assert python_charset(name) is not None


@pytest.mark.parametrize("name", ["", "hex", "rot13", "zlib", "klingon", "a\0b", "../x", "bz2_codec"])
def test_names_of_no_charset(name: str) -> None:
    assert python_charset(name) is None


def test_a_statement_as_bytes() -> None:
    """B3, end: `queryAsBytes` with `##charset`."""
    options = (("##charset", "ISO8859_1"),)
    assert statement_text(StatementChange(raw_query=b"select '\xe9'", options=options)) == "select 'é'"
    assert statement_text(StatementChange(raw_query=b"\xe9")) == "�"
    assert statement_text(StatementChange(raw_query=b"\xd6", options=options), Style(charset="KOI8_R")) == "ж"
    assert statement_text(StatementChange()) == ""


def test_every_kind_of_change() -> None:
    statement = StatementChange(schema="db", query="LOAD DATA")
    shown = lines(
        statement,
        FileFragment(file_id=4, raw=b"abc"),
        FileQuery(statement=statement, file_id=4, name_start=1, name_end=2),
        FileDelete(file_id=4),
        RowId(number=9, kind=1),
        RowId(number=10),
    )
    assert shown == [
        "- SCHEMA = db",
        "- SQL(0) = LOAD DATA",
        "- DATA FILE #4 / size : 3",
        "- SQL(2) = LOAD DATA",
        "- DATA FILE #4 / delete",
        "- SQL(4) = SET LAST_INSERT_ID = 9",
        "- SQL(5) = SET INSERT_ID = 10",
    ]


def test_rows_that_do_not_match_their_specs() -> None:
    """Values without a column, columns without a value: shown, not an error."""
    table = TableChange(
        schema="s",
        table="t",
        op=Op.DELETE,
        column_specs=(ColumnSpec(index=2, name="gone", sql_type=12),),
        keys=((1, 2),),
        key_specs=(ColumnSpec(index=1, name="id", sql_type=4),),
    )
    assert lines(RowChanges(tables=(table,)))[4:] == [
        " - ROW# = 0",
        "Column specs only found : gone",
        "  - KEY(1: id) = 1",
        "  - KEY(2: ) = 2",
    ]


def test_a_java_object() -> None:
    found = JavaObject(b"\xac\xed\0\5...")
    shown = list(text.event_lines(record_of(found), found))
    assert shown[0] == "SEQ# = 3 / FRAG# = 0 (last frag)"
    assert shown[-1] == found.sentence()
    assert list(text.sql_lines(record_of(found), found)) == [f"/* SEQ# = 3 - {found.sentence()} */"]


def test_any_event_has_a_text() -> None:
    """Whatever an event holds: lines, that can be encoded."""
    for seed in range(200):
        event = any_event(random.Random(seed))
        for style in (text.PLAIN, Style(hex=True, specs=True, charset="Cp1252")):
            shown = [*text.event_lines(record_of(event), event, style), *text.sql_lines(record_of(event), event, style)]
            "\n".join(shown).encode()


def test_a_long_decimal_is_not_made_into_digits() -> None:
    assert cell_text(Unscaled(b"\x7f" * 5000, 2)).startswith("0x7f7f")
    assert cell_text(Unscaled(b"\x11", -5)) == "1.7E+6"
    assert cell_text(Unscaled(b"\xfb", 2)) == "-0.05"


def test_index_info_and_purge() -> None:
    """B7-6: `events` counts both ends."""
    assert index_line("thl.data.0000000001", 0, 8) == "LogIndexEntry thl.data.0000000001(0:8)"
    assert index_line("thl.data.0000000002", -1, -1) == "LogIndexEntry thl.data.0000000002(-1:-1)"
    files = [SegmentShown(file="thl.data.0000000001", bytes=2 << 20, modified_ms=1_309_560_000_999)]
    assert list(overview_lines(overview("/log/", files, first=0, last=8, history=None))) == [
        "log directory = /log/",
        "log files = 1",
        "logs size = 2.00 MB",
        "min seq# = 0",
        "max seq# = 8",
        "events = 9",
        "oldest file = thl.data.0000000001 (2.00 MB, 2011-07-01 22:40:00)",
        "newest file = thl.data.0000000001 (2.00 MB, 2011-07-01 22:40:00)",
    ]
    assert list(overview_lines(overview("/log", [], first=-1, last=-1, history=None)))[-1] == "events = 0"
    assert [text.purge_line(*ends) for ends in ((1, 2), (3, None), (None, 4), (5, 5))] == [
        "Deleting events where SEQ# >= 1 and SEQ# <=2",
        "Deleting events where SEQ# >= 3",
        "Deleting events where SEQ# <=4",
        "Deleting events where SEQ# = 5",
    ]
