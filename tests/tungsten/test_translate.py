"""Both ways between the ancestor's events and our fragments; conformance/tungsten.md B2, B3.

What both can express comes back equal, byte for byte where the ancestor's bytes came first; what one cannot is named.
"""

from __future__ import annotations

import random
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from fix_tungsten import any_event, golden_cases, golden_segments, make_event
from tranlog.change import NOOP, Change, Column, Op, RowChange, Statement, TableMap
from tranlog.errors import PayloadError
from tranlog.payload import Payload, decode, encode, kept_of, with_kept
from tranlog.tungsten.records import payload as tungsten_payload
from tranlog.tungsten.records.cells import cell_of, value_of
from tranlog.tungsten.records.codec import scan
from tranlog.tungsten.records.event import ColumnSpec, Event, EventHeader, FileDelete, RowChanges, RowId, TableChange
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import Long, Moment
from tranlog.tungsten.rules.translate import (
    FATAL,
    MEANINGS,
    Loss,
    Outer,
    missing_fragment,
    outer_of,
    to_native,
    to_tungsten,
)
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
    Value,
    ZeroDate,
    canonical,
)

OUTER = Outer(
    seqno=7,
    fragno=0,
    last_frag=True,
    epoch=3,
    source_id="logos",
    event_id="000868:12",
    shard_id="shop",
    tstamp=1_309_560_000_123,
)


def column(logical: LogicalType, source_type: str = "any", **more: object) -> Column:
    return Column(name="c", source_type=source_type, logical=logical, **more)  # type: ignore[arg-type]


def of_golden(case: str) -> list[tuple[EventRecord, bytes]]:
    found = []
    for raw in golden_segments(case).values():
        for record in scan(raw, checked=False):
            if isinstance(record, EventRecord):
                found.append((record, raw[record.payload_offset : record.payload_offset + record.payload_length]))
    return found


@pytest.mark.parametrize("case", golden_cases())
def test_golden_events_come_back_byte_for_byte(case: str) -> None:
    for record, raw in of_golden(case):
        ours = to_native(record, raw)
        assert msgspec.structs.asdict(ours.outer) == {name: getattr(record, name) for name in Outer.__struct_fields__}
        assert decode(ours.payload) == ours.content
        back = to_tungsten(ours.outer, ours.payload)
        assert back is not None and back.payload == raw
        assert back.losses == frozenset()


def test_what_golden_events_lose() -> None:
    lost = {case: frozenset().union(*[to_native(*one).losses for one in of_golden(case)]) for case in golden_cases()}
    assert {case: losses for case, losses in lost.items() if losses} == {
        "java-serializer": {Loss.JAVA_OBJECT},
        "rows-crc": {Loss.NANOSECONDS},
    }


def test_the_golden_rows_as_ours() -> None:
    """All 45 variants reach the change as values, in columns that say what they are."""
    ours = to_native(*of_golden("rows-crc")[0])
    (change,) = ours.content.changes
    assert isinstance(change, RowChange) and change.after is not None
    assert change.op is Op.INSERT and change.table.name == "alltypes.t"
    assert ours.tables == (("alltypes", "t"),)
    row = {one.name: (one.logical, value) for one, value in zip(change.table.columns, change.after, strict=True)}
    assert len(row) == 45
    assert row["i_tiny"] == (LogicalType.INTEGER, -128)
    assert row["dec_pos"] == (LogicalType.DECIMAL, Decimal("12345678.90"))
    assert row["date"] == (LogicalType.DATE, Date(15156))
    assert row["datetime_us"] == (LogicalType.DATETIME, Datetime(1_309_533_324_123_456))
    assert row["vchr_bytes"] == (LogicalType.TEXT, CharsetBytes("binary", b"\xe9\0A\xff"))


