"""How much memory does each process of a pipeline take while it catches up, and how much log is read for it?

A SQLite source holds many committed transactions. `tranlog capture` carries them into a log, then `tranlog apply` on
Spark carries the log into PostgreSQL. Each process of ours is asked for its own peak of resident memory (VmHWM) again
and again until all is applied. A worker is forked from Spark's Python daemon and shares pages with it, so a sum counts
those several times; the row "all together" is the peak of proportional shares (Pss), where the kernel tells them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from frame import Bench, Question, at_most, run
from shop import SHARDS
from start import below, is_java, is_python

from tranlog.source.sqlite import connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import PostgresServer

TRANSACTIONS = 200_000
CHANNELS = 4

QUESTION = Question(
    name="memory",
    text=f"How much memory does each process take while it catches up with {TRANSACTIONS:,} transactions?",
    peer="none, these are absolute: 500 MB for a Python process and 1,200 MB for the JVM are what a pipeline may take",
)
LOOK_S = 0.1
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
MB = 1e6
PYTHON_MOST_MB = 500
JVM_MOST_MB = 1_200

CONFIG = """\
[service]
name = "bench"

[source]
kind = "sqlite"
load = "none"
path = "{source}"

[log]
dir = "log"

[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "ignore"

[pipeline]
channels = {channels}
"""


@dataclass(slots=True)
class Peaks:
    """The highest figures seen so far, in bytes: by process, and of all at one time; bytes read by the workers."""

    names: dict[int, str] = field(default_factory=dict)
    resident: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    together: int = 0

    def look(self, pid: int, name: str) -> None:
        """Look at a process and, where it has any, at the JVM below it, its Python daemon and the workers of that."""
        found = {pid: name}
        for java in [child for child in below(pid) if is_java(child)]:
            found[java] = "JVM"
            for python in [child for child in below(java) if is_python(child)]:
                forked = any(python in below(daemon) for daemon, what in found.items() if what == "Python daemon")
                found[python] = "worker" if forked else "Python daemon"
        together = 0
        for one, what in found.items():
            self.names[one] = what
            with contextlib.suppress(OSError):  # it has ended
                self.resident[one] = max(self.resident.get(one, 0), _kilobytes(one, "status", "VmHWM"))
                self.read[one] = _number(one, "io", "rchar")
                together += _kilobytes(one, "smaps_rollup", "Pss")
        self.together = max(self.together, together)

    def of(self, name: str) -> list[int]:
        """The peaks of all processes of one name, highest first."""
        return sorted([self.resident.get(pid, 0) for pid, what in self.names.items() if what == name], reverse=True)

    def read_by(self, name: str) -> int:
        """Bytes that processes of one name have read, of files and sockets."""
        return sum([self.read.get(pid, 0) for pid, what in self.names.items() if what == name])


def _number(pid: int, file: str, field: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return 0


def _kilobytes(pid: int, file: str, field: str) -> int:
    return 1024 * _number(pid, file, field)


@contextmanager
def command(conf: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our commands; it is gone at the end of the block."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tranlog", "--conf", str(conf), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield running
        running.terminate()
        running.wait(60)
    finally:
        running.kill()
        running.wait()


def fill(path: Path, transactions: int) -> None:
    """Commit so many transactions of one to three changes at the source."""
    shop = connect(str(path))
    shop.execute("PRAGMA journal_mode = WAL")
    for shard in range(SHARDS):
        shop.execute(f"CREATE TABLE orders{shard} (id INTEGER PRIMARY KEY, customer INTEGER, state TEXT, note TEXT)")
    for number in range(transactions):
        shard = number * 7 % SHARDS
        with shop:
            shop.execute(
                f"INSERT INTO orders{shard} VALUES (?, ?, 'new', ?)", (number, number % 1_000, f"order {number} " * 4)
            )
            if number >= SHARDS and number % 3:
                shop.execute(f"UPDATE orders{shard} SET state = 'sent' WHERE id = ?", (number - SHARDS,))
    shop.close()


def measure_once(
    server: PostgresServer, folder: Path, source_path: Path, turn: int, transactions: int
) -> tuple[Peaks, Peaks, int]:
    """Fill a source, capture it, apply it; return what capture and apply took, and the bytes of the log."""
    database = f"memory{turn}"
    server.execute(f"CREATE DATABASE {database}")
    options = TargetOptions(kind="postgres", dsn=server.dsn(database))
    conf = folder / "tranlog.toml"
    conf.write_text(CONFIG.format(source=source_path, dsn=options.dsn, channels=CHANNELS))
    fill(source_path, transactions)
    log = folder / "log"
    capturing, applying = Peaks(), Peaks()
    with command(conf, "capture") as running:
        source = sqlite3.connect(f"file:{source_path}?mode=ro", uri=True)
        while source.execute("SELECT count(*) FROM (SELECT 1 FROM _tranlog_outbox LIMIT 1)").fetchone()[0]:
            capturing.look(running.pid, "capture")
            if running.poll() is not None:
                raise SystemExit(f"capture ended with exit code {running.returncode}")
            time.sleep(LOOK_S)
        source.close()
    subprocess.run(
        [sys.executable, "-m", "tranlog", "--conf", str(conf), "tables", "create"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    target = open_target(options)
    try:
        with command(conf, "apply", "--until", "now") as running:
            while running.poll() is None:
                applying.look(running.pid, "driver")
                time.sleep(LOOK_S)
            if running.returncode != 0:
                raise SystemExit(f"apply ended with exit code {running.returncode}")
    finally:
        target.close()
    return capturing, applying, sum([file.stat().st_size for file in log.glob("thl.data.*")])


def measure(bench: Bench, *, transactions: int = TRANSACTIONS) -> None:
    """Catch up, once a round."""
    rounds: list[tuple[Peaks, Peaks, int]] = []
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="tranlog-bench-"))
        # In memory where there is such a place: how long the source takes to sync is not the question here.
        memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tranlog-bench-", dir=MEMORY))
        server = stack.enter_context(PostgresServer())
        for turn in range(bench.rounds(3)):
            folder = Path(name) / str(turn)
            folder.mkdir()
            rounds.append(measure_once(server, folder, Path(memory) / f"shop{turn}.db", turn, transactions))
            bench.say(f"round {turn + 1}: {rounds[-1][2] / MB:.0f} MB of log")
    python, java = at_most(PYTHON_MOST_MB), at_most(JVM_MOST_MB)
    bench.add("capture", ours=[one[0].of("capture")[0] / MB for one in rounds], unit="MB", must=python)
    for what, must in (("driver", python), ("JVM", java), ("Python daemon", python)):
        bench.add(what, ours=[one[1].of(what)[0] / MB for one in rounds], unit="MB", must=must)
    for place in range(min([len(one[1].of("worker")) for one in rounds])):
        peaks = [one[1].of("worker")[place] / MB for one in rounds]
        bench.add(f"worker {place + 1}", ours=peaks, unit="MB", must=python)
    bench.add("driver to workers, all together", ours=[one[1].together / MB for one in rounds], unit="MB")
    bench.add("log written", ours=[one[2] / MB for one in rounds], unit="MB")
    bench.add("read by the workers", ours=[one[1].read_by("worker") / MB for one in rounds], unit="MB")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
