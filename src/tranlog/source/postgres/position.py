"""Where a reader stands in a PostgreSQL's WAL, and whether a server has the history that the log has.

Owns the text form that is the `event_id` of a PostgreSQL source, and the judgement of a server by it. Pure. The hard
idea: an LSN is given out again by a server that was restored or promoted, and a slot forgets silently what it was told
to forget. So the server's system identifier, its timeline and the slot stand beside the LSN, and a slot that has
confirmed more than the log holds is refused.

Source: PostgreSQL's manual, "Logical Decoding Concepts", "Timelines".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_EVENT_ID = re.compile(r"([0-9A-F]{1,8}/[0-9A-F]{1,8});(\d{1,20});(\d{1,10});([a-z0-9_]{1,63})(?:;xid=(\d{1,10}))?")


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Read an LSN. Raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"not an LSN: {text!r}; one reads 16/B374D848")
    return int(high, 16) << 32 | int(low, 16)


def slot_dropping(slot: str) -> str:
    """Return the statement that drops a slot, for messages."""
    return f"SELECT pg_drop_replication_slot('{slot}')"


class WalPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two transactions: everything committed before it is done.

    `lsn` is the first byte after the last commit record, `xid` that transaction; 0: not known. `system` is the server's
    system identifier.
    """

    lsn: int
    system: str
    timeline: int
    slot: str
    xid: int = 0

    def __str__(self) -> str:
        """Return the event id: `16/B374D848;7298342934123412341;1;tranlog_shop;xid=743`."""
        text = f"{lsn_text(self.lsn)};{self.system};{self.timeline};{self.slot}"
        return f"{text};xid={self.xid}" if self.xid else text

    @classmethod
    def parse(cls, text: str) -> WalPosition:
        """Read an event id. Raises ValueError."""
        found = _EVENT_ID.fullmatch(text)
        if found is None:
            raise ValueError("it reads 16/B374D848;7298342934123412341;1;tranlog_shop")
        return cls(
            lsn=parse_lsn(found[1]), system=found[2], timeline=int(found[3]), slot=found[4], xid=int(found[5] or 0)
        )


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A replication slot as pg_replication_slots shows it. `active_pid`: who reads from it; None: nobody."""

    confirmed_lsn: int | None
    wal_status: str
    active_pid: int | None


class ServerHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. `switches`: of each earlier timeline, the LSN at which its history left it.

    `end_lsn` is where its WAL ends by now.
    """

    system: str
    timeline: int
    end_lsn: int
    switches: Mapping[int, int]


def why_lost(position: WalPosition, server: ServerHistory, slot: SlotState | None) -> str | None:
    """Say why a server cannot go on from `position`; None when nothing speaks against it."""
    at = f"the log ends at {lsn_text(position.lsn)} of timeline {position.timeline}"
    if server.system != position.system:
        return (
            f"the server's system identifier is {server.system}, and the log's is {position.system}: this is another "
            "server, or it was made anew"
        )
    confirmed = None if slot is None or slot.confirmed_lsn is None else slot.confirmed_lsn
    shown = "there is no such slot" if confirmed is None else f"the slot has confirmed {lsn_text(confirmed)}"
    if server.timeline != position.timeline:
        switch = server.switches.get(position.timeline)
        if switch is None:
            return (
                f"the server is on timeline {server.timeline}, whose history does not come from timeline "
                f"{position.timeline}, where the log ends: it was restored from a backup, or is an earlier primary"
            )
        if position.lsn > switch:
            return (
                f"the server's timeline {server.timeline} left timeline {position.timeline} at {lsn_text(switch)}, {at}"
                f", and {shown}: the new server never had the log's last transactions, or was restored from a backup"
            )
        if confirmed is not None and confirmed > position.lsn:
            return (
                f"the server's timeline {server.timeline} left timeline {position.timeline} at {lsn_text(switch)}, {at}"
                f", and {shown}, which is more than the log holds: the slot was made anew, or another program reads it"
            )
    if slot is None:
        return f"the server has no slot {position.slot!r}: it was dropped, or did not come along with a promotion"
    if slot.wal_status == "lost" or confirmed is None:
        return (
            f"the slot {position.slot!r} is invalidated: the server removed WAL that it still needed "
            f"(max_slot_wal_keep_size). Drop it: {slot_dropping(position.slot)}"
        )
    if confirmed > position.lsn:
        return f"{at}, and {shown}: the slot was dropped and made anew, or another program has read from it"
    if server.end_lsn < position.lsn:
        return (
            f"{at}, and the server's WAL ends at {lsn_text(server.end_lsn)}: the server was restored from a backup, or "
            "lost its last transactions"
        )
    return None


def parse_history(text: str) -> dict[int, int]:
    """Read a timeline history file: of each earlier timeline, the LSN at which it was left. Raises ValueError."""
    switches = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            switches[int(words[0])] = parse_lsn(words[1]) if len(words) > 1 else 0
    return switches
