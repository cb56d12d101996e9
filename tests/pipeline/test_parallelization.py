"""Whatever an operator may want of a pipeline, it wants of queues on disk, in memory, and of none.

The driver, the log, the channels and the target are real, and what is in memory goes pickled from one thread to the
other; threads stand in the place of Spark's tasks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fix_effort import few_of
from fix_operated import operation_of, options_of, running, without_java
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, check_equal, counters, items, positions, take, tasks_for
from tranlog.change import HEARTBEAT, Op, RowChange
from tranlog.clock import SystemClock
from tranlog.errors import EngineError, TargetTableError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.log_mark import log_mark
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.driving.limit_search import LimitSearch
from tranlog.pipeline.driving.operation import OnError, OnlineOrder
from tranlog.pipeline.filters.filters import Delay, Exclude, Filter, Rename
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import Parallelization, PlanOptions, ShardPlan
from tranlog.pipeline.rules.limits import (
    Limit,
    SeqnoRanges,
    UntilEvent,
    UntilGtid,
    UntilHeartbeat,
    UntilSeqno,
    UntilTime,
)
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.spark.window import Window, apply_share, split_windows
from tranlog.source.packer import TransactionPacker

pytestmark = pytest.mark.long

SHARDS = ("north", "east", "south", "west")
SMALL = 9_000
"""A window of some seven transactions."""


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)


@pytest.fixture
def target(tmp_path: Path) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", [items(name) for name in SHARDS])


@pytest.fixture(params=list(Parallelization))
def options(tmp_path: Path, target: SqliteTarget, request: pytest.FixtureRequest) -> ApplyOptions:
    return replace(options_of(tmp_path, target), parallelization=request.param, window_bytes=SMALL)


class Writer:
    """A log of one row per transaction, whose id is its seqno; event id and time are the seqno's too."""

    def __init__(self, path: str) -> None:
        self.log = Log.open(path, source_id="test")
        self._packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        self._workload = Workload(seed=0)

    def write(self, upto: int, *, beats: tuple[int, ...] = (), since_ms: int = 0) -> None:
        for seqno in range(int(self.log.last_seqno) + 1, upto + 1):
            self._workload.transactions = seqno - 1 + since_ms
            row = RowChange(items(SHARDS[seqno % 4]), Op.INSERT, None, (seqno, 0, "x"))
            beat = seqno in beats
            self._workload.append(
                self.log, self._packer, [] if beat else [row], ((HEARTBEAT, f"beat {seqno}"),) if beat else ()
            )
        self.log.commit()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.log.close()


def applied(target: SqliteTarget) -> set[int]:
    found = target.audit()
    assert set(found.values()) <= {1}, "applied twice"
    return {row for _, row, _ in found}


@pytest.mark.parametrize("later", few_of([True, False]), ids=["not yet", "in the log"])
@pytest.mark.parametrize(
    "limit",
    few_of(
        [
            UntilSeqno(seqno=Seqno(41)),
            UntilHeartbeat(name="beat 41"),
            UntilGtid(gtid=Gtid(Epoch(1), Seqno(41))),
            UntilTime(tstamp=1_700_000_000_041),
            UntilEvent(event_id="event 41"),
        ],
        2,
    ),
    ids=lambda limit: type(limit).__name__,
)
def test_a_limit_ends_all_channels_at_one_seqno(
    target: SqliteTarget, options: ApplyOptions, limit: Limit, later: bool
) -> None:
    """`online --until-…`, of what is in the log, many windows on, and of what comes when all that is there is done."""
    with Writer(options.log_dir) as writer:
        writer.write(20 if later else 80, beats=(30, 41, 60))
        assert writer.log.epoch == 1
        with running(operation_of(options), online=False) as operated:
            operated.come_to(State.OFFLINE_NORMAL)
            operated.operation.online(OnlineOrder(limit=limit))
            if later:
                operated.come_to(State.ONLINE, 20)
                writer.write(80, beats=(30, 41, 60))
            operated.come_to(State.OFFLINE_NORMAL, 41)
            assert set(positions(target.options).values()) == {41}
            assert applied(target) == set(range(1, 41)) - {30}, "41 is a heartbeat itself"
            operated.operation.online(OnlineOrder())
            operated.come_to(State.ONLINE, 80)
    assert applied(target) == set(range(1, 81)) - {30, 41, 60}


def test_offline_and_what_is_left_out(target: SqliteTarget, options: ApplyOptions) -> None:
    """`offline`, `online --skip-seqno`: never applied, counted, and the positions pass over them."""
    with Writer(options.log_dir) as writer:
        writer.write(30)
        with running(operation_of(options), online=False) as operated:
            operated.come_to(State.OFFLINE_NORMAL)
            operated.operation.online(OnlineOrder(leave_out=SeqnoRanges.parse("7,12-14,45")))
            operated.come_to(State.ONLINE, 30)
            operated.operation.offline()
            operated.come_to(State.OFFLINE_NORMAL)
            writer.write(60)
            operated.operation.online(OnlineOrder())
            operated.come_to(State.ONLINE, 60)
            operated.operation.offline(immediate=True)
            operated.come_to(State.OFFLINE_NORMAL)
    assert applied(target) == set(range(1, 61)) - {7, 12, 13, 14, 45}
    assert counters(target.options).omitted == 5


