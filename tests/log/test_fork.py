"""One owner: the process that opened a log is the only one that writes to it, whatever it forks (`log.ownership`).

Real forks, on the machine's own files. A child does its part and ends by `os._exit` or, in a program of its own, as
programs do; what it did is seen in the files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest

from fix_fork import in_child
from fix_log import contents, fill, make_fragment
from tranlog.errors import LogClosedError, LogLockedError
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader

pytestmark = pytest.mark.long


def files_of(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(path.iterdir()) if one.is_file()}


def refuses(call: Callable[[], object]) -> None:
    with pytest.raises(LogClosedError, match=rf"process {os.getppid()} opened it, and this is process {os.getpid()}"):
        call()


def test_a_child_is_refused_at_each_call_and_changes_no_byte(tmp_path: Path) -> None:
    """Both were acknowledged and overwrote each other, and verify called it sound."""
    path = tmp_path / "log"
    with Log.open(path, source_id="db1", options=LogOptions(spill_buffer_bytes=1)) as log:
        fill(log, 3)
        log.append(make_fragment("pending"))
        allocation = log.allocate([make_fragment("allocated", bytes(5_000))])
        opened = log.begin()
        for part in range(4):
            opened.add(make_fragment("spilled", bytes(300_000) + bytes([part])))
        before = files_of(path)

        def child() -> None:
            for call in (
                lambda: log.append(make_fragment("child")),
                lambda: log.append_many([make_fragment("child")]),
                lambda: log.transact([make_fragment("child")]),
                lambda: log.transact([make_fragment("child", bytes(100_000))]),
                lambda: log.commit(),
                lambda: log.commit(sync=False),
                allocation.write,
                allocation.abandon,
                lambda: opened.add(make_fragment("spilled", bytes(300_000))),
                log.begin,
                log.add_segment,
                log.expire,
                log.purge,
                log.roll_spill,
            ):
                refuses(call)
            log.abandon_open()
            log.flush_index()
            assert "forked" in str(log.status().closed_because)
            log.close()
            log.close()
            with pytest.raises(LogLockedError):
                Log.open(path, source_id="db1")

        in_child(child)
        assert files_of(path) == before
        with pytest.raises(LogLockedError):  # the child's end gave nothing back
            Log.open(path, source_id="db1")
        allocation.complete()
        opened.commit()
        fill(log, 3, start=3)
    with Log.open(path, source_id="db1") as log:
        names = [one[1] for one in contents(log)]
        assert names == ["e0", "e1", "e2", "pending", "allocated", "spilled", "e3", "e4", "e5"]
    assert verify(str(path)).sound


def test_a_child_that_leaves_the_block_cuts_nothing_of_the_parent(tmp_path: Path) -> None:
    """By sys.exit out of `with Log.open`: it ended the log where the parent had long gone on."""
    path = tmp_path / "log"
    program = """
        import os, sys, time
        from tranlog.change import Fragment
        from tranlog.log.writing.log import Log
        def one(number):
            return Fragment(source_id="db1", event_id=f"e{number}", shard_id="s", tstamp=1, tables=(("s", "t"),),
                            payload=bytes(900))
        reading, writing = os.pipe()
        with Log.open(sys.argv[1], source_id="db1") as log:
            for number in range(5):
                log.transact([one(number)])
            child = os.fork()
            if child == 0:
                os.read(reading, 1)  # until the parent has gone on
                try:
                    log.transact([one(99)])
                except Exception:
                    sys.exit(7)
                sys.exit(0)
            for number in range(5, 25):
                log.transact([one(number)])
            os.write(writing, b"x")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            for number in range(25, 30):
                log.transact([one(number)])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=True, timeout=60)
    with Log.open(path, source_id="db1") as log:
        assert log.recovered.clean
        assert [one[1] for one in contents(log)] == [f"e{number}" for number in range(30)]


def test_a_child_does_not_wait_for_a_lock_that_another_thread_held(tmp_path: Path) -> None:
    """A thread that commits is in the midst of it when another one forks: the child has neither it nor its lock."""
    path = tmp_path / "log"
    with Log.open(path, source_id="db1", options=LogOptions(flush_interval_s=0.001, index_flush_s=0.01)) as log:
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                log.append(make_fragment("t", bytes(20_000)))
                log.commit(sync=False)

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:

            def child() -> None:
                refuses(lambda: log.append(make_fragment("child")))
                refuses(log.commit)
                log.close()

            for _ in range(15):
                in_child(child)
        finally:
            over.set()
            for thread in threads:
                thread.join()


HELD_LOCKS = ("steps.lock", "spilling._lock", "segments._lock", "publishing.seen._lock", "steps.commits._at_sync")


@pytest.mark.parametrize("held", HELD_LOCKS)
def test_a_child_closes_whatever_lock_was_held(tmp_path: Path, held: str) -> None:
    path = tmp_path / "log"
    with Log.open(path, source_id="db1") as log:
        fill(log, 2)
        lock = attrgetter(held)(log._end)
        taken, over = threading.Event(), threading.Event()

        def hold() -> None:
            with lock:
                taken.set()
                over.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait()
        try:

            def child() -> None:
                refuses(lambda: log.append(make_fragment("child")))
                log.close()

            in_child(child)
        finally:
            over.set()
            holder.join()


def test_a_child_keeps_nothing_locked_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The child lives on, and has not closed anything: the next writer does not wait for its end."""
    path = tmp_path / "log"
    program = """
        import os, signal, sys, time
        from tranlog.log.writing.log import Log
        log = Log.open(sys.argv[1], source_id="db1")
        child = os.fork()
        if child == 0:
            os.close(1)
            os.read(0, 1)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(path)], stdin=reading, stdout=subprocess.PIPE
        ) as parent:
            os.close(reading)
            assert parent.stdout is not None
            child = int(parent.stdout.read())
        assert os.path.exists(f"/proc/{child}")
        Log.open(path, source_id="db1").close()
    finally:
        os.close(writing)
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_child_may_read_what_it_inherited_and_open_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log.open(path, source_id="db1") as log:
        fill(log, 3)

        def child() -> None:
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
            with LogReader.open(path) as reader:
                assert [one[1] for one in contents(reader)] == ["e0", "e1", "e2"]

        in_child(child)


def test_a_child_opens_a_log_that_its_parent_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log.open(path, source_id="db1")
    fill(log, 1)
    log.close()

    def child() -> None:
        log.close()
        with Log.open(path, source_id="db1") as own:
            fill(own, 1, start=1)

    in_child(child)
    with Log.open(path, source_id="db1") as again:
        assert [one[1] for one in contents(again)] == ["e0", "e1"]
