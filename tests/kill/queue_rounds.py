"""kill -9 of a process that holds a message store, again and again, under load and while it recovers.

`make queue-kill ROUNDS=n SEED=s` runs it. Each round starts a process (`queue_load`) on the same store of small
containers; many threads in it publish to one queue, to several, in transactions and in prepared branches, and take and
answer. They tell by a pipe what they ask for and what they were told; `queue_judge` holds that against what the next
process finds. Some processes are killed while they open the store. At the end everything is decided and taken.

It prints one JSON object and ends with 1 unless lost, doubled, reordered, split and in_doubt_wrong are 0 and every
process lived until it was killed. A seed repeats the waits between the kills; what the threads are doing at that
moment, it cannot repeat.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queue_judge import QueueJudge
from tranlog.queues.rules.records import CONTAINER_PREFIX, FREE_PREFIX

LOAD = Path(__file__).with_name("queue_load.py")
STALL_S = 300.0
"""How long a process may say nothing; many processes share few cores."""
LOOK_S = 0.05
IN_RECOVERY = 0.3
"""Part of the rounds that kill a process while it recovers."""


class RoundFailedError(Exception):
    """A process ended, or was silent, as it never should."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueRoundOptions:
    """What to run. `life_s`: a process lives so long at most. `first`: stop at the first thing that is wrong.

    `path`: goes in front of PYTHONPATH of every process that is started.
    """

    rounds: int = 50
    seed: int = 1
    life_s: float = 2.0
    first: bool = False
    path: Path | None = None


