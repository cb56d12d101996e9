"""A gap at a pipeline: a load of its tables of which nothing has come, from its place on, on every channel.

Proves: killed before, in and after the gap, by kill -9 of a process with all channels, all other tables have each
change exactly once, and the gap's have the source's rows after their load.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from fix_folder import open_target
from fix_pipeline import BY_SCHEMA, SqliteTarget, Workload, counters, read_back, run_threads, take, tasks_for
from tranlog.change import Change, Op, Options, RowChange, TableMap
from tranlog.clock import SystemClock
from tranlog.errors import TargetTableError
from tranlog.findings import Severity
from tranlog.gaps import GAP, TableGap, gap_of
from tranlog.ids import Seqno
from tranlog.loads import KeyRange, LoadBegin, LoadChunk, LoadEnd, LoadMark, LoadStep, joined, key_text
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.filters.filters import Exclude, Filter, Rename
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules import loading
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.upkeep.checks import examine_target
from tranlog.pipeline.upkeep.verify import verify_tables
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.packer import TransactionPacker
from tranlog.target.database import SqlRows
from tranlog.target.position import SqlPositions
from tranlog.target.target import Target
from tranlog.types import Value
from tranlog.write_item import encode_write_set
from tranlog.write_set import WriteKind


@dataclass
class Story:
    """A log with a gap of `tables`, the seqnos of what happens in it, and the rows that the target must have there."""

    workload: Workload
    tables: tuple[TableMap, ...]
    gap: int
    begun: int
    last: int
    stale: dict[TableMap, object]


def serial(log: Log, workload: Workload, changes: Sequence[Change], metadata: Options) -> int:
    """Append what capture appends for a gap or a step of a load."""
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    workload.transactions += 1
    given = {"event_id": f"event {workload.transactions}", "tstamp": 1_700_000_000_000 + workload.transactions}
    for change in changes:
        assert packer.add(change, **given) is None  # type: ignore[arg-type]
    fragment = packer.finish(**given, metadata=metadata)  # type: ignore[arg-type]
    told = encode_write_set(WriteKind.STEP, len(changes), (), ())
    log.append(msgspec.structs.replace(fragment, shard_id=UNKNOWN_SHARD, tables=None, write_set=told))
    log.commit()
    return log.last_seqno


def write_story(folder: Path, *, gaps: int = 1, load: bool = True, write_sets: bool = False) -> Story:
    """Write a log: changes, gaps of two tables with a change of the third in each, changes, a load, changes."""
    workload = Workload(seed=7, serial=0.2, write_sets=write_sets)
    lost, other = workload.tables[:2], workload.tables[2]
    with Log.open(str(folder / "log"), source_id="test") as log:
        workload.write(log, 40)
        stale: dict[TableMap, object] = {table: dict(workload.rows[table]) for table in lost}
        gap = 0
        for _ in range(gaps):
            missing = [workload.one_change(table) for table in lost for _ in range(3)]
            assert missing
            names = tuple((table.schema, table.table) for table in lost)
            # Rows of its own tables that a transaction has beside count no more than those that are missing.
            changes = [workload.one_change(lost[0]), workload.one_change(other)]
            placed = serial(log, workload, changes, TableGap(tables=names, reason="a reason").metadata())
            gap = gap or placed
            workload.write(log, 20)
        begun = log.last_seqno + 1
        if load:

            def step(step: LoadStep, changes: Sequence[Change] = ()) -> None:
                serial(log, workload, changes, LoadMark(load="9", pipeline="*", step=step).metadata())

            step(LoadBegin(tables=lost, replace=True))
            for table in lost:
                workload.write(log, 10)
                border: str | None = None
                keys = sorted(workload.rows[table])
                for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    upto = key_text((part[-1],)) if part and part[0] == keys[0] else None
                    rows = [workload.rows[table][key] for key in part if key in workload.rows[table]]
                    chunk = KeyRange(after=border, upto=upto)
                    step(
                        LoadChunk(table=(table.schema, table.table), key=("id",), keys=chunk, rows=len(rows)),
                        [RowChange(table, Op.INSERT, None, row) for row in rows],
                    )
                    border = upto
            step(LoadEnd())
            workload.write(log, 20)
        return Story(workload, lost, gap, begun, log.last_seqno, stale)


def check(story: Story, target: SqliteTarget, *, loaded: bool) -> None:
    """Each change of the others exactly once; the gap's tables as they were before it, or as the source has them."""
    rows = read_back(target.options, story.workload.tables)
    lost = {table.name for table in story.tables}
    for table, there in rows.items():
        assert there == (story.stale[table] if table in story.tables and not loaded else story.workload.rows[table])
    done = {one: n for one, n in target.audit().items() if one[0] not in lost}
    assert done == {one: n for one, n in story.workload.audit.items() if one[0] not in lost}


