"""testing/disk.py: the disk in memory keeps the promises of a disk, and breaks only those that power loss breaks."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tranlog.disk import Disk, OsDisk
from tranlog.testing.disk import SECTOR_BYTES, PowerCut, SimDisk


def new_file(disk: SimDisk, path: str = "/file", content: bytes = b"") -> None:
    """Create a file that is durable with its name."""
    file = disk.open(path, write=True, create=True)
    file.pwrite(content, 0)
    file.sync()
    disk.sync_dir("/")


@pytest.fixture(params=["sim", "os"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return (SimDisk(), "") if request.param == "sim" else (OsDisk(), str(tmp_path))


def test_it_behaves_like_the_real_one(both: tuple[Disk, str]) -> None:
    """The same calls on both disks give the same answers and the same errors."""
    disk, root = both
    disk.make_dir(f"{root}/dir")
    disk.make_dir(f"{root}/dir")
    for wrong in (f"{root}/nowhere/dir",):
        with pytest.raises(FileNotFoundError):
            disk.make_dir(wrong)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/dir/a")
    file = disk.open(f"{root}/dir/a", write=True, create=True)
    file.pwrite(b"hello", 3)
    assert (file.size(), file.pread(100, 0), file.pread(2, 4), file.pread(5, 50)) == (8, b"\0\0\0hello", b"el", b"")
    file.truncate(5)
    assert file.pread(100, 0) == b"\0\0\0he"
    file.truncate(7)
    assert file.pread(100, 0) == b"\0\0\0he\0\0"
    file.sync()
    other = disk.open(f"{root}/dir/a")
    assert other.pread(2, 3) == b"he"
    assert file.identity() == other.identity()
    assert file.linked()
    with pytest.raises(FileExistsError):
        disk.make_dir(f"{root}/dir/a")
    disk.open(f"{root}/dir/b", write=True, create=True).close()
    assert disk.list_dir(f"{root}/dir") == ["a", "b"]
    disk.rename(f"{root}/dir/b", f"{root}/dir/a")
    assert disk.list_dir(f"{root}/dir") == ["a"]
    assert not file.linked()
    assert file.pread(2, 3) == b"he", "an open file outlives its name"
    disk.sync_dir(f"{root}/dir")
    disk.unlink(f"{root}/dir/a")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{root}/dir/a")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/dir/a", f"{root}/dir/b")
    assert disk.exists(f"{root}/dir")
    assert not disk.exists(f"{root}/dir/a")
    assert not disk.exists(f"{root}/x/y")
    disk.open(f"{root}/dir/c", write=True, create=True).close()
    with pytest.raises(NotADirectoryError):
        disk.list_dir(f"{root}/dir/c")
    with pytest.raises(FileNotFoundError):
        disk.list_dir(f"{root}/nowhere")
    assert disk.modified_ms(f"{root}/dir/c") >= 0
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_locks_behave_like_the_real_ones(both: tuple[Disk, str]) -> None:
    disk, root = both
    lock = disk.lock(f"{root}/lock")
    assert lock.held()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    disk.unlink(f"{root}/lock")
    assert not lock.held()
    other = disk.lock(f"{root}/lock")
    lock.release()
    lock.release()
    assert other.held()
    other.release()
    assert not other.held()
    disk.lock(f"{root}/lock").release()


# --- losing power ----------------------------------------------------------------------------------------


def fates(disk: SimDisk, look: Callable[[SimDisk], object], count: int = 300) -> Counter[object]:
    return Counter(look(disk.after_crash(random.Random(seed))) for seed in range(count))


def test_what_is_synced_is_kept() -> None:
    disk = SimDisk()
    new_file(disk, content=b"durable" * 500)
    assert fates(disk, lambda after: after.content("/file")) == {b"durable" * 500: 300}
    assert disk.after_crash(random.Random(1)).boot_id() != disk.boot_id()


def test_what_is_not_synced_is_kept_or_lost_sector_by_sector() -> None:
    disk = SimDisk()
    new_file(disk, content=b"o" * 4 * SECTOR_BYTES)
    file = disk.open("/file", write=True)
    file.pwrite(b"n" * 4 * SECTOR_BYTES, 0)
    seen = fates(disk, lambda after: after.content("/file")[::SECTOR_BYTES])
    assert len(seen) == 16, "every subset of the four sectors"
    assert file.pread(1, 0) == b"n"


def test_a_later_write_may_be_kept_without_an_earlier_one() -> None:
    disk = SimDisk()
    new_file(disk)
    file = disk.open("/file", write=True)
    file.pwrite(b"1" * SECTOR_BYTES, 0)
    file.pwrite(b"2" * SECTOR_BYTES, SECTOR_BYTES)
    seen = fates(disk, lambda after: after.content("/file")[::SECTOR_BYTES])
    assert {b"", b"12", b"\x002", b"1"} <= set(seen)


def test_a_length_may_be_kept_without_its_bytes() -> None:
    disk = SimDisk()
    new_file(disk, content=b"o" * 10)
    disk.open("/file", write=True).pwrite(b"n" * 2_000, 10)
    seen = fates(disk, lambda after: (len(after.content("/file")), after.content("/file")[1_999:2_000]))
    assert (2_010, b"\0") in seen and (2_010, b"n") in seen and (10, b"") in seen


def test_a_cut_may_come_undone_until_it_is_synced() -> None:
    disk = SimDisk()
    new_file(disk, content=b"x" * 3_000)
    file = disk.open("/file", write=True)
    file.truncate(100)
    assert set(fates(disk, lambda after: len(after.content("/file")))) == {100, 3_000}
    file.sync()
    assert set(fates(disk, lambda after: len(after.content("/file")))) == {100}


def test_names_are_kept_or_lost_apart_from_contents() -> None:
    disk = SimDisk()
    new_file(disk, "/a", b"a")
    disk.open("/b", write=True, create=True).sync()
    disk.unlink("/a")
    disk.make_dir("/dir")
    seen = fates(disk, lambda after: tuple(after.list_dir("/")))
    assert {(), ("a",), ("b", "dir"), ("a", "b", "dir")} <= set(seen)
    disk.sync_dir("/")
    assert set(fates(disk, lambda after: tuple(after.list_dir("/")))) == {("b", "dir")}


def test_a_rename_is_whole() -> None:
    disk = SimDisk()
    new_file(disk, "/a", b"new")
    new_file(disk, "/b", b"old")
    disk.rename("/a", "/b")
    seen = fates(disk, lambda after: tuple((name, after.content(f"/{name}")) for name in after.list_dir("/")))
    assert set(seen) == {(("a", b"new"), ("b", b"old")), (("b", b"new"),)}


def test_a_failed_sync_loses_what_it_was_to_carry() -> None:
    """As Linux does: the pages count as written, later syncs succeed, and the bytes are gone with the power."""
    disk = SimDisk()
    new_file(disk)
    file = disk.open("/file", write=True)
    file.pwrite(b"lost", 0)
    disk.fail_at[disk.calls + 1] = errno.EIO
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.pwrite(b"kept", 4)
    file.sync()
    assert file.pread(10, 0) == b"lostkept"
    assert set(fates(disk, lambda after: after.content("/file"))) == {b"\0\0\0\0kept"}


def test_the_power_goes_at_a_call_and_stays_away() -> None:
    disk = SimDisk()
    new_file(disk, content=b"before")
    file = disk.open("/file", write=True)
    lock = disk.lock("/lock")
    disk.cut_at = disk.calls + 2
    file.pwrite(b"x", 0)
    with pytest.raises(PowerCut):
        file.pwrite(b"y", 1)
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.sync(),
        lambda: disk.list_dir("/"),
        lambda: disk.open("/file"),
        lambda: lock.held(),
    ):
        with pytest.raises(PowerCut):
            call()
    file.close()
    lock.release()
    after = disk.after_crash(random.Random(3))
    assert after.content("/file") in (b"before", b"xefore")
    after.lock("/file").release()


def test_only_calls_that_change_something_are_numbered() -> None:
    disk = SimDisk()
    new_file(disk)
    calls, counts = disk.calls, dict(disk.counts)
    file = disk.open("/file")
    file.pread(1, 0)
    file.size()
    file.linked()
    disk.list_dir("/")
    disk.exists("/file")
    assert (disk.calls, disk.counts) == (calls, counts)
    assert counts == {"open": 1, "pwrite": 1, "sync": 1, "sync_dir": 1}
    assert calls == sum(counts.values())


# --- running full, failing -------------------------------------------------------------------------------


def test_a_full_disk_writes_what_fits() -> None:
    disk = SimDisk()
    new_file(disk, content=b"12345")
    file = disk.open("/file", write=True)
    disk.room = 3
    file.pwrite(b"abcde", 0)
    with pytest.raises(OSError, match="No space left") as caught:
        file.pwrite(b"defghi", 3)
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(100, 0) == b"abcdefgh"
    assert disk.room == 0
    file.truncate(2)
    assert disk.room == 6
    file.pwrite(b"xyz", 2)


def test_any_call_fails_when_told() -> None:
    disk = SimDisk()
    new_file(disk)
    file = disk.open("/file", write=True)
    for call in (
        lambda: file.pwrite(b"abcd", 0),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: disk.sync_dir("/"),
        lambda: disk.unlink("/file"),
        lambda: disk.make_dir("/dir"),
    ):
        disk.fail_at[disk.calls + 1] = errno.EIO
        with pytest.raises(OSError, match="injected"):
            call()
    assert file.pread(10, 0) == b"ab", "a failed write has done half"
    file.sync()


def test_what_is_forbidden_says_so() -> None:
    disk = SimDisk()
    new_file(disk, content=b"x")
    file = disk.open("/file", write=True)
    disk.read_only = True
    for call in (
        lambda: file.pwrite(b"y", 0),
        lambda: disk.open("/file", write=True),
        lambda: disk.unlink("/file"),
        lambda: disk.lock("/file"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            call()
    assert disk.open("/file").pread(1, 0) == b"x"
    disk.denied.add("/file")
    with pytest.raises(PermissionError):
        disk.open("/file")
    disk.denied.clear()
    disk.broken.add("/file")
    with pytest.raises(OSError, match="Input/output"):
        disk.open("/file").pread(1, 0)


def test_a_slow_sync_tells_how_long_it_took_and_passes_no_time() -> None:
    disk = SimDisk()
    file = disk.open("/a", write=True, create=True)
    disk.sync_ms = iter([30, 12]).__next__
    for _ in range(2):
        file.pwrite(b"x", 0)
        file.sync()
    assert disk.waited_ms == 42


def test_copying_makes_other_files() -> None:
    disk = SimDisk()
    disk.make_dir("/a")
    disk.open("/a/f", write=True, create=True).pwrite(b"x", 0)
    disk.copy_files("/a", "/b")
    assert disk.content("/b/f") == b"x"
    assert disk.open("/a/f").identity() != disk.open("/b/f").identity()