@pytest.mark.long
def test_any_event_comes_back_byte_for_byte() -> None:
    seen: set[Loss] = set()
    for seed in range(400):
        event = any_event(random.Random(seed))
        raw = tungsten_payload.encode(event)
        header = event.header
        record = msgspec.structs.replace(
            OUTER,
            **{name: getattr(header, name) for name in Outer.__struct_fields__ if name != "shard_id"},
            shard_id=event.shard_id,
        )
        ours = to_native(record, raw)
        seen |= ours.losses
        back = to_tungsten(ours.outer, ours.payload)
        assert back is not None and back.payload == raw, f"seed {seed}"
        assert "\0" not in ours.outer.source_id + ours.outer.event_id + ours.outer.shard_id
    assert seen >= {Loss.LOAD_DATA, Loss.IRREGULAR_ROWS, Loss.ID_TEXT, Loss.BELOW_ZERO}


# --- from ours and back ----------------------------------------------------------------------------------

TEXT, ANY = LogicalType.TEXT, LogicalType.ANY
NATURAL: list[tuple[Column, tuple[Value, ...]]] = [
    (column(ANY), (1, -1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1.5, "text", b"bytes", True, False)),
    (column(LogicalType.BOOL), (True, False, 5)),
    (column(LogicalType.INTEGER, "int(11)"), (0, -(1 << 31), (1 << 31) - 1, 1 << 40)),
    (column(LogicalType.INTEGER, "tinyint(3) unsigned", unsigned=True), (0, 127, 128, 255, 256)),
    (column(LogicalType.INTEGER, "mediumint unsigned", unsigned=True), ((1 << 24) - 1, 1 << 23)),
    (column(LogicalType.INTEGER, "int unsigned", unsigned=True), ((1 << 32) - 1, 1 << 31, 1)),
    (column(LogicalType.INTEGER, "bigint unsigned", unsigned=True), ((1 << 64) - 1, 1 << 63, 1)),
    (column(LogicalType.INTEGER, "bigint"), (-(1 << 63), (1 << 63) - 1)),
    (column(LogicalType.F32), (F32(-1.5), F32(float("nan")), F32(-0.0))),
    (column(LogicalType.F64), (5e-324, float("nan"), float("-inf"), -0.0)),
    (column(LogicalType.DECIMAL), (Decimal("12.340"), Decimal("-1E+5"), Decimal("0.00"), Decimal("9" * 65))),
    (column(TEXT, charset="utf8mb4"), ("", "aé日😀\0", CharsetBytes("utf8mb4", b"\xff"))),
    (column(LogicalType.BYTES), (b"", b"\0\xff")),
    (column(LogicalType.DATE), (Date(-1), Date(0), ZeroDate("0000-00-00"))),
    (column(LogicalType.TIME), (Time(-1), Time(838 * 3600 * 10**6 + 1), ZeroDate("00:00:00"))),
    (column(LogicalType.DATETIME), (Datetime(-1), Datetime(1_000_001), ZeroDate("0000-00-00 00:00:00"))),
    (column(LogicalType.INSTANT), (Instant(-1_500_000), Instant(7), ZeroDate("0000-00-00 00:00:00"))),
    (column(LogicalType.BIT, length=1), (Bit(1, 1), Bit(1, 0))),
    (column(LogicalType.BIT, length=64), (Bit(64, (1 << 64) - 1), Bit(64, 0))),
    (column(LogicalType.ENUM), (EnumLabel(""), EnumLabel("a"))),
    (column(LogicalType.SET), (SetLabels(()), SetLabels(("a", "b")))),
    (column(LogicalType.JSON), (Json('{"a": 1}'),)),
    (column(LogicalType.UUID), (UUID(int=7),)),
    (column(LogicalType.OTHER, "point"), (Other("point", "(1,2)"),)),
]


@pytest.mark.parametrize(("one", "given"), NATURAL, ids=lambda it: it.logical.name if isinstance(it, Column) else "")
def test_the_values_of_each_kind_of_column_are_expressed(one: Column, given: tuple[Value, ...]) -> None:
    for value in (None, *given):
        cell, lost = cell_of(value, one)
        assert lost is None, value
        assert canonical(value_of(cell, one)) == canonical(value)


def test_any_value_in_any_column_comes_back_or_is_named() -> None:
    """Nothing is lost in silence, whatever stands in a column."""
    strange: tuple[Value, ...] = (
        InfiniteDate(True),
        ZeroDate("2024-00-15"),
        Decimal("NaN"),
        Decimal("-0"),
        Other("x", "y"),
    )
    named = 0
    for one, _ in NATURAL:
        for value in (*strange, *[value for _, given in NATURAL for value in given]):
            cell, lost = cell_of(value, one)
            assert (canonical(value_of(cell, one)) == canonical(value)) is (lost is None)
            named += lost is not None
    assert named > 100


