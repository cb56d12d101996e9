"""What every program in `bench/` shares: a question, interleaved rounds, ratios, one table, one file of results.

A program answers one question, and is run by itself or by `make bench`, which is `python bench`:

    QUESTION = Question(name="append", text="How fast is a durable append?", peer="SQLite, WAL, synchronous=FULL")

    def measure(bench: Bench) -> None:
        bench.compare("batch 1", ours=commit_ours, peer=commit_peer, unit="commits/s", must=at_least(1.2))

    if __name__ == "__main__":
        sys.exit(run(QUESTION, measure))

The hard idea: a machine is never quiet, so nothing is said about one side alone. Ours and the peer's run by turns in
the same process, the order changing from round to round; each round gives one ratio, and the median of these is the
result. Where the question permits, a program measures CPU seconds (`cpu_of`), which another's load hardly moves.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
ROUNDS = 5

COLUMNS = ("name", "ours", "anchor", "ratio", "must", "verdict")
_HEAD = """\
# Results

Written by `make bench ARGS=--record`, one section for each program in this folder. A ratio is ours divided by the
anchor's, both measured by turns in the same run, the median over the rounds; the two figures beside it are medians too,
and mean nothing on another machine. A row without an anchor is an absolute figure.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a program wants to know, and against whom. `name` is the program's file, without `.py`."""

    name: str
    text: str
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Must:
    """What a row has to reach: its ratio, or its own figure where there is no anchor.

    Ends: both bounds count as reached. `stretch` is what would be good to have; nothing fails by it.
    """

    bound: float
    at_least: bool
    stretch: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a ratio or a figure is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {_figure(self.bound)}"


def at_least(bound: float, *, stretch: float | None = None) -> Must:
    """More is better: rates."""
    return Must(bound=bound, at_least=True, stretch=stretch)


def at_most(bound: float, *, stretch: float | None = None) -> Must:
    """Less is better: times, bytes."""
    return Must(bound=bound, at_least=False, stretch=stretch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `anchor` and `ratio` are None for an absolute figure; `spread` is the ratios' range."""

    name: str
    unit: str
    ours: float
    anchor: float | None
    ratio: float | None
    spread: tuple[float, float] | None
    must: Must | None
    rounds: int

    @property
    def verdict(self) -> str:
        """PASS, FAIL, or none where nothing was asked for."""
        if self.must is None:
            return "none"
        return "PASS" if self.must.holds(self.ours if self.ratio is None else self.ratio) else "FAIL"

    def cells(self) -> tuple[str, ...]:
        """The row as `COLUMNS` has it."""
        return (
            self.name,
            f"{_figure(self.ours)} {self.unit}",
            "absolute" if self.anchor is None else f"{_figure(self.anchor)} {self.unit}",
            "-" if self.ratio is None else f"{_figure(self.ratio)}x",
            "-" if self.must is None else str(self.must),
            self.verdict,
        )


class Bench:
    """Collects the rows of one program. Progress goes to standard error."""

    def __init__(
        self, question: Question, *, rounds: int | None = None, full: bool = True, only: str | None = None
    ) -> None:
        self.question = question
        self._only = only
        self._rounds = rounds
        self._full = full
        self.rows: list[Row] = []

    def rounds(self, wanted: int = ROUNDS) -> int:
        """How many rounds to run: what the command line says, else what the program wants."""
        return wanted if self._rounds is None else self._rounds

    def wants(self, part: str) -> bool:
        """Whether to run a part of a program: all, or the one that the command line names."""
        return self._only in (None, part)

    def size(self, full: int, *, trying: int) -> int:
        """How large a load to make: `full` for `make bench` and the record, `trying` for a program run by itself."""
        return full if self._full else trying

    def compare(
        self,
        name: str,
        *,
        ours: Callable[[], float],
        peer: Callable[[], float],
        unit: str,
        must: Must | None = None,
        rounds: int = ROUNDS,
        warm_up: bool = True,
    ) -> Row:
        """Run both by turns, each returning its figure, and add the row. `warm_up`: a first round does not count."""
        figures = self.by_turns({"ours": ours, "peer": peer}, rounds=rounds, warm_up=warm_up)
        return self.add(name, ours=figures["ours"], anchor=figures["peer"], unit=unit, must=must)

    def by_turns(
        self, sides: Mapping[str, Callable[[], float]], *, rounds: int = ROUNDS, warm_up: bool = True
    ) -> dict[str, list[float]]:
        """Run each side once a round, another one first each time, and return the figures of each, round by round."""
        names = list(sides)
        figures: dict[str, list[float]] = {name: [] for name in names}
        if warm_up:
            for measured in sides.values():
                measured()
        for turn in range(self.rounds(rounds)):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                gc.collect()
                figures[name].append(sides[name]())
        return figures

    def add(
        self,
        name: str,
        *,
        ours: Sequence[float],
        unit: str,
        anchor: Sequence[float] | None = None,
        must: Must | None = None,
    ) -> Row:
        """Add a row of figures that were measured elsewhere: `ours[i]` and `anchor[i]` in the same round.

        Without `anchor` the row is an absolute figure, the median of `ours`.
        """
        ratios = None if anchor is None else [mine / theirs for mine, theirs in zip(ours, anchor, strict=True)]
        row = Row(
            name=name,
            unit=unit,
            ours=statistics.median(ours),
            anchor=None if anchor is None else statistics.median(anchor),
            ratio=None if ratios is None else statistics.median(ratios),
            spread=None if ratios is None else (min(ratios), max(ratios)),
            must=must,
            rounds=len(ours),
        )
        self.rows.append(row)
        self.say(" | ".join(row.cells()))
        return row

    def say(self, text: str) -> None:
        """Tell whoever watches how far it is."""
        print(f"{self.question.name}: {text}", file=sys.stderr, flush=True)


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process, all threads, that `work` takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes by the clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- the table, the file, the command line ---------------------------------------------------------------


def table_text(rows: Sequence[Row]) -> str:
    """Return the rows as text: Markdown, aligned for people at a terminal."""
    lines = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def _figure(value: float) -> str:
    """Return three significant digits, whole thousands apart: 12,300; 45.6; 1.23; 0.0123."""
    if value == 0:
        return "0"
    digits = max(0, 3 - len(str(int(abs(value)))) if abs(value) >= 1 else 2)
    if abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{digits}f}"


