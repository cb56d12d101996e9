"""replication/acting/node.py: hostile, garbled and silent peers by the hundred, while a group with TLS commits.

docs/replication.md, "TLS and permissions"; docs/protocol.md, "Frames".
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import resource
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fix_live_group import LiveGroup, differences, events, eventually, live_group, words
from fix_mutation import mutated
from tranlog.clock import SYSTEM_CLOCK
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.rules.config import MAJORITY, ConfigId, NodeId
from tranlog.replication.rules.packets import (
    NO_GTID,
    AskConcern,
    Begin,
    DiskCall,
    GroupOrder,
    Join,
    Part,
    WaitConsistent,
    encode,
)
from tranlog.service.upkeep.certificates import make_authority, make_client, make_node
from tranlog.tls import group_side

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
FRAMES = [bytes.fromhex(found) for found in re.findall(r"\| `([0-9a-f]{16,})` \|", PAGE.read_text())]
"""An example of each packet."""
ELSEWHERE = "127.0.0.2"
"""From where they attack: an address has its share of handshakes, and the group's own has another one."""
ATTACKERS = 4
SILENT = 24
"""So many connections an attacker leaves open at once."""
FILES = 3
"""So many files a reader opens that does not read."""
MEMORY_MAX = 400 << 20


def frame(kind: int, length: int) -> bytes:
    return struct.pack(">IBBH", length, kind, 0, 0)


class Attacker:
    """One of them. What it does is its seed's."""

    def __init__(self, seed: int, ports: list[int], sides: dict[str, ssl.SSLContext], group: str) -> None:
        self.rng = random.Random(seed)
        self.made: Counter[str] = Counter()
        self.peers: Counter[str] = Counter()
        self._ports = ports
        self._sides = sides
        self._group = group
        self._open: list[socket.socket] = []

    def run(self, until: float) -> None:
        kinds: list[Callable[[], None]] = [
            self.garbage,
            self.silence,
            self.stranger,
            self.half_a_handshake,
            *3 * [self.mutations],
            self.order,
            self.many_begun,
            self.questions,
            self.never_reads,
            self.slow,
        ]
        while time.monotonic() < until:
            kind = self.rng.choice(kinds)
            self.made[kind.__name__] += 1
            with contextlib.suppress(OSError):  # it was ended, which is what it is there for
                kind()
        self.close(0)

    def close(self, leave: int) -> None:
        while len(self._open) > leave:
            one = self._open.pop(0)
            if self.rng.random() < 0.5:  # by a reset
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()

    def _plain(self) -> socket.socket:
        self.close(SILENT)
        found = socket.create_connection(("127.0.0.1", self.rng.choice(self._ports)), 5.0, (ELSEWHERE, 0))
        self._open.append(found)
        self.peers["{}:{}".format(*found.getsockname())] += 1
        return found

    def _certified(self, name: str) -> ssl.SSLSocket:
        found = self._sides[name].wrap_socket(self._plain())  # which closes the plain one
        self._open[-1] = found
        found.settimeout(5.0)
        return found

    def _joined(self, name: str, purpose: str, says: str = "") -> ssl.SSLSocket:
        found = self._certified(name)
        join = Join(
            node=NodeId(f"{self.rng.randrange(9)}"),
            node_name=says or name,
            purpose=purpose,
            versions=(1, 1),
            config=ConfigId(),
            last=NO_GTID,
            heartbeat_ms=250,
            group=self._group,
            force=True,
        )
        found.sendall(encode(join))
        return found

    def garbage(self) -> None:
        found = self._plain()
        found.sendall(self.rng.randbytes(self.rng.choice((1, 100, 100_000))))

    def silence(self) -> None:
        self._plain()

    def stranger(self) -> None:
        self._certified("stranger").recv(100)

    def half_a_handshake(self) -> None:
        self._certified("shop").sendall(frame(2, self.rng.choice((0, 30, 1 << 31))) + b"\x9b\xa1")

    def mutations(self) -> None:
        """What a client, or a node that is no member, says, made wrong."""
        name, purpose = self.rng.choice((("shop", "commit"), ("shop", "read"), ("c", "vote"), ("c", "restore")))
        found = self._joined(name, purpose, self.rng.choice(("", "one\nA connection was", "long" * 9_000)))
        for _ in range(self.rng.randrange(1, 30)):
            found.sendall(mutated(self.rng, FRAMES) if self.rng.random() < 0.7 else self.rng.choice(FRAMES))

    def order(self) -> None:
        """A client that may not operate has nothing done."""
        found = self._joined("shop", self.rng.choice(("administer", "commit")))
        found.sendall(encode(GroupOrder(number=1, name="reconfigure", raw=b'{"force": true}')))

    def many_begun(self) -> None:
        found = self._joined("shop", "commit")
        for at in range(2_000):
            found.sendall(encode(Begin(number=at)) + encode(Part(number=at, raw=bytes(self.rng.randrange(2_000)))))

    def questions(self) -> None:
        found = self._joined("shop", "commit")
        for at in range(500):
            asked = AskConcern(number=at, gtid=NO_GTID, w=MAJORITY, wtimeout_ms=100)
            found.sendall(encode(asked) + encode(WaitConsistent(number=at, kind="latest", timeout_ms=100)))

    def never_reads(self) -> None:
        found = self._joined("shop", "read")
        for at in range(300):
            found.sendall(
                encode(DiskCall(number=at, call="open" if at < FILES else self.rng.choice(("list", "boot")), name=""))
            )

    def slow(self) -> None:
        found = self._joined("shop", "commit")
        for byte in FRAMES[0][:20]:
            found.sendall(bytes([byte]))


