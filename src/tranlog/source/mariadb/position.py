"""Where a reader stands in a MariaDB's binary log: the GTID list of all domains, and what proves that it is the same.

Owns the text form that is the `event_id` of a MariaDB source, its order, and what a start option means. Pure. The
hard idea: GTIDs say where to go on, also at another server of the same group, and prove nothing: a server that was
reset, restored or replaced gives out the same ones again. So whose they are (the server's uid, its file and offset)
and a checksum of the last transaction stand beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_FILE = re.compile(r"([^,;:\s]+):(\d{1,20})")
_PROOF = re.compile(r"([A-Za-z0-9+/=]*)(?::(\d{1,10}):(\d{1,10}):([0-9a-f]{8}))?")
SERVER_CHARACTERS = 8
"""So much of `@@server_uid` tells servers apart; an equal one proves nothing."""

OFFSETS_WRAP_AT = 1 << 32
"""Events carry their offset in 32 bits: in a file beyond this size an offset proves nothing."""


class DomainGtid(msgspec.Struct, frozen=True, order=True):
    """One of MariaDB's own GTIDs, `domain-server-sequence`: the last transaction of a domain."""

    domain: int
    server_id: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server_id}-{self.sequence}"


class LastTransaction(msgspec.Struct, frozen=True):
    """How the last transaction of a position is known again: its domain, its bytes in the file, its checksum.

    The checksum is over what a replica that writes its own binlog repeats: commit time, tables, rows, statements.
    """

    domain: int
    size: int
    checksum: int


class BinlogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two transactions: everything up to here is done.

    `gtids` are sorted by domain, at most one of each. `file` is empty where only the GTIDs are known; `offset` is
    the end of the last transaction in `file`. `server` is the beginning of the server's uid, empty where it has none.
    `prepared` are the GTIDs before the oldest XA transaction that is prepared, neither committed nor rolled back,
    and has changes that are captured; None: there is none.
    """

    gtids: tuple[DomainGtid, ...] = ()
    file: str = ""
    offset: int = 0
    server: str = ""
    last: LastTransaction | None = None
    prepared: tuple[DomainGtid, ...] | None = None

    def __str__(self) -> str:
        """Return the event id: `0-1-42,1-1-7;binlog.000003:12345;rLCTv1jW:0:378:5d2f0a91`, and `;xa=0-1-40,1-1-7`."""
        text = f"{gtid_text(self.gtids)};{self.file}:{self.offset}" if self.file else gtid_text(self.gtids)
        last = self.last
        if last is not None:
            text = f"{text};{self.server}:{last.domain}:{last.size}:{last.checksum:08x}"
        elif self.server:
            text = f"{text};{self.server}"
        return text if self.prepared is None else f"{text};xa={gtid_text(self.prepared)}"

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        """Read an event id, also one that lacks file, server or last transaction. Raises ValueError for others."""
        gtids, *parts = (part.strip() for part in text.split(";"))
        file, offset, server, last = "", 0, "", None
        if parts and (place := _FILE.fullmatch(parts[0])):
            file, offset = place[1], int(place[2])
            del parts[0]
        prepared = None
        if parts and parts[-1].startswith("xa="):
            prepared = parse_gtids(parts.pop()[3:])
        if parts and parts[0] and (proof := _PROOF.fullmatch(parts[0])):
            server = proof[1]
            if proof[2]:
                last = LastTransaction(int(proof[2]), int(proof[3]), int(proof[4], 16))
            del parts[0]
        if parts:
            raise ValueError(f"not a binlog's file and offset: {parts[0]!r}; they read binlog.000003:12345")
        return cls(gtids=parse_gtids(gtids), file=file, offset=offset, server=server, last=last, prepared=prepared)

    def covers(self, other: BinlogPosition) -> bool:
        """Whether `other`, of the same binlog, is no later: nothing up to there is missing here."""
        mine = self.by_domain()
        return all(gtid.domain in mine and gtid.sequence <= mine[gtid.domain].sequence for gtid in other.gtids)

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
    """Start after the last transaction that the server has written when the first start asks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEarliest:
    """Start with the first transaction that the server still has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtGtids:
    """Start after these GTIDs."""

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

    `server_state` is the highest sequence number of each domain that the server has ever written to its binlog, but
    for domains that ended and were deleted: those are passed over, as long as one of the others is there. The server
    itself would start over from the beginning for a domain that it does not know.
    """
    if position.gtids and not any(gtid.domain in server_state for gtid in position.gtids):
        domains = " and ".join(f"{gtid} is of domain {gtid.domain}" for gtid in position.gtids)
        return (
            f"its GTID {domains}, which the server's binlog has never held: the binlog was reset, or this is another "
            "server"
        )
    for gtid in position.gtids:
        highest = server_state.get(gtid.domain, gtid.sequence)
        if gtid.sequence > highest:
            return (
                f"its GTID {gtid} is ahead of the server, which ends at sequence {highest} of that domain: the server "
                "lost its last transactions, or was restored from a backup"
            )
    return None


def is_newer_file(file: str, than: str) -> bool:
    """Whether a binlog file comes after another of the same name; never for files of different names."""
    name, _, number = file.rpartition(".")
    other, _, newest = than.rpartition(".")
    return name == other and number.isdecimal() and newest.isdecimal() and int(number) > int(newest)
