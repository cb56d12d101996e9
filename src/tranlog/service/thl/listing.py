"""What `thl` says of a log as a whole: its index, its size, what a check found, what a purge will do.

Owns these texts, which are the ancestor's where it has them. Where its output is a defect (one event too few in `info`,
B7-6), ours is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tranlog.log.upkeep.verify import VerifyReport
from tranlog.types import Datetime, datetime_text

PURGE_WARNING: Final = (
    "WARNING: The purge command will break replication if you delete all events or delete events that have not "
    "reached all slaves."
)
PURGE_QUESTION: Final = "Are you sure you wish to delete these events"


def index_line(file: str, first: int, last: int) -> str:
    """Return one line of `thl index`; -1 for both ends of a segment without a transaction."""
    return f"LogIndexEntry {file}({first}:{last})"


class SegmentShown(msgspec.Struct, frozen=True, kw_only=True):
    """A segment in the overview: its file's name, the bytes written in it, when it was last written (ms)."""

    file: str
    bytes: int
    modified_ms: int


class LogOverview(msgspec.Struct, frozen=True, kw_only=True):
    """What `thl info` tells. `events` counts transactions; None where damage hides how many there are."""

    directory: str
    files: int
    bytes: int
    min_seqno: int
    max_seqno: int
    events: int | None
    oldest: SegmentShown | None
    newest: SegmentShown | None
    history: str | None


def overview(
    directory: str,
    segments: Sequence[SegmentShown],
    *,
    first: int,
    last: int,
    events: int | None,
    history: bytes | None,
) -> LogOverview:
    """Put the overview together; -1 for both ends of a log without a transaction."""
    return LogOverview(
        directory=directory.rstrip("/") + "/",
        files=len(segments),
        bytes=sum(segment.bytes for segment in segments),
        min_seqno=first,
        max_seqno=last,
        events=events,
        oldest=segments[0] if segments else None,
        newest=segments[-1] if segments else None,
        history=None if history is None else history.hex(),
    )


def overview_lines(shown: LogOverview) -> Iterator[str]:
    """Yield the lines of `thl info`."""
    yield f"log directory = {shown.directory}"
    yield f"log files = {shown.files}"
    yield f"logs size = {_megabytes(shown.bytes)}"
    yield f"min seq# = {shown.min_seqno}"
    yield f"max seq# = {shown.max_seqno}"
    if shown.events is not None:
        yield f"events = {shown.events}"
    for which, segment in (("oldest", shown.oldest), ("newest", shown.newest)):
        if segment is not None:
            written = datetime_text(Datetime(segment.modified_ms // 1000 * 1_000_000))
            yield f"{which} file = {segment.file} ({_megabytes(segment.bytes)}, {written})"
    if shown.history is not None:
        yield f"history = {shown.history}"


def verify_lines(found: VerifyReport) -> Iterator[str]:
    """Yield the lines of `thl verify`."""
    yield f"log directory = {found.path.rstrip('/')}/"
    yield f"log files = {found.segments}"
    yield f"logs size = {_megabytes(found.bytes)}"
    yield f"min seq# = {found.first_seqno}"
    yield f"max seq# = {found.last_seqno}"
    yield f"events = {found.transactions}"
    if found.abandoned:
        yield f"abandoned = {found.abandoned}"
    yield f"fragments = {found.fragments}"
    if found.spilled:
        yield f"spilled = {found.spilled} ({_megabytes(found.spill_bytes)})"
    unproven = "none" if not found.unchecked else f"{found.unchecked} fragments, whose bytes cannot be checked"
    yield f"without checksum = {unproven if found.checksums_used else 'not looked at'}"
    yield f"end = {found.tail or 'clean'}"
    yield f"stored index = {found.index}"
    for problem in found.problems:
        seqno = "" if problem.seqno is None else f", seqno {problem.seqno}"
        yield f"PROBLEM at {problem.segment}, offset {problem.offset}{seqno}: {problem.kind}: {problem.why}"
    yield f"sound = {'yes' if found.sound else 'no'}"


def _megabytes(size: int) -> str:
    return f"{size / (1024 * 1024):.2f} MB"


def purge_line(low: int | None, high: int | None) -> str:
    """Return what `thl purge` says it deletes."""
    if low is not None and low == high:
        where = f"SEQ# = {low}"
    else:
        parts = [] if low is None else [f"SEQ# >= {low}"]
        parts += [] if high is None else [f"SEQ# <={high}"]
        where = " and ".join(parts)
    return f"Deleting events where {where}"
