"""Rows and position in one target transaction, at every kind of target."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isfinite

import pytest

from fix_target import (
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    TEXT,
    Bench,
    Model,
    column,
    content,
    databases,
    delete,
    insert,
    table,
    unit_of,
    update,
)
from tranlog.change import Change, Column, Statement
from tranlog.errors import ConflictError, DdlStopError, ReplacedError, TargetPositionError, TargetTableError
from tranlog.ids import Seqno
from tranlog.target.database import SETTLE_ROWS
from tranlog.target.options import TargetOptions
from tranlog.types import UNCHANGED, LogicalType, Value


def row(n: int, name: str | None = "a", number: int | None = 1) -> tuple[Value, ...]:
    return (n, name, number)


# --- batches --------------------------------------------------------------------------------------------------------


def test_runs_of_like_changes_are_one_statement_each(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    inserted = bench.apply(
        [insert(ITEMS, row(i)) for i in range(100)], [insert(ITEMS, row(i)) for i in range(100, 150)]
    )
    assert (inserted.transactions, inserted.changes, inserted.statements) == (2, 150, 1)
    updated = bench.apply([update(ITEMS, row(i), row(i, "b")) for i in range(100)])
    assert updated.statements == 1
    deleted = bench.apply([delete(ITEMS, row(i, "b")) for i in range(50)])
    assert deleted.statements == 1
    assert bench.rows(ITEMS) == content([row(i, "b") for i in range(50, 100)] + [row(i) for i in range(100, 150)])
    assert bench.stored_seqno() == 3


def test_a_batch_never_passes_another_change(bench: Bench) -> None:
    """Insert, delete and insert the same keys again: only the log's order works."""
    bench.target.rows.create_table(ITEMS)
    applied = bench.apply(
        [insert(ITEMS, row(1)), insert(ITEMS, row(2))],
        [delete(ITEMS, row(1)), update(ITEMS, row(2), row(2, "x")), insert(ITEMS, row(1, "again"))],
        [delete(ITEMS, row(2, "x")), delete(ITEMS, row(1, "again")), insert(ITEMS, row(2, "end"))],
    )
    assert applied.statements >= 6 or bench.target.kind == "folder"
    assert bench.rows(ITEMS) == content([row(2, "end")])


