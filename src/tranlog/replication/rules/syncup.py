"""Syncup: where two histories diverge, and what a follower does then.

Owns the search for the greatest common GTID, both sides of it, and the verdict. The hard idea: an epoch is written by
one primary, so two logs that hold an epoch hold the same beginning of it. A question and an answer are then enough for
each epoch that differs; the hash at the matchpoint finds histories that only number alike.

Source: vlsn-index (syncup), tokumx-replication (Rollback), thl-internals (EPOCH Numbers); docs/protocol.md,
"Syncup".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules.effects import ReplicatedLog
from tranlog.replication.rules.packets import NO_GTID, Here, Where


class Verdict(Enum):
    """The decision of a follower that knows the matchpoint."""

    STREAM = "stream"
    ROLL_BACK = "roll back"
    WAIT = "wait"
    RESTORE = "restore"
    FATAL = "fatal"


class SyncupFinding(msgspec.Struct, frozen=True):
    """A verdict with its matchpoint; `why` for people."""

    verdict: Verdict
    matchpoint: Gtid
    why: str = ""


def holds(log: ReplicatedLog, gtid: Gtid) -> bool:
    """Whether a log holds exactly this transaction; a log from its beginning holds the place before everything."""
    if gtid == NO_GTID:
        return log.first == 0
    return log.gtid(gtid.seqno) == gtid


def first_question(log: ReplicatedLog, number: int) -> Where:
    """Return the follower's first question: its last GTID."""
    return _question(log, log.last, number)


def _question(log: ReplicatedLog, gtid: Gtid, number: int) -> Where:
    return Where(number=number, gtid=gtid, h=_h(log, gtid))


def _h(log: ReplicatedLog, gtid: Gtid) -> int:
    """Return the running hash up to a GTID; 0 if the log does not hold it: it was purged, and lost the rest."""
    return log.h(gtid.seqno) if holds(log, gtid) else 0


def answer(log: ReplicatedLog, where: Where, epoch: int) -> Here:
    """Return the source's answer: the GTID asked for if it has it, else its last of that or an earlier epoch."""
    found = where.gtid if holds(log, where.gtid) else _at_or_below(log, where.gtid)
    return Here(
        number=where.number,
        asked=where.gtid,
        found=found,
        h=_h(log, found),
        first=log.first,
        last=log.last,
        epoch=epoch,
    )


def next_question(log: ReplicatedLog, here: Here) -> Where | None:
    """Return what to ask after an answer; None when the search is over: `found` is the matchpoint, or there is none."""
    if here.found == here.asked or holds(log, here.found):
        return None
    mine = _at_or_below(log, here.found)
    return None if mine == NO_GTID and not holds(log, NO_GTID) else _question(log, mine, here.number)


def _at_or_below(log: ReplicatedLog, gtid: Gtid) -> Gtid:
    """Return the log's own greatest GTID at or below one, `NO_GTID` where there is none."""
    mine = log.last_of_epoch(gtid.epoch)
    if mine.epoch == gtid.epoch and mine.seqno > gtid.seqno:
        held = log.gtid(gtid.seqno)
        mine = held if held is not None and held <= gtid else log.last_of_epoch(gtid.epoch - 1)
    return mine


class Limits(msgspec.Struct, frozen=True):
    """How much may be rolled back."""

    limit_s: int = 1800
    allow_ddl: bool = False


def judge(log: ReplicatedLog, here: Here, committed: Gtid, limits: Limits) -> SyncupFinding:
    """Return the verdict after a search."""
    last, found = log.last, here.found
    if not holds(log, found) or (found == NO_GTID and here.first != 0):
        if here.last < last:
            return SyncupFinding(Verdict.WAIT, NO_GTID, f"the source ends at {here.last}, this log at {last}")
        return SyncupFinding(
            Verdict.RESTORE, NO_GTID, f"nothing in common: this log begins at {log.first}, the source's at {here.first}"
        )
    if log.h(found.seqno) != here.h:
        return SyncupFinding(
            Verdict.FATAL,
            found,
            f"both logs hold {found}, and their hashes up to it differ: two histories with one name",
        )
    if found == last:
        return SyncupFinding(Verdict.STREAM, found)
    if here.last < last:
        return SyncupFinding(Verdict.WAIT, found, f"the source ends at {here.last}, this log at {last}")
    if committed > found:
        return SyncupFinding(
            Verdict.FATAL, found, f"committed history differs: committed up to {committed}, equal up to {found}"
        )
    return _may_roll_back(log, found, limits)


