"""Loads from a SQLite source through a real log to a real target, with writers between all steps and kills anywhere.

Proves: chunks stand in the log where they were read, a kill of anything is gone on from, rows that
were there before capture end no pipeline.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from fix_pipeline import run_threads, take, tasks_for
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, give_order, read_requests
from tranlog.change import Fragment, TableMap
from tranlog.errors import ConfigError, TargetTableError
from tranlog.ids import Seqno
from tranlog.loads import LoadChunk, mark_of
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.filters.filters import Exclude, Filter
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.loading import read_stored, waiting
from tranlog.pipeline.rules.progress import ChannelStats
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect, install
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.target.options import TargetOptions, open_target

ONE, TWO, WRITES = ShardPlan(channels=1), ShardPlan(channels=2), ShardPlan(channels=3, by=ShardBy.WRITES)


class Job:
    """A database with rows that no outbox has, a log, and a target."""

    def __init__(self, folder: Path, rows: int = 400) -> None:
        self.folder = folder
        self.source = str(folder / "source.db")
        with apsw.Connection(self.source) as db:
            db.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY, n, note)")
            db.execute("CREATE TABLE child(name TEXT PRIMARY KEY, parent REFERENCES parent(id))")
            db.execute("CREATE TABLE keyless(a, b)")
            db.executemany("INSERT INTO parent VALUES(?,0,'old')", [(2 * number,) for number in range(rows)])
            db.executemany("INSERT INTO child VALUES(?,?)", [(f"c{number}", 2 * number) for number in range(rows // 2)])
            db.executemany("INSERT INTO keyless VALUES(?,?)", [(1, 2), (1, 2), (None, "x")])
        install(self.source)
        self.db = connect(self.source)
        self.log = str(folder / "log")
        self.target = TargetOptions(kind="sqlite", path=str(folder / "target.db"))
        self.tables: list[TableMap] = SqliteTables(self.source).tables()
        target = open_target(self.target)
        target.positions.ensure_tables()
        for table in self.tables:
            target.rows.create_table(table)
        target.close()

    def write(self, choose: random.Random) -> None:
        """Commit one transaction that changes, inserts, deletes or moves rows anywhere in the key's order."""
        db, key = self.db, choose.randrange(800)
        match choose.randrange(5):
            case 0:
                db.execute("INSERT OR IGNORE INTO parent VALUES(?,1,'new')", (key,))
            case 1:
                db.execute("UPDATE parent SET n = n + 1 WHERE id BETWEEN ? AND ?", (key, key + 20))
            case 2:
                db.execute("DELETE FROM child WHERE parent = ?", (key,))
                db.execute("DELETE FROM parent WHERE id = ?", (key,))
            case 3:  # over the border, in either direction
                db.execute("UPDATE OR IGNORE parent SET id = ? WHERE id = ? + 1", (choose.randrange(800), key))
            case _:
                db.execute("UPDATE child SET name = name || 'x' WHERE name = ?", (f"c{key // 4}",))

    def ask(self, load: str = "1", *, pipeline: str = "*", replace: bool = False, tables: tuple[str, ...] = ()) -> None:
        ask(self.log, LoadRequest(load=load, pipeline=pipeline, tables=tables, replace=replace, asked_at=0))

    def waiting(self) -> dict[str, str]:
        with closing(open_target(self.target)) as target:
            return waiting(read_stored(target.positions.read_loads("p")))

    def apply(
        self, plan: ShardPlan = ONE, pipeline: str = "p", last: int | None = None, filters: tuple[Filter, ...] = ()
    ) -> list[object]:
        with Log.open_for_upkeep(self.log) as log:
            last = log.last_seqno if last is None else last
        token = take(self.target, plan, pipeline=pipeline)
        tasks = tasks_for(self.target, Path(self.log), plan, token, until=last, pipeline=pipeline, filters=filters)
        results = run_threads(tasks)
        return [result.error for result in results if result.end is not TaskEnd.LIMIT]

    def check(self) -> None:
        reader, target = SqliteTables(self.source), open_target(self.target)
        try:
            for table in self.tables:
                assert sorted(map(repr, reader.rows(table))) == sorted(map(repr, target.rows.read(table))), table.name
        finally:
            reader.close()
            target.close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr("tranlog.capture.loading._ROWS_FIRST", 100)
    monkeypatch.setattr("tranlog.capture.loading._ROWS_MOST", 150)
    job = Job(tmp_path)
    yield job
    job.db.close()


