"""`tranlog top` on a real pseudo-terminal, before a pipeline whose channels are threads.

tests/service/test_top_spark.py has it on Spark.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fix_operated import run_in_threads
from fix_pipeline import SqliteTarget, Workload, write_log
from fix_screen import on_screen, source
from fix_server import at_port
from tranlog.change import Change, RowChange
from tranlog.log.writing.log import LogOptions
from tranlog.pipeline.driving import apply
from tranlog.pipeline.driving.operation import OnError, Operation
from tranlog.pipeline.filters.filters import EachTransaction
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.states import State
from tranlog.service.commands import cli
from tranlog.service.process.operating import OperatingOptions, Operator, operated

pytestmark = pytest.mark.long

WAIT_S = 60.0
Tell = Callable[[str], tuple[int, str, str]]
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*3[0-7]m")
CONFIG = """\
[service]
name = "shop"
[log]
dir = "log"
[target]
kind = "sqlite"
path = "target.db"
[pipeline]
name = "p"
"""


class Held:
    """A real pipeline of four channels that comes to a halt: the channel of `north` waits inside a filter.

    So the next serial section waits for it, and behind that all others wait for channel 0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workload = Workload(seed=3)
        self.target = SqliteTarget(folder / "target.db", self.workload.tables)
        self.last = write_log(folder / "log", self.workload, 80)
        (folder / "tranlog.toml").write_text(CONFIG)
        self.going = threading.Event()
        self.going.set()
        self._opened = ExitStack()
        self.operation: Operation | None = None

    def start(self, *, online: bool = True) -> Operator:
        options = ApplyOptions(
            pipeline="p",
            log_dir=str(self.folder / "log"),
            target=self.target.options,
            channels=4,
            master="local[16]",
            sync_interval_s=0.1,
            filters=(EachTransaction(function=self._hold),),
        )
        operation = self.operation = Operation(
            options, on_error=OnError.OFFLINE, run_pipeline=run_in_threads, stop_engine=lambda: None
        )
        thread = threading.Thread(target=operation.run, kwargs={"online": online}, daemon=True)
        thread.start()
        self._opened.callback(thread.join, WAIT_S)
        self._opened.callback(operation.end)
        told = OperatingOptions(service="shop", source="sqlite shop.db")
        return self._opened.enter_context(operated(operation, LogOptions(), told, runtime_dir=None))

    def _hold(self, changes: list[Change]) -> list[Change]:
        if {change.table.schema for change in changes if isinstance(change, RowChange)} == {"north"}:
            assert self.going.wait(WAIT_S)
        return changes

    def come_to(self, state: State, applied: int | None = None) -> None:
        assert self.operation is not None
        assert self.operation.wait(state=state, applied=applied, timeout_s=WAIT_S), self.operation.state()

    def stop(self) -> None:
        self.going.set()
        self._opened.close()


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(apply, "find_java", lambda: "")
    monkeypatch.setattr(apply, "ALIVE_INTERVAL_S", 0.05)
    opened = Held(tmp_path)
    try:
        yield opened
    finally:
        opened.stop()


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tell:
    """The command in this process, in a folder with a configuration and without a pipeline."""
    (tmp_path / "tranlog.toml").write_text(CONFIG)
    (tmp_path / "log").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def tell(line: str) -> tuple[int, str, str]:
        code = cli.main(line.split())
        found = capsys.readouterr()
        return code, found.out, found.err

    return tell


