"""Who numbers the transactions of a log: the log itself, or whoever has them from another one.

Owns in which epoch an opened log goes on. The hard idea: equal GTIDs mean
equal history, so a log that takes over transactions assigns no number and begins no epoch.
"""

from __future__ import annotations

from enum import Enum

from tranlog.ids import NO_EPOCH, Epoch


class Numbering(Enum):
    """Where the seqno and epoch of the next transaction come from."""

    OWN = "own"
    """The log assigns the next seqno, in an epoch that its opening begins: a primary."""
    GIVEN = "given"
    """They come with each transaction: a copy, a replica."""
    NONE = "none"
    """There is no next one: the log is opened for upkeep."""

    def epoch(self, fresh: Epoch, last: Epoch | None) -> Epoch:
        """Return the epoch of a log that was opened, before it begins one.

        `fresh` is above every one that it has had, `last` its last transaction's.
        """
        if self is Numbering.GIVEN:
            return NO_EPOCH if last is None else last
        return Epoch(fresh - 1)
