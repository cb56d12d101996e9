"""`tranlog copy`, once and with `--follow`, where it does not begin: SQLite at both ends, without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest
import typer

from fix_rights import without_rights
from tranlog.errors import ConfigError
from tranlog.service.commands.cli import main
from tranlog.service.commands.copying import add_copy
from tranlog.service.config.config import load

WORDS = ("sqlite:///shop.db", "sqlite:///target.db")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_shop()
    return tmp_path


def make_shop() -> None:
    with closing(apsw.Connection("shop.db")) as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY); INSERT INTO items VALUES(1)")


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


def test_what_a_copy_leaves_out_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It was left out in silence, and "source and target are equal" was said."""
    with closing(apsw.Connection("shop.db")) as db:
        db.execute("CREATE VIRTUAL TABLE words USING fts5(w); CREATE TABLE _tranlog_mine(n)")
    for name, what in (
        ("words", "a virtual table"),
        ("_tranlog_mine", "a table with a name of capture's (_tranlog_…)"),
    ):
        assert main(["copy", "--tables", f"main.items,main.{name}", *WORDS]) == 2
        assert f"--tables = 'main.{name}': it is {what}, and is not copied" in capsys.readouterr().err
    assert not Path("target.db").exists() and not caplog.text
    assert main(["copy", *WORDS]) == 0
    assert "virtual table is not copied, nor what it stores table=main.words" in caplog.text
    assert "(_tranlog_…) is not copied, nor what it stores table=main._tranlog_mine" in caplog.text
    assert "words_" not in caplog.text
    os.unlink("target.db")
    caplog.clear()
    assert main(["copy", "--tables", "main.items", *WORDS]) == 0 and not caplog.text


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
    assert "tranlog --service NAME copy" in err
    assert Path("copy-of-shop", "tranlog.toml").read_text() == "# mine\n"


def app_that_notes() -> tuple[typer.Typer, list[Sequence[str]]]:
    """Return a program with the command alone, and the list of what it was to run, which it does not."""
    ran: list[Sequence[str]] = []
    app = typer.Typer()

    def run(words: Sequence[str]) -> int:
        ran.append(words)
        return 0

    add_copy(app, run)
    return app, ran


def test_a_second_copy_of_a_source_has_a_name_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It had the first one's folder, or in another folder its slot and server id."""
    app, ran = app_that_notes()
    for service in (None, "archive"):
        assert app(["--follow", *WORDS], standalone_mode=False, obj=(None, service)) == 0
        Path("target.db").unlink()
    assert [words[1] for words in ran] == ["copy-of-shop/tranlog.toml", "archive/tranlog.toml"]
    sources = [load(str(words[1]), environ={}).source for words in ran]
    assert [source and source.source_id for source in sources] == ["copy-of-shop", "archive"]
    with pytest.raises(ConfigError, match="a service's name is"):
        app(["--follow", *WORDS], standalone_mode=False, obj=(None, "a/b"))


