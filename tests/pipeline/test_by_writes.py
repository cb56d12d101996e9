"""docs/decisions/0032: who applies a transaction by what it writes, whom it waits for, and from where that is computed.

That the rules together keep order and end is explored by `mutants/writes_model`: over all small logs, and over those
that seeds draw.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from fix_effort import few_of
from mutants.rewriting import Mutant
from mutants.rounds import run_rounds
from mutants.write_set_rules import WRITE_SETS
from mutants.writes_model import Broken, Lying, Model, by_use, draw, drawn, drawn_lie, logs, write_set
from tranlog.errors import ConfigError
from tranlog.ids import Seqno
from tranlog.pipeline.rules.by_writes import (
    ALONE,
    CROWDED,
    NOBODY,
    ORDINARY,
    RULE_VERSION,
    Assigned,
    Assignment,
    PlannedTable,
    WritesBounds,
    WritesPlan,
    WritesWalk,
    in_force,
    resume,
)
from tranlog.pipeline.rules.channels import SERIAL, Publish, Skip
from tranlog.pipeline.rules.write_order import Estimate
from tranlog.write_item import encode_write_set
from tranlog.write_set import ANYTHING, Operations, Use, WriteKind, WriteSet, WrittenTable

ORDERS = ("shop", "orders")
STOCK = ("shop", "stock")


def plan(channels: int = 3, **given: Any) -> WritesPlan:
    tables = tuple(PlannedTable(table=table, keys=(1, 2)) for table in (ORDERS, STOCK))
    return WritesPlan(**{"from_seqno": Seqno(0), "channels": channels, "tables": tables, **given})


def writes(*touches: tuple[Use, int], changes: int = 1, **given: Any) -> WriteSet:
    tables = (WrittenTable(table=ORDERS, keys=frozenset({1, 2, 3}), operations=Operations.UPDATE),)
    return WriteSet(**{"changes": changes, "tables": tables, "touches": by_use(*touches), **given})


def assign_all(assignment: Assignment, *log: WriteSet | None) -> list[Assigned]:
    return [assignment.assign(Seqno(seqno), one) for seqno, one in enumerate(log, 1)]


# --- who, after whom ---


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(first, second, "K" in first + second or (first, second) == ("U", "U")) for first in "KUR" for second in "KUR"],
)
def test_what_two_uses_of_a_value_mean(first: str, second: str, waits: bool) -> None:
    """Two references, and a reference and an update that keeps the key, do not wait for each other."""
    first_one, second_one = write_set(first), write_set(second)
    assert first_one is not None and second_one is not None
    tables = (PlannedTable(table=("s", "0"), keys=(1,)), PlannedTable(table=("s", "1"), keys=(1,)))
    assignment = Assignment(plan(2, tables=tables, bounds=WritesBounds(lead=-1)))
    _, other = assign_all(assignment, first_one, second_one)
    assert other == Assigned(owner=1, waits=((0, Seqno(1)),) if waits else ())


def test_a_key_that_goes_waits_for_the_last_reference_on_each_channel() -> None:
    assignment = Assignment(plan(bounds=WritesBounds(lead=0)))
    references = [writes((Use.REFERENCE, 7)) for _ in range(5)]
    *_, last = assign_all(assignment, *references, writes((Use.KEY, 7)))
    assert last == Assigned(owner=2, waits=((0, Seqno(4)), (1, Seqno(5))))


def test_a_transaction_goes_where_most_of_what_it_waits_for_is() -> None:
    assignment = Assignment(plan(2))
    # By load: 1 on channel 0, 2 and 3 on channel 1, since 1 has many changes.
    log = [writes((Use.KEY, 1), changes=10), writes((Use.KEY, 2)), writes((Use.KEY, 3))]
    assert [one.owner for one in assign_all(assignment, *log)] == [0, 1, 1]
    both = writes((Use.KEY, 1), (Use.ROW, 2), (Use.ROW, 3))
    assert assignment.assign(Seqno(4), both) == Assigned(owner=1, waits=((0, Seqno(1)),))


def test_a_channel_that_is_too_far_ahead_gets_no_more() -> None:
    assignment = Assignment(plan(2, bounds=WritesBounds(lead=10)))
    log = [writes((Use.ROW, 1), (Use.ROW, 2)), writes((Use.ROW, 2), changes=20), *[writes((Use.ROW, 1))] * 2]
    found = assign_all(assignment, *log)
    assert [one.owner for one in found] == [0, 0, 1, 1]
    assert [one.waits for one in found] == [(), (), ((0, Seqno(1)),), ()], "nobody waits for his own channel"


def test_a_chain_stays_on_its_channel() -> None:
    """However far that is ahead: another one would wait for all of it. What does not wait so long goes elsewhere."""
    assignment = Assignment(plan(2, bounds=WritesBounds(lead=10)))
    chain = [writes((Use.ROW, 1), changes=changes) for changes in (10, 1, 1, 1)]
    assert [one.owner for one in assign_all(assignment, *chain)] == [0, 0, 0, 0]
    assert assignment.assign(Seqno(5), writes((Use.ROW, 2))).owner == 1
    assert assignment.assign(Seqno(6), writes((Use.ROW, 1))).owner == 0


@pytest.mark.parametrize(("changes", "owner"), [(1_000, 0), (1_030, 0), (1_040, 1)])
def test_of_two_with_as_much_the_one_with_the_last_of_it_has_it(changes: int, owner: int) -> None:
    """So the other one's group stays open. Not if it is ahead by more than a 32nd: then the less loaded."""
    assignment = Assignment(plan(2))
    log = [writes((Use.KEY, 1)), writes((Use.KEY, 2), changes=1_000), writes((Use.KEY, 1), changes=changes)]
    assert [one.owner for one in assign_all(assignment, *log)] == [0, 1, 0]
    assert assignment.assign(Seqno(4), writes((Use.ROW, 1), (Use.ROW, 2))).owner == owner


