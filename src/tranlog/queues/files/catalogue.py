"""The catalogue of a store: queues, exchanges, bindings and configuration, in SQL.

Owns the tables, each change as one SQL transaction, and the two numbers by which log and catalogue know each other. The
hard idea: a message counts only on a queue that the catalogue knows, so a catalogue that is put back from a copy would
have messages dropped. Each transaction raises a counter, which the log repeats; each opening writes its epoch here.

SQLite keeps a rollback journal, not a WAL: changes are rare, a reader beside the owner needs no shared memory, and the
tests of lost power run these very calls on their own disk.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, first section; docs/format.md, "The message store".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import msgspec

from tranlog.errors import CatalogueError, DeclaredOtherwiseError, UnknownQueueError

CATALOGUE_FORMAT = 1
NAME_BYTES_MOST = 255
_BUSY_MS = 10_000

_TABLES = """
create table store(
    store_id blob not null, format integer not null, created_at integer not null,
    counter integer not null, epoch integer not null);
create table exchange(
    id integer primary key autoincrement, name text not null unique, type text not null,
    alternate text, arguments blob not null);
create table queue(
    id integer primary key autoincrement, name text not null unique, arguments blob not null);
create table binding(
    id integer primary key autoincrement,
    exchange_id integer not null references exchange(id) on delete cascade,
    queue_id integer references queue(id) on delete cascade,
    destination_id integer references exchange(id) on delete cascade,
    routing_key text not null, arguments blob not null,
    check ((queue_id is null) <> (destination_id is null)));
create unique index binding_once on binding(
    exchange_id, coalesce(queue_id, 0), coalesce(destination_id, 0), routing_key, arguments);
