"""How much slower are a source's writers while a load reads its table, and does any of them wait for a lock?

Two processes update rows of the table by key, each its own half, a transaction each. First as fast as they can; then,
paced, at half of that: alone, and while `tranlog capture` loads the whole table. Ours is what they reach then, the peer
what they reached alone before. Capture runs on the same machine, no pipeline does. A lock wait is counted by the server
(MariaDB, InnoDB's row lock waits) or seen in fifty looks per second (PostgreSQL, sessions that wait for a lock).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from frame import Bench, Question, at_least, at_most, run
from rows_there import ROWS, TABLE, TRY_ROWS, fill, mariadb, postgres

from tranlog.capture.load_requests import read_requests
from tranlog.testing.servers import Address, MariaDbServer

QUESTION = Question(
    name="load_writers",
    text="What do writers at half of what the machine can still reach while a load reads their table?",
    peer="the same writers, alone",
)
MUST = 0.85
FULL_S = 4.0
ALONE_S = 6.0
LOOK_S = 0.02
PATIENCE_S = 600.0
WRITERS = 2

_WRITER = """\
import random, sys, time
number, rows, rate, dsn, kind = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
if kind == "mariadb":
    import pymysql
    host, port = dsn.split(":")
    session = pymysql.connect(host=host, port=int(port), user="root", autocommit=True)
else:
    import psycopg
    session = psycopg.connect(dsn, autocommit=True)
cursor = session.cursor()
half = rows // 2
choose = random.Random(number)
began, done = time.perf_counter(), 0
print("here", flush=True)
while True:
    key = 1 + number * half + choose.randrange(half)
    cursor.execute("UPDATE {table} SET pieces = pieces + 1 WHERE id = %s", (key,))
    done += 1
    if done % 20 == 0:
        print(done, flush=True)
        if rate:
            time.sleep(max(0.0, began + done / rate - time.perf_counter()))
""".replace("{table}", TABLE)

_CONFIG = """\
[service]
name = "bench"

[log]
dir = "log"

[source]
{source}
load = "all"

[target]
kind = "sqlite"
path = "none.db"
"""


class Writers:
    """Processes that write; `rate` of each, 0 for as fast as it can."""

    def __init__(self, source: Address, rows: int, rate: float, folder: Path) -> None:
        kind = "mariadb" if isinstance(source, MariaDbServer) else "postgres"
        where = f"{source.host}:{source.port}" if kind == "mariadb" else source.dsn("postgres")
        self._told = [folder / f"writer{number}" for number in range(WRITERS)]
        self._running = []
        for number, told in enumerate(self._told):
            command = [sys.executable, "-c", _WRITER, str(number), str(rows), str(rate), where, kind]
            with told.open("wb") as out:
                self._running.append(subprocess.Popen(command, stdout=out))
        while not all("here" in told.read_text() for told in self._told):
            time.sleep(LOOK_S)

    def done(self) -> int:
        """Return how many transactions they have had."""
        if any(one.poll() is not None for one in self._running):
            raise SystemExit("a writer ended")
        told = [one.read_text().rpartition("\n")[0].split("\n")[-1] for one in self._told]
        return sum([0 if one == "here" else int(one) for one in told])

    def reach(self, look: Callable[[], bool]) -> float:
        """Return their transactions per second for as long as `look` says."""
        began, before = time.perf_counter(), self.done()
        while look():
            time.sleep(LOOK_S)
        return (self.done() - before) / (time.perf_counter() - began)

    def close(self) -> None:
        """End them."""
        for one in self._running:
            one.kill()
            one.wait()


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Return what is true for so long."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


@contextmanager
def capture(source: Address, folder: Path) -> Iterator[Callable[[], bool]]:
    """Capture into a new log, which loads all; yield what says whether the load goes on."""
    if isinstance(source, MariaDbServer):
        lines = f'kind = "mariadb"\nhost = "{source.host}"\nport = {source.port}\nuser = "root"'
    else:
        lines = f'kind = "postgres"\ndsn = "{source.dsn("postgres")}"\nslot = "bench"'
    conf, log = folder / "tranlog.toml", str(folder / "log")
    conf.write_text(_CONFIG.format(source=lines))
    command = [sys.executable, "-m", "tranlog", "--conf", str(conf), "capture", "--new-log"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE_S

    def loads() -> bool:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit("the load did not come to its end")
        return bool(read_requests(log))

    try:
        while not (Path(log).exists() and loads()):
            time.sleep(LOOK_S)
        yield loads
    finally:
        process.terminate()
        process.wait(60)
        if not isinstance(source, MariaDbServer):
            source.execute("SELECT pg_drop_replication_slot('bench')")


def lock_waits(source: Address) -> int:
    """Return how many waits for a row's lock a MariaDB has counted, how many there are now at a PostgreSQL."""
    if isinstance(source, MariaDbServer):
        return int(source.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")[0][1])
    return int(source.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[0][0])


def against_a_load(source: Address, rows: int) -> tuple[float, float, float]:
    """Return transactions per second during a load and alone, and the lock waits during it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tranlog-bench-")))
        fast = Writers(source, rows, 0.0, folder)
        stack.callback(fast.close)
        most = fast.reach(for_seconds(FULL_S))
        fast.close()
        paced = Writers(source, rows, most / 2 / WRITERS, folder)
        stack.callback(paced.close)
        alone = paced.reach(for_seconds(ALONE_S))
        loads = stack.enter_context(capture(source, folder))
        counted, seen = lock_waits(source), 0

        def look() -> bool:
            nonlocal seen
            now = lock_waits(source)
            seen += now - counted if isinstance(source, MariaDbServer) and now > counted + seen else 0
            seen += 0 if isinstance(source, MariaDbServer) else now
            return loads()

        during = paced.reach(look)
        return during, alone, float(seen)


def measure(bench: Bench) -> None:
    """Both kinds of sources."""
    rows = bench.size(ROWS, trying=TRY_ROWS)
    for name, made in (("mariadb", mariadb), ("postgres", lambda: postgres(wal_level="logical"))):
        if not bench.wants(name):
            continue
        with made() as source:
            fill(source, rows)
            found = [against_a_load(source, rows) for _ in range(bench.rounds(3))]
        during, alone, waits = zip(*found, strict=True)
        bench.add(f"{name}, writers", ours=during, anchor=alone, unit="transactions/s", must=at_least(MUST))
        bench.add(f"{name}, lock waits", ours=waits, unit="waits", must=at_most(0))


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
