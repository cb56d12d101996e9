"""`thl convert` as a command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fix_tungsten import GOLDEN, make_event
from tranlog.log.reading.reader import LogReader
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl import thl
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.writing.directory import TungstenLog

COMMAND = (sys.executable, "-c", "import sys; from tranlog.service.thl.thl import main; sys.exit(main())", "convert")


def golden(case: str) -> str:
    return str(GOLDEN / case / "log")


def test_it_converts_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    destination = str(tmp_path / "log")
    assert thl.main(["convert", golden("rotated-60"), destination]) == ExitCode.DONE
    printed = capsys.readouterr()
    assert printed.out == f"converted 60 transactions, seqno 0 to 59, into {destination} (native)\n"
    assert thl.main(["convert", golden("rotated-60"), destination]) == ExitCode.DONE
    assert "is complete already: it ends at seqno 59" in capsys.readouterr().out
    assert thl.main(["convert", "--json", destination, str(tmp_path / "back")]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["to"], told["transactions"], told["complete_before"]) == ("tungsten", 60, False)


def test_what_is_lost_is_listed_and_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    destination = tmp_path / "log"
    assert thl.main(["convert", golden("java-serializer"), str(destination)]) == ExitCode.DATA
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert first.startswith("convert: java-object: 3 fragments, the first of seqno 0: a payload of the replicator's")
    assert second.startswith("thl: the log at ") and "--lossy" in second
    assert not destination.exists()
    assert thl.main(["convert", "--lossy", golden("java-serializer"), str(destination)]) == ExitCode.DONE


def test_what_it_does_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert thl.main(["convert", golden("simple-100")]) == ExitCode.USAGE
    assert thl.main(["convert", "--to", "oracle", golden("simple-100"), str(tmp_path / "log")]) == ExitCode.USAGE
    assert thl.main(["convert", str(tmp_path / "none"), str(tmp_path / "log")]) == ExitCode.SURROUNDINGS
    assert thl.main(["convert", golden("fail-bad-crc"), str(tmp_path / "log")]) == ExitCode.DATA
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_its_help_has_an_example_and_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert thl.main(["convert", "--help"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "thl convert --to tungsten --lossy log thl-for-java" in text
    assert "\n    java-object: " in text or "\n  java-object: " in text


@pytest.mark.long
def test_killed_and_started_again(tmp_path: Path) -> None:
    """Killed with -9 while it writes, started again: the same transactions as of an uninterrupted run."""
    source, destination = str(tmp_path / "thl"), tmp_path / "log"
    with TungstenLog.open(source, segment_bytes=400_000) as log:
        for seqno in range(6000):
            log.append(make_event(seqno))
    work = subprocess.Popen([*COMMAND, source, str(destination)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    segment = destination / "thl.data.0000000001"
    while not (segment.exists() and segment.stat().st_size > 100_000) and work.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    work.send_signal(signal.SIGKILL)
    assert work.wait() == -signal.SIGKILL, "it was to be killed while it worked"
    again = subprocess.run([*COMMAND, "--json", source, str(destination)], capture_output=True, check=True)
    told = json.loads(again.stdout)
    assert told["resumed"] and told["last_seqno"] == 5999
    with LogReader.open(destination) as reader, reader.cursor() as cursor:
        event_ids = [(one.header.seqno, one.header.event_id) for one in iter(cursor.next, None)]
    with TungstenReader.open(source).cursor() as cursor_there:
        wanted = [(one.record.seqno, one.record.event_id) for one in iter(cursor_there.next, None)]
    assert event_ids == wanted
