"""kill -9 of everything, again and again, under load: what was acknowledged arrives, and nothing arrives twice.

`make kill ROUNDS=n SEED=s` runs it. Services run side by side: writers on MariaDB, on PostgreSQL and on SQLite, each
captured into a log of its own and applied by Spark on four channels into one server. One of the two servers, drawn by
the seed, writes in one schema (`kill_orders`), and 2 to 6 channels apply it by write sets, in any order or in the
source's. Each round does one or two harms (`kill_harms`) and starts again what is gone. At the end, and at each
`--check-every` rounds, the writers pause, everything is applied, and `kill_judge` holds all counts against each other.

It prints one JSON object and ends with 1 unless nothing is lost or doubled, no transaction was refused for capture's
sake, no dependency was missed, enough ran in parallel and waited where it should, source and target are equal, every
process ended as it should, no live verification said that a table differs, and every kind of harm was done often
enough: once in thirteen rounds. A seed repeats the harms, their order and the waits between them; what the processes
are doing at that moment, it cannot repeat.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from demo_steps import StepFailedError
from kill_harms import KINDS, Harm, plan
from kill_judge import Shares, Verdict, judge
from kill_service import Service, Surroundings
from kill_target import KILL_TARGETS
from tranlog.target.target import EQUAL
from tranlog.testing.servers import MariaDbServer, OptionValue, PostgresServer, ServerFailedError, ServerMissingError

SERVICES = ("mariadb", "sqlite", "postgres", "foreign")
BY_WRITES = ("drawn", "mariadb", "postgres", "none")
POSTGRES_SOURCE: dict[str, OptionValue] = {"wal_level": "logical", "wal_keep_size": "256MB", "autovacuum": False}
"""A slot that is put at a promoted server later finds the WAL and the catalogue's old rows there that it needs."""
HARM_WAIT_S = 300.0
ROUNDS_PER_KIND = 13
"""Every kind is done at least once in so many rounds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run. `only`: kinds of harm, none for all. `path`: goes in front of PYTHONPATH of all that is started.

    `by`: the service whose channels meet by write sets, `drawn` by the seed, or `none`. `check_every`: a quiet point
    with a judgement after so many rounds, 0 for only at the end. `first`: stop at the first thing that is wrong; then
    every round is judged, unless `check_every` says otherwise.
    """

    rounds: int = 50
    seed: int = 1
    services: Sequence[str] = SERVICES
    target: str = "postgres"
    only: Sequence[str] = ()
    by: str = "drawn"
    first: bool = False
    check_every: int = 0
    path: Path | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of harm that can be done to these services."""
        return [
            name
            for name, kind in KINDS.items()
            if (not self.only or name in self.only) and set(kind.services) & set(self.services)
        ]

    @property
    def judged_every(self) -> int:
        """Rounds between two quiet points; 0 is never."""
        return self.check_every or int(self.first)


class Rounds:
    """One run: its services, and what was done and seen so far."""

    def __init__(self, services: Sequence[Service], options: Options) -> None:
        self.services = {service.name: service for service in services}
        self.options = options
        self.done = 0
        self.kills: Counter[str] = Counter()
        self.verdicts: dict[str, Verdict] = {}
        self.failed = ""

    def run(self) -> None:
        """Do the rounds and judge. Raises StepFailedError for what should never happen."""
        options = self.options
        self.begin()
        for number, harms in enumerate(plan(options.kinds, options.services, options.rounds, options.seed), 1):
            for harm in harms:
                self.do(harm)
            self.done = number
            told = " and ".join(f"{harm.kind} of {harm.service} after {harm.delay_s:.1f} s" for harm in harms)
            at = ", ".join(f"{name} {service.applied_seqno()}" for name, service in self.services.items())
            say(f"round {number} of {options.rounds}: {told}; applied: {at}")
            for name, service in self.services.items():
                if shares := Shares.of(service):
                    say(f"   {name} by write sets: {shares}")
            if number == options.rounds and self.proves_much:
                self.verify_in_peace()
            if number == options.rounds or (options.judged_every and number % options.judged_every == 0):
                self.judge()
                if options.first and not self.good:
                    return
                if number < options.rounds:
                    for service in self.services.values():
                        service.load.start()
        few = [kind for kind in options.kinds if self.kills[kind] < options.rounds // ROUNDS_PER_KIND]
        if few:
            raise StepFailedError(f"too few harms of the kinds {', '.join(few)}: this run proves less than it says")
        if (gaps := sum(one.gaps for one in self.verdicts.values())) != self.kills["gap"]:
            raise StepFailedError(f"{gaps} gaps in the logs, of {self.kills['gap']} changes that cannot be carried")
        verified = any(one.verified_live for one in self.verdicts.values())
        if self.proves_much and "verify" in options.kinds and not verified:
            raise StepFailedError("no live verification came to say that a table is equal")
        for name, verdict in self.verdicts.items():
            if verdict.by_writes is None or not self.proves_much:
                continue  # a few rounds on a busy machine may have little to wait for
            if not verdict.by_writes.enough:
                raise StepFailedError(f"too little of {name} ran in parallel or waited: {verdict.by_writes}")

    def begin(self) -> None:
        """Make the tables on both sides, start everything, and wait until it runs."""
        services = list(self.services.values())
        for service in services:
            service.load.make_tables()
            if service.name in ("postgres", "foreign"):  # capture makes publication or triggers; it begins with a load
                service.capture = service.start("capture", "capture")
                service.wait(service.begins, "capture begins")
            service.make_target_tables()
        services[0].around.target.put_triggers([table for service in services for table in service.load.tables])
        for service in services:
            service.capture = service.capture or service.start("capture", "capture")
        for service in services:
            service.wait(service.captured_all, "capture has the tables")
            service.apply = service.start("apply", "apply")
            service.load.start()
        for service in services:
            service.wait_until_run()

    def mend(self) -> None:
        """Start again what is gone."""
        for service in self.services.values():
            service.mend()
            service.load.mend()

    def do(self, harm: Harm) -> None:
        """Do one harm, again and again until it could be done. Raises StepFailedError when it never can."""
        time.sleep(harm.delay_s)
        service, rng = self.services[harm.service], random.Random(harm.dice)
        deadline = time.monotonic() + HARM_WAIT_S
        while not KINDS[harm.kind].do(service, rng):
            if time.monotonic() > deadline:
                raise StepFailedError(f"{harm.kind} of {harm.service} could not be done within {HARM_WAIT_S:.0f} s")
            time.sleep(0.3)
            self.mend()
        self.kills[harm.kind] += 1
        self.mend()

    @property
    def proves_much(self) -> bool:
        """Whether there are rounds enough for each kind of harm to come."""
        return self.options.rounds >= ROUNDS_PER_KIND

    def verify_in_peace(self) -> None:
        """Where each live verification was cut off by a harm, have one beside the writers that nobody harms."""
        services = list(self.services.values())
        for service in services:
            service.wait(service.live.is_over, "its live verification ends")
        if "verify" in self.options.kinds and not any(service.live.verdicts[EQUAL] for service in services):
            services[0].wait_until_run()
            services[0].live.ask(services[0])
            services[0].wait(services[0].live.is_over, "its live verification ends")

    def judge(self) -> None:
        """Let the writers pause until everything is applied, and look."""
        for service in self.services.values():
            service.load.stop()
        for name, service in self.services.items():
            service.settle()
            self.verdicts[name] = judge(service)
        if not self.good:
            say(f"after round {self.done}: {self.result(0.0)}")

    @property
    def good(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.failed and all(verdict.good for verdict in self.verdicts.values())

    def result(self, seconds: float) -> dict[str, object]:
        """Return the one object: sums over the services, and each service's figures."""
        per_service = {name: dataclasses.asdict(verdict) for name, verdict in self.verdicts.items()}
        judged = len(per_service) == len(self.services)
        counts = ("acknowledged", "captured", "applied", "changes", "missed", "lost", "doubled", "refused")
        summed = (*counts, "gaps", "verified_live", "differing_live")
        sums = {name: sum(one[name] for one in per_service.values()) if judged else None for name in summed}
        return {
            "rounds": self.done,
            "seed": self.options.seed,
            "kills": dict(sorted(self.kills.items())),
            **sums,
            "equal": all(one["equal"] for one in per_service.values()) if judged else None,
            "seconds": round(seconds, 1),
            "services": per_service,
            **({"failed": self.failed} if self.failed else {}),
        }


