"""The harms of `make kill`: what can be done to a service, one function each, and in which order a seed does them.

A harm either happens, whole, and is counted, or returns False because what it needs is not there just now (no worker
runs yet): then it is tried again after a moment. Where the product promises more than to survive, the harm checks it: a
second driver and a second capture refuse with exit code 4, a driver that was replaced ends by itself, and so does a
stale worker.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from demo_steps import Process, StepFailedError, tranlog
from kill_load import STOCK, SqliteLoad
from kill_service import STALL_S, Service, Stray, empty_folder, last_line
from kill_standby import promoted_standby, slot_in_use
from tranlog.pipeline.status.gathering import writer_of
from tranlog.testing.servers import MariaDbServer, PostgresServer

TAKE_OVER_S = 240.0
"""How long a successor may take here, Spark's start included, where many things start at once on few cores."""
END_S = 240.0
TROUBLE_MOST_S = 20.0
"""How long a channel may be kept from the target: twice as long as a target transaction waits for a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """One thing to do: to which service, how long after the one before, and the seed of choices inside it."""

    kind: str
    service: str
    delay_s: float
    dice: int


def plan(kinds: Sequence[str], services: Sequence[str], rounds: int, seed: int) -> list[list[Harm]]:
    """Return the harms of each round: one, and in four of five rounds another one right after it. Pure.

    Kinds come in shuffled decks, so that each comes as often as any other, give or take one. The services take turns.
    """
    rng = random.Random(seed)
    deck: list[str] = []
    turn = {kind: rng.randrange(len(services)) for kind in kinds}
    planned = []
    for number in range(rounds):
        harms = []
        for second in range(2 if number % 5 else 1):
            if not deck:
                deck = rng.sample(kinds, len(kinds))
            kind = deck.pop()
            able = [service for service in services if service in KINDS[kind].services]
            delay = rng.uniform(0.0, 1.0) if second else rng.uniform(0.5, 2.5)
            service = able[turn[kind] % len(able)]
            turn[kind] += 1
            harms.append(Harm(kind=kind, service=service, delay_s=delay, dice=rng.getrandbits(32)))
        planned.append(harms)
    return planned


# --- kill -9 -----------------------------------------------------------------------------------------------


def _end_one(pids: Sequence[int], rng: random.Random) -> bool:
    strays = [stray for pid in sorted(pids) if (stray := Stray.of(pid)) is not None]
    return bool(strays) and rng.choice(strays).send(signal.SIGKILL)


def _end(process: Process | None) -> bool:
    if process is None or process.child.poll() is not None:
        return False
    process.kill()
    return True


def _capture(service: Service, rng: random.Random) -> bool:
    return _end(service.capture)


def _driver(service: Service, rng: random.Random) -> bool:
    _wait_mostly(service, rng)
    return _end(service.apply)


def _jvm(service: Service, rng: random.Random) -> bool:
    _wait_mostly(service, rng)
    return _end_one(service.jvms(), rng)


def _wait_mostly(service: Service, rng: random.Random) -> None:
    """Let a pipeline come to its work first, but for one time in four: it may die while it starts, but not always."""
    if rng.random() < 0.75:
        service.wait_until_run()


def _worker(service: Service, rng: random.Random) -> bool:
    service.wait_until_run()
    return _end_one(service.workers(), rng)


def _source_server(service: Service, rng: random.Random) -> bool:
    assert service.server is not None
    service.server.kill()
    time.sleep(rng.uniform(0.0, 1.0))
    service.server.start()
    return True


def _reset_source(service: Service, rng: random.Random) -> bool:
    """Reset the binlog, with all of it captured and its GTIDs kept: refused by name until it is said to be the same."""
    assert isinstance(service.server, MariaDbServer)
    if service.capture is None:
        return False
    with closing(service.server.connect()) as session, session.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        service.wait(service.captured_all, "capture has everything")
        captured = service.committed_seqno()
        _end(service.capture)
        cursor.execute("SELECT @@gtid_binlog_state")
        ((state,),) = cursor.fetchall()
        cursor.execute("RESET MASTER")
        cursor.execute("SET GLOBAL gtid_binlog_state = %s", (state,))
        refused = service.start("refused", "capture")
        if refused.child.wait(STALL_S) != 3 or "was reset" not in last_line(refused):
            raise StepFailedError(f"a reset source was not refused by name: {last_line(refused)}")
        service.capture = service.start("capture", "capture", "--accept-server")
        cursor.execute("UNLOCK TABLES")
        cursor.execute(f"INSERT INTO {service.load.tables[0][0]}.ledger VALUES (-%s, 7)", (rng.getrandbits(60),))
    service.wait(lambda: service.committed_seqno() > captured, "capture goes on after a reset")
    return True


def _target_server(service: Service, rng: random.Random) -> bool:
    service.around.target.server.kill()
    time.sleep(rng.uniform(0.0, 1.0))
    service.around.target.server.start()
    return True


def _sqlite_writer(service: Service, rng: random.Random) -> bool:
    assert isinstance(service.load, SqliteLoad)
    writers = service.load.writers
    return bool(writers) and _end(writers[rng.choice(sorted(writers))])


def _load(service: Service, rng: random.Random) -> bool:
    """Have all tables loaded again, slowly, and end capture, pipeline or source in it; the load goes on afterwards."""
    service.wait_until_run()
    if service.loads():
        return False
    most = ("--rows-per-second", str(rng.choice((20, 100, 500))))
    tranlog("--conf", str(service.conf), "load", "--tables", "all", "--replace", *most)

    def is_under_way() -> bool:
        found = service.loads()
        return not found or found[0].progress.rows > 0

    service.wait(is_under_way, "a load is under way")
    whom = rng.choice([_capture, _driver, *([_source_server] if service.server is not None else [])])
    return bool(service.loads()) and whom(service, rng)


def _verify(service: Service, rng: random.Random) -> bool:
    """Ask for a live verification, and half of the time end somebody in it; it goes on under what comes next."""
    service.wait_until_run()
    if not service.live.is_over():
        return False
    service.live.ask(service)
    service.wait(lambda: service.live.is_under_way(service), "a live verification is under way")
    if rng.random() < 0.5:
        return True
    whom = rng.choice([_capture, _driver, _worker, *([_source_server] if service.server is not None else [])])
    return whom(service, rng)


# --- a target that a channel cannot use ---------------------------------------------------------------------


def _locked_table(service: Service, rng: random.Random) -> bool:
    """Lock one table at the target, often for longer than a target transaction waits for it."""
    service.wait_until_run()
    schema, table, _ = rng.choice(service.load.tables)
    with service.around.target.locked(f"{schema}.{table}"):
        return _goes_on(service, rng, "behind a lock")


def _no_connection(service: Service, rng: random.Random) -> bool:
    """Take a channel's connection away, and let nobody connect for a while; the others keep theirs."""
    service.wait_until_run()
    channel = rng.randrange(service.channels)
    found = service.around.target.ask(
        "SELECT session FROM tranlog_channel WHERE pipeline = %s AND channel = %s", (service.name, channel)
    )
    if not found or not found[0][0]:
        return False
    with service.around.target.refusing(found[0][0]):
        return _goes_on(service, rng, "without a connection")


