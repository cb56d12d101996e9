"""How long is `tranlog copy` of five small tables, from nothing: once, and until a target that follows has the rows?

A PostgreSQL as it is made, with five tables of a few hundred rows. In an empty folder: `tranlog copy` into a new SQLite
file, to its end, both sides compared in it; and `tranlog copy --follow` into an empty MariaDB, until it has every row,
Java's and Spark's start in it. What else a server must be for `--follow` it is beforehand.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pymysql
from frame import Bench, Question, at_most, run, seconds_of

from tranlog.testing.servers import MariaDbServer, PostgresServer

QUESTION = Question(
    name="copying",
    text="How long does `tranlog copy` of five small tables take, from nothing?",
    peer="none; a figure of this machine",
)
MOST_S = 15
TABLES = 5
ROWS = 400
LOOK_S = 0.05
PATIENCE_S = 300.0


def fill(source: PostgresServer) -> None:
    """Make the tables."""
    for number in range(TABLES):
        source.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, name TEXT, price NUMERIC(10,2))")
        source.execute(f"INSERT INTO t{number} SELECT n, 'name ' || n, n / 4.0 FROM generate_series(1, {ROWS}) n")


def command(*words: str) -> list[str]:
    """Return the command line of `tranlog copy`."""
    return [sys.executable, "-m", "tranlog", "copy", *words]


def once(source: PostgresServer) -> float:
    """Return the seconds of a copy, to its end."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        words = command(source.dsn(), "sqlite:///copy.db")
        return seconds_of(lambda: subprocess.run(words, cwd=place, check=True, stdout=subprocess.DEVNULL))


def followed(source: PostgresServer, target: MariaDbServer) -> float:
    """Return the seconds from the command until the target has all rows."""
    target.execute("CREATE DATABASE copied")
    counts = " + ".join(f"(SELECT count(*) FROM public.t{number})" for number in range(TABLES))
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        began = time.perf_counter()
        with (Path(place) / "err").open("wb") as err:
            words = command("--follow", "--identity", "set", source.dsn(), target.dsn("copied"))
            running = subprocess.Popen(words, cwd=place, stdout=subprocess.DEVNULL, stderr=err)
        try:
            while True:
                seen = time.perf_counter() - began
                with contextlib.suppress(pymysql.err.MySQLError):  # a table that is not made yet
                    if target.execute(f"SELECT {counts}") == [(TABLES * ROWS,)]:
                        return seen
                if running.poll() is not None or seen > PATIENCE_S:
                    raise SystemExit(f"no copy after {seen:.0f} s:\n{(Path(place) / 'err').read_text()}")
                time.sleep(LOOK_S)
        finally:
            running.terminate()
            running.wait(60)


def measure(bench: Bench) -> None:
    """Both, each from nothing."""
    if bench.wants("once"):
        with PostgresServer() as source:
            fill(source)
            bench.add("copy", ours=[once(source) for _ in range(bench.rounds(3))], unit="s", must=at_most(MOST_S))
    if bench.wants("follow"):
        seconds = []
        for _ in range(bench.rounds(3)):
            with PostgresServer(options={"wal_level": "logical"}) as source, MariaDbServer() as target:
                fill(source)
                seconds.append(followed(source, target))
        bench.add("copy --follow, rows there", ours=seconds, unit="s", must=at_most(MOST_S))


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
