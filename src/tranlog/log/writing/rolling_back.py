"""Rolling a log back: what lies after a matchpoint is abandoned, by a mark that begins the next segment.

Owns carrying it out; whether it is refused is decided by the rules of `rollback`. The hard idea: the mark comes with
the header of its segment, in one write, so it takes effect as a whole or not at all.

Source: docs/format.md.
"""

from __future__ import annotations

import logging

from tranlog.errors import DiskFullError, RollbackError
from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.log.files.hashing import hash_up_to
from tranlog.log.files.holds import hold, is_running, read_holds
from tranlog.log.files.positions import NO_LSN
from tranlog.log.reading.cursor import Cursor
from tranlog.log.records.format import HEADER, RecordHeader, RollbackMark, encode_mark
from tranlog.log.rules.rollback import FOLLOWERS, Needed, refusal
from tranlog.log.writing.appending import Appending
from tranlog.log.writing.log_end import LogEnd, OwnView
from tranlog.log.writing.rotation import Rotation
from tranlog.lsn import lsn, lsn_text

logger = logging.getLogger(__name__)


class Rollback:
    """Rolls one log back. Each method is part of a step."""

    def __init__(self, end: LogEnd, rotation: Rotation, appending: Appending) -> None:
        self._end = end
        self._rotation = rotation
        self._appending = appending

    def matchpoint(self, matchpoint: Gtid) -> tuple[RecordHeader, Lsn] | None:
        """Return the matchpoint's last header and place; None where nothing follows it. Raises RollbackError."""
        end = self._end
        while end.steps.commits.leader or end.steps.draining:
            end.steps.wait()
        end.check()
        path, disk = end.path, end.disk
        header, start = self._find(matchpoint.seqno)
        why = refusal(
            matchpoint,
            first=end.segments.first_seqno(),
            visible=end.publishing.visible,
            durable=end.publishing.durable,
            last=end.pending.last,
            unfinished=end.unfinished(),
            found=None if header is None else header.epoch,
            holds=[
                Needed(one.name, one.restart_seqno, one.applied_seqno, is_running(path, one.name, disk=disk))
                for one in read_holds(path, disk=disk)
            ],
        )
        if why is not None:
            raise RollbackError(matchpoint=matchpoint, why=why)
        return None if header is None or matchpoint.seqno == end.publishing.visible else (header, start)

    def given_matchpoint(self, matchpoint: Gtid) -> tuple[RecordHeader, Lsn] | None:
        """As `matchpoint`, for a log whose numbers are given: nothing is left open or unseen, and no hold counts."""
        end = self._end
        self._appending.await_quiet()
        end.flush()
        end.publish()
        header, start = self._find(matchpoint.seqno)
        if header is None or header.epoch != matchpoint.epoch:
            there = "nothing" if header is None else str(header.gtid)
            raise RollbackError(matchpoint=matchpoint, why=f"the log holds {there} there")
        return None if matchpoint.seqno == end.publishing.visible else (header, start)

    def carry_out(self, header: RecordHeader, start: Lsn) -> RollbackMark:
        """Abandon what follows the transaction with this last header, which begins at `start`, and begin an epoch.

        Return the mark.
        """
        mark = self.abandon(header, start, Epoch(self._end.pending.epoch + 1))
        try:
            self._appending.begin_epoch(mark.epoch)
        except DiskFullError as exc:  # the mark says all that matters
            logger.warning("The new epoch has no no-op record. path=%s why=%s", self._end.path, exc)
        self._tell()
        return mark

    def carry_out_given(self, header: RecordHeader, start: Lsn) -> RollbackMark:
        """As `carry_out`, but go on in the matchpoint's epoch, with the transactions that are given."""
        end = self._end
        highest = max(end.publishing.visible_epoch, *(mark.epoch for mark in end.segments.marks), header.epoch)
        mark = self.abandon(header, start, highest)
        end.pending.epoch = header.epoch
        self._tell()
        return mark

    def abandon(self, header: RecordHeader, start: Lsn, epoch: Epoch) -> RollbackMark:
        """Abandon what follows the transaction with this last header, which begins at `start`, by a mark of `epoch`."""
        end = self._end
        self._lower_holds(Seqno(header.seqno + 1))
        end.flush()  # a sync record may be left of a transaction that was given up
        h = hash_up_to(end.segments, header.seqno, end.publishing.visible)
        number = end.journal.number + 1
        stamp = end.clock.now_ms()
        proof = end.journal.sync_record(HEADER.size, end.pending.start, stamp, number)
        mark = RollbackMark(
            number=end.publishing.mark + 1,
            epoch=epoch,
            matchpoint_epoch=header.epoch,
            matchpoint_seqno=header.seqno,
            matchpoint_lsn=start,
            dead_start=Lsn(header.lsn + header.record_length),
            dead_end=lsn(number, HEADER.size + len(proof)),
            last_seqno=end.publishing.visible,
            written_at=max(end.clock.now_ms(), 0),
        )
        self._rotation.begin_segment(proof + encode_mark(mark), stamp)
        self._go_back(mark, header, h)
        return mark

    def _lower_holds(self, following: Seqno) -> None:
        """Have followers, who go back with the log, hold it from `following` on where they hold less of it."""
        path, disk = self._end.path, self._end.disk
        for one in read_holds(path, disk=disk):
            if one.name.startswith(FOLLOWERS) and one.restart_seqno is not None and one.restart_seqno > following:
                words, clock = one.holder, self._end.clock
                hold(path, one.name, following, holder=words, sync=True, follower=True, disk=disk, clock=clock)

    def _find(self, seqno: Seqno) -> tuple[RecordHeader | None, Lsn]:
        """Return the last header of a visible transaction and where its first record stands; None if there is none."""
        end = self._end
        if not max(end.segments.first_seqno(), 0) <= seqno <= end.publishing.visible:
            return None, NO_LSN
        with Cursor(OwnView(end), committed_only=False, kept=None) as cursor:
            cursor.seek(seqno)
            found = cursor.next()
        return (None, NO_LSN) if found is None else (found.header, found.start)

    def _go_back(self, mark: RollbackMark, header: RecordHeader, h: int) -> None:
        """Take a mark that is durable for the end of the stream."""
        end = self._end
        last = mark.matchpoint_seqno
        # What readers may pass to comes first: the segments that they then look into hold nothing beyond it.
        ids = (header.source_id, header.event_id)
        end.publishing.go_back(last, ids, header.epoch, mark.matchpoint_lsn, mark.number)
        end.prefix.h = h
        end.pending.go_back(last, ids)
        end.segments.roll_back(end.journal.number, mark.last_seqno, mark)
        logger.warning(
            "Rolled back. matchpoint=%s abandoned=%d..%d mark=%d at=%s path=%s",
            mark.matchpoint,
            last + 1,
            mark.last_seqno,
            mark.number,
            lsn_text(mark.dead_end),
            end.path,
        )

    def _tell(self) -> None:
        """Publish the mark, and wake whoever waits for what was abandoned."""
        end = self._end
        end.tell()
        end.publishing.stir()
        end.store_index()
