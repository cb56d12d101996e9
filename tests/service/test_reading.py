"""The origins of a configuration's values, their precedence, and what an error of each says: docs/configuration.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tranlog.errors import ConfigError
from tranlog.service.config.config import Config, load, reading

FILE = """\
[log]
dir = "log"

[source]
kind = "mariadb"

[target]
kind = "postgres"
dsn = "postgresql://till@127.0.0.1/shop"

[pipeline]
channels = 2
retry_s = "1m"
"""


def read(
    folder: Path,
    environ: Mapping[str, str],
    *,
    file: str = FILE,
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    (folder / "tranlog.toml").write_text(file)
    return load(str(folder / "tranlog.toml"), environ=environ, options=options or {})


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    return folder


def test_the_first_origin_that_gives_a_value_counts(tmp_path: Path, secrets: Path) -> None:
    """docs/configuration.md: command line, environment, secrets, file, default; each is taken away in turn."""
    (secrets / "pipeline__channels").write_text("3\n")
    environ = {"TRANLOG_SECRETS_DIR": str(secrets), "TRANLOG_PIPELINE__CHANNELS": "4"}

    def found(**more: Any) -> tuple[int, str]:
        config = read(tmp_path, environ, **more)
        read_again = reading(config.file, environ=environ, options=more.get("options", {}))
        read_again.read()
        given = read_again.given.get("pipeline.channels")
        origin = "default" if given is None else read_again.origin("pipeline.channels")
        return config.pipeline.apply.channels, origin

    assert found(options={"pipeline.channels": ("--channels", 5)}) == (5, "--channels")
    assert found() == (4, "TRANLOG_PIPELINE__CHANNELS")
    del environ["TRANLOG_PIPELINE__CHANNELS"]
    assert found() == (3, str(secrets / "pipeline__channels"))
    (secrets / "pipeline__channels").unlink()
    assert found() == (2, f"{tmp_path}/tranlog.toml:12")
    assert found(file=FILE.replace("channels = 2\n", "")) == (4, "default")


def test_texts_become_values(tmp_path: Path, secrets: Path) -> None:
    (secrets / "source__password").write_text("1234\n")
    (secrets / "SOURCE__USER").write_text("till\n")
    config = read(
        tmp_path,
        {
            "TRANLOG_SECRETS_DIR": str(secrets),
            "TRANLOG_PLAIN": "1",
            "TRANLOG_LOG__BUFFER_BYTES": "1MiB",
            "TRANLOG_LOG__CHECKSUM": "false",
            "TRANLOG_LOG__RETENTION_S": "86400",
            "TRANLOG_LOG__DIR": "elsewhere",
            "TRANLOG_SOURCE__DATABASES": '["a", "b"]',
            "TRANLOG_SHARDS__ASSIGNMENT": "hash",
            "TRANLOG_SHARDS__CHANNELS": '{"Shop" = 1}',
            "TRANLOG_PIPELINE__MASTER": "local[8]",
        },
    )
    assert (config.log.buffer_bytes, config.log.checksum, config.log.retention_s) == (1 << 20, False, 86_400)
    assert config.log_dir == str(tmp_path / "elsewhere")
    source: Any = config.source
    assert (source.password, source.user, source.databases) == ("1234", "till", ("a", "b"))
    assert config.pipeline.apply.plan.assignment.value == "hash"
    assert config.pipeline.apply.plan.channels == {"Shop": 1}
    assert config.pipeline.apply.master == "local[8]"
    assert config.pipeline.apply.retry_s == 60


def test_a_section_may_be_in_the_environment_alone(tmp_path: Path) -> None:
    environ = {"TRANLOG_SOURCE__KIND": "sqlite", "TRANLOG_SOURCE__PATH": "s.db"}
    config = read(tmp_path, environ, file='[log]\ndir = "log"\n')
    assert config.source is not None and config.source.where == str(tmp_path / "s.db")


def test_every_origin_may_give_the_kind_of_source(tmp_path: Path, secrets: Path) -> None:
    """By a variable in small letters, or by a secret's file, "must be one of" the kind in the file was said."""
    text = FILE.replace('kind = "mariadb"', 'kind = "mariadb"\npath = "s.db"')
    (secrets / "source__kind").write_text("sqlite\n")
    for environ in ({"TRANLOG_source__kind": "sqlite"}, {"TRANLOG_SECRETS_DIR": str(secrets)}):
        source = read(tmp_path, environ, file=text).source
        assert source is not None and source.kind == "sqlite"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"TRANLOG_PIPELINE__CHANELS": "4"},
            "TRANLOG_PIPELINE__CHANELS: pipeline.chanels = '(hidden)': unknown key; did",
        ),
        ({"TRANLOG_PIPLINE__CHANNELS": "4"}, "TRANLOG_PIPLINE__CHANNELS = '(hidden)': unknown key; did you mean 'pipe"),
        (
            {"TRANLOG_PIPELINE_CHANNELS": "4"},
            "TRANLOG_PIPELINE_CHANNELS = '(hidden)': two underscores part a section from its key: PIPELINE__CHANNELS",
        ),
        ({"TRANLOG_PIPELINE__DDL": "stop"}, "TRANLOG_PIPELINE__DDL: pipeline.ddl = 'stop': unknown key; it belongs to"),
        ({"TRANLOG_PIPELINE__CHANNELS": "0"}, "TRANLOG_PIPELINE__CHANNELS: pipeline.channels = 0: must be 1 to"),
        ({"TRANLOG_PIPELINE__CHANNELS": "x"}, "TRANLOG_PIPELINE__CHANNELS: pipeline.channels = 'x': input should be"),
        ({"TRANLOG_PIPELINE__RETRY_S": "5MiB"}, "TRANLOG_PIPELINE__RETRY_S: pipeline.retry_s = '5MiB': a number, or"),
        ({"TRANLOG_PIPELINE": "4"}, "TRANLOG_PIPELINE: pipeline. = '(hidden)': unknown key; known keys are name"),
        (
            {"TRANLOG_PIPELINE__CHANNELS": "4", "TRANLOG_pipeline__channels": "5"},
            "TRANLOG_pipeline__channels = '(hidden)': TRANLOG_PIPELINE__CHANNELS differs",
        ),
        (
            {"TRANLOG_TARGET__PASSWORD": "hush", "TRANLOG_TARGET__PASSWORD_ENV": "HOME"},
            "TRANLOG_TARGET__PASSWORD_ENV: target.password_env: given together with password of TRANLOG_TARGET__",
        ),
        ({"TRANLOG_TARGET__DSN": "host='hush"}, "TRANLOG_TARGET__DSN: target.dsn = '(hidden)': not a connection"),
        ({"TRANLOG_TARGET__USER": "root"}, "TRANLOG_TARGET__USER: target.user = 'root': the dsn names the user 'till'"),
        (
            {"TRANLOG_SOURCE__DSN": "postgresql://till:hush@x/y"},
            "TRANLOG_SOURCE__DSN: source.dsn = '(hidden)': unknown key; it belongs to [target]",
        ),
        ({"TRANLOG_SECRETS_DIR": "/no/such"}, "TRANLOG_SECRETS_DIR = '/no/such': cannot be read"),
        ({"TRANLOG_FILTER": "[]"}, "TRANLOG_FILTER = '(hidden)': filters stand in the file alone: [[filter]]"),
        ({"TRANLOG_FILTER__0__SALT": "hush"}, "TRANLOG_FILTER__0__SALT = '(hidden)': filters stand in the file alone"),
    ],
)
def test_an_error_names_its_origin(environ: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, {"TRANLOG_TARGET__PASSWORD": "hush"} | environ if "TARGET__DSN" in told else environ)
    assert str(raised.value).startswith(f"configuration: {told}")
    assert "hush" not in str(raised.value)


