"""What a process says of itself. docs/control.md, "What a process logs"."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

import tranlog
from tranlog.service.commands import cli
from tranlog.service.frame.diagnostics import Form, lines_are_json, show_diagnostics, split

MODULE = "tranlog.pipeline.a"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Levels and handlers are the process's, so each test gives back those that it found."""
    root = logging.getLogger()
    handlers, loggers = list(root.handlers), [root, *map(logging.getLogger, (MODULE, "tranlog", "tranlog.service"))]
    levels = [one.level for one in loggers]
    yield
    root.handlers[:] = handlers
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


def said(capsys: pytest.CaptureFixture[str], *lines: tuple[Any, ...], form: Form = "json", **more: Any) -> list[str]:
    show_diagnostics(**{"levels": "debug", "form": form, **more})
    for name, level, *call in lines:
        logging.getLogger(name).log(level, *call)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("template", "arguments", "event", "fields"),
    [
        ("Purged. first=%s up_to=%d", ("a b", 5), "Purged", {"first": "a b", "up_to": 5}),
        ("target failed why=%s", (ValueError("no\nmore"),), "target failed", {"why": "no\nmore"}),
        ("Written again: %s. offset=%d", ("a header", 9), "Written again: a header", {"offset": 9}),
        ("Rolled back. abandoned=%d..%d path=%s", (3, 5, "p"), "Rolled back", {"abandoned": "3..5", "path": "p"}),
        ("another log has it, path=%s retry_in_s=%.2f", ("x", 0.125), "another log has it", {"path": "x"}),
        ("A table. table=%s.%s", ("s", "t"), "A table", {"table": "s.t"}),
        ("no fields at all", (), "no fields at all", {}),
        ("100 %% of %s", ("it",), "100 % of it", {}),
        ("from another library: %(a)s", {"a": 1}, "from another library: 1", {}),
    ],
)
def test_a_sentence_and_its_fields(template: str, arguments: Any, event: str, fields: dict[str, object]) -> None:
    found, told = split(template, arguments)
    assert found == event
    assert told.items() >= fields.items()


@pytest.mark.long
def test_every_call_of_ours_has_this_form() -> None:
    """A sentence that says nothing, or a field that is lost, is found here and not in somebody's log."""
    calls = []
    for path in Path(tranlog.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr="info" | "warning" | "error"),
                    args=[ast.Constant(value=str(template)), *arguments],
                ) if not any(isinstance(one, ast.Starred) for one in arguments):
                    calls.append((path.name, template, len(arguments)))
    assert len(calls) > 50
    for name, template, count in calls:
        event, fields = split(template, (1,) * count)
        assert event, (name, template)
        assert len(fields) == template.count("=%"), (name, template, fields)


def test_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, (MODULE, logging.WARNING, "Purged. up_to=%d names=%s", 5, ["a", "b"]))
    found = json.loads(line)
    assert datetime.fromisoformat(found.pop("timestamp")).utcoffset() is not None
    assert found == {"event": "Purged", "up_to": 5, "names": ["a", "b"], "level": "warning", "logger": MODULE}
    assert lines_are_json()


def test_an_error_with_its_traceback_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnostics(levels=None, form="json")
    try:
        raise ValueError("x\ny")
    except ValueError:
        logging.getLogger(MODULE).exception("an operation failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: x\ny" in json.loads(line)["exception"]


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """No colours where nobody sees them, and what came from outside cannot begin a line of its own."""
    (line,) = said(capsys, (MODULE, logging.WARNING, "Purged. why=%s up_to=%d", "a\nb \x1b[2J", 5), form="text")
    assert line.split("Z [")[0].startswith("20") and "Purged" in line and "up_to=5" in line and MODULE in line
    assert "\x1b" not in line
    assert not lines_are_json()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals(no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show_diagnostics(levels=None, form="text")
    logging.getLogger(MODULE).warning("Purged. up_to=%d", 5)
    assert ("\x1b[" in terminal.getvalue()) is coloured


@pytest.mark.parametrize(
    ("levels", "more", "shown"),
    [
        (None, {}, ["service info", "warning"]),
        (None, {"verbose": True}, ["service info", "info", "warning"]),
        (None, {"debug": True}, ["service info", "info", "debug", "warning"]),
        ("error", {}, ["service info"]),
        ("tranlog.service=error, tranlog.pipeline=debug", {}, ["info", "debug", "warning"]),
        ("warning,tranlog.service=warning", {"verbose": True}, ["warning"]),
    ],
)
def test_levels_by_module(
    levels: str | None, more: dict[str, Any], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        ("tranlog.service.process", logging.INFO, "service info"),
        (MODULE, logging.INFO, "info"),
        (MODULE, logging.DEBUG, "debug"),
        (MODULE, logging.WARNING, "warning"),
    )
    assert [json.loads(line)["event"] for line in said(capsys, *lines, levels=levels, **more)] == shown
    again = [json.loads(line)["event"] for line in said(capsys, *lines, levels=None)]
    assert again == ["service info", "warning"], "another command in this process begins anew"


@pytest.mark.parametrize("levels", ["loud", "tranlog=loud", "=", "tranlog="])
def test_what_is_no_level(levels: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"LEVEL"):
        show_diagnostics(levels=levels, form="text")


def test_form_and_levels_come_by_option_and_by_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the error that ends a command is JSON then, too."""
    monkeypatch.setenv("TRANLOG_LOG_FORMAT", "json")
    assert cli.main(["--conf", "nowhere.toml", "status"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "ConfigError"
    assert cli.main(["--log-format", "text", "--conf", "nowhere.toml", "status"]) == 2
    assert capsys.readouterr().err.startswith("tranlog: ")
    monkeypatch.setenv("TRANLOG_LOG_LEVEL", "loud")
    assert cli.main(["state"]) == 2
    monkeypatch.setenv("TRANLOG_LOG_FORMAT", "xml")
    assert cli.main(["state"]) == 2


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tranlog 0.")


def test_asyncios_warnings_of_lost_connections_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("asyncio", logging.WARNING, "socket.send() raised exception."), ("asyncio", logging.ERROR, "a task failed")
    assert [json.loads(line)["event"] for line in said(capsys, *lines, levels=None)] == ["a task failed"]
