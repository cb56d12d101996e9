"""How fast records come out of the log again, checksums held: as raw records, and as a bare walk over the bytes.

A log of 60 MB in records of 1 KB, in the system's cache. `Cursor.raw` against a SQLite cursor over the same rows; then
the block walk that scans and cursors stand on (`take_events`), compiled and plain, against a loop that only calls the
CRC-32 of each record; and the compiled form against the plain one. CPU seconds.

Beside it, without a must, the compiled walk against copying the same bytes and the plain one against zlib's CRC-32 of
whole windows: of two machines with the same walk, one copied 8 GB a second and the other 24, and zlib took 1.9 and 6.9.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from frame import Bench, Question, at_least, cpu_of, run

import tranlog
from tranlog.change import Column, Fragment, Op, Payload, RowChange, TableMap
from tranlog.checksum import crc32
from tranlog.compiled import why_plain
from tranlog.log.files.segment import WINDOW_BYTES
from tranlog.log.records import format as served
from tranlog.log.writing.log import Log, LogReader
from tranlog.types import LogicalType

QUESTION = Question(
    name="read",
    text="How many records of 1 KB are read, and walked over, in a CPU second, checksums held?",
    peer="a SQLite cursor over the same rows; the CRC-32 of each record, and no more; copying the bytes; zlib.crc32 "
    "over them; the plain form of the modules",
)
RECORDS = 60_000
PAYLOAD = bytes(range(256)) * 4


def plain_form(name: str) -> ModuleType:
    """Return a module as its source says, beside the compiled one."""
    path = Path(tranlog.__file__).parent / f"{name.replace('.', '/')}.py"
    loader = importlib.machinery.SourceFileLoader(f"plain_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def walk(form: ModuleType, windows: list[bytes]) -> Callable[[], None]:
    """Return what walks over windows that begin with a record each."""
    first = [served.parse_event(window, 0, 0) for window in windows]
    seqnos = [header.seqno for header in first if header is not None]
    assert len(seqnos) == len(windows)

    def work() -> None:
        for window, seqno in zip(windows, seqnos, strict=True):
            places: list[int] = []
            form.take_events(window, 0, seqno, 1 << 60, places, verify=True)
            assert len(places) > 200

    return work


def measure(bench: Bench) -> None:
    """Write once, read many times."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        path = Path(here, "log")
        database = sqlite3.connect(Path(here, "log.db"))
        database.execute("CREATE TABLE log(seqno INTEGER PRIMARY KEY, record BLOB)")
        with Log.open(path, source_id="bench") as log:
            for number in range(RECORDS):
                event_id = f"0-1-{number};binlog.000001:{number * 1100}"
                log.append(
                    Fragment(
                        source_id="bench",
                        event_id=event_id,
                        shard_id="shop",
                        tstamp=1_800_000_000_000,
                        tables=(("shop", "orders"),),
                        payload=PAYLOAD,
                    )
                )
            log.commit()
        reader = LogReader.open(path)

        def ours() -> None:
            count = 0
            with reader.cursor() as cursor:
                for _seqno, _record in cursor.raw():
                    count += 1
            assert count == RECORDS + 1

        with reader.cursor() as cursor:
            records = list(cursor.raw())
        database.executemany("INSERT INTO log VALUES (?, ?)", records)
        database.commit()

        def theirs() -> None:
            count = 0
            for _seqno, _record in database.execute("SELECT seqno, record FROM log ORDER BY seqno"):
                count += 1
            assert count == RECORDS + 1

        bench.compare(
            "read (seqno, raw record) with CRC",
            ours=lambda: RECORDS / cpu_of(ours),
            peer=lambda: RECORDS / cpu_of(theirs),
            unit="records/s",
            must=at_least(1.2, stretch=2),
        )
        each = WINDOW_BYTES // len(records[1][1])
        windows = [b"".join([raw for _, raw in records[at : at + each]]) for at in range(1, RECORDS - each, each)]
        size = sum(map(len, windows)) / 1e6
        raws = [raw for _, raw in records[1 : 1 + each * len(windows)]]
        target = bytearray(WINDOW_BYTES)

        def copy() -> None:
            for window in windows:
                target[: len(window)] = window

        def zlib_checksums() -> None:
            for window in windows:
                zlib.crc32(window)

        def checksums() -> None:
            for raw in raws:
                crc32(raw)

        machine, plain = walk(served, windows), walk(plain_form("log.records.format"), windows)
        for form, scan, must, other, anchor in (
            ("compiled", machine, at_least(0.35, stretch=0.5), "memcpy", copy),
            ("plain", plain, at_least(0.12, stretch=0.15), "zlib.crc32 of windows", zlib_checksums),
        ):
            if form == "plain" or why_plain is None:
                bench.compare(
                    f"raw scan with CRC, {form}, against the CRC of each record",
                    ours=lambda: size / cpu_of(scan),  # noqa: B023
                    peer=lambda: size / cpu_of(checksums),
                    unit="MB/s",
                    must=must,
                )
                bench.compare(
                    f"raw scan with CRC, {form}, against {other}",
                    ours=lambda: size / cpu_of(scan),  # noqa: B023
                    peer=lambda: size / cpu_of(anchor),  # noqa: B023
                    unit="MB/s",
                )
        if why_plain is None:
            bench.compare(
                "scan, compiled against plain",
                ours=lambda: size / cpu_of(machine),
                peer=lambda: size / cpu_of(plain),
                unit="MB/s",
                must=at_least(2, stretch=4),
            )
            encode_forms(bench)
        reader.close()
        database.close()


def encode_forms(bench: Bench) -> None:
    """Add the row of encoding, by the compiled payload codec and by the plain one."""
    from tranlog import payload as machine

    plain = plain_form("payload")
    columns = tuple([Column(name=f"c{n}", source_type="any", logical=LogicalType.OTHER) for n in range(6)])
    table = TableMap(schema="shop", table="orders", columns=columns, primary_key=(0,))
    rows = [(1000 + n, 4_200_000 + n * 977, f"customer {n} of the shop", "x" * 70, 19.99 + n, None) for n in range(8)]
    one = Payload(changes=tuple([RowChange(table, Op.INSERT, None, row) for row in rows]))

    def encoding(form: ModuleType) -> Callable[[], float]:
        def work() -> None:
            for _ in range(5_000):
                form.encode(one)

        return lambda: 5_000 / cpu_of(work)

    bench.compare(
        "encode, compiled against plain",
        ours=encoding(machine),
        peer=encoding(plain),
        unit="tx/s",
        must=at_least(2, stretch=4),
    )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
