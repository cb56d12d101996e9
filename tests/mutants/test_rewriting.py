"""A mutant is switched on by its name, in every process, and cannot rot without a word."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from mutants.catalogue import MUTANTS, NO_TOKEN
from mutants.rewriting import EXIT_ROTTEN, Edit, Mutant, RottenMutantError, rewritten
from mutants.rounds import environment

EACH = [pytest.param(mutant, id=name) for name, mutant in MUTANTS.items()]


def run(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", EACH)
def test_each_mutant_fits_the_source_as_it_is(mutant: Mutant) -> None:
    """Each text stands in its module once, and what comes out is Python, and something else."""
    for module in {edit.module for edit in mutant.edits}:
        folder = importlib.import_module(module.rpartition(".")[0]).__path__
        spec = PathFinder.find_spec(module, folder)  # as the import hook does: the source, compiled or not
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text()
        changed = rewritten(source, [edit for edit in mutant.edits if edit.module == module])
        assert changed != source
        compile(changed, module, "exec")


def test_a_text_that_is_not_there_once_is_refused() -> None:
    edit = Edit(module="m", old="x = 1\n", new="x = 2\n")
    assert rewritten("x = 1\n", [edit]) == "x = 2\n"
    for source in ("", "x = 1\nx = 1\n"):
        with pytest.raises(RottenMutantError, match=r"m holds this text \d times"):
            rewritten(source, [edit])


@pytest.mark.long
def test_every_process_becomes_the_mutant_and_keeps_no_trace_of_it() -> None:
    """The changed module is what is imported, also by a child; another process has the product again."""
    show = (
        "import tranlog.target.position as p, subprocess, sys\n"
        "print('$10 IS NOT NULL' in p._ADVANCE)\n"
        "if len(sys.argv) == 1: print(subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'x'],"
        " capture_output=True, text=True).stdout.strip())"
    )
    assert run(show, environment(NO_TOKEN)).stdout.split() == ["True", "True"]
    assert run(show, environment(None)).stdout.split() == ["False", "False"]


def test_an_unknown_mutant_ends_the_process() -> None:
    """A harness that ran on without its mutant would prove nothing."""
    done = run("print('on it goes')", {**environment(None), "TRANLOG_MUTANT": "no-such"})
    assert (done.returncode, done.stdout) == (EXIT_ROTTEN, "")
    assert "there is no mutant 'no-such'" in done.stderr


def test_a_rotten_mutant_ends_the_process_that_imports() -> None:
    """Even where the importing code would take an exception for something else."""
    code = (
        "from mutants.rewriting import Edit, Mutant, switch_on\n"
        "switch_on(Mutant(name='m', what='', edits=(Edit(module='tranlog.shard', old='not in it', new=''),)))\n"
        "try:\n    import tranlog.shard\nexcept BaseException:\n    print('on it goes')"
    )
    done = run(code, environment(None))
    assert (done.returncode, done.stdout) == (EXIT_ROTTEN, "")
    assert "tranlog.shard holds this text 0 times" in done.stderr


def test_a_mutant_that_comes_too_late_ends_the_process() -> None:
    code = (
        "import tranlog.target.position\nfrom mutants.catalogue import NO_TOKEN\n"
        "from mutants.rewriting import switch_on\nswitch_on(NO_TOKEN)\nprint('on it goes')"
    )
    done = run(code, environment(None))
    assert (done.returncode, done.stdout) == (EXIT_ROTTEN, "")
