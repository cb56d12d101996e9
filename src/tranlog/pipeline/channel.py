"""One channel at work: read the log, take what is its own, apply it with the position, meet the others.

Owns the loop that runs as a long Spark task, and knows nothing of Spark: `run_task` runs anywhere, in a thread too.
What it may do next is `channels.Walk`'s decision; exactly once is the target's guarded update. The hard idea: what a
channel takes is a plain list until it commits, so nothing ever waits inside a target transaction, and whatever goes
wrong, all it has to do is to read its position again and start from there.

Source: design/pipeline.md, "Channels meet at the target", "Applying".
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

import msgspec

from tranlog.change import Change, Options, Statement
from tranlog.clock import Clock, SystemClock
from tranlog.errors import (
    ConfigError,
    ConflictError,
    DdlStopError,
    PayloadError,
    ReplacedError,
    TargetAheadError,
    TargetTableError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_EPOCH, NO_SEQNO, Seqno
from tranlog.log.format import RecordHeader
from tranlog.log.readable import ReadableCursor, ReadableLog, ReadableTransaction
from tranlog.payload import decode
from tranlog.pipeline.channels import SERIAL, Await, Finish, Publish, ShardPlan, Skip, Take, Verdict, Walk
from tranlog.pipeline.progress import Ahead, Counters, InLog, Purged, check_position, nearest_limit
from tranlog.target.target import Advance, ChannelRow, Meeting, Target, Unit
from tranlog.tungsten.translated import open_readable

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

logger = logging.getLogger(__name__)

_LOOK_EVERY = 256
"""Headers between two looks at the clock while the log has more."""
_POLL_FIRST_S = 0.0005
_POLL_MOST_S = 0.02
"""Sleeps between two readings of the meeting while waiting for other channels: short first, then rarer."""
_RETRY_FIRST_S = 0.01
_RETRY_MOST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBounds:
    """How many source transactions may share a target transaction: up to the first of these that is reached.

    Fewer, whenever the log has no more to give: a group never waits for company. A transaction of several fragments
    goes alone and is streamed; so memory is bounded by `bytes` and one fragment, decoded.
    """

    transactions: int = 300
    changes: int = 5_000
    bytes: int = 1 << 20
    seconds: float = 0.25

    def check(self) -> None:
        """Raise ConfigError for a bound that no group can keep."""
        for name, value in (
            ("transactions", self.transactions),
            ("changes", self.changes),
            ("bytes", self.bytes),
            ("seconds", self.seconds),
        ):
            if value <= 0:
                raise ConfigError(option=f"group_{name}", value=value, why="must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTask:
    """All that a task needs to know; it travels pickled to wherever Spark runs it.

    `until`: the last seqno to apply, inclusive; None: run on. `sync_interval_s` and `idle_every`: how long, and for
    how many transactions, a position may go unpublished. `retry_s`: how long to try to reach a target that is away.
    """

    pipeline: str
    driver_token: int
    channel: int
    plan: ShardPlan
    log_dir: str
    target: TargetOptions
    until: Seqno | None = None
    bounds: GroupBounds = field(default_factory=GroupBounds)
    sync_interval_s: float = 1.0
    idle_every: int = 10_000
    retry_s: float = 30.0
    checksum: bool = True


class TaskEnd(enum.StrEnum):
    """Why a task ended."""

    LIMIT = "limit"
    STOPPED = "stopped"
    REPLACED = "replaced"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task hands back. Spark carries exceptions as text, so `error` travels here, as the object it is."""

    channel: int
    end: TaskEnd
    applied_seqno: Seqno = NO_SEQNO
    error: TranlogError | None = None


def run_task(task: ChannelTask) -> TaskResult:
    """Run one channel until it reaches its limit, is told to stop, is replaced, or cannot go on.

    Raises nothing of ours: what cannot be cured by running the task again is in the result, and the other channels
    have been asked to stop. Anything else that it raises is a fault of the engine or of ours, and may be retried.
    """
    from tranlog.target.options import open_target

    with contextlib.closing(
        Channel(task, lambda: open_target(task.target), lambda: open_readable(task.log_dir, checksum=task.checksum))
    ) as channel:
        return channel.run()


