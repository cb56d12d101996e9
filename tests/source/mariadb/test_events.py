"""source/mariadb/wire, mariadb/events and mariadb/groups, on what a real server sent (tests/golden/mariadb)."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tranlog.errors import TranlogError, UnsupportedEventError
from tranlog.source.mariadb.events import (
    HEADER,
    HEADER_BYTES,
    BinlogColumn,
    EventFormatError,
    EventType,
    FieldType,
    annotation,
    event_name,
    has_valid_checksum,
    parse_beside,
    parse_gtid,
    parse_gtid_list,
    parse_query,
    parse_rows_shape,
    parse_table_map,
    rows_unchecked,
    sql_mode_text,
    table_map_name,
    table_number,
    uncompressed_event,
)
from tranlog.source.mariadb.groups import EventGroup, GroupAssembler
from tranlog.source.mariadb.position import BinlogPosition, DomainGtid, gtid_text, parse_gtids
from tranlog.source.mariadb.wire import EventSplitter, ServerWord

GOLDEN = Path(__file__).parents[2] / "golden" / "mariadb"


def stream(name: str) -> bytes:
    return (GOLDEN / f"{name}.stream").read_bytes()


def events_of(name: str) -> list[bytes]:
    return EventSplitter().feed(stream(name))


class Store:
    """Events in a list."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.closed = False

    def append(self, event: bytes) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.events)

    def close(self) -> None:
        self.closed = True


def assembler(position: BinlogPosition | None = None, limit: int = 1 << 30) -> GroupAssembler:
    return GroupAssembler(position or BinlogPosition(), new_store=Store, transaction_bytes_max=limit)


def groups_of(events: list[bytes], taker: GroupAssembler | None = None) -> list[EventGroup]:
    taker = taker or assembler()
    return [group for event in events if (group := taker.feed(event)) is not None]


def place_of(group: EventGroup) -> str:
    """The event id without what proves it."""
    return str(group.position).rpartition(";")[0]


def kinds(group: EventGroup) -> list[int]:
    return [event[4] for event in group.events]


def make_event(kind: int, body: bytes = b"", *, end: int = 1000, flags: int = 0, server_id: int = 1) -> bytes:
    size = HEADER_BYTES + len(body) + 4
    return struct.pack("<IBIIIH", 1_700_000_000, kind, server_id, size, end, flags) + body


def gtid_event(sequence: int, flags: int = 0, domain: int = 0, rest: bytes = bytes(6)) -> bytes:
    return make_event(EventType.GTID, struct.pack("<QIB", sequence, domain, flags) + rest)


def query_event(text: bytes, status: bytes = b"", schema: bytes = b"s") -> bytes:
    post = struct.pack("<IIBHH", 1, 0, len(schema), 0, len(status))
    return make_event(EventType.QUERY, post + status + schema + b"\0" + text)


# --- the wire --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["types", "transactions"])
@pytest.mark.parametrize("size", [1, 3, 7, 64, 1000])
def test_packets_are_cut_wherever_the_socket_cuts_them(name: str, size: int) -> None:
    raw = stream(name)
    whole = EventSplitter()
    expected = whole.feed(raw)
    assert len(expected) > 20
    assert whole.word == ServerWord(code=0, text="the server ended the stream")
    pieces = EventSplitter()
    found = [event for at in range(0, len(raw), size) for event in pieces.feed(raw[at : at + size])]
    assert found == expected
    assert pieces.word == whole.word


def test_checksums_are_verified_and_taken_off() -> None:
    """sources.md: "Verify the checksums"; files with and without follow each other in this stream."""
    events = events_of("transactions")
    lengths = [struct.unpack_from("<I", event, 9)[0] - len(event) for event in events]
    assert set(lengths) == {0, 4}
    raw = bytearray(stream("transactions"))
    at = raw.index(b"kept")
    raw[at] ^= 1
    splitter = EventSplitter()
    before = splitter.feed(bytes(raw))
    assert "ANNOTATE_ROWS event that ends at offset 1417 fails its checksum" in str(splitter.failure)
    assert before == events[: len(before)] and len(before) > 20, "what was whole before it comes out"
    assert splitter.feed(bytes(raw)) == []


