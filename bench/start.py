"""How long from `tranlog run`, and from `tranlog apply`, to the first applied transaction, and where does it go?

A SQLite source holds a few committed transactions, or a log does; a PostgreSQL target is empty. The command's processes
are watched from outside: the time until a JVM appears is Python's imports and the pipeline's own preparations, until
Spark's Python daemon appears the JVM's, until a channel is claimed at the target the first task's, until its position
moves the first rows'. Held against the least that anybody pays for Spark: a bare session that runs one trivial Python
task (an RDD's, since `mapInArrow` asks for pandas, which tranlog does without).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from frame import Bench, Question, at_most, run, seconds_of

from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.ids import NO_SEQNO
from tranlog.log.writing.log import Log
from tranlog.source.packer import pack
from tranlog.source.sqlite import connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import PostgresServer
from tranlog.types import LogicalType

QUESTION = Question(
    name="start",
    text="How long does it take from `tranlog run`, and from `tranlog apply`, to the first transaction applied at the "
    "target?",
    peer="a new Python process that starts a bare PySpark session and runs one trivial Python task on it",
)
CHANNELS = 4
LOOK_S = 0.005
QUIET = subprocess.DEVNULL
PATIENCE_S = 300.0
PHASES = ("Python", "JVM", "first task", "first rows")

MOST_S = 8
ARTICLES = 20
STOCK = TableMap(
    schema="main",
    table="stock",
    columns=(
        Column(name="article", source_type="INTEGER", logical=LogicalType.INTEGER, nullable=False),
        Column(name="pieces", source_type="INTEGER", logical=LogicalType.INTEGER),
    ),
    primary_key=(0,),
)

SOURCE = """\
[source]
kind = "sqlite"
load = "none"
path = "shop.db"

"""
CONFIG = """\
[service]
name = "bench"

[log]
dir = "log"

[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "ignore"

[pipeline]
channels = {channels}
"""

BARE = f"""\
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[{CHANNELS}]").config("spark.ui.enabled", "false")
session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
assert session.sparkContext.parallelize(range(4), 4).mapPartitions(lambda numbers: numbers).count() == 4
"""


def below(pid: int) -> Iterator[int]:
    """Yield the processes that descend from `pid`, parents first."""
    for task in (f"/proc/{pid}/task/{thread}/children" for thread in threads(pid)):
        try:
            found = Path(task).read_text().split()
        except OSError:  # it has ended
            continue
        for child in map(int, found):
            yield child
            yield from below(child)


def threads(pid: int) -> list[str]:
    """Return a process's threads, none where it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def is_java(pid: int) -> bool:
    """Whether a process is a JVM that will stay: the one that only builds the command line does not count."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"java" in command.partition(b"\0")[0] and b"launcher.Main" not in command


def is_python(pid: int) -> bool:
    """Whether a process is Python's."""
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False


def wait_for(found: Callable[[], bool], running: subprocess.Popen[bytes], what: str) -> None:
    """Look until it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        if running.poll() is not None:
            raise SystemExit(f"waiting for {what}: the command ended with exit code {running.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"waiting for {what}: not within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)


def fill_source(folder: Path) -> None:
    """Commit a few transactions at a SQLite source."""
    shop = connect(f"{folder}/shop.db")
    shop.execute("CREATE TABLE stock (article INTEGER PRIMARY KEY, pieces INTEGER)")
    for article in range(ARTICLES):
        shop.execute("INSERT INTO stock VALUES (?, 3)", (article,))
    shop.close()


def fill_log(folder: Path) -> None:
    """Commit the same to a log."""
    with Log.open(f"{folder}/log", source_id="shop") as log:
        for article in range(ARTICLES):
            change = RowChange(STOCK, Op.INSERT, None, (article, 3))
            tstamp = time.time_ns() // 1_000_000
            for fragment in pack([change], source_id="shop", event_id=f"{article};", tstamp=tstamp):
                log.append(fragment)
        log.commit()


def start_ours(server: PostgresServer, place: Path, turn: int, command: str) -> list[float]:
    """Run `run` or `apply` with what it reads and a target of its own; return the seconds of each phase."""
    name = f"{command}{turn}"
    folder = place / name
    folder.mkdir()
    server.execute(f"CREATE DATABASE {name}")
    options = TargetOptions(kind="postgres", dsn=server.dsn(name))
    conf = folder / "tranlog.toml"
    if command == "run":
        fill_source(folder)
    else:
        fill_log(folder)
    conf.write_text((SOURCE if command == "run" else "") + CONFIG.format(dsn=options.dsn, channels=CHANNELS))
    server.execute("CREATE SCHEMA main", database=name)
    server.execute("CREATE TABLE main.stock (article bigint PRIMARY KEY, pieces bigint)", database=name)
    target = open_target(options)
    target.positions.ensure_tables()
    marks = [time.perf_counter()]
    running = subprocess.Popen(
        [sys.executable, "-m", "tranlog", "--conf", str(conf), command],
        stdin=QUIET,
        stdout=QUIET,
        stderr=QUIET,
    )

    def rows_moved(*, first_only: bool) -> bool:
        rows = target.positions.read_channels("bench")
        return any(row.session if first_only else row.applied_seqno > NO_SEQNO for row in rows)

    def java() -> list[int]:
        return [pid for pid in below(running.pid) if is_java(pid)]

    try:
        for what, found in (
            ("the JVM", lambda: bool(java())),
            ("the Python daemon", lambda: any(is_python(child) for pid in java() for child in below(pid))),
            ("a claimed channel", lambda: rows_moved(first_only=True)),
            ("an applied transaction", lambda: rows_moved(first_only=False)),
        ):
            wait_for(found, running, what)
            marks.append(time.perf_counter())
    finally:
        running.terminate()
        try:
            running.wait(60)
        finally:
            running.kill()
            target.close()
    return [after - before for before, after in pairwise(marks)]


def start_bare(place: Path) -> float:
    """Run the bare session; return its seconds from start to the end of the task."""
    command = [sys.executable, "-c", BARE]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def work() -> None:
        subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)

    return seconds_of(work)


def measure(bench: Bench) -> None:
    """Start all by turns."""
    ours: dict[str, list[list[float]]] = {"run": [], "apply": []}
    bare: list[float] = []
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, PostgresServer() as server:
        place = Path(name)
        start_bare(place)  # what the page cache does for the first is nobody's merit
        for turn in range(bench.rounds()):
            for side in ("run", "bare", "apply")[:: -1 if turn % 2 else 1]:
                if side == "bare":
                    bare.append(start_bare(place))
                else:
                    ours[side].append(start_ours(server, place, turn, side))
            bench.say(f"run {sum(ours['run'][-1]):.1f} s, apply {sum(ours['apply'][-1]):.1f} s, bare {bare[-1]:.1f} s")
    taken = {command: [sum(phases) for phases in rounds] for command, rounds in ours.items()}
    bench.add("apply to first applied", ours=taken["apply"], unit="s", must=at_most(MOST_S))
    for command, rounds in ours.items():
        bench.add(f"{command} to first applied, against bare Spark", ours=taken[command], anchor=bare, unit="s")
        for number, phase in enumerate(PHASES):
            bench.add(f"{command}, of it: {phase}", ours=[phases[number] for phases in rounds], unit="s")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
