"""Many threads on one log: one sync serves all who wait, and everybody is told the truth about their own."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable

import pytest

from fix_log import PATH, contents, fill, make_fragment, open_log, read_all, run_threads, segment_names, sync_held
from tranlog import group_commit
from tranlog.errors import DiskFailedError, DiskFullError, LogClosedError, LogError, LogLockedError, SegmentGoneError
from tranlog.log.files.positions import POSITIONS_NAME
from tranlog.log.writing import steps
from tranlog.log.writing.log import Log
from tranlog.testing.disk import SimDisk, SimFile


def until_waiting(log: Log, count: int) -> None:
    """Return when so many threads wait for a sync or a transaction to end."""
    deadline = time.monotonic() + 60
    while len(log._steps.changed._waiters) + len(log._steps.commits) < count:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0)


class Gate:
    """Holds every sync of a segment until it is opened."""

    def __init__(self, disk: SimDisk) -> None:
        self.reached = threading.Semaphore(0)
        self._open = threading.Semaphore(0)
        disk.before_sync = self._wait

    def _wait(self, path: str) -> None:
        if "thl.data" in path:
            self.reached.release()
            assert self._open.acquire(timeout=60)

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._open.release()

    def await_reached(self) -> None:
        assert self.reached.acquire(timeout=60)


def test_one_sync_serves_everybody_who_came_before_it_began() -> None:
    """performance.md, "One lock, leader/follower group commit": syncs are counted."""
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    before = disk.counts["sync"]
    appended = threading.Barrier(33, timeout=60)
    syncing = threading.Event()

    def commit(name: str) -> Callable[[], None]:
        def body() -> None:
            assert syncing.wait(60)
            seqno = log.append(make_fragment(name)).seqno
            appended.wait()
            assert log.commit() >= seqno
            assert log.durable_seqno >= seqno

        return body

    def conduct() -> None:
        log.append(make_fragment("leader"))
        leader = threading.Thread(target=log.commit)
        leader.start()
        gate.await_reached()  # the first sync runs now, and covers the leader's alone
        syncing.set()
        appended.wait()
        until_waiting(log, 32)
        gate.let(1)
        leader.join(60)
        gate.let(1)

    run_threads(conduct, *(commit(f"t{n}") for n in range(32)))
    assert disk.counts["sync"] == before + 2
    disk.before_sync = None
    assert len(contents(log)) == 33
    log.close()


def test_threads_lose_and_repeat_nothing() -> None:
    disk = SimDisk()
    per_thread = 60
    with Log.open(PATH, source_id="db1", disk=disk) as log:
        given: dict[str, int] = {}

        def write(name: int) -> Callable[[], None]:
            def body() -> None:
                for number in range(per_thread):
                    event_id = f"{name}/{number}"
                    if number % 7 == 3:
                        for part in range(3):
                            log.append(make_fragment(event_id, f"{part}".encode(), last=False))
                    elif number % 7 == 5:
                        log.append(make_fragment("never", last=False))
                        log.abandon_open()
                    given[event_id] = log.append(make_fragment(event_id, event_id.encode())).seqno
                    if number % 3 == 0:
                        covered = log.commit(sync=number % 2 == 0)
                        assert covered >= given[event_id]
                log.commit()

            return body

        run_threads(*(write(name) for name in range(6)))
        found = {one.header.event_id: one for one in read_all(log.cursor())[1:]}
        assert {event_id: one.header.seqno for event_id, one in found.items()} == given
        assert len(found) == 6 * per_thread
        for event_id, one in found.items():
            number = int(event_id.partition("/")[2])
            wanted = [b"0", b"1", b"2"] if number % 7 == 3 else []
            assert list(one.payloads()) == [*wanted, event_id.encode()], "fragments of two threads were mixed"
            assert log.durable_seqno >= one.header.seqno


def test_threads_and_rotation() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_500, buffer_bytes=400) as log:

        def write(name: int) -> Callable[[], None]:
            def body() -> None:
                for number in range(50):
                    log.append(make_fragment(f"{name}/{number}"))
                    if number % 4 == 0:
                        log.commit(sync=number % 8 == 0)
                log.commit()

            return body

        run_threads(*(write(name) for name in range(5)))
        assert log.visible_seqno == 250
        assert len(segment_names(disk)) > 10
        for name in range(5):
            mine = [one[1] for one in contents(log) if one[1].startswith(f"{name}/")]
            assert mine == [f"{name}/{number}" for number in range(50)]
    with open_log(disk) as log:
        assert len(contents(log)) == 250


def test_appending_goes_on_while_a_sync_runs() -> None:
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    log.append(make_fragment("first"))
    leader = threading.Thread(target=log.commit)
    leader.start()
    gate.await_reached()
    log.append(make_fragment("second"))
    assert log.commit(sync=False) == 2
    assert (log.visible_seqno, log.durable_seqno) == (2, 0)
    gate.let(1)
    leader.join(60)
    assert log.durable_seqno == 1, "the second came after the sync had begun"
    gate.let(10)
    assert log.commit() == 2
    assert log.durable_seqno == 2
    log.close()


def test_an_abandoned_transaction_under_a_running_sync_proves_nothing() -> None:
    """The sync covered bytes that were cut meanwhile: what is written in their place is not durable yet."""
    disk = SimDisk()
    log = open_log(disk, buffer_bytes=1)
    log.append(make_fragment("first"))
    end = len(disk.content("/log/thl.data.0000000001"))
    log.append(make_fragment("open", bytes(1_000), last=False))
    with sync_held(log, disk):
        log.abandon_open()
        log.append(make_fragment("second", bytes(2_000)))
    assert log._end.journal.durable_end == end
    assert log.durable_seqno == 1
    log.commit()
    log.close()
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)] == ["first", "second"]


def test_a_full_disk_tells_every_thread_whose_transaction_it_took() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 1)
        appended = threading.Barrier(5, timeout=60)
        failed = threading.Event()
        told: dict[int, type[BaseException] | None] = {}

        def waiting(name: int) -> Callable[[], None]:
            def body() -> None:
                log.append(make_fragment(f"t{name}"))
                appended.wait()
                assert failed.wait(60)
                told[name] = None
                try:
                    if name % 2:
                        log.commit()
                    else:
                        log.append(make_fragment(f"again{name}"))
                except LogError as exc:
                    told[name] = type(exc)
                assert log.append(make_fragment(f"later{name}")).seqno > 1

            return body

        def filling() -> None:
            appended.wait()
            disk.room = 10
            with pytest.raises(DiskFullError):
                log.commit()
            disk.room = None
            failed.set()

        run_threads(filling, *(waiting(name) for name in range(4)))
        assert told == dict.fromkeys(range(4), DiskFullError)
        log.commit()
        assert sorted(one[1] for one in contents(log)) == ["e0", *(f"later{n}" for n in range(4))]


def test_who_waits_for_what_a_full_disk_took_from_others_is_let_go() -> None:
    """A thread that commits what others appended has lost nothing: it neither fails nor syncs for ever."""
    disk = SimDisk()
    with open_log(disk) as log:
        gate = Gate(disk)
        log.append(make_fragment("first"))
        leader = threading.Thread(target=log.commit, daemon=True)
        leader.start()
        gate.await_reached()
        log.append(make_fragment("refused"))
        covered: list[int] = []
        waiting = threading.Thread(target=lambda: covered.append(log.commit()), daemon=True)
        waiting.start()
        until_waiting(log, 1)
        disk.room = 10
        before = disk.counts["sync"]
        disk.before_sync = None  # the leader's sync is held at the gate; cutting back takes one of its own
        with pytest.raises(DiskFullError):
            log.commit(sync=False)
        gate.let(1)
        leader.join(60)
        waiting.join(60)
        assert covered == [1]
        assert disk.counts["sync"] == before + 2
        disk.room = None


def test_a_failed_sync_is_told_to_everybody_who_waits() -> None:
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    told: list[type[BaseException]] = []
    log.append(make_fragment("leader"))

    def commit() -> None:
        try:
            log.commit()
        except LogError as exc:
            told.append(type(exc))

    def follow() -> None:
        log.append(make_fragment("follower"))
        commit()

    leader = threading.Thread(target=commit)
    leader.start()
    gate.await_reached()
    followers = [threading.Thread(target=follow) for _ in range(4)]
    for follower in followers:
        follower.start()
    until_waiting(log, 4)
    disk.fail_at[disk.calls + 1] = errno.EIO
    gate.let(1)
    for thread in (leader, *followers):
        thread.join(60)
    assert sorted(one.__name__ for one in told) == ["DiskFailedError"] + ["LogClosedError"] * 4
    assert DiskFailedError in told and LogClosedError in told
    assert log.durable_seqno == 0
    gate.let(10)
    log.close()


@pytest.mark.parametrize("harm", ["sync", "lock", "segment", "interrupt"])
def test_nobody_waits_who_could_know(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a sync wakes those who wait for it, those who are to sync next too: none goes by its patience."""
    monkeypatch.setattr(group_commit, "LOOK_AGAIN_S", 1_000)
    monkeypatch.setattr(steps, "LOOK_AGAIN_S", 1_000)
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    told: list[type[BaseException] | None] = []

    class Interrupted(BaseException):
        pass

    def commit() -> None:
        try:
            log.append(make_fragment())
            log.commit()
            told.append(None)
        except (LogError, Interrupted) as exc:
            told.append(type(exc))

    threads = [threading.Thread(target=commit, daemon=True) for _ in range(5)]
    threads[0].start()
    gate.await_reached()
    for thread in threads[1:]:
        thread.start()
    until_waiting(log, 4)
    if harm == "sync":
        disk.fail_at[disk.calls + 1] = errno.EIO
    elif harm == "interrupt":
        write = SimFile.pwrite

        def broken_off(file: SimFile, raw: bytes, offset: int) -> None:
            if file._path.endswith(POSITIONS_NAME):
                raise Interrupted
            write(file, raw, offset)

        monkeypatch.setattr(SimFile, "pwrite", broken_off)
    else:
        disk.unlink(f"{PATH}/{'disklog.lck' if harm == 'lock' else segment_names(disk)[-1]}")
    gate.let(10)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    found = {"sync": DiskFailedError, "lock": LogLockedError, "segment": SegmentGoneError, "interrupt": Interrupted}[
        harm
    ]
    # A file that is removed while a sync runs might as well be removed after it: the next one finds that out.
    others = [None, *[LogClosedError] * 3] if harm == "segment" else [LogClosedError] * 4
    assert sorted(str(one) for one in told) == sorted(str(one) for one in [found, *others])
    log.close()