def wait_for(ready: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_waits_for_whom_is_real(held: Held, told: Tell) -> None:
    """One channel is held in front of a serial section: channel 0 waits for it, the others for channel 0."""
    held.going.clear()
    operator = held.start()
    held.come_to(State.ONLINE)

    def waits() -> dict[int, tuple[int, ...]]:
        return {one.channel: one.waits_for for one in operator.overview().channels}

    def stuck() -> int | None:
        found = waits()
        holder = [channel for channel, whom in found.items() if channel and not whom]
        behind = [channel for channel, whom in found.items() if channel and whom == (0,)]
        return holder[0] if len(holder) == 1 and len(behind) == 2 and found[0] == (holder[0],) else None

    wait_for(lambda: stuck() is not None)
    holder = stuck()
    now = operator.overview()
    others = [one for one in now.channels if one.channel not in (0, holder)]
    assert all(one.waits.startswith("channel 0 to apply serial seqno ") for one in others)
    assert now.channels[0].waits.startswith(f"channel {holder} to apply seqno ")
    assert now.channels[0].applied_seqno < int(others[0].waits.split()[-1])
    code, out, err = told("top --once --interval 0.3")
    assert code == 0, err
    assert f"waits for channel {holder} to apply seqno" in out
    assert out.count("waits for channel 0 to apply serial seqno") == 2
    assert "standing" in out and "sqlite shop.db  ->  sqlite " in out
    assert "\x1b" not in out
    held.going.set()
    held.come_to(State.ONLINE, held.last)
    wait_for(lambda: not any(waits().values()))
    shown = [json.loads(line) for line in told("top --json --count=2 --interval=0.2")[1].splitlines()]
    assert len(shown) == 2
    for one in shown:
        assert (one["pipeline"], one["state"], one["applied_seqno"]) == ("p", "ONLINE", held.last)
        assert [(of["channel"], of["doing"], of["behind"]) for of in one["channels"]] == [
            (channel, "idle", 0) for channel in range(4)
        ]
        assert one["transactions_per_s"] == 0


@pytest.mark.e2e
def test_a_terminal_is_taken_and_given_back(held: Held) -> None:
    """Keys, another size, and q; and the pipeline that goes away and comes back meanwhile."""
    held.going.clear()
    held.start()
    held.come_to(State.ONLINE)
    with on_screen("top", "--interval", "0.2", cwd=held.folder) as terminal:
        terminal.until(lambda at: "waits for channel 0 to apply serial" in at.text)
        assert terminal.lines[0].startswith("tranlog top  shop/p  ONLINE for ")
        assert terminal.lines[5].split() == ["CH", "STATE", "APPLIED", "BEHIND", "LATENCY", "TX/S", "ROWS/S", "TIME"]
        assert COLOUR.search(terminal.sent), "a wait stands out in colour"
        terminal.press("s")
        terminal.until(lambda at: "s sort: behind" in at.lines[-1])
        terminal.press("\x1b[A+")  # an arrow key is nothing
        terminal.until(lambda at: "+/- every 0.5 s" in at.lines[-1])
        terminal.press("-")
        terminal.until(lambda at: "+/- every 0.2 s" in at.lines[-1])
        terminal.press("p")
        terminal.until(lambda at: "paused" in at.lines[0] and "p go on" in at.lines[-1])
        terminal.press("p")
        terminal.until(lambda at: "paused" not in at.lines[0])
        terminal.resize(60, 14)
        terminal.until(
            lambda at: at.lines[-1].startswith("q quit") and "ROWS/S" not in at.text and "CH  STATE" in at.text
        )
        terminal.resize(120, 30)
        terminal.until(lambda at: "ROWS/S" in at.text and "SLOWEST SHARDS" in at.text)
        assert held.operation is not None
        held.going.set()
        terminal.until(lambda at: f"applied {held.last}" in at.text and "idle" in at.text)
        held.stop()
        terminal.until(lambda at: "AWAY for" in at.lines[0] and "nobody listens there" in " ".join(at.lines))
        assert "Waiting for it to come back." in terminal.lines and "CH  STATE" not in terminal.text
        held.start(online=False)
        terminal.until(lambda at: "OFFLINE:NORMAL" in at.lines[0] and "stopped" in at.text)
        terminal.press("q")
        assert terminal.until_ended() == 0
        assert terminal.is_given_back()


@pytest.mark.e2e
def test_it_rests_in_the_background(held: Held) -> None:
    """Ctrl-Z gives the terminal to the shell, as it was; `fg` brings the screen back."""
    held.start(online=False)
    shell = 'set -m; "$@"; echo RESTS; read line; fg'
    with on_screen("top", "--interval", "0.2", cwd=held.folder, shell=shell) as terminal:
        terminal.until(lambda at: "OFFLINE:NORMAL" in at.text)
        terminal.press("\x1a")
        terminal.until(lambda at: "RESTS" in at.text)
        assert terminal.is_given_back()
        terminal.press("\n")
        terminal.until(lambda at: at.sent.count(b"\x1b[?1049h") == 2 and at.lines[-1][:6] == "q quit")
        terminal.press("q")
        assert terminal.until_ended() == 0
        assert terminal.is_given_back()


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, "\x03", "count", "no keys"])
def test_it_is_given_back_however_it_ends(held: Held, how: signal.Signals | str) -> None:
    """And without colours, where NO_COLOR asks for none."""
    held.start(online=False)
    more = ["--count", "2"] if how == "count" else []
    shell = '"$@" < /dev/null' if how == "no keys" else None
    with on_screen("top", "--interval", "0.2", *more, cwd=held.folder, shell=shell, NO_COLOR="1") as terminal:
        if isinstance(how, signal.Signals):
            terminal.until(lambda at: "OFFLINE:NORMAL" in at.text)
            terminal.process.send_signal(how)
        elif how != "count":
            terminal.until(lambda at: "OFFLINE:NORMAL" in at.text)
            terminal.press("\x03" if how == "no keys" else how)
        assert terminal.until_ended() == 0
        assert terminal.is_given_back()
        assert not COLOUR.search(terminal.sent) and b"\x1b[1m" in terminal.sent


