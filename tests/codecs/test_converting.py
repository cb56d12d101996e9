"""From one codec to the other, a whole log."""

from __future__ import annotations

import random

import pytest

from fix_effort import Effort
from fix_tungsten import LOG, golden_segments, make_event, on_disk, segments_on, written
from tranlog.change import Column, Fragment, Op, RowChange, Statement, TableMap
from tranlog.codecs import converting
from tranlog.codecs.converting import NOTE_NAME, convert
from tranlog.codecs.opening import Codec, codec_of
from tranlog.errors import (
    ConversionRefusedError,
    ConversionTargetError,
    DiskFullError,
    LogLockedError,
    LogMissingError,
    MixedCodecsError,
    PurgedError,
    RawRecordError,
)
from tranlog.header import Record
from tranlog.ids import Epoch, Gtid, Seqno, segment_name
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.numbering import Numbering
from tranlog.log.upkeep.diff import diff
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.allocation import record_of
from tranlog.log.writing.log import Log, LogOptions
from tranlog.payload import Payload, decode, encode
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk
from tranlog.tungsten.reading.reader import TungstenReader
from tranlog.tungsten.rules.translate import Loss
from tranlog.tungsten.writing.directory import TungstenLog, purge
from tranlog.types import UNCHANGED, InfiniteDate, LogicalType, Value

NATIVE, BACK = "/native", "/back"
INTACT = (
    "filtered",
    "java-serializer",
    "metadata-shards",
    "rotated-60",
    "rows-crc",
    "simple-100",
    "statements-crc",
    "statements-nocrc",
)

Event = tuple[object, ...]


def events(disk: SimDisk, path: str) -> list[Event]:
    """Return every fragment that a Tungsten reader is shown, header and payload."""
    found: list[Event] = []
    with TungstenReader.open(path, disk=disk).cursor() as cursor:
        while (stored := cursor.next()) is not None:
            r = stored.record
            ids = (r.seqno, r.fragno, r.last_frag, r.epoch, r.source_id, r.event_id, r.shard_id, r.tstamp)
            found.append((*ids, stored.payload))
    return found


def records(disk: SimDisk, path: str) -> list[Record]:
    with LogReader.open(path, disk=disk) as reader, reader.cursor() as cursor:
        return list(cursor.records(wait=False))


def shown(disk: SimDisk, path: str) -> list[Event]:
    """Return every fragment of a native log without what belongs to its place in the files."""
    return [
        (
            h.seqno,
            h.fragno,
            h.last_frag,
            h.epoch,
            h.source_id,
            h.event_id,
            h.shard_id,
            h.tstamp,
            h.tables,
            record.payload,
        )
        for record in records(disk, path)
        for h in (record.header,)
    ]


@pytest.mark.parametrize("case", INTACT)
def test_golden_logs_there_and_back(case: str) -> None:
    """Equal events, every one; the native log between is sound and has every seqno."""
    disk = on_disk(golden_segments(case))
    there = convert(LOG, NATIVE, lossy=True, disk=disk, segment_bytes=3000)
    assert verify(NATIVE, disk=disk).sound
    seqnos = [record.header.seqno for record in records(disk, NATIVE) if record.header.last_frag]
    assert seqnos == list(range(there.last_seqno + 1)) and len(seqnos) == there.transactions
    convert(NATIVE, BACK, disk=disk)
    assert events(disk, BACK) == events(disk, LOG)


def test_the_same_rotation_gives_the_same_files() -> None:
    disk = on_disk(golden_segments("rotated-60"))
    convert(LOG, NATIVE, disk=disk)
    convert(NATIVE, BACK, disk=disk, segment_bytes=3000)
    back = {number: disk.content(f"{BACK}/{segment_name(number)}") for number in segments_on(disk)}
    assert back == golden_segments("rotated-60")


def test_identity_survives() -> None:
    disk = on_disk(golden_segments("metadata-shards"))
    convert(LOG, NATIVE, disk=disk)
    native = [one[:8] for one in shown(disk, NATIVE)]
    assert native == [one[:8] for one in events(disk, LOG)]
    assert len({one[6] for one in native}) > 3


