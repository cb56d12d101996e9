"""A channel that cannot use the target pauses alone, says so, and goes on when it can; docs/operations.md.

Real channels in threads, at a real PostgreSQL whose tables somebody else has locked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from fix_metrics import samples_of
from fix_operated import Operated, operation_of, options_of, running, without_java
from fix_pipeline import PostgresTarget, Workload, check_equal, write_log
from tranlog.errors import TargetUnavailableError
from tranlog.log.options import LogOptions
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules import troubles
from tranlog.pipeline.rules.channels import Parallelization, PlanOptions
from tranlog.pipeline.rules.progress import last_error
from tranlog.pipeline.rules.states import State
from tranlog.service.process.operating import Operator
from tranlog.target.options import open_target

pytestmark = pytest.mark.integration

NORTH, EAST = 1, 2


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    monkeypatch.setattr(troubles, "PAUSE_MOST_S", 2.0)


@pytest.fixture
def workload() -> Workload:
    return Workload(seed=3, shards=("north", "east"), serial=0.0)


@pytest.fixture
def target(workload: Workload, postgres, postgres_database) -> PostgresTarget:
    made = PostgresTarget(postgres.dsn(postgres_database), workload.tables)
    made.options = replace(made.options, lock_timeout_s=0.3)
    return made


@pytest.fixture
def options(tmp_path: Path, target: PostgresTarget) -> ApplyOptions:
    return replace(options_of(tmp_path, target), retry_s=1.0, plan=PlanOptions(channels={"north": NORTH, "east": EAST}))


@contextmanager
def locked(target: PostgresTarget, table: str) -> Iterator[None]:
    """Hold what a backup holds: a lock that lets nobody write."""
    with psycopg.connect(target.options.dsn) as session:
        session.execute(f'LOCK TABLE "{table}".items IN SHARE MODE'.encode())
        yield


def measured(operator: Operator) -> tuple[float, set[str], set[str], float]:
    """Return whether the target answers, what is waited for, the channels in trouble, and the log's end: metrics.

    While the target was away the whole scrape was refused, so that none of them could be read.
    """
    found = samples_of(operator.families())
    waits = {dict(labels)["tranlog_waits_for"] for labels, holds in found["tranlog_waits_for"].items() if holds}
    troubled = {dict(labels)["channel"] for labels in found.get("tranlog_trouble_since_timestamp_seconds", ())}
    (up,), (committed,) = (found[f"tranlog_{name}"].values() for name in ("target_up", "log_committed_seqno"))
    return up, waits, troubled, committed


def positions(target: PostgresTarget) -> dict[int, int]:
    found = target.query("SELECT channel, applied_seqno FROM tranlog_channel WHERE pipeline = 'p'")
    return {channel: applied for channel, applied in found}


def test_the_others_go_on_and_so_does_it_when_it_can(
    tmp_path: Path, workload: Workload, target: PostgresTarget, options: ApplyOptions
) -> None:
    """Longer than `retry_s`; and nobody holds a target transaction in a pause."""
    first = write_log(tmp_path / "log", workload, 20)
    with running(operation_of(options)) as operated:
        operation = operated.operation
        operated.come_to(State.ONLINE, first)
        with locked(target, "north"):
            began_ms = round(time.time() * 1000)
            last = write_log(tmp_path / "log", workload, 40)
            operated.come_to(State.DEGRADED)
            (trouble,) = operation.state().troubles
            assert trouble.channel == NORTH and "lock" in trouble.reason
            assert began_ms - 1_000 < trouble.since_ms < round(time.time() * 1000)
            time.sleep(4 * options.retry_s)
            state = operation.state()
            assert (state.state, [one.since_ms for one in state.troubles]) == (State.DEGRADED, [trouble.since_ms])
            assert (state.slots >= state.channels, state.channels) == (True, 3)
            assert positions(target)[EAST] == last > positions(target)[NORTH]
            for _ in range(60):  # longer than a pause; a try has its lock timeout
                found = target.query(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name LIKE 'tranlog%' AND now() - xact_start > interval '1 second'"
                )
                assert found == [(0,)]
                time.sleep(0.05)
        operated.come_to(State.ONLINE, last)
        assert operation.state().troubles == ()
    assert operated.error is None
    check_equal(target, workload)


def test_who_pauses_ends_at_once(
    tmp_path: Path, workload: Workload, target: PostgresTarget, options: ApplyOptions
) -> None:
    first = write_log(tmp_path / "log", workload, 5)
    operated = Operated(operation_of(options))
    operated.come_to(State.ONLINE, first)
    with locked(target, "north"):
        write_log(tmp_path / "log", workload, 10)
        operated.come_to(State.DEGRADED)
        began = time.monotonic()
        operated.operation.end()
        operated.join()
        assert time.monotonic() - began < 3.0  # one that tries just then has its lock timeout
    assert operated.error is None


@pytest.mark.parametrize(
    "more", [{"until_seqno": 15}, {"give_up_s": 2.0}], ids=["a run with an end", "an option says so"]
)
def test_it_gives_up_where_that_is_wanted(
    tmp_path: Path, workload: Workload, target: PostgresTarget, options: ApplyOptions, more: dict
) -> None:
    """Exit code 4; and what it ended by is kept, until another run begins."""
    first = write_log(tmp_path / "log", workload, 5)
    began = Operated(operation_of(options))
    began.come_to(State.ONLINE, first)
    began.operation.end()
    began.join()
    write_log(tmp_path / "log", workload, 10)
    operated = Operated(operation_of(replace(options, **more)))
    with locked(target, "north"):
        operated.join()
    assert isinstance(operated.error, TargetUnavailableError) and "lock" in str(operated.error)
    opened = open_target(target.options)
    kept = last_error(opened.positions.read_channels("p"))
    assert kept is not None and kept.type == "TargetUnavailableError" and "Fix that, then start again" in kept.message
    again = Operated(operation_of(replace(options, until_seqno="now")))
    again.join()
    assert again.error is None and last_error(opened.positions.read_channels("p")) is None
    opened.close()
    check_equal(target, workload)


def test_a_start_that_does_not_get_all_its_channels_ends(
    tmp_path: Path, workload: Workload, target: PostgresTarget, options: ApplyOptions
) -> None:
    """A running pipeline would wait; one that has not claimed all channels ends with 4 after `retry_s`."""
    write_log(tmp_path / "log", workload, 5)
    target.query(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.channel = 1 AND NEW.token <> OLD.token AND NEW.token % 4294967296 <> 0 THEN "
        "RAISE EXCEPTION 'no room' USING ERRCODE = 'disk_full'; END IF; RETURN NEW; END $$"
    )
    target.query(
        "CREATE TRIGGER refuse BEFORE UPDATE ON public.tranlog_channel FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    operated = Operated(operation_of(options))
    operated.join()
    assert isinstance(operated.error, TargetUnavailableError) and "no room" in str(operated.error)
    assert operated.operation.state().state is State.OFFLINE_ERROR


@pytest.mark.parametrize("how", [Parallelization.DISK, Parallelization.MEMORY])
def test_a_server_that_goes_away_and_comes_back(
    tmp_path: Path, workload: Workload, start_postgres, how: Parallelization
) -> None:
    server = start_postgres()
    target = PostgresTarget(server.dsn(), workload.tables)
    options = replace(options_of(tmp_path, target), retry_s=0.5, parallelization=how)
    first = write_log(tmp_path / "log", workload, 20)
    with running(operation_of(options)) as operated, closing(Operator(operated.operation, LogOptions())) as operator:
        operated.come_to(State.ONLINE, first)
        assert measured(operator) == (1, {"source"}, set(), first)
        server.stop()
        operated.come_to(State.DEGRADED)
        last = write_log(tmp_path / "log", workload, 20)
        time.sleep(3.0)
        assert operated.operation.state().state is State.DEGRADED
        up, waits, troubled, committed = measured(operator)
        assert (up, waits, committed) == (0, {"trouble"}, last) and troubled
        server.start()
        operated.come_to(State.ONLINE, last)
        assert measured(operator) == (1, {"source"}, set(), last)
    assert operated.error is None
    check_equal(target, workload)
