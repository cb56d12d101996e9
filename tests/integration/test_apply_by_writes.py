"""docs/decisions/0033: many channels inside one schema lead to what one leads to, at every kind of target.

The transactions are `mutants/keyed_rows`'s.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fix_effort import Effort
from fix_pipeline import GroupBounds, Threads, counters, run_threads, take, tasks_for
from mutants.keyed_rows import (
    CHILD,
    KEYED_TABLES,
    LOOSE_CODES,
    PARENT,
    REFERENCE,
    SCHEMA,
    Drawing,
    drawn_tables,
    references,
)
from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying import write_owners
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.rules.by_writes import WritesBounds
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.row_touches import RowTouches
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.mariadb import text_equality
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import TextEquality
from tranlog.testing.servers import MariaDbServer, PostgresServer
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)


def append(path: Path, transactions: Iterable[Sequence[RowChange]]) -> Seqno:
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
    with Log.open(str(path), source_id="test") as log:
        for at, changes in enumerate(transactions):
            packer.begin(BY_SCHEMA)
            for change in changes:
                assert packer.add(change, event_id="", tstamp=1) is None
            log.append(packer.finish(event_id=f"event {at}", tstamp=at))
        log.commit()
        return log.last_seqno


def check_ended(results: list[TaskResult], until: int) -> None:
    assert [(one.end, one.applied_seqno, one.error) for one in results] == [(TaskEnd.LIMIT, until, None)] * len(results)


def wait_until(true: Callable[[], bool], timeout_s: float = 60.0, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(pause_s)


KINDS = ("sqlite", "postgres", "mariadb")


def empty_target(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    """Return a database of the kind that is the fixture's parameter, with our own tables alone."""
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
    target.close()
    return made


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    return empty_target(request, tmp_path)


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> TargetOptions:
    made = empty_target(request, tmp_path)
    target = open_target(made)
    for table in KEYED_TABLES:
        target.rows.create_table(table)
    if made.kind in REFERENCE:
        target.rows.session.run(REFERENCE[made.kind])  # type: ignore[attr-defined]
    target.close()
    return made


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(3))
def test_many_channels_lead_to_what_one_does(
    tmp_path: Path, options: TargetOptions, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = Drawing(random.Random(seed))
    drawn = WritesBounds(every=drawing.random.choice((40, 90)), lead=drawing.random.choice((0, 5, 40)), serial_in=10)
    monkeypatch.setattr(write_owners, "BOUNDS", drawn)
    last = append(tmp_path / "log", itertools.islice(drawing.transactions(), 400))
    plan = ShardPlan(channels=drawing.random.randint(2, 5), by=ShardBy.WRITES)
    bounded = drawing.random.randrange(last)
    for until in (bounded, last):  # the second time from where the plan began, by what it says
        results = run_threads(tasks_for(options, tmp_path / "log", plan, take(options, plan), until=until))
        check_ended(results, until)
    target = open_target(options)
    try:
        for table in KEYED_TABLES:
            assert sorted(target.rows.read(table), key=repr) == sorted(drawing.rows(table), key=repr)
    finally:
        target.close()
    done = counters(options)
    assert done.missed == 0
    assert done.depended > 20
    print(options.kind, plan.channels, done.depended, done.held, done.retries, done.serial)


def make_tables(options: TargetOptions, tables: Sequence[TableMap]) -> None:
    """Make the tables with their references; a MariaDB compares texts without regard to case, accents and spaces."""
    with closing(open_target(options)) as target:
        for table in tables:
            target.rows.create_table(table)
            if options.kind == "sqlite":
                continue
            change = f"ALTER TABLE {SCHEMA}.{table.table}"
            done = [
                f"ADD FOREIGN KEY ({own}) REFERENCES {SCHEMA}.{to} ({there})" for own, to, there in references(table)
            ]
            if options.kind == "mariadb":
                done.insert(0, "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
            for one in done:
                target.rows.session.run(f"{change} {one}")  # type: ignore[attr-defined]


@pytest.mark.integration
def test_any_tables_with_any_keys_hold_the_same_whatever_the_number_of_channels(
    tmp_path: Path, empty: TargetOptions, effort: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composite, unique, nullable and foreign keys; texts that are equal without regard to case, accents or spaces."""
    base = random.randrange(1 << 32)
    for number in range(effort(1, 3, 60)):
        chance = random.Random(base + number)
        said = f"random.Random({base + number})"
        pipeline = f"p{number}"
        tables = drawn_tables(chance, f"t{number}_")
        drawing = Drawing(chance, range(chance.choice((4, 12))), tables, LOOSE_CODES)
        every, lead, serial_in = chance.choice((30, 70)), chance.choice((0, 5, 40)), chance.choice((2, 10))
        monkeypatch.setattr(write_owners, "BOUNDS", WritesBounds(every=every, lead=lead, serial_in=serial_in))
        last = append(tmp_path / pipeline, itertools.islice(drawing.transactions(), 150))
        make_tables(empty, tables)
        plan = ShardPlan(channels=chance.randint(1, 5), by=ShardBy.WRITES)
        token = take(empty, plan, pipeline=pipeline)
        results = run_threads(tasks_for(empty, tmp_path / pipeline, plan, token, until=last, pipeline=pipeline))
        assert [(one.end, one.error) for one in results] == [(TaskEnd.LIMIT, None)] * plan.channels, said
        with closing(open_target(empty)) as target:
            for table in tables:
                assert sorted(target.rows.read(table), key=repr) == sorted(drawing.rows(table), key=repr), said
        assert counters(empty, pipeline).missed == 0, said


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
        assert child.texts == {} and parent.texts == {"code": TextEquality.FOLDED}
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


@pytest.mark.integration
def test_which_texts_a_postgres_takes_for_one(postgres_database: str, postgres: PostgresServer) -> None:
    for statement in (
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
        "CREATE DOMAIN coded AS varchar(9)",
        'CREATE TABLE texts (a text, b varchar(9) COLLATE "C", c char(3), d text COLLATE loose, e name, f coded, '
        "g integer, h text[], i bytea)",
    ):
        postgres.execute(statement, database=postgres_database)
    with closing(open_target(TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database)))) as target:
        found = target.rows.keys(("public", "texts"))
    folded, unknown = TextEquality.FOLDED, TextEquality.UNKNOWN
    assert found is not None
    assert found.texts == {"a": folded, "b": folded, "c": folded, "d": unknown, "e": unknown, "f": folded}


@pytest.mark.integration
def test_the_collations_of_a_mariadb_are_what_they_are_taken_for(mariadb_target: MariaDbServer) -> None:
    """Of all texts of one and two characters of printable ASCII; of a `_bin`, and of some beyond ASCII, too."""
    listed = "SELECT full_collation_name FROM information_schema.collation_character_set_applicability"
    names = [one for (one,) in mariadb_target.execute(listed)]
    looked_at = [one for one in names if text_equality(one) is TextEquality.ASCII]
    assert {"utf8mb4_general_ci", "utf8mb4_unicode_ci", "latin1_swedish_ci"} < set(looked_at)
    assert all(not one.endswith("_bin") or text_equality(one) is TextEquality.FOLDED for one in names)
    for other in ("utf8mb4_lithuanian_ci", "utf8mb4_swedish_ci", "ucs2_general_ci", "utf8mb4_danish_ci"):
        assert text_equality(other) is TextEquality.UNKNOWN
    ascii_texts = (
        "SELECT CHAR(a.seq USING utf8mb4) t FROM seq_32_to_126 a UNION ALL "
        "SELECT CONCAT(CHAR(a.seq USING utf8mb4), CHAR(b.seq USING utf8mb4)) FROM seq_32_to_126 a, seq_32_to_126 b"
    )
    latin_texts = "SELECT CHAR(a.seq USING latin1) t FROM seq_1_to_255 a"
    folded = "COUNT(DISTINCT CAST(LOWER(CONVERT(RTRIM(t) USING utf8mb4)) AS BINARY))"
    for name in [*looked_at, "utf8mb4_bin", "latin1_bin", "utf8mb4_nopad_bin"]:
        charset = name.split("_")[0]
        texts = latin_texts if name == "latin1_bin" else ascii_texts
        together = (
            f"SELECT MIN(t), MAX(t) FROM (SELECT CONVERT(t USING {charset}) t FROM ({texts}) s) s "
            f"GROUP BY t COLLATE {name} HAVING {folded} > 1"
        )
        assert list(mariadb_target.execute(together, database="mysql")) == [], name


def parent_updated(key: int, n: int) -> RowChange:
    return RowChange(PARENT, Op.UPDATE, (key, None, n), (key, None, n + 1))


def child_of(parent: int) -> RowChange:
    return RowChange(CHILD, Op.INSERT, None, (parent, parent, parent, None, 0))


@pytest.mark.integration
@pytest.mark.parametrize("options", ["mariadb"], indirect=True)
def test_a_deadlock_of_a_parent_and_a_reference_at_the_server_is_gone_through(
    tmp_path: Path, options: TargetOptions, mariadb_target: MariaDbServer, mariadb_target_database: str
) -> None:
    """Each of two refers to the row that the other updates. InnoDB locks it for the reference; channels do not wait."""
    parents = [RowChange(PARENT, Op.INSERT, None, (key, None, 0)) for key in (1, 2)]
    crossed = [[child_of(1), parent_updated(2, 0)], [child_of(2), parent_updated(1, 0)]]
    first = append(tmp_path / "log", [parents, [RowChange(CHILD, Op.INSERT, None, (0, 0, None, None, 0))]])
    last = append(tmp_path / "log", crossed)
    plan = ShardPlan(channels=2, by=ShardBy.WRITES, triggers=("gated",))
    for statement in (
        "CREATE TABLE shop.gate (id INT PRIMARY KEY)",
        "INSERT INTO shop.gate VALUES (1)",
        "CREATE TRIGGER shop.gated AFTER INSERT ON shop.child FOR EACH ROW "
        "SET @gate = (SELECT id FROM shop.gate WHERE id = 1 LOCK IN SHARE MODE)",
    ):
        mariadb_target.execute(statement, database=mariadb_target_database)
    check_ended(run_threads(tasks_for(options, tmp_path / "log", plan, take(options, plan), until=first)), first)
    with closing(mariadb_target.connect(mariadb_target_database, autocommit=False)) as gate, gate.cursor() as cursor:
        cursor.execute("DELETE FROM shop.gate")  # locks it: both have their reference then, and neither its update
        cursor.execute("INSERT INTO shop.gate VALUES (1)")
        running = Threads(tasks_for(options, tmp_path / "log", plan, take(options, plan), until=last))
        waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        # InnoDB shows the same again to whoever asks within a tenth of a second.
        wait_until(lambda: mariadb_target.execute(waiting)[0][0] >= 2, pause_s=0.25)
        gate.commit()
    check_ended(running.join(), last)
    done = counters(options)
    assert done.missed == 0 and done.held == 0 and done.retries > 0
    target = open_target(options)
    assert sorted(target.rows.read(PARENT)) == [(1, None, 1), (2, None, 1)]
    target.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_table_whose_main_key_changes_at_the_source_alone(seed: int, tmp_path: Path) -> None:
    """No record says so, and the target keeps the key that it had."""
    chance = random.Random(seed)
    columns = tuple(
        [Column(name=name, source_type="bigint", logical=LogicalType.INTEGER, nullable=False) for name in "ucn"]
    )
    before = TableMap(schema="shop", table="turned", columns=columns, unique_keys=((0,),))
    after = TableMap(schema="shop", table="turned", columns=columns, primary_key=(1,), unique_keys=((0,),))
    rows = {key: 0 for key in range(3)}
    log = [[RowChange(before, Op.INSERT, None, (key, key + 10, 0)) for key in rows]]
    for at in range(120):
        key = chance.choice(list(rows))
        old, new = (key, key + 10, rows[key]), (key, key + 10, rows[key] + 1)
        log.append([RowChange(before if at < 60 else after, Op.UPDATE, old, new)])
        rows[key] += 1
    until = append(tmp_path / "log", log)
    options = TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"))
    with closing(open_target(options)) as target:
        target.positions.ensure_tables()
        target.rows.create_table(before)
    plan = ShardPlan(channels=3, by=ShardBy.WRITES)
    bounds = GroupBounds(transactions=50)
    check_ended(
        run_threads(tasks_for(options, tmp_path / "log", plan, take(options, plan), until=until, bounds=bounds)), until
    )
    with closing(open_target(options)) as target:
        assert {row[0]: row[2] for row in target.rows.read(before)} == rows
    assert counters(options).missed == 0
