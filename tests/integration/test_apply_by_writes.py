"""docs/decisions/0033: many channels inside one schema lead to what one leads to, at every kind of target.

Random transactions over tables with primary, composite, unique, nullable and foreign keys, whose rows swap and move
keys. They are drawn by a SQLite database that enforces the same keys, so one channel applies them without a conflict.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_pipeline import counters, run_threads, take, tasks_for
from tranlog.change import Column, ForeignKey, Op, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying import write_owners
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.by_writes import WritesBounds
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.row_touches import RowTouches
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.types import LogicalType, Value

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
SCHEMA = "shop"
NUMBERS = range(8)
CODES = (None, "a", "A", "b", "c", "d")

Row = tuple[Value, ...]


def number(name: str, *, nullable: bool = False) -> Column:
    return Column(name=name, source_type="bigint", logical=LogicalType.INTEGER, nullable=nullable)


PARENT = TableMap(
    schema=SCHEMA,
    table="parent",
    columns=(
        number("id"),
        Column(name="code", source_type="varchar(20)", logical=LogicalType.TEXT, length=20),
        number("n"),
    ),
    primary_key=(0,),
    unique_keys=((1,),),
)
CHILD = TableMap(
    schema=SCHEMA,
    table="child",
    columns=(number("a"), number("b"), number("parent", nullable=True), number("u", nullable=True), number("n")),
    primary_key=(0, 1),
    unique_keys=((3,),),
    foreign_keys=(ForeignKey(columns=(2,), ref_schema=SCHEMA, ref_table="parent", ref_columns=("id",)),),
)
TABLES = (PARENT, CHILD)
MODEL = """
CREATE TABLE parent (id INTEGER PRIMARY KEY, code TEXT COLLATE NOCASE UNIQUE, n INTEGER);
CREATE TABLE child (a INTEGER, b INTEGER, parent INTEGER REFERENCES parent (id), u INTEGER UNIQUE, n INTEGER,
                    PRIMARY KEY (a, b)) WITHOUT ROWID;
"""
REFERENCE = {
    "postgres": "ALTER TABLE shop.child ADD FOREIGN KEY (parent) REFERENCES shop.parent (id)",
    "mariadb": "ALTER TABLE `shop`.`child` ADD FOREIGN KEY (parent) REFERENCES `shop`.`parent` (id)",
}


class Drawing:
    """Random transactions that fit the rows as they are."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = apsw.Connection(":memory:")
        self.model.execute(f"PRAGMA foreign_keys = ON; {MODEL}")

    def rows(self, table: TableMap) -> list[Row]:
        return list(self.model.execute(f"SELECT * FROM {table.table}"))

    def drawn_row(self, table: TableMap) -> Row:
        choose = self.random.choice
        if table is PARENT:
            return choose(NUMBERS), choose(CODES), 0
        return choose(NUMBERS), choose(NUMBERS), choose((None, *NUMBERS)), choose((None, *NUMBERS)), 0

    def change(self) -> RowChange | None:
        """Do one change to the model; None where its keys refuse it."""
        table = self.random.choice(TABLES)
        rows = self.rows(table)
        op = self.random.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.DELETE)) if rows else Op.INSERT
        before = None if op is Op.INSERT else self.random.choice(rows)
        after = None if op is Op.DELETE else self.drawn_row(table)
        if before is not None and after is not None:
            # Most updates keep most of a row; the last column counts them.
            kept = [old if self.random.random() < 0.8 else new for old, new in zip(before, after, strict=True)]
            after = (*kept[:-1], int(str(before[-1])) + 1)
        names = [column.name for column in table.columns]
        key = " AND ".join(f"{names[at]} = {before[at]!r}" for at in table.primary_key) if before is not None else ""
        try:
            if after is None:
                self.model.execute(f"DELETE FROM {table.table} WHERE {key}")
            elif before is None:
                self.model.execute(f"INSERT INTO {table.table} VALUES ({', '.join('?' * len(names))})", after)
            else:
                given = ", ".join(f"{name} = ?" for name in names)
                self.model.execute(f"UPDATE {table.table} SET {given} WHERE {key}", after)
        except apsw.ConstraintError:
            return None
        return RowChange(table, op, before, after)

    def transactions(self, count: int) -> Iterator[list[RowChange]]:
        for _ in range(count):
            drawn = [self.change() for _ in range(self.random.choice((1, 1, 2, 3, 8)))]
            yield [change for change in drawn if change is not None]


