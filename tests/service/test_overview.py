"""What a channel is said to be doing, and how fast, from two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tranlog.errors import LogError, TargetError
from tranlog.ids import Epoch, Seqno
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.by_writes import WritesPlan
from tranlog.pipeline.rules.progress import ChannelStats, Counters, InFlight, Lag, ShardCount, Waiting
from tranlog.pipeline.rules.states import OperationState, PendingError, State
from tranlog.pipeline.status.status import (
    ChannelState,
    Doing,
    LogState,
    PipelineState,
    Status,
    channel_states,
    wait_text,
    waits_of,
)
from tranlog.pipeline.status.view import TaskView, pipeline_status
from tranlog.service.show.overview import Overview, overview_of, pace, report
from tranlog.target.options import TargetOptions
from tranlog.target.target import ChannelRow

ONLINE = OperationState(
    pipeline="p",
    state=State.ONLINE,
    began_ms=500,
    since_ms=1_000,
    applied_seqno=5,
    committed_seqno=5,
    limit="",
    left_out="",
    pending=None,
    waits=(),
)


def row(
    channel: int, applied: int, *, waiting: Waiting | None = None, section: bool = False, **counts: int
) -> ChannelRow:
    stats = ChannelStats(latency_ms=40 + channel, section=section, waiting=waiting)
    stats.shards = {f"shard {channel}": ShardCount(counts.get("transactions", 0), applied, 40 + channel, f"e{applied}")}
    return ChannelRow(
        channel=channel,
        applied_seqno=Seqno(applied),
        epoch=Epoch(1),
        event_id=f"e{applied}",
        stats=stats.text(Counters(**counts)),
    )


LOG = LogState(directory="log", first_seqno=0, last_seqno=100, committed_seqno=100, epoch=Epoch(1))
OPTIONS = ApplyOptions(pipeline="p", log_dir="log", target=TargetOptions(kind="sqlite", path="copy.db"))


def channels(*rows: ChannelRow, running: bool | None = True, **more: Any) -> tuple[ChannelState, ...]:
    return channel_states(rows, now_ms=5_000, running=running, **more)


def tasks(*rows: ChannelRow, running: bool | None = True, **more: Any) -> tuple[TaskView, ...]:
    pipeline = PipelineState(options=OPTIONS, running=running, channels=channels(*rows, running=running, **more))
    return pipeline_status(Status(now_ms=5_000, pipeline=pipeline)).tasks


def at(
    monotonic_s: float,
    *rows: ChannelRow,
    committed: int = 100,
    last: int = 100,
    state: OperationState = ONLINE,
    process: str = "here pid 1",
    in_flight: Mapping[int, InFlight] | None = None,
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Overview:
    resting = state.state.resting
    pipeline = PipelineState(
        options=OPTIONS,
        target="copy.db",
        running=not resting,
        channels=channels(*rows, running=not resting, committed_seqno=committed, in_flight=in_flight),
        lag=Lag(seqnos=1, ms=70),
        notes=notes,
    )
    given: dict[str, Any] = {
        "service": "shop",
        "source": "sqlite shop.db",
        "log": replace(LOG, last_seqno=last, committed_seqno=committed),
        "pipeline": pipeline,
        "process": state,
        "now_ms": 5_000,
        "monotonic_s": monotonic_s,
        **more,
    }
    return overview_of(Status(**given), OPTIONS, process=process)


def doings(before: Overview | None, now: Overview) -> dict[int, Doing]:
    return {one.channel: one.doing for one in pace(before, now).channels}


def test_what_is_noted_of_tables_is_told() -> None:
    notes = ("s.t waits for a load since the gap of seqno 8",)
    assert at(10, row(0, 50), notes=notes).notes == notes


def test_what_each_channel_does() -> None:
    before = at(10, row(0, 50), row(1, 50), row(2, 50), row(3, 50), row(4, 100), row(5, 90, transactions=1))
    now = at(
        12,
        row(0, 60, transactions=10, changes=30, section=True),
        row(1, 60, transactions=4, changes=6),
        row(2, 60, skipped=10),
        row(3, 50),
        row(4, 100),
        row(5, 90, transactions=1, waiting=Waiting(95, True, (0,))),
    )
    assert doings(before, now) == {
        0: Doing.SERIAL,
        1: Doing.APPLYING,
        2: Doing.READING,
        3: Doing.STANDING,
        4: Doing.IDLE,
        5: Doing.WAITING,
    }
    told = pace(before, now)
    assert [one.transactions_per_s for one in told.channels] == [5, 2, 0, 0, 0, 0]
    assert [one.changes_per_s for one in told.channels] == [15, 3, 0, 0, 0, 0]
    assert (told.transactions_per_s, told.changes_per_s, told.logged_per_s) == (7, 18, 0)


def test_a_large_transaction_is_applied_while_its_channel_says_how_far_it_is() -> None:
    """It moved no position and counted nothing, and was said to stand."""
    large = InFlight(seqno=51, changes=7, read_bytes=1, size_bytes=9, began_at=1_000, written_at=4_000)
    stuck = msgspec.structs.replace(large, written_at=1_500)
    before = at(10, row(0, 50), row(1, 50), row(2, 50))
    now = at(12, row(0, 50, section=True), row(1, 50), row(2, 50), in_flight={0: large, 1: large, 2: stuck})
    assert doings(before, now) == {0: Doing.SERIAL, 1: Doing.APPLYING, 2: Doing.STANDING}
    assert doings(None, now)[1] is Doing.APPLYING
    assert [one.in_flight for one in now.channels] == [large, large, stuck]
    (task,) = tasks(row(0, 50), before=(row(0, 50),), watched_s=1.0, in_flight={0: large}, committed_seqno=100)
    assert (task.state, task.inFlightSeqno, task.inFlightChanges) == (Doing.APPLYING, 51, 7)
    (task,) = tasks(row(0, 50), committed_seqno=100)
    told = (task.inFlightSeqno, task.inFlightChanges, task.inFlightReadBytes, task.inFlightSizeBytes)
    assert told == (-1, -1, -1, -1)


def test_one_reading_tells_no_rates() -> None:
    now = at(12, row(0, 60, transactions=10), row(1, 100))
    told = pace(None, now)
    assert told.transactions_per_s is None and told.logged_per_s is None
    assert [one.doing for one in told.channels] == [Doing.READING, Doing.IDLE]


@pytest.mark.parametrize("state", [State.OFFLINE_NORMAL, State.OFFLINE_ERROR, State.START])
def test_whoever_is_offline_waits_for_nobody(state: State) -> None:
    """What a channel told last stays beside its position; it is no news once nothing runs."""
    now = at(12, row(1, 50, waiting=Waiting(95, True, (0,))), row(0, 50), state=replace(ONLINE, state=state))
    assert set(doings(None, now).values()) == {Doing.STOPPED}
    assert now.channels[0].waits == ""


def test_while_it_starts_nothing_stands() -> None:
    starting = replace(ONLINE, state=State.GOING_ONLINE)
    before, now = at(1, row(0, 50), state=starting), at(2, row(0, 50), state=starting)
    assert doings(before, now) == {0: Doing.STOPPED}
    assert doings(before, at(2, row(0, 60, skipped=10), state=starting)) == {0: Doing.READING}, "an old plan drains"


@pytest.mark.parametrize("then", [{"process": "here pid 2"}, {"monotonic_s": 12.0}])
def test_readings_that_cannot_be_compared(then: dict[str, Any]) -> None:
    """Another process has another clock; and a division by no time is none."""
    before = at(12, row(0, 50, transactions=10))
    now = at(**{"monotonic_s": 14.0, **then})
    now = msgspec.structs.replace(now, channels=at(1, row(0, 60, transactions=20)).channels)
    assert pace(before, now).transactions_per_s is None


def test_a_position_that_was_set_back_is_no_negative_rate() -> None:
    before, now = at(1, row(0, 50, transactions=10), last=100), at(2, row(0, 10, transactions=2), last=40)
    told = pace(before, now)
    assert told.transactions_per_s is None and told.logged_per_s is None


def test_where_the_time_went() -> None:
    before = at(1, row(0, 50, apply_us=1_000, wait_us=500))
    now = at(2, row(0, 60, transactions=1, apply_us=4_000, commit_us=1_000, wait_us=500))
    assert pace(before, now).channels[0].shares == {"apply": 0.75, "commit": 0.25}


def test_who_waits_is_told_until_those_waited_for_are_there() -> None:
    rows = [
        row(0, 9, waiting=Waiting(9, True, (1, 2, 3))),
        row(1, 8),
        row(2, 9),
        row(3, 8),
        row(4, 9, waiting=Waiting(10, True, (0,))),
        row(5, 9, waiting=Waiting(9, False, (2,))),
    ]
    assert waits_of(rows) == {0: Waiting(9, True, (1, 3)), 4: Waiting(10, True, (0,))}


@pytest.mark.parametrize(
    ("waiting", "channel", "text"),
    [
        (Waiting(9, True, (0,)), 3, "channel 0 to apply serial seqno 9"),
        (Waiting(9, True, (1, 2, 3, 7)), 0, "channels 1-3, 7 to apply seqno 9"),
        (Waiting(9, False, (2, 1)), 5, "channels 1-2 to come near seqno 9"),
    ],
)
def test_a_wait_in_words(waiting: Waiting, channel: int, text: str) -> None:
    assert wait_text(waiting, channel) == text


def test_status_tells_it_too() -> None:
    """`status -name tasks`: waitsFor, beside the ancestor's fields."""
    rows = row(0, 9), row(1, 9, waiting=Waiting(10, True, (0,)))
    assert [one.waitsFor for one in tasks(*rows)] == ["", "channel 0 to apply serial seqno 10"]
    assert [one.waitsFor for one in tasks(*rows, running=False)] == ["", ""]
    assert [one.state for one in tasks(*rows, running=None)] == ["NONE", "NONE"]


