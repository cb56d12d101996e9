"""How fast does a follower take what its primary wrote, and what does that cost either of them?

The primary's log has the records already, and a node that has none begins to follow: everything goes over loopback, is
verified and appended, and synced as the follower does it. Held against the same bytes, sent over a socket by one thread
and written into a file by another, with as many syncs. Each node is a process of its own (`bench/nodes.py`), and its
CPU time is told by itself. With TLS both sides show certificates; the socket of the anchor has TLS too.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

from frame import Bench, Question, at_least, at_most, run, seconds_of
from nodes import HISTORY, Nodes, fragment, nodes, side

from tranlog.log.writing.log import Log

QUESTION = Question(
    name="replication",
    text="How fast does a node of a group replicate records of 1 KB that are behind, and what does a million take?",
    peer="a copy of the same bytes over a socket, with TLS where ours has it, into a file, with as many syncs",
)
RECORDS, TRY_RECORDS = 1_000_000, 500_000
PIECE = 256 << 10


def fill(folder: Path, count: int) -> int:
    """Make a log of so many records; return its last seqno."""
    with closing(Log.open(folder, source_id="bench", history=HISTORY)) as log:
        ready = [fragment(number) for number in range(1000)]
        for _ in range(count // 1000):
            log.append_many(ready)
            log.commit()
        return log.last_seqno


def copy(source: Path, into: Path, syncs: int, contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None]) -> float:
    """Send a log's segments over a socket, and write them into a file; return the seconds."""
    segments = sorted(source.glob("thl.data.*"))
    size = sum(one.stat().st_size for one in segments)
    each = size // syncs
    with socket.create_server(("127.0.0.1", 0)) as server, open(into, "wb", buffering=0) as file:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

        def send() -> None:
            with _wrapped(sender, contexts[1], server=False) as wire:
                for segment in segments:
                    with open(segment, "rb", buffering=0) as stream:
                        while piece := stream.read(PIECE):
                            wire.sendall(piece)

        def receive() -> None:
            buffer, unsynced = bytearray(PIECE), 0
            with _wrapped(receiver, contexts[0], server=True) as wire:
                while got := wire.recv_into(buffer):
                    file.write(memoryview(buffer)[:got])
                    unsynced += got
                    if unsynced >= each:
                        os.fdatasync(file.fileno())
                        unsynced = 0
                os.fdatasync(file.fileno())

        def both() -> None:
            thread = threading.Thread(target=send)
            thread.start()
            receive()
            thread.join()

        return seconds_of(both)


def _wrapped(wire: socket.socket, context: ssl.SSLContext | None, *, server: bool) -> socket.socket:
    return wire if context is None else context.wrap_socket(wire, server_side=server)


class Replicating:
    """A group whose second node begins to follow again and again, by which `taken` and `syncs` grow."""

    def __init__(self, folder: Path, group: Nodes, count: int, last: int, *, tls: bool) -> None:
        self._folder = folder
        self._group = group
        self._count = count
        self._last = last
        certified = str(folder) if tls else ""
        self._contexts = side(certified, "a", server=True), side(certified, "b", server=False)
        self.taken: dict[str, list[float]] = {"sender": [], "receiver": []}
        self.syncs: list[float] = []

    def replicate(self) -> float:
        """Have it follow to the end; return records a second."""
        sender, receiver = self._group.nodes["a"], self._group.nodes["b"]
        receiver.start(go=False)
        before = receiver.ask("there"), sender.ask("there")
        receiver.ask("go")
        after = receiver.ask(f"until {self._last}"), sender.ask("there")
        receiver.kill()
        self.syncs.append(after[0]["syncs"])
        for who, one, other in zip(("receiver", "sender"), before, after, strict=True):
            self.taken[who].append((other["cpu"] - one["cpu"]) * 1e6 / self._count)
        shutil.rmtree(receiver.folder)
        self._group.install("b")
        return self._count / (after[0]["at"] - before[0]["at"])

    def by_socket(self) -> float:
        """Copy the same bytes; return records a second."""
        copied = self._folder / "copied"
        seconds = copy(self._folder / "a", copied, int(self.syncs[-1]), self._contexts)
        copied.unlink()
        return self._count / seconds


def measure(bench: Bench) -> None:
    """Both sides by turns, plain and with TLS."""
    count = bench.size(RECORDS, trying=TRY_RECORDS)
    for tls in (False, True):
        with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name:
            folder, sort = Path(name), "TLS" if tls else "plain"
            last = fill(folder / "a", count)
            with nodes(folder, "ab", voters="a", tls=tls) as group:
                group.nodes["a"].start()
                group.primary("a")
                Replicating(folder, group, count, last, tls=tls).replicate()  # a first time does not count
                one = Replicating(folder, group, count, last, tls=tls)
                ours, anchor = [], []
                for _ in range(bench.rounds()):
                    ours.append(one.replicate())
                    anchor.append(one.by_socket())
                bench.add(f"{sort}, records behind", ours=ours, anchor=anchor, unit="records/s", must=at_least(0.4))
                for who, most in (("sender", 1.5), ("receiver", 2.5)):
                    must = None if tls else at_most(most)
                    bench.add(f"{sort}, CPU of the {who}", ours=one.taken[who], unit="s per million", must=must)
                bench.add(f"{sort}, syncs of the receiver", ours=one.syncs, unit="")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
