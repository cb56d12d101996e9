"""Bad input to the commands: message, exit code, and that nothing changed.

What is here needs neither Java nor a server. Of the other cases the tests stand beside what they are about: a conflict
and a missing table in `tests/spark`, servers in `tests/integration` and `test_cli_servers.py`, a full disk in
`test_cli.py`.
"""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest

from tranlog.ids import Epoch, Seqno
from tranlog.log.writing.log import Log
from tranlog.service.commands import cli
from tranlog.service.thl import thl
from tranlog.source.sqlite import connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import ChannelRow

pytestmark = pytest.mark.long

MAINS = {"tranlog": cli.main, "thl": thl.main}


class Place:
    """A folder with a configuration; commands run in it, and what it holds is compared."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, line: str) -> tuple[int, str, str]:
        program, *words = line.split()
        self._capsys.readouterr()
        code = MAINS[program](words)
        told = self._capsys.readouterr()
        return int(code), told.out, told.err

    def state(self) -> dict[str, bytes | str]:
        """Return every file's bytes, but what comes and goes with who looks, and what keeps the last error."""
        found: dict[str, bytes | str] = {}
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            if name == "log/control" or path.name.startswith(".error-"):
                continue
            if path.is_symlink():
                found[name] = f"link to {path.readlink()}"
            elif path.is_dir():
                found[name] = "directory"
            elif not name.endswith(("-wal", "-shm")):
                found[name] = path.read_bytes()
        return found

    def refuses(self, line: str, code: int, *told: str) -> None:
        """The command ends with this code and one line that says these words; nothing has changed."""
        before = self.state()
        found, out, err = self(line)
        assert found == code, (line, err)
        assert out == ""
        assert "Traceback" not in err
        last = err.splitlines()[-1]
        assert last.startswith(f"{line.split()[0]}: "), err
        for words in told:
            assert words in last, err
        assert self.state() == before, f"{line} changed something"
        as_json, _, err = self(f"{line} --json")
        error = json.loads(err.splitlines()[-1])["error"]
        assert (as_json, error["exit_code"]) == (code, code)
        assert self.state() == before, f"{line} --json changed something"

    def write(self, *statements: str) -> None:
        db = connect(self.path / "source.db")
        for statement in statements:
            db.execute(statement)
        db.close()

    def captured(self) -> None:
        """Make a source of two tables, one without a key, and capture it."""
        self.write("CREATE TABLE item (id INTEGER PRIMARY KEY)", "CREATE TABLE line (a)", "INSERT INTO item VALUES (1)")
        assert self("tranlog capture --once")[0] == 0

    def configure(self, old: str, new: str) -> None:
        file = self.path / "tranlog.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    """A configuration for SQLite at both ends, no database yet. Java counts as installed; no Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for module in ("pipeline.driving.apply", "service.commands.cli"):
        monkeypatch.setattr(f"tranlog.{module}.find_java", lambda: "java")
    monkeypatch.setattr("tranlog.pipeline.spark.engine.run_context", no_spark)
    made = Place(tmp_path, capsys)
    assert made("tranlog --service shop init")[0] == 0
    return made


def no_spark(*arguments: object) -> None:
    raise AssertionError("Spark was started, although the cheap checks could tell")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


# --- the source ---


@pytest.mark.parametrize("command", ["capture", "capture --once", "run", "tables create --from source"])
def test_a_missing_source(command: str, place: Place) -> None:
    """Before Spark, before the log: no empty log directory is left behind."""
    place.refuses(f"tranlog {command}", 4, "there is no database at", "source.db", "heck the path")
    assert [path.name for path in place.path.iterdir()] == ["tranlog.toml"]


@pytest.mark.parametrize("command", ["capture --once", "run"])
def test_a_source_that_is_no_database(command: str, place: Place) -> None:
    (place.path / "source.db").write_text("this is no database at all\n" * 100)
    place.refuses(f"tranlog {command}", 4, "source.db is no SQLite database", "Check path and permissions")
    (place.path / "source.db").unlink()
    (place.path / "source.db").mkdir()
    place.refuses(f"tranlog {command}", 4, "source.db")


@pytest.mark.parametrize("command", ["capture --once", "run"])
def test_a_source_that_is_gone_leaves_the_log_as_it_is(command: str, place: Place) -> None:
    """Not even the no-op with which a writer begins is added."""
    place.captured()
    for name in ("source.db", "source.db-wal", "source.db-shm"):
        (place.path / name).unlink(missing_ok=True)
    place.refuses(f"tranlog {command}", 4, "there is no database at")


@pytest.mark.parametrize("command", ["capture --once", "run", "verify", "tables create --from source"])
def test_a_mariadb_that_does_not_answer(command: str, place: Place, free_port: int) -> None:
    (place.path / "tranlog.toml").unlink()
    assert place("tranlog --service shop init --source mariadb --target sqlite")[0] == 0
    place.configure("port = 3306", f"port = {free_port}")
    if command == "verify":
        open_target(TargetOptions(kind="sqlite", path=str(place.path / "target.db"))).close()
    place.refuses(f"tranlog {command}", 4, f"127.0.0.1:{free_port}", "does not answer", "Start it")


def test_a_table_without_a_key_works_and_is_named_once(place: Place) -> None:
    place.write("CREATE TABLE line (a, b)", "INSERT INTO line VALUES (1, 2)", "INSERT INTO line VALUES (3, 4)")
    code, out, err = place("tranlog capture --once")
    assert code == 0 and "captured 3 transactions" in out
    assert err.count("main.line") == 1


# --- the log ---