def test_what_channels_did_by_write_sets() -> None:
    rows = (
        row(0, 9, transactions=90, depended=20, held=5, wait_ms=1_500, serial=3),
        row(1, 9, transactions=110, depended=40, held=3),
    )
    pipeline = PipelineState(
        options=OPTIONS, running=True, channels=channels(*rows), writes=WritesPlan(from_seqno=Seqno(0), channels=2)
    )
    told = at(10, pipeline=pipeline).writes
    assert told == "by write sets: 30.0% depended on another channel, 4.0% waited, 1.5 s; 1.5% ran alone"
    reasons = ChannelStats(reasons={"shop.t: without a key": 2, "a statement": 1}).text(
        Counters(transactions=4, serial=3, missed=1)
    )
    one = replace(rows[0], stats=reasons)
    told = at(10, pipeline=replace(pipeline, channels=channels(one))).writes
    assert told.endswith("75.0% ran alone, 2 of them: shop.t: without a key; 1 missed dependencies")
    assert at(10, *rows).writes == ""


def test_a_task_says_what_it_does() -> None:
    """`status -name tasks`: state and rates, of two looks, of one, and while nothing runs."""
    before = (row(0, 50), row(1, 50), row(2, 100), row(3, 50))
    now = (row(0, 60, transactions=10, changes=30), row(1, 60, skipped=10), row(2, 100), row(3, 50))
    watched: dict[str, Any] = {"before": before, "watched_s": 2.0}
    twice = tasks(*now, **watched, committed_seqno=100)
    assert [one.state for one in twice] == [Doing.APPLYING, Doing.READING, Doing.IDLE, Doing.STANDING]
    assert [(one.rate, one.changeRate) for one in twice] == [(5, 15), (0, 0), (0, 0), (0, 0)]
    assert [one.state for one in tasks(*now, **watched)] == [one.state for one in twice]
    starting = tasks(*now, **watched, starting=True, committed_seqno=100)
    assert [one.state for one in starting] == [Doing.APPLYING, Doing.READING, Doing.STOPPED, Doing.STOPPED]
    once = tasks(*now, committed_seqno=100)
    assert [(one.state, one.rate) for one in once[1:3]] == [(Doing.READING, -1), (Doing.IDLE, -1)]
    stopped = tasks(*now, **watched, running=False, committed_seqno=100)
    assert {(one.state, one.rate) for one in stopped} == {(Doing.STOPPED, -1)}


