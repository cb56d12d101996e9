"""log/reading/lookup.py: by GTID, by time, by event id."""

from __future__ import annotations

import random

import pytest

from fix_log import PATH, append_large, fill, make_fragment, open_log, open_reader, segment_path
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.lookup import OtherEpoch, find_event, find_gtid, find_time, parse_time
from tranlog.log.records.format import RecordHeader
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

BASE64_1_15 = "AAAAAAAAAAEAAAAAAAAADw=="


def log_of(times: list[int], *, segment_bytes: int = 1_000) -> SimDisk:
    """A log with a transaction for each of these times, behind the no-op of its opening, which is seqno 0."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=segment_bytes, clock=ManualClock(now_ms=0)) as log:
        for number, tstamp in enumerate(times):
            log.append(make_fragment(f"e{number}", b"x" * 60, tstamp=tstamp))
        log.commit()
    return disk


def test_a_gtid_is_read_in_each_of_its_forms() -> None:
    """tokumx-replication: a GTID is 16 bytes, shown as base64 or as GTID(1, 15)."""
    gtid = Gtid(Epoch(1), Seqno(15))
    for text in ("GTID(1, 15)", "GTID(1,15)", " GTID( 1 , 15 ) ", BASE64_1_15, f'BinData(0,"{BASE64_1_15}")'):
        assert Gtid.parse(text) == gtid
    assert gtid.to_base64() == BASE64_1_15
    for text in ("", "15", "GTID(1)", "AAAA", BASE64_1_15[:-1], "GTID(1, 99999999999999999999)", 'BinData(0,"AA==")'):
        with pytest.raises(ValueError, match="not a GTID"):
            Gtid.parse(text)


def test_a_time_is_read_as_it_is_shown() -> None:
    at = 1309533317000
    assert parse_time("2011-07-01 15:15:17.0") == parse_time("2011-07-01T15:15:17Z") == at
    assert parse_time("2011-07-01 17:15:17+02:00") == parse_time(str(at)) == at
    assert parse_time("2011-07-01 15:15:17.0004") == at + 1
    assert parse_time("2011-07-01") == at - (15 * 3600 + 15 * 60 + 17) * 1000
    assert parse_time("1970-01-01") == 0
    for text in ("", "yesterday", "15:15", "2011-13-01"):
        with pytest.raises(ValueError, match="not a time"):
            parse_time(text)


def test_a_gtid_is_found_in_its_epoch_only() -> None:
    disk = SimDisk()
    for _ in range(3):
        with open_log(disk, segment_bytes=1_000) as log:
            fill(log, 9)
    with open_reader(disk) as reader:
        held = reader.range()
        for seqno in range(held.last_seqno + 1):
            epoch = Epoch(seqno // 10 + 1)
            found = find_gtid(reader, Gtid(epoch, Seqno(seqno)))
            assert isinstance(found, RecordHeader) and found.gtid == Gtid(epoch, Seqno(seqno))
            other = find_gtid(reader, Gtid(Epoch(epoch + 1), Seqno(seqno)))
            assert isinstance(other, OtherEpoch) and other.found == found
        assert find_gtid(reader, Gtid(Epoch(3), Seqno(held.last_seqno + 1))) is None
    disk.unlink(segment_path(1))
    with open_reader(disk) as reader:
        assert find_gtid(reader, Gtid(Epoch(1), Seqno(0))) is None


def test_a_time_finds_the_first_in_log_order_although_times_go_back() -> None:
    """The differential test: against a plain scan, with random times that are in no order."""
    seed = random.randrange(1 << 32)
    print(f"replay: seed={seed}")
    rng = random.Random(seed)
    for _ in range(6):
        times = [rng.randrange(1, 60) * 10 for _ in range(30)]
        with open_reader(log_of(times)) as reader:
            for at in [0, 1, 599, 600, *(rng.randrange(610) for _ in range(20))]:
                expected = next((seqno for seqno, one in enumerate(times, start=1) if one >= at), None)
                found = find_time(reader, at)
                assert (None if found is None else found.seqno) == expected
            assert len(reader.index()) > 3


def test_a_noop_has_no_time_of_its_own() -> None:
    """It carries the clock of the writer that opened the log, which is behind no transaction of a source."""
    disk = SimDisk()
    with open_log(disk, clock=ManualClock(now_ms=5_000)) as log:
        log.append(make_fragment("e", tstamp=10))
        log.append(make_fragment("f", tstamp=6_000))
    with open_reader(disk) as reader:
        found = [find_time(reader, at) for at in (0, 10, 11, 6_001)]
        assert [None if one is None else one.seqno for one in found] == [1, 1, 2, None]


def test_an_event_id_finds_the_newest_transaction_that_has_it() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 12)  # e0 to e11 are seqno 1 to 12
        append_large(log, "large", [b"one", b"two"])  # 13
        log.append(make_fragment("e3", b"again"))  # 14
        fill(log, 12, start=50)  # 15 to 26
    with open_log(disk):  # 27, a no-op that repeats e61
        pass
    with open_reader(disk) as reader:
        found = {event_id: find_event(reader, event_id) for event_id in ("e0", "e3", "large", "e61", "e", "", "e999")}
        assert {key: None if one is None else one.seqno for key, one in found.items()} == {
            "e0": 1,
            "e3": 14,
            "large": 13,
            "e61": 26,
            "e": None,
            "": None,
            "e999": None,
        }
        assert reader.header(Seqno(27)) is not None
        assert found["large"] is not None and found["large"].fragno == 1


def test_what_was_abandoned_is_not_found() -> None:
    """Readers skip them, lookups too."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, clock=ManualClock(now_ms=0)) as log:
        for number in range(1, 15):
            log.append(make_fragment(f"e{number}", b"x" * 60, tstamp=number * 10))
        log.commit()
        log.rollback(Gtid(Epoch(1), Seqno(9)))
        for number in range(10, 25):
            log.append(make_fragment(f"n{number}", b"y" * 60, tstamp=number * 100))
        log.commit()
    with open_reader(disk) as reader:
        with reader.cursor() as cursor:
            living = []
            while (header := cursor.next_header()) is not None:
                living.append(header)
        assert len(living) == 1 + reader.range().last_seqno
        for at in range(0, 2_600, 7):
            expected = next((one for one in living if one.tstamp >= at and one.tables), None)
            assert find_time(reader, at) == expected, at
        for name in [f"e{n}" for n in range(1, 16)] + [f"n{n}" for n in range(9, 26)]:
            expected = next((one for one in reversed(living) if one.event_id == name and one.tables), None)
            assert find_event(reader, name) == expected, name
        assert isinstance(find_gtid(reader, Gtid(Epoch(1), Seqno(11))), OtherEpoch)
        assert find_gtid(reader, living[12].gtid) == living[12]


def test_an_empty_log_holds_none_of_them() -> None:
    disk = SimDisk()
    with open_log(disk):
        pass
    disk.set_content(segment_path(1), disk.content(segment_path(1))[:16])
    disk.unlink(f"{PATH}/positions")
    with open_reader(disk) as reader:
        assert find_time(reader, 0) is None
        assert find_event(reader, "") is None
        assert find_gtid(reader, Gtid(Epoch(1), Seqno(0))) is None
