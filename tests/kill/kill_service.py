"""One service of `make kill`: a source, its log, its pipeline, and their processes.

Owns starting its processes, starting again what is gone, and telling where it stands. What is done to the processes is
`kill_harms`. The hard idea: a process may only end as it should. One that we killed is started again, and so is one
that says "fix the environment and start again" (exit code 4); every other end is a failure of the run.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_steps import TRANLOG, Process, StepFailedError, tranlog
from kill_foreign import MARKETS, ForeignLoad
from kill_live import LiveVerifications
from kill_load import STORES, Load, MariaDbLoad, PostgresLoad, ServerLoad, SqliteLoad
from kill_orders import FOREIGN_KEYS, SCHEMA, OrdersLoad, foreign_keys
from kill_target import KillTarget
from tranlog.capture.load_requests import LoadRequest, give_order, read_requests
from tranlog.change import TableName
from tranlog.clock import SystemClock
from tranlog.pipeline.rules.progress import ChannelStats, Counters
from tranlog.service.commands.status import ServiceStatus, service_status
from tranlog.service.config.config import load
from tranlog.source.postgres.position import parse_lsn
from tranlog.testing.servers import MariaDbServer, PostgresServer

CHANNELS = 4
"""Of a service that divides by shards."""
STALL_S = 300.0
"""How long nothing may move while something is waited for; many processes share few cores."""


def _map_of(stores: tuple[str, ...]) -> str:
    tables = ("ledger", "stock", "visits")
    return "".join(f'"main.{store}_{table}" = "{store}"\n' for store in stores for table in tables)


_SOURCE = {
    "mariadb": """\
[source]
kind = "mariadb"
host = "127.0.0.1"
port = {port}
user = "root"
start = "earliest"
[shards]
rule = "schema"
{by_writes}
""",
    "postgres": """\
[source]
kind = "postgres"
dsn = "{dsn}"
identity = "set"
feedback_s = 0.2
[shards]
rule = "schema"
{by_writes}
""",
    "sqlite": """\
[source]
kind = "sqlite"
load = "none"
path = "shop.db"
[shards]
rule = "map"
[shards.map]
"""
    + _map_of(STORES),
    "foreign": """\
[source]
kind = "sqlite"
path = "shop.db"
foreign_writes = "capture_by_trigger"
[shards]
rule = "map"
[shards.map]
"""
    + _map_of(MARKETS),
}
_REST = """\
[service]
name = "{name}"
[log]
dir = "log"
segment_bytes = "1MB"
[target]
{target}ddl = "ignore"
[pipeline]
channels = {channels}
"""


@dataclass(frozen=True, slots=True)
class Stray:
    """A process that nobody of ours waits for; its start time tells it from a later one with its number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Stray | None:
        """Return the process as it is now, None when it is gone."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, fields[19])

    @property
    def lives(self) -> bool:
        """Whether it still runs, or is stopped."""
        return Stray.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when it is gone."""
        try:
            if self.lives:
                os.kill(self.pid, number)
                return True
        except ProcessLookupError:
            pass
        return False


def _stat(pid: int) -> list[str] | None:
    """Return what /proc says of a process after its name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still live."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    for child in children(pid):
        yield child
        yield from descendants(child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all services of a run share."""

    folder: Path
    target: KillTarget
    seed: int
    by_writes: Mapping[str, bool]
    """Which services have their channels meet by write sets."""
    path: Path | None = None
    """A folder in front of PYTHONPATH of every process that is started."""


