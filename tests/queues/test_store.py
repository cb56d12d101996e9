"""The message store as a program uses it: publish, take, answer; who waits, who is refused, what is kept."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import (
    CatalogueError,
    ConfigError,
    DeclaredOtherwiseError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogLockedError,
    NotHeldError,
    StoreDamagedError,
    StoreMissingError,
    UnknownQueueError,
)
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules import records
from tranlog.queues.rules.state import NO_LSN
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(path, options=SMALL) as made:
        made.declare("a")
        made.declare("b")
        yield made


def drain(store: MessageStore, queue: str) -> list[bytes]:
    found = []
    while (delivery := store.get(queue)) is not None:
        found.append(delivery.content)
        store.ack(delivery)
    return found


def containers(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith(("queue.", "free.")))


def test_messages_come_in_order_and_over_a_restart(path: Path) -> None:
    """OrderingTest: Basic, Cycle; RedeliveredTests; SimpleTest: Enqueue, Dequeue."""
    with MessageStore.open(path) as store:
        assert store.recovered.created
        store.declare("q")
        for number in range(10):
            store.publish(b"%d" % number, queues=["q"], header=b"h%d" % number)
        for number in range(5):
            delivery = store.get("q")
            assert delivery is not None and not delivery.redelivered
            assert (delivery.content, delivery.header) == (b"%d" % number, b"h%d" % number)
            store.ack(delivery, wait=True)
        for number in range(10, 15):
            store.publish(b"%d" % number, queues=["q"])
    with MessageStore.open(path) as store:
        assert (store.recovered.created, store.recovered.clean, store.recovered.messages) == (False, True, 10)
        delivery = store.get("q")
        assert delivery is not None and delivery.redelivered
        store.requeue(delivery)
        assert drain(store, "q") == [b"%d" % number for number in range(5, 15)]
    with MessageStore.open(path) as store:
        assert store.recovered.messages == 0


def test_what_comes_back_goes_to_its_place_and_is_counted(store: MessageStore, path: Path) -> None:
    for number in range(4):
        store.publish(b"%d" % number, queues=["a"])
    first, second = store.get("a"), store.get("a")
    assert first is not None and second is not None
    store.requeue(second)
    store.requeue(first)
    again = store.get("a")
    assert again is not None
    assert (again.content, again.attempts, again.redelivered) == (b"0", 1, True)
    store.requeue(again)
    store.close()
    with MessageStore.open(path) as reopened:
        again = reopened.get("a")
        assert again is not None and (again.content, again.attempts) == (b"0", 2)
        reopened.requeue(again)
        assert drain(reopened, "a") == [b"0", b"1", b"2", b"3"]


def test_a_publish_to_several_queues_is_on_all_and_leaves_with_the_last(store: MessageStore) -> None:
    """Conformance 0.6: taken and acknowledged on one queue, it is still on the other."""
    message = store.publish(b"both", queues=["a", "b", "a"])
    assert store.queues() == {"a": (1, 0), "b": (1, 0)}
    delivery = store.get("a")
    assert delivery is not None and delivery.id == message
    store.ack(delivery)
    assert [one.id for one in store._core.state.messages.values()] == [message]
    assert drain(store, "b") == [b"both"]
    assert not store._core.state.messages


def test_many_are_published_and_taken_at_once_as_they_are_one_by_one(store: MessageStore, path: Path) -> None:
    """Over several containers, with what goes into none of them in one piece, with what is transient, what is over."""
    contents = [b"%d" % number * (number * 37 % 900) for number in range(40)]
    ids = store.publish_many(contents, queues=["a"], header=b"h")
    assert ids == sorted(set(ids)) and store.get("b") is None
    large = [b"x", bytes(100_000), b"y"]
    assert len(store.publish_many(large, queues=["b"])) == 3
    syncs = store._journal.syncs.count
    assert store.publish_many([b"1", b"2"], queues=["a", "b"], wait=False)[0] > ids[-1]
    assert store._journal.syncs.count == syncs
    store.declare("t", transient=True)
    assert store.publish_many([b"t"], queues=["t"]) == [0]
    assert store.publish_many([], queues=["a"]) == []
    store.declare_exchange("x", "fanout")
    assert store.publish_many([b"nowhere"], exchange="x") == []
    with pytest.raises(ValueError, match="a count is 1 or more, not 0"):
        store.get_many("a", 0)
    assert store.get_many("t", 5)[0].content == b"t" and store.get_many("t", 5) == []

    first = store.get_many("a", 30)
    assert [one.content for one in first] == contents[:30] and {one.header for one in first} == {b"h"}
    store.ack(*first, first[0])
    assert [one.content for one in store.get_many("a", 100)] == [*contents[30:], b"1", b"2"]
    assert [one.content for one in store.get_many("b", 100)] == [*large, b"1", b"2"]
    counts = store.status().queues["a"].counts
    assert counts is not None
    assert (counts.published, counts.delivered, counts.acknowledged) == (42, 42, 30)
    store.close()
    with MessageStore.open(path, options=SMALL) as store:
        assert drain(store, "a") == [*contents[30:], b"1", b"2"] and drain(store, "b") == [*large, b"1", b"2"]


@pytest.mark.parametrize("size", [0, 1, 2_700, 2_731, 5_461, 100_000])
def test_content_of_any_size_comes_back(store: MessageStore, path: Path, size: int) -> None:
    """Conformance A7.1, A7.2: the ancestor cut chunks wrongly and lost content put together again."""
    content = os.urandom(size)
    store.publish(content, queues=["a"], header=b"head")
    store.publish((content[at : at + 100] for at in range(0, size, 100)), length=size, queues=["b"])
    delivery = store.get("a")
    assert delivery is not None and (delivery.header, delivery.content) == (b"head", content)
    store.close()
    with MessageStore.open(path) as reopened:
        delivery = reopened.get("a")
        assert delivery is not None and (delivery.header, delivery.content) == (b"head", content)
        assert drain(reopened, "b") == [content]


def test_content_of_another_length_than_said_is_refused(store: MessageStore) -> None:
    for length in (4_999, 5_001, 100, (1 << 63) - 1, 1 << 63, 1 << 64, -1):
        with pytest.raises(ValueError, match=r"announced|at most"):
            store.publish(iter([b"x" * 5_000]), length=length, queues=["a"])
    with pytest.raises(ValueError, match="length"):
        store.publish(iter([b"x"]), queues=["a"])
    with pytest.raises(ValueError, match="at least one queue"):
        store.publish(b"x", queues=[])

    def breaking() -> Iterator[bytes]:
        yield b"x" * 9_000
        raise RuntimeError("the producer's own")

    with pytest.raises(RuntimeError, match="own"):
        store.publish(breaking(), length=10_000, queues=["a"])
    assert store.queues() == {"a": (0, 0), "b": (0, 0)}
    assert not store._core.state.messages
    store.publish(b"y", queues=["a"])
    assert drain(store, "a") == [b"y"]


@pytest.mark.long
def test_space_comes_back_with_the_messages(store: MessageStore, path: Path) -> None:
    """Conformance R8: after all is consumed and one more is added, two containers, and one ahead of need."""
    for number in range(2_000):
        store.publish(b"%d" % number * 50, queues=["a"], wait=False)
    store.sync()
    assert len(containers(path)) > 20
    assert len(drain(store, "a")) == 2_000
    store.publish(b"one more", queues=["a"])
    assert len(containers(path)) <= 3


def test_what_nobody_synced_is_handed_out_when_it_is(store: MessageStore) -> None:
    store.publish(b"x", queues=["a"], wait=False)
    syncs = store._journal.syncs.count
    delivery = store.get("a")
    assert delivery is not None
    assert store._journal.syncs.count == syncs + 1
    assert store._journal.durable > delivery.place.visible


def test_who_waits_is_woken_at_once(store: MessageStore) -> None:
    found: list[bytes] = []

    def consume() -> None:
        for delivery in store.consume("a"):
            found.append(delivery.content)
            store.ack(delivery)
            if found[-1] == b"last":
                return

    thread = threading.Thread(target=consume)
    thread.start()
    for content in (b"1", b"2", b"last"):
        time.sleep(0.05)
        before = time.monotonic()
        store.publish(content, queues=["a"])
        while content not in found:
            assert time.monotonic() - before < 0.4, "it looked by its clock"
            time.sleep(0.001)
    thread.join()
    assert found == [b"1", b"2", b"last"]
    assert store.get("a", timeout_s=0.01) is None


def test_many_threads_share_syncs_and_lose_nothing(path: Path) -> None:
    """Conformance A7.8, A7.9: the ancestor's base raced with appends, and its locks were taken in two orders."""
    store = MessageStore.open(path, options=QueueStoreOptions(container_bytes=65_536))
    store.declare("q")
    taken: list[bytes] = []

    def produce(producer: int) -> None:
        for number in range(100):
            store.publish(b"%d/%d" % (producer, number), queues=["q"])

    def consume() -> None:
        while (delivery := store.get("q", timeout_s=1.0)) is not None:
            taken.append(delivery.content)
            store.ack(delivery)

    threads = [threading.Thread(target=produce, args=(one,)) for one in range(8)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(b"%d/%d" % (one, number) for one in range(8) for number in range(100))
    assert store._journal.syncs.count < 8 * 100
    assert not store._core.state.messages
    store.close()
    assert MessageStore.open(path).recovered.messages == 0


def test_an_ack_is_durable_soon_without_a_sync_of_its_own(path: Path) -> None:
    with MessageStore.open(path, options=QueueStoreOptions(ack_sync_s=0.02)) as store:
        store.declare("q")
        store.publish(b"x", queues=["q"])
        delivery = store.get("q")
        assert delivery is not None
        store.ack(delivery)
        place, until = store._journal.place, time.monotonic() + 5
        while store._journal.durable < place:
            assert time.monotonic() < until
            time.sleep(0.005)


def test_a_delivery_is_answered_once(store: MessageStore) -> None:
    """Bad input: an ack of what is not held; persistence.py: test_ack_message_from_deleted_queue."""
    store.publish(b"x", queues=["a"])
    delivery = store.get("a")
    assert delivery is not None
    store.requeue(delivery)
    with pytest.raises(NotHeldError, match="not held"):
        store.ack(delivery)
    delivery = store.get("a")
    assert delivery is not None
    store.ack(delivery, delivery)
    for answer in (store.ack, store.reject, store.requeue):
        with pytest.raises(NotHeldError, match="not held"):
            answer(delivery)
    store.publish(b"y", queues=["a"])
    delivery = store.get("a")
    assert delivery is not None
    store.delete("a")
    with pytest.raises(NotHeldError, match="not held"):
        store.ack(delivery)
    assert not store._core.state.messages


def test_a_rejected_message_does_not_come_back(store: MessageStore, path: Path) -> None:
    """client_persistence: message_reject. On other queues it stays."""
    for content in (b"1", b"2"):
        store.publish(content, queues=["a", "b"])
    delivery = store.get("a")
    assert delivery is not None
    store.reject(delivery, wait=True)
    shutil.copytree(path, path.parent / "ended")  # as a kill of its process leaves it
    with MessageStore.open(path.parent / "ended") as reopened:
        assert (drain(reopened, "a"), drain(reopened, "b")) == ([b"2"], [b"1", b"2"])


def test_a_deleted_queue_takes_its_messages_along(store: MessageStore, path: Path) -> None:
    """persistence.py: test_delete_queue_after_publish; SimpleTest: QueueDestroy."""
    first = store.declare("q")
    for _ in range(9):
        store.publish(b"x", queues=["q"], wait=False)
    store.publish(b"kept", queues=["a", "q"])
    store.delete("q")
    assert store.declare("q") > first
    assert store.queues()["q"] == (0, 0)
    store.close()
    with MessageStore.open(path) as reopened:
        assert reopened.recovered.dropped == 0
        assert reopened.queues() == {"a": (1, 0), "b": (0, 0), "q": (0, 0)}


def test_purge_takes_what_waits_and_leaves_what_is_held(store: MessageStore) -> None:
    for _ in range(5):
        store.publish(b"x", queues=["a", "b"])
    delivery = store.get("a")
    assert delivery is not None
    assert store.purge("a") == 4
    assert store.queues() == {"a": (0, 1), "b": (5, 0)}
    store.ack(delivery)
    assert store.purge("b") == 5
    assert not store._core.state.messages


def test_names_that_are_not_there_change_nothing(store: MessageStore) -> None:
    for call in (
        lambda: store.publish(b"x", queues=["a", "nowhere"]),
        lambda: store.publish(b"x" * 9_000, queues=["nowhere"]),
        lambda: store.get("nowhere"),
        lambda: store.purge("nowhere"),
        lambda: store.delete("nowhere"),
    ):
        with pytest.raises(UnknownQueueError, match="nowhere"):
            call()
    with pytest.raises(DeclaredOtherwiseError, match="arguments"):
        store.declare("a", arguments=b"x")
    assert not store._core.state.messages


@pytest.mark.parametrize(("buffers", "written"), [(1, True), (3, False)])
def test_so_many_buffers_are_written_without_waiting(path: Path, buffers: int, written: bool) -> None:
    """Each of 64 KiB; less than that stays in memory until somebody waits."""
    options = QueueStoreOptions(container_bytes=1 << 20, write_buffers=buffers, ack_sync_s=None)
    with MessageStore.open(path, options=options) as store:
        store.declare("a")
        store.publish(b"first" * 20, queues=["a"], wait=False)
        syncs = store.status().syncs
        newest = path / records.container_name(store._journal.buffer.number)
        assert b"first" not in newest.read_bytes()
        store.publish(b"x" * 60_000, queues=["a"], wait=False)
        store.publish(b"x" * 60_000, queues=["a"], wait=False)
        assert (b"first" in newest.read_bytes()) == written
        assert store.status().syncs == syncs


def test_there_is_one_owner(store: MessageStore, path: Path) -> None:
    with pytest.raises(LogLockedError, match=f"pid {os.getpid()}"):
        MessageStore.open(path)
    os.rename(path / records.STORE_LOCK_NAME, path / "gone")
    (path / records.STORE_LOCK_NAME).touch()
    with suppress(LogLockedError):
        for _ in range(100):
            store.publish(b"x", queues=["a"])
    with pytest.raises(LogClosedError, match="replaced or removed"):
        store.publish(b"x", queues=["a"])
    store.close()
    store.close()


def test_a_closed_store_refuses_everything(store: MessageStore) -> None:
    store.publish(b"x", queues=["a"])
    delivery = store.get("a")
    assert delivery is not None
    store.close()
    for call in (
        lambda: store.publish(b"x", queues=["a"]),
        lambda: store.get("a"),
        lambda: store.ack(delivery),
        lambda: store.declare("c"),
        store.sync,
    ):
        with pytest.raises(LogClosedError):
            call()


@pytest.mark.parametrize(
    ("option", "value"),
    [("container_bytes", 4096), ("container_bytes", 20_000), ("initial_containers", 1), ("write_buffers", 0)],
)
def test_a_size_that_cannot_be_is_refused(path: Path, option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option):
        MessageStore.open(path, options=QueueStoreOptions(**{option: value}))  # type: ignore[arg-type]
    assert not path.exists()


def test_a_store_keeps_its_own_sizes(store: MessageStore, path: Path) -> None:
    """Conformance A2.19: both options are ignored where a log exists."""
    store.close()
    with MessageStore.open(path, options=QueueStoreOptions(container_bytes=1 << 20)) as reopened:
        assert reopened._files.container_bytes == 12_288
        reopened.publish(b"x" * 100_000, queues=["a"])
    assert {os.path.getsize(path / name) for name in containers(path)} == {12_288}


# --- what cannot be opened -------------------------------------------------------------------------------


def snapshot(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()}


def filled(path: Path) -> None:
    """Leave a closed store of several containers."""
    with MessageStore.open(path, options=SMALL) as store:
        store.declare("a")
        for number in range(40):
            store.publish(b"%d" % number * 500, queues=["a"])


def refused(path: Path, kind: type[Exception], match: str) -> None:
    before = snapshot(path)
    with pytest.raises(kind, match=match):
        MessageStore.open(path)
    assert snapshot(path) == before, "a refused opening changed a byte"


def test_containers_that_are_not_right_are_refused(path: Path, tmp_path: Path) -> None:
    """Bad input: missing, renamed, shortened, of another size or another store."""
    filled(path)
    first, second, third, *_ = [name for name in containers(path) if name.startswith("queue.")]
    raw = (path / second).read_bytes()

    def put_back() -> None:
        (path / second).write_bytes(raw)

    (path / second).unlink()
    refused(path, StoreDamagedError, f"{second}.*missing")
    put_back()
    (path / second).write_bytes(raw[:-1])
    refused(path, StoreDamagedError, f"{second}.*12287 bytes")
    (path / second).write_bytes((path / third).read_bytes())
    refused(path, StoreDamagedError, f"{second}.*number 3")
    other = tmp_path / "other"
    filled(other)
    (path / second).write_bytes((other / second).read_bytes())
    refused(path, StoreDamagedError, f"{second}.*another store")
    (path / second).write_bytes(b"\0" * 4096 + raw[4096:])
    refused(path, StoreDamagedError, f"{second}.*does not begin")
    put_back()
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in containers(path):
        shutil.move(path / name, kept / name)
    refused(path, StoreDamagedError, "the catalogue was opened in epoch 1")
    for name in containers(kept):
        shutil.move(kept / name, path / name)
    MessageStore.open(path).close()
    assert first in containers(path)


def test_a_catalogue_of_another_time_or_store_is_refused(path: Path, tmp_path: Path) -> None:
    """The document's one unchecked assumption: the store knows whether its catalogue is right."""
    filled(path)
    old = tmp_path / "old"
    shutil.copytree(path, old)
    with MessageStore.open(path) as store:
        store.declare("later")
        store.publish(b"x", queues=["later"])
    new = tmp_path / "new"
    shutil.copytree(path, new)
    shutil.copy(old / records.CATALOGUE_NAME, path)
    refused(path, CatalogueError, "the catalogue is an older copy: its counter is 3, and the log has seen 5")
    shutil.copytree(new, path, dirs_exist_ok=True)
    for name in containers(path):
        (path / name).unlink()
    for name in containers(old):
        shutil.copy(old / name, path)
    refused(path, CatalogueError, "the log is an older copy: its last epoch is 1, and the catalogue.*in epoch 2")
    shutil.copytree(new, path, dirs_exist_ok=True)
    other = tmp_path / "other"
    filled(other)
    shutil.copy(other / records.CATALOGUE_NAME, path)
    for name in containers(path):
        (path / name).unlink()
    for name in containers(new):
        shutil.copy(new / name, path)
    refused(path, CatalogueError, "that of the store")
    (path / records.CATALOGUE_NAME).unlink()
    refused(path, CatalogueError, "it is missing")


CHANGES: dict[str, Callable[[MessageStore], object]] = {
    "declare": lambda store: store.declare("later"),
    "delete": lambda store: store.delete("b"),
    "declare_exchange": lambda store: store.declare_exchange("y", "topic"),
    "delete_exchange": lambda store: store.delete_exchange("x"),
    "bind": lambda store: store.bind("x", queue="b"),
    "unbind": lambda store: store.unbind("x", queue="a"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_log_says_of_each_change_to_the_catalogue_before_it_goes_on(
    store: MessageStore, path: Path, tmp_path: Path, change: str
) -> None:
    """docs/format.md: a Sync stands before the first record after one. No sync of the log comes in between here."""
    store.declare_exchange("x", "fanout")
    store.bind("x", queue="a")
    store.publish(b"before", queues=["a"], wait=False)
    old = tmp_path / "old.db"
    shutil.copy(path / records.CATALOGUE_NAME, old)
    CHANGES[change](store)
    store.publish(b"after", queues=["later" if change == "declare" else "a"])
    ended = tmp_path / "ended"
    shutil.copytree(path, ended)  # as a kill of its process leaves it
    with MessageStore.open(shutil.copytree(ended, tmp_path / "right")) as reopened:
        assert (reopened.recovered.messages, reopened.recovered.dropped) == (2, 0)
    shutil.copy(old, ended / records.CATALOGUE_NAME)
    refused(ended, CatalogueError, "the catalogue is an older copy")


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match="does not exist"):
        MessageStore.open(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "s"):
        with pytest.raises(StoreMissingError, match="not a directory"):
            MessageStore.open(path)


def test_each_flipped_bit_of_a_container_is_found_or_harmless(path: Path) -> None:
    """A closed store is proven to its end: a flipped bit in a record below that is refused."""
    filled(path)
    name = containers(path)[0]
    assert name == records.container_name(1)
    raw = (path / name).read_bytes()
    ends = len(raw.rstrip(b"\0"))
    found = 0
    for at in [*range(0, 60), *range(4096, ends, 97), ends - 1]:
        torn = bytearray(raw)
        torn[at] ^= 1 << at % 8
        (path / name).write_bytes(torn)
        refused(path, StoreDamagedError, records.container_name(1))
        found += 1
    assert found > 100
    (path / name).write_bytes(raw)
    with MessageStore.open(path) as store:
        assert len(drain(store, "a")) == 40


# --- disks that are full or fail -------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def simulated(disk: SimDisk) -> Iterator[MessageStore]:
    vfs = SimVfs(disk)
    made = MessageStore.open("/s", options=SMALL, disk=disk, clock=ManualClock(), connect=vfs.connect)
    made.declare("a")
    yield made
    disk.dead = False
    made._catalogue.close()
    vfs.unregister()


def test_a_full_disk_stops_publishers_and_lets_consumers_drain(simulated: MessageStore, disk: SimDisk) -> None:
    count = 0
    disk.room = 30_000
    with suppress(DiskFullError):
        while True:
            simulated.publish(b"x" * 900, queues=["a"])
            count += 1
    assert count > 10
    with pytest.raises(DiskFullError):
        simulated.publish(b"x" * 9_000, queues=["a"])
    held = [simulated.get("a") for _ in range(count)]
    assert simulated.get("a") is None
    for delivery in held:
        assert delivery is not None
        assert delivery.content == b"x" * 900
        simulated.ack(delivery, wait=True)
    disk.room = 0
    for _ in range(50):  # in what the disk gave before
        simulated.publish(b"y" * 900, queues=["a"])
        delivery = simulated.get("a")
        assert delivery is not None
        simulated.ack(delivery)
    simulated.close()


def test_acks_of_many_on_a_full_disk_go_as_far_as_there_is_room(simulated: MessageStore, disk: SimDisk) -> None:
    store = simulated
    store.publish_many([b"x" * 20] * 60, queues=["a"])
    held = store.get_many("a", 100)
    disk.room = 0
    with pytest.raises(DiskFullError):
        store.publish_many([bytes(1_000)] * 60, queues=["a"])
    store.ack(*held, wait=True)
    assert store.queues()["a"][1] == 0


def test_a_sync_that_fails_closes_the_store(simulated: MessageStore, disk: SimDisk) -> None:
    simulated.publish(b"x", queues=["a"])
    disk.fail_at = {disk.calls + 2: 5}
    with pytest.raises(DiskFailedError):
        simulated.publish(b"y", queues=["a"])
    with pytest.raises(LogClosedError):
        simulated.publish(b"z", queues=["a"])
    with pytest.raises(LogClosedError):
        simulated.get("a")


# --- the base, and what is old ---------------------------------------------------------------------------


def flow(store: MessageStore, count: int, held: int = 10) -> int:
    """Publish and consume so many messages, a few at a time; return how many containers there were at most."""
    most = 0
    for number in range(0, count, held):
        for _ in range(held):
            store.publish(b"x" * 100, queues=["a"], wait=False)
        deliveries = [store.get("a") for _ in range(held)]
        store.ack(*(one for one in deliveries if one is not None))
        if number % 100 == 0:
            most = max(most, len(store._files.in_use) + len(store._files.free))
    store.sync()
    return most


@pytest.mark.long
def test_an_old_message_is_moved_and_keeps_its_id_and_its_place(store: MessageStore, path: Path) -> None:
    """The trap of D:67-72: one message that stays must not make the log grow."""
    old = [store.publish(b"old %d" % number * 100, queues=["b", "a"], header=b"h") for number in range(3)]
    large = store.publish(b"large" * 1_000, queues=["b"])
    assert store.purge("a") == 3
    for number in range(3):
        store.publish(b"young %d" % number, queues=["b"])
    assert flow(store, 3_000) <= 6
    for one in (old[0], large):
        message = store._core.state.messages.get(one or NO_LSN)
        assert message is not None and message.stands > message.id
    store.close()
    with MessageStore.open(path) as reopened:
        wanted = [*(b"old %d" % number * 100 for number in range(3)), b"large" * 1_000]
        wanted += [b"young %d" % number for number in range(3)]
        delivery = reopened.get("b")
        assert delivery is not None and (delivery.id, delivery.header) == (old[0], b"h")
        reopened.requeue(delivery)
        assert drain(reopened, "b") == wanted


def test_containers_that_are_filled_together_are_emptied_together(simulated: MessageStore) -> None:
    """One message stays in each of many containers, and each sync covers some ten of them."""
    simulated.declare("b")
    for number in range(100):
        simulated.publish(b"stays", queues=["b"], wait=False)
        for _ in range(3):
            simulated.publish(b"x" * 2_500, queues=["a"], wait=False)
        if number % 10 == 9:
            simulated.sync()
            simulated.purge("a")
    assert simulated._journal.buffer.number > 100
    assert len(simulated._files.in_use) < 40
    assert len(drain(simulated, "b")) == 100


def test_what_cannot_be_moved_is_told(store: MessageStore) -> None:
    """A branch in doubt holds its containers, and says so."""
    kept = store.publish(b"kept", queues=["b"])
    assert store.pinned() == []
    session = store.session()
    session.tpc_begin(b"xid")
    delivery = store.get("b")
    assert delivery is not None
    session.ack(delivery)
    session.tpc_prepare()
    before = len(store._files.in_use)
    flow(store, 1_000)
    assert len(store._files.in_use) > before + 5
    found = {one.what: one for one in store.pinned()}
    assert found["branch"].xid == b"xid"
    assert (found["message"].id, found["message"].queues) == (kept, ("b",))
    assert found["branch"].held_bytes == found["message"].held_bytes > 5 * 12_288
    store.tpc_commit(b"xid")
    flow(store, 500)
    assert len(store._files.in_use) + len(store._files.free) <= 6
    assert store.pinned() == []


def test_containers_are_bounded_over_many_uses(store: MessageStore) -> None:
    assert flow(store, 5_000) <= 4
    assert store._journal.buffer.number > 100


@pytest.mark.long
@pytest.mark.parametrize("initial", [2, 3, 4, 9])
def test_a_container_given_back_takes_no_other_ones_name(path: Path, initial: int) -> None:
    """A store of four or more: the first ones were back before the last ones were ever used."""
    options = QueueStoreOptions(container_bytes=12_288, initial_containers=initial, ack_sync_s=None)
    with MessageStore.open(path, options=options) as store:
        store.declare("a")
        for _ in range(15):
            flow(store, 100)
            names = [records.container_name(one) for one in store._files.in_use]
            names += [records.free_name(one) for one in store._files.free]
            assert containers(path) == sorted(names) and len(names) >= initial
        assert store._journal.buffer.number > 2 * initial


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize(
    "count", [pytest.param(20_000, marks=pytest.mark.long), pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_many_messages_go_through_two_containers(path: Path, count: int, stays: bool) -> None:
    """Document, "Testing": stress the extension of containers, and the base's way."""
    options = QueueStoreOptions(container_bytes=512 * 1024)
    with MessageStore.open(path, options=options) as store:
        store.declare("a")
        store.declare("b")
        if stays:
            for number in range(10):
                store.publish(b"%d" % number, queues=["b"])
        assert flow(store, count, held=100) <= (6 if stays else 4)
        assert len(drain(store, "b")) == (10 if stays else 0)


# --- exchanges -------------------------------------------------------------------------------------------


def test_a_message_goes_where_its_bindings_lead_over_a_restart(store: MessageStore, path: Path) -> None:
    """client_persistence: topic exchange, fanout; AlternateExchange on an exchange recovered."""
    store.declare("lost")
    store.declare_exchange("spare", "fanout")
    store.declare_exchange("x", "topic", alternate="spare")
    store.bind("x", queue="a", key="orders.#")
    store.bind("x", queue="b", key="*.paid")
    store.bind("spare", queue="lost")
    store.close()
    with MessageStore.open(path) as reopened:
        assert reopened.route("x", "orders.paid") == ["a", "b"]
        assert reopened.publish(b"1", exchange="x", key="orders.paid") is not None
        reopened.publish(b"2", exchange="x", key="elsewhere")
        reopened.publish(b"3", key="b")
        assert reopened.publish(b"4", key="nowhere") is None
        assert [drain(reopened, queue) for queue in ("a", "b", "lost")] == [[b"1"], [b"1", b"3"], [b"2"]]
        reopened.unbind("x", queue="a", key="orders.#")
        assert reopened.route("x", "orders.new") == ["lost"]
        reopened.delete("lost")
        assert reopened.route("x", "orders.new") == []
        reopened.delete_exchange("x")
        with pytest.raises(UnknownQueueError, match="exchange 'x'"):
            reopened.publish(b"5", exchange="x", key="k")


def test_headers_and_exchanges_in_a_row(store: MessageStore) -> None:
    store.declare_exchange("h", "headers")
    store.declare_exchange("f", "fanout")
    store.bind("h", destination="f", arguments={"kind": "pdf", "x-match": "any"})
    store.bind("f", destination="h")
    store.bind("f", queue="a")
    assert store.route("h", "", {"kind": "pdf"}) == ["a"]
    assert store.route("h", "", {"kind": "txt"}) == []
    with pytest.raises(DeclaredOtherwiseError, match="x-match 'odd'"):
        store.bind("h", queue="a", arguments={"x-match": "odd"})
    with pytest.raises(DeclaredOtherwiseError, match="type 'odd'"):
        store.declare_exchange("y", "odd")
    store.unbind("h", destination="f", arguments={"x-match": "any", "kind": "pdf"})
    assert store.route("h", "", {"kind": "pdf"}) == []


class Unwalked(dict[str, Any]):
    """One whose values nobody goes over."""

    def values(self) -> Any:
        raise AssertionError("all queues were gone over")


def test_a_message_is_routed_without_a_walk_over_all_queues(store: MessageStore) -> None:
    store.declare_exchange("f", "fanout")
    store.bind("f", queue="a")
    assert store.route("f", "") == ["a"]
    store._catalogue._queues = Unwalked(store._catalogue._queues)
    assert store.route("f", "") == store.route("", "a") == ["a"]


# --- producers that repeat themselves --------------------------------------------------------------------


def test_each_number_of_a_producer_is_stored_once(store: MessageStore, path: Path) -> None:
    first = store.publish_once("p", 0, b"0", queues=["a", "b"])
    assert first is not None
    assert store.publish_once("p", 0, b"again", queues=["a"]) is None
    assert store.publish_once("p", 5, b"5" * 9_000, queues=["a"]) is not None
    assert store.publish_once("p", 5, b"5" * 9_000, queues=["a"]) is None
    assert store.publish_once("p", 3, b"late", queues=["a"]) is None
    assert store.publish_once("other", 3, b"3", key="nowhere") is None
    store.close()
    with MessageStore.open(path, options=SMALL) as reopened:
        assert reopened.producers() == {"p": 5, "other": 3}
        assert reopened.publish_once("p", 5, b"5", queues=["a"]) is None
        assert reopened.publish_once("p", 6, b"6", queues=["a"]) is not None
        reopened.forget_producer("p")
        with pytest.raises(UnknownQueueError, match="'p'"):
            reopened.forget_producer("p")
        flow(reopened, 500)  # over several containers, whose first record has the names
    with MessageStore.open(path) as reopened:
        assert reopened.producers() == {"other": 3}


def test_a_producer_keeps_its_number_when_its_messages_are_gone(store: MessageStore, path: Path) -> None:
    """A mutant that does not carry positions over from one container to the next is found by this."""
    store.publish_once("p", 7, b"x", queues=["a"])
    drain(store, "a")
    assert flow(store, 1_000) <= 4
    assert store._files.in_use[0] > 1
    store.close()
    with MessageStore.open(path) as reopened:
        assert reopened.producers() == {"p": 7}


def test_a_producer_that_cannot_be_is_refused(store: MessageStore) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(DeclaredOtherwiseError, match="its name"):
            store.publish_once(name, 1, b"x", queues=["a"])
    with pytest.raises(ValueError, match="a number is"):
        store.publish_once("p", -1, b"x", queues=["a"])
    with suppress(DeclaredOtherwiseError):
        for number in range(1_001):
            store.publish_once(f"a name of some length {number}", 1, b"x", queues=["a"])
    assert 10 < len(store.producers()) < 1_000
    with pytest.raises(DeclaredOtherwiseError, match="forget some"):
        store.publish_once("one more of some length", 1, b"x", queues=["a"])
    assert "one more" not in store.producers()


def test_threads_that_repeat_each_other_store_it_once(store: MessageStore) -> None:
    threads = [
        threading.Thread(target=store.publish_once, args=("p", 1, b"x" * 20_000), kwargs={"queues": ["a"]})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drain(store, "a") == [b"x" * 20_000]
    assert not store._core.state.messages


@pytest.mark.parametrize(("priority", "expires_at"), [(256, 0), (-1, 0), (0, -1), (0, 1 << 63)])
def test_what_no_record_can_say_is_refused_and_the_store_goes_on(
    store: MessageStore, priority: int, expires_at: int
) -> None:
    for publish in (store.publish, store.transaction().publish):
        with pytest.raises(ValueError, match=r"priority|expires_at"):
            publish(b"x", queues=["a"], priority=priority, expires_at=expires_at)
    with pytest.raises(TypeError):
        store.declare(7)  # type: ignore[arg-type]
    store.publish(b"y", queues=["a"], priority=255, expires_at=(1 << 63) - 1)
    assert drain(store, "a") == [b"y"]


def test_a_message_whose_time_is_over_is_dropped(simulated: MessageStore) -> None:
    clock = simulated._clock
    assert isinstance(clock, ManualClock)
    soon = clock.now_ms() + 1_000
    simulated.publish(b"soon", queues=["a"], expires_at=soon, priority=3)
    simulated.publish(b"soon, too", queues=["a"], expires_at=soon)
    simulated.publish(b"never", queues=["a"])
    delivery = simulated.get("a")
    assert delivery is not None and (delivery.content, delivery.priority) == (b"soon", 3)
    clock.advance(1.0)
    other = simulated.get("a")
    assert other is not None and other.content == b"never"
    simulated.requeue(delivery, other)
    other = simulated.get("a")
    assert other is not None and other.content == b"never"
    simulated.ack(other)
    assert not simulated._core.state.messages