def test_without_what_to_wait_for_the_least_loaded_has_it() -> None:
    """Ties go to the lowest channel; what runs alone is no load."""
    log = [writes((Use.KEY, one), changes=changes) for one, changes in enumerate((1, 3, 2, 1, 1))]
    step = WriteSet(changes=1_000, kind=WriteKind.STEP)
    assert [one.owner for one in assign_all(Assignment(plan()), *log[:3], step, *log[3:])] == [0, 1, 2, SERIAL, 0, 0]


def test_a_transaction_without_changes_is_nobodys() -> None:
    assert Assignment(plan()).assign(Seqno(1), WriteSet(changes=0)) == Assigned(owner=NOBODY)


# --- what is serial ---

ODD = PlannedTable(table=ORDERS, keys=(1, 9))
TRIGGER = PlannedTable(table=ORDERS, keys=(1,), why="trigger note_all")
CASCADE = PlannedTable(table=ORDERS, why="ON DELETE CASCADE", serial_on=int(Operations.DELETE | Operations.REKEY))


@pytest.mark.parametrize(
    ("given", "one", "why"),
    [
        ({}, None, "its header has no write set"),
        ({}, WriteSet(changes=0, kind=WriteKind.STATEMENT), "a statement"),
        ({}, WriteSet(changes=5, kind=WriteKind.STEP), "a step of a load"),
        ({}, WriteSet(changes=5, kind=WriteKind.MANY), "more than 2000 values of keys"),
        ({"tables": ()}, writes(), "shop.orders: not in the plan"),
        (
            {},
            writes(tables=(WrittenTable(table=STOCK, keys=frozenset(), operations=Operations.INSERT),)),
            "shop.stock: without a key, or the first of it that capture saw",
        ),
        ({"missed": (ORDERS,)}, writes(), "shop.orders: a dependency was missed"),
        ({"tables": (ODD,)}, writes(), "shop.orders: a key of the target that the source does not tell"),
        ({"tables": (TRIGGER,)}, writes(), "shop.orders: trigger note_all"),
        ({"tables": (CASCADE,)}, writes(), ""),
        (
            {"tables": (CASCADE,)},
            writes(tables=(WrittenTable(table=ORDERS, keys=frozenset({1}), operations=ANYTHING),)),
            "shop.orders: ON DELETE CASCADE",
        ),
    ],
)
def test_what_makes_a_transaction_serial_is_named(given: dict[str, Any], one: WriteSet | None, why: str) -> None:
    assigned = Assignment(plan(**given)).assign(Seqno(1), one)
    assert assigned.why == why and (assigned.owner == SERIAL) == (why != "")
    # Where all run on channel 0 it is told all the same, and no section is opened.
    assert Assignment(plan(**given, alone=True)).assign(Seqno(1), one) == Assigned(owner=0, why=why or ALONE)


