"""A Java replicator's directory as a source; conformance/tungsten.md A2, A3."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from fix_tungsten import GOLDEN, make_event
from tranlog.capture.capture import Capture
from tranlog.change import NOOP, RowChange, Statement
from tranlog.errors import (
    ConfigError,
    LogMissingError,
    PositionLostError,
    SourceSetupError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from tranlog.log.reading.cursor import StoredTransaction
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log, LogOptions
from tranlog.tungsten.records.event import Event
from tranlog.tungsten.source import EVENT_ID, SOURCE_ID, ThlPosition, ThlSource, ThlSourceOptions
from tranlog.tungsten.writing.directory import TungstenLog, purge


class Place:
    """A replicator's directory, and a log beside it that captures from it."""

    def __init__(self, path: Path) -> None:
        self.theirs = str(path / "thl")
        self.ours = str(path / "log")

    def write(self, *events: Event, segment_bytes: int = 10**6, gaps: bool = False) -> None:
        with TungstenLog.open(self.theirs, segment_bytes=segment_bytes, gaps=gaps) as log:
            for event in events:
                log.append(event)

    def source(self) -> ThlSource:
        return ThlSource(ThlSourceOptions(path=self.theirs, source_id="shop"))

    def catch_up(self) -> None:
        source = self.source()
        try:
            with Log.open(self.ours, source_id="shop", options=LogOptions(segment_bytes=50_000)) as log:
                Capture(source, log).catch_up()
        finally:
            source.close()

    def captured(self) -> list[StoredTransaction]:
        with LogReader.open(self.ours) as reader, reader.cursor() as cursor:
            found = list(iter(cursor.next, None))
            return [one for one in found if not one.is_noop() or (NOOP, "true") not in one.payload().metadata]

    def event_ids(self) -> list[str]:
        return [one.header.event_id for one in self.captured()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def golden(place: Place, case: str) -> Place:
    shutil.copytree(GOLDEN / case / "log", place.theirs)
    return place


def test_rows_arrive_with_where_they_are_from(place: Place) -> None:
    golden(place, "rows-crc").catch_up()
    found = place.captured()
    assert len(found) == 49
    header, payload = found[0].header, found[0].payload()
    assert (header.event_id, header.shard_id, header.source_id, header.tstamp) == (
        "0:0:000868:0000000000001025;193351",
        "alltypes",
        "shop",
        1_309_560_000_000,
    )
    assert header.tables == (("alltypes", "t"),)
    assert payload.metadata[-2:] == ((SOURCE_ID, "logos"), (EVENT_ID, "000868:0000000000001025;193351"))
    assert sum(isinstance(change, RowChange) for one in found for change in one.changes()) > 100


def test_it_goes_on_where_our_log_ends(place: Place) -> None:
    for first in (0, 10, 11, 30):
        place.write(*[make_event(seqno) for seqno in range(first, {0: 10, 10: 11, 11: 30, 30: 33}[first])])
        place.catch_up()
        place.catch_up()  # nothing new, nothing twice
    assert place.event_ids() == [f"{seqno}:0:{seqno:06d}" for seqno in range(33)]


def test_filtered_ranges_fragments_and_gaps(place: Place) -> None:
    """A2: behind a filtered range comes the seqno behind its end; a range in a transaction stands for fragments."""
    golden(place, "filtered").catch_up()
    assert [one.header.event_id.split(":")[0] for one in place.captured()] == ["0", "5", "6", "7", "8", "9", "14"]
    assert [one.fragments for one in place.captured()] == [1, 1, 1, 1, 2, 1, 1]
    place.write(make_event(15, 0, last=False), make_event(15, 1), make_event(40), gaps=True)
    place.catch_up()
    assert [one.header.event_id.split(":")[0] for one in place.captured()][-2:] == ["15", "40"]
    (statement,) = place.captured()[-1].changes()
    assert isinstance(statement, Statement)


def test_what_cannot_be_carried_stops_it_by_name(place: Place) -> None:
    golden(place, "java-serializer")
    with pytest.raises(UnsupportedEventError, match="JavaSerializer"):
        place.catch_up()
    assert place.captured() == []


# --- the directory changes under it ----------------------------------------------------------------------


def test_a_purge_of_what_it_has_passed(place: Place) -> None:
    place.write(*[make_event(seqno) for seqno in range(30)], segment_bytes=1000)
    place.catch_up()
    purge(place.theirs, high=20)
    place.write(*[make_event(seqno) for seqno in range(30, 60)], segment_bytes=1000)
    place.catch_up()
    last = len(place.captured())
    os.rename(place.theirs, f"{place.theirs}.old")  # all that was passed, up to the position itself
    with TungstenLog.open(place.theirs) as log:
        log.append(make_event(60))
    place.catch_up()
    assert place.event_ids() == [f"{seqno}:0:{seqno:06d}" for seqno in range(61)]
    assert last == 60


def test_a_purge_of_what_it_has_not_passed(place: Place) -> None:
    place.write(*[make_event(seqno) for seqno in range(10)], segment_bytes=1000)
    place.catch_up()
    place.write(*[make_event(seqno) for seqno in range(10, 60)], segment_bytes=1000)
    purge(place.theirs, high=40)
    with pytest.raises(PositionLostError, match="what comes next was purged"):
        place.catch_up()


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (range(5), "holds seqno 0 to 4: it was reset, restored"),
        (range(0), "holds no transaction: it was reset, restored"),
        (range(100, 120), "what comes next was purged"),
    ],
)
def test_a_directory_that_was_reset(place: Place, again: range, why: str) -> None:
    place.write(*[make_event(seqno) for seqno in range(10)])
    place.catch_up()
    shutil.rmtree(place.theirs)
    place.write(*[make_event(seqno) for seqno in again])
    with pytest.raises(PositionLostError, match=why):
        place.catch_up()
    assert len(place.captured()) == 10


