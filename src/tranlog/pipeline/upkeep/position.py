"""Reading and moving a pipeline's position at the target by hand.

Owns the meaning of a position that an operator gives; the target's token decides who may write it. The hard idea: a
position is a claim about history. So the epoch and the event id of a seqno are looked up in the log and never typed in,
and the position of a running pipeline is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tranlog.clock import Clock
from tranlog.errors import ConfigError, PipelineHeldError
from tranlog.header import TransactionHeader
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.log.reading.reader import LogRange
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.limits import SeqnoRanges
from tranlog.target.options import TargetOptions, is_there, open_target
from tranlog.target.target import NOBODY, ChannelRow, PipelineRow, Target


def read_rows(options: TargetOptions, pipeline: str) -> list[ChannelRow]:
    """Return where the channels of a pipeline stand at a target; none where it never ran. Raises TargetError."""
    if not is_there(options):
        return []
    target = open_target(options)
    try:
        return target.positions.read_channels(pipeline)
    finally:
        target.close()


def position_rows(
    seqno: Seqno,
    header: TransactionHeader | None,
    held: LogRange,
    stored: Sequence[ChannelRow],
    *,
    channels: int,
    only: int | None = None,
) -> list[ChannelRow]:
    """Return the rows by which everything up to `seqno`, inclusive, is applied, by all channels or by `only` one. Pure.

    A channel without a row, of those that there are, gets one when it is its turn.

    `header` is the transaction's in the log. Right before what the log holds there is none: nothing is applied
    then, and the log's first transaction is the next. Counters stay. Raises ConfigError for any other seqno, and for
    a channel that the plan does not have.
    """
    first = Seqno(0) if held.first_seqno == NO_SEQNO else held.first_seqno
    if header is None and seqno != first - 1:
        last = f"{held.first_seqno} to {held.last_seqno}" if held.first_seqno != NO_SEQNO else "nothing"
        why = f"the log holds {last}; name one of those, or {first - 1} for a position before its first transaction"
        raise ConfigError(option="position", value=seqno, why=why)
    known = {row.channel: row for row in stored}
    if only is not None and only >= channels:
        raise ConfigError(option="--channel", value=only, why=f"the pipeline has channels 0 to {channels - 1}")
    moved = ChannelRow(channel=0, applied_seqno=seqno)
    if header is not None:
        moved = replace(
            moved,
            epoch=header.epoch,
            source_id=header.source_id,
            event_id=header.event_id,
            tstamp=header.tstamp,
        )
    return [
        known[channel]
        if only is not None and channel != only
        else replace(moved, channel=channel, stats=known[channel].stats if channel in known else moved.stats)
        for channel in range(channels)
        if only in (None, channel) or channel in known
    ]


def is_alive(target: Target, row: PipelineRow, *, clock: Clock, watch_s: float) -> bool:
    """Whether the pipeline's driver moves its row; one that ended in order is not waited for."""
    if row.holder == NOBODY:
        return False
    clock.sleep(watch_s)
    now = target.positions.read_pipeline(row.pipeline)
    return now is not None and now.moved_since(row)


