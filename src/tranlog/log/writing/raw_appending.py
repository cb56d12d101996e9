"""Appending records as the bytes that they are in another log of the same history.

Owns how they come after the last one; whether they may is `raw_records`' decision. The hard idea: a record says its own
seqno and epoch and proves them by its checksum, so a copy is verified once and put as it came, and the same records
stand in both logs.

Source: thl-internals; docs/format.md.
"""

from __future__ import annotations

from bisect import bisect_left
from threading import get_ident

from tranlog.errors import AppendOrderError, RawRecordError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.positions import NO_LSN
from tranlog.log.records.format import CRC_NONE, HEADER, Impossible, RecordHeader, parse_event
from tranlog.log.records.running_hash import after, fold_span, signed
from tranlog.log.records.spill import RawChunk, Reference, unpack_chunk, with_reference
from tranlog.log.rules.raw_records import RawFault, RawRun, walk_raw
from tranlog.log.writing.appending import Appending
from tranlog.log.writing.log_end import LogEnd
from tranlog.log.writing.open_turn import OpenTurn
from tranlog.log.writing.spilling import SpilledTransaction


class RawAppending:
    """Appends raw records to one log. Threads: one at a time."""

    def __init__(self, end: LogEnd, appending: Appending) -> None:
        self._end = end
        self._steps = end.steps
        self._appending = appending

    def take_over(self, history: bytes, h: int) -> None:
        """See `Log.take_over`."""
        end = self._end
        with self._steps.lock, self._steps:
            end.check_open()
            if end.publishing.visible_lsn != NO_LSN or end.pending.starts or end.turn is not None:
                return
            if end.journal.end > HEADER.size:  # it was closed without a record
                try:
                    end.journal.cut(HEADER.size)
                except OSError as exc:
                    raise end.stop_for(exc, "cutting back") from exc
                end.publishing.visible_end = HEADER.size
            end.segments.history = end.journal.history = history
            end.spilling.take_over(history)
            end.prefix.h = signed(h)
            end.tell()

    def append(self, raw: bytes) -> Gtid:
        """See `Log.append_raw`."""
        end, me = self._end, get_ident()
        with self._steps.lock, self._steps:
            if end.turn is not None:
                end.turn.go_on()
            self._appending.await_turn(me)
            last, turn = Gtid(end.pending.epoch, end.pending.last), end.turn
        runs = walk_raw(raw, last, 0 if turn is None else turn.fragno)
        if isinstance(runs, RawFault):
            raise RawRecordError(path=end.path, offset=runs.offset, seqno=runs.seqno, why=runs.why)
        referred = {run.start: self._refer(raw, run, run.reference) for run in runs if run.reference is not None}
        for run in runs:
            if run.start in referred:
                self._put_referring(*referred[run.start], run, me)
            else:
                self._put(raw, run, me)
        with self._steps.lock:
            return Gtid(end.pending.epoch, end.pending.last)

    def put_chunk(self, chunk: RawChunk) -> None:
        """See `Log.put_chunk`."""
        end = self._end
        bad = unpack_chunk(chunk.codec, chunk.raw_length, chunk.raw)
        if isinstance(bad, Impossible):
            raise AppendOrderError(path=end.path, why=f"chunk {chunk.seq} of {chunk.oid.hex()}: {bad.why}")
        if not end.spilling.receive(chunk):
            why = f"chunk {chunk.seq} of {chunk.oid.hex()} without the one before it"
            raise AppendOrderError(path=end.path, why=why)

    def drop_chunks(self, oid: bytes) -> None:
        """See `Log.drop_chunks`."""
        spilled = self._end.spilling.opened(oid)
        if spilled is not None:
            spilled.abort()

    def _refer(self, raw: bytes, run: RawRun, reference: Reference) -> tuple[SpilledTransaction, Reference, bytes]:
        """Return the chunks that a record refers to, durable, the reference to them, and the record with that."""
        spilled = self._end.spilling.opened(reference.oid)
        own = None if spilled is None else spilled.refer(reference)
        if spilled is None or own is None:
            why = f"a record that refers to {reference.chunks} chunks of {reference.oid.hex()}, which are not all here"
            raise RawRecordError(path=self._end.path, offset=run.start, seqno=run.header.seqno, why=why)
        return spilled, own, with_reference(raw[run.start : run.end], own)

    def _put_referring(self, spilled: SpilledTransaction, own: Reference, record: bytes, run: RawRun, me: int) -> None:
        """Put the record that refers to a spilled transaction."""
        with self._steps.lock, self._steps:
            self._appending.await_turn(me)
            spilled.check()
            self._put_piece(record, [0], run.header, me)
            spilled.end(own, run.header.gtid)

    def _put(self, raw: bytes, run: RawRun, me: int) -> None:
        """Put a run, in as many pieces as segments begin in it."""
        end, places = self._end, run.places
        first = Seqno(run.header.seqno - len(places) + 1)
        at = 0
        while at < len(places):
            with self._steps.lock, self._steps:
                self._appending.await_turn(me)
                if end.pending.last + 1 != first + at:
                    why = f"what was to follow seqno {first + at - 1}, and the log ends at {end.pending.last}"
                    raise RawRecordError(path=end.path, offset=places[at], seqno=first + at, why=why)
                room = end.options.segment_bytes - end.journal.end
                stop = bisect_left(places, places[at] + room, at + 1)
                behind = places[stop] if stop < len(places) else run.end
                header = run.header if stop == len(places) else parse_event(raw, places[stop - 1], 0)
                assert header is not None, "it was parsed once"
                starts = [place - places[at] for place in places[at:stop]]
                self._put_piece(raw[places[at] : behind], starts, header, me)
            at = stop

    def _put_piece(self, piece: bytes, starts: list[int], header: RecordHeader, me: int) -> None:
        """Put records, of which `header` is the last one's; `starts` are their offsets in them."""
        end = self._end
        pending, turn, journal = end.pending, end.turn, end.journal
        end.go_on_in(header.epoch)
        journal.announce(checksums=header.crc_method != CRC_NONE)
        pending.room = 0
        journal.prove()
        base = journal.end
        pending.put(piece)
        pending.owners.add(me)
        ids = (header.source_id, header.event_id)
        if header.last_frag and turn is None:
            pending.complete([base + at for at in starts], ids, fold_span(piece, 0, len(piece), pending.added))
        else:
            if turn is None:
                end.turn = turn = OpenTurn(base)
            turn.took(len(piece), fold_span(piece, 0, len(piece), turn.added))
            if header.last_frag:
                pending.complete([turn.start], ids, after(pending.added, turn.added, 1))
                end.end_turn()
        if len(pending) >= end.options.buffer_bytes:
            end.flush()
