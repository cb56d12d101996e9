"""How fast a transaction of row changes becomes bytes and values again, against msgspec's msgpack.

Eight inserted rows of six columns, 1 KB: two integers, a name, a text, a price as a float, a NULL. The anchor encodes
and decodes the same values as arrays, decoding with types as ours has them; ours also carries the table and writes and
reads the envelope around it. Encoding is from `RowChange` to the payload's bytes and back, as sources and targets do.
"""

from __future__ import annotations

import sys

import msgspec
from frame import Bench, Question, at_least, cpu_of, run

from tranlog import payload
from tranlog.change import Column, Op, Payload, RowChange, TableMap
from tranlog.types import LogicalType

QUESTION = Question(
    name="codec",
    text="How many transactions of 8 rows and 6 columns (1 KB) are encoded, and decoded, in a CPU second?",
    peer="msgspec's msgpack encoding the same values, and decoding them with types",
)
TIMES = 20_000
NAMES = ("id", "customer", "name", "note", "price", "gone")
TABLE = TableMap(
    schema="shop",
    table="orders",
    columns=tuple([Column(name=name, source_type="any", logical=LogicalType.OTHER) for name in NAMES]),
    primary_key=(0,),
)


class Change(msgspec.Struct, array_like=True):
    """A row change as the anchor has it."""

    table: int
    op: int
    after: tuple[int, int, str, str, float, str | None]


def measure(bench: Bench) -> None:
    """Encode and decode one transaction many times."""
    rows = [(1000 + n, 4_200_000 + n * 977, f"customer {n} of the shop", "x" * 70, 19.99 + n, None) for n in range(8)]
    ours = Payload(changes=tuple([RowChange(TABLE, Op.INSERT, None, row) for row in rows]))
    theirs = [Change(0, 1, row) for row in rows]
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[Change])
    raw, packed = payload.encode(ours), encoder.encode(theirs)
    assert payload.decode(raw) == ours and decoder.decode(packed) == theirs
    bench.say(f"{len(raw)} bytes, the anchor's {len(packed)}")

    def encode_ours() -> None:
        for _ in range(TIMES):
            payload.encode(ours)

    def encode_theirs() -> None:
        for _ in range(TIMES):
            encoder.encode(theirs)

    def decode_ours() -> None:
        for _ in range(TIMES):
            payload.decode(raw)

    def decode_theirs() -> None:
        for _ in range(TIMES):
            decoder.decode(packed)

    bench.compare(
        "encode 8 rows x 6 columns",
        ours=lambda: TIMES / cpu_of(encode_ours),
        peer=lambda: TIMES / cpu_of(encode_theirs),
        unit="tx/s",
        must=at_least(0.4, stretch=0.6),
    )
    bench.compare(
        "decode the same to values",
        ours=lambda: TIMES / cpu_of(decode_ours),
        peer=lambda: TIMES / cpu_of(decode_theirs),
        unit="tx/s",
        must=at_least(1, stretch=1.5),
    )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