def applied_of(
    target: Target, reader: ReadableLog, wanted: SeqnoRanges, *, pipeline: str, plan: ShardPlan
) -> SeqnoRanges:
    """Return which of these seqnos a pipeline has applied; those that it left out are none of them.

    Between its slowest and its fastest channel the plan tells whose a transaction is. By writes it is anybody's, and
    is not told there.
    """
    positions = target.positions
    stands = {row.channel: row.applied_seqno for row in positions.read_channels(pipeline)}
    slowest, fastest = min(stands.values(), default=NO_SEQNO), max(stands.values(), default=NO_SEQNO)
    found = [(first, min(last, slowest)) for first, last in wanted.ranges if first <= slowest]
    assignment = positions.read_assignment(pipeline)
    for first, last in wanted.after(slowest).ranges:
        for seqno in map(Seqno, range(first, min(last, fastest) + 1)):
            if (header := reader.header(seqno)) is not None:
                shard = plan.shard(header, lambda seqno=seqno: reader.payload(seqno).changes)  # type: ignore[misc]
                owner = plan.owner(shard, assignment)
                if owner is not None and stands.get(max(owner, 0), NO_SEQNO) >= seqno:
                    found.append((seqno, seqno))
    return SeqnoRanges.of(found).without(SeqnoRanges.of(positions.read_left_out(pipeline)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A position that is about to be set: the rows as they stand, and as they will."""

    before: tuple[ChannelRow, ...]
    after: tuple[ChannelRow, ...]

    def consequences(self) -> list[str]:
        """Say per channel what will never be applied, and what will be applied again."""
        stands = {row.channel: row.applied_seqno for row in self.before}
        told = []
        for row in self.after:
            before = stands.get(row.channel)
            if before is None or before == row.applied_seqno:
                continue
            if before < row.applied_seqno:
                told.append(
                    f"channel {row.channel} skips its transactions of seqno {before + 1} to {row.applied_seqno}"
                )
            else:
                told.append(
                    f"channel {row.channel} applies its transactions from seqno {row.applied_seqno + 1} on again"
                )
        return told


def set_position(
    target: Target,
    reader: ReadableLog,
    *,
    pipeline: str,
    seqno: Seqno,
    channel: int | None,
    plan: ShardPlan,
    clock: Clock,
    watch_s: float,
    take_over: bool,
    agree: Callable[[Move], None],
) -> Move:
    """Put all channels of a pipeline, or one, at `seqno`; `plan` serves a pipeline that never ran.

    `agree` is called before anything is changed, and raises to decline. Raises PipelineHeldError while the pipeline
    runs, unless `take_over`; ConfigError for a seqno that the log does not hold.
    """
    row = _stand_still(target, pipeline, clock=clock, watch_s=watch_s, take_over=take_over)
    channels = plan.channels if row is None or not row.channels else row.channels
    by_writes = (plan if row is None else ShardPlan.parse(row.shard_rule, channels=channels)).by is ShardBy.WRITES
    if by_writes and channel is not None and row is not None:
        why = 'by = "writes" divides transactions from one seqno for all channels; set the position of all'
        raise ConfigError(option="--channel", value=channel, why=why)
    if row is None and channel is not None:  # whose plan is lost, and who has channels
        channels = max([channels, *[one.channel + 1 for one in target.positions.read_channels(pipeline)]])

    def plan_move() -> Move:
        stored = target.positions.read_channels(pipeline)
        after = position_rows(seqno, reader.header(seqno), reader.range(), stored, channels=channels, only=channel)
        return Move(before=tuple(stored), after=tuple(after))

    agree(plan_move())
    if row is not None:  # shut out whoever still runs, then move what stands still
        _take(target, pipeline, row, plan, channels, None, keep_assignment=True)
        row = target.positions.read_pipeline(pipeline)
    move = plan_move()
    _take(target, pipeline, row, plan, channels, move.after, keep_assignment=channel is not None or not by_writes)
    return move


def reset_position(
    target: Target, *, pipeline: str, plan: ShardPlan, clock: Clock, watch_s: float, take_over: bool
) -> bool:
    """Forget where a pipeline stands, its shards' channels too; whether there was anything. Raises as set_position.

    What is left says that it is to begin anew, also where nothing was: the log may know it otherwise.
    """
    row = _stand_still(target, pipeline, clock=clock, watch_s=watch_s, take_over=take_over)
    found = row is not None or bool(target.positions.read_channels(pipeline))
    _take(target, pipeline, row, plan, 0, (), keep_assignment=False)
    return found


def _stand_still(target: Target, pipeline: str, *, clock: Clock, watch_s: float, take_over: bool) -> PipelineRow | None:
    target.positions.ensure_tables(again=True)
    row = target.positions.read_pipeline(pipeline)
    if row is not None and not take_over and is_alive(target, row, clock=clock, watch_s=watch_s):
        raise PipelineHeldError(pipeline=pipeline, holder=row.holder)
    return row


def _take(
    target: Target,
    pipeline: str,
    row: PipelineRow | None,
    plan: ShardPlan,
    channels: int,
    rows: Sequence[ChannelRow] | None,
    *,
    keep_assignment: bool,
) -> None:
    target.positions.take(
        pipeline=pipeline,
        expected_token=0 if row is None else row.token,
        holder=NOBODY,
        channels=channels,
        shard_rule=plan.text() if row is None else row.shard_rule,
        rows=rows,
        keep_assignment=keep_assignment,
    )