class KilledError(Exception):
    """In the place of a kill: what was not synced is lost as by a new process."""


def run_capture(job: Job, choose: random.Random, *, dies_after: int | None = None) -> bool:
    """Capture until the load is at its end, with a transaction between any two steps; False where it died before."""
    source = SqliteSource(SqliteSourceOptions(path=job.source, source_id="shop"))
    steps = 0
    with Log.open(job.log, source_id="shop") as log:
        capture = Capture(source, log)
        real_commit, real_append = log.commit, log.append

        def act(call):  # type: ignore[no-untyped-def]
            def acting(*args, **more):  # type: ignore[no-untyped-def]
                nonlocal steps
                steps += 1
                if dies_after is not None and steps > dies_after:
                    raise KilledError
                job.write(choose)
                return call(*args, **more)

            return acting

        log.commit, log.append = act(real_commit), act(real_append)  # type: ignore[method-assign]
        try:
            capture.catch_up()
        except KilledError:
            return False
        finally:
            log.commit, log.append = real_commit, real_append  # type: ignore[method-assign]
            source.close()
    return not read_requests(job.log)


@pytest.mark.long
@pytest.mark.parametrize("plan", [ONE, TWO, WRITES], ids=["one channel", "two", "write sets"])
def test_rows_from_before_capture_come_while_writers_go_on(job: Job, plan: ShardPlan) -> None:
    Log.open(job.log, source_id="shop").close()
    with connect(job.source) as db:  # so that a chunk has several fragments
        db.execute("UPDATE parent SET note = ? WHERE id = 300", ("x" * 1_100_000,))
    job.ask()
    choose = random.Random(7)
    while not run_capture(job, choose):
        pass
    catch_up(job)
    assert job.apply(plan) == []
    job.check()
    if plan is WRITES:
        target = open_target(job.target)
        reasons = ChannelStats.parse(target.positions.read_channels("p")[0].stats).reasons
        target.close()
        with LogReader.open(job.log) as reader:
            steps = [at for at in range(reader.range().last_seqno + 1) if mark_of(reader.payload(Seqno(at)).metadata)]
        assert reasons["a step of a load"] == len(steps) > 5, "none of them begins a plan"


def catch_up(job: Job) -> None:
    source = SqliteSource(SqliteSourceOptions(path=job.source, source_id="shop"))
    with Log.open(job.log, source_id="shop") as log:
        Capture(source, log).catch_up()
    source.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_load_is_gone_on_with_after_a_kill_anywhere(job: Job, seed: int) -> None:
    """Capture dies after every number of steps, and the pipeline stops at any seqno, again and again."""
    Log.open(job.log, source_id="shop").close()
    job.ask()
    choose, plan = random.Random(seed), (ONE, TWO)[seed % 2]
    dies_after = 0
    while not run_capture(job, choose, dies_after=dies_after):
        dies_after += choose.randrange(3)
        if choose.random() < 0.3:
            assert job.apply(plan) == []
    catch_up(job)
    assert job.apply(plan) == []
    job.check()


@pytest.mark.long
def test_large_rows_are_not_held_together(job: Job) -> None:
    """A chunk of 80 MB, of rows of a megabyte, takes no more than what a transaction takes before it spills."""
    Log.open(job.log, source_id="shop").close()
    with connect(job.source) as db:
        db.execute("UPDATE parent SET note = zeroblob(1000000) WHERE id < 160")
    catch_up(job)
    job.ask(tables=("main.parent",))
    tracemalloc.start()
    try:
        catch_up(job)
        assert tracemalloc.get_traced_memory()[1] < 96 << 20
    finally:
        tracemalloc.stop()
    assert sum(chunk.rows for chunk in chunks_of(job)) == 400


def test_one_table_again_at_one_target(job: Job) -> None:
    """The pipeline's rows are replaced; another pipeline passes the load over."""
    Log.open(job.log, source_id="shop").close()
    job.ask()
    catch_up(job)
    assert job.apply() == []
    target = apsw.Connection(job.target.path)
    target.execute("DELETE FROM child WHERE rowid % 3 = 0")
    target.close()
    job.ask("2", pipeline="p", tables=("main.child",), replace=True)
    choose = random.Random(1)
    while not run_capture(job, choose):
        pass
    catch_up(job)
    assert job.apply() == []
    job.check()


