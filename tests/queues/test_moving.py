"""Messages that are not moved out of the oldest container."""

from __future__ import annotations

from pathlib import Path

from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore

OPTIONS = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


def flow(store: MessageStore) -> None:
    """Have messages pass, which fill containers that nobody needs then."""
    for _ in range(60):
        store.publish(b"x" * 900, queues=["flow"], wait=False)
        store.purge("flow")


def test_a_message_on_more_queues_than_one_record_names_stays_until_it_has_left_some(tmp_path: Path) -> None:
    """It is told as pinned; the store goes on."""
    with MessageStore.open(tmp_path / "store", options=OPTIONS) as store:
        names = [f"q{number}" for number in range(160)]
        with store._journal.lock:
            store._catalogue._database.run("pragma synchronous = off")
        for name in ("flow", *names):
            store.declare(name)
        message = store.publish(b"wide", queues=names)
        flow(store)
        assert [(one.what, one.id, list(one.queues)) for one in store.pinned()] == [("message", message, names)]
        for name in names[:50]:
            store.purge(name)
        flow(store)
        assert store.pinned() == [] and store.status().containers_in_use < 8
        assert [one.content for one in store.peek("q159")] == [b"wide"]
