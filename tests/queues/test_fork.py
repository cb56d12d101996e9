"""One owner: the process that opened a message store is the only one that uses it, whatever it forks.

Real forks, on the machine's own files, with the catalogue in SQLite and in PostgreSQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fix_fork import in_child
from fix_postgres import PostgresServer
from tranlog.errors import LogClosedError, LogLockedError
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore

pytestmark = pytest.mark.long


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(LogClosedError, match="forked from it"):
        call()


def files_of(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store with a queue and two messages."""
    with MessageStore.open(tmp_path / "s", options=QueueStoreOptions(ack_sync_s=None)) as opened:
        opened.declare("a")
        opened.publish(b"1", queues=["a"])
        opened.publish(b"2", queues=["a"])
        yield opened


def uses(store: MessageStore) -> list[Callable[[], object]]:
    """What a program does with a store that has a message to give."""
    held = store.get("a")
    assert held is not None
    branch = store.transaction()
    return [
        lambda: store.publish(b"child", queues=["a"]),
        lambda: store.publish(b"child", queues=["a"], wait=False),
        lambda: store.publish(bytes(1 << 20), queues=["a"]),
        lambda: store.publish_many([b"child"], queues=["a"]),
        lambda: store.get("a"),
        lambda: store.ack(held),
        lambda: store.reject(held),
        lambda: store.requeue(held),
        lambda: store.purge("a"),
        lambda: store.declare("child"),
        lambda: store.delete("a"),
        lambda: store.declare_exchange("child", "fanout"),
        lambda: store.status(),
        lambda: store.sync(),
        lambda: branch.publish(b"child", queues=["a"]),
        lambda: branch.ack(held),
        branch.commit,
    ]


def test_a_child_is_refused_at_each_call_and_changes_no_byte(store: MessageStore) -> None:
    """It changed the catalogue, and its parent was refused every change of it from then on."""
    calls, path = uses(store), Path(store.path)
    store.sync()
    before = files_of(path)

    def child() -> None:
        for call in calls:
            refused(call)
        assert "forked" in store.closed_by()
        store.close()
        store.close()
        with pytest.raises(LogLockedError):
            MessageStore.open(path)

    for call in calls:  # each as the first that the child does
        in_child(partial(refused, call))
    in_child(child)
    assert files_of(path) == before
    with pytest.raises(LogLockedError):  # the child's end gave nothing back
        MessageStore.open(path)
    store.declare("b")
    store.publish(b"3", queues=["a", "b"])
    assert [one.content for one in store.peek("a", 9)] == [b"2", b"3"]


def test_a_child_waits_for_no_lock_that_its_parent_held(store: MessageStore) -> None:
    """Every call hung, its end too."""
    calls, held, over = uses(store), threading.Event(), threading.Event()

    def hold() -> None:
        with store._journal.lock:
            held.set()
            over.wait()

    def child() -> None:
        for call in calls:
            refused(call)
        store.close()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    try:
        in_child(child)
    finally:
        over.set()
        holding.join()
    store.publish(b"3", queues=["a"])


@pytest.mark.integration
def test_a_child_ends_no_session_of_its_parents(tmp_path: Path, start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres()
    options = QueueStoreOptions(connect=server.dsn("postgres"), ack_sync_s=None)
    with MessageStore.open(tmp_path / "s", options=options) as store:
        store.declare("a")

        def child() -> None:
            refused(lambda: store.declare("child"))
            store.close()

        in_child(child)
        store.declare("b")
        assert sorted(store.queues()) == ["a", "b"]
