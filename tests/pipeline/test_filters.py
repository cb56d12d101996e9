"""Each filter by itself, on tables and changes; pure, without log and target.

conformance/tungsten.md A10 names the ancestor's: replicate, rename, dropcolumn, time delay.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tranlog.change import Change, Column, ForeignKey, Op, RowChange, Statement, TableMap
from tranlog.errors import ConfigError, FilterError, TargetTableError
from tranlog.ids import Seqno
from tranlog.pipeline.filters.filter_chain import Chain, ChangePlace
from tranlog.pipeline.filters.filters import (
    Delay,
    DropColumns,
    EachBatch,
    EachTransaction,
    Exclude,
    Filter,
    Include,
    MaskBy,
    MaskColumns,
    OnStatement,
    PresentRows,
    Rename,
    check_filters,
)
from tranlog.types import UNCHANGED, CharsetBytes, Date, Instant, LogicalType, Value, ZeroDate

HERE = ChangePlace(Seqno(7), "event 7")
SALT = "a secret"


def column(name: str, logical: LogicalType = LogicalType.TEXT, **more: Any) -> Column:
    return Column(name=name, source_type=logical.name.lower(), logical=logical, **more)


USERS = TableMap(
    schema="shop",
    table="users",
    columns=(
        column("id", LogicalType.INTEGER, nullable=False),
        column("email"),
        column("iban"),
        column("born", LogicalType.DATE),
        column("team", LogicalType.INTEGER),
    ),
    primary_key=(0,),
    unique_keys=((1,), (0, 3)),
    foreign_keys=(ForeignKey(columns=(4,), ref_schema="shop", ref_table="teams", ref_columns=("id",)),),
)
TEAMS = TableMap(schema="shop", table="teams", columns=(column("id", LogicalType.INTEGER, nullable=False),))
ROW: tuple[Value, ...] = (1, "ada@example.org", "GB29NWBK60161331926819", Date(0), 3)
DDL = Statement(schema="shop", sql="ALTER TABLE users ADD x INT", ddl=True)


def insert(row: tuple[Value, ...] = ROW, table: TableMap = USERS) -> RowChange:
    return RowChange(table, Op.INSERT, None, row)


def through(*filters: Filter, changes: tuple[Change, ...] = (insert(),), ddl_ignored: bool = False) -> list[Change]:
    return list(Chain(filters, ddl_ignored=ddl_ignored).stream(changes, HERE))


def table_behind(*filters: Filter, table: TableMap = USERS) -> TableMap:
    found = Chain(filters).table(table)
    assert found is not None
    return found.table


def row_behind(*filters: Filter, row: tuple[Value, ...] = ROW, table: TableMap = USERS) -> tuple[Value, ...]:
    (change,) = through(*filters, changes=(insert(row, table),))
    assert isinstance(change, RowChange) and change.after is not None
    return change.after


# --- include, exclude ---


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ((Include(tables=("shop.*",)),), True),
        ((Include(tables=("other.*", "shop.user?")),), True),
        ((Include(tables=("*.users",)),), True),
        ((Include(tables=("Shop.*",)),), False),
        ((Exclude(tables=("shop.users",)),), False),
        ((Exclude(tables=("shop.t*",)),), True),
        ((Include(tables=("shop.*",)), Exclude(tables=("*.users",))), False),
        ((Rename(schema="shop", to="store"), Include(tables=("store.*",))), True),
        ((Include(tables=("store.*",)), Rename(schema="shop", to="store")), False),
    ],
)
def test_tables_are_included_and_excluded_in_the_order_written(filters: tuple[Filter, ...], left: bool) -> None:
    chain = Chain(filters)
    assert bool(list(chain.stream([insert()], HERE))) is left
    assert chain.drops((("shop", "users"),), "shop") is not left, "the header tells it as well"
    assert (chain.table(USERS) is not None) is left


def test_a_header_decides_only_where_it_tells_all() -> None:
    chain = Chain([Include(tables=("shop.teams",))])
    assert chain.drops((("shop", "users"), ("shop", "orders")), "shop")
    assert not chain.drops((("shop", "users"), ("shop", "teams")), "shop")
    assert not chain.drops((("shop", "users"),), "#UNKNOWN"), "there may be statements"
    assert not chain.drops((), "shop") and not chain.drops(None, "shop")
    behind_a_function = Chain([EachTransaction(function=list), Include(tables=("shop.teams",))])
    assert not behind_a_function.drops((("shop", "users"),), "shop"), "the function is to see it"


def test_nothing_changes_where_no_filter_applies() -> None:
    """Batches at the target are cut where the table map's object changes, so it must be the same one."""
    change = insert()
    assert through(Rename(schema="other", to="another"), Exclude(tables=("other.*",)), changes=(change,))[0] is change