def machine() -> dict[str, str]:
    """Say where this ran: cores, processor, kernel, and the versions that matter."""
    model = platform.processor() or platform.machine()
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else model
    except OSError:
        pass
    versions = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    for package in ("tranlog", "apsw", "PyMySQL", "mysql-replication", "psycopg", "pyspark"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": str(os.cpu_count()),
        "processor": model,
        "kernel": f"{platform.system()} {platform.release()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }


def as_json(question: Question, rows: Sequence[Row], *, date: str) -> dict[str, object]:
    """Return what `--json` prints."""
    listed = [{**asdict(row), "verdict": row.verdict} for row in rows]
    return {**asdict(question), "date": date, "machine": machine(), "rows": listed}


def rows_of(answer: dict[str, object]) -> list[Row]:
    """Return the rows of what `--json` printed."""
    listed = answer["rows"]
    assert isinstance(listed, list)
    rows = []
    for fields in listed:
        known = {name: value for name, value in fields.items() if name != "verdict"}
        known["must"] = None if known["must"] is None else Must(**known["must"])
        known["spread"] = None if known["spread"] is None else tuple(known["spread"])
        rows.append(Row(**known))
    return rows


def record(question: Question, rows: Sequence[Row], *, date: str, path: Path = RESULTS) -> None:
    """Write a program's section into the file of results, in the place of the one that it had; others stay."""
    where = machine()
    stretch = [f"{row.name}: {row.must.stretch:g}x" for row in rows if row.must is not None and row.must.stretch]
    lines = [
        f"## {question.name}",
        "",
        question.text,
        "",
        f"Anchor: {question.peer}.",
        "",
        table_text(rows),
        "",
        f"{date}; {where['cores']} cores, {where['processor']}, {where['kernel']}; {where['versions']}."
        + (f" Stretch: {'; '.join(stretch)}." if stretch else ""),
        "",
    ]
    text = path.read_text() if path.exists() else _HEAD
    head, *sections = re.split(r"(?m)^(?=## )", text)
    kept = {part.partition("\n")[0]: part.rstrip("\n") + "\n" for part in sections}
    kept[lines[0]] = "\n".join(lines)
    path.write_text(head.rstrip("\n") + "\n\n" + "\n".join(kept[name] for name in sorted(kept)))


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the options that each program and `python bench` take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--record", action="store_true", help=f"write the result into bench/{RESULTS.name}")
    parser.add_argument(
        "--full", action="store_true", help="loads of full size, as --record and `make bench` take them"
    )
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help=f"rounds per row; usually {ROUNDS}")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the date to record; today")
    return parser


def run(question: Question, measure: Callable[[Bench], None]) -> int:
    """Run a program from the command line; return its exit code: 1 where a must is missed."""
    parser = arguments(question.text)
    parser.add_argument("--only", metavar="PART", help="one part of a program that has several; is not recorded")
    options = parser.parse_args()
    if options.record and options.only is not None:
        parser.error("--record takes all parts")
    bench = Bench(question, rounds=options.rounds, full=options.full or options.record, only=options.only)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode, and so starts faster
    measure(bench)
    if not bench.rows:
        parser.error(f"there is no part {options.only}")
    if options.json:
        print(json.dumps(as_json(question, bench.rows, date=options.date)))
    else:
        print(table_text(bench.rows))
    if options.record:
        record(question, bench.rows, date=options.date)
    return 1 if any(row.verdict == "FAIL" for row in bench.rows) else 0