def any_payload(rng: random.Random) -> Payload:
    tables = []
    for number in range(3):
        some = rng.sample(NATURAL, rng.randrange(1, 6))
        columns = tuple(msgspec.structs.replace(one, name=f"c{at}") for at, (one, _) in enumerate(some))
        table = TableMap(schema="shop", table=f"t{number}", columns=columns, primary_key=(0,), unique_keys=((0,),))
        tables.append((table, [given for _, given in some]))

    def image(choices: list[tuple[Value, ...]]) -> tuple[Value, ...]:
        return tuple(rng.choice((None, UNCHANGED, *given)) for given in choices)

    def change() -> Change:
        if rng.random() < 0.2:
            sql = rng.choice(("create table t(i int)", b"\xff\0", ""))
            options = rng.choice(((), (("##charset", "UTF-8"),)))
            return Statement(
                schema="shop", sql=sql, ddl=rng.random() < 0.5, timestamp=5, error_code=-1, options=options
            )
        table, choices = rng.choice(tables)
        op = rng.choice(list(Op))
        before = None if op is Op.INSERT else image(choices)
        return RowChange(table, op, before, None if op is Op.DELETE else image(choices))

    metadata = rng.choice((((NOOP, "true"),), (("dbms_type", "mysql"), ("shard", "shop")), ()))
    return Payload(
        metadata=metadata,
        options=rng.choice(((), (("autocommit", "1"),))),
        changes=tuple(change() for _ in range(rng.randrange(8))),
    )


def test_any_transaction_of_ours_comes_back_byte_for_byte() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        raw = encode(any_payload(rng))
        outer = msgspec.structs.replace(OUTER, shard_id=rng.choice(("shop", "#UNKNOWN", "")))
        theirs = to_tungsten(outer, raw)
        assert theirs is not None and theirs.losses == frozenset(), f"seed {seed}"
        event = tungsten_payload.decode(theirs.payload)
        assert isinstance(event, Event)
        assert event.shard_id == outer.shard_id or ("shard", "shop") in event.metadata
        again = to_native(outer, theirs.payload)
        assert again.payload == raw, f"seed {seed}"


def test_a_lossy_value_is_a_finding() -> None:
    table = TableMap(schema="s", table="t", columns=(column(LogicalType.DATE),))
    raw = encode(Payload(changes=(RowChange(table, Op.INSERT, None, (InfiniteDate(False),)),)))
    theirs = to_tungsten(OUTER, raw)
    assert theirs is not None and theirs.losses == {Loss.VALUE_TIME}
    assert set(MEANINGS) == set(Loss) and set(Loss) > FATAL


# --- one by one ------------------------------------------------------------------------------------------


def event_of(*changes: object, **header: object) -> Event:
    base = make_event(7)
    return Event(header=msgspec.structs.replace(base.header, **header), changes=changes, metadata=(("shard", "shop"),))  # type: ignore[arg-type]


def test_a_filtered_range_keeps_its_end() -> None:
    event = make_event(7, end=(12, 3))
    ours = to_native(OUTER, tungsten_payload.encode(event))
    assert ours.content.is_noop()
    back = to_tungsten(OUTER, ours.payload)
    assert back is not None and back.end == (12, 3)
    assert to_tungsten(OUTER, missing_fragment(OUTER).payload) is None


def test_a_java_object_is_kept_and_not_read() -> None:
    """B2, "JavaSerializer alternative"."""
    record, raw = of_golden("java-serializer")[0]
    ours = to_native(record, raw)
    assert ours.losses == {Loss.JAVA_OBJECT} and ours.content.changes == () and ours.content.is_noop()
    back = to_tungsten(record, ours.payload)
    assert back is not None and back.payload == raw
    assert kept_of(to_native(record, raw, keep=False).payload) is None


