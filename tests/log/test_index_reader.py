"""log/files/index_reader.py: readers in other processes seek by the stored index, and are never misled by it."""

from __future__ import annotations

import logging
import random
from array import array

import pytest

from fix_effort import few_of
from fix_log import (
    PATH,
    fill,
    flip,
    kept_open,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    read_all,
    segment_path,
)
from tranlog.errors import AbandonedError, CorruptRecordError, LogReplacedError, PurgedError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files import scan
from tranlog.log.files.index_reader import IndexReader
from tranlog.log.files.index_table import INDEX_NAME, apply_frames, decode_table, encode_frame
from tranlog.log.files.segments import OPEN_FILES
from tranlog.log.reading.cursor import Cursor
from tranlog.log.rules import mappings
from tranlog.log.rules.bucket import Bucket, encode_bucket
from tranlog.log.rules.index import RANGE_KEY
from tranlog.log.rules.index_values import IndexOptions
from tranlog.log.writing.log import Log, LogReader
from tranlog.lsn import lsn_offset, lsn_segment
from tranlog.testing.disk import SimDisk, SimFile

TABLE = f"{PATH}/{INDEX_NAME}"
TABLE_HEADER = b"TLIX\0\1\0\0"


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of many buckets for a log of a few KB."""
    options = IndexOptions(stride=4, max_mappings=5, spacing=900)
    monkeypatch.setattr(mappings, "IndexOptions", lambda: options)


def without_index(disk: SimDisk) -> LogReader:
    reader = open_reader(disk)
    reader._segments._stored = None
    return reader


def read_at(cursor: Cursor, seqno: int) -> tuple[int, bytes]:
    cursor.seek(Seqno(seqno))
    found = cursor.next()
    assert found is not None
    return found.header.seqno, b"".join(found.payloads())


def put(disk: SimDisk, path: str, content: bytes) -> None:
    disk.open(path, write=True, create=True).close()
    disk.set_content(path, content)


def rewrite(disk: SimDisk, table: dict[int, bytes]) -> None:
    disk.set_content(TABLE, TABLE_HEADER + encode_frame(table, ()))


class Reads:
    """What is read of a disk's files, in bytes, from now on."""

    def __init__(self, disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self.opened: list[str] = []
        pread, opens = SimFile.pread, SimDisk.open

        def counted(file: SimFile, size: int, offset: int) -> bytes:
            raw = pread(file, size, offset)
            self.bytes += len(raw)
            return raw

        def noted(one: SimDisk, path: str, *, write: bool = False, create: bool = False) -> SimFile:
            self.opened.append(path)
            return opens(one, path, write=write, create=create)

        monkeypatch.setattr(SimFile, "pread", counted)
        monkeypatch.setattr(SimDisk, "open", noted)


# --- what it is good for ----------------------------------------------------------------------------------------


def test_a_seek_reads_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """performance.md, "Index": a mapping every so many KB, so that a seek reads no more than lies between two."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000_000) as log:
        fill(log, 600, size=8_000)
    with open_reader(disk) as reader, reader.cursor() as cursor:
        read_at(cursor, 599)  # takes the index
        reads = Reads(disk, monkeypatch)
        for seqno in random.Random(1).sample(range(1, 600), 50):
            assert read_at(cursor, seqno) == (seqno, make_payload(seqno - 1, 8_000))
        assert reads.bytes / 50 < 64 * 1024
        assert len(reads.opened) <= 3, "the segments stay open between seeks"
    reader = without_index(disk)
    with reader, reader.cursor() as cursor:
        reads.bytes = 0
        assert read_at(cursor, 200) == (200, make_payload(199, 8_000))
        assert reads.bytes > 300_000, "without it the segment is walked"


def test_large_transactions_are_mapped_more_densely() -> None:
    """bucket.py: the stride goes by bytes; small transactions keep the widest one."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 300, size=100)
        fill(log, 300, size=8_000)
        fill(log, 300, size=70_000)
        fill(log, 2_000, size=100)
        buckets = log.seqno_index.mappings.buckets
        strides = [(bucket.first, bucket.stride) for bucket in buckets]
        starts = [one.start for one in read_all(log.cursor())]
        for seqno, start in enumerate(starts):
            place = log.seqno_index.mappings.below(Seqno(seqno))
            assert place is not None and start - place.lsn <= 5 * log.seqno_index.mappings.options.spacing
    assert strides[0] == (0, 64)
    assert 1 in {stride for _, stride in strides} and len(strides) < 40


def test_it_is_taken_again_when_it_was_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    log = open_log(disk, index_flush_s=None)
    fill(log, 400, size=1_000)
    log.flush_index()
    reader = open_reader(disk)
    with kept_open(log, reader), reader.cursor() as cursor:
        read_at(cursor, 390)
        assert reader._segments._stored_last == 400
        fill(log, 400, size=1_000, start=400)
        reads = Reads(disk, monkeypatch)
        read_at(cursor, 790)
        assert reads.bytes > 300_000, "nothing is stored of it yet"
        log.flush_index()
        reads.bytes = 0
        read_at(cursor, 700)
        assert reads.bytes < 100_000 and reader._segments._stored_last == 800
        reads.bytes = 0
        for seqno in (420, 555, 610, 111):
            read_at(cursor, seqno)
        assert reads.bytes < 4 * 80_000


def test_only_what_was_appended_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    with open_log(disk, index_flush_s=None) as log:
        fill(log, 3_000)
        log.flush_index()
        fill(log, 10)
        log.flush_index()
        stored = IndexReader(TABLE, disk)
        first = stored.read()
        assert first is not None and first[0].range.last == log.durable_seqno
        assert stored.read() is None, "nothing new"
        fill(log, 10)
        log.flush_index()
        reads = Reads(disk, monkeypatch)
        second = stored.read()
        assert second is not None and second[0].range.last == log.durable_seqno
        assert reads.bytes < disk.open(TABLE).size() / 2
        stored.read_again()
        third = stored.read()
        assert third is not None and third[0].range == second[0].range
        stored.close()


def test_a_frame_half_written_counts_when_it_is_whole() -> None:
    """index_table.py: a frame counts only when all of it is there."""
    disk = SimDisk()
    with open_log(disk, index_flush_s=None) as log:
        fill(log, 100)
        log.flush_index()
        whole = disk.content(TABLE)
        fill(log, 100)
        log.flush_index()
        longer = disk.content(TABLE)
        assert longer.startswith(whole) and len(longer) > len(whole)
        disk.set_content(TABLE, longer[:-3])
        stored = IndexReader(TABLE, disk)
        first = stored.read()
        assert first is not None and first[0].range.last == 100
        assert stored.read() is None
        disk.set_content(TABLE, longer)
        second = stored.read()
        assert second is not None and second[0].range.last == 200
        stored.close()


# --- what it does not do ----------------------------------------------------------------------------------------


def spoiled(kind: str, raw: bytes, rng: random.Random) -> bytes | None:
    """Return a table that was damaged; None: it is gone."""
    at = rng.randrange(len(raw))
    match kind:
        case "gone":
            return None
        case "empty":
            return b""
        case "cut":
            return raw[:at]
        case "bit":
            return raw[:at] + bytes((raw[at] ^ 1 << rng.randrange(8),)) + raw[at + 1 :]
        case "zeros":
            return raw[:at] + bytes(len(raw) - at)
        case "noise":
            return rng.randbytes(len(raw))
        case _:
            raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["gone", "empty", "cut", "bit", "zeros", "noise"])