def waiting(target: SqliteTarget) -> dict[str, str]:
    opened = open_target(target.options)
    try:
        return loading.waiting(loading.read_stored(opened.positions.read_loads("p")))
    finally:
        opened.close()


def options_of(target: SqliteTarget, folder: Path) -> ApplyOptions:
    return ApplyOptions(pipeline="p", log_dir=str(folder / "log"), target=target.options)


def apply(target: SqliteTarget, folder: Path, plan: ShardPlan, until: int, **more: object) -> list[TaskResult]:
    token = take(target.options, plan)
    return run_threads(tasks_for(target.options, folder / "log", plan, token, until=until, **more))  # type: ignore[arg-type]


def killed(place: str, gap: int, run: Callable[[], object]) -> None:
    """Run in a process that is killed before the target transaction of the gap, in it, or after it."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return
    try:
        whole, store = Target.apply, SqlPositions.store_loads

        def die() -> NoReturn:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        def dies(self, units, advance):  # type: ignore[no-untyped-def]
            at_gap = units[0].seqno == gap
            if at_gap and place == "before":
                die()
            applied = whole(self, units, advance)
            if at_gap and place == "after":
                die()
            return applied

        def stores(self, pipeline, states):  # type: ignore[no-untyped-def]
            store(self, pipeline, states)
            if place == "in" and any("a reason" in text for _, text in states):
                die()

        Target.apply, SqlPositions.store_loads = dies, stores  # type: ignore[method-assign]
        run()
    finally:
        os._exit(1)


def named(plan: ShardPlan) -> str:
    return f"{plan.by.value}-{plan.channels}"


PLANS = [ShardPlan(channels=channels) for channels in (1, 2, 3, 4)]


@pytest.mark.long
@pytest.mark.parametrize("plan", [*PLANS, ShardPlan(channels=3, by=ShardBy.WRITES)], ids=named)
def test_killed_before_in_and_after_the_gap_nothing_is_lost_or_doubled(tmp_path: Path, plan: ShardPlan) -> None:
    story = write_story(tmp_path, write_sets=plan.by is ShardBy.WRITES)
    target = SqliteTarget(tmp_path / "target.db", story.workload.tables)
    for place in ("before", "in"):
        killed(place, story.gap, lambda: apply(target, tmp_path, plan, story.last))
        assert waiting(target) == {}
        check_stale(story, target)
    killed("after", story.gap, lambda: apply(target, tmp_path, plan, story.last))
    assert list(waiting(target)) == sorted(table.name for table in story.tables)
    check_stale(story, target)
    results = apply(target, tmp_path, plan, story.last)
    assert [(one.end, one.error) for one in results] == [(TaskEnd.LIMIT, None)] * plan.channels
    assert waiting(target) == {}
    check(story, target, loaded=True)


def check_stale(story: Story, target: SqliteTarget) -> None:
    rows = read_back(target.options, story.tables)
    assert rows == {table: story.stale[table] for table in story.tables}


@pytest.mark.long
@pytest.mark.parametrize("plan", [PLANS[0], PLANS[2]], ids=named)
def test_without_a_load_the_tables_stand_still_and_the_others_go_on(tmp_path: Path, plan: ShardPlan) -> None:
    story = write_story(tmp_path, gaps=2, load=False)
    target = SqliteTarget(tmp_path / "target.db", story.workload.tables)
    # Stopped and started on both sides of the gap: what is known of it is read from the target.
    for until in (story.gap - 1, story.gap, story.gap + 3, story.last):
        assert [one.error for one in apply(target, tmp_path, plan, until)] == [None] * plan.channels
    check(story, target, loaded=False)
    assert counters(target.options).filtered == 0, "there is no filter"
    found = waiting(target)
    assert list(found) == sorted(table.name for table in story.tables)
    names = ",".join(sorted(found))
    status = gather(str(tmp_path / "log"), options_of(target, tmp_path), clock=SystemClock())
    assert status.pipeline is not None
    assert status.pipeline.notes == tuple(f"{table} {text}" for table, text in found.items())
    said = f"(a reason), and its changes are passed over: tranlog load --replace --tables {names}"
    assert all(text.endswith(said) for text in found.values())


@pytest.mark.long
def test_a_table_that_filters_leave_out_waits_for_nothing(tmp_path: Path) -> None:
    story = write_story(tmp_path, load=False)
    left_out, kept = story.tables
    target = SqliteTarget(tmp_path / "target.db", story.workload.tables)
    filters: tuple[Filter, ...] = (Exclude(tables=(left_out.name,)),)
    assert [one.error for one in apply(target, tmp_path, PLANS[1], story.last, filters=filters)] == [None, None]
    assert list(waiting(target)) == [kept.name]


def test_a_table_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """With `ddl = "follow"` a later change made it, without the rows that were here; by its name after the filters."""
    story = write_story(tmp_path)
    lost = story.tables[0]
    target = SqliteTarget(tmp_path / "target.db", ())
    target.options = replace(target.options, ddl="follow")
    filters: tuple[Filter, ...] = (Rename(table=lost.name, to=f"{lost.schema}.here"),)
    assert [one.error for one in apply(target, tmp_path, PLANS[0], story.last - 20, filters=filters)] == [None]
    connection = target.connect()
    connection.execute(f'DROP TABLE "{lost.schema}.here"')
    connection.close()
    (result,) = apply(target, tmp_path, PLANS[0], story.last, filters=filters)
    assert isinstance(result.error, TargetTableError) and "it had rows of the source" in result.error.why


@pytest.mark.long
def test_what_waits_for_a_load_may_lose_rows_by_another_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows come again anyhow; by its name after the filters."""
    story = write_story(tmp_path, load=False)
    one, other = story.tables
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        step = LoadBegin(tables=(one,), replace=True)
        last = serial(log, story.workload, (), LoadMark(load="9", pipeline="*", step=step).metadata())
    target = SqliteTarget(tmp_path / "target.db", story.workload.tables)
    begin, told = SqlRows.begin_load, []

    def begins(self, table, seqno, *, replace, beside=()):  # type: ignore[no-untyped-def]
        told.append((table.name, set(beside)))
        begin(self, table, seqno, replace=replace, beside=beside)

    monkeypatch.setattr(SqlRows, "begin_load", begins)
    assert [result.error for result in apply(target, tmp_path, PLANS[0], last)] == [None]
    assert told == [(one.name, {(one.schema, one.table), (other.schema, other.table)})]
    assert list(waiting(target)) == [other.name]


