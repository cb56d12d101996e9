"""Random payloads and random damage: what goes in comes out, and any bytes end in a payload or PayloadError.

Proves: round trips; a decoder on arbitrary bytes ends in a value or our error.
A failing example prints the blob that replays it (`print_blob` in conftest.py).
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tranlog.change import Change, Column, ForeignKey, Op, RowChange, Statement, TableMap
from tranlog.errors import PayloadError
from tranlog.payload import Payload, PayloadBuilder, decode, decode_table_map, encode, encode_table_map, fingerprint
from tranlog.row_bytes import encode_row
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
    Time,
    Unchanged,
    Value,
    ZeroDate,
    canonical,
)

# --- strategies ------------------------------------------------------------------------------------------

I64 = st.integers(-(2**63), 2**63 - 1)
NEAR_EDGES = st.sampled_from(
    [0, 63, 64, 127, 128, 8191, 8192, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
).flatmap(lambda edge: st.sampled_from([edge, -edge, edge - 1, 1 - edge]))
INTEGERS = st.one_of(I64, st.integers(2**63, 2**64 - 1), NEAR_EDGES.filter(lambda n: n >= -(2**63)))
TEXTS = st.one_of(st.text(), st.integers(120, 140).map(lambda size: "é" * size), st.just("x" * 20_000))
RAW = st.one_of(st.binary(), st.integers(126, 130).map(bytes))
FLOATS = st.one_of(st.floats(), st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack(">d", raw)[0]))
BITS = st.integers(0, 130).flatmap(lambda width: st.builds(Bit, st.just(width), st.integers(0, 2**width - 1)))

FAR_DECIMALS = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=60).map(tuple),
    st.integers(-400_000_000, 400_000_000),
)

VALUES_OF: dict[type, st.SearchStrategy[Value]] = {
    type(None): st.none(),
    Unchanged: st.just(UNCHANGED),
    bool: st.booleans(),
    int: INTEGERS,
    float: FLOATS,
    Decimal: st.decimals() | FAR_DECIMALS,
    str: TEXTS,
    bytes: RAW,
    F32: st.floats(width=32).map(F32),
    CharsetBytes: st.builds(CharsetBytes, st.text(), RAW),
    Date: st.builds(Date, I64),
    Time: st.builds(Time, I64),
    Datetime: st.builds(Datetime, I64),
    Instant: st.builds(Instant, I64),
    ZeroDate: st.builds(ZeroDate, TEXTS),
    InfiniteDate: st.builds(InfiniteDate, st.booleans()),
    Bit: BITS,
    EnumLabel: st.builds(EnumLabel, TEXTS),
    SetLabels: st.lists(TEXTS, max_size=4).map(lambda labels: SetLabels(tuple(labels))),
    Json: st.builds(Json, TEXTS),
    UUID: st.uuids(),
    Other: st.builds(Other, st.text(), TEXTS),
}
VALUES = st.one_of(*VALUES_OF.values())

NAMES = st.text(max_size=12)


def key_of(columns: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, columns - 1), max_size=3, unique=True).map(tuple) if columns else st.just(())


COLUMNS = st.builds(
    Column,
    name=NAMES,
    source_type=NAMES,
    logical=st.sampled_from(LogicalType),
    unsigned=st.booleans(),
    nullable=st.booleans(),
    charset=st.none() | NAMES,
    length=st.integers(0, 2**64 - 1),
)


@st.composite
def tables(draw: st.DrawFn) -> TableMap:
    columns = tuple(draw(st.lists(COLUMNS, max_size=5)))
    key = key_of(len(columns))
    foreign = st.builds(
        ForeignKey, columns=key, ref_schema=NAMES, ref_table=NAMES, ref_columns=st.lists(NAMES, max_size=2).map(tuple)
    )
    return TableMap(
        schema=draw(NAMES),
        table=draw(NAMES),
        columns=columns,
        primary_key=draw(key),
        unique_keys=tuple(draw(st.lists(key, max_size=2))),
        foreign_keys=tuple(draw(st.lists(foreign, max_size=2))),
        sequence=bool(columns) and draw(st.booleans()),
    )


OPTIONS = st.lists(st.tuples(st.text(), st.text()), max_size=3).map(tuple)
STATEMENTS = st.builds(
    Statement,
    schema=NAMES,
    sql=st.one_of(TEXTS, RAW),
    ddl=st.booleans(),
    timestamp=I64,
    error_code=st.integers(-(2**31), 2**31 - 1),
    options=OPTIONS.filter(lambda options: all(name != "schema_change" for name, _ in options)),
)


@st.composite
def row_changes(draw: st.DrawFn, pool: list[TableMap]) -> RowChange:
    table = draw(st.sampled_from(pool))
    op = draw(st.sampled_from(Op))
    row = st.tuples(*[VALUES] * len(table.columns))
    before = None if op == Op.INSERT else draw(row)
    after = None if op == Op.DELETE else draw(row)
    return RowChange(table, op, before, after)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    pool = draw(st.lists(tables(), min_size=1, max_size=3))
    changes = draw(st.lists(st.one_of(row_changes(pool), row_changes(pool), STATEMENTS), max_size=6))
    return Payload(metadata=draw(OPTIONS), options=draw(OPTIONS), changes=tuple(changes))


def comparable(payload: Payload) -> Any:
    """A payload with each value by tag and bits, since Python's equality is wider (1 == True) and narrower (NaN)."""

    def of(change: Change) -> Any:
        if isinstance(change, Statement):
            return change
        images = [None if row is None else tuple(map(canonical, row)) for row in (change.before, change.after)]
        return change.table, change.op, images

    return payload.metadata, payload.options, [of(change) for change in payload.changes]


