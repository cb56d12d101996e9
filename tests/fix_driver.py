"""Drivers to be disturbed: a run in a thread, `tranlog apply` and its like in processes, and what lives below them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fix_pipeline import AnyTarget
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.driving.apply import ApplyResult, run_apply
from tranlog.pipeline.driving.replanning import PlanOrders
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.options import ApplyOptions

if TYPE_CHECKING:
    from pyspark import SparkContext

PROGRAM = Path(sys.executable).with_name("tranlog")
SMALL = GroupBounds(transactions=3)


def options(tmp_path: Path, target: AnyTarget, **more) -> ApplyOptions:
    """Options for the log in `tmp_path`, up to now unless they say otherwise."""
    return ApplyOptions(
        **{"pipeline": "p", "log_dir": str(tmp_path / "log"), "target": target.options, "until_seqno": "now", **more}
    )


def wait_until(true: Callable[[], bool], timeout_s: float = 200.0) -> None:
    """Wait for a condition, long: a machine may be busy."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


class Run:
    """A run in a thread, to be disturbed."""

    def __init__(self, given: ApplyOptions, context: SparkContext, plans: PlanOrders | None = None) -> None:
        self._plans = plans
        self.stop = threading.Event()
        self.reports: list[ApplyStatus] = []
        self.result: ApplyResult | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(given, context), daemon=True)
        self._thread.start()

    def _run(self, given: ApplyOptions, context: SparkContext) -> None:
        try:
            self.result = run_apply(given, stop=self.stop, report=self.reports.append, spark=context, plans=self._plans)
        except BaseException as exc:
            self.error = exc

    def join(self) -> ApplyResult:
        self.ended()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def ended(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), "it did not end"


DRIVER = """
import pickle, signal, sys, threading
from tranlog.errors import TranlogError
from tranlog.pipeline.driving.apply import run_apply
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
options = pickle.loads(bytes.fromhex(sys.argv[1]))
def report(status):
    print(status.phase, status.restart_seqno, flush=True)
try:
    result = run_apply(options, stop=stop, report=report)
    for note in result.status.notes:
        print("note", note, flush=True)
    print("ended", result.end, flush=True)
except TranlogError as exc:
    print(type(exc).__name__, exc, flush=True)
"""


class Driver:
    """A driver in a process of its own, with a JVM of its own: `run_apply`, or a command of tranlog's."""

    def __init__(
        self, given: ApplyOptions | list[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        if isinstance(given, ApplyOptions):
            command = [sys.executable, "-c", DRIVER, pickle.dumps(given).hex()]
        else:
            command = [str(PROGRAM), *given]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
        )

    def children(self) -> set[int]:
        """All processes below it, by their parents."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}

    def connected(self, port: int) -> int:
        """The process below it that has this local TCP port: the worker behind a server's session."""
        inodes = {
            fields[9]
            for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
            if int(fields[1].rpartition(":")[2], 16) == port
        }
        for pid in self.children():
            try:
                links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            except OSError:
                continue
            if any(f"socket:[{inode}]" in links for inode in inodes):
                return pid
        raise AssertionError(f"nobody below {self.process.pid} has port {port}")

    def keep_jvm(self) -> IO[bytes]:
        """Open the other end of its JVM's standard input, so that the JVM and the workers live on without the driver.

        So live executors on another machine. They end when this is closed.
        """
        (jvm,) = [pid for pid in self.children() if program(pid) == "java"]
        return Path(f"/proc/{jvm}/fd/0").open("wb", buffering=0)

    def finish(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Wait for its end; return its exit code and what it said."""
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, stdout, stderr

    def kill(self) -> None:
        """End it with -9; once it has ended, harmless."""
        self.process.kill()
        self.process.communicate(timeout=60)


def program(pid: int) -> str:
    """The name of the program that a process runs; empty when it has just ended."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def state(pid: int) -> str:
    """What the kernel says of a process: T stopped, Z or nothing dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if state(pid) not in ("", "Z")}
