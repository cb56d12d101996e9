"""Who waits for another thread's sync: whom it has served, whom it wakes, and by whom."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from tranlog.group_commit import FEW, GroupCommit, Sync, Waiter


class Store:
    """A log of bytes: a place is an end, and what was written is durable when its sync has run."""

    def __init__(self) -> None:
        self.written = self.durable = self.syncs = 0
        self.failing = False
        self.lock = threading.Lock()
        self.commits = GroupCommit(self, self.lock, nullcontext())

    def write(self, size: int) -> int:
        with self.lock:
            self.written += size
            return self.written

    def commit(self, target: int) -> int:
        with self.lock:
            turn = self.commits.take_turn(target)
        return self.commits.wait(turn, target)

    def reach(self, target: int) -> int:
        return target

    def may_sync(self, target: int) -> bool:
        return True

    def begin_sync(self) -> Sync:
        return Sync(self._run, self.written)

    def _run(self) -> None:
        if self.failing:
            raise OSError
        self.syncs += 1

    def synced(self, place: int) -> None:
        self.durable = place
        assert self.commits.over()
        self.commits.wake(place)

    def sync_failed(self, failure: OSError) -> Exception:
        return RuntimeError("the disk")

    def look_again(self) -> None:
        self.commits.drop_broken_off()


def waited_for() -> GroupCommit:
    return Store().commits


def entered(commits: GroupCommit, *targets: int) -> list[Waiter]:
    return [commits.enter(target) for target in targets]


def woken(waiter: Waiter) -> bool:
    return waiter.wait(0)


def test_a_sync_wakes_whom_it_has_served_and_one_more() -> None:
    commits = waited_for()
    one, ahead, two, late = entered(commits, 5, 7, 6, 8)
    commits.wake(6)
    assert [one.served, ahead.served, two.served, late.served] == [True, False, True, False]
    assert [woken(waiter) for waiter in (one, two, ahead, late)] == [True, True, True, False]
    commits.wake(8)
    assert woken(late) and late.served and len(commits) == 0


def test_the_next_sync_is_led_by_the_one_whose_own_comes_first() -> None:
    """The others may wait for an allocation before theirs, and it does not."""
    commits = waited_for()
    late, early = entered(commits, 9, 8)
    commits.wake(7)
    assert woken(early) and not woken(late) and len(commits) == 1


def test_each_is_woken_by_the_one_before_it() -> None:
    commits = waited_for()
    one, two, three = entered(commits, 1, 2, 3)
    commits.wake(3)
    assert not woken(two) and not woken(three)
    assert woken(one)
    assert not woken(three)
    assert woken(two) and woken(three)


def test_everybody_is_woken_and_nobody_served() -> None:
    """What a log that closes says: each sees for itself what became of its own."""
    commits = waited_for()
    row = entered(commits, 1, 2, 3)
    commits.wake(0, everybody=True)
    assert [woken(waiter) for waiter in row] == [True] * 3
    assert not any(waiter.served for waiter in row) and len(commits) == 0


def test_one_that_gave_up_holds_up_nobody() -> None:
    commits = waited_for()
    one, two, three = entered(commits, 1, 2, 3)
    assert not woken(two)
    commits.wake(3)  # between the end of its patience and its leave
    assert woken(one)
    commits._leave(two)
    assert woken(three)
    late, last = entered(commits, 4, 5)
    commits._leave(late)
    commits.wake(5)
    assert woken(last) and not woken(late)


def test_threads_wake_one_another() -> None:
    commits = waited_for()
    row = entered(commits, *range(20))
    told: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: told.append(one.wait(60))) for one in row]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    commits.wake(20)
    for thread in threads:
        thread.join(60)
    assert told == [True] * 20


def test_no_sync_begins_while_many_wake_one_another() -> None:
    """Beside it they would wait for the lock; it begins with what they all have written by then."""
    store = Store()
    commits = store.commits
    row = entered(commits, *range(1, 7))
    store.written = 7
    store.durable = 6
    commits.wake(6)
    turn = commits.take_turn(7)
    assert isinstance(turn, Waiter)
    for target, waiter in enumerate(row, 1):
        assert not turn.wait(0)
        assert commits.wait(waiter, target) == target
    assert turn.wait(0) and not turn.served
    assert isinstance(commits.take_turn(7), Sync)


def test_the_last_of_many_leads_the_next_sync() -> None:
    store = Store()
    row = entered(store.commits, *range(1, 7))
    store.written = 8
    store.durable = 5
    store.commits.wake(5)
    late = store.commits.take_turn(8)
    assert isinstance(late, Waiter)
    for target, waiter in enumerate(row, 1):
        assert store.commits.wait(waiter, target) >= target
    assert store.syncs == 1 and late.wait(0) and late.served


def test_few_do_not_hold_up_the_next_sync() -> None:
    store = Store()
    entered(store.commits, *range(1, FEW + 1))
    store.written = store.durable = FEW
    store.commits.wake(FEW)
    assert store.commit(store.write(1)) == FEW + 1


def test_one_that_never_wakes_holds_up_the_next_sync_for_a_moment_only() -> None:
    """Its thread was ended by a signal: who waits for it looks again."""
    store = Store()
    entered(store.commits, *range(1, 7))
    store.written = store.durable = 6
    store.commits.wake(6)
    assert store.commit(store.write(1)) == 7


def test_it_commits_places_of_any_log() -> None:
    """It knows places and syncs: one sync for all that was written before it, none for what is durable."""
    store = Store()
    first, second = store.write(10), store.write(20)
    assert (store.commit(first), store.durable, store.syncs) == (10, 30, 1)
    assert (store.commit(second), store.syncs) == (30, 1)
    targets = [store.write(5) for _ in range(8)]
    threads = [threading.Thread(target=store.commit, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.durable == targets[-1] and len(store.commits) == 0
    store.failing = True
    with pytest.raises(RuntimeError, match="the disk"):
        store.commit(store.write(1))
