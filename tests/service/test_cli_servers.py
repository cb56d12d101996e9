"""The commands over real servers, as far as they need no Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tranlog.service.commands import cli
from tranlog.source.sqlite import connect
from tranlog.testing.servers import MariaDbAddress, MariaDbServer, PostgresAddress, PostgresServer

pytestmark = pytest.mark.integration


@pytest.fixture
def conf(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    monkeypatch.setenv("SOURCE_PASSWORD", mariadb.password)
    file = tmp_path / "tranlog.toml"
    file.write_text(f"""
[source]
kind = "mariadb"
load = "none"
host = "{mariadb.host}"
port = {mariadb.port}
user = "{mariadb.user}"
password_env = "SOURCE_PASSWORD"
databases = ["{mariadb_database}"]
[log]
dir = "log"
[target]
kind = "postgres"
dsn = "{postgres.dsn(postgres_database)}"
""")
    return file


def run(conf: Path, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(["--conf", str(conf), *line.split()])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return int(code), told.out, told.err


def test_mariadb_to_postgres(
    conf: Path,
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Capture, the target's tables from the log's table maps, verify by canonical values, status, and a reset."""
    assert run(conf, "capture --once", capsys)[0] == 0
    mariadb.execute(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(8,2))", database=mariadb_database
    )
    mariadb.execute("INSERT INTO item VALUES (1, 'näh', 1.50), (2, NULL, -3)", database=mariadb_database)
    code, out, err = run(conf, "capture --once --json", capsys)
    assert code == 0, err
    assert json.loads(out)["transactions"] >= 2

    code, out, err = run(conf, "tables create", capsys)
    assert code == 0 and "CREATE TABLE" in out, err
    code, out, _ = run(conf, "verify", capsys)
    assert code == 1 and "2 rows at the source, 0 at the target" in out
    postgres.execute(
        f"SET search_path = \"{mariadb_database}\"; INSERT INTO item VALUES (1, 'näh', 1.50), (2, NULL, -3)",
        database=postgres_database,
    )
    code, out, err = run(conf, "verify", capsys)
    assert (code, out.splitlines()[-1]) == (0, "source and target are equal"), out + err

    code, out, err = run(conf, "status --json", capsys)
    assert code == 0, err
    state = json.loads(out)
    assert state["source"]["kind"] == "mariadb" and state["source"]["now_at"]
    assert state["source"]["captured_event_id"].startswith(state["source"]["now_at"])
    assert mariadb.password == "" or mariadb.password not in out

    # A cleared log goes on where it ended, although the options say "now".
    assert run(conf, "position set 0", capsys)[0] == 0
    code, out, _ = run(conf, "reset -y --json", capsys)
    last = json.loads(out)["mark"]["seqno"]
    mariadb.execute("INSERT INTO item VALUES (3, 'c', 0)", database=mariadb_database)
    code, out, err = run(conf, "capture --once --json", capsys)
    assert code == 0, err
    done = json.loads(out)
    assert done["transactions"] == 1 and done["log_ends_at"] == last + 2