create table config(name text primary key, value blob not null) without rowid;
"""


class Queue(msgspec.Struct, frozen=True):
    """A queue of the catalogue. Its id is never given out twice."""

    id: int
    name: str
    arguments: bytes


class Exchange(msgspec.Struct, frozen=True):
    """An exchange of the catalogue. `alternate` names the one for what it cannot route."""

    id: int
    name: str
    type: str
    alternate: str | None
    arguments: bytes


class QueueBinding(msgspec.Struct, frozen=True):
    """A binding from an exchange to a queue, or to another exchange: one of the two ids is None."""

    id: int
    exchange_id: int
    queue_id: int | None
    destination_id: int | None
    routing_key: str
    arguments: bytes


class Catalogue:
    """An open catalogue, and what it holds. One thread at a time; the store's lock guards it.

    `queues` and `exchanges` are by name. `counter` rises with each change, `epoch` is that of the last opening.
    """

    def __init__(
        self, path: str, connect: Callable[[str], apsw.Connection] = apsw.Connection, *, reading: bool = False
    ) -> None:
        """Open it by `connect`; with `reading` only to read it. Raises CatalogueError."""
        self.path = path
        self.store_id = b""
        self.counter = 0
        self.epoch = 0
        self.initial_containers: int | None = None
        """How many containers the store was made with; None where that is not known."""
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: list[QueueBinding] = []
        with self._told():
            self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY) if reading else connect(path)
        try:
            with self._told():
                self._run(f"pragma busy_timeout = {_BUSY_MS}")
                if not reading:
                    self._run("pragma journal_mode = delete")
                self._run("pragma synchronous = extra")
                self._run("pragma foreign_keys = on")
                self._run("pragma temp_store = memory")
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Have SQLite's errors be ours."""
        try:
            yield
        except apsw.Error as exc:
            raise CatalogueError(path=self.path, why=str(exc)) from exc

    def _run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(text, values))

    def load(self, new_id: bytes | None, now_ms: int, initial_containers: int = 0) -> None:
        """Read it; one without tables becomes a new store's, with this id if there is one. Raises CatalogueError.

        `initial_containers`: of a new store, which keeps that.
        """
        with self._told():
            if not self._run("select 1 from sqlite_schema where name = 'store'"):
                if new_id is None:
                    raise CatalogueError(path=self.path, why="it is empty, and there are containers with messages")
                self._run("begin immediate")
                try:
                    self._run(_TABLES)
                    self._run("insert into store values (?, ?, ?, 1, 0)", new_id, CATALOGUE_FORMAT, now_ms)
                    self._run("insert into config values ('initial_containers', ?)", initial_containers)
                    self._run("commit")
                except BaseException:
                    self._roll_back()
                    raise
            self._read()

    def _read(self) -> None:
        rows = self._run("select store_id, format, counter, epoch from store")
        if len(rows) != 1:
            raise CatalogueError(path=self.path, why=f"its table store has {len(rows)} rows instead of one")
        self.store_id, found, self.counter, self.epoch = rows[0]
        if found != CATALOGUE_FORMAT:
            raise CatalogueError(
                path=self.path, why=f"it has format {found}, and this release knows {CATALOGUE_FORMAT}"
            )
        kept = self._run("select value from config where name = 'initial_containers'")
        self.initial_containers = kept[0][0] if kept else None
        queues = self._run("select id, name, arguments from queue")
        exchanges = self._run("select id, name, type, alternate, arguments from exchange")
        bindings = self._run(
            "select id, exchange_id, queue_id, destination_id, routing_key, arguments from binding order by id"
        )
        self.queues = {one.name: one for one in (Queue(*row) for row in queues)}
        self.exchanges = {one.name: one for one in (Exchange(*row) for row in exchanges)}
        self.bindings = [QueueBinding(*row) for row in bindings]

    def _roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):
            if not self._connection.get_autocommit():
                self._run("rollback")

    def _change(self, *statements: tuple[Any, ...]) -> None:
        """Run statements and raise the counter, in one transaction; then read what there is."""
        with self._told():
            try:
                self._run("begin immediate")
                for text, *values in statements:
                    self._run(text, *values)
                self._run("update store set counter = counter + 1")
                self._run("commit")
            except BaseException:
                self._roll_back()
                self._read()  # of a commit that failed nobody knows whether it is there
                raise
            self._read()

    # --- what can be asked of it ---------------------------------------------------------------------

    def note_epoch(self, epoch: int) -> None:
        """Write down the epoch of an opening."""
        self._change(("update store set epoch = ?", epoch))

    def queue(self, name: str) -> Queue:
        """Return a queue. Raises UnknownQueueError."""
        found = self.queues.get(name)
        if found is None:
            raise UnknownQueueError(what=f"queue {name!r}")
        return found

    def exchange(self, name: str) -> Exchange:
        """Return an exchange. Raises UnknownQueueError."""
        found = self.exchanges.get(name)
        if found is None:
            raise UnknownQueueError(what=f"exchange {name!r}")
        return found

    def declare_queue(self, name: str, arguments: bytes = b"") -> Queue:
        """Return the queue of that name; it is created if missing. Raises DeclaredOtherwiseError."""
        known = self.queues.get(name)
        if known is None:
            _check_name("queue", name)
            self._change(("insert into queue(name, arguments) values (?, ?)", name, arguments))
            return self.queues[name]
        if known.arguments != arguments:
            raise DeclaredOtherwiseError(what=f"queue {name!r}", why="it is there with other arguments")
        return known

    def declare_exchange(
        self, name: str, kind: str, *, alternate: str | None = None, arguments: bytes = b""
    ) -> Exchange:
        """Return the exchange of that name; it is created if missing. Raises DeclaredOtherwiseError."""
        known = self.exchanges.get(name)
        if known is None:
            _check_name("exchange", name)
            row = (name, kind, alternate, arguments)
            self._change(("insert into exchange(name, type, alternate, arguments) values (?, ?, ?, ?)", *row))
            return self.exchanges[name]
        if (known.type, known.alternate, known.arguments) != (kind, alternate, arguments):
            raise DeclaredOtherwiseError(what=f"exchange {name!r}", why="it is there with other properties")
        return known

    def delete_queue(self, name: str) -> Queue:
        """Delete a queue and its bindings; return what it was. Raises UnknownQueueError."""
        found = self.queue(name)
        self._change(("delete from queue where id = ?", found.id))
        return found

    def delete_exchange(self, name: str) -> Exchange:
        """Delete an exchange and its bindings; return what it was. Raises UnknownQueueError."""
        found = self.exchange(name)
        self._change(("delete from exchange where id = ?", found.id))
        return found

    def bind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str,
        arguments: bytes = b"",
    ) -> QueueBinding:
        """Bind an exchange to a queue or to another exchange; a binding that is there stays as it is.

        Raises UnknownQueueError, DeclaredOtherwiseError.
        """
        row = self._ends(exchange, queue, destination, key, arguments)
        known = self._find(row)
        if known is None:
            if len(key.encode(errors="surrogatepass")) > NAME_BYTES_MOST:
                raise DeclaredOtherwiseError(what="the binding", why=f"its key is over {NAME_BYTES_MOST} bytes long")
            columns = "exchange_id, queue_id, destination_id, routing_key, arguments"
            self._change((f"insert into binding({columns}) values (?, ?, ?, ?, ?)", *row))
            known = self._find(row)
            assert known is not None
        return known

    def unbind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str,
        arguments: bytes = b"",
    ) -> None:
        """Remove a binding. Raises UnknownQueueError."""
        known = self._find(self._ends(exchange, queue, destination, key, arguments))
        if known is None:
            raise UnknownQueueError(what=f"binding of exchange {exchange!r} to {queue or destination!r} by {key!r}")
        self._change(("delete from binding where id = ?", known.id))

    def _ends(
        self, exchange: str, queue: str | None, destination: str | None, key: str, arguments: bytes
    ) -> tuple[int, int | None, int | None, str, bytes]:
        assert (queue is None) != (destination is None)
        queue_id = None if queue is None else self.queue(queue).id
        destination_id = None if destination is None else self.exchange(destination).id
        return self.exchange(exchange).id, queue_id, destination_id, key, arguments

    def _find(self, row: tuple[int, int | None, int | None, str, bytes]) -> QueueBinding | None:
        for one in self.bindings:
            if (one.exchange_id, one.queue_id, one.destination_id, one.routing_key, one.arguments) == row:
                return one
        return None

    def close(self) -> None:
        """Close it."""
        self._connection.close(True)


def _check_name(what: str, name: str) -> None:
    """Raise DeclaredOtherwiseError for a name that none can have: empty, too long, not UTF-8."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise DeclaredOtherwiseError(what=f"{what} {name!r}", why="its name is no UTF-8") from exc
    if not 0 < size <= NAME_BYTES_MOST:
        raise DeclaredOtherwiseError(
            what=f"{what} {name!r}", why=f"its name has {size} bytes, not 1 to {NAME_BYTES_MOST}"
        )
