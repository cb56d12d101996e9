"""The message store for asyncio: item 10, "the same thinly for asyncio"."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tranlog.errors import LogClosedError, UnknownQueueError
from tranlog.queues.aio import AsyncStore
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)
PATIENCE_S = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def opened(path: Path) -> MessageStore:
    store = MessageStore.open(path / "mail", options=SMALL)
    store.declare("a")
    return store


def test_messages_are_published_taken_and_answered(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(opened(tmp_path)) as store:
            message = await store.publish(b"one", queues=["a"], header=b"h")
            delivery = await store.get("a")
            assert delivery is not None
            assert (delivery.id, delivery.header, delivery.content) == (message, b"h", b"one")
            await store.requeue(delivery)
            again = await store.get("a")
            assert again is not None and again.attempts == 1
            await store.ack(again, wait=True)
            assert await store.get("a", timeout_s=0.01) is None
            assert await store.publish_once("till", 1, b"two", queues=["a"]) is not None
            assert await store.publish_once("till", 1, b"two", queues=["a"]) is None
            other = await store.get("a")
            assert other is not None
            await store.reject(other)
            await store.sync()
            assert store.store.queues() == {"a": (0, 0)}
            with pytest.raises(UnknownQueueError):
                await store.get("nothing")

    run(work())


def test_more_tasks_than_threads_wait_and_each_is_woken(tmp_path: Path) -> None:
    """None holds a thread while it waits: the publishes go on."""

    async def work() -> None:
        async with AsyncStore(opened(tmp_path)) as store:
            waiting = [asyncio.create_task(store.get("a", timeout_s=None)) for _ in range(60)]
            await asyncio.sleep(0)
            for number in range(60):
                await store.publish(b"%d" % number, queues=["a"])
            found = await asyncio.gather(*waiting)
            assert sorted(int(one.content) for one in found if one is not None) == list(range(60))
            await store.publish(b"last", queues=["a"])
            async for delivery in store.consume("a"):
                assert delivery.content == b"last"
                break

    run(work())


def test_who_waits_when_it_is_closed_hears_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncStore(opened(tmp_path))
        waiting = asyncio.create_task(store.get("a", timeout_s=None))
        await asyncio.sleep(0.05)
        await store.close()
        with pytest.raises(LogClosedError):
            await waiting
        await store.close()

    run(work())


def test_what_a_cancelled_task_took_is_on_its_queue_again(tmp_path: Path) -> None:
    """Cancelled while the store is at it: the store's lock is held, so the task's thread cannot have ended."""

    async def work() -> None:
        store = opened(tmp_path)
        store.publish(b"one", queues=["a"])
        async with AsyncStore(store) as seen:
            while not store._core.row(store._catalogue.queues["a"].id).counts.requeued:
                with store._journal.lock:
                    taking = asyncio.create_task(seen.get("a"))
                    await asyncio.sleep(0.02)
                    taking.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await taking
                while store.queues() != {"a": (1, 0)}:
                    await asyncio.sleep(0.01)

    run(work())


@pytest.mark.parametrize("transient", [False, True])
def test_a_task_that_waits_on_a_queue_is_told_that_it_was_deleted(tmp_path: Path, transient: bool) -> None:
    """Also where the queue is empty, so that its end writes nothing for which a sync would wake anybody."""

    async def work() -> None:
        async with AsyncStore(opened(tmp_path)) as store:
            store.store.declare("b", transient=transient)
            waiting = asyncio.create_task(store.get("b", timeout_s=None))
            await asyncio.sleep(0.05)
            store.store.delete("b")
            with pytest.raises(UnknownQueueError):
                await waiting

    run(work())


def test_a_task_takes_what_a_branch_held_whose_time_is_over(tmp_path: Path) -> None:
    """Nobody calls the store meanwhile."""
    clock = ManualClock()

    async def work() -> None:
        made = MessageStore.open(tmp_path / "mail", options=SMALL, clock=clock)
        made.declare("a")
        made.publish(b"one", queues=["a"])
        session, delivery = made.session(), made.get("a")
        assert delivery is not None
        session.tpc_begin(b"xid")
        session.ack(delivery)
        async with AsyncStore(made) as store:
            waiting = asyncio.create_task(store.get("a", timeout_s=None))
            await asyncio.sleep(0.05)
            clock.advance(61)
            found = await waiting
            assert found is not None and found.content == b"one"

    run(work())


def test_who_is_cancelled_while_it_closes_leaves_no_store_open(tmp_path: Path) -> None:
    """Nor its lock: every thread is taken at that moment."""

    async def work() -> None:
        busy, loop = threading.Event(), asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        store = AsyncStore(opened(tmp_path))
        loop.run_in_executor(None, busy.wait)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        busy.set()
        await asyncio.to_thread(store.store.closed_by)  # after what was to run in the one thread
        why = store.store.closed_by()
        store.store.close()
        assert closing.cancelled() and why

    run(work())
