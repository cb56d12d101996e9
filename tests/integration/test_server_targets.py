"""What targets that are servers have in common: their locks and sessions, lost connections, constraints.

design/pipeline.md, "A stopped process holds its locks"; what only one kind does is in `test_<kind>_target.py`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import msgspec
import pytest

from fix_target import (
    AUTHORS,
    BOOKS,
    FOLDERS,
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    PAGES,
    PIPELINE,
    REFERS,
    Bench,
    StoppedTask,
    column,
    content,
    delete,
    family_log,
    insert,
    session_of,
    table,
    unit_of,
    update,
)
from fix_target import claim_again as claim
from tranlog.change import Change, TableMap
from tranlog.errors import (
    ConflictError,
    ReplacedError,
    TargetTableError,
    TargetUnavailableError,
    TransientTargetError,
)
from tranlog.ids import Seqno
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.session import Session
from tranlog.testing.servers import MariaDbServer, PostgresServer

pytestmark = pytest.mark.integration

KILL_ALL_OTHERS = {
    "postgres": (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE state = 'idle in transaction' AND datname = current_database() AND pid <> pg_backend_pid()"
    ),
    "mariadb": "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()",
}


@pytest.fixture(params=["postgres", "mariadb"])
def options(request: pytest.FixtureRequest) -> TargetOptions:
    names = ("mariadb_target", "mariadb_target_database")
    if request.param == "postgres":
        names = ("postgres", "postgres_database")
    server, database = (request.getfixturevalue(name) for name in names)
    return TargetOptions(kind=request.param, dsn=server.dsn(database), lock_timeout_s=0.3)


@pytest.fixture
def stranger(bench: Bench) -> Iterator[Session]:
    """A session of somebody else at the same database."""
    target = open_target(bench.options)
    yield session_of(target)
    target.close()


def test_all_foreign_keys_are_told(bench: Bench) -> None:
    """docs/operations.md, "A gap of some tables": those at the target join tables, in either direction."""
    bench.target.rows.create_table(ITEMS)
    session, dialect = session_of(bench.target), bench.target.rows.dialect  # type: ignore[attr-defined]
    parent = dialect.table_name(ITEMS)
    key = dialect.quote(ITEMS.columns[ITEMS.primary_key[0]].name)
    child = msgspec.structs.replace(ITEMS, table="child")
    bench.target.rows.create_table(child)
    assert bench.target.rows.references() == []
    session.run(f"ALTER TABLE {dialect.table_name(child)} ADD FOREIGN KEY ({key}) REFERENCES {parent} ({key})")
    assert bench.target.rows.references() == [((ITEMS.schema, "child"), (ITEMS.schema, ITEMS.table))]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_gathered_of_related_tables_leaves_the_same_rows(seed: int, bench: Bench) -> None:
    """In few statements, though each is checked at once; a row that refers to nothing is named by its transaction."""
    session, dialect = session_of(bench.target), bench.target.rows.dialect  # type: ignore[attr-defined]
    for each in (AUTHORS, BOOKS, PAGES, FOLDERS):
        bench.target.rows.create_table(each)
    for child, parent in REFERS.items():
        refers = f"FOREIGN KEY (ref) REFERENCES {dialect.table_name(parent)} (id)"
        session.run(f"ALTER TABLE {dialect.table_name(child)} ADD {refers}")
    changes, rows = family_log(random.Random(seed), 800, keys=60, goes=0.02)
    sent = applied = 0
    for at in range(0, len(changes), 200):
        done = bench.apply(*[[change] for change in changes[at : at + 200]])
        sent, applied = sent + done.statements, applied + done.changes
    for each, left in rows.items():
        assert bench.rows(each) == content(list(left.values())), f"seed {seed}"
    assert applied == 800 and sent < 400
    with pytest.raises(ConflictError, match=rf"seqno {bench.applied + 2}, table shop\.pages, key \(id=101\)"):
        bench.apply([insert(PAGES, (100, None, 0))], [insert(PAGES, (101, 99, 0))], [insert(PAGES, (102, None, 0))])
    assert bench.rows(PAGES) == content(list(rows[PAGES].values()))


def child_of_items(bench: Bench, action: str) -> TableMap:
    """Make ITEMS, and a table whose rows refer to those of ITEMS by `up`, ON DELETE that action; return it."""
    session, dialect = session_of(bench.target), bench.target.rows.dialect  # type: ignore[attr-defined]
    child = msgspec.structs.replace(
        ITEMS, table="child", columns=(*ITEMS.columns, column("up", INTEGER, ITEMS.columns[0].source_type))
    )
    for one in (ITEMS, child):
        bench.target.rows.create_table(one)
    parent, below = dialect.table_name(ITEMS), dialect.table_name(child)
    key = dialect.quote(ITEMS.columns[ITEMS.primary_key[0]].name)
    session.run(f"ALTER TABLE {below} ADD FOREIGN KEY (up) REFERENCES {parent} ({key}) ON DELETE {action}")
    return child


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_load_never_takes_rows_of_other_tables_along(bench: Bench, action: str) -> None:
    """docs/operations.md, "Rows that are there already": what foreign keys would delete or change with its rows."""
    rows, child = bench.target.rows, child_of_items(bench, action)
    names = [(one.schema, one.table) for one in (ITEMS, child)]
    assert (rows.losing(names[0]), rows.losing(names[1])) == (names[1:], [])
    rows.begin_load(ITEMS, Seqno(0), replace=True)  # which has no rows
    bench.apply([insert(ITEMS, (1, "a", 1)), insert(child, (1, "a", 1, 1))])
    with pytest.raises(TargetTableError) as caught:
        rows.begin_load(ITEMS, Seqno(7), replace=True)
    assert f"rows of {child.name}" in str(caught.value) and caught.value.seqno == 7
    assert "Load the tables that refer to it in the same load" in str(caught.value)
    assert "`tranlog position set 7` and start again" in str(caught.value)
    assert bench.rows(ITEMS) == content([(1, "a", 1)])
    for one in (child, ITEMS):
        rows.begin_load(one, Seqno(7), replace=True, beside=names)
    assert not bench.rows(ITEMS)


# --- locks and sessions ---------------------------------------------------------------------------------------------


def test_a_stopped_task_s_session_is_ended_by_its_successor(
    bench: Bench, stop_task: Callable[..., StoppedTask]
) -> None:
    """And when it wakes it can write nothing."""
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    claim(bench)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert task.state() == "T"
    assert task.go_on().startswith("TransientTargetError")
    assert bench.rows(ITEMS) == content([(1, "a", 1)])


def test_a_driver_ends_a_stopped_task_s_session_too(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench)
    bench.driver_token = bench.target.positions.take(
        pipeline=PIPELINE,
        expected_token=bench.driver_token,
        holder="next",
        channels=1,
        shard_rule="all",
        rows=None,
        keep_assignment=True,
    )
    claim(bench)
    assert task.go_on().startswith("TransientTargetError")
    assert not bench.rows(ITEMS)


def test_a_task_whose_driver_was_replaced_ends_nobody(bench: Bench, stop_task: Callable[..., StoppedTask]) -> None:
    bench.target.rows.create_table(ITEMS)
    task = stop_task(bench, stops=False)
    with pytest.raises(ReplacedError):
        bench.target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=bench.driver_token + 1)
    assert task.go_on() == "applied"


def test_who_keeps_a_row_of_a_table_locked_is_named(bench: Bench, stranger: Session) -> None:
    """Of any table, not ours alone: somebody's transaction that was left open."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    stranger.begin()
    stranger.run(f"DELETE FROM {bench.target.rows.dialect.table_name(ITEMS)}")  # type: ignore[attr-defined]
    with pytest.raises(TransientTargetError, match=r"it is held by session \d+ of user"):
        bench.apply([delete(ITEMS, (1, "a", 1))])
    stranger.rollback()
    bench.apply([delete(ITEMS, (1, "a", 1))])


