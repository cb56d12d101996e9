"""log/reading/gate.py, log/files/recent.py, log/aio.py: waiting for any seqno, and new records from memory."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from fix_log import PATH, fill, make_fragment, open_log, open_reader, run_threads
from tranlog.errors import CorruptRecordError, LogClosedError
from tranlog.ids import Seqno
from tranlog.log.aio import AsyncLog, AsyncReader
from tranlog.log.files.recent import RECENT_BYTES, RecentPieces
from tranlog.log.reading.gate import Gate
from tranlog.testing.disk import SimDisk


def until(gate: Gate, count: int) -> None:
    while len(gate) != count:
        pass


# --- threads -------------------------------------------------------------------------------------------------------


def test_only_those_pass_whose_seqno_has_come() -> None:
    """I34, S9: any number of waiters, each for its own seqno."""
    gate = Gate()
    passed: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: passed.append(n) if gate.wait(Seqno(n), 60) >= n else None)
        for n in random.Random(1).sample(range(40), 40)
    ]
    for thread in threads:
        thread.start()
    until(gate, 40)
    for seqno in (0, 7, 7, 3, 25, 39):
        gate.open_to(Seqno(seqno))
        until(gate, 39 - max(seqno, 7 if seqno == 3 else 0))
    for thread in threads:
        thread.join(60)
    assert sorted(passed) == list(range(40))


def test_a_wait_ends_with_its_time_and_leaves_nothing_behind() -> None:
    gate = Gate()
    gate.open_to(Seqno(4))
    assert gate.wait(Seqno(4), 0) == 4
    assert gate.wait(Seqno(5), 0) == 4
    assert gate.wait(Seqno(5), 0.001) == 4
    assert len(gate) == 0


def test_nobody_sleeps_for_ever_at_a_gate_that_closes() -> None:
    """I33: woken with an error when nothing will come any more, and with the answer when it came before."""
    gate = Gate()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            gate.wait(Seqno(9), 60)
        except LogClosedError as exc:
            raised.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    until(gate, 1)
    gate.open_to(Seqno(8))
    gate.close()
    thread.join(60)
    assert len(raised) == 1
    assert gate.wait(Seqno(8), 60) == 8
    with pytest.raises(LogClosedError):
        gate.wait(Seqno(9), 60)


def test_a_lost_wakeup_would_hang_this() -> None:
    gate = Gate()

    def follow() -> None:
        for seqno in range(300):
            assert gate.wait(Seqno(seqno), 60) >= seqno

    def lead() -> None:
        for seqno in range(300):
            gate.open_to(Seqno(seqno))

    run_threads(follow, follow, lead, follow)


# --- a log's cursors --------------------------------------------------------------------------------------------------


def test_new_records_come_from_memory_and_old_ones_from_the_file() -> None:
    """The record just logged, then what is recent, then the file; the counts show it."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    with log.cursor() as cursor:
        cursor.seek(Seqno(5))
        assert cursor.next() is not None
        before = log.status().reads
        for number in range(6, 26):
            log.append(make_fragment(f"e{number}"))
            log.commit(sync=False)
            found = cursor.next(timeout_s=60)
            assert found is not None and found.header.event_id == f"e{number}"
        counts = log.status().reads
        assert counts.just_written - before.just_written >= 20 and counts.file == before.file
    with log.cursor() as cursor:
        cursor.seek(Seqno(7))
        assert cursor.next() is not None
    assert log.status().reads.recent > 0
    fill(log, 10, size=RECENT_BYTES // 5)
    with log.cursor() as cursor:
        assert cursor.next() is not None
    assert log.status().reads.file > 0
    assert log.status().reads == log.status().reads
    log.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_cursor_with_memory_sees_what_one_without_sees(seed: int) -> None:
    """Differential: memory, file, rotation, allocations and taken-back transactions."""
    rng = random.Random(seed)
    disk = SimDisk()
    log = open_log(disk, segment_bytes=rng.choice((2_000, 1_000_000)), buffer_bytes=rng.choice((1, 10_000)))
    live = log.cursor()
    seen: list[tuple[int, str, bytes]] = []
    for number in range(60):
        match rng.randrange(4):
            case 0:
                log.allocate([make_fragment(f"a{number}", rng.randbytes(rng.randrange(600)))]).complete(sync=False)
            case 1:
                log.append(make_fragment(f"open{number}", rng.randbytes(300), last=False))
                log.abandon_open()
            case _:
                log.append(make_fragment(f"e{number}", rng.randbytes(rng.randrange(300))))
        if rng.random() < 0.5:
            log.commit(sync=rng.random() < 0.3)
        while (found := live.next()) is not None:
            seen.append((found.header.seqno, found.header.event_id, b"".join(found.payloads())))
    log.commit()
    while (found := live.next()) is not None:
        seen.append((found.header.seqno, found.header.event_id, b"".join(found.payloads())))
    log._end.recent.forget()
    log._end.segments.recent = None
    with log.cursor() as cursor:
        plain = []
        while (found := cursor.next()) is not None:
            plain.append((found.header.seqno, found.header.event_id, b"".join(found.payloads())))
    assert seen == plain
    log.close()


def test_what_is_kept_is_bounded() -> None:
    recent = RecentPieces()
    at = 16
    for number in range(1_000):
        recent.put(1, at, bytes(5_000))
        at += 5_000
        kept = sum(map(len, recent._run.pieces))
        assert kept <= RECENT_BYTES and (kept > RECENT_BYTES // 2 - 5_000 or number < 30), number
        assert recent.read(1, 9, at - 9) == bytes(9) and recent.read(1, 9, at - kept) == bytes(9)
    recent.put(1, at, bytes(2 * RECENT_BYTES))
    assert recent._run.pieces == []
    recent.put(2, 16, b"abc")
    assert recent.read(1, 3, 16) is None and recent.read(2, 9, 17) == b"bc"
    recent.put(2, 500, b"gap")
    assert recent.read(2, 3, 16) is None and recent.read(2, 3, 503) is None


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_tasks_commit_and_read_without_blocking_each_other() -> None:
    log = open_log(SimDisk())
    shared = AsyncLog(log)

    async def write(name: str) -> list[int]:
        return [(await shared.transact([make_fragment(f"{name}{n}")])).seqno for n in range(20)]

    async def read() -> list[int]:
        found: list[int] = []
        async with shared.cursor(committed_only=True) as cursor:
            async for transaction in cursor:
                found.append(transaction.header.seqno)
                if len(found) == 101:
                    return found
        return found

    async def everything() -> tuple[list[list[int]], list[list[int]]]:
        async with asyncio.timeout(60):
            readers = [asyncio.create_task(read()) for _ in range(3)]
            written = await asyncio.gather(*(write(f"t{n}/") for n in range(5)))
            return written, await asyncio.gather(*readers)

    written, read_by = asyncio.run(everything())
    assert sorted(seqno for one in written for seqno in one) == list(range(1, 101))
    assert read_by == [list(range(101))] * 3
    log.close()


def test_a_task_that_gives_up_waiting_leaves_nothing_behind() -> None:
    log = open_log(SimDisk())
    shared = AsyncLog(log)

    async def give_up() -> None:
        assert await shared.wait(Seqno(50), 0.001) == 0
        task = asyncio.create_task(shared.wait(Seqno(50), 60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with shared.cursor() as cursor:
            cursor.seek(Seqno(1))
            assert await cursor.next(0.001) is None

    asyncio.run(give_up())
    assert len(log.gate()) == 0
    log.close()


def test_a_reader_for_tasks_hears_of_rollback_damage_and_its_end() -> None:
    disk = SimDisk()
    log = open_log(disk)
    matchpoint = log.append(make_fragment("stays"))
    fill(log, 3)

    async def follow() -> None:
        shared = AsyncReader(open_reader(disk))
        assert await shared.wait(Seqno(4), 60) == 4
        log.rollback(matchpoint)
        async with asyncio.timeout(60):
            while await shared.wait(Seqno(0), 60) != 2:  # the matchpoint's and the new epoch's
                await asyncio.sleep(0)
        waiting = asyncio.create_task(shared.wait(Seqno(99), 60))
        await asyncio.sleep(0)
        await shared.close()
        with pytest.raises(LogClosedError):
            await waiting
        await shared.close()
        broken = AsyncReader(open_reader(disk))
        cursor = broken.cursor()
        cursor.seek(Seqno(99))
        reading = asyncio.create_task(cursor.next(60))
        await asyncio.sleep(0)
        raw = bytearray(disk.content(f"{PATH}/thl.data.0000000002"))
        raw[8] ^= 1
        disk.set_content(f"{PATH}/thl.data.0000000002", bytes(raw))
        disk.unlink(f"{PATH}/positions")  # last: it has the files looked at
        with pytest.raises(CorruptRecordError):
            await broken.wait(Seqno(99), 60)
        with pytest.raises(CorruptRecordError):
            await reading
        await broken.close()

    asyncio.run(follow())
    log.close()