def run_tasks(tasks: Iterable[ChannelTask]) -> Iterator[TaskResult]:
    """Run the tasks of one Spark partition, of which there is one."""
    for task in tasks:
        yield run_task(task)


class _Taken:
    """One transaction that was taken and is not committed yet; a stream is counted while it passes."""

    __slots__ = ("bytes", "changes", "header", "opens", "serial", "unit")

    def __init__(self, header: RecordHeader, unit: Unit, *, changes: int, serial: bool, opens: bool) -> None:
        self.header = header
        self.unit = unit
        self.changes = changes
        self.bytes = header.data_length
        self.serial = serial
        self.opens = opens
        """Whether it opens a serial section."""


class Channel:
    """The acting side of one channel. Threads: one."""

    def __init__(
        self,
        task: ChannelTask,
        open_target: Callable[[], Target],
        open_reader: Callable[[], ReadableLog],
        clock: Clock | None = None,
    ) -> None:
        self._task = task
        self._open_target = open_target
        self._open_reader = open_reader
        self._clock = SystemClock() if clock is None else clock
        self._target: Target | None = None
        self._reader: ReadableLog | None = None
        self._token = 0
        self._walk = Walk(channel=task.channel, channels=task.plan.channels, position=NO_SEQNO, run=False)
        self._owners: dict[str, int] = {}
        self._foreign: set[bytes] = set()  # shards of other channels, as headers have them
        self._cursor: ReadableCursor | None = None
        self._last: RecordHeader | None = None  # of the transaction at `passed`; None: the cursor knows it
        self._stop_at: Seqno | None = None
        self._group: list[_Taken] = []
        self._group_bytes = 0
        self._group_changes = 0
        self._group_since = 0.0
        self._stored = Counters()  # as they stand beside the position
        self._pending = Counters()  # what the group does not hold: no-ops, waits, what was only known afterwards
        self._next_sync = 0.0

    def run(self) -> TaskResult:
        """Work until there is a reason to end, starting again from the position after each passing failure."""
        clock, retry_s = self._clock, self._task.retry_s
        pause, failing_since, reached = _RETRY_FIRST_S, None, NO_SEQNO
        while True:
            try:
                with self._claim() as cursor:
                    return self._result(self._go(cursor))
            except (TransientTargetError, TargetUnavailableError) as exc:
                now = clock.monotonic()
                if failing_since is None or self._walk.published > reached:
                    pause, failing_since, reached = _RETRY_FIRST_S, now, self._walk.published
                if now - failing_since > retry_s:
                    return self._result(TaskEnd.FAILED, self._unavailable(exc))
                logger.warning("target failed channel=%d retry_in_s=%.2f why=%s", self._task.channel, pause, exc)
                clock.sleep(pause)
                pause = min(pause * 2, _RETRY_MOST_S)
                self._pending.retries += 1
                self._reconnect()
            except ReplacedError as exc:
                return self._result(TaskEnd.REPLACED, exc)
            except TranlogError as exc:
                self._ask_all_to_stop()
                return self._result(TaskEnd.FAILED, exc)

    def close(self) -> None:
        """Let go of the log and the target; closing twice is harmless."""
        if self._target is not None:
            self._target.close()
        if self._reader is not None:
            self._reader.close()

    def _result(self, end: TaskEnd, error: TranlogError | None = None) -> TaskResult:
        return TaskResult(channel=self._task.channel, end=end, applied_seqno=self._walk.published, error=error)

    def _unavailable(self, exc: TranlogError) -> TranlogError:
        if isinstance(exc, TargetUnavailableError):
            return exc
        where = "?" if self._target is None else self._target.describe()
        return TargetUnavailableError(where=where, why=f"{self._task.retry_s:g} s without success: {exc}")

    def _reconnect(self) -> None:
        try:
            if self._target is not None:
                self._target.reconnect()
        except (TransientTargetError, TargetUnavailableError):
            pass  # the claim that follows fails in the same way, and counts

    def _ask_all_to_stop(self) -> None:
        """Tell the other channels to end, since they may wait for this one; the driver reads why in the result."""
        try:
            if self._target is None:
                self._target = self._open_target()
            else:
                self._target.reconnect()
            token = self._task.driver_token
            self._target.request_stop(pipeline=self._task.pipeline, token=token, stop_at_seqno=NO_SEQNO)
        except TranlogError as exc:
            logger.warning("could not ask the other channels to stop channel=%d why=%s", self._task.channel, exc)

    # --- from the position ---

    def _claim(self) -> ReadableCursor:
        """Claim the channel and stand behind its position in the log."""
        task = self._task
        if self._reader is None:
            self._reader = self._open_reader()
        if self._target is None:
            self._target = self._open_target()
        elif self._token:
            row = next((r for r in self._target.read_channels(task.pipeline) if r.channel == task.channel), None)
            if row is None or row.token != self._token:
                raise self._replaced()  # another attempt of this task has it: leave it there
        row = self._target.claim(pipeline=task.pipeline, channel=task.channel, driver_token=task.driver_token)
        self._token = row.token
        header = self._check(self._reader, row)
        self._owners, self._foreign = {}, set()
        for shard, channel in self._target.read_assignment(task.pipeline).items():
            self._own(shard, channel)
        applied = row.epoch != NO_EPOCH or row.event_id != ""
        run = header is not None and applied and self._owner(header.shard_id) == SERIAL
        self._walk = Walk(
            channel=task.channel,
            channels=task.plan.channels,
            position=row.applied_seqno,
            run=run,
            limit=nearest_limit(task.until, self._stop_at),
        )
        self._stored = Counters.parse(row.stats)
        kept = self._pending
        self._pending = Counters(waits=kept.waits, wait_ms=kept.wait_ms, retries=kept.retries)
        self._drop_group()
        self._last = header
        cursor = self._reader.cursor(committed_only=True)
        cursor.seek(Seqno(row.applied_seqno + 1))
        self._cursor = cursor
        self._meet()
        return cursor

    def _check(self, reader: ReadableLog, row: ChannelRow) -> RecordHeader | None:
        """Return the header at the position. Raises when this log cannot go on behind it."""
        first = reader.range().first_seqno
        verdict = check_position(row, first=first, header_at=reader.header)
        match verdict:
            case InLog():
                return None if row.applied_seqno < first else reader.header(row.applied_seqno)
            case Ahead(channel=channel, gtid=gtid, why=why):
                raise TargetAheadError(pipeline=self._task.pipeline, channel=channel, gtid=gtid, why=why)
            case Purged(seqno=seqno):
                raise reader.purged(Seqno(seqno))
            case _:
                assert_never(verdict)

    def _replaced(self) -> ReplacedError:
        assert self._target is not None
        row = self._target.read_pipeline(self._task.pipeline)
        return ReplacedError(pipeline=self._task.pipeline, holder="another task" if row is None else row.holder)

    # --- whose is it? ---

    def _owner(self, shard: str) -> int:
        """Return the owner of a shard's transactions; a shard seen for the first time gets its channel here."""
        owner = self._owners.get(shard)
        if owner is None:
            owner = self._task.plan.owner(shard, {})
            if owner is None:
                owner = self._own(shard, self._assign(shard))
            self._note_owner(shard, owner)
        return owner

    def _assign(self, shard: str) -> int:
        assert self._target is not None
        task = self._task
        return self._target.assign(
            pipeline=task.pipeline, shard=shard, channels=task.plan.channels, driver_token=task.driver_token
        )

    def _own(self, shard: str, stored: int) -> int:
        owner = self._task.plan.owner(shard, {shard: stored})
        assert owner is not None
        if owner >= self._task.plan.channels:
            self._meet()  # raises ReplacedError where the row is a later plan's, and this task a replaced one
            why = f"stored in tranlog_shard, but there are {self._task.plan.channels} channels; delete that row"
            raise ConfigError(option=f"channel of shard {shard!r}", value=owner, why=why)
        self._note_owner(shard, owner)
        return owner

    def _note_owner(self, shard: str, owner: int) -> None:
        self._owners[shard] = owner
        if owner not in (SERIAL, self._task.channel):
            self._foreign.add(shard.encode())

    # --- the loop ---

    def _go(self, cursor: ReadableCursor) -> TaskEnd:
        walk, bounds, owners, foreign = self._walk, self._task.bounds, self._owners, self._foreign
        at, move_on, next_header, clock = walk.at, walk.move_on, cursor.next_header, self._clock
        look_at = walk.passed
        while True:
            if walk.done:
                return self._finish()
            if walk.passed >= look_at:
                look_at = Seqno(walk.passed + _LOOK_EVERY)
                now = clock.monotonic()
                late = self._group and now - self._group_since >= bounds.seconds
                if now >= self._next_sync or late or walk.passed - walk.published >= self._task.idle_every:
                    self._commit()
                    continue  # there may be a wish to stop
            if foreign and not walk.run:
                upto = min(look_at, Seqno(walk.published + self._task.idle_every))
                passed = cursor.pass_over(foreign, upto if walk.limit is None else min(upto, walk.limit))
                if passed > walk.passed:
                    walk.pass_others(passed)
                    self._last = None
                    if passed >= upto or walk.done:
                        look_at = passed
                        continue
            header = next_header(0.0)
            if header is None:
                if walk.owes:
                    self._commit()
                    continue
                header = next_header(max(0.0, self._next_sync - clock.monotonic()))
                if header is None:  # a sync interval without news
                    self._commit()
                    continue
            seqno = header.seqno
            owner = owners.get(header.shard_id)
            if owner is None:
                owner = self._owner(header.shard_id)
            verdict: Verdict = at(seqno, owner)
            while True:
                match verdict:
                    case Skip():
                        break
                    case Take():
                        if self._take(cursor, header, owner):
                            break
                        self._commit()  # what stands before it; then ask again, there may be a wish to stop
                    case Publish():
                        self._commit()
                    case Await():
                        self._wait(seqno, owner)
                    case Finish():
                        return self._finish()
                    case _:
                        assert_never(verdict)
                verdict = at(seqno, owner)
            move_on(seqno, owner)
            self._last = header
            if (
                len(self._group) >= bounds.transactions
                or self._group_changes >= bounds.changes
                or self._group_bytes >= bounds.bytes
                or walk.passed - walk.published >= self._task.idle_every
            ):
                self._commit()

    def _finish(self) -> TaskEnd:
        self._commit()
        return TaskEnd.STOPPED if self._stop_at == NO_SEQNO else TaskEnd.LIMIT

    def _take(self, cursor: ReadableCursor, header: RecordHeader, owner: int) -> bool:
        """Put a transaction into the group, as decoded changes or, of several fragments or spilled, as a stream.

        False: it must be alone in its target transaction, and the group is not empty; nothing was done.
        """
        transaction = cursor.current()
        serial = owner == SERIAL
        opens = serial and not self._walk.run
        if header.spilled or transaction.fragments > 1:
            if self._group:
                return False
            # Only a serial transaction has statements, and only those ask for the metadata, in the last fragment.
            metadata = _last_metadata(transaction) if serial else ()
            taken = self._put(header, metadata, transaction.changes, changes=0, serial=serial, opens=opens)
            taken.unit = msgspec.structs.replace(taken.unit, changes=lambda: _counting(transaction, taken))
            self._group_bytes = self._task.bounds.bytes  # commit it alone
            return True
        payload = transaction.payload()
        changes = payload.changes
        if not changes:
            self._pending += Counters(transactions=1, bytes=header.data_length, serial=int(serial), sections=int(opens))
            return True
        alone = serial and any(isinstance(change, Statement) for change in changes)
        if alone and self._group:
            return False
        self._put(header, payload.metadata, changes.__iter__, changes=len(changes), serial=serial, opens=opens)
        self._group_changes += len(changes)
        self._group_bytes += self._task.bounds.bytes if alone else header.data_length
        return True

    def _put(
        self,
        header: RecordHeader,
        metadata: Options,
        stream: Callable[[], Iterator[Change]],
        *,
        changes: int,
        serial: bool,
        opens: bool,
    ) -> _Taken:
        if not self._group:
            self._group_since = self._clock.monotonic()
        unit = Unit(
            seqno=header.seqno,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            tstamp=header.tstamp,
            metadata=metadata,
            changes=stream,
        )
        taken = _Taken(header, unit, changes=changes, serial=serial, opens=opens)
        self._group.append(taken)
        return taken

    def _drop_group(self) -> None:
        self._group = []
        self._group_bytes = self._group_changes = 0

    # --- at the target ---

    def _commit(self) -> None:
        """Apply the group, if any, and move the position to where the walk has come; then look at the meeting."""
        walk, group = self._walk, self._group
        if walk.passed > walk.published or self._pending.changes:
            if self._last is None:
                assert self._cursor is not None
                self._last = self._cursor.passed()
            last = self._last
            try:
                self._move(group, last, walk.passed)
            except (ConflictError, TargetTableError, DdlStopError):
                if len(group) < 2:
                    raise
                # Singly, so that all before the one at fault are in the target and the error names that one.
                for taken in group:
                    self._move([taken], taken.header, taken.header.seqno)
                self._move([], last, walk.passed)
            self._drop_group()
        self._meet()

    def _move(self, group: list[_Taken], header: RecordHeader, upto: Seqno) -> None:
        """Move the position to `header`'s transaction, `upto`, with the rows of `group` in one target transaction."""
        assert self._target is not None
        walk, task = self._walk, self._task
        whole = upto == walk.passed
        counters = self._stored + self._pending if whole else self._stored + Counters()
        changes = size = 0
        for taken in group:
            changes += taken.changes
            size += taken.bytes
            counters.serial += taken.serial
            counters.sections += taken.opens
        counters.changes += changes
        counters.bytes += size
        counters.transactions += len(group)
        counters.groups += bool(group)
        counters.skipped += upto - walk.published - (counters.transactions - self._stored.transactions)
        advance = Advance(
            pipeline=task.pipeline,
            channel=task.channel,
            token=self._token,
            old_seqno=walk.published,
            new_seqno=upto,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            tstamp=header.tstamp,
            stats=counters.text(),
        )
        if group:
            self._target.apply([taken.unit for taken in group], advance)
        else:
            self._target.publish(advance)
        if whole:
            self._pending = Counters()
        # What was only known when a stream had passed is stored with the next position.
        self._pending.changes += sum([taken.changes for taken in group]) - changes
        self._pending.bytes += sum([taken.bytes for taken in group]) - size
        self._stored = counters
        walk.published_up_to(upto)

    def _meet(self) -> Meeting:
        """Read where the others stand and what the driver asks for. Raises ReplacedError."""
        assert self._target is not None
        task = self._task
        meeting = self._target.meet(task.pipeline)
        if meeting.token != task.driver_token:
            raise self._replaced()
        self._stop_at = meeting.stop_at_seqno
        self._walk.learn(meeting.applied)
        self._walk.limit = nearest_limit(task.until, meeting.stop_at_seqno)
        self._next_sync = self._clock.monotonic() + task.sync_interval_s
        return meeting

    def _wait(self, seqno: Seqno, owner: int) -> None:
        """Read the meeting until the walk may go on at this transaction, or is to do something else."""
        walk, clock = self._walk, self._clock
        started = clock.monotonic()
        publish_at = started + self._task.sync_interval_s
        pause = _POLL_FIRST_S
        self._pending.waits += 1
        while True:
            self._meet()
            if not isinstance(walk.at(seqno, owner), Await):
                break
            now = clock.monotonic()
            if now >= publish_at:
                self._commit()
                publish_at = now + self._task.sync_interval_s
            clock.sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_S)
        self._pending.wait_ms += round((clock.monotonic() - started) * 1000)


def _counting(transaction: ReadableTransaction, taken: _Taken) -> Iterator[Change]:
    """Yield a large transaction's changes, counting them; each new iteration counts anew."""
    taken.changes = taken.bytes = 0
    for record in transaction.records():
        taken.bytes += record.header.data_length
        try:
            changes = decode(record.payload).changes
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=record.header.seqno) from exc
        taken.changes += len(changes)
        yield from changes


def _last_metadata(transaction: ReadableTransaction) -> Options:
    (raw,) = deque(transaction.payloads(), maxlen=1)
    return decode(raw).metadata
