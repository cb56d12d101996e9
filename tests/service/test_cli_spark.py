"""`tranlog apply` and `tranlog run` as processes, and bad input at the target."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.member import MemberLog
from tranlog.source.sqlite import connect
from tranlog.target.once import STATEMENT_TABLE
from tranlog.target.position import OUR_TABLES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # several starts of a JVM, on a shared machine
PROGRAM = Path(sys.executable).with_name("tranlog")


class Shop:
    """A folder with a configuration of two channels; commands are processes in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self("--service", "shop", "init")
        conf = path / "tranlog.toml"
        conf.write_text(
            conf.read_text().replace("channels = 4", "channels = 2").replace('# load = "all"', 'load = "none"')
        )
        self.write("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)", "CREATE TABLE line (a, b)")

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100, cwd=self.path)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr + done.stdout
        return done

    def write(self, *statements: str) -> None:
        db = connect(self.path / "source.db")
        for statement in statements:
            db.execute(statement)
        db.close()

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.path
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def wait_until_running(self, process: subprocess.Popen[str], applied: int) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            done = subprocess.run([PROGRAM, "status", "--json"], capture_output=True, text=True, cwd=self.path)
            state = json.loads(done.stdout)["pipeline"] if done.returncode == 0 else None
            if state and state["running"] and state["restart_seqno"] >= applied:
                return
            time.sleep(0.2)
        raise AssertionError("it did not get there in time")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_apply_and_its_conflict(shop: Shop) -> None:
    """Up to now; then a row at the target is in the way: seqno, table and key are named, nothing half-applied."""
    shop.write("INSERT INTO item VALUES (1, 'a'), (2, 'b')", "INSERT INTO line VALUES (1, 2), (1, 2)")
    shop("capture", "--once")
    done = json.loads(shop("apply", "--until", "now", "--json").stdout)
    assert done["end"] == "limit" and done["status"]["lag"]["seqnos"] == 0
    assert shop("verify").stdout.endswith("source and target are equal\n")

    target = apsw.Connection(str(shop.path / "target.db"))
    target.execute("DELETE FROM item WHERE id = 1")
    shop.write("BEGIN", "INSERT INTO item VALUES (3, 'c')", "UPDATE item SET name = 'x' WHERE id = 1", "COMMIT")
    shop("capture", "--once")
    error = json.loads(shop("apply", "--until", "now", "--json", code=3).stderr.splitlines()[-1])["error"]
    assert (error["type"], error["table"], error["exit_code"]) == ("ConflictError", "main.item", 3)
    assert re.match(r"conflict at seqno \d+, table main\.item, key \(id=1\): ", error["message"]), error
    assert list(target.execute("SELECT id FROM item")) == [(2,)], "nothing of the transaction is there"
    status = shop("status", "--no-watch").stdout
    assert "it ended by an error at 20" in status and f"by ConflictError: {error['message']}" in status, status

    target.execute("INSERT INTO item VALUES (1, 'a')")
    target.close()
    shop("apply", "--until", "now")
    assert shop("verify").returncode == 0