def test_one_row_updated_often_in_a_run(bench: Bench) -> None:
    """A set-based update would touch the row once: the batch is divided."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1, "a", 0)), insert(ITEMS, row(2, "a", 0))])
    bench.apply([update(ITEMS, row(i % 2 + 1, "a", i // 2), row(i % 2 + 1, "a", i // 2 + 1)) for i in range(20)])
    assert bench.rows(ITEMS) == content([row(1, "a", 10), row(2, "a", 10)])


def test_updates_of_different_columns_keep_what_they_do_not_change(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1)), insert(ITEMS, row(2))])
    bench.apply([update(ITEMS, row(1), row(1, "b", 1)), update(ITEMS, row(2), row(2, "a", None))])
    bench.apply([update(ITEMS, row(1, "b"), row(1, "b")), update(ITEMS, row(2, "a", None), row(2, None, 7))])
    assert bench.rows(ITEMS) == content([row(1, "b", 1), row(2, None, 7)])


@pytest.mark.long
def test_a_transaction_of_many_batches(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    count = 2 * SETTLE_ROWS + 7
    applied = bench.apply([insert(ITEMS, row(i, "x" * (i % 20))) for i in range(count)])
    assert applied.changes == count
    assert sum(bench.rows(ITEMS).values()) == count


@databases
def test_large_values_are_sent_in_small_batches(bench: Bench) -> None:
    wide = table("wide", ID, column("body", TEXT, "longtext"))
    bench.target.rows.create_table(wide)
    rows = [(i, str(i) * 1_000_000) for i in range(9)]
    applied = bench.apply([insert(wide, r) for r in rows])
    assert applied.statements > 1
    assert bench.rows(wide) == content(rows)


def test_a_transaction_without_changes_moves_the_position_only(bench: Bench) -> None:
    applied = bench.apply([], [])
    assert (applied.transactions, applied.changes, applied.statements) == (2, 0, 0)
    (channel,) = bench.target.positions.read_channels("shop")
    assert (channel.applied_seqno, channel.epoch, channel.event_id, channel.source_id) == (1, 1, "event 1", "source")
    assert channel.tstamp == 1_700_000_000_001


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_primary_key_changes(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1)), insert(ITEMS, row(5))])
    bench.apply([update(ITEMS, row(1), row(2, "moved")), update(ITEMS, row(2, "moved"), row(3, "again"))])
    assert bench.rows(ITEMS) == content([row(3, "again"), row(5)])


@pytest.mark.parametrize("net_effect", [False, True], ids=["plain", "net effect"])
def test_two_keys_are_swapped_in_one_transaction(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], net_effect: bool
) -> None:
    """ "a swap of two keys in one transaction works"."""
    bench = open_bench(replace(options, net_effect=net_effect))
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1, "one")), insert(ITEMS, row(2, "two")), insert(ITEMS, row(3, "three"))])
    bench.apply([update(ITEMS, row(1, "one"), row(2, "one")), update(ITEMS, row(2, "two"), row(1, "two"))])
    assert bench.rows(ITEMS) == content([row(2, "one"), row(1, "two"), row(3, "three")])
    # All keys one further, in the order that collides.
    bench.apply([update(ITEMS, row(n, name), row(n + 1, name)) for n, name in ((1, "two"), (2, "one"), (3, "three"))])
    assert bench.rows(ITEMS) == content([row(2, "two"), row(3, "one"), row(4, "three")])


def test_values_of_a_unique_key_pass_each_other(bench: Bench) -> None:
    """Each order of rows that a source can have: legal one by one, or only at the end."""
    unique = table("unique", ID, column("code", INTEGER, "int(11)"), unique_keys=((1,),))
    bench.target.rows.create_table(unique)
    bench.apply([insert(unique, (i, i)) for i in range(1, 6)])
    bench.apply([update(unique, (i, i), (i, i + 1)) for i in range(5, 0, -1)])
    assert bench.rows(unique) == content([(i, i + 1) for i in range(1, 6)])
    bench.apply([update(unique, (1, 2), (1, 3)), update(unique, (2, 3), (2, 2))])
    assert bench.rows(unique) == content([(1, 3), (2, 2), (3, 4), (4, 5), (5, 6)])


def test_rows_without_a_key_are_found_by_all_their_values(bench: Bench) -> None:
    """Exactly one of several equal rows; NULL equals NULL."""
    bench.target.rows.create_table(MOVES)
    bench.apply([insert(MOVES, row(1))] * 3 + [insert(MOVES, row(1, None, None))] * 2 + [insert(MOVES, row(2, None))])
    bench.apply(
        [delete(MOVES, row(1)), update(MOVES, row(1), row(1, "b")), delete(MOVES, row(1, None, None))],
        [update(MOVES, row(2, None), row(2, None, None)), update(MOVES, row(1, None, None), row(1, None, None))],
    )
    assert bench.rows(MOVES) == content([row(1), row(1, "b"), row(1, None, None), row(2, None, None)])


def test_a_key_of_several_columns(bench: Bench) -> None:
    pair = table(
        "pair", ID, column("code", TEXT, "varchar(9)", nullable=False), column("n", INTEGER, "int"), key=(1, 0)
    )
    bench.target.rows.create_table(pair)
    bench.apply([insert(pair, (i, code, i)) for i in range(3) for code in ("a", "b")])
    bench.apply([update(pair, (i, "a", i), (i, "a", 9)) for i in range(3)] + [delete(pair, (1, "b", 1))])
    bench.apply([update(pair, (0, "b", 0), (7, "c", 0))])
    assert bench.rows(pair) == content([(0, "a", 9), (1, "a", 9), (2, "a", 9), (7, "c", 0), (2, "b", 2)])


# --- conflicts ------------------------------------------------------------------------------------------------------

NAMED = table("named", ID, column("name", TEXT, "varchar(20)", nullable=False))
CONFLICTS = {
    "insert of a key that is there": (insert(ITEMS, row(1)), "items", "(id=1)"),
    "update of a row that is not there": (update(ITEMS, row(9), row(9, "b")), "items", "(id=9)"),
    "delete of a row that is not there": (delete(ITEMS, row(9)), "items", "(id=9)"),
    "update to a key that is there": (update(ITEMS, row(1), row(2)), "items", "(id=1)"),
    "delete of a keyless row that differs": (delete(MOVES, row(1, "b")), "moves", "none, row (id=1, name=b, n=1)"),
    "update of a keyless row that differs": (
        update(MOVES, row(1, None), row(2)),
        "moves",
        "none, row (id=1, name=NULL, n=1)",
    ),
    "a NULL that the target refuses": (insert(NAMED, (5, None)), "named", "(id=5)"),
}


@pytest.mark.parametrize("case", CONFLICTS)
@pytest.mark.parametrize("group", [False, True], ids=["alone", "in a group"])
def test_a_conflict_names_its_place_and_leaves_nothing(bench: Bench, case: str, group: bool) -> None:
    """Issue: "stops at that transaction, names seqno, table, key; nothing half-applied"."""
    wrong, name, key = CONFLICTS[case]
    for each in (ITEMS, MOVES, NAMED):
        bench.target.rows.create_table(each)
    bench.apply([insert(ITEMS, row(1)), insert(ITEMS, row(2)), insert(MOVES, row(1))])
    before = bench.rows(ITEMS), bench.rows(MOVES)
    good = [insert(ITEMS, row(50)), update(ITEMS, row(2), row(2, "changed"))]
    rest = [insert(ITEMS, row(51)), wrong, insert(ITEMS, row(52))]
    transactions = [good, rest, [insert(ITEMS, row(60))]] if group else [good + rest]
    with pytest.raises(ConflictError) as caught:
        bench.apply(*transactions)
    assert (caught.value.seqno, caught.value.table, caught.value.key) == (2 if group else 1, f"shop.{name}", key)
    assert caught.value.why
    assert (bench.rows(ITEMS), bench.rows(MOVES)) == before
    assert bench.stored_seqno() == 0
    # The connection lives on, and what fits is applied.
    bench.apply(good)
    assert bench.rows(ITEMS) == content([row(1), row(2, "changed"), row(50)])


def test_an_insert_is_never_an_update(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1, "here"))])
    with pytest.raises(ConflictError, match=r"seqno 1, table shop\.items, key \(id=1\)"):
        bench.apply([insert(ITEMS, row(1, "other"))])
    assert bench.rows(ITEMS) == content([row(1, "here")])


def test_a_replaced_task_writes_nothing(bench: Bench) -> None:
    """The guarded update "must hit exactly one row, else this task has been replaced"."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1))])
    units = [unit_of(1, [insert(ITEMS, row(2))])]
    advance = bench.advance(1)
    for stale in (
        replace(advance, token=advance.token - 1),
        replace(advance, token=advance.token + 1),
        replace(advance, old_seqno=Seqno(advance.old_seqno - 1)),
        replace(advance, channel=1),
    ):
        with pytest.raises(ReplacedError):
            bench.target.apply(units, stale)
        with pytest.raises(ReplacedError):
            bench.target.positions.publish(stale)
    for wrong in (bench.target.positions.publish, lambda stale: bench.target.apply(units, stale)):
        with pytest.raises(TargetPositionError, match="has no row of it"):
            wrong(replace(advance, pipeline="other"))  # nobody has taken over what is not there
    assert bench.rows(ITEMS) == content([row(1)])
    assert bench.stored_seqno() == 0
    bench.target.positions.publish(advance)
    assert bench.stored_seqno() == 1
    with pytest.raises(ReplacedError, match="the test"):
        bench.target.apply(units, advance)  # once more is once too often
    assert bench.rows(ITEMS) == content([row(1)])


