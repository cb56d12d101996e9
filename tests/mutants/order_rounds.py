"""Rounds of channels in processes of their own at a real PostgreSQL, killed at random: is the log's order the target's?

Real: the log, the tasks' loop in a process per channel, the driver's take-over, the target, kill -9 and SIGSTOP. Not
here: Spark, which only starts those processes. A round's seed decides the log, the channels, the harms and the pauses
between them, and the slow shard; who is how fast is the machine's.

Each transaction inserts its number into a table per shard, without a key, so that the target refuses no double; a
trigger notes each row with what its session saw, and `tranlog.testing.order` holds that against the log.

`python order_rounds.py FOLDER FIRST ROUNDS DSN` prints one JSON object, with the first round in which something was
wrong, and what. It needs a database of its own.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import psycopg

from mutants.rounds import play_rounds
from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.log import Log
from tranlog.log.reader import LogReader
from tranlog.pipeline.apply import ApplyOptions, _Driver
from tranlog.pipeline.channel import ChannelTask, GroupBounds, TaskEnd, TaskResult, run_task
from tranlog.pipeline.channels import AssignmentRule, ShardBy
from tranlog.pipeline.progress import Drain, Run
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.order import AUDIT_INSERT, AUDIT_TABLE, Logged, Trace, find_fault
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
SHARDS = ("a", "b", "c", "d", "e")
LISTED = "e"
"""The shard that some rounds make serial."""
LONGEST_S = 120.0
"""A round takes seconds; one that takes so long waits for something that never comes."""
FORK = multiprocessing.get_context("fork")


def events(shard: str) -> TableMap:
    """The table of a shard: numbers, without a key."""
    column = Column(name="number", source_type="bigint", logical=LogicalType.INTEGER, nullable=False)
    return TableMap(schema=shard, table="events", columns=(column,), primary_key=())


TABLES = {shard: events(shard) for shard in SHARDS}


class WrongError(Exception):
    """What a round has found."""


@dataclass(slots=True)
class Task:
    """A channel in a process, and the end of the pipe by which its result comes."""

    given: ChannelTask
    process: BaseProcess
    result: Connection


def write(log: Log, rng: random.Random, serial: Sequence[str]) -> Iterator[Logged]:
    """Append transactions: most in one shard, some over several, now and then many of those in a row."""
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    chance = rng.choice((0.0, 0.05, 0.2))
    run = 0
    for number in itertools.count(1):
        run = run - 1 if run else rng.choice((1, 1, 4)) if rng.random() < chance else 0
        shards = tuple(sorted(rng.sample(SHARDS, 2 if run else 1)))
        rows = [shard for shard in shards for _ in range(rng.choice((1, 1, 3)))]
        packer.begin(BY_SCHEMA)
        for shard in rows:
            change = RowChange(TABLES[shard], Op.INSERT, None, (number,))
            assert packer.add(change, event_id="", tstamp=1) is None
        log.append(packer.finish(event_id=f"event {number}", tstamp=number))
        yield Logged(number=number, shards=shards, rows=len(rows), listed=shards[0] in serial)


def trail_of(session: psycopg.Connection) -> list[Trace]:
    """Return what the target noted."""
    rows = session.execute("SELECT place, number, xact, snapshot FROM public.trail").fetchall()
    return [Trace(place=place, number=number, xact=xact, snapshot=snapshot) for place, number, xact, snapshot in rows]


class Stage:
    """One round."""

    def __init__(self, folder: Path, dsn: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pipeline = f"p{seed}"
        self.log_dir = folder / f"log-{seed}"
        shutil.rmtree(self.log_dir, ignore_errors=True)
        self.options = TargetOptions(kind="postgres", dsn=dsn)
        self.channels = self.rng.choice((2, 3, 4))
        self.rule = AssignmentRule.RECORDED
        self.by = ShardBy.RECORDED
        self.serial = (LISTED,) if self.rng.random() < 0.3 else ()
        self.harms = self.rng.randint(2, 5)
        self.slow = self.rng.choice(SHARDS)
        self.tasks: dict[int, Task] = {}
        self.draining = False
        self.stopped: list[BaseProcess] = []
        self.log = self.write()
        self.deadline = time.monotonic() + LONGEST_S

    def write(self) -> list[Logged]:
        """Write the log."""
        with Log.open(str(self.log_dir), source_id="test") as log:
            logged = list(itertools.islice(write(log, self.rng, self.serial), self.rng.randint(60, 160)))
            log.commit()
            self.last = log.last_seqno
        return logged

    def play(self) -> None:
        """Apply the log, with harms on the way. Raises WrongError."""
        with psycopg.connect(self.options.dsn, autocommit=True) as session:
            session.execute("TRUNCATE public.trail, public.slow")
            for table in TABLES.values():
                session.execute(f'TRUNCATE "{table.schema}".events'.encode())
            session.execute("INSERT INTO public.slow VALUES (%s)", (self.slow,))
        self.start_driver()
        while self.tasks:
            if time.monotonic() > self.deadline:
                raise WrongError(f"stuck: channels {sorted(self.tasks)}")
            ready = wait([task.result for task in self.tasks.values()], timeout=self.rng.uniform(0.01, 0.15))
            for task in [task for task in self.tasks.values() if task.result in ready]:
                self.ended(task)
            if self.tasks and self.harms and self.rng.random() < 0.5:
                self.harms -= 1
                self.harm()
            while self.stopped and self.rng.random() < 0.2:
                _resume(self.stopped.pop())
            if not self.tasks and self.draining:
                self.start_driver()
        self.wake()

    def start_driver(self) -> None:
        """A new driver: the tasks of the one before are gone, or stopped and wake up later."""
        for task in self.tasks.values():
            self.disturb(task)
        options = ApplyOptions(
            pipeline=self.pipeline,
            log_dir=str(self.log_dir),
            target=self.options,
            channels=self.channels,
            assignment=self.rule,
            serial_shards=self.serial,
            shard_by=self.by,
            take_over=True,
        )
        with LogReader.open(self.log_dir) as reader:
            driver = _Driver(options, reader, threading.Event(), _no_report, None)
            driver._target = open_target(self.options)
            try:
                plan: Run | Drain = driver._take()
                token = driver._token
            finally:
                driver.close()
        self.draining = isinstance(plan, Drain)
        self.tasks = {}
        size = self.rng.choice((1, 3, 20))
        for channel in range(plan.plan.channels):
            self.start_task(
                ChannelTask(
                    pipeline=self.pipeline,
                    driver_token=token,
                    channel=channel,
                    plan=plan.plan,
                    log_dir=str(self.log_dir),
                    target=self.options,
                    until=plan.upto if isinstance(plan, Drain) else Seqno(self.last),
                    bounds=GroupBounds(transactions=size),
                    sync_interval_s=0.1,
                )
            )

    def start_task(self, given: ChannelTask) -> None:
        mine, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_run, args=(given, theirs), daemon=True)
        process.start()
        theirs.close()
        self.tasks[given.channel] = Task(given, process, mine)

    def harm(self) -> None:
        """Kill or stop one task and start it again, or all of them and the driver."""
        if self.rng.random() < 0.3:
            self.channels = self.rng.choice((2, 3, 4))
            self.rule = self.rng.choice(tuple(AssignmentRule))
            self.by = self.rng.choice((ShardBy.RECORDED, ShardBy.SCHEMA))
            self.start_driver()
            return
        task = self.rng.choice(list(self.tasks.values()))
        self.disturb(task)
        self.start_task(task.given)

    def disturb(self, task: Task) -> None:
        """Kill it with -9, or stop it: it wakes when others have gone on in its place."""
        if self.rng.random() < 0.15 and task.process.is_alive():
            os.kill(task.process.pid or 0, signal.SIGSTOP)
            self.stopped.append(task.process)
        else:
            task.process.kill()
            task.process.join()
        task.result.close()

    def ended(self, task: Task) -> None:
        """Take a task's result, and see to what it means."""
        try:
            result = task.result.recv()
        except EOFError:
            task.process.join()
            raise WrongError(f"channel {task.given.channel} died: exit code {task.process.exitcode}") from None
        task.process.join()
        task.result.close()
        assert isinstance(result, TaskResult)
        if result.end is TaskEnd.FAILED:
            raise WrongError(f"channel {task.given.channel} failed: {result.error}")
        if result.end is TaskEnd.REPLACED:  # by one that was stopped: the job would be submitted again
            self.start_task(task.given)
        else:
            del self.tasks[task.given.channel]

    def wake(self) -> None:
        """Let those that are stopped find out that they were replaced."""
        for process in self.stopped:
            _resume(process)
        for process in self.stopped:
            process.join(30)
        self.stopped = []

    def judge(self) -> None:
        """Hold the target's trail against the log. Raises WrongError."""
        with psycopg.connect(self.options.dsn) as session:
            trail = trail_of(session)
            at = session.execute(
                "SELECT DISTINCT applied_seqno FROM tranlog_channel WHERE pipeline = %s", (self.pipeline,)
            ).fetchall()
        fault = find_fault(self.log, trail)
        if fault is not None:
            raise WrongError(fault)
        if at != [(self.last,)]:
            raise WrongError(f"positions {at}, and the log ends at {self.last}")

    def close(self) -> None:
        for process in [*self.stopped, *[task.process for task in self.tasks.values()]]:
            process.kill()
            process.join()
        shutil.rmtree(self.log_dir, ignore_errors=True)


