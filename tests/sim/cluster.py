"""A group of nodes in one thread, from one seed: the real core, log and recovery of each, a network, clocks,
and faults.

`Cluster(seed)` draws a group and the faults of its run (a swarm: each run leaves some out), plays them, mends
everything and waits until the group is whole. The checkers look after every step; the same seed takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from sim.group import CUT_OFF, HeldPlace, SimGroup
from sim.node import transaction_of
from tranlog.errors import ConfigError, NotPrimaryError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.holds import drop_hold, read_holds
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import NO_GTID, Packet
from tranlog.replication.rules.reading import Latest, may_read

FAULTY_MS = 9_000
HEALED_MS = 120_000
"""Within so long after the last fault the group is whole."""


class Cluster(SimGroup):
    """A group that clients write to and read from, and that is run until something is so."""

    # --- clients ---

    def write(
        self,
        node: NodeId,
        text: str,
        w: int | str | None,
        timeout_ms: int | None = 5000,
        *,
        parts: int = 0,
        part_bytes: int = 600,
    ) -> int:
        """Commit a transaction at a primary; return the number of the question whether `w` is met.

        `parts`: so many fragments of `part_bytes` come before the last, and spill.
        """
        one = self.nodes[node]
        core = one.core
        assert core is not None and core.accepts_writes
        gtid = NO_GTID
        with self._power(node):
            self._fill_all(one, core)
            transaction = one.open_log.log.begin()
            for part in range(parts):
                transaction.add(transaction_of(f"{text}.{part}".ljust(part_bytes), node))
            transaction.add(transaction_of(text, node))
            gtid = transaction.commit(sync=False)
            self._logged(one, core)
        return self.ask(node, gtid, w, timeout_ms)

    def take_place(self, node: NodeId, text: str, *, beside: bool = False) -> HeldPlace:
        """Give a transaction its GTID at a primary; its bytes come with `fill`, if they come.

        `beside`: others stay open. A segment must not end then: that waits for them.
        """
        one = self.nodes[node]
        core = one.core
        assert core is not None and core.accepts_writes
        place = HeldPlace(node, one.starts)
        with self._power(node):
            if not beside:
                self._fill_all(one, core)
            place.allocation = one.open_log.log.allocate([transaction_of(text, node)])
            one.places.append(place)
            self._logged(one, core)  # a segment may have ended
            self._carry_out(node)
        return place

    def fill(self, place: HeldPlace) -> str:
        """Complete a transaction that has its place, once its node has time; return what came of it."""
        one = self.nodes.get(place.node)
        if one is None or one.starts != place.starts or one.core is None or place.allocation is None:
            return "cut off"
        if one.paused is not None:
            one.wait([partial(self._fill, place)])
            return "paused"
        told = "cut off"
        with self._power(place.node):
            told = self._complete(one, one.core, place)
            self._carry_out(place.node)
        return told

    def _fill(self, place: HeldPlace) -> None:
        self.fill(place)

    def open_large(self, node: NodeId, text: str, parts: int) -> tuple[int, OpenTransaction | None]:
        """Open a transaction at a primary that spills at once; return the start of the node with it."""
        one = self.nodes[node]
        transaction = None
        with self._power(node):
            transaction = one.open_log.log.begin()
            for part in range(parts):
                transaction.add(transaction_of(f"{text}.{part}" + " " * 600, node))
        return one.starts, transaction

    def end_large(self, node: NodeId, opened: tuple[int, OpenTransaction | None], *, abort: bool) -> str:
        """Commit such a transaction, or give it up; return what came of it."""
        one, (starts, transaction) = self.nodes.get(node), opened
        if one is None or one.starts != starts or one.core is None or one.paused is not None or transaction is None:
            return "cut off"
        core = one.core
        with self._power(node):
            self._fill_all(one, core)
            try:
                if abort:
                    transaction.abort()
                    return "given up"
                transaction.commit(sync=False)
            except NotPrimaryError:
                return "not primary"
            self._logged(one, core)
            self._carry_out(node)
        return "complete"

    def purge(self, node: NodeId, up_to: int, *, hard: bool = False) -> None:
        """Purge whole segments that end at or before a seqno, committed ones alone; `hard`: whoever needs them."""
        one = self.nodes[node]
        with self._power(node):
            log = one.open_log.log
            keep = {held.name: held.restart_seqno or 0 for held in read_holds(log.path, disk=log.disk)}
            needed = list(keep.values())
            one.unheld -= keep.keys()
            for follower, stream in one.core.feeder.streams.items() if one.core else ():
                if f"node.{follower}" not in one.unheld:
                    needed.append(stream.after.seqno + 1)
            if hard:
                for name in keep:
                    drop_hold(log.path, name, disk=log.disk)
                one.unheld |= keep.keys()
            log.purge(below=Seqno(max(up_to + 1, 0)))
            segments = [(stat.number, stat.first_seqno, stat.last_seqno) for stat in log.segments()]
            self.checkers.purged(one, segments, needed=None if hard else min(needed, default=None))

    def ask(self, node: NodeId, gtid: Gtid, w: int | str | None, timeout_ms: int | None = 5000) -> int:
        """Ask a node whether `w` is met for a GTID; return the number of the question."""
        one = self.nodes[node]
        number = len(self.asked)
        self.asked[number] = (node, gtid, w)
        if one.core is None:
            self.answers[number] = CUT_OFF
            return number
        try:
            one.core.ask(number, gtid, w, timeout_ms)
        except ConfigError:
            self.asked.pop(number)
            self.asked[number] = (node, gtid, 0)
            one.core.ask(number, gtid, 0, timeout_ms)
        self._carry_out(node)
        return number

    def read_latest(self, node: NodeId) -> None:
        """Have a reader ask a node that takes itself for the primary for the latest, and look a few times."""
        one = self.nodes[node]
        assert one.core is not None
        seen = max(self.checkers.acknowledged.values(), default=NO_GTID)
        wish = Latest(one.core.mind.pulse.beat, one.core.mind.committed)
        one.wishes = [*one.wishes[-99:], wish]
        one.core.confirm(one.wishes, one.clock.now())
        self._carry_out(node)
        for later in (100, 500, 2000):
            self.agenda.after(later, partial(self._read, node, one.starts, wish, seen))

    def _read(self, node: NodeId, starts: int, wish: Latest, seen: Gtid) -> None:
        core = self.up().get(node)
        if core is not None and self.nodes[node].starts == starts:
            at = core.position()
            self.checkers.read(node, seen, at.shown, allowed=may_read(wish, at, 0))

    # --- runs ---

    def run(self, ms: int) -> None:
        """Let time pass."""
        until = self.agenda.now + ms
        while (action := self.agenda.next(until)) is not None:
            action()
        self.agenda.now = until

    def run_until(self, done: Callable[[], bool], ms: int) -> bool:
        """Let time pass until something is so, looked at a few times a second; return whether it came to be."""
        until = self.agenda.now + ms
        while not done():
            if self.agenda.now >= until:
                return False
            self.run(min(200, until - self.agenda.now))
        return True

    def is_whole(self) -> bool:
        """Whether there is one primary, and every log is its log and committed."""
        primaries = self.primaries()
        if len(primaries) != 1:
            return False
        primary = self.nodes[primaries[0]]
        config = primary.stored.config
        if config is None or primary.core is None or primary.core.mind.committed != primary.picture.last:
            return False
        for member in config.members:
            one = self.nodes.get(member.node)
            if one is None or one.core is None or one.core.config.id != config.id or one.core.stored.owing:
                return False
            if not member.witness and (one.picture.last, one.core.mind.committed) != (primary.picture.last,) * 2:
                return False
        return True


def shown(what: object) -> str:
    """Return a step's part as people read it: of a packet what differs from the default."""
    if not isinstance(what, Packet):
        return str(what)
    told = []
    for field in msgspec.structs.fields(what):
        value = getattr(what, field.name)
        if value != field.default and field.name != "full":
            told.append(f"{field.name}={value}")
    return f"{type(what).__name__}({', '.join(told)})"
