"""How fast is `tranlog verify --live`, in rows per second, against reading the same rows by the same two drivers?

A table in MariaDB and its copy in PostgreSQL, with a pipeline between that runs and rests. Ours counts from the request
until the verdict is stored: two snapshots, the rows of both, their sums, the log between. The peer reads the rows of
both tables as the drivers give them, PyMySQL and psycopg, in two processes at once, and does nothing with them.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from frame import Bench, Question, at_least, run, seconds_of
from rows_there import ROWS, TABLE, TRY_ROWS, Running, count, fill, mariadb, new_database, pipeline, postgres

from tranlog.testing.servers import MariaDbServer, PostgresServer

QUESTION = Question(
    name="live_verify",
    text="How fast does `tranlog verify --live` compare two tables, in rows of each per second?",
    peer="the rows of both read by PyMySQL and psycopg, in two processes at once",
)
MUST = 0.5

_READ_MARIADB = """\
import pymysql, pymysql.cursors
session = pymysql.connect(host={host!r}, port={port}, user="root", cursorclass=pymysql.cursors.SSCursor)
cursor = session.cursor()
cursor.execute("SELECT * FROM {table}")
print(sum(1 for _ in cursor))
"""
_READ_POSTGRES = """\
import psycopg
with psycopg.connect({dsn!r}) as session, session.cursor(name="rows") as cursor:
    cursor.itersize = 10_000
    cursor.execute("SELECT * FROM {table}")
    print(sum(1 for _ in cursor))
"""


def ours(running: Running, rows: int) -> float:
    """Return the rows per second of a verification."""
    return rows / seconds_of(lambda: running.tranlog("verify", "--live", "--tables", TABLE))


def both_read(source: MariaDbServer, target: PostgresServer, database: str, rows: int) -> float:
    """Return the rows per second of two drivers at once."""
    programs = [
        _READ_MARIADB.format(host=source.host, port=source.port, table=TABLE),
        _READ_POSTGRES.format(dsn=target.dsn(database), table=TABLE),
    ]

    def read() -> None:
        children = [
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for program in programs
        ]
        told = [child.communicate()[0].strip() for child in children]
        if told != [str(rows)] * 2:
            raise SystemExit(f"rows read: {told}, not {rows}")

    return rows / seconds_of(read)


def measure(bench: Bench) -> None:
    """A loaded table, then both by turns."""
    rows = bench.size(ROWS, trying=TRY_ROWS)
    with mariadb() as source, postgres() as target:
        fill(source, rows)
        database = new_database(target)
        with pipeline(source, target, database) as running:
            running.load()
            with closing(target.connect(database)) as session:
                session.execute(f"ANALYZE {TABLE}")
            if count(target, database) != rows:
                raise SystemExit("the rows did not all come")
            bench.compare(
                "MariaDB and PostgreSQL",
                ours=lambda: ours(running, rows),
                peer=lambda: both_read(source, target, database, rows),
                unit="rows/s",
                must=at_least(MUST),
                rounds=3,
            )


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
