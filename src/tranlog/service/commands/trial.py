"""`tranlog group trial`: a group of three nodes on this machine, to try one.

Owns the folder with their configurations, and the three processes. What is done, an operator does by the commands that
are printed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tranlog.disk import OS_DISK
from tranlog.errors import ConfigError, GroupOrderError
from tranlog.replication.acting.node import group_dir
from tranlog.replication.acting.state import StateFile
from tranlog.service.config.config import load
from tranlog.service.frame.command import say, stop_signals
from tranlog.service.frame.exits import ExitCode
from tranlog.service.process.node_part import node_options

NODES: Final = "abc"
Nodes = dict[str, subprocess.Popen[bytes]]
_READY_S: Final = 60.0
_PAUSE_S: Final = 0.2
_CONFIGURATION: Final = """\
[service]
name = "trial"

[log]
dir = "log-{name}"

[group]
name = "trial"
node = "{name}"
listen = "{listen}"
"""


def trial(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they have their logs.")],
    port: Annotated[int, typer.Option("--port", metavar="N", help="The first of three.", min=1, max=65_533)] = 2112,
) -> int:
    """Run a group of three nodes on loopback until Ctrl-C; what was committed is there again the next time.

    \b
    Example:
      tranlog group trial here
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(option="DIR", value=str(folder), why="it is a file")
    folder.mkdir(parents=True, exist_ok=True)
    for at, name in enumerate(NODES):
        path = folder / f"{name}.toml"
        if not path.exists():
            path.write_text(_CONFIGURATION.format(name=name, listen=f"127.0.0.1:{port + at}"))
    options = {name: node_options(load(str(folder / f"{name}.toml"), environ=os.environ)) for name in NODES}
    places = {name: one.listen for name, one in options.items()}
    known = StateFile(OS_DISK, group_dir(options["a"].dir)).load()
    if known is None or not known.group:
        _done(folder, "a", "group", "init")
    stopped = threading.Event()
    with stop_signals(stopped.set, quiet=True), ExitStack() as stack:
        nodes = {name: stack.enter_context(_running(folder, name)) for name in NODES}
        for node in nodes.values():
            stack.callback(node.terminate)  # all of them, before one is waited for
        members = _members(folder, nodes, stopped)
        for name, listen in places.items():
            if name not in members and not stopped.is_set():
                _until_done(folder, nodes, stopped, "group", "add", name, listen)
        if not stopped.is_set():
            print(f"a group of three is at thl://{','.join(places.values())}; Ctrl-C ends it", flush=True)
        while not stopped.wait(_PAUSE_S):
            _check_all_run(folder, nodes)
    return ExitCode.DONE


@contextmanager
def _running(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node, which writes what it says to a file, in a session of its own: Ctrl-C is ours."""
    with (folder / f"{name}.txt").open("ab") as words:
        say(_shown(folder, name, "node", "run"))
        node = subprocess.Popen(
            _command(name, "node", "run"), cwd=folder, stdout=words, stderr=words, start_new_session=True
        )
    try:
        yield node
    finally:
        node.terminate()
        node.wait()


def _members(folder: Path, nodes: Nodes, stopped: threading.Event) -> set[str]:
    """Return who is in the group, once a node knows of a primary; all of them where it is to end."""
    done = _until_done(folder, nodes, stopped, "group", "status", "--json")
    return set(nodes) if done is None else {one["name"] for one in json.loads(done)["members"]}


def _until_done(folder: Path, nodes: Nodes, stopped: threading.Event, *words: str) -> str | None:
    """Give node a a command until it is carried out, since nodes may just be starting, and return its output.

    None where it is to end before. Raises GroupOrderError.
    """
    until = time.monotonic() + _READY_S
    say(_shown(folder, "a", *words))
    while not stopped.is_set():
        _check_all_run(folder, nodes)
        done = subprocess.run(_command("a", *words), cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == ExitCode.DONE:
            return done.stdout
        if time.monotonic() > until:
            raise GroupOrderError(why=f"{done.stderr.strip()}; see {folder}/a.txt")
        stopped.wait(_PAUSE_S)
    return None


def _done(folder: Path, name: str, *words: str) -> None:
    say(_shown(folder, name, *words))
    done = subprocess.run(_command(name, *words), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != ExitCode.DONE:
        raise GroupOrderError(why=done.stderr.strip())


def _check_all_run(folder: Path, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if node.poll() is not None:
            words = (folder / f"{name}.txt").read_text(errors="replace").splitlines()
            raise GroupOrderError(why=f"node {name} has ended: {words[-1] if words else ''}; see {folder}/{name}.txt")


def _command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "tranlog", "--conf", f"{name}.toml", *words]


def _shown(folder: Path, name: str, *words: str) -> str:
    return shlex.join(["tranlog", "--conf", str(folder / f"{name}.toml"), *words])