def test_what_the_ancestor_let_through_is_left_out() -> None:
    """B7-22: events that do not follow are counted, and nothing of them is converted."""
    disk = on_disk(golden_segments("odd-order"))
    with pytest.raises(ConversionRefusedError, match=r"out-of-order \(7, first at seqno 0\)"):
        convert(LOG, NATIVE, disk=disk)
    assert not disk.exists(NATIVE)
    convert(LOG, NATIVE, lossy=True, disk=disk)
    convert(NATIVE, BACK, disk=disk)
    assert [(one[0], one[1]) for one in events(disk, BACK)] == [(0, 0), (5, 0), (7, 0), (9, 0), (15, 0)]
    with TungstenReader.open(LOG, disk=disk).cursor(strict=False) as cursor:
        original = {stored.payload for stored in iter(cursor.next, None)}
    assert {one[8] for one in events(disk, BACK)} <= original


def test_findings_are_shown_before_anything_is_written() -> None:
    disk = on_disk(golden_segments("java-serializer"))
    seen: list[tuple[object, ...]] = []

    def show(findings: tuple[converting.Finding, ...]) -> None:
        seen.extend((one.kind, one.count, one.first_seqno) for one in findings)
        assert not disk.exists(NATIVE)

    with pytest.raises(ConversionRefusedError, match="--lossy"):
        convert(LOG, NATIVE, disk=disk, show=show)
    assert seen == [(Loss.JAVA_OBJECT, 3, 0)]
    convert(LOG, NATIVE, lossy=True, disk=disk, show=show)
    assert convert(LOG, NATIVE, disk=disk).complete_before, "what was accepted is not asked again"


# --- from a native log -----------------------------------------------------------------------------------

ITEMS = TableMap(
    schema="shop",
    table="items",
    columns=(
        Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
        Column(name="note", source_type="text", logical=LogicalType.TEXT),
    ),
    primary_key=(0,),
)


def native_log(disk: SimDisk, *rows: Value) -> None:
    """Write a log of three epochs, with rows, statements, a transaction of fragments, and what was not sent."""
    for epoch in range(3):
        with Log.open(
            NATIVE, source_id="src", options=LogOptions(segment_bytes=2000), disk=disk, clock=ManualClock()
        ) as log:
            for number, value in enumerate(rows):
                changes = (
                    RowChange(ITEMS, Op.INSERT, None, (number, value)),
                    Statement(schema="shop", sql="create table x(i int)", ddl=True, options=(("a", "b"),)),
                    RowChange(ITEMS, Op.UPDATE, (number, UNCHANGED), (number, "ä")),
                    RowChange(ITEMS, Op.DELETE, (number, "ä"), None),
                )
                for part in range(epoch + 1):
                    log.append(
                        Fragment(
                            source_id="src",
                            event_id=f"{epoch}.{number}",
                            shard_id="shop" if part == epoch else "#UNKNOWN",
                            tstamp=1_700_000_000_000 + number,
                            tables=(("shop", "items"),),
                            payload=encode(Payload(metadata=(("dbms_type", "mysql"),), changes=changes)),
                            last=part == epoch,
                        )
                    )
                log.commit()


def test_a_native_log_there_and_back() -> None:
    """Equal transactions, byte for byte: no-ops, epochs, fragments, statements, rows."""
    disk = SimDisk()
    native_log(disk, "one", None, "three")
    convert(NATIVE, LOG, disk=disk)
    assert codec_of(LOG, disk) is Codec.TUNGSTEN
    convert(LOG, BACK, disk=disk)
    assert shown(disk, BACK) == shown(disk, NATIVE)
    assert verify(BACK, disk=disk).sound
    with Log.open(BACK, source_id="src", disk=disk) as log:
        assert log.epoch == 4, "a writer goes on in an epoch of its own"


def test_a_value_that_the_ancestor_has_no_form_for() -> None:
    disk = SimDisk()
    native_log(disk, "x", InfiniteDate(False))
    with pytest.raises(ConversionRefusedError, match=r"value-time \(6, first at seqno 2\)"):
        convert(NATIVE, LOG, disk=disk)
    assert not disk.exists(LOG)
    convert(NATIVE, LOG, lossy=True, disk=disk)
    convert(LOG, BACK, disk=disk)
    assert [decode(one[-1]).changes[0].after[1] for one in shown(disk, BACK) if one[0] == 2] == ["infinity"]  # type: ignore