@pytest.mark.long
def test_verify_and_doctor_say_which_tables_wait(tmp_path: Path) -> None:
    story = write_story(tmp_path, load=False)
    target = SqliteTarget(tmp_path / "target.db", story.workload.tables)
    assert [one.error for one in apply(target, tmp_path, PLANS[0], story.last)] == [None]
    found = waiting(target)
    checks = examine_target(options_of(target, tmp_path), SystemClock(), None, source_kind="mariadb")
    loads = [one for one in checks if one.subject == "loads"]
    assert [(one.severity, f"{one.text}: {one.remedy}") for one in loads] == [
        (Severity.WARNING, f"{table} {text}") for table, text in found.items()
    ]
    with closing(open_target(target.options)) as opened:
        verdicts = list(
            verify_tables(
                Source(story.workload),
                opened.rows,
                tables=story.workload.tables,
                differences=0,
                report=lambda *_: None,
                waiting=found,
            )
        )
    assert {one.table: one.waits for one in verdicts if one.waits} == found
    assert {one.table for one in verdicts if not one.equal} == {table.name for table in story.tables}


class Source:
    """The source's tables, as a TableReader."""

    def __init__(self, workload: Workload) -> None:
        self._rows = workload.rows

    def tables(self) -> list[TableMap]:
        return list(self._rows)

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        return iter(self._rows[table].values())

    def estimate(self, table: TableMap) -> int:
        return 0

    def beside(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def test_a_gap_takes_the_tables_that_foreign_keys_join_either_way() -> None:
    """Child, parent, and another child of that parent: a change of any would miss a row of another."""
    refers = [("child", "parent"), ("other", "parent"), ("parent", "root"), ("x", "y"), ("self", "self")]
    assert joined(["child"], refers) == {"child", "parent", "other", "root"}
    assert joined(["self", "y"], refers) == {"self", "x", "y"}
    assert joined([], refers) == set()


def test_the_decision_on_a_gap() -> None:
    gap = TableGap(tables=(("s", "t"),), reason="why")
    assert gap_of((("other", ""), *gap.metadata())) == gap
    assert gap_of(()) is None and GAP == "gap"
    partly = loading.TableLoad(schema="s", table="t", load="1", key=("id",), upto=key_text((5,)))
    done = loading.TableLoad(schema="s", table="u", load="1", done=True)
    other = msgspec.structs.replace(done, table="v")
    loads = {("s", "t"): partly, ("s", "u"): done, ("s", "v"): other}
    after = loading.after_gap(loads, gap, {("s", "t"), ("s", "u")}, Seqno(8))
    assert loading.loading(after).keys() == {("s", "t"), ("s", "u")}
    assert after["s", "v"] == other
    found = loading.waiting(after)
    assert found["s.u"].startswith("waits for a load since the gap of seqno 8 (foreign keys join it to s.t: why), and")
    assert found["s.t"].endswith(": tranlog load --replace --tables s.t,s.u")
    assert loading.read_stored(dict(loading.stored({}, after))) == after
    # A chunk of the load that was under way counts no more; that of one which begins after the gap does.
    table = Workload(seed=1).tables[0]
    table = msgspec.structs.replace(table, schema="s", table="t")
    chunk = LoadChunk(table=("s", "t"), key=("id",), keys=KeyRange(), rows=0)
    assert loading.step(after, LoadMark(load="1", pipeline="*", step=chunk), "p")[1] == loading.NotForUs()
    begun, _ = loading.step(after, LoadMark(load="2", pipeline="*", step=LoadBegin(tables=(table,), replace=True)), "p")
    assert list(loading.waiting(begun)) == ["s.u"]
    whole, verdict = loading.step(begun, LoadMark(load="2", pipeline="*", step=chunk), "p")
    assert isinstance(verdict, loading.LoadMoved) and loading.loading(whole).keys() == {("s", "u")}
    assert (whole["s", "t"].gap, whole["s", "t"].why) == (None, "")
    # Given up, its gap is told again; the load counts no more.
    end = LoadMark(load="2", pipeline="*", step=LoadEnd(given_up=(("s.t", "no\nrows"), ("s.u", "not of it"))))
    ended, verdict = loading.step(begun, end, "p")
    assert isinstance(verdict, loading.LoadMoved) and ended["s", "u"] == begun["s", "u"]
    assert loading.waiting(ended)["s.t"] == (
        "waits for a load since the gap of seqno 8 (why), its load 2 was given up (no rows), and its changes are "
        "passed over: tranlog load --replace --tables s.t,s.u"
    )
    assert loading.step(whole, end, "p") == (whole, loading.NotForUs())
    assert list(
        loading.waiting(
            loading.step(ended, LoadMark(load="3", pipeline="*", step=LoadBegin(tables=(table,), replace=True)), "p")[0]
        )
    ) == ["s.u"]


def test_tables_that_a_load_has_not_loaded_wait_for_another() -> None:
    tables = Workload(seed=1).tables[:3]
    _, two, three = [".".join((table.schema, table.table)) for table in tables]
    loads: loading.Loads = {}
    for step in (
        LoadBegin(tables=tables, replace=True),
        LoadChunk(table=(tables[0].schema, tables[0].table), key=("id",), keys=KeyRange(), rows=0),
        LoadChunk(table=(tables[1].schema, tables[1].table), key=("id",), keys=KeyRange(upto=key_text((5,))), rows=1),
    ):
        loads, _ = loading.step(loads, LoadMark(load="7", pipeline="*", step=step), "p")
        assert loading.waiting(loads) == {}
    loads, _ = loading.step(loads, LoadMark(load="7", pipeline="*", step=LoadEnd(given_up=((two, "why"),))), "p")
    assert loading.read_stored(dict(loading.stored({}, loads))) == loads
    found = loading.waiting(loads)
    assert sorted(found) == sorted([two, three])
    again = f"tranlog load --replace --tables {','.join(sorted([two, three]))}"
    assert found[two] == (
        "is not loaded to its end: its load 7 was given up (why), and changes of rows that are not loaded are passed "
        f"over: {again}"
    )
    assert "(it ended without all of its rows)" in found[three]
    assert loading.loading(loads)[tables[1].schema, tables[1].table].upto == key_text((5,))
