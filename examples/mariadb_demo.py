"""MariaDB under sysbench to log to Spark to PostgreSQL, with a kill -9 of both ends in the middle.

`make demo-mariadb` runs it. It starts a MariaDB and a PostgreSQL of its own, on loopback, in build/mariadb-demo.
Capture starts before sysbench prepares its tables; then sysbench writes, one process per schema, and beside it a
program whose transactions cross schemas and now and then use a table without a key. Channels meet by write sets. A
filter leaves a column out; while all runs, the pipeline comes to fewer channels (`tranlog reload`), and capture and
apply are killed once each. At the end the tables are compared, and an audit trigger's counts at the target with the
log's: equal tables alone would not show a change that was applied twice.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from demo_steps import (
    TRANLOG,
    Process,
    StepFailedError,
    applied_seqno,
    beat,
    invite,
    look,
    look_at_stores,
    reload,
    say,
    status,
    summary,
    tranlog,
    wait_for_pipeline,
    wait_until,
)
from tranlog import LogReader, Op, RowChange, value_text
from tranlog.testing.servers import MariaDbServer, PostgresServer, ServerFailedError, ServerMissingError

CHANNELS = 4
SECONDS = 25
"""How long sysbench writes: long enough for both kills to fall into it."""

CONFIG = """\
[service]
name = "sysbench"

[source]
kind = "mariadb"
load = "none"
host = "127.0.0.1"
port = {mariadb_port}
user = "root"
start = "earliest"

[log]
dir = "log"

[shards]
rule = "schema"
by = "writes"    # transactions that touch no key in common run at once, in one schema too
independent_triggers = ["tranlog_audit"]

