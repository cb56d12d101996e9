"""A message store read without owning it: item 10's read-only opening beside a running owner, which changes no byte."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tranlog.disk import OsDisk, OsFile
from tranlog.errors import LogUnreadableError, NotHeldError, StoreDamagedError, StoreMissingError, UnknownQueueError
from tranlog.queues.files import beside
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.reader import StoreReader
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


class NoWrites(OsDisk):
    """A disk that is only read."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        assert not write and not create, path
        return super().open(path)

    def _refuse(self, *arguments: object) -> None:
        raise AssertionError(f"a reader changes nothing: {arguments}")

    make_dir = unlink = rename = sync_dir = _refuse  # type: ignore[assignment]
    lock = _refuse  # type: ignore[assignment]


def no_writes() -> Any:
    return NoWrites()


def everything(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(one.relative_to(path)): (one.read_bytes(), one.stat().st_mtime_ns)
        for one in sorted(path.rglob("*"))
        if one.is_file()
    }


def test_a_reader_beside_the_owner_sees_what_is_written_and_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "mail"
    clock = ManualClock()
    with MessageStore.open(path, options=SMALL, clock=clock) as store:
        store.declare("a")
        store.declare("b")
        for number in range(20):
            store.publish(b"%d" % number * 300, queues=["a"], header=b"h%d" % number)
        large = store.publish(iter([b"x" * 9_000, b"y" * 9_000]), queues=["b"], length=18_000)
        store.publish_once("till", 7, b"once", queues=["b"])
        session = store.session()
        session.tpc_begin(b"transfer")
        session.publish(b"not seen", queues=["a"])
        session.tpc_prepare()
        assert store.get("a") is not None
        before = everything(path)
        with StoreReader.open(path, disk=no_writes(), clock=clock) as reader:
            assert reader.queues() == {"a": 20, "b": 2}  # one of them is held, which only the owner knows
            assert [(one.header, one.content) for one in reader.peek("a", 2)] == [
                (b"h0", b"0" * 300),
                (b"h1", b"1" * 300),
            ]
            (first, second) = reader.peek("b", 5)
            assert (first.id, first.content) == (large, b"x" * 9_000 + b"y" * 9_000) and second.content == b"once"
            assert (reader.tpc_recover(), reader.producers()) == ([b"transfer"], {"till": 7})
            mine, its = reader.status(), store.status()
            assert (mine.containers_in_use, mine.containers_free) == (its.containers_in_use, its.containers_free)
            assert (mine.in_doubt, mine.queues["a"].held, mine.syncs) == (its.in_doubt, None, None)
            assert (its.queues["a"].waiting, its.queues["a"].held) == (19, 1)
            assert reader.pinned() == store.pinned()
            with pytest.raises(UnknownQueueError):
                reader.peek("c")
            assert everything(path) == before
            store.publish(b"later", queues=["b"])
            assert reader.queues()["b"] == 2
            reader.refresh()
            assert reader.queues()["b"] == 3
            store.delete("b")
            for number in range(200):
                store.publish(b"%d" % number * 300, queues=["a"])
            store.purge("a")
            store.sync()
            with pytest.raises(NotHeldError, match="gone, or was moved"):
                _ = first.content
            reader.refresh()
            assert reader.queues() == {"a": 1}  # it is held
    with StoreReader.open(path, disk=no_writes()) as reader:
        assert reader.status().recovered.clean and reader.queues() == {"a": 1}


