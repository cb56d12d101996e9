"""The limits of a run, and the transactions that it leaves out: an operator's orders.

Owns the kinds of limits, how headers show each, and the form of a list of seqnos. Leaves the search to `apply`, for
what the log holds when a run begins, and to `channel`, for what comes later. The hard idea: every channel sees the same
headers. So a limit that is a function of the header ends all of them at the same transaction, without communication.

Source: docs/conformance.md, B7-16 (event ids are compared whole, as text they have no order).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, assert_never

from tranlog.errors import ConfigError
from tranlog.ids import Gtid, Seqno
from tranlog.listing import time_text
from tranlog.shard import UNKNOWN_SHARD

ANY_HEARTBEAT: Final = "*"
_MOST_DIGITS: Final = 18
_PART: Final = re.compile(rf"(\d{{1,{_MOST_DIGITS}}})(?:-(\d{{1,{_MOST_DIGITS}}}))?")
SKIP_RANGES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilSeqno:
    """Up to this seqno, inclusive."""

    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilGtid:
    """Up to this transaction, inclusive; refused where the log has its seqno under another epoch."""

    gtid: Gtid


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilTime:
    """Everything before the first transaction that was committed later than this, ms since 1970, at the source."""

    tstamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilEvent:
    """Up to the transaction with this event id, inclusive. The whole text counts."""

    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilHeartbeat:
    """Up to the next heartbeat of this name, inclusive; `*` is any."""

    name: str = ANY_HEARTBEAT


Limit: TypeAlias = UntilSeqno | UntilGtid | UntilTime | UntilEvent | UntilHeartbeat
Watched: TypeAlias = UntilTime | UntilEvent | UntilHeartbeat
"""Those for which headers have to be looked at."""


class Met(Protocol):
    """What a limit looks at in a header."""

    @property
    def seqno(self) -> Seqno: ...
    @property
    def event_id(self) -> str: ...
    @property
    def shard_id(self) -> str: ...
    @property
    def tstamp(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What only a payload tells: the name of the heartbeat that it is; whether it changes nothing."""

    heartbeat: str | None
    empty: bool


def reached(limit: Watched, header: Met, content: Callable[[], Content]) -> Seqno | None:
    """Return the last seqno to apply if this transaction tells it, else None.

    `content` reads the payload; it is asked only where it can matter: what changes nothing belongs to no shard, so a
    channel never passes it over unseen. The time of such a transaction is the log's own, and no commit's.
    """
    of_no_shard = header.shard_id in ("", UNKNOWN_SHARD)
    match limit:
        case UntilTime(tstamp=tstamp):
            if header.tstamp <= tstamp or (of_no_shard and content().empty):
                return None
            return Seqno(header.seqno - 1)
        case UntilEvent(event_id=event_id):
            return header.seqno if header.event_id == event_id else None
        case UntilHeartbeat(name=name):
            if not of_no_shard:
                return None
            found = content().heartbeat
            return header.seqno if found is not None and name in (ANY_HEARTBEAT, found) else None
        case _:
            assert_never(limit)


def needs_every_header(limit: Watched) -> bool:
    """Whether also transactions of other channels must be looked at, which are else passed over unparsed."""
    return not isinstance(limit, UntilHeartbeat)


def limit_text(limit: Limit | None) -> str:
    """Return how a status names a limit; empty for none."""
    match limit:
        case None:
            return ""
        case UntilSeqno(seqno=seqno):
            return f"seqno {seqno}"
        case UntilGtid(gtid=gtid):
            return str(gtid)
        case UntilTime(tstamp=tstamp):
            return f"time {time_text(tstamp)} UTC"
        case UntilEvent(event_id=event_id):
            return f"event id {event_id}"
        case UntilHeartbeat(name=name):
            return "any heartbeat" if name == ANY_HEARTBEAT else f"heartbeat {name}"
        case _:
            assert_never(limit)


# --- what to leave out ---


@dataclass(frozen=True, slots=True)
class SeqnoRanges:
    """A set of seqnos as ranges, both ends inclusive, in order and apart."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> SeqnoRanges:
        """Put ranges in order and join those that touch."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        return cls(tuple(joined))

    @classmethod
    def parse(cls, text: str) -> SeqnoRanges:
        """Read `12,15,20-29`. Raises ConfigError."""
        found = []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                why = "seqnos and ranges of them, with commas between: 12,15,20-29"
                raise ConfigError(option="--skip-seqno", value=text, why=why)
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if last < first:
                raise ConfigError(option="--skip-seqno", value=part.strip(), why="the range ends before it begins")
            found.append((first, last))
        ranges = cls.of(found)
        if len(ranges.ranges) > SKIP_RANGES_MAX:
            raise ConfigError(option="--skip-seqno", value=len(found), why=f"at most {SKIP_RANGES_MAX} ranges")
        return ranges

    def text(self) -> str:
        """Return what `parse` reads."""
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    def after(self, seqno: Seqno) -> SeqnoRanges:
        """Return what of it lies after a position."""
        return SeqnoRanges(tuple((max(first, seqno + 1), last) for first, last in self.ranges if last > seqno))

    def without(self, others: SeqnoRanges) -> SeqnoRanges:
        """Return what of it is not in others."""
        left = []
        for first, last in self.ranges:
            for begin, end in others.ranges:
                if begin <= last and end >= first:
                    if begin > first:
                        left.append((first, begin - 1))
                    first = end + 1
            if first <= last:
                left.append((first, last))
        return SeqnoRanges(tuple(left))

    def __contains__(self, seqno: object) -> bool:
        return isinstance(seqno, int) and any(first <= seqno <= last for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)