COMMANDS_OF_A_LOG = (
    ("tranlog capture --once", 4),
    ("tranlog run", 4),
    ("tranlog apply --until now", 4),
    ("tranlog tables create", 4),
    ("tranlog position set 0 -y", 4),
    ("thl -dir log list", 4),
    ("thl -dir log info", 4),
    ("thl -dir log index", 4),
    ("thl -dir log verify", 4),
)


@pytest.mark.parametrize(("line", "code"), COMMANDS_OF_A_LOG, ids=[line for line, _ in COMMANDS_OF_A_LOG])
@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_log_directory_that_cannot_be_read(line: str, code: int, kind: str, place: Place) -> None:
    """A plain file in its place; a link that leads to itself, which no right to read helps against."""
    place.write("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    open_target(TargetOptions(kind="sqlite", path=str(place.path / "target.db"))).close()
    if kind == "file":
        (place.path / "log").write_text("a file")
    else:
        (place.path / "log").symlink_to("log")
    place.refuses(line, code, "log")


def test_status_of_a_log_that_cannot_be_read(place: Place) -> None:
    (place.path / "log").symlink_to("log")
    before = place.state()
    code, out, _ = place("tranlog status --no-watch")
    assert code == 4 and "log" in out
    assert place.state() == before


@pytest.mark.parametrize("line", ["thl -dir log list", "thl -dir log info", "tranlog apply --until now"])
def test_a_missing_log(line: str, place: Place) -> None:
    open_target(TargetOptions(kind="sqlite", path=str(place.path / "target.db"))).close()
    place.refuses(line, 4, "no log at", "tranlog capture")


def test_a_damaged_log_is_not_written_on(place: Place) -> None:
    """A bit that changed in what was durable: named by file and offset, by whoever reads or would write."""
    place.captured()
    (segment,) = (place.path / "log").glob("thl.data.*")
    raw = bytearray(segment.read_bytes())
    raw[60] ^= 1
    segment.write_bytes(raw)
    (place.path / "log" / "positions").unlink()
    for line in ("tranlog capture --once", "tranlog run", "tranlog apply --until now", "thl -dir log list"):
        place.refuses(line, 3, "damaged log: thl.data.0000000001, offset", "nothing was changed", "thl verify")


@pytest.mark.parametrize("line", ["tranlog capture --once", "tranlog run", "tranlog reset -y"])
def test_a_log_of_another_writer(line: str, place: Place) -> None:
    place.captured()
    with Log.open(str(place.path / "log"), source_id="shop"):
        place.refuses(line, 4, "is held by another writer (pid ", "Stop it first")


# --- the target ---


@pytest.mark.parametrize("command", ["run", "apply --until now", "tables create", "position get", "verify"])
def test_a_target_that_is_away(command: str, place: Place, free_port: int) -> None:
    """`run` says so before Spark, and before its capture adds to the log."""
    place.captured()
    text = (place.path / "tranlog.toml").read_text()
    text = text.replace(
        'kind = "sqlite"\npath = "target.db"', f'kind = "postgres"\ndsn = "host=127.0.0.1 port={free_port}"'
    )
    (place.path / "tranlog.toml").write_text(text)
    place.refuses(f"tranlog {command}", 4, f"127.0.0.1:{free_port}", "cannot be used", "Fix that")


def test_a_target_whose_position_is_not_in_this_log(place: Place) -> None:
    place.captured()
    target = open_target(TargetOptions(kind="sqlite", path=str(place.path / "target.db")))
    try:
        target.positions.ensure_tables()
        target.positions.take(
            pipeline="shop",
            expected_token=0,
            holder="",
            channels=4,
            shard_rule="recorded",
            rows=[ChannelRow(channel=one, epoch=Epoch(7), applied_seqno=Seqno(900)) for one in range(4)],
            keep_assignment=False,
        )
    finally:
        target.close()
    place.refuses("tranlog apply --until now", 3, "GTID(7, 900)", "Use the right log", "tranlog position set")


# --- configuration and command line ---


@pytest.mark.parametrize("command", ["capture --once", "run", "apply", "status", "verify", "tables create", "reset -y"])
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("channels = 4", "channles = 4", "unknown key; did you mean 'channels'?"),
        ("channels = 4", "channels = 0", "channels = 0"),
        ("[pipeline]", "[pipline]", "unknown key; did you mean 'pipeline'?"),
        ("[log]", "[log", "is not TOML"),
    ],
    ids=["key", "value", "table", "toml"],
)
def test_a_wrong_configuration_stops_every_command(command: str, old: str, new: str, told: str, place: Place) -> None:
    place.write("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    place.configure(old, new)
    place.refuses(f"tranlog {command}", 2, "tranlog.toml", told)


def test_no_message_shows_a_password(place: Place) -> None:
    """Not even where its key or its table is misspelt, and so is not known for one."""
    for text in (
        '[target]\nkind = "postgres"\ndsn = "host=x"\npasword = "s3cr3t"\n',
        '[tagret]\nkind = "postgres"\ndsn = "postgresql://u:s3cr3t@h/d"\n',
        'target = "postgresql://u:s3cr3t@h/d"\n',
        '[target]\nkind = "postgres"\ndsn = "postgresql://u:s3cr3t@[h/d"\npassword = "s3cr3t"\n',
    ):
        log = '[log]\ndir = "log"\n'
        (place.path / "tranlog.toml").write_text(text + log if text.startswith("target") else log + text)
        place.refuses("tranlog status", 2, "tranlog.toml")
        for line in ("tranlog status", "tranlog status --json"):
            assert "s3cr3t" not in "".join(place(line)[1:])


def test_a_name_that_is_no_utf_8(place: Place) -> None:
    """What a shell hands over as bytes is an error like any other, also as JSON."""
    for main in MAINS.values():
        for words in (["--conf", "\udcff", "info"], ["\udcff"], ["--\udcff", "--json"]):
            assert main([*words, "--json"]) == 2
