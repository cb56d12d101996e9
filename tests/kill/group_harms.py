"""What `make group-kill` does to a group: each harm is a function, and undoes itself what does not heal alone.

docs/replication.md.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from group_links import Way, Weather
from group_nodes import Nodes
from tranlog.replication.acting.orders import Freeze, RemoveNode, StepDown

STOP_SHORT_S, STOP_LONG_S = 0.6, 4.0
"""Below an election timeout (four to eight heartbeats of 250 ms), and above."""
CUT_S = 3.0
"""Longer than an election timeout, and than a primary goes on without a majority."""
FULL_S = 5.0
"""So long a node whose disk is full has to end by itself; then there is room again."""

Harm = Callable[[Nodes, random.Random], None]


def _primary(nodes: Nodes, rng: random.Random) -> str:
    return nodes.primary() or rng.choice(nodes.keeping)


def _replica(nodes: Nodes, rng: random.Random) -> str:
    """Return one that is not primary: a witness, too."""
    primary = nodes.primary()
    return rng.choice([name for name in nodes.names if name != primary])


# --- processes ---


def kill_primary(nodes: Nodes, rng: random.Random) -> None:
    """Kill -9 of whoever is primary."""
    _kill(nodes, [_primary(nodes, rng)], rng, primary=True)


def kill_replica(nodes: Nodes, rng: random.Random) -> None:
    """Kill -9 of one that is not."""
    _kill(nodes, [_replica(nodes, rng)], rng)


def kill_all(nodes: Nodes, rng: random.Random) -> None:
    """Kill -9 of all at once."""
    _kill(nodes, list(nodes.names), rng)


def _kill(nodes: Nodes, names: Sequence[str], rng: random.Random, *, primary: bool = False) -> None:
    with nodes.having(*names):
        if primary:
            nodes.primaries_killed.append(time.monotonic())
        for name in names:
            nodes.kill(name)
        time.sleep(rng.uniform(0.0, 3.0))
        for name in rng.sample(names, len(names)):
            nodes.start(name)


def stop_primary_short(nodes: Nodes, rng: random.Random) -> None:
    """SIGSTOP of the primary for less than an election timeout."""
    _pause(nodes, _primary(nodes, rng), STOP_SHORT_S)


def stop_primary_long(nodes: Nodes, rng: random.Random) -> None:
    """SIGSTOP of the primary for longer: another is elected, and the old one wakes up in its belief."""
    _pause(nodes, _primary(nodes, rng), STOP_LONG_S)


def stop_replica_short(nodes: Nodes, rng: random.Random) -> None:
    """SIGSTOP of another for less."""
    _pause(nodes, _replica(nodes, rng), STOP_SHORT_S)


def stop_replica_long(nodes: Nodes, rng: random.Random) -> None:
    """SIGSTOP of another for longer."""
    _pause(nodes, _replica(nodes, rng), STOP_LONG_S)


def _pause(nodes: Nodes, name: str, seconds: float) -> None:
    with nodes.having(name):
        nodes.signal(name, signal.SIGSTOP)
        time.sleep(seconds)
        nodes.signal(name, signal.SIGCONT)


def end_primary(nodes: Nodes, rng: random.Random) -> None:
    """Stop the primary as a supervisor does; it hands over first."""
    name = _primary(nodes, rng)
    with nodes.having(name):
        nodes.stop(name)
        nodes.start(name)


def full_disk_primary(nodes: Nodes, rng: random.Random) -> None:
    """No byte can be written at the primary any more."""
    _fill(nodes, _primary(nodes, rng))


def full_disk_replica(nodes: Nodes, rng: random.Random) -> None:
    """No byte can be written at another node any more."""
    primary = nodes.primary()
    _fill(nodes, rng.choice([name for name in nodes.keeping if name != primary]))


def _fill(nodes: Nodes, name: str) -> None:
    with nodes.having(name):
        nodes.fill_disk(name)
        if nodes.has_ended(name, FULL_S):
            nodes.start(name)
        else:
            nodes.empty_disk(name)
            nodes.filled.add(name)


# --- links ---


def cut_one_way(nodes: Nodes, rng: random.Random) -> None:
    """Hold all bytes from one node to another; they arrive late."""
    _weather(nodes, [rng.choice(nodes.proxies.ways)], Weather(cut=True))


def cut_both_ways(nodes: Nodes, rng: random.Random) -> None:
    """Hold all bytes between two nodes."""
    one, other = rng.choice(nodes.proxies.ways)
    _weather(nodes, [(one, other), (other, one)], Weather(cut=True))


def cut_off_primary(nodes: Nodes, rng: random.Random) -> None:
    """Cut the primary off from all others; programs still reach it."""
    _cut_off(nodes, _primary(nodes, rng))


def cut_off_replica(nodes: Nodes, rng: random.Random) -> None:
    """Cut another node off from all others."""
    _cut_off(nodes, _replica(nodes, rng))


def _cut_off(nodes: Nodes, name: str) -> None:
    _weather(nodes, [way for way in nodes.proxies.ways if name in way], Weather(cut=True))


def delay_link(nodes: Nodes, rng: random.Random) -> None:
    """Let all bytes between two nodes take a third of a second each way."""
    one, other = rng.choice(nodes.proxies.ways)
    _weather(nodes, [(one, other), (other, one)], Weather(delay_s=0.3))


def slow_link(nodes: Nodes, rng: random.Random) -> None:
    """Let few bytes a second pass between two nodes."""
    one, other = rng.choice(nodes.proxies.ways)
    _weather(nodes, [(one, other), (other, one)], Weather(bytes_per_s=20_000.0))


def flip_bytes(nodes: Nodes, rng: random.Random) -> None:
    """Harm bytes between two nodes."""
    one, other = rng.choice(nodes.proxies.ways)
    _weather(nodes, [(one, other), (other, one)], Weather(flips=0.1))


def _weather(nodes: Nodes, ways: Sequence[Way], weather: Weather) -> None:
    for way in ways:
        nodes.proxies.weather[way] = weather
    time.sleep(CUT_S)
    for way in ways:
        if nodes.proxies.weather[way] is weather:
            nodes.proxies.weather[way] = Weather()


# --- orders ---


def step_down(nodes: Nodes, rng: random.Random) -> None:
    """Have the primary hand over, asked through any node."""
    nodes.order(rng.choice(nodes.names), "/group/step-down", StepDown(within_s=5.0))


def forced_step_down(nodes: Nodes, rng: random.Random) -> None:
    """Have the primary go at once, whoever has what."""
    nodes.order(rng.choice(nodes.names), "/group/step-down", StepDown(within_s=0.0, force=True))


def freeze(nodes: Nodes, rng: random.Random) -> None:
    """Have another node not stand for a while, and the primary hand over."""
    name = _replica(nodes, rng)
    nodes.order(name, "/group/freeze", Freeze(name=name, seconds=rng.uniform(1.0, 6.0)))
    nodes.order(rng.choice(nodes.names), "/group/step-down", StepDown(within_s=3.0))


def reconfigure(nodes: Nodes, rng: random.Random) -> None:
    """Take a node out of the group, the primary, too, and admit it again."""
    name, through = rng.sample(nodes.names, 2)
    nodes.order(through, "/group/remove", RemoveNode(name=name), timeout_s=60.0)
    time.sleep(rng.uniform(0.0, 1.0))
    nodes.add(through, name)


HARMS: tuple[Harm, ...] = (
    *(kill_primary, kill_replica, kill_all, end_primary),
    *(stop_primary_short, stop_primary_long, stop_replica_short, stop_replica_long),
    *(full_disk_primary, full_disk_replica),
    *(cut_one_way, cut_both_ways, cut_off_primary, cut_off_replica, delay_link, slow_link, flip_bytes),
    *(step_down, forced_step_down, freeze, reconfigure),
)


def secured(rounds: int, seed: int) -> list[bool]:
    """Return of each round whether the nodes speak TLS: some rounds do not, then some do, and so on."""
    rng = random.Random(f"tls {seed}")
    stretches = [[one % 2 == 1] * rng.randint(3, 8) for one in range(rounds)]
    return [one for stretch in stretches for one in stretch][:rounds]


def plan(rounds: int, seed: int, harms: Sequence[Harm] = HARMS) -> list[list[Harm]]:
    """Return the harms of each round, one or two, from shuffled decks: each kind comes once before any comes twice."""
    rng = random.Random(seed)

    def deck() -> Iterator[Harm]:
        while True:
            yield from rng.sample(harms, len(harms))

    cards = deck()
    return [[next(cards) for _ in range(rng.choice((1, 1, 2)))] for _ in range(rounds)]
