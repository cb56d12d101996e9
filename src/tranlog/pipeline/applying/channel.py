"""One channel at work: read the log, take what is its own, apply it with the position, meet the others.

Owns the loop that runs as a long Spark task, and knows nothing of Spark: `run_task` runs anywhere, in a thread too.
What it may do next is `channels.Walk`'s decision; exactly once is the target's guarded update. The hard idea: what a
channel takes is a plain list until it commits, so nothing ever waits inside a target transaction, and whatever goes
wrong, all it has to do is to read its position again and start from there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, assert_never

from tranlog.change import HEARTBEAT, Change
from tranlog.clock import Clock, SystemClock
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConflictError,
    DdlStopError,
    FilterError,
    PurgedError,
    ReplacedError,
    TargetAheadError,
    TargetTableError,
    TargetUnavailableError,
    TranlogError,
    TransientTargetError,
)
from tranlog.header import TransactionHeader
from tranlog.ids import NO_EPOCH, NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableCursor, ReadableTransaction
from tranlog.log.reading.reader import LogRange
from tranlog.payload import Payload
from tranlog.pipeline.applying.accounts import Accounts
from tranlog.pipeline.applying.claim import Claim
from tranlog.pipeline.applying.group import Group, Taken, last_metadata
from tranlog.pipeline.applying.in_flight import Telling
from tranlog.pipeline.applying.live import LiveVerifying
from tranlog.pipeline.applying.loading import LoadingTables, is_step
from tranlog.pipeline.applying.log_mark import open_log
from tranlog.pipeline.applying.owners import Owners
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.applying.write_owners import WriteOwners
from tranlog.pipeline.filters.filter_chain import Chain, ChangePlace
from tranlog.pipeline.rules.by_writes import Assigned, WritesWalk
from tranlog.pipeline.rules.channels import (
    KEY_SHARD,
    SERIAL,
    Await,
    Finish,
    Publish,
    ShardBy,
    Skip,
    Take,
    Verdict,
    Walk,
)
from tranlog.pipeline.rules.limits import Content, SeqnoRanges, needs_every_header, reached
from tranlog.pipeline.rules.progress import (
    Ahead,
    Counters,
    InLog,
    Named,
    PurgedAway,
    Waiting,
    check_position,
    lost_to,
    nearest_limit,
)
from tranlog.pipeline.rules.retry import Backoff, Failure, retry
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.target import Advance, ChannelRow, Target

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
            lambda: open_target(task.options.target),
            lambda: open_log(task.options.log_dir, checksum=task.options.checksum, mark=task.log_mark),
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
    def header(self, seqno: Seqno) -> TransactionHeader | None: ...
    def cursor(self, *, committed_only: bool = False) -> ReadableCursor: ...
    def payload(self, seqno: Seqno) -> Payload: ...
    def purged(self, seqno: Seqno) -> PurgedError: ...
    def close(self) -> None: ...


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
        self._open_reader = open_reader
        self._clock = clock = SystemClock() if clock is None else clock
        telling = Telling(task.options.log_dir, task.options.pipeline, task.channel, disk=OsDisk(), clock=clock)
        self._claim = Claim(task, open_target)
        self._reader: Feed | None = None
        self._walk = Walk(channel=task.channel, channels=task.plan.channels, position=NO_SEQNO, run=False)
        self._decoded: tuple[Seqno, Payload] | None = None  # what had to be decoded to know whose it is
        self._cursor: ReadableCursor | None = None
        self._last: Named | None = None  # of the transaction at `passed`; None: the cursor knows it
        self._found: Seqno | None = None  # the limit that the task was to watch for
        self._left_out = SeqnoRanges()
        self._group = Group(task.options.group, telling, clock)
        self._accounts = Accounts(clock)
        self._next_sync = self._next_count = 0.0
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S, clock.monotonic())
        self._chain: Chain | None = None
        self._loading = LoadingTables(task.options.pipeline, task.options.filters)
        self._verifying = LiveVerifying(task, open_target, self._loading)
        self._writes = WriteOwners(task, self._claim) if task.plan.by is ShardBy.WRITES else None

    def run(self) -> TaskResult:
        """Work until there is a reason to end, starting again from the position after each passing failure."""
        clock, reconnect = self._clock, self._claim.reconnect
        try:
            end = retry(
                self._work, self._backoff, clock=clock, again=self._again, wait=clock.sleep, reconnect=reconnect
            )
        except (TransientTargetError, TargetUnavailableError) as exc:
            return self._result(TaskEnd.FAILED, self._claim.unavailable(exc), self._backoff.lasted(clock.monotonic()))
        except ReplacedError as exc:
            return self._result(TaskEnd.REPLACED, exc)
        except TranlogError as exc:
            self._claim.ask_all_to_stop()
            return self._result(TaskEnd.FAILED, exc)
        return self._result(end)

    def _work(self) -> TaskEnd:
        while True:
            try:
                return self._go(*self._stand())
            except ConflictError as exc:
                if self._writes is None or not self._writes.doubts(exc, self._group.taken, self._walk):
                    raise

    def _again(self, exc: Failure, failing_s: float, pause_s: float) -> bool:
        if failing_s >= self._task.options.retry_s:
            return False
        logger.warning("target failed channel=%d retry_in_s=%.2f why=%s", self._task.channel, pause_s, exc)
        self._accounts.pending.retries += 1
        if self._writes is not None:
            self._writes.singly = self._walk.passed  # two that wait for each other's locks meet less with few rows
        return True

    def close(self) -> None:
        """Let go of the log and the target; closing twice is harmless."""
        self._group.close()
        self._verifying.close()
        self._claim.close()
        if self._reader is not None:
            self._reader.close()

    def _result(self, end: TaskEnd, error: TranlogError | None = None, failing_s: float = 0.0) -> TaskResult:
        applied = self._walk.published
        return TaskResult(channel=self._task.channel, end=end, applied_seqno=applied, error=error, failing_s=failing_s)

    # --- from the position ---

    def _stand(self) -> tuple[ReadableCursor, Owners | WriteOwners]:
        """Claim the channel and stand after its position in the log; return the cursor, and whose what is."""
        task, claim, options = self._task, self._claim, self._task.options
        interval_s = options.max_offline_interval_s
        if options.filters and self._chain is None:
            self._chain = Chain(options.filters, ddl_ignored=options.target.ddl == "ignore")
        if self._reader is None:
            self._reader = self._open_reader()
        row = claim.take()
        header = _check(self._reader, row, options.pipeline)
        owners: Owners | WriteOwners
        run = False
        if self._writes is not None:
            owners = self._writes
            run = owners.begin(self._reader, self._chain, row)
        else:
            owners = Owners(
                task.plan,
                claim.target,
                pipeline=options.pipeline,
                driver_token=task.driver_token,
                check=claim.meet,
                channel=task.channel
                if task.plan.by is ShardBy.RECORDED and not (self._chain and self._chain.renames)
                else None,
            )
            owners.of_stored()
            if header is not None and (row.epoch != NO_EPOCH or row.event_id != ""):
                run = owners.of(self._shard(header, self._reader.payload)) == SERIAL
        self._walk = (Walk if self._writes is None else WritesWalk)(
            channel=task.channel,
            channels=task.plan.channels,
            position=row.applied_seqno,
            run=run,
            limit=self._limit(),
            interval_ms=None if interval_s is None else round(interval_s * 1000),
            tstamp=row.tstamp,
        )
        if isinstance(self._walk, WritesWalk) and self._writes is not None:
            self._walk.ordered, self._walk.after = self._writes.ordered, self._writes.after
        self._left_out = SeqnoRanges.of(claim.target.positions.read_left_out(options.pipeline)).after(row.applied_seqno)
        self._accounts.read(row)
        self._loading.forget()
        self._verifying.stand(claim.target.positions)
        self._group.drop()
        self._last = row
        self._cursor = cursor = self._reader.cursor(committed_only=True)
        cursor.seek(Seqno(row.applied_seqno + 1))
        self._meet()
        return cursor, owners

    def _limit(self) -> Seqno | None:
        return nearest_limit(nearest_limit(self._task.until, self._found), self._claim.stop_at)

    def _shard(self, header: TransactionHeader, payload: Callable[[Seqno], Payload]) -> str:
        """Return the shard of a transaction; what of `payload` had to be decoded for it serves `_take` too."""

        def changes() -> tuple[Change, ...]:
            self._decoded = header.seqno, payload(header.seqno)
            return self._decoded[1].changes

        return self._task.plan.shard(header, changes)

    # --- the loop ---

    def _go(self, cursor: ReadableCursor, owners: Owners | WriteOwners) -> TaskEnd:
        task, walk, group, clock = self._task, self._walk, self._group, self._clock
        idle_every, chain = task.options.idle_every, self._chain
        watched = chain if chain is not None and chain.renames else None  # which must see every name
        known, foreign = (owners.known, owners.foreign) if isinstance(owners, Owners) else ({}, set())
        at, move_on, next_header = _asked(walk), walk.move_on, cursor.next_header
        by_header = task.plan.by is ShardBy.RECORDED  # the recorded shard of a header is the plan's

        # Else commit times, or all that a limit may be in, must be seen.
        every_header = task.watch is not None and needs_every_header(task.watch)
        hops = task.options.max_offline_interval_s is None and not every_header
        look_at = walk.passed
        while True:
            if walk.done:
                return self._finish()
            if walk.passed >= look_at:
                look_at = Seqno(walk.passed + _LOOK_EVERY)
                now = clock.monotonic()
                if now >= self._next_sync or group.late(now) or walk.passed - walk.published >= idle_every:
                    self._commit()
                    continue  # there may be a wish to stop
            passes = owners.passes(walk) if hops and isinstance(owners, WriteOwners) else None
            if hops and (foreign or passes is not None) and not walk.run:
                upto = min(look_at, Seqno(walk.published + idle_every))
                passed = cursor.pass_over(foreign, upto if walk.limit is None else min(upto, walk.limit), passes)
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
                self._accounts.spent("read_us")
                header = next_header(max(0.0, self._next_sync - clock.monotonic()))
                self._accounts.spent("idle_us")
                if header is None:  # a sync interval without news
                    self._idle()
                    continue
            seqno = header.seqno
            if task.watch is not None and self._found is None and seqno > task.watch_after:
                self._found = reached(task.watch, header, lambda: content_of(cursor.current()))
                walk.limit = self._limit()
            if watched is not None and header.tables:
                watched.look_at(header.tables, ChangePlace(seqno, header.event_id))
            shard = header.shard_id if by_header else self._shard(header, lambda _: cursor.current().payload())
            whose: int | Assigned | None = known.get(shard)
            if whose is None:
                whose = owners.of(shard) if isinstance(owners, Owners) else owners.assign(header)
            owner, why = (whose, "") if isinstance(whose, int) else (whose.owner, whose.why)
            verdict: Verdict = at(seqno, whose, header.tstamp)
            while True:
                match verdict:
                    case Skip():
                        break
                    case Take():
                        if self._take(cursor, header, owner, shard, why):
                            break
                        self._commit()  # what stands before it; then ask again, there may be a wish to stop
                    case Publish():
                        self._commit()
                    case Await():
                        self._wait(partial(at, seqno, whose, header.tstamp), serial=owner == SERIAL)
                    case Finish():
                        return self._finish()
                    case _:
                        assert_never(verdict)
                verdict = at(seqno, whose, header.tstamp)
            due = False
            if isinstance(whose, int):
                move_on(seqno, whose)
            elif isinstance(owners, WriteOwners):
                due = owners.pass_by(header, whose, walk, self._accounts.pending)
            if owner == SERIAL and walk.channel:
                self._loading.forget()  # channel 0 may have taken a step of a load
            self._last = header
            if due or group.full or walk.passed - walk.published >= idle_every:
                self._commit()

    def _finish(self) -> TaskEnd:
        self._commit()
        return self._verifying.finish(TaskEnd.STOPPED if self._claim.stop_at == NO_SEQNO else TaskEnd.LIMIT)

    def _take(self, cursor: ReadableCursor, header: TransactionHeader, owner: int, shard: str, why: str) -> bool:
        """Put a transaction into the group, as decoded changes or, of several fragments or spilled, as a stream.

        `shard` is the plan's; under it the status counts the transaction, but for keys, which may be as many as rows.
        False: it must be alone in its target transaction, and the group is not empty; nothing was done.
        """
        group, accounts, chain = self._group, self._accounts, self._chain
        if self._left_out and header.seqno in self._left_out:
            accounts.pending += Counters(omitted=1)
            return True
        serial = owner == SERIAL or bool(why)
        shard = (header.shard_id if shard.startswith(KEY_SHARD) else shard) or UNKNOWN_SHARD
        taken = Taken(header, shard=shard, serial=serial, opens=owner == SERIAL and not self._walk.run, why=why)
        if chain is not None:
            wait_s = (header.tstamp + chain.delay_ms - self._clock.now_ms()) / 1000 if chain.delay_ms else 0.0
            if wait_s > 0:
                if not group.taken:  # no longer than positions may be silent: there may be a wish to stop
                    self._clock.sleep(max(0.0, min(wait_s, self._next_sync - self._clock.monotonic())))
                return False
            if chain.drops(header.tables, header.shard_id):
                accounts.passed(taken, filtered=1)
                return True
        transaction = cursor.current()
        if header.spilled or transaction.fragments > 1:
            changes, metadata = None, last_metadata(transaction) if serial else ()
        else:
            decoded = self._decoded
            payload = decoded[1] if decoded is not None and decoded[0] == header.seqno else transaction.payload()
            changes, metadata = payload.changes, payload.metadata
        if group.taken and (changes is None or is_step(taken, metadata)):
            return False
        is_ours = self._loading.take(taken, metadata, chain, self._claim.target)
        if not (is_ours and self._verifying.take(taken, metadata, self._claim.token)):
            accounts.passed(taken, filtered=0)
            return True
        if changes is None:
            return group.put_stream(taken, metadata, transaction, chain, self._claim.token)
        changes = whole = taken.counting(changes)  # what a load brings no filter has left out
        if chain is not None and changes:
            accounts.spent("read_us")
            try:
                changes = tuple(chain.stream(changes, ChangePlace(header.seqno, header.event_id)))
            except (FilterError, TargetTableError):
                if group.taken:
                    return False  # first all before it
                raise
            finally:
                accounts.spent("filter_us")
        if not changes and taken.load is None and not taken.verdicts:
            accounts.passed(taken, filtered=int(bool(whole)))
            return True
        return group.put(taken, metadata, changes)

    # --- at the target ---

    def _idle(self) -> None:
        """Look at the meeting; now and then publish what is only counted, since no position comes that would tell it.

        What a target transaction took is known after it, so the first time is at once.
        """
        if self._clock.monotonic() < self._next_count:
            self._commit()
        else:
            self._tell(counts=True)
        self._backoff.over()

    def _commit(self, *, counts: bool = False) -> None:
        """Apply the group, if any, and move the position to where the walk has come; then look at the meeting.

        `counts`: publish also where there is nothing to tell but how the counters stand.
        """
        walk, group, accounts = self._walk, self._group.taken, self._accounts
        accounts.spent("read_us")
        if isinstance(walk, WritesWalk) and walk.turn() is not None:
            self._wait(walk.turn)
            if walk.turn() is not None:
                return  # what was taken comes again after the next start
        if walk.passed > walk.published or accounts.owed or counts:
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
            self._group.drop()
        self._meet()
        accounts.spent("other_us")

    def _move(self, group: list[Taken], header: Named, upto: Seqno) -> None:
        """Move the position to `header`'s transaction, `upto`, with the rows of `group` in one target transaction."""
        task, walk, clock, target, writes = self._task, self._walk, self._clock, self._claim.target, self._writes
        missed = () if writes is None or len(group) != 1 else writes.missed(group[0].header)
        entry = self._accounts.entry(group, walk, upto, missed)
        advance = Advance(
            pipeline=task.options.pipeline,
            channel=task.channel,
            token=self._claim.token,
            old_seqno=walk.published,
            new_seqno=upto,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            tstamp=header.tstamp,
            stats=entry.text(),
            plan=None if writes is None else writes.plan_for(upto),
        )
        if group:
            began = clock.monotonic()
            applied = target.apply([taken.unit for taken in group], advance)
            apply_us = round((clock.monotonic() - began) * 1e6)
            self._accounts.book(entry, apply_us=apply_us, commit_us=applied.commit_us)
        else:
            target.positions.publish(advance)
            self._accounts.book(entry)
        self._backoff.over()
        walk.published_up_to(upto, header.tstamp)
        self._verifying.begin(group)
        if writes is not None:
            writes.moved(upto)

    def _meet(self) -> None:
        """Learn where the others stand and what the driver asks for. Raises ReplacedError."""
        meeting = self._claim.meet()
        self._walk.learn(meeting.applied, meeting.times)
        self._walk.limit = self._limit()
        self._backoff.answered_s = self._clock.monotonic()
        self._next_sync = self._backoff.answered_s + self._task.options.sync_interval_s

    def _wait(self, ask: Callable[[], Verdict | None], *, serial: bool = False) -> None:
        """Read the meeting until the walk, which `ask` asks, does not have to await another channel any more."""
        clock, accounts = self._clock, self._accounts
        accounts.pending += Counters(waits=1, held=int(self._writes is not None and not serial))
        pause, started = _POLL_FIRST_S, clock.monotonic()
        publish_at = started + min(_TELL_AFTER_S, self._task.options.sync_interval_s)
        accounts.spent("read_us")
        while True:
            self._meet()
            verdict = ask()
            if not isinstance(verdict, Await):
                break
            now = clock.monotonic()
            if now >= publish_at and not self._walk.owes:
                accounts.waiting = Waiting(verdict.seqno, serial, verdict.channels)
                accounts.spent("wait_us")
                self._tell()
                publish_at = clock.monotonic() + self._task.options.sync_interval_s
            clock.sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_S)
        accounts.spent("wait_us")
        accounts.pending.wait_ms += round((clock.monotonic() - started) * 1000)

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


