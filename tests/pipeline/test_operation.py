"""Online, offline, online again; a limit, an error, somebody who waits. Without Spark, else real."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_operated import WAIT_S, Operated, operation_of, options_of, run_in_threads, running, without_java
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, check_equal, counters, items, read_back, write_log
from tranlog.change import Op, RowChange
from tranlog.clock import SystemClock
from tranlog.errors import ConflictError, StateError, TargetUnavailableError
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying import channel
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.driving.apply import ApplyResult
from tranlog.pipeline.driving.operation import OnError, OnlineOrder, Operation
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.limits import SeqnoRanges, UntilHeartbeat, UntilSeqno
from tranlog.pipeline.rules.progress import Counters, Lag
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.rules.troubles import Trouble
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.view import pipeline_status
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)


@pytest.fixture
def workload() -> Workload:
    return Workload(seed=5)


@pytest.fixture
def target(tmp_path: Path, workload: Workload) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", workload.tables)


@pytest.fixture
def options(tmp_path: Path, target: SqliteTarget) -> ApplyOptions:
    return options_of(tmp_path, target)


@pytest.mark.parametrize("immediate", [False, True])
def test_offline_and_online_again(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions, immediate: bool
) -> None:
    """It rests in between: what comes meanwhile is applied afterwards, once."""
    last = write_log(tmp_path / "log", workload, 60)
    with running(operation_of(options)) as operated:
        operated.come_to(State.ONLINE, last)
        operated.operation.offline(immediate=immediate)
        operated.come_to(State.OFFLINE_NORMAL)
        more = write_log(tmp_path / "log", workload, 40)
        assert counters(target.options).transactions == last + 1
        operated.operation.offline()  # it is already: nothing happens
        operated.operation.online(OnlineOrder())
        operated.come_to(State.ONLINE, more)
    assert operated.error is None and operated.result is not None
    check_equal(target, workload)
    assert operated.operation.state().state is State.OFFLINE_NORMAL


def test_a_limit_of_an_order_and_one_of_the_process(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    """At the first it rests, at its own it ends, as `tranlog apply --until` always did."""
    workload.serial = 0.4
    last = write_log(tmp_path / "log", workload, 60)
    operation = operation_of(options)
    with running(operation, online=False) as operated:
        operated.come_to(State.OFFLINE_NORMAL)
        operation.online(OnlineOrder(limit=UntilSeqno(seqno=Seqno(20))))
        operated.come_to(State.OFFLINE_NORMAL, 20)
        assert operation.state().applied_seqno == 20
        operation.online(OnlineOrder(limit=UntilHeartbeat(name="pulse")))
        operated.come_to(State.OFFLINE_NORMAL, 21)
        with LogNames(options) as names:
            assert names.heartbeat_at(operation.state().applied_seqno)
    own = Operated(operation_of(replace_until(options, last)))
    own.join()
    assert own.error is None and own.result is not None and own.result.status.restart_seqno == last
    check_equal(target, workload)


def replace_until(options: ApplyOptions, last: int) -> ApplyOptions:
    return replace(options, until_seqno=last)


class LogNames:
    def __init__(self, options: ApplyOptions) -> None:
        self._reader = LogReader.open(options.log_dir)

    def heartbeat_at(self, seqno: int) -> bool:
        with self._reader.cursor() as cursor:
            cursor.seek(Seqno(seqno))
            assert cursor.next_header() is not None
            return cursor.current().payload().metadata == (("heartbeat", "pulse"),)

    def __enter__(self) -> LogNames:
        return self

    def __exit__(self, *exc: object) -> None:
        self._reader.close()


def test_offline_while_the_target_is_away_leaves_the_process(tmp_path: Path, options: ApplyOptions) -> None:
    """The run ends with an error then, since nothing can be recorded there; `tranlog run` captures on."""
    runs: list[threading.Event] = []

    def run_until_told(options: ApplyOptions, *, stop: threading.Event, **others: Any) -> ApplyResult:
        runs.append(stop)
        stop.wait(WAIT_S)
        raise TargetUnavailableError(where="there", why="the connection is lost")

    def await_runs(number: int) -> None:
        while len(runs) < number:
            time.sleep(0.01)

    operation = Operation(options, run_pipeline=run_until_told, stop_engine=lambda: None)
    with running(operation) as operated:
        for number in (1, 2):
            await_runs(number)
            operation.offline()
            with pytest.raises(StateError, match="the connection is lost"):
                operation.wait(state=State.OFFLINE_NORMAL, applied=None, timeout_s=WAIT_S)
            assert operation.state().state is State.OFFLINE_ERROR
            operation.online(OnlineOrder())
        await_runs(3)
    assert isinstance(operated.error, TargetUnavailableError), "told to end, it does"


def test_online_while_the_target_refuses_leaves_the_process(tmp_path: Path, options: ApplyOptions) -> None:
    """An order that its operator gave is answered by the state; what was online ends the process as ever."""
    going = threading.Event()

    def run_refused(
        options: ApplyOptions, *, stop: threading.Event, report: Callable[[ApplyStatus], None], **others: Any
    ) -> ApplyResult:
        if going.is_set():
            report(status_of())
        raise TargetUnavailableError(where="there", why="the connection is refused")

    operation = Operation(options, run_pipeline=run_refused, stop_engine=lambda: None)
    with running(operation, online=False) as operated:
        for _ in range(2):
            operated.come_to(State.OFFLINE_NORMAL)
            operation.online(OnlineOrder())
            operated.come_to(State.OFFLINE_ERROR)
            pending = operation.state().pending
            assert pending is not None and "the connection is refused" in pending.message
            operation.offline()
        going.set()
        operation.online(OnlineOrder())
        operated.join()
        assert isinstance(operated.error, TargetUnavailableError), "it was online"


def status_of(*troubles: Trouble) -> ApplyStatus:
    """What a run reports that is online."""
    return ApplyStatus(
        pipeline="p",
        holder="me",
        phase="running",
        channels=(),
        restart_seqno=Seqno(7),
        committed_seqno=Seqno(9),
        lag=Lag(seqnos=2, ms=0),
        transactions_per_s=0.0,
        changes_per_s=0.0,
        total=Counters(),
        troubles=troubles,
    )


def test_the_troubles_of_a_run_end_with_it(tmp_path: Path, options: ApplyOptions) -> None:
    """Online again, the state named them until the first report, with the target back since."""
    runs: list[threading.Event] = []

    def run_in_trouble(
        options: ApplyOptions, *, stop: threading.Event, report: Callable[[ApplyStatus], None], **others: Any
    ) -> ApplyResult:
        status = status_of(Trouble(channel=0, reason="no room", since_ms=0))
        if not runs:
            report(status)
        runs.append(stop)
        stop.wait(WAIT_S)
        return ApplyResult(end=TaskEnd.STOPPED, status=status, resubmissions=0, seconds=0.0)

    operation = Operation(options, run_pipeline=run_in_trouble, stop_engine=lambda: None)
    with running(operation) as operated:
        operated.come_to(State.DEGRADED)
        assert [one.reason for one in operation.state().troubles] == ["no room"]
        operation.offline()
        operated.come_to(State.OFFLINE_NORMAL)
        operation.online(OnlineOrder())
        found = operation.state()
        assert (found.troubles, found.applied_seqno) == ((), 7)


@pytest.mark.parametrize("on_error", list(OnError))
def test_an_error_ends_the_process_or_waits_for_its_operator(
    tmp_path: Path, target: SqliteTarget, options: ApplyOptions, on_error: OnError
) -> None:
    table = items("north")
    workload = Workload(seed=0)
    with Log.open(options.log_dir, source_id="test") as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        for change in (
            RowChange(table, Op.INSERT, None, (1, 0, "x")),
            RowChange(table, Op.UPDATE, (9, 0, "x"), (9, 1, "x")),  # there is no such row
            RowChange(table, Op.INSERT, None, (2, 0, "x")),
        ):
            workload.append(log, packer, [change])
        log.commit()
        last = log.last_seqno
    operation = operation_of(options, on_error=on_error)
    operated = Operated(operation)
    if on_error is OnError.END:
        operated.join()
        assert isinstance(operated.error, ConflictError)
        assert operation.state().state is State.OFFLINE_ERROR
        return
    operated.come_to(State.OFFLINE_ERROR)
    found = operation.state()
    assert found.pending is not None
    assert (found.pending.type, found.pending.seqno, found.pending.event_id) == ("ConflictError", 2, "event 2")
    ((applied,),) = target.query("SELECT min(applied_seqno) FROM tranlog_channel")
    assert found.applied_seqno == applied, "and not what a report before the error had"
    owner = "SELECT applied_seqno FROM tranlog_channel JOIN tranlog_shard USING (pipeline, channel)"
    assert target.query(owner) == [(1,)], "others have no position before they have passed something"
    with pytest.raises(StateError, match="conflict at seqno 2"):
        operation.wait(applied=last, timeout_s=WAIT_S)
    operation.online(OnlineOrder(leave_out=SeqnoRanges.parse("2")))
    operated.come_to(State.ONLINE, last)
    assert operation.state().pending is None
    operation.end()
    operated.join()
    assert operated.error is None
    assert sorted(target.query('SELECT id FROM "north.items"')) == [(1,), (2,)]
    assert counters(target.options).omitted == 1


def test_what_makes_no_sense_now_is_refused(tmp_path: Path, workload: Workload, options: ApplyOptions) -> None:
    last = write_log(tmp_path / "log", workload, 5)
    operation = operation_of(options)
    with pytest.raises(StateError, match="still starting"):
        operation.online(OnlineOrder())
    with running(operation) as operated:
        operated.come_to(State.ONLINE, last)
        with pytest.raises(StateError, match="online already"):
            operation.online(OnlineOrder())
        assert not operation.wait(applied=last + 1, timeout_s=0.0)
    with pytest.raises(StateError, match="is ending"):
        operation.online(OnlineOrder())


def test_who_waits_is_seen(tmp_path: Path, workload: Workload, options: ApplyOptions) -> None:
    last = write_log(tmp_path / "log", workload, 5)
    operation = operation_of(options)
    with running(operation) as operated:
        operated.come_to(State.ONLINE, last)
        waiting = threading.Thread(target=operation.wait, kwargs={"applied": last + 1, "timeout_s": WAIT_S})
        waiting.start()
        while not operation.state().waits:
            threading.Event().wait(0.005)
        assert [(one.applied, one.state) for one in operation.state().waits] == [(last + 1, None)]
        write_log(tmp_path / "log", workload, 1)
        waiting.join(WAIT_S)
        assert operation.state().waits == ()


def test_many_wait_across_serial_sections(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    """Asked before anything runs: each is answered when its seqno is applied, beside a limit; what is past, at once."""
    workload.serial = 0.4
    last = write_log(tmp_path / "log", workload, 60)
    operation = operation_of(options)
    answered: dict[int, int] = {}

    def ask(seqno: int) -> None:
        assert operation.wait(applied=seqno, timeout_s=WAIT_S)
        answered[seqno] = operation.state().applied_seqno

    with running(operation, online=False) as operated:
        operated.come_to(State.OFFLINE_NORMAL)
        asking = [threading.Thread(target=ask, args=(seqno,)) for seqno in range(1, 51)]
        for one in asking:
            one.start()
        while len(operation.state().waits) < len(asking):
            threading.Event().wait(0.005)
        for upto in (20, 40, last):
            operation.online(OnlineOrder(limit=UntilSeqno(seqno=Seqno(upto))))
            operated.come_to(State.OFFLINE_NORMAL, upto)
            assert operation.wait(applied=upto - 10, timeout_s=0.0), "it has passed"
            for one in asking[:upto]:
                one.join(WAIT_S)
            assert answered.keys() == set(range(1, min(upto, 50) + 1)), "nobody before his seqno"
    assert all(seqno <= applied for seqno, applied in answered.items())
    assert counters(target.options).sections > 5


def test_a_position_that_was_put_back(tmp_path: Path, workload: Workload, options: ApplyOptions) -> None:
    """What the run before had applied is no answer any more to who waits: `online --from-seqno`."""
    last = write_log(tmp_path / "log", workload, 5)
    may_run = threading.Event()

    def run(options: ApplyOptions, **given: Any) -> ApplyResult:
        assert may_run.wait(WAIT_S)
        return run_in_threads(options, **given)

    operation = Operation(options, run_pipeline=run, stop_engine=lambda: None)
    may_run.set()
    with running(operation) as operated:
        operated.come_to(State.ONLINE, last)
        operation.offline()
        operated.come_to(State.OFFLINE_NORMAL, last)
        may_run.clear()
        operation.online(OnlineOrder(), before=lambda: None)
        assert not operation.wait(applied=last, timeout_s=0.0)
        may_run.set()
        operated.come_to(State.ONLINE, last)


def test_the_end_answers_all_who_wait(tmp_path: Path, workload: Workload, options: ApplyOptions) -> None:
    last = write_log(tmp_path / "log", workload, 5)
    operation = operation_of(options)
    told: list[StateError] = []

    def ask(seqno: int) -> None:
        with pytest.raises(StateError, match="the process ends") as caught:
            operation.wait(applied=seqno, timeout_s=WAIT_S)
        told.append(caught.value)

    with running(operation) as operated:
        operated.come_to(State.ONLINE, last)
        asking = [threading.Thread(target=ask, args=(last + more,)) for more in range(1, 4)]
        for one in asking:
            one.start()
        while len(operation.state().waits) < len(asking):
            threading.Event().wait(0.005)
    for one in asking:
        one.join(WAIT_S)
    assert len(told) == 3 and operation.state().waits == ()


def test_two_services_beside_each_other(tmp_path: Path) -> None:
    """Two pipelines of two logs at one target: neither sees the other's positions, shards or stops."""
    loads = {"north": Workload(seed=1, shards=("north", "east")), "south": Workload(seed=2, shards=("south", "west"))}
    loads["south"].transactions = 1000  # which two sources have no event in common
    target = SqliteTarget(tmp_path / "target.db", [table for load in loads.values() for table in load.tables])
    operations = {}
    for name, load in loads.items():
        write_log(tmp_path / name, load, 80)
        given = replace(options_of(tmp_path, target), pipeline=name, log_dir=str(tmp_path / name))
        operations[name] = operation_of(given)
    with running(operations["north"]) as north, running(operations["south"]) as south:
        north.come_to(State.ONLINE, 80)
        south.come_to(State.ONLINE, 80)
        north.operation.offline()
        north.come_to(State.OFFLINE_NORMAL)
        last = write_log(tmp_path / "south", loads["south"], 20)
        south.come_to(State.ONLINE, last)
        assert north.operation.state().applied_seqno == 80
        more = write_log(tmp_path / "north", loads["north"], 10)
        north.operation.online(OnlineOrder())
        north.come_to(State.ONLINE, more)
    for load in loads.values():
        assert read_back(target.options, load.tables) == load.rows
    assert target.audit() == sum((load.audit for load in loads.values()), Counter())


