"""A slice of the server's own regression files against a native replica: nothing differs, each end has a name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = (
    "main/update.test",
    "main/insert_select.test",
    "main/auto_increment.test",
    "main/type_date.test",
    "main/foreign_key.test",
    "main/truncate.test",
    "main/view.test",
    "suite/gcol/t/gcol_bugfixes.test",
    "suite/innodb/t/innodb-autoinc.test",
    "suite/json/t/json_no_table.test",
)


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("replica_diff.py")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, (told, done.stderr[-3000:])
    return told


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_ten_files_leave_what_a_native_replica_has() -> None:
    told = run(*FILES)
    assert told["files"] == len(FILES) and told["points"] > 20 and told["transactions"] > 500


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_file_leaves_the_same_values_at_postgres() -> None:
    told = run("--target", "postgres", "main/type_date.test")
    assert told["points"] > 3 and told["transactions"] > 200 and told["rows"] > 10
