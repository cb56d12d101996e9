"""Is each rule of replication missed when it is gone? `make sim-mutants` prints mutant, seeds needed, what found it.

Each mutant plays the seeds from 1 on until something is found; it fails if `WITHIN` seeds find nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mutants.replication_rules import REPLICATION
from mutants.rounds import run_rounds

HARNESS = "group_rounds"
WITHIN = 400


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the mutants; return 0 where each is found."""
    parser = argparse.ArgumentParser(prog="make sim-mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--within", type=int, default=WITHIN, help=f"so many seeds ({WITHIN})")
    given = parser.parse_args(arguments)
    blind = 0
    with tempfile.TemporaryDirectory(prefix="tranlog-mutants-") as folder:
        for mutant in REPLICATION:
            if given.only in mutant.name:
                outcome = run_rounds(HARNESS, mutant, Path(folder), rounds=given.within)
                blind += outcome.caught_in is None
                print(
                    json.dumps({"mutant": mutant.name, "seeds": outcome.caught_in, "found": outcome.what[:200]}),
                    flush=True,
                )
    return int(blind > 0)


if __name__ == "__main__":
    sys.exit(main())