def test_an_error_while_reading_rolls_back(bench: Bench) -> None:
    """Whatever ends the stream of changes, a stop among it, leaves nothing behind."""
    bench.target.rows.create_table(ITEMS)

    def broken() -> Iterator[Change]:
        yield from [insert(ITEMS, row(i)) for i in range(3 * 1000)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.target.apply([unit_of(0, broken)], bench.advance(1))
    assert not bench.rows(ITEMS)
    bench.apply([insert(ITEMS, row(1))])
    assert bench.rows(ITEMS) == content([row(1)])


# --- images ---------------------------------------------------------------------------------------------------------


def test_what_the_source_did_not_send_is_not_written(bench: Bench) -> None:
    """UNCHANGED is "never NULL, never written"."""
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1, "kept", 1)), insert(ITEMS, row(2, "kept", 1))])
    bench.apply(
        [update(ITEMS, (1, UNCHANGED, 1), (1, UNCHANGED, 5)), update(ITEMS, row(2, "kept"), (2, UNCHANGED, None))]
    )
    assert bench.rows(ITEMS) == content([row(1, "kept", 5), row(2, "kept", None)])
    for wrong in (insert(ITEMS, (3, UNCHANGED, 1)), delete(ITEMS, (UNCHANGED, "a", 1))):
        with pytest.raises(ConflictError):
            bench.apply([wrong])
    bench.target.rows.create_table(MOVES)
    bench.apply([insert(MOVES, row(1))])
    with pytest.raises(ConflictError, match="no before value"):
        bench.apply([delete(MOVES, (1, UNCHANGED, 1))])
    assert bench.rows(MOVES) == content([row(1)])


