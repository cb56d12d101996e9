"""An operator's orders as the channels carry them out: limits told by headers, seqnos left out.

Channels run in threads on a real log and a real target; tests/spark and tests/service have the rest.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fix_effort import few_of
from fix_pipeline import (
    BY_SCHEMA,
    SqliteTarget,
    Threads,
    Workload,
    counters,
    items,
    positions,
    run_threads,
    take,
    tasks_for,
)
from tranlog.change import HEARTBEAT, Op, RowChange
from tranlog.errors import ReplacedError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.limits import UntilEvent, UntilHeartbeat, UntilTime, Watched
from tranlog.pipeline.rules.progress import ChannelStats, Counters
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target

FOUR = ShardPlan(channels=4)
SHARDS = ("north", "east", "south", "west")


def write_inserts(path: Path, number: int, *, beats: tuple[int, ...] = (), serial: tuple[int, ...] = ()) -> Seqno:
    """One row per transaction, its id the transaction's seqno, shard by shard; `beats` and `serial` are seqnos."""
    workload = Workload(seed=0)
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=4_000)
    with Log.open(str(path), source_id="test") as log:
        for seqno in range(int(log.last_seqno) + 1, number + 1):
            name = SHARDS[seqno % 4]
            changes = [RowChange(items(name), Op.INSERT, None, (seqno, 0, "x"))]
            if seqno in serial:
                changes.append(RowChange(items(SHARDS[(seqno + 1) % 4]), Op.INSERT, None, (seqno, 0, "x")))
            workload.transactions = seqno - 1  # event ids and times are those of the seqno
            if seqno in beats:
                workload.append(log, packer, [], ((HEARTBEAT, f"beat {seqno}"),))
            else:
                workload.append(log, packer, changes)
        log.commit()
        return log.last_seqno


@pytest.fixture
def target(tmp_path: Path) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", [items(name) for name in SHARDS])


def applied(target: SqliteTarget) -> set[int]:
    found = target.audit()
    assert set(found.values()) <= {1}, "applied twice"
    return {row for _, row, _ in found}


@pytest.mark.long
@pytest.mark.parametrize(
    ("watch", "last"),
    [
        (UntilTime(tstamp=1_700_000_000_000 + 70), 70),
        (UntilEvent(event_id="event 70"), 70),
        (UntilHeartbeat(), 41),
        (UntilHeartbeat(name="beat 81"), 81),
    ],
)
def test_all_channels_end_at_the_same_transaction(
    tmp_path: Path, target: SqliteTarget, watch: Watched, last: int
) -> None:
    write_inserts(tmp_path / "log", 120, beats=(41, 81), serial=(30, 31, 71))
    token = take(target.options, FOUR)
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=None, watch=watch))
    assert {(result.end, result.error) for result in results} == {(TaskEnd.LIMIT, None)}
    assert set(positions(target.options).values()) == {last}
    assert applied(target) == set(range(1, last + 1)) - {41, 81}


def test_a_limit_that_comes_later_ends_a_run_that_follows(tmp_path: Path, target: SqliteTarget) -> None:
    """What the log does not hold yet is watched for; and only behind what the driver has searched."""
    upto = write_inserts(tmp_path / "log", 50, beats=(20,))
    token = take(target.options, FOUR)
    running = Threads(
        tasks_for(target.options, tmp_path / "log", FOUR, token, until=None, watch=UntilHeartbeat(), watch_after=upto)
    )
    # The next writer begins with a no-op of its own, seqno 51.
    write_inserts(tmp_path / "log", 90, beats=(60,))
    running.join()
    assert set(positions(target.options).values()) == {60}


def leave_out(target: SqliteTarget, token: int, *ranges: tuple[int, int]) -> None:
    opened = open_target(target.options)
    opened.positions.leave_out(pipeline="p", token=token, ranges=ranges)
    opened.close()


def test_what_is_left_out_is_passed_and_recorded(tmp_path: Path, target: SqliteTarget) -> None:
    """Positions move over it, whoever owns it, serial ones and the first of a serial section among them."""
    last = write_inserts(tmp_path / "log", 60, serial=(20, 21, 22, 40))
    token = take(target.options, FOUR)
    leave_out(target, token, (5, 7), (20, 20), (40, 40), (60, 60))
    leave_out(target, token, (5, 7))  # asking twice is asking once
    run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=last))
    out = {5, 6, 7, 20, 40, 60}
    found = target.audit()
    assert {row for _, row, _ in found} == set(range(1, last + 1)) - out
    assert found == Counter(
        {
            (f"{SHARDS[(row + more) % 4]}.items", row, "INSERT"): 1
            for row in set(range(1, last + 1)) - out
            for more in ((0, 1) if row in (21, 22) else (0,))
        }
    )
    assert set(positions(target.options).values()) == {last}
    done = counters(target.options)
    assert done.omitted == len(out)
    assert done.transactions + done.omitted == last + 1
    assert done.skipped == (last + 1) * 3, "each of the others passed each transaction once"
    opened = open_target(target.options)
    assert opened.positions.read_left_out("p") == [(5, 7), (20, 20), (40, 40), (60, 60)]
    opened.close()


