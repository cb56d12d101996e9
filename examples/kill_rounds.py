"""kill -9 of everything, again and again, under load: what was acknowledged arrives, and nothing arrives twice.

`make kill ROUNDS=n SEED=s` runs it. Writers work on MariaDB; capture carries what they commit into the log; apply
brings it into PostgreSQL with Spark on four channels. Each round ends one process with -9, or stops one and lets it go
on later, and starts again what is gone. At the end it prints one JSON object. *Acknowledged* is what a writer's COMMIT
returned for; *lost* what of that is not at the target, or in the log and not at the target; *doubled* what an audit
trigger at the target counted more often than the log holds it. It ends with 1 unless both are 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pymysql
from demo_steps import TRANLOG, Process, StepFailedError, applied_seqno, status, tranlog, wait_until
from mariadb_demo import AUDIT, logged_changes

from tranlog.testing.servers import MariaDbServer, PostgresServer

CHANNELS = 4
SCHEMAS = ("north", "east", "south", "west")
KINDS = (
    "capture",
    "driver",
    "jvm",
    "worker",
    "source_server",
    "target_server",
    "stopped_worker",
    "stopped_driver",
    "second_driver",
)

CONFIG = """\
[service]
name = "kill"
[source]
kind = "mariadb"
host = "127.0.0.1"
port = {port}
user = "root"
start = "earliest"
[log]
dir = "log"
segment_bytes = "1MB"
[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "ignore"
[pipeline]
channels = {channels}
"""


class Writer(threading.Thread):
    """Commits small transactions over a few tables, and remembers which ones the server acknowledged."""

    def __init__(self, server: MariaDbServer, number: int, seed: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.server = server
        self.number = number
        self.rng = random.Random(f"{seed}/{number}")
        self.acknowledged: list[int] = []
        self.ending = threading.Event()
        self.next_id = number * 10_000_000

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                with self.server.connect("", autocommit=False) as session, session.cursor() as cursor:
                    while not self.ending.is_set():
                        self.one(session, cursor)
                        time.sleep(0.004)
            except (pymysql.err.MySQLError, OSError):
                time.sleep(0.2)  # the server is away: it comes back

    def one(self, session: pymysql.Connection, cursor: pymysql.cursors.Cursor) -> None:
        """Commit one transaction, mostly in one schema, sometimes over two."""
        rng = self.rng
        home = SCHEMAS[self.number % len(SCHEMAS)]
        self.next_id += 1
        cursor.execute(f"INSERT INTO {home}.ledger VALUES (%s, %s)", (self.next_id, rng.randrange(1000)))
        if rng.random() < 0.5:
            cursor.execute(f"UPDATE {home}.stock SET pieces = pieces + 1 WHERE id = %s", (rng.randrange(20),))
        if rng.random() < 0.2:
            cursor.execute(f"INSERT INTO {home}.visits VALUES (%s)", (rng.randrange(3),))
        if rng.random() < 0.05:
            cursor.execute(f"DELETE FROM {home}.visits LIMIT 1")
        if rng.random() < 0.02:
            other = rng.choice([schema for schema in SCHEMAS if schema != home])
            cursor.execute(f"UPDATE {other}.stock SET pieces = pieces - 1 WHERE id = %s", (rng.randrange(20),))
        session.commit()
        self.acknowledged.append(self.next_id)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still live."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def descendants(pid: int, word: str) -> list[int]:
    """Return the processes below `pid` whose command line holds `word`."""
    found = []
    for child in children(pid):
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(child)
        found += descendants(child, word)
    return found


class Rounds:
    """The processes under test, and what is done to them."""

    def __init__(self, folder: Path, mariadb: MariaDbServer, postgres: PostgresServer, seed: int) -> None:
        self.folder = folder
        self.conf = folder / "tranlog.toml"
        self.mariadb = mariadb
        self.postgres = postgres
        self.rng = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.capture = self.start("capture")
        self.apply: Process | None = None

    def start(self, command: str, *more: str) -> Process:
        return Process(command, [*TRANLOG, "--conf", str(self.conf), command, *more], self.folder)

    def mend(self) -> None:
        """Start again what is gone. An end by itself is only right with exit code 0 or 4, or by a signal of ours."""
        for name, process in (("capture", self.capture), ("apply", self.apply)):
            code = None if process is None else process.child.poll()
            if process is not None and code is None:
                continue
            if code is not None and code not in (0, 4) and code >= 0:
                assert process is not None
                process.check()
            again = self.start(name)
            if name == "capture":
                self.capture = again
            else:
                self.apply = again

    def round(self, kind: str) -> None:
        """Do one harm."""
        time.sleep(self.rng.uniform(0.5, 3.0))
        self.mend()
        assert self.apply is not None
        driver = self.apply.child.pid
        harm: dict[str, Callable[[], bool]] = {
            "capture": lambda: self.end(self.capture.child.pid),
            "driver": lambda: self.end(driver),
            "jvm": lambda: self.end_one(descendants(driver, "java")),
            "worker": lambda: self.end_one(self.workers(driver)),
            "source_server": lambda: self.restart(self.mariadb),
            "target_server": lambda: self.restart(self.postgres),
            "stopped_worker": lambda: self.stop_and_replace(self.workers(driver), driver),
            "stopped_driver": lambda: self.stop_and_replace([driver], driver),
            "second_driver": self.second,
        }
        if harm[kind]():
            self.kills[kind] += 1

    def workers(self, driver: int) -> list[int]:
        """Return the Python workers below the JVM: the daemon's children."""
        return [child for daemon in descendants(driver, "pyspark.daemon") for child in children(daemon)]

    def end(self, pid: int) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def end_one(self, pids: list[int]) -> bool:
        return bool(pids) and self.end(self.rng.choice(pids))

    def restart(self, server: MariaDbServer | PostgresServer) -> bool:
        server.kill()
        time.sleep(self.rng.uniform(0.0, 1.0))
        server.start()
        return True

    def stop_and_replace(self, pids: list[int], driver: int) -> bool:
        """Stop a process, end the driver, start another one, and let the stopped one go on."""
        if not pids:
            return False
        pid = self.rng.choice(pids)
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False
        if pid == driver:
            successor = self.start("apply", "--take-over")
        else:
            self.end(driver)
            successor = self.start("apply")
        time.sleep(self.rng.uniform(5.0, 8.0))
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # its session was ended at the target, or its parent took it along
        self.apply = successor
        return True

    def second(self) -> bool:
        """Start a second pipeline on the same target by mistake: it refuses, with 4, or takes a dead one's place."""
        before = applied_seqno(self.conf)
        wait_until("the pipeline moves", lambda: applied_seqno(self.conf) > before or self.gone(), [], 60)
        if self.gone():
            return False
        mistake = self.start("apply")
        try:
            code = mistake.child.wait(60)
        except Exception as exc:
            mistake.kill()
            raise StepFailedError("a second driver ran beside the first") from exc
        if code != 4 and not self.gone():
            raise StepFailedError(f"a second driver ended with {code}, not 4")
        return code == 4

    def gone(self) -> bool:
        return self.apply is None or self.apply.child.poll() is not None


def make_tables(mariadb: MariaDbServer) -> None:
    """Create the schemas, each with a ledger, a hot table and one without a key, none of them empty."""
    for schema in SCHEMAS:
        mariadb.execute(f"CREATE DATABASE {schema}")
        mariadb.execute(f"CREATE TABLE {schema}.ledger (id BIGINT PRIMARY KEY, amount INT)")
        mariadb.execute(f"CREATE TABLE {schema}.stock (id INT PRIMARY KEY, pieces INT)")
        mariadb.execute(f"CREATE TABLE {schema}.visits (day INT)")
        mariadb.execute(f"INSERT INTO {schema}.ledger VALUES (0, 0)")
        mariadb.execute(f"INSERT INTO {schema}.stock VALUES " + ", ".join(f"({n}, 100)" for n in range(20)))
        mariadb.execute(f"INSERT INTO {schema}.visits VALUES (0), (0), (1)")


def put_triggers(postgres: PostgresServer) -> None:
    """Let the target count each change."""
    with postgres.connect("postgres") as session:
        session.execute(AUDIT)
        for schema in SCHEMAS:
            for table, key in (("ledger", "id"), ("stock", "id"), ("visits", "day")):
                session.execute(
                    f"CREATE TRIGGER tranlog_audit AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table} "
                    f"FOR EACH ROW EXECUTE FUNCTION tranlog_count('{key}')"
                )
        session.commit()


def captured_all(conf: Path) -> bool:
    """Whether the log holds all that the source has committed."""
    source = status(conf)["source"]
    return source is not None and str(source["captured_event_id"]).split(";")[0] == source["now_at"]


def run(folder: Path, rounds: int, seed: int) -> dict[str, object]:
    """Do the rounds and return the one object."""
    began = time.monotonic()
    with (
        MariaDbServer(directory=folder / "mariadb") as mariadb,
        PostgresServer(directory=folder / "postgres") as postgres,
    ):
        conf = folder / "tranlog.toml"
        conf.write_text(CONFIG.format(port=mariadb.port, dsn=postgres.dsn("postgres"), channels=CHANNELS))
        make_tables(mariadb)
        test = Rounds(folder, mariadb, postgres, seed)
        writers = [Writer(mariadb, number, seed) for number in range(len(SCHEMAS))]
        try:
            wait_until("capture has the tables", lambda: captured_all(conf), [test.capture], 60)
            tranlog("--conf", str(conf), "tables", "create")
            put_triggers(postgres)
            test.mend()
            for writer in writers:
                writer.start()
            order = [kind for _ in range(rounds // len(KINDS) + 1) for kind in test.rng.sample(KINDS, len(KINDS))]
            for number, kind in enumerate(order[:rounds], 1):
                test.round(kind)
                print(f"round {number} of {rounds}: {kind}, applied {applied_seqno(conf)}", file=sys.stderr, flush=True)
            for writer in writers:
                writer.ending.set()
            for writer in writers:
                writer.join(30)

            def settled(ready: Callable[[], bool]) -> Callable[[], bool]:
                def look() -> bool:
                    test.mend()
                    return ready()

                return look

            wait_until("capture has everything", settled(lambda: captured_all(conf)), [], 120)
            last = int(status(conf)["log"]["committed_seqno"])
            wait_until("everything applied", settled(lambda: applied_seqno(conf) >= last), [], 300)
            verdict = json.loads(tranlog("--conf", str(conf), "verify", "--json", codes=(0, 1)))
            return judge(conf, folder, postgres, writers, test, verdict, time.monotonic() - began)
        finally:
            for writer in writers:
                writer.ending.set()
            for process in (test.capture, test.apply):
                if process is not None:
                    process.abandon()


def judge(
    conf: Path,
    folder: Path,
    postgres: PostgresServer,
    writers: list[Writer],
    test: Rounds,
    verdict: dict[str, object],
    seconds: float,
) -> dict[str, object]:
    """Hold what was acknowledged, what the log has and what the target counted against each other."""
    logged = logged_changes(folder / "log")
    rows = postgres.execute(
        "SELECT relation, op, key, count(*) FROM tranlog_audit GROUP BY 1, 2, 3", database="postgres"
    )
    counted = Counter({(relation, op, key): count for relation, op, key, count in rows})
    there = {
        int(key)
        for schema in SCHEMAS
        for (key,) in postgres.execute(f"SELECT id FROM {schema}.ledger", database="postgres")
    }
    acknowledged = [one for writer in writers for one in writer.acknowledged]
    missing = [one for one in acknowledged if one not in there]
    log = status(conf)["log"]
    return {
        "rounds": sum(test.kills.values()),
        "kills": dict(sorted(test.kills.items())),
        "acknowledged": len(acknowledged),
        "captured": log["committed_seqno"] - log["first_seqno"] + 1,
        "applied": sum(counted.values()),
        "lost": len(missing) + sum((logged - counted).values()),
        "doubled": sum((counted - logged).values()),
        "equal": verdict["equal"],
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="kill -9 of everything under load, and nothing lost or doubled.")
    parser.add_argument("folder", nargs="?", default="build/kill", help="where everything is made")
    parser.add_argument("--rounds", type=int, default=50, help="harms to do (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="order and moments of the harms (default 1)")
    given = parser.parse_args()
    place = Path(given.folder).resolve()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        result = run(place, given.rounds, given.seed)
    except StepFailedError as exc:
        print(f"\nthe rounds failed (seed {given.seed}): {exc}\nwhat they left is in {place}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(result))
    sys.exit(0 if result["lost"] == result["doubled"] == 0 and result["equal"] else 1)