# --- rename ---


def test_schema_table_and_column_are_renamed_in_keys_too() -> None:
    renamed = table_behind(
        Rename(schema="shop", to="store"),
        Rename(table="store.teams", to="groups.squads"),
        Rename(table="*.users", column="email", to="mail"),
        Rename(table="groups.squads", column="id", to="number"),
    )
    assert (renamed.schema, renamed.table) == ("store", "users")
    assert [one.name for one in renamed.columns] == ["id", "mail", "iban", "born", "team"]
    (key,) = renamed.foreign_keys
    assert (key.ref_schema, key.ref_table, key.ref_columns) == ("groups", "squads", ("number",))
    assert table_behind(Rename(table="shop.users", to="people")).name == "shop.people"
    assert row_behind(Rename(schema="shop", to="store")) == ROW


def test_two_tables_must_not_become_one() -> None:
    store = msgspec.structs.replace(USERS, schema="store")
    chain = Chain([Rename(schema="shop", to="store")])
    assert chain.renames and list(chain.stream([insert()], HERE))
    with pytest.raises(TargetTableError, match=r"store\.users \(seqno 7\): shop\.users and store\.users would both"):
        list(chain.stream([insert(table=store)], HERE))
    by_header = Chain([Rename(schema="shop", to="store")])
    by_header.look_at((("store", "users"),), HERE)
    with pytest.raises(TargetTableError, match="rows would mix"):
        by_header.look_at((("shop", "users"),), HERE)
    swapped = Chain(
        [Rename(schema="shop", to="between"), Rename(schema="store", to="shop"), Rename(schema="between", to="store")]
    )
    swapped.look_at((("store", "users"), ("shop", "users")), HERE)


def test_a_column_that_has_the_new_name_already() -> None:
    with pytest.raises(FilterError, match=r"filter 1 \(rename shop.users.email to iban\), table shop.users stopped at"):
        through(Rename(table="shop.users", column="email", to="iban"))


# --- drop ---


def test_a_dropped_column_takes_its_keys_along() -> None:
    drop = DropColumns(table="shop.users", columns=("email", "team"))
    left = table_behind(drop)
    assert [one.name for one in left.columns] == ["id", "iban", "born"]
    assert (left.primary_key, left.unique_keys, left.foreign_keys) == ((0,), ((0, 2),), ())
    assert row_behind(drop) == (1, ROW[2], Date(0))
    update = RowChange(USERS, Op.UPDATE, ROW, (1, "new", UNCHANGED, None, 3))
    (change,) = through(drop, changes=(update,))
    assert isinstance(change, RowChange)
    assert (change.before, change.after) == ((1, ROW[2], Date(0)), (1, UNCHANGED, None))
    one = DropColumns(table="shop.users", columns=("email", "iban", "born", "team"))
    assert row_behind(one) == (1,)


def test_a_column_that_others_refer_to_is_dropped_there() -> None:
    assert table_behind(DropColumns(table="shop.team?", columns=("id",))).foreign_keys == ()
    assert table_behind(Exclude(tables=("shop.teams",))).foreign_keys == ()


def test_a_column_of_the_key_is_not_dropped() -> None:
    with pytest.raises(FilterError) as caught:
        through(DropColumns(table="shop.*", columns=("id",)))
    assert (caught.value.table, caught.value.seqno, caught.value.event_id) == ("shop.users", 7, "event 7")
    assert "column id is of its primary key" in str(caught.value) and "None of this" in str(caught.value)


def test_a_name_that_a_table_lacks() -> None:
    """A slip of the pen must not let through what was to be hidden."""
    for one in (
        DropColumns(table="shop.users", columns=("emial",)),
        MaskColumns(table="shop.users", columns=("emial",), by=MaskBy.NULL),
        Rename(table="shop.users", column="emial", to="mail"),
    ):
        with pytest.raises(FilterError, match="it has no column emial"):
            through(one)
    assert row_behind(DropColumns(table="shop.*", columns=("emial",))) == ROW


