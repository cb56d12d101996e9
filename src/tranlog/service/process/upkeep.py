"""Segments added and trimmed by hand, by whoever has the log's lock: this command, or the process that captures.

Owns the two operations and who carries them out. What may go is `log.retention`'s decision, the steps on the disk are
the log's own. The hard idea: there is one writer, so where one runs it is asked to do it, and nobody has to be stopped.

Source: tokumx-replication, "Oplog Management": addPartition, trimToGTID and trimToTS are the running server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from tranlog.errors import ControlError, LogLockedError
from tranlog.ids import Seqno
from tranlog.log.rules.retention import Limit, UpToSeqno, UpToTime
from tranlog.log.writing.log import Log
from tranlog.service.process.control import CAPTURE_NAME, call, socket_paths
from tranlog.service.process.requests import AddSegment, GetState, Trim

_TIMEOUT_S = 600.0
"""A large transaction has to end before a segment can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The names of the segment that was begun, and of the one that was closed for it."""

    added: str
    closed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What went, or would go: whole segments from the front, their bytes, and the last seqno in them.

    `passed` names the holds that lose something by it, `kept_for` those without which more would go. The log begins at
    `first_seqno`, NO_SEQNO while it is empty.
    """

    gone: tuple[int, ...]
    bytes: int
    up_to: Seqno | None
    passed: tuple[str, ...]
    kept_for: tuple[str, ...]
    first_seqno: Seqno


class Upkeep(Protocol):
    """Who adds and trims segments."""

    def add(self) -> Added:
        """Close the newest segment and begin the next. Raises as `Log.add_segment`."""

    def trim(self, limit: UpToSeqno | UpToTime, *, dry_run: bool) -> Trimmed:
        """Remove whole segments from the front, or say which would go. Raises as `Log.trim`."""


class _ByLog:
    """A log that this process has open for writing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def add(self) -> Added:
        name = self._log.add_segment()
        return Added(added=name, closed=self._log.segments()[-2].name)

    def trim(self, limit: Limit, *, dry_run: bool) -> Trimmed:
        sizes = {one.number: one.bytes for one in self._log.segments()}
        plan = self._log.trim(limit, dry_run=dry_run)
        return Trimmed(
            gone=plan.gone,
            bytes=sum(sizes.get(number, 0) for number in plan.gone),
            up_to=plan.up_to,
            passed=plan.passed,
            kept_for=plan.kept_for,
            first_seqno=self._log.first_seqno,
        )


class _ByWriter:
    """The process that captures into the log."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def add(self) -> Added:
        return msgspec.convert(call(self._addresses, AddSegment(), timeout_s=_TIMEOUT_S), Added)

    def trim(self, limit: UpToSeqno | UpToTime, *, dry_run: bool) -> Trimmed:
        if isinstance(limit, UpToSeqno):
            request = Trim(to_seqno=limit.seqno, told=limit.told, hard=limit.hard, dry_run=dry_run)
        else:
            request = Trim(to_time_ms=limit.at_ms, told=limit.told, hard=limit.hard, dry_run=dry_run)
        return msgspec.convert(call(self._addresses, request, timeout_s=_TIMEOUT_S), Trimmed)


@contextmanager
def upkeep_of(path: str, *, runtime_dir: str | None) -> Iterator[Upkeep]:
    """Give whoever can write the log at `path`: this process, or the capture that runs.

    Raises as `Log.open_for_upkeep`; LogLockedError where its writer does not answer.
    """
    try:
        log = Log.open_for_upkeep(path)
    except LogLockedError as locked:
        addresses = socket_paths(path, CAPTURE_NAME, runtime_dir=runtime_dir)
        try:
            call(addresses, GetState())
        except ControlError:
            raise locked from None
        yield _ByWriter(addresses)
        return
    with log:
        yield _ByLog(log)


def carry_out(log: Log, request: AddSegment | Trim) -> dict[str, Any]:
    """Do what was asked of the process that has the log open; return the answer. Raises as the log does."""
    upkeep = _ByLog(log)
    if isinstance(request, AddSegment):
        return msgspec.to_builtins(upkeep.add())  # type: ignore[no-any-return]
    limit: Limit
    if request.to_time_ms is not None:
        limit = UpToTime(at_ms=request.to_time_ms, told=request.told, hard=request.hard)
    else:
        limit = UpToSeqno(seqno=Seqno(request.to_seqno), told=request.told, hard=request.hard)
    return msgspec.to_builtins(upkeep.trim(limit, dry_run=request.dry_run))  # type: ignore[no-any-return]
