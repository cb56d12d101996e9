"""`tranlog top` before a real pipeline on Spark, in a real terminal."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fix_screen import OnScreen, on_screen
from tranlog.source.sqlite import connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TABLES = ("north", "east", "south")


def tranlog(folder: Path, *arguments: str) -> str:
    words = [sys.executable, "-m", "tranlog", *arguments]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=100).stdout


class Writer(threading.Thread):
    """Commits transactions of one table each, and one of all tables now and then, until told to end."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.enough = threading.Event()
        self.written = 0

    def run(self) -> None:
        session = connect(str(self.path))
        while not self.enough.wait(0.005):
            self.written += 1
            if self.written % 40:
                session.execute(f"INSERT INTO {TABLES[self.written % 3]} VALUES ({self.written}, 'x')")
                continue
            with session:
                for table in TABLES:
                    session.execute(f"INSERT INTO {table} VALUES ({self.written}, 'all')")


def applied(at: OnScreen) -> int:
    """Return what the head says is applied; -1 while it says nothing of the kind."""
    word = at.lines[2].partition("  applied ")[2].partition(" ")[0]
    return int(word) if word.isdigit() else -1


def rows(at: OnScreen) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in at.lines if line.split()[:1] in (["0"], ["1"], ["2"])}


def test_channels_that_move(tmp_path: Path) -> None:
    tranlog(tmp_path, "--service", "shop", "init")
    session = connect(str(tmp_path / "source.db"))
    for table in TABLES:
        session.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, what TEXT)")
    session.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "tranlog", "run", "--channels", "3"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    writer = Writer(tmp_path / "source.db")
    try:
        while subprocess.run([sys.executable, "-m", "tranlog", "state"], cwd=tmp_path, capture_output=True).returncode:
            assert process.poll() is None
        tranlog(tmp_path, "wait", "--state", "ONLINE", "--timeout", "90")
        writer.start()
        with on_screen("top", "--interval", "0.5", cwd=tmp_path) as terminal:
            terminal.until(lambda at: "ONLINE for" in at.lines[0] and applied(at) > 0 and len(rows(at)) == 3)
            assert "source.db  ->  " in terminal.lines[1] and terminal.lines[1].endswith("target.db")
            first = applied(terminal)
            seen: set[str] = set()

            def moves(at: OnScreen) -> bool:
                seen.update(words[0] for words in rows(at).values() if words[1] in ("applying", "serial"))
                return applied(at) > first + 100 and seen == {"0", "1", "2"}

            terminal.until(moves)
            terminal.until(lambda at: all(any(shard in line for line in at.lines[10:]) for shard in TABLES))
            terminal.resize(58, 16)
            terminal.until(lambda at: at.lines[-1][:6] == "q quit" and "ROWS/S" not in at.text and len(rows(at)) == 3)
            stands = applied(terminal)
            terminal.until(lambda at: applied(at) > stands)
            writer.enough.set()
            writer.join(60)
            tranlog(tmp_path, "heartbeat", "evening")
            terminal.until(lambda at: all(words[1] == "idle" for words in rows(at).values()) and applied(at) > stands)
            tranlog(tmp_path, "offline")
            terminal.until(lambda at: "OFFLINE:NORMAL" in at.lines[0])
            terminal.press("q")
            assert terminal.until_ended() == 0
            assert terminal.is_given_back()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        writer.enough.set()
        process.kill()
        process.wait()
