"""The end of a store's log where the power goes: while it is closed, and while it is opened again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SECTOR_BYTES, PowerCut, SimDisk

OPTIONS = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


@contextlib.contextmanager
def opened(disk: SimDisk) -> Iterator[MessageStore]:
    """Open a store on a simulated disk; what it leaves open is let go, as the end of a process does."""
    vfs, store = SimVfs(disk), None
    try:
        store = MessageStore.open("/s", options=OPTIONS, disk=disk, clock=ManualClock(), connect=vfs.connect)
        yield store
    finally:
        if store is not None:
            store._catalogue.close()
        vfs.unregister()


def counts_after(disk: SimDisk, seeds: range) -> set[int]:
    """Return how many messages wait on queue a, as the disk may be found after its power went."""
    found = set()
    for seed in seeds:
        with opened(disk.after_crash(random.Random(seed))) as store:
            found.add(store.queues()["a"][0])
    return found


def test_what_is_moved_as_a_store_is_closed_is_not_taken_for_durable() -> None:
    """The last sync empties the oldest container: what that writes is durable with the next one."""
    disk = SimDisk()
    with opened(disk) as store:
        store.declare("a")
        for _ in range(6):
            store.publish(b"old" * 200, queues=["a"])
        store.declare("b")
        for _ in range(34):
            store.publish(b"x" * 900, queues=["b"], wait=False)
            store.purge("b")
        for _ in range(9):
            store.publish(b"x" * 900, queues=["b"], wait=False)
        unmoved = {message.stands for message in store._core.row(store._catalogue.queue("a").id)}
        store._journal.commit()
        moved = {message.stands for message in store._core.row(store._catalogue.queue("a").id)}
        assert unmoved != moved and store._journal.durable < store._journal.place
        disk.before_sync = lambda path: setattr(disk, "cut_at", disk.calls + 1)
        with pytest.raises(PowerCut):
            store._journal.end_cleanly()
    assert counts_after(disk, range(40)) == {6}


def test_a_sync_record_that_was_not_synced_is_not_taken_for_durable() -> None:
    """A process is killed between the write and the sync that close its store, and the power goes as it is opened."""
    disk = SimDisk()
    with opened(disk) as store:
        store.declare("a")
        store.publish(b"", queues=["a"])
        size = (SECTOR_BYTES - 200 - store._journal.buffer.end) % SECTOR_BYTES
        store.publish(b"x" * size, queues=["a"])
        assert SECTOR_BYTES - 50 < store._journal.buffer.end % SECTOR_BYTES < SECTOR_BYTES - 10
        disk.cut_at = disk.calls + 2
        with pytest.raises(PowerCut):
            store._journal.end_cleanly()
    disk.kill()
    disk.before_sync = lambda path: setattr(disk, "cut_at", disk.calls + 1)
    with pytest.raises(PowerCut), opened(disk):
        pass
    assert counts_after(disk, range(200)) == {2}