def test_damage_costs_time_and_nothing_else(small_buckets: None, kind: str) -> None:
    """Design: a missing, stale or damaged index is a slower seek, never a wrong answer."""
    disk, rng = SimDisk(), random.Random(kind)
    with open_log(disk, segment_bytes=20_000) as log:
        fill(log, 150, size=300)
    raw = disk.content(TABLE)
    for _ in range(12):
        left = spoiled(kind, raw, rng)
        if left is not None:
            put(disk, TABLE, left)
        elif disk.exists(TABLE):
            disk.unlink(TABLE)
        with open_reader(disk) as reader, reader.cursor() as cursor:
            for seqno in rng.sample(range(1, 151), 12):
                assert read_at(cursor, seqno) == (seqno, make_payload(seqno - 1, 300))


@pytest.mark.parametrize("shift", [-331, -1, 1, 40, 331, 4_000, 1 << 20])
def test_well_formed_places_that_are_wrong(small_buckets: None, shift: int, caplog: pytest.LogCaptureFixture) -> None:
    """index_reader.py: where a transaction is sought at a place, the record there has to say so."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=20_000) as log:
        fill(log, 150, size=300)
        last = log.last_seqno
    table = decode_table(disk.content(TABLE))
    for key in table:
        if key == RANGE_KEY:
            continue
        (bucket,) = [one for one in log.seqno_index.mappings.buckets if one.first == key]
        wrong = bucket.copy()
        wrong.offsets = array("I", [max(offset + shift, 17) for offset in bucket.offsets])
        wrong.tail = bucket.tail if bucket.last == last else (bucket.last, max(bucket.last_offset + shift, 17))
        table[key] = encode_bucket(wrong)
    rewrite(disk, table)
    with caplog.at_level(logging.WARNING), open_reader(disk) as reader, reader.cursor() as cursor:
        for seqno in random.Random(shift).sample(range(1, 151), 60):
            assert read_at(cursor, seqno) == (seqno, make_payload(seqno - 1, 300))
    assert "The index is wrong about a transaction" in caplog.text


def test_a_log_inside_a_log(small_buckets: None) -> None:
    """Payloads that hold records of a log: bytes that look like the transaction sought, and are not at its place."""
    inner, disk = SimDisk(), SimDisk()
    with open_log(inner) as log:
        fill(log, 40)
    raw = inner.content(segment_path(1))
    with open_log(disk, segment_bytes=30_000) as log:
        for number in range(30):
            log.append(make_fragment(f"e{number}", raw))
            log.commit()
    table = decode_table(disk.content(TABLE))
    for key in [key for key in table if key != RANGE_KEY][:-1]:
        (bucket,) = [one for one in log.seqno_index.mappings.buckets if one.first == key]
        wrong = bucket.copy()
        wrong.offsets = array("I", [offset + 700 for offset in bucket.offsets])
        table[key] = encode_bucket(wrong)
    rewrite(disk, table)
    with open_reader(disk) as reader, reader.cursor() as cursor:
        for seqno in random.Random(5).sample(range(1, 31), 30):
            assert read_at(cursor, seqno) == (seqno, raw)


def test_the_index_of_another_log_is_left_aside(caplog: pytest.LogCaptureFixture) -> None:
    """BuiltFrom: the last transaction has to stand where the index says, in the epoch that it says."""
    disk, other = SimDisk(), SimDisk()
    with open_log(disk, segment_bytes=20_000) as log:
        fill(log, 150, size=300)
    with open_log(other, segment_bytes=20_000) as log:
        fill(log, 150, size=310)
    disk.set_content(TABLE, other.content(TABLE))
    with caplog.at_level(logging.WARNING), open_reader(disk) as reader, reader.cursor() as cursor:
        for seqno in (140, 17, 77):
            assert read_at(cursor, seqno) == (seqno, make_payload(seqno - 1, 300))
        assert reader._segments._stored_last == -1
    assert caplog.text.count("The stored index is ignored") == 1


def test_damage_in_the_log_is_named_where_it_is() -> None:
    """A record that is damaged at a place that the index names: the error is the one of a walk, the rest is read."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=400_000) as log:
        fill(log, 300, size=1_000)
        place = log.seqno_index.mappings.below(Seqno(200))
        assert place is not None and place.seqno > 100
    flip(disk, segment_path(lsn_segment(place.lsn)), lsn_offset(place.lsn) + 12)
    errors = []
    for reader in (open_reader(disk), without_index(disk)):
        with reader, reader.cursor() as cursor:
            with pytest.raises(CorruptRecordError) as caught:
                read_at(cursor, place.seqno)
            errors.append(str(caught.value))
            assert read_at(cursor, place.seqno - 3) == (place.seqno - 3, make_payload(place.seqno - 4, 1_000))
    assert errors[0] == errors[1]


