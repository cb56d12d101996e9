"""A large transaction shows how far it is, while the target has no word of it yet."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fix_driver import wait_until
from fix_metrics import samples_of
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, items, positions, take, tasks_for
from tranlog.change import Op, RowChange
from tranlog.clock import SystemClock
from tranlog.disk import OsDisk
from tranlog.ids import Seqno
from tranlog.log.files.sealed_line import sealed_line
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.applying import in_flight
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.in_flight import IN_FLIGHT_DIR, Telling, read_in_flight
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import InFlight
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import PipelineState, Status
from tranlog.pipeline.status.view import pipeline_status
from tranlog.service.process.metrics import pipeline_families
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target
from tranlog.target.target import ChannelRow
from tranlog.testing.clock import ManualClock

NORTH = items("north")
ROWS = 6_000
BATCH = 1_100
"""So many rows a target may take before it works at them, and what is left of a fragment."""
STEPS = (0, 2_000, 4_000, ROWS - 1)
ONE = ShardPlan(channels=1)


class Gate:
    """Lets a target's rows pass up to some id; the one after it waits."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._upto = 0
        self._waits_at = 0

    def __call__(self, number: int) -> None:
        with self._moved:
            while number > self._upto:
                self._waits_at = number
                self._moved.wait(60)

    def is_waited_at(self, number: int) -> bool:
        return self._waits_at == number

    def open_to(self, upto: int) -> None:
        with self._moved:
            self._upto = upto
            self._moved.notify_all()


@pytest.fixture(autouse=True)
def tell_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_TELL_EVERY_S", 0.0)


def write_large(path: Path, **options: Any) -> int:
    """A log with one transaction of many rows after the writer's no-op."""
    with Log.open(str(path), source_id="test", options=LogOptions(**options)) as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=4_000)
        rows = [RowChange(NORTH, Op.INSERT, None, (key + 1, 0, f"note {key:060d}")) for key in range(ROWS)]
        Workload(seed=1).append(log, packer, rows)
        log.commit()
        return log.last_seqno


@contextlib.contextmanager
def applying(folder: Path, target: SqliteTarget, gate: Gate, last: int) -> Iterator[Channel]:
    """A channel that applies the log in a thread of its own, through the gate, up to the end."""
    (task,) = tasks_for(target.options, folder / "log", ONE, take(target.options, ONE), until=last)
    opened = open_target(target.options)
    opened.connection._connection.create_scalar_function("gate", gate, 1)  # type: ignore[attr-defined]
    with target.connect() as connection:
        connection.execute('CREATE TRIGGER gate BEFORE INSERT ON "north.items" BEGIN SELECT gate(new.id); END')
    channel = Channel(task, lambda: opened, lambda: LogReader.open(folder / "log"))
    results = []
    thread = threading.Thread(target=lambda: results.append(channel.run()), daemon=True)
    thread.start()
    try:
        yield channel
    finally:
        gate.open_to(ROWS)
        thread.join(60)
    (result,) = results
    assert (result.end, result.error) == (TaskEnd.LIMIT, None)


def told_of(options: ApplyOptions, state: State = State.ONLINE) -> Status:
    """Return the status of a pipeline whose process says that it is in this state."""
    process = OperationState(
        pipeline="p",
        state=state,
        began_ms=0,
        since_ms=0,
        applied_seqno=-1,
        committed_seqno=-1,
        limit="",
        left_out="",
        pending=None,
        waits=(),
    )
    return gather(options.log_dir, options, clock=SystemClock(), process=process)


def pipeline_of(status: Status) -> PipelineState:
    assert status.pipeline is not None
    return status.pipeline