@databases
def test_generated_columns_of_the_target_are_left_to_it(bench: Bench) -> None:
    doubled = table("doubled", ID, column("n", INTEGER, "int"), column("twice", INTEGER, "int"))
    if bench.target.kind == "sqlite":
        sql = 'CREATE TABLE "shop.doubled" (id INTEGER PRIMARY KEY, n INTEGER, twice INTEGER AS (n * 2))'
    else:
        sql = (
            "CREATE SCHEMA shop; "
            "CREATE TABLE shop.doubled (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)"
        )
    bench.session.run_script(sql)
    bench.apply([insert(doubled, (1, 2, 4)), insert(doubled, (2, 3, 6))], [update(doubled, (1, 2, 4), (1, 5, 10))])
    assert bench.rows(doubled) == content([(1, 5, 10), (2, 3, 6)])
    bench.apply([delete(doubled, (2, 3, 6))])
    assert bench.rows(doubled) == content([(1, 5, 10)])


@databases
def test_columns_that_only_the_target_has_keep_their_defaults(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    name = '"shop.items"' if bench.target.kind == "sqlite" else "shop.items"
    bench.session.run_script(f"ALTER TABLE {name} ADD COLUMN seen integer NOT NULL DEFAULT 7")
    bench.apply([insert(ITEMS, row(1)), insert(ITEMS, row(2))], [update(ITEMS, row(1), row(1, "b"))])
    assert bench.rows(ITEMS) == content([row(1, "b"), row(2)])
    assert bench.session.fetch(f"SELECT DISTINCT seen FROM {name}") == [(7,)]


# --- tables and statements ------------------------------------------------------------------------------------------


def test_a_missing_table_or_column_is_named_with_the_seqno(bench: Bench) -> None:
    with pytest.raises(
        TargetTableError, match=r"shop\.items \(seqno 0\).*no such table.*create.*--from source"
    ) as caught:
        bench.apply([insert(ITEMS, row(1))])
    assert caught.value.seqno == 0
    assert bench.stored_seqno() == -1
    assert bench.target.rows.create_table(ITEMS) != ""
    bench.apply([insert(ITEMS, row(1))])  # nothing needs to be opened anew
    wider = table("items", *ITEMS.columns, column("more", TEXT, "text"))
    with pytest.raises(TargetTableError, match=r"shop\.items \(seqno 1\): column more is missing"):
        bench.apply([insert(wider, (*row(2), "x"))])
    with pytest.raises(TargetTableError, match="column more is missing"):
        bench.target.rows.read(wider)
    with pytest.raises(TargetTableError, match="no such table"):
        bench.target.rows.read(MOVES)
    assert bench.rows(ITEMS) == content([row(1)])


@databases
def test_a_table_that_changes_under_an_open_connection(bench: Bench) -> None:
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1))])
    name = '"shop.items"' if bench.target.kind == "sqlite" else "shop.items"
    bench.session.run_script(f"ALTER TABLE {name} RENAME COLUMN n TO m")
    with pytest.raises(TargetTableError, match="column n is missing"):
        bench.apply([update(ITEMS, row(1), row(1, "b", 9))])
    bench.session.run_script(f"ALTER TABLE {name} RENAME COLUMN m TO n")
    bench.apply([update(ITEMS, row(1), row(1, "b", 9))])
    bench.session.run_script(f"DROP TABLE {name}")
    with pytest.raises(TargetTableError, match="no such table"):
        bench.apply([update(ITEMS, row(1, "b", 9), row(1, "c", 9))])