# --- files ----------------------------------------------------------------------------------------------------------


def test_open_files_are_bounded_and_purged_ones_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPEN_FILES segments stay open at most; none that was purged, and none behind the end of the reader."""
    disk = SimDisk()
    open_now: dict[str, int] = {}
    opens, closes = SimDisk.open, SimFile.close

    def opened(one: SimDisk, path: str, *, write: bool = False, create: bool = False) -> SimFile:
        file = opens(one, path, write=write, create=create)
        if not write and "thl.data" in path:
            open_now[path] = open_now.get(path, 0) + 1
        return file

    def closed(file: SimFile) -> None:
        if not file._closed and not file._write and file._path in open_now:
            open_now[file._path] -= 1
        closes(file)

    monkeypatch.setattr(SimDisk, "open", opened)
    monkeypatch.setattr(SimFile, "close", closed)
    log = open_log(disk, segment_bytes=1_000)
    fill(log, 100)
    assert len(log.segments()) > OPEN_FILES + 4
    reader = open_reader(disk)
    with kept_open(log, reader):
        cursors = [reader.cursor(), reader.cursor(), log.cursor()]
        for seqno in random.Random(1).sample(range(1, 100), 60):
            for cursor in cursors:
                assert read_at(cursor, seqno)[0] == seqno
        assert OPEN_FILES <= sum(open_now.values()) <= 2 * OPEN_FILES + len(cursors)
        log.purge(below=Seqno(60))
        first = log._end.segments.row()[0][0]
        for cursor in cursors:
            with pytest.raises(PurgedError):
                read_at(cursor, 3)
            assert read_at(cursor, 90)[0] == 90
        held = [path for path, count in open_now.items() if count]
        assert held and all(int(path[-10:]) >= first for path in held)
        for cursor in cursors:
            cursor.close()
        assert all(count <= 2 for count in open_now.values())
    assert not any(open_now.values())


def test_a_segment_that_was_replaced_is_opened_anew() -> None:
    """A file that stays open is only read while its path still leads to it."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, 40)
    with open_reader(disk) as reader, reader.cursor() as cursor:
        read_at(cursor, 5)
        read_at(cursor, 35)
        raw = disk.content(segment_path(1)).replace(make_payload(4, 100), make_payload(7, 100))
        disk.unlink(segment_path(1))
        put(disk, segment_path(1), raw)
        with pytest.raises(LogReplacedError):
            read_at(cursor, 5)


