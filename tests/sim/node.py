"""One node of a simulated group: the real log and the real file of its vote on a disk that forgets, and its core.

Owns what a node does around its core, in one thread, and what a loss of power, a lying disk and a restore make of its
disk. `Picture` is what an observer has seen in its log: so it can tell, when the log is opened again, what was lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from sim.network import SimClock
from tranlog.change import Fragment, Payload, Statement
from tranlog.ids import Epoch, Gtid, Seqno, segment_number
from tranlog.log.files.commit_point import GROUP_DIR
from tranlog.log.options import LogOptions
from tranlog.log.records.format import parse_event
from tranlog.log.records.spill import spill_number
from tranlog.payload import encode
from tranlog.replication.acting.following import LogChange, NodeLog, open_member
from tranlog.replication.acting.rollback import empty_log, read_operations, saved_rollbacks
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules.config import GroupConfig, NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import Effect, Put, PutChunk
from tranlog.replication.rules.packets import NO_GTID
from tranlog.replication.rules.reading import Latest
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import Saved
from tranlog.testing.disk import SimDisk

GROUP = "sim"
HISTORY = b"a simulated one!"
PATH = "/log"
STATE = f"{PATH}/{GROUP_DIR}"
SMALL = LogOptions(
    segment_bytes=2_000,
    ahead_bytes=0,
    spill_above=2_000,
    spill_buffer_bytes=1_000,
    spill_chunk_bytes=500,
    spill_segment_bytes=4_096,
    index_flush_bytes=1 << 60,
    index_flush_s=None,
)
"""A log whose segments end and whose transactions spill all the time, and that starts no thread."""
PART_BYTES = 300
"""A transaction that does not spill goes out in parts of so many bytes."""


class LogClock:
    """A node's clocks as its log wants them. Nobody sleeps: nothing else would go on."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Wall clock, ms since 1970."""
        return self._clock.wall()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._clock.now() / 1000

    def sleep(self, seconds: float) -> None:
        """Return at once."""


class Row(NamedTuple):
    """A transaction as it was read: its GTID, what its bytes come to, and whether it is a no-op."""

    gtid: Gtid
    digest: int
    noop: bool


class Picture:
    """What stands in a log as an observer has read it: for each transaction its GTID and what its bytes come to."""

    def __init__(self) -> None:
        self.first = 0
        self.rows: list[Row] = []
        self.durable = NO_GTID

    @property
    def last(self) -> Gtid:
        """The last transaction."""
        return self.rows[-1].gtid if self.rows else NO_GTID

    def gtid(self, seqno: int) -> Gtid | None:
        """Return the GTID at a seqno, None where none is held."""
        at = seqno - self.first
        return self.rows[at].gtid if 0 <= at < len(self.rows) else None

    def cut(self, last: Gtid) -> None:
        """Forget what comes after a transaction."""
        del self.rows[max(0, last.seqno + 1 - self.first) :]
        self.durable = min(self.durable, self.last)

    def purged(self, first: int) -> None:
        """Forget what comes before a seqno."""
        if self.rows:
            del self.rows[: first - self.first]
            self.first = first


def read_rows(log: NodeLog, since: int) -> Iterator[Row]:
    """Yield each transaction from a seqno on, the chunks of spilled ones included."""
    with log.log.cursor() as cursor:
        cursor.seek(Seqno(since))
        for _, records in groupby(cursor.raw(), key=lambda one: one[0]):
            raw = [one for _, one in records]
            header = parse_event(raw[0], 0, 0)
            assert header is not None, "the cursor verified it"
            yield Row(header.gtid, hash(tuple(raw)), header.tables == ())


def transaction_of(text: str, source: str) -> Fragment:
    """Return a transaction of one statement."""
    change = Statement(schema="s", sql=text, ddl=text.startswith("DDL"))
    return Fragment(
        source_id=source,
        event_id=text[:20],
        shard_id="s",
        tstamp=0,
        tables=(("s", "t"),),
        payload=encode(Payload(changes=(change,))),
    )


