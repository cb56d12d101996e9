"""Rounds of a pipeline at a real PostgreSQL, killed and re-planned at random: is the log's order the target's?

Real: the log, the driver in a process of its own (`order_driver`), the tasks' loop in a process per channel, the
target, kill -9 and SIGSTOP of any of them. Not here: Spark, which only starts those processes, and again those that
died. A round's seed decides the log, what the pipeline is (`order_workload`: queues on disk, in memory or none;
channels; what a shard is and whose; a `shard.list`), the harms, another plan while it runs or while it rests, the
pauses between all that, and the slow shard; who is how fast is the machine's. Every third round is one of `KEYED`: a
schema with keys and foreign keys, whose channels meet by write sets (`order_by_writes`); the others divide by shards.

Each transaction inserts its number into tables without a key, so that the target refuses no double; a trigger notes
each row with what its session saw, and `mutants.order` holds that against the log. Another trigger notes each
plan with the positions behind which it holds: every transaction is judged by the plan under which it was applied, and
all in front of a change of plan must have been applied before all behind it.

`python order_rounds.py FOLDER FIRST ROUNDS DSN [KIND]` prints one JSON object, with the first round in which something
was wrong, and what, and how often each thing was drawn. It needs a database of its own. KIND is `keyed` or `sharded`,
where all rounds are to be of one.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg

from mutants.keyed_rows import REFERENCE
from mutants.order import AUDIT_INSERT, AUDIT_TABLE, Logged, Trace, find_fault, keeps_order
from mutants.order_by_writes import (
    SLOW,
    TARGET_TABLES,
    TRIGGERS,
    draw_bounds,
    draw_rows_plan,
    rows_keep_order,
    rows_logged_by,
    rows_parallelization,
    write_rows,
)
from mutants.order_driver import SLOTS, Done, Ended, Planned, Stop, Wanted, Work, run_driver, run_work
from mutants.order_workload import SCHEMAS, TABLES, draw_parallelization, draw_plan, logged_by, write
from mutants.rounds import play_rounds
from tranlog.errors import PipelineHeldError, ReplacedError
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying import write_owners
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import Parallelization, ShardBy, ShardPlan
from tranlog.pipeline.rules.progress import ChannelStats, Counters
from tranlog.target.options import TargetOptions, open_target

LONGEST_S = 120.0
"""A round takes seconds; one that takes so long waits for something that never comes."""
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a round applies. `slow`: the schemas or tables of which one is slow."""

    write: Callable[[Log, random.Random], Iterator[Any]]
    parallelization: Callable[[random.Random], Parallelization]
    plan: Callable[[random.Random], dict[str, Any]]
    logged_by: Callable[[Sequence[Any], Sequence[tuple[Seqno, ShardPlan]]], list[Logged]]
    keeps: Callable[[Logged, Logged], bool]
    slow: tuple[str, ...]


SHARDED = Kind(
    write=write,
    parallelization=draw_parallelization,
    plan=draw_plan,
    logged_by=logged_by,
    keeps=keeps_order,
    slow=SCHEMAS,
)
KEYED = Kind(
    write=write_rows,
    parallelization=rows_parallelization,
    plan=draw_rows_plan,
    logged_by=rows_logged_by,
    keeps=rows_keep_order,
    slow=SLOW,
)
KINDS = (KEYED, SHARDED, SHARDED)
"""In turn, by the seed."""


class WrongError(Exception):
    """What a round has found."""


@dataclass(slots=True)
class Task:
    """A task of a job in a process, and the end of the pipe by which its result comes."""

    job: int
    work: Work
    process: BaseProcess
    result: Connection


@dataclass(slots=True)
class Driver:
    """The driver's process, and the pipe to it. `resting`: it was told to end."""

    process: BaseProcess
    pipe: Connection
    resting: bool = False


def trail_of(session: psycopg.Connection) -> list[Trace]:
    """Return what the target noted."""
    rows = session.execute("SELECT place, number, xact, snapshot FROM public.trail").fetchall()
    return [Trace(place=place, number=number, xact=xact, snapshot=snapshot) for place, number, xact, snapshot in rows]