def test_an_event_of_several_packets() -> None:
    """A packet of 2^24 - 1 bytes says that the next one belongs to it; also when that one is empty."""
    description = EventSplitter()
    raw = stream("types")
    prefix = raw[: raw.index(b"\x04\x0010.11") - HEADER_BYTES - 5]
    first = struct.unpack_from("<I", raw, len(prefix))[0] & 0xFFFFFF
    description.feed(raw[: len(prefix) + 4 + first])
    for extra in (0, 1, 500):
        body = bytes((1 << 24) - 2 - HEADER_BYTES - 4 + extra)
        event = make_event(EventType.HEARTBEAT, body)
        packet = b"\0" + event + struct.pack("<I", zlib.crc32(event))
        assert len(packet) == (1 << 24) - 1 + extra
        head, tail = packet[:0xFFFFFF], packet[0xFFFFFF:]
        sent = b"\xff\xff\xff\x05" + head + struct.pack("<I", len(tail))[:3] + b"\x06" + tail
        found = [one for at in range(0, len(sent), 1 << 20) for one in description.feed(sent[at : at + (1 << 20)])]
        assert found == [event]


def test_errors_of_the_server_are_its_words() -> None:
    splitter = EventSplitter()
    text = b"\xff\xd4\x04#HY000Could not find first log file name"
    assert splitter.feed(struct.pack("<I", len(text))[:3] + b"\x01" + text) == []
    assert splitter.word == ServerWord(code=1236, text="Could not find first log file name")


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"", "an empty packet"),
        (b"\x00abc", "a packet of 4 bytes"),
        (b"\x07" + bytes(30), "starts with 7"),
        (b"\x00" + make_event(EventType.XID, bytes(8)), "says that it has"),
        (b"\x00" + make_event(EventType.XID, bytes(8)) + b"\0\0\0\0", "before any format description"),
    ],
)
def test_packets_that_are_none(packet: bytes, words: str) -> None:
    splitter = EventSplitter()
    assert splitter.feed(struct.pack("<I", len(packet)) + packet) == []
    assert words in str(splitter.failure)


def test_changed_bytes_end_in_events_or_in_an_error_of_ours() -> None:
    """conventions 6.5: a "decoder on arbitrary bytes ends in a value or our error". Here: the whole way to groups."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    raw = stream("transactions")
    refused = 0
    for _ in range(300):
        changed = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        splitter = EventSplitter()
        try:
            groups_of(splitter.feed(bytes(changed)))
        except TranlogError:
            continue
        refused += splitter.failure is not None
    assert refused > 50, "checksums catch what comes before the XA transaction"


def test_changed_events_end_in_a_value_or_in_an_error_of_ours() -> None:
    """The same behind the checksum, for every parser of an event."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"replay: seed = {seed}")
    rng = random.Random(seed)
    parsers = {
        EventType.GTID: parse_gtid,
        EventType.GTID_LIST: parse_gtid_list,
        EventType.QUERY: parse_query,
        EventType.TABLE_MAP: parse_table_map,
        EventType.WRITE_ROWS_V1: parse_rows_shape,
        EventType.UPDATE_ROWS_V1: parse_rows_shape,
        EventType.ANNOTATE_ROWS: annotation,
    }
    events = [event for event in events_of("types") + events_of("transactions") if event[4] in parsers]
    refused = 0
    for _ in range(4000):
        event = bytearray(rng.choice(events))
        kind = event[4]
        if rng.random() < 0.3:
            del event[rng.randrange(HEADER_BYTES, len(event)) :]
        else:
            for _ in range(rng.randint(1, 3)):
                event[rng.randrange(HEADER_BYTES, len(event))] = rng.randrange(256)
        try:
            parsers[EventType(kind)](bytes(event))
        except EventFormatError:
            refused += 1
    assert 500 < refused < 4000


# --- events ----------------------------------------------------------------------------------------------


