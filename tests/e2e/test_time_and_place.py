"""Clocks that jump, time zones that differ, and logs in odd places, from the source to the target.

Correctness may lean on no wall clock and no place: what a clock tells goes into stamps, and decides only when old
segments may go, and that never against a hold.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pymysql
import pytest

from fix_driver import options, wait_until
from fix_log import contents
from fix_pipeline import SqliteTarget, Workload, check_equal, positions, run_threads, take, tasks_for, write_log
from tranlog.capture.capture import Capture
from tranlog.clock import SystemClock
from tranlog.ids import Seqno
from tranlog.log.files.holds import read_holds
from tranlog.log.writing.log import Log, LogOptions, LogReader, hold
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import Lag
from tranlog.service.commands import cli
from tranlog.service.commands.status import service_status
from tranlog.service.config.config import load
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer, PostgresAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
HOUR_MS = 3_600_000
PROGRAM = Path(sys.executable).with_name("tranlog")


# --- clocks ---------------------------------------------------------------------------------------------------------


class JumpingClock(SystemClock):
    """A machine's clock that somebody sets at every third reading, an hour back or, less often, forth."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._offset = 0
        self._readings = 0
        self.backwards = 0

    def now_ms(self) -> int:
        self._readings += 1
        if self._readings % 3 == 0:
            step = self._random.choice((-HOUR_MS, -HOUR_MS, HOUR_MS)) if self.backwards else -HOUR_MS
            self._offset += step
            self.backwards += step < 0
        return super().now_ms() + self._offset


@pytest.mark.parametrize("seed", [1])
def test_clocks_that_jump_back_an_hour_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Each part has a clock of its own that jumps during the run: writer, source, capture, log, readers, channels.
    Retention by age goes wild meanwhile, and yet removes nothing that the pipeline needs; no lag is below zero."""
    clocks = [JumpingClock(seed * 100 + number) for number in range(6)]
    log_dir, source_path = str(tmp_path / "log"), str(tmp_path / "source.db")
    shop = connect(source_path, clock=clocks[0])
    for name in ("north", "east"):
        shop.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, n INTEGER)")
        shop.execute(f"CREATE TABLE {name}_log (n INTEGER)")  # no key: what comes twice is there twice
    target = TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"))
    source = SqliteSource(SqliteSourceOptions(path=source_path, source_id="shop"), clock=clocks[1])
    log = Log.open(
        log_dir, source_id="shop", options=LogOptions(segment_bytes=4_000, retention_s=1800.0), clock=clocks[2]
    )
    capture = Capture(source, log, clock=clocks[3])
    hold(log_dir, "p", Seqno(0), clock=clocks[5])
    opened = open_target(target)
    opened.positions.ensure_tables()
    plan = ShardPlan(channels=2)
    token = take(target, plan)
    results: list[TaskResult] = []

    def apply(channel: int) -> None:
        (task,) = tasks_for(target, Path(log_dir), plan, token, until=None, sync_interval_s=0.1)[channel : channel + 1]
        clock = clocks[4 + channel]
        running = Channel(task, lambda: open_target(target), lambda: LogReader.open(log_dir, clock=clock), clock)
        results.append(running.run())
        running.close()

    threads = [threading.Thread(target=apply, args=(channel,), daemon=True) for channel in range(2)]
    for thread in threads:
        thread.start()
    lags = []
    try:
        for number in range(150):
            with shop:
                shop.execute(f"INSERT INTO north VALUES ({number}, 0)")
                shop.execute(f"INSERT INTO north_log VALUES ({number % 7})")
                if number % 5 == 0:
                    shop.execute(f"INSERT INTO east VALUES ({number}, 0)")
            shop.execute(f"UPDATE north SET n = n + 1 WHERE id = {number // 2}")
            shop.execute(f"INSERT INTO east_log VALUES ({number % 3})")
            if number % 10 == 9:
                lags.append(capture.catch_up().lag_ms)
                hold(log_dir, "p", Seqno(max(0, min(positions(target).values()))), clock=clocks[5])
        last = log.last_seqno
        wait_until(lambda: set(positions(target).values()) == {last} or len(results) > 0)
        conf = tmp_path / "tranlog.toml"
        conf.write_text(
            '[log]\ndir = "log"\n[source]\nkind = "sqlite"\nload = "none"\n'
            'path = "source.db"\n[target]\nkind = "sqlite"\n'
            'path = "target.db"\n[pipeline]\nname = "p"\nchannels = 2\n'
        )
        status = service_status(load(str(conf), environ={}), clock=clocks[3], watch_s=0.0)
        opened.positions.request_stop(pipeline="p", token=token, stop_at_seqno=Seqno(-1))
    finally:
        for thread in threads:
            thread.join(60)
        log.close()
        source.close()
    assert [(result.end, result.error) for result in results] == [(TaskEnd.STOPPED, None)] * 2
    stamping = clocks[0], clocks[2], clocks[5]  # what the others ask for the time of day, if anything, is for status
    assert all(clock.backwards for clock in stamping), "no clock jumped, nothing was tried"
    assert all(lag is not None and lag >= 0 for lag in lags)
    assert not status.problems and status.pipeline is not None and status.pipeline.lag == Lag(seqnos=0, ms=0)
    with LogReader.open(log_dir) as reader, reader.cursor() as cursor:
        found = reader.range()
        assert 0 < found.first_seqno <= min(one.restart_seqno or 0 for one in read_holds(log_dir)) <= last
        seqnos, ids = [], []
        while (one := cursor.next()) is not None:
            seqnos.append(one.header.seqno)
            ids.append(one.header.event_id)
        assert seqnos == list(range(found.first_seqno, last + 1)) and len(set(ids)) == len(ids)
    copy = apsw.Connection(target.path)
    for name in ("north", "north_log", "east", "east_log"):
        assert Counter(copy.execute(f"SELECT * FROM {name}")) == Counter(shop.execute(f"SELECT * FROM {name}"))
    copy.close()
    shop.close()
    opened.close()


def test_a_driver_lives_although_the_targets_clock_went_back(tmp_path: Path) -> None:
    """`alive_at` is by the target's clock, and others see by its movement that a driver lives: it always moves."""
    target = SqliteTarget(tmp_path / "target.db", Workload(seed=1).tables)
    token = take(target.options, ShardPlan(channels=1))
    opened = open_target(target.options)
    # As if it had been written before the clock went back.
    target.query(f"UPDATE tranlog_pipeline SET alive_at = alive_at + {HOUR_MS}")
    seen = [opened.positions.keep_alive(pipeline="p", token=token).alive_at for _ in range(20)]
    opened.close()
    assert seen == sorted(set(seen)), "it stood still, or fell back to where it had been"


