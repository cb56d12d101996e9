"""How long after its commit at the source is a transaction in the target, at a hundred transactions a second?

MariaDB, PostgreSQL and SQLite, through capture, log and `tranlog apply` on four channels into another PostgreSQL, each
command a process of its own as in service; and a log alone, to which this program appends, each transaction durable by
itself. The clock is this machine's: it is read before COMMIT is sent to the source, or before `append`, and again when
PostgreSQL's NOTIFY of a trigger at the target arrives, which it sends after its own commit. So both commits, and the
notification, are in the figure. The anchor is what one gets from Spark without a long-running task: a structured stream
that reads the same rows from a socket, without source, capture or log, and writes them to the same target in
`foreachBatch`, one target transaction for each micro-batch.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import psycopg
from frame import Bench, Question, at_most, run

from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.log.writing.log import Log
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import pack
from tranlog.source.sqlite import connect
from tranlog.testing.servers import MariaDbServer, PostgresServer
from tranlog.types import LogicalType

QUESTION = Question(
    name="latency",
    text="How long after its commit at the source, or its append to a log, is a transaction applied, "
    "at 100 transactions a second?",
    peer="a Spark stream of micro-batches (foreachBatch, no trigger interval) from a socket to the same target",
)
RATE = 100
SECONDS = 4
TRY_SECONDS = 2
WARM_UP = 100
TABLES = 8
CHANNELS = 4
PATIENCE_S = 300.0
MUST_MS: dict[str, tuple[float, float | None]] = {"append": (10, 50), "PostgreSQL": (15, 60)}
"""Of p50 and of p99; of the others 50 ms, and none."""

TABLE = "CREATE TABLE {schema}events{number} (id BIGINT PRIMARY KEY, note VARCHAR(100))"
TRIGGER = """\
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('applied', NEW.id::text); RETURN NULL; END $$"""

SOURCE = """\
[source]
{source}
load = "none"

[shards]
rule = "table"

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

STREAM = f"""\
import sys

import psycopg
from pyspark.sql import SparkSession

port, dsn = int(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[{CHANNELS}]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "{CHANNELS}")
session = builder.getOrCreate()
target = psycopg.connect(dsn)


def write(frame, batch):
    rows = [(int(row.value), "a note") for row in frame.collect()]
    if rows:
        with target.transaction(), target.cursor() as cursor:
            cursor.executemany("INSERT INTO events0 VALUES (%s, %s)", rows)


lines = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
lines.writeStream.foreachBatch(write).start().awaitTermination()
"""


class Listener(threading.Thread):
    """Notes when each transaction's notification arrived, in ns of `time.perf_counter_ns`."""

    def __init__(self, dsn: str) -> None:
        super().__init__(name="listener")
        self._session = psycopg.connect(dsn, autocommit=True)
        self._session.execute("LISTEN applied")
        self._end = threading.Event()
        self.arrived: dict[int, int] = {}

    def run(self) -> None:
        """Listen until `stop`."""
        while not self._end.is_set():
            for told in self._session.notifies(timeout=0.5):
                self.arrived[int(told.payload)] = time.perf_counter_ns()
        self._session.close()

    def stop(self) -> None:
        """Listen no more."""
        self._end.set()
        self.join()

    def wait_for(self, number: int, check: Callable[[], None]) -> None:
        """Return when so many have arrived."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.arrived) < number:
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self.arrived)} of {number} transactions arrived within {PATIENCE_S:.0f} s")
            time.sleep(0.05)


def latencies(listener: Listener, seconds: int, commit: Callable[[int], int], check: Callable[[], None]) -> list[float]:
    """Commit at the rate wanted; return milliseconds from each COMMIT to its arrival, lowest first."""
    for number in range(WARM_UP):
        commit(number)
        time.sleep(1 / RATE)
    listener.wait_for(WARM_UP, check)
    sent: dict[int, int] = {}
    began = time.perf_counter()
    for turn in range(RATE * seconds):
        time.sleep(max(0.0, began + turn / RATE - time.perf_counter()))
        sent[WARM_UP + turn] = commit(WARM_UP + turn)
    listener.wait_for(WARM_UP + len(sent), check)
    return sorted([(listener.arrived[number] - at) / 1e6 for number, at in sent.items()])


def make_target(server: PostgresServer, database: str, schema: str = "public") -> str:
    """Make the target's tables with their triggers; return its address."""
    server.execute(f"CREATE DATABASE {database}")
    with psycopg.connect(server.dsn(database)) as session:
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        session.execute(TRIGGER)
        for number in range(TABLES):
            session.execute(TABLE.format(schema=f"{schema}.", number=number))
            session.execute(
                f"CREATE TRIGGER tell AFTER INSERT ON {schema}.events{number} FOR EACH ROW EXECUTE FUNCTION tell()"
            )
    return server.dsn(database)