@contextlib.contextmanager
def sampled(found: dict[str, int]) -> Iterator[None]:
    """Note the most memory and files that this process, the nodes', had while the block ran."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            found["files"] = max(found.get("files", 0), files())
            found["memory"] = max(found.get("memory", 0), memory())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    "seconds", [pytest.param(4.0, marks=pytest.mark.long), pytest.param(60.0, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)
def test_a_group_commits_on_whoever_attacks_it(
    seconds: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each costs at most a line and its own connection; memory and files stay bounded, and nothing is lost."""
    now, seed = SYSTEM_CLOCK.now_ms(), random.randrange(1 << 32)
    print(f"seed {seed}")
    for authority in ("ours", "theirs"):
        make_authority(str(tmp_path / authority), days=30, now_ms=now)
    for name in "abc":
        make_node(str(tmp_path / "ours"), name, (), days=30, now_ms=now)
    for authority, name in (("ours", "shop"), ("ours", "honest"), ("theirs", "stranger")):
        make_client(str(tmp_path / authority), name, days=30, now_ms=now)

    def side(name: str, authority: str = "ours", *, server: bool = False) -> ssl.SSLContext:
        pem, key = (tmp_path / authority / f"{name}.{end}" for end in ("pem", "key"))
        ca = str(tmp_path / "ours" / "group.pem")
        return group_side(ca, str(pem), str(key) if key.exists() else None, server=server)

    clients = {"shop": ("read", "write"), "honest": ("write",)}
    acknowledged: list[str] = []
    with live_group(tmp_path, "ab", lambda name: (side(name, server=True), side(name)), clients=clients) as group:
        sides = {"shop": side("shop"), "c": side("c"), "stranger": side("stranger", "theirs")}
        ports = [int(one.listen.rpartition(":")[2]) for one in group.options.values()]
        attackers = [
            Attacker(seed + at, ports, sides, group.nodes["a"].standing.config.group) for at in range(ATTACKERS)
        ]
        with group.client(tls=side("honest")) as client:

            def commit() -> None:
                event = f"e{len(acknowledged)}"
                told = client.commit(words(event), w=MAJORITY, wtimeout=60.0, event_id=event)
                while not isinstance(told, Satisfied):  # another primary was elected on a crowded machine
                    told = client.commit(words(event), w=MAJORITY, wtimeout=60.0, event_id=event)
                acknowledged.append(event)

            commit()
            most: dict[str, int] = {}
            before = files(), memory()
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=one.run, args=(until,)) for one in attackers]
            with caplog.at_level(logging.WARNING), sampled(most):
                for thread in threads:
                    thread.start()
                while any(thread.is_alive() for thread in threads):
                    commit()
                    time.sleep(0.01)
                for thread in threads:
                    thread.join()
            commit()
            made = sum((one.made for one in attackers), Counter())
            print(made, most, before, len(acknowledged))
            eventually(lambda: quiet(group))
            eventually(lambda: files() <= before[0] + 20)
        group.await_whole()
    for name in "ab":
        assert set(acknowledged) <= set(events(tmp_path / name))
    assert differences(tmp_path / "a", tmp_path / "b") == ""
    assert most["memory"] <= before[1] + MEMORY_MAX
    assert most["files"] <= before[0] + (2 + FILES) * ATTACKERS * (SILENT + 1) + 100, (
        "both ends of each, and what they read"
    )
    said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("A connection was")]
    lines = Counter(one.partition("peer=")[2].partition(" ")[0] for one in said)
    peers = sum((one.peers for one in attackers), Counter())
    assert said != [] and [line for line in said if "\n" in line] == []
    assert lines <= peers, f"one line for each at most: {lines - peers}"
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info] == []


def quiet(group: LiveGroup) -> bool:
    """Whether only the group's own connections are left, and the honest client's."""
    return all(len(node.entrance.wires) <= 2 for node in group.nodes.values())