@pytest.mark.spark
def test_a_driver_whose_clock_jumps(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's clock jumps at each reading, those of the workers and of the target do not."""
    started, jumps = time.time_ns() // 1_000_000, iter(range(10**9))
    monkeypatch.setattr(time, "time_ns", lambda: (started - next(jumps) % 7 * HOUR_MS) * 1_000_000)
    workload = Workload(seed=2)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 200)
    reports: list[ApplyStatus] = []
    result = run_apply(options(tmp_path, target), report=reports.append, spark=spark.sparkContext)
    assert result.end is TaskEnd.LIMIT and next(jumps) > 2
    assert all(report.lag.ms >= 0 for report in reports)
    assert [one.restart_seqno for one in read_holds(str(tmp_path / "log"))] == [last]
    check_equal(target, workload)


# --- time zones -----------------------------------------------------------------------------------------------------


@contextmanager
def zone(name: str) -> Iterator[None]:
    """Be on a machine in another time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@pytest.fixture
def berlin(start_mariadb: Callable[..., MariaDbServer]) -> MariaDbServer:
    """A server whose system time zone is Berlin's, daylight saving time and all."""
    with zone("Europe/Berlin"):
        server = start_mariadb()
    assert server.execute("SELECT @@system_time_zone, @@time_zone")[0][1] == "SYSTEM"
    return server