def test_a_table_is_created_once(bench: Bench) -> None:
    first = bench.target.rows.create_table(ITEMS)
    assert ("CREATE TABLE" if bench.target.kind != "folder" else "shop.items") in first
    assert bench.target.rows.create_table(ITEMS) == ""
    bench.apply([insert(ITEMS, row(1))])
    with pytest.raises(ConflictError):
        bench.apply([insert(ITEMS, row(1))])  # it has its primary key


def test_names_of_any_kind(bench: Bench) -> None:
    names = [
        'we"ird',
        "sp ace",
        "emoji 🦆",
        "select",
        "semi;colon--",
        "per%cent $1 ?1 {x}",
        "x" * 70 + "1",
        "x" * 70 + "2",
    ]
    odd = table(
        "ta'b\"le", *[column(name, INTEGER, "int", nullable=i > 0) for i, name in enumerate(names)], schema='sch"ema'
    )
    plain = table("order", ID, column("group", TEXT, "text"), schema="main")
    for each in (odd, plain):
        assert bench.target.rows.create_table(each)
        assert bench.target.rows.create_table(each) == ""
    one, two = tuple(range(len(names))), (0, *range(10, 9 + len(names)))
    bench.apply([insert(odd, one), insert(plain, (1, "x"))])
    bench.apply([update(odd, one, two), update(plain, (1, "x"), (1, "y"))])
    assert bench.rows(odd) == content([two])
    assert bench.rows(plain) == content([(1, "y")])
    with pytest.raises(ConflictError):
        bench.apply([insert(odd, two)])
    bench.apply([delete(odd, two), delete(plain, (1, "y"))])
    assert not bench.rows(odd)


def ddl(sql: str) -> Statement:
    return Statement(schema="shop", sql=sql, ddl=True)


def test_a_statement_of_another_kind_of_database_stops(bench: Bench) -> None:
    """ "`ddl = stop` (default, naming seqno and text)"."""
    bench.target.rows.create_table(ITEMS)
    with pytest.raises(
        DdlStopError, match=r"seqno 0, statement 'ALTER TABLE items ADD x INT'.*from mysql.*ddl = "
    ) as caught:
        bench.apply([insert(ITEMS, row(1)), ddl("ALTER TABLE items ADD x INT")], metadata=(("dbms_type", "mysql"),))
    assert caught.value.seqno == 0
    assert not bench.rows(ITEMS)
    assert bench.stored_seqno() == -1
    with pytest.raises(DdlStopError) as caught:
        bench.apply([ddl("ALTER TABLE items DROP PARTITION p")], metadata=(("dbms_type", "mysql"),))
    assert "ddl = " not in caught.value.remedy, "that would stop, too"


