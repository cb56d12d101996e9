"""Switches on the mutant that `TRANLOG_MUTANT` names, in every process started with this folder on PYTHONPATH.

Python imports `sitecustomize` by itself at its start, so that a command, a Spark driver and its workers become mutants
alike. An unknown name ends the process: a harness that runs without its mutant would prove nothing.
"""

import os
import sys

_NAME = os.environ.get("TRANLOG_MUTANT")
if _NAME:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from mutants.catalogue import MUTANTS
    from mutants.rewriting import EXIT_ROTTEN, switch_on

    sys.path.pop(0)
    if _NAME not in MUTANTS:
        sys.stderr.write(f"TRANLOG_MUTANT: there is no mutant {_NAME!r}; one of {', '.join(MUTANTS)}\n")
        sys.stderr.flush()
        os._exit(EXIT_ROTTEN)
    switch_on(MUTANTS[_NAME])