def _goes_on(service: Service, rng: random.Random, what: str) -> bool:
    """Wait a while with what stands in a channel's way; what is applied behind it, `settle` sees."""
    driver = service.driver
    time.sleep(rng.uniform(1.0, TROUBLE_MOST_S))
    if service.driver != driver or service.apply is None or service.apply.child.poll() is not None:
        raise StepFailedError(f"the driver of {service.name} did not go on {what}")
    return True


# --- stale processes ---------------------------------------------------------------------------------------


def _stop(service: Service, pid: int) -> Stray | None:
    stray = Stray.of(pid)
    if stray is None or not stray.send(signal.SIGSTOP):
        return None
    service.strays.add(stray)
    return stray


def _stopped_capture(service: Service, rng: random.Random) -> bool:
    """Stop the capture; another one refuses, since the log is held; then it goes on, or is killed as it stands."""
    if service.capture is None or service.capture.child.poll() is not None:
        return False
    if f"{service.capture.child.pid}" not in (writer_of(str(service.log)) or "").split():
        return False  # it has not come to the lock yet
    stopped = _stop(service, service.capture.child.pid)
    if stopped is None:
        return False
    _expect_refusal(service, service.start("second-capture", "capture"), "is held by another writer")
    if rng.random() < 0.3:
        return _end(service.capture)
    return stopped.send(signal.SIGCONT)


