"""Concurrent commit: places are given out in order and filled in any order, and nobody sees past the oldest gap."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from fix_log import PATH, contents, fill, make_fragment, open_log, open_reader, read_all, run_threads
from tranlog.change import Fragment
from tranlog.errors import DiskFullError, LogClosedError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.rules.index_values import IndexRange
from tranlog.log.rules.prefix import Extent, UnbrokenPrefix
from tranlog.log.writing.allocation import empty_records, empty_transaction, padding_for, size_of
from tranlog.log.writing.log import Log, LogOptions
from tranlog.testing.disk import SimDisk


def seqnos(log: Log) -> list[int]:
    with log.cursor() as cursor:
        return [transaction.header.seqno for transaction in read_all(cursor)]


def large(event_id: str, size: int = 200_000) -> list[Fragment]:
    return [make_fragment(event_id, bytes(size // 2), last=False), make_fragment(event_id, bytes(size // 2))]


# --- the decision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_prefix_is_what_a_plain_list_says(seed: int) -> None:
    rng = random.Random(seed)
    prefix, waiting, visible, next_seqno = UnbrokenPrefix(), list[Extent](), -1, 0
    for _ in range(200):
        if rng.random() < 0.5:
            count = rng.randrange(1, 4)
            starts = range(16 + next_seqno, 16 + next_seqno + count)
            extent = Extent(Seqno(next_seqno), starts, end=starts.stop, ids=("s", str(next_seqno)))
            next_seqno += count
            prefix.allocate(extent)
            waiting.append(extent)
        elif waiting:
            rng.choice(waiting).done = True
        shown = prefix.advance()
        expected = []
        while waiting and waiting[0].done:
            expected.append(waiting.pop(0))
        assert shown == expected
        visible = max([visible, *(extent.last for extent in shown)])
        oldest = next((extent.first for extent in waiting if not extent.done), -1)
        assert prefix.oldest_unfinished() == oldest
        assert oldest == -1 or oldest == visible + 1


# --- what readers see ------------------------------------------------------------------------------------------------


def test_nobody_sees_past_the_oldest_unfinished_transaction() -> None:
    disk = SimDisk()
    log = open_log(disk)
    held = log.allocate([make_fragment("held", b"h" * 90)])
    younger = [log.allocate([make_fragment(f"y{n}", b"y" * 90)]) for n in range(3)]
    for allocation in reversed(younger):
        allocation.complete(sync=False)
    log.append(make_fragment("buffered"))
    log.commit(sync=False)
    assert (held.gtid.seqno, log.visible_seqno, log.last_seqno) == (1, 0, 5)
    assert seqnos(log) == [0]
    with open_reader(disk) as reader:
        assert reader.range().last_seqno == 0
    held.write()
    assert log.visible_seqno == 0
    held.complete()
    assert log.visible_seqno == log.durable_seqno == 5
    assert seqnos(log) == list(range(6))
    log.close()
    with open_reader(disk) as reader, reader.cursor() as cursor:
        assert [one.header.event_id for one in read_all(cursor)][1:] == ["held", "y0", "y1", "y2", "buffered"]


def test_a_durable_commit_waits_for_every_older_transaction() -> None:
    """The others finish their writing, and are told once the oldest one is complete."""
    disk = SimDisk()
    log = open_log(disk)
    held = log.allocate(large("held"))
    done: list[str] = []
    started = threading.Barrier(9, timeout=60)

    def commit(name: str) -> None:
        allocation = log.allocate([make_fragment(name, b"x" * 100)])
        allocation.write()
        started.wait()
        allocation.complete()
        done.append(name)

    threads = [threading.Thread(target=commit, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    while len(log._steps.changed._waiters) < 8:  # type: ignore[attr-defined]
        pass
    assert not done and log.visible_seqno == 0
    syncs = disk.counts["sync"]
    held.complete()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [f"t{n}" for n in range(8)]
    assert log.durable_seqno == 9
    assert disk.counts["sync"] - syncs <= 3, "one sync serves many"
    log.close()


@pytest.mark.slow
def test_a_transaction_held_for_five_seconds(tmp_path: Path) -> None:
    """The issue's own words, on a real disk: the others finish their writing; visible and durable wait."""
    import time

    with Log.open(tmp_path / "log", source_id="s") as log:
        held = log.allocate(large("held"))
        threads = [
            threading.Thread(target=lambda n=n: log.allocate([make_fragment(f"t{n}", bytes(500))]).complete())
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(5)
        assert all(thread.is_alive() for thread in threads)
        assert log.last_seqno == 9 and log.visible_seqno == 0
        with LogReader.open(tmp_path / "log") as reader:
            assert reader.range().last_seqno == 0
        held.complete()
        for thread in threads:
            thread.join(60)
        assert log.durable_seqno == 9


@pytest.mark.parametrize("seed", range(6))
def test_many_threads_in_any_order_leave_one_unbroken_stream(seed: int) -> None:
    """Allocated, appended, abandoned, large and small, with rotation: what a reader finds is dense and whole."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=20_000)
    kept: list[tuple[int, str]] = []
    emptied: list[int] = []

    def work(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        for at in range(25):
            name = f"{number}-{at}"
            match rng.randrange(4):
                case 0:
                    seqno = log.append(make_fragment(name)).seqno
                    log.commit(sync=rng.random() < 0.3)
                    kept.append((seqno, name))
                case 1:
                    allocation = log.allocate([make_fragment(name, bytes(rng.randrange(3_000)))])
                    allocation.write()
                    kept.append((allocation.complete(sync=rng.random() < 0.3).seqno, name))
                case 2:
                    with log.allocate(large(name, rng.randrange(100, 9_000))) as allocation:
                        pass
                    kept.append((allocation.gtid.seqno, name))
                case _:
                    allocation = log.allocate([make_fragment(name, bytes(rng.randrange(200)))])
                    if rng.random() < 0.5:
                        allocation.write()
                    allocation.abandon()
                    emptied.append(allocation.gtid.seqno)

    run_threads(*(lambda n=n: work(n) for n in range(6)))  # type: ignore[misc]
    log.commit()
    assert log.visible_seqno == log.durable_seqno == 150
    log.close()
    with open_reader(disk) as reader, reader.cursor() as cursor:
        found = read_all(cursor)
    assert [one.header.seqno for one in found] == list(range(151))
    by_seqno = {int(one.header.seqno): one for one in found}
    assert {(seqno, by_seqno[seqno].header.event_id) for seqno, _ in kept} == set(kept)
    assert len(kept) + len(emptied) == 150
    assert all(by_seqno[seqno].is_noop() for seqno in emptied)


# --- an allocation that fails ---------------------------------------------------------------------------------------


def test_a_block_that_raises_leaves_an_empty_transaction() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment("before"))
    lost = log.allocate(large("lost"))

    def fail() -> None:
        with lost:
            log.allocate([make_fragment("behind", b"b" * 80)]).complete(sync=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert lost.gtid.seqno == 2
    log.commit()
    with log.cursor() as cursor:
        found = read_all(cursor)
    assert [one.header.seqno for one in found] == [0, 1, 2, 3]
    assert found[2].is_noop() and found[2].header.event_id == "before", "a source resumes behind what is there"
    assert found[3].header.event_id == "behind"
    log.close()


def test_what_is_unfinished_at_close_is_left_empty() -> None:
    """Complete transactions behind it are kept: they were written, though nobody was told yet."""
    disk = SimDisk()
    log = open_log(disk)
    held = log.allocate(large("held"))
    log.allocate([make_fragment("behind", b"b" * 80)]).complete(sync=False)
    log.close()
    with pytest.raises(LogClosedError):
        held.complete()
    with open_log(disk) as log:
        with log.cursor() as cursor:
            found = read_all(cursor)
        assert [one.header.seqno for one in found] == [0, 1, 2, 3]
        assert [one.header.event_id for one in found] == ["", "", "behind", "behind"]
        assert found[1].is_noop()


@pytest.mark.parametrize("spilled", [False, True])
def test_an_allocation_that_is_dropped_holds_up_nobody(spilled: bool) -> None:
    """As an exception between `allocate` and its `with` drops it: others waited until the log was closed."""
    disk = SimDisk()
    log = open_log(disk, spill_above=50_000 if spilled else 1_000_000)
    log.allocate(large("dropped"))
    log.commit()
    with log.begin() as after:
        after.add(make_fragment("after", b"x"))
    kept = log.allocate(large("kept"))
    del kept
    others = [threading.Thread(target=fill, args=(log, 1), daemon=True) for _ in range(3)]
    for one in others:
        one.start()
    for one in others:
        one.join(20)
    assert not any(one.is_alive() for one in others), "a commit waits for what nobody will complete"
    assert log.durable_seqno == log.last_seqno == 6
    with log.cursor() as cursor:
        found = list(read_all(cursor))
    assert [one.header.seqno for one in found] == [0, 1, 2, 3, 4, 5, 6]
    assert [one.is_noop() for one in found] == [True, True, False, True, False, False, False]
    log.close()
    with open_log(disk) as again:
        assert seqnos(again) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("size", [0, 1, 5, 20, 40, 60, 100, 120, 127, 128, 130, 255, 300, 16_380, 16_400, 70_000])
def test_an_empty_transaction_fits_any_place(size: int) -> None:
    ids = ("db1", "mysql-bin.000001:0000000004;17")
    for grown in range(size, size + 7):
        fragment = make_fragment("e", bytes(grown), source_id="", shard_id="", tables=())
        own = size_of([fragment])
        padding = padding_for(own, ids, 5)
        pieces = empty_records(own + padding, ids, 5, Gtid(Epoch(2), Seqno(7)), checksum=True)
        assert sum(map(len, pieces)) == own + padding
    assert empty_transaction(ids, 5).event_id == ids[1]


def test_too_large_a_transaction_gets_a_small_place_and_spills() -> None:
    with open_log(SimDisk(), spill_above=10_000) as log:
        allocation = log.allocate(large("big", 20_000))
        log.append(make_fragment("next"))
        log.commit(sync=False)
        assert log.visible_seqno == 0
        allocation.complete()
        assert [(seqno, event_id, len(raw)) for seqno, event_id, raw in contents(log)] == [
            (1, "big", 20_000),
            (2, "next", 7),
        ]


def test_a_full_disk_refuses_all_that_is_not_visible_and_each_owner_hears_it() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment("kept"))
    log.commit()
    one = log.allocate([make_fragment("one", b"1" * 90)])
    two = log.allocate([make_fragment("two", b"2" * 90)])
    two.write()
    disk.fail_at[disk.calls + 1] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        one.write()
    with pytest.raises(DiskFullError):
        two.complete()
    assert log.last_seqno == log.visible_seqno == 1
    three = log.allocate([make_fragment("three", b"3" * 90)])
    assert three.complete().seqno == 2
    assert [one.header.event_id for one in read_all(log.cursor())] == ["", "kept", "three"]
    log.close()


# --- a crash ---------------------------------------------------------------------------------------------------------


def test_a_crash_leaves_no_hole() -> None:
    """What lies behind the first unfinished record was never visible nor acknowledged, and recovery drops it."""
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment("kept"))
    log.commit()
    unwritten = log.allocate(large("never written"))
    for number in range(5):
        log.allocate([make_fragment(f"behind{number}", b"b" * 100)]).complete(sync=False)
    assert unwritten.gtid.seqno == log.visible_seqno + 1
    disk.kill()
    for seed in range(20):
        with Log.open(PATH, source_id="db1", disk=disk.after_crash(random.Random(seed))) as again:
            assert [one.header.event_id for one in read_all(again.cursor())] == ["", "kept", "kept"], f"seed {seed}"
            assert again.visible_seqno == 2


@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_index_stored_while_one_is_unfinished_is_continued_after_a_crash(completed: bool, seed: int) -> None:
    """VLSNConsistencyTest, testVLSNConsistency; S5: the index is stored around one that completes late, or never."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    held = log.allocate([make_fragment("held", b"h" * 90)])
    for number in range(5):
        log.allocate([make_fragment(f"behind{number}", b"b" * 100)]).complete(sync=False)
    log.flush_index()
    if completed:
        held.complete()
    log.flush_index()
    kept = 11 if completed else 5
    assert log.visible_seqno == kept
    with Log.open(PATH, source_id="db1", disk=disk.after_crash(random.Random(seed))) as again:
        assert seqnos(again) == list(range(kept + 2)), "all that was durable, and the no-op of this opening"
        index = again.seqno_index
        assert index.range == IndexRange(Seqno(0), again.last_seqno, again.last_seqno, again.last_seqno)
        for seqno in range(kept + 2):
            with again.cursor() as cursor:
                cursor.seek(Seqno(seqno))
                header = cursor.next_header()
                assert header is not None and header.seqno == seqno


def test_options_bound_the_buffer() -> None:
    with open_log(SimDisk(), buffer_bytes=500) as log:
        held = log.allocate([make_fragment("held", b"h" * 90)])
        for number in range(20):
            log.append(make_fragment(f"n{number}", bytes(100)))
        assert len(log._pending) < 700 and log.visible_seqno == 0
        held.complete()
        assert LogOptions(buffer_bytes=500).buffer_bytes == 500
        log.commit()
        assert log.visible_seqno == 21
