"""Is the log's order the target's? Many seeded rounds at a PostgreSQL of its own, and each mutant as a cross-check.

`make order ROUNDS=200 SEED=1` runs it. First the product plays all rounds (`order_rounds`), in which nothing may be
found; then each mutant plays the same seeds until it is found, since a checker that finds nothing may be blind. It
prints one JSON object and ends with 1 unless all that is so, and of the rounds by write sets enough ran in parallel and
had to wait. `python order_rounds.py` replays a seed that found
something.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mutants.catalogue import (
    CHANNEL_0_DOES_NOT_WAIT,
    MUTANTS,
    NO_DRAIN,
    OTHERS_DO_NOT_WAIT,
    POSITION_AHEAD_OF_ROWS,
    SHARDS_BY_TURNS,
)
from mutants.rewriting import Mutant
from mutants.rounds import Outcome, run_rounds
from tranlog.testing.servers import PostgresServer, ServerFailedError, ServerMissingError

HARNESS = "order_rounds"
MUTANT_ROUNDS = 60
"""Within so many rounds each mutant is found, by a wide margin."""
FOUND_BY = {
    CHANNEL_0_DOES_NOT_WAIT: ("wrong order",),
    OTHERS_DO_NOT_WAIT: ("wrong order",),
    # In memory, what a channel owns by turns is not always in its share.
    SHARDS_BY_TURNS: ("wrong order", "lost"),
    # A kill loses rows; and others go by a position whose rows are not there yet.
    POSITION_AHEAD_OF_ROWS: ("lost", "wrong order"),
    # Others were behind the channel where it begins, or in front of it.
    NO_DRAIN: ("lost", "doubled", "wrong order"),
    # Strict targets find most of it.
    MUTANTS["writes-key-ignored"]: ("missed dependencies", "wrong order", "channel"),
}
"""With what words each is found."""


def kind_for(mutant: Mutant) -> str:
    """Return in what rounds a mutant plays: those in which its rule matters."""
    return "keyed" if mutant.name.startswith("writes-") else "sharded"


PARALLEL_LEAST, WAITED_LEAST = 0.5, 0.01
"""By write sets: below these shares of all transactions the rounds prove less than they say."""


def shares(tally: Mapping[str, int]) -> dict[str, float]:
    """Return which share of the transactions by write sets ran in parallel, and which waited for another."""
    whole = max(1, tally.get("by writes: transactions", 0))
    return {name: round(tally.get(f"by writes: {name}", 0) / whole, 3) for name in ("in parallel", "waited")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rounds; return 0 where the product shows nothing and each mutant is found."""
    parser = argparse.ArgumentParser(prog="make order", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="rounds of the product as it is (200)")
    parser.add_argument("--seed", type=int, default=1, help="the first round's seed; each round counts it up (1)")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="tranlog-order-") as folder:

            def play(mutant: Mutant | None, rounds: int) -> Outcome:
                name = "product" if mutant is None else mutant.name.replace("-", "_")
                server.execute(f"CREATE DATABASE {name}")
                more = () if mutant is None else (kind_for(mutant),)
                return run_rounds(
                    HARNESS, mutant, Path(folder), server.dsn(name), *more, rounds=rounds, first=given.seed
                )

            product = play(None, given.rounds)
            mutants = {mutant: play(mutant, MUTANT_ROUNDS) for mutant in FOUND_BY}
    except (ServerMissingError, ServerFailedError) as exc:
        print(exc, file=sys.stderr)
        return 4
    blind = [mutant.name for mutant, found in mutants.items() if not found.what.startswith(FOUND_BY[mutant])]
    told = {
        "rounds": given.rounds,
        "seed": given.seed,
        "found": product.what or None,
        "found_at_seed": product.seed,
        "tally": product.tally,
        "by_writes": (by_writes := shares(product.tally)),
        "mutants": {mutant.name: {"in_round": one.caught_in, "what": one.what} for mutant, one in mutants.items()},
        "not_found": blind,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(told))
    idle = by_writes["in parallel"] < PARALLEL_LEAST or by_writes["waited"] < WAITED_LEAST
    return 1 if blind or idle or product.caught_in is not None else 0


if __name__ == "__main__":
    sys.exit(main())
