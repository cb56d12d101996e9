"""A target under test: a real database with a pipeline taken and a channel claimed, and changes to apply to it."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fix_folder import open_target
from tranlog.change import Change, Column, Op, Options, RowChange, TableMap
from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions
from tranlog.target.session import Session
from tranlog.target.target import Advance, Applied, ApplyUnit, ChannelRow, Target
from tranlog.types import LogicalType, Value, canonical

Row = tuple[Value, ...]
ANY, INTEGER, TEXT = LogicalType.ANY, LogicalType.INTEGER, LogicalType.TEXT
PIPELINE = "shop"

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.integration),
    pytest.param("mariadb", marks=pytest.mark.integration),
]
databases = pytest.mark.parametrize("options", DATABASES, indirect=True)
"""For a test of what only a database has: statements, columns of its own, tables of ours that are harmed."""


def column(name: str, logical: LogicalType, source_type: str, **more: object) -> Column:
    return Column(name=name, source_type=source_type, logical=logical, **more)  # type: ignore[arg-type]


def table(name: str, *columns: Column, key: Sequence[int] = (0,), schema: str = "shop", **more: object) -> TableMap:
    return TableMap(schema=schema, table=name, columns=columns, primary_key=tuple(key), **more)  # type: ignore[arg-type]


ID = column("id", INTEGER, "int(11)", nullable=False)
ITEMS = table("items", ID, column("name", TEXT, "varchar(20)", length=20), column("n", INTEGER, "int(11)"))
MOVES = table("moves", ID, column("name", TEXT, "text"), column("n", INTEGER, "int(11)"), key=())


def insert(table: TableMap, row: Row) -> RowChange:
    return RowChange(table, Op.INSERT, None, row)


def update(table: TableMap, before: Row, after: Row) -> RowChange:
    return RowChange(table, Op.UPDATE, before, after)


def delete(table: TableMap, row: Row) -> RowChange:
    return RowChange(table, Op.DELETE, row, None)


# --- tables with foreign keys ---

_REF, _N = column("ref", INTEGER, "int(11)"), column("n", INTEGER, "int(11)")
AUTHORS, BOOKS, PAGES, FOLDERS = (table(name, ID, _REF, _N) for name in ("authors", "books", "pages", "folders"))
REFERS = {BOOKS: AUTHORS, PAGES: BOOKS, FOLDERS: FOLDERS}
"""Of which table `ref` is the key, or NULL: an author's is never anything."""
Family = dict[TableMap, dict[int, Row]]
"""By table and key the rows."""


def orphan(rows: Family) -> tuple[TableMap, Row] | None:
    """A row that refers to nothing."""
    for child, parent in REFERS.items():
        for row in rows[child].values():
            if row[1] is not None and row[1] not in rows[parent]:
                return child, row
    return None


def family_log(chance: random.Random, count: int, *, keys: int, goes: float) -> tuple[list[RowChange], Family]:
    """Changes of so many keys, after each of which all references hold, and the rows that they leave; `goes`: how many
    of those of a row that is there are deletes."""
    rows: Family = {one: {} for one in (AUTHORS, BOOKS, PAGES, FOLDERS)}
    changes: list[RowChange] = []
    while len(changes) < count:
        of = chance.choice(list(rows))
        key = chance.randrange(keys)
        before = rows[of].get(key)
        refers = [None, *rows[REFERS[of]]] if of in REFERS else [None]
        after: Row | None = (key, chance.choice(refers), len(changes))
        if before is not None and chance.random() < goes:
            after = None
        elif before is not None and chance.random() < 0.5:
            after = (key, before[1], len(changes))
        tried = {one: dict(these) for one, these in rows.items()}
        if after is None:
            del tried[of][key]
        else:
            tried[of][key] = after
        if orphan(tried) is None:
            rows = tried
            op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
            changes.append(RowChange(of, op, before, after))
    return changes, rows