# --- plan points ---


def test_a_plan_begins_at_a_multiple_of_a_seqno_and_after_so_many_entries() -> None:
    assert [one.point for one in assign_all(Assignment(plan(bounds=WritesBounds(every=3))), *[writes()] * 3)] == [
        False,
        False,
        True,
    ]
    two = writes((Use.KEY, 1), (Use.ROW, 2))
    found = assign_all(Assignment(plan(bounds=WritesBounds(entries=4))), two, two, two)
    assert found[2] == Assigned(owner=SERIAL, point=True, why="a plan begins")
    assert not found[1].point


def test_a_plan_begins_where_the_targets_tables_may_change() -> None:
    for one in (None, WriteSet(changes=0, kind=WriteKind.STATEMENT)):
        assert Assignment(plan()).assign(Seqno(1), one).point
        assert not Assignment(plan(alone=True)).assign(Seqno(1), one).point, "nobody else applies anything"
    assert not Assignment(plan()).assign(Seqno(1), WriteSet(changes=1, kind=WriteKind.STEP)).point


def test_a_pipeline_without_a_plan_makes_one_at_its_next_transaction() -> None:
    assignment, run = resume(None, Seqno(4), lambda _: writes())
    assert not run
    assert assignment.assign(Seqno(5), writes()) == Assigned(owner=SERIAL, point=True, why="there is no plan yet")
    made = assignment.next_plan(Seqno(5), plan(4), [STOCK])
    assert made == plan(4, from_seqno=Seqno(5), missed=(STOCK,))


def stretch(given: WritesPlan, *log: WriteSet | None) -> WritesPlan:
    assignment = Assignment(given)
    assign_all(assignment, *log)
    return assignment.next_plan(Seqno(len(log)), plan(bounds=given.bounds))


def test_after_a_stretch_with_many_serial_ones_channel_0_runs_alone_and_after_one_with_few_all_do() -> None:
    many, row = WriteSet(changes=1, kind=WriteKind.MANY), writes((Use.KEY, 1))
    tenth = plan(bounds=WritesBounds(serial_in=10))
    load = WriteSet(changes=1, kind=WriteKind.STEP)
    assert not stretch(tenth, *[load] * 20, *[row] * 20).alone, "a load ends, and what follows it runs on all channels"
    assert not stretch(tenth, many, *[row] * 9).alone
    alone = stretch(tenth, many, many, *[row] * 18)
    assert not alone.alone, "two in twenty are one in ten"
    alone = stretch(tenth, many, many, *[row] * 17)
    assert alone.alone
    assert stretch(alone, many, many, *[row] * 17).alone
    assert not stretch(alone, many, *[row] * 19).alone


def test_a_stretch_on_channel_0_alone_is_short() -> None:
    """A few statements at once are no reason to run long without the other channels."""
    statement, row = WriteSet(changes=0, kind=WriteKind.STATEMENT), writes((Use.KEY, 1))
    alone = stretch(plan(), *[row] * 300, statement, statement)
    assert (alone.alone, alone.bounds.every) == (True, 2_048)
    assigned = assign_all(Assignment(alone), *[row] * 2_048)
    assert [at for at, one in enumerate(assigned, 1) if one.point] == [2_048]
    assert stretch(alone, *[row] * 2_048).alone is False
    assignment = Assignment(alone)
    assign_all(assignment, *[row] * 2_048)
    assert assignment.next_plan(Seqno(2_048), plan()).bounds == WritesBounds(), "then a stretch is as long as before"
    few = plan(bounds=WritesBounds(every=50, serial_in=20))
    assert stretch(few, *[statement] * 20).bounds.every == 20, "long enough to be judged"


