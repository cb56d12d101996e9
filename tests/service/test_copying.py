"""`tranlog copy --follow` where it does not begin: SQLite at both ends, without Spark."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tranlog.service.commands.cli import main

WORDS = ("sqlite:///shop.db", "sqlite:///target.db")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with closing(apsw.Connection("shop.db")) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY); INSERT INTO items VALUES(1)")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["copy", "--follow", *words])
    return int(code), capsys.readouterr().err


@pytest.mark.long
def test_a_target_that_has_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(apsw.Connection("target.db")) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY); INSERT INTO items VALUES(1)")
    code, err = refused(capsys, *WORDS)
    assert code == 3 and "main.items: it has rows already" in err
    assert not list(folder.glob("copy-of-*")), "nothing was made"


def test_a_target_that_a_pipeline_fills(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one of the name that this one would have: its log would be another."""
    with closing(apsw.Connection("target.db")) as db:
        db.execute("CREATE TABLE tranlog_pipeline(pipeline TEXT); INSERT INTO tranlog_pipeline VALUES('copy-of-shop')")
    code, err = refused(capsys, *WORDS)
    assert code == 2 and "it is filled by copy-of-shop" in err
    assert not list(folder.glob("copy-of-*"))


def test_a_folder_of_another_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("copy-of-shop")
    Path("copy-of-shop", "tranlog.toml").write_text("# mine\n")
    code, err = refused(capsys, *WORDS)
    assert code == 2 and "copy-of-shop/tranlog.toml: it is no copy of this source" in err
    assert Path("copy-of-shop", "tranlog.toml").read_text() == "# mine\n"


def test_words_that_do_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused(capsys, "--identity", "key", *WORDS)
    assert code == 2 and "from a PostgreSQL" in err
    code, err = refused(capsys, "--tables", "items", *WORDS)
    assert code == 2 and "schema.table" in err
    code, err = refused(capsys, WORDS[0], WORDS[0])
    assert code == 2 and "it is the source" in err
    assert sorted(os.listdir(folder)) == ["shop.db"]