def test_a_log_that_begins_later() -> None:
    disk = written(*[make_event(seqno) for seqno in range(40)], segment_bytes=1000)
    purge(LOG, high=25, disk=disk)
    there = convert(LOG, NATIVE, disk=disk)
    first = TungstenReader.open(LOG, disk=disk).first_seqno
    assert there.first_seqno == first > 0
    with LogReader.open(NATIVE, disk=disk) as reader:
        assert (reader.range().first_seqno, reader.range().last_seqno) == (first, 39)
    convert(NATIVE, BACK, disk=disk)
    assert events(disk, BACK) == events(disk, LOG)


def test_seqnos_that_are_missing() -> None:
    """`online -base-seqno`: the gap is filled, and comes back as a gap; one that is too wide is damage."""
    disk = SimDisk()
    with TungstenLog.open(LOG, disk=disk, gaps=True, segment_bytes=300) as log:
        for seqno in (0, 1, 7, 8, 20):
            log.append(make_event(seqno))
    convert(LOG, NATIVE, disk=disk)
    assert [one[0] for one in shown(disk, NATIVE)] == list(range(21))
    convert(NATIVE, BACK, disk=disk)
    assert events(disk, BACK) == events(disk, LOG)
    with TungstenLog.open(LOG, disk=disk, gaps=True) as log:
        log.append(make_event(5_000_000))
    with pytest.raises(ConversionRefusedError, match=r"wide-gap.*cannot be left out"):
        convert(LOG, "/other", lossy=True, disk=disk)


# --- resumed ---------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "COMMIT_TRANSACTIONS", 4)


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_a_power_cut_at_any_call_and_again_equals_an_uninterrupted_run() -> None:
    """Killed at any moment, started again, it continues, and the result is the one of an uninterrupted run."""
    segments = {number: raw for number, raw in golden_segments("filtered").items()}
    whole = on_disk(segments)
    convert(LOG, NATIVE, disk=whole, segment_bytes=1000)
    calls = whole.calls
    wanted = shown(whole, NATIVE)
    before = on_disk(segments).calls
    resumed = 0
    for cut in range(before + 1, calls + 1):
        disk = on_disk(segments)
        disk.sync_dir("/")
        disk.sync_dir(LOG)
        for number in segments:
            disk.open(f"{LOG}/{segment_name(number)}", write=True).sync()
        disk.cut_at = disk.calls + cut - before
        with pytest.raises(PowerCut):
            convert(LOG, NATIVE, disk=disk, segment_bytes=1000)
        after = disk.after_crash(random.Random(cut))
        done = convert(LOG, NATIVE, disk=after, segment_bytes=1000)
        resumed += done.resumed
        assert shown(after, NATIVE) == wanted, f"cut at call {cut}"
        assert convert(LOG, NATIVE, disk=after).complete_before
    assert resumed > 10


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_the_way_to_the_ancestor_resumes_byte_for_byte(effort: Effort) -> None:
    whole = SimDisk()
    native_log(whole, *map(str, range(6)))
    start = whole.calls
    convert(NATIVE, LOG, disk=whole, segment_bytes=1500)
    wanted = segments_on(whole)
    assert len(wanted) > 3
    for cut in range(1, whole.calls - start + 1, effort(5, 1, 1)):
        disk = SimDisk()
        native_log(disk, *map(str, range(6)))
        disk.cut_at = disk.calls + cut
        with pytest.raises(PowerCut):
            convert(NATIVE, LOG, disk=disk, segment_bytes=1500)
        disk.kill()  # after a loss of power this format cannot tell a torn record from damage, and refuses it
        disk.dead, disk.cut_at = False, None
        convert(NATIVE, LOG, disk=disk, segment_bytes=1500)
        assert segments_on(disk) == wanted, f"cut at call {cut}"


