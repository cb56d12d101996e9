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
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec

from tranlog.change import HEARTBEAT, Change, Options, Statement, TableName
from tranlog.clock import Clock, SystemClock
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConfigError,
    ConflictError,
    DdlStopError,
    FilterError,
    PayloadError,
    PurgedError,
    ReplacedError,
    TargetAheadError,
    TargetPositionError,
    TargetTableError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.ids import NO_EPOCH, NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableCursor, ReadableTransaction
from tranlog.log.reading.reader import LogRange
from tranlog.log.records.format import RecordHeader
from tranlog.payload import Payload, decode
from tranlog.pipeline.applying.in_flight import Telling
from tranlog.pipeline.applying.log_mark import LogMark, open_log
from tranlog.pipeline.filters.filter_chain import Chain, Place
from tranlog.pipeline.filters.filters import Filter
from tranlog.pipeline.rules.channels import (
    KEY_SHARD,
    SERIAL,
    Await,
    Finish,
    Publish,
    ShardBy,
    ShardPlan,
    Skip,
    Take,
    Verdict,
    Walk,
)
from tranlog.pipeline.rules.limits import Content, SeqnoRanges, Watched, needs_every_header, reached
from tranlog.pipeline.rules.progress import (
    Ahead,
    ChannelStats,
    Counters,
    InLog,
    Named,
    Purged,
    Waiting,
    check_position,
    nearest_limit,
)
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.target import Advance, ChannelRow, Meeting, Target, Unit

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

logger = logging.getLogger(__name__)

_LOOK_EVERY = 256
"""Headers between two looks at the clock while the log has more."""
_POLL_FIRST_S = 0.0005
_POLL_MOST_S = 0.02
"""Sleeps between two readings of the meeting while waiting for other channels: short first, then rarer."""
_TELL_AFTER_S = 0.2
"""How long a wait goes on before it is told beside the position, for whoever wonders why that stands."""
_COUNT_EVERY_S = 30.0
"""How often a channel that idles publishes its counters."""
_RETRY_FIRST_S = 0.01
_RETRY_MOST_S = 1.0
_SEEN_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBounds:
    """How many source transactions may share a target transaction: up to the first of these that is reached.

    Fewer, whenever the log has no more to give: a group never waits for company. A transaction of several fragments
    goes alone and is streamed; so memory is bounded by `bytes` and one fragment, decoded.
    """

    transactions: int = 1_000
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

    `until`: the last seqno to apply, inclusive; None: run on. `max_offline_interval_s`: as in `Walk`. `sync_interval_s`
    and `idle_every`: how long, and for how many transactions, a position may go unpublished. `retry_s`: how long a task
    tries by itself to use a target that is away; then it is the driver who lets the channel pause. `watch`: a limit to
    be told from the headers behind `watch_after`, in front of which the driver has looked.
    """

    pipeline: str
    driver_token: int
    channel: int
    plan: ShardPlan
    log_dir: str
    target: TargetOptions
    until: Seqno | None = None
    max_offline_interval_s: float | None = None
    bounds: GroupBounds = field(default_factory=GroupBounds)
    sync_interval_s: float = 1.0
    idle_every: int = 10_000
    retry_s: float = 30.0
    checksum: bool = True
    watch: Watched | None = None
    watch_after: Seqno = NO_SEQNO
    filters: tuple[Filter, ...] = ()
    log_mark: LogMark | None = None
    """On a cluster what the driver's log begins with: a folder of the same name elsewhere may hold another log."""


