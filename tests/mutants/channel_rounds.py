"""Rounds of channels at work, each an interleaving with kills that its seed decides: is all applied once, in order?

Real: the log (on a disk in memory) and its readers, the tasks' loop, the driver's take-over, the target, which is a
SQLite database. Not here: Spark, and the clock. Each task and each driver is a thread, and only one of them runs at a
time: at every transaction's begin, COMMIT and end at the target, at every reading there and at every sleep it gives
the turn back, and chance decides who goes on, who is killed (its session rolls back), who stops for a while as a stale
one while a successor works, when the log grows, and when a new driver comes, with another number of channels or not.

Each transaction inserts its number into a table per shard, without a key, so that the target refuses no double; a
trigger there notes the order in which that happened.

`python channel_rounds.py FOLDER FIRST ROUNDS [LIMITS]` prints one JSON object, with the first round in which something
was wrong, and what. A round is replayed by its seed. Limits: with `same-channels` the number of channels stays; with
`takes-alone` nobody else has a turn while a driver takes the pipeline over.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw

from mutants.rounds import play_rounds
from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.clock import SystemClock
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.driving.lease import Lease
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.progress import Drain, Run
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.database import open_database
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.sqlite import SqliteSession
from tranlog.target.sqlite_dialect import SQLITE
from tranlog.target.target import Target
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
PIPELINE = "p"
SHARDS = ("a", "b", "c", "d")
MOST_STEPS = 20_000
"""A round takes some hundreds; one that takes so many waits for something that never comes."""


def events(shard: str) -> TableMap:
    """The table of a shard: numbers, without a key."""
    column = Column(name="number", source_type="bigint", logical=LogicalType.INTEGER, nullable=False)
    return TableMap(schema=shard, table="events", columns=(column,), primary_key=())


TABLES = {shard: events(shard) for shard in SHARDS}


class WrongError(Exception):
    """What a round has found."""


class Killed(BaseException):
    """The actor's process has ended. Not an Exception: nothing in between may handle it."""


class Actor:
    """A task or a driver, in a thread that runs only when it has the turn."""

    def __init__(self, stage: Stage, name: str, work: Callable[[], Any], task: ChannelTask | None = None) -> None:
        self.stage = stage
        self.name = name
        self.task = task
        self.at = "start"
        """What it is about to do."""
        self.ended = False
        self.killed = False
        self.stale = False
        """Whether a successor has been started."""
        self.asleep = False
        """Whether it is stopped."""
        self.result: Any = None
        self.failure: Exception | None = None
        self._work = work
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                self.result = self._work()
        except Killed:
            pass
        except Exception as exc:
            self.failure = exc
        self.ended = True
        self.stage.back.release()

    def go(self) -> None:
        """Give it the turn, and wait until it gives the turn back."""
        self.stage.current = self
        self._turn.release()
        self.stage.back.acquire()
        self.stage.current = None

    def pause(self, at: str) -> None:
        """Give the turn back. Called in the actor's own thread. Raises Killed."""
        if not self.killed:
            self.at = at
            self.stage.back.release()
            self._turn.acquire()
        if self.killed:
            raise Killed

    def kill(self) -> None:
        """End it where it is; its session at the target rolls back."""
        self.killed = True
        self.go()
        assert self.ended

    @property
    def inside(self) -> bool:
        """Whether it is in the middle of a target transaction."""
        return self.stage.writer is self