def test_a_source_that_has_grown_is_gone_on_with() -> None:
    disk = written(*[make_event(seqno) for seqno in range(5)])
    convert(LOG, NATIVE, disk=disk)
    with TungstenLog.open(LOG, disk=disk) as log:
        log.append(make_event(5, end=(9, 0)))
        log.append(make_event(10))
    done = convert(LOG, NATIVE, disk=disk)
    assert (done.first_seqno, done.last_seqno, done.transactions, done.resumed) == (5, 10, 6, True)
    convert(NATIVE, BACK, disk=disk)
    assert events(disk, BACK) == events(disk, LOG)


# --- refused ---------------------------------------------------------------------------------------------


def test_a_destination_of_something_else_is_refused() -> None:
    disk = written(*[make_event(seqno) for seqno in range(5)])
    native_log(disk, "x")
    with pytest.raises(ConversionTargetError, match="not made by a conversion"):
        convert(LOG, NATIVE, disk=disk)
    convert(LOG, "/dst", disk=disk)
    other = "/other"
    with TungstenLog.open(other, disk=disk) as log:
        for seqno in range(8):
            event = make_event(seqno)
            log.append(event, shard_id="db")
    convert(other, "/dst", disk=disk)  # the same history, and more of it
    with TungstenLog.open("/third", disk=disk) as log:
        log.append(make_event(0))
        log.append_payload(
            b"\0",
            seqno=1,
            fragno=0,
            last_frag=True,
            epoch=1,
            source_id="logos",
            event_id="z",
            shard_id="db",
            tstamp=0,
        )
    with pytest.raises(ConversionTargetError, match="ends at 1"):
        convert("/third", "/dst", disk=disk, lossy=True)


def test_another_history_is_refused() -> None:
    disk = written(*[make_event(seqno) for seqno in range(5)])
    convert(LOG, "/dst", disk=disk)
    for path, first in (("/one", "elsewhere"), ("/two", "000000")):
        with TungstenLog.open(path, disk=disk) as log:
            for seqno in range(6):
                event = make_event(seqno)
                name = first if seqno == 0 else f"other {seqno}"
                log.append_payload(
                    b"",
                    seqno=seqno,
                    fragno=0,
                    last_frag=True,
                    epoch=0,
                    source_id="logos",
                    event_id=name,
                    shard_id="db",
                    tstamp=event.header.tstamp,
                )
    with pytest.raises(ConversionTargetError, match="has another one"):
        convert("/one", "/dst", disk=disk)


def test_a_source_that_was_purged_ahead_of_it() -> None:
    disk = written(*[make_event(seqno) for seqno in range(10)], segment_bytes=600)
    convert(LOG, NATIVE, disk=disk)
    with TungstenLog.open(LOG, disk=disk, segment_bytes=600) as log:
        for seqno in range(10, 40):
            log.append(make_event(seqno))
    purge(LOG, high=30, disk=disk)
    with pytest.raises(PurgedError, match="seqno 10 is purged"):
        convert(LOG, NATIVE, disk=disk)


@pytest.mark.usefixtures("often")
def test_a_native_log_is_copied_byte_for_byte(effort: Effort) -> None:
    """docs/operations.md: the same records and the same history, in other segments; resumed after any crash."""
    whole = SimDisk()
    native_log(whole, *map(str, range(6)))
    start = whole.calls
    convert(NATIVE, "/dst", to=Codec.NATIVE, segment_bytes=1500, disk=whole)
    calls = whole.calls - start
    with LogReader.open(NATIVE, disk=whole) as source, LogReader.open("/dst", disk=whole) as copied:
        with source.cursor() as one, copied.cursor() as other:
            wanted = list(one.raw())
            assert list(other.raw()) == wanted and copied.history == source.history
            last = source.range().last_seqno
            assert [copied.h(seqno) for seqno in (last, Seqno(3))] == [source.h(seqno) for seqno in (last, Seqno(3))]
        found = diff(source, copied, full=True)
        assert found.agree and found.only_one.count == found.only_other.count == 0
    for cut in range(1, calls + 1, effort(10, 3, 1)):
        disk = SimDisk()
        native_log(disk, *map(str, range(6)))
        disk.cut_at = disk.calls + cut
        with pytest.raises(PowerCut):
            convert(NATIVE, "/dst", to=Codec.NATIVE, segment_bytes=1500, disk=disk)
        after = disk.after_crash(random.Random(cut))
        convert(NATIVE, "/dst", to=Codec.NATIVE, segment_bytes=1500, disk=after)
        with LogReader.open("/dst", disk=after) as copied, copied.cursor() as cursor:
            assert list(cursor.raw()) == wanted, f"cut at call {cut}"
        assert verify("/dst", disk=after).problems == ()
        assert convert(NATIVE, "/dst", to=Codec.NATIVE, disk=after).complete_before


