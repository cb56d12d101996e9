"""`shard`: which shard a transaction belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.change import TableName
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind, ShardTally, foreign_key_groups

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
BY_TABLE = ShardRule(kind=ShardRuleKind.TABLE)


def verdict(rule: ShardRule, *tables: TableName) -> str:
    tally = ShardTally(rule)
    for schema, table in tables:
        tally.touch(schema, table)
    return tally.verdict()


@pytest.mark.parametrize(
    ("rule", "tables", "wanted"),
    [
        (BY_SCHEMA, [("a", "t")], "a"),
        (BY_SCHEMA, [("a", "t"), ("a", "u"), ("a", "t")], "a"),
        (BY_SCHEMA, [("a", "t"), ("b", "t")], UNKNOWN_SHARD),
        (BY_SCHEMA, [], UNKNOWN_SHARD),
        (BY_SCHEMA, [("", "t")], UNKNOWN_SHARD),
        (BY_TABLE, [("a", "t")], "a.t"),
        (BY_TABLE, [("a", "t"), ("a", "t")], "a.t"),
        (BY_TABLE, [("a", "t"), ("a", "u")], UNKNOWN_SHARD),
        (BY_TABLE, [], UNKNOWN_SHARD),
    ],
)
def test_one_shard_touched_gives_its_name(rule: ShardRule, tables: list[TableName], wanted: str) -> None:
    """ "One shard touched: its name. Several or none: `#UNKNOWN`." """
    assert verdict(rule, *tables) == wanted


def test_a_map_goes_by_table_then_schema_then_default() -> None:
    rule = ShardRule(
        kind=ShardRuleKind.MAP, mapping={"shop.orders": "one", "shop": "two", "*": "rest", "odd": UNKNOWN_SHARD}
    )
    assert verdict(rule, ("shop", "orders")) == "one"
    assert verdict(rule, ("shop", "items")) == "two"
    assert verdict(rule, ("other", "t")) == "rest"
    assert verdict(rule, ("shop", "orders"), ("shop", "items")) == UNKNOWN_SHARD
    assert verdict(rule, ("other", "t"), ("another", "u")) == "rest"
    assert verdict(rule, ("odd", "t")) == UNKNOWN_SHARD


def test_what_a_map_does_not_name_is_serial() -> None:
    rule = ShardRule(kind=ShardRuleKind.MAP, mapping={"shop": "one", "blank": ""})
    assert verdict(rule, ("other", "t")) == UNKNOWN_SHARD
    assert verdict(rule, ("blank", "t")) == UNKNOWN_SHARD
    assert verdict(rule, ("shop", "t"), ("other", "t")) == UNKNOWN_SHARD


# Foreign keys: "tables joined by foreign keys form one shard, named after the first of them in order".


def test_tables_joined_by_a_foreign_key_form_one_shard() -> None:
    groups = foreign_key_groups([(("s", "orders"), ("s", "customers"))])
    assert groups == {("s", "orders"): "s.customers", ("s", "customers"): "s.customers"}
    rule = ShardRule(kind=ShardRuleKind.TABLE, groups=groups)
    assert verdict(rule, ("s", "orders"), ("s", "customers")) == "s.customers"
    assert verdict(rule, ("s", "orders")) == "s.customers"
    assert verdict(rule, ("s", "orders"), ("s", "logbook")) == UNKNOWN_SHARD


def test_a_table_that_refers_to_itself_is_a_shard_of_its_own() -> None:
    assert foreign_key_groups([(("s", "tree"), ("s", "tree"))]) == {("s", "tree"): "s.tree"}


def test_the_first_in_order_is_by_schema_then_table() -> None:
    """Not by the joined text, where "a-b.t" comes before "a.t"."""
    groups = foreign_key_groups([(("a-b", "t"), ("a", "t"))])
    assert set(groups.values()) == {"a.t"}


def test_many_tables_in_one_group_cost_little() -> None:
    edges = [(("s", f"t{n:05}"), ("s", f"t{n + 1:05}")) for n in range(20_000)]
    groups = foreign_key_groups(edges)
    assert len(groups) == 20_001
    assert set(groups.values()) == {"s.t00000"}


TABLES = st.tuples(st.sampled_from("ab"), st.sampled_from("tuvwxyz"))
EDGES = st.lists(st.tuples(TABLES, TABLES), max_size=14)


def reachable(start: TableName, edges: list[tuple[TableName, TableName]]) -> set[TableName]:
    found, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for one, other in edges:
            for near, far in ((one, other), (other, one)):
                if near == here and far not in found:
                    found.add(far)
                    todo.append(far)
    return found


@given(EDGES)
def test_a_group_is_what_can_be_reached(edges: list[tuple[TableName, TableName]]) -> None:
    """Transitive, in either direction: a cascade may run along any path."""
    tables = {table for edge in edges for table in edge}
    wanted = {table: ".".join(min(reachable(table, edges))) for table in tables}
    assert foreign_key_groups(edges) == wanted


@given(EDGES, st.data())
def test_the_order_of_the_foreign_keys_does_not_matter(
    edges: list[tuple[TableName, TableName]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(edges))
    turned = [edge[::-1] if data.draw(st.booleans()) else edge for edge in shuffled]
    assert foreign_key_groups(turned) == foreign_key_groups(edges)


@given(EDGES, st.lists(TABLES, max_size=6))
def test_dependent_tables_are_never_in_two_shards(
    edges: list[tuple[TableName, TableName]], touched: list[TableName]
) -> None:
    """The invariant behind it all: two transactions on tables that a foreign key joins share a shard or are serial."""
    rule = ShardRule(kind=ShardRuleKind.TABLE, groups=foreign_key_groups(edges))
    said = verdict(rule, *touched)
    if said == UNKNOWN_SHARD:
        assert len({rule.shard_of(*table) for table in touched}) != 1
        return
    for one, other in edges:
        for near, far in ((one, other), (other, one)):
            if near in touched:
                assert verdict(rule, far) == said
