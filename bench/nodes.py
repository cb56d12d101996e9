"""Nodes of a group in processes of their own, for the programs that ask what a group costs; no question itself.

`python bench/nodes.py` is such a process: it starts the node when it is told `go`, and answers each line that it is
sent with one of JSON. Its CPU time is its own, so a sender's is told from a receiver's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tranlog.change import Fragment
from tranlog.disk import OS_DISK
from tranlog.replication.acting.node import GroupNode, NodeOptions, group_dir, lock_node
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules.config import ConfigId, GroupConfig, Member, NodeId
from tranlog.replication.rules.packets import PRIMARY
from tranlog.replication.rules.stored import Stored
from tranlog.testing.servers import free_port
from tranlog.tls import group_side

GROUP = "bench"
HISTORY = bytes(range(16))
PAYLOAD = bytes(range(256)) * 4
PATIENCE_S = 60.0


def fragment(number: int) -> Fragment:
    """Return a transaction of one fragment and 1 KB."""
    return Fragment(
        source_id="bench",
        event_id=f"0-1-{number};binlog.000001:{number * 1100}",
        shard_id="shop",
        tstamp=1_800_000_000_000,
        tables=(("shop", "orders"),),
        payload=PAYLOAD,
    )


@dataclass
class Node:
    """A node's process."""

    member: Member
    folder: Path
    tls: str = ""
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self, *, go: bool = True) -> None:
        """Start the process, and the node in it."""
        command = [sys.executable, __file__, str(self.folder), self.member.name, self.member.address, self.tls]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("there")
        if go:
            self.ask("go")

    def ask(self, line: str) -> dict[str, float]:
        """Tell the process a line; return its answer."""
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found

    def kill(self) -> None:
        """Kill it with -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                stream.close()
            self.process = None


@dataclass
class Nodes:
    """The nodes of a group, in folders of their names."""

    config: GroupConfig
    nodes: Mapping[str, Node]

    @property
    def url(self) -> str:
        """Where clients look for it."""
        return "thl://" + ",".join(one.member.address for one in self.nodes.values())

    def install(self, name: str) -> None:
        """Have a node, whose directory is new or has a log alone, be a member of the group."""
        node = self.nodes[name]
        options = options_of(node.folder, name, node.member.address)
        lock_node(options).release()
        state = StateFile(OS_DISK, group_dir(options.dir))
        state.store(Stored(group=HISTORY.hex(), node=node.member.node, config=self.config))

    def primary(self, among: Sequence[str]) -> str:
        """Return who of them is primary and has committed in its epoch, when one is."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for name in among:
                found = self.nodes[name].ask("standing")
                if found["primary"] and found["committed_epoch"] == found["epoch"]:
                    return name
            time.sleep(0.02)
        raise SystemExit("no primary was elected")


@contextmanager
def nodes(
    folder: Path, names: str, *, first: str = "a", voters: str = "", tls: bool = False, **settings: int
) -> Iterator[Nodes]:
    """Make a group, of which `first` becomes primary; nothing runs yet. `voters`: those that vote, all by default.

    What runs at the end is killed. `settings` are the configuration's.
    """
    if tls:
        make_certificate(folder, "authority")
    members = []
    for name in names:
        votes = int(name in (voters or names))
        priority = 2 if name == first else votes
        members.append(
            Member(
                node=NodeId(f"id-{name}"),
                name=name,
                address=f"127.0.0.1:{free_port()}",
                votes=votes,
                priority=priority,
            )
        )
    config = GroupConfig(group=HISTORY.hex(), id=ConfigId(0, 1), members=tuple(members), **settings)  # type: ignore[arg-type]
    found = Nodes(config, {one.name: Node(one, folder / one.name, str(folder) if tls else "") for one in members})
    for name in names:
        if tls:
            make_certificate(folder, name, signed_by="authority")
        found.install(name)
    try:
        yield found
    finally:
        for one in found.nodes.values():
            one.kill()


def options_of(folder: Path, name: str, address: str) -> NodeOptions:
    """Return the options of a node."""
    return NodeOptions(dir=str(folder), group=GROUP, node=name, listen=address)


def make_certificate(folder: Path, name: str, *, signed_by: str | None = None) -> None:
    """Make a certificate for loopback and its key, signed by another one or itself."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    if signed_by is not None:
        command += ["-CA", str(folder / f"{signed_by}.pem"), "-CAkey", str(folder / f"{signed_by}.key")]
    out = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command, *out], check=True, capture_output=True)


def side(folder: str, name: str, *, server: bool) -> ssl.SSLContext | None:
    """Return a side of TLS by the certificates in a folder; None without one."""
    if not folder:
        return None
    here = Path(folder)
    return group_side(str(here / "authority.pem"), str(here / f"{name}.pem"), str(here / f"{name}.key"), server=server)


# --- the process -----------------------------------------------------------------------------------------


class _Answering:
    def __init__(self, node: GroupNode, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop

    def answer(self, line: str) -> dict[str, object]:
        """Do what a line says."""
        word, _, rest = line.strip().partition(" ")
        if word == "go":
            asyncio.run_coroutine_threadsafe(self._node.start(), self._loop).result()
        elif word == "until":
            while self._node.standing.durable.seqno < int(rest):
                time.sleep(0.005)
        return {"cpu": time.process_time(), "at": time.perf_counter(), **self._standing()}

    def _standing(self) -> dict[str, object]:
        thread, at = self._node.thread, self._node.standing
        if thread is None:
            return {}
        return {
            "primary": at.state == PRIMARY,
            "epoch": at.epoch,
            "last": at.last.seqno,
            "durable": at.durable.seqno,
            "committed_epoch": at.committed.epoch,
            "syncs": thread.log.log.status().syncs,
            "lag": thread.commits.flow.lag,
        }


def main() -> None:
    """Be a node, until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "name", "address", "tls"):
        parser.add_argument(name)
    given = parser.parse_args()

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    node = GroupNode(
        options_of(Path(given.folder), given.name, given.address),
        server_tls=side(given.tls, given.name, server=True),
        client_tls=side(given.tls, given.name, server=False),
    )
    answering = _Answering(node, loop)
    for line in sys.stdin:
        print(json.dumps(answering.answer(line)), flush=True)


if __name__ == "__main__":
    main()
