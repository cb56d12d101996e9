"""`disk`: the real one, on real files and real locks.

The lock "excludes a second writer in the same process, in another one, and the ancestor's own lock on the same
file". Java's FileChannel.tryLock is fcntl(F_SETLK) on the whole file; so is Python's `fcntl.lockf`, which stands
for it here, in a process of its own.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tranlog.disk import OsDisk
from tranlog.log.writing.log import Log, LogReader

COARSE_CLOCK = 5
"""CLOCK_REALTIME_COARSE: what file systems take their times from."""


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


def test_a_missing_file_is_missing_unless_it_is_to_be_created(disk: OsDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    assert not disk.exists(path)
    for write in (False, True):
        with pytest.raises(FileNotFoundError):
            disk.open(path, write=write)
    disk.open(path, write=True, create=True).close()
    assert disk.exists(path)


def test_bytes_go_to_their_offset_and_come_back(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(b"world", 6)
    file.pwrite(b"hello ", 0)
    file.pwrite(b"", 100)
    assert file.size() == 11
    assert file.pread(5, 6) == b"world"
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"hello world"


def test_a_read_is_short_only_at_the_end(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(b"0123456789", 0)
    assert file.pread(100, 4) == b"456789"
    assert file.pread(100, 10) == b""
    assert file.pread(100, 11) == b""
    assert file.pread(0, 0) == b""
    file.close()


def test_a_read_goes_on_after_the_system_gave_less(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal or a network file system may cut a read short in the middle of a file."""
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(b"0123456789", 0)
    real_pread, real_pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real_pread(fd, min(size, 3), offset))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(100, 0) == b"0123456789"
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, offset: real_pwrite(fd, raw[:3], offset))
    file.pwrite(b"abcdefgh", 1)
    assert file.pread(100, 0) == b"0abcdefgh9"
    file.close()