def test_ids_and_ddl_are_statements() -> None:
    ours = to_native(OUTER, tungsten_payload.encode(event_of(RowId(number=5, kind=2), RowId(number=6, kind=1))))
    assert [one.sql for one in ours.content.changes if isinstance(one, Statement)] == [
        "SET INSERT_ID = 5",
        "SET LAST_INSERT_ID = 6",
    ]
    made = make_event(7, text="create table t (i int)")
    (statement,) = to_native(OUTER, tungsten_payload.encode(made)).content.changes
    assert isinstance(statement, Statement) and statement.ddl
    (statement,) = to_native(OUTER, tungsten_payload.encode(make_event(7))).content.changes
    assert isinstance(statement, Statement) and not statement.ddl


def test_a_file_of_load_data_is_a_finding_and_kept() -> None:
    raw = tungsten_payload.encode(event_of(FileDelete(file_id=3)))
    ours = to_native(OUTER, raw)
    assert ours.losses == {Loss.LOAD_DATA} and ours.content.changes == ()
    back = to_tungsten(OUTER, ours.payload)
    assert back is not None and back.payload == raw


def test_keys_that_a_filter_reduced_are_the_primary_key() -> None:
    """A10, pkey: before images then hold only what names the row; the rest was not sent."""
    specs = tuple(ColumnSpec(index=n, name=f"c{n}", sql_type=4, length=8) for n in (1, 2))
    part = TableChange(
        schema="s",
        table="t",
        op=Op.UPDATE,
        key_specs=specs[:1],
        column_specs=specs,
        keys=((Long(1),),),
        rows=((Long(1), Long(2)),),
    )
    (change,) = to_native(OUTER, tungsten_payload.encode(event_of(RowChanges(tables=(part,))))).content.changes
    assert isinstance(change, RowChange)
    assert change.table.primary_key == (0,)
    assert (change.before, change.after) == ((1, UNCHANGED), (1, 2))


def test_a_column_without_a_name_and_a_datetime() -> None:
    spec = ColumnSpec(index=4, sql_type=91, length=8)
    part = TableChange(schema="s", table="t", op=Op.INSERT, column_specs=(spec,), rows=((Moment(8, 1, None, "GMT"),),))
    part = msgspec.structs.replace(part, rows=((Moment(9, 1000, None, "GMT"),),))
    (change,) = to_native(OUTER, tungsten_payload.encode(event_of(RowChanges(tables=(part,))))).content.changes
    assert isinstance(change, RowChange)
    assert [(one.name, one.logical) for one in change.table.columns] == [("@4", LogicalType.DATETIME)]
    assert change.after == (Datetime(1_000_000),)


def test_ids_that_a_native_record_cannot_hold() -> None:
    outer, losses = outer_of(msgspec.structs.replace(OUTER, source_id="a\0b", epoch=-1, tstamp=-5))
    assert (outer.source_id, outer.epoch, outer.tstamp) == ("a\N{REPLACEMENT CHARACTER}b", 0, 0)
    assert losses == {Loss.ID_TEXT, Loss.BELOW_ZERO}


@pytest.mark.parametrize("kept", [b"", b"\x93", b"\x91\xa3abc", b"\xff" * 9])
def test_what_is_kept_and_damaged_is_an_error(kept: bytes) -> None:
    with pytest.raises(PayloadError, match="seqno 7"):
        to_tungsten(OUTER, with_kept(encode(Payload()), kept))


def test_what_is_kept_must_fit_the_changes() -> None:
    record, raw = of_golden("rows-crc")[1]
    ours = to_native(record, raw)
    kept = kept_of(ours.payload)
    assert kept is not None
    with pytest.raises(PayloadError, match="does not fit"):
        to_tungsten(record, with_kept(encode(Payload()), kept))


def test_an_event_header_of_its_own_is_kept() -> None:
    """The payload's header may differ from the record's: both come back."""
    header = EventHeader(seqno=7, tstamp=1, serialized=2, source_id="other", epoch=9, event_id="x", shard_id="y")
    raw = tungsten_payload.encode(Event(header=header))
    ours = to_native(OUTER, raw)
    back = to_tungsten(ours.outer, ours.payload)
    assert back is not None and back.payload == raw and ours.outer == OUTER