def run(folder: Path, options: Options) -> dict[str, object]:
    """Do the rounds in an existing folder that the servers' users may pass, and return the one object.

    Shape: with the key `failed` where something ended as it never should; figures that are not known then are None.
    """
    began = time.monotonic()
    target = KILL_TARGETS[options.target](folder / "target")
    with (
        MariaDbServer(directory=folder / "server") as mariadb,
        PostgresServer(directory=folder / "wal", options=POSTGRES_SOURCE) as postgres,
        target.server,
    ):
        servers = {"mariadb": mariadb, "postgres": postgres, "sqlite": None, "foreign": None}
        drawn = random.Random(options.seed).choice(("mariadb", "postgres")) if options.by == "drawn" else options.by
        by_writes = {name: name == drawn for name in SERVICES}
        around = Surroundings(folder=folder, target=target, seed=options.seed, by_writes=by_writes, path=options.path)
        services = [Service(name, around, servers[name]) for name in options.services]
        rounds = Rounds(services, options)
        try:
            rounds.run()
        except StepFailedError as exc:
            rounds.failed = str(exc)
        finally:
            for service in services:
                service.abandon()
    return rounds.result(time.monotonic() - began)


def proves(result: dict[str, object]) -> bool:
    """Whether a result is one of a run in which nothing went wrong."""
    wrong = [result[name] for name in ("missed", "lost", "doubled", "refused", "differing_live")]
    return "failed" not in result and result["equal"] is True and wrong == [0] * len(wrong)


