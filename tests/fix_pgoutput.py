"""Messages that a real PostgreSQL sent (tests/golden/postgres), for the tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tranlog.change import TableMap
from tranlog.source.postgres.messages import RelationMessage, TypeMessage, parse_message
from tranlog.source.postgres.rows import PostgresTableLayout
from tranlog.source.postgres.values import PostgresType, column_of, value_encoder

GOLDEN = Path(__file__).parent / "golden" / "postgres"

BUILT_IN = {
    **{16: "bool", 17: "bytea", 20: "int8", 21: "int2", 23: "int4", 25: "text", 114: "json", 142: "xml"},
    **{700: "float4", 701: "float8", 869: "inet", 1007: "_int4", 1042: "bpchar", 1043: "varchar", 1082: "date"},
    **{1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval", 1560: "bit", 1562: "varbit"},
    **{1700: "numeric", 2950: "uuid", 3802: "jsonb", 3904: "int4range"},
}
DECLARED = {"bpchar": "character(5)", "_int4": "integer[]", "int4range": "int4range", "xml": "xml", "inet": "inet"}


def messages(name: str) -> list[bytes]:
    """Return the messages of a recording."""
    raw, found, at = (GOLDEN / f"{name}.messages").read_bytes(), [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def with_streaming(raws: list[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each message, and whether it stands between a StreamStart and its StreamStop."""
    inside = False
    for raw in raws:
        if raw[:1] == b"E":
            inside = False
        yield raw, inside
        if raw[:1] == b"S":
            inside = True


class Tables:
    """Definitions as a source takes them, without a catalogue: no domain has a modifier, an enum is known by name."""

    def __init__(self, *, by_key: bool = True) -> None:
        self.by_key = by_key
        self.layouts: dict[int, PostgresTableLayout] = {}
        self._types: dict[int, PostgresType] = {}

    def note(self, raw: bytes, *, streamed: bool) -> None:
        match parse_message(raw, streamed=streamed):
            case TypeMessage(oid=oid, schema=schema, name=name):
                self._types[oid] = PostgresType(schema=schema, name=name, kind="e" if name == "mood" else "b")
            case RelationMessage() as message:
                columns = []
                for column in message.columns:
                    name = BUILT_IN.get(column.type_oid, "unknown")
                    plain = PostgresType(
                        schema="pg_catalog", name=name, typmod=column.typmod, declared=DECLARED.get(name, name)
                    )
                    kind = self._types.get(column.type_oid, plain)
                    columns.append(column_of(column.name, kind, nullable=True))
                self.layouts[message.oid] = PostgresTableLayout(
                    table=TableMap(
                        schema=message.schema,
                        table=message.table,
                        columns=tuple(columns),
                        primary_key=tuple(at for at, column in enumerate(message.columns) if column.key),
                    ),
                    encoders=tuple(value_encoder(column) for column in columns),
                    keys=tuple(column.key for column in message.columns),
                    by_key=self.by_key,
                )
