"""`make group-kill`: three nodes in processes of their own, harmed round after round while programs commit.

Prints one JSON object: rounds, seed, harms by kind, what was acknowledged by `w`, what nobody knows; what must be 0:
lost (acknowledged by a majority, and not in the log), unaccounted (acknowledged at w = 1 or 2, in neither the log nor
anybody's rollback data), doubled, diverged (records that differ between two logs), disordered (an acknowledged commit
that does not stand at its GTID, or before one that returned before it began). Exit code 1 unless they are.

docs/replication.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tranlog.change import Statement
from tranlog.errors import ControlError, NoPrimaryError
from tranlog.ids import Gtid
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.diff import diff
from tranlog.replication.acting.client import AsyncGroup, FailedOver, NotPrimary, Satisfied
from tranlog.replication.acting.orders import NodeStatus
from tranlog.replication.acting.rollback import read_operations, saved_rollbacks
from tranlog.service.frame.exits import Told
from tranlog.service.group_client import connect_async
from tranlog.service.process.client import node_of
from tranlog.testing.servers import free_port

NAMES = ("a", "b", "c")
WRITERS = 16
WS: tuple[int | str, ...] = (1, 2, "majority")
WHOLE_S = 120.0
"""A group that is left alone is whole after so long at most, on a crowded machine too."""
STOP_SHORT_S, STOP_LONG_S = 0.6, 4.0
"""Below an election timeout (four to eight heartbeats of 250 ms), and above."""
CONFIG = """\
[service]
name = "shop"
[log]
dir = "log-{name}"
segment_bytes = 200000
[group]
node = "{name}"
listen = "127.0.0.1:{port}"
"""


@dataclass(frozen=True)
class Committed:
    """A commit that was answered. Times: seconds of this program's clock."""

    event: str
    w: int | str
    gtid: Gtid
    began: float
    returned: float