@contextmanager
def processes(*commands: list[str], folder: Path) -> Iterator[Callable[[], None]]:
    """Run commands; give a check that they still run."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    running: list[subprocess.Popen[bytes]] = []
    with (folder / "output").open("ab") as output:
        for command in commands:
            running.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )

    def check() -> None:
        for one in running:
            if one.poll() is not None:
                said = (folder / "output").read_text(errors="replace")[-2000:]
                raise SystemExit(f"{one.args!r} ended with exit code {one.returncode}:\n{said}")

    try:
        yield check
        for one in running:
            one.terminate()
        for one in running:
            one.wait(60)
    finally:
        for one in running:
            one.kill()
            one.wait()


Beside = Callable[[Path], AbstractContextManager[object]]


def through_the_log(
    folder: Path, dsn: str, source: str | None, seconds: int, commit: Callable[[int], int], beside: Beside = nullcontext
) -> list[float]:
    """Apply as a command, and where there is a source capture as another; return the latencies.

    `beside`: what goes on meanwhile, by the socket of `apply`.
    """
    conf = folder / "tranlog.toml"
    conf.write_text(
        CONFIG.format(dsn=dsn, channels=CHANNELS) + ("" if source is None else SOURCE.format(source=source))
    )
    tranlog = ["-m", "tranlog", "--conf", str(conf)]
    listener = Listener(dsn)
    listener.start()
    try:
        with ExitStack() as stack:
            capture = [] if source is None else [[*tranlog, "capture"]]
            captured = stack.enter_context(processes(*capture, folder=folder))
            deadline = time.monotonic() + PATIENCE_S
            while not list((folder / "log").glob("thl.data.*")) and time.monotonic() < deadline:
                captured()
                time.sleep(0.05)
            applied = stack.enter_context(processes([*tranlog, "apply"], folder=folder))

            def check() -> None:
                captured()
                applied()

            socket_path = folder / "log" / "control" / "bench"
            while not socket_path.exists() and time.monotonic() < deadline:
                check()
                time.sleep(0.05)
            stack.enter_context(beside(socket_path))
            return latencies(listener, seconds, commit, check)
    finally:
        listener.stop()


def from_append(
    postgres: PostgresServer, folder: Path, turn: int, seconds: int, beside: Beside = nullcontext
) -> list[float]:
    """Append to a log, each transaction durable before the next is made."""
    tables = [events(number) for number in range(TABLES)]
    rule = ShardRule(kind=ShardRuleKind.TABLE)
    dsn = make_target(postgres, f"from_append{turn}", "main")
    with Log.open(str(folder / "log"), source_id="bench") as log:

        def commit(number: int) -> int:
            change = RowChange(tables[number % TABLES], Op.INSERT, None, (number, "a note"))
            at, tstamp = time.perf_counter_ns(), time.time_ns() // 1_000_000
            for fragment in pack([change], source_id="bench", event_id=f"{number};", tstamp=tstamp, rule=rule):
                log.append(fragment)
            log.commit()
            return at

        return through_the_log(folder, dsn, None, seconds, commit, beside)


def events(number: int) -> TableMap:
    """One of the tables as a log has it."""
    return TableMap(
        schema="main",
        table=f"events{number}",
        columns=(
            Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
            Column(name="note", source_type="varchar(100)", logical=LogicalType.TEXT, length=100),
        ),
        primary_key=(0,),
    )


def from_mariadb(
    mariadb: MariaDbServer, postgres: PostgresServer, folder: Path, turn: int, seconds: int
) -> list[float]:
    """Write to MariaDB."""
    name = f"bench{turn}"
    mariadb.execute(f"CREATE DATABASE {name}")
    for number in range(TABLES):
        mariadb.execute(TABLE.format(schema=f"{name}.", number=number))
    session = mariadb.connect(name, autocommit=False)
    dsn = make_target(postgres, f"from_mariadb{turn}", name)
    lines = ['kind = "mariadb"', f'host = "{mariadb.host}"', f"port = {mariadb.port}", 'user = "root"']
    lines += ['start = "earliest"', f'databases = ["{name}"]']

    def commit(number: int) -> int:
        with session.cursor() as cursor:
            cursor.execute(f"INSERT INTO events{number % TABLES} VALUES (%s, 'a note')", (number,))
        at = time.perf_counter_ns()
        session.commit()
        return at

    try:
        return through_the_log(folder, dsn, "\n".join(lines), seconds, commit)
    finally:
        session.close()


def from_postgres(
    source: PostgresServer, postgres: PostgresServer, folder: Path, turn: int, seconds: int
) -> list[float]:
    """Write to PostgreSQL, to another server than the target's."""
    name = f"bench{turn}"
    source.execute(f"CREATE DATABASE {name}")
    for number in range(TABLES):
        source.execute(TABLE.format(schema="", number=number), database=name)
    dsn = make_target(postgres, f"from_postgres{turn}")
    lines = ['kind = "postgres"', f'dsn = "{source.dsn(name)}"', f'slot = "{name}"', 'identity = "set"']

    with source.connect(name, autocommit=False) as session:

        def commit(number: int) -> int:
            session.execute(f"INSERT INTO events{number % TABLES} VALUES (%s, 'a note')", (number,))
            at = time.perf_counter_ns()
            session.commit()
            return at

        return through_the_log(folder, dsn, "\n".join(lines), seconds, commit)


