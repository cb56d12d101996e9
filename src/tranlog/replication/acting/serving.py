"""The clients of a node: transactions to commit, questions about them, readers that wait.

Owns what a client's connection may ask, and its state in memory. The hard idea: a client's packets are handled in the
order of their arrival, and may be answered in another order; a number connects question and answer.

Source: docs/protocol.md, "Write concern".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Set
from concurrent.futures import Executor
from functools import partial
from typing import Any

from tranlog.change import Fragment
from tranlog.errors import PayloadError
from tranlog.payload import decode
from tranlog.replication.acting.core_thread import (
    REFUSED,
    Asker,
    Awaited,
    CommitWanted,
    CoreThread,
    is_small,
    put_whole,
)
from tranlog.replication.acting.finding import find
from tranlog.replication.acting.large import LargeTransaction, by_default
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules import concern
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.packets import (
    NO_GTID,
    AskConcern,
    Begin,
    Commit,
    CommitAnswer,
    Find,
    FindAnswer,
    NotKnown,
    Packet,
    Part,
    WaitConsistent,
)
from tranlog.replication.rules.reading import AtLeast, Latest, Within
from tranlog.shard import UNKNOWN_SHARD

logger = logging.getLogger(__name__)

OPEN_BYTES_MAX = 64 << 20
"""So many bytes of transactions that are not complete may a client have in a node's memory."""
UNANSWERED_MAX = 16_384
"""So many of its questions and commits may wait for their answers."""
KEPT_BYTES = 256
"""What a packet costs beside its bytes, about."""

_OF_COMMITS = (Begin, Part, Commit, AskConcern, Find)
"""Needs the permission to write: commits, and questions about them."""


class _Open:
    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.parts: list[bytes] = []


class ServedClients:
    """The clients of one node. Threads: the event loop's alone."""

    def __init__(
        self, wires: Set[Wire], spawn: Callable[[Coroutine[Any, Any, None]], object], working: Executor
    ) -> None:
        """`wires`: the node's connections; `spawn` does something meanwhile, `working` has the threads that wait
        for the disk for clients."""
        self._wires = wires
        self._spawn = spawn
        self._working = working
        self._clients: dict[Wire, ServedClient] = {}

    def take(self, wire: Wire, packet: Packet, size: int, thread: CoreThread | None) -> None:
        """Take a packet; `thread` is None for a node that is in no group yet."""
        if wire not in self._clients:
            self._clients[wire] = ServedClient(wire, self._spawn, self._working)
        client = self._clients[wire]
        if isinstance(packet, Find) and thread is not None and not client.refused(packet):
            client.asked()
            self._spawn(self._find(wire, packet, size, thread, client))
        else:
            client.take(packet, size, thread)

    def lost(self, wire: Wire) -> None:
        """A connection has ended."""
        client = self._clients.pop(wire, None)
        if client is not None:
            client.lost()

    async def _find(self, wire: Wire, packet: Find, size: int, thread: CoreThread, asker: ServedClient) -> None:
        """Answer a Find. What the same client may be sending over its former connections comes before it, or never."""
        for other in list(self._wires):
            client = self._clients.get(other)
            if client is not None and client.is_for_another(packet.event_id):
                continue
            if other is not wire and (other.peer, other.purpose) == (wire.peer, wire.purpose):
                self.lost(other)
                other.end_now("its client has connected anew, and asks what became of a transaction")
        try:
            wire.send(await find(packet, wire, thread, self._working))
        finally:
            asker.answered()
            wire.done(size)


