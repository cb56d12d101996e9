"""PostgreSQL under pgbench to log to Spark to MariaDB: filled before capture begins, loaded while it is written.

`make demo-postgres` runs it. It starts a PostgreSQL and a MariaDB of its own, on loopback, in build/postgres-demo.
pgbench makes and fills its tables, a schema each, and goes on to write; only then capture begins, with a load of all
that is there. Capture, the pipeline and PostgreSQL itself are killed in the midst of the load, and once more behind it.
At the end the tables are compared; pgbench_history, which has no key and only grows, would show what came twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from demo_steps import (
    TRANLOG,
    Process,
    StepFailedError,
    applied_seqno,
    invite,
    look,
    say,
    show,
    status,
    summary,
    tranlog,
    wait_for_pipeline,
    wait_until,
)
from tranlog.testing.servers import MariaDbServer, OptionValue, PostgresServer, ServerFailedError, ServerMissingError

CONFIG = """\
[service]
name = "pgbench"

[source]
kind = "postgres"
dsn = "{source}"
identity = "set"   # REPLICA IDENTITY FULL, which capture sets itself

[log]
dir = "log"

[shards]
rule = "schema"

[target]
kind = "mariadb"
dsn = "{target}"
ddl = "ignore"     # `tranlog tables create` makes the tables

[pipeline]
channels = {channels}
"""
LOGICAL: dict[str, OptionValue] = {"wal_level": "logical"}
ROWS = 100_000
"""Accounts of a schema at scale 1."""


def pgbench(server: PostgresServer, schema: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return a pgbench command line and its environment."""
    command = [
        "pgbench",
        "--host=127.0.0.1",
        f"--port={server.port}",
        f"--username={server.user}",
        *arguments,
        "postgres",
    ]
    return command, {**os.environ, "PGOPTIONS": f"-c search_path={schema}", "PGPASSWORD": server.password}


def hold(conf: Path, capture: Process, rows_per_second: int) -> None:
    """Let the load that a new capture begins with wait, and then take its time, so that the kills fall into it."""
    request = conf.parent / "log" / "loads" / "first.json"
    while not request.exists():
        capture.check()
        time.sleep(0.01)
    capture.child.send_signal(signal.SIGSTOP)
    try:
        tranlog("--conf", str(conf), "load", "--pause", "--rows-per-second", str(rows_per_second))
    finally:
        capture.child.send_signal(signal.SIGCONT)


