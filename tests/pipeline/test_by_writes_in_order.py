"""docs/decisions/0033, "commit_order": channels that read side by side, and a target that gets the source's order.

The walks are walked through every interleaving of small logs, with restarts: what a channel has seen of the others may
be as old as its last look. Then real channels are, on a real log.
"""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fix_effort import Effort
from fix_pipeline import (
    SqliteTarget,
    Threads,
    Workload,
    check_equal,
    counters,
    positions,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from tranlog.change import RowChange
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.by_writes import NOBODY, SourceOrder, WritesWalk, alone_for
from tranlog.pipeline.rules.channels import (
    IN_A_ROW,
    SERIAL,
    Await,
    CommitOrder,
    Finish,
    PlanOptions,
    Publish,
    ShardBy,
    ShardPlan,
    Take,
)
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.view import pipeline_status
from tranlog.target.options import open_target
from tranlog.write_set import WriteKind, WriteSet

ROWS = WriteSet(changes=1)
NOTHING = WriteSet(changes=0)
STATEMENT = WriteSet(changes=0, kind=WriteKind.STATEMENT)
LOGS = (ROWS, NOTHING, STATEMENT)


# --- the model -------------------------------------------------------------------------------------------


@dataclass
class Place:
    """One channel: its walk, and what it has taken that the target has not."""

    walk: WritesWalk
    taken: list[Seqno] = field(default_factory=list)

    def state(self) -> tuple[object, ...]:
        walk = self.walk
        seen = tuple(sorted(walk._applied.items()))
        return walk.passed, walk.published, walk.owes, walk.run, walk.after, seen, tuple(self.taken)


@dataclass
class Model:
    """A log, its channels, and what the target has, in the order in which it got it. `restarts`: how many are left."""

    order: SourceOrder
    log: Sequence[WriteSet]
    applied: list[Seqno]
    places: list[Place]
    restarts: int

    @classmethod
    def begin(cls, order: SourceOrder, log: Sequence[WriteSet], restarts: int) -> Model:
        model = cls(order, log, [], [], restarts)
        model.places = [Place(model.walk(channel, NO_SEQNO, NO_SEQNO)) for channel in range(order.channels)]
        return model

    def walk(self, channel: int, position: Seqno, low: Seqno) -> WritesWalk:
        after, run = self.order.resume(channel, position, low, lambda seqno: self.log[seqno])
        walk = WritesWalk(channel=channel, channels=self.order.channels, position=position, run=run)
        walk.ordered, walk.after = True, after
        return walk

    def positions(self) -> dict[int, Seqno]:
        return {channel: place.walk.published for channel, place in enumerate(self.places)}

    def copied(self) -> Model:
        model = replace(self, applied=list(self.applied), places=[])
        for place in self.places:
            walk = copy.copy(place.walk)
            walk._applied = dict(walk._applied)
            model.places.append(Place(walk, list(place.taken)))
        return model

    def state(self) -> tuple[object, ...]:
        return (self.restarts, tuple(self.applied), *(place.state() for place in self.places))

    def look(self, place: Place) -> None:
        place.walk.learn({channel: at for channel, at in self.positions().items() if channel != place.walk.channel})

    def commit(self, place: Place) -> None:
        """Apply what was taken, or look whether its turn has come; a look follows each target transaction."""
        walk = place.walk
        if walk.turn() is None:
            self.applied += place.taken
            place.taken.clear()
            walk.published_up_to(walk.passed)
        self.look(place)

    def step(self, place: Place) -> None:
        """Do what the channel does next."""
        walk = place.walk
        seqno = Seqno(walk.passed + 1)
        if seqno == len(self.log):
            self.commit(place)  # a channel that idles publishes where it stands
            return
        assigned = self.order.assign(seqno, self.log[seqno])
        verdict = walk.step(seqno, assigned)
        if isinstance(verdict, Publish):
            self.commit(place)
        elif isinstance(verdict, Await):
            self.look(place)
            if walk.published < walk.passed and not walk.owes:
                self.commit(place)  # so does one that waits
        else:
            assert not isinstance(verdict, Finish)
            if isinstance(verdict, Take):
                place.taken.append(seqno)
            walk.pass_by(seqno, assigned)

    def restart(self, channel: int) -> None:
        position, low = self.places[channel].walk.published, min(self.positions().values())
        self.places[channel] = Place(self.walk(channel, position, low))
        self.look(self.places[channel])

    def next(self) -> Iterator[Model]:
        for channel in range(len(self.places)):
            model = self.copied()
            model.step(model.places[channel])
            yield model
            model = self.copied()
            model.commit(model.places[channel])  # as often as the clock says
            yield model
            if self.restarts:
                model = self.copied()
                model.restarts -= 1
                model.restart(channel)
                yield model

    @property
    def is_whole(self) -> bool:
        return all(at == len(self.log) - 1 for at in self.positions().values())


def walk_all(model: Model) -> int:
    """Walk every interleaving; return how many states there are. What was applied is the log's, as far as it goes."""
    wanted = [Seqno(at) for at, one in enumerate(model.log) if alone_for(one) or one.changes]
    seen = {model.state()}
    waiting = [model]
    while waiting:
        one = waiting.pop()
        assert one.applied == wanted[: len(one.applied)], f"{model.log} came as {one.applied}"
        following = list(one.next())
        if all(other.state() == one.state() for other in following):
            assert one.is_whole and one.applied == wanted, f"{model.log}: nobody goes on, at {one.positions()}"
        for other in following:
            state = other.state()
            if state not in seen:
                seen.add(state)
                waiting.append(other)
    return len(seen)


@pytest.mark.long
@pytest.mark.parametrize("in_a_row", [1, 2])
def test_every_interleaving_keeps_the_sources_order(in_a_row: int, effort: Effort) -> None:
    order = SourceOrder(channels=2, in_a_row=in_a_row)
    states = 0
    for log in itertools.product(LOGS, repeat=effort(3, 3, 4)):
        states += walk_all(Model.begin(order, log, restarts=effort(1, 1, 2)))
    print(f"{in_a_row} in a row: {states} states")


@pytest.mark.long
def test_longer_logs_keep_it_whoever_goes_on_when(effort: Effort) -> None:
    for seed in range(effort(100, 400, 10_000)):
        choose = random.Random(seed)
        log = [choose.choice((ROWS, *LOGS)) for _ in range(choose.randint(4, 16))]
        model = Model.begin(SourceOrder(channels=choose.randint(2, 4), in_a_row=choose.randint(1, 3)), log, restarts=3)
        for _ in range(choose.randint(0, 80)):
            model = choose.choice(list(model.next()))
        for _ in range(40 * len(log)):
            if model.is_whole:
                break
            for place in model.places:
                model.step(place)
        assert model.is_whole, f"seed {seed}: nobody goes on, at {model.positions()}"
        assert model.applied == [Seqno(at) for at, one in enumerate(log) if alone_for(one) or one.changes], f"{seed=}"


def test_an_order_that_is_not_waited_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WritesWalk, "turn", lambda walk: None)
    with pytest.raises(AssertionError, match="came as"):
        walk_all(Model.begin(SourceOrder(channels=2, in_a_row=1), [ROWS, ROWS], restarts=0))


