"""What the programs about loads share: a table of rows that are there, and a pipeline that runs before it loads them.

Each row is of six columns, about 90 bytes. The pipeline is `tranlog run` with one channel, with `load = "none"`, at
another server of its own; so neither Java's start nor Spark's is in what is measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shop import CREATE_ORDERS

from tranlog.capture.load_requests import LoadRequest, ask, read_requests
from tranlog.log.reading.reader import LogReader
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Target
from tranlog.testing.servers import Address, MariaDbServer, PostgresServer

ROWS = 1_000_000
TRY_ROWS = 100_000
SCHEMA = "shop"
TABLE = f"{SCHEMA}.orders"
LOOK_S = 0.02
PATIENCE_S = 900.0

_CONFIG = """\
[service]
name = "bench"

[log]
dir = "log"

[source]
{source}
load = "none"

[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "follow"

[pipeline]
channels = 1
"""


def mariadb() -> MariaDbServer:
    """Return a source that keeps a million rows in memory, and need not be durable while it is filled."""
    return MariaDbServer(options={"innodb_buffer_pool_size": "512M", "innodb_log_file_size": "256M"})


def postgres(**options: str) -> PostgresServer:
    """Return a server with the same."""
    return PostgresServer(options={"shared_buffers": "512MB", "max_wal_size": "4GB", **options})


def fill(server: Address, rows: int) -> None:
    """Make the table at a source, with rows."""
    values = "{n}, {n} % 1000, 'paid', 1 + {n} % 7, 9.99 + {n} % 100, concat('order ', {n}, ' of ', {n}, ' of his')"
    if isinstance(server, MariaDbServer):
        server.execute(f"CREATE DATABASE {SCHEMA}")
        server.execute(CREATE_ORDERS.format(schema=SCHEMA))
        server.execute(f"INSERT INTO {TABLE} SELECT {values.format(n='seq')} FROM seq_1_to_{rows}", database=SCHEMA)
    else:
        server.execute(f"CREATE SCHEMA {SCHEMA}")
        server.execute(CREATE_ORDERS.format(schema=SCHEMA))
        server.execute(f"INSERT INTO {TABLE} SELECT {values.format(n='n')} FROM generate_series(1, {rows}) n")
        server.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL")
        server.execute("VACUUM ANALYZE")
        server.execute("CHECKPOINT")


def new_database(server: PostgresServer, *, with_table: bool = False) -> str:
    """Make a database at a target, with nothing of the run before still to be written; return its name."""
    name = f"bench{server.execute('SELECT count(*) FROM pg_database')[0][0]}"
    server.execute("CHECKPOINT")
    server.execute(f"CREATE DATABASE {name}")
    if with_table:
        server.execute(f"CREATE SCHEMA {SCHEMA}", database=name)
        server.execute(CREATE_ORDERS.format(schema=SCHEMA), database=name)
    return name


def count(server: PostgresServer, database: str) -> int:
    """Return how many rows a target has."""
    return int(server.execute(f"SELECT count(*) FROM {TABLE}", database=database)[0][0])


def until(done: Callable[[], bool], what: str, alive: Callable[[], bool] = lambda: True) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if not alive() or time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A pipeline that runs: `folder` holds its configuration and its log, `target` is the open target."""

    folder: Path
    process: subprocess.Popen[bytes]
    target: Target

    def tranlog(self, *words: str) -> str:
        """Run another command beside it; return what it printed."""
        command = [sys.executable, "-m", "tranlog", "--conf", str(self.folder / "tranlog.toml"), *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"tranlog {words[0]} ended with exit code {done.returncode}: {done.stdout}")
        return done.stdout

    def load(self) -> None:
        """Have the rows loaded, and wait until the target has them."""
        log = str(self.folder / "log")
        ask(log, LoadRequest(load="1", tables=(TABLE,), asked_at=0))
        until(lambda: not read_requests(log), "the load's end", self.is_alive)
        with LogReader.open(log) as reader:
            last = reader.range().last_seqno
        until(lambda: self.applied() >= last, "the target", self.is_alive)

    def is_online(self) -> bool:
        """Whether its channel is at work."""
        return any(row.session for row in self.target.positions.read_channels("bench"))

    def applied(self) -> int:
        """Return up to where the target has the log."""
        return min([row.applied_seqno for row in self.target.positions.read_channels("bench")], default=-1)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None


@contextmanager
def pipeline(source: Address, target: PostgresServer, database: str) -> Iterator[Running]:
    """Run `tranlog run` from a source into a database; it is online, and gone at the end of the block."""
    if isinstance(source, MariaDbServer):
        lines = f'kind = "mariadb"\nhost = "{source.host}"\nport = {source.port}\nuser = "root"'
    else:
        lines = f'kind = "postgres"\ndsn = "{source.dsn()}"\nslot = "{database}"'
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        folder = Path(place)
        (folder / "tranlog.toml").write_text(_CONFIG.format(source=lines, dsn=target.dsn(database)))
        into = open_target(TargetOptions(kind="postgres", dsn=target.dsn(database)))
        into.positions.ensure_tables()
        command = [sys.executable, "-m", "tranlog", "--conf", str(folder / "tranlog.toml"), "run"]
        quiet = subprocess.DEVNULL
        with (folder / "err").open("wb") as err:
            process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=err)
        running = Running(folder=folder, process=process, target=into)
        try:
            until(running.is_online, "a pipeline", running.is_alive)
            yield running
        except SystemExit:
            print((folder / "err").read_text(), file=sys.stderr)
            raise
        finally:
            into.close()
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if isinstance(source, PostgresServer):
                source.execute(f"SELECT pg_drop_replication_slot('{database}')")
