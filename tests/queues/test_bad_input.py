"""What a message store is given that it cannot take: one error that names what, where and what next; nothing changed.

Other modules hold: a second owner, a lock file that was replaced, containers and catalogues of another store or time,
an answer to what is not held (`test_store`), damage (`test_by_hand`, `test_recovery`), xids (`test_transaction`), names
(`test_catalogue`).
"""

from __future__ import annotations

import asyncio
import copy
import errno
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_sqlite_disk import SimVfs
from tranlog.errors import (
    CatalogueError,
    ConfigError,
    DiskFailedError,
    DiskFullError,
    LogLockedError,
    StoreDamagedError,
    TranlogError,
)
from tranlog.ids import Lsn
from tranlog.queues.aio import AsyncStore
from tranlog.queues.core import Delivery
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.reader import StoreReader
from tranlog.queues.rules.records import CATALOGUE_NAME, ContainerHeader, encode_header
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)
DAY_MS = 86_400_000


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


# --- files -----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store of several containers."""
    made = tmp_path / "s"
    with MessageStore.open(made, options=SMALL) as store:
        store.declare("a")
        for number in range(20):
            store.publish(b"%d" % number * 500, queues=["a"])
    return made


def snapshot(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()}


def containers(path: Path) -> list[Path]:
    return sorted(path.glob("queue.*"))


def renamed(path: Path) -> str:
    containers(path)[-1].rename(path / "queue.0000009999")
    return "queue.*missing"


def without_the_oldest(path: Path) -> str:
    containers(path)[0].unlink()
    return f"{containers(path)[0].name[:-1]}1, offset 0: it is missing: it was in use when"


def without_the_oldest_of_those_left(path: Path) -> str:
    """Where others were given back before it, since the newest one was begun."""
    with MessageStore.open(path, options=SMALL) as store:
        newest = store._files.in_use[-1]
        while store._files.in_use[0] < 3:
            store.ack(*store.get_many("a", 1), wait=True)
        assert store._files.in_use[-1] == newest and store.queues()["a"][0]
    with MessageStore.open(path, options=SMALL):
        pass  # those that were given back are not missed
    oldest = containers(path)[0]
    oldest.unlink()
    return f"{oldest.name}, offset 0: it is missing: it was in use when"


def swapped(path: Path) -> str:
    first, second, *_ = containers(path)
    first.rename(path / "kept")
    second.rename(first)
    (path / "kept").rename(second)
    return f"{first.name}, offset 0: its header says that it is number 2"


def longer(path: Path) -> str:
    second = containers(path)[1]
    second.write_bytes(second.read_bytes() + bytes(4096))
    return f"{second.name}, offset 0: it has 16384 bytes, and its header says 12288"


def of_another_size(path: Path) -> str:
    second = containers(path)[1]
    store_id = bytes(containers(path)[0].read_bytes()[16:32])
    header = ContainerHeader(16_384, store_id, 2, 1, Lsn(0), 0)
    second.write_bytes(encode_header(header) + second.read_bytes()[4096:] + bytes(4096))
    return f"{second.name}, offset 0: its header names another length"


def damaged_in_the_middle(path: Path) -> str:
    second = containers(path)[1]
    raw = bytearray(second.read_bytes())
    raw[6_000] ^= 1
    second.write_bytes(raw)
    return f"{second.name}, offset [0-9]+: the checksum of the record is wrong"


@pytest.mark.parametrize(
    "breaking",
    [
        renamed,
        without_the_oldest,
        without_the_oldest_of_those_left,
        swapped,
        longer,
        of_another_size,
        damaged_in_the_middle,
    ],
    ids=lambda one: one.__name__,
)
def test_containers_that_were_changed_are_refused(path: Path, breaking: Callable[[Path], str]) -> None:
    """By the owner and by who only looks."""
    match = breaking(path)
    before = snapshot(path)
    for opens in (MessageStore.open, StoreReader.open):
        with pytest.raises(StoreDamagedError, match=match) as refused:
            opens(path)
        assert str(path) in str(refused.value) and "Restore log and catalogue together" in str(refused.value)
    assert snapshot(path) == before