class Nodes:
    """The processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in NAMES}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.primaries_killed: list[float] = []
        for name, port in self.ports.items():
            (folder / f"{name}.toml").write_text(CONFIG.format(name=name, port=port))

    @property
    def url(self) -> str:
        """Where programs look for the group."""
        return "thl://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def log_of(self, name: str) -> Path:
        """Return the directory of a node's log."""
        return self.folder / f"log-{name}"

    def command(self, name: str, *words: str) -> list[str]:
        """Return a command line for a node."""
        return [sys.executable, "-m", "tranlog", "--conf", str(self.folder / f"{name}.toml"), *words]

    def do(self, name: str, *words: str) -> str:
        """Run a command to its end; return what it prints."""
        done = subprocess.run(self.command(name, *words), capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """Start a node."""
        with open(self.folder / f"{name}.err", "ab") as err:
            self.running[name] = subprocess.Popen(self.command(name, "--verbose", "node", "run"), stderr=err)

    def kill(self, name: str) -> None:
        """Kill a node with -9."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def signal(self, name: str, number: int) -> None:
        """Send a node a signal."""
        self.running[name].send_signal(number)

    def end(self) -> dict[str, int]:
        """Stop all nodes; return their exit codes."""
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
        return codes

    def status(self, name: str) -> NodeStatus | None:
        """Return what a node says of the group; None where it does not answer."""
        try:
            return node_of(str(self.log_of(name))).typed("/group/status", NodeStatus, timeout_s=5.0)
        except (ControlError, Told):
            return None

    def primary(self) -> str | None:
        """Return who is primary by its own word."""
        for name in self.running:
            found = self.status(name)
            if found is not None and found.state == "PRIMARY":
                return name
        return None

    def await_primary(self) -> None:
        """Return when every node answers, and knows one and the same primary."""
        until = time.monotonic() + WHOLE_S
        while True:
            found = {None if (one := self.status(name)) is None else one.primary for name in NAMES}
            if len(found) == 1 and None not in found:
                return
            assert time.monotonic() < until, f"there is no primary: {found}"
            time.sleep(0.1)

    def await_whole(self) -> None:
        """Return when there is one primary, and every log ends as its does, all of it committed."""
        until = time.monotonic() + WHOLE_S
        while True:
            found = [self.status(name) for name in NAMES]
            known = [one for one in found if one is not None]
            ends = {(one.last, one.committed) for one in known}
            if len(known) == len(NAMES) and len(ends) == 1 and all(one.last == one.committed for one in known):
                if sum(one.state == "PRIMARY" for one in known) == 1:
                    return
            assert time.monotonic() < until, f"the group is not whole: {found}"
            time.sleep(0.1)

    def form(self) -> None:
        """Make the group."""
        self.do("a", "group", "init")
        for name in NAMES:
            self.start(name)
        until = time.monotonic() + WHOLE_S
        while any(not (self.log_of(name) / "control" / ".node").exists() for name in NAMES) or self.primary() is None:
            assert time.monotonic() < until, "the nodes do not come up"
            time.sleep(0.1)
        for name in NAMES[1:]:
            self.do("a", "group", "add", name, f"127.0.0.1:{self.ports[name]}")


class Load:
    """Programs that commit. What was answered how is kept."""

    def __init__(self, url: str) -> None:
        self.done: list[Committed] = []
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self._url = url
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Commit until `stop`, each writer at its own `w`."""
        groups: list[AsyncGroup] = [connect_async(self._url, find_s=5.0) for _ in range(4)]
        await asyncio.gather(*[self._write(number, groups[number % 4]) for number in range(WRITERS)])
        for group in groups:
            await group.close()

    def stop(self) -> None:
        """Commit no more."""
        self._stopped.set()

    async def _write(self, number: int, group: AsyncGroup) -> None:
        w = WS[number % len(WS)]
        for count in itertools.count():
            if self._stopped.is_set():
                return
            event = f"{number}-{count}"
            began = time.monotonic()
            try:
                content = [Statement(schema="shop", sql=event, ddl=False)]
                answer = await group.commit(content, w=w, wtimeout=30.0, event_id=event)
            except NoPrimaryError:
                self.refused.add(event)
                continue
            returned = time.monotonic()
            if isinstance(answer, Satisfied):
                self.done.append(Committed(event, w, answer.gtid, began, returned))
            elif isinstance(answer, NotPrimary):
                self.refused.add(event)
                await asyncio.sleep(0.02)
            else:
                self.unknown.add(event)
                assert isinstance(answer, FailedOver) or answer.gtid is not None
            await asyncio.sleep(0.01)


# --- harms -------------------------------------------------------------------------------------------------


def kill_primary(nodes: Nodes, rng: random.Random) -> None:
    """Kill whoever is primary."""
    name = nodes.primary()
    if name is not None:
        nodes.primaries_killed.append(time.monotonic())
    _kill(nodes, [name or rng.choice(NAMES)], rng)


def kill_replica(nodes: Nodes, rng: random.Random) -> None:
    """Kill one that is not."""
    primary = nodes.primary()
    _kill(nodes, [rng.choice([name for name in NAMES if name != primary])], rng)


def kill_all(nodes: Nodes, rng: random.Random) -> None:
    """Kill all at once."""
    _kill(nodes, list(NAMES), rng)


def _kill(nodes: Nodes, names: list[str], rng: random.Random) -> None:
    for name in names:
        nodes.kill(name)
    time.sleep(rng.uniform(0.0, 3.0))
    for name in rng.sample(names, len(names)):
        nodes.start(name)


def stop_primary_short(nodes: Nodes, rng: random.Random) -> None:
    """Stop the primary for less than an election timeout."""
    _pause(nodes, nodes.primary() or rng.choice(NAMES), STOP_SHORT_S)


def stop_primary_long(nodes: Nodes, rng: random.Random) -> None:
    """Stop the primary for longer: another is elected, and the old one wakes up in its belief."""
    _pause(nodes, nodes.primary() or rng.choice(NAMES), STOP_LONG_S)


def stop_replica_long(nodes: Nodes, rng: random.Random) -> None:
    """Stop a replica for longer."""
    primary = nodes.primary()
    _pause(nodes, rng.choice([name for name in NAMES if name != primary]), STOP_LONG_S)


def _pause(nodes: Nodes, name: str, seconds: float) -> None:
    nodes.signal(name, signal.SIGSTOP)
    time.sleep(seconds)
    nodes.signal(name, signal.SIGCONT)


def step_down(nodes: Nodes, rng: random.Random) -> None:
    """Have the primary hand over, asked through any node."""
    subprocess.run(nodes.command(rng.choice(NAMES), "group", "step-down"), capture_output=True, check=False, timeout=60)


def end_primary(nodes: Nodes, rng: random.Random) -> None:
    """Stop the primary as a supervisor does; it hands over first."""
    name = nodes.primary() or rng.choice(NAMES)
    process = nodes.running.pop(name)
    process.terminate()
    assert process.wait(60) == 0, f"{name} did not stop cleanly"
    nodes.start(name)


Harm = Callable[[Nodes, random.Random], None]
HARMS: tuple[Harm, ...] = (
    kill_primary,
    kill_replica,
    kill_all,
    stop_primary_short,
    stop_primary_long,
    stop_replica_long,
    step_down,
    end_primary,
)


def plan(rounds: int, seed: int) -> list[list[Harm]]:
    """Return the harms of each round, one or two, from shuffled decks: each kind comes once before any comes twice."""
    rng = random.Random(seed)

    def deck() -> Iterator[Harm]:
        while True:
            yield from rng.sample(HARMS, len(HARMS))

    cards = deck()
    return [[next(cards) for _ in range(rng.choice((1, 1, 2)))] for _ in range(rounds)]


# --- judging -----------------------------------------------------------------------------------------------


def events(path: Path) -> dict[str, list[Gtid]]:
    """Return the GTIDs of each event id that a log holds."""
    found: dict[str, list[Gtid]] = {}
    with LogReader.open(str(path)) as reader, reader.cursor() as cursor:
        for one in cursor.scan(until=reader.range().last_seqno, wait=False):
            if not one.is_noop():
                found.setdefault(one.header.event_id, []).append(one.header.gtid)
    return found


def disordered(done: list[Committed], held: dict[str, list[Gtid]]) -> list[str]:
    """Return the commits of a later reign's log that stand elsewhere than was said, or out of the order of time.

    One that returned before another began has the lower GTID.
    """
    wrong = [one.event for one in done if one.event in held and held[one.event] != [one.gtid]]
    there = [one for one in done if one.event in held]
    ends = sorted(there, key=lambda one: one.returned)
    highest, at = Gtid.from_bytes(bytes(16)), 0
    for one in sorted(there, key=lambda one: one.began):
        while at < len(ends) and ends[at].returned < one.began:
            highest = max(highest, ends[at].gtid)
            at += 1
        if one.gtid < highest:
            wrong.append(one.event)
    return wrong


def failovers(done: list[Committed], kills: list[float]) -> list[float]:
    """Return for each kill of a primary how long it took to the first commit of a majority that began after it."""
    found = []
    for at in kills:
        after = [one.returned for one in done if one.w == "majority" and one.began >= at]
        if after:
            found.append(min(after) - at)
    return sorted(found)


def judge(nodes: Nodes, load: Load) -> dict[str, object]:
    """Return what the logs say of what was acknowledged."""
    held = events(nodes.log_of("a"))
    logs = [str(nodes.log_of(name)) for name in NAMES]
    saved = {json.dumps(row.op) for log in logs for rid in saved_rollbacks(log) for row in read_operations(log, rid)}
    rolled_back = "\n".join(saved)
    lost = [one.event for one in load.done if one.w == "majority" and one.event not in held]
    missing = [one.event for one in load.done if one.w != "majority" and one.event not in held]
    unaccounted = [event for event in missing if f'"{event}"' not in rolled_back]
    diverged = 0
    for name in NAMES[1:]:
        with LogReader.open(str(nodes.log_of("a"))) as one, LogReader.open(str(nodes.log_of(name))) as other:
            found = diff(one, other, full=True)
            diverged += (found.differing or 0) + found.only_one.count + found.only_other.count
    return {
        "acknowledged": {str(w): sum(one.w == w for one in load.done) for w in WS},
        "unknown": len(load.unknown),
        "rolled_back": len(missing),
        "lost": len(lost),
        "unaccounted": len(unaccounted),
        "doubled": sum(len(gtids) > 1 for gtids in held.values()),
        "written_though_refused": sum(event in held for event in load.refused),
        "diverged": diverged,
        "disordered": len(disordered(load.done, held)),
        "epochs": max(gtids[-1].epoch for gtids in held.values()),
    }


MUST_BE_NONE = ("lost", "unaccounted", "doubled", "written_though_refused", "diverged", "disordered")


def run(folder: Path, rounds: int, seed: int) -> dict[str, object]:
    """Harm a group for so many rounds; return what came of it."""
    began, rng = time.monotonic(), random.Random(seed)
    nodes, harms = Nodes(folder), Counter[str]()
    try:
        nodes.form()
        loop = asyncio.new_event_loop()

        async def play() -> Load:
            load = Load(nodes.url)
            working = asyncio.ensure_future(load.run())
            for of_round in plan(rounds, seed):
                await asyncio.sleep(rng.uniform(0.2, 1.0))
                for harm in of_round:
                    await asyncio.to_thread(harm, nodes, rng)
                    harms[harm.__name__] += 1
                await asyncio.to_thread(nodes.await_primary)
            load.stop()
            await working
            await asyncio.to_thread(nodes.await_whole)
            return load

        load = loop.run_until_complete(play())
        loop.close()
        codes = nodes.end()
        told = judge(nodes, load)
        took = failovers(load.done, nodes.primaries_killed)
        return {
            "rounds": rounds,
            "seed": seed,
            "harms": dict(sorted(harms.items())),
            **told,
            "unclean_ends": sum(code != 0 for code in codes.values()),
            "failover_ms": {
                "p50": round(took[len(took) // 2] * 1000) if took else None,
                "max": round(took[-1] * 1000) if took else None,
            },
            "seconds": round(time.monotonic() - began),
        }
    finally:
        nodes.end()


def main() -> int:
    """Run it by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    result = run(given.folder, given.rounds, given.seed)
    print(json.dumps(result))
    return int(any(result[name] for name in (*MUST_BE_NONE, "unclean_ends")))


if __name__ == "__main__":
    sys.exit(main())
