"""From one codec to the other, or native to native: a whole log, streaming, resumed where it was cut off.

Owns the two scans, the two copies and the note that a destination carries. What an event is in the other codec is
`translate`'s. The hard idea: the destination itself says how far it has come, since its opening cuts what is not
whole; the note beside it only says of which log it is the beginning, and what was found in it, so that a conversion
which is started again neither scans twice nor goes on with another log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, Protocol

import msgspec

from tranlog.change import Fragment, TableName
from tranlog.codecs.opening import Codec, codec_of
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import (
    ConversionRefusedError,
    ConversionTargetError,
    LogMissingError,
    LogUnreadableError,
    PurgedError,
)
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.files.directory import join, make_directory, replace_file, storing
from tranlog.log.options import LogOptions
from tranlog.log.reading.cursor import StoredTransaction
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.numbering import Numbering
from tranlog.log.writing.allocation import records_of, referring
from tranlog.log.writing.log import Log
from tranlog.log.writing.spilling import SpilledTransaction
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.reading.stream import WholeReader, fillers, stand_before, with_tables
from tranlog.tungsten.records.codec import segment_number
from tranlog.tungsten.rules.arrange import WIDE_GAP, Whole
from tranlog.tungsten.rules.translate import (
    FATAL,
    FRAGNO_MAX,
    FragmentHeader,
    Loss,
    NativeFragment,
    Outer,
    outer_of,
    to_tungsten,
)
from tranlog.tungsten.rules.translate import MEANINGS as MEANINGS
from tranlog.tungsten.writing.directory import TungstenLog

NOTE_NAME: Final = "converted.json"
"""What a destination says about itself."""
NOTE_VERSION: Final = 1
COMMIT_BYTES: Final = 8 << 20
"""Payload bytes between two syncs of the destination."""
COMMIT_TRANSACTIONS: Final = 10_000
SEGMENT_BYTES: Final = 100_000_000

ProgressTold = Callable[[str, int, int], None]
"""Called with what is being done, how many seqnos of it are done, and of how many."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of thing that the other codec cannot say: how many fragments have it, and the first one's seqno."""

    kind: Loss
    count: int
    first_seqno: int

    @property
    def meaning(self) -> str:
        """What it is, for people."""
        return MEANINGS[self.kind]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a transaction from any other of that seqno."""

    seqno: int
    epoch: int
    source_id: str
    event_id: str


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination says about itself.

    `scanned_upto`: `findings` are those up to this seqno, and what they lose was accepted.
    """

    version: int
    source_codec: Codec
    source_path: str
    first: Identity
    scanned_upto: int
    findings: tuple[Finding, ...]


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversion did.

    `transactions` of the source were copied now, the first of them `first_seqno`; 0: the destination was complete
    before. It ends at `last_seqno`, -1 where the source is empty. `resumed`: part of it was there before.
    """

    source: str
    destination: str
    to: Codec
    resumed: bool
    transactions: int
    first_seqno: int
    last_seqno: int
    findings: tuple[Finding, ...]

    @property
    def complete_before(self) -> bool:
        """Whether there was nothing left to do."""
        return self.resumed and not self.transactions


def _told_nobody(what: str, done: int, total: int) -> None:
    """Report to nobody."""


def _shown_nobody(findings: tuple[Finding, ...]) -> None:
    """Show to nobody."""


def convert(
    source: str,
    destination: str,
    *,
    to: Codec | None = None,
    lossy: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
    disk: Disk = OS_DISK,
    progress: ProgressTold = _told_nobody,
    show: Callable[[tuple[Finding, ...]], None] = _shown_nobody,
) -> Conversion:
    """Convert the log at `source`, as it is now, into the directory `destination`, whose parent exists.

    `to`: the other codec by default; a native log into a native one is copied record by record, as the bytes that they
    are, and has the same history. `show` gets what was found before a byte is written, if anything was.
    A destination that is the beginning of this conversion is gone on with.
    Raises ConversionRefusedError (findings without `lossy`, or such as cannot be left out), ConversionTargetError
    (another log's), PurgedError (the source no longer has what comes next), and what opening and reading either
    raises.
    """
    source, destination = source.rstrip("/") or "/", destination.rstrip("/") or "/"
    codec = codec_of(source, disk)
    wanted = (Codec.NATIVE if codec is Codec.TUNGSTEN else Codec.TUNGSTEN) if to is None else to
    if wanted is codec is Codec.TUNGSTEN:
        raise ConversionRefusedError(path=source, why=f"it is in the {codec} codec already")
    real, there = os.path.realpath(source), os.path.realpath(destination)
    if os.path.commonpath([real, there]) == real:
        why = (
            "it is the source itself" if real == there else f"it lies in the source, {source}; name a folder beside it"
        )
        raise ConversionTargetError(path=destination, why=why)
    origin: _Source = _TungstenSource(source, disk) if codec is Codec.TUNGSTEN else _NativeSource(source, disk)
    with closing(origin):
        work = _Work(origin, destination, disk, segment_bytes=segment_bytes, progress=progress)
        return work.run(wanted, lossy=lossy, show=show)


class _Work:
    """One conversion. Threads: one."""

    def __init__(
        self, origin: _Source, destination: str, disk: Disk, *, segment_bytes: int, progress: ProgressTold
    ) -> None:
        self._origin = origin
        self._destination = destination
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._progress = progress

    def run(self, to: Codec, *, lossy: bool, show: Callable[[tuple[Finding, ...]], None]) -> Conversion:
        origin = self._origin
        first = origin.first()
        note = self._read_note()
        if first is None:
            self._check_note(note, None)
            return self._done(to, resumed=note is not None, count=0, first=-1, last=-1, findings=())
        self._check_note(note, first)
        last = origin.last_seqno
        findings = () if to is origin.codec else self._scan(note, first.seqno, last)
        if findings:
            show(findings)
            self._judge(findings, lossy or (note is not None and note.findings == findings))
        if note is None or note.scanned_upto < last:
            self._write_note(
                Note(
                    version=NOTE_VERSION,
                    source_codec=origin.codec,
                    source_path=os.path.abspath(origin.path),
                    first=first if note is None else note.first,
                    scanned_upto=last,
                    findings=findings,
                )
            )
        resumed = note is not None
        began, count = (self._to_tungsten if to is Codec.TUNGSTEN else self._to_native)(first.seqno, last)
        return self._done(to, resumed=resumed, count=count, first=began, last=last, findings=findings)

    def _done(
        self, to: Codec, *, resumed: bool, count: int, first: int, last: int, findings: tuple[Finding, ...]
    ) -> Conversion:
        return Conversion(
            source=self._origin.path,
            destination=self._destination,
            to=to,
            resumed=resumed,
            transactions=count,
            first_seqno=first,
            last_seqno=last,
            findings=findings,
        )

    # --- before ---

    def _scan(self, note: Note | None, first: int, last: int) -> tuple[Finding, ...]:
        counts: dict[Loss, tuple[int, int]] = {}
        low = first
        if note is not None:
            counts = {one.kind: (one.count, one.first_seqno) for one in note.findings}
            low = max(first, note.scanned_upto + 1)
        for seqno, losses in self._origin.losses(low, last) if low <= last else ():
            self._progress("looked at", seqno - low + 1, last - low + 1)
            for kind in losses:
                count, where = counts.get(kind, (0, seqno))
                counts[kind] = (count + 1, where)
        return tuple(
            Finding(kind=kind, count=count, first_seqno=where)
            for kind, (count, where) in sorted(counts.items(), key=lambda one: one[1][1])
        )

    def _judge(self, findings: tuple[Finding, ...], lossy: bool) -> None:
        fatal = [one for one in findings if one.kind in FATAL]
        if lossy and not fatal:
            return
        text = ", ".join(f"{one.kind} ({one.count}, first at seqno {one.first_seqno})" for one in fatal or findings)
        why = f"the other codec cannot express what is in it: {text}"
        if fatal:
            why += "; this cannot be left out, not even with --lossy"
        raise ConversionRefusedError(path=self._origin.path, why=why)

    def _read_note(self) -> Note | None:
        """Read what the destination says. Raises ConversionTargetError for a log without a note that fits."""
        path, disk = self._destination, self._disk
        try:
            if not disk.exists(path):
                return None
            names = disk.list_dir(path)
            raw = None
            if NOTE_NAME in names:
                with closing(disk.open(join(path, NOTE_NAME))) as file:
                    raw = file.pread(file.size(), 0)
        except NotADirectoryError as exc:
            raise ConversionTargetError(path=path, why="it is not a directory") from exc
        except OSError as exc:
            raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc
        if raw is None:
            if any(segment_number(name) is not None for name in names):
                raise ConversionTargetError(path=path, why="it holds a log that was not made by a conversion")
            return None
        try:
            note = msgspec.json.decode(raw, type=Note)
        except msgspec.DecodeError as exc:
            raise ConversionTargetError(path=path, why=f"its {NOTE_NAME} is damaged ({exc})") from exc
        if note.version != NOTE_VERSION:
            raise ConversionTargetError(path=path, why=f"its {NOTE_NAME} is of version {note.version}")
        return note

    def _check_note(self, note: Note | None, first: Identity | None) -> None:
        if note is None:
            return
        there = f"it was begun from {note.source_path}, whose first transaction was {note.first.seqno}"
        origin = self._origin
        if note.source_codec is not origin.codec:
            raise ConversionTargetError(path=self._destination, why=f"{there}, a log in the other codec")
        if first is None:
            raise ConversionTargetError(path=self._destination, why=f"{there}; {origin.path} holds none")
        if first.seqno < note.first.seqno or (first.seqno == note.first.seqno and first != note.first):
            why = f"{there}, event id {note.first.event_id!r}; {origin.path} has another one"
            raise ConversionTargetError(path=self._destination, why=why)

    def _write_note(self, note: Note) -> None:
        path, disk = self._destination, self._disk
        with storing(join(path, NOTE_NAME)):
            if not disk.exists(path):
                make_directory(path, disk)
                disk.sync_dir(os.path.dirname(path) or ".")
            replace_file(join(path, NOTE_NAME), msgspec.json.format(msgspec.json.encode(note)) + b"\n", disk)

    def _check_same(self, ours: Identity, theirs: Identity | None) -> None:
        if theirs is not None and ours != theirs:
            why = (
                f"its last transaction, seqno {ours.seqno}, is event {ours.event_id!r} of epoch {ours.epoch}, and in "
                f"{self._origin.path} it is event {theirs.event_id!r} of epoch {theirs.epoch}"
            )
            raise ConversionTargetError(path=self._destination, why=why)

    def _check_reach(self, next_seqno: int, first: int, last: int) -> None:
        if next_seqno > last + 1:
            why = f"it reaches seqno {next_seqno - 1}, and {self._origin.path} ends at {last}"
            raise ConversionTargetError(path=self._destination, why=why)
        if next_seqno < first:
            raise PurgedError(seqno=next_seqno, first=first)

    # --- copying ---

    def _to_native(self, first: int, last: int) -> tuple[int, int]:
        """Copy to a native log; return the first seqno that was copied, and how many transactions."""
        origin = self._origin
        options = LogOptions(segment_bytes=self._segment_bytes)
        with Log.open(
            self._destination,
            source_id="",
            options=options,
            disk=self._disk,
            start_after=Gtid(Epoch(0), Seqno(first - 1)) if first else None,
            numbering=Numbering.GIVEN,
        ) as log:
            before = log.last()
            began = first if before is None else before.seqno + 1
            if before is None:
                origin.hand_over(log, first)
            else:
                self._check_reach(began, first, last)
                self._check_same(_identity(before), origin.identity(before.seqno))
            pending, synced = 0, began - 1
            for seqno, size in origin.copy_to(log, options, began, last):
                pending += size
                if pending >= COMMIT_BYTES or seqno - synced >= COMMIT_TRANSACTIONS:
                    log.commit()
                    pending, synced = 0, seqno
                self._progress("converted", seqno - began + 1, last - began + 1)
            log.commit()
            return began, log.last_seqno - began + 1

    def _to_tungsten(self, first: int, last: int) -> tuple[int, int]:
        origin = self._origin
        assert isinstance(origin, _NativeSource)
        before = _last_of(self._destination, self._disk)
        count = 0
        with TungstenLog.open(self._destination, disk=self._disk, segment_bytes=self._segment_bytes, gaps=True) as log:
            place = log.next_place
            began = first if place is None else place.seqno
            if before is not None:
                self._check_reach(began, first, last)
                self._check_same(before, origin.identity(before.seqno))
            for transaction in origin.transactions(began, last):
                written = False
                for record in transaction.records():
                    header = record.header
                    event = to_tungsten(header, record.payload)
                    if event is None:
                        continue
                    end = event.end
                    log.append_payload(
                        event.payload,
                        seqno=header.seqno,
                        fragno=header.fragno,
                        last_frag=header.last_frag,
                        epoch=header.epoch,
                        source_id=header.source_id,
                        event_id=header.event_id,
                        shard_id=header.shard_id,
                        tstamp=header.tstamp,
                        seqno_end=None if end is None else end[0],
                        fragno_end=None if end is None else end[1],
                    )
                    written = True
                count += written
                self._progress("converted", transaction.header.seqno - began + 1, last - began + 1)
            log.commit()
        return began, count


class _Copy:
    """Puts fragments into a log under the GTIDs that they come with. Memory: as an open transaction's."""

    def __init__(self, log: Log, options: LogOptions) -> None:
        self._log = log
        self._options = options
        self._held: list[Fragment] = []
        self._bytes = 0
        self._spilled: SpilledTransaction | None = None

    def add(self, fragment: Fragment, gtid: Gtid) -> None:
        """Take the next fragment; with the last one of a transaction put all of it."""
        self._held.append(fragment)
        self._bytes += len(fragment.payload)
        large = self._bytes > self._options.spill_buffer_bytes and len(self._held) > 1
        if self._spilled is None and (large or len(self._held) > FRAGNO_MAX):
            self._spilled = self._log.begin_spill()
        if self._spilled is not None:
            for one in self._held:
                self._spilled.add(one)
            self._held = []
        if fragment.last:
            checksum = self._options.checksum
            if self._spilled is None:
                pieces = records_of(self._held, gtid, checksum=checksum)
            else:
                told = referring(fragment, self._spilled.finish())
                pieces = records_of([told], gtid, checksum=checksum, spilled=True)
            self._log.append_raw(b"".join(pieces))
            self._held, self._bytes, self._spilled = [], 0, None


def _identity(header: FragmentHeader) -> Identity:
    return Identity(seqno=header.seqno, epoch=header.epoch, source_id=header.source_id, event_id=header.event_id)


def _last_of(path: str, disk: Disk) -> Identity | None:
    """Return the last transaction of a Tungsten directory, None where it holds none."""
    try:
        reader = TungstenReader.open(path, disk=disk)
    except LogMissingError:
        return None
    if reader.last_seqno < 0:
        return None
    with closing(reader.cursor()) as cursor:
        cursor.seek(reader.last_seqno)
        run = cursor.next_run()
        return None if run is None else _identity(run[-1][0])


def _fragment(fragment: NativeFragment, tables: tuple[TableName, ...] | None) -> Fragment:
    outer = fragment.outer
    return Fragment(
        source_id=outer.source_id,
        event_id=outer.event_id,
        shard_id=outer.shard_id,
        tstamp=outer.tstamp,
        tables=tables,
        payload=fragment.payload,
        last=outer.last_frag,
    )


class _Source(Protocol):
    """A log that is converted, as it was when this was made."""

    codec: Codec
    path: str
    last_seqno: int

    def hand_over(self, log: Log, first: int) -> None:
        """Tell a native log whose records come, from seqno `first` on; without a word it is a history of its own."""

    def copy_to(self, log: Log, options: LogOptions, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Put the transactions from `low` to `high` into a native log; yield seqno and bytes after each step."""

    def first(self) -> Identity | None:
        """Return the first transaction, None of an empty log."""

    def identity(self, seqno: int) -> Identity | None:
        """Return a transaction, None where the log has no event of its own for it."""

    def losses(self, low: int, high: int) -> Iterator[tuple[int, frozenset[Loss]]]:
        """Yield each fragment's seqno, and what the other codec cannot say of it."""

    def close(self) -> None:
        """Close the files."""


class _TungstenSource(_Source):
    def __init__(self, path: str, disk: Disk) -> None:
        self.codec = Codec.TUNGSTEN
        self.path = path
        self._reader = TungstenReader.open(path, disk=disk)
        self.last_seqno = self._reader.next_seqno - 1 if self._reader.last_seqno >= 0 else NO_SEQNO

    def first(self) -> Identity | None:
        if self.last_seqno == NO_SEQNO:
            return None
        with closing(stand_before(self._reader, None, strict=False)) as reading:
            whole = reading.next()
            return None if whole is None else _identity(outer_of(whole.pieces[-1].record)[0])

    def identity(self, seqno: int) -> Identity | None:
        with closing(stand_before(self._reader, seqno, strict=False)) as reading:
            whole = reading.next()
            if whole is None or whole.seqno > seqno:
                return None
            return msgspec.structs.replace(_identity(outer_of(whole.pieces[-1].record)[0]), seqno=seqno)

    def losses(self, low: int, high: int) -> Iterator[tuple[int, frozenset[Loss]]]:
        epoch = -1
        follows: int | None = None
        for reading, whole in self._wholes(low, high):
            for piece in reading.left_out:
                if piece.record.seqno >= low:
                    yield piece.record.seqno, frozenset({Loss.OUT_OF_ORDER})
            reading.left_out.clear()
            if whole is None:
                return
            if whole.end_seqno < low:
                epoch = max(epoch, whole.pieces[-1].record.epoch)
                follows = whole.end_seqno + 1
                continue
            lost = {Loss.WIDE_GAP} if follows is not None and whole.seqno - follows > WIDE_GAP else set()
            if whole.end_seqno - whole.seqno > WIDE_GAP:
                lost.add(Loss.WIDE_GAP)
            for fragment in reading.fragments(whole, keep=False):
                if fragment.outer.epoch < epoch:
                    lost.add(Loss.EPOCH_BACK)
                epoch = max(epoch, fragment.outer.epoch)
                yield whole.seqno, fragment.losses | lost
                lost = set()
            follows = whole.end_seqno + 1

    def copy_to(self, log: Log, options: LogOptions, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Put what the transactions are in a native log, which has every seqno."""
        copy, size = _Copy(log, options), 0
        for fragment, tables in with_tables(self.fragments(low, high)):
            outer = fragment.outer
            copy.add(_fragment(fragment, tables), Gtid(Epoch(outer.epoch), Seqno(outer.seqno)))
            size += len(fragment.payload)
            if outer.last_frag:
                yield outer.seqno, size
                size = 0

    def fragments(self, low: int, high: int) -> Iterator[NativeFragment]:
        """Yield what a native log has from `low` to `high`, every seqno and every fragment."""
        wanted = low
        before: Outer | None = None
        for reading, whole in self._wholes(low, high):
            reading.left_out.clear()
            if whole is None:
                return
            if before is not None:
                yield from fillers(wanted, whole.seqno - 1, before)
            if whole.seqno >= low:
                for fragment in reading.fragments(whole, keep=True):
                    before = fragment.outer
                    yield fragment
            else:
                before = outer_of(whole.pieces[-1].record)[0]
            assert before is not None
            yield from fillers(max(low, whole.seqno + 1), whole.end_seqno, before)
            wanted = max(low, whole.end_seqno + 1)

    def _wholes(self, low: int, high: int) -> Iterator[tuple[WholeReader, Whole | None]]:
        """Yield each transaction with what reads it; at the end None, when there may be records that were left out."""
        # From a transaction before on, since a gap before `low` is filled in its likeness.
        with closing(stand_before(self._reader, max(low - 1, 0), strict=False, all_there=True)) as reading:
            while True:
                whole = reading.next()
                if whole is None or whole.seqno > high:
                    yield reading, None
                    return
                yield reading, whole

    def hand_over(self, log: Log, first: int) -> None:
        """Nothing is told: the new log is a history of its own."""

    def close(self) -> None:
        """There is nothing open."""


class _NativeSource(_Source):
    def __init__(self, path: str, disk: Disk) -> None:
        self.codec = Codec.NATIVE
        self.path = path
        self._reader = LogReader.open(path, disk=disk)
        found = self._reader.range()
        self._first_seqno = found.first_seqno
        self.last_seqno = found.committed_seqno

    def hand_over(self, log: Log, first: int) -> None:
        """Give it history and running hash, so that both are equal at each transaction."""
        if self.last_seqno != NO_SEQNO:
            log.take_over(self._reader.history, self._reader.h(Seqno(first - 1)))

    def first(self) -> Identity | None:
        return None if self.last_seqno == NO_SEQNO else self.identity(self._first_seqno)

    def identity(self, seqno: int) -> Identity | None:
        header = self._reader.header(Seqno(seqno))
        return None if header is None else _identity(header)

    def losses(self, low: int, high: int) -> Iterator[tuple[int, frozenset[Loss]]]:
        for transaction in self.transactions(low, high):
            for record in transaction.records():
                event = to_tungsten(record.header, record.payload)
                losses = frozenset() if event is None else event.losses
                if record.header.fragno > FRAGNO_MAX:
                    losses |= {Loss.MANY_FRAGMENTS}
                yield record.header.seqno, losses

    def copy_to(self, log: Log, options: LogOptions, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Put the records as they are."""
        with self._reader.cursor(committed_only=True) as cursor:
            cursor.seek(Seqno(low))
            for stretch in cursor.stretches(until=Seqno(high)):
                for chunk in stretch.chunks():
                    log.put_chunk(chunk)
                log.append_raw(stretch.raw)
                yield stretch.last, len(stretch.raw)

    def transactions(self, low: int, high: int) -> Iterator[StoredTransaction]:
        """Yield the transactions from `low` to `high`."""
        with self._reader.cursor(committed_only=True) as cursor:
            cursor.seek(Seqno(low))
            for _ in range(low, high + 1):
                transaction = cursor.next()
                assert transaction is not None, "it was committed when the conversion began"
                yield transaction

    def close(self) -> None:
        """Close the log."""
        self._reader.close()
