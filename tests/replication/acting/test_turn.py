"""Turns: who looks at what has come, and that whoever brings it waits for nobody.

Proves `tranlog.replication.acting.turn`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from fix_live_group import LONG_S
from tranlog.replication.acting.turn import Outbox, Syncing, Turn


def in_another_thread(work: Callable[[], object]) -> None:
    """Return when another thread has done this, while this one stands still."""
    other = threading.Thread(target=work, daemon=True)
    other.start()
    other.join(LONG_S)
    assert not other.is_alive(), "it waits for this thread"


class Played:
    """A turn whose work takes all events, and notes in which thread."""

    def __init__(self) -> None:
        self.looked: list[tuple[object, int]] = []
        self.does: Callable[[object], bool] = lambda event: True
        loop = asyncio.get_running_loop()
        self.out = Outbox(loop)
        self.turn = Turn(loop, self.out, self._work)

    def _work(self) -> bool:
        done = True
        while done and self.turn.events:
            done = self.does(self.turn.events[0])
            if done:
                self.looked.append((self.turn.events.popleft(), threading.get_ident()))
        return done

    def wanted(self) -> bool:
        """Whether the node's own thread is to take its turn."""
        return self.turn._wake.is_set()


async def rounds() -> None:
    """Let the loop go round, past what it was told by other threads."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_who_brings_an_event_from_another_thread_never_takes_the_turn() -> None:
    """Else it would wait for what the turn waits for: the thread that syncs for its own sync."""

    async def play() -> None:
        played, here = Played(), threading.get_ident()
        in_another_thread(lambda: played.turn.post("synced"))
        assert played.looked == []
        played.turn.post("came")
        await rounds()
        assert played.looked == [("synced", here), ("came", here)] and not played.wanted()

    asyncio.run(play())


def test_the_loop_waits_for_no_turn() -> None:
    """Whoever has it sees to what came meanwhile, and other threads bring more."""

    async def play() -> None:
        played = Played()
        taken, over = threading.Event(), threading.Event()

        def node() -> None:
            with played.turn:
                taken.set()
                assert over.wait(LONG_S)

        thread = threading.Thread(target=node, daemon=True)
        thread.start()
        assert taken.wait(LONG_S)
        played.turn.post("came")
        await rounds()
        in_another_thread(lambda: played.turn.post("synced"))
        await rounds()
        assert played.looked == [] and not played.wanted()
        over.set()
        thread.join(LONG_S)
        assert played.wanted() and list(played.turn.events) == ["came", "synced"]

    asyncio.run(play())


def test_what_waits_for_the_disk_is_left_to_the_nodes_thread() -> None:
    """And what came behind it, so that all is looked at in order."""

    async def play() -> None:
        played, here = Played(), threading.get_ident()
        played.does = lambda event: event != "persist" or threading.get_ident() != here
        for event in ("came", "persist", "came behind"):
            played.turn.post(event)
        await rounds()
        assert played.looked == [("came", here)] and played.wanted()

        def node() -> None:
            with played.turn:
                assert played._work()

        in_another_thread(node)
        assert [event for event, _ in played.looked] == ["came", "persist", "came behind"]

    asyncio.run(play())


def test_a_turn_that_failed_is_the_last() -> None:
    async def play() -> None:
        played, failure = Played(), OSError("gone")

        def fails(event: object) -> bool:
            raise failure

        played.does = fails
        played.turn.post("came")
        await rounds()
        assert played.turn.failure is failure and played.wanted()
        played.does = lambda event: True
        played.turn.post("came later")
        await rounds()
        assert played.looked == []

    asyncio.run(play())


def test_what_goes_out_goes_in_order_whoever_said_it() -> None:
    async def play() -> None:
        played = Played()
        said: list[int] = []

        def say() -> None:
            for number in range(100):
                played.out.put(partial(said.append, number))
                played.out.hand_out()

        in_another_thread(say)
        assert said == []
        played.out.put(lambda: said.append(101))
        played.out.put_first(lambda: said.append(100))
        await rounds()
        played.turn.post("came")
        await rounds()
        assert said == list(range(100)), "what led to the others may not be done yet"
        played.out.hand_out()
        played.turn.post("came")
        await rounds()
        assert said == list(range(102))

    asyncio.run(play())


def test_what_comes_while_a_sync_runs_shares_the_next_one() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    failures: list[BaseException] = []

    def sync() -> None:
        begun.release()
        assert go_on.acquire(timeout=LONG_S)

    syncing = Syncing(sync, failures.append)
    syncing.start()
    syncing.begin()  # there is nothing
    for ends in range(3):
        for _ in range(5):
            syncing.grew()
            syncing.begin()
        if not ends:
            assert begun.acquire(timeout=LONG_S)
        go_on.release()
        syncing.grew()
        syncing.begin()
        assert not begun.acquire(blocking=False), "its end was not looked at yet"
        syncing.over()
        syncing.begin()
        assert begun.acquire(timeout=LONG_S)
    go_on.release()
    syncing.over()
    syncing.begin()
    syncing.stop()
    assert failures == [] and not begun.acquire(blocking=False)