def test_a_gtid_event() -> None:
    """The 13 bytes, the group-commit id, XA names and the phases of an ALTER behind them."""
    plain = parse_gtid(gtid_event(42, 0b1100, domain=7))
    assert plain.gtid == DomainGtid(7, 1, 42)
    assert not (plain.standalone or plain.ddl or plain.xid) and plain.group_commit_id is None
    assert parse_gtid(gtid_event(1, 0b100001)).ddl
    grouped = parse_gtid(gtid_event(1, 0b110, rest=struct.pack("<Q", 991)))
    assert grouped.group_commit_id == 991
    assert parse_gtid(gtid_event(1, 0b110, rest=struct.pack("<QB", 991, 2))).alter_phase == "start"
    xa = struct.pack("<iBB", 1, 1, 0) + b"q"
    prepares, ends = parse_gtid(gtid_event(1, 64 | 4, rest=xa)), parse_gtid(gtid_event(1, 128 | 9, rest=xa))
    assert str(prepares.xid) == str(ends.xid) == "X'71',X'',1"
    assert (prepares.ends_xa, ends.ends_xa) == (False, True)
    with pytest.raises(EventFormatError):
        parse_gtid(make_event(EventType.GTID, b"\0" * 12))
    with pytest.raises(EventFormatError):
        parse_gtid(gtid_event(1, 64, rest=struct.pack("<iBB", 1, 200, 200)))
    phases = [parse_gtid(e).alter_phase for e in events_of("transactions") if e[4] == EventType.GTID]
    assert [phase for phase in phases if phase] == ["start", "commit"]


def test_a_query_event() -> None:
    events = [parse_query(e) for e in events_of("transactions") if e[4] == EventType.QUERY]
    created = events[1]
    assert created.text == b"CREATE TABLE g.t (id INT PRIMARY KEY, v VARCHAR(20))"
    assert created.schema == "" and created.error_code == 0 and created.unread == b""
    settings = dict(created.settings)
    assert settings["sql_mode"] == "" and settings["foreign_key_checks"] == "1"
    assert created.collation_client == int(settings["collation_client"]) == 45


def test_the_settings_of_a_query_event() -> None:
    status = b"".join(
        [
            b"\x00" + struct.pack("<I", 1 << 30 | 1 << 28 | 1 << 26 | 1 << 24 | 1 << 15 | 1 << 14),
            b"\x01" + struct.pack("<Q", 1 << 21 | 1 << 24),
            b"\x03" + struct.pack("<HH", 2, 1),
            b"\x83\x02" + struct.pack("<HHHH", 33, 2048, 60, 3072),
            b"\x04" + struct.pack("<HHH", 8, 45, 45),
            b"\x05\x06+00:00",
            b"\x06\x03std",
            b"\x07" + struct.pack("<H", 4),
            b"\x08" + struct.pack("<H", 33),
            b"\x09" + bytes(8),
            b"\x0a" + bytes(4),
            b"\x0b\x01u\x01h",
            b"\x10\x01",
            b"\x80" + (654321).to_bytes(3, "little"),
            b"\x81" + bytes(8),
            b"\x82\x04" + bytes(8),
            b"\x99rest",
        ]
    )
    query = parse_query(query_event(b"X", status))
    assert dict(query.settings) == {
        "foreign_key_checks": "0",
        "unique_checks": "1",
        "check_constraint_checks": "0",
        "sql_auto_is_null": "1",
        "autocommit": "1",
        "sql_if_exists": "1",
        "system_versioning_insert_history": "1",
        "sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE",
        "auto_increment_increment": "2",
        "auto_increment_offset": "1",
        "character_set_collations": "33=2048,60=3072",
        "collation_client": "8",
        "collation_connection": "45",
        "collation_server": "45",
        "time_zone": "+00:00",
        "lc_time_names": "4",
        "collation_database": "33",
        "invoker": "u@h",
        "explicit_defaults_for_timestamp": "1",
        "timestamp_microseconds": "654321",
    }
    assert query.unread == b"\x99rest"
    assert query.text == b"X" and query.schema == "s"


def beside(kind: EventType, body: bytes) -> bytes:
    return HEADER.pack(0, kind, 1, HEADER_BYTES + len(body), 0, 0) + body


DECIMAL_12_50 = "CAST(12.50 AS DECIMAL(4,2))"


def user_var(name: bytes, value: bytes) -> bytes:
    return beside(EventType.USER_VAR, struct.pack("<I", len(name)) + name + value)


