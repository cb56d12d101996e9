"""examples/two_phase.py is killed after each of its steps: row and acknowledgement are both there, or neither."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tranlog
from tranlog.testing.servers import PostgresServer

pytestmark = pytest.mark.integration

PROGRAM = str(Path(__file__).parents[2] / "examples" / "two_phase.py")
STEPS = ["taken", "store prepared", "row written", "row prepared", "row committed", "store committed"]


def run(*words: str, stop_after: str = "") -> None:
    """Run the program to its end, or kill it once it has said that a step is over."""
    with subprocess.Popen(
        [sys.executable, PROGRAM, *words],
        env={**os.environ, "STOP_AFTER": stop_after},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        said = []
        for line in program.stdout:
            said.append(line.rstrip())
            if said[-1] == stop_after:
                program.kill()
                break
        program.wait(100)
    assert program.returncode == (-9 if stop_after else 0), said


def test_a_kill_between_any_two_steps_leaves_row_and_acknowledgement_together(
    tmp_path: Path, start_postgres: Callable[..., PostgresServer]
) -> None:
    """The next run decides what was left, and each order has one row."""
    postgres = start_postgres(options={"max_prepared_transactions": 10})
    mail, dsn = str(tmp_path / "mail"), postgres.dsn("postgres")
    for number, stop_after in enumerate(STEPS):
        run(mail, dsn, "publish", str(number))
        run(mail, dsn, stop_after=stop_after)
        with tranlog.StoreReader.open(mail) as reader:
            doubt, waits = reader.tpc_recover(), reader.queues()["orders"]
        assert (len(doubt), waits) == (int(stop_after in STEPS[1:5]), int(stop_after == "taken")), stop_after
        rows = postgres.execute("select count(*) from orders where number = %s", (number,), database="postgres")
        assert rows == [(int(stop_after in STEPS[4:]),)], stop_after
        run(mail, dsn)
        with tranlog.StoreReader.open(mail) as reader:
            assert (reader.tpc_recover(), reader.queues()) == ([], {"orders": 0}), stop_after
        found = postgres.execute("select number from orders order by number", database="postgres")
        assert found == [(one,) for one in range(number + 1)], stop_after
    assert postgres.execute("select gid from pg_prepared_xacts", database="postgres") == []