def _resume(process: BaseProcess) -> None:
    """Let a stopped process go on; one that had ended just before it was to be stopped is gone."""
    if process.is_alive():
        os.kill(process.pid or 0, signal.SIGCONT)


def _run(given: ChannelTask, result: Connection) -> None:
    """What a process of a channel does."""
    result.send(run_task(given))
    result.close()
    os._exit(0)  # nothing of the parent's is to be closed


def _no_report(status: object) -> None:
    """Report to nobody."""


def make_target(dsn: str) -> None:
    """Make the tables, and the triggers that note what happens to them; one shard of each round is slow."""
    target = open_target(TargetOptions(kind="postgres", dsn=dsn))
    target.ensure_tables()
    for table in TABLES.values():
        target.create_table(table)
    target.close()
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(AUDIT_TABLE)
        session.execute("CREATE TABLE public.slow (shard text)")
        session.execute(
            "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF EXISTS (SELECT FROM public.slow WHERE shard = TG_TABLE_SCHEMA) THEN PERFORM pg_sleep(0.003); END IF; "
            f"{AUDIT_INSERT} RETURN NULL; END $$".encode()
        )
        for table in TABLES.values():
            session.execute(
                f'CREATE TRIGGER note AFTER INSERT ON "{table.schema}".events '
                "FOR EACH ROW EXECUTE FUNCTION public.note()".encode()
            )


def play(folder: Path, dsn: str, seed: int) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    stage = Stage(folder, dsn, seed)
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
    folder, first, rounds, dsn = sys.argv[1:]
    make_target(dsn)
    play_rounds(lambda seed: play(Path(folder), dsn, seed), first=int(first), rounds=int(rounds))


if __name__ == "__main__":
    main()