def test_truncate_cuts_and_extends_with_zeros(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(b"0123456789", 0)
    file.truncate(4)
    assert file.pread(100, 0) == b"0123"
    file.truncate(6)
    assert file.pread(100, 0) == b"0123\0\0"
    file.close()


def test_a_file_opened_for_reading_is_not_written(disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    file = disk.open(str(tmp_path / "file"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite(b"y", 0)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_file_knows_whether_its_path_still_leads_to_it(disk: OsDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = disk.open(path, write=True, create=True)
    assert file.linked()
    disk.unlink(path)
    assert not file.linked()
    disk.open(path, write=True, create=True).close()
    assert not file.linked()
    file.close()


def test_what_could_not_be_written_out_fails_the_syncs_behind_it(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for bytes is told that they are lost, and the system tells an open file once: no sync would fail."""

    def fail(number: int) -> Callable[..., int]:
        def call(*_: object) -> int:
            ctypes.set_errno(number)
            return -1

        return call

    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(b"0123", 0)
    monkeypatch.setattr("tranlog.disk._sync_file_range", fail(errno.ENOSYS))
    file.write_out(4, 0)
    file.sync()
    monkeypatch.setattr("tranlog.disk._sync_file_range", fail(errno.EIO))
    file.write_out(4, 0)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
    file.close()


def test_a_few_bytes_are_sent_on_and_stay_in_memory(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By advice: no page is dropped that is not covered whole, so no reader waits for the disk."""
    advised: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def counted(fd: int, offset: int, size: int, advice: int) -> None:
        advised.append((offset, size))
        advise(fd, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", counted)
    with contextlib.closing(disk.open(str(tmp_path / "file"), write=True, create=True)) as file:
        file.pwrite(bytes(20_000), 0)
        file.sync()
        file.pwrite(b"x" * 1_100, 3_500)
        file.write_out(1_100, 3_500, wait=False)
        file.write_out(1_100, 3_500)
        file.write_out(os.sysconf("SC_PAGE_SIZE"), 8_000, wait=False)
        file.sync()
        assert file.pread(1_102, 3_499) == b"\0" + b"x" * 1_100 + b"\0"
    assert advised == [(3_500, 1_100)]


def test_a_directory_tells_when_its_entries_change(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a commit asks once, in the place of a look at each file's name."""
    here = tmp_path / "log"
    here.mkdir()
    (here / "segment").touch()
    later = [0]
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + later[0])
    assert disk.entries_stamp(str(here)) is None, "another change may yet have the same time"

    def settle() -> object:
        later[0] += 10**9
        return disk.entries_stamp(str(here))

    def replace() -> None:
        here.rename(tmp_path / "away")
        here.mkdir()

    stamps = [settle()]
    (here / "segment").write_bytes(b"not an entry")
    assert settle() == stamps[0]
    for change in (
        lambda: (here / "other").touch(),
        lambda: os.rename(here / "other", here / "segment"),
        lambda: os.unlink(here / "segment"),
        replace,
    ):
        while time.clock_gettime_ns(COARSE_CLOCK) <= os.stat(here).st_mtime_ns:
            pass
        change()
        stamps.append(settle())
    assert None not in stamps and len(set(stamps)) == 5
    os.rmdir(here)
    assert settle() is None


def test_a_copy_of_a_file_has_another_identity(disk: OsDisk, tmp_path: Path) -> None:
    """How a reader tells a log's own `positions` from the one in a copied directory."""
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    again = disk.open(str(tmp_path / "file"))
    copy = disk.open(str(tmp_path / "copy"), write=True, create=True)
    assert file.identity() == again.identity() != copy.identity()
    disk.rename(str(tmp_path / "file"), str(tmp_path / "moved"))
    assert file.identity() == again.identity()
    for one in (file, again, copy):
        one.close()


def test_closing_twice_is_harmless(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "file"), write=True, create=True)
    other = disk.open(str(tmp_path / "file"))
    file.close()
    file.close()
    assert other.size() == 0  # the number of the closed descriptor was not closed again
    other.close()


def test_directories(disk: OsDisk, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    disk.make_dir(log)
    disk.make_dir(log)
    for name in ("b", "a", "c"):
        disk.open(f"{log}/{name}", write=True, create=True).close()
    disk.rename(f"{log}/b", f"{log}/d")
    disk.rename(f"{log}/a", f"{log}/c")
    disk.sync_dir(log)
    assert disk.list_dir(log) == ["c", "d"]
    disk.unlink(f"{log}/c")
    assert disk.list_dir(log) == ["d"]


def test_a_file_where_a_directory_should_be_is_not_taken_for_one(disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a directory")
    with pytest.raises(FileExistsError):
        disk.make_dir(str(tmp_path / "log"))
    with pytest.raises(FileNotFoundError):
        disk.make_dir(str(tmp_path / "no" / "parent"))


def test_the_modification_time_is_in_milliseconds(disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.utime(tmp_path / "file", ns=(0, 1_700_000_000_123_456_789))
    assert disk.modified_ms(str(tmp_path / "file")) == 1_700_000_000_123


def test_the_boot_id_is_the_machines(disk: OsDisk) -> None:
    assert len(disk.boot_id()) == 36
    assert OsDisk().boot_id() == disk.boot_id()


# Locks.

LOCK_AS_WE_DO = """
import sys
from tranlog.disk import OsDisk
from tranlog.log.writing.log import Log, LogReader
try:
    lock = OsDisk().lock(sys.argv[1])
except BlockingIOError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""

LOCK_AS_JAVA_DOES = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


class Other:
    """Another process, which says whether it got the lock and holds it until `end`."""

    def __init__(self, program: str, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "disklog.lck"
    path.touch()
    return str(path)


def test_a_lock_excludes_a_second_holder_in_one_process(disk: OsDisk, path: str) -> None:
    lock = disk.lock(path)
    assert lock.held()
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    lock.release()
    lock.release()
    assert not lock.held()
    again = disk.lock(path)
    assert again.held()
    again.release()


def test_closing_another_descriptor_of_the_file_keeps_the_lock(disk: OsDisk, path: str) -> None:
    """ "`lockf` falls when any descriptor of the file is closed." Ours does not."""
    lock = disk.lock(path)
    disk.open(path, write=True).close()
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    other = Other(LOCK_AS_WE_DO, path)
    other.end()
    assert other.said == "refused"
    lock.release()


def test_a_missing_lock_file_is_created_and_never_removed(disk: OsDisk, tmp_path: Path) -> None:
    lock = disk.lock(str(tmp_path / "new.lck"))
    assert (tmp_path / "new.lck").exists()
    lock.release()
    assert (tmp_path / "new.lck").exists()


@pytest.mark.parametrize("program", [LOCK_AS_WE_DO, LOCK_AS_JAVA_DOES], ids=["ours", "java"])
def test_our_lock_excludes_another_process(disk: OsDisk, path: str, program: str) -> None:
    lock = disk.lock(path)
    other = Other(program, path)
    other.end()
    assert other.said == "refused"
    lock.release()
    other = Other(program, path)
    other.end()
    assert other.said == "locked"


@pytest.mark.parametrize("program", [LOCK_AS_WE_DO, LOCK_AS_JAVA_DOES], ids=["ours", "java"])
@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_another_process_excludes_us_until_it_is_gone(disk: OsDisk, path: str, program: str, kill: bool) -> None:
    other = Other(program, path)
    assert other.said == "locked"
    with pytest.raises(BlockingIOError) as caught:
        disk.lock(path)
    assert caught.value.filename == path
    other.end(kill=kill)
    disk.lock(path).release()


def test_a_program_that_was_started_meanwhile_does_not_keep_the_lock(disk: OsDisk, path: str) -> None:
    lock = disk.lock(path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        disk.lock(path).release()
        child.communicate(b"\n")


def test_a_forked_child_neither_keeps_nor_gives_back_the_lock(disk: OsDisk, path: str) -> None:
    lock = disk.lock(path)
    go, said = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        copy = lock
        os.close(go[1])
        os.write(said[1], b"x")
        os.read(go[0], 1)  # until the parent says so, or has ended
        copy.release()
        os.write(said[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(said[0], 1)
        os.write(go[1], b"x")
        os.read(said[0], 1)
        with pytest.raises(BlockingIOError):  # the child released its copy; the lock is still ours
            disk.lock(path)
    finally:
        os.close(go[1])
        os.waitpid(child, 0)
        for fd in (go[0], *said):
            os.close(fd)
    child = os.fork()
    if child == 0:
        time.sleep(60)  # ended below
        os._exit(0)
    try:
        lock.release()
        disk.lock(path).release()  # although the child still has the descriptor
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_whose_file_was_replaced_or_removed_is_not_held(disk: OsDisk, path: str) -> None:
    """ "A writer whose lock file was replaced under it stops." """
    lock = disk.lock(path)
    os.unlink(path)
    assert not lock.held()
    Path(path).touch()
    assert not lock.held()
    second = disk.lock(path)
    assert second.held()
    lock.release()
    assert second.held()
    clock = Path(path + ".clock")
    clock.touch()
    while clock.stat().st_ctime_ns <= os.stat(path).st_ctime_ns:  # until the file system's clock has moved on
        clock.touch()
    os.rename(path, path + ".away")
    Path(path).touch()
    assert not second.held(), "renaming leaves the file, and changes its ctime"
    second.release()


def test_a_lock_is_looked_at_by_its_path_now_and_then(disk: OsDisk, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may leave the ctime as it is when a file is renamed."""
    lock = disk.lock(path)
    assert lock.held()
    os.rename(path, path + ".away")
    held = os.stat(path + ".away")
    monkeypatch.setattr(os, "fstat", lambda _: held)
    lock._changed_ns = held.st_ctime_ns
    assert [lock.held() for _ in range(64)].count(False) == 1
    lock.release()


def test_a_lock_in_a_missing_directory_is_an_error_of_its_own(disk: OsDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.lock(str(tmp_path / "nowhere" / "disklog.lck"))


def test_refused_locks_leave_no_open_file(disk: OsDisk, path: str) -> None:
    lock = disk.lock(path)
    before = open_here(path)
    assert before
    for _ in range(50):
        with pytest.raises(BlockingIOError):
            disk.lock(path)
    assert open_here(path) == before
    lock.release()


def open_here(path: str) -> int:
    """Return how many descriptors of this process are of a file; other tests' may be closed at any moment."""
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{one}") == os.path.realpath(path)
    return found


def test_a_cursor_that_nobody_closes_costs_no_file(tmp_path: Path) -> None:
    """README.md's program leaves one; a process that read so lost a file each time, until it had no more."""
    path = str(tmp_path / "log")
    Log.open(path, source_id="s").close()

    def look() -> int:
        with LogReader.open(path) as reader:
            assert reader.cursor().next() is not None
        return len(os.listdir("/proc/self/fd"))

    before = look()
    assert [look() for _ in range(3)] == [before] * 3


def test_an_open_file_is_not_copied(tmp_path: Path) -> None:
    """The copy would close it."""
    file = OsDisk().open(str(tmp_path / "a"), write=True, create=True)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.copy(file)
    file.close()