@pytest.mark.parametrize(
    ("event", "settings"),
    [
        (beside(EventType.INTVAR, b"\x01" + struct.pack("<Q", 7)), (("last_insert_id", "7"),)),
        (beside(EventType.INTVAR, b"\x02" + struct.pack("<Q", 8)), (("insert_id", "8"),)),
        (beside(EventType.RAND, struct.pack("<QQ", 3, 4)), (("rand_seed1", "3"), ("rand_seed2", "4"))),
        (user_var(b"a", b"\x01"), (("@a", "NULL"),)),
        (user_var(b"a", b"\0\0" + struct.pack("<II", 8, 1) + b"\xe4"), (("@a", "_latin1 x'e4' COLLATE latin1_x"),)),
        (user_var(b"a", b"\0\1" + struct.pack("<IId", 8, 8, 1.5)), (("@a", "1.5e0"),)),
        (user_var(b"a", b"\0\2" + struct.pack("<IIq", 8, 8, -3) + b"\0"), (("@a", "-3"),)),
        (user_var(b"a", b"\0\2" + struct.pack("<IIq", 8, 8, -1) + b"\1"), (("@a", str((1 << 64) - 1)),)),
        (user_var(b"a", b"\0\4" + struct.pack("<II", 8, 4) + b"\4\2\x8c\x32"), (("@a", DECIMAL_12_50),)),
    ],
)  # fmt: skip
def test_what_stands_beside_a_statement(event: bytes, settings: tuple[tuple[str, str], ...]) -> None:
    """INTVAR, RAND and USER_VAR events as settings of the statement behind them."""
    assert parse_beside(event, {8: "latin1"}, {8: "latin1_x"}) == settings


@pytest.mark.parametrize(
    "event",
    [
        beside(EventType.INTVAR, b"\x03" + bytes(8)),
        beside(EventType.RAND, bytes(15)),
        user_var(b"a", b"\0\0" + struct.pack("<II", 9, 1) + b"\xe4"),
        user_var(b"a", b"\0\1" + struct.pack("<II", 8, 4) + bytes(4)),
        user_var(b"a", b"\0\3" + struct.pack("<II", 8, 8) + bytes(8)),
    ],
)
def test_settings_that_cannot_be_read_are_refused(event: bytes) -> None:
    with pytest.raises(EventFormatError):
        parse_beside(event, {8: "latin1"}, {8: "latin1_x"})


def test_the_checks_that_a_rows_event_s_session_had_off() -> None:
    event = bytes(25) + struct.pack("<H", 0x01 | 0x02 | 0x80)
    assert rows_unchecked(event) == ("foreign_key_checks", "check_constraint_checks")
    assert rows_unchecked(bytes(25) + b"\x01\0") == ()


def test_a_sql_mode_without_a_name_stays_a_number() -> None:
    assert sql_mode_text(0) == ""
    assert sql_mode_text(1 << 50 | 1) == str(1 << 50 | 1)


def test_a_gtid_list() -> None:
    lists = [parse_gtid_list(e) for e in events_of("transactions") if e[4] == EventType.GTID_LIST]
    assert lists[0] == ()
    assert sorted(lists[-1]) == [DomainGtid(0, 1, 9), DomainGtid(7, 1, 2)]


def tables() -> dict[str, dict[str, BinlogColumn]]:
    found = {}
    for event in events_of("types"):
        if event[4] == EventType.TABLE_MAP:
            table = parse_table_map(event)
            assert table_map_name(event) == (table.schema, table.table)
            assert table.complete and table.primary_key == (0,)
            found[table.table] = {column.name: column for column in table.columns}
    return found


