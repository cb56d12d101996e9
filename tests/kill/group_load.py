"""The programs of `make group-kill`: 16 that commit, others that read. What each was told is kept.

Owns the history of what was asked and answered, in the terms of `group_history`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import threading
import time
import zlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from math import inf

from group_history import CommitOp, Fate, ReadOp
from tranlog.change import Statement
from tranlog.errors import (
    CommitRefusedError,
    HandshakeError,
    LogError,
    NoNodeError,
    NoPrimaryError,
    NotPrimaryError,
)
from tranlog.ids import Gtid, Seqno
from tranlog.replication.acting.client import Answer, AsyncGroup, LoopThread, NotPrimary, Satisfied
from tranlog.replication.acting.remote_log import open_remote
from tranlog.replication.rules.packets import NO_GTID
from tranlog.service.group_client import connect_async

WRITERS, CLIENTS = 16, 4
WS: tuple[int | str, ...] = (1, 2, "majority")
WTIMEOUT_S = 5.0
ANSWER_S = 90.0
"""No node lets a program wait so long for an answer: its connection ends before."""
WITHIN_MS = 2_000
KINDS = ("none", "at least", f"within {WITHIN_MS} ms", "latest")
READ_PAUSE_S = 0.1
LARGE_EACH, LARGE_BYTES = 25, 40_000
"""One of so many commits of a writer is large: it is begun, and sent in parts of so many bytes, which spill."""
TAIL = 20
"""So many transactions are read of each log that is opened."""


def content_of(text: str) -> int:
    """Return what stands for a commit's content."""
    return zlib.crc32(text.encode())


@dataclass(frozen=True)
class Shown:
    """What a reader of a consistency saw: up to where, and some of what is there. `wanted`: for at least."""

    kind: str
    wanted: Gtid
    seen: Gtid
    tail: tuple[tuple[Gtid, str], ...]