class QueueRounds:
    """One run on one store, and what was seen so far."""

    def __init__(self, folder: Path, options: QueueRoundOptions) -> None:
        self.store = folder / "store"
        self.options = options
        self.rng = random.Random(options.seed)
        self.judge = QueueJudge()
        self.done = 0
        self.lives = 0
        self.in_recovery = 0
        self.containers_most = 0
        self.recovery_ms = [0]
        self.once: dict[str, tuple[int, int, list[str]]] = {}
        self.failed = ""

    def run(self) -> None:
        """Do the rounds. Raises RoundFailedError."""
        for number in range(1, self.options.rounds + 1):
            told = self.round()
            self.done = number
            for note in self.judge.notes:
                say(note)
            self.judge.notes.clear()
            say(f"round {number} of {self.options.rounds}: killed {told}; {self.told()}")
            if self.options.first and not self.judge.verdict.good:
                return
        self.live(drain=True, until=None, after_s=0)
        self.judge_end()

    def told(self) -> str:
        """Return the figures of a line of progress."""
        verdict = dataclasses.asdict(self.judge.verdict)
        return ", ".join(f"{name} {count}" for name, count in verdict.items() if count)

    def round(self) -> str:
        """Start a process and kill it; return at what."""
        if self.rng.random() < IN_RECOVERY:
            after_s = self.rng.random() * 1.3 * self.recovery_ms[-1] / 1000
            if not self.live(until="opening", after_s=after_s):
                self.in_recovery += 1
                return "in recovery"
            return "after recovery"
        self.live(until="looked", after_s=self.rng.uniform(0.1, self.options.life_s))
        return f"at work, recovered in {self.recovery_ms[-1]} ms"

    def live(self, *, until: str | None, after_s: float, drain: bool = False) -> bool:
        """Run a process, and kill it `after_s` seconds after its line `until`; return whether it opened the store."""
        self.lives += 1
        command = [sys.executable, str(LOAD), str(self.store), str(self.options.seed), str(self.lives)]
        command += [json.dumps(self.once), *(["drain"] if drain else [])]
        paths = [str(self.options.path)] if self.options.path else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        opened, kill_at = False, None
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            try:
                assert process.stdout is not None
                for line in lines(process.stdout.fileno()):
                    if line is not None:
                        opened |= self.take(line)
                        if line[0] == until and kill_at is None:
                            kill_at = time.monotonic() + after_s
                    if kill_at is not None and time.monotonic() >= kill_at and process.returncode is None:
                        self.count_containers()
                        process.kill()
                        process.wait()
                        kill_at = None
                        until = ""
            finally:
                process.kill()
        if (process.returncode != 0) if drain else until != "":
            raise RoundFailedError(f"process {self.lives} ended by itself, with exit code {process.returncode}")
        return opened

    def take(self, line: list[Any]) -> bool:
        """Take a line; return whether it says that the store is open. Raises RoundFailedError."""
        match line:
            case ["opening"]:
                return False
            case ["opened", int(ms)]:
                self.recovery_ms.append(ms)
                return True
            case ["broke", why]:
                raise RoundFailedError(f"a thread of process {self.lives} ended: {why}")
            case ["once", _, str(producer), int(at), puts]:
                self.once[producer] = at, puts[0][1], [queue for queue, _ in puts]
        self.judge.take(line)
        if line[0] == "looked":
            self.count_containers()
        return False

    def count_containers(self) -> None:
        """Note how many containers there are."""
        if self.store.is_dir():
            names = (one.name for one in self.store.iterdir())
            count = sum(name.startswith((CONTAINER_PREFIX, FREE_PREFIX)) for name in names)
            self.containers_most = max(self.containers_most, count)

    def judge_end(self) -> None:
        """What was there at the end was all taken."""
        if not self.judge.empty:
            raise RoundFailedError("the store was drained, and is not empty")

    @property
    def good(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.failed and self.judge.verdict.good

    def result(self, seconds: float) -> dict[str, object]:
        """Return the one object."""
        return {
            "rounds": self.done,
            "seed": self.options.seed,
            **dataclasses.asdict(self.judge.verdict),
            "containers_most": self.containers_most,
            "recovery_ms_most": max(self.recovery_ms),
            "in_recovery": self.in_recovery,
            "seconds": round(seconds, 1),
            **({"failed": self.failed} if self.failed else {}),
        }


def lines(pipe: int) -> Iterator[list[Any] | None]:
    """Read whole lines until the end; None now and then. What a killed process wrote in part is left out.

    Raises RoundFailedError where nothing comes for long.
    """
    rest, heard = b"", time.monotonic()
    while True:
        if select.select([pipe], [], [], LOOK_S)[0]:
            raw = os.read(pipe, 1 << 16)
            if not raw:
                return
            *whole, rest = (rest + raw).split(b"\n")
            for one in whole:
                yield json.loads(one)
            heard = time.monotonic()
        elif time.monotonic() - heard > STALL_S:
            raise RoundFailedError(f"a process said nothing for {STALL_S:.0f} s")
        yield None


def run(folder: Path, options: QueueRoundOptions) -> tuple[dict[str, object], bool]:
    """Do the rounds in an existing folder; return the one object, and whether nothing went wrong."""
    began = time.monotonic()
    rounds = QueueRounds(folder, options)
    try:
        rounds.run()
    except RoundFailedError as exc:
        rounds.failed = str(exc)
    return rounds.result(time.monotonic() - began), rounds.good


def say(text: str) -> None:
    """Print a line of the story, beside the one object."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run, print the one object, and return the exit code."""
    parser = argparse.ArgumentParser(description="kill -9 of a message store's process, and nothing lost or doubled.")
    parser.add_argument("folder", nargs="?", default="build/queue-kill", help="where everything is made")
    parser.add_argument("--rounds", type=int, default=50, help="processes to kill (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="sizes, work and moments of the kills (default 1)")
    parser.add_argument("--life", type=float, default=2.0, help="seconds that a process lives at most (default 2)")
    parser.add_argument("--first", action="store_true", help="stop after the first round that something is wrong after")
    parser.add_argument("--path", type=Path, help="a folder in front of PYTHONPATH of every process that is started")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("at least one round")
    path = None if given.path is None else given.path.resolve()
    options = QueueRoundOptions(rounds=given.rounds, seed=given.seed, life_s=given.life, first=given.first, path=path)
    folder = Path(given.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result, good = run(folder, options)
    print(json.dumps(result))
    if not good:
        say(f"the rounds failed (seed {options.seed}): {result.get('failed', 'see the figures')}")
        say(f"what they left is in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
