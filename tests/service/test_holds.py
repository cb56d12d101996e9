"""`tranlog hold`, and the holds of readers: what is fed is not purged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from fix_driver import PROGRAM
from fix_log import make_fragment
from tranlog.codecs.shown import ShownForm, open_log
from tranlog.errors import PurgedError
from tranlog.ids import Seqno
from tranlog.log.files.holds import MAY_HAVE_ALL, drop_hold, hold, is_running, lock_hold, read_hold, read_holds
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log, LogOptions
from tranlog.service.commands import cli
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl import thl
from tranlog.service.thl.thl_list import style_of

SMALL = LogOptions(segment_bytes=2_000)


def write(log: Log, count: int = 40) -> None:
    for number in range(count):
        log.append(make_fragment(f"e{number}", bytes(200)))
        log.commit()


@pytest.mark.parametrize("by_reader", [True, False])
def test_a_cursor_with_a_hold_is_not_overtaken_and_one_without_is(tmp_path: Path, by_reader: bool) -> None:
    """thl-internals: "the cleaner may not delete what is being fed"."""
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1", options=SMALL) as log, LogReader.open(path) as reader:
        write(log)
        opened = (reader if by_reader else log).cursor(hold="audit")
        bare = reader.cursor()
        with opened as held, bare:
            for cursor in (held, bare):
                cursor.seek(Seqno(3))
                assert cursor.next_header() is not None
            assert log.purge(below=Seqno(30)) == []
            found = read_hold(path, "audit")
            assert found is not None and (found.restart_seqno, found.applied_seqno) == (3, None)
            assert [one.header.seqno for one in held.scan(until=Seqno(30), wait=False)] == list(range(4, 31))
            held.seek(Seqno(31))
            assert len(log.purge(below=Seqno(30))) > 2
            with pytest.raises(PurgedError):
                list(bare.scan(until=Seqno(30), wait=False))
            assert held.next_header() is not None
        found = read_hold(path, "audit")
        assert found is not None and found.restart_seqno == 31, "it stays, for one that goes on there"
        drop_hold(path, "audit")


def test_a_hold_moves_with_its_cursor_once_a_second(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1", options=SMALL) as log:
        write(log)
        with log.cursor(hold="audit") as cursor:
            assert cursor._kept is not None
            cursor._kept._next = 0.0
            for _ in range(11):
                cursor.next_header()
            found = read_hold(path, "audit")
            assert found is not None and found.restart_seqno in (0, 1), "the others came within a second"
            cursor._kept._next = 0.0
            cursor.next_header()
            found = read_hold(path, "audit")
            assert found is not None and found.restart_seqno == 11, "who asks for the next has done with those before"


def test_tail_keeps_what_it_has_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1", options=SMALL) as log:
        write(log)
        shown = open_log(path)
        stop = threading.Event()
        style = style_of(specs=False, charset=None, hexadecimal=False, timezone="UTC")
        lines = shown.follow(3, ShownForm.HEADERS_JSON, style, stop, "audit")
        next(lines)
        assert log.purge(below=Seqno(30)) == [] and [one.name for one in read_holds(path)] == ["audit"]
        stop.set()
        shown.close()
    assert thl.main(["-dir", path, "tail", "-hold", "audit"]) == ExitCode.USAGE
    assert "goes with -f" in capsys.readouterr().err


def test_holds_are_listed_and_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1", options=SMALL) as log:
        write(log, 10)
    hold(path, "audit", Seqno(3))
    hold(path, "shop", Seqno(5), applied=MAY_HAVE_ALL, holder="sqlite /copy.db")
    hold(path, "done", Seqno(5), applied=Seqno(8))
    (Path(path) / "holds" / "torn").write_text("x")
    lock = lock_hold(path, "shop")
    assert lock is not None
    assert cli.main(["hold", "list", "--dir", path, "--json"]) == ExitCode.DONE
    listed = json.loads(capsys.readouterr().out)["holds"]
    keys = ("name", "restart_seqno", "applied_seqno", "pipeline", "running")
    assert [tuple(one[key] for key in keys) for one in listed] == [
        ("audit", 3, None, False, False),
        ("done", 5, 8, True, False),
        ("shop", 5, None, True, True),
        ("torn", None, None, False, False),
    ]  # fmt: skip
    assert cli.main(["hold", "list", "--dir", path]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    cells = [re.split(r"  +", line) for line in lines]
    assert cells[0] == ["hold", "needs", "kind", "state", "holder"]
    assert cells[1][:3] == ["audit", "seqno 3 on", "reader"] and cells[1][3].startswith("written ")
    assert cells[3] == ["shop", "seqno 5 on", "pipeline", "runs", "sqlite /copy.db"]
    assert cells[4][1] == "everything (its file is damaged)"
    assert cli.main(["hold", "drop", "shop", "-y", "--dir", path]) == ExitCode.SURROUNDINGS
    assert "Stop it first" in capsys.readouterr().err
    lock.release()
    for name in ("shop", "torn"):
        assert cli.main(["hold", "drop", name, "-y", "--dir", path]) == ExitCode.DONE
        assert capsys.readouterr().out == f"dropped the hold {name}\n"
    assert cli.main(["hold", "drop", "shop", "--json", "--dir", path]) == ExitCode.CHECK_FAILED
    assert json.loads(capsys.readouterr().out) == {"dropped": False, "name": "shop"}
    assert [one.name for one in read_holds(path)] == ["audit", "done"]


@pytest.mark.long
def test_holds_are_listed_by_whoever_may_only_read(tmp_path: Path) -> None:
    """Whether a pipeline runs was found by taking its lock, for which the file has to be opened for writing."""
    path = tmp_path / "log"
    with Log.open(str(path), source_id="db1", options=SMALL) as log:
        write(log, 10)
    for name in ("done", "shop"):
        hold(str(path), name, Seqno(5), applied=Seqno(8))
    lock = lock_hold(str(path), "shop")
    assert lock is not None
    for one in (*(path / "holds").iterdir(), path / "holds", path):
        one.chmod(0o555 if one.is_dir() else 0o444)
    obey = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []
    try:
        command = [*obey, str(PROGRAM), "hold", "list", "--dir", str(path), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        path.chmod(0o755)
        (path / "holds").chmod(0o755)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert [(one["name"], one["running"]) for one in json.loads(done.stdout)["holds"]] == [
        ("done", False),
        ("shop", True),
    ]
    lock.release()
    drop_hold(str(path), "done")
    assert not is_running(str(path), "done") and [one.name for one in read_holds(str(path))] == ["shop"], "made anew"
