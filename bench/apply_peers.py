"""How long until the tables are equal: against PostgreSQL's own logical subscription, and against pg_chameleon?

The same transactions of the same shop, committed at a source while nobody reads it; then each side catches up until
every row at its target, a PostgreSQL server that only it uses, equals the source's.

- PostgreSQL's subscription reads its publisher's WAL, and applies it in one process, `synchronous_commit` off as is
  its default; the publisher, a second server, decodes on the same cores. Counted from `ALTER SUBSCRIPTION … ENABLE`.
  Ours is `tranlog apply` on 4 channels, which reads the log of these transactions and commits durably; its start, which
  is Java's for the most part, is in one row and apart in the other.
- pg_chameleon, the replica from MariaDB to PostgreSQL in Python, with the settings of its own example; it reads the
  binlog into tables of its own and replays these by PL/pgSQL. Counted from `start_replica`, ours from `tranlog run`,
  which captures the same binlog and applies it. It lives in a virtual environment of its own, beside ours, made the
  first time.

Without pg_chameleon, because it cannot be installed, its rows are missing, and the program says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from frame import Bench, Question, run
from shop import CREATE_ORDERS, Shop, applied, configure, fresh_target, python, statements, watch, write_log

from tranlog.target.options import open_target
from tranlog.testing.servers import MariaDbServer, PostgresServer

TRANSACTIONS = 100_000
BINLOG_TRANSACTIONS = 20_000
"""Fewer: pg_chameleon needs minutes for what a subscription does in seconds."""
TRY_TRANSACTIONS = 5_000
CHANNELS = 4
LOOK_S = 0.05
PATIENCE_S = 900.0

CHAMELEON = ("pg_chameleon==2.0.21", "setuptools<81")
"""What goes into its environment; it imports pkg_resources, which later setuptools leave out."""
ENVIRONMENT = Path(sys.prefix) / "peers" / "pg_chameleon"
# It refuses to run as root, for the sake of its files' owner; who runs benches in a container is root.
_LAUNCH = (
    "import os, sys; os.geteuid = lambda: os.getuid() or 65534; sys.argv[0] = 'chameleon'; "
    "exec(compile(open({script!r}).read(), {script!r}, 'exec'))"
)

QUESTION = Question(
    name="apply_peers",
    text=f"How fast does `tranlog` on {CHANNELS} channels make a PostgreSQL equal to its source?",
    peer="in each row the one that it names: PostgreSQL's own logical subscription, or pg_chameleon 2.0.21, same rows",
)

RUN_CONFIG = """\
[service]
name = "bench"

[source]
kind = "mariadb"
load = "none"
host = "{host}"
port = {port}
user = "root"

[log]
dir = "{log}"

[shards]
rule = "schema"