MOMENTS = (
    # id, SQL time zone of the session, TIMESTAMP as written there, DATETIME as written, seconds since 1970
    (1, "SYSTEM", "2024-01-15 12:00:00.000001", "2024-01-15 12:00:00.000001", 1_705_316_400),
    (2, "SYSTEM", "2024-07-15 12:00:00", "2024-07-15 12:00:00", 1_721_037_600),
    (3, "+00:00", "2024-03-31 00:59:59.999999", "2024-03-31 02:30:00", 1_711_846_799),  # a DATETIME that never was
    (4, "+00:00", "2024-10-27 00:30:00", "2024-10-27 02:30:00", 1_729_989_000),  # the doubled hour, the first time
    (5, "+00:00", "2024-10-27 01:30:00", "2024-10-27 02:30:00", 1_729_992_600),  # and the second
    (6, "-08:00", "2024-12-31 23:59:59", "2024-12-31 23:59:59", 1_735_718_399),
    (7, "+13:00", "1970-01-01 13:00:01", "0999-12-31 23:59:59", 1),
    (8, "SYSTEM", "2024-03-31 03:00:00", "2024-03-31 03:00:00", 1_711_846_800),  # the missing hour's end
)


@pytest.mark.integration
def test_two_machines_time_zones_and_daylight_saving(
    tmp_path: Path,
    berlin: MariaDbServer,
    postgres: PostgresAddress,
    postgres_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Source server, its sessions, capture, apply, target server and verify are in seven time zones: instants stay
    the same, and what is no instant keeps its digits, in the missing and in the doubled hour too."""
    berlin.execute("CREATE DATABASE shop")
    berlin.execute("CREATE TABLE moments (id INT PRIMARY KEY, at TIMESTAMP(6) NULL, wall DATETIME(6))", database="shop")
    berlin.execute("CREATE TABLE keyless (at TIMESTAMP NULL, wall DATETIME, n INT)", database="shop")
    postgres.execute(f"ALTER DATABASE {postgres_database} SET timezone = 'Australia/Lord_Howe'")
    common = (
        f'[source]\nkind = "mariadb"\nload = "none"\n'
        f'host = "{berlin.host}"\nport = {berlin.port}\nuser = "{berlin.user}"\n'
        f'databases = ["shop"]\nstart = "earliest"\n[log]\ndir = "log"\n[pipeline]\nname = "p"\nchannels = 1\n'
    )
    dsn = postgres.dsn(postgres_database)
    kinds = {"postgres": f'dsn = "{dsn}"', "sqlite": f'path = "{tmp_path / "target.db"}"'}
    for kind, where in kinds.items():
        (tmp_path / f"{kind}.toml").write_text(f'{common}[target]\nkind = "{kind}"\nddl = "ignore"\n{where}\n')

    def tranlog(place: str, kind: str, command: str) -> str:
        with zone(place):
            code = cli.main(["--conf", str(tmp_path / f"{kind}.toml"), *command.split()])
        told = capsys.readouterr()
        assert code == 0, told.out + told.err
        return told.out

    with berlin.connect("shop") as session, session.cursor() as cursor:
        for key, place, stamp, wall, _ in MOMENTS:
            cursor.execute(f"SET time_zone = '{place}'")
            cursor.execute("INSERT INTO moments VALUES (%s, %s, %s)", (key, stamp, wall))
            cursor.execute("INSERT INTO keyless VALUES (%s, %s, 1)", (stamp[:19], wall[:19]))
        cursor.execute("SET time_zone = 'SYSTEM'")
        with pytest.raises(pymysql.err.MySQLError, match="Incorrect datetime value"):
            cursor.execute("INSERT INTO moments VALUES (9, '2024-03-31 02:30:00', NULL)")  # the server has no such time
        cursor.execute("SET time_zone = '+05:30'")
        # By before image: of the doubled hour only the one that is meant.
        cursor.execute("UPDATE keyless SET n = 2 WHERE at = FROM_UNIXTIME(1729989000)")
        cursor.execute("DELETE FROM keyless WHERE at = FROM_UNIXTIME(1729992600)")
        assert session.affected_rows() == 1
    tranlog("America/New_York", "postgres", "capture --once")
    for kind in kinds:
        tranlog("Asia/Kathmandu", kind, "tables create")
        with zone("Asia/Tokyo"):
            given = load(str(tmp_path / f"{kind}.toml"), environ={}).wanted_target()
            with LogReader.open(str(tmp_path / "log")) as reader:
                last = reader.range().committed_seqno
            opened = open_target(given)
            opened.positions.ensure_tables()
            opened.close()
            plan = ShardPlan(channels=1)
            (result,) = run_threads(tasks_for(given, tmp_path / "log", plan, take(given, plan), until=last))
            assert result.end is TaskEnd.LIMIT, result.error
        verdict = json.loads(tranlog("Pacific/Apia", kind, "verify --json"))
        assert verdict["equal"] and len(verdict["tables"]) == 2

    expected = [(key, seconds, wall[:19]) for key, _, _, wall, seconds in MOMENTS]
    # Asked without our code, and in yet other zones.
    assert expected == postgres.execute(
        "SELECT id, floor(extract(epoch FROM at))::bigint, to_char(wall, 'YYYY-MM-DD HH24:MI:SS') "
        "FROM shop.moments ORDER BY id",
        database=postgres_database,
    )
    copy = apsw.Connection(str(tmp_path / "target.db"))
    query = "SELECT id, unixepoch(replace(at, '+00', 'Z')), substr(wall, 1, 19) FROM \"shop.moments\" ORDER BY id"
    assert expected == list(copy.execute(query))
    left = Counter((seconds, 2 if key == 4 else 1) for key, *_, seconds in MOMENTS if key != 5)
    assert left == Counter(copy.execute("SELECT unixepoch(replace(at, '+00', 'Z')), n FROM \"shop.keyless\""))
    copy.close()
    assert left == Counter(
        postgres.execute("SELECT extract(epoch FROM at)::bigint, n FROM shop.keyless", database=postgres_database)
    )


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_relative_paths_are_seen_from_the_driver(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark worker's folder is the one where Spark was started, not the one where the driver is now."""
    workload = Workload(seed=3)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 100)
    monkeypatch.chdir(tmp_path)
    relative = TargetOptions(kind="sqlite", path="target.db")
    run_apply(replace(options(tmp_path, target, log_dir="log"), target=relative), spark=spark.sparkContext)
    check_equal(target, workload)