def test_a_lost_connection_is_tried_again(bench: Bench, stranger: Session) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])

    def cut() -> Iterator[Change]:
        yield insert(ITEMS, (2, "b", 2))
        for (found,) in stranger.fetch(KILL_ALL_OTHERS[bench.target.kind]):
            if bench.target.kind == "mariadb":
                stranger.run_script(f"KILL {found}")
        yield insert(ITEMS, (3, "c", 3))

    units = [unit_of(1, cut)]
    with pytest.raises(TransientTargetError):
        bench.target.apply(units, bench.advance(1))
    with pytest.raises(TransientTargetError):
        bench.target.positions.meet(PIPELINE)
    bench.target.reconnect()
    claim(bench)
    assert bench.applied == 0
    bench.apply([insert(ITEMS, (2, "b", 2))])
    assert bench.rows(ITEMS) == content([(1, "a", 1), (2, "b", 2)])


def test_a_connection_that_is_lost_in_the_midst_of_rows_is_told_as_lost(bench: Bench, stranger: Session) -> None:
    """`tranlog verify` reads so."""
    bench.target.rows.create_table(MOVES)
    bench.apply([insert(MOVES, (key, "x" * 1000, key)) for key in range(20_000)])
    found = bench.target.rows.blocks(MOVES)
    next(found)
    for (other,) in stranger.fetch(KILL_ALL_OTHERS[bench.target.kind]):
        if bench.target.kind == "mariadb":
            stranger.run_script(f"KILL {other}")
    with pytest.raises(TransientTargetError):
        list(found)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_that_goes_away_and_comes_back(
    kind: str,
    start_postgres: Callable[..., PostgresServer],
    start_mariadb: Callable[..., MariaDbServer],
    open_bench: Callable[[TargetOptions], Bench],
) -> None:
    server: PostgresServer | MariaDbServer
    if kind == "postgres":
        server = start_postgres()
        dsn = server.dsn().replace("postgres@", "postgres:secret@")
    else:
        server = start_mariadb(options={"log_bin": None})
        server.execute("CREATE DATABASE tranlog")
        server.execute("CREATE USER app@'%' IDENTIFIED BY 'secret'")
        server.execute("GRANT ALL ON *.* TO app@'%'")
        dsn = server.dsn("tranlog").replace("root@", "app:secret@")
    bench = open_bench(TargetOptions(kind=kind, dsn=dsn))  # type: ignore[arg-type]
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    server.kill()
    with pytest.raises(TransientTargetError) as lost:
        bench.apply([insert(ITEMS, (2, "a", 1))])
    with pytest.raises(TargetUnavailableError) as away:
        bench.target.reconnect()
    for caught in (lost, away):
        assert "secret" not in str(caught.value) + repr(caught.value)
        assert str(server.port) in str(caught.value)
    assert "secret" not in bench.target.where + repr(bench.options)
    server.start()
    bench.target.reconnect()
    claim(bench)
    bench.apply([insert(ITEMS, (2, "a", 1))])
    assert bench.rows(ITEMS) == content([(1, "a", 1), (2, "a", 1)])


