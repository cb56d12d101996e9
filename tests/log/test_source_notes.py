"""What the log's directory keeps for a source: read back whole, or not at all."""

from __future__ import annotations

import errno

import pytest

from tranlog.errors import DiskFailedError, DiskFullError
from tranlog.log.files.source_notes import SOURCE_NAME, read_source_notes, write_source_notes
from tranlog.testing.disk import SimDisk

PATH = "/log"
NOTES = b'{"tables":{"5":"a crc=1"}}'


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dir(PATH)
    write_source_notes(PATH, NOTES, disk)
    return disk


def test_the_last_ones_are_read(disk: SimDisk) -> None:
    assert read_source_notes("/other", disk) is None
    assert read_source_notes(PATH, disk) == NOTES
    write_source_notes(PATH, b"", disk)
    assert read_source_notes(PATH, disk) == b""


def test_damaged_ones_are_not_used_and_named(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    raw = disk.open(f"{PATH}/{SOURCE_NAME}").pread(1000, 0)
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.open(f"{PATH}/{SOURCE_NAME}", write=True).pwrite(bytes(damaged), 0)
        caplog.clear()
        assert read_source_notes(PATH, disk) is None
        assert f"{PATH}/{SOURCE_NAME}" in caplog.text


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, DiskFailedError)])
def test_those_that_cannot_be_replaced_stay(disk: SimDisk, number: int, error: type[Exception]) -> None:
    disk.fail_at = {disk.calls + 2: number}
    with pytest.raises(error, match=SOURCE_NAME):
        write_source_notes(PATH, b"new", disk)
    disk.fail_at = {}
    assert read_source_notes(PATH, disk) == NOTES