def plans_of(session: psycopg.Connection, pipeline: str) -> list[tuple[Seqno, ShardPlan]]:
    """Return each plan that the target noted, with the seqno behind which it held. Raises WrongError."""
    rows = session.execute(
        "SELECT channels, shard_rule, low, high FROM public.plans WHERE pipeline = %s ORDER BY place", (pipeline,)
    ).fetchall()
    for channels, rule, low, high in rows:
        if low != high:
            raise WrongError(f"the plan became {channels} channels, {rule}, with channels at {low} to {high}")
    return [(Seqno(low), ShardPlan.parse(rule, channels=channels)) for channels, rule, low, _ in rows]


class Stage:
    """One round."""

    def __init__(self, folder: Path, dsn: str, seed: int, kind: Kind, tally: Counter[str]) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        if self.kind is KEYED:  # which the processes that are forked have then
            vars(write_owners).update(BOUNDS=draw_bounds(self.rng))
        self.tally = tally
        self.pipeline = f"p{seed}"
        self.log_dir = folder / f"log-{seed}"
        shutil.rmtree(self.log_dir, ignore_errors=True)
        self.session = psycopg.connect(dsn, autocommit=True)
        self.slow = self.rng.choice(self.kind.slow)
        self.harms = self.rng.randint(2, 5)
        self.harm_at = float(self.rng.choice((-1, 5, 20, 60)))
        self.driver: Driver | None = None
        self.tasks: list[Task] = []
        self.stopped: list[BaseProcess] = []
        self.woken: list[BaseProcess] = []
        self.answers: list[Planned] = []
        self.log = self.write()
        self.options = self.draw(
            ApplyOptions(
                pipeline=self.pipeline,
                log_dir=str(self.log_dir),
                target=TargetOptions(kind="postgres", dsn=dsn),
                until_seqno=int(self.log[-1].seqno),
                sync_interval_s=0.1,
            )
        )
        self.deadline = time.monotonic() + LONGEST_S

    def write(self) -> list[Any]:
        """Write the log."""
        with Log.open(str(self.log_dir), source_id="test") as log:
            written = list(itertools.islice(self.kind.write(log, self.rng), self.rng.randint(80, 200)))
            log.commit()
        return written

    def draw(self, options: ApplyOptions) -> ApplyOptions:
        """Draw what a pipeline that rests may be started as."""
        return replace(
            options,
            parallelization=self.kind.parallelization(self.rng),
            window_bytes=self.rng.choice((12_000, 40_000, 200_000)),
            group=GroupBounds(transactions=self.rng.choice((1, 3, 20))),
            **self.kind.plan(self.rng),
        )

    def play(self) -> None:
        """Apply the log, with harms on the way. Raises WrongError."""
        self.session.execute("TRUNCATE public.trail, public.plans, public.slow")
        names = [f'"{table.schema}".{table.table}' for table in (*TABLES.values(), *TARGET_TABLES)]
        self.session.execute(f"TRUNCATE {', '.join(names)}".encode())
        self.session.execute("DROP INDEX IF EXISTS shop.beside, shop.only_here")
        self.session.execute("INSERT INTO public.slow VALUES (%s)", (self.slow,))
        self.start_driver()
        while self.driver is not None:
            if time.monotonic() > self.deadline:
                raise WrongError(f"stuck: driver and channels {[task.work.channel for task in self.tasks]}")
            talking = [self.driver.pipe, *[task.result for task in self.tasks]]
            ready = wait(talking, timeout=self.rng.uniform(0.01, 0.15))
            for task in [task for task in self.tasks if task.result in ready]:
                self.ended(task)
            if self.driver.pipe in ready:
                self.told()
            if self.driver is not None and self.harms and (now := self.reached()) >= self.harm_at:
                self.harms -= 1
                # The next one at once, in the middle of what this one leads to; or after some progress.
                self.harm_at = now if self.rng.random() < 0.3 else now + self.rng.randint(5, 60)
                self.harm(self.driver)
            while self.stopped and self.rng.random() < 0.2:
                self.resume(self.stopped.pop())
        self.wake()

    def reached(self) -> float:
        """How far the channels are, at the mean; -1 before the first."""
        ((mean,),) = self.session.execute(
            "SELECT avg(applied_seqno) FROM tranlog_channel WHERE pipeline = %s", (self.pipeline,)
        ).fetchall()
        return -1.0 if mean is None else float(mean)

    # --- the driver ---

    def start_driver(self, *, clean: bool = False) -> None:
        """A new driver: the one before, and its tasks, are gone, or stopped and wake up later."""
        self.drop_tasks()
        if self.driver is not None:
            self.disturb(self.driver.process)
            self.driver.pipe.close()
        self.tally[f"started {self.options.parallelization.value}"] += 1
        self.tally_plan(self.options)
        given = replace(self.options, take_over=not clean)
        mine, theirs = FORK.Pipe()
        process = FORK.Process(target=_drive, args=(given, theirs, mine), daemon=True)
        process.start()
        theirs.close()
        self.driver = Driver(process, mine)

    def tally_plan(self, options: ApplyOptions) -> None:
        self.tally[f"planned by {options.plan.by.value}"] += 1
        self.tally["planned with lines of a shard.list"] += bool(options.plan.channels)
        self.tally["planned with critical shards"] += bool(options.plan.serial)

    def told(self) -> None:
        """Take what the driver says."""
        driver = self.driver
        assert driver is not None
        try:
            message = driver.pipe.recv()
        except (EOFError, ConnectionResetError):
            driver.process.join()
            raise WrongError(f"the driver died: exit code {driver.process.exitcode}") from None
        match message:
            case Wanted(job=job, work=work):
                self.drop_tasks({one.channel for one in work})  # of a job that the driver has given up
                for one in work:
                    self.start_task(job, one)
            case Planned():
                if message.refused is not None:
                    raise WrongError(f"a plan was refused: {message.refused}")
                self.answers.append(message)
                self.tally["re-planned while it ran"] += message.seqno is not None
            case Ended(end=end, error=error):
                self.over(driver, end, error)

    def over(self, driver: Driver, end: TaskEnd | None, error: Exception | None) -> None:
        """Go on behind the end of a run: at the limit, none follows."""
        driver.process.join()
        if isinstance(error, ReplacedError | PipelineHeldError) and self.woken:
            self.start_driver()  # one that had been stopped before it became the driver has become it since
        elif error is not None:
            raise WrongError(f"the driver failed: {error}")
        elif end is TaskEnd.LIMIT:
            driver.pipe.close()
            self.driver = None
        elif driver.resting:
            self.tally["ended and started anew"] += 1
            self.options = self.draw(self.options)
            self.start_driver(clean=True)
        else:
            raise WrongError(f"the driver ended by itself: {end}")

    # --- the tasks ---

    def start_task(self, job: int, work: Work) -> None:
        mine, theirs = FORK.Pipe(duplex=False)
        assert self.driver is not None
        process = FORK.Process(target=_run, args=(work, theirs, self.driver.pipe), daemon=True)
        process.start()
        theirs.close()
        self.tasks.append(Task(job, work, process, mine))

    def drop_tasks(self, channels: Container[int] = range(SLOTS)) -> None:
        """Kill or stop the tasks of some channels, of all where none are named."""
        for task in [task for task in self.tasks if task.work.channel in channels]:
            self.disturb(task.process)
            task.result.close()
            self.tasks.remove(task)

    def ended(self, task: Task) -> None:
        """Take a task's result, and see to what it means."""
        try:
            result = task.result.recv()
        except EOFError:
            task.process.join()
            raise WrongError(f"channel {task.work.channel} died: exit code {task.process.exitcode}") from None
        task.process.join()
        task.result.close()
        self.tasks.remove(task)
        assert isinstance(result, TaskResult) and self.driver is not None
        if result.end is TaskEnd.FAILED:
            raise WrongError(f"channel {task.work.channel} failed: {result.error}")
        self.tell(self.driver, Done(task.job, result))

    # --- harms ---

    def harm(self, driver: Driver) -> None:
        """Kill or stop one task, which runs again, or all and the driver; or have another plan."""
        chance = self.rng.random()
        if chance < 0.45 and self.tasks:
            task = self.rng.choice(self.tasks)
            self.tasks.remove(task)
            self.disturb(task.process)
            task.result.close()
            self.start_task(task.job, task.work)
            self.tally["tasks killed or stopped"] += 1
        elif chance < 0.65:
            if self.rng.random() < 0.5:
                self.options = self.draw(self.options)
            self.start_driver()
            self.tally["drivers killed or stopped"] += 1
        elif driver.resting:
            pass  # it is on its way to its end
        elif chance < 0.85:
            self.options = replace(self.options, **self.kind.plan(self.rng))
            self.tally_plan(self.options)
            self.tell(driver, self.options.shard_plan())
        else:
            driver.resting = True
            self.tell(driver, Stop())

    def tell(self, driver: Driver, message: Done | Stop | ShardPlan) -> None:
        try:
            driver.pipe.send(message)
        except OSError:
            pass  # it has ended, and says so

    def disturb(self, process: BaseProcess) -> None:
        """Kill it with -9, or stop it: it wakes when others have gone on in its place."""
        if self.rng.random() < 0.15 and process.is_alive():
            os.kill(process.pid or 0, signal.SIGSTOP)
            self.stopped.append(process)
        else:
            process.kill()
            process.join()

    def resume(self, process: BaseProcess) -> None:
        """Let a stopped process go on; one that had ended just before it was to be stopped is gone."""
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGCONT)
            self.woken.append(process)

    def wake(self) -> None:
        """Let those that are stopped find out that they were replaced: each ends by itself. Raises WrongError."""
        while self.stopped:
            self.resume(self.stopped.pop())
        for process in self.woken:
            process.join(60)
            if process.is_alive():
                raise WrongError("a process that was replaced goes on")

    def judge(self) -> None:
        """Hold the target's trail against the log. Raises WrongError."""
        trail, plans = trail_of(self.session), plans_of(self.session, self.pipeline)
        at = self.session.execute(
            "SELECT DISTINCT applied_seqno FROM tranlog_channel WHERE pipeline = %s", (self.pipeline,)
        ).fetchall()
        if not plans or plans[0][0] >= self.log[0].seqno:
            raise WrongError(f"the first plan holds from behind where? {plans}")
        fault = find_fault(self.kind.logged_by(self.log, plans), trail, self.kind.keeps)
        if fault is not None:
            raise WrongError(fault)
        last = self.log[-1].seqno
        if at != [(last,)]:
            raise WrongError(f"positions {at}, and the log ends at {last}")
        # Of several plans that were wanted before the channels had met, the newest counts.
        for seqno, wanted in {answer.seqno: answer.plan for answer in self.answers if answer.seqno is not None}.items():
            before = [plan for behind, plan in plans if behind < seqno][-1:]
            if wanted not in [*before, *[plan for behind, plan in plans if behind == seqno]]:
                raise WrongError(f"answered that {wanted} holds behind {seqno}; the target has {plans}")
        self.tally["transactions"] += len(self.log)
        if any(plan.by is ShardBy.WRITES for _, plan in plans):
            self.count_by_writes()
        self.tally["sections of the log by plan"] += len({behind for behind, _ in plans})

    def count_by_writes(self) -> None:
        """Count what ran in parallel and what waited. Raises WrongError for a missed dependency."""
        rows = self.session.execute(
            "SELECT stats FROM tranlog_channel WHERE pipeline = %s", (self.pipeline,)
        ).fetchall()
        done = sum([Counters.parse(stats) for (stats,) in rows], Counters())
        done = sum([Counters.of(ChannelStats.parse(stats).earlier) for (stats,) in rows], done)
        if done.missed:
            missed = [ChannelStats.parse(stats).missed_at for (stats,) in rows]
            raise WrongError(f"missed dependencies: {done.missed} at {missed}")
        self.tally["by writes: transactions"] += done.transactions
        self.tally["by writes: in parallel"] += done.transactions - done.serial
        self.tally["by writes: waited"] += done.held
        self.tally["by writes: retries at the target"] += done.retries

    def close(self) -> None:
        processes = [*self.stopped, *self.woken, *[task.process for task in self.tasks]]
        for process in [*processes, *([self.driver.process] if self.driver is not None else [])]:
            process.kill()
            process.join()
        self.session.close()
        shutil.rmtree(self.log_dir, ignore_errors=True)