READS = """
import errno, json, os, sys
from tranlog.log.reading.reader import LogReader
try:
    open(os.path.join(sys.argv[1], "written"), "w")
except OSError as exc:
    assert exc.errno in (errno.EACCES, errno.EROFS), exc
else:
    raise SystemExit("this user may write there")
with LogReader.open(sys.argv[1]) as reader, reader.cursor(committed_only=True) as cursor:
    seqnos = []
    while (one := cursor.next()) is not None:
        seqnos.append(one.header.seqno)
print(json.dumps(seqnos))
"""


def as_a_reader(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user who may write where the mode of a folder lets its owner: root is made to obey modes."""
    obey = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
    return subprocess.run([*obey, *arguments], capture_output=True, text=True, check=False, timeout=200, cwd=cwd)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder beside the log, where a reader may write."""
    (tmp_path / "desk").mkdir()
    return tmp_path / "desk"


@pytest.mark.parametrize("writer", ["at work", "gone"])
def test_readers_need_no_right_to_write(tmp_path: Path, desk: Path, writer: str) -> None:
    """ "A read-only log directory for readers": a cursor, and thl."""
    workload, log_dir = Workload(seed=4), tmp_path / "log"
    log = Log.open(str(log_dir), source_id="test", options=LogOptions(segment_bytes=20_000))
    workload.write(log, 200)
    last = log.last_seqno
    if writer == "gone":
        log.close()
    log_dir.chmod(0o555)
    try:
        done = as_a_reader([sys.executable, "-c", READS, str(log_dir)], desk)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == list(range(last + 1))
        for command in ("info", "list -headers", "verify") if writer == "at work" else ("verify",):
            done = as_a_reader([str(PROGRAM.with_name("thl")), "-dir", str(log_dir), *command.split()], desk)
            assert done.returncode == 0, done.stderr
    finally:
        log_dir.chmod(0o755)
        log.close()


@pytest.mark.spark
def test_a_pipeline_needs_no_right_to_write_to_the_log(tmp_path: Path, desk: Path) -> None:
    """A whole `tranlog apply`, from another folder than the log's. Retention cannot wait for it, and it says so."""
    workload = Workload(seed=5)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 100)
        target = SqliteTarget(desk / "target.db", workload.tables)
        conf = tmp_path / "tranlog.toml"
        conf.write_text(
            '[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "desk/target.db"\n[pipeline]\nname = "p"\n'
        )
        before = sorted(os.listdir(tmp_path / "log"))
        (tmp_path / "log").chmod(0o555)
        try:
            done = as_a_reader([str(PROGRAM), "--conf", str(conf), "apply", "--until", "now"], Path("/"))
        finally:
            (tmp_path / "log").chmod(0o755)
        assert done.returncode == 0, done.stderr
        assert "retention will not wait for this pipeline" in done.stderr
        assert sorted(os.listdir(tmp_path / "log")) == before
    check_equal(target, workload)