def test_closing_waits_for_a_running_sync_and_ends_those_who_wait() -> None:
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    log.append(make_fragment("open", last=False))
    outcome: list[type[BaseException] | None] = []

    def append() -> None:
        try:
            log.append(make_fragment("waits for the open one"))
            outcome.append(None)
        except LogError as exc:
            outcome.append(type(exc))

    waiting = threading.Thread(target=append)
    waiting.start()
    until_waiting(log, 1)
    gate.let(10)
    log.close()
    waiting.join(60)
    assert outcome == [LogClosedError]
    disk.before_sync = None
    with open_log(disk) as log:
        assert contents(log) == []


def test_a_lock_that_is_lost_under_a_running_sync_is_told_and_nothing_is_published() -> None:
    disk = SimDisk()
    log = open_log(disk)
    gate = Gate(disk)
    log.append(make_fragment("first"))
    told: list[LogError] = []

    def commit() -> None:
        try:
            log.commit()
        except LogError as exc:
            told.append(exc)

    leader = threading.Thread(target=commit)
    leader.start()
    gate.await_reached()
    disk.unlink(f"{PATH}/disklog.lck")
    log.append(make_fragment("second"))
    with pytest.raises(LogLockedError):
        log.commit(sync=False)
    before = disk.content(f"{PATH}/positions")
    gate.let(10)
    leader.join(60)
    assert [type(one) for one in told] == [LogClosedError]
    log.close()
    assert disk.content(f"{PATH}/positions") == before
