"""The compiled modules do what their sources do.

Both forms are fed with the same mutated bytes. What each answers, a value or an error with its text,
has to be equal. Without a compiler there is one form, and what compares the two is skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tranlog
from fix_mutation import Fuzz, mutated
from tranlog import compiled
from tranlog.change import Column, Op, Payload, RowChange, Statement, TableMap
from tranlog.checksum import crc32
from tranlog.log.records import format as format_here
from tranlog.types import UNCHANGED, Bit, Date, Datetime, Json, LogicalType, SetLabels

PACKAGE = Path(tranlog.__file__).parent
both = pytest.mark.skipif(compiled.why_plain is not None, reason=f"one form only: {compiled.why_plain}")


def _plain(name: str) -> ModuleType:
    """Return a module as its source says, whatever form the rest of the process uses."""
    path = PACKAGE / f"{name.removeprefix('tranlog.').replace('.', '/')}.py"
    loader = SourceFileLoader(f"plain_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # where a dataclass looks for its module
    loader.exec_module(module)
    return module


def _answer(work: Callable[[], object]) -> object:
    """Return a value as it prints, which tells -0.0 from 0.0 and one NaN from none; or the error."""
    try:
        return repr(work())
    except Exception as exc:
        return type(exc).__name__, str(exc)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[ModuleType, ModuleType]]:
    """Each module, as source and compiled."""
    found = {}
    for name in compiled.MODULES:
        machine = importlib.import_module(name)
        assert machine.__file__ is not None and machine.__file__.endswith(".so")
        found[name] = _plain(name), machine
    return found


ROWS: list[tuple[Any, ...]] = [
    (1, "a text", None, 1.5, b"bytes"),
    (-1, "é" * 70, True, -0.0, b"\0" * 200),
    ((1 << 63) - 1, "", False, float("nan"), UNCHANGED),
    (-(1 << 63), "x" * 20_000, Datetime(-1), 1e300, Date(3)),
    ((1 << 64) - 1, "\U0001f600", Json("{}"), float("inf"), SetLabels(("a", "b"))),
    (1 << 61, 1 << 28, -(1 << 61), (1 << 28) - 1, Bit(9, 257)),
]
TABLE = TableMap(
    schema="shop",
    table="orders",
    columns=tuple([Column(name=f"c{n}", source_type="any", logical=LogicalType.OTHER) for n in range(5)]),
    primary_key=(0,),
)


def _payloads() -> list[Payload]:
    rows = [RowChange(TABLE, Op.INSERT, None, row) for row in ROWS]
    updates = [RowChange(TABLE, Op.UPDATE, ROWS[0], row) for row in ROWS]
    deletes = [RowChange(TABLE, Op.DELETE, row, None) for row in ROWS]
    ddl = Statement(schema="shop", sql="CREATE TABLE x (y INT)", ddl=True, timestamp=-5, options=(("a", "b"),))
    return [
        Payload(changes=tuple(rows)),
        Payload(metadata=(("noop", ""),), options=(("o", "v"),)),
        Payload(changes=(ddl, *updates, ddl, *deletes)),
    ]


@both
def test_payloads_are_the_same_bytes(pairs: dict[str, tuple[ModuleType, ModuleType]]) -> None:
    """performance.md: one source, runs uncompiled too."""
    plain, machine = pairs["tranlog.payload"]
    plain_rows, machine_rows = pairs["tranlog.row_bytes"]
    for payload in _payloads():
        raw = plain.encode(payload)
        assert machine.encode(payload) == raw
        assert _answer(lambda: machine.decode(raw)) == _answer(lambda: plain.decode(raw))  # noqa: B023
    for row in ROWS:
        raw = plain_rows.encode_row(row)
        assert machine_rows.encode_row(row) == raw
        for cut in (raw, raw[:-1]):
            said = [_answer(lambda: one.decode_row(cut, 5)) for one in (plain_rows, machine_rows)]  # noqa: B023
            assert said[0] == said[1]
    for value in (1 << 64, -(1 << 63) - 1, "\ud800", object(), 3 + 4j, Bit(1, 9), (1, 2)):
        row = (value,)
        assert _answer(lambda: machine_rows.encode_row(row)) == _answer(lambda: plain_rows.encode_row(row))  # noqa: B023
        builders = [one.PayloadBuilder() for one in (plain, machine)]
        change = RowChange(TABLE, Op.INSERT, None, (1, "x", None, 2.0, value))  # type: ignore[arg-type]
        said = [_answer(lambda: builder.add(change)) for builder in builders]  # noqa: B023
        assert said[0] == said[1] != "None"
        assert [(len(one), one.size, one.tables(), one.take()) for one in builders] == [(0, 0, (), b"")] * 2


@both
def test_mutated_payloads_get_the_same_answer(pairs: dict[str, tuple[ModuleType, ModuleType]], fuzz: Fuzz) -> None:
    plain, machine = pairs["tranlog.payload"]

    def check(raw: bytes) -> None:
        assert _answer(lambda: machine.decode(raw)) == _answer(lambda: plain.decode(raw))

    fuzz.samples([plain.encode(payload) for payload in _payloads()], check, share=0.5)


def _events(of: ModuleType, **changed: Any) -> list[bytes]:
    """Return event records, numbered from 5."""
    fields: dict[str, Any] = {
        "fragno": 0,
        "last_frag": True,
        "epoch": 3,
        "source_id": "shop",
        "event_id": "bin.000001:0042",
        "shard_id": "a",
        "tstamp": 1_700_000_000_000,
        "tables": (("shop", "orders"),),
        "checksum": True,
    } | changed
    records = []
    for seqno in range(5, 15):
        payload = bytes([seqno]) * seqno
        head, trailer = of.encode_event(seqno=seqno, payload=payload, **fields)
        records.append(head + payload + trailer)
    return records


@both
def test_mutated_records_get_the_same_answer(pairs: dict[str, tuple[ModuleType, ModuleType]], fuzz: Fuzz) -> None:
    """Each way of reading a record, and the walk over a block of them."""
    plain, machine = pairs["tranlog.log.records.format"]
    samples = []
    for changed in ({}, {"tables": ()}, {"tables": None}, {"checksum": False}, {"padding": 9}, {"fragno": 1}):
        assert _events(machine, **changed) == _events(plain, **changed)
        samples.append(b"".join(_events(plain, **changed)))
    samples.append(plain.encode_rotate("thl.data.0000000002") + plain.encode_sync(0, 1 << 32 | 16, 5))

    def walk(of: ModuleType, raw: bytes, at: int) -> list[object]:
        taken: list[list[int]] = [[], [], []]
        return [
            of.parse_event(raw, at, 7),
            of.parse_record(raw, at, 7),
            of.skip_events(raw, at, 9),
            of.pass_events(raw, at, 5, 12, {b"a"}),
            of.take_events(raw, at, 5, 12, taken[0], verify=True),
            of.take_events(raw, at, 5, 1 << 62, taken[1], verify=False),
            of.take_events(raw, at, 5, 12, taken[2], verify=True, within=3),
            taken,
            [of.cut_records(raw, one, 5) for one in taken if one],
        ]

    def check(raw: bytes) -> None:
        for at in (0, 1, len(raw) - 9):
            if at >= 0:
                assert _answer(lambda: walk(machine, raw, at)) == _answer(lambda: walk(plain, raw, at))  # noqa: B023

    fuzz.samples(samples, check, share=0.5)


def test_what_a_block_walk_takes_is_what_parsing_takes() -> None:
    """With `within`, `take_events` ends exactly where `parse_event` and a right checksum would not go on."""
    rng = random.Random(random.randrange(1 << 32))
    whole = b"".join(_events(format_here))
    stopped = set()
    for _ in range(2000):
        raw = mutated(rng, [whole])
        places: list[int] = []
        behind, seqno = format_here.take_events(raw, 0, 5, 100, places, verify=True, within=3)
        at, expected = 0, 5
        while (
            isinstance(header := format_here.parse_record(raw, at, 0), format_here.RecordHeader)
            and header.seqno == expected
            and (header.epoch, header.fragno, header.last_frag, header.crc_method) == (3, 0, True, 1)
        ):
            at += header.record_length
            expected += 1
        assert (behind, seqno) == (at, expected), raw.hex()
        assert len(places) == seqno - 5
        stopped.add(seqno)
    assert len(stopped) > 5


def test_a_block_walk_takes_what_is_right_inside() -> None:
    """Of records whose checksum is right: ids of any characters, and what contradicts itself."""
    rng = random.Random(random.randrange(1 << 32))
    told: Counter[bool] = Counter()
    for _ in range(3000):
        source = "".join(rng.choices("az\x01\x7fé€😀", weights=(50, 50, 3, 3, 1, 1, 1), k=rng.randrange(12)))
        raw = bytearray(_events(format_here, source_id=source)[0])
        for _ in range(rng.randrange(3)):
            raw[rng.randrange(28, len(raw) - 5)] = rng.choice((0, 1, 97, 0x7F, 0x80, 0xC3, 0xFF))
        raw[-4:] = crc32(raw[:-4]).to_bytes(4, "big")
        places: list[int] = []
        _, seqno = format_here.take_events(bytes(raw), 0, 5, 5, places, verify=True, within=3)
        whole = isinstance(format_here.parse_record(bytes(raw), 0, 0), format_here.RecordHeader)
        assert (seqno == 6) is whole, raw.hex()
        told[whole] += 1
    assert min(told[True], told[False]) > 100
