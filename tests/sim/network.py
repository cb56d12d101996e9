"""A network that drops, delays, doubles, reorders and cuts, and the order of everything that happens, from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import Packet

Deliver = Callable[[NodeId, NodeId, Packet], None]


class Agenda:
    """What is to happen, by time in ms; what is due at one moment happens in the order in which it was noted."""

    def __init__(self) -> None:
        self.now = 0
        self._count = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Have something happen in so many ms."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay, self._count, action))

    def next(self, until: int) -> Callable[[], None] | None:
        """Go on to what is next, and return it; None where nothing is due up to `until`."""
        if not self._due or self._due[0][0] > until:
            return None
        self.now, _, action = heapq.heappop(self._due)
        return action


class SimNetwork:
    """Carries packets between nodes, in order but for late ones. Rates: of packets, 0 to 1. Delays: ms."""

    def __init__(self, rng: random.Random, agenda: Agenda, deliver: Deliver) -> None:
        self.drop = self.double = self.late = 0.0
        self.delay_ms = (1, 5)
        self.late_ms = 800
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self._arrived: dict[tuple[NodeId, NodeId], int] = {}
        self._rng = rng
        self._agenda = agenda
        self._deliver = deliver

    def send(self, sender: NodeId, to: NodeId, packet: Packet) -> None:
        """Take a packet; it arrives once, twice, late or never."""
        rng = self._rng
        if (sender, to) in self.cuts or rng.random() < self.drop:
            return
        for _ in range(2 if rng.random() < self.double else 1):
            line = sender, to
            at = max(self._agenda.now + rng.randint(*self.delay_ms), self._arrived.get(line, 0))
            if rng.random() < self.late:
                at += rng.randrange(self.late_ms)
            else:
                self._arrived[line] = at
            self._agenda.after(at - self._agenda.now, lambda: self._arrive(sender, to, packet))

    def _arrive(self, sender: NodeId, to: NodeId, packet: Packet) -> None:
        if (sender, to) not in self.cuts:
            self._deliver(sender, to, packet)

    def part(self, one: Sequence[NodeId], other: Sequence[NodeId], *, both: bool = True) -> None:
        """Cut the lines from one side to the other, and back unless not `both`."""
        self.cuts |= {(a, b) for a in one for b in other}
        if both:
            self.cuts |= {(b, a) for a in one for b in other}

    def heal(self) -> None:
        """Mend everything."""
        self.cuts.clear()
        self.drop = self.double = self.late = 0.0


class SimClock:
    """One node's clocks: a monotonic one of its own pace, and a wall clock that is wrong and may jump."""

    def __init__(self, agenda: Agenda, pace: float = 1.0, wrong_by_ms: int = 0) -> None:
        self.wrong_by_ms = wrong_by_ms
        self._agenda = agenda
        self._pace = pace

    def now(self) -> int:
        """Monotonic, ms."""
        return int(self._agenda.now * self._pace)

    def wall(self) -> int:
        """Ms since 1970."""
        return 1_800_000_000_000 + self._agenda.now + self.wrong_by_ms
