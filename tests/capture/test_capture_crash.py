"""Power cut and kill at every step: what the source committed is in the log once, in order.

Proves: "A kill at any moment, between any two of the database's commit, the log's sync and the
outbox's delete, loses and repeats nothing".
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from fix_effort import Effort, few_of
from fix_sqlite import Replica, content
from tranlog.capture.capture import Capture, CaptureOptions
from tranlog.change import RowChange
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, connect
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

pytestmark = pytest.mark.long

NO_WAIT = CaptureOptions(batch_bytes=400)
SMALL = LogOptions(segment_bytes=1500, index_flush_s=None)


def inserted(cursor_of: Iterator[object]) -> list[object]:
    """Return the values of `n` that the log's transactions inserted, in order."""
    return [
        change.after[0]
        for transaction in cursor_of
        for change in transaction.changes()  # type: ignore[attr-defined]
        if isinstance(change, RowChange) and change.table.table == "t" and change.after is not None
    ]


# --- the power goes at each call that the log makes ------------------------------------------------------


def one_life(path: str, disk: SimDisk, last: int) -> None:
    """Capture what is there, some writes coming in between, until done or until the power goes."""
    source = SqliteSource(SqliteSourceOptions(path=path, source_id="s"), clock=ManualClock())
    db = connect(path, fragment_bytes=300)
    try:
        with Log.open("/log", source_id="s", options=SMALL, disk=disk, clock=ManualClock()) as log:
            capture = Capture(source, log, options=NO_WAIT, clock=ManualClock())
            # A writer comes before capture does, and frees what it finds to be durable.
            db.execute("INSERT INTO t SELECT count(*), 'early' FROM t HAVING count(*) < ?", (last,))
            capture.catch_up()
            for _ in range(3):
                (count,) = db.execute("SELECT count(*) FROM t").fetchone() or (0,)
                if count < last:
                    with db:
                        rows = [(n, "some text to fill up a fragment") for n in range(count, count + 1 + count % 4 * 5)]
                        if len(rows) < 16:
                            for row in rows:
                                db.execute("INSERT INTO t VALUES(?, ?)", row)
                        else:
                            db.executemany("INSERT INTO t VALUES(?, ?)", rows)
                capture.catch_up()
    finally:
        source.close()
        db.close()


def cut_at(path: Path, call: int, seed: int) -> bool:
    """Run with the power going at a call of the log's disk, then again without; return whether it went."""
    rng = random.Random(f"{call}/{seed}")
    db = connect(path, fragment_bytes=300)
    db.execute("CREATE TABLE t(n, x)")
    db.executemany("INSERT INTO t VALUES(?, 'x')", [(n,) for n in range(5)])
    db.close()
    disk = SimDisk()
    disk.cut_at = call
    went = False
    try:
        one_life(str(path), disk, 60)
    except PowerCut:
        went = True
        disk = disk.after_crash(rng)
        if rng.random() < 0.5:  # and once more, soon after
            disk.cut_at = rng.randrange(1, 25)
            try:
                one_life(str(path), disk, 60)
            except PowerCut:
                disk = disk.after_crash(rng)
            disk.cut_at = None
        one_life(str(path), disk, 60)
    with LogReader.open("/log", disk=disk) as reader, reader.cursor() as cursor:
        found = inserted(iter(cursor.next, None))
    raw = apsw.Connection(str(path))
    (rows,) = raw.execute("SELECT count(*) FROM t").fetchone() or (0,)
    assert found == list(range(int(rows))), f"replay: cut_at(path, {call}, {seed})"
    raw.close()
    return went


def test_the_power_goes_at_any_call(tmp_path: Path, effort: Effort) -> None:
    """Every third call, from a random one on, fewer in `make unit`; a soak takes all of them, many times."""
    step = effort(9, 3, 1)
    call = random.randrange(step) + 1
    while any([cut_at(tmp_path / f"{call}-{seed}.db", call, seed) for seed in range(effort(1, 1, 20))]):
        call += step
    assert call > 35  # the workload has so many calls at least


# --- the process is killed -------------------------------------------------------------------------------