LOCKING = {
    "postgres": ("BEGIN", "LOCK TABLE tranlog_pipeline, tranlog_channel, tranlog_plan, shop.items", "ROLLBACK"),
    "mariadb": (
        "SET SESSION lock_wait_timeout = 10",
        "LOCK TABLES tranlog_pipeline WRITE, tranlog_channel WRITE, tranlog_plan WRITE, shop.items WRITE",
        "UNLOCK TABLES",
    ),
}


def test_tables_that_somebody_keeps_locked_are_waited_for(bench: Bench, stranger: Session) -> None:
    """As by VACUUM FULL, or an ALTER. docs/operations.md, "A target that a channel cannot use"."""
    bench.target.rows.create_table(ITEMS)
    begin, lock, end = LOCKING[bench.target.kind]
    stranger.run(begin)
    stranger.run(lock)
    positions, following = bench.target.positions, open_target(replace(bench.options, ddl="follow"))
    wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, column("more", INTEGER, "int")))
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: positions.meet(PIPELINE), "own tables stayed locked"),
        (lambda: positions.read_pipeline(PIPELINE), "own tables stayed locked"),
        (lambda: positions.read_plans(PIPELINE), "own tables stayed locked"),
        (lambda: positions.ensure_tables(), "own tables stayed locked"),
        (lambda: claim(bench), "own tables stayed locked"),
        (lambda: following.rows.check_table(wider), "shop.items stayed locked"),
    ]
    if bench.target.kind == "mariadb":
        bench.session.run("SET SESSION lock_wait_timeout = 1")
    for ask, why in refused:
        with pytest.raises(TransientTargetError, match=why):
            ask()
    following.close()
    stranger.run(end)
    claim(bench)
    bench.apply([insert(ITEMS, (1, "a", 1))])
    assert bench.rows(ITEMS) == content([(1, "a", 1)])