# --- all of it, at random -------------------------------------------------------------------------------------------


class World:
    """A log, what it holds by a model, and readers of every age, with the stored index and without."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk()
        self.held: dict[int, bytes] = {}
        self.epochs: dict[int, int] = {}
        self.made = 0
        self.tables: list[bytes] = []
        self.log = self.open()
        self.readers = [open_reader(self.disk), without_index(self.disk)]
        self.cursors = [reader.cursor() for reader in self.readers] + [self.log.cursor()]

    def open(self) -> Log:
        log = open_log(self.disk, segment_bytes=12_000, index_flush_s=None)
        self.took(log, log.last_seqno, b"")
        return log

    def took(self, log: Log, seqno: int, payload: bytes) -> None:
        self.held[seqno] = payload
        self.epochs[seqno] = log.epoch

    def append(self) -> None:
        for _ in range(self.rng.randrange(1, 25)):
            self.made += 1
            payload = make_payload(self.made, self.rng.choice((10, 200, 200, 1_500, 5_000)))
            parts = [payload]
            while len(parts[-1]) > 100 and self.rng.random() < 0.2:
                parts[-1:] = [parts[-1][:60], parts[-1][60:]]
            for part in parts[:-1]:
                self.log.append(make_fragment(f"e{self.made}", part, last=False))
            gtid = self.log.append(make_fragment(f"e{self.made}", parts[-1]))
            self.took(self.log, gtid.seqno, payload)
            if self.rng.random() < 0.2:
                self.log.commit(sync=self.rng.random() < 0.5)
        self.log.commit()

    def store(self) -> None:
        self.log.flush_index()
        if self.disk.exists(TABLE):
            self.tables.append(self.disk.content(TABLE))

    def purge(self) -> None:
        self.log.purge(below=Seqno(self.rng.randrange(self.log.first_seqno, self.log.last_seqno + 1)))
        for gone in [seqno for seqno in self.held if seqno < self.log.first_seqno]:
            del self.held[gone]

    def roll_back(self) -> None:
        seqno = self.rng.randrange(max(self.log.first_seqno, self.log.last_seqno - 40), self.log.last_seqno + 1)
        mark = self.log.rollback(Gtid(Epoch(self.epochs[seqno]), Seqno(seqno)))
        if mark is not None:
            for gone in [one for one in self.held if one > seqno]:
                del self.held[gone]
            self.took(self.log, self.log.last_seqno, b"")

    def open_again(self) -> None:
        if self.rng.random() < 0.5:
            self.log.close()
        else:
            self.disk.kill()
        self.log = self.open()
        self.cursors[2] = self.log.cursor()

    def spoil(self) -> None:
        """Damage the table behind everybody's back, or put an older one in its place."""
        raw = self.disk.content(TABLE) if self.disk.exists(TABLE) else b""
        if not raw:  # gone, or cut to nothing before
            return
        kind = self.rng.choice(("gone", "cut", "bit", "zeros", "noise", "older", "older", "older"))
        left = self.rng.choice(self.tables) if kind == "older" and self.tables else None
        if left is None and kind not in ("gone", "older"):
            left = spoiled(kind, raw, self.rng)
        if self.rng.random() < 0.5 or left is None:
            self.disk.unlink(TABLE)
        if left is not None:
            put(self.disk, TABLE, left)

    def renew_readers(self) -> None:
        which = self.rng.randrange(2)
        self.readers[which].close()
        self.readers[which] = without_index(self.disk) if which else open_reader(self.disk)
        self.cursors[which] = self.readers[which].cursor()

    def check(self) -> None:
        first, last = self.log.first_seqno, self.log.last_seqno
        wanted = [self.rng.randrange(first, last + 1) for _ in range(5)]
        for reader in self.readers:
            reader.range()  # what a cursor has at hand it believes until it looks further
        for cursor in self.cursors:
            for seqno in [*wanted, first, last]:
                assert self.ask(cursor, seqno) == (seqno, self.epochs[seqno], self.held[seqno])
            if first:
                with pytest.raises(PurgedError):
                    self.ask(cursor, self.rng.randrange(first))
            if self.rng.random() < 0.3:
                self.go_on(cursor, last)

    def ask(self, cursor: Cursor, seqno: int) -> tuple[int, int, bytes]:
        for attempt in range(3):
            try:
                cursor.seek(Seqno(seqno))
                found = cursor.next()
            except AbandonedError:
                assert attempt < 2
                continue
            break
        assert found is not None
        content = b"" if found.is_noop() else b"".join(found.payloads())
        return found.header.seqno, found.header.epoch, content

    def go_on(self, cursor: Cursor, last: int) -> None:
        """From some place to the end, by steps and by leaps ahead."""
        seqno = self.rng.randrange(self.log.first_seqno, last + 1)
        cursor.seek(Seqno(seqno))
        while seqno <= last:
            header = cursor.next_header()
            assert header is not None and (header.seqno, header.epoch) == (seqno, self.epochs[seqno])
            seqno += self.rng.choice((1, 1, 1, 2, 5, 15, 16, 40))
            cursor.seek(Seqno(seqno))

    def live(self, steps: int) -> None:
        acts = [self.append] * 6 + [self.store] * 4 + [self.spoil] * 2
        acts += [self.purge, self.roll_back, self.open_again, self.renew_readers]
        for _ in range(steps):
            self.rng.choice(acts)()
            self.check()
        for reader in self.readers:
            reader.close()
        self.log.close()