def test_ignored_statements_are_counted_and_warned_of_once(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = open_bench(replace(options, ddl="ignore"))
    bench.target.rows.create_table(ITEMS)
    applied = bench.apply(
        [insert(ITEMS, row(1)), ddl("ALTER TABLE items ADD x INT"), insert(ITEMS, row(2))],
        [ddl("DROP TABLE elsewhere")],
        metadata=(("dbms_type", bench.target.kind),),
    )
    assert (applied.transactions, applied.changes, applied.ddl_ignored) == (2, 2, 2)
    assert [r.getMessage().partition(" why=")[0] for r in caplog.records if r.levelname == "WARNING"] == [
        "a statement is passed over, further ones silently"
    ]
    assert bench.rows(ITEMS) == content([row(1), row(2)])


@pytest.mark.parametrize("statement", ["DROP TABLE items", "CREATE OR REPLACE TABLE shop.items (a int)"])
def test_ddl_that_takes_rows_away_is_not_passed_over_while_they_are_here(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], statement: str
) -> None:
    """It is known by what it does. Where the rows are gone here too, it is passed over as other DDL."""
    bench = open_bench(replace(options, ddl="ignore"))
    bench.target.rows.create_table(ITEMS)
    bench.apply([insert(ITEMS, row(1))])
    with pytest.raises(DdlStopError, match=r"it takes rows away, which are still here.*from shop\.items here"):
        bench.apply([ddl(statement)], metadata=(("dbms_type", "mariadb"),))
    bench.apply([delete(ITEMS, row(1))])
    assert bench.apply([ddl(statement)], metadata=(("dbms_type", "mariadb"),)).ddl_ignored == 1


@pytest.mark.parametrize("ignore", [False, True])
def test_upkeep_is_passed_over_everywhere(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], ignore: bool
) -> None:
    """FLUSH, ANALYZE and users change no row: nothing stops at them, of whatever kind the target is."""
    bench = open_bench(replace(options, ddl="ignore") if ignore else options)
    upkeep = [Statement(schema="shop", sql=sql, ddl=False) for sql in ("FLUSH TABLES", "ANALYZE TABLE items")]
    applied = bench.apply([*upkeep, ddl("CREATE USER somebody")], metadata=(("dbms_type", "mariadb"),))
    assert applied.ddl_ignored == 3


def test_a_sequence_is_passed_over_where_there_is_none(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """docs/operations.md: announced once, its rows and its DDL, and what comes beside it is applied."""
    bench.target.rows.create_table(ITEMS)
    sequence = table("numbers", column("next_not_cached_value", INTEGER, "bigint"), key=(), sequence=True)
    if bench.target.kind == "mariadb":
        with pytest.raises(TargetTableError, match="there is no such sequence"):
            bench.apply([insert(sequence, (1,))])
        return
    with caplog.at_level(logging.WARNING, logger="tranlog"):
        for number in (1, 2):
            bench.apply([insert(sequence, (number * 10,)), insert(ITEMS, row(number))])
        for sql in ("CREATE SEQUENCE more", "DROP SEQUENCE more, numbers"):
            assert bench.apply([ddl(sql)], metadata=(("dbms_type", "mariadb"),)).ddl_ignored == 1
        with pytest.raises(ConflictError):
            bench.apply([insert(sequence, (30,)), insert(ITEMS, row(1))])
    assert bench.rows(ITEMS) == content([row(1), row(2)])
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text.partition("=")[0] for text in said] == [
        "a sequence is no table, and is passed over here sequence",
        "a statement is passed over, further ones silently why",
    ]


def test_a_statement_that_changes_rows_is_not_passed_over_with_the_ddl(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]
) -> None:
    bench = open_bench(replace(options, ddl="ignore"))
    bench.target.rows.create_table(ITEMS)
    emptied = Statement(schema="shop", sql="TRUNCATE TABLE items", ddl=False)
    with pytest.raises(DdlStopError, match=r"TRUNCATE TABLE items.*it changes rows") as caught:
        bench.apply([insert(ITEMS, row(1))], [emptied], metadata=(("dbms_type", "mysql"),))
    assert caught.value.remedy == (
        "Do at the target what it did, and all other changes of its transaction (`thl list -seqno 1` shows them), "
        "then `tranlog position set 1`"
    )
    assert not bench.rows(ITEMS)
    assert bench.stored_seqno() == -1


# --- net effect -----------------------------------------------------------------------------------------------------