def test_a_path_that_is_no_utf8_is_refused(path: Path) -> None:
    """SQLite, which has the catalogue, takes no other; other logs may be there."""
    odd = os.fsdecode(os.fsencode(path) + b"\xff")
    path.rename(odd)
    for opens in (MessageStore.open, StoreReader.open):
        with pytest.raises(CatalogueError, match="its path is no UTF-8"):
            opens(odd)


@contextmanager
def locked(path: Path) -> Iterator[Callable[[str], apsw.Connection]]:
    """Another connection holds the catalogue; who waits for it gives up at once."""

    class Impatient(apsw.Connection):
        def execute(self, statement: str, *args: object, **options: object) -> apsw.Cursor:  # type: ignore[override]
            return super().execute(statement.replace("busy_timeout = 10000", "busy_timeout = 0"), *args, **options)  # type: ignore[arg-type]

    other = apsw.Connection(str(path / CATALOGUE_NAME))
    other.execute("begin immediate")
    yield Impatient
    other.close(True)


@contextmanager
def readonly(path: Path) -> Iterator[Callable[[str], apsw.Connection]]:
    yield lambda name: apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY)


@pytest.mark.parametrize("way", [locked, readonly], ids=["locked", "read-only"])
def test_a_catalogue_that_cannot_be_written_stops_the_opening_before_anything_is(
    path: Path, way: Callable[[Path], AbstractContextManager[Callable[[str], apsw.Connection]]]
) -> None:
    before = snapshot(path)
    with way(path) as connect, pytest.raises(CatalogueError, match=r"locked|only be read") as refused:
        MessageStore.open(path, connect=connect)
    assert CATALOGUE_NAME in str(refused.value)
    assert snapshot(path) == before
    with MessageStore.open(path) as store:
        assert store.recovered.clean and len(drain(store, "a")) == 20