@pytest.fixture
def walk_nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WALK_WHOLE_BYTES", 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(12), 3))
def test_with_and_without_it_every_answer_is_the_same(small_buckets: None, walk_nothing_whole: None, seed: int) -> None:
    """Over purge, rotation, rollback, reopening, kill, and an index that is renewed, damaged, gone, or an older one."""
    print(f"replay: World({seed}).live(60)")
    World(seed).live(60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_the_same_for_longer(small_buckets: None, walk_nothing_whole: None, seed: int) -> None:
    print(f"replay: World({seed}).live(200)")
    World(seed).live(200)


def test_the_frames_of_two_reads_make_one_table() -> None:
    """index_table.apply_frames: a file read in two parts is the file read at once."""
    bucket = Bucket(1, Seqno(0), 42, 64)
    one, two = encode_frame({-1: b"range", 0: encode_bucket(bucket)}, ()), encode_frame({-1: b"other"}, (0,))
    raw = TABLE_HEADER + one + two
    table: dict[int, bytes] = {}
    end = apply_frames(table, raw[:-1])
    assert end == len(TABLE_HEADER) + len(one) and table[-1] == b"range"
    assert apply_frames(table, raw[end:], begun=True) == len(two)
    assert table == decode_table(raw) == {-1: b"other"}
