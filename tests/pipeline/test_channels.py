"""Which channel a shard has, and single steps of a walk.

That the steps together keep order, and end, is what test_model.py explores.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
import pytest

from tranlog.change import Change, Column, Op, RowChange, Statement, TableMap
from tranlog.errors import ConfigError
from tranlog.header import TransactionHeader
from tranlog.ids import Epoch, Seqno
from tranlog.pipeline.rules.channels import (
    SERIAL,
    AssignmentRule,
    Await,
    Finish,
    Publish,
    ShardBy,
    ShardPlan,
    Skip,
    Take,
    Walk,
)
from tranlog.shard import UNKNOWN_SHARD
from tranlog.types import UNCHANGED, Datetime, LogicalType


def plan(channels: int = 4, **options) -> ShardPlan:
    return ShardPlan(channels=channels, **options)


@pytest.mark.parametrize("shard", [UNKNOWN_SHARD, "", "accounts"])
def test_unknown_and_listed_shards_are_serial(shard: str) -> None:
    """ "`#UNKNOWN` and the shards listed as serial: channel 0"; a blank id counts as #UNKNOWN (A5)."""
    for rule in AssignmentRule:
        assert plan(rule=rule, serial=frozenset({"accounts"})).owner(shard, {shard: 3}) == SERIAL


def test_the_map_comes_before_the_rule() -> None:
    for rule in AssignmentRule:
        assert plan(rule=rule, mapping=(("a", 2),)).owner("a", {"a": 1}) == 2


def test_recorded_is_what_is_stored() -> None:
    assert plan().owner("a", {"a": 3}) == 3
    assert plan().owner("b", {"a": 3}) is None


def test_a_stored_channel_that_there_is_not_is_named_where_it_is_applied() -> None:
    stored = {"a": 3, "b": 4}
    assert [plan().channel_of(shard, stored) for shard in ("a", "c", UNKNOWN_SHARD)] == [3, None, SERIAL]
    with pytest.raises(ConfigError, match=r"channel of shard 'b' = 4.*there are 4 channels; put back what it was"):
        plan().channel_of("b", stored)
    assert plan().owner("b", stored) == 4, "for a status to show"


def test_hash_is_crc32_of_the_name() -> None:
    """ "CRC-32 of the UTF-8 name, never Python's `hash()`", which differs from process to process."""
    by_hash = plan(rule=AssignmentRule.HASH)
    for shard in ("shop_a", "größe", "日本"):
        assert by_hash.owner(shard, {}) == zlib.crc32(shard.encode()) % 4
    assert by_hash.owner("größe", {}) == 1
    assert by_hash.owner("shop_a", {}) == 0  # pinned: a change here would move shards under a running pipeline


def test_the_default_is_the_channel_of_what_has_no_line() -> None:
    for rule in AssignmentRule:
        listed = plan(rule=rule, mapping=(("a", 2),), default=1)
        assert [listed.owner(shard, {"b": 3}) for shard in ("a", "b", "c", UNKNOWN_SHARD)] == [2, 1, 1, SERIAL]


KEYED = plan(by=ShardBy.KEY, keys=(("shop.orders", "customer"), ("shop.payments", "payer")))


def table(name: str, *columns: str) -> TableMap:
    made = [Column(name=column, source_type="bigint", logical=LogicalType.INTEGER) for column in columns]
    return TableMap(schema="shop", table=name, columns=tuple(made), primary_key=(0,))


ORDERS, PAYMENTS, STOCK = table("orders", "id", "customer"), table("payments", "payer", "sum"), table("stock", "id")


def header(recorded: str, *tables: tuple[str, str], whole: bool = True) -> TransactionHeader:
    """The header of a transaction's last fragment."""
    return TransactionHeader(
        seqno=Seqno(1),
        fragno=0 if whole else 2,
        last_frag=True,
        epoch=Epoch(1),
        source_id="s",
        event_id="e",
        shard_id=recorded,
        tstamp=1,
        tables=tables,
        record_length=0,
        data_length=0,
        spilled=False,
        write_set=b"",
    )


def unread() -> list[Change]:
    raise AssertionError("decoded")


LOOKED = "looked into"
"""What the tests below have as the shard of a transaction whose changes are asked for: a table's name."""