def another_file_system(than: Path) -> Path:
    """A folder on another file system than `than`."""
    for place in (Path("/dev/shm"), Path("/run"), Path.home(), Path("/var/tmp")):
        if place.is_dir() and os.access(place, os.W_OK) and place.stat().st_dev != than.stat().st_dev:
            return Path(tempfile.mkdtemp(prefix="tranlog-place-", dir=place))
    raise AssertionError(f"this machine has no second file system that may be written to beside that of {than}")


def test_a_log_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reached by a link, as one moves a log to another disk: capture, rotation, purge, clearing and the next capture
    rename nothing from one file system to the other."""
    there = another_file_system(tmp_path)
    (tmp_path / "log").symlink_to(there)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(
        '[source]\nkind = "sqlite"\nload = "none"\n'
        'path = "source.db"\n[log]\ndir = "log"\nsegment_bytes = "64KiB"\nretention_s = 0\n'
    )
    shop = connect("source.db")

    def tranlog(line: str) -> dict[str, Any]:
        assert cli.main([*line.split(), "--json"]) == 0, capsys.readouterr().err
        return dict(json.loads(capsys.readouterr().out))

    try:
        shop.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        for start in (0, 100):
            for key in range(start, start + 100):
                shop.execute("INSERT INTO item VALUES (?, ?)", (key, "x" * 2_000))
            tranlog("capture --once")
            with LogReader.open("log") as reader:
                names = [one.name for one in reader.index()]
                assert reader.range().first_seqno > 0 and len(names) >= 2, "it rotated, and purged by age"
            assert {name for name in os.listdir(there) if name.startswith("thl.data.")} == set(names)
            cleared = tranlog("reset -y")
            assert (there / "tranlog.cleared").exists() or cleared["mark"]["seqno"] > 0
        tranlog("capture --once")
        assert os.path.islink("log") and (there / "thl.data.0000000001").exists()
    finally:
        shop.close()
        shutil.rmtree(there)


WRITES = """
import sys
from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions
log = Log.open(sys.argv[1], source_id="db1", options=LogOptions(segment_bytes=20_000, buffer_bytes=2_000))
number = 0
while True:
    parts = 1 + number % 3
    for part in range(parts):
        log.append(Fragment(source_id="db1", event_id=str(number), shard_id="s", tstamp=1, tables=(("s", "t"),),
                            payload=f"{number}/{part};".encode() * 20, last=part == parts - 1))
    if number % 4 == 3:
        log.commit()
        print(number, flush=True)
    number += 1
"""


def test_a_log_copied_while_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cp -r` of a live log, again and again: each copy is a sound log, with all that was durable when the copying
    began, up to a whole transaction; a reader reads it, and a writer opens it and goes on."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    acknowledged = [-1]

    def listen() -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged.append(int(line))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    from tranlog.service.thl import thl

    try:
        for number in range(6):
            wait_until(lambda before=acknowledged[-1]: acknowledged[-1] > before + 100)  # type: ignore[misc]
            durable, copy = acknowledged[-1], tmp_path / f"copy{number}"
            subprocess.run(["cp", "-r", str(tmp_path / "log"), str(copy)], check=True)
            assert thl.main(["-dir", str(copy), "verify"]) == 0, capsys.readouterr()
            with LogReader.open(copy) as reader:
                found = contents(reader)
            expected = [
                (one + 1, str(one), b"".join(f"{one}/{part};".encode() * 20 for part in range(1 + one % 3)))
                for one in range(len(found))
            ]
            assert found == expected
            assert len(found) > durable
            with Log.open(copy, source_id="db1") as log:
                assert contents(log) == found
            assert thl.main(["-dir", str(copy), "verify"]) == 0, capsys.readouterr()
            shutil.rmtree(copy)
    finally:
        writer.kill()
        writer.wait()
        listener.join(30)
        assert writer.stdout is not None
        writer.stdout.close()