# --- present rows ---

FOR_EVER, ENDED = Instant(2_147_483_647_999_999), Instant(1_700_000_000_000_000)
VERSIONED = TableMap(
    schema="shop",
    table="prices",
    columns=(
        column("id", LogicalType.INTEGER, nullable=False),
        column("row_start", LogicalType.INSTANT, nullable=False),
        column("price", LogicalType.INTEGER),
        column("row_end", LogicalType.INSTANT, nullable=False),
    ),
    primary_key=(0, 3),
)
PRESENT = PresentRows(tables=("shop.*",))


def version(price: int, end: Value) -> tuple[Value, ...]:
    return (1, Instant(5), price, end)


@pytest.mark.parametrize("end", [FOR_EVER, Instant(4_294_967_295_999_999), (1 << 64) - 1])
@pytest.mark.parametrize(
    ("op", "before", "after", "left"),
    [
        (Op.INSERT, None, True, Op.INSERT),
        (Op.INSERT, None, False, None),
        (Op.UPDATE, True, True, Op.UPDATE),
        (Op.UPDATE, True, False, Op.DELETE),
        (Op.UPDATE, False, True, Op.INSERT),
        (Op.UPDATE, False, False, None),
        (Op.DELETE, True, None, Op.DELETE),
        (Op.DELETE, False, None, None),
    ],
)
def test_old_versions_do_not_go_on(
    op: Op, before: bool | None, after: bool | None, left: Op | None, end: Value
) -> None:
    rows = [None if one is None else version(price, end if one else ENDED) for price, one in ((7, before), (8, after))]
    found = through(PRESENT, changes=(RowChange(VERSIONED, op, rows[0], rows[1]),))
    assert [one.op for one in found if isinstance(one, RowChange)] == ([] if left is None else [left])
    for one in found:
        assert isinstance(one, RowChange)
        assert [there.name for there in one.table.columns] == ["id", "price"] and one.table.primary_key == (0,)
        assert one.before == (None if left is Op.INSERT else (1, 7))
        assert one.after == (None if left is Op.DELETE else (1, 8))


def test_present_rows_beside_other_filters() -> None:
    rename = Rename(table="shop.prices", column="row_end", to="until")
    there = PresentRows(tables=("shop.prices",), row_end="until")
    old = insert(version(7, ENDED), VERSIONED)
    assert through(rename, there, changes=(old,)) == []
    assert through(rename, PRESENT, changes=(old,)) != [], "it has no column row_end there"
    assert row_behind(PRESENT) == ROW, "a table without a period goes on as it is"
    assert through(PRESENT, changes=(DDL,)) == [DDL]
    drop = DropColumns(table="shop.prices", columns=("price",))
    assert table_behind(drop, PRESENT, table=VERSIONED).primary_key == (0,)
    with pytest.raises(ConfigError, match="two names of columns"):
        check_filters([PresentRows(tables=("a.b",), row_end="row_start")])


# --- mask ---


def mask(name: str, by: MaskBy, **more: Any) -> MaskColumns:
    return MaskColumns(table="shop.users", columns=(name,), by=by, **more)


def test_what_is_known_of_new_columns_goes_by_their_names_behind_the_filters() -> None:
    """A literal that stands in older rows is of no use where it is masked, and would tell what is hidden."""
    users = msgspec.structs.replace(USERS, older=(("email", ""), ("iban", "'x'")))
    assert table_behind(Rename(table="shop.users", column="iban", to="bank"), table=users).older == (
        ("email", ""),
        ("bank", "'x'"),
    )
    assert table_behind(DropColumns(table="shop.users", columns=("email",)), table=users).older == (("iban", "'x'"),)
    mask = MaskColumns(table="shop.users", columns=("email", "iban"), by=MaskBy.NULL)
    assert table_behind(mask, table=users).older == (("email", ""),)


def test_masks() -> None:
    assert row_behind(mask("email", MaskBy.VALUE, value="hidden"))[1] == "hidden"
    assert row_behind(mask("email", MaskBy.NULL))[1] is None
    assert row_behind(mask("iban", MaskBy.KEEP_LAST, keep=4))[2] == "*" * 18 + "6819"
    assert row_behind(mask("email", MaskBy.KEEP_LAST, keep=40))[1] == "*" * 15, "never all of it"
    assert row_behind(mask("born", MaskBy.NULL))[3] is None
    hashed = row_behind(mask("email", MaskBy.HASH, salt=SALT))[1]
    assert isinstance(hashed, str) and len(hashed) == 32
    assert hashed == row_behind(mask("email", MaskBy.HASH, salt=SALT))[1]
    assert hashed != row_behind(mask("email", MaskBy.HASH, salt="another"))[1]