def test_a_copy_goes_on_by_a_configuration_that_its_owner_has_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages name options to set in it; then it was said to be no copy, and to be removed, log and all."""
    app, ran = app_that_notes()
    words = ["--tables", "main.items", "--follow", *WORDS]
    assert app(words, standalone_mode=False) == 0
    file = Path("copy-of-shop", "tranlog.toml")
    text = file.read_text()
    changed = text.replace('ddl = "follow"', 'ddl = "ignore"').replace("[target]", "busy_timeout_s = 20\n\n[target]")
    for good in (changed, changed + '[[filter]]\nkind = "exclude"\ntables = ["main.x"]\n', "not TOML"):
        file.write_text(good)
        assert app(words, standalone_mode=False) == 0
    assert len(ran) == 4
    capsys.readouterr()
    for bad in (
        text.replace("shop.db", "other.db"),
        text.replace("target.db", "other.db"),
        text.replace("main.items", "main.other"),
    ):
        assert bad != text
        file.write_text(bad)
        code, err = refused(capsys, *words[:2], *WORDS)
        assert code == 2 and "it is no copy of this source" in err and file.read_text() == bad


def test_words_that_do_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused(capsys, "--identity", "key", *WORDS)
    assert code == 2 and "from a PostgreSQL" in err
    code, err = refused(capsys, "--tables", "items", *WORDS)
    assert code == 2 and "schema.table" in err
    code, err = refused(capsys, WORDS[0], WORDS[0])
    assert code == 2 and "it is the source" in err
    assert sorted(os.listdir(folder)) == ["shop.db"]


@pytest.mark.long
@pytest.mark.parametrize("tables", [(), ("main.items", "main.empty")])
def test_what_is_followed_is_made_first_empty_tables_too(folder: Path, tables: tuple[str, ...]) -> None:
    """docs/operations.md, "Copying tables without a log"; a start that was interrupted before its configuration."""
    with closing(apsw.Connection("shop.db")) as db:
        db.execute("CREATE TABLE empty(id INTEGER PRIMARY KEY, item REFERENCES items); CREATE TABLE other(n)")
    app, ran = app_that_notes()
    words = [*(["--tables", ",".join(tables)] if tables else []), "--follow", *WORDS]
    for _ in range(2):
        assert app(words, standalone_mode=False) == 0
        with closing(apsw.Connection("target.db")) as db:
            made = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        assert made == {"items", "empty", *([] if tables else ["other"])}
        Path("copy-of-shop", "tranlog.toml").unlink()
    assert [one[1:3] for one in ran] == [["copy-of-shop/tranlog.toml", "run"]] * 2


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tables", "main.nothing_like_that", *WORDS), 2, "main.nothing_like_that"),
        (("--tables", "main.items,main.nothing_like_that", *WORDS), 2, "main.nothing_like_that"),
        (("sqlite:///shop.db", "oracle:///new.db"), 2, "a database is named by"),
        (("oracle:///shop.db", "sqlite:///new.db"), 2, "a database is named by"),
        (("sqlite:///missing.db", "sqlite:///new.db"), 4, "missing.db"),
        (("sqlite:///notes.txt", "sqlite:///new.db"), 4, "notes.txt"),
        (("sqlite:///shop.db", "sqlite:///./shop.db"), 2, "it is the source"),
        (("sqlite:///shop.db", "sqlite:///link.db"), 2, "it is the source"),
        (("sqlite:///shop.db", "sqlite:///no/folder/new.db"), 4, "no/folder/new.db"),
        (("sqlite:///empty.db", "sqlite:///new.db"), 2, "it has no table"),
        (("sqlite:///wal.db", "sqlite:///no/folder/new.db"), 4, "no/folder/new.db"),
    ],
)
def test_a_refused_copy_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], follow: bool, words: tuple[str, ...], code: int, said: str
) -> None:
    """Neither a target nor a file beside the source, nor a folder of a configuration."""
    Path("notes.txt").write_text("no database\n" * 100)
    os.symlink("shop.db", "link.db")
    apsw.Connection("empty.db").execute("PRAGMA user_version = 1")
    with closing(apsw.Connection("wal.db")) as db:
        db.execute("PRAGMA journal_mode = WAL; CREATE TABLE items(id INTEGER PRIMARY KEY)").fetchall()
    before = sorted(str(one) for one in folder.rglob("*"))
    done = main(["copy", *["--follow"] * follow, *words])
    shown = capsys.readouterr()
    assert (int(done), said in shown.err + shown.out) == (code, True), shown
    assert sorted(str(one) for one in folder.rglob("*")) == before


@pytest.mark.parametrize("follow", [False, True])
def test_a_folder_that_may_not_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], follow: bool
) -> None:
    with TemporaryDirectory() as place:  # which others reach
        monkeypatch.chdir(place)
        make_shop()
        Path("closed").mkdir()
        with without_rights(Path(place)):
            words = ("sqlite:///shop.db", "sqlite:///closed/new.db")
            code, shown = main(["copy", *["--follow"] * follow, *words]), capsys.readouterr()
        assert (int(code), "closed" in shown.err + shown.out) == (4, True), shown
        assert sorted(str(one) for one in Path().rglob("*")) == ["closed", "shop.db"]
        monkeypatch.undo()