def _stopped_worker(service: Service, rng: random.Random) -> bool:
    """Stop a worker, kill its driver, let a successor take over, and let the worker go on.

    The process that forked it is killed first: else it, or the kernel (a process group that is orphaned while a member
    is stopped), would tell the worker to hang up. The other workers are left as orphans that go on all the time.
    """
    service.wait_until_run()
    workers, daemons = sorted(service.workers()), service.daemons()
    orphans = [stray for pid in workers if (stray := Stray.of(pid)) is not None]
    forking = [stray for pid in daemons if (stray := Stray.of(pid)) is not None]
    if not orphans or not forking:
        return False
    service.strays.update(orphans)
    for daemon in forking:
        daemon.send(signal.SIGKILL)
    _wait_for_end(forking, f"the killed parent of {service.name}'s workers")
    stopped = rng.choice(orphans)
    if not stopped.send(signal.SIGSTOP):
        return False
    for jvm in service.jvms():  # before the driver: it would end a worker that does not answer
        os.kill(jvm, signal.SIGKILL)
    _end(service.apply)
    # Sometimes with another number of channels: then the stale worker has a channel of a plan that is no more.
    more = ["--channels", str(service.channels - 1)] if rng.random() < 0.3 else []
    _succeed(service, *more)
    time.sleep(rng.uniform(0.0, 1.0))
    if not stopped.send(signal.SIGCONT):
        raise StepFailedError(f"the stopped worker {stopped.pid} of {service.name} did not live to go on")
    _wait_for_end(orphans, f"workers of {service.name} whose driver was replaced")
    return True


def _stopped_driver(service: Service, rng: random.Random) -> bool:
    """Stop a driver, let a successor take over, let the driver go on: it ends by itself, with 4."""
    service.wait_until_run()
    old = service.apply
    assert old is not None
    stopped = _stop(service, old.child.pid)
    if stopped is None:
        return False
    _succeed(service, *(["--take-over"] if rng.random() < 0.5 else []))
    time.sleep(rng.uniform(0.0, 1.0))
    stopped.send(signal.SIGCONT)
    code = _wait_for(old, f"the replaced driver of {service.name}")
    if code != 4:
        raise StepFailedError(f"the replaced driver of {service.name} ended with {code}, not 4: {last_line(old)}")
    return True


