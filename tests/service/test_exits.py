"""Exit codes and the one line on stderr."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from typing import Any

import pytest
import typer

from tranlog import errors
from tranlog.errors import TranlogError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.service.frame.exits import EXIT_CODES, ExitCode, ReaderGone, error_json, error_line, exit_code_of

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TranlogError)]

# One value for each type that an error's field may have.
SAMPLES: dict[object, object] = {
    int: 7,
    str: "text",
    int | None: None,
    str | None: None,
    tuple[str, ...]: ("a name",),
    object: "value",
    Gtid: Gtid(Epoch(1), Seqno(15)),
}


def field_names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def sample(kind: type[TranlogError]) -> TranlogError:
    hints = typing.get_type_hints(kind)
    names = field_names(kind)
    return kind(**{name: SAMPLES[hints[name]] for name in names}) if names else kind("what happened")


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_a_code_a_line_and_a_json(kind: type[TranlogError]) -> None:
    """The table is exhaustive: an error that is added later must be given its code."""
    assert kind in EXIT_CODES
    error = sample(kind)
    assert exit_code_of(error) in (ExitCode.CHECK_FAILED, ExitCode.USAGE, ExitCode.DATA, ExitCode.SURROUNDINGS)
    line = error_line(error, prog="tranlog")
    assert line.startswith("tranlog: ") and "\n" not in line
    told = json.loads(error_json(error, prog="tranlog"))["error"]
    assert told["type"] == kind.__name__
    assert told["exit_code"] == exit_code_of(error)
    assert set(field_names(kind)) <= told.keys()


def test_the_table_names_no_error_twice_and_none_that_is_gone() -> None:
    assert set(EXIT_CODES) == set(TREE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError(option="a", value=1, why="no"), 2),
        (errors.ConflictError(seqno=5, table="s.t", key="id=1", why="no row"), 3),
        (errors.TargetAheadError(pipeline="p", channel=0, gtid=Gtid(Epoch(1), Seqno(5)), why="it is not there"), 3),
        (errors.NotInLogError(what="x", gtid=Gtid(Epoch(1), Seqno(5)), found="ends at 3"), 3),
        (errors.LogLockedError(path="log", holder="pid 1"), 4),
        (errors.DiskFullError(path="log"), 4),
        (errors.TargetUnavailableError(where="there", why="refused"), 4),
        (errors.EngineError(why="no Java", remedy="install it"), 4),
        (PermissionError(13, "Permission denied", "file"), 4),
        (typer.BadParameter("no"), 2),
        (typer.Abort(), 1),
        (KeyboardInterrupt(), 130),
        (ReaderGone(), 141),
        (ZeroDivisionError("x"), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_codes_of_the_issue(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_a_subclass_has_its_parents_code() -> None:
    class NewError(errors.DiskFullError):
        pass

    assert exit_code_of(NewError(path="x")) is ExitCode.SURROUNDINGS


def test_a_line_stays_a_line() -> None:
    """Names and texts come from outside: neither a line break nor a control character reaches the terminal."""
    error = errors.DdlStopError(seqno=5, text="create table t (\n  id int\x1b[31m)", why="first\n\nsecond")
    line = error_line(error, prog="tranlog")
    assert "first second" in line
    assert "\x1b" not in line and "\n" not in line


def test_an_unforeseen_error_says_that_it_is_a_defect() -> None:
    line = error_line(ZeroDivisionError("division by zero"), prog="thl")
    assert line.startswith("thl: unexpected ZeroDivisionError: division by zero; this is a defect of tranlog")
    assert "Traceback" not in line
