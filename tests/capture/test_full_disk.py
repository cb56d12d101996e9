"""`tranlog capture` as a process on a disk that is really full: a clear end, and nothing lost or doubled after.

The disk is a small tmpfs in a mount namespace of its own, which ends with its processes. Where this
place permits none the test is skipped, and the limit on file sizes (tests/service/test_cli.py) stands for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DISK_BYTES = 3_000_000
ROW_BYTES = 20_000
ROWS = 60
NAMESPACE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")

# In the namespace: a disk nearly filled by somebody else; capture until it is full; again; room; capture to the end.
STORY = """
import json, os, subprocess, sys
from pathlib import Path
place, disk_bytes, row_bytes, rows = Path(sys.argv[1]), *map(int, sys.argv[2:])
disk = place / "disk"
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs", str(disk)], check=True)
from tranlog.source.sqlite import connect
from tranlog.log.writing.log import LogReader
os.chdir(place)
db = connect("source.db")

def insert(count):
    for number in range(count):
        with db:
            (known,) = db.execute("SELECT count(*) FROM item").fetchone()
            db.execute("INSERT INTO item VALUES(?, ?)", (known, f"{known}:" + "x" * row_bytes))

def tranlog(*line):
    program = Path(sys.executable).with_name("tranlog")
    done = subprocess.run([program, *line], capture_output=True, text=True, timeout=60)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

def logged():
    found = []
    with LogReader.open(disk / "log") as reader, reader.cursor() as cursor:
        for transaction in iter(cursor.next, None):
            found += [change.after[0] for change in transaction.changes() if getattr(change, "after", None)]
    return found

def waiting():
    with LogReader.open(disk / "log") as reader, reader.cursor() as cursor:
        ids = [transaction.header.event_id for transaction in iter(cursor.next, None)]
    behind = max((int(one.split(":")[1]) for one in ids if one), default=0)
    (count,) = db.execute("SELECT count(*) FROM _tranlog_outbox WHERE last AND id > ?", (behind,)).fetchone()
    return count

(disk / "others").write_bytes(bytes(disk_bytes * 3 // 4))
db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)")
insert(rows)
tale = [{"done": tranlog("capture"), "logged": logged(), "waiting": waiting()}]
insert(5)  # the source is not held up
tale.append({"done": tranlog("capture"), "logged": logged(), "waiting": waiting()})
(disk / "others").unlink()
tale.append({"done": tranlog("capture", "--once"), "logged": logged(), "waiting": waiting()})
insert(5)
tale.append({"done": tranlog("capture", "--once"), "logged": logged(), "waiting": waiting()})
db.close()
print(json.dumps(tale))
"""

CONFIGURATION = """
[log]
dir = "disk/log"
segment_bytes = 300000

[source]
kind = "sqlite"
load = "none"
path = "source.db"
source_id = "shop"

[capture]
batch_bytes = 50000
"""


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    asked = [*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", "/mnt"]
    return subprocess.run(asked, capture_output=True).returncode == 0


@pytest.mark.e2e
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("this place permits no mount namespace (it takes root, or user namespaces)")
    (tmp_path / "disk").mkdir()
    (tmp_path / "tranlog.toml").write_text(CONFIGURATION)
    line = [*NAMESPACE, sys.executable, "-c", STORY, str(tmp_path), str(DISK_BYTES), str(ROW_BYTES), str(ROWS)]
    told = subprocess.run(line, capture_output=True, text=True, timeout=100)
    assert told.returncode == 0, told.stderr
    full, again, once, more = json.loads(told.stdout)

    for one in (full, again):
        assert one["done"]["code"] == 4, one
        last = one["done"]["err"].strip().splitlines()[-1]
        assert last.startswith("tranlog: disk full at ") and "/disk/log" in last and "Free some space" in last
        assert "Traceback" not in one["done"]["err"]
        # What was taken is whole and in order, and the rest is still the source's.
        assert one["logged"] == list(range(len(one["logged"])))
    assert 0 < len(full["logged"]) < ROWS
    assert full["waiting"] == ROWS - len(full["logged"])
    assert again["waiting"] == ROWS + 5 - len(again["logged"])

    assert (once["done"]["code"], more["done"]["code"]) == (0, 0), once
    assert once["logged"] == list(range(ROWS + 5))
    assert more["logged"] == list(range(ROWS + 10))
    assert (once["waiting"], more["waiting"]) == (0, 0)
