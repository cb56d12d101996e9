"""A target that is written to without log and pipeline: one transaction after the other, in this process.

Owns the claim of its one channel and the seqnos. What is tried with it is what a transaction becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tranlog.change import Change, Options
from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, ApplyUnit, ChannelRow

_PIPELINE: Final = "direct"
_SOURCE_ID: Final = "source"


class DirectTarget:
    """A target that is open, with one channel; `applied` is the last seqno that it has. Threads: one."""

    def __init__(self, options: TargetOptions, *, applied: Seqno = NO_SEQNO) -> None:
        """Open it, and take its one channel from whoever had it. Raises what `open_target` does."""
        self.applied = applied
        self._target = open_target(options)
        self.rows = self._target.rows
        positions = self._target.positions
        positions.ensure_tables()
        row = positions.read_pipeline(_PIPELINE)
        token = positions.take(
            pipeline=_PIPELINE,
            expected_token=row.token if row is not None else 0,
            holder="",
            channels=1,
            shard_rule="all",
            rows=[ChannelRow(channel=0, applied_seqno=applied, epoch=Epoch(1))],
            keep_assignment=False,
        )
        self._token = positions.claim(pipeline=_PIPELINE, channel=0, driver_token=token).token

    def write(self, changes: Sequence[Change], event_id: str, tstamp: int, metadata: Options) -> None:
        """Apply one transaction under the next seqno. Raises TargetError, ConflictError."""
        seqno = Seqno(self.applied + 1)
        unit = ApplyUnit(
            seqno=seqno,
            epoch=Epoch(1),
            source_id=_SOURCE_ID,
            event_id=event_id,
            tstamp=tstamp,
            metadata=metadata,
            changes=lambda: iter(changes),
        )
        advance = Advance(
            pipeline=_PIPELINE,
            channel=0,
            token=self._token,
            old_seqno=self.applied,
            new_seqno=seqno,
            epoch=Epoch(1),
            source_id=_SOURCE_ID,
            event_id=event_id,
            tstamp=tstamp,
            stats="{}",
        )
        self._target.apply([unit], advance)
        self.applied = seqno

    def close(self) -> None:
        """Close it."""
        self._target.close()