def test_table_maps_with_all_their_metadata() -> None:
    """Names, signedness, charsets, labels, the kind of geometry, the primary key, lengths and decimals."""
    found = tables()
    numbers, times, texts, special = (found[name] for name in ("numbers", "times", "texts", "special"))
    assert [numbers[name].unsigned for name in "abcdefghi"] == [
        False,
        True,
        False,
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    assert (numbers["m"].kind, numbers["m"].length, numbers["m"].decimals) == (FieldType.NEWDECIMAL, 65, 30)
    assert [numbers[name].length for name in "opq"] == [1, 13, 64]
    assert not numbers["id"].nullable and numbers["a"].nullable
    assert [times[name].decimals for name in "bcdefghij"] == [0, 1, 4, 6, 0, 3, 6, 0, 6]
    assert found["oldtimes"]["e"].kind == FieldType.TIME
    assert texts["a"].length == 40 and texts["b"].length == 1200 and texts["c"].length == 2
    assert (texts["d"].collation, texts["k"].collation, texts["l"].collation) == (8, 63, 63)
    assert texts["i"].labels == (b"x", b"y'z", b"\xe9") and texts["i"].collation == 8
    assert texts["j"].labels == (b"p", b"q", "ü".encode()) and texts["j"].kind == FieldType.SET
    assert (texts["f"].kind, texts["g"].kind) == (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED)
    assert (special["d"].geometry, special["e"].geometry) == (0, 1)
    assert special["a"].kind == FieldType.STRING and special["a"].length == 16


def table_map_event(optional: bytes, kinds: bytes = b"\x03\x0f", metadata: bytes = b"\x50\x00") -> bytes:
    body = b"\x12\0\0\0\0\0\1\0\1s\0\1t\0" + bytes([len(kinds)]) + kinds + bytes([len(metadata)]) + metadata + b"\x02"
    return make_event(EventType.TABLE_MAP, body + optional)


def test_table_maps_without_metadata_or_with_more() -> None:
    bare = parse_table_map(table_map_event(b""))
    assert not bare.complete and [column.name for column in bare.columns] == ["@1", "@2"]
    prefixed = parse_table_map(table_map_event(b"\x04\x04\x01a\x01b\x09\x02\x01\x05\x63\x01?"))
    assert prefixed.complete and prefixed.primary_key == (1,)
    wide = parse_table_map(table_map_event(b"", b"\xfe\xfe", b"\xee\xe0\xfe\x10"))
    assert [column.length for column in wide.columns] == [480, 16]
    assert table_number(table_map_event(b"")) == 0x12


@pytest.mark.parametrize(
    ("optional", "words"),
    [
        (b"\x04\x02\x01a", "1 names for 2 columns"),
        (b"\x08\x01\x02", "a primary key of columns"),
        (b"\x01\x00", "too few bits"),
        (b"\x02\x03\x2d\x07\x2d", "a charset for column 7 of 1"),
        (b"\x04\x09\x01a", "too early"),
        (b"\x03\x02\x2d\x2d", "1 bytes too many"),
        (b"\x04\x02\x01\xff", "not UTF-8"),
        (b"\x04\x01\xff", "length that starts with 255"),
    ],
)
def test_table_maps_that_contradict_themselves(optional: bytes, words: str) -> None:
    with pytest.raises(EventFormatError, match=words):
        parse_table_map(table_map_event(optional))


def test_rows_of_both_versions() -> None:
    """Version 2 has extra data in front; partial images show in the column bits."""
    table = b"\x12\0\0\0\0\0\1\0"
    one = parse_rows_shape(make_event(EventType.UPDATE_ROWS_V1, table + b"\x03\xff\xff\xf8"))
    assert (one.columns, one.present, one.images_at) == (3, 7, HEADER_BYTES + 11)
    two = parse_rows_shape(make_event(EventType.WRITE_ROWS, table + b"\x05\x00abc\x03\x07\xf8"))
    assert (two.columns, two.present, two.images_at) == (3, 7, HEADER_BYTES + 15)
    assert parse_rows_shape(make_event(EventType.UPDATE_ROWS_V1, table + b"\x03\x07\x05")).present is None
    assert parse_rows_shape(make_event(EventType.UPDATE_ROWS_V1, table + b"\x03\x05\x05")).present == 5
    with pytest.raises(EventFormatError):
        parse_rows_shape(make_event(EventType.WRITE_ROWS, table + b"\x01\x00\x03\x07"))
    updates = [parse_rows_shape(e).present for e in events_of("transactions") if e[4] == EventType.UPDATE_ROWS_V1]
    assert None in updates and len(set(updates)) == 2


def test_names_of_events() -> None:
    assert event_name(163) == "GTID_LIST event"
    assert event_name(250) == "event of the unknown type 250"
    assert not has_valid_checksum(b"")


# --- groups ----------------------------------------------------------------------------------------------


def test_transactions_of_a_real_stream() -> None:
    """Boundaries by XID, COMMIT and single statements; over files; positions of all domains; savepoints."""
    found = groups_of(events_of("transactions"))
    assert [place_of(group) for group in found] == [
        "0-1-1;binlog.000001:448",
        "0-1-2;binlog.000001:614",
        "0-1-3;binlog.000001:857",
        "0-1-4;binlog.000001:1096",
        "0-1-5;binlog.000001:1318",
        "0-1-6;binlog.000001:1875",
        "0-1-7;binlog.000001:2152",
        "0-1-8;binlog.000001:2306",
        "0-1-9;binlog.000001:2552",
        "0-1-9,7-1-1;binlog.000002:585",
        "0-1-9,7-1-2;binlog.000003:573",
        "0-1-10,7-1-2;binlog.000004:512",
        "0-1-11,7-1-2;binlog.000004:729",
        "0-1-12,7-1-2;binlog.000004:899",
        "0-1-13,7-1-2;binlog.000004:1142",
        "0-1-14,7-1-2;binlog.000004:1470",
        "0-1-15,7-1-2;binlog.000004:1597",
    ]
    prepared, committed = found[-2:]
    assert (prepared.xa, prepared.changes, prepared.gtids_before) == ("prepare", 1, parse_gtids("0-1-13,7-1-2"))
    assert (committed.xa, committed.changes, list(committed.events)) == ("commit", 0, [])
    assert prepared.gtid.xid == committed.gtid.xid and str(committed.gtid.xid) == "X'71',X'',1"
    assert [group.void for group in found].index(True) == 11 and sum(group.void for group in found) == 1
    savepoint, rolled_back = found[5], found[6]
    assert savepoint.taken_back == ((3, 6),)
    assert [savepoint.is_taken_back(number) for number in range(6)] == [False] * 3 + [True] * 3
    assert rolled_back.taken_back == ((0, 3),)
    assert found[2].timestamp == 1_700_000_000
    assert kinds(found[2]) == [EventType.ANNOTATE_ROWS, EventType.TABLE_MAP, EventType.WRITE_ROWS_V1]


def test_a_position_goes_on_from_the_one_it_was_given() -> None:
    start = BinlogPosition(gtids=parse_gtids("0-1-5,3-2-9"), file="binlog.000001", offset=100)
    taker = assembler(start)
    (group,) = groups_of([gtid_event(6, 1), query_event(b"CREATE TABLE t (a INT)")], taker)
    assert place_of(group) == "0-1-6,3-2-9;binlog.000001:1000"
    assert taker.position == group.position and not taker.inside


ROWS = make_event(EventType.WRITE_ROWS_V1, bytes(20))
XID = make_event(EventType.XID, bytes(8))


def test_a_stream_that_begins_in_front_of_the_position() -> None:
    """What the log has comes again, marked; what is behind it in its domain does not count as the position's."""
    position = BinlogPosition(gtids=parse_gtids("0-1-2,3-1-5"), file="binlog.000001", offset=100)
    taker = GroupAssembler(
        position, new_store=Store, transaction_bytes_max=1 << 20, opened_at=parse_gtids("0-1-1,3-1-3")
    )
    events = []
    for sequence, domain in ((4, 3), (2, 0), (3, 0), (5, 3), (6, 3)):
        events += [gtid_event(sequence, 1, domain=domain), query_event(b"CREATE TABLE t (a INT)")]
    found = groups_of(events, taker)
    assert [group.again for group in found] == [True, True, False, True, False]
    assert [gtid_text(group.position.gtids) for group in found if not group.again] == ["0-1-3,3-1-5", "0-1-3,3-1-6"]
    assert not taker.repeats


def test_savepoints_nest() -> None:
    events = [
        gtid_event(1),
        ROWS,
        query_event(b"SAVEPOINT `a`"),
        ROWS,
        query_event(b"SAVEPOINT `b`"),
        ROWS,
        query_event(b"ROLLBACK TO `B`"),
        ROWS,
        query_event(b"SAVEPOINT `a`"),
        ROWS,
        query_event(b"ROLLBACK TO `a`"),
        ROWS,
        XID,
    ]
    (group,) = groups_of(events)
    assert [group.is_taken_back(number) for number in range(6)] == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([ROWS], "outside of a transaction"),
        ([XID], "ends that did not begin"),
        ([query_event(b"COMMIT")], "outside of a transaction"),
        ([gtid_event(1), gtid_event(2)], "begins inside 0-1-1"),
    ],
)
def test_events_at_the_wrong_place(events: list[bytes], words: str) -> None:
    with pytest.raises(EventFormatError, match=words):
        groups_of(events)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (make_event(EventType.INCIDENT, b"\1\0"), "INCIDENT event: the server lost changes"),
        (make_event(EventType.START_ENCRYPTION), "START_ENCRYPTION event"),
        (make_event(EventType.LOAD), "a LOAD event"),
        (make_event(EventType.WRITE_ROWS_V0), "WRITE_ROWS_V0 event"),
        (make_event(EventType.TRANSACTION_PAYLOAD), "TRANSACTION_PAYLOAD event"),
        (make_event(200), "an? event of the unknown type 200"),
        (make_event(200, flags=0x80), "an? event of the unknown type 200"),
        (query_event(b"ROLLBACK TO `nowhere`"), "savepoint `nowhere`, which was not set"),
        (query_event(b"XA END X'71'"), "the statement XA END"),
    ],
)
def test_what_is_not_known_stops_by_name(event: bytes, words: str) -> None:
    """sources.md: "stop by name, never skip"; a flag that says "ignorable" changes nothing."""
    taker = assembler(BinlogPosition(gtids=parse_gtids("0-1-7"), file="binlog.000009", offset=4))
    taker.feed(gtid_event(8))
    with pytest.raises(UnsupportedEventError, match=words) as caught:
        taker.feed(event)
    assert caught.value.event_id == "0-1-7;binlog.000009:4"
    assert "binlog.000009, before offset 1000" in str(caught.value)


