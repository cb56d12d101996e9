"""docs/programming.md runs, block by block, as it stands there: the document's two examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tranlog
from tranlog.errors import ConfigError

PAGE = Path(__file__).parents[1] / "docs" / "programming.md"


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def deep_imports(text: str) -> list[str]:
    """Find imports of modules of the package: what a user copies needs `tranlog`, and `tranlog.testing` for servers."""
    return re.findall(r"^\s*(?:from|import) (tranlog\.(?!testing\b)[\w.]+)", text, re.MULTILINE)


def test_programs_import_from_the_package_alone() -> None:
    root = PAGE.parents[1]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "examples").glob("*.py")]
    assert {page.name: found for page in pages if (found := deep_imports(page.read_text()))} == {}
    assert deep_imports("import tranlog\nfrom tranlog import Log\n  from tranlog.log.x import Log") == ["tranlog.log.x"]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """seeds/thl-internals, "Writing to the THL", "Reading from the THL": both examples are the first of their parts."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "programming"}
    found = blocks(PAGE.read_text())
    assert len(found) >= 6
    for number, block in enumerate(found):
        exec(compile(block, f"block {number} of {PAGE.name}", "exec"), names)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "GTID(2, 396) INSERT bank.accounts None (395, 'owner 395')"
    assert shown[5] == "GTID(2, 401) CREATE INDEX by_owner ON accounts (owner)", "DDL is a change without rows"


def test_the_page_names_everything_that_the_package_offers() -> None:
    text = PAGE.read_text()
    missing = [name for name in tranlog.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_every_name_is_there_and_no_other() -> None:
    assert [name for name in tranlog.__all__ if not hasattr(tranlog, name)] == []
    assert set(tranlog.__all__) <= set(dir(tranlog))
    with pytest.raises(AttributeError, match="no attribute 'Lgo'"):
        _ = tranlog.Lgo


def test_importing_the_package_loads_nothing_else() -> None:
    """A worker, or a program that only writes to SQLite, pays for what it uses."""
    code = "import sys, tranlog; print([name for name in sys.modules if name.startswith('tranlog.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # What chooses between machine code and the plain sources is there only where machine code is.
    assert done.stdout.strip() in ("[]", "['tranlog.compiled']")


@pytest.mark.parametrize("address", ["thl:127.0.0.1:2112", "postgresql://user:hush@host/shop", "file:///shop.db"])
def test_an_address_is_no_path_of_a_database(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="thl://HOST:PORT") as raised:
        tranlog.connect(address)
    assert "hush" not in str(raised.value) and list(tmp_path.iterdir()) == []