def test_a_load_for_another_pipeline_is_passed_over(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask(pipeline="other")
    catch_up(job)
    assert job.apply() == []
    target = open_target(job.target)
    assert [row for table in job.tables for row in target.rows.read(table)] == []
    target.close()


@pytest.mark.long
def test_a_target_with_rows_of_its_own_is_not_doubled(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask()
    catch_up(job)
    assert job.apply(pipeline="first") == []
    (error,) = job.apply(pipeline="second")
    assert isinstance(error, TargetTableError) and "has rows already" in error.why
    job.check()


def test_two_loads_of_one_table_are_refused(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask(tables=("main.child",))
    with pytest.raises(ConfigError, match=r"main\.child"):
        job.ask("2", tables=("main.child", "main.parent"))
    job.ask("2", tables=("main.parent",))


def test_a_table_that_is_not_captured_is_named(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask(tables=("main.nothing", "main.child"))
    catch_up(job)
    assert "main.nothing" in caplog.text
    assert read_requests(job.log) == []


def chunks_of(job: Job) -> list[LoadChunk]:
    """Return the chunks that are in the log."""
    with LogReader.open(job.log) as log, log.cursor() as cursor:
        found = []
        while cursor.next_header() is not None:
            *_, raw = cursor.current().payloads()
            mark = mark_of(decode(raw).metadata)
            if mark is not None and isinstance(mark.step, LoadChunk):
                found.append(mark.step)
        return found


def test_a_load_pauses_and_goes_on(job: Job) -> None:
    """A pause counts before the first chunk and between two, and lasts over a new start of capture."""
    Log.open(job.log, source_id="shop").close()
    job.ask()
    give_order(job.log, None, paused=True)
    catch_up(job)
    assert chunks_of(job) == []
    (request,) = read_requests(job.log)
    assert request.progress.begun and request.order.paused
    give_order(job.log, "1", paused=False)
    source = SqliteSource(SqliteSourceOptions(path=job.source, source_id="shop"))
    with Log.open(job.log, source_id="shop") as log:
        capture = Capture(source, log)
        real, made = log.append, []

        def append(fragment: Fragment) -> object:
            made.append(fragment)
            if len(made) == 2:
                give_order(job.log, "1", paused=True)
            return real(fragment)

        log.append = append  # type: ignore[method-assign,assignment]
        capture.catch_up()
        log.append = real  # type: ignore[method-assign]
    source.close()
    assert len(chunks_of(job)) == 2
    job.write(random.Random(3))
    give_order(job.log, "1", paused=False)
    catch_up(job)
    assert read_requests(job.log) == []
    assert job.apply() == []
    job.check()


def test_a_load_that_is_given_up_ends_and_names_what_is_not_whole(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The stream goes on; the table comes again by another load, with `replace`."""
    Log.open(job.log, source_id="shop").close()
    job.ask(tables=("main.parent",))
    give_order(job.log, None, given_up=True)
    catch_up(job)
    assert read_requests(job.log) == []
    assert "tranlog load --replace --tables main.parent" in caplog.text
    assert job.apply() == []
    told = job.waiting()
    assert list(told) == ["main.parent"]
    assert "given up by its operator" in told["main.parent"]
    assert told["main.parent"].endswith(": tranlog load --replace --tables main.parent")
    job.ask("2", tables=("main.parent", "main.child", "main.keyless"), replace=True)
    catch_up(job)
    assert job.apply() == []
    assert job.waiting() == {}
    job.check()


def test_what_filters_leave_out_waits_for_no_load(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask(tables=("main.parent", "main.child"))
    give_order(job.log, None, given_up=True)
    catch_up(job)
    assert job.apply(filters=(Exclude(tables=("main.parent",)),)) == []
    assert list(job.waiting()) == ["main.child"]


@pytest.mark.long
def test_a_load_takes_no_more_rows_a_second_than_it_may(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    job.ask(tables=("main.parent",))
    give_order(job.log, None, rows_per_second=300)
    began = time.monotonic()
    catch_up(job)
    assert [chunk.rows for chunk in chunks_of(job)] == [100, 150, 150, 0]
    assert time.monotonic() - began > 400 / 300


def test_an_order_for_a_load_that_is_not_there_is_refused(job: Job) -> None:
    Log.open(job.log, source_id="shop").close()
    with pytest.raises(ConfigError, match="none is under way"):
        give_order(job.log, None, paused=True)
    job.ask(tables=("main.parent",))
    job.ask("2", tables=("main.child",))
    for load in (None, "3"):
        with pytest.raises(ConfigError, match="1, 2"):
            give_order(job.log, load, paused=True)