@pytest.mark.parametrize(
    ("by", "recorded", "tables", "whole", "shard"),
    [
        (ShardBy.RECORDED, "old", (("s", "t"), ("s", "u")), True, "old"),
        (ShardBy.RECORDED, UNKNOWN_SHARD, (("s", "t"),), True, UNKNOWN_SHARD),
        (ShardBy.SCHEMA, "old", (("s", "t"), ("s", "u")), True, "s"),
        (ShardBy.SCHEMA, "old", (("s", "t"), ("r", "u")), True, UNKNOWN_SHARD),
        (ShardBy.SCHEMA, UNKNOWN_SHARD, (("s", "t"), ("s", "u")), True, LOOKED),  # several tables, or a statement?
        (ShardBy.SCHEMA, UNKNOWN_SHARD, (("s", "t"),), False, UNKNOWN_SHARD),  # too large to look
        (ShardBy.SCHEMA, "old", None, True, UNKNOWN_SHARD),  # too many tables to list
        (ShardBy.SCHEMA, UNKNOWN_SHARD, (), True, UNKNOWN_SHARD),
        (ShardBy.SCHEMA, "", (("s", "t"),), True, UNKNOWN_SHARD),
        (ShardBy.TABLE, "old", (("s", "t"), ("s", "t")), True, "s.t"),
        (ShardBy.TABLE, "old", (("s", "t"), ("s", "u")), True, UNKNOWN_SHARD),
    ],
)
def test_the_shard_by_the_header(by: ShardBy, recorded: str, tables, whole: bool, shard: str) -> None:
    at = msgspec.structs.replace(header(recorded, whole=whole), tables=tables)
    looked: list[Change] = [RowChange(msgspec.structs.replace(ORDERS, schema=LOOKED), Op.INSERT, None, (1, 2))]
    assert plan(by=by).shard(at, (lambda: looked) if shard == LOOKED else unread) == shard
    spilled = msgspec.structs.replace(at, spilled=True)
    assert plan(by=by).shard(spilled, unread) == (UNKNOWN_SHARD if shard == LOOKED else shard)


def looked_into(one: ShardPlan, changes: Sequence[Change]) -> str:
    """The shard of a transaction whose header does not tell."""
    return one.shard(header(UNKNOWN_SHARD, ("shop", "orders")), lambda: changes)


def test_the_shard_by_key_takes_the_changes() -> None:
    orders, stock = ("shop", "orders"), ("shop", "stock")
    assert KEYED.shard(header("shop", orders, whole=False), unread) == UNKNOWN_SHARD
    assert KEYED.shard(header("shop", orders, stock), unread) == UNKNOWN_SHARD
    assert KEYED.shard(header("shop", stock), unread) == "shop.stock"
    order: Change = RowChange(ORDERS, Op.INSERT, None, (1, 77))
    payment: Change = RowChange(PAYMENTS, Op.DELETE, (77, 5), None)
    key = looked_into(KEYED, [order, payment])
    assert key == looked_into(KEYED, [RowChange(ORDERS, Op.UPDATE, (1, 77), (2, 77))]) != UNKNOWN_SHARD
    for changes in (
        [order, RowChange(ORDERS, Op.UPDATE, (1, 77), (1, 78))],  # it changes hands
        [order, RowChange(STOCK, Op.INSERT, None, (77,))],
        [RowChange(ORDERS, Op.INSERT, None, (1, None))],
        [RowChange(ORDERS, Op.UPDATE, (1, UNCHANGED), (1, UNCHANGED))],
        [RowChange(table("orders", "id"), Op.INSERT, None, (1,))],  # as the table was before it had the column
        [order, Statement(schema="shop", sql="TRUNCATE stock", ddl=True)],
        [],
    ):
        assert looked_into(KEYED, changes) == UNKNOWN_SHARD
    by_schema = plan(by=ShardBy.SCHEMA)
    assert looked_into(by_schema, [order, payment]) == "shop"
    emptied = Statement(schema="shop", sql="TRUNCATE stock", ddl=False)
    for one in (by_schema, plan(by=ShardBy.TABLE), KEYED):
        assert looked_into(one, [order, emptied]) == UNKNOWN_SHARD == one.shard(header(UNKNOWN_SHARD), unread)