def compressed(event: bytes, kind: int, start: int, head: bytes | None = None) -> bytes:
    """An event as log_bin_compress writes it, its content from `start` on in zlib's form."""
    content = event[start:]
    length = bytes([0x82]) + len(content).to_bytes(2, "big") if head is None else head
    return event[:4] + bytes([kind]) + event[5:start] + length + zlib.compress(content)


def test_compressed_events_stand_for_what_they_hold() -> None:
    """log_bin_compress: zlib behind the header of a statement, or behind the column bits of rows."""
    query = query_event(b"CREATE TABLE t (a INT)", b"\0\0\0\0\0")
    start = len(query) - len(b"CREATE TABLE t (a INT)")
    assert uncompressed_event(compressed(query, EventType.QUERY_COMPRESSED, start)) == query
    rows = {
        EventType.WRITE_ROWS_COMPRESSED_V1: make_event(EventType.WRITE_ROWS_V1, bytes(8) + b"\2\3" + b"image" * 100),
        EventType.UPDATE_ROWS_COMPRESSED_V1: make_event(EventType.UPDATE_ROWS_V1, bytes(8) + b"\2\3\3" + b"image"),
        EventType.DELETE_ROWS_COMPRESSED: make_event(EventType.DELETE_ROWS, bytes(8) + b"\2\0\2\3" + b"image"),
    }
    for kind, event in rows.items():
        assert uncompressed_event(compressed(event, kind, event.index(b"image"))) == event
    kind, event = next(iter(rows.items()))
    start = event.index(b"image")
    good = compressed(event, kind, start)
    for bad, words in (
        (good[:-1], "does not decompress to the 500 bytes"),
        (compressed(event, kind, start, b"\x82\x01\xf5"), "does not decompress to the 501 bytes"),
        (compressed(event, kind, start, b"\x82\x01\xf3"), "does not decompress to the 499 bytes"),
        (compressed(event, kind, start, b"\x92\x01\xf4"), "unknown way 0x92"),
        (good[: start + 3] + b"x" * 20, "does not decompress"),
        (good[:start], "too early"),
    ):
        with pytest.raises(EventFormatError, match=words):
            uncompressed_event(bad)


