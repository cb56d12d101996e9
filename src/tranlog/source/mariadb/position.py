"""Where a reader stands in a MariaDB's binary log: the GTID list of all domains, with file and offset beside it.

Owns the text form that is the `event_id` of a MariaDB source, its order, and what a start option means. Pure. The
hard idea: GTIDs say where to go on, also at another server of the same group; file and offset only prove that the
server there still has the history in which the GTIDs were given out, since a server that lost its tail in a crash
gives out the same GTIDs again.

Source: design/sources.md, "MariaDB".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_FILE = re.compile(r"([^,;:\s]+):(\d{1,20})")

OFFSETS_WRAP_AT = 1 << 32
"""Events carry their offset in 32 bits: in a file beyond this size an offset proves nothing."""


class DomainGtid(msgspec.Struct, frozen=True, order=True):
    """One of MariaDB's own GTIDs, `domain-server-sequence`: the last transaction of a domain."""

    domain: int
    server_id: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server_id}-{self.sequence}"


class BinlogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two transactions: everything up to here is done.

    `gtids` are sorted by domain, at most one of each. `file` is empty where only the GTIDs are known; `offset` is
    the end of the last transaction in `file`.
    """

    gtids: tuple[DomainGtid, ...] = ()
    file: str = ""
    offset: int = 0

    def __str__(self) -> str:
        """Return the event id: `0-1-42,1-1-7;binlog.000003:12345`."""
        return f"{gtid_text(self.gtids)};{self.file}:{self.offset}" if self.file else gtid_text(self.gtids)

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        """Read an event id, with or without its file. Raises ValueError for anything else."""
        gtids, separator, place = text.strip().partition(";")
        if not separator:
            return cls(gtids=parse_gtids(gtids))
        match = _FILE.fullmatch(place.strip())
        if match is None:
            raise ValueError(f"not a binlog's file and offset: {place!r}; they read binlog.000003:12345")
        return cls(gtids=parse_gtids(gtids), file=match[1], offset=int(match[2]))

    def by_domain(self) -> dict[int, DomainGtid]:
        """Return the GTIDs by their domain."""
        return {gtid.domain: gtid for gtid in self.gtids}


def gtid_text(gtids: Iterable[DomainGtid]) -> str:
    """Return a GTID list as the server reads it: `0-1-42,1-1-7`; empty for none."""
    return ",".join(map(str, gtids))


def parse_gtids(text: str) -> tuple[DomainGtid, ...]:
    """Read a GTID list in any order and return it by domain. Raises ValueError, also for a domain named twice."""
    gtids: dict[int, DomainGtid] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _GTID.fullmatch(part)
        if match is None:
            raise ValueError(f"not a MariaDB GTID: {part!r}; one reads 0-1-42")
        gtid = DomainGtid(int(match[1]), int(match[2]), int(match[3]))
        if gtid.domain in gtids:
            raise ValueError(f"domain {gtid.domain} stands twice in the GTID list {text!r}")
        gtids[gtid.domain] = gtid
    return tuple(gtids[domain] for domain in sorted(gtids))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNow:
    """Start behind the last transaction that the server has written when the first start asks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEarliest:
    """Start with the first transaction that the server still has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtGtids:
    """Start behind these GTIDs."""

    gtids: tuple[DomainGtid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtFile:
    """Start at this offset of this file, which must lie between two transactions."""

    file: str
    offset: int


Start = StartNow | StartEarliest | StartAtGtids | StartAtFile


def parse_start(text: str) -> Start:
    """Read the option `start`: `now`, `earliest`, a GTID list, or `file:offset`. Raises ValueError."""
    text = text.strip()
    match text:
        case "now":
            return StartNow()
        case "earliest":
            return StartEarliest()
    place = _FILE.fullmatch(text)
    if place is not None:
        return StartAtFile(file=place[1], offset=int(place[2]))
    gtids = parse_gtids(text)
    if not gtids:
        raise ValueError("an empty position; write now, earliest, a GTID list such as 0-1-42, or binlog.000003:12345")
    return StartAtGtids(gtids=gtids)


def why_lost(position: BinlogPosition, *, server_state: Mapping[int, int]) -> str | None:
    """Say why a server cannot go on from `position`, judged by its GTIDs alone; None when nothing speaks against it.

    `server_state` is the highest sequence number of each domain that the server has ever written to its binlog.
    The server itself would start over from the beginning for a domain that it does not know.
    """
    for gtid in position.gtids:
        highest = server_state.get(gtid.domain)
        if highest is None:
            return (
                f"its GTID {gtid} is of domain {gtid.domain}, which the server's binlog has never held: the binlog "
                "was reset, or this is another server"
            )
        if gtid.sequence > highest:
            return (
                f"its GTID {gtid} is ahead of the server, which ends at sequence {highest} of that domain: the server "
                "lost its last transactions, or was restored from a backup"
            )
    return None