class Load:
    """Programs that commit and read, until `stop`. Threads: its own."""

    def __init__(self, url: str, seed: int) -> None:
        self.commits: list[tuple[int | str, CommitOp]] = []
        self.latest: list[ReadOp] = []
        self.shown: list[Shown] = []
        self.reads: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.failed: list[str] = []
        self.large: set[str] = set()
        """The events whose commits were begun."""
        self._url = url
        self._seed = seed
        self._acked = NO_GTID
        self._acked_at: list[tuple[float, Gtid]] = []
        self._stopped = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._resting = 0
        self._tls: ssl.SSLContext | None = None
        self._groups: list[AsyncGroup] = []
        self._loop = LoopThread()
        self._threads = [threading.Thread(target=self._guard, args=(self._commit_all,))]
        self._threads += [threading.Thread(target=self._guard, args=(self._read_all, kind)) for kind in KINDS]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Commit and read no more; return when every answer is there."""
        self._stopped.set()
        self._going.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._loop.close()

    def rest(self) -> None:
        """Commit no more for a while; return when every answer is there."""
        self._going.clear()
        while self._resting < WRITERS and self._threads[0].is_alive():
            time.sleep(0.02)

    def go_on(self) -> None:
        """Commit again."""
        self._going.set()

    def secure(self, tls: ssl.SSLContext | None) -> None:
        """Reach the nodes by TLS from now on, or without; only while it rests."""
        self._tls = tls
        self._loop.run(self._connect_anew())

    async def _connect_anew(self) -> None:
        for group in self._groups:
            await group.close()
        self._groups = [connect_async(self._url, find_s=5.0, tls=self._tls) for _ in range(CLIENTS)]

    def _guard(self, work, *given) -> None:
        try:
            work(*given)
        except BaseException as exc:
            self.failed.append(f"{type(exc).__name__}: {exc}")
            raise

    # --- commits ---

    def _commit_all(self) -> None:
        self._loop.run(self._write_all())

    async def _write_all(self) -> None:
        await self._connect_anew()
        await asyncio.gather(*[self._write(number) for number in range(WRITERS)])
        for group in self._groups:
            await group.close()

    async def _write(self, number: int) -> None:
        w, rng = WS[number % len(WS)], random.Random(self._seed * WRITERS + number)
        for count in itertools.count():
            if not self._going.is_set():
                self._resting += 1
                while not self._going.is_set():
                    await asyncio.sleep(0.02)
                self._resting -= 1
            if self._stopped.is_set():
                return
            event = f"{number}-{count}"
            texts = [event + "." * rng.choice((0, 0, 0, 0, 200, 2_000, 20_000 if count % 10 else 300_000))]
            if count % LARGE_EACH == number % LARGE_EACH:
                self.large.add(event)
                texts = [f"{event} {part}" + "." * LARGE_BYTES for part in range(rng.randint(3, 12))]
            op = await self._commit(self._groups[number % CLIENTS], event, texts, w)
            self.commits.append((w, op))
            if op.fate is Fate.STANDS and op.gtid is not None:
                self._acked = max(self._acked, op.gtid)
                self._acked_at.append((op.returned, self._acked))
            await asyncio.sleep(0.02)

    async def _commit(self, group: AsyncGroup, event: str, texts: list[str], w: int | str) -> CommitOp:
        began, content = time.monotonic(), content_of("".join(texts))
        changes = [Statement(schema="shop", sql=text, ddl=False) for text in texts]
        try:
            if event in self.large:
                wanted = self._begin_and_commit(group, event, changes, w)
            else:
                wanted = group.commit(changes, w=w, wtimeout=WTIMEOUT_S, event_id=event)
            answer = await asyncio.wait_for(wanted, ANSWER_S)
        except (NoPrimaryError, NotPrimaryError, CommitRefusedError):
            await asyncio.sleep(0.02)
            return CommitOp(event, content, Fate.REFUSED, began, time.monotonic())
        except TimeoutError:
            self.failed.append(f"{event} had no answer within {ANSWER_S:g} s")
            return CommitOp(event, content, Fate.UNKNOWN, began)
        returned = time.monotonic()
        match answer:
            case Satisfied(gtid=gtid):
                fate = Fate.STANDS if w == "majority" else Fate.MAY_GO
                return CommitOp(event, content, fate, began, returned, gtid)
            case NotPrimary():
                await asyncio.sleep(0.02)
                return CommitOp(event, content, Fate.REFUSED, began, returned)
            case _:
                return CommitOp(event, content, Fate.UNKNOWN, began, inf, answer.gtid)

    async def _begin_and_commit(self, group: AsyncGroup, event: str, changes: list[Statement], w: int | str) -> Answer:
        async with await group.begin(event_id=event) as transaction:
            for change in changes:
                await transaction.add([change])
            return await transaction.commit(w=w, wtimeout=WTIMEOUT_S)

    # --- reads ---

    def _read_all(self, kind: str) -> None:
        while not self._stopped.wait(READ_PAUSE_S):
            began = time.monotonic()
            wanted = self._wanted(kind, began)
            if kind == "at least" and wanted == NO_GTID:
                continue
            try:
                shown = self._read(kind, wanted)
            except (NoNodeError, HandshakeError, LogError, OSError) as exc:
                self.unread[f"{kind}: {type(exc).__name__}"] += 1
                continue
            self.reads[kind] += 1
            self.shown.append(shown)
            if kind == "latest":
                self.latest.append(ReadOp(began, time.monotonic(), shown.seen))

    def _wanted(self, kind: str, began: float) -> Gtid:
        """Return what a majority had acknowledged when it has to be shown: by now, or some time ago."""
        if not kind.startswith("within"):
            return self._acked
        acked = self._acked_at  # only appended to, in another thread
        at = bisect_right(acked, began - WITHIN_MS / 1000, key=lambda one: one[0])
        return acked[at - 1][1] if at else NO_GTID

    def _read(self, kind: str, wanted: Gtid) -> Shown:
        consistency = f"at least {wanted}" if kind == "at least" else kind
        prefer = {"none": "nearest", "latest": "primary"}.get(kind, "replicaPreferred")
        with open_remote(
            self._url, consistency=consistency, prefer=prefer, timeout=5.0, find_s=1.0, tls=self._tls
        ) as log:
            last = log.range().last_seqno
            tail = []
            with log.cursor() as cursor:
                cursor.seek(Seqno(max(log.range().first_seqno, last - TAIL)))
                for one in cursor.scan(until=last, wait=False):
                    tail.append((one.header.gtid, "" if one.is_noop() else one.header.event_id))
        return Shown(kind, wanted, tail[-1][0] if tail else NO_GTID, tuple(tail))
