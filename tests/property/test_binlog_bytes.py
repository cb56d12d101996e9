"""Mutated bytes of a MariaDB's replication stream: packets, events, table maps, rows.

Whatever the server, or the wire, makes of them, the outcome is transactions that can be read back from the log, or
one of our errors, in bounded time and memory (`fix_mutation`). The samples are what a real server sent
(tests/golden/mariadb).
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fix_mutation import Fuzz, mutated
from tranlog.charsets import CHARSET_NAMES, text_decoder
from tranlog.errors import SourceError
from tranlog.payload import decode, encode_table_map
from tranlog.row_bytes import decode_row, encode_row
from tranlog.servers.mariadb_values import catalog_labels
from tranlog.source.mariadb.branches import PreparedBranches
from tranlog.source.mariadb.captured import CapturedTables
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.events import (
    HEADER_BYTES,
    ROWS_EVENTS,
    BinlogTable,
    EventType,
    annotation,
    announces_checksums,
    event_name,
    parse_gtid,
    parse_gtid_list,
    parse_query,
    parse_rotate,
    parse_rows_shape,
    parse_table_map,
    sql_mode_text,
    table_map_name,
    table_number,
)
from tranlog.source.mariadb.fragments import FragmentMaker
from tranlog.source.mariadb.groups import GroupAssembler
from tranlog.source.mariadb.lone_tables import LoneTables
from tranlog.source.mariadb.position import BinlogPosition, parse_gtids, parse_start
from tranlog.source.mariadb.rows import RowsEncoder, rows_encoder
from tranlog.source.mariadb.transaction import SourceTransaction
from tranlog.source.mariadb.types import CatalogColumn, KnownTable, table_map, types_in_binlog
from tranlog.source.mariadb.values import uncompressed
from tranlog.source.mariadb.wire import EventSplitter
from tranlog.source.waiting import WaitingEvents
from tranlog.statements import StatementKind, statement_kind
from tranlog.types import value_text

GOLDEN = Path(__file__).parents[1] / "golden" / "mariadb"
COLLATIONS = {45: "utf8mb4", 46: "utf8mb4", 8: "latin1", 63: "binary", 35: "ucs2", 33: "utf8mb3", 10: "swe7"}
OLD = "/* mariadb-5.3 */"
KNOWN = {
    "special": {"a": "uuid", "b": "inet6", "c": "inet4"},
    "oldtimes": {
        **{"b": f"time {OLD}", "c": f"time(1) {OLD}", "e": f"time(6) {OLD}", "f": f"datetime {OLD}"},
        **{"g": f"datetime(3) {OLD}", "h": f"datetime(6) {OLD}", "i": f"timestamp {OLD}"},
        **{"j": f"timestamp(2) {OLD}", "k": f"timestamp(6) {OLD}"},
    },
}
ROWS = {int(kind) for kind in ROWS_EVENTS}


def stream(name: str) -> bytes:
    return (GOLDEN / f"{name}.stream").read_bytes()


def packets(name: str) -> list[bytes]:
    """Return what a server sent, packet by packet, without the four bytes in front."""
    raw, found, at = stream(name), [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 3], "little")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def framed(packet: bytes) -> bytes:
    return min(len(packet), 0xFFFFFF).to_bytes(3, "little") + b"\x07" + packet


def mend_packet(packet: bytes) -> bytes:
    """Make the size that an event tells and its checksum right again."""
    if len(packet) < 14:
        return packet
    event = bytearray(packet[1:-4])
    event[9:13] = (len(packet) - 1).to_bytes(4, "little")
    return packet[:1] + bytes(event) + zlib.crc32(event).to_bytes(4, "little")


def transactions() -> list[list[bytes]]:
    """Return each transaction of the streams, as the packets of its events; all of them have checksums."""
    found: list[list[bytes]] = []
    for name in ("types", "transactions"):
        for packet in packets(name):
            kind = packet[5] if len(packet) > HEADER_BYTES else 0
            # Not the stream's end, an artificial event, or one from while checksums were off.
            if len(packet) < 24 or mend_packet(packet) != packet:
                continue
            if kind == EventType.GTID:
                found.append([])
            if found:
                found[-1].append(packet)
    return found


def descriptions() -> list[bytes]:
    """Return the packets that tell a reader that checksums follow."""
    return [packet for packet in packets("types")[:3] if packet[5] in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION)]


class CatalogOfNothing:
    """A catalog from which every table is gone, as after a DROP: it needs no server."""

    def table(self, schema: str, name: str) -> KnownTable | None:
        types = KNOWN.get(name)
        return None if types is None else KnownTable(types=types)

    def as_of(self, schema: str, name: str, second: int) -> tuple[KnownTable, frozenset[str]]:
        known = self.table(schema, name) or KnownTable(types={})
        return known, frozenset(known.types)

    def note_statement(self, schema: str, sql: str) -> None:
        """Nothing is remembered."""

    def columns(self, schema: str, name: str) -> list[CatalogColumn]:
        return []

    def primary_key(self, schema: str, name: str) -> tuple[str, ...]:
        return ()

    def unchanged_since(self, schema: str, name: str, second: int) -> bool:
        return True

    def collations(self) -> tuple[dict[int, str], dict[int, str]]:
        return dict(COLLATIONS), {}

    def folds_names(self) -> bool:
        return False

    def foreign_key_edges(self) -> Iterable[Any]:
        return ()

    def forget_tables(self) -> None:
        """Nothing is remembered."""


@pytest.fixture(scope="module")
def carry() -> Callable[[Iterable[bytes]], int]:
    """From chunks off the wire to fragments, as the source does it; returns how many transactions came through."""
    options = MariadbSourceOptions(source_id="db", host="nowhere", user="u", statements="record", fragment_bytes=2000)
    catalog: Any = CatalogOfNothing()
    captured = CapturedTables(options, catalog, catalog, LoneTables(catalog, catalog))
    captured.learn()
    maker = FragmentMaker(options, captured, catalog)

    def run(chunks: Iterable[bytes]) -> int:
        splitter = EventSplitter()
        assembler = GroupAssembler(
            BinlogPosition(), new_store=lambda: WaitingEvents(1 << 20, None), transaction_bytes_max=1 << 30
        )
        captured.forget()
        branches = PreparedBranches(1 << 20)
        carried = 0
        with contextlib.suppress(SourceError):
            for chunk in chunks:
                for event in splitter.feed(chunk):
                    group = assembler.feed(event)
                    if group is not None:
                        if (held := branches.changes_of(group)) is not None:
                            transaction = SourceTransaction(
                                group=group, held=held, before=BinlogPosition(), after=group.position
                            )
                            for fragment in maker.fragments(transaction):
                                decode(fragment.payload)
                        carried += 1
                if splitter.failure is not None:
                    raise splitter.failure
        assembler.close()
        return carried

    return run


def test_rows_without_any_column_are_refused(carry: Callable[[Iterable[bytes]], int]) -> None:
    """Of every rows event of the streams the bits of the columns that its images hold are cleared."""
    begin, refused = descriptions(), 0
    for group in transactions():
        whole = carry([b"".join(map(framed, [*begin, *group]))])
        for at, packet in enumerate(group):
            event = bytearray(packet[1:-4])
            if event[4] not in ROWS:
                continue
            shape = parse_rows_shape(bytes(event))
            size = (shape.columns + 7) // 8 * (2 if ROWS_EVENTS[EventType(event[4])][0] == "update" else 1)
            event[shape.images_at - size : shape.images_at] = bytes(size)
            sent = [*begin, *group[:at], packet[:1] + bytes(event) + zlib.crc32(event).to_bytes(4, "little")]
            refused += carry([b"".join(map(framed, [*sent, *group[at + 1 :]]))]) < whole
    assert refused > 10  # all but those of tables that are not captured


@pytest.mark.long
def test_streams(fuzz: Fuzz, carry: Callable[[Iterable[bytes]], int]) -> None:
    """Some transactions, packets of which are damaged, left out, doubled or exchanged, cut anywhere by the socket."""
    groups, begin = transactions(), descriptions()
    every = [packet for group in groups for packet in group]
    assert len(groups) > 30 and carry([b"".join(map(framed, begin + every))]) > 20

    def make(rng: random.Random) -> bytes:
        sent = [packet for _ in range(rng.randrange(1, 4)) for packet in rng.choice(groups)]
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(sent))
            match rng.randrange(8):
                case 0:
                    del sent[at]
                case 1:
                    sent.insert(at, rng.choice(every))
                case 2:
                    other = rng.randrange(len(sent))
                    sent[at], sent[other] = sent[other], sent[at]
                case 3:
                    sent[at] = mutated(rng, [sent[at]])
                case _:
                    sent[at] = mend_packet(mutated(rng, [sent[at], sent[at], rng.choice(every)]))
            if not sent:
                break
        raw = b"".join(map(framed, sent))
        return mutated(rng, [raw]) if raw and rng.random() < 0.05 else raw

    def read(raw: bytes) -> None:
        size = 1 + zlib.crc32(raw) % 400
        chunks = [raw] if size > 200 else [raw[at : at + size] for at in range(0, len(raw), size)]
        carry([b"".join(map(framed, begin)), *chunks])

    fuzz.cases(make, read)


def test_packets(fuzz: Fuzz) -> None:
    """Bytes off the wire, before any event is understood."""
    whole, begin = stream("transactions"), b"".join(map(framed, descriptions()))
    samples = [whole[:1500], *map(framed, packets("types")), *map(framed, packets("transactions"))]

    def read(raw: bytes) -> None:
        splitter = EventSplitter()
        splitter.feed(begin)
        for event in splitter.feed(raw) + splitter.feed(raw[:7]):
            event_name(event[4])
            assert len(event) >= HEADER_BYTES

    fuzz.samples(samples, read, mend=lambda raw: framed(mend_packet(raw[4:])))


# --- event by event, behind the checksum ---


def events() -> list[bytes]:
    return [event for name in ("types", "transactions") for event in EventSplitter().feed(stream(name))]


PARSERS: dict[str, tuple[frozenset[int], Callable[[bytes], object]]] = {
    "format": (frozenset({int(EventType.FORMAT_DESCRIPTION)}), announces_checksums),
    "rotate": (frozenset({int(EventType.ROTATE)}), parse_rotate),
    "gtid": (frozenset({int(EventType.GTID)}), parse_gtid),
    "gtids": (frozenset({int(EventType.GTID_LIST)}), parse_gtid_list),
    "query": (frozenset({int(EventType.QUERY)}), parse_query),
    "annotation": (frozenset({int(EventType.ANNOTATE_ROWS)}), annotation),
    "map name": (frozenset({int(EventType.TABLE_MAP)}), table_map_name),
    "number": (frozenset(ROWS | {int(EventType.TABLE_MAP)}), table_number),
    "shape": (frozenset(ROWS), parse_rows_shape),
}


@pytest.mark.parametrize("name", PARSERS)
def test_events(fuzz: Fuzz, name: str) -> None:
    kinds, parse = PARSERS[name]
    samples = [event for event in events() if event[4] in kinds]
    if name == "format":
        samples = [packet[1:] for packet in descriptions() if packet[5] == EventType.FORMAT_DESCRIPTION]

    def read(raw: bytes) -> None:
        if len(raw) >= HEADER_BYTES and raw[4] in kinds:  # what the wire and the assembler have made sure of
            with contextlib.suppress(SourceError):
                parse(raw)

    fuzz.samples(samples, read, share=0.5)


def _tables() -> dict[str, bytes]:
    found = {parse_table_map(event).table: event for event in events() if event[4] == EventType.TABLE_MAP}
    assert {"numbers", "times", "oldtimes", "texts", "special", "t"} <= set(found)
    return found


def _encoder(table: BinlogTable) -> RowsEncoder:
    declared = KNOWN.get(table.table)
    known = None if declared is None else KnownTable(types=declared)
    types = types_in_binlog(table, collations=COLLATIONS, known=known)
    columns = [kind.column(one.name, nullable=one.nullable) for kind, one in zip(types, table.columns, strict=True)]
    encode_table_map(table_map(table.schema, table.table, columns, primary_key=table.primary_key, known=known))
    return rows_encoder(table, types)


def test_table_maps(fuzz: Fuzz) -> None:
    """A table map that is taken has an encoder, and a map of ours that can be written."""

    def read(raw: bytes) -> None:
        if len(raw) >= HEADER_BYTES:
            with contextlib.suppress(SourceError):
                _encoder(parse_table_map(raw))

    fuzz.samples(list(_tables().values()), read, share=0.5)


def test_rows(fuzz: Fuzz) -> None:
    """Rows are encoded for the log, so that their values can be read from it, or refused."""
    maps = _tables()
    table = ""
    samples: dict[str, list[bytes]] = {name: [] for name in maps}
    for event in EventSplitter().feed(stream("types")):
        if event[4] == EventType.TABLE_MAP:
            table = parse_table_map(event).table
        elif event[4] in ROWS:
            samples[table].append(event)
    tables = {name: parse_table_map(event) for name, event in maps.items() if name != "t"}
    encoders = {name: _encoder(table) for name, table in tables.items()}
    names = [name for name in tables if samples[name]]
    assert len(names) >= 5

    def make(rng: random.Random) -> bytes:
        at = rng.randrange(len(names))
        event = rng.choice(samples[names[at]])
        start = parse_rows_shape(event).images_at
        return bytes([at]) + event[:start] + mutated(rng, [event[start:]])

    def read(raw: bytes) -> None:
        event, name = raw[1:], names[raw[0]]
        with contextlib.suppress(SourceError):
            for row in encoders[name](event, parse_rows_shape(event).images_at):
                for value in decode_row(row, len(tables[name].columns)):
                    value_text(value)

    fuzz.cases(make, read)


# --- the pieces below ---


def test_compressed_values(fuzz: Fuzz) -> None:
    def read(raw: bytes) -> None:
        with contextlib.suppress(ValueError):  # what the encoder of rows turns into an error of ours
            uncompressed(raw)

    def packed(content: bytes) -> bytes:
        return b"\x82" + len(content).to_bytes(2, "big") + zlib.compress(content)

    fuzz.samples([packed(b"g" * 20), packed(b"abc" * 3000), packed(bytes(60_000)), b"\0plain"], read)


def test_texts_in_charsets(fuzz: Fuzz) -> None:
    names = sorted(CHARSET_NAMES) + ["no such charset"]
    decoders = [text_decoder(name) for name in names]
    samples = [
        bytes([at]) + text.encode("utf-8") for at in range(len(names)) for text in ("plain", "é日本", "\u20ac\uff3c")
    ]

    def read(raw: bytes) -> None:
        if raw:
            encode_row([decoders[raw[0] % len(decoders)](raw[1:])])

    fuzz.samples(samples, read, share=0.5)


def test_statements(fuzz: Fuzz) -> None:
    """What kind of statement a text is takes no longer for one that was made to take long."""
    samples = [
        b"CREATE TABLE g.t (id INT PRIMARY KEY, v VARCHAR(20) DEFAULT 'it''s \\' x') /* c */ -- d",
        b"/*!40000 ALTER TABLE t DISABLE KEYS */",
        b"CREATE OR REPLACE TABLE t AS SELECT 1 # x\n",
        b"SET STATEMENT max_statement_time=1 FOR INSERT INTO t VALUES (1)",
        b"/**/" * 60 + b"CREATE" + b" " * 60,
        b"-- c\n# d\n" * 30 + b"(((",
        b"CREATE " + b"'\\" * 100,
        b"CREATE " + b"/*" * 100,
    ]

    def read(raw: bytes) -> None:
        assert isinstance(statement_kind(raw.decode("latin-1"), marked_ddl=len(raw) % 2 == 0), StatementKind)

    fuzz.samples(samples, read, share=0.5)


def _parses(parse: Callable[[str], object]) -> Callable[[bytes], None]:
    def read(raw: bytes) -> None:
        with contextlib.suppress(ValueError):
            value = parse(raw.decode(errors="replace"))
            if isinstance(value, BinlogPosition):
                assert BinlogPosition.parse(str(value)) == value

    return read


@pytest.mark.parametrize(
    ("parse", "samples"),
    [
        (BinlogPosition.parse, [b"0-1-42,1-1-7;binlog.000003:12345", b"0-1-42", b";b:4", b"4294967295-1-1"]),
        (parse_gtids, [b"0-1-42,1-1-7", b" 1-2-3 ,"]),
        (parse_start, [b"now", b"earliest", b"0-1-42", b"binlog.000003:12345"]),
        (catalog_labels, [b"enum('a','b''c')", b"set('\\\\','x\\'y')"]),
        (lambda text: sql_mode_text(len(text) ** 3), [b"x" * 10]),
    ],
    ids=["position", "gtids", "start", "labels", "sql_mode"],
)
def test_texts(fuzz: Fuzz, parse: Callable[[str], object], samples: Sequence[bytes]) -> None:
    """The event ids, start positions and declarations that are read as text."""
    fuzz.samples(samples, _parses(parse), share=0.3)
