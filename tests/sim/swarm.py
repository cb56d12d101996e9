"""Faults and clients for a simulated group, drawn from its seed: each run leaves some kinds of fault out.

`python -m sim.swarm --seeds 200 --seed 1` (`make sim`) prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from sim.checkers import Violation
from sim.cluster import FAULTY_MS, HEALED_MS, Cluster, shown
from sim.group import Counts, HeldPlace, draw_member
from tranlog.errors import ConfigError
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.replication.rules.config import (
    MAJORITY,
    NO_NODE,
    GroupConfig,
    Member,
    NodeId,
    copies_needed,
    election_majority,
    successor,
)
from tranlog.replication.rules.packets import PRIMARY, REPLICA


class Swarm:
    """One run of a cluster under the faults of its seed."""

    def __init__(self, seed: int, *, skew: int = 0) -> None:
        self.cluster = cluster = Cluster(seed, skew=skew)
        self.rng = rng = cluster.rng
        self._wiped: dict[NodeId, NodeId] = {}
        self._made = 0
        network = cluster.network
        network.drop = rng.choice((0, 0, 0.01, 0.1))
        network.double = rng.choice((0, 0.05))
        network.late = rng.choice((0, 0.02, 0.2))
        network.delay_ms = rng.choice(((0, 1), (1, 5), (5, 60)))
        cluster.slow_sync_ms = rng.choice((1, 20, 400))
        cluster.crash_rate = rng.choice((0, 0, 0.0005, 0.003))
        if rng.random() < 0.3:
            cluster.sync_ms = lambda: rng.randrange(200) if rng.random() < 0.05 else 0
            for one in cluster.nodes.values():
                one.disk.sync_ms = cluster.sync_ms
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash_primary,
            self._part,
            self._part,
            self._heal,
            self._pause,
            self._hand_over,
            self._purge,
            self._maintain,
            self._freeze,
            self._jump,
            self._sync_from,
            self._reconfigure,
            self._take_a_copy,
            self._lose,
            self._wipe,
            self._ask_again,
        ]
        self.faults = [kind for kind in kinds if rng.random() < 0.5]
        self.every_ms = rng.choice((300, 1000, 3000))
        self.write_every_ms = rng.choice((20, 100, 500))

    def play(self) -> Counts:
        """Play the run and heal the group. Raises Violation."""
        cluster, rng = self.cluster, self.rng
        write_at, fault_at = 0, rng.randrange(self.every_ms * 2)
        while cluster.agenda.now < FAULTY_MS:
            at = min(write_at, fault_at)
            cluster.run(max(0, at - cluster.agenda.now))
            if at == write_at:
                self._write()
                write_at = at + rng.randrange(2 * self.write_every_ms)
            elif self.faults:
                rng.choice(self.faults)()
            if at == fault_at:
                fault_at = at + rng.randrange(1, 2 * self.every_ms)
            self._repair()
        self._mend()
        if not cluster.run_until(self._whole, HEALED_MS):
            raise Violation("35: " + "; ".join(self._states()))
        if rng.random() < 0.4:
            self._rest()
        if not cluster.run_until(lambda: len(cluster.answers) == len(cluster.asked), 20_000):
            raise Violation("35: some questions are never answered")
        for one in cluster.nodes.values():
            cluster.checkers.as_seen(one)
        return cluster.counts

    def _rest(self) -> None:
        """Look at a group in which nothing fails but one line: who was alone deposes nobody, and is no primary for
        long."""
        cluster, nodes = self.cluster, list(self.cluster.nodes)
        cluster.run(3000)  # the last hand-over and the last pause end
        if not cluster.run_until(lambda: len(cluster.primaries()) == 1, 10_000):
            raise Violation("35: the primary is gone, and there is no other")
        (primary,) = cluster.primaries()
        core = cluster.up()[primary]
        own, epoch = core.config.member(primary), core.mind.epoch
        able = [one for one in core.config.members if one.electable and one.node != primary]
        if own is None or len(core.config.voters) < 3 or not able or max(one.priority for one in able) > own.priority:
            return
        alone = self.rng.choice(able).node
        cluster.network.part([alone], [node for node in nodes if node != alone])
        cluster.run(5000)
        cluster.network.heal()
        cluster.run(3000)
        others = [one for one in cluster.primaries() if one != primary]  # it may just wait for its own disk
        if others or (core.mind.state, core.mind.epoch) != (PRIMARY, epoch):
            raise Violation(f"36: {alone} was alone, and {primary} of epoch {epoch} is primary no more")
        cluster.network.part([primary], [node for node in nodes if node != primary])
        cluster.run(5000)
        if core.mind.state == PRIMARY:
            raise Violation(f"44: {primary} hears nobody and is still primary")
        cluster.network.heal()

    def _states(self) -> list[str]:
        found = []
        for node, one in self.cluster.nodes.items():
            mind = None if one.core is None else one.core.mind
            found.append(
                f"{node} state {mind and mind.state} epoch {mind and mind.epoch} last {one.picture.last} "
                f"first {one.picture.first} committed {mind and mind.committed} owing {one.stored.owing} "
                f"config {one.stored.config and one.stored.config.id}"
            )
        return found

    def _whole(self) -> bool:
        self._repair()
        return not self._wiped and self.cluster.is_whole()

    def _mend(self) -> None:
        cluster = self.cluster
        cluster.network.heal()
        cluster.network.delay_ms = (1, 5)
        cluster.crash_rate = 0.0
        for node, one in cluster.nodes.items():
            one.disk.cut_at = None
            cluster.start(node)
            if one.core is not None:
                one.core.mind.maintenance = 0
                one.core.maintain(False)
                one.core.freeze(0)

    # --- clients ---

    def _write(self) -> None:
        cluster, rng = self.cluster, self.rng
        able = [node for node, core in cluster.up().items() if core.accepts_writes]
        if able:
            self._made += 1
            node, text, later = rng.choice(able), f"t{self._made}", rng.randrange(400)
            match rng.randrange(30):
                case 0 | 1:
                    cluster.agenda.after(later, partial(self._fill, cluster.take_place(node, text)))
                    return
                case 2:
                    opened = cluster.open_large(node, text, rng.randrange(2, 9))
                    cluster.agenda.after(later, partial(self._end, node, opened, rng.random() < 0.3))
                    return
                case 3:
                    cluster.read_latest(node)
            w = rng.choice((0, 1, 1, 2, MAJORITY, MAJORITY, MAJORITY))
            parts = 0 if rng.random() < 0.95 else 3
            timeout = rng.choice((300, 3000) if w == 2 else (0, 300, 3000))
            # Every other one of several fragments is too small to spill, and goes to the followers in parts.
            cluster.write(node, text, w, timeout, parts=parts, part_bytes=600 if self._made % 2 else 200)

    def _fill(self, place: HeldPlace) -> None:
        self.cluster.fill(place)

    def _end(self, node: NodeId, opened: tuple[int, OpenTransaction | None], abort: bool) -> None:
        self.cluster.end_large(node, opened, abort=abort)

    def _ask_again(self) -> None:
        """Ask a primary about what any other one was once asked for."""
        cluster = self.cluster
        if cluster.asked and (able := [n for n, core in cluster.up().items() if core.mind.state == PRIMARY]):
            _, gtid, _ = cluster.asked[self.rng.randrange(len(cluster.asked))]
            cluster.ask(self.rng.choice(able), gtid, self.rng.choice((2, MAJORITY)), 3000)

    # --- faults ---

    def _any(self) -> NodeId:
        return self.rng.choice(list(self.cluster.nodes))

    def _crash(self, node: NodeId = NO_NODE, *, lose: int = 0) -> None:
        node = node or self._any()
        self.cluster.crash(node, lose=lose)
        self.cluster.agenda.after(self.rng.choice((0, 200, 2000, 8000)), lambda: self._restart(node))

    def _restart(self, node: NodeId) -> None:
        if node in self.cluster.nodes:
            self.cluster.start(node)

    def _crash_primary(self) -> None:
        for node in self.cluster.primaries():
            self._crash(node)

    def _part(self) -> None:
        nodes = list(self.cluster.nodes)
        self.rng.shuffle(nodes)
        cut = self.rng.randint(1, max(1, len(nodes) - 1))
        self.cluster.network.part(nodes[:cut], nodes[cut:], both=self.rng.random() < 0.7)
        if self.rng.random() < 0.7:
            self.cluster.agenda.after(self.rng.randrange(200, 6000), self._heal)

    def _cut_off(self, node: NodeId) -> None:
        """Cut a node off from all others, for long enough that they elect another primary."""
        self.cluster.network.part([node], [one for one in self.cluster.nodes if one != node], both=True)
        self.cluster.agenda.after(self.rng.randrange(200, 12_000), self._heal)

    def _heal(self) -> None:
        self.cluster.network.cuts.clear()

    def _pause(self) -> None:
        self.cluster.pause(self._any(), self.rng.choice((100, 1500, 5000)))

    def _hand_over(self) -> None:
        for node in self.cluster.primaries():
            core = self.cluster.up()[node]
            core.hand_over(
                self.rng.choice((NO_NODE, self._any())), self.rng.choice((100, 2000)), force=self.rng.random() < 0.3
            )
            self.cluster._carry_out(node)

    def _purge(self) -> None:
        hard = self.rng.random() < 0.5
        for node in list(self.cluster.up()) if hard else [self._any()]:
            if node in self.cluster.up():
                last = self.cluster.nodes[node].picture.last.seqno
                self.cluster.purge(node, last - self.rng.randrange(20), hard=hard)

    def _maintain(self) -> None:
        node = self._any()
        core = self.cluster.up().get(node)
        if core is not None:
            core.maintain(self.rng.random() < 0.3)

    def _freeze(self) -> None:
        node = self._any()
        core = self.cluster.up().get(node)
        if core is not None:
            core.freeze(core.mind.now + self.rng.choice((0, 3000, 10_000)))

    def _jump(self) -> None:
        self.cluster.nodes[self._any()].clock.wrong_by_ms += self.rng.choice((-7_200_000, -5000, 5000, 7_200_000))

    def _sync_from(self) -> None:
        node = self._any()
        core = self.cluster.up().get(node)
        if core is not None and core.mind.state == REPLICA:
            core.sync_from(self._any())

    def _may_lose(self, node: NodeId) -> bool:
        """Whether elections and commits go on if this node loses its disk as well; else only force would help."""
        configs = [one.stored.config for one in self.cluster.nodes.values() if one.stored.config is not None]
        lost = self.cluster.lost() | {node} | self._wiped.keys() | set(self._wiped.values())
        return all(_goes_on(config, lost) for config in configs)

    def _lose(self) -> None:
        node = self._any()
        if self._may_lose(node):
            self._crash(node, lose=self.rng.randint(1, 5))

    def _wipe(self) -> None:
        """A node loses everything; it comes again under an id of its own, which the group has to admit."""
        node = self._any()
        if not self._may_lose(node) or len(self.cluster.nodes) == 1:
            return
        self.cluster.crash(node)
        del self.cluster.nodes[node]
        new = NodeId(f"{node.partition('#')[0]}#{self.cluster.agenda.now}")
        self.cluster.add(new, None)
        self._wiped[node] = new

    def _repair(self) -> None:
        """As an operator: admit wiped nodes at the primary, first without a vote, then with the one that they had."""
        for old, new in list(self._wiped.items()):
            if new not in self.cluster.nodes:  # wiped again, before it was admitted
                self._wiped[old] = self._wiped[new]
                continue
            for node in self.cluster.primaries():
                core = self.cluster.up()[node]
                before, after = core.config.member(old), core.config.member(new)
                members = [one for one in core.config.members if one.node not in (old, new)]
                if before is not None:
                    changed = msgspec.structs.replace(before, node=new, votes=0, priority=0)
                    if before.witness:
                        changed = Member(node=new, name=before.name, votes=0, priority=0)
                elif after is not None and not after.votes:
                    changed = msgspec.structs.replace(after, votes=1, priority=1, hidden=False, delay_ms=0)
                else:
                    if new == node or (new in core.mind.peers and core.mind.peers[new].config == core.config.id):
                        self._wiped.pop(old, None)
                    continue
                with suppress(ConfigError):
                    admitted = successor(core.config, [*members, changed], epoch=core.mind.epoch)
                    if _goes_on(admitted, self.cluster.lost()):
                        core.reconfigure(admitted)
                self.cluster._carry_out(node)

    def _reconfigure(self) -> None:
        """Change a member, or several, as an operator might; what is unsafe is refused."""
        for node in self.cluster.primaries():
            core = self.cluster.up()[node]
            self._take_two_voters(node)
            members = list(core.config.members)
            for _ in range(self.rng.choice((1, 1, 2))):
                at = self.rng.randrange(len(members))
                member = draw_member(self.rng, members[at].node)
                members[at] = msgspec.structs.replace(member, name=members[at].name)
            try:
                new = successor(core.config, members, epoch=core.mind.epoch)
                if _goes_on(new, self.cluster.lost()):
                    core.reconfigure(new)
            except ConfigError:
                continue
            self.cluster._carry_out(node)

    def _take_a_copy(self) -> None:
        """Take a voter with data where there are witnesses, and cut the primary off before anybody hears of it."""
        for node in self.cluster.primaries():
            core = self.cluster.up()[node]
            others = [one for one in core.config.copies if one != node]
            if not others or len(core.config.copies) == len(core.config.voters):
                continue
            members = _without_votes(core.config, [self.rng.choice(others)])
            with suppress(ConfigError):
                new = successor(core.config, members, epoch=core.mind.epoch)
                if _goes_on(new, self.cluster.lost()) and core.reconfigure(new) is None:
                    self._cut_off(node)
                    self.cluster._carry_out(node)

    def _take_two_voters(self, node: NodeId) -> None:
        """Ask for what is always refused, so that it changes no run: two voters less at once."""
        core = self.cluster.up()[node]
        two = [one.node for one in core.config.members if one.votes and not one.witness][-2:]
        members = _without_votes(core.config, two)
        with suppress(ConfigError):
            new = successor(core.config, members, epoch=core.mind.epoch)
            if len(two) == 2 and _goes_on(new, self.cluster.lost()) and core.reconfigure(new) is None:
                self.cluster._carry_out(node)


def _without_votes(config: GroupConfig, nodes: Collection[NodeId]) -> list[Member]:
    """Return the members, of which these nodes have no vote."""
    return [msgspec.structs.replace(one, votes=0, priority=0) if one.node in nodes else one for one in config.members]


def _goes_on(config: GroupConfig, lost: set[NodeId]) -> bool:
    """Whether a group elects and commits without these nodes."""
    return (
        len(lost & set(config.voters)) <= len(config.voters) - election_majority(config)
        and len(lost & set(config.copies)) <= len(config.copies) - copies_needed(config)
        and any(member.electable and member.node not in lost for member in config.members)
    )


def play(seed: int) -> tuple[Counts, str, list[str]]:
    """Play one seed; return its counts, its violation (empty: none), and the last steps before that."""
    swarm = Swarm(seed)
    try:
        return swarm.play(), "", []
    except Violation as exc:
        return swarm.cluster.counts, str(exc), [" ".join(map(shown, one)) for one in swarm.cluster.trace]


@contextmanager
def _silence() -> Iterator[None]:
    """Log nothing meanwhile: power is cut all the time, and each opening says so."""
    logger = logging.getLogger("tranlog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def simulate(seeds: Sequence[int]) -> dict[str, object]:
    """Play seeds up to the first violation; return what `make sim` prints."""
    began = time.monotonic()
    total: dict[str, int] = dict.fromkeys(Counts.__struct_fields__, 0)
    found: dict[str, object] = {}
    played = 0
    with _silence():
        for seed in seeds:
            counts, violation, trace = play(seed)
            played += 1
            for name in total:
                total[name] += getattr(counts, name)
            if violation:
                found = {"seed": seed, "violation": violation, "trace": trace}
                break
    seconds = round(time.monotonic() - began, 1)
    return {"seeds": played, **total, "violations": int(bool(found)), "seconds": seconds, **found}


def kept_seeds(path: Path) -> list[int]:
    """Return the seeds that failed once."""
    return [int(line.partition("#")[0]) for line in path.read_text().splitlines() if line.partition("#")[0].strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the kept seeds, then new ones; return 0 where nothing was violated."""
    parser = argparse.ArgumentParser(prog="make sim", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (1)")
    parser.add_argument(
        "--kept", type=Path, help="a file of seeds that failed once: played first; one that fails is added"
    )
    given = parser.parse_args(arguments)
    kept = kept_seeds(given.kept) if given.kept is not None else []
    result = simulate([*kept, *range(given.seed, given.seed + given.seeds)])
    if given.kept is not None and result["violations"] and result["seed"] not in kept:
        with given.kept.open("a") as file:
            file.write(f"{result['seed']}\n")
    print(json.dumps(result, indent=1))
    return int(bool(result["violations"]))


if __name__ == "__main__":
    sys.exit(main())