def test_a_deadlock_is_tried_again(bench: Bench, stranger: Session) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.target.rows.create_table(MOVES)
    bench.apply([insert(ITEMS, (i, "a", 1)) for i in (1, 2)])
    inside, outside = threading.Event(), threading.Event()

    def changes() -> Iterator[Change]:
        yield update(ITEMS, (1, "a", 1), (1, "b", 1))
        yield insert(MOVES, (1, "a", 1))
        # The batch before is out once the next one has begun.
        bench.session.settle()
        inside.set()
        outside.wait(10)
        yield update(ITEMS, (2, "a", 1), (2, "b", 1))

    # Which of the two is the victim is the server's choice: it must be ours.
    if bench.target.kind == "postgres":
        stranger.run_script("SET deadlock_timeout = '10s'; SET lock_timeout = 0")
        bench.session.run_script("SET deadlock_timeout = '100ms'")  # looked for before our wait for a lock ends

    def other() -> None:
        inside.wait(10)
        stranger.begin()
        if bench.target.kind == "mariadb":  # it takes the one that has changed less
            stranger.run("CREATE TEMPORARY TABLE filler (n int) ENGINE = InnoDB")
            stranger.run("INSERT INTO shop.moves SELECT seq, 'x', 1 FROM seq_1_to_100")
        stranger.run("UPDATE shop.items SET n = 2 WHERE id = 2")
        outside.set()
        stranger.run("UPDATE shop.items SET n = 2 WHERE id = 1")
        stranger.commit()

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(TransientTargetError, match=r"(?i)deadlock"):
        bench.target.apply([unit_of(1, changes)], bench.advance(1))
    thread.join()
    bench.apply([update(ITEMS, (2, "a", 2), (2, "b", 2))])
    assert bench.rows(ITEMS) == content([(1, "a", 2), (2, "b", 2)])


# --- the target's own constraints -----------------------------------------------------------------------------------

PARENTS = table("parents", ID)
CHILDREN = table("children", ID, column("parent", INTEGER, "int"))


@pytest.mark.parametrize("net_effect", [False, True])
def test_foreign_keys_of_the_target_hold(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], net_effect: bool
) -> None:
    """In the log's order they never object; where the net effect's order does, the log's is used."""
    bench = open_bench(replace(options, net_effect=net_effect))
    for each in (PARENTS, CHILDREN):
        bench.target.rows.create_table(each)
    bench.session.run_script("ALTER TABLE shop.children ADD FOREIGN KEY (parent) REFERENCES shop.parents (id)")
    bench.apply([insert(PARENTS, (1,)), insert(CHILDREN, (1, 1))])
    bench.apply([insert(PARENTS, (2,)), update(CHILDREN, (1, 1), (1, 2)), delete(PARENTS, (1,))])
    bench.apply([delete(CHILDREN, (1, 2)), delete(PARENTS, (2,)), insert(PARENTS, (3,)), insert(CHILDREN, (2, 3))])
    assert bench.rows(CHILDREN) == content([(2, 3)])
    why = r"seqno 3, table shop\.children, key \(id=5\).*(is not present in table|foreign key constraint fails)"
    with pytest.raises(ConflictError, match=why):
        bench.apply([insert(CHILDREN, (5, 77))])