def test_a_stretch_too_short_to_be_judged_counts_for_the_next_one() -> None:
    """Statements may follow each other closely: each ends a stretch."""
    statement, row = WriteSet(changes=0, kind=WriteKind.STATEMENT), writes((Use.KEY, 1))
    once = stretch(plan(bounds=WritesBounds(serial_in=10)), *[row] * 4, statement)
    assert (once.alone, once.counted, once.serial) == (False, 5, 1)
    twice = stretch(once, *[row] * 4, statement)
    assert (twice.alone, twice.counted, twice.serial) == (True, 0, 0)
    assert stretch(twice, row).alone, "as long as nothing else is known"


def pairs(chance: random.Random, values: int, count: int) -> list[WriteSet]:
    """Each of `count` transactions changes two rows of `values`."""
    return [writes(*[(Use.ROW, key) for key in chance.sample(range(values), 2)], changes=2) for _ in range(count)]


def test_where_channels_wait_for_each_other_the_stretch_ends_and_channel_0_runs_alone() -> None:
    chance, bounds = random.Random(1), WritesBounds(judged=50, lead=4)
    crowd, apart = pairs(chance, 30, 200), pairs(chance, 100_000, 200)
    assigned = assign_all(Assignment(plan(bounds=bounds)), *crowd)
    assert next(at for at, one in enumerate(assigned, 1) if one.point) == 101
    alone = stretch(plan(bounds=bounds), *crowd[:101])
    assert (alone.crowded, alone.alone, alone.bounds, alone.why_alone) == (True, False, bounds, CROWDED)
    assert assign_all(Assignment(alone), *crowd) == [Assigned(owner=0, why=CROWDED)] * 200, "and no plan begins early"
    assert stretch(alone, *crowd).crowded and not stretch(alone, *apart).crowded
    assert stretch(alone, *apart[:40]).crowded, "as long as nothing else is known"
    assert not any(one.point for one in assign_all(Assignment(plan(bounds=bounds)), *apart))
    settled = [*crowd[:50], *apart[:100]] * 2
    assert not any(one.point for one in assign_all(Assignment(plan(bounds=bounds)), *settled)), "once is not enough"
    assert not stretch(plan(bounds=bounds), *apart).crowded
    assert not any(one.point for one in assign_all(Assignment(plan(1, bounds=bounds)), *crowd)), "of one channel"
    never = plan(bounds=WritesBounds(judged=50, lead=4, commit=0))
    assert not any(one.point for one in assign_all(Assignment(never), *crowd))
    assert not Assignment(alone).next_plan(Seqno(1), never).crowded


def test_how_long_channels_take_counts_groups_and_commits() -> None:
    """A row change is one unit; what another waits for is committed before, and so is what a channel has that waits."""
    found = Estimate(2, commit=10, judged=4)
    assert found.gain() == 0

    def take(mark: int, channel: int, changes: int, latest: list[int]) -> int:
        found.take(channel, mark, changes, vec[i64](latest))
        return found.gain()

    take(3, 0, 30, [1, 0])
    assert take(4, 1, 30, [1, 0]) == 60 * 100 // 30, "the first places are none's to wait for"
    assert take(5, 1, 20, [3, 4]) == 80 * 100 // (30 + 10 + 20), "after the commits of both, at one time"
    assert not found.crowded
    assert take(6, 0, 40, [0, 5]) == 120 * 100 // (30 + 10 + 20 + 10 + 40), "after another one of channel 1"
    assert take(7, 0, 10, [0, 5]) == 130 * 100 // 120, "which has that transaction in the target by now"


