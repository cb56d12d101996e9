"""`tranlog verify --live`: what it refuses, and what it says where nobody answers.

Proves: a table whose filter cannot run over a snapshot is refused by name, and no verdict is never "equal".
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from fix_pipeline import take
from tranlog.ids import Seqno
from tranlog.pipeline.applying.live import VerdictDetail
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.service.commands.cli import main
from tranlog.service.commands.live_verifying import LiveResult, LiveVerdict, plan_repair, print_result
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import DIFFERS, EQUAL, NOT_JUDGED

CONFIG = """
[log]
dir = "log"
[source]
kind = "sqlite"
path = "source.db"
[target]
kind = "sqlite"
path = "target.db"
[pipeline]
name = "p"
{more}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with apsw.Connection("source.db") as db:
        db.execute("CREATE TABLE items(id INTEGER PRIMARY KEY, n)")
    (tmp_path / "tranlog.toml").write_text(CONFIG.format(more=""))
    assert main(["capture", "--once"]) == 0
    options = TargetOptions(kind="sqlite", path="target.db")
    with closing(open_target(options)) as target:
        target.positions.ensure_tables()
    take(options, ShardPlan(channels=1))
    return tmp_path


def live(*words: str) -> int:
    return main(["verify", "--live", "--timeout", "0", *words])


@pytest.mark.long
def test_what_cannot_be_verified_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert live("--pipeline", "other") == 2
    assert "no pipeline of this name has run" in capsys.readouterr().err
    assert live("--tables", "main.items,main.none") == 2
    assert "main.none" in capsys.readouterr().err
    for filters, words in (
        ('[[filter]]\nkind = "batch"\nfunction = "json:loads"', ("main.items", "cannot run over a snapshot")),
        ('[[filter]]\nkind = "exclude"\ntables = ["main.items"]', ("main.items", "leave it out")),
    ):
        (folder / "tranlog.toml").write_text(CONFIG.format(more=filters))
        assert live("--tables", "main.items") == 2
        told = capsys.readouterr().err
        assert all(word in told for word in words), told
    for alone in (["--repair"], ["--pipeline", "p"]):
        assert main(["verify", *alone]) == 2
        assert "--live" in capsys.readouterr().err


@pytest.mark.long
def test_who_gets_no_answer_is_told_what_is_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert live("--json") == 1
    found = json.loads(capsys.readouterr().out)
    ((table,), equal, through) = found["tables"], found["equal"], found["verified_through"]
    assert (table["verdict"], equal, through) == ("not judged", False, -1)
    assert "waits for capture" in table["detail"]["why"]
    assert os.listdir("log/verify") == [], "nobody is asked any more"


@pytest.mark.long
def test_where_there_is_no_table_nothing_is_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tranlog.toml").write_text(CONFIG.format(more='[[filter]]\nkind = "exclude"\ntables = ["main.*"]'))
    assert live() == 1
    assert "nothing is judged" in capsys.readouterr().out
    assert live("--json") == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False
    assert main(["verify"]) == 1
    assert "equal" not in capsys.readouterr().out
    assert main(["verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False


def test_a_repair_loads_what_foreign_keys_at_the_target_join() -> None:
    """By the source's names; and nothing by which a table that is not the pipeline's would lose rows."""
    here = {("t", name): f"s.{name}" for name in ("a", "b", "c", "d")}
    keys = [(("t", "a"), ("t", "b")), (("t", "x"), ("t", "c")), (("t", "x"), ("t", "b"))]
    losing = {("t", "c"): [("t", "x"), ("t", "c")], ("t", "b"): [("t", "a")]}
    plan = plan_repair(["s.b", "s.c", "s.d"], here, keys, lambda name: losing.get(name, []))
    assert plan.tables == ("s.b", "s.a", "s.d")
    assert plan.references == (("s.a", "s.b"),)
    assert plan.refused.keys() == {"s.c"} and "rows of t.x, which" in plan.refused["s.c"]


def test_verdicts_are_printed_by_table(capsys: pytest.CaptureFixture[str]) -> None:
    detail = VerdictDetail(source_rows=3, target_rows=2, source_checksum="ab", differences=(("id=1", "missing"),))
    differs = LiveVerdict(table="a.b", verdict=DIFFERS, seqno=Seqno(7), detail=detail)
    equal = LiveVerdict(table="a.c", verdict=EQUAL, seqno=Seqno(7), verified_through=Seqno(7), detail=VerdictDetail())
    open_ = LiveVerdict(table="a.d", verdict=NOT_JUDGED, detail=VerdictDetail(why="it is being loaded"))
    print_result(LiveResult(equal=False, verified_through=Seqno(-1), tables=(differs, equal, open_)))
    assert capsys.readouterr().out.splitlines() == [
        "DIFFERS    a.b: at seqno 7, 3 rows at the source, 2 at the target",
        "           id=1: missing",
        "equal      a.c: at seqno 7, 0 rows, checksum ",
        "NOT JUDGED a.d: it is being loaded",
        "1 of 3 tables differ",
    ]
    print_result(
        LiveResult(equal=True, verified_through=Seqno(7), tables=(equal,), repaired=(differs,), loaded=("a.b",))
    )
    told = capsys.readouterr().out.splitlines()
    assert told[2:] == [
        "loaded again: a.b",
        "equal      a.c: at seqno 7, 0 rows, checksum ",
        "source and target are equal; verified through seqno 7",
    ]
    print_result(LiveResult(equal=False, verified_through=Seqno(-1), tables=(open_,)))
    assert capsys.readouterr().out.splitlines()[-1] == "no table differs, and not all are judged"