def test_net_effect_sends_a_hot_row_once(options: TargetOptions, open_bench: Callable[[TargetOptions], Bench]) -> None:
    bench = open_bench(replace(options, net_effect=True))
    bench.target.rows.create_table(ITEMS)
    hot = [update(ITEMS, row(1, "a", i), row(1, "a", i + 1)) for i in range(50)]
    applied = bench.apply(
        [insert(ITEMS, row(1, "a", 0)), insert(ITEMS, row(2))], hot, [delete(ITEMS, row(2)), insert(ITEMS, row(3))]
    )
    assert applied.changes == 54
    assert applied.statements <= 2
    assert bench.rows(ITEMS) == content([row(1, "a", 50), row(3)])
    with pytest.raises(ConflictError) as caught:
        bench.apply([update(ITEMS, row(1, "a", 50), row(1, "b", 1))], [insert(ITEMS, row(3))], hot)
    assert (caught.value.seqno, caught.value.key) == (4, "(id=3)")


COLUMNS = [
    ID,
    column("name", TEXT, "varchar(20)", length=20),
    column("n", INTEGER, "int"),
    column("f", LogicalType.F64, "double"),
]
KEYED = table("keyed", *COLUMNS)
UNKEYED = table("unkeyed", *COLUMNS, key=())
UNIQUE = table("paired", ID, column("code", INTEGER, "int", nullable=False), column("n", INTEGER, "int"), key=(0, 1))


def draw(rng: random.Random, column: Column) -> Value:
    if column.name == "id":
        return rng.randrange(12)
    if column.name == "code":
        return rng.randrange(3)
    if rng.random() < 0.2:
        return None
    if column.name == "name":
        return rng.choice(["", "a", "b", "é", 'q"\\', "NULL", "{}", "x,y"])
    if column.name == "n":
        return rng.randrange(4)
    return rng.choice([1.5, -0.0, 0.0, float("nan"), float("inf"), 1e300])


def draw_finite(rng: random.Random, column: Column) -> Value:
    """The same without the floats that MariaDB does not have: it refuses them by name, test_types_there_and_back."""
    value = draw(rng, column)
    return 0.25 if isinstance(value, float) and (not isfinite(value) or value == 0.0) else value


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_random_changes_end_as_in_a_model(
    options: TargetOptions, open_bench: Callable[[TargetOptions], Bench], seed: int
) -> None:
    """Plain and net effect, at each target, against Python's own tables: after every target transaction."""
    print(f"replay: -k 'test_random_changes_end_as_in_a_model and {seed}-' seed={seed}")
    bench = open_bench(replace(options, net_effect=seed % 2 == 1))
    tables = [KEYED, UNKEYED, UNIQUE]
    for each in tables:
        bench.target.rows.create_table(each)
    model = Model(seed, tables=tables, value=draw_finite if bench.target.kind == "mariadb" else draw)
    for _ in range(15):
        transactions = [model.transaction(12) for _ in range(model.random.choice([1, 1, 3, 8]))]
        bench.apply(*transactions)
        for each in tables:
            assert bench.rows(each) == content(model.content[each.name]), f"seed {seed}, table {each.name}"


@databases
def test_columns_whose_names_differ_in_case_are_one_where_the_kind_has_it_so(bench: Bench) -> None:
    """MariaDB and SQLite have it so, and the table may have been made by somebody who spells them otherwise."""
    own = table("t", column("ID", INTEGER, "int(11)", nullable=False), column("Name", TEXT, "text"))
    bench.target.rows.create_table(own)
    tab = table("t", ID, column("name", TEXT, "text"))
    both = table("t", *tab.columns, column("NAME", TEXT, "text"))
    if bench.target.kind == "postgres":
        with pytest.raises(TargetTableError, match="column id is missing"):
            bench.apply([insert(tab, (1, "a"))])
        return
    bench.apply([insert(tab, (1, "a"))], [update(tab, (1, "a"), (2, "b"))])
    assert bench.rows(tab) == content([(2, "b")])
    with pytest.raises(TargetTableError, match="columns name and NAME would be one column here"):
        bench.apply([update(both, (2, "b", "b"), (2, "c", "d"))])