def unit_of(
    seqno: int, changes: Sequence[Change] | Callable[[], Iterator[Change]], metadata: Options = ()
) -> ApplyUnit:
    """A transaction of `changes`, or of what `changes` yields when it is applied."""

    def again() -> Iterator[Change]:
        return iter(changes() if callable(changes) else changes)

    return ApplyUnit(
        seqno=Seqno(seqno),
        epoch=Epoch(1),
        source_id="source",
        event_id=f"event {seqno}",
        tstamp=1_700_000_000_000 + seqno,
        metadata=metadata,
        changes=again,
    )


def session_of(target: Target) -> Session:
    """The session of a target that is a database."""
    assert isinstance(target.rows, SqlRows)
    return target.rows.session


class Bench:
    """One target connection that owns channel 0 of a pipeline, with the seqnos of what it applies."""

    def __init__(self, options: TargetOptions) -> None:
        self.options = options
        self.target: Target = open_target(options)
        self.target.positions.ensure_tables()
        self.driver_token = self.target.positions.take(
            pipeline=PIPELINE,
            expected_token=0,
            holder="the test",
            channels=1,
            shard_rule="all",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        self.token = self.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=self.driver_token).token
        self.applied = NO_SEQNO

    @property
    def session(self) -> Session:
        """The target's own session, for what only the database itself can be asked."""
        return session_of(self.target)

    def advance(self, count: int) -> Advance:
        """The advance over the next `count` transactions."""
        new = Seqno(self.applied + count)
        return Advance(
            pipeline=PIPELINE,
            channel=0,
            token=self.token,
            old_seqno=self.applied,
            new_seqno=new,
            epoch=Epoch(1),
            source_id="source",
            event_id=f"event {new}",
            tstamp=1_700_000_000_000 + new,
            stats="{}",
        )

    def apply(self, *transactions: Sequence[Change], metadata: Options = ()) -> Applied:
        """Apply transactions in one target transaction. After an error the position is where it was."""
        units = [unit_of(self.applied + 1 + i, changes, metadata) for i, changes in enumerate(transactions)]
        advance = self.advance(len(units))
        applied = self.target.apply(units, advance)
        self.applied = advance.new_seqno
        return applied

    def stored_seqno(self) -> int:
        (row,) = self.target.positions.read_channels(PIPELINE)
        return row.applied_seqno

    def rows(self, table: TableMap) -> Counter[tuple[tuple[int, object], ...]]:
        """What the target holds, as values that compare by what they are."""
        return content(self.target.rows.read(table))

    def close(self) -> None:
        self.target.close()


def claim_again(bench: Bench) -> None:
    """Claim the bench's channel once more, as a task does that comes after another."""
    row = bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token)
    bench.token, bench.applied = row.token, row.applied_seqno


def content(rows: Iterator[Row] | Sequence[Row]) -> Counter[tuple[tuple[int, object], ...]]:
    """Rows to compare: in no order, each as often as it is there."""
    return Counter(tuple(canonical(value) for value in row) for row in rows)


