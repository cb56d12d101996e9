"""The table [spark] and `tranlog spark-package`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tranlog.errors import ConfigError
from tranlog.pipeline.spark.package import check_package
from tranlog.service.commands import cli
from tranlog.service.config.config import load

BASE = '[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "t.db"\n[pipeline]\nmaster = "spark://host:7077"\n'


def written(path: Path, text: str) -> str:
    file = path / "tranlog.toml"
    file.write_text(BASE + text)
    return str(file)


def test_the_table_spark(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    more = 'package = "p.zip"\nslots_wait_s = "2m"\n[spark.settings]\n"spark.executor.memory" = "1g"\n'
    engine = load(written(tmp_path, f'[spark]\nsecret_file = "secret"\n{more}'), environ={}).pipeline.apply.engine
    assert (engine.secret, engine.package, engine.slots_wait_s) == ("hush", str(tmp_path / "p.zip"), 120)
    assert engine.settings == {"spark.executor.memory": "1g"}
    engine = load(written(tmp_path, '[spark]\nsecret_env = "S"\n'), environ={"S": "h"}).pipeline.apply.engine
    assert engine.secret == "h"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"spark\.secret.*this cluster's secret is needed"),
        ('[spark]\nsecret = "a"\nsecret_env = "B"\n', r"secret_env.*given together with secret"),
        ('[spark]\nsecret_env = "B"\n', "no such environment variable"),
        ('[spark]\nsecret = "a"\n[spark.settings]\n"executor.memory" = "1g"\n', r'settings begin with "spark\."'),
        ('[spark]\nsecret = "a"\nworkers = 2\n', "workers"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(written(tmp_path, text), environ={})


@pytest.mark.long
def test_the_command_writes_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["spark-package", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert check_package("tranlog-spark.zip") == str(tmp_path / "tranlog-spark.zip")
    assert told["size"] == (tmp_path / "tranlog-spark.zip").stat().st_size
    assert any(library.startswith("msgspec ") for library in told["note"]["libraries"])
    assert cli.main(["spark-package", "x.tar.gz"]) == 2
    assert "end it by .zip" in capsys.readouterr().err
