"""The search for a transaction by its event id, in the log of a confirmed primary.

Owns the steps of the answer. The hard idea: "not found" must stay true. So a majority confirms the primary after the
question arrived, everything received before the question is in the log by then or refused, and connections over which
the same client could still send are ended first.

Source: docs/protocol.md, "Looking for a transaction".
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import msgspec

from tranlog.errors import AbandonedError, LogClosedError, LogError, PurgedError, SegmentGoneError
from tranlog.ids import Gtid, Seqno
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting.core_thread import REFUSED, Awaited, CoreThread
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.finding import FOUND, MORE, NOT_THERE, LogPart, part_to_walk
from tranlog.replication.rules.packets import NO_GTID, Find, FindAnswer
from tranlog.replication.rules.reading import Latest


class _Confirmed:
    """The answer to whether this node is the primary, for a client."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        return self._wire.gone.is_set()

    def __call__(self, outcome: Outcome, text: str) -> None:
        if not self.told.done():
            self.told.set_result(outcome)


async def find(packet: Find, wire: Wire, thread: CoreThread, walking: Executor) -> FindAnswer:
    """Return the answer to a Find of a client. The log is walked in a thread of `walking`."""
    loop, confirmed = asyncio.get_running_loop(), _Confirmed(wire)
    thread.post(Awaited(Latest(0), thread.deadline(packet.timeout_ms), confirmed))
    outcome = await confirmed.told
    if outcome.kind != concern.SATISFIED:
        return FindAnswer(number=packet.number, kind=outcome.kind)

    def part(core: Core) -> tuple[LogPart, Gtid, Gtid]:
        thread.take_back((wire.peer, packet.event_id))
        found = part_to_walk(core.log, packet.after)
        return found, core.log.gtid(found.first) or NO_GTID, core.log.gtid(found.upto) or NO_GTID

    wanted, first, upto = await asyncio.wrap_future(thread.call(part))
    kind = NOT_THERE if wanted.is_last else MORE
    gtid, text = NO_GTID, ""
    try:
        found = await loop.run_in_executor(walking, walk, thread.log.log, wanted, packet.event_id, False)
        kind, gtid = (kind, NO_GTID) if found is None else (FOUND, found)
    except (AbandonedError, LogClosedError, PurgedError, SegmentGoneError):
        kind = concern.FAILED_OVER  # the log has changed meanwhile: the question is asked again
    except LogError as exc:
        kind, text = REFUSED, str(exc)
    return FindAnswer(
        number=packet.number, kind=kind, gtid=gtid, first=first, upto=upto, complete=wanted.complete, text=text
    )


async def find_for_reader(event_id: str, thread: CoreThread, walking: Executor) -> tuple[Gtid | None, LogPart]:
    """Return the first of the newest committed transactions with an event id, or None, and the range searched.

    Raises as `walk`.
    """

    def part(core: Core) -> LogPart:
        newest = part_to_walk(core.log, None)
        return msgspec.structs.replace(newest, upto=min(newest.upto, core.mind.committed.seqno))

    wanted = await asyncio.wrap_future(thread.call(part))
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(walking, walk, thread.log.log, wanted, event_id), wanted


def walk(log: MemberLog, part: LogPart, event_id: str, noops: bool = True) -> Gtid | None:
    """Return the first transaction of a part of the log that has an event id.

    A no-op repeats the event id before it: a reader may go on after it, but it is nobody's commit. Raises as
    `Cursor.next_header`, and PayloadError.
    """
    with log.cursor() as cursor:
        cursor.seek(Seqno(part.first))
        while cursor.next_seqno <= part.upto and (header := cursor.next_header()) is not None:
            if header.event_id == event_id and (noops or not cursor.current().is_noop()):
                return header.gtid
    return None