CHILD = """
import os, sys
from tranlog.capture import capture
from tranlog.capture.capture import Capture, CaptureOptions
from tranlog.log.writing.log import Log
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions
from tranlog.source.sqlite import freeing
path, log_path, where, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def dying(target, name, before):
    "Make the process end at the so-manieth call, before or after it did its work."
    real, left = getattr(target, name), [count]
    def call(*args, **kwargs):
        left[0] -= 1
        if before and left[0] == 0:
            os._exit(9)
        result = real(*args, **kwargs)
        if not before and left[0] == 0:
            os._exit(9)
        return result
    setattr(target, name, call)

source = SqliteSource(SqliteSourceOptions(path=path, source_id="s"))
freeing._TELL_EVERY_S = 0  # each release
name, _, when = where.partition("-")
owners = {"append": Log, "commit": Log, "claim": SqliteSource, "release": SqliteSource, "rename": os}
owners |= {"holder_of": capture, "write_progress": freeing}
dying(owners[name], name, when == "before")
with Log.open(log_path, source_id="s") as log:
    Capture(source, log, options=CaptureOptions(batch_bytes=200)).catch_up()
source.close()
"""


STEPS = ("append", "commit", "release", "write_progress")


@pytest.mark.parametrize("where", few_of([f"{n}-{w}" for w in ("after", "before") for n in STEPS], 4))
@pytest.mark.parametrize("count", few_of([4, 1]))
def test_a_process_that_ends_between_two_steps(where: str, count: int, tmp_path: Path) -> None:
    """The log is synced, the file beside says so, a writer frees: a kill between two of them loses nothing."""
    path, log_path = str(tmp_path / "s.db"), str(tmp_path / "log")
    db = connect(path, fragment_bytes=300)
    db.execute("CREATE TABLE t(n, x)")
    for number in range(12):
        with db:
            db.execute("INSERT INTO t VALUES(?, ?)", (number, "x" * (50 * (number % 4))))
            db.execute("UPDATE t SET x = x || 'y' WHERE n = ?", (number // 2,))
    ended = subprocess.run([sys.executable, "-c", CHILD, path, log_path, where, str(count)], timeout=60)
    assert ended.returncode == 9
    connect(path).execute("INSERT INTO t VALUES(12, '')")  # a new writer frees at once what it may
    go_on(path, log_path)
    assert_equal(path, log_path, rows=13)
    db.close()


@pytest.mark.parametrize(
    "where", few_of([f"{n}-{w}" for n in ("claim", "holder_of", "rename") for w in ("before", "after")], 2)
)
def test_a_process_that_ends_while_it_takes_the_source_up(where: str, tmp_path: Path) -> None:
    path, log_path = str(tmp_path / "s.db"), str(tmp_path / "log")
    db = connect(path)
    db.execute("CREATE TABLE t(n, x)")
    ended = subprocess.run([sys.executable, "-c", CHILD, path, log_path, where, "1"], timeout=60)
    assert ended.returncode == 9
    db.execute("INSERT INTO t VALUES(1, '')")
    go_on(path, log_path)
    assert_equal(path, log_path, rows=1)
    db.close()


FREEING = """
import os, sys
from tranlog.source.sqlite import connect, outbox
db, when = connect(sys.argv[1]), sys.argv[2]
real = outbox.free
def dying(*args, **kwargs):
    if when == "before":
        os._exit(9)
    found = real(*args, **kwargs)
    assert found[0] > 3, found
    if when == "after":
        os._exit(9)
    return found
outbox.free = dying
db.execute("INSERT INTO t VALUES(12, '')")
os._exit(9)
"""


@pytest.mark.parametrize("when", ["before", "after", "committed"])
def test_a_writer_that_ends_while_it_frees(when: str, tmp_path: Path) -> None:
    path, log_path = str(tmp_path / "s.db"), str(tmp_path / "log")
    db = connect(path, fragment_bytes=300)
    db.execute("CREATE TABLE t(n, x)")
    for number in range(12):
        db.execute("INSERT INTO t VALUES(?, ?)", (number, "x" * (100 * (number % 4))))
    go_on(path, log_path)
    ended = subprocess.run([sys.executable, "-c", FREEING, path, when], timeout=60)
    assert ended.returncode == 9
    (outbox,) = db.execute("SELECT count(*) FROM _tranlog_outbox").fetchone() or (0,)
    assert outbox == (2 if when == "committed" else 13)
    go_on(path, log_path)
    assert_equal(path, log_path, rows=13 if when == "committed" else 12)
    db.close()


def go_on(path: str, log_path: str) -> int:
    """Capture what is there; return the log's last seqno."""
    source = SqliteSource(SqliteSourceOptions(path=path, source_id="s"))
    with Log.open(log_path, source_id="s") as log:
        Capture(source, log).catch_up()
        last = int(log.last_seqno)
    source.close()
    return last


def assert_equal(path: str, log_path: str, *, rows: int) -> None:
    """Hold the log's content against the source's: each transaction once, in order."""
    replica = Replica()
    with LogReader.open(log_path) as reader, reader.cursor() as cursor:
        transactions = list(iter(cursor.next, None))
    for transaction in transactions:
        replica.apply(transaction.changes())
    ids = [t.header.event_id for t in transactions if not t.is_noop()]
    assert len(set(ids)) == len(ids)
    raw = apsw.Connection(path)
    assert content(replica.db) == content(raw)
    assert raw.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    raw.close()


WRITER = """
import sys
from tranlog.source.sqlite import connect
db = connect(sys.argv[1], fragment_bytes=400)
number = 0
while True:
    with db:
        db.execute("INSERT INTO t VALUES(?, ?)", (sys.argv[2], number))
        if number % 5 == 0:
            db.executemany("INSERT INTO t VALUES(?, ?)", [(f"{sys.argv[2]} many", number)] * 20)
        if number % 3 == 0:
            db.execute("SAVEPOINT s")
            db.execute("DELETE FROM t")
            db.execute("ROLLBACK TO s")
        db.execute("DELETE FROM t WHERE rowid IN (SELECT rowid FROM t WHERE n = ? LIMIT 3)", (f"{sys.argv[2]} many",))
    number += 1
"""

CAPTURER = """
import sys
from tranlog.capture.capture import Capture
from tranlog.log.writing.log import Log
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions
source = SqliteSource(SqliteSourceOptions(path=sys.argv[1], source_id="s"))
with Log.open(sys.argv[2], source_id="s") as log:
    Capture(source, log).run()
"""


def kill_at_random(tmp_path: Path, rng: random.Random, rounds: int) -> int:
    """Two writers and a capture, killed and started again; return how many transactions the log got."""
    path, log_path = str(tmp_path / "s.db"), str(tmp_path / "log")
    db = connect(path)
    db.execute("CREATE TABLE t(n, x)")
    commands = [
        [sys.executable, "-c", WRITER, path, "one"],
        [sys.executable, "-c", WRITER, path, "two"],
        [sys.executable, "-c", CAPTURER, path, log_path],
    ]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    try:
        for _ in range(rounds):
            wait_for_progress(db, running)
            time.sleep(rng.uniform(0, 0.1))  # somewhere in the middle of something
            victims = rng.sample(range(3), rng.choice([1, 1, 2])) if rng.random() < 0.7 else [2]
            for number in victims:
                running[number].send_signal(signal.SIGKILL)
            for number in victims:
                running[number].communicate()
                running[number] = subprocess.Popen(commands[number], stderr=subprocess.PIPE)
        wait_for_progress(db, running)
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
    transactions = go_on(path, log_path)
    (rows,) = db.execute("SELECT count(*) FROM t").fetchone() or (0,)
    assert_equal(path, log_path, rows=rows)
    db.close()
    return transactions


def wait_for_progress(db: SqliteConnection, running: list[subprocess.Popen[bytes]]) -> None:
    """Return when each writer has written and capture has freed something since the call."""
    asked = (
        "SELECT (SELECT max(rowid) FROM t WHERE n LIKE 'one%'), (SELECT max(rowid) FROM t WHERE n LIKE 'two%'), "
        "(SELECT min(id) FROM _tranlog_outbox)"
    )
    before = db.execute(asked).fetchone()
    end = time.monotonic() + 60
    while any(now == then for now, then in zip(db.execute(asked).fetchone() or (), before or (), strict=True)):
        for process in running:
            if process.poll() is not None:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read().decode())
        assert time.monotonic() < end, "no progress within a minute"
        time.sleep(0.02)


@pytest.mark.e2e
def test_processes_killed_at_random(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(10**6)
    print(f"kill_at_random(tmp_path, random.Random({seed}), {rounds}); processes are not to be replayed exactly")
    assert kill_at_random(tmp_path, random.Random(seed), rounds) > 20
    assert os.path.exists(tmp_path / "log")