def test_a_directory_that_was_reset_and_has_grown_past_the_position(place: Place) -> None:
    """A3: the epoch tells; where a reset begins at the same one, the event id does."""
    place.write(*[make_event(seqno) for seqno in range(10)])
    place.catch_up()
    for change in ({"epoch": 7}, {"event_id": "other"}):
        shutil.rmtree(place.theirs)
        events = [make_event(seqno) for seqno in range(20)]
        place.write(*[Event(header=msgspec.structs.replace(one.header, **change)) for one in events])
        with pytest.raises(PositionLostError, match="reset or restored"):
            place.catch_up()


def test_a_reset_while_it_waits(place: Place) -> None:
    place.write(*[make_event(seqno) for seqno in range(3)])
    source = place.source()
    source.start(None)
    assert len(list(source.read(0))) == 3
    assert list(source.read(0)) == []
    shutil.rmtree(place.theirs)
    place.write(make_event(0))
    with pytest.raises(PositionLostError, match="was removed or replaced"):
        list(source.read(0))
    source.close()


def test_a_tail_that_is_cut_while_it_waits(place: Place) -> None:
    """A replicator that starts anew cuts an open transaction, and nothing was lost; a complete one cut is a restore."""
    place.write(*[make_event(seqno) for seqno in range(3)])
    file = Path(place.theirs) / "thl.data.0000000001"
    whole = file.stat().st_size
    place.write(make_event(3, 0, last=False), make_event(3, 1, last=False))
    source = place.source()
    source.start(None)
    assert len(list(source.read(0))) == 3
    os.truncate(file, whole)
    assert list(source.read(0)) == []
    place.write(make_event(3, text="another"))
    (fragment,) = source.read(0)
    assert fragment.event_id == "3:0:000003" and b"another" in fragment.payload
    os.truncate(file, whole)
    with pytest.raises(PositionLostError, match="was cut to"):
        list(source.read(0))
    source.close()


