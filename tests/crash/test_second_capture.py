"""A second capture at every line of the first one's: it takes the source, and no transaction falls between the two.

A tracer counts the lines that a capture runs in `source/sqlite`, and in a life of its own for each lets another capture
with a log of its own take the source over there, carry over what it finds, and has a writer free that. The first one
stops in its next look at the latest. What it has and what the second one has is together everything, in order.

Proves: docs/decisions/0022-writers-free-what-capture-has.md, "One log".
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from fix_crash import replayable
from tranlog.capture.capture import Capture
from tranlog.change import RowChange
from tranlog.errors import SourceError
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, claim, connect, freeing, source
from tranlog.testing.clock import ManualClock

pytestmark = pytest.mark.long

TRACED = (source.__file__, claim.__file__, freeing.__file__)


class Lives:
    """Databases with the same history; a capture begins with each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "life.db")
        self.opened: list[tuple[SqliteSource, Log]] = []
        self.second: list[Capture] = []
        self.written = 0

    def capture(self, log: str, *, take_source: bool = False) -> Capture:
        found = SqliteSource(SqliteSourceOptions(path=self.path, source_id="s"), clock=ManualClock())
        opened = Log.open(str(self.folder / log), source_id="s", options=LogOptions(retention_s=None))
        self.opened.append((found, opened))
        return Capture(found, opened, take_source=take_source)

    def write(self, count: int) -> None:
        """Commit so many transactions, through a connection that looks at once for what to free."""
        db = connect(self.path, busy_timeout_s=0.02)
        db.execute("PRAGMA synchronous = NORMAL")
        for _ in range(count):
            db.execute("INSERT INTO t VALUES(?, 'a')", (self.written + 1,))
            self.written += 1
        db.close()

    def logged(self, log: str) -> list[int]:
        with LogReader.open(str(self.folder / log)) as reader, reader.cursor() as cursor:
            changes = [change for one in iter(cursor.next, None) for change in one.changes()]
        rows = [change.after for change in changes if isinstance(change, RowChange) and change.after is not None]
        return [row[0] for row in rows if isinstance(row[0], int)]

    def take_over(self) -> None:
        """Have the second capture come; where the first one holds the database's lock it cannot."""
        try:
            self.write(2)
        except apsw.BusyError:
            return
        self.second.append(self.capture("second", take_source=True))
        self.second[0].catch_up()
        self.write(20)

    def live(self, at: int) -> int:
        """Live once, with the second capture at that line; return how many lines the first one has run."""
        self.written, seen = 0, 0
        self.second.clear()
        db = connect(self.path)
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
        db.close()
        self.write(3)

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in TRACED:
                return None
            if event == "line":
                seen += 1
                if seen == at:
                    sys.settrace(None)
                    self.take_over()
            return trace

        first = self.capture("first")
        for _ in range(3):
            taken = bool(self.second)
            sys.settrace(trace)
            try:
                first.catch_up()
                assert not taken, "a capture goes on whose source another one has"
            except SourceError:
                assert self.second
            finally:
                sys.settrace(None)
            self.write(3)
        for second in self.second:
            second.catch_up()
        for one, log in self.opened:
            one.close()
            log.close()
        self.opened.clear()
        if self.second:
            self.check()
        for name in self.folder.iterdir():
            shutil.rmtree(name) if name.is_dir() else name.unlink()
        return seen

    def check(self) -> None:
        logs = [self.logged("first"), self.logged("second")]
        everything = list(range(1, self.written + 1))
        for found in logs:
            assert found == everything[found[0] - 1 : found[-1]] if found else True, "one is missing or twice"
        assert sorted({*logs[0], *logs[1]}) == everything, "one is in neither log"


def run_all(folder: Path, seed: int, most: int | None) -> None:
    lives = Lives(folder)
    lines = lives.live(0)
    assert lines > 100
    places = range(1, lines + 1)
    for at in places if most is None else random.Random(seed).sample(places, most):
        with replayable(f"Lives(tmp_path).live({at})"):
            lives.live(at)


def test_a_second_capture_at_a_sample_of_lines(tmp_path: Path) -> None:
    """The slow form lets one come at each."""
    run_all(tmp_path, 11, 20)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_second_capture_at_every_line(tmp_path: Path) -> None:
    run_all(tmp_path, 12, None)