def test_the_channel_of_a_key_stays() -> None:
    """Pinned: another text of a value would move rows between channels under a running pipeline."""
    found = [
        (shard, KEYED.owner(shard, {}))
        for value in (77, -1, "größe", b"\0", 1.5, Datetime(0))
        for shard in [looked_into(KEYED, [RowChange(ORDERS, Op.INSERT, None, (1, value))])]
    ]
    assert found == PINNED


PINNED = [
    ("#KEY 4 77", 3),
    ("#KEY 4 -1", 1),
    ("#KEY 9 'größe'", 1),
    ("#KEY 10 b'\\x00'", 3),
    ("#KEY 7 b'?\\xf8\\x00\\x00\\x00\\x00\\x00\\x00'", 0),
    ("#KEY 14 Datetime(micros=0)", 1),
]


def test_one_channel_owns_everything_and_asks_nobody() -> None:
    assert plan(1).owner("a", {}) == 0


def test_the_owner_is_a_function_of_the_header_alone() -> None:
    """conformance B7-21: the ancestor's default answers with whoever asks, so that every channel applies everything."""
    names = [f"shard_{number}" for number in range(50)] + [UNKNOWN_SHARD]
    stored = {name: number % 4 for number, name in enumerate(names)}
    for rule in AssignmentRule:
        one, other = plan(rule=rule), ShardPlan.parse(plan(rule=rule).text(), channels=4)
        owners = [one.owner(name, stored) for name in names]
        assert owners == [other.owner(name, dict(reversed(stored.items()))) for name in names]
        # So exactly one of four walks takes each, and each walk decides alike when it is asked again.
        for seqno, owner in enumerate(owners):
            assert owner is not None
            takers = 0
            for channel in range(4):
                walk = Walk(channel=channel, channels=4, position=Seqno(seqno - 1), run=False)
                walk.learn(dict.fromkeys(range(4), Seqno(seqno)))
                verdict = walk.at(Seqno(seqno), owner)
                assert verdict == walk.at(Seqno(seqno), owner)
                takers += isinstance(verdict, Take)
            assert takers == 1


def test_a_plan_survives_the_target() -> None:
    one = plan(rule=AssignmentRule.HASH, serial=frozenset({"z", "ä"}), mapping=(("a", 1), ("b", 0)))
    assert ShardPlan.parse(one.text(), channels=4) == one
    assert ShardPlan.parse(plan().text(), channels=4) == plan()
    assert plan().text() == '{"rule":"recorded"}', "as releases before wrote it"
    for other in (KEYED, plan(by=ShardBy.TABLE), plan(default=0)):
        assert ShardPlan.parse(other.text(), channels=4) == other
        assert other.text() != plan().text()
    assert one.text() != plan(rule=AssignmentRule.HASH, serial=frozenset({"z"}), mapping=(("a", 1), ("b", 0))).text()