def _drive(given: ApplyOptions, pipe: Connection, theirs: Connection) -> None:
    """What the process of a driver does."""
    theirs.close()
    run_driver(given, pipe)


def _run(work: Work, result: Connection, drivers: Connection) -> None:
    """What the process of a task does."""
    drivers.close()  # else a driver would not learn that nobody listens any more
    try:
        result.send(run_work(work))
    except OSError:
        pass  # another runs in its place
    os._exit(0)  # nothing of the parent's is to be closed


def make_target(dsn: str) -> None:
    """Make the tables, and the triggers that note what happens to them; one shard of each round is slow."""
    target = open_target(TargetOptions(kind="postgres", dsn=dsn))
    target.positions.ensure_tables()
    for table in (*TABLES.values(), *TARGET_TABLES):
        target.rows.create_table(table)
    target.close()
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(AUDIT_TABLE)
        session.execute("CREATE TABLE public.slow (shard text)")
        session.execute(REFERENCE["postgres"].encode())
        for name, more in (("note", AUDIT_INSERT), ("delay", "")):
            session.execute(
                f"CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "IF EXISTS (SELECT FROM public.slow WHERE shard IN (TG_TABLE_SCHEMA, TG_TABLE_NAME)) "
                f"THEN PERFORM pg_sleep(0.003); END IF; {more} RETURN NULL; END $$".encode()
            )
        (named,) = TRIGGERS
        for table in (*TABLES.values(), *TARGET_TABLES):
            noted = any(column.name == "number" for column in table.columns)
            session.execute(
                f'CREATE TRIGGER {named} AFTER INSERT ON "{table.schema}".{table.table} '
                f"FOR EACH ROW EXECUTE FUNCTION public.{'note' if noted else 'delay'}()".encode()
            )
        session.execute(
            "CREATE TABLE public.plans (place bigserial PRIMARY KEY, pipeline text, channels int, shard_rule text, "
            "low bigint, high bigint)"
        )
        # At the end of the transaction, when the positions that belong to the plan are there too.
        session.execute(
            "CREATE FUNCTION public.note_plan() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO public.plans (pipeline, channels, shard_rule, low, high) "
            "SELECT NEW.pipeline, NEW.channels, NEW.shard_rule, min(applied_seqno), max(applied_seqno) "
            "FROM tranlog_channel WHERE pipeline = NEW.pipeline; RETURN NULL; END $$"
        )
        changed = "WHEN ((OLD.channels, OLD.shard_rule) IS DISTINCT FROM (NEW.channels, NEW.shard_rule))"
        for what, when in (("INSERT", ""), ("UPDATE", changed)):
            session.execute(
                f"CREATE CONSTRAINT TRIGGER note_{what.lower()} AFTER {what} ON tranlog_pipeline "
                f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {when} EXECUTE FUNCTION public.note_plan()".encode()
            )


def play(folder: Path, dsn: str, seed: int, kind: Kind, tally: Counter[str]) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    stage = Stage(folder, dsn, seed, kind, tally)
    try:
        stage.play()
        stage.judge()
    except WrongError as exc:
        return str(exc)
    finally:
        stage.close()
    return None


def main() -> None:
    """Play what the command line asks for."""
    folder, first, rounds, dsn, *only = sys.argv[1:]
    kinds = KINDS if not only else [{"keyed": KEYED, "sharded": SHARDED}[only[0]]]
    make_target(dsn)
    tally: Counter[str] = Counter()

    def played(seed: int) -> str | None:
        return play(Path(folder), dsn, seed, kinds[seed % len(kinds)], tally)

    play_rounds(played, first=int(first), rounds=int(rounds), tally=tally)


if __name__ == "__main__":
    main()