def test_the_error_that_took_it_offline(held: Held, told: Tell) -> None:
    (held.folder / "target.db").unlink()
    SqliteTarget(held.folder / "target.db", ())
    held.start()
    held.come_to(State.OFFLINE_ERROR)
    code, out, _ = told("top --once --interval=0.2")
    assert code == 0 and "OFFLINE:ERROR for" in out and "TargetTableError at seqno" in out


def test_a_target_that_cannot_be_read_hides_nothing_else(held: Held, told: Tell) -> None:
    operator = held.start(online=False)
    held.come_to(State.OFFLINE_NORMAL)
    (held.folder / "target.db").write_bytes(b"no database at all" * 100)
    now = operator.overview()
    assert now.problems and now.problems[0].startswith("target: ") and now.last_seqno == held.last
    assert now.state is State.OFFLINE_NORMAL
    code, out, _ = told("top --once --interval=0.2")
    assert code == 0 and "target: " in out


def test_a_pipeline_elsewhere(held: Held, told: Tell) -> None:
    """Through a port, with nothing of its configuration, log or target here."""
    operator = held.start(online=False)
    held.come_to(State.OFFLINE_NORMAL)
    (held.folder / "tranlog.toml").unlink()
    with at_port(operator) as address:
        code, out, err = told(f"top --once --interval 0.2 --host {address}")
    assert code == 0 and "OFFLINE:NORMAL" in out, err


@pytest.mark.e2e
def test_a_pipeline_that_hangs_holds_up_nobody(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are answered while it is asked."""
    operator, asked = held.start(online=False), threading.Event()

    gather = operator._gather

    def gathering() -> Any:
        if asked.is_set():
            held.going.wait(WAIT_S)
        asked.set()
        return gather()

    monkeypatch.setattr(operator, "_gather", gathering)
    held.going.clear()
    with (
        at_port(operator) as address,
        on_screen("top", "--interval", "0.2", "--host", address, cwd=held.folder) as terminal,
    ):
        terminal.until(lambda at: "OFFLINE:NORMAL" in at.text)
        terminal.press("s")
        terminal.until(lambda at: "s sort: behind" in at.lines[-1])
        terminal.press("q")
        assert terminal.until_ended() == 0
        assert terminal.is_given_back()
        held.going.set()


# --- what cannot work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["top --once", "top --json", "top --count 3"])
def test_no_pipeline_is_running(told: Tell, line: str) -> None:
    code, out, err = told(line)
    assert (code, out) == (4, "")
    assert "nobody listens there. Start one with `tranlog apply`" in err and "`tranlog apply --offline`" in err


def test_an_unknown_service(told: Tell) -> None:
    code, _, err = told("--service nowhere top --once")
    assert code == 2 and "nowhere" in err


def test_an_output_that_is_no_terminal(told: Tell) -> None:
    code, _, err = told("top")
    assert code == 2 and "output: is no terminal; use --once" in err


@pytest.mark.parametrize("line", ["top --interval 0.01", "top --count 0", "top --interval x", "top 5"])
def test_options_out_of_range(told: Tell, line: str) -> None:
    assert told(line)[0] == 2


@pytest.mark.e2e
def test_no_pipeline_is_running_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "tranlog.toml").write_text(CONFIG)
    with on_screen("top", cwd=tmp_path, columns=300) as terminal:
        assert terminal.until_ended() == 4
        assert "nobody listens there" in terminal.text and b"\x1b[?1049h" not in terminal.sent


@pytest.mark.e2e
@pytest.mark.parametrize("name", [None, "dumb"])
def test_a_terminal_that_cannot(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "tranlog.toml").write_text(CONFIG)
    with on_screen("top", cwd=tmp_path, columns=300, TERM=name) as terminal:
        assert terminal.until_ended() == 2
        assert "TERM" in terminal.text and "place text" in terminal.text and "--once" in terminal.text


@pytest.mark.e2e
def test_it_goes_away_under_a_stream(held: Held) -> None:
    """A line says so, and the exit code at the end: the pipeline did not come back."""
    held.start(online=False)
    child = subprocess.Popen(
        [sys.executable, "-m", "tranlog", "top", "--json", "--interval=0.2", "--count=25"],
        cwd=held.folder,
        env={**os.environ, "PYTHONPATH": source()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    first = json.loads(child.stdout.readline())
    assert first["state"] == "OFFLINE:NORMAL"
    held.stop()
    printed, told = child.communicate(timeout=WAIT_S)
    assert child.returncode == 4
    assert "away" in json.loads(printed.splitlines()[-1])
    assert json.loads(told)["error"]["type"] == "ControlError"
