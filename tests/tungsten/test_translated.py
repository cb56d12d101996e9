"""A Tungsten directory as channels read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fix_tungsten import LOG, golden_segments, make_event, on_disk, written
from tranlog.change import RowChange
from tranlog.codecs.converting import convert
from tranlog.codecs.opening import open_readable
from tranlog.errors import (
    CorruptRecordError,
    LogMissingError,
    LogReplacedError,
    PayloadError,
    PurgedError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.payload import decode
from tranlog.shard import UNKNOWN_SHARD
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk
from tranlog.tungsten.reading.translated import TranslatedReader
from tranlog.tungsten.rules.arrange import WIDE_GAP
from tranlog.tungsten.writing.directory import TungstenLog, purge

CASES = ("filtered", "metadata-shards", "rotated-60", "rows-crc", "statements-crc", "statements-nocrc")


def opened(disk: SimDisk) -> TranslatedReader:
    return TranslatedReader(LOG, disk=disk, clock=ManualClock())


@pytest.mark.parametrize("case", CASES)
def test_it_shows_what_a_conversion_writes(case: str) -> None:
    """Every seqno, with the same identity, tables and content; only what has a statement in it is serial here."""
    disk = on_disk(golden_segments(case))
    convert(LOG, "/native", lossy=True, disk=disk)
    with opened(disk) as ours, LogReader.open("/native", disk=disk) as native:
        assert ours.range().last_seqno == native.range().last_seqno
        with ours.cursor() as here, native.cursor() as there:
            while (wanted := there.next_header()) is not None:
                header = here.next_header()
                assert header is not None
                for field in ("seqno", "fragno", "last_frag", "epoch", "source_id", "event_id", "tstamp", "tables"):
                    assert getattr(header, field) == getattr(wanted, field), field
                transaction, stored = here.current(), there.current()
                assert transaction.fragments == stored.fragments
                assert transaction.payload() == stored.payload()
                assert transaction.is_noop() is stored.is_noop()
                assert list(transaction.changes()) == list(stored.changes())
                assert [decode(one).changes for one in transaction.payloads()] == [
                    decode(one).changes for one in stored.payloads()
                ]
                serial = any(not isinstance(change, RowChange) for change in stored.changes())
                assert header.shard_id == (UNKNOWN_SHARD if serial else wanted.shard_id or UNKNOWN_SHARD)
            assert here.next_header() is None


def holes() -> SimDisk:
    disk = SimDisk()
    with TungstenLog.open(LOG, disk=disk, gaps=True, segment_bytes=500) as log:
        for event in (
            make_event(3),
            make_event(4, end=(7, 0)),
            make_event(8, 0, last=False),
            make_event(8, 1, last=False, end=(8, 2)),
            make_event(8, 3),
            make_event(20),
            make_event(21, end=(23, 0)),
        ):
            log.append(event)
    return disk


def test_a_seek_shows_the_same_as_reading_on() -> None:
    """Positions are held against epoch and event id of any seqno: they must not depend on where reading began."""
    with opened(holes()) as log:
        with log.cursor() as cursor:
            row = [header for header in iter(cursor.next_header, None)]
        assert [header.seqno for header in row] == list(range(3, 24))
        assert [header.event_id for header in row if 9 <= header.seqno <= 19] == ["000008"] * 11
        assert row[5].fragno == 3
        for at, header in enumerate(row):
            assert log.header(header.seqno) == header
            with log.cursor() as cursor:
                cursor.seek(header.seqno)
                assert [one.seqno for one in iter(cursor.next_header, None)] == [one.seqno for one in row[at:]]
        assert log.header(Seqno(2)) is None is log.header(Seqno(24))
        with log.cursor() as cursor:
            cursor.seek(Seqno(1))
            with pytest.raises(PurgedError, match="starts at 3"):
                cursor.next_header()


def test_it_follows_a_writer_and_a_gap_that_comes_later() -> None:
    disk = written(make_event(0))
    with opened(disk) as log, log.cursor() as cursor:
        cursor.seek(Seqno(1))
        assert cursor.next_header(0.2) is None, "it waits, on the clock that it was given"
        with TungstenLog.open(LOG, disk=disk, gaps=True) as writer:
            writer.append(make_event(3, 0, last=False))
            writer.commit()
            assert cursor.next_header() is None
            writer.append(make_event(3, 1))
            writer.commit()
        assert log.range().last_seqno == 3
        found = [header for header in iter(cursor.next_header, None)]
        assert [(header.seqno, header.event_id) for header in found] == [(1, "000000"), (2, "000000"), (3, "000003")]
        assert cursor.current().fragments == 2
        assert [log.header(Seqno(seqno)) for seqno in (1, 2, 3)] == found


def test_a_purge_moves_the_first() -> None:
    disk = written(*[make_event(seqno) for seqno in range(30)], segment_bytes=800)
    with opened(disk) as log:
        assert log.range().first_seqno == 0
        purge(LOG, high=20, disk=disk)
        first = log.range().first_seqno
        assert 0 < first <= 21
        assert log.index()[0].first_seqno == first


def test_a_reset_is_told_by_name(tmp_path: Path) -> None:
    path = str(tmp_path / "thl")
    with TungstenLog.open(path) as log:
        log.append(make_event(0))
    with open_readable(path) as reader, reader.cursor() as cursor:
        assert cursor.next_header() is not None
        os.unlink(f"{path}/thl.data.0000000001")
        with TungstenLog.open(path) as log:
            log.append(make_event(0))
        with pytest.raises(LogReplacedError, match="was reset or restored"):
            cursor.next_header()
        with pytest.raises(LogReplacedError):
            reader.range()


def test_what_cannot_be_read_as_changes_is_one_clear_sentence() -> None:
    with opened(on_disk(golden_segments("java-serializer"))) as log, log.cursor() as cursor:
        assert cursor.next_header() is not None
        with pytest.raises(PayloadError, match=r"seqno 0 .*JavaSerializer: it is kept as it is"):
            cursor.current().payload()


def test_what_the_ancestor_let_through_and_damage() -> None:
    """B7-22: out of order is damage to whoever applies; a gap of millions too."""
    with opened(on_disk(golden_segments("odd-order"))) as log, log.cursor() as cursor:
        assert cursor.next_header() is not None
        with pytest.raises(CorruptRecordError, match="seqno 0 again"):
            cursor.next_header()
    disk = written(make_event(0))
    with TungstenLog.open(LOG, disk=disk, gaps=True) as writer:
        writer.append(make_event(WIDE_GAP + 9))
    with opened(disk) as log, log.cursor() as cursor:
        assert cursor.next_header() is not None
        with pytest.raises(CorruptRecordError, match="more seqnos in a row"):
            cursor.next_header()


def test_opening_either_codec() -> None:
    disk = on_disk(golden_segments("simple-100"))
    convert(LOG, "/native", disk=disk)
    with open_readable(LOG, disk=disk) as theirs, open_readable("/native/", disk=disk) as ours:
        assert (theirs.keeps_holds, ours.keeps_holds) == (False, True)
        assert theirs.range().last_seqno == ours.range().last_seqno == 99
    with pytest.raises(LogMissingError):
        open_readable("/none", disk=disk)
    assert TranslatedReader(LOG, disk=on_disk(golden_segments("empty"))).range().last_seqno == NO_SEQNO