def say(text: str) -> None:
    """Print a line of the story, beside the one object."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str]) -> tuple[Path, Options]:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="kill -9 of everything under load, and nothing lost or doubled.")
    parser.add_argument("folder", nargs="?", default="build/kill", help="where everything is made")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of one or two harms (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="order and moments of the harms (default 1)")
    parser.add_argument("--services", default=",".join(SERVICES), help="sources to run (default all)")
    parser.add_argument("--target", default="postgres", choices=KILL_TARGETS, help="where to (default postgres)")
    parser.add_argument(
        "--by-writes", default="drawn", choices=BY_WRITES, help="whose channels meet by write sets (default drawn)"
    )
    parser.add_argument("--only", default="", help=f"kinds of harm, of {','.join(KINDS)} (default all)")
    parser.add_argument(
        "--check-every", type=int, default=0, help="rounds between two judgements (default: at the end)"
    )
    parser.add_argument("--first", action="store_true", help="stop after the first round that something is wrong after")
    parser.add_argument("--path", type=Path, help="a folder in front of PYTHONPATH of every process that is started")
    given = parser.parse_args(arguments)
    names = {
        "--services": tuple(filter(None, given.services.split(","))),
        "--only": tuple(filter(None, given.only.split(","))),
    }
    for option, known in (("--services", SERVICES), ("--only", tuple(KINDS))):
        if unknown := set(names[option]) - set(known):
            parser.error(f"{option}: there is no {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    options = Options(
        rounds=given.rounds,
        seed=given.seed,
        services=names["--services"],
        target=given.target,
        only=names["--only"],
        by=given.by_writes,
        first=given.first,
        check_every=given.check_every,
        path=None if given.path is None else given.path.resolve(),
    )
    if not options.services or not options.kinds or options.rounds < 1:
        parser.error("at least one service, one kind of harm that it can suffer, and one round")
    return Path(given.folder).resolve(), options


def main(arguments: list[str]) -> int:
    """Run, print the one object, and return the exit code."""
    place, options = parse(arguments)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended too
    try:
        result = run(place, options)
    except (ServerFailedError, ServerMissingError) as exc:
        say(f"the rounds could not be done: {exc}")
        return 1
    print(json.dumps(result))
    if proves(result):
        return 0
    why = result.get("failed", "see the figures")
    say(f"the rounds failed (seed {options.seed}): {why}\nwhat they left is in {place}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
