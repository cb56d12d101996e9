"""Transient messages and queues: in memory alone, in the order of the others, and gone when the store is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import (
    DeclaredOtherwiseError,
    DiskFullError,
    NotHeldError,
    TransactionStateError,
    TransientRoomError,
    UnknownQueueError,
)
from tranlog.queues.backup import back_up
from tranlog.queues.core import Delivery
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.reader import StoreReader
from tranlog.queues.store import MessageStore
from tranlog.queues.transaction import StoreTransaction
from tranlog.queues.transient import WAITING_BYTES
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None, transient_bytes=100_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[MessageStore]:
    """With the queue a, and the transient one t."""
    with MessageStore.open(path, options=SMALL) as made:
        made.declare("a")
        made.declare("t", transient=True)
        yield made


def take(store: MessageStore, queue: str) -> Delivery:
    delivery = store.get(queue)
    assert delivery is not None
    return delivery


def drain(store: MessageStore, queue: str) -> list[bytes]:
    found = []
    while (delivery := store.get(queue)) is not None:
        found.append(delivery.content)
        store.ack(delivery)
    return found


def used(store: MessageStore) -> tuple[int, int]:
    """Return how many transient messages there are, and what they take."""
    status = store.status()
    assert status.transient_messages is not None and status.transient_bytes is not None
    return status.transient_messages, status.transient_bytes


def full(on: MessageStore | StoreTransaction, content: bytes) -> None:
    """Publish transient messages until one is refused."""
    with suppress(TransientRoomError):
        while True:
            on.publish(content, queues=["t"])


def test_nothing_of_them_is_written_and_they_are_gone_after_a_restart(path: Path, store: MessageStore) -> None:
    store.declare_exchange("x", "fanout")
    store.publish(b"kept", queues=["a"])
    place, counter, syncs = store._journal.place, store._catalogue.counter, store._journal.syncs.count
    for number in range(3):
        assert store.publish(b"%d" % number, queues=["a"], transient=True) == 0
        assert store.publish(b"%d" % number, queues=["t"]) == 0
    store.publish(b"large" * 3_000, queues=["a", "t"], transient=True, header=b"h")
    store.declare("other", transient=True)
    store.bind("x", queue="other")
    store.publish(b"bound", exchange="x")
    assert drain(store, "other") == [b"bound"]
    store.requeue(take(store, "t"))
    again = take(store, "t")
    assert (again.content, again.attempts, again.redelivered, again.id) == (b"0", 1, True, 0)
    store.ack(again, wait=True)
    store.unbind("x", queue="other")
    store.delete("other")
    assert (store._journal.place, store._catalogue.counter, store._journal.syncs.count) == (place, counter, syncs)
    assert used(store)[0] == 6
    store.close()
    with MessageStore.open(path) as reopened:
        assert reopened.queues() == {"a": (1, 0)}
        assert (reopened.recovered.messages, reopened.recovered.dropped) == (1, 0)


def test_they_stand_in_a_queue_where_they_were_published(store: MessageStore) -> None:
    wanted = [b"%d" % number for number in range(40)]
    for number, content in enumerate(wanted):
        store.publish(content, queues=["a"], transient=number % 3 > 0, wait=False)
    first, second = take(store, "a"), take(store, "a")
    third = take(store, "a")
    store.requeue(second)
    store.requeue(third, first)
    assert drain(store, "a") == wanted
    assert not store._core.state.messages and used(store) == (0, 0)


def test_a_message_on_both_kinds_of_queue_is_on_all_or_on_none(store: MessageStore, path: Path) -> None:
    """For the transient one it is a message of its own, which the log does not wait for."""
    for content in (b"small", b"large" * 3_000):
        store.publish(content, queues=["a", "t"], header=b"head")
        assert (take(store, "t").header, store.queues()["a"][0]) == (b"head", 1)
        assert drain(store, "a") == [content]
    assert not store._core.state.messages
    place = store._journal.place
    with pytest.raises(TransientRoomError, match="transient_bytes"):
        store.publish(iter([b"x" * 100_000]), length=100_000, queues=["a", "t"])
    with pytest.raises(UnknownQueueError):
        store.publish(b"x", queues=["a", "t", "nowhere"])
    with pytest.raises(ValueError, match="announced"):
        store.publish(iter([b"x" * 9_000]), length=9_001, queues=["t"])
    assert (store.queues(), store._journal.place) == ({"a": (0, 0), "t": (0, 2)}, place)
    assert used(store)[0] == 2


def test_a_queue_deleted_while_a_message_comes_has_none_of_it(store: MessageStore) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 4_000
        store.delete("t")
        yield b"x" * 4_000

    with pytest.raises(UnknownQueueError, match="'t'"):
        store.publish(parts(), length=8_000, queues=["a", "t"])
    store.declare("t")
    with pytest.raises(UnknownQueueError):
        store.publish(redeclared(store), length=8_000, queues=["a", "t"])
    assert store.queues() == {"a": (0, 0), "t": (0, 0)} and used(store) == (0, 0)
    assert not store._core.state.messages


def redeclared(store: MessageStore) -> Iterator[bytes]:
    """A message whose queue becomes a transient one meanwhile."""
    yield b"x" * 4_000
    store.delete("t")
    store.declare("t", transient=True)
    yield b"x" * 4_000


def test_memory_is_bounded_and_comes_back(store: MessageStore) -> None:
    size = 1_000
    full(store, b"x" * size)
    with pytest.raises(TransientRoomError, match=r"of 100000 are taken"):
        store.publish(b"x" * size, queues=["t"])
    count = 100_000 // (size + WAITING_BYTES)
    assert used(store) == (count, count * (size + WAITING_BYTES))
    store.publish(b"y" * 200_000, queues=["a"])  # others go on
    store.reject(take(store, "t"))
    store.publish(b"x" * size, queues=["t", "a"], transient=True)
    assert store.purge("t") == count
    assert used(store) == (1, size + WAITING_BYTES)
    transaction = store.transaction()
    full(transaction, b"z" * size)
    with pytest.raises(TransientRoomError):
        transaction.publish(b"z" * size, queues=["t"])
    with pytest.raises(TransientRoomError):
        transaction.publish(b"z" * 50_000, queues=["t", "a"])  # too large to wait in memory for the log
    transaction.publish(b"more", queues=["a"])
    transaction.rollback()
    assert used(store) == (1, size + WAITING_BYTES)
    assert len(store._core.state.messages) == 1 and not store.pinned()
    assert [len(one) for one in drain(store, "a")] == [200_000, size]
    assert used(store) == (0, 0)


def test_an_empty_message_takes_memory_too(store: MessageStore) -> None:
    full(store, b"")
    assert used(store)[0] == 100_000 // WAITING_BYTES


def test_in_a_transaction_they_come_with_it_in_their_order(store: MessageStore) -> None:
    store.publish(b"taken", queues=["t"])
    with store.transaction() as transaction:
        for number in range(6):
            transaction.publish(b"%d" % number, queues=["a", "t"], transient=number % 3 > 0)
        transaction.publish(b"large" * 3_000, queues=["a", "t"])
        transaction.ack(take(store, "t"))
        assert store.queues() == {"a": (0, 0), "t": (0, 0)}
    store.publish(b"6", queues=["a"])
    wanted = [*(b"%d" % number for number in range(6)), b"large" * 3_000]
    assert drain(store, "t") == wanted and drain(store, "a") == [*wanted, b"6"]
    assert used(store) == (0, 0) and not store._core.state.messages


def test_a_transaction_of_nothing_else_is_not_in_the_log(store: MessageStore) -> None:
    store.publish(b"taken", queues=["t"])
    place = store._journal.place
    with store.transaction() as transaction:
        transaction.publish(b"x", queues=["a"], transient=True)
        transaction.publish(b"y", queues=["t"])
        transaction.ack(take(store, "t"))
    assert store._journal.place == place
    assert drain(store, "a") == [b"x"] and drain(store, "t") == [b"y"]


def test_what_a_transaction_took_back_is_where_it_was(store: MessageStore) -> None:
    store.publish(b"1", queues=["t"])
    store.publish(b"2", queues=["t"])
    transaction = store.transaction()
    transaction.ack(take(store, "t"))
    transaction.publish(b"x" * 9_000, queues=["a", "t"])
    transaction.rollback()
    assert drain(store, "t") == [b"1", b"2"]
    gone = store.transaction()
    gone.publish(b"x", queues=["t"])
    store.delete("t")
    with pytest.raises(UnknownQueueError):
        gone.commit()
    gone.rollback()
    assert used(store) == (0, 0)


def test_a_distributed_transaction_refuses_them(store: MessageStore) -> None:
    """It outlives the process once it is prepared, and they do not."""
    store.publish(b"x", queues=["t"])
    delivery = take(store, "t")
    session = store.session()
    session.tpc_begin(b"xid")
    with pytest.raises(TransactionStateError, match="t is transient"):
        session.publish(b"y", queues=["a", "t"])
    with pytest.raises(TransactionStateError, match="of queue 't' is transient"):
        session.ack(delivery)
    session.publish(b"y", queues=["a"])
    session.tpc_commit()
    assert drain(store, "a") == [b"y"]
    store.ack(delivery)


def test_a_name_is_of_one_kind(store: MessageStore) -> None:
    assert store.declare("t", transient=True) < 0 < store.declare("a")
    with pytest.raises(DeclaredOtherwiseError, match="it is there, and transient"):
        store.declare("t")
    with pytest.raises(DeclaredOtherwiseError, match="not transient"):
        store.declare("a", transient=True)
    store.delete("t")
    assert store.declare("t") > 0


def test_bindings_to_a_transient_queue_lead_there_until_it_goes(store: MessageStore, path: Path) -> None:
    store.declare_exchange("x", "topic")
    store.bind("x", queue="t", key="new.*")
    store.bind("x", queue="t", key="new.*")
    store.bind("x", queue="a", key="#")
    assert store.route("x", "new.tea") == ["t", "a"]
    store.unbind("x", queue="t", key="new.*")
    assert store.route("x", "new.tea") == ["a"]
    store.bind("x", queue="t", key="new.*")
    store.delete("t")
    store.declare("t", transient=True)
    assert store.route("x", "new.tea") == ["a"]
    store.bind("x", queue="t", key="old")
    store.delete_exchange("x")
    store.declare_exchange("x", "topic")
    assert store.route("x", "old") == []
    store.close()
    with MessageStore.open(path) as reopened:
        assert list(reopened.queues()) == ["a"]


def test_a_deleted_queue_takes_those_on_it_along(store: MessageStore) -> None:
    """Also those that somebody holds."""
    for _ in range(3):
        store.publish(b"x", queues=["a", "t"], transient=True)
    held = take(store, "a")
    store.delete("a")
    with pytest.raises(NotHeldError):
        store.ack(held)
    assert used(store)[0] == 3
    store.delete("t")
    assert used(store) == (0, 0)
    with pytest.raises(NotHeldError, match="gone"):
        _ = held.content


def test_one_at_the_head_waits_for_no_sync_and_one_behind_waits_its_turn(store: MessageStore) -> None:
    store.publish(b"elsewhere", queues=["a"], wait=False)
    syncs = store._journal.syncs.count
    store.publish(b"x", queues=["t"])
    assert take(store, "t").content == b"x"
    store.publish(b"behind", queues=["a"], transient=True)
    assert store._journal.syncs.count == syncs
    assert drain(store, "a") == [b"elsewhere", b"behind"]
    assert store._journal.syncs.count > syncs


def test_those_of_a_transaction_wait_for_its_sync(store: MessageStore) -> None:
    transaction = store.transaction()
    transaction.publish(b"x", queues=["a"])
    transaction.publish(b"y", queues=["t"])
    transaction.commit(wait=False)
    syncs = store._journal.syncs.count
    assert store.peek("t") == []
    assert take(store, "t").content == b"y"
    assert store._journal.syncs.count == syncs + 1


def test_who_waits_is_woken(store: MessageStore) -> None:
    found: list[bytes] = []

    def consume() -> None:
        delivery = store.get("t", timeout_s=30.0)
        assert delivery is not None
        found.append(delivery.content)

    thread = threading.Thread(target=consume)
    thread.start()
    store.publish(b"x", queues=["t"])
    thread.join()
    assert found == [b"x"]


def test_their_time_ends_as_that_of_others() -> None:
    disk = SimDisk()
    vfs, clock = SimVfs(disk), ManualClock()
    store = MessageStore.open("/s", options=SMALL, disk=disk, clock=clock, connect=vfs.connect)
    store.declare("t", transient=True)
    store.publish(b"soon", queues=["t"], expires_at=clock.now_ms() + 1_000, priority=3)
    store.publish(b"never", queues=["t"])
    assert [one.priority for one in store.peek("t", 5)] == [3, 0]
    clock.advance(1.0)
    assert drain(store, "t") == [b"never"]
    assert used(store) == (0, 0)
    store.close()
    vfs.unregister()


def test_a_full_disk_does_not_refuse_them() -> None:
    disk = SimDisk()
    vfs = SimVfs(disk)
    store = MessageStore.open("/s", options=SMALL, disk=disk, clock=ManualClock(), connect=vfs.connect)
    store.declare("a")
    disk.room = 0
    with suppress(DiskFullError):
        while True:
            store.publish(b"x" * 900, queues=["a"])
    with pytest.raises(DiskFullError):
        store.publish(b"x" * 900, queues=["a"])
    store.purge("a")
    store.publish(b"y" * 9_000, queues=["a"], transient=True)
    assert drain(store, "a") == [b"y" * 9_000]
    store.close()
    vfs.unregister()


def test_a_producer_that_publishes_once_counts_those_on_transient_queues(store: MessageStore) -> None:
    for content in (b"x", b"x" * 9_000):
        number = len(content)
        assert store.publish_once("p", number, content, queues=["t"]) == 0
        assert store.publish_once("p", number, content, queues=["t"]) is None
        assert store.publish_once("p", number + 1, content, queues=["a", "t"])
        assert (drain(store, "t"), drain(store, "a")) == ([content, content], [content])
    assert store.producers() == {"p": 9_001}


def test_only_the_owner_and_no_copy_has_them(store: MessageStore, path: Path, tmp_path: Path) -> None:
    store.publish(b"x", queues=["a", "t"], transient=True)
    store.publish(b"y", queues=["a", "t"])
    assert store.status().queues["t"].transient and not store.status().queues["a"].transient
    with StoreReader.open(path) as reader:
        assert reader.queues() == {"a": 1}
        assert reader.status().transient_messages is None
    assert back_up(store, str(tmp_path / "copy")).queues == 1
    with MessageStore.open(tmp_path / "copy") as copy:
        assert (copy.queues(), drain(copy, "a")) == ({"a": (1, 0)}, [b"y"])


def test_threads_publish_and_take_both_kinds(path: Path) -> None:
    """Of each thread in its order, whatever the kind."""
    with MessageStore.open(path, options=QueueStoreOptions(container_bytes=65_536)) as store:
        store.declare("q")
        found: dict[int, list[int]] = {}

        def produce(one: int) -> None:
            for number in range(60):
                store.publish(b"%d %d" % (one, number), queues=["q"], transient=number % 2 == 1)

        threads = [threading.Thread(target=produce, args=(one,)) for one in range(4)]
        for thread in threads:
            thread.start()
        for delivery in store.consume("q"):
            one, number = map(int, delivery.content.split())
            found.setdefault(one, []).append(number)
            store.ack(delivery)
            if sum(map(len, found.values())) == 240:
                break
        for thread in threads:
            thread.join()
        assert found == {one: list(range(60)) for one in range(4)}
        assert used(store) == (0, 0) and os.path.isdir(path)