def test_what_is_no_directory_of_a_replicator(place: Place, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="does not exist"):
        place.source().check()
    with Log.open(place.theirs, source_id="x") as log:
        log.commit()
    with pytest.raises(SourceSetupError, match="tranlog's own format"):
        place.source().check()
    with pytest.raises(ConfigError):
        ThlSourceOptions(path="", source_id="x").check()
    with pytest.raises(PositionLostError, match="no position of a replicator's log"):
        ThlPosition.parse("0-1-7")
    position = ThlPosition(seqno=7, epoch=3, event_id="a:b\nc")
    assert ThlPosition.parse(str(position)) == position


# --- a writer that is killed -----------------------------------------------------------------------------

WRITER = """
import sys
from fix_tungsten import make_event
from tranlog.tungsten.writing.directory import TungstenLog
path, upto = sys.argv[1], int(sys.argv[2])
with TungstenLog.open(path, segment_bytes=20_000) as log:
    place = log.next_place
    for seqno in range(0 if place is None else place.seqno, upto):
        if seqno % 7 == 3:
            log.append(make_event(seqno, 0, last=False))
            log.commit()
            log.append(make_event(seqno, 1))
        else:
            log.append(make_event(seqno))
        log.commit()
"""


def writer(place: Place, upto: int) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[1]), *[path for path in sys.path if path]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen([sys.executable, "-c", WRITER, place.theirs, str(upto)], env=environment)


def wait_for(true, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


@pytest.mark.long
def test_a_writer_is_followed_and_killed(place: Place) -> None:
    """Capture follows while a process writes, rotates, is killed with -9 and started again: nothing lost or doubled."""
    upto = 700
    place.write(make_event(0))
    source = place.source()
    with Log.open(place.ours, source_id="shop") as log:
        capture = Capture(source, log)
        thread = threading.Thread(target=capture.run)
        thread.start()
        try:
            first = writer(place, upto)
            wait_for(lambda: capture.status().transactions > 100 or first.poll() is not None)
            first.send_signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL, "it was to be killed while it wrote"
            assert writer(place, upto).wait() == 0
            wait_for(lambda: capture.status().transactions >= upto or not thread.is_alive())
        finally:
            capture.stop()
            thread.join()
    source.close()
    assert place.event_ids() == [f"{seqno}:0:{seqno:06d}" for seqno in range(upto)]
    assert {one.fragments for one in place.captured()} == {1, 2}


CAPTURE = """
import sys
from tranlog.capture.capture import Capture
from tranlog.tungsten.source import ThlSource, ThlSourceOptions
from tranlog.log.writing.log import Log
theirs, ours = sys.argv[1:]
with Log.open(ours, source_id="shop") as log:
    Capture(ThlSource(ThlSourceOptions(path=theirs, source_id="shop")), log).run()
"""


@pytest.mark.long
def test_a_capture_that_is_killed_goes_on_behind_its_position(place: Place) -> None:
    """kill -9 of the process that follows, again and again while a writer writes: nothing lost or doubled."""
    upto = 900
    place.write(make_event(0))
    paths = [str(Path(__file__).parents[1]), *[path for path in sys.path if path]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def captured() -> int:
        try:
            return len(place.event_ids())
        except LogMissingError:
            return 0

    writing = writer(place, upto)
    try:
        for _ in range(3):
            before = captured()
            following = subprocess.Popen([sys.executable, "-c", CAPTURE, place.theirs, place.ours], env=environment)
            try:
                wait_for(lambda before=before: captured() > before or writing.poll() is not None)
                assert following.poll() is None, "it follows until it is killed"
            finally:
                following.kill()
                following.wait()
    finally:
        assert writing.wait() == 0
    place.catch_up()
    assert place.event_ids() == [f"{seqno}:0:{seqno:06d}" for seqno in range(upto)]
