"""The log among processes, on the machine's own disk: readers follow a writer, a killed writer loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fix_effort import Effort, few_of
from fix_log import append_large, contents, make_fragment, make_payload, read_all
from tranlog.errors import LogLockedError
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log, LogOptions, LogReader

pytestmark = pytest.mark.long

READER = """
import json, sys, zlib
from tranlog.log.reading.reader import LogReader
path, until, committed_only = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "committed"
with LogReader.open(path) as reader, reader.cursor(committed_only=committed_only) as cursor:
    print("ready", flush=True)
    seqnos, crc = [], 0
    while not seqnos or seqnos[-1] < until:
        transaction = cursor.next(30.0)
        assert transaction is not None, f"nothing came after {seqnos[-1:]}"
        found = reader.range()
        assert transaction.header.seqno <= (found.committed_seqno if committed_only else found.last_seqno)
        seqnos.append(transaction.header.seqno)
        if not transaction.is_noop():
            for payload in transaction.payloads():
                crc = zlib.crc32(payload, crc)
print(json.dumps([seqnos[0], seqnos == list(range(seqnos[0], until + 1)), crc]))
"""

WRITER = """
import sys
from tranlog.change import Fragment
from tranlog.log.writing.log import Log, LogOptions
path, segment_bytes = sys.argv[1], int(sys.argv[2])
log = Log.open(path, source_id="db1", options=LogOptions(segment_bytes=segment_bytes, buffer_bytes=2_000))
print("opened", log.epoch, log.last_event_id() or -1, flush=True)
number = int(log.last_event_id() or -1) + 1
while True:
    parts = 1 + number % 3
    for part in range(parts):
        log.append(Fragment(source_id="db1", event_id=str(number), shard_id="s", tstamp=1, tables=(("s", "t"),),
                            payload=f"{number}/{part}".encode() * 20, last=part == parts - 1))
    if number % 4 == 3:
        log.commit()
        print(number, flush=True)
    number += 1
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    return output


def test_readers_in_other_processes_follow_a_writer(tmp_path: Path) -> None:
    """The issue, item 3: many readers, also in other processes. D: DiskLogExtendedTest.testConcurrentAccess."""
    import zlib

    path, count = str(tmp_path / "log"), 400
    with Log.open(path, source_id="db1", options=LogOptions(segment_bytes=20_000)) as log:
        kinds = ("visible", "committed", "visible")
        readers = [start(READER, path, str(count), kind) for kind in kinds]
        try:
            for reader in readers:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
            crc = 0
            for number in range(count):
                parts = [make_payload(number, 150), make_payload(number + 1, 60)][: 1 + number % 2]
                append_large(log, f"e{number}", parts)
                for part in parts:
                    crc = zlib.crc32(part, crc)
                if number % 5 == 0:
                    log.commit(sync=number % 2 == 0)
            log.commit()
            for reader in readers:
                assert json.loads(finish(reader)) == [0, True, crc]
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
    assert len(os.listdir(path)) > 4


def test_a_killed_writer_loses_nothing_that_it_had_acknowledged(tmp_path: Path, effort: Effort) -> None:
    """kill -9 at any moment; the next writer goes on behind what is there, in a higher epoch."""
    path = str(tmp_path / "log")
    acknowledged = -1
    for kill in range(effort(2, 4, 50)):
        writer = start(WRITER, path, "3000")
        assert writer.stdout is not None
        try:
            _, epoch, resumed_after = writer.stdout.readline().split()
            assert int(epoch) == kill + 1
            assert int(resumed_after) >= acknowledged
            until = acknowledged + 40 * (kill + 1)
            while acknowledged < until:
                acknowledged = int(writer.stdout.readline())
            with pytest.raises(LogLockedError, match=f"pid {writer.pid}"):
                Log.open(path, source_id="db1")
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for line in writer.stdout.read().splitlines():
            acknowledged = int(line) if line.isdigit() else acknowledged
        writer.stdout.close()
        with LogReader.open(path) as reader:
            assert not reader.range().scanned, "the machine did not stop, so the positions file still holds"
            assert reader.range().committed_seqno <= reader.range().last_seqno
            last = reader.header(reader.range().committed_seqno)
            assert last is not None and int(last.event_id) >= acknowledged
    with Log.open(path, source_id="db1") as log:
        found = contents(log)
        assert [one[1] for one in found] == [str(number) for number in range(len(found))], "lost or repeated"
        assert len(found) > acknowledged
        for _, event_id, content in found:
            number = int(event_id)
            assert content == b"".join(f"{number}/{part}".encode() * 20 for part in range(1 + number % 3))
        seqnos = [one.header.seqno for one in read_all(log.cursor())]
        assert seqnos == list(range(len(seqnos)))


