"""Who waits for another thread's sync: whom it has served, whom it wakes, and by whom."""

from __future__ import annotations

import threading

from tranlog.ids import Seqno
from tranlog.log.writing.turns import Turns, Waiter


def entered(turns: Turns, *targets: int) -> list[Waiter]:
    return [turns.enter(Seqno(target)) for target in targets]


def woken(waiter: Waiter) -> bool:
    return waiter.wait(0)


def test_a_sync_wakes_whom_it_has_served_and_one_more() -> None:
    turns = Turns()
    one, ahead, two, late = entered(turns, 5, 7, 6, 8)
    turns.wake(Seqno(6))
    assert [one.served, ahead.served, two.served, late.served] == [True, False, True, False]
    assert [woken(waiter) for waiter in (one, two, ahead, late)] == [True, True, True, False]
    turns.wake(Seqno(8))
    assert woken(late) and late.served and len(turns) == 0


def test_the_next_sync_is_led_by_the_one_whose_own_comes_first() -> None:
    """The others may wait for an allocation before theirs, and it does not."""
    turns = Turns()
    late, early = entered(turns, 9, 8)
    turns.wake(Seqno(7))
    assert woken(early) and not woken(late) and len(turns) == 1


def test_each_is_woken_by_the_one_before_it() -> None:
    turns = Turns()
    one, two, three = entered(turns, 1, 2, 3)
    turns.wake(Seqno(3))
    assert not woken(two) and not woken(three)
    assert woken(one)
    assert not woken(three)
    assert woken(two) and woken(three)


def test_everybody_is_woken_and_nobody_served() -> None:
    """What a log that closes says: each sees for itself what became of its own."""
    turns = Turns()
    row = entered(turns, 1, 2, 3)
    turns.wake(Seqno(0), everybody=True)
    assert [woken(waiter) for waiter in row] == [True] * 3
    assert not any(waiter.served for waiter in row) and len(turns) == 0


def test_one_that_gave_up_holds_up_nobody() -> None:
    turns = Turns()
    one, two, three = entered(turns, 1, 2, 3)
    assert not woken(two)
    turns.wake(Seqno(3))  # between the end of its patience and its leave
    assert woken(one)
    turns.leave(two)
    assert woken(three)
    late, last = entered(turns, 4, 5)
    turns.leave(late)
    turns.wake(Seqno(5))
    assert woken(last) and not woken(late)


def test_threads_wake_one_another() -> None:
    turns = Turns()
    row = entered(turns, *range(20))
    told: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: told.append(one.wait(60))) for one in row]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    turns.wake(Seqno(20))
    for thread in threads:
        thread.join(60)
    assert told == [True] * 20
