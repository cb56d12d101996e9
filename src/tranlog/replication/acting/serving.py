"""The clients of a node: transactions to commit, questions about them, readers that wait.

Owns what one connection of a client may ask, and what of it is in memory. The hard idea: a client's packets are looked
at in the order in which they came, and answered when their time comes; a number joins question and answer.

Source: docs/protocol.md, "Write concern".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tranlog.change import Fragment
from tranlog.errors import PayloadError
from tranlog.payload import decode
from tranlog.replication.acting.core_thread import REFUSED, Awaited, CommitWanted, CoreThread
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.packets import (
    NO_GTID,
    AskConcern,
    Begin,
    Commit,
    CommitAnswer,
    Packet,
    Part,
    WaitConsistent,
)
from tranlog.replication.rules.reading import AtLeast, Latest
from tranlog.shard import UNKNOWN_SHARD

logger = logging.getLogger(__name__)

OPEN_BYTES_MAX = 64 << 20
"""So many bytes of transactions that are not complete may a client have in a node's memory."""


class _Open:
    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.parts: list[bytes] = []


class ServedClient:
    """What a node knows of one client. Threads: the event loop's alone."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: dict[int, _Open] = {}
        self._open_bytes = 0

    def take(self, packet: Packet, size: int, thread: CoreThread | None) -> None:
        """Take a packet; `thread` is None of a node that is in no group yet."""
        match packet:
            case Begin(number=number, shard=shard):
                self._open[number] = _Open(shard)
            case Part(number=number, raw=raw):
                self._part(number, raw)
            case Commit():
                self._commit(packet, size, thread)
                return
            case AskConcern(number=number, gtid=gtid, w=w, wtimeout_ms=wtimeout_ms):
                if self._has(thread, number):
                    told, timeout = _by_default(w, wtimeout_ms)
                    answer = self._answer(number)
                    thread.post(lambda: thread.ask(gtid, told, timeout, answer))  # type: ignore[union-attr]
            case WaitConsistent():
                self._wait(packet, thread)
            case _:
                self._wire.end(f"{type(packet).__name__} from a client")
        self._wire.done(size)

    def _has(self, thread: CoreThread | None, number: int) -> bool:
        if thread is None:
            self._refuse(number, "this node is in no group yet")
        return thread is not None

    def _part(self, number: int, raw: bytes) -> None:
        found = self._open.get(number)
        if found is None:
            self._wire.end("a part of a transaction that was not begun")
            return
        self._open_bytes += len(raw)
        if self._open_bytes > OPEN_BYTES_MAX:
            self._wire.end(f"more than {OPEN_BYTES_MAX} bytes of transactions that are not complete")
            return
        found.parts.append(raw)

    def _commit(self, packet: Commit, size: int, thread: CoreThread | None) -> None:
        number = packet.number
        found = self._open.pop(number, None)
        if found is None or not found.parts:
            self._wire.end("a commit of a transaction that was not begun, or is empty")
            return
        held = sum(map(len, found.parts))
        self._open_bytes -= held
        try:
            fragments = _fragments(packet, found)
        except (PayloadError, ValueError) as exc:
            self._refuse(number, str(exc))
        else:
            if self._has(thread, number):
                assert thread is not None
                self._wire.hold(held)  # until it is in the log
                w, timeout = _by_default(packet.w, packet.wtimeout_ms)
                answer, taken = self._answer(number), lambda: self._wire.done(size + held)
                thread.post(CommitWanted(fragments, w, timeout, answer, taken))
                return
        self._wire.done(size)

    def _wait(self, packet: WaitConsistent, thread: CoreThread | None) -> None:
        if not self._has(thread, packet.number):
            return
        assert thread is not None
        if packet.kind not in ("at_least", "latest"):
            self._refuse(packet.number, f"there is no consistency {packet.kind!r}: at_least, latest")
            return
        wish = AtLeast(packet.gtid) if packet.kind == "at_least" else Latest(0)
        now = int(asyncio.get_running_loop().time() * 1000)
        deadline = now + packet.timeout_ms if packet.timeout_ms else None
        thread.post(Awaited(wish, deadline, self._answer(packet.number)))

    def _answer(self, number: int) -> Callable[[Outcome, str], None]:
        def answer(outcome: Outcome, text: str) -> None:
            told = CommitAnswer(
                number=number,
                kind=outcome.kind,
                gtid=outcome.gtid,
                written_to=outcome.written_to,
                waited_ms=max(outcome.waited_ms, 0),
                primary=outcome.primary,
                text=text,
            )
            if not self._wire.send(told):
                self._wire.cut()  # whoever does not read its answers

        return answer

    def _refuse(self, number: int, text: str) -> None:
        self._wire.send(CommitAnswer(number=number, kind=REFUSED, gtid=NO_GTID, text=text))


def _by_default(w: int | str, wtimeout_ms: int) -> tuple[int | str | None, int | None]:
    """Return `w` and time-out as the core takes them: None where the group's own are wanted."""
    return (None, wtimeout_ms or None) if w == "" else (w, wtimeout_ms)


def _fragments(packet: Commit, found: _Open) -> list[Fragment]:
    """Return a client's transaction. Raises PayloadError, ValueError for what could not be read back."""
    if not packet.event_id:
        raise ValueError("a transaction without an event id")
    last = len(found.parts) - 1
    fragments = []
    for at, payload in enumerate(found.parts):
        decode(payload)
        fragments.append(
            Fragment(
                source_id=packet.source_id,
                event_id=packet.event_id,
                shard_id=found.shard or UNKNOWN_SHARD if at == last else UNKNOWN_SHARD,
                tstamp=packet.tstamp,
                tables=packet.tables if at == last else (),
                payload=payload,
                last=at == last,
            )
        )
    return fragments