def from_sqlite(postgres: PostgresServer, folder: Path, turn: int, seconds: int) -> list[float]:
    """Write to SQLite."""
    session = connect(f"{folder}/source.db")
    session.execute("PRAGMA journal_mode = WAL")
    for number in range(TABLES):
        session.execute(TABLE.format(schema="", number=number))
    dsn = make_target(postgres, f"from_sqlite{turn}", "main")

    def commit(number: int) -> int:
        session.execute("BEGIN IMMEDIATE")
        session.execute(f"INSERT INTO events{number % TABLES} VALUES (?, 'a note')", (number,))
        at = time.perf_counter_ns()
        session.execute("COMMIT")
        return at

    try:
        return through_the_log(folder, dsn, 'kind = "sqlite"\npath = "source.db"', seconds, commit)
    finally:
        session.close()


def by_micro_batches(postgres: PostgresServer, folder: Path, turn: int, seconds: int) -> list[float]:
    """Write lines to a socket that a stream of Spark's reads."""
    dsn = make_target(postgres, f"micro_batches{turn}")
    (folder / "stream.py").write_text(STREAM)
    listener = Listener(dsn)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        port = str(server.getsockname()[1])
        with processes(["stream.py", port, dsn], folder=folder) as check:
            peer, _ = server.accept()

            def commit(number: int) -> int:
                at = time.perf_counter_ns()
                peer.sendall(b"%d\n" % number)
                return at

            listener.start()
            try:
                with peer:
                    return latencies(listener, seconds, commit, check)
            finally:
                listener.stop()


def measure(bench: Bench) -> None:
    """Measure all five by turns."""
    sides = ("append", "MariaDB", "PostgreSQL", "SQLite", "micro-batches")
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    seconds = bench.size(SECONDS, trying=TRY_SECONDS)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, ExitStack() as stack:
        postgres, mariadb = stack.enter_context(PostgresServer()), stack.enter_context(MariaDbServer())
        source = stack.enter_context(PostgresServer(options={"wal_level": "logical"}))
        for turn in range(bench.rounds(3)):
            for side in sorted(found, reverse=bool(turn % 2)):
                folder = Path(name) / f"{side}{turn}"
                folder.mkdir()
                match side:
                    case "append":
                        taken = from_append(postgres, folder, turn, seconds)
                    case "MariaDB":
                        taken = from_mariadb(mariadb, postgres, folder, turn, seconds)
                    case "PostgreSQL":
                        taken = from_postgres(source, postgres, folder, turn, seconds)
                    case "SQLite":
                        taken = from_sqlite(postgres, folder, turn, seconds)
                    case _:
                        taken = by_micro_batches(postgres, folder, turn, seconds)
                found[side].append(taken)
                bench.say(f"{side}: p50 {statistics.median(taken):.1f} ms, p99 {_p99(taken):.1f} ms")
    batches = [statistics.median(taken) for taken in found.pop("micro-batches")]
    for side, rounds in found.items():
        middle = [statistics.median(taken) for taken in rounds]
        most = MUST_MS.get(side, (50, None))
        for name, figures, bound in zip(("p50", "p99"), (middle, list(map(_p99, rounds))), most, strict=True):
            must = None if bound is None else at_most(bound)
            bench.add(f"{side}, {name}", ours=figures, unit="ms", must=must)
        bench.add(f"{side}, p50 against micro-batches'", ours=middle, anchor=batches, unit="ms")


def _p99(taken: list[float]) -> float:
    return taken[len(taken) * 99 // 100]


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
