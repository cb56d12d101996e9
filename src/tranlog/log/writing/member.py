"""The log of a member of a group: it takes over what its primary wrote, and goes back where histories differ.

Owns what such a log can do beside any other; when it does so is the node's to decide, see `tranlog.replication`. The
hard idea: what is durable here may be abandoned yet. Committed is what the group has told, and a pipeline stops there.

Source: docs/format.md; tokumx-replication, "Rollback".
"""

from __future__ import annotations

import logging
import os
from threading import get_ident
from typing import Self

from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import LogError, NotPrimaryError, RollbackError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.commit_point import become_member, forget_missing, read_missing, write_commit_point
from tranlog.log.files.directory import storing
from tranlog.log.options import LogOptions
from tranlog.log.reading.reader import LOOK_S
from tranlog.log.records.format import RollbackMark
from tranlog.log.rules.numbering import Numbering
from tranlog.log.writing.allocation import empty_transaction
from tranlog.log.writing.log import Log

logger = logging.getLogger(__name__)

_KEPT_S = 1.0
"""So often, at most, a commit point is written down for whoever cannot trust the positions file."""


class MemberLog(Log):
    """A log whose transactions come with their GTIDs, and are committed when the group says so. Threads: as `Log`."""

    missing_seqno: Seqno | None = None
    """Up to where the log went before it lost its end, where it did: a voter that forgot its log would elect anybody.

    It stays so, from opening to opening, until `missing_noted`.
    """
    check_owner = staticmethod(lambda path, disk: None)
    _point: Gtid | None = None
    _kept: Gtid | None = None
    _kept_at = 0.0

    @classmethod
    def follow(
        cls,
        path: str | os.PathLike[str],
        *,
        source_id: str,
        options: LogOptions | None = None,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
        start_after: Gtid | None = None,
        history: bytes | None = None,
    ) -> Self:
        """Open the log to follow: take the lock and repair what a crash left, but begin no epoch and write no no-op.

        Its directory becomes that of a member, for ever. Whose a log without records is, `history` says, or `take_over`
        before the first. Parameters and errors as `Log.open`.
        """
        return cls.open(
            path,
            source_id=source_id,
            options=options,
            disk=disk,
            clock=clock,
            start_after=start_after,
            history=history,
            numbering=Numbering.GIVEN,
        )

    def _recover(self, start_after: Gtid | None, history: bytes | None, numbering: Numbering) -> None:
        assert numbering is Numbering.GIVEN, "a member begins no epoch by itself"
        become_member(self.path, self.disk)
        super()._recover(start_after, history, numbering)
        self.missing_seqno = read_missing(self.path, self.disk)
        if self.missing_seqno is not None:
            logger.warning(
                "The log ends before what was durable in it. This node neither votes nor acks until it holds what its "
                "primary has committed. If no primary will come, in a group of one or because a majority lost its "
                "log's end: tranlog group reconfigure --force. path=%s last_seqno=%d missing_seqno=%d",
                self.path,
                self.visible_seqno,
                self.missing_seqno,
            )

    def missing_noted(self) -> None:
        """Forget `missing_seqno`: the node knows, durably, that it neither votes nor acks. Raises DiskFailedError."""
        with storing(self.path):
            forget_missing(self.path, self.disk)
        self.missing_seqno = None

    def lead(self, epoch: Epoch) -> Gtid:
        """Take transactions from here on, in this epoch, which is above every one of the log; return its first GTID.

        That is a no-op's, durable when this returns. A transaction that was given in part is forgotten. Raises
        DiskFullError (the log follows on), DiskFailedError, LogClosedError, LogLockedError.
        """
        end = self._end
        with self._steps.lock, self._steps:
            assert end.follows
            end.abandon()
            self._appending.await_quiet()
            end.flush()
            end.publish()
            before = end.pending.epoch
            assert epoch > before
            self._change(Numbering.OWN)
            end.journal.announce(checksums=end.options.checksum)
            try:
                self._appending.begin_epoch(epoch)
            except LogError:
                self._change(Numbering.GIVEN)
                end.pending.epoch = before
                raise
            return Gtid(epoch, end.publishing.visible)

    def unlead(self) -> None:
        """Follow again. What of this reign is open, unfinished or waits for a sync ends with NotPrimaryError.

        A place that was assigned gets an empty transaction; what is whole stays, durable when this returns. Cursors
        and gates stay as they are. A log that follows goes on doing so. Raises DiskFullError (what was not visible is
        gone), DiskFailedError, LogClosedError, LogLockedError; it follows then, too.
        """
        end, steps = self._end, self._steps
        with steps.lock, steps:
            end.check_open()
            if end.follows:
                return
            self._change(Numbering.GIVEN)
            while steps.commits.leader or steps.draining or end.prefix.writing():
                steps.wait()
            end.check_open()
            self._end_reign()

    def _end_reign(self) -> None:
        """Take back what is open, leave places empty that are not filled, and have all the rest visible and durable.

        Whoever did something of it is told. Nothing is being synced or written.
        """
        end, told = self._end, NotPrimaryError(path=self.path)
        owners = set(end.pending.owners)
        if end.turn is not None:
            owners.add(end.turn.owner)
            end.drop_open()
        end.flush()
        unfinished = end.prefix.unfinished()
        for extent in unfinished:
            extent.refused = told
        end.leave_empty(unfinished)
        end.refused.update(dict.fromkeys(owners - {get_ident()}, told))
        end.publish()
        end.sync_now()
        end.tell()
        self._steps.wake_all()

    def _change(self, numbering: Numbering) -> None:
        """Begin a reign, or end one: from here on nothing of the former is taken."""
        end = self._end
        self._appending.numbering = numbering
        end.publishing.given = numbering is Numbering.GIVEN
        end.reign += 1
        end.pending.room = 0

    def keep_alive(self) -> Gtid:
        """Append a no-op, visible with the next commit; return its GTID. Raises as `append`."""
        end = self._end
        return self.append(empty_transaction(end.pending.ids, max(end.clock.now_ms(), 0)))

    def fits(self, size: int) -> bool:
        """Whether so many more bytes fit into the newest segment, as far as is known now; it waits for no new one."""
        end = self._end
        room = end.options.segment_bytes - end.journal.end
        return size < room and not (end.pending.sync_due and self._rotation.is_due())

    def commit_to(self, gtid: Gtid) -> None:
        """Take the group's word that everything up to `gtid`, which this log holds and shows, is committed.

        Readers of what is committed go on as far as it is durable here. An earlier one than was told is harmless.
        Raises LogClosedError, DiskFailedError, LogLockedError.
        """
        end = self._end
        with self._steps.lock, self._steps:
            end.check_open()
            assert gtid.seqno <= end.publishing.visible, "a commit point is taken as a GTID that the log holds"
            if self._point is None or gtid > self._point:
                self._point = gtid
                end.publishing.commit_to(gtid.seqno)
                end.tell()
            now = end.clock.monotonic()
            if self._kept is None or now - self._kept_at >= _KEPT_S:
                self._keep(now)

    def _keep(self, now: float) -> None:
        """Write the commit point down; a disk that refuses it stops nothing."""
        if self._point is not None and self._point != self._kept:
            try:
                write_commit_point(self._end.path, self._point, self._end.disk)
                self._kept, self._kept_at = self._point, now
            except OSError as exc:
                logger.warning("The commit point could not be recorded. path=%s why=%s", self._end.path, exc)

    def _close(self) -> None:
        with self._steps.lock, self._steps:
            if self._end.ownership.lost is None:
                self._keep(self._end.clock.monotonic())
        super()._close()

    def abandon_after(self, matchpoint: Gtid) -> RollbackMark | None:
        """Abandon everything after `matchpoint`, durably; return the mark. None where nothing follows it.

        As `rollback`, but no epoch begins and no no-op is written: what is given next follows the matchpoint, in its
        epoch or a later one, also an earlier one than what was abandoned. No hold is honoured. What is appended is made
        durable first, and an open transaction forgotten. Raises RollbackError for what the log does not hold, and
        before the commit point; LogClosedError, DiskFullError (nothing was abandoned), DiskFailedError (open it again
        and see), LogLockedError.
        """
        assert self._appending.numbering is Numbering.GIVEN
        with self._steps.lock, self._steps:
            told = self._end.publishing.told
            if told is not None and matchpoint.seqno < told:
                raise RollbackError(matchpoint=matchpoint, why=f"the group has committed everything up to seqno {told}")
            self._end.abandon()
            found = self._rollback.given_matchpoint(matchpoint)
            mark = None if found is None else self._rollback.carry_out_given(*found)
        if mark is not None:
            self._end.clock.sleep(2 * LOOK_S)
        return mark
