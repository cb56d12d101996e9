"""`source.packer`: the changes of one transaction become fragments (design/data-model.md, "Large transactions",
"Shards", "Header extension").
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import tranlog
from tranlog.change import Change, Column, Fragment, Op, RowChange, Statement, TableMap
from tranlog.payload import decode
from tranlog.row_bytes import encode_row
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.packer import FRAGMENT_BYTES, TABLE_LIST_BYTES, TransactionPacker
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
BY_TABLE = ShardRule(kind=ShardRuleKind.TABLE)


def table(schema: str, name: str) -> TableMap:
    return TableMap(
        schema=schema,
        table=name,
        columns=(Column(name="v", source_type="text", logical=LogicalType.TEXT),),
        primary_key=(0,),
    )


ORDERS, ITEMS, OTHER = table("shop", "orders"), table("shop", "items"), table("other", "t")
DDL = Statement(schema="shop", sql="drop table x", ddl=True)


def insert(into: TableMap, text: str = "x") -> RowChange:
    return RowChange(into, Op.INSERT, None, (text,))


def packer(rule: ShardRule = BY_SCHEMA, **options: Any) -> TransactionPacker:
    return TransactionPacker(source_id="here", rule=rule, **options)


def pack(into: TransactionPacker, changes: list[Change]) -> list[Fragment]:
    """Add all and finish; each fragment gets the event id and the time of the change that closed it."""
    fragments = []
    for number, change in enumerate(changes):
        fragment = into.add(change, event_id=f"e{number}", tstamp=number)
        if fragment is not None:
            fragments.append(fragment)
    fragments.append(into.finish(event_id="end", tstamp=999))
    return fragments


def changes_of(fragments: list[Fragment]) -> list[Change]:
    return [change for fragment in fragments for change in decode(fragment.payload).changes]


def test_a_small_transaction_is_one_fragment() -> None:
    changes: list[Change] = [insert(ORDERS), insert(ITEMS), insert(ORDERS, "y")]
    (fragment,) = pack(packer(), changes)
    assert fragment == Fragment(
        source_id="here",
        event_id="end",
        shard_id="shop",
        tstamp=999,
        tables=(("shop", "orders"), ("shop", "items")),
        payload=fragment.payload,
        last=True,
    )
    assert changes_of([fragment]) == changes


def test_an_empty_transaction_is_one_fragment_of_no_shard() -> None:
    """ "Several, none, or DDL: `#UNKNOWN`" """
    fragment = packer().finish(event_id="e", tstamp=1, metadata=(("noop", ""),), options=(("o", "1"),))
    assert (fragment.shard_id, fragment.tables, fragment.last) == (UNKNOWN_SHARD, (), True)
    payload = decode(fragment.payload)
    assert payload.is_noop()
    assert payload.options == (("o", "1"),)


@pytest.mark.parametrize(
    ("rule", "changes", "shard"),
    [
        (BY_SCHEMA, [insert(ORDERS)], "shop"),
        (BY_SCHEMA, [insert(ORDERS), insert(OTHER)], UNKNOWN_SHARD),
        (BY_SCHEMA, [insert(ORDERS), DDL], UNKNOWN_SHARD),
        (BY_SCHEMA, [DDL], UNKNOWN_SHARD),
        (BY_TABLE, [insert(ORDERS)], "shop.orders"),
        (BY_TABLE, [insert(ORDERS), insert(ITEMS)], UNKNOWN_SHARD),
    ],
)
def test_the_shard_is_the_rules_verdict(rule: ShardRule, changes: list[Change], shard: str) -> None:
    (fragment,) = pack(packer(rule), changes)
    assert fragment.shard_id == shard


def test_the_last_fragment_speaks_for_the_whole() -> None:
    """ "the header of the last holds the verdict for the whole, earlier ones carry `#UNKNOWN`" """
    big = "x" * 600
    changes: list[Change] = [insert(ORDERS, big), insert(ORDERS, big), insert(ITEMS, big), insert(ORDERS, "small")]
    fragments = pack(packer(fragment_bytes=1000), changes)
    assert [fragment.last for fragment in fragments] == [False, True]
    assert [fragment.shard_id for fragment in fragments] == [UNKNOWN_SHARD, "shop"]
    assert [fragment.event_id for fragment in fragments] == ["e1", "end"]
    assert [fragment.tstamp for fragment in fragments] == [1, 999]
    assert fragments[0].tables == (("shop", "orders"),)
    assert fragments[1].tables == (("shop", "orders"), ("shop", "items"))
    assert changes_of(fragments) == changes


def test_what_only_an_early_fragment_touched_still_counts() -> None:
    fragments = pack(packer(fragment_bytes=300), [insert(OTHER, "x" * 400), insert(ORDERS)])
    assert [fragment.shard_id for fragment in fragments] == [UNKNOWN_SHARD, UNKNOWN_SHARD]
    assert fragments[-1].tables == (("other", "t"), ("shop", "orders"))
    fragments = pack(packer(fragment_bytes=300), [DDL, insert(ORDERS, "x" * 400), insert(ORDERS)])
    assert fragments[-1].shard_id == UNKNOWN_SHARD


def test_each_fragment_can_be_decoded_alone() -> None:
    """Its table maps are its own: no process holds a whole large transaction."""
    fragments = pack(packer(fragment_bytes=100), [insert(ORDERS, "x" * 90) for _ in range(5)])
    assert len(fragments) == 6
    for fragment in fragments[:-1]:
        assert len(decode(fragment.payload).changes) == 1
    assert fragments[-1].payload == b""  # the last change had filled a fragment: the end has none left


def test_one_row_larger_than_a_fragment_is_one_larger_fragment() -> None:
    into = packer()
    big = insert(ORDERS, "x" * (3 * FRAGMENT_BYTES))
    fragments = pack(into, [insert(ORDERS), big, insert(ORDERS)])
    assert [len(decode(fragment.payload).changes) for fragment in fragments] == [2, 1]
    assert into.emitted == 2


def test_a_fragment_is_about_a_mebibyte() -> None:
    fragments = pack(packer(), [insert(ORDERS, "x" * 1000) for _ in range(2500)])
    assert [fragment.last for fragment in fragments] == [False, False, True]
    assert all(FRAGMENT_BYTES - 10 <= len(fragment.payload) < FRAGMENT_BYTES + 2000 for fragment in fragments[:-1])


def test_encoded_images_give_the_same_fragments() -> None:
    plain, encoded = packer(fragment_bytes=500), packer(fragment_bytes=500)
    for number in range(100):
        change = insert(ORDERS, str(number) * 10)
        assert change.after is not None
        one = plain.add(change, event_id="e", tstamp=number)
        other = encoded.add_encoded(ORDERS, Op.INSERT, encode_row(change.after), event_id="e", tstamp=number)
        assert one == other
    assert plain.finish(event_id="e", tstamp=0) == encoded.finish(event_id="e", tstamp=0)


@pytest.mark.parametrize("at_once", [1, 7, 300])
def test_encoded_rows_give_the_same_fragments_however_many_come_at_once(at_once: int) -> None:
    """Also no table without a row: not for no rows, and not in the fragment behind one that the last row filled."""
    one_by_one, several = packer(fragment_bytes=500), packer(fragment_bytes=500)
    images = [encode_row((str(number) * (number % 40),)) for number in range(300)]
    assert list(several.add_encoded_rows(ITEMS, Op.INSERT, [], event_id="e", tstamp=1)) == []
    plain = [one_by_one.add_encoded(ORDERS, Op.INSERT, image, event_id="e", tstamp=1) for image in images]
    cut: list[Fragment] = []
    for at in range(0, len(images), at_once):
        cut += several.add_encoded_rows(ORDERS, Op.INSERT, images[at : at + at_once], event_id="e", tstamp=1)
    assert cut == [fragment for fragment in plain if fragment is not None] and len(cut) > 5
    full = encode_row(("x" * 500,))
    for into in (one_by_one, several):
        assert len(list(into.add_encoded_rows(ORDERS, Op.INSERT, [full], event_id="e", tstamp=1))) == 1
    assert one_by_one.finish(event_id="e", tstamp=0) == several.finish(event_id="e", tstamp=0)
    assert len(several) == 0


def test_begin_drops_an_unfinished_transaction() -> None:
    into = packer(fragment_bytes=100)
    for _ in range(3):
        into.add(insert(OTHER, "x" * 70), event_id="e", tstamp=0)
    into.add(DDL, event_id="e", tstamp=0)
    assert (len(into), into.emitted) == (1, 3)
    into.begin(BY_TABLE)
    assert (len(into), into.emitted) == (0, 0)
    (fragment,) = pack(into, [insert(ORDERS)])
    assert (fragment.shard_id, fragment.tables) == ("shop.orders", (("shop", "orders"),))
    assert changes_of([fragment]) == [insert(ORDERS)]


def test_one_packer_packs_one_transaction_after_another() -> None:
    into = packer()
    for change, shard in ((insert(ORDERS), "shop"), (insert(OTHER), "other"), (DDL, UNKNOWN_SHARD)):
        into.begin(BY_SCHEMA)
        (fragment,) = pack(into, [change])
        assert (fragment.shard_id, into.emitted) == (shard, 1)
        assert changes_of([fragment]) == [change]


def test_a_refused_change_leaves_the_transaction_as_it_was() -> None:
    into = packer()
    into.add(insert(ORDERS), event_id="e", tstamp=0)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        into.add(insert(OTHER, "\ud800"), event_id="e", tstamp=0)
    fragment = into.finish(event_id="e", tstamp=0)
    assert (fragment.shard_id, fragment.tables) == ("shop", (("shop", "orders"),))
    assert changes_of([fragment]) == [insert(ORDERS)]


def listed_bytes(tables: list[TableMap]) -> int:
    """What the header extension takes: type u8, length u16, then two names with a u16 length each."""
    return sum(1 + 2 + 2 + len(t.schema.encode()) + 2 + len(t.table.encode()) for t in tables)


def test_too_many_tables_to_list_are_serial() -> None:
    """ "too many tables to list (instead of items 1, past 60,000 bytes; then the shard is `#UNKNOWN`)" """
    one_item = listed_bytes([table("s", "é" * 46)])
    assert one_item == 100
    tables = [table("s", f"{number:02}".rjust(4, "x") + "é" * 44) for number in range(TABLE_LIST_BYTES // one_item)]
    assert listed_bytes(tables) == TABLE_LIST_BYTES
    (fragment,) = pack(packer(), [insert(t) for t in tables])
    assert fragment.shard_id == "s"
    assert fragment.tables == tuple((t.schema, t.table) for t in tables)
    (fragment,) = pack(packer(), [insert(t) for t in [*tables, table("s", "")]])
    assert (fragment.shard_id, fragment.tables) == (UNKNOWN_SHARD, None)
    assert len(changes_of([fragment])) == len(tables) + 1


def test_too_many_tables_in_an_early_fragment() -> None:
    tables = [table("s", "x" * 993 + f"{number:03}") for number in range(70)]
    fragments = pack(packer(fragment_bytes=65_000), [insert(t) for t in tables])
    assert [fragment.tables for fragment in fragments] == [None, None]
    assert fragments[-1].shard_id == UNKNOWN_SHARD
    assert len(changes_of(fragments)) == 70


CHANGES = st.one_of(
    st.builds(insert, st.sampled_from([ORDERS, ITEMS, OTHER]), st.text(max_size=60)),
    st.builds(lambda text: Statement(schema="shop", sql=text, ddl=False), st.text(max_size=60)),
)


@given(st.lists(st.lists(CHANGES, max_size=12), max_size=4), st.integers(1, 400))
def test_nothing_is_lost_moved_or_judged_differently_by_cutting(transactions: list[list[Change]], size: int) -> None:
    cut, whole = packer(fragment_bytes=size), packer()
    for changes in transactions:
        cut.begin(BY_SCHEMA)
        whole.begin(BY_SCHEMA)
        fragments = pack(cut, changes)
        (one,) = pack(whole, changes)
        assert changes_of(fragments) == changes_of([one]) == changes
        last = fragments[-1]
        assert (last.shard_id, last.tables, last.event_id) == (one.shard_id, one.tables, one.event_id)
        assert [fragment.last for fragment in fragments] == [False] * (len(fragments) - 1) + [True]
        assert all(fragment.shard_id == UNKNOWN_SHARD for fragment in fragments[:-1])
        assert cut.emitted == len(fragments)
        # A fragment is closed by the change that fills it, so without its last one it was smaller than the limit.
        for fragment in fragments[:-1]:
            assert len(fragment.payload) >= size - 16


@pytest.mark.parametrize(
    ("logical", "value", "told"),
    [
        (LogicalType.TEXT, 5, r"bank\.accounts, column owner: a int is no value of .*TEXT; it takes CharsetBytes, str"),
        (LogicalType.DATETIME, datetime(2026, 1, 1), r"column owner: a datetime is no value .* it takes Datetime"),
        (LogicalType.JSON, {"a": 1}, "column owner: a dict is no value of a column of the logical type JSON"),
        (LogicalType.INTEGER, True, "column owner: a bool is no value"),
        (LogicalType.ANY, object(), "column owner: a object is no value of a column of the logical type ANY"),
    ],
)
@pytest.mark.parametrize("op", [Op.INSERT, Op.DELETE])
def test_a_value_that_its_column_does_not_take_is_refused_by_name(
    logical: LogicalType, value: Any, told: str, op: Op
) -> None:
    table = TableMap(
        schema="bank", table="accounts", columns=(Column(name="owner", source_type="text", logical=logical),)
    )
    change = RowChange(table, op, *((None, (value,)) if op is Op.INSERT else ((value,), None)))
    with pytest.raises(ValueError, match=told):
        tranlog.pack([change], source_id="here", event_id="1", tstamp=1)


def test_an_empty_event_id_is_refused() -> None:
    with pytest.raises(ValueError, match="event_id is empty"):
        tranlog.pack([], source_id="here", event_id="", tstamp=1)


def test_rows_whose_session_had_other_checks_begin_a_fragment() -> None:
    """docs/format.md, "Options of a fragment"."""
    packing = packer()
    row = encode_row(("x",))
    sessions = [(), ("unique_checks",), ("unique_checks",), ()]
    fragments = [
        fragment
        for unchecked in sessions
        for fragment in packing.add_encoded_rows(ORDERS, Op.INSERT, [row], event_id="e", tstamp=1, unchecked=unchecked)
    ]
    fragments.append(packing.finish(event_id="e", tstamp=1))
    payloads = [decode(fragment.payload) for fragment in fragments]
    assert [(payload.options, len(payload.changes)) for payload in payloads] == [
        ((), 1),
        ((("unique_checks", "0"),), 2),
        ((), 1),
    ]
    packing.begin(BY_SCHEMA)
    assert decode(packing.finish(event_id="e", tstamp=1).payload).options == ()


def test_what_older_rows_hold_stands_in_each_later_fragment_and_makes_a_transaction_serial() -> None:
    packing = packer()
    packing.add(RowChange(ORDERS, Op.INSERT, None, ("x",)), event_id="e", tstamp=1)
    told = replace(ORDERS, older=(("a", ""),))
    packing.note_older(told)
    taken = packing.take(event_id="e", tstamp=1)
    packing.add(RowChange(ORDERS, Op.INSERT, None, ("y",)), event_id="e", tstamp=1)
    last = packing.finish(event_id="e", tstamp=1)
    for fragment in (taken, last):
        (change,) = decode(fragment.payload).changes
        assert isinstance(change, RowChange) and change.table == told
    assert last.shard_id == UNKNOWN_SHARD
    packing.begin(BY_SCHEMA)
    packing.add(RowChange(ORDERS, Op.INSERT, None, ("y",)), event_id="e", tstamp=1)
    assert packing.finish(event_id="e", tstamp=1).shard_id != UNKNOWN_SHARD


@pytest.mark.parametrize("what", [None, "drop table x", (1, 2)])
def test_what_is_no_change_is_refused_by_name(what: Any) -> None:
    with pytest.raises(TypeError, match="a change is a RowChange or a Statement, not"):
        tranlog.pack([what], source_id="s", event_id="1", tstamp=0)


@pytest.mark.parametrize("sql", [None, 5])
def test_a_statement_without_a_text_is_refused(sql: Any) -> None:
    """It was written as one whose text is empty."""
    with pytest.raises(TypeError):
        tranlog.pack([tranlog.Statement(schema="s", sql=sql, ddl=True)], source_id="s", event_id="1", tstamp=0)


@pytest.mark.parametrize("wrong", [{"source_id": 5}, {"event_id": 7}, {"tstamp": 1.5}, {"tstamp": None}])
def test_what_names_a_transaction_is_refused_by_name(wrong: dict[str, Any]) -> None:
    """The log refused it, in the words of its encoder, and of one transaction among many."""
    with pytest.raises(TypeError):  # compiled, in other words
        tranlog.pack([], **(dict[str, Any](source_id="s", event_id="1", tstamp=0) | wrong))
