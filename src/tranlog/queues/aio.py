"""The message store for asyncio: calls that do not block the event loop.

Owns the one thread that waits for all tasks, and the handling of a message whose task was cancelled. Each call runs in
a thread and calls the store there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tranlog.clock import check_seconds
from tranlog.errors import LogClosedError, QueueError
from tranlog.ids import Lsn
from tranlog.queues.core import Delivery
from tranlog.queues.store import MessageStore


class AsyncStore:
    """An open store, seen from an event loop, in which it is made. Tasks: any number.

    Call `store` itself for what does not wait: `queues`, `status`, `session`, `transaction` up to its commit.
    Cancelling a task does not undo its call, except `get`.
    """

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._watch, name=f"tranlog waiter of {store.path}", daemon=True)
        self._thread.start()

    async def publish(self, content: bytes | Iterable[bytes | memoryview], **options: Any) -> Lsn | None:
        """Put a message on queues, as `MessageStore.publish`."""
        return await asyncio.to_thread(self.store.publish, content, **options)

    async def publish_many(self, contents: Iterable[bytes], **options: Any) -> list[Lsn]:
        """Publish messages that go the same way, as `MessageStore.publish_many`."""
        return await asyncio.to_thread(self.store.publish_many, contents, **options)

    async def publish_once(
        self, name: str, number: int, content: bytes | Iterable[bytes | memoryview], **options: Any
    ) -> Lsn | None:
        """Publish number `number` of a producer, as `MessageStore.publish_once`."""
        return await asyncio.to_thread(self.store.publish_once, name, number, content, **options)

    async def get(self, queue: str, *, timeout_s: float | None = 0.0) -> Delivery | None:
        """Take the next message of a queue, as `MessageStore.get`. A cancelled task's message returns to the queue."""
        found = await self.get_many(queue, 1, timeout_s=timeout_s)
        return found[0] if found else None

    async def get_many(self, queue: str, count: int, *, timeout_s: float | None = 0.0) -> list[Delivery]:
        """Take the next messages of a queue, as `MessageStore.get_many`; cancelled as `get`."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        until = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            changed = self._changed
            taking = asyncio.ensure_future(asyncio.to_thread(self.store.get_many, queue, count))
            try:
                found = await asyncio.shield(taking)
            except asyncio.CancelledError:
                taking.add_done_callback(self._give_back)
                raise
            left = None if until is None else until - self._loop.time()
            if found or (left is not None and left <= 0):
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    async def consume(self, queue: str) -> AsyncIterator[Delivery]:
        """Yield the messages of a queue, one after the other, without end; wait for the next one. Raises as `get`."""
        while True:
            delivery = await self.get(queue, timeout_s=None)
            assert delivery is not None
            yield delivery

    async def ack(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Acknowledge these messages, as `MessageStore.ack`."""
        await asyncio.to_thread(self.store.ack, *deliveries, wait=wait)

    async def reject(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Reject these messages: they leave their queues. As `MessageStore.reject`."""
        await asyncio.to_thread(self.store.reject, *deliveries, wait=wait)

    async def requeue(self, *deliveries: Delivery) -> None:
        """Put these messages back where they were, as `MessageStore.requeue`."""
        await asyncio.to_thread(self.store.requeue, *deliveries)

    async def sync(self) -> None:
        """Return when everything that any call has done so far is durable."""
        await asyncio.to_thread(self.store.sync)

    def _give_back(self, taking: asyncio.Future[list[Delivery]]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            with contextlib.suppress(LogClosedError, QueueError):  # then its next opening has it on the queue
                self.store.requeue(*taking.result())

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed over its tasks
            self.store.watch(lambda: self._loop.call_soon_threadsafe(self._wake))
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()  # who looks from now on waits for what comes then

    async def close(self) -> None:
        """Close the store, also if cancelled; tasks that wait get LogClosedError. Closing twice is harmless."""
        await asyncio.shield(self._loop.run_in_executor(None, self.store.close))
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