@pytest.mark.parametrize("by", list(MaskBy))
def test_what_is_absent_stays_absent_and_what_is_odd_does_not_leak(by: MaskBy) -> None:
    more: dict[str, Any] = {MaskBy.VALUE: {"value": "x"}, MaskBy.HASH: {"salt": SALT}}.get(by, {})
    one = mask("email", by, **more)
    for value in (None, UNCHANGED):
        assert row_behind(one, row=(1, value, "", None, 3))[1] is value
    odd = row_behind(one, row=(1, CharsetBytes("latin9", b"ada"), "", None, 3))[1]
    assert not isinstance(odd, CharsetBytes) and "ada" not in str(odd)


def test_a_mask_of_a_number_and_of_bytes() -> None:
    table = TableMap(
        schema="s",
        table="t",
        columns=(
            column("n", LogicalType.INTEGER),
            column("d", LogicalType.DECIMAL),
            column("b", LogicalType.BYTES),
            column("u", LogicalType.UUID),
        ),
    )
    row: tuple[Value, ...] = (5, Decimal("1.50"), b"raw", UUID(int=5))

    def masked(name: str, by: MaskBy, **more: Any) -> tuple[Value, ...]:
        return row_behind(MaskColumns(table="s.t", columns=(name,), by=by, **more), row=row, table=table)

    assert masked("n", MaskBy.VALUE, value=0)[0] == 0
    assert masked("d", MaskBy.VALUE, value="0.00")[1] == Decimal("0.00")
    hashed, uuid = masked("b", MaskBy.HASH, salt=SALT)[2], masked("u", MaskBy.HASH, salt=SALT)[3]
    assert isinstance(hashed, bytes) and len(hashed) == 16 and isinstance(uuid, UUID) and uuid != row[3]
    for name, by, more in (
        ("n", MaskBy.VALUE, {"value": "zero"}),
        ("n", MaskBy.HASH, {"salt": SALT}),
        ("n", MaskBy.KEEP_LAST, {}),
        ("d", MaskBy.VALUE, {"value": "much"}),
    ):
        with pytest.raises(FilterError, match=f"column {name} is of type"):
            masked(name, by, **more)


def test_masks_keep_keys_apart_or_are_refused() -> None:
    for by, more in ((MaskBy.NULL, {}), (MaskBy.VALUE, {"value": 0}), (MaskBy.KEEP_LAST, {})):
        with pytest.raises(FilterError, match="column id is of its primary key"):
            through(mask("id", by, **more))
    assert table_behind(mask("email", MaskBy.VALUE, value="x")).unique_keys == ((0, 3),)
    assert table_behind(mask("email", MaskBy.HASH, salt=SALT)).unique_keys == USERS.unique_keys
    short, strict = [
        msgspec.structs.replace(USERS, columns=(USERS.columns[0], one), **NO_KEYS)
        for one in (column("email", length=10), column("email", nullable=False))
    ]
    with pytest.raises(FilterError, match="too short for a hash"):
        table_behind(mask("email", MaskBy.HASH, salt=SALT), table=short)
    with pytest.raises(FilterError, match="NOT NULL"):
        table_behind(mask("email", MaskBy.NULL), table=strict)


NO_KEYS: dict[str, Any] = {"unique_keys": (), "foreign_keys": ()}


def test_a_foreign_key_survives_a_hash_on_both_sides() -> None:
    there = TableMap(schema="s", table="p", columns=(column("code", nullable=False),), primary_key=(0,))
    here = TableMap(
        schema="s",
        table="c",
        columns=(column("id"), column("code")),
        foreign_keys=(ForeignKey(columns=(1,), ref_schema="s", ref_table="p", ref_columns=("code",)),),
    )
    both = MaskColumns(table="s.*", columns=("code",), by=MaskBy.HASH, salt=SALT)
    assert table_behind(both, table=here).foreign_keys == here.foreign_keys
    assert row_behind(both, row=("1", "k"), table=here)[1] == row_behind(both, row=("k",), table=there)[0]
    assert table_behind(replace(both, table="s.p"), table=here).foreign_keys == ()
    assert table_behind(replace(both, table="s.c"), table=here).foreign_keys == ()


