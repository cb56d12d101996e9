"""log/files/segment.py: what stands in a segment does not depend on where a window of bytes happens to end.

A record's length begins with zeros, and zeros are also how the end of a log looks. A window that ends inside them must
not be taken for the end: a reader would report damage, and a writer that opens the log would cut it.
"""

from __future__ import annotations

import pytest

from fix_effort import few_of
from fix_log import PATH, after_kill, append_large, contents, fill, forget_positions, open_log, open_reader
from tranlog.ids import Seqno
from tranlog.log.files import scan, segment
from tranlog.log.upkeep.verify import verify
from tranlog.testing.disk import SimDisk

SMALLEST, LARGEST = 100, 420
"""Bytes of the windows tried: every place inside two records, and inside the sync records between, is an end once."""


@pytest.fixture(scope="module")
def written() -> SimDisk:
    disk = SimDisk()
    log = open_log(disk)
    for number in range(12):
        fill(log, 1, size=60 + number, start=number)
        log.commit(sync=number % 2 == 0)
    append_large(log, "large", [b"x" * 150, b"y" * 900, b""])
    log.commit()
    return after_kill(disk)


@pytest.mark.parametrize("size", few_of(sorted(range(SMALLEST, LARGEST), key=lambda size: size % 32), 10))
def test_any_window_shows_the_same(written: SimDisk, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = contents(open_reader(written))
    monkeypatch.setattr(segment, "WINDOW_BYTES", size)
    monkeypatch.setattr(scan, "WINDOW_BYTES", size)
    reader = open_reader(written)
    assert contents(reader) == whole
    for seqno in range(len(whole)):
        header = reader.header(Seqno(seqno))
        assert header is not None and header.seqno == seqno
    assert verify(PATH, disk=written).sound
    copy = after_kill(written)
    forget_positions(copy)  # so that everything is found by scanning
    assert contents(open_reader(copy)) == whole
    with open_log(copy) as log:
        assert log.recovered.cut is None
        assert contents(log)[: len(whole)] == whole
