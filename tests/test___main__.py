"""Where the commands begin: Ctrl-C before they are there."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]


class Interrupting:
    """A Ctrl-C while what a command does is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("tranlog.service.commands.cli", "tranlog.service.thl.thl"):
            raise KeyboardInterrupt


@pytest.mark.parametrize("prog", ["tranlog", "thl"])
def test_an_interrupt_while_a_command_starts_is_one_line(
    prog: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback of the imports."""
    module, _, name = SCRIPTS[prog].partition(":")
    begin = getattr(import_module(module), name)
    for imported in ("tranlog.service.commands.cli", "tranlog.service.thl.thl"):
        monkeypatch.delitem(sys.modules, imported, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert begin() == 130
    assert capsys.readouterr().err == f"{prog}: interrupted\n"
