"""inotify.py: whoever waits for a file to be written is woken, whoever else waits, and however often it is replaced."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_log import run_threads
from tranlog import inotify
from tranlog.inotify import FileWatch, watch_file

PATIENCE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "positions"
    path.write_bytes(bytes(100))
    return path


@pytest.fixture
def watch(path: Path) -> Iterator[FileWatch]:
    watch = watch_file(str(path))
    yield watch
    watch.close()


def write(path: Path, raw: bytes = b"written") -> None:
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, raw, 0)
    os.close(file)


def watches() -> list[str]:
    """Return what the kernel says this process watches: one line per file."""
    found = []
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            found += [line for line in Path("/proc/self/fdinfo", name).read_text().splitlines() if "inotify wd" in line]
        except OSError:
            continue
    return found


def test_a_write_behind_the_ticket_ends_the_wait(path: Path, watch: FileWatch) -> None:
    """Watch first, then look, then wait: a write in between is not lost."""
    ticket = watch.ticket()
    assert ticket is not None
    write(path)
    assert watch.wait(ticket, PATIENCE_S)
    ticket = watch.ticket()
    assert ticket is not None and not watch.wait(ticket, 0.01), "told once"


def test_a_lost_wakeup_would_hang_this(path: Path) -> None:
    """Threads that count what another one writes, each in its own time; none waits for what has come."""
    rounds, readers = 400, 5
    seen = [0] * readers
    behind = threading.Semaphore(0)

    def follow(number: int) -> None:
        watch = watch_file(str(path))
        while seen[number] < rounds:
            ticket = watch.ticket()
            assert ticket is not None
            found = int.from_bytes(path.read_bytes()[:4], "big")
            if found > seen[number]:
                seen[number] = found
                behind.release()
            else:
                assert watch.wait(ticket, PATIENCE_S), "a write was not told"
        watch.close()

    def lead() -> None:
        for value in range(1, rounds + 1):
            write(path, value.to_bytes(4, "big"))
            if value % 2:  # every other one follows at once
                while min(seen) < value:
                    assert behind.acquire(timeout=PATIENCE_S)

    run_threads(lead, *(lambda n=n: follow(n) for n in range(readers)))
    assert watches() == []


def test_many_who_wait_share_one_watch(path: Path) -> None:
    """Of those who wait one reads, and hands over when its own time is over."""
    many = [watch_file(str(path)) for _ in range(20)]
    woken: list[bool] = []

    def wait(number: int) -> None:
        ticket = many[number].ticket()
        assert ticket is not None
        woken.append(many[number].wait(ticket, 0.02 if number % 2 else PATIENCE_S))

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    while len(woken) < 10:
        time.sleep(0.001)
    assert woken == [False] * 10, "their time was over; the others wait on"
    assert len(watches()) == 1
    write(path)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken[10:] == [True] * 10
    for one in many:
        one.close()
    assert watches() == []


def test_a_file_that_is_replaced_is_told_and_the_next_one_watched(path: Path, watch: FileWatch) -> None:
    ticket = watch.ticket()
    assert ticket is not None
    path.unlink()
    assert watch.wait(ticket, PATIENCE_S)
    assert watch.ticket() is None, "there is nothing to watch"
    path.write_bytes(b"new")
    ticket = watch.ticket()
    assert ticket is not None
    other = path.with_suffix(".other")
    other.write_bytes(b"newer")
    os.rename(other, path)
    assert watch.wait(ticket, PATIENCE_S)
    ticket = watch.ticket()
    assert ticket is not None
    write(path)
    assert watch.wait(ticket, PATIENCE_S)


def test_two_paths_to_one_file_are_both_told(path: Path, watch: FileWatch) -> None:
    link = path.with_suffix(".link")
    link.symlink_to(path)
    second = watch_file(str(link))
    first_ticket, second_ticket = watch.ticket(), second.ticket()
    assert first_ticket is not None and second_ticket is not None
    second.close()
    assert len(watches()) == 1
    write(path)
    assert watch.wait(first_ticket, PATIENCE_S)


def test_a_child_has_its_own_watch(path: Path, watch: FileWatch) -> None:
    """After a fork the parent's events are not the child's to take."""
    ticket = watch.ticket()
    assert ticket is not None
    ready, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = watch.ticket()
            os.write(ready[1], b"r")
            code = 0 if mine is not None and watch.wait(mine, PATIENCE_S) else 2
            os.write(told[1], b"t")
        finally:
            os._exit(code)
    assert os.read(ready[0], 1) == b"r"
    write(path)
    assert watch.wait(ticket, PATIENCE_S)
    assert os.read(told[0], 1) == b"t"
    assert os.waitpid(child, 0)[1] == 0
    for end in (*ready, *told):
        os.close(end)


def test_a_file_system_that_does_not_tell_is_not_relied_upon(watch: FileWatch) -> None:
    """Files of another machine change without a word: after some of that the owner looks by itself."""
    for _ in range(3):
        assert watch.ticket() is not None
        watch.missed()
    assert watch.ticket() is None


def test_without_inotify_there_is_no_ticket(watch: FileWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "_libc", None)
    assert watch.ticket() is None


def test_when_too_much_came_everybody_looks(path: Path, watch: FileWatch) -> None:
    """The queue ran over: whatever it was is not known."""
    ticket = watch.ticket()
    assert ticket is not None
    with inotify._notices._changed:
        inotify._notices._take(inotify._EVENT.pack(-1, inotify._OVERFLOW, 0, 0))
    assert watch.wait(ticket, 0)
