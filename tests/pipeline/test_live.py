"""Verification at a position: what stands in the log, who judges it, and what is said where nobody does.

Proves: a verdict is on the rows of one position, however much is written behind it; filters, loads, kills and other
pipelines are "not judged", never equal.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import apsw
import msgspec
import pytest

from fix_pipeline import positions, run_threads, take, tasks_for
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, give_order
from tranlog.capture.verify_requests import (
    VerifyRequest,
    read_verify_progress,
    remove_verify_request,
    write_verify_request,
)
from tranlog.capture.verifying import Verifying, _Reading
from tranlog.change import TableMap
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError, TargetPositionError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.applying.live import VerdictDetail, _Judging
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.filters.comparison import SplitSum, TableSum, summed
from tranlog.pipeline.filters.filter_text import filters_hash, filters_text, parse_filters
from tranlog.pipeline.filters.filters import (
    Delay,
    DropColumns,
    EachTransaction,
    Exclude,
    Filter,
    MaskBy,
    MaskColumns,
    Rename,
)
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.row_bytes import encode_row
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.position import SqlPositions
from tranlog.target.target import DIFFERS, EQUAL, NOT_JUDGED, OPEN, VerdictRow
from tranlog.verification import VerifyBegin, VerifyMark, VerifySum, verify_mark_of

ONE, TWO = ShardPlan(channels=1), ShardPlan(channels=2)
WRITES = ShardPlan(channels=2, by=ShardBy.WRITES)


class Job:
    """A SQLite source with two tables, its log, and a SQLite target that has the rows by a load."""

    def __init__(self, folder: Path, plan: ShardPlan = ONE) -> None:
        self.plan = plan
        self.source = str(folder / "source.db")
        with apsw.Connection(self.source) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, n, note)")
            db.execute("CREATE TABLE line(a, b)")
            db.executemany("INSERT INTO item VALUES(?,0,'old')", [(number,) for number in range(200)])
            db.executemany("INSERT INTO line VALUES(?,?)", [(1, 2), (1, 2), (None, "x")])
        install(self.source)
        self.db = connect(self.source)
        self.log = str(folder / "log")
        self.target = TargetOptions(kind="sqlite", path=str(folder / "target.db"))
        self.names = ("main.item", "main.line")
        target = open_target(self.target)
        target.positions.ensure_tables()
        for table in SqliteTables(self.source).tables():
            target.rows.create_table(table)
        target.close()
        Log.open(self.log, source_id="shop").close()
        ask(self.log, LoadRequest(load="1", asked_at=0))
        self.capture()
        assert self.apply() == []

    def capture(self) -> None:
        source = SqliteSource(SqliteSourceOptions(path=self.source, source_id="shop"))
        with contextlib.closing(source), Log.open(self.log, source_id="shop") as log:
            Capture(source, log, summing=summed).catch_up()

    def ask(
        self, verify: str, filters: Sequence[Filter] = (), *, pipeline: str = "p", **more: dict[str, tuple[int, ...]]
    ) -> None:
        write_verify_request(
            self.log,
            VerifyRequest(
                verify=verify,
                pipeline=pipeline,
                tables=self.names,
                filters=filters_text(filters),
                filters_hash=filters_hash(filters),
                **more,
            ),
        )
        self.capture()

    def apply(self, last: int | None = None, filters: Sequence[Filter] = ()) -> list[object]:
        with Log.open_for_upkeep(self.log) as log:
            last = log.last_seqno if last is None else last
        token = take(self.target, self.plan)
        tasks = tasks_for(self.target, Path(self.log), self.plan, token, until=last)
        tasks = [replace(task, options=replace(task.options, filters=tuple(filters))) for task in tasks]
        return [result.error for result in run_threads(tasks) if result.end is not TaskEnd.LIMIT]

    def verdicts(self) -> dict[str, tuple[str, VerdictDetail, VerdictRow]]:
        with contextlib.closing(open_target(self.target)) as target:
            rows = target.positions.read_verdicts("p")
        return {row.table: (row.verdict, msgspec.json.decode(row.detail, type=VerdictDetail), row) for row in rows}

    def at_target(self, sql: str) -> None:
        with contextlib.closing(apsw.Connection(self.target.path)) as db:
            db.execute(sql)

    def marks(self) -> list[tuple[Seqno, VerifyMark]]:
        found = []
        with LogReader.open(self.log) as log, log.cursor() as cursor:
            while (header := cursor.next_header()) is not None:
                *_, raw = cursor.current().payloads()
                mark = verify_mark_of(decode(raw).metadata)
                if mark is not None:
                    found.append((header.seqno, mark))
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.db.close()


@pytest.mark.long
@pytest.mark.parametrize("plan", [ONE, TWO, WRITES], ids=["one channel", "two", "by write sets"])
def test_what_is_written_behind_the_snapshot_does_not_count(
    tmp_path: Path, plan: ShardPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log goes on before the pipeline gets there, and the target before its sums are computed."""
    job = Job(tmp_path, plan)
    job.db.execute("UPDATE item SET n = 1 WHERE id < 50")
    job.ask("1")
    job.db.execute("UPDATE item SET n = 2 WHERE id > 100")
    job.db.execute("DELETE FROM line")
    job.capture()
    job.db.close()
    (begin,) = [seqno for seqno, mark in job.marks() if isinstance(mark.step, VerifyBegin)]
    with Log.open_for_upkeep(job.log) as log:
        last = log.last_seqno
    real = _Judging._sum

    def late(judging: _Judging, table: TableMap) -> SplitSum | str:
        while max(positions(job.target).values()) < last:
            SystemClock().sleep(0.01)
        return real(judging, table)

    monkeypatch.setattr(_Judging, "_sum", late)
    assert job.apply() == []
    found = job.verdicts()
    assert {name: verdict for name, (verdict, _, _) in found.items()} == dict.fromkeys(job.names, EQUAL)
    assert {(row.seqno, row.verified_through) for _, _, row in found.values()} == {(begin, begin)}
    assert found["main.line"][1].source_rows == found["main.line"][1].target_rows == 3
    progress = read_verify_progress(job.log, "1")
    assert progress is not None and progress.done and progress.seqno == begin


