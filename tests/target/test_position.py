"""The three tables at every kind of target: tokens, claims, meetings, assignments."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fix_folder import open_target
from fix_target import databases, session_of
from tranlog.errors import ReplacedError, TargetPositionError
from tranlog.ids import Epoch, Seqno
from tranlog.target.once import STATEMENT_TABLE
from tranlog.target.options import TargetOptions
from tranlog.target.position import OUR_TABLES
from tranlog.target.session import MissingTableError
from tranlog.target.target import Advance, ChannelRow, Target


@pytest.fixture
def target(options: TargetOptions) -> Iterator[Target]:
    opened = open_target(options)
    opened.positions.ensure_tables()
    yield opened
    opened.close()


@pytest.fixture
def other(options: TargetOptions) -> Iterator[Target]:
    """A second connection to the same database."""
    opened = open_target(options)
    yield opened
    opened.close()


def take(target: Target, expected: int, channels: int = 2, holder: str = "driver", **more: object) -> int:
    arguments: dict[str, object] = {
        "pipeline": "p",
        "expected_token": expected,
        "holder": holder,
        "channels": channels,
        "shard_rule": "rule",
        "rows": [ChannelRow(channel=i, applied_seqno=Seqno(9)) for i in range(channels)],
        "keep_assignment": True,
    }
    return target.positions.take(**{**arguments, **more})  # type: ignore[arg-type]


def advance(token: int, old: int, new: int, channel: int = 0) -> Advance:
    return Advance(
        pipeline="p",
        channel=channel,
        token=token,
        old_seqno=Seqno(old),
        new_seqno=Seqno(new),
        epoch=Epoch(3),
        source_id="s",
        event_id=f"e{new}",
        tstamp=77,
        stats='{"n": 1}',
    )


def test_reading_where_nothing_is(options: TargetOptions) -> None:
    """A target that no pipeline ever used has no rows, and no tables either."""
    target = open_target(options)
    assert target.positions.read_pipeline("p") is None
    assert target.positions.read_channels("p") == []
    assert target.positions.read_assignment("p") == {}
    target.positions.ensure_tables()
    target.positions.ensure_tables()
    assert target.positions.read_pipeline("p") is None
    assert target.positions.meet("p").token == 0
    target.close()
    target.close()


def test_what_take_writes_is_what_is_read(target: Target) -> None:
    rows = [
        ChannelRow(
            channel=0, epoch=Epoch(2), applied_seqno=Seqno(41), source_id="db", event_id="e", stats='{"a":1}', tstamp=5
        ),
        ChannelRow(channel=1),
    ]
    assert take(target, 0, rows=rows) == 1
    pipeline = target.positions.read_pipeline("p")
    assert pipeline is not None
    assert (pipeline.pipeline, pipeline.token, pipeline.holder, pipeline.channels) == ("p", 1, "driver", 2)
    assert (pipeline.shard_rule, pipeline.stop_at_seqno) == ("rule", None)
    assert pipeline.alive_at > 1_700_000_000_000
    first, second = target.positions.read_channels("p")
    assert replace(first, token=0, updated_at=0) == rows[0]
    assert replace(second, token=0, updated_at=0) == rows[1]
    assert target.positions.read_channels("other") == []


def test_only_one_of_two_drivers_takes_the_pipeline(target: Target, other: Target) -> None:
    assert take(target, 0, holder="a") == 1
    with pytest.raises(ReplacedError, match="taken over by a"):
        take(other, 0, holder="b")
    assert take(other, 1, holder="b") == 2
    with pytest.raises(ReplacedError, match="taken over by b"):
        take(target, 1, holder="a")
    with pytest.raises(ReplacedError, match="taken over by b"):
        target.positions.keep_alive(pipeline="p", token=1)
    with pytest.raises(ReplacedError, match="taken over by b"):
        target.positions.request_stop(pipeline="p", token=1, stop_at_seqno=None)
    assert other.positions.keep_alive(pipeline="p", token=2).holder == "b"


def test_a_new_driver_shuts_out_every_earlier_task(target: Target, other: Target) -> None:
    """design: the driver "raises the pipeline's token and all channels' in one transaction"."""
    take(target, 0)
    claimed = target.positions.claim(pipeline="p", channel=0, driver_token=1)
    target.positions.publish(advance(claimed.token, 9, 12))
    take(other, 1, rows=None)
    with pytest.raises(ReplacedError):
        target.positions.publish(advance(claimed.token, 12, 13))
    with pytest.raises(ReplacedError):
        target.positions.claim(pipeline="p", channel=0, driver_token=1)
    again = other.positions.claim(pipeline="p", channel=0, driver_token=2)
    assert (again.applied_seqno, again.epoch, again.event_id, again.stats) == (12, 3, "e12", '{"n": 1}')
    assert again.token > claimed.token


def test_a_second_attempt_of_a_task_shuts_out_the_first(target: Target, other: Target) -> None:
    take(target, 0)
    first = target.positions.claim(pipeline="p", channel=1, driver_token=1)
    second = other.positions.claim(pipeline="p", channel=1, driver_token=1)
    assert second.token > first.token
    with pytest.raises(ReplacedError):
        target.positions.publish(advance(first.token, 9, 10, channel=1))
    other.positions.publish(advance(second.token, 9, 10, channel=1))
    with pytest.raises(ReplacedError):
        target.positions.claim(pipeline="p", channel=2, driver_token=1)  # not in this plan


@pytest.mark.parametrize("between", [1, 0], ids=["fewer channels", "none"])
def test_a_channel_that_comes_back_never_meets_an_old_token(target: Target, other: Target, between: int) -> None:
    """A task of the plan before last must not write, even where position and channel are the same again."""
    take(target, 0, channels=3)
    old = target.positions.claim(pipeline="p", channel=2, driver_token=1)
    take(other, 1, channels=between)
    assert [row.channel for row in other.positions.read_channels("p")] == list(range(between))
    take(other, 2, channels=3)
    new = other.positions.claim(pipeline="p", channel=2, driver_token=3)
    assert new.token > old.token + 1
    with pytest.raises(ReplacedError):
        target.positions.publish(advance(old.token, 9, 10, channel=2))


def test_a_stop_is_seen_at_the_next_meeting(target: Target) -> None:
    take(target, 0)
    assert target.positions.meet("p").stop_at_seqno is None
    target.positions.request_stop(pipeline="p", token=1, stop_at_seqno=Seqno(-1))
    assert target.positions.meet("p").stop_at_seqno == -1
    assert target.positions.keep_alive(pipeline="p", token=1).stop_at_seqno == -1
    target.positions.request_stop(pipeline="p", token=1, stop_at_seqno=None)
    token = target.positions.claim(pipeline="p", channel=1, driver_token=1).token
    target.positions.publish(advance(token, 9, 15, channel=1))
    meeting = target.positions.meet("p")
    assert (dict(meeting.applied), meeting.stop_at_seqno, meeting.token) == ({0: 9, 1: 15}, None, 1)
    target.positions.request_stop(pipeline="p", token=1, stop_at_seqno=Seqno(20))
    take(target, 1)
    assert target.positions.meet("p").stop_at_seqno is None


def test_shards_go_to_the_channel_with_the_fewest(target: Target, other: Target) -> None:
    take(target, 0, channels=3)
    chosen = [target.positions.assign(pipeline="p", shard=f"s{i}", channels=3, driver_token=1) for i in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]
    assert other.positions.assign(pipeline="p", shard="s4", channels=3, driver_token=1) == 1
    assert target.positions.read_assignment("p") == {f"s{i}": i % 3 for i in range(6)}
    take(other, 1, channels=3, keep_assignment=True)
    with pytest.raises(ReplacedError):
        target.positions.assign(pipeline="p", shard="s1", channels=3, driver_token=1)
    with pytest.raises(ReplacedError):
        target.positions.assign(pipeline="p", shard="new", channels=3, driver_token=1)
    assert other.positions.assign(pipeline="p", shard="s1", channels=3, driver_token=2) == 1
    take(other, 2, channels=3, keep_assignment=False)
    assert other.positions.read_assignment("p") == {}
    assert other.positions.assign(pipeline="p", shard="🦆 '\"", channels=3, driver_token=3) == 0


def test_tasks_that_assign_at_once_agree(options: TargetOptions, target: Target) -> None:
    """Every task meets every shard at about the same moment: one answer for each, and an even spread."""
    take(target, 0, channels=4)
    shards = [f"shard {i}" for i in range(12)]
    answers: list[dict[str, int]] = []
    start = threading.Barrier(4)

    def work(order: list[str]) -> None:
        mine = open_target(options)
        start.wait()
        answers.append({s: mine.positions.assign(pipeline="p", shard=s, channels=4, driver_token=1) for s in order})
        mine.close()

    threads = [threading.Thread(target=work, args=(shards[i * 3 :] + shards[: i * 3],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)
    assert target.positions.read_assignment("p") == answers[0]
    assert Counter(answers[0].values()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_tasks_that_claim_at_once_get_tokens_of_their_own(options: TargetOptions, target: Target) -> None:
    """Of many claims of one channel the last one counts, and only it can move the position."""
    take(target, 0)
    tokens: list[int] = []
    moved: list[int] = []
    start = threading.Barrier(4)

    def work() -> None:
        mine = open_target(options)
        start.wait()
        for _ in range(5):
            tokens.append(mine.positions.claim(pipeline="p", channel=0, driver_token=1).token)
        start.wait()
        try:
            mine.positions.publish(advance(max(tokens), 9, 10))
            moved.append(1)
        except ReplacedError:
            pass
        mine.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 20
    assert moved == [1]  # the position had moved for all others


def test_tables_are_made_by_many_at_once(options: TargetOptions) -> None:
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            start.wait()
            mine = open_target(options)
            mine.positions.ensure_tables()
            mine.close()
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_alive_at_moves(target: Target) -> None:
    take(target, 0)
    first = target.positions.keep_alive(pipeline="p", token=1).alive_at
    while target.positions.keep_alive(pipeline="p", token=1).alive_at == first:
        pass
    assert target.positions.keep_alive(pipeline="p", token=1).alive_at > first


@databases
def test_a_shard_is_not_assigned_while_some_are_missing(target: Target, options: TargetOptions) -> None:
    """Its own row may be among those that were removed, and it may have had another channel."""
    take(target, 0, channels=3)
    for shard in "abc":
        target.positions.assign(pipeline="p", shard=shard, channels=3, driver_token=1)
    row = target.positions.read_pipeline("p")
    assert row is not None and row.shards == 3
    session_of(target).run("DELETE FROM tranlog_shard WHERE shard = 'b'")
    assert target.positions.assign(pipeline="p", shard="a", channels=3, driver_token=1) == 0
    for shard in "bd":
        with pytest.raises(TargetPositionError, match="tranlog_shard has the channels of 2 shards, of 3"):
            target.positions.assign(pipeline="p", shard=shard, channels=3, driver_token=1)
    assert target.positions.read_assignment("p") == {"a": 0, "c": 2}
    take(target, 1, rows=None, channels=3, keep_assignment=False)
    again = target.positions.read_pipeline("p")
    assert again is not None and again.shards == 0
    assert target.positions.assign(pipeline="p", shard="b", channels=3, driver_token=2) == 0


@databases
def test_a_row_that_was_removed_is_no_successor(target: Target) -> None:
    """Who finds a row of another token has been replaced; who finds none has been robbed."""
    take(target, 0)
    first, second = (target.positions.claim(pipeline="p", channel=channel, driver_token=1) for channel in (0, 1))
    session_of(target).run("DELETE FROM tranlog_channel WHERE channel = 0")
    with pytest.raises(TargetPositionError, match=r"tranlog_channel has no row of its channel 0, of 2\."):
        target.positions.publish(advance(first.token, 9, 10))
    with pytest.raises(TargetPositionError):
        target.positions.claim(pipeline="p", channel=0, driver_token=1)
    target.positions.publish(advance(second.token, 9, 10, channel=1))
    with pytest.raises(ReplacedError):
        target.positions.claim(pipeline="p", channel=2, driver_token=1)
    session_of(target).run("DELETE FROM tranlog_pipeline")
    for lost in (
        lambda: target.positions.publish(advance(second.token, 10, 10, channel=0)),
        lambda: target.positions.claim(pipeline="p", channel=1, driver_token=1),
        lambda: target.positions.keep_alive(pipeline="p", token=1),
        lambda: target.positions.request_stop(pipeline="p", token=1, stop_at_seqno=None),
        lambda: target.positions.assign(pipeline="p", shard="a", channels=2, driver_token=1),
        lambda: take(target, 1),
    ):
        with pytest.raises(TargetPositionError, match="tranlog_pipeline has no row of it"):
            lost()
    assert take(target, 0, rows=None) == 2, "above the token of the row that was removed, whose tasks may be there"


@databases
@pytest.mark.parametrize("column", ["applied_seqno", "token", "stats"])
def test_a_column_that_was_renamed_is_named(target: Target, column: str) -> None:
    """No fault that passes: TransientTargetError and TargetUnavailableError are tried again, this is not."""
    take(target, 0)
    claimed = target.positions.claim(pipeline="p", channel=0, driver_token=1)
    session_of(target).run(f"ALTER TABLE tranlog_channel RENAME COLUMN {column} TO other")
    for broken in (
        lambda: target.positions.read_channels("p"),
        lambda: target.positions.publish(advance(claimed.token, 9, 10)),
        lambda: target.apply([], advance(claimed.token, 9, 10)),
        lambda: target.positions.claim(pipeline="p", channel=0, driver_token=1),
    ):
        with pytest.raises(TargetPositionError, match=rf"changed: .*{column}.*then start again: it continues from"):
            broken()
    session_of(target).run(f"ALTER TABLE tranlog_channel RENAME COLUMN other TO {column}")
    again = target.positions.claim(pipeline="p", channel=0, driver_token=1)
    target.positions.publish(advance(again.token, 9, 10))


@databases
def test_a_number_that_is_none_any_more_is_named(target: Target, options: TargetOptions) -> None:
    take(target, 0)
    run = session_of(target).run
    if options.kind == "postgres":
        run("ALTER TABLE tranlog_channel ALTER COLUMN applied_seqno TYPE text")
        target.reconnect()
    elif options.kind == "mariadb":
        run("ALTER TABLE tranlog_channel MODIFY applied_seqno varchar(20)")
    else:
        run("UPDATE tranlog_channel SET applied_seqno = 'nine'")
    with pytest.raises(
        TargetPositionError, match=r"a row of tranlog_channel has '(nine|9)' where a number was written"
    ):
        target.positions.read_channels("p")


@databases
def test_tables_that_are_missing_beside_positions_are_not_all_made(options: TargetOptions) -> None:
    """Where it is noted which statement has begun, nothing noted must not be taken for nothing begun."""
    target = open_target(options)
    target.positions.ensure_tables()
    take(target, 0)
    names = [name for name in sorted(OUR_TABLES) if options.kind == "mariadb" or name != STATEMENT_TABLE]
    for name in names:
        if name in ("tranlog_channel", "tranlog_pipeline"):
            continue
        session_of(target).run(f"DROP TABLE {name}")
        target.positions.ensure_tables()
        if name == STATEMENT_TABLE:
            with pytest.raises(MissingTableError):
                session_of(target).fetch(f"SELECT * FROM {name}")
            target.positions.ensure_tables(again=True)
        assert session_of(target).fetch(f"SELECT * FROM {name}") == []
    target.close()
