"""Two captured databases with the same writer: one gives `executemany` its rows in a list, the other one by one.

The first may have them noted together, the second goes the way of the hook; nothing else may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from fix_sqlite import Replica, changes_of, content
from tranlog.change import Statement
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, connect


class Side:
    """A database, and what its outbox has got."""

    def __init__(self, path: Path, *, whole: bool, fragment_bytes: int) -> None:
        self.whole = whole
        self.db = connect(path, fragment_bytes=fragment_bytes)
        self.raw = apsw.Connection(str(path))
        self.replica = Replica()
        self.noted_together = 0
        self._seen = 0

    def run(self, sql: str, rows: Sequence[Any] | None = None) -> tuple[object, ...]:
        """Run a statement; return all that a program can see of it."""
        db = self.db
        outcome: object = None
        count = -1
        try:
            if rows is None:
                db.execute(sql).fetchall()
            else:
                count = db.executemany(sql, rows if self.whole else iter(rows)).rowcount
        except Exception as exc:
            outcome = type(exc).__name__
        changes = None if outcome or rows is None else db.changes()  # what has not run leaves any number
        return outcome, count, changes, db.total_changes(), db.last_insert_rowid(), db.in_transaction

    def transactions(self) -> list[list[str]]:
        """Return what was committed since the last call, and have the replica follow."""
        found: list[list[str]] = []
        current: list[str] = []
        asked = "SELECT id, last, changes FROM _tranlog_outbox WHERE id > ? ORDER BY id"
        pieces: list[Any] = self.raw.execute(asked, (self._seen,)).fetchall()
        for self._seen, last, stored in pieces:
            for change in msgspec.msgpack.decode(stored)[1]:
                if type(change[0]) is int and change[1] is None and change[3] is not None:
                    self.noted_together += len(change[2])
            for change in changes_of(stored):
                current.append(change.sql if isinstance(change, Statement) else repr(change))  # type: ignore[arg-type]
            if last:
                found.append(current)
                current = []
        self.replica.follow(self.raw)
        return found

    def payloads(self) -> list[bytes]:
        """Return what capture makes of the outbox."""
        source = SqliteSource(SqliteSourceOptions(path=self.db.path, source_id="s"))
        source.start(None)
        try:
            return [fragment.payload for fragment in source.read(0)]
        finally:
            source.close()

    def close(self) -> None:
        self.db.close()
        self.raw.close()
        self.replica.db.close()


class Pair:
    """Both databases, which must not differ in anything."""

    def __init__(self, folder: Path, *, fragment_bytes: int = 1 << 20) -> None:
        self.fast = Side(folder / "fast.db", whole=True, fragment_bytes=fragment_bytes)
        self.slow = Side(folder / "slow.db", whole=False, fragment_bytes=fragment_bytes)

    def run(self, sql: str, rows: Sequence[Any] | None = None) -> object:
        """Run a statement at both; return how it failed, None where it did not."""
        fast, slow = self.fast.run(sql, rows), self.slow.run(sql, rows)
        assert fast == slow, sql
        return fast[0]

    def many(self, sql: str, rows: Sequence[Any]) -> object:
        """The rows in a transaction of their own."""
        self.run("BEGIN")
        outcome = self.run(sql, rows)
        if self.fast.db.in_transaction:
            self.run("COMMIT")
        return outcome

    def check(self) -> int:
        """Compare; return how many rows the one has noted together since the last time."""
        before = self.fast.noted_together
        fast, slow = self.fast.transactions(), self.slow.transactions()
        assert fast == slow
        assert content(self.fast.raw) == content(self.slow.raw) == content(self.fast.replica.db)
        assert self.slow.noted_together == 0
        return self.fast.noted_together - before

    def close(self) -> None:
        self.fast.close()
        self.slow.close()