def test_what_has_expired_is_not_shown(tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore.open(tmp_path / "mail", options=SMALL, clock=clock) as store:
        store.declare("a")
        store.publish(b"old", queues=["a"], expires_at=clock.now_ms() + 10)
        store.publish(b"new", queues=["a"])
        with StoreReader.open(tmp_path / "mail", clock=clock) as reader:
            assert len(reader.peek("a", 5)) == 2
            clock.advance(1)
            assert [one.content for one in reader.peek("a", 5)] == [b"new"]
            assert reader.status().queues["a"].oldest_ms == 1_000


def test_a_store_is_read_as_its_crash_left_it(tmp_path: Path) -> None:
    """What an opening would find is told, and is there afterwards: nothing was mended."""
    with MessageStore.open(tmp_path / "mail", options=SMALL) as store:
        store.declare("a")
        store.publish(b"x", queues=["a"])
        with StoreReader.open(tmp_path / "mail") as reader:
            found = reader.status().recovered
            assert (found.clean, found.messages, found.rolled_back, found.epoch) == (False, 1, 0, store.recovered.epoch)


class Meddling(OsDisk):
    """A disk on which something happens at a call: `at` says after how many openings of containers."""

    def __init__(self, happen: Callable[[], None], at: int) -> None:
        self.happen, self.left = happen, at

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        file = super().open(path, write=write, create=create)
        if "queue." in path:
            self.left -= 1
            if self.left == 0:
                self.happen()
        return file


@pytest.mark.parametrize("at", range(1, 9))
def test_containers_that_are_used_again_while_they_are_read_are_no_damage(tmp_path: Path, at: int) -> None:
    """At each opening of a container the owner turns all of them over; the reader begins again."""
    with MessageStore.open(tmp_path / "mail", options=SMALL) as store:
        store.declare("a")
        for number in range(60):
            store.publish(b"%d" % number * 200, queues=["a"])

        def turn_over() -> None:
            store.purge("a")
            for number in range(100):
                store.publish(b"n%d" % number * 200, queues=["a"])

        disk = Meddling(turn_over, at)
        with StoreReader.open(tmp_path / "mail", disk=disk) as reader:
            assert disk.left <= 0
            found = [one.content for one in reader.peek("a", 1000)]
            assert found == [b"n%d" % number * 200 for number in range(100)]


def test_an_owner_that_is_always_faster_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "LOOKS_MOST", 3)
    with MessageStore.open(tmp_path / "mail", options=SMALL) as store:
        store.declare("a")

        class Always(Meddling):
            def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
                self.left = 1
                return super().open(path, write=write, create=create)

        def turn_over() -> None:
            store.purge("a")
            for number in range(60):
                store.publish(b"%d" % number * 200, queues=["a"])

        with pytest.raises(LogUnreadableError, match="Ask the owner"):
            StoreReader.open(tmp_path / "mail", disk=Always(turn_over, 1))


def test_damage_is_found_and_a_store_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "mail"
    with pytest.raises(StoreMissingError):
        StoreReader.open(path)
    path.mkdir()
    with pytest.raises(StoreMissingError, match="no container"):
        StoreReader.open(path)
    with MessageStore.open(path, options=SMALL) as store:
        store.declare("a")
        for number in range(60):
            store.publish(b"%d" % number * 200, queues=["a"])
    first = min(name for name in os.listdir(path) if name.startswith("queue."))
    raw = bytearray((path / first).read_bytes())
    raw[8_000] ^= 1
    (path / first).write_bytes(raw)
    with pytest.raises(StoreDamagedError, match=first):
        StoreReader.open(path)


@pytest.mark.long
def test_a_reader_beside_an_owner_at_full_speed_sees_a_state_that_there_was(tmp_path: Path) -> None:
    """Messages are published and answered in order, so each look finds a run of them, numbered here by priority."""
    path, over = tmp_path / "mail", threading.Event()
    with MessageStore.open(path, options=SMALL) as store:
        store.declare("a")

        def turn() -> None:
            number = 0
            while not over.is_set():
                store.publish(b"x" * 500, queues=["a"], priority=number % 256, wait=number % 7 == 0)
                number += 1
                if number > 40 and (delivery := store.get("a")) is not None:
                    store.ack(delivery)

        owner = threading.Thread(target=turn)
        owner.start()
        try:
            with StoreReader.open(path) as reader:
                for _ in range(60):
                    reader.refresh()
                    found = [one.priority for one in reader.peek("a", 1000)]
                    assert found == [(found[0] + number) % 256 for number in range(len(found))]
        finally:
            over.set()
            owner.join()