def test_what_was_together_stays_together_in_the_next_plan() -> None:
    """Nothing waits for that: all before a plan point is in the target."""
    bounds = WritesBounds(touched=3, homes=2, judged=9)
    log = [writes((Use.ROW, key)) for key in (7, 8, 9)] * 10 + [writes((Use.ROW, 9)), writes((Use.ROW, 7))] * 2
    made = stretch(plan(bounds=bounds), *log)
    assert made.homes == ((7, 0), (9, 2)), "those that were touched most, of equals the lowest hash"
    assert WritesPlan.parse(made.text()) == made
    assigned = assign_all(
        Assignment(replace(made, from_seqno=Seqno(0))), *[writes((Use.ROW, 9)), writes((Use.KEY, 7))] * 2
    )
    assert [(one.owner, one.waits) for one in assigned] == [(2, ()), (0, ())] * 2
    both = Assignment(made).assign(Seqno(100), writes((Use.ROW, 7), (Use.ROW, 9)))
    assert (both.owner, both.waits) == (2, ())
    assert stretch(made, *[writes((Use.ROW, 4))] * 9).homes == (), "three channels, and one of them has it all"
    few = Assignment(made).next_plan(Seqno(1), plan(bounds=bounds))
    assert few.homes == made.homes, "a statement soon after the last plan changes nothing"
    assert Assignment(made).next_plan(Seqno(1), plan(2, bounds=bounds)).homes == (), "of other channels"


def test_a_plan_that_sees_what_comes_begins_with_what_belongs_together() -> None:
    """Eight warehouses of ten districts; one transaction in a hundred is of two of them."""
    chance = random.Random(7)

    def one() -> WriteSet:
        shop, other = chance.sample(range(8), 2)
        rows = [(Use.ROW, 100 * shop + chance.randint(1, 10)), (Use.ROW, 100 * shop + 20)][: chance.randint(1, 2)]
        return writes(
            *rows, *([(Use.ROW, 100 * other + chance.randint(1, 10))] if chance.random() < 0.01 else []), changes=9
        )

    ahead = [one() for _ in range(1_000)]
    waiting = []
    for seen in (ahead[:199], ahead):
        made = Assignment(None).next_plan(Seqno(0), plan(4), (), seen)
        assert WritesPlan.parse(made.text()) == made
        waiting.append(sum(bool(one.waits) for one in assign_all(Assignment(made), *ahead)))
    assert waiting[1] * 2 < waiting[0], waiting
    crowd = Assignment(None).next_plan(Seqno(0), plan(4), (), pairs(chance, 30, 1_000))
    assert crowd.crowded and not made.crowded
    never = plan(4, bounds=WritesBounds(commit=0))
    assert not Assignment(None).next_plan(Seqno(0), never, (), pairs(chance, 30, 1_000)).crowded


def test_a_table_whose_dependency_was_missed_stays_serial() -> None:
    assignment = Assignment(plan(missed=(STOCK,)))
    assert assignment.next_plan(Seqno(0), plan(), [ORDERS]).missed == (ORDERS, STOCK)


def test_the_plan_in_force_is_the_last_one_begun() -> None:
    plans = [plan(from_seqno=Seqno(at)) for at in (10, 30, 20)]
    found = [in_force(plans, Seqno(at)) for at in (9, 10, 19, 20, 40)]
    assert [None if one is None else one.from_seqno for one in found] == [None, 10, 10, 20, 30]
    assert in_force([], Seqno(1)) is None


def test_a_plan_is_stored_as_text() -> None:
    made = plan(tables=(ODD, TRIGGER, CASCADE), missed=(STOCK,), alone=True, filters="abc", counted=3, serial=1)
    assert WritesPlan.parse(made.text()) == made
    later = made.text().replace(f'"version":{RULE_VERSION}', f'"version":{RULE_VERSION + 1}')
    assert later != made.text()
    with pytest.raises(ConfigError, match=r"version 4; this release knows 3.*position anew"):
        WritesPlan.parse(later)
    for text in ("", "{}", "[1]", made.text()[:-1]):
        with pytest.raises(ConfigError, match="not of this release"):
            WritesPlan.parse(text)


def test_a_restart_assigns_as_whoever_went_on() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        log = [None, *map(write_set, draw(chance, 12, 3))]
        tables = tuple(PlannedTable(table=("s", str(key)), keys=(1,)) for key in range(3))
        given = plan(tables=tables, bounds=WritesBounds(lead=3, judged=chance.choice((4, 1_000))))
        going_on = Assignment(given)
        for position in range(len(log) - 1):
            again, _ = resume(given, Seqno(position), log.__getitem__)
            assigned = going_on.assign(Seqno(position + 1), log[position + 1])
            assert again.assign(Seqno(position + 1), log[position + 1]) == assigned, (seed, position)
            if assigned.point:
                break
            assert resume(given, Seqno(position + 1), log.__getitem__)[1] == (assigned.owner == SERIAL)
        assert resume(given, Seqno(0), log.__getitem__)[1], "a plan point is serial"


