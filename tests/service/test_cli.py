"""The `tranlog` command, as far as it needs neither Java nor a server."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from fix_effort import Effort, few_of
from tranlog.disk import OsDisk
from tranlog.errors import ConfigError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.cleared import MARK_NAME, read_mark
from tranlog.log.writing.log import Log, hold, read_holds
from tranlog.service.commands import cli
from tranlog.service.config.config import load
from tranlog.service.config.exposure import Role
from tranlog.service.config.urls import following, source_url, target_url
from tranlog.service.frame.progress import SHOWN_AFTER_S
from tranlog.service.process.operating import OperatingOptions
from tranlog.service.thl import thl
from tranlog.source.sqlite import connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import ChannelRow

pytestmark = pytest.mark.long

PROGRAM = Path(sys.executable).with_name("tranlog")
COMMANDS = (
    *(
        "",
        "init",
        "config",
        "config check",
        "config show",
        "config schema",
        "capture",
        "apply",
        "run",
        "status",
        "top",
        "doctor",
        "verify",
        "reset",
    ),
    *("tables", "tables create", "position", "position get", "position set", "position reset"),
    *("hold", "hold list", "hold drop"),
    *("log", "log segments", "log info", "log add", "log trim"),
    *("queue", "queue containers", "queue dump", "queue verify", "queue list", "queue pinned"),
    *("queue in-doubt", "queue in-doubt list", "queue in-doubt commit", "queue in-doubt rollback"),
)

GROUPS = ("", "tables", "position", "hold", "log", "queue", "queue in-doubt")
"""Those that only name other commands."""


class Shop:
    """A folder with a configuration, and the commands run in it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, line: str) -> tuple[int, str, str]:
        code = cli.main(line.split())
        told = self._capsys.readouterr()
        assert "Traceback" not in told.err, told.err
        return int(code), told.out, told.err

    def json(self, line: str, code: int = 0) -> dict:
        found, out, err = self(f"{line} --json")
        assert found == code, err
        return json.loads(out)

    def said(self) -> str:
        """Return what was printed since the last command."""
        return self._capsys.readouterr().out

    def write(self, *statements: str) -> None:
        db = connect(self.path / "source.db")
        for statement in statements:
            db.execute(statement)
        db.close()

    def target(self) -> apsw.Connection:
        return apsw.Connection(str(self.path / "target.db"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    """A shop with its default configuration and a source of two tables, one without a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    made = Shop(tmp_path, capsys)
    assert made("--service shop init")[0] == 0
    conf = tmp_path / "tranlog.toml"
    conf.write_text(conf.read_text().replace('# load = "all"', 'load = "none"'))
    made.write("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)", "CREATE TABLE line (a, b)")
    return made


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "WATCH_S", 0.01)


# --- help and usage ---


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    assert "Example:\n    tranlog " in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        one
        for one in COMMANDS
        if one not in ("", "config", "tables", "position", "hold", "log", "source", "queue", "queue in-doubt")
    ],
)
def test_every_command_speaks_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", few_of([["thl.thl"], ["commands.cli", "log", "add"]]))
def test_help_names_its_options_in_one_order(arguments: list[str], effort: Effort) -> None:
    """The library has them in a set, whose order is drawn at each start."""
    module, *words = arguments
    code = f"import sys; from tranlog.service.{module} import main; sys.exit(main({[*words, '--help']!r}))"
    for seed in range(effort(2, 4, 4)):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert "  -h, -help, --help  " in done.stdout, f"PYTHONHASHSEED={seed}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "Usage: tranlog"),
        ("tables", "Usage: tranlog tables"),
        ("position", "Usage: tranlog position"),
        ("log", "Usage: tranlog log"),
        ("aply", "no such command 'aply'"),
        ("apply --untill now", "no such option: --untill, perhaps --until"),
        ("apply --until soon", "--until: 'soon' is neither a seqno nor the word now"),
        ("apply --channels 0", "channels = 0: must be 1 to"),
        ("apply --channels 4 --master local[2]", "4 channels need 4 slots"),
        ("apply --pipeline a/b", "--pipeline: pipeline.name = 'a/b'"),
        ("position set", "missing argument 'SEQNO'"),
        ("position set many", "invalid value for 'SEQNO'"),
        ("verify --rows -1", "invalid value for '--rows' / '-rows'"),
        ("tables create --from air", "invalid value for '--from' / '-from'"),
        ("reset --after 5", "--after: not a GTID: '5'"),
        ("--conf nowhere.toml status", "nowhere.toml: there is no such file"),
        ("--service other status", "is the configuration of 'shop'"),
    ],
)
def test_bad_usage_has_code_2(line: str, told: str, shop: Shop) -> None:
    code, out, err = shop(line)
    assert (code, out) == (2, "")
    assert told in err


# --- the configuration ---


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[pipline]\nchannels = 1\n", "tranlog.toml: pipline = {'channels': 1}: unknown key; did you mean 'pipeline'?"),
        ("[pipeline]\nchanels = 1\n", "tranlog.toml: pipeline.chanels = 1: unknown key; did you mean 'channels'?"),
        ("[pipeline]\nchannels = 0\n", "tranlog.toml: pipeline.channels = 0: must be 1 to "),
        ('[pipeline]\nddl = "ignore"\n', "tranlog.toml: pipeline.ddl = 'ignore': unknown key; it belongs to [target]"),
        ('[pipeline]\nmaster = "local[2]"\n', "pipeline.master = 'local[2]': 4 channels need 4 slots"),
        ("[log]\nsegment_bytes = 10\n", "tranlog.toml: log.segment_bytes = 10: a segment has at least 1000 bytes"),
        ('[log]\nretention_s = "long"\n', "tranlog.toml: log.retention_s = 'long': a number, or one with a unit"),
        ('[source]\nkind = "oracle"\n', "tranlog.toml: source.kind = 'oracle': must be one of sqlite, mariadb"),
        ('[source]\nkind = "sqlite"\n', "tranlog.toml: source.path: is missing and has no default"),
        ('[source]\nkind = "mariadb"\nport = 0\n', "tranlog.toml: source.port = 0: a port is a number"),
        (
            '[source]\nkind = "mariadb"\npassword = 5\n',
            "tranlog.toml: source.password = '(hidden)': input should be a valid string",
        ),
        ('[target]\nkind = "mysql"\n', "tranlog.toml: target.kind = 'mysql': must be one of sqlite, postgres"),
        ('[target]\nkind = "postgres"\n', "tranlog.toml: target.dsn: a PostgreSQL target needs postgresql://"),
        ('[target]\nkind = "sqlite"\npath = "t"\nddl = "map"\n', "target.ddl = 'map': must be one of stop, ignore"),
        (
            '[target]\nkind = "sqlite"\npath = "t"\npassword = "x"\n',
            "target.password = '(hidden)': a sqlite target has",
        ),
        ('[target]\nkind = "postgres"\ndsn = "x"\npassword_env = "NOT_SET"\n', "there is no such environment variable"),
        ('[target]\nkind = "postgres"\ndsn = "x"\npassword_file = "none"\n', "/none': cannot be read"),
        ('[shards]\nrule = "map"\n', "tranlog.toml: shards.map: is missing, and the rule"),
        ('[shards]\nmap = {a = "b"}\n', "only serves the rule"),
        ("[shards]\nchannels = {a = 9}\n", "tranlog.toml: shards.channels = {'a': 9}: channels are numbered 0 to 3"),
        ("[log]\n", "tranlog.toml: log.dir: is missing and has no default"),
    ],
)
def test_a_wrong_configuration_names_file_key_value_and_reason(wrong: str, told: str, tmp_path: Path) -> None:
    """A configuration with an unknown key or impossible value is refused."""
    parts = {
        "log": '[log]\ndir = "log"\n',
        "source": '[source]\nkind = "sqlite"\npath = "s.db"\n',
        "target": '[target]\nkind = "sqlite"\npath = "t.db"\n',
    }
    section = wrong[1 : wrong.index("]")]
    if section == "log" and wrong != "[log]\n":
        wrong += 'dir = "log"\n'
    text = wrong + "".join(part for name, part in parts.items() if name != section)
    (tmp_path / "tranlog.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(str(tmp_path / "tranlog.toml"), environ={})
    assert told in re.sub(r"\.toml:\d+:", ".toml:", str(raised.value)), str(raised.value)


def test_a_wrong_configuration_ends_with_code_2(shop: Shop) -> None:
    with open("tranlog.toml", "a") as file:
        file.write("chanels = 2\n")
    for command in ("capture", "apply", "run", "status", "verify", "tables create", "position get", "reset -y"):
        code, out, err = shop(command)
        assert (code, out) == (2, ""), command
        assert "pipeline.chanels = 2: unknown key; did you mean 'channels'?" in err


def test_the_configuration_is_checked_and_shown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop("config check") == (0, "tranlog.toml is a configuration of service shop\n", "")
    monkeypatch.setenv("TRANLOG_PIPELINE__CHANNELS", "8")
    monkeypatch.setenv("TRANLOG_SPARK__SECRET", "hush")
    code, out, _ = shop("config show --origin")
    lines = out.splitlines()
    number = Path("tranlog.toml").read_text().split("\n").index('dir = "log"  # The log\'s directory.') + 1
    assert code == 0 and "hush" not in out
    assert f'log.dir = "{shop.path}/log"  # tranlog.toml:{number}' in lines
    assert "pipeline.channels = 8  # TRANLOG_PIPELINE__CHANNELS" in lines
    assert "spark.secret = (hidden)  # TRANLOG_SPARK__SECRET" in lines
    assert 'source.source_id = "shop"  # default' in lines
    assert "pipeline.channels = 8" in shop("config show")[1].splitlines()
    assert {"key": "pipeline.resubmit", "value": "5", "origin": "default"} in shop.json("config show")["values"]
    assert shop.json("config schema")["$defs"]["pipeline"]["properties"]["channels"]["default"] == 4
    with open("tranlog.toml", "a") as file:
        file.write('metrics = "0.0.0.0:4713"\n[[filter]]\nkind = "mask"\ntable = "a.b"\ncolumns = ["c"]\nby = "hash"\n')
        file.write('salt = "hush"\n')
    out = shop("config show --origin")[1]
    assert "filter 1.salt = (hidden)  # tranlog.toml:" in out and 'filter 1.columns = ["c"]  # tranlog.toml:' in out
    code, out, err = shop("config check")
    assert (code, out) == (2, "") and "others reach this address, so it needs TLS" in err
    assert re.search(r"tranlog\.toml:\d+: pipeline\.metrics = '0\.0\.0\.0:4713': ", err)
    assert not Path("log").exists() and not Path("target.db").exists()


def test_init_never_overwrites(shop: Shop) -> None:
    before = Path("tranlog.toml").read_text()
    code, _, err = shop("init")
    assert code == 2 and "already exists" in err
    assert Path("tranlog.toml").read_text() == before
    assert shop.json("--conf b.toml --service b init --source mariadb --target postgres") == {
        "file": "b.toml",
        "service": "b",
    }
    assert shop("--conf nowhere/b.toml init")[0] == 4
    assert shop("--conf c.toml --service a/b init")[0] == 2


def test_init_by_two_urls_writes_what_a_copy_goes_on_by(shop: Shop) -> None:
    """`tranlog copy --follow` and a run by that file are one; its owner alone reads a password."""
    urls = "--from mariadb://us:hush@db1/shop --to postgresql://user:hush@db2/shop"
    assert shop.json(f"--conf u.toml init {urls}") == {"file": "u.toml", "service": "copy-of-shop"}
    text = Path("u.toml").read_text()
    assert text == following(source_url(urls.split()[1]), target_url(urls.split()[3]), (), None, service="copy-of-shop")
    assert Path("u.toml").stat().st_mode & 0o077 == 0
    assert shop("--conf u.toml config check")[0] == 0
    assert shop(f"--conf v.toml --service named init {urls}")[0] == 0
    assert load("v.toml", environ={}).service == "named"
    code, _, err = shop(f"--conf u.toml init {urls}")
    assert code == 2 and "already exists" in err and "hush" not in err
    for words in ("--from sqlite:///a.db", "--to sqlite:///a.db", f"{urls} --source mariadb"):
        code, _, err = shop(f"--conf w.toml init {words}")
        assert code == 2 and "go together" in err
    assert shop("--conf w.toml init --from oracle://x/y --to sqlite:///a.db")[0] == 2
    assert not Path("w.toml").exists()


def test_a_command_without_the_part_it_needs(shop: Shop) -> None:
    Path("bare.toml").write_text('[log]\ndir = "log"\n')
    for command in ("capture", "verify", "tables create --from source"):
        code, _, err = shop(f"--conf bare.toml {command}")
        assert code == 2 and re.search(r"bare\.toml: \[(source|target)\]: is missing", err), command
    for command in ("apply", "run", "position get", "tables create"):
        code, _, err = shop(f"--conf bare.toml {command}")
        assert code == 2 and "is missing, and this command needs it" in err, command


# --- capture ---


def test_capture_once(shop: Shop) -> None:
    shop.write("INSERT INTO item VALUES (1, 'a')", "INSERT INTO line VALUES (1, 2)")
    code, out, err = shop("capture --once")
    assert code == 0
    assert out == "captured 4 transactions; the log ends at seqno 4, epoch 1\n"
    assert (
        "Capture begins" in err
        and "log='a new log'" in err
        and "table without primary key" in err
        and "main.line" in err
    )
    done = shop.json("capture --once")
    assert (done["transactions"], done["log_ends_at"], done["epoch"]) == (0, 5, 2)


@pytest.mark.parametrize("checksum", ["true", "false"])
def test_the_key_of_the_checksums_has_an_effect(checksum: str, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """conformance B7-7: the ancestor's doChecksum=false in the configuration changed nothing."""
    file = shop.path / "tranlog.toml"
    text, count = re.subn(r"^# checksum = true\b", f"checksum = {checksum}", file.read_text(), count=1, flags=re.M)
    assert count == 1
    file.write_text(text)
    shop.write("INSERT INTO item VALUES (1, 'a')")
    assert shop("capture --once")[0] == 0
    assert thl.main(["verify"]) == 0
    assert ("whose bytes cannot be checked" in capsys.readouterr().out) == (checksum == "false")


def test_capture_of_what_cannot_be_captured(shop: Shop) -> None:
    Path("source.db").unlink()
    code, _, err = shop("capture --once")
    assert code == 4 and "there is no database at" in err
    Path("source.db").write_text("no database at all")
    assert shop("capture --once")[0] == 4


def test_a_source_that_the_log_is_ahead_of_is_refused(shop: Shop) -> None:
    """Another database in the source's place: exit code 3, nothing captured."""
    shop.write("INSERT INTO item VALUES (1, 'a')")
    assert shop("capture --once")[0] == 0
    for name in ("source.db", "source.db-wal", "source.db-shm"):
        Path(name).unlink(missing_ok=True)
    shop.write("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    code, out, err = shop("capture --once")
    assert (code, out) == (3, "")
    assert "is another database" in err


def test_one_writer_at_a_time(shop: Shop) -> None:
    with Log.open("log", source_id="shop"):
        for command in ("capture --once", "reset -y"):
            code, out, err = shop(command)
            assert (code, out) == (4, "")
            assert f"held by another writer (pid {os.getpid()})" in err
        state = shop.json("status")
        assert state["log"]["writer"] == f"pid {os.getpid()}"
    assert shop.json("status")["log"]["writer"] is None


def test_status_does_not_disturb_a_writer(shop: Shop) -> None:
    """A lock that a look takes, for however short a time, would keep a writer from starting."""
    shop("capture --once")
    for _ in range(20):
        assert shop("status --no-watch")[0] == 0
        with Log.open("log", source_id="shop"):
            pass


def test_capture_ends_cleanly_by_a_signal(shop: Shop) -> None:
    shop.write("INSERT INTO item VALUES (1, 'a')")
    with subprocess.Popen(
        [PROGRAM, "capture", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=shop.path
    ) as process:
        deadline = time.monotonic() + 30
        while not (shop.path / "log" / "positions").exists() or not _captured(shop, 3):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["transactions"] == 3
    assert "Stopping cleanly" in err and "signal=SIGTERM" in err
    assert shop.json("status --no-watch")["source"]["waiting"] == 0


@pytest.mark.long
def test_a_capture_that_idles_says_nothing_regularly(shop: Shop) -> None:
    """An undated line every five seconds stood in whatever took stderr. Work with an end shows after two seconds."""
    process = subprocess.Popen([PROGRAM, "capture"], stderr=subprocess.PIPE, text=True, cwd=shop.path)
    try:
        deadline = time.monotonic() + 30
        while not (shop.path / "log" / "positions").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(SHOWN_AFTER_S + 2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert [line for line in err.splitlines() if not re.match(r"\d{4}-\d\d-\d\d", line)] == []


def _captured(shop: Shop, transactions: int) -> bool:
    state = shop.json("status --no-watch")
    return bool(state["log"]["last_seqno"] >= transactions)


def test_a_full_disk_refuses_the_transaction_and_loses_nothing(shop: Shop) -> None:
    """A limit on file sizes stands for the full disk: code 4, the log stays readable and later goes on."""
    for number in range(4):
        shop.write(f"INSERT INTO item VALUES ({number}, hex(zeroblob(150000)))")
    command = ["bash", "-c", f"ulimit -f 800; exec '{PROGRAM}' capture --once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=shop.path)
    assert done.returncode == 4, done.stderr
    assert "disk full at" in done.stderr and "Free some space and try again" in done.stderr
    assert "Traceback" not in done.stderr
    assert thl.main(["-conf", "tranlog.toml", "verify"]) == 0
    assert "sound = yes" in shop.said()
    assert shop.json("capture --once")["transactions"] > 0
    held = shop.json("status --no-watch")
    assert held["source"]["waiting"] == 0
    assert thl.main(["-conf", "tranlog.toml", "list", "-json"]) == 0
    keys = re.findall(r'"key":\{"id":(\d)\}', shop.said())
    assert keys == ["0", "1", "2", "3"]


# --- status ---


def test_status_of_nothing_yet(shop: Shop) -> None:
    """What cannot be read is told beside what can, and decides the exit code."""
    code, out, _ = shop("status")
    assert code == 4
    assert "log       PROBLEM: no log at" in out
    assert "source    sqlite" in out and "outbox: 2 transactions" in out
    assert "waits for capture: nobody writes the log; 2 transactions wait in the source" in out


def test_status_after_a_capture(shop: Shop) -> None:
    shop("capture --once")
    hold("log", "shop", Seqno(1))
    state = shop.json("status")
    assert (state["log"]["first_seqno"], state["log"]["last_seqno"], state["log"]["epoch"]) == (0, 2, 1)
    assert [one["name"] for one in state["log"]["holds"]] == ["shop"]
    assert state["source"]["waiting"] == 0 and state["source"]["captured_event_id"]
    assert state["pipeline"]["running"] is False and state["problems"] == []
    code, out, _ = shop("status")
    assert code == 0
    assert "seqno 0 to 2, committed 2, epoch 1" in out
    assert "pipeline  shop, not running" in out


def test_status_of_a_damaged_log_has_code_3(shop: Shop) -> None:
    shop("capture --once")
    segment = shop.path / "log" / "thl.data.0000000001"
    segment.write_bytes(b"\xff" * 16 + segment.read_bytes()[16:])
    (shop.path / "log" / "positions").unlink()
    code, out, _ = shop("status")
    assert code == 3 and "log       PROBLEM: damaged log: thl.data.0000000001" in out


# --- verify, tables ---


def copy_to_target(shop: Shop) -> None:
    source = apsw.Connection("source.db", flags=apsw.SQLITE_OPEN_READONLY)
    target = shop.target()
    for table in ("item", "line"):
        for row in source.execute(f"SELECT * FROM {table}"):
            target.execute(f"INSERT INTO {table} VALUES (?, ?)", row)
    source.close()
    target.close()


def test_tables_create_and_verify(shop: Shop) -> None:
    shop.write("INSERT INTO item VALUES (1, 'a'), (2, 'b')", "INSERT INTO line VALUES (1, 1.5), (1, 1.5)")
    code, out, err = shop("verify")
    assert code == 1 and "DIFFERS main.item" in out and "2 of 2 tables differ" in out
    shop("capture --once")
    code, out, _ = shop("tables create --dry-run")
    assert code == 0 and out.count("CREATE TABLE") == 2 and '"id"' in out
    assert shop.json("tables create --dry-run")["created"] == {}
    code, out, err = shop("tables create")
    assert code == 0 and out.count("CREATE TABLE") == 2
    assert "main.line has no primary key" in err and 'ddl = "ignore"' in err
    code, out, _ = shop("tables create --from source")
    assert code == 0 and out.count("already exists") == 2
    copy_to_target(shop)
    code, out, _ = shop("verify")
    assert code == 0 and out.endswith("source and target are equal\n") and "equal   main.item: 2 rows" in out
    target = shop.target()
    target.execute("UPDATE item SET name = 'x' WHERE id = 2")
    target.execute("INSERT INTO item VALUES (3, 'c')")
    target.close()
    code, out, _ = shop("verify")
    assert code == 1
    assert "id=2: name: b at the source, x at the target" in out and "id=3: only at the target" in out
    found = shop.json("verify --table main.item --rows 1", code=1)
    (table,) = found["tables"]
    assert not found["equal"] and len(table["differences"]) == 1
    assert (table["source_rows"], table["target_rows"]) == (2, 3)
    assert shop("verify --table main.line")[0] == 0
    code, _, err = shop("verify --tables main.nothing")
    assert code == 2 and "--tables = 'main.nothing': the source has no such table" in err


def test_tables_and_verify_see_what_the_filters_leave(shop: Shop) -> None:
    """`tables create` and `verify` use the pipeline's filters; masked columns are named."""
    conf = shop.path / "tranlog.toml"
    conf.write_text(
        conf.read_text()
        + """
[[filter]]
kind = "exclude"
tables = ["main.line"]
[[filter]]
kind = "rename"
table = "main.item"
to = "goods"
[[filter]]
kind = "mask"
table = "main.goods"
columns = ["name"]
by = "keep-last"
[[filter]]
kind = "rename"
table = "main.goods"
column = "id"
to = "number"
[[filter]]
kind = "transaction"
function = "copy:copy"
"""
    )
    shop.write("INSERT INTO item VALUES (1, 'a'), (2, 'b')", "INSERT INTO line VALUES (1, 1.5)")
    shop("capture --once")
    code, out, _ = shop("tables create")
    assert code == 0 and out.count("CREATE TABLE") == 1 and '"goods"' in out and '"number"' in out
    target = shop.target()
    target.execute("INSERT INTO goods VALUES (1, '*'), (2, 'seen')")
    code, out, err = shop("verify")
    assert code == 0 and "equal   main.goods: 2 rows" in out and "main.line" not in out
    assert "main.goods: masked, not compared: name" in err
    assert "compared as if there were no filter 5 (transaction copy:copy)" in err
    target.execute("UPDATE goods SET number = 3 WHERE number = 2")
    code, out, _ = shop("verify")
    assert code == 1 and "number=2: missing at the target" in out
    assert shop.json("verify", code=1)["tables"][0]["notes"][0] == "masked, not compared: name"
    code, _, err = shop("verify --table main.line")
    assert code == 2 and "the pipeline's filters leave this table out" in err
    target.close()


def test_tables_of_an_empty_log(shop: Shop) -> None:
    code, _, err = shop("tables create")
    assert code == 4 and "no log at" in err
    with Log.open("log", source_id="shop"):
        pass
    code, out, err = shop("tables create")
    assert (code, out) == (0, "") and "the log has no tables" in err


# --- position ---


def rows_at_target(pipeline: str = "shop") -> list[ChannelRow]:
    target = open_target(TargetOptions(kind="sqlite", path="target.db"))
    try:
        return target.positions.read_channels(pipeline)
    finally:
        target.close()


@pytest.mark.usefixtures("quick_watch")
def test_position_set_get_reset(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("INSERT INTO item VALUES (1, 'a')", "INSERT INTO item VALUES (2, 'b')")
    shop("capture --once")
    assert shop("position get")[1] == "pipeline shop has no position at this target\n"
    code, out, _ = shop("position set 2")
    assert code == 0 and out.startswith("channel 0: GTID(1, 2), event id '")
    stored = rows_at_target()
    assert [(row.channel, row.epoch, row.applied_seqno) for row in stored] == [(n, 1, 2) for n in range(4)]
    assert all(row.event_id == shop.json("position get")["channels"][0]["event_id"] for row in stored)
    # To move what stands somewhere needs a yes.
    code, _, err = shop("position set 4 --channel 1")
    assert code == 1 and "channel 1 skips its transactions of seqno 3 to 4" in err and "declined" in err
    assert rows_at_target() == stored
    assert shop("position set 4 --channel 1 -y")[0] == 0
    assert [row.applied_seqno for row in rows_at_target()] == [2, 4, 2, 2]
    code, _, err = shop("position set 1 -y")
    assert code == 0 and "channel 1 applies its transactions from seqno 2 on again" in err
    assert shop("position set -y -- -1")[0] == 0
    assert shop("position set -1 -y")[0] == 0, "as a refusal names it"
    assert [(row.epoch, row.applied_seqno, row.event_id) for row in rows_at_target()] == [(0, -1, "")] * 4
    for line, told in (
        ("position set 77 -y", "the log holds 0 to 4"),
        ("position set 1 --channel 9 -y", "--channel = 9"),
    ):
        code, _, err = shop(line)
        assert code == 2 and told in err
    assert shop("position reset")[0] == 1
    hold(str(shop.path / "log"), "shop", Seqno(1))
    assert shop.json("position reset -y") == {"pipeline": "shop", "forgotten": True}
    assert read_holds(str(shop.path / "log")) == [], "what the log knows of the pipeline goes, too"
    assert rows_at_target() == []
    assert shop.json("position reset -y --pipeline other") == {"pipeline": "other", "forgotten": False}


@pytest.mark.usefixtures("quick_watch")
def test_a_pipeline_that_runs_is_not_moved(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop("capture --once")
    shop("position set 1")
    target = open_target(TargetOptions(kind="sqlite", path="target.db"))
    row = target.positions.read_pipeline("shop")
    assert row is not None
    token = target.positions.take(
        pipeline="shop",
        expected_token=row.token,
        holder="somebody",
        channels=4,
        shard_rule=row.shard_rule,
        rows=None,
        keep_assignment=True,
    )

    pause = time.sleep

    def beat(seconds: float) -> None:
        pause(0.005)
        target.positions.keep_alive(pipeline="shop", token=token)

    monkeypatch.setattr(time, "sleep", beat)
    for line in ("position set 2 -y", "position reset -y"):
        code, _, err = shop(line)
        assert code == 4 and "is being run by somebody" in err and "--take-over" in err
    state = shop.json("status")["pipeline"]
    assert (state["running"], state["holder"]) == (True, "somebody")
    assert shop("position set 2 -y --take-over")[0] == 0
    taken = target.positions.read_pipeline("shop")
    assert taken is not None and taken.token > token
    target.close()


# --- source ---


def test_what_is_installed_at_a_source_is_listed_and_taken_away(shop: Shop) -> None:
    assert [one["kind"] for one in shop.json("source list")["installed"]][:2] == ["table", "table"]
    assert shop("source uninstall")[0] == 1, "nobody there to say yes"
    code, out, err = shop("source uninstall -y")
    assert code == 0 and "_tranlog_outbox" in out and "dropped" in err
    for line in ("source list", "source uninstall"):
        code, out, _ = shop(line)
        assert (code, out) == (0, "nothing is installed\n")
    assert shop.json("source uninstall") == {"installed": []}


# --- reset ---


def test_reset_asks_and_repeats_the_caveats(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """thl-internals, "Clearing Log Files": both caveats, and the pipelines that still need the log."""
    shop("capture --once")
    hold("log", "shop", Seqno(1))
    code, out, err = shop("reset --dry-run")
    assert code == 0 and out.startswith("would remove 3 files")
    assert "only while its source is idle" in err and "a target that lags" in err
    assert "shop still needs seqno 1 to 2 of this log" in err
    assert shop("reset")[0] == 1, "no answer is no"
    assert (shop.path / "log" / "thl.data.0000000001").exists() and not (shop.path / "log" / MARK_NAME).exists()
    cleared = shop.json("reset -y")
    assert cleared["cleared"] is True and cleared["mark"]["seqno"] == 2
    assert read_holds("log") == []
    assert shop("reset -y")[0] == 4


def test_after_a_reset_no_gtid_and_no_transaction_comes_twice(shop: Shop) -> None:
    """log-format.md, last paragraph. The source is not freed yet: what the log had is still there."""
    shop.write("INSERT INTO item VALUES (1, 'a')")
    shop("capture --once")
    last = shop.json("reset -y")["mark"]
    shop.write("INSERT INTO item VALUES (2, 'b')")
    done = shop.json("capture --once")
    assert done["transactions"] == 1, "only what came after the reset"
    assert (done["log_ends_at"], done["epoch"]) == (last["seqno"] + 2, last["epoch"] + 1)


def test_forgetting_the_sources_position(shop: Shop) -> None:
    shop("capture --once")
    assert shop("reset -y --forget-position")[0] == 0
    mark = read_mark("log", disk=OsDisk())
    assert mark is not None and mark.event_id == ""


@pytest.mark.usefixtures("quick_watch")
def test_a_log_that_was_deleted_begins_behind_the_target(shop: Shop) -> None:
    """Even where no mark is left, the target's position keeps a GTID from being given out twice."""
    shop("capture --once")
    shop("position set 2")
    for path in (shop.path / "log").iterdir():
        path.unlink()
    shop.write("INSERT INTO item VALUES (1, 'a')")
    done = shop.json("capture --once --take-source")
    assert (done["log_ends_at"], done["epoch"], done["transactions"]) == (4, 2, 1)


def test_a_new_log_does_not_begin_blindly(shop: Shop) -> None:
    """A target that cannot be asked may hold higher GTIDs; --new-log says that it does not."""
    Path("target.db").mkdir()
    code, out, err = shop("capture --once")
    assert (code, out) == (4, "")
    assert "--new-log begins at seqno 0" in err and err.count("\n") == 1
    assert shop.json("capture --once --new-log")["log_ends_at"] == 2
    assert shop.json("capture --once")["epoch"] == 2, "a log with records needs nobody's word"


def test_a_damaged_log_is_cleared_on_the_operators_word(shop: Shop) -> None:
    shop("capture --once")
    segment = shop.path / "log" / "thl.data.0000000001"
    segment.write_bytes(b"\xff" * 16 + segment.read_bytes()[16:])
    (shop.path / "log" / "positions").unlink()
    code, _, err = shop("reset -y")
    assert code == 3 and "damaged log" in err and err.count("\n") == 1
    code = cli.main(["reset", "-y", "--after", "GTID(1, 2)"])
    assert code == 0
    mark = read_mark("log", disk=OsDisk())
    assert mark is not None and mark.gtid == Gtid.parse("GTID(1, 2)")
    assert shop("capture --once")[0] == 0


# --- apply, as far as it comes without Java ---


def test_apply_without_java(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop("capture --once")
    monkeypatch.setenv("JAVA_HOME", str(shop.path))
    code, out, err = shop("apply --until now")
    assert (code, out) == (4, "")
    assert "there is no bin/java" in err and "Install Java 17" in err and err.count("\n") == 1


def test_apply_without_a_log(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlog.pipeline.driving.apply.find_java", lambda: "java")
    code, out, err = shop("apply --until now")
    assert (code, out) == (4, "") and "no log at" in err


# --- as a program ---


@pytest.mark.parametrize(
    ("line", "code"), few_of([("status", 4), ("position get", 0), ("verify", 1), ("frobnicate", 2)])
)
def test_the_installed_command_and_its_exit_codes(line: str, code: int, shop: Shop) -> None:
    assert PROGRAM.exists()
    shop.write("INSERT INTO item VALUES (1, 'a')")
    done = subprocess.run([PROGRAM, *line.split()], capture_output=True, text=True, timeout=60, cwd=shop.path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_the_error_that_ended_a_capture_is_shown_afterwards(shop: Shop) -> None:
    """By `status`, with its time and what to do, until another capture begins."""
    shop("capture --once")
    source = shop.path / "source.db"
    source.rename(shop.path / "away.db")
    source.write_bytes(b"no database at all" * 100)
    code, _, err = shop("capture --once")
    assert code != 0
    message = err.splitlines()[-1].removeprefix("tranlog: ")
    source.unlink()
    (shop.path / "away.db").rename(source)
    out = shop("status --no-watch")[1]
    assert "capture ended at 20" in out and message in out
    shop("capture --once")
    assert shop.json("status --no-watch")["source"]["error"] is None


def test_a_capture_has_ports_of_its_own(shop: Shop) -> None:
    """Those of [capture], guarded by the files of [pipeline]; the command line outranks the file."""
    file = shop.path / "tranlog.toml"
    file.write_text(file.read_text().replace("[capture]\n", '[capture]\nmetrics = "127.0.0.1:0"\n'))
    config = load("tranlog.toml", environ={}, options={"capture.control": ("--control", "127.0.0.1:4714")})
    ports = OperatingOptions.of_capture(config).ports
    assert ports == [("control", "127.0.0.1:4714", Role.OPERATE), ("metrics", "127.0.0.1:0", Role.READ)]
    assert OperatingOptions.of(config.pipeline).ports == []
    assert shop("capture --once")[0] == 0
    file.write_text(file.read_text().replace('"127.0.0.1:0"', '"0.0.0.0:4715"'))
    for line in ("config check", "capture --once"):
        code, _, err = shop(line)
        assert code == 2 and "metrics = '0.0.0.0:4715'" in err and "TLS" in err
    assert "tranlog.toml:" in shop("config check")[2] and ": capture.metrics = " in shop("config check")[2]


@pytest.mark.parametrize("section", ["pipeline", "capture"])
@pytest.mark.parametrize("key", ["secret_file", "tls_certificate"])
def test_the_files_of_a_port_are_checked(section: str, key: str, shop: Shop) -> None:
    """A certificate that is not there was found at the start alone, and a secret's file was told without its line."""
    file = shop.path / "tranlog.toml"
    text = file.read_text().replace("[pipeline]\n", f'[pipeline]\n{key} = "nowhere"\n')
    text = text.replace(f"[{section}]\n", f'[{section}]\ncontrol = "127.0.0.1:4713"\n')
    file.write_text(text)
    line = text.splitlines().index(f'{key} = "nowhere"') + 1
    code, _, err = shop("config check")
    assert code == 2 and f"tranlog.toml:{line}: pipeline.{key} = '{shop.path}/nowhere'" in err
