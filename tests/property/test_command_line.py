"""Mutated command lines of `tranlog` and `thl`: a command, or bad usage with one line.

Parsed in this process. `parsed` exchanges what the commands do for a note of what they were told; a smaller number of
lines runs for real, the commands that only look.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from fix_log import fill
from fix_mutation import Fuzz, mutated
from tranlog.log.writing.log import Log
from tranlog.service.commands import cli
from tranlog.service.config.template import template
from tranlog.service.frame.command import hoist
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl import thl
from tranlog.source.sqlite import connect

LINES: Final = {
    "tranlog": (
        "init --source mariadb --target postgres",
        "capture --once --new-log --json",
        "apply --until now --channels 4 --master local[4] --start 12 --take-over --pipeline p",
        "apply -until 1200 -channels 2",
        "run --channels 8 --new-log",
        "status --no-watch --json",
        "verify --table main.orders --table main.items --rows 10 --wait 0.5",
        "tables create --from source --dry-run",
        "position get --pipeline p --json",
        "position set 1200 --channel 2 -y --take-over",
        "position reset -y",
        "reset -y --after GTID(3,120) --forget-position --dry-run",
        "--conf shop.toml --service shop --debug --verbose status",
        "--help",
        "position set -- -1",
    ),
    "thl": (
        "-dir log list -seqno 5",
        "--dir log list -low 100 -high 200 -headers -json",
        "-conf tranlog.toml index --json",
        "-service shop info -json",
        "verify -dir log",
        "list --low=1 --high=2",
        "-h",
    ),
}
LOOKS: Final = {
    "tranlog": (
        "status --no-watch --json",
        "status --no-watch --conf tranlog.toml --service shop",
        "tables create --dry-run --from log",
        "verify --table main.t --rows 3",
        "position get --pipeline p",
        "reset --dry-run --after GTID(3,120)",
    ),
    "thl": (
        "-dir log list -seqno 2",
        "list -low 1 -high 3 -headers -json",
        "-service shop info -json",
        "index -conf tranlog.toml",
        "verify -dir log",
    ),
}
MAINS: Final[dict[str, Callable[[list[str]], int]]] = {"tranlog": cli.main, "thl": thl.main}
SEPARATOR: Final = "\x1f"
CONTRACT: Final = frozenset(
    {ExitCode.DONE, ExitCode.CHECK_FAILED, ExitCode.USAGE, ExitCode.DATA, ExitCode.SURROUNDINGS}
)


def words(raw: bytes) -> list[str]:
    """Return a command line's words as a shell hands them over: no NUL, bytes that are no UTF-8 as surrogates."""
    return [word for word in raw.replace(b"\0", b"").decode(errors="surrogateescape").split(SEPARATOR) if word]


def line_maker(lines: tuple[str, ...]) -> Callable[[random.Random], bytes]:
    """Return what makes a line: words exchanged, left out or doubled, and letters changed in some of them."""
    given = [line.split() for line in lines]
    pool = sorted(
        {word for line in given for word in line} | {"", "-", "--", "-1", "9" * 30, "1e9", "nan", "é😀", "=", "-dir="}
    )

    def make(rng: random.Random) -> bytes:
        line = list(rng.choice(given))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randrange(len(line) + 1)
            match rng.randrange(4):
                case 0:
                    del line[at : at + 1]
                case 1:
                    line.insert(at, rng.choice(pool))
                case 2 if at < len(line):
                    line[at] = rng.choice(pool)
                case _:
                    rng.shuffle(line)
        raw = SEPARATOR.join(line).encode()
        return mutated(rng, [raw or b"-"]) if rng.random() < 0.7 else raw

    return make


@pytest.fixture
def built() -> dict[str, Any]:
    """Both programs' parsers, which `conftest` has built once."""
    return {"tranlog": typer.main.get_command(cli.app), "thl": typer.main.get_command(thl.app)}


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        if getattr(one, "commands", None):
            yield from leaves(one, f"{path}{name} ")
        else:
            yield f"{path}{name}", one


@pytest.mark.long
@pytest.mark.parametrize("program", MAINS)
def test_lines_are_parsed(
    program: str, fuzz: Fuzz, built: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    for name, command in leaves(built[program]):
        monkeypatch.setattr(command, "callback", lambda name=name, **given: told.append((name, given)))

    def read(raw: bytes) -> None:
        told.clear()
        line = words(raw)
        code = MAINS[program](line)
        err = capsys.readouterr().err
        assert code in (ExitCode.DONE, ExitCode.USAGE), (code, line, err)
        assert len(told) <= 1
        if code == ExitCode.USAGE:
            assert not told
            assert err.startswith(("Usage: ", f"{program}: ", '{"error":')), err
            assert "Traceback" not in err or "--debug" in line
            assert err.startswith("Usage: ") or "--debug" in line or err.count("\n") == 1, err

    for line in LINES[program]:
        read(SEPARATOR.join(line.split()).encode())
        assert told or "-h" in line, line
    fuzz.cases(line_maker(LINES[program]), read, share=0.5)


def test_no_word_is_lost_on_its_way_to_the_front(fuzz: Fuzz) -> None:
    make = line_maker(LINES["tranlog"] + LINES["thl"])

    def read(raw: bytes) -> None:
        line = words(raw)
        moved = hoist(line, thl.LOCATING, ("--debug", "--verbose"))
        assert sorted(moved) == sorted(line)
        assert hoist(moved, thl.LOCATING, ("--debug", "--verbose")) == moved or "--" in line

    fuzz.cases(make, read)


@pytest.mark.parametrize("program", MAINS)
def test_lines_that_look_are_run(
    program: str,
    fuzz: Fuzz,
    built: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the line, it ends with a code of the contract, and has changed neither source nor log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tranlog.toml").write_text(template(service="shop", source="sqlite", target="sqlite"))
    db = connect(tmp_path / "source.db")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    db.close()
    with Log.open(str(tmp_path / "log"), source_id="shop") as log:
        fill(log, 4)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir() if path.is_file()}
    for name, command in leaves(built[program]):
        if name in ("capture", "apply", "run", "init", "position set", "position reset"):
            monkeypatch.setattr(command, "callback", lambda **given: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def read(raw: bytes) -> None:
        line = words(raw)
        code = MAINS[program](line)
        err = capsys.readouterr().err
        assert code in CONTRACT, (code, line, err)
        assert "Traceback" not in err or "--debug" in line, err

    for line in LOOKS[program]:
        read(SEPARATOR.join(line.split()).encode())
    fuzz.cases(line_maker(LOOKS[program]), read, share=0.02)
    after = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir() if path.is_file()}
    assert after == before
