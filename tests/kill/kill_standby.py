"""Two harms of `make kill` to a PostgreSQL's slot: a standby is promoted, and another program reads from the slot.

Owns making the standby under load, and moving a service to it. The hard idea is what a promotion keeps. What was
acknowledged is there, since commits wait for the standby. What the log holds is there, since capture is killed before
the primary, and the primary when the standby has received as much. The slot is there where a tool keeps it, since
PostgreSQL 15 has no failover slots; it was saved when its WAL began after the standby's copy of the data. Half of the
time it comes too late, and capture must refuse by name until it is there.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing

from demo_steps import StepFailedError
from kill_service import STALL_S, Service, last_line
from tranlog.service.config.config import load
from tranlog.source.postgres import PostgresSourceOptions
from tranlog.source.postgres.position import parse_lsn
from tranlog.source.postgres.stream import SlotStream
from tranlog.testing.servers import PostgresServer

NO_SLOT = "did not come along with a promotion"
IN_USE = "is in use by process"


def promoted_standby(service: Service, rng: random.Random) -> bool:
    """Kill the primary and promote a standby of it; capture goes on there, or refuses while the slot is not there."""
    primary = service.server
    assert isinstance(primary, PostgresServer)
    slot = _options(service).slot_name
    standby = primary.standby(directory=service.around.folder / f"after-{primary.port}", options=primary.options)
    try:
        kept = _kept_slot(service, primary, slot)
        in_time = rng.random() < 0.5
        if in_time:
            standby.put_slot(slot, kept)
        primary.options["synchronous_standby_names"] = "*"
        primary.restart()  # each commit from here on waits for the standby
        standby.start()
        service.wait(lambda: _streams(primary), "the standby streams")
        time.sleep(rng.uniform(0.5, 2.0))
        if service.capture is not None and service.capture.child.poll() is None:
            service.capture.kill()
        service.capture = None
        captured = service.captured_lsn()
        service.wait(lambda: _lsn(standby, "pg_last_wal_receive_lsn()") >= captured, "the standby has what the log has")
        primary.kill()
        standby.execute("SELECT pg_promote(true, 600)")
    except BaseException:
        standby.close()
        raise
    service.move_to(standby)
    if not in_time:
        refused = service.start("refused", "capture")
        if refused.child.wait(STALL_S) != 3 or NO_SLOT not in last_line(refused):
            raise StepFailedError(f"a promoted server without the slot was not refused by name: {last_line(refused)}")
        standby.stop()
        standby.put_slot(slot, kept)
        standby.start()
    before = service.committed_seqno()
    service.capture = service.start("capture", "capture")
    service.wait(lambda: service.committed_seqno() > before, "capture goes on after a promotion")
    return True


def slot_in_use(service: Service, rng: random.Random) -> bool:
    """Have another program read from the slot: a capture that starts meanwhile refuses, and goes on afterwards."""
    if service.capture is None or service.capture.child.poll() is not None:
        return False
    assert service.server is not None
    service.capture.kill()
    options = _options(service)
    look = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{options.slot_name}'"
    deadline = time.monotonic() + STALL_S
    while service.server.execute(look) != [(False,)]:
        if time.monotonic() > deadline:
            raise StepFailedError(f"the slot of a killed capture was in use for {STALL_S:.0f} s")
        time.sleep(0.1)
    with closing(SlotStream(options)) as stream:
        stream.begin()
        refused = service.start("second-capture", "capture")
        if refused.child.wait(STALL_S) != 4 or IN_USE not in last_line(refused):
            raise StepFailedError(f"a slot in use was not refused by name: {last_line(refused)}")
    return True


def _options(service: Service) -> PostgresSourceOptions:
    options = load(str(service.conf), environ=os.environ).wanted_source()
    assert isinstance(options, PostgresSourceOptions)
    return options


def _kept_slot(service: Service, primary: PostgresServer, slot: str) -> bytes:
    """Return the slot as it is on disk once it needs no WAL of before now."""
    now = _lsn(primary, "pg_current_wal_lsn()")

    def moved_on() -> bool:
        primary.execute("CHECKPOINT")  # which writes down what a slot may move to
        return _lsn(primary, f"restart_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'") >= now

    service.wait(moved_on, "the slot moves on")
    primary.execute("CHECKPOINT")
    return primary.slot_state(slot)


def _streams(primary: PostgresServer) -> bool:
    look = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"
    return primary.execute(look) == [(1,)]


def _lsn(server: PostgresServer, what: str) -> int:
    ((lsn,),) = server.execute(f"SELECT {what}")
    return 0 if lsn is None else parse_lsn(str(lsn))