def run(folder: Path, options: argparse.Namespace) -> None:
    """Do the whole job in `folder`. Raises StepFailedError where a step does not do what it must."""
    schemas = [f"bank{number}" for number in range(1, options.schemas + 1)]
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

    def loads() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(tranlog("--conf", str(conf), "load", "--json"))["loads"]
        return found

    def in_the_load(rows: int) -> None:
        wait_until(
            f"{rows} rows are loaded",
            lambda: all(one["progress"]["rows"] >= rows for one in loads()),
            [following, *applying],
            300,
        )
        if not loads():
            raise StepFailedError("the load was over before the kill: give it more rows by --scale")

    with (
        PostgresServer(directory=folder / "postgres", options=LOGICAL) as postgres,
        MariaDbServer(directory=folder / "mariadb") as mariadb,
    ):
        mariadb.execute("CREATE DATABASE bank")
        conf.write_text(
            CONFIG.format(source=postgres.dsn("postgres"), target=mariadb.dsn("bank"), channels=options.channels)
        )
        applying: list[Process] = []
        try:
            say(f"1  a private PostgreSQL and a private MariaDB; pgbench fills {len(schemas)} schema(s), and goes on")
            for schema in schemas:
                postgres.execute(f"CREATE SCHEMA {schema}", database="postgres")
                command, environ = pgbench(postgres, schema, "--initialize", f"--scale={options.scale}", "--quiet")
                done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise StepFailedError(f"pgbench: {done.stdout}{done.stderr}")
            total = len(schemas) * options.scale * ROWS
            writers = [_Pgbench(postgres, schema, options, folder) for schema in schemas]
            say("2  capture begins, with a load of all that is there; Spark applies it")
            following = capture()
            hold(conf, following, max(1, total // options.seconds))
            wait_until("capture begins", lambda: int(status(conf)["log"]["committed_seqno"]) > 0, [following], 300)
            tranlog("--conf", str(conf), "tables", "create", "--from", "source")
            applying = [apply()]
            began = time.monotonic()
            invite(conf)
            wait_until("changes are applied", lambda: applied_seqno(conf) > 2, [following, *applying], 300)
            show(tranlog("--conf", str(conf), "load", "--resume"))
            in_the_load(total // 20)
            following.kill()
            say("3  kill -9 of the capture in the load, and start it again: it goes on where the log ends")
            following = capture()
            in_the_load(total // 8)
            for writer in writers:
                writer.stop()
            postgres.kill()
            postgres.start()
            say("4  kill -9 of PostgreSQL in the load, and start it again: capture finds it by itself")
            writers = [_Pgbench(postgres, schema, options, folder) for schema in schemas]
            in_the_load(total // 5)
            applying[0].kill()
            say(f"5  kill -9 of the pipeline in the load, at seqno {applied_seqno(conf)}, and start it again")
            applying = [apply()]
            wait_for_pipeline(conf, "--state", "ONLINE", processes=[following, *applying], timeout_s=300)
            look(conf)
            wait_until("the load is at its end", lambda: not loads(), [following, *applying], 600)
            say("6  the load is at its end; kill -9 of capture and pipeline once more, while pgbench writes")
            following.kill()
            applying[0].kill()
            following, applying = capture(), [apply()]
            before = int(status(conf)["log"]["committed_seqno"])
            wait_until(
                "capture goes on", lambda: int(status(conf)["log"]["committed_seqno"]) > before + 50, [following], 300
            )
            for writer in writers:
                writer.stop()
            following.stop()
            tranlog("--conf", str(conf), "capture", "--once")
            last = int(status(conf)["log"]["committed_seqno"])
            say(f"7  all is captured, up to seqno {last}: when that is applied, everything is")
            wait_for_pipeline(conf, "--applied", str(last), processes=applying, timeout_s=600)
            seconds = time.monotonic() - began
            applying[0].stop()
            say("8  compare source and target\n")
            verdict = json.loads(tranlog("--conf", str(conf), "verify", "--json", codes=(0, 1)))
            summary(status(conf), verdict, seconds=seconds)
        finally:
            for process in processes:
                process.abandon()


class _Pgbench:
    """A pgbench that writes one schema until it is stopped, or its server dies."""

    def __init__(self, server: PostgresServer, schema: str, options: argparse.Namespace, folder: Path) -> None:
        arguments = ("--no-vacuum", "--client=2", f"--rate={options.rate}", "--time=3600")
        command, environ = pgbench(server, schema, *arguments)
        with (folder / f"pgbench-{schema}.log").open("ab") as output:
            self.child = subprocess.Popen(command, env=environ, stdout=output, stderr=output)

    def stop(self) -> None:
        """End it, in whatever transaction it is."""
        self.child.kill()
        self.child.wait()


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="PostgreSQL under pgbench to MariaDB, loaded and streamed.")
    parser.add_argument("folder", nargs="?", default="build/postgres-demo", help="where everything is made")
    parser.add_argument("--schemas", type=int, default=3, help="schemas, each a shard (default 3)")
    parser.add_argument("--scale", type=int, default=1, help="pgbench's scale: 100000 accounts each (default 1)")
    parser.add_argument("--rate", type=int, default=30, help="transactions per second and schema (default 30)")
    parser.add_argument("--seconds", type=int, default=90, help="about how long the load is made to take (default 90)")
    parser.add_argument("--channels", type=int, default=4, help="channels of the pipeline (default 4)")
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