def test_informative_events_pass() -> None:
    taker = assembler()
    for kind in (EventType.STOP, EventType.HEARTBEAT, EventType.BINLOG_CHECKPOINT):
        assert taker.feed(make_event(kind, bytes(8))) is None


def test_a_transaction_without_an_end_is_dropped_at_the_next_file() -> None:
    """A crash of the server cut it off; the server rolled it back when it came up."""
    taker = assembler()
    rotate = make_event(EventType.ROTATE, struct.pack("<Q", 4) + b"binlog.000002")
    found = groups_of([gtid_event(1), ROWS, rotate, gtid_event(1), ROWS, ROWS, XID], taker)
    assert [kinds(group) for group in found] == [[EventType.WRITE_ROWS_V1] * 2]
    assert taker.incomplete == 1


def test_a_transaction_above_the_limit() -> None:
    taker = assembler(limit=150)
    for event in (gtid_event(1), ROWS, ROWS):
        taker.feed(event)
    with pytest.raises(UnsupportedEventError, match=r"has 15\d bytes so far, and the option transaction_bytes_max"):
        taker.feed(ROWS)


def test_a_connection_that_ends_inside_a_transaction() -> None:
    store = Store()
    taker = GroupAssembler(BinlogPosition(), new_store=lambda: store, transaction_bytes_max=1000)
    taker.feed(gtid_event(1))
    taker.feed(ROWS)
    assert taker.inside
    taker.close()
    assert store.closed and not taker.inside
