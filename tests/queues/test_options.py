"""The sizes of a store: the document's "Plugin Options"."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import ConfigError
from tranlog.queues.options import QueueStoreOptions, whole_container
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


@pytest.mark.parametrize(
    ("asked", "made"),
    [(1, 524_288), (524_288, 524_288), (524_289, 528_384), (1 << 20, 1 << 20), ((1 << 20) - 1, 1 << 20)],
)
def test_a_size_is_rounded_up_to_the_least_and_to_whole_sectors(asked: int, made: int) -> None:
    assert whole_container(asked) == made


def test_a_store_keeps_as_many_containers_as_it_was_made_with(tmp_path: Path) -> None:
    """Whoever opens it with other options, or none, does not remove them."""
    made = QueueStoreOptions(container_bytes=16_384, initial_containers=6)
    MessageStore.open(tmp_path / "s", options=made).close()
    for options in (None, QueueStoreOptions(initial_containers=2)):
        with MessageStore.open(tmp_path / "s", options=options) as store:
            store.declare("a")
            for _ in range(40):
                store.publish(b"x" * 1000, queues=["a"])
            store.purge("a")
            found = store.status()
        assert found.containers_in_use + found.containers_free == 6


@pytest.mark.parametrize("buffers", [1, 3])
def test_so_many_buffers_are_written_without_waiting_for_a_commit(buffers: int) -> None:
    """Document, "Plugin Options": max-write-buffers; no more than these waits, and nothing of it is synced."""
    disk = SimDisk()
    vfs = SimVfs(disk)
    made = QueueStoreOptions(write_buffers=buffers, ack_sync_s=None)
    store = MessageStore.open("/s", options=made, disk=disk, clock=ManualClock(), connect=vfs.connect)
    store.declare("a")
    store.sync()
    writes, syncs, buffer = disk.counts["pwrite"], store._journal.syncs.count, store._journal.buffer
    for _ in range(500):
        store.publish(b"x" * 1_000, queues=["a"], wait=False)
        assert buffer.end - buffer.written < buffers * 65_536
    written = disk.counts["pwrite"] - writes
    assert 500_000 // (buffers * 65_536 + 2_000) <= written <= 600_000 // (buffers * 65_536)
    assert store._journal.syncs.count == syncs
    store.close()
    vfs.unregister()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1"])
def test_a_time_for_acknowledgements_that_no_thread_could_wait_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="ack_sync_s"):
        QueueStoreOptions(ack_sync_s=seconds).check()
