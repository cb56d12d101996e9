"""Values that are of no use: each is refused before anything is done, and the store goes on for everybody else."""

from __future__ import annotations

import os
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tranlog.errors import DeclaredOtherwiseError, LogClosedError, QueueError, UnknownQueueError
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    options = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)
    with MessageStore.open(tmp_path / "store", options=options) as made:
        made.declare("a")
        made.declare("b")
        made.declare_exchange("e", "fanout")
        made.publish(b"kept", queues=["a"])
        yield made


def _prepare(store: MessageStore, xid: Any) -> None:
    session = store.session()
    session.tpc_begin(xid)
    session.tpc_prepare()


def _in_a_branch(store: MessageStore, call: Callable[[Any], object]) -> None:
    session = store.session()
    session.tpc_begin(b"of another test")
    try:
        call(session)
    finally:
        session.tpc_rollback()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.publish(b"x", queues=["a"], expires_at=1.5),
        lambda store: store.publish(b"x", queues=["a"], expires_at=0.0),
        lambda store: store.publish(b"x", queues=["a"], expires_at=None),
        lambda store: store.publish(b"x", queues=["a"], priority="1"),
        lambda store: store.publish(b"x", queues=["a"], header="h"),
        lambda store: store.publish(["text"], length=4, queues=["a"]),
        lambda store: store.publish([b"x" * 200_000], length=2e5, queues=["a"]),
        lambda store: store.publish([b"x" * 100_000, "text"], length=200_000, queues=["a"]),
        lambda store: store.publish("text", queues=["a"]),
        lambda store: store.publish(iter(()), length=100_000, queues=["a"]),
        lambda store: store.publish(b"x", queues=[["a"]]),
        lambda store: store.publish(b"x", queues=["a", 7]),
        lambda store: store.publish(b"x", queues=b"a"),
        lambda store: store.publish_many([b"x"], queues=[None]),
        lambda store: store.publish_many([b"x"], queues=["a", b"b"]),
        lambda store: store.publish_once("p", 1, b"x", queues=[7]),
        lambda store: store.transaction().publish(b"x", queues=["a", 7]),
        lambda store: store.publish_many(["text"], queues=["a"]),
        lambda store: store.publish_many([b"x"], queues=["a"], expires_at=1.5),
        lambda store: store.publish_once("p", 1.0, b"x", queues=["a"]),
        lambda store: store.publish_once(7, 1, b"x", queues=["a"]),
        lambda store: store.transaction().publish("text", queues=["a"]),
        lambda store: store.transaction().publish(b"x", queues=["a"], header="h"),
        lambda store: store.transaction().publish(b"x", queues=["a"], priority=1.5),
        lambda store: store.transaction().publish([b"x"], queues=["a"]),
        lambda store: store.transaction().ack(store.get("b", timeout_s=0)),
        lambda store: store.transaction().ack(store.get("b")),
        lambda store: store.ack(store.get("b")),
        lambda store: store.ack([]),
        lambda store: store.reject("text"),
        lambda store: store.requeue(None),
        lambda store: store.get(["a"]),
        lambda store: store.get("a", timeout_s="soon"),
        lambda store: store.get_many("a", "many"),
        lambda store: store.peek("a", "many"),
        lambda store: store.purge(["a"]),
        lambda store: store.delete(["a"]),
        lambda store: store.forget_producer(7),
        lambda store: store.forget_producer(["p"]),
        lambda store: store.declare(7),
        lambda store: store.declare("c", arguments="text"),
        lambda store: store.declare_exchange(b"x", "topic"),
        lambda store: store.declare_exchange("x", "topic", alternate=7),
        lambda store: store.bind("e", queue="a", key=7),
        lambda store: store.bind("e", queue="a", arguments=7),
        lambda store: store.bind("e", queue="a", arguments={"x": b"y"}),
        lambda store: store.bind("e", queue="a", arguments={"x": float("nan")}),
        lambda store: store.publish(b"x", key=b"a"),
        lambda store: store.publish(b"x", queues="a"),
        lambda store: store.get_many("a", float("inf")),
        lambda store: store.bind("e"),
        lambda store: store.bind("e", queue="a", destination="e"),
        lambda store: store.unbind("e"),
        lambda store: _prepare(store, "text"),
        lambda store: _prepare(store, None),
        lambda store: store.tpc_commit(["text"]),
        lambda store: _in_a_branch(store, lambda session: session.ack(None)),
        lambda store: _in_a_branch(store, lambda session: session.publish("text", queues=["a"])),
        lambda store: _in_a_branch(store, lambda session: session.publish(b"x", queues=[["a"]])),
        lambda store: _in_a_branch(store, lambda session: session.publish(b"x", queues=["a", 7])),
        lambda store: _in_a_branch(store, lambda session: session.set_timeout(None)),
        lambda store: store.session().tpc_begin(b"x" * 1_025),
    ],
)
def test_what_is_of_no_use_is_refused_and_changes_nothing(
    store: MessageStore, call: Callable[[MessageStore], object]
) -> None:
    """A value of another kind in one thread's call neither closes the store for the others nor leaves a part of it."""
    with pytest.raises((TypeError, ValueError, QueueError)):
        call(store)
    assert [one.content for one in store.peek("a", 9)] == [b"kept"] and store.tpc_recover() == []
    assert len(store._core.state.messages) == 1 and not store._core.held
    store.publish(b"y", queues=["a"])
    assert [one.content for one in store.get_many("a", 9)] == [b"kept", b"y"]


@pytest.mark.parametrize("name", ["", "ü" * 128, "\ud800"])
def test_a_producer_has_a_name_that_any_other_thing_can_have(store: MessageStore, name: str) -> None:
    with pytest.raises(DeclaredOtherwiseError, match="its name"):
        store.publish_once(name, 1, b"x", queues=["a"])
    with pytest.raises(UnknownQueueError, match="producer"):
        store.forget_producer(name)
    assert store.producers() == {}


def test_content_in_items_of_several_bytes_is_stored_by_its_bytes(tmp_path: Path) -> None:
    """A section may be no longer than a record: an opening would take it for damage."""
    items, path = array("I", range(30_000)), tmp_path / "store"
    raw = items.tobytes()
    with MessageStore.open(path) as store:
        store.declare("a")
        store.publish(memoryview(items), queues=["a"])
        store.publish([memoryview(items), memoryview(items)[::2], b"end"], length=180_003, queues=["a"])
        many: list[Any] = [memoryview(items), memoryview(array("I"))]
        store.publish_many(many, queues=["a"])
    with MessageStore.open(path) as store:
        wanted = [raw, raw + memoryview(items)[::2].tobytes() + b"end", raw, b""]
        assert [one.content for one in store.get_many("a", 9)] == wanted


def test_a_closed_store_answers_nothing(store: MessageStore) -> None:
    session = store.session()
    store.close()
    for call in (store.queues, store.producers, store.pinned, store.tpc_recover, session.tpc_recover, store.status):
        with pytest.raises(LogClosedError):
            call()
    with pytest.raises(LogClosedError):
        store.route("", "a")


def test_ctrl_c_in_a_wait_for_a_message_closes_nothing(store: MessageStore) -> None:
    """A consumer's loop mostly ends so, and what it holds is still to be answered."""
    delivery = store.get("a")
    assert delivery is not None

    def press() -> None:
        while not store._journal.changed._waiting:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        next(store.consume("a"))
    presses.join()
    store.requeue(delivery)
    assert store.get("a") is not None