AUDIT = {
    "postgres": """
CREATE TABLE audit (what text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit VALUES (TG_OP || ' ' || coalesce(NEW.id, OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON shop.items FOR EACH ROW EXECUTE FUNCTION audit()""",
    "mariadb": """
CREATE TABLE audit (what text);
CREATE TRIGGER shop.i AFTER INSERT ON shop.items FOR EACH ROW
    INSERT INTO {own}.audit VALUES (CONCAT('INSERT ', NEW.id));
CREATE TRIGGER shop.u AFTER UPDATE ON shop.items FOR EACH ROW
    INSERT INTO {own}.audit VALUES (CONCAT('UPDATE ', NEW.id));
CREATE TRIGGER shop.d AFTER DELETE ON shop.items FOR EACH ROW
    INSERT INTO {own}.audit VALUES (CONCAT('DELETE ', OLD.id))
""",
}


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_rows_that_pass_each_other_take_no_rows_of_others_along(bench: Bench, action: str) -> None:
    """By deleting and inserting two rows whose unique values are swapped, foreign keys would delete those of others."""
    session, child = session_of(bench.target), child_of_items(bench, action)
    parent = bench.target.rows.dialect.table_name(ITEMS)  # type: ignore[attr-defined]
    session.run(f"ALTER TABLE {parent} ADD CONSTRAINT one_n UNIQUE (n)")
    before = [(1, "a", 1), (2, "b", 2)]
    bench.apply([insert(ITEMS, row) for row in before], [insert(child, (1, "a", 1, 1))])
    swap = [update(ITEMS, (1, "a", 1), (1, "a", 2)), update(ITEMS, (2, "b", 2), (2, "b", 1))]
    with pytest.raises(
        ConflictError, match=r"seqno 2, .*key \(id=1\): .*foreign keys of shop\.child would act on that"
    ):
        bench.apply(swap)
    assert (bench.rows(ITEMS), bench.rows(child)) == (content(before), content([(1, "a", 1, 1)]))
    session.run(f"ALTER TABLE {parent} DROP CONSTRAINT one_n")
    claim(bench)
    bench.apply(swap)
    assert bench.rows(ITEMS) == content([(1, "a", 2), (2, "b", 1)])
    assert bench.rows(child) == content([(1, "a", 1, 1)])


def test_a_net_effect_leaves_to_foreign_keys_what_they_act_on(bench: Bench) -> None:
    """docs/configuration.md, `net_effect`: neither a key that changes nor a row that comes again is something else."""
    target = open_target(replace(bench.options, net_effect=True))
    bench.target.close()
    bench.target = target
    claim(bench)
    session, dialect = session_of(target), target.rows.dialect  # type: ignore[attr-defined]
    child = table("child", ID, column("up", INTEGER, ITEMS.columns[0].source_type))
    for one in (ITEMS, child):
        target.rows.create_table(one)
    session.run(
        f"ALTER TABLE {dialect.table_name(child)} ADD FOREIGN KEY (up) REFERENCES {dialect.table_name(ITEMS)} (id) "
        "ON DELETE CASCADE ON UPDATE CASCADE"
    )
    bench.apply([insert(ITEMS, (1, "a", 1)), insert(ITEMS, (2, "b", 2)), insert(child, (1, 1)), insert(child, (2, 2))])
    bench.apply([update(ITEMS, (1, "a", 1), (5, "a", 1)), delete(ITEMS, (2, "b", 2)), insert(ITEMS, (2, "c", 2))])
    assert bench.rows(ITEMS) == content([(5, "a", 1), (2, "c", 2)])
    assert bench.rows(child) == content([(1, 5)])


def test_triggers_of_the_target_fire_once_per_change(bench: Bench) -> None:
    """ "an audit trigger at the target counts changes per table, operation and key"."""

    def audited() -> list[str]:
        return sorted(what for (what,) in bench.session.fetch("SELECT what FROM audit"))

    bench.target.rows.create_table(ITEMS)
    own = bench.options.dsn.rpartition("/")[2]
    bench.session.run_script(AUDIT[bench.target.kind].replace("{own}", own))
    bench.apply([insert(ITEMS, (i, "a", 1)) for i in (1, 2)], [update(ITEMS, (1, "a", 1), (1, "a", 1))])
    bench.apply([update(ITEMS, (1, "a", 1), (1, "b", 1))] * 2 + [delete(ITEMS, (2, "a", 1))])
    assert audited() == ["DELETE 2", "INSERT 1", "INSERT 2", "UPDATE 1", "UPDATE 1", "UPDATE 1"]
    with pytest.raises(ConflictError):
        bench.apply([insert(ITEMS, (3, "a", 1)), delete(ITEMS, (9, "a", 1))])
    assert len(audited()) == 6


# --- reading back ---------------------------------------------------------------------------------------------------


def test_rows_come_as_of_one_moment_and_may_be_left(bench: Bench, stranger: Session) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, (i, "a", 1)) for i in range(5000)])
    reading = bench.target.rows.read(ITEMS)
    next(reading)
    stranger.run_script("DELETE FROM shop.items WHERE id > 10")
    assert sum(1 for _ in reading) == 4999
    left = bench.target.rows.read(ITEMS)
    next(left)
    assert isinstance(left, Generator)
    left.close()
    bench.apply([delete(ITEMS, (0, "a", 1))])
    assert sum(bench.rows(ITEMS).values()) == 10