class TurnSession(SqliteSession):
    """A session that gives the turn back where another one could come in between."""

    def __init__(self, options: TargetOptions, stage: Stage) -> None:
        self.stage = stage
        super().__init__(options)
        # No power is lost here: that is the log's matter and its own harness's.
        self._connection.execute("PRAGMA synchronous = OFF")

    def begin(self, *, lock_timeout_s: float | None = None) -> None:
        self.stage.pause("begin")
        assert self.stage.writer is None
        super().begin(lock_timeout_s=lock_timeout_s)
        self.stage.writer = self.stage.current

    def commit(self) -> None:
        self.stage.pause("commit")
        super().commit()
        self.stage.writer = None
        self.stage.pause("committed")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            super().rollback()
            self.stage.writer = None

    def fetch(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        if not self._connection.in_transaction:
            self.stage.pause("read")
        return super().fetch(sql, parameters)


class TurnClock(ManualClock):
    """Time passes by sleeping, and sleeping gives the turn back."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def sleep(self, seconds: float) -> None:
        self.stage.pause("sleep")
        self.advance(seconds)


class Stage:
    """One round: the log, the target, who is there, and whose turn it is."""

    def __init__(self, folder: Path, template: Path, seed: int, limits: Collection[str]) -> None:
        self.rng = random.Random(seed)
        self.current: Actor | None = None
        self.writer: Actor | None = None
        self.back = threading.Lock()
        self.back.acquire()
        self.clock = TurnClock(self)
        self.disk = SimDisk()
        self.log = Log.open("/log", source_id="test", disk=self.disk, clock=self.clock)
        self.packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        self.wanted: list[tuple[str, ...]] = []
        """The shards of each transaction, by number."""
        self.path = folder / "target.db"
        for old in folder.glob("target.db*"):
            old.unlink()
        shutil.copy(template, self.path)
        self.options = TargetOptions(kind="sqlite", path=str(self.path), lock_timeout_s=1)
        self.look = apsw.Connection(str(self.path))
        self.actors: list[Actor] = []
        self.tasks: dict[int, Actor] = {}
        """The newest attempt of each channel, of the newest driver."""
        self.driver: Actor | None = None
        self.token = 0
        self.limits = limits
        self.channels = self.rng.choice((2, 3, 4))
        self.until: Seqno | None = None
        self.harms = self.rng.randint(2, 7)
        self.left = self.rng.randint(12, 30)
        """Transactions still to be written."""
        self.serial = self.rng.choice((0.0, 0.15, 0.4))
        self.steps = 0
        self.draining = False
        """Whether the newest driver runs the old plan up to where all its channels stand."""

    def pause(self, at: str) -> None:
        """Give the turn back, if it is an actor that has it."""
        if self.current is not None:
            self.current.pause(at)

    # --- what there is ---

    def write(self, number: int) -> None:
        """Let the log grow."""
        for _ in range(min(number, self.left)):
            self.left -= 1
            serial = self.rng.random() < self.serial
            shards = tuple(self.rng.sample(SHARDS, self.rng.choice((2, 3)) if serial else 1))
            changes: list[Change] = [RowChange(TABLES[shard], Op.INSERT, None, (len(self.wanted),)) for shard in shards]
            self.packer.begin(BY_SCHEMA)
            for change in changes:
                assert self.packer.add(change, event_id="", tstamp=1) is None
            self.log.append(self.packer.finish(event_id=f"event {len(self.wanted)}", tstamp=1))
            self.wanted.append(shards)
        self.log.commit()

    def target(self) -> Target:
        return open_database(self.options, SQLITE, lambda options: TurnSession(options, self), where=str(self.path))

    def reader(self) -> LogReader:
        return LogReader.open("/log", disk=self.disk, clock=self.clock)

    def positions(self) -> set[int]:
        return {seqno for (seqno,) in self.look.execute("SELECT applied_seqno FROM tranlog_channel")}

    # --- who is there ---

    def start_driver(self) -> None:
        """A new driver comes: the one before is gone, and of its tasks some are, and some have only stopped."""
        for actor in [*self.tasks.values(), *([self.driver] if self.driver is not None else [])]:
            if actor.ended:
                continue
            actor.stale = True
            if actor.task is None or actor.inside or self.rng.random() < 0.4:
                actor.kill()
            else:
                actor.asleep = self.rng.random() < 0.8
        self.tasks = {}
        options = ApplyOptions(
            pipeline=PIPELINE, log_dir="/log", target=self.options, channels=self.channels, take_over=True
        )

        def take() -> tuple[Run | Drain, int]:
            with self.reader() as reader:
                with (
                    closing(self.target()) as target,
                    closing(
                        Lease(options, target, reader, holder="driver", clock=SystemClock(), note=lambda note: None)
                    ) as lease,
                ):
                    return lease.take(options.shard_plan()), lease.token

        self.driver = Actor(self, "driver", take)
        self.actors.append(self.driver)

    def start_tasks(self, plan: Run | Drain, token: int) -> None:
        until = plan.upto if isinstance(plan, Drain) else self.until
        options = ApplyOptions(pipeline=PIPELINE, log_dir="/log", target=self.options, sync_interval_s=0.02)
        for channel in range(plan.plan.channels):
            self.start_task(
                ChannelTask(
                    options=replace(options, group=GroupBounds(transactions=self.rng.choice((1, 2, 5)))),
                    driver_token=token,
                    channel=channel,
                    plan=plan.plan,
                    until=until,
                )
            )
        self.draining = isinstance(plan, Drain)

    def start_task(self, task: ChannelTask) -> None:
        """Start an attempt of a task; one that is there already is a stale one from now on."""

        def work() -> TaskResult:
            channel = Channel(task, self.target, self.reader, self.clock)
            try:
                return channel.run()
            finally:
                channel.close()

        before = self.tasks.get(task.channel)
        if before is not None:
            before.stale = True
        self.tasks[task.channel] = Actor(self, f"channel {task.channel}", work, task)
        self.actors.append(self.tasks[task.channel])

    # --- what happens ---

    def play(self) -> None:
        """Play the round to its end. Raises WrongError."""
        rng = self.rng
        self.write(rng.randint(0, self.left))
        self.start_driver()
        pounce = False
        while not self.over():
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise WrongError(f"stuck: {[(a.name, a.at, a.stale) for a in self.actors if not a.ended]}")
            if self.left and rng.random() < 0.02:
                still = self.positions() == {self.log.last_seqno}
                if still or rng.random() < 0.3:
                    self.write(rng.randint(1, 8))
                    # What a stale task of another plan needs for its harm: all stood at one seqno when it was stopped.
                    pounce = still and rng.random() < 0.7
            elif pounce and any(actor.at == "begin" and actor.task is not None for actor in self.present()):
                pounce = False
                self.replace()
            elif self.harms and rng.random() < 0.02:
                self.harms -= 1
                self.harm()
            elif not self.harms and not self.left and self.until is None and rng.random() < 0.05:
                self.until = self.log.last_seqno
                self.replace()
            for actor in self.actors:
                if actor.asleep and rng.random() < 0.02:
                    actor.asleep = False
            able = [one for one in self.present() if one.at != "begin" or self.writer is None]
            if "takes-alone" in self.limits and self.driver in able:
                able = [self.driver]
            if able:
                self.turn(rng.choice(able))

    def present(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.ended and not actor.asleep]

    def over(self) -> bool:
        return self.until is not None and all(actor.ended for actor in self.actors)

    def replace(self) -> None:
        if self.rng.random() < 0.7 and "same-channels" not in self.limits:
            self.channels = self.rng.choice((2, 3, 4))
        self.start_driver()

    def harm(self) -> None:
        """Do one harm: to a task, or to all of them and the driver."""
        tasks = [actor for actor in self.tasks.values() if not actor.ended]
        if not tasks or self.rng.random() < 0.3:
            self.replace()
            return
        victim = self.rng.choice(tasks)
        assert victim.task is not None
        if victim.inside or self.rng.random() < 0.5:
            victim.kill()
        else:  # it stops, or goes on beside its successor
            victim.asleep = self.rng.random() < 0.7
        self.start_task(victim.task)

    def turn(self, actor: Actor) -> None:
        """Let an actor go on to its next step, and see to what it has left behind if that was its last."""
        actor.go()
        if not actor.ended:
            return
        if actor.failure is not None:
            raise WrongError(f"{actor.name} failed: {type(actor.failure).__name__}: {actor.failure}")
        if actor is self.driver:
            plan, token = actor.result
            self.start_tasks(plan, token)
            return
        result = actor.result
        assert isinstance(result, TaskResult)
        if result.end is TaskEnd.FAILED:
            raise WrongError(f"{actor.name} failed: {result.error}")
        if actor.stale:
            return
        if result.end is TaskEnd.REPLACED:  # by one that was stale already: the job is submitted again
            assert actor.task is not None
            self.start_task(actor.task)
        elif self.draining and all(task.ended for task in self.tasks.values()):
            self.start_driver()

    def judge(self) -> None:
        """Hold what was done at the target against the log. Raises WrongError."""
        done = list(self.look.execute("SELECT shard, number FROM done ORDER BY place"))
        count = Counter(done)
        expected = {(shard, number) for number, shards in enumerate(self.wanted) for shard in shards}
        if doubled := sorted(one for one, times in count.items() if times > 1):
            raise WrongError(f"doubled: {doubled}")
        if lost := sorted(expected - count.keys()):
            raise WrongError(f"lost: {lost}")
        if count.keys() - expected:
            raise WrongError(f"out of nowhere: {sorted(count.keys() - expected)}")
        last: dict[str, int] = {}
        serial = -1
        for shard, number in done:
            alone = len(self.wanted[number]) > 1
            before = max(last.values(), default=-1) if alone else max(last.get(shard, -1), serial)
            if before > number:
                raise WrongError(f"wrong order: {number} in {shard} after {before}")
            last[shard] = max(last.get(shard, -1), number)
            serial = max(serial, number) if alone else serial
        if self.positions() != {self.log.last_seqno}:
            raise WrongError(f"positions {self.positions()}, and the log ends at {self.log.last_seqno}")

    def close(self) -> None:
        """End whoever is left."""
        for actor in self.actors:
            if not actor.ended:
                actor.kill()
        self.look.close()
        self.log.close()


def make_template(path: Path) -> None:
    """Make an empty target, with the trigger that notes what happens to it."""
    path.unlink(missing_ok=True)
    target = open_target(TargetOptions(kind="sqlite", path=str(path)))
    target.positions.ensure_tables()
    for table in TABLES.values():
        target.rows.create_table(table)
    target.close()
    with apsw.Connection(str(path)) as connection:
        connection.execute("CREATE TABLE done (place INTEGER PRIMARY KEY AUTOINCREMENT, shard TEXT, number INTEGER)")
        for shard, table in TABLES.items():
            connection.execute(
                f'CREATE TRIGGER "note {shard}" AFTER INSERT ON "{table.name}" '
                f"BEGIN INSERT INTO done(shard, number) VALUES ('{shard}', new.number); END"
            )
    connection.close()


def play(folder: Path, template: Path, seed: int, limits: Collection[str]) -> str | None:
    """Play one round; return what was wrong in it, None where nothing was."""
    stage = Stage(folder, template, seed, limits)
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
    folder, first, rounds, *limits = sys.argv[1:]
    template = Path(folder) / "template.db"
    make_template(template)
    play_rounds(
        lambda seed: play(Path(folder), template, seed, limits),
        first=int(first),
        rounds=int(rounds),
    )


if __name__ == "__main__":
    main()
