"""The frame of every command: options wherever they stand, questions, progress, signals, a reader that goes away."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from typing import Annotated

import pytest
import typer

from fix_tungsten import GOLDEN
from tranlog.errors import DiskFullError
from tranlog.service.commands import cli
from tranlog.service.frame import command
from tranlog.service.frame.command import (
    confirm,
    hoist,
    lower,
    new_app,
    require_command,
    run_app,
    stop_signals,
)
from tranlog.service.thl import thl

LOCATING = ("-dir", "--dir", "-conf")


@pytest.mark.parametrize(
    ("given", "sorted_"),
    [
        ("list -seqno 1 -dir x", "-dir x list -seqno 1"),
        ("list -dir=x --debug", "-dir=x --debug list"),
        ("-dir x list", "-dir x list"),
        ("list -- -dir x", "list -- -dir x"),
        ("list -dir", "-dir list"),
        ("list -directory x", "list -directory x"),
    ],
)
def test_options_that_belong_in_front_are_moved_there(given: str, sorted_: str) -> None:
    assert hoist(given.split(), LOCATING, ("--debug",)) == sorted_.split()


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ("-host x status -name stores", "status -name stores -host x"),
        ("-conf f -host=x status", "-conf f status -host=x"),
        ("-host x --debug wait -- -host", "--debug wait -host x -- -host"),
        ("status -host x", "status -host x"),
        ("-host", "-host"),
    ],
)
def test_an_option_of_the_command_may_stand_in_front_of_it(given: str, moved: str) -> None:
    """The article: `trepctl -host logos1 status -name stores`."""
    assert lower(given.split(), ("-host",), passed=LOCATING) == moved.split()


def test_the_articles_order_reaches_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-host", "127.0.0.1:1", "status", "-name", "stores"]) == 4
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.fixture
def app() -> typer.Typer:
    program = new_app(add_completion=False)

    @program.callback(invoke_without_command=True)
    def top(
        ctx: typer.Context,
        directory: Annotated[str | None, typer.Option("-dir", "--dir")] = None,
        debug: Annotated[bool, typer.Option("--debug")] = False,
    ) -> None:
        """A program."""
        require_command(ctx)

    @program.command("list")
    def list_(
        seqno: Annotated[int | None, typer.Option("-seqno", "--seqno")] = None,
        as_json: Annotated[bool, typer.Option("--json")] = False,
    ) -> int:
        """List."""
        if seqno == 1:
            raise DiskFullError(path="log")
        if seqno == 2:
            raise ZeroDivisionError("x")
        if seqno == 3:
            raise BrokenPipeError(32, "Broken pipe")
        return seqno or 0

    return program


def run(app: typer.Typer, line: str) -> int:
    return run_app(app, line.split(), prog="thl", hoisted=LOCATING)


def test_the_commands_number_is_the_exit_code(app: typer.Typer) -> None:
    assert run(app, "list") == 0
    assert run(app, "list -seqno 3 --help") == 0


def test_an_error_is_one_line(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "list -seqno 1") == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"thl: {DiskFullError(path='log')}\n"


def test_an_interrupt_is_one_line(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    @app.command()
    def waits() -> None:
        raise KeyboardInterrupt

    assert run_app(app, ["waits"], prog="tranlog", hoisted=LOCATING) == 130
    assert capsys.readouterr().err == "tranlog: interrupted\n"


def test_an_error_as_json(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "list -seqno 1 --json") == 4
    told = json.loads(capsys.readouterr().err)["error"]
    assert (told["type"], told["exit_code"], told["path"]) == ("DiskFullError", 4, "log")


def test_a_traceback_only_on_demand(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "list -seqno 2") == 70
    assert "Traceback" not in capsys.readouterr().err
    assert run(app, "list -seqno 2 --debug") == 70
    told = capsys.readouterr().err
    assert "Traceback" in told and "ZeroDivisionError: x" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("list -sqno 1", "thl: no such option: -sqno, perhaps -seqno"),
        ("list --sqno 1", "thl: no such option: --sqno, perhaps --seqno"),
        ("list -seqno", "thl: option '-seqno' requires an argument"),
        ("list -seqno x", "thl: invalid value for '-seqno' / '--seqno': Input should be a valid integer"),
        ("lost", "thl: no such command 'lost'"),
        ("list 5", "thl: got unexpected extra argument"),
    ],
)
def test_bad_usage_is_named(app: typer.Typer, line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, line) == 2
    said = capsys.readouterr().err
    assert said.startswith(told)
    assert "--help`" in said and said.count("\n") == 1


def test_bad_usage_of_a_command_names_its_own_help(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the error does not know the command: an option without its value."""
    for line in ("list -seqno", "-dir x list -seqno", "list -seqno x"):
        assert run(app, line) == 2
        assert capsys.readouterr().err.endswith("Try `thl list --help`\n"), line


@pytest.mark.parametrize(("line", "option"), [("help", "--help"), ("help list", "list --help")])
def test_help_is_a_command_too(line: str, option: str, app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, option) == 0
    text = capsys.readouterr().out
    assert run(app, line) == 0 and capsys.readouterr().out == text


def test_no_command_is_bad_usage_and_shows_the_help(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "") == 2
    assert "Usage: thl" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_go: list[bool] = []
    monkeypatch.setattr(command, "_let_go_of_stdout", lambda: let_go.append(True))
    assert run(app, "list -seqno 3") == 141
    assert let_go == [True]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_a_yes_is_a_yes(answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    if agreed:
        confirm("Clear it?")
    else:
        with pytest.raises(typer.Abort):
            confirm("Clear it?")


@pytest.mark.parametrize("closed", [("stdin",), ("stdout",), ("stderr",), ("stdin", "stdout", "stderr")])
@pytest.mark.parametrize(("line", "code"), [("info", 0), ("list -seqno 1", 0), ("verify", 0), ("purge -high 1", 1)])
def test_a_stream_that_the_caller_closed_is_no_error(
    closed: tuple[str, ...], line: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `thl list >&-` closes it: Python then has None in its place."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert thl.main(["-dir", str(GOLDEN / "rotated-60" / "log"), *line.split()]) == code
    for name in closed:
        getattr(sys, name).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_and_the_handlers_come_back(number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tranlog.service")
    before = signal.getsignal(number)
    stopped: list[bool] = []
    with stop_signals(lambda: stopped.append(True)):
        os.kill(os.getpid(), number)
        assert stopped == [True]
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(number) == before
    assert "Stopping cleanly" in caplog.text and f"signal={signal.Signals(number).name}" in caplog.text


def test_under_nohup_a_terminal_that_goes_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda: pytest.fail("it is stopped")):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