@pytest.mark.parametrize("options", [{}, {"spill_above": 1_500, "spill_chunk_bytes": 5_000}], ids=["whole", "spilled"])
def test_how_far_it_is(tmp_path: Path, options: dict[str, int]) -> None:
    target, gate = SqliteTarget(tmp_path / "target.db", [NORTH]), Gate()
    last = write_large(tmp_path / "log", **options)
    with LogReader.open(tmp_path / "log") as reader, reader.cursor() as cursor:
        cursor.seek(reader.range().last_seqno)
        header = cursor.next_header()
        assert header is not None and header.spilled == bool(options)
        transaction = cursor.current()
        assert transaction.fragments > 20
        size = sum(record.header.record_length for record in transaction.records())
    apply = ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target.options, channels=1)
    seen: list[InFlight] = []
    began = SystemClock().now_ms()
    with applying(tmp_path, target, gate, last):
        for upto in STEPS:
            gate.open_to(upto)
            wait_until(partial(gate.is_waited_at, upto + 1))
            found = told_of(apply)
            (channel,) = pipeline_of(found).channels
            assert channel.in_flight is not None
            seen.append(channel.in_flight)
        (task,) = pipeline_status(found).tasks
        resting = pipeline_of(told_of(apply, State.OFFLINE_NORMAL)).channels
        assert [one.in_flight for one in resting] == [None], "what stopped is in no transaction"
        assert positions(target.options) == {0: -1}, "nothing of it is at the target"
        (line,) = (tmp_path / "log" / IN_FLIGHT_DIR).iterdir()
    assert {(one.seqno, one.size_bytes) for one in seen} == {(last, size)}
    for before, after in itertools.pairwise(seen):
        assert before.changes < after.changes and before.read_bytes < after.read_bytes <= size
    assert all(upto - BATCH <= one.changes <= upto + BATCH for one, upto in zip(seen, STEPS, strict=True)), seen
    assert all(began <= one.began_at <= one.written_at for one in seen)
    told = (task.inFlightSeqno, task.inFlightChanges, task.inFlightReadBytes, task.inFlightSizeBytes)
    assert told == (last, seen[-1].changes, seen[-1].read_bytes, size)
    metrics = samples_of(pipeline_families(found))
    names = ("seqno", "changes", "read_bytes", "size_bytes")
    shown = [list(metrics[f"tranlog_in_flight_{name}"].values()) for name in names]
    assert shown == [[last], [seen[-1].changes], [seen[-1].read_bytes], [size]]
    # It has ended: everything was read, and the position says so better.
    said = dict(part.split("=") for part in line.read_text().split(" crc=")[0].split(" "))
    assert (said["changes"], said["read_bytes"], said["size_bytes"]) == (str(ROWS), str(size), str(size))
    assert positions(target.options) == {0: last}
    assert [one.in_flight for one in pipeline_of(told_of(apply)).channels] == [None]


def test_the_documents_line_is_read(tmp_path: Path) -> None:
    (line,) = re.findall(
        r"^    (seqno=.*)$", (Path(__file__).parents[2] / "docs" / "format.md").read_text(), re.MULTILINE
    )
    (tmp_path / IN_FLIGHT_DIR).mkdir()
    (tmp_path / IN_FLIGHT_DIR / "shop.0").write_text(line.ljust(in_flight.IN_FLIGHT_BYTES))
    found = read_in_flight(str(tmp_path), "shop", [row_of(0, token=1_000_002)], disk=OsDisk())[0]
    assert found.text == "seqno 18, 400000 changes so far, 12.0 of 40.0 MB"


def row_of(channel: int, *, token: int, applied: int = 11) -> ChannelRow:
    return ChannelRow(channel=channel, applied_seqno=Seqno(applied), token=token)


def test_what_a_kill_left_behind_counts_for_nothing(tmp_path: Path) -> None:
    disk, log_dir = OsDisk(), str(tmp_path)
    told = Telling(log_dir, "shop", 3, disk=disk, clock=SystemClock())
    told.begin(Seqno(12), 7, 1_000)
    told.at(40, 500)

    def read(row: ChannelRow, pipeline: str = "shop") -> dict[int, InFlight]:
        return read_in_flight(log_dir, pipeline, [row], disk=disk)

    found = read(row_of(3, token=7))[3]
    assert (found.seqno, found.changes, found.read_bytes, found.size_bytes) == (12, 40, 500, 1_000)
    assert found.text == "seqno 12, 40 changes so far, 0.0 of 0.0 MB"
    for other in (row_of(3, token=8), row_of(3, token=7, applied=12), row_of(2, token=7)):
        assert read(other) == {}, "another attempt's, over, or another channel's"
    assert read(row_of(3, token=7), "shop.3") == {}
    path = tmp_path / IN_FLIGHT_DIR / "shop.3"
    whole = path.read_bytes()
    assert len(whole) == in_flight.IN_FLIGHT_BYTES
    for harmed in (b"", whole[:20], whole.replace(b"40", b"41"), sealed_line("seqno=x token=7", 256), b"\xff" * 256):
        path.write_bytes(harmed)
        assert read(row_of(3, token=7)) == {}
    told.close()
    told.close()
    assert not path.exists()


def test_what_cannot_be_told_stops_nothing(tmp_path: Path) -> None:
    """A worker may see the log's folder and not write there; of another codec's transaction nobody knows the size."""
    for folder, size in ((tmp_path / "none", 1_000), (tmp_path, None)):
        told = Telling(str(folder), "shop", 0, disk=OsDisk(), clock=SystemClock())
        told.begin(Seqno(12), 7, size)
        told.at(1, 2)
        told.at(1, None, now=True)
        told.close()
    assert list(tmp_path.iterdir()) == []


def test_it_is_told_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "_TELL_EVERY_S", 1.0)
    clock = ManualClock()
    told = Telling(str(tmp_path), "shop", 0, disk=OsDisk(), clock=clock)
    told.begin(Seqno(12), 7, 1_000)

    def changes() -> int:
        return read_in_flight(str(tmp_path), "shop", [row_of(0, token=7)], disk=OsDisk())[0].changes

    told.at(5, 100)
    assert changes() == 0
    clock.advance(1.0)
    told.at(9, 200)
    assert changes() == 9
    told.at(10, 1_000)
    assert changes() == 9
    told.at(10, None, now=True)
    assert changes() == 10, "the end is always told"
    told.close()
