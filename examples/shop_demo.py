"""The main job on the embedded default: SQLite to log to Spark to SQLite, killed once in the middle.

`make demo` runs it. Four programs write to one shop database; `tranlog capture` carries what they commit into the log
while they write; `tranlog apply` brings it into a second database with Spark, on four channels, through a filter that
masks the customers' names. While it runs it comes to three channels (`tranlog reload`); then it is killed with -9 and
started again. A heartbeat behind the last transaction tells when all is applied; then both databases are compared row
by row. What it made stays in build/shop-demo, to look at: `thl -dir build/shop-demo/log list -low 10 -high 12`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from pathlib import Path

from demo_steps import (
    TRANLOG,
    Process,
    StepFailedError,
    applied_seqno,
    beat,
    invite,
    look,
    look_at_stores,
    reload,
    say,
    status,
    summary,
    tranlog,
    wait_for_pipeline,
    wait_until,
)
from shop_workload import STORES, make_shop

HERE = Path(__file__).resolve().parent
SHOP_WRITER = [sys.executable, str(HERE / "shop_workload.py")]
CHANNELS = 4
FEWER = 3
"""Channels from the middle on."""
TRANSACTIONS = 1000
"""Per store."""

CONFIG = """\
[service]
name = "shop"

[source]
kind = "sqlite"
path = "shop.db"

[log]
dir = "log"

[shards]
rule = "table"   # tables that foreign keys join are one shard

[target]
kind = "sqlite"
path = "copy.db"
ddl = "ignore"   # `tranlog tables create` makes the tables

[pipeline]
channels = {channels}

[[filter]]
kind = "mask"    # who bought what stays in the shop
table = "main.*"
columns = ["customer"]
by = "hash"
salt = "a demo's secret, and so none"
"""


def run(folder: Path) -> None:
    """Do the whole job in `folder`. Raises StepFailedError where a step does not do what it must."""
    conf = folder / "tranlog.toml"
    conf.write_text(CONFIG.format(channels=CHANNELS))
    shop = folder / "shop.db"
    processes: list[Process] = []

    def start(name: str, *command: str) -> Process:
        process = Process(name, list(command), folder)
        processes.append(process)
        return process

    def apply() -> Process:
        return start("apply", *TRANLOG, "--conf", str(conf), "apply")

    try:
        say(f"1  a shop of {len(STORES)} stores in SQLite, and tables like them in the target")
        make_shop(str(shop))
        tranlog("--conf", str(conf), "tables", "create", "--from", "source")
        capture = start("capture", *TRANLOG, "--conf", str(conf), "capture")
        wait_until("there is a log", lambda: status(conf)["log"] is not None, [capture], 300)
        say(f"2  capture follows it into the log; Spark applies the log on {CHANNELS} channels, customers masked")
        first = apply()
        wait_for_pipeline(conf, "--state", "ONLINE", processes=[capture, first], timeout_s=300)
        invite(conf)
        say(f"3  four programs write, {TRANSACTIONS} transactions each")
        began = time.monotonic()
        writers = [
            start(f"writer-{store}", *SHOP_WRITER, str(shop), store, str(TRANSACTIONS), "0.02") for store in STORES
        ]
        some = len(STORES) * TRANSACTIONS // 6
        wait_for_pipeline(conf, "--applied", str(some), processes=[capture, first], timeout_s=300)
        look(conf)
        say(f"4  {FEWER} channels instead of {CHANNELS} from now on: all come to one seqno and go on")
        reload(conf, channels=(CHANNELS, FEWER))
        first.kill()
        say(f"5  kill -9 of the pipeline at seqno {applied_seqno(conf)}, and start it again")
        second = apply()
        for writer in writers:
            writer.finish(300)
        wait_until("capture has everything", lambda: status(conf)["source"]["waiting"] == 0, [capture, second], 300)
        last = beat(conf, "closing-time")
        capture.stop()
        say(f"6  a heartbeat behind all of it, seqno {last}: when that is applied, everything is")
        wait_for_pipeline(conf, "--applied", str(last), processes=[second], timeout_s=300)
        seconds = time.monotonic() - began
        look(conf)
        look_at_stores(conf)
        second.stop()
        say("7  compare source and target, row by row\n")
        verdict = json.loads(tranlog("--conf", str(conf), "verify", "--json", codes=(0, 1)))
        summary(status(conf), verdict, seconds=seconds)
        compare_customers(shop, folder / "copy.db")
    finally:
        for process in processes:
            process.abandon()


def compare_customers(shop: Path, copy: Path) -> None:
    """Hold that no customer's name has come to the copy; raise StepFailedError where one has."""
    names = []
    for database in (shop, copy):
        session = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        found = [session.execute(f"SELECT DISTINCT customer FROM {store}_orders").fetchall() for store in STORES]
        session.close()
        names.append({name for rows in found for (name,) in rows})
    if not names[0] or names[0] & names[1] or len(names[0]) != len(names[1]):
        raise StepFailedError(f"customers at the source {sorted(names[0])}, at the target {sorted(names[1])}")
    say(f"none of {len(names[0])} customers' names is in the copy")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "build/shop-demo").resolve()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        run(place)
    except StepFailedError as exc:
        print(f"\nthe demo failed: {exc}\nwhat it left is in {place}", file=sys.stderr)
        sys.exit(1)
