"""Appending: whose turn it is, and how a record comes after the last one.

Owns what an append looks at before it assigns a place, and the way of a transaction that grows too large for a
segment. Most appends look at nothing, see `pending`; what becomes of the bytes is `log_end`'s. The hard idea: what is
looked at comes first and changes nothing, so whatever is refused there is refused whole.

Source: docs/decisions/0012, 0017.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from tranlog.change import Fragment
from tranlog.errors import AppendOrderError, LogError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.scan import read_fragments
from tranlog.log.records.format import FRAGNO_MAX, SEGMENT_BYTES_MAX
from tranlog.log.records.running_hash import after, fold_pieces
from tranlog.log.records.spill import REFERENCE
from tranlog.log.rules.numbering import Numbering
from tranlog.log.writing.allocation import empty_transaction, record_of, records_of, referring
from tranlog.log.writing.log_end import LogEnd
from tranlog.log.writing.open_turn import OpenTurn
from tranlog.log.writing.rotation import Rotation
from tranlog.log.writing.spilling import SpilledTransaction


class Appending:
    """Appends to one log. Methods that take no lock are part of a step."""

    def __init__(self, end: LogEnd, rotation: Rotation) -> None:
        self.numbering = Numbering.NONE
        self._end = end
        self._steps = end.steps
        self._rotation = rotation

    def await_turn(self, me: int) -> None:
        """Return when this thread may assign the next place, in a segment that has room for it."""
        end, steps = self._end, self._steps
        if self.numbering is Numbering.NONE:
            raise AppendOrderError(path=end.path, why="every transaction: it was opened for upkeep, without an epoch")
        while True:
            end.check()
            if steps.draining:
                steps.wait()
            elif end.turn is not None:
                if end.turn.dropped():
                    end.drop_open()
                elif end.turn.owner == me:
                    return
                else:
                    steps.wait()
            elif end.journal.end < end.options.segment_bytes and not (end.pending.sync_due and self._rotation.is_due()):
                return
            elif end.prefix.waits_for(me) and self._has_room():
                return  # who would wait for it to be filled is who is to fill it
            elif steps.commits.leader or end.prefix.unfinished():
                steps.wait()
            else:
                self._rotation.rotate()
                return

    def await_quiet(self) -> None:
        """Return when nothing is open, unfinished or being synced, so that a segment may end here."""
        end, steps = self._end, self._steps
        while True:
            end.check()
            if end.turn is not None and end.turn.owner == get_ident():
                self.check_none_open()
            if not (steps.draining or end.turn or steps.commits.leader or end.prefix.unfinished()):
                return
            steps.wait()

    def check_none_open(self) -> None:
        """Raise AppendOrderError where this thread's transaction of several fragments is open."""
        if self._end.turn is not None:
            why = "what does not belong to this thread's open transaction: append its last fragment, or abandon_open"
            raise AppendOrderError(path=self._end.path, why=why)

    def _has_room(self) -> bool:
        """Whether the newest segment, full as it is, takes one more of the largest transactions. Raises if not."""
        end = self._end
        options = end.options
        if end.journal.end + options.segment_bytes + options.spill_above < SEGMENT_BYTES_MAX:
            return True
        why = "one more transaction of a thread that has not completed its own allocation, in a segment of 4 GiB"
        raise AppendOrderError(path=end.path, why=why)

    def append_whole(self, fragments: Sequence[Fragment], reign: int | None = None) -> Gtid | None:
        """Append a transaction at once, all of it or nothing; None, and nothing, where it is too large for that.

        `reign`: the one that it belongs to, if not this.
        """
        end = self._end
        me = get_ident()
        with self._steps.lock:
            pending = end.pending
            if len(fragments) == 1 and reign in (None, end.reign) and pending.add(fragments[0], me):
                return Gtid(pending.epoch, pending.last)
            with self._steps:
                self.await_turn(me)
                end.check_leads(reign)
                self.check_none_open()
            if len(fragments) > FRAGNO_MAX + 1:
                return None
            gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
            pieces = list(records_of(fragments, gtid, checksum=end.options.checksum))
            if sum(map(len, pieces)) > end.options.spill_above:
                return None
            with self._steps:
                return self._put(pieces, fragments[-1], me)

    def append(self, fragment: Fragment) -> Gtid:
        """See `Log.append`."""
        me = get_ident()
        end = self._end
        pending = end.pending
        with self._steps.lock:
            if pending.add(fragment, me):
                return Gtid(pending.epoch, pending.last)
            with self._steps:
                self.await_turn(me)
                if end.follows and end.turn is not None:
                    end.drop_open()
                end.check_leads()
                self._let_in()
            if pending.add(fragment, me):
                return Gtid(pending.epoch, pending.last)
            turn = end.turn
            added = turn is None or turn.spilled is None
            if not added:
                gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
            else:
                try:
                    record = self._encode(fragment)
                except BaseException:
                    with self._steps:
                        end.abandon()
                    raise
                with self._steps:
                    gtid = self._put(record, fragment, me)
                turn = end.turn
            spilled = None if turn is None else turn.spilled
        if spilled is not None and (fragment.last or not added):
            self._append_spilled(spilled, fragment, me, added=added)
        return gtid

    def _append_spilled(self, spilled: SpilledTransaction, fragment: Fragment, me: int, *, added: bool) -> None:
        """Go on with a transaction that `append` spills; with its last fragment, append the record that refers to it.

        The turn is this thread's until then, so nothing is appended meanwhile, and the disk works without the lock.
        """
        reference = None
        try:
            if not added:
                spilled.add(fragment)
            if fragment.last:
                reference = spilled.finish()
        except BaseException:
            with self._steps.lock, self._steps:
                if self._end.turn is not None and self._end.turn.spilled is spilled:
                    self._end.drop_open()
                self._end.check()  # whoever gave it up meanwhile said why
            raise
        with self._steps.lock, self._steps:
            self._end.check()
            spilled.check()
            if reference is not None:
                gtid = self.append_record(referring(fragment, reference), me, spilled=True)
                spilled.end(reference, gtid)
                self._end.end_turn()

    def append_record(self, fragment: Fragment, me: int, *, spilled: bool = False) -> Gtid:
        """Append a fragment; `spilled`: it is what refers to a spilled transaction."""
        return self._put(self._encode(fragment, spilled), fragment, me, spilled)

    def _encode(self, fragment: Fragment, spilled: bool = False) -> tuple[bytes, bytes, bytes]:
        """Return the next record, as `_put` puts it, in pieces; nothing is changed. Raises RecordLimitError."""
        pending, turn = self._end.pending, self._end.turn
        fragno = 0 if spilled or turn is None else min(turn.fragno, FRAGNO_MAX)
        gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
        return record_of(fragment, gtid, fragno, checksum=self._end.options.checksum, spilled=spilled)

    def _put(self, pieces: Sequence[bytes], fragment: Fragment, me: int, spilled: bool = False) -> Gtid:
        """Put a record, or all those of a transaction, after what is pending; `fragment` is the last one of them."""
        end = self._end
        pending, turn = end.pending, end.turn
        pending.room = 0
        gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
        size = sum(map(len, pieces))
        if not spilled:
            so_far, fragno = (turn.bytes, turn.fragno) if turn is not None else (0, 0)
            if size + so_far > end.options.spill_above or fragno > FRAGNO_MAX:
                if fragno or len(fragment.payload) > REFERENCE.size:
                    self._spill_open(fragment)
                    return gtid
        end.journal.prove()
        start = end.journal.end if turn is None or spilled else turn.start
        for piece in pieces:
            pending.put(piece)
        added = fold_pieces(0 if turn is None or spilled else turn.added, pieces, gtid)
        pending.owners.add(me)
        if fragment.last:
            pending.complete([start], (fragment.source_id, fragment.event_id), after(pending.added, added, 1))
            if turn is not None and not spilled:
                end.end_turn()
        else:
            if turn is None:
                end.turn = turn = OpenTurn(start)
            turn.took(size, added)
        if len(pending) >= end.options.buffer_bytes:
            end.flush()
        self._let_in()
        return gtid

    def _let_in(self) -> None:
        """Let whole transactions in without a look at anything else, where nothing else is the matter."""
        end = self._end
        if not (end.turn or self._steps.draining or end.refused or end.ownership.lost):
            end.journal.prove()
            end.give_room()

    def _spill_open(self, fragment: Fragment) -> None:
        """Move the open transaction, which grew too large for a segment, out of the log, and `fragment` with it.

        Its seqno and its turn stay: the record that refers to it is appended with its last fragment, by `append`.
        """
        end = self._end
        spilled, turn = end.spilling.begin(end.pending.epoch), end.turn
        try:
            if turn is not None:
                end.flush()
                for one in read_fragments(end.journal.file, end.journal.number, turn.start, turn.fragno):
                    spilled.add(one)
                end.drop_open()
            spilled.add(fragment)
        except BaseException as exc:
            spilled.abort()
            if isinstance(exc, LogError) and end.turn is not None:
                end.drop_open()
            raise
        end.turn = OpenTurn(end.journal.end, spilled)

    def begin_epoch(self, epoch: Epoch) -> None:
        """Begin an epoch after everything, by a no-op; only after its sync is there anything to see of it."""
        end = self._end
        end.pending.epoch = epoch
        self.append_record(empty_transaction(end.pending.ids, max(end.clock.now_ms(), 0)), get_ident())
        end.flush()
        end.sync_now()
        end.publish()
