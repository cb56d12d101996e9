"""Checking a replicator's directory while it is written and purged, and what an end is; conformance/tungsten.md B4."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_tungsten import LOG, golden_segments, make_event, on_disk, open_log
from tranlog.disk import Disk
from tranlog.errors import SegmentGoneError
from tranlog.ids import segment_name
from tranlog.log.rules.damage import Damage
from tranlog.testing.disk import SimDisk
from tranlog.tungsten.files import segments
from tranlog.tungsten.rules.recovery import DirectoryEntry
from tranlog.tungsten.upkeep import verify as checking
from tranlog.tungsten.upkeep.verify import verify


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something done, once, between the look at the directory and the walk."""

    def do(act: Callable[[], None]) -> None:
        acts = [act]

        def listed(path: str, disk: Disk) -> list[DirectoryEntry]:
            entries = segments.list_entries(path, disk)
            for one in acts[:]:
                acts.remove(one)
                one()
            return entries

        monkeypatch.setattr(checking, "list_entries", listed)

    return do


def purged(disk: SimDisk, *numbers: int) -> None:
    for number in numbers:
        disk.unlink(f"{LOG}/{segment_name(number)}")


def test_a_rotation_meanwhile_is_no_missing_segment(meanwhile: Callable[[Callable[[], None]], None]) -> None:
    disk = on_disk(golden_segments("rotated-60"))

    def rotate() -> None:
        with open_log(disk, segment_bytes=1000) as log:
            for seqno in range(60, 70):
                log.append(make_event(seqno))

    meanwhile(rotate)
    report = verify(LOG, disk=disk)
    assert report.sound and report.tail is None


def test_what_is_purged_meanwhile_is_not_looked_at(meanwhile: Callable[[Callable[[], None]], None]) -> None:
    disk = on_disk(golden_segments("rotated-60"))
    meanwhile(lambda: purged(disk, 1, 2))
    report = verify(LOG, disk=disk)
    assert report.sound and (report.first_seqno, report.segments) == (18, 5)


def test_what_is_removed_in_the_middle_is_an_error(meanwhile: Callable[[Callable[[], None]], None]) -> None:
    disk = on_disk(golden_segments("rotated-60"))
    meanwhile(lambda: purged(disk, 4))
    with pytest.raises(SegmentGoneError):
        verify(LOG, disk=disk)


@pytest.mark.parametrize("size", [0, 7, 16])
def test_an_unfinished_header_is_an_end(size: int) -> None:
    """A loss of power leaves the header's length without its bytes, too."""
    report = verify(LOG, disk=on_disk(golden_segments("rotated-60") | {7: bytes(size)}))
    assert report.sound and report.tail == f"{segment_name(7)} is skipped: its header was not finished"


@pytest.mark.parametrize("case", ["fail-bad-magic", "fail-major-version", "fail-zero-length-middle"])
def test_a_bad_header_is_no_missing_segment(case: str) -> None:
    assert [one.kind for one in verify(LOG, disk=on_disk(golden_segments(case))).problems] == [Damage.HEADER]