def _asked(walk: Walk) -> Callable[..., Verdict]:
    """Return what is asked for the next step: of the seqno, whose it is, and its commit time."""
    return walk.step if isinstance(walk, WritesWalk) else walk.at


def _check(reader: Feed, row: ChannelRow, pipeline: str) -> TransactionHeader | None:
    """Return the header at a channel's position. Raises when this log cannot go on after it."""
    first = reader.range().first_seqno
    verdict = check_position(row, first=first, header_at=reader.header)
    match verdict:
        case InLog():
            return None if row.applied_seqno < first else reader.header(row.applied_seqno)
        case Ahead(channel=channel, gtid=gtid, why=why):
            raise TargetAheadError(pipeline=pipeline, channel=channel, gtid=gtid, why=why)
        case PurgedAway(seqno=seqno):
            raise lost_to(reader.purged(Seqno(seqno)))
        case _:
            assert_never(verdict)


def content_of(transaction: ReadableTransaction) -> Content:
    """Read what a limit may have to know of a transaction's payload."""
    if transaction.header.spilled or transaction.fragments > 1:
        return Content(heartbeat=None, empty=False)
    payload = transaction.payload()
    if payload.changes:
        return Content(heartbeat=None, empty=False)
    return Content(heartbeat=next((value for name, value in payload.metadata if name == HEARTBEAT), None), empty=True)