def test_a_group_on_both_sides_of_anothers_is_found() -> None:
    model = Model.begin(SourceOrder(channels=2, in_a_row=1), [ROWS, ROWS, ROWS], restarts=0)
    for place in model.places:
        place.walk.ordered = False  # so that a group stays open over another channel's transaction
    with pytest.raises(AssertionError, match=r"came as|nobody goes on"):
        walk_all(model)


def test_a_restart_that_forgets_what_comes_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = SourceOrder.resume
    monkeypatch.setattr(SourceOrder, "resume", lambda *given: (None, resume(*given)[1]))
    with pytest.raises(AssertionError, match="came as"):
        walk_all(Model.begin(SourceOrder(channels=2, in_a_row=2), [ROWS] * 5, restarts=1))


# --- who applies what ------------------------------------------------------------------------------------


def test_so_many_in_a_row_go_to_one_channel_and_statements_run_alone() -> None:
    order = SourceOrder(channels=3, in_a_row=2)
    assert [order.assign(Seqno(at), ROWS).owner for at in range(8)] == [0, 0, 1, 1, 2, 2, 0, 0]
    assert order.assign(Seqno(3), WriteSet(changes=5000, kind=WriteKind.MANY)).owner == 1, "its values do not count"
    assert order.assign(Seqno(3), NOTHING).owner == NOBODY
    for writes, why in (
        (STATEMENT, "a statement"),
        (WriteSet(changes=1, kind=WriteKind.STEP), "a step of a load"),
        ("critical shard north", "critical shard north"),
        (None, "its header has no write set"),
    ):
        assigned = order.assign(Seqno(3), writes)
        assert (assigned.owner, assigned.why) == (SERIAL, why)


