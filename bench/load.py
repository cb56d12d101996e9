"""How fast do rows that are there come to a target: against COPY by a pipe, pg_chameleon, a subscription's first copy?

A table of a million rows, from MariaDB and from PostgreSQL into PostgreSQL. Ours is `tranlog load` in a pipeline that
runs: counted from the command, its own start in it, until the target has applied all; the rows go through the log,
which is durable, and nothing is locked.

- COPY by a pipe: the source's own client prints the rows, `psql` copies them in: nobody can write while it is to be
  exact, nothing is kept, and what comes later does not follow.
- pg_chameleon's `init_replica`, with the settings of its own example, which makes the table and its key too.
- A logical subscription's initial copy: from `CREATE SUBSCRIPTION` until its table is ready.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from apply_peers import CHAMELEON_CONFIG, Chameleon, chameleon_python
from frame import Bench, Question, at_least, run, seconds_of
from rows_there import ROWS, SCHEMA, TABLE, TRY_ROWS, count, fill, mariadb, new_database, pipeline, postgres, until

from tranlog.testing.servers import Address, MariaDbServer, PostgresServer

QUESTION = Question(
    name="load",
    text="How fast does `tranlog load` bring a table's rows to a PostgreSQL, in a pipeline that runs?",
    peer="in each row the one that it names: COPY out and in by a pipe, pg_chameleon 2.0.21, a logical subscription",
)
PIPE = 0.4
CHAMELEON = 3


def ours(source: Address, target: PostgresServer, rows: int) -> float:
    """Return the rows per second of a load."""
    database = new_database(target)
    with pipeline(source, target, database) as running:
        seconds = seconds_of(running.load)
        check(target, database, rows)
    return rows / seconds


def pipe(source: Address, target: PostgresServer, rows: int) -> float:
    """Return the rows per second of the source's own client with `psql` behind it."""
    database = new_database(target, with_table=True)
    if isinstance(source, MariaDbServer):
        out = ["mariadb", "--no-defaults", f"--host={source.host}", f"--port={source.port}", "--user=root"]
        out += ["--batch", "--skip-column-names", "--quick", "--execute", f"SELECT * FROM {TABLE}"]
    else:
        out = ["psql", "-qX", source.dsn("postgres"), "-c", f"COPY {TABLE} TO STDOUT"]

    def copy() -> None:
        with subprocess.Popen(out, stdout=subprocess.PIPE) as reading:
            into = ["psql", "-qX", target.dsn(database), "-c", f"COPY {TABLE} FROM STDIN"]
            subprocess.run(into, stdin=reading.stdout, check=True)

    seconds = seconds_of(copy)
    check(target, database, rows)
    return rows / seconds


def subscription(source: PostgresServer, target: PostgresServer, rows: int) -> float:
    """Return the rows per second of a subscription's initial copy."""
    database = new_database(target, with_table=True)
    at = f"host={source.host} port={source.port} user=postgres dbname=postgres"
    source.execute(f"CREATE PUBLICATION {database} FOR TABLE {TABLE}")

    def copy() -> None:
        sql = f"CREATE SUBSCRIPTION {database} CONNECTION '{at}' PUBLICATION {database}"
        target.execute(sql, database=database)
        ready = "SELECT srsubstate::text FROM pg_subscription_rel"
        until(lambda: target.execute(ready, database=database) == [("r",)], "a subscription")

    seconds = seconds_of(copy)
    check(target, database, rows)
    target.execute(f"DROP SUBSCRIPTION {database}", database=database)
    source.execute(f"DROP PUBLICATION {database}")
    return rows / seconds


def chameleon(interpreter: Path, source: MariaDbServer, target: PostgresServer, rows: int) -> float:
    """Return the rows per second of pg_chameleon's init_replica."""
    database = new_database(target)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        home = Path(place)
        theirs = Chameleon(interpreter, home, source, target, database)
        text = CHAMELEON_CONFIG.format(
            home=home, my=source, pg=target, database=database, schemas=f"{SCHEMA}: {SCHEMA}"
        )
        text = text.replace("utf8mb4", "utf8")  # it opens a file of its own with that as Python's encoding
        (home / ".pg_chameleon" / "configuration" / "default.yml").write_text(text)
        theirs.command("create_replica_schema")
        theirs.command("add_source", "--source", "mysql")
        seconds = seconds_of(lambda: theirs.command("init_replica", "--source", "mysql"))
    check(target, database, rows)
    return rows / seconds


def check(target: PostgresServer, database: str, rows: int) -> None:
    """Refuse a figure of rows that did not all come."""
    found = count(target, database)
    if found != rows:
        raise SystemExit(f"{database} has {found} rows of {rows}")


def against(bench: Bench, sides: dict[str, Callable[[], float]], musts: dict[str, float | None], name: str) -> None:
    """Run ours and the peers by turns, and add a row for each of these."""
    found = bench.by_turns(sides, rounds=3, warm_up=False)
    for peer, must in musts.items():
        if peer in found:
            bound = None if must is None else at_least(must)
            bench.add(f"{name}, {peer}", ours=found["ours"], anchor=found[peer], unit="rows/s", must=bound)


def measure(bench: Bench) -> None:
    """Both kinds of sources."""
    rows = bench.size(ROWS, trying=TRY_ROWS)
    with postgres() as target:
        if bench.wants("mariadb"):
            interpreter = chameleon_python(bench)
            with mariadb() as source:
                fill(source, rows)
                sides = {"ours": lambda: ours(source, target, rows), "COPY": lambda: pipe(source, target, rows)}
                if interpreter is not None:
                    known = interpreter
                    sides["init_replica"] = lambda: chameleon(known, source, target, rows)
                against(bench, sides, {"COPY": PIPE, "init_replica": CHAMELEON}, "from MariaDB")
        if bench.wants("postgres"):
            with postgres(wal_level="logical") as origin:
                fill(origin, rows)
                sides = {
                    "ours": lambda: ours(origin, target, rows),
                    "COPY": lambda: pipe(origin, target, rows),
                    "subscription": lambda: subscription(origin, target, rows),
                }
                against(bench, sides, {"COPY": PIPE, "subscription": None}, "from PostgreSQL")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