def _may_roll_back(log: ReplicatedLog, found: Gtid, limits: Limits) -> SyncupFinding:
    last = log.last
    if found != NO_GTID:
        apart = log.written_at(last.seqno) - log.written_at(found.seqno)
        if apart > limits.limit_s * 1000:
            return SyncupFinding(
                Verdict.FATAL,
                found,
                f"{found} was logged here {apart // 1000} s before {last}; rollback_limit_s is {limits.limit_s}",
            )
    if not limits.allow_ddl and log.has_ddl(found.seqno):
        why = f"what comes after {found} holds DDL, which a target may have run; rollback_ddl = abandon in the group's"
        return SyncupFinding(Verdict.FATAL, found, f"{why} configuration allows it")
    return SyncupFinding(Verdict.ROLL_BACK, found)


# --- what a rollback keeps -------------------------------------------------------------------------------

SAVE, MARK = "save", "mark"
ROLLBACK_STEPS = (SAVE, MARK)
"""What goes is durable in the rollback data before the mark abandons it."""


def rollback_id(saved: Mapping[int, tuple[Gtid, Gtid]], matchpoint: Gtid, last: Gtid) -> int:
    """Return the number of a rollback: that of an interrupted one with the same ends, else the next, from 0."""
    for rid, ends in saved.items():
        if ends == (matchpoint, last):
            return rid
    return max(saved, default=-1) + 1


class Saved(msgspec.Struct, frozen=True):
    """An operation that was rolled back. `time`: when it was saved, ms since 1970; `seq` 0 is the newest.

    `op` is for people. `event_id` and `payload`, which holds this one change, are what it is committed again from;
    `payload` is empty where nothing was changed.
    """

    rid: int
    seq: int
    gtid: Gtid
    gtid_string: str
    time: int
    op: object
    event_id: str
    payload: bytes


Going = tuple[Gtid, str, Sequence[tuple[object, bytes]]]
"""A transaction that goes: its event id, and its operations in order, each with its payload."""


def saved_rows(newest_first: Iterable[Going], rid: int, time: int) -> Iterator[Saved]:
    """Yield the rows of a rollback: transactions newest first, the operations of each from its last to its first."""
    seq = 0
    for gtid, event_id, ops in newest_first:
        for op, payload in reversed(ops):
            yield Saved(rid, seq, gtid, str(gtid), time, op, event_id, payload)
            seq += 1


# --- the handshake ---------------------------------------------------------------------------------------


def handshake_refused(
    log: ReplicatedLog, *, source: str, last: Gtid, may_roll_back: bool, force: bool, heartbeat_ms: int
) -> str | None:
    """Return why a server refuses a client whose last transaction is `last`; None if it accepts.

    The server confirms that the client's last seqno has the client's epoch. It may hold only the one before its first,
    of which it knows no epoch; or nothing yet.
    """
    if heartbeat_ms <= 0:
        return heartbeat_refused(source)
    if force or (last == NO_GTID and log.first == 0) or may_roll_back:
        return None
    if last.seqno < log.first - 1:
        return (
            f"Client handshake failure: seqno {last.seqno + 1} is not in this log, which holds {log.first} to "
            f"{log.last.seqno}: client source ID={source}"
        )
    own = log.gtid(last.seqno)
    return None if own is None or own == last else epochs_differ(source, last, own)


def epochs_differ(source: str, last: Gtid, own: Gtid) -> str:
    """Return the document's words for a client whose last transaction has another epoch here."""
    return (
        "Client handshake failure: Client response validation failed: Log epoch numbers do not match: "
        f"client source ID={source} seqno={last.seqno} server epoch number={own.epoch} client epoch number={last.epoch}"
    )


def event_missing(source: str, event_id: str, first: int, upto: int) -> str:
    """Return why a client is refused whose event id the server does not find."""
    return (
        f"Client handshake failure: no transaction from seqno {first} to {upto} has the event id {event_id!r}: "
        f"client source ID={source}"
    )


def heartbeat_refused(source: str) -> str:
    """Return why a client without heartbeats is refused."""
    return f"Client handshake failure: Heartbeat interval must be greater than 0: client source ID={source}"
