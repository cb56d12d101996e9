"""Segments added and trimmed by hand, by whoever has the log's lock: this command, or the process that captures.

Owns the two operations and who carries them out. What may go is `log.retention`'s decision, the steps on the disk are
the log's own. The hard idea: there is one writer, so where one runs it is asked to do it, and nobody has to be stopped.

Source: tokumx-replication, "Oplog Management": addPartition, trimToGTID and trimToTS are the running server's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tranlog.errors import ConfigError
from tranlog.ids import Seqno
from tranlog.log.rules.retention import UpToSeqno, UpToTime
from tranlog.log.writing.log import Log
from tranlog.service.process.api import Added, Trim, Trimmed, post
from tranlog.service.process.client import opened_or_asked, writer_of

_TIMEOUT_S = 600.0
"""A large transaction has to end before a segment can."""


class LogUpkeep:
    """A log that this process has open for writing."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @post("/log/add-segment")
    def add(self) -> Added:
        """Close the newest segment and begin the next. Raises as `Log.add_segment`."""
        name = self.log.add_segment()
        return Added(added=name, closed=self.log.segments()[-2].name)

    @post("/log/trim")
    def trim(self, asked: Trim) -> Trimmed:
        """Remove whole segments from the front, or say which would go. Raises ConfigError, and as `Log.trim`."""
        sizes = {one.number: one.bytes for one in self.log.segments()}
        limit: UpToSeqno | UpToTime
        if asked.to_seqno is not None and asked.to_time_ms is None:
            limit = UpToSeqno(seqno=Seqno(asked.to_seqno), told=asked.told, hard=asked.hard)
        elif asked.to_time_ms is not None and asked.to_seqno is None:
            limit = UpToTime(at_ms=asked.to_time_ms, told=asked.told, hard=asked.hard)
        else:
            raise ConfigError(option="trim", value=None, why="up to where: one of to_seqno and to_time_ms")
        plan = self.log.trim(limit, dry_run=asked.dry_run)
        return Trimmed(
            gone=plan.gone,
            bytes=sum(sizes.get(number, 0) for number in plan.gone),
            up_to=plan.up_to,
            passed=plan.passed,
            kept_for=plan.kept_for,
            first_seqno=self.log.first_seqno,
        )


def upkeep_of(path: str) -> AbstractContextManager[LogUpkeep]:
    """Give whoever can write the log at `path`: this process, or the capture that runs.

    Raises as `Log.open_for_upkeep`; LogLockedError where its writer does not answer.
    """
    return opened_or_asked(lambda: Log.open_for_upkeep(path), LogUpkeep, writer_of(path), timeout_s=_TIMEOUT_S)