[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "ignore"   # `tranlog tables create` makes the tables

[pipeline]
channels = {channels}

[[filter]]
kind = "drop"    # sysbench's padding, which nobody reads
table = "*.sbtest?"
columns = ["pad"]
"""

AUDIT = """\
CREATE TABLE tranlog_audit (relation text NOT NULL, op text NOT NULL, key text NOT NULL);
CREATE FUNCTION tranlog_count() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    image jsonb := to_jsonb(CASE TG_OP WHEN 'INSERT' THEN NEW ELSE OLD END);
    key text := '';
BEGIN
    FOR i IN 0 .. TG_NARGS - 1 LOOP
        key := key || '|' || coalesce(image ->> TG_ARGV[i], 'NULL');
    END LOOP;
    INSERT INTO tranlog_audit VALUES (TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, TG_OP, key);
    RETURN NULL;
END $$;
"""


class Crossing(threading.Thread):
    """A program whose transactions touch several schemas, and some a table that has no key: these run alone."""

    def __init__(self, server: MariaDbServer, schemas: list[str], transactions: int, table_size: int) -> None:
        super().__init__(name="crossing")
        self.server = server
        self.schemas = schemas
        self.transactions = transactions
        self.table_size = table_size
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.write(random.Random("crossing"))
        except BaseException as exc:
            self.failure = exc

    def write(self, rng: random.Random) -> None:
        """Commit the transactions, one in ten of them rolled back instead."""
        import pymysql

        with self.server.connect("", autocommit=False) as session, session.cursor() as cursor:
            done = 0
            while done < self.transactions:
                try:
                    for schema in rng.sample(self.schemas, min(2, len(self.schemas))):
                        row = rng.randrange(1, self.table_size + 1)
                        cursor.execute(f"UPDATE {schema}.sbtest1 SET k = k + 1 WHERE id = %s", (row,))
                    if rng.random() < 0.1:
                        self.visit(cursor, rng)
                    if rng.random() < 0.1:
                        session.rollback()
                        continue
                    session.commit()
                    done += 1
                except pymysql.err.OperationalError as exc:
                    if exc.args[0] not in (1205, 1213):  # lock wait, deadlock: sysbench was quicker
                        raise
                    session.rollback()
                time.sleep(0.01)

    def visit(self, cursor: Any, rng: random.Random) -> None:
        """Change rows of the table without a key."""
        visits = f"{self.schemas[0]}.visits"
        cursor.execute(f"INSERT INTO {visits} VALUES (%s, %s)", (rng.randrange(5), rng.choice("AB")))
        if rng.random() < 0.5:
            cursor.execute(f"UPDATE {visits} SET day = day + 1 LIMIT 1")
        if rng.random() < 0.4:
            cursor.execute(f"DELETE FROM {visits} LIMIT 1")


def sysbench(step: str, script: str, schema: str, port: int, options: argparse.Namespace) -> list[str]:
    """Return a sysbench command line."""
    return [
        *("sysbench", script, "--db-driver=mysql", "--mysql-host=127.0.0.1", f"--mysql-port={port}"),
        *("--mysql-user=root", f"--mysql-db={schema}", "--tables=2", f"--table-size={options.table_size}"),
        *("--point-selects=1", "--range-selects=off", f"--events={options.events}", "--time=0", "--threads=2"),
        *(f"--rate={max(20, options.events // SECONDS)}", step),
    ]


def logged_changes(directory: Path) -> Counter[tuple[str, str, str]]:
    """Count the log's row changes by table, operation and key, as the audit trigger does at the target."""
    counts: Counter[tuple[str, str, str]] = Counter()
    reader = LogReader.open(str(directory))
    with reader.cursor(committed_only=True) as cursor:
        cursor.seek(reader.range().first_seqno)
        while (transaction := cursor.next()) is not None:
            for change in transaction.changes():
                if isinstance(change, RowChange):
                    image = change.after if change.op is Op.INSERT else change.before
                    assert image is not None
                    key = "".join("|" + value_text(value) for value in change.table.key_of(image))
                    counts[change.table.name, change.op.name, key] += 1
    reader.close()
    return counts


def run(folder: Path, options: argparse.Namespace) -> None:
    """Do the whole job in `folder`. Raises StepFailedError where a step does not do what it must."""
    schemas = [f"shop{number}" for number in range(1, options.schemas + 1)]
    conf = folder / "tranlog.toml"
    processes: list[Process] = []

    def start(name: str, *command: str) -> Process:
        process = Process(name, list(command), folder)
        processes.append(process)
        return process

    def capture() -> Process:
        return start("capture", *TRANLOG, "--conf", str(conf), "capture")

    def apply() -> Process:
        return start("apply", *TRANLOG, "--conf", str(conf), "apply")

    def captured_all() -> bool:
        source = status(conf)["source"]
        return str(source["captured_event_id"]).split(";")[0] == source["now_at"]

    with (
        MariaDbServer(directory=folder / "mariadb") as mariadb,
        PostgresServer(directory=folder / "postgres") as postgres,
    ):
        conf.write_text(
            CONFIG.format(mariadb_port=mariadb.port, dsn=postgres.dsn("postgres"), channels=options.channels)
        )
        try:
            say(f"1  a private MariaDB and a private PostgreSQL; capture from the start; {len(schemas)} schema(s)")
            following = capture()
            wait_until("capture runs", lambda: status(conf)["log"] is not None, [following], 300)
            for schema in schemas:
                mariadb.execute(f"CREATE DATABASE {schema}")
            mariadb.execute(f"CREATE TABLE {schemas[0]}.visits (day INT, customer VARCHAR(20))")
            mariadb.execute(f"INSERT INTO {schemas[0]}.visits VALUES (0, 'A'), (0, NULL)")
            for schema in schemas:
                prepare = sysbench("prepare", "oltp_read_write", schema, mariadb.port, options)
                done = subprocess.run(prepare, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise StepFailedError(f"sysbench prepare: {done.stdout}{done.stderr}")
            wait_until("capture has the tables", captured_all, [following], 300)
            tranlog("--conf", str(conf), "tables", "create")
            audit(postgres, schemas)
            say(f"2  Spark applies on {options.channels} channels, without the column pad")
            applying = apply()
            prepared = int(status(conf)["log"]["committed_seqno"])
            invite(conf)
            wait_for_pipeline(conf, "--applied", str(prepared), processes=[following, applying], timeout_s=300)
            say(f"3  sysbench writes {options.events} transactions per schema, {options.cross} more cross schemas")
            began = time.monotonic()
            writers = []
            for number, schema in enumerate(schemas):
                script = "oltp_insert" if number >= 2 else "oltp_read_write"
                writers.append(start(f"sysbench-{schema}", *sysbench("run", script, schema, mariadb.port, options)))
            crossing = Crossing(mariadb, schemas, options.cross, options.table_size)
            crossing.start()
            some = prepared + options.events * len(schemas) // 6
            wait_for_pipeline(conf, "--applied", str(some), processes=[following, applying], timeout_s=300)
            look(conf)
            following.kill()
            say("4  kill -9 of the capture, and start it again")
            following = capture()
            more = some + (some - prepared)
            wait_for_pipeline(conf, "--applied", str(more), processes=[following, applying], timeout_s=300)
            fewer = max(1, options.channels - 1)
            say(f"5  {fewer} channels instead of {options.channels} from now on: all come to one seqno and go on")
            reload(conf, channels=(options.channels, fewer))
            applying.kill()
            say(f"6  kill -9 of the pipeline at seqno {applied_seqno(conf)}, and start it again")
            applying = apply()
            for writer in writers:
                writer.finish(300)
            crossing.join(300)
            if crossing.failure is not None or crossing.is_alive():
                raise StepFailedError(f"the crossing transactions: {crossing.failure!r}")
            wait_until("capture has everything", captured_all, [following, applying], 300)
            last = beat(conf, "evening")
            following.stop()
            say(f"7  a heartbeat behind all of it, seqno {last}: when that is applied, everything is")
            wait_for_pipeline(conf, "--applied", str(last), processes=[applying], timeout_s=300)
            seconds = time.monotonic() - began
            look(conf)
            look_at_stores(conf)
            applying.stop()
            say("8  compare source and target, and the audit trigger's counts with the log's\n")
            verdict = json.loads(tranlog("--conf", str(conf), "verify", "--json", codes=(0, 1)))
            summary(status(conf), verdict, seconds=seconds)
            compare_counts(logged_changes(folder / "log"), postgres)
        finally:
            for process in processes:
                process.abandon()


def audit(postgres: PostgresServer, schemas: list[str]) -> None:
    """Put the counting trigger on every table at the target."""
    with postgres.connect("postgres") as session:
        session.execute(AUDIT)
        tables = [(schema, f"sbtest{n}", "'id'") for schema in schemas for n in (1, 2)]
        tables.append((schemas[0], "visits", "'day', 'customer'"))
        for schema, table, key in tables:
            session.execute(
                f"CREATE TRIGGER tranlog_audit AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table} "
                f"FOR EACH ROW EXECUTE FUNCTION tranlog_count({key})"
            )
        session.commit()


def compare_counts(logged: Counter[tuple[str, str, str]], postgres: PostgresServer) -> None:
    """Hold the audit's counts against the log's; raise StepFailedError where they differ."""
    rows = postgres.execute(
        "SELECT relation, op, key, count(*) FROM tranlog_audit GROUP BY 1, 2, 3", database="postgres"
    )
    counted = Counter({(relation, op, key): count for relation, op, key, count in rows})
    if counted != logged:
        doubled, lost = counted - logged, logged - counted
        raise StepFailedError(
            f"{sum(doubled.values())} changes were applied twice, {sum(lost.values())} were lost; the first: "
            f"{next(iter(doubled.items()), None)}, {next(iter(lost.items()), None)}"
        )
    say(f"no transaction was applied twice: {sum(counted.values())} row changes counted at the target as in the log")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MariaDB under sysbench to PostgreSQL, through log and Spark.")
    parser.add_argument("folder", nargs="?", default="build/mariadb-demo", help="where everything is made")
    parser.add_argument("--schemas", type=int, default=4, help="schemas, each a shard (default 4)")
    parser.add_argument("--events", type=int, default=5000, help="sysbench transactions per schema (default 5000)")
    parser.add_argument("--cross", type=int, default=300, help="transactions that cross schemas (default 300)")
    parser.add_argument("--table-size", type=int, default=1000, help="rows per table at the start (default 1000)")
    parser.add_argument("--channels", type=int, default=CHANNELS, help="channels of the pipeline (default 4)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = parse(sys.argv[1:])
    place = Path(given.folder).resolve()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        run(place, given)
    except (StepFailedError, ServerFailedError, ServerMissingError) as exc:
        print(f"\nthe demo failed: {exc}\nwhat it left is in {place}", file=sys.stderr)
        sys.exit(1)