def write(path: Path, drawing: Drawing, count: int) -> Seqno:
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
    with Log.open(str(path), source_id="test") as log:
        for at, changes in enumerate(drawing.transactions(count)):
            packer.begin(BY_SCHEMA)
            for change in changes:
                assert packer.add(change, event_id="", tstamp=1) is None
            log.append(packer.finish(event_id=f"event {at}", tstamp=at))
        log.commit()
        return log.last_seqno


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    kind = request.param
    given: dict[str, Any] = {"path": str(tmp_path / "target.db")}
    if kind != "sqlite":
        names = (
            ("postgres", "postgres_database") if kind == "postgres" else ("mariadb_target", "mariadb_target_database")
        )
        server, database = (request.getfixturevalue(name) for name in names)
        given = {"dsn": server.dsn(database)}
    made = TargetOptions(kind=kind, **given)
    target = open_target(made)
    target.positions.ensure_tables()
    for table in TABLES:
        target.rows.create_table(table)
    if kind in REFERENCE:
        target.rows.session.run(REFERENCE[kind])  # type: ignore[attr-defined]
    target.close()
    return made


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(3))
def test_many_channels_lead_to_what_one_does(
    tmp_path: Path, options: TargetOptions, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = Drawing(seed)
    drawn = WritesBounds(every=drawing.random.choice((40, 90)), lead=drawing.random.choice((0, 5, 40)), serial_in=10)
    monkeypatch.setattr(write_owners, "BOUNDS", drawn)
    last = write(tmp_path / "log", drawing, 400)
    plan = ShardPlan(channels=drawing.random.randint(2, 5), by=ShardBy.WRITES)
    bounded = drawing.random.randrange(last)
    for until in (bounded, last):  # the second time from where the plan began, by what it says
        results = run_threads(tasks_for(options, tmp_path / "log", plan, take(options, plan), until=until))
        assert [(one.end, one.applied_seqno, one.error) for one in results] == [(TaskEnd.LIMIT, until, None)] * len(
            results
        )
    target = open_target(options)
    try:
        for table in TABLES:
            assert sorted(target.rows.read(table), key=repr) == sorted(drawing.rows(table), key=repr)
    finally:
        target.close()
    done = counters(options)
    assert done.missed == 0
    assert done.depended > 20
    print(options.kind, plan.channels, done.depended, done.held, done.retries, done.serial)


MORE = {
    "postgres": (
        "ALTER TABLE shop.child ADD FOREIGN KEY (u) REFERENCES shop.parent (id) ON DELETE CASCADE",
        "CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER noted AFTER UPDATE ON shop.child FOR EACH ROW EXECUTE FUNCTION shop.note()",
        "CREATE UNIQUE INDEX ON shop.parent (n) WHERE n > 100",
    ),
    "mariadb": (
        "ALTER TABLE shop.child ADD FOREIGN KEY (u) REFERENCES shop.parent (id) ON DELETE CASCADE",
        "CREATE TRIGGER shop.noted AFTER UPDATE ON shop.child FOR EACH ROW SET @noted = 1",
        "CREATE UNIQUE INDEX short ON shop.parent (code(3))",
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("options", ["postgres", "mariadb"], indirect=True)
def test_what_a_server_holds_rows_to(options: TargetOptions) -> None:
    """Each of these makes transactions run alone, by its name."""
    target = open_target(options)
    try:
        child, parent = target.rows.keys((SCHEMA, "child")), target.rows.keys((SCHEMA, "parent"))
        assert child is not None and parent is not None
        assert set(child.unique) == {("a", "b"), ("u",)} and set(parent.unique) == {("id",), ("code",)}
        assert child.references == ((("parent",), (SCHEMA, "parent"), ("id",)),)
        assert (child.triggers, child.why, parent.actions, parent.why) == ((), "", "", "")
        for statement in MORE[options.kind]:
            target.rows.session.run(statement)  # type: ignore[attr-defined]
        child, parent = target.rows.keys((SCHEMA, "child")), target.rows.keys((SCHEMA, "parent"))
        assert child is not None and parent is not None
        assert child.triggers == ("noted",) and len(child.references) == 2
        assert parent.actions == f"foreign keys of {'shop.' * (options.kind == 'postgres')}child change its rows"
        assert parent.why in ("a partial or expression index", "a key of a prefix")
        assert target.rows.keys((SCHEMA, "other")) is None
    finally:
        target.close()