def test_the_stats_keep_the_wait() -> None:
    stats = ChannelStats(waiting=Waiting(9, True, (1, 2)))
    assert ChannelStats.parse(stats.text(Counters(waits=3))) == stats
    assert Counters.parse(stats.text(Counters(waits=3))).waits == 3


def test_it_travels_as_json_and_the_slowest_shards_come_first() -> None:
    error = PendingError(type="ConflictError", message="no", seqno=7, event_id="e7")
    now = at(
        1, row(0, 50), row(1, 60), row(2, 55), state=replace(ONLINE, pending=error), problems={"log": LogError("away")}
    )
    assert [one.shard for one in now.shards] == ["shard 2", "shard 1", "shard 0"]
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(now)), Overview) == now
    assert (now.applied_seqno, now.pending.seqno if now.pending else None) == (50, 7)


def test_a_report_has_both() -> None:
    before, now = at(1, row(0, 50)), at(3, row(0, 60, transactions=10), last=104)
    shown = report(before, now)
    assert shown["logged_per_s"] == 2 and shown["transactions_per_s"] == 5
    channels: Any = shown["channels"]
    (channel,) = channels
    assert channel["applied_seqno"] == 60 and channel["doing"] == "applying"


def test_without_log_and_target_there_is_still_a_state() -> None:
    now = at(1, log=None, pipeline=None, problems={"target": TargetError("away"), "log": LogError("away")})
    assert (now.committed_seqno, now.applied_seqno, now.channels) == (5, 5, ())
    assert (now.target, now.lag_ms, now.problems) == ("sqlite", None, ("target: away", "log: away"))
