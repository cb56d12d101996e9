"""What the tests of the Tungsten codec share: golden directories, events, and logs of ours in the ancestor's form."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tranlog.change import Op
from tranlog.ids import segment_name
from tranlog.testing.disk import SimDisk
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.records import values
from tranlog.tungsten.records.codec import segment_number
from tranlog.tungsten.records.event import (
    ColumnSpec,
    Event,
    EventChange,
    EventHeader,
    FileDelete,
    FileFragment,
    FileQuery,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.values import BinaryText, Cell, Flag, Long, Moment, Unscaled
from tranlog.tungsten.writing.directory import TungstenLog
from tranlog.types import F32

GOLDEN = Path(__file__).parent / "golden" / "tungsten"
"""Directories that the real replicator wrote; their README says how."""
LOG = "/log"
TSTAMP = 1_309_560_000_000


def golden_segments(case: str, folder: str = "log") -> dict[int, bytes]:
    """Return the segments of a golden directory, by number."""
    found = {}
    for path in sorted((GOLDEN / case / folder).iterdir()):
        number = segment_number(path.name)
        if number is not None:
            found[number] = path.read_bytes()
    return found


def on_disk(segments: dict[int, bytes]) -> SimDisk:
    """Return a disk with these segments in the directory LOG."""
    disk = SimDisk()
    disk.make_dir(LOG)
    for number, raw in segments.items():
        path = f"{LOG}/{segment_name(number)}"
        disk.open(path, write=True, create=True).close()
        disk.set_content(path, raw)
    return disk


def segments_on(disk: SimDisk) -> dict[int, bytes]:
    """Return the segments that are on the disk, by number."""
    numbers = [number for number in map(segment_number, disk.list_dir(LOG)) if number is not None]
    return {number: disk.content(f"{LOG}/{segment_name(number)}") for number in numbers}


def make_event(
    seqno: int,
    fragno: int = 0,
    *,
    last: bool = True,
    text: str = "insert into t values(1)",
    end: tuple[int, int] | None = None,
) -> Event:
    """Return an event; `end` makes it a filtered range up to (seqno, fragno)."""
    header = EventHeader(
        seqno=seqno,
        fragno=fragno,
        last_frag=last,
        tstamp=TSTAMP + seqno,
        serialized=TSTAMP + 7,
        source_id="logos",
        epoch=0,
        event_id=f"{seqno:06d}",
        filtered=end is not None,
        seqno_end=None if end is None else end[0],
        fragno_end=None if end is None else end[1],
    )
    if end is not None:
        return Event(header=header)
    change = StatementChange(schema="db", timestamp=TSTAMP, query=f"{text} /* {seqno}.{fragno} */")
    return Event(header=header, changes=(change,), metadata=(("service", "shop"), ("shard", "db")))


def open_log(disk: SimDisk, *, segment_bytes: int = 10**6, checksum: bool = True) -> TungstenLog:
    """Open the log at LOG for writing."""
    return TungstenLog.open(LOG, disk=disk, segment_bytes=segment_bytes, checksum=checksum)


def written(*events: Event, segment_bytes: int = 10**6, checksum: bool = True) -> SimDisk:
    """Return a disk with a log of these events, each committed."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=segment_bytes, checksum=checksum) as log:
        for event in events:
            log.append(event)
            log.commit()
    return disk


def read_places(disk: SimDisk, *, strict: bool = True) -> list[tuple[int, int]]:
    """Return (seqno, fragno) of every fragment that a reader is shown."""
    found = []
    with TungstenReader.open(LOG, disk=disk).cursor(strict=strict) as cursor:
        while (stored := cursor.next()) is not None:
            found.append((stored.record.seqno, stored.record.fragno))
    return found


# --- any event -------------------------------------------------------------------------------------------


def _number(rng: random.Random, bits: int) -> int:
    bound = 1 << bits - 1
    return rng.choice((0, 1, -1, bound - 1, -bound, rng.randrange(-bound, bound)))


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("aé日😀\0' ;\n") for _ in range(rng.choice((0, 1, 3, 40, 200))))


def _raw(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 5, 127, 128, 300)))