class ServedClient:
    """The state of one client at a node. Threads: the event loop's only."""

    def __init__(self, wire: Wire, spawn: Callable[[Coroutine[Any, Any, None]], object], working: Executor) -> None:
        self._wire = wire
        self._spawn = spawn
        self._working = working
        self._large: LargeTransaction | None = None
        self._open: dict[int, _Open] = {}
        self._open_bytes = 0
        self._unanswered = 0

    def take(self, packet: Packet, size: int, thread: CoreThread | None) -> None:
        """Take a packet; `thread` is None for a node that is in no group yet."""
        writes = isinstance(packet, Begin | Part | Commit)
        if writes and self._wire.purpose == "commit" and thread is not None and self._take_large(packet, size, thread):
            return
        match packet:
            case _ if why := self.refused(packet):
                self._wire.end(why)
            case Begin(number=number, shard=shard):
                self._begin(number, shard)
            case Part(number=number, raw=raw):
                self._part(number, raw)
            case Commit():
                self._commit(packet, size, thread)
                return
            case AskConcern(number=number, gtid=gtid, w=w, wtimeout_ms=wtimeout_ms):
                if self._has(thread, number):
                    told, timeout = by_default(w, wtimeout_ms)
                    answer = self._answer(number)
                    thread.post(lambda: thread.ask(gtid, told, timeout, answer))  # type: ignore[union-attr]
            case WaitConsistent():
                self._wait(packet, thread)
            case Find(number=number):
                self._wire.send(FindAnswer(number=number, kind=concern.NOT_PRIMARY))
            case NotKnown():
                self._wire.send(packet)
            case _:
                self._wire.end(f"{type(packet).__name__} from a client")
        self._wire.done(size)

    def refused(self, packet: Packet) -> str:
        """Return why a packet ends the connection, whatever is in it; empty where it does not."""
        if self._unanswered >= UNANSWERED_MAX:
            return f"{UNANSWERED_MAX} of its questions are not answered yet"
        if isinstance(packet, _OF_COMMITS) and self._wire.purpose != "commit":
            return f"{type(packet).__name__} from a client that came to {self._wire.purpose}"
        return ""

    def _take_large(self, packet: Packet, size: int, thread: CoreThread) -> bool:
        """Take a packet of a connection's large transaction; False for every other one."""
        if isinstance(packet, Begin) and packet.event_id and self._large is None:
            answer = self._answer(packet.number)
            self._large = LargeTransaction(packet, self._wire, thread, self._working, answer)
            self._spawn(self._large.run())
            self._wire.done(size)
            return True
        if self._large is None or not isinstance(packet, Part | Commit):
            return False
        self._large.take(packet, size)
        return True

    def is_for_another(self, event_id: str) -> bool:
        """Whether the connection is reserved for a large transaction with another event id."""
        return self._large is not None and self._large.event_id != event_id

    def lost(self) -> None:
        """The connection has ended: abort its uncommitted transactions."""
        if self._large is not None:
            self._large.lost()

    def _has(self, thread: CoreThread | None, number: int) -> bool:
        if thread is None:
            self._refuse(number, "this node is in no group yet")
        return thread is not None

    def _begin(self, number: int, shard: str) -> None:
        if number in self._open:
            self._wire.end("a transaction that was begun already")
        elif self._holds(len(shard)):
            self._open[number] = _Open(shard)

    def _part(self, number: int, raw: bytes) -> None:
        found = self._open.get(number)
        if found is None:
            self._wire.end("a part of a transaction that was not begun")
        elif self._holds(len(raw)):
            found.parts.append(raw)

    def _holds(self, size: int) -> bool:
        """Count what is kept of a packet; whether it may be."""
        self._open_bytes += size + KEPT_BYTES
        if self._open_bytes > OPEN_BYTES_MAX:
            self._wire.end(f"more than {OPEN_BYTES_MAX} bytes of transactions that are not complete")
        return self._open_bytes <= OPEN_BYTES_MAX

    def _commit(self, packet: Commit, size: int, thread: CoreThread | None) -> None:
        number = packet.number
        found = self._open.pop(number, None)
        if found is None or not found.parts:
            self._wire.end("a commit of a transaction that was not begun, or is empty")
            return
        held = sum(map(len, found.parts))
        self._open_bytes -= held + len(found.shard) + KEPT_BYTES * (1 + len(found.parts))
        try:
            fragments = _fragments(packet, found)
        except (PayloadError, ValueError) as exc:
            self._refuse(number, str(exc))
        else:
            if self._has(thread, number):
                assert thread is not None
                self._wire.hold(held)  # until it is in the log
                w, timeout = by_default(packet.w, packet.wtimeout_ms)
                answer, taken = self._answer(number), lambda: self._wire.done(size + held)
                write = partial(put_whole, fragments=fragments)
                large = not is_small(fragments)
                sent = self._wire.peer, packet.event_id
                thread.post(CommitWanted(write, w, timeout, answer, taken, packet.epoch, large=large, sent=sent))
                return
        self._wire.done(size)

    def _wait(self, packet: WaitConsistent, thread: CoreThread | None) -> None:
        if not self._has(thread, packet.number):
            return
        assert thread is not None
        wishes: dict[str, AtLeast | Within | Latest] = {
            "at_least": AtLeast(packet.gtid),
            "within": Within(packet.lag_ms),
            "latest": Latest(0),
        }
        wish = wishes.get(packet.kind)
        if wish is None:
            self._refuse(packet.number, f"there is no consistency {packet.kind!r}: {', '.join(wishes)}")
            return
        thread.post(Awaited(wish, thread.deadline(packet.timeout_ms), self._answer(packet.number)))

    def _answer(self, number: int) -> Asker:
        self.asked()
        return _Asker(self, self._wire, number)

    def asked(self) -> None:
        """Count one more question that has no answer yet."""
        self._unanswered += 1

    def answered(self) -> None:
        """Count one more answered question."""
        self._unanswered -= 1

    def _refuse(self, number: int, text: str) -> None:
        self._wire.send(CommitAnswer(number=number, kind=REFUSED, gtid=NO_GTID, text=text))


class _Asker:
    """The question of a number, over a connection."""

    def __init__(self, client: ServedClient, wire: Wire, number: int) -> None:
        self._client = client
        self._wire = wire
        self._number = number

    @property
    def gone(self) -> bool:
        return self._wire.gone.is_set()

    def __call__(self, outcome: Outcome, text: str) -> None:
        self._client.answered()
        told = CommitAnswer(
            number=self._number,
            kind=outcome.kind,
            gtid=outcome.gtid,
            written_to=outcome.written_to,
            waited_ms=max(outcome.waited_ms, 0),
            primary=outcome.primary,
            text=text,
        )
        if not self._wire.send(told):
            self._wire.cut()  # whoever does not read its answers


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