@pytest.mark.long
def test_rows_that_differ_are_named_with_both_values(job: Job) -> None:
    job.ask("1")
    assert job.apply() == []
    (through,) = {row.verified_through for _, _, row in job.verdicts().values()}
    job.at_target("UPDATE item SET n = 7 WHERE id = 3; DELETE FROM item WHERE id = 4; INSERT INTO line VALUES(9, 9)")
    job.ask("2")
    assert job.apply() == []
    found = job.verdicts()
    assert {name: one[0] for name, one in found.items()} == dict.fromkeys(job.names, DIFFERS)
    assert (found["main.item"][1].source_rows, found["main.item"][1].target_rows) == (200, 199)
    assert {one[2].verified_through for one in found.values()} == {through}
    job.ask("3", buckets={name: one[1].buckets for name, one in found.items()})
    job.db.execute("UPDATE item SET note = 'new'")
    job.capture()
    assert job.apply(last=job.marks()[-1][0]) == []
    found = job.verdicts()
    assert dict(found["main.item"][1].differences) == {
        "id=3": "n: 0 at the source, 7 at the target",
        "id=4": "missing at the target",
    }
    assert dict(found["main.line"][1].differences) == {"a=9, b=9": "only at the target"}


@pytest.mark.long
def test_a_pipeline_with_other_filters_judges_nothing(job: Job) -> None:
    job.ask("1", [Exclude(tables=("main.other",))])
    assert job.apply() == []
    for verdict, detail, row in job.verdicts().values():
        assert (verdict, row.verified_through) == (NOT_JUDGED, NO_SEQNO)
        assert "other filters" in detail.why


@pytest.mark.long
def test_a_verification_for_another_pipeline_is_passed_over(job: Job) -> None:
    job.ask("1", pipeline="other")
    assert job.apply() == []
    assert job.verdicts() == {}