class Machine:
    """A disk, and a store on it with the queues a and b, two messages on a, and the branch xid in doubt."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.vfs = SimVfs(self.disk)
        with self.opened() as store:
            store.declare("a")
            store.declare("b")
            store.declare_exchange("x", "fanout")
            for content in (b"1", b"2"):
                store.publish(content, queues=["a"])
            session = store.session()
            session.tpc_begin(b"xid")
            session.publish(b"doubt", queues=["b"])
            session.tpc_prepare()

    def open(self) -> MessageStore:
        return MessageStore.open("/s", options=SMALL, disk=self.disk, clock=self.clock, connect=self.vfs.connect)

    @contextmanager
    def opened(self) -> Iterator[MessageStore]:
        store = self.open()
        try:
            yield store
        finally:
            store._catalogue.close()
            self.disk.kill()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.vfs.unregister()


def seen(store: MessageStore) -> object:
    """Return what a refused call leaves as it is."""
    return (
        store.queues(),
        [[one.content for one in store.peek(queue, 500)] for queue in store.queues()],
        store.tpc_recover(),
        store.producers(),
        store._catalogue.rows(),
        store.pinned(),
    )


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_directory_that_cannot_be_written_is_named_at_each_call(machine: Machine, error: int) -> None:
    """An opening that fails at any of its calls says where, and takes nothing away."""
    at, told = 0, []
    while True:
        at += 1
        machine.disk.fail_at = {machine.disk.calls + at: error}
        try:
            with machine.opened():
                failed = bool(machine.disk.fail_at)
        except TranlogError as exc:
            told.append(str(exc))
            failed = False
        machine.disk.fail_at = {}
        with machine.opened() as store:
            assert (store.queues(), store.tpc_recover()) == ({"a": (2, 0), "b": (0, 0)}, [b"xid"]), f"call {at}"
            assert [one.content for one in store.peek("a", 5)] == [b"1", b"2"]
        if failed:
            break  # it made fewer calls than that
    assert at > 8 and told and all("/s" in one for one in told), told


# --- a full disk -----------------------------------------------------------------------------------------


def transacted(store: MessageStore) -> None:
    transaction = store.transaction()
    transaction.publish(b"x" * 700, queues=["a", "b"])
    try:
        transaction.commit()
    finally:
        transaction.rollback()


def prepared(store: MessageStore) -> None:
    session = store.session()
    session.tpc_begin(b"another")
    session.publish(b"x" * 700, queues=["a"])
    try:
        session.tpc_prepare()
    finally:
        session.tpc_rollback()


def large_in_a_transaction(store: MessageStore) -> None:
    with store.transaction() as transaction:
        transaction.publish(b"x" * 9_000, queues=["a"])


REFUSED: dict[str, tuple[Callable[[MessageStore], object], type[TranlogError]]] = {
    "publish": (lambda store: store.publish(b"x" * 700, queues=["a"]), DiskFullError),
    "to several queues": (lambda store: store.publish(b"x" * 700, queues=["a", "b"]), DiskFullError),
    "large": (lambda store: store.publish(b"x" * 20_000, queues=["a"]), DiskFullError),
    "once": (lambda store: store.publish_once("p", 1, b"x" * 700, queues=["a"]), DiskFullError),
    "transaction": (transacted, DiskFullError),
    "large in a transaction": (large_in_a_transaction, DiskFullError),
    "prepare": (prepared, DiskFullError),
    "declare": (lambda store: store.declare("q" * 200), CatalogueError),
    "declare exchange": (lambda store: store.declare_exchange("y" * 200, "topic"), CatalogueError),
    "bind": (lambda store: store.bind("x", queue="a", key="k" * 200), CatalogueError),
    "delete": (lambda store: store.delete("a"), CatalogueError),
}


@pytest.fixture
def full(machine: Machine) -> Iterator[MessageStore]:
    """A store that has no room for a message more, on a disk that has none at all."""
    with machine.opened() as store:
        machine.disk.room = 0
        for size in (700, 1):
            with suppress(DiskFullError):
                while True:
                    store.publish(b"w" * size, queues=["b"])
        yield store
        machine.disk.room = None


@pytest.mark.parametrize("name", REFUSED)
def test_a_full_disk_refuses_whatever_adds_and_changes_nothing(full: MessageStore, name: str) -> None:
    """At each kind of write; the store goes on, and what waits can be taken."""
    call, kind = REFUSED[name]
    before = seen(full)
    for _ in range(3):
        with pytest.raises(kind, match=r"/s\b.*(Free some space|No space)"):
            call(full)
        assert seen(full) == before
    assert drain(full, "a") == [b"1", b"2"] and len(drain(full, "b")) > 5
    full.tpc_rollback(b"xid")  # until then its container is needed
    full.publish(b"there is room again", queues=["a"])
    assert drain(full, "a") == [b"there is room again"]


def test_a_full_disk_below_a_free_container_closes_nothing(machine: Machine) -> None:
    """A file system that writes elsewhere what is written again, and a directory that has to grow for a name."""
    refused = closed = 0
    with machine.opened() as store:
        store.tpc_rollback(b"xid")
        store.purge("a")
    for at in range(1, 12):
        with machine.opened() as store:
            for _ in range(3):
                store.publish_many([b"w" * 900] * 10, queues=["b"])
                store.purge("b")
            assert store.status().containers_free, "one that is free is to be taken"
            machine.disk.fail_at = {machine.disk.calls + at: errno.ENOSPC}
            try:
                store.publish_many([b"w" * 900] * 10, queues=["b"], wait=False)
            except DiskFullError:
                refused += 1
                machine.disk.fail_at = {}
                store.publish(b"there is room again", queues=["b"])
                assert drain(store, "b")[-1] == b"there is room again"
            except DiskFailedError:  # a name of which nobody knows whether it is durable, or a record
                closed += 1
        machine.disk.fail_at = {}
    assert refused >= 3 and closed >= 1


DRAINS: dict[str, Callable[[MessageStore], object]] = {
    "ack": lambda store: store.ack(take(store, "a"), wait=True),
    "reject": lambda store: store.reject(take(store, "a"), wait=True),
    "requeue": lambda store: store.requeue(take(store, "a")),
    "purge": lambda store: store.purge("a"),
    "commit in doubt": lambda store: store.tpc_commit(b"xid"),
    "roll back in doubt": lambda store: store.tpc_rollback(b"xid"),
    "forget nothing": lambda store: store.producers(),
    "transaction of acks": lambda store: acks(store),
    "transient": lambda store: store.publish(b"x" * 10_000, queues=["a"], transient=True),
}


def acks(store: MessageStore) -> None:
    with store.transaction() as transaction:
        transaction.ack(take(store, "a"), take(store, "b"))


@pytest.mark.parametrize("name", DRAINS)
def test_a_full_disk_lets_whatever_makes_room(machine: Machine, full: MessageStore, name: str) -> None:
    DRAINS[name](full)
    waiting = {queue: count for queue, (count, _) in full.queues().items()}
    waiting["a"] -= name == "transient"
    full._catalogue.close()
    machine.disk.kill()
    machine.disk.room = None
    with machine.opened() as store:
        assert {queue: count for queue, (count, _) in store.queues().items()} == waiting


@pytest.mark.parametrize("room", range(81_920, 114_688, 4_096))
def test_what_a_transaction_leaves_free_at_the_ends_of_containers_is_not_that_of_answers(
    machine: Machine, room: int
) -> None:
    """Three of its records have no room in one container: whether it is refused or not, the rest is answered."""
    with machine.opened() as store:
        store.publish_many([b"w" * 100] * 40, queues=["b"])
        transaction = store.transaction()
        for _ in range(20):
            transaction.publish(b"x" * 2_650, queues=["a"])
        machine.disk.room = room
        try:
            transaction.commit()
        except DiskFullError:
            transaction.rollback()
        for delivery in store.get_many("b", 40):
            store.ack(delivery)
        store.tpc_rollback(b"xid")
        machine.disk.room = None


def test_what_makes_no_room_does_not_take_that_of_answers(full: MessageStore) -> None:
    for _ in range(500):
        full.requeue(take(full, "a"))
    for number in range(100):
        with pytest.raises(DiskFullError):
            full.publish_once("p", number, b"x", queues=[])
    assert drain(full, "a") == [b"1", b"2"] and len(drain(full, "b")) > 5


@pytest.fixture
def stuffed(machine: Machine) -> Iterator[MessageStore]:
    """A store with no room for an answer either: those of a fan-out free nothing."""
    with machine.opened() as store:
        store.declare("c")
        store.publish(b"late", queues=["c"], expires_at=machine.clock.now_ms() + 1_000)
        for _ in range(300):
            store.publish(b"w", queues=["b", "c"], wait=False)
        store.sync()
        machine.disk.room = 0
        with suppress(DiskFullError):
            while True:
                store.publish(b"w", queues=["b", "c"])
        yield store
        machine.disk.room = None


def leave_no_room(store: MessageStore) -> None:
    with suppress(DiskFullError):
        while True:
            store.ack(take(store, "b"))


def roll_back(store: MessageStore) -> Callable[[], object]:
    transaction = store.transaction()
    transaction.ack(*store.get_many("a", 2))
    return transaction.rollback


def close_session(store: MessageStore) -> Callable[[], object]:
    session = store.session()
    session.tpc_begin(b"open")
    session.ack(*store.get_many("a", 2))
    return session.close


def requeue(store: MessageStore) -> Callable[[], object]:
    found = store.get_many("a", 2)
    return lambda: store.requeue(*found)


@pytest.mark.parametrize("begin", [roll_back, close_session, requeue])
def test_what_comes_back_on_a_disk_without_any_room_is_on_its_queue(
    stuffed: MessageStore, begin: Callable[[MessageStore], Callable[[], object]]
) -> None:
    come_back = begin(stuffed)
    leave_no_room(stuffed)
    come_back()
    assert [(one.content, one.attempts) for one in stuffed.peek("a", 9)] == [(b"1", 1), (b"2", 1)]


def test_what_has_expired_is_in_nobodys_way_on_a_disk_without_any_room(machine: Machine, stuffed: MessageStore) -> None:
    leave_no_room(stuffed)
    machine.clock.advance(2)
    assert [one.content for one in stuffed.get_many("c", 3)] == [b"w"] * 3
    assert stuffed.queues()["c"][1] == 3


def test_a_queue_that_is_deleted_on_a_disk_without_any_room_frees_its_containers(
    machine: Machine, stuffed: MessageStore
) -> None:
    """The next opening knows it by the catalogue: nothing has to be written about its messages."""
    stuffed.tpc_rollback(b"xid")
    drain(stuffed, "a")
    leave_no_room(stuffed)
    for name in ("b", "c"):
        machine.disk.room = 20_000  # SQLite's journal takes 17,000 of it
        stuffed.delete(name)
        machine.disk.room = 0
    assert len(stuffed._core.state.messages) == 0
    for _ in range(100):
        stuffed.publish(b"w" * 900, queues=["a"])
        assert len(drain(stuffed, "a")) == 1
    stuffed.sync()
    stuffed._catalogue.close()
    machine.disk.kill()
    machine.disk.room = None
    with machine.opened() as store:
        assert store.queues() == {"a": (0, 0)} and not store.recovered.messages


def test_a_store_that_finds_the_disk_full_is_opened_later(machine: Machine) -> None:
    """With whatever room: it is opened, or says what is full, and nothing is lost."""
    told = []
    for room in range(0, 40_000, 1_500):
        machine.disk.room = room
        try:
            with machine.opened() as store:
                store.close()
        except TranlogError as exc:
            told.append(str(exc))
            machine.disk.kill()
    machine.disk.room = None
    with machine.opened() as store:
        assert [one.content for one in store.peek("a", 5)] == [b"1", b"2"] and store.tpc_recover() == [b"xid"]
    assert told and all("/s" in one for one in told), told


def test_a_store_that_cannot_be_made_for_want_of_room_is_made_later() -> None:
    disk = SimDisk()
    vfs = SimVfs(disk)
    told = []
    for room in (0, 4_096, 20_000, 30_000, 45_000, 60_000, None):
        disk.room = room
        try:
            store = MessageStore.open("/s", options=SMALL, disk=disk, clock=ManualClock(), connect=vfs.connect)
        except TranlogError as exc:
            told.append(str(exc))
            continue
        store.declare("a")
        store.publish(b"x", queues=["a"])
        store.close()
        break
    vfs.unregister()
    assert 2 < len(told) < 7 and all("/s" in one for one in told), told


def test_containers_for_which_there_is_no_room_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    """`initial_containers` may be a million: the disk would be full, and its other users stopped."""
    many = QueueStoreOptions(container_bytes=1 << 30, initial_containers=1 << 20)
    with pytest.raises(ConfigError, match=r"initial_containers .*1048576.* take 1125899906842624 bytes at .* free"):
        MessageStore.open(tmp_path / "new", options=many)
    (tmp_path / "old").mkdir()
    with pytest.raises(ConfigError, match="are free there"):
        MessageStore.open(tmp_path / "old", options=many)
    assert [*tmp_path.rglob("*")] == [tmp_path / "old"]
    with MessageStore.open(tmp_path / "old") as store:
        store.declare("a")
    with MessageStore.open(tmp_path / "old", options=many) as store:  # it keeps its containers
        assert store.queues() == {"a": (0, 0)}


# --- a clock that jumps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-DAY_MS, -1, DAY_MS])
def test_a_clock_that_jumps_changes_no_order_and_loses_nothing(machine: Machine, jump: int) -> None:
    """Ages are never below 0; a branch's time is not the wall clock's; only what is to expire goes by that."""
    with machine.opened() as store:
        session = store.session()
        session.tpc_begin(b"open")
        session.publish(b"later", queues=["b"])
        now = machine.clock.now_ms()
        store.publish(b"soon", queues=["a"], expires_at=now + 1_000)
        store.publish(b"3", queues=["a"], transient=True)
        machine.clock.set_ms(now + jump)
        store.publish(b"4", queues=["a"])
        assert all(one.oldest_ms is None or one.oldest_ms >= 0 for one in store.status().queues.values())
        assert all(one.age_ms is None or one.age_ms >= 0 for one in store.pinned())
        wanted = [b"1", b"2", *([b"soon"] if jump < 1_000 else []), b"3", b"4"]
        assert drain(store, "a") == wanted
        session.tpc_commit()
        assert drain(store, "b") == [b"later"]
        store.publish(b"5", queues=["a"])
        store.close()
    with machine.opened() as store:
        assert store.recovered.clean and drain(store, "a") == [b"5"]


# --- times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, -1, float("-inf")])
def test_a_time_to_wait_that_is_none_is_refused_by_its_name(tmp_path: Path, seconds: float) -> None:
    """Not a number is over at no moment: a call would wait for ever."""
    with MessageStore.open(tmp_path / "s") as store:
        store.declare("a")
        with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
            store.get("a", timeout_s=seconds)
        store.publish(b"1", queues=["a"])
        with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
            store.get_many("a", 1, timeout_s=seconds)
        for value in ("1", True):
            with pytest.raises(TypeError, match="timeout_s is a number of seconds, not"):
                store.get("a", timeout_s=value)  # type: ignore[arg-type]
        assert take(store, "a").content == b"1"

    async def play() -> None:
        async with AsyncStore(MessageStore.open(tmp_path / "s")) as store:
            with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
                await store.get("a", timeout_s=seconds)

    asyncio.run(play())


# --- copies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_store_and_its_deliveries_cannot_be_copied(tmp_path: Path, duplicate: Callable[[Any], object]) -> None:
    """A deep copy that failed half way had a second lock with the same file, and gave it back: the store was lost."""
    with MessageStore.open(tmp_path / "s") as store:
        store.declare("a")
        store.publish(b"1", queues=["a"])
        delivery = take(store, "a")
        assert repr([delivery]) == f"[<{delivery}>]"
        for one in (store, delivery, StoreReader.open(tmp_path / "s")):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                duplicate(one)
        gc.collect()
        store.ack(delivery)
        store.publish(b"2", queues=["a"])
        with pytest.raises(LogLockedError):
            MessageStore.open(tmp_path / "s")


# --- what looks ------------------------------------------------------------------------------------------


def test_a_count_that_is_none_is_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s") as store:
        store.declare("a")
        store.publish_many([b"1", b"2"], queues=["a"])
        reader = StoreReader.open(tmp_path / "s")
        for peek in (store.peek, reader.peek):
            assert peek("a", 0) == [] and len(peek("a", 1 << 64)) == 2
            with pytest.raises(ValueError, match="a count is 0 or more, not -1"):
                peek("a", -1)
            with pytest.raises(TypeError):
                peek("a", 1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a count is 1 or more, not 0"):
            store.get_many("a", 0)
        reader.close()


def test_headers_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    """A list of pairs has no names that a binding could ask for: the message would go nowhere."""
    with MessageStore.open(tmp_path / "s") as store:
        store.declare("a")
        store.declare_exchange("h", "headers")
        store.bind("h", queue="a", arguments={"format": "pdf"})
        with pytest.raises(TypeError, match="headers are a mapping, not"):
            store.publish(b"1", exchange="h", headers=[("format", "pdf")])  # type: ignore[arg-type]
        assert store.publish(b"1", exchange="h", headers={"format": "pdf"})