@pytest.mark.parametrize("cut", few_of([21, *range(0, 21, 7), *range(28, 49, 7)], 2))
def test_a_kill_while_leaving_out(tmp_path: Path, target: SqliteTarget, cut: int) -> None:
    """Nothing is applied twice, nothing else is missing, wherever the first run ends and the next takes over."""
    last = write_inserts(tmp_path / "log", 60, serial=(20, 40))
    first = take(target.options, FOUR)
    leave_out(target, first, (3, 10), (39, 41), (57, 60))
    tasks = tasks_for(target.options, tmp_path / "log", FOUR, first, until=None, bounds=GroupBounds(transactions=3))
    # Each channel is cut off in the middle of what it does: it moves its position so often, and then dies.
    for task in tasks:
        with Killed(task, target, moves=cut // 7) as channel:
            channel.run_to_death()
    second = take(target.options, FOUR)  # as a driver that starts after a kill: nobody asks for it again
    run_threads(tasks_for(target.options, tmp_path / "log", FOUR, second, until=last))
    assert applied_once(target) == set(range(1, last + 1)) - {*range(3, 11), 39, 40, 41, *range(57, 61)}
    assert set(positions(target.options).values()) == {last}
    done = counters(target.options)
    assert done.omitted == 15 and done.transactions + done.omitted == last + 1


def applied_once(target: SqliteTarget) -> set[int]:
    found = target.audit()
    assert set(found.values()) <= {1}, "applied twice"
    return {row for _, row, _ in found}


class Dead(BaseException):
    """What a kill looks like from inside: nothing is caught on the way, and nothing told."""


class Killed:
    """A channel that dies at its nth publication, before or behind the COMMIT by turns."""

    def __init__(self, task, target: SqliteTarget, *, moves: int) -> None:
        self._left = moves + 1
        self._channel = Channel(task, self._open, lambda: LogReader.open(task.options.log_dir))
        self._options = target.options

    def _open(self):
        opened = open_target(self._options)
        self.waiting = 0

        def dying(move):
            def moved(*given):
                self.count(before=True)
                done = move(*given)
                self.count(before=False)
                return done

            return moved

        def meet(pipeline: str, meet=opened.positions.meet):
            met = meet(pipeline)
            if self.waiting > 8:  # the others are not running: it would wait for ever
                raise Dead
            self.waiting += 1
            return met

        opened.apply = dying(opened.apply)  # type: ignore[method-assign]
        opened.positions.publish = dying(opened.positions.publish)  # type: ignore[method-assign]
        opened.positions.meet = meet  # type: ignore[method-assign]
        return opened

    def count(self, *, before: bool) -> None:
        self.waiting = 0
        if before == bool(self._left % 2):
            self._left -= 1
            if self._left <= 0:
                raise Dead

    def run_to_death(self) -> None:
        with pytest.raises(Dead):
            self._channel.run()

    def __enter__(self) -> Killed:
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()


def test_only_the_driver_leaves_out(tmp_path: Path, target: SqliteTarget) -> None:
    write_inserts(tmp_path / "log", 5)
    stale = take(target.options, FOUR)
    take(target.options, FOUR)
    with pytest.raises(ReplacedError):
        leave_out(target, stale, (1, 2))


def test_where_the_time_goes_and_what_each_shard_got(tmp_path: Path, target: SqliteTarget) -> None:
    """Counters stand beside the position; the shards' add up to the channel's."""
    last = write_inserts(tmp_path / "log", 80, serial=(30,), beats=(31,))
    token = take(target.options, FOUR)
    run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=last))
    opened = open_target(target.options)
    rows = opened.positions.read_channels("p")
    opened.close()
    shards: dict[str, int] = {}
    for row in rows:
        stats, done = ChannelStats.parse(row.stats), Counters.parse(row.stats)
        assert stats.since == 0 and not stats.section
        assert sum(one.transactions for one in stats.shards.values()) == done.transactions
        assert max(one.applied_seqno for one in stats.shards.values()) <= row.applied_seqno == last
        assert done.read_us > 0
        if done.changes:
            assert done.apply_us > 0 and done.commit_us > 0 and stats.block > 0 and stats.latency_ms > 0
        for name, one in stats.shards.items():
            shards[name] = shards.get(name, 0) + one.transactions
            assert one.event_id == ("" if one.applied_seqno == 0 else f"event {one.applied_seqno}")
    assert shards == {"#UNKNOWN": 3, "north": 20, "east": 20, "south": 19, "west": 19}
    assert sum(shards.values()) == last + 1 == 81


def test_stats_hold_the_most_recent_shards() -> None:
    stats = ChannelStats()
    for number in range(100):
        stats.count(f"shard {number}", 2, seqno=Seqno(number), event_id="e", latency_ms=1)
    stats.count("shard 50", 1, seqno=Seqno(100), event_id="e", latency_ms=1)
    text = stats.text(Counters(transactions=201))
    read = ChannelStats.parse(text)
    assert list(read.shards) == [f"shard {number}" for number in (*range(36, 50), *range(51, 100), 50)]
    assert read.shards["shard 50"].transactions == 3
    assert Counters.parse(text) == Counters(transactions=201)
    assert ChannelStats.parse("rubbish") == ChannelStats() == ChannelStats.parse("")
    assert ChannelStats().since == NO_SEQNO