# --- round trips -----------------------------------------------------------------------------------------


def test_there_is_a_strategy_for_every_kind_of_value() -> None:
    assert set(VALUES_OF) == set(get_args(Value))


@given(VALUES)
def test_any_value_reads_back_with_its_type_and_its_bits(value: Value) -> None:
    table = TableMap(schema="", table="", columns=(Column(name="", source_type="", logical=LogicalType.ANY),))
    builder = PayloadBuilder()
    builder.add_encoded(table, Op.INSERT, encode_row((value,)))
    (change,) = decode(builder.take()).changes
    assert isinstance(change, RowChange)
    assert change.after is not None
    (back,) = change.after
    assert type(back) is type(value)
    assert canonical(back) == canonical(value)


@given(st.lists(VALUES, max_size=8))
def test_a_row_is_its_values_one_behind_the_other(row: list[Value]) -> None:
    assert encode_row(row) == b"".join([encode_row((value,)) for value in row])


@given(payloads())
def test_any_payload_reads_back(payload: Payload) -> None:
    raw = encode(payload)
    back = decode(raw)
    assert comparable(back) == comparable(payload)
    assert encode(back) == raw


@given(tables(), tables())
def test_table_maps_are_equal_when_their_bytes_are(one: TableMap, other: TableMap) -> None:
    assert decode_table_map(encode_table_map(one)) == one
    assert (
        (one == other) == (encode_table_map(one) == encode_table_map(other)) == (fingerprint(one) == fingerprint(other))
    )


@given(st.lists(INTEGERS | st.integers(), max_size=4))
def test_an_integer_is_carried_or_refused(row: list[int]) -> None:
    if all(-(2**63) <= number < 2**64 for number in row):
        assert len(encode_row(row)) <= 11 * len(row)
        return
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        encode_row(row)


@given(st.text(alphabet=st.characters(codec=None), max_size=20))
def test_a_text_is_carried_or_refused(text: str) -> None:
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert encode_row((text,)).endswith(text.encode())
        return
    with pytest.raises(ValueError, match="surrogates not allowed"):
        encode_row((text,))


# --- damage ----------------------------------------------------------------------------------------------


def decode_or_refuse(raw: bytes) -> None:
    """Any other exception than PayloadError fails the test; so does a payload that cannot be written again."""
    try:
        payload = decode(raw)
    except PayloadError:
        return
    assert comparable(decode(encode(payload))) == comparable(payload)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_payload_or_our_error(raw: bytes) -> None:
    decode_or_refuse(raw)


PLAIN = TableMap(
    schema="s",
    table="t",
    columns=tuple(Column(name=name, source_type="", logical=LogicalType.ANY) for name in "abc"),
    primary_key=(0,),
)


@given(st.binary(max_size=120), st.sampled_from(Op))
@example(b"\x08\x05sNaN1\x00\x00", Op.INSERT)
@example(b"\x05\x01\x00\x00", Op.INSERT)  # U64 of a number that I64 holds
@example(b"\x40\x01\xff\x00\x00", Op.INSERT)
def test_arbitrary_images_are_rows_or_our_error(images: bytes, op: Op) -> None:
    builder = PayloadBuilder()
    builder.add_encoded(PLAIN, op, images)
    decode_or_refuse(builder.take())


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(encode(draw(payloads())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "repeat"])):
            case "flip" if at < len(raw):
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = draw(st.binary(max_size=12))
            case "remove":
                del raw[at : at + draw(st.integers(1, 8))]
            case _:
                raw += raw[at : at + 40]
    return bytes(raw)


@given(damaged())
def test_a_damaged_payload_is_a_payload_or_our_error(raw: bytes) -> None:
    decode_or_refuse(raw)


@given(st.binary(max_size=60))
def test_an_arbitrary_table_map_is_one_or_an_error_twice(raw: bytes) -> None:
    for _ in range(2):
        try:
            table = decode_table_map(raw)
        except (ValueError, IndexError):
            continue
        assert decode_table_map(encode_table_map(table)) == table
