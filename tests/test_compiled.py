"""Which form of the hot modules serves: compiled code never stands in for a source that says something else.

What the two forms do is compared in `tests/property/test_both_forms.py`.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import tranlog
from tranlog import compiled

PACKAGE = Path(tranlog.__file__).parent
both = pytest.mark.skipif(compiled.why_plain is not None, reason=f"one form only: {compiled.why_plain}")


def _run(code: str, folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != compiled.PLAIN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": str(folder), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


FORM = "import tranlog; from tranlog import payload; print(tranlog.compiled.form(), payload.__file__[-3:])"


def _copy(folder: Path, names: Sequence[str] = compiled.SOURCES) -> Path:
    """Return a copy of what these modules need, compiled code included."""
    package = folder / "tranlog"
    shutil.copytree(PACKAGE / "compiled", package / "compiled", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*names, "__init__.py", "errors.py", "raising.py", "log/__init__.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / name, package / name)
    return package


def test_the_environment_chooses_the_plain_sources(tmp_path: Path) -> None:
    _copy(tmp_path)
    assert _run(FORM, tmp_path, TRANLOG_PLAIN="1") == "plain (TRANLOG_PLAIN is set) .py"


@pytest.mark.long
@both
def test_an_edited_source_is_never_shadowed(tmp_path: Path) -> None:
    """The digest in the names binds machine code to its sources."""
    package = _copy(tmp_path)
    assert _run(FORM, tmp_path) == "compiled .so"
    with (package / "change.py").open("a") as file:
        file.write("\n")
    assert "other sources" in _run(FORM, tmp_path)
    assert _run(FORM, tmp_path).endswith(".py")


def test_without_compiled_code_the_sources_serve(tmp_path: Path) -> None:
    package = _copy(tmp_path)
    for path in (package / "compiled").glob("*.so"):
        path.unlink()
    assert _run(FORM, tmp_path) == "plain (nothing was compiled when tranlog was installed) .py"


def test_make_compiles_again_after_an_edit_of_each_source() -> None:
    """The Makefile reads its list of sources out of the digest's."""
    asked = ["make", "--print-data-base", "--question", "install"]
    known = subprocess.run(asked, cwd=PACKAGE.parents[1], capture_output=True, text=True).stdout
    (listed,) = [line for line in known.splitlines() if line.startswith("COMPILED_FROM := ")]
    assert listed.split()[2:] == ["setup.py", *(f"src/tranlog/{name}" for name in compiled.SOURCES)]


def test_nothing_that_waits_in_an_event_loop_is_compiled() -> None:
    """A compiled coroutine calls `throw` with three arguments, and from Python 3.12 on each cancelled task warns."""
    for name in compiled.SOURCES:
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        assert not [one.lineno for one in ast.walk(tree) if isinstance(one, ast.AsyncFunctionDef)], name