@pytest.mark.parametrize("text", ["", "recorded", "[]", '{"rule":"sorted"}', '{"rule":"hash","map":{"a":"x"}}'])
def test_a_rule_of_no_release_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="shard_rule"):
        ShardPlan.parse(text, channels=2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (plan(0), "channels = 0"),
        (plan(1025), "must be 1 to 1024"),
        (plan(2, mapping=(("a", 2),)), "channels are numbered 0 to 1"),
        (plan(2, mapping=(("a", 1),), serial=frozenset({"a"})), "a serial shard runs on channel 0"),
        (plan(2, mapping=((UNKNOWN_SHARD, 1),)), "a serial shard runs on channel 0"),
        (plan(2, default=2), "channels are numbered 0 to 1"),
        (plan(2, by=ShardBy.KEY), "need a column for at least one table"),
        (plan(2, keys=(("a.b", "c"),)), "no others may name any"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(wrong: ShardPlan, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong.check()


def walk(channel: int, position: int = -1, *, run: bool = False, limit: int | None = None) -> Walk:
    bound = None if limit is None else Seqno(limit)
    return Walk(channel=channel, channels=3, position=Seqno(position), run=run, limit=bound)


def pass_over(at: Walk, *owners: int) -> None:
    for owner in owners:
        seqno = Seqno(at.passed + 1)
        assert isinstance(at.at(seqno, owner), Skip | Take)
        at.move_on(seqno, owner)


def test_others_publish_and_then_wait_for_channel_0() -> None:
    one = walk(1)
    pass_over(one, 1, 0)
    assert one.at(Seqno(2), SERIAL) == Publish(seqno=Seqno(1))
    one.published_up_to(Seqno(1))
    assert one.at(Seqno(2), SERIAL) == Await(channels=(0,), seqno=Seqno(2))
    one.learn({0: Seqno(1)})
    assert one.at(Seqno(2), SERIAL) == Await(channels=(0,), seqno=Seqno(2))
    one.learn({0: Seqno(3)})
    assert one.at(Seqno(2), SERIAL) == Skip()
    pass_over(one, SERIAL, SERIAL)
    assert one.at(Seqno(4), SERIAL) == Await(channels=(0,), seqno=Seqno(4)), "inside the run nothing is published"


def test_channel_0_waits_for_all_others_before_the_first_of_a_run() -> None:
    zero = walk(0)
    pass_over(zero, 0, 1)
    assert zero.at(Seqno(2), SERIAL) == Publish(seqno=Seqno(1)), "nothing waits inside a target transaction"
    zero.published_up_to(Seqno(1))
    assert zero.at(Seqno(2), SERIAL) == Await(channels=(1, 2), seqno=Seqno(1))
    zero.learn({1: Seqno(1), 2: Seqno(0)})
    assert zero.at(Seqno(2), SERIAL) == Await(channels=(2,), seqno=Seqno(1))
    zero.learn({2: Seqno(1)})
    pass_over(zero, SERIAL, SERIAL)  # the second of the run asks for nobody
    assert zero.at(Seqno(4), 1) == Publish(seqno=Seqno(3)), "the others wait for the end of the run"


def test_channel_0_that_starts_inside_a_run_does_not_wait() -> None:
    """Its position is a serial transaction: the others had met in front of the run, and stand there."""
    assert walk(0, 5, run=True).at(Seqno(6), SERIAL) == Take()
    assert isinstance(walk(0, 5).at(Seqno(6), SERIAL), Await)


def test_one_channel_never_waits_and_never_cuts_a_group() -> None:
    alone = Walk(channel=0, channels=1, position=Seqno(-1), run=False)
    for owner in (SERIAL, 0, SERIAL, SERIAL, 0):
        assert alone.at(Seqno(alone.passed + 1), owner) == Take()
        alone.move_on(Seqno(alone.passed + 1), owner)


def test_a_limit_ends_the_walk() -> None:
    one = walk(1, limit=1)
    pass_over(one, 1, 0)
    assert one.done
    assert one.at(Seqno(2), 1) == Finish()
    assert walk(1, 7, limit=-1).at(Seqno(8), 1) == Finish(), "-1 ends every task where it is"


def test_what_is_owed() -> None:
    """A no-op without rows counts too: others may wait for its position."""
    zero = walk(0, run=True)
    pass_over(zero, 1)
    owed = [zero.owes]
    zero.learn({1: Seqno(9), 2: Seqno(9)})
    pass_over(zero, SERIAL)
    owed.append(zero.owes)
    zero.published_up_to(Seqno(1))
    assert [*owed, zero.owes] == [False, True, False]


def test_who_is_far_ahead_in_time_waits_for_who_is_behind_in_the_log() -> None:
    """conformance A4, maxOfflineInterval; a jump back of the commit times, and one who is ahead, stop nobody."""
    one = Walk(channel=1, channels=2, position=Seqno(4), run=False, interval_ms=1000, tstamp=10_000)
    one.learn({0: Seqno(4)}, {0: 10_000})
    assert one.at(Seqno(5), 1, 99_000) == Take(), "nobody is behind it"
    one.move_on(Seqno(5), 1)
    one.learn({0: Seqno(4)}, {0: 10_000})
    assert one.at(Seqno(6), 1, 10_400) == Take()
    assert one.at(Seqno(6), 1, 0) == Take()
    assert one.at(Seqno(6), 0, 10_600) == Publish(seqno=Seqno(5)), "others may wait for it"
    one.published_up_to(Seqno(5), 99_000)
    assert one.at(Seqno(6), 1, 11_001) == Await(channels=(0,), seqno=Seqno(5))
    assert one.at(Seqno(6), 0, 11_001) == Skip(), "what others apply is theirs to hold back"
    one.learn({0: Seqno(5)}, {0: 5})
    assert one.at(Seqno(6), 1, 11_001) == Take()
