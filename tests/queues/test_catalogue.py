"""The catalogue of a message store: what is declared stays, ids are never given out twice, each change is one commit.

Conformance A1 of the message store.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from psycopg.conninfo import make_conninfo

from fix_effort import Effort
from fix_sqlite_disk import SimVfs
from tranlog.errors import CatalogueError, DeclaredOtherwiseError, UnknownQueueError
from tranlog.queues.files.catalogue import Catalogue, CatalogueDatabase
from tranlog.queues.files.catalogue_postgres import PostgresCatalogue
from tranlog.queues.files.catalogue_sqlite import SqliteCatalogue
from tranlog.testing.disk import PowerCut, SimDisk
from tranlog.testing.servers import PostgresAddress, PostgresServer

STORE = bytes(range(16))


Opens = Callable[[], CatalogueDatabase]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "catalogue.db")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def opens(request: pytest.FixtureRequest, path: str) -> Opens:
    """Opens a session of one database, again and again."""
    if request.param == "sqlite":
        return lambda: SqliteCatalogue(path)
    server = request.getfixturevalue("postgres")
    name = request.getfixturevalue("postgres_database")
    return lambda: PostgresCatalogue(server.dsn(name))


@pytest.fixture
def catalogue(opens: Opens) -> Iterator[Catalogue]:
    made = Catalogue(opens())
    made.load(STORE, 5)
    yield made
    made.close()


def again(opens: Opens) -> Catalogue:
    found = Catalogue(opens(), reading=True)
    try:
        found.load(None, 0)
    finally:
        found.close()
    return found


def test_what_was_declared_is_there_again(catalogue: Catalogue, opens: Opens) -> None:
    """store.py: testDurableQueues, testDurableExchange, testDurableBindings; SimpleTest: ExchangeBindAndUnbind."""
    queue = catalogue.declare_queue("q\0'ü", b"args")
    catalogue.declare_exchange("x", "topic", alternate="y", arguments=b"more")
    catalogue.declare_exchange("y", "fanout")
    catalogue.bind("x", queue="q\0'ü", key="it's.*", arguments=b"1")
    catalogue.bind("x", destination="y", key="")
    found = again(opens)
    assert found.queues == catalogue.queues == {"q\0'ü": queue}
    assert found.exchanges == catalogue.exchanges
    assert found.exchanges["x"].alternate == "y"
    assert found.bindings == catalogue.bindings
    assert len(found.bindings) == 2
    assert (found.store_id, found.counter) == (STORE, 6)


def test_an_id_is_never_given_out_twice(catalogue: Catalogue) -> None:
    """A1.10: records of a deleted queue must not attach to a new one."""
    first = catalogue.declare_queue("q")
    assert first.id > 0
    assert catalogue.declare_queue("q") == first
    catalogue.delete_queue("q")
    assert catalogue.declare_queue("q").id > first.id


def test_deleting_takes_bindings_along(catalogue: Catalogue, opens: Opens) -> None:
    """A1.5, A1.6; SimpleTest: ExchangeImplicitUnbind; persistence.py: test_queue_deletion."""
    catalogue.declare_queue("q")
    catalogue.declare_queue("r")
    catalogue.declare_exchange("x", "direct")
    catalogue.declare_exchange("y", "direct")
    for queue in ("q", "r"):
        catalogue.bind("x", queue=queue, key="k")
    catalogue.bind("y", destination="x", key="k")
    catalogue.delete_queue("q")
    assert len(catalogue.bindings) == 2
    catalogue.delete_exchange("x")
    assert catalogue.bindings == again(opens).bindings == []


def test_a_binding_is_there_once_and_unbound_by_all_that_it_is(catalogue: Catalogue) -> None:
    """A1.7, A1.11: the ancestor stored duplicates and broke at a quote in a key."""
    catalogue.declare_queue("q")
    catalogue.declare_exchange("x", "direct")
    one = catalogue.bind("x", queue="q", key="'; drop table queue; --")
    assert catalogue.bind("x", queue="q", key="'; drop table queue; --") == one
    catalogue.bind("x", queue="q", key="'; drop table queue; --", arguments=b"2")
    catalogue.unbind("x", queue="q", key="'; drop table queue; --")
    assert [binding.arguments for binding in catalogue.bindings] == [b"2"]
    with pytest.raises(UnknownQueueError, match="binding of exchange 'x' to 'q'"):
        catalogue.unbind("x", queue="q", key="'; drop table queue; --")


@pytest.mark.parametrize("name", ["", "ü" * 128, "\ud800"], ids=["empty", "long", "no UTF-8"])
def test_a_name_that_none_can_have_is_refused(catalogue: Catalogue, name: str) -> None:
    """A1.9: the ancestor logged an error and went on."""
    counter = catalogue.counter
    with pytest.raises(DeclaredOtherwiseError, match="its name"):
        catalogue.declare_queue(name)
    with pytest.raises(DeclaredOtherwiseError, match="its name"):
        catalogue.declare_exchange(name, "direct")
    with pytest.raises(DeclaredOtherwiseError, match="its alternate"):
        catalogue.declare_exchange("x", "direct", alternate=name)
    assert catalogue.counter == counter


def test_other_properties_are_refused(catalogue: Catalogue) -> None:
    catalogue.declare_queue("q", b"1")
    catalogue.declare_exchange("x", "direct")
    with pytest.raises(DeclaredOtherwiseError, match="other arguments"):
        catalogue.declare_queue("q", b"2")
    with pytest.raises(DeclaredOtherwiseError, match="other properties"):
        catalogue.declare_exchange("x", "fanout")
    for call in (catalogue.delete_queue, catalogue.delete_exchange, catalogue.queue, catalogue.exchange):
        with pytest.raises(UnknownQueueError, match="nowhere"):
            call("nowhere")


def test_each_change_raises_the_counter_by_one(catalogue: Catalogue) -> None:
    counters = [catalogue.counter]
    catalogue.declare_queue("q")
    counters.append(catalogue.counter)
    catalogue.declare_queue("q")
    counters.append(catalogue.counter)
    catalogue.note_epoch(7)
    counters.append(catalogue.counter)
    assert counters == [1, 2, 2, 3]
    assert catalogue.epoch == 7


def test_a_locked_or_newer_catalogue_is_refused(path: str) -> None:
    """Bad input: locked, of a newer format, empty, none."""

    def opens() -> CatalogueDatabase:
        return SqliteCatalogue(path)

    database = SqliteCatalogue(path)
    catalogue = Catalogue(database)
    catalogue.load(STORE, 5)
    other = apsw.Connection(path)
    list(other.execute("pragma busy_timeout = 0; begin exclusive"))
    database.run("pragma busy_timeout = 0")
    with pytest.raises(CatalogueError, match="locked"):
        catalogue.declare_queue("q")
    list(other.execute("rollback"))
    assert catalogue.declare_queue("q").id == 2, "it is known again what is there"
    list(other.execute("update store set format = 2"))
    other.close()
    catalogue.close()
    with pytest.raises(CatalogueError, match="format 2"):
        again(opens)
    os.chmod(path, 0o400)
    reading = Catalogue(SqliteCatalogue(path, reading=True), reading=True)
    with pytest.raises(CatalogueError, match=r"readonly|read-only"):
        reading.declare_queue("r")
    reading.close()
    os.chmod(path, 0o600)
    Path(path).write_bytes(b"no database" * 1000)
    with pytest.raises(CatalogueError, match="not a database"):
        again(opens)
    Path(path).write_bytes(b"")
    with pytest.raises(CatalogueError, match="it is empty"):
        again(opens)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ("update store set epoch = 'x'", "its table store has values of another kind"),
        ("update queue set name = x'ff'", "its table queue has values of another kind"),
        ("update config set value = x'2d35'", "its initial_containers are b'-5'"),
        ("delete from queue", "its binding 4 is of an exchange or a queue that is not there"),
        ("update binding set exchange_id = 77", "its binding 4 is of an exchange or a queue that is not there"),
    ],
)
def test_rows_that_somebody_else_wrote_are_refused(path: str, edit: str, why: str) -> None:
    """SQLite keeps what it is given, and its command line holds no foreign keys. Conformance A1.8."""
    made = Catalogue(SqliteCatalogue(path))
    made.load(STORE, 5, 2)
    made.declare_queue("q")
    made.declare_exchange("x", "fanout")
    made.bind("x", queue="q", key="")
    made.close()
    other = apsw.Connection(path)
    list(other.execute(edit))
    other.close()
    found = Catalogue(SqliteCatalogue(path))
    with pytest.raises(CatalogueError, match=why):
        found.load(None, 0)
    found.close()


def test_what_somebody_else_changed_meanwhile_is_not_written_over(catalogue: Catalogue, opens: Opens) -> None:
    """Nothing that the other one did is taken back, and no id is given out for the second time."""
    other = Catalogue(opens())
    other._read()
    mine = catalogue.declare_queue("q")
    with pytest.raises(CatalogueError, match="somebody else has changed it"):
        other.declare_queue("r")
    other._read()
    assert other.queues == {"q": mine}
    assert other.declare_queue("r").id > mine.id
    other.close()


def test_rows_put_into_another_catalogue_are_the_same_there(catalogue: Catalogue, opens: Opens, tmp_path: Path) -> None:
    """Also its counter: what is made there has an id that nothing ever had."""
    catalogue.declare_queue("q\0\\'ü", b"\0args")
    catalogue.declare_exchange("x", "topic", alternate="y")
    catalogue.bind("x", queue="q\0\\'ü", key="\\0\0k")
    gone = catalogue.declare_queue("gone")
    catalogue.delete_queue("gone")
    other = Catalogue(SqliteCatalogue(str(tmp_path / "other.db")))
    other.replace(catalogue.rows())
    other.load(None, 0)
    assert (other.queues, other.exchanges, other.bindings) == (
        catalogue.queues,
        catalogue.exchanges,
        catalogue.bindings,
    )
    assert other.declare_queue("new").id > gone.id
    catalogue.replace(other.rows())
    assert again(opens).queues == other.queues
    other.close()


@pytest.mark.integration
@pytest.mark.long
def test_a_server_that_was_lost_is_used_again(
    start_postgres: Callable[..., PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a change that met the end of the server nobody knows; nothing is answered before that is known."""
    server = start_postgres()
    database = PostgresCatalogue(server.dsn())
    catalogue = Catalogue(database)
    catalogue.load(STORE, 5)
    catalogue.declare_queue("q")
    server.kill()
    with pytest.raises(CatalogueError):
        catalogue.declare_queue("r")
    assert set(catalogue.queues) == {"q"}, "nothing was committed, and nobody need ask"
    server.start()
    catalogue.declare_queue("r")
    commit = database.commit

    def lost() -> None:
        commit()
        server.kill()
        database.run("select 1")

    monkeypatch.setattr(database, "commit", lost)
    with pytest.raises(CatalogueError):
        catalogue.delete_queue("r")
    with pytest.raises(CatalogueError):
        catalogue.queue("q")
    monkeypatch.undo()
    server.start()
    assert set(catalogue.queues) == {"q"}
    catalogue.declare_queue("s")
    assert set(catalogue.queues) == {"q", "s"}
    second = Catalogue(PostgresCatalogue(server.dsn()))
    with pytest.raises(CatalogueError, match="another process works on it"):
        second.load(None, 0)
    second.close()
    catalogue.close()


