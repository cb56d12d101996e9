"""The log of a member of a group: it takes over what its primary wrote, and goes back where histories differ.

Owns what such a log can do beside any other. When it does so is the node's to decide, see `tranlog.replication`.

Source: docs/format.md; tokumx-replication, "Rollback".
"""

from __future__ import annotations

from tranlog.ids import Gtid
from tranlog.log.reading.reader import LOOK_S
from tranlog.log.records.format import RollbackMark
from tranlog.log.rules.numbering import Numbering
from tranlog.log.writing.log import Log


class MemberLog(Log):
    """A log whose transactions come with their GTIDs. Threads: as `Log`."""

    def abandon_after(self, matchpoint: Gtid) -> RollbackMark | None:
        """Abandon everything after `matchpoint`, durably; return the mark. None where nothing follows it.

        As `rollback`, but no epoch begins and no no-op is written: what is given next follows the matchpoint, in its
        epoch or a later one, also an earlier one than what was abandoned. No hold is heeded. What is appended is
        committed first, and an open transaction forgotten. Raises RollbackError for what the log does not hold,
        LogClosedError, DiskFullError (nothing was abandoned), DiskFailedError (open it again and see), LogLockedError.
        """
        assert self._appending.numbering is Numbering.GIVEN
        with self._steps.lock, self._steps:
            self._end.abandon()
            found = self._rollback.given_matchpoint(matchpoint)
            mark = None if found is None else self._rollback.carry_out_given(*found)
        if mark is not None:
            self._end.clock.sleep(2 * LOOK_S)
        return mark