class TaskEnd(enum.StrEnum):
    """Why a task ended."""

    LIMIT = "limit"
    STOPPED = "stopped"
    REPLACED = "replaced"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task hands back. Spark carries exceptions as text, so `error` travels here, as the object it is.

    `failing_s`: how long the target had not let it go on, where that is the error.
    """

    channel: int
    end: TaskEnd
    applied_seqno: Seqno = NO_SEQNO
    error: TranlogError | None = None
    failing_s: float = 0.0


def run_task(task: ChannelTask) -> TaskResult:
    """Run one channel until it reaches its limit, is told to stop, is replaced, or cannot go on.

    Raises nothing of ours: what stopped it is in the result. Where running the task again cannot cure that, the other
    channels have been asked to stop. Anything else that it raises is a fault of the engine or of ours, and may be
    retried.
    """
    from tranlog.target.options import open_target

    with contextlib.closing(
        Channel(
            task,
            lambda: open_target(task.target),
            lambda: open_log(task.log_dir, checksum=task.checksum, mark=task.log_mark),
        )
    ) as channel:
        return channel.run()


def run_tasks(tasks: Iterable[ChannelTask]) -> Iterator[TaskResult]:
    """Run the tasks of one Spark partition, of which there is one."""
    for task in tasks:
        yield run_task(task)


class Feed(Protocol):
    """What a channel reads: the log itself, or a window of it that somebody else has read; see `ReadableLog`."""

    def range(self) -> LogRange: ...
    def header(self, seqno: Seqno) -> RecordHeader | None: ...
    def cursor(self, *, committed_only: bool = False) -> ReadableCursor: ...
    def payload(self, seqno: Seqno) -> Payload: ...
    def purged(self, seqno: Seqno) -> PurgedError: ...
    def close(self) -> None: ...


class _Taken:
    """One transaction that was taken and is not committed yet; a stream is counted while it passes."""

    __slots__ = ("bytes", "changes", "header", "opens", "serial", "shard", "unit")

    def __init__(
        self, header: RecordHeader, unit: Unit, *, shard: str, changes: int, serial: bool, opens: bool
    ) -> None:
        self.header = header
        self.shard = shard
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
        open_reader: Callable[[], Feed],
        clock: Clock | None = None,
    ) -> None:
        self._task = task
        self._open_target = open_target
        self._open_reader = open_reader
        self._clock = SystemClock() if clock is None else clock
        self._telling = Telling(task.log_dir, task.pipeline, task.channel, disk=OsDisk(), clock=self._clock)
        self._target: Target | None = None
        self._reader: Feed | None = None
        self._token = 0
        self._walk = Walk(channel=task.channel, channels=task.plan.channels, position=NO_SEQNO, run=False)
        self._owners: dict[str, int] = {}
        self._foreign: set[bytes] = set()  # shards of other channels, as headers have them
        self._by_header = task.plan.by is ShardBy.RECORDED  # the recorded shard of a header is the plan's
        self._decoded: tuple[Seqno, Payload] | None = None  # what had to be decoded to know whose it is
        self._cursor: ReadableCursor | None = None
        self._last: Named | None = None  # of the transaction at `passed`; None: the cursor knows it
        self._stop_at: Seqno | None = None
        self._group: list[_Taken] = []
        self._group_bytes = 0
        self._group_changes = 0
        self._group_since = 0.0
        self._watch = task.watch
        self._found: Seqno | None = None  # the limit that `watch` has told
        self._left_out = SeqnoRanges()
        self._stored = Counters()  # as they stand beside the position
        self._stats = ChannelStats()
        self._waiting: Waiting | None = None  # what the next position tells
        self._pending = Counters()  # what the group does not hold: no-ops, waits, what was only known afterwards
        self._next_sync = 0.0
        self._next_count = 0.0
        self._mark = self._clock.monotonic()  # up to where it is told what the time went to
        self._answered = self._mark  # when the target last did
        self._failing_since: float | None = None
        self._chain: Chain | None = None
        self._looks_at_names = False
        self._seen: set[tuple[TableName, ...]] = set()  # sets of tables whose names behind the filters are known

    def run(self) -> TaskResult:
        """Work until there is a reason to end, starting again from the position after each passing failure."""
        clock = self._clock
        pause, reached = _RETRY_FIRST_S, NO_SEQNO
        while True:
            try:
                return self._result(self._go(self._claim()))
            except (TransientTargetError, TargetUnavailableError) as exc:
                if self._failing_since is None:
                    self._failing_since = self._answered
                if self._walk.published > reached:
                    pause, reached = _RETRY_FIRST_S, self._walk.published
                failing_s = clock.monotonic() - self._failing_since
                if failing_s >= self._task.retry_s:
                    return self._result(TaskEnd.FAILED, self._unavailable(exc), failing_s)
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
        self._telling.close()
        if self._target is not None:
            self._target.close()
        if self._reader is not None:
            self._reader.close()

    def _result(self, end: TaskEnd, error: TranlogError | None = None, failing_s: float = 0.0) -> TaskResult:
        return TaskResult(
            channel=self._task.channel,
            end=end,
            applied_seqno=self._walk.published,
            error=error,
            failing_s=failing_s,
        )

    def _unavailable(self, exc: TransientTargetError | TargetUnavailableError) -> TargetUnavailableError:
        if isinstance(exc, TargetUnavailableError):
            return exc
        return TargetUnavailableError(where="?" if self._target is None else self._target.where, why=exc.why)

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
            self._target.positions.request_stop(pipeline=self._task.pipeline, token=token, stop_at_seqno=NO_SEQNO)
        except TranlogError as exc:
            logger.warning("could not ask the other channels to stop channel=%d why=%s", self._task.channel, exc)

    # --- from the position ---

    def _claim(self) -> ReadableCursor:
        """Claim the channel and stand behind its position in the log."""
        task = self._task
        if task.filters and self._chain is None:
            self._chain = Chain(task.filters, ddl_ignored=task.target.ddl == "ignore")
            self._looks_at_names = self._chain.renames
        if self._reader is None:
            self._reader = self._open_reader()
        if self._target is None:
            self._target = self._open_target()
        elif self._token:
            row = next(
                (r for r in self._target.positions.read_channels(task.pipeline) if r.channel == task.channel), None
            )
            if row is None or row.token != self._token:
                raise self._replaced(gone=row is None)  # another attempt of this task has it: leave it there
        row = self._target.positions.claim(pipeline=task.pipeline, channel=task.channel, driver_token=task.driver_token)
        self._token = row.token
        header = self._check(self._reader, row)
        self._owners, self._foreign = {}, set()
        for shard, channel in self._target.positions.read_assignment(task.pipeline).items():
            self._own(shard, channel)
        run = False
        if header is not None and (row.epoch != NO_EPOCH or row.event_id != ""):
            run = self._owner(self._shard(header, self._reader.payload)) == SERIAL
        self._walk = Walk(
            channel=task.channel,
            channels=task.plan.channels,
            position=row.applied_seqno,
            run=run,
            limit=self._limit(),
            interval_ms=None if task.max_offline_interval_s is None else round(task.max_offline_interval_s * 1000),
            tstamp=row.tstamp,
        )
        self._left_out = SeqnoRanges.of(self._target.positions.read_left_out(task.pipeline)).behind(row.applied_seqno)
        self._stored = Counters.parse(row.stats)
        self._stats = ChannelStats.parse(row.stats)
        kept = self._pending
        self._pending = Counters(waits=kept.waits, wait_ms=kept.wait_ms, retries=kept.retries)
        self._mark = self._clock.monotonic()
        self._drop_group()
        self._last = row
        cursor = self._reader.cursor(committed_only=True)
        cursor.seek(Seqno(row.applied_seqno + 1))
        self._cursor = cursor
        self._meet()
        return cursor

    def _check(self, reader: Feed, row: ChannelRow) -> RecordHeader | None:
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

    def _replaced(self, *, gone: bool = False) -> ReplacedError | TargetPositionError:
        """Return why this task may not go on; `gone`: its channel had no row, which only a later plan may remove."""
        assert self._target is not None
        task = self._task
        row = self._target.positions.read_pipeline(task.pipeline)
        if row is not None and not (gone and row.token == task.driver_token):
            return ReplacedError(pipeline=task.pipeline, holder=row.holder)
        what = "tranlog_pipeline" if row is None else f"tranlog_channel, for its channel {task.channel}"
        why = f"its row was removed from {what}, while it ran"
        return TargetPositionError(where=self._target.where, pipeline=task.pipeline, why=why)

    def _limit(self) -> Seqno | None:
        return nearest_limit(nearest_limit(self._task.until, self._found), self._stop_at)

    # --- whose is it? ---

    def _shard(self, header: RecordHeader, payload: Callable[[Seqno], Payload]) -> str:
        """Return the shard of a transaction; what of `payload` had to be decoded for it serves `_take` too."""

        def changes() -> tuple[Change, ...]:
            self._decoded = header.seqno, payload(header.seqno)
            return self._decoded[1].changes

        return self._task.plan.shard(header, changes)

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
        return self._target.positions.assign(
            pipeline=task.pipeline, shard=shard, channels=task.plan.channels, driver_token=task.driver_token
        )

    def _own(self, shard: str, stored: int) -> int:
        try:
            owner = self._task.plan.channel_of(shard, {shard: stored})
        except ConfigError:
            self._meet()  # raises ReplacedError where the row is a later plan's, and this task a replaced one
            raise
        assert owner is not None
        self._note_owner(shard, owner)
        return owner

    def _note_owner(self, shard: str, owner: int) -> None:
        if shard.startswith(KEY_SHARD):
            return  # there may be as many as rows
        self._owners[shard] = owner
        if self._by_header and owner not in (SERIAL, self._task.channel) and not self._looks_at_names:
            self._foreign.add(shard.encode())

    # --- the loop ---

    def _go(self, cursor: ReadableCursor) -> TaskEnd:
        walk, bounds, owners, foreign = self._walk, self._task.bounds, self._owners, self._foreign
        at, move_on, next_header, clock = walk.at, walk.move_on, cursor.next_header, self._clock
        by_header = self._by_header

        def here(_: Seqno) -> Payload:
            return cursor.current().payload()

        hops = self._task.max_offline_interval_s is None  # else commit times must be seen
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
            if hops and foreign and not walk.run and (self._watch is None or not needs_every_header(self._watch)):
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
                self._spent("read_us")
                header = next_header(max(0.0, self._next_sync - clock.monotonic()))
                self._spent("idle_us")
                if header is None:  # a sync interval without news
                    self._idle()
                    continue
            seqno = header.seqno
            if self._watch is not None and seqno > self._task.watch_after:
                self._look_for_limit(cursor, header)
            if self._looks_at_names and header.tables and header.tables not in self._seen:
                self._look_at_names(header, header.tables)
            shard = header.shard_id if by_header else self._shard(header, here)
            owner = owners.get(shard)
            if owner is None:
                owner = self._owner(shard)
            tstamp = header.tstamp
            verdict: Verdict = at(seqno, owner, tstamp)
            while True:
                match verdict:
                    case Skip():
                        break
                    case Take():
                        if self._take(cursor, header, owner, shard):
                            break
                        self._commit()  # what stands before it; then ask again, there may be a wish to stop
                    case Publish():
                        self._commit()
                    case Await():
                        self._wait(seqno, owner, tstamp)
                    case Finish():
                        return self._finish()
                    case _:
                        assert_never(verdict)
                verdict = at(seqno, owner, tstamp)
            move_on(seqno, owner)
            self._last = header
            if (
                len(self._group) >= bounds.transactions
                or self._group_changes >= bounds.changes
                or self._group_bytes >= bounds.bytes
                or walk.passed - walk.published >= self._task.idle_every
            ):
                self._commit()

    def _look_for_limit(self, cursor: ReadableCursor, header: RecordHeader) -> None:
        assert self._watch is not None
        self._found = reached(self._watch, header, lambda: content_of(cursor.current()))
        if self._found is not None:
            self._watch = None
            self._walk.limit = self._limit()

    def _finish(self) -> TaskEnd:
        self._commit()
        return TaskEnd.STOPPED if self._stop_at == NO_SEQNO else TaskEnd.LIMIT

    def _take(self, cursor: ReadableCursor, header: RecordHeader, owner: int, shard: str) -> bool:
        """Put a transaction into the group, as decoded changes or, of several fragments or spilled, as a stream.

        `shard` is the plan's; under it the status counts the transaction, but for keys, which may be as many as rows.

        False: it must be alone in its target transaction, and the group is not empty; nothing was done.
        """
        serial = owner == SERIAL
        opens = serial and not self._walk.run
        shard = (header.shard_id if shard.startswith(KEY_SHARD) else shard) or UNKNOWN_SHARD
        if self._left_out and header.seqno in self._left_out:
            self._pending += Counters(omitted=1)
            return True
        chain = self._chain
        if chain is not None:
            if not self._is_due(header, chain.delay_ms):
                return False
            if chain.drops(header.tables, header.shard_id):
                self._pass(header, shard, serial=serial, opens=opens, filtered=1)
                return True
        transaction = cursor.current()
        if header.spilled or transaction.fragments > 1:
            if self._group:
                return False
            self._telling.begin(header.seqno, self._token, transaction.size_bytes)
            # Only a serial transaction has statements, and only those ask for the metadata, in the last fragment.
            metadata = _last_metadata(transaction) if serial else ()
            taken = self._put(header, shard, metadata, transaction.changes, changes=0, serial=serial, opens=opens)
            taken.unit = msgspec.structs.replace(
                taken.unit, changes=lambda: _counting(transaction, taken, chain, self._telling)
            )
            self._group_bytes = self._task.bounds.bytes  # commit it alone
            return True
        decoded = self._decoded
        payload = decoded[1] if decoded is not None and decoded[0] == header.seqno else transaction.payload()
        changes = payload.changes
        if chain is not None and changes:
            self._spent("read_us")
            try:
                changes = tuple(chain.stream(changes, Place(header.seqno, header.event_id)))
            except (FilterError, TargetTableError):
                if self._group:
                    return False  # first all before it
                raise
            finally:
                self._spent("filter_us")
        if not changes:
            self._pass(header, shard, serial=serial, opens=opens, filtered=int(bool(payload.changes)))
            return True
        alone = serial and any(isinstance(change, Statement) for change in changes)
        if alone and self._group:
            return False
        self._put(header, shard, payload.metadata, changes.__iter__, changes=len(changes), serial=serial, opens=opens)
        self._group_changes += len(changes)
        self._group_bytes += self._task.bounds.bytes if alone else header.data_length
        return True

    def _pass(self, header: RecordHeader, shard: str, *, serial: bool, opens: bool, filtered: int) -> None:
        """Count a transaction of which there is nothing to apply."""
        self._stats.count(
            shard,
            1,
            seqno=header.seqno,
            event_id=header.event_id,
            latency_ms=max(0, self._clock.now_ms() - header.tstamp),
        )
        self._pending += Counters(
            transactions=1, bytes=header.data_length, serial=int(serial), sections=int(opens), filtered=filtered
        )

    def _is_due(self, header: RecordHeader, delay_ms: int) -> bool:
        """Whether a delayed transaction's time has come. Where not, and nothing is owed, wait for a part of it."""
        if not delay_ms:
            return True
        clock = self._clock
        wait_s = (header.tstamp + delay_ms - clock.now_ms()) / 1000
        if wait_s <= 0:
            return True
        if not self._group:
            # No longer than positions may be silent: then the meeting is read again, and a wish to stop with it.
            clock.sleep(max(0.0, min(wait_s, self._next_sync - clock.monotonic())))
        return False

    def _look_at_names(self, header: RecordHeader, tables: tuple[TableName, ...]) -> None:
        assert self._chain is not None
        self._chain.look_at(tables, Place(header.seqno, header.event_id))
        if len(self._seen) >= _SEEN_MOST:
            self._seen.clear()
        self._seen.add(tables)

    def _put(
        self,
        header: RecordHeader,
        shard: str,
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
        taken = _Taken(header, unit, shard=shard, changes=changes, serial=serial, opens=opens)
        self._group.append(taken)
        return taken

    def _drop_group(self) -> None:
        self._group = []
        self._group_bytes = self._group_changes = 0

    # --- at the target ---

    def _idle(self) -> None:
        """Look at the meeting; now and then publish what is only counted, since no position comes that would tell it.

        What a target transaction took is known behind it, so the first time is at once.
        """
        if self._clock.monotonic() < self._next_count:
            self._commit()
        else:
            self._tell(counts=True)
        self._failing_since = None

    def _commit(self, *, counts: bool = False) -> None:
        """Apply the group, if any, and move the position to where the walk has come; then look at the meeting.

        `counts`: publish also where there is nothing to tell but how the counters stand.
        """
        walk, group = self._walk, self._group
        self._spent("read_us")
        if walk.passed > walk.published or self._pending.changes or self._waiting is not None or counts:
            self._next_count = self._clock.monotonic() + (_COUNT_EVERY_S if counts else 0.0)
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
        self._spent("other_us")

    def _move(self, group: list[_Taken], header: Named, upto: Seqno) -> None:
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
        own = counters.transactions + counters.omitted - self._stored.transactions - self._stored.omitted
        counters.skipped += upto - walk.published - own
        stats = self._note_block(group, walk)
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
            stats=stats.text(counters),
        )
        commit_us = apply_us = 0
        if group:
            began = self._clock.monotonic()
            commit_us = self._target.apply([taken.unit for taken in group], advance).commit_us
            apply_us = round((self._clock.monotonic() - began) * 1e6)
            stats.block_us = apply_us
            self._mark += apply_us / 1e6
        else:
            self._target.positions.publish(advance)
        self._stats = stats
        if whole:
            self._pending = Counters()
        self._pending.commit_us += commit_us
        self._pending.apply_us += max(0, apply_us - commit_us)
        # What was only known when a stream had passed is stored with the next position.
        self._pending.changes += sum([taken.changes for taken in group]) - changes
        self._pending.bytes += sum([taken.bytes for taken in group]) - size
        self._stored = counters
        self._failing_since = None
        walk.published_up_to(upto, header.tstamp)

    def _note_block(self, group: list[_Taken], walk: Walk) -> ChannelStats:
        """Note what the next position tells beside the counters, which is in the target together with it."""
        stats = msgspec.structs.replace(self._stats, shards=dict(self._stats.shards))
        if stats.since < 0:
            stats.since = walk.published + 1
        stats.section = walk.run and walk.channel == 0
        stats.waiting, self._waiting = self._waiting, None
        if group:
            stats.block = len(group)
            now = self._clock.now_ms()
            for taken in group:
                header = taken.header
                stats.latency_ms = max(0, now - header.tstamp)
                stats.count(
                    taken.shard,
                    1,
                    seqno=header.seqno,
                    event_id=header.event_id,
                    latency_ms=stats.latency_ms,
                )
        return stats

    def _spent(self, on: str) -> None:
        """Count the time since the last call as spent on this."""
        now = self._clock.monotonic()
        pending = self._pending
        setattr(pending, on, getattr(pending, on) + max(0, round((now - self._mark) * 1e6)))
        self._mark = now

    def _meet(self) -> Meeting:
        """Read where the others stand and what the driver asks for. Raises ReplacedError."""
        assert self._target is not None
        task = self._task
        meeting = self._target.positions.meet(task.pipeline)
        if meeting.token != task.driver_token or task.channel not in meeting.applied:
            raise self._replaced(gone=True)
        self._stop_at = meeting.stop_at_seqno
        self._walk.learn(meeting.applied, meeting.times)
        self._walk.limit = self._limit()
        self._answered = self._clock.monotonic()
        self._next_sync = self._answered + task.sync_interval_s
        return meeting

    def _wait(self, seqno: Seqno, owner: int, tstamp: int) -> None:
        """Read the meeting until the walk may go on at this transaction, or is to do something else."""
        walk, clock = self._walk, self._clock
        started = clock.monotonic()
        publish_at = started + min(_TELL_AFTER_S, self._task.sync_interval_s)
        pause = _POLL_FIRST_S
        self._spent("read_us")
        self._pending.waits += 1
        while True:
            self._meet()
            verdict = walk.at(seqno, owner, tstamp)
            if not isinstance(verdict, Await):
                break
            now = clock.monotonic()
            if now >= publish_at:
                self._waiting = Waiting(verdict.seqno, owner == SERIAL, verdict.channels)
                self._spent("wait_us")
                self._tell()
                publish_at = clock.monotonic() + self._task.sync_interval_s
            clock.sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_S)
        self._spent("wait_us")
        self._pending.wait_ms += round((clock.monotonic() - started) * 1000)

    def _tell(self, *, counts: bool = False) -> None:
        """Publish while waiting; where there is nothing to tell but the wait, a target that is locked is no failure.

        In SQLite it is locked by the very channel that is waited for, for as long as its target transaction takes.
        `counts` as in `_commit`.
        """
        try:
            self._commit(counts=counts)
        except (TransientTargetError, TargetUnavailableError) as exc:
            if self._walk.passed > self._walk.published:
                raise
            logger.debug("not told how it stands channel=%d why=%s", self._task.channel, exc)