def test_origins_that_contradict_are_both_named(tmp_path: Path, secrets: Path) -> None:
    (secrets / "target__password").write_text("hush")
    file = FILE.replace("[pipeline]", 'password_env = "PW"\n[pipeline]')
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, {"TRANLOG_SECRETS_DIR": str(secrets), "PW": "hush"}, file=file)
    where = f"{tmp_path}/tranlog.toml:11: target.password_env"
    assert f"{where}: given together with password of {secrets}/target__password; give one of them" in str(raised.value)
    file = FILE.replace("[pipeline]", 'URL = "jdbc:postgresql://elsewhere/shop"\n[pipeline]')
    with pytest.raises(ConfigError, match=r"toml:11: target\.URL = '\(hidden\)': dsn is given too and differs"):
        read(tmp_path, {}, file=file)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_statements_of_several_lines(end: str, tmp_path: Path) -> None:
    text = '''\
[log]
dir = """
[pipeline]
channels = 0
"""
[shards]
serial = [
  "a",  # ] }
]
map = {a = "b"}
[[filter]]
kind = "delay"
delay_s = 1
[[filter]]
kind = "drop"
table = "a.b"
columns = ["c"]
[spark.settings]
"spark.a" = "b"
'''
    (tmp_path / "x.toml").write_text(text, newline=end)
    lines = reading(str(tmp_path / "x.toml")).lines
    assert {key: line for key, line in lines.items() if key.count(".") and "settings" not in key} == {
        "log.dir": 2,
        "shards.serial": 7,
        "shards.map": 10,
        "shards.map.a": 10,
        "filter 1.kind": 12,
        "filter 1.delay_s": 13,
        "filter 2.kind": 15,
        "filter 2.table": 16,
        "filter 2.columns": 17,
    }
    assert (lines["spark.settings"], lines["spark.settings.spark.a"], lines["filter 2"]) == (18, 19, 14)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[shards]\nserial = [\n "a",\n 3]', "x.toml:7: shards.serial = 3: input should be a valid string"),
        ('[pipeline]\nbeside = ["a", true]', "x.toml:7: pipeline.beside = True: input should be a valid string"),
        ('load = ["a.b", 3]', "x.toml:6: source.load = 3: input should be a valid string"),
        ("load = 3", "x.toml:6: source.load = 3: must be one of all, none"),
        (
            '[group]\nname = "g"\nnode = "n"\nlisten = "a:1"\n[group.clients]\nann = ["read", "x"]',
            "x.toml:11: group.clients.ann = 'x': must be one of read, write, operate",
        ),
    ],
)
def test_an_element_of_a_list_has_its_keys_line(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'[log]\ndir = "l"\n[source]\nkind = "sqlite"\npath = "x"\n{text}\n')
    with pytest.raises(ConfigError) as raised:
        load(str(path), environ={})
    assert told in str(raised.value)


@pytest.mark.long
def test_pydantic_is_imported_only_where_a_configuration_is_read() -> None:
    """Decision 0029: neither `import tranlog` nor `tranlog --help` pays for it."""
    code = """
import sys
import tranlog
from tranlog.service.commands import cli
from tranlog.service.thl import thl
assert cli.main(["--help"]) == 0 and thl.main(["--help"]) == 0
assert "pydantic" not in sys.modules and "pydantic_settings" not in sys.modules
import tranlog.service.config.reading
assert "pydantic_settings" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
