"""How fast statements go into the log when nothing waits for the disk, against SQLite: WAL, synchronous=NORMAL.

Both are handed ready bytes, 1.25 KB a statement, and commit every hundred: ours takes a hundred by `append_many` and
flushes, SQLite takes them by `executemany` and commits. CPU seconds of the process, since neither waits. The second row
has the same with one call of `append` for each, for which SQLite has no like: `execute` parses, or looks its text up.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from frame import Bench, Question, at_least, cpu_of, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log

QUESTION = Question(
    name="write",
    text="How many statements of 1.25 KB go into the log in a CPU second, 100 to a commit, without waiting for a sync?",
    peer="SQLite (WAL, synchronous=NORMAL) inserting the same bytes, 100 rows to a transaction",
)
STATEMENTS = 10_000
BATCH = 100
PAYLOAD = bytes(range(256)) * 5


def measure(bench: Bench) -> None:
    """Fill both, round by round; each goes on where it was."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        log = Log.open(Path(here, "log"), source_id="bench")
        database = sqlite3.connect(Path(here, "log.db"), isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE log(seqno INTEGER PRIMARY KEY, event_id TEXT, payload BLOB)")
        fragments = [
            Fragment(
                source_id="bench",
                event_id=f"0-1-{number};binlog.000001:{number * 1100}",
                shard_id="shop",
                tstamp=1_800_000_000_000,
                tables=(("shop", "orders"),),
                payload=PAYLOAD,
            )
            for number in range(STATEMENTS)
        ]
        rows = [(fragment.event_id, fragment.payload) for fragment in fragments]

        def ours() -> None:
            append, commit = log.append, log.commit
            for start in range(0, STATEMENTS, BATCH):
                for fragment in fragments[start : start + BATCH]:
                    append(fragment)
                commit(sync=False)

        def ours_many() -> None:
            append_many, commit = log.append_many, log.commit
            for start in range(0, STATEMENTS, BATCH):
                append_many(fragments[start : start + BATCH])
                commit(sync=False)

        def theirs() -> None:
            for start in range(0, STATEMENTS, BATCH):
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO log(event_id, payload) VALUES (?, ?)", rows[start : start + BATCH])
                database.execute("COMMIT")

        bench.compare(
            "write 1.25 KB, commit 100, no fsync",
            ours=lambda: STATEMENTS / cpu_of(ours_many),
            peer=lambda: STATEMENTS / cpu_of(theirs),
            unit="tx/s",
            must=at_least(3, stretch=5),
            rounds=7,
        )
        bench.compare(
            "the same, one call each",
            ours=lambda: STATEMENTS / cpu_of(ours),
            peer=lambda: STATEMENTS / cpu_of(theirs),
            unit="tx/s",
            rounds=7,
        )
        log.close()
        database.close()


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