def content_of(transaction: ReadableTransaction) -> Content:
    """Read what a limit may have to know of a transaction's payload."""
    if transaction.header.spilled or transaction.fragments > 1:
        return Content(heartbeat=None, empty=False)
    payload = transaction.payload()
    if payload.changes:
        return Content(heartbeat=None, empty=False)
    return Content(heartbeat=next((value for name, value in payload.metadata if name == HEARTBEAT), None), empty=True)


def _counting(
    transaction: ReadableTransaction, taken: _Taken, chain: Chain | None, telling: Telling
) -> Iterator[Change]:
    """Yield a large transaction's changes, what filters leave of them, counting; each new iteration counts anew."""
    taken.changes = taken.bytes = 0
    if chain is None:
        for changes in _decoding(transaction, taken, telling):
            taken.changes += len(changes)
            yield from changes
        return
    found = (change for changes in _decoding(transaction, taken, telling) for change in changes)
    for change in chain.stream(found, Place(taken.header.seqno, taken.header.event_id)):
        taken.changes += 1
        yield change


def _decoding(transaction: ReadableTransaction, taken: _Taken, telling: Telling) -> Iterator[tuple[Change, ...]]:
    read_bytes = 0
    for record in transaction.records():
        telling.at(taken.changes, read_bytes)  # of the records before this one
        read_bytes += record.header.record_length
        taken.bytes += record.header.data_length
        try:
            yield decode(record.payload).changes
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=record.header.seqno) from exc
    telling.at(taken.changes, None, now=True)


def _last_metadata(transaction: ReadableTransaction) -> Options:
    (raw,) = deque(transaction.payloads(), maxlen=1)
    return decode(raw).metadata
