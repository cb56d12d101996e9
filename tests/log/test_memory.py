"""What reading and indexing take of memory, whatever the size of the log."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from fix_log import PATH, make_fragment
from tranlog.ids import Epoch, Seqno
from tranlog.log.files.index_table import INDEX_NAME, IndexTable, read_index
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.lsn import lsn
from tranlog.testing.disk import SimDisk

MILLION = 1_000_000
BUILT_FROM = BuiltFrom(epoch=Epoch(1), end=lsn(13, 16))


def write_log(path: Path, megabytes: int, *, segment_bytes: int) -> None:
    with Log.open(path, source_id="s", options=LogOptions(segment_bytes=segment_bytes)) as log:
        for number in range(megabytes * 1000):
            log.append(make_fragment(f"e{number}", b"x" * 900))
            if number % 1000 == 0:
                log.commit(sync=False)


def peak_of_a_cursor(path: Path) -> int:
    """Return the most that walking over everything, and seeking here and there, takes at once; bytes."""
    with LogReader.open(path) as reader:
        last = reader.range().last_seqno
        tracemalloc.start()
        try:
            with reader.cursor() as cursor:
                read = 0
                while (transaction := cursor.next()) is not None:
                    read += sum(map(len, transaction.payloads()))
                for seqno in range(0, last, max(last // 200, 1)):
                    cursor.seek(Seqno(seqno))
                    assert cursor.next() is not None
            assert read > last * 800
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.long
def test_a_cursor_takes_the_same_over_a_log_four_times_as_large(tmp_path: Path) -> None:
    """Done means: a cursor over a log of any size adds under 64 MB. Ours takes a few windows."""
    write_log(tmp_path / "small", 2, segment_bytes=400_000)
    write_log(tmp_path / "large", 8, segment_bytes=400_000)
    small, large = peak_of_a_cursor(tmp_path / "small"), peak_of_a_cursor(tmp_path / "large")
    assert large < 3_000_000 and large < small + 300_000


WALK = """
import sys
from tranlog.log.reading.reader import LogReader
# Of this program alone: getrusage counts what the process that started it had.
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) * 1024
with LogReader.open(sys.argv[1]) as log:
    before = peak()
    with log.cursor() as cursor:
        count = 0
        while cursor.next() is not None:
            count += 1
print(count, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cursor_over_a_gigabyte_adds_less_than_64_megabytes(tmp_path: Path) -> None:
    """The same as the operating system sees it, in a process of its own."""
    write_log(tmp_path / "log", 1_000, segment_bytes=100_000_000)
    done = subprocess.run([sys.executable, "-c", WALK, tmp_path / "log"], stdout=subprocess.PIPE, text=True, check=True)
    count, added = map(int, done.stdout.split())
    assert count == 1_000_001 and added < 64 << 20


def a_million() -> SeqnoIndex:
    """Return the index of a million transactions of 1.2 KB, in thirteen segments, as a writer registers them."""
    index = SeqnoIndex(after=Seqno(-1))
    seqno, segment = 0, 1
    while seqno < MILLION:
        count = min(80_000, MILLION - seqno)
        for at in range(0, count, 100):
            index.register_run(segment, Seqno(seqno + at), range(42 + 1_200 * at, 42 + 1_200 * (at + 100), 1_200))
        seqno, segment = seqno + count, segment + 1
    return index


@pytest.mark.long
def test_an_index_of_a_million_takes_less_than_a_megabyte_in_memory_and_on_disk() -> None:
    """Done means: both, measured: what the allocator gave for it, and the file, flush after flush."""
    a_million()  # what is made once is made now
    tracemalloc.start()
    try:
        index = a_million()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert index.range.last == MILLION - 1 and taken < 1_000_000
    disk = SimDisk()
    disk.make_dir(PATH)
    table = IndexTable(f"{PATH}/{INDEX_NAME}", disk)
    for at in range(200):  # a log that goes on: frames follow, and the file is written anew now and then
        index.register_run(13, Seqno(MILLION + at), (200_000_000 + 1_200 * at,))
        view = index.view(BUILT_FROM)
        assert view is not None
        plan = view.plan()
        table.store(plan, view.image)
        index.flushed(plan)
        assert len(disk.content(f"{PATH}/{INDEX_NAME}")) < 1_000_000
    stored = read_index(f"{PATH}/{INDEX_NAME}", disk)
    assert stored is not None and stored[0].range == index.range