def test_online_is_when_all_channels_have_been_claimed(
    tmp_path: Path, workload: Workload, options: ApplyOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONLINE came when the job was submitted: Spark may take long to start a task."""
    last = write_log(tmp_path / "log", workload, 5)
    go_on = threading.Event()
    run_task = channel.run_task

    def late(task: ChannelTask) -> TaskResult:
        if task.channel == 1:
            assert go_on.wait(WAIT_S)
        return run_task(task)

    monkeypatch.setattr(channel, "run_task", late)
    with running(operation_of(options)) as operated:
        assert not operated.operation.wait(state=State.ONLINE, timeout_s=1.0)
        assert operated.operation.state().state is State.GOING_ONLINE
        go_on.set()
        operated.come_to(State.ONLINE, last)


def test_counters_of_a_pipeline_that_idles_do_not_stay_behind(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    """What its last target transaction took is told, though no position follows; here it is the only one."""
    last = write_log(tmp_path / "log", workload, 1)
    with running(operation_of(options)) as operated:
        operated.come_to(State.ONLINE, last)
        deadline = time.monotonic() + WAIT_S
        while (found := counters(target.options)).commit_us == 0 or found.apply_us == 0:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        target_ = open_target(target.options)
        done = [Counters.parse(row.stats) for row in target_.positions.read_channels("p")]
        target_.close()
        assert all(one.apply_us for one in done if one.groups), done


def test_a_plan_counts_from_where_it_begins_and_the_sums_stay(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    """`store.N`: of what a channel has read by this plan, no more than lies between its first and its last."""
    write_log(tmp_path / "log", workload, 40)
    for channels in (4, 2, 3):
        own = Operated(operation_of(replace(options, channels=channels, until_seqno="now")))
        own.join()
        assert own.error is None
        last = write_log(tmp_path / "log", workload, 10)
    own = Operated(operation_of(replace(options, until_seqno="now")))
    own.join()
    assert own.result is not None
    assert own.result.status.total.transactions == counters(target.options).transactions == last + 1
    queue = pipeline_status(gather(options.log_dir, options, clock=SystemClock())).queue
    assert queue.eventCount == last + 1
    for one in queue.stores:
        assert one.read == one.accepted + one.discarded == one.hi_seqno - one.lo_seqno + 1, one
