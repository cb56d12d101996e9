"""How much memory a store takes: for a message that waits, for content, for one message of any size."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tranlog import compiled
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore

MB = 1 << 20
MOST = 400 if compiled.why_plain is None else 480
"""What a waiting message may cost in bytes; its parts are larger where they are not compiled."""
_PARTS = [random.Random(seed).randbytes(65_000) for seed in range(8)]


def traced(store: MessageStore, contents: Iterator[bytes]) -> int:
    """Return how many bytes of memory publishing these takes."""
    for _ in range(1_000):  # what every store has
        store.publish(b"x" * 300, queues=["a"], wait=False)
    store.sync()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for content in contents:
            store.publish(content, queues=["a"], wait=False)
        store.sync()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_a_waiting_message_costs_under_400_bytes_beside_its_content(tmp_path: Path) -> None:
    """Also where other messages and queues are: its entry in each map, and in its queue's row, is counted."""
    count = 30_000
    with MessageStore.open(tmp_path / "s", options=QueueStoreOptions(content_bytes=0, ack_sync_s=None)) as store:
        store.declare("a")
        assert traced(store, (b"%d" % number * 60 for number in range(count))) / count < MOST


@pytest.mark.long
def test_a_recovered_message_costs_under_400_bytes(tmp_path: Path) -> None:
    """Also where half of those that were published are gone."""
    count, options = 10_000, QueueStoreOptions(content_bytes=0, ack_sync_s=None)
    with MessageStore.open(tmp_path / "s", options=options) as store:
        store.declare("a")
        store.publish_many([b"x" * 300] * count, queues=["a"])
        store.ack(*store.get_many("a", count)[::2])
    with MessageStore.open(tmp_path / "s", options=options):  # what every opening takes is there then
        pass
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with MessageStore.open(tmp_path / "s", options=options) as store:
            assert store.recovered.messages == count // 2
            assert (tracemalloc.get_traced_memory()[0] - before) / (count // 2) < MOST
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_content_in_memory_stays_under_its_bound_with_ten_times_that_waiting(tmp_path: Path) -> None:
    options = QueueStoreOptions(content_bytes=2 * MB, ack_sync_s=None)
    with MessageStore.open(tmp_path / "s", options=options) as store:
        store.declare("a")
        most = 2 * MB + 2_000 * 500
        assert traced(store, (os.urandom(10_000) for _ in range(2_000))) < most
        assert sum(len(one.content or b"") for one in store._core.state.messages.values()) <= 2 * MB
        store.purge("a")
        assert store._core._room == 2 * MB
        assert MB < traced(store, (os.urandom(10_000) for _ in range(1_000))) < most, "there is room again"


def large(path: str, size: int) -> None:
    """Publish one message of so many bytes, take it, and print its checksum there and back, and the memory it took."""

    def parts(digest: hashlib._Hash) -> Iterator[bytes]:
        left = size
        for number in range(1 << 30):
            if not left:
                return
            part = _PARTS[number % len(_PARTS)][:left]
            digest.update(part)
            left -= len(part)
            yield part

    put, got = hashlib.sha256(), hashlib.sha256()
    with MessageStore.open(path) as store:
        store.declare("a")
        store.publish(b"a small one first" * 9_000, queues=["a"])
        delivery = store.get("a")
        assert delivery is not None
        store.ack(delivery)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store.publish(parts(put), length=size, queues=["a"])
    with MessageStore.open(path) as store:
        delivery = store.get("a")
        assert delivery is not None
        for part in delivery.sections():
            got.update(part)
        store.ack(delivery, wait=True)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(put.hexdigest() == got.hexdigest(), more // 1024)


@pytest.mark.parametrize(
    ("size", "most_mb"),
    [
        pytest.param(100 * MB, 24, marks=pytest.mark.long),
        pytest.param(1024 * MB, 64, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_large_message_is_streamed_in_and_out(tmp_path: Path, size: int, most_mb: int) -> None:
    """In a process of its own, which has taken memory for nothing else; over an opening, which reads all of it."""
    program = [sys.executable, __file__, str(tmp_path / "s"), str(size)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same, more_mb = done.stdout.split()
    assert same == "True" and int(more_mb) < most_mb, done.stdout


if __name__ == "__main__":
    large(sys.argv[1], int(sys.argv[2]))


def test_the_header_of_a_large_message_is_read_without_its_content(tmp_path: Path) -> None:
    options, head = QueueStoreOptions(content_bytes=0), os.urandom(100_000)
    with MessageStore.open(tmp_path / "s", options=options) as store:
        store.declare("a")
        store.publish(iter(_PARTS), length=8 * 65_000, header=head, queues=["a"])
        delivery = store.get("a")
        assert delivery is not None
        tracemalloc.start()
        try:
            assert delivery.header == head
            assert tracemalloc.get_traced_memory()[1] < 8 * 65_000
        finally:
            tracemalloc.stop()
        assert b"".join(delivery.parts()) == delivery.content == b"".join(_PARTS)
