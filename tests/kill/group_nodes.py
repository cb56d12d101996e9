"""The nodes of `make group-kill`: processes, each with a configuration and a log of its own, and the way to ask them.

Owns their lives, and who of them may be harmed: one harm at a time has a node.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from group_links import Proxies
from tranlog.errors import ControlError
from tranlog.replication.acting.orders import AddNode, NodeStatus
from tranlog.service.frame.exits import ExitCode, Told
from tranlog.service.process.client import node_of
from tranlog.service.upkeep.certificates import make_authority, make_client, make_node
from tranlog.testing.servers import free_port
from tranlog.tls import group_side

WHOLE_S = 120.0
"""A group that is left alone is whole after so long at most, on a crowded machine too."""
LOOK_S = 0.1
ANSWERS_S = 10.0
"""So long a node is waited for before it is stopped."""
CONFIG = """\
[service]
name = "shop"
[log]
dir = "log-{name}"
segment_bytes = 200000
spill_above = 100000
spill_buffer_bytes = "64KiB"
spill_chunk_bytes = "32KiB"
spill_segment_bytes = "1MiB"
[group]
node = "{name}"
listen = "127.0.0.1:{port}"
"""
SECURED = """\
tls_certificate = "certs/{name}.pem"
tls_key = "certs/{name}.key"
tls_ca = "certs/group.pem"
clients = {{ load = ["read", "write"] }}
"""
CERTIFIED_DAYS = 30


class RoundFailedError(Exception):
    """The group, or a node of it, does what it never should."""


class Nodes:
    """The processes. Threads: any; a harm has the nodes that it harms to itself by `having`."""

    def __init__(self, folder: Path, names: str, witness: str, seed: int, path: Path | None = None) -> None:
        """`witness`: the one of the nodes that keeps no log, empty for none. `path`: see `GroupOptions`."""
        paths = [] if path is None else [str(path.resolve())]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        self.folder = folder
        self.names = tuple(names)
        self.witness = witness
        self.ports = {name: free_port() for name in names}
        self.proxies = Proxies(self.ports, seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.primaries_killed: list[float] = []
        self.ended: list[str] = []
        self.tls: ssl.SSLContext | None = None
        """A program's side of TLS, while the nodes speak it."""
        self.filled: set[str] = set()
        """Whose disk was full, and who may be about to end of it: on a crowded machine that takes long."""
        self._locks = {name: threading.Lock() for name in names}
        self._said: list[threading.Thread] = []
        certs, made = folder / "certs", {"days": CERTIFIED_DAYS, "now_ms": int(time.time() * 1000)}
        make_authority(str(certs), **made)
        for name in names:
            make_node(str(certs), name, (), **made)
        client = make_client(str(certs), "load", **made)
        self._client_side = group_side(str(certs / "group.pem"), client.certificate)
        self._configure()

    def _configure(self) -> None:
        """Write the nodes' configurations, as they take them when they start."""
        for name, port in self.ports.items():
            via = "".join(f'{other} = "{at}"\n' for other, at in self.proxies.at(name).items())
            secured = SECURED.format(name=name) if self.tls is not None else ""
            text = CONFIG.format(name=name, port=port) + secured + "[group.via]\n" + via
            (self.folder / f"{name}.toml").write_text(text)

    def secure(self, secured: bool) -> None:
        """Have all nodes speak TLS, or none: they are stopped, as a supervisor does, and started again."""
        self.tls = self._client_side if secured else None
        self._configure()
        with self.having(*self.names):
            for name in self.names:
                self.stop(name)
            for name in self.names:
                self.start(name)
        self.await_primary()

    def stop(self, name: str) -> None:
        """Stop a node as a supervisor does, once it answers: one that has just been started knows no signal yet."""
        process, until = self.running[name], time.monotonic() + ANSWERS_S
        while process.poll() is None and self.status(name) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        process.terminate()
        if not self.has_ended(name, 60.0):
            self.kill(name)
        if process.returncode:
            self.ended.append(f"{name} was stopped and ended with {process.returncode}")

    @property
    def url(self) -> str:
        """Where programs look for the group."""
        return "thl://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def keeping(self) -> tuple[str, ...]:
        """The nodes that keep a log."""
        return tuple([name for name in self.names if name != self.witness])

    def log_of(self, name: str) -> Path:
        """Return the directory of a node's log."""
        return self.folder / f"log-{name}"

    # --- lives ---

    @contextlib.contextmanager
    def having(self, *names: str) -> Iterator[None]:
        """Have these nodes: no other harm kills, stops or starts them meanwhile."""
        with contextlib.ExitStack() as held:
            for name in sorted(names):
                held.enter_context(self._locks[name])
            yield

    def start(self, name: str) -> None:
        """Start a node."""
        command = [sys.executable, "-m", "tranlog", "--conf", str(self.folder / f"{name}.toml"), "--verbose"]
        process = subprocess.Popen([*command, "node", "run"], stderr=subprocess.PIPE, env=self._env)
        assert process.stderr is not None
        said = threading.Thread(target=self._keep_words, args=(name, process.stderr))  # a limit is the node's alone
        said.start()
        self._said.append(said)
        self.running[name] = process
        self.proxies.open(name)

    def _keep_words(self, name: str, words: IO[bytes]) -> None:
        with open(self.folder / f"{name}.err", "ab", buffering=0) as file:
            shutil.copyfileobj(words, file, 4096)

    def kill(self, name: str) -> None:
        """Kill a node with -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()
        self.proxies.shut(name)

    def signal(self, name: str, number: int) -> None:
        """Send a node a signal."""
        self.running[name].send_signal(number)

    def fill_disk(self, name: str) -> None:
        """Let a node write no byte into any file any more: what the system then says is that no room is left."""
        self._limit(name, 0)

    def empty_disk(self, name: str) -> None:
        """Let it write again."""
        self._limit(name, resource.RLIM_INFINITY)

    def _limit(self, name: str, most: int) -> None:
        _, hard = resource.prlimit(self.running[name].pid, resource.RLIMIT_FSIZE)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.running[name].pid, resource.RLIMIT_FSIZE, (most, hard))

    def has_ended(self, name: str, within_s: float) -> bool:
        """Return whether a node ends by itself in time; then it is not among those that run."""
        try:
            self.running[name].wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        del self.running[name]
        self.proxies.shut(name)
        return True

    def end(self) -> dict[str, int]:
        """Stop all nodes; return their exit codes."""
        self.proxies.clear()
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes = {}
        for name, process in list(self.running.items()):
            try:
                codes[name] = process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill(name)
                codes[name] = -9
        self.running.clear()
        for said in self._said:
            said.join()
        self.proxies.close()
        return codes

    # --- questions and orders ---

    def status(self, name: str) -> NodeStatus | None:
        """Return what a node says of the group; None where it does not answer."""
        try:
            return node_of(str(self.log_of(name))).typed("/group/status", NodeStatus, timeout_s=5.0)
        except (ControlError, Told):
            return None

    def primary(self) -> str | None:
        """Return who is primary by its own word; of two that say so the one of the later epoch."""
        found = [one for name in list(self.running) if (one := self.status(name)) is not None]
        reigning = {one.epoch: one.name for one in found if one.state == "PRIMARY"}
        return reigning[max(reigning)] if reigning else None

    def order(self, name: str, path: str, body: object, *, timeout_s: float = 30.0) -> str:
        """Give an order through a node; return why it was refused, empty where it was done."""
        try:
            found: Any = node_of(str(self.log_of(name))).ask(path, body, timeout_s=timeout_s)
        except (ControlError, Told) as exc:
            return str(exc) or type(exc).__name__
        assert isinstance(found, dict)
        return ""

    def add(self, through: str, name: str) -> str:
        """Have a node be a member; as `order`."""
        witness = name == self.witness
        wanted = AddNode(
            name=name, address=f"127.0.0.1:{self.ports[name]}", priority=0 if witness else 1, witness=witness
        )
        return self.order(through, "/group/add", wanted, timeout_s=WHOLE_S)

    def members(self) -> set[str]:
        """Return who is in the group and votes, by the primary's word."""
        name = self.primary()
        found = None if name is None else self.status(name)
        return set() if found is None else {one.name for one in found.members if one.votes}

    # --- waiting ---

    def _await(self, wanted: str, looked: Iterator[str]) -> None:
        """Return when a look finds nothing amiss. Raises RoundFailedError."""
        until = time.monotonic() + WHOLE_S
        for amiss in looked:
            if not amiss:
                return
            for name in [one for one in self.filled if self._code(one) == ExitCode.SURROUNDINGS]:
                self.filled.discard(name)
                self.has_ended(name, 0.0)
                self.start(name)
            dead = [f"{name} ({one.returncode})" for name, one in self.running.items() if one.poll() is not None]
            if dead:
                raise RoundFailedError(f"{', '.join(dead)} ended by itself")
            if time.monotonic() >= until:
                raise RoundFailedError(f"{wanted}: not within {WHOLE_S:g} s: {amiss}")
            time.sleep(LOOK_S)

    def await_primary(self) -> None:
        """Return when every node answers, is a member, and knows one and the same primary. Raises RoundFailedError."""

        def looks() -> Iterator[str]:
            while True:
                found = {name: self.status(name) for name in self.names}
                missing = set(self.names) - self.members()
                # One that was removed is told nothing any more, so it forgets who is primary.
                known = {None if one is None else one.primary for name, one in found.items() if name not in missing}
                agreed = len(known) == 1 and None not in known
                if missing and agreed:
                    self.add(str(known.pop()), min(missing))
                yield "" if agreed and not missing else _shown(found)

        self._await("one primary", looks())

    def await_whole(self) -> None:
        """Return when there is one primary, and every log ends as its does, all of it committed.

        Raises RoundFailedError.
        """

        def looks() -> Iterator[str]:
            while True:
                found = {name: self.status(name) for name in self.names}
                kept = [found[name] for name in self.keeping]
                ends = {(one.last, one.committed) for one in kept if one is not None}
                whole = None not in found.values() and len(ends) == 1 and all(last == at for last, at in ends)
                reigning = [name for name, one in found.items() if one is not None and one.state == "PRIMARY"]
                yield "" if whole and len(reigning) == 1 else _shown(found)

        self._await("whole logs", looks())

    def _code(self, name: str) -> int | None:
        process = self.running.get(name)
        return None if process is None else process.poll()

    def form(self) -> None:
        """Make the group. Raises RoundFailedError."""
        first = self.names[0]
        init = [sys.executable, "-m", "tranlog", "--conf", str(self.folder / f"{first}.toml"), "group", "init"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, timeout=WHOLE_S)
        for name in self.names:
            self.start(name)

        def looks() -> Iterator[str]:
            while True:
                there = all((self.log_of(name) / "control" / ".node").exists() for name in self.names)
                yield "" if there and self.primary() == first else "the nodes do not come up"

        self._await("the first primary", looks())
        for name in self.names[1:]:
            self._await(f"{name} in the group", self._admitting(first, name))

    def _admitting(self, through: str, name: str) -> Iterator[str]:
        """Admit a node: on a crowded machine the primary may lose its majority meanwhile, and another comes."""
        while True:
            yield self.add(through, name)


def _shown(found: dict[str, NodeStatus | None]) -> str:
    """Return where nodes stand, in short. Raises RoundFailedError where one is FATAL: no harm here explains that."""
    fatal = [f"{name} is FATAL: {one.fatal}" for name, one in found.items() if one is not None and one.fatal]
    if fatal:
        raise RoundFailedError("; ".join(fatal))
    words = []
    for name, one in found.items():
        if one is None:
            words.append(f"{name} does not answer")
        else:
            at = f"{one.state} epoch {one.epoch} last {one.last} committed {one.committed}"
            words.append(f"{name} {at} follows {one.primary}")
    return "; ".join(words)