def test_one_mask_behind_another_and_behind_a_rename() -> None:
    chain = Chain(
        [
            Rename(table="shop.users", column="iban", to="account"),
            MaskColumns(table="shop.users", columns=("account",), by=MaskBy.KEEP_LAST, keep=2),
            MaskColumns(table="shop.users", columns=("account",), by=MaskBy.HASH, salt=SALT),
            Rename(table="shop.users", column="account", to="payment"),
            DropColumns(table="shop.users", columns=("email",)),
        ]
    )
    found = chain.table(USERS)
    assert found is not None and found.masked == {"payment"}
    (change,) = chain.stream([insert()], HERE)
    assert isinstance(change, RowChange) and change.after is not None and len(change.after) == 4
    assert change.after[1] not in ROW and len(str(change.after[1])) == 32


# --- statements ---


@pytest.mark.parametrize(
    "one",
    [
        Include(tables=("shop.*",)),
        Exclude(tables=("other.*",)),
        Rename(schema="shop", to="store"),
        DropColumns(table="shop.users", columns=("email",)),
        mask("email", MaskBy.NULL),
    ],
)
def test_statements_stop_go_on_or_are_left_out(one: Any) -> None:
    with pytest.raises(FilterError, match="here is one: 'ALTER TABLE users ADD x INT'") as caught:
        through(one, changes=(DDL,))
    assert caught.value.seqno == 7 and 'statements = "pass"' in str(caught.value)
    assert through(replace(one, statements=OnStatement.PASS), changes=(DDL,)) == [DDL]
    assert through(replace(one, statements=OnStatement.DROP), changes=(DDL,)) == []
    assert through(one, changes=(DDL,), ddl_ignored=True) == [DDL], "the target passes it over"
    truncate = msgspec.structs.replace(DDL, sql="TRUNCATE users", ddl=False)
    with pytest.raises(FilterError, match="TRUNCATE"):
        through(one, changes=(truncate,), ddl_ignored=True)


@pytest.mark.parametrize("sql", ["DROP TABLE users", "DROP DATABASE shop", "CREATE OR REPLACE TABLE users (id INT)"])
def test_what_takes_rows_away_is_not_passed_over_by_another_name(sql: str) -> None:
    """A target that ignores DDL stops while the rows are there, and looks for them under the name that it is told."""
    drop = msgspec.structs.replace(DDL, sql=sql)
    with pytest.raises(FilterError, match="here is one"):
        through(Rename(schema="shop", to="store"), changes=(drop,), ddl_ignored=True)
    assert through(Rename(schema="other", to="store"), changes=(drop,), ddl_ignored=True) == [drop]
    assert through(Exclude(tables=("shop.*",)), changes=(drop,), ddl_ignored=True) == []
    made = msgspec.structs.replace(DDL, sql="CREATE TABLE more (id INT)")
    assert through(Rename(schema="shop", to="store"), changes=(made,), ddl_ignored=True) == [made]


# --- functions ---


def test_a_function_on_transactions() -> None:
    def only_updates(changes: list[Change]) -> list[Change] | None:
        return [one for one in changes if isinstance(one, RowChange) and one.op is Op.UPDATE] or None

    update = RowChange(USERS, Op.UPDATE, ROW, ROW)
    assert through(EachTransaction(function=only_updates), changes=(insert(), update, DDL)) == [update]
    assert through(EachTransaction(function=only_updates)) == []
    assert through(EachTransaction(function="copy:copy"), changes=(insert(), DDL)) == [insert(), DDL]