def test_a_copy_of_a_purged_log_begins_where_that_does() -> None:
    disk = SimDisk()
    native_log(disk, *map(str, range(6)))
    with Log.open(NATIVE, source_id="src", disk=disk) as log:
        log.purge(below=Seqno(9))
        first = log.first_seqno
    assert first > 0
    done = convert(NATIVE, "/dst", to=Codec.NATIVE, disk=disk)
    assert (done.first_seqno, done.last_seqno) == (first, log.last_seqno)
    assert verify("/dst", disk=disk).first_seqno == first


def test_bad_directories() -> None:
    disk = on_disk(golden_segments("simple-100"))
    with pytest.raises(ConversionRefusedError, match="tungsten codec already"):
        convert(LOG, NATIVE, to=Codec.TUNGSTEN, disk=disk)
    with pytest.raises(ConversionTargetError, match="source itself"):
        convert(LOG, f"{LOG}/", disk=disk)
    with pytest.raises(ConversionTargetError, match="lies in the source"):
        convert(LOG, f"{LOG}/native", disk=disk)
    with pytest.raises(LogMissingError, match="does not exist"):
        convert("/nowhere", NATIVE, disk=disk)
    with pytest.raises(LogMissingError, match="/no does not exist"):
        convert(LOG, "/no/dst", disk=disk)
    convert(LOG, NATIVE, disk=disk)
    disk.set_content(f"{NATIVE}/{NOTE_NAME}", b"{")
    with pytest.raises(ConversionTargetError, match="damaged"):
        convert(LOG, NATIVE, disk=disk)
    mixed = on_disk(golden_segments("simple-100"))
    mixed.open(f"{LOG}/{segment_name(2)}", write=True, create=True).close()
    mixed.set_content(f"{LOG}/{segment_name(2)}", disk.content(f"{NATIVE}/{segment_name(1)}"))
    with pytest.raises(MixedCodecsError, match="two logs"):
        convert(LOG, NATIVE, disk=mixed)


def test_a_disk_that_is_full_from_the_first_byte_on() -> None:
    disk = on_disk(golden_segments("simple-100"))
    disk.room = 0
    with pytest.raises(DiskFullError, match=NOTE_NAME):
        convert(LOG, NATIVE, disk=disk)
    disk.room = None
    assert convert(LOG, NATIVE, disk=disk).transactions == 100


def test_an_empty_log_is_nothing_to_convert() -> None:
    disk = SimDisk()
    TungstenLog.open(LOG, disk=disk).close()  # headers only: it counts as native
    done = convert(LOG, NATIVE, disk=disk)
    assert (done.transactions, done.last_seqno) == (0, -1)
    assert not disk.exists(NATIVE)


def test_one_conversion_at_a_time_and_only_what_follows() -> None:
    disk = on_disk(golden_segments("simple-100"))
    convert(LOG, NATIVE, disk=disk)
    fragment = Fragment(source_id="", event_id="", shard_id="", tstamp=0, tables=(), payload=b"", last=True)
    with Log.open(NATIVE, source_id="", disk=disk, numbering=Numbering.GIVEN) as held:
        with pytest.raises(LogLockedError):
            convert(LOG, NATIVE, disk=disk)
        with pytest.raises(RawRecordError, match="seqno 100 belongs"):
            held.append_raw(b"".join(record_of(fragment, Gtid(Epoch(0), Seqno(7)), 0, checksum=True)))
