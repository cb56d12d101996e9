"""docs/parallel-apply.md as it stands there, on Spark, in processes.

`TRANLOG_WRITE_DOCS=1` writes what a command has printed into the page, for whoever changes it to read.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tranlog import RunningPipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
DOCUMENT = Path(__file__).parents[2] / "docs" / "parallel-apply.md"


def session() -> list[tuple[str, list[str]]]:
    """Read the document's sessions, one after the other: each command with what it prints."""
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 3
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def words_of(command: str) -> list[str]:
    first, *rest = shlex.split(command)
    return {"tranlog": [sys.executable, "-m", "tranlog"], "python": [sys.executable], "sed": ["sed"]}[first] + rest


def test_the_documents_session(tmp_path: Path) -> None:
    """After it, the process is killed: the next one finds the socket, replaces it, and goes on."""
    background: list[subprocess.Popen[bytes]] = []
    try:
        for command, printed in session():
            if command.endswith(" &"):
                background.append(subprocess.Popen(words_of(command[:-2]), cwd=tmp_path, stderr=subprocess.DEVNULL))
                continue
            if command == "kill -9":
                background[-1].kill()
                background[-1].wait()
                continue
            done = subprocess.run(words_of(command), cwd=tmp_path, capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, (command, done.stderr)
            shown = done.stdout.replace(os.path.realpath(tmp_path / "log"), "LOG").replace(str(tmp_path / "log"), "LOG")
            shown = re.sub(r"_time=\d+", "_time=MS", shown)  # commit times, in ms
            # How far the last report was when it was asked is no part of the answer.
            if command.startswith("tranlog wait --state") or command.startswith("tranlog online"):
                told = [
                    "".join(re.split(r"to seqno -?\d+ of -?\d+", one)).strip() for one in (shown, "\n".join(printed))
                ]
                assert told[0] == told[1]
            else:
                if os.environ.get("TRANLOG_WRITE_DOCS"):
                    old = "".join(f"{line}\n" for line in (f"$ {command}", *printed))
                    assert DOCUMENT.read_text().count(old) == 1, old
                    DOCUMENT.write_text(DOCUMENT.read_text().replace(old, f"$ {command}\n{shown}"))
                    continue
                assert shown.splitlines() == printed, command
        status = RunningPipeline.find(conf=str(tmp_path / "tranlog.toml")).status()
        whole = status.pipeline
        assert (whole.state, whole.serviceName, whole.channels, whole.appliedLastSeqno) == ("ONLINE", "percona", 4, 5)
        assert whole.currentEventId == whole.appliedLastEventId != "NONE", "the source has committed nothing behind it"
        assert status.queue.maxOfflineInterval == 5 and len(status.tasks) == len(status.queue.stores) == 4
        background[-1].send_signal(signal.SIGKILL)
        background[-1].wait()
        assert subprocess.run(words_of("tranlog state"), cwd=tmp_path, capture_output=True).returncode == 4
        again = subprocess.Popen(
            words_of("tranlog apply --channels 10 --offline"), cwd=tmp_path, stderr=subprocess.DEVNULL
        )
        background.append(again)
        line = "tranlog wait --state OFFLINE:NORMAL"
        done = subprocess.run(words_of(line), cwd=tmp_path, capture_output=True, text=True)
        assert "is OFFLINE:NORMAL" in done.stdout
        refused = subprocess.run(words_of("tranlog heartbeat x"), cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 2 and "does not write the log" in refused.stderr
        again.send_signal(signal.SIGTERM)
        assert again.wait(60) == 0
    finally:
        for process in background:
            process.kill()
            process.wait()
