"""What does it cost a process to be looked at twenty times a second?

A pipeline that rests, beside a log of a few transactions and a target that is not made yet, is served as `apply` serves
it, and asked through its unix socket, each request a connection of its own, as commands do. CPU time is that of
the server's thread, by its own clock. What the threads take that read log and target is told apart; it is more where
the target is a server with many channels. The clients are processes of their own: one request may take longer than the
interval between two. No Spark: what it costs to answer is the same, and nothing else runs here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from frame import Bench, Question, at_most, run

from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.driving.operation import Operation
from tranlog.pipeline.options import ApplyOptions
from tranlog.service.process.operating import OperatingOptions, operated
from tranlog.target.options import TargetOptions

QUESTION = Question(
    name="server",
    text="How much of a core does the server of a process take that is asked for its status 20 times a second?",
    peer="none: the figure is absolute",
)
RATE = 20
SECONDS = 20
TRY_SECONDS = 5
# What a client takes is not the process's: it gives way to all others, and does no more than ask, as one on another
# machine does. A client of httpx took as much of these cores for each request as the process that answers.
CLIENT = """\
import os, socket, sys, time

os.nice(19)
path, rate, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
began = float(sys.argv[5])
asked = f"GET {sys.argv[4]} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n".encode()
for turn in range(rate * seconds):
    time.sleep(max(0.0, began + turn / rate - time.perf_counter()))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(30)
        peer.connect(path)
        peer.sendall(asked)
        found = b""
        while part := peer.recv(65536):
            found += part
    if not found.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"asked for {sys.argv[4]}: {found[:200]!r}")
"""
CLIENTS = 10
STARTED_S = 1.0


def ask_for(path: str, what: str, seconds: int) -> list[subprocess.Popen[bytes]]:
    """Start the clients; their requests come evenly."""
    began = time.perf_counter() + STARTED_S
    return [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, path, str(RATE // CLIENTS), str(seconds), what, str(began + number / RATE)]
        )
        for number in range(CLIENTS)
    ]


def cpu_while_asked(path: str, what: str, seconds: int) -> tuple[float, float]:
    """Return what part of a core the server's thread took, and the rest of the process, in percent."""
    (thread,) = (one for one in threading.enumerate() if one.name == "server")
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    at, whole, began = time.clock_gettime(clock), time.process_time(), time.perf_counter()
    for one in ask_for(path, what, seconds):
        if one.wait():
            raise SystemExit(f"a client ended with exit code {one.returncode}")
    passed = time.perf_counter() - began
    took = time.clock_gettime(clock) - at
    return 100 * took / passed, 100 * (time.process_time() - whole - took) / passed


def measure(bench: Bench) -> None:
    """Ask for the status, which is watched and shared, and for the state, which is at hand."""
    seconds = bench.size(SECONDS, trying=TRY_SECONDS)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name:
        folder = Path(name)
        with Log.open(str(folder / "log"), source_id="bench") as log:
            for number in range(100):
                log.append(
                    Fragment(source_id="bench", event_id=str(number), shard_id="s", tstamp=1, tables=(), payload=b"")
                )
            log.commit()
        target = TargetOptions(kind="sqlite", path=str(folder / "target.db"))
        operation = Operation(ApplyOptions(pipeline="p", log_dir=str(folder / "log"), target=target, channels=4))
        with operated(operation, LogOptions(), OperatingOptions(), runtime_dir=None):
            for what in ("/status", "/state"):
                taken = [
                    cpu_while_asked(str(folder / "log" / "control" / "p"), what, seconds)
                    for _ in range(bench.rounds(3))
                ]
                thread, others = zip(*taken, strict=True)
                bench.add(f"{what}, the server's thread", ours=thread, unit="% of a core", must=at_most(4))
                bench.add(f"{what}, the threads that read", ours=others, unit="% of a core")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