# --- passing over others' by the bytes of headers ---


def item_of(one: WriteSet) -> bytes:
    return encode_write_set(one.kind, one.changes, [(int(it.operations), it.keys) for it in one.tables], one.touches)


@pytest.mark.parametrize(
    ("given_plan", "judged"),
    [({}, 1_000), ({"alone": True}, 1_000), ({"crowded": True}, 1_000), ({"homes": ((1, 0), (4, 1))}, 1_000), ({}, 20)],
)
def test_a_channel_passes_what_it_would_skip_and_goes_on_as_one_that_passes_nothing(
    given_plan: dict[str, Any], judged: int
) -> None:
    """No plan point, no critical shard, nothing that waits for something in its group, nothing that was not learned."""
    passed = held = read = 0
    for seed in range(20):
        chance = random.Random(seed)
        log = [
            WriteSet(changes=1, kind=WriteKind.STEP)
            if chance.random() < 0.05
            else writes(*[(chance.choice(list(Use)), chance.randrange(9)) for _ in range(chance.randint(0, 3))])
            for _ in range(60)
        ]
        given = plan(2, **given_plan, bounds=WritesBounds(every=50, lead=3, serial_in=2, judged=judged))
        every, one = Assignment(given), Assignment(given)
        channel = seed % 2
        passing = one.passing(channel, frozenset({b"critical"}))
        assert passing is not None
        walk = WritesWalk(channel=channel, channels=2, position=Seqno(0), run=False)
        for seqno, its in enumerate(log, 1):
            shard = b"critical" if chance.random() < 0.05 else b""
            names, item = tuple(table.table for table in its.tables), item_of(its)
            told: WriteSet | str = "critical" if shard and its.kind is WriteKind.ROWS else its
            assigned = every.assign(Seqno(seqno), told)
            walk.learn({1 - channel: Seqno(seqno - 1)})
            verdict = walk.step(Seqno(seqno), assigned)
            passing.published = walk.published
            if not walk.run and passing.passes(seqno, shard, names, item):
                assert isinstance(verdict, Skip) and not assigned.point, (seed, seqno)
                passed += 1
            else:
                assert walk.run or not passing.passes(seqno, shard, names, item), "asking again changes nothing"
                own = passing.assign(seqno, shard, names, item)
                if own is None:
                    assert one.assign(Seqno(seqno), told) == assigned, (seed, seqno)
                else:
                    read += 1
                    assert Assigned(owner=own[0], waits=own[1], why=given.why_alone) == assigned, (seed, seqno)
                held += isinstance(verdict, Publish) and assigned.owner == 1 - channel
                if assigned.owner >= 0 and assigned.why in ORDINARY:
                    passing.learn(names, item)
            if isinstance(verdict, Publish):
                walk.published_up_to(walk.passed)
            walk.pass_by(Seqno(seqno), assigned)
            if assigned.point:
                today = plan(2)
                assert one.next_plan(Seqno(seqno), today) == every.next_plan(Seqno(seqno), today)
                break
    assert passed > 100 and (given_plan or (held > 10 and read > 100))


def test_what_is_no_whole_write_set_is_not_passed() -> None:
    given = writes((Use.KEY, 5), (Use.ROW, 6), (Use.REFERENCE, 7))
    passing = Assignment(plan(2, bounds=WritesBounds(lead=-1))).passing(1, frozenset())
    assert passing is not None
    item = item_of(given)
    passing.learn((ORDERS,), item)
    for end in range(len(item)):
        assert not passing.passes(1, b"", (ORDERS,), item[:end])
    assert not passing.passes(1, b"", None, item) and not passing.passes(1, b"", (STOCK,), item)
    assert not passing.passes(1, b"", (ORDERS,), item_of(writes(kind=WriteKind.STEP)))
    assert passing.passes(1, b"", (ORDERS,), item), "channel 0 has the first"
    assert not passing.passes(2, b"", (ORDERS,), item_of(writes())), "and this one the next"
    assert Assignment(None).passing(0, frozenset()) is None