class Model:
    """Tables as Python sees them: keyed ones as dicts, keyless ones as lists. Draws changes that fit them."""

    def __init__(
        self, seed: int, *, tables: Sequence[TableMap], value: Callable[[random.Random, Column], Value]
    ) -> None:
        self.random = random.Random(seed)
        self.tables = tables
        self.value = value
        self.content: dict[str, list[Row]] = {table.name: [] for table in tables}

    def transaction(self, most: int) -> list[Change]:
        """Draw a transaction and carry it out here."""
        rng = self.random
        changes: list[Change] = []
        while len(changes) < rng.randint(1, most):
            table = rng.choice(self.tables)
            # Runs of one operation, as applications write them: that is what batches are made of.
            draw = rng.choice([self._insert, self._insert, self._update, self._update, self._delete])
            for _ in range(rng.choice([1, 1, 2, 5])):
                change = draw(table)
                if change is not None:
                    changes.append(change)
        return changes

    def _fresh(self, table: TableMap) -> Row | None:
        row = tuple(self.value(self.random, column) for column in table.columns)
        key = canonical_row(table.key_of(row))
        if table.primary_key and any(canonical_row(table.key_of(r)) == key for r in self.content[table.name]):
            return None
        return row

    def _insert(self, table: TableMap) -> RowChange | None:
        row = self._fresh(table)
        if row is None:
            return None
        self.content[table.name].append(row)
        return insert(table, row)

    def _update(self, table: TableMap) -> RowChange | None:
        rows = self.content[table.name]
        if not rows:
            return None
        at = self.random.randrange(len(rows))
        before = rows[at]
        after = list(before)
        for i in range(len(after)):
            moves = i in table.primary_key and self.random.random() < 0.9
            if not moves and self.random.random() < 0.5:
                after[i] = self.value(self.random, table.columns[i])
        new = tuple(after)
        if table.primary_key:
            key = canonical_row(table.key_of(new))
            if any(canonical_row(table.key_of(r)) == key for j, r in enumerate(rows) if j != at):
                return None
        rows[at] = new
        return update(table, before, new)

    def _delete(self, table: TableMap) -> RowChange | None:
        rows = self.content[table.name]
        if not rows:
            return None
        return delete(table, rows.pop(self.random.randrange(len(rows))))


def canonical_row(row: Row) -> tuple[tuple[int, object], ...]:
    return tuple(canonical(value) for value in row)


STOPS_ITSELF = """
import os, pickle, signal, sys
sys.path.insert(0, sys.argv[2])
from fix_target import ITEMS, PIPELINE, Bench, insert, unit_of
from tranlog.target.options import open_target

options, driver_token, stops = pickle.loads(bytes.fromhex(sys.argv[1]))
target = open_target(options)
row = target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=driver_token)

def changes():
    yield insert(ITEMS, (1000, "stale", 1))
    print("inside", flush=True)
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        sys.stdin.readline()

bench = Bench.__new__(Bench)
bench.applied, bench.token = row.applied_seqno, row.token
try:
    target.apply([unit_of(row.applied_seqno + 1, changes)], bench.advance(1))
    print("applied", flush=True)
except Exception as exc:
    print(type(exc).__name__, exc, flush=True)
"""


class StoppedTask:
    """A task in a process of its own that is in the middle of a target transaction: stopped, or waiting for a line."""

    def __init__(self, bench: Bench, *, stops: bool = True, options: TargetOptions | None = None) -> None:
        given = pickle.dumps((options or bench.options, bench.driver_token, stops)).hex()
        self.process = subprocess.Popen(
            [sys.executable, "-c", STOPS_ITSELF, given, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "inside\n"
        while stops and self.state() != "T":
            pass

    @property
    def pid(self) -> int:
        return self.process.pid

    def state(self) -> str:
        """What the kernel says: T stopped, Z dead."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def go_on(self) -> str:
        """Let it go on; return what came of it."""
        self.process.send_signal(signal.SIGCONT)
        return self.process.communicate("\n")[0].strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def open_bench() -> Iterator[Callable[[TargetOptions], Bench]]:
    """Open benches that are closed after the test."""
    opened: list[Bench] = []

    def open_one(options: TargetOptions) -> Bench:
        opened.append(Bench(options))
        return opened[-1]

    yield open_one
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]) -> Bench:
    """A target with a channel claimed, as the module's fixture `options` has it."""
    return open_bench(options)


@pytest.fixture
def stop_task() -> Iterator[Callable[..., StoppedTask]]:
    """Start tasks that stop in the middle of a target transaction; they are gone after the test."""
    started: list[StoppedTask] = []

    def start(bench: Bench, **more: object) -> StoppedTask:
        started.append(StoppedTask(bench, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for task in started:
        task.close()
