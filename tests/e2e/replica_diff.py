"""MariaDB's own regression files as a workload: a native replica and a target of ours, compared table by table.

`make replica-diff FILES=n SEED=s` runs it. Each file of Debian's `mariadb-test` is run at a source by the server's own
test client, as a workload: what it expects is not looked at. A native replica and a target of ours follow; both are
stopped at the same GTID in front of some of the statements that drop something, and at the end, and everything is
compared, definitions and rows. Between two files all of it is dropped. With `--target postgres` our target is a
PostgreSQL, whose tables `tranlog tables create` would have made, and rows are compared as by `tranlog verify`.

It prints one JSON object and ends with 1 where anything differs, or where capture or apply ends by an error that is not
in the list of docs/refusals.md. Each file's result is a line of `--results`; a run that is started again with the same
file of results goes on behind what is there, and the object adds up.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pymysql

from replica_postgres import ReplicasAtPostgres, ReplicaStoppedError
from replicas import Replicas
from tranlog.change import Change, Statement
from tranlog.errors import SourceError, TranlogError
from tranlog.testing.servers import MariaDbAddress, OptionValue, ServerFailedError, ServerMissingError

SUITES: Final = next(
    filter(Path.is_dir, map(Path, ("/usr/share/mariadb/mariadb-test", "/usr/share/mysql/mysql-test"))), Path("/nowhere")
)
FOLDERS: Final = (
    "main",
    *(f"suite/{name}/t" for name in ("innodb", "gcol", "period", "versioning", "json", "rpl", "binlog")),
    "suite/sql_sequence",
)
REFUSALS: Final = Path(__file__).parents[2] / "docs" / "refusals.md"
FILE_S: Final = 60.0
_OWN_SERVER: Final = re.compile(
    r"(restart|shutdown|kill|start)_mysqld|\bshutdown\s*(wait\b[^;]*)?;|reset\s+master|master-slave|change\s+master|start\s+slave|big_test|"
    r"have_debug|have_embedded|have_perfschema|rpl_init|have_wsrep|connect\s*\(\s*slave|"
    r"(alter|drop|rename)\s+table\s+(if\s+exists\s+)?mysql\.(proc|event|user|db|func|\w+_priv|plugin|servers)\b|"
    r"truncate\s+(table\s+)?mysql\.(user|global_priv)\b|AddGeometryColumn\('', 'mysql'",
    re.IGNORECASE,
)
"""Files that need a server to themselves, or harm its own tables, or need a build that is not here."""
_DROPS: Final = re.compile(r"\s*(?:/\*.*?\*/\s*)*(?:DROP|CREATE\s+OR\s+REPLACE|TRUNCATE)\b", re.IGNORECASE | re.DOTALL)
SERVER: Final[dict[str, OptionValue]] = {"binlog_row_metadata": "FULL", "max_connections": 200, "secure_file_priv": ""}
_SYSTEM: Final = ("mysql", "information_schema", "performance_schema", "sys", "tranlog_own")
_ENTRY: Final = re.compile(r"^\| `(?P<pattern>[^`]+)` \|", re.MULTILINE)


@dataclasses.dataclass(slots=True)
class Result:
    """What came of one file. `capture_end`, `apply_end`: the error that ended either; `refusal`: the list's entry."""

    file: str
    transactions: int = 0
    points: int = 0
    rows: int = 0
    capture_end: str | None = None
    apply_end: str | None = None
    refusal: str | None = None
    replica_end: str | None = None
    differences: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing differs, and an end is one of the list."""
        ended = self.capture_end or self.apply_end
        return not self.differences and (ended is None or self.refusal is not None)


def refusals(page: Path = REFUSALS) -> list[str]:
    """Return the patterns of the list, in its order."""
    return [found["pattern"].replace("\\|", "|") for found in _ENTRY.finditer(page.read_text())]


def files(folder: Path, *, count: int | None, seed: int) -> list[Path]:
    """Return the files to run in an order drawn by the seed: all that can be a workload, or the first so many."""
    found = [
        path
        for name in FOLDERS
        for path in sorted((folder / name).glob("*.test"))
        if not _OWN_SERVER.search(path.read_text(errors="replace"))
    ]
    return random.Random(seed).sample(found, len(found))[:count]


class Trial:
    """The three servers, and one file after the other. Threads: one."""

    def __init__(self, replicas: Replicas, scratch: Path, *, seed: int, points: int) -> None:
        self._all = replicas
        self._scratch = scratch
        self._seed = seed
        self._points = points
        self._settings = _settings(replicas.source)
        self._known = refusals()
        self._start_over()

    def run(self, file: Path) -> Result:
        """Run one file at the source, follow it on both sides, and compare."""
        began = time.monotonic()
        result = Result(file=str(file.relative_to(SUITES)))
        rng = random.Random(f"{self._seed}/{result.file}")
        before, rows = self._all.transactions, self._all.rows
        self._work(file)
        try:
            self._follow(result, rng)
        except ReplicaStoppedError as exc:
            result.replica_end = str(exc)
        except SourceError as exc:
            result.capture_end = f"{type(exc).__name__}: {exc}"
        except TranlogError as exc:
            theirs = result.replica_end is None and not self._all.replica_to(self._all.attempted)
            if theirs and (error := self._all.replica_error()):
                result.replica_end = error
            else:
                result.apply_end = f"{type(exc).__name__}: {exc}"
        ended = result.capture_end or result.apply_end
        if ended is not None:
            result.refusal = next((one for one in self._known if re.search(one, ended)), None)
        result.transactions = self._all.transactions - before
        result.rows = self._all.rows - rows
        self._start_over()
        result.seconds = round(time.monotonic() - began, 1)
        return result

    def _work(self, file: Path) -> None:
        """Have the test client run a file; however it ends, what it has committed is the workload."""
        source = self._all.source
        command = ["mysqltest", "--no-defaults", f"--host={source.host}", f"--port={source.port}", "--user=root"]
        command += ["--database=test", "--silent", "--continue-on-error", f"--basedir={SUITES}"]
        command += [f"--tmpdir={self._scratch}", f"--logdir={self._scratch}", f"--test-file={file}"]
        environment = {
            **os.environ,
            "MYSQL_TEST_DIR": str(SUITES),
            "MYSQLTEST_VARDIR": str(self._scratch),
            "MYSQL_TMP_DIR": str(self._scratch),
            "MASTER_MYPORT": str(source.port),
            "MYSQL": f"mariadb --no-defaults --host={source.host} --port={source.port} --user=root",
        }
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen(
                command, cwd=SUITES, env=environment, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere
            )
            try:
                process.wait(FILE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _follow(self, result: Result, rng: random.Random) -> None:
        def before(changes: Iterable[Change], position: str) -> None:
            if result.points >= self._points or not any(isinstance(one, Statement) and _drops(one) for one in changes):
                return
            if rng.random() < 0.4:
                self._compare(result, position)

        self._all.meet_target(before=before)
        ((position,),) = self._all.source.execute("SELECT @@global.gtid_binlog_pos")
        self._compare(result, position)

    def _compare(self, result: Result, position: str) -> None:
        """Bring the native replica to where our target stands, and hold the two against each other."""
        if result.replica_end is not None:
            return
        if not self._all.replica_to(position):
            result.replica_end = self._all.replica_error() or f"it did not reach {position}"
            return
        result.points += 1
        result.differences += [f"at {position}: {one}" for one in self._all.differences(any_engine=True)][
            : 20 - len(result.differences)
        ]

    def _start_over(self) -> None:
        """Leave three servers without a table, and the source with the settings that it had."""
        source = self._all.source
        self._all.close()
        for row in source.execute("XA RECOVER FORMAT='SQL'"):
            with suppress(pymysql.err.OperationalError):  # the server had to roll it back itself, and says so
                source.execute(f"XA ROLLBACK {row[-1]}")
        for name, value in _settings(source).items():
            if (wanted := self._settings.get(name)) != value:
                _set_back(source, name, wanted)
        _empty(source)
        self._all.replica_skip()
        _empty(self._all.replica)
        if isinstance(self._all, ReplicasAtPostgres):
            self._all.empty_target()
        else:
            _empty(self._all.target)
        self._all.open(skip=True)


def _settings(server: MariaDbAddress) -> dict[str, str]:
    return {str(name): str(value) for name, value in server.execute("SHOW GLOBAL VARIABLES")}


def _set_back(server: MariaDbAddress, name: str, value: str | None) -> None:
    """Give a global variable the value that it had; some cannot be set, or only move."""
    if value is None or name.startswith(("gtid_", "innodb_buffer_pool_load", "timestamp")):
        return
    for text in (value, f"'{value}'"):
        try:
            server.execute(f"SET GLOBAL {name} = {text}")
        except pymysql.err.MySQLError:
            continue
        return


def _empty(server: MariaDbAddress) -> None:
    """Leave a server with the database `test` alone, which is empty."""
    ((home,),) = server.execute("SELECT @@datadir")
    for (name,) in server.execute("SHOW DATABASES"):
        if str(name) in _SYSTEM:
            continue
        drop = f"SET STATEMENT foreign_key_checks = 0 FOR DROP DATABASE IF EXISTS `{str(name).replace('`', '``')}`"
        try:
            server.execute(drop)
        except pymysql.err.MySQLError:  # a file that no table has, which a statement wrote there
            for path in (Path(str(home)) / str(name)).iterdir():
                path.unlink()
            server.execute(drop)
    server.execute("CREATE DATABASE test")


def _drops(statement: Statement) -> bool:
    text = statement.sql if isinstance(statement.sql, str) else statement.sql.decode(errors="replace")
    return _DROPS.match(text) is not None


def add_up(results: Sequence[Result]) -> dict[str, Any]:
    """Return the one object: sums over the files, refusals by their entry, and each file that is not good."""
    return {
        "files": len(results),
        "transactions": sum(one.transactions for one in results),
        "points": sum(one.points for one in results),
        "rows": sum(one.rows for one in results),
        "differences": sum(bool(one.differences) for one in results),
        "capture_ends": sum(one.capture_end is not None for one in results),
        "apply_ends": sum(one.apply_end is not None for one in results),
        "replica_ends": sum(one.replica_end is not None for one in results),
        "refusals": dict(Counter(one.refusal for one in results if one.refusal is not None)),
        "not_good": [dataclasses.asdict(one) for one in results if not one.good],
        "seconds": round(sum(one.seconds for one in results), 1),
    }


def read_results(path: Path) -> list[Result]:
    """Return what an earlier run has left; nothing where there is no such file."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _run(left: Sequence[Path], results: list[Result], options: argparse.Namespace) -> int:
    """Run files one after the other on servers of their own, and add to the results; return how many were run.

    Less than all where a server has ended under one of them, which counts for that file.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tranlog-replica-") as scratch,
        ReplicasAtPostgres(server_options=SERVER)
        if options.target == "postgres"
        else Replicas(server_options=SERVER, target_options={"engine": "innodb"}) as all_three,
    ):
        trial = Trial(all_three, Path(scratch), seed=options.seed, points=options.points)
        for number, path in enumerate(left, start=1):
            ended = False
            try:
                one = trial.run(path)
            except pymysql.err.OperationalError as exc:
                one, ended = Result(file=str(path.relative_to(SUITES)), capture_end=f"a server has ended: {exc}"), True
            results.append(one)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(one)) + "\n")
            verdict = "ok" if one.good else "NOT GOOD"
            said = f"{one.transactions} transactions, {one.points} points"
            print(f"{number} of {len(left)}: {one.file}: {said}: {verdict}", file=sys.stderr, flush=True)
            if ended:
                return number
    return len(left)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 where nothing differs and each end is one of the list, 1 otherwise, 4 where it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, help="so many, drawn by the seed; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points", type=int, default=6, help="drops of a file before which all is compared, at most")
    parser.add_argument("--target", choices=("mariadb", "postgres"), default="mariadb")
    parser.add_argument("--results", type=Path, help="a line of JSON for each file; goes on behind what is there")
    parser.add_argument("names", nargs="*", help="files by name, such as main/update.test")
    options = parser.parse_args(arguments)
    wanted = [SUITES / name for name in options.names] or files(SUITES, count=options.files, seed=options.seed)
    if not wanted or not all(path.exists() for path in wanted):
        print(f"replica_diff: no such files below {SUITES}: Debian's package mariadb-test has them", file=sys.stderr)
        return 4
    results = read_results(options.results) if options.results else []
    done = {one.file for one in results}
    left = [path for path in wanted if str(path.relative_to(SUITES)) not in done]
    try:
        while left:
            left = left[_run(left, results, options) :]
    except (ServerMissingError, ServerFailedError) as exc:
        print(f"replica_diff: {exc}", file=sys.stderr)
        return 4
    print(json.dumps(add_up(results)))
    return 0 if all(one.good for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
