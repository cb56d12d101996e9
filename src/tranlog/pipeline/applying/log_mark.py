"""Distinguishing a log from one of the same name on another machine, and opening it where a task runs.

Source: docs/cluster.md, "Set up".
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from tranlog.codecs.opening import open_readable
from tranlog.errors import EngineError, LogMissingError, LogUnreadableError
from tranlog.ids import Epoch, Seqno
from tranlog.log.reading.readable import ReadableLog


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """The first transaction of a log, which distinguishes it from another."""

    seqno: Seqno
    epoch: Epoch
    source_id: str
    event_id: str
    tstamp: int


def log_mark(reader: ReadableLog, seqno: Seqno | None = None) -> LogMark | None:
    """Return a log's mark, or its transaction `seqno` as one; None if the log does not hold it."""
    first = reader.range().first_seqno
    wanted = first if seqno is None else seqno
    header = reader.header(wanted) if 0 <= first <= wanted else None
    if header is None:
        return None
    return LogMark(
        seqno=wanted,
        epoch=header.epoch,
        source_id=header.source_id,
        event_id=header.event_id,
        tstamp=header.tstamp,
    )


def open_log(log_dir: str, *, checksum: bool, mark: LogMark | None) -> ReadableLog:
    """Open the log where a task runs, maybe on another machine than its driver; `mark`: of the driver's, on a cluster.

    Raises LogMissingError, LogUnreadableError; on a cluster EngineError, naming host and path, if the log is missing or
    is another one.
    """
    here = socket.gethostname()
    remedy = (
        "Mount the log's folder on each worker under the driver's path, readable to the user that Spark runs as there"
    )
    try:
        reader = open_readable(log_dir, checksum=checksum)
    except (LogMissingError, LogUnreadableError) as exc:
        if mark is None:
            raise
        why = f"the worker on {here} cannot read the log at {log_dir}: {exc.why}"
        raise EngineError(why=why, remedy=remedy) from exc
    if mark is not None and reader.range().first_seqno <= mark.seqno:  # else it was purged in the meantime
        found = log_mark(reader, mark.seqno)
        if found != mark:
            reader.close()
            why = f"what the worker on {here} has at {log_dir} is another log than the driver's"
            raise EngineError(why=why, remedy=remedy)
    return reader