# --- the model ---


@pytest.mark.parametrize(
    ("channels", "given", "share"),
    few_of(
        [
            (2, {}, 1),
            (2, {"every": 2, "changing": True}, 10),
            (2, {"planned": False, "every": 3}, 20),
            (2, {"tokens": False}, 40),
            (2, {"judged": 2, "every": 3}, 20),
            (2, {"touched": 1, "every": 2, "judged": 1}, 20),
            (3, {}, 80),
            (3, {"every": 2, "changing": True}, 120),
        ],
        3,
    ),
)
def test_the_rules_hold(channels: int, given: dict[str, Any], share: int, effort: Any) -> None:
    """All logs of 3 transactions over 2 keys, each key none, K, U or R, or the whole serial; else one in `share`."""
    share = effort(300 * channels**2, share, 1)
    states = 0
    for log in itertools.islice(logs(3, 2), 7, None, share):
        model = Model(log, channels, **given)
        try:
            model.explore()
        except Broken as exc:
            raise Broken(f"log {log} on {channels} channels, {given}: {exc}") from exc
        states += model.states
    assert states > 100


def test_the_rules_hold_on_longer_logs(effort: Any) -> None:
    """Of 4 and 5 transactions over 3 keys, in `make unit` of 3."""
    lengths = effort((3,), (4, 5), (4, 5))
    for seed in range(effort(3, 8, 3_000)):
        model = drawn(seed, lengths=lengths)
        try:
            model.explore()
        except Broken as exc:
            raise Broken(f"seed {seed}, log {model.log}: {exc}") from exc


def test_every_log_is_among_them() -> None:
    assert len(list(logs(2, 1))) == 5**2
    found = list(logs(2, 2))
    assert (("KU", "-R") in found) != (("UK", "R-") in found), "they differ in the names of the keys"


def test_what_a_header_did_not_tell_is_found_and_ends_right_or_not_at_all(effort: Any) -> None:
    for seed in range(effort(5, 30, 5_000)):
        drawn_lie(seed).explore()


def test_a_conflict_that_others_were_missing_for_passes_and_one_that_came_too_late_ends() -> None:
    """The second transaction says nothing of the key that the first one touches."""
    early = Lying(("K-", "U-"), ("K-", "-U"), 2)
    early.explore()
    assert early.missed and not early.believed
    late = Lying(("R-", "K-"), ("R-", "-K"), 2)
    late.explore()
    assert late.believed


def test_a_conflict_of_a_serial_transaction_is_believed_at_once() -> None:
    walk = WritesWalk(channel=0, channels=3, position=Seqno(4), run=False)
    assert walk.doubt(Seqno(5), Assigned(owner=SERIAL)) is None
    wait = walk.doubt(Seqno(5), Assigned(owner=0))
    assert wait is not None and (wait.channels, wait.seqno) == ((1, 2), 4)
    walk.learn({1: Seqno(4), 2: Seqno(9)})
    assert walk.doubt(Seqno(5), Assigned(owner=0)) is None


# --- each rule is needed ---

FIRST, ROUNDS = 28, 20


@pytest.mark.long
@pytest.mark.parametrize(("mutant", "what"), [pytest.param(one, what, id=one.name) for one, what in WRITE_SETS.items()])
def test_without_a_rule_the_model_finds_what_breaks(mutant: Mutant, what: str, tmp_path: Path) -> None:
    found = run_rounds("writes_rounds", mutant, tmp_path, rounds=ROUNDS, first=FIRST)
    assert found.caught_in is not None, f"{mutant.what}: not seen in {ROUNDS} rounds"
    assert found.what.startswith(tuple(what.split("|"))), found


@pytest.mark.long
def test_with_all_of_them_it_finds_nothing_in_the_same_rounds(tmp_path: Path) -> None:
    found = run_rounds("writes_rounds", None, tmp_path, rounds=ROUNDS, first=FIRST)
    assert found.caught_in is None, found
