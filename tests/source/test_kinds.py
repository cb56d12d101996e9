"""The kinds of sources: each is there under its name, and without its driver says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tranlog.source.kinds import KINDS, source_kind


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_there_under_its_name(name: str) -> None:
    assert source_kind(name).options.kind == name


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "module", "library"), [("mariadb", "pymysql", "PyMySQL"), ("postgres", "psycopg", "psycopg")]
)
def test_a_missing_library_is_named_with_its_remedy(name: str, module: str, library: str) -> None:
    """The other kinds need none of it."""
    others = [one for one in KINDS if one != name]
    script = f"""
import sys
sys.modules["{module}"] = None
from tranlog.source.kinds import source_kind
for one in {others}:
    source_kind(one)
try:
    source_kind("{name}")
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SourceSetupError ")
    assert f"the library {library} is not installed. Install it: `pip install 'tranlog[{name}]'`" in done.stdout