def test_another_order_is_another_plan_and_needs_write_sets() -> None:
    plan = PlanOptions(by=ShardBy.WRITES, commit_order=CommitOrder.SOURCE).plan(3)
    assert plan.in_a_row == IN_A_ROW
    assert ShardPlan.parse(plan.text(), channels=3) == plan
    assert plan.text() != PlanOptions(by=ShardBy.WRITES).plan(3).text()
    with pytest.raises(ConfigError, match=r'commit_order.*needs by = "writes"'):
        PlanOptions(commit_order=CommitOrder.SOURCE).plan(3).check()


def test_an_interval_has_nothing_to_keep_there(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "target.db", [])
    given = ApplyOptions(
        pipeline="p",
        log_dir=str(tmp_path),
        target=target.options,
        channels=2,
        plan=PlanOptions(by=ShardBy.WRITES, commit_order=CommitOrder.SOURCE),
        max_offline_interval_s=1.0,
    )
    with pytest.raises(ConfigError, match="keeps the channels together"):
        given.check()


# --- real channels ---------------------------------------------------------------------------------------


def as_logged(log: Path) -> list[tuple[str, Any, str]]:
    """Return table, key and operation of each row change, in the log's order."""
    found = []
    with LogReader.open(log) as reader:
        for number in range(reader.range().first_seqno, reader.range().last_seqno + 1):
            for change in reader.payload(Seqno(number)).changes:
                assert isinstance(change, RowChange)
                row = change.after or change.before
                assert row is not None
                found.append((change.table.name, row[0], change.op.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_the_target_gets_the_sources_order(tmp_path: Path, channels: int) -> None:
    """Large ones and empty ones among them, and an end in the middle of a row; `audit` has the order."""
    workload = Workload(seed=31, large=0.02, shards=("north", "east"), write_sets=True)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 300)
    plan = ShardPlan(channels=channels, by=ShardBy.WRITES, in_a_row=8)
    for until in (Seqno(130), last):
        taken = take(target.options, plan)
        results = run_threads(tasks_for(target.options, tmp_path / "log", plan, taken, until=until))
        assert [(one.end, one.error) for one in results] == [(TaskEnd.LIMIT, None)] * channels
    assert set(positions(target.options).values()) == {last}
    assert target.query("SELECT tab, id, op FROM audit ORDER BY rowid") == as_logged(tmp_path / "log")
    check_equal(target, workload)
    given = ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target.options, channels=channels)
    status = pipeline_status(gather(given.log_dir, given, clock=SystemClock()))
    assert sum(one.waitedCount for one in status.writes) == counters(target.options).held
    assert (counters(target.options).held > 0) == (channels > 1)
    assert [(one.why, one.eventCount > 0) for one in status.serial] == [("its header has no write set", True)]


def test_a_channel_that_waits_for_its_turn_ends_when_told_to(tmp_path: Path) -> None:
    """Channel 0 does not run, so channel 1 waits; what it took comes at the next start."""
    workload = Workload(seed=32, serial=0.0, shards=("north",), write_sets=True)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 40)
    plan = ShardPlan(channels=2, by=ShardBy.WRITES, in_a_row=8)
    token = take(target.options, plan)
    tasks = tasks_for(target.options, tmp_path / "log", plan, token, until=None)
    alone = Threads(tasks[1:])
    time.sleep(0.5)
    with closing(open_target(target.options)) as opened:
        opened.positions.request_stop(pipeline="p", token=token, stop_at_seqno=NO_SEQNO)
    (result,) = alone.join()
    assert (result.end, result.applied_seqno, result.error) == (TaskEnd.STOPPED, NO_SEQNO, None)
    assert target.query("SELECT count(*) FROM audit") == [(0,)]
    token = take(target.options, plan)
    run_threads(tasks_for(target.options, tmp_path / "log", plan, token, until=last))
    assert target.query("SELECT tab, id, op FROM audit ORDER BY rowid") == as_logged(tmp_path / "log")
    assert counters(target.options).held > 0
