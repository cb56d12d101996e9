"""How recent is what a node has committed, by no clock but its own.

Owns one moment: all that the group had committed then is committed here. The hard idea: a primary that a majority has
answered was the primary when it sent what they answered; and what another node echoes was said after one's own beat
left. So both ages are differences of one clock each, and clocks that are hours apart do no harm.

Source: vlsn-index (consistency); docs/protocol.md, "The order of things".
"""

from __future__ import annotations

from collections import deque

from tranlog.ids import Gtid

NEVER = -(1 << 40)
"""A moment before every other."""
KEPT = 64
"""So many beats, and words of a primary, are remembered."""


class Freshness:
    """Times: the node's clock, ms. Not for several threads."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self._told: deque[tuple[Gtid, int]] = deque()
        self._at = NEVER

    def sent(self, beat: int, now: int) -> None:
        """Take note that the own beat of that number leaves now."""
        self._sent.append((beat, now))

    def sent_at(self, beat: int) -> int:
        """Return when an own beat left; `NEVER` for one that is not remembered."""
        return next((at for one, at in self._sent if one == beat), NEVER)

    def told(self, committed: Gtid, echo: int, confirmed_ms: int, *, own: Gtid) -> None:
        """Take a primary's word; `own`: up to where readers see this log.

        `echo`: the own beat that it had heard; `confirmed_ms`: how long before that word it sent what a majority has
        answered since.
        """
        self.at(own)
        self._keep(committed, self.sent_at(echo) - confirmed_ms)

    def led(self, committed: Gtid, confirmed: int) -> None:
        """Take a primary's own word, which a majority has answered up to its beat `confirmed`."""
        self._keep(committed, self.sent_at(confirmed))

    def _keep(self, committed: Gtid, at: int) -> None:
        if len(self._told) < KEPT and (not self._told or self._told[-1][1] < at):
            self._told.append((committed, at))

    def at(self, committed: Gtid) -> int:
        """Return the moment, given up to where readers see what is committed here."""
        while self._told and self._told[0][0] <= committed:
            self._at = max(self._at, self._told.popleft()[1])
        return self._at