@pytest.mark.integration
def test_a_database_that_is_missing_is_made(postgres: PostgresAddress, postgres_database: str) -> None:
    dsn, name = postgres.dsn(postgres_database), f"{postgres_database}_2"
    there = make_conninfo(dsn, dbname=name)
    with pytest.raises(CatalogueError, match="does not exist"):
        PostgresCatalogue(there)
    try:
        catalogue = Catalogue(PostgresCatalogue(there, create=True))
        catalogue.load(STORE, 5)
        catalogue.close()
        PostgresCatalogue(there).close()
    finally:
        postgres.execute(f'drop database "{name}" with (force)')


def changes(disk: SimDisk, done: list[str]) -> None:
    """Create a catalogue and change it; note what returned."""
    vfs = SimVfs(disk)
    catalogue = None
    try:
        catalogue = Catalogue(SqliteCatalogue("/s/catalogue.db", vfs.connect))
        catalogue.load(STORE, 5)
        for name in "abcd":
            catalogue.declare_queue(name)
            done.append(f"+{name}")
        catalogue.delete_queue("b")
        done.append("-b")
    finally:
        if catalogue is not None:
            catalogue.close()
        vfs.unregister()


def test_sqlite_keeps_what_it_committed_when_the_power_goes(effort: Effort) -> None:
    """Cut at each call of SQLite's own; after it, what returned is there, and one more change at most."""

    def made() -> SimDisk:
        disk = SimDisk()
        disk.make_dir("/s")
        disk.sync_dir("/")
        return disk

    whole = made()
    all_done: list[str] = []
    changes(whole, all_done)
    assert whole.calls > 100
    for cut in range(3, whole.calls + 1, effort(5, 1, 1)):
        for fate in range(effort(1, 3, 9)):
            disk, done = made(), list[str]()
            disk.cut_at = cut
            try:
                changes(disk, done)
            except (CatalogueError, PowerCut):
                assert disk.dead
            left = disk.after_crash(random.Random(cut * 10 + fate))
            vfs = SimVfs(left)
            catalogue = Catalogue(SqliteCatalogue("/s/catalogue.db", vfs.connect))
            catalogue.load(STORE, 6)
            possible = []
            for count in (len(done), len(done) + 1):
                names: set[str] = set()
                for change in all_done[:count]:
                    (names.add if change[0] == "+" else names.discard)(change[1])
                possible.append(names)
            assert set(catalogue.queues) in possible, f"cut={cut} fate={fate}"
            catalogue.close()
            vfs.unregister()
