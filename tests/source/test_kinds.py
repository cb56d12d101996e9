"""The kinds of sources: each is there under its name, and without its driver says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tranlog.source.kinds import KINDS, source_kind


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_there_under_its_name(name: str) -> None:
    assert source_kind(name).options.kind == name


def test_a_missing_library_is_named_with_its_remedy() -> None:
    """The other kinds need none of it."""
    script = """
import sys
sys.modules["pymysql"] = None
from tranlog.source.kinds import source_kind
source_kind("sqlite"), source_kind("thl")
try:
    source_kind("mariadb")
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SourceSetupError ")
    assert "the library PyMySQL is not installed. Install it: `pip install 'tranlog[mariadb]'`" in done.stdout
