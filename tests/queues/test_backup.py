"""A copy of a store: log and catalogue as of one moment, whole or not there, and a store again when it is restored."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tranlog.errors import CatalogueError, ConfigError, StoreDamagedError
from tranlog.queues.backup import back_up, restore_store
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.store import MessageStore
from tranlog.testing.servers import PostgresAddress

SMALL = QueueStoreOptions(container_bytes=12_288, ack_sync_s=None)


def drain(store: MessageStore, queue: str) -> list[bytes]:
    found = []
    while (delivery := store.get(queue)) is not None:
        found.append(delivery.content)
        store.ack(delivery)
    return found


def filled(store: MessageStore) -> None:
    """Three containers and more, a branch in doubt, a producer, a queue that was deleted."""
    for name in ("a", "b", "gone"):
        store.declare(name)
    store.declare_exchange("x", "fanout")
    store.bind("x", queue="a")
    for number in range(30):
        store.publish(b"%d" % number * 400, queues=["a"], wait=False)
    session = store.session()
    session.tpc_begin(b"xid")
    session.publish(b"doubt", queues=["b"])
    session.tpc_prepare()
    store.publish_once("p", 7, b"last", queues=["a"])
    store.delete("gone")


WANTED = [*(b"%d" % number * 400 for number in range(30)), b"last"]


def test_a_store_that_runs_is_copied_as_of_one_moment(tmp_path: Path) -> None:
    """What comes later is not in it, and changes nothing of it; what is not synced yet is."""
    copy = str(tmp_path / "copy")
    with MessageStore.open(tmp_path / "s", options=SMALL) as store:
        filled(store)
        store.publish(b"unsynced", queues=["b"], wait=False)
        found = back_up(store, copy)
        assert (found.messages, found.in_doubt, found.queues) == (33, 1, 2)
        store.declare("later")
        store.purge("a")
        with pytest.raises(ConfigError, match="name another directory"):
            back_up(store, copy)
    restore_store(copy, str(tmp_path / "again"))
    with MessageStore.open(tmp_path / "again") as store:
        assert store.queues() == {"a": (31, 0), "b": (1, 0)}
        assert (store.tpc_recover(), store.producers(), store.route("x", "")) == ([b"xid"], {"p": 7}, ["a"])
        assert drain(store, "a") == WANTED
        store.tpc_commit(b"xid")
        assert drain(store, "b") == [b"unsynced", b"doubt"]


def test_threads_publish_on_while_a_store_is_copied(tmp_path: Path) -> None:
    """Of each thread the copy has a beginning of what it published."""
    with MessageStore.open(tmp_path / "s", options=SMALL) as store:
        store.declare("q")
        began = threading.Barrier(4)

        def produce(one: int) -> None:
            for number in range(40):
                store.publish(b"%d/%d" % (one, number), queues=["q"])
                if number == 10:
                    began.wait()

        threads = [threading.Thread(target=produce, args=(one,)) for one in range(3)]
        for thread in threads:
            thread.start()
        began.wait()
        back_up(store, str(tmp_path / "copy"))
        for thread in threads:
            thread.join()
    with MessageStore.open(tmp_path / "copy") as store:
        found = drain(store, "q")
    for one in range(3):
        mine = [content for content in found if content.startswith(b"%d/" % one)]
        assert len(mine) > 10 and mine == [b"%d/%d" % (one, number) for number in range(len(mine))]


def test_what_is_broken_or_damaged_is_not_restored(tmp_path: Path) -> None:
    copy, again = tmp_path / "copy", str(tmp_path / "again")
    with MessageStore.open(tmp_path / "s", options=SMALL) as store:
        filled(store)
        back_up(store, str(copy))
    (tmp_path / "again.new").mkdir()
    with pytest.raises(ConfigError, match="broken off"):
        restore_store(str(copy), again)
    (tmp_path / "again.new").rmdir()
    shutil.copytree(copy, tmp_path / "torn")
    first = min((tmp_path / "torn").glob("queue.*"))
    raw = bytearray(first.read_bytes())
    raw[5_000] ^= 1
    first.write_bytes(raw)
    with pytest.raises(StoreDamagedError, match=first.name):
        restore_store(str(tmp_path / "torn"), again)
    (copy / "catalogue.db").unlink()
    with pytest.raises(CatalogueError):
        restore_store(str(copy), again)
    for nowhere in (tmp_path / "no" / "where", first / "copy", Path("/proc/copy")):
        with MessageStore.open(tmp_path / "s") as store:
            with pytest.raises(ConfigError, match="cannot be made: "):
                back_up(store, str(nowhere))
            assert len(store.queues()) == 2
    assert not Path(again).exists() and not Path(again + ".new").exists()


@pytest.mark.integration
def test_a_backup_goes_from_one_database_to_the_other(
    tmp_path: Path, postgres: PostgresAddress, postgres_database: str
) -> None:
    """Ids are given out once, also over that; an open store's catalogue is not replaced."""
    dsn = postgres.dsn(postgres_database)
    with MessageStore.open(tmp_path / "s", options=SMALL) as store:
        filled(store)
        back_up(store, str(tmp_path / "copy"))
        newest = store.declare("newest")
    restore_store(str(tmp_path / "copy"), str(tmp_path / "pg"), connect=dsn)
    with MessageStore.open(tmp_path / "pg") as store:
        assert drain(store, "a") == WANTED
        assert store.declare("other") >= newest
        back_up(store, str(tmp_path / "copy2"))
        with pytest.raises(CatalogueError, match="another process works on it"):
            restore_store(str(tmp_path / "copy"), str(tmp_path / "no"), connect=dsn)
        assert not (tmp_path / "no.new").exists()
    restore_store(str(tmp_path / "copy"), str(tmp_path / "pg2"), connect=dsn)
    with MessageStore.open(tmp_path / "pg2") as store:
        assert "other" not in store.queues() and drain(store, "a") == WANTED
    with pytest.raises(CatalogueError, match="older copy"):
        MessageStore.open(tmp_path / "pg")
    restore_store(str(tmp_path / "copy2"), str(tmp_path / "lite"))
    with MessageStore.open(tmp_path / "lite") as store:
        assert store.queues()["other"] == (0, 0)