def test_a_reader_in_another_process_is_told_soon(tmp_path: Path) -> None:
    """The ancestor polls every 50 ms (p50 26 ms); here a reader looks again after 0.5 ms at first, 20 ms at most."""
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1") as log, LogReader.open(path) as reader, reader.cursor() as cursor:
        cursor.seek(Seqno(1))
        log.append(make_fragment())
        began = time.monotonic()
        log.commit(sync=False)
        assert cursor.next(10.0) is not None
        assert time.monotonic() - began < 5


FOLLOWER = """
import sys, threading
from tranlog.ids import Seqno
from tranlog.log.reading import reader as reading
from tranlog.log.reading.reader import LogReader
path, until, told = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if told == "told":
    reading.SLOW_POLL_S = 3600.0  # nobody looks without being told
else:
    import tranlog.inotify
    if told == "alone":
        tranlog.inotify._libc = None  # a system without inotify
    else:
        tranlog.inotify._WANTED = tranlog.inotify._DELETE_SELF  # a file system that tells of no write
lock = threading.Lock()
def follow(name):
    with LogReader.open(path) as log, log.cursor(committed_only=name == 0) as cursor:
        cursor.seek(Seqno(1))
        with lock:
            print("ready", flush=True)
        for seqno in range(1, until + 1):
            transaction = cursor.next(60.0)
            assert transaction is not None, f"nothing came, waiting for {seqno}"
            assert transaction.header.seqno == seqno
            with lock:
                print(seqno, flush=True)
threads = [threading.Thread(target=follow, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(("told", "count"), few_of([("told", 150), ("silent", 8), ("alone", 40)]))
def test_those_who_wait_in_other_processes_hear_of_each_commit(tmp_path: Path, told: str, count: int) -> None:
    """By inotify on the positions file, else by looking; no wake-up is lost.

    Each commit waits until all have seen the one before, so whoever misses one waits for ever, and all with him.
    """
    path = str(tmp_path / "log")
    with Log.open(path, source_id="db1") as log:
        followers = [start(FOLLOWER, path, str(count), told) for _ in range(2)]
        try:
            outputs = [follower.stdout for follower in followers]
            for output in outputs * 3:
                assert output is not None and output.readline() == "ready\n"
            due = 0
            for number in range(1, count + 1):
                log.append(make_fragment(f"e{number}"))
                log.commit(sync=number % 3 == 0 or number == count)
                due += 1
                if number % 3 == 0 or number == count:  # those who wait for what is committed hear of it now
                    for output in outputs:
                        assert output is not None
                        lines = [output.readline().strip() for _ in range(3 * due)]
                        assert sorted(lines) == sorted(3 * [str(n) for n in range(number - due + 1, number + 1)])
                    due = 0
            for follower in followers:
                finish(follower)
        finally:
            for follower in followers:
                follower.kill()
                follower.wait()


TASKS = """
import asyncio, sys
from tranlog.ids import Seqno
from tranlog.log.aio import AsyncReader
from tranlog.log.reading.reader import LogReader
path, until = sys.argv[1], int(sys.argv[2])
async def follow(log, number):
    async with log.cursor(committed_only=number % 2 == 0) as cursor:
        found = [(await cursor.next(60.0)).header.seqno for _ in range(until + 1)]
    assert found == list(range(until + 1))
async def everything():
    async with AsyncReader(LogReader.open(path)) as log:
        print("ready", flush=True)
        waits = [log.wait(Seqno(seqno), 60.0) for seqno in range(0, until + 1, 3)]
        assert await log.wait(Seqno(until + 50), 0.01) <= until
        found, *_ = await asyncio.gather(asyncio.gather(*waits), *(follow(log, number) for number in range(20)))
        assert all(seen >= 3 * at for at, seen in enumerate(found))
asyncio.run(asyncio.wait_for(everything(), 80))
"""


def test_tasks_in_another_process_wait_for_any_seqno(tmp_path: Path) -> None:
    """Any number of tasks, here 20 cursors and as many waits, behind one thread and one watch."""
    path, count = str(tmp_path / "log"), 60
    with Log.open(path, source_id="db1") as log:
        reader = start(TASKS, path, str(count))
        try:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
            for number in range(1, count + 1):
                log.append(make_fragment(f"e{number}"))
                log.commit(sync=number % 3 == 0)
            log.commit()
            finish(reader)
        finally:
            reader.kill()
            reader.wait()
