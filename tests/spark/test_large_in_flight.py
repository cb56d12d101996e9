""" "a large transaction in flight shows itself in `status` (rows so far, of how many bytes)".

`tranlog apply` and `tranlog status` as processes, on Spark, at a PostgreSQL whose trigger lets rows pass bit by bit.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fix_driver import PROGRAM, Driver, wait_until
from fix_metrics import read_openmetrics
from fix_pipeline import BY_SCHEMA, PostgresTarget, Workload, items
from tranlog import RunningPipeline
from tranlog.change import Op, RowChange
from tranlog.log.writing.log import Log
from tranlog.source.packer import TransactionPacker
from tranlog.testing.servers import free_port

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(400)]

ROWS = 40_000
STEP = 1_000
NORTH = items("north")


def test_a_large_transaction_shows_how_far_it_is(tmp_path: Path, postgres, postgres_database) -> None:
    target = PostgresTarget(postgres.dsn(postgres_database), [NORTH])
    target.query("CREATE TABLE public.gate AS SELECT 0 AS upto")
    target.query(
        "CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "WHILE NEW.id > (SELECT upto FROM public.gate) LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NEW; END $$"
    )
    target.query('CREATE TRIGGER pass BEFORE INSERT ON "north".items FOR EACH ROW EXECUTE FUNCTION public.pass()')
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=20_000)
        rows = [RowChange(NORTH, Op.INSERT, None, (key + 1, 0, f"note {key:060d}")) for key in range(ROWS)]
        Workload(seed=1).append(log, packer, rows)
        log.commit()
        last = log.last_seqno
    port = free_port()
    conf = tmp_path / "tranlog.toml"
    conf.write_text(
        f'[service]\nname = "shop"\n[log]\ndir = "{tmp_path}/log"\n[target]\nkind = "postgres"\n'
        f'dsn = "{target.options.dsn}"\n[pipeline]\nname = "p"\nchannels = 2\nmetrics = "127.0.0.1:{port}"\n'
    )

    def told(*arguments: str) -> str:
        command = [str(PROGRAM), "-conf", str(conf), "status", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout

    def large() -> dict[str, Any] | None:
        channels = json.loads(told("--json", "--no-watch"))["pipeline"]["channels"]
        found: list[dict[str, Any]] = [one["in_flight"] for one in channels if one["in_flight"] is not None]
        return found[0] if found else None

    driver = Driver(["-conf", str(conf), "apply"])
    seen: list[dict[str, Any]] = []
    try:
        wait_until(lambda: driver.process.poll() is not None or large() is not None)
        for upto in range(STEP, ROWS, STEP):
            now = large()
            assert now is not None, driver.process.poll()
            if not seen or now["changes"] > seen[-1]["changes"]:
                seen.append(now)
            if len(seen) == 3:
                break
            target.query(f"UPDATE public.gate SET upto = {upto}")
        lines = [line for line in told().splitlines() if " is in seqno " in line]
        status = RunningPipeline.find(conf=str(conf)).status()
        scrape = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
        )
        with urllib.request.urlopen(scrape, timeout=60) as answer:
            metrics = read_openmetrics(answer.read().decode())
        target.query(f"UPDATE public.gate SET upto = {ROWS}")
        wait_until(lambda: target.query("SELECT count(*) FROM public.audit") == [(ROWS,)])
        wait_until(lambda: large() is None)
        driver.process.terminate()
        code, _, stderr = driver.finish()
    finally:
        driver.kill()
    assert code == 0, stderr
    assert len(seen) == 3, seen
    assert {one["seqno"] for one in seen} == {last}
    (size,) = {one["size_bytes"] for one in seen}
    assert 60 * ROWS < size < 200 * ROWS
    assert [one["read_bytes"] for one in seen] == sorted({one["read_bytes"] for one in seen})
    assert seen[0]["changes"] >= 0 and seen[-1]["changes"] < ROWS and seen[-1]["read_bytes"] < size
    (line,) = lines
    form = (
        rf"\s+channel [01] is in seqno {last}, \d+ changes so far, \d\.\d of {size / 1e6:.1f} MB, for .*, told .* ago"
    )
    assert re.fullmatch(form, line), line
    (task,) = [task for task in status.tasks if task.inFlightSeqno == last]
    assert task.inFlightSizeBytes == size and task.inFlightChanges >= seen[-1]["changes"]
    assert list(metrics["tranlog_in_flight_size_bytes"].values()) == [size]
    assert sorted(target.audit()) == [("north.items", key + 1, "INSERT") for key in range(ROWS)]
    assert not list((tmp_path / "log" / "in_flight").iterdir()), "what is over is not left behind"