class SimNode:
    """One node: what survives it, and its core while it runs."""

    def __init__(
        self,
        node: NodeId,
        config: GroupConfig | None,
        clock: SimClock,
        options: LogOptions = SMALL,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.node = node
        self.part_bytes = part_bytes
        self.clock = clock
        self.options = options
        self.disk = SimDisk()
        self.disk.make_dir(PATH)
        self.disk.make_dir(STATE)
        self.disk.sync_dir("/")
        self.disk.sync_dir(PATH)
        self.stored = Stored(group=GROUP, node=node, config=config)
        self.log: NodeLog | None = None
        self.picture = Picture()
        self.core: Core | None = None
        self.todo: list[Effect] = []
        self.wishes: list[Latest] = []
        self.starts = 0
        self.places: list[Any] = []
        self.unheld: set[str] = set()
        """Holds that a purge dropped by force, and that were not set again since."""
        self.lost = self.restored = False
        self.going_back: Gtid | None = None
        self.cut_in_rollback = 0
        self.paused: list[Callable[[], None]] | None = None
        self._file = StateFile(self.disk, STATE)
        self._file.store(self.stored)

    @property
    def open_log(self) -> NodeLog:
        """The log of a node that runs."""
        assert self.log is not None, f"{self.node} is down"
        return self.log

    def is_paused(self) -> bool:
        """Whether what comes has to wait."""
        return self.paused is not None

    def wait(self, actions: list[Callable[[], None]]) -> None:
        """Have these wait, too."""
        self.paused = [*(self.paused or []), *actions]

    def open(self) -> Core:
        """Open the log and begin a core. Raises PowerCut, and what an opening raises that should not."""
        self.starts += 1
        self.paused = None
        self.todo = []
        self.wishes = []
        self.places = []
        lost, self.lost = self.lost, False
        self.log = self._follow()
        self._file = StateFile(self.disk, STATE)
        stored = self._file.load(GROUP)
        assert stored is not None, "it was stored when the node was made"
        self.stored = stored
        clock, committed = self.clock, self.log.committed()
        self.core = Core(
            stored, self.log, start=self.starts, now=clock.now(), wall=clock.wall(), committed=committed, lost=lost
        )
        return self.core

    def _follow(self) -> NodeLog:
        clock = LogClock(self.clock)
        log = NodeLog.follow(
            PATH, source_id=self.node, history=HISTORY, options=self.options, disk=self.disk, clock=clock
        )
        log.part_bytes = self.part_bytes
        return log

    def store(self, stored: Stored) -> None:
        """Make a vote or a configuration durable."""
        self._file.store(stored)
        self.stored = stored

    def store_again(self, stored: Stored) -> None:
        """Put something else into the file of a node that is down."""
        self._file = StateFile(self.disk, STATE)
        self._file.load(GROUP)
        self.store(stored)

    def power_cut(self, rng: random.Random) -> None:
        """Lose the power: the core is gone, and some of what was not synced."""
        sync_ms = self.disk.sync_ms
        self.core = self.log = self.paused = None
        self.disk = self.disk.after_crash(rng)
        self.disk.sync_ms = sync_ms

    def lose(self, count: int) -> None:
        """Lose transactions that were synced, as a disk does that lies: the log is an older copy of itself."""
        log = self._follow()
        first, kept = log.first, log.last.seqno - count
        held, h = list(outgoing(log, first - 1, kept)), log.h(first - 1)
        log.close()
        empty_log(PATH, self.disk)
        clock, begin = LogClock(self.clock), Gtid(Epoch(0), Seqno(first - 1))
        given = {"source_id": self.node, "history": HISTORY, "options": self.options, "disk": self.disk, "clock": clock}
        older = NodeLog(open_member(PATH, given, start_after=begin, h=h), self.disk, clock, given)
        for one in held:
            assert older.carry_out(one) is not LogChange.UNUSABLE
        older.close()
        self.lost = True

    def restore(self, source: SimNode) -> None:
        """Copy another node's segments in the place of the own ones, durable."""
        self.open_log.close()
        empty_log(PATH, self.disk)
        for name in source.disk.list_dir(PATH):
            if segment_number(name) is not None or spill_number(name) is not None:
                file = self.disk.open(f"{PATH}/{name}", write=True, create=True)
                file.pwrite(source.disk.content(f"{PATH}/{name}"), 0)
                file.sync()
                file.close()
        self.disk.sync_dir(PATH)
        self.core = self.log = None

    def saved(self) -> list[Saved]:
        """Return what the node's rollbacks have saved."""
        return [row for rid in saved_rollbacks(PATH, self.disk) for row in read_operations(PATH, rid, self.disk)]


def outgoing(log: NodeLog, after: int, up_to: int) -> Iterator[Put | PutChunk]:
    """Yield what a follower would be sent."""
    part, rest = 0, None
    while after < up_to:
        out = log.outgoing(after, up_to, 1 << 20, rest)
        if out.chunks is not None:
            for chunk in out.chunks(0):
                yield PutChunk(chunk, 0, len(chunk.raw))
        yield Put(out.raw, part, out.rest is None)
        part, rest = (0, None) if out.rest is None else (part + 1, out.rest)
        after = out.last.seqno if rest is None else after