@pytest.mark.long
def test_the_source_s_sum_is_of_rows_as_they_leave_the_filters(tmp_path: Path, job: Job) -> None:
    filters: list[Filter] = [Rename(table="main.item", to="goods"), DropColumns(table="main.goods", columns=("note",))]
    job.target = replace(job.target, path=str(tmp_path / "other.db"))
    with contextlib.closing(open_target(job.target)) as target:
        target.positions.ensure_tables()
    job.at_target("CREATE TABLE goods(id INTEGER PRIMARY KEY, n); CREATE TABLE line(a, b)")
    job.ask("1", filters)
    assert job.apply(filters=filters) == []
    assert {name: one[0] for name, one in job.verdicts().items()} == dict.fromkeys(job.names, EQUAL)
    job.at_target("UPDATE goods SET n = 5 WHERE id = 5")
    job.ask("2", filters)
    assert job.apply(filters=filters) == []
    assert {name: one[0] for name, one in job.verdicts().items()} == {"main.item": DIFFERS, "main.line": EQUAL}


@pytest.mark.long
def test_a_table_that_is_being_loaded_is_not_judged(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(job.log, LoadRequest(load="2", pipeline="p", tables=("main.item",), replace=True, asked_at=0))
    give_order(job.log, "2", paused=True)
    job.ask("1")
    assert job.apply() == []
    found = job.verdicts()
    assert (found["main.item"][0], found["main.item"][1].why) == (NOT_JUDGED, "it is being loaded")
    assert found["main.line"][0] == EQUAL
    give_order(job.log, "2", given_up=True)
    job.ask("2")
    assert job.apply() == []
    verdict, detail, _ = job.verdicts()["main.item"]
    assert verdict == NOT_JUDGED and detail.why.endswith(": tranlog load --replace --tables main.item")


@pytest.mark.long
def test_who_ends_before_he_has_judged_leaves_no_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill between the snapshot and the verdict: the next task says that nothing is judged."""
    job.ask("1")
    seqno = job.marks()[0][0]
    with monkeypatch.context() as killed:
        killed.setattr(_Judging, "start", lambda judging: None)
        assert job.apply(last=seqno) == []
    opened = [row for _, _, row in job.verdicts().values()]
    assert {row.verdict for row in opened} == {OPEN}
    assert job.apply() == []
    for verdict, detail, row in job.verdicts().values():
        assert (verdict, row.verified_through) == (NOT_JUDGED, NO_SEQNO)
        assert "started again" in detail.why
    with contextlib.closing(open_target(job.target)) as target:
        for row in opened:  # the thread of the task that was replaced comes to its end
            target.positions.judge("p", msgspec.structs.replace(row, verdict=EQUAL))
    assert {one[0] for one in job.verdicts().values()} == {NOT_JUDGED}


HANGS = """
import pickle, sys, threading
from tranlog.pipeline.applying.channel import run_task
from tranlog.pipeline.applying.live import _Judging
_Judging._sum = lambda judging, table: threading.Event().wait()
run_task(pickle.load(sys.stdin.buffer))
"""
"""A channel whose snapshot is never read to its end."""


@pytest.mark.long
def test_a_killed_channel_leaves_no_verdict(job: Job) -> None:
    job.ask("1")
    token = take(job.target, ONE)
    (task,) = tasks_for(job.target, Path(job.log), ONE, token, until=None)
    with subprocess.Popen([sys.executable, "-c", HANGS], stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(task))
            process.stdin.close()
            while not job.verdicts():
                assert process.poll() is None
                SystemClock().sleep(0.05)
        finally:
            process.kill()
    assert {one[0] for one in job.verdicts().values()} == {OPEN}
    assert job.apply() == []
    assert {one[0] for one in job.verdicts().values()} == {NOT_JUDGED}
    job.ask("2")
    assert job.apply() == []
    assert {one[0] for one in job.verdicts().values()} == {EQUAL}


@pytest.mark.long
def test_a_position_that_was_not_stored_is_verified_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill comes before the target transaction: the snapshot is opened anew, at the same place."""
    job.ask("1")

    def dies(positions: SqlPositions, pipeline: str, rows: Sequence[VerdictRow]) -> None:
        raise TargetPositionError(where="here", pipeline=pipeline, why="killed")

    with monkeypatch.context() as killed:
        killed.setattr(SqlPositions, "begin_verdicts", dies)
        assert len(job.apply()) == 1
    assert job.verdicts() == {}
    assert job.apply() == []
    assert {one[0] for one in job.verdicts().values()} == {EQUAL}


@pytest.mark.long
def test_a_capture_that_ends_before_the_sums_begins_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(_Reading, "start", lambda reading: None)
        killed.setattr(Verifying, "goes_on", lambda verifying: verifying.turn() or verifying.waits)
        job.ask("1")
    assert [type(mark.step) for _, mark in job.marks()] == [VerifyBegin]
    assert job.apply() == []
    assert {one[0] for one in job.verdicts().values()} == {NOT_JUDGED}, "the pipeline stopped"
    job.db.execute("UPDATE item SET n = 3")
    job.capture()
    assert [type(mark.step) for _, mark in job.marks()] == [VerifyBegin, VerifyBegin, VerifySum, VerifySum]
    assert job.apply() == []
    assert {one[0] for one in job.verdicts().values()} == {EQUAL}


@pytest.mark.long
def test_a_table_that_is_not_there_is_not_judged(job: Job) -> None:
    job.names = ("main.item", "main.nothing")
    job.at_target("DROP TABLE item")
    job.ask("1")
    progress = read_verify_progress(job.log, "1")
    assert progress is not None and [name for name, _ in progress.missing] == ["main.nothing"]
    assert job.apply() == []
    ((verdict, detail, _),) = job.verdicts().values()
    assert verdict == NOT_JUDGED and "at the target" in detail.why and "no such table" in detail.why


@pytest.mark.long
def test_a_table_without_rows_that_is_not_there_yet_is_equal(job: Job) -> None:
    job.db.execute("DELETE FROM item")
    job.capture()
    assert job.apply() == []
    job.at_target("DROP TABLE item")
    job.ask("1")
    assert job.apply() == []
    verdicts = job.verdicts()
    assert {verdict for verdict, *_ in verdicts.values()} == {EQUAL}
    assert "is not at the target yet" in verdicts["main.item"][1].notes[0]


@pytest.mark.long
def test_who_waits_no_more_is_not_read_for(job: Job) -> None:
    job.ask("1")
    remove_verify_request(job.log, "1")
    assert os.listdir(os.path.join(job.log, "verify")) == []
    job.capture()
    assert len(job.marks()) == 3


def test_filters_come_back_from_their_text() -> None:
    filters: list[Filter] = [
        Exclude(tables=("a.*",)),
        MaskColumns(table="a.b", columns=("c",), by=MaskBy.HASH, salt="secret"),
        Rename(table="a.b", to="d"),
    ]
    assert parse_filters(filters_text([*filters, Delay(delay_s=3.0)])) == filters
    assert filters_hash(filters) == filters_hash([*filters, Delay(delay_s=3.0)])
    other = MaskColumns(table="a.b", columns=("c",), by=MaskBy.HASH, salt="other")
    assert filters_hash(filters) != filters_hash([filters[0], other, filters[2]])
    for wrong in ("{", '[["none", {}]]', filters_text([EachTransaction(function="a:b")])):
        with pytest.raises(ConfigError):
            parse_filters(wrong)


def test_a_sum_comes_back_from_its_bytes() -> None:
    table = TableMap(schema="a", table="b", columns=())
    found = TableSum(table)
    for number in range(100):
        found.add([encode_row((number,))])
    again = TableSum.unpack(table, found.packed())
    assert (again.rows, again.checksum(), again.differing(found)) == (100, found.checksum(), [])
    with pytest.raises(ValueError, match="cut off"):
        TableSum.unpack(table, found.packed()[:-1])
    with pytest.raises(ValueError, match="no bucket"):
        TableSum.unpack(table, b"\xff" * 34)
