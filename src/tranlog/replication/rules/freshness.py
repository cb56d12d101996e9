"""How recent a node's committed transactions are, by its own clock only.

Owns one moment: everything that the group had committed then is committed here. The hard idea: a primary that a
majority has answered was the primary when it sent the beat that they answered; and a beat that echoes one of ours was
sent after ours. So both ages are differences on one clock each, and it does not matter if clocks differ by hours.

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
        """Note that this node sends its beat of that number now."""
        self._sent.append((beat, now))

    def sent_at(self, beat: int) -> int:
        """Return when a beat of this node was sent; `NEVER` if it is not remembered."""
        return next((at for one, at in self._sent if one == beat), NEVER)

    def told(self, committed: Gtid, echo: int, confirmed_ms: int, *, own: Gtid) -> None:
        """Take a primary's heartbeat; `own`: up to where readers see this log.

        `echo`: this node's beat that the primary had received; `confirmed_ms`: how long before this heartbeat it sent
        the beat that a majority has answered since.
        """
        self.at(own)
        self._keep(committed, self.sent_at(echo) - confirmed_ms)

    def led(self, committed: Gtid, confirmed: int) -> None:
        """Note, as primary, that a majority has answered the beats up to `confirmed`."""
        self._keep(committed, self.sent_at(confirmed))

    def _keep(self, committed: Gtid, at: int) -> None:
        if len(self._told) < KEPT and (not self._told or self._told[-1][1] < at):
            self._told.append((committed, at))

    def at(self, committed: Gtid) -> int:
        """Return that moment, given up to where readers see the log here."""
        while self._told and self._told[0][0] <= committed:
            self._at = max(self._at, self._told.popleft()[1])
        return self._at
