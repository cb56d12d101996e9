"""What the ancestor's message store got wrong, each as a program meets it. The numbers are those of its list, A7.

Those that other tests hold already are named in docs/conformance.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import CatalogueError, LogLockedError
from tranlog.queues.core import Delivery
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

OPTIONS = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


class Machine:
    """A disk and the store on it, with the queues a and b."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.vfs = SimVfs(self.disk)
        self.store = self.open()
        for name in "ab":
            self.store.declare(name)

    def open(self) -> MessageStore:
        self.store = MessageStore.open(
            "/s", options=OPTIONS, disk=self.disk, clock=ManualClock(), connect=self.vfs.connect
        )
        return self.store

    def kill(self) -> MessageStore:
        self.store._catalogue.close()
        self.disk.kill()
        return self.open()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.store._catalogue.close()
    made.vfs.unregister()


def take(store: MessageStore, queue: str) -> Delivery:
    delivery = store.get(queue)
    assert delivery is not None
    return delivery


def flow(store: MessageStore, count: int) -> None:
    """Have so many messages pass, which fill containers that nobody needs then."""
    for _ in range(count):
        store.publish(b"x" * 900, queues=["b"], wait=False)
        store.ack(take(store, "b"))
    store.sync()


@pytest.mark.parametrize("queue", ["a", "b"])
def test_3_a_dequeue_from_another_queue_than_the_first_is_replayed(machine: Machine, queue: str) -> None:
    """The ancestor's recovery went round for ever where a message was dequeued from its second queue."""
    store = machine.store
    store.publish(b"x", queues=["a", "b"])
    store.ack(take(store, queue), wait=True)
    store = machine.kill()
    assert store.queues() == {"a": (int(queue == "b"), 0), "b": (int(queue == "a"), 0)}


@pytest.mark.parametrize("size", [10, 9_000])
def test_4_5_what_a_transaction_put_outlives_the_transactions_record(machine: Machine, size: int) -> None:
    """The ancestor's recovery followed the id of a transaction that was deleted, and whose records were gone."""
    store = machine.store
    began = store._journal.buffer.number
    with store.transaction() as transaction:
        for number in range(3):  # as one group, over more than one container
            transaction.publish(b"%d" % number * size, queues=["a"])
        transaction.publish(b"w" * 8_000, queues=["b"])
    kept = machine.kill()
    kept.ack(take(kept, "b"), wait=True)
    for _ in range(3):
        flow(kept, 40)
        kept = machine.kill()
    assert kept._files.in_use[0] > began, "the transaction's start is still there: this proves nothing"
    assert [take(kept, "a").content for _ in range(3)] == [b"%d" % number * size for number in range(3)]
    assert kept.tpc_recover() == []


def test_8_a_sync_gives_back_no_container_that_a_later_record_set_free(machine: Machine) -> None:
    """The ancestor's base raced with appends. An ack that came while another's sync ran is not durable by that sync."""
    store = machine.store
    store.publish(b"old", queues=["a"])
    flow_away = [b"w" * 2_700] * 8
    for content in flow_away:
        store.publish(content, queues=["b"])
    store.ack(*[take(store, "b") for _ in flow_away], wait=True)
    first = store._files.in_use[0]
    old = take(store, "a")
    during: list[bool] = []

    def ack_old(path: str) -> None:
        if path.rpartition("/")[2].startswith("queue.") and not during:
            during.append(True)
            store.ack(old)

    machine.disk.before_sync = ack_old
    store.publish(b"new", queues=["b"])
    machine.disk.before_sync = None
    assert during and store._files.in_use[0] == first, "its Dequeue is not on the disk"
    store.sync()
    assert store._files.in_use[0] > first


def test_8_a_message_that_is_being_written_holds_its_container(machine: Machine) -> None:
    """Its first section is in the log long before it is on a queue."""
    store = machine.store
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        yield b"1" * 6_000
        seen.append(store._journal.buffer.number)
        flow(store, 60)
        seen.extend((store._files.in_use[0], store._journal.buffer.number))
        yield b"2" * 6_000

    store.publish(parts(), length=12_000, queues=["a"])
    begun, lowest, newest = seen
    assert lowest <= begun < newest - 3
    assert take(machine.kill(), "a").content == b"1" * 6_000 + b"2" * 6_000


def test_10_a_copy_taken_before_the_fan_out_returned_leaves_the_other(machine: Machine) -> None:
    """The ancestor's second enqueue failed where a consumer of the first queue was fast."""
    store, taken = machine.store, []

    def consume() -> None:
        delivery = store.get("a", timeout_s=None)
        assert delivery is not None
        store.ack(delivery)
        taken.append(delivery.content)

    thread = threading.Thread(target=consume)
    thread.start()
    store.publish(b"x" * 20_000, queues=["a", "b"])
    thread.join(10)
    assert taken == [b"x" * 20_000]
    assert take(machine.kill(), "b").content == b"x" * 20_000


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_12_what_a_branch_takes_is_neither_delivered_nor_counted(machine: Machine, restarts: int) -> None:
    """The ancestor put it back on its queue after a restart, and counted it twice when the branch was rolled back."""
    store = machine.store
    store.publish(b"x", queues=["a"])
    session = store.session()
    session.tpc_begin(b"xid")
    session.ack(take(store, "a"))
    session.tpc_prepare()
    for _ in range(restarts):
        store = machine.kill()
    assert store.get("a") is None
    assert (store.queues()["a"], store.purge("a")) == ((0, 0), 0)
    store.tpc_rollback(b"xid")
    assert store.queues()["a"] == (1, 0)
    store.ack(take(store, "a"))
    assert store.queues()["a"] == (0, 0) and not store._core.state.messages


def test_14_a_store_that_cannot_be_opened_is_not_worked_on(tmp_path: Path) -> None:
    """The ancestor's broker wrote an error to its log file, and went on without a store."""
    with MessageStore.open(tmp_path / "s", options=OPTIONS) as store:
        with pytest.raises(LogLockedError):
            MessageStore.open(tmp_path / "s")
        store.declare("a")
        store.publish(b"x", queues=["a"])
    catalogue = tmp_path / "s" / "catalogue.db"
    raw = catalogue.read_bytes()
    catalogue.write_bytes(b"no database" * 1_000)
    with pytest.raises(CatalogueError, match="not a database"):
        MessageStore.open(tmp_path / "s")
    catalogue.write_bytes(raw)
    with MessageStore.open(tmp_path / "s") as store:
        assert take(store, "a").content == b"x"


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_15_messages_that_go_together_leave_no_orphan(machine: Machine, way: str) -> None:
    """The ancestor kept all that went in one step where one of them was still on another queue."""
    store = machine.store
    for number in range(9):
        store.publish(b"%d" % number, queues=["a", "b"] if number == 4 else ["a"])
    getattr(store, way)("a")
    assert len(store._core.state.messages) == 1
    store = machine.kill()
    assert (store.recovered.messages, store.recovered.deleted) == (1, 0)
    delivery = take(store, "b")
    assert delivery.content == b"4"
    store.ack(delivery)
    assert not store._core.state.messages