def _succeed(service: Service, *more: str) -> None:
    """Start another driver and wait until each channel has a task of its."""
    began = time.monotonic()
    service.apply = service.start("apply", "apply", *more)
    successor = service.driver
    while not service.is_run_by(successor):
        service.apply.check()
        if time.monotonic() - began > TAKE_OVER_S:
            raise StepFailedError(f"the successor of {service.name} did not take over within {TAKE_OVER_S:.0f} s")
        time.sleep(0.1)
    print(f"   a successor took {service.name} over in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def _second_driver(service: Service, rng: random.Random) -> bool:
    """Start a second pipeline on the same target by mistake: it refuses, naming the first."""
    service.wait_until_run()
    first = service.apply
    assert first is not None
    mistake = service.start("second-apply", "apply")
    deadline = time.monotonic() + END_S
    while mistake.child.poll() is None and first.child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if mistake.child.poll() is None and first.child.poll() == 4:
        # The machine let the first one stand still for seconds, so it counted as gone, and ended by itself.
        print(f"   the second driver of {service.name} took over: {last_line(first)}", file=sys.stderr, flush=True)
        service.apply = mistake
        return False
    _expect_refusal(service, mistake, f"pid {first.child.pid}")
    return True


def _expect_refusal(service: Service, mistake: Process, words: str) -> None:
    """Wait until a process that must not run has refused, with exit code 4 and these words."""
    code = _wait_for(mistake, f"{mistake.name} of {service.name}, which should refuse,")
    said = last_line(mistake)
    if code != 4 or words not in said:
        raise StepFailedError(f"{mistake.name} of {service.name} ended with {code} and {said!r}, not 4 and {words!r}")


def _wait_for(process: Process, what: str) -> int:
    try:
        return process.child.wait(END_S)
    except subprocess.TimeoutExpired as exc:
        process.abandon()
        raise StepFailedError(f"{what} did not end within {END_S:.0f} s: {last_line(process)}") from exc


def _wait_for_end(strays: Sequence[Stray], what: str) -> None:
    deadline = time.monotonic() + END_S
    while any(stray.lives for stray in strays):
        if time.monotonic() > deadline:
            raise StepFailedError(f"{what} did not end within {END_S:.0f} s after they could go on")
        time.sleep(0.1)


# --- what the source does itself ------------------------------------------------------------------------


def _ddl(service: Service, rng: random.Random) -> bool:
    """Make and drop an index while others write; each statement is one of the log, and serial, if the source tells."""
    assert service.server is not None
    schema, table, key = service.load.tables[0]
    name = f"beside_{rng.randrange(1_000_000)}"
    service.server.execute(f"CREATE INDEX {name} ON {schema}.{table} ({key}, amount)")
    time.sleep(rng.uniform(0.0, 0.5))
    where = f"{schema}.{name}" if isinstance(service.server, PostgresServer) else f"{name} ON {schema}.{table}"
    service.server.execute(f"DROP INDEX {where}")
    return True


def _gap(service: Service, rng: random.Random) -> bool:
    """Write what capture cannot carry, then end somebody; a load follows by itself, also under what comes next."""
    service.wait_until_run()
    stock = ".".join(rng.choice([(schema, table) for schema, table, _ in service.load.tables if table == "stock"]))
    change = f"UPDATE {stock} SET pieces = pieces + 7 WHERE id < {STOCK}"
    if isinstance(service.server, PostgresServer):
        identity = f"ALTER TABLE {stock} REPLICA IDENTITY"
        service.server.execute(f"{identity} DEFAULT; {change}; {identity} FULL")
    else:
        assert service.server is not None
        with closing(service.server.connect()) as session, session.cursor() as cursor:
            cursor.execute("SET binlog_format = STATEMENT")
            cursor.execute(change)
    time.sleep(rng.uniform(0.0, 2.0))
    rng.choice([_capture, _driver, _worker])(service, rng)  # or nobody, where it is gone just now
    return True


# --- files -------------------------------------------------------------------------------------------------


def _scratch(service: Service, rng: random.Random) -> bool:
    """Delete Spark's scratch folders under the running pipeline; half the time it then has to start a worker again.

    The driver makes them again where it needs them: it goes on, and so does what it applies.
    """
    service.wait_until_run()
    if not any(entry.name.startswith("tranlog-spark-") for entry in service.scratch.iterdir()):
        raise StepFailedError(f"Spark's scratch folder is not in {service.scratch}")
    empty_folder(service.scratch)
    if rng.random() < 0.5:
        driver = service.driver
        _end_one(service.workers(), rng)
        committed = service.committed_seqno()
        service.wait(lambda: service.applied_seqno() >= committed, "it goes on without its scratch folder")
        if service.driver != driver:
            raise StepFailedError(f"the driver of {service.name} did not outlive its scratch folder")
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of harm: what does it, and to which services it can be done."""

    do: Callable[[Service, random.Random], bool]
    services: tuple[str, ...] = ("mariadb", "sqlite", "postgres", "foreign")


KINDS = {
    "capture": Kind(_capture),
    "driver": Kind(_driver),
    "jvm": Kind(_jvm),
    "worker": Kind(_worker),
    "source_server": Kind(_source_server, ("mariadb", "postgres")),
    "reset_source": Kind(_reset_source, ("mariadb",)),
    "promoted_standby": Kind(promoted_standby, ("postgres",)),
    "slot_in_use": Kind(slot_in_use, ("postgres",)),
    "load": Kind(_load),
    "verify": Kind(_verify),
    "gap": Kind(_gap, ("mariadb", "postgres")),
    "ddl": Kind(_ddl, ("mariadb", "postgres")),
    "target_server": Kind(_target_server),
    "locked_table": Kind(_locked_table),
    "no_connection": Kind(_no_connection),
    "sqlite_writer": Kind(_sqlite_writer, ("sqlite", "foreign")),
    "stopped_capture": Kind(_stopped_capture),
    "stopped_worker": Kind(_stopped_worker),
    "stopped_driver": Kind(_stopped_driver),
    "second_driver": Kind(_second_driver),
    "scratch": Kind(_scratch),
}
