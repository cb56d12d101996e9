"""`make group-kill`: three nodes in processes of their own, harmed round after round while programs commit and read.

Each node reaches the others through proxies of ours (`group_links`); a round is one or two harms (`group_harms`);
programs are `group_load`'s, and what they were told is held against the logs by `group_history`.

Some commits are large, and spill; some rounds are by TLS.

Prints one JSON object: rounds, seed, rounds by TLS, harms by kind; what was acknowledged by `w`, what nobody knows,
what went; reads by consistency; and what must be 0: lost (acknowledged by a majority, and not in the log),
unaccounted (acknowledged at w = 1 or 2, in neither the log nor anybody's rollback data), doubled, diverged (records
that differ between two logs), stale (a read that broke its consistency), forsworn (a vote or an ack against the
rules, seen on the wire). `violations` of linearizability by kind, elections, the time from kill -9 of a primary to
the first majority, seconds. Exit code 1 unless the former are 0, linearizable is true, every node ended cleanly, and
the group was whole in the end.

docs/replication.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from group_harms import HARMS, Harm, plan, secured
from group_history import CommitOp, Entry, Fate, Op, violations
from group_load import WS, Load, Shown, content_of
from group_nodes import Nodes, RoundFailedError
from tranlog.change import Statement
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.diff import diff
from tranlog.replication.acting.rollback import read_operations, saved_rollbacks

MUST_BE_NONE = ("lost", "unaccounted", "doubled", "diverged", "stale", "forsworn")


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """What to run. `first`: judge after each round, and end with the first that something is wrong after.

    `path`: goes in front of PYTHONPATH of every node.
    """

    rounds: int = 10
    seed: int = 1
    witness: bool = False
    first: bool = False
    only: tuple[str, ...] = ()
    path: Path | None = None


@dataclass
class GroupRounds:
    """One run, and what was seen so far."""

    folder: Path
    options: GroupOptions
    harms: Counter[str] = field(default_factory=Counter)
    done: int = 0
    rounds_of_tls: int = 0
    failed: str = ""
    judged: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Do the rounds; return the one object."""
        began, options = time.monotonic(), self.options
        nodes = Nodes(self.folder, "abc", "c" if options.witness else "", options.seed, options.path)
        load = Load(nodes.url, options.seed)
        try:
            nodes.form()
            load.start()
            self._rounds(nodes, load)
        except (RoundFailedError, OSError) as exc:
            self.failed = str(exc)
        finally:
            nodes.proxies.clear()
            load.stop()
            codes = self._ended(nodes)
        self.failed = self.failed or "; ".join([*load.failed[:3], *nodes.ended])
        if not self.failed:
            self.judged = judge(nodes, load)
        took = failovers([op for w, op in load.commits if w == "majority"], nodes.primaries_killed)
        return {
            "rounds": self.done,
            "seed": options.seed,
            "rounds_of_tls": self.rounds_of_tls,
            "harms": dict(sorted(self.harms.items())),
            "acknowledged": {str(w): sum(one == w and op.fate in ACKED for one, op in load.commits) for w in WS},
            "unknown": sum(op.fate is Fate.UNKNOWN for _, op in load.commits),
            "refused": sum(op.fate is Fate.REFUSED for _, op in load.commits),
            "reads": dict(load.reads),
            "unread": dict(sorted(load.unread.items())),
            "flipped": nodes.proxies.flipped,
            **self.judged,
            "unclean_ends": sum(code != 0 for code in codes.values()),
            "failover_ms": {name: at_part(took, part) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
            "seconds": round(time.monotonic() - began),
            **({"failed": self.failed} if self.failed else {}),
        }

    def _rounds(self, nodes: Nodes, load: Load) -> None:
        rng, options = random.Random(self.options.seed), self.options
        harms = [harm for harm in HARMS if not options.only or harm.__name__ in options.only]
        planned = zip(plan(options.rounds, options.seed, harms), secured(options.rounds, options.seed), strict=True)
        for number, (of_round, by_tls) in enumerate(planned, 1):
            self._secure(nodes, load, by_tls)
            time.sleep(rng.uniform(0.2, 1.0))
            began = time.monotonic()
            self._harm(nodes, of_round, rng)
            nodes.await_primary()
            self.done = number
            names = ", ".join(harm.__name__ for harm in of_round) + (" by TLS" if by_tls else "")
            say(f"round {number} of {options.rounds}: {names}; {time.monotonic() - began:.1f} s")
            if options.first:
                load.rest()
                nodes.await_whole()
                self.judged = judge(nodes, load)
                if not good(self.judged):
                    return
                load.go_on()
        load.rest()
        nodes.await_whole()

    def _secure(self, nodes: Nodes, load: Load, by_tls: bool) -> None:
        """Have nodes and programs speak TLS, or not."""
        self.rounds_of_tls += by_tls
        if by_tls is not (nodes.tls is not None):
            load.rest()
            nodes.secure(by_tls)
            load.secure(nodes.tls)
            load.go_on()

    def _harm(self, nodes: Nodes, of_round: Sequence[Harm], rng: random.Random) -> None:
        """Do harms beside one another. Raises RoundFailedError for what went wrong in one."""
        troubles: list[str] = []

        def do(harm: Harm, own: random.Random) -> None:
            try:
                harm(nodes, own)
            except Exception as exc:
                troubles.append(f"{harm.__name__}: {type(exc).__name__}: {exc}")

        threads: list[threading.Thread] = []
        for harm in of_round:
            if threads:
                time.sleep(rng.uniform(0.0, 1.5))
            threads.append(threading.Thread(target=do, args=(harm, random.Random(rng.random()))))
            threads[-1].start()
            self.harms[harm.__name__] += 1
        for thread in threads:
            thread.join()
        if troubles:
            raise RoundFailedError("; ".join(troubles))

    def _ended(self, nodes: Nodes) -> dict[str, int]:
        try:
            return nodes.end()
        except OSError as exc:
            self.failed = self.failed or str(exc)
            return {}


# --- judging -----------------------------------------------------------------------------------------------

ACKED = (Fate.STANDS, Fate.MAY_GO)


def entries(path: Path, spilled: set[str]) -> list[Entry]:
    """Return what a log holds, and add to `spilled` the events of transactions that stand in spill segments."""
    found = []
    with LogReader.open(str(path)) as reader, reader.cursor() as cursor:
        for one in cursor.scan(until=reader.range().last_seqno, wait=False):
            if one.is_noop():
                found.append(Entry(one.header.gtid))
            else:
                text = "".join([str(change.sql) for change in one.changes() if isinstance(change, Statement)])
                found.append(Entry(one.header.gtid, one.header.event_id, content_of(text)))
                spilled |= {one.header.event_id} if one.header.spilled else set()
    return found


def stale(shown: Sequence[Shown], log: Sequence[Entry]) -> list[str]:
    """Return what readers saw that was less than they wanted, or is not in the log as they saw it."""
    held = {entry.gtid: entry.event for entry in log}
    wrong = []
    for one in shown:
        if one.kind != "none" and one.seen < one.wanted:
            wrong.append(f"{one.seen} was shown where {one.wanted} was wanted")
        wrong += [f"{gtid} was shown as {event!r}" for gtid, event in one.tail if held.get(gtid) != event]
    return wrong


def judge(nodes: Nodes, load: Load) -> dict[str, Any]:
    """Return what the logs say of what programs were told."""
    commits, latest, shown = list(load.commits), list(load.latest), list(load.shown)
    logs = [str(nodes.log_of(name)) for name in nodes.keeping]
    spilled: set[str] = set()
    log = entries(Path(logs[0]), spilled)
    ops: list[Op] = [*(op for _, op in commits), *latest]
    found = violations(ops, log)
    standing = {entry.event for entry in log}
    gone = {row.event_id for path in logs for rid in saved_rollbacks(path) for row in read_operations(path, rid)}
    missing = [op.event for _, op in commits if op.fate is Fate.MAY_GO and op.event not in standing]
    broken = [*found.get("stale", ()), *stale(shown, log)]
    diverged = 0
    for path in logs[1:]:
        with LogReader.open(logs[0]) as one, LogReader.open(path) as other:
            differing = diff(one, other, full=True)
            diverged += (differing.differing or 0) + differing.only_one.count + differing.only_other.count
    unaccounted = [event for event in missing if event not in gone]
    for what in (*found.items(), ("stale", broken), ("unaccounted", unaccounted), ("wire", nodes.proxies.judge.wrong)):
        if what[1]:
            say(f"{what[0]}: {what[1][:5]}")
    return {
        "large": sum(one.event in load.large for one in log),
        "spilled": len(spilled),
        "rolled_back": len(missing),
        "lost": len(found.get("lost", ())),
        "unaccounted": len(unaccounted),
        "doubled": len(found.get("doubled", ())),
        "diverged": diverged,
        "stale": len(broken),
        "forsworn": len(nodes.proxies.judge.wrong),
        "linearizable": not found,
        "violations": {kind: len(what) for kind, what in sorted(found.items())},
        "elections": len({entry.gtid.epoch for entry in log}),
    }


def good(judged: dict[str, Any]) -> bool:
    """Whether nothing is known to be wrong."""
    return bool(judged.get("linearizable")) and not any(judged[name] for name in MUST_BE_NONE)


def failovers(commits: Sequence[CommitOp], kills: Sequence[float]) -> list[float]:
    """Return, in order, how long it took from each kill of a primary to the first majority that began after it."""
    found = []
    for at in kills:
        after = [one.returned for one in commits if one.fate is Fate.STANDS and one.began >= at]
        if after:
            found.append(min(after) - at)
    return sorted(found)


def at_part(took: Sequence[float], part: float) -> int | None:
    """Return the time in ms that such a part of them does not exceed."""
    return round(took[min(int(len(took) * part), len(took) - 1)] * 1000) if took else None


def say(text: str) -> None:
    """Print a line of the story, beside the one object."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run it by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--witness", action="store_true", help="two nodes with a log and a witness")
    parser.add_argument("--first", action="store_true", help="stop after the first round that something is wrong after")
    parser.add_argument("--path", type=Path, help="a folder in front of PYTHONPATH of every node")
    parser.add_argument("--only", default="", help="these harms alone, by name, with commas between")
    given = parser.parse_args()
    only = tuple([name for name in given.only.split(",") if name])
    unknown = sorted(set(only) - {harm.__name__ for harm in HARMS})
    if unknown:
        parser.error(f"there is no harm {', '.join(unknown)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    options = GroupOptions(
        rounds=given.rounds, seed=given.seed, witness=given.witness, first=given.first, only=only, path=given.path
    )
    result = GroupRounds(given.folder, options).run()
    print(json.dumps(result))
    if result.get("failed") or result["unclean_ends"] or not good(result):
        say(f"the rounds failed (seed {given.seed}); what they left is in {given.folder}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