def test_a_function_is_not_called_for_nothing() -> None:
    called: list[object] = []
    through(Exclude(tables=("shop.*",)), EachTransaction(function=called.append))
    assert called == []


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (5, "it returned int"),
        ([5], "change 0 that it returned is int"),
        ([insert(), RowChange(USERS, Op.INSERT, ROW, ROW)], "change 1 that it returned is an INSERT with a row before"),
        ([RowChange(USERS, Op.UPDATE, None, ROW)], "is an UPDATE without a row before"),
        ([insert((1, 2))], "no tuple of 5 values, as shop.users has"),
        ([DDL], "a function may not make any"),
    ],
)
def test_what_a_function_must_not_return(returned: Any, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        through(EachTransaction(function=lambda changes: returned))


def test_a_function_that_raises_is_named() -> None:
    def fails(changes: list[Change]) -> list[Change]:
        raise KeyError("nobody")

    with pytest.raises(FilterError) as caught:
        through(Delay(delay_s=1), EachTransaction(function=fails))
    assert str(caught.value) == (
        "filter 2 (transaction fails) stopped at seqno 7, event id 'event 7': the function raised KeyError: 'nobody'. "
        "None of this transaction was applied. Fix the filter, then start again"
    )
    with pytest.raises(FilterError, match="changes_max = 2"):
        through(EachTransaction(function=copy.copy, changes_max=2), changes=(insert(),) * 3)


# --- Arrow batches ---

pa = pytest.importorskip("pyarrow")


def test_a_batch_shows_a_table() -> None:
    seen: list[Any] = []
    update = RowChange(USERS, Op.UPDATE, ROW, (1, UNCHANGED, "x", ZeroDate("0000-00-00"), None))

    def look(batch: Any) -> Any:
        seen.append(batch)
        return batch.slice(0)

    assert through(EachBatch(function=look), changes=(insert(), update)) == [insert(), update], "nothing is lost"
    (batch,) = seen
    assert batch.schema.names == ["row", "op", *[f"{s}.{c.name}" for s in ("before", "after") for c in USERS.columns]]
    assert batch.schema.metadata == {b"schema": b"shop", b"table": b"users", b"primary_key": b'["id"]'}
    assert batch.column("op").to_pylist() == ["INSERT", "UPDATE"]
    assert batch.column("after.email").to_pylist() == ["ada@example.org", None]
    assert str(batch.column("after.born").to_pylist()) == "[datetime.date(1970, 1, 1), None]"


def test_a_batch_function_takes_rows_away_and_sets_values() -> None:
    import pyarrow.compute as pc

    def edit(batch: Any) -> Any:
        batch = batch.filter(pc.greater(batch.column("after.id"), 1))
        at = batch.schema.get_field_index("after.email")
        return batch.set_column(at, "after.email", pc.utf8_upper(batch.column(at)))

    changes = tuple([insert((n, f"user {n}", UNCHANGED, Date(n), n)) for n in (1, 2, 3)])
    assert through(EachBatch(function=edit, rows=2), changes=changes) == [
        insert((2, "USER 2", UNCHANGED, Date(2), 2)),
        insert((3, "USER 3", UNCHANGED, Date(3), 3)),
    ]


def test_batches_are_runs_of_one_table() -> None:
    sizes: list[tuple[bytes, int]] = []

    def look(batch: Any) -> Any:
        sizes.append((batch.schema.metadata[b"table"], batch.num_rows))
        return batch

    team = insert((1,), TEAMS)
    changes: tuple[Change, ...] = (insert(), insert(), team, insert(), insert(), insert(), DDL, insert())
    assert through(EachBatch(function=look, rows=2), changes=changes) == list(changes)
    assert sizes == [(b"users", 2), (b"teams", 1), (b"users", 2), (b"users", 1), (b"users", 1)]


def test_a_column_without_a_type_shows_what_is_in_it() -> None:
    """SQLite: the tag follows the stored value."""
    table = TableMap(schema="main", table="t", columns=(column("a", LogicalType.ANY), column("b", LogicalType.ANY)))

    def add(batch: Any) -> Any:
        import pyarrow.compute as pc

        assert batch.column("after.b").to_pylist() == ["1", "two"]
        return batch.set_column(4, "after.a", pc.add(batch.column("after.a"), 1))

    changes = (insert((1, 1), table), insert((None, "two"), table))
    assert through(EachBatch(function=add), changes=changes) == [insert((2, 1), table), insert((None, "two"), table)]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda batch: None, "it returned NoneType"),
        (lambda batch: batch.drop_columns(["after.email"]), "column after.email is missing"),
        (lambda batch: batch.append_column("x", batch.column("row")), "column x is new"),
        (lambda batch: pa.concat_batches([batch, batch]), "column row of the batch that it returned has other numbers"),
        (lambda batch: batch.take(pa.array([1, 0])), "another order"),
        (lambda batch: batch.set_column(1, "op", pa.array(["DELETE", "DELETE"])), "column op .* has changed"),
        (
            lambda batch: batch.set_column(7, "after.id", pa.array(["x", "y"])),
            "column after.id .* is string, not int64",
        ),
        (lambda batch: batch.set_column(2, "before.id", pa.array([1, 1])), "a value where there is no such row"),
        (lambda batch: 1 // 0, "the function raised ZeroDivisionError"),
    ],
)
def test_what_a_batch_function_must_not_return(edit: Any, why: str) -> None:
    with pytest.raises(FilterError, match=why) as caught:
        through(EachBatch(function=edit), changes=(insert(), insert()))
    assert (caught.value.table, caught.value.seqno) == ("shop.users", 7)


