"""docs/conformance.md and the run of the tests: what the page names, and whether a run of a whole tier ran it.

`conftest` registers `RanCheck`. Only the process that reports looks, at the end of a whole tier: all of `tests`,
nothing deselected but by markers, and not stopped on the way. One file, `-k` and the like prove nothing about the page,
so there it keeps still. Under xdist the reports of all workers come to that process, in whatever order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "conformance.md"

OPEN = "open"
APART = "does not apply: "
_TEST = re.compile(r"tests/[\w/]+\.py::\w+(?:\[[^\]`]+\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a checklist: its id there, our wording of the fact, and what proves it."""

    section: str
    id: str
    fact: str
    proof: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The node ids that the line names."""
        return tuple(_TEST.findall(self.proof))

    @property
    def is_open(self) -> bool:
        """Whether nothing proves it yet."""
        return self.proof == OPEN or self.proof.startswith(OPEN + ": ")


def read_lines(text: str) -> list[Line]:
    """Return the lines of every table of the page, under the heading each stands below."""
    found: list[Line] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|") or len(cells) != 3 or cells[0] == "line" or set(cells[0]) <= set("-"):
            continue
        found.append(Line(section=section, id=cells[0].strip("`"), fact=cells[1], proof=cells[2]))
    return found


@cache
def defined_in(path: Path) -> dict[str, frozenset[str]]:
    """Return the test functions that a file defines, by name, with their markers: the file's own and each one's."""

    def markers(expressions: list[ast.expr]) -> Iterator[str]:
        for expression in expressions:
            for node in ast.walk(expression):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
                    yield node.attr

    tree = ast.parse(path.read_text())
    of_the_file: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["pytestmark"]:
            of_the_file += markers([node.value])
    return {
        node.name: frozenset((*of_the_file, *markers(node.decorator_list)))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def markers_of(test: str, root: Path) -> frozenset[str] | None:
    """Return a named test's markers; None if there is no such test."""
    file, _, name = test.partition("::")
    path = root / file
    return defined_in(path).get(name.partition("[")[0]) if path.is_file() else None


def is_of_tier(markers: frozenset[str], expression: str) -> bool:
    """Whether `-m EXPRESSION` selects a test with these markers; an empty one selects all."""
    if not expression:
        return True
    words = {word: word in markers for word in re.findall(r"\w+", expression) if word not in ("and", "or", "not")}
    return bool(eval(expression, {"__builtins__": {}}, words))


def not_run(lines: list[Line], ran: set[str], *, expression: str, root: Path) -> list[str]:
    """Return what the page names of a tier and the run of it did not run; a name without [...] is any of its cases."""
    functions = {nodeid.partition("[")[0] for nodeid in ran}
    missing: dict[str, str] = {}
    for line in lines:
        for test in line.tests:
            markers = markers_of(test, root)
            if markers is not None and is_of_tier(markers, expression):
                if test not in (ran if "[" in test else functions):
                    missing.setdefault(test, line.id)
    return [f"{test}, named for {id_}" for test, id_ in missing.items()]


@dataclass(eq=False)  # plugins are told apart, and hashed, by identity
class RanCheck:
    """The plugin: remembers which tests ran, and fails a whole tier that left out one that the page names."""

    document: Path = DOCUMENT
    root: Path = ROOT
    _ran: set[str] = field(default_factory=set)
    _missing: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test that was called; one that was skipped proved nothing."""
        if report.when == "call" and report.outcome != "skipped":
            self._ran.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare, if this was a whole tier."""
        if not self._is_whole(session):
            return
        lines = read_lines(self.document.read_text())
        self._missing = not_run(lines, self._ran, expression=session.config.option.markexpr, root=self.root)
        if self._missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which."""
        if self._missing:
            terminalreporter.section(f"{self.document.name} names tests that did not run", red=True)
            for one in self._missing:
                terminalreporter.write_line(one)

    def _is_whole(self, session: pytest.Session) -> bool:
        config = session.config
        if hasattr(config, "workerinput") or session.shouldfail or session.shouldstop:
            return False
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return False
        narrowing = ("keyword", "deselect", "ignore", "ignore_glob", "collectonly", "lf", "stepwise", "maxfail")
        if any(getattr(config.option, name, None) for name in narrowing):
            return False
        whole = self.root / "tests"
        return [(config.invocation_params.dir / one).resolve() for one in config.args] == [whole.resolve()]