def any_cell(rng: random.Random) -> Cell:
    """Return a value of any kind."""
    kind = rng.choice((values.TIMESTAMP, values.TIME, values.DATE))
    nanos = rng.choice((None, 0, 999_999))
    return rng.choice(
        (
            None,
            _number(rng, 32),
            Long(_number(rng, 64)),
            F32(rng.choice((0.0, -0.0, 1.5, float("inf"), -1.5e-10))),
            rng.choice((0.0, -0.0, 1.7976931348623157e308, float("-inf"), 5e-324)),
            _text(rng),
            _raw(rng),
            Flag(_number(rng, 32)),
            Moment(kind, _number(rng, 64), nanos, rng.choice((None, "GMT"))),
            Moment(kind, None, 0),
            Unscaled(_raw(rng), _number(rng, 32)),
            BinaryText(_raw(rng)),
        )
    )


def _options(rng: random.Random) -> tuple[tuple[str, str], ...]:
    return tuple((_text(rng), _text(rng)) for _ in range(rng.randrange(3)))


def _statement(rng: random.Random) -> StatementChange:
    as_bytes = rng.random() < 0.5
    return StatementChange(
        schema=rng.choice((None, _text(rng))),
        timestamp=rng.choice((None, _number(rng, 64))),
        query=None if as_bytes else _text(rng),
        options=_options(rng),
        error_code=_number(rng, 32),
        raw_query=_raw(rng) if as_bytes else None,
    )


def _specs(rng: random.Random, count: int) -> tuple[ColumnSpec, ...]:
    return tuple(
        ColumnSpec(
            index=number,
            name=rng.choice((None, _text(rng))),
            sql_type=rng.choice((-7, 4, 12, 93, 2004)),
            signed=rng.random() < 0.5,
            length=_number(rng, 32),
            not_null=rng.random() < 0.5,
            description=rng.choice((None, "INT")),
        )
        for number in range(1, count + 1)
    )


def any_change(rng: random.Random) -> EventChange:
    """Return a change of any kind."""
    width = rng.randrange(4)

    def rows() -> tuple[tuple[Cell, ...], ...]:
        return tuple(tuple(any_cell(rng) for _ in range(width)) for _ in range(rng.randrange(3)))

    table = TableChange(
        schema=_text(rng),
        table=_text(rng),
        op=rng.choice(list(Op)),
        key_specs=_specs(rng, width),
        column_specs=_specs(rng, width),
        keys=rows(),
        rows=rows(),
        table_id=rng.choice((None, _number(rng, 64))),
    )
    return rng.choice(
        (
            _statement(rng),
            RowChanges(tables=(table,) * rng.randrange(3), options=_options(rng)),
            RowId(number=_number(rng, 64), kind=rng.choice((None, 1, 2))),
            FileFragment(file_id=_number(rng, 32), raw=_raw(rng), schema=rng.choice((None, _text(rng)))),
            FileQuery(statement=_statement(rng), file_id=1, name_start=_number(rng, 32), name_end=7),
            FileDelete(file_id=_number(rng, 32)),
        )
    )


def any_event(rng: random.Random) -> Event:
    """Return an event with any content."""
    filtered = rng.random() < 0.2
    header = EventHeader(
        seqno=rng.choice((0, (1 << 63) - 1, 7)),
        fragno=rng.choice((0, 1, 32767)),
        last_frag=rng.random() < 0.5,
        tstamp=_number(rng, 64),
        serialized=_number(rng, 64),
        source_id=_text(rng),
        epoch=_number(rng, 64),
        event_id=_text(rng),
        filtered=filtered,
        seqno_end=_number(rng, 64) if filtered else None,
        fragno_end=_number(rng, 32) if filtered else None,
    )
    return Event(
        header=header,
        changes=tuple(any_change(rng) for _ in range(rng.randrange(3))),
        metadata=_options(rng),
        options=_options(rng),
    )


def golden_cases() -> list[str]:
    """Return the names of the golden cases."""
    return sorted(name for name in os.listdir(GOLDEN) if (GOLDEN / name / "log").is_dir())