# --- bad input ---


@pytest.mark.parametrize(
    ("filters", "option", "why"),
    [
        ((Include(tables=()),), "filter 1.tables", "a list of one or more"),
        ((Include(tables="shop.*"),), "filter 1.tables", "a list of texts"),  # type: ignore[arg-type]
        ((Include(tables=("shop.*",)), Exclude(tables=("shop",))), "filter 2.tables", "not schema.table"),
        ((Rename(to="x"),), "filter 1.schema", "one of the three"),
        ((Rename(to="x", schema="a", table="b.c"),), "filter 1.schema", "one of the three"),
        ((Rename(to="x", schema="a", column="b"),), "filter 1.column", "together with its table"),
        ((Rename(to="x", table="a"),), "filter 1.table", "not schema.table"),
        ((Rename(to="x", table="a.*"),), "filter 1.table", "a pattern"),
        ((Rename(to="x", schema="a*"),), "filter 1.schema", "a pattern"),
        ((Rename(to="a", schema="a"),), "filter 1.to", "the name that it has"),
        ((Rename(to="", schema="a"),), "filter 1.to", "missing"),
        ((Rename(to=".b", table="a.c"),), "filter 1.to", "neither table nor schema.table"),
        ((Rename(to="a", table="a.b", column="a"),), "filter 1.to", "the name that it has"),
        ((Rename(to="x", table="a.b"), Rename(to="x", table="a.c")), "filter 2.to", "a.b is renamed to a.x too"),
        ((DropColumns(table="a.b", columns=()),), "filter 1.columns", "a list of one or more"),
        ((DropColumns(table="a.b", columns=("c", "c")),), "filter 1.columns", "named twice"),
        ((MaskColumns(table="a.b", columns=("c",), by=MaskBy.VALUE),), "filter 1.value", 'by = "null"'),
        ((MaskColumns(table="a.b", columns=("c",), by=MaskBy.HASH),), "filter 1.salt", "guessed"),
        ((MaskColumns(table="a.b", columns=("c",), by=MaskBy.NULL, value=1),), "filter 1.value", 'only by = "value"'),
        ((MaskColumns(table="a.b", columns=("c",), by=MaskBy.NULL, salt="x"),), "filter 1.salt", 'only by = "hash"'),
        ((MaskColumns(table="a.b", columns=("c",), by=MaskBy.KEEP_LAST, keep=-1),), "filter 1.keep", "0 or more"),
        ((Delay(delay_s=0),), "filter 1.delay_s", "above 0"),
        ((Delay(delay_s=1), Delay(delay_s=2)), "filter 2.delay_s", "another delay"),
        ((EachTransaction(function="no_module"),), "filter 1.function", "not package.module:function"),
        ((EachTransaction(function=5),), "filter 1.function", "neither callable"),  # type: ignore[arg-type]
        ((EachTransaction(function=list, changes_max=0),), "filter 1.changes_max", "1 or more"),
        ((EachBatch(function=list, rows=0),), "filter 1.rows", "1 to 1000000"),
    ],
)
def test_filters_that_cannot_be(filters: tuple[Filter, ...], option: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_filters(filters)
    assert caught.value.option == option and why in caught.value.why


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("tranlog.nowhere:f", "ModuleNotFoundError"),
        ("copy:nothing", "AttributeError"),
        ("copy:__doc__", "is no function but str"),
    ],
)
def test_functions_that_cannot_be_found(function: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Chain([EachBatch(function=function)])
    assert caught.value.option == "filter 1.function" and why in caught.value.why


def test_filters_travel_and_show_no_secret() -> None:
    one = mask("email", MaskBy.HASH, salt=SALT)
    filters = (one, Delay(delay_s=1), EachBatch(function="copy:copy"))
    assert pickle.loads(pickle.dumps(filters)) == filters
    assert SALT not in repr(filters)
