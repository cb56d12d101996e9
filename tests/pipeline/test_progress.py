"""What a start does with what the target and the log hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tranlog.errors import ConfigError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.pipeline.rules.channels import AssignmentRule, ShardPlan
from tranlog.pipeline.rules.progress import (
    Ahead,
    Counters,
    Drain,
    HeldElsewhere,
    InLog,
    Known,
    Lag,
    LostPosition,
    PurgedAway,
    Resubmissions,
    Run,
    StartPlan,
    check_pipeline_name,
    check_position,
    lag,
    nearest_limit,
    plan_start,
    restart_seqno,
    totals,
)
from tranlog.target.target import ChannelRow, PipelineRow


@dataclass(frozen=True)
class Header:
    epoch: Epoch
    event_id: str
    source_id: str = "s"
    tstamp: int = 0


FIRST, LAST = 10, 99


def header_at(seqno: Seqno) -> Header | None:
    """A log of seqnos 10 to 99, the first half of it of epoch 1."""
    return Header(Epoch(1 if seqno < 50 else 2), f"e{seqno}") if FIRST <= seqno <= LAST else None


def at(channel: int, seqno: int, *, epoch: int | None = None, event_id: str | None = None, stats="{}") -> ChannelRow:
    return ChannelRow(
        channel=channel,
        applied_seqno=Seqno(seqno),
        epoch=Epoch((1 if seqno < 50 else 2) if epoch is None else epoch),
        event_id=f"e{seqno}" if event_id is None else event_id,
        source_id="s",
        token=77,
        session="x",
        stats=stats,
    )


def pipeline(plan: ShardPlan, holder: str = "other", token: int = 5, shards: int = 0) -> PipelineRow:
    return PipelineRow(
        pipeline="p",
        token=token,
        holder=holder,
        channels=plan.channels,
        shard_rule=plan.text(),
        stop_at_seqno=None,
        alive_at=0,
        shards=shards,
    )


TWO = ShardPlan(channels=2)


def start(
    row: PipelineRow | None,
    rows: list[ChannelRow],
    wanted: ShardPlan = TWO,
    *,
    begin: int | None = None,
    alive: bool = False,
    take_over: bool = False,
    shards: int = 0,
    known: Known | None = None,
    others: dict[str, list[ChannelRow]] | None = None,
) -> StartPlan:
    return plan_start(
        pipeline=row,
        rows=rows,
        wanted=wanted,
        start=None if begin is None else Seqno(begin),
        first=Seqno(FIRST),
        header_at=header_at,
        alive=alive,
        take_over=take_over,
        shards=shards,
        known=known,
        others=others,
    )


def positions(plan: StartPlan) -> list[tuple[int, int, int]]:
    assert isinstance(plan, Run | Drain)
    return [(row.channel, row.applied_seqno, row.epoch) for row in plan.rows]


def test_a_fresh_start_begins_with_the_first_that_the_log_holds() -> None:
    plan = start(None, [])
    assert isinstance(plan, Run) and plan.expected_token == 0
    assert positions(plan) == [(0, 9, 0), (1, 9, 0)]


def test_a_fresh_start_begins_where_it_is_told_to() -> None:
    assert positions(start(None, [], begin=40)) == [(0, 39, 0), (1, 39, 0)]
    assert start(None, [], begin=9) == PurgedAway(channel=0, seqno=Seqno(9), first=Seqno(10))


def test_what_another_pipeline_has_applied_of_this_log_is_not_applied_again() -> None:
    """docs/operations.md, "A target that lost its position": the last row of its table."""
    others = {"first": [at(0, 60), at(1, 45)]}
    anew = replace(pipeline(TWO), channels=0)
    for row in (None, anew):
        refused = start(row, [], others=others)
        assert isinstance(refused, LostPosition)
        assert refused.why == "it has none there, and pipeline 'first' has applied this log there, up to seqno 60"
        assert '[pipeline] name = "first"' in refused.remedy and 'beside = ["first"]' in refused.remedy
    assert positions(start(None, [], others=others, begin=61)) == [(0, 60, 0), (1, 60, 0)]
    assert positions(start(pipeline(TWO), [at(0, 60), at(1, 45)], others=others)) == [(0, 60, 2), (1, 45, 1)]
    nothing, elsewhere = ChannelRow(channel=0, applied_seqno=Seqno(60)), replace(at(0, 60), source_id="another")
    for strange in (nothing, elsewhere, replace(at(0, 60), tstamp=1), at(0, 500)):
        assert isinstance(start(None, [], others={"first": [strange]}), Run)


def test_an_unchanged_plan_goes_on_from_each_position() -> None:
    plan = start(pipeline(TWO), [at(0, 60), at(1, 45)])
    assert isinstance(plan, Run) and plan.keep_assignment and plan.expected_token == 5
    assert positions(plan) == [(0, 60, 2), (1, 45, 1)]


def test_where_it_was_told_to_start_is_for_channels_without_a_position() -> None:
    """A start that the log has purged since is no reason to refuse a pipeline that stands far behind it."""
    assert positions(start(pipeline(TWO), [at(0, 60), at(1, 45)], begin=3)) == [(0, 60, 2), (1, 45, 1)]


def test_a_channel_without_a_position_starts_where_the_pipeline_was_told_to() -> None:
    """B7-20: the ancestor takes the least of the positions that there are, and loses what lies before.

    Told so for all by a reset, from --start on; for one by `tranlog position set`; and never by what others did.
    """
    anew = replace(pipeline(ShardPlan(channels=3)), channels=0)
    assert positions(start(anew, [], ShardPlan(channels=3), begin=20)) == [(0, 19, 0), (1, 19, 0), (2, 19, 0)]
    assert positions(start(anew, [])) == [(0, 9, 0), (1, 9, 0)]
    assert start(anew, [], begin=9) == PurgedAway(channel=0, seqno=Seqno(9), first=Seqno(10))
    refused = start(pipeline(ShardPlan(channels=3)), [at(1, 60)], ShardPlan(channels=3), begin=20)
    assert isinstance(refused, LostPosition)
    assert refused.why == "tranlog_channel has no row of its channels 0, 2, of 3"
    assert "`tranlog position set SEQNO --channel 0`" in refused.remedy


def known(upto: int | None, *, begun: bool = True, target: str = "") -> Known:
    return Known(upto=None if upto is None else Seqno(upto), begun=begun, target=target)


RESET = "`tranlog position reset`"
SET = "`tranlog position set SEQNO`"
SET_ONE = "`tranlog position set SEQNO --channel 0`"
NAME = "--pipeline NAME"
LOST = [
    # what the target has, and what the log knows: what is said, up to where it is known, which steps are named
    (None, [], 0, known(60), "it has no position of it any more", 60, [SET, RESET]),
    (None, [], 0, known(60, begun=False), "it has no position of it any more", 60, [SET, RESET]),
    (None, [], 0, known(9), "it has no position of it any more", 9, [SET, RESET]),  # it may have been further
    (None, [], 0, known(3), "it has no position of it any more", 3, [SET, RESET]),
    (None, [], 0, known(-1), "by the log's hold it had begun here", None, [SET, RESET]),
    (None, [], 0, known(None, begun=False), "the log's hold of it is there, damaged", None, [SET, RESET]),
    (
        None,
        [],
        0,
        known(60, target="b"),
        "is for another target, b, which has everything up to seqno 60",
        None,
        [NAME, SET],
    ),
    (None, [], 0, known(None, target="b"), "the log's hold of this name is for another target, b", None, [NAME, RESET]),
    (pipeline(TWO), [], 0, None, "no row of its channels 0, 1, of 2", None, [SET, RESET]),
    (pipeline(TWO), [], 0, known(60), "no row of its channels 0, 1, of 2", 60, [SET, RESET]),
    (pipeline(TWO), [at(1, 60)], 0, known(45), "no row of its channel 0, of 2", 45, [SET_ONE]),
    (pipeline(TWO), [at(1, 60)], 0, known(45, target="b"), "no row of its channel 0, of 2", None, [SET_ONE]),
    (pipeline(TWO), [at(0, 60), at(1, 60), at(2, 60)], 0, None, "and tranlog_pipeline says 2", None, [SET]),
    (
        None,
        [at(0, 60), at(1, 45)],
        0,
        known(45),
        "tranlog_pipeline, which tells by what plan, has no row",
        45,
        [SET_ONE],
    ),
    (None, [at(0, 60), at(1, 60)], 0, None, "tranlog_pipeline, which tells by what plan, has no row", None, [SET_ONE]),
    (pipeline(TWO, shards=3), [at(0, 60), at(1, 45)], 2, None, "the channels of 2 shards, of 3", None, [SET]),
    (pipeline(TWO, shards=3), [at(0, 60), at(1, 45)], 0, known(45), "from seqno 45 to 60", 45, [SET]),
]


@pytest.mark.parametrize(("row", "rows", "shards", "told", "why", "upto", "steps"), LOST)
def test_what_a_target_has_lost_is_refused(
    row: PipelineRow | None,
    rows: list[ChannelRow],
    shards: int,
    told: Known | None,
    why: str,
    upto: int | None,
    steps: list[str],
) -> None:
    """Whatever is missing, nothing begins at another place for it, and --start is no answer."""
    for wanted, begin in ((TWO, None), (TWO, 40), (ShardPlan(channels=3), None)):
        refused = start(row, rows, wanted, begin=begin, shards=shards, known=told)
        assert isinstance(refused, LostPosition) and why in refused.why and refused.upto == upto
        assert all(step in refused.remedy for step in steps)


WHOLE = [
    # what the target has, what the log knows: where each channel goes on
    (None, [], 0, None, [(0, 9, 0), (1, 9, 0)]),
    (None, [], 0, known(9, begun=False), [(0, 9, 0), (1, 9, 0)]),  # nobody says that anything was applied
    (replace(pipeline(TWO), channels=0), [], 0, known(60), [(0, 9, 0), (1, 9, 0)]),  # reset by its operator
    (replace(pipeline(TWO), channels=0), [], 0, known(60, target="b"), [(0, 9, 0), (1, 9, 0)]),
    (pipeline(TWO), [at(0, 60), at(1, 45)], 0, known(99), [(0, 60, 2), (1, 45, 1)]),  # a restored target is behind
    (pipeline(TWO), [at(0, 60), at(1, 45)], 0, known(20, target="b"), [(0, 60, 2), (1, 45, 1)]),  # it has moved
    (pipeline(TWO), [at(0, 60), at(1, 45)], 0, known(None), [(0, 60, 2), (1, 45, 1)]),
    (pipeline(TWO, shards=3), [at(0, 60), at(1, 45)], 3, known(45), [(0, 60, 2), (1, 45, 1)]),
    (pipeline(TWO, shards=3), [at(0, 60), at(1, 45)], 4, known(45), [(0, 60, 2), (1, 45, 1)]),
]


@pytest.mark.parametrize(("row", "rows", "shards", "told", "expected"), WHOLE)
def test_what_a_target_has_is_believed(
    row: PipelineRow | None,
    rows: list[ChannelRow],
    shards: int,
    told: Known | None,
    expected: list[tuple[int, int, int]],
) -> None:
    assert positions(start(row, rows, shards=shards, known=told)) == expected


def test_lost_assignments_are_made_anew_where_all_channels_stand_at_one_seqno() -> None:
    """Behind that seqno any division is as good as the one that was, so this one is provably safe."""
    plan = start(pipeline(TWO, shards=3), [at(0, 60), at(1, 60)], shards=2)
    assert isinstance(plan, Run) and not plan.keep_assignment and positions(plan) == [(0, 60, 2), (1, 60, 2)]
    assert plan.notes == ("tranlog_shard is not whole; all channels stand at one seqno, so shards are divided anew",)
    whole = start(pipeline(TWO, shards=3), [at(0, 60), at(1, 60)], shards=3)
    assert isinstance(whole, Run) and whole.keep_assignment and whole.notes == ()


WANTED = [
    ShardPlan(channels=3),
    ShardPlan(channels=1),
    ShardPlan(channels=2, rule=AssignmentRule.HASH),
    ShardPlan(channels=2, serial=frozenset({"a"})),
    ShardPlan(channels=2, mapping=(("a", 1),)),
]


@pytest.mark.parametrize("wanted", WANTED)
def test_another_plan_is_adopted_at_one_seqno(wanted: ShardPlan) -> None:
    rows = [at(0, 60, stats='{"changes": 3}'), at(1, 60, stats='{"changes": 4, "serial": 1}')]
    plan = start(pipeline(TWO), rows, wanted)
    assert isinstance(plan, Run) and plan.plan == wanted and not plan.keep_assignment
    assert positions(plan) == [(channel, 60, 2) for channel in range(wanted.channels)]
    assert {row.event_id for row in plan.rows} == {"e60"}
    counted = totals(plan.rows)
    assert counted == Counters(changes=7, serial=1), "what was done so far is not forgotten"


@pytest.mark.parametrize("wanted", WANTED)
def test_another_plan_waits_until_all_stand_at_one_seqno(wanted: ShardPlan) -> None:
    plan = start(pipeline(TWO), [at(0, 60), at(1, 45)], wanted)
    assert isinstance(plan, Drain) and plan.plan == TWO and plan.upto == 60
    assert positions(plan) == [(0, 60, 2), (1, 45, 1)]


def test_another_plan_over_channels_that_have_applied_nothing() -> None:
    rows = [ChannelRow(channel=0, applied_seqno=Seqno(9)), ChannelRow(channel=1, applied_seqno=Seqno(9))]
    assert positions(start(pipeline(TWO), rows, ShardPlan(channels=3))) == [(0, 9, 0), (1, 9, 0), (2, 9, 0)]


def test_a_driver_that_is_alive_is_left_alone() -> None:
    rows = [at(0, 60), at(1, 45)]
    assert start(pipeline(TWO), rows, alive=True) == HeldElsewhere(holder="other")
    assert isinstance(start(pipeline(TWO), rows, alive=True, take_over=True), Run)


def test_a_position_that_is_not_in_this_log_is_refused() -> None:
    """ "a re-created or cleared log never silently skips"."""
    for wrong, why in [
        (at(1, 100), "this log does not reach that far"),
        (at(1, 60, epoch=3), "in this log seqno 60 belongs to epoch 2"),
        (at(1, 60, event_id="other"), "in this log seqno 60 has event id 'e60', not 'other'"),
    ]:
        verdict = start(pipeline(TWO), [at(0, 60), wrong])
        assert verdict == Ahead(channel=1, gtid=Gtid(wrong.epoch, wrong.applied_seqno), why=why)


def test_a_position_that_was_overtaken_by_retention_is_refused() -> None:
    assert start(pipeline(TWO), [at(0, 60), at(1, 8)]) == PurgedAway(channel=1, seqno=Seqno(9), first=Seqno(10))
    nothing = ChannelRow(channel=1, applied_seqno=Seqno(5))
    assert start(pipeline(TWO), [at(0, 60), nothing]) == PurgedAway(channel=1, seqno=Seqno(6), first=Seqno(10))


def check(row: ChannelRow, first: int = FIRST) -> object:
    return check_position(row, first=Seqno(first), header_at=header_at)


def test_a_row_that_has_applied_nothing_is_exempt() -> None:
    assert check(ChannelRow(channel=0, applied_seqno=Seqno(500))) == InLog()


def test_a_log_that_begins_right_behind_the_position() -> None:
    """log-format.md: a new log starts "after the highest position that a target already holds, with a higher epoch"."""
    assert check(at(0, 9, epoch=1)) == InLog()
    assert check(at(0, 9, epoch=0, event_id="")) == InLog()
    assert check(at(0, 9, epoch=4)) == Ahead(
        channel=0, gtid=Gtid(Epoch(4), Seqno(9)), why="this log begins right after it in an earlier epoch, 1"
    )


def test_reading_resumes_at_the_least_position() -> None:
    assert restart_seqno([at(0, 60), at(1, 45), at(2, 70)]) == 45
    assert restart_seqno([]) == -1


def test_silence_is_no_lag() -> None:
    """asks 7: the lag is that of the first transaction not applied, not the time since the last one was."""
    assert lag(restart=Seqno(5), committed=Seqno(5), next_tstamp=None, now_ms=10**12) == Lag(seqnos=0, ms=0)
    assert lag(restart=Seqno(5), committed=Seqno(7), next_tstamp=1_000, now_ms=1_250) == Lag(seqnos=2, ms=250)
    assert lag(restart=Seqno(5), committed=Seqno(7), next_tstamp=2_000, now_ms=1_250) == Lag(seqnos=2, ms=0)


def test_the_nearest_limit() -> None:
    assert nearest_limit(None, None) is None
    assert nearest_limit(Seqno(3), None) == nearest_limit(None, Seqno(3)) == nearest_limit(Seqno(3), Seqno(9)) == 3


def test_counters_survive_the_target() -> None:
    one = Counters(transactions=3, changes=5, wait_ms=9)
    assert Counters.parse(one.text()) == one
    assert Counters.parse("") == Counters.parse("[1]") == Counters.parse("{") == Counters()
    assert Counters.parse('{"changes": 2, "later": 7, "serial": "x"}') == Counters(changes=2)


def test_a_job_is_submitted_again_only_while_that_helps() -> None:
    bounded = Resubmissions(allowed=2)
    assert [bounded.again([Seqno(1)]) for _ in range(3)] == [True, True, False]
    moving = Resubmissions(allowed=2)
    assert all(moving.again([Seqno(number // 2)]) for number in range(20))
    assert moving.total == 20


@pytest.mark.parametrize("name", ["", ".", ".x", "a/b", "a\\b", "a\nb", " a", "x" * 65, "node.b", "restore.b"])
def test_a_pipeline_needs_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match="pipeline"):
        check_pipeline_name(name)
    check_pipeline_name("shop-2.target")