def test_servers_that_are_away(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each gives code 4 and one line; a status still shows what it can."""
    assert run(conf, "capture --once", capsys)[0] == 0
    text = conf.read_text()
    away = conf.with_name("away.toml")
    away.write_text(
        "".join(
            "port = 1\nconnect_timeout_s = 1\nreconnect_s = 0\n" if line.startswith("port") else f"{line}\n"
            for line in text.splitlines()
        )
    )
    code, out, err = run(away, "capture --once", capsys)
    assert code == 4 and "does not answer" in err, err
    code, out, _ = run(away, "status --no-watch", capsys)
    assert code == 4 and "source    PROBLEM" in out and "log       " in out and "pipeline  " in out

    away.write_text(
        "".join(
            'dsn = "postgresql://postgres@127.0.0.1:1/x"\n' if line.startswith("dsn") else f"{line}\n"
            for line in text.splitlines()
        )
    )
    for command in ("position get", "verify", "tables create"):
        code, out, err = run(away, command, capsys)
        assert code == 4 and err.splitlines()[-1].startswith("tranlog: the target at "), err
    code, out, _ = run(away, "status --no-watch", capsys)
    assert code == 4 and "target    PROBLEM" in out and "source    mariadb" in out


PASSWORD = "s3cret/@:word"


def test_sqlite_to_mariadb(
    mariadb_target: MariaDbServer, mariadb_target_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other server as target: a user with a password that no command shows, tables, verify, status, and away."""
    own = mariadb_target_database
    mariadb_target.execute(f"CREATE USER {own} IDENTIFIED BY '{PASSWORD}'")
    mariadb_target.execute(f"GRANT ALL ON {own}.* TO {own}")
    mariadb_target.execute(f"GRANT ALL ON main.* TO {own}")
    conf = tmp_path / "tranlog.toml"
    dsn = mariadb_target.dsn(own).replace("//root@", f"//{own}@")
    conf.write_text(
        f'[source]\nkind = "sqlite"\nload = "none"\npath = "source.db"\n[log]\ndir = "log"\n'
        f'[target]\nkind = "mariadb"\ndsn = "{dsn}"\npassword_file = "password"\n'
    )
    (tmp_path / "password").write_text(PASSWORD + "\n")
    with contextlib.closing(connect(tmp_path / "source.db")) as source:
        source.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price NUMERIC)")
        source.execute("INSERT INTO item VALUES (1, 'näh', 1.5), (2, NULL, -3)")
    shown = ""
    for line, wanted, told in (
        ("capture --once", 0, ""),
        ("tables create", 0, "CREATE TABLE IF NOT EXISTS `main`.`item`"),
        ("verify", 1, "2 rows at the source, 0 at the target"),
        ("status --no-watch", 0, f"mariadb://{own}@127.0.0.1:{mariadb_target.port}/{own}"),
    ):
        code, out, err = run(conf, line, capsys)
        assert code == wanted and told in out, (line, out, err)
        shown += out + err
    mariadb_target.execute("INSERT INTO main.item VALUES (1, 'näh', '1.5'), (2, NULL, '-3')")
    code, out, err = run(conf, "verify", capsys)
    assert (code, out.splitlines()[-1]) == (0, "source and target are equal"), out + err
    (tmp_path / "password").write_text("another")
    for line in ("position get", "verify", "tables create"):
        code, out, err = run(conf, line, capsys)
        assert code == 4 and err.splitlines()[-1].startswith("tranlog: the target at mariadb://"), err
        shown += out + err
    conf.write_text(conf.read_text().replace(f":{mariadb_target.port}/", ":1/"))
    code, out, err = run(conf, "status --no-watch", capsys)
    assert code == 4 and "target    PROBLEM" in out
    assert PASSWORD not in shown + out + err
    mariadb_target.execute(f"DROP USER {own}")


def test_what_is_said_of_tables_of_a_postgres_at_a_postgres(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its log holds no DDL that a target runs, so no table is made that apply would stop at."""
    dsn = postgres_source.dsn(postgres_source_database)
    conf = tmp_path / "tranlog.toml"
    conf.write_text(f"""
source = {{ kind = "postgres", dsn = "{dsn}", identity = "key", publication = "mine" }}
log = {{ dir = "log" }}
target = {{ kind = "postgres", dsn = "{dsn}" }}
""")
    sql = "CREATE TABLE item (id INT PRIMARY KEY); CREATE PUBLICATION mine FOR TABLE item"
    postgres_source.execute(sql, database=postgres_source_database)
    code, out, err = run(conf, "tables create --from source", capsys)
    assert code == 0, err
    assert (out, err) == ("-- public.item already exists\n", "")


def test_another_history_is_accepted_by_word_alone(
    conf: Path,
    start_mariadb: Callable[..., MariaDbServer],
    mariadb_database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that was reset and counts on: exit code 3; `--accept-server` goes on; elsewhere it is refused."""
    server = start_mariadb()
    monkeypatch.setenv("SOURCE_PASSWORD", "")
    text = conf.read_text()
    for line in (line for line in text.splitlines() if line.startswith(("host", "port", "user"))):
        text = text.replace(line, f"{line.split()[0]} = {json.dumps(getattr(server, line.split()[0]))}")
    conf.write_text(text)
    for value in (1, 2):
        if value == 2:
            server.execute(f"DROP DATABASE {mariadb_database}")
        server.execute("RESET MASTER")
        server.execute(f"CREATE DATABASE {mariadb_database}")
        server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=mariadb_database)
        server.execute(f"INSERT INTO t VALUES ({value})", database=mariadb_database)
        if value == 1:
            assert run(conf, "capture --once", capsys)[0] == 0
            server.execute("INSERT INTO t VALUES (10)", database=mariadb_database)
            assert run(conf, "capture --once", capsys)[0] == 0
    server.execute("INSERT INTO t VALUES (20)", database=mariadb_database)
    server.execute("INSERT INTO t VALUES (21)", database=mariadb_database)
    code, _, err = run(conf, "capture --once", capsys)
    assert code == 3 and "is another transaction" in err and "--accept-server" in err
    code, out, err = run(conf, "capture --once --accept-server --json", capsys)
    assert code == 0, err
    assert json.loads(out)["transactions"] == 2, "that it was accepted, and the row 21"
    assert run(conf, "capture --once", capsys)[0] == 0, "the word is said once"
    conf.write_text(
        '[source]\nkind = "sqlite"\nload = "none"\n'
        'path = "shop.db"\n[log]\ndir = "other"\n[target]\nkind = "null"\npath = "t"\n'
    )
    connect(conf.parent / "shop.db").close()
    code, _, err = run(conf, "capture --once --accept-server", capsys)
    assert code == 2 and "only a MariaDB source" in err