@pytest.mark.timeout(600)
def test_a_target_that_lost_its_position(shop: Shop) -> None:
    """Named, nothing done, and each of the steps that it names helps where it belongs."""
    shop.write("INSERT INTO item VALUES (1, 'a'), (2, 'b')", "INSERT INTO line VALUES (1, 2), (1, 2)")
    shop("capture", "--once")
    last = json.loads(shop("apply", "--until", "now", "--json").stdout)["status"]["restart_seqno"]
    target = apsw.Connection(str(shop.path / "target.db"))
    for name in sorted(OUR_TABLES - {STATEMENT_TABLE}):
        target.execute(f"DROP TABLE {name}")
    shop.write("INSERT INTO line VALUES (3, 4)")
    shop("capture", "--once")
    for arguments in (("apply", "--start", "0", "--take-over"), ("run",)):
        error = json.loads(shop(*arguments, "--json", code=3).stderr.splitlines()[-1])["error"]
        assert (error["type"], error["pipeline"], error["upto"]) == ("TargetPositionError", "shop", last)
        assert "`tranlog position set SEQNO`; or, where this target is new" in error["message"]
    assert list(target.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'tranlog%'")) == []
    assert list(target.execute("SELECT count(*) FROM line")) == [(2,)]

    shop("position", "set", str(last), "-y")
    shop("apply", "--until", "now")
    assert shop("verify").returncode == 0

    for name in ("tranlog_channel", "tranlog_pipeline", "item", "line"):
        target.execute(f"DROP TABLE {name}")
    target.close()
    shop("apply", "--until", "now", code=3)
    assert shop("position", "reset", "-y").stdout == "pipeline shop had no position, and starts anew\n"
    shop("apply", "--until", "now")
    assert shop("verify").returncode == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stay", [False, True])
def test_a_position_that_is_taken_away_while_it_runs(shop: Shop, stay: bool) -> None:
    """Not retried for ever: exit code 3, or OFFLINE:ERROR; and once it is mended, it goes on."""
    shop.write("INSERT INTO item VALUES (1, 'a')", "INSERT INTO line VALUES (1, 2), (1, 2)")
    shop("capture", "--once")
    with shop.running("apply", "--json", *(["--stay"] if stay else [])) as process:
        shop.wait_until_running(process, applied=3)
        target = apsw.Connection(str(shop.path / "target.db"))
        target.set_busy_timeout(10_000)
        target.execute("ALTER TABLE tranlog_channel RENAME COLUMN applied_seqno TO applied")
        shop.write("INSERT INTO line VALUES (1, 2)")
        shop("capture", "--once")
        if stay:
            shop("wait", "--state", "OFFLINE:ERROR", "--timeout", "60")
            told = shop("state").stdout
            assert "TargetPositionError" in told and "changed: no such column" in told and "applied_seqno" in told, told
        else:
            error = json.loads(process.communicate(timeout=60)[1].splitlines()[-1])["error"]
            assert (error["type"], error["exit_code"], process.returncode) == ("TargetPositionError", 3, 3)
        target.execute("ALTER TABLE tranlog_channel RENAME COLUMN applied TO applied_seqno")
        target.close()
        if stay:
            shop("online")
            shop("flush", "--timeout", "60")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0
            assert re.findall(r"^apply: .*", err, re.MULTILINE) == [], "no line of how far it is, over and over"
        else:
            shop("apply", "--until", "now")
    assert shop("verify").returncode == 0


def test_run_until_a_signal(shop: Shop) -> None:
    """Both halves in one process; others are kept out meanwhile; SIGTERM ends it cleanly."""
    with shop.running("run", "--json") as process:
        shop.write("INSERT INTO item VALUES (1, 'a')")
        shop.wait_until_running(process, applied=3)
        assert "is being run by" in shop("apply", "--until", "now", code=4).stderr
        assert "is being run by" in shop("position", "set", "1", "-y", code=4).stderr
        assert "held by another writer" in shop("capture", "--once", code=4).stderr
        assert "held by another writer" in shop("reset", "-y", code=4).stderr
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["apply"]["end"] == "stopped"
    assert re.findall(r"^(?:capture|apply): .*", err, re.MULTILINE) == [], "no line of how far it is, over and over"
    assert shop("verify").returncode == 0
    assert "it was stopped" in shop("status").stdout


def test_a_cleared_log_and_a_target_that_is_behind(shop: Shop) -> None:
    """A target that had everything goes on with the next log; one that had not is refused, with code 3."""
    shop("capture", "--once")
    shop("position", "set", "2")
    shop("tables", "create", "--from", "source")
    shop("reset", "-y")
    shop.write("INSERT INTO item VALUES (1, 'a')")
    shop("capture", "--once")
    shop("apply", "--until", "now")
    assert shop("verify").returncode == 0

    shop.write("INSERT INTO item VALUES (2, 'b')")
    shop("capture", "--once")
    shop("reset", "-y")
    shop("capture", "--once")
    told = shop("apply", "--until", "now", code=3).stderr
    assert "is purged: the log starts at" in told and "tranlog reset --forget-position" in told, told


def test_a_capture_that_fails_ends_the_run(shop: Shop) -> None:
    shop("capture", "--once")
    for name in ("source.db", "source.db-wal", "source.db-shm"):
        (shop.path / name).unlink(missing_ok=True)
    told = shop("run", code=4).stderr
    assert "there is no database at" in told


def test_a_pipeline_beside_a_member_of_a_group_stops_at_committed(shop: Shop) -> None:
    """What is visible and durable there may be abandoned yet: it is not applied before it is committed."""
    shop.write(*(f"INSERT INTO item VALUES ({number}, 'a')" for number in range(6)))
    shop("capture", "--once")
    taken = shop.path / "captured"
    (shop.path / "log").rename(taken)
    with (
        LogReader.open(taken) as reader,
        reader.cursor() as cursor,
        MemberLog.follow(shop.path / "log", source_id="shop") as member,
    ):
        member.take_over(reader.history)
        for stretch in cursor.stretches():
            last = member.append_raw(stretch.raw)
        member.commit()
        before = member.header(Seqno(last.seqno - 3))
        assert before is not None
        point = before.gtid
        member.commit_to(point)
        with shop.running("apply") as process:
            shop.wait_until_running(process, point.seqno)
            status = json.loads(shop("status", "--json").stdout)
            assert member.status().visible_seqno == member.status().durable_seqno == last.seqno
            assert status["log"]["committed_seqno"] == status["pipeline"]["restart_seqno"] == point.seqno
            assert items(shop) == [0, 1, 2]
            member.commit_to(last)
            shop.wait_until_running(process, last.seqno)
            assert items(shop) == [0, 1, 2, 3, 4, 5]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def items(shop: Shop) -> list[int]:
    with closing(apsw.Connection(str(shop.path / "target.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return [number for (number,) in db.execute("SELECT id FROM item ORDER BY id")]