@dataclass(slots=True)
class Service:
    """One source's way to the target. Threads: one."""

    name: str
    around: Surroundings
    server: MariaDbServer | PostgresServer | None = None
    """The source's server; None where SQLite is the source."""
    marker: int | None = None
    """An LSN at PostgreSQL behind all that was committed when `captured_all` was first asked."""
    folder: Path = field(init=False)
    conf: Path = field(init=False)
    load: Load = field(init=False)
    channels: int = field(init=False)
    by_writes: bool = field(init=False)
    commit_order: str = field(init=False)
    """In what order channels that meet by write sets commit: "any" or "source"."""
    capture: Process | None = None
    apply: Process | None = None
    live: LiveVerifications = field(default_factory=LiveVerifications)
    strays: set[Stray] = field(default_factory=set)
    """Processes that were stopped, or whose parent was killed: ended at the end, if they have not by themselves."""

    def __post_init__(self) -> None:
        around = self.around
        self.folder = around.folder / self.name
        self.scratch.mkdir(parents=True)
        self.conf = self.folder / "tranlog.toml"
        chance = random.Random(f"{around.seed}/{self.name}")
        self.by_writes = around.by_writes[self.name]
        self.channels = chance.randint(2, 6) if self.by_writes else CHANNELS
        self.commit_order = chance.choice(("any", "source"))
        port = None if self.server is None else self.server.port
        dsn = self.server.dsn("") if isinstance(self.server, PostgresServer) else ""
        rest = _REST.format(name=self.name, target=around.target.config(), channels=self.channels)
        tables = OrdersLoad.tables if self.by_writes else ()
        triggers = [name for schema, table, _ in tables for name in around.target.trigger_names(schema, table)]
        told = f'by = "writes"\ncommit_order = "{self.commit_order}"\nindependent_triggers = {sorted(set(triggers))}'
        told += "\ncommit_cost = 0"  # else channel 0 may run alone for long: so often do they wait for each other
        self.conf.write_text(
            _SOURCE[self.name].format(port=port, dsn=dsn, by_writes=told if self.by_writes else "") + rest
        )
        if self.server is None:
            written_by = ForeignLoad if self.name == "foreign" else SqliteLoad
            self.load = written_by(self.folder, around.seed, self.start_program)
        else:
            kind: type[ServerLoad] = PostgresLoad if isinstance(self.server, PostgresServer) else MariaDbLoad
            self.load = (OrdersLoad if self.by_writes else kind)(self.server, around.seed)

    def move_to(self, server: PostgresServer) -> None:
        """Have another server in the place of the source's."""
        assert isinstance(self.server, PostgresServer) and isinstance(self.load, ServerLoad)
        self.conf.write_text(self.conf.read_text().replace(self.server.dsn(""), server.dsn("")))
        self.server = self.load.server = server

    def make_target_tables(self) -> None:
        """Make the source's tables at the target; foreign keys too, where channels meet by write sets."""
        tranlog("--conf", str(self.conf), "tables", "create", "--from", "source")
        for statement in foreign_keys() if self.by_writes else ():
            self.around.target.run(statement)

    @property
    def references(self) -> list[tuple[TableName, TableName]]:
        """The foreign keys at the target."""
        return [((SCHEMA, table), (SCHEMA, to)) for table, _, to in FOREIGN_KEYS] if self.by_writes else []

    @property
    def scratch(self) -> Path:
        """Where its processes, the JVM among them, put their temporary files."""
        return self.folder / "tmp"

    @property
    def log(self) -> Path:
        """The log's directory."""
        return self.folder / "log"

    # --- processes ---

    def start_program(self, name: str, command: list[str]) -> Process:
        """Start a program that ends with us, whatever ends us."""
        settings = [f"TMPDIR={self.scratch}"]
        if self.around.path is not None:
            settings.append(f"PYTHONPATH={os.pathsep.join([str(self.around.path), *_python_path()])}")
        return Process(name, ["setpriv", "--pdeathsig=KILL", "--", "env", *settings, *command], self.folder)

    def start(self, name: str, command: str, *more: str) -> Process:
        """Start one of our commands; `name` is also that of the file with what it says."""
        return self.start_program(name, [*TRANLOG, "--conf", str(self.conf), command, *more])

    def mend(self) -> None:
        """Start again what was started and is gone. Raises StepFailedError where it ended as it never should."""
        if self.capture is not None and self._ended(self.capture):
            self.capture = self.start("capture", "capture")
        if self.apply is not None and self._ended(self.apply):
            self.apply = self.start("apply", "apply")

    def _ended(self, process: Process) -> bool:
        code = process.child.poll()
        if code is None:
            return False
        if code == 4:
            print(f"   {process.name} of {self.name} ended with 4: {last_line(process)}", file=sys.stderr, flush=True)
        elif code != -signal.SIGKILL:
            process.check()
        return True

    @property
    def driver(self) -> int:
        """The Spark driver's process, gone or not."""
        assert self.apply is not None
        return self.apply.child.pid

    def jvms(self) -> list[int]:
        """Return the driver's JVM, none while there is none."""
        return [pid for pid in descendants(self.driver) if _name_of(pid) == "java"]

    def daemons(self) -> list[int]:
        """Return the process from which the JVM's Python workers are forked."""
        return [pid for jvm in self.jvms() for pid in children(jvm) if _name_of(pid).startswith("python")]

    def workers(self) -> list[int]:
        """Return the Python workers, one per channel while they all run."""
        return [worker for daemon in self.daemons() for worker in children(daemon)]

    def abandon(self) -> None:
        """End everything."""
        self.load.abandon()
        self.live.abandon()
        if self.server is not None:
            self.server.kill()
        for process in (self.capture, self.apply):
            if process is not None:
                below = [stray for pid in descendants(process.child.pid) if (stray := Stray.of(pid)) is not None]
                process.abandon()
                self.strays.update(below)
        for stray in self.strays:
            stray.send(signal.SIGKILL)

    # --- where it stands ---

    def status(self) -> ServiceStatus:
        """Return what `tranlog status` would show."""
        return service_status(load(str(self.conf), environ=os.environ), clock=SystemClock(), watch_s=0)

    def captured_all(self) -> bool:
        """Whether the log holds all that the source has committed."""
        source = self.status().source_state
        if source is None:
            return False
        if source.waiting is not None:
            return source.waiting == 0
        if isinstance(self.server, PostgresServer):
            return self._captured_marker(source.captured_event_id)
        return source.now_at != "" and source.captured_event_id.split(";")[0] == source.now_at

    def captured_lsn(self) -> int:
        """Return where the log of a PostgreSQL ends, 0 where it has nothing."""
        source = self.status().source_state
        return 0 if source is None else _lsn_of(source.captured_event_id)

    def _captured_marker(self, event_id: str) -> bool:
        """Whether a PostgreSQL's message is captured that is written when this is first asked; its WAL ends nowhere."""
        assert self.server is not None
        if self.marker is None:
            ((lsn,),) = self.server.execute("SELECT pg_logical_emit_message(true, 'settled', '')::text")
            self.marker = parse_lsn(lsn)
            return False
        if _lsn_of(event_id) < self.marker:
            return False
        self.marker = None
        return True

    def begins(self) -> bool:
        """Whether its capture has written something."""
        return self.committed_seqno() > 0

    def loads(self) -> list[LoadRequest]:
        """Return the loads that are under way."""
        return read_requests(str(self.log))

    def applied_all(self) -> bool:
        """Whether the target holds all that is in the log."""
        state = self.status()
        return (
            state.log is not None
            and state.pipeline is not None
            and bool(state.pipeline.channels)
            and state.pipeline.restart_seqno >= state.log.committed_seqno
        )

    def applied_seqno(self) -> int:
        """Return up to where everything is at the target."""
        rows = self._ask("SELECT min(applied_seqno) FROM tranlog_channel WHERE pipeline = %s")
        return -1 if not rows or rows[0][0] is None else int(rows[0][0])

    def counted(self) -> tuple[Counters, dict[str, int]]:
        """Return what all channels have counted by now, and why transactions ran alone."""
        done, reasons = Counters(), Counter[str]()
        for (stats,) in self._ask("SELECT stats FROM tranlog_channel WHERE pipeline = %s"):
            told = ChannelStats.parse(stats)
            done = done + Counters.parse(stats) + Counters.of(told.earlier)
            reasons.update(told.reasons)
        return done, dict(reasons)

    def committed_seqno(self) -> int:
        """Return up to where the log is committed."""
        log = self.status().log
        return -1 if log is None else log.committed_seqno

    def is_run_by(self, pid: int) -> bool:
        """Whether that driver has the pipeline, and each of its channels has a task."""
        rows = self._ask(
            "SELECT p.holder, p.channels, count(CASE WHEN c.session <> '' THEN 1 END) "
            "FROM tranlog_pipeline p JOIN tranlog_channel c USING (pipeline) "
            "WHERE pipeline = %s GROUP BY p.holder, p.channels"
        )
        return any(f"pid {pid} " in f"{holder} " and claimed == channels for holder, channels, claimed in rows)

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self.around.target.ask(sql, (self.name,))
        except Exception as exc:
            if "tranlog_" in str(exc):  # the first driver has not made its tables yet
                return []
            raise

    def wait_until_run(self) -> None:
        """Wait until the pipeline's driver has its tasks at work and something was applied since this was asked."""
        before = self.applied_seqno()

        def moves() -> bool:
            return self.is_run_by(self.driver) and (self.applied_seqno() > before or self.applied_all())

        self.wait(moves, "the pipeline runs")

    def wait(self, ready: Callable[[], bool], what: str, timeout_s: float = STALL_S) -> None:
        """Poll, starting again what is gone. Raises StepFailedError when nothing was applied for so long."""
        began, applied = time.monotonic(), self.applied_seqno()
        while not ready():
            self.mend()
            if time.monotonic() - began > timeout_s:
                before, applied = applied, self.applied_seqno()
                if applied <= before:
                    said = "; ".join(f"{one.name}: {last_line(one)}" for one in (self.capture, self.apply) if one)
                    raise StepFailedError(f"{self.name}: {what}: not within {timeout_s:.0f} s. {said}")
                began = time.monotonic()
            time.sleep(0.3)

    def settle(self) -> None:
        """Wait until all that the source has committed is at the target, and no load or verification is under way.

        The writers must have stopped.
        """
        self.wait(self.live.is_over, "its live verification ends")
        self.wait(self.captured_all, "capture has every gap")
        for request in self.loads():
            give_order(str(self.log), request.load, paused=False, rows_per_second=0)
        self.wait(lambda: not self.loads(), "its loads are at their end")
        self.wait(self.captured_all, "capture has everything")
        self.wait(self.applied_all, "everything is applied")


def last_line(process: Process) -> str:
    """Return the last line that a process said."""
    lines = process.output.read_text(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return re.sub(r"\s+", " ", said[-1])[:300] if said else "(nothing)"


def empty_folder(folder: Path) -> int:
    """Delete what is in a folder and return how many entries that were."""
    entries = list(folder.iterdir())
    for entry in entries:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    return len(entries)


def _lsn_of(event_id: str) -> int:
    return parse_lsn(event_id.split(";")[0]) if event_id else 0


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