[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "ignore"

[pipeline]
channels = {channels}
"""

CHAMELEON_CONFIG = """\
pid_dir: '{home}/.pg_chameleon/pid/'
log_dir: '{home}/.pg_chameleon/logs/'
log_dest: stdout
log_level: info
log_days_keep: 1
rollbar_key: ''
rollbar_env: ''
type_override: {{}}
pg_conn:
  host: "{pg.host}"
  port: "{pg.port}"
  user: postgres
  password: none
  database: "{database}"
  charset: utf8
sources:
  mysql:
    db_conn:
      host: "{my.host}"
      port: "{my.port}"
      user: root
      password: ""
      charset: utf8mb4
      connect_timeout: 10
    schema_mappings: {{{schemas}}}
    limit_tables: []
    skip_tables: []
    grant_select_to: []
    lock_timeout: "120s"
    my_server_id: 100
    replica_batch_size: 10000
    replay_max_rows: 10000
    batch_retention: '1 day'
    copy_max_memory: "300M"
    copy_mode: 'file'
    out_dir: '{home}'
    sleep_loop: 1
    on_error_replay: exit
    on_error_read: exit
    auto_maintenance: "disabled"
    gtid_enable: false
    type: mysql
    keep_existing_schema: No
fillfactor: {{}}
"""


def seconds_until_equal(
    shop: Shop, server: PostgresServer, database: str, alive: Callable[[], bool]
) -> tuple[float, float]:
    """Look until there are rows, then until they are those of the source; return when the looks that saw it began."""
    began = time.perf_counter()
    first = 0.0
    while True:
        seen = time.perf_counter()
        if not first and any(shop.count(server, database=database)):
            first = seen - began
        if first and shop.counts(server, database=database) and shop.equals(server, database=database):
            return first, seen - began
        if not alive() or seen - began > PATIENCE_S:
            raise SystemExit(f"the tables of {database} are not equal after {seen - began:.0f} s")
        time.sleep(LOOK_S)


# --- PostgreSQL's own subscription -----------------------------------------------------------------------


def subscribe(publisher: PostgresServer, subscriber: PostgresServer, turn: int, transactions: int) -> float:
    """Commit the load at a publisher, then let a subscription catch up; return its transactions per second."""
    name = f"subscription{turn}"
    shop = Shop(seed=1)
    for server in (publisher, subscriber):
        server.execute(f"CREATE DATABASE {name}")
        for table in shop.tables:
            server.execute(f"CREATE SCHEMA {table.schema}", database=name)
            server.execute(CREATE_ORDERS.format(schema=table.schema), database=name)
    publisher.execute("CREATE PUBLICATION shop FOR ALL TABLES", database=name)
    # Its slot is made here: a subscription that makes it by itself waits for all transactions of the publisher.
    publisher.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')", database=name)
    at = f"host={publisher.host} port={publisher.port} user=postgres dbname={name}"
    options = f"copy_data = false, enabled = false, create_slot = false, slot_name = '{name}'"
    subscriber.execute(f"CREATE SUBSCRIPTION {name} CONNECTION '{at}' PUBLICATION shop WITH ({options})", database=name)
    with publisher.connect(name) as session:
        session.execute("SET synchronous_commit = off")
        for _ in range(transactions // 500):
            with session.pipeline():
                for _ in range(500):
                    session.execute("BEGIN")
                    for sql, values in statements(shop.transaction()):
                        session.execute(sql.encode(), values)
                    session.execute("COMMIT")
    for server in (publisher, subscriber):
        server.execute("CHECKPOINT")
    subscriber.execute(f"ALTER SUBSCRIPTION {name} ENABLE", database=name)
    try:
        _, seconds = seconds_until_equal(shop, subscriber, name, lambda: subscriber.running)
    finally:
        subscriber.execute(f"ALTER SUBSCRIPTION {name} DISABLE", database=name)
        subscriber.execute(f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)", database=name)
        subscriber.execute(f"DROP SUBSCRIPTION {name}", database=name)
    while publisher.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{name}'") == [(True,)]:
        time.sleep(LOOK_S)
    publisher.execute(f"SELECT pg_drop_replication_slot('{name}')", database=name)
    return transactions / seconds


def apply_log(server: PostgresServer, folder: Path, shop: Shop) -> tuple[float, float]:
    """Apply the log into a fresh database; return transactions per second without the start, and with it."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        options = fresh_target(server, shop)
        conf = Path(place) / "tranlog.toml"
        configure(conf, folder, options, channels=CHANNELS)
        command = ["-m", "tranlog", "--conf", str(conf), "apply", "--until", "now", "--json"]
        with closing(open_target(options)) as target, python(command) as running:
            target.positions.ensure_tables()
            taken = watch(lambda: applied(target), running, shop.transactions, also=())
            database = options.dsn.rpartition("/")[2]
            if not shop.equals(server, database=database):
                raise SystemExit(f"everything is applied, but the tables of {database} are not equal")
            return taken.rate, shop.transactions / (taken.start_seconds + taken.seconds)


def against_subscription(bench: Bench, folder: Path) -> None:
    """A subscription and ours, by turns."""
    transactions = bench.size(TRANSACTIONS, trying=TRY_TRANSACTIONS)
    shop = write_log(folder / "log", transactions, seed=1)
    theirs: list[float] = []
    ours: list[tuple[float, float]] = []
    with PostgresServer(options={"wal_level": "logical"}) as publisher, PostgresServer() as subscriber:
        for turn in range(bench.rounds(3)):
            for side in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
                if side == "theirs":
                    theirs.append(subscribe(publisher, subscriber, turn, transactions))
                    bench.say(f"subscription: {theirs[-1]:.0f} transactions/s")
                else:
                    ours.append(apply_log(subscriber, folder / "log", shop))
                    bench.say(f"ours: {ours[-1][0]:.0f} transactions/s, with its start {ours[-1][1]:.0f}")
    unit, rows = "transactions/s", shop.changes / transactions
    bench.add("subscription", ours=[one for one, _ in ours], anchor=theirs, unit=unit)
    bench.add(
        "subscription, rows", ours=[one * rows for one, _ in ours], anchor=[r * rows for r in theirs], unit="rows/s"
    )
    bench.add("subscription, our start in it", ours=[one for _, one in ours], anchor=theirs, unit=unit)


# --- pg_chameleon ----------------------------------------------------------------------------------------


def chameleon_python(bench: Bench) -> Path | None:
    """Return the Python of pg_chameleon's own environment, made if it is missing; None where it cannot be made."""
    path = ENVIRONMENT / "bin" / "python"
    installed = ENVIRONMENT / "installed"
    if not installed.exists():
        bench.say(f"installing {' '.join(CHAMELEON)} into {ENVIRONMENT}")
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        command = [str(path), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *CHAMELEON]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            bench.say(f"pg_chameleon is left out: pip cannot install {CHAMELEON[0]}: {done.stderr.strip()[-500:]}")
            return None
        installed.touch()
    return path


class Chameleon:
    """One home of pg_chameleon's: its configuration, its commands."""

    def __init__(self, interpreter: Path, home: Path, my: MariaDbServer, pg: PostgresServer, database: str) -> None:
        script = str(interpreter.parent / "chameleon.py")
        self._command = [str(interpreter), "-c", _LAUNCH.format(script=script)]
        self._environment = {**os.environ, "HOME": str(home)}
        self._environment.pop("PYTHONPATH", None)
        self.command("set_configuration_files")
        schemas = ", ".join([f"{table.schema}: {table.schema}" for table in Shop(seed=1).tables])
        text = CHAMELEON_CONFIG.format(home=home, my=my, pg=pg, database=database, schemas=schemas)
        (home / ".pg_chameleon" / "configuration" / "default.yml").write_text(text)

    def command(self, *arguments: str) -> None:
        """Run a command to its end, which is with 0 also where it fails: what it printed is in `said`."""
        done = subprocess.run(
            [*self._command, *arguments], env=self._environment, capture_output=True, text=True, check=False
        )
        self.said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        if done.returncode != 0:
            raise SystemExit(f"pg_chameleon's {arguments[0]} failed:\n{self.said}")

    @contextmanager
    def replica(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run its replica; it and its processes are gone at the end of the block."""
        command = [*self._command, "start_replica", "--source", "mysql"]
        silent = subprocess.DEVNULL
        running = subprocess.Popen(
            command, env=self._environment, stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def tables_are_there(pg: PostgresServer, database: str) -> bool:
    """Whether a database has the shop's tables."""
    sql = "SELECT count(*) FROM pg_tables WHERE schemaname LIKE 'shop%' AND tablename = 'orders'"
    return pg.execute(sql, database=database) == [(len(Shop(seed=2).tables),)]


def fill(my: MariaDbServer, transactions: int) -> Shop:
    """Commit the load at MariaDB."""
    shop = Shop(seed=2)
    with closing(my.connect(autocommit=False)) as session, session.cursor() as cursor:
        for _ in range(transactions):
            for sql, values in statements(shop.transaction()):
                cursor.execute(sql, values)
            session.commit()
    return shop


def from_binlog(interpreter: Path, pg: PostgresServer, turn: int, transactions: int) -> tuple[float, float, float]:
    """Fill a MariaDB, then let pg_chameleon and ours catch up with its binlog, one after the other.

    Shape: transactions per second, of ours without its start, of ours, of pg_chameleon.

    Each has a database of its own. Both know the empty tables beforehand: pg_chameleon by `init_replica`, ours by
    `tables create`, which a capture of nothing makes possible.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tranlog-bench-")))
        quick = {"innodb_flush_log_at_trx_commit": 0, "sync_binlog": 0}
        my = stack.enter_context(MariaDbServer(options=quick))
        for table in Shop(seed=2).tables:
            my.execute(f"CREATE DATABASE {table.schema}")
            my.execute(CREATE_ORDERS.format(schema=table.schema))
        theirs = f"chameleon{turn}"
        pg.execute(f"CREATE DATABASE {theirs}")
        (folder / "home").mkdir()
        chameleon = Chameleon(interpreter, folder / "home", my, pg, theirs)
        for arguments in (("create_replica_schema",), ("add_source", "--source"), ("init_replica", "--source")):
            chameleon.command(*arguments, *(["mysql"] if len(arguments) > 1 else []))
        if not tables_are_there(pg, theirs):
            raise SystemExit(f"pg_chameleon's init_replica has made no tables:\n{chameleon.said}")
        ours = fresh_target(pg, Shop(seed=2))
        conf = folder / "tranlog.toml"
        conf.write_text(
            RUN_CONFIG.format(host=my.host, port=my.port, log=folder / "log", dsn=ours.dsn, channels=CHANNELS)
        )
        base = [sys.executable, "-m", "tranlog", "--conf", str(conf)]
        subprocess.run([*base, "capture", "--once"], check=True, stdout=subprocess.DEVNULL)
        shop = fill(my, transactions)
        taken: dict[str, tuple[float, float]] = {}

        def measured(side: str) -> None:
            pg.execute("CHECKPOINT")
            if side == "theirs":
                with chameleon.replica() as running:
                    taken[side] = seconds_until_equal(shop, pg, theirs, lambda: running.poll() is None)
            else:
                with python(base[1:] + ["run"]) as running:
                    database = ours.dsn.rpartition("/")[2]
                    taken[side] = seconds_until_equal(shop, pg, database, lambda: running.poll() is None)
                    running.terminate()
                    running.wait(60)

        for side in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            measured(side)
        first, last = taken["ours"]
        return transactions / (last - first), transactions / last, transactions / taken["theirs"][1]


def against_chameleon(bench: Bench) -> None:
    """pg_chameleon and ours, by turns."""
    interpreter = chameleon_python(bench)
    if interpreter is None:
        return
    transactions = bench.size(BINLOG_TRANSACTIONS, trying=TRY_TRANSACTIONS // 5)
    pairs = []
    with PostgresServer() as pg:
        for turn in range(bench.rounds(3)):
            pairs.append(from_binlog(interpreter, pg, turn, transactions))
            bench.say("pg_chameleon: {2:.0f} transactions/s; ours: {0:.0f}, with its start {1:.0f}".format(*pairs[-1]))
    catch_up, ours, theirs = zip(*pairs, strict=True)
    bench.add("pg_chameleon", ours=catch_up, anchor=theirs, unit="transactions/s")
    bench.add("pg_chameleon, our start in it", ours=ours, anchor=theirs, unit="transactions/s")


def measure(bench: Bench) -> None:
    """Both peers."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        against_subscription(bench, Path(place))
    against_chameleon(bench)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
