"""Channels and rule changed online under load, `kill -9` in the middle: the order is the log's.

`tranlog apply` and `tranlog reload` as processes on a Spark of ten slots, and a PostgreSQL that notes what happens to
its tables, as for `mutants/order_rounds`; one shard is slow there, so that channels are apart whenever they must meet.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_driver import PROGRAM, Driver, wait_until
from fix_pipeline import SqliteTarget, Workload, check_equal, positions, write_log
from mutants.order import Logged, find_fault
from mutants.order_rounds import make_target, trail_of
from mutants.order_workload import LISTED, logged, write
from tranlog.log.writing.log import Log
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import ChannelRow, PipelineRow

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(500)]


PLAN = ShardPlan(channels=2, serial=frozenset({LISTED}))
"""As all plans of the load have it, a shard is a schema, and one is serial."""


class Load:
    """Appends some twenty transactions a second to a log until told to stop, some of them serial."""

    def __init__(self, path: Path) -> None:
        self.logged: list[Logged] = []
        self.last = -1
        self._end = threading.Event()
        self._path = path
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with Log.open(str(self._path), source_id="test") as log:
            for number, one in enumerate(write(log, random.Random(7))):
                self.logged.append(logged(one, PLAN))
                if number % 5 == 0:
                    log.commit()
                    self.last = log.last_seqno
                    if number > 100 and self._end.wait(0.2):
                        break
            log.commit()
            self.last = log.last_seqno

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def __exit__(self, *exc: object) -> None:
        self.end()


class Service:
    """A folder with a configuration, and what its target knows of the pipeline."""

    def __init__(self, path: Path, dsn: str) -> None:
        self.path = path
        self.dsn = dsn
        self.target = open_target(TargetOptions(kind="postgres", dsn=dsn))
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute("INSERT INTO public.slow VALUES ('b')")

    def configure(self, pipeline: str, shards: str = "") -> None:
        (self.path / "tranlog.toml").write_text(
            f'[service]\nname = "p"\n[log]\ndir = "log"\n[target]\nkind = "postgres"\ndsn = "{self.dsn}"\n'
            f'[pipeline]\nmaster = "local[10]"\nsync_interval_s = 0.1\ngroup_transactions = 5\n{pipeline}\n'
            f'[shards]\nserial = ["{LISTED}"]\n{shards}\n'
        )

    def row(self) -> PipelineRow:
        row = self.target.positions.read_pipeline("p")
        assert row is not None
        return row

    def rows(self) -> tuple[ChannelRow, ...]:
        return tuple(self.target.positions.read_channels("p"))

    def at(self) -> int:
        return min((row.applied_seqno for row in self.rows()), default=-1)

    @contextmanager
    def running(self) -> Iterator[Driver]:
        driver = Driver(["apply"], cwd=self.path)
        try:
            yield driver
        finally:
            driver.kill()

    def reload(self, code: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [PROGRAM, "reload", "--json", "--timeout", "200"], cwd=self.path, capture_output=True, text=True
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        answer = json.loads(done.stderr if code else done.stdout)
        assert isinstance(answer, dict)
        return answer


def test_channels_and_rule_change_under_load_and_kills(tmp_path: Path, postgres, postgres_database) -> None:
    dsn = postgres.dsn(postgres_database)
    make_target(dsn)
    service = Service(tmp_path, dsn)
    service.configure("channels = 4")
    with Load(tmp_path / "log") as load:
        wait_until(lambda: load.last > 100)
        with service.running() as driver:
            wait_until(lambda: service.at() > 20 or driver.process.poll() is not None)

            service.configure("channels = 2\nidle_every = 900")
            answer = service.reload()
            assert (answer["plan"], answer["before"]["channels"], answer["after"]["channels"]) == ("changed", 4, 2)
            assert answer["at_restart"] == ["pipeline.idle_every"]
            assert service.row().channels == 2 == len(service.rows()) and answer["seqno"] <= service.at()

            service.configure("channels = 11")
            refused = service.reload(code=2)["error"]
            assert "11 channels need 11 slots at a time, and it has 10" in refused["message"]
            assert service.row().channels == 2

            service.configure("channels = 10", 'by = "schema"\nassignment = "hash"')
            answer = service.reload()
            assert (answer["plan"], answer["after"]["by"], len(service.rows())) == ("changed", "schema", 10)

            # The next one is killed, once the channels have been told to end, and before they have met.
            service.configure("channels = 3")
            with subprocess.Popen(
                [PROGRAM, "reload"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as asking:
                token = service.row().token
                wait_until(lambda: service.row().stop_at_seqno is not None or service.row().token != token)
                driver.kill()
                said = asking.communicate()
                assert asking.returncode == 4 and "no running process answers" in said[1], said
        with service.running() as driver:
            wait_until(lambda: len(service.rows()) == 3 or driver.process.poll() is not None)
            service.configure("channels = 5")
            assert service.reload()["plan"] == "changed"
            load.end()
            wait_until(lambda: service.at() == load.last or driver.process.poll() is not None)
            driver.process.terminate()
            code, _, stderr = driver.finish()
            assert code == 0, stderr
    service.target.close()
    with psycopg.connect(dsn) as session:
        trail = trail_of(session)
    print(f"{len(load.logged)} transactions, {sum(one.serial for one in load.logged)} of them serial")
    assert len(load.logged) > 150 and any(one.serial for one in load.logged)
    assert find_fault(load.logged, trail) is None


def test_more_channels_than_slots_take_another_spark(tmp_path: Path) -> None:
    """What the refusal says to do helps: offline, reload, online; and fewer channels go on with the Spark there is."""
    workload = Workload(seed=12)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 40)
    slots = max(os.cpu_count() or 1, 2)

    def configure(channels: int) -> None:
        (tmp_path / "tranlog.toml").write_text(
            '[service]\nname = "p"\n[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "target.db"\n'
            f"[pipeline]\nchannels = {channels}\n"
        )

    def ask(*words: str, code: int = 0) -> str:
        done = subprocess.run([PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stderr if code else done.stdout

    configure(2)
    driver = Driver(["apply"], cwd=tmp_path)
    try:
        wait_until(lambda: set(positions(target.options).values()) == {last} or driver.process.poll() is not None, 90)
        more = slots + 1
        configure(more)
        refused = ask("reload", code=4)
        assert f"offers {slots} slots, and each of {more} channels needs one" in refused
        assert "`tranlog offline`, `tranlog reload` and `tranlog online`" in refused
        for channels in (more, 1):
            configure(channels)
            ask("offline")
            assert ask("reload").startswith("plan changes at the next online\n")
            ask("online")
            last = write_log(tmp_path / "log", workload, 20)
            ask("wait", "--applied", str(last), "--state", "ONLINE", "--timeout", "200")
            assert set(positions(target.options)) == set(range(channels))
        driver.process.terminate()
        code, _, stderr = driver.finish()
        assert code == 0, stderr
    finally:
        driver.kill()
    check_equal(target, workload)