def test_filters_and_a_delay(target: SqliteTarget, options: ApplyOptions) -> None:
    """A filter that leaves nothing of a transaction leaves positions moving; a delayed one can be taken offline."""
    hour = Delay(delay_s=3600.0)
    with Writer(options.log_dir) as writer:
        writer.write(40)
        filters: tuple[Filter, ...] = (Exclude(tables=("north.*", "east.*")),)
        with running(operation_of(replace(options, filters=filters))) as operated:
            operated.come_to(State.ONLINE, 40)
        assert applied(target) == {seqno for seqno in range(1, 41) if seqno % 4 in (2, 3)}
        assert counters(target.options).filtered == 20
        writer.write(50, since_ms=SystemClock().now_ms() - 1_700_000_000_000)
        with running(operation_of(replace(options, filters=(hour,)))) as operated:
            operated.come_to(State.ONLINE)
            operated.operation.offline()
            operated.come_to(State.OFFLINE_NORMAL)
        assert applied(target) == {seqno for seqno in range(1, 41) if seqno % 4 in (2, 3)}
        with running(operation_of(options)) as operated:
            operated.come_to(State.ONLINE, 50)
    assert applied(target) >= set(range(41, 51))


def test_two_tables_that_become_one_are_noticed(tmp_path: Path, options: ApplyOptions) -> None:
    """Also where they are different channels' and no transaction has both."""
    target = SqliteTarget(tmp_path / "one.db", [items(name) for name in SHARDS])
    rename = (Rename(schema="north", to="east"),)
    given = replace(
        options,
        target=target.options,
        filters=rename,
        plan=PlanOptions(channels={"north": 0, "east": 1}),
        window_bytes=1 << 20,
    )
    with Writer(options.log_dir) as writer:
        writer.write(5)
    with running(operation_of(given, on_error=OnError.OFFLINE)) as operated:
        operated.come_to(State.OFFLINE_ERROR)
        pending = operated.operation.state().pending
        assert pending is not None and pending.type == TargetTableError.__name__, pending


def test_from_one_to_the_other_and_back(tmp_path: Path, options: ApplyOptions) -> None:
    """Positions mean the same: "Changing it needs nothing"."""
    workload = Workload(seed=31)
    target = SqliteTarget(tmp_path / "all.db", workload.tables)
    given = replace(options, target=target.options)
    for how in (*Parallelization, given.parallelization):
        with Log.open(given.log_dir, source_id="test") as log:
            workload.write(log, 40)
            last = log.last_seqno
        with running(operation_of(replace(given, parallelization=how))) as operated:
            operated.come_to(State.ONLINE, last)
    check_equal(target, workload)
    assert counters(target.options).changes == workload.changes


def test_a_limit_is_looked_for_once(tmp_path: Path, target: SqliteTarget) -> None:
    """Window by window, each header is looked at once for a limit that does not come, and not once for each window."""
    options = replace(options_of(tmp_path, target), parallelization=Parallelization.MEMORY, window_bytes=SMALL)
    looked: list[tuple[Seqno, Seqno]] = []
    search = LimitSearch._search

    def counted(self: LimitSearch, watched: object, first: Seqno, last: Seqno, *more: object) -> Seqno | None:
        looked.append((first, last))
        return search(self, watched, first, last, *more)  # type: ignore[arg-type]

    with Writer(options.log_dir) as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LimitSearch, "_search", counted)
        writer.write(60)
        with running(operation_of(options), online=False) as operated:
            operated.come_to(State.OFFLINE_NORMAL)
            operated.operation.online(OnlineOrder(limit=UntilEvent(event_id="none such")))
            operated.come_to(State.ONLINE, 60)
    assert sum(max(0, last - first + 1) for first, last in looked) == 61


def test_a_worker_without_the_log_says_so(tmp_path: Path, target: SqliteTarget) -> None:
    """On a cluster: where a folder of that name holds another log, in our words and not as Spark carries exceptions."""
    for name in ("log", "other"):
        with Writer(str(tmp_path / name)) as writer:
            writer.write(20 if name == "log" else 10)
    with LogReader.open(tmp_path / "other") as reader:
        mark = log_mark(reader)
    plan = ShardPlan(channels=2)
    token = take(target.options, plan)
    tasks = [
        replace(task, log_mark=mark) for task in tasks_for(target.options, tmp_path / "log", plan, token, until=20)
    ]
    window = Window(tasks=tuple(tasks), log_first=Seqno(0), first=Seqno(0), upto=Seqno(20), bytes=SMALL)
    shares = list(split_windows([window]))
    for channel in range(2):
        done = apply_share(window, channel, [one for one in shares if one[0] == channel])
        assert done.end is TaskEnd.FAILED and isinstance(done.error, EngineError)
        assert "is another log than the driver's" in str(done.error)
